//! Sends frames over a packet socket, many with one call.

use std::array;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags};

use super::super::{Offload, Outgoing};

/// Frames of one call, at most.
pub(super) const GROUP: usize = 64;
/// Frames for which a smaller call is prepared: a header costs some nanoseconds whether it is used or not.
const FEW: usize = 8;

/// Sends as many of the frames as the kernel takes with one call, up to [`GROUP`].
pub(super) fn send(socket: BorrowedFd<'_>, frames: &[Outgoing<'_>]) -> Result<usize, Errno> {
    if frames.len() <= FEW { call::<FEW>(socket, frames) } else { call::<GROUP>(socket, frames) }
}

fn call<const N: usize>(socket: BorrowedFd<'_>, frames: &[Outgoing<'_>]) -> Result<usize, Errno> {
    let frames = &frames[..frames.len().min(N)];
    let headers: [_; N] =
        array::from_fn(|i| frames.get(i).map_or([0; Offload::LEN], |frame| frame.offload.to_bytes()));
    let slices: [_; N] = array::from_fn(|i| {
        [IoSlice::new(&headers[i]), IoSlice::new(frames.get(i).map_or(&[], |frame| frame.bytes))]
    });
    let mut none: [_; N] = array::from_fn(|_| SendAncillaryBuffer::default());
    let mut slices = slices.iter();
    let mut messages = none.each_mut().map(|none| match slices.next() {
        Some(slices) => MMsgHdr::new(slices, none),
        None => unreachable!("as many as there are slices"),
    });
    rustix::net::sendmmsg(socket, &mut messages[..frames.len()], SendFlags::DONTWAIT)
}
