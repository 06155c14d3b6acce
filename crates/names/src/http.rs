//! The Host of the first request of HTTP/1.x (RFC 9112, RFC 9110 section 7.2).

use memchr::memchr;

use crate::stream::Step;
use crate::text::escaped;
use crate::{Name, NameKind};

/// Bytes from the beginning of a stream in which the line has to end.
pub(crate) const MAX_STREAM: usize = 8 * 1024;

/// Bytes that the name of a method has at most.
const MAX_METHOD: usize = 24;

/// The lines of a request.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// Whether the request line was read.
    has_begun: bool,
    /// What there is of the line that is not at its end.
    line: Vec<u8>,
}

impl Request {
    /// Whether a stream that begins with these bytes, one or more, may be a request.
    #[inline]
    pub(crate) fn may_begin_with(bytes: &[u8]) -> bool {
        let is_method = |byte: &u8| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_');
        let beginning = &bytes[..bytes.len().min(MAX_METHOD + 1)];
        match beginning.iter().position(|byte| !is_method(byte)) {
            Some(0) => false,
            Some(end) => beginning[end] == b' ',
            None => beginning.len() <= MAX_METHOD,
        }
    }

    /// Takes the bytes that follow.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Step {
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            let step = if self.line.is_empty() {
                self.take_line(line)
            } else {
                let mut begun = std::mem::take(&mut self.line);
                begun.extend_from_slice(line);
                self.take_line(&begun)
            };
            if !matches!(step, Step::More) {
                return step;
            }
        }
        self.line.extend_from_slice(bytes);
        // What has controls before its first line's end is another protocol.
        let is_text = |byte: &u8| !byte.is_ascii_control() || *byte == b'\r';
        if self.has_begun || Self::may_begin_with(&self.line) && bytes.iter().all(is_text) {
            Step::More
        } else {
            Step::NoName
        }
    }

    fn take_line(&mut self, line: &[u8]) -> Step {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !self.has_begun {
            self.has_begun = is_request_line(line);
            return if self.has_begun { Step::More } else { Step::NoName };
        }
        if line.is_empty() {
            return Step::NoName;
        }
        let Some((name, value)) = line.split_at_checked(HOST.len()) else { return Step::More };
        let value = trim(value);
        if !name.eq_ignore_ascii_case(HOST) || value.is_empty() {
            return Step::More;
        }
        Step::Found(Name { kind: NameKind::HttpHost, text: escaped(value), query_type: None })
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.line.capacity()
    }
}

/// What is behind the first empty line.
pub(crate) fn behind_head(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    while let Some(end) = memchr(b'\n', rest) {
        rest = &rest[end + 1..];
        if let [b'\n', behind @ ..] | [b'\r', b'\n', behind @ ..] = rest {
            return Some(behind);
        }
    }
    None
}

/// The name of the field that has the host, and what ends it: no blank is between.
const HOST: &[u8] = b"host:";

/// Whether a line is `METHOD TARGET HTTP/1.x`.
fn is_request_line(line: &[u8]) -> bool {
    let Some((rest, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor])) = line.split_last_chunk::<8>() else {
        return false;
    };
    let Some(method) = rest.iter().position(|&byte| byte == b' ') else { return false };
    let is_text = |byte: &u8| !byte.is_ascii_control();
    // The method, a blank, at least one byte, a blank.
    Request::may_begin_with(rest)
        && rest.len() >= method + 3
        && rest.ends_with(b" ")
        && minor.is_ascii_digit()
        && rest.iter().all(is_text)
}

/// A value without the blanks around it.
fn trim(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let begin = value.iter().position(|byte| !is_blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|byte| !is_blank(byte)).map_or(begin, |last| last + 1);
    &value[begin..end]
}
