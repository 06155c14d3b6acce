//! A model of Netfilter's chains, to compare with: rules that can be written in the words of its tools, and what the kernel does
//! with a packet, rule by rule.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use packetloom_classify::formats::Reading;
use packetloom_classify::{Action, Kind, NO_RULE};
use packetloom_packet::key::halves;
use packetloom_packet::{KeyBits, MatchKey4, MatchKey6, protocol};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A condition, and whether it is turned round.
#[derive(Clone, Debug)]
pub(crate) struct Not<T>(pub(crate) bool, pub(crate) T);

impl<T> Not<T> {
    fn holds(&self, condition: impl Fn(&T) -> bool) -> bool {
        condition(&self.1) != self.0
    }
}

/// Which ports a condition looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PortsOf {
    Source,
    Destination,
    Either,
}

/// Ports from one to another, both in it.
pub(crate) type Ranges = Vec<(u16, u16)>;

/// The conditions of a rule. Addresses stand in the low bits.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    pub(crate) source: Option<Not<(u128, u8)>>,
    pub(crate) destination: Option<Not<(u128, u8)>>,
    pub(crate) protocol: Option<Not<u8>>,
    /// Whether the protocol's match is named, which looks at the header without asking anything of it.
    pub(crate) header: bool,
    pub(crate) ports: Vec<(PortsOf, Not<Ranges>)>,
    pub(crate) flags: Option<Not<(u8, u8)>>,
    pub(crate) icmp: Option<Not<(u8, Option<u8>)>>,
    /// Later fragments; IPv4 only.
    pub(crate) fragment: Option<bool>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Does {
    Decide(Action),
    Jump(usize),
    Goto(usize),
    Return,
    Nothing,
}

/// A rule; `log` is a rule before it with the same conditions that does nothing but log.
#[derive(Clone, Debug)]
pub(crate) struct ModelRule {
    pub(crate) conditions: Conditions,
    pub(crate) does: Does,
    pub(crate) log: bool,
}

/// A base chain and chains below it, which jump only to those after them.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) v6: bool,
    pub(crate) policy: Action,
    pub(crate) chains: Vec<Vec<ModelRule>>,
}

/// A packet as the kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) source: u128,
    pub(crate) destination: u128,
    pub(crate) protocol: u8,
    pub(crate) fragment: KeyBits,
    pub(crate) ports: (u16, u16),
    pub(crate) icmp: (u8, u8),
    pub(crate) flags: u8,
}

impl Packet {
    fn is_later(&self) -> bool {
        self.fragment == KeyBits::LATER_FRAGMENT
    }
}

fn in_prefix(address: u128, (prefix, len): (u128, u8), bits: u8) -> bool {
    len == 0 || address >> (bits - len) == prefix >> (bits - len)
}

impl Conditions {
    /// Whether the kernel's matches say yes to a packet.
    pub(crate) fn hold(&self, packet: &Packet, v6: bool) -> bool {
        let bits = if v6 { 128 } else { 32 };
        let asks_header =
            self.header || !self.ports.is_empty() || self.flags.is_some() || self.icmp.is_some();
        if asks_header && packet.is_later() {
            return false;
        }
        let port = |of: PortsOf, ranges: &Vec<(u16, u16)>| {
            let inside = |port: u16| ranges.iter().any(|&(low, high)| low <= port && port <= high);
            match of {
                PortsOf::Source => inside(packet.ports.0),
                PortsOf::Destination => inside(packet.ports.1),
                PortsOf::Either => inside(packet.ports.0) || inside(packet.ports.1),
            }
        };
        self.source.as_ref().is_none_or(|c| c.holds(|&prefix| in_prefix(packet.source, prefix, bits)))
            && self
                .destination
                .as_ref()
                .is_none_or(|c| c.holds(|&prefix| in_prefix(packet.destination, prefix, bits)))
            && self.protocol.as_ref().is_none_or(|c| c.holds(|&number| packet.protocol == number))
            && self.ports.iter().all(|(of, c)| c.holds(|ranges| port(*of, ranges)))
            && self.flags.as_ref().is_none_or(|c| c.holds(|&(set, mask)| packet.flags & mask == set))
            && self.icmp.as_ref().is_none_or(|c| {
                c.holds(|&(icmp_type, code)| {
                    packet.icmp.0 == icmp_type && code.is_none_or(|code| packet.icmp.1 == code)
                })
            })
            && self.fragment.is_none_or(|not| packet.is_later() != not)
    }
}

impl Model {
    /// What becomes of a packet, and whether a rule before the one that decided logged it.
    pub(crate) fn verdict(&self, packet: &Packet) -> (Action, bool) {
        let mut callers: Vec<(usize, usize)> = Vec::new();
        let mut at = (0, 0);
        loop {
            let (chain, number) = at;
            let Some(rule) = self.chains[chain].get(number) else {
                match callers.pop() {
                    Some(caller) => at = caller,
                    None => return (self.policy, false),
                }
                continue;
            };
            at.1 += 1;
            if !rule.conditions.hold(packet, self.v6) {
                continue;
            }
            match rule.does {
                Does::Decide(action) => return (action, rule.log),
                Does::Jump(target) => {
                    callers.push(at);
                    at = (target, 0);
                }
                Does::Goto(target) => at = (target, 0),
                Does::Return => at.1 = usize::MAX,
                Does::Nothing => {}
            }
        }
    }

    /// Compares what a reading of the model decides with what the model does, and with who logs.
    pub(crate) fn compare(&self, reading: &Reading, packets: &[Packet]) -> Result<(), String> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for packet in packets {
            let transport = !packet.is_later();
            let mut bits = packet.fragment;
            let (mut ports, mut tcp_flags) = ((0, 0), 0);
            if transport && protocol::has_ports(packet.protocol) {
                bits = bits.with(KeyBits::PORTS);
                ports = packet.ports;
            }
            if transport && protocol::has_type_and_code(packet.protocol) {
                bits = bits.with(KeyBits::ICMP);
                ports = (packet.icmp.0.into(), packet.icmp.1.into());
            }
            if transport && packet.protocol == protocol::TCP {
                bits = bits.with(KeyBits::TCP_FLAGS);
                tcp_flags = packet.flags;
            }
            let key4 = MatchKey4 {
                source: packet.source as u32,
                destination: packet.destination as u32,
                source_port: ports.0,
                destination_port: ports.1,
                protocol: packet.protocol,
                tcp_flags,
                bits,
                reserved: 0,
            };
            v4.push(key4);
            v6.push(MatchKey6 {
                source: halves(packet.source),
                destination: halves(packet.destination),
                source_port: ports.0,
                destination_port: ports.1,
                protocol: packet.protocol,
                tcp_flags,
                bits,
                reserved: 0,
            });
        }
        let mut first = vec![NO_RULE; packets.len()];
        let classifier = Kind::Linear.build(&reading.rules);
        if self.v6 {
            classifier.classify_v6(&v6, &mut first)
        } else {
            classifier.classify_v4(&v4, &mut first)
        }
        let rules = &reading.rules.rules;
        for (packet, &position) in packets.iter().zip(&first) {
            let found = match rules.get(position as usize) {
                Some(rule) => (rule.action, rule.log),
                None => (reading.default, false),
            };
            let (action, log) = self.verdict(packet);
            if found != (Some(action), log) {
                let rule = rules.get(position as usize).map(ToString::to_string);
                return Err(format!("{packet:?}: expected {action:?}, {log}, found {found:?} by {rule:?}"));
            }
        }
        Ok(())
    }

    /// As `iptables-save` or `ip6tables-save` prints it.
    pub(crate) fn iptables(&self) -> String {
        let mut text = format!(
            "*filter\n:INPUT {} [0:0]\n",
            if self.policy == Action::Permit { "ACCEPT" } else { "DROP" }
        );
        for number in 1..self.chains.len() {
            let _ = writeln!(text, ":chain{number} - [0:0]");
        }
        for (number, rules) in self.chains.iter().enumerate() {
            let chain = if number == 0 { "INPUT".to_owned() } else { format!("chain{number}") };
            for rule in rules {
                let conditions = rule.conditions.iptables(self.v6);
                let target = match rule.does {
                    Does::Decide(Action::Permit | Action::Reflect) => " -j ACCEPT".to_owned(),
                    Does::Decide(Action::Deny) => " -j DROP".to_owned(),
                    Does::Jump(target) => format!(" -j chain{target}"),
                    Does::Goto(target) => format!(" -g chain{target}"),
                    Does::Return => " -j RETURN".to_owned(),
                    Does::Nothing => String::new(),
                };
                if rule.log {
                    let _ = writeln!(text, "-A {chain}{conditions} -j LOG --log-prefix \"seen: \"");
                }
                let _ = writeln!(text, "-A {chain}{conditions}{target}");
            }
        }
        text + "COMMIT\n"
    }
}

/// A ruleset's family in nftables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Table {
    Inet,
    OneFamily,
}

impl Model {
    /// The model without what one rule of nftables cannot say.
    pub(crate) fn for_nftables(mut self) -> Self {
        for conditions in self.chains.iter_mut().flatten().map(|rule| &mut rule.conditions) {
            conditions.ports.retain(|(of, _)| *of != PortsOf::Either);
            if let Some(Not(true, (_, code))) = &mut conditions.icmp {
                *code = None;
            }
        }
        self
    }

    /// As `nft -j list ruleset` prints it, an object a line; a rule's log in the rule, or in one before it.
    pub(crate) fn nftables(&self, table: Table, log_apart: bool) -> String {
        let family = match table {
            Table::Inet => "inet",
            Table::OneFamily if self.v6 => "ip6",
            Table::OneFamily => "ip",
        };
        let policy = if self.policy == Action::Permit { "accept" } else { "drop" };
        let mut objects = vec![
            json!({ "table": { "family": family, "name": "t" } }),
            json!({ "chain": {
                "family": family, "table": "t", "name": "chain0",
                "type": "filter", "hook": "input", "prio": 0, "policy": policy,
            } }),
        ];
        let below = 1..self.chains.len();
        objects.extend(below.map(
            |number| json!({ "chain": { "family": family, "table": "t", "name": format!("chain{number}") } }),
        ));
        for (number, rules) in self.chains.iter().enumerate() {
            let mut say = |expr: &[Value]| {
                let chain = format!("chain{number}");
                objects.push(json!({ "rule": {
                    "family": family, "table": "t", "chain": chain, "handle": 7, "expr": expr,
                } }));
            };
            for rule in rules {
                let mut expr = rule.conditions.nftables(self.v6);
                if rule.log {
                    expr.push(json!({ "log": { "prefix": "seen" } }));
                    if log_apart {
                        say(&expr);
                        expr.pop();
                    }
                }
                expr.push(json!({ "counter": { "packets": 3, "bytes": 4 } }));
                let target = |number: usize| json!({ "target": format!("chain{number}") });
                match rule.does {
                    Does::Decide(Action::Permit | Action::Reflect) => expr.push(json!({ "accept": null })),
                    Does::Decide(Action::Deny) => expr.push(json!({ "drop": null })),
                    Does::Jump(number) => expr.push(json!({ "jump": target(number) })),
                    Does::Goto(number) => expr.push(json!({ "goto": target(number) })),
                    Does::Return => expr.push(json!({ "return": null })),
                    Does::Nothing => {}
                }
                say(&expr);
            }
        }
        let lines: Vec<_> = objects.iter().map(ToString::to_string).collect();
        format!("{{\"nftables\": [\n{}\n]}}\n", lines.join(",\n"))
    }
}

impl Conditions {
    /// The matches of a rule.
    fn nftables(&self, v6: bool) -> Vec<Value> {
        let mut all = Vec::new();
        let mut compare = |not: bool, left: Value, right: Value| {
            let op = if not { "!=" } else { "==" };
            all.push(json!({ "match": { "op": op, "left": left, "right": right } }));
        };
        let payload =
            |protocol: &str, field: &str| json!({ "payload": { "protocol": protocol, "field": field } });
        let prefix =
            |&(base, len): &(u128, u8)| json!({ "prefix": { "addr": address(base, v6), "len": len } });
        let family = if v6 { "ip6" } else { "ip" };
        if let Some(Not(not, source)) = &self.source {
            compare(*not, payload(family, "saddr"), prefix(source));
        }
        if let Some(Not(not, destination)) = &self.destination {
            compare(*not, payload(family, "daddr"), prefix(destination));
        }
        let mut name = "";
        if let Some(Not(not, number)) = self.protocol {
            name = protocol::name(number).expect("a protocol with a name");
            compare(not, json!({ "meta": { "key": "l4proto" } }), number.into());
        }
        if let Some(not) = self.fragment {
            compare(!not, json!({ "&": [payload("ip", "frag-off"), 0x1fff] }), 0.into());
        }
        if self.header {
            compare(false, payload(name, "sport"), json!({ "range": [0, 65535] }));
        }
        for (of, Not(not, ranges)) in &self.ports {
            let field = if *of == PortsOf::Source { "sport" } else { "dport" };
            let protocol = if ranges.len() == 2 { "th" } else { name };
            let range = |&(low, high): &(u16, u16)| {
                if low == high { low.into() } else { json!({ "range": [low, high] }) }
            };
            let ranges: Vec<Value> = ranges.iter().map(range).collect();
            let right = if let [range] = &ranges[..] { range.clone() } else { json!({ "set": ranges }) };
            compare(*not, payload(protocol, field), right);
        }
        if let Some(Not(not, (set, mask))) = self.flags {
            compare(not, json!({ "&": [payload("tcp", "flags"), mask] }), set.into());
        }
        if let Some(Not(not, (icmp_type, code))) = self.icmp {
            let protocol = if v6 { "icmpv6" } else { "icmp" };
            compare(not, payload(protocol, "type"), icmp_type.into());
            if let Some(code) = code {
                compare(false, payload(protocol, "code"), code.into());
            }
        }
        all
    }
}

fn ranges(ranges: &[(u16, u16)]) -> String {
    let range =
        |&(low, high): &(u16, u16)| if low == high { low.to_string() } else { format!("{low}:{high}") };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

/// An address of a family.
pub(crate) fn address(address: u128, v6: bool) -> String {
    if v6 { Ipv6Addr::from(address).to_string() } else { Ipv4Addr::from(address as u32).to_string() }
}

impl Conditions {
    /// As the tools print it.
    pub(crate) fn iptables(&self, v6: bool) -> String {
        let mut text = String::new();
        let mut say = |not: bool, words: String| {
            text += if not { " ! " } else { " " };
            text += &words;
        };
        let prefix = |&(base, len): &(u128, u8)| format!("{}/{len}", address(base, v6));
        if let Some(Not(not, source)) = &self.source {
            say(*not, format!("-s {}", prefix(source)));
        }
        if let Some(Not(not, destination)) = &self.destination {
            say(*not, format!("-d {}", prefix(destination)));
        }
        let mut name = String::new();
        if let Some(Not(not, number)) = self.protocol {
            name = match number {
                1 => "icmp".to_owned(),
                6 => "tcp".to_owned(),
                17 => "udp".to_owned(),
                58 => "ipv6-icmp".to_owned(),
                132 => "sctp".to_owned(),
                number => number.to_string(),
            };
            say(not, format!("-p {name}"));
        }
        if let Some(not) = self.fragment {
            say(not, "-f".to_owned());
        }
        let is_multiple = self.ports.iter().any(|(of, c)| c.1.len() > 1 || *of == PortsOf::Either);
        let module = if name == "ipv6-icmp" { "icmp6" } else { &name };
        if self.header
            || self.flags.is_some()
            || self.icmp.is_some()
            || (!self.ports.is_empty() && !is_multiple)
        {
            say(false, format!("-m {module}"));
        }
        for (of, Not(not, those)) in &self.ports {
            let option = match of {
                PortsOf::Source => "--sport",
                PortsOf::Destination => "--dport",
                PortsOf::Either => "--port",
            };
            if is_multiple {
                say(false, "-m multiport".to_owned());
            }
            say(*not, format!("{option}{} {}", if is_multiple { "s" } else { "" }, ranges(those)));
        }
        if let Some(Not(not, (set, mask))) = self.flags {
            let names = |flags: u8| {
                let all = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
                let names: Vec<_> = (0..6).filter(|bit| flags >> bit & 1 == 1).map(|bit| all[bit]).collect();
                if names.is_empty() { "NONE".to_owned() } else { names.join(",") }
            };
            say(not, format!("--tcp-flags {} {}", names(mask), names(set)));
        }
        if let Some(Not(not, (icmp_type, code))) = self.icmp {
            let option = if v6 { "--icmpv6-type" } else { "--icmp-type" };
            let code = code.map_or_else(String::new, |code| format!("/{code}"));
            say(not, format!("{option} {icmp_type}{code}"));
        }
        text
    }
}

/// Addresses at the edges of prefixes that rules are made of.
fn prefixes(v6: bool) -> Vec<(u128, u8)> {
    if v6 {
        let base = 0x2001_0db8_u128 << 96;
        vec![
            (base, 32),
            (base | 1 << 64, 64),
            (base | 0x10, 124),
            (base | 0x1f, 128),
            (0, 0),
            (0xfe80 << 112, 10),
        ]
    } else {
        vec![
            (0x0a00_0000, 8),
            (0x0a01_0000, 16),
            (0x0a01_0200, 23),
            (0x0a01_02ff, 32),
            (0, 0),
            (0xc000_0201, 32),
        ]
    }
}

fn addresses(v6: bool) -> Vec<u128> {
    let bits = if v6 { 128 } else { 32 };
    let last = if v6 { u128::MAX } else { u128::from(u32::MAX) };
    let edges = prefixes(v6).into_iter().flat_map(|(low, len)| {
        let high = low | last.checked_shr(len.into()).unwrap_or(0);
        [low, high, low.wrapping_sub(1) & last, high.wrapping_add(1) & last, low | 1]
    });
    let mut all: Vec<_> = edges.collect();
    assert!(bits == 128 || all.iter().all(|&address| address <= last));
    all.sort_unstable();
    all.dedup();
    all
}

/// Ports that rules and packets are made of.
pub(crate) const PORTS: [u16; 12] = [0, 1, 21, 22, 23, 79, 80, 81, 1023, 1024, 65534, 65535];

/// Kinds of packets.
pub(crate) const FRAGMENTS: [KeyBits; 4] =
    [KeyBits::WHOLE, KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];

/// Packets that a rule of [`model`] may tell apart.
pub(crate) fn packet(v6: bool) -> impl Strategy<Value = Packet> {
    let address = || prop::sample::select(addresses(v6));
    let port = || prop::sample::select(PORTS.to_vec());
    (
        (address(), address()),
        prop::sample::select(vec![1, 6, 6, 6, 17, 17, 47, 58, 132]),
        prop::sample::select(FRAGMENTS.to_vec()),
        (port(), port()),
        (prop::sample::select(vec![0, 3, 8, 128, 254, 255]), prop::sample::select(vec![0, 1, 4, 255])),
        any::<u8>(),
    )
        .prop_map(|((source, destination), protocol, fragment, ports, icmp, flags)| Packet {
            source,
            destination,
            protocol,
            fragment,
            ports,
            icmp,
            flags,
        })
}

fn not<T: std::fmt::Debug>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Not<T>> {
    (prop::bool::weighted(0.2), value).prop_map(|(not, value)| Not(not, value))
}

fn conditions(v6: bool) -> impl Strategy<Value = Conditions> {
    let prefix = || prop::option::weighted(0.4, not(prop::sample::select(prefixes(v6))));
    let range = || {
        let port = || prop::sample::select(PORTS.to_vec());
        (port(), port(), any::<bool>())
            .prop_map(|(a, b, one)| if one { (a, a) } else { (a.min(b), a.max(b)) })
    };
    let of = prop::sample::select(vec![PortsOf::Source, PortsOf::Destination, PortsOf::Either]);
    let ports = prop::collection::vec((of, not(prop::collection::vec(range(), 1..4))), 0..3);
    let flags =
        prop::option::weighted(0.3, not((0..64u8, 1..64u8).prop_map(|(set, mask)| (set & mask, mask))));
    // Type 255 is another matter: see the examples.
    let icmp_type = prop::sample::select(vec![0, 3, 8, 128, 254]);
    let icmp = prop::option::weighted(
        0.7,
        not((icmp_type, prop::option::of(prop::sample::select(vec![0, 1, 4, 255])))),
    );
    let protocol =
        prop::sample::select(vec![None, Some(1), Some(6), Some(6), Some(17), Some(47), Some(58), Some(132)]);
    let fragment = prop::option::weighted(0.15, any::<bool>());
    (
        (prefix(), prefix()),
        (protocol, prop::bool::weighted(0.06)),
        any::<bool>(),
        ports,
        flags,
        icmp,
        fragment,
    )
        .prop_map(
            move |(
                (source, destination),
                (protocol, not),
                header,
                mut ports,
                mut flags,
                mut icmp,
                fragment,
            )| {
                let has_ports = !not && protocol.is_some_and(protocol::has_ports);
                if !has_ports {
                    ports.clear();
                }
                if not || protocol != Some(protocol::TCP) {
                    flags = None;
                }
                let icmp_protocol = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
                if not || protocol != Some(icmp_protocol) {
                    icmp = None;
                }
                let header = header && !not && matches!(protocol, Some(protocol::TCP | protocol::UDP));
                let protocol = protocol.map(|number| Not(not, number));
                let fragment = fragment.filter(|_| !v6);
                Conditions { source, destination, protocol, header, ports, flags, icmp, fragment }
            },
        )
}

/// A rule whose target is a number that depends on its chain.
type Sketch = (Conditions, (u8, usize), bool);

/// Up to five chains of up to six rules each.
pub(crate) fn model(v6: bool) -> impl Strategy<Value = Model> {
    let does = (0..12u8, 0..4usize);
    let rule = (conditions(v6), does, any::<bool>());
    let chains = prop::collection::vec(prop::collection::vec(rule, 0..7), 1..6);
    (any::<bool>(), chains).prop_map(move |(permits, chains)| {
        let count = chains.len();
        let chain = |(number, rules): (usize, Vec<Sketch>)| {
            let below = count - 1 - number;
            let rule = |(conditions, (kind, target), log): Sketch| {
                let does = match kind {
                    0..=3 if below > 0 => Does::Jump(number + 1 + target % below),
                    4 if below > 0 => Does::Goto(number + 1 + target % below),
                    5 | 6 => Does::Return,
                    7 => Does::Nothing,
                    8 | 9 => Does::Decide(Action::Permit),
                    _ => Does::Decide(Action::Deny),
                };
                ModelRule { conditions, does, log: log && matches!(does, Does::Decide(_)) }
            };
            rules.into_iter().map(rule).collect()
        };
        Model {
            v6,
            policy: if permits { Action::Permit } else { Action::Deny },
            chains: chains.into_iter().enumerate().map(chain).collect(),
        }
    })
}
