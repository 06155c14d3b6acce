//! Packetloom's own rules and headers: one a line, `#` begins a comment.
//!
//! A rule (docs/rules.md has the whole grammar):
//!
//! ```text
//! ACTION PROTOCOL from ADDRESSES [port PORTS] to ADDRESSES [port PORTS] [type N [code N]] [flags SET/MASK]
//!     [fragment any|none|first|later|not-later] [in INTERFACES] [out INTERFACES] [state STATES] [mark N] [log] [id NAME]
//! ```
//!
//! - `ACTION`: `permit`, `deny` or `reflect`, which permits and admits the connection that the packet opens.
//! - `PROTOCOL`: `any`, a name such as `tcp`, or a number.
//! - `ADDRESSES`: `any`, or addresses, prefixes with no bit set past their length, and names of sets behind `@`, with commas
//!   between them. `any` takes the family of the other side, and on both sides means either family; `0.0.0.0/0` is every IPv4
//!   address, `::/0` every IPv6 one.
//! - `PORTS`: `N`, `N-N` and names of sets, with commas between them; with TCP, UDP, SCTP or any protocol.
//! - `type`, `code`: with `icmp` or `icmpv6`.
//! - `flags`: with `tcp`; of the flags in MASK those in SET must be set and the others not. Letters F S R P A U E C.
//! - `fragment`: fragments only, whole packets only, first or later fragments only, all but later fragments.
//! - `in`: packets that came by these interfaces ([`Interfaces`]).
//! - `out`: packets that leave by these interfaces.
//! - `state`: packets of connections in these states, with commas between them ([`ConnectionStates`]).
//! - `mark`: a number from 1 to 4294967295, or one in hexadecimal behind `0x`; kept, not acted on.
//! - `log`: the same.
//!
//! A comment behind a rule is kept with it. A line `default permit` or `default deny` says what happens to packets that no rule
//! matches; a line `set NAME = LIST` gives addresses or ports a name.
//!
//! A header:
//!
//! ```text
//! PROTOCOL ADDRESS[:PORT] > ADDRESS[:PORT] [type N [code N]] [flags LETTERS] [fragment first|later]
//! ```
//!
//! An IPv6 address before a port stands in brackets.

mod header;
mod sets;

use std::sync::Arc;

use packetloom_packet::protocol;

use super::builder::Builder;
use super::set::Set;
use super::text::{self, Input, Words, number};
use super::{Error, Format, Options, Reading, WriteError, Writing};
use crate::rule::{Action, Fragments, PortRange, Rule, TcpFlagMatch, flags_from_letters};
use crate::{ConnectionStates, Interfaces};
pub(super) use header::parse_header;
use sets::{Pairs, Sets, Side};

/// Reads a line that is one rule; lists that make it more are refused before they are.
pub(super) fn read_rule(text: &str) -> Result<Rule, String> {
    let line = parse_rule(text, &Sets::default())?;
    let (addresses, [source_ports, destination_ports]) = line.parts()?;
    match (addresses.iter().next(), count([addresses.len(), source_ports.len(), destination_ports.len()])) {
        (Some(addresses), 1) => Ok(Rule {
            addresses,
            source_ports: source_ports[0],
            destination_ports: destination_ports[0],
            ..line.rule
        }),
        (_, several) => Err(format!("{several} rules; expected one, so without lists")),
    }
}

/// Combinations of so many things each.
fn count(of: [usize; 3]) -> usize {
    of.into_iter().fold(1, usize::saturating_mul)
}

/// Reads rules, one a line.
pub(super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut builder = Builder::new(input.file, options);
    let mut default = None;
    let mut sets = Sets::default();
    let mut has_bad_set = false;
    // A set that is missing because its own line is wrong is no mistake of others.
    let follows = |error: Error, has_bad_set: &mut bool| match std::mem::replace(has_bad_set, true) {
        true if error.to_string().contains("expected the name of a set before this line") => Ok(()),
        _ => Err(error),
    };
    text::lines(input.file, &mut input.reader, |line, text| {
        let (text, comment) = text::split_comment(text);
        if text.is_empty() {
            return Ok(());
        }
        if let Some(action) = default_action(text) {
            let action = action.map_err(|message| builder.syntax(line, message))?;
            return match default.replace(action) {
                None => Ok(()),
                Some(_) => Err(builder.syntax(line, "\"default\" stands twice")),
            };
        }
        if let Some(definition) = sets::definition(text) {
            let size = definition.and_then(|(name, list)| sets.define(name, list));
            let size = size.map_err(|message| builder.syntax(line, message));
            let spent = size.and_then(|size| builder.spend(line, size));
            return spent.or_else(|error| follows(error, &mut has_bad_set));
        }
        let rule = match parse_rule(text, &sets).map_err(|message| builder.syntax(line, message)) {
            Ok(rule) => rule,
            Err(error) if has_bad_set => return follows(error, &mut has_bad_set),
            Err(error) => return Err(error),
        };
        let comment = comment.and_then(text::comment);
        rule.build(&Rule { line, comment, ..rule.rule.clone() }, &mut builder)
    })?;
    Ok(builder.finish(Format::Native, default))
}

/// Writes rules, one a line, and the default; without one, the list denies what no rule matches, as it did before.
pub(super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    for (index, rule) in rules.iter().enumerate() {
        let has_ports = rule.protocol.is_none_or(protocol::has_ports);
        let asks_ports = !(rule.source_ports.is_any() && rule.destination_ports.is_any());
        let has_type = rule.protocol.is_some_and(protocol::has_type_and_code);
        let asks_type = rule.icmp_type.is_some() || rule.icmp_code.is_some();
        if rule.action.is_none() {
            writing.inexpressible(index, rule, "where every rule has an action")?;
        } else if asks_ports && !has_ports {
            // ClassBench's filters may ask for what no packet has.
            writing.inexpressible(index, rule, "where ports belong to tcp, udp or sctp")?;
        } else if (asks_type && !has_type) || (rule.icmp_code.is_some() && rule.icmp_type.is_none()) {
            let reason = "where a type belongs to icmp or icmpv6, and a code to a type";
            writing.inexpressible(index, rule, reason)?;
        } else if rule.tcp_flags.is_some() && rule.protocol != Some(protocol::TCP) {
            writing.inexpressible(index, rule, "where flags belong to tcp")?;
        } else {
            writeln!(writing.writer, "{rule}")?;
        }
    }
    if let Some(default) = writing.options.default {
        writeln!(writing.writer, "default {}", default.name())?;
    }
    Ok(())
}

/// The action of a line `default ACTION`; `None` for any other line.
fn default_action(text: &str) -> Option<Result<Action, String>> {
    let mut words = Words::new(text);
    words.take("default").then(|| {
        let action = action(words.next("permit or deny")?, &[Action::Permit, Action::Deny])?;
        match words.0.next() {
            Some(word) => Err(format!("{word:?}; expected the end of the line")),
            None => Ok(action),
        }
    })
}

/// One of several actions.
fn action(word: &str, actions: &[Action]) -> Result<Action, String> {
    actions.iter().copied().find(|action| action.name() == word).ok_or_else(|| {
        let names: Vec<_> = actions.iter().map(|action| action.name()).collect();
        let (last, before) = names.split_last().expect("there are actions");
        format!("{word:?}; expected {} or {last}", before.join(", "))
    })
}

/// Reads one rule.
fn parse_rule(text: &str, sets: &Sets) -> Result<Line, String> {
    let mut words = Words::new(text);
    let actions = [Action::Permit, Action::Deny, Action::Reflect];
    let action = action(words.next("permit, deny or reflect")?, &actions)?;
    let protocol = match words.next("a protocol")? {
        "any" => None,
        word => Some(protocol_number(word, "any, ")?),
    };
    words.expect("from")?;
    let source = sets.side(words.next("a source address")?)?;
    let source_ports = ports(&mut words, protocol, sets)?;
    words.expect("to")?;
    let destination = sets.side(words.next("a destination address")?)?;
    let destination_ports = ports(&mut words, protocol, sets)?;
    let mut rule = Rule { protocol, ..Rule::any(Some(action)) };
    let mut seen: Vec<&str> = Vec::new();
    while let Some(word) = words.0.next() {
        if seen.contains(&word) {
            return Err(format!("{word:?} stands twice"));
        }
        seen.push(word);
        match word {
            "type" | "code" if !protocol.is_some_and(protocol::has_type_and_code) => {
                return Err(format!("{word:?} with a protocol that has none; expected icmp or icmpv6"));
            }
            "type" => rule.icmp_type = Some(number(words.next("an ICMP type")?, "ICMP type", 255)?),
            "code" if rule.icmp_type.is_none() => {
                return Err("\"code\" without a type; expected \"type N code N\"".into());
            }
            "code" => rule.icmp_code = Some(number(words.next("an ICMP code")?, "ICMP code", 255)?),
            "flags" if protocol != Some(protocol::TCP) => {
                return Err("\"flags\" with a protocol that has none; expected tcp".into());
            }
            "flags" => rule.tcp_flags = Some(flag_match(words.next("flags such as S/SA")?)?),
            "fragment" => rule.fragments = fragments(words.next("any, none, first, later or not-later")?)?,
            "in" => rule.interfaces = interfaces(words.next("an interface")?)?,
            "out" => rule.out = interfaces(words.next("an interface")?)?,
            "state" => rule.states = ConnectionStates::parse(words.next("a state such as new")?)?,
            "mark" => rule.mark = mark(words.next("a mark")?)?,
            "log" => rule.log = true,
            "id" => rule.id = Some(words.next("a name")?.into()),
            _ => {
                return Err(format!(
                    "{word:?}; expected type, code, flags, fragment, in, out, state, mark, log, id, or the end of the line"
                ));
            }
        }
    }
    Ok(Line { rule, source, destination, source_ports, destination_ports })
}

/// A rule's line: lists and sets make it several rules.
struct Line {
    /// What the rules have in common.
    rule: Rule,
    source: Side,
    destination: Side,
    source_ports: Set<u16>,
    destination_ports: Set<u16>,
}

impl Line {
    /// The pairs of its addresses, its source ports and its destination ports: its rules are all combinations.
    fn parts(&self) -> Result<(Pairs, [Vec<PortRange>; 2]), &'static str> {
        let addresses = sets::pairs(&self.source, &self.destination);
        if addresses.is_empty() {
            return Err("one address is IPv4 and the other IPv6; expected both of one family");
        }
        let ports = [&self.source_ports, &self.destination_ports]
            .map(|set| set.ranges().map(|(low, high)| PortRange { low, high }).collect());
        Ok((addresses, ports))
    }

    /// Adds its rules.
    fn build(&self, template: &Rule, builder: &mut Builder<'_>) -> Result<(), Error> {
        let (addresses, [source_ports, destination_ports]) =
            self.parts().map_err(|message| builder.syntax(template.line, message))?;
        let count = count([addresses.len(), source_ports.len(), destination_ports.len()]);
        let rules = addresses.iter().flat_map(|addresses| {
            let destination_ports = &destination_ports;
            source_ports.iter().flat_map(move |&source_ports| {
                let rule = Rule { addresses, source_ports, ..template.clone() };
                destination_ports
                    .iter()
                    .map(move |&destination_ports| Rule { destination_ports, ..rule.clone() })
            })
        });
        // One of everything: the line's own rule.
        let size =
            self.source.size() + self.destination.size() + source_ports.len() + destination_ports.len();
        if size <= 4 {
            return rules.map(Ok).try_for_each(|rule| builder.line(template.line, rule));
        }
        builder.spend(template.line, size)?;
        builder.rules(template, count, rules)
    }
}

/// `or` is what a line takes beside a name or a number.
fn protocol_number(word: &str, or: &str) -> Result<u8, String> {
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        return number(word, "protocol", 255);
    }
    protocol::by_name(word).ok_or_else(|| {
        format!("protocol {word:?}; expected {or}a name such as tcp, or a number from 0 to 255")
    })
}

fn ports(words: &mut Words<'_>, protocol: Option<u8>, sets: &Sets) -> Result<Set<u16>, String> {
    if !words.take("port") {
        return Ok(Set::ALL);
    }
    if !protocol.is_none_or(protocol::has_ports) {
        return Err("\"port\" with a protocol that has none; expected tcp, udp, sctp or any".into());
    }
    sets.ports(words.next("a port or a range of ports")?)
}

fn flags(letters: &str) -> Result<u8, String> {
    flags_from_letters(letters).ok_or_else(|| format!("flags {letters:?}; expected letters of FSRPAUEC"))
}

fn flag_match(word: &str) -> Result<TcpFlagMatch, String> {
    let (set, mask) =
        word.split_once('/').ok_or_else(|| format!("flags {word:?}; expected SET/MASK such as S/SA"))?;
    let flag_match = TcpFlagMatch { set: flags(set)?, mask: flags(mask)? };
    if flag_match.mask == 0 || flag_match.set & !flag_match.mask != 0 {
        return Err(format!("flags {word:?}; expected a mask that holds every flag of the set"));
    }
    Ok(flag_match)
}

/// A mark that says something.
fn mark(word: &str) -> Result<u32, String> {
    let parsed = match word.strip_prefix("0x") {
        // Without the sign that the parser would take.
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u32::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => number(word, "mark", u32::MAX.into()).ok(),
    };
    parsed.filter(|&mark| mark != 0).ok_or_else(|| {
        format!("mark {word:?}; expected a number from 1 to {} or 0x1 to {:#x}", u32::MAX, u32::MAX)
    })
}

/// `None` where it is all of them.
fn interfaces(word: &str) -> Result<Option<Arc<Interfaces>>, String> {
    let set = Interfaces::parse(word)?;
    if set.is_empty() {
        return Err(format!("interfaces {word:?} are none; expected some"));
    }
    Ok((!set.is_all()).then(|| Arc::new(set)))
}

fn fragments(word: &str) -> Result<Fragments, String> {
    [Fragments::Any, Fragments::None, Fragments::First, Fragments::Later, Fragments::NotLater]
        .into_iter()
        .find(|fragments| fragments.name() == Some(word))
        .ok_or_else(|| format!("fragment {word:?}; expected any, none, first, later or not-later"))
}
