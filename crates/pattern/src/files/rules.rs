//! Rules for Suricata, Snort 2 and Snort 3.

use std::cmp::Reverse;

use super::lines::push_pairs;
use super::text::{cut, printable};
use super::{Builder, Options, Places, Reason, Signature};
use crate::{Bounds, Pattern, Refused};

/// Actions that report what a rule finds.
const REPORTING: [&[u8]; 11] = [
    b"alert",
    b"log",
    b"drop",
    b"sdrop",
    b"block",
    b"reject",
    b"rejectsrc",
    b"rejectdst",
    b"rejectboth",
    b"react",
    b"rewrite",
];

/// Other actions.
const OTHER: [&[u8]; 6] = [b"pass", b"allow", b"config", b"activate", b"dynamic", b"file_id"];

/// Options that change what a rule finds, but not in which buffer it looks for its contents.
const IN_PAYLOAD: [&[u8]; 23] = [
    b"bsize",
    b"byte_extract",
    b"byte_jump",
    b"byte_math",
    b"byte_test",
    b"detection_filter",
    b"distance",
    b"dsize",
    b"endswith",
    b"flags",
    b"flow",
    b"flowbits",
    b"flowint",
    b"isdataat",
    b"noalert",
    b"pcre",
    b"tag",
    b"threshold",
    b"ttl",
    b"urilen",
    b"window",
    b"within",
    b"xbits",
];

/// Names of fields that stand behind a content, for that alone, in rules of Suricata and Snort 2. In those of Snort 3 they stand in front.
const BEHIND: [&[u8]; 9] = [
    b"http_cookie",
    b"http_header",
    b"http_host",
    b"http_method",
    b"http_raw_header",
    b"http_raw_host",
    b"http_raw_uri",
    b"http_uri",
    b"http_user_agent",
];

/// A field that is none of [`BUFFERS`](super::BUFFERS).
const OTHER_FIELD: Places = Places::NONE;

/// What `flow` may ask for of a request.
const OF_REQUESTS: [&[u8]; 3] = [b"established", b"to_server", b"from_client"];

/// The largest offset, depth and so on.
const MAX_OFFSET: u32 = u16::MAX as u32;

/// Whether the first line that is no comment begins a rule.
pub(super) fn begins_with_rule(text: &[u8]) -> bool {
    let mut cursor = Cursor::new(text);
    if !cursor.skip_to_rule() || cursor.action().is_none() || header(&mut cursor).is_none() {
        return false;
    }
    cursor.skip_space().is_ok() && !name(&mut cursor).is_empty() && {
        cursor.skip_blanks();
        matches!(cursor.peek(), Some(b':' | b';'))
    }
}

/// Reads rules. Returns how many lines there are.
pub(super) fn read(text: &[u8], options: &Options, set: &mut Builder) -> u32 {
    let mut cursor = Cursor::new(text);
    while cursor.skip_to_rule() {
        let (line, begin) = (cursor.line, cursor.at);
        let mut rule = Rule::default();
        let read = read_rule(&mut cursor, &mut rule);
        // What is wrongly written ends with its line, unless that is the first one of the next rule.
        if read.is_err() && (cursor.at == begin || !cursor.is_line_start()) {
            cursor.skip_line();
        }
        let shown = text[begin..].split(|&byte| byte == b'\n').next().unwrap_or_default();
        let used = read.and_then(|()| rule.literals(options, set));
        match used {
            Ok(Literals { needs, excludes, places }) => {
                // A field is of its protocol.
                let is_unchecked = rule.has_header || (rule.has_protocol && places.has(Places::PAYLOAD));
                set.headers_not_checked += usize::from(is_unchecked);
                set.signatures.push(Signature {
                    line,
                    gid: rule.gid,
                    id: rule.sid,
                    revision: rule.revision,
                    name: rule.message.unwrap_or_else(|| cut(shown)),
                    category: rule.category,
                    severity: rule.severity,
                    needs,
                    excludes,
                    places,
                });
            }
            Err(reason) => set.leave_out(line, shown, reason),
        }
    }
    let end = text.split_last().is_some_and(|(&last, _)| last != b'\n');
    cursor.line.saturating_add(end.into()) - 1
}

/// What is read of a rule.
#[derive(Default)]
struct Rule {
    /// Whether it asks for addresses, ports or services, and for a protocol.
    has_header: bool,
    has_protocol: bool,
    message: Option<String>,
    category: Option<String>,
    gid: Option<u32>,
    sid: Option<u32>,
    revision: Option<u32>,
    severity: Option<u8>,
    contents: Vec<Content>,
    /// The first option that asks for more than literals.
    asks_for: Option<String>,
    /// Whether it asks for what is true of every request.
    is_of_requests: bool,
    /// Whether contents may be in a field that is not known.
    has_other_field: bool,
    /// Where contents from here on are.
    place: Places,
    /// Whether fields are named in front of contents.
    is_sticky: bool,
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    is_negated: bool,
    ignore_case: bool,
    offset: Option<u32>,
    depth: Option<u32>,
    at_start: bool,
    /// Its bounds are not known before another content is found.
    is_relative: bool,
    is_fast_pattern: bool,
    /// Where it is.
    place: Places,
}

impl Content {
    fn bounds(&self) -> Bounds {
        if self.at_start {
            return Bounds { offset: 0, depth: self.bytes.len() as u32 };
        }
        Bounds { offset: self.offset.unwrap_or(0), depth: self.depth.unwrap_or(u32::MAX) }
    }

    fn number(&self, bounds: Bounds, place: Places, set: &mut Builder) -> Result<u32, Refused> {
        set.number(Pattern { bytes: &self.bytes, ignore_case: self.ignore_case, bounds }, place)
    }

    /// How rare Suricata takes a pattern to be (`PatternStrength` in its user guide, "Suricata Fast Pattern Determination Explained").
    fn strength(&self) -> usize {
        let mut seen = [false; 256];
        let points = self.bytes.iter().map(|&byte| match byte {
            _ if std::mem::replace(&mut seen[usize::from(byte)], true) => 1,
            b'a'..=b'z' | b'A'..=b'Z' => 3,
            b' '..=b'~' | 0 | 1 | 0xff => 4,
            _ => 6,
        });
        points.sum()
    }
}

/// Patterns that are needed, those that are excluded, and where they are.
struct Literals {
    needs: Box<[u32]>,
    excludes: Box<[u32]>,
    places: Places,
}

impl Rule {
    fn literals(&self, options: &Options, set: &mut Builder) -> Result<Literals, Reason> {
        if options.by_fast_pattern {
            return self.fast_pattern(options.places.unwrap_or(Places::PAYLOAD), set);
        }
        if let Some(option) = &self.asks_for {
            return Err(Reason::Option(option.clone()));
        }
        if let Some(elsewhere) = self.elsewhere(options.places.unwrap_or(Places::ALL)) {
            return Err(elsewhere);
        }
        if self.contents.is_empty() {
            return Err(Reason::NoContent);
        }
        let places = self.contents.iter().fold(Places::NONE, |places, content| places.and(content.place));
        if self.is_of_requests && places == Places::PAYLOAD {
            return Err(Reason::Option("flow".into()));
        }
        if self.contents.iter().all(|content| content.is_negated) {
            return Err(Reason::AllNegated);
        }
        // All or none: patterns of a rule that is left out would be looked for in vain.
        for content in &self.contents {
            check(content, content.bounds())?;
        }
        let mut numbers = |is_negated| {
            let of_kind = self.contents.iter().filter(|content| content.is_negated == is_negated);
            let mut numbers = of_kind
                .map(|content| content.number(content.bounds(), content.place, set))
                .collect::<Result<Vec<_>, _>>()?;
            numbers.sort_unstable();
            numbers.dedup();
            Ok::<_, Refused>(numbers.into_boxed_slice())
        };
        Ok(Literals { needs: numbers(false)?, excludes: numbers(true)?, places })
    }

    /// The first content that is in none of these places.
    fn elsewhere(&self, places: Places) -> Option<Reason> {
        let content = self.contents.iter().find(|content| !places.meets(content.place))?;
        Some(Reason::Elsewhere { is: content.place, expected: places })
    }

    fn fast_pattern(&self, places: Places, set: &mut Builder) -> Result<Literals, Reason> {
        // Whatever buffers are made of is in payloads.
        let takes_all = places == Places::PAYLOAD;
        let is_there = |content: &&Content| takes_all || places.meets(content.place);
        let usable = || self.contents.iter().filter(|content| !content.is_negated).filter(is_there);
        let chosen = usable().find(|content| content.is_fast_pattern).or_else(|| {
            usable().min_by_key(|content| (Reverse(content.bytes.len()), Reverse(content.strength())))
        });
        let Some(content) = chosen else {
            return Err(match (&self.contents[..], self.elsewhere(places)) {
                ([], _) => Reason::NoContent,
                (_, Some(elsewhere)) if !takes_all => elsewhere,
                _ => Reason::AllNegated,
            });
        };
        let is_in_place = match content.place {
            Places::PAYLOAD => !self.has_other_field,
            _ => !takes_all,
        };
        let bounds = if is_in_place && !content.is_relative { content.bounds() } else { Bounds::ANYWHERE };
        let place = if takes_all { Places::PAYLOAD } else { content.place };
        Ok(Literals {
            needs: [content.number(bounds, place, set)?].into(),
            excludes: [].into(),
            places: place,
        })
    }
}

/// Whether a set can have a pattern.
fn check(content: &Content, bounds: Bounds) -> Result<(), Refused> {
    crate::Patterns::new().push(Pattern { bytes: &content.bytes, ignore_case: false, bounds })?;
    Ok(())
}

fn read_rule(cursor: &mut Cursor<'_>, rule: &mut Rule) -> Result<(), Reason> {
    let action = cursor.action().ok_or(Reason::NotARule)?;
    let header = header(cursor).ok_or(Reason::NotARule)?;
    (rule.has_header, rule.has_protocol) = (header.has_ends, header.has_protocol);
    loop {
        cursor.skip_space()?;
        match cursor.peek() {
            Some(b')') => {
                cursor.bump();
                break;
            }
            Some(b';') => cursor.bump(),
            None => return Err(Reason::OpenRule),
            Some(_) => {
                let name = name(cursor);
                if name.is_empty() {
                    return Err(Reason::Syntax);
                }
                cursor.skip_space()?;
                match cursor.peek() {
                    Some(b':') => {
                        cursor.bump();
                        let value = value(cursor)?;
                        option(rule, &name, Some(&value))?;
                    }
                    Some(b';' | b')') => option(rule, &name, None)?,
                    None => return Err(Reason::OpenRule),
                    Some(_) => return Err(Reason::Syntax),
                }
            }
        }
    }
    cursor.skip_blanks();
    if !matches!(cursor.peek(), None | Some(b'\n' | b'#')) {
        return Err(Reason::Trailing);
    }
    cursor.skip_line();
    if OTHER.contains(&&action[..]) {
        return Err(Reason::Action(printable(&action)));
    }
    Ok(())
}

/// What a rule asks for before its options.
struct Header {
    /// A protocol.
    has_protocol: bool,
    /// Addresses or ports.
    has_ends: bool,
}

/// Passes over what is between the action and the options, and the parenthesis.
fn header(cursor: &mut Cursor<'_>) -> Option<Header> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    loop {
        cursor.skip_blanks();
        if cursor.peek()? == b'\n' {
            // The parenthesis alone may be on another line.
            let end = (cursor.at, cursor.line);
            if cursor.skip_space().is_err() || cursor.peek() != Some(b'(') {
                (cursor.at, cursor.line) = end;
                return None;
            }
        }
        if cursor.peek()? == b'(' {
            cursor.bump();
            break;
        }
        let mut word = Vec::new();
        let mut depth = 0u32;
        while let Some(byte) = cursor.peek() {
            match byte {
                b'[' => depth += 1,
                b']' => depth = depth.saturating_sub(1),
                b'(' | b')' | b';' | b'"' | b'\n' => break,
                _ if depth == 0 && byte.is_ascii_whitespace() => break,
                _ => {}
            }
            word.push(byte);
            cursor.bump();
        }
        if word.is_empty() || words.len() == 6 {
            return None;
        }
        words.push(word);
    }
    let is_any = |word: &Vec<u8>| word.eq_ignore_ascii_case(b"any");
    let has_protocol = words.first().is_some_and(|word| !is_any(word) && !word.eq_ignore_ascii_case(b"ip"));
    if words.len() <= 1 {
        return Some(Header { has_protocol, has_ends: false });
    }
    let is_arrow = |word: &Vec<u8>| matches!(&word[..], b"->" | b"<>" | b"<-" | b"=>");
    let arrow = words.iter().position(is_arrow)?;
    // The protocol, an address and ports on both sides; Snort 3 takes any port where there is none.
    if !matches!(arrow, 2 | 3) || !matches!(words.len() - arrow, 2 | 3) {
        return None;
    }
    Some(Header { has_protocol, has_ends: words[1..].iter().any(|word| !is_arrow(word) && !is_any(word)) })
}

/// The name of an option.
fn name(cursor: &mut Cursor<'_>) -> Vec<u8> {
    let mut name = Vec::new();
    while let Some(byte @ (b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.')) = cursor.peek() {
        name.push(byte);
        cursor.bump();
    }
    name
}

/// What is between the colon of an option and its semicolon, or the parenthesis that ends the rule and its line.
fn value(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, Reason> {
    let mut value = Vec::new();
    // Quotes count where a value begins, behind an exclamation mark and behind commas: elsewhere they are text.
    let mut begins = true;
    loop {
        match cursor.peek() {
            None => return Err(Reason::OpenRule),
            Some(b'\n') => {
                cursor.skip_space()?;
                value.push(b' ');
                continue;
            }
            Some(b';') => break,
            Some(b')') if cursor.is_last_of_line() => break,
            Some(b'\\') => {
                value.push(b'\\');
                cursor.bump();
                match cursor.peek() {
                    None | Some(b'\n') => {}
                    Some(byte) => {
                        value.push(byte);
                        cursor.bump();
                    }
                }
                begins = false;
            }
            Some(b'"') if begins => {
                quoted(cursor, &mut value)?;
                begins = false;
            }
            Some(byte) => {
                begins = byte == b',' || begins && (byte == b'!' || byte.is_ascii_whitespace());
                value.push(byte);
                cursor.bump();
            }
        }
    }
    Ok(value)
}

/// A text in quotes, quotes and escapes and all.
fn quoted(cursor: &mut Cursor<'_>, value: &mut Vec<u8>) -> Result<(), Reason> {
    value.push(b'"');
    cursor.bump();
    loop {
        let byte = match cursor.peek() {
            None | Some(b'\n') => return Err(Reason::OpenQuote),
            Some(byte) => byte,
        };
        value.push(byte);
        cursor.bump();
        match byte {
            b'"' => return Ok(()),
            b'\\' => {
                let Some(escaped) = cursor.peek().filter(|&byte| byte != b'\n') else {
                    return Err(Reason::OpenQuote);
                };
                value.push(escaped);
                cursor.bump();
            }
            _ => {}
        }
    }
}

fn option(rule: &mut Rule, name: &[u8], value: Option<&[u8]>) -> Result<(), Reason> {
    let text = value.unwrap_or_default().trim_ascii();
    match name {
        b"msg" => rule.message = Some(printable(&unescape_text(text))),
        b"sid" => rule.sid = Some(number("sid", text, u32::MAX)?),
        b"gid" => rule.gid = Some(number("gid", text, u32::MAX)?),
        b"rev" => rule.revision = Some(number("rev", text, u32::MAX)?),
        b"priority" => rule.severity = Some(number("priority", text, u8::MAX.into())? as u8),
        b"classtype" => rule.category = Some(printable(text)),
        b"reference" | b"metadata" | b"target" | b"rem" => {}
        b"service" => rule.has_header = true,
        b"content" => content(rule, text)?,
        b"uricontent" => {
            let uri = Places::field(b"http.uri").unwrap_or(OTHER_FIELD);
            let before = std::mem::replace(&mut rule.place, uri);
            content(rule, text)?;
            rule.place = before;
        }
        b"pkt_data" => rule.place = Places::PAYLOAD,
        b"flow" if is_of_requests(text) => rule.is_of_requests = true,
        _ if text.is_empty() && field(rule, name) => {}
        _ if modifier(rule, name, text)? => {}
        _ => unsupported(rule, name),
    }
    Ok(())
}

fn is_of_requests(flow: &[u8]) -> bool {
    flow.split(|&byte| byte == b',').all(|word| OF_REQUESTS.contains(&word.trim_ascii()))
}

/// Notes the name of a field, whose contents follow or stand before it. Tells whether it is one.
fn field(rule: &mut Rule, name: &[u8]) -> bool {
    let Some(place) = Places::field(name) else { return false };
    match rule.contents.last_mut() {
        Some(content) if BEHIND.contains(&name) && !rule.is_sticky => content.place = place,
        _ => (rule.place, rule.is_sticky) = (place, true),
    }
    true
}

/// Notes an option that asks for more than literals.
fn unsupported(rule: &mut Rule, name: &[u8]) {
    if !IN_PAYLOAD.contains(&name) {
        // It may be the name of a field, of the content before it or of those that follow.
        rule.has_other_field = true;
        rule.place = OTHER_FIELD;
        let is_in_payload = |content: &&mut Content| content.place == Places::PAYLOAD;
        if let Some(content) = rule.contents.last_mut().filter(is_in_payload).filter(|_| !rule.is_sticky) {
            content.place = OTHER_FIELD;
        }
    }
    if matches!(name, b"distance" | b"within")
        && let Some(content) = rule.contents.last_mut()
    {
        content.is_relative = true;
    }
    rule.asks_for.get_or_insert_with(|| cut(name));
}

/// Applies an option that changes the content before it. Tells whether it is one.
fn modifier(rule: &mut Rule, name: &[u8], value: &[u8]) -> Result<bool, Reason> {
    if !matches!(
        name,
        b"nocase"
            | b"offset"
            | b"depth"
            | b"startswith"
            | b"rawbytes"
            | b"fast_pattern"
            | b"fast_pattern_only"
            | b"fast_pattern_offset"
            | b"fast_pattern_length"
    ) {
        return Ok(false);
    }
    let Some(content) = rule.contents.last_mut() else { return Err(Reason::Misplaced(printable(name))) };
    let conflict = || Reason::Conflict(printable(name));
    match name {
        b"nocase" => content.ignore_case = true,
        b"offset" | b"depth" => {
            let (place, option) = match name {
                b"offset" => (&mut content.offset, "offset"),
                _ => (&mut content.depth, "depth"),
            };
            if place.is_some() || content.at_start {
                return Err(conflict());
            }
            // A name stands for a number that the rule takes from the packet.
            if value.first().is_some_and(|&first| first.is_ascii_alphabetic() || first == b'_') {
                content.is_relative = true;
                rule.asks_for.get_or_insert_with(|| format!("{option} with a variable"));
            } else {
                *place = Some(number(option, value, MAX_OFFSET)?);
            }
        }
        b"startswith" if content.offset.is_some() || content.depth.is_some() => return Err(conflict()),
        b"startswith" => content.at_start = true,
        b"rawbytes" => {}
        _ => content.is_fast_pattern = true,
    }
    Ok(true)
}

fn content(rule: &mut Rule, value: &[u8]) -> Result<(), Reason> {
    let (is_negated, value) = match value {
        [b'!', value @ ..] => (true, value.trim_ascii_start()),
        _ => (false, value),
    };
    let [b'"', rest @ ..] = value else { return Err(Reason::Content) };
    let mut content = Content { is_negated, place: rule.place, ..Content::default() };
    let end = unescape(rest, &mut content.bytes)?;
    rule.contents.push(content);
    // Snort 3's way: more of them behind commas, with their values behind blanks.
    let rest = rest[end..].trim_ascii();
    let modifiers = match rest {
        [] => return Ok(()),
        [b',', rest @ ..] => rest,
        _ => return Err(Reason::Content),
    };
    rule.is_sticky = true;
    for text in modifiers.split(|&byte| byte == b',') {
        let text = text.trim_ascii();
        let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
        let (name, value) = text.split_at(end);
        if name.is_empty() {
            return Err(Reason::Content);
        }
        if !modifier(rule, name, value.trim_ascii())? {
            unsupported(rule, name);
        }
    }
    Ok(())
}

/// Adds the bytes of a content up to its closing quote; returns the place behind that.
fn unescape(text: &[u8], bytes: &mut Vec<u8>) -> Result<usize, Reason> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => return Ok(at),
            b'\\' => match text.get(at) {
                Some(&escaped @ (b'\\' | b'"' | b';' | b':')) => {
                    bytes.push(escaped);
                    at += 1;
                }
                escaped => {
                    let len = 1 + usize::from(escaped.is_some());
                    return Err(Reason::ContentEscape(printable(&text[at - 1..][..len])));
                }
            },
            b'|' => {
                let len = text[at..].iter().position(|&byte| byte == b'|').ok_or(Reason::OpenHex)?;
                push_pairs(&text[at..at + len], bytes)?;
                at += len + 1;
            }
            _ => bytes.push(byte),
        }
    }
    Err(Reason::Content)
}

/// A text with or without quotes.
fn unescape_text(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [escaped @ (b'\\' | b'"' | b';' | b':'), after @ ..]) => {
                bytes.push(*escaped);
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    bytes
}

fn number(option: &'static str, text: &[u8], most: u32) -> Result<u32, Reason> {
    let error = Reason::Number { option, most };
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(error);
    }
    let number = std::str::from_utf8(text).ok().and_then(|digits| digits.parse().ok());
    number.filter(|&number| number <= most).ok_or(error)
}

/// A place in a file of rules. Backslashes at the end of a line are passed over with it.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
    /// From 1 on.
    line: u32,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a [u8]) -> Self {
        let mut cursor = Self { text, at: 0, line: 1 };
        cursor.continue_line();
        cursor
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Goes on to the next byte.
    #[inline]
    fn bump(&mut self) {
        let Some(&passed) = self.text.get(self.at) else { return };
        self.at += 1;
        if passed == b'\n' {
            self.line = self.line.saturating_add(1);
        }
        if self.peek() == Some(b'\\') {
            self.continue_line();
        }
    }

    fn continue_line(&mut self) {
        loop {
            let len = match &self.text[self.at..] {
                [b'\\', b'\n', ..] => 2,
                [b'\\', b'\r', b'\n', ..] => 3,
                _ => return,
            };
            self.at += len;
            self.line = self.line.saturating_add(1);
        }
    }

    fn is_line_start(&self) -> bool {
        self.at == 0 || self.text[self.at - 1] == b'\n'
    }

    /// To the next line that is not continued.
    fn skip_line(&mut self) {
        while let Some(byte) = self.peek() {
            self.bump();
            if byte == b'\n' {
                return;
            }
        }
    }

    /// Comments are not continued.
    fn skip_comment(&mut self) {
        while let Some(&byte) = self.text.get(self.at) {
            if byte == b'\n' {
                return self.bump();
            }
            self.at += 1;
        }
    }

    /// Blanks on this line.
    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace() && byte != b'\n') {
            self.bump();
        }
    }

    /// To the next rule, or whatever else there is but blanks and comments.
    fn skip_to_rule(&mut self) -> bool {
        loop {
            match self.peek() {
                None => return false,
                Some(b'#') => self.skip_comment(),
                Some(byte) if byte.is_ascii_whitespace() => self.bump(),
                Some(_) => return true,
            }
        }
    }

    /// Blanks, line ends, and comments that take whole lines, in a rule. The next rule ends it.
    fn skip_space(&mut self) -> Result<(), Reason> {
        self.skip_blanks();
        while self.peek() == Some(b'\n') {
            self.bump();
            if self.begins_rule() {
                return Err(Reason::OpenRule);
            }
            self.skip_blanks();
            while self.peek() == Some(b'#') {
                self.skip_comment();
                if self.begins_rule() {
                    return Err(Reason::OpenRule);
                }
                self.skip_blanks();
            }
        }
        Ok(())
    }

    /// Whether a line begins here with an action and a blank.
    fn begins_rule(&self) -> bool {
        let rest = &self.text[self.at..];
        let mut actions = REPORTING.iter().chain(&OTHER);
        rest.first().is_some_and(u8::is_ascii_lowercase)
            && actions.any(|action| matches!(rest.strip_prefix(*action), Some([b' ' | b'\t', ..])))
    }

    /// The action that begins here.
    fn action(&mut self) -> Option<Vec<u8>> {
        let action = name(self);
        let is_known = REPORTING.contains(&&action[..]) || OTHER.contains(&&action[..]);
        let ends = self.peek().is_some_and(|byte| byte.is_ascii_whitespace() || byte == b'(');
        (is_known && ends).then_some(action)
    }

    /// Whether blanks at most come behind this byte on its line.
    fn is_last_of_line(&self) -> bool {
        let rest = &self.text[self.at + 1..];
        let blanks = rest.iter().take_while(|&&byte| byte.is_ascii_whitespace() && byte != b'\n').count();
        matches!(rest.get(blanks), None | Some(b'\n'))
    }
}
