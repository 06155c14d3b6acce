//! A receive ring in memory shared with the kernel: TPACKET_V2 (`Documentation/networking/packet_mmap.rst`).
//!
//! The ring is an array of slots. The kernel fills a slot and sets its status word to "user"; we copy the frame out and set it to "kernel".
//! Nothing but the status word may be read while it says "kernel", and it is read and written as an atomic.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::super::Offload;
use super::socket;
use super::vlan::{TPID_8021Q, Tag};

/// Where the link-layer address stands in a slot (`TPACKET_ALIGN(sizeof(struct tpacket2_hdr))`).
const ADDRESS: usize = align(size_of::<libc::tpacket2_hdr>());
/// The longest link header for which the kernel reserves its usual room.
const LINK_HEADER: usize = 16;
/// The kernel's choice of slot alignment.
const ALIGNMENT: usize = libc::TPACKET_ALIGNMENT;
/// Bytes of slots that are allocated in one piece, at most: larger pieces are harder to find in memory.
const BLOCK: usize = 1 << 20;

const fn align(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Bytes of a slot before the network header of a frame, the header of the kind [`Offload`] included.
const fn room_before_network() -> usize {
    align(libc::TPACKET2_HDRLEN + LINK_HEADER) + Offload::LEN
}

/// Bytes of a slot that holds frames of up to `frame` bytes, with a link header of any length.
pub(super) const fn slot_size(frame: usize) -> usize {
    align(room_before_network() + frame)
}

/// Bytes that a frame may have for a slot of this size.
pub(super) const fn frame_size(slot: usize) -> usize {
    slot.saturating_sub(room_before_network())
}

/// How a ring's slots lie in memory: blocks, each in one piece, with slots that do not cross them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    slot: usize,
    block: usize,
    per_block: usize,
    blocks: usize,
}

impl Layout {
    /// At least `slots` slots of `slot` bytes, a multiple of the kernel's alignment.
    fn new(slots: usize, slot: usize, page: usize) -> Self {
        let slots = slots.max(1);
        let block = (slot * (BLOCK / slot).clamp(1, slots)).next_multiple_of(page);
        // As many as fit: the kernel counts them like this.
        let per_block = block / slot;
        Self { slot, block, per_block, blocks: slots.div_ceil(per_block) }
    }

    fn request(self) -> Option<libc::tpacket_req> {
        Some(libc::tpacket_req {
            tp_block_size: u32::try_from(self.block).ok()?,
            tp_block_nr: u32::try_from(self.blocks).ok()?,
            tp_frame_size: u32::try_from(self.slot).ok()?,
            tp_frame_nr: u32::try_from(self.slots()).ok()?,
        })
    }

    fn slots(self) -> usize {
        self.per_block * self.blocks
    }

    fn bytes(self) -> usize {
        self.block * self.blocks
    }

    /// Where a slot begins.
    fn offset(self, slot: usize) -> usize {
        slot / self.per_block * self.block + slot % self.per_block * self.slot
    }
}

/// A packet socket with a receive ring.
#[derive(Debug)]
pub(super) struct Ring {
    map: NonNull<u8>,
    layout: Layout,
    /// The slot that the kernel fills next, or has filled.
    next: usize,
    /// Where it begins.
    offset: usize,
    socket: OwnedFd,
}

// SAFETY: the mapping belongs to the ring alone and can be used from any thread; only `&mut self` gives slots back.
unsafe impl Send for Ring {}

impl Ring {
    /// Gives a socket a ring of at least `slots` slots of `slot` bytes each ([`slot_size`]). The socket must not be bound yet, so that the
    /// ring gets nothing before it is complete.
    pub(super) fn new(socket: OwnedFd, slots: usize, slot: usize) -> io::Result<Self> {
        let layout = Layout::new(slots, slot, rustix::param::page_size());
        let request = layout.request().ok_or(io::ErrorKind::InvalidInput)?;
        socket::set_number(&socket, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as c_int)?;
        socket::set_number(&socket, libc::PACKET_VNET_HDR, 1)?;
        socket::set_ring(&socket, &request)?;
        // SAFETY: a new shared mapping at an address of the kernel's choice, of the length that the ring has.
        let map = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                layout.bytes(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &socket,
                0,
            )?
        };
        let map = NonNull::new(map.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { map, layout, next: 0, offset: 0, socket })
    }

    /// Slots there are.
    pub(super) fn slots(&self) -> usize {
        self.layout.slots()
    }

    /// Bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// The status word of the slot that begins at `offset`.
    fn status(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is that of a slot, so the word lies within the mapping, which lives as long as `self`, and is aligned to 16 bytes.
        // Both sides access it atomically: we here, the kernel with a single store after a write barrier.
        unsafe { AtomicU32::from_ptr(self.map.as_ptr().add(offset).cast()) }
    }

    /// Reads a field of the slot at the ring's place.
    ///
    /// # Safety
    ///
    /// `at` plus the size of `T` must not exceed the slot, and the slot's status must have said "user" since it was last given back.
    unsafe fn read<T: Copy>(&self, at: usize) -> T {
        // SAFETY: within the slot, hence the mapping; the kernel does not write to a slot of ours. Fields are integers, or arrays of them.
        unsafe { self.map.as_ptr().add(self.offset + at).cast::<T>().read_unaligned() }
    }

    /// The status of the oldest frame, if there is one.
    #[inline]
    fn head(&self) -> Option<u32> {
        // Acquire: what the kernel wrote to the slot before is seen after.
        let status = self.status(self.offset).load(Ordering::Acquire);
        (status & libc::TP_STATUS_USER != 0).then_some(status)
    }

    /// When the oldest frame came, in nanoseconds since the epoch; `None` where there is none.
    #[inline]
    pub(super) fn head_time(&self) -> Option<u64> {
        self.head()?;
        // SAFETY: the status said "user".
        Some(unsafe { self.time() })
    }

    /// # Safety
    ///
    /// As [`Ring::read`].
    unsafe fn time(&self) -> u64 {
        // SAFETY: fields of the header, under the caller's word.
        let (seconds, nanos): (u32, u32) = unsafe {
            (
                self.read(mem::offset_of!(libc::tpacket2_hdr, tp_sec)),
                self.read(mem::offset_of!(libc::tpacket2_hdr, tp_nsec)),
            )
        };
        u64::from(seconds) * 1_000_000_000 + u64::from(nanos)
    }

    /// The oldest frame, which stays in its slot until it is [released](Slot::release).
    #[inline]
    pub(super) fn slot(&mut self) -> Option<Slot<'_>> {
        let status = self.head()?;
        macro_rules! field {
            ($name:ident) => {
                // SAFETY: the status said "user", and the header lies at the start of the slot.
                unsafe { self.read(mem::offset_of!(libc::tpacket2_hdr, $name)) }
            };
        }
        let (wire_len, snapped): (u32, u32) = (field!(tp_len), field!(tp_snaplen));
        let mac: u16 = field!(tp_mac);
        let (tci, tpid): (u16, u16) = (field!(tp_vlan_tci), field!(tp_vlan_tpid));
        // SAFETY: as above; the address follows the header.
        let packet_type: u8 = unsafe { self.read(ADDRESS + mem::offset_of!(libc::sockaddr_ll, sll_pkttype)) };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(Tag {
            tci,
            tpid: if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { tpid } else { TPID_8021Q },
        });
        let (start, len) = (usize::from(mac), snapped as usize);
        // What the kernel says is checked once, so that copies need no more than that.
        let is_inside = start >= libc::TPACKET2_HDRLEN + Offload::LEN && start + len <= self.layout.slot;
        let offload = if is_inside {
            // SAFETY: the bytes before the frame are in the slot, as was just found.
            Offload::from_bytes(unsafe { self.read(start - Offload::LEN) })
        } else {
            Offload::NONE
        };
        // SAFETY: the status said "user".
        let time = unsafe { self.time() };
        Some(Slot {
            start,
            len: if is_inside { len } else { 0 },
            wire_len,
            time,
            tag,
            offload,
            packet_type,
            is_inside,
            ring: self,
        })
    }

    /// Gives the slot at the ring's place to the kernel and goes on to the next one.
    #[inline]
    fn advance(&mut self) {
        // Release: our reads of the slot are done before the kernel sees that it may write.
        self.status(self.offset).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == self.layout.slots() { 0 } else { self.next + 1 };
        self.offset = self.layout.offset(self.next);
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.layout.bytes()) };
    }
}

/// A frame in a ring.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    ring: &'a mut Ring,
    /// Where the frame begins in the slot.
    start: usize,
    /// Captured bytes, without the tag.
    len: usize,
    wire_len: u32,
    time: u64,
    tag: Option<Tag>,
    offload: Offload,
    packet_type: u8,
    is_inside: bool,
}

impl Slot<'_> {
    /// Captured bytes, without the tag.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the frame as it came, without the tag.
    pub(super) fn wire_len(&self) -> u32 {
        self.wire_len
    }

    /// When it came, in nanoseconds since the epoch.
    pub(super) fn time(&self) -> u64 {
        self.time
    }

    /// The tag that the kernel has taken out.
    pub(super) fn tag(&self) -> Option<Tag> {
        self.tag
    }

    /// What is left to be done to it; positions are without the tag.
    pub(super) fn offload(&self) -> Offload {
        self.offload
    }

    /// Whether this machine has sent it.
    pub(super) fn is_outgoing(&self) -> bool {
        self.packet_type == libc::PACKET_OUTGOING
    }

    /// Whether the frame lies in its slot, as it always should.
    pub(super) fn is_sound(&self) -> bool {
        self.is_inside
    }

    /// Copies the frame's bytes from `from` on into `to`.
    ///
    /// # Panics
    ///
    /// More was asked for than was captured.
    #[inline]
    pub(super) fn copy(&self, from: usize, to: &mut [u8]) {
        assert!(
            from <= self.len && to.len() <= self.len - from,
            "{} bytes at {from} of {}",
            to.len(),
            self.len
        );
        // SAFETY: `start + len` is within the slot, as was found when it was read, and what is asked for within that. The kernel does not
        // write to the slot while this borrow of its ring exists, and `to` is memory of ours.
        unsafe {
            let frame = self.ring.map.as_ptr().add(self.ring.offset + self.start + from);
            ptr::copy_nonoverlapping(frame, to.as_mut_ptr(), to.len());
        }
    }

    /// Gives the slot back to the kernel.
    #[inline]
    pub(super) fn release(self) {
        self.ring.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_cross_blocks_or_each_other() {
        for slot in [2_048, 9_216, slot_size(65_536), 1 << 21] {
            for slots in [1, 2, 500, 511, 512, 513, 16_384] {
                let layout = Layout::new(slots, slot, 4_096);
                assert!(layout.slots() >= slots && layout.slots() < slots + layout.per_block);
                assert_eq!(layout.block % 4_096, 0);
                assert!(layout.per_block * slot <= layout.block);
                let request = layout.request().expect("fits");
                // What the kernel demands (packet_set_ring).
                assert_eq!(request.tp_frame_size as usize % ALIGNMENT, 0);
                assert_eq!(
                    request.tp_block_size / request.tp_frame_size * request.tp_block_nr,
                    request.tp_frame_nr
                );
                let mut end = 0;
                for at in 0..layout.slots() {
                    let offset = layout.offset(at);
                    assert!(offset >= end && offset / layout.block == (offset + slot - 1) / layout.block);
                    end = offset + slot;
                }
                assert!(end <= layout.bytes());
            }
        }
    }

    /// Sizes and places in the kernel's `if_packet.h`.
    #[test]
    fn headers_are_laid_out_as_the_kernel_has_them() {
        assert_eq!((size_of::<libc::tpacket2_hdr>(), ADDRESS, libc::TPACKET2_HDRLEN), (32, 32, 52));
        let places = [
            (mem::offset_of!(libc::tpacket2_hdr, tp_status), 0),
            (mem::offset_of!(libc::tpacket2_hdr, tp_len), 4),
            (mem::offset_of!(libc::tpacket2_hdr, tp_snaplen), 8),
            (mem::offset_of!(libc::tpacket2_hdr, tp_mac), 12),
            (mem::offset_of!(libc::tpacket2_hdr, tp_sec), 16),
            (mem::offset_of!(libc::tpacket2_hdr, tp_nsec), 20),
            (mem::offset_of!(libc::tpacket2_hdr, tp_vlan_tci), 24),
            (mem::offset_of!(libc::tpacket2_hdr, tp_vlan_tpid), 26),
            (mem::offset_of!(libc::sockaddr_ll, sll_pkttype), 10),
        ];
        for (place, expected) in places {
            assert_eq!(place, expected);
        }
        assert_eq!(room_before_network(), 90);
        assert!(frame_size(slot_size(1_514)) >= 1_514);
    }
}
