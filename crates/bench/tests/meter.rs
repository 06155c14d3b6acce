//! The meter on devices: whatever is asked for, its records are the CPU's; what does not fit is handed back.

#![allow(missing_docs)]

use std::fs::File;
use std::path::{Path, PathBuf};

use packetloom_bench::Error;
use packetloom_bench::meter::device::{Launch, Options, PacketMemory, run};
use packetloom_bench::meter::{Hash, Parse, SliceBytes, Stage};
use packetloom_device::{Cache, Device, Id};
use packetloom_generate::TrafficOptions;
use packetloom_io::input::Stop;
use serde_json::Value;

fn slices() -> Vec<SliceBytes> {
    ["64", "128", "256"].map(|bytes| bytes.parse().expect("a slice")).to_vec()
}

fn options(capture: &Path, output: &Path) -> Options {
    Options {
        captures: vec![capture.to_owned()],
        output: output.to_owned(),
        bursts: vec![1000],
        blocks: Vec::new(),
        slices: vec![SliceBytes::default()],
        keys_per_thread: vec![1],
        parses: vec![Parse::Local],
        memories: vec![PacketMemory::Device],
        launches: vec![Launch::Burst],
        hashes: vec![Hash::Fold],
        stages: vec![Stage::All],
        slots: None,
        in_flight: 2,
        rounds: 1,
        workload: "test".into(),
    }
}

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("packetloom-meter-{}-{name}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A capture of so many packets and flows, a third of them IPv6, many in VLANs.
fn traffic(name: &str, packets: u64, flows: u64) -> Temporary {
    let file = Temporary::new(name);
    let options =
        TrafficOptions { packets, flows, ipv6_share: 33, vlan_share: 40, snap: 128, ..Default::default() };
    let writer = File::create(&file.0).expect("a file");
    packetloom_generate::write_pcap(&options, writer, |_| {}).expect("traffic");
    file
}

fn edge() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/edge/edge.pcap")
}

/// Compiled kernels are kept for the other tests.
fn open(id: Id) -> Device {
    let cache = Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    Device::open(id, cache).expect("a device that is there")
}

fn measure(id: Id, options: &Options) -> Vec<Value> {
    let measurements = run(&open(id), options, &Stop::default());
    measurements.unwrap_or_else(|why| panic!("{id}: {why}")).iter().map(|m| m.json()).collect()
}

#[test]
fn records_are_those_of_the_cpu_whatever_is_asked_for() {
    let (made, records) = (traffic("any.pcap", 6_000, 700), Temporary::new("any.jsonl"));
    for id in packetloom_testing::devices() {
        for capture in [&made.0, &edge()] {
            let base = options(capture, &records.0);
            let everything = [
                Options { slices: slices(), parses: vec![Parse::InPlace, Parse::Local], ..base.clone() },
                Options {
                    memories: vec![PacketMemory::Copied, PacketMemory::Mapped, PacketMemory::Capture],
                    bursts: vec![64, 5_000],
                    ..base.clone()
                },
                Options {
                    launches: vec![Launch::Resident],
                    memories: vec![PacketMemory::Device, PacketMemory::Mapped],
                    bursts: vec![333],
                    keys_per_thread: vec![2],
                    ..base.clone()
                },
            ];
            // Where kernels do not stay beside this machine's, that is refused.
            let is_gpu = open(id).description().lanes > 1;
            let stays = usize::from(is_gpu);
            for (options, expected) in everything[..2 + stays].iter().zip([6, 6, 2]) {
                let values = measure(id, options);
                assert_eq!(values.len(), expected);
                for value in values {
                    assert!(value["mpps"].as_f64() > Some(0.0), "{value}");
                    assert!(
                        value["packets"].as_u64() > Some(5_000) && value["records"].as_u64() > Some(100),
                        "{value}"
                    );
                    assert_eq!(value["without_room"], 0, "{value}");
                }
            }
        }
    }
}

/// Headers of IPv6 in VLANs do not all fit into 64 bytes; all do into 256.
#[test]
fn packets_whose_headers_go_on_behind_a_slice_are_handed_back() {
    let (made, records) = (traffic("slices.pcap", 3_000, 300), Temporary::new("slices.jsonl"));
    for id in packetloom_testing::devices() {
        let values = measure(id, &Options { slices: slices(), ..options(&made.0, &records.0) });
        let handed: Vec<_> =
            values.iter().map(|value| value["handed_back"].as_u64().expect("a number")).collect();
        assert!(handed[0] > 100 && handed[1] == 0 && handed[2] == 0, "{handed:?}");
    }
}

#[test]
fn flows_without_room_are_handed_back_and_none_is_lost() {
    let (made, records) = (traffic("full.pcap", 4_000, 900), Temporary::new("full.jsonl"));
    for id in packetloom_testing::devices() {
        for slots in [1, 70, 300] {
            let options = Options { slots: Some(slots), ..options(&made.0, &records.0) };
            let value = &measure(id, &options)[0];
            let (handed, full) = (value["handed_back"].as_u64(), value["without_room"].as_u64());
            assert!(full > Some(100) && handed == full, "{slots} slots: {value}");
        }
    }
}

#[test]
fn every_hash_function_gives_the_same_records_and_a_figure_of_its_own() {
    let (made, records) = (traffic("hashes.pcap", 3_000, 1_500), Temporary::new("hashes.jsonl"));
    for id in packetloom_testing::devices() {
        let values = measure(id, &Options { hashes: Hash::ALL.to_vec(), ..options(&made.0, &records.0) });
        for (value, hash) in values.iter().zip(Hash::ALL) {
            assert_eq!(value["hash"], hash.name());
            let number = |name: &str| value[name].as_f64().expect("a number");
            // Those without a seed are as an attacker wants them; a seed keeps the others as even as random numbers are.
            let has_seed = !matches!(hash, Hash::Fnv1a | Hash::SuperFast | Hash::Lanes);
            let aimed = number("aimed_chi_square");
            assert!(if has_seed { (0.9..1.1).contains(&aimed) } else { aimed > 30.0 }, "{value}");
            assert!(number("aimed_longest_chain") > if has_seed { 2.0 } else { 50.0 }, "{value}");
            if hash == Hash::Fold {
                assert!(
                    (0.8..1.2).contains(&number("chi_square")) && number("longest_chain") < 10.0,
                    "{value}"
                );
            }
        }
    }
}

#[test]
fn stages_before_the_last_look_at_all_packets_and_make_no_records() {
    let (made, records) = (traffic("stages.pcap", 2_000, 200), Temporary::new("stages.jsonl"));
    for id in packetloom_testing::devices() {
        let stages = vec![Stage::Parse, Stage::Hash, Stage::Find, Stage::All];
        let values = measure(id, &Options { stages, ..options(&made.0, &records.0) });
        let has_records: Vec<_> = values.iter().map(|value| value["records_ms"].is_number()).collect();
        assert_eq!(has_records, [false, false, false, true]);
    }
}

#[test]
fn what_cannot_be_is_said() {
    let (made, records) = (traffic("refused.pcap", 100, 10), Temporary::new("refused.jsonl"));
    let base = options(&made.0, &records.0);
    let message = |options: Options| match run(&open(Id::Host), &options, &Stop::default()) {
        Err(why) => why.to_string(),
        Ok(values) => panic!("{} measurements", values.len()),
    };
    let resident =
        Options { launches: vec![Launch::Resident], memories: vec![PacketMemory::Copied], ..base.clone() };
    assert!(
        message(resident)
            .contains("--memory copied with --launch resident; expected --memory device or mapped")
    );
    let block = message(Options { blocks: vec![33], ..base.clone() });
    assert!(block.contains("a block of 33; expected a multiple of 32 up to 32 on host"), "{block}");
    let nothing = message(Options { output: "/dev/null".into(), ..base.clone() });
    assert!(nothing.contains("compared with those in /dev/null; expected a regular file"), "{nothing}");
    let empty = traffic("empty.pcap", 1, 1);
    std::fs::write(&empty.0, &std::fs::read(&empty.0).expect("bytes")[..24])
        .expect("a capture without packets");
    let none = run(&open(Id::Host), &options(&empty.0, &records.0), &Stop::default());
    assert!(matches!(none, Err(Error::Empty)), "{none:?}");
}
