//! Rules in slots, as `rules.kernel.c` reads them.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use packetloom_memory::LaidOut;
use packetloom_packet::KeyBits;

use super::{
    Error, Image, MAX_CLASSES, MAX_LOCAL_CLASSES, MAX_MASKS_IN_TEXT, MAX_TAIL_IN_TEXT, Plan, Target,
};
use crate::compiled::{CompiledRule, MatchKey};
use crate::rule::PortRange;
use crate::tuples::bucket_key;

/// Slots for each rule in a table, where there are not so many rules that memory would matter more.
const SLOTS_PER_RULE: usize = 4;
const MANY_RULES: usize = 1 << 18;
/// Where chains find no room with so many, what is left of them goes to the tail.
const MAX_SLOTS_PER_RULE: usize = 8;
/// Rules of a chain that stay close together.
const SHORT_CHAIN: usize = 8;
/// The last word of a slot that holds no rule: the position that stands for none.
const EMPTY: u32 = 0xff_ffff;
/// The greatest distance between two rules of a chain.
const MAX_DISTANCE: usize = 255;
/// Bytes of the filter for each rule, if there is room; and words at least.
const FILTER_BYTES_PER_RULE: usize = 64;
const MIN_FILTER_WORDS: usize = 64;
/// Bytes that it needs more urgently than lanes need a second packet.
const ENOUGH_FILTER: u32 = 8 << 10;
/// The part of local memory that classes may take.
const CLASSES_PART: u32 = 3;
/// The greatest rank; one more means nothing.
const MAX_RANK: u32 = 254;
/// What a table has in place of a rank if its rules have ranks.
const HAS_RANKS: u32 = 0xff;
/// In how many ways the filter is divided into ranks and bits.
const PARTS: usize = 8;
/// How many rules that come after the packet's own a table without ranks makes it read.
const WITHOUT_RANK: f64 = 0.3;

/// Words of the queue for each lane.
const QUEUE_PER_LANE: u32 = 6;
/// Rules of the tail in the text between two looks at whether they still matter.
const RULES_PER_LOOK: usize = 4;
/// Slots that the kernel can name.
const MAX_SLOT_BITS: u32 = 24;
packetloom_memory::layout! {
    /// What precedes the masks.
    #[derive(Clone, Copy, Debug, Pod, Zeroable)]
    struct Head {
        tables: u32,
        slots: u32,
        tail: u32,
        /// The slot behind the last one of tables.
        tail_start: u32,
        cells: u32,
        bits: u32,
        rank_shift: u32,
        reserved: u32,
    }
}

/// Words of [`Head`].
const HEAD_WORDS: usize = size_of::<Head>() / size_of::<u32>();

/// Numbers that the kernel has in all images.
pub(super) fn constants() -> impl Iterator<Item = (String, u32)> {
    let named = [
        ("HEAD_WORDS", HEAD_WORDS as u32),
        ("NONE", EMPTY),
        ("HAS_RANKS", HAS_RANKS),
        ("QUEUE_PER_LANE", QUEUE_PER_LANE),
        ("FACTOR_FOLDED", FACTOR_FOLDED),
        ("FACTOR_TABLE", FACTOR_TABLE),
    ];
    let head = Head::LAYOUT.fields.iter();
    let head = head.map(|field| (format!("HEAD_{}", field.name.to_uppercase()), (field.at / 4) as u32));
    let factors = FACTORS.iter().zip(0..).map(|(&factor, i)| (format!("FACTOR_{i}"), factor as u32));
    named.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(head).chain(factors)
}

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

/// The same of a folded hash, and of a table's number.
const FACTOR_FOLDED: u32 = 0x9e37_79b1;
const FACTOR_TABLE: u32 = 0x7feb_352d;

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
    folded.wrapping_mul(FACTOR_FOLDED).wrapping_add((table as u32).wrapping_mul(FACTOR_TABLE))
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
        let range = |range: PortRange| u32::from(range.low) | u32::from(range.high - range.low) << 16;
        let bytes = |a: u8, b: u8, c: u8, d: u8| u32::from_le_bytes([a, b, c, d]);
        let (value, mask) = (rule.value.fields().protocol, rule.mask.fields().protocol);
        let class = [
            range(rule.source_ports),
            range(rule.destination_ports),
            bytes(value, rule.flags, rule.all_of.0, rule.one_of.0),
            bytes(mask, rule.flags_mask, rule.all_of.0, 0),
        ];
        let any = KeyBits::WHOLE.with(KeyBits::FIRST_FRAGMENT).with(KeyBits::LATER_FRAGMENT);
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
    /// Rules that would be too far from those before them.
    left: Vec<u32>,
}

impl Chains {
    /// Places rules, given with their slots.
    fn new(mut rules: Vec<(u32, u32)>, slots: usize) -> Self {
        // Rules are numbered in the order of their positions.
        rules.sort_unstable();
        let mut chains: Vec<_> = rules.chunk_by(|a, b| a.0 == b.0).collect();
        let mut places = vec![None; slots];
        for chain in &chains {
            places[chain[0].0 as usize] = Some((chain[0].1, 0));
        }
        // Short chains stay close together. Long ones leave room between their rules, so that together they fill no more than half
        // of any part, and are not in the way of each other.
        chains.sort_by_key(|chain| chain.len() > SHORT_CHAIN);
        let mut left = Vec::new();
        for chain in chains {
            let stride = match chain.len() {
                ..=SHORT_CHAIN => 1,
                len => (slots / (2 * len)).clamp(1, MAX_DISTANCE),
            };
            let mut at = chain[0].0 as usize;
            for (number, &(_, rule)) in chain.iter().enumerate().skip(1) {
                let is_free = |distance: &usize| places.get(at + distance).is_none_or(Option::is_none);
                let Some(next) = (stride..=MAX_DISTANCE).chain(1..stride).find(is_free) else {
                    left.extend(chain[number..].iter().map(|(_, rule)| rule));
                    break;
                };
                places.resize(places.len().max(at + next + 1), None);
                if let Some(place) = &mut places[at] {
                    place.1 = next;
                }
                at += next;
                places[at] = Some((rule, 0));
            }
        }
        Self { places, left }
    }
}

/// A rule with where it is found.
struct Hashed<K> {
    rule: CompiledRule<K>,
    table: usize,
    hash: u32,
}

/// Lays out a plan's rules for a device.
pub(super) fn image<K: MatchKey>(plan: Plan<K>, target: &Target) -> Result<Image, Error> {
    let addresses = K::default().words(|word| word).as_ref().len();
    let tuples: Vec<K> = plan.tables.iter().map(|table| *table.tuple()).collect();
    let mut rules = Vec::new();
    for (table, growing) in plan.tables.into_iter().enumerate() {
        rules.extend(growing.into_rules().map(|rule| {
            let hash = hash(&words(&bucket_key(&rule, &tuples[table])), table);
            Hashed { rule, table, hash }
        }));
    }
    rules.sort_unstable_by_key(|hashed| hashed.rule.position);

    let per_rule = if rules.len() > MANY_RULES { 2 } else { SLOTS_PER_RULE };
    let mut slots = (rules.len() * per_rule).max(1);
    let mut chains = loop {
        let with_slots = rules.iter().zip(0..).map(|(hashed, rule)| (place(hashed.hash, slots), rule));
        let chains = Chains::new(with_slots.collect(), slots);
        if chains.left.is_empty() || slots > rules.len() * MAX_SLOTS_PER_RULE {
            break chains;
        }
        slots += slots / 2;
    };
    let mut tail = plan.tail;
    tail.extend(chains.left.drain(..).map(|rule| rules[rule as usize].rule));
    tail.sort_unstable_by_key(|rule| rule.position);
    if chains.places.len() >= 1 << MAX_SLOT_BITS {
        return Err(Error::Rules(rules.len()));
    }

    let mut classes = Classes::default();
    let parts = if addresses == 2 { 4 } else { 12 };
    let empty = [vec![0; parts - 1], vec![EMPTY]].concat();
    let mut laid_out = Vec::new();
    for place in &chains.places {
        match place {
            Some((rule, distance)) => {
                let rule = &rules[*rule as usize].rule;
                laid_out.extend(entry(rule, classes.number(rule), *distance));
            }
            None => laid_out.extend(&empty),
        }
    }
    for rule in &tail {
        laid_out.extend(entry(rule, classes.number(rule), 0));
    }
    if laid_out.is_empty() {
        laid_out.extend(&empty);
    }
    let kinds = classes.numbers.len();
    if kinds > MAX_CLASSES {
        return Err(Error::Classes(kinds));
    }
    classes.words.resize(classes.words.len().max(4), 0);

    let tables = tuples.len();
    let specialise = target.specialise && tables <= MAX_MASKS_IN_TEXT;
    let wanted = specialise.then_some((rules.len(), kinds));
    let local = Local::new(addresses as u32, wanted, target)?;
    let filter = Filter::new(&rules, tables, local.filter_words);

    // The generic kernel is one for all, so it must take any number of them.
    let used = usize::BITS - chains.places.len().leading_zeros();
    let slot_bits = if specialise { used } else { MAX_SLOT_BITS };
    let head = Head {
        tables: tables as u32,
        slots: slots as u32,
        tail: tail.len() as u32,
        tail_start: chains.places.len() as u32,
        cells: filter.cells as u32,
        bits: filter.bits as u32,
        rank_shift: filter.rank_shift,
        reserved: 0,
    };
    let mut masks: Vec<u32> = bytemuck::cast::<_, [u32; HEAD_WORDS]>(head).into();
    for (tuple, rank) in tuples.iter().zip(&filter.ranks) {
        masks.push(*rank);
        masks.extend(words(tuple));
    }
    let define = |name: &str, value: usize| (name.to_owned(), format!("{value}u"));
    let mut defines = vec![
        define("FAMILY", if addresses == 2 { 4 } else { 6 }),
        define("FILTER_WORDS", local.filter_words),
        define("LOCAL_CLASSES", local.classes),
        define("ASKS_FRAGMENTS", usize::from(!specialise || classes.ask_fragments)),
        define("ROUND_BITS", local.round_bits as usize),
        define("SLOT_BITS", slot_bits as usize),
    ];
    if specialise {
        let calls = masks[HEAD_WORDS..].chunks(addresses + 3).enumerate().map(|(number, words)| {
            let words: Vec<_> = words.iter().map(|word| format!("{word:#x}u")).collect();
            format!("TABLE({number}u, {})", words.join(", "))
        });
        defines.push(("TABLE_LIST(TABLE)".into(), calls.collect::<Vec<_>>().join(" ")));
        defines.extend([
            define("SLOTS", slots),
            define("CELLS", filter.cells),
            define("BITS", filter.bits),
            define("RANK_SHIFT", filter.rank_shift as usize),
        ]);
        if tail.len() <= MAX_TAIL_IN_TEXT {
            defines.push(("RULE_LIST(REACHES, RULE, END)".into(), tail_in_text(&tail)));
        }
    }
    Ok(Image {
        defines,
        local: local.bytes,
        rules: laid_out,
        classes: classes.words,
        filter: filter.words,
        masks,
        key_bytes: size_of::<K>(),
        round: 1 << local.round_bits,
        tables,
        tail: tail.len(),
    })
}

/// The tail as the kernel's `RULE_LIST`: a few rules, and, where they are not enough, the others.
fn tail_in_text<K: MatchKey>(tail: &[CompiledRule<K>]) -> String {
    let mut text = String::new();
    for rules in tail.chunks(RULES_PER_LOOK) {
        text += &format!("REACHES({}u) ", rules[0].position);
        rules.iter().for_each(|rule| text += &(rule_in_text(rule) + " "));
    }
    text + &"END ".repeat(tail.len().div_ceil(RULES_PER_LOOK))
}

/// A rule of the tail as the kernel's `RULE`.
fn rule_in_text<K: MatchKey>(rule: &CompiledRule<K>) -> String {
    let mut numbers = vec![rule.position];
    numbers.extend(rule.mask.words(|word| word).as_ref());
    numbers.extend(rule.value.words(|word| word).as_ref());
    for range in [rule.source_ports, rule.destination_ports] {
        numbers.extend([u32::from(range.low), u32::from(range.high - range.low)]);
    }
    let bytes = |a: u8, b: u8, c: u8| u32::from_le_bytes([a, b, c, 0]);
    let (mask, value) = (rule.mask.fields().protocol, rule.value.fields().protocol);
    numbers.extend([bytes(mask, rule.flags_mask, rule.all_of.0), bytes(value, rule.flags, rule.all_of.0)]);
    numbers.push(rule.one_of.0.into());
    let numbers: Vec<_> = numbers.iter().map(|number| format!("{number:#x}u")).collect();
    format!("RULE({})", numbers.join(", "))
}

/// Where a hash leads among so many places: `multiply_high` of the kernel.
fn place(hash: u32, places: usize) -> u32 {
    ((u64::from(hash) * places as u64) >> 32) as u32
}

/// What tells packets that they need not look, and how early the rules are that they could meet.
struct Filter {
    /// Bytes that are ranks, or say that there is nothing.
    cells: usize,
    /// Bits after them.
    bits: usize,
    words: Vec<u32>,
    /// What each table is given in the kernel: a constant rank, or that it has ranks of its rules.
    ranks: Vec<u32>,
    rank_shift: u32,
}

impl Filter {
    fn new<K>(rules: &[Hashed<K>], tables: usize, words: usize) -> Self {
        let mut positions = vec![Vec::new(); tables];
        rules.iter().for_each(|hashed| positions[hashed.table].push(hashed.rule.position));
        let last = rules.last().map_or(0, |hashed| hashed.rule.position);
        let rank_shift = (0..24).find(|shift| last >> shift <= MAX_RANK).unwrap_or(24);
        // Small tables have ranks; what large ones would need is better spent on bits.
        let mut by_size: Vec<usize> = (0..tables).collect();
        by_size.sort_unstable_by_key(|&table| positions[table].len());
        let both = (1..PARTS).flat_map(|part| (1..tables).map(move |ranked| (ranked, part)));
        let choices = [(tables, PARTS), (0, 0)].into_iter().chain(both);
        let rules_of = |tables: &[usize]| tables.iter().map(|&table| positions[table].len()).sum::<usize>();
        let cost = |(ranked, part): (usize, usize)| {
            let (with, without) = by_size.split_at(ranked);
            let (bytes, bits) = (words * 4 * part / PARTS, words * 32 * (PARTS - part) / PARTS);
            // Rules for each place. A rank of n rules that are none of the packet's is earlier than the packet's rule n times in n + 1.
            let load =
                |tables: &[usize], places: usize| rules_of(tables) as f64 / places.max(1) as f64 + 1e-9;
            let (rank, bit) = (load(with, bytes), load(without, bits));
            let passes = |load: f64| 1.0 - (-load).exp();
            with.len() as f64 * (1.0 - passes(rank) / rank)
                + without.len() as f64 * (passes(bit) + WITHOUT_RANK)
        };
        let (ranked, part) = choices.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or((tables, PARTS));
        let cells = words * part / PARTS * 4;
        let bits = words * 32 - cells * 8;
        let mut ranks = vec![HAS_RANKS; tables];
        for &table in &by_size[ranked..] {
            ranks[table] = positions[table].first().map_or(0, |position| position >> rank_shift);
        }
        let mut bytes = vec![u8::MAX; cells];
        bytes.resize(words * 4, 0);
        for hashed in rules {
            if ranks[hashed.table] == HAS_RANKS {
                let cell = &mut bytes[place(hashed.hash, cells) as usize];
                *cell = (*cell).min((hashed.rule.position >> rank_shift) as u8);
            } else {
                let bit = place(hashed.hash, bits) as usize;
                bytes[cells + bit / 8] |= 1 << (bit % 8);
            }
        }
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        Self { cells, bits, words: bytes.chunks(4).map(word).collect(), ranks, rank_shift }
    }
}

/// What a group's local memory holds.
struct Local {
    filter_words: usize,
    round_bits: u32,
    /// Classes that are copied there: all or none.
    classes: usize,
    bytes: u32,
}

impl Local {
    /// For so many rules in tables and classes, or for any, with addresses of so many words together.
    fn new(addresses: u32, wanted: Option<(usize, usize)>, target: &Target) -> Result<Self, Error> {
        let (rules, classes) = wanted.unwrap_or((usize::MAX, 0));
        // One lane means a CPU, whose caches do as well, and PoCL 3.1 (LLVM 14) optimises reads of local classes into wrong ones.
        let are_few =
            classes <= MAX_LOCAL_CLASSES && classes as u32 * 16 <= target.local_memory / CLASSES_PART;
        let are_local = target.lanes > 1 && are_few;
        let classes = if are_local { classes } else { 0 };
        let taken = |round: u32| {
            let lanes = (QUEUE_PER_LANE * target.lanes + round * (addresses + 3)) * 4;
            target.group / target.lanes * lanes + classes as u32 * 16
        };
        // Two packets a lane share what it costs to empty the queue, if that leaves the filter enough.
        let two = target.lanes * 2;
        let fits = target.packets_a_lane >= 2 && taken(two) + ENOUGH_FILTER <= target.local_memory;
        let round = if fits { two } else { target.lanes }.next_power_of_two();
        let rest = taken(round);
        let room = (target.local_memory & !15).saturating_sub(rest) as usize / 4;
        if room < MIN_FILTER_WORDS {
            return Err(Error::LocalMemory { group: target.group, local_memory: target.local_memory });
        }
        let filter_words = (rules.saturating_mul(FILTER_BYTES_PER_RULE) / 4).clamp(MIN_FILTER_WORDS, room);
        let bytes = (rest + filter_words as u32 * 4).next_multiple_of(16);
        Ok(Self { filter_words, round_bits: round.ilog2(), classes, bytes })
    }
}
