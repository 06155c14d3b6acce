//! The Host, or other fields, of the first request of HTTP/1.x (RFC 9112, RFC 9110 section 7.2).

use memchr::memchr;

use crate::stream::Step;
use crate::text::escaped;
use crate::{Field, FieldValue, Fields, Finding, Name, NameKind, Values};

/// Bytes from the beginning of a stream in which the line has to end.
pub(crate) const MAX_STREAM: usize = 8 * 1024;

/// Bytes that the name of a method has at most.
const MAX_METHOD: usize = 24;

/// The lines of a request.
#[derive(Debug)]
pub(crate) struct Request {
    /// What is still looked for, where that is not the name of the host.
    left: Option<Fields>,
    /// What was found and not told yet.
    values: Values,
    /// What there is of [`Field::HttpHeader`], and whether the last line is in it; of [`Field::HttpHeaderRaw`].
    header: Vec<u8>,
    is_kept: bool,
    raw: Vec<u8>,
    /// Whether the request line was read.
    has_begun: bool,
    /// What there is of the line that is not at its end.
    line: Vec<u8>,
}

impl Request {
    pub(crate) fn new(fields: Option<Fields>) -> Self {
        Self {
            left: fields.map(|fields| fields.of(NameKind::HttpHost)),
            values: Values::new(),
            header: Vec::new(),
            is_kept: false,
            raw: Vec::new(),
            has_begun: false,
            line: Vec::new(),
        }
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
            if let Some(left) = self.left {
                self.find(left, |field| match field {
                    Field::HttpMethod => line.split(|&byte| byte == b' ').next().map(Box::from),
                    Field::HttpUri => Some(uri(target).into()),
                    Field::HttpUriRaw => Some(target.into()),
                    Field::HttpRequestLine => Some(line.into()),
                    _ => None,
                });
            }
            return self.step(false);
        }
        let Some(left) = self.left else { return host_name(line) };
        if left.has(Field::HttpHeader) {
            self.add_normalized(line);
        }
        if left.has(Field::HttpHeaderRaw) {
            self.raw.extend_from_slice(sent);
            self.raw.push(b'\n');
        }
        if line.is_empty() {
            let (header, raw) = (std::mem::take(&mut self.header), std::mem::take(&mut self.raw));
            self.find(left, |field| match field {
                Field::HttpHeader => Some(&header[..]).filter(|header| !header.is_empty()).map(Box::from),
                Field::HttpHeaderRaw => Some(raw[..].into()),
                _ => None,
            });
            return self.step(true);
        }
        self.find(left, |field| {
            // No blank is between the name and the colon.
            let name: &[u8] = match field {
                Field::HttpHost | Field::HttpHostRaw => b"host:",
                Field::HttpUserAgent => b"user-agent:",
                Field::HttpReferer => b"referer:",
                Field::HttpCookie => b"cookie:",
                _ => return None,
            };
            let value = value_of(line, name).filter(|value| !value.is_empty())?;
            Some(match field {
                Field::HttpHost => without_port(value).to_ascii_lowercase().into(),
                _ => value.into(),
            })
        });
        self.step(false)
    }

    /// Notes the values of fields that are there now.
    fn find(&mut self, fields: Fields, value: impl Fn(Field) -> Option<Box<[u8]>>) {
        for field in fields.iter() {
            if let (Some(bytes), Some(left)) = (value(field), &mut self.left) {
                left.remove(field);
                self.values.push(FieldValue::new(field, bytes));
            }
        }
    }

    /// What there is to tell: all that is left with the last field, or at the end of the head.
    fn step(&mut self, is_end: bool) -> Step {
        match self.left {
            Some(left) if is_end || left.is_empty() => match self.take_values() {
                values if values.is_empty() => Step::NoName,
                values => Step::Found(Finding::Values(values)),
            },
            _ => Step::More,
        }
    }

    /// What was found and not told yet.
    pub(crate) fn take_values(&mut self) -> Values {
        std::mem::take(&mut self.values)
    }

    /// Adds a line to [`Field::HttpHeader`].
    fn add_normalized(&mut self, line: &[u8]) {
        if line.first().is_some_and(|&byte| is_blank(byte)) {
            // It goes on with the field before (RFC 9112 section 5.2).
            if self.is_kept
                && let Some(end) = self.header.len().checked_sub(END_OF_LINE.len())
            {
                self.header.truncate(end);
                self.header.push(b' ');
                self.header.extend_from_slice(trim(line));
                self.header.extend_from_slice(END_OF_LINE);
            }
            return;
        }
        self.is_kept = !line.is_empty() && value_of(line, b"cookie:").is_none();
        if !self.is_kept {
            return;
        }
        let colon = memchr(b':', line).unwrap_or(line.len());
        self.header.extend_from_slice(trim(&line[..colon]));
        if let Some(value) = line.get(colon + 1..) {
            self.header.extend_from_slice(b": ");
            self.header.extend_from_slice(trim(value));
        }
        self.header.extend_from_slice(END_OF_LINE);
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.line.capacity() + self.header.capacity() + self.raw.capacity()
    }
}

const END_OF_LINE: &[u8] = b"\r\n";

/// Whether bytes begin with the first line of a request.
pub(crate) fn begins_with_request(bytes: &[u8]) -> bool {
    let line = memchr(b'\n', bytes).map(|end| &bytes[..end]);
    line.is_some_and(|line| target(line.strip_suffix(b"\r").unwrap_or(line)).is_some())
}

/// The next line without its end, and what is behind it.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr(b'\n', bytes)?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), &bytes[end + 1..]))
}

/// What is behind the first empty line, and the body that the lines before announce.
pub(crate) fn behind_request(bytes: &[u8]) -> Option<&[u8]> {
    // The request line, or a part of a line.
    let (_, mut rest) = split_line(bytes)?;
    let (mut length, mut last_coding) = (None, None);
    loop {
        let (line, behind) = split_line(rest)?;
        rest = behind;
        if line.is_empty() {
            break;
        }
        if let Some(value) = value_of(line, b"content-length:") {
            let number = value.iter().try_fold(0usize, |number, byte| {
                let digit = char::from(*byte).to_digit(10)?;
                number.checked_mul(10)?.checked_add(digit as usize)
            });
            let number = number.filter(|_| !value.is_empty())?;
            if length.replace(number).is_some_and(|before| before != number) {
                return None;
            }
        }
        let codings = value_of(line, b"transfer-encoding:").map(|value| value.split(|&byte| byte == b','));
        last_coding = codings.and_then(|mut codings| codings.next_back()).or(last_coding);
    }
    match last_coding {
        Some(coding) if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") => behind_chunks(rest),
        // Nobody can tell where such a body ends (RFC 9112 section 6.3).
        Some(_) => None,
        None => rest.get(length.unwrap_or(0)..),
    }
}

/// What is behind a body in chunks (RFC 9112 section 7.1).
fn behind_chunks(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    loop {
        let (line, behind) = split_line(rest)?;
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = std::str::from_utf8(&line[..digits]).ok()?;
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = behind;
        if size == 0 {
            break;
        }
        rest = rest.get(size..)?.strip_prefix(END_OF_LINE)?;
    }
    loop {
        let (trailer, behind) = split_line(rest)?;
        rest = behind;
        if trailer.is_empty() {
            return Some(rest);
        }
    }
}

/// What a line of the head tells of the name of the host.
fn host_name(line: &[u8]) -> Step {
    if line.is_empty() {
        return Step::NoName;
    }
    match value_of(line, b"host:").filter(|value| !value.is_empty()) {
        Some(value) => Step::Found(Finding::Name(Name::new(NameKind::HttpHost, escaped(value)))),
        None => Step::More,
    }
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
