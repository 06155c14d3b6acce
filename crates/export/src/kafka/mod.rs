//! Flow records as messages of an Apache Kafka topic, sent by librdkafka, which is found when the first one is to be sent.
//!
//! A message is one record, as a line of [`json`](crate::json) without its end, and has no key. librdkafka puts messages together into
//! batches, and sends them again until a broker has acknowledged them.

mod producer;

use std::collections::BTreeMap;

use crate::fields::Fields;
use crate::messages::Sampling;
pub(crate) use producer::{Full, Producer};

/// What messages have, and how they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Fields of a record.
    pub fields: Fields,
    /// How packets were sampled, if they were.
    pub sampling: Option<Sampling>,
    /// Properties of librdkafka, such as `security.protocol`, and their values. They go before the [`defaults`](Options::DEFAULTS).
    pub properties: BTreeMap<String, String>,
}

impl Options {
    /// Properties that have other values than librdkafka's own where nothing else is said. Messages arrive once and in order of their
    /// partition, and librdkafka keeps as many as may wait for the exporter.
    pub const DEFAULTS: [(&'static str, &'static str); 6] = [
        ("client.id", "packetloom"),
        ("enable.idempotence", "true"),
        ("linger.ms", "50"),
        ("compression.codec", "lz4"),
        ("queue.buffering.max.messages", "131072"),
        ("queue.buffering.max.kbytes", "131072"),
    ];

    /// With librdkafka's properties as they are by default.
    pub const fn new(fields: Fields) -> Self {
        Self { fields, sampling: None, properties: BTreeMap::new() }
    }

    /// # Errors
    ///
    /// Properties that the place itself says, that would hide what becomes of messages, or that have no name; librdkafka checks the others when they are used.
    pub(crate) fn check(&self) -> Result<(), String> {
        for name in self.properties.keys() {
            if name.is_empty() {
                return Err(
                    "a property without a name; expected NAME=VALUE, such as security.protocol=ssl".into()
                );
            }
            if ["bootstrap.servers", "metadata.broker.list"].contains(&name.as_str()) {
                return Err(format!("the property {name}; expected the brokers in kafka://BROKERS/TOPIC"));
            }
            if ["delivery.report.only.error", "transactional.id"].contains(&name.as_str()) {
                return Err(format!(
                    "the property {name} cannot be set: each message is counted when it has arrived"
                ));
            }
        }
        Ok(())
    }
}
