//! One flow, condition by condition and action by action.

use std::collections::BTreeMap;

use super::super::super::builder::Fault;
use super::super::super::text::number;
use super::super::nlri::{DESTINATION, FRAGMENT, Family, Flow, Pattern, SOURCE};
use super::super::operators::{END, Term};
use super::values::{CONDITIONS, expression, pattern};
use crate::rule::{Action, Rule};

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

/// A flow in the making.
pub(super) struct Route {
    template: Rule,
    /// The family that it is announced for, where that is said.
    family: Option<Family>,
    destination: Option<(Family, Pattern)>,
    source: Option<(Family, Pattern)>,
    terms: BTreeMap<u8, Vec<(u8, u16)>>,
    /// The first construct that no rule of ours says, and its line.
    unsupported: Option<(u32, Fault)>,
}

impl Route {
    pub(super) fn new(line: u32, name: Option<&str>, family: Option<Family>) -> Self {
        Self {
            family,
            // What says nothing else is forwarded. A name of ours is one word.
            template: Rule {
                line,
                id: name.map(|name| name.replace(|c: char| c.is_ascii_whitespace() || c == '#', "-").into()),
                ..Rule::any(Some(Action::Permit))
            },
            destination: None,
            source: None,
            terms: BTreeMap::new(),
            unsupported: None,
        }
    }

    pub(super) fn unsupported(&mut self, line: u32, what: &str) {
        self.unsupported.get_or_insert_with(|| (line, Fault::no_equal(what)));
    }

    /// Takes a condition.
    pub(super) fn condition(&mut self, line: u32, name: &str, values: &[&str]) -> Result<(), String> {
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
    pub(super) fn action(&mut self, line: u32, name: &str, values: &[&str]) -> Result<(), String> {
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
    pub(super) fn flat(&mut self, line: u32, mut words: &[&str]) -> Result<(), String> {
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
    pub(super) fn finish(mut self) -> (Rule, Result<Flow, Fault>) {
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
            [one, other] => one.or(other).or(self.family).unwrap_or(Family::V4),
        };
        if let Some(announced) = self.family.filter(|announced| *announced != family) {
            let message = format!(
                "{} addresses in a flow that is announced for {}; expected those of one family",
                family.name(),
                announced.name()
            );
            return (self.template, Err(Fault::Syntax(message)));
        }
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
pub(super) fn bracketed<'a, 'b>(values: &'b [&'a str]) -> Result<&'b [&'a str], String> {
    let inner = match values {
        ["[", inner @ .., "]"] => inner,
        values => values,
    };
    if inner.iter().any(|value| matches!(*value, "[" | "]")) {
        return Err("a bracket that has no other; expected [ VALUE … ]".into());
    }
    Ok(inner)
}
