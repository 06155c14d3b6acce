//! From texts to matches: blocks are filtered, a part of the texts at a time; what passes is looked up and compared.

use packetloom_simd::{Kernel, Simd};

use crate::Match;
use crate::classes::{ClassesView, Group, NO_GROUP, pass_all};
use crate::filter::{BLOCK, Block, FIRST, Filter, FilterView, InMemory, Loaded, READ};
use crate::lookup::{LookUp, Lookup, Room, Texts, Writer};
use crate::matcher::{Matcher, Report};

/// Blocks after which what passed the filters is looked up: so few that their bytes are still in the cache.
const PART: usize = 1024;

/// What a scan keeps for the next one, so that it allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    passed: AllPassed,
    lookup: Lookup,
    end: End,
}

/// What each filter let through.
#[derive(Debug, Default)]
pub(crate) struct AllPassed {
    /// Windows on the grid.
    pub(crate) sparse: Passed,
    /// Windows at every byte.
    pub(crate) dense: Passed,
    /// Where short patterns may begin.
    pub(crate) short: Passed,
}

/// Places of a block that a filter let through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Where the block begins: the number of its text in the high half, the place in the text in the low one.
    pub(crate) begin: u64,
    /// A bit each.
    pub(crate) mask: u64,
}

/// What a filter let through.
pub(crate) type Passed = Room<Places>;

pub(crate) struct Scan<'a> {
    pub(crate) matcher: &'a Matcher,
    pub(crate) texts: Texts<'a>,
    pub(crate) report: Report,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) matches: &'a mut Vec<Match>,
}

impl Kernel for Scan<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        self.scratch.lookup.start(self.texts.bytes.len());
        // One of each block, one more of a text's first window, and one that is written without being kept.
        let AllPassed { sparse, dense, short } = &mut self.scratch.passed;
        sparse.reserve(PART + 1);
        dense.reserve(if self.matcher.dense.is_some() { 5 * PART + 1 } else { 0 });
        short.reserve(PART + 1);
        // A copy of the code without folding, which most sets do without.
        match self.matcher.fold {
            0 => self.filter_all(simd, None),
            fold => self.filter_all(simd, Some(simd.splat(u32::from_ne_bytes([fold; 4])))),
        }
    }
}

/// Which filters are asked. Copies of the code for what most sets have do not test that for each block.
type Asked = u8;
/// Those of windows on the grid alone.
const GRID: Asked = 0;
/// Those of windows on the grid, and of short patterns.
const GRID_AND_SHORT: Asked = 1;
/// Those which the set has.
const ANY: Asked = 2;

/// The filters of a set; of those that it does not have, one that is not asked.
#[derive(Clone, Copy)]
struct Filters<'a, S: Simd> {
    has_sparse: bool,
    sparse: FilterView<'a>,
    dense: Option<FilterView<'a>>,
    /// In place of the filter; none where there is one.
    dense_classes: &'a [Group],
    has_short: bool,
    classes: ClassesView<'a, S>,
    simd: S,
    fold: Option<S::V>,
}

impl Writer<'_, Places> {
    /// Without a branch: nearly all masks are 0, but not so that a processor could tell which.
    #[inline(always)]
    fn push(&mut self, begin: u64, mask: u64) {
        self.push_if(mask != 0, Places { begin, mask });
    }
}

/// Where each filter writes what it lets through.
struct Writers<'a> {
    sparse: Writer<'a, Places>,
    dense: Writer<'a, Places>,
    short: Writer<'a, Places>,
}

impl<S: Simd> Filters<'_, S> {
    /// Filters the block that begins there, as [`Places::begin`] says it; there are so many bytes of its text from there on.
    #[inline(always)]
    fn filter<const ASKED: Asked, B: Block<S>>(
        &self,
        to: &mut Writers<'_>,
        block: B,
        begin: u64,
        len: usize,
    ) {
        if ASKED != ANY || self.has_sparse {
            let mask = self.sparse.pass(self.simd, block, 0) & windows_within(len, FIRST);
            to.sparse.push(begin, mask);
        }
        if ASKED == ANY {
            if let Some(filter) = self.dense {
                for shift in 0..4 {
                    let mask = filter.pass(self.simd, block, shift) & windows_within(len, FIRST + shift);
                    to.dense.push(begin + shift as u64, mask);
                }
            }
            if !self.dense_classes.is_empty() {
                // Windows of four bytes.
                let mask = pass_all(self.dense_classes, self.simd, block) & ones(len.saturating_sub(3));
                to.dense.push(begin, mask);
            }
        }
        if ASKED == GRID_AND_SHORT || ASKED == ANY && self.has_short {
            to.short.push(begin, self.classes.pass(self.simd, block) & ones(len));
        }
    }
}

/// Of the windows from a place of a block on those that do not lie behind the end of the text, of which there are so many bytes.
#[inline(always)]
fn windows_within(len: usize, from: usize) -> u64 {
    ones(len.saturating_sub(from) / 4)
}

/// So many bits from the lowest on, or all.
#[inline(always)]
fn ones(count: usize) -> u64 {
    if count < 64 { (1 << count) - 1 } else { u64::MAX }
}

/// Bytes of the end of a text that are copied, so that there are zeros behind it, where such are not had without a copy.
const END: usize = 2 * BLOCK;

/// The end of a text, and zeros.
#[derive(Debug)]
struct End([u8; END + READ]);

impl Default for End {
    fn default() -> Self {
        Self([0; _])
    }
}

impl End {
    /// Has the last bytes of a text stand in front of the zeros: up to [`END`] of them. What is in front of these is of no meaning.
    #[inline(always)]
    fn set(&mut self, text: &[u8]) {
        // In pieces of a size that is known, which may overlap.
        if let Some(last) = text.last_chunk::<END>() {
            self.0[..END].copy_from_slice(last);
        } else if let (Some(first), Some(last)) = (text.first_chunk::<BLOCK>(), text.last_chunk::<BLOCK>()) {
            self.0[END - text.len()..][..BLOCK].copy_from_slice(first);
            self.0[END - BLOCK..END].copy_from_slice(last);
        } else {
            self.0[END - text.len()..END].copy_from_slice(text);
        }
    }
}

impl Scan<'_> {
    /// Filters all texts, and looks up what passed.
    #[inline(always)]
    fn filter_all<S: Simd>(&mut self, simd: S, fold: Option<S::V>) {
        let matcher = self.matcher;
        let (dense, dense_classes) = match &matcher.dense_classes {
            Some(classes) => (None, classes.groups()),
            None => (matcher.dense.as_ref().map(Filter::view), &[][..]),
        };
        let classes = matcher.classes.as_ref().map_or(NO_GROUP, |(classes, _)| &classes.groups()[0]);
        let filters = Filters {
            has_sparse: matcher.sparse.is_some(),
            sparse: matcher.sparse.as_ref().map_or_else(FilterView::none, Filter::view),
            dense,
            dense_classes,
            has_short: matcher.classes.is_some(),
            classes: ClassesView::new(simd, classes),
            simd,
            fold,
        };
        match (filters.has_sparse, matcher.dense.is_some(), filters.has_short) {
            (true, false, false) => self.filter_with::<GRID, S>(&filters),
            (true, false, true) => self.filter_with::<GRID_AND_SHORT, S>(&filters),
            _ => self.filter_with::<ANY, S>(&filters),
        }
    }

    #[inline(always)]
    fn filter_with<const ASKED: Asked, S: Simd>(&mut self, filters: &Filters<'_, S>) {
        // Matches from here on are not reduced yet.
        let mut first = self.matches.len();
        let (mut text, mut at) = (0, 0);
        while text < self.texts.bytes.len() {
            (text, at) = self.filter::<ASKED, S>(filters, text, at);
            first = self.look_up(first, text as u32);
        }
    }

    /// Filters a part of the texts, from a place in one of them on; returns up to which.
    #[inline(always)]
    fn filter<const ASKED: Asked, S: Simd>(
        &mut self,
        filters: &Filters<'_, S>,
        mut number: usize,
        mut at: usize,
    ) -> (usize, usize) {
        let Scratch { passed: AllPassed { sparse, dense, short }, end, .. } = &mut *self.scratch;
        let mut to = Writers { sparse: sparse.writer(), dense: dense.writer(), short: short.writer() };
        let mut left = PART * BLOCK;
        while left > 0
            && let Some(&text) = self.texts.bytes.get(number)
        {
            let of_text = (number as u64) << 32;
            if ASKED == ANY
                && let Some(filter) = filters.dense
                && at == 0
            {
                // There is no byte in front of the first window, which the filter would test; it stands one window in front of those of a block.
                let mask = filter.may_begin(text, self.matcher.fold).into();
                to.dense.push(of_text.wrapping_sub(FIRST as u64), mask);
            }
            let from = at;
            let last = text.len().min(at + left);
            while at < last
                && let Some(block) = text[at..].first_chunk()
            {
                let begin = of_text + at as u64;
                if S::SHIFTS_BYTES {
                    let block = Loaded::new(filters.simd, block, filters.fold);
                    filters.filter::<ASKED, _>(&mut to, block, begin, usize::MAX);
                } else {
                    filters.filter::<ASKED, _>(&mut to, InMemory(block, filters.fold), begin, usize::MAX);
                }
                at += BLOCK;
            }
            if at < last && !S::LOADS_RESTS {
                end.set(text);
            }
            while at < last {
                let (rest, begin) = (&text[at..], of_text + at as u64);
                if S::LOADS_RESTS {
                    let block = Loaded::rest(filters.simd, rest, filters.fold);
                    filters.filter::<ASKED, _>(&mut to, block, begin, rest.len());
                } else {
                    let block = end.0[END - rest.len()..].first_chunk().expect("zeros behind the end");
                    filters.filter::<ASKED, _>(&mut to, InMemory(block, filters.fold), begin, rest.len());
                }
                at += BLOCK;
            }
            left = left.saturating_sub(at - from);
            if at < text.len() {
                break;
            }
            (number, at) = (number + 1, 0);
        }
        let lens = [to.sparse.len, to.dense.len, to.short.len];
        [sparse, dense, short].into_iter().zip(lens).for_each(|(passed, len)| passed.advance(len));
        (number, at)
    }

    /// Looks up what passed the filters, and keeps of all matches from the first on what is wanted; returns from where on there will be
    /// more that belong to what is kept: those of the text at which the next part begins.
    #[inline(never)]
    fn look_up(&mut self, first: usize, text: u32) -> usize {
        let Self { matcher, texts, report, scratch: Scratch { passed, lookup, .. }, matches } = self;
        matcher.isa.run(LookUp { lookup, matcher, texts: *texts, report: *report, passed, matches });
        report.reduce(matches, first);
        first + matches[first..].partition_point(|found| found.text < text)
    }
}
