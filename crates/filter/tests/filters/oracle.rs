//! A slow evaluator of the syntax tree on the bytes of a frame, with a header walk of its own.

use packetloom_filter::tree::{Base, Comparison, Node, Op, Test};
use packetloom_packet::LinkType;

use crate::frames::RawFrame;

/// What the oracle saw in a frame.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    bytes: Vec<u8>,
    wire_len: u32,
    is_ethernet: bool,
    /// EtherTypes with where what they announce begins, and VLAN ids.
    types: Vec<(u16, usize)>,
    vlans: Vec<u16>,
    pub(crate) ip: Option<Ip>,
}

/// An IP packet.
#[derive(Debug, Default)]
pub(crate) struct Ip {
    pub(crate) version: u8,
    source: Vec<u8>,
    destination: Vec<u8>,
    pub(crate) protocol: u8,
    /// The first header, and the one behind it if that is a fragment header.
    headers: Vec<u8>,
    is_later: bool,
    ports: Option<(u16, u16)>,
    pub(crate) flags: Option<u8>,
    icmp: Option<(u8, u8)>,
    pub(crate) network: usize,
    transport: usize,
    pub(crate) end: usize,
    /// Whether the headers are whole and agree with each other.
    pub(crate) is_sound: bool,
}

/// Looks at a frame. None where it is framed in a way that the oracle does not know.
pub(crate) fn see(frame: &RawFrame) -> Option<Seen> {
    let bytes = &frame.bytes;
    let mut seen = Seen {
        bytes: bytes.clone(),
        wire_len: frame.wire_len,
        is_ethernet: frame.link == LinkType::ETHERNET && bytes.len() >= 14,
        ..Seen::default()
    };
    let (type_at, header) = match frame.link {
        LinkType::ETHERNET => (12, 14),
        LinkType::SLL => (14, 16),
        LinkType::SLL2 => (0, 20),
        LinkType::RAW => {
            let is_ip = matches!(bytes.first().map(|byte| byte >> 4), Some(4 | 6));
            seen.ip = if is_ip { ip(bytes, 0, frame.wire_len, bytes[0] >> 4) } else { None };
            return Some(seen);
        }
        _ => return None,
    };
    if bytes.len() < header {
        return Some(seen);
    }
    let (mut ethertype, mut at) = (be(bytes, type_at, 2)? as u16, header);
    seen.types.push((ethertype, at));
    while [0x8100, 0x88a8, 0x9100, 0x9200].contains(&ethertype) {
        let Some(tag) = be(bytes, at, 4) else { return Some(seen) };
        seen.vlans.push((tag >> 16) as u16 & 0xfff);
        ethertype = tag as u16;
        at += 4;
        seen.types.push((ethertype, at));
    }
    match ethertype {
        0x0800 | 0x86dd => {
            let said = if ethertype == 0x0800 { 4 } else { 6 };
            // The packet itself says which version it is, unless that is neither.
            let version = match bytes.get(at).map(|byte| byte >> 4) {
                Some(version @ (4 | 6)) => version,
                _ => said,
            };
            seen.ip = ip(bytes, at, frame.wire_len, version);
            // A version that contradicts the EtherType is believed only where all headers are whole.
            if version != said && seen.ip.as_ref().is_none_or(|ip| !ip.is_sound) {
                seen.ip = ip(bytes, at, frame.wire_len, said).map(|ip| cut(bytes, ip));
            }
            Some(seen)
        }
        0x0806 | 0x8035 | 0x88cc | 0x9000 => Some(seen),
        _ => None,
    }
}

/// What is left of a packet whose headers are not whole: addresses and the first protocol.
fn cut(bytes: &[u8], ip: Ip) -> Ip {
    let header = if ip.version == 4 { usize::from(bytes[ip.network] & 0xf) * 4 } else { 40 };
    let protocol = ip.headers[0];
    Ip {
        protocol,
        ports: None,
        flags: None,
        icmp: None,
        is_later: ip.version == 4 && ip.is_later,
        transport: ip.network + header,
        end: bytes.len(),
        is_sound: false,
        ..ip
    }
}

fn ip(bytes: &[u8], network: usize, wire_len: u32, version: u8) -> Option<Ip> {
    let packet = &bytes[network..];
    let on_wire = (wire_len as usize).saturating_sub(network);
    let fixed = if version == 4 { 20 } else { 40 };
    if packet.len() < fixed {
        return None;
    }
    let mut ip = Ip { version, network, is_sound: packet[0] >> 4 == version, ..Ip::default() };
    let mut at;
    let len;
    if version == 4 {
        at = usize::from(packet[0] & 0xf) * 4;
        len = match be(packet, 2, 2)? as usize {
            0 => on_wire.max(at),
            len => len,
        };
        ip.source = packet[12..16].to_vec();
        ip.destination = packet[16..20].to_vec();
        ip.protocol = packet[9];
        ip.headers = vec![packet[9]];
        ip.is_later = be(packet, 6, 2)? & 0x1fff != 0;
        ip.is_sound &= at >= 20 && len >= at && packet.len() >= at;
    } else {
        at = 40;
        len = match be(packet, 4, 2)? as usize {
            0 => on_wire.max(40),
            len => len + 40,
        };
        ip.source = packet[8..24].to_vec();
        ip.destination = packet[24..40].to_vec();
        ip.protocol = packet[6];
        ip.headers = vec![packet[6]];
        let inside = &packet[..packet.len().min(len)];
        if packet[6] == 44 && inside.len() > 40 {
            ip.headers.push(packet[40]);
        }
        loop {
            let is_fragment = ip.protocol == 44;
            if !is_fragment && ![0, 43, 51, 60, 135, 139, 140].contains(&ip.protocol) {
                break;
            }
            if inside.len() < at + 8 {
                ip.is_sound = false;
                break;
            }
            let size = match ip.protocol {
                44 => 8,
                51 => (usize::from(inside[at + 1]) + 2) * 4,
                _ => (usize::from(inside[at + 1]) + 1) * 8,
            };
            ip.protocol = inside[at];
            if is_fragment && be(inside, at + 2, 2)? >> 3 != 0 {
                ip.is_later = true;
                at += size;
                break;
            }
            at += size;
            if at > inside.len() {
                ip.is_sound = false;
                break;
            }
        }
    }
    ip.transport = network + at;
    ip.end = (network + len).min(bytes.len());
    let body = bytes.get(ip.transport..ip.end).unwrap_or_default();
    if ip.is_sound && !ip.is_later {
        match ip.protocol {
            6 | 17 | 132 => match be(body, 0, 4) {
                Some(both) => {
                    ip.ports = Some(((both >> 16) as u16, both as u16));
                    ip.flags = body.get(13).copied().filter(|_| ip.protocol == 6);
                }
                None => ip.is_sound = false,
            },
            1 | 58 if body.len() > 1 => ip.icmp = Some((body[0], body[1])),
            _ => {}
        }
    }
    Some(if ip.is_sound { ip } else { cut(bytes, ip) })
}

fn be(bytes: &[u8], at: usize, size: usize) -> Option<u32> {
    let mut value = 0;
    for byte in bytes.get(at..at.checked_add(size)?)? {
        value = value << 8 | u32::from(*byte);
    }
    Some(value)
}

/// Whether the node of a tree holds.
pub(crate) fn holds(tree: &[Node], at: usize, seen: &Seen) -> bool {
    match &tree[at] {
        Node::Test(test) => holds_test(test, seen),
        Node::Not(inner) => !holds(tree, *inner as usize, seen),
        Node::And(a, b) => holds(tree, *a as usize, seen) && holds(tree, *b as usize, seen),
        Node::Or(a, b) => holds(tree, *a as usize, seen) || holds(tree, *b as usize, seen),
    }
}

/// Whether a filter's tree holds.
pub(crate) fn matches(tree: &[Node], seen: &Seen) -> bool {
    tree.is_empty() || holds(tree, tree.len() - 1, seen)
}

fn holds_test(test: &Test, seen: &Seen) -> bool {
    let ip = seen.ip.as_ref();
    let version = ip.map_or(0, |ip| ip.version);
    match test {
        Test::Ipv4 => version == 4,
        Test::Ipv6 => version == 6,
        Test::Protocol { number, ipv4, ipv6 } => ip.is_some_and(|ip| {
            let is_extension = [0, 43, 44, 51, 60, 135, 139, 140].contains(number);
            match ip.version {
                4 => *ipv4 && ip.protocol == *number,
                _ if is_extension => *ipv6 && ip.headers.contains(number),
                _ => *ipv6 && ip.protocol == *number,
            }
        }),
        Test::EtherType(number) => seen.types.iter().any(|(other, _)| other == number),
        Test::Net4 { side, value, mask, ip: in_ip, arp, rarp } => {
            let under = |address: Option<u32>| address.is_some_and(|address| address & mask == *value);
            let in_message = |number| {
                let at = seen.types.iter().find(|(other, _)| *other == number).map(|&(_, at)| at);
                at.is_some_and(|at| {
                    side.holds(under(be(&seen.bytes, at + 14, 4)), under(be(&seen.bytes, at + 24, 4)))
                })
            };
            let in_packet = ip.is_some_and(|ip| {
                ip.version == 4 && side.holds(under(be(&ip.source, 0, 4)), under(be(&ip.destination, 0, 4)))
            });
            (*in_ip && in_packet) || (*arp && in_message(0x0806)) || (*rarp && in_message(0x8035))
        }
        Test::Net6 { side, value, mask } => ip.is_some_and(|ip| {
            let join = |halves: &[u64; 2]| u128::from(halves[0]) << 64 | u128::from(halves[1]);
            let under = |address: &[u8]| {
                let address = address.iter().fold(0_u128, |value, &byte| value << 8 | u128::from(byte));
                address & join(mask) == join(value)
            };
            ip.version == 6 && side.holds(under(&ip.source), under(&ip.destination))
        }),
        Test::Ports { transports, side, low, high } => ip.is_some_and(|ip| {
            let is_in = |port| (*low..=*high).contains(&port);
            transports.contains(ip.protocol)
                && ip.ports.is_some_and(|(source, destination)| side.holds(is_in(source), is_in(destination)))
        }),
        Test::Mac { side, address } => {
            seen.is_ethernet && side.holds(seen.bytes[6..12] == *address, seen.bytes[..6] == *address)
        }
        Test::EtherMulticast => seen.is_ethernet && seen.bytes[0] & 1 == 1,
        Test::Ipv4Multicast => ip.is_some_and(|ip| ip.version == 4 && ip.destination[0] >= 224),
        Test::Ipv6Multicast => ip.is_some_and(|ip| ip.version == 6 && ip.destination[0] == 255),
        Test::Vlan(id) => seen.vlans.iter().any(|vlan| id.is_none_or(|id| id == *vlan)),
        Test::Length { low, high } => *low <= seen.wire_len && seen.wire_len <= *high,
        Test::TcpFlags { mask, value, equal } => {
            ip.and_then(|ip| ip.flags).is_some_and(|flags| (flags & mask == *value) == *equal)
        }
        Test::Compare(comparison) => {
            let Comparison { left, relation, right } = &**comparison;
            match (value(left, seen), value(right, seen)) {
                (Some(left), Some(right)) => relation.holds(left, right),
                _ => false,
            }
        }
    }
}

/// Where the right operand of a binary operator begins in what stands before it: the shortest end that is a value by itself.
pub(crate) fn right_operand(before: &[Op]) -> usize {
    let mut needed = 1_usize;
    let mut at = before.len();
    while needed > 0 {
        at -= 1;
        match before[at] {
            Op::Binary(_) => needed += 1,
            Op::Load { .. } | Op::Negate => {}
            _ => needed -= 1,
        }
    }
    at
}

/// The value of a program, if it has one.
pub(crate) fn value(ops: &[Op], seen: &Seen) -> Option<u32> {
    let (last, before) = ops.split_last().expect("a value has an operation");
    match *last {
        Op::Number(number) => Some(number),
        Op::Length => Some(seen.wire_len),
        Op::TcpFlags => seen.ip.as_ref()?.flags.map(u32::from),
        Op::Icmp { v6, code } => {
            let number = if v6 { 58 } else { 1 };
            load(Base::Transport { number, ipv4: !v6, ipv6: v6 }, 1, code.into(), seen)
        }
        Op::Negate => value(before, seen).map(u32::wrapping_neg),
        Op::Binary(binary) => {
            let at = right_operand(before);
            binary.apply(value(&before[..at], seen)?, value(&before[at..], seen)?)
        }
        Op::Load { base, size } => load(base, size, value(before, seen)?, seen),
    }
}

fn load(base: Base, size: u8, offset: u32, seen: &Seen) -> Option<u32> {
    let size = usize::from(size);
    let plain = |base: usize, end: usize| be(&seen.bytes[..end], base.checked_add(offset as usize)?, size);
    let ip = seen.ip.as_ref();
    match base {
        Base::Frame => plain(0, seen.bytes.len()),
        Base::EtherType(number) => {
            let (_, at) = seen.types.iter().find(|(other, _)| *other == number)?;
            plain(*at, seen.bytes.len())
        }
        Base::Ipv4 => ip.filter(|ip| ip.version == 4).and_then(|ip| plain(ip.network, ip.end)),
        Base::Ipv6 => ip.filter(|ip| ip.version == 6).and_then(|ip| plain(ip.network, ip.end)),
        Base::Transport { number, ipv4, ipv6 } => {
            let ip = ip?;
            let is_in = if ip.version == 4 { ipv4 } else { ipv6 };
            if !is_in || ip.protocol != number || ip.is_later {
                return None;
            }
            let at = ((ip.transport - ip.network) as u32).wrapping_add(offset) as usize;
            be(&seen.bytes[..ip.end], ip.network.checked_add(at)?, size)
        }
    }
}
