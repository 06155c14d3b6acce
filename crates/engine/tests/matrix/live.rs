//! Batches of a live source overlap on a device where that is better, and now and then to find that out: results are the oracle's, through faults and reloads as well.

use super::*;

use std::sync::atomic::{AtomicBool, Ordering};

/// Batches come to have the fewest packets that are worth a launch, 64. So these are 140 batches: batches overlap in the second series of 36, to find out whether
/// that is better.
const PACKETS: u64 = 9_000;
/// The same before the first fault of several, which comes after a quarter.
const PACKETS_WITH_FAULTS: u64 = 22_000;

/// Without what depends on when a batch comes: flows that are silent at the end are over before, or with the run.
fn whenever(mut results: Results) -> Results {
    let functions = results.summary["functions"].as_array_mut().expect("functions");
    for function in functions.iter_mut().filter(|function| function.get("ended").is_some()) {
        function["ended"].take();
    }
    for record in &mut results.records {
        let mut fields: serde_json::Value = serde_json::from_str(record).expect("JSON");
        fields["flowEndReason"].take();
        *record = fields.to_string();
    }
    results.records.sort_unstable();
    results
}

/// Runs something while a device with faults tells of what is done only from time to time, so that it takes a millisecond for a batch.
fn slowly<T>(faults: &Faults, run: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                faults.hang();
                thread::sleep(Duration::from_millis(1));
                faults.release();
                thread::sleep(Duration::from_micros(100));
            }
        });
        let result = run();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// To read a batch takes about as long as to judge it there.
const PAUSE: Duration = Duration::from_millis(1);

fn settings_of(device: &Device, workers: usize) -> String {
    format!("{}\nmax_latency = \"1us\"\nbatch = 64", settings_for(device, workers))
}

#[test]
fn batches_overlap() {
    let mut below = Below(41);
    for device in devices() {
        let capture = capture_of(PACKETS, 41);
        for (chain, next, workers) in all_kinds() {
            let settings = settings_of(&device, workers);
            let reloads = vec![(PACKETS / 2 + below.next(PACKETS / 4), next)];
            let how = How { settings: ORACLE, reloads: reloads.clone(), ..How::default() };
            let expected = whenever(results(&chain, &capture, how).0);
            let each: Box<dyn FnMut(u64) + Send> = Box::new(|_| thread::sleep(PAUSE));
            let faults = Faults::new();
            let device = device.with_faults(&faults);
            let how =
                How { is_stream: true, is_live: true, each: Some(each), reloads, ..on(&device, &settings) };
            let (found, shares, notices) = slowly(&faults, || results(&chain, &capture, how));
            let found = whenever(found);
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
            let shares = check_shares(shares, PACKETS, &notices);
            assert!(shares.away > 1, "{settings} {shares:?}\n{chain}");
        }
    }
}

/// What was away is judged here, each packet once and in order.
#[test]
fn devices_fail_where_batches_overlap() {
    const PACKETS: u64 = PACKETS_WITH_FAULTS;
    for device in devices() {
        let capture = capture_of(PACKETS, 42);
        for (chain, _) in kinds() {
            let settings = settings_of(&device, 1);
            let expected = whenever(oracle(&chain, &capture));
            let faults = Faults::new();
            let mut at = (2..=7).map(|part| part * PACKETS / 8).peekable();
            let mut away = Away::new(&faults);
            let each = |read: u64| {
                thread::sleep(PAUSE);
                away.wait(Duration::from_millis(100));
                if let Some(at) = at.next_if(|at| read >= *at) {
                    faults.fail(if at % (PACKETS / 4) == 0 { Call::Launch } else { Call::Finish }, 0);
                }
            };
            let how = How {
                is_stream: true,
                is_live: true,
                each: Some(Box::new(each)),
                ..on(&device.with_faults(&faults), &settings)
            };
            let (found, shares, notices) = slowly(&faults, || results(&chain, &capture, how));
            let (found, shares) = (whenever(found), shares.expect("a device was used"));
            assert!(shares.away > 1 && shares.faults > 2, "{settings} {shares:?} {notices:?}\n{chain}");
            assert_eq!(shares.device + shares.here, PACKETS);
            assert_eq!(found.summary["received"], PACKETS);
            // What a device knew of flows is lost that failed, as of its last copy.
            if plan(&chain, &settings).stateful() == 0 {
                assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
                assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
            }
        }
    }
}
