//! How the packets of two rules relate, for formats whose rules match more than one of ours, or come in an order of their own.

use crate::rule::{Action, Addresses, Fragments, Prefix4, Prefix6, Rule};

/// Whether some packet may match both rules.
pub(super) fn overlap(a: &Rule, b: &Rule) -> bool {
    let meet4 = |a: Prefix4, b: Prefix4| a.contains(b.address()) || b.contains(a.address());
    let meet6 = |a: Prefix6, b: Prefix6| a.contains(b.address()) || b.contains(a.address());
    let addresses = match (a.addresses, b.addresses) {
        (Addresses::Any, _) | (_, Addresses::Any) => true,
        (Addresses::V4(a, b), Addresses::V4(c, d)) => meet4(a, c) && meet4(b, d),
        (Addresses::V6(a, b), Addresses::V6(c, d)) => meet6(a, c) && meet6(b, d),
        _ => false,
    };
    fn same<T: PartialEq>(a: Option<T>, b: Option<T>) -> bool {
        a.zip(b).is_none_or(|(a, b)| a == b)
    }
    let flags = a.tcp_flags.zip(b.tcp_flags).is_none_or(|(a, b)| (a.set ^ b.set) & a.mask & b.mask == 0);
    let ranges = [(a.source_ports, b.source_ports), (a.destination_ports, b.destination_ports)];
    addresses
        && flags
        && same(a.protocol, b.protocol)
        && same(a.icmp_type, b.icmp_type)
        && same(a.icmp_code, b.icmp_code)
        && ranges.iter().all(|(a, b)| a.low <= b.high && b.low <= a.high)
        && kinds(a.fragments) & kinds(b.fragments) != 0
}

/// Whole packets, first and later fragments, a bit each.
const fn kinds(fragments: Fragments) -> u8 {
    match fragments {
        Fragments::All => 7,
        Fragments::Any => 6,
        Fragments::None => 1,
        Fragments::First => 2,
        Fragments::Later => 4,
        Fragments::NotLater => 3,
    }
}

/// Whether the rule can match packets that are no fragments.
pub(super) fn matches_whole(rule: &Rule) -> bool {
    kinds(rule.fragments) & kinds(Fragments::None) != 0
}

/// Whether the rule asks for something that stands in a transport header, which later fragments do not have.
pub(super) fn asks_transport(rule: &Rule) -> bool {
    !(rule.source_ports.is_any() && rule.destination_ports.is_any())
        || rule.icmp_type.is_some()
        || rule.icmp_code.is_some()
        || rule.tcp_flags.is_some()
}

/// Whether the rule can match fragments other than the first.
pub(super) fn matches_later(rule: &Rule) -> bool {
    kinds(rule.fragments) & kinds(Fragments::Later) != 0 && !asks_transport(rule)
}

/// Whether every later fragment between the addresses and of the protocol of `rule` gets its action from the rules after it
/// anyway: so it does no harm if `rule` matches those fragments too. Looks only so far: `false` says nothing.
pub(super) fn later_is_alike(rule: &Rule, after: &[Rule], default: Option<Action>) -> bool {
    /// Rules that are looked at: those that belong together stand together.
    const NEAR: usize = 64;
    let (addresses, protocol) = (rule.addresses, rule.protocol);
    let later = Rule { addresses, protocol, fragments: Fragments::Later, ..Rule::any(rule.action) };
    for next in after.iter().take(NEAR).filter(|next| matches_later(next)) {
        if next.action != later.action {
            if overlap(next, &later) {
                return false;
            }
        } else if covers(next, &later) {
            return true;
        }
    }
    after.len() <= NEAR && default == later.action
}

/// Whether a rule that asks for nothing of the transport header matches every later fragment that the other matches.
fn covers(outer: &Rule, inner: &Rule) -> bool {
    let addresses = match (outer.addresses, inner.addresses) {
        (Addresses::Any, _) => true,
        (Addresses::V4(a, b), Addresses::V4(c, d)) => {
            a.len() <= c.len() && a.contains(c.address()) && b.len() <= d.len() && b.contains(d.address())
        }
        (Addresses::V6(a, b), Addresses::V6(c, d)) => {
            a.len() <= c.len() && a.contains(c.address()) && b.len() <= d.len() && b.contains(d.address())
        }
        _ => false,
    };
    addresses && (outer.protocol.is_none() || outer.protocol == inner.protocol)
}
