//! With `auto` flows move between cores and devices: results are the oracle's, wherever the flows are.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// One by 5-tuple.
const COUNTERS: &str = "[[chain]]\nnf = \"counter\"\n";

/// All kinds for one worker, and those for several that share no tables but for totals, or that feed a device by one thread; next to each what it
/// becomes in a reload.
fn kinds() -> Vec<(String, String, usize)> {
    let one = all_kinds().into_iter().map(|(chain, next, _)| (chain, next, 1));
    let several = several::kinds().into_iter().map(|(chain, next, _)| (chain, next, WORKERS));
    let shared = (format!("{SMALL}{COUNTER}{COUNTERS}"), format!("{SMALL}{COUNTER}{ACL}{COUNTERS}"), WORKERS);
    let without_state = (format!("{ACL}{LOGGING}{CORES_METER}"), format!("{ACL}{CORES_METER}"), WORKERS);
    one.chain(several).chain([shared, without_state]).collect()
}

fn settings_for(workers: usize) -> String {
    format!("device = \"auto\"\nworkers = {workers}\nbatch = 16\nmax_latency = \"20ms\"")
}

fn moving<'a>(device: &Device, settings: &'a str, every: u64) -> How<'a> {
    How { settings, devices: vec![device.clone()], move_every: Some(every), ..How::default() }
}

/// Every packet was judged once, here or there; and flows moved as often as was asked for, if there are any.
fn check_moves(shares: Option<Shares>, packets: u64, every: u64, has_moves: bool) {
    let shares = shares.expect("a device was used");
    assert_eq!((shares.device + shares.here, shares.faults), (packets, 0));
    // Whether there are more packets is not always known when it is time for a move.
    let moves = if has_moves { (packets - 1) / every..=packets / every } else { 0..=0 };
    assert!(moves.contains(&shares.moves), "every {every}: {shares:?}");
    if has_moves && packets > every {
        assert!(shares.device > 0 && shares.here > 0, "{shares:?}");
    }
}

/// From a file and from a pipe, with a few moves and with many, and as `auto` itself decides.
#[test]
fn flows_move() {
    for (number, (chain, _, workers)) in kinds().into_iter().enumerate() {
        for device in devices() {
            let packets = packets_for(&device);
            let capture = capture_of(packets, 30 + number as u64);
            let expected = oracle(&chain, &capture);
            let settings = settings_for(workers);
            let has_moves = plan(&chain, &settings).moves();
            let many = if device.description().lanes > 1 { 331 } else { 97 };
            for (every, is_stream) in
                [(many, false), (packets / 3, false), (1_000, true), (u64::MAX / 2, false)]
            {
                let how = How { is_stream, ..moving(&device, &settings, every) };
                let (found, shares, notices) = results(&chain, &capture, how);
                assert_eq!(found.summary, expected.summary, "{every} {settings}\n{chain}");
                assert!(found == expected, "{every} {settings}: other records, log or packets\n{chain}");
                assert_eq!(notices, [] as [&str; 0]);
                check_moves(shares, packets, every, has_moves);
            }
            let how = How { move_every: None, ..moving(&device, &settings, 1) };
            let (found, shares, _) = results(&chain, &capture, how);
            assert!(found == expected, "{settings}\n{chain}");
            assert_eq!(shares.map(|shares| shares.device + shares.here), Some(packets));
        }
    }
}

/// Where it takes long to read a packet for the cores, and less with the larger batches of a device, flows go there of themselves.
#[test]
fn flows_move_where_that_is_better() {
    const PACKETS: u64 = 96_000;
    let capture = capture_of(PACKETS, 50);
    for workers in [1, WORKERS] {
        let chain = format!("{SMALL}{COUNTERS}{LIMITER}");
        let settings = format!("device = \"auto\"\nworkers = {workers}\nbatch = 64");
        let expected = oracle(&chain, &capture);
        for device in devices() {
            // Kernels are compiled, and kept: cores would be through before that.
            let warm = moving(&device, &settings, PACKETS / 2);
            let _ = results(&chain, &capture, warm);
            let mut before = 0;
            let each = |read: u64| {
                let packets = read - std::mem::replace(&mut before, read);
                // As long for 64 packets for each worker as for all of a large batch.
                thread::sleep(Duration::from_millis(packets.min(192).div_ceil(64)));
            };
            let how = How { each: Some(Box::new(each)), move_every: None, ..moving(&device, &settings, 1) };
            let (found, shares, notices) = results(&chain, &capture, how);
            let shares = shares.expect("a device was used");
            eprintln!("{settings}: {shares:?}, {notices:?}");
            assert_eq!(shares.device + shares.here, PACKETS);
            assert!(shares.moves > 0 && shares.device > 0, "{shares:?}");
            assert_eq!(found.summary, expected.summary, "{settings}");
            assert!(found == expected, "{settings}");
        }
    }
}

/// How a chain is run where the device is opened once somebody says so, or drops what says it.
fn opening<'a>(device: Option<Device>, settings: &'a str) -> (How<'a>, mpsc::Sender<()>) {
    let (begin, begins) = mpsc::channel();
    let open = move || {
        let _ = begins.recv();
        device
    };
    (How { settings, open: Some(Box::new(open)), ..How::default() }, begin)
}

/// Cores judge until a device is there, through reloads as well; then it judges, too.
#[test]
fn a_device_is_opened_while_cores_judge() {
    let mut below = Below(34);
    for device in devices() {
        let packets = 2 * packets_for(&device);
        let capture = capture_of(packets, 55);
        for (chain, next, workers) in kinds() {
            let settings = settings_for(workers);
            let next = [next, chain.clone()];
            let mut at = [below.next(packets / 2), below.next(packets / 2)];
            at.sort_unstable();
            for count in [0, 2] {
                let reloads: Vec<_> = at.into_iter().zip(next.clone()).take(count).collect();
                let how = How { reloads: reloads.clone(), settings: ORACLE, ..How::default() };
                let expected = results(&chain, &capture, how).0;
                // With moves, wherever they are; otherwise it is used from when it is there, for which one worker can wait.
                let waits = workers == 1 && !plan(&chain, &settings).moves();
                let faults = Faults::new();
                let (how, begin) = opening(Some(device.with_faults(&faults)), &settings);
                let each = |read: u64| {
                    if read >= packets / 4 {
                        let _ = begin.send(());
                        let begun = Instant::now();
                        while waits && read >= packets * 3 / 4 && faults.counts(Call::Launch).calls == 0 {
                            assert!(begun.elapsed() < Duration::from_secs(60), "it is loaded");
                            thread::sleep(Duration::from_millis(1));
                        }
                        thread::sleep(Duration::from_millis(1));
                    }
                };
                let how = How { each: Some(Box::new(each)), reloads: reloads.clone(), ..how };
                let (found, shares, notices) = results(&chain, &capture, how);
                assert_eq!(found.summary, expected.summary, "{reloads:?} {settings}\n{chain}");
                assert!(found == expected, "{reloads:?} {settings}\n{chain}");
                assert_eq!(notices, [] as [&str; 0]);
                let shares = shares.expect("a device was opened");
                assert_eq!(shares.device + shares.here, packets);
                assert!(shares.here >= packets / 4 && !shares.is_late, "{shares:?}");
                assert!(!waits || shares.device > 0 && shares.moves == 0, "{shares:?} {settings}\n{chain}");
            }
            let (how, begin) = opening(Some(device.clone()), &settings);
            drop(begin);
            let every = 50 + below.next(packets / 4);
            let (found, shares, _) = results(&chain, &capture, How { move_every: Some(every), ..how });
            assert!(found == oracle(&chain, &capture), "{every} {settings}\n{chain}");
            assert_eq!(shares.map(|shares| shares.device + shares.here), Some(packets));
        }
    }
}

/// There is no device, or it is not there before the run is over, which does not wait for it.
#[test]
fn cores_judge_where_no_device_comes() {
    let capture = capture_of(12_000, 56);
    for (chain, _, workers) in kinds() {
        let (settings, expected) = (settings_for(workers), oracle(&chain, &capture));
        let (how, begin) = opening(None, &settings);
        let each = |_| {
            let _ = begin.send(());
        };
        let (found, outcome, notices) =
            all_results(&chain, &capture, How { each: Some(Box::new(each)), ..how });
        assert!(found == expected, "{settings}\n{chain}");
        assert_eq!((outcome.shares.is_none_or(|shares| shares.is_late), notices.len()), (true, 0));
        for leaves in [false, true] {
            let (how, begin) = opening(None, &settings);
            // Long enough for it to begin.
            let each = |_| thread::sleep(Duration::from_micros(100));
            let how = How { each: Some(Box::new(each)), ..how };
            let (found, mut outcome, _) = all_results(&chain, &capture, how);
            assert!(found == expected, "{settings}\n{chain}");
            let shares = outcome.shares.take().expect("nobody knows");
            assert!(shares.is_late && shares.device == 0 && shares.here == 12_000, "{shares:?}");
            let unfinished = std::mem::take(&mut outcome.unfinished);
            if leaves {
                assert!(unfinished.leave());
                // There is still somebody who hears it.
                begin.send(()).expect("it waits");
            } else {
                begin.send(()).expect("it waits");
                drop(unfinished);
                begin.send(()).expect_err("it has ended");
            }
        }
    }
}

/// At any packet a chain becomes another one, wherever flows are, and with other rules.
#[test]
fn chains_become_others_wherever_flows_are() {
    let mut below = Below(31);
    for device in devices() {
        let packets = packets_for(&device);
        let capture = capture_of(packets, 51);
        let mut check = |first: &str, next: &[&str], workers: usize| {
            let settings = settings_for(workers);
            let mut at: Vec<_> = next.iter().map(|_| below.next(packets)).collect();
            at.sort_unstable();
            let reloads: Vec<_> = at.into_iter().zip(next.iter().map(|&next| next.to_owned())).collect();
            let how = |settings| How { settings, saves: true, reloads: reloads.clone(), ..How::default() };
            let oracle = format!("{ORACLE}\nworkers = {workers}\nbatch = 16\nmax_latency = \"20ms\"");
            let (expected, _, said) = all_results(first, &capture, how(&oracle));
            assert_eq!(expected.summary["reloads"]["done"], next.len(), "{said:?}");
            let (_, fast, _) = all_results(first, &capture, how(""));
            let every = 50 + below.next(packets / 4);
            let how = How { saves: true, reloads: reloads.clone(), ..moving(&device, &settings, every) };
            let (found, outcome, notices) = all_results(first, &capture, how);
            assert_eq!(found.summary, expected.summary, "{every} {settings}\n{first}\n{reloads:#?}");
            assert!(
                found == expected,
                "{every} {settings}: other records, log or packets\n{first}\n{reloads:#?}"
            );
            assert_eq!(outcome.state, fast.state, "{every} {settings}\n{first}\n{reloads:#?}");
            assert_eq!(notices, said, "{settings}\n{first}\n{reloads:#?}");
            let shares = outcome.shares.expect("a device was used");
            assert_eq!((shares.device + shares.here, shares.faults), (packets, 0));
        };
        let all = kinds();
        for (chain, next, workers) in &all {
            check(chain, &[next, chain], *workers);
        }
        let [acls, states, both, search] = super::kinds().map(|(chain, _)| chain);
        check(&both, &[&acls, METER, &search, &states, &both, &acls], 1);
        // Of more workers and of fewer, since tables cannot be shared.
        let more = format!("{SMALL}{COUNTERS}{METER}");
        let workers = [&more, &states].map(|chain| plan(chain, &settings_for(WORKERS)).workers());
        assert_eq!(workers, [WORKERS, 1]);
        check(&more, &[&states, &more, &states], WORKERS);
        check(&states, &[&more, &states], WORKERS);
    }
}

/// Who saves and who goes on makes no difference.
#[test]
fn state_is_saved_and_restored_wherever_flows_are() {
    let mut below = Below(32);
    for device in devices() {
        let packets = packets_for(&device);
        let capture = capture_of(packets, 52);
        for (chain, _, workers) in kinds() {
            let whole = oracle(&chain, &capture);
            let settings = settings_for(workers);
            let (at, every) = (below.next(packets), 50 + below.next(packets / 4));
            let how = How { limit: Some(at), saves: true, ..moving(&device, &settings, every) };
            let (first, outcome, _) = all_results(&chain, &capture, how);
            let restore = outcome.state;
            let how = How { restore, ..moving(&device, &settings, every) };
            let (second, _, notices) = all_results(&chain, &without_first(&capture, at), how);
            let names = format!("{at} {every} {settings}\n{chain}");
            assert_eq!(notices, [] as [&str; 0], "{names}");
            let passed = [frames(&first.passed), frames(&second.passed)].concat();
            assert!(passed == frames(&whole.passed), "other packets: {names}");
            let mut records = [first.records, second.records].concat();
            records.sort_unstable();
            assert!(records == whole.records, "other records: {names}");
        }
    }
}

/// Rules change where flows move, by a file and by transactions.
#[test]
fn rules_change_wherever_flows_are() {
    let logging = format!("{ACL}log = \"log\"\nlog_rate = \"unlimited\"\n");
    let mut below = Below(33);
    for device in devices() {
        let packets = packets_for(&device);
        let capture = capture_of(packets, 53);
        for (chain, workers) in [
            (format!("{SMALL}{COUNTER}{logging}{LIMITER}{METER}"), 1),
            (format!("{SMALL}{logging}{COUNTERS}{LIMITER}"), WORKERS),
        ] {
            let mut at = [(); 3].map(|()| below.next(packets));
            at.sort_unstable();
            let [first, second, third] = at;
            let changes = format!(
                "at {first}\nadd last permit udp from any to any port 4000-9999 id more\ncommit\n\
                 at {second}\nadd first deny tcp from any to any port 443 id no-tls\ncommit\n\
                 at {third}\nreplace more deny udp from any to any port 5000-9999\ncommit\n"
            );
            let how = How { settings: ORACLE, changes: Some(&changes), ..How::default() };
            let (expected, _, _) = results(&chain, &capture, how);
            let settings = settings_for(workers);
            // A file of changes is for one worker.
            for every in [97, 50 + below.next(packets / 2)].into_iter().filter(|_| workers == 1) {
                let how = How { changes: Some(&changes), ..moving(&device, &settings, every) };
                let (found, shares, _) = results(&chain, &capture, how);
                assert_eq!(found.summary, expected.summary, "{every} {settings}\n{chain}\n{changes}");
                assert!(found == expected, "{every} {settings}\n{chain}\n{changes}");
                check_moves(shares, packets, every, true);
            }
            let due = |number: usize| {
                (
                    at[number],
                    ["add first deny tcp from any to any port 443 id no-tls\n", "delete no-tls\n"][number]
                        .to_owned(),
                )
            };
            let transactions = || Transactions::new(vec![due(0), due(1)]);
            let how = How { settings: ORACLE, transactions: Some(transactions()), ..How::default() };
            let (expected, _, _) = results(&chain, &capture, how);
            let (asked, every) = (transactions(), 50 + below.next(packets / 4));
            let how = How { transactions: Some(asked.clone()), ..moving(&device, &settings, every) };
            let (found, shares, _) = results(&chain, &capture, how);
            assert!(asked.answers().len() == 2 && asked.answers().iter().all(Result::is_ok));
            assert_eq!(found.summary, expected.summary, "{every} {settings}\n{chain}\n{at:?}");
            assert!(found == expected, "{every} {settings}\n{chain}\n{at:?}");
            assert_eq!(shares.map(|shares| shares.device + shares.here), Some(packets));
        }
    }
}

/// A device fails when flows come to it: they stay with the cores, and nothing is lost.
#[test]
fn devices_fail_where_flows_come() {
    for device in devices() {
        let packets = 2 * packets_for(&device);
        let capture = capture_of(packets, 54);
        for (chain, _, workers) in kinds() {
            let settings = settings_for(workers);
            if plan(&chain, &settings).stateful() == 0 {
                continue;
            }
            let expected = oracle(&chain, &capture);
            let faults = Faults::new();
            let mut moments = vec![packets * 5 / 8, packets / 4];
            let (mut launches, mut quiet) = (0, 0);
            let each = |read: u64| {
                thread::sleep(Duration::from_millis(1));
                let now = faults.counts(Call::Launch).calls;
                quiet = if now == std::mem::replace(&mut launches, now) { quiet + 1 } else { 0 };
                // Cores judge.
                if now > 0 && quiet > 2 && moments.pop_if(|moment| read >= *moment).is_some() {
                    faults.fail(Call::Launch, 0);
                }
            };
            let every = packets / 12;
            let how =
                How { each: Some(Box::new(each)), ..moving(&device.with_faults(&faults), &settings, every) };
            let (found, shares, notices) = results(&chain, &capture, how);
            let shares = shares.expect("a device was used");
            eprintln!("{settings}: {shares:?}, {notices:?}");
            assert_eq!(shares.device + shares.here, packets);
            assert!(faults.counts(Call::Launch).faults > 0 && shares.faults > 0, "{shares:?}");
            assert!(shares.device > 0 && shares.here > 0, "{shares:?}");
            assert!(notices[0].contains("; software goes on"), "{notices:?}");
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
        }
    }
}

/// Packets of a sweep in all: of a GPU, and of what is slower.
const SWEPT: u64 = 10_000_000;
const SWEPT_SLOWLY: u64 = 200_000;

/// Runs a chain on a device that fails at random, and again in turns with the cores: how many packets were judged, how many of them there, how often it
/// failed, and was back. The first two chains are such that no result depends on state that is lost.
fn judged_with_faults(device: &Device, chain: &str, workers: usize, number: u64, packets: u64) -> [u64; 4] {
    let capture = capture_of(packets, 60 + number);
    let mut expected = oracle(chain, &capture);
    let mut totals = [0; 4];
    for is_auto in [false, true] {
        let settings = match is_auto {
            true => settings_for(workers).replace("20ms", "1us"),
            false => format!("{}\nmax_latency = \"1us\"", super::settings_for(device, workers)),
        };
        let faults = Faults::new();
        let mut away = Away::new(&faults);
        let mut has_begun = false;
        let each = |_| {
            away.wait(Duration::from_millis(1));
            if !std::mem::replace(&mut has_begun, true) {
                let chances = Chances { allocation: 0.001, copy: 0.001, launch: 0.01, finish: 0.01 };
                faults.at_random(number, chances);
            }
        };
        let how = moving(&device.with_faults(&faults), &settings, packets / 40);
        let how = How { each: Some(Box::new(each)), move_every: how.move_every.filter(|_| is_auto), ..how };
        let (mut found, shares, notices) = results(chain, &capture, how);
        let shares = shares.expect("a device was used");
        assert_eq!(shares.device + shares.here, packets, "{settings}\n{chain}");
        let dropped = found.summary["dropped"].as_object().expect("an object").values();
        let dropped: u64 = dropped.filter_map(serde_json::Value::as_u64).sum();
        let passed = found.summary["passed"].as_u64().expect("a number");
        assert_eq!(found.summary["received"], packets, "{settings}\n{chain}");
        assert_eq!(passed + dropped, packets, "{settings}\n{chain}");
        if number < 2 {
            for results in [&mut found, &mut expected] {
                results.summary["functions"][1].take();
                results.summary["flows"].take();
            }
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
        }
        let back = notices.iter().filter(|said| said.ends_with("is back")).count() as u64;
        let of_run = [packets, shares.device, shares.faults, back];
        eprintln!("chain {number}, auto {is_auto}: {of_run:?}");
        totals.iter_mut().zip(of_run).for_each(|(total, of_run)| *total += of_run);
    }
    totals
}

/// A device fails at any call, again and again, in every kind of chain that it has alone or in turns with the cores: each packet is judged once, and
/// it comes back. What does not depend on its state is as if nothing had failed.
#[test]
fn no_packet_is_lost_in_many() {
    if !packetloom_testing::sweep("random faults in many packets") {
        return;
    }
    for device in devices() {
        let is_fast =
            device.description().lanes > 1 && device.description().id != packetloom_device::Id::Host;
        let all = if is_fast { SWEPT } else { SWEPT_SLOWLY };
        let whole = format!("{SMALL}{ACL}{COUNTER}{UNCOUNTED}");
        let exact = [(format!("{whole}{CORES_METER}"), 1), (whole, WORKERS)];
        let others = kinds().into_iter().map(|(chain, _, workers)| (chain, workers));
        let chains: Vec<_> = exact.into_iter().chain(others).collect();
        let packets = all / (2 * chains.len() as u64);
        // A run keeps a few processors busy.
        let runs = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4));
        let next = AtomicUsize::new(0);
        let totals = Mutex::new([0; 4]);
        std::thread::scope(|scope| {
            for _ in 0..runs {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some((chain, workers)) = chains.get(number) else { break };
                        let found = judged_with_faults(&device, chain, *workers, number as u64, packets);
                        let mut totals = totals.lock().expect("no panic");
                        totals.iter_mut().zip(found).for_each(|(total, found)| *total += found);
                    }
                });
            }
        });
        let [judged, there, failed, back] = totals.into_inner().expect("no panic");
        let id = device.description().id;
        let what = format!("{id}: {there} of {judged} packets, {failed} failures, {back} times back");
        eprintln!("{what}");
        assert!(there > 0 && there < judged && failed > 0 && back > 0, "{what}");
    }
}
