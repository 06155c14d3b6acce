//! Behind a device several workers judge the packets of their flows: results are the oracle's, and what belongs to a flow stays with it.

use super::*;

/// What a meter finds in payloads over several packets: it keeps that beside the entries of its flows.
const NAMES: &str =
    "[[chain]]\nnf = \"meter\"\nidle_timeout = \"900ms\"\noutput = \"flows\"\nfields = \"full\"\n";

/// A capture of requests in segments, each of which comes of all clients in turn; one is late.
fn requests(clients: u16) -> Vec<u8> {
    let mut frames = Vec::new();
    for (from, until) in [(0, 0), (0, 9), (22, 30), (9, 22), (30, usize::MAX)] {
        for client in 0..clients {
            let request = format!("GET / HTTP/1.1\r\nHost: www{client}.example.org\r\n\r\n");
            let payload = &request[from..until.min(request.len())];
            let (sequence, flags) = if payload.is_empty() { (0, 2) } else { (1 + from as u32, 0x18) };
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
            frame.extend((40 + payload.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, client as u8 % 7, 10, 1, 0, 2]);
            frame.extend((20_000 + client).to_be_bytes());
            frame.extend(80u16.to_be_bytes());
            frame.extend(sequence.to_be_bytes());
            frame.extend([0, 0, 0, 0, 0x50, flags, 255, 255, 0, 0, 0, 0]);
            frame.extend(payload.as_bytes());
            frames.push((1_000_000_000 + frames.len() as u64 * 100_000, frame));
        }
    }
    support::capture_of_frames(frames)
}

#[test]
fn all_workers_feed_a_device() {
    let feeds = |chain: &str, settings: &str| {
        let text = plan(chain, settings).to_string();
        text.lines().find_map(|line| line.strip_prefix("workers   ")).expect("it says so").to_owned()
    };
    let on = |workers: usize| format!("device = \"cuda:0\"\nworkers = {workers}");
    let chain = format!("{ACL}{NAMES}");
    assert_eq!(
        feeds(&chain, &on(4)),
        "4 workers feed the device and take what comes back, packets spread by flow behind it: each flow's state is exact, order in files is \
         kept; max_flows is divided among the workers"
    );
    let alone = "1 worker feeds the device and takes what comes back";
    let loops = "results as of a loop over packets";
    assert_eq!(feeds(&chain, &on(1)), format!("{alone}: {loops}"));
    for (chain, why) in [
        (format!("{SMALL}{COUNTER}{NAMES}"), "functions keep state both there and on cores"),
        (
            format!("{SMALL}{ACL}{NAMES}{COUNTER}"),
            "no way to spread packets suits all flow definitions on cores",
        ),
    ] {
        assert_eq!(feeds(&chain, &on(4)), format!("{alone}, since {why}: {loops}"), "{chain}");
    }
    let auto = feeds(&format!("{ACL}{CORES_METER}"), "device = \"auto\"\nworkers = 4");
    assert!(
        auto.starts_with("4 workers, packets spread by flow") && auto.ends_with("; all of them feed the GPU"),
        "{auto}"
    );
}

/// Names are found over packets that come before and after a reload, and so is what else a function keeps beside entries.
#[test]
fn what_is_kept_beside_entries_stays_with_its_flow() {
    const CLIENTS: u64 = 300;
    let capture = requests(CLIENTS as u16);
    let packets = 5 * CLIENTS;
    let [names, plain] = [NAMES, CORES_METER].map(|meter| format!("{ACL}{meter}"));
    let found = oracle(&names, &capture).records;
    assert_eq!(found.iter().filter(|record| record.contains(".example.org")).count() as u64, CLIENTS);
    let mut below = Below(71);
    for device in devices() {
        // The last one has nothing for a device.
        for (first, next) in [(&names, [&*names, &names, NAMES]), (&plain, [&names, &names, &names])] {
            let mut at = next.map(|_| below.next(packets));
            at.sort_unstable();
            let reloads: Vec<_> = at.into_iter().zip(next.map(str::to_owned)).collect();
            let how = |settings| How { settings, saves: true, reloads: reloads.clone(), ..How::default() };
            let oracle = format!("{ORACLE}\nworkers = {WORKERS}\nbatch = 16");
            let (expected, ..) = all_results(first, &capture, how(&oracle));
            assert_eq!(expected.summary["reloads"]["done"], 3);
            let (_, fast, _) = all_results(first, &capture, how("batch = 16"));
            let on_it = format!("{}\nbatch = 16", super::settings_for(&device, WORKERS));
            let auto = format!("device = \"auto\"\nworkers = {WORKERS}\nbatch = 16");
            for (settings, move_every) in [(&on_it, None), (&auto, Some(97))] {
                let devices = vec![device.clone()];
                let how = How { devices, move_every, ..how(settings) };
                let (found, outcome, _) = all_results(first, &capture, how);
                assert_eq!(found.summary, expected.summary, "{settings}\n{first}\n{reloads:#?}");
                assert!(found == expected, "{settings}: other records or packets\n{first}\n{reloads:#?}");
                assert_eq!(outcome.state, fast.state, "{settings}\n{first}\n{reloads:#?}");
            }
        }
        // One worker would judge all packets of this one.
        let by_source = format!("{SMALL}{names}{COUNTER}");
        let settings = super::settings_for(&device, WORKERS);
        let reloads = vec![(packets / 2, by_source)];
        let (found, _, notices) = all_results(&names, &capture, How { reloads, ..on(&device, &settings) });
        assert_eq!(found.records, oracle(&names, &capture).records, "{settings}");
        let why = "the chain stays as it is: its packets are judged by one worker; expected packets that are spread among workers by flow";
        assert!(notices.len() == 1 && notices[0].starts_with(why), "{notices:?}");
    }
}

/// Rules change between two batches, on the device and behind it.
#[test]
fn transactions_are_made_before_functions_with_state() {
    let mut below = Below(72);
    for device in devices() {
        let packets = packets_for(&device);
        let capture = capture_of(packets, 73);
        let logging = format!("{ACL}log = \"log\"\nlog_rate = \"unlimited\"\n");
        for (chain, is_behind) in
            [(format!("{logging}{CORES_METER}"), false), (format!("{SEARCH}{logging}{CORES_METER}"), true)]
        {
            let mut at = [(); 2].map(|()| below.next(packets));
            at.sort_unstable();
            let changes = ["add first deny tcp from any to any port 443 id no-tls\n", "delete no-tls\n"];
            let due = || at.into_iter().zip(changes.map(str::to_owned)).collect();
            let how =
                How { settings: ORACLE, transactions: Some(Transactions::new(due())), ..How::default() };
            let (expected, ..) = results(&chain, &capture, how);
            let asked = Transactions::new(due());
            let settings = super::settings_for(&device, WORKERS);
            assert_eq!(plan(&chain, &settings).searched() > 0, is_behind);
            let how = How { transactions: Some(asked.clone()), ..on(&device, &settings) };
            let (found, shares, _) = results(&chain, &capture, how);
            assert!(asked.answers().len() == 2 && asked.answers().iter().all(Result::is_ok));
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}\n{at:?}");
            assert!(found == expected, "{settings}\n{chain}\n{at:?}");
            assert_eq!(shares.map(|shares| shares.device + shares.here), Some(packets));
        }
    }
}

/// Over captures of real traffic.
#[test]
fn real_packets_are_judged_as_by_one_worker() {
    let Some(folder) = packetloom_testing::corpus("captures") else { return };
    let chain = format!("{LOGGING}{NAMES}");
    let is_capture = |path: &std::path::PathBuf| {
        path.extension()
            .is_some_and(|extension| ["pcap", "pcapng", "cap"].iter().any(|known| extension == *known))
    };
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let mut with_names = 0;
    for path in files.filter(is_capture) {
        let capture = std::fs::read(&path).expect("a capture");
        let expected = oracle(&chain, &capture);
        with_names += expected.records.iter().filter(|record| record.contains("Host")).count();
        for device in devices() {
            let settings = format!("{}\nmax_latency = \"1us\"", super::settings_for(&device, WORKERS));
            let (found, shares, _) = results(&chain, &capture, on(&device, &settings));
            let name = path.display();
            assert_eq!(found.summary, expected.summary, "{name} {settings}");
            assert!(found == expected, "{name} {settings}: other records, log or packets");
            let shares = shares.expect("a device was used");
            assert_eq!(Some(shares.device + shares.here), expected.summary["received"].as_u64(), "{name}");
        }
    }
    assert!(with_names > 0);
}
