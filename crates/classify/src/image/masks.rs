//! A few masks for many rules, chosen by what tables under them cost a device.
//!
//! A packet pays for each table, and for each rule that it finds in the buckets it looks at. Which rules those are can be
//! counted apart for each rule: under a mask, a rule is read by the packets that look like it there. So masks are chosen as sites are in a
//! facility location problem: each costs something to open, and each rule goes to the open one where fewest packets read it,
//! or to the tail, where all of them do. Greedy: the mask that saves most comes next, until none saves what it costs. Savings
//! only shrink as masks are opened, so most need not be counted again (Minoux: Accelerated greedy algorithms, 1978).

use std::collections::{BTreeMap, BinaryHeap, HashMap};

use foldhash::fast::FixedState;

use super::Plan;
use super::layout::words;
use crate::compiled::{CompiledRule, MatchKey};
use crate::rule::PortRange;
use crate::tuples::Growing;

/// What a packet pays: for a table's hash and filter, for a rule that is read and compared, and for one of the tail. Fitted to
/// rates on a GPU.
const TABLE_COST: f64 = 1.0;
const READ_COST: f64 = 2.0;
const TAIL_COST: f64 = 0.3;
/// So many packets, each of one rule of the list, are taken to share a rule of the tail: where all have found earlier ones, it costs the
/// least share. More of them than a warp has, as packets are not that even.
const SHARE_TAIL: i32 = 400;
const LEAST_OF_TAIL: f64 = 0.5;
/// Bits of a device's filter: the more rules there are for them, the more often it lets a packet read in vain.
const FILTER_BITS: f64 = 370_000.0;
/// Tables at most.
const MAX_TABLES: usize = 64;
/// Masks are chosen for so many of the rules, and for a packet of each. To which of them a rule goes is counted for packets of all:
/// where the sample is one in thirty, most buckets look empty in it.
const SAMPLE: usize = 1 << 15;
/// So few packets are none in a list of many rules: they go to the first masks then, and the other tables stay small, so that more
/// of them have ranks.
const FEW_PACKETS: u32 = 2;
const MANY_RULES: usize = 1 << 12;
/// A prefix length is a candidate where one in so many rules has it, and where it is round.
const COMMON: usize = 64;

/// A mask as lengths, and what else is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Shape {
    source: u8,
    destination: u8,
    source_port: bool,
    destination_port: bool,
    protocol: bool,
}

impl Shape {
    /// The most specific one that a rule fits.
    fn of<K: MatchKey>(rule: &CompiledRule<K>) -> Self {
        let single = |range: PortRange| range.low == range.high;
        Self {
            source: rule.source_len,
            destination: rule.destination_len,
            source_port: single(rule.source_ports),
            destination_port: single(rule.destination_ports),
            protocol: rule.mask.fields().protocol != 0,
        }
    }

    fn fits(&self, rule: &Self) -> bool {
        self.source <= rule.source
            && self.destination <= rule.destination
            && self.source_port <= rule.source_port
            && self.destination_port <= rule.destination_port
            && self.protocol <= rule.protocol
    }

    fn mask<K: MatchKey>(&self) -> K {
        let port = |exact| if exact { u16::MAX } else { 0 };
        let (source, destination) = (port(self.source_port), port(self.destination_port));
        K::prefix_mask(self.source, self.destination).with_ports(
            source,
            destination,
            if self.protocol { u8::MAX } else { 0 },
        )
    }
}

/// A key's words under a mask, as one number.
fn under(key: &[u32], mask: &[u32]) -> u64 {
    key.iter().zip(mask).fold(0, |hash: u64, (key, mask)| {
        let mixed = (hash ^ u64::from(key & mask)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    })
}

/// Words of keys, one after the other.
#[derive(Debug)]
struct Keys {
    words: Vec<u32>,
    width: usize,
}

impl Keys {
    fn new(keys: impl IntoIterator<Item = Vec<u32>>) -> Self {
        let mut all = Self { words: Vec::new(), width: 1 };
        for key in keys {
            all.width = key.len();
            all.words.extend(key);
        }
        all
    }

    fn len(&self) -> usize {
        self.words.len() / self.width
    }

    fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.words.chunks_exact(self.width)
    }
}

/// How often each key occurs under a mask.
#[derive(Debug)]
struct Counts {
    mask: Vec<u32>,
    counts: HashMap<u64, u32, FixedState>,
    packets: f64,
}

impl Counts {
    fn new(mask: Vec<u32>, packets: &Keys) -> Self {
        let mut counts = HashMap::with_capacity_and_hasher(packets.len(), FixedState::default());
        for packet in packets.iter() {
            *counts.entry(under(packet, &mask)).or_default() += 1;
        }
        Self { mask, counts, packets: packets.len() as f64 }
    }

    /// What a rule costs a packet that may read it: the share of packets that do.
    fn cost(&self, rule: &[u32], at_least: u32) -> f64 {
        let packets = self.counts.get(&under(rule, &self.mask)).copied().unwrap_or(0);
        READ_COST * f64::from(packets.max(at_least)) / self.packets
    }
}

/// A rule as the words of a key under its own exact shape.
#[derive(Debug)]
struct Sample {
    shape: Shape,
    words: Vec<u32>,
    /// What it costs where it is now.
    cost: f64,
}

/// Tables for a list of rules, in order.
pub(super) fn plan<K: MatchKey>(rules: &[CompiledRule<K>]) -> Plan<K> {
    let step = rules.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<_> = rules.iter().step_by(step).collect();
    let packets = packets(sample.iter().copied());
    let in_vain = 1.0 - (-(rules.len() as f64) / FILTER_BITS).exp();
    let table_cost = TABLE_COST + READ_COST * in_vain;
    let mut samples: Vec<_> = sample
        .iter()
        .enumerate()
        .map(|(number, rule)| {
            let cost = tail_cost(number, sample.len()) * step as f64;
            Sample { shape: Shape::of(rule), words: rule_words(rule), cost }
        })
        .collect();
    let open = choose::<K>(&mut samples, &packets, step as f64, table_cost);
    assign(rules, &open)
}

/// What a rule of the tail costs a packet, by its number in a list of so many.
fn tail_cost(number: usize, rules: usize) -> f64 {
    let earlier = number as f64 / rules as f64;
    TAIL_COST * (1.0 - earlier.powi(SHARE_TAIL)).max(LEAST_OF_TAIL)
}

/// The words of a rule: those of a key that it matches, where it leaves nothing open.
fn rule_words<K: MatchKey>(rule: &CompiledRule<K>) -> Vec<u32> {
    let protocol = rule.value.fields().protocol;
    words(&rule.value.with_ports(rule.source_ports.low, rule.destination_ports.low, protocol))
}

/// The masks to open.
fn choose<K: MatchKey>(samples: &mut [Sample], packets: &Keys, weight: f64, table_cost: f64) -> Vec<Shape> {
    let mut kinds: BTreeMap<Shape, usize> = BTreeMap::new();
    samples.iter().for_each(|sample| *kinds.entry(sample.shape).or_default() += 1);
    // What a mask can save at most: all that the rules cost which fit it.
    let bound = |shape: &Shape| {
        let fitting = kinds.iter().filter(|(kind, _)| shape.fits(kind)).map(|(_, &count)| count);
        fitting.sum::<usize>() as f64 * TAIL_COST * weight
    };
    let mut heap: BinaryHeap<Saving> = candidates(samples)
        .into_iter()
        .map(|shape| Saving { saving: bound(&shape), shape, counted_at: usize::MAX })
        .filter(|saving| saving.saving > table_cost)
        .collect();
    // What a rule costs that only its own packet reads; no mask saves any of that.
    let least = READ_COST / packets.len() as f64 * weight;
    let mut open = Vec::new();
    while let Some(best) = heap.pop() {
        if best.saving <= table_cost || open.len() == MAX_TABLES {
            break;
        }
        let counts = Counts::new(words(&best.shape.mask::<K>()), packets);
        let fitting =
            samples.iter_mut().filter(|sample| sample.cost > least && best.shape.fits(&sample.shape));
        if best.counted_at == open.len() {
            // Nothing else can save more.
            for sample in fitting {
                sample.cost = sample.cost.min(counts.cost(&sample.words, 0) * weight);
            }
            open.push(best.shape);
        } else {
            let saved = |sample: &Sample| (sample.cost - counts.cost(&sample.words, 0) * weight).max(0.0);
            let saving = fitting.map(|sample| saved(sample)).sum();
            heap.push(Saving { saving, counted_at: open.len(), ..best });
        }
    }
    open
}

/// What opening a mask saves, when so many others are open; the greatest first.
#[derive(Debug)]
struct Saving {
    saving: f64,
    shape: Shape,
    counted_at: usize,
}

impl Ord for Saving {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.saving.total_cmp(&other.saving).then_with(|| self.shape.cmp(&other.shape))
    }
}

impl PartialOrd for Saving {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Saving {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Saving {}

/// Masks of common lengths and of round ones, with and without ports and protocol.
fn candidates(samples: &[Sample]) -> Vec<Shape> {
    let lengths = |length: fn(&Shape) -> u8| {
        let mut counts = [0usize; 129];
        samples.iter().for_each(|sample| counts[usize::from(length(&sample.shape))] += 1);
        let longest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let step = if longest > 32 { 16 } else { 4 };
        let wanted = |len: &usize| len.is_multiple_of(step) || counts[*len] * COMMON >= samples.len();
        (0..=longest).filter(wanted).map(|len| len as u8).collect::<Vec<_>>()
    };
    let (sources, destinations) = (lengths(|shape| shape.source), lengths(|shape| shape.destination));
    let mut candidates = Vec::new();
    for &source in &sources {
        for &destination in &destinations {
            for exact in 0..8u8 {
                candidates.push(Shape {
                    source,
                    destination,
                    source_port: exact & 1 != 0,
                    destination_port: exact & 2 != 0,
                    protocol: exact & 4 != 0,
                });
            }
        }
    }
    candidates
}

/// Each rule into the open table where fewest packets read it, or into the tail.
fn assign<K: MatchKey>(rules: &[CompiledRule<K>], open: &[Shape]) -> Plan<K> {
    let (keys, packets) = (Keys::new(rules.iter().map(rule_words)), packets(rules));
    let few = if rules.len() > MANY_RULES { FEW_PACKETS } else { 0 };
    let mut places: Vec<_> = (0..rules.len()).map(|number| (tail_cost(number, rules.len()), None)).collect();
    for (table, shape) in open.iter().enumerate() {
        let counts = Counts::new(words(&shape.mask::<K>()), &packets);
        for ((rule, key), place) in rules.iter().zip(keys.iter()).zip(&mut places) {
            if shape.fits(&Shape::of(rule)) {
                let cost = counts.cost(key, few);
                if cost < place.0 {
                    *place = (cost, Some(table));
                }
            }
        }
    }
    let mut tables: Vec<_> = open.iter().map(|shape| Growing::new(shape.mask::<K>())).collect();
    let mut tail = Vec::new();
    for (rule, (_, table)) in rules.iter().zip(places) {
        match table {
            Some(table) => tables[table].insert(*rule),
            None => tail.push(*rule),
        }
    }
    tables.retain(|table| table.len() > 0);
    Plan { tables, tail }
}

/// The words of a packet for each rule: what the rule leaves open is drawn at random.
fn packets<'a, K: MatchKey>(rules: impl IntoIterator<Item = &'a CompiledRule<K>>) -> Keys {
    let mut state = 0x853c_49e6_748f_ea9bu64;
    // xorshift64*: Vigna, An experimental exploration of Marsaglia's xorshift generators, scrambled, 2016.
    let mut random = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    };
    Keys::new(rules.into_iter().map(|rule| {
        let mut port =
            |range: PortRange| range.low + (random() % (u32::from(range.high - range.low) + 1)) as u16;
        let protocol = if rule.mask.fields().protocol == 0 { 6 } else { rule.value.fields().protocol };
        let (source, destination) = (port(rule.source_ports), port(rule.destination_ports));
        let mut packet = words(&rule.value.with_ports(source, destination, protocol));
        let fixed = rule.mask.words(|word| word);
        for (word, mask) in packet.iter_mut().zip(fixed.as_ref()) {
            *word |= random() & !mask;
        }
        packet
    }))
}
