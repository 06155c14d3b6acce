#![doc = include_str!("README.md")]

use packetloom_packet::{MatchKey4, MatchKey6};

use crate::compiled::{CompiledRule, MatchKey};
use crate::{Classifier, Kind, NO_RULE, RuleSet};

/// Every rule in turn.
#[derive(Debug)]
pub struct Linear {
    v4: Vec<CompiledRule<MatchKey4>>,
    v6: Vec<CompiledRule<MatchKey6>>,
}

impl Linear {
    /// Of the rules at `positions` alone, which are in order.
    pub(crate) fn of(rules: &RuleSet, positions: &[u32]) -> Self {
        fn some<K: MatchKey>(rules: &RuleSet, positions: &[u32]) -> Vec<CompiledRule<K>> {
            positions.iter().filter_map(|&at| CompiledRule::new(&rules.rules[at as usize], at)).collect()
        }
        Self { v4: some(rules, positions), v6: some(rules, positions) }
    }

    /// Compiles the rules; nothing else is prepared.
    pub fn build(rules: &RuleSet) -> Self {
        Self { v4: CompiledRule::all(rules), v6: CompiledRule::all(rules) }
    }
}

fn classify<K: MatchKey>(rules: &[CompiledRule<K>], keys: &[K], first: &mut [u32]) {
    for (key, first) in keys.iter().zip(first) {
        *first = rules.iter().find(|rule| rule.matches(key)).map_or(NO_RULE, |rule| rule.position);
    }
}

impl Classifier for Linear {
    fn kind(&self) -> Kind {
        Kind::Linear
    }

    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        classify(&self.v4, keys, first);
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        classify(&self.v6, keys, first);
    }
}
