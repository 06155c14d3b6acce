//! From places that passed a filter to matches, in passes over all of them: each loads what the next one needs, so that it does not wait
//! for memory, and branches as little as can be.

use packetloom_simd::{Kernel, Simd};

use crate::Match;
use crate::classes::Begins;
use crate::filter::FIRST;
use crate::index::{Around, Item, Kind};
use crate::matcher::{Matcher, Part, Report};
use crate::scan::{AllPassed, Passed};
use crate::windows::around;

/// What is searched.
#[derive(Clone, Copy)]
pub(crate) struct Texts<'a> {
    pub(crate) bytes: &'a [&'a [u8]],
    /// What each of them is of a longer one; empty where none is.
    pub(crate) parts: &'a [Part],
}

/// Values in front, and room for more behind them, into which one is written before it is known whether it stays.
#[derive(Debug, Default)]
pub(crate) struct Room<T> {
    all: Vec<T>,
    len: usize,
}

impl<T: Copy + Default> Room<T> {
    /// Makes room for so many more.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, count: usize) {
        if self.all.len() < self.len + count {
            self.all.resize(2 * (self.len + count), T::default());
        }
    }

    fn push(&mut self, value: T) {
        self.reserve(1);
        self.all[self.len] = value;
        self.len += 1;
    }

    /// What writes behind the values; [`advance`](Self::advance) makes values of what it has written.
    #[inline(always)]
    pub(crate) fn writer(&mut self) -> Writer<'_, T> {
        Writer { to: &mut self.all[self.len..], len: 0 }
    }

    /// So many values more were written.
    #[inline(always)]
    pub(crate) fn advance(&mut self, count: usize) {
        self.len += count;
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    #[inline(always)]
    pub(crate) fn values(&self) -> &[T] {
        &self.all[..self.len]
    }

    #[inline(always)]
    fn values_mut(&mut self) -> &mut [T] {
        &mut self.all[..self.len]
    }
}

/// Writes into room that there is. By value, so that how many there are stays in a register: each waits for the one before.
pub(crate) struct Writer<'a, T> {
    to: &'a mut [T],
    pub(crate) len: usize,
}

impl<T> Writer<'_, T> {
    /// Adds a value without a branch.
    #[inline(always)]
    pub(crate) fn push_if(&mut self, is_wanted: bool, value: T) {
        self.to[self.len] = value;
        self.len += usize::from(is_wanted);
    }
}

/// A place of a text.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    text: u32,
    at: u32,
}

/// A key that may be there.
#[derive(Clone, Copy, Debug, Default)]
struct Key {
    /// The number of its place.
    place: u32,
    /// The number of its kind.
    kind: u32,
    hash: u64,
}

/// A list whose patterns may be there.
#[derive(Clone, Copy, Debug, Default)]
struct Hit {
    text: u32,
    at: u32,
    list: u32,
    /// The number of its kind.
    kind: u32,
}

impl Hit {
    /// One that a key has, at one of these places.
    #[inline(always)]
    fn of(Key { place, kind, .. }: Key, places: &[Place], list: u32) -> Self {
        let Place { text, at } = places[place as usize];
        Self { text, at, list, kind }
    }

    /// Whether the pattern of an item lies in the text, by its bounds and four of its bytes.
    #[inline(always)]
    fn compare(self, item: &Item, text: &[u8], fold: u32) -> (bool, Candidate) {
        let Item { pattern, bytes, len, .. } = *item;
        let begin = self.at.wrapping_sub(item.offset.into());
        let end = begin as usize + usize::from(len);
        // A window in front of which there is less than in front of that of the pattern begins beyond all texts.
        let is_within = end <= text.len() && begin <= self.at;
        let mut is_wanted = false;
        if is_within && u32::from(item.kind) == self.kind {
            let from = begin as usize + item.checked_at();
            let checked = text[from..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) | fold);
            is_wanted = (len < 4) | (checked == item.checked);
        }
        (is_wanted, Candidate { text: self.text, begin, pattern, bytes, len })
    }
}

/// A pattern whose key and four other bytes are there.
#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    text: u32,
    begin: u32,
    pattern: u32,
    bytes: u32,
    len: u8,
}

/// What is kept for the next time.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    places: Room<Place>,
    /// The bytes around each place, folded.
    arounds: Room<Around>,
    /// Hashes of one kind's keys there.
    hashes: Vec<u64>,
    keys: Room<Key>,
    /// Keys that may have more lists than one.
    crowded: Vec<Key>,
    hits: Room<Hit>,
    candidates: Room<Candidate>,
    /// Texts that have a match already, where one is enough.
    is_matched: Vec<bool>,
}

const ON_GRID: &[Kind] = &[Kind::Both, Kind::Before, Kind::After];

/// Looks up all that passed, and forgets it.
pub(crate) struct LookUp<'a> {
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) matcher: &'a Matcher,
    pub(crate) texts: Texts<'a>,
    pub(crate) report: Report,
    pub(crate) passed: &'a mut AllPassed,
    pub(crate) matches: &'a mut Vec<Match>,
}

impl Kernel for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { lookup, matcher, texts, report, passed, matches } = self;
        lookup.run(matcher, texts, report, passed, matches);
    }
}

impl Lookup {
    /// Begins with other texts.
    pub(crate) fn start(&mut self, texts: usize) {
        self.is_matched.clear();
        self.is_matched.resize(texts, false);
    }

    #[inline(always)]
    fn run(
        &mut self,
        matcher: &Matcher,
        texts: Texts<'_>,
        report: Report,
        passed: &mut AllPassed,
        matches: &mut Vec<Match>,
    ) {
        let AllPassed { sparse, dense, short } = passed;
        if matcher.sparse.is_some() {
            self.expand(sparse, (FIRST, 4), texts.bytes, matcher.fold, None);
            self.find(matcher, texts, report, ON_GRID, matches);
        }
        if matcher.dense.is_some() {
            let grid = if matcher.dense_classes.is_some() { (0, 1) } else { (FIRST, 4) };
            self.expand(dense, grid, texts.bytes, matcher.fold, None);
            self.find(matcher, texts, report, &[Kind::Window], matches);
        }
        if let Some((_, begins)) = &matcher.classes {
            self.expand(short, (0, 1), texts.bytes, matcher.fold, Some(begins));
            self.find(matcher, texts, report, &matcher.lengths, matches);
        }
    }

    /// Makes places of bits, the first of which stands for the place `first` of a block, and each for `stride` bytes: those at which a short
    /// pattern may begin, where these are asked for.
    #[inline(always)]
    fn expand(
        &mut self,
        passed: &mut Passed,
        (first, stride): (usize, u32),
        texts: &[&[u8]],
        fold: u8,
        begins: Option<&Begins>,
    ) {
        let fold = u64::from_ne_bytes([fold; 8]);
        let Self { places, arounds, .. } = self;
        places.clear();
        arounds.clear();
        let count: usize = passed.values().iter().map(|of_block| of_block.mask.count_ones() as usize).sum();
        places.reserve(count + 1);
        arounds.reserve(count + 1);
        let (mut to_places, mut to_arounds) = (places.writer(), arounds.writer());
        for of_block in passed.values() {
            let begin = of_block.begin.wrapping_add(first as u64);
            let (number, begin) = ((begin >> 32) as u32, begin as u32);
            let text = texts[number as usize];
            let mut mask = of_block.mask;
            // Nearly all have one bit, so that a processor knows how often it goes round.
            while mask != 0 {
                let at = begin + mask.trailing_zeros() * stride;
                let around = around(text, at as usize) | fold;
                let is_wanted = begins.is_none_or(|begins| begins.has(around >> 16));
                to_places.push_if(is_wanted, Place { text: number, at });
                to_arounds.push_if(is_wanted, around);
                mask &= mask - 1;
            }
        }
        let count = to_places.len;
        places.advance(count);
        arounds.advance(count);
        passed.clear();
    }

    /// Finds the matches whose windows begin at the places.
    #[inline(always)]
    fn find(
        &mut self,
        matcher: &Matcher,
        Texts { bytes: texts, parts }: Texts<'_>,
        report: Report,
        kinds: &[Kind],
        matches: &mut Vec<Match>,
    ) {
        let Self { places, arounds, hashes, keys, crowded, hits, candidates, is_matched } = self;
        let (index, places) = (&matcher.index, places.values());
        keys.clear();
        keys.reserve(places.len() * kinds.len() + 1);
        let mut to_keys = keys.writer();
        hashes.resize(hashes.len().max(places.len()), 0);
        for kind in kinds {
            // In vectors.
            let hasher = kind.hasher();
            let kind = kind.number() as u32;
            for (hash, &around) in hashes.iter_mut().zip(arounds.values()) {
                *hash = hasher.hash(around);
            }
            for (place, &hash) in hashes[..places.len()].iter().enumerate() {
                let key = Key { place: place as u32, kind, hash };
                to_keys.push_if(index.may_have(hash), key);
            }
        }
        let count = to_keys.len;
        keys.advance(count);
        let keys = keys.values();
        keys.iter().for_each(|key| index.prefetch(key.hash));
        hits.clear();
        hits.reserve(keys.len() + 1);
        crowded.clear();
        let mut to_hits = hits.writer();
        for &key in keys {
            let bucket = index.bucket(key.hash);
            let with_tag = bucket.with_tag(key.hash);
            to_hits.push_if(with_tag != 0, Hit::of(key, places, bucket.first(with_tag)));
            if with_tag & with_tag.wrapping_sub(1) != 0 || bucket.is_full() {
                crowded.push(key);
            }
        }
        let count = to_hits.len;
        hits.advance(count);
        for &key in &*crowded {
            index.other_lists(key.hash, |list| hits.push(Hit::of(key, places, list)));
        }
        hits.values().iter().for_each(|hit| index.prefetch_list(hit.list));
        candidates.clear();
        let fold = u32::from_ne_bytes([matcher.fold; 4]);
        candidates.reserve(hits.values().len() + 1);
        let mut to_candidates = candidates.writer();
        // The first item of each list without branches; most lists have one.
        let (hits, mut longer) = (hits.values_mut(), 0);
        for number in 0..hits.len() {
            let hit = hits[number];
            let item = index.item(hit.list);
            let (is_wanted, candidate) = hit.compare(item, texts[hit.text as usize], fold);
            to_candidates.push_if(is_wanted, candidate);
            hits[longer] = hit;
            longer += usize::from(!item.is_last);
        }
        let count = to_candidates.len;
        candidates.advance(count);
        for hit in &hits[..longer] {
            let text = texts[hit.text as usize];
            for item in index.items_behind(hit.list) {
                let (is_wanted, candidate) = hit.compare(item, text, fold);
                if is_wanted {
                    candidates.push(candidate);
                }
                if item.is_last {
                    break;
                }
            }
        }
        candidates.values().iter().for_each(|candidate| matcher.patterns.prefetch(candidate.bytes));
        for &Candidate { text, begin, pattern, bytes, len } in candidates.values() {
            if report == Report::Any && is_matched[text as usize] {
                continue;
            }
            let end = begin as usize + usize::from(len);
            let found = &texts[text as usize][begin as usize..end];
            let mut place = u64::from(begin);
            if let Some(part) = parts.get(text as usize) {
                if begin >= part.new.1 || end <= part.new.0 as usize {
                    continue;
                }
                place = part.begin.saturating_add_unsigned(place).max(0).cast_unsigned();
            }
            if matcher.is_equal(found, pattern, bytes, place) {
                matches.push(Match { text, end: end as u32, pattern });
                is_matched[text as usize] = true;
            }
        }
    }
}

impl Matcher {
    /// Whether bytes of a text, the first of which is at `begin`, are a pattern whose own begin at `bytes`.
    #[inline(always)]
    fn is_equal(&self, found: &[u8], pattern: u32, bytes: u32, begin: u64) -> bool {
        if self.patterns.are_plain() {
            return found == self.patterns.bytes(bytes, found.len());
        }
        let pattern = self.patterns.get(pattern);
        let is_equal = if pattern.ignore_case {
            found.eq_ignore_ascii_case(pattern.bytes)
        } else {
            found == pattern.bytes
        };
        is_equal && pattern.bounds.hold(begin, begin + found.len() as u64)
    }
}
