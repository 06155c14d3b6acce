//! The memory in which frames lie on their way from and to the kernel (UMEM): chunks of equal size, which both
//! interfaces of a pair share.
//!
//! Of each interface there are two kinds of chunks. Those by which it receives are divided into pools, one for each queue. Such a chunk is free,
//! or the kernel has it (in a fill or a receive ring), or it is *away*: a batch holds the frame in it, or the frame is on its way out of an
//! interface (in a transmit or a completion ring), or both. It is free again when neither is so any more. Those by which it sends hold copies.
//!
//! No slice refers to bytes that the kernel may write. While a batch [holds](Held) a chunk, the kernel at most reads it, and the bytes of that
//! chunk are lent; all others are copied in and out.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use packetloom_packet::batch::Loan;

use super::ring::Mapping;

/// Who holds a chunk that nobody holds.
const NOBODY: u64 = 0;
/// By no interface.
const NOWHERE: u16 = u16::MAX;
/// Lists of chunks that are kept for later loans.
const SPARE: usize = 64;
/// Bits of an offset below the number of a memory.
const PART: u32 = 40;

/// Memory for the frames of some interfaces.
pub(in super::super) struct Umem {
    mapping: Mapping,
    /// Bytes of a chunk: 2,048 or 4,096.
    chunk: usize,
    shares: Vec<Share>,
    /// For each chunk the number of the loan that holds it.
    holders: Vec<AtomicU64>,
    loans: AtomicU64,
    account: Mutex<Account>,
    /// Sockets that are bound with this memory, or were.
    sockets: Mutex<Vec<Weak<OwnedFd>>>,
}

/// The chunks of an interface.
#[derive(Debug)]
struct Share {
    receives: Range<u32>,
    sends: Range<u32>,
    /// Whether there is a [`Region`] of those by which it sends.
    is_claimed: AtomicBool,
}

/// Where chunks are that are not with the kernel to be received by.
#[derive(Debug)]
pub(super) struct Account {
    chunks: Vec<State>,
    /// The pools of each interface.
    interfaces: Vec<Pools>,
    spare: Vec<Vec<u32>>,
}

/// What keeps a chunk from its pool.
#[derive(Clone, Copy, Debug)]
struct State {
    is_held: bool,
    /// The interface by which its frame is on its way.
    egress: u16,
    /// The interface whose pool it is of.
    ingress: u16,
}

#[derive(Debug, Default)]
struct Pools {
    /// Chunks of each, and where the first one's begin.
    size: u32,
    begin: u32,
    pools: Vec<Pool>,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    free: Vec<u32>,
    away: u32,
    /// Whether a queue uses it now.
    is_used: bool,
}

impl Umem {
    /// Memory of chunks of so many bytes: for each interface, so many by which it receives and so many by which it sends.
    pub(super) fn new(chunk: usize, interfaces: &[(u32, u32)]) -> io::Result<Arc<Self>> {
        let mut end = 0;
        let shares = interfaces.iter().map(|(receives, sends)| {
            let begin = end;
            end = begin + receives + sends;
            let middle = begin + receives;
            Share { receives: begin..middle, sends: middle..end, is_claimed: AtomicBool::new(false) }
        });
        let shares: Vec<_> = shares.collect();
        let ingress = |chunk| shares.partition_point(|share| share.sends.end <= chunk) as u16;
        let state = |chunk| State { is_held: false, egress: NOWHERE, ingress: ingress(chunk) };
        let account = Account {
            chunks: (0..end).map(state).collect(),
            interfaces: shares.iter().map(|_| Pools::default()).collect(),
            spare: Vec::new(),
        };
        Ok(Arc::new(Self {
            mapping: Mapping::anonymous(end as usize * chunk)?,
            chunk,
            holders: (0..end).map(|_| AtomicU64::new(NOBODY)).collect(),
            loans: AtomicU64::new(NOBODY),
            account: Mutex::new(account),
            sockets: Mutex::default(),
            shares,
        }))
    }

    /// Address and length of the memory.
    pub(super) fn memory(&self) -> (u64, u64) {
        (self.mapping.start().as_ptr().expose_provenance() as u64, self.mapping.len() as u64)
    }

    /// Bytes of a chunk.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Where a chunk begins in the memory, as the kernel counts.
    pub(super) fn address(&self, chunk: u32) -> u64 {
        u64::from(chunk) * self.chunk as u64
    }

    /// The chunk in which something begins, and how far behind that; `None` where it does not lie in one chunk.
    #[inline]
    pub(super) fn locate(&self, address: u64, len: usize) -> Option<(u32, usize)> {
        let at = usize::try_from(address).ok().filter(|&at| at < self.mapping.len())?;
        // A shift: chunks have 2,048 or 4,096 bytes.
        let (chunk, within) = (at >> self.chunk.ilog2(), at & (self.chunk - 1));
        (len <= self.chunk - within).then_some((chunk as u32, within))
    }

    /// The address of bytes that lie in this memory.
    #[inline]
    pub(super) fn address_of(&self, bytes: &[u8]) -> Option<u64> {
        let at = bytes.as_ptr().addr().checked_sub(self.mapping.start().as_ptr().addr())?;
        (at < self.mapping.len()).then_some(at as u64)
    }

    /// Copies bytes of a chunk out that the kernel has filled and nobody holds.
    ///
    /// # Panics
    ///
    /// They do not lie in the memory.
    #[inline]
    pub(super) fn read(&self, chunk: u32, within: usize, to: &mut [u8]) {
        let from = self.place(chunk, within, to.len());
        // SAFETY: within the mapping, as `place` has made sure, and `to` is memory of ours.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes into a chunk: what a kernel does that a test plays, and [`Region::write`].
    #[inline]
    fn write(&self, chunk: u32, within: usize, from: &[u8]) {
        let to = self.place(chunk, within, from.len());
        // SAFETY: within the mapping, as `place` has made sure, and of a chunk that is the caller's alone.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    /// The chunks by which an interface receives.
    #[cfg(test)]
    pub(super) fn receives(&self, interface: usize) -> Range<u32> {
        self.shares[interface].receives.clone()
    }

    /// The free chunks of an interface's pools.
    #[cfg(test)]
    pub(super) fn free(&self, interface: usize) -> Vec<u32> {
        self.account().interfaces[interface].pools.iter().flat_map(|pool| pool.free.clone()).collect()
    }

    /// Whether a batch holds a chunk, and the interface by which it is on its way.
    #[cfg(test)]
    pub(super) fn away(&self, chunk: u32) -> (bool, Option<usize>) {
        let state = self.account().chunks[chunk as usize];
        (state.is_held, (state.egress != NOWHERE).then_some(usize::from(state.egress)))
    }

    #[cfg(test)]
    pub(super) fn write_as_kernel(&self, address: u64, bytes: &[u8]) {
        let (chunk, within) = self.locate(address, bytes.len()).expect("in the memory");
        assert_eq!(self.holders[chunk as usize].load(Ordering::Relaxed), NOBODY, "lent: {chunk}");
        self.write(chunk, within, bytes);
    }

    fn place(&self, chunk: u32, within: usize, len: usize) -> *mut u8 {
        let at = chunk as usize * self.chunk + within;
        let end = self.mapping.len();
        assert!(at <= end && len <= end - at, "{len} bytes at {within} of chunk {chunk}");
        // SAFETY: within the mapping.
        unsafe { self.mapping.start().as_ptr().add(at) }
    }

    /// The chunks by which an interface sends; none while somebody has them.
    pub(super) fn sends(self: &Arc<Self>, interface: usize) -> Option<Region> {
        let share = &self.shares[interface];
        let is_claimed = share.is_claimed.swap(true, Ordering::AcqRel);
        (!is_claimed).then(|| Region { umem: self.clone(), interface, chunks: share.sends.clone() })
    }

    /// Divides the chunks by which an interface receives among so many queues; how many each has, a power of two and at most `most`. No queue of
    /// it may be in use, and there must be a chunk for each.
    pub(super) fn divide(&self, interface: usize, queues: u32, most: u32) -> io::Result<u32> {
        let receives = self.shares[interface].receives.clone();
        let account = &mut *self.account();
        let pools = &mut account.interfaces[interface];
        if pools.pools.iter().any(|pool| pool.is_used) {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let each = (receives.len() as u32).checked_div(queues).filter(|&each| each > 0);
        let each = each.ok_or(io::ErrorKind::OutOfMemory)?;
        *pools = Pools {
            size: (1 << each.ilog2()).min(most),
            begin: receives.start,
            pools: vec![Pool::default(); queues as usize],
        };
        // Backwards, so that the first ones are used first.
        for chunk in receives.rev() {
            let is_away = account.chunks[chunk as usize].is_away();
            if let Some(pool) = pools.of(chunk) {
                if is_away { pool.away += 1 } else { pool.free.push(chunk) }
            }
        }
        Ok(pools.size)
    }

    /// A queue begins to use its pool, until this is dropped; none where another one does.
    pub(super) fn pool(self: &Arc<Self>, interface: usize, queue: usize) -> Option<QueuePool> {
        let account = &mut *self.account();
        let pools = &mut account.interfaces[interface];
        let begin = pools.begin + queue as u32 * pools.size;
        if std::mem::replace(&mut pools.pools.get_mut(queue)?.is_used, true) {
            return None;
        }
        Some(QueuePool { umem: self.clone(), interface, queue, chunks: begin..begin + pools.size })
    }

    /// Who is where. Frames leave and come back while it is locked; it is locked for some of them at a time.
    pub(super) fn account(&self) -> MutexGuard<'_, Account> {
        // Between any two of its steps it is in order.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sockets with which another one can share the memory, if they are bound still.
    pub(super) fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|socket| socket.strong_count() > 0);
        sockets.iter().filter_map(Weak::upgrade).collect()
    }

    /// A socket is bound with this memory.
    pub(super) fn add_socket(&self, socket: &Arc<OwnedFd>) {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(socket));
    }
}

impl fmt::Debug for Umem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Umem")
            .field("chunk", &self.chunk)
            .field("shares", &self.shares)
            .finish_non_exhaustive()
    }
}

impl State {
    fn is_away(self) -> bool {
        self.is_held || self.egress != NOWHERE
    }
}

impl Pools {
    /// The pool of a chunk; none of those that are left over.
    fn of(&mut self, chunk: u32) -> Option<&mut Pool> {
        // A shift: sizes are powers of two.
        self.pools.get_mut(((chunk - self.begin) >> self.size.checked_ilog2()?) as usize)
    }
}

impl Account {
    /// A frame that a batch holds is about to leave by an interface; whether it may. Not where it is on its way already.
    pub(super) fn send(&mut self, chunk: u32, interface: usize) -> bool {
        let state = &mut self.chunks[chunk as usize];
        let may = state.is_held && state.egress == NOWHERE;
        if may {
            state.egress = interface as u16;
        }
        may
    }

    /// The interface is done with a frame; whether it had it.
    pub(super) fn complete(&mut self, chunk: u32, interface: usize) -> bool {
        let state = &mut self.chunks[chunk as usize];
        let had = state.egress == interface as u16;
        if had {
            state.egress = NOWHERE;
            self.settle(chunk);
        }
        had
    }

    /// Puts a chunk back where nothing keeps it from its pool any more.
    fn settle(&mut self, chunk: u32) {
        let state = self.chunks[chunk as usize];
        if !state.is_away()
            && let Some(pool) = self.interfaces[usize::from(state.ingress)].of(chunk)
        {
            pool.away = pool.away.saturating_sub(1);
            pool.free.push(chunk);
        }
    }
}

/// The chunks of a queue that receives.
#[derive(Debug)]
pub(super) struct QueuePool {
    umem: Arc<Umem>,
    interface: usize,
    queue: usize,
    chunks: Range<u32>,
}

impl QueuePool {
    pub(super) fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// The place of its interface.
    pub(super) fn interface(&self) -> usize {
        self.interface
    }

    /// The chunks that are of it.
    pub(super) fn chunks(&self) -> Range<u32> {
        self.chunks.clone()
    }

    /// Takes the free ones.
    pub(super) fn take_free(&self, into: &mut Vec<u32>) {
        into.append(&mut self.umem.account().interfaces[self.interface].pools[self.queue].free);
    }

    /// How many more may be away: at most half of them are, however long an interface takes to send, so that the queue goes on.
    pub(super) fn room(&self) -> u32 {
        let away = self.umem.account().interfaces[self.interface].pools[self.queue].away;
        (self.chunks.len() as u32 / 2).saturating_sub(away)
    }
}

impl Drop for QueuePool {
    /// The socket is closed, or was never bound: the kernel has none of the chunks.
    fn drop(&mut self) {
        let account = &mut *self.umem.account();
        let pools = &mut account.interfaces[self.interface];
        let free = self.chunks.clone().rev().filter(|&chunk| !account.chunks[chunk as usize].is_away());
        let pool = &mut pools.pools[self.queue];
        (pool.free, pool.is_used) = (free.collect(), false);
    }
}

/// Frames that are lent to a batch: in chunks of some memories that it holds, and copies.
///
/// The upper bits of an offset say which memory a frame lies in; copies come behind all of them.
#[derive(Debug)]
pub(in super::super) struct Lent {
    parts: Vec<Held>,
    copies: Option<Arc<Vec<u8>>>,
}

impl Lent {
    /// Nothing yet, of these memories.
    pub(in super::super) fn new(memories: &[Arc<Umem>]) -> Self {
        Self { parts: memories.iter().map(Held::new).collect(), copies: None }
    }

    /// Another one, of the same memories, that holds nothing yet.
    pub(in super::super) fn another(&self) -> Self {
        Self { parts: self.parts.iter().map(|part| Held::new(&part.umem)).collect(), copies: None }
    }

    /// Which of the memories this is, if it is one of them.
    pub(super) fn part(&self, umem: &Arc<Umem>) -> Option<usize> {
        self.parts.iter().position(|part| Arc::ptr_eq(&part.umem, umem))
    }

    /// Holds a chunk of a memory that the kernel has just given back with a frame in it, and that is nowhere else. Returns its bytes.
    pub(super) fn hold(&mut self, part: usize, (chunk, within, len): (u32, usize, usize)) -> &mut [u8] {
        self.parts[part].hold(chunk, within, len)
    }

    /// Where bytes of a chunk are, as frames are named.
    pub(super) fn offset(&self, part: usize, chunk: u32, within: usize) -> u64 {
        self.parts[part].umem.address(chunk) + within as u64 + ((part as u64) << PART)
    }

    /// Brings the chunks that are held since the last time into the account. They are of one queue.
    pub(super) fn count(&mut self, part: usize, pool: &QueuePool) {
        self.parts[part].count(pool);
    }

    /// Lends copies as well.
    pub(in super::super) fn with_copies(mut self, copies: Option<Arc<Vec<u8>>>) -> Self {
        self.copies = copies;
        self
    }

    /// Where copies begin, as frames are named.
    pub(in super::super) fn copies_begin(&self) -> u64 {
        (self.parts.len() as u64) << PART
    }
}

impl Loan for Lent {
    #[inline]
    fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        if let Some(part) = self.parts.get((offset >> PART) as usize) {
            return part.get(offset & ((1 << PART) - 1), len);
        }
        let begin = usize::try_from(offset.checked_sub(self.copies_begin())?).ok()?;
        self.copies.as_ref()?.get(begin..)?.get(..len)
    }

    fn get_mut(&mut self, offset: u64, len: usize) -> Option<&mut [u8]> {
        self.parts.get_mut((offset >> PART) as usize)?.get_mut(offset & ((1 << PART) - 1), len)
    }
}

/// Chunks of a memory that a loan holds.
struct Held {
    umem: Arc<Umem>,
    number: u64,
    chunks: Vec<u32>,
    /// The first so many of them are in the account.
    counted: usize,
}

impl Held {
    fn new(umem: &Arc<Umem>) -> Self {
        let number = umem.loans.fetch_add(1, Ordering::Relaxed) + 1;
        Self { umem: umem.clone(), number, chunks: Vec::new(), counted: 0 }
    }

    fn hold(&mut self, chunk: u32, within: usize, len: usize) -> &mut [u8] {
        let holder = &self.umem.holders[chunk as usize];
        // The chunk is the caller's alone: nobody else writes this at the same time.
        assert_eq!(holder.load(Ordering::Relaxed), NOBODY, "chunk {chunk} is held");
        holder.store(self.number, Ordering::Relaxed);
        if self.chunks.capacity() == 0 {
            self.chunks = self.umem.account().spare.pop().unwrap_or_default();
        }
        self.chunks.push(chunk);
        let start = self.umem.place(chunk, within, len);
        // SAFETY: as in `get_mut`; it has not left by any interface, since it has just come.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    fn count(&mut self, pool: &QueuePool) {
        let new = &self.chunks[self.counted..];
        if new.is_empty() {
            return;
        }
        let account = &mut *self.umem.account();
        account.interfaces[pool.interface].pools[pool.queue].away += new.len() as u32;
        new.iter().for_each(|&chunk| account.chunks[chunk as usize].is_held = true);
        self.counted = self.chunks.len();
    }

    /// The chunk that bytes lie in, and how far behind its beginning, if it is held.
    #[inline]
    fn find(&self, address: u64, len: usize) -> Option<(u32, usize)> {
        let (chunk, within) = self.umem.locate(address, len)?;
        let holder = self.umem.holders[chunk as usize].load(Ordering::Relaxed);
        (holder == self.number).then_some((chunk, within))
    }

    #[inline]
    fn get(&self, address: u64, len: usize) -> Option<&[u8]> {
        let (chunk, within) = self.find(address, len)?;
        let start = self.umem.place(chunk, within, len);
        // SAFETY: within the mapping, which lives as long as `self`. The chunk is held by this, whose number nothing else has. It was given back
        // by the kernel before, and goes to the kernel to be filled only from the free ones of its pool, among which it is once this is
        // dropped. Until then the kernel at most reads it, to send it. `get_mut` takes all of this.
        Some(unsafe { slice::from_raw_parts(start, len) })
    }

    fn get_mut(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let (chunk, within) = self.find(address, len)?;
        if self.umem.account().chunks[chunk as usize].egress != NOWHERE {
            return None;
        }
        let start = self.umem.place(chunk, within, len);
        // SAFETY: as in `get`. The kernel does not read it either: who hands it to the kernel has a slice of it, from this.
        Some(unsafe { slice::from_raw_parts_mut(start, len) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.chunks.is_empty() {
            return;
        }
        let mut account = self.umem.account();
        for &chunk in &self.chunks {
            self.umem.holders[chunk as usize].store(NOBODY, Ordering::Relaxed);
            account.chunks[chunk as usize].is_held = false;
            account.settle(chunk);
        }
        self.chunks.clear();
        if account.spare.len() < SPARE {
            account.spare.push(std::mem::take(&mut self.chunks));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("number", &self.number).field("chunks", &self.chunks.len()).finish()
    }
}

/// The chunks by which an interface sends copies, and what of other chunks is on its way by it.
#[derive(Debug)]
pub(super) struct Region {
    umem: Arc<Umem>,
    interface: usize,
    chunks: Range<u32>,
}

impl Region {
    pub(super) fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// The place of the interface.
    pub(super) fn interface(&self) -> usize {
        self.interface
    }

    /// Its chunks.
    pub(super) fn chunks(&self) -> Range<u32> {
        self.chunks.clone()
    }

    /// Copies bytes into a chunk.
    ///
    /// # Panics
    ///
    /// It is not one of these, or they do not fit in.
    #[inline]
    pub(super) fn write(&mut self, chunk: u32, from: &[u8]) {
        assert!(
            self.chunks.contains(&chunk) && from.len() <= self.umem.chunk,
            "{} bytes for chunk {chunk}",
            from.len()
        );
        self.umem.write(chunk, 0, from);
    }
}

impl Drop for Region {
    /// The socket that sent is closed: nothing is on its way any more.
    fn drop(&mut self) {
        let mut account = self.umem.account();
        for chunk in 0..account.chunks.len() as u32 {
            account.complete(chunk, self.interface);
        }
        drop(account);
        self.umem.shares[self.interface].is_claimed.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
