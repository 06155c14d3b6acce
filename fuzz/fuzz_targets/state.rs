//! A state file never brings the reader down, nor a run that begins with it, whoever runs it.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use packetloom_engine::run::{Io, LifecycleOptions, Saving};
use packetloom_engine::{Chain, Outputs, Plan, State, run};
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_nf::Context;

/// All functions that keep state for flows.
const CHAIN: &str = r#"
[[chain]]
nf = "counter"
[[chain]]
nf = "limiter"
rate = "1Mbit/s"
burst = "4kB"
[[chain]]
nf = "policer"
marker = "single-rate"
cir = "1Mbit/s"
cbs = "4kB"
ebs = "4kB"
[[chain]]
nf = "source-counter"
[[chain]]
nf = "scan"
method = "fan-out"
threshold = 3
[[chain]]
nf = "scan"
method = "trw"
[[chain]]
nf = "conntrack"
invalid = "pass"
[[chain]]
nf = "balancer"
table_size = 13
services = [{ address = "10.0.0.2", backends = [{ address = "10.0.0.3" }] }]
[[chain]]
nf = "meter"
fields = "full"
[run]
"#;

/// A TCP packet with SYN from 10.0.0.1 to 10.0.0.2, and the answer, both twice.
fn capture() -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 262_144, 101] {
        file.extend(word.to_le_bytes());
    }
    for number in 0..4u32 {
        let (source, destination, flags) = if number % 2 == 0 { (1, 2, 0x02) } else { (2, 1, 0x12) };
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
        packet.extend([10, 0, 0, source, 10, 0, 0, destination]);
        let ports = [0, source * 10, 0, destination * 10];
        let numbers = [0; 8];
        packet.extend([&ports[..], &numbers, &[0x50, flags, 0, 0, 0, 0, 0, 0]].concat());
        for word in [number, 0, 40, 40] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

fn summary(device: &str, state: State) -> String {
    let context = Context { folder: std::path::Path::new(""), ignore_flags: false };
    let chain =
        Chain::parse("chain", &format!("{CHAIN}device = \"{device}\"\n"), context).expect("a good chain");
    let mut plan = Plan::new(chain);
    let Ok((state, _)) = plan.restore(state) else { return String::new() };
    let life = LifecycleOptions {
        restore: Some(state),
        save: Some(Saving { every: None, save: Box::new(|_| Ok(())) }),
        ..LifecycleOptions::default()
    };
    let io = Io {
        source: Box::new(CaptureReader::from_bytes("memory", Arc::new(capture())).expect("a capture")),
        outputs: &mut Outputs::default(),
        limit: None,
        stop: Stop::default(),
        progress: &mut |_, _| {},
        notice: &mut |_| {},
        devices: Vec::new(),
        life,
    };
    run(&plan, io).expect("memory can be read").json()["received"].to_string()
}

fuzz_target!(|bytes: &[u8]| {
    let _ = State::decode(bytes);
    // As if whoever wrote it had meant it.
    let sealed = [bytes, &crc32fast::hash(bytes).to_le_bytes()].concat();
    let Ok(state) = State::decode(&sealed) else { return };
    let _ = (state.json(), state.rows());
    assert_eq!(summary("cpu", state.clone()), summary("oracle", state));
});
