//! Headers that stand at the edges of a rule set: the first and last address of each prefix and one beyond, the ends of
//! each range and one beyond, and every combination of what may be known of a packet.

use packetloom_classify::RuleSet;
use packetloom_classify::rule::Addresses;
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
}

/// The values at the edges of a rule set, field by field.
struct Edges {
    v4: Vec<u32>,
    v6: Vec<u128>,
    ports: Vec<u16>,
    protocols: Vec<u8>,
    flags: Vec<u8>,
}

impl Edges {
    fn of(rules: &RuleSet) -> Self {
        let mut edges = Self {
            v4: vec![0, u32::MAX],
            v6: vec![0, u128::MAX],
            ports: vec![0, u16::MAX],
            protocols: vec![1, 6, 17, 47, 58, 132],
            flags: vec![0, 0xff],
        };
        for rule in &rules.rules {
            match rule.addresses {
                Addresses::Any => {}
                Addresses::V4(source, destination) => {
                    for prefix in [source, destination] {
                        let (low, high) = (prefix.address(), prefix.address() | !prefix.mask());
                        edges.v4.extend([low, high, low.wrapping_sub(1), high.wrapping_add(1)]);
                    }
                }
                Addresses::V6(source, destination) => {
                    for prefix in [source, destination] {
                        let (low, high) = (prefix.address(), prefix.address() | !prefix.mask());
                        edges.v6.extend([low, high, low.wrapping_sub(1), high.wrapping_add(1)]);
                    }
                }
            }
            let icmp = [rule.icmp_type, rule.icmp_code].into_iter().flatten().map(u16::from);
            let ranges = [rule.source_ports, rule.destination_ports];
            for (low, high) in
                ranges.map(|range| (range.low, range.high)).into_iter().chain(icmp.map(|n| (n, n)))
            {
                edges.ports.extend([low, high, low.wrapping_sub(1), high.wrapping_add(1)]);
            }
            edges.protocols.extend(rule.protocol);
            if let Some(flags) = rule.tcp_flags {
                edges.flags.extend([flags.set, flags.set | !flags.mask, flags.set ^ flags.mask]);
            }
        }
        edges
    }
}

/// `points` combinations of edges for each family, each with every combination of bits: 18 times as many headers.
pub(crate) fn at_the_edges(rules: &RuleSet, points: usize, random: &mut Random) -> Vec<Key> {
    let edges = Edges::of(rules);
    let mut keys = Vec::new();
    for _ in 0..points {
        let [source, destination] = [(); 2].map(|()| random.pick(&edges.v4));
        let [source6, destination6] = [(); 2].map(|()| halves(random.pick(&edges.v6)));
        let [source_port, destination_port] = [(); 2].map(|()| random.pick(&edges.ports));
        let (protocol, tcp_flags) = (random.pick(&edges.protocols), random.pick(&edges.flags));
        for bits in combinations() {
            keys.push(Key::V4(MatchKey4 {
                source,
                destination,
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                reserved: 0,
            }));
            keys.push(Key::V6(MatchKey6 {
                source: source6,
                destination: destination6,
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                reserved: 0,
            }));
        }
    }
    keys
}

fn combinations() -> impl Iterator<Item = KeyBits> {
    let transports = [KeyBits(0), KeyBits::PORTS, KeyBits::ICMP];
    let flags = [KeyBits(0), KeyBits::TCP_FLAGS];
    let fragments = [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];
    transports.into_iter().flat_map(move |transport| {
        flags
            .into_iter()
            .flat_map(move |flags| fragments.map(|fragment| transport.with(flags).with(fragment)))
    })
}
