//! Rules, their formats, and the classifiers that find the first rule to match a packet.
//!
//! - [`rule`]: what a rule can ask of a packet.
//! - [`formats`]: rules and headers from text.
//! - [`compiled`]: rules as comparisons over match keys, one form for IPv4 and IPv6.
//! - [`gaps`]: places in a list where something was left out.
//! - [`analysis`]: which rules do nothing, and why.
//! - [`linear`], [`tuple_space`], [`tuple_merge`], [`hybrid`]: classifiers, a folder each, behind [`Classifier`].
//! - [`image`]: rules laid out for a device, and the kernel that reads them.
//! - [`live`]: rules that change while packets are classified.

pub mod analysis;
pub mod compiled;
pub mod formats;
pub mod gaps;
mod huge;
pub mod hybrid;
pub mod image;
mod interfaces;
pub mod linear;
pub mod live;
pub mod rule;
mod states;
pub mod tuple_merge;
pub mod tuple_space;
mod tuples;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use packetloom_packet::{MatchKey4, MatchKey6};

pub use gaps::{Gap, Gaps};
pub use interfaces::Interfaces;
pub use rule::{Action, PacketContext, Rule, RuleSet};
pub use states::{ConnectionState, ConnectionStates};

/// What a classifier answers where no rule matches.
pub const NO_RULE: u32 = u32::MAX;

/// Finds, for each packet of a batch, the first rule that matches it.
pub trait Classifier: Send + Sync + fmt::Debug {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// Bytes that its index holds.
    fn memory(&self) -> usize;

    /// Writes to `first` the position in the rule set of the first rule that matches each key, or [`NO_RULE`].
    /// Both slices have the same length.
    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]);

    /// As [`Classifier::classify_v4`], for IPv6.
    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]);
}

/// The classifiers there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rule, a vector of them at a time.
    Linear,
    /// One hash table for each combination of prefix lengths, ports and protocol.
    TupleSpace,
    /// One hash table for each group of rules with similar prefix lengths.
    TupleMerge,
    /// Class tables and hash tables, as the rules want it.
    #[default]
    Hybrid,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Linear, Self::TupleSpace, Self::TupleMerge, Self::Hybrid];

    /// The name in chain files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::TupleSpace => "tuple-space",
            Self::TupleMerge => "tuple-merge",
            Self::Hybrid => "hybrid",
        }
    }

    /// Builds the index of `rules`.
    pub fn build(self, rules: &RuleSet) -> Arc<dyn Classifier> {
        match self {
            Self::Linear => Arc::new(linear::Linear::build(rules)),
            Self::TupleSpace => Arc::new(tuple_space::TupleSpace::build(rules)),
            Self::TupleMerge => Arc::new(tuple_merge::TupleMerge::build(rules)),
            Self::Hybrid => Arc::new(hybrid::Hybrid::build(rules)),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no classifier {name:?}; expected one of {names}")
        })
    }
}
