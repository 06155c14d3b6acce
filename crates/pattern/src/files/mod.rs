//! Files of patterns: lists of literals, and the literals of rules for Suricata and Snort.
//!
//! [`read`] makes [`Signatures`] of a file: the [`Patterns`] to look for, and what it means that some of them are in a payload.
//!
//! ```
//! use packetloom_pattern::files::{Options, Places, read};
//!
//! let rules = br#"
//!     alert tcp any any -> any any (msg:"a shell"; content:"/bin/"; content:"sh"; nocase; content:!"bash"; sid:7;)
//!     alert tcp any any -> any any (msg:"too much"; content:"x"; pcre:"/x+/"; sid:8;)
//! "#;
//! let read = read(rules, &Options::default()).unwrap();
//! assert_eq!(read.patterns.len(), 3);
//! assert_eq!(read.left_out[0].reason.to_string(), "it needs the option pcre");
//! // A payload with the patterns 0 and 1, but not 2.
//! let mut matched = Vec::new();
//! read.matched(&[0, 1], Places::PAYLOAD, &mut matched, &mut Vec::new());
//! assert_eq!(read.signatures[matched[0] as usize].name, "a shell");
//! ```
//!
//! # Lines
//!
//! A pattern a line, of any bytes; blanks at its beginning and end belong to it. `\\` is a backslash, `\n`, `\r`, `\t` and `\0` are
//! LF, CR, TAB and NUL, `\xHH` is any byte, and `\#` at the beginning is a `#`. Blank lines and lines that begin with `#` are
//! passed over, and so is a byte order mark. A CR before the LF belongs to the end of the line.
//!
//! # Hex
//!
//! A pattern a line as pairs of hex digits, with or without blanks between pairs. `#` begins a comment.
//!
//! # Rules
//!
//! The rule language of Suricata, Snort 2 and Snort 3, as far as it tells which literals a payload has, and which it has not: `content`
//! with `nocase`, `offset`, `depth`, `startswith`, `fast_pattern` and `rawbytes`, as keywords of their own or, in Snort 3's way,
//! behind a comma. The bytes of `depth` are counted from `offset` on. A payload that ends before `offset` has no such literal, and one
//! that is negated holds, as it does for Suricata. Rules may be continued with a backslash at the end of a line or, as Snort 3's,
//! simply go on until their closing parenthesis. `#` begins comments, also those that turn off a rule; Snort 3's blocks of comments are
//! not known.
//!
//! A content lies in the payload, or in the field that a sticky buffer of Suricata in front of it names (`http.uri; content:"..."`), or a
//! modifier behind it (`content:"..."; http_uri`), and is to be found there: each pattern has the [`Places`] where it is looked for
//! ([`Signatures::places_of`]), and a signature those that have to be there ([`Signature::places`]). [`Options::places`] says which rules are
//! taken. `flow` may ask for what is true of every request: `established`, `to_server` and `from_client`, where a content is in such a field.
//!
//! A rule that asks for anything else is left out: each condition narrows what a rule finds, and without it the rule would report
//! what its author did not mean. [`Options::by_fast_pattern`] takes them as candidates instead. So are rules with the action `pass` and
//! rules without a literal that has to be there.
//!
//! Protocol, addresses, ports, direction and service in front of the options are not looked at
//! ([`Signatures::headers_not_checked`]). Literals are looked for in single payloads: streams are not put together.
//!
//! The language: Suricata user guide, "Rules Format" and "Payload Keywords"; Snort 3 rule writing guide.

mod lines;
mod places;
mod rules;
mod text;

use std::collections::HashMap;

pub use self::places::{BUFFERS, Places};
pub use self::text::display;
use crate::{Pattern, Patterns, Refused};

/// How a file is written; see the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// [`Rules`](Self::Rules) where the first line that is no comment begins a rule, else [`Lines`](Self::Lines). It is never
    /// [`Hex`](Self::Hex): digits may be meant as text.
    #[default]
    Auto,
    /// A literal a line.
    Lines,
    /// A literal a line, in hex digits.
    Hex,
    /// Rules for Suricata or Snort.
    Rules,
}

impl Format {
    /// All.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Lines, Self::Hex, Self::Rules];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Lines => "lines",
            Self::Hex => "hex",
            Self::Rules => "rules",
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| UnknownFormat(name.into()))
    }
}

/// A name that no format has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a format of patterns; expected auto, lines, hex or rules")]
pub struct UnknownFormat(String);

/// How a file is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How it is written.
    pub format: Format,
    /// Takes each rule by its fast pattern alone, with `nocase`: the content with the option `fast_pattern`, else the longest one that
    /// is not negated, of several that with the greatest variety of bytes, as Suricata chooses, though in whatever buffer it is unless
    /// [`places`](Self::places) says so. `offset` and `depth` count unless the content is relative to another one or may be in another buffer.
    ///
    /// This finds all packets that a rule can match, as far as this content lies in one packet as it is sent, and more.
    pub by_fast_pattern: bool,
    /// Has letters of lists match in both cases. Rules say themselves where.
    pub ignore_case: bool,
    /// Where contents of rules lie that are taken, and where patterns of lists are looked for. Rules with a content elsewhere are left out; with
    /// `by_fast_pattern` those that have none there, but for the payload alone, for which all are taken. Unless given, contents of rules may
    /// lie anywhere, and patterns of lists, and all with `by_fast_pattern`, are looked for in the payload.
    pub places: Option<Places>,
}

/// What a file gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signatures {
    /// What to look for: each literal with the same options once. A [`Matcher`](crate::Matcher) may take them away from here.
    pub patterns: Patterns,
    /// What that means, in the order of the file.
    pub signatures: Vec<Signature>,
    /// What could not be used, in the order of the file.
    pub left_out: Vec<LeftOut>,
    /// How the file was written; not [`Format::Auto`].
    pub format: Format,
    /// Signatures of which the protocol, addresses, ports or services are not looked at: all rules that do not take any.
    pub headers_not_checked: usize,
    /// Where each pattern is looked for.
    places: Vec<Places>,
    /// Where the list of each pattern in `by_anchor` begins, and the end of the last one.
    anchors: Vec<u32>,
    /// For each pattern the signatures that are looked at when a payload has it.
    by_anchor: Vec<u32>,
}

/// What is looked for as one: a line of a list, or a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Its first line, from 1 on.
    pub line: u32,
    /// Number of the generator (`gid`).
    pub gid: Option<u32>,
    /// Number of the rule (`sid`).
    pub id: Option<u32>,
    /// Its revision (`rev`).
    pub revision: Option<u32>,
    /// Its message (`msg`), else the text of the line; what is not printable is escaped.
    pub name: String,
    /// What kind of thing it finds (`classtype`).
    pub category: Option<String>,
    /// From 1, the most severe, to 255 (`priority`).
    pub severity: Option<u8>,
    /// Numbers of patterns, all of which a payload has to have; ascending, one at least.
    pub needs: Box<[u32]>,
    /// Numbers of patterns of which it may have none; ascending.
    pub excludes: Box<[u32]>,
    /// Where contents of a rule lie: what does not have all of these does not match. None of a list.
    pub places: Places,
}

/// A line or a rule that could not be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its first line, from 1 on.
    pub line: u32,
    /// The beginning of its text; what is not printable is escaped.
    pub text: String,
    /// Why.
    pub reason: Reason,
}

/// Why a line or a rule could not be used. The same cause gives the same reason, so that they can be counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// No set can have such a pattern.
    #[error(transparent)]
    Pattern(#[from] Refused),
    /// A backslash in a list before something else than an escape.
    #[error(r"{0} is not an escape; expected \\, \n, \r, \t, \0, \xHH, or \# at the beginning")]
    Escape(String),
    /// A backslash in a content before something else than an escape.
    #[error(r#"{0} is not an escape; expected \\, \", \; or \:"#)]
    ContentEscape(String),
    /// Something else than hex digits.
    #[error("{0} is not a hex digit")]
    HexDigit(String),
    /// Hex digits that are no pairs.
    #[error("an odd number of hex digits; expected pairs")]
    OddHex,
    /// Hex digits in a content without an end.
    #[error("hex digits that do not end; expected a second |")]
    OpenHex,
    /// Something else than a rule.
    #[error("not a rule; expected an action, addresses and ports, and options in parentheses")]
    NotARule,
    /// A rule of another purpose.
    #[error("the action {0} does not report what it finds")]
    Action(String),
    /// A rule without an end.
    #[error("the rule does not end; expected )")]
    OpenRule,
    /// A text in quotes without an end.
    #[error("a quoted text that does not end on its line")]
    OpenQuote,
    /// Something behind the last parenthesis of a rule.
    #[error("text behind the rule; expected the end of the line after )")]
    Trailing,
    /// Something else than the name of an option.
    #[error("options are written wrongly; expected name; or name:value;")]
    Syntax,
    /// A content without quotes, or with something behind them.
    #[error("a content is written wrongly; expected \"text\" or !\"text\"")]
    Content,
    /// An option that asks for more than literals.
    #[error("it needs the option {0}")]
    Option(String),
    /// A content in another field.
    #[error("a content is in {is}; expected it in {expected}")]
    Elsewhere {
        /// Where it is; none of what is known.
        is: Places,
        /// Where contents are looked for.
        expected: Places,
    },
    /// An option that changes the content before it, where there is none.
    #[error("the option {0} without a content before it")]
    Misplaced(String),
    /// An option that a content has twice, or together with one that contradicts it.
    #[error("the option {0} does not go with another one of the same content")]
    Conflict(String),
    /// A number that is none, or too large.
    #[error("the value of {option} is not usable; expected a number from 0 to {most}")]
    Number {
        /// Of which option.
        option: &'static str,
        /// The largest.
        most: u32,
    },
    /// A rule without literals.
    #[error("it has no content")]
    NoContent,
    /// A rule that holds for payloads because of what they do not have.
    #[error("all its contents are negated")]
    AllNegated,
}

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has blank lines and comments at most.
    #[error("no {} in {lines} lines; expected {}", things(*.format), expected(*.format))]
    Nothing {
        /// How it was read.
        format: Format,
        /// Lines that it has.
        lines: u32,
    },
    /// All that it has was left out.
    #[error(
        "line {}: {}; none of {count} {} can be used; expected {}",
        .first.line, .first.reason, things(*.format), expected(*.format)
    )]
    AllLeftOut {
        /// How it was read.
        format: Format,
        /// The first.
        first: LeftOut,
        /// How many.
        count: usize,
    },
}

const fn things(format: Format) -> &'static str {
    match format {
        Format::Rules => "rules",
        _ => "patterns",
    }
}

const fn expected(format: Format) -> &'static str {
    match format {
        Format::Rules => "rules such as alert tcp any any -> any any (msg:\"...\"; content:\"...\"; sid:1;)",
        Format::Hex => "lines of hex digits",
        _ => "a pattern a line",
    }
}

/// Reads a file, of any bytes. What it takes in memory is proportional to the file.
///
/// # Errors
///
/// A file without one signature that can be used.
pub fn read(text: &[u8], options: &Options) -> Result<Signatures, Error> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let format = match options.format {
        Format::Auto if rules::begins_with_rule(text) => Format::Rules,
        Format::Auto => Format::Lines,
        format => format,
    };
    let mut set = Builder::default();
    let lines = match format {
        Format::Rules => rules::read(text, options, &mut set),
        _ => lines::read(text, format == Format::Hex, options, &mut set),
    };
    set.finish(format, lines)
}

impl Signatures {
    /// Where a pattern is looked for: in one place where it is of rules.
    #[inline]
    pub fn places_of(&self, pattern: u32) -> Places {
        self.places[pattern as usize]
    }

    /// Where patterns are looked for at all.
    pub fn all_places(&self) -> Places {
        self.places.iter().fold(Places::NONE, |all, &places| all.and(places))
    }

    /// Whether each signature is one pattern, so that any match is one of a signature.
    pub fn are_single(&self) -> bool {
        // A pattern may be of no signature where the set was full before the rest of its rule came.
        let are_all_of_signatures = self.anchors.windows(2).all(|pair| pair[0] < pair[1]);
        let is_single = |signature: &Signature| signature.needs.len() == 1 && signature.excludes.is_empty();
        are_all_of_signatures && self.signatures.iter().all(is_single)
    }

    /// Which signatures a packet has, by the numbers of the patterns in it, each found in one of [its places](Self::places_of), in any order and any
    /// number of times, and by the places that are there. Numbers of signatures are added to `matched`, ascending and each once. `scratch` is
    /// room to work in.
    ///
    /// # Panics
    ///
    /// Where no pattern has one of the numbers.
    pub fn matched(&self, patterns: &[u32], there: Places, matched: &mut Vec<u32>, scratch: &mut Vec<u32>) {
        let found = match patterns {
            [] => return,
            [_] => patterns,
            _ => {
                scratch.clear();
                scratch.extend_from_slice(patterns);
                scratch.sort_unstable();
                scratch.dedup();
                scratch
            }
        };
        let has = |pattern: &u32| match found {
            [one] => one == pattern,
            _ => found.binary_search(pattern).is_ok(),
        };
        let first = matched.len();
        for &pattern in found {
            let list = self.anchors[pattern as usize] as usize..self.anchors[pattern as usize + 1] as usize;
            for &number in &self.by_anchor[list] {
                let Signature { needs, excludes, places, .. } = &self.signatures[number as usize];
                if needs.len() <= found.len()
                    && there.has(*places)
                    && needs.iter().all(has)
                    && !excludes.iter().any(has)
                {
                    matched.push(number);
                }
            }
        }
        matched[first..].sort_unstable();
    }
}

/// Signatures as they are read.
#[derive(Default)]
struct Builder {
    patterns: Patterns,
    places: Vec<Places>,
    /// Numbers of patterns by their places, options and bytes.
    numbers: HashMap<Box<[u8]>, u32>,
    key: Vec<u8>,
    signatures: Vec<Signature>,
    left_out: Vec<LeftOut>,
    headers_not_checked: usize,
}

impl Builder {
    /// The number of a pattern, which is the same for all that match the same in the same places.
    fn number(&mut self, mut pattern: Pattern<'_>, places: Places) -> Result<u32, Refused> {
        pattern.ignore_case &= pattern.bytes.iter().any(u8::is_ascii_alphabetic);
        self.key.clear();
        self.key.push(pattern.ignore_case.into());
        self.key.extend_from_slice(&places.bits().to_le_bytes());
        self.key.extend_from_slice(&pattern.bounds.offset.to_le_bytes());
        self.key.extend_from_slice(&pattern.bounds.depth.to_le_bytes());
        let options = self.key.len();
        self.key.extend_from_slice(pattern.bytes);
        if pattern.ignore_case {
            self.key[options..].make_ascii_lowercase();
        }
        if let Some(&number) = self.numbers.get(&self.key[..]) {
            return Ok(number);
        }
        let number = self.patterns.push(pattern)?;
        self.places.push(places);
        self.numbers.insert(self.key.as_slice().into(), number);
        Ok(number)
    }

    fn leave_out(&mut self, line: u32, text: &[u8], reason: Reason) {
        self.left_out.push(LeftOut { line, text: text::cut(text), reason });
    }

    fn finish(self, format: Format, lines: u32) -> Result<Signatures, Error> {
        let Self { patterns, places, signatures, left_out, headers_not_checked, .. } = self;
        if signatures.is_empty() {
            let count = left_out.len();
            return Err(match left_out.into_iter().next() {
                Some(first) => Error::AllLeftOut { format, first, count },
                None => Error::Nothing { format, lines },
            });
        }
        // A signature hangs on one pattern that it needs, the longest: that is likely the rarest.
        let longest = |signature: &Signature| {
            signature.needs.iter().copied().max_by_key(|&number| patterns.get(number).bytes.len())
        };
        let of_each: Vec<u32> = signatures.iter().map(|s| longest(s).expect("a pattern")).collect();
        let mut anchors = vec![0; patterns.len() + 1];
        of_each.iter().for_each(|&anchor| anchors[anchor as usize + 1] += 1);
        for at in 1..anchors.len() {
            anchors[at] += anchors[at - 1];
        }
        let mut next = anchors.clone();
        let mut by_anchor = vec![0; signatures.len()];
        for (number, &anchor) in of_each.iter().enumerate() {
            by_anchor[next[anchor as usize] as usize] = number as u32;
            next[anchor as usize] += 1;
        }
        Ok(Signatures {
            patterns,
            signatures,
            left_out,
            format,
            headers_not_checked,
            places,
            anchors,
            by_anchor,
        })
    }
}
