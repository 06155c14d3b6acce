//! Sources that have nothing for a time: what is known is written meanwhile, idle state expires, and time is that of the wall.

#![allow(missing_docs)]

mod support;

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use packetloom_engine::chain::Chain;
use packetloom_engine::run::{Io, Life};
use packetloom_engine::{Outputs, Plan, run};
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_io::{Error, Polled, Source};
use packetloom_nf::Context;
use packetloom_packet::{Batch, Timestamp};
use support::traffic;

/// How far the wall clock is before the clock of the packets.
const AHEAD: i64 = 7_000_000_000_000;

const HOUR: u64 = 3_600_000_000_000;

/// An interface by which some packets come, and none after that.
struct Wire {
    capture: CaptureReader,
    batches: usize,
    last: u64,
    silent_since: Option<Instant>,
    stop: Stop,
    /// Frames that came.
    came: u64,
    is_done: Box<dyn Fn(u64) -> bool + Send>,
}

impl Source for Wire {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        if self.batches > 0 && self.capture.fill(batch)? {
            self.batches -= 1;
            self.came += batch.len() as u64;
            self.last = batch.frames().last().expect("a frame").time.as_nanos();
            batch.set_wall_offset(AHEAD);
            return Ok(Polled::Frames);
        }
        batch.reset(packetloom_packet::batch::empty_arena());
        let silence = self.silent_since.get_or_insert_with(Instant::now).elapsed();
        assert!(silence < Duration::from_secs(20), "no record while nothing comes");
        if (self.is_done)(self.came) {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(Polled::Nothing)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        std::thread::sleep(timeout);
        Ok(())
    }

    fn is_live(&self) -> bool {
        true
    }

    fn wall_offset(&self) -> i64 {
        AHEAD
    }

    fn now(&self) -> Option<Timestamp> {
        let silence = self.silent_since.map_or(0, |since| since.elapsed().as_nanos() as u64);
        Some(Timestamp::from_nanos(self.last + silence))
    }
}

fn idle_flows_are_exported(workers: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let chain = format!(
        "[[chain]]\nnf = \"meter\"\nidle_timeout = \"1ms\"\noutput = \"flows\"\n[run]\nworkers = {workers}\n"
    );
    let context = Context { folder: folder.path(), ignore_flags: false };
    let plan = Plan::new(Chain::parse("chain", &chain, context).expect("a good chain"));
    let path = folder.path().join("flows");
    let mut output = Output::create(&path).expect("a file");
    output.appear().expect("a name");
    let mut outputs = Outputs { records: vec![Some(output)], ..Outputs::default() };
    let stop = Stop::default();
    let capture = traffic(2_000, 50, 3);
    let seconds = u32::from_le_bytes(capture[24..28].try_into().expect("four bytes"));
    let begin = u64::from(seconds) * 1_000_000_000;
    let source = Wire {
        capture: CaptureReader::from_bytes("memory", capture.into()).expect("a capture"),
        batches: 2,
        last: 0,
        silent_since: None,
        came: 0,
        stop: stop.clone(),
        is_done: Box::new({
            let path = path.clone();
            // All packets are in records.
            move |came| packets(&path) >= came
        }),
    };
    let io = Io {
        source: Box::new(source),
        outputs: &mut outputs,
        limit: None,
        stop,
        progress: &mut |_, _| {},
        notice: &mut |_| {},
        device: None,
        life: Life::default(),
    };
    let outcome = run(&plan, io).expect("a run");
    outputs.publish().expect("written");
    let received = outcome.verdicts.received();
    assert_eq!(packets(&path), received);
    for record in records(&path) {
        assert_eq!(record["flowEndReason"], 1, "idle: {record}");
        let start = record["flowStartMilliseconds"].as_u64().expect("a time");
        let wall = start * 1_000_000 - AHEAD as u64;
        assert!((begin - 1_000_000..begin + HOUR).contains(&wall), "wall time: {record}");
    }
}

fn records(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

fn packets(path: &Path) -> u64 {
    let count = |record: &serde_json::Value| {
        ["packetDeltaCount", "reversePacketDeltaCount"].map(|key| record[key].as_u64().expect("a count"))
    };
    records(path).iter().flat_map(count).sum()
}

#[test]
fn idle_flows_are_exported_while_nothing_comes() {
    idle_flows_are_exported(1);
}

#[test]
fn idle_flows_of_all_workers_are_exported_while_nothing_comes() {
    idle_flows_are_exported(3);
}
