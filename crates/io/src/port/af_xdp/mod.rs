//! A network interface by AF_XDP sockets.
//!
//! An XDP program hands each frame to the socket of its receive queue before the kernel sees it. The kernel copies frames into memory that is
//! mapped here (UMEM, copy mode) and that both interfaces of a pair share. There they lie while a batch holds them, and from there they leave, by
//! the first queue of the other interface. A frame has its VLAN tags, and may lie in several chunks of memory. What its sender has left to be done does not come with it: a partial
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
use self::umem::QueuePool;
pub(super) use self::umem::{Lent, Umem};
use super::af_packet::socket as packet;
use super::interface::{Marks, lock};
use super::receive::Filler;
use super::{Link, Options, PortBackend, Received, Statistics, ethtool};
use crate::Error;

/// Frames that a queue's memory holds.
const FRAMES: std::ops::RangeInclusive<u32> = 64..=4_096;
/// The most queues of an interface that shares memory with another one. For each queue the kernel keeps a record of each chunk that it could
/// use, of about 120 bytes, so that this grows by the square of the number of queues.
const MOST_SHARING: u32 = 4;
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
    /// The memory that it shares with others, if it does, and its place in it; else each queue has memory of its own, of so many bytes
    /// together.
    shared: Option<(Arc<Umem>, usize)>,
    ring_bytes: usize,
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
    /// Sockets that are still to be [bound](Self::bind), and use memory at this place where they share it.
    pub(super) fn new(options: &Options, attachment: Attachment, shared: Option<(Arc<Umem>, usize)>) -> Self {
        let transmit = Transmit::default();
        Self {
            attachment,
            is_promiscuous: options.promiscuous,
            shared,
            ring_bytes: options.ring_bytes,
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
            // What sends has a ring of the first queue.
            lock(&self.transmit).replace(None);
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
        lock(&self.transmit).replace(None);
        let shared = self.shared.as_ref().filter(|_| count <= MOST_SHARING);
        if let Some((umem, place)) = shared {
            umem.divide(*place, count, *FRAMES.end()).map_err(|error| errno(&error))?;
        }
        for queue in 0..count {
            let plan = QueuePlan { interface: link.index, queue, sends: queue == 0 };
            let (in_use, sending) = loop {
                let pool = match shared {
                    Some((umem, place)) => umem.pool(*place, queue as usize),
                    None => self.own_pool(link.mtu, count, plan.sends).map_err(|error| errno(&error))?,
                };
                // What is tried again is tried with rings of its own.
                match Queue::open(pool.ok_or(Errno::BUSY)?, plan) {
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

    /// The memory of a queue of so many, by itself.
    fn own_pool(&self, mtu: u32, queues: u32, sends: bool) -> io::Result<Option<QueuePool>> {
        let chunk = chunk_for(mtu, self.attachment);
        let frames = frames(self.ring_bytes, chunk, queues);
        let umem = Umem::new(chunk, &[(frames, if sends { SENDS } else { 0 })])?;
        umem.divide(0, 1, frames)?;
        Ok(umem.pool(0, 0))
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
            transmit.tend();
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

impl Drop for XdpSockets {
    /// What sends may be held by a sender, and has a ring of the first queue.
    fn drop(&mut self) {
        self.leave();
        self.close();
    }
}

/// Makes memory that two interfaces share, for so many bytes of received frames each; none where one of them has too many queues.
pub(super) fn share_memory(pair: &[String; 2], ring_bytes: usize) -> io::Result<Option<Arc<Umem>>> {
    // What is not there, or may not be asked, is said when it is opened.
    let asking = packet::open().ok();
    let links = pair.each_ref().map(|name| {
        let link = Link::by_name(name).unwrap_or_default();
        let said = asking.as_ref().and_then(|asking| ethtool::receive_queues(asking, name).ok());
        (link.mtu, queues(said, &link))
    });
    let Some((chunk, shares)) = plan_shared(links, ring_bytes) else { return Ok(None) };
    Umem::new(chunk, &shares).map(Some)
}

/// Bytes of a chunk that two interfaces share, and how many chunks each gets to receive and to send by, by its MTU and its number of queues.
fn plan_shared(links: [(u32, u32); 2], ring_bytes: usize) -> Option<(usize, [(u32, u32); 2])> {
    let chunk = links.map(|(mtu, _)| chunk_for(mtu, Attachment::Native)).into_iter().max()?;
    let shares = links.map(|(_, queues)| (frames(ring_bytes, chunk, queues) * queues, SENDS));
    links.iter().all(|&(_, queues)| queues <= MOST_SHARING).then_some((chunk, shares))
}

/// Bytes of a chunk for frames of an MTU.
fn chunk_for(mtu: u32, attachment: Attachment) -> usize {
    let is_small = mtu as usize + LINK_HEADERS + HEADROOM <= SMALL_CHUNK;
    // Giants, which come where the kernel runs the program, lie in fewer chunks.
    if is_small && attachment == Attachment::Native { SMALL_CHUNK } else { LARGE_CHUNK }
}

/// Chunks of each of so many queues, a power of two.
fn frames(ring_bytes: usize, chunk: usize, queues: u32) -> u32 {
    let frames = u32::try_from(ring_bytes / (chunk * queues as usize)).unwrap_or(u32::MAX);
    1 << frames.clamp(*FRAMES.start(), *FRAMES.end()).ilog2()
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
        let (mib, native) = (1 << 20, Attachment::Native);
        assert_eq!((chunk_for(1_500, native), frames(32 * mib, 2_048, 1)), (2_048, 4_096));
        assert_eq!(
            (frames(32 * mib, 2_048, 4), frames(32 * mib, 2_048, 9), frames(0, 2_048, 1)),
            (4_096, 1_024, 64)
        );
        // Larger frames have larger chunks, and so have giants.
        assert_eq!((chunk_for(9_000, native), frames(8 * mib, 4_096, 1)), (4_096, 2_048));
        assert_eq!(chunk_for(1_500, Attachment::Generic), 4_096);
    }

    #[test]
    fn pairs_share_memory() {
        let bytes = 32 << 20;
        let shares = [(4_096, SENDS), (4 * 4_096, SENDS)];
        assert_eq!(plan_shared([(1_500, 1), (1_500, 4)], bytes), Some((2_048, shares)));
        let shares = [(4_096, SENDS), (2 * 4_096, SENDS)];
        assert_eq!(plan_shared([(1_500, 1), (9_000, 2)], bytes), Some((4_096, shares)), "the larger chunks");
        assert_eq!(plan_shared([(1_500, 1), (1_500, 5)], bytes), None);
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
