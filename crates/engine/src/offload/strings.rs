//! A search of payloads on a device: of the first functions of a chain, which keep no state, the last one looks for strings, and the device finds
//! which of them lie in which packets. All else is done here when a batch is taken: what the functions before it do, and what follows from a string
//! that was found. Several batches are away at a time, each in a lane of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use packetloom_device::{Device, Memory, Part, Queue, Shared};
use packetloom_nf::{FunctionSpec, TextSearch};
use packetloom_packet::Batch;
use packetloom_pattern::Match;
use packetloom_pattern::image::{Batch as TextBatch, Image, OnDevice, Results, Shape, Target};

use super::accelerator::{Accelerator, late};
use super::{Error, is_gpu};
use crate::crew::Crew;
use crate::outcome::Shares;
use crate::pipeline::Pipeline;
use crate::pipeline::work::Work;

/// Batches that are on their way at a time.
const LANES: usize = 4;
/// Packets of a batch at most, where so many threads work at it.
pub(crate) const fn room(feeders: usize) -> usize {
    if feeders > 1 { 1 << 15 } else { 1 << 14 }
}

/// Bytes of texts in a lane at most: packets with more are searched here.
const MAX_TEXT: usize = 1 << 27;
/// Matches that a lane has room for at first, and at most: batches with more are searched here.
const ROOM: usize = 1 << 14;
const MAX_ROOM: usize = 1 << 22;
/// Matches that are worth a thread of their own.
const CHUNK: usize = 1 << 12;

/// Matches that there is room for in each place where they are sorted, from one batch to the next.
const KEPT: usize = 1 << 14;

/// How long the first launch may take, at which drivers still compile.
const LIMIT_OF_FIRST: Duration = Duration::from_secs(60);

/// Words of a match: text, end, pattern.
type Words = [u32; 3];
/// The text of a packet.
type TextOf = for<'b> fn(&'b Batch, usize) -> Option<&'b [u8]>;

/// A set of strings on a device, and lanes to have packets searched.
pub(crate) struct Strings {
    device: Device,
    set: OnDevice,
    text_of: TextOf,
    /// Which of the functions searches.
    function: usize,
    /// Lanes without a batch, and those with one, the oldest first.
    free: Vec<Lane>,
    away: VecDeque<Lane>,
    chunks: Vec<Chunk>,
    /// For each piece of a batch: where its texts end, and what was found.
    ends: Vec<Vec<u32>>,
    found: Vec<Vec<Match>>,
}

/// A place for one batch at a time.
struct Lane {
    queue: Queue,
    /// The texts, packed; and where they are copied to, unless the device reads them where they are.
    texts: Shared,
    there: Option<Memory>,
    shape: Shape,
    /// Of each piece of the batch, packets whose texts are there, from the first on.
    searched: Vec<usize>,
    matches: MatchRoom,
    /// How many matches there are, on the device and here.
    count: Memory,
    counted: Shared,
    at: Instant,
}

/// Where matches go.
struct MatchRoom {
    room: usize,
    here: Shared,
    /// Where the device does not share the host's memory.
    there: Option<Memory>,
}

/// A part of the matches of a batch, in no particular order.
#[derive(Default)]
struct Chunk {
    words: Vec<Words>,
    /// For each piece of the batch, those in its packets.
    of_pieces: Vec<Vec<Match>>,
}

impl Chunk {
    fn clear(&mut self) {
        self.words.clear();
        self.words.shrink_to(KEPT);
        self.of_pieces.iter_mut().for_each(|matches| {
            matches.clear();
            matches.shrink_to(KEPT);
        });
    }
}

impl Strings {
    /// Lays out the strings of the last function, and makes lanes.
    ///
    /// # Errors
    /// Where the device has no room, or where it fails.
    ///
    /// # Panics
    /// Where the function does not search.
    pub(super) fn new(device: &Device, functions: &[Arc<dyn FunctionSpec>]) -> Result<Self, Error> {
        let search = functions.last().and_then(|function| function.text_search());
        let TextSearch { patterns, text } = search.expect("a function that searches");
        let set = OnDevice::new(device, &Image::new(patterns, &[]), &Target::of(device))?;
        let lanes = (0..LANES).map(|_| Lane::new(device));
        let mut strings = Self {
            device: device.clone(),
            set,
            text_of: text,
            function: functions.len() - 1,
            free: lanes.collect::<Result<_, _>>()?,
            away: VecDeque::new(),
            chunks: Vec::new(),
            ends: Vec::new(),
            found: Vec::new(),
        };
        // Drivers put off a part of the work until the first launch.
        for number in 0..LANES {
            let lane = &mut strings.free[number];
            lane.submit(&strings.set)?;
            if !lane.queue.finish_within(LIMIT_OF_FIRST)? {
                Box::new(strings).abandon();
                let why = format!("no answer for {LIMIT_OF_FIRST:?}");
                return Err(packetloom_device::Error::Failed { call: "first launch", why }.into());
            }
        }
        Ok(strings)
    }
}

impl Accelerator for Strings {
    fn depth(&self) -> usize {
        LANES
    }

    fn submit(&mut self, pieces: &[Work], crew: &Crew) -> Result<bool, Error> {
        let Some(mut lane) = self.free.pop() else { return Ok(false) };
        let filled = lane.fill(&self.device, self.text_of, pieces, &mut self.ends, crew);
        let submitted = filled.and_then(|()| lane.submit(&self.set));
        self.away.push_back(lane);
        submitted.map(|()| true)
    }

    fn is_back(&mut self) -> bool {
        self.away.front_mut().is_none_or(|lane| lane.queue.is_finished().unwrap_or(true))
    }

    /// Has a batch searched again that has more matches than there was room for.
    fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        let Some(lane) = self.away.front_mut() else { return Ok(()) };
        lane.finish_within(limit)?;
        let count = lane.count();
        if (lane.matches.room + 1..=MAX_ROOM).contains(&count) {
            lane.matches = MatchRoom::new(&self.device, count.next_power_of_two())?;
            lane.search(&self.set)?;
            lane.finish_again(limit)?;
        }
        if count <= lane.matches.room && lane.fetch(count)? {
            lane.finish_again(limit)?;
        }
        Ok(())
    }

    fn take(&mut self, pieces: &mut [Work], stages: &[Mutex<Pipeline>], crew: &Crew, shares: &mut Shares) {
        let Some(mut lane) = self.away.pop_front() else { return };
        let count = lane.count();
        let is_complete = count <= lane.matches.room;
        if !is_complete {
            lane.searched.fill(0);
        }
        let used = lane.sort(&mut self.chunks, if is_complete { count } else { 0 }, crew);
        if self.found.len() < pieces.len() {
            self.found.resize_with(pieces.len(), Vec::new);
        }
        let (chunks, function) = (&self.chunks[..used], self.function);
        let searched = lane.searched.iter().copied();
        let jobs = pieces.iter_mut().zip(&mut self.found).zip(searched).enumerate();
        crew.each_with(stages, jobs.collect(), |stages, (number, ((piece, found), searched))| {
            chunks.iter().for_each(|chunk| found.extend_from_slice(&chunk.of_pieces[number]));
            found.sort_unstable();
            found.dedup();
            // Only functions fail that share state with other workers.
            let _ = stages.process(0..function, &mut piece.batch, None);
            stages.take_matches(function, searched, found, &mut piece.batch);
            piece.take(stages);
        });
        // For the next batch. Room for the matches of one that had very many is not kept.
        self.found.iter_mut().for_each(|found| {
            found.clear();
            found.shrink_to(KEPT);
        });
        self.chunks.iter_mut().for_each(Chunk::clear);
        let packets: usize = pieces.iter().map(|piece| piece.batch.len()).sum();
        let searched: usize = lane.searched.iter().sum();
        shares.device += searched as u64;
        shares.here += (packets - searched) as u64;
        self.free.push(lane);
    }

    fn abandon(self: Box<Self>) {
        // All of them before memory is given back, for which drivers wait for kernels.
        let _kept: Vec<_> = self.free.into_iter().chain(self.away).map(Lane::abandon).collect();
    }
}

impl Lane {
    fn new(device: &Device) -> Result<Self, Error> {
        let shape = Shape { texts: 1, len: 16 };
        let mut texts = device.share(shape.bytes())?;
        let text: Vec<_> = [0; 16].into_iter().chain([0u32, 16].map(u32::to_ne_bytes).concat()).collect();
        texts.write(0, &text);
        Ok(Self {
            queue: device.queue()?,
            there: is_copied(device).then(|| device.memory(shape.bytes())).transpose()?,
            texts,
            shape,
            searched: Vec::new(),
            matches: MatchRoom::new(device, ROOM)?,
            count: device.memory(size_of::<u64>())?,
            counted: device.share(size_of::<u64>())?,
            at: Instant::now(),
        })
    }

    /// Takes the texts of the packets of pieces that still pass, in place of those before, as far as there is room; `ends` is room for as
    /// many pieces.
    fn fill(
        &mut self,
        device: &Device,
        text_of: TextOf,
        pieces: &[Work],
        ends: &mut Vec<Vec<u32>>,
        crew: &Crew,
    ) -> Result<(), Error> {
        let text_of = |batch, index| text_if_passing(batch, index, text_of);
        ends.resize_with(pieces.len().max(ends.len()), Vec::new);
        crew.each(pieces.iter().zip(&mut *ends).collect(), |(Work { batch, .. }, ends)| {
            let mut end = 0u32;
            ends.clear();
            ends.extend((0..batch.len()).map(|index| {
                end = end.saturating_add(text_of(batch, index).len() as u32);
                end
            }));
        });
        // Where texts of pieces begin.
        let (mut begins, mut len) = (Vec::with_capacity(pieces.len()), 0);
        self.searched.clear();
        for ends in &ends[..pieces.len()] {
            let searched = ends.partition_point(|&end| len + end as usize <= MAX_TEXT);
            self.searched.push(searched);
            begins.push(len);
            len += ends[..searched].last().map_or(0, |&end| end as usize);
        }
        let packets: usize = self.searched.iter().sum();
        self.shape = Shape { texts: packets as u32, len: len as u32 };
        if self.texts.len() < self.shape.bytes() {
            // Batches grow, and their texts are of any length.
            let bytes = self.shape.bytes() + self.shape.bytes() / 8;
            self.texts = device.share(bytes)?;
            self.there = is_copied(device).then(|| device.memory(bytes)).transpose()?;
        }
        let ends_of_texts = begins.iter().copied().skip(1).chain([len]);
        let texts = begins.iter().zip(ends_of_texts).map(|(begin, end)| end - begin);
        let padding = self.shape.offsets_at() - len;
        let offsets = self.searched.iter().map(|searched| searched * size_of::<u32>());
        let mut parts = self.texts.split(texts.chain([padding]).chain(offsets).chain([size_of::<u32>()]));
        let texts: Vec<_> = parts.by_ref().take(pieces.len() + 1).collect();
        let jobs = pieces.iter().zip(ends).zip(&self.searched).zip(&begins).zip(texts).zip(parts.by_ref());
        let jobs = jobs.map(|(((((piece, ends), &searched), &begin), texts), offsets)| {
            (&piece.batch, &mut ends[..searched], begin, texts, offsets)
        });
        crew.each(jobs.collect(), |(batch, ends, first, mut texts, mut offsets)| {
            let mut begin = 0;
            for (index, end) in ends.iter_mut().enumerate() {
                if *end > begin {
                    texts.write(begin as usize, text_of(batch, index));
                }
                // From here on, where it begins.
                begin = std::mem::replace(end, first as u32 + begin);
            }
            offsets.write(0, bytemuck::cast_slice(ends));
        });
        parts.for_each(|mut last| last.write(0, &(len as u32).to_ne_bytes()));
        Ok(())
    }

    /// Sends the texts to the device.
    fn submit(&mut self, set: &OnDevice) -> Result<(), Error> {
        self.at = Instant::now();
        if let Some(there) = &self.there {
            self.queue.copy_in(&mut self.texts, 0..self.shape.bytes(), there, 0)?;
        }
        self.search(set)
    }

    /// Has them searched that are there.
    fn search(&mut self, set: &OnDevice) -> Result<(), Error> {
        let Self { queue, texts, there, shape, matches, count, counted, .. } = self;
        let batch = there.as_ref().map_or_else(|| (&*texts).into(), Into::into);
        let to = matches.there.as_ref().map_or_else(|| (&matches.here).into(), Into::into);
        let results = Results { matches: to, room: matches.room as u32, found: count };
        set.find(queue, &TextBatch::packed(batch, *shape), results)?;
        Ok(queue.copy_out(count, 0..size_of::<u64>(), counted, 0)?)
    }

    /// Has so many matches copied here, if they are not; whether that is to be waited for.
    fn fetch(&mut self, count: usize) -> Result<bool, Error> {
        let MatchRoom { here, there, .. } = &mut self.matches;
        let Some(there) = there.as_ref().filter(|_| count > 0) else { return Ok(false) };
        self.queue.copy_out(there, 0..count * size_of::<Words>(), here, 0)?;
        Ok(true)
    }

    /// Waits until they were searched, who may be away for so long.
    fn finish_within(&mut self, limit: Duration) -> Result<(), Error> {
        let is_back = self.queue.finish_within(limit.saturating_sub(self.at.elapsed()))?;
        if is_back { Ok(()) } else { Err(late(self.at)) }
    }

    /// The same for what was sent just now: the batch may have been waiting here for long.
    fn finish_again(&mut self, limit: Duration) -> Result<(), Error> {
        self.at = Instant::now();
        self.finish_within(limit)
    }

    /// Leaves its queue alone; what is to be dropped once all queues are.
    fn abandon(self) -> impl Sized {
        let Self { queue, texts, there, matches, count, counted, .. } = self;
        queue.abandon();
        (texts, there, matches, count, counted)
    }

    /// Matches, also those for which there was no room.
    fn count(&mut self) -> usize {
        let mut words = [0u32; 2];
        self.counted.read(0, bytemuck::cast_slice_mut(&mut words));
        let count = u64::from(words[1]) << u32::BITS | u64::from(words[0]);
        usize::try_from(count).unwrap_or(usize::MAX)
    }

    /// Reads so many matches into chunks, which tell those of different pieces of the batch apart; how many chunks they are.
    fn sort(&mut self, chunks: &mut Vec<Chunk>, count: usize, crew: &Crew) -> usize {
        let used = count.div_ceil(CHUNK).min(crew.members());
        if chunks.len() < used {
            chunks.resize_with(used, Chunk::default);
        }
        let each = count.div_ceil(used.max(1));
        let mut end = 0;
        let ends = self.searched.iter().map(|&searched| {
            end += searched as u32;
            end
        });
        let ends: Vec<_> = ends.collect();
        let lens = (0..used).map(|chunk| each.min(count - chunk * each) * size_of::<Words>());
        let jobs = chunks.iter_mut().zip(self.matches.here.split(lens));
        crew.each(jobs.collect(), |(chunk, part)| chunk.read(part, &ends));
        used
    }
}

impl MatchRoom {
    fn new(device: &Device, room: usize) -> Result<Self, Error> {
        let bytes = room * size_of::<Words>();
        let shares = device.description().shares;
        let there = if shares { None } else { Some(device.memory(bytes)?) };
        Ok(Self { room, here: device.share(bytes)?, there })
    }
}

impl Chunk {
    /// Reads matches of texts, of which those of pieces end there.
    fn read(&mut self, mut part: Part<'_>, ends: &[u32]) {
        self.words.resize(part.len() / size_of::<Words>(), [0; 3]);
        part.read(0, bytemuck::cast_slice_mut(&mut self.words));
        self.of_pieces.resize_with(ends.len(), Vec::new);
        for &[text, _, pattern] in &self.words {
            let piece = ends.partition_point(|&end| end <= text);
            let first = piece.checked_sub(1).map_or(0, |before| ends[before]);
            // Where in its text a string ends makes no difference.
            self.of_pieces[piece].push(Match { text: text - first, end: 0, pattern });
        }
    }
}

/// What is searched of a packet, which is nothing where it does not pass any more.
fn text_if_passing(batch: &Batch, index: usize, text_of: TextOf) -> &[u8] {
    let text = if batch.verdicts()[index].is_pass() { text_of(batch, index) } else { None };
    text.unwrap_or_default()
}

/// Whether texts are copied to a device: reading them over a bus would have its kernels wait.
fn is_copied(device: &Device) -> bool {
    is_gpu(device) || !device.description().shares
}
