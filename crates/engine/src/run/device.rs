//! The first functions of a chain on a device, the others here, and all of them here whenever the device cannot.
//!
//! Batches leave in order of arrival, whoever judges them. Several are on their way to the device while the next ones are read. Where it
//! fails, those that were with it are judged here, so each packet is judged once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_io::Polled;
use packetloom_nf::Found;
use packetloom_nf::units::Span;
use packetloom_packet::{Batch, Verdict};

use super::lifecycle::Lifecycle;
use super::{Intake, Outlet};
use crate::chain::Run;
use crate::offload::frames::{self, Answer};
use crate::offload::lane::Way;
use crate::offload::pace::{Choice, Pace, Ways};
use crate::offload::standby::{LANES, Loan, ROOM, Standby};
use crate::outcome::Shares;
use crate::pipeline::{Expiry, Pipeline, WorkerReport};
use crate::{Chain, Error};

/// How a chain uses a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use<'a> {
    pub(super) device: &'a Device,
    /// Functions that it takes, from the first on.
    pub(super) functions: usize,
    /// Whether batches are also judged here where that is better, from the beginning on.
    pub(super) is_auto: bool,
}

pub(super) fn run(
    lifecycle: &mut Lifecycle<'_, '_>,
    chain: &Chain,
    on: Use<'_>,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<(WorkerReport, Shares), Error> {
    let (settings, functions) = (&chain.settings.run, &chain.functions);
    let changes: Vec<u64> = functions.iter().flat_map(|function| function.changes_at()).collect();
    // Where rules change, one kernel for any rules serves them all.
    let specialise = changes.is_empty();
    let options = frames::Options { policy: settings.policy(), specialise, ..frames::Options::default() };
    thread::scope(|scope| {
        let span = |span: Option<Span>| span.and_then(Span::limit).map(Duration::from_nanos);
        let mut standby = Standby::new(
            scope,
            on.device,
            &functions[..on.functions],
            options,
            span(settings.device_timeout),
        );
        if !on.is_auto {
            standby.wait()?;
        }
        let is_logging = functions[..on.functions].iter().any(|function| function.log().is_some());
        let runner = Runner {
            standby,
            on,
            settings,
            changes,
            sent: 0,
            // Keys are found here where somebody needs them here.
            needs_keys: is_logging || functions.len() > on.functions,
            live: intake.source.is_live(),
            stages: Pipeline::alone(chain, ROOM),
            pace: Pace::new(ROOM, span(settings.max_latency)),
            choice: Choice::default(),
            ways: Ways::default(),
            answers: Vec::new(),
            found: Vec::new(),
            others: Vec::new(),
            beyond: Vec::new(),
            aside: Batch::new(ROOM),
            shares: Shares::default(),
        };
        runner.run(lifecycle, intake, outlet)
    })
}

/// A batch on its way through the chain.
struct Away {
    batch: Batch,
    /// Where it is with the device.
    loan: Option<Loan>,
    way: Way,
    read: Instant,
    sent: Instant,
    /// Time that this machine spent on it so far.
    spent: Duration,
}

struct Runner<'scope, 'env> {
    standby: Standby<'scope, 'env>,
    on: Use<'env>,
    settings: &'env Run,
    /// Packets of the run before which rules change.
    changes: Vec<u64>,
    /// Packets that were read.
    sent: u64,
    needs_keys: bool,
    live: bool,
    stages: Pipeline,
    pace: Pace,
    choice: Choice,
    ways: Ways,
    answers: Vec<Answer>,
    found: Vec<Found>,
    others: Vec<Vec<u32>>,
    /// Frames that software must look at, and what they are judged in.
    beyond: Vec<u32>,
    aside: Batch,
    shares: Shares,
}

impl Runner<'_, '_> {
    fn run(
        mut self,
        lifecycle: &mut Lifecycle<'_, '_>,
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(WorkerReport, Shares), Error> {
        // As many as there are lanes, so that there is one for each.
        let mut spare: Vec<_> = (0..LANES).map(|_| Batch::new(ROOM)).collect();
        let mut under_way: VecDeque<Away> = VecDeque::new();
        let mut is_over = false;
        loop {
            self.standby.news().for_each(|news| lifecycle.notice()(&news));
            outlet.tell(intake, lifecycle.notice());
            // Verdicts that are known do not wait for the next packets to be read.
            while let Some(mut oldest) = under_way.pop_front_if(|oldest| self.is_back(oldest)) {
                self.finish(&mut oldest)?;
                self.deliver(&mut oldest, outlet)?;
                spare.push(oldest.batch);
            }
            // What is asked for waits for the batches that are away, and the next one for what is asked for.
            let is_asked = lifecycle.control().is_asked();
            if is_asked && under_way.is_empty() {
                lifecycle.serve_counters(|| self.stages.report(), outlet, &mut || intake.report());
            } else if !is_asked
                && !is_over
                && let Some(mut batch) = spare.pop()
            {
                // Cores like small batches better.
                let is_for_device = !self.on.is_auto || self.choice.choose(self.pace.size());
                let size = if is_for_device { self.pace.size() } else { self.settings.batch().get() };
                // What a lane has room for.
                batch.set_capacity(size.min(ROOM));
                let control = Arc::clone(lifecycle.control());
                match intake.fill(&mut batch, |_| control.is_asked())? {
                    Polled::Frames => {
                        // Fewer than were hoped for may be better here.
                        let is_full = batch.len() * 2 > size;
                        let is_for_device = is_for_device
                            && (!self.on.is_auto || is_full || self.choice.is_for_device(batch.len()));
                        under_way.push_back(self.send(batch, is_for_device));
                        // On a live source nobody waits for the next batch to get the verdicts on this one.
                        if !self.live {
                            continue;
                        }
                    }
                    Polled::Nothing => {
                        if let Some(now) = intake.tick(&mut batch) {
                            batch.parse(self.settings.policy());
                            self.pass_on(&mut batch, Some(Expiry::at(now)), outlet)?;
                        }
                        spare.push(batch);
                    }
                    Polled::End => is_over = true,
                }
            }
            match under_way.pop_front() {
                Some(mut oldest) => {
                    self.finish(&mut oldest)?;
                    self.deliver(&mut oldest, outlet)?;
                    spare.push(oldest.batch);
                }
                None if is_over => break,
                None => {}
            }
        }
        self.standby.news().for_each(|news| lifecycle.notice()(&news));
        outlet.drain(&mut self.stages, false)?;
        self.shares.faults = self.standby.faults();
        (self.shares.loads, self.shares.longest_load) = self.standby.loads();
        Ok((self.stages.report(), self.shares))
    }

    /// Sends a batch to the device, if it is meant for it, and the device is there and has room.
    fn send(&mut self, batch: Batch, is_for_device: bool) -> Away {
        let start = Instant::now();
        let (first, after) = (self.sent, self.sent + batch.len() as u64);
        self.sent = after;
        let mut away =
            Away { batch, loan: None, way: Way::Launch, read: start, sent: start, spent: Duration::ZERO };
        if !is_for_device {
            return away;
        }
        // Changes that come before a packet are made when it is judged.
        let changes = |packet| self.changes.partition_point(|&at| at <= packet);
        let changed = changes(first);
        if changes(after - 1) != changed {
            return away;
        }
        let Some(mut loan) = self.standby.lane(changed) else { return away };
        loan.lane.clear();
        let mut frames = away.batch.frames().iter().enumerate();
        if !frames.all(|(index, frame)| loan.lane.push(away.batch.bytes(index), frame.link)) {
            self.standby.give_back(loan);
            return away;
        }
        let packets = away.batch.len();
        let way = if loan.lane.can(Way::Resident) { self.ways.choose(packets) } else { Way::Launch };
        match loan.lane.submit(way) {
            Ok(()) => {
                away.way = way;
                away.loan = Some(loan);
            }
            Err(error) => {
                loan.lane.abandon();
                self.standby.fail(&error);
            }
        }
        away.sent = Instant::now();
        away.spent = away.sent - start;
        away
    }

    /// Whether nobody has to wait for what the device found.
    fn is_back(&self, away: &mut Away) -> bool {
        // What went wrong is told when it is waited for.
        away.loan.as_mut().is_none_or(|loan| loan.lane.is_finished().unwrap_or(true))
    }

    /// Has the offloaded functions judge a batch: by what the device found, or here.
    fn finish(&mut self, away: &mut Away) -> Result<(), Error> {
        self.judge(away)?;
        self.pace.observe(away.batch.len(), away.read.elapsed());
        Ok(())
    }

    fn judge(&mut self, away: &mut Away) -> Result<(), Error> {
        let Some(mut loan) = away.loan.take() else { return self.judge_here(away) };
        match loan.lane.finish_within(self.standby.limit().saturating_sub(away.sent.elapsed())) {
            Ok(true) => {
                let start = Instant::now();
                let time = start - away.sent;
                self.take(&mut away.batch, &mut loan);
                self.standby.give_back(loan);
                self.choice.judged_there(away.batch.len(), away.spent + start.elapsed(), time);
                self.ways.observe(away.batch.len(), away.way, time);
                if away.way == Way::Resident {
                    self.shares.resident += away.batch.len() as u64;
                }
                Ok(())
            }
            failed => {
                let error = failed.err().unwrap_or_else(|| {
                    let why = format!("no answer for {:?}", away.sent.elapsed());
                    packetloom_device::Error::Failed { call: "wait", why }.into()
                });
                loan.lane.abandon();
                self.standby.fail(&error);
                self.judge_here(away)
            }
        }
    }

    /// Software's way.
    fn judge_here(&mut self, away: &mut Away) -> Result<(), Error> {
        let start = Instant::now();
        let batch = &mut away.batch;
        batch.parse(self.settings.policy());
        self.stages.process(0..self.on.functions, batch, None)?;
        self.shares.here += batch.len() as u64;
        self.choice.judged_here(batch.len(), start.elapsed());
        Ok(())
    }

    /// Takes what the device found; frames that it could not tell are judged here.
    fn take(&mut self, batch: &mut Batch, loan: &mut Loan) {
        loan.lane.answers(&mut self.answers);
        self.others.resize_with(self.on.functions, Vec::new);
        for (acl, others) in self.others.iter_mut().enumerate().skip(1) {
            loan.lane.first(acl, others);
        }
        self.found.clear();
        self.beyond.clear();
        if self.needs_keys {
            batch.parse(self.settings.policy());
        }
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
            if !self.needs_keys {
                batch.push_verdict(verdict);
            }
        }
        // These first: those that functions take are logged in order with them.
        if !self.beyond.is_empty() {
            self.aside.reset(batch.arena().clone());
            self.beyond.iter().for_each(|&frame| self.aside.push(batch.frames()[frame as usize]));
            self.aside.parse(self.settings.policy());
            self.stages.process_aside(0..self.on.functions, &mut self.aside, &self.beyond);
            let (verdicts, _, _) = batch.judge();
            for (&frame, &verdict) in self.beyond.iter().zip(self.aside.verdicts()) {
                verdicts[frame as usize] = verdict;
            }
            self.aside.reset(packetloom_packet::batch::empty_arena());
            self.shares.here += self.beyond.len() as u64;
        }
        let packets = batch.len() - self.beyond.len();
        for (function, (others, names)) in self.others.iter().zip(&*loan.names).enumerate() {
            for found in &mut self.found {
                if function > 0 {
                    found.first = others[found.frame as usize];
                }
                if let Some(&name) = names.as_ref().and_then(|names| names.get(found.first as usize)) {
                    found.first = name;
                }
            }
            self.stages.take(function, packets, &mut self.found, batch);
        }
        self.shares.device += packets as u64;
    }

    /// The functions that are not the device's, and all that comes after.
    fn deliver(&mut self, away: &mut Away, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let expiry = if self.live { Expiry::after(&away.batch) } else { None };
        self.pass_on(&mut away.batch, expiry, outlet)
    }

    fn pass_on(
        &mut self,
        batch: &mut Batch,
        expiry: Option<Expiry>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        // What was judged before rewrites nothing.
        self.stages.arrive(batch);
        self.stages.process(self.on.functions..self.stages.len(), batch, expiry)?;
        outlet.finish(&mut self.stages, batch)?;
        batch.reset(packetloom_packet::batch::empty_arena());
        Ok(())
    }
}
