//! Headers of records brought into the cache before they are read, in memory that holds many.
//!
//! Where a record ends is where the next one begins, so whoever goes from one to the next waits for memory at each, unless records are so short
//! that the processor sees them coming. Scouts go ahead, each from another place at which a record seems to begin; while one waits, the
//! others go on. They change nothing: one that was wrong about a place brings in what nobody needs.

use std::ops::{Range, RangeInclusive};

use packetloom_packet::prefetch_at;

/// Scouts, and the bytes that each one goes through: all of them together less than a cache of the second level holds headers of.
const SCOUTS: usize = 8;
const SECTION: usize = 64 << 10;
const ALL: usize = SCOUTS * SECTION;
/// Scouts that go on with each record that is read: more than one, so that they arrive before the reader does.
const TOGETHER: usize = 2;
/// Bytes of a record with which they are sent, on average of so many records at least.
const LONG: RangeInclusive<usize> = 256..=4096;
const JUDGED: u64 = 64;
/// Records on average in whose bytes a place has to be found at which one begins.
const WITHIN: usize = 8;

/// Scouts of a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scouts {
    /// Where they are; of one that has nothing to do, behind its section.
    at: [usize; SCOUTS],
    /// Where the section of the first one begins: the reader has not come there.
    begin: usize,
    turn: usize,
    /// Whether none of them knew where to begin: they would search in vain.
    are_lost: bool,
    /// Bytes of a record, on average of those that were counted last.
    mean: usize,
    /// Records that were read since then, and their bytes.
    records: u64,
    bytes: usize,
}

impl Default for Scouts {
    fn default() -> Self {
        Self { at: [usize::MAX; SCOUTS], begin: 0, turn: 0, are_lost: false, mean: 0, records: 0, bytes: 0 }
    }
}

impl Scouts {
    /// Takes note of so many records with so many bytes.
    #[inline]
    pub(super) fn observe(&mut self, records: u64, bytes: usize) {
        self.records += records;
        self.bytes += bytes;
        if self.records >= JUDGED {
            self.mean = self.bytes / self.records as usize;
            (self.records, self.bytes) = (0, 0);
        }
    }

    /// Whether records are so long that they are sent, and they find their way.
    #[inline]
    pub(super) fn are_out(&self) -> bool {
        !self.are_lost && LONG.contains(&self.mean)
    }

    /// Has some of them go on to the next record each, while the reader is at a position; `next` is where the record behind one begins. Sends
    /// them on behind what they went through when the reader comes there: `guess` finds a place in a range at which a record seems to begin.
    #[inline]
    pub(super) fn go_on(
        &mut self,
        bytes: &[u8],
        position: usize,
        next: impl Fn(usize) -> Option<usize>,
        guess: impl Fn(Range<usize>) -> Option<usize>,
    ) {
        if !self.are_out() {
            return;
        }
        if position >= self.begin {
            self.send(position, bytes.len(), guess);
        }
        for _ in 0..TOGETHER {
            self.turn = (self.turn + 1) % SCOUTS;
            let end = self.begin + (self.turn + 1) * SECTION;
            let at = &mut self.at[self.turn];
            if *at < end {
                *at = next(*at).unwrap_or(end);
                prefetch_at(bytes, *at);
                prefetch_at(bytes, *at + 64);
            }
        }
    }

    #[cold]
    fn send(&mut self, position: usize, end: usize, guess: impl Fn(Range<usize>) -> Option<usize>) {
        self.begin = (self.begin + ALL).max(position);
        self.are_lost = true;
        for (at, number) in self.at.iter_mut().zip(0..) {
            let begin = (self.begin + number * SECTION).min(end);
            let place = guess(begin..(begin + WITHIN * self.mean).min(end));
            self.are_lost &= place.is_none();
            *at = place.unwrap_or(usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Places of records with lengths from a few bytes to twice as many as on average, and the end of the last one.
    fn records(mean: usize) -> Vec<usize> {
        let mut number = 1_u64;
        let lengths = std::iter::repeat_with(|| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            16 + (number >> 33) as usize % (2 * mean)
        });
        let places = lengths.scan(24, |at, len| Some(std::mem::replace(at, *at + len)));
        places.take_while(|&at| at < 24 * ALL).collect()
    }

    /// The part of records, but for those at the beginning, that scouts came to before the reader.
    fn share(mean: usize, batch: usize) -> f64 {
        let places = records(mean);
        let after = |at: usize| places.partition_point(|&place| place < at);
        let (mut scouts, seen) = (Scouts::default(), RefCell::new(vec![false; places.len()]));
        let end = *places.last().expect("some");
        let next = |at: usize| {
            let number = places.binary_search(&at).expect("a record");
            seen.borrow_mut()[number] = true;
            places.get(number + 1).copied()
        };
        let guess =
            |range: Range<usize>| places.get(after(range.start)).copied().filter(|at| range.contains(at));
        let bytes = vec![0; end];
        let (first, mut before) = (after(8 * ALL), 0);
        for batch in places.chunks(batch) {
            for &at in batch {
                before += usize::from(after(at) >= first && seen.borrow()[after(at)]);
                scouts.go_on(&bytes, at, next, guess);
            }
            let position = places.get(after(batch[0]) + batch.len()).copied().unwrap_or(end);
            scouts.observe(batch.len() as u64, position - batch[0]);
        }
        before as f64 / (places.len() - first) as f64
    }

    #[test]
    fn scouts_come_first_where_records_are_long() {
        for mean in [600, 1_500, 3_500] {
            for batch in [1, 32, 256] {
                let share = share(mean, batch);
                assert!(share > 0.8, "{mean} bytes, batches of {batch}: {share}");
            }
        }
        assert_eq!(share(100, 256), 0.0);
        assert_eq!(share(9_000, 256), 0.0);
    }
}
