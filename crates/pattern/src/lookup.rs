//! From places that passed a filter to matches, in passes over all of them: each loads what the next one needs, so that it does not wait
//! for memory, and branches as little as can be.

use packetloom_simd::{Kernel, Simd};

use crate::Match;
use crate::classes::Begins;
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

    /// Adds a value without a branch. There is room for it.
    #[inline(always)]
    pub(crate) fn push_if(&mut self, is_wanted: bool, value: T) {
        self.all[self.len] = value;
        self.len += usize::from(is_wanted);
    }

    /// The room behind the values, whose first ones [`advance`](Self::advance) makes such.
    #[inline(always)]
    pub(crate) fn space(&mut self) -> &mut [T] {
        &mut self.all[self.len..]
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
    /// The number of its kind among those that are looked for.
    kind: u32,
    hash: u64,
}

/// A list whose patterns may be there.
#[derive(Clone, Copy, Debug)]
struct Hit {
    text: u32,
    at: u32,
    list: u32,
    /// The number of its kind.
    kind: u8,
}

/// A pattern whose key and four other bytes are there.
#[derive(Clone, Copy, Debug)]
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
    hits: Vec<Hit>,
    candidates: Vec<Candidate>,
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
            self.expand(sparse, 4, texts.bytes, matcher.fold, None);
            self.find(matcher, texts, report, ON_GRID, matches);
        }
        if matcher.dense.is_some() {
            let stride = if matcher.dense_classes.is_some() { 1 } else { 4 };
            self.expand(dense, stride, texts.bytes, matcher.fold, None);
            self.find(matcher, texts, report, &[Kind::Window], matches);
        }
        if let Some((_, begins)) = &matcher.classes {
            self.expand(short, 1, texts.bytes, matcher.fold, Some(begins));
            self.find(matcher, texts, report, &matcher.lengths, matches);
        }
    }

    /// Makes places of bits, each of which stands for `stride` bytes: those at which a short pattern may begin, where these are asked for.
    #[inline(always)]
    fn expand(
        &mut self,
        passed: &mut Passed,
        stride: u32,
        texts: &[&[u8]],
        fold: u8,
        begins: Option<&Begins>,
    ) {
        let fold = u64::from_ne_bytes([fold; 8]);
        let Self { places, arounds, .. } = self;
        places.clear();
        arounds.clear();
        for of_block in passed.values() {
            let text = texts[of_block.text as usize];
            let mut mask = of_block.mask;
            places.reserve(64);
            arounds.reserve(64);
            // Nearly all have one bit, so that a processor knows how often it goes round.
            while mask != 0 {
                let at = of_block.at + mask.trailing_zeros() * stride;
                let around = around(text, at as usize) | fold;
                let is_wanted = begins.is_none_or(|begins| begins.has(around >> 16));
                places.push_if(is_wanted, Place { text: of_block.text, at });
                arounds.push_if(is_wanted, around);
                mask &= mask - 1;
            }
        }
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
        let Self { places, arounds, hashes, keys, hits, candidates, is_matched } = self;
        let (index, places) = (&matcher.index, places.values());
        keys.clear();
        keys.reserve(places.len() * kinds.len() + 1);
        hashes.resize(hashes.len().max(places.len()), 0);
        for (kind, of_kind) in kinds.iter().enumerate() {
            // In vectors.
            let hasher = of_kind.hasher();
            for (hash, &around) in hashes.iter_mut().zip(arounds.values()) {
                *hash = hasher.hash(around);
            }
            for (place, &hash) in hashes[..places.len()].iter().enumerate() {
                keys.push_if(index.may_have(hash), Key { place: place as u32, kind: kind as u32, hash });
            }
        }
        keys.values().iter().for_each(|key| index.prefetch(key.hash));
        hits.clear();
        for &Key { place, kind, hash } in keys.values() {
            let (Place { text, at }, kind) = (places[place as usize], kinds[kind as usize].number() as u8);
            index.lists(hash, |list| hits.push(Hit { text, at, list, kind }));
        }
        candidates.clear();
        let fold = u32::from_ne_bytes([matcher.fold; 4]);
        for &Hit { text: number, at, list, kind } in &*hits {
            let text = texts[number as usize];
            for item in index.items(list) {
                let begin = at.wrapping_sub(item.offset.into());
                let end = begin as usize + usize::from(item.len);
                // A window in front of which there is less than in front of that of the pattern begins beyond all texts.
                let is_within = end <= text.len() && begin <= at;
                if is_within && item.kind == kind {
                    let from = begin as usize + item.checked_at();
                    let checked =
                        text[from..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes) | fold);
                    if item.len < 4 || checked == item.checked {
                        matcher.patterns.prefetch(item.bytes);
                        let Item { pattern, bytes, len, .. } = *item;
                        candidates.push(Candidate { text: number, begin, pattern, bytes, len });
                    }
                }
                if item.is_last {
                    break;
                }
            }
        }
        for &Candidate { text: number, begin, pattern, bytes, len } in &*candidates {
            if report == Report::Any && is_matched[number as usize] {
                continue;
            }
            let end = begin as usize + usize::from(len);
            let found = &texts[number as usize][begin as usize..end];
            let mut place = u64::from(begin);
            if let Some(part) = parts.get(number as usize) {
                if begin >= part.new.1 || end <= part.new.0 as usize {
                    continue;
                }
                place = part.begin.saturating_add_unsigned(place).max(0).cast_unsigned();
            }
            if matcher.is_equal(found, pattern, bytes, place) {
                matches.push(Match { text: number, end: end as u32, pattern });
                is_matched[number as usize] = true;
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
