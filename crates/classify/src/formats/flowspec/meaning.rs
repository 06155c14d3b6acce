//! The packets that a flow matches (RFC 8955 section 4.2.2, RFC 8956 section 3).

use packetloom_packet::protocol;

use super::super::builder::Fault;
use super::super::region::{Ends, Kinds, Region};
use super::super::set::Set;
use super::nlri::{
    Component, DESTINATION, DESTINATION_PORT, DSCP, FLOW_LABEL, FRAGMENT, Family, Flow, ICMP_CODE, ICMP_TYPE,
    PACKET_LENGTH, PORT, PROTOCOL, Pattern, SOURCE, SOURCE_PORT, TCP_FLAGS,
};
use super::operators::Terms;

/// The packets of a flow: those of one region or of two.
pub(super) fn regions(flow: &Flow) -> Result<Vec<Region>, Fault> {
    let every = match flow.family {
        Family::V4 => Ends::ALL_V4,
        Family::V6 => Ends::ALL_V6,
    };
    let mut region = Region::of(every);
    let (mut port, mut types, mut codes) = (None, None, None);
    for (kind, component) in flow.components() {
        region = match (kind, component) {
            (DESTINATION | SOURCE, Component::Pattern(pattern)) => {
                region.ends(&ends(flow.family, kind == SOURCE, pattern)?)
            }
            (PROTOCOL, Component::Terms(terms)) => region.protocols(&terms.numbers()),
            (PORT, Component::Terms(terms)) => {
                port = Some(terms.numbers());
                with_ports(region)
            }
            (DESTINATION_PORT, Component::Terms(terms)) => {
                with_ports(region).destination_ports(&terms.numbers())
            }
            (SOURCE_PORT, Component::Terms(terms)) => with_ports(region).source_ports(&terms.numbers()),
            (ICMP_TYPE, Component::Terms(terms)) => {
                types = Some(terms.numbers());
                region
            }
            (ICMP_CODE, Component::Terms(terms)) => {
                codes = Some(terms.numbers());
                region
            }
            (TCP_FLAGS, Component::Terms(terms)) => region.flags(&flags(terms)?),
            (FRAGMENT, Component::Terms(terms)) => region.kinds(kinds(flow.family, terms)?),
            (kind, _) => return Err(Fault::no_equal(name(kind))),
        };
    }
    if types.is_some() || codes.is_some() {
        let number = match flow.family {
            Family::V4 => protocol::ICMP,
            Family::V6 => protocol::ICMPV6,
        };
        let both = types_and_codes(&types.unwrap_or(Set::ALL), &codes.unwrap_or(Set::ALL));
        region = region.icmp(&both).protocols(&Set::one(number));
    }
    Ok(match port {
        None => vec![region],
        // Either of the two ports.
        Some(ports) => vec![region.clone().destination_ports(&ports), region.source_ports(&ports)],
    })
}

/// The packets that a flow matches at most, by its addresses and its protocol: for flows with components that no rule of ours
/// says.
pub(super) fn reach(flow: &Flow) -> Region {
    let region = Region::of(match flow.family {
        Family::V4 => Ends::ALL_V4,
        Family::V6 => Ends::ALL_V6,
    });
    flow.components().fold(region, |region, (kind, component)| match (kind, component) {
        (DESTINATION | SOURCE, Component::Pattern(pattern)) => {
            match ends(flow.family, kind == SOURCE, pattern) {
                Ok(ends) => region.ends(&ends),
                Err(_) => region,
            }
        }
        (PROTOCOL, Component::Terms(terms)) => region.protocols(&terms.numbers()),
        _ => region,
    })
}

/// Leaves packets of the protocols whose ports are looked at.
fn with_ports(region: Region) -> Region {
    region.protocols(&Set::of([protocol::TCP, protocol::UDP].map(|number| (number, number))))
}

/// The name of a component that no rule of ours says.
fn name(kind: u8) -> &'static str {
    match kind {
        PACKET_LENGTH => "packet-length",
        DSCP => "dscp",
        FLOW_LABEL => "flow-label",
        _ => "a component",
    }
}

fn ends(family: Family, is_source: bool, pattern: Pattern) -> Result<Ends, Fault> {
    if pattern.offset != 0 {
        return Err(Fault::Unsupported("an address pattern that begins at an offset".into()));
    }
    let rest = u128::MAX.checked_shr(pattern.length.into()).unwrap_or(0);
    let (low, high) = (pattern.address, pattern.address | rest);
    Ok(match (family, is_source) {
        (Family::V4, true) => Ends::V4(Set::range((low >> 96) as u32, (high >> 96) as u32), Set::ALL),
        (Family::V4, false) => Ends::V4(Set::ALL, Set::range((low >> 96) as u32, (high >> 96) as u32)),
        (Family::V6, true) => Ends::V6(Set::range(low, high), Set::ALL),
        (Family::V6, false) => Ends::V6(Set::ALL, Set::range(low, high)),
    })
}

/// Each of these types with each of these codes.
fn types_and_codes(types: &Set<u8>, codes: &Set<u8>) -> Set<u16> {
    let join = |icmp_type, code| u16::from_be_bytes([icmp_type, code]);
    let both = types.members().map(|icmp_type| {
        codes.ranges().map(move |(low, high)| (join(icmp_type, low), join(icmp_type, high)))
    });
    Set::of(both.flatten())
}

/// The values of the byte of flags that the list holds for.
fn flags(terms: Terms<'_>) -> Result<Set<u8>, Fault> {
    /// The bits between the data offset, which counts as 0, and the byte of flags.
    const RESERVED: u64 = 0x0f00;
    if terms.iter().any(|term| term.value & RESERVED != 0) {
        return Err(Fault::Unsupported("tcp-flags beyond the eight from CWR to FIN".into()));
    }
    let values = (0..=u8::MAX).filter(|&flags| terms.holds(flags.into(), u64::MAX));
    Ok(Set::of(values.map(|flags| (flags, flags))))
}

/// Bits of fragmentation (RFC 8955 section 4.2.2.12).
const DONT_FRAGMENT: u64 = 1;
const LATER: u64 = 2;
const FIRST: u64 = 4;
const LAST: u64 = 8;

/// The kinds of packets that the list holds for, which must not depend on what our rules do not look at: whether a packet may
/// be fragmented, and whether a fragment is the last.
fn kinds(family: Family, terms: Terms<'_>) -> Result<Kinds, Fault> {
    // A bit that means nothing is not looked at: the one against fragmentation does not exist in IPv6.
    let (looked_at, may_be_fragmented) = match family {
        Family::V4 => (0x0f, &[0, DONT_FRAGMENT][..]),
        Family::V6 => (0x0e, &[0][..]),
    };
    let mut kinds = Kinds::ALL;
    for (kind, ways) in
        [(Kinds::WHOLE, &[0][..]), (Kinds::FIRST, &[FIRST]), (Kinds::LATER, &[LATER, LATER | LAST])]
    {
        let mut each = ways.iter().flat_map(|way| may_be_fragmented.iter().map(move |bit| way | bit));
        let holds = each.clone().any(|bits| terms.holds(bits, looked_at));
        if holds != each.all(|bits| terms.holds(bits, looked_at)) {
            let message =
                "fragment with a condition on the last fragment or on the bit against fragmentation";
            return Err(Fault::Unsupported(message.into()));
        }
        if !holds {
            kinds = kinds.intersection(kind.complement());
        }
    }
    Ok(kinds)
}
