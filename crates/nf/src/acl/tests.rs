//! The batch form against the oracle; defaults, actions and counters.

use std::borrow::Cow;
use std::net::IpAddr;

use packetloom_classify::formats::changes::read_transaction;
use packetloom_classify::formats::{Options, Reading, read_rules};
use packetloom_classify::{Kind, NO_RULE};
use packetloom_packet::batch::Policy;
use packetloom_packet::{Batch, DropReason, LinkType, PacketRecord, Verdict};
use proptest::prelude::*;
use serde_json::json;

use super::{Acl, Config};
use crate::batch::{Captured, fill};
use crate::frames::{Fragment, Packet, Transport, ethernet};
use crate::registry::Registration;
use crate::{Context, Error, Function, FunctionSpec, Logged, Oracle, Standalone};

fn rules(text: &str) -> Reading {
    read_rules("f", &mut text.as_bytes(), &Options::default()).expect("good rules")
}

/// An ACL of these rules; `keys` are those of the chain file beside the rule file's name.
fn acl(text: &str, keys: &str) -> Acl {
    let config: Config = toml::from_str(&format!("rules = \"f\"\n{keys}")).expect("good keys");
    config.with_rules(rules(text), "f".into()).expect("rules with actions")
}

/// Verdicts on the packets of a batch: those of `policy`, then of the ACL. Packets in `dropped` do not get that far.
fn by_batches(
    function: &mut dyn Function,
    frames: &[Captured],
    size: usize,
    policy: Policy,
    dropped: &[bool],
) -> Vec<Verdict> {
    judge_batches(function, frames, size, policy, dropped).0.into_iter().map(|(verdict, _)| verdict).collect()
}

/// A packet that is logged: its number, the rule that asks for it, and what is said of it.
type ToLog = (u64, u32, PacketRecord);

/// A verdict, and the packet's mark.
type Judged = (Verdict, u32);

/// Verdicts as [`by_batches`] gives them, with marks, and the packets to be logged.
fn judge_batches(
    function: &mut dyn Function,
    frames: &[Captured],
    size: usize,
    policy: Policy,
    dropped: &[bool],
) -> (Vec<Judged>, Vec<ToLog>) {
    let mut batch = Batch::new(size);
    let (mut verdicts, mut logged, mut to_log) = (Vec::new(), Vec::new(), Vec::new());
    for (frames, dropped) in frames.chunks(size).zip(dropped.chunks(size)) {
        fill(&mut batch, frames);
        batch.parse(policy);
        let (judged, _, _) = batch.judge();
        judged
            .iter_mut()
            .zip(dropped)
            .filter(|(_, dropped)| **dropped)
            .for_each(|(verdict, _)| *verdict = EARLIER);
        function.process(&mut batch);
        function.logged(&mut logged);
        to_log.extend(logged.drain(..).map(|Logged { frame, rule, .. }| {
            let record = PacketRecord::of(&batch, frame as usize).expect("packets with keys are logged");
            (verdicts.len() as u64 + u64::from(frame), rule, record)
        }));
        verdicts.extend(
            batch.verdicts().iter().enumerate().map(|(frame, &verdict)| (verdict, batch.mark(frame))),
        );
    }
    (verdicts, to_log)
}

/// The verdict of a function that stands before the ACL.
const EARLIER: Verdict = Verdict::Drop(DropReason::Malformed);

fn one_by_one(
    oracle: &mut dyn Oracle,
    frames: &[Captured],
    policy: Policy,
    dropped: &[bool],
) -> (Vec<Judged>, Vec<ToLog>) {
    let mut to_log = Vec::new();
    let judge = |(number, (frame, &dropped)): (usize, (&Captured, &bool))| {
        let mut packet = frame.for_oracle();
        let verdict = match packet.ip {
            _ if dropped => EARLIER,
            Ok(_) => Verdict::Pass,
            Err(reject) => policy.verdict(reject),
        };
        if !verdict.is_pass() {
            return (verdict, 0);
        }
        let verdict = oracle.step(&mut packet);
        for &rule in oracle.logged() {
            to_log.push((number as u64, rule, packet.record().expect("packets with headers are logged")));
        }
        (verdict, packet.mark)
    };
    (frames.iter().zip(dropped).enumerate().map(judge).collect(), to_log)
}

/// Verdicts of frames that all get to the ACL.
fn verdicts(acl: &Acl, frames: &[Captured]) -> Vec<Verdict> {
    let none = vec![false; frames.len()];
    by_batches(&mut *acl.function(), frames, frames.len().max(1), Policy::PASS, &none)
}

const NATIVE: &[&str] = &[
    "deny any from any to any",
    "permit any from any to any",
    "permit tcp from any to any",
    "deny udp from any to any",
    "permit icmp from any to any",
    "deny icmpv6 from any to any",
    "deny gre from any to any",
    "permit any from 10.0.0.0/8 to any",
    "deny any from 10.0.0.1 to any",
    "permit any from any to 10.0.0.2/31",
    "deny any from 0.0.0.0/0 to 128.0.0.0/1",
    "permit any from ::/0 to any",
    "deny any from 2001:db8::/32 to 2001:db8::2",
    "permit any from any to 2001:db8::/127",
    "deny tcp from any to any port 80",
    "permit tcp from any port 1024-65535 to any port 0-1023",
    "permit any from any port 53 to any",
    "deny any from any to any port 0",
    "deny udp from 10.0.0.0/24 port 53 to any",
    "permit sctp from any to any port 443",
    "permit icmp from any to any type 8",
    "deny icmp from any to any type 3 code 4",
    "permit icmpv6 from any to any type 8 code 0",
    "permit tcp from any to any flags S/SA",
    "deny tcp from any to any flags /FSRPAUEC",
    "permit tcp from any to any flags A/A",
    "deny any from any to any fragment any",
    "permit tcp from any to any fragment none",
    "permit any from any to any fragment first",
    "deny any from 10.0.0.0/30 to any fragment later",
    "permit udp from any to any port 53 fragment first",
    "deny udp from any to 10.0.0.0/30 fragment not-later",
];

const CLASSBENCH: &[&str] = &[
    "@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00",
    "@0.0.0.0/0 10.0.0.2/31 0 : 65535 0 : 65535 0x06/0xff",
    "@10.0.0.1/32 0.0.0.0/0 0 : 65535 53 : 53 0x11/0xff",
    "@0.0.0.0/0 0.0.0.0/0 1024 : 65535 0 : 1023 0x00/0x00",
    "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x06/0xff 0x0200/0x1200",
    "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x01/0xff 0x0800/0xff00",
    "@0.0.0.0/0 0.0.0.0/0 0 : 65535 80 : 80 0x01/0xff",
    "@0.0.0.0/0 128.0.0.0/1 0 : 65535 0 : 65535 0x00/0x00",
];

fn packet() -> impl Strategy<Value = Packet> {
    let port = || prop::sample::select(vec![0, 53, 80, 443, 1023, 1024, 65535]);
    let flags = prop::sample::select(vec![0x00, 0x02, 0x12, 0x10, 0x04, 0xff]);
    let icmp = (prop::sample::select(vec![8, 3, 0]), prop::sample::select(vec![0, 4]));
    let transport = prop_oneof![
        3 => (port(), port(), flags).prop_map(|(source, destination, flags)| Transport::Tcp(source, destination, flags)),
        2 => (port(), port()).prop_map(|(source, destination)| Transport::Udp(source, destination)),
        1 => (port(), port()).prop_map(|(source, destination)| Transport::Sctp(source, destination)),
        1 => icmp.clone().prop_map(|(kind, code)| Transport::Icmp(kind, code)),
        1 => icmp.prop_map(|(kind, code)| Transport::Icmpv6(kind, code)),
        1 => prop::sample::select(vec![47, 50]).prop_map(Transport::Other),
    ];
    let addresses = |all: &[&str]| {
        let all: Vec<IpAddr> = all.iter().map(|text| text.parse().unwrap()).collect();
        [prop::sample::select(all.clone()), prop::sample::select(all)]
    };
    let addresses = prop_oneof![
        addresses(&[
            "10.0.0.1",
            "10.0.0.2",
            "10.0.0.4",
            "10.1.0.0",
            "192.0.2.1",
            "0.0.0.0",
            "255.255.255.255"
        ]),
        addresses(&["2001:db8::1", "2001:db8::2", "2001:db9::", "::a00:1"]),
    ];
    let fragment = prop_oneof![
        4 => Just(Fragment::Whole),
        1 => Just(Fragment::First),
        1 => any::<bool>().prop_map(|more| Fragment::Later(9, more)),
    ];
    (addresses, transport, fragment).prop_map(|([source, destination], transport, fragment)| Packet {
        fragment,
        payload: 4,
        ..Packet::new(source, destination, transport)
    })
}

/// Mostly packets; some frames that are none, and some that are cut.
fn captured() -> impl Strategy<Value = Captured> {
    let whole = packet().prop_map(|packet| Captured::new(0, &packet));
    let cut = (packet(), 0..60usize).prop_map(|(packet, len)| {
        let mut frame = Captured::new(0, &packet);
        frame.bytes.truncate(len);
        frame
    });
    let arp = Just(Captured { nanos: 0, link: LinkType::ETHERNET, bytes: ethernet(0x0806, &[0; 28]) });
    let unknown = packet().prop_map(|packet| Captured { link: LinkType(147), ..Captured::new(0, &packet) });
    prop_oneof![12 => whole, 2 => cut, 1 => arp, 1 => unknown]
}

fn policy() -> impl Strategy<Value = Policy> {
    any::<[bool; 3]>().prop_map(|[pass_non_ip, pass_unknown_framing, pass_malformed]| Policy {
        pass_non_ip,
        pass_unknown_framing,
        pass_malformed,
    })
}

/// Frames, and which of them an earlier function dropped.
fn traffic() -> impl Strategy<Value = (Vec<Captured>, Vec<bool>)> {
    let one = (captured(), prop::bool::weighted(0.1));
    prop::collection::vec(one, 0..150).prop_map(|both| both.into_iter().unzip())
}

fn text(lines: &'static [&str]) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(lines), 0..20).prop_map(|lines| lines.join("\n"))
}

/// Rules of which some log, and some mark.
fn text_with_log() -> impl Strategy<Value = String> {
    let rule = (prop::sample::select(NATIVE), any::<bool>(), 0..4u32);
    let line = rule.prop_map(|(rule, log, mark)| {
        let mark = if mark > 1 { format!(" mark {mark}") } else { String::new() };
        format!("{rule}{mark}{}\n", if log { " log" } else { "" })
    });
    prop::collection::vec(line, 0..20).prop_map(|lines| lines.concat())
}

/// Keys for what is counted and logged.
fn keys() -> impl Strategy<Value = String> {
    any::<(bool, bool)>().prop_map(|(counters, log)| {
        format!("counters = {counters}\n{}", if log { "log = \"l\"\n" } else { "" })
    })
}

fn action() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["permit", "deny"])
}

/// Holds the batch form to the oracle: verdicts, reports, and reports of two workers taken together.
fn check(acl: &Acl, (frames, dropped): &(Vec<Captured>, Vec<bool>), size: usize, policy: Policy) {
    let mut oracle = acl.oracle();
    let mut expected = one_by_one(&mut *oracle, frames, policy, dropped);
    if acl.log().is_none() {
        // Nobody is going to write it.
        expected.1.clear();
    }

    let mut function = acl.function();
    assert_eq!(judge_batches(&mut *function, frames, size, policy, dropped), expected);
    assert_eq!(function.report().json(), oracle.report().json());
    assert_eq!(function.report().rows(), oracle.report().rows());

    let half = frames.len() / 2;
    let mut workers = [acl.function(), acl.function()];
    for (worker, range) in workers.iter_mut().zip([0..half, half..frames.len()]) {
        by_batches(&mut **worker, &frames[range.clone()], size, policy, &dropped[range]);
    }
    let mut merged = workers[0].report();
    merged.merge(&*workers[1].report());
    assert_eq!(merged.json(), oracle.report().json());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn batches_are_judged_as_the_oracle_judges_packets(
        text in text_with_log(),
        keys in keys(),
        default in action(),
        classifier in prop::sample::select(Kind::ALL.map(Kind::name).to_vec()),
        traffic in traffic(),
        size in 1..100usize,
        policy in policy(),
    ) {
        let acl = acl(&text, &format!("{keys}default = {default:?}\nclassifier = {classifier:?}"));
        check(&acl, &traffic, size, policy);
    }

    #[test]
    fn classbench_rules_take_their_action_from_the_chain(
        text in text(CLASSBENCH),
        default in action(),
        rule_action in action(),
        traffic in traffic(),
        size in 1..100usize,
        policy in policy(),
    ) {
        let acl = acl(&text, &format!("default = {default:?}\nrule_action = {rule_action:?}"));
        check(&acl, &traffic, size, policy);
    }
}

fn v4(transport: Transport) -> Captured {
    Captured::new(0, &Packet::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), transport))
}

fn v6(transport: Transport) -> Captured {
    Captured::new(
        0,
        &Packet::new(std::net::Ipv6Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into(), transport),
    )
}

const BY_RULE: Verdict = Verdict::Drop(DropReason::AclRule);
const BY_DEFAULT: Verdict = Verdict::Drop(DropReason::AclDefault);

#[test]
fn what_no_rule_matches_gets_the_default() {
    let frames = [v4(Transport::Udp(1, 53)), v4(Transport::Tcp(1, 80, 2)), v6(Transport::Tcp(1, 22, 2))];
    let text = "permit udp from any to any port 53\ndeny tcp from any to any port 80";
    for (keys, default) in
        [("", BY_DEFAULT), ("default = \"deny\"", BY_DEFAULT), ("default = \"permit\"", Verdict::Pass)]
    {
        assert_eq!(verdicts(&acl(text, keys), &frames), [Verdict::Pass, BY_RULE, default], "{keys}");
        assert_eq!(verdicts(&acl("", keys), &frames), [default; 3], "{keys}, no rules");
    }
}

#[test]
fn a_rule_without_an_action_needs_one_from_the_chain() {
    let filter = "@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x06/0xff";
    let frames = [v4(Transport::Tcp(1, 80, 2)), v4(Transport::Udp(1, 80))];
    for (keys, expected) in [
        ("rule_action = \"permit\"", [Verdict::Pass, BY_DEFAULT]),
        ("rule_action = \"deny\"", [BY_RULE, BY_DEFAULT]),
        ("rule_action = \"deny\"\ndefault = \"permit\"", [BY_RULE, Verdict::Pass]),
    ] {
        assert_eq!(verdicts(&acl(filter, keys), &frames), expected, "{keys}");
    }
    // The rules' own actions stay.
    let own = acl("permit tcp from any to any\ndeny any from any to any", "rule_action = \"deny\"");
    assert_eq!(verdicts(&own, &frames), [Verdict::Pass, BY_RULE]);

    let config: Config = toml::from_str("rules = \"f\"").expect("good keys");
    let error = config.with_rules(rules(&format!("\n# filters\n{filter}")), "some/f".into()).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)));
    assert_eq!(
        error.to_string(),
        "some/f:3: the rule has no action; expected rule_action = \"permit\" or \"deny\" in the chain file"
    );
}

#[test]
fn frames_without_a_key_and_packets_dropped_before_are_not_counted() {
    let mut cut = v4(Transport::Tcp(1, 80, 2));
    cut.bytes.truncate(30);
    let arp = Captured { nanos: 0, link: LinkType::ETHERNET, bytes: ethernet(0x0806, &[0; 28]) };
    let frames = [v4(Transport::Tcp(1, 80, 2)), cut, arp, v6(Transport::Udp(1, 2)), v4(Transport::Udp(1, 2))];
    let dropped = [true, false, false, true, false];
    let acl = acl("permit tcp from any to any", "");
    let mut function = acl.function();
    let found = by_batches(&mut *function, &frames, 5, Policy::PASS, &dropped);
    // What has no key passes here: the policy judged it.
    assert_eq!(found, [EARLIER, Verdict::Pass, Verdict::Pass, EARLIER, BY_DEFAULT]);
    assert_eq!(
        function.report().json(),
        json!({ "rules": 1, "rules_hit": 0, "default_packets": 1, "default_bytes": 28, "hits": [], "rules_not_hit": 1,
            "not_hit": [{ "rule": 0, "number": 0, "line": 1, "id": null, "text": "permit tcp from any to any" }],
        })
    );
    let strict = Policy { pass_non_ip: false, pass_unknown_framing: false, pass_malformed: false };
    let found = by_batches(&mut *function, &frames, 5, strict, &[false; 5]);
    let [malformed, non_ip] = [DropReason::Malformed, DropReason::NonIp].map(Verdict::Drop);
    assert_eq!(found, [Verdict::Pass, malformed, non_ip, BY_DEFAULT, BY_DEFAULT]);
}

#[test]
fn reports_name_the_rules_that_decided() {
    let lines = "# rules\npermit tcp from any to any port 80 id web # the web\n\ndeny udp from any to any\ndeny esp from any to any\n";
    let frames = [80, 80, 22].map(|port| v4(Transport::Tcp(1, port, 2)));
    let udp = [v4(Transport::Udp(1, 2)), v6(Transport::Udp(1, 2)), v6(Transport::Udp(3, 4))];
    let acl = acl(lines, "");
    let mut function = acl.function();
    let frames = [frames, udp].concat();
    by_batches(&mut *function, &frames, 4, Policy::PASS, &[false; 6]);
    let report = function.report();
    assert_eq!(
        report.json(),
        json!({
            "rules": 3,
            "rules_hit": 2,
            "default_packets": 1,
            "default_bytes": 40,
            "hits": [
                {
                    "rule": 0,
                    "number": 0,
                    "line": 2,
                    "id": "web",
                    "comment": "the web",
                    "text": "permit tcp from any to any port 80 id web # the web",
                    "packets": 2,
                    "bytes": 80,
                },
                {
                    "rule": 1,
                    "number": 1,
                    "line": 4,
                    "id": null,
                    "comment": null,
                    "text": "deny udp from any to any",
                    "packets": 3,
                    "bytes": 28 + 2 * 48,
                },
            ],
            "rules_not_hit": 1,
            "not_hit": [{ "rule": 2, "number": 2, "line": 5, "id": null, "text": "deny esp from any to any" }],
        })
    );
    let rows = [
        ("rules hit", "2 of 3"),
        ("default (deny)", "1 packets, 40 bytes"),
        ("line 4: deny udp from any to any", "3 packets, 124 bytes"),
        ("line 2: permit tcp from any to any port 80 id web # the web", "2 packets, 80 bytes"),
        ("rules not hit", "1 of 3"),
        ("rule 2, line 5: deny esp from any to any", "no packets"),
    ];
    assert_eq!(report.rows(), rows.map(|(name, value)| (name.to_owned(), value.to_owned())));

    // Without counters, the default's packets alone.
    let uncounted = self::acl(lines, "counters = false");
    let mut function = uncounted.function();
    by_batches(&mut *function, &frames, 4, Policy::PASS, &[false; 6]);
    assert_eq!(function.report().json(), json!({ "rules": 3, "default_packets": 1 }));
    assert_eq!(function.report().rows(), [("default (deny)".to_owned(), "1 packets".to_owned())]);
}

#[test]
fn only_the_busiest_rules_are_shown_to_people() {
    let text: String = (1..=13).map(|port| format!("permit udp from any to any port {port}\n")).collect();
    // One packet for the first rule and one more for each that follows.
    let frames: Vec<_> = (1..=13).flat_map(|port| vec![v4(Transport::Udp(9, port)); port.into()]).collect();
    let acl = acl(&text, "default = \"permit\"");
    let mut function = acl.function();
    by_batches(&mut *function, &frames, 10, Policy::PASS, &vec![false; frames.len()]);
    let rows = function.report().rows();
    assert_eq!(rows.len(), 2 + 10 + 1);
    assert_eq!(rows[1], ("default (permit)".into(), "0 packets, 0 bytes".into()));
    assert_eq!(
        rows[2],
        ("line 13: permit udp from any to any port 13".into(), "13 packets, 364 bytes".into())
    );
    assert_eq!(rows[11], ("line 4: permit udp from any to any port 4".into(), "4 packets, 112 bytes".into()));
    assert_eq!(rows[12], ("3 more rules".into(), "6 packets, 168 bytes".into()));
    assert_eq!(function.report().json()["hits"].as_array().map(Vec::len), Some(13));
}

/// Prepares `acl` from keys of a chain file in a folder.
fn prepare(
    keys: &str,
    folder: &std::path::Path,
    ignore_flags: bool,
) -> Result<Box<dyn FunctionSpec>, String> {
    let keys = toml::de::ValueDeserializer::parse(keys).expect("good TOML");
    let function = Registration::by_name("acl").expect("a function that is registered");
    let prepare = (function.parse)(keys).map_err(|error| error.message().to_owned())?;
    prepare(&Context { folder, ignore_flags }).map_err(|error| error.to_string())
}

#[test]
fn rules_are_read_from_the_chain_files_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a file");
    write("own.rules", "permit tcp from any to any\n");
    write("classbench.rules", "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x11/0xff 0x0200/0x0200\n");
    write("bad.rules", "\nallow everything\n");
    let name = |file: &str| folder.path().join(file).display().to_string();

    let acl = prepare("{ rules = \"own.rules\", classifier = \"linear\" }", folder.path(), false).unwrap();
    assert_eq!((acl.name(), acl.records_path()), ("acl", None));
    let lines = [
        format!("1 rules of {}, first match wins", name("own.rules")),
        "default deny, classifier linear".into(),
    ];
    assert_eq!(acl.describe(), lines);

    // The flags column can be left out by the chain file and from outside.
    let keys = "{ rules = \"classbench.rules\", rule_action = \"deny\" }";
    let flags = "{ rules = \"classbench.rules\", rule_action = \"deny\", ignore_flags = true }";
    assert!(prepare(keys, folder.path(), false).err().unwrap().contains("flags 0x0200/0x0200; expected"));
    assert!(prepare(keys, folder.path(), true).is_ok());
    assert!(prepare(flags, folder.path(), false).is_ok());

    for (keys, message) in [
        (
            "{ rules = \"bad.rules\" }",
            format!("{}:2: \"allow\"; expected permit, deny or reflect", name("bad.rules")),
        ),
        (
            "{ rules = \"none.rules\" }",
            format!("{}: No such file or directory; expected a rule file", name("none.rules")),
        ),
        ("{}", "missing field `rules`".into()),
        (
            "{ rules = \"own.rules\", default = \"reject\" }",
            "unknown variant `reject`, expected `permit` or `deny`".into(),
        ),
        (
            "{ rules = \"own.rules\", counters = \"packets\" }",
            "invalid type: string \"packets\", expected a boolean".into(),
        ),
        (
            "{ rules = \"own.rules\", log_rate = \"5/week\" }",
            "\"5/week\"; expected a rate of 1 or more such as \"100/s\" or \"10/minute\", or \"unlimited\""
                .into(),
        ),
        ("{ rules = \"own.rules\", log_burst = 0 }", "0; expected a number from 1 to 1000000".into()),
        (
            "{ rules = \"own.rules\", classifier = \"tuple_merge\" }",
            "unknown variant `tuple_merge`, expected one of `linear`, `tuple-space`, `tuple-merge`, `hybrid`"
                .into(),
        ),
    ] {
        assert_eq!(prepare(keys, folder.path(), false).err(), Some(message), "{keys}");
    }
    let error = prepare("{ rules = \"own.rules\", format = \"ipfw\" }", folder.path(), false).err().unwrap();
    assert!(error.starts_with("no format \"ipfw\"; expected one of "), "{error}");
    let unknown =
        prepare("{ rules = \"own.rules\", defualt = \"deny\" }", folder.path(), false).err().unwrap();
    assert!(unknown.starts_with("unknown field `defualt`, expected one of `rules`, `format`"), "{unknown}");
}

#[test]
fn rules_of_other_formats_bring_their_default() {
    let folder = tempfile::tempdir().expect("a folder");
    let save = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n-A INPUT -o lo -j DROP\n-A INPUT -p tcp -j DROP\n-A FORWARD -p udp -j ACCEPT\nCOMMIT\n";
    std::fs::write(folder.path().join("save"), save).expect("a file");
    std::fs::write(folder.path().join("own"), "permit tcp from any to any\ndefault permit\n")
        .expect("a file");
    let name = folder.path().join("save").display().to_string();
    let line = |keys: &str| prepare(keys, folder.path(), false).map(|acl| acl.describe().remove(1));
    let says = |action: &str| Ok(format!("default {action}, classifier {}", Kind::default()));
    // The chain file's word, else the rule file's.
    assert_eq!(line("{ rules = \"own\" }"), says("permit"));
    assert_eq!(line("{ rules = \"own\", default = \"deny\" }"), says("deny"));
    assert_eq!(line("{ rules = \"save\", list = \"FORWARD\" }"), says("deny"));
    assert_eq!(line("{ rules = \"save\", list = \"FORWARD\", default = \"permit\" }"), says("permit"));
    assert_eq!(line("{ rules = \"save\", list = \"INPUT\", skip_unsupported = true }"), says("permit"));
    for (keys, message) in [
        (
            "{ rules = \"save\" }",
            format!("{name}: several lists; expected the name of one (--list): INPUT, FORWARD"),
        ),
        (
            "{ rules = \"save\", list = \"INPUT\" }",
            format!("{name}:4: `-o lo` has no equal here (--skip-unsupported leaves it out)"),
        ),
        (
            "{ rules = \"save\", format = \"native\" }",
            // Each line is a mistake of its own.
            format!("{name}: 7 mistakes\n    {name}:1: \"*filter\"; expected permit, deny or reflect"),
        ),
    ] {
        let error = line(keys).expect_err("no list");
        assert_eq!(
            error.lines().take(message.lines().count()).collect::<Vec<_>>().join("\n"),
            message,
            "{keys}"
        );
    }
    // What was left out is not silently left out.
    let acl =
        prepare("{ rules = \"save\", list = \"INPUT\", skip_unsupported = true }", folder.path(), false)
            .unwrap();
    assert_eq!(acl.warnings(), [format!("{name}:4: `-o lo` has no equal here")]);
    assert_eq!(prepare("{ rules = \"own\" }", folder.path(), false).unwrap().warnings(), [""; 0]);
}

const ALL: &str = "permit any from any to any log # everything";

/// Which of packets at these times get a line; with the log's text and its report.
fn log_at(keys: &str, times: &[u64]) -> (Vec<bool>, String, serde_json::Value) {
    let acl = acl(ALL, &format!("log = \"l\"\n{keys}"));
    let mut log = acl.log().expect("a log");
    let mut lines = String::new();
    let mut written = Vec::new();
    for (number, &nanos) in times.iter().enumerate() {
        let packet = Packet::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), Transport::Udp(1, 2));
        let before = lines.len();
        let record = Captured::new(nanos, &packet).for_oracle().record().expect("a packet");
        log.log(&mut lines, 0, number as u64, &record, None);
        written.push(lines.len() > before);
    }
    log.finish(&mut lines);
    let mut report = acl.function().report();
    report.merge(&*log.report());
    (written, lines, report.json()["log"].clone())
}

#[test]
fn a_burst_and_then_the_rate() {
    const SECOND: u64 = 1_000_000_000;
    let times = [0, 0, 0, 0, 499_999_999, 500_000_000, SECOND, SECOND, 10 * SECOND, 10 * SECOND, 10 * SECOND]
        .map(|since| 1_700_000_000 * SECOND + since);
    let times = [&times[..], &[times[10]; 2]].concat();
    let (written, text, counts) = log_at("log_rate = \"2/s\"\nlog_burst = 3", &times);
    let [t, f] = [true, false];
    assert_eq!(written, [t, t, t, f, f, t, t, f, t, t, t, f, f]);
    assert_eq!(counts, json!({ "lines": 8, "suppressed": 5 }));
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    // Every suppressed line is told of once: by the next one that is written, or at the end.
    let told: Vec<_> = lines.iter().map(|line| line["suppressed"].as_u64().unwrap_or(0)).collect();
    assert_eq!(told, [0, 0, 0, 2, 0, 1, 0, 0, 2]);
    assert_eq!(
        lines[3],
        json!({
            "frame": 6, "action": "permit", "rule": 0, "line": 1, "comment": "everything", "suppressed": 2,
            "observationTimeMicroseconds": 1_700_000_000_500_000u64, "ipVersion": 4,
            "sourceIPv4Address": "10.0.0.1", "destinationIPv4Address": "10.0.0.2", "protocolIdentifier": 17,
            "sourceTransportPort": 1, "destinationTransportPort": 2, "ipTotalLength": 28,
        })
    );
    assert_eq!(lines[8], json!({ "suppressed": 2 }));
}

#[test]
fn time_that_stands_still_or_goes_back_gives_no_burst() {
    let keys = "log_rate = \"1/s\"\nlog_burst = 2";
    let written = |seconds: &[u64]| {
        let times: Vec<_> = seconds.iter().map(|s| s * 1_000_000_000).collect();
        log_at(keys, &times).0.iter().map(|&written| u8::from(written)).collect::<Vec<_>>()
    };
    // Captures without times.
    assert_eq!(written(&[0; 5]), [1, 1, 0, 0, 0]);
    // Packets out of order by a second gain nothing.
    assert_eq!(written(&[9, 9, 8, 9, 8, 9, 10, 9, 10]), [1, 1, 0, 0, 0, 0, 1, 0, 0]);
    // A clock that was set back, and one wrong time: no line for the step, and then the rate again.
    assert_eq!(written(&[1_000, 1_000, 10, 11, 11, 12]), [1, 1, 0, 1, 0, 1]);
    assert_eq!(written(&[5, 5, 4_000_000_000, 5, 5, 6, 6]), [1, 1, 1, 1, 0, 1, 0]);
    assert_eq!(log_at("log_rate = \"unlimited\"\nlog_burst = 1", &[u64::MAX, 0, 0, 7]).0, [true; 4]);
}

/// The bucket in another form (GCRA's virtual scheduling): the time when the next line would be due, times the rate's count.
fn expected_lines(count: u64, period: u64, burst: u64, times: &[u64]) -> Vec<bool> {
    let [count, period, burst] = [count, period, burst].map(i128::from);
    let (mut now, mut due) = (0i128, 0i128);
    let each = times.iter().map(|&time| {
        let time = i128::from(time);
        if now - time > 1_000_000_000 {
            due -= (now - time) * count;
            now = time;
        }
        now = now.max(time);
        let conforms = due <= now * count + (burst - 1) * period;
        if conforms {
            due = due.max(now * count) + period;
        }
        conforms
    });
    each.collect()
}

proptest! {
    #[test]
    fn the_log_is_limited_as_another_form_of_the_bucket_says(
        rate in prop::sample::select(vec![("1/s", 1, 1), ("7/s", 7, 1), ("13/min", 13, 60), ("3/hour", 3, 3600), ("4294967295/day", u64::from(u32::MAX), 86_400)]),
        burst in prop_oneof![1..6u64, Just(1_000_000)],
        steps in prop::collection::vec(
            prop_oneof![
                4 => 0..400_000_000i64,
                2 => -1_500_000_000..3_000_000_000i64,
                1 => any::<i64>(),
                1 => Just(0),
            ],
            1..200,
        ),
    ) {
        let (text, count, seconds) = rate;
        let mut time = 1_000_000_000_000u64;
        let times: Vec<_> = steps.into_iter().map(|step| { time = time.saturating_add_signed(step); time }).collect();
        let (written, _, counts) = log_at(&format!("log_rate = {text:?}\nlog_burst = {burst}"), &times);
        prop_assert_eq!(&written, &expected_lines(count, seconds * 1_000_000_000, burst, &times));
        let lines = written.iter().filter(|written| **written).count();
        prop_assert_eq!(counts, json!({ "lines": lines, "suppressed": times.len() - lines }));
    }
}

#[test]
fn what_is_logged_is_said_beforehand() {
    let text = "permit tcp from any to any log\ndeny udp from any to any\ndeny any from any to any log";
    let logged = acl(text, "log = \"some/log\"\nlog_rate = \"3/hour\"");
    assert_eq!(logged.records_path(), Some("some/log".as_ref()));
    assert_eq!(logged.describe()[2], "log of 2 rules to some/log, at most 3/h after a burst of 100");
    assert_eq!(logged.warnings(), [""; 0]);
    let not_logged = acl(text, "counters = false");
    assert_eq!(not_logged.describe()[2..], ["rules are not counted"]);
    assert_eq!(
        not_logged.warnings(),
        ["f: 2 rules with log are not logged; log = \"FILE\" in the chain file does that"]
    );
    assert!(not_logged.log().is_none());
}

/// Each of a run's workers asks; lists are compared once.
#[test]
fn lists_are_compared_once_for_all_workers() {
    let text = "permit tcp from any to any port 1\npermit tcp from any to any port 2\n";
    let old = acl(text, "");
    let changes = read_transaction("add first deny tcp from any to any port 3").expect("a transaction");
    let changes: Vec<_> = changes.into_iter().map(|(_, change)| change).collect();
    let changed = old.changed(&changes).expect("it can be changed");
    let reloaded = acl(text, "");
    for (new, old, expected) in [
        (&changed, &old, &[NO_RULE, 0, 1][..]),
        // A reload after a transaction: what the file has is the same again.
        (&reloaded, &changed, &[1, 2]),
    ] {
        let asked = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| new.list.positions_in(&old.list))).collect();
            workers.into_iter().map(|worker| worker.join().expect("positions")).collect::<Vec<_>>()
        });
        for positions in &asked {
            assert_eq!(&positions[..], expected);
            assert!(matches!(positions, Cow::Borrowed(_)), "not compared again");
        }
    }
    // From another list it is compared anew.
    let other = acl("permit tcp from any to any port 2\npermit tcp from any to any port 2\n", "");
    assert_eq!(&reloaded.list.positions_in(&other.list)[..], [NO_RULE, 1]);
}
