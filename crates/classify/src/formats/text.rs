//! Texts in lines, with limits that bound what a hostile one can make us hold.

use std::io::{BufRead, Chain, Cursor, Read};
use std::iter::Peekable;
use std::str::SplitAsciiWhitespace;

use super::Error;
use super::mistakes::Mistakes;

/// A line may not be longer.
pub(super) const MAX_LINE: usize = 1 << 16;
/// Bytes that a format is recognised by.
const HEAD: u64 = 1 << 16;

/// A file whose beginning was looked at.
pub(super) struct Input<'a> {
    /// Its name in messages.
    pub(super) file: &'a str,
    /// All of it, from the beginning.
    pub(super) reader: Chain<Cursor<Vec<u8>>, &'a mut dyn BufRead>,
}

impl<'a> Input<'a> {
    pub(super) fn new(file: &'a str, reader: &'a mut dyn BufRead) -> Result<Self, Error> {
        let mut head = Vec::new();
        let read = Read::take(&mut *reader, HEAD).read_to_end(&mut head);
        read.map_err(|source| Error::Io { file: file.into(), source })?;
        Ok(Self { file, reader: Cursor::new(head).chain(reader) })
    }

    /// Its beginning.
    pub(super) fn bytes(&self) -> &[u8] {
        self.reader.get_ref().0.get_ref()
    }

    /// Its beginning as text, as far as it is text.
    pub(super) fn head(&self) -> &str {
        let head = self.reader.get_ref().0.get_ref();
        let text = match std::str::from_utf8(head) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default(),
        };
        without_mark(text)
    }
}

/// Some editors begin a file with a byte order mark.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Calls `each` with every line, without the blanks around it, and with its number. Blanks are those of ASCII: a name may hold
/// others.
pub(super) fn lines(
    file: &str,
    reader: &mut dyn BufRead,
    mut each: impl FnMut(u32, &str) -> Result<(), Error>,
) -> Result<(), Error> {
    raw_lines(file, reader, MAX_LINE, |line, text| each(line, text.trim_ascii()))
}

/// As [`lines`], with the blanks and with lines of up to `max` bytes.
pub(super) fn raw_lines(
    file: &str,
    reader: &mut dyn BufRead,
    max: usize,
    mut each: impl FnMut(u32, &str) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut buffer = Vec::new();
    let mut number = 0u32;
    let mut mistakes = Mistakes::default();
    loop {
        buffer.clear();
        let read = reader.take(max as u64 + 1).read_until(b'\n', &mut buffer);
        if read.map_err(|source| Error::Io { file: file.into(), source })? == 0 {
            return mistakes.end(file);
        }
        number = number.saturating_add(1);
        let fail = |message| Error::syntax(file, number, message);
        let text = if buffer.len() > max {
            Err(fail(format!("longer than {max} bytes; expected one rule or header a line")))
        } else {
            std::str::from_utf8(&buffer).map_err(|_| fail("not UTF-8 text; expected rules or headers".into()))
        };
        let text = match text {
            Ok(text) => text,
            // What follows is no text of lines, either.
            Err(error) => {
                mistakes.add(error)?;
                return mistakes.end(file);
            }
        };
        let text = if number == 1 { without_mark(text) } else { text };
        each(number, text).or_else(|error| mistakes.add(error))?;
    }
}

/// What a line says, and the comment that `#` begins.
pub(super) fn split_comment(line: &str) -> (&str, Option<&str>) {
    match line.split_once('#') {
        Some((text, comment)) => (text.trim_ascii(), Some(comment)),
        None => (line, None),
    }
}

/// The first line of a text that says something, where `#` begins a comment.
pub(super) fn first_line(text: &str) -> &str {
    let said = text.lines().map(|line| split_comment(line.trim_ascii()).0);
    said.into_iter().find(|line| !line.is_empty()).unwrap_or_default()
}

/// The number of that line, from 1; 1 where there is none.
pub(super) fn first_line_number(text: &str) -> u32 {
    let at = text.lines().position(|line| !split_comment(line.trim_ascii()).0.is_empty());
    at.map_or(1, |at| u32::try_from(at + 1).unwrap_or(u32::MAX))
}

/// The words of a line, taken one by one.
pub(super) struct Words<'a>(pub(super) Peekable<SplitAsciiWhitespace<'a>>);

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self(text.split_ascii_whitespace().peekable())
    }

    pub(super) fn next(&mut self, expected: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("the line ends; expected {expected}"))
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), String> {
        match self.next(&format!("{word:?}"))? {
            found if found == word => Ok(()),
            found => Err(format!("{found:?}; expected {word:?}")),
        }
    }

    /// Takes the next word if it is this one.
    pub(super) fn take(&mut self, word: &str) -> bool {
        self.0.next_if_eq(&word).is_some()
    }

    /// The words that are left.
    pub(super) fn rest(self) -> String {
        self.0.collect::<Vec<_>>().join(" ")
    }

    /// Makes sure that none is left.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.0.next().map_or(Ok(()), |word| Err(format!("{word:?}; expected the end of the line")))
    }

    /// The next word, which stays; none at the end.
    pub(super) fn peek(&mut self) -> &'a str {
        self.0.peek().copied().unwrap_or_default()
    }
}

/// Whether a word becomes another one by `max` changes at most, each a letter more, less, another one, or two that change
/// places.
pub(super) fn is_near(word: &str, other: &str, max: usize) -> bool {
    let (a, b) = (word.as_bytes(), other.as_bytes());
    if a.len().abs_diff(b.len()) > max {
        return false;
    }
    // The rows of the table of distances between beginnings of both: the last one and the one before.
    let mut before = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let changed = last[j] + usize::from(x != y);
            let mut least = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                let swapped: usize = before[j - 1];
                least = least.min(swapped + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()] <= max
}

/// Takes `word` as a decimal number up to `max`.
pub(super) fn number<T: TryFrom<u64>>(word: &str, what: &str, max: u64) -> Result<T, String> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let value = if digits { word.parse().ok().filter(|&value| value <= max) } else { None };
    value
        .and_then(|value: u64| T::try_from(value).ok())
        .ok_or_else(|| format!("{what} {word:?}; expected a number from 0 to {max}"))
}

/// A comment as one line, or nothing where there is nothing to say.
pub(super) fn comment(text: &str) -> Option<Box<str>> {
    /// More of it is cut off: a rule that becomes many keeps one each.
    const MAX_COMMENT: usize = 256;
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = text.floor_char_boundary(MAX_COMMENT);
    let text = text[..end].trim();
    (!text.is_empty()).then(|| text.into())
}
