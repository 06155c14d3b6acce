//! In which order tables are looked at, and by which packets: not by those that have found a rule before all that 16 bits of an
//! address leave possible.

use super::Table;
use super::block::{Best, Block, Masks, NO_MASKS, lanes_below};
use super::class_tables::ClassTables;
use super::entry::Prefix;
use super::family::Family;
use super::masked_hash;
use super::state::States;
use crate::NO_RULE;
use crate::compiled::CompiledRule;
use crate::huge::{Place, Slab, Tables};
use packetloom_simd::Simd;

/// Tables that packets are looked up in side by side.
#[derive(Debug)]
pub(super) struct Pass<K: Family> {
    /// Which packets need not be looked up in these tables nor in any later ones.
    pub(super) bound: Option<Bound>,
    pub(super) hashes: Vec<masked_hash::Table<K>>,
    pub(super) classes: Vec<ClassTables>,
}

impl<K: Family> Pass<K> {
    fn new(bound: Option<Bound>) -> Self {
        Self { bound, hashes: Vec::new(), classes: Vec::new() }
    }

    fn push(&mut self, table: Table<K>) {
        match table {
            Table::Hash(table) => self.hashes.push(table),
            Table::Classes(tables) => self.classes.push(tables),
        }
    }

    /// See [`ClassTables::number_states`].
    pub(super) fn number_states(&mut self, states: &mut States) {
        if let ([], [classes]) = (&self.hashes[..], &mut self.classes[..]) {
            classes.number_states(states);
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let bound = self.bound.as_ref().map_or(0, |bound| bound.ranks.len());
        let hashes: usize = self.hashes.iter().map(masked_hash::Table::memory).sum();
        bound + hashes + self.classes.iter().map(ClassTables::memory).sum::<usize>()
    }
}

impl<K: Family> Table<K> {
    /// Of looking a packet up.
    fn cost(&self) -> f64 {
        match self {
            Self::Hash(_) => HASH_COST,
            Self::Classes(_) => CLASSES_COST,
        }
    }
}

impl<K: Family> Tables for Pass<K> {
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place)) {
        if let Some(bound) = &mut self.bound {
            visit(&mut bound.ranks);
        }
        for table in &mut self.hashes {
            table.each(visit);
        }
        for tables in &mut self.classes {
            tables.each(visit);
        }
    }
}

/// Where the first rule stands that a packet may find, by some bits of an address.
#[derive(Debug)]
pub(super) struct Bound {
    window: Window,
    scale: Scale,
    /// Ranks by the bits of the window, and three bytes of padding.
    ranks: Slab<u8>,
}

/// Bits of an address.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Source (0) or destination (1).
    side: usize,
    /// The first bit, 0 being the highest.
    from: u8,
}

const WINDOW_BITS: u8 = 16;

/// Positions in bytes: without as many low bits as it takes. What is before in rank is before in position.
#[derive(Clone, Copy, Debug)]
struct Scale {
    shift: u32,
}

/// Of a packet that has found nothing.
const RANK_OF_NOTHING: u32 = 254;
/// Where there are no rules.
const NO_RANK: u8 = 255;

impl Scale {
    fn new(last: u32) -> Self {
        let shift = (0..32).find(|shift| last >> shift < RANK_OF_NOTHING);
        Self { shift: shift.unwrap_or(0) }
    }

    fn rank(self, position: u32) -> u8 {
        (position >> self.shift).min(RANK_OF_NOTHING) as u8
    }
}

impl Window {
    /// Those that are tried: all bits are in one word.
    fn all<K: Family>() -> impl Iterator<Item = Self> {
        (0..2).flat_map(|side| {
            let words = 0..K::WORDS as u8;
            words.flat_map(move |word| [0, 8, 16].map(|bit| Self { side, from: 32 * word + bit }))
        })
    }

    fn of(self, address: u128) -> usize {
        (address >> (128 - WINDOW_BITS - self.from)) as usize & ((1 << WINDOW_BITS) - 1)
    }
}

/// Prefixes of both addresses of a rule, its position and the number of its table.
struct Rule {
    prefixes: [Prefix; 2],
    position: u32,
    table: u8,
}

impl Bound {
    fn new<'a>(window: Window, scale: Scale, rules: impl Iterator<Item = &'a Rule>) -> Self {
        // A heap of all prefixes in the window, the shorter before the longer.
        let mut ranks = vec![NO_RANK; 2 << WINDOW_BITS];
        for rule in rules {
            let prefix = rule.prefixes[window.side];
            let len = prefix.len.saturating_sub(window.from).min(WINDOW_BITS);
            let node = 1 << len | window.of(prefix.address) >> (WINDOW_BITS - len);
            ranks[node] = ranks[node].min(scale.rank(rule.position));
        }
        for node in 2..ranks.len() {
            ranks[node] = ranks[node].min(ranks[node / 2]);
        }
        let mut ranks = ranks.split_off(1 << WINDOW_BITS);
        ranks.extend([NO_RANK; 3]);
        Self { window, scale, ranks: ranks.into() }
    }

    /// Whether a packet may find an earlier rule from this table on than the one that it has found before.
    fn may_better(&self, packet: &Packet, table: usize) -> bool {
        let found = if usize::from(packet.table) < table { packet.position } else { NO_RULE };
        self.ranks[self.window.of(packet.addresses[self.window.side])] <= self.scale.rank(found)
    }

    /// Which packets of a block may find a rule before their best.
    #[inline(always)]
    pub(super) fn undecided<K: Family, S: Simd>(&self, simd: S, block: &Block, best: &Best) -> Masks {
        let Window { side, from } = self.window;
        let column = &block.addresses[side * K::WORDS + usize::from(from / 32)];
        let right = u32::from(32 - WINDOW_BITS - from % 32);
        let ranks = &self.ranks[..];
        let mut masks = NO_MASKS;
        for (at, mask) in (0..block.len).step_by(S::LANES).zip(&mut masks) {
            let bits =
                simd.and(simd.shr(simd.load(&column[at..]), right), simd.splat((1 << WINDOW_BITS) - 1));
            let best = block.best(simd, at, best);
            let rank = simd.min(simd.shr(best, self.scale.shift), simd.splat(RANK_OF_NOTHING));
            *mask = simd.eq(simd.max(rank, simd.gather8(ranks, bits)), rank) & lanes_below(block.len - at);
        }
        masks
    }
}

/// Packets, one for each of some rules, to plan by.
#[derive(Clone, Copy)]
struct Packet {
    addresses: [u128; 2],
    /// The rule's position and table.
    position: u32,
    table: u8,
}

/// Packets that are planned by at most.
const PACKETS: usize = 1 << 12;
/// Passes at most.
pub(super) const MAX_PASSES: usize = 8;
/// Estimated cycles a packet of asking which packets go on to another pass, of a hash table and of class tables.
const ASK_COST: f64 = 12.0;
const HASH_COST: f64 = 16.0;
const CLASSES_COST: f64 = 32.0;

/// Tables in passes; `homes` says in which of them each rule is, by position.
pub(super) fn plan<K: Family>(
    tables: Vec<Table<K>>,
    rules: &[CompiledRule<K>],
    homes: &[u8],
) -> Vec<Pass<K>> {
    let rules: Vec<Rule> = rules.iter().filter_map(|rule| Rule::new(rule, homes)).collect();
    let scale = Scale::new(rules.last().map_or(0, |rule| rule.position));
    let share = rules.len().div_ceil(PACKETS).max(1);
    let packets: Vec<Packet> = rules.iter().step_by(share).map(Packet::new).collect();
    // For each table but the first: the bound that leaves the fewest packets for it and those after it, and which part they are.
    let bounds = (1..tables.len()).map(|table| {
        let bounds = Window::all::<K>().map(|window| {
            let later = rules.iter().filter(|rule| usize::from(rule.table) >= table);
            let bound = Bound::new(window, scale, later);
            let left = packets.iter().filter(|packet| bound.may_better(packet, table)).count();
            (left as f64 / packets.len() as f64, bound)
        });
        bounds.min_by(|a, b| a.0.total_cmp(&b.0))
    });
    let (parts, mut bounds): (Vec<f64>, Vec<Option<Bound>>) =
        [(1.0, None)].into_iter().chain(bounds.flatten().map(|(part, bound)| (part, Some(bound)))).unzip();
    let costs: Vec<f64> = tables.iter().map(Table::cost).collect();
    let ends = cheapest(&parts, &costs);
    let mut passes: Vec<Pass<K>> = Vec::new();
    for (number, table) in tables.into_iter().enumerate() {
        if number == 0 || ends.contains(&number) {
            passes.push(Pass::new(bounds[number].take()));
        }
        if let Some(pass) = passes.last_mut() {
            pass.push(table);
        }
    }
    passes
}

/// Where to begin further passes so that it costs least: what part of the packets each table and those after it may have something
/// for, and what it costs to look them up in it.
fn cheapest(parts: &[f64], costs: &[f64]) -> Vec<usize> {
    // For so many passes: from each table on, the least cost and where the next pass begins.
    let mut best: Vec<(f64, usize)> = vec![(f64::INFINITY, costs.len()); costs.len()];
    let mut all = vec![best.clone()];
    for _ in 0..MAX_PASSES {
        let before = best.clone();
        for (from, best) in best.iter_mut().enumerate() {
            let mut cost = 0.0;
            for to in from + 1..=costs.len() {
                cost += parts[from] * costs[to - 1];
                let rest = if to == costs.len() { 0.0 } else { parts[from] * ASK_COST + before[to].0 };
                if cost + rest < best.0 {
                    *best = (cost + rest, to);
                }
            }
        }
        all.push(best.clone());
    }
    let mut begins = Vec::new();
    let mut at = 0;
    for best in all.iter().rev() {
        match best.get(at) {
            Some(&(_, next)) if next < costs.len() => {
                begins.push(next);
                at = next;
            }
            _ => break,
        }
    }
    begins
}

impl Rule {
    /// Nothing for rules that are in no table.
    fn new<K: Family>(rule: &CompiledRule<K>, homes: &[u8]) -> Option<Self> {
        let table = homes[rule.position as usize];
        let [source, destination] = rule.value.addresses();
        let prefixes = [
            Prefix { address: source, len: rule.source_len },
            Prefix { address: destination, len: rule.destination_len },
        ];
        (table != super::NO_TABLE).then_some(Self { prefixes, position: rule.position, table })
    }
}

impl Packet {
    /// One that matches a rule, with whatever bits where it asks nothing.
    fn new(rule: &Rule) -> Self {
        let any = u128::from(rule.position).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let addresses = [(0, any), (1, any.rotate_left(61))].map(|(side, any)| {
            let prefix: Prefix = rule.prefixes[side];
            prefix.address | any & !Prefix::mask(prefix.len)
        });
        Self { addresses, position: rule.position, table: rule.table }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_begin_where_they_pay() {
        // Two tables for everybody, two for few packets, one for nobody.
        assert_eq!(cheapest(&[1.0, 0.9, 0.3, 0.3, 0.0], &[16.0, 16.0, 16.0, 32.0, 32.0]), [2, 4]);
        assert!(cheapest(&[1.0, 0.9], &[16.0, 16.0]).is_empty());
        assert!(cheapest(&[1.0], &[32.0]).is_empty());
        assert!(cheapest(&[], &[]).is_empty());
        // No more than there is room for.
        let parts: Vec<f64> = (0..20).map(|table| 0.3f64.powi(table)).collect();
        assert_eq!(cheapest(&parts, &[1e6; 20]).len(), MAX_PASSES - 1);
    }

    #[test]
    fn a_bound_is_the_first_rule_of_a_window() {
        let prefix = |address: u128, len: u8| Prefix { address: address << 96, len };
        let rule = |source, position| Rule { prefixes: [source, prefix(0, 0)], position, table: 1 };
        let rules = [
            rule(prefix(0x0a00_0000, 8), 900),
            rule(prefix(0x0a01_0200, 24), 500),
            rule(prefix(0x0a01_0280, 25), 100),
            rule(prefix(0xc000_0000, 2), 700),
        ];
        let scale = Scale::new(1000);
        for from in [0, 8, 16] {
            let window = Window { side: 0, from };
            let bound = Bound::new(window, scale, rules.iter());
            for address in [0x0a01_0203u128, 0x0a01_0281, 0x0a02_0281, 0xcfff_ffff, 0x0b00_0000, 0x0b01_0203]
            {
                // Rules that cannot be told from one that matches by the bits of the window alone count, too.
                let fits = |rule: &&Rule| {
                    let len = u32::from(rule.prefixes[0].len).saturating_sub(from.into()).min(16);
                    let bits = |address: u128| (window.of(address << 96) as u32) >> (16 - len);
                    bits(rule.prefixes[0].address >> 96) == bits(address)
                };
                let first = rules.iter().filter(fits).map(|rule| scale.rank(rule.position)).min();
                assert_eq!(
                    bound.ranks[window.of(address << 96)],
                    first.unwrap_or(NO_RANK),
                    "{address:x} {from}"
                );
            }
        }
    }
}
