//! The bytes of TCP streams as segments bring them, in any order: what of a segment is new, between the bytes that lie beside it.
//!
//! Of each direction of a flow the runs of bytes are kept that were seen, by their places alone but for their ends: a pattern that lies in two
//! segments has the end of one run and the beginning of the other. So every new byte is searched once, when it comes, and what is kept of a
//! run does not grow with it.

use std::collections::HashMap;
use std::ops::Range;

use packetloom_pattern::Part;

/// Runs of a direction that are kept; of more the one that was touched least lately is forgotten.
pub(super) const MAX_RUNS: usize = 8;

/// Patterns that were found in a direction that are remembered for signatures of several.
const MAX_FOUND: usize = 64;

/// Bytes that all directions take at most, of a worker: 256 MiB.
const MAX_BYTES: usize = 256 << 20;

/// What a direction and a run take beside the bytes at their ends, with the room that a map and a list keep free.
const PER_DIRECTION: usize = 512;
const PER_RUN: usize = 128;

/// What the patterns take that were found in a direction, beside their numbers.
const PER_FOUND: usize = 384;

/// Places from which on they are counted anew.
const FARTHEST: u64 = 1 << 60;

/// The flow's number, and whether the lower endpoint sends.
pub(super) type DirectionKey = (u64, bool);

/// A segment of TCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    /// The sequence number of its first byte of payload.
    pub(super) sequence: u32,
    /// Whether the stream begins with it.
    pub(super) is_first: bool,
    pub(super) payload: &'a [u8],
}

/// A stream of a direction: they are numbered, since another connection may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId {
    direction: DirectionKey,
    number: u32,
}

/// What of a segment is to be searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fresh {
    /// New bytes with those beside them, in the room for texts.
    pub(super) text: Range<usize>,
    pub(super) part: Part,
}

/// The streams of a worker's flows.
#[derive(Debug)]
pub(super) struct Streams {
    directions: HashMap<DirectionKey, Direction>,
    /// Patterns that were found, where signatures need several, and in which stream. All segments of a batch are taken before one is judged, so
    /// that this may be of the stream before.
    found: HashMap<DirectionKey, (u32, Vec<u32>)>,
    /// Bytes of either end of a run that a pattern may need.
    margin: usize,
    /// What they take, and how much they may.
    bytes: usize,
    pub(super) max_bytes: usize,
    pub(super) counts: StreamCounts,
}

/// What there is to say of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamCounts {
    /// Places of streams at which bytes were missing to the end.
    pub(super) gaps: u64,
    /// Segments that were searched by themselves, since there was no memory for their streams.
    pub(super) no_room: u64,
    /// Segments with a pattern that was not remembered, since so many others were found in the stream.
    pub(super) not_remembered: u64,
}

/// One direction of a TCP connection.
#[derive(Debug, Default)]
struct Direction {
    /// The sequence number at place 0, once there is one, and whether that is the beginning.
    origin: Option<u32>,
    is_begin: bool,
    /// The place behind the last segment.
    near: i64,
    /// The one that was touched last stands last.
    runs: Vec<Run>,
    /// The number of the stream.
    number: u32,
    /// Gaps of runs that were forgotten.
    gaps: u64,
}

/// Bytes without a gap.
#[derive(Debug, Default)]
struct Run {
    places: Range<i64>,
    /// Its first and last bytes: all where it is no longer than the margin, or so many.
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Run {
    fn is_short(&self, margin: usize) -> bool {
        self.places.end - self.places.start < margin as i64
    }

    fn bytes(&self) -> usize {
        PER_RUN + self.head.len() + self.tail.len()
    }
}

impl Direction {
    fn bytes(&self) -> usize {
        PER_DIRECTION + self.runs.iter().map(Run::bytes).sum::<usize>()
    }

    fn gaps(&self) -> u64 {
        self.gaps + self.runs.len().saturating_sub(1) as u64
    }

    /// Begins another stream, with a sequence number if that is known.
    fn restart(&mut self, begin: Option<u32>) {
        let (number, gaps) = (self.number.wrapping_add(1), self.gaps());
        let is_begin = begin.is_some();
        *self = Self { origin: begin, is_begin, near: 0, runs: Vec::new(), number, gaps };
    }

    /// The place of a segment's first byte. Sequence numbers come again after 2^32 bytes: it is the place at which it touches a run, of several
    /// the one that was touched last, or else the one nearest to the last segment.
    fn place(&mut self, segment: &Segment<'_>) -> i64 {
        let behind_origin = segment.sequence.wrapping_sub(*self.origin.get_or_insert(segment.sequence));
        let nearest_to = |place: i64| place + i64::from(behind_origin.wrapping_sub(place as u32) as i32);
        let len = segment.payload.len() as i64;
        let beside = |run: &Run| {
            let place = nearest_to(run.places.end);
            (place <= run.places.end && place + len >= run.places.start).then_some(place)
        };
        let place = self.runs.iter().rev().find_map(beside).unwrap_or_else(|| nearest_to(self.near));
        self.near = place + len;
        place
    }
}

impl Streams {
    /// For patterns the longest of which has so many bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self {
            directions: HashMap::new(),
            found: HashMap::new(),
            margin: longest.saturating_sub(1),
            bytes: 0,
            max_bytes: MAX_BYTES,
            counts: StreamCounts::default(),
        }
    }

    /// Takes the next segment of a direction; its stream. What of it is to be searched is added to `fresh`, and its texts to `room`. None where
    /// there is no memory for the stream, so that it is to be searched by itself.
    pub(super) fn take(
        &mut self,
        key: DirectionKey,
        segment: Segment<'_>,
        room: &mut Vec<u8>,
        fresh: &mut Vec<Fresh>,
    ) -> Option<StreamId> {
        let is_empty = segment.payload.is_empty();
        let Self { directions, margin, bytes, max_bytes, counts, .. } = self;
        let is_new = !directions.contains_key(&key);
        if is_new && is_empty && !segment.is_first {
            return Some(StreamId { direction: key, number: 0 });
        }
        let own = if is_new { PER_DIRECTION } else { 0 };
        if *bytes + own + PER_RUN + segment.payload.len().min(2 * *margin) > *max_bytes {
            counts.no_room += u64::from(!is_empty);
            // What is known of it would have a gap here.
            if let Some(direction) = directions.remove(&key) {
                *bytes -= direction.bytes();
                counts.gaps += direction.gaps() + u64::from(!direction.runs.is_empty());
            }
            return None;
        }
        *bytes += own;
        let direction = directions.entry(key).or_default();
        let before = direction.bytes();
        if segment.is_first && !(direction.is_begin && direction.origin == Some(segment.sequence)) {
            // The first connection of these ports, or another one.
            direction.restart(Some(segment.sequence));
        }
        if !is_empty {
            direction.add(segment, *margin, room, fresh);
        }
        *bytes = *bytes + direction.bytes() - before;
        Some(StreamId { direction: key, number: direction.number })
    }

    /// Remembers patterns that were found in a stream, and gives those that were before.
    pub(super) fn remember(
        &mut self,
        stream: StreamId,
        patterns: impl Iterator<Item = u32>,
        into: &mut Vec<u32>,
    ) {
        let mut patterns = patterns.peekable();
        let Self { found, bytes, counts, .. } = self;
        if patterns.peek().is_none() && !found.contains_key(&stream.direction) {
            return;
        }
        let (number, found) = found.entry(stream.direction).or_insert_with(|| {
            *bytes += PER_FOUND;
            (stream.number, Vec::new())
        });
        if *number != stream.number {
            *bytes -= 4 * found.len();
            (*number, *found) = (stream.number, Vec::new());
        }
        into.extend_from_slice(found);
        let mut are_remembered = true;
        for pattern in patterns {
            if found.contains(&pattern) {
                continue;
            }
            are_remembered = found.len() < MAX_FOUND;
            if are_remembered {
                found.push(pattern);
                *bytes += 4;
            }
        }
        counts.not_remembered += u64::from(!are_remembered);
    }

    /// Forgets a flow's streams, which are over.
    pub(super) fn end(&mut self, flow: u64) {
        self.counts.gaps += self.forget(flow);
    }

    /// Forgets a flow's streams; how many gaps they have.
    pub(super) fn forget(&mut self, flow: u64) -> u64 {
        let mut gaps = 0;
        for key in [(flow, false), (flow, true)] {
            if let Some(direction) = self.directions.remove(&key) {
                self.bytes -= direction.bytes();
                gaps += direction.gaps();
            }
            if let Some((_, found)) = self.found.remove(&key) {
                self.bytes -= PER_FOUND + 4 * found.len();
            }
        }
        gaps
    }

    /// What they take.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What was counted, with the gaps of those that have not ended.
    pub(super) fn counts(&self) -> StreamCounts {
        let gaps = self.directions.values().map(Direction::gaps).sum::<u64>();
        StreamCounts { gaps: self.counts.gaps + gaps, ..self.counts }
    }
}

impl Direction {
    /// Adds a segment that has bytes.
    fn add(&mut self, segment: Segment<'_>, margin: usize, room: &mut Vec<u8>, fresh: &mut Vec<Fresh>) {
        if self.near.unsigned_abs() > FARTHEST {
            self.restart(None);
        }
        let place = self.place(&segment);
        let end = place + segment.payload.len() as i64;
        let mut at = place;
        while at < end {
            // Bytes that are there, and then bytes that are not.
            if let Some(run) = self.runs.iter().find(|run| run.places.contains(&at)) {
                at = run.places.end;
                continue;
            }
            let behind = self.runs.iter().map(|run| run.places.start).filter(|&start| start > at);
            let until = behind.min().unwrap_or(end).min(end);
            let new = &segment.payload[(at - place) as usize..(until - place) as usize];
            fresh.push(self.join(at, new, margin, room));
            at = until;
        }
        if self.runs.len() > MAX_RUNS {
            let more = self.runs.len() - MAX_RUNS;
            self.runs.drain(..more);
            self.gaps += more as u64;
        }
    }

    /// Adds bytes none of which was there, and joins the runs beside them.
    fn join(&mut self, at: i64, new: &[u8], margin: usize, room: &mut Vec<u8>) -> Fresh {
        let end = at + new.len() as i64;
        let mut remove = |is_beside: &dyn Fn(&Run) -> bool| {
            let number = self.runs.iter().position(is_beside)?;
            Some(self.runs.remove(number))
        };
        let left = remove(&|run| run.places.end == at);
        let right = remove(&|run| run.places.start == end);
        let first = room.len();
        let before = left.as_ref().map_or(&[][..], |run| &run.tail);
        room.extend_from_slice(before);
        room.extend_from_slice(new);
        room.extend_from_slice(right.as_ref().map_or(&[], |run| &run.head));
        let text = &room[first..];
        let from = before.len() as u32;
        let part = Part { begin: at - i64::from(from), new: (from, from + new.len() as u32) };
        let mut run = left.unwrap_or_else(|| Run { places: at..at, ..Run::default() });
        if run.is_short(margin) {
            run.head = text[..text.len().min(margin)].to_vec();
        }
        run.places.end = end;
        match right {
            Some(right) if !right.is_short(margin) => {
                (run.places.end, run.tail) = (right.places.end, right.tail);
            }
            right => {
                run.places.end += right.map_or(0, |right| right.places.end - right.places.start);
                run.tail.clear();
                run.tail.extend_from_slice(&text[text.len() - text.len().min(margin)..]);
            }
        }
        self.runs.push(run);
        Fresh { text: first..room.len(), part }
    }
}
