//! The batch form: keys of the packets that still pass, one call of the classifier for each family.

use std::ops::Range;
use std::sync::Arc;

use packetloom_classify::{Classifier, NO_RULE};
use packetloom_packet::batch::{Columns, Keys};
use packetloom_packet::{Batch, MatchKey4, MatchKey6, Verdict};

use super::List;
use super::classes::Ports;
use super::judge::Judge;
use crate::{Found, Function, Logged, Report};

/// What finds the first rule of each packet.
pub(super) trait Finder: Send {
    /// Finds those of the packets of a batch that still pass, and hands them out with the verdicts: all at once or, where rules change
    /// within the batch, in pieces, in order.
    fn find(
        &mut self,
        verdicts: &mut [Verdict],
        keys: (&Keys<MatchKey4>, &Keys<MatchKey6>),
        ports: &Ports<'_>,
        found: impl FnMut(&Passing<MatchKey4>, &Passing<MatchKey6>, &mut [Verdict]),
    );

    /// Passes over packets that were judged elsewhere.
    fn skip(&mut self, packets: usize) {
        let _ = packets;
    }
}

pub(super) struct AclCpu<F> {
    finder: F,
    judge: Judge,
}

/// The packets that still pass, so that the classifier sees no others, and what it finds.
pub(super) struct Passing<K> {
    /// Whether these are all keys of the batch: then they stay where they are.
    is_all: bool,
    /// The keys, if they are not all.
    keys: Vec<K>,
    /// Where each stands among the batch's keys, if they are not all.
    at: Vec<u32>,
    /// The position of the first rule of each that matches.
    pub(super) first: Vec<u32>,
}

impl<K: Copy> Passing<K> {
    pub(super) fn new() -> Self {
        Self { is_all: true, keys: Vec::new(), at: Vec::new(), first: Vec::new() }
    }

    /// Takes those of the frames `within`.
    pub(super) fn gather(&mut self, keys: &Keys<K>, verdicts: &[Verdict], within: Range<usize>) {
        self.is_all = within == (0..verdicts.len()) && verdicts.iter().fold(true, |all, v| all & v.is_pass());
        if self.is_all {
            self.first.resize(keys.keys.len(), NO_RULE);
            return;
        }
        self.keys.clear();
        self.at.clear();
        // Keys are in order of their frames.
        let index = |frame: usize| keys.frames.partition_point(|&other| (other as usize) < frame);
        let range = index(within.start)..index(within.end);
        let places = range.start as u32..;
        for ((key, &frame), at) in keys.keys[range.clone()].iter().zip(&keys.frames[range]).zip(places) {
            if verdicts[frame as usize].is_pass() {
                self.keys.push(*key);
                self.at.push(at);
            }
        }
        self.first.resize(self.keys.len(), NO_RULE);
    }

    /// Their keys, of those that they were gathered from.
    pub(super) fn keys<'a>(&'a self, keys: &'a Keys<K>) -> &'a [K] {
        if self.is_all { &keys.keys } else { &self.keys }
    }

    /// Calls `each` with the place of each packet's key among the batch's, and its frame, in order.
    pub(super) fn each_place(&self, keys: &Keys<K>, mut each: impl FnMut(usize, u32)) {
        if self.is_all {
            return keys.frames.iter().enumerate().for_each(|(place, &frame)| each(place, frame));
        }
        self.at.iter().for_each(|&at| each(at as usize, keys.frames[at as usize]));
    }

    /// Their keys, of those that they were gathered from, and a place for what is found.
    pub(super) fn classify<'a>(&'a mut self, keys: &'a Keys<K>) -> (&'a [K], &'a mut [u32]) {
        (if self.is_all { &keys.keys } else { &self.keys }, &mut self.first)
    }
}

impl<K> Passing<K> {
    /// Puts the position of each packet's rule where its key is.
    pub(super) fn scatter(&self, first: &mut [u32]) {
        if self.is_all {
            first.copy_from_slice(&self.first);
            return;
        }
        for (&at, &rule) in self.at.iter().zip(&self.first) {
            first[at as usize] = rule;
        }
    }

    /// Calls `each` with the frame of each packet, its IP bytes, and the position of its rule, in order.
    #[inline]
    pub(super) fn for_each(&self, keys: &Keys<K>, mut each: impl FnMut(u32, u32, u32)) {
        if self.is_all {
            let packets = keys.frames.iter().zip(&keys.bytes).zip(&self.first);
            packets.for_each(|((&frame, &bytes), &first)| each(frame, bytes, first));
            return;
        }
        // Slices of one length, so that each index is checked once.
        let (frames, bytes) = (&keys.frames[..keys.keys.len()], &keys.bytes[..keys.keys.len()]);
        for (&at, &first) in self.at.iter().zip(&self.first) {
            each(frames[at as usize], bytes[at as usize], first);
        }
    }
}

/// Rules that stay as they are.
pub(super) struct Fixed {
    classifier: Arc<dyn Classifier>,
    v4: Passing<MatchKey4>,
    v6: Passing<MatchKey6>,
}

impl Fixed {
    pub(super) fn new(classifier: Arc<dyn Classifier>) -> Self {
        Self { classifier, v4: Passing::new(), v6: Passing::new() }
    }
}

impl Finder for Fixed {
    fn find(
        &mut self,
        verdicts: &mut [Verdict],
        (v4, v6): (&Keys<MatchKey4>, &Keys<MatchKey6>),
        _: &Ports<'_>,
        mut found: impl FnMut(&Passing<MatchKey4>, &Passing<MatchKey6>, &mut [Verdict]),
    ) {
        let all = 0..verdicts.len();
        self.v4.gather(v4, verdicts, all.clone());
        let (passing, first) = self.v4.classify(v4);
        self.classifier.classify_v4(passing, first);
        self.v6.gather(v6, verdicts, all);
        let (passing, first) = self.v6.classify(v6);
        self.classifier.classify_v6(passing, first);
        found(&self.v4, &self.v6, verdicts);
    }
}

impl<F> AclCpu<F> {
    pub(super) fn new(list: Arc<List>, finder: F) -> Self {
        Self { finder, judge: Judge::new(list) }
    }
}

impl<F: Finder> Function for AclCpu<F> {
    fn process(&mut self, batch: &mut Batch) {
        let Self { finder, judge } = self;
        let Columns { frames, verdicts, v4, v6, port_names, egress, .. } = batch.columns();
        let ports = Ports { frames, egress, names: port_names };
        finder.find(verdicts, (v4, v6), &ports, |found_v4, found_v6, verdicts| {
            judge.judge(v4, found_v4, verdicts);
            judge.judge(v6, found_v6, verdicts);
        });
        judge.mark(batch);
    }

    fn take(&mut self, packets: usize, found: &mut Vec<Found>, batch: &mut Batch) {
        self.finder.skip(packets);
        self.judge.take(found, batch);
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        self.judge.logged(into);
    }

    fn go_on(&mut self, counted: &dyn Report) {
        self.judge.report.go_on_with(counted);
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.judge.report.clone())
    }
}
