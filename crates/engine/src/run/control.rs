//! What others ask of a run from outside: its counters, another chain, its state in a file. It is done between two batches.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use packetloom_io::capture::{FileReport, Findings, Truncation};
use packetloom_io::port::IngressCounts;
use packetloom_packet::Timestamp;

use super::lifecycle::{Lifecycle, Runner};
use super::listing::{FlowQuery, FlowRemoval, Listed, Removed, Scan};
use super::rules::{RuleChange, RulesChanged};
use super::{Intake, Outlet, Position};
use crate::offload::Unfinished;
use crate::outcome::{Interface, Outcome};
use crate::pipeline::WorkerReport;
use crate::{Chain, Error};

/// What other threads ask of a run, and signal handlers. The run looks at it before each batch, and while it waits for packets.
#[derive(Default)]
pub struct Control {
    reload: Arc<AtomicBool>,
    is_asked: AtomicBool,
    requests: Mutex<Requests>,
    /// How long packets waited for what was asked last, in nanoseconds.
    held: AtomicU64,
}

#[derive(Default)]
struct Requests {
    open: Vec<Request>,
    is_over: bool,
}

/// What is asked of a run. One that is dropped without an answer was not done since the run is over.
pub enum Request {
    /// What it has counted so far.
    Counters(Counted),
    /// To go on with the chain that [`LifecycleOptions::load`](super::LifecycleOptions::load) makes; answered when it does, or with what is wrong with that.
    Reload(Answer),
    /// To save its state; answered when it is saved.
    Save(Answer),
    /// To change rules of a function, all at one point between two packets; answered when they are changed, or with why they stay.
    Change(RuleChange, ChangeAnswer),
    /// Flows of a function.
    Flows(FlowQuery, Box<dyn FnOnce(Result<Listed, String>) + Send>),
    /// To forget what a function keeps of some flows; a function that exports records exports theirs.
    Remove(FlowRemoval, Box<dyn FnOnce(Result<Removed, String>) + Send>),
}

/// Takes an answer in the thread that runs packets, which waits meanwhile.
pub type Answer = Box<dyn FnOnce(Result<(), String>) + Send>;

/// The same for rules that were changed.
pub type ChangeAnswer = Box<dyn FnOnce(Result<RulesChanged, String>) + Send>;

/// The same for counters. What they come to is best written by another thread: a list of many rules makes a long summary.
pub type Counted = Box<dyn FnOnce(Result<Outcome, String>) + Send>;

impl Control {
    /// Set by whoever wants the chain read again and no answer, such as a signal handler.
    pub fn reload_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.reload)
    }

    /// Asks for something; the request is dropped where the run is over.
    pub fn ask(&self, request: Request) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if !requests.is_over {
            requests.open.push(request);
            self.is_asked.store(true, Ordering::Release);
        }
    }

    /// How long packets waited for what was asked last.
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.held.load(Ordering::Relaxed))
    }

    pub(super) fn tell_held(&self, held: Duration) {
        let held = u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        self.held.store(held, Ordering::Relaxed);
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Whether the chain is to be read again: says so once.
    pub(super) fn takes_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    fn take(&self) -> Vec<Request> {
        // Nearly always there is nothing.
        if !self.is_asked.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_asked.store(false, Ordering::Release);
        std::mem::take(&mut requests.open)
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("is_asked", &self.is_asked()).finish_non_exhaustive()
    }
}

/// Has nobody ask in vain, however a run ends.
pub(super) struct Closing(pub(super) Arc<Control>);

impl Drop for Closing {
    fn drop(&mut self) {
        let mut requests = self.0.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.is_over = true;
        let open = std::mem::take(&mut requests.open);
        drop(requests);
        drop(open);
    }
}

/// What is known of a source beside its packets.
pub(super) struct SourceReport {
    ingress_counts: Vec<IngressCounts>,
    truncation: Option<Truncation>,
    findings: Findings,
    files: Vec<FileReport>,
    stopped: bool,
    /// The time of packets, where it goes on without them, and nanoseconds from there to wall time.
    now: Option<Timestamp>,
    wall_offset: i64,
}

impl Intake<'_> {
    pub(super) fn report(&mut self) -> Result<SourceReport, Error> {
        Ok(SourceReport {
            ingress_counts: self.source.ingress_counts()?,
            truncation: self.source.truncation().cloned(),
            findings: self.source.findings(),
            files: self.source.files(),
            stopped: self.stop.load(Ordering::Relaxed),
            now: self.source.now(),
            wall_offset: self.source.wall_offset(),
        })
    }
}

impl Lifecycle<'_, '_> {
    /// Does what others ask for, but for reloads and changes of rules, which are to be made ready first.
    pub(super) fn serve(
        &mut self,
        at: Position,
        runner: &mut impl Runner,
        outlet: &mut Outlet<'_>,
        source: &mut dyn FnMut() -> Result<SourceReport, Error>,
    ) -> Result<(), Error> {
        let requests = self.control().take();
        if requests.is_empty() {
            return Ok(());
        }
        for request in requests {
            match request {
                Request::Counters(answer) => {
                    let counted = runner.counted(self.chain())?;
                    self.count(counted, source(), outlet, answer);
                }
                Request::Save(answer) => answer(if self.saves() {
                    let state = runner.save(self.chain())?;
                    self.save(&at.date(self.chain(), state))
                } else {
                    Err("the run has no file for its state".into())
                }),
                Request::Flows(query, answer) => {
                    let SourceReport { now, wall_offset, .. } = source()?;
                    let now = now.map(Timestamp::as_nanos).or(at.time).unwrap_or_default();
                    answer(match Scan::list(self.chain(), &query, now) {
                        Ok(scan) => Ok(scan.listed(runner.list(self.chain(), &scan)?, now, wall_offset)),
                        Err(why) => Err(why),
                    });
                }
                Request::Remove(removal, answer) => answer(match Scan::remove(self.chain(), &removal) {
                    Ok(scan) => Ok(scan.removed(runner.remove(self.chain(), &scan, outlet)?)),
                    Err(why) => Err(why),
                }),
                Request::Change(change, answer) => self.await_change(change, answer),
                Request::Reload(answer) => {
                    self.control().reload.store(true, Ordering::Relaxed);
                    self.await_reload(answer);
                }
            }
        }
        Ok(())
    }

    fn count(
        &mut self,
        counted: WorkerReport,
        source: Result<SourceReport, Error>,
        outlet: &Outlet<'_>,
        answer: Counted,
    ) {
        match source {
            Ok(source) => answer(Ok(self.outcome(counted, source, outlet))),
            Err(error) => answer(Err(error.to_string())),
        }
    }

    /// What the run comes to with what its chain has counted.
    pub(super) fn outcome(
        &mut self,
        counted: WorkerReport,
        source: SourceReport,
        outlet: &Outlet<'_>,
    ) -> Outcome {
        let WorkerReport { mut reports, mut top_flows, flows, state } = counted;
        for (function, report) in reports.iter_mut().enumerate() {
            outlet.report_log(function, &mut **report);
        }
        top_flows.merge(&self.top_flows);
        let egress_counts = outlet.outputs.egress.as_ref().map(|egress| egress.egress_counts());
        let chain: &Chain = self.chain();
        // What a function has to itself it reports.
        let named = chain.layout.definitions.iter().zip(flows).filter(|(used, _)| !used.is_own);
        let mut outcome = Outcome {
            verdicts: outlet.verdicts,
            wire_bytes: outlet.wire_bytes,
            functions: chain.functions.iter().map(|function| function.name()).zip(reports).collect(),
            flows: named.map(|(used, counts)| (used.name.clone(), counts)).collect(),
            top_flows,
            truncation: source.truncation,
            findings: source.findings,
            files: source.files,
            stopped: source.stopped,
            elapsed: self.begun.elapsed(),
            shares: None,
            unfinished: Unfinished::default(),
            reloads: self.reloads,
            rule_changes: self.rule_changes,
            replaced: self.replaced.clone(),
            replaced_before: self.replaced_before,
            state,
            interfaces: Interface::all(source.ingress_counts, egress_counts),
            written: outlet.outputs.written(),
            reports: None,
            exported: outlet.outputs.exported(),
        };
        for (name, counts) in &self.gone {
            outcome.add_counts(name.clone(), *counts);
        }
        outcome
    }
}
