//! Decides over whole regions what a list of regions decides over packets.

use std::ops::Range;

use super::region::Region;

/// How many comparisons of regions may still be made.
#[derive(Debug)]
pub(super) struct Work(u64);

/// All work is done, and the answer is not known.
#[derive(Debug)]
pub(super) struct Exhausted;

impl Work {
    pub(super) fn new(limit: u64) -> Self {
        Self(limit)
    }

    /// Attempts something with one in `share` of what is left; `None` where that does not suffice.
    pub(super) fn attempt<T>(
        &mut self,
        share: u64,
        attempt: impl FnOnce(&mut Self) -> Result<T, Exhausted>,
    ) -> Option<T> {
        let mut part = Self(self.0 / share);
        self.0 -= part.0;
        let result = attempt(&mut part);
        self.0 += part.0;
        result.ok()
    }

    /// How many are left.
    pub(super) const fn left(&self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn spend(&mut self, comparisons: u64) -> Result<(), Exhausted> {
        self.0 = self.0.checked_sub(comparisons).ok_or(Exhausted)?;
        Ok(())
    }
}

/// A region and what may decide over it.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) region: Region,
    /// Whether packets should be decided by it.
    pub(super) good: bool,
}

/// The item that decides where no other does.
const DEFAULT: u32 = u32::MAX;

/// Part of a region, and the items that have to be looked at there.
#[derive(Debug)]
struct Part {
    region: Region,
    /// Where their numbers stand in `Search::lists`.
    list: Range<usize>,
    /// The item that decides where none of the list does.
    end: u32,
}

/// A search, with its memory, which is kept from one question to the next.
#[derive(Debug)]
pub(super) struct Search {
    parts: Vec<Part>,
    lists: Vec<u32>,
    pub(super) random: Random,
}

impl Search {
    pub(super) fn new(random: Random) -> Self {
        Self { parts: Vec::new(), lists: Vec::new(), random }
    }

    /// Whether for every packet of `region` the first of `items` that holds it, of those whose numbers are in `list`, is a
    /// good one; where none holds it, `default` says whether that is good. `used` is told of the good items that this rests
    /// on, some of them more than once; DEFAULT is not told of.
    ///
    /// A part that one item holds as a whole, with no item of the other sort before, is decided. From any other the largest
    /// of the good items at the head of its list is cut out, and what is left makes new parts.
    pub(super) fn all_good(
        &mut self,
        region: Region,
        items: &[Item],
        list: impl IntoIterator<Item = u32>,
        default: bool,
        work: &mut Work,
        mut used: impl FnMut(u32),
    ) -> Result<bool, Exhausted> {
        let is_good = |item| if item == DEFAULT { default } else { items[item as usize].good };
        self.lists.clear();
        self.lists.extend(list);
        self.parts.clear();
        self.parts.push(Part { region, list: 0..self.lists.len(), end: DEFAULT });
        while let Some(Part { region, list, mut end }) = self.parts.pop() {
            // Lists behind this one were those of parts that are decided.
            self.lists.truncate(list.end);
            work.spend(list.len() as u64 + 1)?;
            let begin = self.lists.len();
            for place in list {
                let item = self.lists[place];
                let candidate = &items[item as usize].region;
                if candidate.overlaps(&region) {
                    if candidate.contains(&region) {
                        end = item;
                        break;
                    }
                    self.lists.push(item);
                }
            }
            let good = is_good(end);
            while self.lists.len() > begin && is_good(self.lists[self.lists.len() - 1]) == good {
                self.lists.pop();
            }
            let left = begin..self.lists.len();
            let Some(&first) = self.lists[left.clone()].first() else {
                if !good {
                    return Ok(false);
                }
                if end != DEFAULT {
                    used(end);
                }
                continue;
            };
            if !is_good(first) {
                return Ok(false);
            }
            let largest = self.largest(&region, items, left.clone());
            used(largest);
            region.without(&items[largest as usize].region, |region| {
                self.parts.push(Part { region, list: left.clone(), end });
            });
        }
        Ok(true)
    }

    /// The item that holds the most of `region`, of the good ones that a list begins with. Of several the choice is random: an
    /// order in the list, such as from left to right, would make for parts of very different sizes.
    fn largest(&mut self, region: &Region, items: &[Item], list: Range<usize>) -> u32 {
        let (mut largest, mut volume, mut equals) = (DEFAULT, 0.0, 0);
        for &item in &self.lists[list] {
            let Item { region: candidate, good } = &items[item as usize];
            if !good {
                break;
            }
            let held = candidate.intersection(region).volume();
            if held > volume {
                (largest, volume, equals) = (item, held, 1);
            } else if held == volume {
                equals += 1;
                if self.random.below(equals) == 0 {
                    largest = item;
                }
            }
        }
        largest
    }
}

/// Random numbers, the same for the same seed: splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u32) -> Self {
        Self(seed.into())
    }

    /// A number below `limit`, which is not 0.
    #[inline]
    pub(super) fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((word >> 32) * u64::from(limit)) >> 32) as u32
    }
}
