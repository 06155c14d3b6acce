//! The Host, or another field, of the first request of HTTP/1.x (RFC 9112, RFC 9110 section 7.2).

use memchr::memchr;

use crate::stream::Step;
use crate::text::escaped;
use crate::{Field, Finding, Name, NameKind};

/// Bytes from the beginning of a stream in which the line has to end.
pub(crate) const MAX_STREAM: usize = 8 * 1024;

/// Bytes that the name of a method has at most.
const MAX_METHOD: usize = 24;

/// The lines of a request.
#[derive(Debug)]
pub(crate) struct Request {
    /// What is looked for, where that is not the name of the host.
    field: Option<Field>,
    /// What there is of all fields, where all are looked for, and whether the last line is in it.
    value: Vec<u8>,
    is_kept: bool,
    /// Whether the request line was read.
    has_begun: bool,
    /// What there is of the line that is not at its end.
    line: Vec<u8>,
}

impl Request {
    pub(crate) fn new(field: Option<Field>) -> Self {
        Self { field, value: Vec::new(), is_kept: false, has_begun: false, line: Vec::new() }
    }

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

    fn take_line(&mut self, sent: &[u8]) -> Step {
        let line = sent.strip_suffix(b"\r").unwrap_or(sent);
        if !self.has_begun {
            let Some(target) = target(line) else { return Step::NoName };
            self.has_begun = true;
            return match self.field {
                Some(Field::HttpMethod) => found(line.split(|&byte| byte == b' ').next().unwrap_or_default()),
                Some(Field::HttpUri) => found(&uri(target)),
                Some(Field::HttpUriRaw) => found(target),
                Some(Field::HttpRequestLine) => found(line),
                _ => Step::More,
            };
        }
        match self.field {
            Some(Field::HttpHeader) => self.add_normalized(line),
            Some(Field::HttpHeaderRaw) => {
                self.value.extend_from_slice(sent);
                self.value.push(b'\n');
            }
            field => return one_of(line, field),
        }
        match line {
            [] if self.value.is_empty() => Step::NoName,
            [] => found(&self.value),
            _ => Step::More,
        }
    }

    /// Adds a line to [`Field::HttpHeader`].
    fn add_normalized(&mut self, line: &[u8]) {
        if line.first().is_some_and(|&byte| is_blank(byte)) {
            // It goes on with the field before (RFC 9112 section 5.2).
            if self.is_kept
                && let Some(end) = self.value.len().checked_sub(END_OF_LINE.len())
            {
                self.value.truncate(end);
                self.value.push(b' ');
                self.value.extend_from_slice(trim(line));
                self.value.extend_from_slice(END_OF_LINE);
            }
            return;
        }
        self.is_kept = !line.is_empty() && value_of(line, b"cookie:").is_none();
        if !self.is_kept {
            return;
        }
        let colon = memchr(b':', line).unwrap_or(line.len());
        self.value.extend_from_slice(trim(&line[..colon]));
        if let Some(value) = line.get(colon + 1..) {
            self.value.extend_from_slice(b": ");
            self.value.extend_from_slice(trim(value));
        }
        self.value.extend_from_slice(END_OF_LINE);
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.line.capacity() + self.value.capacity()
    }
}

const END_OF_LINE: &[u8] = b"\r\n";

/// Whether bytes begin with the first line of a request.
pub(crate) fn begins_with_request(bytes: &[u8]) -> bool {
    let line = memchr(b'\n', bytes).map(|end| &bytes[..end]);
    line.is_some_and(|line| target(line.strip_suffix(b"\r").unwrap_or(line)).is_some())
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

/// What a line tells of a field that is one of the head, or of the name of the host.
fn one_of(line: &[u8], field: Option<Field>) -> Step {
    if line.is_empty() {
        return Step::NoName;
    }
    // No blank is between the name and the colon.
    let name: &[u8] = match field {
        Some(Field::HttpUserAgent) => b"user-agent:",
        Some(Field::HttpReferer) => b"referer:",
        Some(Field::HttpCookie) => b"cookie:",
        _ => b"host:",
    };
    let Some(value) = value_of(line, name).filter(|value| !value.is_empty()) else { return Step::More };
    match field {
        None => Step::Found(Finding::Name(Name {
            kind: NameKind::HttpHost,
            text: escaped(value),
            query_type: None,
        })),
        Some(Field::HttpHost) => found(&without_port(value).to_ascii_lowercase()),
        Some(_) => found(value),
    }
}

fn found(value: &[u8]) -> Step {
    Step::Found(Finding::Values(vec![value.into()]))
}

/// The value of the field whose name, in small letters, and colon a line begins with.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (begin, value) = line.split_at_checked(name.len())?;
    begin.eq_ignore_ascii_case(name).then(|| trim(value))
}

/// The target of a line that is `METHOD TARGET HTTP/1.x`.
fn target(line: &[u8]) -> Option<&[u8]> {
    let (rest, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor]) = line.split_last_chunk::<8>()? else {
        return None;
    };
    let method = rest.iter().position(|&byte| byte == b' ')?;
    let is_text = |byte: &u8| !byte.is_ascii_control();
    // The method, a blank, at least one byte, a blank.
    let is_request = Request::may_begin_with(rest)
        && rest.len() >= method + 3
        && rest.ends_with(b" ")
        && minor.is_ascii_digit()
        && rest.iter().all(is_text);
    is_request.then(|| &rest[method + 1..rest.len() - 1])
}

/// A target as [`Field::HttpUri`] has it.
fn uri(target: &[u8]) -> Vec<u8> {
    // RFC 9112 section 3.2: "/path", "scheme://authority/path", "authority", or "*".
    let mut rest = target;
    if !target.starts_with(b"/")
        && let Some(scheme) = memchr::memmem::find(target, b"://")
        && target[..scheme].iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte))
    {
        let authority = &target[scheme + 3..];
        let end = authority.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(authority.len());
        rest = &authority[end..];
    }
    let (path, query) = rest.split_at(memchr(b'?', rest).unwrap_or(rest.len()));
    let mut path = decoded(path);
    if path.starts_with(b"/") {
        path = without_dots(&path);
    }
    path.extend(decoded(query));
    path
}

/// Bytes whose escapes are decoded, once.
fn decoded(bytes: &[u8]) -> Vec<u8> {
    let digit = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut into = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                into.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                into.push(byte);
                at += 1;
            }
        }
    }
    into
}

/// An absolute path without segments that are empty or dots (RFC 3986 section 5.2.4).
fn without_dots(path: &[u8]) -> Vec<u8> {
    let mut into: Vec<u8> = Vec::with_capacity(path.len());
    let mut is_folder = true;
    for segment in path.split(|&byte| byte == b'/') {
        is_folder = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => into.truncate(into.iter().rposition(|&byte| byte == b'/').unwrap_or(0)),
            segment => {
                into.push(b'/');
                into.extend_from_slice(segment);
            }
        }
    }
    if is_folder {
        into.push(b'/');
    }
    into
}

/// A host without the port that may be behind it.
fn without_port(host: &[u8]) -> &[u8] {
    let end = host.iter().rposition(|byte| !byte.is_ascii_digit()).filter(|&at| host[at] == b':');
    // Of an IPv6 address in brackets colons are part.
    match end {
        Some(colon) if host[0] != b'[' || host[..colon].ends_with(b"]") => &host[..colon],
        _ => host,
    }
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// A value without the blanks around it.
fn trim(value: &[u8]) -> &[u8] {
    let begin = value.iter().position(|&byte| !is_blank(byte)).unwrap_or(value.len());
    let end = value.iter().rposition(|&byte| !is_blank(byte)).map_or(begin, |last| last + 1);
    &value[begin..end]
}
