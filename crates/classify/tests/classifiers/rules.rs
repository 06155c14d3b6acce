//! Rules to make sets of.

use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Rule, RuleSet};

use crate::keys::Random;

pub(crate) fn v4(source: u32, source_len: u8, destination: u32, destination_len: u8) -> Rule {
    let addresses =
        Addresses::V4(Prefix4::new(source, source_len), Prefix4::new(destination, destination_len));
    Rule { addresses, ..Rule::any(Some(Action::Permit)) }
}

pub(crate) fn v6(source: u128, source_len: u8, destination: u128, destination_len: u8) -> Rule {
    let addresses =
        Addresses::V6(Prefix6::new(source, source_len), Prefix6::new(destination, destination_len));
    Rule { addresses, ..Rule::any(Some(Action::Permit)) }
}

/// Rules of both families with all kinds of conditions, few of them alike.
pub(crate) fn mixed(count: usize, random: &mut Random) -> RuleSet {
    let one = |random: &mut Random| {
        let [source, destination] = [(); 2].map(|()| 0x0a00_0000 | random.next() as u32 >> 12);
        let [source_len, destination_len] = [(); 2].map(|()| random.pick(&[0, 8, 15, 16, 20, 24, 27, 32]));
        let low = random.next() as u16;
        let ports =
            random.pick(&[PortRange::ANY, PortRange::exactly(low), PortRange { low, high: low | 0x0fff }]);
        let rule = match random.below(4) {
            0 => v6((source as u128) << 96, source_len * 2, (destination as u128) << 96, destination_len),
            _ => v4(source, source_len, destination, destination_len),
        };
        match random.below(8) {
            0 => Rule { icmp_type: Some(random.pick(&[0, 3, 8])), protocol: Some(1), ..rule },
            1 => Rule { tcp_flags: Some(TcpFlagMatch { set: 2, mask: 0x12 }), protocol: Some(6), ..rule },
            2 => Rule { fragments: Fragments::Later, ..rule },
            3 => Rule { fragments: Fragments::First, source_ports: ports, ..rule },
            4 => Rule { fragments: Fragments::None, destination_ports: ports, protocol: Some(17), ..rule },
            5 => Rule { fragments: Fragments::Any, ..rule },
            _ => Rule { destination_ports: ports, protocol: random.pick(&[None, Some(6), Some(17)]), ..rule },
        }
    };
    RuleSet { rules: (0..count).map(|_| one(random)).collect() }
}
