//! Conditions on interfaces: chains of iptables and nftables decide as they do in the kernel, for each interface.

use packetloom_classify::compiled::matching;
use packetloom_classify::formats::{Format, Reading};
use packetloom_classify::{Action, Interfaces, PacketContext};
use packetloom_packet::{Key, KeyBits, MatchKey4};
use proptest::prelude::*;

use super::verdicts;

/// What a rule asks for, and what it does.
#[derive(Clone, Debug)]
struct Rule {
    /// An interface as iptables has it, and whether it is negated.
    interface: Option<(&'static str, bool)>,
    protocol: Option<u8>,
    does: Does,
}

#[derive(Clone, Copy, Debug)]
enum Does {
    Accept,
    Drop,
    Return,
    /// To a chain further on.
    Jump(usize),
}

const CHAINS: usize = 3;
const NAMES: [&str; 4] = ["eth0", "eth1", "eth10", "lo"];

fn rule(chain: usize) -> impl Strategy<Value = Rule> {
    let names = prop::sample::select(vec!["eth0", "eth1", "eth+", "eth1+", "lo", "e+", "+"]);
    let does = prop_oneof![
        Just(Does::Accept),
        Just(Does::Drop),
        Just(Does::Return),
        (chain + 1..=CHAINS).prop_map(|to| if to < CHAINS { Does::Jump(to) } else { Does::Return }),
    ];
    (
        prop::option::weighted(0.7, (names, any::<bool>())),
        prop::option::of(prop::sample::select(vec![6u8, 17])),
        does,
    )
        .prop_map(|(interface, protocol, does)| Rule { interface, protocol, does })
}

fn chains() -> impl Strategy<Value = Vec<Vec<Rule>>> {
    (
        prop::collection::vec(rule(0), 0..8),
        prop::collection::vec(rule(1), 0..6),
        prop::collection::vec(rule(2), 0..4),
    )
        .prop_map(|(a, b, c)| vec![a, b, c])
}

/// Whether a name fits, by iptables(8): "If the interface name ends in a "+", then any interface which begins with this name will match".
fn fits(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('+').map_or(pattern == name, |start| name.starts_with(start))
}

/// What becomes of a packet; `None` where the chain's policy decides.
fn decide(chains: &[Vec<Rule>], at: usize, name: &str, protocol: u8) -> Option<Action> {
    for rule in &chains[at] {
        let comes_by = rule.interface.is_none_or(|(pattern, negated)| fits(pattern, name) != negated);
        if !comes_by || rule.protocol.is_some_and(|wanted| wanted != protocol) {
            continue;
        }
        match rule.does {
            Does::Accept => return Some(Action::Permit),
            Does::Drop => return Some(Action::Deny),
            Does::Return => return None,
            Does::Jump(to) => match decide(chains, to, name, protocol) {
                None => {}
                decided => return decided,
            },
        }
    }
    None
}

fn iptables(chains: &[Vec<Rule>]) -> String {
    let name = |chain: usize| ["INPUT", "one", "two"][chain];
    let mut text = "*filter\n:INPUT DROP [0:0]\n:one - [0:0]\n:two - [0:0]\n".to_owned();
    for (number, chain) in chains.iter().enumerate() {
        for rule in chain {
            text += &format!("-A {}", name(number));
            if let Some((pattern, negated)) = rule.interface {
                text += &format!("{} -i {pattern}", if negated { " !" } else { "" });
            }
            if let Some(protocol) = rule.protocol {
                text += &format!(" -p {protocol}");
            }
            text += &match rule.does {
                Does::Accept => " -j ACCEPT\n".to_owned(),
                Does::Drop => " -j DROP\n".to_owned(),
                Does::Return => " -j RETURN\n".to_owned(),
                Does::Jump(to) => format!(" -j {}\n", name(to)),
            };
        }
    }
    text + "COMMIT\n"
}

fn nftables(chains: &[Vec<Rule>]) -> String {
    let name = |chain: usize| ["input", "one", "two"][chain];
    let mut objects = vec![r#"{"table": {"family": "ip", "name": "t"}}"#.to_owned()];
    let base = r#", "type": "filter", "hook": "input", "prio": 0, "policy": "drop""#;
    for number in 0..chains.len() {
        let base = if number == 0 { base } else { "" };
        objects.push(format!(
            r#"{{"chain": {{"family": "ip", "table": "t", "name": "{}"{base}}}}}"#,
            name(number)
        ));
    }
    for (number, chain) in chains.iter().enumerate() {
        for rule in chain {
            let mut expr = Vec::new();
            // Every interface is no condition at all.
            if let Some((pattern, negated)) = rule.interface.filter(|(pattern, _)| *pattern != "+") {
                let pattern = pattern.replace('+', "*");
                let op = if negated { "!=" } else { "==" };
                expr.push(format!(
                    r#"{{"match": {{"op": "{op}", "left": {{"meta": {{"key": "iifname"}}}}, "right": "{pattern}"}}}}"#
                ));
            }
            if let Some(protocol) = rule.protocol {
                expr.push(format!(
                    r#"{{"match": {{"op": "==", "left": {{"meta": {{"key": "l4proto"}}}}, "right": {protocol}}}}}"#
                ));
            }
            expr.push(match rule.does {
                Does::Accept => r#"{"accept": null}"#.to_owned(),
                Does::Drop => r#"{"drop": null}"#.to_owned(),
                Does::Return => r#"{"return": null}"#.to_owned(),
                Does::Jump(to) => format!(r#"{{"jump": {{"target": "{}"}}}}"#, name(to)),
            });
            objects.push(format!(
                r#"{{"rule": {{"family": "ip", "table": "t", "chain": "{}", "expr": [{}]}}}}"#,
                name(number),
                expr.join(", ")
            ));
        }
    }
    format!("{{\"nftables\": [\n{}\n]}}", objects.join(",\n"))
}

fn compare(chains: &[Vec<Rule>], reading: &Reading, text: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(reading.default, Some(Action::Deny));
    for name in NAMES {
        let (seen, positions) =
            reading.rules.seen_in(&PacketContext { interface: Some(name), ..PacketContext::NEW });
        prop_assert_eq!(seen.rules.len(), positions.len());
        for protocol in [6, 17, 1] {
            let key = MatchKey4 { protocol, bits: KeyBits::WHOLE, ..MatchKey4::default() };
            let first = matching(&seen, &Key::V4(key)).next();
            let found = first.and_then(|position| seen.rules[position as usize].action);
            let expected = decide(chains, 0, name, protocol);
            // The policy may be said by a rule of its own.
            prop_assert_eq!(
                found.unwrap_or(Action::Deny),
                expected.unwrap_or(Action::Deny),
                "{}, protocol {}\n{}",
                name,
                protocol,
                text
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_decide_by_interface_as_the_kernel_does(mut chains in chains()) {
        let text = iptables(&chains);
        let reading = verdicts::read(Format::Iptables, &text).map_err(TestCaseError::fail)?;
        compare(&chains, &reading, &text)?;
        // In nftables no interface is the negation of all; such rules match nothing there, and are left out here.
        for chain in &mut chains {
            chain.retain(|rule| rule.interface != Some(("+", true)));
        }
        let text = nftables(&chains);
        let has_rules = !chains[0].is_empty();
        match verdicts::read(Format::Nftables, &text) {
            Ok(reading) => compare(&chains, &reading, &text)?,
            Err(error) => prop_assert!(!has_rules, "{}\n{}", error, text),
        }
    }
}

#[test]
fn sets_of_interfaces_are_read() {
    let rule = |left: &str, op: &str, right: &str| {
        let text = format!(
            r#"{{"nftables": [
            {{"chain": {{"family": "inet", "table": "t", "name": "c", "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}}},
            {{"rule": {{"family": "inet", "table": "t", "chain": "c", "expr": [
                {{"match": {{"op": "{op}", "left": {left}, "right": {right}}}}}, {{"accept": null}}]}}}}]}}"#
        );
        verdicts::read(Format::Nftables, &text)
    };
    let name = r#"{"meta": {"key": "iifname"}}"#;
    let read = |op: &str, right: &str| {
        let reading = rule(name, op, right).expect("good rules");
        reading.rules.rules.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(read("==", r#"{"set": ["eth0", "eth1"]}"#), ["permit any from any to any in eth0,eth1"]);
    assert_eq!(read("!=", r#"{"set": ["eth0", "wg*"]}"#), ["permit any from any to any in !eth0,!wg+"]);
    assert_eq!(read("==", r#""wg*""#), ["permit any from any to any in wg+"]);
    let pair =
        r#"{"concat": [{"meta": {"key": "iif"}}, {"payload": {"protocol": "tcp", "field": "dport"}}]}"#;
    let reading = rule(pair, "==", r#"{"set": [{"concat": ["eth0", 22]}, {"concat": ["eth1", 80]}]}"#)
        .expect("good rules");
    let rules: Vec<_> = reading.rules.rules.iter().map(ToString::to_string).collect();
    assert_eq!(
        rules,
        ["permit tcp from any to any port 22 in eth0", "permit tcp from any to any port 80 in eth1"]
    );
    for (op, right) in [("<", r#""eth0""#), ("==", "3"), ("==", r#"{"range": ["eth0", "eth5"]}"#)] {
        let error = rule(name, op, right).expect_err("no equal");
        assert!(error.contains("no equal here"), "{error}");
    }
    assert!(Interfaces::named("wg+").expect("a name").contains(Some("wg0")));
}
