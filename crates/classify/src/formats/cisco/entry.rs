//! One entry of an access list, as the packets it matches.

use packetloom_packet::protocol::{ICMP, ICMPV6, TCP};

use super::super::builder::Fault;
use super::super::region::{Ends, Kinds, Region};
use super::super::set::Set;
use super::super::text::Words;
use super::address::{address4, address6, ipv4, wildcard};
use super::config::Kind;
use super::groups::Groups;
use super::names;
use super::service::{Service, flags, message, ports, protocols, single};
use crate::rule::Action;

/// Options that no rule of ours says.
const OTHER_OPTIONS: &[&str] = &[
    "auth",
    "dest-option",
    "dest-option-type",
    "dscp",
    "flow-label",
    "hbh",
    "mobility",
    "mobility-type",
    "option",
    "precedence",
    "reflect",
    "routing",
    "routing-type",
    "time-range",
    "tos",
    "ttl",
    "undetermined-transport",
];

/// What an entry says.
pub(super) struct Meaning {
    pub(super) action: Action,
    pub(super) log: bool,
    ends: Ends,
    services: Vec<Service>,
    /// Whether it is about later fragments only.
    fragments: bool,
}

impl Meaning {
    /// The packets of the entry, part by part: there may be many, and each is large.
    pub(super) fn regions(&self) -> impl Iterator<Item = Region> {
        self.services.iter().flat_map(|service| {
            let region = service.region(&self.ends);
            let region = if self.fragments { region.kinds(Kinds::LATER) } else { region };
            // Later fragments are permitted by all that they have: addresses and protocol.
            let takes_later = self.action == Action::Permit && service.asks_transport();
            let later = || Region::of(self.ends.clone()).protocols(&service.protocols).kinds(Kinds::LATER);
            std::iter::once(region).chain(takes_later.then(later))
        })
    }
}

/// Reads an entry.
pub(super) fn parse(kind: Kind, text: &str, groups: &mut Groups<'_>) -> Result<Meaning, Fault> {
    let mut words = Words::new(text);
    let action = match words.next("permit or deny")? {
        "permit" => Action::Permit,
        "deny" => Action::Deny,
        other @ ("dynamic" | "evaluate") => return Err(Fault::no_equal(other)),
        found => return Err(Fault::Syntax(format!("{found:?}; expected permit, deny or remark"))),
    };
    match kind {
        Kind::Standard => standard(action, &mut words),
        Kind::Extended | Kind::V6 | Kind::Other => extended(action, kind == Kind::V6, &mut words, groups),
    }
}

/// The rest of an entry that has a source only.
fn standard(action: Action, words: &mut Words<'_>) -> Result<Meaning, Fault> {
    let source = match words.peek() {
        "any" | "host" => address4(words, None)?,
        _ => {
            let address = words.next("a source")?;
            let address = ipv4(address.trim_end_matches(','))?;
            if words.take("wildcard") {
                words.expect("bits")?;
            }
            match words.peek() {
                // A source without a wildcard is one host.
                "" | "log" => Set::one(address),
                _ => wildcard(address, ipv4(words.next("a wildcard")?)?)?,
            }
        }
    };
    let log = words.take("log");
    if let Some(word) = words.0.next() {
        return Err(Fault::Syntax(format!("{word:?}; expected log or the end of the entry")));
    }
    let (ends, services) = (Ends::V4(source, Set::ALL), vec![Service::of(Set::ALL)]);
    Ok(Meaning { action, log, ends, services, fragments: false })
}

/// The rest of an entry with a protocol, both addresses, and options.
fn extended(
    action: Action,
    v6: bool,
    words: &mut Words<'_>,
    groups: &mut Groups<'_>,
) -> Result<Meaning, Fault> {
    let icmp = if v6 { ICMPV6 } else { ICMP };
    // A group of services brings its own ports; an entry has them, a message or flags as its protocol has.
    let (group, mut service) = match words.next("a protocol")? {
        "object-group" => (Some(words.next("the name of a group")?), Service::of(Set::ALL)),
        word => (None, Service::of(protocols(word, icmp)?)),
    };
    let protocol = single(&service.protocols);
    let (ends, source_ports) = if v6 {
        let source = address6(words, groups)?;
        let ports = ports(words, protocol)?;
        (Ends::V6(source, address6(words, groups)?), ports)
    } else {
        let source = address4(words, Some(groups))?;
        let ports = ports(words, protocol)?;
        (Ends::V4(source, address4(words, Some(groups))?), ports)
    };
    service.source_ports = source_ports;
    service.destination_ports = ports(words, protocol)?;
    if protocol == Some(icmp) {
        service.icmp = message(words, icmp)?;
    }
    let (mut log, mut fragments, mut all_flags) = (false, false, false);
    while let Some(word) = words.0.next() {
        match word {
            "log" | "log-input" => log = true,
            "fragments" => fragments = true,
            _ if OTHER_OPTIONS.contains(&word) => return Err(Fault::no_equal(word)),
            _ if protocol == Some(TCP) => {
                let flags = flags(word, words)?;
                // match-any and match-all say all that there is to say of flags.
                let is_match = word.starts_with("match-");
                if all_flags || (is_match && service.flags.is_some()) {
                    return Err(Fault::Syntax(format!("{word:?} beside match-any or match-all")));
                }
                all_flags = is_match;
                service.flags = Some(service.flags.map_or(flags.clone(), |before| before.union(&flags)));
            }
            _ if protocol == names::protocol("igmp", icmp) => {
                return Err(Fault::no_equal(word));
            }
            _ => return Err(Fault::Syntax(format!("{word:?}; expected an option such as log or fragments"))),
        }
    }
    let services = match group {
        Some(name) => groups.services(name)?.to_vec(),
        None => vec![service],
    };
    if fragments && services.iter().any(Service::asks_transport) {
        let message = "fragments with ports, a message or flags, which later fragments do not have";
        return Err(Fault::Syntax(message.into()));
    }
    Ok(Meaning { action, log, ends, services, fragments })
}
