//! Devices search payloads: results are the oracle's, whatever is in packets, and however much is found.

use super::*;

/// A capture of frames, of each of which so many bytes were captured at most.
fn capture_of(frames: impl IntoIterator<Item = (Vec<u8>, usize)>) -> Vec<u8> {
    let mut capture = traffic(1, 1, 1);
    capture.truncate(24);
    for (number, (frame, snap)) in (0u32..).zip(frames) {
        let captured = frame.len().min(snap);
        let words = [number / 1_000, number % 1_000 * 1_000_000, captured as u32, frame.len() as u32];
        capture.extend(words.map(u32::to_le_bytes).concat());
        capture.extend(&frame[..captured]);
    }
    capture
}

/// An Ethernet frame of UDP, TCP or a protocol without ports, over IPv4 or IPv6.
fn frame(below: &mut Below, payload: &[u8]) -> Vec<u8> {
    let port = [22, 53, 443, 8_080][below.next(4) as usize] as u16;
    let (protocol, transport) = match below.next(5) {
        0 => (47, Vec::new()),
        1 | 2 => {
            let length = (8 + payload.len() as u16).to_be_bytes();
            (17, [4_000u16.to_be_bytes(), port.to_be_bytes(), length, [0; 2]].concat())
        }
        _ => {
            let ports = [4_000u16.to_be_bytes(), port.to_be_bytes()].concat();
            (6, [&ports[..], &[0; 8], &[0x50, 0x10, 0, 9, 0, 0, 0, 0]].concat())
        }
    };
    let length = (transport.len() + payload.len()) as u16;
    let (kind, ip) = if below.next(3) > 0 {
        let total = (20 + length).to_be_bytes();
        let source = [10, 0, 0, below.next(4) as u8];
        let head = [0x45, 0, total[0], total[1], 0, 1, 0, 0, 64, protocol, 0, 0];
        ([8, 0], [&head[..], &source, &[192, 0, 2, 1]].concat())
    } else {
        let length = length.to_be_bytes();
        let head = [0x60, 0, 0, 0, length[0], length[1], protocol, 64];
        ([0x86, 0xdd], [&head[..], &[0x20; 16], &[0x21; 16]].concat())
    };
    [&[2; 12][..], &kind, &ip, &transport, payload].concat()
}

/// Bytes that look like chance, some of them the same, with strings planted in them, at their ends, too, and cut there.
fn payload(below: &mut Below, planted: &[Vec<u8>]) -> Vec<u8> {
    let len = [0usize, 1, 5, 40, 300, 583, 1_400][below.next(7) as usize];
    let mut bytes: Vec<_> = (0..len).map(|_| b"loom-0123456789\0\xeeabc"[below.next(19) as usize]).collect();
    for _ in 0..below.next(5) {
        let string = &planted[below.next(planted.len() as u64) as usize];
        let at = if below.next(4) == 0 {
            len.saturating_sub(string.len() / 2)
        } else {
            below.next(len as u64 + 1) as usize
        };
        let end = len.min(at + string.len());
        bytes[at..end].copy_from_slice(&string[..end - at]);
    }
    bytes
}

/// Packets of all kinds, some of them captured in part, and some frames that are no packets.
fn planted_capture(packets: u64, seed: u64) -> Vec<u8> {
    let (mut below, planted) = (Below(seed), support::planted());
    let frames = (0..packets).map(|_| {
        let payload = payload(&mut below, &planted);
        let mut frame = frame(&mut below, &payload);
        match below.next(20) {
            // No IP; IP that is damaged.
            0 => frame[12..14].copy_from_slice(&[8, 6]),
            1 => frame[14] = below.next(256) as u8,
            _ => {}
        }
        let snap = if below.next(6) == 0 { 14 + below.next(120) as usize } else { usize::MAX };
        (frame, snap)
    });
    capture_of(frames.collect::<Vec<_>>())
}

/// All that a search may be told, and what may stand before and behind it.
fn chains() -> Vec<(String, usize)> {
    let planted = "[[chain]]\nnf = \"strings\"\npatterns = \"planted\"\nformat = \"hex\"\n";
    let signatures = "[[chain]]\nnf = \"strings\"\npatterns = \"signatures\"\n";
    let filter = "[[chain]]\nnf = \"filter\"\nexpression = \"udp or ip6 or src host 10.0.0.2\"\n";
    let sample = "[[chain]]\nnf = \"sample\"\ninterval = 3\n";
    let log = "log = \"log\"\n";
    let ignoring = "[[chain]]\nnf = \"strings\"\npatterns = \"strings\"\nignore_case = true\n";
    [
        (format!("{planted}{log}"), 1),
        (format!("{planted}{log}action = \"drop\"\n"), WORKERS),
        (format!("{planted}match = \"first\"\n{log}log_rate = \"100/s\"\n"), WORKERS),
        (format!("{planted}match = \"any\"\nmark = 7\naction = \"drop\"\n"), 1),
        (format!("{planted}within = \"packet\"\nmatch = \"first\"\n"), WORKERS),
        (format!("{ignoring}{log}"), WORKERS),
        (format!("{signatures}{log}"), 1),
        (format!("{signatures}match = \"first\"\nmark = 3\naction = \"drop\"\n{log}"), WORKERS),
        (format!("{ACL}{LOGGING}{UNCOUNTED}{planted}action = \"drop\"\n"), WORKERS),
        (format!("{ACL}default = \"permit\"\n{filter}{signatures}{sample}"), 1),
        (format!("{sample}{filter}{planted}{log}{signatures}"), 1),
        (format!("{planted}action = \"drop\"\n{LOGGING}{CORES_METER}"), 1),
        (format!("{planted}match = \"any\"\naction = \"drop\"\n{SMALL}{COUNTER}{METER}"), 1),
    ]
    .map(|(chain, workers)| match chain.split_once(SMALL) {
        // Tables of the file come first.
        Some((first, behind)) => (format!("{SMALL}{first}{behind}"), workers),
        None => (chain, workers),
    })
    .into()
}

#[test]
fn whatever_is_searched() {
    for (number, (chain, workers)) in chains().into_iter().enumerate() {
        for device in devices() {
            let packets = packets_for(&device) / 3;
            let capture = planted_capture(packets, number as u64);
            let expected = oracle(&chain, &capture);
            let cores = results(&chain, &capture, How::default()).0;
            assert!(cores == expected, "on cores\n{chain}");
            for (latency, is_stream) in [("20ms", false), ("1us", false), ("20ms", true)] {
                let settings = format!("{}\nmax_latency = \"{latency}\"", settings_for(&device, workers));
                assert!(plan(&chain, &settings).searched() > 0, "{settings}\n{chain}");
                let (found, shares, notices) =
                    results(&chain, &capture, How { is_stream, ..on(&device, &settings) });
                assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
                assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
                let shares = check_shares(shares, packets, &notices);
                assert_eq!((shares.device, shares.loads), (packets, 1), "{settings} {shares:?}\n{chain}");
            }
        }
    }
}

/// Any search with anything before and behind it, for any number of workers.
#[test]
fn random_chains_with_searches() {
    let one_of = |below: &mut Below, from: &[&str]| from[below.next(from.len() as u64) as usize].to_owned();
    let filter = "[[chain]]\nnf = \"filter\"\nexpression = \"tcp or ip6\"\n";
    let sample = "[[chain]]\nnf = \"sample\"\ninterval = 2\n";
    let permitting = format!("{ACL}default = \"permit\"\n");
    let meter = format!("{METER}vlan_in_key = true\n");
    let planted = "[[chain]]\nnf = \"strings\"\npatterns = \"planted\"\nformat = \"hex\"\n";
    let signatures = "[[chain]]\nnf = \"strings\"\npatterns = \"signatures\"\n";
    let mut below = Below(90);
    for number in 0..packetloom_testing::amount(6, 100) {
        let mut chain = String::new();
        for _ in 0..below.next(4) {
            chain += &one_of(&mut below, &[&permitting, UNCOUNTED, filter, sample]);
        }
        let search = one_of(&mut below, &[planted, signatures, SEARCH, SEARCH]);
        let is_of_rules = search == signatures;
        let named = one_of(&mut below, &["", "match = \"first\"\n", "match = \"any\"\n"]);
        chain += &search;
        chain += &named;
        if !named.contains("any") {
            chain += &one_of(&mut below, &["", "log = \"log\"\n", "log = \"log\"\nlog_rate = \"90/s\"\n"]);
        }
        chain += &one_of(&mut below, &["", "action = \"drop\"\n"]);
        chain += &one_of(&mut below, &["", "mark = 4\n"]);
        chain += &one_of(&mut below, if is_of_rules { &[""] } else { &["", "within = \"packet\"\n"] });
        chain += &one_of(&mut below, &["", "", &permitting, sample, &meter, planted, filter]);
        // A chain has one at most.
        if let Some((first, rest)) = chain.split_once(sample) {
            chain = format!("{first}{sample}{}", rest.replace(sample, ""));
        }
        let workers = 1 + below.next(4) as usize;
        let (latency, is_stream) = (one_of(&mut below, &["1us", "20ms"]), below.next(3) == 0);
        for device in devices() {
            let packets = packets_for(&device) / 4;
            let capture = planted_capture(packets, 90 + number);
            let expected = oracle(&chain, &capture);
            let settings = format!("{}\nmax_latency = \"{latency}\"", settings_for(&device, workers));
            let (found, shares, notices) =
                results(&chain, &capture, How { is_stream, ..on(&device, &settings) });
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
            let shares = check_shares(shares, packets, &notices);
            assert_eq!(shares.device, packets, "{settings} {shares:?}\n{chain}");
        }
    }
}

/// What a device would have to know flows or messages for, and what comes behind such, is on cores.
#[test]
fn other_searches_are_on_cores() {
    for chain in [
        format!("{SEARCH}within = \"stream\"\n"),
        format!("{SEARCH}action = \"drop\"\nflow = \"drop\"\n"),
        format!("{SEARCH}look_in = \"http.uri\"\n"),
        format!("{SEARCH}look_in = [\"payload\", \"dns.query\"]\n"),
        format!("{SMALL}{CONNTRACK}{SEARCH}"),
        format!("{CORES_METER}{SEARCH}"),
    ] {
        assert_eq!(plan(&chain, "device = \"host\"").searched(), 0, "{chain}");
    }
    // Behind a search, too, functions may keep state: then a run moves as a whole, if there are more workers than the one that would feed the device.
    for (workers, moves) in [(1, false), (2, true)] {
        let settings = format!("device = \"auto\"\nworkers = {workers}");
        let chain = format!("{ACL}{SEARCH}{CORES_METER}");
        let planned = plan(&chain, &settings);
        assert_eq!((planned.searched(), planned.moves()), (2, moves), "{settings}");
        let planned = plan(&format!("{ACL}{SEARCH}"), &settings);
        assert_eq!((planned.searched(), planned.moves()), (2, false), "{settings}");
    }
}

/// Batches with more matches than there is room for: a few more, many more, and more than there ever is.
#[test]
fn however_much_is_found() {
    let zeros = "[[chain]]\nnf = \"strings\"\npatterns = \"zeros\"\n";
    for device in devices() {
        let is_host = device.description().id == packetloom_device::Id::Host;
        let all: &[(u64, usize)] =
            if is_host { &[(400, 100)] } else { &[(400, 100), (3_000, 400), (20_000, 1_400)] };
        for &(packets, len) in all {
            let mut below = Below(packets);
            // The matches of a packet are many; and some packets have none.
            let payloads = (0..packets).map(|number| vec![u8::from(number % 7 == 0); len]);
            let frames: Vec<_> = payloads.map(|payload| (frame(&mut below, &payload), usize::MAX)).collect();
            let capture = capture_of(frames);
            for workers in [1, WORKERS] {
                // The first batches are small; a device's latency is as it is.
                let chain = format!("{ACL}default = \"permit\"\n{zeros}action = \"drop\"\n");
                let expected = oracle(&chain, &capture);
                let settings = settings_for(&device, workers);
                let (found, shares, notices) = results(&chain, &capture, on(&device, &settings));
                assert_eq!(found.summary, expected.summary, "{settings}");
                assert!(found == expected, "{settings}: other packets");
                let shares = check_shares(shares, packets, &notices);
                assert!(shares.device > 0, "{settings} {shares:?}");
                eprintln!("{settings}: {packets} of {len} bytes: {shares:?}");
                assert_eq!(shares.here > 0, packets == 20_000, "{settings} {shares:?}");
            }
        }
    }
}

/// Sets become others, and go away and come back, while batches are away.
#[test]
fn sets_become_others() {
    let planted = "[[chain]]\nnf = \"strings\"\npatterns = \"planted\"\nformat = \"hex\"\n";
    let signatures = "[[chain]]\nnf = \"strings\"\npatterns = \"signatures\"\nlog = \"log\"\n";
    for device in devices() {
        let packets = packets_for(&device) / 3;
        let capture = planted_capture(packets, 77);
        let mut below = Below(77);
        for workers in [1, WORKERS] {
            let chains = [
                format!("{ACL}{planted}log = \"log\"\n"),
                format!("{planted}action = \"drop\"\nlog = \"log\"\n"),
                signatures.to_owned(),
                format!("{signatures}within = \"stream\"\n"),
                format!("{LOGGING}{planted}match = \"any\"\n"),
            ];
            let mut at = [(); 4].map(|()| below.next(packets));
            at.sort_unstable();
            let reloads: Vec<_> = at.into_iter().zip(chains[1..].iter().cloned()).collect();
            let how = |settings| How { settings, reloads: reloads.clone(), ..How::default() };
            let (expected, _, said) = results(&chains[0], &capture, how(ORACLE));
            let settings = format!("{}\nmax_latency = \"1us\"", settings_for(&device, workers));
            let on_it = How { devices: vec![device.clone()], ..how(&settings) };
            let (found, shares, notices) = results(&chains[0], &capture, on_it);
            assert_eq!(found.summary, expected.summary, "{settings} {at:?}");
            assert!(found == expected, "{settings} {at:?}: other log or packets");
            assert_eq!(notices, said);
            let shares = shares.expect("a device was used");
            assert_eq!((shares.device + shares.here, shares.faults), (packets, 0));
            assert!(shares.device > 0, "{shares:?}");
        }
    }
}

/// Rules of an ACL before a search change, by a file and at once: that is on cores, and the device goes on.
#[test]
fn rules_change_before_a_search() {
    let changes = "at 300\nadd first deny udp from any to any port 53\ncommit\nat 700\ndelete ssh\ncommit\n";
    let chain = format!("{ACL}default = \"permit\"\n{SEARCH}action = \"drop\"\n");
    for device in devices() {
        let packets = packets_for(&device) / 3;
        let capture = planted_capture(packets, 78);
        for workers in [1, WORKERS] {
            let how = |settings| How { settings, changes: Some(changes), ..How::default() };
            let (expected, _, _) = results(&chain, &capture, how(ORACLE));
            let settings = format!("{}\nmax_latency = \"1us\"", settings_for(&device, workers));
            let on_it = How { devices: vec![device.clone()], ..how(&settings) };
            let (found, shares, notices) = results(&chain, &capture, on_it);
            assert_eq!(found.summary, expected.summary, "{settings}");
            assert!(found == expected, "{settings}: other packets");
            let shares = check_shares(shares, packets, &notices);
            assert_eq!((shares.device, shares.loads), (packets, 1), "{shares:?}");
            let due = vec![
                (300, "add first deny udp from any to any port 53".to_owned()),
                (700, "delete ssh".to_owned()),
            ];
            let how = |settings| How { settings, is_stream: true, ..How::default() };
            let how = |settings| How { transactions: Some(Transactions::new(due.clone())), ..how(settings) };
            let (expected, _, _) = results(&chain, &capture, how(ORACLE));
            let on_it = How { devices: vec![device.clone()], ..how(&settings) };
            let (found, shares, notices) = results(&chain, &capture, on_it);
            assert_eq!(found.summary, expected.summary, "{settings}");
            assert!(found == expected, "{settings}: other packets");
            let shares = check_shares(shares, packets, &notices);
            assert_eq!((shares.device, shares.loads), (packets, 1), "{shares:?}");
        }
    }
}

/// A device fails at any call, again and again, also when there is too little room for matches: each packet is judged once.
#[test]
fn no_packet_is_lost_where_searches_fail() {
    let zeros = "[[chain]]\nnf = \"strings\"\npatterns = \"zeros\"\naction = \"drop\"\n";
    let log = "log = \"log\"\nlog_rate = \"unlimited\"\n";
    for device in devices() {
        let packets = 5 * packets_for(&device);
        for (seed, (chain, workers)) in
            [(format!("{ACL}{zeros}"), 1), (format!("{LOGGING}{SEARCH}{log}"), WORKERS)]
                .into_iter()
                .enumerate()
        {
            let capture = super::capture_of(packets, 80 + seed as u64);
            let expected = oracle(&chain, &capture);
            let settings = format!("{}\nmax_latency = \"1us\"", settings_for(&device, workers));
            let faults = Faults::new();
            let mut away = Away::new(&faults);
            let mut has_begun = false;
            let each = |_| {
                away.wait(Duration::from_millis(20));
                if !std::mem::replace(&mut has_begun, true) {
                    let chances = Chances { allocation: 0.01, copy: 0.005, launch: 0.01, finish: 0.01 };
                    faults.at_random(seed as u64, chances);
                }
            };
            let how = How { each: Some(Box::new(each)), ..on(&device.with_faults(&faults), &settings) };
            let (found, shares, notices) = results(&chain, &capture, how);
            let shares = shares.expect("a device was used");
            eprintln!("{settings}: {shares:?}, {} notices", notices.len());
            assert_eq!(shares.device + shares.here, packets);
            assert!(shares.faults > 0 && shares.device > 0 && shares.here > 0, "{shares:?}");
            assert_eq!(found.summary, expected.summary, "{settings}");
            assert!(found == expected, "{settings}: other log or packets");
        }
    }
}
