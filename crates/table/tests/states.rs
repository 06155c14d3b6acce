//! State by flow against a map, in batches.

use std::collections::HashMap;

use packetloom_table::states::{
    Counts, EXTRA_BITS, Ended, Entry, FUNCTIONS, Hashed, Key, KeyForm, NO_SLOT, Packet, Slot, StateAt,
    States, WhenFull, entry_bytes, extended, extra, header_words, key_and_functions,
};
use proptest::prelude::*;

const SEEDS: [u64; 2] = [7, 11];
const FORMS: [KeyForm; 3] = [KeyForm::Whole, KeyForm::Address, KeyForm::Extended];
const AT: StateAt = StateAt { function: 3, word: 1 };
const WORDS: usize = 3;

/// A function that only asks whether it has seen the flow, the last one that there may be: it keeps no words.
fn sees(form: KeyForm) -> StateAt {
    StateAt { function: form.max_functions() as u32 - 1, word: WORDS }
}

/// Packets of a batch: a flow's number, a time, whether the function gets to see it.
type Packets = Vec<(u64, u64, bool)>;

struct Looked {
    now: u64,
    slot: Slot,
}

impl Packet for Looked {
    fn now(&self) -> u64 {
        self.now
    }

    fn slot(&mut self) -> &mut Slot {
        &mut self.slot
    }
}

fn key<const W: usize>(form: KeyForm, number: u64) -> Key<W> {
    // Such as differ in one word only, each time another one; the last has bits to spare.
    let words = form.words(W);
    let mut key = [0; W];
    key[..words].fill(number);
    key[number as usize % words] ^= 1 << 30;
    key[words - 1] &= (1 << 40) - 1;
    if form == KeyForm::Extended {
        // Every other flow differs from the one before in its number alone.
        key = if number % 2 == 1 { self::key(KeyForm::Whole, number - 1) } else { key };
        key[words - 1] = extended(key[words - 1], number % (1 << EXTRA_BITS));
    }
    assert!(form.is_of(&key));
    let are_others = |other: &&KeyForm| (**other == KeyForm::Extended) != (form == KeyForm::Extended);
    assert!(!FORMS.iter().filter(are_others).any(|other| other.is_of(&key)));
    key
}

/// How packets come to know where their flows probably are.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// The table asks as it goes.
    Along,
    /// A prefetch hint is used before.
    Before,
    /// As if one had been asked long ago: they know the wrong places.
    LongAgo,
}

impl Asked {
    /// Each in turns.
    fn of_batch(number: usize) -> Self {
        [Self::Along, Self::Before, Self::LongAgo][number % 3]
    }
}

/// Sends packets to places that have nothing to do with their flows, most of which there are.
fn mislead<const W: usize>(form: KeyForm, table: &States<W>, flows: &[Hashed<W>], packets: &mut [Looked]) {
    let lines = entry_bytes(form.words(W), WORDS) as u64 / 64;
    let places = 2 * table.capacity() as u64 + 64;
    for (flow, packet) in flows.iter().zip(packets) {
        packet.slot = (flow.hash % places * lines) as Slot;
    }
}

/// Takes a batch through a table whose function counts packets of each flow and adds up their times; returns what it counted of
/// each packet's flow so far.
fn feed<const W: usize>(
    form: KeyForm,
    table: &mut States<W>,
    packets: &Packets,
    asked: Asked,
) -> Vec<Option<[u64; 2]>> {
    let flows = packets.iter().map(|&(number, ..)| {
        let key = key(form, number);
        Hashed { key, hash: table.hash(&key) }
    });
    let flows: Vec<_> = flows.collect();
    let mut looked: Vec<_> = packets.iter().map(|&(_, now, _)| Looked { now, slot: 0 }).collect();
    let mut inserted = Vec::new();
    let initialized = match asked {
        Asked::Along => table.find_or_insert_all(&flows, &mut looked, &mut inserted),
        Asked::Before => {
            let prefetch_hint = table.prefetch_hint();
            prefetch_hint.prefetch(&flows);
            prefetch_hint.prefetch_entries(&flows, &mut looked);
            table.find_or_insert_prefetched(&flows, &mut looked, &mut inserted)
        }
        Asked::LongAgo => {
            mislead(form, table, &flows, &mut looked);
            table.find_or_insert_prefetched(&flows, &mut looked, &mut inserted)
        }
    };
    let slots = looked.iter().map(|looked| Some(looked.slot).filter(|&slot| slot != NO_SLOT));
    let mut entries = table.entries();
    let counted = slots.zip(packets).zip(0..).map(|((slot, &(_, now, is_seen)), number)| {
        let slot = slot.filter(|_| is_seen)?;
        let is_new = entries.begin::<[u64; 2]>(slot, AT).is_some_and(|state| {
            assert_eq!(*state, [0; 2]);
            true
        });
        // If all entries but the inserted ones had state, only the inserted ones begin.
        assert!(!is_new || !initialized.contains(AT) || inserted.contains(&number));
        assert!(entries.begin::<[u64; 2]>(slot, AT).is_none());
        let counted = *entries.state::<[u64; 2]>(slot, AT);
        assert_eq!(is_new, counted[0] == 0);
        assert_eq!(entries.begin::<()>(slot, sees(form)).is_some(), is_new);
        let [packets, times] = entries.state::<[u64; 2]>(slot, AT);
        assert_eq!([*packets, *times], counted);
        *packets += 1;
        *times = times.wrapping_add(now);
        Some([*packets, *times])
    });
    let counted = counted.collect();
    table.end_batch();
    counted
}

fn batches(flows: u64) -> impl Strategy<Value = Vec<Packets>> {
    let packet = (0..flows, prop_oneof![4 => 0u64..30, 1 => 0u64..1000], prop::bool::weighted(0.8));
    prop::collection::vec(prop::collection::vec(packet, 0..40), 0..30)
}

/// Times that mostly grow.
fn in_time(batches: &mut [Packets]) {
    let mut clock = 0;
    for (_, time, _) in batches.iter_mut().flatten() {
        clock += *time % 40;
        *time = clock.saturating_sub(if *time > 900 { 60 } else { 0 });
    }
}

fn agrees_with_a_map<const W: usize>(form: KeyForm, mut batches: Vec<Packets>, timeout: u64) {
    in_time(&mut batches);
    let mut table = States::<W>::new(form, 1000, 40, WORDS, timeout, WhenFull::Refuse, SEEDS);
    let mut map: HashMap<u64, (u64, Option<[u64; 2]>)> = HashMap::new();
    let mut counts = Counts::default();
    for (number, packets) in batches.iter().enumerate() {
        let found = feed(form, &mut table, packets, Asked::of_batch(number));
        for (&(number, now, is_seen), found) in packets.iter().zip(found) {
            if map.get(&number).is_some_and(|(last, _)| now.saturating_sub(*last) >= timeout) {
                map.remove(&number);
                counts.expired += 1;
            }
            let (last, state) = map.entry(number).or_insert_with(|| {
                counts.created += 1;
                (now, None)
            });
            *last = now.max(*last);
            if !is_seen {
                assert_eq!(found, None);
                continue;
            }
            let state = state.get_or_insert_default();
            *state = [state[0] + 1, state[1].wrapping_add(now)];
            assert_eq!(found, Some(*state));
        }
        assert_eq!((table.counts(), table.len()), (counts, map.len()));
        let mut held: Vec<_> = table
            .iter()
            .map(|entry| (entry.key(), (entry.last(), entry.state::<[u64; 2]>(AT).copied())))
            .collect();
        let mut expected: Vec<_> =
            map.iter().map(|(&number, &value)| (key::<W>(form, number), value)).collect();
        held.sort_unstable();
        expected.sort_unstable();
        assert_eq!(held, expected);
        // Who only looks finds those that are not dead, and leaves all as it is.
        for number in 0..64 {
            let key = key::<W>(form, number);
            let flow = Hashed { key, hash: table.hash(&key) };
            let held = map.get(&number);
            for now in held.map_or([0; 3], |&(last, _)| [last, last + timeout - 1, last + timeout]) {
                let is_alive = held.is_some_and(|&(last, _)| now.saturating_sub(last) < timeout);
                let found = table.find(&flow, now);
                let mut looked = [NO_SLOT; 3].map(|slot| Looked { now, slot });
                table.prefetch_hint().prefetch_entries(&[flow], &mut looked[..1]);
                mislead(form, &table, &[flow], &mut looked[1..]);
                table.find_prefetched(&[flow; 3], &mut looked);
                assert!(looked.iter().all(|looked| looked.slot == found.unwrap_or(NO_SLOT)));
                assert_eq!(found.is_some(), is_alive);
                if let (Some(slot), Some((_, Some(state)))) = (found, held) {
                    assert!(table.entries().begin::<[u64; 2]>(slot, AT).is_none());
                    assert_eq!(table.entries().state::<[u64; 2]>(slot, AT), state);
                }
            }
        }
        assert_eq!((table.counts(), table.len()), (counts, map.len()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn below_capacity_it_is_a_map(batches in batches(60), timeout in 1u64..400) {
        for form in FORMS {
            agrees_with_a_map::<2>(form, batches.clone(), timeout);
            agrees_with_a_map::<5>(form, batches.clone(), timeout);
        }
    }

    /// At capacity there are never more, a packet that finds its flow goes on with it, and each is in one count.
    #[test]
    fn at_capacity_its_bounds_hold(
        mut batches in batches(60),
        capacity in 1usize..20,
        timeout in prop_oneof![Just(u64::MAX), 100u64..2000],
        evicts: bool,
        form in prop::sample::select(&FORMS[..]),
    ) {
        in_time(&mut batches);
        let when_full = if evicts { WhenFull::Evict } else { WhenFull::Refuse };
        let mut table = States::<2>::new(form, capacity, 40, WORDS, timeout, when_full, SEEDS);
        let mut packets = 0;
        for (number, batch) in batches.iter().enumerate() {
            let before = table.counts();
            let found = feed(form, &mut table, batch, Asked::of_batch(number));
            packets += found.iter().zip(batch).filter(|(found, packet)| found.is_none() && packet.2).count() as u64;
            let counts = table.counts();
            prop_assert!(table.len() <= capacity);
            prop_assert_eq!(table.iter().count(), table.len());
            prop_assert_eq!(counts.created, table.len() as u64 + counts.expired + counts.evicted);
            prop_assert!(counts.refused - before.refused <= batch.len() as u64);
            prop_assert_eq!(if evicts { counts.refused } else { counts.evicted }, 0);
        }
        prop_assert!(packets <= table.counts().refused);
    }
}

/// Flows that go on keep their places in a flood of others.
#[test]
fn a_flood_takes_its_own_places() {
    for (when_full, form) in [WhenFull::Evict, WhenFull::Refuse, WhenFull::Evict].into_iter().zip(FORMS) {
        let mut table = States::<2>::new(form, 1000, 256, WORDS, u64::MAX, when_full, SEEDS);
        let mut next = 1_000_000;
        let mut counted = 0;
        for round in 0..2_000 {
            let mut batch: Packets = (0..100).map(|number| (number, round, true)).collect();
            batch.extend((0..100).map(|n| (next + n, round, true)));
            next += 100;
            let found = feed(form, &mut table, &batch, Asked::of_batch(round as usize));
            counted = found[..100].iter().flatten().map(|[packets, _]| packets).sum();
        }
        assert_eq!(counted, 100 * 2_000, "{when_full:?}");
        assert_eq!(table.len(), 1000);
    }
}

/// What was removed in a batch is still there for the packets before.
#[test]
fn packets_before_a_removal_find_the_flow_as_it_was() {
    for form in FORMS {
        let mut table = States::<2>::new(form, 1, 8, WORDS, 10, WhenFull::Evict, SEEDS);
        // Its second flow takes the place of the first one, and the first one comes back; then it expires.
        let batch = vec![(1, 0, true), (1, 1, true), (2, 2, true), (1, 3, true), (1, 4, true), (1, 14, true)];
        let found = feed(form, &mut table, &batch, Asked::Along);
        let packets: Vec<_> = found.into_iter().flatten().map(|[packets, _]| packets).collect();
        assert_eq!(packets, [1, 2, 1, 1, 2, 1]);
        assert_eq!(table.counts(), Counts { created: 4, expired: 1, evicted: 2, refused: 0 });
        // All but the second flow's packet are led to the entry that is there, which goes with that packet.
        let batch = vec![(1, 15, true), (2, 16, true), (1, 17, true), (1, 18, true), (1, 28, true)];
        let found = feed(form, &mut table, &batch, Asked::Before);
        let packets: Vec<_> = found.into_iter().flatten().map(|[packets, _]| packets).collect();
        assert_eq!(packets, [2, 1, 1, 2, 1]);
        assert_eq!(table.counts(), Counts { created: 7, expired: 2, evicted: 4, refused: 0 });
    }
}

/// A prefetch hint is mostly right: two of 7 tags of a group are the same for few flows.
#[test]
fn signposts_lead_to_most_flows() {
    for form in FORMS {
        let mut table = States::<5>::new(form, 1000, 1000, WORDS, u64::MAX, WhenFull::Evict, SEEDS);
        let prefetch_hint = table.prefetch_hint();
        let batch = (0..1000).map(|number| (number, 0, true)).collect();
        feed(form, &mut table, &batch, Asked::Before);
        let keys = (0..1000).map(|number| key(form, number));
        let flows: Vec<_> = keys.map(|key| Hashed { key, hash: table.hash(&key) }).collect();
        let mut looked: Vec<_> = flows.iter().map(|_| Looked { now: 0, slot: NO_SLOT }).collect();
        prefetch_hint.prefetch_entries(&flows, &mut looked);
        let right = flows
            .iter()
            .zip(&looked)
            .filter(|(flow, looked)| table.find(flow, 0) == Some(looked.slot))
            .count();
        assert!((950..=1000).contains(&right), "{right} of 1000");
    }
}

/// Keys that share a group, far more than it has room for.
#[test]
fn groups_overflow_and_empty_again() {
    let mut table = States::<2>::new(KeyForm::Whole, 3000, 256, WORDS, 100, WhenFull::Refuse, SEEDS);
    let mut aimed: Vec<u64> =
        (0..2_000_000).filter(|&n| table.hash(&key(KeyForm::Whole, n)) >> 52 == 0).collect();
    aimed.truncate(400);
    assert_eq!(aimed.len(), 400);
    for round in 0..4 {
        for part in aimed.chunks(256) {
            let batch = part.iter().map(|&number| (number, round * 1000, true)).collect();
            // Each is a new flow in every round: those before are dead.
            assert!(
                feed(KeyForm::Whole, &mut table, &batch, Asked::of_batch(round as usize))
                    .iter()
                    .all(|found| found.is_some_and(|[packets, _]| packets == 1))
            );
        }
        assert_eq!((table.len(), table.counts().expired), (400, round * 400));
    }
}

/// What is saved of one table is found in another one; what is no key of its form is not.
#[test]
fn entries_of_another_table_are_found() {
    for form in FORMS {
        let new = || States::<2>::new(form, 100, 40, WORDS, u64::MAX, WhenFull::Evict, SEEDS);
        let (mut old, mut table) = (new(), new());
        let batch = (0..40).map(|number| (number, number, number >= 10)).collect();
        feed(form, &mut old, &batch, Asked::Along);
        let mut saved = Vec::new();
        old.save(WORDS, &mut saved);
        assert_eq!(saved.len(), 40 * (2 + 1 + WORDS));
        for words in saved.chunks_exact(3 + WORDS) {
            let entry = Entry::<2>::new(words);
            let number = entry.last();
            assert_eq!(entry.key(), key(form, number));
            assert_eq!(entry.state(AT), (number >= 10).then_some(&[1, number]));
        }
        table.put_all(saved.chunks_exact(3 + WORDS).map(Entry::new), |entry| panic!("{entry:?}"));
        let again: Vec<_> = feed(form, &mut table, &batch, Asked::Along)
            .into_iter()
            .map(|found| found.map(|[packets, _]| packets))
            .collect();
        let expected: Vec<_> = (0..40).map(|number| (number >= 10).then_some(2)).collect();
        assert_eq!(again, expected);
        assert_eq!((table.len(), table.counts().created), (40, 0));
    }
    let mut table = States::<2>::new(FORMS[1], 100, 40, WORDS, u64::MAX, WhenFull::Evict, SEEDS);
    let entries = [[1, 1, 0, 0, 0, 0], [1 << 40, 0, 0, 0, 0, 0]];
    let mut gone = Vec::new();
    table.put_all(entries.iter().map(|words| Entry::new(words)), |entry| gone.push(entry.key()));
    assert_eq!((gone, table.is_empty()), (vec![[1, 1], [1 << 40, 0]], true));
}

/// A table that grows holds what it held, in batches of any size; beyond where it grows in place, too.
#[test]
fn a_table_that_grows_is_a_map() {
    fn grows<const W: usize>(form: KeyForm, capacity: usize, flows: u64) {
        let mut table = States::<W>::growing(form, capacity, WORDS, u64::MAX, WhenFull::Evict, SEEDS);
        let mut map: HashMap<u64, [u64; 2]> = HashMap::new();
        let (mut random, mut from) = (1u64, 0);
        for number in 0.. {
            if from >= flows {
                break;
            }
            let size = [1, 100, 3000, 20][number % 4];
            let batch: Packets = (0..size)
                .map(|_| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let is_new = random >> 60 < 8;
                    from += u64::from(is_new);
                    let flow = if is_new { from } else { (random >> 20) % (from + 1) };
                    (flow, number as u64, true)
                })
                .collect();
            table.reserve(batch.len());
            let found = feed(form, &mut table, &batch, Asked::of_batch(number % 2));
            for (&(flow, now, _), found) in batch.iter().zip(found) {
                let counted = map.entry(flow).or_default();
                *counted = [counted[0] + 1, counted[1] + now];
                assert_eq!(found, Some(*counted), "flow {flow} of {from}");
            }
        }
        assert_eq!((table.len(), table.counts().created), (map.len(), map.len() as u64));
        let held = table.slots().map(|slot| table.at(slot));
        let held: HashMap<_, _> = held.map(|entry| (entry.key(), *entry.state(AT).expect("seen"))).collect();
        let counted: HashMap<_, _> =
            map.iter().map(|(&flow, &counted)| (key::<W>(form, flow), counted)).collect();
        assert_eq!(held, counted);
        // Another one grows with what it takes over.
        let mut other = States::<W>::growing(form, capacity, WORDS, u64::MAX, WhenFull::Evict, SEEDS);
        let mut saved = Vec::new();
        table.save(WORDS, &mut saved);
        let entries = saved.chunks_exact(header_words(W) + WORDS).map(Entry::<W>::new);
        other.put_all(entries, |entry| panic!("{entry:?}"));
        let taken: HashMap<_, _> =
            other.iter().map(|entry| (entry.key(), *entry.state(AT).expect("seen"))).collect();
        assert_eq!((taken, other.counts()), (counted, Counts::default()));
    }
    for form in FORMS {
        grows::<2>(form, 5_000, 4_000);
        grows::<2>(form, 1 << 20, 150_000);
        grows::<5>(form, 1 << 20, 20_000);
    }
}

/// At capacity it grows no more.
#[test]
fn a_table_that_grew_as_far_as_it_may_evicts() {
    for capacity in [1, 2, 1_024, 3_000] {
        let mut table =
            States::<2>::growing(KeyForm::Whole, capacity, WORDS, u64::MAX, WhenFull::Evict, SEEDS);
        let mut ended = 0;
        for number in 0..20u64 {
            let batch: Packets = (0..500).map(|flow| (500 * number + flow, number, true)).collect();
            table.reserve(batch.len());
            let flows: Vec<_> = batch.iter().map(|&(flow, ..)| key(KeyForm::Whole, flow)).collect();
            let flows: Vec<_> = flows.into_iter().map(|key| Hashed { key, hash: table.hash(&key) }).collect();
            let mut looked: Vec<_> = batch.iter().map(|&(_, now, _)| Looked { now, slot: 0 }).collect();
            table.find_or_insert_all(&flows, &mut looked, &mut Vec::new());
            assert!(looked.iter().all(|looked| looked.slot != NO_SLOT));
            ended += table.ended().inspect(|(_, why)| assert_eq!(*why, Ended::Evicted)).count();
            table.end_batch();
            assert_eq!(table.ended().count(), 0);
        }
        assert_eq!((table.len(), ended), (capacity, 10_000 - capacity));
        assert_eq!(table.counts().evicted, ended as u64);
    }
}

/// What ended is shown with what packets brought to it that came before, though they were looked up together.
#[test]
fn what_ended_is_shown_as_it_is_at_the_end_of_the_batch() {
    let mut table = States::<2>::growing(KeyForm::Whole, 2, WORDS, 100, WhenFull::Evict, SEEDS);
    let shown = |table: &mut States<2>, packets: &[(u64, u64)]| -> Vec<_> {
        table.reserve(packets.len());
        let hashed = |flow| {
            let key = key(KeyForm::Whole, flow);
            Hashed { key, hash: table.hash(&key) }
        };
        let flows: Vec<_> = packets.iter().map(|&(flow, _)| hashed(flow)).collect();
        let mut looked: Vec<_> = packets.iter().map(|&(_, now)| Looked { now, slot: 0 }).collect();
        table.find_or_insert_all(&flows, &mut looked, &mut Vec::new());
        let mut entries = table.entries();
        for packet in &looked {
            entries.begin::<[u64; 2]>(packet.slot, AT);
            entries.state::<[u64; 2]>(packet.slot, AT)[0] += 1;
        }
        let ended = table.ended();
        let ended =
            ended.map(|(entry, why)| (entry.key(), entry.state::<[u64; 2]>(AT).expect("seen")[0], why));
        let ended = ended.collect();
        table.end_batch();
        ended
    };
    let key = |flow| key::<2>(KeyForm::Whole, flow);
    // One expires between its own packets; then there is no room for a third one.
    assert_eq!(shown(&mut table, &[(1, 0), (1, 99), (1, 199), (1, 200)]), [(key(1), 2, Ended::Expired)]);
    assert_eq!(shown(&mut table, &[(2, 201), (2, 202), (2, 203)]), []);
    let [(gone, packets, why)] = shown(&mut table, &[(1, 204), (2, 204), (3, 205)])[..] else {
        panic!("one has to go");
    };
    assert_eq!(why, Ended::Evicted);
    assert!((gone, packets) == (key(1), 3) || (gone, packets) == (key(2), 4), "{gone:?} with {packets}");
    // A dead one goes before one that has come again since, and is no eviction.
    let left = if gone == key(1) { 2 } else { 1 };
    assert_eq!(shown(&mut table, &[(left, 400), (left, 400)])[0].2, Ended::Expired);
    assert_eq!(shown(&mut table, &[(4, 401)]), [(key(3), 1, Ended::Expired)]);
}

/// A sweep ends what is dead, and nothing else.
#[test]
fn a_sweep_ends_what_is_dead() {
    for form in FORMS {
        let mut table = States::<5>::growing(form, 10_000, WORDS, 100, WhenFull::Evict, SEEDS);
        for number in 0..30u64 {
            let batch: Packets = (0..100).map(|flow| (100 * number + flow, number * 10, true)).collect();
            table.reserve(batch.len());
            feed(form, &mut table, &batch, Asked::Along);
        }
        // Those of time 0 to 190 are dead at 290.
        let (mut at, mut ended) = (0, 0);
        for _ in 0..40 {
            at = table.sweep(at, table.groups().div_ceil(10), 150, 290);
            let now = table.ended().inspect(|(entry, why)| {
                assert!(entry.last() <= 190 && *why == Ended::Expired);
            });
            let count = now.count();
            assert!(count <= 150);
            ended += count;
            table.end_batch();
        }
        assert_eq!((ended, table.len(), table.counts().expired), (2_000, 1_000, 2_000));
        // Where there is no timeout, nothing is ever dead.
        let mut table = States::<5>::growing(form, 10_000, WORDS, u64::MAX, WhenFull::Evict, SEEDS);
        feed(form, &mut table, &vec![(1, 0, true)], Asked::Along);
        table.sweep(0, table.groups(), 1_000, u64::MAX);
        assert_eq!((table.ended().count(), table.len()), (0, 1));
    }
}

/// A function's state is forgotten in pieces of the table; entries that no function is in are gone, others stay, and new ones find room.
#[test]
fn what_is_forgotten_is_gone_from_a_full_table() {
    for form in FORMS {
        forgets_like_a_map::<2>(form);
        forgets_like_a_map::<5>(form);
    }
}

fn forgets_like_a_map<const W: usize>(form: KeyForm) {
    let flows = 2_000;
    let mut table = States::<W>::new(form, flows as usize, 256, WORDS, u64::MAX, WhenFull::Refuse, SEEDS);
    let all: Vec<u64> = (1..=flows).collect();
    let feed_all = |table: &mut States<W>, numbers: &[u64], counted: u64| {
        for numbers in numbers.chunks(256) {
            let packets: Packets = numbers.iter().map(|&number| (number, 1, true)).collect();
            let found = feed(form, table, &packets, Asked::Along);
            assert!(found.iter().all(|found| *found == Some([counted, counted])), "{found:?}");
            table.end_batch();
        }
    };
    feed_all(&mut table, &all, 1);
    let keys: HashMap<Key<W>, u64> = all.iter().map(|&number| (key(form, number), number)).collect();
    let number_of = |entry: &Entry<'_, W>| keys[&entry.key()];
    // The other function stays in some of them.
    table.forget_if(0, usize::MAX, sees(form), |entry| number_of(&entry) % 5 != 0);
    assert_eq!(table.len(), flows as usize);
    for (round, most) in [1, 50, 700, usize::MAX].into_iter().enumerate() {
        let is_over = |number: u64| number % 4 == round as u64;
        let (mut from, mut shown, mut steps) = (0, Vec::new(), 0);
        while from < table.groups() {
            let next = table.forget_if(from, most, AT, |entry| {
                let number = number_of(&entry);
                shown.push(number);
                is_over(number)
            });
            assert!(next > from);
            from = next;
            steps += 1;
        }
        assert!(steps > 1 || most == usize::MAX);
        // All that the function was still in, each once.
        shown.sort_unstable();
        let left: Vec<u64> = all.iter().copied().filter(|number| (number % 4) >= round as u64).collect();
        assert_eq!(shown, left);
        let with_state = table.iter().filter(|entry| entry.state::<[u64; 2]>(AT).is_some()).count();
        assert_eq!(with_state, left.iter().filter(|&&number| !is_over(number)).count());
        let seen = table.iter().filter(|entry| entry.state_words(sees(form), 0).is_some()).count();
        assert_eq!(seen, flows as usize / 5);
        assert_eq!(table.len(), table.iter().count());
    }
    assert_eq!(table.len(), flows as usize / 5);
    table.forget_if(0, usize::MAX, sees(form), |_| true);
    assert!(table.is_empty());
    // All begin anew, and find room.
    feed_all(&mut table, &all, 1);
    assert_eq!((table.len(), table.counts().refused), (flows as usize, 0));
}

/// The number beside an extended key is part of it, and leaves room for functions.
#[test]
fn extended_keys_have_a_number_beside_them() {
    let functions = (1 << KeyForm::Extended.max_functions()) - 1;
    let last = (1 << FUNCTIONS) - 1;
    for number in [0, 1, 2048, (1 << EXTRA_BITS) - 1] {
        let key = extended(last, number);
        assert_eq!((extra(key), key & last), (Some(number), last));
        assert_eq!(key_and_functions(key | functions << FUNCTIONS), (key, functions));
        assert!(KeyForm::Extended.is_of(&[7, key]) && !KeyForm::Whole.is_of(&[7, key]));
        assert!(!KeyForm::Extended.is_of(&[7, key | 1 << FUNCTIONS]), "no key, but an entry's word");
        assert_eq!(Entry::<2>::new(&[7, key | functions << FUNCTIONS, 9]).key(), [7, key]);
    }
    assert_eq!(extra(last), None);
    let functions = (1 << KeyForm::Whole.max_functions()) - 1;
    assert_eq!(key_and_functions(last | functions << FUNCTIONS), (last, functions));
}
