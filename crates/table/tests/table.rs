//! The flow table against a model that is a plain list in order of creation.

use packetloom_packet::FlowKey;
use packetloom_table::{EntryId, FlowTable};
use proptest::prelude::*;

/// Flow `n` of as many as there are numbers, of both families.
fn key(n: u32) -> FlowKey {
    let address = |n: u32| if n.is_multiple_of(2) { [0, n.into()] } else { [0x2001_0db8 << 32, n.into()] };
    FlowKey {
        a: address(n),
        b: address(n ^ 0x00ff_0000),
        a_port: n as u16,
        b_port: 443,
        protocol: 6,
        version: if n.is_multiple_of(2) { 4 } else { 6 },
        reserved: [0; 2],
    }
}

/// What is done to a table; numbers choose among the keys of a test.
#[derive(Clone, Debug)]
enum Op {
    /// Look a flow up; make it if it is not there, and if the table is full, take the oldest out first.
    Touch(u16),
    /// As many in a row.
    Flood(u16, u8),
    Find(u16),
    Remove(u16),
    RemoveOldest,
    Prefetch(u64),
    /// Go over all places and remove the flows whose value has this bit set.
    Sweep(u8),
}

fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => any::<u16>().prop_map(Op::Touch),
        1 => (any::<u16>(), any::<u8>()).prop_map(|(first, count)| Op::Flood(first, count)),
        3 => any::<u16>().prop_map(Op::Find),
        6 => any::<u16>().prop_map(Op::Remove),
        1 => Just(Op::RemoveOldest),
        1 => any::<u64>().prop_map(Op::Prefetch),
        1 => (0..16u8).prop_map(Op::Sweep),
    ];
    prop::collection::vec(op, 0..count)
}

/// A table and what it should hold.
struct Checked {
    table: FlowTable<u64>,
    /// Flows in order of creation.
    model: Vec<(FlowKey, u64, EntryId)>,
    capacity: usize,
    most: usize,
    created: u64,
}

impl Checked {
    fn new(capacity: usize, seed: u64) -> Self {
        Self { table: FlowTable::new(capacity, seed), model: Vec::new(), capacity, most: 0, created: 0 }
    }

    fn find(&self, key: &FlowKey) -> Option<usize> {
        let at = self.model.iter().position(|(found, ..)| found == key);
        let id = self.table.find(key, self.table.hash(key));
        assert_eq!(id, at.map(|at| self.model[at].2), "{key:?}");
        at
    }

    fn touch(&mut self, key: FlowKey) {
        if let Some(at) = self.find(&key) {
            let (found, value) = self.table.get_mut(self.model[at].2).expect("an entry that was found");
            assert_eq!((*found, *value), (key, self.model[at].1));
            *value += 1 << 32;
            self.model[at].1 += 1 << 32;
            return;
        }
        assert_eq!(self.table.is_full(), self.model.len() == self.capacity);
        if self.table.is_full() {
            self.remove(0);
        }
        let id = self.table.insert(key, self.table.hash(&key), self.created);
        assert!(self.model.iter().all(|&(_, _, other)| other != id), "{id:?} is taken");
        self.model.push((key, self.created, id));
        self.created += 1;
        self.most = self.most.max(self.model.len());
    }

    fn remove(&mut self, at: usize) {
        let (key, value, id) = self.model.remove(at);
        assert_eq!(self.table.remove(id), Some((key, value)));
        // The number means nothing any more.
        assert_eq!(self.table.remove(id), None);
        assert_eq!(self.table.get_mut(id), None);
        assert_eq!(self.find(&key), None);
    }

    fn apply(&mut self, op: &Op, keys: &[FlowKey]) {
        let pick = |n: u16| keys[usize::from(n) % keys.len()];
        match *op {
            Op::Touch(n) => self.touch(pick(n)),
            Op::Flood(first, count) => {
                (0..u16::from(count)).for_each(|n| self.touch(pick(first.wrapping_add(n))))
            }
            Op::Find(n) => drop(self.find(&pick(n))),
            Op::Remove(n) => {
                if let Some(at) = self.find(&pick(n)) {
                    self.remove(at);
                }
            }
            Op::RemoveOldest => {
                assert_eq!(self.table.oldest(), self.model.first().map(|&(_, _, id)| id));
                if !self.model.is_empty() {
                    self.remove(0);
                }
            }
            Op::Prefetch(hash) => {
                self.table.prefetch_bucket(hash);
                self.table.prefetch_entry(hash);
            }
            Op::Sweep(bit) => {
                for slot in 0..self.table.slots() {
                    let Some((id, &value)) = self.table.at(slot) else { continue };
                    let at = self
                        .model
                        .iter()
                        .position(|&(_, _, other)| other == id)
                        .expect("no entry beside the model's");
                    assert_eq!(value, self.model[at].1);
                    if value >> bit & 1 == 1 {
                        self.remove(at);
                        assert_eq!(self.table.at(slot), None);
                    }
                }
            }
        }
        assert_eq!(self.table.len(), self.model.len());
        assert_eq!(self.table.is_empty(), self.model.is_empty());
        assert_eq!(self.table.is_full(), self.model.len() == self.capacity);
        // Places are used again: there are never more of them than flows at one time.
        assert_eq!(self.table.slots(), self.most);
        assert_eq!(self.table.at(self.most), None);
    }

    /// Looks at everything once more and takes it out in order of creation.
    fn finish(mut self, keys: &[FlowKey]) {
        let mut places: Vec<u64> =
            (0..self.table.slots()).filter_map(|slot| self.table.at(slot)).map(|(_, &value)| value).collect();
        let mut values: Vec<u64> = self.model.iter().map(|&(_, value, _)| value).collect();
        places.sort_unstable();
        values.sort_unstable();
        assert_eq!(places, values);
        for key in keys {
            self.find(key);
            let hash = self.table.hash(key);
            self.table.prefetch_bucket(hash);
            self.table.prefetch_entry(hash);
        }
        while let Some(id) = self.table.oldest() {
            assert_eq!(id, self.model[0].2);
            self.remove(0);
        }
        assert!(self.model.is_empty() && self.table.is_empty());
        // Nothing is left behind that a search could stumble over.
        for key in keys {
            self.touch(*key);
            self.remove(0);
        }
    }
}

fn check(capacity: usize, seed: u64, keys: &[FlowKey], ops: &[Op]) {
    let mut checked = Checked::new(capacity, seed);
    for op in ops {
        checked.apply(op, keys);
    }
    checked.finish(keys);
}

/// `count` keys whose hash satisfies a condition.
fn keys_where(seed: u64, count: usize, mut holds: impl FnMut(u64) -> bool) -> Vec<FlowKey> {
    (0..).map(key).filter(|key| holds(key.hash(seed))).take(count).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_tables_follow_the_model(capacity in 1..100usize, seed: u64, ops in ops(400)) {
        let keys: Vec<_> = (0..120).map(key).collect();
        check(capacity, seed, &keys, &ops);
    }

    #[test]
    fn flows_of_one_bucket_follow_the_model(ops in ops(600), seed in 0..4u64) {
        // Sixteen buckets until there are 96 flows. Of these, most belong in the last two buckets, so that they overflow
        // past the end of the array, into buckets that have flows of their own.
        let keys: Vec<_> = [(14, 30), (15, 40), (0, 20), (3, 10), (1, 10)]
            .into_iter()
            .flat_map(|(home, count)| keys_where(seed, count, |hash| hash & 15 == home))
            .collect();
        check(96, seed, &keys, &ops);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn growing_tables_follow_the_model(capacity in 300..3_000usize, seed: u64, ops in ops(400)) {
        // 16 buckets double to 512 on the way to 2,000 flows.
        let keys: Vec<_> = (0..2_000).map(key).collect();
        check(capacity, seed, &keys, &ops);
    }
}

#[test]
fn flows_with_one_tag_in_one_bucket_are_told_apart() {
    let seed = 5;
    let keys = keys_where(seed, 24, |hash| hash & 15 == 15 && hash >> 49 == 0x1234);
    let mut checked = Checked::new(96, seed);
    for key in &keys[..20] {
        checked.touch(*key);
    }
    // Neither those that are there nor those that are not are taken for one another.
    for removed in [3, 17, 0, 8, 9, 5] {
        for key in &keys {
            checked.find(key);
        }
        checked.remove(removed % checked.model.len());
    }
    checked.finish(&keys);
}

/// Every order of removal leaves the overflow counters as they were before.
#[test]
fn overflow_is_undone_in_any_order() {
    let seed = 6;
    let keys = keys_where(seed, 90, |hash| hash & 15 == 12);
    for stride in [1, 7, 11, 13, 17, 19, 23, 29, 37, 41, 43, 49, 53, 59, 61, 67, 71, 73, 77, 79, 83, 89] {
        let mut checked = Checked::new(95, seed);
        for round in 0..3 {
            for key in &keys {
                checked.touch(*key);
            }
            for step in 0..keys.len() {
                let key = keys[(step * stride + round) % keys.len()];
                let at = checked.find(&key).expect("it was not removed before");
                checked.remove(at);
            }
            assert!(checked.table.is_empty());
        }
        assert_eq!(checked.table.slots(), 90);
        checked.finish(&keys);
    }
}

#[test]
fn growth_keeps_every_flow_and_their_order() {
    let mut table = FlowTable::new(1 << 20, 7);
    let count = 50_000;
    for n in 0..count {
        let key = key(n);
        table.insert(key, table.hash(&key), n);
        // Every third goes again, so that growth meets gaps.
        if n % 3 == 2 {
            let middle = table.find(&key, table.hash(&key)).expect("it was just inserted");
            assert_eq!(table.remove(middle), Some((key, n)));
        }
    }
    for n in 0..count {
        let key = key(n);
        let found = table
            .find(&key, table.hash(&key))
            .and_then(|id| table.get_mut(id))
            .map(|(key, value)| (*key, *value));
        assert_eq!(found, (n % 3 != 2).then_some((key, n)));
    }
    let mut places: Vec<_> =
        (0..table.slots()).filter_map(|slot| table.at(slot)).map(|(_, &value)| value).collect();
    places.sort_unstable();
    assert_eq!(places, (0..count).filter(|n| n % 3 != 2).collect::<Vec<_>>());
    assert_eq!(table.at(table.slots()), None);
    assert_eq!(table.at(usize::MAX), None);
    let mut expected = (0..count).filter(|n| n % 3 != 2);
    while let Some(id) = table.oldest() {
        assert_eq!(table.remove(id).map(|(_, value)| value), expected.next());
    }
    assert_eq!(expected.next(), None);
}

#[test]
fn a_table_holds_at_least_one_flow() {
    let mut table = FlowTable::new(0, 0);
    assert!(table.is_empty() && !table.is_full());
    assert_eq!((table.len(), table.slots(), table.oldest(), table.at(0)), (0, 0, None, None));
    let key = key(1);
    let id = table.insert(key, table.hash(&key), "value");
    assert!(table.is_full());
    assert_eq!((table.oldest(), table.at(0), table.at(1)), (Some(id), Some((id, &"value")), None));
}

/// A value is dropped when its flow is, once.
#[test]
fn values_are_dropped_with_their_flows() {
    let value = std::rc::Rc::new(());
    let mut table = FlowTable::new(100, 0);
    for n in 0..100 {
        table.insert(key(n), table.hash(&key(n)), value.clone());
    }
    assert_eq!(std::rc::Rc::strong_count(&value), 101);
    for _ in 0..60 {
        let oldest = table.oldest().expect("some are left");
        drop(table.remove(oldest));
    }
    assert_eq!(std::rc::Rc::strong_count(&value), 41);
    drop(table);
    assert_eq!(std::rc::Rc::strong_count(&value), 1);
}

#[test]
fn any_hash_can_be_prefetched() {
    let mut table = FlowTable::new(1_000, 9);
    let hashes = [0, 1, 15, 16, u64::MAX, u64::MAX << 48, 0xffff, 1 << 63];
    for n in 0..1_000 {
        for hash in hashes.into_iter().chain([table.hash(&key(n))]) {
            table.prefetch_bucket(hash);
            table.prefetch_entry(hash);
        }
        table.insert(key(n), table.hash(&key(n)), ());
        if n % 2 == 0 {
            let oldest = table.oldest().expect("one was just inserted");
            table.remove(oldest);
        }
    }
}
