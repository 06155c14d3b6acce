//! pcapng (draft-ietf-opsawg-pcapng): enhanced, simple and obsolete packet blocks, several sections and interfaces.
//!
//! Every packet block gives a frame. One that names an interface which its section did not describe before it has
//! [`LinkType::NONE`], all bytes that it holds, and a time in microseconds, the unit of interfaces that name none; such a
//! simple packet block has the time of the latest frame whose interface is known.

use std::ops::Range;

use packetloom_packet::{FrameRef, LinkType, PortNames, Timestamp};

use super::findings::{Fault, Findings};
use super::scouts::Scouts;
use super::{Order, Step};

/// Section header block; the same in both byte orders.
pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;

pub(super) const OPTION_END: u16 = 0;
pub(super) const OPTION_NAME: u16 = 2;
pub(super) const OPTION_TSRESOL: u16 = 9;
const OPTION_TSOFFSET: u16 = 14;

/// Type and length of a block.
const BLOCK_HEADER: usize = 8;
/// The shortest block: header and the length once more.
const MIN_BLOCK: usize = 12;
/// A block that must be seen whole may not be longer: it bounds the memory a stream can ask for.
const MAX_BLOCK: usize = 16 << 20;
/// Interfaces of one section, as many as a port number can name.
const MAX_INTERFACES: usize = 1 << 16;
/// Interfaces whose names are kept: batches have copies of them.
const MAX_NAMED: usize = 256;
/// Bytes of a name that is kept, at most.
const MAX_NAME: usize = 255;

#[derive(Debug)]
pub(super) struct Decoder {
    order: Order,
    interfaces: Vec<Interface>,
    /// Their names, and whether these are others than those that were taken last.
    names: Vec<Option<Box<str>>>,
    are_names_new: bool,
    /// The time of the latest frame whose interface is known: simple packet blocks have none of their own.
    time: Timestamp,
    findings: Findings,
    /// Ahead of who reads one block after the other.
    scouts: Scouts,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// The link type as the interface description has it, where frames of it cannot be parsed.
    unsupported: Option<u16>,
    snap: u32,
    ticks: Ticks,
    offset_nanos: i64,
}

/// How a 64-bit count of ticks becomes nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Ticks {
    /// 10^-n seconds, n <= 9: nanoseconds a tick.
    Multiply(u64),
    /// 10^-n seconds, n > 9: ticks a nanosecond; 0 where that number has over 38 digits.
    Divide(u128),
    /// 2^-n seconds.
    Binary(u32),
}

impl Ticks {
    /// From the value of `if_tsresol`.
    fn new(tsresol: u8) -> Self {
        let exponent = u32::from(tsresol & 0x7f);
        if tsresol & 0x80 != 0 {
            Self::Binary(exponent)
        } else if exponent <= 9 {
            Self::Multiply(10u64.pow(9 - exponent))
        } else {
            Self::Divide(10u128.checked_pow(exponent - 9).unwrap_or(0))
        }
    }

    fn nanos(self, ticks: u64) -> u64 {
        match self {
            Self::Multiply(factor) => ticks.saturating_mul(factor),
            Self::Divide(divisor) => u128::from(ticks).checked_div(divisor).unwrap_or(0) as u64,
            Self::Binary(shift) => {
                let nanos = (u128::from(ticks) * 1_000_000_000).checked_shr(shift).unwrap_or(0);
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        }
    }
}

impl Interface {
    /// What holds for packets whose interface is not described, and for interfaces without options.
    const UNDEFINED: Self = Self {
        link: LinkType::NONE,
        unsupported: None,
        snap: 0,
        ticks: Ticks::Multiply(1_000),
        offset_nanos: 0,
    };

    fn time(&self, high: u32, low: u32) -> Timestamp {
        let nanos = self.ticks.nanos(u64::from(high) << 32 | u64::from(low));
        Timestamp::from_nanos(nanos.saturating_add_signed(self.offset_nanos))
    }
}

impl Decoder {
    /// Whether these are the first bytes of a pcapng file.
    pub(super) fn recognise(bytes: &[u8]) -> bool {
        bytes.starts_with(&SECTION_HEADER.to_be_bytes())
    }

    pub(super) fn new() -> Self {
        Self {
            order: Order::Little,
            interfaces: Vec::new(),
            names: Vec::new(),
            are_names_new: false,
            time: Timestamp::default(),
            findings: Findings::default(),
            scouts: Scouts::default(),
        }
    }

    pub(super) fn findings(&self) -> &Findings {
        &self.findings
    }

    /// `offset` is where the bytes begin in the file.
    pub(super) fn step(&mut self, bytes: &[u8], offset: u64) -> Step {
        if bytes.len() < MIN_BLOCK {
            return Step::NeedMore;
        }
        let mut kind = self.order.u32(bytes, 0);
        if Self::recognise(bytes) {
            // A section may change the byte order, so its length can be read only after its magic.
            let orders = [Order::Little, Order::Big];
            let Some(order) = orders.into_iter().find(|order| order.u32(bytes, 8) == BYTE_ORDER_MAGIC) else {
                return Step::Broken(Fault::Magic(Order::Little.u32(bytes, 8)));
            };
            self.order = order;
            self.interfaces.clear();
            self.are_names_new |= !self.names.is_empty();
            self.names.clear();
            kind = SECTION_HEADER;
        }
        let len = self.order.u32(bytes, 4) as usize;
        if len < MIN_BLOCK || !len.is_multiple_of(4) {
            return Step::Broken(Fault::BlockLength(len as u32));
        }
        let is_read = matches!(kind, INTERFACE_DESCRIPTION | PACKET | SIMPLE_PACKET | ENHANCED_PACKET);
        if !is_read && kind != SECTION_HEADER {
            return Step::Skip(len as u64);
        }
        if len > MAX_BLOCK {
            return Step::Broken(Fault::LongBlock(len as u32));
        }
        if bytes.len() < len {
            return Step::NeedMore;
        }
        let body = &bytes[BLOCK_HEADER..len - 4];
        let frame = match kind {
            INTERFACE_DESCRIPTION => {
                if body.len() < 8 {
                    return Step::Broken(Fault::ShortBlock("an interface description", body.len(), 8));
                }
                if self.interfaces.len() >= MAX_INTERFACES {
                    return Step::Broken(Fault::Interfaces(MAX_INTERFACES));
                }
                let (interface, name) = self.interface(body);
                self.name(name);
                self.interfaces.push(interface);
                return Step::Skip(len as u64);
            }
            ENHANCED_PACKET | PACKET => {
                if body.len() < 20 {
                    return Step::Broken(Fault::ShortBlock("a packet", body.len(), 20));
                }
                let id =
                    if kind == PACKET { u32::from(self.order.u16(body, 0)) } else { self.order.u32(body, 0) };
                self.packet(body, id, offset)
            }
            SIMPLE_PACKET => {
                if body.len() < 4 {
                    return Step::Broken(Fault::ShortBlock("a simple packet", body.len(), 4));
                }
                self.simple_packet(body, offset)
            }
            _ => return Step::Skip(len as u64),
        };
        Step::Frame(frame, len)
    }

    /// Has blocks brought in that are ahead of a position, before which a block of so many bytes was read.
    pub(super) fn look_ahead(&mut self, bytes: &[u8], position: usize, len: usize) {
        let order = self.order;
        let next = |at: usize| {
            let len = order.u32(bytes.get(at..)?.first_chunk::<BLOCK_HEADER>()?, 4) as usize;
            ((MIN_BLOCK..=MAX_BLOCK).contains(&len) && len.is_multiple_of(4)).then(|| at + len)
        };
        // Blocks of packets have their length at the end, too.
        let is_packet = |at: usize| {
            let end = next(at).filter(|&end| end <= bytes.len() && order.u32(bytes, at) == ENHANCED_PACKET);
            end.is_some_and(|end| order.u32(bytes, end - 4) as usize == end - at)
        };
        let guess = |range: Range<usize>| range.step_by(4).find(|&at| is_packet(at));
        self.scouts.observe(1, len);
        self.scouts.go_on(bytes, position, next, guess);
    }

    fn packet(&mut self, body: &[u8], id: u32, offset: u64) -> FrameRef {
        let field = |at| self.order.u32(body, at);
        let (high, low, claimed, wire_len) = (field(4), field(8), field(12), field(16));
        let held = (body.len() - 20) as u32;
        if claimed > held {
            self.findings.add_overlong(claimed, held, offset);
        }
        let (time, link) = match self.interfaces.get(id as usize) {
            Some(interface) => {
                self.time = interface.time(high, low);
                count_unsupported(&mut self.findings, interface);
                (self.time, interface.link)
            }
            None => {
                self.findings.add_undefined(id, self.interfaces.len(), offset);
                (Interface::UNDEFINED.time(high, low), LinkType::NONE)
            }
        };
        FrameRef {
            offset: (BLOCK_HEADER + 20) as u64,
            time,
            len: claimed.min(held),
            wire_len,
            link,
            port: u16::try_from(id).unwrap_or(u16::MAX),
        }
    }

    fn simple_packet(&mut self, body: &[u8], offset: u64) -> FrameRef {
        let wire_len = self.order.u32(body, 0);
        let interface = match self.interfaces.first() {
            Some(interface) => {
                count_unsupported(&mut self.findings, interface);
                interface
            }
            None => {
                self.findings.add_undefined(0, 0, offset);
                &Interface::UNDEFINED
            }
        };
        let snap = if interface.snap == 0 { u32::MAX } else { interface.snap };
        FrameRef {
            offset: (BLOCK_HEADER + 4) as u64,
            time: self.time,
            len: wire_len.min(snap).min((body.len() - 4) as u32),
            wire_len,
            link: interface.link,
            port: 0,
        }
    }

    /// An interface, and its name.
    fn interface<'b>(&self, body: &'b [u8]) -> (Interface, Option<&'b str>) {
        let number = self.order.u16(body, 0);
        let link = LinkType::of_number(number.into());
        let mut interface = Interface {
            link,
            unsupported: (!link.is_supported()).then_some(number),
            snap: self.order.u32(body, 4),
            ..Interface::UNDEFINED
        };
        let mut name = None;
        let mut options = &body[8..];
        while options.len() >= 4 {
            let (code, len) = (self.order.u16(options, 0), usize::from(self.order.u16(options, 2)));
            let Some(value) = options.get(4..4 + len) else { break };
            match (code, value) {
                (OPTION_END, _) => break,
                (OPTION_NAME, value) => {
                    // Some programs count a 0 behind it.
                    let value = value.split(|&byte| byte == 0).next().unwrap_or_default();
                    name = str::from_utf8(value).ok().filter(|name| (1..=MAX_NAME).contains(&name.len()));
                }
                (OPTION_TSRESOL, &[tsresol]) => {
                    interface.ticks = Ticks::new(tsresol);
                }
                (OPTION_TSOFFSET, &[_, _, _, _, _, _, _, _]) => {
                    let (first, second) = (self.order.u32(value, 0), self.order.u32(value, 4));
                    let (high, low) =
                        if self.order == Order::Big { (first, second) } else { (second, first) };
                    let seconds = (u64::from(high) << 32 | u64::from(low)) as i64;
                    interface.offset_nanos = seconds.saturating_mul(1_000_000_000);
                }
                _ => {}
            }
            // Values are padded to 32 bits.
            options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        }
        (interface, name)
    }

    /// Notes the name of the next interface.
    fn name(&mut self, name: Option<&str>) {
        let number = self.interfaces.len();
        if let Some(name) = name.filter(|_| number < MAX_NAMED) {
            self.names.resize(number, None);
            self.names.push(Some(name.into()));
            self.are_names_new = true;
        }
    }

    /// Whether names have changed since they were taken.
    pub(super) fn are_names_new(&self) -> bool {
        self.are_names_new
    }

    /// The names of the interfaces; `None` where none is known.
    pub(super) fn take_names(&mut self) -> Option<PortNames> {
        self.are_names_new = false;
        (!self.names.is_empty()).then(|| self.names.clone().into())
    }
}

/// Counts a frame where its interface's link type cannot be parsed.
#[inline]
fn count_unsupported(findings: &mut Findings, interface: &Interface) {
    if let Some(number) = interface.unsupported {
        findings.add_unsupported(number.into(), 1);
    }
}
