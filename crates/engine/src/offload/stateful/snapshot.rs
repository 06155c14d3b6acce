//! What a device keeps: copied here, and put there.

use std::collections::HashSet;
use std::iter;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use packetloom_device::{Device, Kernel as Vouched, Loaded, Memory, Part as DevicePart, Queue, Shared};
use packetloom_nf::flows::{AnyEntry, Counts, V4, V6};
use packetloom_table::regions::Image;
use packetloom_table::states::{entry_bytes, header_words};
use packetloom_table::{regions, states};

use super::kernels::{GatherArguments, vouch};
use super::{Stateful, TABLE_COUNTS, Tables};
use crate::crew::Crew;
use crate::offload::Error;
use crate::offload::accelerator::late;
use crate::pipeline::StateId;
use crate::state::Held;

/// Bytes of what a device keeps that are copied here at a time, and how long that may take before the device counts as one that hangs.
const CHUNK: usize = 16 << 20;
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of entries that one thread takes at a time.
const PIECE: usize = 512 << 10;

/// Brings entries together on the device, so that places without one are not copied.
#[derive(Debug)]
pub(super) struct Gather {
    kernel: Vouched<GatherArguments<'static>>,
    way: Mutex<Way>,
}

/// Memory on the way from the device to this machine, for who copies at a time.
#[derive(Debug)]
struct Way {
    gathered: Memory,
    found: Memory,
    here: Shared,
    count: Shared,
}

/// What a device keeps, or kept at some time, in its memory.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    counted: Memory,
    /// Of each definition, entries of IPv4 and IPv6.
    entries: Vec<[Memory; 2]>,
    lists: Memory,
}

/// What a device kept.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// For each definition, entries and counts.
    definitions: Vec<Kept>,
    /// What functions counted and listed.
    pub functions: Vec<Vec<u64>>,
    /// States that were exported since.
    pub(crate) gone: HashSet<StateId>,
}

/// Flows of a definition for which a device has no room: of IPv4 and IPv6 as [`Flows::save`](packetloom_nf::flows::Flows::save) has them, with so many words of functions.
pub(crate) type Left = ([Vec<u64>; 2], usize);

#[derive(Clone, Debug)]
struct Kept {
    /// Of IPv4 and IPv6, in pieces; each as it lies in the device's memory, some places without one among them, perhaps.
    entries: [Vec<Vec<u64>>; 2],
    words: usize,
    counts: Counts,
}

/// Some of the flows of a definition that a device kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    memory: &'a [u64],
    key_words: usize,
    words: usize,
    /// States of them that are no longer there.
    pub(crate) gone: &'a HashSet<StateId>,
}

impl<'a> Piece<'a> {
    /// They, where they are of IPv4 or of IPv6.
    pub(crate) fn of<const W: usize>(self) -> impl Iterator<Item = states::Entry<'a, W>> {
        let memory = if self.key_words == W { self.memory } else { &[] };
        regions::entries(memory, entry_bytes(W, self.words) / 8)
    }

    /// They.
    pub(crate) fn entries(self) -> impl Iterator<Item = AnyEntry<'a>> {
        self.of::<V4>().map(AnyEntry::V4).chain(self.of::<V6>().map(AnyEntry::V6))
    }
}

impl State {
    /// How many definitions there are.
    pub(crate) fn definitions(&self) -> usize {
        self.definitions.len()
    }

    /// The flows of one of them, piece by piece.
    pub(crate) fn pieces(&self, definition: usize) -> impl Iterator<Item = Piece<'_>> {
        let kept = self.definitions.get(definition).into_iter();
        kept.flat_map(move |Kept { entries, words, .. }| {
            entries.iter().zip([V4, V6]).flat_map(move |(pieces, key_words)| {
                pieces.iter().map(move |memory| Piece { memory, key_words, words: *words, gone: &self.gone })
            })
        })
    }

    /// For each definition what its tables counted.
    pub(crate) fn counts(&self) -> impl Iterator<Item = Counts> {
        self.definitions.iter().map(|kept| kept.counts)
    }

    /// For each definition its flows apart from the device, as [`Flows::save`](packetloom_nf::flows::Flows::save) has them, and what was counted.
    pub fn saved(&self) -> impl Iterator<Item = ([Vec<u64>; 2], Counts)> {
        self.definitions.iter().map(|Kept { entries: [v4, v6], words, counts }| {
            let v4 = v4.iter().flat_map(|v4| regions::save::<V4>(v4, entry_bytes(V4, *words) / 8, *words));
            let v6 = v6.iter().flat_map(|v6| regions::save::<V6>(v6, entry_bytes(V6, *words) / 8, *words));
            ([v4.collect(), v6.collect()], *counts)
        })
    }
}

impl Gather {
    pub(super) fn new(device: &Device, kernel: Loaded, tables: &[Tables]) -> Result<Self, Error> {
        let largest = tables.iter().flat_map(|tables| &tables.entries).map(Memory::len).max();
        let bytes = largest.unwrap_or(0).clamp(size_of::<u64>(), CHUNK);
        let way = Way {
            gathered: device.memory(bytes)?,
            found: device.zeros(size_of::<u32>())?,
            here: device.share(bytes)?,
            count: device.share(size_of::<u32>())?,
        };
        Ok(Self { kernel: vouch(kernel)?, way: Mutex::new(way) })
    }
}

impl Way {
    /// Copies the entries of a device's memory to this machine that there are, with keys of so many words and so many words each: in pieces, into
    /// memory that is spare, by the threads of a crew, where there is one.
    fn gather(
        &mut self,
        kernel: &Vouched<GatherArguments<'static>>,
        queue: &mut Queue,
        memory: &Memory,
        (key_words, words, groups): (usize, usize, u32),
        spare: Vec<Vec<u64>>,
        crew: Option<&Crew>,
    ) -> Result<Vec<Vec<u64>>, Error> {
        let Self { gathered, found, here, count } = self;
        let bytes = words * size_of::<u64>();
        let (places, most) = (memory.len() / bytes, gathered.len() / bytes);
        // Flows that were restored are in one piece.
        let spare = spare.into_iter().filter(|piece| piece.capacity() * size_of::<u64>() <= 2 * PIECE);
        let mut spare = spare.chain(iter::repeat_with(Vec::new));
        let mut all = Vec::new();
        for first in (0..places).step_by(most.max(1)) {
            let arguments = GatherArguments {
                entries: memory.into(),
                first: first as u32,
                places: (places - first).min(most) as u32,
                words: words as u32,
                key_words: key_words as u32,
                gathered: (&*gathered).into(),
                found: (&*found).into(),
            };
            queue.clear(found)?;
            queue.launch(kernel, groups, &arguments)?;
            queue.copy_out(found, 0..size_of::<u32>(), count, 0)?;
            finish(queue)?;
            let entries = (count.load(0) as usize).min(most);
            queue.copy_out(gathered, 0..entries * bytes, here, 0)?;
            finish(queue)?;
            let each = (PIECE / bytes).max(1);
            let parts = here.split((0..entries).step_by(each).map(|at| (entries - at).min(each) * bytes));
            let mut pieces: Vec<_> = parts.zip(&mut spare).collect();
            let take = |(part, piece): &mut (DevicePart<'_>, Vec<u64>)| {
                piece.resize(part.len() / size_of::<u64>(), 0);
                part.read(0, bytemuck::cast_slice_mut(piece));
            };
            match crew {
                Some(crew) => crew.each(pieces.iter_mut().collect(), take),
                None => pieces.iter_mut().for_each(take),
            }
            all.extend(pieces.into_iter().map(|(_, piece)| piece));
        }
        Ok(all)
    }
}

/// Copies all words of a device's memory to this machine, some at a time: by memory that both share, as other threads use the device meanwhile, which
/// drivers let wait for copies to memory that is not.
pub(super) fn read(queue: &mut Queue, from: &Memory, way: &mut Shared) -> Result<Vec<u64>, Error> {
    let mut words = vec![0u64; from.len() / size_of::<u64>()];
    let mut at = 0;
    for piece in words.chunks_mut(way.len() / size_of::<u64>()) {
        let piece: &mut [u8] = bytemuck::cast_slice_mut(piece);
        queue.copy_out(from, at..at + piece.len(), way, 0)?;
        finish(queue)?;
        way.read(0, piece);
        at += piece.len();
    }
    Ok(words)
}

/// Waits until all is done that is queued; the device failed where that takes too long.
pub(super) fn finish(queue: &mut Queue) -> Result<(), Error> {
    let begin = Instant::now();
    if queue.finish_within(READ_LIMIT)? { Ok(()) } else { Err(late(begin)) }
}

impl Stateful {
    /// Copies what it keeps to this machine, as it is after all that was queued, into the memory of a state that nobody needs any more.
    ///
    /// # Errors
    /// Where the device fails.
    pub(super) fn state(&self, queue: &mut Queue, spare: State, crew: &Crew) -> Result<State, Error> {
        self.state_in(queue, &self.kept(), spare, Some(crew))
    }

    /// The memory of what it keeps.
    pub(super) fn kept(&self) -> Snapshot {
        Snapshot {
            counted: self.counted.clone(),
            entries: self.tables.iter().map(|tables| tables.entries.clone()).collect(),
            lists: self.lists.memory.clone(),
        }
    }

    /// Memory for a snapshot.
    ///
    /// # Errors
    /// Where the device has no room for one.
    pub(super) fn snapshot_memory(&self) -> Result<Snapshot, Error> {
        let like = |memory: &Memory| self.device.memory(memory.len());
        let entries = self.tables.iter().map(|Tables { entries: [v4, v6], .. }| Ok([like(v4)?, like(v6)?]));
        Ok(Snapshot {
            counted: like(&self.counted)?,
            entries: entries.collect::<Result<_, packetloom_device::Error>>()?,
            lists: like(&self.lists.memory)?,
        })
    }

    /// Queues a snapshot of what it keeps, as it is after all that was queued. It takes none of this machine's time.
    ///
    /// # Errors
    /// Where the device fails.
    pub(super) fn take_snapshot(&self, queue: &mut Queue, snapshot: &Snapshot) -> Result<(), Error> {
        let kept = self.kept();
        queue.copy(&kept.counted, &snapshot.counted)?;
        for (from, to) in kept.entries.iter().flatten().zip(snapshot.entries.iter().flatten()) {
            queue.copy(from, to)?;
        }
        Ok(queue.copy(&kept.lists, &snapshot.lists)?)
    }

    /// Copies a snapshot to this machine, or what there is, into the memory of a state that nobody needs any more: by the threads of a crew, where
    /// there is one.
    ///
    /// # Errors
    /// Where the device fails.
    pub(super) fn state_in(
        &self,
        queue: &mut Queue,
        snapshot: &Snapshot,
        spare: State,
        crew: Option<&Crew>,
    ) -> Result<State, Error> {
        let Gather { kernel, way } = &self.gather;
        let mut way = way.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = read(queue, &snapshot.counted, &mut way.here)?;
        let counts = counted[self.counts_at()..].as_chunks::<TABLE_COUNTS>().0;
        let tables = self.tables.iter().zip(&snapshot.entries);
        let spare =
            spare.definitions.into_iter().map(|kept| kept.entries).chain(iter::repeat_with(Default::default));
        let definitions = tables.zip(counts).zip(spare).map(|(((tables, kept), &counts), spare)| {
            let ([v4, v6], [of_v4, of_v6], [spare_v4, spare_v6]) = (kept, tables.entry_words, spare);
            let entries = [
                way.gather(kernel, queue, v4, (V4, of_v4, self.groups), spare_v4, crew)?,
                way.gather(kernel, queue, v6, (V6, of_v6, self.groups), spare_v6, crew)?,
            ];
            let [created, expired, evicted, refused] = counts;
            Ok(Kept { entries, words: tables.words, counts: Counts { created, expired, evicted, refused } })
        });
        let definitions = definitions.collect::<Result<_, Error>>()?;
        drop(way);
        let mut functions = vec![Vec::new(); self.functions()];
        for (index, kernel, _) in self.stages.iter().flat_map(|stage| &stage.functions) {
            let [first, indexed] = self.counters[*index];
            let [by_name, by_index] = kernel.counters();
            functions[*index].extend(&counted[first..first + by_name]);
            functions[*index].extend(&counted[indexed..indexed + by_index]);
        }
        for (number, index) in self.lists.functions.iter().enumerate() {
            functions[*index].extend(self.lists.read(queue, &snapshot.lists, number)?);
        }
        Ok(State { definitions, functions, gone: HashSet::new() })
    }

    /// Begins with these flows of its definitions, and what was counted of them, in place of all that it keeps; what it keeps then, and for which
    /// flows of each definition it has no room.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn restore(&self, queue: &mut Queue, held: &[Held]) -> Result<(State, Vec<Left>), Error> {
        let restored = self.tables.iter().zip(held).map(|(tables, held)| tables.restore(queue, held));
        let restored = restored.collect::<Result<Vec<_>, Error>>()?;
        let (definitions, left): (Vec<_>, Vec<_>) = restored.into_iter().unzip();
        let mut counted = vec![0u64; self.counter_count];
        for (own, kept) in counted[self.counts_at()..].chunks_exact_mut(TABLE_COUNTS).zip(&definitions) {
            let Counts { created, expired, evicted, refused } = kept.counts;
            own.copy_from_slice(&[created, expired, evicted, refused]);
        }
        queue.write(&self.counted, 0, bytemuck::cast_slice(&counted))?;
        self.lists.clear(queue)?;
        Ok((State { definitions, ..State::default() }, left))
    }

    /// Where among all counters those of tables begin.
    fn counts_at(&self) -> usize {
        self.counter_count - TABLE_COUNTS * self.tables.len()
    }
}

impl Tables {
    /// Puts flows in that were saved, in the place of all.
    fn restore(&self, queue: &mut Queue, held: &Held) -> Result<(Kept, Left), Error> {
        if held.entries.iter().all(Vec::is_empty) {
            // The device clears them by itself.
            let Self { tags, entries, held: counts, .. } = self;
            let memory = tags.iter().chain(entries).chain(counts);
            memory.into_iter().try_for_each(|memory| queue.clear(memory))?;
            queue.finish()?;
            let entries = [Vec::new(), Vec::new()];
            let kept = Kept { entries, words: self.words, counts: held.counts };
            return Ok((kept, Left::default()));
        }
        let (words, flows, [v4, v6]) = (self.words, self.definition.max_flows, self.entry_words);
        let (v4, v4_gone) = Image::new::<V4>(&held.entries[0], words, v4, flows, self.seeds);
        let (v6, v6_gone) = Image::new::<V6>(&held.entries[1], words, v6, flows, self.seeds);
        for (version, image) in [&v4, &v6].into_iter().enumerate() {
            queue.write(&self.tags[version], 0, &image.tags)?;
            queue.write(&self.entries[version], 0, bytemuck::cast_slice(&image.entries))?;
            queue.write(&self.held[version], 0, bytemuck::cast_slice(&image.held))?;
        }
        let gone = v4_gone.len() / (header_words(V4) + words) + v6_gone.len() / (header_words(V6) + words);
        let counts = Counts { evicted: held.counts.evicted + gone as u64, ..held.counts };
        let entries = [vec![v4.entries], vec![v6.entries]];
        Ok((Kept { entries, words, counts }, ([v4_gone, v6_gone], words)))
    }
}
