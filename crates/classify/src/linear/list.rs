//! Rules as a structure of arrays, and the search for the first that matches.

use std::array;
use std::fmt;

use packetloom_packet::KeyBits;

use crate::compiled::{CompiledRule, MatchKey};
use packetloom_simd::{Isa, Kernel, MAX_LANES as LANES, Simd};

/// Bytes of addresses that a group of packets is compared with before the next are touched: half of a first-level cache.
const CHUNK: usize = 16 << 10;

/// Packets of a group.
const GROUP: usize = 64;

/// Rules of one family in order.
pub(crate) struct List<K: MatchKey> {
    addresses: Vec<Addresses<K>>,
    /// The rest of the rules of each block.
    conditions: Vec<Conditions>,
    /// Position of each rule in the rule set.
    positions: Vec<u32>,
}

/// The prefixes of a block of [`LANES`] rules, word by word.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Addresses<K: MatchKey> {
    value: K::Words<[u32; LANES]>,
    mask: K::Words<[u32; LANES]>,
}

/// What a block of rules asks for beside addresses.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Conditions {
    /// Protocol, flags, key bits and fragments as in [`traits`].
    value: [u32; LANES],
    mask: [u32; LANES],
    /// Lowest source port of each rule, and lowest destination port in the upper half.
    low: [u32; LANES],
    /// What the highest ports are above the lowest, likewise.
    span: [u32; LANES],
}

/// A key in the form that blocks are compared with.
#[derive(Clone, Copy)]
struct Packet<K: MatchKey> {
    words: K::Words<u32>,
    traits: u32,
    ports: u32,
}

/// Four bytes that are compared under one mask: protocol, TCP flags, key bits, and `fragments`.
const fn traits(protocol: u8, tcp_flags: u8, bits: KeyBits, fragments: u8) -> u32 {
    u32::from_le_bytes([protocol, tcp_flags, bits.0, fragments])
}

/// Something of the source and of the destination ports.
const fn both(source: u16, destination: u16) -> u32 {
    source as u32 | (destination as u32) << 16
}

/// The three bits that tell of fragmentation, as a number from 0 to 7.
const fn fragment_bits(bits: KeyBits) -> u8 {
    const _: () = assert!(KeyBits::FIRST_FRAGMENT.0 | KeyBits::LATER_FRAGMENT.0 | KeyBits::WHOLE.0 == 7 << 3);
    bits.0 >> 3 & 7
}

/// For each combination of fragment bits, the sets that have one of them, set `n` as bit `n`. So "one of these bits" is a
/// comparison of a single bit.
const FRAGMENT_SETS: [u8; 8] = {
    let mut sets = [0; 8];
    let mut at = 0;
    while at < 64 {
        let (bits, set) = (at / 8, at % 8);
        sets[bits] |= ((bits & set != 0) as u8) << set;
        at += 1;
    }
    sets
};

impl<K: MatchKey> Packet<K> {
    fn new(key: &K) -> Self {
        let fields = key.fields();
        let fragments = FRAGMENT_SETS[usize::from(fragment_bits(fields.bits))];
        Self {
            words: key.words(|word| word),
            traits: traits(fields.protocol, fields.tcp_flags, fields.bits, fragments),
            ports: both(fields.source_port, fields.destination_port),
        }
    }
}

impl<K: MatchKey> Addresses<K> {
    /// Rules that match nothing: no masked word is equal to 1 where the mask is 0.
    fn empty() -> Self {
        Self { value: K::default().words(|_| [1; LANES]), mask: K::default().words(|_| [0; LANES]) }
    }

    fn set(&mut self, lane: usize, rule: &CompiledRule<K>) {
        for (lanes, &word) in self.value.as_mut().iter_mut().zip(rule.value.words(|word| word).as_ref()) {
            lanes[lane] = word;
        }
        for (lanes, &word) in self.mask.as_mut().iter_mut().zip(rule.mask.words(|word| word).as_ref()) {
            lanes[lane] = word;
        }
    }

    /// Of the lanes from `at` on, those that are 0 where the packet's addresses lie in the rule's prefixes.
    #[inline(always)]
    fn difference<S: Simd>(&self, simd: S, at: usize, packet: &Packet<K>) -> S::V {
        let mut difference = simd.splat(0);
        let rules = self.mask.as_ref().iter().zip(self.value.as_ref());
        for (&word, (mask, value)) in packet.words.as_ref().iter().zip(rules) {
            let masked = simd.and(simd.splat(word), simd.load(&mask[at..]));
            difference = simd.or(difference, simd.xor(masked, simd.load(&value[at..])));
        }
        difference
    }
}

impl Conditions {
    const EMPTY: Self = Self { value: [0; LANES], mask: [0; LANES], low: [0; LANES], span: [0; LANES] };

    fn set<K: MatchKey>(&mut self, lane: usize, rule: &CompiledRule<K>) {
        let (value, mask) = (rule.value.fields(), rule.mask.fields());
        let fragments = 1 << fragment_bits(rule.one_of);
        self.value[lane] = traits(value.protocol, rule.flags, rule.all_of, fragments);
        self.mask[lane] = traits(mask.protocol, rule.flags_mask, rule.all_of, fragments);
        let (source, destination) = (rule.source_ports, rule.destination_ports);
        self.low[lane] = both(source.low, destination.low);
        self.span[lane] = both(source.high - source.low, destination.high - destination.low);
    }

    /// Of the lanes from `at` on, those that are 0 where the packet meets the conditions.
    #[inline(always)]
    fn difference<K: MatchKey, S: Simd>(&self, simd: S, at: usize, packet: &Packet<K>) -> S::V {
        let above = simd.sub16(simd.splat(packet.ports), simd.load(&self.low[at..]));
        let beyond = simd.saturating_sub16(above, simd.load(&self.span[at..]));
        let traits = simd.and(simd.splat(packet.traits), simd.load(&self.mask[at..]));
        simd.or(beyond, simd.xor(traits, simd.load(&self.value[at..])))
    }
}

impl<K: MatchKey> List<K> {
    /// Lays out rules that are in order of position.
    pub(crate) fn new(rules: &[CompiledRule<K>]) -> Self {
        let blocks = rules.len().div_ceil(LANES);
        let mut list = Self {
            addresses: vec![Addresses::empty(); blocks],
            conditions: vec![Conditions::EMPTY; blocks],
            positions: rules.iter().map(|rule| rule.position).collect(),
        };
        for (at, rule) in rules.iter().enumerate() {
            list.addresses[at / LANES].set(at % LANES, rule);
            list.conditions[at / LANES].set(at % LANES, rule);
        }
        list
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(&*self.addresses) + size_of_val(&*self.conditions) + size_of_val(&*self.positions)
    }

    /// Writes to `first` the position of the first rule that matches each key where it is lower than what stands there.
    pub(crate) fn improve(&self, isa: Isa, keys: &[K], first: &mut [u32]) {
        // Mostly there are none beside other tables, and packets need not be made ready.
        if !self.positions.is_empty() {
            isa.run(Improve { list: self, keys, first });
        }
    }

    /// The first of the rules from `start` to `end` that matches; `start` is the first of a block.
    #[inline(always)]
    fn search<S: Simd>(&self, simd: S, start: usize, end: usize, packet: &Packet<K>) -> Option<usize> {
        let blocks = start / LANES..end.div_ceil(LANES);
        let rules = self.addresses[blocks.clone()].iter().zip(&self.conditions[blocks]);
        let zero = simd.splat(0);
        for (block, (addresses, conditions)) in rules.enumerate() {
            for at in (0..LANES).step_by(S::LANES) {
                let difference = addresses.difference(simd, at, packet);
                if simd.eq(difference, zero) != 0 {
                    let difference = simd.or(difference, conditions.difference(simd, at, packet));
                    let matches = simd.eq(difference, zero);
                    if matches != 0 {
                        return Some(start + block * LANES + at + matches.trailing_zeros() as usize);
                    }
                }
            }
        }
        None
    }
}

impl<K: MatchKey> fmt::Debug for List<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "List of {} rules", self.positions.len())
    }
}

/// How many of these positions, which are in order, come before `position`: mostly all.
#[inline(always)]
fn earlier(positions: &[u32], position: u32) -> usize {
    match positions {
        [.., last] if *last >= position => positions.partition_point(|&earlier| earlier < position),
        _ => positions.len(),
    }
}

/// Out of line, or the compiler takes long detours to make vectors of it.
#[inline(never)]
fn prepare<K: MatchKey>(keys: &[K], packets: &mut [Packet<K>]) {
    for (packet, key) in packets.iter_mut().zip(keys) {
        *packet = Packet::new(key);
    }
}

/// [`List::improve`]: a group of packets is compared with a chunk of rules at a time, so that the chunk comes from the
/// first-level cache for all but the first of them.
struct Improve<'a, K: MatchKey> {
    list: &'a List<K>,
    keys: &'a [K],
    first: &'a mut [u32],
}

impl<K: MatchKey> Kernel for Improve<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { list, keys, first } = self;
        let chunk = const { CHUNK / size_of::<Addresses<K>>() * LANES };
        let mut packets = [Packet::new(&K::default()); GROUP];
        for (keys, first) in keys.chunks(GROUP).zip(first.chunks_mut(GROUP)) {
            prepare(keys, &mut packets);
            // The packets that may still meet a rule: the first `left` of `open`.
            let mut open: [u8; GROUP] = array::from_fn(|packet| packet as u8);
            let mut left = keys.len();
            for (start, positions) in (0..).step_by(chunk).zip(list.positions.chunks(chunk)) {
                let mut kept = 0;
                for at in 0..left {
                    let packet = usize::from(open[at]);
                    let end = start + earlier(positions, first[packet]);
                    if end == start {
                        continue;
                    }
                    match list.search(simd, start, end, &packets[packet]) {
                        Some(rule) => first[packet] = first[packet].min(list.positions[rule]),
                        None => {
                            open[kept] = open[at];
                            kept += 1;
                        }
                    }
                }
                left = kept;
                if left == 0 {
                    break;
                }
            }
        }
    }
}
