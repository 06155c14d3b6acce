//! JSON lines, one record each, keys named after IPFIX information elements (IANA registry; RFC 5103 for the reverse
//! ones). Times are since the epoch, in the unit that their names end in; octets are IP bytes, addresses are as RFC 5952 has
//! them.

use std::fmt::Write;
use std::net::IpAddr;

use packetloom_packet::{FlowRecord, PacketRecord};

use crate::fields::{Column, Value};

/// Appends a record with the basic fields and a newline to `line`.
///
/// Reverse counters are there even when they are 0; reverse times only when there was a packet that way, and TCP
/// flags only for TCP.
pub fn write_record(line: &mut String, record: &FlowRecord) {
    field(line, "{\"flowStartMilliseconds\":", record.start().as_millis());
    field(line, ",\"flowEndMilliseconds\":", record.end().as_millis());
    write_addresses(line, record.source, record.destination);
    field(line, ",\"sourceTransportPort\":", record.source_port.into());
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

/// The same with any fields: those that say nothing of this record are left out. Several names are an array.
pub(crate) fn write_columns(line: &mut String, record: &FlowRecord, columns: &[Column]) {
    let version = usize::from(record.source.is_ipv6());
    let mut before = '{';
    for column in columns {
        let Some(value) = column.value(record) else { continue };
        line.push(before);
        before = ',';
        line.push('"');
        line.push_str(column.names()[version]);
        line.push_str("\":");
        match value {
            Value::Number(value) => line.push_str(itoa::Buffer::new().format(value)),
            Value::Address(address) => quoted(line, |line| write_address(line, address)),
            Value::Mac(address) => quoted(line, |line| write_mac(line, address)),
            Value::Text(text) => match column.field.names(record).nth(1) {
                None => write_text(line, text),
                Some(_) => write_list(line, column.field.names(record)),
            },
        }
    }
    // Records that say nothing are objects too.
    line.push_str(if before == '{' { "{}\n" } else { "}\n" });
}

fn write_text(line: &mut String, text: &str) {
    // Writing to a String cannot fail.
    let _ = write!(line, "{}", serde_json::Value::from(text));
}

fn write_list<'a>(line: &mut String, texts: impl Iterator<Item = &'a str>) {
    let mut before = '[';
    for text in texts {
        line.push(before);
        before = ',';
        write_text(line, text);
    }
    line.push(']');
}

fn quoted(line: &mut String, write: impl FnOnce(&mut String)) {
    line.push('"');
    write(line);
    line.push('"');
}

/// As IEEE 802 and RFC 9542 write it: bytes in hexadecimal with colons between them.
pub(crate) fn write_mac(line: &mut String, address: [u8; 6]) {
    for (number, byte) in address.into_iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(line, "{}{byte:02x}", if number > 0 { ":" } else { "" });
    }
}

/// Appends the fields of a packet, without the braces around them: what a log adds to them stands in the same object.
///
/// Ports, ICMP type and code, and TCP flags only where the packet has them; `fragment` only where it is one.
pub fn write_packet(line: &mut String, packet: &PacketRecord) {
    field(line, "\"observationTimeMicroseconds\":", packet.time.as_micros());
    write_addresses(line, packet.source, packet.destination);
    field(line, ",\"protocolIdentifier\":", packet.protocol.into());
    if let Some((source, destination)) = packet.ports {
        field(line, ",\"sourceTransportPort\":", source.into());
        field(line, ",\"destinationTransportPort\":", destination.into());
    }
    if let Some((kind, code)) = packet.icmp {
        let names = match packet.source {
            IpAddr::V4(_) => [",\"icmpTypeIPv4\":", ",\"icmpCodeIPv4\":"],
            IpAddr::V6(_) => [",\"icmpTypeIPv6\":", ",\"icmpCodeIPv6\":"],
        };
        field(line, names[0], kind.into());
        field(line, names[1], code.into());
    }
    if let Some(flags) = packet.tcp_flags {
        field(line, ",\"tcpControlBits\":", flags.into());
    }
    if let Some(fragment) = packet.fragment {
        line.push_str(",\"fragment\":\"");
        line.push_str(fragment.name());
        line.push('"');
    }
    field(line, ",\"ipTotalLength\":", packet.bytes.into());
    if packet.mark != 0 {
        field(line, ",\"mark\":", packet.mark.into());
    }
}

#[inline]
fn field(line: &mut String, name: &str, value: u64) {
    line.push_str(name);
    line.push_str(itoa::Buffer::new().format(value));
}

fn write_addresses(line: &mut String, source: IpAddr, destination: IpAddr) {
    let [from, to] = match source {
        IpAddr::V4(_) => [",\"ipVersion\":4,\"sourceIPv4Address\":\"", "\",\"destinationIPv4Address\":\""],
        IpAddr::V6(_) => [",\"ipVersion\":6,\"sourceIPv6Address\":\"", "\",\"destinationIPv6Address\":\""],
    };
    line.push_str(from);
    write_address(line, source);
    line.push_str(to);
    write_address(line, destination);
    line.push('"');
}

pub(crate) fn write_address(line: &mut String, address: IpAddr) {
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
    use packetloom_packet::{EndReason, Fragment, HalfFlow, Timestamp};
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
            more: None,
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
    fn a_packet_has_the_fields_that_it_has() {
        let plain = PacketRecord {
            time: Timestamp::from_nanos(1_500_999),
            source: "192.0.2.1".parse().unwrap(),
            destination: "198.51.100.2".parse().unwrap(),
            protocol: 47,
            ports: None,
            icmp: None,
            tcp_flags: None,
            fragment: None,
            bytes: 24,
            mark: 0,
        };
        let v6 = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let v6 = PacketRecord { source: v6[0], destination: v6[1], ..plain };
        for (packet, expected) in [
            (plain, json!({})),
            (PacketRecord { mark: u32::MAX, ..plain }, json!({ "mark": u32::MAX })),
            (
                PacketRecord { ports: Some((1, 65_535)), tcp_flags: Some(0), ..plain },
                json!({ "sourceTransportPort": 1, "destinationTransportPort": 65_535, "tcpControlBits": 0 }),
            ),
            (PacketRecord { icmp: Some((8, 0)), ..plain }, json!({ "icmpTypeIPv4": 8, "icmpCodeIPv4": 0 })),
            (PacketRecord { icmp: Some((1, 4)), ..v6 }, json!({ "icmpTypeIPv6": 1, "icmpCodeIPv6": 4 })),
            (PacketRecord { fragment: Some(Fragment::First), ..v6 }, json!({ "fragment": "first" })),
            (PacketRecord { fragment: Some(Fragment::Later), ..plain }, json!({ "fragment": "later" })),
        ] {
            let mut text = String::from("{");
            write_packet(&mut text, &packet);
            let mut found: Value = serde_json::from_str(&(text + "}")).unwrap();
            let version = if packet.source.is_ipv4() { 4 } else { 6 };
            for (key, value) in [
                ("observationTimeMicroseconds", json!(1_500)),
                ("ipVersion", json!(version)),
                (&*format!("sourceIPv{version}Address"), json!(packet.source)),
                (&*format!("destinationIPv{version}Address"), json!(packet.destination)),
                ("protocolIdentifier", json!(47)),
                ("ipTotalLength", json!(24)),
            ] {
                assert_eq!(found.as_object_mut().unwrap().remove(key), Some(value), "{key}");
            }
            assert_eq!(found, expected);
        }
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
