//! Rules as a `filter` table.

use packetloom_packet::protocol;

use super::Family;
use super::matching::{ANY_ICMP, FLAGS};
use crate::Interfaces;
use crate::formats::WriteError;
use crate::formats::writing::{Writing, comment, decision, protocols};
use crate::rule::{Action, Addresses, Fragments, PortRange, Rule};

/// Bytes of a comment that the tools take.
const MAX_COMMENT: usize = 255;
/// The chain that is written.
const CHAIN: &str = "FORWARD";

pub(super) fn write(rules: &[Rule], writing: &mut Writing<'_>, family: Family) -> Result<(), WriteError> {
    let policy = target(writing.options.closing());
    writeln!(writing.writer, "*filter\n:{CHAIN} {policy} [0:0]")?;
    for (index, rule) in rules.iter().enumerate() {
        match lines(rule, family) {
            Ok(lines) => {
                if rule.addresses == Addresses::Any {
                    let other = match family {
                        Family::V4 => "which says nothing about IPv6 packets",
                        Family::V6 => "which says nothing about IPv4 packets",
                    };
                    writing.inexpressible(index, rule, other)?;
                }
                for line in lines {
                    writeln!(writing.writer, "-A {CHAIN}{line}")?;
                }
            }
            Err(reason) => writing.inexpressible(index, rule, reason)?,
        }
    }
    writeln!(writing.writer, "COMMIT")?;
    Ok(())
}

fn target(action: Action) -> &'static str {
    match action {
        Action::Permit | Action::Reflect => "ACCEPT",
        Action::Deny => "DROP",
    }
}

/// What stands behind the chain's name in the lines of a rule, or why it has none.
fn lines(rule: &Rule, family: Family) -> Result<Vec<String>, &'static str> {
    let action = decision(rule)?;
    let ends = match (family, rule.addresses) {
        (_, Addresses::Any) => String::new(),
        (Family::V4, Addresses::V4(source, destination)) => {
            end("-s", source.len(), &source.to_string())
                + &end("-d", destination.len(), &destination.to_string())
        }
        (Family::V6, Addresses::V6(source, destination)) => {
            end("-s", source.len(), &source.to_string())
                + &end("-d", destination.len(), &destination.to_string())
        }
        (Family::V4, _) => return Err("which holds IPv4 only"),
        (Family::V6, _) => return Err("which holds IPv6 only"),
    };
    let comment = match comment(rule, MAX_COMMENT) {
        Some(comment) => format!(" -m comment --comment {}", quoted(comment)),
        None => String::new(),
    };
    let mut context = String::new();
    for (option, interfaces) in [("-i", &rule.interfaces), ("-o", &rule.out)] {
        if let Some(interfaces) = interfaces {
            context += &interface(option, interfaces)?;
        }
    }
    let state = if rule.states.is_all() {
        String::new()
    } else {
        format!(" -m conntrack --ctstate {}", rule.states.to_string().to_ascii_uppercase())
    };
    let mut lines = Vec::new();
    for protocol in protocols(rule)? {
        let matching = format!("{context}{ends}{}{state}", header(rule, protocol, family)?);
        if rule.log {
            lines.push(format!("{matching} -j LOG"));
        }
        lines.push(format!("{matching}{comment} -j {}", target(action)));
    }
    Ok(lines)
}

/// The match on the interface by which a packet comes, or leaves.
pub(super) fn interface(option: &str, interfaces: &Interfaces) -> Result<String, &'static str> {
    let patterns: Vec<_> = interfaces.patterns().collect();
    match (&patterns[..], interfaces.has_rest()) {
        ([(name, true)], false) => Ok(format!(" {option} {name}")),
        ([(name, false)], true) => Ok(format!(" ! {option} {name}")),
        _ => Err("where a rule names one interface"),
    }
}

fn end(option: &str, len: u8, prefix: &str) -> String {
    if len == 0 { String::new() } else { format!(" {option} {prefix}") }
}

/// The matches on the protocol, its header, and fragments.
fn header(rule: &Rule, protocol: Option<u8>, family: Family) -> Result<String, &'static str> {
    /// Protocols that the tools of a family know no number for, or do not see in packets.
    const NOT_IN_V6: [u8; 8] = [0, 43, 44, 51, 60, 135, 139, 140];
    let mut text = String::new();
    let name = match (protocol, family) {
        (None, _) => None,
        (Some(0), Family::V4) => return Err("where protocol 0 is every protocol"),
        (Some(number), Family::V6) if NOT_IN_V6.contains(&number) => {
            return Err("where this protocol's header is walked over");
        }
        (Some(protocol::TCP), _) => Some("tcp"),
        (Some(protocol::UDP), _) => Some("udp"),
        (Some(protocol::SCTP), _) => Some("sctp"),
        (Some(protocol::ICMP), Family::V4) => Some("icmp"),
        (Some(protocol::ICMPV6), Family::V6) => Some("icmp6"),
        _ => None,
    };
    if let Some(protocol) = protocol {
        text += &format!(" -p {protocol}");
    }
    let mut header = String::new();
    for (option, ports) in [("--sport", rule.source_ports), ("--dport", rule.destination_ports)] {
        if !ports.is_any() {
            let PortRange { low, high } = ports;
            header +=
                &if low == high { format!(" {option} {low}") } else { format!(" {option} {low}:{high}") };
        }
    }
    if let Some(flags) = rule.tcp_flags {
        if flags.mask > 0x3f {
            return Err("which has no words for the flags ECE and CWR");
        }
        header += &format!(" --tcp-flags {} {}", flag_names(flags.mask), flag_names(flags.set & flags.mask));
    }
    match (rule.icmp_type, rule.icmp_code, name) {
        (None, None, _) => {}
        (Some(ANY_ICMP), _, Some("icmp")) => return Err("where ICMP type 255 is every type"),
        (Some(icmp_type), code, Some(name @ ("icmp" | "icmp6"))) => {
            let option = if name == "icmp" { "--icmp-type" } else { "--icmpv6-type" };
            header += &format!(" {option} {icmp_type}");
            if let Some(code) = code {
                header += &format!("/{code}");
            }
        }
        _ => return Err("which has no words for this type of the other family's ICMP, or for a code alone"),
    }
    let looks_at_header = !header.is_empty();
    match (rule.fragments, name, family) {
        (Fragments::All, ..) => {}
        (Fragments::NotLater, ..) if looks_at_header => {}
        (Fragments::Later, _, Family::V4) if !looks_at_header => text += " -f",
        (Fragments::NotLater, _, Family::V4) => text += " ! -f",
        (Fragments::NotLater, Some(name @ ("tcp" | "udp" | "sctp")), Family::V6) => {
            text += &format!(" -m {name}");
        }
        _ => return Err("which has no words for these fragments"),
    }
    match name {
        Some(name) if looks_at_header => Ok(format!("{text} -m {name}{header}")),
        _ => Ok(text),
    }
}

fn flag_names(flags: u8) -> String {
    let names: Vec<_> = FLAGS.iter().filter(|(_, flag)| flags & flag != 0).map(|(name, _)| *name).collect();
    if names.is_empty() { "NONE".into() } else { names.join(",") }
}

/// A comment between quotes.
fn quoted(text: &str) -> String {
    let escaped = text.chars().flat_map(|c| matches!(c, '"' | '\\').then_some('\\').into_iter().chain([c]));
    format!("\"{}\"", escaped.collect::<String>())
}
