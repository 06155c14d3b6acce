//! Flow specifications in the text of ExaBGP: its configuration, and the commands of its API.
//!
//! ```text
//! flow { route NAME { match { CONDITION; … } then { ACTION; … } } … }
//! announce { ipv4|ipv6 { flow [route] CONDITION … ACTION …; } }
//! announce flow route { match { CONDITION; … } then { ACTION; … } }
//! announce flow route CONDITION … ACTION …
//! ```
//!
//! A condition is a word and a value, or values in brackets, of which one must hold: `destination-port [ =80 >8080&<8088 ]`. Flows
//! may stand in any section. Sections in which "flow" is the name of a family or of a process are passed over, and other commands
//! and statements, too; those that speak of a flow in another way are refused.

mod route;
mod values;
mod write;

use super::super::builder::Builder;
use super::super::text::{self, Input};
use super::super::{Error, Format, Options, Reading};
use super::Table;
use super::nlri::Family;
use route::{Route, bracketed};

pub(in super::super) use write::write;

/// The first words are those of a configuration with flows, or of a command that announces one.
pub(in super::super) fn recognises(head: &str) -> bool {
    let line = text::first_line(head).replace('{', " { ");
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    matches!(
        *words,
        ["flow", "{" | "route", ..]
            | ["flow"]
            | ["announce" | "withdraw", "flow", ..]
            | ["announce" | "withdraw", "ipv4" | "ipv6", "flow", ..]
            | ["neighbor", _, ..]
            | ["template" | "group" | "process", ..]
    )
}

/// Reads flows.
pub(in super::super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut parser = Parser {
        table: Table::new(Builder::new(input.file, options)),
        sections: Vec::new(),
        words: Vec::new(),
        route: None,
    };
    let mut last = 0;
    // What stands behind a mistake may be in another section than it seems.
    let mut is_wrong = false;
    text::lines(input.file, &mut input.reader, |line, text| {
        last = line;
        let read = if is_wrong { Ok(()) } else { parser.line(line, text) };
        is_wrong |= read.is_err();
        read
    })?;
    parser.statement(last, End::Line)?;
    if !parser.sections.is_empty() {
        return Err(parser.table.builder.syntax(last, "the file ends within a section; expected '}'"));
    }
    let none = "no flow; expected a section \"flow { route … }\", \"announce { ipv4 { flow … } }\" or commands \"announce flow route …\"";
    parser.table.finish(Format::ExaBgp, none)
}

/// Where the text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    /// What is passed over, but for flows in it.
    Other,
    /// What is announced of a family.
    Of(Family),
    /// What is passed over as a whole: the word "flow" means something else there.
    Silent,
    Flow,
    Route,
    Match,
    Then,
    Scope,
}

/// What ends a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Line,
    Semicolon,
    Open,
    Close,
}

/// A file that is being read.
struct Parser<'a> {
    table: Table<'a>,
    sections: Vec<Section>,
    /// Words of the statement so far.
    words: Vec<String>,
    route: Option<Route>,
}

impl Parser<'_> {
    /// Takes a line.
    fn line(&mut self, line: u32, text: &str) -> Result<(), Error> {
        // Commands of the API have the ends of lines as two characters.
        let text = text.replace("\\n", " ");
        let mut word = String::new();
        let mut quote = None;
        for character in text.chars() {
            match (character, quote) {
                (character, Some(open)) if character == open => quote = None,
                (character, Some(_)) => word.push(character),
                ('"' | '\'', None) => quote = Some(character),
                ('#', None) => break,
                ('{' | '}' | ';' | '[' | ']' | ',', None) => {
                    self.word(line, &mut word)?;
                    match character {
                        '{' => self.statement(line, End::Open)?,
                        '}' => self.statement(line, End::Close)?,
                        ';' => self.statement(line, End::Semicolon)?,
                        ',' => {}
                        bracket => self.word(line, &mut bracket.into())?,
                    }
                }
                (blank, None) if blank.is_ascii_whitespace() => self.word(line, &mut word)?,
                (character, None) => word.push(character),
            }
        }
        self.word(line, &mut word)?;
        // A command ends with its line; what stands in a configuration goes on.
        let is_command = match self.words.first().map(String::as_str) {
            Some("announce" | "withdraw" | "flow") => self.words.len() > 1,
            Some("neighbor") => {
                self.words.iter().any(|word| matches!(word.as_str(), "announce" | "withdraw"))
            }
            _ => false,
        };
        if is_command && self.sections.is_empty() { self.statement(line, End::Line) } else { Ok(()) }
    }

    fn word(&mut self, line: u32, word: &mut String) -> Result<(), Error> {
        /// Words of a statement: more than an NLRI can hold.
        const MAX_WORDS: usize = 1 << 14;
        if word.is_empty() {
            return Ok(());
        }
        if self.words.len() == MAX_WORDS {
            return Err(self
                .table
                .builder
                .syntax(line, format!("more than {MAX_WORDS} words; expected ';'")));
        }
        self.words.push(std::mem::take(word));
        Ok(())
    }

    /// Takes the words so far as a statement.
    fn statement(&mut self, line: u32, end: End) -> Result<(), Error> {
        let words = std::mem::take(&mut self.words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let section = self.sections.last().copied().unwrap_or(Section::Other);
        let result = match (section, end) {
            (Section::Silent, End::Open) => self.push(Section::Silent),
            (Section::Silent, _) => Ok(()),
            (Section::Other | Section::Of(_), End::Close) if !speaks_of_flows(&words) => Ok(()),
            (_, End::Close) if !words.is_empty() => {
                Err(format!("{:?} without an end; expected ';'", words.join(" ")))
            }
            (_, End::Close) => Ok(()),
            (Section::Other | Section::Of(_), _) => self.other(line, &words, end),
            (Section::Flow, _) => self.flow(line, &words, end),
            (section, End::Open) => self.open(section, &words),
            _ if words.is_empty() => Ok(()),
            (section, _) => self.inside(line, section, &words),
        };
        result.map_err(|message| self.table.builder.syntax(line, message))?;
        if end == End::Close {
            return match self.sections.pop() {
                None => Err(self.table.builder.syntax(line, "'}' without its '{'")),
                Some(Section::Route) => self.finish_route(),
                Some(_) => Ok(()),
            };
        }
        if let (End::Line | End::Semicolon, Section::Other | Section::Of(_) | Section::Flow) = (end, section)
        {
            return self.finish_route();
        }
        Ok(())
    }

    fn push(&mut self, section: Section) -> Result<(), String> {
        /// Sections within sections at most.
        const MAX_DEPTH: usize = 64;
        if self.sections.len() == MAX_DEPTH {
            return Err(format!("more than {MAX_DEPTH} sections within each other"));
        }
        self.sections.push(section);
        Ok(())
    }

    /// A statement outside of flows, which may be a command or a section.
    fn other(&mut self, line: u32, words: &[&str], end: End) -> Result<(), String> {
        // A command may name the neighbours that it is for.
        let start = match words.first() {
            Some(&"neighbor") => words.iter().position(|word| matches!(*word, "announce" | "withdraw")),
            _ => None,
        };
        let words = &words[start.unwrap_or(0)..];
        let (is_withdrawn, rest) = match words {
            ["announce", rest @ ..] => (false, rest),
            ["withdraw", rest @ ..] => (true, rest),
            words => (false, words),
        };
        let (family, rest) = match rest {
            ["ipv4", rest @ ..] => (Some(Family::V4), rest),
            ["ipv6", rest @ ..] => (Some(Family::V6), rest),
            rest => (self.family(), rest),
        };
        let ["flow", rest @ ..] = rest else {
            if speaks_of_flows(words) {
                return Err(format!(
                    "{:?}; expected flow {{ route … }}, or flow and conditions",
                    words.join(" ")
                ));
            }
            return match (end, words, family) {
                (End::Open, ["match" | "then" | "scope"], _) => {
                    Err(format!("a section {:?} outside of flow", words.join(" ")))
                }
                (
                    End::Open,
                    ["family" | "add-path" | "nexthop" | "capability" | "api" | "process", ..],
                    _,
                ) => self.push(Section::Silent),
                (End::Open, [.., "ipv4" | "ipv6"], Some(family)) => self.push(Section::Of(family)),
                (End::Open, ..) => self.push(Section::Other),
                _ => Ok(()),
            };
        };
        match (rest, end) {
            ([], End::Open) => return self.push(Section::Flow),
            (["route", rest @ ..], _) => self.begin(line, rest, end, family)?,
            ([_, ..], End::Line | End::Semicolon) => self.begin(line, rest, end, family)?,
            _ => {
                return Err(format!(
                    "{:?}; expected flow {{ route … }}, or flow and conditions",
                    words.join(" ")
                ));
            }
        }
        if let (true, Some(route)) = (is_withdrawn, &mut self.route) {
            route.unsupported(line, "withdraw");
            self.table.is_withdrawn = true;
        }
        Ok(())
    }

    /// The family of what is announced here, if a section says it.
    fn family(&self) -> Option<Family> {
        self.sections.iter().rev().find_map(|section| match section {
            Section::Of(family) => Some(*family),
            _ => None,
        })
    }

    /// A statement of a section of flows.
    fn flow(&mut self, line: u32, words: &[&str], end: End) -> Result<(), String> {
        match words {
            ["route", rest @ ..] => self.begin(line, rest, end, self.family()),
            [] if end != End::Open => Ok(()),
            _ => Err(format!("{:?}; expected route", words.join(" "))),
        }
    }

    /// Begins a route, which may be all there.
    fn begin(&mut self, line: u32, words: &[&str], end: End, family: Option<Family>) -> Result<(), String> {
        if end != End::Open {
            let mut route = Route::new(line, None, family);
            route.flat(line, words)?;
            self.route = Some(route);
            return Ok(());
        }
        let name = match words {
            [] => None,
            [name] => Some(*name),
            _ => return Err(format!("{:?} before '{{'; expected a name or nothing", words.join(" "))),
        };
        self.route = Some(Route::new(line, name, family));
        self.push(Section::Route)
    }

    /// A section of a route.
    fn open(&mut self, section: Section, words: &[&str]) -> Result<(), String> {
        let inner = match (section, words) {
            (Section::Route, ["match"]) => Section::Match,
            (Section::Route, ["then"]) => Section::Then,
            (Section::Route, ["scope"]) => Section::Scope,
            _ => {
                return Err(format!(
                    "a section {:?}; expected match, then or scope in a route",
                    words.join(" ")
                ));
            }
        };
        self.push(inner)
    }

    /// A statement of a route.
    fn inside(&mut self, line: u32, section: Section, words: &[&str]) -> Result<(), String> {
        let (Some(route), [name, values @ ..]) = (&mut self.route, words) else { return Ok(()) };
        let values = bracketed(values)?;
        match (section, *name) {
            (Section::Match, name) => route.condition(line, name, values),
            (Section::Then | Section::Scope, name) => route.action(line, name, values),
            (_, "rd" | "route-distinguisher") => {
                route.unsupported(line, name);
                Ok(())
            }
            (_, "next-hop") => Ok(()),
            _ => Err(format!("{:?}; expected match, then, rd or next-hop", words.join(" "))),
        }
    }

    fn finish_route(&mut self) -> Result<(), Error> {
        match self.route.take() {
            None => Ok(()),
            Some(route) => {
                let (template, flow) = route.finish();
                self.table.add(template, flow)
            }
        }
    }
}

/// Whether a statement speaks of flows, unless it is a text, a name or a command of something else.
fn speaks_of_flows(words: &[&str]) -> bool {
    let is_name = matches!(
        *words,
        ["description" | "run" | "inherit" | "host-name" | "domain-name", ..]
            | ["neighbor" | "template" | "group" | "process", _]
    );
    let is_flow = |word: &str| {
        let word = word.to_ascii_lowercase();
        matches!(&*word, "flow" | "flows" | "flow-vpn" | "flowspec" | "flow-spec" | "flow-route")
    };
    !is_name && words.iter().any(|word| is_flow(word))
}
