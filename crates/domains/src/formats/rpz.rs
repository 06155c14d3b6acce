//! Zone files of response policy zones.
//!
//! Records may go over several lines in parentheses, and strings in quotes may contain anything (RFC 1035 section 5.1): of a record, no
//! more is kept than its first words.

use super::{List, Reason};
use crate::builder::{Action, Reach};

/// Lines that a record may have: more of them are those behind a parenthesis that was forgotten.
const LINES: usize = 64;
/// Words of a record that are kept: the owner, the time to live, the class, the type, and the first of the data.
const WORDS: usize = 5;
/// Types that a zone has as a matter of form (draft-vixie-dnsop-dns-rpz-00 section 3).
const FORMAL: [&[u8]; 8] = [b"SOA", b"NS", b"RRSIG", b"NSEC", b"NSEC3", b"NSEC3PARAM", b"DNSKEY", b"CDS"];
/// The last labels of triggers other than names.
const TRIGGERS: [&[u8]; 4] = [b"rpz-ip", b"rpz-client-ip", b"rpz-nsip", b"rpz-nsdname"];
const CLASSES: [&[u8]; 3] = [b"IN", b"CH", b"HS"];

/// Whether a word is a class or a type of records that zones have.
pub(super) fn is_keyword(word: &[u8]) -> bool {
    is_one_of(word, &[b"CNAME", b"A", b"AAAA", b"SOA", b"NS", b"TXT", b"IN"])
}

fn is_one_of(word: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|other| other.eq_ignore_ascii_case(word))
}

/// Where in a zone its file is.
#[derive(Default)]
pub(super) struct Zone {
    /// The name that others are relative to, in lower case without the dot at its end; none before it is said.
    origin: Option<Vec<u8>>,
    /// The zone's name, as far as it is known.
    apex: Option<Vec<u8>>,
    /// The name of the last record.
    owner: Option<Owner>,
    /// The words of the record so far, and whether the first is a name.
    words: Vec<Vec<u8>>,
    has_owner: bool,
    /// Parentheses that are open, and lines since the first one.
    open: usize,
    lines: usize,
}

/// Whose record it is.
#[derive(Clone)]
enum Owner {
    /// The zone's own.
    Apex,
    /// A name in the zone, relative to it.
    Name(Vec<u8>),
    /// An absolute name, before the file says what the zone is.
    Absolute(Vec<u8>),
    /// A name that is not in the zone.
    Outside,
}

impl Zone {
    pub(super) fn read(&mut self, line: &[u8], list: &mut List<'_>) {
        if self.open == 0 {
            self.words.clear();
            self.has_owner = !line.first().is_some_and(u8::is_ascii_whitespace);
            self.lines = 0;
        }
        self.split(line);
        self.lines += 1;
        if self.open > 0 && self.lines == LINES {
            self.end(list);
        }
        if self.open == 0 && !self.words.is_empty() {
            let words = std::mem::take(&mut self.words);
            if let Err(reason) = self.record(&words, list) {
                list.refuse(line.trim_ascii(), reason);
            }
        }
    }

    /// Ends the record, whether or not its parentheses are closed.
    pub(super) fn end(&mut self, list: &mut List<'_>) {
        if self.open > 0 {
            let begins = self.words.first().cloned().unwrap_or_default();
            list.refuse(&begins, Reason::Unclosed);
        }
        self.open = 0;
        self.words.clear();
    }

    /// Adds the words of a line.
    fn split(&mut self, line: &[u8]) {
        let mut at = 0;
        while let Some(&byte) = line.get(at) {
            match byte {
                b';' => return,
                b'(' => self.open += 1,
                b')' => self.open = self.open.saturating_sub(1),
                byte if byte.is_ascii_whitespace() => {}
                byte => {
                    let begin = at;
                    let mut is_quoted = byte == b'"';
                    at += 1;
                    while let Some(&byte) = line.get(at) {
                        match byte {
                            b'\\' => at += 1,
                            b'"' => is_quoted = !is_quoted,
                            b';' | b'(' | b')' if !is_quoted => break,
                            byte if byte.is_ascii_whitespace() && !is_quoted => break,
                            _ => {}
                        }
                        at += 1;
                    }
                    at = at.min(line.len());
                    if self.words.len() < WORDS {
                        self.words.push(line[begin..at].to_vec());
                    }
                    continue;
                }
            }
            at += 1;
        }
    }

    /// Follows a directive or a record.
    fn record(&mut self, words: &[Vec<u8>], list: &mut List<'_>) -> Result<(), Reason> {
        let mut words = words.iter().map(Vec::as_slice);
        if self.has_owner {
            let first = words.next().ok_or(Reason::Record)?;
            if first.starts_with(b"$") {
                return self.directive(first, words.next());
            }
            self.owner = Some(self.owner(first));
        }
        // The time to live and the class come in any order.
        let is_time = |word: &[u8]| word.first().is_some_and(u8::is_ascii_digit);
        let of_type =
            words.find(|word| !is_time(word) && !is_one_of(word, &CLASSES)).ok_or(Reason::Record)?;
        if is_one_of(of_type, &FORMAL) {
            if of_type.eq_ignore_ascii_case(b"SOA") {
                self.start();
            }
            list.report.passed_over += 1;
            return Ok(());
        }
        let name = match self.owner.as_ref().ok_or(Reason::Record)? {
            Owner::Apex => {
                list.report.passed_over += 1;
                return Ok(());
            }
            Owner::Outside | Owner::Absolute(_) => return Err(Reason::OutOfZone),
            Owner::Name(name) => name,
        };
        let last = name.rsplit(|&byte| byte == b'.').next().unwrap_or(name);
        if is_one_of(last, &TRIGGERS) {
            return Err(Reason::Trigger);
        }
        let action = match of_type {
            word if is_one_of(word, &[b"A", b"AAAA"]) => Action::Block,
            word if word.eq_ignore_ascii_case(b"CNAME") => {
                let target = words.next().ok_or(Reason::Record)?;
                policy(target, name)?
            }
            _ => return Err(Reason::Type),
        };
        let (name, reach) = match name.as_slice() {
            b"*" => (b".".as_slice(), Reach::Subdomains),
            [b'*', b'.', name @ ..] => (name, Reach::Subdomains),
            name => (name, list.options.reach.unwrap_or(Reach::Name)),
        };
        list.add(name, reach, action, list.options.priority);
        Ok(())
    }

    fn directive(&mut self, directive: &[u8], argument: Option<&[u8]>) -> Result<(), Reason> {
        if directive.eq_ignore_ascii_case(b"$TTL") {
            return Ok(());
        }
        if !directive.eq_ignore_ascii_case(b"$ORIGIN") {
            return Err(Reason::Directive);
        }
        let name = argument.ok_or(Reason::Record)?.to_ascii_lowercase();
        let origin = match (name.strip_suffix(b"."), &self.origin) {
            (Some(absolute), _) => absolute.to_vec(),
            (None, Some(origin)) => join(&name, origin),
            (None, None) => name,
        };
        // What a zone's file begins with is its name, until the SOA says it; but for the root, which some files begin with.
        if !origin.is_empty() {
            self.apex.get_or_insert_with(|| origin.clone());
        }
        self.origin = Some(origin);
        Ok(())
    }

    /// The SOA's name is the zone's.
    fn start(&mut self) {
        let apex = match (&self.owner, &self.apex) {
            (Some(Owner::Absolute(name)), _) | (Some(Owner::Name(name)), None) => name.clone(),
            (Some(Owner::Name(name)), Some(apex)) => join(name, apex),
            _ => return,
        };
        self.origin.get_or_insert_with(|| apex.clone());
        self.apex = Some(apex);
        self.owner = Some(Owner::Apex);
    }

    fn owner(&self, word: &[u8]) -> Owner {
        let word = word.to_ascii_lowercase();
        let absolute = match (word.as_slice(), &self.origin) {
            (b"@", Some(origin)) => origin.clone(),
            // Where the file does not say what the zone is, names are relative to it.
            (b"@", None) => return Owner::Apex,
            ([absolute @ .., b'.'], _) if !absolute.ends_with(b"\\") => absolute.to_vec(),
            (relative, Some(origin)) => join(relative, origin),
            (relative, None) => return Owner::Name(relative.to_vec()),
        };
        let Some(apex) = &self.apex else { return Owner::Absolute(absolute) };
        match absolute.strip_suffix(apex.as_slice()) {
            Some([]) => Owner::Apex,
            Some([relative @ .., b'.']) => Owner::Name(relative.to_vec()),
            _ => Owner::Outside,
        }
    }
}

/// A name in another one, both without the dot at the end.
fn join(relative: &[u8], parent: &[u8]) -> Vec<u8> {
    if parent.is_empty() { relative.to_vec() } else { [relative, b".", parent].concat() }
}

/// What a record `CNAME` does with a name (draft-vixie-dnsop-dns-rpz-00 section 3).
fn policy(target: &[u8], name: &[u8]) -> Result<Action, Reason> {
    let target = target.strip_suffix(b".").unwrap_or(target).to_ascii_lowercase();
    match target.as_slice() {
        b"rpz-passthru" => Ok(Action::Allow),
        b"rpz-drop" => Ok(Action::Block),
        other if other.starts_with(b"rpz-") && !other.contains(&b'.') => Err(Reason::Policy),
        // The old way to allow: a name that leads to itself.
        other if other == name => Ok(Action::Allow),
        _ => Ok(Action::Block),
    }
}
