//! The kernels of `image` against the oracle, on the devices of this machine.
//!
//! *Accelerators* are those that `packetloom_device` lists: GPUs, and whatever has an OpenCL driver. The host runs kernels
//! under the sanitisers of its C compiler, hundreds of times as slow, so it gets fewer headers. What a machine lacks is said
//! and skipped.

use std::path::Path;
use std::sync::OnceLock;

use packetloom_classify::compiled::{self, CompiledRule, MatchKey};
use packetloom_classify::image::{self, Algorithm, Image, Target};
use packetloom_classify::rule::PortRange;
use packetloom_classify::{Rule, RuleSet};
use packetloom_device::{Cache, Device, Id};
use packetloom_engine::offload::{self, OnDevice, Options};
use packetloom_generate::{RuleOptions, Style};
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;

use crate::check::{Classifies, by_family, by_oracle, classify};
use crate::keys::{Random, at_the_edges, near_rules};
use crate::rules::{mixed, v4, v6};
use crate::{generated, random_sets};

/// The kernel for any rules, and one that is compiled for these.
const BOTH: &[bool] = &[false, true];
const GENERIC: &[bool] = &[false];

/// Devices that were opened, and why others cannot be had. Compiled kernels are kept for the next time.
fn opened(ids: Vec<Id>, mut missing: Vec<packetloom_device::Error>) -> (Vec<Device>, Vec<String>) {
    let mut devices = Vec::new();
    for id in ids {
        match Device::open(id, Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"))) {
            Ok(device) => devices.push(device),
            Err(error @ packetloom_device::Error::Unavailable { .. }) => missing.push(error),
            Err(error) => panic!("{id}: {error}"),
        }
    }
    (devices, missing.iter().map(ToString::to_string).collect())
}

/// The devices, once it was said what is missing.
fn said((devices, missing): &'static (Vec<Device>, Vec<String>)) -> &'static [Device] {
    missing.iter().for_each(|why| eprintln!("skipped: {why}"));
    devices
}

fn accelerators() -> &'static [Device] {
    static OPENED: OnceLock<(Vec<Device>, Vec<String>)> = OnceLock::new();
    said(OPENED.get_or_init(|| opened(packetloom_testing::accelerators(), Vec::new())))
}

fn host() -> &'static [Device] {
    static OPENED: OnceLock<(Vec<Device>, Vec<String>)> = OnceLock::new();
    said(OPENED.get_or_init(|| opened(vec![Id::Host], Vec::new())))
}

fn all() -> impl Iterator<Item = &'static Device> {
    accelerators().iter().chain(host())
}

impl Classifies for &mut offload::Classifier {
    fn v4(&mut self, keys: &[MatchKey4], first: &mut [u32]) {
        self.classify_v4(keys, first).expect("classified");
    }

    fn v6(&mut self, keys: &[MatchKey6], first: &mut [u32]) {
        self.classify_v6(keys, first).expect("classified");
    }
}

/// Where a device first differs from `expected`, with any algorithm; batches are as of [`classify`].
fn difference_from(
    expected: &[u32],
    device: &Device,
    rules: &RuleSet,
    keys: &[Key],
    specialise: &[bool],
    batch: usize,
) -> Option<String> {
    let options = Algorithm::ALL
        .into_iter()
        .flat_map(|algorithm| specialise.iter().map(move |&specialise| Options { algorithm, specialise }));
    options.into_iter().find_map(|options| {
        let mut classifier = offload::Classifier::new(device, rules, options).expect("a classifier");
        let found = classify(&mut classifier, keys, batch);
        let at = (0..keys.len()).find(|&at| found[at] != expected[at])?;
        let (id, found, expected, key) = (device.description().id, found[at], expected[at], keys[at]);
        Some(format!("{id}, {options:?}, batch {batch}: {found} instead of {expected} for {key:x?}"))
    })
}

/// A device finds what the oracle finds.
fn agree(device: &Device, rules: &RuleSet, keys: &[Key], specialise: &[bool]) {
    let expected = by_oracle(rules, keys);
    assert_eq!(difference_from(&expected, device, rules, keys, specialise, 0), None);
}

/// All accelerators find with the kernel for any rules what the oracle finds.
pub(crate) fn agree_on_accelerators(rules: &RuleSet, keys: &[Key]) {
    for device in accelerators() {
        agree(device, rules, keys, GENERIC);
    }
}

/// A few headers at the edges of rules, and some near them.
fn headers(rules: &RuleSet, points: usize, near: usize, random: &mut Random) -> Vec<Key> {
    let mut keys = [at_the_edges(rules, points, random), near_rules(rules, near, random)].concat();
    random.shuffle(&mut keys);
    keys
}

#[test]
fn few_rules_and_those_that_nothing_matches() {
    let ports = PortRange::exactly(8);
    let never = Rule { source_ports: ports, icmp_type: Some(8), ..Rule::any(None) };
    let some = mixed(70, &mut Random(3)).rules;
    let sets = [
        vec![],
        vec![Rule::any(None)],
        vec![v4(0, 0, 0, 0)],
        vec![v6(0, 0, 0, 0)],
        vec![v4(0xffff_ffff, 32, 0, 32)],
        vec![v6(u128::MAX, 128, 0, 128)],
        vec![never.clone(), never.clone()],
        vec![never.clone(), Rule::any(None), never],
        [vec![Rule::any(None)], some.clone()].concat(),
        [some, vec![Rule::any(None)]].concat(),
    ];
    for rules in sets.map(|rules| RuleSet { rules }) {
        let keys = headers(&rules, 3, 100, &mut Random(4));
        accelerators().iter().for_each(|device| agree(device, &rules, &keys, BOTH));
        host().iter().for_each(|device| agree(device, &rules, &keys, GENERIC));
    }
}

/// None, one, and about as many as the lanes, a group, or all groups take at a time.
fn counts(device: &Device) -> Vec<usize> {
    let target = offload::target(device, false);
    let image = Image::new::<MatchKey4>(&RuleSet::default(), Algorithm::Linear, &target).expect("an image");
    let group = image.round * (target.group / target.lanes);
    let all = group * device.description().units * target.groups_per_unit;
    let around = |count: u32| [count - 1, count, count + 1].map(|count| count as usize);
    let mut counts = [1, target.lanes, image.round, group, all, 2 * all].map(around).concat();
    counts.sort_unstable();
    counts.dedup();
    // What came before was more.
    counts.push(2);
    counts
}

#[test]
fn any_number_of_keys_is_classified() {
    let random = &mut Random(5);
    let rules = mixed(60, random);
    let (v4, v6) = by_family(&headers(&rules, 10, 2_000, random));
    for device in all() {
        let counts = counts(device);
        let most = counts.iter().copied().max().unwrap_or(0);
        let (v4, v6) = (cycled(&v4, most), cycled(&v6, most));
        let expected = (first_matches(&rules, &v4), first_matches(&rules, &v6));
        for algorithm in Algorithm::ALL {
            let options = Options { algorithm, specialise: false };
            let mut classifier = offload::Classifier::new(device, &rules, options).expect("a classifier");
            for &count in &counts {
                let mut first = (vec![7; count], vec![7; count]);
                classifier.classify_v4(&v4[..count], &mut first.0).expect("classified");
                classifier.classify_v6(&v6[..count], &mut first.1).expect("classified");
                let id = device.description().id;
                assert!(first.0 == expected.0[..count], "{algorithm} on {id}, {count} IPv4 headers");
                assert!(first.1 == expected.1[..count], "{algorithm} on {id}, {count} IPv6 headers");
            }
        }
    }
}

fn cycled<K: Copy>(keys: &[K], count: usize) -> Vec<K> {
    keys.iter().copied().cycle().take(count).collect()
}

/// What the oracle says, which is asked once for keys that come again after some.
fn first_matches<K: MatchKey>(rules: &RuleSet, keys: &[K]) -> Vec<u32> {
    let rules = CompiledRule::all(rules);
    let mut known = std::collections::HashMap::new();
    keys.iter().map(|key| *known.entry(*key).or_insert_with(|| compiled::first_match(&rules, key))).collect()
}

/// What an image finds, laid out for a target of ours.
fn found<K: MatchKey + bytemuck::Pod>(
    device: &Device,
    rules: &RuleSet,
    algorithm: Algorithm,
    target: &Target,
    keys: &[K],
) -> Vec<u32> {
    let image = Image::new::<K>(rules, algorithm, target).expect("an image");
    let loaded = OnDevice::new(device, &image, target).expect("a kernel");
    let mut queue = device.queue().expect("a queue");
    let keys_there = device.memory_of(bytemuck::cast_slice(keys)).expect("memory");
    let mut first = vec![7; keys.len()];
    let there = device.memory_of(bytemuck::cast_slice(&first)).expect("memory");
    loaded.launch(&mut queue, &keys_there, &there, 0..keys.len() as u32).expect("launched");
    queue.read(&there, 0, bytemuck::cast_slice_mut(&mut first)).expect("read");
    first
}

/// A part of the keys that are there: the answers of others stay as they are.
#[test]
fn parts_are_classified_where_they_lie() {
    let random = &mut Random(6);
    let rules = mixed(50, random);
    let (keys, _) = by_family(&headers(&rules, 10, 400, random));
    let expected = first_matches(&rules, &keys);
    for device in all() {
        let target = offload::target(device, false);
        let image = Image::new::<MatchKey4>(&rules, Algorithm::Masks, &target).expect("an image");
        let loaded = OnDevice::new(device, &image, &target).expect("a kernel");
        let mut queue = device.queue().expect("a queue");
        let keys_there = device.memory_of(bytemuck::cast_slice(&keys)).expect("memory");
        let mut wanted = vec![7; keys.len()];
        // Keys that are not there are refused before anything reads them.
        let count = keys.len() as u32;
        for beyond in [0..count + 1, count..offload::MAX_PACKETS + 1] {
            assert!(loaded.launch(&mut queue, &keys_there, &keys_there, beyond).is_err());
        }
        let there = device.memory_of(bytemuck::cast_slice(&wanted)).expect("memory");
        let end = keys.len();
        for part in [5..5, 1..2, 9..40, 77..300, 299..301, end - 3..end, end..end] {
            loaded
                .launch(&mut queue, &keys_there, &there, part.start as u32..part.end as u32)
                .expect("launched");
            wanted[part.clone()].copy_from_slice(&expected[part.clone()]);
            let mut first = vec![0; keys.len()];
            queue.read(&there, 0, bytemuck::cast_slice_mut(&mut first)).expect("read");
            assert!(first == wanted, "{part:?} on {}", device.description().id);
        }
    }
}

/// On the host any number of lanes runs: one as on a CPU behind OpenCL, 32 as on a GPU. Classes are in local memory where
/// there are more than one.
#[test]
fn any_number_of_lanes_agrees_on_the_host() {
    let random = &mut Random(7);
    let rules = mixed(150, random);
    let (v4, v6) = by_family(&headers(&rules, 2, 300, random));
    let expected = (first_matches(&rules, &v4), first_matches(&rules, &v6));
    for device in host() {
        for (lanes, specialise) in [(1, false), (1, true), (2, false), (8, true), (32, false), (32, true)] {
            let target = Target { lanes, group: lanes, ..offload::target(device, specialise) };
            for algorithm in Algorithm::ALL {
                let what = format!("{algorithm} with {lanes} lanes, specialised {specialise}");
                assert!(found(device, &rules, algorithm, &target, &v4) == expected.0, "{what}, IPv4");
                assert!(found(device, &rules, algorithm, &target, &v6) == expected.1, "{what}, IPv6");
            }
        }
    }
}

/// With the least memory that a group can have, the filter holds back next to nothing.
#[test]
fn little_local_memory_is_enough() {
    fn check<K: MatchKey + bytemuck::Pod>(device: &Device, rules: &RuleSet, keys: &[K]) {
        let expected = first_matches(rules, keys);
        // The others have filters as these have, or none.
        let algorithms = [Algorithm::TupleSpace, Algorithm::Masks];
        for (algorithm, specialise) in algorithms.into_iter().flat_map(|each| [(each, false), (each, true)]) {
            let with = |local_memory| Target { local_memory, ..offload::target(device, specialise) };
            let fits = |&bytes: &u32| Image::new::<K>(rules, algorithm, &with(bytes)).is_ok();
            let least = (1..).map(|parts| parts * 16).find(fits).expect("enough at some time");
            let id = device.description().id;
            assert!(found(device, rules, algorithm, &with(least), keys) == expected, "{algorithm} on {id}");
            let (group, local_memory) = (with(0).group, least - 16);
            let refused = Image::new::<K>(rules, algorithm, &with(local_memory));
            assert_eq!(refused, Err(image::Error::LocalMemory { group, local_memory }));
        }
    }
    let random = &mut Random(8);
    let rules = mixed(200, random);
    let (v4, v6) = by_family(&headers(&rules, 3, 300, random));
    for device in all() {
        check(device, &rules, &v4);
        check(device, &rules, &v6);
    }
}

const IPV4: &[bool] = &[false];
const IPV6: &[bool] = &[true];
const MIXED: &[bool] = &[false, true];

/// Small sets that overlap heavily, of these families, each with headers of its own.
fn small_sets(device: &Device, families: &'static [bool], cases: u32, batches: &'static [usize]) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let rules = random_sets::rule_set(families);
    let tried =
        TestRunner::new(config).run(&(rules, any::<u64>(), select(batches)), |(rules, seed, batch)| {
            let keys = random_sets::headers(&rules, seed);
            let expected = by_oracle(&rules, &keys);
            let difference = difference_from(&expected, device, &rules, &keys, GENERIC, batch);
            prop_assert!(difference.is_none(), "{}", difference.unwrap());
            Ok(())
        });
    tried.unwrap_or_else(|error| panic!("{error}"));
}

fn small_sets_on_accelerators(families: &'static [bool]) {
    for device in accelerators() {
        // Cores compile each set's kernel for more than a second; which sets there are is another matter in each run.
        let cases = if device.description().lanes > 1 { 134 } else { 20 };
        small_sets(device, families, cases, &[0, 7, 64, 129, 256]);
    }
}

#[test]
fn small_ipv4_sets_agree_on_accelerators() {
    small_sets_on_accelerators(IPV4);
}

#[test]
fn small_ipv6_sets_agree_on_accelerators() {
    small_sets_on_accelerators(IPV6);
}

#[test]
fn small_mixed_sets_agree_on_accelerators() {
    small_sets_on_accelerators(MIXED);
}

fn small_sets_on_the_host(families: &'static [bool]) {
    host().iter().for_each(|device| small_sets(device, families, 27, &[0, 64, 129]));
}

#[test]
fn small_ipv4_sets_agree_on_the_host() {
    small_sets_on_the_host(IPV4);
}

#[test]
fn small_ipv6_sets_agree_on_the_host() {
    small_sets_on_the_host(IPV6);
}

#[test]
fn small_mixed_sets_agree_on_the_host() {
    small_sets_on_the_host(MIXED);
}

/// Keys that no parser makes have an answer too.
#[test]
fn any_key_bits_agree() {
    let rules = mixed(200, &mut Random(9));
    let with = |key: &Key, bits| match *key {
        Key::V4(key) => Key::V4(MatchKey4 { bits, reserved: bits.0 ^ 0xff, ..key }),
        Key::V6(key) => Key::V6(MatchKey6 { bits, reserved: bits.0 ^ 0xff, ..key }),
    };
    let near = near_rules(&rules, 100, &mut Random(10));
    let keys: Vec<_> =
        near.iter().flat_map(|key| (0..64).map(move |bits| with(key, KeyBits(bits)))).collect();
    for device in accelerators() {
        agree(device, &rules, &keys, BOTH);
    }
    for device in host() {
        agree(device, &rules, &keys[..640], BOTH);
    }
}

/// Sets with the structure of real ones, and some headers that they are made for, mixed ones, and such as nearly match.
fn generated_sets(ipv6: bool, count: usize, headers: u64, each: impl Fn(RuleSet, &[Key])) {
    for style in Style::ALL {
        let (rules, shapes) = generated::rule_set(&RuleOptions { style, count, seed: 11, ipv6 });
        let mut keys = generated::headers(&shapes, headers / 2, 11, false);
        keys.extend(generated::headers(&shapes, headers / 4, 12, true));
        keys.extend(near_rules(&rules, headers as usize / 4, &mut Random(11)));
        each(rules, &keys);
    }
}

fn generated_sets_on_accelerators(ipv6: bool, count: usize) {
    generated_sets(ipv6, count, 20_000, |mut rules, keys| {
        accelerators().iter().for_each(|device| agree(device, &rules, keys, BOTH));
        // The last rule matches everything: without it, many headers match nothing.
        rules.rules.pop();
        accelerators().iter().for_each(|device| agree(device, &rules, keys, GENERIC));
    });
}

#[test]
fn generated_ipv4_sets_agree_on_accelerators() {
    generated_sets_on_accelerators(false, 1_000);
}

#[test]
fn generated_ipv6_sets_agree_on_accelerators() {
    generated_sets_on_accelerators(true, 1_000);
}

#[test]
fn large_generated_ipv4_sets_agree_on_accelerators() {
    generated_sets_on_accelerators(false, 5_000);
}

#[test]
fn large_generated_ipv6_sets_agree_on_accelerators() {
    generated_sets_on_accelerators(true, 5_000);
}

fn generated_sets_on_the_host(ipv6: bool) {
    generated_sets(ipv6, 1_000, 800, |rules, keys| {
        host().iter().for_each(|device| agree(device, &rules, keys, BOTH));
    });
}

#[test]
fn generated_ipv4_sets_agree_on_the_host() {
    if packetloom_testing::sweep("generated IPv4 rule sets on the host") {
        generated_sets_on_the_host(false);
    }
}

#[test]
fn generated_ipv6_sets_agree_on_the_host() {
    if packetloom_testing::sweep("generated IPv6 rule sets on the host") {
        generated_sets_on_the_host(true);
    }
}

/// 600 rules in one bucket of every table: those that decide last are at the end of a long chain.
#[test]
fn long_chains_are_followed_to_their_end() {
    let ports = |n: u16| PortRange { low: n * 100, high: n * 100 + 98 };
    for address in [v4(1, 32, 2, 31), v6(1 << 64, 128, 2 << 64, 70)] {
        for (source, protocol) in [(true, None), (false, Some(17))] {
            let rule = |n| {
                let (ports, other) = (ports(n), PortRange::ANY);
                let (source_ports, destination_ports) = if source { (ports, other) } else { (other, ports) };
                Rule { source_ports, destination_ports, protocol, ..address.clone() }
            };
            let mut rules = RuleSet { rules: (0..600).map(rule).collect() };
            for seed in 0..2 {
                rules.rules.reverse();
                let keys = headers(&rules, 4, 600, &mut Random(seed));
                accelerators().iter().for_each(|device| agree(device, &rules, &keys, GENERIC));
                host().iter().for_each(|device| agree(device, &rules, &keys[..100], GENERIC));
            }
        }
    }
}

/// Slots of one table that hold more than a rule: here each link of a chain leads to a rule with other addresses.
fn links<K: MatchKey>(rules: &RuleSet, target: &Target) -> usize {
    let image = Image::new::<K>(rules, Algorithm::TupleSpace, target).expect("an image");
    let words = if K::default().words(|word| word).as_ref().len() == 2 { 4 } else { 12 };
    image.rules.chunks(words).filter(|slot| slot[words - 1] >> 24 != 0).count()
}

#[test]
fn rules_that_share_a_slot_are_told_apart() {
    let random = &mut Random(13);
    let mut host4 = || random.next() as u32;
    let mut rules: Vec<_> = (0..2_000).map(|_| v4(host4(), 32, host4(), 32)).collect();
    let mut host6 = || u128::from(host4()) << 96 | u128::from(host4());
    rules.extend((0..2_000).map(|_| v6(host6(), 128, host6(), 128)));
    // Each again, in another order and under another mask.
    let wider = |rule: &Rule| Rule { protocol: Some(6), ..rule.clone() };
    rules.extend(rules.iter().rev().map(wider).collect::<Vec<_>>());
    random.shuffle(&mut rules);
    let rules = RuleSet { rules };
    let keys = near_rules(&rules, 4_000, random);
    for device in all() {
        let target = offload::target(device, false);
        let links = (links::<MatchKey4>(&rules, &target), links::<MatchKey6>(&rules, &target));
        assert!(links.0 > 100 && links.1 > 100, "{links:?} rules share slots");
        let keys = if device.description().id == Id::Host { &keys[..800] } else { &keys };
        agree(device, &rules, keys, GENERIC);
    }
}

/// A chain goes on in the free places behind it, so one of 500 rules is in the way of thousands of others.
#[test]
fn chains_in_the_way_of_others_cost_little_memory() {
    let ports = |n: u16| PortRange { low: n * 100, high: n * 100 + 98 };
    let long = (0..500).map(|n| Rule { destination_ports: ports(n), ..v4(1, 32, 2, 32) });
    let pair =
        |n: u32| [0, 1].map(|at| Rule { destination_ports: ports(at), ..v4(n * 0x9e37, 32, n * 77, 32) });
    let rules = RuleSet { rules: long.chain((0..10_000).flat_map(pair)).collect() };
    let target = Target {
        lanes: 1,
        group: 64,
        groups_per_unit: 2,
        local_memory: 1 << 16,
        packets_a_lane: 2,
        specialise: false,
    };
    for algorithm in Algorithm::ALL {
        let image = Image::new::<MatchKey4>(&rules, algorithm, &target).expect("an image");
        // Four slots a rule, twice that to have room, and the filter.
        let most = 8 * 16 * rules.rules.len() + (1 << 16);
        assert!(image.memory() <= most, "{algorithm}: {} bytes", image.memory());
    }
    let keys = near_rules(&rules, 2_000, &mut Random(15));
    agree_on_accelerators(&rules, &keys);
}

/// A kernel for the rules has no more than 64 masks in its text; with more, they are read from memory.
#[test]
fn more_masks_than_the_text_holds_are_read_from_memory() {
    let lens: Vec<(u8, u8)> = (0..9).flat_map(|a| (0..9).map(move |b| (32 - a, 32 - b))).collect();
    for (tables, in_text) in [(64, true), (65, false), (81, false)] {
        let four = lens[..tables].iter().map(|&(a, b)| v4(0xa55a_c33c, a, 0x5aa5_3cc3, b));
        let six = lens[..tables].iter().map(|&(a, b)| v6(u128::MAX / 3, a * 4, u128::MAX / 5, b * 4));
        let rules = RuleSet { rules: four.chain(six).collect() };
        let (v4, v6) = by_family(&headers(&rules, 5, 400, &mut Random(14)));
        let expected = (first_matches(&rules, &v4), first_matches(&rules, &v6));
        for device in all() {
            let (target, algorithm) = (offload::target(device, true), Algorithm::TupleSpace);
            let image = Image::new::<MatchKey4>(&rules, algorithm, &target).expect("an image");
            assert_eq!(image.tables, tables);
            let has = image.defines.iter().any(|(name, _)| name.starts_with("TABLE_LIST"));
            assert_eq!(has, in_text, "{tables} tables");
            let id = device.description().id;
            assert!(found(device, &rules, algorithm, &target, &v4) == expected.0, "{tables} on {id}, IPv4");
            assert!(found(device, &rules, algorithm, &target, &v6) == expected.1, "{tables} on {id}, IPv6");
        }
    }
}

/// So many rules with conditions that differ.
fn with_conditions(count: u32) -> RuleSet {
    let rule = |n: u32| {
        let ports = PortRange { low: n as u16, high: u16::MAX };
        Rule { source_ports: ports, protocol: Some((n >> 16) as u8), ..v4(n, 32, 0, 0) }
    };
    RuleSet { rules: (0..count).map(rule).collect() }
}

#[test]
fn conditions_are_counted() {
    let target = Target {
        lanes: 1,
        group: 64,
        groups_per_unit: 2,
        local_memory: 1 << 16,
        packets_a_lane: 2,
        specialise: false,
    };
    let most = with_conditions(1 << 16);
    let more = with_conditions((1 << 16) + 1);
    for algorithm in Algorithm::ALL {
        assert_eq!(
            Image::new::<MatchKey4>(&more, algorithm, &target),
            Err(image::Error::Classes((1 << 16) + 1)),
            "{algorithm}"
        );
        // None of them is for the other family.
        assert!(Image::new::<MatchKey6>(&more, algorithm, &target).is_ok());
        let image = Image::new::<MatchKey4>(&most, algorithm, &target).expect("as many as there can be");
        assert_eq!(image.classes.len(), 4 << 16, "{algorithm}");
    }
    let keys: Vec<_> = (0..400)
        .flat_map(|n: u32| {
            let [address, port] = [n * 163 + n % 3, n * 163];
            let bits = KeyBits::WHOLE.with(KeyBits::PORTS);
            [(address, port as u16), (address, (port as u16).wrapping_sub(1)), (0xffff - n, u16::MAX)].map(
                |(source, source_port)| {
                    Key::V4(MatchKey4 { source, source_port, bits, ..MatchKey4::default() })
                },
            )
        })
        .collect();
    for device in accelerators() {
        agree(device, &most, &keys, GENERIC);
    }
}
