//! Rule lists that packets are forwarded through, and flows that they permit.

use std::net::IpAddr;

use packetloom_classify::rule::{Addresses, Fragments, Prefix4};
use packetloom_classify::{Action, Rule};
use packetloom_generate::{
    HeaderOptions, HeaderTransport, Headers, RuleOptions, RuleShape, Style, generate_rules,
};

use super::net::failed;
use crate::Error;

/// A rule list. Packets that no rule matches get its default.
#[derive(Clone, Debug)]
pub struct List {
    /// What it is called.
    pub name: String,
    /// Its rules; those without an action permit.
    pub rules: Vec<Rule>,
    /// What happens to packets that no rule matches.
    pub default: Action,
}

impl List {
    /// So many generated rules, as of access lists, of IPv4; the last one permits everything.
    ///
    /// # Errors
    ///
    /// More rules than can be made.
    pub fn generated(count: usize) -> Result<Self, Error> {
        let options = RuleOptions { style: Style::Acl, count, seed: 1, ipv6: false };
        let mut rules = generate_rules(&options).map_err(|error| failed(error.to_string()))?;
        if let Some(last) = rules.last_mut() {
            last.action = Some(Action::Permit);
        }
        Ok(Self { name: format!("acl_{count}"), rules, default: Action::Permit })
    }
}

/// A flow of UDP over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) ports: [u16; 2],
}

/// Headers that are tried for each flow that is wanted.
const TRIED: u64 = 200;

/// Flows that a list permits. Source, destination and ports of each are of different rules, so that most match late in the list, or the default only.
pub(super) fn flows(list: Option<&List>, count: usize) -> Result<Vec<Flow>, Error> {
    let Some(list) = list else {
        let flow = |n: u32| Flow { source: 0x0a00_0000 + n, destination: 0xcb00_7101, ports: [1024, 53] };
        return Ok((1..=count as u32).map(flow).collect());
    };
    let shapes: Vec<_> = list.rules.iter().flat_map(RuleShape::of).filter(|shape| !shape.ipv6).collect();
    let shapes = if shapes.is_empty() { vec![RuleShape::any(false)] } else { shapes };
    let options = HeaderOptions { count: count as u64 * TRIED, mix: true, ..HeaderOptions::default() };
    let headers = Headers::new(&shapes, &options).map_err(|error| failed(error.to_string()))?;
    let flows = headers.filter_map(|header| {
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (header.source, header.destination) else {
            return None;
        };
        let HeaderTransport::Ports { source: from, destination: to } = header.transport else { return None };
        let flow = Flow { source: source.into(), destination: destination.into(), ports: [from, to] };
        let is_usual = is_unicast(flow.source) && is_unicast(flow.destination);
        (is_usual && verdict(list, &flow) == Action::Permit).then_some(flow)
    });
    let flows: Vec<_> = flows.take(count).collect();
    match flows.len() == count {
        true => Ok(flows),
        false => Err(failed(format!(
            "{}: of {} packets of UDP over IPv4 it permits {}; expected rules that permit {count} flows, or fewer --flows",
            list.name,
            options.count,
            flows.len()
        ))),
    }
}

/// Whether the kernel forwards packets from and to an address.
fn is_unicast(address: u32) -> bool {
    let first = address >> 24;
    // Link-local ones are left out, and those that the kernel has at the sink's link.
    first != 0 && first != 127 && first < 224 && address >> 16 != 0xa9fe && address >> 2 != 0xc612_0000 >> 2
}

/// What a list says of a packet, rule by rule.
fn verdict(list: &List, flow: &Flow) -> Action {
    let first = list.rules.iter().find(|rule| {
        let addresses = match rule.addresses {
            Addresses::Any => true,
            Addresses::V4(from, to) => from.contains(flow.source) && to.contains(flow.destination),
            Addresses::V6(..) => false,
        };
        addresses
            && rule.protocol.is_none_or(|protocol| protocol == UDP)
            && rule.source_ports.contains(flow.ports[0])
            && rule.destination_ports.contains(flow.ports[1])
            && rule.icmp_type.is_none()
            && rule.icmp_code.is_none()
            && rule.tcp_flags.is_none()
            && matches!(rule.fragments, Fragments::All | Fragments::None | Fragments::NotLater)
    });
    first.map_or(list.default, |rule| rule.action.unwrap_or(Action::Permit))
}

const UDP: u8 = 17;

/// The rules as nft(8) reads them, in sets of intervals: each set is a map from source, destination, protocol and ports to what becomes of a
/// packet, in one look-up. Elements of a set must not overlap, so a rule lies in the first set after those of all rules before it that it overlaps: a
/// packet meets the same rule as in the list. How many sets these are, too.
pub(super) fn sets(list: &List) -> Result<(String, usize), Error> {
    let mut levels: Vec<Vec<(Region, &Rule)>> = Vec::new();
    for rule in &list.rules {
        let plain = Rule {
            action: rule.action,
            addresses: rule.addresses,
            protocol: rule.protocol,
            source_ports: rule.source_ports,
            destination_ports: rule.destination_ports,
            ..Rule::any(None)
        };
        let extra = Rule { id: rule.id.clone(), comment: rule.comment.clone(), line: rule.line, ..plain };
        if extra != (Rule { log: false, tcp_flags: None, ..rule.clone() })
            || rule.action == Some(Action::Reflect)
        {
            return Err(failed(format!(
                "{}: a rule that sets of intervals cannot have: {rule}; expected addresses, ports and protocol only",
                list.name
            )));
        }
        // Ours are packets of UDP over IPv4.
        let Some(region) = Region::of(rule) else { continue };
        let after = levels.iter().rposition(|level| level.iter().any(|(other, _)| other.overlaps(&region)));
        let level = after.map_or(0, |last| last + 1);
        if level == levels.len() {
            levels.push(Vec::new());
        }
        levels[level].push((region, rule));
    }
    let mut text = String::from("table ip packetloom {\n");
    let key = "ip saddr . ip daddr . meta l4proto . th sport . th dport";
    for (number, level) in levels.iter().enumerate() {
        text +=
            &format!(" map rules{number} {{\n  typeof {key} : verdict\n  flags interval\n  elements = {{\n");
        for (region, rule) in level {
            let verdict = if rule.action == Some(Action::Deny) { "drop" } else { "accept" };
            text += &format!("   {region} : {verdict},\n");
        }
        text += "  }\n }\n";
    }
    let policy = if list.default == Action::Deny { "drop" } else { "accept" };
    text += &format!(" chain forward {{\n  type filter hook forward priority 0; policy {policy};\n");
    for number in 0..levels.len() {
        text += &format!("  {key} vmap @rules{number}\n");
    }
    Ok((text + " }\n}\n", levels.len()))
}

/// Values of each field that a rule asks for.
struct Region([[u32; 2]; 5]);

impl Region {
    /// None of a rule that no packet of IPv4 without TCP flags matches.
    fn of(rule: &Rule) -> Option<Self> {
        let span = |prefix: Prefix4| [prefix.address(), prefix.address() | !prefix.mask()];
        let [source, destination] = match rule.addresses {
            Addresses::Any => [[0, u32::MAX]; 2],
            Addresses::V4(source, destination) => [span(source), span(destination)],
            Addresses::V6(..) => return None,
        };
        if rule.tcp_flags.is_some() {
            return None;
        }
        let protocol = rule.protocol.map_or([0, 255], |number| [number.into(); 2]);
        let ports =
            [rule.source_ports, rule.destination_ports].map(|ports| [ports.low.into(), ports.high.into()]);
        Some(Self([source, destination, protocol, ports[0], ports[1]]))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|([low, high], [from, to])| low <= to && from <= high)
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address = |value: u32| std::net::Ipv4Addr::from(value).to_string();
        let number = |value: u32| value.to_string();
        for (place, &[low, high]) in self.0.iter().enumerate() {
            let text = if place < 2 { &address as &dyn Fn(u32) -> String } else { &number };
            if place > 0 {
                f.write_str(" . ")?;
            }
            match low == high {
                true => f.write_str(&text(low))?,
                false => write!(f, "{}-{}", text(low), text(high))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_permitted_by_the_list() {
        let list = List::generated(1000).expect("rules");
        let flows = flows(Some(&list), 256).expect("flows");
        assert_eq!(flows.len(), 256);
        assert!(flows.iter().all(|flow| verdict(&list, flow) == Action::Permit));
        let nothing = List { rules: vec![Rule::any(Some(Action::Deny))], ..list };
        let why = super::flows(Some(&nothing), 4).expect_err("none").to_string();
        assert!(why.contains("expected rules that permit 4 flows"), "{why}");
    }

    #[test]
    fn sets_hold_each_rule_once_and_in_order() {
        let list = List::generated(200).expect("rules");
        let (text, sets) = sets(&list).expect("sets");
        let regions = list.rules.iter().filter_map(Region::of).count();
        assert_eq!(text.matches(" : accept,").count() + text.matches(" : drop,").count(), regions);
        assert_eq!(text.matches("vmap @rules").count(), sets);
        assert!(text.ends_with(" }\n}\n") && sets > 1, "{sets}");
    }
}
