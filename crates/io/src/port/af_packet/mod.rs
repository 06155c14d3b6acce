//! A network interface by packet sockets (packet(7)).
//!
//! Frames come by up to two rings of equal slots. One has slots for frames of the interface's MTU; it is deep, since an interruption of
//! some milliseconds must not lose packets. The other has slots for giants, which senders on virtual links and receive offload make.
//! Filters by length tell which ring a frame goes to. A third socket sends.

mod ring;
mod send;
mod socket;
mod vlan;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use packetloom_packet::LinkType;
use rustix::io::Errno;

use self::ring::{Ring, Slot, frame_size, slot_size};
pub use self::send::Outgoing;
use self::socket::{Lengths, Protocols};
use self::vlan::{Tag, write_tagged};
use super::checksum::complete_sctp;
use super::receive::{Arrival, Filler, LONGEST_FRAME};
use super::{Guard, Link, LinkEvent, ReceiveBuffer};
use crate::Error;

/// `ARPHRD_LOOPBACK`, whose frames begin like Ethernet's, and `ARPHRD_NONE`, whose frames begin with IP.
const LOOPBACK: u16 = 772;
const NO_HEADER: u16 = 0xfffe;
/// Bytes of link header and tags that come on top of an MTU.
const LINK_HEADERS: usize = 32;
/// Slots of no ring are smaller.
const SMALLEST_SLOT: usize = 2_048;
/// Where slots for the MTU would be larger than this, there is one ring for all frames.
const LARGEST_SLOT: usize = 1 << 14;
/// Frames after which the kernel's counts are taken, long before their 32 bits are full.
const COUNTED: u64 = 1 << 24;
/// Bytes under way that the sending socket may hold.
const SEND_BUFFER: usize = 4 << 20;

/// What is done with the frames of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are looked at, and the kernel handles them as well. They may be cut.
    Monitor,
    /// They are forwarded by this process alone: frames are whole, and by default the kernel drops them ([`Guard`]).
    Inline,
}

/// How a port is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Name of the interface.
    pub interface: String,
    /// What frames are marked with as the port they came by.
    pub number: u16,
    /// What is done with its frames.
    pub mode: Mode,
    /// Bytes of memory in which frames of up to the MTU wait to be received; each takes 2 KiB at an MTU of 1,500.
    pub ring_bytes: usize,
    /// Bytes of memory in which longer frames wait to be received; each takes 64 KiB. Without effect where `snap` is given.
    pub giants_bytes: usize,
    /// Bytes that are captured of each frame, at most; `None`: all. Only monitors may cut frames.
    pub snap: Option<u32>,
    /// Whether frames are received that this machine sends; only by monitors. A loopback interface shows them as they come back.
    pub outgoing: bool,
    /// Whether frames for others are received.
    pub promiscuous: bool,
    /// Whether the kernel is kept from handling the frames; only inline.
    pub guard: bool,
}

impl Options {
    /// The usual options: promiscuous, 32 MiB for frames and as many for giants, and inline a guard.
    pub fn new(interface: impl Into<String>, mode: Mode) -> Self {
        Self {
            interface: interface.into(),
            number: 0,
            mode,
            ring_bytes: 32 << 20,
            giants_bytes: 32 << 20,
            snap: None,
            outgoing: false,
            promiscuous: true,
            guard: mode == Mode::Inline,
        }
    }
}

/// What came of a look at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Frames that were added to the buffer.
    pub frames: usize,
    /// Whether the buffer was full before the port was empty.
    pub is_more_left: bool,
}

/// What came of frames that were to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// The first so many are done with: sent, or refused for ever and counted in [`SendStatistics`].
    pub taken: usize,
    /// Why the rest was not taken, where there is a rest.
    pub stopped: Option<Stop>,
}

/// Why frames are not taken for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The interface or the socket has no room, or the peer of a virtual link is down (ENOBUFS, EAGAIN): worth another try, not many.
    Busy,
    /// The interface is switched off.
    Down,
    /// The interface was removed.
    Gone,
}

/// Whether a port can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It receives and sends.
    Up,
    /// It is switched on but has no carrier: its peer is down.
    NoCarrier,
    /// It is switched off; it goes on by itself when it is switched on.
    Down,
    /// The interface was removed; the port goes on when one of the same name is added.
    Gone,
}

impl PortState {
    fn of(link: &Link) -> Self {
        match (link.is_up, link.has_carrier) {
            (true, true) => Self::Up,
            (true, false) => Self::NoCarrier,
            (false, _) => Self::Down,
        }
    }
}

/// What has gone through a port since it was opened.
///
/// Every frame that came for it is in exactly one of `received`, `dropped`, `outgoing`, `oversized` and `unsound`, or still in its rings;
/// `arrived` is the sum of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Frames that the kernel had for it.
    pub arrived: u64,
    /// Frames that the kernel dropped since the rings were full, or since it could not say what is left to be done to them.
    pub dropped: u64,
    /// Frames that were received.
    pub received: u64,
    /// Their bytes on the wire, with tags.
    pub received_bytes: u64,
    /// Frames on the wire that these are: a giant counts for the segments it is cut into.
    pub segments: u64,
    /// Frames that this machine sent, which are not received.
    pub outgoing: u64,
    /// Frames longer than 64 KiB, which cannot be received whole and are skipped. A monitor receives them cut, and does not count them here.
    pub oversized: u64,
    /// Frames that do not lie where the kernel says; none are expected.
    pub unsound: u64,
}

/// What a [`Sender`] has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendStatistics {
    /// Frames that were sent.
    pub sent: u64,
    /// Their bytes, with tags.
    pub sent_bytes: u64,
    /// Frames that are too long for the interface (EMSGSIZE).
    pub too_long: u64,
    /// Frames that the kernel refuses for another reason: too short, or left with work that cannot be done (EINVAL).
    pub refused: u64,
    /// How often sending stopped for lack of room or a peer that is down.
    pub stops: u64,
}

/// A network interface in use. It is moved between threads freely and used by one at a time.
#[derive(Debug)]
pub struct Port {
    interface: String,
    number: u16,
    mode: Mode,
    outgoing: bool,
    snap: usize,
    is_promiscuous: bool,
    link: LinkType,
    index: u32,
    mtu: u32,
    state: PortState,
    frames: Ring,
    giants: Option<Ring>,
    /// The socket of its senders, which is bound with those of the rings.
    sending: Arc<OwnedFd>,
    exit: Arc<ExitState>,
    statistics: Statistics,
    /// Frames that were received when the kernel's counts were taken.
    counted: u64,
    // Dropped last: while the port is being closed, packets are lost rather than handled twice.
    guard: Option<Guard>,
}

/// What a port's senders know of its interface, by the last event that the port was told.
#[derive(Debug, Default)]
struct ExitState {
    has_carrier: AtomicBool,
    mtu: AtomicU32,
}

/// Sends frames out of the interface of a [`Port`].
#[derive(Debug)]
pub struct Sender {
    interface: String,
    socket: Arc<OwnedFd>,
    exit: Arc<ExitState>,
    /// Whether frames go to the driver past the queueing discipline.
    bypasses: bool,
    statistics: SendStatistics,
}

impl Port {
    /// Opens an interface of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::NoInterface`], [`Error::HardwareType`]: there is none of this name, or not of a kind that is known.
    /// [`Error::NotPermitted`]: CAP_NET_RAW is needed, and CAP_NET_ADMIN for a guard. [`Error::Guard`]: see [`Guard::install`].
    /// [`Error::Interface`]: the system refuses, for lack of memory for the rings perhaps.
    pub fn open(options: &Options) -> Result<Self, Error> {
        let link = Link::by_name(&options.interface)?;
        let link_type = link_type(&link, options.mode)?;
        // First of all: what comes before the sockets are ready is lost, but nothing is handled twice.
        let guard = match options.mode {
            Mode::Inline if options.guard => Some(Guard::install(&options.interface)?),
            _ => None,
        };
        let failed = |error| failed(&options.interface, "open a packet socket on it", error);
        let rings = Rings::of(options, &link);
        let outgoing = options.outgoing && options.mode == Mode::Monitor && link.hardware != LOOPBACK;
        let mut port = Self {
            interface: options.interface.clone(),
            number: options.number,
            mode: options.mode,
            outgoing,
            snap: rings.snap,
            is_promiscuous: options.promiscuous,
            link: link_type,
            index: link.index,
            mtu: link.mtu,
            state: PortState::of(&link),
            frames: rings.frames.open(outgoing).map_err(failed)?,
            giants: rings.giants.map(|ring| ring.open(outgoing).map_err(failed)).transpose()?,
            sending: Arc::new(sending_socket().map_err(failed)?),
            exit: Arc::default(),
            statistics: Statistics::default(),
            counted: 0,
            guard,
        };
        port.bind(&link)?;
        Ok(port)
    }

    /// Has all sockets use this interface, which has the port's name.
    fn bind(&mut self, link: &Link) -> Result<(), Error> {
        let bind = |socket: BorrowedFd<'_>, protocols| {
            socket::bind(socket, link.index, protocols)?;
            // That the interface is down is no reason not to use it.
            let _ = rustix::net::sockopt::socket_error(socket);
            Ok(())
        };
        bind(self.sending.as_fd(), Protocols::None)
            .and_then(|()| self.giants.iter().try_for_each(|ring| bind(ring.as_fd(), Protocols::All)))
            .and_then(|()| bind(self.frames.as_fd(), Protocols::All))
            .and_then(|()| match self.is_promiscuous {
                true => socket::set_promiscuous(&self.frames, link.index),
                false => Ok(()),
            })
            .map_err(|error| failed(&self.interface, "use it", error))?;
        self.index = link.index;
        self.note(link);
        Ok(())
    }

    /// Takes note of the state of its interface.
    fn note(&mut self, link: &Link) {
        (self.mtu, self.state) = (link.mtu, PortState::of(link));
        self.exit.has_carrier.store(self.state == PortState::Up, Ordering::Relaxed);
        self.exit.mtu.store(link.mtu, Ordering::Relaxed);
    }

    fn set_gone(&mut self) {
        self.state = PortState::Gone;
        self.exit.has_carrier.store(false, Ordering::Relaxed);
    }

    /// Takes the frames that are there now into `buffer`, as many as it has room for. It does not wait.
    ///
    /// Frames of one flow come in the order in which they came to the interface, whichever ring they lie in.
    pub fn receive(&mut self, buffer: &mut ReceiveBuffer) -> Received {
        let mut filler = buffer.filler();
        let mut frames = 0;
        let is_more_left = loop {
            let giant = || self.giants.as_ref().and_then(Ring::head_time);
            let Some(is_giant) = is_giant_next(|| self.frames.head_time(), giant) else { break false };
            let Self { giants, frames: ring, statistics, mode, outgoing, snap, link, number, .. } = self;
            let ring = match giants {
                Some(giants) if is_giant => giants,
                _ => ring,
            };
            let Some(slot) = ring.slot() else { break false };
            let copying =
                Copying { mode: *mode, outgoing: *outgoing, snap: *snap, link: *link, number: *number };
            match copying.copy(slot, &mut filler, statistics) {
                Some(is_received) => frames += usize::from(is_received),
                None => break true,
            }
        };
        if self.statistics.received - self.counted >= COUNTED {
            // Where it fails, the next one who asks for the counts is told.
            let _ = self.statistics();
        }
        Received { frames, is_more_left }
    }

    /// What sends frames out of its interface, in another thread perhaps; it goes on where the port does.
    pub fn sender(&self) -> Sender {
        Sender {
            interface: self.interface.clone(),
            socket: self.sending.clone(),
            exit: self.exit.clone(),
            bypasses: true,
            statistics: SendStatistics::default(),
        }
    }

    /// What has gone through it so far.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`]: the kernel does not tell.
    pub fn statistics(&mut self) -> Result<Statistics, Error> {
        self.counted = self.statistics.received;
        for ring in std::iter::once(&self.frames).chain(&self.giants) {
            let (arrived, dropped) = socket::take_statistics(ring)
                .map_err(|error| failed(&self.interface, "count its packets", error))?;
            self.statistics.arrived += u64::from(arrived);
            self.statistics.dropped += u64::from(dropped);
        }
        Ok(self.statistics)
    }

    /// Takes note of what happened to an interface, this one or another. When this one was removed and there is one of its name again, the
    /// port goes on with that. Returns the state of the port if it has changed, or the port goes on with another interface.
    ///
    /// # Errors
    ///
    /// The interface that is there again cannot be used: as [`Port::open`]; the port stays [`PortState::Gone`]. One that was renamed cannot be
    /// guarded: [`Error::Guard`].
    pub fn update(&mut self, event: &LinkEvent) -> Result<Option<PortState>, Error> {
        let before = (self.state, self.index);
        match event {
            // One that was removed may come back with the index that it had.
            LinkEvent::Changed(link) if link.index == self.index && self.state != PortState::Gone => {
                self.follow(link)?;
            }
            // With the same index perhaps, where it comes back from another namespace.
            LinkEvent::Changed(link) if self.state == PortState::Gone && link.name == self.interface => {
                self.reopen(link)?;
            }
            LinkEvent::Removed(link) if link.index == self.index => self.set_gone(),
            LinkEvent::Lost => {
                let links = Link::all()?;
                let is_gone = self.state == PortState::Gone;
                let same = links.iter().find(|link| link.index == self.index && !is_gone);
                match same.or_else(|| links.iter().find(|link| link.name == self.interface)) {
                    Some(link) if link.name != self.interface && link.index == self.index => {
                        self.follow(link)?
                    }
                    // Also where it is the same: it may have been away meanwhile, and to bind sockets again does no harm.
                    Some(link) => self.reopen(link)?,
                    None => self.set_gone(),
                }
            }
            _ => {}
        }
        Ok((before != (self.state, self.index)).then_some(self.state))
    }

    /// Takes note of a change of its interface, of the name perhaps: the port's own name stays, and its guard goes where the interface is.
    fn follow(&mut self, link: &Link) -> Result<(), Error> {
        self.note(link);
        match &mut self.guard {
            Some(guard) if guard.interface() != link.name => guard.follow(&link.name),
            _ => Ok(()),
        }
    }

    /// Goes on with another interface of the same name. That it was removed meanwhile is no error: there will be an event.
    fn reopen(&mut self, link: &Link) -> Result<(), Error> {
        self.set_gone();
        self.use_link(link).or_else(|error| match Link::by_name(&self.interface) {
            Ok(present) if present.index == link.index => Err(error),
            Err(other) if !matches!(other, Error::NoInterface { .. }) => Err(other),
            _ => Ok(()),
        })
    }

    fn use_link(&mut self, link: &Link) -> Result<(), Error> {
        let link_type = link_type(link, self.mode)?;
        if link_type != self.link {
            let expected = "the same as that of the interface that had this name before";
            return Err(Error::HardwareType {
                interface: self.interface.clone(),
                hardware: link.hardware,
                expected,
            });
        }
        if let Some(guard) = &mut self.guard {
            guard.follow(&link.name)?;
        }
        self.bind(link)
    }

    /// Whether it can be used, by the last event it was told.
    pub fn state(&self) -> PortState {
        self.state
    }

    /// Name of its interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The number that its frames are marked with.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// What its frames begin with.
    pub fn link_type(&self) -> LinkType {
        self.link
    }

    /// Index of its interface, as in a [`Link`].
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Bytes of the longest packet that its interface takes, without the link header, by the last event it was told.
    ///
    /// Two ports that forward to each other should have the same. The kernel has room for one 802.1Q tag on top of it when it sends, and for
    /// no other: where frames of the full length carry an 802.1ad tag or two tags, the MTU must be 4 or 8 bytes larger.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Bytes on the wire of the frames received so far.
    pub(in super::super) fn received_bytes(&self) -> u64 {
        self.statistics.received_bytes
    }

    /// Bytes of memory that its rings take.
    pub fn ring_bytes(&self) -> usize {
        self.frames.bytes() + self.giants.as_ref().map_or(0, Ring::bytes)
    }

    /// Frames of up to the MTU, and longer ones, that its rings hold.
    pub fn ring_frames(&self) -> (usize, usize) {
        (self.frames.slots(), self.giants.as_ref().map_or(0, Ring::slots))
    }

    /// What to wait for to become readable: see [`wait`](super::wait()), which also takes errors.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
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
    mode: Mode,
    outgoing: bool,
    snap: usize,
    link: LinkType,
    number: u16,
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
        } else if self.mode == Mode::Inline && len < slot.wire_len() as usize {
            Some(&mut statistics.oversized)
        } else {
            None
        };
        if let Some(skipped) = skipped {
            *skipped += 1;
            slot.release();
            return Some(false);
        }
        let tag = slot.tag().filter(|_| self.link == LinkType::ETHERNET && Tag::fits(len));
        let added = if tag.is_some() { Tag::LEN } else { 0 };
        let captured = (len + added).min(self.snap);
        let wire_len = slot.wire_len() + added as u32;
        let arrival = Arrival {
            time: slot.time(),
            wire_len,
            link: self.link,
            port: self.number,
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
        statistics.segments += u64::from(segments);
        statistics.received_bytes += u64::from(wire_len);
        slot.release();
        Some(true)
    }
}

impl Sender {
    /// Sends frames in their order, as many as are taken, without waiting.
    ///
    /// The rest is the caller's: a few more tries, then they are dropped and counted. Frames that cannot be sent at all are passed over and
    /// counted in [`SendStatistics`].
    ///
    /// # Errors
    ///
    /// [`Error::Interface`]: the system says something that is not expected; no frame was taken.
    pub fn send(&mut self, frames: &[Outgoing<'_>]) -> Result<Sent, Error> {
        let mut taken = 0;
        while taken < frames.len() {
            let rest = &frames[taken..];
            match self.take(rest) {
                Ok(sent) => {
                    self.statistics.sent += sent as u64;
                    self.statistics.sent_bytes +=
                        rest[..sent].iter().map(|frame| frame.bytes.len() as u64).sum::<u64>();
                    taken += sent;
                }
                Err(Errno::INTR) => {}
                Err(Errno::MSGSIZE) => {
                    self.statistics.too_long += 1;
                    taken += 1;
                }
                Err(Errno::INVAL) => {
                    self.statistics.refused += 1;
                    taken += 1;
                }
                Err(error) => {
                    let stop = match error {
                        Errno::NOBUFS | Errno::AGAIN => Stop::Busy,
                        Errno::NETDOWN => Stop::Down,
                        Errno::NXIO | Errno::NODEV => Stop::Gone,
                        // The next call says it again, with nothing taken before.
                        _ if taken > 0 => Stop::Busy,
                        error => return Err(failed(&self.interface, "send to it", error.into())),
                    };
                    self.statistics.stops += 1;
                    return Ok(Sent { taken, stopped: Some(stop) });
                }
            }
        }
        Ok(Sent { taken, stopped: None })
    }

    /// Bytes of the longest packet that its interface takes, without the link header, by the last event that the port was told.
    pub fn mtu(&self) -> u32 {
        self.exit.mtu.load(Ordering::Relaxed)
    }

    /// What it has sent so far.
    pub fn statistics(&self) -> SendStatistics {
        self.statistics
    }

    /// Sends what is taken at once: at least one frame, or an error.
    fn take(&mut self, frames: &[Outgoing<'_>]) -> Result<usize, Errno> {
        // Without a carrier a queueing discipline drops frames and says that they were sent.
        if !self.bypasses && !self.exit.has_carrier.load(Ordering::Relaxed) {
            self.set_bypass(true)?;
        }
        match send::send(self.socket.as_fd(), frames) {
            // Past the queueing discipline, the kernel drops a giant that the driver does not cut itself. The other way it cuts it, so all
            // frames go that way then, lest they overtake each other. Without a carrier it has no room for any frame.
            Err(Errno::NOBUFS)
                if self.bypasses
                    && frames[0].offload.is_giant()
                    && socket::is_running(&self.socket, &self.interface) =>
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

/// What frames of an interface begin with.
fn link_type(link: &Link, mode: Mode) -> Result<LinkType, Error> {
    match (link.hardware, mode) {
        (libc::ARPHRD_ETHER, _) | (LOOPBACK, Mode::Monitor) => Ok(LinkType::ETHERNET),
        (NO_HEADER, Mode::Monitor) => Ok(LinkType::RAW),
        (hardware, mode) => {
            let expected = match mode {
                Mode::Monitor => "1 (Ethernet), 772 (loopback) or 65534 (IP without a link header)",
                Mode::Inline => "1 (Ethernet)",
            };
            Err(Error::HardwareType { interface: link.name.clone(), hardware, expected })
        }
    }
}

fn failed(interface: &str, action: &'static str, source: io::Error) -> Error {
    let interface = interface.into();
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            Error::NotPermitted { interface, action, capability: "CAP_NET_RAW" }
        }
        _ => Error::Interface { interface, action, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mtu: u32, hardware: u16) -> Link {
        Link { index: 7, name: "eth7".into(), hardware, mtu, is_up: true, has_carrier: true }
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

    #[test]
    fn hardware_that_is_not_known_is_refused() {
        assert_eq!(link_type(&link(1_500, 1), Mode::Inline).expect("Ethernet"), LinkType::ETHERNET);
        assert_eq!(link_type(&link(1_500, NO_HEADER), Mode::Monitor).expect("IP"), LinkType::RAW);
        for (hardware, mode) in [(NO_HEADER, Mode::Inline), (LOOPBACK, Mode::Inline), (803, Mode::Monitor)] {
            let error = link_type(&link(1_500, hardware), mode).expect_err("not known").to_string();
            assert!(error.starts_with("eth7: hardware type") && error.contains("1 (Ethernet)"), "{error}");
        }
    }
}
