//! A network interface by packet sockets (packet(7)).
//!
//! Frames come by up to two rings of equal slots. One has slots for frames of the interface's MTU; it is deep, since an interruption of
//! some milliseconds must not lose packets. The other has slots for giants, which senders on virtual links and receive offload make.
//! Filters by length tell which ring a frame goes to. A third socket sends.

mod ring;
mod send;
pub(super) mod socket;
mod vlan;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use packetloom_packet::LinkType;
use rustix::io::Errno;

use self::ring::{Ring, Slot, frame_size, slot_size};
use self::socket::{Lengths, Protocols};
use self::vlan::{Tag, write_tagged};
use super::checksum::complete_sctp;
use super::interface::{Exit, LOOPBACK, Marks};
use super::receive::{Arrival, Filler, LONGEST_FRAME};
use super::{Link, Mode, Options, Outgoing, PortState, Received, SendStatistics, Sent, Statistics, Stop};

/// Bytes of link header and tags that come on top of an MTU.
const LINK_HEADERS: usize = 32;
/// Slots of no ring are smaller.
const SMALLEST_SLOT: usize = 2_048;
/// Where slots for the MTU would be larger than this, there is one ring for all frames.
const LARGEST_SLOT: usize = 1 << 14;
/// Frames after which the kernel's counts are taken, long before their 32 bits are full.
const COUNTED: u64 = 1 << 24;
/// Bytes under way that a sending socket may hold.
const SEND_BUFFER: usize = 4 << 20;

/// The packet sockets of a port.
#[derive(Debug)]
pub(super) struct PacketSockets {
    outgoing: bool,
    snap: usize,
    is_promiscuous: bool,
    frames: Ring,
    giants: Option<Ring>,
    /// The socket of the port's senders, which is bound with those of the rings.
    sending: Arc<OwnedFd>,
    /// Frames that were received when the kernel's counts were taken.
    counted: u64,
}

/// Sends frames by the sending socket of a port.
#[derive(Debug)]
pub(super) struct PacketSender {
    socket: Arc<OwnedFd>,
    /// Whether frames go to the driver past the queueing discipline.
    bypasses: bool,
}

impl PacketSockets {
    /// Opens the sockets; they receive nothing until they are [bound](Self::bind).
    pub(super) fn open(options: &Options, link: &Link) -> io::Result<Self> {
        let rings = Rings::of(options, link);
        let outgoing = options.outgoing && options.mode == Mode::Monitor && link.hardware != LOOPBACK;
        Ok(Self {
            outgoing,
            snap: rings.snap,
            is_promiscuous: options.promiscuous,
            frames: rings.frames.open(outgoing)?,
            giants: rings.giants.map(|ring| ring.open(outgoing)).transpose()?,
            sending: Arc::new(sending_socket()?),
            counted: 0,
        })
    }

    /// Has all sockets use this interface.
    pub(super) fn bind(&mut self, link: &Link) -> io::Result<()> {
        let bind = |socket: BorrowedFd<'_>, protocols| {
            socket::bind(socket, link.index, protocols)?;
            // That the interface is down is no reason not to use it.
            let _ = rustix::net::sockopt::socket_error(socket);
            io::Result::Ok(())
        };
        bind(self.sending.as_fd(), Protocols::None)?;
        self.giants.iter().try_for_each(|ring| bind(ring.as_fd(), Protocols::All))?;
        bind(self.frames.as_fd(), Protocols::All)?;
        match self.is_promiscuous {
            true => socket::set_promiscuous(&self.frames, link.index),
            false => Ok(()),
        }
    }

    /// Has the rings get no more frames.
    pub(super) fn close_rings(&self) -> io::Result<()> {
        std::iter::once(&self.frames)
            .chain(&self.giants)
            .try_for_each(|ring| socket::set_filter(ring, Lengths::None))
    }

    /// Takes the frames that are there now, as many as there is room for.
    pub(super) fn receive(
        &mut self,
        marks: Marks,
        filler: &mut Filler<'_>,
        statistics: &mut Statistics,
    ) -> Received {
        let mut frames = 0;
        let is_more_left = loop {
            let giant = || self.giants.as_ref().and_then(Ring::head_time);
            let Some(is_giant) = is_giant_next(|| self.frames.head_time(), giant) else { break false };
            let Self { giants, frames: ring, outgoing, snap, .. } = self;
            let ring = match giants {
                Some(giants) if is_giant => giants,
                _ => ring,
            };
            let Some(slot) = ring.slot() else { break false };
            let copying = Copying { marks, outgoing: *outgoing, snap: *snap };
            match copying.copy(slot, filler, statistics) {
                Some(is_received) => frames += usize::from(is_received),
                None => break true,
            }
        };
        if statistics.received - self.counted >= COUNTED {
            // Where it fails, the next one who asks for the counts is told.
            let _ = self.count(statistics);
        }
        Received { frames, is_more_left }
    }

    /// Adds the kernel's counts since the last time.
    pub(super) fn count(&mut self, statistics: &mut Statistics) -> io::Result<()> {
        self.counted = statistics.received;
        for ring in std::iter::once(&self.frames).chain(&self.giants) {
            let (arrived, dropped) = socket::take_statistics(ring)?;
            statistics.arrived += u64::from(arrived);
            statistics.dropped += u64::from(dropped);
        }
        Ok(())
    }

    /// What sends out of the interface.
    pub(super) fn sender(&self) -> PacketSender {
        PacketSender { socket: self.sending.clone(), bypasses: true }
    }

    /// Bytes of memory that the rings take.
    pub(super) fn ring_bytes(&self) -> usize {
        self.frames.bytes() + self.giants.as_ref().map_or(0, Ring::bytes)
    }

    /// Frames of up to the MTU, and longer ones, that the rings hold.
    pub(super) fn ring_frames(&self) -> (usize, usize) {
        (self.frames.slots(), self.giants.as_ref().map_or(0, Ring::slots))
    }

    /// What becomes readable when there are frames.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone + use<'_> {
        std::iter::once(self.frames.as_fd()).chain(self.giants.as_ref().map(Ring::as_fd))
    }
}

/// Whether the oldest frame is in the ring of giants, by looks at the times of the oldest frames of both rings; `None` where there is none.
#[inline]
fn is_giant_next(
    mut frame: impl FnMut() -> Option<u64>,
    giant: impl FnOnce() -> Option<u64>,
) -> Option<bool> {
    match (frame(), giant()) {
        (None, None) => None,
        (Some(_), None) => Some(false),
        (Some(frame), Some(giant)) => Some(giant < frame),
        // A frame may have come between the two looks, before the giant did: look again, now that the giant is known to be there.
        (None, Some(giant)) => Some(frame().is_none_or(|frame| giant < frame)),
    }
}

/// How frames of a port are copied.
#[derive(Clone, Copy)]
struct Copying {
    marks: Marks,
    outgoing: bool,
    snap: usize,
}

impl Copying {
    /// Copies a frame to where it is collected and gives its slot back; a frame that is not received is counted. `None`, and nothing is
    /// done, where there is no room for it.
    #[inline]
    fn copy(self, slot: Slot<'_>, filler: &mut Filler<'_>, statistics: &mut Statistics) -> Option<bool> {
        let len = slot.len();
        let skipped = if !slot.is_sound() {
            Some(&mut statistics.unsound)
        } else if slot.is_outgoing() && !self.outgoing {
            Some(&mut statistics.outgoing)
        } else if self.marks.mode == Mode::Inline && len < slot.wire_len() as usize {
            Some(&mut statistics.oversized)
        } else {
            None
        };
        if let Some(skipped) = skipped {
            *skipped += 1;
            slot.release();
            return Some(false);
        }
        let tag = slot.tag().filter(|_| self.marks.link == LinkType::ETHERNET && Tag::fits(len));
        let added = if tag.is_some() { Tag::LEN } else { 0 };
        let captured = (len + added).min(self.snap);
        let wire_len = slot.wire_len() + added as u32;
        let arrival = Arrival {
            time: slot.time(),
            wire_len,
            link: self.marks.link,
            port: self.marks.number,
            offload: slot.offload().shifted(added as u16).trimmed(),
        };
        let mut segments = 1;
        let is_pushed = filler.push(captured, arrival, |place, offload| {
            match tag {
                None => slot.copy(0, place),
                Some(tag) => write_tagged(place, tag, |from, to| slot.copy(from, to)),
            }
            // That it is a CRC the header in front of a frame cannot say, and whoever finished it would write a sum.
            if offload.needs_checksum() && offload.is_at_sctp_checksum() && place.len() == wire_len as usize {
                complete_sctp(place, offload);
            }
            segments = offload.segments(place, wire_len);
        });
        if !is_pushed {
            return None;
        }
        statistics.received += 1;
        statistics.copied += 1;
        statistics.segments += u64::from(segments);
        statistics.received_bytes += u64::from(wire_len);
        slot.release();
        Some(true)
    }
}

impl PacketSender {
    /// Sends frames of the port of this interface: see [`Sender::send`](super::Sender::send).
    pub(super) fn send(
        &mut self,
        frames: &[Outgoing<'_>],
        interface: &str,
        exit: &Exit,
        statistics: &mut SendStatistics,
    ) -> Result<Sent, Errno> {
        let mut taken = 0;
        while taken < frames.len() {
            let rest = &frames[taken..];
            match self.take(rest, interface, exit) {
                Ok(sent) => {
                    statistics.sent += sent as u64;
                    statistics.copied += sent as u64;
                    statistics.sent_bytes +=
                        rest[..sent].iter().map(|frame| frame.bytes.len() as u64).sum::<u64>();
                    taken += sent;
                }
                Err(Errno::INTR) => {}
                Err(Errno::MSGSIZE) => {
                    statistics.too_long += 1;
                    taken += 1;
                }
                Err(Errno::INVAL) => {
                    statistics.refused += 1;
                    taken += 1;
                }
                Err(error) => {
                    let stop = match error {
                        Errno::NOBUFS | Errno::AGAIN => Stop::Busy,
                        Errno::NETDOWN => Stop::Down,
                        Errno::NXIO | Errno::NODEV => Stop::Gone,
                        // The next call says it again, with nothing taken before.
                        _ if taken > 0 => Stop::Busy,
                        error => return Err(error),
                    };
                    statistics.stops += 1;
                    return Ok(Sent { taken, stopped: Some(stop) });
                }
            }
        }
        Ok(Sent { taken, stopped: None })
    }

    /// Sends what is taken at once: at least one frame, or an error.
    fn take(&mut self, frames: &[Outgoing<'_>], interface: &str, exit: &Exit) -> Result<usize, Errno> {
        // Without a carrier a queueing discipline drops frames and says that they were sent.
        if !self.bypasses && !exit.is(PortState::Up) {
            self.set_bypass(true)?;
        }
        match send::send(self.socket.as_fd(), frames) {
            // Past the queueing discipline, the kernel drops a giant that the driver does not cut itself. The other way it cuts it, so all
            // frames go that way then, lest they overtake each other. Without a carrier it has no room for any frame.
            Err(Errno::NOBUFS)
                if self.bypasses
                    && frames[0].offload.is_giant()
                    && socket::is_running(&self.socket, interface) =>
            {
                self.set_bypass(false)?;
                let result = send::send(self.socket.as_fd(), &frames[..1]);
                if result.is_err() {
                    self.set_bypass(true)?;
                }
                result
            }
            result => result,
        }
    }

    fn set_bypass(&mut self, bypasses: bool) -> Result<(), Errno> {
        socket::set_number(&self.socket, libc::PACKET_QDISC_BYPASS, bypasses.into())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.bypasses = bypasses;
        Ok(())
    }
}

/// A socket that sends, not bound yet.
fn sending_socket() -> io::Result<OwnedFd> {
    let socket = socket::open()?;
    socket::set_number(&socket, libc::PACKET_VNET_HDR, 1)?;
    socket::set_number(&socket, libc::PACKET_QDISC_BYPASS, 1)?;
    // More than the system's limit takes a privilege; what the limit allows will do.
    if rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER).is_err() {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
    }
    Ok(socket)
}

/// The rings of a port.
struct Rings {
    frames: RingPlan,
    giants: Option<RingPlan>,
    /// Bytes that are captured of a frame.
    snap: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingPlan {
    lengths: Lengths,
    slots: usize,
    slot: usize,
}

impl Rings {
    fn of(options: &Options, link: &Link) -> Self {
        let plan = |slot: usize, bytes: usize, lengths| RingPlan { lengths, slots: bytes / slot, slot };
        let longest = slot_size(LONGEST_FRAME);
        let snap =
            options.snap.filter(|&snap| options.mode == Mode::Monitor && (snap as usize) < LONGEST_FRAME);
        if let Some(snap) = snap {
            let slot = slot_size((snap as usize).max(LINK_HEADERS));
            let frames = plan(slot, options.ring_bytes, Lengths::Snapped(snap.max(1)));
            return Self { frames, giants: None, snap: snap as usize };
        }
        let slot = slot_size(link.mtu as usize + LINK_HEADERS).max(SMALLEST_SLOT);
        if slot > LARGEST_SLOT {
            let frames = plan(longest, options.giants_bytes, Lengths::Snapped(u32::MAX));
            return Self { frames, giants: None, snap: usize::MAX };
        }
        let limit = frame_size(slot) as u32;
        Self {
            frames: plan(slot, options.ring_bytes, Lengths::UpTo(limit)),
            giants: Some(plan(longest, options.giants_bytes, Lengths::Above(limit))),
            snap: usize::MAX,
        }
    }
}

impl RingPlan {
    fn open(self, outgoing: bool) -> io::Result<Ring> {
        let socket = socket::open()?;
        match socket::set_number(&socket, libc::PACKET_IGNORE_OUTGOING, (!outgoing).into()) {
            // Not known before Linux 4.20; such frames are told by their type as well.
            Err(error) if error.raw_os_error() != Some(libc::ENOPROTOOPT) => return Err(error),
            _ => {}
        }
        if self.lengths != Lengths::Snapped(u32::MAX) {
            socket::set_filter(&socket, self.lengths)?;
        }
        Ring::new(socket, self.slots, self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mtu: u32, hardware: u16) -> Link {
        Link {
            index: 7,
            name: "eth7".into(),
            hardware,
            mtu,
            queues: 1,
            is_up: true,
            has_carrier: true,
            ..Link::default()
        }
    }

    #[test]
    fn every_length_has_one_ring_that_holds_it_whole() {
        for (mtu, slot) in [(68, 2_048), (1_500, 2_048), (9_000, 9_136)] {
            let rings = Rings::of(&Options::new("eth7", Mode::Inline), &link(mtu, 1));
            let giants = rings.giants.expect("two rings");
            assert_eq!(rings.frames.slot, slot);
            let Lengths::UpTo(limit) = rings.frames.lengths else { panic!("{:?}", rings.frames) };
            assert_eq!(giants.lengths, Lengths::Above(limit));
            assert!(limit as usize >= mtu as usize + 22, "with its header and two tags");
            assert!(slot_size(limit as usize) <= slot && frame_size(giants.slot) >= LONGEST_FRAME);
            assert!(rings.frames.slots * slot <= 32 << 20 && rings.frames.slots > 3_000);
        }
        // Where each frame may be a giant, there is one ring.
        let rings = Rings::of(&Options::new("lo", Mode::Monitor), &link(65_536, 772));
        assert!(rings.giants.is_none() && frame_size(rings.frames.slot) >= 65_536 + 14);
    }

    #[test]
    fn the_oldest_frame_is_next_whenever_it_comes() {
        let looks = |first: Option<u64>, giant: Option<u64>, second: Option<u64>| {
            let mut looks = [first, second].into_iter();
            is_giant_next(|| looks.next().expect("two looks at most"), || giant)
        };
        assert_eq!(looks(None, None, None), None);
        assert_eq!(looks(Some(2), None, None), Some(false));
        assert_eq!(looks(Some(2), Some(1), None), Some(true));
        assert_eq!(looks(Some(1), Some(2), None), Some(false));
        assert_eq!(looks(None, Some(2), None), Some(true));
        // Between the looks a frame came, and then a giant; or the other way round.
        assert_eq!(looks(None, Some(2), Some(1)), Some(false));
        assert_eq!(looks(None, Some(2), Some(3)), Some(true));
    }

    #[test]
    fn only_monitors_cut_frames() {
        let mut options = Options::new("eth7", Mode::Monitor);
        options.snap = Some(128);
        let rings = Rings::of(&options, &link(1_500, 1));
        assert_eq!((rings.snap, rings.frames.lengths, rings.giants), (128, Lengths::Snapped(128), None));
        assert!(frame_size(rings.frames.slot) >= 128 && rings.frames.slot < 256);
        options.mode = Mode::Inline;
        assert_eq!(Rings::of(&options, &link(1_500, 1)).snap, usize::MAX);
        options.mode = Mode::Monitor;
        options.snap = Some(262_144);
        assert!(Rings::of(&options, &link(1_500, 1)).giants.is_some(), "as good as none");
    }
}
