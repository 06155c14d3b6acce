//! Every kind of chain on every device, and all that may happen to a run on its way: results are the oracle's, no packet is lost, and none is
//! judged twice.

#![allow(missing_docs)]

mod auto;
mod live;
mod several;
mod shares;
mod strings;
#[path = "../support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_device::faults::{Call, Chances, Faults};
use packetloom_engine::State;
use packetloom_engine::outcome::Shares;
use support::{
    Away, COPIER, COPY_EVERY, How, Results, Transactions, UNTIL_COPY, all_results, devices, frames, plan,
    results, traffic, with_recent_state, without_first,
};

const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
const LOGGING: &str =
    "[[chain]]\nnf = \"acl\"\nrules = \"more\"\nlog = \"log\"\nlog_rate = \"100/s\"\ndefault = \"permit\"\n";
const UNCOUNTED: &str = "[[chain]]\nnf = \"acl\"\nrules = \"more\"\ncounters = false\n";
const SEARCH: &str = "[[chain]]\nnf = \"strings\"\npatterns = \"strings\"\n";
const COUNTER: &str = "[[chain]]\nnf = \"counter\"\nflows = \"source\"\n";
const LIMITER: &str = "[[chain]]\nnf = \"limiter\"\nrate = \"80kbit/s\"\nburst = \"1500B\"\n";
const SAMPLE: &str = "[[chain]]\nnf = \"sample\"\ninterval = 3\n";
const CONNTRACK: &str = "[[chain]]\nnf = \"conntrack\"\nloose = true\n";
const METER: &str = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"900ms\"\nactive_timeout = \"5s\"\noutput = \"flows\"\nmax_flows = 4000\n";
/// One that is on cores, since VLANs are part of its flows.
const CORES_METER: &str = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"900ms\"\nactive_timeout = \"5s\"\noutput = \"flows\"\nvlan_in_key = true\n";
/// Tables that are copied at once.
const SMALL: &str = "[flows.5-tuple]\nby = \"5-tuple\"\nmax_flows = 4000\n[flows.source]\nby = \"source\"\nmax_flows = 4000\n\
    [flows.connection]\nby = \"connection\"\nmax_flows = 4000\n";
const ORACLE: &str = "device = \"oracle\"";
/// Where there are several, fewer than there are pieces of a batch.
const WORKERS: usize = 3;

/// ACLs alone on a device, functions with state, both, and a search; the last function is on cores, but of the second one. Next to each what it
/// becomes in a reload.
fn kinds() -> [(String, String); 4] {
    [
        (format!("{ACL}{LOGGING}{CORES_METER}"), format!("{UNCOUNTED}{LOGGING}{ACL}{CORES_METER}")),
        (
            format!("{SMALL}{COUNTER}{LIMITER}{CONNTRACK}{METER}"),
            format!("{SMALL}{COUNTER}{CONNTRACK}{LIMITER}{METER}"),
        ),
        (
            format!("{SMALL}{ACL}{COUNTER}{LOGGING}{LIMITER}{CORES_METER}"),
            format!("{SMALL}{COUNTER}{ACL}{LIMITER}{CORES_METER}"),
        ),
        (
            format!("{UNCOUNTED}{SEARCH}log = \"log\"\n{CORES_METER}"),
            format!("{ACL}{SEARCH}action = \"drop\"\n{CORES_METER}"),
        ),
    ]
}

/// The same, and those for which several workers do what is to be done here; with how many there are: those that a device has the whole of, and those
/// with a meter behind what keeps no state.
fn all_kinds() -> Vec<(String, String, usize)> {
    let without_meter = |chain: &str| chain.strip_suffix(CORES_METER).unwrap_or(chain).to_owned();
    let wholes = kinds().map(|(chain, next)| (without_meter(&chain), without_meter(&next), WORKERS));
    let [acls, _, _, search] = kinds().map(|(chain, next)| (chain, next, WORKERS));
    kinds().map(|(chain, next)| (chain, next, 1)).into_iter().chain(wholes).chain([acls, search]).collect()
}

/// Numbers below another one that look like chance.
struct Below(u64);

impl Below {
    fn next(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

fn name_of(device: &Device) -> String {
    format!("device = \"{}\"", device.description().id)
}

fn settings_for(device: &Device, workers: usize) -> String {
    format!("{}\nworkers = {workers}", name_of(device))
}

fn on<'a>(device: &Device, settings: &'a str) -> How<'a> {
    How { settings, devices: vec![device.clone()], ..How::default() }
}

fn packets_for(device: &Device) -> u64 {
    if device.description().lanes > 1 { 3_000 } else { 12_000 }
}

fn capture_of(packets: u64, seed: u64) -> Vec<u8> {
    traffic(packets, packets / 20 + 1, seed)
}

fn oracle(chain: &str, capture: &[u8]) -> Results {
    results(chain, capture, How { settings: ORACLE, ..How::default() }).0
}

/// Every packet was judged once, by the device or here; nothing failed.
fn check_shares(shares: Option<Shares>, packets: u64, notices: &[String]) -> Shares {
    let shares = shares.expect("a device was used");
    assert_eq!((shares.device + shares.here, shares.faults), (packets, 0), "{notices:?}");
    assert_eq!(notices, [] as [&str; 0]);
    shares
}

/// From a file and from a pipe, with small batches and large ones.
#[test]
fn whatever_the_batches() {
    let more = [
        ACL.to_owned(),
        format!("{ACL}{METER}"),
        format!("{LOGGING}{ACL}"),
        format!("{ACL}{UNCOUNTED}{LOGGING}{UNCOUNTED}{ACL}"),
        // What comes behind a device keeps no state: by all threads.
        format!("{ACL}{UNCOUNTED}{UNCOUNTED}{UNCOUNTED}{LOGGING}"),
        format!("{SMALL}{COUNTER}{SAMPLE}{LOGGING}"),
    ];
    let more = more.into_iter().map(|chain| (chain, WORKERS));
    let chains = all_kinds().into_iter().map(|(chain, _, workers)| (chain, workers)).chain(more);
    for (number, (chain, workers)) in chains.enumerate() {
        for device in devices() {
            let packets = packets_for(&device);
            let capture = capture_of(packets, number as u64);
            let expected = oracle(&chain, &capture);
            for (latency, is_stream) in [("20ms", false), ("1us", false), ("20ms", true)] {
                let settings = format!("{}\nmax_latency = \"{latency}\"", settings_for(&device, workers));
                let (found, shares, notices) =
                    results(&chain, &capture, How { is_stream, ..on(&device, &settings) });
                assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
                assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
                let shares = check_shares(shares, packets, &notices);
                // Of such traffic a few frames are more than a device looks at.
                assert!(shares.device > packets * 9 / 10, "{settings} {shares:?}\n{chain}");
            }
        }
    }
}

/// A capture with so many bytes behind each frame as its number says.
fn padded(capture: &[u8], pad: impl Fn(u64) -> usize) -> Vec<u8> {
    const HEADER: usize = 24;
    let mut bytes = capture[..HEADER].to_vec();
    let mut rest = &capture[HEADER..];
    let mut number = 0;
    while let Some((record, _)) = rest.split_first_chunk::<16>() {
        let field = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
        let (captured, pad) = (field(8) as usize, pad(number));
        bytes.extend(&record[..8]);
        bytes.extend((field(8) + pad as u32).to_le_bytes());
        bytes.extend((field(12) + pad as u32).to_le_bytes());
        bytes.extend(&rest[16..16 + captured]);
        bytes.resize(bytes.len() + pad, 0);
        rest = &rest[16 + captured..];
        number += 1;
    }
    bytes
}

/// Sections of a file, which several threads read, have more records than those before, and fewer.
#[test]
fn whatever_the_lengths_of_frames() {
    let chains = [format!("{ACL}{LOGGING}"), format!("{SMALL}{COUNTER}{LIMITER}")];
    for device in devices() {
        let packets = 2 * packets_for(&device);
        let capture = capture_of(packets, 25);
        for pad in [
            |number: u64| if number < 1_000 { 1_000 } else { 0 },
            |number: u64| if number % 2_000 < 1_000 { 0 } else { 300 },
            |number: u64| (number as usize).is_multiple_of(700) as usize * 60_000,
        ] {
            let capture = padded(&capture, pad);
            for chain in &chains {
                let expected = oracle(chain, &capture);
                for workers in [WORKERS, 7] {
                    let settings = settings_for(&device, workers);
                    let (found, shares, notices) = results(chain, &capture, on(&device, &settings));
                    assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
                    assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
                    assert!(check_shares(shares, packets, &notices).device > packets * 8 / 10);
                }
            }
        }
    }
}

/// At any packet a chain becomes another one: of its own kind, and then all others, with none on the device in between.
#[test]
fn chains_become_others() {
    let mut below = Below(1);
    for device in devices() {
        let packets = packets_for(&device);
        let capture = capture_of(packets, 21);
        let mut check = |first: &str, next: &[&str], workers: usize| {
            let settings = settings_for(&device, workers);
            let mut at: Vec<_> = next.iter().map(|_| below.next(packets)).collect();
            at.sort_unstable();
            let reloads: Vec<_> = at.into_iter().zip(next.iter().map(|&next| next.to_owned())).collect();
            let how = |settings| How { settings, saves: true, reloads: reloads.clone(), ..How::default() };
            let oracle = format!("{ORACLE}\nworkers = {workers}");
            let (expected, _, said) = all_results(first, &capture, how(&oracle));
            assert_eq!(expected.summary["reloads"]["done"], next.len(), "{said:?}");
            let (_, fast, _) = all_results(first, &capture, how(""));
            let how = How { devices: vec![device.clone()], ..how(&settings) };
            let (found, outcome, notices) = all_results(first, &capture, how);
            assert_eq!(found.summary, expected.summary, "{settings}\n{first}\n{reloads:#?}");
            assert!(found == expected, "{settings}: other records, log or packets\n{first}\n{reloads:#?}");
            assert_eq!(outcome.state, fast.state, "{settings}\n{first}\n{reloads:#?}");
            assert_eq!(notices, said, "{settings}\n{first}\n{reloads:#?}");
            let shares = outcome.shares.expect("a device was used");
            assert_eq!((shares.device + shares.here, shares.faults), (packets, 0));
            shares
        };
        for (chain, next, workers) in &all_kinds() {
            // Of frames for a device, which those for cores are not.
            assert!(check(chain, &[next, chain], *workers).device > packets * 9 / 10);
        }
        let [acls, states, both, search] = kinds().map(|(chain, _)| chain);
        for workers in [1, WORKERS] {
            check(&both, &[&acls, METER, &search, &states, &both, &acls], workers);
            check(&acls, &[&states, &search, &acls, &both, METER, &acls], workers);
        }
    }
}

/// Who saves and who goes on, devices or others, makes no difference.
#[test]
fn state_is_saved_and_restored() {
    let mut below = Below(2);
    for device in devices() {
        let packets = packets_for(&device);
        let capture = capture_of(packets, 22);
        for (chain, _, workers) in all_kinds() {
            let settings = settings_for(&device, workers);
            let whole = oracle(&chain, &capture);
            let here = |settings| How { settings, ..How::default() };
            for (before, after) in [
                (on(&device, &settings), on(&device, &settings)),
                (here(""), on(&device, &settings)),
                (on(&device, &settings), here(ORACLE)),
            ] {
                let at = below.next(packets);
                let names = format!("{} {at} {}\n{chain}", before.settings, after.settings);
                let (first, outcome, _) =
                    all_results(&chain, &capture, How { limit: Some(at), saves: true, ..before });
                let saved = outcome.state.expect("it is saved");
                assert_eq!(saved.packets, at);
                let file = tempfile::NamedTempFile::new().expect("a file");
                saved.save(file.path()).expect("written");
                let restore = Some(State::load(file.path()).expect("a state"));
                let (second, _, notices) =
                    all_results(&chain, &without_first(&capture, at), How { restore, ..after });
                assert_eq!(notices, [] as [&str; 0], "{names}");
                let passed = [frames(&first.passed), frames(&second.passed)].concat();
                assert!(passed == frames(&whole.passed), "other packets: {names}");
                let mut records = [first.records, second.records].concat();
                records.sort_unstable();
                assert!(records == whole.records, "other records: {names}");
                for (name, counts) in whole.summary["dropped"].as_object().expect("an object") {
                    let number = |summary: &serde_json::Value| summary["dropped"][name].as_u64().unwrap_or(0);
                    assert_eq!(Some(number(&first.summary) + number(&second.summary)), counts.as_u64());
                }
            }
        }
    }
}

/// Rules change while a device has flows: each packet is judged by those of its time, also after the device failed and is back.
#[test]
fn rules_change_where_flows_are() {
    let logging = format!("{ACL}log = \"log\"\nlog_rate = \"unlimited\"\n");
    let reflecting = "[[chain]]\nnf = \"acl\"\nrules = \"reflecting\"\nloose = true\n";
    let mut below = Below(26);
    for device in devices() {
        let packets = 2 * packets_for(&device);
        let capture = capture_of(packets, 26);
        for (chain, workers) in [
            (format!("{SMALL}{COUNTER}{logging}{LIMITER}{METER}"), 1),
            (format!("{SMALL}{logging}{COUNTER}{LIMITER}"), WORKERS),
            (format!("{SMALL}{COUNTER}{reflecting}"), WORKERS),
        ] {
            let mut at = [(); 4].map(|()| below.next(packets));
            at.sort_unstable();
            let [first, second, third, fourth] = at;
            let changes = format!(
                "at {first}\nadd last permit udp from any to any port 4000-9999 id more\ncommit\n\
                 at {second}\nadd first deny tcp from any to any port 443 id no-tls\ncommit\n\
                 at {third}\nreplace more deny udp from any to any port 5000-9999\ncommit\n\
                 at {third}\ndelete no-tls\ncommit\n\
                 at {fourth}\nadd first reflect tcp from any to any\ncommit\n"
            );
            let changes = if chain.contains("reflecting") {
                &changes[..]
            } else {
                changes.rsplit_once("at").expect("there are some").0
            };
            let how = |settings| How { settings, changes: Some(changes), ..How::default() };
            let (expected, _, _) = results(&chain, &capture, how(ORACLE));
            let settings = format!(
                "{}\n{COPY_EVERY}\nmax_latency = \"1us\"\nbatch = 16",
                settings_for(&device, workers)
            );
            let on_it = How { devices: vec![device.clone()], ..how(&settings) };
            let (found, shares, notices) = results(&chain, &capture, on_it);
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}\n{changes}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}\n{changes}");
            let shares = check_shares(shares, packets, &notices);
            assert!(shares.device > packets * 9 / 10, "{settings} {shares:?}\n{chain}");
            // Between two changes, and soon before one.
            let moment = second + below.next((third - second).max(1));
            let (found, shares, notices) = with_recent_state(|| {
                let faults = Faults::new();
                let mut away = Away::new(&faults);
                let mut moment = Some(moment);
                let each = |read: u64| {
                    away.wait(Duration::from_millis(100));
                    if moment.take_if(|moment| read >= *moment).is_some() {
                        thread::sleep(UNTIL_COPY);
                        faults.fail_beside(COPIER, Call::Launch, 0);
                    }
                };
                let devices = vec![device.with_faults(&faults)];
                results(&chain, &capture, How { devices, each: Some(Box::new(each)), ..how(&settings) })
            });
            let shares = shares.expect("a device was used");
            eprintln!("{settings}: {shares:?}, {notices:?}");
            assert_eq!(shares.device + shares.here, packets);
            assert!(shares.faults > 0 && shares.here > 0, "{shares:?}");
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}\n{changes}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}\n{changes}");
        }
    }
}

/// A device fails at any packet, right after what it keeps was copied: nothing is lost. It comes back, with all that was judged meanwhile, and
/// fails again.
#[test]
fn devices_fail_and_come_back() {
    let mut below = Below(3);
    for device in devices() {
        let packets = 4 * packets_for(&device);
        let capture = capture_of(packets, 23);
        for (chain, _, workers) in all_kinds() {
            let expected = oracle(&chain, &capture);
            let settings = settings_for(&device, workers);
            let settings = format!("{settings}\n{COPY_EVERY}\nmax_latency = \"1us\"\nbatch = 16");
            let moments = [5, 1].map(|part| (part + below.next(2)) * packets / 9);
            let mut launches = vec![below.next(3)];
            let (found, shares, notices) = with_recent_state(|| {
                // A batch may have fewer: then one of the next batch fails, and it is tried again.
                let launch = launches.pop().unwrap_or(0);
                let faults = Faults::new();
                let mut moments = moments.to_vec();
                let mut away = Away::new(&faults);
                let each = |read: u64| {
                    away.wait(Duration::from_millis(100));
                    if moments.last().is_some_and(|&moment| read >= moment) {
                        moments.pop();
                        thread::sleep(UNTIL_COPY);
                        faults.fail_beside(COPIER, Call::Launch, launch);
                    }
                };
                let device = device.with_faults(&faults);
                let found =
                    results(&chain, &capture, How { each: Some(Box::new(each)), ..on(&device, &settings) });
                assert_eq!(faults.counts(Call::Launch).faults, 2);
                found
            });
            let shares = shares.expect("a device was used");
            eprintln!("{settings}: {shares:?}, {notices:?}");
            assert_eq!(shares.device + shares.here, packets);
            // Trials fail, too, until the device is done with what was queued before.
            assert!(shares.faults >= 2 && shares.here > 0 && shares.device > 0, "{shares:?}");
            let id = device.description().id;
            let is_back = format!("{id} is back");
            assert!(notices.len() == 4 && notices[1] == is_back && notices[3] == is_back, "{notices:?}");
            let tried = format!(", and {id} is tried again");
            let keeps = plan(&chain, &settings).stateful() > 0;
            for said in [&notices[0], &notices[2]] {
                assert!(said.contains("; software goes on") && said.ends_with(&tried), "{said}");
                assert_eq!(said.contains(" with the state of 0."), keeps, "{said}");
            }
            assert_eq!(found.summary, expected.summary, "{settings}\n{chain}");
            assert!(found == expected, "{settings}: other records, log or packets\n{chain}");
        }
    }
}

/// A device fails at any call, again and again: what is lost of state that it kept is what packets changed since the last copy, and of packets
/// none. What stands behind it is on cores all the time, and knows nothing of it.
#[test]
fn no_packet_is_lost_or_judged_twice() {
    let whole = format!("{SMALL}{ACL}{COUNTER}{UNCOUNTED}");
    let chains = [(format!("{whole}{CORES_METER}"), 1), (whole, WORKERS)];
    for (device, (chain, workers)) in
        devices().into_iter().flat_map(|device| chains.each_ref().map(|chain| (device.clone(), chain)))
    {
        let packets = 10 * packets_for(&device);
        let capture = capture_of(packets, 24);
        let mut expected = oracle(chain, &capture);
        let settings = format!("{}\nmax_latency = \"1us\"", settings_for(&device, *workers));
        let faults = Faults::new();
        let mut away = Away::new(&faults);
        let mut has_begun = false;
        let each = |_| {
            away.wait(Duration::from_millis(20));
            if !std::mem::replace(&mut has_begun, true) {
                let chances = Chances { allocation: 0.001, copy: 0.001, launch: 0.01, finish: 0.01 };
                faults.at_random(1, chances);
            }
        };
        let how = How { each: Some(Box::new(each)), ..on(&device.with_faults(&faults), &settings) };
        let (mut found, shares, notices) = results(chain, &capture, how);
        let shares = shares.expect("a device was used");
        eprintln!("{settings}: {shares:?}, {} notices", notices.len());
        assert_eq!(shares.device + shares.here, packets);
        assert!(shares.faults > 0 && shares.device > 0 && shares.here > 0, "{shares:?}");
        let counted =
            |results: &Results| results.summary["functions"][1]["packets"].as_u64().expect("a number");
        assert!(counted(&found) <= counted(&expected), "{} of {}", counted(&found), counted(&expected));
        for results in [&mut found, &mut expected] {
            results.summary["functions"][1].take();
            results.summary["flows"].take();
        }
        assert_eq!(found.summary, expected.summary, "{settings}");
        assert!(found == expected, "{settings}: other records, log or packets");
    }
}
