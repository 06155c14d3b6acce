//! CSV (RFC 4180), one record a line: the values of [`crate::json`] under the same names, empty where JSON has no such key. Of a field
//! whose name says the version of IP there are two columns, of which one is empty. Several names have `;` between them; one in a name is `\059`. Lines end in
//! CR LF, as the RFC wants it.

use packetloom_packet::FlowRecord;

use crate::fields::{Column, Value};
use crate::json::{write_address, write_mac};

/// The line of names, with its end.
pub(crate) fn header(columns: &[Column]) -> String {
    let names = columns.iter().flat_map(|column| {
        let [v4, v6] = column.names();
        [Some(v4), (v4 != v6).then_some(v6)].into_iter().flatten()
    });
    let names: Vec<_> = names.collect();
    names.join(",") + "\r\n"
}

/// Appends a record and the end of its line to `lines`.
pub(crate) fn write_record(lines: &mut String, record: &FlowRecord, columns: &[Column]) {
    let is_v4 = record.source.is_ipv4();
    for (number, column) in columns.iter().enumerate() {
        let [v4, v6] = column.names();
        let is_split = v4 != v6;
        lines.push_str(if number > 0 { "," } else { "" });
        lines.push_str(if is_split && !is_v4 { "," } else { "" });
        if column.field.is_name() {
            let names: Vec<_> = column.field.names(record).map(|name| name.replace(';', "\\059")).collect();
            write_text(lines, &names.join(";"));
        } else if let Some(value) = column.value(record) {
            write_value(lines, value);
        }
        lines.push_str(if is_split && is_v4 { "," } else { "" });
    }
    lines.push_str("\r\n");
}

fn write_value(lines: &mut String, value: Value<'_>) {
    match value {
        Value::Number(value) => lines.push_str(itoa::Buffer::new().format(value)),
        Value::Address(address) => write_address(lines, address),
        Value::Mac(address) => write_mac(lines, address),
        Value::Text(text) => write_text(lines, text),
    }
}

fn write_text(lines: &mut String, text: &str) {
    if text.contains([',', '"', '\r', '\n']) {
        lines.push('"');
        lines.push_str(&text.replace('"', "\"\""));
        lines.push('"');
    } else {
        lines.push_str(text);
    }
}
