//! Reads the lines of a profile.

use std::io::{self, BufRead, Read};
use std::net::IpAddr;

use crate::error::GenerateError;

/// The columns, in the order of [`Row`]. Those from [`REQUIRED`] on may be left out.
const COLUMNS: [&str; 12] = [
    "START_TIME",
    "END_TIME",
    "L3_PROTO",
    "L4_PROTO",
    "SRC_PORT",
    "DST_PORT",
    "PACKETS",
    "BYTES",
    "PACKETS_REV",
    "BYTES_REV",
    "SRC_IP",
    "DST_IP",
];
const REQUIRED: usize = 10;

/// Bytes of the longest line: several times what the longest values take.
const LINE: u64 = 1024;

const NANOS: i128 = 1_000_000;

/// A line, as it stands there. Pairs are forward and reverse.
pub(super) struct Row {
    /// Nanoseconds; the end is not before the start.
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) ipv6: bool,
    pub(super) protocol: u8,
    pub(super) ports: [u16; 2],
    pub(super) packets: [u64; 2],
    pub(super) bytes: [u64; 2],
    /// Of the version of IP, if the line names them.
    pub(super) addresses: [Option<IpAddr>; 2],
}

/// Reads one line after the other.
pub(super) struct Reader<'a, R> {
    reader: R,
    name: &'a str,
    /// The number of the present line, from 1.
    number: u64,
    line: Vec<u8>,
    /// The column of each cell of a line.
    columns: Vec<usize>,
}

impl<'a, R: BufRead> Reader<'a, R> {
    /// Reads the line of names.
    pub(super) fn new(reader: R, name: &'a str) -> Result<Self, GenerateError> {
        let mut reader = Self { reader, name, number: 0, line: Vec::new(), columns: Vec::new() };
        let expected =
            || format!("expected a line with the names of columns: {}", COLUMNS[..REQUIRED].join(","));
        if !reader.advance()? {
            return Err(reader.bad(format!("no such line; {}", expected())));
        }
        let mut columns = Vec::new();
        for name in reader.text()?.split(',').map(str::trim) {
            let Some(column) = COLUMNS.iter().position(|known| *known == name) else {
                return Err(reader.bad(format!("{name:?} is no column of a profile; {}", expected())));
            };
            if columns.contains(&column) {
                return Err(reader.bad(format!("{name} comes twice; expected it once")));
            }
            columns.push(column);
        }
        if let Some(missing) = (0..REQUIRED).find(|column| !columns.contains(column)) {
            return Err(reader.bad(format!("{} is missing; {}", COLUMNS[missing], expected())));
        }
        reader.columns = columns;
        Ok(reader)
    }

    /// An error in the present line.
    pub(super) fn bad(&self, reason: String) -> GenerateError {
        GenerateError::BadProfile { name: self.name.to_owned(), line: self.number.max(1), reason }
    }

    /// The next flow, or `None` behind the last.
    pub(super) fn row(&mut self) -> Result<Option<Row>, GenerateError> {
        if !self.advance()? {
            return Ok(None);
        }
        let mut cells = [""; COLUMNS.len()];
        let text = self.text()?;
        let count = text.split(',').count();
        if count != self.columns.len() {
            let expected = self.columns.len();
            return Err(self.bad(format!("{count} cells; expected {expected}, as in the line of names")));
        }
        for (cell, column) in text.split(',').zip(&self.columns) {
            cells[*column] = cell.trim();
        }
        row(&cells).map(Some).map_err(|reason| self.bad(reason))
    }

    /// Goes to the next line with something in it; false at the end.
    fn advance(&mut self) -> Result<bool, GenerateError> {
        loop {
            self.line.clear();
            self.number += 1;
            if self.reader.by_ref().take(LINE + 1).read_until(b'\n', &mut self.line)? == 0 {
                return Ok(false);
            }
            let is_comment = self.line.trim_ascii_start().starts_with(b"#");
            if self.line.len() as u64 > LINE && !self.line.ends_with(b"\n") {
                if !is_comment {
                    return Err(self.bad(format!("longer than {LINE} bytes; expected a flow of a profile")));
                }
                skip_line(&mut self.reader)?;
            }
            if !is_comment && !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn text(&self) -> Result<&str, GenerateError> {
        std::str::from_utf8(&self.line)
            .map_err(|_| self.bad("not text in UTF-8; expected a profile in CSV".into()))
    }
}

/// Reads what is left of a line.
fn skip_line(reader: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let read = end.map_or(buffer.len(), |at| at + 1);
        reader.consume(read);
        if end.is_some() {
            return Ok(());
        }
    }
}

/// A line by its cells, in the order of [`COLUMNS`].
fn row(cells: &[&str; COLUMNS.len()]) -> Result<Row, String> {
    let wrong = |column: usize, expected: &str| {
        format!("{} is {:?}; expected {expected}", COLUMNS[column], cells[column])
    };
    let time = |column: usize| {
        let expected = "milliseconds, such as 1200, -5 or 0.25, of 292 years at most";
        time(cells[column]).ok_or_else(|| wrong(column, expected))
    };
    let port = |column: usize| match cells[column] {
        "" => Ok(0),
        text => text.parse().map_err(|_| wrong(column, "a port, 0 to 65535")),
    };
    let count =
        |column: usize| cells[column].parse::<u64>().map_err(|_| wrong(column, "a whole number below 2^64"));
    let ipv6 = match cells[2] {
        "4" => false,
        "6" => true,
        _ => return Err(wrong(2, "4 for IPv4 or 6 for IPv6")),
    };
    let address = |column: usize| match cells[column] {
        "" => Ok(None),
        text => match text.parse::<IpAddr>() {
            Ok(address) if address.is_ipv6() == ipv6 => Ok(Some(address)),
            _ => Err(wrong(column, if ipv6 { "an IPv6 address" } else { "an IPv4 address" })),
        },
    };
    let (start, end) = (time(0)?, time(1)?);
    if end < start {
        return Err(format!(
            "END_TIME {} is before START_TIME {}; expected it there or later",
            cells[1], cells[0]
        ));
    }
    Ok(Row {
        start,
        end,
        ipv6,
        protocol: cells[3].parse().map_err(|_| wrong(3, "the number of a protocol, 0 to 255"))?,
        ports: [port(4)?, port(5)?],
        packets: [count(6)?, count(8)?],
        bytes: [count(7)?, count(9)?],
        addresses: [address(10)?, address(11)?],
    })
}

/// Nanoseconds of a number of milliseconds, perhaps with a sign and a fraction of six digits at most.
fn time(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.is_empty() || fraction.len() > 6 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits: i128 = format!("{fraction:0<6}").parse().ok()?;
    let nanos = whole.parse::<i64>().map(i128::from).ok()? * NANOS;
    let nanos = if whole.starts_with('-') { nanos - digits } else { nanos + digits };
    nanos.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_milliseconds() {
        let cases: [(&str, Option<i64>); 12] = [
            ("0", Some(0)),
            ("-5", Some(-5_000_000)),
            ("1200.25", Some(1_200_250_000)),
            ("-0.5", Some(-500_000)),
            ("-1.000001", Some(-1_000_001)),
            ("9223372036854.775807", Some(i64::MAX)),
            ("9223372036854.775808", None),
            ("99999999999999999999", None),
            ("1.", None),
            ("1.1234567", None),
            ("1.-5", None),
            ("", None),
        ];
        for (text, nanos) in cases {
            assert_eq!(time(text), nanos, "{text:?}");
        }
    }
}
