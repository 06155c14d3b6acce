//! What becomes of packets whose rule is known: verdicts, counters, marks, and who is to be logged.

use std::sync::Arc;

use packetloom_classify::NO_RULE;
use packetloom_packet::batch::Keys;
use packetloom_packet::{Batch, Verdict};

use super::cpu::Passing;
use super::{AclReport, List};
use crate::{Found, Logged};

pub(super) struct Judge {
    pub(super) report: AclReport,
    /// Packets of the batch to be logged: those of one family after those of the other.
    logged: Vec<Logged>,
    /// Frames of the batch that get a mark, and the mark.
    marked: Vec<(u32, u32)>,
}

impl Judge {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self { report: AclReport::new(list), logged: Vec::new(), marked: Vec::new() }
    }

    /// Judges the packets that still pass. What is not wanted costs nothing a packet.
    pub(super) fn judge<K>(&mut self, keys: &Keys<K>, passing: &Passing<K>, verdicts: &mut [Verdict]) {
        let List { settings, logs, marks, .. } = &*self.report.list;
        match (settings.counters, !logs.is_empty() || !marks.is_empty()) {
            (true, false) => self.each::<true, false, K>(keys, passing, verdicts),
            (true, true) => self.each::<true, true, K>(keys, passing, verdicts),
            (false, false) => self.each::<false, false, K>(keys, passing, verdicts),
            (false, true) => self.each::<false, true, K>(keys, passing, verdicts),
        }
    }

    fn each<const COUNTERS: bool, const NOTES: bool, K>(
        &mut self,
        keys: &Keys<K>,
        passing: &Passing<K>,
        verdicts: &mut [Verdict],
    ) {
        let AclReport { list, counters, .. } = &mut self.report;
        let default = list.rules.rules.len();
        let (logged, marked) = (&mut self.logged, &mut self.marked);
        let rules = &list.verdicts[..=default];
        let counters = if COUNTERS { &mut counters[..=default] } else { &mut counters[..] };
        passing.for_each(keys, |frame, bytes, first| {
            let position = default.min(first as usize);
            verdicts[frame as usize] = rules[position];
            if COUNTERS {
                counters[position].add(bytes);
            }
            if NOTES {
                list.note(position, frame, logged, marked);
            }
        });
        if !COUNTERS {
            let by_default = passing.first.iter().filter(|&&first| first == NO_RULE).count();
            counters[0].packets += by_default as u64;
        }
    }

    /// Judges packets whose rules a device found.
    pub(super) fn take(&mut self, found: &mut Vec<Found>, batch: &mut Batch) {
        let (verdicts, _, _) = batch.judge();
        found.retain(|&found| {
            let verdict = self.one(found);
            verdicts[found.frame as usize] = verdict;
            verdict.is_pass()
        });
        self.mark(batch);
    }

    /// Judges a packet by its rule.
    #[inline]
    pub(super) fn one(&mut self, Found { frame, first, bytes }: Found) -> Verdict {
        let AclReport { list, counters, .. } = &mut self.report;
        let default = list.rules.rules.len();
        let position = default.min(first as usize);
        if list.settings.counters {
            counters[position].add(bytes);
        } else if position == default {
            counters[0].packets += 1;
        }
        list.note(position, frame, &mut self.logged, &mut self.marked);
        list.verdicts[position]
    }

    /// Gives packets that were judged their marks.
    pub(super) fn mark(&mut self, batch: &mut Batch) {
        self.marked.drain(..).for_each(|(frame, mark)| batch.set_mark(frame as usize, mark));
    }

    /// Hands out the packets to be logged, in order of arrival.
    pub(super) fn logged(&mut self, into: &mut Vec<Logged>) {
        self.logged.sort_unstable();
        into.append(&mut self.logged);
    }
}

impl List {
    /// Notes what there is to be done with a packet beside its verdict, by the position of its rule or of the default.
    #[inline]
    fn note(&self, position: usize, frame: u32, logged: &mut Vec<Logged>, marked: &mut Vec<(u32, u32)>) {
        if self.logs.get(position).is_some_and(|&log| log) {
            logged.push(Logged::new(frame, position as u32));
        }
        if let Some(&mark) = self.marks.get(position).filter(|&&mark| mark != 0) {
            marked.push((frame, mark));
        }
    }
}
