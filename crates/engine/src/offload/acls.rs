//! ACLs at the beginning of a chain, which keep no state, on a device: several batches are away at a time, each in a lane of its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_nf::{Found, FunctionSpec, Offload};
use packetloom_packet::batch::{Policy, empty_arena};
use packetloom_packet::{Batch, LinkType, Verdict};

use super::accelerator::{Accelerator, late};
use super::frames::{Acl, Answer, Frames, Options};
use super::lane::{Dispatch, Lane};
use super::pace::DispatchChoice;
use super::{Error, is_gpu};
use crate::crew::Crew;
use crate::outcome::Shares;
use crate::pipeline::Pipeline;
use crate::pipeline::work::Work;

/// Batches that are on their way at a time.
pub const LANES: usize = 4;
/// Packets of a lane's batch at most, where so many threads work at it: one of them has it in its caches, several have to meet several times
/// for each batch.
pub(crate) const fn room(feeders: usize) -> usize {
    if feeders > 1 { 1 << 17 } else { 1 << 14 }
}

/// How long the first launch may take, at which drivers still compile.
const LIMIT_OF_FIRST: Duration = Duration::from_secs(60);

/// Rules on a device, and lanes to have packets judged by them.
pub(crate) struct Acls {
    policy: Policy,
    /// Lanes without a batch, and those with one, the oldest first.
    free: Vec<Lane>,
    away: VecDeque<Sent>,
    /// When answers were taken last.
    freed: Instant,
    dispatches: DispatchChoice,
    /// For each function what it calls its rules, where they have names.
    names: Vec<Option<Vec<u32>>>,
    /// Of the oldest batch, for each ACL but the first, the rules that decided.
    others: Vec<Vec<u32>>,
    /// For each piece of a batch.
    notes: Vec<Notes>,
}

/// What was found of a piece of a batch.
struct Notes {
    answers: Vec<Answer>,
    found: Vec<Found>,
    /// Frames that software must look at, and what they are judged in.
    beyond: Vec<u32>,
    aside: Batch,
}

/// What is known of each list: what it calls its rules, and, of all but the first, which of them decided about the frames of a batch.
struct Lists<'a> {
    names: &'a [Option<Vec<u32>>],
    others: &'a [Vec<u32>],
}

impl Notes {
    fn new() -> Self {
        Self { answers: Vec::new(), found: Vec::new(), beyond: Vec::new(), aside: Batch::new(0) }
    }
}

/// A batch that is away.
struct Sent {
    lane: Lane,
    dispatch: Dispatch,
    at: Instant,
}

impl Drop for Acls {
    fn drop(&mut self) {
        for lane in self.lanes() {
            // What went wrong was told by whoever waited for answers.
            let _ = lane.rest();
        }
    }
}

impl Acls {
    /// Compiles and lays out the rules of functions after so many changes, and makes lanes for batches of so many packets.
    ///
    /// # Errors
    /// Where the rules are too many for the device, or where it fails.
    pub(super) fn new(
        device: &Device,
        functions: &[Arc<dyn FunctionSpec>],
        changes: usize,
        options: Options,
        room: usize,
    ) -> Result<Self, Error> {
        let offloads: Vec<_> = functions.iter().filter_map(|function| function.offload(changes)).collect();
        let acls = offloads.iter().filter_map(|offload| match offload {
            Offload::Acl { rules, verdicts, .. } => Some(Acl { rules, verdicts }),
            _ => None,
        });
        let kernel = Arc::new(Frames::new(device, &acls.collect::<Vec<_>>(), options)?);
        let names = offloads.into_iter().map(|offload| match offload {
            Offload::Acl { names, .. } => names,
            _ => None,
        });
        // A kernel that stays would take a CPU's cores; and where rules change, it would be in the way of loading them.
        let changes_come = functions.iter().any(|function| function.has_changing_rules());
        let with_ring = is_gpu(device) && !changes_come;
        let lanes = (0..LANES).map(|_| Lane::new(&kernel, room as u32, with_ring));
        let mut acls = Self {
            policy: options.policy,
            free: lanes.collect::<Result<_, _>>()?,
            away: VecDeque::new(),
            freed: Instant::now(),
            dispatches: DispatchChoice::default(),
            names: names.collect(),
            others: vec![Vec::new(); functions.len()],
            notes: Vec::new(),
        };
        // Drivers put off a part of the work until the first launch.
        for number in 0..LANES {
            let lane = &mut acls.free[number];
            let _ = lane.push(&[], LinkType::ETHERNET);
            lane.submit(Dispatch::Launch)?;
            if !lane.finish_within(LIMIT_OF_FIRST)? {
                Box::new(acls).abandon();
                let why = format!("no answer for {LIMIT_OF_FIRST:?}");
                return Err(packetloom_device::Error::Failed { call: "first launch", why }.into());
            }
        }
        Ok(acls)
    }

    fn lanes(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.free.iter_mut().chain(self.away.iter_mut().map(|sent| &mut sent.lane))
    }
}

impl Accelerator for Acls {
    fn depth(&self) -> usize {
        LANES
    }

    fn submit(&mut self, pieces: &[Work], crew: &Crew) -> Result<bool, Error> {
        let Some(mut lane) = self.free.pop() else { return Ok(false) };
        if !lane.fill(crew, pieces.iter().map(|piece| &piece.batch)) {
            self.free.push(lane);
            return Ok(false);
        }
        let dispatch =
            if lane.can(Dispatch::Resident) { self.dispatches.choose(lane.len()) } else { Dispatch::Launch };
        let submitted = lane.submit(dispatch);
        self.away.push_back(Sent { lane, dispatch, at: Instant::now() });
        submitted.map(|()| true)
    }

    fn is_back(&mut self) -> bool {
        self.away.front_mut().is_none_or(|sent| sent.lane.is_finished().unwrap_or(true))
    }

    fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        let Some(Sent { lane, dispatch, at }) = self.away.front_mut() else { return Ok(()) };
        // It may have waited for those before.
        let since = self.freed.max(*at);
        if !lane.finish_within(limit.saturating_sub(since.elapsed()))? {
            return Err(late(since));
        }
        self.dispatches.observe(lane.len(), *dispatch, since.elapsed());
        Ok(())
    }

    /// Keys are not looked at where pieces were not parsed.
    fn take(&mut self, pieces: &mut [Work], stages: &[Mutex<Pipeline>], crew: &Crew, shares: &mut Shares) {
        let Some(Sent { mut lane, dispatch, .. }) = self.away.pop_front() else { return };
        for (acl, others) in self.others.iter_mut().enumerate().skip(1) {
            lane.first(acl, others);
        }
        if self.notes.len() < pieces.len() {
            self.notes.resize_with(pieces.len(), Notes::new);
        }
        let Self { names, others, policy, notes, .. } = self;
        let mut first = 0;
        let jobs = pieces.iter_mut().zip(&mut *notes).map(|(piece, notes)| {
            let at = first;
            first += piece.batch.len();
            (piece, notes, at)
        });
        crew.each_with(stages, jobs.collect(), |stages, (piece, notes, first)| {
            lane.answers_of(first..first + piece.batch.len(), &mut notes.answers);
            let lists = Lists { names, others };
            notes.take(&mut piece.batch, &lists, first, *policy, stages);
            piece.take(stages);
        });
        let beyond: usize = notes[..pieces.len()].iter().map(|notes| notes.beyond.len()).sum();
        shares.device += (lane.len() - beyond) as u64;
        shares.here += beyond as u64;
        if dispatch == Dispatch::Resident {
            shares.resident += lane.len() as u64;
        }
        self.free.push(lane);
        self.freed = Instant::now();
    }

    fn abandon(mut self: Box<Self>) {
        // All of them first: drivers wait for kernels when memory is given back.
        self.lanes().for_each(|lane| lane.dismiss());
        let away = self.away.drain(..).map(|sent| sent.lane);
        let _kept: Vec<_> = self.free.drain(..).chain(away).map(Lane::abandon).collect();
    }
}

impl Notes {
    /// Writes answers into a piece of a batch, which begins at some place of the batch, and has functions take note of them.
    fn take(
        &mut self,
        batch: &mut Batch,
        Lists { names, others }: &Lists<'_>,
        first: usize,
        policy: Policy,
        stages: &mut Pipeline,
    ) {
        self.found.clear();
        self.beyond.clear();
        let is_parsed = !batch.verdicts().is_empty();
        for (frame, answer) in (0..).zip(&self.answers) {
            let verdict = match answer.verdict() {
                None => {
                    self.beyond.push(frame);
                    Verdict::Pass
                }
                // Frames without a match key: the policy's verdict.
                Some(verdict) if answer.ip_bytes() == 0 => verdict,
                Some(_) => {
                    self.found.push(Found { frame, first: answer.first(), bytes: answer.ip_bytes() });
                    Verdict::Pass
                }
            };
            if !is_parsed {
                batch.push_verdict(verdict);
            }
        }
        // These first: those that functions take are logged in order with them.
        if !self.beyond.is_empty() {
            self.aside.reset_like(batch);
            self.beyond.iter().for_each(|&frame| self.aside.push(batch.frames()[frame as usize]));
            self.aside.parse(policy);
            stages.process_aside(0..names.len(), &mut self.aside, &self.beyond);
            batch.merge(&self.aside, &self.beyond);
            self.aside.reset(empty_arena());
        }
        let packets = batch.len() - self.beyond.len();
        for (function, (others, names)) in others.iter().zip(*names).enumerate() {
            for found in &mut self.found {
                if function > 0 {
                    found.first = others[first + found.frame as usize];
                }
                if let Some(&name) = names.as_ref().and_then(|names| names.get(found.first as usize)) {
                    found.first = name;
                }
            }
            stages.take(function, packets, &mut self.found, batch);
        }
    }
}
