//! A batch on its way through a chain, and what came of it.

use packetloom_io::capture::{EncodedFrames, Resolution};
use packetloom_packet::verdict::VerdictCounts;
use packetloom_packet::{Batch, FlowRecord};

use super::{Expiry, LogEntry, Pipeline};

/// Bytes of encoded records gathered before they are handed on.
pub(crate) const ENCODED: usize = 1 << 16;

/// Flow records gathered before they are handed on.
const FLOWS: usize = 1 << 9;

/// Flow records' or a log's encoded lines, and flow records that are encoded where they are exported.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) lines: String,
    pub(crate) flows: Vec<FlowRecord>,
}

impl Records {
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.flows.is_empty()
    }

    /// Whether they are so many that they are handed on.
    pub(crate) fn are_many(&self) -> bool {
        self.lines.len() >= ENCODED || self.flows.len() >= FLOWS
    }

    /// Takes others behind those that there are.
    pub(crate) fn append(&mut self, others: &mut Self) {
        self.lines.push_str(&others.lines);
        others.lines.clear();
        self.flows.append(&mut others.flows);
    }
}

/// What a batch has brought beside verdicts.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// For each function, its records.
    pub(crate) records: Vec<Records>,
    /// For each function, the packets that are to be logged.
    pub(crate) log_entries: Vec<Vec<LogEntry>>,
}

impl Effects {
    /// Takes what came of a batch that a pipeline has judged, behind what was taken before; records only where there are many, or somebody waits for
    /// them.
    pub(crate) fn take(&mut self, pipeline: &mut Pipeline, live: bool) {
        let functions = pipeline.len();
        self.records.resize_with(functions, Records::default);
        self.log_entries.resize_with(functions, Vec::new);
        for (into, from) in self.records.iter_mut().zip(pipeline.records()) {
            match from.are_many() || live {
                true if into.is_empty() => std::mem::swap(into, from),
                true => into.append(from),
                false => {}
            }
        }
        for (into, from) in self.log_entries.iter_mut().zip(pipeline.log_entries()) {
            into.append(from);
        }
    }

    /// Brings packets that are to be logged into order of arrival, after those of shares came one behind the other.
    pub(crate) fn sort(&mut self) {
        self.log_entries.iter_mut().for_each(|entries| entries.sort_unstable_by_key(LogEntry::place));
    }
}

/// A batch, and what is known of it.
pub(crate) struct Work {
    pub(crate) batch: Batch,
    pub(crate) expiry: Option<Expiry>,
    /// For each share the indices of its packets, where they are partitioned.
    pub(crate) indices: Vec<Vec<u32>>,
    pub(crate) effects: Effects,
    pub(crate) counts: VerdictCounts,
    pub(crate) wire_bytes: u64,
    /// The frames that pass, where they are wanted.
    pub(crate) passed: EncodedFrames,
}

impl Work {
    /// A place for a batch of up to `size` packets, which has so many shares.
    pub(crate) fn new(size: usize, shares: usize) -> Self {
        Self {
            batch: Batch::new(size),
            expiry: None,
            indices: vec![Vec::new(); shares],
            effects: Effects::default(),
            counts: VerdictCounts::default(),
            wire_bytes: 0,
            passed: EncodedFrames::default(),
        }
    }

    /// Takes what came of the batch, which one pipeline judged as a whole.
    pub(crate) fn take(&mut self, pipeline: &mut Pipeline) {
        self.effects.take(pipeline, self.expiry.is_some());
    }

    /// Takes what came of a share of the batch that was gathered by [`Self::indices`], but for its records; to be followed by [`Effects::sort`].
    pub(crate) fn merge(&mut self, share: usize, batch: &Batch, effects: &mut Effects) {
        let indices = &self.indices[share];
        self.batch.merge(batch, indices);
        let all = &mut self.effects.log_entries;
        if all.len() < effects.log_entries.len() {
            all.resize_with(effects.log_entries.len(), Vec::new);
        }
        for (all, own) in all.iter_mut().zip(&mut effects.log_entries) {
            let in_whole = |entry: LogEntry| LogEntry { frame: indices[entry.frame as usize], ..entry };
            all.extend(own.drain(..).map(in_whole));
        }
    }

    /// Counts, and encodes the frames that pass, where they are wanted.
    pub(crate) fn finish(&mut self, resolution: Option<Resolution>) {
        self.counts = VerdictCounts::of(self.batch.verdicts());
        self.wire_bytes = self.batch.frames().iter().map(|frame| u64::from(frame.wire_len)).sum();
        match resolution {
            Some(resolution) => self.passed.encode_passed(&self.batch, resolution),
            None => self.passed.clear(),
        }
    }
}
