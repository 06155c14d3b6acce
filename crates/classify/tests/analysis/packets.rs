//! The packets that the analysis reckons with are those that can be read from frames: no fewer and no more.

use packetloom_classify::analysis::{Analysis, Options, Verdict};
use packetloom_classify::compiled::{CompiledRule, MatchKey};
use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Rule, RuleSet};
use packetloom_packet::{Key, LinkType, dissect};

/// Every key that comes out of IP packets of a protocol: whole and fragmented, cut at every length that matters.
fn keys(v6: bool, protocol: u8) -> Vec<Key> {
    let mut keys = Vec::new();
    // The fragment field of IPv4 or IPv6: whole, the first of several, a later one.
    for fragment in 0..3usize {
        for len in 0..=24 {
            let mut packet = if v6 {
                let mut header = vec![0x60, 0, 0, 0, 0, 8 + len, protocol, 64];
                header.extend([0; 32]);
                if fragment > 0 {
                    header[6] = 44;
                    header.extend([protocol, 0, 0, [0, 1, 8][fragment], 0, 0, 0, 0]);
                } else {
                    header[5] = len;
                }
                header
            } else {
                let more_and_offset = [[0, 0], [0x20, 0], [0, 1]][fragment];
                let mut header =
                    vec![0x45, 0, 0, 20 + len, 0, 0, more_and_offset[0], more_and_offset[1], 64, protocol];
                header.extend([0; 10]);
                header
            };
            packet.extend(vec![0; len.into()]);
            let read = dissect(LinkType::RAW, &packet, packet.len() as u32);
            keys.extend(read.ok().map(|headers| headers.key));
        }
    }
    keys
}

fn meets<K: MatchKey>(rule: &Rule, key: &K) -> bool {
    CompiledRule::new(rule, 0).is_some_and(|rule| rule.matches(key))
}

#[test]
fn a_rule_is_unmatchable_where_no_frame_matches_it() {
    let ports = Rule { source_ports: PortRange::exactly(0), ..Rule::any(None) };
    let icmp = Rule { icmp_type: Some(0), ..Rule::any(None) };
    let flags = Rule { tcp_flags: Some(TcpFlagMatch { set: 0, mask: 0x12 }), ..Rule::any(None) };
    let both = Rule { icmp_type: Some(0), ..flags.clone() };
    let wishes = [Rule::any(None), ports, icmp, flags, both];
    let families = [
        Addresses::V4(Prefix4::new(0, 0), Prefix4::new(0, 0)),
        Addresses::V6(Prefix6::new(0, 0), Prefix6::new(0, 0)),
    ];
    let fragments = [Fragments::All, Fragments::None, Fragments::First, Fragments::Later, Fragments::Any];
    let mut counts = [0; 2];
    for (v6, addresses) in [false, true].into_iter().zip(families) {
        for protocol in 0..=u8::MAX {
            let keys = keys(v6, protocol);
            let mut rules = Vec::new();
            for rule in &wishes {
                rules.extend(fragments.map(|fragments| Rule {
                    addresses,
                    protocol: Some(protocol),
                    fragments,
                    ..rule.clone()
                }));
            }
            let rules = RuleSet { rules };
            let analysis = Analysis::new(&rules, Options::default());
            for (position, rule) in (0..).zip(&rules.rules) {
                let is_met = keys.iter().any(|key| match key {
                    Key::V4(key) => meets(rule, key),
                    Key::V6(key) => meets(rule, key),
                });
                let verdict = analysis.check(position).verdict;
                assert_eq!(verdict != Verdict::Unmatchable, is_met, "{rule}: {verdict:?}");
                counts[usize::from(is_met)] += 1;
            }
        }
    }
    // Of each family every protocol but 8 of IPv6 can be whole and in fragments, 3 and 1 have ports and flags, 2 a type.
    let met = 2 * 256 * 5 - 8 * 2 + 2 * (3 + 1 + 2) * 4;
    assert_eq!(counts, [2 * 256 * 25 - met, met]);
}
