//! Any bytes as a capture through strings in streams, an ACL, functions that keep state for flows, and a small meter: the batch forms give the summary of
//! the oracles.
#![no_main]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use packetloom_classify::formats::{Options, read_rules};
use packetloom_engine::chain::{Device, Run, Settings};
use packetloom_engine::run::{Io, LifecycleOptions};
use packetloom_engine::{Chain, Outputs, Plan};
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_nf::acl::DefaultAction;
use packetloom_nf::flows::{By, Definition, WhenFull};
use packetloom_nf::{
    Config, Context, FunctionSpec, acl, alerts, balancer, conntrack, counter, limiter, log_rate, meter, scan,
    source_counter, strings,
};

const RULES: &str = "\
deny tcp from any to any flags S/SA
reflect udp from any port 53 to any
reflect any from any to 10.0.0.0/8
permit tcp from any to any port 80-443
deny icmp from any to any type 8 code 0 log
permit any from any to any fragment later log
permit any from 10.0.0.0/8 to any
permit any from ::/1 to any
";

/// Some of one byte, of bytes that captures are full of, two that have to come both, and some in several places.
const PATTERNS: &[u8] = b"\
alert tcp any any -> any any (content:\"|00 00|\"; sid:1;)
alert tcp any any -> any any (content:\"a\"; content:\"|00|\"; sid:2;)
alert tcp any any -> any any (content:\"|ff ff ff|\"; content:!\"b\"; sid:3;)
alert tcp any any -> any any (content:\"|01 02 03 04|\"; offset:2; depth:9; sid:4;)
alert http any any -> any any (http.method; content:\"G\"; http.host; content:!\"a\"; pkt_data; content:\"e\"; sid:5;)
alert dns any any -> any any (dns.query; content:\"o\"; pkt_data; content:\"|00|\"; sid:6;)
";

/// Rules for states of connections; those for interfaces concern no packets whose interfaces have no names, or all.
const STATEFUL: &str = "\
deny any from any to any state invalid
permit any from any to any state established,related
permit udp from any to any state new out !eth0
permit any from any to any state new,untracked in any,!eth1
";

fn summary(device: Device, bytes: Arc<Vec<u8>>) -> Option<String> {
    let has_all_fields = bytes.len() % 2 == 1;
    let source = CaptureReader::from_bytes("memory", bytes).ok()?;
    let rules = read_rules("rules", &mut RULES.as_bytes(), &Options::default()).expect("good rules");
    let stateful = read_rules("stateful", &mut STATEFUL.as_bytes(), &Options::default()).expect("good rules");
    let acl = acl::Config {
        rules: "rules".into(),
        format: None,
        list: None,
        skip_unsupported: false,
        default: Some(DefaultAction::Deny),
        rule_action: None,
        classifier: Default::default(),
        ignore_flags: false,
        counters: true,
        // What is logged is counted; without an output nothing is written.
        log: Some("log".into()),
        log_rate: "3/s".parse().expect("a rate"),
        log_burst: packetloom_nf::log_rate::LogBurst::clamped(2),
        flows: None,
        loose: true,
        timeouts: Default::default(),
    };
    let tracking = acl::Config {
        rules: "stateful".into(),
        log: None,
        default: Some(DefaultAction::Permit),
        ..acl.clone()
    };
    let meter = meter::Config {
        idle_timeout: "1s".parse().expect("a time"),
        active_timeout: "5s".parse().expect("a time"),
        end_of_flow: has_all_fields,
        vlan_in_key: has_all_fields,
        max_flows: meter::Config::default_max_flows(),
        framings: Default::default(),
        fields: if has_all_fields {
            packetloom_export::Fields::FULL
        } else {
            meter::Config::default_fields()
        },
        format: Default::default(),
        output: None,
        export: Vec::new(),
        reports: None,
    };
    let context = Context { folder: Path::new(""), ignore_flags: false };
    let flows = || Some("small".to_owned());
    let limiter = limiter::Config {
        flows: flows(),
        rate: "800bit/s".parse().expect("a rate"),
        burst: "200B".parse().expect("a size"),
    };
    let backend = balancer::ServiceBackend {
        address: [10, 0, 0, 2].into(),
        port: Some(balancer::Port::clamped(8080)),
        weight: balancer::ServiceBackend::default_weight(),
    };
    let service = balancer::Service {
        address: [10, 0, 0, 1].into(),
        port: None,
        protocol: None,
        backends: vec![backend],
    };
    let balancer = balancer::Config {
        flows: flows(),
        services: vec![service.clone()],
        returns: false,
        table_size: balancer::TableSize::clamped(7),
        seed: 0,
    };
    let port = Some(balancer::Port::clamped(80));
    let returning = balancer::Config {
        services: vec![balancer::Service { port, ..service }],
        returns: true,
        ..balancer.clone()
    };
    let detector = |method| scan::Config {
        flows: Some("openers".to_owned()),
        method,
        threshold: None,
        window: None,
        distinct: None,
        udp: None,
        sessions: None,
        theta0: None,
        theta1: None,
        alpha: None,
        beta: None,
        block_for: "1s".parse().expect("a time"),
        action: scan::Action::Drop,
        seed: 1,
    };
    let fan_out = scan::Config {
        threshold: Some(scan::Threshold::clamped(2)),
        sessions: flows(),
        action: scan::Action::Count,
        ..detector(scan::Kind::FanOut)
    };
    // Two failures are too many.
    let trw =
        scan::Config { alpha: Some("0.1".parse().expect("a probability")), ..detector(scan::Kind::Trw) };
    let strings = strings::Config {
        patterns: "patterns".into(),
        format: Default::default(),
        by_fast_pattern: false,
        ignore_case: false,
        compiled: None,
        look_in: Default::default(),
        named: strings::Named::All,
        within: strings::Within::Stream,
        action: if has_all_fields { alerts::Action::Drop } else { alerts::Action::Pass },
        mark: None,
        flow: None,
        timeout: Some("1s".parse().expect("a time")),
        max_flows: None,
        log: None,
        log_rate: alerts::default_rate(),
        log_burst: log_rate::default_burst(),
        plain: false,
        offsets: false,
    };
    let settings = Settings { run: Run { device, ..Run::default() }, ..Settings::default() };
    let functions = vec![
        Box::new(strings.with_patterns("patterns", PATTERNS, None).expect("good patterns"))
            as Box<dyn FunctionSpec>,
        Box::new(acl.with_rules(rules, "rules".into()).expect("good rules")),
        Box::new(tracking.with_rules(stateful, "stateful".into()).expect("good rules")),
        conntrack::Config { invalid: conntrack::Invalid::Pass, ..Default::default() }
            .prepare(&context)
            .expect("a tracker"),
        counter::Config { flows: flows() }.prepare(&context).expect("a counter"),
        limiter.prepare(&context).expect("a limiter"),
        source_counter::Config { flows: None, sessions: flows() }.prepare(&context).expect("a counter"),
        fan_out.prepare(&context).expect("a detector"),
        trw.prepare(&context).expect("a detector"),
        returning.prepare(&context).expect("a balancer"),
        balancer.prepare(&context).expect("a balancer"),
        meter.prepare(&context).expect("a meter"),
    ];
    // More flows than there are packets in a fuzzer's capture: at capacity only bounds are the same.
    let small = Definition {
        by: By::FiveTuple,
        timeout: "1s".parse().expect("a time"),
        max_flows: 2_000,
        when_full: WhenFull::DropNew,
    };
    let openers = Definition { by: By::Initiator, ..small.clone() };
    let flows = BTreeMap::from([("small".to_owned(), small), ("openers".to_owned(), openers)]);
    let chain = Chain::new(settings, functions, &flows).unwrap_or_else(|(_, why)| panic!("{why}"));
    let mut outputs = Outputs::default();
    let io = Io {
        source: Box::new(source),
        outputs: &mut outputs,
        limit: None,
        stop: Stop::default(),
        progress: &mut |_, _| {},
        notice: &mut |_| {},
        devices: Vec::new(),
        life: LifecycleOptions::default(),
    };
    let outcome = packetloom_engine::run(&Plan::new(chain), io).expect("memory can be read");
    Some(outcome.json().to_string())
}

fuzz_target!(|bytes: &[u8]| {
    let bytes = Arc::new(bytes.to_vec());
    assert_eq!(summary(Device::Cpu, bytes.clone()), summary(Device::Oracle, bytes));
});
