//! Functions that track connections give what the oracle gives, over packets of few connections with all that can become of them:
//! errors that quote earlier packets, cut off or not, fragments, odd flags, late packets.

#![allow(missing_docs)]

#[path = "../../nf/tests/frames/mod.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod frames;
mod support;

use std::collections::HashMap;
use std::net::IpAddr;

use frames::{Fragment, Packet, Transport, ethernet};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use support::{How, compare_on, devices, is_slow, results, shares, traffic};

/// A packet to be made: whose connection it is of, and what it is there.
#[derive(Clone, Debug)]
struct Event {
    v6: bool,
    /// Of four hosts, the sender and how far on the receiver is.
    hosts: (u8, u8),
    what: What,
    later: u64,
    /// How much its time goes back.
    late: u64,
    /// Where the frame is cut off, from its end.
    cut: usize,
}

#[derive(Clone, Debug)]
enum What {
    /// Ports and flags.
    Tcp(u16, u16, u8),
    /// Ports; the next packet of a connection that is opened and closed as it should be.
    Next(u16, u16),
    Udp(u16, u16),
    /// Type and identifier.
    Message(u8, u16),
    /// Type; how many packets back the quoted one is; bytes of it that are quoted.
    Error(u8, usize, usize),
    Other(u8),
    /// A fragment other than the first.
    Later(u8),
}

fn what() -> impl Strategy<Value = What> {
    let flags = prop_oneof![
        20 => prop::sample::select(vec![2u8, 2, 2, 18, 18, 16, 16, 16, 17, 17, 4, 20]),
        1 => any::<u8>(),
    ];
    let types = prop::sample::select(vec![8u8, 0, 8, 0, 13, 14, 5, 128, 129, 135]);
    let errors = prop::sample::select(vec![3u8, 11, 12, 4, 5, 1, 2]);
    let quoted = prop_oneof![4 => Just(28usize), 2 => Just(1_500), 1 => 0..60usize];
    prop_oneof![
        12 => (1000..1002u16, 7..9u16, flags).prop_map(|(a, b, flags)| What::Tcp(a, b, flags)),
        12 => (1000..1002u16, 7..9u16).prop_map(|(a, b)| What::Next(a, b)),
        4 => (1000..1002u16, 7..9u16).prop_map(|(a, b)| What::Udp(a, b)),
        4 => (types, 0..2u16).prop_map(|(kind, id)| What::Message(kind, id)),
        3 => (errors, 1..9usize, quoted).prop_map(|(kind, back, len)| What::Error(kind, back, len)),
        1 => prop::sample::select(vec![47u8, 50]).prop_map(What::Other),
        1 => prop::sample::select(vec![6u8, 17, 1, 47]).prop_map(What::Later),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let later = prop_oneof![90 => 0..2_000u64, 9 => 0..200_000u64, 1 => 0..9_000_000u64];
    let late = prop_oneof![20 => Just(0u64), 1 => 0..4_000_000u64];
    let cut = prop_oneof![12 => Just(0usize), 1 => 0..40usize];
    (prop::bool::weighted(0.3), (0..4u8, 1..4u8), what(), later, late, cut)
        .prop_map(|(v6, hosts, what, later, late, cut)| Event { v6, hosts, what, later, late, cut })
}

/// Who sent an IP packet.
fn sender(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(<[u8; 4]>::try_from(packet.get(12..16)?).ok()?.into()),
        _ => Some(<[u8; 16]>::try_from(packet.get(8..24)?).ok()?.into()),
    }
}

/// An ICMP or ICMPv6 message; its header's second half holds an identifier.
fn message(source: IpAddr, destination: IpAddr, kind: u8, identifier: u16, quoted: &[u8]) -> Vec<u8> {
    let transport = if source.is_ipv4() { Transport::Icmp(kind, 0) } else { Transport::Icmpv6(kind, 0) };
    let packet = Packet { payload: quoted.len(), ..Packet::new(source, destination, transport) };
    let mut bytes = packet.bytes();
    let header = if source.is_ipv4() { 20 } else { 40 };
    bytes[header + 4..header + 6].copy_from_slice(&identifier.to_be_bytes());
    bytes[header + 8..].copy_from_slice(quoted);
    bytes
}

/// Whether the lower host sends it, and flags: of the packets of a TCP connection.
const COURSE: [(bool, u8); 8] =
    [(true, 2), (false, 18), (true, 16), (true, 24), (false, 16), (true, 17), (false, 17), (true, 16)];

/// The packets as a capture.
fn capture(events: &[Event]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4du32, 2 | 4 << 16, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    let mut sent: Vec<Vec<u8>> = Vec::new();
    let mut steps: HashMap<_, usize> = HashMap::new();
    let mut time = 1_700_000_000_000_000_000;
    for Event { v6, hosts: (from, on), what, later, late, cut } in events {
        let address = |host: u8| -> IpAddr {
            let text = if *v6 { format!("2001:db8::{host}") } else { format!("10.0.0.{host}") };
            text.parse().expect("an address")
        };
        let (mut source, mut destination) = (address(*from), address((from + on) % 4));
        let mut flags = 0;
        if let What::Next(a, b) = *what {
            let ends = (source.min(destination), source.max(destination));
            let step = steps.entry((ends, a, b)).or_default();
            let from_low;
            (from_low, flags) = COURSE[*step % COURSE.len()];
            *step += 1;
            (source, destination) = if from_low { ends } else { (ends.1, ends.0) };
        }
        // Sent to who has the lower number, ports change places, so that both directions occur.
        let ends = |a: u16, b: u16| if source < destination { (a, b) } else { (b, a) };
        let packet = |transport| Packet::new(source, destination, transport).bytes();
        let bytes = match *what {
            What::Tcp(a, b, flags) => {
                let (a, b) = ends(a, b);
                packet(Transport::Tcp(a, b, flags))
            }
            What::Next(a, b) => {
                let (a, b) = ends(a, b);
                packet(Transport::Tcp(a, b, flags))
            }
            What::Udp(a, b) => {
                let (a, b) = ends(a, b);
                packet(Transport::Udp(a, b))
            }
            What::Message(kind, identifier) => message(source, destination, kind, identifier, &[]),
            What::Error(kind, back, len) => {
                let quoted = sent.len().checked_sub(back).map_or(&[][..], |at| &sent[at]);
                // To who sent that; some go to somebody else, and are about nothing.
                let sender = sender(quoted).filter(|sender| sender.is_ipv6() == *v6 && back % 4 != 0);
                let destination = sender.unwrap_or(destination);
                message(source, destination, kind, 0, &quoted[..quoted.len().min(len)])
            }
            What::Other(protocol) => packet(Transport::Other(protocol)),
            What::Later(protocol) => {
                let transport = Transport::Other(protocol);
                let fragment = Fragment::Later(9, false);
                Packet { fragment, payload: 20, ..Packet::new(source, destination, transport) }.bytes()
            }
        };
        let frame = ethernet(if *v6 { 0x86dd } else { 0x0800 }, &bytes);
        sent.push(bytes);
        time += later;
        let at = time - late;
        let captured = frame.len().saturating_sub(*cut);
        let record = [(at / 1_000_000_000) as usize, (at % 1_000_000_000) as usize, captured, frame.len()];
        for word in record {
            file.extend((word as u32).to_le_bytes());
        }
        file.extend(&frame[..captured]);
    }
    file
}

const DEFINITIONS: &str = "\
[flows.short]
by = \"connection\"
timeout = \"6ms\"
[flows.tuples]
by = \"5-tuple\"
";

/// Timeouts that fit the definition `short`.
const SHORT: &str = "flows = \"short\"\ntimeouts = { tcp_opening = \"2ms\", tcp_established = \"6ms\", tcp_closing = \"3ms\", \
    tcp_closed = \"1ms\", udp_unreplied = \"2ms\", udp_replied = \"5ms\", icmp = \"4ms\", other = \"4ms\" }\n";

/// A function that tracks connections, or is beside one; the acl only once, since it writes a file.
fn chain() -> impl Strategy<Value = String> {
    let keys = || prop::sample::select(vec!["", SHORT]);
    let tracker = (keys(), any::<bool>(), prop::sample::select(vec!["", "invalid = \"pass\"\n"])).prop_map(
        |(keys, loose, invalid)| format!("[[chain]]\nnf = \"conntrack\"\nloose = {loose}\n{invalid}{keys}"),
    );
    let rules = prop::sample::select(vec!["reflecting", "stateful", "stateful"]);
    let acl = (rules, keys(), any::<bool>(), any::<bool>()).prop_map(|(rules, keys, loose, counters)| {
        format!(
            "[[chain]]\nnf = \"acl\"\nrules = \"{rules}\"\nlog = \"log\"\nlog_rate = \"unlimited\"\nloose = {loose}\n\
             counters = {counters}\n{keys}"
        )
    });
    let beside = prop::sample::select(vec![
        "",
        "",
        "[[chain]]\nnf = \"counter\"\nflows = \"connection\"\n",
        "[[chain]]\nnf = \"limiter\"\nflows = \"short\"\nrate = \"80kbit/s\"\nburst = \"100B\"\n",
        "[[chain]]\nnf = \"counter\"\nflows = \"tuples\"\n",
        "[[chain]]\nnf = \"source-counter\"\nsessions = \"tuples\"\n",
        "[[chain]]\nnf = \"scan\"\nmethod = \"trw\"\n[[chain]]\nnf = \"scan\"\nmethod = \"fan-out\"\nthreshold = 2\n",
    ]);
    (prop::option::of(tracker.clone()), beside, prop::option::of(acl), prop::option::of(tracker)).prop_map(
        |(before, beside, acl, after)| {
            [before.as_deref(), Some(beside), acl.as_deref(), after.as_deref()]
                .into_iter()
                .flatten()
                .collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn connections_are_what_the_oracle_says(
        events in prop::collection::vec(event(), 1..400),
        chain in chain(),
        batch in prop_oneof![Just(1usize), Just(7), Just(256)],
        is_wired: bool,
    ) {
        let capture = capture(&events);
        let chain = format!("{DEFINITIONS}{chain}");
        let how = How { settings: "device = \"oracle\"", is_wired, ..How::default() };
        let (oracle, ..) = results(&chain, &capture, how);
        for workers in [1, 2, 7] {
            let settings = format!("workers = {workers}\nbatch = {batch}");
            if shares(&chain, &settings) {
                continue;
            }
            let how = How { settings: &settings, is_wired, ..How::default() };
            let (found, ..) = results(&chain, &capture, how);
            prop_assert_eq!(&found, &oracle, "{}\n{}", settings, &chain);
        }
    }

    /// Rules that come to admit connections, or no longer do, while the run goes on.
    #[test]
    fn rules_that_change_admit_connections(
        events in prop::collection::vec(event(), 1..300),
        (first, then) in (0..200usize, 0..100usize),
        rules in prop::sample::select(vec!["more", "reflecting"]),
        batch in prop_oneof![Just(1usize), Just(7), Just(256)],
    ) {
        let capture = capture(&events);
        let chain = format!("[[chain]]\nnf = \"acl\"\nrules = \"{rules}\"\n{SHORT}{DEFINITIONS}");
        let changes = format!(
            "at {first}\nadd first reflect any from 10.0.0.0/30 to any port 7-8 id new\ncommit\n\
             at {}\ndelete new\nadd last reflect udp from any to any\ncommit\n",
            first + then
        );
        let run = |settings: &str| {
            results(&chain, &capture, How { settings, changes: Some(&changes), ..How::default() }).0
        };
        let oracle = run("device = \"oracle\"");
        prop_assert_eq!(&run(&format!("batch = {batch}")), &oracle);
    }
}

/// Packets have every state where rules ask for it, and each rule but those for other interfaces decides some; on interfaces those too.
#[test]
fn rules_ask_for_every_state() {
    let mut runner = TestRunner::deterministic();
    let events = prop::collection::vec(event(), 20_000).new_tree(&mut runner).expect("packets").current();
    let capture = capture(&events);
    let mut idle = Vec::new();
    for (keys, is_wired) in [("", false), (SHORT, true)] {
        let chain = format!(
            "{DEFINITIONS}[[chain]]\nnf = \"acl\"\nrules = \"stateful\"\nlog = \"log\"\nlog_rate = \"unlimited\"\n{keys}"
        );
        let run = |settings: &str| results(&chain, &capture, How { settings, is_wired, ..How::default() }).0;
        let oracle = run("device = \"oracle\"");
        let acl = &oracle.summary["functions"][0];
        for name in ["new", "established", "related", "invalid", "untracked", "connections"] {
            assert!(acl["tracked"][name].as_u64() > Some(50), "{name}: {acl}");
        }
        idle.push(acl["rules_not_hit"].as_u64().expect("a count"));
        for settings in ["", "batch = 1", "workers = 7\nbatch = 64"] {
            assert_eq!(run(settings), oracle, "{settings}\n{chain}");
        }
    }
    assert_eq!(idle, [3, 0]);
}

/// What the random packets are: all that there is.
#[test]
fn all_that_can_become_of_connections_does() {
    let mut runner = TestRunner::deterministic();
    let events = prop::collection::vec(event(), 20_000).new_tree(&mut runner).expect("packets").current();
    let capture = capture(&events);
    for keys in ["", SHORT] {
        let chain = format!(
            "{DEFINITIONS}[[chain]]\nnf = \"conntrack\"\ninvalid = \"pass\"\n{keys}\
             [[chain]]\nnf = \"acl\"\nrules = \"reflecting\"\nlog = \"log\"\nlog_rate = \"unlimited\"\n{keys}"
        );
        let run = |settings: &str| results(&chain, &capture, How { settings, ..How::default() }).0;
        let oracle = run("device = \"oracle\"");
        let counts = |pointer: &str| {
            oracle.summary.pointer(pointer).and_then(|value| value.as_u64()).expect("a count")
        };
        for name in ["new", "established", "related", "invalid", "untracked"] {
            assert!(counts(&format!("/functions/0/{name}/packets")) > 100, "{name}: {}", oracle.summary);
        }
        for name in [
            "tcp/opened",
            "tcp/established",
            "tcp/closed",
            "tcp/reset",
            "udp/replied",
            "icmp/replied",
            "other/replied",
        ] {
            assert!(counts(&format!("/functions/0/connections/{name}")) > 10, "{name}: {}", oracle.summary);
        }
        for name in ["connections", "packets", "related"] {
            assert!(counts(&format!("/functions/1/admitted/{name}")) > 20, "{name}: {}", oracle.summary);
        }
        assert!(oracle.log.lines().count() > 100);
        for settings in ["", "batch = 1", "workers = 2", "workers = 7\nbatch = 64", "device = \"host\""] {
            assert!(run(settings) == oracle, "{settings}");
        }
    }
}

/// Packets for which there is no room, with every policy; the tables of one worker refuse what the oracle refuses as long as nothing
/// is forgotten.
#[test]
fn packets_without_room_are_judged_by_the_rules_alone() {
    let capture = traffic(4_000, 900, 6);
    for when_full in ["drop-new", "pass-new"] {
        let chain = format!(
            "[flows.few]\nby = \"connection\"\ntimeout = \"0\"\nmax_flows = 50\nwhen_full = \"{when_full}\"\n\
             [[chain]]\nnf = \"conntrack\"\nflows = \"few\"\nloose = true\ninvalid = \"pass\"\n\
             [[chain]]\nnf = \"acl\"\nflows = \"few\"\nrules = \"admit-all\"\n"
        );
        let run = |settings: &str| results(&chain, &capture, How { settings, ..How::default() }).0;
        let oracle = run("device = \"oracle\"");
        let number = |pointer: &str| oracle.summary.pointer(pointer).and_then(|value| value.as_u64());
        let refused = number("/flows/few/refused").expect("a number");
        assert!(refused > 1_000, "{}", oracle.summary);
        if when_full == "drop-new" {
            assert_eq!(number("/dropped/flow_table_full"), Some(refused));
        } else {
            let untracked = number("/functions/0/untracked/packets").expect("a number");
            assert!(untracked >= refused, "{}", oracle.summary);
            // All packets pass by the one rule, or by the connections that it admitted.
            let decided = number("/functions/1/hits/0/packets").expect("a number");
            let admitted = number("/functions/1/admitted/connections").expect("a number");
            assert!(decided >= refused + admitted && admitted > 50, "{}", oracle.summary);
            assert_eq!(number("/dropped/acl_default"), Some(0));
        }
        for settings in ["", "batch = 3"] {
            assert_eq!(run(settings), oracle, "{when_full}, {settings}");
        }
        // Without such rules batches are taken in pieces.
        let (alone, _) = chain.split_once("[[chain]]\nnf = \"acl\"").expect("rules");
        let run = |settings: &str| results(alone, &capture, How { settings, ..How::default() }).0;
        assert_eq!(run(""), run("device = \"oracle\""), "{when_full}");
    }
}

/// Functions over connections on devices: queries, errors before and behind what they quote, messages and fragments of no connection, flows
/// that begin anew, a definition that comes twice.
#[test]
fn devices_know_connections() {
    if packetloom_testing::sweep("connections on devices") {
        compare_connections(&chains_on_devices()[..3]);
    }
}

#[test]
fn devices_know_connections_in_further_chains() {
    if packetloom_testing::sweep("connections on devices, in further chains") {
        compare_connections(&chains_on_devices()[3..6]);
    }
}

/// One connection: packets of it that are taken together, with errors about it among them and without.
#[test]
fn devices_know_one_connection() {
    if !packetloom_testing::sweep("one connection on devices") {
        return;
    }
    let mut runner = TestRunner::deterministic();
    let devices = devices();
    for one in [8, 3] {
        let events = prop::collection::vec(event(), 3_000).new_tree(&mut runner).expect("packets").current();
        let of_one = |(number, event): (usize, Event)| {
            let what = match number % one {
                7 => What::Error(3, 1, 1_500),
                _ => What::Udp(1000, 7),
            };
            Event {
                v6: one == 3,
                hosts: (if number % 5 == 0 { 1 } else { 0 }, if number % 5 == 0 { 3 } else { 1 }),
                what,
                ..event
            }
        };
        let capture = capture(&events.into_iter().enumerate().map(of_one).collect::<Vec<_>>());
        for device in devices.iter().filter(|device| one == 8 || !is_slow(device)) {
            for chain in &chains_on_devices()[6..] {
                compare_on(device, chain, &capture);
            }
        }
    }
}

/// Six chains for many connections, and two for one. Each is compiled once, so no two tests have the same.
fn chains_on_devices() -> [String; 8] {
    let function = |nf: &str, keys: &str| format!("[[chain]]\nnf = \"{nf}\"\n{keys}");
    let counter = function("counter", "flows = \"connection\"\n");
    let short = function("counter", "flows = \"short\"\n");
    let limiter = function("limiter", "flows = \"short\"\nrate = \"80kbit/s\"\nburst = \"100B\"\n");
    let sources = function("counter", "flows = \"source\"\n");
    let tracker = function("conntrack", "");
    let loose = function("conntrack", &format!("loose = true\ninvalid = \"pass\"\n{SHORT}"));
    let walks = function("scan", "method = \"trw\"\n");
    let fan_out =
        function("scan", "method = \"fan-out\"\nthreshold = 2\nsessions = \"tuples\"\naction = \"drop\"\n");
    let acl = |rules: &str, keys: &str| function("acl", &format!("rules = \"{rules}\"\n{keys}"));
    let logs = "log = \"log\"\nlog_rate = \"unlimited\"\n";
    let reflecting = acl("reflecting", logs);
    let briefly = acl("reflecting", &format!("loose = true\n{logs}{SHORT}"));
    let admitting = acl("admit-all", SHORT);
    [
        format!("{limiter}{counter}"),
        format!("{loose}{tracker}{counter}"),
        format!("{short}{sources}{loose}{limiter}"),
        format!("{walks}{tracker}{fan_out}{counter}"),
        format!("{reflecting}{tracker}{limiter}"),
        format!("{loose}{counter}{briefly}{short}{admitting}{tracker}"),
        format!("{counter}{tracker}{limiter}{loose}{short}"),
        format!("{counter}{admitting}{limiter}{briefly}{short}"),
    ]
    .map(|chain| format!("{DEFINITIONS}{chain}"))
}

/// Few packets and many of many connections, in each of these chains.
fn compare_connections(chains: &[String]) {
    let mut runner = TestRunner::deterministic();
    let devices = devices();
    for packets in [300, 9_000] {
        let events =
            prop::collection::vec(event(), packets).new_tree(&mut runner).expect("packets").current();
        let capture = capture(&events);
        for chain in chains {
            for device in devices.iter().filter(|device| packets > 300 || !is_slow(device)) {
                compare_on(device, chain, &capture);
            }
        }
    }
}

/// An acl on a device, and functions that keep state for flows behind it.
#[test]
fn behind_an_acl_on_a_device() {
    let capture = traffic(6_000, 300, 7);
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"more\"\n[[chain]]\nnf = \"conntrack\"\nloose = true\n\
                 [[chain]]\nnf = \"acl\"\nrules = \"admit-all\"\n[[chain]]\nnf = \"counter\"\n";
    let run = |settings: &str| results(chain, &capture, How { settings, ..How::default() });
    let (oracle, ..) = run("device = \"oracle\"");
    assert!(oracle.summary["functions"][2]["admitted"]["packets"].as_u64() > Some(1_000));
    let (found, shares, _) = run("device = \"host\"");
    assert!(shares.is_some_and(|shares| shares.device > 0));
    assert_eq!(found, oracle);
}
