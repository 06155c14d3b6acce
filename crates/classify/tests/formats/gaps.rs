//! What is left out leaves gaps, and nothing that is said about the other rules depends on it.

use std::collections::BTreeMap;
use std::fmt::Write;

use packetloom_classify::analysis::{self, Analysis, Side, Verdict};
use packetloom_classify::compiled::matching;
use packetloom_classify::formats::{Format, Options, Reading, parse_header, read_rules};
use packetloom_classify::{Action, Gap, Rule};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

fn read_as(format: Option<Format>, text: &str) -> Reading {
    let options = Options { format, skip_unsupported: true, ..Options::default() };
    read_rules("f", &mut text.as_bytes(), &options).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The gaps of a reading: the line, the rules before it at least, those before it at most and those that it may pass over, and
/// what it matches at most.
fn gaps(reading: &Reading) -> Vec<String> {
    let show = |gap: &Gap| {
        let Gap { skipped, position, latest, resumes, at_most } = gap;
        let line = reading.skipped[*skipped as usize].line;
        assert_eq!(at_most.line, line);
        let place = match *latest {
            u32::MAX => format!("{position}.."),
            latest if latest == *position => format!("{position}"),
            latest => format!("{position}..{latest}"),
        };
        let resumes = if resumes == position { String::new() } else { format!(" to {resumes}") };
        format!("line {line} at {place}{resumes}: {at_most}")
    };
    reading.gaps.list.iter().map(show).collect()
}

fn doubtful(reading: &Reading) -> Vec<(u32, u32)> {
    reading.gaps.doubtful.iter().map(|range| (range.start, range.end)).collect()
}

#[test]
fn a_line_of_a_list_leaves_a_gap_where_it_stood() {
    let cisco = "access-list 101 permit tcp any any eq 80\naccess-list 101 permit tcp any any eq 22 time-range night\n\
                 access-list 101 permit udp any any\n";
    let reading = read_as(Some(Format::CiscoIos), cisco);
    // Line 1 is two rules: with a port, and for fragments that have none.
    assert_eq!(gaps(&reading), ["line 2 at 2: any from 0.0.0.0/0 to 0.0.0.0/0"]);
    assert!(reading.gaps.doubtful.is_empty());

    let reading = read_as(
        Some(Format::Vpp),
        "set acl-plugin l4-match-nonfirst-fragment 0\nset acl-plugin acl permit\n",
    );
    assert_eq!(gaps(&reading), ["line 1 at 0: any from any to any fragment later"]);
    assert_eq!(doubtful(&reading), [(0, u32::MAX)]);
}

#[test]
fn conditions_that_are_understood_bound_a_gap() {
    let text = "\
*filter
:INPUT ACCEPT [0:0]
-A INPUT -s 192.0.2.0/24 -o eth0 -p tcp -m tcp --dport 22 -m recent --update --dport 23 -j DROP
-A INPUT -p dccp -m multiport --dports 5,6 -j DROP
-A INPUT -m limit --limit 5/min -j LOG
-A INPUT -m recent --set
-A INPUT -p icmp --icmp-type 8 -m limit --limit 1/s -j ACCEPT
-A INPUT -m limit --limit 5/min -p tcp -j DROP
-A INPUT -p tcp --syn -j NFQUEUE
-A INPUT ! -s 192.0.2.0/25 -p udp -m multiport --ports 53,5353 -o eth1 -j DROP
COMMIT
";
    let reading = read_as(None, text);
    assert_eq!(reading.skipped.len(), 8);
    let expected = [
        "line 3 at 0: tcp from 192.0.2.0/24 to 0.0.0.0/0 port 22",
        "line 4 at 0: dccp from 0.0.0.0/0 to 0.0.0.0/0",
        "line 7 at 0: icmp from 0.0.0.0/0 to 0.0.0.0/0 type 8",
        "line 8 at 0: any from 0.0.0.0/0 to 0.0.0.0/0",
        "line 9 at 0: tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/FSRA",
        "line 10 at 0: udp from 0.0.0.0/0 port 53-5353 to 0.0.0.0/0",
        "line 10 at 0: udp from 0.0.0.0/0 to 0.0.0.0/0 port 53-5353",
    ];
    assert_eq!(gaps(&reading), expected);
}

#[test]
fn tables_before_and_after_the_list() {
    let text = "\
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A PREROUTING -p tcp --dport 80 -j DNAT --to-destination 10.0.0.1
-A POSTROUTING -o eth0 -j MASQUERADE
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -p tcp -j ACCEPT
COMMIT
";
    let reading = read_as(None, text);
    assert_eq!(gaps(&reading), [""; 0]);
    assert_eq!(
        reading.elsewhere.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["table nat with 2 rules"]
    );
}

#[test]
fn a_line_of_a_chain_leaves_a_gap_where_it_is_called() {
    let text = "\
*filter
:INPUT ACCEPT [0:0]
:WEB - [0:0]
:OTHER - [0:0]
-A INPUT -p tcp --dport 80 -j WEB
-A INPUT -p tcp --dport 443 -j WEB
-A INPUT -m mark --mark 1 -j OTHER
-A INPUT -j OTHER
-A WEB -m recent --update -j RETURN
-A WEB -s 192.0.2.0/24 -j ACCEPT
-A OTHER -p udp -j DROP
COMMIT
";
    let reading = read_as(None, text);
    let expected = [
        "line 9 at 0 to 1: tcp from 0.0.0.0/0 to 0.0.0.0/0 port 80",
        "line 9 at 1 to 2: tcp from 0.0.0.0/0 to 0.0.0.0/0 port 443",
        "line 7 at 2: any from 0.0.0.0/0 to 0.0.0.0/0",
    ];
    assert_eq!(gaps(&reading), expected);
    assert_eq!(doubtful(&reading), [(2, 3)]);
}

#[test]
fn nftables_leaves_gaps() {
    let read = |rules: &[&str]| {
        let chain = r#"{"chain": {"family": "inet", "table": "t", "name": "input", "handle": 1, "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}}"#;
        let web = r#"{"chain": {"family": "inet", "table": "t", "name": "web", "handle": 2}}"#;
        let nat = r#"{"chain": {"family": "inet", "table": "t", "name": "nat", "handle": 3, "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}}"#;
        let rule = |chain: &str, expr: &str| {
            format!(
                r#"{{"rule": {{"family": "inet", "table": "t", "chain": "{chain}", "handle": 9, "expr": [{expr}]}}}}"#
            )
        };
        let mut objects = vec![chain.to_owned(), web.to_owned(), nat.to_owned()];
        objects.push(rule("nat", r#"{"masquerade": null}"#));
        objects.extend(rules.iter().map(|expr| rule("input", expr)));
        objects.push(rule("input", r#"{"jump": {"target": "web"}}"#));
        objects.push(rule("web", r#"{"accept": null}"#));
        read_as(None, &format!("{{\"nftables\": [\n{}\n]}}", objects.join(",\n")))
    };
    let port =
        r#"{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}}"#;
    let interface = r#"{"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": 0}}"#;
    let limit = r#"{"limit": {"rate": 5, "per": "minute"}}"#;
    let known = format!("{port}, {interface}, {port}, {{\"drop\": null}}");
    let log = format!("{limit}, {{\"log\": null}}");
    let reading = read(&[&known, &log]);
    assert_eq!(reading.skipped.len(), 2);
    assert_eq!(gaps(&reading), ["line 6 at 0: tcp from any to any port 22"]);
    assert!(reading.gaps.doubtful.is_empty());

    let jump = format!("{interface}, {{\"jump\": {{\"target\": \"web\"}}}}");
    let reading = read(&[&jump]);
    assert_eq!(gaps(&reading), ["line 6 at 0: any from any to any"]);
    assert_eq!(doubtful(&reading), [(0, 1)]);

    let mangle = r#"{"mangle": {"key": {"payload": {"protocol": "tcp", "field": "dport"}}, "value": 80}}"#;
    let reading = read(&[mangle]);
    assert_eq!(gaps(&reading), ["line 6 at 0: any from any to any"]);
    assert_eq!(doubtful(&reading), [(0, u32::MAX)]);
}

#[test]
fn flows_leave_gaps_where_their_order_puts_them() {
    // To 192.0.2.0/24 with a length, and TCP there; to 192.0.2.0/25; to 198.51.100.0/24 at a rate; and to 203.0.113.0/24.
    let text = "\
08 0118c00002 0a8164 discard
08 0118c00002 038106 discard
06 0119c0000200 discard
05 0118c63364 rate 1000
05 0118cb0071 discard
";
    let reading = read_as(Some(Format::FlowSpec), text);
    let lines: Vec<u32> = reading.rules.rules.iter().map(|rule: &Rule| rule.line).collect();
    assert_eq!(lines, [3, 2, 5]);
    let expected = [
        "line 1 at 2: any from 0.0.0.0/0 to 192.0.2.0/24",
        "line 4 at 2: any from 0.0.0.0/0 to 198.51.100.0/24",
    ];
    assert_eq!(gaps(&reading), expected);

    let text = "announce flow route destination 192.0.2.0/24 rate-limit 1000\nannounce flow route destination 192.0.2.0/25 discard\n";
    let reading = read_as(Some(Format::ExaBgp), text);
    assert_eq!(gaps(&reading), ["line 1 at 0..: any from any to any"]);
    assert!(reading.gaps.doubtful.is_empty());
    let reading = read_as(Some(Format::ExaBgp), &text.replacen("announce", "withdraw", 1));
    assert_eq!(doubtful(&reading), [(0, u32::MAX)]);
}

/// A line of a chain: UDP ports from one to another, or every packet; what it does; and whether it has a condition or a target
/// that has no equal.
#[derive(Clone, Copy, Debug)]
struct Line {
    ports: Option<(u16, u16)>,
    does: Does,
    is_left_out: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Decide(Action),
    Jump(usize),
    Goto(usize),
    Return,
    /// What a target that is not known does is not known either.
    Queue,
    Log,
}

const NAMES: [&str; 4] = ["INPUT", "ONE", "TWO", "THREE"];

/// What a line is drawn from: its ports, what it does, how far it jumps, and whether it is left out.
type Drawn = (Option<(u16, u16)>, u8, usize, bool);

/// Chains, each of which jumps to those after it alone; the policy accepts.
#[derive(Clone, Debug)]
struct Chains(Vec<Vec<Line>>);

fn chains() -> impl Strategy<Value = Chains> {
    let ports =
        prop_oneof![1 => Just(None), 3 => (1..4u16, 0..3u16).prop_map(|(low, more)| Some((low, low + more)))];
    let line = (ports, 0..14u8, 1..4usize, prop::bool::weighted(0.25));
    let chain = prop::collection::vec(line, 1..6);
    prop::collection::vec(chain, 4).prop_map(|chains| {
        // So few that everything they may do can be tried.
        let mut left_out = 0;
        let chain = |(chain, lines): (usize, Vec<Drawn>)| {
            let line = |(ports, kind, target, is_left_out): Drawn| {
                let target = (chain + target).min(3);
                let does = match kind {
                    6..=9 if target > chain => Does::Jump(target),
                    10 if target > chain => Does::Goto(target),
                    11 => Does::Return,
                    12 => Does::Queue,
                    13 if is_left_out => Does::Log,
                    kind => Does::Decide(if kind % 2 == 0 { Action::Permit } else { Action::Deny }),
                };
                let is_left_out = (is_left_out || does == Does::Queue) && left_out < 4;
                left_out += u32::from(is_left_out);
                let does = match does {
                    Does::Queue | Does::Log if !is_left_out => Does::Return,
                    does => does,
                };
                Line { ports, does, is_left_out }
            };
            lines.into_iter().map(line).collect()
        };
        Chains(chains.into_iter().enumerate().map(chain).collect())
    })
}

/// What a line that is left out does with a packet that meets its known conditions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Behaviour {
    Misses,
    Matches,
    Decides(Action),
}

/// What happened to a packet in a chain.
enum Outcome {
    Decided(Action),
    Returned,
}

impl Chains {
    /// As a file, and the number of the line of each rule.
    fn text(&self) -> (String, Vec<Vec<u32>>) {
        let mut text = "*filter\n:INPUT ACCEPT [0:0]\n".to_owned();
        NAMES[1..].iter().for_each(|name| writeln!(text, ":{name} - [0:0]").expect("a text"));
        let mut number = 5;
        let mut numbers = Vec::new();
        for (name, lines) in NAMES.iter().zip(&self.0) {
            let mut of_chain = Vec::new();
            for line in lines {
                number += 1;
                of_chain.push(number);
                let ports =
                    line.ports.map_or(String::new(), |(low, high)| format!(" -p udp --dport {low}:{high}"));
                let unknown =
                    if line.is_left_out && line.does != Does::Queue { " -m mark --mark 1" } else { "" };
                let target = match line.does {
                    Does::Decide(Action::Deny) => "-j DROP".into(),
                    Does::Decide(_) => "-j ACCEPT".into(),
                    Does::Jump(chain) => format!("-j {}", NAMES[chain]),
                    Does::Goto(chain) => format!("-g {}", NAMES[chain]),
                    Does::Return => "-j RETURN".into(),
                    Does::Queue => "-j NFQUEUE".into(),
                    Does::Log => "-j LOG".to_owned(),
                };
                writeln!(text, "-A {name}{ports}{unknown} {target}").expect("a text");
            }
            numbers.push(of_chain);
        }
        (text + "COMMIT\n", numbers)
    }

    /// What each line that is left out may do, in every combination.
    fn behaviours(&self) -> Vec<BTreeMap<(usize, usize), Behaviour>> {
        let mut all = vec![BTreeMap::new()];
        for (chain, lines) in self.0.iter().enumerate() {
            for (index, line) in lines.iter().enumerate().filter(|(_, line)| line.is_left_out) {
                let each: &[Behaviour] = match line.does {
                    Does::Log => &[Behaviour::Misses],
                    Does::Queue => &[
                        Behaviour::Misses,
                        Behaviour::Decides(Action::Permit),
                        Behaviour::Decides(Action::Deny),
                    ],
                    _ => &[Behaviour::Misses, Behaviour::Matches],
                };
                all = all
                    .iter()
                    .flat_map(|before| {
                        each.iter().map(|behaviour| {
                            let mut after = before.clone();
                            after.insert((chain, index), *behaviour);
                            after
                        })
                    })
                    .collect();
            }
        }
        all
    }

    /// What a chain does with a packet to a UDP port, or with one of another protocol; `hit` is told of the lines that decide.
    fn run(
        &self,
        chain: usize,
        port: Option<u16>,
        left_out: &BTreeMap<(usize, usize), Behaviour>,
        removed: Option<(usize, usize)>,
        hit: &mut dyn FnMut((usize, usize)),
    ) -> Outcome {
        for (index, line) in self.0[chain].iter().enumerate() {
            let at = (chain, index);
            let holds =
                line.ports.is_none_or(|(low, high)| port.is_some_and(|port| low <= port && port <= high));
            if !holds || removed == Some(at) {
                continue;
            }
            match left_out.get(&at) {
                Some(Behaviour::Misses) => continue,
                Some(Behaviour::Decides(action)) => return Outcome::Decided(*action),
                Some(Behaviour::Matches) | None => {}
            }
            match line.does {
                Does::Decide(action) => {
                    hit(at);
                    return Outcome::Decided(action);
                }
                Does::Return => return Outcome::Returned,
                Does::Jump(target) => match self.run(target, port, left_out, removed, hit) {
                    Outcome::Returned => {}
                    decided => return decided,
                },
                Does::Goto(target) => return self.run(target, port, left_out, removed, hit),
                Does::Queue | Does::Log => {}
            }
        }
        Outcome::Returned
    }

    /// What happens to a packet, and which line decides.
    fn decide(
        &self,
        port: Option<u16>,
        left_out: &BTreeMap<(usize, usize), Behaviour>,
        removed: Option<(usize, usize)>,
    ) -> (Action, Option<(usize, usize)>) {
        let mut by = None;
        match self.run(0, port, left_out, removed, &mut |at| by = Some(at)) {
            Outcome::Decided(action) => (action, by),
            Outcome::Returned => (Action::Permit, None),
        }
    }
}

const PORTS: [Option<u16>; 8] = [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)];

/// What is wrong with what is said about chains.
fn mistake(chains: &Chains, counts: &mut BTreeMap<&'static str, u32>) -> Option<String> {
    let mut count = |what| *counts.entry(what).or_default() += 1;
    let (text, numbers) = chains.text();
    let options = Options { skip_unsupported: true, list: Some("INPUT".into()), ..Options::default() };
    let reading = read_rules("f", &mut text.as_bytes(), &options).expect("rules");
    let behaviours = chains.behaviours();
    for port in PORTS {
        let header = match port {
            Some(port) => format!("udp 192.0.2.1:4711 > 198.51.100.1:{port}"),
            None => "gre 192.0.2.1 > 198.51.100.1".into(),
        };
        let key = parse_header(&header).expect("a header");
        let first = matching(&reading.rules, &key).next();
        let action = first
            .map_or(Action::Permit, |first| reading.rules.rules[first as usize].action.expect("an action"));
        if reading.gaps.before(first, &key).is_empty() {
            count("explained");
            if behaviours.iter().any(|left_out| chains.decide(port, left_out, None).0 != action) {
                return Some(format!("{header} is not always decided so: {text}"));
            }
        } else {
            count("explained with a doubt");
        }
    }
    let options = analysis::Options { default: Action::Permit, ..analysis::Options::default() };
    let analysis = Analysis::with_gaps(&reading.rules, &reading.gaps, options);
    let mut verdicts: BTreeMap<u32, Vec<Verdict>> = BTreeMap::new();
    for (position, rule) in (0..).zip(&reading.rules.rules) {
        verdicts.entry(rule.line).or_default().push(analysis.check(position).verdict);
    }
    for (chain, lines) in chains.0.iter().enumerate() {
        for (index, line) in lines.iter().enumerate() {
            let at = (chain, index);
            let Some(verdicts) = verdicts.get(&numbers[chain][index]) else { continue };
            if line.is_left_out || !matches!(line.does, Does::Decide(_)) {
                continue;
            }
            let is_never_hit = |verdict: &Verdict| {
                matches!(verdict, Verdict::Shadowed(_) | Verdict::Redundant { side: Side::Earlier, .. })
            };
            let mut each = behaviours.iter().flat_map(|left_out| PORTS.map(|port| (left_out, port)));
            if verdicts.iter().all(is_never_hit) {
                count("never hit");
                if each.any(|(left_out, port)| chains.decide(port, left_out, None).1 == Some(at)) {
                    return Some(format!("{at:?} is hit: {verdicts:?}\n{text}"));
                }
            } else if let [Verdict::Redundant { .. }] = verdicts[..] {
                count("redundant");
                let differs = |(left_out, port)| {
                    chains.decide(port, left_out, None).0 != chains.decide(port, left_out, Some(at)).0
                };
                if each.any(differs) {
                    return Some(format!("{at:?} matters: {verdicts:?}\n{text}"));
                }
            } else {
                count("nothing said");
            }
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_said_about_chains_depends_on_what_is_left_out(chains in chains()) {
        let mistake = mistake(&chains, &mut BTreeMap::new());
        prop_assert!(mistake.is_none(), "{}", mistake.unwrap());
    }
}

/// The chains above would agree with anything if nothing ever came up in them.
#[test]
fn everything_comes_up_in_chains() {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::new();
    for _ in 0..2_000 {
        let chains = chains().new_tree(&mut runner).expect("chains").current();
        assert_eq!(mistake(&chains, &mut counts), None);
    }
    let expected = ["explained", "explained with a doubt", "never hit", "nothing said", "redundant"];
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), expected);
    assert!(counts.values().all(|&count| count > 200), "{counts:?}");
}
