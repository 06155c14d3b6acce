//! Parts of random rules that the foreign formats have in common.

use packetloom_classify::Action;
use packetloom_classify::rule::{Addresses, PortRange, Prefix4, Prefix6};
use proptest::prelude::*;

/// Prefixes of a few addresses, that nest and miss each other.
pub(crate) fn addresses() -> impl Strategy<Value = Addresses> {
    let v4 = || {
        (prop::sample::select(vec![0x0a00_0000u32, 0x0a01_0203, 0xc000_0201]), 0..=32u8)
            .prop_map(|(address, len)| Prefix4::new(address, len))
    };
    let v6 = || {
        (prop::sample::select(vec![1u128, 0x2001_0db8 << 96]), 0..=128u8)
            .prop_map(|(address, len)| Prefix6::new(address, len))
    };
    prop_oneof![
        1 => Just(Addresses::Any),
        3 => (v4(), v4()).prop_map(|(a, b)| Addresses::V4(a, b)),
        2 => (v6(), v6()).prop_map(|(a, b)| Addresses::V6(a, b)),
    ]
}

/// Ranges of ports; any, as often as these weights say.
pub(crate) fn ports(any: u32, some: u32) -> impl Strategy<Value = PortRange> {
    let port = || prop::sample::select(vec![0u16, 1, 22, 80, 255, 256, 1023, 1024, 65534, 65535]);
    prop_oneof![
        any => Just(PortRange::ANY),
        some => (port(), port()).prop_map(|(a, b)| PortRange { low: a.min(b), high: a.max(b) }),
    ]
}

pub(crate) fn action() -> impl Strategy<Value = Action> {
    prop::sample::select(vec![Action::Permit, Action::Deny])
}

/// Protocols of every kind.
pub(crate) fn protocol() -> impl Strategy<Value = Option<u8>> {
    prop::sample::select(vec![None, Some(6), Some(6), Some(17), Some(132), Some(1), Some(58), Some(47)])
}
