//! Rules as a table of nftables.

use packetloom_packet::protocol;
use serde_json::{Value, json};

use crate::formats::WriteError;
use crate::formats::writing::{Writing, comment, decision, protocols};
use crate::rule::{Action, Addresses, Fragments, PortRange, Rule};
use crate::{ConnectionState, Interfaces};

/// Bytes of a comment that nft takes.
const MAX_COMMENT: usize = 128;

pub(in crate::formats) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    let policy = verdict(writing.options.closing());
    let table = json!({ "table": { "family": "inet", "name": "packetloom" } });
    let chain = json!({ "chain": {
        "family": "inet", "table": "packetloom", "name": "forward",
        "type": "filter", "hook": "forward", "prio": 0, "policy": policy,
    } });
    write!(writing.writer, "{{\"nftables\": [\n{table},\n{chain}")?;
    for (index, rule) in rules.iter().enumerate() {
        for half in halves(rule) {
            match expressions(&half) {
                Ok(all) => {
                    for expr in all {
                        let mut object =
                            json!({ "family": "inet", "table": "packetloom", "chain": "forward" });
                        if let Some(comment) = comment(rule, MAX_COMMENT) {
                            object["comment"] = comment.into();
                        }
                        object["expr"] = expr.into();
                        write!(writing.writer, ",\n{}", json!({ "rule": object }))?;
                    }
                }
                Err(reason) => writing.inexpressible(index, &half, reason)?,
            }
        }
    }
    writeln!(writing.writer, "\n]}}")?;
    Ok(())
}

fn verdict(action: Action) -> &'static str {
    match action {
        Action::Permit | Action::Reflect => "accept",
        Action::Deny => "drop",
    }
}

/// The rule, or its IPv4 and its IPv6 half where the two families say it in different words.
fn halves(rule: &Rule) -> Vec<Rule> {
    use crate::rule::{Prefix4, Prefix6};
    let asks_icmp = rule.icmp_type.is_some() || rule.icmp_code.is_some();
    let differs = rule.fragments != Fragments::All || asks_icmp || rule.protocol.is_some_and(is_walked);
    if rule.addresses != Addresses::Any || !differs {
        return vec![rule.clone()];
    }
    let (every4, every6) = (Prefix4::new(0, 0), Prefix6::new(0, 0));
    [Addresses::V4(every4, every4), Addresses::V6(every6, every6)]
        .map(|addresses| Rule { addresses, ..rule.clone() })
        .into()
}

/// Whether an IPv6 header of this number is walked over, here or by nft.
fn is_walked(number: u8) -> bool {
    matches!(number, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)
}

fn compare(operator: &str, left: Value, right: impl Into<Value>) -> Value {
    json!({ "match": { "op": operator, "left": left, "right": right.into() } })
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({ "payload": { "protocol": protocol, "field": field } })
}

fn meta(key: &str) -> Value {
    json!({ "meta": { "key": key } })
}

/// The statements of a rule, or of several, or why there are none.
fn expressions(rule: &Rule) -> Result<Vec<Vec<Value>>, &'static str> {
    let action = decision(rule)?;
    let protocols = protocols(rule)?;
    let each = protocols.into_iter().map(|protocol| {
        let mut expr = interface("iifname", rule.interfaces.as_deref())?;
        expr.extend(interface("oifname", rule.out.as_deref())?);
        expr.extend(addresses(rule));
        transport(rule, protocol, &mut expr)?;
        fragments(rule, protocol, &mut expr)?;
        if !rule.states.is_all() {
            let states: Vec<_> = rule.states.iter().map(ConnectionState::name).collect();
            expr.push(compare("in", json!({ "ct": { "key": "state" } }), states));
        }
        if rule.log {
            expr.push(json!({ "log": null }));
        }
        expr.push(json!({ verdict(action): null }));
        Ok(expr)
    });
    each.collect()
}

/// The match on the interface by which a packet comes, or leaves.
fn interface(key: &str, interfaces: Option<&Interfaces>) -> Result<Vec<Value>, &'static str> {
    let Some(interfaces) = interfaces else { return Ok(Vec::new()) };
    let name = |name: &str| name.strip_suffix('+').map_or(name.to_owned(), |start| format!("{start}*"));
    let patterns: Vec<_> = interfaces.patterns().collect();
    // Elements that overlap are not taken.
    let is_plain =
        patterns.iter().all(|(name, is_in)| *is_in != interfaces.has_rest() && !name.ends_with('+'));
    let (operator, right) = match (&patterns[..], interfaces.has_rest()) {
        ([(one, true)], false) => ("==", json!(name(one))),
        ([(one, false)], true) => ("!=", json!(name(one))),
        (names, rest) if is_plain => {
            let names: Vec<_> = names.iter().map(|(name, _)| name.clone()).collect();
            (if rest { "!=" } else { "==" }, json!({ "set": names }))
        }
        _ => return Err("which has no words for these interfaces"),
    };
    Ok(vec![compare(operator, meta(key), right)])
}

fn addresses(rule: &Rule) -> Vec<Value> {
    let end = |field: &str, family: &str, prefix: String, len: u8| {
        let address = prefix.split('/').next().unwrap_or_default().to_owned();
        let prefix = json!({ "prefix": { "addr": address, "len": len } });
        (len > 0).then(|| compare("==", payload(family, field), prefix))
    };
    let (version, ends) = match rule.addresses {
        Addresses::Any => return Vec::new(),
        Addresses::V4(source, destination) => (
            "ipv4",
            [
                end("saddr", "ip", source.to_string(), source.len()),
                end("daddr", "ip", destination.to_string(), destination.len()),
            ],
        ),
        Addresses::V6(source, destination) => (
            "ipv6",
            [
                end("saddr", "ip6", source.to_string(), source.len()),
                end("daddr", "ip6", destination.to_string(), destination.len()),
            ],
        ),
    };
    let mut expr: Vec<_> = ends.into_iter().flatten().collect();
    if expr.is_empty() {
        expr.push(compare("==", meta("nfproto"), version));
    }
    expr
}

/// The protocol and what is asked of its header.
fn transport(rule: &Rule, protocol: Option<u8>, expr: &mut Vec<Value>) -> Result<(), &'static str> {
    let Some(protocol) = protocol else { return Ok(()) };
    if is_walked(protocol) && !matches!(rule.addresses, Addresses::V4(..)) {
        return Err("where this protocol's header is walked over");
    }
    expr.push(compare("==", meta("l4proto"), protocol));
    for (field, ports) in [("sport", rule.source_ports), ("dport", rule.destination_ports)] {
        let PortRange { low, high } = ports;
        match low == high {
            _ if ports.is_any() => {}
            true => expr.push(compare("==", payload("th", field), low)),
            false => expr.push(compare("==", payload("th", field), json!({ "range": [low, high] }))),
        }
    }
    let icmp = if protocol == protocol::ICMP { "icmp" } else { "icmpv6" };
    for (field, value) in [("type", rule.icmp_type), ("code", rule.icmp_code)] {
        if let Some(value) = value {
            expr.push(compare("==", payload(icmp, field), value));
        }
    }
    if let Some(flags) = rule.tcp_flags {
        let looked_at = json!({ "&": [payload("tcp", "flags"), flags.mask] });
        expr.push(compare("==", looked_at, flags.set & flags.mask));
    }
    Ok(())
}

fn fragments(rule: &Rule, protocol: Option<u8>, expr: &mut Vec<Value>) -> Result<(), &'static str> {
    let bits = |mask: u16| json!({ "&": [payload("ip", "frag-off"), mask] });
    let looks_at_header = !(rule.source_ports.is_any() && rule.destination_ports.is_any())
        || rule.icmp_type.is_some()
        || rule.icmp_code.is_some()
        || rule.tcp_flags.is_some();
    let is_v4 = matches!(rule.addresses, Addresses::V4(..));
    expr.push(match rule.fragments {
        Fragments::All => return Ok(()),
        Fragments::NotLater if looks_at_header => return Ok(()),
        Fragments::Any if is_v4 => compare("!=", bits(0x3fff), 0),
        Fragments::None if is_v4 => compare("==", bits(0x3fff), 0),
        Fragments::First if is_v4 => compare("==", bits(0x3fff), 0x2000),
        Fragments::Later if is_v4 => compare("!=", bits(0x1fff), 0),
        Fragments::NotLater if is_v4 => compare("==", bits(0x1fff), 0),
        Fragments::Later => compare("!=", json!({ "exthdr": { "name": "frag", "field": "frag-off" } }), 0),
        // A look at the header that asks nothing of it.
        Fragments::NotLater if protocol.is_some_and(protocol::has_ports) => {
            compare("==", payload("th", "sport"), json!({ "range": [0, u16::MAX] }))
        }
        Fragments::NotLater if protocol == Some(protocol::ICMPV6) => {
            compare("==", payload("icmpv6", "type"), json!({ "range": [0, u8::MAX] }))
        }
        _ => return Err("which has no words for these fragments of IPv6"),
    });
    Ok(())
}
