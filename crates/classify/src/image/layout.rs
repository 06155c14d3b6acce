//! Rules in slots, as `rules.kernel.c` reads them.

use std::collections::HashMap;

use super::{Error, Image, KERNEL, MAX_CLASSES, MAX_LOCAL_CLASSES, MAX_MASKS_IN_TEXT, Plan, Target};
use crate::compiled::{CompiledRule, MatchKey};
use crate::tuples::bucket_key;

/// Slots for each rule in a table.
const SLOTS_PER_RULE: usize = 4;
/// The last word of a slot that holds no rule: the position that stands for none.
const EMPTY: u32 = 0xff_ffff;
/// The greatest distance between two rules of a chain.
const MAX_DISTANCE: usize = 255;
/// Bits of the filter for each hash, if there is room.
const FILTER_BITS_PER_HASH: usize = 64;
/// The least and the greatest filter, as powers of two.
const MIN_FILTER_BITS: u32 = 7;
const MAX_FILTER_BITS: u32 = 24;
/// Packets that each lane has in a round.
const PACKETS_PER_LANE: u32 = 2;
/// Words of the queue for each lane: `QUEUE` of the kernel.
const QUEUE_PER_LANE: u32 = 5;

/// What addresses' words, ports and the rest are multiplied by, for four words an address and for one.
const FACTORS: [u64; 10] = [
    0x85eb_ca6b,
    0xc2b2_ae35,
    0x27d4_eb2f,
    0x1656_67b1,
    0xd3a2_646d,
    0xfd70_46c5,
    0xb55a_4f09,
    0x8f6c_3a51,
    0x9e37_79b9,
    0xe654_6b65,
];

/// The words of a key as the kernel has them: addresses, ports, and the rest.
pub(super) fn words<K: MatchKey>(key: &K) -> Vec<u32> {
    let fields = key.fields();
    let mut words = key.words(|word| word).as_ref().to_vec();
    words.push(u32::from(fields.source_port) | u32::from(fields.destination_port) << 16);
    words.push(u32::from(fields.protocol));
    words
}

/// The same as the kernel's `HASH_OF` and `LOOK`.
fn hash(words: &[u32], table: usize) -> u32 {
    let apart = if words.len() == FACTORS.len() { 1 } else { 4 };
    let addresses = words.len() - 2;
    let factors = FACTORS[..8].iter().step_by(apart).take(addresses).chain(&FACTORS[8..]);
    let sum = words
        .iter()
        .zip(factors)
        .fold(0u64, |sum, (&word, factor)| sum.wrapping_add(u64::from(word) * factor));
    let folded = (sum >> 32) as u32 ^ sum as u32;
    folded.wrapping_mul(0x9e37_79b1).wrapping_add((table as u32).wrapping_mul(0x7feb_352d))
}

/// Kinds of conditions, each once.
#[derive(Default)]
struct Classes {
    numbers: HashMap<[u32; 4], u32>,
    words: Vec<u32>,
    ask_fragments: bool,
}

impl Classes {
    fn number<K: MatchKey>(&mut self, rule: &CompiledRule<K>) -> u32 {
        let range =
            |range: crate::rule::PortRange| u32::from(range.low) | u32::from(range.high - range.low) << 16;
        let bytes = |a: u8, b: u8, c: u8, d: u8| u32::from_le_bytes([a, b, c, d]);
        let (value, mask) = (rule.value.fields().protocol, rule.mask.fields().protocol);
        let class = [
            range(rule.source_ports),
            range(rule.destination_ports),
            bytes(value, rule.flags, rule.all_of.0, rule.one_of.0),
            bytes(mask, rule.flags_mask, rule.all_of.0, 0),
        ];
        let any = packetloom_packet::KeyBits::WHOLE
            .with(packetloom_packet::KeyBits::FIRST_FRAGMENT)
            .with(packetloom_packet::KeyBits::LATER_FRAGMENT);
        self.ask_fragments |= rule.one_of != any;
        let next = self.numbers.len() as u32;
        *self.numbers.entry(class).or_insert_with(|| {
            self.words.extend(class);
            next
        })
    }
}

/// The words of a rule's slot; those of the next one are a distance away.
fn entry<K: MatchKey>(rule: &CompiledRule<K>, class: u32, distance: usize) -> Vec<u32> {
    let addresses = rule.value.words(|word| word);
    let bits = addresses.as_ref().len() as u32 * 16;
    let out = |len: u8| bits - u32::from(len);
    let mut words = addresses.as_ref().to_vec();
    if words.len() == 8 {
        words.extend([0, 0]);
    }
    words.push(out(rule.source_len) | out(rule.destination_len) << 8 | class << 16);
    words.push(rule.position | (distance as u32) << 24);
    words
}

/// Where the rules of each slot are: chains, in the order of their positions, from their slots on.
struct Chains {
    /// For each place the rule that it holds, and the distance to the next of its chain.
    places: Vec<Option<(u32, usize)>>,
}

impl Chains {
    /// Places rules, given with their slots, or says that a chain would have to go too far.
    fn new(mut rules: Vec<(u32, u32)>, slots: usize) -> Option<Self> {
        let mut places = vec![None; slots];
        // Rules are numbered in the order of their positions.
        rules.sort_unstable();
        let chains = || rules.chunk_by(|a, b| a.0 == b.0);
        for chain in chains() {
            places[chain[0].0 as usize] = Some((chain[0].1, 0));
        }
        for chain in chains() {
            let mut at = chain[0].0 as usize;
            for &(_, rule) in &chain[1..] {
                let next = (1..=MAX_DISTANCE)
                    .find(|distance| places.get(at + distance).is_none_or(Option::is_none))?;
                places.resize(places.len().max(at + next + 1), None);
                if let Some(place) = &mut places[at] {
                    place.1 = next;
                }
                at += next;
                places[at] = Some((rule, 0));
            }
        }
        Some(Self { places })
    }
}

/// Lays out a plan's rules for a device.
pub(super) fn image<K: MatchKey>(plan: Plan<K>, target: &Target) -> Result<Image, Error> {
    let words_of_addresses = K::default().words(|word| word).as_ref().len();
    let mut masks = Vec::new();
    let mut rules = Vec::new();
    let mut hashes = Vec::new();
    for (number, table) in plan.tables.into_iter().enumerate() {
        let tuple = *table.tuple();
        let mut mask = words(&tuple);
        masks.append(&mut mask);
        for rule in table.into_rules() {
            hashes.push(hash(&words(&bucket_key(&rule, &tuple)), number));
            rules.push(rule);
        }
    }
    let mut order: Vec<usize> = (0..rules.len()).collect();
    order.sort_unstable_by_key(|&at| rules[at].position);
    let rules: Vec<_> = order.iter().map(|&at| rules[at]).collect();
    let hashes: Vec<_> = order.iter().map(|&at| hashes[at]).collect();

    let mut slots = (rules.len() * SLOTS_PER_RULE).max(1);
    let chains = loop {
        let slot = |hash: u32| ((u64::from(hash) * slots as u64) >> 32) as u32;
        let with_slots = hashes.iter().zip(0..).map(|(&hash, rule)| (slot(hash), rule)).collect();
        match Chains::new(with_slots, slots) {
            Some(chains) => break chains,
            None => slots += slots / 2,
        }
    };

    let mut classes = Classes::default();
    let empty = |words: &mut Vec<u32>| {
        words.extend(std::iter::repeat_n(0, words_of_addresses / 8 * 2 + words_of_addresses + 1));
        words.push(EMPTY);
    };
    let mut laid_out = Vec::new();
    for place in &chains.places {
        match place {
            Some((rule, distance)) => {
                let rule = &rules[*rule as usize];
                laid_out.extend(entry(rule, classes.number(rule), *distance));
            }
            None => empty(&mut laid_out),
        }
    }
    for rule in &plan.tail {
        laid_out.extend(entry(rule, classes.number(rule), 0));
    }
    if laid_out.is_empty() {
        empty(&mut laid_out);
    }
    if classes.numbers.len() > MAX_CLASSES {
        return Err(Error::Classes(classes.numbers.len()));
    }
    if classes.words.is_empty() {
        classes.words.extend([0; 4]);
    }

    let (tables, tail) = (masks.len() / (words_of_addresses + 2), plan.tail.len());
    let specialise = target.specialise && tables <= MAX_MASKS_IN_TEXT;
    let classes_count = classes.words.len() / 4;
    let wanted = specialise.then_some((hashes.len(), classes_count));
    let local = Local::new(words_of_addresses as u32, wanted, target)?;
    let mut filter = vec![0u32; 1 << (local.filter_bits - 5)];
    for hash in hashes {
        let bit = hash >> (32 - local.filter_bits);
        filter[bit as usize / 32] |= 1 << (bit % 32);
    }

    let define = |name: &str, value: usize| (name.to_owned(), format!("{value}u"));
    let mut defines = vec![
        define("FAMILY", if words_of_addresses == 2 { 4 } else { 6 }),
        define("FILTER_BITS", local.filter_bits as usize),
        define("LOCAL_CLASSES", local.classes),
        define("ASKS_FRAGMENTS", usize::from(!specialise || classes.ask_fragments)),
        define("ROUND_BITS", local.round_bits as usize),
    ];
    let header = [tables, slots, tail, chains.places.len()];
    if specialise {
        let calls = masks.chunks(words_of_addresses + 2).enumerate().map(|(number, mask)| {
            let mask: Vec<_> = mask.iter().map(|word| format!("{word:#x}u")).collect();
            format!("TABLE({number}u, {})", mask.join(", "))
        });
        defines.push(("TABLE_LIST(TABLE)".into(), calls.collect::<Vec<_>>().join(" ")));
        defines.extend(
            ["SLOTS", "TAIL", "TAIL_START"]
                .into_iter()
                .zip(&header[1..])
                .map(|(name, &value)| define(name, value)),
        );
    }
    masks.splice(..0, header.map(|word| word as u32));
    Ok(Image {
        source: KERNEL,
        defines,
        local: local.bytes,
        rules: laid_out,
        classes: classes.words,
        filter,
        masks,
        round: 1 << local.round_bits,
        tables,
        tail,
    })
}

/// What a group's local memory holds.
struct Local {
    filter_bits: u32,
    round_bits: u32,
    /// Classes that are copied there: all or none.
    classes: usize,
    bytes: u32,
}

impl Local {
    /// For so many hashes and classes, or for any, with addresses of so many words together.
    fn new(addresses: u32, wanted: Option<(usize, usize)>, target: &Target) -> Result<Self, Error> {
        let (hashes, classes) = wanted.unwrap_or((usize::MAX, 0));
        let round = (target.lanes * PACKETS_PER_LANE).next_power_of_two();
        let lanes = 4 * (QUEUE_PER_LANE * target.lanes + round * (addresses + 3));
        // One lane means a CPU, whose caches do as well, and PoCL 3.1 (LLVM 14) optimises reads of local classes into wrong ones.
        let are_local = target.lanes > 1 && classes <= MAX_LOCAL_CLASSES;
        let classes = if are_local { classes } else { 0 };
        let rest = (target.group / target.lanes * lanes + classes as u32 * 16).next_multiple_of(16);
        let bits =
            hashes.saturating_mul(FILTER_BITS_PER_HASH).clamp(1 << MIN_FILTER_BITS, 1 << MAX_FILTER_BITS);
        let wanted = bits.next_power_of_two().ilog2();
        let bytes = |filter_bits: u32| rest + (1 << (filter_bits - 3));
        let filter_bits = (MIN_FILTER_BITS..=wanted).rev().find(|&bits| bytes(bits) <= target.local_memory);
        match filter_bits {
            Some(filter_bits) => {
                Ok(Self { filter_bits, round_bits: round.ilog2(), classes, bytes: bytes(filter_bits) })
            }
            None => Err(Error::LocalMemory { group: target.group, local_memory: target.local_memory }),
        }
    }
}
