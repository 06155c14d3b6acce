//! Flows of rules, as long as the order of flows lets the same rule decide.

use std::collections::HashSet;

use packetloom_packet::protocol::{ICMP, ICMPV6, TCP, UDP};

use super::super::{WriteError, Writing, meet};
use super::nlri::{
    DESTINATION, DESTINATION_PORT, FRAGMENT, Family, Flow, ICMP_CODE, ICMP_TYPE, PROTOCOL, Pattern, SOURCE,
    SOURCE_PORT, TCP_FLAGS,
};
use super::operators::{AND, END, EQUAL, GREATER, LOWER, MATCH, NOT, Term};
use crate::rule::{Action, Addresses, Fragments, PortRange, Rule};

/// Comparisons of rules whose order must be the same at most; beyond, rules count as out of order.
const MAX_COMPARISONS: usize = 1 << 28;

/// The flows of rules, in order of the rules, and of what is done with all other packets.
pub(super) fn flows(rules: &[Rule], writing: &mut Writing<'_>) -> Result<Vec<(Flow, Rule)>, WriteError> {
    let mut flows: Vec<(Flow, Rule)> = Vec::new();
    let mut seen = HashSet::new();
    let mut comparisons = 0usize;
    // Forwarding is what flows do with everything else.
    let rest = writing.options.default.filter(|default| *default == Action::Deny);
    let rest = rest.map(|default| Rule::any(Some(default)));
    for (index, rule) in rules.iter().chain(&rest).enumerate() {
        let families = Family::ALL.into_iter().filter_map(|family| Some((family, prefixes(rule, family)?)));
        let new: Result<Vec<Flow>, &str> =
            families.map(|(family, ends)| encode(rule, family, ends)).collect();
        let new = match new {
            Ok(new) => new,
            Err(reason) => {
                writing.inexpressible(index, rule, reason)?;
                continue;
            }
        };
        // A flow that is there already decides over all packets of this one.
        let new: Vec<Flow> = new.into_iter().filter(|flow| !seen.contains(flow)).collect();
        let overtakes = new.iter().any(|flow| {
            flows.iter().filter(|(_, other)| other.action != rule.action).any(|(before, other)| {
                comparisons += 1;
                comparisons > MAX_COMPARISONS
                    || flow.family == before.family
                        && flow.order(before).is_lt()
                        && meet::overlap(rule, other)
            })
        });
        if overtakes {
            let reason = "which puts flows in an order of its own, here before a rule with another action";
            writing.inexpressible(index, rule, reason)?;
            continue;
        }
        for flow in new {
            seen.insert(flow.clone());
            flows.push((flow, rule.clone()));
        }
    }
    Ok(flows)
}

/// Destination and source, if the rule is for this family.
fn prefixes(rule: &Rule, family: Family) -> Option<[Pattern; 2]> {
    let pattern = |address, length| Pattern { address, offset: 0, length };
    match (rule.addresses, family) {
        (Addresses::Any, _) => Some([pattern(0, 0); 2]),
        (Addresses::V4(source, destination), Family::V4) => Some(
            [destination, source].map(|prefix| pattern(u128::from(prefix.address()) << 96, prefix.len())),
        ),
        (Addresses::V6(source, destination), Family::V6) => {
            Some([destination, source].map(|prefix| pattern(prefix.address(), prefix.len())))
        }
        _ => None,
    }
}

/// The flow of a rule, or what there are no words for. It has both prefixes, so that more specific ones go first.
fn encode(rule: &Rule, family: Family, [destination, source]: [Pattern; 2]) -> Result<Flow, &'static str> {
    let asks_ports = !(rule.source_ports.is_any() && rule.destination_ports.is_any());
    let asks_icmp = rule.icmp_type.is_some() || rule.icmp_code.is_some();
    if asks_ports && !matches!(rule.protocol, Some(TCP | UDP)) {
        return Err("where ports belong to tcp or udp");
    }
    let icmp = if family == Family::V4 { ICMP } else { ICMPV6 };
    if asks_icmp && rule.protocol != Some(icmp) {
        return Err("where types and codes belong to icmp with IPv4 and icmpv6 with IPv6");
    }
    if rule.tcp_flags.is_some() && rule.protocol != Some(TCP) {
        return Err("where flags belong to tcp");
    }
    let mut nlri = vec![DESTINATION];
    destination.write(family, &mut nlri);
    nlri.push(SOURCE);
    source.write(family, &mut nlri);
    exactly(PROTOCOL, rule.protocol, &mut nlri);
    range(DESTINATION_PORT, rule.destination_ports, &mut nlri);
    range(SOURCE_PORT, rule.source_ports, &mut nlri);
    exactly(ICMP_TYPE, rule.icmp_type, &mut nlri);
    exactly(ICMP_CODE, rule.icmp_code, &mut nlri);
    if let Some(flags) = rule.tcp_flags {
        nlri.push(TCP_FLAGS);
        let (set, clear) = (flags.set & flags.mask, flags.mask & !flags.set);
        match (set, clear) {
            (set, 0) if set != 0 => Term::write(END | MATCH, set.into(), &mut nlri),
            (0, clear) => Term::write(END | NOT, clear.into(), &mut nlri),
            (set, clear) => {
                Term::write(MATCH, set.into(), &mut nlri);
                Term::write(END | AND | NOT, clear.into(), &mut nlri);
            }
        }
    }
    let fragment = match rule.fragments {
        Fragments::All => None,
        Fragments::Later => Some((0, 2)),
        Fragments::First => Some((0, 4)),
        Fragments::Any => Some((0, 6)),
        Fragments::None => Some((NOT, 6)),
        Fragments::NotLater => Some((NOT, 2)),
    };
    if let Some((operator, bits)) = fragment {
        nlri.push(FRAGMENT);
        Term::write(END | operator, bits, &mut nlri);
    }
    Flow::decode(family, &nlri).map_err(|_| "which has no such flow")
}

/// Appends the condition that a field is of this value, if there is one.
fn exactly(kind: u8, value: Option<u8>, nlri: &mut Vec<u8>) {
    if let Some(value) = value {
        nlri.push(kind);
        Term::write(END | EQUAL, value.into(), nlri);
    }
}

/// Appends a condition on ports, unless it is none.
fn range(kind: u8, ports: PortRange, nlri: &mut Vec<u8>) {
    if ports.is_any() {
        return;
    }
    nlri.push(kind);
    match (ports.low, ports.high) {
        (low, high) if low == high => Term::write(END | EQUAL, low, nlri),
        (0, high) => Term::write(END | LOWER | EQUAL, high, nlri),
        (low, u16::MAX) => Term::write(END | GREATER | EQUAL, low, nlri),
        (low, high) => {
            Term::write(GREATER | EQUAL, low, nlri);
            Term::write(END | AND | LOWER | EQUAL, high, nlri);
        }
    }
}
