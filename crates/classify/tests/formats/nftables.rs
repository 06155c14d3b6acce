//! nftables as JSON.

use packetloom_classify::formats::{Format, Options, Reading, Skipped, WriteError};
use packetloom_classify::{Action, Rule};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::netfilter::{self, Table};
use super::verdicts::{self, read_with, round_trip, written};

fn read(text: &str) -> Result<Reading, String> {
    read_with(text, Options::default())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_decide_as_the_kernel_does(
        (model, packets) in any::<bool>().prop_flat_map(|v6| {
            (netfilter::model(v6), prop::collection::vec(netfilter::packet(v6), 200))
        }),
        inet in any::<bool>(),
        log_apart in any::<bool>(),
    ) {
        let model = model.for_nftables();
        let text = model.nftables(if inet { Table::Inet } else { Table::OneFamily }, log_apart);
        let reading = read(&text);
        // Two negated IPv6 prefixes and a negated protocol in one rule can be two million rules.
        prop_assume!(!reading.as_ref().is_err_and(|error| error.contains(" that make more than 1048576 rules")));
        let reading = reading.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(reading.format, Format::Nftables);
        prop_assert_eq!(reading.default, Some(model.policy));
        model.compare(&reading, &packets).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
    }

    #[test]
    fn what_is_written_does_the_same(
        rules in prop::collection::vec(super::display::any_rule_of_a_context(), 1..12),
        permits in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let default = if permits { Action::Permit } else { Action::Deny };
        let can_say = |rule: &Rule| written(std::slice::from_ref(rule), Format::Nftables, None).is_ok();
        let rules: Vec<_> = rules.into_iter().filter(can_say).collect();
        prop_assert_eq!(round_trip(&rules, Format::Nftables, default, seed), Ok(true));
    }

    /// Any part of a ruleset put in the place of any other.
    #[test]
    fn any_json_is_read_or_refused(from in any::<prop::sample::Index>(), to in any::<prop::sample::Index>(), cut in any::<u16>()) {
        let mut whole = sample();
        let paths = paths(&whole, &mut Vec::new());
        let part = whole.pointer(&paths[from.index(paths.len())]).expect("a part").clone();
        *whole.pointer_mut(&paths[to.index(paths.len())]).expect("a part") = part;
        let text = whole.to_string();
        for text in [&text[..], &text[..text.floor_char_boundary(usize::from(cut) % text.len())]] {
            for skip_unsupported in [false, true] {
                let options = Options { format: Some(Format::Nftables), skip_unsupported, ..Options::default() };
                if let Err(error) = read_with(text, options) {
                    prop_assert!(error.starts_with("f:1: ") || error.starts_with("f: "), "{}", error);
                }
            }
        }
    }
}

/// The JSON pointers of all parts of a value.
fn paths(value: &Value, at: &mut Vec<String>) -> Vec<String> {
    let parts: Vec<(String, &Value)> = match value {
        Value::Array(parts) => {
            parts.iter().enumerate().map(|(index, part)| (index.to_string(), part)).collect()
        }
        Value::Object(parts) => {
            parts.iter().map(|(name, part)| (name.replace('~', "~0").replace('/', "~1"), part)).collect()
        }
        _ => Vec::new(),
    };
    let mut all = vec![at.iter().map(|part| format!("/{part}")).collect::<String>()];
    for (name, part) in parts {
        at.push(name);
        all.extend(paths(part, at));
        at.pop();
    }
    all
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({ "payload": { "protocol": protocol, "field": field } })
}

fn meta(key: &str) -> Value {
    json!({ "meta": { "key": key } })
}

fn compare(op: &str, left: Value, right: Value) -> Value {
    json!({ "match": { "op": op, "left": left, "right": right } })
}

fn is(left: Value, right: Value) -> Value {
    compare("==", left, right)
}

/// A chain of the table `inet t`, with a base chain's keys if it is one.
fn chain(name: &str, hook: Option<(&str, &str)>) -> Value {
    let mut chain = json!({ "family": "inet", "table": "t", "name": name, "handle": 1 });
    if let Some((kind, policy)) = hook {
        let more = json!({ "type": kind, "hook": "input", "prio": 0, "policy": policy });
        chain.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    }
    json!({ "chain": chain })
}

fn rule(chain: &str, expr: &[Value]) -> Value {
    json!({ "rule": { "family": "inet", "table": "t", "chain": chain, "handle": 9, "expr": expr } })
}

/// A ruleset of these objects, one a line.
fn ruleset(objects: &[Value]) -> String {
    let lines: Vec<_> = objects.iter().map(ToString::to_string).collect();
    format!("{{\"nftables\": [\n{}\n]}}\n", lines.join(",\n"))
}

/// A base chain with rules of these statements.
fn filter(rules: &[Vec<Value>]) -> String {
    let mut objects = vec![
        json!({ "metainfo": { "version": "1.0.6", "json_schema_version": 1 } }),
        json!({ "table": { "family": "inet", "name": "t", "handle": 1 } }),
        json!({ "set": {
            "family": "inet", "name": "blocked", "table": "t", "type": "ipv4_addr", "handle": 3, "flags": ["interval"],
            "elem": [{ "prefix": { "addr": "10.0.0.0", "len": 8 } }, "192.0.2.1", { "range": ["192.0.2.4", "192.0.2.7"] }],
        } }),
        json!({ "set": {
            "family": "inet", "name": "pairs", "table": "t", "type": ["ipv4_addr", "inet_service"], "handle": 4,
            "elem": [{ "concat": ["10.0.0.1", 22] }, { "elem": { "val": { "concat": ["10.0.0.2", { "range": [80, 81] }] }, "comment": "x" } }],
        } }),
        json!({ "set": { "family": "inet", "name": "fleeting", "table": "t", "type": "ipv4_addr", "flags": ["timeout"], "elem": [] } }),
        json!({ "map": {
            "family": "inet", "name": "services", "table": "t", "type": "inet_service", "map": "verdict",
            "elem": [[22, { "accept": null }], [23, { "jump": { "target": "other" } }], [24, { "continue": null }]],
        } }),
        chain("other", None),
        chain("input", Some(("filter", "drop"))),
    ];
    objects.extend(rules.iter().map(|expr| rule("input", expr)));
    ruleset(&objects)
}

/// A ruleset with a bit of everything.
fn sample() -> Value {
    let text = filter(&[
        vec![is(payload("ip", "saddr"), json!("@blocked")), json!({ "log": null }), json!({ "drop": null })],
        vec![
            is(json!({ "concat": [payload("ip", "saddr"), payload("tcp", "dport")] }), json!("@pairs")),
            json!({ "jump": { "target": "other" } }),
        ],
        vec![json!({ "vmap": { "key": payload("tcp", "dport"), "data": "@services" } })],
        vec![
            is(meta("l4proto"), json!({ "set": ["tcp", "udp"] })),
            compare("!=", payload("th", "sport"), json!({ "range": [1, 3] })),
            compare("<", json!({ "&": [payload("tcp", "flags"), ["syn", "ack"]] }), json!("syn")),
            json!({ "accept": null }),
        ],
    ]);
    serde_json::from_str(&text).expect("JSON")
}

/// The rules of one rule of nft, in our own words.
fn shown(expr: &[Value]) -> Vec<String> {
    verdicts::shown(Format::Nftables, &filter(&[expr.to_vec(), vec![json!({ "drop": null })]]))
        .into_iter()
        .filter(|rule| rule != "deny any from any to any")
        .collect()
}

#[test]
fn matches_become_these_rules() {
    let accept = json!({ "accept": null });
    let flags = || payload("tcp", "flags");
    let v4 = "from 0.0.0.0/0 to 0.0.0.0/0";
    for (matches, expected) in [
        (
            vec![is(payload("ip", "saddr"), json!("10.0.0.1"))],
            vec!["any from 10.0.0.1/32 to 0.0.0.0/0".to_owned()],
        ),
        (
            vec![is(payload("ip6", "daddr"), json!({ "prefix": { "addr": "2001:db8::", "len": 32 } }))],
            vec!["any from ::/0 to 2001:db8::/32".into()],
        ),
        (
            vec![is(payload("ip", "saddr"), json!("@blocked"))],
            ["10.0.0.0/8", "192.0.2.1/32", "192.0.2.4/30"]
                .map(|source| format!("any from {source} to 0.0.0.0/0"))
                .into(),
        ),
        (
            vec![compare(
                "!=",
                payload("ip", "saddr"),
                json!({ "set": [{ "prefix": { "addr": "0.0.0.0", "len": 1 } }] }),
            )],
            vec!["any from 128.0.0.0/1 to 0.0.0.0/0".into()],
        ),
        (
            vec![is(json!({ "concat": [payload("ip", "saddr"), payload("tcp", "dport")] }), json!("@pairs"))],
            vec![
                "tcp from 10.0.0.1/32 to 0.0.0.0/0 port 22".into(),
                "tcp from 10.0.0.2/32 to 0.0.0.0/0 port 80-81".into(),
            ],
        ),
        // What a field needs comes with it; nothing of addresses is of both families.
        (vec![is(payload("tcp", "dport"), json!(22))], vec!["tcp from any to any port 22".into()]),
        (
            vec![is(payload("udp", "sport"), json!({ "range": [1, 2] }))],
            vec!["udp from any port 1-2 to any".into()],
        ),
        (
            vec![compare("<", payload("tcp", "dport"), json!(1024))],
            vec!["tcp from any to any port 0-1023".into()],
        ),
        (
            vec![compare(">", payload("tcp", "dport"), json!(1024))],
            vec!["tcp from any to any port 1025-65535".into()],
        ),
        (vec![compare("<=", payload("tcp", "dport"), json!(5))], vec!["tcp from any to any port 0-5".into()]),
        (
            vec![compare(">=", payload("tcp", "dport"), json!(5))],
            vec!["tcp from any to any port 5-65535".into()],
        ),
        (vec![compare("<", payload("tcp", "dport"), json!(0))], vec![]),
        (vec![compare(">", payload("tcp", "dport"), json!(65535))], vec![]),
        (
            vec![is(meta("l4proto"), json!({ "set": ["tcp", 17] })), is(payload("th", "dport"), json!(53))],
            vec!["tcp from any to any port 53".into(), "udp from any to any port 53".into()],
        ),
        // The condition on the protocol may come after.
        (
            vec![is(payload("th", "dport"), json!(53)), is(meta("l4proto"), json!("udp"))],
            vec!["udp from any to any port 53".into()],
        ),
        (vec![is(meta("l4proto"), json!("ipv6-icmp"))], vec!["icmpv6 from any to any".into()]),
        (vec![is(payload("ip", "protocol"), json!("gre"))], vec![format!("gre {v4}")]),
        (vec![is(meta("nfproto"), json!("ipv4"))], vec![format!("any {v4}")]),
        (vec![compare("!=", meta("protocol"), json!("ip"))], vec!["any from ::/0 to ::/0".into()]),
        (vec![is(payload("icmp", "type"), json!("echo-request"))], vec![format!("icmp {v4} type 8")]),
        (
            vec![is(payload("icmp", "type"), json!(3)), is(payload("icmp", "code"), json!("frag-needed"))],
            vec![format!("icmp {v4} type 3 code 4")],
        ),
        (
            vec![is(payload("icmpv6", "type"), json!("nd-neighbor-solicit"))],
            vec!["icmpv6 from ::/0 to ::/0 type 135".into()],
        ),
        // Of a family that was named before, the other family's ICMP is looked at, too.
        (
            vec![is(meta("nfproto"), json!("ipv4")), is(payload("icmpv6", "type"), json!(1))],
            vec![format!("icmpv6 {v4} type 1")],
        ),
        (
            vec![is(json!({ "&": [flags(), ["syn", "ack"]] }), json!("syn"))],
            vec!["tcp from any to any flags S/SA".into()],
        ),
        (
            vec![is(json!({ "&": [flags(), { "|": [{ "|": ["fin", "syn"] }, "ack"] }] }), json!(2))],
            vec!["tcp from any to any flags S/FSA".into()],
        ),
        // One flag of several is enough.
        (vec![compare("in", flags(), json!("rst"))], vec!["tcp from any to any flags R/R".into()]),
        (
            vec![compare("in", flags(), json!(["fin", "syn"]))],
            vec!["tcp from any to any flags F/FS".into(), "tcp from any to any flags S/S".into()],
        ),
        (vec![compare("!", flags(), json!(["fin", "syn"]))], vec!["tcp from any to any flags /FS".into()]),
        (vec![is(flags(), json!("syn"))], vec!["tcp from any to any flags S/FSRPAUEC".into()]),
        (
            vec![is(flags(), json!({ "set": ["syn", ["syn", "ack"]] }))],
            vec!["tcp from any to any flags S/FSRPUEC".into()],
        ),
        (
            vec![compare("!=", json!({ "&": [payload("ip", "frag-off"), 0x1fff] }), json!(0))],
            vec![format!("any {v4} fragment later")],
        ),
        (
            vec![is(json!({ "&": [payload("ip", "frag-off"), 0x3fff] }), json!(0))],
            vec![format!("any {v4} fragment none")],
        ),
        (
            vec![compare("!=", json!({ "exthdr": { "name": "frag", "field": "frag-off" } }), json!(0))],
            vec!["any from ::/0 to ::/0 fragment later".into()],
        ),
        // A look at the header, which later fragments do not have.
        (
            vec![is(payload("tcp", "sport"), json!({ "range": [0, 65535] }))],
            vec!["tcp from any to any fragment not-later".into()],
        ),
        (vec![json!({ "counter": { "packets": 1, "bytes": 2 } })], vec!["any from any to any".into()]),
        (
            vec![json!({ "counter": null }), json!({ "log": { "prefix": "x" } })],
            vec!["any from any to any log".into()],
        ),
    ] {
        let expr: Vec<_> = matches.iter().chain([&accept]).cloned().collect();
        let expected: Vec<_> = expected.iter().map(|rule| format!("permit {rule}")).collect();
        assert_eq!(shown(&expr), expected, "{matches:?}");
    }
    assert_eq!(shown(&[json!({ "continue": null })]), [""; 0]);
    assert_eq!(
        shown(&[is(meta("nfproto"), json!("ipv4")), json!({ "reject": { "type": "tcp reset" } })]),
        [format!("deny any {v4}")]
    );
}

#[test]
fn verdict_maps_are_rules_one_after_the_other() {
    let services = |data: Value| json!({ "vmap": { "key": payload("tcp", "dport"), "data": data } });
    assert_eq!(shown(&[services(json!("@services"))]), ["permit tcp from any to any port 22"]);
    let in_place = json!({ "set": [
        [80, { "drop": null }],
        [{ "range": [90, 99] }, { "goto": { "target": "other" } }],
        [{ "elem": { "val": 100, "comment": "x" } }, { "accept": null }],
        [101, { "return": null }],
    ] });
    assert_eq!(
        shown(&[services(in_place)]),
        [
            "deny tcp from any to any port 80",
            // What comes back from where it was sent for good, or returns, is the policy's.
            "deny tcp from any to any port 90-99",
            "permit tcp from any to any port 100",
            "deny tcp from any to any port 101",
        ]
    );
    let both = json!({ "concat": [payload("ip", "saddr"), payload("udp", "dport")] });
    let pairs = json!({ "set": [[{ "concat": ["10.0.0.1", 1] }, { "accept": null }]] });
    assert_eq!(
        shown(&[json!({ "vmap": { "key": both, "data": pairs } })]),
        ["permit udp from 10.0.0.1/32 to 0.0.0.0/0 port 1"]
    );
}

#[test]
fn a_rule_ends_with_its_verdict_map() {
    let vmap =
        |elements: Value| json!({ "vmap": { "key": payload("tcp", "dport"), "data": { "set": elements } } });
    let (accept, drop, log) = (json!({ "accept": null }), json!({ "drop": null }), json!({ "log": null }));
    // Port 80 is in no element: the accept behind the map is for nothing, and the policy decides.
    let reading = read(include_str!("faults/06-vmap-accept.json")).expect("a ruleset");
    assert_eq!(reading.default, Some(Action::Deny));
    assert_eq!(
        verdicts::in_words(&reading.rules.rules),
        ["deny tcp from any to any port 22", "deny tcp from any to any port 23"]
    );
    for (expr, expected) in [
        // An element that goes on comes to what stands behind the map, and no other packet does.
        (
            vec![vmap(json!([[22, { "drop": null }], [23, { "continue": null }]])), accept.clone()],
            vec!["deny tcp from any to any port 22", "permit tcp from any to any port 23"],
        ),
        (
            vec![
                vmap(json!([[22, { "continue": null }], [{ "range": [30, 31] }, { "continue": null }]])),
                is(payload("ip", "saddr"), json!("10.0.0.1")),
                log.clone(),
                accept.clone(),
            ],
            vec![
                "permit tcp from 10.0.0.1/32 to 0.0.0.0/0 port 22 log",
                "permit tcp from 10.0.0.1/32 to 0.0.0.0/0 port 30-31 log",
            ],
        ),
        // A second map looks only at what the first one lets go on.
        (
            vec![
                vmap(json!([[22, { "continue": null }], [23, { "accept": null }]])),
                json!({ "vmap": { "key": payload("ip", "saddr"), "data": { "set": [["10.0.0.1", { "accept": null }]] } } }),
                accept.clone(),
            ],
            vec!["permit tcp from any to any port 23", "permit tcp from 10.0.0.1/32 to 0.0.0.0/0 port 22"],
        ),
        // By name; the third element goes on, the second one goes to another chain and comes back to the next rule.
        (
            vec![json!({ "vmap": { "key": payload("tcp", "dport"), "data": "@services" } }), drop.clone()],
            vec!["permit tcp from any to any port 22", "deny tcp from any to any port 24"],
        ),
        (
            vec![
                vmap(
                    json!([[22, { "return": null }], [23, { "goto": { "target": "other" } }], [24, { "jump": { "target": "other" } }]]),
                ),
                accept.clone(),
            ],
            vec!["deny tcp from any to any port 22", "deny tcp from any to any port 23"],
        ),
        // What no packet comes to is not asked for its meaning.
        (
            vec![vmap(json!([[22, { "drop": null }]])), json!({ "xt": null }), accept.clone()],
            vec!["deny tcp from any to any port 22"],
        ),
        (
            vec![is(payload("tcp", "dport"), json!(22)), drop.clone(), accept.clone()],
            vec!["deny tcp from any to any port 22"],
        ),
        // "continue" alone ends nothing.
        (
            vec![is(payload("tcp", "dport"), json!(22)), json!({ "continue": null }), drop.clone()],
            vec!["deny tcp from any to any port 22"],
        ),
    ] {
        assert_eq!(shown(&expr), expected, "{expr:?}");
    }
    // What only logs behind a map is like a rule that only logs.
    let text = filter(&[
        vec![vmap(json!([[22, { "continue": null }], [23, { "drop": null }]])), log],
        vec![is(payload("tcp", "dport"), json!(22)), accept],
    ]);
    let reading = read(&text).expect("a ruleset");
    assert_eq!(
        verdicts::in_words(&reading.rules.rules),
        ["deny tcp from any to any port 23", "permit tcp from any to any port 22 log"]
    );
}

#[test]
fn what_nft_prints_is_refused_rule_by_rule() {
    // Rules without statements, or with a counter alone, do nothing.
    let reading = read(include_str!("faults/06-noexpr.json")).expect("a ruleset");
    assert_eq!((reading.default, reading.skipped.len()), (Some(Action::Deny), 0));
    assert_eq!(verdicts::in_words(&reading.rules.rules), ["permit tcp from any to any port 22"]);
    // A constant among fields.
    let text = include_str!("faults/06-const-concat.json");
    let message = "ip t c handle 4: `80` has no equal here";
    assert_eq!(read(text).unwrap_err(), format!("f:5: {message} (--skip-unsupported leaves it out)"));
    let reading =
        read_with(text, Options { skip_unsupported: true, ..Options::default() }).expect("a ruleset");
    assert_eq!(reading.skipped, [Skipped { line: 5, message: message.into() }]);
    assert_eq!(verdicts::in_words(&reading.rules.rules), ["permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 22"]);
    // What is to be loaded: a flush before everything, and elements apart from their set.
    let objects = [
        json!({ "flush": { "ruleset": null } }),
        json!({ "add": { "set": { "family": "inet", "name": "s", "table": "t", "type": "inet_service" } } }),
        json!({ "create": { "element": { "family": "inet", "table": "t", "name": "s", "elem": [22, 80] } } }),
        chain("input", Some(("filter", "drop"))),
        rule("input", &[is(payload("tcp", "dport"), json!("@s")), json!({ "accept": null })]),
    ];
    let reading = read(&ruleset(&objects)).expect("a ruleset");
    assert_eq!(
        verdicts::in_words(&reading.rules.rules),
        ["permit tcp from any to any port 22", "permit tcp from any to any port 80"]
    );
    // A set whose only flag is no array.
    let mut objects = objects.to_vec();
    objects[1]["add"]["set"]["flags"] = json!("timeout");
    assert!(
        read(&ruleset(&objects)).unwrap_err().contains("`@s, whose elements come and go` has no equal here")
    );
    // Other families decide over IP packets, too.
    for family in ["netdev", "bridge"] {
        let text = ruleset(&[
            chain("input", Some(("filter", "drop"))),
            json!({ "chain": { "family": family, "table": "t", "name": "x", "type": "filter", "hook": "ingress", "prio": 0 } }),
            rule("input", &[json!({ "accept": null })]),
            json!({ "rule": { "family": family, "table": "t", "chain": "x", "expr": [{ "drop": null }] } }),
        ]);
        assert_eq!(
            read(&text).unwrap_err(),
            format!(
                "f:5: a rule of the family {family} has no equal here (--skip-unsupported leaves it out)"
            )
        );
    }
}

#[test]
fn what_has_no_equal_is_refused_or_listed() {
    let accept = json!({ "accept": null });
    let log = json!({ "log": null });
    for (expr, construct) in [
        (
            vec![compare("in", json!({ "ct": { "key": "status" } }), json!("dnat")), accept.clone()],
            "`ct status` has",
        ),
        (vec![is(meta("skuid"), json!(0)), accept.clone()], "`meta skuid` has"),
        (vec![is(meta("mark"), json!(1)), accept.clone()], "`meta mark` has"),
        (vec![is(payload("ip", "dscp"), json!(1)), accept.clone()], "`ip dscp` has"),
        (vec![is(payload("ip6", "nexthdr"), json!("tcp")), accept.clone()], "`ip6 nexthdr` has"),
        (vec![is(payload("udplite", "dport"), json!(1)), accept.clone()], "`udplite dport` has"),
        (vec![is(payload("th", "dport"), json!(1)), accept.clone()], "`th without meta l4proto` has"),
        (
            vec![
                is(meta("l4proto"), json!({ "set": ["tcp", "dccp"] })),
                is(payload("th", "dport"), json!(1)),
                accept.clone(),
            ],
            "`th without meta l4proto` has",
        ),
        (
            vec![is(json!({ "payload": { "base": "th", "offset": 0, "len": 8 } }), json!(1)), accept.clone()],
            "`@th` has",
        ),
        (vec![is(json!({ "exthdr": { "name": "frag" } }), json!(true)), accept.clone()], "`frag` has"),
        (
            vec![is(json!({ "exthdr": { "name": "frag", "field": "frag-off" } }), json!(0)), accept.clone()],
            "`frag frag-off 0` has",
        ),
        (vec![is(payload("ip", "frag-off"), json!(0)), accept.clone()], "`ip frag-off` has"),
        (
            vec![is(json!({ "&": [payload("ip", "frag-off"), 0x4000] }), json!(0)), accept.clone()],
            "`ip frag-off & 16384` has",
        ),
        (
            vec![is(json!({ "&": [payload("ip", "frag-off"), 0x1fff] }), json!(5)), accept.clone()],
            "`frag-off` has",
        ),
        (
            vec![
                is(json!({ "&": [payload("ip", "daddr"), "255.0.255.0"] }), json!("10.0.1.0")),
                accept.clone(),
            ],
            "`&` has",
        ),
        (
            vec![is(payload("ip", "saddr"), json!("@fleeting")), accept.clone()],
            "`@fleeting, whose elements come and go` has",
        ),
        (vec![is(payload("tcp", "dport"), json!("ssh")), accept.clone()], "`\"ssh\"` has"),
        (vec![is(payload("tcp", "dport"), json!({ "set": ["*"] })), accept.clone()], "`*` has"),
        (
            vec![is(payload("ip", "saddr"), json!({ "range": ["10.0.0.2", "10.0.0.1"] })), accept.clone()],
            "`{\"range\":[\"10.0.0.2\",\"10.0.0.1\"]}` has",
        ),
        (
            vec![
                compare(
                    "!=",
                    json!({ "concat": [payload("ip", "saddr"), payload("tcp", "dport")] }),
                    json!("@pairs"),
                ),
                accept.clone(),
            ],
            "`!= of several fields` has",
        ),
        (vec![json!({ "limit": { "rate": 5, "per": "second" } }), accept.clone()], "`limit` has"),
        (vec![json!({ "queue": null })], "`queue` has"),
        (vec![json!({ "mangle": { "key": meta("mark"), "value": 1 } })], "`mangle` has"),
        (vec![json!({ "xt": null }), accept.clone()], "`xt` has"),
        (vec![log.clone(), is(meta("nfproto"), json!("ipv4")), accept.clone()], "`log before a match` has"),
        (vec![log.clone(), json!({ "jump": { "target": "other" } })], "`log before jump` has"),
        // What is not in a listing of one chain, and what nft has no JSON for.
        (vec![json!({ "jump": { "target": "x" } })], "`jump x, which is not listed` has"),
        (vec![json!({ "jump": {} })], "`jump without a target` has"),
        (
            vec![is(payload("ip", "saddr"), json!("@none")), accept.clone()],
            "`@none, which is not listed` has",
        ),
        (vec![json!("meta mark set 1"), accept.clone()], "`\"meta mark set 1\"` has"),
        (
            vec![json!({ "match": { "left": meta("nfproto"), "right": 1 } }), accept.clone()],
            "`match without op` has",
        ),
        (vec![is(json!(5), json!(5)), accept.clone()], "`5` has"),
        (
            vec![is(json!({ "concat": [payload("ip", "saddr"), 80] }), json!("@pairs")), accept.clone()],
            "`80` has",
        ),
        (
            vec![
                is(json!({ "concat": [payload("ip", "saddr"), payload("tcp", "dport")] }), json!("@blocked")),
                accept.clone(),
            ],
            "`{\"prefix\":{\"addr\":\"10.0.0.0\",\"len\":8}}` has",
        ),
        (vec![json!({ "vmap": { "key": meta("l4proto") } })], "`vmap without key or data` has"),
        (vec![json!({ "vmap": { "key": meta("l4proto"), "data": { "set": [6] } } })], "`vmap of 6` has"),
        (
            vec![
                is(
                    json!({ "payload": { "tunnel": "vxlan", "protocol": "ip", "field": "saddr" } }),
                    json!("10.0.0.1"),
                ),
                accept.clone(),
            ],
            "`ip saddr of tunnel` has",
        ),
        // An element that matches only so often.
        (
            vec![
                is(
                    payload("ip", "saddr"),
                    json!({ "set": [{ "elem": { "val": "10.0.0.1", "limit": { "rate": 1 } } }] }),
                ),
                accept.clone(),
            ],
            "`limit` has",
        ),
        (
            vec![
                is(meta("skuid"), json!(0)),
                json!({ "limit": { "rate": 5, "per": "second" } }),
                json!({ "notrack": null }),
            ],
            "`meta skuid`, `limit`, `notrack` have",
        ),
    ] {
        let text = filter(&[expr.clone(), vec![accept.clone()]]);
        let message = format!("inet t input handle 9: {construct} no equal here");
        assert_eq!(
            read(&text).unwrap_err(),
            format!("f:10: {message} (--skip-unsupported leaves it out)"),
            "{expr:?}"
        );
        let reading = read_with(&text, Options { skip_unsupported: true, ..Options::default() }).unwrap();
        assert_eq!(reading.skipped, [Skipped { line: 10, message }], "{expr:?}");
        assert_eq!(reading.rules.rules.len(), 1, "{expr:?}");
    }
    // A log alone, and rules of other types of chains.
    let error = read(&filter(&[vec![log], vec![is(meta("nfproto"), json!("ipv4")), accept]])).unwrap_err();
    assert!(error.starts_with("f:10: logging without a rule right after it"), "{error}");
    let nat = ruleset(&[
        chain("nat", Some(("nat", "accept"))),
        chain("input", Some(("filter", "accept"))),
        rule("nat", &[json!({ "masquerade": null })]),
        rule("input", &[json!({ "drop": null })]),
    ]);
    let reading = read(&nat).unwrap();
    let elsewhere: Vec<_> = reading.elsewhere.iter().map(ToString::to_string).collect();
    assert_eq!(elsewhere, ["chain inet t nat of type nat with 1 rule"]);
    // Unless it is asked for.
    let error = read_with(&nat, Options { list: Some("nat".into()), ..Options::default() }).unwrap_err();
    assert!(error.starts_with("f:4: inet t nat handle 9: `masquerade` has no equal here"), "{error}");
}

/// States of connections in all ways that nft has of saying them, and interfaces by which packets leave.
#[test]
fn states_and_exits_are_kept() {
    let state = || json!({ "ct": { "key": "state" } });
    let rules = |expr: &[Value]| {
        let reading = read(&filter(&[expr.to_vec()])).unwrap();
        reading.rules.rules.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (op, right, expected) in [
        ("in", json!("established"), "established"),
        ("in", json!(["established", "related"]), "established,related"),
        ("in", json!({ "|": ["new", "untracked"] }), "new,untracked"),
        ("in", json!(6), "established,related"),
        ("==", json!("invalid"), "invalid"),
        ("==", json!({ "set": ["established", "related"] }), "established,related"),
        ("!=", json!("invalid"), "new,established,related,untracked"),
        ("!=", json!({ "set": ["new", "invalid"] }), "established,related,untracked"),
        ("!", json!(["new", "invalid"]), "established,related,untracked"),
    ] {
        let found = rules(&[compare(op, state(), right.clone()), json!({ "accept": null })]);
        assert_eq!(found, [format!("permit any from any to any state {expected}")], "{op} {right}");
    }
    // A packet has one of them.
    let both = compare("==", state(), json!(["established", "related"]));
    assert_eq!(rules(&[both, json!({ "accept": null })]), [""; 0]);
    let vmap = json!({ "vmap": { "key": state(), "data": { "set": [
        ["invalid", { "drop": null }], ["established", { "accept": null }], ["related", { "accept": null }]
    ] } } });
    assert_eq!(
        rules(&[vmap]),
        [
            "deny any from any to any state invalid",
            "permit any from any to any state established",
            "permit any from any to any state related"
        ]
    );
    let exits = compare("==", meta("oifname"), json!({ "set": ["eth0", "eth1"] }));
    assert_eq!(rules(&[exits, json!({ "drop": null })]), ["deny any from any to any out eth0,eth1"]);
    let pair = json!({ "concat": [meta("iif"), meta("oif"), state()] });
    let pair = compare("==", pair, json!({ "set": [{ "concat": ["lan", "wan", "new"] }] }));
    assert_eq!(
        rules(&[pair, json!({ "accept": null })]),
        ["permit any from any to any in lan out wan state new"]
    );
    for (left, right) in [
        (json!({ "ct": { "key": "state", "dir": "original" } }), json!("new")),
        (state(), json!("expected")),
        (state(), json!(16)),
    ] {
        let error =
            read(&filter(&[vec![compare("in", left, right), json!({ "accept": null })]])).unwrap_err();
        assert!(error.contains("`ct state"), "{error}");
    }
}

#[test]
fn bad_rulesets_are_refused_with_what_was_expected() {
    let json = "expected JSON as \"nft -j list ruleset\" prints it";
    let drop = || json!({ "drop": null });
    let with = |expr: &[Value]| filter(&[expr.to_vec()]);
    for (text, message) in [
        ("{".to_owned(), format!("f:1: EOF while parsing an object at line 1 column 1; {json}")),
        ("{\n\"nftables\": [{}\n, x]}".into(), format!("f:3: expected value at line 3 column 3; {json}")),
        ("{\"nft\": []}".into(), format!("f:1: no \"nftables\"; {json}")),
        (ruleset(&[json!(1)]), "f:2: not an object with one name; expected a chain, a rule or a set".into()),
        (
            ruleset(&[json!({ "chains": {} })]),
            "f:2: \"chains\"; expected a table, a chain, a rule, a set or a map".into(),
        ),
        (
            ruleset(&[json!({ "chain": { "family": "ip", "table": "t" } })]),
            "f:2: an object without \"name\"; expected a text".into(),
        ),
        (ruleset(&[chain("a", None), chain("a", None)]), "f:3: chain \"inet t a\" stands twice".into()),
        (
            ruleset(&[chain("a", Some(("filter", "queue")))]),
            "f:2: policy \"queue\"; expected accept or drop".into(),
        ),
        (ruleset(&[rule("a", &[drop()])]), "f:2: no chain \"inet t a\"; expected it among the chains".into()),
        (
            with(&[json!({ "goto": { "target": "input" } })]),
            "f:10: chain \"inet t input\" leads back to itself; expected chains without a loop".into(),
        ),
        (
            ruleset(&[
                json!({ "add": { "element": { "family": "inet", "table": "t", "name": "s", "elem": [1] } } }),
            ]),
            "f:2: elements of \"inet t s\"; expected the set before them".into(),
        ),
        (
            ruleset(&[chain("a", None), json!({ "flush": { "ruleset": null } })]),
            "f:3: \"flush\"; expected a table, a chain, a rule, a set or a map".into(),
        ),
        (
            ruleset(&[json!({ "metainfo": {} })]),
            "f: no chain; expected one of a table of the family ip, ip6 or inet".into(),
        ),
        (
            ruleset(&[json!({ "chain": { "family": "arp", "table": "t", "name": "x" } })]),
            "f: no chain of a table of the family ip, ip6 or inet; there are arp t x".into(),
        ),
    ] {
        assert_eq!(read(&text).unwrap_err(), crate::told(message), "{text}");
    }
    // Deep nesting is the JSON reader's to refuse.
    let deep = format!("{}1{}", "[".repeat(200_000), "]".repeat(200_000));
    let text = with(&[json!("deep")]).replace("\"deep\"", &deep);
    assert!(read(&text).unwrap_err().starts_with("f:10: recursion limit exceeded"));
    let text = ruleset(&[json!("deep")])
        .replace("\"deep\"", &format!("{}1{}", "{\"add\":".repeat(200_000), "}".repeat(200_000)));
    assert_eq!(read(&text).unwrap_err(), "f:2: \"add\"; expected a table, a chain, a rule, a set or a map");
}

#[test]
fn a_ruleset_of_several_lists_needs_a_name() {
    let drop = json!({ "drop": null });
    let text = ruleset(&[
        chain("a", Some(("filter", "accept"))),
        chain("b", Some(("filter", "drop"))),
        chain("c", Some(("filter", "drop"))),
        chain("d", None),
        json!({ "chain": { "family": "ip", "table": "t", "name": "a", "type": "filter", "hook": "input", "prio": 0 } }),
        json!({ "chain": { "family": "arp", "table": "t", "name": "x", "type": "filter", "hook": "input", "prio": 0 } }),
        rule("a", std::slice::from_ref(&drop)),
        rule("b", std::slice::from_ref(&drop)),
        json!({ "rule": { "family": "arp", "table": "t", "chain": "x", "expr": [{ "queue": null }] } }),
        json!({ "add": { "rule": { "family": "ip", "table": "t", "chain": "a", "expr": [{ "accept": null }], "comment": "a\nb" } } }),
    ]);
    let with = |list: Option<&str>| {
        read_with(&text, Options { list: list.map(str::to_owned), ..Options::default() })
    };
    assert_eq!(
        with(None).unwrap_err(),
        "f: several lists; expected the name of one (--list): inet t a, inet t b, ip t a"
    );
    assert_eq!(with(Some("inet t a")).unwrap().default, Some(Action::Permit));
    // A name alone, where only one list has it.
    assert_eq!(with(Some("b")).unwrap().default, Some(Action::Deny));
    assert_eq!(with(Some("d")).unwrap().default, None);
    for unknown in ["a", "x", "inet t"] {
        let message =
            format!("f: no list {unknown:?}; expected one of inet t a, inet t b, inet t c, inet t d, ip t a");
        assert_eq!(with(Some(unknown)).unwrap_err(), message);
    }
    // A base chain accepts unless it says something else. Comments are one line.
    let ip = with(Some("ip t a")).unwrap();
    assert_eq!((ip.default, ip.rules.rules[0].comment.as_deref()), (Some(Action::Permit), Some("a b")));
    assert_eq!(ip.rules.rules[0].to_string(), "permit any from 0.0.0.0/0 to 0.0.0.0/0 # a b");
    assert_eq!(ip.rules.rules[0].line, 11);
}

#[test]
fn sets_that_are_used_often_are_bounded() {
    let elements: Vec<_> = (0..20_000u32).map(|number| json!(number * 3 % 65_536)).collect();
    let set = json!({ "set": { "family": "inet", "name": "big", "table": "t", "type": "inet_service", "elem": elements } });
    let uses = (0..500).map(|_| {
        rule("input", &[is(payload("tcp", "dport"), json!("@big")), json!({ "jump": { "target": "other" } })])
    });
    let objects = [set, chain("other", None), chain("input", Some(("filter", "drop")))];
    let text = ruleset(&objects.into_iter().chain(uses).collect::<Vec<_>>());
    let error = read(&text).unwrap_err();
    assert!(
        error.ends_with(": sets with more than 8388608 elements in all the rules that use them"),
        "{error}"
    );
}

#[test]
fn rules_are_written_in_these_words() {
    let written_as = |text: &str| -> Vec<Value> {
        let text = written(&[super::rule(text)], Format::Nftables, None)
            .unwrap_or_else(|error| panic!("{text}: {error}"));
        let whole: Value = serde_json::from_str(&text).expect("JSON");
        let objects = whole["nftables"].as_array().expect("objects").clone();
        assert_eq!(objects[0], json!({ "table": { "family": "inet", "name": "packetloom" } }));
        assert_eq!(objects[1]["chain"]["policy"], json!("drop"));
        objects[2..].iter().map(|rule| rule["rule"].clone()).collect()
    };
    let exprs =
        |text: &str| -> Vec<Value> { written_as(text).iter().map(|rule| rule["expr"].clone()).collect() };
    let number = |value: u16| json!(value);
    assert_eq!(exprs("deny any from any to any"), [json!([{ "drop": null }])]);
    assert_eq!(
        exprs("permit tcp from 10.0.0.0/8 to any port 80-81 flags S/SA log"),
        [json!([
            is(payload("ip", "saddr"), json!({ "prefix": { "addr": "10.0.0.0", "len": 8 } })),
            is(meta("l4proto"), number(6)),
            is(payload("th", "dport"), json!({ "range": [80, 81] })),
            is(json!({ "&": [payload("tcp", "flags"), 18] }), number(2)),
            { "log": null },
            { "accept": null },
        ])]
    );
    // Where the families differ, a rule for each.
    assert_eq!(
        exprs("deny any from any to any fragment later"),
        [
            json!([
                is(meta("nfproto"), json!("ipv4")),
                compare("!=", json!({ "&": [payload("ip", "frag-off"), 0x1fff] }), number(0)),
                { "drop": null },
            ]),
            json!([
                is(meta("nfproto"), json!("ipv6")),
                compare("!=", json!({ "exthdr": { "name": "frag", "field": "frag-off" } }), number(0)),
                { "drop": null },
            ]),
        ]
    );
    let long = format!("deny any from any to any # {}ü", "x".repeat(127));
    assert_eq!(written_as(&long)[0]["comment"], json!("x".repeat(127)));
    assert_eq!(written_as("deny any from any to any id name")[0]["comment"], json!("name"));
    for (text, reason) in [
        ("deny any from ::/0 to any fragment first", "which has no words for these fragments of IPv6"),
        ("deny any from any to any fragment none", "which has no words for these fragments of IPv6"),
        ("deny ah from any to any", "where this protocol's header is walked over"),
        ("@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x06/0xff", "where every rule has an action"),
        ("reflect ah from any to any", "where no rule admits connections"),
        ("@0.0.0.0/0 0.0.0.0/0 0 : 65535 1 : 1 0x01/0xff", "which has no words for what no packet can match"),
    ] {
        let mut rule = super::rule(text);
        if rule.action.is_none() && !reason.contains("action") {
            rule.action = Some(Action::Deny);
        }
        match written(&[rule], Format::Nftables, None) {
            Err(WriteError::Inexpressible { reason: found, .. }) => assert_eq!(found, reason, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}
