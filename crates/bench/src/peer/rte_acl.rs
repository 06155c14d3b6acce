//! DPDK's access control library.

use std::time::Duration;

use packetloom_classify::formats::Headers;
use packetloom_classify::{NO_RULE, RuleSet};
use serde_json::{Value, json};

use super::dpdk::{self, Index, Keys};
use super::layout::{Rules, Words};
use crate::Error;
use crate::engine::{Engine, milliseconds};

/// rte_acl with indexes for the families that there are headers of.
#[derive(Debug)]
pub(super) struct RteAcl {
    name: String,
    v4: Family,
    v6: Family,
}

/// Headers of one family.
#[derive(Debug)]
struct Family {
    /// None where there is no rule that these headers can meet.
    index: Option<Index>,
    keys: Keys,
    /// Positions plus 1; 0 for none.
    results: Vec<u32>,
}

impl RteAcl {
    pub(super) fn new(rules: &RuleSet, headers: &Headers) -> Result<Self, Error> {
        let (v4, v6) = (Family::new(rules, &headers.v4)?, Family::new(rules, &headers.v6)?);
        let algorithm = v4.index.as_ref().or(v6.index.as_ref()).map_or("unused", Index::algorithm);
        Ok(Self { name: format!("rte_acl {algorithm}"), v4, v6 })
    }

    fn indexes(&self) -> impl Iterator<Item = &Index> {
        [&self.v4, &self.v6].into_iter().filter_map(|family| family.index.as_ref())
    }
}

impl Family {
    fn new<K: Words>(rules: &RuleSet, keys: &[K]) -> Result<Self, Error> {
        let rules = Rules::new(rules, keys)?;
        Ok(Self {
            keys: Keys::new(rules.layout, keys),
            results: vec![0; keys.len()],
            index: if rules.positions.is_empty() { None } else { Some(Index::build(&rules)?) },
        })
    }

    fn pass(&mut self, batch: usize) {
        let Some(index) = &self.index else { return };
        for (number, results) in self.results.chunks_mut(batch).enumerate() {
            index.classify(&self.keys, number * batch, results);
        }
    }

    fn answers(&self) -> impl Iterator<Item = u32> {
        self.results.iter().map(|result| result.checked_sub(1).unwrap_or(NO_RULE))
    }
}

impl Engine for RteAcl {
    fn name(&self) -> &str {
        &self.name
    }

    fn pass(&mut self, batch: usize) {
        self.v4.pass(batch);
        self.v6.pass(batch);
    }

    fn answers(&self) -> Vec<u32> {
        self.v4.answers().chain(self.v6.answers()).collect()
    }

    fn facts(&self) -> Vec<(&'static str, Value)> {
        let build: Duration = self.indexes().map(Index::build_time).sum();
        let bytes: usize = self.indexes().map(Index::bytes).sum();
        vec![
            ("build_ms", milliseconds(build)),
            ("memory_mb", json!((bytes as f64 / 1e4).round() / 100.0)),
            ("peer_version", json!(dpdk::version())),
        ]
    }
}
