//! Building the tables: the classes of each field, then of two fields together, and so on until all are combined.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::iter;

use super::address::AddressMap;
use super::lists::{Holders, Lists};
use super::long_address::LongAddressMap;
use super::shape::{Beside, Shape};
use super::{ClassTables, Cross, Map, Numbers, Word};
use crate::NO_RULE;
use crate::hybrid::entry::{Entry, FIELDS, Prefix};
use crate::hybrid::family::Family;
use crate::hybrid::state::States;
use crate::rule::PortRange;

/// What building may cost.
#[derive(Clone, Copy, Debug)]
pub(in crate::hybrid) struct Budget<'a> {
    /// Entries of all crosses.
    pub(in crate::hybrid) entries: usize,
    /// Cells of each map from addresses.
    pub(in crate::hybrid) cells: usize,
    /// Steps that are left, of a few nanoseconds each.
    pub(in crate::hybrid) work: &'a Cell<usize>,
}

/// Some of the fields, a bit each.
pub(super) type Group = usize;

/// All fields.
const ALL: Group = (1 << FIELDS) - 1;

/// The order of combining fields is found with no more rules than this, drawn evenly from all.
const SAMPLE: usize = 200;

/// Longer lists are not pruned: it takes a comparison for each pair of rules.
const LONG: usize = 100;

/// The classes of a group of fields: each is the list of rules that its packets meet in these fields, less those that an
/// earlier one covers in all others. Which classes there are does not depend on the order in which fields are combined.
struct Classes {
    lists: Lists,
    /// How they come about; for a single field, nothing.
    cross: Option<Crossed>,
    /// Entries of all tables that lead here.
    entries: usize,
}

/// Two groups of fields combined.
struct Crossed {
    a: Group,
    b: Group,
    stride: usize,
    table: Vec<u16>,
}

impl ClassTables {
    /// The tables of rules in order; `None` where the budget does not suffice.
    pub(in crate::hybrid) fn build<K: Family>(
        rules: &[Entry],
        states: &States,
        budget: Budget<'_>,
    ) -> Option<Self> {
        let fields = asked_of(rules);
        let builder =
            |share| Builder::new::<K>(rules.iter().step_by(share).collect(), fields, states, budget);
        let share = rules.len().div_ceil(SAMPLE).max(1);
        let mut sample = builder(share)?;
        let order = sample.best_order()?;
        if share == 1 {
            return sample.finish(&order);
        }
        // Tables and work grow by some power of the number of rules: two samples tell which, before all rules are tried.
        let mut before: Option<[(usize, usize); 2]> = None;
        for share in iter::successors(Some(share), |share| Some(share / 4)).take_while(|&share| share > 1) {
            let left = budget.work.get();
            let mut builder = builder(share)?;
            builder.combine_all(&order)?;
            let now = [(share, builder.total(&order)?), (share, left - budget.work.get())];
            if let Some(before) = before {
                let [entries, work] = [0, 1].map(|what| expected(before[what], now[what]));
                // Growth slows down: what is far off may be so much less than expected.
                let slower = (share as f64).cbrt();
                if entries > slower * budget.entries as f64 || work > slower * budget.work.get() as f64 {
                    return None;
                }
            }
            before = Some(now);
        }
        let mut builder = builder(1)?;
        builder.combine_all(&order)?;
        builder.finish(&order)
    }
}

/// What is expected of all rules, from one rule in so many and what it took, twice.
fn expected(fewer: (usize, usize), more: (usize, usize)) -> f64 {
    let growth = (more.1.max(1) as f64 / fewer.1.max(1) as f64).ln();
    let power = growth / (fewer.0 as f64 / more.0 as f64).ln();
    more.1 as f64 * (more.0 as f64).powf(power)
}

/// The fields of which some rule asks something; the state where none does.
fn asked_of(rules: &[Entry]) -> Group {
    let asks = |&field: &usize| rules.iter().any(|rule| !rule.covers_in(field, &Entry::ANY));
    let fields = (0..FIELDS).filter(asks).map(|field| 1 << field).sum();
    if fields == 0 { 1 << (FIELDS - 1) } else { fields }
}

/// IPv6 prefixes up to this length go through their bytes as those of IPv4 do, where that takes no more than so many cells.
const SHORT_PREFIX: u8 = 64;
const SHORT_CELLS: usize = 1 << 18;

/// What a list has in common with others is looked up in the last few results first.
const RECENT: usize = 8;

/// Words with a bit for each rule of a list; for an empty list, one.
fn words_of(list: &[u16]) -> usize {
    list.len().div_ceil(64).max(1)
}

/// A prefix of an address field, with the rules that have just it.
struct Node {
    class: u16,
    /// Class of the longest prefix that holds this one.
    parent: u16,
    own: Vec<u16>,
}

struct Builder<'a> {
    rules: Vec<&'a Entry>,
    shapes: Vec<Shape>,
    /// The fields that have classes.
    fields: Group,
    budget: Budget<'a>,
    /// Source and destination prefixes, each after those that hold it.
    nodes: [Vec<Node>; 2],
    /// What is known of each group of fields.
    groups: [Option<Classes>; ALL + 1],
    maps: [Option<Map>; FIELDS],
}

impl<'a> Builder<'a> {
    /// With the classes of each field.
    fn new<K: Family>(
        rules: Vec<&'a Entry>,
        fields: Group,
        states: &States,
        budget: Budget<'a>,
    ) -> Option<Self> {
        // Numbers of rules are half words.
        if rules.len() > u16::MAX.into() {
            return None;
        }
        let mut builder = Self {
            shapes: Shape::all(&rules),
            rules,
            fields,
            budget,
            nodes: [Vec::new(), Vec::new()],
            groups: std::array::from_fn(|_| None),
            maps: std::array::from_fn(|_| None),
        };
        builder.addresses::<K>(0, |rule| rule.source)?;
        builder.addresses::<K>(1, |rule| rule.destination)?;
        builder.ports(Word::SourcePort, 2, |rule| rule.source_ports)?;
        builder.ports(Word::DestinationPort, 3, |rule| rule.destination_ports)?;
        builder.states(states)?;
        Some(builder)
    }

    /// Spends some of the budget.
    fn spend(&self, work: usize) -> Option<()> {
        self.budget.work.set(self.budget.work.get().checked_sub(work)?);
        Some(())
    }

    /// Whether one rule covers another in all fields but those that `beside` leaves out.
    fn covers(&self, beside: &Beside, earlier: u16, later: u16) -> bool {
        self.shapes[usize::from(earlier)].covers(&self.shapes[usize::from(later)], beside)
    }

    /// Takes from a list the rules that an earlier one of it covers in all fields but these, unless that would take too long: a
    /// list need not be pruned, but then there may be more classes.
    fn prune(&mut self, fields: Group, list: &mut Vec<u16>) -> Option<()> {
        if list.len() > LONG {
            return Some(());
        }
        let beside = Beside::new(fields);
        let mut kept = 0;
        let mut work = 0;
        for at in 0..list.len() {
            let rule = list[at];
            let by = list[..kept].iter().position(|&earlier| self.covers(&beside, earlier, rule));
            work += by.unwrap_or(kept) + 1;
            if by.is_none() {
                list[kept] = rule;
                kept += 1;
            }
        }
        list.truncate(kept);
        self.spend(work)
    }

    /// Takes up the classes of a field.
    fn add(&mut self, field: usize, lists: Lists, map: impl FnOnce(usize) -> Option<Map>) -> Option<()> {
        if self.fields >> field & 1 == 1 {
            self.maps[field] = Some(map(lists.len())?);
        }
        self.groups[1 << field] = Some(Classes { lists, cross: None, entries: 0 });
        Some(())
    }

    fn addresses<K: Family>(&mut self, side: usize, prefix: impl Fn(&Entry) -> Prefix) -> Option<()> {
        // By prefix, and in order: a prefix before those in it, and all of these before what is not in it.
        let mut by_prefix: Vec<(Prefix, u16)> =
            self.rules.iter().zip(0..).map(|(rule, number)| (prefix(rule), number)).collect();
        by_prefix.sort_unstable();
        let mut lists = Lists::default();
        let mut prefixes: Vec<(Prefix, u16)> = Vec::new();
        let mut nodes: Vec<Node> = Vec::new();
        // The prefixes that hold the one at hand, with the rules and the numbers of their classes.
        let mut holding: Vec<(Prefix, Vec<u16>, u16)> = Vec::new();
        let beside = Beside::new(1 << side);
        let everything = Prefix { address: 0, len: 0 };
        let groups = by_prefix.chunk_by(|a, b| a.0 == b.0);
        let rootless = by_prefix.first().is_none_or(|(first, _)| *first != everything);
        for own in rootless.then_some(&[][..]).into_iter().chain(groups) {
            let node = own.first().map_or(everything, |&(prefix, _)| prefix);
            let own: Vec<u16> = own.iter().map(|&(_, rule)| rule).collect();
            while holding.last().is_some_and(|(prefix, ..)| !prefix.covers(node)) {
                holding.pop();
            }
            let mut list = holding.last().map_or(Vec::new(), |(_, list, _)| list.clone());
            self.spend(list.len() * own.len())?;
            for &rule in &own {
                self.insert(&beside, &mut list, rule);
            }
            let class = lists.class(&list)?;
            prefixes.push((node, class));
            let parent = holding.last().map_or(class, |&(.., class)| class);
            nodes.push(Node { class, parent, own });
            holding.push((node, list, class));
        }
        self.nodes[side] = nodes;
        let room = self.budget.cells;
        self.add(side, lists, |classes| {
            let address = |room| Some(Map::Address { side, map: AddressMap::new(&prefixes, classes, room)? });
            if K::WORDS == 1 {
                return address(room);
            }
            let short = prefixes.iter().all(|(prefix, _)| prefix.len <= SHORT_PREFIX);
            short
                .then(|| address(SHORT_CELLS))
                .flatten()
                .or_else(|| Some(Map::LongAddress { side, map: LongAddressMap::new(&prefixes, room)? }))
        })
    }

    /// Adds a rule to a pruned list, unless an earlier one covers it in all fields but these; those that it covers go.
    fn insert(&self, beside: &Beside, list: &mut Vec<u16>, rule: u16) {
        let at = list.partition_point(|&other| other < rule);
        if list[..at].iter().any(|&earlier| self.covers(beside, earlier, rule)) {
            return;
        }
        list.insert(at, rule);
        let mut index = 0;
        list.retain(|&later| {
            index += 1;
            index <= at + 1 || !self.covers(beside, rule, later)
        });
    }

    fn ports(&mut self, word: Word, field: usize, range: impl Fn(&Entry) -> PortRange) -> Option<()> {
        // Where rules begin and end: from one such port to the next, it is the same rules that hold them.
        let mut ends: Vec<(u32, u16)> = Vec::with_capacity(2 * self.rules.len() + 1);
        for (rule, number) in self.rules.iter().zip(0..) {
            let range = range(rule);
            ends.extend([(range.low.into(), number), (u32::from(range.high) + 1, number)]);
        }
        ends.sort_unstable();
        let mut holding = BTreeSet::new();
        let mut lists = Lists::default();
        let mut classes = Vec::with_capacity(1 << 16);
        let mut list = Vec::new();
        let mut ends = ends.chunk_by(|a, b| a.0 == b.0).peekable();
        let mut start = 0;
        while start < 1 << 16 {
            for &(_, number) in ends.next_if(|here| here[0].0 == start).unwrap_or_default() {
                if !holding.remove(&number) {
                    holding.insert(number);
                }
            }
            self.spend(holding.len())?;
            list.clear();
            list.extend(&holding);
            self.prune(1 << field, &mut list)?;
            let class = lists.class(&list)?;
            start = ends.peek().map_or(1 << 16, |next| next[0].0);
            classes.resize(start as usize, class);
        }
        self.add(field, lists, |count| {
            Some(Map::Word { field: word, classes: Numbers::new(classes, count - 1) })
        })
    }

    fn states(&mut self, states: &States) -> Option<()> {
        let field = FIELDS - 1;
        let mut lists = Lists::default();
        let all = states.all();
        let highest = all.iter().copied().max().unwrap_or(0);
        let mut classes = vec![0; usize::from(highest) + 1];
        for state in all {
            self.spend(self.rules.len())?;
            let rules = self.rules.iter().zip(0..).filter(|(rule, _)| rule.state.matches(state));
            let mut list: Vec<u16> = rules.map(|(_, number)| number).collect();
            self.prune(1 << field, &mut list)?;
            classes[usize::from(state)] = lists.class(&list)?;
        }
        self.add(field, lists, |count| {
            Some(Map::Word { field: Word::State, classes: Numbers::new(classes, count - 1) })
        })
    }

    /// Which groups to combine, one pair after another, for the smallest tables: found by combining every group of two fields, of
    /// three and so on by the best of all ways to split it in two.
    fn best_order(&mut self) -> Option<Vec<(Group, Group)>> {
        let all = self.fields;
        let mut groups: Vec<Group> =
            (1..=all).filter(|group| group & !all == 0 && group.count_ones() > 1).collect();
        groups.sort_by_key(|group| group.count_ones());
        for group in groups {
            let splits = (1..group).filter(|&a| a & !group == 0 && a > group & !a);
            let entries = |a: Group| Some((self.entries(a, group & !a)?, a));
            if let Some((_, a)) = splits.filter_map(entries).min() {
                // Where it would be too large, the group is not part of any order.
                let _ = self.combine(a, group & !a);
            }
        }
        let mut order = Vec::new();
        let mut used = vec![all];
        while let Some(group) = used.pop() {
            if let Some(cross) = &self.groups[group].as_ref()?.cross {
                order.push((cross.a, cross.b));
                used.extend([cross.a, cross.b]);
            }
        }
        // What a group is made of has fewer fields.
        order.sort_by_key(|(a, b)| (a | b).count_ones());
        Some(order)
    }

    /// Entries of all tables that combining two groups takes, if both are there.
    fn entries(&self, a: Group, b: Group) -> Option<usize> {
        let (a, b) = (self.groups[a].as_ref()?, self.groups[b].as_ref()?);
        Some(a.lists.len() * b.lists.len() + a.entries + b.entries)
    }

    /// Combines two groups; `None` where there would be too many classes, or too much work.
    fn combine(&mut self, a: Group, b: Group) -> Option<()> {
        let entries = self.entries(a, b)?;
        if entries > self.budget.entries {
            return None;
        }
        let (x, y) = (self.groups[a].take()?, self.groups[b].take()?);
        let crossed = match (a, b) {
            (1 | 2, _) => self.cross_addresses(a - 1, b, x.lists.len(), &y.lists, (y.lists.len(), 1)),
            (_, 1 | 2) => self.cross_addresses(b - 1, a, y.lists.len(), &x.lists, (1, y.lists.len())),
            _ => self.cross(a | b, &x.lists, &y.lists),
        };
        let stride = y.lists.len();
        (self.groups[a], self.groups[b]) = (Some(x), Some(y));
        let (table, lists) = crossed?;
        self.groups[a | b] = Some(Classes { lists, cross: Some(Crossed { a, b, stride, table }), entries });
        Some(())
    }

    /// Combines one pair of groups after another.
    fn combine_all(&mut self, order: &[(Group, Group)]) -> Option<()> {
        order.iter().try_for_each(|&(a, b)| self.combine(a, b))
    }

    /// Entries of all tables of this order.
    fn total(&self, order: &[(Group, Group)]) -> Option<usize> {
        match order.last() {
            Some((a, b)) => Some(self.groups[a | b].as_ref()?.entries),
            None => Some(0),
        }
    }

    /// The classes of each pair of lists, and their lists.
    fn cross(&mut self, fields: Group, x: &Lists, y: &Lists) -> Option<(Vec<u16>, Lists)> {
        // Each list of the one side is met with all of the other: a bit says which of its rules are in both.
        let bits = |lists: &Lists| lists.iter().map(words_of).sum::<usize>();
        let swap = bits(y) * x.len() < bits(x) * y.len();
        let (outer, inner) = if swap { (y, x) } else { (x, y) };
        let holders = Holders::new(inner, self.rules.len());
        let last = fields == self.fields;
        let mut lists = Lists::default();
        // Before they are pruned, lists are as often the same.
        let mut before = Lists::default();
        let mut classes = Vec::new();
        let mut table = vec![0; x.len() * y.len()];
        let mut meets = Vec::new();
        let mut both = Vec::new();
        for (i, list) in outer.iter().enumerate() {
            let words = words_of(list);
            meets.clear();
            meets.resize(inner.len() * words, 0u64);
            let mut work = meets.len();
            for (bit, &rule) in list.iter().enumerate() {
                let holders = holders.of(rule);
                holders.iter().for_each(|&j| meets[j as usize * words + bit / 64] |= 1 << (bit % 64));
                work += holders.len();
            }
            self.spend(work)?;
            // What a list has in common with one is often what it has in common with others.
            let mut recent: [(&[u64], u16); RECENT] = [(&[], 0); RECENT];
            for (j, common) in meets.chunks_exact(words).enumerate() {
                let class = match recent.iter().find(|(other, _)| *other == common) {
                    Some(&(_, class)) => class,
                    None => {
                        let rules = list.iter().enumerate();
                        let rules = rules.filter(|(bit, _)| common[bit / 64] >> (bit % 64) & 1 == 1);
                        both.clear();
                        // With no field left, only the first rule counts.
                        both.extend(rules.map(|(_, &rule)| rule).take(if last { 1 } else { list.len() }));
                        let number = before.number(&both);
                        if number == classes.len() {
                            self.prune(fields, &mut both)?;
                            classes.push(lists.class(&both)?);
                        }
                        let class = classes[number];
                        recent.rotate_right(1);
                        recent[0] = (common, class);
                        class
                    }
                };
                table[if swap { j * y.len() + i } else { i * y.len() + j }] = class;
            }
        }
        Some((table, lists))
    }

    /// As [`Self::cross`], of an address field with other fields, whose classes `lists` are. The rules of a prefix are those of the
    /// prefix that holds it and its own, so its row of the table is that one's row, with its own rules added where they are in
    /// the other class too. The strides are those of rows and columns in the table.
    fn cross_addresses(
        &mut self,
        side: usize,
        others: Group,
        rows: usize,
        lists: &Lists,
        (row_stride, column_stride): (usize, usize),
    ) -> Option<(Vec<u16>, Lists)> {
        let fields = others | 1 << side;
        let beside = Beside::new(fields);
        let last = fields == self.fields;
        let columns = Holders::new(lists, self.rules.len());
        self.spend(lists.len() * rows)?;
        // More than can be classes: only some will be used.
        let mut made = Lists::default();
        let empty = made.number(&[]) as u32;
        let mut table: Vec<u32> = vec![empty; rows * lists.len()];
        let mut done = vec![false; rows];
        let nodes = std::mem::take(&mut self.nodes[side]);
        let mut scratch = Vec::new();
        for node in &nodes {
            let (row, parent) = (usize::from(node.class), usize::from(node.parent));
            if std::mem::replace(&mut done[row], true) {
                continue;
            }
            if row != parent {
                table.copy_within(parent * lists.len()..(parent + 1) * lists.len(), row * lists.len());
            }
            let cells = &mut table[row * lists.len()..][..lists.len()];
            for &rule in &node.own {
                // Neighbours have often had the same list.
                let mut before = (u32::MAX, 0);
                for &column in columns.of(rule) {
                    let cell = &mut cells[column as usize];
                    if *cell != before.0 {
                        scratch.clear();
                        scratch.extend_from_slice(made.get(*cell as usize));
                        self.spend(3 * scratch.len() + 16)?;
                        if last {
                            // With no field left, only the first rule counts.
                            let first = scratch.first().map_or(rule, |&first: &u16| first.min(rule));
                            scratch.clear();
                            scratch.push(first);
                        } else {
                            self.insert(&beside, &mut scratch, rule);
                        }
                        before = (*cell, made.number(&scratch) as u32);
                    }
                    *cell = before.1;
                }
            }
        }
        self.nodes[side] = nodes;
        made.used_by(&table, lists.len(), (row_stride, column_stride))
    }

    /// The tables, when all fields are combined in this order.
    fn finish(mut self, order: &[(Group, Group)]) -> Option<ClassTables> {
        let all = self.fields;
        let mut tables = ClassTables { maps: Vec::new(), crosses: Vec::new(), positions: Vec::new().into() };
        // Where the classes of each group stand.
        let mut index = [0; ALL + 1];
        for field in 0..FIELDS {
            if let Some(map) = self.maps[field].take() {
                index[1 << field] = tables.maps.len();
                tables.maps.push(map);
            }
        }
        let position =
            |list: &[u16]| list.first().map_or(NO_RULE, |&rule| self.rules[usize::from(rule)].position);
        let positions: Vec<u32> = self.groups[all].as_ref()?.lists.iter().map(position).collect();
        for &(a, b) in order {
            let Classes { lists, cross, .. } = self.groups[a | b].take()?;
            let cross = cross?;
            let table = Numbers::new(cross.table, lists.len() - 1);
            let group = a | b;
            let (a, b) = (index[a], index[b]);
            index[group] = tables.maps.len() + tables.crosses.len();
            tables.crosses.push(Cross { a, b, stride: cross.stride as u32, table });
        }
        // A half word more in the last table is a table less.
        let highest = positions.iter().map(|position| position.wrapping_add(1)).max().unwrap_or(0);
        match tables.crosses.last_mut() {
            Some(last) if highest <= u16::MAX.into() => {
                last.table = last.table.map(|class| positions[usize::from(class)].wrapping_add(1) as u16);
            }
            _ => tables.positions = positions.into(),
        }
        Some(tables)
    }
}
