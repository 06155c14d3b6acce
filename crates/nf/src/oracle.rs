//! The oracle's own parser: written from the header formats once more, as a plain walk over bytes, and sharing no code
//! with the views of the packet crate, so that both cannot be wrong in the same way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_packet::{Fragment, LinkType, PacketRecord, Reject, Timestamp};

/// A packet as the oracle sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OraclePacket {
    /// Nanoseconds since the epoch.
    pub nanos: u64,
    /// What its headers said, or why they could not be read.
    pub ip: Result<OracleIp, Reject>,
}

/// The outermost IP header and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OracleIp {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The differentiated services code point.
    pub dscp: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source and destination port, of TCP, UDP and SCTP.
    pub ports: Option<(u16, u16)>,
    /// Type and code, of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
    /// TCP flags.
    pub tcp_flags: Option<u8>,
    /// First fragment of several.
    pub first_fragment: bool,
    /// Fragment other than the first.
    pub later_fragment: bool,
    /// Identifier of a query, or what stands in its place in a message of another type, of ICMP and ICMPv6.
    pub identifier: Option<u16>,
    /// The packet that an ICMP or ICMPv6 error quotes, where it can be read; it quotes none itself.
    pub quoted: Option<Box<OracleIp>>,
    /// IP bytes.
    pub bytes: u32,
}

/// Bytes that are taken from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        if self.0.len() < count {
            return None;
        }
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        Some(taken)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) * 256 + u16::from(bytes[at + 1])
}

impl OraclePacket {
    /// Reads a frame's headers.
    pub fn new(nanos: u64, link: LinkType, frame: &[u8], wire_len: u32) -> Self {
        let ip = layer2(link.0, frame)
            .and_then(|before| layer3(&frame[before..], wire_len as usize, before, true));
        Self { nanos, ip }
    }

    /// The packet as a log names it.
    pub fn record(&self) -> Option<PacketRecord> {
        let ip = self.ip.as_ref().ok()?;
        let fragment = match (ip.first_fragment, ip.later_fragment) {
            (true, _) => Some(Fragment::First),
            (_, true) => Some(Fragment::Later),
            _ => None,
        };
        Some(PacketRecord {
            time: Timestamp::from_nanos(self.nanos),
            source: ip.source,
            destination: ip.destination,
            protocol: ip.protocol,
            ports: ip.ports,
            icmp: ip.icmp,
            tcp_flags: ip.tcp_flags,
            fragment,
            bytes: ip.bytes,
        })
    }
}

/// The number of bytes before the IP header.
fn layer2(link: u16, frame: &[u8]) -> Result<usize, Reject> {
    let cut = Reject::LinkTruncated;
    let mut bytes = Bytes(frame);
    let mut ethertype = match link {
        1 => u16_at(bytes.take(14).ok_or(cut)?, 12),
        113 => u16_at(bytes.take(16).ok_or(cut)?, 14),
        276 => u16_at(bytes.take(20).ok_or(cut)?, 0),
        0 | 108 => {
            let family = bytes.take(4).ok_or(cut)?;
            let swapped = link == 0 && family[2] == 0 && family[3] == 0;
            let small = if swapped {
                u32::from(family[0]) + 256 * u32::from(family[1])
            } else if family[0] == 0 && family[1] == 0 {
                u32::from(u16_at(family, 2))
            } else {
                u32::MAX
            };
            return if [2, 10, 24, 28, 30].contains(&small) { Ok(4) } else { Err(Reject::NotIp) };
        }
        12 | 14 | 101 | 228 | 229 => return Ok(0),
        65535 => return Err(Reject::UndefinedInterface),
        _ => return Err(Reject::LinkType),
    };
    while [0x8100, 0x88a8, 0x9100, 0x9200].contains(&ethertype) {
        ethertype = u16_at(bytes.take(4).ok_or(cut)?, 2);
    }
    match ethertype {
        0x0800 | 0x86dd => {}
        0x8847 | 0x8848 => {
            while bytes.take(4).ok_or(cut)?[2] % 2 == 0 {}
            let nibble = bytes.0.first().ok_or(cut)? / 16;
            if nibble != 4 && nibble != 6 {
                return Err(Reject::NotIp);
            }
        }
        0x8864 => {
            let ppp = u16_at(bytes.take(8).ok_or(cut)?, 6);
            if ppp != 0x0021 && ppp != 0x0057 {
                return Err(Reject::NotIp);
            }
        }
        _ => return Err(Reject::NotIp),
    }
    Ok(frame.len() - bytes.0.len())
}

/// `quotes` where a packet that is quoted is wanted, too.
fn layer3(packet: &[u8], wire_len: usize, before: usize, quotes: bool) -> Result<OracleIp, Reject> {
    let on_wire = wire_len.saturating_sub(before);
    match packet.first() {
        None => Err(Reject::LinkTruncated),
        Some(first) if first / 16 == 4 => version4(packet, on_wire, quotes),
        Some(first) if first / 16 == 6 => version6(packet, on_wire, quotes),
        Some(_) => Err(Reject::IpMalformed),
    }
}

fn version4(packet: &[u8], on_wire: usize, quotes: bool) -> Result<OracleIp, Reject> {
    let mut bytes = Bytes(packet);
    let header = bytes.take(20).ok_or(Reject::IpTruncated)?;
    let header_len = usize::from(header[0] % 16) * 4;
    if header_len < 20 {
        return Err(Reject::IpMalformed);
    }
    bytes.take(header_len - 20).ok_or(Reject::IpTruncated)?;
    let mut total = usize::from(u16_at(header, 2));
    if total == 0 {
        total = if on_wire > header_len { on_wire } else { header_len };
    }
    if total < header_len {
        return Err(Reject::IpMalformed);
    }
    let address =
        |at: usize| IpAddr::V4(Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]));
    let fragment = u16_at(header, 6);
    let later_fragment = fragment & 0x1fff > 0;
    let mut ip = OracleIp {
        source: address(12),
        destination: address(16),
        dscp: header[1] / 4,
        protocol: header[9],
        ports: None,
        icmp: None,
        tcp_flags: None,
        first_fragment: !later_fragment && fragment & 0x2000 != 0,
        later_fragment,
        identifier: None,
        quoted: None,
        bytes: total as u32,
    };
    let inside = total - header_len;
    layer4(&mut ip, if bytes.0.len() > inside { &bytes.0[..inside] } else { bytes.0 }, quotes)?;
    Ok(ip)
}

fn version6(packet: &[u8], on_wire: usize, quotes: bool) -> Result<OracleIp, Reject> {
    let mut bytes = Bytes(packet);
    let header = bytes.take(40).ok_or(Reject::IpTruncated)?;
    let mut total = 40 + usize::from(u16_at(header, 4));
    if total == 40 && on_wire > 40 {
        total = on_wire;
    }
    if bytes.0.len() > total - 40 {
        bytes.0 = &bytes.0[..total - 40];
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let mut ip = OracleIp {
        source: address(8),
        destination: address(24),
        // The traffic class begins in the middle of the first byte.
        dscp: header[0] % 16 * 4 + header[1] / 64,
        protocol: header[6],
        ports: None,
        icmp: None,
        tcp_flags: None,
        first_fragment: false,
        later_fragment: false,
        identifier: None,
        quoted: None,
        bytes: total as u32,
    };
    loop {
        let len = |units: u8| match ip.protocol {
            51 => Some((usize::from(units) + 2) * 4),
            0 | 43 | 60 | 135 | 139 | 140 => Some((usize::from(units) + 1) * 8),
            44 => Some(8),
            _ => None,
        };
        if len(0).is_none() {
            break;
        }
        let start = bytes.0.get(..8).ok_or(Reject::ExtensionChain)?;
        bytes.take(len(start[1]).unwrap_or(8)).ok_or(Reject::ExtensionChain)?;
        let was_fragment = ip.protocol == 44;
        ip.protocol = start[0];
        if was_fragment {
            if u16_at(start, 2) >= 8 {
                ip.later_fragment = true;
                ip.first_fragment = false;
                break;
            }
            ip.first_fragment |= start[3] % 2 == 1;
        }
    }
    layer4(&mut ip, bytes.0, quotes)?;
    Ok(ip)
}

fn layer4(ip: &mut OracleIp, payload: &[u8], quotes: bool) -> Result<(), Reject> {
    if ip.later_fragment {
        return Ok(());
    }
    match ip.protocol {
        6 | 17 | 132 => {
            let ports = payload.get(..4).ok_or(Reject::TransportTruncated)?;
            ip.ports = Some((u16_at(ports, 0), u16_at(ports, 2)));
            if ip.protocol == 6 {
                ip.tcp_flags = payload.get(13).copied();
            }
        }
        1 | 58 => {
            ip.icmp = payload.get(..2).map(|message| (message[0], message[1]));
            ip.identifier = payload.get(..8).map(|message| u16_at(message, 4));
            let is_error = match (ip.protocol, ip.icmp) {
                (1, Some((kind, _))) => [3, 11, 12].contains(&kind),
                (58, Some((kind, _))) => [1, 2, 3, 4].contains(&kind),
                _ => false,
            };
            if let (true, true, Some(quoted)) = (quotes, is_error, payload.get(8..)) {
                ip.quoted = layer3(quoted, quoted.len(), 0, false).ok().map(Box::new);
            }
        }
        _ => {}
    }
    Ok(())
}
