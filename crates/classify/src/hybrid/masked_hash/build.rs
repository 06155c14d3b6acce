//! Choosing what a table hashes, and filling it.

use std::collections::HashMap;

use super::mask::{Mask, RuleWords};
use super::{LINE_BITS, MAX_LINES, Table, cell_word};
use crate::hybrid::entry::Entry;
use crate::hybrid::family::{Family, RuleLine};
use crate::hybrid::state::States;

/// Keys that a rule may stand under at most.
pub(super) const MAX_COPIES: u64 = 16;
/// Estimated instructions of a line compared.
const LINE_COST: f64 = 24.0;
/// And of finding a rule's packets in what comes after this table: the least first, and more where with this much no table takes
/// enough of the rules.
const LEFT_COSTS: [f64; 3] = [100.0, 400.0, 1600.0];
/// For each copy of a rule beyond the first, for the memory.
const COPY_COST: f64 = 4.0;

/// Counts rules by cell for one mask after another.
struct Estimator<'a> {
    /// The rules, or some of them drawn evenly.
    rules: Vec<(&'a Entry, RuleWords)>,
    /// Of how many rules each of them is one.
    share: usize,
    states: &'a States,
    protocols: &'a [u16],
    /// Rules in each cell; a power of two of cells.
    counts: Vec<u16>,
    line_rules: usize,
    left_cost: f64,
    /// What is known of masks.
    placed: HashMap<Mask, Placed>,
}

/// Rules placed in cells.
#[derive(Clone, Copy, Default)]
struct Placed {
    /// Rules that would stand under too many keys.
    left: u64,
    /// Keys of all others.
    copies: u64,
    /// Lines compared, and cells that have no room for all, if a packet comes for each key.
    lines: f64,
    full: f64,
}

impl<'a> Estimator<'a> {
    fn new<K: Family>(rules: &'a [Entry], share: usize, states: &'a States, protocols: &'a [u16]) -> Self {
        let rules: Vec<_> =
            rules.iter().step_by(share).map(|rule| (rule, RuleWords::new::<K>(rule))).collect();
        let cells = (rules.len() * 2).next_power_of_two().clamp(16, 1 << 24);
        Self {
            rules,
            share,
            states,
            protocols,
            counts: vec![0; cells],
            line_rules: K::Line::RULES,
            left_cost: LEFT_COSTS[0],
            placed: HashMap::new(),
        }
    }

    /// Rules in a cell of which `counted` rules are among those that are counted.
    fn rules_of(&self, counted: usize) -> usize {
        if counted == 0 { 0 } else { 1 + (counted - 1) * self.share }
    }

    /// Lines that a packet is compared with in a cell of which `counted` rules are among those that are counted, and whether (1) or
    /// not (0) it has no room for more.
    fn visit(&self, counted: usize) -> [f64; 2] {
        let lines = self.rules_of(counted).div_ceil(self.line_rules);
        [lines.min(MAX_LINES) as f64, if lines > MAX_LINES { 1.0 } else { 0.0 }]
    }

    /// Counts the rules of each cell.
    fn place<K: Family>(&mut self, mask: &Mask) -> Placed {
        self.counts.fill(0);
        let shift = 32 - self.counts.len().trailing_zeros();
        let mut placed = Placed::default();
        // What one more rule in a cell adds to the sums over the rules of the cell.
        let sums = |rules: usize| self.visit(rules).map(|visit| rules as f64 * visit);
        let steps: Vec<[f64; 2]> = (0..64)
            .map(|rules| {
                let ([lines, full], [lines_before, full_before]) = (sums(rules + 1), sums(rules));
                [lines - lines_before, full - full_before]
            })
            .collect();
        let words: Vec<(usize, u32)> =
            mask.words::<K>(self.states).into_iter().enumerate().filter(|(_, mask)| *mask != 0).collect();
        let mut count = |hash: u32| {
            let count = &mut self.counts[(hash >> shift) as usize];
            placed.copies += 1;
            let [lines, full] = steps[usize::from(*count).min(steps.len() - 1)];
            placed.lines += lines;
            placed.full += full;
            *count = count.saturating_add(1);
        };
        for (rule, rule_words) in &self.rules {
            // Most rules stand under one key.
            if let Some(hash) = rule_words.hash(&words) {
                count(hash);
            } else if mask.copies(rule, self.protocols, self.states) > MAX_COPIES {
                placed.left += 1;
            } else {
                mask.hashes::<K>(rule, self.protocols, self.states, &mut count);
            }
        }
        placed
    }

    /// Instructions for a packet of a rule drawn at random.
    fn cost<K: Family>(&mut self, mask: &Mask) -> f64 {
        let Placed { left, copies, lines, full } = match self.placed.get(mask) {
            Some(&placed) => placed,
            None => {
                let placed = self.place::<K>(mask);
                self.placed.insert(*mask, placed);
                placed
            }
        };
        let rules = self.rules.len() as f64;
        let placed = rules - left as f64;
        if placed == 0.0 {
            return f64::INFINITY;
        }
        let visit = (lines * LINE_COST + full * self.left_cost) / copies as f64;
        let spread = copies as f64 / placed - 1.0;
        let left = left as f64 / rules;
        visit * (1.0 - left) + self.left_cost * left + COPY_COST * spread
    }

    /// The part of the rules that a table has room for.
    fn part<K: Family>(&mut self, mask: &Mask) -> f64 {
        let left = self.place::<K>(mask).left;
        let (mut kept, mut all) = (0, 0);
        for &counted in &self.counts {
            let rules = self.rules_of(counted.into());
            kept += rules.min(MAX_LINES * self.line_rules);
            all += rules;
        }
        (1.0 - left as f64 / self.rules.len() as f64) * kept as f64 / all.max(1) as f64
    }

    /// Goes downhill from a mask to one that no neighbour betters. With a scout, which has fewer rules, only those are looked at
    /// that are not much worse for the scout: they are hardly better for more rules.
    fn descend<K: Family>(&mut self, start: Mask, mut scout: Option<&mut Self>) -> (f64, Mask) {
        let mut here = (self.cost::<K>(&start), start);
        loop {
            let mut next = here;
            let mut around = neighbours::<K>(here.1);
            if let Some(scout) = &mut scout {
                let most = HOPEFUL * scout.cost::<K>(&here.1);
                around.retain(|mask| scout.cost::<K>(mask) < most);
            }
            for mask in around {
                let cost = self.cost::<K>(&mask);
                if cost < next.0 - 1e-6 {
                    next = (cost, mask);
                }
            }
            if next.1 == here.1 {
                return here;
            }
            here = next;
        }
    }
}

/// Masks a step away.
fn neighbours<K: Family>(mask: Mask) -> Vec<Mask> {
    let bits = (32 * K::WORDS) as i16;
    let mut all = Vec::new();
    let mut lens = |source: i16, destination: i16| {
        let (source, destination) =
            (i16::from(mask.source_len) + source, i16::from(mask.destination_len) + destination);
        if (0..=bits).contains(&source) && (0..=bits).contains(&destination) {
            all.push(Mask { source_len: source as u8, destination_len: destination as u8, ..mask });
        }
    };
    for step in [-32, -16, -8, -4, -2, -1, 1, 2, 4, 8, 16, 32] {
        lens(step, 0);
        lens(0, step);
    }
    for step in [4, 8] {
        lens(step, -step);
        lens(-step, step);
    }
    for port_bits in [0, 6, 16] {
        if port_bits != mask.source_port_bits {
            all.push(Mask { source_port_bits: port_bits, ..mask });
        }
        if port_bits != mask.destination_port_bits {
            all.push(Mask { destination_port_bits: port_bits, ..mask });
        }
    }
    all.push(Mask { protocol: !mask.protocol, ..mask });
    all
}

/// With more rules than this, masks are tried on some: first on few, the best of them on more.
const SAMPLE: usize = 1 << 12;
const LARGER_SAMPLE: usize = 1 << 18;
/// How much worse a mask may be for few rules to be tried on more.
const HOPEFUL: f64 = 1.25;

/// The mask that costs least, as far as going downhill from a few places finds it, of a table that takes at least one rule in
/// `least`.
pub(super) fn choose<K: Family>(
    rules: &[Entry],
    states: &States,
    protocols: &[u16],
    least: usize,
) -> Option<Mask> {
    let share = |most: usize| rules.len().div_ceil(most).max(1);
    let mut small = Estimator::new::<K>(rules, share(SAMPLE), states, protocols);
    let mut large = Estimator::new::<K>(rules, share(LARGER_SAMPLE), states, protocols);
    let part = (8 * K::WORDS) as u8;
    let starts = [(2, 2), (0, 2), (2, 0), (3, 3), (0, 0)].map(|(source, destination)| Mask {
        source_len: source * part,
        destination_len: destination * part,
        ..Mask::default()
    });
    LEFT_COSTS.iter().find_map(|&left_cost| {
        (small.left_cost, large.left_cost) = (left_cost, left_cost);
        let descents = starts.map(|start| small.descend::<K>(start, None));
        let (_, mut best) = descents.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
        if small.share > 1 {
            best = large.descend::<K>(best, Some(&mut small)).1;
        }
        (large.part::<K>(&best) * least as f64 >= 1.0).then_some(best)
    })
}

/// A table of at least one rule in `least`, and the rules that it has no room for; they are in order before and after.
pub(in crate::hybrid) fn build<K: Family>(
    rules: &[Entry],
    states: &States,
    least: usize,
) -> Option<(Table<K>, Vec<Entry>)> {
    let protocols: Vec<u16> = states.protocol_numbers().collect();
    let mask = choose::<K>(rules, states, &protocols, least)?;
    let (table, left) = fill(rules, &mask, states, &protocols);
    (rules.len() - left.len() >= rules.len() / least).then_some((table, left))
}

fn fill<K: Family>(
    rules: &[Entry],
    mask: &Mask,
    states: &States,
    protocols: &[u16],
) -> (Table<K>, Vec<Entry>) {
    let mut left = vec![false; rules.len()];
    // The hash above, the rule below: sorted, they are the cells, each with its rules in order.
    let mut copies: Vec<u64> = Vec::with_capacity(rules.len() + rules.len() / 4);
    for (index, rule) in rules.iter().enumerate() {
        if mask.copies(rule, protocols, states) > MAX_COPIES {
            left[index] = true;
            continue;
        }
        mask.hashes::<K>(rule, protocols, states, |hash| copies.push(u64::from(hash) << 32 | index as u64));
    }
    let cells = (copies.len() * 2).next_power_of_two().clamp(16, 1 << 28);
    let shift = 32 - cells.trailing_zeros();
    copies.sort_unstable_by_key(|&copy| (copy >> 32 >> shift, copy as u32));
    copies.dedup();

    // Line 0 has no rules: that is where empty cells point.
    let mut lines = vec![K::Line::new(&[])];
    // Hash, whether it is the only one, first line and number of lines of each cell.
    let mut filled: Vec<(u32, bool, u32, u32)> = Vec::new();
    let mut more = 0;
    for cell in copies.chunk_by(|a, b| a >> 32 >> shift == b >> 32 >> shift) {
        let hash = (cell[0] >> 32) as u32;
        let one_key = cell.iter().all(|&copy| (copy >> 32) as u32 == hash);
        let mut kept: Vec<Entry> = Vec::with_capacity(cell.len().min(MAX_LINES * K::Line::RULES));
        for &copy in cell {
            let index = copy as u32 as usize;
            let rule = rules[index];
            // A rule under two keys that share the cell stands here twice.
            if kept.iter().any(|earlier| earlier.covers(&rule)) {
                continue;
            }
            if kept.len() == MAX_LINES * K::Line::RULES || lines.len() + MAX_LINES > 1 << LINE_BITS {
                left[index] = true;
            } else {
                kept.push(rule);
            }
        }
        let first = lines.len();
        lines.extend(kept.chunks(K::Line::RULES).map(K::Line::new));
        let count = (lines.len() - first) as u32;
        // There are none where the table is full.
        if count > 0 {
            more = more.max(count - 1);
            filled.push((hash, one_key, first as u32, count));
        }
    }
    let line_bits = (usize::BITS - lines.len().leading_zeros()).min(LINE_BITS);
    let mut words = vec![0; cells];
    for (hash, one_key, first, count) in filled {
        words[(hash >> shift) as usize] = cell_word(hash, one_key, first, count, line_bits);
    }
    let masks = mask.words::<K>(states);
    let table = Table { masks, shift, line_bits, more, cells: words.into(), lines: lines.into() };
    let left = rules.iter().zip(left).filter_map(|(rule, left)| left.then_some(*rule)).collect();
    (table, left)
}
