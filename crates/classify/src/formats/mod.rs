//! Rules and headers from text, recognised by content, and rules written as text.
//!
//! - [`native`]: Packetloom's own rules and headers.
//! - [`classbench`]: ClassBench filter sets and traces.
//! - [`cisco`]: access lists of Cisco IOS.
//! - [`vpp`]: access lists of VPP's ACL plugin.
//! - [`flowspec`]: BGP flow specifications, as NLRIs and in the text of ExaBGP.
//! - [`iptables`]: what `iptables-save` and `ip6tables-save` print.
//! - [`nftables`]: what `nft -j list ruleset` prints.
//! - [`changes`]: changes of a list of rules.
//!
//! Every error names the file, the line and what was expected. What a format can say and our rules cannot is an error too, or
//! is left out and listed ([`Options::skip_unsupported`]); it is never taken for something else.
//!
//! To add a format, write a module and add a line to `FORMATS`.

mod builder;
mod chains;
pub mod changes;
pub mod cisco;
pub mod classbench;
pub mod flowspec;
pub mod iptables;
mod looks;
mod loss;
mod meet;
mod mistakes;
mod names;
pub mod native;
pub mod nftables;
mod region;
mod set;
mod text;
pub mod vpp;
mod writing;

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufRead, Write};
use std::str::FromStr;

use packetloom_packet::{Key, MatchKey4, MatchKey6};

use crate::rule::Fragments;
use crate::{Action, Gaps, Rule, RuleSet};
pub use looks::{Looks, looks_like};
pub use mistakes::{did_you_mean, grouped};
use text::Input;
use writing::Writing;

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
    /// A line says something that has no equal among our rules.
    #[error("{file}:{line}: {message} (--skip-unsupported leaves it out)")]
    Unsupported {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: u32,
        /// The construct.
        message: String,
    },
    /// Which of the file's lists is meant is not clear, or it is not there.
    #[error("{file}: {message}")]
    List {
        /// Name of the file.
        file: String,
        /// What there is and what was expected.
        message: String,
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
    /// Several lines say something else than expected, or something that has no equal.
    #[error("{}", mistakes::several(file, first, *more))]
    Several {
        /// Name of the file.
        file: String,
        /// The first of them, each of one line: up to 65,536.
        first: Vec<Error>,
        /// How many follow.
        more: usize,
    },
}

impl Error {
    /// The mistakes of lines that it is about, each with its line; none where it is about the whole.
    pub fn mistakes(&self) -> Vec<(u32, &str)> {
        match self {
            Self::Unsupported { line, message, .. } | Self::Syntax { line, message, .. } => {
                vec![(*line, message)]
            }
            Self::Several { first, .. } => first.iter().flat_map(Self::mistakes).collect(),
            Self::Io { .. } | Self::List { .. } => Vec::new(),
        }
    }

    fn syntax(file: &str, line: u32, mut message: String) -> Self {
        if let Some(word) = mistakes::did_you_mean(&message) {
            message += &format!("; did you mean {word:?}?");
        }
        Self::Syntax { file: file.into(), line, message }
    }
}

/// The formats there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Packetloom's own.
    Native,
    /// ClassBench's: rules have no action.
    ClassBench,
    /// Access lists of Cisco IOS.
    CiscoIos,
    /// Access lists of VPP's ACL plugin.
    Vpp,
    /// BGP flow specifications as NLRIs in hexadecimal.
    FlowSpec,
    /// BGP flow specifications in the text of ExaBGP.
    ExaBgp,
    /// What `iptables-save` prints: IPv4 only.
    Iptables,
    /// What `ip6tables-save` prints: IPv6 only.
    Ip6tables,
    /// What `nft -j list ruleset` prints.
    Nftables,
}

/// What a format consists of.
struct Description {
    format: Format,
    /// The name on the command line and in chain files.
    name: &'static str,
    /// Whether its lists have names, of which [`Options::list`] is one.
    has_lists: bool,
    /// Whether a file that begins with this text is of the format.
    recognises: fn(&str) -> bool,
    read: fn(&mut Input<'_>, &Options) -> Result<Reading, Error>,
    write: fn(&[Rule], &mut Writing<'_>) -> Result<(), WriteError>,
}

/// Every format; a file is of the first that recognises it.
const FORMATS: &[Description] = &[
    Description {
        format: Format::ClassBench,
        name: "classbench",
        has_lists: false,
        recognises: classbench::recognises,
        read: classbench::read,
        write: classbench::write,
    },
    Description {
        format: Format::CiscoIos,
        name: "cisco-ios",
        has_lists: true,
        recognises: cisco::recognises,
        read: cisco::read,
        write: cisco::write,
    },
    Description {
        format: Format::Vpp,
        name: "vpp",
        has_lists: true,
        recognises: vpp::recognises,
        read: vpp::read,
        write: vpp::write,
    },
    Description {
        format: Format::FlowSpec,
        name: "flowspec",
        has_lists: false,
        recognises: flowspec::hex::recognises,
        read: flowspec::hex::read,
        write: flowspec::hex::write,
    },
    Description {
        format: Format::ExaBgp,
        name: "exabgp",
        has_lists: false,
        recognises: flowspec::exabgp::recognises,
        read: flowspec::exabgp::read,
        write: flowspec::exabgp::write,
    },
    Description {
        format: Format::Ip6tables,
        name: "ip6tables",
        has_lists: true,
        recognises: iptables::recognises_v6,
        read: iptables::read_v6,
        write: iptables::write_v6,
    },
    Description {
        format: Format::Iptables,
        name: "iptables",
        has_lists: true,
        recognises: iptables::recognises,
        read: iptables::read_v4,
        write: iptables::write_v4,
    },
    Description {
        format: Format::Nftables,
        name: "nftables",
        has_lists: true,
        recognises: nftables::recognises,
        read: nftables::read,
        write: nftables::write,
    },
    // Whatever is of no other format is told what our own expects.
    Description {
        format: Format::Native,
        name: "native",
        has_lists: false,
        recognises: |_| true,
        read: native::read,
        write: native::write,
    },
];

impl Format {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        FORMATS.iter().map(|description| description.format)
    }

    fn description(self) -> &'static Description {
        // Every format has a line, or the tests of names fail.
        FORMATS.iter().find(|description| description.format == self).unwrap_or(&FORMATS[FORMATS.len() - 1])
    }

    /// Whether rules of another program may be for some interfaces, or some states of connections, only.
    fn is_of_netfilter(self) -> bool {
        matches!(self, Self::Iptables | Self::Ip6tables | Self::Nftables)
    }

    /// The name on the command line and in chain files.
    pub fn name(self) -> &'static str {
        self.description().name
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
        Self::all().find(|format| format.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::all().map(Self::name).collect();
            format!("no format {name:?}; expected one of {}", names.join(", "))
        })
    }
}

/// How rules are read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Read ClassBench's flags column as if every rule left it open.
    pub ignore_flags: bool,
    /// The format; `None` is recognised by content.
    pub format: Option<Format>,
    /// Leave out what has no equal among our rules, and list it, instead of refusing the file. What is left out can change
    /// which rule decides.
    pub skip_unsupported: bool,
    /// The list to take from a file that holds several.
    pub list: Option<String>,
}

/// What a file held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The rules, in order.
    pub rules: RuleSet,
    /// What the file says is done with packets that no rule matches.
    pub default: Option<Action>,
    /// The format it was in.
    pub format: Format,
    /// What was left out, in order of lines.
    pub skipped: Vec<Skipped>,
    /// Where in the list it stood, as far as it may decide packets.
    pub gaps: Gaps,
    /// What of the file's own rules became which.
    pub origins: Origins,
    /// What of the file is not part of the list, though it may decide the same packets: other tables.
    pub elsewhere: Vec<Elsewhere>,
}

/// A table, or a chain, that a file has beside the list that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its line, from 1.
    pub line: u32,
    /// What it is called, such as `table nat`.
    pub name: String,
    /// How many rules it has.
    pub rules: usize,
    /// Whether a policy of it drops packets.
    pub drops: bool,
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.rules == 1 { "" } else { "s" };
        let drops = if self.drops { " and a policy DROP" } else { "" };
        write!(f, "{} with {} rule{plural}{drops}", self.name, self.rules)
    }
}

/// Which of a file's own rules, counted in any order, each rule and each thing left out is from. One rule of a file may become
/// several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins {
    /// That of each rule.
    pub rules: Vec<u32>,
    /// That of each thing left out.
    pub skipped: Vec<u32>,
    /// Others, which may have become nothing, and some of the same.
    others: Vec<u32>,
}

impl Origins {
    /// Stands for no rule of the file: for what it implies.
    pub const NONE: u32 = u32::MAX;

    /// How many rules the list had in its file.
    pub fn count(&self) -> usize {
        distinct([&self.rules, &self.skipped, &self.others].into_iter().flatten().copied())
    }
}

/// How many different numbers there are, [`Origins::NONE`] not among them.
pub fn distinct(origins: impl Iterator<Item = u32>) -> usize {
    let mut origins: Vec<u32> = origins.filter(|&origin| origin != Origins::NONE).collect();
    origins.sort_unstable();
    origins.dedup();
    origins.len()
}

/// Something that was left out because there are no words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Line of the file that was read, from 1.
    pub line: u32,
    /// The construct.
    pub message: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl Skipped {
    /// What things of this kind have in common: the construct without its values, such as `-m limit` or `-o`.
    pub fn construct(&self) -> String {
        loss::construct(&self.message)
    }
}

/// A rule that was not written, because the format has no words for it or for some of its packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    /// Line of the file that the rule is from, from 1.
    pub line: u32,
    /// Its position, from 0.
    pub position: usize,
    /// What there are no words for.
    pub reason: String,
    /// The same with the rule in our own format.
    pub message: String,
}

impl Unwritten {
    /// Whether it is for what the rule says of fragments that there are no words for it ([`FragmentsAs::Ignored`]).
    pub fn is_of_fragments(&self) -> bool {
        self.reason.contains("fragments")
    }
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

/// Reads a rule list; `file` is its name in messages.
///
/// # Errors
///
/// [`Error::Syntax`] of a line that is no rule, [`Error::Unsupported`] of one that no rule of ours equals, [`Error::Several`] of more
/// than one, [`Error::List`], [`Error::Io`].
pub fn read_rules(file: &str, reader: &mut dyn BufRead, options: &Options) -> Result<Reading, Error> {
    let mut input = Input::new(file, reader)?;
    if let Some(Looks { what, advice }) = looks::binary(input.bytes()) {
        return Err(Error::List { file: file.into(), message: format!("it looks like {what}; {advice}") });
    }
    let format = options.format.unwrap_or_else(|| {
        let recognised = FORMATS.iter().find(|description| (description.recognises)(input.head()));
        recognised.map_or(Format::Native, |description| description.format)
    });
    if options.format.is_none()
        && format == Format::Native
        && let Some(Looks { what, advice }) = looks::text(input.head())
    {
        let message = format!("it looks like {what}; {advice}");
        return Err(Error::Syntax {
            file: file.into(),
            line: text::first_line_number(input.head()),
            message,
        });
    }
    let description = format.description();
    if let (false, Some(list)) = (description.has_lists, &options.list) {
        let message =
            format!("list {list:?} of the format {format}, whose lists have no names; expected no name");
        return Err(Error::List { file: file.into(), message });
    }
    (description.read)(&mut input, options)
}

/// Rules that could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The format has no words for a rule.
    #[error("rule {index} has no line in this format, {reason}: {rule}")]
    Inexpressible {
        /// The rule's position, from 0.
        index: usize,
        /// What there are no words for.
        reason: String,
        /// The rule in our own format.
        rule: Box<Rule>,
    },
    /// The format cannot say what is done with packets that no rule matches.
    #[error("the default {} cannot be written in this format, {reason}", .action.name())]
    Default {
        /// What is done with them.
        action: Action,
        /// Why there are no words for it.
        reason: &'static str,
    },
}

/// How rules are written.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// What is done with packets that no rule matches. `None` denies them, in every format: a list without a default denies what
    /// no rule matches, so a writer says that wherever its format would do something else.
    pub default: Option<Action>,
    /// Leave out what the format has no words for, and list it, instead of giving up. The default is never left out.
    pub skip_unsupported: bool,
    /// Write the conditions of rules alone where the format holds no actions and no default (ClassBench), instead of refusing
    /// lists that have them.
    pub conditions_only: bool,
    /// What is done where the format cannot say what rules say of fragments.
    pub fragments: FragmentsAs,
}

/// How what rules say of fragments is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FragmentsAs {
    /// As it is: a rule that the format has no words for is not written.
    #[default]
    Exact,
    /// As if there were none, where the format has no words for it: packets that are no fragments get the same verdict, fragments
    /// perhaps another. A rule for fragments alone is left out, any other one matches as many fragments as the format's rule does.
    Ignored,
}

/// A rule whose fragments may get another verdict than it says ([`FragmentsAs::Ignored`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approximated {
    /// Line of the file that the rule is from, from 1.
    pub line: u32,
    /// Its position, from 0.
    pub position: usize,
    /// Whether more fragments may be permitted than by the rule; otherwise fewer.
    pub permits_more: bool,
    /// The rule in our own format.
    pub rule: String,
}

/// What became of rules that were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Those that were not.
    pub unwritten: Vec<Unwritten>,
    /// Those that were written in part of their meaning.
    pub approximated: Vec<Approximated>,
}

impl WriteOptions {
    /// What is done with packets that no rule matches.
    pub fn closing(&self) -> Action {
        self.default.unwrap_or(Action::Deny)
    }
}

/// Writes rules, and says what was left out.
///
/// # Errors
///
/// [`WriteError`]; what came before is written then.
pub fn write_rules(
    rules: &[Rule],
    format: Format,
    options: &WriteOptions,
    writer: &mut dyn Write,
) -> Result<Written, WriteError> {
    if options.fragments == FragmentsAs::Exact {
        let unwritten = write_exactly(rules, format, options, writer)?;
        return Ok(Written { unwritten, approximated: Vec::new() });
    }
    // Rules that there are words for stay as they are.
    let trial = WriteOptions { skip_unsupported: true, ..options.clone() };
    let trial = write_exactly(rules, format, &trial, &mut io::sink())?;
    let of_fragments = trial.iter().filter(|rule| rule.is_of_fragments());
    let mut without_words: Vec<usize> = of_fragments.map(|rule| rule.position).collect();
    without_words.sort_unstable();
    without_words.dedup();
    let mut approximated = Vec::with_capacity(without_words.len());
    // Each with its position.
    let mut others: Vec<(usize, Rule)> = rules.iter().cloned().enumerate().collect();
    for position in without_words {
        let rule = &mut others[position].1;
        let text = rule.to_string();
        let is_whole = meet::matches_whole(rule);
        let permits = rule.action != Some(Action::Deny);
        let permits_more = permits == is_whole;
        approximated.push(Approximated { line: rule.line, position, permits_more, rule: text });
        rule.fragments = if is_whole { Fragments::All } else { Fragments::Later };
    }
    // Of rules for fragments alone nothing is left.
    let mut at = approximated.iter().map(|rule| rule.position).peekable();
    others.retain(|(position, rule)| at.next_if_eq(position).is_none() || meet::matches_whole(rule));
    let (positions, others) = others.into_iter().unzip();
    let unwritten = write_some(others, positions, format, options, true, writer)?;
    let lost: HashSet<usize> = unwritten.iter().map(|rule| rule.position).collect();
    approximated.retain(|rule| !lost.contains(&rule.position));
    Ok(Written { unwritten, approximated })
}

/// Writes rules, each as it is.
fn write_exactly(
    rules: &[Rule],
    format: Format,
    options: &WriteOptions,
    writer: &mut dyn Write,
) -> Result<Vec<Unwritten>, WriteError> {
    write_some(rules.to_vec(), (0..rules.len()).collect(), format, options, false, writer)
}

/// Writes rules that have these positions.
fn write_some(
    rules: Vec<Rule>,
    positions: Vec<usize>,
    format: Format,
    options: &WriteOptions,
    ignores_fragments: bool,
    writer: &mut dyn Write,
) -> Result<Vec<Unwritten>, WriteError> {
    let mut writing = Writing { writer, options, unwritten: Vec::new(), positions, ignores_fragments };
    if format == Format::Native {
        (format.description().write)(&rules, &mut writing)?;
        return Ok(writing.unwritten);
    }
    let (mut kept, mut positions) = (Vec::with_capacity(rules.len()), Vec::with_capacity(rules.len()));
    for (index, rule) in rules.into_iter().enumerate() {
        if rule.mark != 0 {
            writing.inexpressible(index, &rule, "where no rule sets a mark")?;
        } else if (rule.interfaces.is_some() || rule.out.is_some()) && !format.is_of_netfilter() {
            writing.inexpressible(index, &rule, "where no rule names interfaces")?;
        } else if !rule.states.is_all() && !format.is_of_netfilter() {
            writing.inexpressible(index, &rule, "where no rule asks for states of connections")?;
        } else {
            kept.push(rule);
            positions.push(writing.positions[index]);
        }
    }
    writing.positions = positions;
    (format.description().write)(&kept, &mut writing)?;
    Ok(writing.unwritten)
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
/// [`Error::Syntax`] of a line that is no header, [`Error::Several`] of more than one, [`Error::Io`].
pub fn read_headers(file: &str, reader: &mut dyn BufRead) -> Result<Headers, Error> {
    let mut headers = Headers::default();
    // A trace holds nothing but decimal numbers; our own headers have a '>' in them.
    let mut is_classbench = None;
    text::lines(file, reader, |line, text| {
        let (text, _) = text::split_comment(text);
        if text.is_empty() {
            return Ok(());
        }
        let key = if *is_classbench.get_or_insert_with(|| !text.contains('>')) {
            classbench::parse_header(text).map(Key::V4)
        } else {
            native::parse_header(text)
        };
        headers.push(key.map_err(|message| Error::syntax(file, line, message))?);
        Ok(())
    })?;
    Ok(headers)
}

/// Reads one header in our own words, such as `tcp 192.0.2.1:1234 > 198.51.100.10:443 flags S`.
///
/// # Errors
///
/// What stands there and what was expected.
pub fn parse_header(text: &str) -> Result<Key, String> {
    native::parse_header(text)
}
