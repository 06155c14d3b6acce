//! Rules as a section of flows.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::super::WriteError;
use super::super::super::writing::Writing;
use super::super::nlri::{Component, DESTINATION, FRAGMENT, Family, PROTOCOL, TCP_FLAGS};
use super::super::operators::{EQUAL, GREATER, LOWER, Terms};
use super::super::write::{Written, flows, rest};
use super::values::{CONDITIONS, names, signs};
use crate::rule::{Action, Rule};

/// Writes a section of flows, in the order of the rules.
pub(in super::super::super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    let rest = rest(writing);
    let flows = flows(rules, &rest, writing, true)?;
    writeln!(writing.writer, "flow {{")?;
    for (index, Written { flow, rule, .. }) in flows.iter().enumerate() {
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
