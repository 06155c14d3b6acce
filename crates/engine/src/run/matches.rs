//! Packets that rules matched, for the capture of these. They come with those that are to be logged, in order of arrival for each function.

use std::sync::Arc;

use packetloom_packet::Batch;

use super::{Outlet, collect};
use crate::{Chain, Error, Plan};

/// What rules matched of the batch that is delivered next.
pub(super) struct Matches {
    chain: Arc<Chain>,
    /// The mark that packets have to carry in the end, if any.
    mark: Option<u32>,
    is_wanted: bool,
    /// The index in the batch, the function, and the rule.
    found: Vec<(u32, usize, u32)>,
    /// Those to be written with their comments; kept for the next ones.
    written: Vec<(usize, Vec<String>)>,
}

impl Matches {
    /// For a plan, whose matches are wanted for their flows alone perhaps.
    pub(super) fn new(plan: &Plan, are_flows_wanted: bool) -> Self {
        let matched = plan.chain.settings.matched.as_ref();
        Self {
            chain: Arc::clone(&plan.chain),
            mark: matched.and_then(|(_, which)| which.mark),
            is_wanted: matched.is_some() || are_flows_wanted,
            found: Vec::new(),
            written: Vec::new(),
        }
    }

    /// Notes that a function's rule decided a frame of the batch.
    pub(super) fn add(&mut self, frame: u32, function: usize, rule: u32) {
        if self.is_wanted {
            self.found.push((frame, function, rule));
        }
    }

    /// Brings what was noted together, frame by frame, and forgets it.
    fn take(&mut self, batch: &Batch) {
        self.written.clear();
        // What one frame met in the order of the chain.
        self.found.sort_unstable();
        for (frame, function, rule) in self.found.drain(..) {
            let frame = frame as usize;
            if self.mark.is_some_and(|mark| batch.mark(frame) != mark) {
                continue;
            }
            // Those that are logged alone are not watched.
            let Some(rule) = self.chain.functions[function].watched(rule) else { continue };
            match self.written.last_mut() {
                Some((last, comments)) if *last == frame => comments.push(rule),
                _ => self.written.push((frame, vec![rule])),
            }
        }
    }
}

impl Outlet<'_> {
    /// Writes frames that rules matched, if they are wanted.
    pub(super) fn write_matched(&mut self, batch: &Batch) -> Result<(), Error> {
        if !self.matches.is_wanted {
            return Ok(());
        }
        self.matches.take(batch);
        let (live, written) = (self.live, &self.matches.written);
        if let Some(flows) = &mut self.outputs.matched_flows {
            collect(flows, batch, written.iter().map(|&(frame, _)| frame));
        }
        Ok(self.outputs.with(
            |outputs| &mut outputs.matched,
            |matched| {
                let frames = written.iter().map(|(frame, comments)| (*frame, &comments[..]));
                matched.write_commented(batch, frames)?;
                if live { matched.flush() } else { Ok(()) }
            },
        )?)
    }
}
