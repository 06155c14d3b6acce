//! Several devices share the packets: results are the oracle's, flows stay with their device, and one that fails leaves the others.

use super::*;

const COUNTER: &str = "[[chain]]\nnf = \"counter\"\n";
const SMALL: &str = "[flows.5-tuple]\nby = \"5-tuple\"\nmax_flows = 8000\n";

/// ACLs alone, functions with state, both, and a search; on devices as a whole for several workers, and with a meter on cores behind them, for several, too,
/// where devices keep no state; and with a meter on devices. Next to each what it becomes in a reload.
pub(super) fn kinds() -> Vec<(String, String, usize)> {
    let kinds = [
        (format!("{ACL}{LOGGING}"), format!("{UNCOUNTED}{LOGGING}{ACL}")),
        (format!("{SMALL}{COUNTER}{LIMITER}"), format!("{SMALL}{LIMITER}{COUNTER}")),
        (format!("{SMALL}{ACL}{COUNTER}{LOGGING}{LIMITER}"), format!("{SMALL}{COUNTER}{ACL}{LIMITER}")),
        (format!("{ACL}{SEARCH}"), SEARCH.to_owned()),
    ];
    let with_meter = |(chain, next): &(String, String)| {
        (format!("{chain}{CORES_METER}"), format!("{next}{CORES_METER}"), 1)
    };
    let mut all: Vec<_> = kinds.iter().map(with_meter).collect();
    all.extend([0, 3].map(|kind| (all[kind].0.clone(), all[kind].1.clone(), WORKERS)));
    all.extend(kinds.into_iter().map(|(chain, next)| (chain, next, WORKERS)));
    all.push((format!("{SMALL}{COUNTER}{METER}"), format!("{SMALL}{METER}{COUNTER}"), WORKERS));
    all
}

/// Each device with the next one; with itself, where there is one alone.
fn pairs() -> Vec<Vec<Device>> {
    let devices = devices();
    let next = devices.iter().cycle().skip(1);
    let pairs: Vec<_> =
        devices.iter().zip(next).map(|(one, other)| vec![one.clone(), other.clone()]).collect();
    if pairs.len() == 2 { pairs[..1].to_vec() } else { pairs }
}

fn settings_of(devices: &[Device], workers: usize) -> String {
    let mut names: Vec<_> = devices.iter().map(|device| format!("\"{}\"", device.description().id)).collect();
    names.dedup();
    format!("device = [{}]\nworkers = {workers}", names.join(", "))
}

fn on<'a>(devices: &[Device], settings: &'a str) -> How<'a> {
    How { settings, devices: devices.to_vec(), ..How::default() }
}

fn packets_of(devices: &[Device]) -> u64 {
    devices.iter().map(packets_for).min().expect("a device")
}

/// Each of the devices had a part of the flows, of which few have many packets; of batches, whose size grows, it had one at least.
fn check_parts(shares: &Shares, has_flows: bool) {
    assert_eq!(shares.devices.len(), 2);
    assert_eq!(shares.devices.iter().map(|(_, packets)| packets).sum::<u64>(), shares.device);
    let least = if has_flows { shares.device / 20 } else { 0 };
    for (id, packets) in &shares.devices {
        assert!(*packets > least, "{id}: {packets} of {}", shares.device);
    }
}

#[test]
fn several_devices_share_the_packets() {
    for (number, (chain, _, workers)) in kinds().into_iter().enumerate() {
        for devices in pairs() {
            let packets = packets_of(&devices);
            let capture = capture_of(packets, number as u64);
            let expected = oracle(&chain, &capture);
            for (latency, is_stream) in [("20ms", false), ("1us", false), ("20ms", true)] {
                let settings = format!("{}\nmax_latency = \"{latency}\"", settings_of(&devices, workers));
                let (found, shares, notices) =
                    results(&chain, &capture, How { is_stream, ..on(&devices, &settings) });
                assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
                assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
                let shares = check_shares(shares, packets, &notices);
                assert!(shares.device > packets * 9 / 10, "{settings} {shares:?}\n{chain}");
                check_parts(&shares, plan(&chain, &settings).stateful() > 0);
            }
        }
    }
}

/// Flow definitions by several things cannot be spread: one device has all of such a chain.
#[test]
fn what_cannot_be_spread_is_on_one_device() {
    let chain = format!("{}{}{LIMITER}", super::SMALL, super::COUNTER);
    for devices in pairs() {
        let packets = packets_of(&devices);
        let capture = capture_of(packets, 31);
        let settings = settings_of(&devices, 1);
        let (found, shares, notices) = results(&chain, &capture, on(&devices, &settings));
        assert!(found == oracle(&chain, &capture), "{settings}");
        let shares = check_shares(shares, packets, &notices);
        assert_eq!((shares.devices[0].1, shares.devices[1].1), (shares.device, 0));
    }
}

#[test]
fn chains_of_several_devices_become_others() {
    let mut below = Below(31);
    for devices in pairs() {
        let packets = packets_of(&devices);
        let capture = capture_of(packets, 32);
        let mut check = |first: &str, next: &[&str], workers: usize| {
            let settings = settings_of(&devices, workers);
            let mut at: Vec<_> = next.iter().map(|_| below.next(packets)).collect();
            at.sort_unstable();
            let reloads: Vec<_> = at.into_iter().zip(next.iter().map(|&next| next.to_owned())).collect();
            let how = |settings| How { settings, saves: true, reloads: reloads.clone(), ..How::default() };
            let oracle = format!("{ORACLE}\nworkers = {workers}");
            let (expected, _, said) = all_results(first, &capture, how(&oracle));
            let (_, fast, _) = all_results(first, &capture, how(""));
            let how = How { devices: devices.clone(), ..how(&settings) };
            let (found, outcome, notices) = all_results(first, &capture, how);
            assert_eq!(found.summary, expected.summary, "{settings}\n{first}\n{reloads:#?}");
            assert!(found == expected, "{settings}: other records, log or packets\n{first}\n{reloads:#?}");
            assert_eq!(outcome.state, fast.state, "{settings}\n{first}\n{reloads:#?}");
            assert_eq!(notices, said, "{settings}\n{first}\n{reloads:#?}");
            let shares = outcome.shares.expect("devices were used");
            assert_eq!((shares.device + shares.here, shares.faults), (packets, 0));
        };
        let all = kinds();
        for (chain, next, workers) in &all {
            check(chain, &[next, chain], *workers);
        }
        // Of a kind that cannot be spread, too, and of none that a device takes.
        let alone = format!("{}{}{LIMITER}{CORES_METER}", super::SMALL, super::COUNTER);
        let [acls, states, both, search] = [0, 1, 2, 3].map(|kind| &*all[kind].0);
        check(both, &[&alone, states, CORES_METER, acls, search, &alone, both], 1);
    }
}

/// One of two fails, and comes back: the flows that it had are on cores meanwhile, and nothing is lost, since they had been copied just before.
#[test]
fn one_that_fails_leaves_the_other() {
    let mut below = Below(33);
    for devices in pairs() {
        let packets = 4 * packets_of(&devices);
        let capture = capture_of(packets, 33);
        for (chain, _, workers) in kinds() {
            let expected = oracle(&chain, &capture);
            let settings = format!(
                "{}\n{COPY_EVERY}\nmax_latency = \"1us\"\nbatch = 16",
                settings_of(&devices, workers)
            );
            let failing = below.next(2) as usize;
            let moment = (2 + below.next(3)) * packets / 9;
            let (found, shares, notices) = with_recent_state(|| {
                let faults = Faults::new();
                let mut devices = devices.clone();
                devices[failing] = devices[failing].with_faults(&faults);
                let mut moment = Some(moment);
                let mut away = Away::new(&faults);
                let each = |read: u64| {
                    away.wait(Duration::from_millis(100));
                    if moment.take_if(|moment| read >= *moment).is_some() {
                        thread::sleep(UNTIL_COPY);
                        faults.fail_beside(COPIER, Call::Launch, 0);
                    }
                };
                results(&chain, &capture, How { each: Some(Box::new(each)), ..on(&devices, &settings) })
            });
            let shares = shares.expect("devices were used");
            eprintln!("{settings}: {shares:?}, {notices:?}");
            assert_eq!(shares.device + shares.here, packets);
            assert!(shares.faults >= 1 && shares.devices.iter().all(|(_, judged)| *judged > 0), "{shares:?}");
            // The other one has its part of all packets, about half of the flows.
            let other = shares.devices[1 - failing].1;
            assert!(other * 4 > packets, "{shares:?}");
            let id = devices[failing].description().id;
            assert!(notices.len() == 2 && notices[1] == format!("{id} is back"), "{notices:?}");
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
        }
    }
}

/// Both fail at any call, again and again: of packets none is lost.
#[test]
fn no_packet_is_lost_where_all_fail() {
    for devices in pairs() {
        for (chain, workers) in [
            (format!("{SMALL}{ACL}{COUNTER}{UNCOUNTED}{CORES_METER}"), 1),
            (format!("{SMALL}{ACL}{COUNTER}{UNCOUNTED}"), WORKERS),
            (format!("{ACL}{UNCOUNTED}"), WORKERS),
        ] {
            let packets = 5 * packets_of(&devices);
            let capture = capture_of(packets, 34);
            let mut expected = oracle(&chain, &capture);
            let settings = format!("{}\nmax_latency = \"1us\"", settings_of(&devices, workers));
            let faults = [Faults::new(), Faults::new()];
            let devices: Vec<_> =
                devices.iter().zip(&faults).map(|(device, faults)| device.with_faults(faults)).collect();
            let mut away = faults.each_ref().map(Away::new);
            let mut has_begun = false;
            let each = |_| {
                away.iter_mut().for_each(|away| away.wait(Duration::from_millis(10)));
                if !std::mem::replace(&mut has_begun, true) {
                    let chances = Chances { allocation: 0.001, copy: 0.001, launch: 0.01, finish: 0.01 };
                    (1..).zip(&faults).for_each(|(seed, faults)| faults.at_random(seed, chances));
                }
            };
            let how = How { each: Some(Box::new(each)), ..on(&devices, &settings) };
            let (mut found, shares, notices) = results(&chain, &capture, how);
            let shares = shares.expect("devices were used");
            eprintln!("{settings}: {shares:?}, {} notices", notices.len());
            assert_eq!(shares.device + shares.here, packets);
            assert!(shares.faults > 0 && shares.device > 0 && shares.here > 0, "{shares:?}");
            for results in [&mut found, &mut expected] {
                results.summary["functions"][1].take();
                results.summary["flows"].take();
            }
            // Lists that keep no state count each packet once; the counter lacks what was judged since the last copy.
            assert_eq!(found.summary, expected.summary, "{settings}");
            assert!(found == expected, "{settings}: other records, log or packets");
        }
    }
}
