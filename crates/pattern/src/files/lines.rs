//! Lists of literals.

use super::text::{hex, printable};
use super::{Builder, Options, Places, Reason, Signature};
use crate::Pattern;

/// Reads a list, of hex digits or of text. Returns how many lines it has.
pub(super) fn read(text: &[u8], is_hex: bool, options: &Options, set: &mut Builder) -> u32 {
    let Options { ignore_case, places, .. } = *options;
    let places = places.unwrap_or(Places::PAYLOAD);
    let mut number = 0u32;
    let mut bytes = Vec::new();
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        number = number.saturating_add(1);
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") || line.trim_ascii().is_empty() {
            continue;
        }
        bytes.clear();
        let read = if is_hex { read_hex(line, &mut bytes) } else { unescape(line, &mut bytes) };
        // A line of hex digits with a comment alone.
        if read.is_ok() && bytes.is_empty() {
            continue;
        }
        match read.and_then(|()| Ok(set.number(Pattern { ignore_case, ..Pattern::new(&bytes) }, places)?)) {
            Ok(pattern) => set.signatures.push(Signature {
                line: number,
                gid: None,
                id: None,
                revision: None,
                name: printable(line),
                category: None,
                severity: None,
                needs: [pattern].into(),
                excludes: [].into(),
                places: Places::NONE,
            }),
            Err(reason) => set.leave_out(number, line, reason),
        }
    }
    number
}

fn unescape(line: &[u8], bytes: &mut Vec<u8>) -> Result<(), Reason> {
    let mut rest = line;
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        let (byte, len) = match after {
            [b'\\', ..] => (b'\\', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b't', ..] => (b'\t', 1),
            [b'0', ..] => (0, 1),
            [b'#', ..] if bytes.is_empty() => (b'#', 1),
            [b'x', high, low, ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => return Err(Reason::Escape(printable(&line[line.len() - after.len() - 1..][..4]))),
            },
            _ => {
                let escape = &line[line.len() - after.len() - 1..];
                return Err(Reason::Escape(printable(&escape[..escape.len().min(2)])));
            }
        };
        bytes.push(byte);
        rest = &after[len..];
    }
    Ok(())
}

fn read_hex(line: &[u8], bytes: &mut Vec<u8>) -> Result<(), Reason> {
    let line = line.split(|&byte| byte == b'#').next().unwrap_or_default();
    push_pairs(line, bytes)
}

/// Adds the bytes of pairs of hex digits with blanks between them.
pub(super) fn push_pairs(digits: &[u8], bytes: &mut Vec<u8>) -> Result<(), Reason> {
    for pairs in digits.split(u8::is_ascii_whitespace) {
        for pair in pairs.chunks(2) {
            let value = |digit: u8| hex(digit).ok_or_else(|| Reason::HexDigit(printable(&[digit])));
            let high = value(pair[0])?;
            let low = value(*pair.get(1).ok_or(Reason::OddHex)?)?;
            bytes.push(high << 4 | low);
        }
    }
    Ok(())
}
