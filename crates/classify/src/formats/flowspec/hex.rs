//! NLRIs of flow specifications as hexadecimal numbers; `#` begins a comment.
//!
//! ```text
//! [ipv4|ipv6] NLRI [discard|accept|rate N|community COMMUNITY]
//! ```
//!
//! - `NLRI`: one or more, with their lengths, in digits with or without blanks between bytes and `0x` before them. A line without
//!   `ipv4` or `ipv6` is IPv4.
//! - `discard` and `rate 0` deny, `accept` permits. `COMMUNITY` is an extended community of 16 digits; a traffic rate of 0 (RFC
//!   8955 section 7.1 and 7.2) denies. A line without an action has none: an NLRI does not say one.

use super::super::builder::{Builder, Fault};
use super::super::text::{self, Input, number};
use super::super::writing::Writing;
use super::super::{Error, Format, Options, Reading, WriteError};
use super::Table;
use super::nlri::{self, Family, Flow};
use super::write::{self, Written};
use crate::rule::{Action, Rule};

/// The first line begins with a whole NLRI.
pub(in super::super) fn recognises(head: &str) -> bool {
    let (_, bytes, _) = parts(text::first_line(head));
    bytes.is_ok_and(|bytes| nlri::split(&bytes).is_ok_and(|(nlri, _)| !nlri.is_empty()))
}

/// Reads flows.
pub(in super::super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut table = Table::new(Builder::new(input.file, options));
    text::lines(input.file, &mut input.reader, |line, text| {
        let (text, comment) = text::split_comment(text);
        if text.is_empty() {
            return Ok(());
        }
        let (family, bytes, rest) = parts(text);
        let bytes = bytes.map_err(|message| table.builder.syntax(line, message))?;
        let mut bytes = &*bytes;
        let action = match action(&rest) {
            Ok(action) => action,
            Err(fault) => {
                table.has_any = true;
                table.next_statement();
                let index = table.builder.leave_out(line, fault)?;
                while let Ok((nlri, rest)) = nlri::split(bytes) {
                    table.left_out(line, index, Flow::decode(family, nlri).ok());
                    bytes = rest;
                    if bytes.is_empty() {
                        return Ok(());
                    }
                }
                table.left_out(line, index, None);
                return Ok(());
            }
        };
        let template = Rule { line, comment: comment.and_then(text::comment), ..Rule::any(action) };
        while !bytes.is_empty() {
            let (nlri, rest) = nlri::split(bytes).map_err(|message| table.builder.syntax(line, message))?;
            table.add(template.clone(), Flow::decode(family, nlri))?;
            bytes = rest;
        }
        Ok(())
    })?;
    table
        .finish(Format::FlowSpec, "no flow; expected lines such as \"ipv4 0b0118c00002038106048119 discard\"")
}

/// The family, the bytes, and the words after them.
fn parts(text: &str) -> (Family, Result<Vec<u8>, String>, Vec<&str>) {
    let mut words = text.split_ascii_whitespace().peekable();
    let family =
        Family::ALL.into_iter().find(|family| words.next_if(|word| *word == family.name()).is_some());
    let mut digits = String::new();
    let is_digits = |word: &str| word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let plain = |word: &'_ str| word.strip_prefix("0x").unwrap_or(word).to_owned();
    while let Some(word) = words.next_if(|word| is_digits(&plain(word))) {
        digits += &plain(word);
    }
    (family.unwrap_or(Family::V4), bytes(&digits), words.collect())
}

/// The bytes of hexadecimal digits.
fn bytes(digits: &str) -> Result<Vec<u8>, String> {
    const EXPECTED: &str = "expected an NLRI in hexadecimal, such as 0b0118c00002038106048119";
    if digits.is_empty() {
        return Err(format!("no NLRI; {EXPECTED}"));
    }
    if !digits.len().is_multiple_of(2) {
        return Err(format!("{} digits; {EXPECTED}", digits.len()));
    }
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| EXPECTED.into());
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// What is done with packets of the flow, if the line says so.
fn action(words: &[&str]) -> Result<Option<Action>, Fault> {
    Ok(match *words {
        [] => None,
        ["discard"] => Some(Action::Deny),
        ["accept"] => Some(Action::Permit),
        ["rate", rate] => match number::<u64>(rate, "rate", u64::MAX)? {
            0 => Some(Action::Deny),
            _ => return Err(Fault::no_equal(&words.join(" "))),
        },
        ["community", digits] => Some(community(digits)?),
        [word, ..] => {
            let message =
                format!("{word:?}; expected discard, accept, rate N, community COMMUNITY, or the end");
            return Err(Fault::Syntax(message));
        }
    })
}

/// What an extended community says is done.
fn community(digits: &str) -> Result<Action, Fault> {
    /// Octets and packets a second (RFC 8955 sections 7.1 and 7.2).
    const RATES: [[u8; 2]; 2] = [[0x80, 0x06], [0x80, 0x0c]];
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let bytes = bytes(digits).ok().and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    let Some([high, low, _, _, rate @ ..]) = bytes else {
        return Err(Fault::Syntax(format!("community {digits:?}; expected 16 hexadecimal digits")));
    };
    // What is below 0 counts as 0.
    if RATES.contains(&[high, low]) && f32::from_be_bytes(rate) <= 0.0 {
        return Ok(Action::Deny);
    }
    Err(Fault::no_equal(&format!("community {digits}")))
}

/// Writes flows in the order of the rules.
pub(in super::super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    let rest = write::rest(writing);
    for Written { flow, rule, .. } in write::flows(rules, &rest, writing, false)? {
        let digits: String = flow.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let action = match rule.action {
            None => "",
            Some(Action::Permit | Action::Reflect) => " accept",
            Some(Action::Deny) => " discard",
        };
        writeln!(writing.writer, "{} {digits}{action}", flow.family.name())?;
    }
    Ok(())
}
