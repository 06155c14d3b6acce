#![doc = include_str!("README.md")]

mod layout;
mod masks;

use std::fmt;
use std::str::FromStr;

use crate::compiled::{CompiledRule, MatchKey};
use crate::tuples::Growing;
use crate::{Kind, RuleSet, tuple_merge, tuple_space};

/// The functions that look packets up, and the kernel that does so for keys.
const RULES: &str = include_str!("rules.kernel.c");
const KEYS: &str = include_str!("keys.kernel.c");
/// Masks become part of a kernel's text where there are no more than these; a kernel for more would not fit the instruction cache.
const MAX_MASKS_IN_TEXT: usize = 64;
/// The same for rules that are in no table.
const MAX_TAIL_IN_TEXT: usize = 128;
/// Positions and numbers of classes as the kernel's entries hold them.
const MAX_RULES: usize = 1 << 22;
const MAX_CLASSES: usize = 1 << 16;
/// Classes are kept in local memory where there are no more than these (16 bytes each).
const MAX_LOCAL_CLASSES: usize = 1024;

/// How rules are laid out for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every rule is compared.
    Linear,
    /// A table for each combination of prefix lengths, exact ports and protocol that rules have.
    TupleSpace,
    /// Tables that rules of similar masks share, as a CPU would make them.
    TupleMerge,
    /// Few tables, whose masks are chosen for the whole list by what they cost a device.
    #[default]
    Masks,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Linear, Self::TupleSpace, Self::TupleMerge, Self::Masks];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::TupleSpace => "tuple-space",
            Self::TupleMerge => "tuple-merge",
            Self::Masks => "masks",
        }
    }
}

impl From<Kind> for Algorithm {
    /// What a device does in place of a classifier of the CPU.
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Linear => Self::Linear,
            Kind::TupleSpace => Self::TupleSpace,
            Kind::TupleMerge => Self::TupleMerge,
            Kind::Hybrid => Self::Masks,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no algorithm {name:?}; expected one of {names}")
        })
    }
}

/// What a layout must know of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Items that run in step.
    pub lanes: u32,
    /// Items that a group shall have.
    pub group: u32,
    /// Groups that a compute unit shall hold at a time.
    pub groups_per_unit: u32,
    /// Bytes of local memory that such a group can have.
    pub local_memory: u32,
    /// Packets that a lane takes at a time at most.
    pub packets_a_lane: u32,
    /// Whether masks become part of the kernel's text: faster, but the kernel is compiled for the rules.
    pub specialise: bool,
}

/// Rules of one family as a device needs them: what a kernel's text has of them, and the memory it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// What is defined before the kernels' text.
    pub defines: Vec<(String, String)>,
    /// Bytes of local memory of a group.
    pub local: u32,
    /// Rules in slots.
    pub rules: Vec<u32>,
    /// Kinds of conditions on ports, protocol, flags and fragments.
    pub classes: Vec<u32>,
    /// For hashes, how early the first rule is that has them, or whether there is one.
    pub filter: Vec<u32>,
    /// The tables' masks.
    pub masks: Vec<u32>,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Packets that the lanes of a warp take at a time.
    pub round: u32,
    /// Tables.
    pub tables: usize,
    /// Rules that are in none.
    pub tail: usize,
}

/// Why rules cannot be laid out for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Entries have 24 bits for a position.
    #[error("{0} rules; a device takes {MAX_RULES}")]
    Rules(usize),
    /// Entries have 16 bits for a class.
    #[error("{0} combinations of port ranges, protocol and flags; a device takes {MAX_CLASSES}")]
    Classes(usize),
    /// The filter and what lanes share do not fit.
    #[error("a group of {group} items has {local_memory} bytes of local memory, too few")]
    LocalMemory {
        /// Items of a group.
        group: u32,
        /// Bytes it has.
        local_memory: u32,
    },
}

impl Image {
    /// The rules of a set that packets with such keys can match.
    ///
    /// # Errors
    /// Where there are too many of something.
    pub fn new<K: MatchKey>(rules: &RuleSet, algorithm: Algorithm, target: &Target) -> Result<Self, Error> {
        if rules.rules.len() > MAX_RULES {
            return Err(Error::Rules(rules.rules.len()));
        }
        let rules = CompiledRule::<K>::all(rules);
        let plan = match algorithm {
            Algorithm::Linear => Plan { tables: Vec::new(), tail: rules },
            Algorithm::TupleSpace => Plan { tables: tuple_space::grow(&rules), tail: Vec::new() },
            Algorithm::TupleMerge => {
                let (tables, tail) = tuple_merge::grow(&rules);
                Plan { tables, tail }
            }
            Algorithm::Masks => masks::plan(&rules),
        };
        layout::image(plan, target)
    }

    /// The text of a kernel for keys in an array. `classify` takes what the define `CLASSIFY_PARAMETERS` says: keys, positions (out), the
    /// first key and the one after the last (`u32`), and [`Image::rules`], [`Image::classes`], [`Image::filter`] and [`Image::masks`].
    pub fn keys_kernel(&self) -> String {
        self.rounds() + "#line 1 \"keys.kernel.c\"\n" + KEYS
    }

    /// The text of functions that look packets up, for a kernel that takes them in rounds.
    pub fn rounds(&self) -> String {
        self.functions("x") + &format!("#define ROUND_BITS {}\n", self.round.ilog2())
    }

    /// The text of functions that look packets up, for a kernel that may have several such; `name` is what they are called, with an
    /// `x` that stands for the name as `rules.kernel.c` has it.
    pub fn functions(&self, name: &str) -> String {
        let mut text = format!("#define NAME(x) {name}\n");
        // The same each time, also for what stands behind.
        layout::constants().for_each(|(name, value)| text += &format!("#define {name} {value:#x}u\n"));
        for (name, value) in &self.defines {
            text += &format!("#define {name} {value}\n");
        }
        text += "#line 1 \"rules.kernel.c\"\n";
        text += RULES;
        text += "#undef NAME\n";
        for (name, _) in &self.defines {
            let name = name.split_once('(').map_or(&name[..], |(name, _)| name);
            text += &format!("#undef {name}\n");
        }
        text
    }

    /// Bytes of device memory that it takes.
    pub fn memory(&self) -> usize {
        4 * (self.rules.len() + self.classes.len() + self.filter.len() + self.masks.len())
    }
}

/// Rules under masks, and those that are under none.
struct Plan<K> {
    tables: Vec<Growing<K>>,
    tail: Vec<CompiledRule<K>>,
}
