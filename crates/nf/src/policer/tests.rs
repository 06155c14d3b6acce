//! Keys of the chain file, and colours by hand.

use std::any::Any;
use std::net::IpAddr;
use std::path::Path;

use packetloom_packet::batch::Policy;
use packetloom_packet::{Batch, DropReason, Verdict};
use serde_json::json;

use super::PolicerReport;
use crate::batch::{Captured, fill};
use crate::flows::{By, Cursor, Definition, Flows, Found, OracleFlows, StateAt};
use crate::frames::{Packet, Transport};
use crate::registry::Registration;
use crate::{Context, Form, FunctionSpec, PerFlow, Report};

const MILLISECOND: u64 = 1_000_000;

/// Prepares `policer` from keys of a chain file.
fn prepare(keys: &str) -> Result<Box<dyn FunctionSpec>, String> {
    let keys = format!("{{ {keys} }}");
    let keys = toml::de::ValueDeserializer::parse(&keys).expect("good TOML");
    let function = Registration::by_name("policer").expect("a function that is registered");
    let prepare = (function.parse)(keys).map_err(|error| error.message().to_owned())?;
    let context = Context { folder: Path::new("."), ignore_flags: false };
    prepare(&context).map_err(|error| error.to_string())
}

fn per_flow(policer: &dyn FunctionSpec) -> &dyn PerFlow {
    match policer.form() {
        Form::PerFlow(policer) => policer,
        Form::Standalone(_) => panic!("a policer keeps state for flows"),
    }
}

const SINGLE: &str = "marker = \"single-rate\", cir = \"8kbit/s\", cbs = \"100B\", ebs = \"50B\"";
const TWO: &str =
    "marker = \"two-rate\", cir = \"8kbit/s\", cbs = \"100B\", pir = \"16kbit/s\", pbs = \"150B\"";

#[test]
fn what_it_does_is_described() {
    for (keys, lines) in [
        (
            SINGLE.to_owned(),
            ["CIR 8kbit/s, CBS 100B, EBS 50B of each flow (RFC 2697)", "red packets are dropped"],
        ),
        (
            format!("{TWO}, yellow = \"drop\""),
            [
                "CIR 8kbit/s, CBS 100B, PIR 16kbit/s, PBS 150B of each flow (RFC 2698)",
                "yellow and red packets are dropped",
            ],
        ),
        (
            format!("{SINGLE}, red = \"pass\""),
            [
                "CIR 8kbit/s, CBS 100B, EBS 50B of each flow (RFC 2697)",
                "colours are counted, all packets pass",
            ],
        ),
        (
            format!("{SINGLE}, yellow = \"drop\", red = \"pass\""),
            ["CIR 8kbit/s, CBS 100B, EBS 50B of each flow (RFC 2697)", "yellow packets are dropped"],
        ),
    ] {
        let policer = prepare(&keys).expect("good keys");
        assert_eq!(policer.name(), "policer");
        assert_eq!(policer.describe(), lines);
        assert!(per_flow(&*policer).kernel().is_some());
    }
    let marks =
        "mode = \"colour-aware\", green = { dscp = 10 }, yellow = { dscp = \"AF12\" }, red = { dscp = 7 }";
    let policer = prepare(&format!("{SINGLE}, {marks}")).expect("good keys");
    assert_eq!(
        policer.describe()[1..],
        [
            "colour-aware: AFx1 comes green, AFx2 yellow, AFx3 red, others green (RFC 2597)",
            "colours are counted, all packets pass",
            "green packets get DSCP af11",
            "yellow packets get DSCP af12",
            "red packets get DSCP 7",
        ]
    );
    // Devices need to know DSCPs only where colours before count.
    for (keys, dscps) in [("mode = \"colour-aware\"", true), ("yellow = { dscp = 0 }", false)] {
        let policer = prepare(&format!("{SINGLE}, {keys}")).expect("good keys");
        assert_eq!(per_flow(&*policer).kernel().map(|kernel| kernel.dscps), Some(dscps), "{keys}");
    }
}

#[test]
fn it_keeps_three_words_for_each_source() {
    let policer = prepare(SINGLE).expect("good keys");
    let keeps = per_flow(&*policer).keeps();
    assert_eq!((keeps.flows, keeps.by, keeps.words), (None, &[By::Source, By::FiveTuple][..], 3));
    let policer = prepare(&format!("{TWO}, flows = \"customers\"")).expect("good keys");
    assert_eq!(per_flow(&*policer).keeps().flows.as_deref(), Some("customers"));
}

#[test]
fn wrong_keys_have_clear_errors() {
    let single = "marker = \"single-rate\", cir = \"1kB/s\"";
    let two = "marker = \"two-rate\", cir = \"1kB/s\", cbs = \"1kB\"";
    for (keys, message) in [
        (
            format!("{SINGLE}, colour = \"aware\""),
            "unknown field `colour`, expected one of `flows`, `marker`, `cir`, `cbs`, `ebs`, `pir`, `pbs`, `mode`, `others`, `green`, `yellow`, `red`",
        ),
        (
            format!("{SINGLE}, mode = \"color-aware\""),
            "unknown variant `color-aware`, expected `colour-blind` or `colour-aware`",
        ),
        (
            format!("{SINGLE}, others = \"red\""),
            "others with mode = \"colour-blind\"; expected mode = \"colour-aware\"",
        ),
        (
            format!("{SINGLE}, mode = \"colour-aware\", others = \"blue\""),
            "unknown variant `blue`, expected one of `green`, `yellow`, `red`",
        ),
        (
            format!("{SINGLE}, yellow = {{ dscp = \"af14\" }}"),
            "DSCP \"af14\"; expected a name such as \"af12\", \"cs1\", \"ef\" or \"default\", or a number from 0 to 63",
        ),
        (
            format!("{SINGLE}, yellow = {{ dscp = 64 }}"),
            "invalid value: integer `64`, expected a DSCP: a name such as \"af12\", or a number from 0 to 63",
        ),
        (
            format!("{SINGLE}, green = {{ dscp = -1 }}"),
            "invalid value: integer `-1`, expected a DSCP: a name such as \"af12\", or a number from 0 to 63",
        ),
        (
            format!("{SINGLE}, red = {{ mark = 1 }}"),
            "invalid value: key \"mark\", expected \"pass\", \"drop\", or a DSCP such as { dscp = \"af12\" }",
        ),
        (
            format!("{SINGLE}, red = {{}}"),
            "invalid value: no key, expected \"pass\", \"drop\", or a DSCP such as { dscp = \"af12\" }",
        ),
        (
            format!("{SINGLE}, red = 12"),
            "invalid type: integer `12`, expected \"pass\", \"drop\", or a DSCP such as { dscp = \"af12\" }",
        ),
        ("cir = \"1kB/s\", cbs = \"1kB\", ebs = \"1kB\"".into(), "missing field `marker`"),
        ("marker = \"two-rate\", cbs = \"1kB\"".into(), "missing field `cir`"),
        ("marker = \"two-rate\", cir = \"1kB/s\"".into(), "missing field `cbs`"),
        (
            "marker = \"srtcm\", cir = \"1kB/s\", cbs = \"1kB\"".into(),
            "unknown variant `srtcm`, expected `single-rate` or `two-rate`",
        ),
        (
            format!("{SINGLE}, yellow = \"mark\""),
            "invalid value: string \"mark\", expected \"pass\", \"drop\", or a DSCP such as { dscp = \"af12\" }",
        ),
        (
            format!("{SINGLE}, red = \"deny\""),
            "invalid value: string \"deny\", expected \"pass\", \"drop\", or a DSCP such as { dscp = \"af12\" }",
        ),
        // Keys that are missing, and those of the other marker.
        (
            format!("{single}, cbs = \"1kB\""),
            "no ebs with marker = \"single-rate\"; expected cir, cbs and ebs",
        ),
        (
            format!("{SINGLE}, pir = \"1kB/s\""),
            "pir with marker = \"single-rate\"; expected cir, cbs and ebs",
        ),
        (
            format!("{single}, cbs = \"1kB\", pbs = \"1kB\""),
            "pbs with marker = \"single-rate\"; expected cir, cbs and ebs",
        ),
        (
            format!("{two}, pbs = \"1kB\""),
            "no pir with marker = \"two-rate\"; expected cir, cbs, pir and pbs",
        ),
        (
            format!("{two}, pir = \"1kB/s\""),
            "no pbs with marker = \"two-rate\"; expected cir, cbs, pir and pbs",
        ),
        (format!("{TWO}, ebs = \"1kB\""), "ebs with marker = \"two-rate\"; expected cir, cbs, pir and pbs"),
        // Packets.
        (
            "marker = \"single-rate\", cir = \"9packets/s\", cbs = \"1kB\", ebs = \"1kB\"".into(),
            "cir is in packets; expected bytes, such as \"10Mbit/s\"",
        ),
        (
            format!("{single}, cbs = \"9packets\", ebs = \"1kB\""),
            "cbs is in packets; expected bytes, such as \"64kB\"",
        ),
        (
            format!("{single}, cbs = \"1kB\", ebs = \"9packets\""),
            "ebs is in packets; expected bytes, such as \"64kB\"",
        ),
        (
            format!("{two}, pir = \"9packets/s\", pbs = \"1kB\""),
            "pir is in packets; expected bytes, such as \"10Mbit/s\"",
        ),
        (
            format!("{two}, pir = \"1kB/s\", pbs = \"9packets\""),
            "pbs is in packets; expected bytes, such as \"64kB\"",
        ),
        // Limits.
        (
            format!("{single}, cbs = \"0B\", ebs = \"0B\""),
            "CBS + EBS 0; expected a number from 1 to 18000000000",
        ),
        (
            format!("{single}, cbs = \"9GB\", ebs = \"9.000000001GB\""),
            "CBS + EBS 18000000001; expected a number from 1 to 18000000000",
        ),
        (
            "marker = \"single-rate\", cir = \"2TB/s\", cbs = \"1kB\", ebs = \"1kB\"".into(),
            "CIR 2000000000000; expected a number from 1 to 1000000000000",
        ),
        (format!("{two}, pir = \"1kB/s\", pbs = \"0B\""), "PBS 0; expected a number from 1 to 18000000000"),
        (format!("{two}, pir = \"999B/s\", pbs = \"1kB\""), "PIR 999; expected the CIR, 1000, or more"),
    ] {
        assert_eq!(prepare(&keys).err().as_deref(), Some(message), "{keys}");
    }
    // A bucket of a single rate may be none.
    assert!(prepare(&format!("{single}, cbs = \"0B\", ebs = \"1B\"")).is_ok());
    assert!(prepare(&format!("{single}, cbs = \"1B\", ebs = \"0B\"")).is_ok());
}

/// Milliseconds, the last number of the source address, IP bytes.
type Sent = (u64, u8, usize);

/// A UDP packet of so many bytes, 28 of which are headers.
fn frame(&(milliseconds, source, bytes): &Sent) -> Captured {
    let address = |last: u8| IpAddr::from([192, 0, 2, last]);
    let packet = Packet::new(address(source), address(99), Transport::Udp(1, 2));
    Captured::new((7_000 + milliseconds) * MILLISECOND, &Packet { payload: bytes - 28, ..packet })
}

fn report_of(report: &dyn Report) -> PolicerReport {
    (report as &dyn Any).downcast_ref::<PolicerReport>().expect("a policer's report").clone()
}

/// The verdicts and the report that both forms give.
fn outcome(keys: &str, sent: &[Sent]) -> (Vec<Verdict>, PolicerReport) {
    let frames: Vec<_> = sent.iter().map(frame).collect();
    let (verdicts, _, report) = outcome_of(keys, &frames);
    (verdicts, report)
}

/// The verdicts, the DSCPs that packets have then, and the report.
fn outcome_of(keys: &str, frames: &[Captured]) -> (Vec<Verdict>, Vec<u8>, PolicerReport) {
    let policer = prepare(keys).expect("good keys");
    let policer = per_flow(&*policer);
    let definition = Definition::from(By::Source);

    let mut flows = Flows::new(&definition, 1, frames.len(), policer.keeps().words, [1, 2]);
    let mut function = policer.function(StateAt { function: 0, word: 0 });
    let mut batch = Batch::new(frames.len());
    fill(&mut batch, frames);
    batch.parse(Policy::PASS);
    let mut cursor = Cursor::new(&flows);
    cursor.extract_keys(&batch, &mut flows);
    cursor.visit(&mut flows, true, false, &mut batch, |batch, flows| {
        function.process(batch, flows, &mut |_| panic!("a policer has no records"));
    });
    flows.leave();
    let report = report_of(&*function.report(&flows));

    let mut oracle = policer.oracle();
    let mut lives = OracleFlows::new(definition);
    let (verdicts, dscps): (Vec<_>, Vec<_>) = frames
        .iter()
        .map(|frame| {
            let mut packet = frame.for_oracle();
            let ip = packet.ip.as_ref().expect("an IPv4 packet");
            let Found::Flow(flow) = lives.find_or_insert(&packet, ip) else { panic!("there is room") };
            let verdict = oracle.step(&mut packet, &flow, &mut |_| panic!("a policer has no records"));
            (verdict, packet.ip.expect("an IPv4 packet").dscp)
        })
        .unzip();
    assert_eq!(batch.verdicts(), verdicts);
    let written = (0..).zip(frames).map(|(frame, _)| batch.columns().dscp(frame).number());
    assert_eq!(written.collect::<Vec<_>>(), dscps);
    assert_eq!(report, report_of(&*oracle.report(&lives)));
    (verdicts, dscps, report)
}

/// 1 byte each millisecond; C 100 bytes, E 50 (P 150 and 2 bytes each millisecond).
const SENT: &[Sent] = &[
    (0, 1, 60),
    (0, 1, 45),
    (0, 1, 45),
    // Another source has buckets of its own.
    (0, 2, 100),
    (0, 1, 40),
    (30, 1, 60),
];

#[test]
fn a_single_rate_by_hand() {
    let drop = Verdict::Drop(DropReason::Policer);
    let pass = Verdict::Pass;
    // C 100, E 50. 60 green: 40, 50. 45 yellow: 40, 5. 45 red. 40 green: 0, 5. After 30 ms 30, 5: 60 red.
    let (verdicts, report) = outcome(SINGLE, SENT);
    assert_eq!(verdicts, [pass, pass, drop, pass, pass, drop]);
    assert_eq!(report.colours, [[3, 200], [1, 45], [2, 105]]);
    // Yellow packets take tokens though they are dropped.
    let (verdicts, other) = outcome(&format!("{SINGLE}, yellow = \"drop\", red = \"pass\""), SENT);
    assert_eq!(verdicts, [pass, drop, pass, pass, pass, pass]);
    assert_eq!(other, report);
}

#[test]
fn two_rates_by_hand() {
    let drop = Verdict::Drop(DropReason::Policer);
    let pass = Verdict::Pass;
    // C 100, P 150. 60 green: 40, 90. 45 yellow: 40, 45. 45 yellow: 40, 0. 40 red. After 30 ms 70, 60: 60 green.
    let (verdicts, report) = outcome(TWO, SENT);
    assert_eq!(verdicts, [pass, pass, pass, pass, drop, pass]);
    assert_eq!(report.colours, [[3, 220], [2, 90], [1, 40]]);
    let (verdicts, other) = outcome(&format!("{TWO}, yellow = \"drop\""), SENT);
    assert_eq!(verdicts, [pass, drop, drop, pass, drop, pass]);
    assert_eq!(other, report);
}

/// A packet of a source, of so many bytes and with this DSCP (ECN: congestion experienced).
fn coloured(milliseconds: u64, bytes: usize, dscp: u8) -> Captured {
    let address = |last: u8| IpAddr::from([192, 0, 2, last]);
    let packet = Packet::new(address(1), address(99), Transport::Udp(1, 2));
    let packet = Packet { payload: bytes - 28, class: dscp * 4 + 3, ..packet };
    Captured::new((7_000 + milliseconds) * MILLISECOND, &packet)
}

const MARKS: &str = "green = { dscp = \"af11\" }, yellow = { dscp = \"af12\" }, red = { dscp = \"af13\" }";

#[test]
fn marks_by_hand() {
    // As in `a_single_rate_by_hand`, with EF that becomes AF11 to AF13: 10, 12, 14.
    let sent = [(0, 60), (0, 45), (0, 45), (0, 40), (30, 60)].map(|(at, bytes)| coloured(at, bytes, 46));
    let (verdicts, dscps, report) = outcome_of(&format!("{SINGLE}, {MARKS}"), &sent);
    assert_eq!((verdicts, dscps), (vec![Verdict::Pass; 5], vec![10, 12, 14, 10, 14]));
    assert_eq!(report.colours, [[2, 100], [1, 45], [2, 105]]);
    // What is not to be marked keeps its own; what is dropped has none to keep.
    let (verdicts, dscps, _) = outcome_of(&format!("{SINGLE}, yellow = {{ dscp = \"be\" }}"), &sent);
    let drop = Verdict::Drop(DropReason::Policer);
    assert_eq!(verdicts, [Verdict::Pass, Verdict::Pass, drop, Verdict::Pass, drop]);
    assert_eq!(dscps, [46, 0, 46, 46, 46]);
}

#[test]
fn colours_before_by_hand() {
    let aware = |keys: &str, others: &str| format!("{keys}, {MARKS}, mode = \"colour-aware\"{others}");
    // AF21, AF22, AF23, and EF, which is as it is said.
    let sent =
        [(18, 30), (20, 30), (22, 30), (46, 30), (46, 30)].map(|(dscp, bytes)| coloured(0, bytes, dscp));
    // C 100, E 50. Green: 70, 50. Yellow by E: 70, 20. Red takes none. Two green: 40, 20 and 10, 20.
    let (_, dscps, report) = outcome_of(&aware(SINGLE, ""), &sent);
    assert_eq!((dscps, report.colours), (vec![10, 12, 14, 10, 10], [[3, 90], [1, 30], [1, 30]]));
    // Others yellow: E has 20, so they are red.
    let (_, dscps, _) = outcome_of(&aware(SINGLE, ", others = \"yellow\""), &sent);
    assert_eq!(dscps, [10, 12, 14, 14, 14]);
    // C 100, P 150. Green: 70, 120. Yellow by P: 70, 90. Red takes none. Others yellow: 70, 60 and 70, 30.
    let (_, dscps, _) = outcome_of(&aware(TWO, ", others = \"yellow\""), &sent);
    assert_eq!(dscps, [10, 12, 14, 12, 12]);
    let (_, dscps, _) = outcome_of(&aware(TWO, ", others = \"red\""), &sent);
    assert_eq!(dscps, [10, 12, 14, 14, 14]);
    // Blind, they are all green while C lasts.
    let (_, dscps, _) = outcome_of(&format!("{SINGLE}, {MARKS}"), &sent);
    assert_eq!(dscps, [10, 10, 10, 12, 14]);
}

#[test]
fn colours_are_reported() {
    let (_, mut report) = outcome(SINGLE, SENT);
    let two = PolicerReport { colours: [[1, 10], [2, 20], [3, 30]] };
    report.merge(&two);
    assert_eq!(
        report.json(),
        json!({
            "green": { "packets": 4, "bytes": 210 },
            "yellow": { "packets": 3, "bytes": 65 },
            "red": { "packets": 5, "bytes": 135 },
        })
    );
    let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        report.rows(),
        [
            row("green", "4 packets, 210 IP bytes"),
            row("yellow", "3 packets, 65 IP bytes"),
            row("red", "5 packets, 135 IP bytes"),
        ]
    );
}
