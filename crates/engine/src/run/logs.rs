//! The functions' logs. The reading thread keeps them: it alone meets the packets of all workers in order of arrival, so what
//! is logged does not depend on the number of workers.

use std::sync::Arc;

use packetloom_nf::{FunctionSpec, Log, Offsets, Report};
use packetloom_packet::PacketRecord;

use super::{ENCODED, Matches, Outlet};
use crate::pipeline::{Before, LogEntry};
use crate::{Error, Plan};

/// For each function its log, if it has one, and lines to be written.
pub(super) struct Logs(Vec<(Option<Box<dyn Log>>, String)>);

impl Logs {
    pub(super) fn new(functions: &[Arc<dyn FunctionSpec>]) -> Self {
        Self(functions.iter().map(|function| (function.log(), String::new())).collect())
    }
}

impl Outlet<'_> {
    /// Logs packets of a batch that is not delivered yet, in order, and forgets them.
    pub(super) fn log_batch(&mut self, function: usize, entries: &mut Vec<LogEntry>) -> Result<(), Error> {
        let before = self.verdicts.received();
        for LogEntry { frame, rule, packet, offsets } in entries.drain(..) {
            self.log(function, rule, before + u64::from(frame), &packet, offsets.as_deref())?;
        }
        if self.live { self.write_log(function) } else { Ok(()) }
    }

    /// Logs the packet of a batch that is not delivered yet that has this number in the run, from 0.
    pub(super) fn log(
        &mut self,
        function: usize,
        rule: u32,
        number: u64,
        packet: &PacketRecord,
        offsets: Option<&Offsets>,
    ) -> Result<(), Error> {
        self.matches.add((number - self.verdicts.received()) as u32, function, rule);
        let (Some(log), lines) = &mut self.logs.0[function] else { return Ok(()) };
        log.log(lines, rule, number, packet, offsets);
        if lines.len() >= ENCODED { self.write_log(function) } else { Ok(()) }
    }

    /// Writes what is logged so far, where somebody may wait for it.
    pub(super) fn write_logs(&mut self) -> Result<(), Error> {
        if !self.live {
            return Ok(());
        }
        (0..self.logs.0.len()).try_for_each(|function| self.write_log(function))
    }

    fn write_log(&mut self, function: usize) -> Result<(), Error> {
        let mut lines = std::mem::take(&mut self.logs.0[function].1);
        self.write_lines(function, &mut lines)?;
        self.logs.0[function].1 = lines;
        Ok(())
    }

    /// Ends the logs.
    pub(super) fn finish_logs(&mut self) -> Result<(), Error> {
        (0..self.logs.0.len()).try_for_each(|function| self.finish_log(function))
    }

    /// Ends a function's log.
    pub(super) fn finish_log(&mut self, function: usize) -> Result<(), Error> {
        if let (Some(log), lines) = &mut self.logs.0[function] {
            log.finish(lines);
            self.write_log(function)?;
        }
        Ok(())
    }

    /// Makes what a function's log has counted part of its report.
    pub(super) fn report_log(&self, function: usize, report: &mut dyn Report) {
        if let (Some(log), _) = &self.logs.0[function] {
            report.merge(&*log.report());
        }
    }

    /// Goes on with another chain, whose functions were these before.
    pub(super) fn follow(&mut self, plan: &Plan, before: &[Before]) {
        let functions = &plan.chain().functions;
        let mut old = std::mem::take(&mut self.logs.0);
        self.logs = Logs::new(functions);
        for (new, before) in self.logs.0.iter_mut().zip(before) {
            match *before {
                Before::None => {}
                Before::Same(before) => *new = std::mem::take(&mut old[before]),
                Before::OtherRules(before) => {
                    let (log, lines) = std::mem::take(&mut old[before]);
                    if let (Some(new), Some(old)) = (&mut new.0, log) {
                        new.go_on(&*old);
                    }
                    new.1 = lines;
                }
            }
        }
        self.outputs_of = self.outputs_of(plan);
        self.exporters_of = self.exporters_of(plan);
        self.matches = Matches::new(plan, self.outputs.matched_flows.is_some());
    }
}
