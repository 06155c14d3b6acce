//! Alerts: what is said of a packet for each signature that it has, as far as a token bucket lets it.

mod eve;

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use packetloom_packet::{DropReason, PacketRecord, Verdict};
use schemars::JsonSchema;
use serde::Deserialize;

pub use self::eve::Line as EveLine;
use self::eve::{protocol, timestamp};
use crate::log_rate::{Bucket, LogCounts, LogSettings};
use crate::units::Rate;
use crate::{Log, Offset, Offsets, Report};

/// Alerts in a time unless a chain file says otherwise: no limit, since they are what was asked for.
pub fn default_rate() -> Rate {
    Rate::UNLIMITED
}

/// What becomes of packets that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// They go on.
    #[default]
    Pass,
    /// They are dropped.
    Drop,
}

impl Action {
    /// The verdict on them; they are dropped for this reason.
    pub(crate) const fn verdict(self, reason: DropReason) -> Verdict {
        match self {
            Self::Pass => Verdict::Pass,
            Self::Drop => Verdict::Drop(reason),
        }
    }

    /// What a plan says of them.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "are dropped",
        }
    }
}

/// What an alert says of its signature.
pub(crate) struct Alert<'a> {
    pub(crate) gid: Option<u32>,
    pub(crate) id: u32,
    pub(crate) revision: Option<u32>,
    pub(crate) name: Cow<'a, str>,
    pub(crate) category: Option<&'a str>,
    pub(crate) severity: Option<u8>,
}

/// Signatures that alerts are of.
pub(crate) trait Signatures: Send + Sync + 'static {
    /// One of them.
    fn alert(&self, number: u32) -> Alert<'_>;
    /// What becomes of packets that have one.
    fn action(&self) -> Action;
    /// Whether lines are for people.
    fn is_plain(&self) -> bool {
        false
    }
    /// A report with these counts and nothing else.
    fn report_of(self: Arc<Self>, log: LogCounts) -> Box<dyn Report>;
}

/// The log of one run.
pub(crate) struct AlertLog<S> {
    signatures: Arc<S>,
    bucket: Bucket,
    counts: LogCounts,
    /// Alerts suppressed since the last one that was written.
    since: u64,
}

impl<S: Signatures> AlertLog<S> {
    pub(crate) fn new(signatures: Arc<S>, settings: &LogSettings) -> Self {
        let bucket = Bucket::new(settings.rate, settings.burst);
        Self { signatures, bucket, counts: LogCounts::default(), since: 0 }
    }

    /// What is said of alerts that were left out.
    fn write_suppressed(&self, lines: &mut String, count: u64) {
        // Writing to a String cannot fail.
        let _ = if self.signatures.is_plain() {
            writeln!(lines, "# {count} more, over the rate")
        } else {
            writeln!(lines, "{{\"suppressed\":{count}}}")
        };
    }
}

/// A line for people: the packet, what was found in it, and where if that is known.
fn write_plain(
    lines: &mut String,
    name: &str,
    number: u64,
    packet: &PacketRecord,
    offsets: Option<&Offsets>,
) {
    let end = |address: std::net::IpAddr, port: Option<u16>| match (address, port) {
        (address, None) => address.to_string(),
        (address, Some(port)) => std::net::SocketAddr::new(address, port).to_string(),
    };
    let source = end(packet.source, packet.ports.map(|ports| ports.0));
    let destination = end(packet.destination, packet.ports.map(|ports| ports.1));
    let (time, protocol) = (timestamp(packet.time.as_micros()), protocol(packet.protocol));
    // As above.
    let _ = write!(lines, "{}: {time} {protocol} {source} > {destination}: {name}", number + 1);
    if let Some(Offsets { told, more }) = offsets {
        for (index, Offset { within, begin, .. }) in told.iter().enumerate() {
            let between = if index == 0 { " at" } else { "," };
            let _ = match *within {
                "payload" => write!(lines, "{between} {begin}"),
                within => write!(lines, "{between} {within} {begin}"),
            };
        }
        if *more > 0 {
            let _ = write!(lines, " and {more} more");
        }
    }
    lines.push('\n');
}

impl<S: Signatures> Log for AlertLog<S> {
    fn log(
        &mut self,
        lines: &mut String,
        rule: u32,
        number: u64,
        packet: &PacketRecord,
        offsets: Option<&Offsets>,
    ) {
        if !self.bucket.take(packet.time.as_nanos()) {
            self.counts.suppressed += 1;
            self.since += 1;
            return;
        }
        self.counts.lines += 1;
        let alert = self.signatures.alert(rule);
        let suppressed = std::mem::take(&mut self.since);
        if self.signatures.is_plain() {
            if suppressed > 0 {
                self.write_suppressed(lines, suppressed);
            }
            write_plain(lines, &alert.name, number, packet, offsets);
            return;
        }
        let line = EveLine::new(&alert, self.signatures.action(), number, packet, offsets, suppressed);
        // Text and numbers can always be written as JSON.
        lines.push_str(&serde_json::to_string(&line).unwrap_or_default());
        lines.push('\n');
    }

    fn finish(&mut self, lines: &mut String) {
        if self.since > 0 {
            let count = std::mem::take(&mut self.since);
            self.write_suppressed(lines, count);
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Arc::clone(&self.signatures).report_of(self.counts)
    }
}
