//! What can go wrong while generating.

use std::io;

/// Why something could not be generated or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// Traffic was asked for without a single flow.
    #[error("at least one flow is needed")]
    NoFlows,

    /// Every flow has at least one packet.
    #[error("{packets} packets cannot make {flows} flows: a flow has at least one packet")]
    TooFewPackets {
        /// Packets asked for.
        packets: u64,
        /// Flows asked for.
        flows: u64,
    },

    /// More packets than [`MAX_PACKETS`](crate::traffic::MAX_PACKETS).
    #[error("{packets} packets are too many: the limit is {limit}")]
    TooManyPackets {
        /// Packets asked for.
        packets: u64,
        /// The most that can be made.
        limit: u64,
    },

    /// More flows than [`MAX_FLOWS`](crate::traffic::MAX_FLOWS), the most the address plan holds.
    #[error("{flows} flows are too many: the limit is {limit}")]
    TooManyFlows {
        /// Flows asked for.
        flows: u64,
        /// The most that can be made.
        limit: u64,
    },

    /// A share that is not a percentage.
    #[error("{what} is {value}, but a share lies between 0 and 100 percent")]
    BadShare {
        /// The option's name.
        what: &'static str,
        /// Its value.
        value: u32,
    },

    /// The capture would end after the last second that a pcap file can hold, in the year 2106.
    #[error("start time and duration pass the last second of a pcap file (2106-02-07T06:28:15Z)")]
    TimeOutOfRange,

    /// A line of a profile that is not as it should be.
    #[error("{name}:{line}: {reason}")]
    BadProfile {
        /// The file.
        name: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it, and what was expected.
        reason: String,
    },

    /// A rule set was asked for without a single rule.
    #[error("at least one rule is needed")]
    NoRules,

    /// More rules than [`MAX_RULES`](crate::rules::MAX_RULES).
    #[error("{count} rules are too many: the limit is {limit}")]
    TooManyRules {
        /// Rules asked for or given.
        count: usize,
        /// The most that can be handled.
        limit: usize,
    },

    /// A rule that no packet could match or that is not written as the type demands.
    #[error("rule {index}: {reason}")]
    BadRule {
        /// The rule's index, from 0.
        index: usize,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// ClassBench's format has no IPv6.
    #[error("item {index} is IPv6, which the ClassBench format cannot express")]
    Ipv6InClassBench {
        /// The rule's or header's index, from 0.
        index: usize,
    },

    /// An unknown name of a rule style.
    #[error("unknown rule style {0:?}: expected acl, fw or ipc")]
    UnknownStyle(String),

    /// The output could not be written.
    #[error(transparent)]
    Io(#[from] io::Error),
}
