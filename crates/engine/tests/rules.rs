//! Transactions of rules while packets are judged: verdicts and counters are those of the lists as they are, with any number of workers, on
//! devices, and in the slow forms; flows keep their state.

#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use packetloom_engine::run::{Control, Io, LifecycleOptions, Request, RuleChange};
use packetloom_engine::{Chain, Outputs, Plan};
use packetloom_io::input::Stop;
use packetloom_io::{Polled, Source};
use packetloom_nf::Context;
use packetloom_packet::batch::Arena;
use packetloom_packet::{Batch, FrameRef, Key, KeyBits, LinkType, MatchKey4, Timestamp};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::Value;
use support::{
    How, Results, Transactions, all_results, capture, devices, frames, host, results, traffic, without_first,
};

const ORACLE: &str = "device = \"oracle\"";
const WORKERS: [&str; 4] = ["", "workers = 3", "workers = 3\nbatch = 7", "batch = 1"];

struct Random(Xoshiro256PlusPlus);

impl Random {
    fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.0.next_u64() % (range.end - range.start)
    }

    fn is_heads(&mut self) -> bool {
        self.0.next_u64() >> 63 == 1
    }
}

/// A rule, with what tells it from all others, and its number.
#[derive(Clone, Debug)]
struct Rule {
    key: usize,
    number: usize,
    id: Option<String>,
    text: String,
}

/// A list as it should be, and what is said to have it become that.
struct Model {
    random: Random,
    rules: Vec<Rule>,
    keys: usize,
    numbers: usize,
    /// The actions of rules, and what else they may have.
    actions: &'static [&'static str],
    more: &'static [&'static str],
}

impl Model {
    fn new(seed: u64, actions: &'static [&'static str], more: &'static [&'static str]) -> Self {
        let random = Random(Xoshiro256PlusPlus::seed_from_u64(seed));
        let mut model = Self { random, rules: Vec::new(), keys: 0, numbers: 0, actions, more };
        for _ in 0..6 {
            let rule = model.rule(None);
            model.rules.push(rule);
        }
        model
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.within(0..of.len() as u64) as usize]
    }

    /// A new rule; in the place of another one if that is given.
    fn rule(&mut self, old: Option<&Rule>) -> Rule {
        let action = self.one(self.actions);
        let protocol = self.one(&["any", "tcp", "udp", "icmp", "tcp", "udp"]);
        let [source, destination] = [0, 1].map(|_| {
            self.one(&["any", "any", "0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3", "2000::/3", "10.0.0.0/30"])
        });
        let is_v6 = |end: &str| end.contains(':');
        let destination = if is_v6(source) != is_v6(destination) { "any" } else { destination };
        let port = if ["tcp", "udp"].contains(&protocol) {
            self.one(&["", " port 0-1000", " port 443", " port 22", " port 1024-65535"])
        } else {
            ""
        };
        let more = self.one(self.more);
        let mut text = format!("{action} {protocol} from {source} to {destination}{port}{more}");
        self.keys += 1;
        let id = self.random.is_heads().then(|| format!("r{}", self.keys));
        if let Some(id) = &id {
            text += &format!(" id {id}");
        }
        let number = old.map_or(self.numbers, |old| old.number);
        self.numbers += usize::from(old.is_none());
        Rule { key: self.keys, number, id: id.or_else(|| old?.id.clone()), text }
    }

    fn name(&mut self, at: usize) -> String {
        let Rule { number, id, .. } = self.rules[at].clone();
        let by_number = self.random.is_heads();
        id.filter(|_| !by_number).unwrap_or(format!("@{number}"))
    }

    /// Statements, which are made to the list, too.
    fn statements(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.random.within(1..6) {
            let len = self.rules.len();
            let at = self.random.within(0..len.max(1) as u64) as usize;
            let kind = if len == 0 { 0 } else { self.random.within(0..5) };
            text += &match kind {
                1 if len > 3 => {
                    let line = format!("delete {}\n", self.name(at));
                    self.rules.remove(at);
                    line
                }
                2 | 3 if len > 0 => {
                    let (name, old) = (self.name(at), self.rules[at].clone());
                    let rule = self.rule(Some(&old));
                    let line = format!("replace {name} {}\n", rule.text);
                    self.rules[at] = rule;
                    line
                }
                _ => {
                    let (place, at) = match self.random.within(0..5) {
                        0 => ("first ".to_owned(), 0),
                        1 => ("last ".to_owned(), len),
                        2 if len > 0 => (format!("before {} ", self.name(at)), at),
                        3 if len > 0 => (format!("after {} ", self.name(at)), at + 1),
                        4 => (format!("at {at} "), at),
                        _ => (String::new(), len),
                    };
                    let rule = self.rule(None);
                    let line = format!("add {place}{}\n", rule.text);
                    self.rules.insert(at, rule);
                    line
                }
            };
        }
        text
    }

    fn file(&self) -> String {
        self.rules.iter().map(|rule| format!("{}\n", rule.text)).collect()
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// Packets and bytes that rules decided, by what `key` makes of each.
fn hits<K: Ord>(acl: &Value, key: impl Fn(&Value) -> K) -> BTreeMap<K, [u64; 2]> {
    let hits = acl["hits"].as_array().expect("hits").iter();
    hits.map(|hit| (key(hit), ["packets", "bytes"].map(|of| number(&hit[of])))).collect()
}

/// What a run did, less how often rules changed.
fn without_changes(results: &Results) -> Value {
    let mut summary = results.summary.clone();
    summary.as_object_mut().expect("an object").shift_remove("rule_changes");
    summary
}

/// Each list by itself, as a file, over the packets that it is for: verdicts, and what each rule decided.
#[test]
fn rules_decide_as_those_of_the_list_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("list");
    let chain = format!("[[chain]]\nnf = \"acl\"\nrules = {list:?}\n");
    for seed in 0..12 {
        let (packets, transactions) = if seed < 8 { (3_000, 25) } else { (600, 3) };
        let capture = traffic(packets, 200, seed);
        let mut model = Model::new(seed, &["permit", "deny"], &["", "", " mark 7"]);
        let first = model.file();
        let mut due = Vec::new();
        let (mut passed, mut dropped) = (Vec::new(), BTreeMap::new());
        let (mut by_rule, mut by_default) = (BTreeMap::<usize, [u64; 2]>::new(), [0, 0]);
        let mut from = 0;
        for transaction in 0..=transactions {
            // Several may come before one packet.
            let to =
                if transaction == transactions { packets } else { model.random.within(from..packets + 1) };
            std::fs::write(&list, model.file()).expect("written");
            if to > from {
                let how = How { settings: ORACLE, limit: Some(to - from), ..How::default() };
                let (of_part, ..) = results(&chain, &without_first(&capture, from), how);
                passed.extend_from_slice(frames(&of_part.passed));
                for (reason, count) in of_part.summary["dropped"].as_object().expect("reasons") {
                    *dropped.entry(reason.clone()).or_insert(0) += number(count);
                }
                let acl = &of_part.summary["functions"][0];
                by_default[0] += number(&acl["default_packets"]);
                by_default[1] += number(&acl["default_bytes"]);
                for (rule, counted) in hits(acl, |hit| number(&hit["rule"]) as usize) {
                    let total = by_rule.entry(model.rules[rule].key).or_default();
                    (0..2).for_each(|of| total[of] += counted[of]);
                }
            }
            if transaction < transactions {
                due.push((to, model.statements()));
            }
            from = to;
        }
        std::fs::write(&list, &first).expect("written");
        let settings: Vec<_> =
            WORKERS.iter().chain([&ORACLE]).map(|&settings| (settings.to_owned(), None)).collect();
        // Kernels are compiled for each list.
        let of_devices = devices().into_iter().filter(|_| seed >= 8);
        let of_devices =
            of_devices.map(|device| (format!("device = \"{}\"", device.description().id), Some(device)));
        for (settings, device) in settings.into_iter().chain(of_devices) {
            let made = Transactions::new(due.clone());
            let how = How {
                settings: &settings,
                devices: device.into_iter().collect(),
                transactions: Some(made.clone()),
                ..How::default()
            };
            let (found, shares, notices) = results(&chain, &capture, how);
            assert_eq!(notices, Vec::<String>::new());
            assert!(
                shares.is_none_or(|shares| shares.device == packets),
                "{settings}: the device judges all"
            );
            let answers = made.answers();
            assert!(answers.iter().all(Result::is_ok), "{answers:?}\n{due:?}");
            let last = answers.last().expect("there are some").as_ref().expect("made");
            assert_eq!(last.rules, model.rules.len());
            let case = format!("{seed}, {settings}\n{first}\n{due:#?}");
            assert!(frames(&found.passed) == passed, "other packets passed: {case}");
            let summary = &found.summary;
            let found_dropped: BTreeMap<_, _> = summary["dropped"]
                .as_object()
                .expect("reasons")
                .iter()
                .map(|(reason, count)| (reason.clone(), number(count)))
                .collect();
            assert_eq!(found_dropped, dropped, "{case}");
            assert_eq!(summary["rule_changes"], due.len(), "{case}");
            let acl = &summary["functions"][0];
            assert_eq!(["default_packets", "default_bytes"].map(|of| number(&acl[of])), by_default, "{case}");
            // By their numbers and places.
            let places = (0..).zip(&model.rules).map(|(place, rule)| (rule.key, (place, rule.number as u64)));
            let expected: BTreeMap<_, _> =
                places.filter_map(|(key, place)| Some((place, *by_rule.get(&key)?))).collect();
            let found = hits(acl, |hit| (number(&hit["rule"]), number(&hit["number"])));
            assert_eq!(found, expected, "{case}");
            let gone = by_rule.iter().filter(|(key, _)| model.rules.iter().all(|rule| rule.key != **key));
            let gone = gone.fold([0, 0], |sum, (_, counted)| [sum[0] + counted[0], sum[1] + counted[1]]);
            let deleted = ["packets", "bytes"].map(|of| acl["deleted"][of].as_u64().unwrap_or(0));
            assert_eq!(deleted, gone, "{case}");
            let is_gone = |rule: &str| rule.starts_with("delete") || rule.starts_with("replace");
            let lines = due.iter().flat_map(|(_, statements)| statements.lines());
            let all_gone = lines.filter(|line| is_gone(line)).count() as u64;
            // One that came and went in one transaction was never there.
            assert!(acl["deleted"]["rules"].as_u64().unwrap_or(0) <= all_gone, "{case}");
        }
        assert!(by_rule.len() > 3, "{by_rule:?}");
    }
}

/// Lists that keep connections, beside other functions with state: as the slow forms have it, and as a file of changes has it.
#[test]
fn flows_keep_their_state_while_rules_change() {
    let chain = "[[chain]]\nnf = \"conntrack\"\ninvalid = \"pass\"\n[[chain]]\nnf = \"acl\"\nrules = \"reflecting\"\nloose = true\nlog = \"log\"\nlog_rate = \"200/s\"\n\
        [[chain]]\nnf = \"limiter\"\nrate = \"20packets/s\"\nburst = \"10packets\"\n[[chain]]\nnf = \"meter\"\noutput = \"flows\"\nidle_timeout = \"20ms\"\nmax_flows = 4000\n";
    for seed in 20..26 {
        let capture = traffic(3_000, 150, seed);
        let few = seed >= 24;
        let mut model = Model::new(seed, &["permit", "deny", "reflect"], &["", " log", " mark 9"]);
        let mut due = vec![(
            100,
            "delete resets\nadd after out reflect any from 0.0.0.0/1 to any id half\ndelete out\n".to_owned(),
        )];
        let count = if few { 2 } else { 20 };
        let mut packets: Vec<_> = (0..count).map(|_| model.random.within(100..3_000)).collect();
        packets.sort_unstable();
        // The model's rules have other numbers than those of this list.
        let mut added = Vec::new();
        for at in packets {
            let mut text = String::new();
            for _ in 0..model.random.within(1..4) {
                if !added.is_empty() && model.random.is_heads() {
                    let at = model.random.within(0..added.len() as u64) as usize;
                    text += &format!("delete {}\n", added.swap_remove(at));
                } else {
                    let rule = model.rule(None);
                    let id = format!("k{}", rule.key);
                    let text_of_rule = rule.text.split(" id ").next().expect("a rule").to_owned();
                    text +=
                        &format!("add {} {text_of_rule} id {id}\n", model.one(&["first", "last", "at 1"]));
                    added.push(id);
                }
            }
            due.push((at, text));
        }
        let run = |settings: &str, device| {
            let made = Transactions::new(due.clone());
            let how = How {
                settings,
                devices: Vec::from_iter(device),
                transactions: Some(made.clone()),
                saves: true,
                ..How::default()
            };
            let (found, outcome, notices) = all_results(chain, &capture, how);
            assert_eq!(notices, Vec::<String>::new());
            assert!(made.answers().iter().all(Result::is_ok), "{:?}", made.answers());
            let is_there = outcome.shares.is_none_or(|shares| shares.device == 3_000);
            assert!(is_there, "{settings}: the device judges all");
            (found, outcome.state)
        };
        // What is saved of flows without a connection differs in the slow forms.
        let ((expected, _), (_, state)) = (run(ORACLE, None), run("", None));
        let admitted = &expected.summary["functions"][1]["admitted"];
        assert!(number(&admitted["packets"]) > 20 && expected.log.lines().count() > 10, "{admitted}");
        let of_devices = devices().into_iter().filter(|_| few);
        let of_devices =
            of_devices.map(|device| (format!("device = \"{}\"", device.description().id), Some(device)));
        let settings = WORKERS.iter().map(|&settings| (settings.to_owned(), None)).chain(of_devices);
        for (settings, device) in settings {
            let (found, found_state) = run(&settings, device);
            assert_eq!(found.summary, expected.summary, "{seed}, {settings}\n{due:#?}");
            assert!(found == expected, "{seed}, {settings}: other records, log or packets\n{due:#?}");
            assert!(found_state == state, "{seed}, {settings}: another state");
        }
        let file: String = due.iter().map(|(at, text)| format!("at {at}\n{text}commit\n")).collect();
        let how = How { settings: ORACLE, changes: Some(&file), saves: true, ..How::default() };
        let (by_file, ..) = results(chain, &capture, how);
        assert_eq!(by_file.summary["dropped"], expected.summary["dropped"], "{seed}\n{file}");
        assert_eq!(by_file.summary["functions"][1]["admitted"], *admitted, "{seed}\n{file}");
        assert_eq!(by_file.records, expected.records, "{seed}\n{file}");
        assert!(by_file.passed == expected.passed, "{seed}\n{file}");
    }
}

/// The first rule that asks for connections gives the list state of its own, where there was none: as if the chain had been read again with the
/// list as it is then. Deleting the last one takes nothing away.
#[test]
fn a_list_begins_to_keep_connections() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let rules =
        "deny udp from any to any port 7\npermit tcp from any to any port 443\npermit icmp from any to any\n";
    let chain = |list: &str| {
        format!("[[chain]]\nnf = \"counter\"\n[[chain]]\nnf = \"acl\"\nrules = {:?}\n", path(list))
    };
    for (name, first, second) in [
        (
            "state",
            "permit any from any to any state established",
            "permit udp from any to any state new out eth0",
        ),
        ("reflect", "reflect any from 0.0.0.0/1 to any", "reflect udp from any to any"),
        ("interface", "permit any from any to any in eth0", "deny tcp from any to any out wg1"),
    ] {
        std::fs::write(path("list"), rules).expect("written");
        std::fs::write(path("later"), format!("{first} id one\n{second} id two\n{rules}")).expect("written");
        for seed in 0..3 {
            let capture = traffic(4_000, 200, seed);
            let due = vec![
                (1_500, format!("add first {first} id one\nadd after one {second} id two\n")),
                (3_000, "delete one\ndelete two\n".to_owned()),
            ];
            let run = |settings: &str, limit, due: &[(u64, String)]| {
                let made = Transactions::new(due.to_vec());
                let how = How {
                    settings,
                    limit,
                    transactions: Some(made.clone()),
                    is_wired: true,
                    saves: true,
                    ..How::default()
                };
                let (found, outcome, notices) = all_results(&chain("list"), &capture, how);
                assert_eq!(notices, Vec::<String>::new(), "{name}");
                assert!(made.answers().iter().all(Result::is_ok), "{:?}", made.answers());
                (found, outcome.state)
            };
            // What is saved of flows without a connection differs in the slow forms.
            let ((expected, _), (_, state)) = (run(ORACLE, None, &due), run("", None, &due));
            let acl = &expected.summary["functions"][1];
            assert_eq!(acl["deleted"]["rules"], 2, "{acl}");
            let decided =
                hits(acl, |hit| number(&hit["rule"])).values().map(|[packets, _]| packets).sum::<u64>()
                    + number(&acl["default_packets"])
                    + number(&acl["deleted"]["packets"])
                    + acl["admitted"]["packets"].as_u64().unwrap_or(0)
                    + acl["admitted"]["related"].as_u64().unwrap_or(0);
            assert_eq!(Some(decided), expected.summary["received"].as_u64(), "{acl}");
            for settings in WORKERS {
                let (found, found_state) = run(settings, None, &due);
                assert_eq!(found.summary, expected.summary, "{name}, {settings}");
                assert!(found == expected, "{name}, {settings}: other packets passed");
                assert_eq!(found_state, state, "{name}, {settings}");
            }
            // As long as the rules are there, a reload does the same.
            let reloads = vec![(1_500, chain("later"))];
            let how = How { settings: ORACLE, limit: Some(3_000), reloads, is_wired: true, ..How::default() };
            let (reloaded, ..) = results(&chain("list"), &capture, how);
            let (changed, _) = run("workers = 2", Some(3_000), &due[..1]);
            assert!(changed.passed == reloaded.passed, "{name}");
            assert_eq!(changed.summary["dropped"], reloaded.summary["dropped"]);
            assert_eq!(without_changes(&changed)["functions"][0], reloaded.summary["functions"][0]);
        }
    }
}

/// What rules with `reflect` or `state` had counted is told after a reload of a file without such rules, too.
#[test]
fn what_was_admitted_is_counted_after_a_reload_without_reflect() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = folder.path().join("list");
    std::fs::write(&list, "permit tcp from any to any port 443\npermit icmp from any to any\n")
        .expect("written");
    let chain = format!("[[chain]]\nnf = \"acl\"\nrules = {list:?}\n");
    let capture = traffic(4_000, 200, 1);
    for (rule, key) in [
        ("reflect any from 0.0.0.0/1 to any", "admitted"),
        ("permit any from any to any state new", "tracked"),
    ] {
        for settings in [ORACLE, "", "workers = 3"] {
            let due = vec![(1_000, format!("add first {rule} id one\n"))];
            let transactions = Some(Transactions::new(due));
            let reloads = vec![(3_000, chain.clone())];
            let how = How { settings, transactions, reloads, ..How::default() };
            let (found, ..) = results(&chain, &capture, how);
            let acl = &found.summary["functions"][0];
            assert!(acl[key].is_object(), "{settings}: {acl}");
            assert_eq!(found.summary["reloads"]["done"], 1);
            let decided =
                hits(acl, |hit| number(&hit["rule"])).values().map(|[packets, _]| packets).sum::<u64>()
                    + number(&acl["default_packets"])
                    + number(&acl["deleted"]["packets"])
                    + acl["admitted"]["packets"].as_u64().unwrap_or(0)
                    + acl["admitted"]["related"].as_u64().unwrap_or(0);
            assert_eq!(Some(decided), found.summary["received"].as_u64(), "{settings}: {acl}");
        }
    }
}

/// What cannot be made changes nothing, and what it says names the statement.
#[test]
fn what_is_refused_changes_nothing() {
    let acl = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
    let stateful = "[[chain]]\nnf = \"acl\"\nrules = \"stateful\"\n";
    let reflecting = "[[chain]]\nnf = \"acl\"\nrules = \"reflecting\"\n";
    let capture = traffic(500, 50, 3);
    let known = "expected the id of a rule of the list, or @N for the one with number N";
    let of_both = "the list would have both \"reflect\" and \"state\", or had the other one since it was loaded; expected one of both";
    for (chain, statements, why) in [
        (acl, "delete ssh\n\n delete telnet # not there", format!("line 3, \"delete telnet # not there\": no rule telnet; {known}")),
        (acl, "add first deny any from any to any\ndelete @8", format!("line 2, \"delete @8\": no rule @8; {known}")),
        (acl, "delete @0\nreplace ssh permit any from any to any", format!("line 2, \"replace ssh permit any from any to any\": no rule ssh; {known}")),
        (
            acl,
            "add deny any from any to any id ssh",
            "line 1, \"add deny any from any to any id ssh\": a rule has the id ssh already; expected one that is new".into(),
        ),
        (
            acl,
            "add at 8 deny any from any to any",
            "line 1, \"add at 8 deny any from any to any\": place 8; expected one from 0 to 7, the number of rules".into(),
        ),
        (acl, "# nothing\n", "no changes; expected lines with add, delete or replace".into()),
        (acl, "delete ssh\ncommit", "line 2, \"commit\": \"commit\"; expected add, delete or replace: all lines are one transaction".into()),
        (stateful, "delete out\nadd reflect any from any to any", format!("line 2, \"add reflect any from any to any\": {of_both}")),
        (reflecting, "add permit any from any to any state new", format!("line 1, \"add permit any from any to any state new\": {of_both}")),
        (
            acl,
            "add reflect any from any to any\nadd permit any from any to any state new",
            format!("line 1, \"add reflect any from any to any\": {of_both}"),
        ),
        (
            "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"acl\"\nrules = \"more\"\n",
            "delete @0",
            "the chain has several acls; expected a function, one of: 0, 1".into(),
        ),
        ("[[chain]]\nnf = \"counter\"\n", "delete @0", "the chain has no acl, whose rules would change".into()),
    ] {
        let plain = |settings| results(chain, &capture, How { settings, ..How::default() }).0;
        for settings in ["", "workers = 2", ORACLE] {
            let made = Transactions::new(vec![(200, statements.into()), (300, statements.into())]);
            let how = How { settings, transactions: Some(made.clone()), ..How::default() };
            let (found, _, notices) = results(chain, &capture, how);
            assert_eq!(made.answers(), [Err(why.clone()), Err(why.clone())]);
            assert_eq!(notices, Vec::<String>::new());
            assert_eq!(found, plain(settings));
        }
    }
    // One with a file of changes has them from there.
    let made = Transactions::new(vec![(200, "delete @0".into())]);
    let changes = "at 100\ndelete ssh\ncommit\n";
    let how = How { changes: Some(changes), transactions: Some(made.clone()), ..How::default() };
    let (found, ..) = results(acl, &capture, how);
    let why = made.answers()[0].clone().unwrap_err();
    assert!(
        why.starts_with("its rules change as ") && why.ends_with("; expected an acl without --rules-changes"),
        "{why}"
    );
    assert_eq!(found, results(acl, &capture, How { changes: Some(changes), ..How::default() }).0);
    let long = format!("delete {}", "x".repeat(1_000));
    assert!(RuleChange::parse(None, &format!("{long} y")).unwrap_err().len() < 200);
}

/// A chain that is read again has the rules of its file; those that were there all the time go on to be counted, and no report is left behind.
#[test]
fn a_reload_has_the_rules_of_the_file() {
    let acl = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nlog = \"log\"\n[[chain]]\nnf = \"counter\"\n";
    let capture = traffic(6_000, 300, 5);
    let due = vec![
        (1_000, "delete ssh\nadd first deny any from 0.0.0.0/2 to any id quarter log".to_owned()),
        (2_000, "delete @3\nreplace quarter deny any from 0.0.0.0/3 to any".to_owned()),
        (4_000, "delete @7".to_owned()),
        (4_000, "add last deny any from any to any id all\ndelete @5".to_owned()),
    ];
    let made = || Transactions::new(due.clone());
    let reloads: Vec<_> = [3_000, 5_000].map(|at| (at, acl.to_owned())).into();
    let run = |settings| {
        let made = made();
        let how =
            How { settings, transactions: Some(made.clone()), reloads: reloads.clone(), ..How::default() };
        let (found, _, notices) = results(acl, &capture, how);
        assert_eq!(notices, Vec::<String>::new());
        let answers = made.answers();
        assert!(answers[0].is_ok() && answers[1].is_ok() && answers[3].is_ok(), "{answers:?}");
        // Its rule went with the reload.
        assert!(answers[2].as_ref().is_err_and(|why| why.contains("no rule @7")), "{answers:?}");
        found
    };
    let expected = run(ORACLE);
    assert_eq!(expected.summary["replaced"], serde_json::json!([]));
    let list = &expected.summary["functions"][0];
    assert_eq!((&list["rules"], &list["deleted"]["rules"]), (&7.into(), &6.into()));
    for settings in WORKERS {
        assert_eq!(run(settings), expected, "{settings}");
    }
    // Those that were never away counted all of their packets: the first transaction alone comes before some of them.
    let changed = hits(list, |hit| number(&hit["number"]));
    let plain = results(acl, &capture, How { settings: ORACLE, ..How::default() }).0;
    let of_plain = hits(&plain.summary["functions"][0], |hit| number(&hit["number"]));
    assert!(changed[&1][0] > of_plain[&1][0] / 3, "{changed:?} {of_plain:?}");
    assert!(number(&list["deleted"]["packets"]) > 0);
}

/// Packets of one flow, as many as are wanted, all the time. After some, the chain is to be loaded anew; they end some after that is done.
struct Steady {
    control: Arc<Control>,
    counts: Arc<Counts>,
    arena: Arena,
    frame: FrameRef,
    has_asked: bool,
}

/// Packets that were read; and those that were when the chain had been loaded anew, or none.
#[derive(Default)]
struct Counts {
    read: AtomicU64,
    reloaded_at: AtomicU64,
}

impl Source for Steady {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, packetloom_io::Error> {
        batch.reset(self.arena.clone());
        let read = self.counts.read.load(Ordering::Relaxed);
        let reloaded_at = self.counts.reloaded_at.load(Ordering::Relaxed);
        if read >= 1_000 && !self.has_asked {
            self.has_asked = true;
            let counts = Arc::clone(&self.counts);
            self.control.ask(Request::Reload(Box::new(move |answer| {
                answer.expect("loaded");
                counts.reloaded_at.store(counts.read.load(Ordering::Relaxed), Ordering::Relaxed);
            })));
        }
        if reloaded_at > 0 && read >= reloaded_at + 1_000 {
            return Ok(Polled::End);
        }
        let packets = batch.capacity().min(16) as u64;
        for packet in read..read + packets {
            batch.push(FrameRef { time: Timestamp::from_nanos(packet * 1_000), ..self.frame });
        }
        self.counts.read.store(read + packets, Ordering::Relaxed);
        Ok(Polled::Frames)
    }

    fn wait(&mut self, _: Duration) -> Result<(), packetloom_io::Error> {
        Ok(())
    }

    fn is_live(&self) -> bool {
        true
    }

    /// Time goes on without packets, as of interfaces: these do not wait while a chain is loaded.
    fn now(&self) -> Option<Timestamp> {
        Some(Timestamp::from_nanos(self.counts.read.load(Ordering::Relaxed) * 1_000))
    }
}

/// While a large list is made ready, packets are judged by the one before, and none is lost.
#[test]
fn packets_go_on_while_a_large_list_is_loaded() {
    let bits = KeyBits::WHOLE.with(KeyBits::PORTS).with(KeyBits::TCP_FLAGS);
    let key = MatchKey4 { protocol: 6, destination_port: 443, bits, ..MatchKey4::default() };
    let capture = capture([(0, Key::V4(key))]);
    let packet = &capture[24 + 16..];
    let frame = FrameRef {
        offset: 0,
        time: Timestamp::default(),
        len: packet.len() as u32,
        wire_len: packet.len() as u32,
        link: LinkType::ETHERNET,
        port: 0,
    };
    let large: String = (0..20_000)
        .map(|n| format!("permit udp from 172.{}.{}.0/24 to any port {n}\n", 16 + n % 16, n / 16 % 256))
        .collect();
    let devices = host().into_iter().map(Some);
    for (workers, device) in [(1, None), (3, None)].into_iter().chain(devices.map(|device| (1, device))) {
        let folder = tempfile::tempdir().expect("a folder");
        let plan_of = |rules: &str| {
            let text = format!(
                "[[chain]]\nnf = \"acl\"\nrules = \"list\"\ndefault = \"deny\"\n[run]\nworkers = {workers}\n{}",
                if device.is_some() { "device = \"host\"\n" } else { "" }
            );
            std::fs::write(folder.path().join("list"), rules).expect("written");
            let context = Context { folder: folder.path(), ignore_flags: false };
            Plan::new(Chain::parse("chain", &text, context).expect("a good chain"))
        };
        let plan = plan_of("permit tcp from any to any port 443\n");
        let (counts, control) = (Arc::new(Counts::default()), Arc::new(Control::default()));
        let after = Mutex::new(Some(plan_of(&large)));
        let read = Arc::clone(&counts);
        let load = move |_: Option<usize>| {
            // It takes as long as many packets take to come and go.
            let (from, begun) = (read.read.load(Ordering::Relaxed), Instant::now());
            while read.read.load(Ordering::Relaxed) < from + 5_000 {
                if begun.elapsed() > Duration::from_secs(60) {
                    return Err("packets waited".into());
                }
                std::thread::yield_now();
            }
            Ok(after.lock().expect("no panic").take().expect("asked for once"))
        };
        let source = Steady {
            control: control.clone(),
            counts: counts.clone(),
            arena: Arc::new(packet.to_vec()),
            frame,
            has_asked: false,
        };
        let io = Io {
            source: Box::new(source),
            outputs: &mut Outputs { records: vec![None], ..Outputs::default() },
            limit: None,
            stop: Stop::default(),
            life: LifecycleOptions { load: Some(Box::new(load)), control, ..LifecycleOptions::default() },
            progress: &mut |_, _| {},
            notice: &mut |text| panic!("{text}"),
            devices: device.into_iter().collect(),
        };
        let summary = packetloom_engine::run(&plan, io).expect("a run").json();
        let read = counts.read.load(Ordering::Relaxed);
        let reloaded_at = counts.reloaded_at.load(Ordering::Relaxed);
        assert!(reloaded_at >= 6_000, "{workers} workers: {reloaded_at}");
        assert_eq!(summary["reloads"]["done"], 1);
        assert_eq!(summary["received"], read);
        assert_eq!(summary["passed"], reloaded_at, "{workers} workers: the old list until then");
        assert_eq!(summary["dropped"]["acl_default"], read - reloaded_at, "and the new one from then on");
    }
}
