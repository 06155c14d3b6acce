//! Definitions that no way to spread packets keeps together: workers share their tables.

#![allow(missing_docs)]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use packetloom_engine::run::{Io, LifecycleOptions};
use packetloom_engine::{Chain, Error, Outputs, Plan, run};
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_nf::flows::{
    By, FlowFunction, FlowOracle, Flows, OracleFlow, OracleFlows, StateAt, StateSpec, Visit,
};
use packetloom_nf::oracle::OraclePacket;
use packetloom_nf::{Context, Form, FunctionSpec, PerFlow, Records, Report};
use packetloom_packet::key::join;
use packetloom_packet::{Batch, Key, KeyBits, LinkType, MatchKey4, MatchKey6, Verdict, dissect};
use proptest::prelude::*;
use serde_json::Value;
use support::{How, Results, capture, plan, results, shares, traffic};

/// A TCP packet with SYN from a port of a source to a server.
fn syn(is_v4: bool, source: u32, port: u16, server: u32) -> Key {
    let (protocol, tcp_flags) = (6, 2);
    let bits = KeyBits::PORTS.with(KeyBits::TCP_FLAGS).with(KeyBits::WHOLE);
    let (source_port, destination_port) = (port, 80);
    if is_v4 {
        let (source, destination) = (0x0a00_0000 + source, 0xc000_0200 + server);
        let reserved = 0;
        let key = MatchKey4 {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
            tcp_flags,
            bits,
            reserved,
        };
        Key::V4(key)
    } else {
        let end = |n: u32| [0x2001_0db8 << 32, n.into()];
        let (source, destination) = (end(source), end(0x1_0000 + server));
        let rest = MatchKey6::default();
        Key::V6(MatchKey6 {
            source,
            destination,
            source_port,
            destination_port,
            protocol,
            tcp_flags,
            bits,
            ..rest
        })
    }
}

/// Time and source of each packet of a capture, if it is IP.
fn sources(capture: &[u8]) -> Vec<(u64, IpAddr)> {
    let number = |bytes: &[u8]| u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
    let (mut packets, mut at) = (Vec::new(), 24);
    while at < capture.len() {
        let nanos = number(&capture[at..at + 4]) * 1_000_000_000 + number(&capture[at + 4..at + 8]);
        let len = number(&capture[at + 8..at + 12]) as usize;
        let headers = dissect(LinkType::ETHERNET, &capture[at + 16..at + 16 + len], 1500);
        at += 16 + len;
        match headers.map(|headers| headers.key) {
            Ok(Key::V4(key)) => packets.push((nanos, IpAddr::V4(key.source.into()))),
            Ok(Key::V6(key)) => packets.push((nanos, IpAddr::V6(join(key.source).into()))),
            Err(_) => {}
        }
    }
    packets
}

fn found(chain: &str, capture: &[u8], settings: &str) -> Results {
    results(chain, capture, How { settings, ..How::default() }).0
}

fn number(summary: &Value, pointer: &str) -> u64 {
    summary.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} of {summary}"))
}

/// Flows that nothing forgets in the time of these captures.
const DEFINITIONS: &str = "\
[flows.short]
by = \"5-tuple\"
timeout = \"3ms\"
[flows.hosts]
by = \"source\"
timeout = \"0\"
[flows.openers]
by = \"initiator\"
timeout = \"0\"
";

const COUNTER: &str = "[[chain]]\nnf = \"counter\"\n";

/// A balancer for servers of [`syn`].
const BALANCER: &str = "\
[[chain]]
nf = \"balancer\"
table_size = 251
[[chain.services]]
address = \"192.0.2.1\"
backends = [{ address = \"10.9.8.1\" }, { address = \"10.9.8.2\", port = 8080 }]
[[chain.services]]
address = \"2001:db8::1:1\"
port = 80
backends = [{ address = \"2001:db8::1\" }, { address = \"2001:db8::2\", weight = 2 }]
";

/// A function over any definition whose results do not depend on the order of packets of different flows by 5-tuple.
fn function() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "[[chain]]\nnf = \"counter\"\nflows = \"hosts\"\n",
        "[[chain]]\nnf = \"counter\"\nflows = \"short\"\n",
        "[[chain]]\nnf = \"source-counter\"\nflows = \"hosts\"\n",
        "[[chain]]\nnf = \"source-counter\"\nflows = \"hosts\"\nsessions = \"short\"\n",
        // Finds nobody.
        "[[chain]]\nnf = \"scan\"\nmethod = \"fan-out\"\nflows = \"hosts\"\nthreshold = 1000000\nwindow = \"0\"\n",
        "[[chain]]\nnf = \"scan\"\nmethod = \"fan-out\"\nflows = \"openers\"\nthreshold = 1000000\nwindow = \"0\"\nudp = false\n",
        // Never drops.
        "[[chain]]\nnf = \"limiter\"\nflows = \"hosts\"\nrate = \"1Gbit/s\"\nburst = \"1GB\"\n",
        "[[chain]]\nnf = \"policer\"\nflows = \"hosts\"\nmarker = \"two-rate\"\ncir = \"1Gbit/s\"\ncbs = \"1GB\"\npir = \"2Gbit/s\"\n\
         pbs = \"2GB\"\n",
        // Drop some, by flows that one worker has all of.
        "[[chain]]\nnf = \"limiter\"\nrate = \"40packets/s\"\nburst = \"2packets\"\n",
        "[[chain]]\nnf = \"policer\"\nflows = \"short\"\nmarker = \"single-rate\"\ncir = \"8kbit/s\"\ncbs = \"300B\"\nebs = \"100B\"\n",
        BALANCER,
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_does_not_depend_on_order_is_exact(
        functions in prop::collection::vec(function(), 1..7),
        packets in prop::collection::vec((0u64..300_000, any::<bool>(), 0u32..9, 0u16..12, 0u32..4), 1..3_000),
        // Packets that come out of order, and by how much.
        (late, by) in (1usize..9, prop_oneof![Just(0u64), 1u64..50_000_000]),
        is_generated in any::<bool>(),
        batch in prop_oneof![Just(1usize), Just(7), Just(256)],
        is_stream in any::<bool>(),
    ) {
        let mut now = 5_000_000_000;
        let capture = match is_generated {
            true => traffic(packets.len() as u64, 1 + packets.len() as u64 / 9, packets[0].0),
            false => capture(packets.iter().enumerate().map(|(packet, &(gap, is_v4, source, port, server))| {
                now += gap;
                (now - if packet % late == 0 { by } else { 0 }, syn(is_v4, source, port, server))
            })),
        };
        // Sources are shared where there is another definition.
        let chain = format!("{DEFINITIONS}{COUNTER}{}", functions.concat());
        let oracle = found(&chain, &capture, "device = \"oracle\"");
        for workers in [1, 2, 7] {
            let settings = format!("workers = {workers}\nbatch = {batch}");
            let how = How { settings: &settings, is_stream, ..How::default() };
            let (found, ..) = results(&chain, &capture, how);
            prop_assert_eq!(&found, &oracle, "{}\n{}", settings, &chain);
        }
    }

    /// Where each packet comes long after the one before, all is exact, whatever it depends on.
    #[test]
    fn packets_that_are_far_apart_are_in_order(
        packets in prop::collection::vec((10_000_001u64..400_000_000, any::<bool>(), 0u32..3, 0u16..3, 0u32..4), 1..120),
    ) {
        let mut now = 5_000_000_000;
        let capture = capture(packets.iter().map(|&(gap, is_v4, source, port, server)| {
            now += gap;
            (now, syn(is_v4, source, port, server))
        }));
        let chain = format!(
            "[flows.few]\nby = \"source\"\ntimeout = \"1s\"\n{BALANCER}\
             [[chain]]\nnf = \"limiter\"\nflows = \"few\"\nrate = \"1packets/s\"\nburst = \"3packets\"\n{COUNTER}\
             [[chain]]\nnf = \"counter\"\nflows = \"few\"\n\
             [[chain]]\nnf = \"scan\"\nmethod = \"trw\"\n"
        );
        let oracle = found(&chain, &capture, "device = \"oracle\"");
        for settings in ["workers = 2", "workers = 7\nbatch = 3"] {
            prop_assert!(shares(&chain, settings));
            prop_assert_eq!(&found(&chain, &capture, settings), &oracle, "{}", settings);
        }
    }
}

/// What is shared, and by what packets are spread.
#[test]
fn the_plan_says_what_is_shared() {
    let by = |by: &str| format!("[[chain]]\nnf = \"counter\"\nflows = \"{by}\"\n");
    let (five, source, connection) = (by("5-tuple"), by("source"), by("connection"));
    let initiator = "[[chain]]\nnf = \"scan\"\nmethod = \"trw\"\n";
    for (chain, spread, shared) in [
        (format!("{source}{five}"), By::FiveTuple, &["source"][..]),
        (format!("{source}{initiator}"), By::Initiator, &["source"]),
        (format!("{source}{five}{connection}"), By::Connection, &["source", "5-tuple"]),
        (format!("{source}{source}"), By::Source, &[]),
        (format!("[flows.other]\nby = \"5-tuple\"\n{five}{}", by("other")), By::FiveTuple, &[]),
    ] {
        let plan = plan(&chain, "workers = 3");
        assert_eq!((plan.workers(), plan.spread()), (3, spread), "{chain}");
        assert_eq!(plan.shared().map(|used| &*used.name).collect::<Vec<_>>(), shared, "{chain}");
        let text = plan.to_string();
        assert_eq!(text.matches("is shared by them").count(), shared.len(), "{text}");
        assert!(!shares(&chain, "workers = 1"), "one worker has nobody to share with");
    }
}

/// Flows stay with their backends, byte for byte as with one worker, beside a policer by source that has enough tokens.
#[test]
fn a_balancer_beside_a_shared_policer() {
    let packets = (0..20_000u64).map(|n| {
        let (source, port) = ((n * 7 % 50) as u32, (n * 11 % 97) as u16);
        (n * 1_000, syn(n % 3 > 0, source, port, 1))
    });
    let capture = capture(packets);
    let chain = format!(
        "[[chain]]\nnf = \"policer\"\nmarker = \"single-rate\"\ncir = \"1Gbit/s\"\ncbs = \"1GB\"\nebs = \"0B\"\n{BALANCER}"
    );
    let oracle = found(&chain, &capture, "device = \"oracle\"");
    assert_eq!(oracle.summary["passed"], 20_000);
    assert_ne!(oracle.passed, capture, "packets are rewritten");
    for settings in ["workers = 2", "workers = 7\nbatch = 16"] {
        assert!(shares(&chain, settings));
        let found = found(&chain, &capture, settings);
        assert_eq!((&found.summary, found.passed == oracle.passed), (&oracle.summary, true), "{settings}");
    }
}

/// What sources may send is theirs, not theirs for each worker.
#[test]
fn limits_hold_over_all_workers() {
    // Four sources with 1,000 packets a second each, for ten seconds; 64 flows of each, so that all workers have some.
    let packets = (0..40_000u64).map(|n| {
        let flow = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        (1_000_000_000 + n * 250_000, syn(n % 2 == 0, (n % 4) as u32, flow as u16, 1))
    });
    let capture = capture(packets);
    // Tokens at once and in a second, and what a packet of IPv4 and of IPv6 takes.
    for (name, burst, rate, prices, limit) in [
        (
            "limiter",
            30.0,
            100.0,
            [1.0, 1.0],
            "nf = \"limiter\"\nflows = \"source\"\nrate = \"100packets/s\"\nburst = \"30packets\"\n",
        ),
        (
            "policer",
            1200.0,
            4000.0,
            [40.0, 60.0],
            "nf = \"policer\"\nmarker = \"single-rate\"\ncir = \"32kbit/s\"\ncbs = \"1200B\"\nebs = \"0B\"\n",
        ),
    ] {
        let chain = format!("{COUNTER}[[chain]]\n{limit}");
        for (settings, apart) in
            [("device = \"oracle\"", 0), ("workers = 2", 10_000_000), ("workers = 7\nbatch = 5", 10_000_000)]
        {
            assert_eq!(shares(&chain, settings), apart > 0);
            let found = found(&chain, &capture, settings);
            let mut passed: HashMap<IpAddr, Vec<u64>> = HashMap::new();
            for (nanos, source) in sources(&found.passed) {
                passed.entry(source).or_default().push(nanos);
            }
            assert_eq!(passed.len(), 4);
            for (source, times) in passed {
                let context = format!("{} packets of {source} by {name}, {settings}", times.len());
                // Over all: never more than the burst and what came in. No less than with a burst without what comes in while packets
                // may be in another order, but for the one packet on the way.
                let price = prices[usize::from(source.is_ipv6())];
                let earned = |nanos: u64| rate * nanos as f64 / 1e9 / price;
                let most = burst / price + earned(39_999 * 250_000);
                let least = most - earned(apart) - 1.0;
                assert!(
                    (least..=most).contains(&(times.len() as f64)),
                    "{context}; expected {least} to {most}"
                );
                // In any time: what came in while packets may be in another order, too.
                for (first, &from) in times.iter().enumerate() {
                    for (last, &to) in times.iter().enumerate().skip(first) {
                        let most = burst / price + earned(to - from + apart);
                        assert!((last - first + 1) as f64 <= most + 1e-6, "{context}: {from} to {to}");
                    }
                }
            }
        }
    }
}

/// Sources that are silent for longer than the timeout are forgotten, and no others.
#[test]
fn shared_flows_expire() {
    // Eight sources, two of which send at a time, for 300 ms; then they are silent for 900.
    let packets = (0..30_000u64).map(|n| {
        let now = n * 200_000;
        let source = now / 300_000_000 % 4 + n % 2 * 4;
        (1_000_000_000 + now, syn(source % 3 > 0, source as u32, (n % 31) as u16, 1))
    });
    let capture = capture(packets);
    let chain = format!(
        "[flows.hosts]\nby = \"source\"\ntimeout = \"500ms\"\n{COUNTER}[[chain]]\nnf = \"source-counter\"\nflows = \"hosts\"\n"
    );
    let oracle = found(&chain, &capture, "device = \"oracle\"");
    // Twenty turns in six seconds, two sources in each; all but the last of a source ended.
    assert_eq!(number(&oracle.summary, "/flows/hosts/created"), 40);
    assert_eq!(number(&oracle.summary, "/flows/hosts/expired"), 32);
    for settings in ["workers = 2", "workers = 7\nbatch = 16", "workers = 16\nbatch = 1"] {
        assert_eq!(found(&chain, &capture, settings), oracle, "{settings}");
    }
}

/// Many workers, few sources or many, tiny tables or ones with parts: every packet is in one counter, and what the policy says becomes
/// of those without room.
#[test]
fn shared_tables_at_capacity() {
    for (sources, max_flows) in [(40, 2), (40, 7), (6_000, 4_099)] {
        let packets = (0..12_000u64).map(|n| {
            let source = n * 7 % sources;
            (n * 1_000, syn(source % 2 == 0, source as u32, (n % 13) as u16, 1))
        });
        let capture = capture(packets);
        // Of each IP version there is half of the sources.
        let max_flows = if sources == 6_000 { max_flows / 2 } else { max_flows };
        for (when_full, drops) in [("evict-oldest", false), ("drop-new", true), ("pass-new", false)] {
            let few = "[[chain]]\nnf = \"counter\"\nflows = \"few\"\n";
            let chain = format!(
                "[flows.few]\nby = \"source\"\ntimeout = \"0\"\nmax_flows = {max_flows}\nwhen_full = \"{when_full}\"\n\
                 {few}{COUNTER}{few}"
            );
            for settings in ["workers = 2", "workers = 16\nbatch = 1", "workers = 5\nbatch = 64"] {
                let summary = found(&chain, &capture, settings).summary;
                let context = format!("{sources} {max_flows} {when_full} {settings}: {summary}");
                let of_few = |name: &str| number(&summary, &format!("/flows/few/{name}"));
                let [created, evicted, refused] = ["created", "evicted", "refused"].map(of_few);
                let counted = |function: usize| number(&summary, &format!("/functions/{function}/packets"));
                assert_eq!(of_few("expired"), 0, "{context}");
                assert_eq!(
                    (refused > 0, evicted > 0),
                    (when_full != "evict-oldest", when_full == "evict-oldest"),
                    "{context}"
                );
                assert!(created - evicted <= 2 * max_flows, "{context}");
                assert_eq!(counted(0) + refused, 12_000, "{context}");
                assert_eq!(
                    number(&summary, "/dropped/flow_table_full"),
                    if drops { refused } else { 0 },
                    "{context}"
                );
                assert_eq!(counted(1), if drops { counted(0) } else { 12_000 }, "{context}");
                // Who has gone by then is not counted again.
                assert!(counted(2) <= 12_000 && (!drops || counted(2) == counted(0)), "{context}");
                assert!(counted(2) > 0, "{context}");
            }
        }
    }
}

/// Fails at the packets of one source, while it has the table.
#[derive(Clone, Debug)]
struct Failing(StateAt);

const DEFECT: &str = "a defect, on purpose";

impl FunctionSpec for Failing {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn describe(&self) -> Vec<String> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Failing {
    fn keeps(&self) -> StateSpec {
        StateSpec { flows: None, by: &[By::Source], words: 0 }
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(Self(at))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(self.clone())
    }
}

impl FlowFunction for Failing {
    fn move_to(&mut self, at: StateAt) {
        self.0 = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        flows.each(self.0, batch, |packet, _: &mut ()| {
            assert!(packet.now.as_nanos() != 3_000_000, "{DEFECT}");
            Verdict::Pass
        });
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.clone())
    }
}

impl FlowOracle for Failing {
    fn save(&self, _: u64) -> Option<Vec<u64>> {
        None
    }

    fn forget(&mut self, _: u64) {}

    fn load(&mut self, _: u64, _: &[u64]) {}

    fn step(
        &mut self,
        _packet: &mut OraclePacket,
        _flow: &OracleFlow,
        _records: &mut Records<'_>,
    ) -> Verdict {
        Verdict::Pass
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.clone())
    }
}

impl Report for Failing {
    fn merge(&mut self, _other: &dyn Report) {}

    fn json(&self) -> Value {
        Value::Null
    }

    fn rows(&self) -> Vec<(String, String)> {
        vec![]
    }
}

/// A source that fails on the way is what the run says, whichever worker reads then.
#[test]
fn a_source_that_fails_is_an_error() {
    struct Failing(std::io::Cursor<Vec<u8>>);
    impl std::io::Read for Failing {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(std::io::Error::from_raw_os_error(5)),
                bytes => Ok(bytes),
            }
        }
    }
    let capture = capture((0..40_000u64).map(|n| (n * 1_000, syn(true, n as u32, n as u16, 1))));
    for settings in ["workers = 1", "workers = 2", "workers = 7\nbatch = 16"] {
        // With tables of their own, and shared ones.
        for chain in [COUNTER.into(), format!("{COUNTER}[[chain]]\nnf = \"source-counter\"\n")] {
            let text = format!("{chain}[run]\n{settings}\n");
            let context = Context { folder: std::path::Path::new(""), ignore_flags: false };
            let plan = Plan::new(Chain::parse("chain", &text, context).expect("a good chain"));
            let stop = Stop::default();
            let source = Failing(std::io::Cursor::new(capture.clone()));
            let io = Io {
                source: Box::new(CaptureReader::from_reader("stream", source, &stop).expect("a stream")),
                outputs: &mut Outputs::default(),
                limit: None,
                stop,
                progress: &mut |_, _| {},
                notice: &mut |_| {},
                devices: Vec::new(),
                life: LifecycleOptions::default(),
            };
            let error = run(&plan, io).expect_err("the source fails").to_string();
            assert!(error.contains("stream") && error.contains("Input/output error"), "{settings}: {error}");
        }
    }
}

/// A worker that fails while it has a table is an error of the run, and not of those workers that wait for the table.
#[test]
fn a_worker_that_fails_is_an_error() {
    // One source, so that all workers are after the same table.
    let capture = capture((0..4_000u64).map(|n| (n * 1_000, syn(true, 1, n as u16, 1))));
    let panics = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, before) = (std::sync::Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or_default().to_owned();
        let is_meant = text.contains(DEFECT);
        seen.lock().expect("a list").push((text, std::thread::current().name().map(str::to_owned)));
        if !is_meant {
            before(panic);
        }
    }));
    for settings in ["workers = 2", "workers = 8\nbatch = 4"] {
        let text = format!("{COUNTER}[run]\n{settings}\n");
        let context = Context { folder: std::path::Path::new(""), ignore_flags: false };
        let (settings, mut functions) =
            Chain::parse("chain", &text, context).expect("a good chain").into_parts();
        functions.push(std::sync::Arc::new(Failing(StateAt::default())));
        let chain =
            Chain::new(settings, functions, &BTreeMap::new()).unwrap_or_else(|(_, why)| panic!("{why}"));
        let stop = Stop::default();
        let io = Io {
            source: Box::new(
                CaptureReader::from_reader("stream", std::io::Cursor::new(capture.clone()), &stop)
                    .expect("a stream"),
            ),
            outputs: &mut Outputs::default(),
            limit: None,
            stop,
            progress: &mut |_, _| {},
            notice: &mut |_| {},
            devices: Vec::new(),
            life: LifecycleOptions::default(),
        };
        let plan = Plan::new(chain);
        assert_eq!(plan.shared().count(), 1);
        assert!(matches!(run(&plan, io), Err(Error::Worker)));
    }
    drop(std::panic::take_hook());
    let panics = panics.lock().expect("a list").clone();
    let (meant, others): (Vec<_>, Vec<_>) = panics.iter().partition(|(text, _)| text.contains(DEFECT));
    assert_eq!(meant.len(), 2, "one worker of each run");
    // Threads of tests have names, workers none: no other worker failed because of that.
    assert!(others.iter().all(|(_, thread)| thread.is_some()), "{others:?}");
}
