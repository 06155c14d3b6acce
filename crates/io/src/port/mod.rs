//! Network interfaces: frames are received into batches and sent (Linux, packet sockets or AF_XDP).
//!
//! A [`Port`] is an interface in use, either monitored or inline. Frames are copied from its ring, which the kernel writes to, into a
//! [`ReceiveBuffer`], or, between interfaces of an [`Ingress`] by AF_XDP, lent where they lie; it makes batches of the frames of one or several ports. Beside each frame stands its [`Offload`]: what its sender
//! has left to be done. It must go with the frame to [`Sender::send`].
//!
//! A loop over two ports:
//!
//! 1. [`Port::receive`] takes what is there; [`ReceiveBuffer::deliver`] makes a batch of it.
//! 2. [`Sender::send`] of the other port sends what passes.
//! 3. Where nothing came, [`wait`] for it, and for a [`LinkMonitor`], whose events go to [`Port::update`].
//!
//! # Partial checksums
//!
//! The checksum field of a frame whose [`Offload::needs_checksum`] holds the folded, not inverted sum over the pseudo header. An incremental
//! update of it gives garbage. So where a function rewrites addresses or ports, one of these is done:
//!
//! - [`complete_checksum`], then the rewrite, which updates the checksum as that of any frame; or
//! - the rewrite, whatever it does to the field, then [`restart_partial`], which puts the sum over the new pseudo header there. It reads
//!   headers only, so it costs less. Giants need it: who cuts them into segments starts from a partial sum.
//!
//! A frame that is written to a capture, or leaves without its offload, goes through [`complete_checksum`].
//!
//! Everything happens in the network namespace of the thread that opens a port.

mod af_packet;
mod af_xdp;
mod bridge;
mod checksum;
mod egress;
mod ethtool;
mod guard;
mod ingress;
mod interface;
mod link;
mod netlink;
mod receive;

use std::array;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

pub use bridge::OnExit;
pub use checksum::{ChecksumOutside, complete_checksum, restart_partial};
pub use egress::{Egress, EgressCounts};
pub use guard::Guard;
pub use ingress::{Ingress, IngressCounts};
pub use interface::{
    Backend, Mode, Options, Outgoing, Port, PortBackend, PortState, Received, SendStatistics, Sender, Sent,
    Statistics, Stop,
};
pub use link::{Link, LinkEvent, LinkMonitor};
pub use packetloom_packet::Offload;
pub use receive::ReceiveBuffer;

use crate::Error;

/// File descriptors that are waited for without an allocation.
const FEW: usize = 16;

/// How long frames wait at most that a port has taken and the kernel has not.
const PENDING: Duration = Duration::from_millis(1);

/// Numbers of descriptors that go first; below are all others.
const GOES_FIRST: i32 = 512;

/// The same descriptor with a number by which it goes before others when the process is killed: the kernel then lets go of descriptors from the
/// last to the first, and waits some milliseconds for each socket, while it still keeps frames from itself.
fn going_first(fd: OwnedFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(&fd, GOES_FIRST).unwrap_or(fd)
}

/// Waits until a port has frames, one of `others` can be read, a port's link changes, a signal comes or the time is over (`None`: never).
/// Returns whether it was one of the first three.
///
/// # Errors
///
/// [`Error::Wait`]: the system refuses, for lack of memory perhaps.
pub fn wait(ports: &[&Port], others: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool, Error> {
    let own = ports.iter().map(|port| port.fds().count()).sum();
    let mut fds = ports.iter().flat_map(|port| port.fds()).chain(others.iter().copied());
    let (first, count) = (fds.clone().next(), fds.clone().count());
    // Nobody else has what waits in a ring sent.
    let timeout = match ports.iter().any(|port| port.has_pending()) {
        true => Some(timeout.map_or(PENDING, |timeout| timeout.min(PENDING))),
        false => timeout,
    };
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut few: [PollFd<'_>; FEW];
    let mut many: Vec<PollFd<'_>>;
    let polled: &mut [PollFd<'_>] = match first {
        None => &mut [],
        Some(first) if count <= FEW => {
            few = array::from_fn(|_| of(fds.next().unwrap_or(first)));
            &mut few[..count]
        }
        Some(_) => {
            many = fds.map(of).collect();
            &mut many
        }
    };
    let ready = match rustix::event::poll(polled, timeout.as_ref()) {
        Ok(ready) => ready > 0,
        Err(Errno::INTR) => false,
        Err(error) => return Err(Error::Wait { source: error.into() }),
    };
    // The error of a link that went down is reported until it is taken; what there is to know comes by link events. Errors of others are
    // theirs to see.
    for fd in &polled[..own] {
        if fd.revents().contains(PollFlags::ERR) {
            let _ = rustix::net::sockopt::socket_error(fd.as_fd());
        }
    }
    Ok(ready)
}
