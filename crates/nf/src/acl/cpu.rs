//! The batch form: keys of the packets that still pass, one call of the classifier for each family.

use std::ops::Range;
use std::sync::Arc;

use packetloom_classify::{Classifier, NO_RULE};
use packetloom_packet::batch::Keys;
use packetloom_packet::{Batch, MatchKey4, MatchKey6, Verdict};

use super::{AclReport, List};
use crate::{Function, Records, Report};

pub(super) struct AclCpu {
    list: Arc<List>,
    classifier: Arc<dyn Classifier>,
    report: AclReport,
    v4: Passing<MatchKey4>,
    v6: Passing<MatchKey6>,
}

/// Keys of the packets that still pass, gathered so that the classifier sees no others.
pub(super) struct Passing<K> {
    pub(super) keys: Vec<K>,
    frames: Vec<u32>,
    pub(super) first: Vec<u32>,
}

impl<K: Copy> Passing<K> {
    pub(super) fn new() -> Self {
        Self { keys: Vec::new(), frames: Vec::new(), first: Vec::new() }
    }

    /// Takes those of the frames `within`.
    pub(super) fn gather(&mut self, keys: &Keys<K>, verdicts: &[Verdict], within: Range<usize>) {
        self.keys.clear();
        self.frames.clear();
        // Keys are in order of their frames.
        let index = |frame: usize| keys.frames.partition_point(|&other| (other as usize) < frame);
        let range = index(within.start)..index(within.end);
        for (key, &frame) in keys.keys[range.clone()].iter().zip(&keys.frames[range]) {
            if verdicts[frame as usize].is_pass() {
                self.keys.push(*key);
                self.frames.push(frame);
            }
        }
        self.first.resize(self.keys.len(), NO_RULE);
    }

    pub(super) fn judge(&self, list: &List, report: &mut AclReport, verdicts: &mut [Verdict]) {
        for (&frame, &first) in self.frames.iter().zip(&self.first) {
            let position = (first != NO_RULE).then_some(first as usize);
            report.count(position);
            verdicts[frame as usize] = list.verdict(position);
        }
    }
}

impl AclCpu {
    pub(super) fn new(list: Arc<List>, classifier: Arc<dyn Classifier>) -> Self {
        let report = AclReport::new(list.clone());
        Self { list, classifier, report, v4: Passing::new(), v6: Passing::new() }
    }
}

impl Function for AclCpu {
    fn process(&mut self, batch: &mut Batch, _records: &mut Records<'_>) {
        let all = 0..batch.len();
        let (verdicts, v4, v6) = batch.judge();
        self.v4.gather(v4, verdicts, all.clone());
        self.classifier.classify_v4(&self.v4.keys, &mut self.v4.first);
        self.v4.judge(&self.list, &mut self.report, verdicts);
        self.v6.gather(v6, verdicts, all);
        self.classifier.classify_v6(&self.v6.keys, &mut self.v6.first);
        self.v6.judge(&self.list, &mut self.report, verdicts);
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
