//! ACLs that a device takes: whatever it does, and it may fail at any time, results are those of cores. What holds for all kinds of chains is in `matrix.rs`.

#![allow(missing_docs)]

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use packetloom_device::faults::{Call, Chances, Faults};
use packetloom_device::{Cache, Device, Id};
use packetloom_engine::chain::Chain;
use packetloom_engine::offload::acls::LANES;
use packetloom_engine::run::{Io, LifecycleOptions};
use packetloom_engine::{Outputs, Plan, run};
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_nf::Context;
use support::{Away, How, RULES, results, traffic};

const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
const LOGGING: &str =
    "[[chain]]\nnf = \"acl\"\nrules = \"more\"\nlog = \"log\"\nlog_rate = \"100/s\"\ndefault = \"permit\"\n";
const UNCOUNTED: &str = "[[chain]]\nnf = \"acl\"\nrules = \"more\"\ncounters = false\n";
/// On cores, since VLANs are part of its flows.
const METER: &str = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"900ms\"\nactive_timeout = \"5s\"\noutput = \"flows\"\nvlan_in_key = true\n";

fn open(id: Id) -> Device {
    let cache = Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    Device::open(id, cache).expect("it was listed")
}

/// The GPU, or whatever else there is that is faster than the host's sanitisers.
fn accelerator() -> Option<Device> {
    packetloom_testing::accelerators().into_iter().next().map(open)
}

/// What `auto` chooses differs from run to run; what comes out does not.
#[test]
fn a_device_that_is_used_when_it_is_better_changes_nothing() {
    let capture = traffic(60_000, 60_000 / 20 + 1, 7);
    let chain = format!("{ACL}{METER}");
    let how = || How { settings: "device = \"auto\"", ..How::default() };
    let (expected, _, _) = results(&chain, &capture, How::default());
    let (found, _, _) = results(&chain, &capture, how());
    assert!(found == expected);
    let Some(device) = accelerator() else { return };
    // The second one is larger than what a lane holds.
    for settings in ["device = \"auto\"", "device = \"auto\"\nbatch = 65535"] {
        for chain in [ACL, &chain] {
            let (expected, _, _) = results(chain, &capture, How::default());
            let how = How { settings, devices: vec![device.clone()], ..How::default() };
            let (found, shares, _) = results(chain, &capture, how);
            assert!(found == expected, "{settings}");
            assert_eq!(shares.map(|shares| shares.device + shares.here), Some(60_000));
        }
    }
}

#[test]
fn a_function_without_a_kernel_at_first_leaves_all_here() {
    let capture = traffic(3_000, 3_000 / 20 + 1, 8);
    let chain = format!("{METER}{ACL}");
    let (expected, _, _) = results(&chain, &capture, How::default());
    let (found, shares, _) =
        results(&chain, &capture, How { settings: "device = \"host\"", ..How::default() });
    assert!(found == expected);
    assert_eq!(shares, None);
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("rules"), RULES).expect("written");
    let text = format!("{ACL}[run]\ndevice = \"opencl:77\"\n");
    let context = Context { folder: folder.path(), ignore_flags: false };
    let plan = Plan::new(Chain::parse("chain", &text, context).expect("a good chain"));
    let stop = Stop::default();
    let io = Io {
        source: Box::new(
            CaptureReader::from_reader("stream", std::io::Cursor::new(traffic(1, 1, 1)), &stop)
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
    let error = run(&plan, io).expect_err("no such device").to_string();
    assert!(error.contains("opencl"), "{error}");
}

/// Each kind of fault, once: software judges what was with the device, which is said once, and the device comes back.
#[test]
fn faults_change_nothing() {
    let capture = traffic(60_000, 60_000 / 20 + 1, 9);
    let chain = format!("{ACL}{LOGGING}{METER}");
    let (expected, _, _) = results(&chain, &capture, How::default());
    let Some(device) = accelerator() else { return };
    let id = device.description().id;
    // Small batches: as many calls as faults need.
    let settings = format!("device = \"{id}\"\nmax_latency = \"1us\"");
    let mut seen = 0;
    for (call, after) in
        [(Call::Launch, LANES as u64), (Call::Launch, 7), (Call::Finish, 14), (Call::Finish, 16)]
    {
        let faults = Faults::new();
        faults.fail(call, after);
        let how = How { settings: &settings, devices: vec![device.with_faults(&faults)], ..How::default() };
        let (found, shares, notices) = results(&chain, &capture, how);
        assert!(found == expected, "{call:?} {after}");
        let shares = shares.expect("a device was used");
        assert_eq!(shares.device + shares.here, 60_000);
        if faults.counts(call).faults > 0 {
            seen += 1;
            assert_eq!(shares.faults, 1, "{call:?} {after}: {notices:?}");
            assert_eq!(
                notices.iter().filter(|notice| notice.contains("software goes on")).count(),
                1,
                "{notices:?}"
            );
        }
    }
    assert_eq!(seen, 4);
}

/// A device that is gone at once: all is judged here, and that is said once, however often it is tried again.
#[test]
fn a_device_that_disappears_for_ever_is_said_once() {
    let Some(device) = accelerator() else { return };
    let settings = format!("device = \"{}\"\nmax_latency = \"1us\"", device.description().id);
    let capture = traffic(400_000, 400_000 / 20 + 1, 10);
    let (expected, _, _) = results(ACL, &capture, How::default());
    let faults = Faults::new();
    let how = How {
        settings: &settings,
        devices: vec![device.with_faults(&faults)],
        at: Some((20_000, Box::new(|| faults.disappear()))),
        ..How::default()
    };
    let (found, shares, notices) = results(ACL, &capture, how);
    assert!(faults.is_gone());
    assert!(found == expected);
    let shares = shares.expect("a device was used");
    assert_eq!(shares.device + shares.here, 400_000);
    assert!(shares.faults > 0 && shares.here > 0, "{shares:?}");
    assert_eq!(notices.len(), 1, "{notices:?}");
}

/// A device that hangs is given up after a time; the run ends.
#[test]
fn a_device_that_hangs_is_given_up() {
    let Some(device) = accelerator() else { return };
    let settings =
        format!("device = \"{}\"\ndevice_timeout = \"1s\"\nmax_latency = \"1us\"", device.description().id);
    let capture = traffic(100_000, 100_000 / 20 + 1, 11);
    let (expected, _, _) = results(ACL, &capture, How::default());
    let faults = Faults::new();
    let (found, shares, notices) = thread::scope(|scope| {
        let hang = || {
            faults.hang();
            scope.spawn(|| {
                thread::sleep(Duration::from_secs(6));
                faults.release();
            });
        };
        let how = How {
            settings: &settings,
            devices: vec![device.with_faults(&faults)],
            at: Some((20_000, Box::new(hang))),
            ..How::default()
        };
        results(ACL, &capture, how)
    });
    assert!(found == expected);
    let shares = shares.expect("a device was used");
    assert_eq!(shares.device + shares.here, 100_000);
    assert!(notices[0].contains("no answer for ") && shares.faults > 0, "{notices:?}");
}

/// Faults at random moments over a long run; `PACKETLOOM_FAULTED_PACKETS` says over how many packets, 300,000 unless given.
#[test]
fn no_packet_is_lost_or_judged_twice() {
    let Some(device) = accelerator() else { return };
    let packets = std::env::var("PACKETLOOM_FAULTED_PACKETS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(300_000);
    // Small batches, so that there are many.
    let settings = format!("device = \"{}\"\nmax_latency = \"1us\"", device.description().id);
    let capture = traffic(packets, packets / 20 + 1, 12);
    let chain = format!("{ACL}{UNCOUNTED}");
    let (expected, _, _) = results(&chain, &capture, How::default());
    let faults = Faults::new();
    let done = AtomicBool::new(false);
    let (found, shares, notices) = thread::scope(|scope| {
        let begin = || {
            // The device comes back only after a while, so faults are rarer in a longer run.
            let chance = 600.0 / (packets as f64 / 64.0) / 8.0;
            faults.at_random(1, Chances { allocation: 0.01, copy: chance, launch: chance, finish: chance });
            scope.spawn(|| {
                // Away for a moment now and then.
                while !done.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(200));
                    faults.disappear();
                    thread::sleep(Duration::from_millis(20));
                    faults.restore();
                }
            });
        };
        let how = How {
            settings: &settings,
            devices: vec![device.with_faults(&faults)],
            at: Some((10_000, Box::new(begin))),
            ..How::default()
        };
        let results = results(&chain, &capture, how);
        done.store(true, Ordering::Relaxed);
        results
    });
    assert_eq!(found.summary, expected.summary);
    assert!(found == expected);
    let shares = shares.expect("a device was used");
    eprintln!("{packets} packets: {shares:?}, {} notices", notices.len());
    assert_eq!(shares.device + shares.here, packets);
    assert!(shares.faults > 0, "{shares:?}: nothing failed");
}

/// While the device is loaded with changed rules software decides by them, packet by packet; then the device does.
#[test]
fn rules_change_while_packets_come() {
    let changes = "\
at 9000
add last permit udp from any to any port 4000-9999 id more
delete ssh
commit
at 9100
replace more deny udp from any to any port 5000-9999
add first deny tcp from any to any port 443 flags A/SA
commit
at 9100
delete ack
commit
at 300000
add first permit icmp from any to any
commit
";
    let chain = format!("{}log = \"log\"\nlog_rate = \"1000/s\"\n{METER}", ACL);
    for id in [Some(Id::Host), accelerator().map(|device| device.description().id)].into_iter().flatten() {
        let packets = if id == Id::Host { 9_500 } else { 600_000 };
        let capture = traffic(packets, packets / 20 + 1, 13);
        let how = || How { changes: Some(changes), ..How::default() };
        let (expected, _, _) = results(&chain, &capture, how());
        if id == Id::Host {
            let (oracle, _, _) = results(&chain, &capture, How { settings: "device = \"oracle\"", ..how() });
            assert!(expected == oracle);
        }
        let settings = format!("device = \"{id}\"\nmax_latency = \"1us\"");
        // Cores would be through before a slow driver has loaded.
        let faults = Faults::new();
        let mut away = Away::new(&faults);
        let each: Box<dyn FnMut(u64) + Send> = Box::new(|_| away.wait(Duration::from_millis(100)));
        let devices = vec![open(id).with_faults(&faults)];
        let on = How { settings: &settings, devices, each: (id != Id::Host).then_some(each), ..how() };
        let (found, shares, notices) = results(&chain, &capture, on);
        assert_eq!(found.summary, expected.summary, "{id}");
        assert!(found == expected, "{id}: other records, log or packets, or in another order");
        let shares = shares.expect("a device was used");
        assert_eq!((shares.device + shares.here, shares.faults), (packets, 0), "{notices:?}");
        assert!(shares.device > 8_000 && shares.here > 100, "{shares:?}");
        eprintln!("{id}: {shares:?}");
        // Loaded again after changes.
        assert!(id == Id::Host || shares.loads >= 2, "{shares:?}");
    }
}
