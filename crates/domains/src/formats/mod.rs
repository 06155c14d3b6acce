//! Lists as files.

mod adblock;
mod hosts;
mod lines;
mod looks;
mod plain;
mod rpz;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use self::lines::{Line, Lines};
use crate::builder::{Action, AddError, Builder, Entry, Priority, Reach};
use crate::name::NameError;

/// Bytes of a line.
pub const MAX_LINE: usize = 8192;
/// Refused lines that are kept, to be listed one by one; the others are counted.
pub const MAX_REFUSED: usize = 1 << 16;
/// Bytes of a refused text that are shown.
const SHOWN: usize = 80;

/// The formats of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A name a line: `example.com` and `.example.com` are a name and all below (`reach` of [`ReadOptions`] says otherwise of the first),
    /// `*.example.com` is all below a name. Comments begin with `#`.
    Plain,
    /// A hosts file: an address that leads nowhere (`0.0.0.0`, `127.0.0.1` and others of 127.0.0.0/8, `0`, `::`, `::1`), then names, each
    /// alone. Names of the host itself and of its networks are passed over: see [`is_local`]. Comments begin with `#`.
    Hosts,
    /// Rules of AdBlock about names: `||example.com^` is a name and all below, `|example.com^` the name alone, `||*.example.com^` all below;
    /// with `@@` in front, they are allowed. Exceptions win over rules that block, whatever the length of their names, and `$important` over
    /// both ([`Priority`]). The option `all` changes nothing; any other one, cosmetic rules, paths and patterns are refused. Comments begin
    /// with `!`.
    AdBlock,
    /// The zone file (RFC 1035 section 5) of a response policy zone (draft-vixie-dnsop-dns-rpz): names, each alone, and `*.example.com`, all
    /// below. `CNAME rpz-passthru.` allows; `CNAME .` (NXDOMAIN), `CNAME *.` (NODATA), `CNAME rpz-drop.`, `CNAME` of another name, `A` and
    /// `AAAA` block. Names are relative to the zone, whose name is that of its `SOA`, or of the first `$ORIGIN`. Triggers by address or name
    /// server are refused.
    Rpz,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Hosts, Self::AdBlock, Self::Rpz];

    /// The name on the command line and in chain files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Hosts => "hosts",
            Self::AdBlock => "adblock",
            Self::Rpz => "rpz",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no format {name:?}; expected one of {names}")
        })
    }
}

/// How a list is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The format; `None` is the one that most lines of the first 64 KiB look like.
    pub format: Option<Format>,
    /// What the names of a plain list or of a hosts file are for; rules of AdBlock and zones say it themselves.
    pub action: Action,
    /// Which names a name without a mark reaches: [`Reach::All`] in plain lists and [`Reach::Name`] in hosts files and zones, if `None`.
    pub reach: Option<Reach>,
    /// What the entries yield to; rules of AdBlock say it themselves.
    pub priority: Priority,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { format: None, action: Action::Block, reach: None, priority: Priority::Normal }
    }
}

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The line is too long.
    #[error("a line of more than {MAX_LINE} bytes")]
    Line,
    /// The name is none.
    #[error("{0}")]
    Name(#[from] NameError),
    /// There are characters that names of hosts do not have.
    #[error("a character that is none of a name; expected letters, digits, hyphens, underscores and dots")]
    Character,
    /// A wildcard elsewhere than in front.
    #[error("a wildcard; expected it as the first label alone: *.example.com")]
    Wildcard,
    /// An address instead of a name.
    #[error("an address; expected a name")]
    Address,
    /// Several words instead of a name.
    #[error("several words; expected a name")]
    Words,
    /// A hosts file's line that does not begin with an address.
    #[error("no address in front; expected a line such as 0.0.0.0 example.com")]
    NoAddress,
    /// A hosts file's address without names.
    #[error("an address without a name")]
    NoName,
    /// A hosts file's line that leads to another host.
    #[error("an address that leads somewhere; expected 0.0.0.0, 127.0.0.1, :: or ::1")]
    Host,
    /// A rule of AdBlock that hides parts of pages.
    #[error("a cosmetic rule")]
    Cosmetic,
    /// A rule of AdBlock for a part of a server.
    #[error("a rule with a path or a port")]
    Path,
    /// A rule of AdBlock by pattern.
    #[error("a pattern; expected ||example.com^")]
    Pattern,
    /// A rule of AdBlock by regular expression.
    #[error("a regular expression")]
    Expression,
    /// A rule of AdBlock that is for some requests only.
    #[error("an option for some requests only; expected none, all or important")]
    Option,
    /// A trigger of a zone other than the name that is asked for.
    #[error("a trigger by address or name server (rpz-ip, rpz-client-ip, rpz-nsip, rpz-nsdname)")]
    Trigger,
    /// An absolute name of a zone's file that is not in the zone, or is there before the file says what the zone is.
    #[error(
        "a name outside of the zone; expected one below that of the SOA or of $ORIGIN, or one without a dot at its end"
    )]
    OutOfZone,
    /// A record whose parentheses are still open after 64 lines, or at the end: these lines are not read.
    #[error("a parenthesis that is not closed within 64 lines")]
    Unclosed,
    /// An action of a zone that neither blocks nor allows.
    #[error("an action that neither blocks nor allows")]
    Policy,
    /// A type of records that is no policy.
    #[error("a record that is neither CNAME, A nor AAAA")]
    Type,
    /// What is no record.
    #[error("no record; expected a name, CNAME, A or AAAA, and its data")]
    Record,
    /// A directive of a zone's file that is not followed.
    #[error("a directive other than $ORIGIN and $TTL")]
    Directive,
}

/// Something that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Line of the file, from 1.
    pub line: u32,
    /// The name or the line: its first 80 bytes, without controls.
    pub text: String,
    /// Why it was refused.
    pub reason: Reason,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {:?}: {}", self.line, self.text, self.reason)
    }
}

/// What a file held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The format that it was read in.
    pub format: Format,
    /// Lines.
    pub lines: u32,
    /// Entries that were added.
    pub entries: usize,
    /// Names and records that a list has as a matter of form: those of the host itself in a hosts file, `SOA`, `NS` and DNSSEC's in a zone.
    pub passed_over: usize,
    /// What was refused, in order of lines: the first [`MAX_REFUSED`].
    pub refused: Vec<Refused>,
    /// How much was refused for which reason.
    pub reasons: BTreeMap<Reason, usize>,
}

impl Report {
    /// How much was refused.
    pub fn refused_count(&self) -> usize {
        self.reasons.values().sum()
    }
}

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Reading failed.
    #[error("line {line}: {source}")]
    Io {
        /// The line that was not there, from 1.
        line: u32,
        /// What the system said.
        source: io::Error,
    },
    /// The set cannot have more.
    #[error("line {line}: more than 2 GiB of names")]
    Full {
        /// The line, from 1.
        line: u32,
    },
}

impl Builder {
    /// Reads a list, and adds its entries; `number` gives an entry its number by its line, from 1. Lines may end with CR LF, and a byte
    /// order mark may be in front. What is not understood is refused, and told.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; entries of the lines before have been added.
    pub fn read(
        &mut self,
        reader: impl Read,
        options: &ReadOptions,
        mut number: impl FnMut(u32) -> u32,
    ) -> Result<Report, ReadError> {
        let mut lines = Lines::new(reader);
        let head = lines.head().map_err(|source| ReadError::Io { line: 1, source })?;
        let format = options.format.unwrap_or_else(|| looks::like(head));
        let report = Report {
            format,
            lines: 0,
            entries: 0,
            passed_over: 0,
            refused: Vec::new(),
            reasons: BTreeMap::new(),
        };
        let mut list = List { builder: self, options: *options, number: &mut number, report, is_full: false };
        let mut zone = rpz::Zone::default();
        loop {
            list.report.lines = list.report.lines.saturating_add(1);
            let line = lines.next().map_err(|source| ReadError::Io { line: list.report.lines, source })?;
            let line = match line {
                None => break,
                Some(Line::Whole(line)) => line,
                Some(Line::TooLong(beginning)) => {
                    list.refuse(beginning, Reason::Line);
                    continue;
                }
            };
            match format {
                Format::Plain => plain::read(line, &mut list),
                Format::Hosts => hosts::read(line, &mut list),
                Format::AdBlock => adblock::read(line, &mut list),
                Format::Rpz => zone.read(line, &mut list),
            }
            if list.is_full {
                return Err(ReadError::Full { line: list.report.lines });
            }
        }
        list.report.lines -= 1;
        zone.end(&mut list);
        Ok(list.report)
    }
}

/// A list, while it is read.
struct List<'a> {
    builder: &'a mut Builder,
    options: ReadOptions,
    number: &'a mut dyn FnMut(u32) -> u32,
    report: Report,
    is_full: bool,
}

impl List<'_> {
    /// Adds a name.
    fn add(&mut self, name: &[u8], reach: Reach, action: Action, priority: Priority) {
        let entry = Entry { name: "", reach, action, priority, number: (self.number)(self.report.lines) };
        match self.builder.add_bytes(name, entry) {
            Ok(()) => self.report.entries += 1,
            Err(AddError::Name(error)) => self.refuse(name, error.into()),
            Err(AddError::Full) => self.is_full = true,
        }
    }

    /// Takes note of a line, or a part of it, that is not taken.
    fn refuse(&mut self, text: &[u8], reason: Reason) {
        *self.report.reasons.entry(reason).or_default() += 1;
        if self.report.refused.len() < MAX_REFUSED {
            let text = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
            let text = text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect();
            self.report.refused.push(Refused { line: self.report.lines, text, reason });
        }
    }

    /// Adds a name of a host, or says why it is none.
    fn add_host(&mut self, name: &[u8], reach: Reach, action: Action, priority: Priority) {
        match host(name) {
            Ok(()) => self.add(name, reach, action, priority),
            Err(reason) => self.refuse(name, reason),
        }
    }
}

/// Whether a name of a hosts file is one of the host itself or of its networks, which are no part of the list: `localhost`, `localhost4`,
/// `localhost6`, these with `.localdomain`, `.localdomain4`, `.localdomain6`, `local`, `broadcasthost`, `ip6-localhost`, `ip6-loopback`,
/// `ip6-localnet`, `ip6-mcastprefix`, `ip6-allnodes`, `ip6-allrouters`, `ip6-allhosts`, and `0.0.0.0`.
pub fn is_local(name: &[u8]) -> bool {
    const LOCAL: [&[u8]; 15] = [
        b"localhost",
        b"localhost.localdomain",
        b"localhost4",
        b"localhost4.localdomain4",
        b"localhost6",
        b"localhost6.localdomain6",
        b"local",
        b"broadcasthost",
        b"ip6-localhost",
        b"ip6-loopback",
        b"ip6-localnet",
        b"ip6-mcastprefix",
        b"ip6-allnodes",
        b"ip6-allrouters",
        b"ip6-allhosts",
    ];
    LOCAL.iter().any(|local| local.eq_ignore_ascii_case(name)) || name == b"0.0.0.0"
}

/// Whether a word is a name as hosts have them: letters, digits, hyphens, underscores and dots, and what is not of ASCII.
fn host(name: &[u8]) -> Result<(), Reason> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | 0x80..);
    if !name.iter().all(is_part) {
        return Err(match name {
            name if address(name).is_some() => Reason::Address,
            name if name.contains(&b'*') => Reason::Wildcard,
            _ => Reason::Character,
        });
    }
    // Only addresses of IPv4 end with digits and begin with one.
    let is_number =
        name.first().is_some_and(u8::is_ascii_digit) && name.last().is_some_and(u8::is_ascii_digit);
    if is_number && address(name).is_some() {
        return Err(Reason::Address);
    }
    Ok(())
}

/// The address that a word is.
fn address(word: &[u8]) -> Option<std::net::IpAddr> {
    // None is longer.
    let word = word.get(..word.len().min(64)).filter(|short| short.len() == word.len())?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// What is before a mark, if it is there.
fn before(text: &[u8], mark: u8) -> &[u8] {
    memchr::memchr(mark, text).map_or(text, |at| &text[..at])
}

/// The words of a line.
fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}
