//! Flow specifications in the text of ExaBGP: its configuration, and the commands of its API.
//!
//! ```text
//! flow { route NAME { match { CONDITION; … } then { ACTION; … } } … }
//! announce flow route { match { CONDITION; … } then { ACTION; … } }
//! announce flow route CONDITION … ACTION …
//! ```
//!
//! A condition is a word and a value, or values in brackets, of which one must hold: `destination-port [ =80 >8080&<8088 ]`. All
//! other sections of a configuration, and other commands, are passed over.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::builder::{Builder, Fault};
use super::super::text::{self, Input, number};
use super::super::{Error, Format, Options, Reading, WriteError, Writing};
use super::nlri::{
    Component, DESTINATION, DESTINATION_PORT, FRAGMENT, Family, Flow, ICMP_CODE, ICMP_TYPE, PORT, PROTOCOL,
    Pattern, SOURCE, SOURCE_PORT, TCP_FLAGS,
};
use super::operators::{AND, END, EQUAL, GREATER, LOWER, MATCH, NOT, Term, Terms};
use super::{Table, write};
use crate::rule::{Action, Rule};

/// The names of what is compared with a number or with bits, the components they become, and the greatest values.
const CONDITIONS: &[(&str, u8, u16)] = &[
    ("protocol", PROTOCOL, 255),
    ("next-header", PROTOCOL, 255),
    ("port", PORT, u16::MAX),
    ("destination-port", DESTINATION_PORT, u16::MAX),
    ("source-port", SOURCE_PORT, u16::MAX),
    ("icmp-type", ICMP_TYPE, 255),
    ("icmp-code", ICMP_CODE, 255),
    ("tcp-flags", TCP_FLAGS, u16::MAX),
    ("fragment", FRAGMENT, 255),
];
/// Conditions that no rule of ours says.
const OTHER_CONDITIONS: &[&str] = &["packet-length", "dscp", "traffic-class", "flow-label"];
/// Actions that no rule of ours says, and the values that each takes when it stands in one line with others.
const OTHER_ACTIONS: &[(&str, usize)] = &[
    ("redirect", 1),
    ("redirect-to-nexthop", 0),
    ("redirect-to-nexthop-ietf", 1),
    ("copy", 1),
    ("mark", 1),
    ("action", 1),
    ("extended-community", 1),
    ("interface-set", 1),
];
/// What says nothing about packets.
const ATTRIBUTES: &[&str] = &["community", "large-community", "next-hop"];

const PROTOCOLS: &[(&str, u16)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("egp", 8),
    ("udp", 17),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ospf", 89),
    ("ipip", 94),
    ("pim", 103),
    ("sctp", 132),
];
const ICMP_TYPES: &[(&str, u16)] = &[
    ("echo-reply", 0),
    ("unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicit", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp", 13),
    ("timestamp-reply", 14),
];
const FLAGS: &[(&str, u16)] = &[
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("push", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("urgent", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
    ("ns", 0x100),
];
const FRAGMENTS: &[(&str, u16)] =
    &[("dont-fragment", 1), ("is-fragment", 2), ("first-fragment", 4), ("last-fragment", 8)];

/// The first words are those of a configuration with flows, or of a command that announces one.
pub(in super::super) fn recognises(head: &str) -> bool {
    let line = text::first_line(head).replace('{', " { ");
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    match *words {
        ["flow", "{" | "route", ..] | ["flow"] => true,
        ["announce" | "withdraw", "flow", ..] => true,
        ["neighbor", _, ref rest @ ..] if rest.contains(&"flow") => true,
        ["neighbor" | "template" | "group" | "process", ..] => head.contains("flow"),
        _ => false,
    }
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
    text::lines(input.file, &mut input.reader, |line, text| {
        last = line;
        parser.line(line, text)
    })?;
    parser.statement(last, End::Line)?;
    if !parser.sections.is_empty() {
        return Err(parser.table.builder.syntax(last, "the file ends within a section; expected '}'"));
    }
    parser.table.finish(Format::ExaBgp)
}

/// Where the text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    /// What is passed over, but for flows in it.
    Other,
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

/// A flow in the making.
struct Route {
    template: Rule,
    destination: Option<(Family, Pattern)>,
    source: Option<(Family, Pattern)>,
    terms: BTreeMap<u8, Vec<(u8, u16)>>,
    /// The first construct that no rule of ours says, and its line.
    unsupported: Option<(u32, Fault)>,
}

impl Route {
    fn new(line: u32, name: Option<&str>) -> Self {
        Self {
            // What says nothing else is forwarded.
            template: Rule { line, id: name.map(Into::into), ..Rule::any(Some(Action::Permit)) },
            destination: None,
            source: None,
            terms: BTreeMap::new(),
            unsupported: None,
        }
    }

    fn unsupported(&mut self, line: u32, what: &str) {
        self.unsupported.get_or_insert_with(|| (line, Fault::no_equal(what)));
    }

    /// Takes a condition.
    fn condition(&mut self, line: u32, name: &str, values: &[&str]) -> Result<(), String> {
        let end = match name {
            "destination" | "destination-ipv4" | "destination-ipv6" => Some(&mut self.destination),
            "source" | "source-ipv4" | "source-ipv6" => Some(&mut self.source),
            _ => None,
        };
        if let Some(end) = end {
            let [value] = values else {
                return Err(format!("{name} with {} values; expected one", values.len()));
            };
            return match end.replace(pattern(value)?) {
                None => Ok(()),
                Some(_) => Err(format!("a second {name}; expected one")),
            };
        }
        if OTHER_CONDITIONS.contains(&name) {
            self.unsupported(line, name);
            return Ok(());
        }
        let Some(&(_, kind, max)) = CONDITIONS.iter().find(|(known, ..)| *known == name) else {
            return Err(format!("{name:?}; expected a condition such as source or destination-port"));
        };
        if values.is_empty() {
            return Err(format!("{name} without a value; expected one or more"));
        }
        for value in values {
            let empty =
                value.trim_start_matches(['=', '!']).split('&').any(|value| value == "not-a-fragment");
            if kind == FRAGMENT && empty {
                self.unsupported(line, "not-a-fragment");
                return Ok(());
            }
            let terms = expression(kind, value, max).map_err(|message| format!("{name}: {message}"))?;
            self.terms.entry(kind).or_default().extend(terms);
        }
        Ok(())
    }

    /// Takes an action or an attribute.
    fn action(&mut self, line: u32, name: &str, values: &[&str]) -> Result<(), String> {
        match (name, values) {
            ("accept", []) => {}
            ("discard", []) => self.template.action = Some(Action::Deny),
            ("rate-limit", [rate] | [rate, "bytes" | "packets"]) => match number(rate, "rate", u64::MAX)? {
                0u64 => self.template.action = Some(Action::Deny),
                _ => self.unsupported(line, &format!("rate-limit {rate}")),
            },
            (name, _) if OTHER_ACTIONS.iter().any(|(known, _)| *known == name) => {
                self.unsupported(line, name)
            }
            (name, _) if ATTRIBUTES.contains(&name) => {}
            _ => {
                let text = [&[name], values].concat().join(" ");
                return Err(format!("{text:?}; expected an action such as discard, accept or rate-limit"));
            }
        }
        Ok(())
    }

    /// Takes conditions and actions that stand one after the other.
    fn flat(&mut self, line: u32, mut words: &[&str]) -> Result<(), String> {
        while let [name, rest @ ..] = words {
            let condition = matches!(name.split('-').next(), Some("source" | "destination"))
                || OTHER_CONDITIONS.contains(name)
                || CONDITIONS.iter().any(|(known, ..)| known == name);
            let count = match (*name, rest) {
                (_, ["[", ..]) => {
                    let close = rest.iter().position(|word| *word == "]");
                    close.ok_or_else(|| format!("{name}: a bracket without its end; expected ]"))? + 1
                }
                ("rate-limit", [_, "bytes" | "packets", ..]) => 2,
                ("accept" | "discard", _) => 0,
                _ => OTHER_ACTIONS.iter().find(|(known, _)| known == name).map_or(1, |(_, count)| *count),
            };
            let Some((values, rest)) = rest.split_at_checked(count) else {
                return Err(format!("{name} without a value; expected one"));
            };
            let values = bracketed(values)?;
            if condition {
                self.condition(line, name, values)?;
            } else if matches!(*name, "rd" | "route-distinguisher") {
                self.unsupported(line, name);
            } else {
                self.action(line, name, values)?;
            }
            words = rest;
        }
        Ok(())
    }

    /// The flow.
    fn finish(mut self) -> (Rule, Result<Flow, Fault>) {
        if let Some((line, fault)) = self.unsupported {
            self.template.line = line;
            return (self.template, Err(fault));
        }
        let families = [self.destination, self.source].map(|end| end.map(|(family, _)| family));
        let family = match families {
            [Some(one), Some(other)] if one != other => {
                let message = "one address is IPv4 and the other IPv6; expected both of one family";
                return (self.template, Err(Fault::Syntax(message.into())));
            }
            [one, other] => one.or(other).unwrap_or(Family::V4),
        };
        let mut nlri = Vec::new();
        for (kind, end) in [(DESTINATION, self.destination), (SOURCE, self.source)] {
            if let Some((_, pattern)) = end {
                nlri.push(kind);
                pattern.write(family, &mut nlri);
            }
        }
        for (kind, terms) in self.terms {
            nlri.push(kind);
            for (index, (operator, value)) in terms.iter().enumerate() {
                let end = if index + 1 == terms.len() { END } else { 0 };
                Term::write(operator | end, *value, &mut nlri);
            }
        }
        (self.template, Flow::decode(family, &nlri))
    }
}

/// What stands within brackets, if there are any.
fn bracketed<'a, 'b>(values: &'b [&'a str]) -> Result<&'b [&'a str], String> {
    let inner = match values {
        ["[", inner @ .., "]"] => inner,
        values => values,
    };
    if inner.iter().any(|value| matches!(*value, "[" | "]")) {
        return Err("a bracket that has no other; expected [ VALUE … ]".into());
    }
    Ok(inner)
}

/// An address with a length, and with IPv6 perhaps an offset.
fn pattern(word: &str) -> Result<(Family, Pattern), String> {
    let expected = || format!("{word:?}; expected an IPv4 or IPv6 prefix such as 192.0.2.0/24");
    let mut parts = word.split('/');
    let address = parts.next().ok_or_else(expected)?;
    let (family, address, bits) = match address.parse().map_err(|_| expected())? {
        IpAddr::V4(address) => (Family::V4, u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (Family::V6, address.to_bits(), 128),
    };
    let length = number(parts.next().ok_or_else(expected)?, "prefix length", bits)?;
    let offset = parts.next().map_or(Ok(0), |offset| number(offset, "offset", bits))?;
    if parts.next().is_some() || offset > length || (family == Family::V4 && offset > 0) {
        return Err(expected());
    }
    Ok((family, Pattern::of(address, offset, length)))
}

/// Operators and values that `&` joins.
fn expression(kind: u8, text: &str, max: u16) -> Result<Vec<(u8, u16)>, String> {
    let parts = text.split('&').enumerate();
    parts
        .map(|(index, part)| {
            // The last sign is none.
            let signs =
                signs(kind).iter().find_map(|(sign, operator)| Some((*operator, part.strip_prefix(sign)?)));
            let (operator, value) = signs.unwrap_or((0, part));
            let and = if index == 0 { 0 } else { AND };
            Ok((operator | and, self::value(kind, value, max)?))
        })
        .collect()
}

/// The signs before a value of this kind, and the operators that they are.
fn signs(kind: u8) -> &'static [(&'static str, u8)] {
    match kind {
        TCP_FLAGS | FRAGMENT => &[("!=", NOT | MATCH), ("!", NOT), ("=", MATCH), ("", 0)],
        _ => &[
            ("!=", LOWER | GREATER),
            (">=", GREATER | EQUAL),
            ("<=", LOWER | EQUAL),
            (">", GREATER),
            ("<", LOWER),
            ("=", EQUAL),
            ("", EQUAL),
        ],
    }
}

/// The names of values of this kind.
fn names(kind: u8) -> &'static [(&'static str, u16)] {
    match kind {
        PROTOCOL => PROTOCOLS,
        ICMP_TYPE => ICMP_TYPES,
        TCP_FLAGS => FLAGS,
        FRAGMENT => FRAGMENTS,
        _ => &[],
    }
}

/// A number, in decimal or hexadecimal, or a name; of bits, several that `+` joins.
fn value(kind: u8, text: &str, max: u16) -> Result<u16, String> {
    let names = names(kind);
    let one = |text: &str| {
        let lower = text.to_ascii_lowercase().replace('_', "-");
        if let Some((_, value)) = names.iter().find(|(name, _)| *name == lower) {
            return Ok(*value);
        }
        let hex =
            lower.strip_prefix("0x").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let value = match hex {
            Some(digits) => u16::from_str_radix(digits, 16).ok().filter(|value| *value <= max),
            None => number(text, "", max.into()).ok(),
        };
        let what = if names.is_empty() { "a number" } else { "a name or a number" };
        value.ok_or_else(|| format!("{text:?}; expected {what} from 0 to {max}"))
    };
    match kind {
        TCP_FLAGS | FRAGMENT => text.split('+').try_fold(0, |bits, text| Ok(bits | one(text)?)),
        _ => one(text),
    }
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
            Some("announce" | "withdraw") => true,
            Some("flow") => self.words.len() > 1,
            Some("neighbor") => {
                self.words.iter().any(|word| matches!(word.as_str(), "announce" | "withdraw"))
            }
            _ => false,
        };
        let outside = self.sections.iter().all(|section| *section == Section::Other);
        if is_command && outside { self.statement(line, End::Line) } else { Ok(()) }
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
            (Section::Other, End::Close) => Ok(()),
            (_, End::Close) if !words.is_empty() => {
                Err(format!("{:?} without an end; expected ';'", words.join(" ")))
            }
            (_, End::Close) => Ok(()),
            (Section::Other, _) => self.other(line, &words, end),
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
        if let (End::Line | End::Semicolon, Section::Other | Section::Flow) = (end, section) {
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

    /// A statement outside of flows, which may be a command.
    fn other(&mut self, line: u32, words: &[&str], end: End) -> Result<(), String> {
        let start = words.iter().position(|word| matches!(*word, "announce" | "withdraw")).unwrap_or(0);
        let command = match &words[start..] {
            ["announce", "flow", "route", rest @ ..] => Some((None, rest)),
            ["flow", "route", rest @ ..] => Some((None, rest)),
            ["withdraw", "flow", "route", rest @ ..] => Some((Some("withdraw"), rest)),
            ["flow"] if end == End::Open => return self.push(Section::Flow),
            _ => None,
        };
        let Some((unsupported, rest)) = command else {
            return if end == End::Open { self.push(Section::Other) } else { Ok(()) };
        };
        self.begin(line, rest, end)?;
        if let (Some(what), Some(route)) = (unsupported, &mut self.route) {
            route.unsupported(line, what);
        }
        Ok(())
    }

    /// A statement of a section of flows.
    fn flow(&mut self, line: u32, words: &[&str], end: End) -> Result<(), String> {
        match words {
            ["route", rest @ ..] => self.begin(line, rest, end),
            [] if end != End::Open => Ok(()),
            _ => Err(format!("{:?}; expected route", words.join(" "))),
        }
    }

    /// Begins a route, which may be all there.
    fn begin(&mut self, line: u32, words: &[&str], end: End) -> Result<(), String> {
        if end != End::Open {
            let mut route = Route::new(line, None);
            route.flat(line, words)?;
            self.route = Some(route);
            return Ok(());
        }
        let name = match words {
            [] => None,
            [name] => Some(*name),
            _ => return Err(format!("{:?} before '{{'; expected a name or nothing", words.join(" "))),
        };
        self.route = Some(Route::new(line, name));
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

/// Writes a section of flows, in the order of the rules.
pub(in super::super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    let flows = write::flows(rules, writing)?;
    writeln!(writing.writer, "flow {{")?;
    for (index, (flow, rule)) in flows.iter().enumerate() {
        let action = match rule.action {
            Some(Action::Deny) => "discard",
            _ => "accept",
        };
        writeln!(writing.writer, "\troute {} {{\n\t\tmatch {{", name(rule, index))?;
        for (kind, component) in flow.components() {
            writeln!(writing.writer, "\t\t\t{};", condition(flow.family, kind, component))?;
        }
        writeln!(writing.writer, "\t\t}}\n\t\tthen {{\n\t\t\t{action};\n\t\t}}\n\t}}")?;
    }
    writeln!(writing.writer, "}}")?;
    Ok(())
}

/// A name of letters and digits.
fn name(rule: &Rule, index: usize) -> String {
    let name = rule.id.as_deref().unwrap_or_default();
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c), "-");
    if name.is_empty() { format!("flow-{index}") } else { name }
}

/// A component in words.
fn condition(family: Family, kind: u8, component: Component<'_>) -> String {
    let terms = match component {
        Component::Pattern(pattern) => {
            let end = if kind == DESTINATION { "destination" } else { "source" };
            return match family {
                Family::V4 => {
                    format!("{end} {}/{}", Ipv4Addr::from((pattern.address >> 96) as u32), pattern.length)
                }
                Family::V6 => format!("{end} {}/{}", Ipv6Addr::from(pattern.address), pattern.length),
            };
        }
        Component::Terms(terms) => terms,
    };
    let name = match (kind, family) {
        (PROTOCOL, Family::V6) => "next-header",
        _ => CONDITIONS.iter().find(|(_, known, _)| *known == kind).map_or("", |(name, ..)| name),
    };
    format!("{name} {}", words(kind, terms))
}

/// A list of operators and values in words; all of it is one group.
fn words(kind: u8, terms: Terms<'_>) -> String {
    let mut text = String::new();
    for (index, term) in terms.iter().enumerate() {
        if index > 0 {
            text.push('&');
        }
        let operator = term.operator & (LOWER | GREATER | EQUAL);
        let sign = signs(kind).iter().find(|(_, known)| *known == operator);
        text += sign.map_or("", |(sign, _)| sign);
        let bits = names(kind).iter().filter(|(_, bit)| u64::from(*bit) & term.value != 0);
        match kind {
            TCP_FLAGS | FRAGMENT if term.value != 0 => {
                let mut names: Vec<_> = bits.collect();
                // One name a bit.
                names.dedup_by_key(|(_, bit)| *bit);
                text += &names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("+");
            }
            _ => text += &term.value.to_string(),
        }
    }
    text
}
