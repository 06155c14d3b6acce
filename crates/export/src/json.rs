//! JSON lines, one record each, keys named after IPFIX information elements (IANA registry; RFC 5103 for the reverse
//! ones). Times are milliseconds since the epoch, octets are IP bytes, addresses are as RFC 5952 has them.

use std::fmt::Write;
use std::net::IpAddr;

use packetloom_packet::FlowRecord;

/// Appends a record and a newline to `line`.
///
/// Reverse counters are there even when they are 0; reverse times only when there was a packet that way, and TCP
/// flags only for TCP.
pub fn write_record(line: &mut String, record: &FlowRecord) {
    let mut number = itoa::Buffer::new();
    let mut field = |line: &mut String, name: &str, value: u64| {
        line.push_str(name);
        line.push_str(number.format(value));
    };
    field(line, "{\"flowStartMilliseconds\":", record.start().as_millis());
    field(line, ",\"flowEndMilliseconds\":", record.end().as_millis());
    let (version, source, destination) = match record.source {
        IpAddr::V4(_) => (4, ",\"sourceIPv4Address\":\"", "\",\"destinationIPv4Address\":\""),
        IpAddr::V6(_) => (6, ",\"sourceIPv6Address\":\"", "\",\"destinationIPv6Address\":\""),
    };
    field(line, ",\"ipVersion\":", version);
    line.push_str(source);
    write_address(line, record.source);
    line.push_str(destination);
    write_address(line, record.destination);
    field(line, "\",\"sourceTransportPort\":", record.source_port.into());
    field(line, ",\"destinationTransportPort\":", record.destination_port.into());
    field(line, ",\"protocolIdentifier\":", record.protocol.into());
    field(line, ",\"packetDeltaCount\":", record.forward.packets);
    field(line, ",\"octetDeltaCount\":", record.forward.bytes);
    field(line, ",\"reversePacketDeltaCount\":", record.reverse.packets);
    field(line, ",\"reverseOctetDeltaCount\":", record.reverse.bytes);
    if record.reverse.packets > 0 {
        field(line, ",\"reverseFlowStartMilliseconds\":", record.reverse.first.as_millis());
        field(line, ",\"reverseFlowEndMilliseconds\":", record.reverse.last.as_millis());
    }
    if record.protocol == packetloom_packet::protocol::TCP {
        field(line, ",\"tcpControlBits\":", record.forward.tcp_flags.into());
        field(line, ",\"reverseTcpControlBits\":", record.reverse.tcp_flags.into());
    }
    field(line, ",\"flowEndReason\":", record.end_reason as u64);
    line.push_str("}\n");
}

fn write_address(line: &mut String, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            // The general formatter takes half of the time of a record.
            let mut number = itoa::Buffer::new();
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    line.push('.');
                }
                line.push_str(number.format(octet));
            }
        }
        IpAddr::V6(address) => {
            // Writing to a String cannot fail.
            let _ = write!(line, "{address}");
        }
    }
}

#[cfg(test)]
mod tests {
    use packetloom_packet::{EndReason, HalfFlow, Timestamp};
    use serde_json::{Value, json};

    use super::*;

    fn record(source: &str, destination: &str) -> FlowRecord {
        let forward = HalfFlow {
            first: Timestamp::from_nanos(1_500_000),
            last: Timestamp::from_nanos(2_999_999),
            packets: 2,
            bytes: 120,
            tcp_flags: 0x12,
        };
        FlowRecord {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_port: 1234,
            destination_port: 443,
            protocol: 6,
            forward,
            reverse: HalfFlow::default(),
            end_reason: EndReason::IdleTimeout,
        }
    }

    fn parsed(record: &FlowRecord) -> Value {
        let mut line = String::new();
        write_record(&mut line, record);
        assert_eq!(line.matches('\n').count(), 1);
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn a_one_way_ipv4_record() {
        assert_eq!(
            parsed(&record("192.0.2.1", "10.200.30.255")),
            json!({
                "flowStartMilliseconds": 1, "flowEndMilliseconds": 2, "ipVersion": 4,
                "sourceIPv4Address": "192.0.2.1", "destinationIPv4Address": "10.200.30.255",
                "sourceTransportPort": 1234, "destinationTransportPort": 443, "protocolIdentifier": 6,
                "packetDeltaCount": 2, "octetDeltaCount": 120,
                "reversePacketDeltaCount": 0, "reverseOctetDeltaCount": 0,
                "tcpControlBits": 18, "reverseTcpControlBits": 0, "flowEndReason": 1,
            })
        );
    }

    #[test]
    fn a_two_way_ipv6_record_is_written_as_rfc_5952_says() {
        let mut record = record("2001:db8:0:0:1:0:0:1", "::ffff:192.0.2.1");
        record.protocol = 17;
        record.reverse = HalfFlow {
            first: Timestamp::from_nanos(3_000_000),
            last: Timestamp::from_nanos(4_000_000),
            packets: 1,
            bytes: 70_000,
            tcp_flags: 0,
        };
        let line = parsed(&record);
        assert_eq!(line["sourceIPv6Address"], "2001:db8::1:0:0:1");
        assert_eq!(line["destinationIPv6Address"], "::ffff:192.0.2.1");
        assert_eq!(line["flowEndMilliseconds"], 4);
        assert_eq!(line["reverseFlowStartMilliseconds"], 3);
        assert_eq!(line["reverseOctetDeltaCount"], 70_000);
        assert_eq!(line.get("tcpControlBits"), None);
    }
}
