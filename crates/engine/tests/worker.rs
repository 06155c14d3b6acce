//! Whoever has batches of their own gets what a run writes: verdicts, records, what is to be logged.

#![allow(missing_docs)]

mod support;

use packetloom_engine::pipeline::{Shared, Worker};
use packetloom_io::capture::CaptureReader;
use packetloom_packet::Batch;
use support::{How, plan, results, traffic};

const CHAIN: &str = "\
[[chain]]
nf = \"acl\"
rules = \"rules\"
log = \"log\"
log_rate = \"unlimited\"
[[chain]]
nf = \"meter\"
idle_timeout = \"2ms\"
output = \"flows\"
";

#[test]
fn a_worker_hands_out_records_and_logged_packets() {
    let capture = traffic(5_000, 300, 9);
    let plan = plan(CHAIN, "");
    let shared = Shared::new(&plan, 1, 100);
    let mut worker = Worker::new(&plan, &shared, 0);
    let mut source = CaptureReader::from_bytes("memory", capture.clone().into()).expect("a capture");
    let mut batch = Batch::new(100);
    let (mut records, mut logged, mut passed) = (String::new(), 0, 0);
    let mut take = |worker: &mut Worker| {
        for effects in worker.effects() {
            records.push_str(effects.lines);
            logged += effects.log_entries.len();
        }
    };
    while source.fill(&mut batch).expect("a batch") {
        worker.judge(&mut batch).expect("judged");
        passed += batch.verdicts().iter().filter(|verdict| verdict.is_pass()).count();
        take(&mut worker);
    }
    while worker.drain() {
        take(&mut worker);
    }
    take(&mut worker);
    let counted = shared.finish(&plan, [worker]).expect("counted");

    let (expected, ..) = results(CHAIN, &capture, How::default());
    let mut records: Vec<_> = records.lines().map(str::to_owned).collect();
    records.sort_unstable();
    assert!(records.len() > 300 && logged > 100, "{} {logged}", records.len());
    assert_eq!(records, expected.records);
    assert_eq!(logged, expected.log.lines().count());
    assert_eq!(passed, expected.summary["passed"].as_u64().expect("a count") as usize);
    assert_eq!(counted.functions[1].json()["biflows"], expected.summary["functions"][1]["biflows"]);
}
