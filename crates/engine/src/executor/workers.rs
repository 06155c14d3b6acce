//! Several workers: the reading thread parses a batch and deals its packets out by flow; each worker takes its part
//! through its own copy of the chain; the parts come back and are merged in order of arrival.
//!
//! Every worker gets a part of every batch, perhaps an empty one, and handles its parts in order. So the parts of the
//! oldest batch under way are always the next to come out of each worker, and nothing has to be matched or sorted.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use packetloom_nf::flows::{By, Counts};
use packetloom_nf::{Logged, Report};
use packetloom_packet::Batch;
use packetloom_packet::batch::Policy;

use super::life::{Course, Runner, Succession};
use super::shared::Shared;
use super::single::Stages;
use super::{Expiry, Intake, Outlet, Remains};
use crate::chain::Run;
use crate::outcome::TopFlows;
use crate::state::Held;
use crate::{Chain, Error, Plan, State};

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

/// Packets dealt out at once.
fn size(settings: &Run, workers: usize) -> usize {
    (settings.batch.get() * workers * SPREAD_BATCHES).min(MAX_DEALT)
}

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
    /// Whether nothing was read that was not handed out.
    fn are_all_out(&self) -> bool {
        self.at >= self.read.len()
    }

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
        let is_read = self.are_all_out();
        let Self { read, at, .. } = self;
        // At the end there is less than there was.
        if is_read {
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
    /// Parts to be judged; none where the functions are to stay as they are.
    give: Sender<Option<Part>>,
    take: Receiver<Part>,
    thread: thread::JoinHandle<Result<Stages, Error>>,
}

impl Worker {
    fn start(mut stages: Stages) -> Self {
        let (give, incoming) = bounded::<Option<Part>>(UNDER_WAY);
        let (outgoing, take) = bounded::<Part>(UNDER_WAY);
        let thread = thread::spawn(move || {
            for part in incoming {
                let Some(mut part) = part else { return Ok(stages) };
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
            Ok(stages)
        });
        Self { give, take, thread }
    }
}

/// The workers, between two batches.
struct Several {
    stages: Vec<Stages>,
    shared: Shared,
    spread: Spread,
    /// Packets of a batch; all of them may be one worker's.
    size: usize,
}

/// How packets are spread.
#[derive(Clone, Copy)]
struct Spread {
    by: By,
    /// One that senders cannot know, so that they cannot aim all their flows at one worker.
    seed: u64,
    workers: usize,
}

impl Spread {
    /// The worker for a hash: its upper half times the number of workers, no division.
    fn worker(self, hash: u64) -> usize {
        (((hash >> 32) * self.workers as u64) >> 32) as usize
    }
}

impl Several {
    fn new(plan: &Plan, size: usize) -> Self {
        let workers = plan.workers();
        let shared = Shared::new(plan, workers, size);
        let stages = (0..workers).map(|number| Stages::new(plan.chain(), &shared, number)).collect();
        let spread = Spread { by: plan.spread(), seed: RandomState::new().hash_one(0u64), workers };
        Self { stages, shared, spread, size }
    }

    /// Gives each worker the flows whose packets it gets.
    fn restore(&mut self, state: &State) -> Result<(), Error> {
        let Self { stages, shared, spread, .. } = self;
        for (number, stages) in stages.iter_mut().enumerate() {
            let is_own = |held: &Held, key: &[u64]| {
                // Where packets are spread by something else the tables are shared.
                held.by == spread.by && spread.worker(spread.by.spread_saved(key, spread.seed)) == number
            };
            let mut share = state.share(is_own);
            if number > 0 {
                share.definitions.iter_mut().for_each(|held| held.counts = Counts::default());
            }
            stages.restore(&share);
        }
        shared.restore(state)
    }

    fn start(&mut self) -> Vec<Worker> {
        self.stages.drain(..).map(Worker::start).collect()
    }
}

impl Runner for Several {
    fn save(&mut self, chain: &Chain) -> Result<State, Error> {
        let definitions = &chain.layout.definitions;
        let mut held = vec![([Vec::new(), Vec::new()], Counts::default()); definitions.len()];
        for stages in &self.stages {
            for ((entries, counts), (own, counted)) in held.iter_mut().zip(stages.save(chain)) {
                entries.iter_mut().zip(own).for_each(|(entries, own)| entries.extend(own));
                *counts = *counts + counted;
            }
        }
        let mut state = State::of(&chain.functions, &chain.layout, held);
        self.shared.save(&mut state)?;
        Ok(state)
    }

    fn drain(&mut self, leaving: &[usize]) -> Result<bool, Error> {
        Ok(self.stages.iter_mut().any(|stages| stages.drain_some(leaving)))
    }

    fn write_records(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let mut encoded = self.stages.iter_mut().flat_map(|stages| stages.encoded().enumerate());
        encoded.try_for_each(|(function, lines)| outlet.write_records(function, lines))
    }

    fn reports(
        &mut self,
        chain: &Chain,
        leaving: &[usize],
    ) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
        let all = self.stages.iter().map(|stages| stages.reports(leaving.iter().copied()));
        let total = all.reduce(|(mut reports, mut top_flows), (others, other_flows)| {
            reports.iter_mut().zip(&others).for_each(|(report, other)| report.merge(&**other));
            top_flows.merge(&other_flows);
            (reports, top_flows)
        });
        let (mut reports, top_flows) = total.ok_or(Error::Worker)?;
        for (&function, report) in leaving.iter().zip(&mut reports) {
            self.shared.add_held(chain, function, &mut **report)?;
        }
        Ok((reports, top_flows))
    }

    fn succeed(&mut self, plan: &Plan, succession: Succession) -> Result<(), Error> {
        let Succession { goes_on, state, .. } = succession;
        let Self { stages, shared, spread, .. } = Self::new(plan, self.size);
        // Functions with tables of their own that go on find their flows where they were.
        self.spread = Spread { seed: self.spread.seed, ..spread };
        self.shared = shared;
        for (own, next) in self.stages.iter_mut().zip(stages) {
            own.succeed(next, &goes_on);
        }
        self.restore(&state)
    }
}

pub(super) fn run(
    course: &mut Course<'_, '_>,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<Remains, Error> {
    let plan = course.plan();
    let size = size(&plan.chain().settings.run, plan.workers());
    let mut several = Several::new(plan, size);
    if let Some(state) = course.restored() {
        several.restore(&state)?;
    }
    loop {
        course.between_batches(intake, &mut several, outlet)?;
        let threads = several.start();
        let is_over = judge(&threads, (several.spread, size), course, intake, outlet)?;
        if is_over && !course.saves() {
            return join(course.chain(), &several.shared, threads, outlet);
        }
        several.stages = pause(threads)?;
        if is_over {
            let state = course.last_state(intake, &mut several)?;
            let threads = several.start();
            let remains = join(course.chain(), &several.shared, threads, outlet)?;
            return Ok(Remains { state, ..remains });
        }
    }
}

/// Has workers judge batches until something else is to be done, or none is left: whether that is so.
fn judge(
    threads: &[Worker],
    (spread, size): (Spread, usize),
    course: &Course<'_, '_>,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<bool, Error> {
    let (plan, live) = (course.plan(), intake.source.is_live());
    let (policy, functions) = (plan.chain().settings.run.policy(), plan.chain().functions.len());
    let mut spare: Vec<Dealt> = (0..UNDER_WAY)
        .map(|_| Dealt { whole: Batch::new(size), to: Vec::with_capacity(size), times: Times::NONE })
        .collect();
    let mut spare_parts: Vec<Part> = (0..UNDER_WAY * threads.len())
        .map(|_| Part {
            batch: Batch::new(0),
            expiry: None,
            encoded: vec![String::new(); functions],
            logged: vec![Vec::new(); functions],
        })
        .collect();
    let mut away: VecDeque<Dealt> = VecDeque::new();
    let mut in_order = InOrder::default();
    let mut batches = Batches { read: Batch::new(size), at: 0, are_cut: plan.shared().next().is_some() };
    let mut is_over = false;
    let begun = intake.received;
    loop {
        // What was read is judged before anything else is done.
        let is_due = batches.are_all_out() && course.is_due(intake.received, begun);
        if !is_due
            && !is_over
            && let Some(mut next) = spare.pop()
        {
            if batches.fill(&mut next, intake, policy)? {
                // The oldest is the first to go where not all may be under way.
                while batches.are_cut && Times::of_all(&away, &next).span() > APART {
                    let Some(mut dealt) = away.pop_front() else { break };
                    collect(&mut dealt, threads, &mut spare_parts, &mut in_order, outlet)?;
                    spare.push(dealt);
                }
                deal(&mut next, spread, live, threads, &mut spare_parts)?;
                away.push_back(next);
                // On a live source nobody waits for the next batch to get the verdicts on this one.
                if !live {
                    continue;
                }
            } else {
                is_over = true;
            }
        }
        match away.pop_front() {
            Some(mut dealt) => {
                collect(&mut dealt, threads, &mut spare_parts, &mut in_order, outlet)?;
                spare.push(dealt);
            }
            None if is_due || is_over => return Ok(is_over),
            None => {}
        }
    }
}

/// Takes the functions back from the workers as they are.
fn pause(threads: Vec<Worker>) -> Result<Vec<Stages>, Error> {
    for worker in &threads {
        worker.give.send(None).map_err(|_| Error::Worker)?;
    }
    threads.into_iter().map(|worker| worker.thread.join().map_err(|_| Error::Worker)?).collect()
}

/// Sends each worker its part of a batch.
fn deal(
    dealt: &mut Dealt,
    spread: Spread,
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
        let Some(hash) = spread.by.spread(&dealt.whole, index, spread.seed) else {
            // Frames without a key have no flow; any worker will do, as long as it is always the same.
            dealt.to.push(0);
            parts[0].batch.push_from(&dealt.whole, index);
            continue;
        };
        let to = spread.worker(hash);
        dealt.to.push(to as u16);
        parts[to].batch.push_from(&dealt.whole, index);
    }
    for (worker, part) in threads.iter().zip(parts) {
        worker.give.send(Some(part)).map_err(|_| Error::Worker)?;
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
        remains.push(thread.join().map_err(|_| Error::Worker)??.report());
    }
    shared.total(chain, remains.into_iter())
}
