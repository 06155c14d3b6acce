//! Sets on devices: [`Image`] is a compiled set as kernels have it, [`OnDevice`] is one that was loaded, [`Finder`] looks through texts with it.
//!
//! A device looks at all bytes of a [packed batch](pack), whatever texts they are of, in the way of [`Matcher`](crate::Matcher): windows on a
//! grid of four, here that of the batch, for patterns of seven bytes and more, and for shorter ones bitmaps of four bytes, or of the first
//! ones, at every byte (`find.kernel.c`). It finds the matches of [`Report::All`](crate::Report::All), in no particular order; a
//! [`FirstOnDevice`] those of [`Report::First`](crate::Report::First).

mod on_device;

use crate::filter::{Filter, MULTIPLIER};
use crate::index::{Index, Item, Parts};
use crate::plan::Plan;
use crate::{Bounds, Patterns};

pub use self::on_device::{Batch, Error, Finder, FirstOnDevice, OnDevice, Results, Shape, Target, pack};

/// Patterns of fewer bytes are looked for as a whole.
const WHOLE_BELOW: usize = 4;

/// Words of the bitmap for patterns of one to three bytes; the kernel has the same number.
const WHOLE_WORDS: usize = 1 << 12;

/// Up to so many windows a word of the filter is shared by fewer of them, so that fewer pass; beyond, tables are too large for that.
const MANY_WINDOWS: usize = 1 << 16;

/// Of an item, beside offset, length and kind: the last of its list, a pattern that ignores case, one with bounds.
const IS_LAST: u32 = 1 << 20;
const IGNORES_CASE: u32 = 1 << 21;
const IS_BOUNDED: u32 = 1 << 22;

/// Of a slot's list: another slot with the same tag follows.
const FOLLOWED: u32 = 1 << 31;

/// A set as kernels have it.
#[derive(Clone, Debug)]
pub struct Image {
    /// What is set in every byte of a text.
    fold: u8,
    /// Words that exclude windows on the grid; none where no pattern has such.
    filter: Vec<u32>,
    filter_shift: u32,
    /// A bit for each hash of four bytes that a window at every byte has, a power of two of words; none likewise.
    dense: Vec<u32>,
    /// A bit for each two bytes, and the lowest bit of the third, with which a pattern of one to three bytes begins; none likewise.
    whole: Vec<u32>,
    gate: Vec<u32>,
    gate_shift: u32,
    slots: Vec<u64>,
    slot_shift: u32,
    /// Pattern, where its bytes are, four that are compared first, and what it is.
    items: Vec<[u32; 4]>,
    /// The bytes of each pattern, the first the lowest; a pattern begins with a word. Letters are small where case is ignored.
    bytes: Vec<u32>,
    /// Offset and depth of each pattern; none where no pattern has bounds.
    bounds: Vec<[u32; 2]>,
    patterns: usize,
    longest_list: usize,
}

impl Image {
    /// Lays out a set for texts such as those of `sample`, of which 8 MiB are looked at. What is found is the same with any sample.
    pub fn new(patterns: &Patterns, sample: &[&[u8]]) -> Self {
        let mut plan = Plan::new(patterns, sample, WHOLE_BELOW);
        let index = Index::new(std::mem::take(&mut plan.keys));
        let (filter, filter_shift) = match plan.sparse.len() {
            0 => (Vec::new(), 0),
            windows => plan.allow(Filter::of_words(filter_words(windows)), &plan.sparse).into_parts(),
        };
        let mut dense = Vec::new();
        if !plan.dense.is_empty() {
            dense.resize(plan.dense.len().next_power_of_two().clamp(1 << 12, 1 << 20), 0u32);
            let bits = dense.len().ilog2();
            for &place in &plan.dense {
                let hash = plan.window(place).wrapping_mul(MULTIPLIER);
                dense[(hash >> (32 - bits)) as usize] |= 1 << 31 >> (hash >> (27 - bits) & 31);
            }
        }
        let mut whole = Vec::new();
        for pattern in plan.all.iter().filter(|pattern| pattern.len() < WHOLE_BELOW) {
            whole.resize(WHOLE_WORDS, 0u32);
            begins(pattern).for_each(|bit| whole[bit >> 5] |= 1 << (bit & 31));
        }
        let (mut bytes, mut begins) = (Vec::new(), Vec::with_capacity(patterns.len()));
        for pattern in patterns.iter() {
            begins.push(bytes.len() as u32);
            let lower = |byte: u8| if pattern.ignore_case { byte.to_ascii_lowercase() } else { byte };
            let word =
                |part: &[u8]| part.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(lower(byte)));
            bytes.extend(pattern.bytes.chunks(4).map(word));
        }
        let is_bounded = patterns.iter().any(|pattern| pattern.bounds != Bounds::ANYWHERE);
        let bounds = patterns.iter().filter(|_| is_bounded).map(|p| [p.bounds.offset, p.bounds.depth]);
        let Parts { slots, shift, gate, gate_shift, items } = index.parts();
        Self {
            fold: plan.fold,
            filter,
            filter_shift,
            dense,
            whole,
            gate: gate.iter().flat_map(|&word| [word as u32, (word >> 32) as u32]).collect(),
            gate_shift,
            slots: laid_out(&slots),
            slot_shift: shift,
            items: items.iter().map(|item| as_words(item, patterns, &begins)).collect(),
            bytes,
            bounds: bounds.collect(),
            patterns: patterns.len(),
            longest_list: index.longest(),
        }
    }

    /// Patterns of the set.
    pub fn patterns(&self) -> usize {
        self.patterns
    }

    /// Patterns that one window of a text may have to be compared with.
    pub fn longest_list(&self) -> usize {
        self.longest_list
    }

    /// Bytes that it takes on a device.
    pub fn memory(&self) -> usize {
        let words = [&self.filter, &self.dense, &self.whole, &self.gate, &self.bytes];
        let words: usize = words.into_iter().map(Vec::len).sum();
        4 * words + 8 * (self.slots.len() + self.bounds.len()) + 16 * self.items.len()
    }
}

/// Words of a filter for so many windows: 128 KB for those of 5,000 patterns, 1 MB for 100,000, at most 8 MB.
fn filter_words(windows: usize) -> usize {
    let words = if windows <= MANY_WINDOWS { windows * 8 / 5 } else { windows * 5 / 8 };
    words.next_power_of_two().clamp(1 << 10, 1 << 21)
}

/// The bits of texts that begin with a pattern of up to three bytes.
fn begins(pattern: &[u8]) -> impl Iterator<Item = usize> {
    let [first, second, third] = std::array::from_fn(|at| pattern.get(at).map(|&byte| usize::from(byte)));
    let values = |byte: Option<usize>, count| byte.map_or(0..count, |byte| byte % count..byte % count + 1);
    let of = move |first, second, third| first | second << 8 | third << 16;
    values(first, 256).flat_map(move |first| {
        values(second, 256)
            .flat_map(move |second| values(third, 2).map(move |third| of(first, second, third)))
    })
}

/// A word of each slot: its tag, and its list with a bit that tells whether one with the same tag follows before an empty one.
fn laid_out(slots: &[(u32, u32)]) -> Vec<u64> {
    let next = |at: usize| (at + 1) % slots.len();
    let is_followed = |at: usize| {
        let tag = slots[at].0;
        let mut behind = next(at);
        while slots[behind].0 != 0 && slots[behind].0 != tag {
            behind = next(behind);
        }
        tag != 0 && slots[behind].0 == tag
    };
    let word = |(at, &(tag, list)): (usize, &(u32, u32))| {
        let flag = if is_followed(at) { FOLLOWED } else { 0 };
        u64::from(list | flag) << 32 | u64::from(tag)
    };
    slots.iter().enumerate().map(word).collect()
}

fn as_words(item: &Item, patterns: &Patterns, begins: &[u32]) -> [u32; 4] {
    let pattern = patterns.get(item.pattern);
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    let what = u32::from(item.offset)
        | u32::from(item.len) << 8
        | u32::from(item.kind) << 16
        | flag(item.is_last, IS_LAST)
        | flag(pattern.ignore_case, IGNORES_CASE)
        | flag(pattern.bounds != Bounds::ANYWHERE, IS_BOUNDED);
    [item.pattern, begins[item.pattern as usize], item.checked, what]
}
