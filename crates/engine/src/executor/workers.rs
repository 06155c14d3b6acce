//! Several workers: the reading thread parses a batch and deals its packets out by flow; each worker takes its part
//! through its own copy of the chain; the parts come back and are merged in order of arrival.
//!
//! Every worker gets a part of every batch, perhaps an empty one, and handles its parts in order. So the parts of the
//! oldest batch under way are always the next to come out of each worker, and nothing has to be matched or sorted.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use packetloom_nf::Logged;
use packetloom_nf::flows::By;
use packetloom_packet::Batch;
use packetloom_packet::batch::Policy;

use super::shared::Shared;
use super::single::Stages;
use super::{Expiry, Intake, Outlet, Remains};
use crate::{Chain, Error, Plan};

/// Batches under way: enough that no worker waits while another is slow on its part.
const UNDER_WAY: usize = 8;

/// Where workers share tables, packets that are under way at a time came within so many nanoseconds, so that none is judged long after
/// another one that came later; and those of a batch within a part of that, so that there are several batches.
pub(crate) const APART: u64 = 10_000_000;
const APART_IN_BATCH: u64 = APART / 4;

/// Packets are dealt out in batches of this many for each worker, so that their parts are worth sending.
const SPREAD_BATCHES: usize = 4;

/// Packets dealt out at once at most, whatever the number of workers.
const MAX_DEALT: usize = 1 << 16;

/// A part of a batch, and what came of it.
struct Part {
    batch: Batch,
    /// How far the whole batch brought time, on a live source.
    expiry: Option<Expiry>,
    encoded: Vec<String>,
    /// For each function, the packets of the part that are to be logged.
    logged: Vec<Vec<Logged>>,
}

/// A batch under way: where each of its packets went.
struct Dealt {
    whole: Batch,
    to: Vec<u16>,
    /// When its packets came, where batches are cut.
    times: Times,
}

/// The earliest and the latest of some packets' times, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times(u64, u64);

impl Times {
    const NONE: Self = Self(u64::MAX, 0);

    fn and(self, other: Self) -> Self {
        Self(self.0.min(other.0), self.1.max(other.1))
    }

    fn span(self) -> u64 {
        self.1.saturating_sub(self.0)
    }

    /// Those of batches that are under way, and of the next one.
    fn of_all(away: &VecDeque<Dealt>, next: &Dealt) -> Self {
        away.iter().fold(next.times, |times, dealt| times.and(dealt.times))
    }
}

/// Batches to be dealt out.
struct Batches {
    /// What was read, and how many packets of it were handed out, where batches are cut.
    read: Batch,
    at: usize,
    /// Whether a batch is cut where its packets' times are too far apart.
    are_cut: bool,
}

impl Batches {
    /// Makes the next batch, parsed; `false` at the end.
    fn fill(&mut self, dealt: &mut Dealt, intake: &mut Intake<'_>, policy: Policy) -> Result<bool, Error> {
        let Dealt { whole, times, .. } = dealt;
        if !self.are_cut {
            let is_one = intake.fill(whole)?;
            if is_one {
                whole.parse(policy);
            }
            return Ok(is_one);
        }
        let Self { read, at, .. } = self;
        // At the end there is less than there was.
        if *at >= read.len() {
            if !intake.fill(read)? {
                return Ok(false);
            }
            read.parse(policy);
            *at = 0;
        }
        whole.reset(read.arena().clone());
        *times = Times::NONE;
        while let Some(frame) = read.frames().get(*at) {
            let now = frame.time.as_nanos();
            let with = times.and(Times(now, now));
            if with.span() > APART_IN_BATCH {
                break;
            }
            *times = with;
            whole.push_from(read, *at);
            *at += 1;
        }
        Ok(true)
    }
}

struct Worker {
    give: Sender<Part>,
    take: Receiver<Part>,
    thread: thread::JoinHandle<Result<Remains, Error>>,
}

impl Worker {
    fn start(chain: &Chain, shared: &Shared, number: usize) -> Self {
        let (give, incoming) = bounded::<Part>(UNDER_WAY);
        let (outgoing, take) = bounded::<Part>(UNDER_WAY);
        let mut stages = Stages::new(chain, shared, number);
        let thread = thread::spawn(move || {
            for mut part in incoming {
                stages.arrive(&part.batch);
                stages.process(0..stages.len(), &mut part.batch, part.expiry)?;
                for (lines, encoded) in stages.encoded().zip(&mut part.encoded) {
                    std::mem::swap(lines, encoded);
                }
                for (from, to) in stages.logged().zip(&mut part.logged) {
                    to.append(from);
                }
                if outgoing.send(part).is_err() {
                    break;
                }
            }
            // After the last part, records alone.
            loop {
                let more = stages.drain();
                let encoded = stages.encoded().map(std::mem::take).collect();
                if outgoing
                    .send(Part { batch: Batch::new(0), expiry: None, encoded, logged: Vec::new() })
                    .is_err()
                    || !more
                {
                    break;
                }
            }
            Ok(stages.report())
        });
        Self { give, take, thread }
    }
}

pub(super) fn run(plan: &Plan, intake: &mut Intake<'_>, outlet: &mut Outlet<'_>) -> Result<Remains, Error> {
    let (chain, workers, spread) = (plan.chain(), plan.workers(), plan.spread());
    let (settings, functions) = (&chain.settings.run, &chain.functions);
    let live = intake.source.is_live();
    // A seed that senders cannot know, so that they cannot aim all their flows at one worker.
    let seed = RandomState::new().hash_one(0u64);
    let size = (settings.batch.get() * workers * SPREAD_BATCHES).min(MAX_DEALT);
    // All packets of a batch may be one worker's.
    let shared = Shared::new(plan, workers, size);
    let threads: Vec<_> = (0..workers).map(|number| Worker::start(chain, &shared, number)).collect();
    let mut spare: Vec<Dealt> = (0..UNDER_WAY)
        .map(|_| Dealt { whole: Batch::new(size), to: Vec::with_capacity(size), times: Times::NONE })
        .collect();
    let mut spare_parts: Vec<Part> = (0..UNDER_WAY * workers)
        .map(|_| Part {
            batch: Batch::new(0),
            expiry: None,
            encoded: vec![String::new(); functions.len()],
            logged: vec![Vec::new(); functions.len()],
        })
        .collect();
    let mut away: VecDeque<Dealt> = VecDeque::new();
    let mut in_order = InOrder::default();
    let mut batches = Batches { read: Batch::new(size), at: 0, are_cut: plan.shared().next().is_some() };
    loop {
        if let Some(mut next) = spare.pop() {
            if batches.fill(&mut next, intake, settings.policy())? {
                // The oldest is the first to go where not all may be under way.
                while batches.are_cut && Times::of_all(&away, &next).span() > APART {
                    let Some(mut dealt) = away.pop_front() else { break };
                    collect(&mut dealt, &threads, &mut spare_parts, &mut in_order, outlet)?;
                    spare.push(dealt);
                }
                deal(&mut next, (spread, seed), live, &threads, &mut spare_parts)?;
                away.push_back(next);
                // On a live source nobody waits for the next batch to get the verdicts on this one.
                if !live {
                    continue;
                }
            } else {
                spare.clear();
            }
        }
        match away.pop_front() {
            Some(mut dealt) => {
                collect(&mut dealt, &threads, &mut spare_parts, &mut in_order, outlet)?;
                spare.push(dealt);
            }
            None => break,
        }
    }
    join(chain, &shared, threads, outlet)
}

/// Sends each worker its part of a batch.
fn deal(
    dealt: &mut Dealt,
    (spread, seed): (By, u64),
    live: bool,
    threads: &[Worker],
    spare_parts: &mut Vec<Part>,
) -> Result<(), Error> {
    let mut parts = spare_parts.split_off(spare_parts.len() - threads.len());
    for part in &mut parts {
        part.batch.reset(dealt.whole.arena().clone());
        part.expiry = if live { Expiry::after(&dealt.whole) } else { None };
    }
    dealt.to.clear();
    for index in 0..dealt.whole.len() {
        let Some(hash) = spread.spread(&dealt.whole, index, seed) else {
            // Frames without a key have no flow; any worker will do, as long as it is always the same.
            dealt.to.push(0);
            parts[0].batch.push_from(&dealt.whole, index);
            continue;
        };
        // The upper half of the hash times the number of workers: no division.
        let to = (((hash >> 32) * threads.len() as u64) >> 32) as usize;
        dealt.to.push(to as u16);
        parts[to].batch.push_from(&dealt.whole, index);
    }
    for (worker, part) in threads.iter().zip(parts) {
        worker.give.send(part).map_err(|_| Error::Worker)?;
    }
    Ok(())
}

/// Takes the parts of the oldest batch back and delivers it.
fn collect(
    dealt: &mut Dealt,
    threads: &[Worker],
    spare_parts: &mut Vec<Part>,
    in_order: &mut InOrder,
    outlet: &mut Outlet<'_>,
) -> Result<(), Error> {
    let mut parts = threads
        .iter()
        .map(|worker| worker.take.recv().map_err(|_| Error::Worker))
        .collect::<Result<Vec<_>, _>>()?;
    {
        let mut verdicts: Vec<_> = parts.iter().map(|part| part.batch.verdicts().iter()).collect();
        let (whole, _, _) = dealt.whole.judge();
        for (verdict, &to) in whole.iter_mut().zip(&dealt.to) {
            if let Some(&decided) = verdicts[usize::from(to)].next() {
                *verdict = decided;
            }
        }
    }
    if parts.iter().any(|part| part.batch.has_rewrites()) {
        in_order.rewrite(dealt, &parts);
    }
    for function in 0..parts[0].logged.len() {
        if parts.iter().any(|part| !part.logged[function].is_empty()) {
            in_order.take(&dealt.to, &mut parts, function);
            outlet.log_batch(function, &mut in_order.logged, &dealt.whole)?;
        }
    }
    outlet.deliver(&dealt.whole)?;
    for part in &mut parts {
        outlet.write_all_records(&mut part.encoded)?;
        part.batch.reset(packetloom_packet::batch::empty_arena());
    }
    spare_parts.append(&mut parts);
    Ok(())
}

/// Packets to be logged, and rewrites, put together from the parts of a batch; kept for the next one.
#[derive(Default)]
struct InOrder {
    logged: Vec<Logged>,
    /// For each part, its packets and those of them to be logged that were passed.
    passed: Vec<(u32, usize)>,
}

impl InOrder {
    /// Takes what a function logs out of all parts, by its place in the whole batch.
    fn take(&mut self, to: &[u16], parts: &mut [Part], function: usize) {
        self.passed.clear();
        self.passed.resize(parts.len(), (0, 0));
        for (frame, &worker) in to.iter().enumerate() {
            let worker = usize::from(worker);
            let (packets, logged) = &mut self.passed[worker];
            if let Some(next) = parts[worker].logged[function].get(*logged)
                && next.frame == *packets
            {
                self.logged.push(Logged { frame: frame as u32, ..*next });
                *logged += 1;
            }
            *packets += 1;
        }
        parts.iter_mut().for_each(|part| part.logged[function].clear());
    }

    /// Gives a whole batch the rewrites of its parts.
    fn rewrite(&mut self, dealt: &mut Dealt, parts: &[Part]) {
        self.passed.clear();
        self.passed.resize(parts.len(), (0, 0));
        for (frame, &worker) in dealt.to.iter().enumerate() {
            let worker = usize::from(worker);
            let (packets, _) = &mut self.passed[worker];
            dealt.whole.rewrite_from(frame, &parts[worker].batch, *packets as usize);
            *packets += 1;
        }
    }
}

/// Lets the workers finish and adds up what they counted.
fn join(
    chain: &Chain,
    shared: &Shared,
    threads: Vec<Worker>,
    outlet: &mut Outlet<'_>,
) -> Result<Remains, Error> {
    let running: Vec<_> = threads.into_iter().map(|worker| (worker.take, worker.thread)).collect();
    let mut remains = Vec::new();
    for (take, thread) in running {
        for mut part in take {
            outlet.write_all_records(&mut part.encoded)?;
        }
        remains.push(thread.join().map_err(|_| Error::Worker)??);
    }
    shared.total(chain, remains.into_iter())
}
