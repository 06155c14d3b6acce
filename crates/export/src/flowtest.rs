//! Network profiles of CESNET's FlowTest (<https://github.com/CESNET/FlowTest>, `tools/ft-profiler/README.md`): CSV without addresses, one
//! flow a line. Times are milliseconds since 1970; a profile's time zero is whatever it likes. Bytes are those of IP.

use std::fmt::Write;

use packetloom_packet::FlowRecord;

/// The line of names, with its end.
pub(crate) const HEADER: &str =
    "START_TIME,END_TIME,L3_PROTO,L4_PROTO,SRC_PORT,DST_PORT,PACKETS,BYTES,PACKETS_REV,BYTES_REV\n";

/// Appends a record and the end of its line to `lines`.
pub(crate) fn write_record(lines: &mut String, record: &FlowRecord) {
    let FlowRecord { source_port, destination_port, protocol, forward, reverse, .. } = record;
    let [start, end] = [record.start(), record.end()].map(|time| time.as_millis());
    let version = if record.source.is_ipv4() { 4 } else { 6 };
    // Writing to a String cannot fail.
    let _ = writeln!(
        lines,
        "{start},{end},{version},{protocol},{source_port},{destination_port},{},{},{},{}",
        forward.packets, forward.bytes, reverse.packets, reverse.bytes
    );
}
