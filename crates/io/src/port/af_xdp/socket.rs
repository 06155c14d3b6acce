//! AF_XDP sockets (`Documentation/networking/af_xdp.rst`): one receives for a queue of an interface, another one may send by it.
//!
//! The kernel sends for a socket also while somebody polls it. So that frames are sent, and counted, only by who sends them, the socket that
//! sends is one of its own, which shares the memory and the completion ring of the one that receives.
//!
//! Both interfaces of a pair share one memory (`XDP_SHARED_UMEM`); each queue has a fill ring and a completion ring of its own. A socket is
//! bound with that of another one that is bound, whichever; where none is, it registers the memory, once more perhaps.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::queue::Receiving;
use super::ring::{Consumer, Producer};
use super::ring::{Descriptor, Entry, Mapping, Offsets};
use super::transmit::{Sending, Wake};
use super::umem::{QueuePool, Umem};

/// Where the rings are mapped (`XDP_PGOFF_*`, `XDP_UMEM_PGOFF_*`).
const RECEIVE: u64 = 0;
const TRANSMIT: u64 = 0x8000_0000;
const FILL: u64 = 0x1_0000_0000;
const COMPLETION: u64 = 0x1_8000_0000;
/// Frames under way to an interface, and places in its completion ring.
pub(super) const SENDS: u32 = 2_048;
/// Places in the completion ring of a queue by which nobody sends: the kernel insists on a ring.
const NO_COMPLETIONS: u32 = 64;
/// Bytes under way that the sending socket may hold.
const SEND_BUFFER: usize = 4 << 20;

/// Where a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlan {
    /// Index of the interface, and number of the queue.
    pub(super) interface: u32,
    pub(super) queue: u32,
    /// Whether frames are sent by it.
    pub(super) sends: bool,
}

/// A queue in use.
#[derive(Debug)]
pub(super) struct Queue {
    socket: Arc<OwnedFd>,
    pub(super) receiving: Receiving,
}

impl Queue {
    /// Opens sockets and binds them to a queue of an interface; the second one is for sending.
    ///
    /// As many frames are received as the pool has chunks, a power of two.
    pub(super) fn open(pool: QueuePool, plan: QueuePlan) -> Result<(Self, Option<Sending>), Errno> {
        Self::try_open(pool, plan).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
    }

    fn try_open(pool: QueuePool, plan: QueuePlan) -> io::Result<(Self, Option<Sending>)> {
        let QueuePlan { interface, queue, .. } = plan;
        let (umem, place, frames) = (&pool.umem().clone(), pool.interface(), pool.chunks().len() as u32);
        let socket = Arc::new(open()?);
        let completions = if plan.sends { SENDS } else { NO_COMPLETIONS };
        sockopt::set_xdp_umem_fill_ring_size(&socket, frames)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, completions)?;
        sockopt::set_xdp_rx_ring_size(&socket, frames)?;
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let (mapping, at) = map::<u64>(&socket, FILL, offsets.fr, frames)?;
        let fill = Producer::new(mapping, at, frames)?;
        let (mapping, at) = map::<Descriptor>(&socket, RECEIVE, offsets.rx, frames)?;
        let received = Consumer::new(mapping, at, frames)?;
        let receiving = Receiving::new(pool, fill, received);
        bind(&socket, umem, interface, queue)?;
        umem.add_socket(&socket);
        let sending = if plan.sends {
            let region = umem.sends(place).ok_or(io::ErrorKind::ResourceBusy)?;
            let (mapping, at) = map::<u64>(&socket, COMPLETION, offsets.cr, completions)?;
            let completed = Consumer::new(mapping, at, completions)?;
            let sender = open()?;
            sockopt::set_xdp_tx_ring_size(&sender, SENDS)?;
            let (mapping, at) = map::<Descriptor>(&sender, TRANSMIT, offsets.tx, SENDS)?;
            let ring = Producer::new(mapping, at, SENDS)?;
            bind_shared(&sender, &socket, interface, queue)?;
            // More than the system's limit takes a privilege; what the limit allows will do.
            if sockopt::set_socket_send_buffer_size_force(&sender, SEND_BUFFER).is_err() {
                let _ = sockopt::set_socket_send_buffer_size(&sender, SEND_BUFFER);
            }
            Some(Sending::new(Box::new(Waker(sender)), region, ring, completed, SENDS))
        } else {
            None
        };
        Ok((Self { socket, receiving }, sending))
    }

    /// Has the kernel take chunks, where it asks for that.
    pub(super) fn wake_if_needed(&self) {
        if self.receiving.needs_wakeup() {
            // The answer says nothing of interest: what fails is seen as a link event.
            let _ = rustix::net::recv(&self.socket, &mut [0; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Frames that the kernel dropped for lack of room since the queue was opened.
    pub(super) fn dropped(&self) -> io::Result<u64> {
        let statistics = sockopt::xdp_statistics(&self.socket)?;
        Ok(statistics.rx_dropped + statistics.rx_ring_full.unwrap_or(0))
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket that sends.
#[derive(Debug)]
struct Waker(OwnedFd);

impl Wake for Waker {
    fn wake(&mut self) -> Result<(), Errno> {
        rustix::net::send(&self.0, &[], SendFlags::DONTWAIT).map(drop)
    }
}

/// Binds a socket to a queue, with the memory.
fn bind(socket: &OwnedFd, umem: &Umem, interface: u32, queue: u32) -> io::Result<()> {
    for other in umem.sockets() {
        match bind_shared(socket, &other, interface, queue) {
            // That one's interface is gone, and another one's perhaps not.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BADF) => {}
            result => return result,
        }
    }
    let (addr, len) = umem.memory();
    let registration = XdpUmemReg {
        addr,
        len,
        chunk_size: umem.chunk() as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, registration)?;
    let flags = SocketAddrXdpFlags::XDP_COPY
        | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP
        | SocketAddrXdpFlags::XDP_USE_SG;
    Ok(rustix::net::bind(socket, &SocketAddrXdp::new(flags, interface, queue))?)
}

/// Binds a socket to a queue, with the memory of one that is bound.
fn bind_shared(socket: &OwnedFd, other: &OwnedFd, interface: u32, queue: u32) -> io::Result<()> {
    let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface, queue);
    Ok(rustix::net::bind(socket, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: other.as_fd() })?)
}

fn open() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?)
}

/// Maps a ring with so many entries.
fn map<T: Entry>(
    socket: &OwnedFd,
    page_offset: u64,
    offset: XdpRingOffset,
    entries: u32,
) -> io::Result<(Arc<Mapping>, Offsets)> {
    // Kernels that have no flags have no frames in several chunks either.
    let flags = offset.flags.ok_or(io::ErrorKind::Unsupported)?;
    let place = |at: u64| usize::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    let offsets = Offsets {
        producer: place(offset.producer)?,
        consumer: place(offset.consumer)?,
        flags: place(flags)?,
        entries: place(offset.desc)?,
    };
    let mapping = Mapping::of_socket(socket, page_offset, offsets.mapping_len::<T>(entries))?;
    Ok((Arc::new(mapping), offsets))
}
