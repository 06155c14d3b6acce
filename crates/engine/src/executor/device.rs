//! The first functions of a chain on a device, the others here, and all of them here whenever the device cannot.
//!
//! Batches leave in order of arrival, whoever judges them. Several are on their way to the device while the next ones are read. Where it
//! fails, those that were with it are judged here, so each packet is judged once.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_nf::units::Span;
use packetloom_nf::{Found, Offload, Prepared, Report};
use packetloom_packet::{Batch, Verdict};

use super::single::Stages;
use super::{ENCODED, Expiry, Intake, Outlet};
use crate::Error;
use crate::chain::Run;
use crate::offload::frames::{self, Acl, Answer};
use crate::offload::lane::Lane;
use crate::offload::pace::{Choice, Pace};
use crate::offload::standby::{LANES, Standby};
use crate::outcome::{Shares, TopFlows};

/// How a chain uses a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use<'a> {
    pub(super) device: &'a Device,
    /// Functions that it takes, from the first on.
    pub(super) functions: usize,
    /// Whether batches are also judged here where that is better, from the beginning on.
    pub(super) is_auto: bool,
}

/// What a run leaves behind.
type Remains = (Vec<Box<dyn Report>>, TopFlows, Shares);

pub(super) fn run(
    functions: &[Box<dyn Prepared>],
    settings: &Run,
    on: Use<'_>,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
    notice: &mut dyn FnMut(&str),
) -> Result<Remains, Error> {
    let acls: Vec<_> = functions[..on.functions]
        .iter()
        .filter_map(|function| match function.offload() {
            Some(Offload::Acl { rules, verdicts }) => Some(Acl { rules, verdicts }),
            _ => None,
        })
        .collect();
    let options = frames::Options { policy: settings.policy(), ..frames::Options::default() };
    thread::scope(|scope| {
        let span = |span: Option<Span>| span.map(|span| Duration::from_nanos(span.as_nanos()));
        let mut standby = Standby::new(scope, on.device, &acls, options, span(settings.device_timeout));
        if !on.is_auto {
            standby.wait()?;
        }
        let is_logging = functions[..on.functions].iter().any(|function| function.log().is_some());
        let runner = Runner {
            standby,
            on,
            settings,
            // Keys are found here where somebody needs them here.
            needs_keys: is_logging || functions.len() > on.functions,
            live: intake.source.is_live(),
            stages: Stages::new(functions, 1),
            pace: Pace::new(span(settings.max_latency)),
            choice: Choice::default(),
            answers: Vec::new(),
            found: Vec::new(),
            others: Vec::new(),
            beyond: Vec::new(),
            aside: Batch::new(Pace::most()),
            shares: Shares::default(),
        };
        runner.run(intake, outlet, notice)
    })
}

/// A batch on its way through the chain.
struct Away {
    batch: Batch,
    /// Where it is with the device.
    lane: Option<Lane>,
    read: Instant,
    sent: Instant,
    /// Time that this machine spent on it so far.
    spent: Duration,
}

struct Runner<'scope, 'env> {
    standby: Standby<'scope, 'env>,
    on: Use<'env>,
    settings: &'env Run,
    needs_keys: bool,
    live: bool,
    stages: Stages,
    pace: Pace,
    choice: Choice,
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
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
        notice: &mut dyn FnMut(&str),
    ) -> Result<Remains, Error> {
        // As many as there are lanes, so that there is one for each.
        let mut spare: Vec<_> = (0..LANES).map(|_| Batch::new(Pace::most())).collect();
        let mut under_way: VecDeque<Away> = VecDeque::new();
        let mut is_over = false;
        loop {
            self.standby.news().for_each(|news| notice(&news));
            if !is_over && let Some(mut batch) = spare.pop() {
                batch.set_capacity(self.pace.size());
                let read = Instant::now();
                if intake.fill(&mut batch)? {
                    under_way.push_back(self.send(batch, read));
                    // On a live source nobody waits for the next batch to get the verdicts on this one.
                    if !self.live {
                        continue;
                    }
                } else {
                    is_over = true;
                }
            }
            let Some(mut oldest) = under_way.pop_front() else { break };
            self.finish(&mut oldest);
            self.deliver(&mut oldest, outlet)?;
            spare.push(oldest.batch);
        }
        self.standby.news().for_each(|news| notice(&news));
        loop {
            let more = self.stages.drain();
            for (index, lines) in self.stages.encoded().enumerate() {
                outlet.write_records(index, lines)?;
            }
            if !more {
                break;
            }
        }
        self.shares.faults = self.standby.faults();
        let (reports, top_flows) = self.stages.report();
        Ok((reports, top_flows, self.shares))
    }

    /// Sends a batch to the device, if it is there, has room, and is better at it.
    fn send(&mut self, batch: Batch, read: Instant) -> Away {
        let start = Instant::now();
        let mut away = Away { batch, lane: None, read, sent: start, spent: Duration::ZERO };
        if self.on.is_auto && !self.choice.is_for_device(away.batch.len()) {
            return away;
        }
        let Some(mut lane) = self.standby.lane() else { return away };
        lane.clear();
        for (index, frame) in away.batch.frames().iter().enumerate() {
            lane.push(away.batch.bytes(index), frame.link);
        }
        match lane.submit() {
            Ok(()) => away.lane = Some(lane),
            Err(error) => {
                lane.abandon();
                self.standby.fail(&error);
            }
        }
        away.sent = Instant::now();
        away.spent = away.sent - start;
        away
    }

    /// Has the offloaded functions judge a batch: by what the device found, or here.
    fn finish(&mut self, away: &mut Away) {
        let Some(mut lane) = away.lane.take() else { return self.judge_here(away) };
        match lane.finish_within(self.standby.limit().saturating_sub(away.sent.elapsed())) {
            Ok(true) => {
                let start = Instant::now();
                let time = start - away.sent;
                self.take(&mut away.batch, &lane);
                self.standby.give_back(lane);
                self.choice.judged_there(away.batch.len(), away.spent + start.elapsed(), time);
            }
            failed => {
                let error = failed.err().unwrap_or_else(|| {
                    let why = format!("no answer for {:?}", away.sent.elapsed());
                    packetloom_device::Error::Failed { call: "wait", why }.into()
                });
                lane.abandon();
                self.standby.fail(&error);
                self.judge_here(away);
            }
        }
    }

    /// Software's way.
    fn judge_here(&mut self, away: &mut Away) {
        let start = Instant::now();
        let batch = &mut away.batch;
        batch.parse(self.settings.policy());
        self.stages.process(0..self.on.functions, batch, None);
        self.shares.here += batch.len() as u64;
        self.choice.judged_here(batch.len(), start.elapsed());
    }

    /// Takes what the device found; frames that it could not tell are judged here.
    fn take(&mut self, batch: &mut Batch, lane: &Lane) {
        lane.answers(&mut self.answers);
        self.others.resize_with(self.on.functions, Vec::new);
        for (acl, others) in self.others.iter_mut().enumerate().skip(1) {
            lane.first(acl, others);
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
        for function in 0..self.on.functions {
            if let Some(others) = self.others.get(function).filter(|_| function > 0) {
                self.found.iter_mut().for_each(|found| found.first = others[found.frame as usize]);
            }
            self.stages.take(function, &mut self.found, batch.judge().0);
        }
        self.shares.device += (batch.len() - self.beyond.len()) as u64;
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
    }

    /// The functions that are not the device's, and all that comes after.
    fn deliver(&mut self, away: &mut Away, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let batch = &mut away.batch;
        let expiry = if self.live { Expiry::after(batch) } else { None };
        self.stages.process(self.on.functions..self.stages.len(), batch, expiry);
        for (index, logged) in self.stages.logged().enumerate() {
            outlet.log_batch(index, logged, batch)?;
        }
        outlet.deliver(batch)?;
        for (index, lines) in self.stages.encoded().enumerate() {
            if lines.len() >= ENCODED || self.live {
                outlet.write_records(index, lines)?;
            }
        }
        self.pace.observe(batch.len(), away.read.elapsed());
        batch.reset(packetloom_packet::batch::empty_arena());
        Ok(())
    }
}
