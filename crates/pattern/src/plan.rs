//! By which windows each pattern of a set is looked for.

use packetloom_simd::Isa;

use crate::Patterns;
use crate::classes::{Begins, Classes};
use crate::filter::Filter;
use crate::index::{Index, Item, Kind};
use crate::windows::{Chooser, MIN_ON_GRID, Window};

/// Beyond so many short patterns their classes let too much through, and those of four bytes and more are looked for by windows.
const MAX_IN_CLASSES: usize = 150;

/// Beyond so many windows at every byte they are not looked for by classes.
const MAX_DENSE_IN_CLASSES: usize = 2048;

/// Windows of a group of classes.
const DENSE_IN_GROUP: usize = 128;

/// In which way the patterns of a set are looked for on cores, by their lengths alone.
pub(crate) struct Shape {
    /// As [`Plan::fold`].
    pub(crate) fold: u8,
    /// Patterns with fewer bytes are looked for as a whole.
    pub(crate) whole_below: usize,
    /// Windows on the grid, windows at every byte, and patterns that are looked for as a whole.
    pub(crate) sparse: usize,
    pub(crate) dense: usize,
    pub(crate) whole: usize,
}

impl Shape {
    pub(crate) fn of(patterns: &Patterns) -> Self {
        let below = |len: usize| patterns.iter().filter(|pattern| pattern.bytes.len() < len).count();
        let short = below(MIN_ON_GRID);
        let whole_below = if short > MAX_IN_CLASSES { 4 } else { MIN_ON_GRID };
        let whole = below(whole_below);
        let (sparse, dense) = (4 * (patterns.len() - short), short - whole);
        Self { fold: fold_of(patterns), whole_below, sparse, dense, whole }
    }

    /// Where patterns may begin that are looked for as a whole, if there are such, and which lengths they have, ascending. Classes are exact
    /// or products, as the instruction set has them: they are not stored.
    pub(crate) fn classes(&self, patterns: &Patterns, isa: Isa) -> (Option<(Classes, Begins)>, Vec<Kind>) {
        let whole = patterns.iter().filter(|pattern| pattern.bytes.len() < self.whole_below);
        let whole: Vec<_> = whole.map(|pattern| folded(pattern.bytes, self.fold)).collect();
        let mut lengths: Vec<_> = whole.iter().map(|bytes| Kind::Whole(bytes.len() as u8)).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let classes = || (Classes::new(&whole, 1, isa.has_exact_classes()), Begins::new(&whole));
        ((!whole.is_empty()).then(classes), lengths)
    }

    /// The windows at every byte as classes, where these are exact and so few windows that they take less time than the filter.
    pub(crate) fn dense_classes(&self, patterns: &Patterns, index: &Index, isa: Isa) -> Option<Classes> {
        if !(1..=MAX_DENSE_IN_CLASSES).contains(&self.dense) || !isa.has_exact_classes() {
            return None;
        }
        let window = |item: &Item| {
            let from = &patterns.get(item.pattern).bytes[item.offset.into()..];
            folded(&from[..4], self.fold)
        };
        let mut windows: Vec<_> = index
            .items
            .iter()
            .filter(|item| u64::from(item.kind) == Kind::Window.number())
            .map(window)
            .collect();
        windows.sort_unstable();
        windows.dedup();
        Some(Classes::new(&windows, windows.len().div_ceil(DENSE_IN_GROUP), true))
    }
}

fn fold_of(patterns: &Patterns) -> u8 {
    if patterns.any_ignores_case() { 0x20 } else { 0 }
}

fn folded(bytes: &[u8], fold: u8) -> Vec<u8> {
    bytes.iter().map(|byte| byte | fold).collect()
}

/// Bytes of a sample that are looked at.
const MAX_SAMPLE: usize = 8 << 20;

/// A window: the number of the pattern, and where in it the window begins.
type Place = (u32, u8);

/// What is looked for.
pub(crate) struct Plan {
    /// Set in every byte before it is looked up: 0x20 where a pattern ignores case, or 0.
    pub(crate) fold: u8,
    /// All patterns, folded.
    pub(crate) all: Vec<Vec<u8>>,
    /// Windows on the grid.
    pub(crate) sparse: Vec<Place>,
    /// Windows at every byte.
    pub(crate) dense: Vec<Place>,
    /// What is found by each of them.
    pub(crate) keys: Vec<(u64, Item)>,
}

impl Plan {
    /// For a set, and texts such as those of `sample`. Patterns below a length are looked for as a whole, those of 4 to 6 bytes from there on
    /// by one window at every byte, others by four on the grid.
    pub(crate) fn new(patterns: &Patterns, sample: &[&[u8]], whole_below: usize) -> Self {
        let fold = fold_of(patterns);
        let folded = |bytes: &[u8]| folded(bytes, fold);
        let all: Vec<Vec<u8>> = patterns.iter().map(|pattern| folded(pattern.bytes)).collect();
        let mut room = MAX_SAMPLE;
        let sample = sample.iter().map_while(|text| {
            let len = text.len().min(room);
            room -= len;
            (len > 0 || text.is_empty()).then(|| folded(&text[..len]))
        });
        let sample: Vec<_> = sample.collect();
        let mut chooser = Chooser::new(all.iter().map(|p| &p[..]), sample.iter().map(|text| &text[..]));

        let mut keys = Vec::new();
        let (mut sparse, mut dense) = (Vec::new(), Vec::new());
        for (number, bytes) in all.iter().enumerate() {
            let number = number as u32;
            let item = |offset, kind| Item::new((number, patterns.begin(number)), bytes, offset, kind);
            if bytes.len() < whole_below {
                let kind = Kind::Whole(bytes.len() as u8);
                let key = bytes.iter().rev().fold(0, |key, &byte| key << 8 | u64::from(byte));
                keys.push((key, item(0, kind)));
                continue;
            }
            let mut add = |windows: &mut Vec<Place>, window: Window| {
                windows.push((number, window.offset as u8));
                keys.push((window.key, item(window.offset, window.kind)));
            };
            let last = bytes.len() - 4;
            if bytes.len() < MIN_ON_GRID {
                add(&mut dense, chooser.choose(bytes, 0..=last));
            } else {
                for phase in 0..4 {
                    add(&mut sparse, chooser.choose(bytes, (phase..=last).step_by(4)));
                }
            }
        }
        Self { fold, all, sparse, dense, keys }
    }

    /// The four bytes of a window.
    pub(crate) fn window(&self, (pattern, offset): Place) -> u32 {
        let bytes = &self.all[pattern as usize][usize::from(offset)..][..4];
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    /// A filter for windows, if there are such.
    pub(crate) fn filter(&self, windows: &[Place]) -> Option<Filter> {
        let mut tests: Vec<_> = windows.iter().map(|&place| self.tested(place)).collect();
        tests.sort_unstable();
        tests.dedup();
        (!windows.is_empty()).then(|| self.allow(Filter::new(tests.len()), windows))
    }

    /// The four bytes of a window, and those in front of it and behind it.
    fn tested(&self, (pattern, offset): Place) -> (u32, Option<u8>, Option<u8>) {
        let (bytes, at) = (&self.all[pattern as usize], usize::from(offset));
        let before = at.checked_sub(1).map(|at| bytes[at]);
        (self.window((pattern, offset)), before, bytes.get(at + 4).copied())
    }

    /// A filter that lets windows through.
    pub(crate) fn allow(&self, mut filter: Filter, windows: &[Place]) -> Filter {
        for &place in windows {
            let (window, before, behind) = self.tested(place);
            filter.allow(window, before, behind);
        }
        filter
    }
}
