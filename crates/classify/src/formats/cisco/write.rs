//! Rules as named access lists, one a family.

use std::net::{Ipv4Addr, Ipv6Addr};

use packetloom_packet::protocol::{ICMP, ICMPV6};

use super::super::writing::{Writing, decision, protocols};
use super::super::{WriteError, meet};
use super::names;
use crate::rule::{Action, Addresses, Fragments, PortRange, Prefix4, Prefix6, Rule, TcpFlagMatch};

/// Names of the lists.
const NAMES: [&str; 2] = ["PACKETLOOM", "PACKETLOOM-V6"];
/// A remark is not longer.
const MAX_REMARK: usize = 100;

/// Writes a list for IPv4 and one for IPv6: a router forwards all packets of a family that has no list.
pub(in super::super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    [false, true].into_iter().try_for_each(|v6| list(rules, v6, writing))
}

/// Whether packets of the family can match.
fn concerns(rule: &Rule, v6: bool) -> bool {
    match rule.addresses {
        Addresses::Any => true,
        Addresses::V4(..) => !v6,
        Addresses::V6(..) => v6,
    }
}

/// Writes the list of a family.
fn list(rules: &[Rule], v6: bool, writing: &mut Writing<'_>) -> Result<(), WriteError> {
    let header = if v6 { "ipv6 access-list" } else { "ip access-list extended" };
    writeln!(writing.writer, "{header} {}", NAMES[usize::from(v6)])?;
    let default = writing.options.closing();
    let mut remark = None;
    // Whether it was said already what is done with later fragments.
    let mut later_done = false;
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| concerns(rule, v6)) {
        let entries = match entries(rule, v6) {
            Ok(entries) => entries,
            Err(reason) => {
                writing.inexpressible(index, rule, reason)?;
                continue;
            }
        };
        let matches_more = entries.iter().any(|(entry, _)| {
            matches_more(entry) && !meet::later_is_alike(entry, &rules[index + 1..], Some(default))
        });
        if matches_more && !later_done {
            later(&rules[index + 1..], v6, default, writing)?;
            later_done = true;
        }
        if later_done && rule.fragments == Fragments::Later {
            continue;
        }
        // Rules that were one line have one comment.
        if let Some(comment) = rule.comment.as_deref().filter(|comment| remark != Some(*comment)) {
            writeln!(writing.writer, " remark {}", &comment[..comment.floor_char_boundary(MAX_REMARK)])?;
        }
        remark = rule.comment.as_deref();
        for (_, entry) in entries {
            writeln!(writing.writer, " {entry}{}", if rule.log { " log" } else { "" })?;
        }
    }
    // Without it an IPv6 list permits neighbour discovery, and a list without entries everything.
    writeln!(writing.writer, " {} {} any any", default.name(), every(v6))?;
    Ok(())
}

/// Whether the entry for a rule matches later fragments that the rule does not match.
fn matches_more(rule: &Rule) -> bool {
    match rule.fragments {
        Fragments::Later => false,
        _ if meet::asks_transport(rule) => rule.action == Some(Action::Permit),
        fragments => fragments == Fragments::NotLater,
    }
}

/// Writes what is done with all later fragments from here on, so that the entries after it need not say it.
fn later(rules: &[Rule], v6: bool, default: Action, writing: &mut Writing<'_>) -> Result<(), WriteError> {
    for rule in rules.iter().filter(|rule| concerns(rule, v6) && meet::matches_later(rule)) {
        let later = Rule { fragments: Fragments::Later, ..rule.clone() };
        for (_, entry) in entries(rule, v6).and_then(|_| entries(&later, v6)).unwrap_or_default() {
            writeln!(writing.writer, " {entry}{}", if rule.log { " log" } else { "" })?;
        }
    }
    writeln!(writing.writer, " {} {} any any fragments", default.name(), every(v6))?;
    Ok(())
}

const fn every(v6: bool) -> &'static str {
    if v6 { "ipv6" } else { "ip" }
}

/// The entries of a rule, each with the rule that it is for, or what there are no words for.
fn entries(rule: &Rule, v6: bool) -> Result<Vec<(Rule, String)>, &'static str> {
    let entry = |protocol| {
        let rule = Rule { protocol, ..rule.clone() };
        entry(&rule, v6).map(|text| (rule, text))
    };
    protocols(rule)?.into_iter().map(entry).collect()
}

/// The entry of a rule whose protocol has all that it asks for.
fn entry(rule: &Rule, v6: bool) -> Result<String, &'static str> {
    let action = decision(rule)?;
    let icmp = if v6 { ICMPV6 } else { ICMP };
    let message = match (rule.icmp_type, rule.icmp_code) {
        (None, None) => String::new(),
        _ if rule.protocol != Some(icmp) => {
            return Err("where types and codes belong to icmp with IPv4 and icmpv6 with IPv6");
        }
        (Some(icmp_type), None) => format!(" {icmp_type}"),
        (Some(icmp_type), Some(code)) => format!(" {icmp_type} {code}"),
        (None, Some(_)) => return Err("where a code needs a type"),
    };
    let flags = match rule.tcp_flags {
        None => String::new(),
        Some(flags) => self::flags(flags, v6)?,
    };
    let fragments = match rule.fragments {
        // Of both, what is done with later fragments is said elsewhere.
        Fragments::All | Fragments::NotLater => "",
        Fragments::Later if meet::asks_transport(rule) => {
            return Err("where later fragments have no ports, types or flags");
        }
        Fragments::Later => " fragments",
        Fragments::Any | Fragments::None | Fragments::First => {
            return Err("where whole packets and first fragments are alike");
        }
    };
    let (source, destination) = match rule.addresses {
        Addresses::Any => ("any".into(), "any".into()),
        Addresses::V4(source, destination) => (address4(source), address4(destination)),
        Addresses::V6(source, destination) => (address6(source), address6(destination)),
    };
    let protocol = match rule.protocol {
        None => every(v6).into(),
        Some(0) => return Err("where protocol 0 is every protocol"),
        Some(protocol) if protocol == icmp => "icmp".into(),
        Some(protocol) => names::PROTOCOLS
            .iter()
            .find(|(_, number)| *number == protocol)
            .map_or_else(|| protocol.to_string(), |(name, _)| (*name).into()),
    };
    let (source_ports, destination_ports) = (ports(rule.source_ports), ports(rule.destination_ports));
    let action = action.name();
    Ok(format!(
        "{action} {protocol} {source}{source_ports} {destination}{destination_ports}{message}{flags}{fragments}"
    ))
}

fn address4(prefix: Prefix4) -> String {
    let address = Ipv4Addr::from(prefix.address());
    match prefix.len() {
        0 => "any".into(),
        32 => format!("host {address}"),
        _ => format!("{address} {}", Ipv4Addr::from(!prefix.mask())),
    }
}

fn address6(prefix: Prefix6) -> String {
    match prefix.len() {
        0 => "any".into(),
        128 => format!("host {}", Ipv6Addr::from(prefix.address())),
        _ => prefix.to_string(),
    }
}

fn ports(ports: PortRange) -> String {
    match (ports.low, ports.high) {
        (0, u16::MAX) => String::new(),
        (low, high) if low == high => format!(" eq {low}"),
        (0, high) => format!(" lt {}", high + 1),
        (low, u16::MAX) => format!(" gt {}", low - 1),
        (low, high) => format!(" range {low} {high}"),
    }
}

/// The condition on flags, with a blank before it.
fn flags(flags: TcpFlagMatch, v6: bool) -> Result<String, &'static str> {
    const NAMES: [&str; 6] = ["fin", "syn", "rst", "psh", "ack", "urg"];
    let named = |bit: usize| flags.mask >> bit & 1 == 1;
    if flags.mask == 0 || flags.mask >> NAMES.len() != 0 {
        return Err("where flags are those from FIN to URG");
    }
    if v6 {
        // An IPv6 entry has no more words for it.
        let name =
            NAMES.iter().enumerate().find(|(bit, _)| flags.mask == 1 << bit && flags.set == flags.mask);
        return name
            .map(|(_, name)| format!(" {name}"))
            .ok_or("where an IPv6 entry asks for one flag that is set");
    }
    let each = NAMES.iter().enumerate().filter(|(bit, _)| named(*bit)).map(|(bit, name)| {
        let sign = if flags.set >> bit & 1 == 1 { '+' } else { '-' };
        format!(" {sign}{name}")
    });
    Ok(format!(" match-all{}", each.collect::<String>()))
}
