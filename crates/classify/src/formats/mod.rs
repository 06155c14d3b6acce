//! Rules and headers from text, recognised by content.
//!
//! - [`native`]: Packetloom's own rules and headers.
//! - [`classbench`]: ClassBench filter sets and traces.
//! - [`changes`]: changes of a list of rules.
//!
//! Every error names the file, the line and what was expected.

pub mod changes;
pub mod classbench;
pub mod native;

use std::io::{self, BufRead, Read, Write};

use packetloom_packet::{Key, MatchKey4, MatchKey6};

use crate::{Rule, RuleSet};

/// A line may not be longer: it bounds what one line of a hostile file can make us hold.
const MAX_LINE: usize = 1 << 16;
/// Rules of one list at most, so that a position always fits below [`crate::NO_RULE`].
pub const MAX_RULES: usize = 1 << 24;

/// A text that could not be read as rules or headers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading failed.
    #[error("{file}: {source}")]
    Io {
        /// Name of the file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A line says something else than expected.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: u32,
        /// What stands there and what was expected.
        message: String,
    },
}

/// The formats there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Packetloom's own.
    Native,
    /// ClassBench's: IPv4 only, and rules have no action.
    ClassBench,
}

/// Rules that could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The format has no words for a rule.
    #[error("rule {index} has no line in this format: {rule}")]
    Inexpressible {
        /// The rule's position, from 0.
        index: usize,
        /// The rule in our own format.
        rule: Box<Rule>,
    },
}

/// Writes rules, one a line.
///
/// # Errors
///
/// [`WriteError`]; what came before is written then.
pub fn write_rules(
    rules: impl IntoIterator<Item = Rule>,
    format: Format,
    writer: &mut dyn Write,
) -> Result<(), WriteError> {
    for (index, rule) in rules.into_iter().enumerate() {
        match format {
            Format::Native => writeln!(writer, "{rule}")?,
            Format::ClassBench => match classbench::filter(&rule) {
                Some(line) => writeln!(writer, "{line}")?,
                None => return Err(WriteError::Inexpressible { index, rule: Box::new(rule) }),
            },
        }
    }
    Ok(())
}

/// How rules are read.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Read ClassBench's flags column as if every rule left it open.
    pub ignore_flags: bool,
}

/// Calls `each` with every line that holds more than blanks and a comment, without them, and with its number.
fn lines(
    file: &str,
    reader: &mut dyn BufRead,
    mut each: impl FnMut(u32, &str) -> Result<(), String>,
) -> Result<(), Error> {
    let mut buffer = Vec::new();
    let mut number = 0u32;
    loop {
        buffer.clear();
        let read = reader.take(MAX_LINE as u64 + 1).read_until(b'\n', &mut buffer);
        if read.map_err(|source| Error::Io { file: file.into(), source })? == 0 {
            return Ok(());
        }
        number = number.saturating_add(1);
        let fail = |message| Error::Syntax { file: file.into(), line: number, message };
        if buffer.len() > MAX_LINE {
            return Err(fail(format!("longer than {MAX_LINE} bytes; expected one rule or header a line")));
        }
        let text = std::str::from_utf8(&buffer)
            .map_err(|_| fail("not UTF-8 text; expected rules or headers".into()))?;
        // Blanks are those of ASCII, here as between words: a name may hold others.
        // Some editors begin a file with a byte order mark.
        let text = if number == 1 { text.strip_prefix('\u{feff}').unwrap_or(text) } else { text };
        let text = text.split('#').next().unwrap_or_default().trim_ascii();
        if !text.is_empty() {
            each(number, text).map_err(fail)?;
        }
    }
}

/// Reads a rule list; `file` is its name in messages.
///
/// # Errors
///
/// [`Error::Syntax`] at the first line that is no rule, [`Error::Io`].
pub fn read_rules(file: &str, reader: &mut dyn BufRead, options: Options) -> Result<RuleSet, Error> {
    let mut rules = Vec::new();
    // The first rule decides the format: ClassBench's begin with '@', which no other does.
    let mut is_classbench = None;
    lines(file, reader, |line, text| {
        if rules.len() == MAX_RULES {
            return Err(format!("more than {MAX_RULES} rules"));
        }
        let mut rule = if *is_classbench.get_or_insert_with(|| text.starts_with('@')) {
            classbench::parse_rule(text, options.ignore_flags)?
        } else {
            native::parse_rule(text)?
        };
        rule.line = line;
        rules.push(rule);
        Ok(())
    })?;
    Ok(RuleSet { rules })
}

/// Headers to be classified: IPv4 and IPv6 keys apart, and the order they came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Keys of IPv4 headers, in order.
    pub v4: Vec<MatchKey4>,
    /// Keys of IPv6 headers, in order.
    pub v6: Vec<MatchKey6>,
    /// For each header whether it is the next of `v6`, else of `v4`.
    pub is_v6: Vec<bool>,
}

impl Headers {
    /// Appends one header.
    pub fn push(&mut self, key: Key) {
        match key {
            Key::V4(key) => self.v4.push(key),
            Key::V6(key) => self.v6.push(key),
        }
        self.is_v6.push(matches!(key, Key::V6(_)));
    }

    /// Headers in all.
    pub fn len(&self) -> usize {
        self.is_v6.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.is_v6.is_empty()
    }
}

/// Reads headers; `file` is its name in messages.
///
/// # Errors
///
/// [`Error::Syntax`] at the first line that is no header, [`Error::Io`].
pub fn read_headers(file: &str, reader: &mut dyn BufRead) -> Result<Headers, Error> {
    let mut headers = Headers::default();
    // A trace holds nothing but decimal numbers; our own headers have a '>' in them.
    let mut is_classbench = None;
    lines(file, reader, |_, text| {
        let key = if *is_classbench.get_or_insert_with(|| !text.contains('>')) {
            classbench::parse_header(text).map(Key::V4)
        } else {
            native::parse_header(text)
        };
        headers.push(key?);
        Ok(())
    })?;
    Ok(headers)
}

/// Takes `word` as a decimal number up to `max`.
fn number<T: TryFrom<u64>>(word: &str, what: &str, max: u64) -> Result<T, String> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let value = if digits { word.parse().ok().filter(|&value| value <= max) } else { None };
    value
        .and_then(|value: u64| T::try_from(value).ok())
        .ok_or_else(|| format!("{what} {word:?}; expected a number from 0 to {max}"))
}
