//! What a rule asks of a packet: ranges on the axes, and a demand on its kind.

use packetloom_packet::{KeyBits, MatchKey4, MatchKey6};

use super::kinds::Demand;
use super::span::Values;
use crate::compiled::{CompiledRule, MatchKey};
use crate::rule::{Addresses, PortRange, Rule};

/// What a rule asks; `None` where its conditions contradict each other. They are taken from the compiled rule: what it means
/// is said there alone.
pub(super) fn ask(rule: &Rule) -> Option<(Values, Demand)> {
    let (v4, v6) = (CompiledRule::<MatchKey4>::new(rule, 0), CompiledRule::<MatchKey6>::new(rule, 0));
    let families = (v4.is_some(), v6.is_some());
    let ([source_ports, destination_ports], demand) = match (v4, v6) {
        (Some(rule), _) => conditions(&rule, families),
        (None, Some(rule)) => conditions(&rule, families),
        (None, None) => return None,
    };
    // The addresses of both families lie on one axis of 128 bits, those of IPv4 in its upper 32: there a prefix of either is a
    // prefix, and the demand keeps the families apart.
    let prefix = |address: u128, len: u8| (address, address | u128::MAX.checked_shr(len.into()).unwrap_or(0));
    let [source, destination] = match rule.addresses {
        Addresses::Any => [prefix(0, 0); 2],
        Addresses::V4(source, destination) => {
            [source, destination].map(|side| prefix(u128::from(side.address()) << 96, side.len()))
        }
        Addresses::V6(source, destination) => {
            [source, destination].map(|side| prefix(side.address(), side.len()))
        }
    };
    Some(([source, destination, source_ports, destination_ports], demand))
}

/// What a compiled rule asks beside addresses, for the families given: the ranges of both 16-bit fields, and the rest.
fn conditions<K: MatchKey>(rule: &CompiledRule<K>, (v4, v6): (bool, bool)) -> ([(u128, u128); 2], Demand) {
    let is_icmp = rule.all_of.contains(KeyBits::ICMP);
    let ports = [rule.source_ports, rule.destination_ports].map(|PortRange { low, high }| {
        // ICMP types and codes end at 255: there the last of them stands for the rest of the axis, so that rules for every one
        // of them are as good as a rule for any.
        let high = if is_icmp && high >= u8::MAX.into() { u16::MAX } else { high };
        (low.into(), high.into())
    });
    let protocol = (rule.mask.fields().protocol != 0).then_some(rule.value.fields().protocol);
    let CompiledRule { flags, flags_mask, all_of, one_of, .. } = *rule;
    (ports, Demand { v4, v6, protocol, flags, flags_mask, all_of, one_of })
}
