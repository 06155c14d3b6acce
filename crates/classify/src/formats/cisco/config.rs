//! The access lists and object groups of a configuration, entry by entry as text.

use std::collections::{BTreeMap, HashMap};

use super::super::text;
use super::headers::{Header, header};

/// Kinds of access lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// IPv4 sources only.
    Standard,
    /// IPv4.
    Extended,
    /// IPv6.
    V6,
    /// A list of which the entries say something else than those of the other kinds: role-based, reflexive.
    Other,
}

/// An entry of a list.
pub(super) struct Entry {
    pub(super) line: u32,
    pub(super) text: Box<str>,
    /// The remarks before it.
    pub(super) comment: Option<Box<str>>,
}

/// An access list.
pub(super) struct List {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Line on which it begins.
    pub(super) line: u32,
    /// Its entries by sequence number, which is their order.
    pub(super) entries: BTreeMap<u32, Entry>,
    /// Remarks that are still without an entry.
    remarks: String,
}

/// Kinds of object groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupKind {
    /// IPv4 addresses.
    Network,
    /// IPv6 addresses.
    V6Network,
    /// Protocols and ports.
    Service,
}

/// An object group.
pub(super) struct Group {
    pub(super) kind: GroupKind,
    /// Its members, each with its line.
    pub(super) members: Vec<(u32, Box<str>)>,
}

/// What the next line belongs to.
enum Block {
    /// Nothing that is looked at.
    Other,
    /// The list at a position.
    List(usize),
    /// The group of a name.
    Group(String),
    /// A text that begins in this line and ends with this.
    Banner(u32, String),
}

/// A configuration.
pub(super) struct Config {
    /// The lists, in order of appearance; some may have been removed again.
    lists: Vec<Option<List>>,
    /// Positions of lists by name, apart for IPv6.
    names: HashMap<(bool, String), usize>,
    pub(super) groups: HashMap<String, Group>,
    block: Block,
}

impl Config {
    pub(super) fn new() -> Self {
        Self { lists: Vec::new(), names: HashMap::new(), groups: HashMap::new(), block: Block::Other }
    }

    /// The lists, in order of appearance.
    pub(super) fn lists(&self) -> impl Iterator<Item = &List> {
        self.lists.iter().flatten()
    }

    /// The end of the configuration: a line and what is wrong there, if something is.
    pub(super) fn end(&self) -> Result<(), (u32, String)> {
        match &self.block {
            Block::Banner(line, end) => Err((
                *line,
                format!("the banner does not end before the file does; expected {end:?} behind its text"),
            )),
            _ => Ok(()),
        }
    }

    /// Takes a line with the blanks before it. Entries of lists are not understood yet.
    pub(super) fn line(&mut self, line: u32, text: &str) -> Result<(), String> {
        let indented = text.starts_with([' ', '\t']);
        let text = text.trim_ascii();
        if let Block::Banner(_, end) = &self.block {
            if text.contains(end) {
                self.block = Block::Other;
            }
            return Ok(());
        }
        if text.is_empty() || text.starts_with('!') {
            return Ok(());
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        if self.begins(line, &words)? {
            return Ok(());
        }
        match &self.block {
            Block::List(_) if matches!(words[0], "exit" | "end") => self.block = Block::Other,
            Block::List(at) if indented || is_entry(&words) => {
                let at = *at;
                return self.entry(at, line, &words);
            }
            Block::Group(_) if matches!(words[0], "exit" | "end") => self.block = Block::Other,
            Block::Group(name) if indented || is_member(&words) => {
                if let Some(group) = self.groups.get_mut(name)
                    && words[0] != "description"
                {
                    group.members.push((line, words.join(" ").into()));
                }
            }
            Block::List(_) if nearly_decides(&words) => {
                return Err(format!("{text:?}; expected permit, deny or remark"));
            }
            _ if !indented && (decides(&words) || nearly_decides(&words)) => {
                return Err(format!("{text:?} outside of an access list"));
            }
            _ if !indented => self.block = Block::Other,
            _ => {}
        }
        Ok(())
    }

    /// Takes a line that begins a block, or is one of its own; says whether it is.
    fn begins(&mut self, line: u32, words: &[&str]) -> Result<bool, String> {
        if let ["banner", _, ..] = words {
            self.banner(line, words);
            return Ok(true);
        }
        match header(words)? {
            None => return Ok(false),
            Some(Header::Entry(kind, number, entry)) => {
                self.block = Block::Other;
                let at = self.list(line, kind, number)?;
                self.entry(at, line, entry)?;
            }
            Some(Header::List(kind, name)) => self.block = Block::List(self.list(line, kind, name)?),
            Some(Header::Group(kind, name)) => {
                // A group that is there already goes on.
                let group =
                    self.groups.entry(name.into()).or_insert_with(|| Group { kind, members: Vec::new() });
                if group.kind != kind {
                    return Err(format!("object-group {name} is there already, as one of another kind"));
                }
                self.block = Block::Group(name.into());
            }
            Some(Header::NoList(v6, name)) => self.remove(v6, name),
            Some(Header::NoGroup(name)) => {
                self.groups.remove(name);
                self.block = Block::Other;
            }
            Some(Header::Other) => self.block = Block::Other,
        }
        Ok(true)
    }

    /// Takes the line of a banner, whose text may go on in the lines after it.
    fn banner(&mut self, line: u32, words: &[&str]) {
        let message = words[2..].join(" ");
        // "^C" stands for one character.
        let end: String = match message.strip_prefix("^C") {
            Some(_) => "^C".into(),
            None => message.chars().take(1).collect(),
        };
        let is_open = !end.is_empty() && !message[end.len()..].contains(&end);
        self.block = if is_open { Block::Banner(line, end) } else { Block::Other };
    }

    /// The position of a list, which may be new.
    fn list(&mut self, line: u32, kind: Kind, name: &str) -> Result<usize, String> {
        let key = (kind == Kind::V6, name.to_owned());
        if let Some(&at) = self.names.get(&key) {
            return match &self.lists[at] {
                Some(list) if list.kind != kind => {
                    Err(format!("access list {name} is there already, as one of another kind"))
                }
                _ => Ok(at),
            };
        }
        let list = List { name: name.into(), kind, line, entries: BTreeMap::new(), remarks: String::new() };
        self.lists.push(Some(list));
        self.names.insert(key, self.lists.len() - 1);
        Ok(self.lists.len() - 1)
    }

    fn remove(&mut self, v6: bool, name: &str) {
        if let Some(at) = self.names.remove(&(v6, name.to_owned())) {
            self.lists[at] = None;
        }
        self.block = Block::Other;
    }

    /// Takes an entry, a remark, or the removal of an entry.
    fn entry(&mut self, at: usize, line: u32, words: &[&str]) -> Result<(), String> {
        let Some(list) = &mut self.lists[at] else { return Ok(()) };
        let (sequence, words) = match *words {
            ["no", number] | ["no", "sequence", number] => {
                let number: u32 = sequence_number(number)?;
                return match list.entries.remove(&number) {
                    Some(_) => Ok(()),
                    None => Err(format!("no entry {number} to remove")),
                };
            }
            ["no", "remark", ..] => return Ok(()),
            ["sequence", number, ref words @ ..] => (Some(sequence_number(number)?), words),
            [number, ref words @ ..] if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                (Some(sequence_number(number)?), words)
            }
            _ => (None, words),
        };
        if let ["remark", remark @ ..] = words {
            if !list.remarks.is_empty() {
                list.remarks.push_str("; ");
            }
            // More would be cut off.
            if list.remarks.len() < text::MAX_LINE {
                list.remarks += &remark.join(" ");
            }
            return Ok(());
        }
        let words = without_counts(words);
        let (sequence, words) = match (sequence, words.as_slice()) {
            (None, [words @ .., "sequence", number]) => (Some(sequence_number(number)?), words),
            (sequence, words) => (sequence, words),
        };
        let last = list.entries.last_key_value().map_or(0, |(last, _)| *last);
        let sequence = match sequence {
            Some(sequence) => sequence,
            None => last.checked_add(10).ok_or("no sequence number is left after the last entry")?,
        };
        let comment = text::comment(&std::mem::take(&mut list.remarks));
        let entry = Entry { line, text: words.join(" ").into(), comment };
        match list.entries.insert(sequence, entry) {
            None => Ok(()),
            Some(before) => {
                Err(format!("sequence number {sequence} is that of line {} already", before.line))
            }
        }
    }
}

fn sequence_number(word: &str) -> Result<u32, String> {
    text::number(word, "sequence number", u32::MAX.into())
}

/// Whether words without blanks before them can be an entry of a list.
fn is_entry(words: &[&str]) -> bool {
    match *words {
        ["permit" | "deny" | "remark" | "evaluate" | "dynamic" | "sequence", ..] => true,
        // Whatever else is taken away by its words is refused where the list is read.
        ["no", "permit" | "deny" | "remark" | "sequence", ..] => true,
        ["no", number, ..] => number.bytes().all(|byte| byte.is_ascii_digit()),
        [number, ..] => number.bytes().all(|byte| byte.is_ascii_digit()),
        [] => false,
    }
}

/// Whether words are an entry that decides over packets.
pub(super) fn decides(words: &[&str]) -> bool {
    match *words {
        ["permit" | "deny", ..] => true,
        [number, "permit" | "deny", ..] => number.bytes().all(|byte| byte.is_ascii_digit()),
        _ => false,
    }
}

/// Whether words would be an entry that decides over packets but for a typing error or an abbreviation.
fn nearly_decides(words: &[&str]) -> bool {
    let word = match *words {
        ["no" | "sequence", ref rest @ ..] => return !rest.is_empty() && nearly_decides(rest),
        [number, word, ..] if number.bytes().all(|byte| byte.is_ascii_digit()) => word,
        [word, _, ..] => word,
        _ => return false,
    };
    let word = word.to_ascii_lowercase();
    let abbreviates = |whole: &str, len| word.len() >= len && whole.starts_with(&word);
    !matches!(&*word, "permit" | "deny")
        && (text::is_near(&word, "permit", 2) || text::is_near(&word, "deny", 1))
        || abbreviates("permit", 3)
        || abbreviates("deny", 3)
}

/// Whether words without blanks before them can be a member of a group, or the end of one.
fn is_member(words: &[&str]) -> bool {
    match *words {
        // "ip" begins many other commands.
        ["ip", _, ..] | ["no", "ip", ..] => false,
        ["no", ref rest @ ..] => rest.first().is_some_and(|word| is_member_word(word)),
        [word, ..] => is_member_word(word),
        [] => false,
    }
}

fn is_member_word(word: &str) -> bool {
    matches!(word, "any" | "description" | "group-object" | "host" | "icmp" | "ip" | "range" | "tcp-udp")
        || super::names::PROTOCOLS.iter().any(|(name, _)| *name == word)
        || word.starts_with(|first: char| first.is_ascii_digit())
}

/// The words but for how often an entry matched: "(12 matches)".
fn without_counts<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::with_capacity(words.len());
    let mut rest = words;
    loop {
        rest = match rest {
            [count, "match)" | "matches)", rest @ ..] | [count, "estimate", "matches)", rest @ ..]
                if is_count(count) =>
            {
                rest
            }
            [word, rest @ ..] => {
                kept.push(*word);
                rest
            }
            [] => return kept,
        };
    }
}

fn is_count(word: &str) -> bool {
    word.strip_prefix('(').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
}
