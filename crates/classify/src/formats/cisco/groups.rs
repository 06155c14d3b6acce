//! What object groups stand for.

use std::collections::HashMap;

use super::super::builder::Fault;
use super::super::set::Set;
use super::super::text::Words;
use super::address;
use super::config::{Group, GroupKind};
use super::service::{self, Service};

/// Groups within groups at most.
const MAX_DEPTH: usize = 32;
/// Ranges of addresses, or services, of one group at most.
const MAX_MEMBERS: usize = 1 << 16;

/// A group's members, or what is wrong with them; nothing while they are looked up.
type Known<T> = Option<Result<Vec<T>, Fault>>;

/// The groups of a configuration, each looked into once.
pub(super) struct Groups<'a> {
    groups: &'a HashMap<String, Group>,
    /// The protocol that "icmp" is.
    icmp: u8,
    v4: HashMap<&'a str, Known<(u32, u32)>>,
    v6: HashMap<&'a str, Known<(u128, u128)>>,
    services: HashMap<&'a str, Known<Service>>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(groups: &'a HashMap<String, Group>, icmp: u8) -> Self {
        Self { groups, icmp, v4: HashMap::new(), v6: HashMap::new(), services: HashMap::new() }
    }

    /// The addresses of a group of IPv4 addresses.
    pub(super) fn v4(&mut self, name: &str) -> Result<Set<u32>, Fault> {
        let one = |words: &mut Words<'_>| match words.peek() {
            "range" => address::range4(words),
            _ => address::subnet4(words),
        };
        let members = resolve(self.groups, &mut self.v4, GroupKind::Network, name, 0, &one)?;
        Ok(Set::of(members.iter().copied()))
    }

    /// The addresses of a group of IPv6 addresses.
    pub(super) fn v6(&mut self, name: &str) -> Result<Set<u128>, Fault> {
        let one = |words: &mut Words<'_>| match words.peek() {
            "range" => address::range6(words),
            _ => address::prefix6(words),
        };
        let members = resolve(self.groups, &mut self.v6, GroupKind::V6Network, name, 0, &one)?;
        Ok(Set::of(members.iter().copied()))
    }

    /// The services of a group.
    pub(super) fn services(&mut self, name: &str) -> Result<&[Service], Fault> {
        let icmp = self.icmp;
        let one = |words: &mut Words<'_>| service::service(words, icmp);
        resolve(self.groups, &mut self.services, GroupKind::Service, name, 0, &one)
    }
}

/// The members of a group and of the groups in it, each read by `one`.
fn resolve<'a, 'k, T: Clone>(
    groups: &'a HashMap<String, Group>,
    known: &'k mut HashMap<&'a str, Known<T>>,
    kind: GroupKind,
    name: &str,
    depth: usize,
    one: &dyn Fn(&mut Words<'_>) -> Result<T, Fault>,
) -> Result<&'k [T], Fault> {
    let Some((name, group)) = groups.get_key_value(name).filter(|(_, group)| group.kind == kind) else {
        return Err(Fault::Syntax(format!("object-group {name} is not there, or of another kind")));
    };
    if !known.contains_key(name.as_str()) {
        known.insert(name, None);
        let members = members(groups, known, name, group, depth, one);
        known.insert(name, Some(members));
    }
    match &known[name.as_str()] {
        Some(Ok(members)) => Ok(members),
        Some(Err(fault)) => Err(fault.clone()),
        None => Err(Fault::Syntax(format!("object-group {name} holds itself"))),
    }
}

fn members<'a, T: Clone>(
    groups: &'a HashMap<String, Group>,
    known: &mut HashMap<&'a str, Known<T>>,
    name: &str,
    group: &'a Group,
    depth: usize,
    one: &dyn Fn(&mut Words<'_>) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    if depth == MAX_DEPTH {
        return Err(Fault::Syntax(format!("object-group {name} lies in more than {MAX_DEPTH} others")));
    }
    let mut members = Vec::new();
    for (line, text) in &group.members {
        let mut words = Words::new(text);
        let within = |message| format!("object-group {name}, line {line}: {message}");
        if words.take("group-object") {
            let inner = words.next("a name").map_err(within)?;
            members.extend_from_slice(resolve(groups, known, group.kind, inner, depth + 1, one)?);
        } else {
            let member = one(&mut words).map_err(|fault| match fault {
                Fault::Syntax(message) => Fault::Syntax(within(message)),
                Fault::Unsupported(message) => Fault::Unsupported(within(message)),
            })?;
            members.push(member);
        }
        if let Some(word) = words.0.next() {
            return Err(Fault::Syntax(within(format!("{word:?}; expected the end of the line"))));
        }
        if members.len() > MAX_MEMBERS {
            return Err(Fault::Unsupported(format!(
                "object-group {name} of more than {MAX_MEMBERS} members"
            )));
        }
    }
    if members.is_empty() {
        return Err(Fault::Syntax(format!("object-group {name} has no members")));
    }
    Ok(members)
}
