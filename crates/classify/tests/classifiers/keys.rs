//! Headers that stand at the edges of a rule set: the first and last address of each prefix and one beyond, the ends of
//! each range and one beyond, and every combination of what may be known of a packet.

use packetloom_classify::rule::{Addresses, Fragments, PortRange};
use packetloom_classify::{Rule, RuleSet};
use packetloom_packet::key::halves;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};

/// A generator of numbers that need not be good (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next() as usize % from.len()]
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// A header of either family: of IPv4 addresses, the low 32 bits count.
#[derive(Clone, Copy)]
struct Header {
    source: u128,
    destination: u128,
    source_port: u16,
    destination_port: u16,
    protocol: u8,
    tcp_flags: u8,
    bits: KeyBits,
}

impl Header {
    fn v4(self) -> Key {
        Key::V4(MatchKey4 {
            source: self.source as u32,
            destination: self.destination as u32,
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol,
            tcp_flags: self.tcp_flags,
            bits: self.bits,
            reserved: 0,
        })
    }

    fn v6(self) -> Key {
        Key::V6(MatchKey6 {
            source: halves(self.source),
            destination: halves(self.destination),
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol,
            tcp_flags: self.tcp_flags,
            bits: self.bits,
            reserved: 0,
        })
    }
}

/// The lowest and the highest address on each side, and whether they are of IPv6; `None` for any of either family.
fn sides(rule: &Rule) -> Option<(bool, [(u128, u128); 2])> {
    match rule.addresses {
        Addresses::Any => None,
        Addresses::V4(a, b) => {
            let ends = [a, b].map(|p| (u128::from(p.address()), u128::from(p.address() | !p.mask())));
            Some((false, ends))
        }
        Addresses::V6(a, b) => Some((true, [a, b].map(|p| (p.address(), p.address() | !p.mask())))),
    }
}

/// Both ends, and what lies just beyond them.
fn around((low, high): (u128, u128)) -> [u128; 4] {
    [low, high, low.wrapping_sub(1), high.wrapping_add(1)]
}

fn around_range(range: PortRange) -> [u16; 4] {
    [range.low, range.high, range.low.wrapping_sub(1), range.high.wrapping_add(1)]
}

/// The values of the two fields that hold ports, or type and code.
fn ranges(rule: &Rule) -> [PortRange; 2] {
    let exactly = |value: Option<u8>| value.map(|value| PortRange::exactly(value.into()));
    [
        exactly(rule.icmp_type).unwrap_or(rule.source_ports),
        exactly(rule.icmp_code).unwrap_or(rule.destination_ports),
    ]
}

/// Flags that are right, right with all others set, and wrong.
fn flags(rule: &Rule) -> [u8; 3] {
    rule.tcp_flags
        .map_or([0, 0x12, 0xff], |flags| [flags.set, flags.set | !flags.mask, flags.set ^ flags.mask])
}

/// The values at the edges of a rule set, field by field.
struct Edges {
    v4: Vec<u128>,
    v6: Vec<u128>,
    ports: Vec<u16>,
    protocols: Vec<u8>,
    flags: Vec<u8>,
}

impl Edges {
    fn of(rules: &RuleSet) -> Self {
        let mut edges = Self {
            v4: vec![0, u128::MAX],
            v6: vec![0, u128::MAX],
            ports: vec![0, u16::MAX],
            protocols: vec![0, 1, 6, 17, 47, 58, 132, 255],
            flags: vec![0, 0xff],
        };
        for rule in &rules.rules {
            if let Some((v6, sides)) = sides(rule) {
                let addresses = if v6 { &mut edges.v6 } else { &mut edges.v4 };
                addresses.extend(sides.into_iter().flat_map(around));
            }
            for range in [rule.source_ports, rule.destination_ports].into_iter().chain(ranges(rule)) {
                edges.ports.extend(around_range(range));
            }
            edges.protocols.extend(rule.protocol);
            edges.flags.extend(flags(rule));
        }
        edges
    }

    fn header(&self, addresses: &[u128], random: &mut Random) -> Header {
        Header {
            source: random.pick(addresses),
            destination: random.pick(addresses),
            source_port: random.pick(&self.ports),
            destination_port: random.pick(&self.ports),
            protocol: random.pick(&self.protocols),
            tcp_flags: random.pick(&self.flags),
            bits: KeyBits(0),
        }
    }
}

/// `points` combinations of edges for each family, each with every combination of bits: 36 times as many headers.
pub(crate) fn at_the_edges(rules: &RuleSet, points: usize, random: &mut Random) -> Vec<Key> {
    let edges = Edges::of(rules);
    let mut keys = Vec::new();
    for _ in 0..points {
        let (v4, v6) = (edges.header(&edges.v4, random), edges.header(&edges.v6, random));
        for bits in combinations() {
            keys.extend([Header { bits, ..v4 }.v4(), Header { bits, ..v6 }.v6()]);
        }
    }
    keys
}

/// Headers of which each meets a rule, or misses it by a little.
pub(crate) fn near_rules(rules: &RuleSet, count: usize, random: &mut Random) -> Vec<Key> {
    let edges = Edges::of(rules);
    let mut keys = Vec::new();
    while keys.len() < count && !rules.rules.is_empty() {
        let rule = &rules.rules[random.below(rules.rules.len() as u64) as usize];
        let (v6, sides) = sides(rule).unwrap_or((random.below(2) == 0, [(0, u128::MAX); 2]));
        let addresses = if v6 { &edges.v6 } else { &edges.v4 };
        let strange = edges.header(addresses, random);
        let [source, destination] = sides.map(|(low, high)| {
            let inside = u128::from(random.next()) << 64 | u128::from(random.next());
            random.pick(&[low, high, low | inside & (high ^ low)])
        });
        let [source_port, destination_port] = ranges(rule).map(|range| random.pick(&[range.low, range.high]));
        let mut header = Header {
            source,
            destination,
            source_port,
            destination_port,
            protocol: rule.protocol.unwrap_or(strange.protocol),
            tcp_flags: flags(rule)[random.below(2) as usize],
            bits: bits_for(rule, random),
        };
        // One time in two it is a match; else one field is from somewhere else.
        match random.below(14) {
            0 => header.source = strange.source,
            1 => header.destination = strange.destination,
            2 => header.source_port = strange.source_port,
            3 => header.destination_port = strange.destination_port,
            4 => header.protocol = strange.protocol,
            5 => header.tcp_flags = strange.tcp_flags,
            6 => header.bits = random.pick(&combinations().collect::<Vec<_>>()),
            _ => {}
        }
        keys.push(if v6 { header.v6() } else { header.v4() });
    }
    keys
}

/// The bits of a packet that has all that the rule asks for; a rule that asks for ports and ICMP gets ICMP.
fn bits_for(rule: &Rule, random: &mut Random) -> KeyBits {
    let all = [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];
    let mut bits = match rule.fragments {
        Fragments::All => random.pick(&all),
        Fragments::Any => random.pick(&all[1..]),
        Fragments::None => KeyBits::WHOLE,
        Fragments::First => KeyBits::FIRST_FRAGMENT,
        Fragments::Later => KeyBits::LATER_FRAGMENT,
        Fragments::NotLater => random.pick(&all[..2]),
    };
    if rule.icmp_type.is_some() || rule.icmp_code.is_some() {
        bits = bits.with(KeyBits::ICMP);
    } else if !rule.source_ports.is_any() || !rule.destination_ports.is_any() {
        bits = bits.with(KeyBits::PORTS);
    }
    if rule.tcp_flags.is_some() {
        bits = bits.with(KeyBits::TCP_FLAGS);
    }
    bits
}

/// What may be known of a packet: never ports and ICMP at once. Flags come without ports, which no packet does.
fn combinations() -> impl Iterator<Item = KeyBits> {
    let fragments = [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];
    let transports = [KeyBits(0), KeyBits::PORTS, KeyBits::ICMP];
    let known = transports.into_iter().flat_map(|transport| [transport, transport.with(KeyBits::TCP_FLAGS)]);
    known.flat_map(move |known| fragments.map(|fragment| known.with(fragment)))
}
