//! What a record costs: nanoseconds of CPU time for each that a report is made of, on one core.
//!
//! `cargo bench -p packetloom-report` prints a line of JSON for each report: the median of five rounds, and the least and the most of them.
//! Records are uniflows in a random order, so that each is a cache miss in the table. Beyond the bound, the table has a tenth of the keys.

use std::net::Ipv4Addr;
use std::num::NonZeroUsize;

use packetloom_packet::{EndReason, FlowRecord, HalfFlow, Timestamp};
use packetloom_report::{Series, Top};
use rustix::time::{ClockId, clock_gettime};

const KEYS: u64 = 1_000_000;
const RECORDS: u64 = 4_000_000;
const ROUNDS: usize = 5;

/// The finaliser of splitmix64: a permutation.
const fn mixed(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Each source comes once before the first one comes again; five packets within as many seconds.
fn record(number: u64) -> FlowRecord {
    let key = number * 400_009 % KEYS;
    let begin = 1_790_000_000_000_000_000 + number * 10_000;
    FlowRecord {
        source: Ipv4Addr::from_bits(0x0a00_0000 + key as u32).into(),
        destination: Ipv4Addr::new(192, 0, 2, 1).into(),
        source_port: key as u16,
        destination_port: (key >> 4) as u16,
        protocol: 6,
        forward: HalfFlow {
            first: Timestamp::from_nanos(begin),
            last: Timestamp::from_nanos(begin + mixed(number) % 5_000_000_000),
            packets: 5,
            bytes: 40 + mixed(number) % 10_000,
            tcp_flags: 0,
        },
        reverse: HalfFlow::default(),
        end_reason: EndReason::IdleTimeout,
        more: None,
    }
}

/// CPU time of this thread: other programs may run on its core, too.
fn spent_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Times what takes all records once, five times.
fn time<R>(
    name: &str,
    mut make: impl FnMut() -> R,
    mut add: impl FnMut(&mut R, &FlowRecord),
    rows: impl Fn(&R) -> usize,
) {
    let mut nanos = Vec::new();
    for _ in 0..ROUNDS {
        let mut report = make();
        let mut spent = 0;
        let mut block = Vec::new();
        for first in (0..RECORDS).step_by(1_000) {
            block.clear();
            block.extend((first..first + 1_000).map(record));
            let begun = spent_nanos();
            block.iter().for_each(|record| add(&mut report, record));
            spent += spent_nanos() - begun;
        }
        assert!(rows(&report) > 0);
        nanos.push(spent as f64 / RECORDS as f64);
    }
    nanos.sort_unstable_by(f64::total_cmp);
    let [least, median, most] = [nanos[0], nanos[ROUNDS / 2], nanos[ROUNDS - 1]];
    println!(
        r#"{{"report":"{name}","records":{RECORDS},"keys":{KEYS},"ns_per_record":{median:.1},"least":{least:.1},"most":{most:.1}}}"#
    );
}

fn top(spec: &str, keys: u64, name: &str) {
    let keys = NonZeroUsize::new(keys as usize).expect("not 0");
    let make = || Top::with_keys(spec.parse().expect("a specification"), keys);
    time(name, make, Top::add, |top| top.rows().len());
}

fn series(spec: &str) {
    let make = || Series::new(spec.parse().expect("a specification"));
    time(spec, make, Series::add, |series| series.counts().len());
}

fn main() {
    top("source/bytes", KEYS, "source/bytes");
    top("flow/bytes", KEYS, "flow/bytes");
    top("source/bytes", KEYS / 10, "source/bytes beyond the bound");
    series("1m");
    series("1s");
    series("1s/protocol");
    series("1s/source");
}
