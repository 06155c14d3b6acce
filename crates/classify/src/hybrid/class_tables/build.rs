//! Building the tables: the classes of each field, then of two fields together, and so on until one is left.

use super::address::AddressMap;
use super::bits::{Matrix, Sets, first, prune};
use super::{ClassTables, Cross, Map, Word};
use crate::NO_RULE;
use crate::hybrid::entry::{Entry, FIELDS, Prefix};
use crate::hybrid::state::States;

/// What building may cost.
#[derive(Clone, Copy, Debug)]
pub(in crate::hybrid) struct Budget {
    /// Rules.
    pub(in crate::hybrid) rules: usize,
    /// Entries of all tables.
    pub(in crate::hybrid) entries: usize,
    /// Word operations.
    pub(in crate::hybrid) work: usize,
}

/// A field, or several together: its classes, each as the set of rules that its packets meet in these fields, less those
/// that an earlier one covers in all others.
struct Part {
    /// A bit for each field.
    fields: u32,
    sets: Vec<Box<[u64]>>,
    /// Among maps and crosses.
    index: usize,
}

/// The bits of all fields.
const ALL_FIELDS: u32 = (1 << FIELDS) - 1;

impl ClassTables {
    /// The tables of rules in order; `None` where the budget does not suffice.
    pub(in crate::hybrid) fn build(rules: &[Entry], states: &States, budget: Budget) -> Option<Self> {
        if rules.len() > budget.rules {
            return None;
        }
        let rules = without_covered(rules);
        let mut builder = Builder {
            covers: std::array::from_fn(|field| {
                Matrix::later(rules.len(), |i, j| rules[i].covers_in(field, &rules[j]))
            }),
            rules: &rules,
            budget,
            parts: Vec::new(),
            tables: Self { maps: Vec::new(), crosses: Vec::new(), positions: Vec::new() },
        };
        builder.addresses(0, |rule| rule.source)?;
        builder.addresses(1, |rule| rule.destination)?;
        builder.ports(Word::SourcePort, 2, |rule| (rule.source_ports.low, rule.source_ports.high))?;
        builder.ports(Word::DestinationPort, 3, |rule| {
            (rule.destination_ports.low, rule.destination_ports.high)
        })?;
        builder.states(states)?;
        while builder.parts.len() > 1 {
            builder.cross()?;
        }
        let position = |set: &Box<[u64]>| first(set).map_or(NO_RULE, |rule| rules[rule].position);
        let Builder { parts, mut tables, .. } = builder;
        tables.positions = parts[0].sets.iter().map(position).collect();
        Some(tables)
    }
}

/// The rules that no earlier one covers.
fn without_covered(rules: &[Entry]) -> Vec<Entry> {
    let mut kept: Vec<Entry> = Vec::with_capacity(rules.len());
    for rule in rules {
        if !kept.iter().any(|earlier| earlier.covers(rule)) {
            kept.push(*rule);
        }
    }
    kept
}

struct Builder<'a> {
    rules: &'a [Entry],
    /// For each field, which later rules a rule covers in it.
    covers: [Matrix; FIELDS],
    budget: Budget,
    parts: Vec<Part>,
    tables: ClassTables,
}

impl Builder<'_> {
    /// Which later rules a rule covers in all fields but these.
    fn covers_beside(&self, fields: u32) -> Matrix {
        let mut covers = Matrix::later(self.rules.len(), |_, _| true);
        for (field, in_field) in self.covers.iter().enumerate() {
            if fields >> field & 1 == 0 {
                covers.and(in_field);
            }
        }
        covers
    }

    /// Spends some of the budget.
    fn spend(&mut self, entries: usize, work: usize) -> Option<()> {
        self.budget.entries = self.budget.entries.checked_sub(entries)?;
        self.budget.work = self.budget.work.checked_sub(work)?;
        Some(())
    }

    /// Takes up the classes of a field; a field of one class distinguishes nothing and gets no map, unless it is the last.
    fn add(&mut self, field: usize, sets: Sets, map: impl FnOnce(usize) -> Option<Map>) -> Option<()> {
        let sets = sets.into_all();
        if sets.len() > 1 || field == FIELDS - 1 && self.parts.is_empty() {
            let map = map(sets.len())?;
            self.parts.push(Part { fields: 1 << field, sets, index: self.tables.maps.len() });
            self.tables.maps.push(map);
        }
        Some(())
    }

    /// The set of rules for which `meets` holds, pruned and numbered.
    fn class(
        &self,
        sets: &mut Sets,
        covers: &Matrix,
        scratch: &mut Vec<u64>,
        meets: impl Fn(&Entry) -> bool,
    ) -> Option<u16> {
        scratch.clear();
        scratch.resize(covers.words, 0);
        for (index, rule) in self.rules.iter().enumerate() {
            scratch[index / 64] |= u64::from(meets(rule)) << (index % 64);
        }
        prune(scratch, covers);
        sets.number(scratch)
    }

    fn addresses(&mut self, side: usize, prefix: impl Fn(&Entry) -> Prefix) -> Option<()> {
        let covers = self.covers_beside(1 << side);
        let mut distinct: Vec<Prefix> = self.rules.iter().map(&prefix).collect();
        distinct.push(Prefix { address: 0, len: 0 });
        distinct.sort_unstable();
        distinct.dedup();
        self.spend(0, distinct.len() * (self.rules.len() + covers.words))?;
        let (mut sets, mut scratch) = (Sets::default(), Vec::new());
        let mut prefixes = Vec::with_capacity(distinct.len());
        for node in distinct {
            let class = self.class(&mut sets, &covers, &mut scratch, |rule| prefix(rule).covers(node))?;
            prefixes.push((node, class));
        }
        let room = self.budget.entries / 2;
        self.add(side, sets, |classes| {
            Some(Map::Address { side, map: AddressMap::new(&prefixes, classes, room)? })
        })
    }

    fn ports(&mut self, word: Word, field: usize, range: impl Fn(&Entry) -> (u16, u16)) -> Option<()> {
        let covers = self.covers_beside(1 << field);
        // Where a class may begin.
        let mut starts = vec![0u32];
        for rule in self.rules {
            let (low, high) = range(rule);
            starts.push(low.into());
            starts.push(u32::from(high) + 1);
        }
        starts.sort_unstable();
        starts.dedup();
        starts.retain(|&start| start < 1 << 16);
        self.spend(0, starts.len() * (self.rules.len() + covers.words))?;
        let (mut sets, mut scratch) = (Sets::default(), Vec::new());
        let mut classes = Vec::with_capacity((1 << 16) + 1);
        for (index, &start) in starts.iter().enumerate() {
            let class = self.class(&mut sets, &covers, &mut scratch, |rule| {
                let (low, high) = range(rule);
                (low..=high).contains(&(start as u16))
            })?;
            let end = starts.get(index + 1).map_or(1 << 16, |&end| end as usize);
            classes.resize(end, class);
        }
        classes.push(0);
        self.add(field, sets, |_| Some(Map::Word { field: word, classes }))
    }

    fn states(&mut self, states: &States) -> Option<()> {
        let field = FIELDS - 1;
        let covers = self.covers_beside(1 << field);
        let all = states.all();
        self.spend(0, all.len() * (self.rules.len() + covers.words))?;
        let (mut sets, mut scratch) = (Sets::default(), Vec::new());
        let mut classes = vec![0; (1 << 16) + 1];
        for state in all {
            classes[usize::from(state)] =
                self.class(&mut sets, &covers, &mut scratch, |rule| rule.state.matches(state))?;
        }
        self.add(field, sets, |_| Some(Map::Word { field: Word::State, classes }))
    }

    /// Combines the two parts with the smallest table.
    fn cross(&mut self) -> Option<()> {
        let size = |a: &Part, b: &Part| a.sets.len() * b.sets.len();
        let pairs = (0..self.parts.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let (a, b) = pairs.min_by_key(|&(a, b)| size(&self.parts[a], &self.parts[b]))?;
        // The later one is taken out first, so that the other stays in its place.
        let (a, b) = (self.parts.remove(a), self.parts.remove(b));
        let fields = a.fields | b.fields;
        let covers = self.covers_beside(fields);
        // With no field left, only the first rule counts.
        let last = fields == ALL_FIELDS || self.parts.is_empty();
        let entries = size(&a, &b);
        self.spend(entries, entries * if last { 2 } else { covers.words + 16 })?;
        let mut sets = Sets::default();
        let mut table = Vec::with_capacity(entries + 1);
        let mut both = vec![0; covers.words];
        for x in &a.sets {
            for y in &b.sets {
                for ((both, x), y) in both.iter_mut().zip(x).zip(y) {
                    *both = x & y;
                }
                if last {
                    let rule = first(&both);
                    both.fill(0);
                    if let Some(rule) = rule {
                        both[rule / 64] |= 1 << (rule % 64);
                    }
                } else {
                    prune(&mut both, &covers);
                }
                table.push(sets.number(&both)?);
            }
        }
        table.push(0);
        let index = self.tables.maps.len() + self.tables.crosses.len();
        let stride = b.sets.len() as u32;
        self.tables.crosses.push(Cross { a: a.index, b: b.index, stride, table });
        self.parts.push(Part { fields, sets: sets.into_all(), index });
        Some(())
    }
}
