//! Alerts as Suricata writes them to eve.json, as far as a packet by itself tells it.

use std::net::IpAddr;

use packetloom_packet::PacketRecord;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Action, Alert};
use crate::{Offset, Offsets};

/// The severity of an alert whose rule has no priority, as Suricata gives it.
const DEFAULT_SEVERITY: u8 = 3;
/// The generator of rules that name none.
const DEFAULT_GENERATOR: u32 = 1;

/// An alert, as a line of eve.json.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "alert")]
pub struct Line<'a> {
    /// When the packet was captured, in UTC.
    timestamp: String,
    /// The packet's number in the run, from 1.
    pcap_cnt: u64,
    /// "alert".
    event_type: &'static str,
    /// Source address.
    src_ip: IpAddr,
    /// Source port, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    /// Destination address.
    dest_ip: IpAddr,
    /// Destination port, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_port: Option<u16>,
    /// The protocol: a name, or three digits.
    proto: String,
    /// Type of ICMP.
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_type: Option<u8>,
    /// Code of ICMP.
    #[serde(skip_serializing_if = "Option::is_none")]
    icmp_code: Option<u8>,
    /// What was found.
    alert: Signature<'a>,
    /// Where its strings lie in the packet, if that was asked for.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    offsets: &'a [Offset],
    /// How many places there are beside those in `offsets`.
    #[serde(skip_serializing_if = "is_zero")]
    more_offsets: u64,
    /// Alerts before this one that the rate left out.
    #[serde(skip_serializing_if = "is_zero")]
    suppressed: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What was found.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "alert-signature")]
struct Signature<'a> {
    /// "allowed", or "blocked" where the packet is dropped.
    action: &'static str,
    /// The rule's generator; 1 unless it names one.
    gid: u32,
    /// The rule's number, or the line of a list.
    signature_id: u32,
    /// The rule's revision; 0 unless it has one.
    rev: u32,
    /// The rule's message, or the pattern.
    signature: &'a str,
    /// The rule's class; empty unless it has one.
    category: &'a str,
    /// The rule's priority; 3 unless it has one.
    severity: u8,
}

/// The time in UTC, to the microsecond, as EVE has it.
pub(super) fn timestamp(micros: u64) -> String {
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = packetloom_packet::date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+0000")
}

/// A protocol as EVE names it.
pub(super) fn protocol(number: u8) -> String {
    match number {
        1 => "ICMP".into(),
        6 => "TCP".into(),
        17 => "UDP".into(),
        47 => "GRE".into(),
        50 => "ESP".into(),
        58 => "IPv6-ICMP".into(),
        132 => "SCTP".into(),
        number => format!("{number:03}"),
    }
}

impl<'a> Line<'a> {
    pub(super) fn new(
        alert: &'a Alert<'_>,
        action: Action,
        number: u64,
        packet: &PacketRecord,
        offsets: Option<&'a Offsets>,
        suppressed: u64,
    ) -> Self {
        Self {
            timestamp: timestamp(packet.time.as_micros()),
            pcap_cnt: number + 1,
            event_type: "alert",
            src_ip: packet.source,
            src_port: packet.ports.map(|ports| ports.0),
            dest_ip: packet.destination,
            dest_port: packet.ports.map(|ports| ports.1),
            proto: protocol(packet.protocol),
            icmp_type: packet.icmp.map(|icmp| icmp.0),
            icmp_code: packet.icmp.map(|icmp| icmp.1),
            alert: Signature {
                action: match action {
                    Action::Pass => "allowed",
                    Action::Drop => "blocked",
                },
                gid: alert.gid.unwrap_or(DEFAULT_GENERATOR),
                signature_id: alert.id,
                rev: alert.revision.unwrap_or(0),
                signature: &alert.name,
                category: alert.category.unwrap_or_default(),
                severity: alert.severity.unwrap_or(DEFAULT_SEVERITY),
            },
            offsets: offsets.map_or(&[], |offsets| &offsets.told),
            more_offsets: offsets.map_or(0, |offsets| offsets.more),
            suppressed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000000+0000");
        assert_eq!(timestamp(951_782_400_000_001), "2000-02-29T00:00:00.000001+0000");
        assert_eq!(timestamp(1_491_603_877_251_547), "2017-04-07T22:24:37.251547+0000");
        assert_eq!(timestamp(4_107_542_399_999_999), "2100-02-28T23:59:59.999999+0000");
        assert_eq!(timestamp(4_107_542_400_000_000), "2100-03-01T00:00:00.000000+0000");
    }
}
