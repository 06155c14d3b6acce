//! Flows of rules, as long as the order of flows lets the same rule decide.

use std::collections::HashSet;

use packetloom_packet::protocol::{ICMP, ICMPV6, SCTP};

use super::super::writing::{Writing, decision, protocols};
use super::super::{WriteError, meet};
use super::nlri::{
    DESTINATION, DESTINATION_PORT, FRAGMENT, Family, Flow, ICMP_CODE, ICMP_TYPE, PROTOCOL, Pattern, SOURCE,
    SOURCE_PORT, TCP_FLAGS,
};
use super::operators::{AND, END, EQUAL, GREATER, LOWER, MATCH, NOT, Term};
use crate::rule::{Action, Addresses, Fragments, PortRange, Rule};

/// Comparisons of rules whose order must be the same at most; beyond, rules count as out of order.
const MAX_COMPARISONS: usize = 1 << 28;

/// A flow, and the rule that it is of.
pub(super) struct Written<'a> {
    pub(super) flow: Flow,
    pub(super) rule: &'a Rule,
    index: usize,
    /// Its place among all flows.
    rank: usize,
}

/// The rule for all packets that no other rule matches.
pub(super) fn rest(writing: &Writing<'_>) -> Rule {
    Rule::any(Some(writing.options.closing()))
}

/// The flows of rules, in order of the rules, and those of `rest`, the rule after them for all other packets, which is never left
/// out. Routers forward what no flow matches, so to permit it needs no flow; but a file without a flow would say nothing.
pub(super) fn flows<'a>(
    rules: &'a [Rule],
    rest: &'a Rule,
    writing: &mut Writing<'_>,
    need_action: bool,
) -> Result<Vec<Written<'a>>, WriteError> {
    let mut flows = Vec::new();
    let mut seen = HashSet::new();
    for (index, rule) in rules.iter().enumerate() {
        let new = match rule.action {
            None if need_action => Err("where a flow without an action is accepted"),
            Some(Action::Reflect) => decision(rule).map(|_| Vec::new()),
            _ => encode(rule),
        };
        match new {
            Err(reason) => writing.inexpressible(index, rule, reason)?,
            // A flow that is there already decides over all packets of the same one.
            Ok(new) => {
                flows.extend(new.into_iter().filter(|flow| seen.insert(flow.clone())).map(|flow| Written {
                    flow,
                    rule,
                    index,
                    rank: 0,
                }))
            }
        }
    }
    let mut order: Vec<usize> = (0..flows.len()).collect();
    order.sort_by(|a, b| flows[*a].flow.order(&flows[*b].flow));
    for (rank, at) in order.into_iter().enumerate() {
        flows[at].rank = rank;
    }
    let mut kept = in_order(flows, writing)?;
    // The flows of `rest` ask for nothing but two prefixes of length 0, so they stand behind all others.
    if rest.action == Some(Action::Deny) || kept.is_empty() {
        let closing = encode(rest).unwrap_or_default();
        let new: Vec<Flow> =
            closing.into_iter().filter(|flow| kept.iter().all(|written| written.flow != *flow)).collect();
        kept.extend(new.into_iter().map(|flow| Written {
            flow,
            rule: rest,
            index: rules.len(),
            rank: usize::MAX,
        }));
    }
    Ok(kept)
}

/// The flows but for rules that would overtake one before them which does something else with some packet.
fn in_order<'a>(flows: Vec<Written<'a>>, writing: &mut Writing<'_>) -> Result<Vec<Written<'a>>, WriteError> {
    const ACTIONS: [Option<Action>; 3] = [None, Some(Action::Permit), Some(Action::Deny)];
    // By action: only those with another are compared.
    let mut kept = ACTIONS.map(|action| (action, Vec::new()));
    let mut comparisons = 0usize;
    for rule in flows.chunk_by(|a, b| a.index == b.index) {
        let overtakes = rule.iter().any(|new| {
            let others = kept.iter().filter(|(action, _)| *action != new.rule.action);
            others.flat_map(|(_, flows)| flows).any(|before: &&Written<'_>| {
                comparisons += 1;
                comparisons > MAX_COMPARISONS
                    || before.rank > new.rank
                        && before.flow.family == new.flow.family
                        && meet::overlap(before.rule, new.rule)
            })
        });
        if overtakes {
            let reason = "which puts flows in an order of its own, here before a rule with another action";
            writing.inexpressible(rule[0].index, rule[0].rule, reason)?;
        } else if let Some((_, flows)) = kept.iter_mut().find(|(action, _)| *action == rule[0].rule.action) {
            flows.extend(rule);
        }
    }
    let is_kept: HashSet<usize> = kept.iter().flat_map(|(_, flows)| flows).map(|flow| flow.rank).collect();
    Ok(flows.into_iter().filter(|flow| is_kept.contains(&flow.rank)).collect())
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

/// The flows of a rule, of each family and protocol that it needs one for, or what there are no words for.
fn encode(rule: &Rule) -> Result<Vec<Flow>, &'static str> {
    let protocols = protocols(rule)?;
    let families = Family::ALL.into_iter().filter_map(|family| Some((family, prefixes(rule, family)?)));
    let each =
        families.flat_map(|(family, ends)| protocols.iter().map(move |protocol| (family, ends, *protocol)));
    each.map(|(family, ends, protocol)| flow(&Rule { protocol, ..rule.clone() }, family, ends)).collect()
}

/// The flow of a rule with the protocol that its conditions need. It has both prefixes, so that more specific ones go first.
fn flow(rule: &Rule, family: Family, [destination, source]: [Pattern; 2]) -> Result<Flow, &'static str> {
    let asks_ports = !(rule.source_ports.is_any() && rule.destination_ports.is_any());
    let asks_icmp = rule.icmp_type.is_some() || rule.icmp_code.is_some();
    if asks_ports && rule.protocol == Some(SCTP) {
        return Err("where ports belong to tcp or udp");
    }
    let icmp = if family == Family::V4 { ICMP } else { ICMPV6 };
    if asks_icmp && rule.protocol != Some(icmp) {
        return Err("where types and codes belong to icmp with IPv4 and icmpv6 with IPv6");
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
