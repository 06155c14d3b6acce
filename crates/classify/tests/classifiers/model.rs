//! What a rule means, straight from its fields: the simplest thing that could be right.

use packetloom_classify::rule::{Addresses, Fragments, PortRange};
use packetloom_classify::{NO_RULE, Rule, RuleSet};
use packetloom_packet::key::join;
use packetloom_packet::{Key, KeyBits};

/// The first rule that matches.
pub(crate) fn first_match(rules: &RuleSet, key: &Key) -> u32 {
    rules.rules.iter().position(|rule| matches(rule, key)).map_or(NO_RULE, |position| position as u32)
}

/// Whether the first `len` of `width` bits are the same.
fn same_prefix(a: u128, b: u128, len: u8, width: u8) -> bool {
    (0..len).all(|bit| (a ^ b) >> (width - 1 - bit) & 1 == 0)
}

fn matches(rule: &Rule, key: &Key) -> bool {
    let addresses = match (rule.addresses, key) {
        (Addresses::Any, _) => true,
        (Addresses::V4(source, destination), Key::V4(key)) => {
            same_prefix(source.address().into(), key.source.into(), source.len(), 32)
                && same_prefix(destination.address().into(), key.destination.into(), destination.len(), 32)
        }
        (Addresses::V6(source, destination), Key::V6(key)) => {
            same_prefix(source.address(), join(key.source), source.len(), 128)
                && same_prefix(destination.address(), join(key.destination), destination.len(), 128)
        }
        _ => false,
    };
    let (source_port, destination_port, protocol, tcp_flags, bits) = match key {
        Key::V4(key) => (key.source_port, key.destination_port, key.protocol, key.tcp_flags, key.bits),
        Key::V6(key) => (key.source_port, key.destination_port, key.protocol, key.tcp_flags, key.bits),
    };
    let has = |bit| bits.contains(bit);
    let port = |range: PortRange, port: u16| {
        (range.low, range.high) == (0, 65_535)
            || has(KeyBits::PORTS) && range.low <= port && port <= range.high
    };
    let icmp = |wanted: Option<u8>, found: u16| {
        wanted.is_none_or(|wanted| has(KeyBits::ICMP) && found == u16::from(wanted))
    };
    let flags = rule.tcp_flags.is_none_or(|wanted| {
        has(KeyBits::TCP_FLAGS)
            && (0..8).all(|bit| wanted.mask >> bit & 1 == 0 || (tcp_flags ^ wanted.set) >> bit & 1 == 0)
    });
    let (first, later) = (has(KeyBits::FIRST_FRAGMENT), has(KeyBits::LATER_FRAGMENT));
    let fragments = match rule.fragments {
        Fragments::All => true,
        Fragments::Any => first || later,
        Fragments::None => !first && !later,
        Fragments::First => first,
        Fragments::Later => later,
        Fragments::NotLater => !later,
    };
    addresses
        && rule.protocol.is_none_or(|wanted| wanted == protocol)
        && port(rule.source_ports, source_port)
        && port(rule.destination_ports, destination_port)
        && icmp(rule.icmp_type, source_port)
        && icmp(rule.icmp_code, destination_port)
        && flags
        && fragments
}
