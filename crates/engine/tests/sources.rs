//! Sources that have nothing for a time: what is known is written meanwhile, idle state expires, and time is that of the wall.

#![allow(missing_docs)]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use packetloom_engine::chain::Chain;
use packetloom_engine::run::{Control, Io, LifecycleOptions};
use packetloom_engine::{Outputs, Plan, run};
use packetloom_io::capture::{CaptureReader, CaptureWriter};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_io::port::EgressCounts;
use packetloom_io::{Error, Polled, Sink, Source};
use packetloom_nf::Context;
use packetloom_packet::{Batch, Timestamp};
use support::traffic;

/// How far the wall clock is before the clock of the packets.
const AHEAD: i64 = 7_000_000_000_000;

/// Packets of the first batch, or more.
const FIRST: u64 = 1_536;
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
        assert!(silence < Duration::from_secs(120), "no record while nothing comes");
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

/// With functions before the meter; the chain is read again on the way.
fn idle_flows_are_exported(before: &str, settings: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("all"), "permit any from any to any\n").expect("written");
    let chain = format!(
        "{before}[[chain]]\nnf = \"meter\"\nidle_timeout = \"1ms\"\noutput = \"flows\"\n[run]\n{settings}\n"
    );
    let at = folder.path().to_owned();
    let load = move || {
        let context = Context { folder: &at, ignore_flags: false };
        Plan::new(Chain::parse("chain", &chain, context).expect("a good chain"))
    };
    let plan = load();
    let control = Arc::new(Control::default());
    let (reload, was_reloaded) = (control.reload_flag(), Arc::new(AtomicBool::new(false)));
    let path = folder.path().join("flows");
    let mut output = Output::create(&path).expect("a file");
    output.appear().expect("a name");
    let mut records_of: Vec<_> = plan.chain().functions().iter().map(|_| None).collect();
    *records_of.last_mut().expect("a meter") = Some(output);
    let mut outputs = Outputs { records: records_of, ..Outputs::default() };
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
            let (path, was_reloaded) = (path.clone(), Arc::clone(&was_reloaded));
            // All packets are in records.
            move |came| was_reloaded.load(Ordering::Relaxed) && packets(&path) >= came
        }),
    };
    let life = LifecycleOptions {
        control,
        load: Some(Box::new(move |_| Ok(load()))),
        reloaded: Some(Box::new(|| was_reloaded.store(true, Ordering::Relaxed))),
        ..LifecycleOptions::default()
    };
    let mut notices = Vec::new();
    let io = Io {
        source: Box::new(source),
        outputs: &mut outputs,
        limit: None,
        stop,
        progress: &mut |_, received| {
            if received <= FIRST {
                reload.store(true, Ordering::Relaxed);
            }
        },
        notice: &mut |text| notices.push(text.to_owned()),
        devices: Vec::new(),
        life,
    };
    let outcome = run(&plan, io).expect("a run");
    assert_eq!(notices, [] as [&str; 0], "{settings}");
    assert!(outcome.reloads.done > 0 && outcome.reloads.refused == 0);
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
    idle_flows_are_exported("", "workers = 1");
}

#[test]
fn idle_flows_of_all_workers_are_exported_while_nothing_comes() {
    idle_flows_are_exported("", "workers = 3");
}

/// Whatever a device has of the chain; it is loaded anew while packets come.
#[test]
fn idle_flows_behind_a_device_are_exported_while_nothing_comes() {
    let acl = "[[chain]]\nnf = \"acl\"\nrules = \"all\"\n";
    let state = "[[chain]]\nnf = \"counter\"\n";
    for before in [acl, state, &[acl, state].concat()] {
        idle_flows_are_exported(before, "device = \"host\"");
    }
}

/// A capture whose frames are to leave by one of two interfaces.
struct Fork(CaptureReader);

/// The interface by which a frame leaves.
fn exit(bytes: &[u8]) -> u16 {
    u16::from(bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)) % 2)
}

impl Source for Fork {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        if !self.0.fill(batch)? {
            return Ok(Polled::End);
        }
        let exits: Vec<_> = batch.each_bytes().map(exit).collect();
        *batch.egress_mut() = exits;
        Ok(Polled::Frames)
    }

    fn wait(&mut self, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn is_live(&self) -> bool {
        false
    }
}

/// A frame, and the interface by which it leaves.
type Left = (u16, Vec<u8>);

/// Has room for so many frames of a batch.
#[derive(Debug)]
struct Room {
    frames: usize,
    taken: Arc<Mutex<Vec<Left>>>,
    counts: [EgressCounts; 2],
}

impl Sink for Room {
    fn send_passed(&mut self, batch: &mut Batch) {
        let mut left = self.frames;
        for (index, (verdict, &egress)) in batch.verdicts().iter().zip(batch.egress()).enumerate() {
            let counts = &mut self.counts[usize::from(egress)];
            if verdict.is_pass() && left == 0 {
                counts.no_room += 1;
            } else if verdict.is_pass() {
                left -= 1;
                counts.counts.sent += 1;
                self.taken.lock().expect("not poisoned").push((egress, batch.bytes(index).to_vec()));
            }
        }
    }

    fn egress_counts(&self) -> Vec<EgressCounts> {
        self.counts.to_vec()
    }
}

/// What passes leaves by a program's own sink, in order, each frame by its interface; nobody waits for a full one.
#[test]
fn a_program_has_a_sink_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("rules"), "deny tcp from any to any\npermit any from any to any\n")
        .expect("written");
    let capture = traffic(3_000, 50, 4);
    for (workers, room) in [(1, usize::MAX), (3, usize::MAX), (1, 10), (3, 10)] {
        let chain = format!("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[run]\nworkers = {workers}\n");
        let context = Context { folder: folder.path(), ignore_flags: false };
        let plan = Plan::new(Chain::parse("chain", &chain, context).expect("a good chain"));
        let taken = Arc::new(Mutex::new(Vec::new()));
        let sink = Room { frames: room, taken: Arc::clone(&taken), counts: Default::default() };
        let passed = folder.path().join("passed");
        let reader = |bytes: Vec<u8>| CaptureReader::from_bytes("memory", bytes.into()).expect("a capture");
        let source = reader(capture.clone());
        let mut outputs = Outputs {
            egress: Some(Box::new(sink)),
            sink: Some(CaptureWriter::create(&passed, source.resolution()).expect("a file")),
            ..Outputs::default()
        };
        let io = Io {
            source: Box::new(Fork(source)),
            outputs: &mut outputs,
            limit: None,
            stop: Stop::default(),
            progress: &mut |_, _| (),
            notice: &mut |text| panic!("{text}"),
            devices: Vec::new(),
            life: LifecycleOptions::default(),
        };
        let outcome = run(&plan, io).expect("a run");
        let counts = outputs.egress.as_ref().expect("the sink").egress_counts();
        outputs.publish().expect("written");
        let mut written = reader(std::fs::read(&passed).expect("a capture"));
        let (mut frames, mut batch) = (Vec::new(), Batch::new(256));
        while written.fill(&mut batch).expect("read") {
            frames.extend(batch.each_bytes().map(|bytes| (exit(bytes), bytes.to_vec())));
        }
        assert!(frames.len() > 1_000 && frames.len() as u64 == outcome.verdicts.passed, "{}", frames.len());
        let taken = taken.lock().expect("not poisoned");
        let sum = |of: fn(&EgressCounts) -> u64| counts.iter().map(of).sum::<u64>();
        let (sent, no_room) = (sum(|counts| counts.counts.sent), sum(|counts| counts.no_room));
        assert_eq!((sent, sent + no_room), (taken.len() as u64, frames.len() as u64));
        if room == usize::MAX {
            assert_eq!(*taken, frames, "{workers} workers");
        } else {
            assert!(no_room > 0);
            let mut rest = frames.iter();
            assert!(taken.iter().all(|frame| rest.any(|of| of == frame)), "{workers} workers: another order");
        }
    }
}
