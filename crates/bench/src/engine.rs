//! What is compared over headers: a classifier, and the headers in the form it takes.

use std::sync::Arc;
use std::time::Duration;

use packetloom_classify::formats::Headers;
use packetloom_classify::{Classifier, NO_RULE};
use serde_json::{Value, json};

/// A classifier with its headers and room for its answers.
pub trait Engine {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Classifies all headers in batches of `batch`: what is timed.
    fn pass(&mut self, batch: usize);

    /// The last pass's positions of first rules, or [`NO_RULE`]: those of the IPv4 headers, then those of the IPv6 headers.
    fn answers(&self) -> Vec<u32>;

    /// Figures that do not depend on the batch size.
    fn facts(&self) -> Vec<(&'static str, Value)>;
}

/// Time in the unit of reports.
pub(crate) fn milliseconds(time: Duration) -> Value {
    json!(time.as_micros() as f64 / 1000.0)
}

/// One of our own classifiers.
#[derive(Debug)]
pub struct Own<'a> {
    classifier: Arc<dyn Classifier>,
    build: Duration,
    headers: &'a Headers,
    first: (Vec<u32>, Vec<u32>),
}

impl<'a> Own<'a> {
    /// A classifier that took `build` to build.
    pub fn new(classifier: Arc<dyn Classifier>, build: Duration, headers: &'a Headers) -> Self {
        let first = (vec![NO_RULE; headers.v4.len()], vec![NO_RULE; headers.v6.len()]);
        Self { classifier, build, headers, first }
    }
}

impl Engine for Own<'_> {
    fn name(&self) -> &str {
        self.classifier.kind().name()
    }

    fn pass(&mut self, batch: usize) {
        for (keys, first) in self.headers.v4.chunks(batch).zip(self.first.0.chunks_mut(batch)) {
            self.classifier.classify_v4(keys, first);
        }
        for (keys, first) in self.headers.v6.chunks(batch).zip(self.first.1.chunks_mut(batch)) {
            self.classifier.classify_v6(keys, first);
        }
    }

    fn answers(&self) -> Vec<u32> {
        [self.first.0.as_slice(), &self.first.1].concat()
    }

    fn facts(&self) -> Vec<(&'static str, Value)> {
        let megabytes = self.classifier.memory() as f64 / 1e6;
        vec![
            ("build_ms", milliseconds(self.build)),
            ("memory_mb", json!((megabytes * 100.0).round() / 100.0)),
        ]
    }
}
