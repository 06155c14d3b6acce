//! CSV (RFC 4180), one record a line: the values of [`crate::json`] under the same names, in a fixed order; empty
//! where JSON has no such key. No value needs quotes. Lines end in CR LF, as the RFC wants it.

use std::net::IpAddr;

use packetloom_packet::FlowRecord;

use crate::json::write_address;

/// The line of names, with its end.
pub const fn header() -> &'static str {
    "flowStartMilliseconds,flowEndMilliseconds,ipVersion,\
     sourceIPv4Address,destinationIPv4Address,sourceIPv6Address,destinationIPv6Address,\
     sourceTransportPort,destinationTransportPort,protocolIdentifier,\
     packetDeltaCount,octetDeltaCount,reversePacketDeltaCount,reverseOctetDeltaCount,\
     reverseFlowStartMilliseconds,reverseFlowEndMilliseconds,\
     tcpControlBits,reverseTcpControlBits,flowEndReason\r\n"
}

/// Appends a record and the end of its line to `lines`.
pub fn write_record(lines: &mut String, record: &FlowRecord) {
    let mut row = Row { lines };
    row.number(record.start().as_millis());
    row.number(record.end().as_millis());
    row.addresses(record.source, record.destination);
    row.number(record.source_port.into());
    row.number(record.destination_port.into());
    row.number(record.protocol.into());
    row.number(record.forward.packets);
    row.number(record.forward.bytes);
    row.number(record.reverse.packets);
    row.number(record.reverse.bytes);
    let both_ways = record.reverse.packets > 0;
    row.number_if(both_ways, record.reverse.first.as_millis());
    row.number_if(both_ways, record.reverse.last.as_millis());
    let tcp = record.protocol == packetloom_packet::protocol::TCP;
    row.number_if(tcp, record.forward.tcp_flags.into());
    row.number_if(tcp, record.reverse.tcp_flags.into());
    row.lines.push_str(itoa::Buffer::new().format(record.end_reason as u8));
    row.lines.push_str("\r\n");
}

/// A line that is being written; each value has its comma behind it.
struct Row<'a> {
    lines: &'a mut String,
}

impl Row<'_> {
    #[inline]
    fn number(&mut self, value: u64) {
        self.number_if(true, value);
    }

    #[inline]
    fn number_if(&mut self, there: bool, value: u64) {
        if there {
            self.lines.push_str(itoa::Buffer::new().format(value));
        }
        self.lines.push(',');
    }

    fn addresses(&mut self, source: IpAddr, destination: IpAddr) {
        // The source's family decides, as in JSON.
        let v4 = source.is_ipv4();
        self.lines.push_str(if v4 { "4," } else { "6,,," });
        for address in [source, destination] {
            write_address(self.lines, address);
            self.lines.push(',');
        }
        self.lines.push_str(if v4 { ",," } else { "" });
    }
}
