//! Flow definitions: which packets belong together, and how long and for how many of them state is kept.
//!
//! Functions that name the same definition share one entry for each flow: the table looks a packet's flow up once, and each
//! function finds its own part of the entry, which is absent until the function has seen a packet of the flow. The entry's
//! lifetime is the definition's: it is dead when the time since the last packet that came to the first of these functions has reached
//! the timeout, judged when the next one comes there.
//!
//! - Shape: an entry takes whole cache lines: 24 bytes (IPv6: 48) and what the functions keep.
//! - Keys are those of the packet as it came to the chain, whatever functions have rewritten since.
//! - Time comes from the packets; time that runs backwards counts as 0.

mod config;
mod cpu;
mod name;
mod oracle;

use std::fmt;

use packetloom_packet::batch::{Columns, Rewritable};
use packetloom_packet::{Batch, Timestamp, Verdict};
pub use packetloom_table::states::{Counts, Entry, MAX_FUNCTIONS, StateAt, entry_bytes, state_words};

pub use self::config::{By, Config, WhenFull};
pub use self::cpu::Flows;
pub use self::name::{FlowName, Top};
pub use self::oracle::{Found, OracleFlow, OracleFlows};
use crate::Report;
use crate::oracle::OraclePacket;
use crate::units::Span;

/// Which packets belong together, and what holds for their state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// What packets of a flow have in common.
    pub by: By,
    /// State is forgotten when its flow was silent for so long.
    pub timeout: Span,
    /// Flows of each IP version at a time, over all workers.
    pub max_flows: usize,
    /// What becomes of a new flow when there are as many.
    pub when_full: WhenFull,
}

impl Definition {
    /// Bytes of an entry of IPv4 and of IPv6 whose functions keep so many words.
    pub fn entry_bytes(&self, words: usize) -> [usize; 2] {
        [entry_bytes(cpu::V4, words), entry_bytes(cpu::V6, words)]
    }
}

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, timeout, max_flows, when_full } = self;
        write!(f, "{by}, forgotten after ")?;
        match timeout.limit() {
            Some(_) => timeout.fmt(f)?,
            None => f.write_str("no time")?,
        }
        write!(f, ", at most {max_flows}, then {when_full}")
    }
}

/// What a function keeps for each flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeps {
    /// The definition's name in the chain file; none for the one that is meant unless another is named.
    pub flows: Option<String>,
    /// What its flows may be.
    pub by: &'static [By],
    /// Words of 64 bits.
    pub words: usize,
}

/// The batch form of a function that keeps state for flows, owned by one worker.
pub trait FlowFunction: Send {
    /// Judges the packets of a batch that still pass, in their order, each with its flow's state.
    fn process(&mut self, batch: &mut Batch, flows: &mut Flows);

    /// What it counted.
    fn report(&self, flows: &Flows) -> Box<dyn Report>;
}

/// The slow, obvious form of such a function.
pub trait FlowOracle {
    /// Judges one packet, and may rewrite its headers. State is kept by [`OracleFlow::life`].
    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow) -> Verdict;

    /// What it counted, in the same form as the function's; of the flows that `flows` says are held.
    fn report(&self, flows: &OracleFlows) -> Box<dyn Report>;
}

/// A packet as a function sees it that keeps state for flows.
#[derive(Debug)]
pub struct Seen<'a, 'b> {
    /// Its index in the batch.
    pub frame: u32,
    /// When it came.
    pub now: Timestamp,
    /// IP bytes.
    pub bytes: u32,
    /// Whether the lower endpoint of its flow sent it.
    pub from_a: bool,
    /// Its place among the keys of its IP version.
    at: u32,
    is_v4: bool,
    columns: &'a mut Columns<'b>,
}

impl Seen<'_, '_> {
    /// Its headers, to be read, as functions before have rewritten them, and to be rewritten.
    #[inline]
    pub fn headers(&mut self) -> Rewritable<'_> {
        if self.is_v4 { self.columns.packet_v4(self.at) } else { self.columns.packet_v6(self.at) }
    }
}
