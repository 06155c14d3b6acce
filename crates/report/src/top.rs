//! The keys that flows have most of.
//!
//! Up to a bound of distinct keys all counts are exact. Beyond it, keys are kept by the algorithm Space-Saving (Metwally, Agrawal and
//! El Abbadi, "Efficient computation of frequent and top-k elements in data streams", ICDT 2005) with weights: a new key takes the place of
//! the one with the least count, and begins with that count as its error. With m keys and N counted in all, no error is more than N / m,
//! and each key that has more than N / m is kept. Merging keeps both (Agarwal et al., "Mergeable summaries", PODS 2012).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::str::FromStr;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use packetloom_export::Fields;
use packetloom_packet::FlowRecord;

use crate::counts::{Counts, Measure};
use crate::key::{Key, KeySpec};
use crate::{Error, ways};

/// What a [`Top`] counts: `FIELDS` or `FIELDS/MEASURE`, such as `source`, `source+destination-port/packets` or `flow/flows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopSpec {
    key: KeySpec,
    measure: Measure,
    rows: NonZeroUsize,
}

impl TopSpec {
    /// Rows where nobody says how many.
    pub const ROWS: NonZeroUsize = NonZeroUsize::new(10).expect("not 0");

    /// The same with so many rows at most.
    #[must_use]
    pub fn with_rows(self, rows: NonZeroUsize) -> Self {
        Self { rows, ..self }
    }

    /// Rows at most.
    pub fn rows(&self) -> NonZeroUsize {
        self.rows
    }

    /// What rows are ordered by.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// Names of the fields that flows are grouped by.
    pub fn field_names(&self) -> impl Iterator<Item = &'static str> {
        self.key.names()
    }

    /// The fields that records have to have.
    pub fn fields(&self) -> Fields {
        self.key.fields()
    }

    pub(crate) fn key(&self) -> &KeySpec {
        &self.key
    }
}

impl FromStr for TopSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (fields, measure) = match text.rsplit_once('/') {
            Some((fields, measure)) => (fields, measure.trim().parse()?),
            None => (text, Measure::default()),
        };
        Ok(Self { key: KeySpec::parse(fields)?, measure, rows: Self::ROWS })
    }
}

impl fmt::Display for TopSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key, self.measure)
    }
}

/// A key, and what its flows have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Key,
    /// What was counted. Where `error` is not 0, the measure that the rows are ordered by is the highest that it can be, and the other two
    /// are at least that much.
    pub counts: Counts,
    /// By how much the measure that the rows are ordered by may be too high.
    pub error: u64,
}

/// Where a row is, and a part of its key's hash.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    at: u32,
}

impl Place {
    /// All bits that the table looks at.
    const fn spread(hash: u32) -> u64 {
        (hash as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// Counts flows by their keys. The memory is bounded: about 80 bytes for each distinct key, and 100 beyond the bound; keys of more
/// than 22 bytes, such as flows of IPv6 and names, take as much again as they are long.
#[derive(Clone, Debug)]
pub struct Top {
    spec: TopSpec,
    /// Distinct keys at most.
    bound: usize,
    rows: Vec<Row>,
    places: HashTable<Place>,
    hasher: RandomState,
    /// Of all rows, each with a count that it has had, least first. It is made when the first key has to go.
    least: BinaryHeap<Reverse<(u64, u32)>>,
    /// What a key has at most that is not there.
    floor: u64,
    is_exact: bool,
    total: Counts,
    without: Counts,
    /// Where a key is put together.
    scratch: Vec<u8>,
}

impl Top {
    /// Distinct keys that are counted exactly where nobody says how many.
    pub const KEYS: NonZeroUsize = NonZeroUsize::new(1_000_000).expect("not 0");

    /// Nothing counted yet.
    pub fn new(spec: TopSpec) -> Self {
        Self::with_keys(spec, Self::KEYS)
    }

    /// The same with another bound of distinct keys; it is raised to the rows of the specification, and is never more than 2^31.
    pub fn with_keys(spec: TopSpec, keys: NonZeroUsize) -> Self {
        let bound = keys.max(spec.rows).get().min(1 << 31);
        Self {
            spec,
            bound,
            rows: Vec::new(),
            places: HashTable::new(),
            hasher: RandomState::default(),
            least: BinaryHeap::new(),
            floor: 0,
            is_exact: true,
            total: Counts::default(),
            without: Counts::default(),
            scratch: Vec::new(),
        }
    }

    /// What it counts.
    pub fn spec(&self) -> &TopSpec {
        &self.spec
    }

    /// Counts the flows of a record.
    pub fn add(&mut self, record: &FlowRecord) {
        let sides = if self.spec.key.is_either() { 0..2 } else { 0..1 };
        let mut scratch = std::mem::take(&mut self.scratch);
        for (way, half) in ways(record) {
            let counts = Counts::of(half);
            self.total.add(counts);
            let mut is_any = false;
            for side in sides.clone() {
                if self.spec.key.encode(record, way, side, &mut scratch) {
                    self.count(&scratch, counts);
                    is_any = true;
                }
            }
            if !is_any {
                self.without.add(counts);
            }
        }
        self.scratch = scratch;
    }

    fn count(&mut self, bytes: &[u8], counts: Counts) {
        let measure = self.spec.measure;
        let hash = self.hasher.hash_one(bytes) as u32;
        let rows = &mut self.rows;
        let is_same = |place: &Place| place.hash == hash && rows[place.at as usize].key.bytes() == bytes;
        let at = match self.places.find(Place::spread(hash), is_same) {
            Some(place) => {
                rows[place.at as usize].counts.add(counts);
                return;
            }
            None if rows.len() < self.bound => rows.len() as u32,
            None => self.remove_least(),
        };
        let mut row = Row { key: Key::new(bytes), counts, error: self.floor };
        row.counts.raise(measure, self.floor);
        let count = row.counts.get(measure);
        match self.rows.get_mut(at as usize) {
            Some(old) => *old = row,
            None => self.rows.push(row),
        }
        if !self.least.is_empty() {
            self.least.push(Reverse((count, at)));
        }
        self.places.insert_unique(Place::spread(hash), Place { hash, at }, |place| Place::spread(place.hash));
    }

    /// Takes the row with the least count out of the table; where it was.
    fn remove_least(&mut self) -> u32 {
        let measure = self.spec.measure;
        if self.least.len() != self.rows.len() {
            let counts = self.rows.iter().zip(0..);
            self.least = counts.map(|(row, at)| Reverse((row.counts.get(measure), at))).collect();
        }
        let (count, at) = loop {
            let mut first = self.least.peek_mut().expect("there is a row at least");
            let Reverse((noted, at)) = *first;
            let count = self.rows[at as usize].counts.get(measure);
            if count == noted {
                PeekMut::pop(first);
                break (count, at);
            }
            // Counts only rise, so no other row has less than what is noted first.
            *first = Reverse((count, at));
        };
        self.floor = self.floor.max(count);
        self.is_exact = false;
        let hash = self.hasher.hash_one(self.rows[at as usize].key.bytes()) as u32;
        let found =
            self.places.entry(Place::spread(hash), |place| place.at == at, |place| Place::spread(place.hash));
        match found {
            Slot::Occupied(slot) => drop(slot.remove()),
            Slot::Vacant(_) => unreachable!("each row has a place"),
        }
        at
    }

    /// Adds what another one has counted, of other records.
    ///
    /// # Panics
    ///
    /// It counts something else.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.spec, other.spec, "both have to count the same");
        let measure = self.spec.measure;
        let mut is_shared = vec![false; self.rows.len()];
        let mut added = Vec::new();
        for row in &other.rows {
            let bytes = row.key.bytes();
            let hash = self.hasher.hash_one(bytes) as u32;
            let is_same =
                |place: &Place| place.hash == hash && self.rows[place.at as usize].key.bytes() == bytes;
            match self.places.find(Place::spread(hash), is_same) {
                Some(place) => {
                    let own = &mut self.rows[place.at as usize];
                    own.counts.add(row.counts);
                    own.error = own.error.saturating_add(row.error);
                    is_shared[place.at as usize] = true;
                }
                None => {
                    let mut row = row.clone();
                    row.counts.raise(measure, self.floor);
                    row.error = row.error.saturating_add(self.floor);
                    added.push(row);
                }
            }
        }
        for (row, _) in self.rows.iter_mut().zip(is_shared).filter(|(_, is_shared)| !is_shared) {
            row.counts.raise(measure, other.floor);
            row.error = row.error.saturating_add(other.floor);
        }
        self.floor = self.floor.saturating_add(other.floor);
        self.is_exact &= other.is_exact;
        self.rows.append(&mut added);
        if self.rows.len() > self.bound {
            self.rows.select_nth_unstable_by_key(self.bound, |row| Reverse(row.counts.get(measure)));
            let most = self.rows[self.bound].counts.get(measure);
            self.floor = self.floor.max(most);
            self.is_exact = false;
            self.rows.truncate(self.bound);
        }
        self.least = BinaryHeap::new();
        self.places.clear();
        for (row, at) in self.rows.iter().zip(0..) {
            let hash = self.hasher.hash_one(row.key.bytes()) as u32;
            let rehash = |place: &Place| Place::spread(place.hash);
            self.places.insert_unique(Place::spread(hash), Place { hash, at }, rehash);
        }
        self.total.add(other.total);
        self.without.add(other.without);
    }

    /// The rows with the highest counts, highest first; rows with the same count are in the order of their keys.
    pub fn rows(&self) -> Vec<&Row> {
        let order = |row: &&Row| Reverse(row.counts.get(self.spec.measure));
        let mut rows: Vec<_> = self.rows.iter().collect();
        let wanted = self.spec.rows.get();
        let compare =
            |left: &&Row, right: &&Row| order(left).cmp(&order(right)).then_with(|| left.key.cmp(&right.key));
        if rows.len() > wanted {
            rows.select_nth_unstable_by(wanted, compare);
            rows.truncate(wanted);
        }
        rows.sort_unstable_by(compare);
        rows
    }

    /// Whether all counts are exact: there were never more distinct keys than the bound.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Distinct keys that are there; all that there were, if it is exact.
    pub fn keys(&self) -> usize {
        self.rows.len()
    }

    /// What a key has at most that is not there; 0 if it is exact.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// All flows of all records.
    pub fn total(&self) -> Counts {
        self.total
    }

    /// Those of them that have no value in any of the fields, and so are in no row.
    pub fn without(&self) -> Counts {
        self.without
    }
}
