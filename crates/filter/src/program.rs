//! A filter as it runs: tests with jumps, forward only, so that a packet meets no test whose result cannot matter.

use packetloom_packet::wire::ip::Extension;
use packetloom_packet::{KeyBits, MatchKey4, MatchKey6, protocol};

use crate::frame::Frame;
use crate::parse::MAX_STACK;
use crate::tree::{Base, Comparison, Node, Op, Side, Test};
use crate::{ETHERTYPE_ARP, ETHERTYPE_RARP};

/// Where a program ends.
const MATCH: u32 = u32::MAX;
const NO_MATCH: u32 = u32::MAX - 1;

#[derive(Clone, Debug)]
pub(crate) struct Program {
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    test: Test,
    /// The step after a test that is true, and after one that is false.
    next: [u32; 2],
}

/// The key of a packet, if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyRef<'a> {
    V4(&'a MatchKey4),
    V6(&'a MatchKey6),
    None,
}

/// A packet that tests are made of.
pub(crate) trait Packet {
    fn wire_len(&self) -> u32;
    /// What is not in the key: asked for by few tests.
    fn frame(&self) -> Frame<'_>;
    /// Whether it is in this VLAN, or in any.
    fn has_vlan(&self, id: Option<u16>) -> bool {
        self.frame().has_vlan(id)
    }
}

impl Program {
    /// The program of a tree in post-order.
    pub(crate) fn new(nodes: &[Node]) -> Self {
        // The first test of each node's part of the tree, as a step: tests are steps in their order.
        let (mut firsts, mut tests) = (Vec::with_capacity(nodes.len()), 0);
        for node in nodes {
            firsts.push(match *node {
                Node::Test(_) => {
                    tests += 1;
                    tests - 1
                }
                Node::Not(inner) => firsts[inner as usize],
                Node::And(left, _) | Node::Or(left, _) => firsts[left as usize],
            });
        }
        // From the root down: where to go if a node is true, and if it is false.
        let mut next = vec![[MATCH, NO_MATCH]; nodes.len()];
        let mut steps = Vec::with_capacity(tests as usize);
        for (at, node) in nodes.iter().enumerate().rev() {
            let [yes, no] = next[at];
            match node {
                Node::Test(test) => steps.push(Step { test: test.clone(), next: [yes, no] }),
                Node::Not(inner) => next[*inner as usize] = [no, yes],
                Node::And(left, right) => {
                    next[*right as usize] = [yes, no];
                    next[*left as usize] = [firsts[*right as usize], no];
                }
                Node::Or(left, right) => {
                    next[*right as usize] = [yes, no];
                    next[*left as usize] = [yes, firsts[*right as usize]];
                }
            }
        }
        steps.reverse();
        Self { steps }
    }

    /// Whether a packet matches.
    #[inline]
    pub(crate) fn run(&self, key: KeyRef<'_>, packet: &impl Packet) -> bool {
        let mut at = if self.steps.is_empty() { MATCH } else { 0 };
        while let Some(step) = self.steps.get(at as usize) {
            let is_true = holds(&step.test, key, packet);
            at = step.next[usize::from(!is_true)];
        }
        at == MATCH
    }
}

#[inline]
fn holds(test: &Test, key: KeyRef<'_>, packet: &impl Packet) -> bool {
    match *test {
        Test::Ipv4 => matches!(key, KeyRef::V4(_)),
        Test::Ipv6 => matches!(key, KeyRef::V6(_)),
        Test::Protocol { number, ipv4, ipv6 } => match key {
            KeyRef::V4(key) => ipv4 && key.protocol == number,
            KeyRef::V6(key) => ipv6 && v6_protocol(key, number, packet),
            KeyRef::None => false,
        },
        Test::Net4 { side, value, mask, ip, arp, rarp } => match key {
            KeyRef::V4(key) => ip && side.holds(key.source & mask == value, key.destination & mask == value),
            KeyRef::V6(_) => false,
            KeyRef::None => {
                let frame = packet.frame();
                (arp && frame.has_arp(ETHERTYPE_ARP, side, value, mask))
                    || (rarp && frame.has_arp(ETHERTYPE_RARP, side, value, mask))
            }
        },
        Test::Net6 { side, value, mask } => match key {
            KeyRef::V6(key) => {
                let holds =
                    |address: [u64; 2]| address[0] & mask[0] == value[0] && address[1] & mask[1] == value[1];
                side.holds(holds(key.source), holds(key.destination))
            }
            _ => false,
        },
        Test::Ports { transports, side, low, high } => {
            let holds = |protocol, bits: KeyBits, source, destination| {
                let within = |port| low <= port && port <= high;
                bits.contains(KeyBits::PORTS)
                    && transports.contains(protocol)
                    && side.holds(within(source), within(destination))
            };
            match key {
                KeyRef::V4(key) => holds(key.protocol, key.bits, key.source_port, key.destination_port),
                KeyRef::V6(key) => holds(key.protocol, key.bits, key.source_port, key.destination_port),
                KeyRef::None => false,
            }
        }
        Test::TcpFlags { mask, value, equal } => {
            tcp_flags(key).is_some_and(|flags| (flags & mask == value) == equal)
        }
        Test::Length { low, high } => (low..=high).contains(&packet.wire_len()),
        Test::Ipv4Multicast => matches!(key, KeyRef::V4(key) if key.destination >= 0xe000_0000),
        Test::Ipv6Multicast => matches!(key, KeyRef::V6(key) if key.destination[0] >> 56 == 0xff),
        Test::EtherType(ethertype) => packet.frame().has_ethertype(ethertype),
        Test::Mac { side, address } => has_mac(side, address, packet),
        Test::EtherMulticast => packet.frame().is_ether_multicast(),
        Test::Vlan(id) => packet.has_vlan(id),
        Test::Compare(ref comparison) => compare(comparison, key, packet),
    }
}

#[inline(never)]
fn has_mac(side: Side, address: [u8; 6], packet: &impl Packet) -> bool {
    packet.frame().has_mac(side, address)
}

#[inline]
fn v6_protocol(key: &MatchKey6, number: u8, packet: &impl Packet) -> bool {
    if Extension::is_walked(number) || number == protocol::FRAGMENT {
        return packet.frame().has_first_header(number);
    }
    key.protocol == number
}

#[inline]
fn tcp_flags(key: KeyRef<'_>) -> Option<u8> {
    let (bits, flags) = match key {
        KeyRef::V4(key) => (key.bits, key.tcp_flags),
        KeyRef::V6(key) => (key.bits, key.tcp_flags),
        KeyRef::None => return None,
    };
    bits.contains(KeyBits::TCP_FLAGS).then_some(flags)
}

#[inline(never)]
fn compare(comparison: &Comparison, key: KeyRef<'_>, packet: &impl Packet) -> bool {
    let Comparison { left, relation, right } = comparison;
    let Some(left) = value(left, key, packet) else { return false };
    // Mostly a number.
    let right = match right[..] {
        [Op::Number(number)] => Some(number),
        _ => value(right, key, packet),
    };
    right.is_some_and(|right| relation.holds(left, right))
}

/// Runs a value's program.
fn value(ops: &[Op], key: KeyRef<'_>, packet: &impl Packet) -> Option<u32> {
    // Mostly a field whose place is known.
    if let [Op::Number(offset), Op::Load { base, size }] = *ops {
        return load(base, size, offset, key, packet);
    }
    let mut stack = [0; MAX_STACK];
    let mut len = 0;
    for op in ops {
        // What the parser made fits the stack; anything else is no value.
        let result = match *op {
            Op::Number(number) => number,
            Op::Length => packet.wire_len(),
            Op::TcpFlags => tcp_flags(key)?.into(),
            Op::Icmp { v6, code } => match icmp(v6, code, key) {
                Some(value) => value,
                // A key has both or none; the type alone may have been captured.
                None => {
                    let number = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
                    let base = Base::Transport { number, ipv4: !v6, ipv6: v6 };
                    load(base, 1, code.into(), key, packet)?
                }
            },
            Op::Load { base, size } => {
                len = usize::checked_sub(len, 1)?;
                load(base, size, *stack.get(len)?, key, packet)?
            }
            Op::Negate => {
                len = usize::checked_sub(len, 1)?;
                stack.get(len)?.wrapping_neg()
            }
            Op::Binary(binary) => {
                len = usize::checked_sub(len, 2)?;
                binary.apply(*stack.get(len)?, *stack.get(len + 1)?)?
            }
        };
        *stack.get_mut(len)? = result;
        len += 1;
    }
    (len == 1).then_some(stack[0])
}

fn icmp(v6: bool, code: bool, key: KeyRef<'_>) -> Option<u32> {
    let of = |bits: KeyBits, found, expected, kind, message_code| {
        let has_it = bits.contains(KeyBits::ICMP) && found == expected;
        has_it.then_some(u32::from(if code { message_code } else { kind }))
    };
    match key {
        KeyRef::V4(key) if !v6 => {
            of(key.bits, key.protocol, protocol::ICMP, key.source_port, key.destination_port)
        }
        KeyRef::V6(key) if v6 => {
            of(key.bits, key.protocol, protocol::ICMPV6, key.source_port, key.destination_port)
        }
        _ => None,
    }
}

fn load(base: Base, size: u8, offset: u32, key: KeyRef<'_>, packet: &impl Packet) -> Option<u32> {
    let frame = packet.frame();
    let all = frame.bytes.len();
    let offset_from = |base: usize| base.checked_add(offset as usize);
    match base {
        Base::Frame => frame.field(all, offset_from(0), size),
        Base::EtherType(ethertype) => frame.field(all, offset_from(frame.behind_ethertype(ethertype)?), size),
        Base::Ipv4 => match key {
            KeyRef::V4(_) => frame.field(frame.end, offset_from(frame.network), size),
            _ => None,
        },
        Base::Ipv6 => match key {
            KeyRef::V6(_) => frame.field(frame.end, offset_from(frame.network), size),
            _ => None,
        },
        Base::Transport { number, ipv4, ipv6 } => {
            let (is_in, protocol, bits) = match key {
                KeyRef::V4(key) => (ipv4, key.protocol, key.bits),
                KeyRef::V6(key) => (ipv6, key.protocol, key.bits),
                KeyRef::None => return None,
            };
            if !is_in || protocol != number || bits.contains(KeyBits::LATER_FRAGMENT) {
                return None;
            }
            // As in libpcap, an offset that is negative leads into the IP header.
            let header = (frame.transport - frame.network) as u32;
            let at = frame.network.checked_add(header.wrapping_add(offset) as usize);
            frame.field(frame.end, at, size)
        }
    }
}
