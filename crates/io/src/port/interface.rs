//! A network interface in use, whichever way the kernel hands over its frames.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use packetloom_packet::LinkType;

use super::af_packet::{PacketSender, PacketSockets};
use super::af_xdp::{Attachment, Transmit, Umem, XdpSockets};
use super::receive::Filler;
use super::{Guard, Link, LinkEvent, Offload, ReceiveBuffer};
use crate::Error;

/// `ARPHRD_LOOPBACK`, whose frames begin like Ethernet's, and `ARPHRD_NONE`, whose frames begin with IP.
pub(super) const LOOPBACK: u16 = 772;
const NO_HEADER: u16 = 0xfffe;

/// What is done with the frames of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are looked at, and the kernel handles them as well. They may be cut.
    Monitor,
    /// They are forwarded by this process alone: frames are whole, and by default the kernel drops them ([`Guard`]).
    Inline,
}

/// How the kernel hands over the frames of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// AF_XDP where the interface's driver runs XDP programs and the port is inline, else packet sockets.
    Auto,
    /// Packet sockets (packet(7)).
    #[default]
    AfPacket,
    /// AF_XDP sockets: only inline, since frames are taken from the kernel. The driver runs the XDP program, or else the kernel does.
    AfXdp,
}

/// What a port uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortBackend {
    /// Packet sockets.
    AfPacket,
    /// AF_XDP sockets, with an XDP program that the driver runs.
    AfXdpNative,
    /// AF_XDP sockets, with an XDP program that the kernel runs behind the driver.
    AfXdpGeneric,
}

impl PortBackend {
    /// Its name in summaries.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AfPacket => "af_packet",
            Self::AfXdpNative => "af_xdp_native",
            Self::AfXdpGeneric => "af_xdp_generic",
        }
    }
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
    /// How the kernel hands over frames.
    pub backend: Backend,
    /// Bytes of memory in which frames of up to the MTU wait to be received; each takes 2 KiB at an MTU of 1,500. AF_XDP uses as much of it as
    /// 4,096 frames for each receive queue take.
    pub ring_bytes: usize,
    /// Bytes of memory in which longer frames wait to be received; each takes 64 KiB. Without effect where `snap` is given, and with AF_XDP.
    pub giants_bytes: usize,
    /// Bytes that are captured of each frame, at most; `None`: all. Only monitors may cut frames.
    pub snap: Option<u32>,
    /// Whether frames are received that this machine sends; only by monitors. A loopback interface shows them as they come back.
    pub outgoing: bool,
    /// Whether frames for others are received.
    pub promiscuous: bool,
    /// Whether the kernel is kept from handling the frames by a [`Guard`]; only inline. AF_XDP takes them from the kernel anyway, but for those
    /// that the driver does not show to the XDP program.
    pub guard: bool,
}

impl Options {
    /// The usual options: packet sockets, promiscuous, 32 MiB for frames and as many for giants, and inline a guard.
    pub fn new(interface: impl Into<String>, mode: Mode) -> Self {
        Self {
            interface: interface.into(),
            number: 0,
            mode,
            backend: Backend::AfPacket,
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
    /// Frames that the driver's queues had no room for, by the driver's own counters; `arrived` is without them. Known with AF_XDP only.
    pub dropped_by_driver: u64,
    /// Frames of those received that were copied out of the memory they came in. By packet sockets, all are.
    pub copied: u64,
}

/// What a [`Sender`] has sent; with AF_XDP, what all senders of its port have.
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
    /// Frames that the kernel took and dropped then, since the interface had no room or its peer is down. By packet sockets there are none: such a
    /// frame is not taken.
    pub dropped: u64,
    /// How often sending stopped for lack of room or a peer that is down.
    pub stops: u64,
    /// Frames that were copied to be sent. By packet sockets, all are: the kernel does it.
    pub copied: u64,
}

/// A frame to be sent, with its VLAN tags, and what the interface has left to do to it.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// All of its bytes, from the link header on.
    pub bytes: &'a [u8],
    /// As it came with the frame: see [`complete_checksum`](crate::port::complete_checksum()) for frames that were rewritten.
    pub offload: Offload,
}

/// A network interface in use. It is moved between threads freely and used by one at a time.
#[derive(Debug)]
pub struct Port {
    interface: String,
    number: u16,
    mode: Mode,
    link: LinkType,
    index: u32,
    mtu: u32,
    state: PortState,
    sockets: Sockets,
    /// Why it does not use what would be better.
    reason: Option<String>,
    exit: Arc<Exit>,
    statistics: Statistics,
    // Dropped last: while the port is being closed, packets are lost rather than handled twice.
    guard: Option<Guard>,
}

/// What a port has its frames by.
#[derive(Debug)]
enum Sockets {
    Packet(PacketSockets),
    Xdp(Box<XdpSockets>),
}

/// What frames of a port are marked with, and how they are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) mode: Mode,
    pub(super) link: LinkType,
    pub(super) number: u16,
}

/// What a port's senders know of its interface, by the last event that the port was told.
#[derive(Debug)]
pub(super) struct Exit {
    state: AtomicU8,
    mtu: AtomicU32,
}

impl Exit {
    pub(super) fn new(link: &Link) -> Self {
        let exit = Self { state: AtomicU8::new(0), mtu: AtomicU32::new(0) };
        exit.note(PortState::of(link), link.mtu);
        exit
    }

    fn note(&self, state: PortState, mtu: u32) {
        self.state.store(state as u8, Ordering::Relaxed);
        self.mtu.store(mtu, Ordering::Relaxed);
    }

    /// Whether the interface is in this state.
    pub(super) fn is(&self, state: PortState) -> bool {
        self.state.load(Ordering::Relaxed) == state as u8
    }

    /// Bytes of the longest packet, without the link header.
    pub(super) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }
}

/// Memory that ports share where they use AF_XDP, and the place of one of them in it.
pub(super) type Shared = (Arc<Umem>, usize);

/// Sends frames out of the interface of a [`Port`].
#[derive(Debug)]
pub struct Sender {
    interface: String,
    exit: Arc<Exit>,
    way: Way,
}

/// How frames are sent.
#[derive(Debug)]
enum Way {
    Packet(PacketSender, SendStatistics),
    Xdp(Arc<Mutex<Transmit>>),
}

impl Port {
    /// Opens an interface of the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::NoInterface`], [`Error::HardwareType`]: there is none of this name, or not of a kind that is known.
    /// [`Error::NotPermitted`]: CAP_NET_RAW is needed, CAP_NET_ADMIN for a guard, and that and CAP_BPF for AF_XDP. [`Error::Guard`]: see
    /// [`Guard::install`]. [`Error::Xdp`]: AF_XDP was asked for and cannot be used. [`Error::Interface`]: the system refuses, for lack of
    /// memory for the rings perhaps.
    pub fn open(options: &Options) -> Result<Self, Error> {
        Self::open_in(options, None)
    }

    /// As [`Port::open`], with memory that it shares with others where it uses AF_XDP, and its place there.
    pub(super) fn open_in(options: &Options, shared: Option<Shared>) -> Result<Self, Error> {
        let xdp = |attachment| Self::open_with(options, Some((attachment, shared.clone())));
        match (options.backend, options.mode) {
            (Backend::AfPacket, _) => Self::open_with(options, None),
            (Backend::AfXdp, Mode::Monitor) => Err(Error::Xdp {
                interface: options.interface.clone(),
                reason: "the kernel would not get the packets that a monitor only looks at; expected mode \"inline\", or backend \"af_packet\"".into(),
            }),
            (Backend::AfXdp, Mode::Inline) => match xdp(Attachment::Native) {
                Err(Error::Xdp { reason, .. }) => xdp(Attachment::Generic).map(|port| port.because(reason)),
                result => result,
            },
            (Backend::Auto, Mode::Monitor) => Self::open_with(options, None)
                .map(|port| port.because("a monitor must leave packets to the kernel".into())),
            (Backend::Auto, Mode::Inline) => match xdp(Attachment::Native) {
                Err(Error::Xdp { reason, .. }) => Self::open_with(options, None).map(|port| port.because(reason)),
                Err(Error::NotPermitted { action, capability, .. }) => {
                    let reason = format!("not permitted to {action}, which takes {capability}");
                    Self::open_with(options, None).map(|port| port.because(reason))
                }
                result => result,
            },
        }
    }

    /// Says why it uses what it uses.
    pub(super) fn because(mut self, reason: String) -> Self {
        self.reason = Some(reason);
        self
    }

    fn open_with(options: &Options, xdp: Option<(Attachment, Option<Shared>)>) -> Result<Self, Error> {
        let link = Link::by_name(&options.interface)?;
        let link_type = link_type(&link, options.mode)?;
        // First of all: of two processes one is refused before it has taken anything.
        let guard = match options.mode {
            // With AF_XDP as well: veth runs no program for queues that are added later.
            Mode::Inline if options.guard => Some(Guard::claim(&options.interface)?),
            _ => None,
        };
        let is_xdp = xdp.is_some();
        let sockets = match xdp {
            None => Sockets::Packet(
                PacketSockets::open(options, &link)
                    .map_err(|error| failed(&options.interface, "open a packet socket on it", error))?,
            ),
            Some((attachment, shared)) => {
                Sockets::Xdp(Box::new(XdpSockets::new(options, attachment, shared)))
            }
        };
        let mut port = Self {
            interface: options.interface.clone(),
            number: options.number,
            mode: options.mode,
            link: link_type,
            index: link.index,
            mtu: link.mtu,
            state: PortState::of(&link),
            sockets,
            reason: None,
            exit: Arc::new(Exit::new(&link)),
            statistics: Statistics::default(),
            guard,
        };
        // Until the port takes the frames, the kernel handles them as it did before. A packet socket gets them beside the kernel, which is
        // kept from them before: what comes in between is lost, but nothing is handled twice. An XDP program takes them from the kernel.
        let activate = |port: &mut Self| port.guard.as_mut().map_or(Ok(()), Guard::activate);
        if !is_xdp {
            activate(&mut port)?;
        }
        port.bind(&link)?;
        if is_xdp {
            activate(&mut port)?;
        }
        Ok(port)
    }

    /// Leaves frames that come from now on to the kernel. Those that came before can still be received, and frames can be sent; nothing else can
    /// be done with it.
    pub(super) fn release(&mut self) -> Result<(), Error> {
        match &mut self.sockets {
            Sockets::Packet(sockets) => sockets
                .close_rings()
                .map_err(|error| failed(&self.interface, "receive no more of it", error))?,
            Sockets::Xdp(sockets) => sockets.detach(),
        }
        self.guard = None;
        Ok(())
    }

    /// Has all sockets use this interface, which has the port's name.
    fn bind(&mut self, link: &Link) -> Result<(), Error> {
        match &mut self.sockets {
            Sockets::Packet(sockets) => {
                sockets.bind(link).map_err(|error| failed(&self.interface, "use it", error))?;
            }
            Sockets::Xdp(sockets) => sockets.bind(&self.interface, link)?,
        }
        self.index = link.index;
        self.note(link);
        Ok(())
    }

    /// Takes note of the state of its interface.
    fn note(&mut self, link: &Link) {
        (self.mtu, self.state) = (link.mtu, PortState::of(link));
        self.exit.note(self.state, link.mtu);
    }

    fn set_gone(&mut self) {
        self.state = PortState::Gone;
        self.exit.note(self.state, self.mtu);
        if let Sockets::Xdp(sockets) = &mut self.sockets {
            sockets.leave();
        }
    }

    /// Takes the frames that are there now into `buffer`, as many as it has room for. It does not wait.
    ///
    /// Frames of one flow come in the order in which they came to the interface, whichever ring they lie in; with AF_XDP, as long as the driver
    /// puts them into one queue.
    pub fn receive(&mut self, buffer: &mut ReceiveBuffer) -> Received {
        let marks = Marks { mode: self.mode, link: self.link, number: self.number };
        let filler: &mut Filler<'_> = &mut buffer.filler();
        match &mut self.sockets {
            Sockets::Packet(sockets) => sockets.receive(marks, filler, &mut self.statistics),
            Sockets::Xdp(sockets) => sockets.receive(marks, filler, &mut self.statistics),
        }
    }

    /// What sends frames out of its interface, in another thread perhaps; it goes on where the port does.
    pub fn sender(&self) -> Sender {
        let way = match &self.sockets {
            Sockets::Packet(sockets) => Way::Packet(sockets.sender(), SendStatistics::default()),
            Sockets::Xdp(sockets) => Way::Xdp(sockets.transmit()),
        };
        Sender { interface: self.interface.clone(), exit: self.exit.clone(), way }
    }

    /// What has gone through it so far.
    ///
    /// # Errors
    ///
    /// [`Error::Interface`]: the kernel does not tell.
    pub fn statistics(&mut self) -> Result<Statistics, Error> {
        let counted = match &mut self.sockets {
            Sockets::Packet(sockets) => sockets.count(&mut self.statistics),
            Sockets::Xdp(sockets) => sockets.count(&mut self.statistics),
        };
        counted.map_err(|error| failed(&self.interface, "count its packets", error))?;
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
        if let Sockets::Xdp(sockets) = &mut self.sockets {
            sockets.set_name(&link.name);
        }
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
    pub(super) fn received_bytes(&self) -> u64 {
        self.statistics.received_bytes
    }

    /// What it uses.
    pub fn backend(&self) -> PortBackend {
        match &self.sockets {
            Sockets::Packet(_) => PortBackend::AfPacket,
            Sockets::Xdp(sockets) => sockets.backend(),
        }
    }

    /// Why it uses that and not something better, where it was to choose.
    pub fn backend_reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Bytes of memory that its rings take.
    pub fn ring_bytes(&self) -> usize {
        match &self.sockets {
            Sockets::Packet(sockets) => sockets.ring_bytes(),
            Sockets::Xdp(sockets) => sockets.ring_bytes(),
        }
    }

    /// Frames of up to the MTU, and longer ones, that its rings hold.
    pub fn ring_frames(&self) -> (usize, usize) {
        match &self.sockets {
            Sockets::Packet(sockets) => sockets.ring_frames(),
            Sockets::Xdp(sockets) => (sockets.ring_frames(), 0),
        }
    }

    /// Whether frames wait to be sent although they were taken, so that somebody has to [receive](Port::receive) or send soon.
    pub(super) fn has_pending(&self) -> bool {
        match &self.sockets {
            Sockets::Packet(_) => false,
            Sockets::Xdp(sockets) => sockets.has_pending(),
        }
    }

    /// What to wait for to become readable: see [`wait`](super::wait()), which also takes errors.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone {
        let (packet, xdp) = match &self.sockets {
            Sockets::Packet(sockets) => (Some(sockets), None),
            Sockets::Xdp(sockets) => (None, Some(&**sockets)),
        };
        packet.into_iter().flat_map(PacketSockets::fds).chain(xdp.into_iter().flat_map(XdpSockets::fds))
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
        let sent = match &mut self.way {
            Way::Packet(sender, statistics) => sender.send(frames, &self.interface, &self.exit, statistics),
            Way::Xdp(transmit) => lock(transmit).send(frames, &self.exit),
        };
        sent.map_err(|error| failed(&self.interface, "send to it", error.into()))
    }

    /// Bytes of the longest packet that its interface takes, without the link header, by the last event that the port was told.
    pub fn mtu(&self) -> u32 {
        self.exit.mtu()
    }

    /// What it has sent so far.
    pub fn statistics(&self) -> SendStatistics {
        match &self.way {
            Way::Packet(_, statistics) => *statistics,
            Way::Xdp(transmit) => lock(transmit).statistics(),
        }
    }
}

/// What sends, also where somebody has panicked with it: its rings are in order between any two of its steps.
pub(super) fn lock(transmit: &Mutex<Transmit>) -> std::sync::MutexGuard<'_, Transmit> {
    transmit.lock().unwrap_or_else(PoisonError::into_inner)
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

pub(super) fn failed(interface: &str, action: &'static str, source: io::Error) -> Error {
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
    fn hardware_that_is_not_known_is_refused() {
        assert_eq!(link_type(&link(1_500, 1), Mode::Inline).expect("Ethernet"), LinkType::ETHERNET);
        assert_eq!(link_type(&link(1_500, NO_HEADER), Mode::Monitor).expect("IP"), LinkType::RAW);
        for (hardware, mode) in [(NO_HEADER, Mode::Inline), (LOOPBACK, Mode::Inline), (803, Mode::Monitor)] {
            let error = link_type(&link(1_500, hardware), mode).expect_err("not known").to_string();
            assert!(error.starts_with("eth7: hardware type") && error.contains("1 (Ethernet)"), "{error}");
        }
    }
}
