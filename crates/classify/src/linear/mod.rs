#![doc = include_str!("README.md")]

mod list;

use packetloom_packet::{MatchKey4, MatchKey6};

use crate::compiled::CompiledRule;
use crate::{Classifier, Kind, NO_RULE, RuleSet};
use packetloom_simd::Isa;

pub(crate) use list::List;

/// Every rule, a vector of them at a time.
#[derive(Debug)]
pub struct Linear {
    isa: Isa,
    v4: List<MatchKey4>,
    v6: List<MatchKey6>,
}

impl Linear {
    /// Lays the rules out for the best instruction set there is.
    pub fn build(rules: &RuleSet) -> Self {
        Self::with_isa(rules, Isa::detect())
    }

    /// As [`Linear::build`], for the instruction set given.
    pub fn with_isa(rules: &RuleSet, isa: Isa) -> Self {
        Self { isa, v4: List::new(&CompiledRule::all(rules)), v6: List::new(&CompiledRule::all(rules)) }
    }
}

impl Classifier for Linear {
    fn kind(&self) -> Kind {
        Kind::Linear
    }

    fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }

    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        first.fill(NO_RULE);
        self.v4.improve(self.isa, keys, first);
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        first.fill(NO_RULE);
        self.v6.improve(self.isa, keys, first);
    }
}
