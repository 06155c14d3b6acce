//! Rules that change, against a plain list of them: after every transaction, in other threads, and over long times.

#[path = "../classifiers/keys.rs"]
#[allow(dead_code)]
mod keys;
#[path = "../classifiers/model.rs"]
mod model;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use packetloom_classify::live::{Change, Name, Place, Problem, Reader, View, Writer};
use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Kind, NO_RULE, Rule, RuleSet};
use packetloom_packet::{Key, MatchKey4, MatchKey6};
use packetloom_simd::Isa;

use crate::keys::{Random, at_the_edges};
use crate::model::first_match;

/// A rule over few addresses, so that rules overlap; now and then with conditions of every kind.
fn rule(random: &mut Random) -> Rule {
    let ports = |random: &mut Random| match random.below(4) {
        0 => {
            let (a, b) = (random.below(65_536) as u16, random.below(65_536) as u16);
            PortRange { low: a.min(b), high: a.max(b) }
        }
        1 => PortRange::exactly(random.pick(&[0, 53, 80, 443, 65_535])),
        _ => PortRange::ANY,
    };
    let addresses = match random.below(8) {
        0 => Addresses::Any,
        1 | 2 => {
            let [source, destination] = [(); 2].map(|()| {
                let len = random.pick(&[0, 16, 32, 48, 64, 96, 127, 128, 128]);
                let low = u128::from(random.below(64)) << random.pick(&[0, 60, 90]);
                Prefix6::new((u128::MAX / 3) ^ low, len)
            });
            Addresses::V6(source, destination)
        }
        _ => {
            let [source, destination] = [(); 2].map(|()| {
                let len = random.pick(&[0, 8, 12, 16, 20, 24, 31, 32, 32]);
                Prefix4::new(0x0a00_0000 ^ (random.below(64) as u32) << random.pick(&[0, 8, 20]), len)
            });
            Addresses::V4(source, destination)
        }
    };
    let action = random.pick(&[Action::Permit, Action::Deny]);
    let mut rule = Rule { addresses, ..Rule::any(Some(action)) };
    match random.below(4) {
        0 => {}
        1 => {
            rule.protocol = Some(1);
            rule.icmp_type = Some(random.below(9) as u8);
            rule.icmp_code = random.pick(&[None, Some(0), Some(1)]);
        }
        2 => {
            rule.protocol = Some(6);
            (rule.source_ports, rule.destination_ports) = (ports(random), ports(random));
            let mask = random.below(256) as u8;
            let set = random.next() as u8 & mask;
            rule.tcp_flags = random.pick(&[None, None, None, Some(TcpFlagMatch { set, mask })]);
        }
        _ => {
            rule.protocol = random.pick(&[None, Some(17), Some(random.0 as u8)]);
            (rule.source_ports, rule.destination_ports) = (ports(random), ports(random));
        }
    }
    rule.fragments = random.pick(&[
        Fragments::All,
        Fragments::All,
        Fragments::All,
        Fragments::All,
        Fragments::All,
        Fragments::Any,
        Fragments::None,
        Fragments::Later,
        Fragments::First,
    ]);
    rule
}

/// A rule of few shapes, as hash tables like them.
fn narrow(random: &mut Random) -> Rule {
    let source = Prefix4::new(0x0a00_0000 | random.below(1 << 14) as u32, random.pick(&[32, 32, 30, 24]));
    let destination = Prefix4::new(0xc0a8_0000 | random.below(256) as u32, random.pick(&[32, 24, 16]));
    let port = random.pick(&[22, 53, 80, 443, 8080]);
    Rule {
        addresses: Addresses::V4(source, destination),
        protocol: Some(6),
        destination_ports: PortRange::exactly(port),
        ..Rule::any(Some(Action::Permit))
    }
}

/// The list as it should be: serial numbers and rules, and the names by place.
#[derive(Clone, Debug)]
struct Model {
    rules: Vec<(u64, Rule)>,
    /// Serial numbers of the rules that have the numbers from 0 on, or had them last.
    numbers: Vec<u64>,
    next: u64,
}

impl Model {
    fn new(rules: &RuleSet) -> Self {
        let next = rules.rules.len() as u64;
        Self { rules: (0..).zip(rules.rules.iter().cloned()).collect(), numbers: (0..next).collect(), next }
    }

    fn find(&self, name: &Name) -> Option<usize> {
        self.rules.iter().position(|(serial, rule)| match name {
            Name::Id(id) => rule.id.as_ref() == Some(id),
            Name::Number(number) => self.numbers.get(*number as usize) == Some(serial),
        })
    }

    fn make(&mut self, change: &Change) -> Option<()> {
        match change {
            Change::Add(place, rule) => {
                let at = match place {
                    Place::First => 0,
                    Place::Last => self.rules.len(),
                    Place::Before(name) => self.find(name)?,
                    Place::After(name) => self.find(name)? + 1,
                    Place::At(at) => (*at <= self.rules.len()).then_some(*at)?,
                };
                if rule.id.as_ref().is_some_and(|id| self.find(&Name::Id(id.clone())).is_some()) {
                    return None;
                }
                self.rules.insert(at, (self.next, rule.clone()));
                self.numbers.push(self.next);
            }
            Change::Delete(name) => {
                let at = self.find(name)?;
                self.rules.remove(at);
                return Some(());
            }
            Change::Replace(name, rule) => {
                let at = self.find(name)?;
                let mut rule = rule.clone();
                let (serial, old) = &self.rules[at];
                rule.id = rule.id.or(old.id.clone());
                // No other rule may have its id.
                if rule.id.is_some() && rule.id != old.id && self.find(&Name::Id(rule.id.clone()?)).is_some()
                {
                    return None;
                }
                self.numbers
                    .iter_mut()
                    .filter(|numbered| *numbered == serial)
                    .for_each(|numbered| *numbered = self.next);
                self.rules[at] = (self.next, rule);
            }
        }
        self.next += 1;
        Some(())
    }

    /// All or nothing; whether it was all.
    fn apply(&mut self, changes: &[Change]) -> bool {
        let mut copy = self.clone();
        let all = changes.iter().all(|change| copy.make(change).is_some());
        if all {
            *self = copy;
        }
        all
    }

    fn rule_set(&self) -> RuleSet {
        RuleSet { rules: self.rules.iter().map(|(_, rule)| rule.clone()).collect() }
    }

    /// The serial number of the first rule that matches.
    fn first(&self, rules: &RuleSet, key: &Key) -> Option<u64> {
        let first = first_match(rules, key);
        (first != NO_RULE).then(|| self.rules[first as usize].0)
    }
}

/// Changes of which some cannot be made. Rules have the ids `r` and a number.
fn changes(model: &Model, ids: &mut u64, random: &mut Random, make: fn(&mut Random) -> Rule) -> Vec<Change> {
    let few = random.below(5) + 1;
    // The list neither grows for ever nor dies out.
    let grow = model.rules.len() as u64 <= random.below(2 * model.next.clamp(20, 150));
    (0..few)
        .map(|_| {
            let name = match random.below(50) {
                0 => Name::Id("nobody".into()),
                _ if model.rules.is_empty() => Name::Number(0),
                _ => match &model.rules[random.below(model.rules.len() as u64) as usize] {
                    (_, Rule { id: Some(id), .. }) => Name::Id(id.clone()),
                    (serial, _) => {
                        let number = model.numbers.iter().position(|numbered| numbered == serial);
                        Name::Number(number.expect("every rule has one") as u64)
                    }
                },
            };
            *ids += 1;
            let mut rule = make(random);
            rule.id = (random.below(40) != 0).then(|| format!("r{}", *ids - random.below(50) / 49).into());
            match random.below(5) {
                0 => Change::Replace(name, rule),
                1 | 2 if !grow => Change::Delete(name),
                _ => {
                    let place = match random.below(5) {
                        0 => Place::First,
                        1 => Place::Last,
                        2 => Place::Before(name),
                        3 => Place::After(name),
                        _ => Place::At(random.below(model.rules.len() as u64 + 2) as usize),
                    };
                    Change::Add(place, rule)
                }
            }
        })
        .collect()
}

/// Serial numbers of the rules that decide.
fn judge(view: &View<'_>, keys: &[Key]) -> Vec<Option<u64>> {
    let v4: Vec<MatchKey4> =
        keys.iter().filter_map(|key| if let Key::V4(key) = key { Some(*key) } else { None }).collect();
    let v6: Vec<MatchKey6> =
        keys.iter().filter_map(|key| if let Key::V6(key) = key { Some(*key) } else { None }).collect();
    let (mut first4, mut first6) = (vec![7; v4.len()], vec![7; v6.len()]);
    view.classify_v4(&v4, &mut first4);
    view.classify_v6(&v6, &mut first6);
    let (mut first4, mut first6) = (first4.into_iter(), first6.into_iter());
    keys.iter()
        .map(|key| {
            let slot = if matches!(key, Key::V4(_)) { first4.next() } else { first6.next() }.unwrap();
            (slot != NO_RULE).then(|| view.serial(slot).unwrap())
        })
        .collect()
}

/// Some of the headers at the edges, so that those of many rules are among them.
fn some_keys(rules: &RuleSet, random: &mut Random) -> Vec<Key> {
    let mut keys = at_the_edges(rules, 6, random);
    keys.retain(|_| random.below(3) == 0);
    keys
}

fn check(writer: &Writer, model: &Model, random: &mut Random) {
    assert!(writer.serials().eq(model.rules.iter().map(|&(serial, _)| serial)));
    let rules = model.rule_set();
    assert!(writer.rules().eq(&rules.rules));
    let keys = some_keys(&rules, random);
    let reader = writer.reader();
    let found = judge(&reader.view(), &keys);
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(found, model.first(&rules, key), "{key:x?}\n{rules:#?}");
    }
}

fn churn(seed: u64, loaded: usize, transactions: usize, make: fn(&mut Random) -> Rule) {
    let mut random = Random(seed);
    let rules = RuleSet { rules: (0..loaded).map(|_| make(&mut random)).collect() };
    let mut model = Model::new(&rules);
    let isas = Isa::all_available();
    let mut writer = Writer::with_isa(rules, isas[seed as usize % isas.len()]);
    check(&writer, &model, &mut random);
    let (mut version, mut ids, mut refused) = (0, 0, 0);
    for _ in 0..transactions {
        let changes = changes(&model, &mut ids, &mut random, make);
        let before = model.clone();
        let made = writer.apply(&changes);
        if model.apply(&changes) {
            version += 1;
            assert_eq!(made, Ok(version), "{changes:?} {:?}", before.rules);
        } else {
            assert!(made.is_err(), "{changes:?}");
            refused += 1;
        }
        assert_eq!(writer.reader().view().version(), version);
        check(&writer, &model, &mut random);
    }
    assert!(transactions < 100 || refused > 0 && version > refused, "{refused} refused, {version} made");
}

#[test]
fn every_transaction_is_as_on_a_plain_list() {
    for seed in 0..60 {
        churn(seed, 30, 100, rule);
    }
    for seed in 100..120 {
        churn(seed, 0, 100, rule);
    }
    // Enough for hash tables.
    for seed in 200..210 {
        churn(seed, 300, 120, narrow);
        churn(seed, 200, 120, |random| if random.below(4) == 0 { rule(random) } else { narrow(random) });
    }
}

#[test]
fn hash_tables_overflow_and_are_made_anew() {
    // From nothing to thousands of rules, many of them under the same keys, then back to few.
    let mut random = Random(5);
    let mut writer = Writer::new(RuleSet::default());
    let mut model = Model::new(&RuleSet::default());
    for round in 0..60 {
        let mut changes = Vec::new();
        for _ in 0..100 {
            let (place, mut rule) = match random.below(8) {
                0 => (Place::First, rule(&mut random)),
                _ => (Place::At(random.below(model.rules.len() as u64 + 1) as usize), narrow(&mut random)),
            };
            // Wide ones, so that others vanish behind them, and come back when these go.
            if let (Addresses::V4(source, destination), 0) = (rule.addresses, random.below(4)) {
                let [source, destination] =
                    [Prefix4::new(source.address(), 18), Prefix4::new(destination.address(), 8)];
                rule.addresses = Addresses::V4(source, destination);
            }
            rule.id = Some(format!("n{}", random.next()).into());
            changes.push(Change::Add(place, rule));
        }
        assert!(model.apply(&changes));
        writer.apply(&changes).unwrap();
        if round % 10 == 9 {
            check(&writer, &model, &mut random);
        }
    }
    let full = writer.figures();
    assert!(full.lines > 1_000 && full.in_bitmaps < 3_000, "{full:?}");
    while model.rules.len() > 10 {
        let mut gone = Vec::new();
        for _ in 0..100.min(model.rules.len() - 5) {
            let at = random.below(model.rules.len() as u64) as usize;
            let id = model.rules.remove(at).1.id.unwrap();
            gone.push(Change::Delete(Name::Id(id)));
        }
        writer.apply(&gone).unwrap();
        check(&writer, &model, &mut random);
    }
    assert!(writer.figures().lines <= 40, "{:?}", writer.figures());
}

#[test]
fn readers_judge_by_whole_versions() {
    const KEPT: usize = 16;
    let mut random = Random(9);
    let rules = RuleSet {
        rules: (0..150)
            .map(|_| if random.below(3) == 0 { rule(&mut random) } else { narrow(&mut random) })
            .collect(),
    };
    let mut model = Model::new(&rules);
    let mut writer = Writer::new(rules.clone());
    let versions = Mutex::new(VecDeque::from([(0, Arc::new(model.clone()))]));
    let (done, judged, seen) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let read = |reader: Reader, mut random: Random| {
        let mut last = 0;
        while !done.load(Ordering::Relaxed) {
            let keys = some_keys(&rules, &mut random);
            let view = reader.view();
            let version = view.version();
            // While a view is held, the writer is at most two versions ahead of it.
            let known = versions.lock().unwrap();
            let model = known.iter().find(|(number, _)| *number == version).unwrap().1.clone();
            drop(known);
            let found = judge(&view, &keys);
            drop(view);
            let list = model.rule_set();
            for (key, found) in keys.iter().zip(found) {
                assert_eq!(found, model.first(&list, key), "version {version}: {key:x?}");
            }
            assert!(version >= last, "versions do not go back");
            seen.fetch_add(u64::from(version > last), Ordering::Relaxed);
            last = version;
            judged.fetch_add(keys.len() as u64, Ordering::Relaxed);
        }
    };
    // However it ends: a failure must not leave the readers running.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        let _end = End(&done);
        for seed in 0..2 {
            let reader = writer.reader();
            let read = &read;
            scope.spawn(move || read(reader, Random(seed)));
        }
        let mut ids = 0;
        while seen.load(Ordering::Relaxed) < 400 {
            let changes = changes(&model, &mut ids, &mut random, |random| {
                if random.below(3) == 0 { rule(random) } else { narrow(random) }
            });
            let mut next = model.clone();
            if !next.apply(&changes) {
                assert!(writer.apply(&changes).is_err());
                continue;
            }
            model = next;
            let version = writer.stage(&changes).unwrap();
            let mut known = versions.lock().unwrap();
            known.push_back((version, Arc::new(model.clone())));
            if known.len() > KEPT {
                known.pop_front();
            }
            drop(known);
            // Now and then several are published together.
            if random.below(4) != 0 || version.is_multiple_of(4) {
                writer.publish();
            }
        }
    });
    assert!(judged.load(Ordering::Relaxed) > 10_000);
}

/// A rule that no hash table takes: wide ranges on both sides.
fn wide(random: &mut Random) -> Rule {
    let mut range = |limit: u64| {
        let low = random.below(limit) as u16;
        PortRange { low, high: low + 20_000 + random.below(20_000) as u16 }
    };
    Rule { source_ports: range(20_000), destination_ports: range(20_000), ..Rule::any(Some(Action::Deny)) }
}

#[test]
fn bitmaps_keep_the_order_wherever_rules_are_put() {
    // Always first, always last, always at the same place, and anywhere; then out again, from all over, from one end, or from
    // one stretch.
    for kind in 0..4usize {
        let mut random = Random(kind as u64);
        let mut writer = Writer::new(RuleSet::default());
        let mut model = Model::new(&RuleSet::default());
        for number in 0..700u64 {
            let rules = model.rules.len();
            let place = [0, rules, rules.min(100), random.below(rules as u64 + 1) as usize][kind];
            let rule = Rule { id: Some(format!("w{number}").into()), ..wide(&mut random) };
            let changes = [Change::Add(Place::At(place), rule)];
            assert!(model.apply(&changes));
            writer.apply(&changes).unwrap();
            if number % 50 == 49 {
                check(&writer, &model, &mut random);
            }
        }
        assert!(writer.figures().in_bitmaps > 500, "{:?}", writer.figures());
        while model.rules.len() > 3 {
            let rules = model.rules.len();
            let place = [random.below(rules as u64) as usize, rules - 1, 0, rules / 3][kind];
            let id = model.rules[place].1.id.clone().unwrap();
            let changes = [Change::Delete(Name::Id(id))];
            assert!(model.apply(&changes));
            writer.apply(&changes).unwrap();
            if rules.is_multiple_of(50) {
                check(&writer, &model, &mut random);
            }
        }
        check(&writer, &model, &mut random);
    }
}

/// Changes `transactions` times five rules at random places for others, and says what that leaves beside a writer that never knew
/// anything but the rules as they are then.
fn wear(seed: u64, rules: usize, transactions: usize, make: fn(&mut Random) -> Rule) {
    let mut random = Random(seed);
    let mut next = 0u64;
    let mut named = |random: &mut Random| {
        next += 1;
        let id: Box<str> = format!("n{next}").into();
        (id.clone(), Rule { id: Some(id), ..make(random) })
    };
    let (mut ids, loaded): (Vec<_>, Vec<_>) = (0..rules).map(|_| named(&mut random)).unzip();
    let mut writer = Writer::new(RuleSet { rules: loaded });
    for _ in 0..transactions {
        let mut changes = Vec::new();
        for _ in 0..5 {
            let at = random.below(ids.len() as u64) as usize;
            changes.push(Change::Delete(Name::Id(ids[at].clone())));
            let (id, rule) = named(&mut random);
            ids[at] = id;
            changes.push(Change::Add(Place::At(random.below(rules as u64) as usize), rule));
        }
        // Rules that are put in and taken out by the same transaction leave nothing either.
        let (id, rule) = named(&mut random);
        changes.push(Change::Add(Place::First, rule));
        changes.push(Change::Delete(Name::Id(id)));
        writer.apply(&changes).unwrap();
        let slots = writer.figures().slots;
        assert!(slots <= rules + 6, "{slots} slots for {rules} rules");
    }
    let now = RuleSet { rules: writer.rules().cloned().collect() };
    let fresh = Writer::new(now.clone());
    let (worn, new) = (writer.figures(), fresh.figures());
    assert_eq!(worn.rules, rules);
    let figures = format!("{worn:?}, {} bytes; anew {new:?}, {} bytes", writer.memory(), fresh.memory());
    assert!(worn.lines <= new.lines * 5 / 4 + 64, "{figures}");
    assert!(worn.copies <= new.copies * 5 / 4 + 64, "{figures}");
    assert!(worn.in_bitmaps <= new.in_bitmaps * 2 + 512, "{figures}");
    assert!(writer.memory() <= fresh.memory() * 3 / 2 + (4 << 20), "{figures}");
    let keys: Vec<Key> = (0..20)
        .flat_map(|part| {
            let some = now.rules.iter().skip(part * rules / 20).take(10).cloned().collect();
            some_keys(&RuleSet { rules: some }, &mut random)
        })
        .collect();
    assert!(keys.len() > 1_000);
    let serials: Vec<u64> = writer.serials().collect();
    let linear = Kind::Linear.build(&now);
    for (key, found) in keys.iter().zip(judge(&writer.reader().view(), &keys)) {
        let mut first = [NO_RULE];
        match key {
            Key::V4(key) => linear.classify_v4(std::slice::from_ref(key), &mut first),
            Key::V6(key) => linear.classify_v6(std::slice::from_ref(key), &mut first),
        }
        assert_eq!(found, serials.get(first[0] as usize).copied(), "{key:x?}");
    }
}

#[test]
fn millions_of_changes_wear_nothing_out() {
    // 12 changes a transaction: two million in all.
    wear(11, 5_000, 60_000, |random| if random.below(50) == 0 { rule(random) } else { narrow(random) });
    wear(12, 5_000, 60_000, |random| if random.below(8) == 0 { rule(random) } else { narrow(random) });
    wear(13, 1_000, 40_000, rule);
    wear(14, 600, 10_000, wide);
}

#[test]
fn what_cannot_be_done_is_said_and_changes_nothing() {
    let id = |name: &str| Rule { id: Some(name.into()), ..Rule::any(Some(Action::Permit)) };
    let named = |name: &str| Name::Id(name.into());
    let rules = RuleSet { rules: vec![id("a"), id("twice"), id("twice"), Rule::any(None)] };
    let mut writer = Writer::new(rules.clone());
    let fine = Change::Add(Place::First, id("new"));
    for (change, problem, message) in [
        (
            Change::Delete(named("b")),
            Problem::Unknown(named("b")),
            "no rule b; expected the id of a rule of the list, or @N for the one with number N",
        ),
        (
            Change::Delete(named("twice")),
            Problem::Ambiguous(named("twice"), 2),
            "2 rules have the id twice; expected one that is unique, or @N for the rule with number N",
        ),
        (
            Change::Add(Place::Last, id("twice")),
            Problem::Taken("twice".into()),
            "a rule has the id twice already; expected one that is new",
        ),
        (
            Change::Add(Place::At(6), id("c")),
            Problem::Range { place: 6, rules: 5 },
            "place 6; expected one from 0 to 5, the number of rules",
        ),
        (
            Change::Replace(Name::Number(5), id("c")),
            Problem::Unknown(Name::Number(5)),
            "no rule @5; expected the id of a rule of the list, or @N for the one with number N",
        ),
    ] {
        let delete = Change::Delete(named("a"));
        let error = writer.apply(&[fine.clone(), change.clone()]).unwrap_err();
        assert_eq!((error.change, &error.problem, &*error.to_string()), (1, &problem, message));
        let error = writer.apply(&[delete, change, fine.clone()]).unwrap_err();
        assert_eq!(error.change, 1);
        assert!(writer.rules().eq(&rules.rules));
        assert_eq!(writer.reader().view().version(), 0);
    }
    // One of the two is named by its number; the other is the only one then.
    assert_eq!(writer.apply(&[Change::Delete(Name::Number(2)), Change::Delete(named("twice"))]), Ok(1));
    // A rule that replaces one goes by its names.
    let deny = Rule::any(Some(Action::Deny));
    let replace = |name: Name| Change::Replace(name, deny.clone());
    assert_eq!(writer.apply(&[replace(named("a")), replace(Name::Number(0)), replace(named("a"))]), Ok(2));
    assert_eq!(writer.serials().collect::<Vec<_>>(), [6, 3]);
    // Those that are added have the numbers after the loaded ones, whatever was refused or replaced before.
    assert_eq!(
        writer.apply(&[Change::Add(Place::First, deny.clone()), Change::Add(Place::Last, deny.clone())]),
        Ok(3)
    );
    assert_eq!(writer.apply(&[Change::Delete(Name::Number(4)), replace(Name::Number(5))]), Ok(4));
    assert_eq!(writer.serials().collect::<Vec<_>>(), [6, 3, 9]);
}
