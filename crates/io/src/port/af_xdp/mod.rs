//! A network interface by AF_XDP sockets.
//!
//! An XDP program hands each frame to the socket of its receive queue before the kernel sees it. The kernel copies frames into memory that is
//! mapped here (UMEM, copy mode) and that all interfaces of a run share. There they lie while a batch holds them, and from there they leave, by
//! the first queue of another interface. A frame has its VLAN tags, and may lie in several chunks of memory. What its sender has left to be done does not come with it: a partial
//! checksum is guessed, where the driver is one that hands over such frames, and finished when the frame leaves.

mod program;
mod queue;
mod ring;
mod socket;
mod transmit;
mod umem;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

pub(super) use self::program::Attachment;
use self::program::{MOST_QUEUES, Redirect};
use self::queue::Taking;
use self::socket::{Queue, QueuePlan, SENDS};
pub(super) use self::transmit::Transmit;
pub(super) use self::umem::{Lent, Umem};
use super::af_packet::socket as packet;
use super::interface::{Marks, lock};
use super::receive::Filler;
use super::{Link, Options, PortBackend, Received, Statistics, ethtool};
use crate::Error;

/// Frames that a queue's memory holds.
const FRAMES: std::ops::RangeInclusive<usize> = 64..=4_096;
/// Bytes that the kernel keeps free before a frame in a chunk (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Bytes of a link header and of tags on top of an MTU.
const LINK_HEADERS: usize = 32;
/// Sizes of chunks.
const SMALL_CHUNK: usize = 2_048;
const LARGE_CHUNK: usize = 4_096;
/// The kernel lets go of a queue, or of an interface's program, some milliseconds after the sockets were closed: how long that is waited for,
/// and how often it is looked.
const PATIENCE: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(2);
/// Drivers that hand over frames of local senders and of virtual machines, which leave checksums partial.
const PARTIAL: [&str; 3] = ["veth", "tun", "virtio_net"];

/// The AF_XDP sockets of a port.
#[derive(Debug)]
pub(super) struct XdpSockets {
    attachment: Attachment,
    is_promiscuous: bool,
    /// The memory, and the interface's place in it.
    umem: Arc<Umem>,
    place: usize,
    /// Name of the interface as it is now.
    name: String,
    /// None where the interface is gone: what it left in the rings can still be received.
    attached: Option<Attached>,
    queues: Vec<Queue>,
    /// The queue that is looked at first.
    first: usize,
    transmit: Arc<Mutex<Transmit>>,
    has_pending: Arc<AtomicBool>,
    is_under_way: Arc<AtomicBool>,
    /// Frames dropped before the sockets were opened that are open now; by the kernel, and by the driver.
    dropped: u64,
    dropped_by_driver: u64,
    /// Whether its senders may leave checksums partial.
    guesses: bool,
}

/// What holds an interface.
#[derive(Debug)]
struct Attached {
    redirect: Redirect,
    /// Keeps the interface promiscuous, and asks its driver.
    asking: OwnedFd,
    /// The driver's count of frames that it dropped when the sockets were opened.
    drops_before: u64,
}

impl XdpSockets {
    /// Sockets that are still to be [bound](Self::bind), and use the memory of this place.
    pub(super) fn new(options: &Options, attachment: Attachment, (umem, place): (Arc<Umem>, usize)) -> Self {
        let transmit = Transmit::default();
        Self {
            attachment,
            is_promiscuous: options.promiscuous,
            umem,
            place,
            name: String::new(),
            attached: None,
            queues: Vec::new(),
            first: 0,
            has_pending: transmit.pending(),
            is_under_way: transmit.under_way(),
            transmit: Arc::new(Mutex::new(transmit)),
            dropped: 0,
            dropped_by_driver: 0,
            guesses: false,
        }
    }

    /// Takes the frames of an interface, by new sockets: what is left in old ones is lost, and counted.
    pub(super) fn bind(&mut self, interface: &str, link: &Link) -> Result<(), Error> {
        self.leave();
        self.close();
        self.take(interface, link).inspect_err(|_| {
            self.leave();
            self.close();
        })
    }

    fn take(&mut self, interface: &str, link: &Link) -> Result<(), Error> {
        let failed = |step, error| explain(interface, step, error);
        self.name.clone_from(&link.name);
        let asking = packet::open().map_err(|error| failed(Step::Ask, errno(&error)))?;
        if self.is_promiscuous {
            packet::set_promiscuous(&asking, link.index).map_err(|error| failed(Step::Ask, errno(&error)))?;
        }
        let driver = ethtool::driver(&asking, &link.name).unwrap_or_default();
        self.guesses = PARTIAL.contains(&driver.as_str());
        // Frames would leave without them. A veth says so, too, but takes out none that lie in the frame.
        if driver != "veth" && ethtool::strips_tags(&asking, &link.name).unwrap_or(false) {
            let reason = format!(
                "its driver takes VLAN tags out of frames, and AF_XDP does not show them; `ethtool -K {} rxvlan off` leaves them there",
                link.name
            );
            return Err(Error::Xdp { interface: interface.into(), reason });
        }
        let mut redirect = Redirect::load().map_err(|error| failed(Step::Load, error))?;
        let begin = Instant::now();
        let said = |asking| ethtool::receive_queues(asking, &link.name).ok();
        let queues_before = said(&asking);
        // All queues have sockets before the program is attached: until then the kernel handles all frames, from then on none.
        self.open_queues(link, queues_before, &redirect, begin).map_err(|error| failed(Step::Bind, error))?;
        while let Err(error) = redirect.attach(link.index, self.attachment) {
            if !is_busy(error, begin) {
                return Err(failed(Step::Attach, error));
            }
            thread::sleep(RETRY);
        }
        // Some drivers have more queues once a program is attached. Then the memory is divided once more.
        let queues_now = said(&asking);
        if queues_now > queues_before {
            self.close();
            self.open_queues(link, queues_now, &redirect, begin)
                .map_err(|error| failed(Step::Bind, error))?;
        }
        let drops_before = ethtool::queue_drops(&asking, &link.name).unwrap_or(0);
        self.attached = Some(Attached { redirect, asking, drops_before });
        Ok(())
    }

    /// Opens sockets for so many queues, if the driver says how many there are.
    fn open_queues(
        &mut self,
        link: &Link,
        said: Option<u32>,
        redirect: &Redirect,
        begin: Instant,
    ) -> Result<(), Errno> {
        let count = queues(said, link);
        let most = *FRAMES.end() as u32;
        let frames = self.umem.divide(self.place, count, most).map_err(|error| errno(&error))?;
        lock(&self.transmit).replace(None);
        for queue in 0..count {
            let (place, sends) = (self.place, queue == 0);
            let plan = QueuePlan { interface: link.index, queue, place, frames, sends };
            let (in_use, sending) = loop {
                // What is tried again is tried with rings of its own.
                match Queue::open(&self.umem, plan) {
                    Err(error) if is_busy(error, begin) => thread::sleep(RETRY),
                    // Where the driver does not say how many there are, this is one too many.
                    Err(Errno::INVAL) if queue > 0 && said.is_none() => return Ok(()),
                    opened => break opened?,
                }
            };
            redirect.set_socket(queue, &in_use)?;
            self.queues.push(in_use);
            if queue == 0 {
                lock(&self.transmit).replace(sending);
            }
        }
        Ok(())
    }

    /// Leaves frames that come from now on to the kernel; what came before can be received, and frames can be sent.
    pub(super) fn detach(&mut self) {
        if let Some(attached) = &mut self.attached {
            attached.redirect.detach();
        }
    }

    /// The interface has another name now.
    pub(super) fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// Lets go of the interface; what it left in the rings stays there.
    pub(super) fn leave(&mut self) {
        if let Some(attached) = self.attached.take() {
            self.dropped += attached.redirect.lost().unwrap_or(0);
            self.dropped_by_driver += self.driver_drops(&attached);
        }
        lock(&self.transmit).replace(None);
    }

    /// Closes what receives.
    fn close(&mut self) {
        for queue in &mut self.queues {
            self.dropped += queue.dropped().unwrap_or(0) + queue.receiving.unread();
        }
        self.queues.clear();
    }

    /// Takes the frames that are there now, as many as there is room for, of each queue in turn.
    pub(super) fn receive(
        &mut self,
        marks: Marks,
        filler: &mut Filler<'_>,
        statistics: &mut Statistics,
    ) -> Received {
        if (self.has_pending() || self.is_under_way.load(Ordering::Relaxed))
            && let Ok(mut transmit) = self.transmit.try_lock()
        {
            transmit.flush();
        }
        let mut received = Received::default();
        let mut time = None;
        let queues = self.queues.len();
        for turn in 0..queues {
            let queue = &mut self.queues[(self.first + turn) % queues];
            if queue.receiving.is_idle() {
                // The kernel may have nothing left to receive by.
                queue.receiving.refill();
                continue;
            }
            let taking = Taking { marks, time: *time.get_or_insert_with(wall_nanos), guesses: self.guesses };
            let (frames, is_more_left) = queue.receiving.receive(taking, filler, statistics);
            received.frames += frames;
            received.is_more_left |= is_more_left;
            queue.wake_if_needed();
        }
        self.first = (self.first + 1).checked_rem(queues).unwrap_or(0);
        received
    }

    /// Brings the counts of the kernel and the driver up to date.
    pub(super) fn count(&mut self, statistics: &mut Statistics) -> io::Result<()> {
        let (mut dropped, mut unread) = (self.dropped, 0);
        for queue in &mut self.queues {
            dropped += queue.dropped()?;
            unread += queue.receiving.unread();
        }
        statistics.dropped_by_driver = self.dropped_by_driver;
        if let Some(attached) = &self.attached {
            dropped += attached.redirect.lost()?;
            statistics.dropped_by_driver += self.driver_drops(attached);
        }
        statistics.dropped = dropped;
        let Statistics { received, oversized, unsound, .. } = *statistics;
        statistics.arrived = received + oversized + unsound + dropped + unread;
        Ok(())
    }

    /// Frames that the driver has dropped since the sockets were opened; none where it does not say.
    fn driver_drops(&self, attached: &Attached) -> u64 {
        let drops = ethtool::queue_drops(&attached.asking, &self.name).unwrap_or(0);
        // A driver that runs the program counts those that sockets had no room for.
        let by_sockets: u64 = match self.attachment {
            Attachment::Native => self.queues.iter().map(|queue| queue.dropped().unwrap_or(0)).sum(),
            Attachment::Generic => 0,
        };
        drops.saturating_sub(attached.drops_before).saturating_sub(by_sockets)
    }

    /// What sends, for all senders.
    pub(super) fn transmit(&self) -> Arc<Mutex<Transmit>> {
        self.transmit.clone()
    }

    /// Whether frames were taken and wait in the ring.
    pub(super) fn has_pending(&self) -> bool {
        self.has_pending.load(Ordering::Relaxed)
    }

    pub(super) fn backend(&self) -> PortBackend {
        match self.attachment {
            Attachment::Native => PortBackend::AfXdpNative,
            Attachment::Generic => PortBackend::AfXdpGeneric,
        }
    }

    /// Bytes of memory that received frames lie in.
    pub(super) fn ring_bytes(&self) -> usize {
        self.queues.iter().map(|queue| queue.receiving.bytes()).sum()
    }

    /// Frames of one chunk that its queues hold.
    pub(super) fn ring_frames(&self) -> usize {
        self.queues.iter().map(|queue| queue.receiving.capacity()).sum()
    }

    /// What becomes readable when there are frames; nothing where the interface is gone.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> + Clone + use<'_> {
        let queues = if self.attached.is_some() { &self.queues[..] } else { &[] };
        queues.iter().map(Queue::as_fd)
    }
}

/// Makes memory that interfaces share, for so many bytes of received frames each.
pub(super) fn share_memory(interfaces: &[String], ring_bytes: usize) -> io::Result<Arc<Umem>> {
    // What is not there, or may not be asked, is said when it is opened.
    let asking = packet::open().ok();
    let links = interfaces.iter().map(|name| {
        let link = Link::by_name(name).unwrap_or_default();
        let said = asking.as_ref().and_then(|asking| ethtool::receive_queues(asking, name).ok());
        (link.mtu, queues(said, &link))
    });
    let (chunk, shares) = plan(&links.collect::<Vec<_>>(), ring_bytes);
    Umem::new(chunk, &shares)
}

/// Bytes of a chunk that interfaces share, and how many chunks each gets to receive and to send by, by its MTU and its number of queues.
fn plan(links: &[(u32, u32)], ring_bytes: usize) -> (usize, Vec<(u32, u32)>) {
    let is_small = |mtu: u32| mtu as usize + LINK_HEADERS + HEADROOM <= SMALL_CHUNK;
    let chunk = if links.iter().all(|&(mtu, _)| is_small(mtu)) { SMALL_CHUNK } else { LARGE_CHUNK };
    let shares = links.iter().map(|&(_, queues)| {
        let frames = (ring_bytes / (chunk * queues as usize)).clamp(*FRAMES.start(), *FRAMES.end());
        // Down to a power of two.
        ((1 << frames.ilog2()) * queues, SENDS)
    });
    (chunk, shares.collect())
}

/// Queues of an interface that get sockets, by what its driver says, if it does.
fn queues(said: Option<u32>, link: &Link) -> u32 {
    said.unwrap_or(link.queues).clamp(1, MOST_QUEUES)
}

/// Nanoseconds since the Unix epoch.
fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether what was closed shortly before is still in the way.
fn is_busy(error: Errno, begin: Instant) -> bool {
    error == Errno::BUSY && begin.elapsed() < PATIENCE
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// What is done when an interface is taken into use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A packet socket is opened, and the interface made promiscuous.
    Ask,
    /// The program is loaded.
    Load,
    /// It is attached.
    Attach,
    /// Sockets are opened and bound to queues.
    Bind,
}

/// What an error says about the kernel, the driver or the rights of the process.
fn explain(interface: &str, step: Step, error: Errno) -> Error {
    let reason = match (step, error) {
        (Step::Ask, Errno::PERM | Errno::ACCESS) => {
            return Error::NotPermitted {
                interface: interface.into(),
                action: "open a socket on it",
                capability: "CAP_NET_RAW",
            };
        }
        (_, Errno::PERM | Errno::ACCESS) => {
            return Error::NotPermitted {
                interface: interface.into(),
                action: "use AF_XDP on it",
                capability: "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF",
            };
        }
        (Step::Load, Errno::NOSYS) => "the kernel has no bpf(2) (CONFIG_BPF_SYSCALL)".into(),
        (Step::Load, Errno::INVAL) => {
            "the kernel does not take the XDP program; Linux 6.6 or later is needed".into()
        }
        (Step::Attach, Errno::OPNOTSUPP) => "its driver does not run XDP programs".into(),
        (Step::Attach, Errno::BUSY | Errno::EXIST) => {
            "another XDP program is attached to it; is another packetloom running on this interface?".into()
        }
        (Step::Attach, Errno::NOSPC) => {
            "it has fewer receive queues than its peer has transmit queues, or too few; `ethtool -l` shows them".into()
        }
        (Step::Attach, Errno::RANGE) => "its MTU is too large for its driver's XDP".into(),
        (Step::Bind, Errno::AFNOSUPPORT) => "the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)".into(),
        (Step::Bind, Errno::NOBUFS) => {
            "the memory for its frames may not be locked; raise the limit (`ulimit -l`), or give the process CAP_IPC_LOCK".into()
        }
        (Step::Bind, Errno::BUSY) => "another AF_XDP socket uses a queue of it".into(),
        (Step::Bind, Errno::INVAL | Errno::OPNOTSUPP) => {
            format!("its queues take no AF_XDP sockets with frames in several pieces ({error}); Linux 6.6 or later is needed")
        }
        (Step::Ask, error) => format!("cannot open a packet socket: {error}"),
        (Step::Load, error) => format!("cannot load an XDP program: {error}"),
        (Step::Attach, error) => format!("cannot attach an XDP program: {error}"),
        (Step::Bind, error) => format!("cannot bind a socket to a queue: {error}"),
    };
    Error::Xdp { interface: interface.into(), reason }
}

#[cfg(test)]
mod account_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_share_the_memory() {
        let mib = 1 << 20;
        assert_eq!(plan(&[(1_500, 1)], 32 * mib), (2_048, vec![(4_096, SENDS)]));
        assert_eq!(
            plan(&[(1_500, 4), (1_500, 9)], 32 * mib),
            (2_048, vec![(4 * 4_096, SENDS), (9 * 1_024, SENDS)])
        );
        assert_eq!(plan(&[(1_500, 1)], 0).1, [(64, SENDS)]);
        // Larger frames have larger chunks, on all interfaces.
        assert_eq!(plan(&[(9_000, 1), (1_500, 1)], 8 * mib), (4_096, vec![(2_048, SENDS), (2_048, SENDS)]));
    }

    #[test]
    fn errors_say_what_is_in_the_way() {
        for (step, error, expected) in [
            (Step::Load, Errno::PERM, "CAP_BPF"),
            (Step::Load, Errno::INVAL, "6.6"),
            (Step::Attach, Errno::OPNOTSUPP, "its driver does not run XDP programs"),
            (Step::Attach, Errno::BUSY, "another packetloom"),
            (Step::Attach, Errno::NOSPC, "ethtool -l"),
            (Step::Bind, Errno::NOBUFS, "CAP_IPC_LOCK"),
            (Step::Bind, Errno::NODEV, "No such device"),
        ] {
            let text = explain("eth7", step, error).to_string();
            assert!(text.contains(expected) && text.starts_with("eth7: "), "{text}");
        }
    }
}
