//! Tables that several workers share: parts, each under a lock of its own.
//!
//! A worker takes its batch's packets part by part: it locks one, looks its packets up and has functions judge them, and goes on to the
//! next. So a lock is taken once for a part and a batch, not for a packet, and never while another one is held. The entries of
//! the part after are on their way meanwhile, mostly from another worker's cache: where they probably are is said without its lock.

use std::ops::Range;
use std::sync::{Arc, Mutex, TryLockError};

use packetloom_packet::{Batch, Verdict};
use packetloom_table::states::{self, Hashed, PrefetchHint};

use super::cursor::{Cursor, Family, Visit, all_pass};
use super::flow_keys::{Lookup, V4, V6};
use super::{Counts, Definition, Flows};

/// Parts for each worker, so that few of them are after the same one.
const PARTS_OF_WORKER: usize = 2;
/// Flows of a part at least: hashes do not spread fewer of them evenly.
const PART: usize = 1024;

/// Flows of one definition, as several workers know them.
#[derive(Debug)]
pub struct SharedFlows {
    definition: Definition,
    seeds: [u64; 2],
    /// A power of two.
    parts: Vec<Part>,
    /// Of each part, apart from its lock, as they are only read.
    prefetch_hints: Vec<[PrefetchHint; 2]>,
}

/// Flows by some bits of their hash. What one worker writes is away from what another one reads.
#[derive(Debug)]
#[repr(align(128))]
struct Part(Mutex<Flows>);

/// Another worker failed while it had a part of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a worker failed that shared its tables")]
pub struct Poisoned;

impl SharedFlows {
    /// Tables for so many workers; otherwise as [`Flows::new`].
    pub fn new(definition: &Definition, workers: usize, batch: usize, words: usize, seeds: [u64; 2]) -> Self {
        let most = (definition.max_flows / PART).max(1);
        let count = (PARTS_OF_WORKER * workers).next_power_of_two().min(1 << most.ilog2());
        let part = |number| {
            let max_flows = definition.max_flows / count + usize::from(number < definition.max_flows % count);
            let definition = Definition { max_flows, ..definition.clone() };
            Flows::new(&definition, 1, batch, words, seeds)
        };
        let parts: Vec<_> = (0..count).map(part).collect();
        let prefetch_hints = parts.iter().map(Flows::prefetch_hints).collect();
        let parts = parts.into_iter().map(|flows| Part(Mutex::new(flows))).collect();
        Self { definition: definition.clone(), seeds, parts, prefetch_hints }
    }

    /// Puts in what was saved elsewhere, and what was counted there; otherwise as [`Flows::restore`].
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn restore(&self, entries: [&[u64]; 2], words: usize, counts: Counts) -> Result<(), Poisoned> {
        let count = self.parts.len();
        let mut parts = vec![[Vec::new(), Vec::new()]; count];
        let [v4, v6] = entries;
        for (part, entry) in states::by_part::<V4>(v4, words, count, self.seeds) {
            parts[part][0].extend(entry);
        }
        for (part, entry) in states::by_part::<V6>(v6, words, count, self.seeds) {
            parts[part][1].extend(entry);
        }
        for (number, (Part(flows), [v4, v6])) in self.parts.iter().zip(&parts).enumerate() {
            let counts = if number == 0 { counts } else { Counts::default() };
            flows.lock().map_err(|_| Poisoned)?.restore([v4, v6], words, counts, |_| {});
        }
        Ok(())
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Does something with the flows of a part, while no worker is at it.
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn with_part<T>(&self, part: usize, work: impl FnOnce(&mut Flows) -> T) -> Result<T, Poisoned> {
        Ok(work(&mut *self.parts[part].0.lock().map_err(|_| Poisoned)?))
    }

    /// Shows the flows of each part, once all workers are done.
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn each_part(&self, mut see: impl FnMut(&Flows)) -> Result<(), Poisoned> {
        self.parts.iter().try_for_each(|Part(flows)| {
            see(&*flows.lock().map_err(|_| Poisoned)?);
            Ok(())
        })
    }
}

/// One worker's way to shared tables.
#[derive(Debug)]
pub struct Visitor {
    shared: Arc<SharedFlows>,
    /// The part that it begins with.
    first: usize,
    /// The packets of the batch, then of a part.
    cursor: Cursor,
    /// Tables of its own, in which nothing ever is.
    nothing: Flows,
    v4: ByPart<V4>,
    v6: ByPart<V6>,
    /// Parts that there are packets for, and that it was not at yet.
    waiting: Vec<usize>,
}

/// Packets in the order of their parts, with their flows; within each part, of arrival.
#[derive(Debug, Default)]
struct ByPart<const W: usize> {
    packets: Vec<Lookup>,
    flows: Vec<Hashed<W>>,
    /// Where each part ends.
    ends: Vec<usize>,
}

impl<const W: usize> ByPart<W> {
    fn sort(&mut self, family: &Family<W>, parts: usize) {
        let Self { packets, flows, ends } = self;
        let part = |flow| states::part_of(flow, parts);
        // In any order: each place is filled below.
        packets.truncate(family.lookups.len());
        packets.extend_from_slice(&family.lookups[packets.len()..]);
        flows.truncate(family.flows.len());
        flows.extend_from_slice(&family.flows[flows.len()..]);
        ends.clear();
        ends.resize(parts, 0);
        family.flows.iter().for_each(|flow| ends[part(flow)] += 1);
        // From how many there are to where they begin; and on to where they end.
        let mut begin = 0;
        ends.iter_mut().for_each(|end| begin += std::mem::replace(end, begin));
        for (packet, flow) in family.lookups.iter().zip(&family.flows) {
            let end = &mut ends[part(flow)];
            (packets[*end], flows[*end]) = (*packet, *flow);
            *end += 1;
        }
    }

    fn range(&self, part: usize) -> Range<usize> {
        let begin = if part == 0 { 0 } else { self.ends[part - 1] };
        begin..self.ends[part]
    }

    fn has(&self, part: usize) -> bool {
        !self.range(part).is_empty()
    }

    /// Those of a part.
    fn flows_of(&self, part: usize) -> &[Hashed<W>] {
        &self.flows[self.range(part)]
    }

    /// Asks where the packets of a part are.
    fn prefetch_entries(&mut self, part: usize, prefetch_hint: &PrefetchHint) {
        let range = self.range(part);
        prefetch_hint.prefetch_entries(&self.flows[range.clone()], &mut self.packets[range]);
    }

    /// Hands over the packets of a part, or where some were dropped, those that pass.
    fn give(&self, part: usize, dropped: Option<&[Verdict]>, family: &mut Family<W>) {
        let range = self.range(part);
        family.take(&self.packets[range.clone()], &self.flows[range]);
        if let Some(verdicts) = dropped {
            family.retain(verdicts);
        }
    }
}

impl Visitor {
    /// That of one of so many workers.
    pub fn new(shared: &Arc<SharedFlows>, worker: usize, workers: usize) -> Self {
        // They have the seeds, by which packets are hashed.
        let none = Definition { max_flows: 1, ..shared.definition.clone() };
        let nothing = Flows::new(&none, 1, 0, 0, shared.seeds);
        Self {
            first: worker * shared.parts.len() / workers.max(1),
            cursor: Cursor::new(&nothing),
            nothing,
            v4: ByPart::default(),
            v6: ByPart::default(),
            waiting: Vec::new(),
            shared: Arc::clone(shared),
        }
    }

    /// As [`Cursor::extract_keys`].
    pub fn extract_keys(&mut self, batch: &Batch) {
        let Self { shared, cursor, v4, v6, .. } = self;
        cursor.extract_keys_elsewhere(batch);
        v4.sort(&cursor.v4, shared.parts.len());
        v6.sort(&cursor.v6, shared.parts.len());
        for (part, [of_v4, of_v6]) in shared.prefetch_hints.iter().enumerate() {
            of_v4.prefetch(v4.flows_of(part));
            of_v6.prefetch(v6.flows_of(part));
        }
    }

    /// No flows, of which functions report what they counted themselves: what is held is in [`SharedFlows::each_part`].
    pub fn flows(&self) -> &Flows {
        &self.nothing
    }

    /// Has functions judge the packets of a batch that pass, in several calls of `judge`, each with the packets of a part. Where it is
    /// the first time for a batch, flows without an entry get one; later, who has no entry any more has none.
    ///
    /// # Errors
    /// [`Poisoned`].
    pub fn visit(
        &mut self,
        is_first: bool,
        batch: &mut Batch,
        mut judge: impl FnMut(&mut Batch, &mut Visit<'_>),
    ) -> Result<(), Poisoned> {
        let Self { shared, first, cursor, v4, v6, waiting, .. } = self;
        let SharedFlows { parts, prefetch_hints, .. } = &**shared;
        // What one part's packets come to says nothing about those of another one.
        let any_dropped = !all_pass(batch.verdicts());
        let mut judge_part = |part: usize, tables: &mut Flows, v4: &ByPart<V4>, v6: &ByPart<V6>| {
            let dropped = any_dropped.then(|| batch.verdicts());
            v4.give(part, dropped, &mut cursor.v4);
            v6.give(part, dropped, &mut cursor.v6);
            cursor.begin_part();
            let mut visit = Visit { cursor: &mut *cursor, flows: &mut *tables };
            if is_first {
                visit.find_or_insert(batch, true);
            } else {
                visit.find();
            }
            judge(batch, &mut visit);
            tables.leave();
        };
        let has_packets = |part: &usize| v4.has(*part) || v6.has(*part);
        waiting.clear();
        waiting.extend((*first..parts.len()).chain(0..*first).filter(has_packets));
        let ask = |part: Option<&usize>, v4: &mut ByPart<V4>, v6: &mut ByPart<V6>| {
            if let Some(&part) = part {
                v4.prefetch_entries(part, &prefetch_hints[part][0]);
                v6.prefetch_entries(part, &prefetch_hints[part][1]);
            }
        };
        ask(waiting.first(), v4, v6);
        // Those first that no other worker is at.
        let mut busy = 0;
        for at in 0..waiting.len() {
            ask(waiting.get(at + 1), v4, v6);
            let part = waiting[at];
            match parts[part].0.try_lock() {
                Ok(mut tables) => judge_part(part, &mut tables, v4, v6),
                Err(TryLockError::WouldBlock) => {
                    waiting[busy] = part;
                    busy += 1;
                }
                Err(TryLockError::Poisoned(_)) => return Err(Poisoned),
            }
        }
        for &part in &waiting[..busy] {
            // Whoever was at it wrote what had been brought in.
            ask(Some(&part), v4, v6);
            judge_part(part, &mut *parts[part].0.lock().map_err(|_| Poisoned)?, v4, v6);
        }
        Ok(())
    }
}
