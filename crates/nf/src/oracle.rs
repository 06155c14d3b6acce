//! The oracle's own parser: written from the header formats once more, as a plain walk over bytes, and sharing no code
//! with the views of the packet crate, so that both cannot be wrong in the same way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_packet::{Fragment, LinkType, PacketRecord, Reject, Timestamp};

/// A packet as the oracle sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OraclePacket {
    /// Nanoseconds since the epoch.
    pub nanos: u64,
    /// Nanoseconds from that to wall time, where they advance by another clock.
    pub wall_offset: i64,
    /// What its headers said, or why they could not be read.
    pub ip: Result<OracleIp, Reject>,
    /// Offset of the IP header; of no meaning where there is none.
    pub network: usize,
    /// Whether layer 2 has anything but the basic framings: those that a meter always counts.
    pub other_framing: bool,
    /// The numbers of the port by which it came, and of the one by which it leaves if it passes, if it leaves by one.
    pub port: u16,
    /// See above.
    pub egress: Option<u16>,
    /// The name of the interface by which it came, if that is known.
    pub interface: Option<Box<str>>,
    /// The name of the interface by which it leaves if it passes, if it does and that is known.
    pub out: Option<Box<str>>,
    /// Its mark, as functions have set it; 0 before.
    pub mark: u32,
    /// The frame as it came.
    pub frame: Box<[u8]>,
    /// Its link type.
    pub link: LinkType,
    /// Its bytes on the wire.
    pub wire_len: u32,
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
    /// Bytes of the IP header and its extensions.
    pub header: usize,
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
        let mut layer2 = Layer2 { frame, headers: 0, basic: true, guessing: false };
        let network = layer2.start(link.0);
        let ip = network.and_then(|at| layer3(&frame[at..], wire_len as usize, at, true));
        let other_framing = !layer2.basic && !COUNTED_LINKS.contains(&link.0);
        let frame = frame.into();
        let network = network.unwrap_or(0);
        Self {
            nanos,
            wall_offset: 0,
            ip,
            network,
            other_framing,
            port: 0,
            egress: None,
            interface: None,
            out: None,
            mark: 0,
            frame,
            link,
            wire_len,
        }
    }

    /// The VLAN of a frame of Ethernet, by its outer tag, if it has one.
    pub fn vlan(&self) -> Option<u16> {
        let word = |at: usize| self.frame.get(at..at + 2).map(|bytes| u16_at(bytes, 0));
        let is_tagged = word(12).is_some_and(|kind| [0x8100, 0x88a8, 0x9100, 0x9200].contains(&kind));
        if self.link.0 == 1 && is_tagged { word(14).map(|tag| tag % 4096) } else { None }
    }

    /// The captured bytes that follow the transport header, or the IP header where no header is known or the fragment is not the first;
    /// `None` where that header was not captured whole.
    pub fn payload(&self) -> Option<&[u8]> {
        let ip = self.ip.as_ref().ok()?;
        let end = self.frame.len().min(self.network + ip.bytes as usize);
        let upper = self.frame.get(self.network + ip.header..end)?;
        let header = match ip.protocol {
            _ if ip.later_fragment => 0,
            6 => usize::from(upper.get(12)? / 16) * 4,
            132 => 12,
            1 | 17 | 58 => 8,
            _ => 0,
        };
        let is_too_short = ip.protocol == 6 && !ip.later_fragment && header < 20;
        upper.get(header..).filter(|_| !is_too_short)
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
            mark: self.mark,
        })
    }
}

/// The walk over layer 2. Its steps say how many bytes of the frame stand before the IP header.
struct Layer2<'a> {
    frame: &'a [u8],
    /// Headers that were stepped over, as they are limited.
    headers: usize,
    /// Whether all steps were those of the basic framings.
    basic: bool,
    /// Whether this is one of two readings.
    guessing: bool,
}

type Step = Result<usize, Reject>;

impl Layer2<'_> {
    fn byte(&self, at: usize) -> Result<u8, Reject> {
        self.frame.get(at).copied().ok_or(Reject::LinkTruncated)
    }

    fn number(&self, at: usize) -> Result<u16, Reject> {
        Ok(u16::from(self.byte(at)?) * 256 + u16::from(self.byte(at + 1)?))
    }

    /// That the frame has so many bytes.
    fn has(&self, bytes: usize) -> Result<(), Reject> {
        if self.frame.len() < bytes { Err(Reject::LinkTruncated) } else { Ok(()) }
    }

    fn one_more(&mut self) -> Result<(), Reject> {
        self.headers += 1;
        if self.headers == 17 { Err(Reject::UnknownFraming) } else { Ok(()) }
    }

    fn start(&mut self, link: u16) -> Step {
        match link {
            1 => self.ethernet(0),
            113 => {
                self.has(16)?;
                self.cooked(16, self.number(2)?, self.number(14)?)
            }
            276 => {
                self.has(20)?;
                self.cooked(20, self.number(8)?, self.number(0)?)
            }
            0 | 108 => {
                self.has(4)?;
                let (high, low) = (self.number(0)?, self.number(2)?);
                let family = match (high, low) {
                    (swapped, 0) if link == 0 => swapped.swap_bytes(),
                    (0, family) => family,
                    _ => 0,
                };
                match family {
                    2 | 10 | 24 | 28 | 30 => Ok(4),
                    7 | 16 | 23 => self.other(Reject::NotIp),
                    _ => self.other(Reject::UnknownFraming),
                }
            }
            12 | 14 | 101 | 228 | 229 => Ok(0),
            9 | 50 => self.serial_line(),
            51 => self.ethertype(0, 0x8864),
            104 => self.cisco_serial(),
            105 => self.wifi(0, false),
            107 => self.frame_relay(),
            117 => self.pf_log(),
            119 => {
                self.has(8)?;
                let known = [[0x44, 0, 0, 0, 144, 0, 0, 0], [0, 0, 0, 0x44, 0, 0, 0, 144]];
                if !known.iter().any(|known| self.frame.starts_with(known)) {
                    return Err(Reject::UnknownFraming);
                }
                self.has(144)?;
                self.wifi(144, false)
            }
            127 => self.radiotap(),
            239 => self.nf_log(),
            65535 => Err(Reject::UndefinedInterface),
            _ => Err(Reject::LinkType),
        }
    }

    fn serial_line(&mut self) -> Step {
        match self.byte(0)? {
            0x0f | 0x8f => self.cisco_serial(),
            0xff if self.byte(1)? != 3 => Err(Reject::UnknownFraming),
            first => {
                self.one_more()?;
                self.ppp(if first == 0xff { 2 } else { 0 })
            }
        }
    }

    fn cisco_serial(&mut self) -> Step {
        self.one_more()?;
        self.has(4)?;
        let is_known = self.byte(0)? & 0x7f == 0x0f;
        match self.number(2)? {
            0x2000 if is_known => Err(Reject::NotIp),
            ethertype if is_known && ethertype >= 0x600 => self.ethertype(4, ethertype),
            _ => Err(Reject::UnknownFraming),
        }
    }

    fn frame_relay(&mut self) -> Step {
        self.one_more()?;
        // The last byte of the address is odd.
        let mut at = 0;
        while self.byte(at)? % 2 == 0 {
            at += 1;
            if at == 4 {
                return Err(Reject::UnknownFraming);
            }
        }
        if at == 0 {
            return Err(Reject::UnknownFraming);
        }
        let number = self.number(at + 1)?;
        if number / 256 != 3 {
            if number < 0x600 {
                return Err(Reject::UnknownFraming);
            }
            // A numbered frame, perhaps: nobody knows that it has no IP.
            let step = self.ethertype(at + 3, number);
            return if step == Err(Reject::NotIp) { Err(Reject::UnknownFraming) } else { step };
        }
        at += if number % 256 == 0 { 3 } else { 2 };
        match self.byte(at)? {
            0x80 => self.snap(at + 1),
            0x82 | 0x83 => Err(Reject::NotIp),
            0x8e | 0xcc => Ok(at + 1),
            0xcf => self.ppp(at + 1),
            _ => Err(Reject::UnknownFraming),
        }
    }

    fn pf_log(&mut self) -> Step {
        self.has(2)?;
        let (len, family) = (usize::from(self.byte(0)?), self.byte(1)?);
        if len < 45 {
            return Err(Reject::UnknownFraming);
        }
        let words = len.div_ceil(4);
        self.has(4 * words)?;
        if [2, 24, 28, 30].contains(&family) { Ok(4 * words) } else { Err(Reject::UnknownFraming) }
    }

    fn nf_log(&mut self) -> Step {
        self.has(4)?;
        if ![[2, 0], [10, 0]].contains(&[self.byte(0)?, self.byte(1)?]) {
            return Err(Reject::UnknownFraming);
        }
        let mut at = 4;
        loop {
            self.has(at + 4)?;
            let (mut len, mut kind) = (self.number(at)?, self.number(at + 2)?);
            // A kind is one byte: in little-endian it looks large.
            if kind >= 256 {
                (len, kind) = (len.swap_bytes(), kind.swap_bytes());
            }
            if !(1..256).contains(&kind) || len < 4 {
                return Err(Reject::UnknownFraming);
            }
            let end = at + usize::from(len);
            if kind == 9 {
                let is_last = self.frame.len() < end + 4;
                return if is_last { Ok(at + 4) } else { Err(Reject::UnknownFraming) };
            }
            at = end.div_ceil(4) * 4;
            self.has(at)?;
        }
    }

    fn radiotap(&mut self) -> Step {
        self.has(8)?;
        let len = usize::from(self.byte(2)?) + 256 * usize::from(self.byte(3)?);
        if self.byte(0)? != 0 || len < 8 {
            return Err(Reject::UnknownFraming);
        }
        self.has(len)?;
        let (has_time, has_flags) = (self.byte(4)? % 2 == 1, self.byte(4)? / 2 % 2 == 1);
        let mut at = 4;
        loop {
            let has_another = at + 4 <= len && self.byte(at + 3)? >= 128;
            at += 4;
            if !has_another {
                break;
            }
        }
        if has_time {
            at = at.div_ceil(8) * 8 + 8;
        }
        if has_flags && at >= len {
            return Err(Reject::UnknownFraming);
        }
        let is_padded = has_flags && self.byte(at)? / 32 % 2 == 1;
        self.wifi(len, is_padded)
    }

    fn wifi(&mut self, at: usize, is_padded: bool) -> Step {
        self.one_more()?;
        self.has(at + 2)?;
        let (first, flags) = (self.byte(at)?, self.byte(at + 1)?);
        let is_null = [4, 5, 6, 7, 12, 14, 15].contains(&(first / 16));
        match first % 16 {
            // Management and control.
            0 | 4 => return Err(Reject::NotIp),
            8 if is_null => return Err(Reject::NotIp),
            // With data that is not encrypted.
            8 if first / 16 != 13 && flags & 0x40 == 0 => {}
            _ => return Err(Reject::UnknownFraming),
        }
        let quality = at + if flags % 4 == 3 { 30 } else { 24 };
        let mut body = quality;
        if first >= 128 {
            body += 2;
            if flags >= 128 {
                body += 4;
            }
        }
        if is_padded {
            body = at + (body - at).div_ceil(4) * 4;
        }
        self.has(body)?;
        if self.byte(at + 22)? % 16 != 0 || first >= 128 && self.byte(quality)? >= 128 {
            return Err(Reject::UnknownFraming);
        }
        let has_snap = self.frame[body..].starts_with(&[0xaa, 0xaa]);
        match self.llc(body) {
            Err(Reject::NotIp) if !has_snap => Err(Reject::UnknownFraming),
            step => step,
        }
    }

    /// Ends at something that is not of the basic framings.
    fn other(&mut self, reject: Reject) -> Step {
        self.basic = false;
        Err(reject)
    }

    fn cooked(&mut self, at: usize, hardware: u16, protocol: u16) -> Step {
        let end = match protocol {
            1 => self.other(Reject::NotIp),
            4 => {
                self.basic = false;
                self.llc(at)
            }
            0..=0x5ff => self.other(Reject::UnknownFraming),
            _ => self.ethertype(at, protocol),
        };
        // Frame Relay, 802.11, Prism, radiotap, netlink: the protocol is something else.
        if [770, 801, 802, 803, 824].contains(&hardware) && !self.basic {
            return Err(Reject::UnknownFraming);
        }
        end
    }

    fn ethernet(&mut self, at: usize) -> Step {
        self.one_more()?;
        self.has(at + 14)?;
        let ethertype = self.number(at + 12)?;
        let is_isl = ethertype < 0x600
            && (self.frame[at..].starts_with(&[1, 0, 12, 0, 0])
                || self.frame[at..].starts_with(&[3, 0, 12, 0, 0]));
        if is_isl {
            self.basic = false;
            self.has(at + 26)?;
            return if self.byte(at + 5)? < 16 {
                self.ethernet(at + 26)
            } else {
                Err(Reject::UnknownFraming)
            };
        }
        self.ethertype(at + 14, ethertype)
    }

    /// A header of so many bytes with an EtherType at its end.
    fn tag(&mut self, at: usize, bytes: usize) -> Step {
        self.basic = false;
        self.one_more()?;
        self.has(at + bytes)?;
        self.ethertype(at + bytes, self.number(at + bytes - 2)?)
    }

    /// A header of so many bytes with an Ethernet frame behind it.
    fn tunnel(&mut self, at: usize, bytes: usize) -> Step {
        self.basic = false;
        self.one_more()?;
        self.has(at + bytes)?;
        self.ethernet(at + bytes)
    }

    fn ethertype(&mut self, mut at: usize, mut ethertype: u16) -> Step {
        while [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300].contains(&ethertype) {
            self.basic &= ethertype != 0x9300;
            self.has(at + 4)?;
            ethertype = self.number(at + 2)?;
            at += 4;
        }
        match ethertype {
            0x0800 | 0x86dd => Ok(at),
            0x8847 | 0x8848 => self.labels(at),
            0x8864 => {
                self.one_more()?;
                self.has(at + 8)?;
                self.ppp(at + 6)
            }
            0..=0x05ff | 0x8870 => {
                self.basic = false;
                self.llc(at)
            }
            0x8926 | 0x892f => self.tag(at, 6),
            0x893f | 0xdada => self.tag(at, 8),
            0x8909 => {
                self.basic = false;
                self.one_more()?;
                self.has(at + 6)?;
                if self.number(at)? != 0x0101 {
                    return Err(Reject::UnknownFraming);
                }
                self.has(at + 8)?;
                self.ethertype(at + 8, self.number(at + 6)?)
            }
            0x6558 => {
                self.basic = false;
                self.ethernet(at)
            }
            0x88e7 => self.tunnel(at, 4),
            0x8903 => self.tunnel(at, 2),
            0x22f3 => {
                self.basic = false;
                self.one_more()?;
                self.has(at + 6)?;
                let options = self.number(at)? / 64 % 32;
                self.has(at + 6 + 4 * usize::from(options))?;
                self.ethernet(at + 6 + 4 * usize::from(options))
            }
            0x894f => self.service(at),
            0x8906 => {
                self.basic = false;
                self.has(at + 23)?;
                let is_fibre_channel_ip = self.byte(at + 14)? / 16 == 5 || self.byte(at + 22)? == 5;
                Err(if is_fibre_channel_ip { Reject::UnknownFraming } else { Reject::NotIp })
            }
            0x809b => {
                self.basic = false;
                self.has(at + 13)?;
                Err(if self.byte(at + 12)? == 22 { Reject::UnknownFraming } else { Reject::NotIp })
            }
            _ if NOT_IP.contains(&ethertype) => self.other(Reject::NotIp),
            _ => self.other(Reject::UnknownFraming),
        }
    }

    fn service(&mut self, at: usize) -> Step {
        self.basic = false;
        self.one_more()?;
        self.has(at + 4)?;
        let words = usize::from(self.byte(at + 1)? % 64);
        if self.byte(at)? >= 64 || words < 2 {
            return Err(Reject::UnknownFraming);
        }
        self.has(at + 4 * words)?;
        match self.byte(at + 3)? {
            1 | 2 => Ok(at + 4 * words),
            3 => self.ethernet(at + 4 * words),
            4 => self.service(at + 4 * words),
            5 => self.labels(at + 4 * words),
            _ => Err(Reject::UnknownFraming),
        }
    }

    fn llc(&mut self, at: usize) -> Step {
        self.one_more()?;
        self.has(at + 3)?;
        let (to, from, control) = (self.byte(at)?, self.byte(at + 1)?, self.byte(at + 2)?);
        if (to, from) == (0xff, 0xff) {
            return Err(Reject::NotIp);
        }
        // The lowest bits say group and response.
        let (to, from, carries) = (to - to % 2, from - from % 2, control == 0x03 || control == 0x13);
        if carries && (to, from) == (0xaa, 0xaa) {
            return self.snap(at + 3);
        }
        if carries && to == 0x06 {
            return Ok(at + 3);
        }
        if carries && (to, from) == (0xfe, 0xfe) {
            return Err(match self.byte(at + 3)? {
                0x82 | 0x83 => Reject::NotIp,
                _ => Reject::UnknownFraming,
            });
        }
        let not_ip = [0x00, 0x02, 0x04, 0x42, 0x82, 0xe0, 0xf0, 0xf4, 0xf8, 0xfc];
        Err(if not_ip.contains(&to) && not_ip.contains(&from) {
            Reject::NotIp
        } else {
            Reject::UnknownFraming
        })
    }

    fn snap(&mut self, at: usize) -> Step {
        self.has(at + 5)?;
        let protocol = self.number(at + 3)?;
        match (&self.frame[at..at + 3], protocol) {
            ([0, 0, 0] | [0, 0, 0xf8] | [8, 0, 7], 0x600..) => self.ethertype(at + 5, protocol),
            ([0, 0x80, 0xc2], 1 | 7) => self.either(
                |walk| walk.is_ethernet_to_ip(at + 7).then(|| walk.ethernet(at + 7)),
                |walk| walk.is_ethernet_to_ip(at + 5).then(|| walk.ethernet(at + 5)),
            ),
            ([0, 0x80, 0xc2], 0x000e)
            | ([0, 0, 0x81], 0x01a1 | 0x01a2)
            | ([0, 0xe0, 0x2b], 0x00bb)
            | ([0, 0xe0, 0x52], 0x2000) => Err(Reject::NotIp),
            ([0, 0, 0x0c], protocol)
                if [0x104, 0x10b, 0x10c, 0x111, 0x2000, 0x2001, 0x2003, 0x2004, 0x200a]
                    .contains(&protocol) =>
            {
                Err(Reject::NotIp)
            }
            _ => Err(Reject::UnknownFraming),
        }
    }

    fn ppp(&mut self, at: usize) -> Step {
        let first = self.byte(at)?;
        let (protocol, bytes) = if first % 2 == 1 { (u16::from(first), 1) } else { (self.number(at)?, 2) };
        self.basic &= bytes == 2 && [0x21, 0x57].contains(&protocol);
        let at = at + bytes;
        match protocol {
            0x0021 | 0x0057 => Ok(at),
            0x0281 | 0x0283 => self.labels(at),
            0x0031 => {
                self.has(at + 2)?;
                let has_number = self.byte(at)? & 0x40 != 0;
                if has_number || self.byte(at + 1)? != 1 {
                    return Err(Reject::UnknownFraming);
                }
                self.ethernet(at + 2)
            }
            _ if CONTROL.contains(&protocol) => {
                // Code 8 sends a packet back that may be one of IP.
                let is_rejection = self.byte(at) == Ok(8);
                let is_other = self.number(at + 4).is_ok_and(|protocol| !CONTROL.contains(&protocol));
                Err(if is_rejection && is_other { Reject::UnknownFraming } else { Reject::NotIp })
            }
            _ => Err(Reject::UnknownFraming),
        }
    }

    fn labels(&mut self, mut at: usize) -> Step {
        loop {
            self.has(at + 4)?;
            at += 4;
            if self.byte(at - 2)? % 2 == 1 {
                break;
            }
        }
        let first = self.byte(at)?;
        match first / 16 {
            4 | 6 => Ok(at),
            0 => self.either(
                |walk| walk.is_ethernet_to_ip(at + 4).then(|| walk.ethernet(at + 4)),
                |walk| walk.is_ethernet_to_ip(at).then(|| walk.ethernet(at)),
            ),
            _ => self.either(
                |walk| walk.channel(at).map(|version| walk.version(at + 4, version)),
                |walk| walk.is_ethernet_to_ip(at).then(|| walk.ethernet(at)),
            ),
        }
    }

    /// The IP version of an associated channel.
    fn channel(&self, at: usize) -> Option<u8> {
        let version = match self.frame.get(at..at + 4)? {
            [0x10, 0, 0, 0x21] => 4,
            [0x10, 0, 0, 0x57] => 6,
            _ => return None,
        };
        (self.frame.get(at + 4)? / 16 == version).then_some(version)
    }

    fn version(&self, at: usize, version: u8) -> Step {
        if self.byte(at)? / 16 == version { Ok(at) } else { Err(Reject::UnknownFraming) }
    }

    /// Two readings: IP is where both find it, or where one finds it and the other one is none of a frame that might carry it.
    fn either(
        &mut self,
        first: impl Fn(&mut Self) -> Option<Step>,
        second: impl Fn(&mut Self) -> Option<Step>,
    ) -> Step {
        self.basic = false;
        if self.guessing {
            return Err(Reject::UnknownFraming);
        }
        let again = || Layer2 { frame: self.frame, headers: self.headers, basic: false, guessing: true };
        match (first(&mut again()), second(&mut again())) {
            (Some(Ok(at)), Some(Ok(other))) if at != other => Err(Reject::UnknownFraming),
            (Some(Ok(at)), None | Some(Ok(_))) | (None, Some(Ok(at))) => {
                let version = self.byte(at).unwrap_or(0) / 16;
                if version == 4 || version == 6 { Ok(at) } else { Err(Reject::UnknownFraming) }
            }
            _ => Err(Reject::UnknownFraming),
        }
    }

    /// Whether the bytes there look like an Ethernet header before IP, or before a header that has a place in the walk.
    fn is_ethernet_to_ip(&self, at: usize) -> bool {
        if self.frame.len() < at + 14 {
            return false;
        }
        let next = self.frame.get(at + 14).copied();
        match u16_at(self.frame, at + 12) {
            0x0800 => next.is_some_and(|byte| byte / 16 == 4),
            0x86dd => next.is_some_and(|byte| byte / 16 == 6),
            0..=0x5ff => next.is_some_and(|byte| [0xaa, 0xab, 0x06, 0x07].contains(&byte)),
            0x22f3 | 0x6558 | 0x8100 | 0x8847 | 0x8848 | 0x8864 | 0x8870 | 0x88a8 | 0x88e5 | 0x88e7
            | 0x8903 | 0x8909 | 0x8926 | 0x892f | 0x893f | 0x894f | 0x9100 | 0x9200 | 0x9300 | 0xdada => true,
            _ => false,
        }
    }
}

/// Link types, not of Ethernet nor of this host, whose packets a meter counts whatever stands before them.
const COUNTED_LINKS: [u16; 10] = [9, 50, 51, 104, 105, 107, 117, 119, 127, 239];

/// PPP protocols that control links and networks.
const CONTROL: [u16; 17] = [
    0x8021, 0x8023, 0x8029, 0x802b, 0x8031, 0x8053, 0x8057, 0x80fd, 0x8207, 0x8281, 0xc021, 0xc023, 0xc025,
    0xc02b, 0xc02d, 0xc223, 0xc227,
];

/// EtherTypes of what does not carry IP.
const NOT_IP: [u16; 36] = [
    0x0806, // ARP
    0x0842, // wake-on-LAN
    0x22ea, // MSRP
    0x22f4, // L2-IS-IS
    0x6001, // MOP dump and load
    0x6002, // MOP remote console
    0x6003, // DECnet phase IV
    0x6004, // LAT
    0x6005, // DEC diagnostics
    0x6007, // LAVC
    0x8035, // RARP
    0x80f3, // AppleTalk's ARP
    0x8137, // IPX
    0x8138, // IPX
    0x8809, // slow protocols
    0x8863, // PPPoE discovery
    0x887b, // HomePlug
    0x888e, // 802.1X
    0x8892, // PROFINET
    0x88a2, // ATA over Ethernet
    0x88b8, // GOOSE
    0x88b9, // GSE management
    0x88ba, // sampled values
    0x88c7, // 802.1X pre-authentication
    0x88cc, // LLDP
    0x88e1, // HomePlug AV
    0x88e3, // MRP
    0x88ee, // E-LMI
    0x88f5, // MVRP
    0x88f6, // MMRP
    0x88f7, // PTP
    0x88fb, // supervision of PRP
    0x8902, // CFM
    0x890d, // 802.11's own, such as TDLS
    0x8914, // FIP
    0x9000, // loopback test
];

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
        header: header_len,
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
        header: 40,
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
        let extension = len(start[1]).unwrap_or(8);
        bytes.take(extension).ok_or(Reject::ExtensionChain)?;
        ip.header += extension;
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
