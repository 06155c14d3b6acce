//! Batches: structure of arrays, sized once, reused for ever.

use std::fmt;
use std::sync::Arc;

use packetloom_memory::{prefetch_at, prefetch_l2_at};

use crate::FlowKey;
use crate::dissect::{COMMON, common, dissect_and_tell, transport_header_len};
use crate::rewrite::{self, Changes};
use crate::{
    Address, DropReason, Dscp, End, Headers, Key, KeyBits, Layers, LinkType, MatchKey4, MatchKey6, Offload,
    Reject, Rewrite, Timestamp, Verdict,
};

/// Memory that holds frames: a mapped file, a read buffer, later a ring shared with a device.
///
/// Frames are named by their offset in it, so that a device that maps the same memory elsewhere needs only the
/// base address.
pub type Arena = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Frames that are lent to a batch out of recyclable pools, other parts of which somebody else writes meanwhile: the kernel, where a pool is
/// shared with it. So no more is lent than the frames and what lies around them, piece by piece. Dropping it gives them back.
///
/// Offsets say which pool a frame lies in, and where.
pub trait Loan: Send + Sync {
    /// So many bytes from an offset on; none where not all of them are lent.
    fn get(&self, offset: u64, len: usize) -> Option<&[u8]>;

    /// The same, to be changed; none also where they may not be changed.
    fn get_mut(&mut self, offset: u64, len: usize) -> Option<&mut [u8]>;
}

/// The names of ports by their numbers, where they are known.
pub type PortNames = Arc<[Option<Box<str>>]>;

/// Where one frame lies, and what the capture says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRef {
    /// Offset of its first byte in the batch's arena, or in the pools of its loan.
    pub offset: u64,
    /// Nanoseconds since the epoch.
    pub time: Timestamp,
    /// Captured bytes.
    pub len: u32,
    /// Bytes the frame had on the wire.
    pub wire_len: u32,
    /// What the frame begins with.
    pub link: LinkType,
    /// The port it came in by: the interface number in a pcapng file, else 0.
    pub port: u16,
}

/// What the headers of one frame said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// IPv4; its key is at this place of [`Batch::v4`].
    V4(u32),
    /// IPv6; its key is at this place of [`Batch::v6`].
    V6(u32),
    /// No match key.
    Rejected(Reject),
}

/// IPv4 or IPv6 keys of a batch, with what belongs to them.
#[derive(Debug)]
pub struct Keys<K> {
    /// The match keys, in order of arrival; with the rewrites so far.
    pub keys: Vec<K>,
    /// For each key the frame it came from: an index into the batch's frames.
    pub frames: Vec<u32>,
    /// For each key the packet's IP bytes.
    pub bytes: Vec<u32>,
}

impl<K> Default for Keys<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), frames: Vec::new(), bytes: Vec::new() }
    }
}

impl<K> Keys<K> {
    fn clear(&mut self) {
        self.keys.clear();
        self.frames.clear();
        self.bytes.clear();
    }

    fn push(&mut self, key: K, frame: u32, bytes: u32) -> u32 {
        self.keys.push(key);
        self.frames.push(frame);
        self.bytes.push(bytes);
        (self.keys.len() - 1) as u32
    }

    /// Appends the key that stands `at` this place of other ones, for this frame.
    fn push_from(&mut self, other: &Self, at: usize, frame: u32) -> u32
    where
        K: Copy,
    {
        self.push(other.keys[at], frame, other.bytes[at])
    }
}

/// Packets that go through a chain together.
///
/// Columns of one length: frames, what their headers said, verdicts. The keys of IPv4 and IPv6 packets are kept
/// apart, so that IPv4's stay small. Bytes are never changed: rewrites stand beside them, for few frames or all.
pub struct Batch {
    arena: Arena,
    /// What the frames lie in, if that is not the arena.
    loan: Option<Arc<dyn Loan>>,
    frames: Vec<FrameRef>,
    parsed: Vec<Parsed>,
    verdicts: Vec<Verdict>,
    v4: Keys<MatchKey4>,
    v6: Keys<MatchKey6>,
    /// For each frame, if any was rewritten, what of it was.
    rewritten: Vec<Changes>,
    /// Whether all frames that are parsed are of the most common ones.
    is_common: bool,
    /// Frames, in order, whose IP header, whole or not, stands in a framing that is not [basic](crate::dissect::is_basic()).
    other_framings: Vec<u32>,
    /// For each frame, if they come from an interface, what their senders have left to be done.
    offloads: Vec<Offload>,
    /// For each frame, if they are going to leave by ports, which one it leaves by.
    egress: Vec<u16>,
    /// For each frame its mark, if any was set.
    marks: Vec<u32>,
    /// For each frame, unless all are common, where its headers are.
    layers: Vec<Layers>,
    /// From frames' times to wall time, in nanoseconds.
    wall_offset: i64,
    /// Names of the ports by which frames came, if any are known.
    port_names: Option<PortNames>,
    /// The number that the first frame of the whole batch has in the run; and of a share of it, for each frame its place there.
    first_number: u64,
    places: Vec<u32>,
    capacity: usize,
}

/// Frames from one that is parsed to the one whose headers are asked for: each takes some nanoseconds, memory a hundred and more.
const AHEAD: usize = 32;
/// Common frames whose headers are looked at before the next thing is done.
const GROUP: usize = 64;
/// Bytes that are copied at a time.
const LINE: usize = 64;

/// The columns of a batch.
pub struct Columns<'a> {
    /// The frames, in order of arrival.
    pub frames: &'a [FrameRef],
    /// The verdict on each.
    pub verdicts: &'a mut [Verdict],
    /// The IPv4 packets' keys.
    pub v4: &'a mut Keys<MatchKey4>,
    /// The IPv6 packets' keys.
    pub v6: &'a mut Keys<MatchKey6>,
    /// What the ports are called by which frames came, if any names are known.
    pub port_names: Option<&'a PortNames>,
    /// The port that each frame leaves by if it passes; empty where frames leave by no port.
    pub egress: &'a [u16],
    memory: Memory<'a>,
    layers: &'a [Layers],
    rewritten: &'a mut Vec<Changes>,
}

/// One packet of a batch, to be rewritten.
#[derive(Debug)]
pub struct Rewritable<'a> {
    frame: u32,
    frames: usize,
    key: KeyMut<'a>,
    rewritten: &'a mut Vec<Changes>,
}

#[derive(Debug)]
enum KeyMut<'a> {
    V4(&'a mut MatchKey4),
    V6(&'a mut MatchKey6),
}

impl Rewritable<'_> {
    /// Its key, as it is now.
    #[inline]
    pub fn key(&self) -> Key {
        match &self.key {
            KeyMut::V4(key) => Key::V4(**key),
            KeyMut::V6(key) => Key::V6(**key),
        }
    }

    /// As [`Batch::rewrite`].
    // A function with two calls of it would not have it inlined otherwise, at 20 instructions a packet.
    #[inline(always)]
    pub fn rewrite(&mut self, end: End, address: Address, port: Option<u16>) -> bool {
        let is_done = match &mut self.key {
            KeyMut::V4(key) => key.rewrite(end, address, port),
            KeyMut::V6(key) => key.rewrite(end, address, port),
        };
        if is_done {
            self.change(|changes| changes.add(end));
        }
        is_done
    }

    /// As [`Batch::set_dscp`].
    #[inline]
    pub fn set_dscp(&mut self, dscp: Dscp) {
        self.change(|changes| changes.set_dscp(dscp));
    }

    #[inline]
    fn change(&mut self, change: impl Fn(&mut Changes)) {
        let at = self.frame as usize;
        match self.rewritten.get_mut(at) {
            Some(changes) => change(changes),
            None => {
                begin_rewrites(self.rewritten, self.frames);
                change(&mut self.rewritten[at]);
            }
        }
    }
}

/// Before the first rewrite of a batch of so many frames.
#[cold]
fn begin_rewrites(rewritten: &mut Vec<Changes>, frames: usize) {
    rewritten.resize(frames, Changes::NONE);
}

impl Columns<'_> {
    /// A packet, by its frame and where its key is; `None` where it has none.
    #[inline]
    pub fn packet(&mut self, frame: u32, parsed: Parsed) -> Option<Rewritable<'_>> {
        let key = match parsed {
            Parsed::V4(at) => KeyMut::V4(&mut self.v4.keys[at as usize]),
            Parsed::V6(at) => KeyMut::V6(&mut self.v6.keys[at as usize]),
            Parsed::Rejected(_) => return None,
        };
        Some(Rewritable { frame, frames: self.frames.len(), key, rewritten: self.rewritten })
    }

    /// The DSCP of a frame's packet, as functions before have rewritten it; the default one where it has none.
    #[inline]
    pub fn dscp(&self, frame: u32) -> Dscp {
        let changed = self.rewritten.get(frame as usize).and_then(|changes| changes.dscp());
        let own = || {
            let network = layers_of(self.layers, frame as usize).network as usize;
            rewrite::dscp_of(self.bytes(frame).get(network..)?)
        };
        changed.or_else(own).unwrap_or_default()
    }

    /// As [`Batch::bytes`].
    #[inline]
    pub fn bytes(&self, frame: u32) -> &[u8] {
        self.memory.bytes(&self.frames[frame as usize])
    }

    /// Where the headers of a frame with a key are.
    #[inline]
    pub fn layers(&self, frame: u32) -> Layers {
        layers_of(self.layers, frame as usize)
    }

    /// As [`Batch::payload`], of a frame whose key is there.
    pub fn payload(&self, frame: u32, parsed: Parsed) -> Option<&[u8]> {
        payload_of(self.bytes(frame), self.layers(frame), parsed, self.v4, self.v6)
    }
}

impl fmt::Debug for Columns<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Columns").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}

/// An arena without bytes, for batches that hold no frame yet.
pub fn empty_arena() -> Arena {
    Arc::new([0u8; 0])
}

impl Batch {
    /// An empty batch for up to `capacity` frames.
    pub fn new(capacity: usize) -> Self {
        Self {
            arena: empty_arena(),
            loan: None,
            frames: Vec::with_capacity(capacity),
            parsed: Vec::with_capacity(capacity),
            verdicts: Vec::with_capacity(capacity),
            v4: Keys::default(),
            v6: Keys::default(),
            rewritten: Vec::new(),
            is_common: true,
            other_framings: Vec::new(),
            offloads: Vec::new(),
            egress: Vec::new(),
            marks: Vec::new(),
            layers: Vec::new(),
            wall_offset: 0,
            port_names: None,
            first_number: 0,
            places: Vec::new(),
            capacity,
        }
    }

    /// Forgets the frames and takes `arena` for those to come; allocations are kept.
    pub fn reset(&mut self, arena: Arena) {
        self.arena = arena;
        self.loan = None;
        self.frames.clear();
        self.parsed.clear();
        self.verdicts.clear();
        self.v4.clear();
        self.v6.clear();
        self.rewritten.clear();
        self.is_common = true;
        self.other_framings.clear();
        self.offloads.clear();
        self.egress.clear();
        self.marks.clear();
        self.layers.clear();
        self.wall_offset = 0;
        self.port_names = None;
        self.first_number = 0;
        self.places.clear();
    }

    /// Forgets the frames and takes those to come out of a loan; allocations are kept.
    pub fn reset_to_loan(&mut self, loan: Arc<dyn Loan>) {
        self.reset(empty_arena());
        self.loan = Some(loan);
    }

    /// Forgets the frames and takes those to come out of another batch's memory; allocations are kept.
    pub fn reset_like(&mut self, other: &Self) {
        self.reset(other.arena.clone());
        self.loan.clone_from(&other.loan);
    }

    /// Appends a frame. Its bytes must lie within the arena; what does not is cut off at the arena's end. Of a loan, they must be lent: of a
    /// frame that is not lent whole there are no bytes.
    pub fn push(&mut self, frame: FrameRef) {
        self.frames.push(frame);
    }

    /// What is left to be done to each frame, in order: for frames that come from an interface. Shares of a batch go without.
    pub fn offloads_mut(&mut self) -> &mut Vec<Offload> {
        &mut self.offloads
    }

    /// The port that each frame leaves by if it passes, in order: for frames that leave by ports.
    pub fn egress_mut(&mut self) -> &mut Vec<u16> {
        &mut self.egress
    }

    /// The port that each frame leaves by if it passes; empty where frames leave by no port.
    #[inline]
    pub fn egress(&self) -> &[u16] {
        &self.egress
    }

    /// The mark of a packet: 0 until a function sets another one. It is not part of the frame.
    #[inline]
    pub fn mark(&self, index: usize) -> u32 {
        self.marks.get(index).copied().unwrap_or(0)
    }

    /// Gives a packet another mark.
    ///
    /// # Panics
    /// Where there is no such frame.
    pub fn set_mark(&mut self, index: usize, mark: u32) {
        // Nearly always there is none.
        if self.marks.is_empty() {
            self.marks.resize(self.frames.len(), 0);
        }
        self.marks[index] = mark;
    }

    /// Says which number the first frame has in the run, from 0; the others follow it.
    pub fn set_first_number(&mut self, number: u64) {
        self.first_number = number;
        self.places.clear();
    }

    /// The number of a frame in the run: its place in the input, whichever batch or share of one it is in.
    #[inline]
    pub fn number(&self, index: usize) -> u64 {
        self.first_number + self.places.get(index).map_or(index as u64, |&place| place.into())
    }

    /// Says how far wall time is from the frames' times, in nanoseconds: where these advance by another clock.
    pub fn set_wall_offset(&mut self, nanos: i64) {
        self.wall_offset = nanos;
    }

    /// Nanoseconds from the frames' times to wall time.
    #[inline]
    pub fn wall_offset(&self) -> i64 {
        self.wall_offset
    }

    /// Whether any frame comes from an interface, and something may be left to be done to it.
    pub fn has_offloads(&self) -> bool {
        !self.offloads.is_empty()
    }

    /// Says what the ports are called by which frames came.
    pub fn set_port_names(&mut self, names: Option<PortNames>) {
        self.port_names = names;
    }

    /// The name of the port by which a frame came.
    pub fn port_name(&self, index: usize) -> Option<&str> {
        self.port_names.as_ref()?.get(usize::from(self.frames[index].port))?.as_deref()
    }

    /// The name of the port that a frame leaves by if it passes, if it does and that is known.
    pub fn egress_name(&self, index: usize) -> Option<&str> {
        self.port_names.as_ref()?.get(usize::from(*self.egress.get(index)?))?.as_deref()
    }

    /// Takes frames of a batch that is not parsed in place of those before: those from `from` on, as long as `takes` says so.
    pub fn take_from(&mut self, whole: &Self, from: usize, takes: impl FnMut(&&FrameRef) -> bool) {
        self.reset_like(whole);
        self.wall_offset = whole.wall_offset;
        self.port_names.clone_from(&whole.port_names);
        self.frames.extend(whole.frames[from..].iter().take_while(takes).copied());
        match whole.places.is_empty() {
            true => self.first_number = whole.first_number + from as u64,
            false => {
                self.first_number = whole.first_number;
                self.places.extend_from_slice(&whole.places[from..from + self.frames.len()]);
            }
        }
        if let Some(offloads) = whole.offloads.get(from..from + self.frames.len()) {
            self.offloads.extend_from_slice(offloads);
        }
        if let Some(egress) = whole.egress.get(from..from + self.frames.len()) {
            self.egress.extend_from_slice(egress);
        }
    }

    /// What the sender of a frame has left to be done.
    #[inline]
    pub fn offload(&self, index: usize) -> Offload {
        self.offloads.get(index).copied().unwrap_or(Offload::NONE)
    }

    /// Appends the verdict on the next frame: for a loop over frames that parses them by itself.
    pub fn push_verdict(&mut self, verdict: Verdict) {
        self.verdicts.push(verdict);
    }

    /// Takes some frames of a parsed batch in place of those before, with what their headers said; `indices` are their places there, in
    /// order. Their keys are as rewritten as there, but rewrites stay behind, and a DSCP is that of the frame's bytes: [`Batch::merge`] brings them
    /// back.
    pub fn gather(&mut self, whole: &Self, indices: &[u32]) {
        self.reset_like(whole);
        self.wall_offset = whole.wall_offset;
        self.port_names.clone_from(&whole.port_names);
        let count = indices.len() as u32;
        let places = || indices.iter().map(|&index| index as usize);
        self.first_number = whole.first_number;
        match whole.places.is_empty() {
            true => self.places.extend_from_slice(indices),
            false => self.places.extend(places().map(|index| whole.places[index])),
        }
        self.frames.extend(places().map(|index| whole.frames[index]));
        self.verdicts.extend(places().map(|index| whole.verdicts[index]));
        if !whole.egress.is_empty() {
            self.egress.extend(places().map(|index| whole.egress[index]));
        }
        if !whole.marks.is_empty() {
            self.marks.extend(places().map(|index| whole.marks[index]));
        }
        if whole.is_common() {
            // Each has its key at its own place, here and there.
            self.parsed.extend((0..count).map(Parsed::V4));
            self.v4.keys.extend(places().map(|index| whole.v4.keys[index]));
            self.v4.frames.extend(0..count);
            self.v4.bytes.extend(places().map(|index| whole.v4.bytes[index]));
            return;
        }
        self.is_common = whole.is_common;
        if !whole.layers.is_empty() {
            self.layers.extend(places().map(|index| layers_of(&whole.layers, index)));
        }
        if !whole.other_framings.is_empty() {
            let numbered = (0..count).zip(places());
            let others = numbered.filter(|&(_, index)| whole.is_other_framing(index));
            self.other_framings.extend(others.map(|(frame, _)| frame));
        }
        let Self { parsed, v4, v6, .. } = self;
        parsed.extend((0..count).zip(places()).map(|(frame, index)| match whole.parsed[index] {
            Parsed::V4(at) => Parsed::V4(v4.push_from(&whole.v4, at as usize, frame)),
            Parsed::V6(at) => Parsed::V6(v6.push_from(&whole.v6, at as usize, frame)),
            rejected @ Parsed::Rejected(_) => rejected,
        }));
    }

    /// Takes verdicts, marks and rewrites back from a batch that [gathered](Batch::gather) the frames with these places.
    pub fn merge(&mut self, share: &Self, indices: &[u32]) {
        for (&index, &verdict) in indices.iter().zip(&share.verdicts) {
            self.verdicts[index as usize] = verdict;
        }
        for (&index, &mark) in indices.iter().zip(&share.marks) {
            self.set_mark(index as usize, mark);
        }
        if share.has_rewrites() {
            for (number, &index) in indices.iter().enumerate() {
                self.rewrite_from(index as usize, share, number);
            }
        }
    }

    /// Gives one end of a packet another address, and perhaps another port: in its key, so that later functions see it, and in the
    /// frame when it is written out. Whether that can be: not where the frame has no key, nor where
    /// [`rewrite::apply`](crate::rewrite::apply()) would not apply it.
    pub fn rewrite(&mut self, rewrite: Rewrite) -> bool {
        let Rewrite { frame, end, address, port } = rewrite;
        let Some(&parsed) = self.parsed.get(frame as usize) else { return false };
        let mut columns = self.columns();
        columns.packet(frame, parsed).is_some_and(|mut packet| packet.rewrite(end, address, port))
    }

    /// Gives a packet another DSCP: later functions see it, and the frame has it when it is written out. Whether that can be: not where
    /// the frame has no key.
    pub fn set_dscp(&mut self, frame: u32, dscp: Dscp) -> bool {
        let Some(&parsed) = self.parsed.get(frame as usize) else { return false };
        self.columns().packet(frame, parsed).is_some_and(|mut packet| {
            packet.set_dscp(dscp);
            true
        })
    }

    /// The DSCP that a packet was given, if it was.
    pub fn rewritten_dscp(&self, index: usize) -> Option<Dscp> {
        self.changes(index).dscp()
    }

    /// Rewrites the frame `frame` of this batch as `other` has its frame `index`, which must be the same one: to put together
    /// what was taken apart.
    pub fn rewrite_from(&mut self, frame: usize, other: &Self, index: usize) {
        for rewrite in other.rewrites(index) {
            self.rewrite(Rewrite { frame: frame as u32, ..rewrite });
        }
        if let Some(dscp) = other.rewritten_dscp(index) {
            self.set_dscp(frame as u32, dscp);
        }
    }

    #[inline]
    fn changes(&self, index: usize) -> Changes {
        self.rewritten.get(index).copied().unwrap_or(Changes::NONE)
    }

    /// Addresses and ports that are to be rewritten in a frame: at most one for each end.
    #[inline]
    pub fn rewrites(&self, index: usize) -> impl Iterator<Item = Rewrite> {
        let changes = self.changes(index);
        let of = move |end| {
            let parsed = *self.parsed.get(index).filter(|_| changes.has(end))?;
            match parsed {
                Parsed::V4(at) => Some(self.v4.keys[at as usize].as_rewrite(index as u32, end)),
                Parsed::V6(at) => Some(self.v6.keys[at as usize].as_rewrite(index as u32, end)),
                Parsed::Rejected(_) => None,
            }
        };
        [End::Source, End::Destination].into_iter().filter_map(of)
    }

    /// Writes what is to be rewritten in a frame into a copy of its bytes, or of those before some place.
    pub fn apply_rewrites(&self, index: usize, bytes: &mut [u8]) {
        let changes = self.changes(index);
        let Some(&parsed) = self.parsed.get(index).filter(|_| changes != Changes::NONE) else { return };
        let frame = &self.frames[index];
        let of = (frame.link, frame.wire_len);
        match parsed {
            Parsed::V4(at) => rewrite::write_v4(&self.v4.keys[at as usize], changes, of, bytes),
            Parsed::V6(at) => rewrite::write_v6(&self.v6.keys[at as usize], changes, of, bytes),
            Parsed::Rejected(_) => {}
        }
        if let Some(dscp) = changes.dscp() {
            let network = layers_of(&self.layers, index).network as usize;
            if let Some(packet) = bytes.get_mut(network..) {
                rewrite::set_packet_dscp(dscp, packet);
            }
        }
    }

    /// Copies the frames that pass, in order, with what is to be rewritten, to places of so many bytes, one after the other: as many of
    /// a frame's bytes as have room in its place. Ends where there are no more places; returns how many frames there were. What lies in a
    /// place behind its frame's bytes, and in places that are left, may have been written, too: senders go by the lengths of frames.
    ///
    /// `next` says where the frames of the next batch begin in the same memory, if it is known which they are: with each frame that is looked
    /// at, the headers of one of these are asked for.
    ///
    /// # Panics
    /// Places have no bytes.
    pub fn copy_passed(&self, places: &mut [u8], place: usize, mut next: impl Iterator<Item = u64>) -> usize {
        let arena = (*self.arena).as_ref();
        let mut ask = move || {
            if let Some(offset) = next.next() {
                prefetch_l2_at(arena, offset as usize);
            }
        };
        let room = places.len() / place * place;
        let (places, frames) = (&mut places[..room], self.frames.iter().zip(&self.verdicts));
        let has_all = self.is_common() && (!self.has_rewrites() || self.rewritten.len() == self.len());
        if !has_all || place < LINE || self.loan.is_some() {
            let passed = frames.enumerate().inspect(|_| ask()).filter(|(_, (_, verdict))| verdict.is_pass());
            return passed
                .zip(places.chunks_exact_mut(place))
                .map(|((index, _), place)| self.copy(index, place))
                .count();
        }
        // Each has its key at its own place.
        let packets = frames.zip(&self.v4.keys);
        if self.has_rewrites() {
            self.copy_lines(packets.zip(self.rewritten.iter().copied()), places, place, ask)
        } else {
            self.copy_lines(packets.map(|packet| (packet, Changes::NONE)), places, place, ask)
        }
    }

    /// Copies common frames, of which short ones are mostly whole cache lines.
    // By itself, so that it has all registers.
    #[inline(never)]
    fn copy_lines<'a>(
        &self,
        packets: impl Iterator<Item = (((&'a FrameRef, &'a Verdict), &'a MatchKey4), Changes)>,
        places: &mut [u8],
        place: usize,
        mut ask: impl FnMut(),
    ) -> usize {
        let arena = (*self.arena).as_ref();
        let mut at = 0;
        for (index, (((frame, verdict), key), changes)) in packets.enumerate() {
            ask();
            if let Some(line) = chunk(arena, frame)
                && let Some(copy) = places.get_mut(at..).and_then(<[u8]>::first_chunk_mut)
                && frame.len as usize <= LINE
                && !changes.has_dscp()
            {
                // That of one that does not pass is written over.
                copy_line(key, changes, line, copy);
            } else if verdict.is_pass() {
                let Some(place) = places.get_mut(at..at + place) else { break };
                self.copy(index, place);
            }
            at += if verdict.is_pass() { place } else { 0 };
        }
        at / place
    }

    /// Copies a frame, as it is to be sent.
    #[inline(never)]
    fn copy(&self, index: usize, place: &mut [u8]) {
        let bytes = self.bytes(index);
        let len = bytes.len().min(place.len());
        let copy = &mut place[..len];
        copy.copy_from_slice(&bytes[..len]);
        let changes = self.changes(index);
        match (bytes.first_chunk(), copy.first_chunk_mut()) {
            (Some(bytes), Some(copy)) if self.is_common() && !changes.has_dscp() => {
                rewrite::write_common(&self.v4.keys[index], changes, bytes, copy);
            }
            _ => self.apply_rewrites(index, copy),
        }
    }

    /// Whether a frame was rewritten.
    #[inline]
    pub fn is_rewritten(&self, index: usize) -> bool {
        self.changes(index) != Changes::NONE
    }

    /// Whether any frame was rewritten.
    pub fn has_rewrites(&self) -> bool {
        !self.rewritten.is_empty()
    }

    /// Walks the headers of every frame and fills in keys; frames without a key get the verdict of `policy`.
    pub fn parse(&mut self, policy: Policy) {
        match self.loan.clone() {
            None => {
                let arena = self.arena.clone();
                self.parse_in((*arena).as_ref(), policy);
            }
            Some(loan) => self.parse_in(&*loan, policy),
        }
    }

    fn parse_in<M: Frames + ?Sized>(&mut self, memory: &M, policy: Policy) {
        let Self { frames, parsed, verdicts, v4, v6, is_common, other_framings, layers, .. } = self;
        let begin = parsed.len();
        let (mut at, mut rejected) = (begin, false);
        let mut group = Group { keys: [MatchKey4::default(); GROUP], bytes: [0; GROUP] };
        loop {
            let found = parse_common(memory, &frames[at..], &mut group);
            let key = v4.keys.len() as u32;
            parsed.extend((key..key + found as u32).map(Parsed::V4));
            v4.keys.extend_from_slice(&group.keys[..found]);
            v4.frames.extend(at as u32..(at + found) as u32);
            v4.bytes.extend_from_slice(&group.bytes[..found]);
            at += found;
            if found == GROUP {
                continue;
            }
            let Some(frame) = frames.get(at) else { break };
            *is_common = false;
            layers.resize(at, Layers::COMMON);
            let bytes = memory.bytes(frame);
            let is_other = || other_framings.push(at as u32);
            let found = dissect_and_tell(frame.link, bytes, frame.wire_len, is_other);
            layers.push(found.as_ref().map_or(Layers::BEYOND, |(_, layers)| *layers));
            parsed.push(match found {
                Ok((Headers { key: Key::V4(key), ip_bytes }, _)) => {
                    Parsed::V4(v4.push(key, at as u32, ip_bytes))
                }
                Ok((Headers { key: Key::V6(key), ip_bytes }, _)) => {
                    Parsed::V6(v6.push(key, at as u32, ip_bytes))
                }
                Err(reject) => {
                    rejected = true;
                    Parsed::Rejected(reject)
                }
            });
            at += 1;
        }
        if !*is_common {
            layers.resize(at, Layers::COMMON);
        }
        let first = verdicts.len();
        verdicts.resize(first + at - begin, Verdict::Pass);
        if rejected {
            for (verdict, parsed) in verdicts[first..].iter_mut().zip(&parsed[begin..]) {
                if let Parsed::Rejected(reject) = parsed {
                    *verdict = policy.verdict(*reject);
                }
            }
        }
    }

    /// Frames it may hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes how many frames it may hold.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Frames it holds.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it holds no frame.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether no further frame should be added.
    pub fn is_full(&self) -> bool {
        self.frames.len() >= self.capacity
    }

    /// The memory its frames lie in; nothing where they are [lent](Self::loan).
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// What its frames lie in, if they are lent to it. As long as somebody has it beside this batch, their bytes are not
    /// [changed](Self::bytes_mut).
    pub fn loan(&self) -> Option<&Arc<dyn Loan>> {
        self.loan.as_ref()
    }

    /// The frames, in order of arrival.
    pub fn frames(&self) -> &[FrameRef] {
        &self.frames
    }

    /// The captured bytes of a frame, without its rewrites.
    pub fn bytes(&self, index: usize) -> &[u8] {
        self.memory().bytes(&self.frames[index])
    }

    fn memory(&self) -> Memory<'_> {
        match &self.loan {
            None => Memory::Arena((*self.arena).as_ref()),
            Some(loan) => Memory::Loan(&**loan),
        }
    }

    /// The captured bytes of a frame, to be changed where they lie: where they are lent to this batch and to no share of it. Its key stays as
    /// it is.
    pub fn bytes_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let frame = &self.frames[index];
        Arc::get_mut(self.loan.as_mut()?)?.get_mut(frame.offset, frame.len as usize)
    }

    /// Writes what is to be rewritten in a frame into the frame itself, where that [may be](Self::bytes_mut), and returns its bytes; from then on
    /// the frame counts as not rewritten. Without effect where it may not.
    pub fn rewrite_in_place(&mut self, index: usize) -> Option<&mut [u8]> {
        let frame = self.frames[index];
        let mut loan = self.loan.take()?;
        let bytes = Arc::get_mut(&mut loan).and_then(|loan| loan.get_mut(frame.offset, frame.len as usize));
        let is_done = bytes.map(|bytes| self.apply_rewrites(index, bytes)).is_some();
        self.loan = Some(loan);
        if is_done && let Some(changes) = self.rewritten.get_mut(index) {
            *changes = Changes::NONE;
        }
        self.bytes_mut(index)
    }

    /// The captured bytes of all frames, in order, as [`Self::bytes`]: for a loop that goes through them all.
    pub fn each_bytes(&self) -> impl Iterator<Item = &[u8]> {
        let memory = self.memory();
        self.frames.iter().enumerate().map(move |(at, frame)| {
            if let Some(ahead) = self.frames.get(at + AHEAD) {
                memory.prefetch(ahead);
            }
            memory.bytes(frame)
        })
    }

    /// Where the headers of a parsed frame are; `None` where it has no key.
    #[inline]
    pub fn layers(&self, index: usize) -> Option<Layers> {
        match self.parsed.get(index)? {
            Parsed::Rejected(_) => None,
            _ => Some(layers_of(&self.layers, index)),
        }
    }

    /// The captured bytes that the transport header of a parsed frame is followed by, as far as they belong to the IP packet: without padding
    /// behind it. What follows the IP header in fragments other than the first and of protocols that are not known. `None` where it has no
    /// key, or its transport header was not captured whole. Without rewrites.
    pub fn payload(&self, index: usize) -> Option<&[u8]> {
        let parsed = *self.parsed.get(index)?;
        payload_of(self.bytes(index), layers_of(&self.layers, index), parsed, &self.v4, &self.v6)
    }

    /// The flow of a parsed frame; `None` where it has no key.
    pub fn flow_key(&self, index: usize) -> Option<FlowKey> {
        match self.parsed.get(index)? {
            Parsed::V4(at) => Some(FlowKey::from_v4(&self.v4.keys[*at as usize]).0),
            Parsed::V6(at) => Some(FlowKey::from_v6(&self.v6.keys[*at as usize]).0),
            Parsed::Rejected(_) => None,
        }
    }

    /// What the headers of each frame said, once parsed.
    pub fn parsed(&self) -> &[Parsed] {
        &self.parsed
    }

    /// The verdict on each frame so far, once parsed.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// The verdicts to be changed, beside the keys that decide them.
    pub fn judge(&mut self) -> (&mut [Verdict], &Keys<MatchKey4>, &Keys<MatchKey6>) {
        (&mut self.verdicts, &self.v4, &self.v6)
    }

    /// All columns, for functions that rewrite packets while they judge them.
    pub fn columns(&mut self) -> Columns<'_> {
        let Self { arena, loan, frames, verdicts, v4, v6, rewritten, layers, port_names, egress, .. } = self;
        let port_names = port_names.as_ref();
        let memory = match loan {
            None => Memory::Arena((**arena).as_ref()),
            Some(loan) => Memory::Loan(&**loan),
        };
        Columns { frames, verdicts, v4, v6, port_names, egress, memory, layers, rewritten }
    }

    /// Whether each frame was parsed and is TCP or UDP in one piece in IPv4, as it is in most batches: all keys are IPv4's and have ports,
    /// and each is at its frame's place.
    #[inline]
    pub fn is_common(&self) -> bool {
        self.is_common && self.v4.keys.len() == self.frames.len()
    }

    /// The frames, in order, whose IP header, whole or not, stands in a framing that is not [basic](crate::dissect::is_basic()).
    #[inline]
    pub fn other_framings(&self) -> &[u32] {
        &self.other_framings
    }

    /// Whether a frame is one of [`Batch::other_framings`].
    #[inline]
    pub fn is_other_framing(&self, index: usize) -> bool {
        !self.other_framings.is_empty() && self.other_framings.binary_search(&(index as u32)).is_ok()
    }

    /// The IPv4 packets' keys.
    pub fn v4(&self) -> &Keys<MatchKey4> {
        &self.v4
    }

    /// The IPv6 packets' keys.
    pub fn v6(&self) -> &Keys<MatchKey6> {
        &self.v6
    }
}

impl Extend<FrameRef> for Batch {
    /// Appends frames, as [`Batch::push`].
    #[inline]
    fn extend<I: IntoIterator<Item = FrameRef>>(&mut self, frames: I) {
        self.frames.extend(frames);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("frames", &self.frames.len()).field("capacity", &self.capacity).finish()
    }
}

/// What the headers of some [common](common()) frames said, before it goes to the columns: there, each frame would have to ask for room.
struct Group {
    keys: [MatchKey4; GROUP],
    bytes: [u32; GROUP],
}

/// Looks at the headers of the first frames, as many as a group may have, up to one that is not like [the most common ones](common); returns
/// how many they are.
// By itself, so that it has all registers.
#[inline(never)]
fn parse_common<M: Frames + ?Sized>(memory: &M, frames: &[FrameRef], group: &mut Group) -> usize {
    let places = group.keys.iter_mut().zip(&mut group.bytes);
    for (at, (frame, (key, bytes))) in frames.iter().zip(places).enumerate() {
        if let Some(ahead) = frames.get(at + AHEAD) {
            memory.prefetch(ahead);
        }
        let data = memory.chunk(frame);
        let found = data.filter(|_| frame.len as usize >= COMMON).and_then(|data| common(frame.link, data));
        let Some(found) = found else { return at };
        (*key, *bytes) = found;
    }
    frames.len().min(GROUP)
}

/// Copies a short frame with all of its cache line, and writes what is to be rewritten. It is one of the [common](common()) ones.
#[inline]
fn copy_line(key: &MatchKey4, changes: Changes, line: &[u8; LINE], copy: &mut [u8; LINE]) {
    *copy = *line;
    if let (Some(line), Some(copy)) = (line.first_chunk(), copy.first_chunk_mut()) {
        rewrite::write_common(key, changes, line, copy);
    }
}

/// What frames lie in.
trait Frames {
    /// The bytes of a frame, as far as they are there.
    fn bytes(&self, frame: &FrameRef) -> &[u8];

    /// The first bytes of a frame and of what lies behind it, if there are as many.
    fn chunk<const N: usize>(&self, frame: &FrameRef) -> Option<&[u8; N]>;

    /// Asks for the headers of a frame.
    fn prefetch(&self, frame: &FrameRef);
}

impl Frames for [u8] {
    #[inline]
    fn bytes(&self, frame: &FrameRef) -> &[u8] {
        let rest =
            usize::try_from(frame.offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        &rest[..rest.len().min(frame.len as usize)]
    }

    #[inline]
    fn chunk<const N: usize>(&self, frame: &FrameRef) -> Option<&[u8; N]> {
        chunk(self, frame)
    }

    #[inline]
    fn prefetch(&self, frame: &FrameRef) {
        prefetch_at(self, frame.offset as usize);
    }
}

impl Frames for dyn Loan + '_ {
    #[inline]
    fn bytes(&self, frame: &FrameRef) -> &[u8] {
        self.get(frame.offset, frame.len as usize).unwrap_or_default()
    }

    #[inline]
    fn chunk<const N: usize>(&self, frame: &FrameRef) -> Option<&[u8; N]> {
        self.get(frame.offset, N)?.first_chunk()
    }

    #[inline]
    fn prefetch(&self, frame: &FrameRef) {
        if let Some(bytes) = self.get(frame.offset, 1) {
            prefetch_at(bytes, 0);
        }
    }
}

/// What the frames of a batch lie in.
#[derive(Clone, Copy)]
enum Memory<'a> {
    Arena(&'a [u8]),
    Loan(&'a dyn Loan),
}

impl<'a> Memory<'a> {
    #[inline]
    fn bytes(self, frame: &FrameRef) -> &'a [u8] {
        match self {
            Self::Arena(arena) => arena.bytes(frame),
            Self::Loan(loan) => loan.bytes(frame),
        }
    }

    #[inline]
    fn prefetch(self, frame: &FrameRef) {
        match self {
            Self::Arena(arena) => arena.prefetch(frame),
            Self::Loan(loan) => loan.prefetch(frame),
        }
    }
}

/// The first bytes of a frame and of what lies behind it, if there are as many.
#[inline]
fn chunk<'a, const N: usize>(arena: &'a [u8], frame: &FrameRef) -> Option<&'a [u8; N]> {
    arena.get(usize::try_from(frame.offset).ok()?..)?.first_chunk()
}

#[inline]
fn layers_of(layers: &[Layers], index: usize) -> Layers {
    layers.get(index).copied().unwrap_or(Layers::COMMON)
}

/// As [`Batch::payload`].
fn payload_of<'a>(
    bytes: &'a [u8],
    Layers { network, transport }: Layers,
    parsed: Parsed,
    v4: &Keys<MatchKey4>,
    v6: &Keys<MatchKey6>,
) -> Option<&'a [u8]> {
    let (protocol, bits, ip_bytes) = match parsed {
        Parsed::V4(at) => {
            let key = &v4.keys[at as usize];
            (key.protocol, key.bits, v4.bytes[at as usize])
        }
        Parsed::V6(at) => {
            let key = &v6.keys[at as usize];
            (key.protocol, key.bits, v6.bytes[at as usize])
        }
        Parsed::Rejected(_) => return None,
    };
    let end = bytes.len().min(network as usize + ip_bytes as usize);
    let upper = bytes.get(transport as usize..end)?;
    if bits.contains(KeyBits::LATER_FRAGMENT) {
        return Some(upper);
    }
    upper.get(transport_header_len(protocol, upper)?..)
}

/// What happens to frames that have no match key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Frames of protocols that are known not to carry IP pass (ARP, for one).
    pub pass_non_ip: bool,
    /// Frames that may carry IP in a framing that is not known pass.
    pub pass_unknown_framing: bool,
    /// Frames whose headers cannot be parsed pass.
    pub pass_malformed: bool,
}

impl Policy {
    /// Everything passes.
    pub const PASS: Self = Self { pass_non_ip: true, pass_unknown_framing: true, pass_malformed: true };

    /// The verdict on a frame that was rejected.
    pub const fn verdict(self, reject: Reject) -> Verdict {
        let (passes, reason) = if reject.is_non_ip() {
            (self.pass_non_ip, DropReason::NonIp)
        } else if reject.is_unknown_framing() {
            (self.pass_unknown_framing, DropReason::UnknownFraming)
        } else {
            (self.pass_malformed, DropReason::Malformed)
        };
        if passes { Verdict::Pass } else { Verdict::Drop(reason) }
    }
}
