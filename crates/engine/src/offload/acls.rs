//! ACLs at the beginning of a chain, which keep no state, on a device: several batches are away at a time, each in a lane of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_nf::{Found, Offload, Prepared};
use packetloom_packet::batch::{Policy, empty_arena};
use packetloom_packet::{Batch, LinkType, Verdict};

use super::accelerator::{Accelerator, late};
use super::frames::{Acl, Answer, Frames, Options};
use super::lane::{Lane, Way};
use super::pace::Ways;
use super::{Error, is_gpu};
use crate::outcome::Shares;
use crate::pipeline::Pipeline;

/// Batches that are on their way at a time.
pub const LANES: usize = 4;
/// Packets of a lane's batch at most.
pub const ROOM: usize = 1 << 14;
/// How long the first launch may take, at which drivers still compile.
const LIMIT_OF_FIRST: Duration = Duration::from_secs(60);

/// Rules on a device, and lanes to have packets judged by them.
pub(crate) struct Acls {
    policy: Policy,
    /// Lanes without a batch, and those with one, the oldest first.
    free: Vec<Lane>,
    away: VecDeque<Sent>,
    ways: Ways,
    /// For each function what it calls its rules, where they have names.
    names: Vec<Option<Vec<u32>>>,
    answers: Vec<Answer>,
    found: Vec<Found>,
    others: Vec<Vec<u32>>,
    /// Frames that software must look at, and what they are judged in.
    beyond: Vec<u32>,
    aside: Batch,
}

/// A batch that is away.
struct Sent {
    lane: Lane,
    way: Way,
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
    /// Compiles and lays out the rules of functions after so many changes, and makes lanes.
    ///
    /// # Errors
    /// Where the rules are too many for the device, or where it fails.
    pub(super) fn new(
        device: &Device,
        functions: &[Box<dyn Prepared>],
        changes: usize,
        options: Options,
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
        let changes_come = functions.iter().any(|function| !function.changes_at().is_empty());
        let with_ring = is_gpu(device) && !changes_come;
        let lanes = (0..LANES).map(|_| Lane::new(&kernel, ROOM as u32, with_ring));
        let mut acls = Self {
            policy: options.policy,
            free: lanes.collect::<Result<_, _>>()?,
            away: VecDeque::new(),
            ways: Ways::default(),
            names: names.collect(),
            answers: Vec::new(),
            found: Vec::new(),
            others: vec![Vec::new(); functions.len()],
            beyond: Vec::new(),
            aside: Batch::new(ROOM),
        };
        // Drivers put off a part of the work until the first launch.
        for number in 0..LANES {
            let lane = &mut acls.free[number];
            let _ = lane.push(&[], LinkType::ETHERNET);
            lane.submit(Way::Launch)?;
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

    fn submit(&mut self, batch: &Batch) -> Result<bool, Error> {
        let Some(mut lane) = self.free.pop() else { return Ok(false) };
        lane.clear();
        let mut frames = batch.frames().iter().enumerate();
        if !frames.all(|(index, frame)| lane.push(batch.bytes(index), frame.link)) {
            self.free.push(lane);
            return Ok(false);
        }
        let way = if lane.can(Way::Resident) { self.ways.choose(batch.len()) } else { Way::Launch };
        let submitted = lane.submit(way);
        self.away.push_back(Sent { lane, way, at: Instant::now() });
        submitted.map(|()| true)
    }

    fn is_back(&mut self) -> bool {
        self.away.front_mut().is_none_or(|sent| sent.lane.is_finished().unwrap_or(true))
    }

    fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        let Some(Sent { lane, way, at }) = self.away.front_mut() else { return Ok(()) };
        if !lane.finish_within(limit.saturating_sub(at.elapsed()))? {
            return Err(late(*at));
        }
        self.ways.observe(lane.len(), *way, at.elapsed());
        Ok(())
    }

    /// Keys are not looked at where the batch was not parsed.
    fn take(&mut self, batch: &mut Batch, stages: &mut Pipeline, shares: &mut Shares) {
        let Some(Sent { mut lane, way, .. }) = self.away.pop_front() else { return };
        lane.answers(&mut self.answers);
        for (acl, others) in self.others.iter_mut().enumerate().skip(1) {
            lane.first(acl, others);
        }
        self.free.push(lane);
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
        let functions = self.names.len();
        // These first: those that functions take are logged in order with them.
        if !self.beyond.is_empty() {
            self.aside.reset(batch.arena().clone());
            self.beyond.iter().for_each(|&frame| self.aside.push(batch.frames()[frame as usize]));
            self.aside.parse(self.policy);
            stages.process_aside(0..functions, &mut self.aside, &self.beyond);
            batch.merge(&self.aside, &self.beyond);
            self.aside.reset(empty_arena());
        }
        let packets = batch.len() - self.beyond.len();
        for (function, (others, names)) in self.others.iter().zip(&self.names).enumerate() {
            for found in &mut self.found {
                if function > 0 {
                    found.first = others[found.frame as usize];
                }
                if let Some(&name) = names.as_ref().and_then(|names| names.get(found.first as usize)) {
                    found.first = name;
                }
            }
            stages.take(function, packets, &mut self.found, batch);
        }
        shares.device += packets as u64;
        shares.here += self.beyond.len() as u64;
        if way == Way::Resident {
            shares.resident += batch.len() as u64;
        }
    }

    fn abandon(mut self: Box<Self>) {
        // All of them first: drivers wait for kernels when memory is given back.
        self.lanes().for_each(|lane| lane.dismiss());
        let away = self.away.drain(..).map(|sent| sent.lane);
        self.free.drain(..).chain(away).for_each(Lane::abandon);
    }
}
