//! Packets, bytes and flows by time.
//!
//! Intervals begin at multiples of their length since 1970. A record says when the first and the last packet of a direction came, and how
//! many there were: a series takes the others to be at equal distances between these two, and each packet to have the same share of the
//! bytes. Numbers are rounded so that they add up: what is in all intervals up to a time is rounded down, and the last interval has what is
//! left. This is how `rwcount` of SiLK spreads records, too, except that a flow is counted once here: in the interval of its first packet.
//! To count all of it there would pile up what a long flow sends where the meter began its record, and leave gaps behind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use packetloom_export::Fields;
use packetloom_packet::{FlowRecord, HalfFlow};

use crate::counts::{Counts, Measure};
use crate::key::{Bytes, Key, KeySpec};
use crate::{Error, time, ways};

/// What a [`Series`] counts: `INTERVAL`, `INTERVAL/FIELDS`, `INTERVAL/MEASURE` or `INTERVAL/FIELDS/MEASURE`, such as `1m`,
/// `10s/protocol` or `1h/destination-port/flows`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesSpec {
    /// Nanoseconds.
    interval: u64,
    key: Option<KeySpec>,
    measure: Measure,
    lines: NonZeroUsize,
}

impl SeriesSpec {
    /// Values of a field that have a line of their own, where nobody says how many.
    pub const LINES: NonZeroUsize = NonZeroUsize::new(5).expect("not 0");

    /// The same with so many lines at most, beside the one of all others.
    #[must_use]
    pub fn with_lines(self, lines: NonZeroUsize) -> Self {
        Self { lines, ..self }
    }

    /// The length of its intervals, in nanoseconds.
    pub fn interval_nanos(&self) -> u64 {
        self.interval
    }

    /// What decides which lines there are, and is drawn.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// Names of the fields that it is split by; none if there is one line only.
    pub fn field_names(&self) -> impl Iterator<Item = &'static str> {
        self.key.iter().flat_map(KeySpec::names)
    }

    /// The fields that records have to have.
    pub fn fields(&self) -> Fields {
        self.key.as_ref().map_or_else(|| Fields::of(&[]), KeySpec::fields)
    }

    pub(crate) fn key(&self) -> Option<&KeySpec> {
        self.key.as_ref()
    }
}

impl FromStr for SeriesSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (interval, rest) =
            text.split_once('/').map_or((text, None), |(interval, rest)| (interval, Some(rest)));
        let interval = time::parse(interval.trim())?;
        let (key, measure) = match rest {
            None => (None, Measure::default()),
            Some(rest) => match rest.rsplit_once('/') {
                Some((fields, measure)) => (Some(fields), measure.trim().parse()?),
                None => match rest.trim().parse() {
                    Ok(measure) => (None, measure),
                    Err(_) => (Some(rest), Measure::default()),
                },
            },
        };
        let key = key.map(KeySpec::parse).transpose()?;
        if let Some(key) = key.as_ref().filter(|key| key.is_either()) {
            return Err(Error::EitherSide(key.to_string()));
        }
        Ok(Self { interval, key, measure, lines: Self::LINES })
    }
}

impl fmt::Display for SeriesSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time::interval(self.interval))?;
        if let Some(key) = &self.key {
            write!(f, "/{key}")?;
        }
        write!(f, "/{}", self.measure)
    }
}

/// How much a [`Series`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Intervals at most, 2 at least. Where there would be more, intervals become twice as long.
    pub intervals: usize,
    /// Counts of single values in single intervals at most. Where there would be more, the values with the least are no longer kept apart.
    pub cells: usize,
}

impl Default for Bounds {
    /// 100,000 intervals (2.4 MB) and a million cells (about 50 MB).
    fn default() -> Self {
        Self { intervals: 100_000, cells: 1_000_000 }
    }
}

/// What flows of one key have in each interval.
#[derive(Clone, Debug, Default)]
struct Cells {
    /// By the number of the interval since 1970.
    counts: BTreeMap<u64, Counts>,
    total: Counts,
    /// What of the measure may have been counted for others, before the key was kept apart.
    error: u64,
}

impl Cells {
    const fn most(&self, measure: Measure) -> u64 {
        self.total.get(measure).saturating_add(self.error)
    }

    /// What of it was counted, which decides about its order.
    const fn order(&self, measure: Measure) -> Reverse<u64> {
        Reverse(self.total.get(measure))
    }
}

/// Counts of each interval, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The key that the flows have.
    pub key: Key,
    /// One for each interval.
    pub counts: Vec<Counts>,
    /// Their sum.
    pub total: Counts,
    /// What of the measure may be missing here, and be counted for the others: the key was not kept apart from the beginning.
    pub error: u64,
}

/// Counts packets, bytes and flows by time, and by the values of a field.
#[derive(Clone, Debug)]
pub struct Series {
    spec: SeriesSpec,
    bounds: Bounds,
    /// Nanoseconds; twice those of the specification, or four times, and so on, if there were too many.
    interval: u64,
    /// The number of the first interval since 1970.
    first: u64,
    counts: VecDeque<Counts>,
    total: Counts,
    keys: HashMap<Bytes, Cells, RandomState>,
    cells: usize,
    /// What a key has at most that is not kept apart.
    floor: u64,
    is_exact: bool,
    scratch: Vec<u8>,
}

impl Series {
    /// Nothing counted yet.
    pub fn new(spec: SeriesSpec) -> Self {
        Self::with_bounds(spec, Bounds::default())
    }

    /// The same with other bounds.
    pub fn with_bounds(spec: SeriesSpec, bounds: Bounds) -> Self {
        let bounds = Bounds { intervals: bounds.intervals.max(2), ..bounds };
        Self {
            interval: spec.interval,
            spec,
            bounds,
            first: 0,
            counts: VecDeque::new(),
            total: Counts::default(),
            keys: HashMap::default(),
            cells: 0,
            floor: 0,
            is_exact: true,
            scratch: Vec::new(),
        }
    }

    /// What it counts.
    pub fn spec(&self) -> &SeriesSpec {
        &self.spec
    }

    /// Counts the flows of a record.
    pub fn add(&mut self, record: &FlowRecord) {
        for (way, half) in ways(record) {
            let (first, last) = times(half);
            self.make_room(first, last);
            self.total.add(Counts::of(half));
            let (first, counts) = (self.first, &mut self.counts);
            let Some(key) = &self.spec.key else {
                spread(half, self.interval, |interval, part| counts[(interval - first) as usize].add(part));
                continue;
            };
            key.encode(record, way, 0, &mut self.scratch);
            let own = self
                .keys
                .entry(Bytes::from(&*self.scratch))
                .or_insert_with(|| Cells { error: self.floor, ..Cells::default() });
            own.total.add(Counts::of(half));
            let before = own.counts.len();
            spread(half, self.interval, |interval, part| {
                counts[(interval - first) as usize].add(part);
                own.counts.entry(interval).or_default().add(part);
            });
            self.cells += own.counts.len() - before;
            if self.cells > self.bounds.cells {
                self.remove_least();
            }
        }
    }

    /// Has intervals for all times between these, in nanoseconds since 1970.
    fn make_room(&mut self, from: u64, to: u64) {
        loop {
            let (mut first, mut last) = (from / self.interval, to / self.interval);
            if !self.counts.is_empty() {
                first = first.min(self.first);
                last = last.max(self.first + self.counts.len() as u64 - 1);
            }
            if last - first < self.bounds.intervals as u64 {
                if self.counts.is_empty() {
                    self.first = first;
                }
                for _ in first..self.first {
                    self.counts.push_front(Counts::default());
                }
                self.first = first;
                self.counts.resize((last - first) as usize + 1, Counts::default());
                return;
            }
            self.double();
        }
    }

    /// Makes intervals twice as long.
    fn double(&mut self) {
        self.interval *= 2;
        let numbers = self.first..;
        self.first /= 2;
        let mut counts = VecDeque::with_capacity(self.counts.len() / 2 + 1);
        for (number, part) in numbers.zip(&self.counts) {
            let at = (number / 2 - self.first) as usize;
            if at == counts.len() {
                counts.push_back(Counts::default());
            }
            counts[at].add(*part);
        }
        self.counts = counts;
        self.cells = 0;
        for cells in self.keys.values_mut() {
            let mut counts: BTreeMap<u64, Counts> = BTreeMap::new();
            for (number, part) in &cells.counts {
                counts.entry(number / 2).or_default().add(*part);
            }
            cells.counts = counts;
            self.cells += cells.counts.len();
        }
    }

    /// No longer keeps those keys apart that have least, until half of the room is free.
    fn remove_least(&mut self) {
        let measure = self.spec.measure;
        let mut kept: Vec<_> = self.keys.drain().collect();
        kept.sort_unstable_by(|(left, one), (right, other)| {
            Reverse(one.most(measure)).cmp(&Reverse(other.most(measure))).then_with(|| left.cmp(right))
        });
        while self.cells > self.bounds.cells / 2
            && let Some((_, cells)) = kept.pop()
        {
            self.cells -= cells.counts.len();
            self.floor = self.floor.max(cells.most(measure));
            self.is_exact = false;
        }
        self.keys.extend(kept);
    }

    /// Adds what another one has counted, of other records.
    ///
    /// # Panics
    ///
    /// It counts something else.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.spec, other.spec, "both have to count the same");
        if other.counts.is_empty() {
            return;
        }
        let mut other = other.clone();
        // Both have doubled the same interval.
        while self.interval < other.interval {
            self.double();
        }
        loop {
            while other.interval < self.interval {
                other.double();
            }
            let last = other.first + other.counts.len() as u64 - 1;
            self.make_room(other.first * self.interval, last * self.interval);
            if self.interval == other.interval {
                break;
            }
        }
        let at = (other.first - self.first) as usize;
        for (own, counts) in self.counts.range_mut(at..).zip(&other.counts) {
            own.add(*counts);
        }
        self.total.add(other.total);
        for (key, own) in &mut self.keys {
            if !other.keys.contains_key(key) {
                own.error = own.error.saturating_add(other.floor);
            }
        }
        for (key, cells) in other.keys {
            let own = self.keys.entry(key).or_insert_with(|| Cells { error: self.floor, ..Cells::default() });
            let before = own.counts.len();
            for (interval, counts) in cells.counts {
                own.counts.entry(interval).or_default().add(counts);
            }
            self.cells += own.counts.len() - before;
            own.total.add(cells.total);
            own.error = own.error.saturating_add(cells.error);
        }
        self.floor = self.floor.saturating_add(other.floor);
        self.is_exact &= other.is_exact;
        if self.cells > self.bounds.cells {
            self.remove_least();
        }
    }

    /// Nanoseconds of an interval: those of the specification, or longer ones if these would have been too many.
    pub fn interval_nanos(&self) -> u64 {
        self.interval
    }

    /// When the first interval begins, in nanoseconds since 1970; none without records.
    pub fn start_nanos(&self) -> Option<u64> {
        (!self.counts.is_empty()).then_some(self.first * self.interval)
    }

    /// Counts of all intervals, from that of the first packet to that of the last one.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = Counts> {
        self.counts.iter().copied()
    }

    /// All flows of all records: the sum of the intervals.
    pub fn total(&self) -> Counts {
        self.total
    }

    /// Whether keys were kept apart from the beginning, all of them.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// What a key has at most that is not kept apart; 0 if it is exact.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// The keys that have most, and those with the most first; without a field to split by there are none.
    pub fn lines(&self) -> Vec<Line> {
        let measure = self.spec.measure;
        let mut keys: Vec<_> = self.keys.iter().collect();
        keys.sort_unstable_by(|(left, one), (right, other)| {
            one.order(measure).cmp(&other.order(measure)).then_with(|| left.cmp(right))
        });
        let lines = keys.into_iter().take(self.spec.lines.get()).map(|(key, cells)| {
            let mut counts = vec![Counts::default(); self.counts.len()];
            for (interval, part) in &cells.counts {
                counts[(interval - self.first) as usize] = *part;
            }
            Line { key: Key(key.clone()), counts, total: cells.total, error: cells.error }
        });
        lines.collect()
    }

    /// What the lines do not have, in each interval.
    pub fn others(&self, lines: &[Line]) -> Vec<Counts> {
        let rest =
            |(at, all): (usize, &Counts)| lines.iter().fold(*all, |rest, line| rest.without(line.counts[at]));
        self.counts.iter().enumerate().map(rest).collect()
    }

    /// The same with intervals so long that there are no more than so many.
    pub(crate) fn coarse(&self, intervals: usize) -> Self {
        let mut coarse = self.clone();
        while coarse.counts.len() > intervals.max(2) {
            coarse.double();
        }
        coarse
    }
}

/// When the first and the last packet of a direction came, in nanoseconds; of records that contradict themselves, when the first one came.
fn times(half: &HalfFlow) -> (u64, u64) {
    let first = half.first.as_nanos();
    let last = if half.packets > 1 { half.last.as_nanos() } else { first };
    (first, last.max(first))
}

/// Gives the parts of a direction with the numbers of their intervals, in order.
///
/// Packet k of n is at `first + k (last - first) / (n - 1)`. There are as many parts as packets at most, and as many as intervals.
fn spread(half: &HalfFlow, interval: u64, mut part: impl FnMut(u64, Counts)) {
    let (first, last) = times(half);
    let (mut at, end) = (first / interval, last / interval);
    if at == end {
        return part(at, Counts::of(half));
    }
    let [first, span, gaps] = [first, last - first, half.packets - 1].map(u128::from);
    let [packets, bytes] = [half.packets, half.bytes].map(u128::from);
    let (mut packets_before, mut bytes_before, mut flows) = (0, 0, 1);
    loop {
        // Packets before the end of this interval, and their bytes.
        let packets_until = if at == end {
            packets
        } else {
            let until = u128::from(at + 1) * u128::from(interval) - first;
            (until * gaps).div_ceil(span)
        };
        let bytes_until = bytes * packets_until / packets;
        let counts = Counts {
            packets: (packets_until - packets_before) as u64,
            bytes: (bytes_until - bytes_before) as u64,
            flows,
        };
        part(at, counts);
        if packets_until == packets {
            return;
        }
        (packets_before, bytes_before, flows) = (packets_until, bytes_until, 0);
        at = ((first + packets_before * span / gaps) / u128::from(interval)) as u64;
    }
}
