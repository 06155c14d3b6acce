//! Sets of 1,000 rules that are meant to be hard: the speed of the classifier `hybrid` beside that of `linear` on each.
//!
//! `cargo bench -p packetloom-bench --bench hostile` prints a line for each set; `-- NAME` takes only the sets whose names have that in
//! them. The ratio is linear's time by hybrid's: the median of five rounds, and the least of them.

#![allow(missing_docs)]

use packetloom_bench::acl;
use packetloom_classify::formats::Headers;
use packetloom_classify::rule::{Addresses, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Kind, Rule, RuleSet};
use packetloom_packet::key::halves;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

const RULES: u64 = 1_000;
const HEADERS: usize = 20_000;

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }

    fn wide(&mut self) -> u128 {
        u128::from(self.0.next_u64()) << 64 | u128::from(self.0.next_u64())
    }

    fn range(&mut self) -> PortRange {
        let (a, b) = (self.below(1 << 16) as u16, self.below(1 << 16) as u16);
        PortRange { low: a.min(b), high: a.max(b) }
    }
}

fn v4(source: u32, source_len: u64, destination: u32, destination_len: u64) -> Rule {
    let [source, destination] = [(source, source_len), (destination, destination_len)]
        .map(|(address, len)| Prefix4::new(address, len as u8));
    Rule { addresses: Addresses::V4(source, destination), ..Rule::any(Some(Action::Permit)) }
}

fn v6(source: u128, source_len: u64, destination: u128, destination_len: u64) -> Rule {
    let [source, destination] = [(source, source_len), (destination, destination_len)]
        .map(|(address, len)| Prefix6::new(address, len as u8));
    Rule { addresses: Addresses::V6(source, destination), ..Rule::any(Some(Action::Permit)) }
}

/// The same rule without conditions on addresses, for IPv4 or for IPv6 alone.
fn of_family(rule: Rule, is_v6: bool) -> Rule {
    let addresses = if is_v6 { v6(0, 0, 0, 0) } else { v4(0, 0, 0, 0) }.addresses;
    Rule { addresses, ..rule }
}

/// A header that a rule matches, as far as its addresses, ports, protocol and flags go.
fn header(rule: &Rule, random: &mut Random) -> Key {
    let mut port = |range: PortRange| match random.below(3) {
        0 => range.low,
        1 => range.high,
        _ => range.low + random.below(u64::from(range.high - range.low) + 1) as u16,
    };
    let (source_port, destination_port) = (port(rule.source_ports), port(rule.destination_ports));
    let protocol = rule.protocol.unwrap_or([6, 17, 47][random.below(3) as usize]);
    let noise = random.below(256) as u8;
    let tcp_flags = rule.tcp_flags.map_or(noise, |flags| flags.set | noise & !flags.mask);
    let mut bits = KeyBits::WHOLE.with(KeyBits::PORTS);
    if protocol == 6 {
        bits = bits.with(KeyBits::TCP_FLAGS);
    }
    match rule.addresses {
        Addresses::V6(source, destination) => {
            let [source, destination] =
                [source, destination].map(|prefix| halves(prefix.address() | random.wide() & !prefix.mask()));
            Key::V6(MatchKey6 {
                source,
                destination,
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                ..MatchKey6::default()
            })
        }
        addresses => {
            let pair = if let Addresses::V4(source, destination) = addresses {
                [source, destination]
            } else {
                [Prefix4::new(0, 0); 2]
            };
            let [source, destination] =
                pair.map(|prefix| prefix.address() | random.wide() as u32 & !prefix.mask());
            Key::V4(MatchKey4 {
                source,
                destination,
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                ..MatchKey4::default()
            })
        }
    }
}

/// Half of the headers of rules from the last quarter, a quarter of any rule, a quarter of anything.
fn headers(rules: &RuleSet, random: &mut Random) -> Headers {
    let mut headers = Headers::default();
    let count = rules.rules.len() as u64;
    let is_v6 = matches!(rules.rules[0].addresses, Addresses::V6(..));
    let any = of_family(Rule::any(None), is_v6);
    for number in 0..HEADERS {
        let rule = match number % 4 {
            0 | 1 => &rules.rules[(count - 1 - random.below(count / 4)) as usize],
            2 => &rules.rules[random.below(count) as usize],
            _ => &any,
        };
        headers.push(header(rule, random));
    }
    headers
}

type Make = fn(u64, &mut Random) -> Rule;

/// Rules by their number.
const SETS: &[(&str, Make)] = &[
    ("v4: every pair of prefix lengths", |n, r| v4(r.wide() as u32, n % 32 + 1, r.wide() as u32, n / 32 + 1)),
    ("v4: every pair of lengths, nested", |n, _| v4(0xa55a_c33c, 32 - n % 32, 0x5aa5_3cc3, 32 - n / 32)),
    ("v4: nested sources crossed with destinations", |n, r| {
        v4(0x0a0a_0a0a, 32 - n % 32, r.wide() as u32, r.below(3) * 16)
    }),
    ("v4: short prefixes", |_, r| v4(r.wide() as u32, r.below(9), r.wide() as u32, r.below(9))),
    ("v4: short prefixes, ports, protocols", |_, r| Rule {
        source_ports: r.range(),
        destination_ports: r.range(),
        protocol: [None, Some(6), Some(17)][r.below(3) as usize],
        ..v4(r.wide() as u32, r.below(9), r.wide() as u32, r.below(9))
    }),
    ("v4: long prefixes, random ranges", |_, r| Rule {
        source_ports: r.range(),
        destination_ports: r.range(),
        ..v4(
            0x0a00_0000 | r.below(64) as u32,
            28 + r.below(5),
            0x0b00_0000 | r.below(64) as u32,
            28 + r.below(5),
        )
    }),
    ("v4: random ranges on both ports", |_, r| Rule {
        source_ports: r.range(),
        destination_ports: r.range(),
        ..v4(0, 0, 0, 0)
    }),
    ("v4: crossing staircases of ranges", |n, _| {
        let at = n as u16 * 32;
        let (source_ports, destination_ports) =
            (PortRange { low: at, high: at + 33_000 }, PortRange { low: 32_000 - at, high: 65_000 - at });
        Rule { source_ports, destination_ports, ..v4(0, 0, 0, 0) }
    }),
    ("v4: small ranges, nowhere aligned", |_, r| {
        let mut small = || {
            let low = r.below(65_000) as u16;
            PortRange { low, high: low + r.below(500) as u16 }
        };
        Rule { source_ports: small(), destination_ports: small(), ..v4(0, 0, 0, 0) }
    }),
    ("v4: one port or the other", |n, r| {
        let port = PortRange::exactly(r.below(65_536) as u16);
        let rule = v4(0, 0, 0, 0);
        if n % 2 == 0 {
            Rule { source_ports: port, ..rule }
        } else {
            Rule { destination_ports: port, ..rule }
        }
    }),
    ("v4: one field of five", |n, r| {
        let rule = v4(0, 0, 0, 0);
        match n % 5 {
            0 => v4(r.wide() as u32, 24 + r.below(9), 0, 0),
            1 => v4(0, 0, r.wide() as u32, 24 + r.below(9)),
            2 => Rule { source_ports: r.range(), ..rule },
            3 => Rule { destination_ports: r.range(), ..rule },
            _ => Rule { protocol: Some(r.below(256) as u8), ..rule },
        }
    }),
    ("v4: any but one", |n, _| match n {
        0..999 => v4(0x0a00_0000 | n as u32, 32, 0x0b00_0000, 32),
        _ => v4(0, 0, 0, 0),
    }),
    ("v4: all match everything", |_, _| v4(0, 0, 0, 0)),
    ("v4: all match one host pair, by ranges", |_, r| Rule {
        destination_ports: r.range(),
        source_ports: r.range(),
        ..v4(0x0a00_0001, 32, 0x0a00_0002, 32)
    }),
    ("v4: flags", |_, r| {
        let mask = r.below(256) as u8;
        let flags = TcpFlagMatch { set: r.below(256) as u8 & mask, mask };
        Rule { protocol: Some(6), tcp_flags: Some(flags), ..v4(r.wide() as u32, r.below(5) * 8, 0, 0) }
    }),
    ("v4: flags and short prefixes", |_, r| {
        let mask = r.below(256) as u8;
        let flags = TcpFlagMatch { set: r.below(256) as u8 & mask, mask };
        Rule {
            protocol: Some(6),
            tcp_flags: Some(flags),
            destination_ports: r.range(),
            ..v4(r.wide() as u32, r.below(7), r.wide() as u32, r.below(7))
        }
    }),
    ("v4: tables of a sixteenth each", |n, r| {
        // Sixteen kinds of which none shares its long prefixes with another.
        let kind = n % 16;
        let rule = v4(r.wide() as u32, 2 * kind + 2, r.wide() as u32, 32 - 2 * kind);
        Rule { destination_ports: r.range(), ..rule }
    }),
    ("v4: half of an address on each side", |n, r| {
        let (a, b) = (r.wide() as u32, r.below(17));
        if n % 2 == 0 { v4(a, 16 + b, 0, b / 4) } else { v4(0, b / 4, a, 16 + b) }
    }),
    ("v6: every pair of prefix lengths", |n, r| v6(r.wide(), n % 32 * 4 + 1, r.wide(), n / 32 * 4 + 1)),
    ("v6: every pair of lengths, nested", |n, _| {
        v6(u128::MAX / 3, 128 - n % 32 * 4, u128::MAX / 5, 128 - n / 32 * 4)
    }),
    ("v6: short prefixes", |_, r| v6(r.wide(), r.below(9), r.wide(), r.below(9))),
    ("v6: short prefixes, ports, protocols", |_, r| Rule {
        source_ports: r.range(),
        destination_ports: r.range(),
        protocol: [None, Some(6), Some(17)][r.below(3) as usize],
        ..v6(r.wide(), r.below(9), r.wide(), r.below(9))
    }),
    ("v6: random ranges on both ports", |_, r| Rule {
        source_ports: r.range(),
        destination_ports: r.range(),
        ..v6(0, 0, 0, 0)
    }),
    ("v6: crossing staircases of ranges", |n, _| {
        let at = n as u16 * 32;
        let (source_ports, destination_ports) =
            (PortRange { low: at, high: at + 33_000 }, PortRange { low: 32_000 - at, high: 65_000 - at });
        Rule { source_ports, destination_ports, ..v6(0, 0, 0, 0) }
    }),
    ("v6: all match one host pair, by ranges", |_, r| Rule {
        destination_ports: r.range(),
        source_ports: r.range(),
        ..v6(1, 128, 2, 128)
    }),
    ("v6: tables of a sixteenth each", |n, r| {
        let kind = n % 16;
        Rule { destination_ports: r.range(), ..v6(r.wide(), 8 * kind + 8, r.wide(), 128 - 8 * kind) }
    }),
    ("v6: all match everything", |_, _| v6(0, 0, 0, 0)),
];

/// Sorts rules so that those of fewer addresses come first: otherwise wide ones hide the others, and linear is done soon.
fn narrow_first(rules: &mut RuleSet) {
    rules.rules.sort_by_key(|rule| match rule.addresses {
        Addresses::Any => 256,
        Addresses::V4(source, destination) => 64 - u32::from(source.len()) - u32::from(destination.len()),
        Addresses::V6(source, destination) => 256 - u32::from(source.len()) - u32::from(destination.len()),
    });
}

fn main() {
    // Cargo adds options of its own.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    println!("  ratio   least linear ns hybrid ns       MB build ms");
    for (name, make) in SETS.iter().filter(|(name, _)| name.contains(&wanted)) {
        let random = &mut Random(Xoshiro256PlusPlus::seed_from_u64(7));
        let mut rules = RuleSet { rules: (0..RULES).map(|n| make(n, random)).collect() };
        narrow_first(&mut rules);
        let headers = headers(&rules, random);
        let options = acl::Options {
            kinds: vec![Kind::Linear, Kind::Hybrid],
            peer: None,
            batches: vec![256],
            rounds: 5,
            workload: (*name).into(),
        };
        let measured = acl::run(&rules, &headers, &options, &Default::default()).unwrap();
        let [linear, hybrid] = [0, 1].map(|at| measured[at].json());
        let rounds = |at: usize| measured[at].rounds.iter().zip([measured[at].passes; 5]);
        let mut ratios: Vec<f64> = rounds(0)
            .zip(rounds(1))
            .map(|((a, passes_a), (b, passes_b))| {
                a.cpu().as_secs_f64() / passes_a as f64 / (b.cpu().as_secs_f64() / passes_b as f64)
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        let figure = |of: &serde_json::Value, name: &str| of[name].as_f64().unwrap();
        println!(
            "{:7.2} {:7.2} {:9.1} {:9.1} {:8.2} {:8.0}  {name}",
            ratios[2],
            ratios[0],
            figure(&linear, "cpu_ns_per_packet"),
            figure(&hybrid, "cpu_ns_per_packet"),
            figure(&hybrid, "memory_mb"),
            figure(&hybrid, "build_ms"),
        );
    }
}
