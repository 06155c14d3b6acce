//! From texts to matches: blocks are filtered, a part of the texts at a time; what passes is looked up and compared.

use packetloom_simd::{Kernel, Simd};

use crate::Match;
use crate::classes::{Classes, ClassesView};
use crate::filter::{BLOCK, Block, FIRST, Filter, FilterView, READ, Rest, Whole};
use crate::lookup::{Lookup, Room, Texts};
use crate::matcher::{Matcher, Report};

/// Blocks after which what passed the filters is looked up: so few that their bytes are still in the cache.
const PART: usize = 1024;

/// What a scan keeps for the next one, so that it allocates nothing.
#[derive(Debug, Default)]
pub struct Scratch {
    passed: Passed,
    lookup: Lookup,
    end: End,
}

/// Blocks of texts, and what each filter let through of them.
#[derive(Debug, Default)]
pub(crate) struct Passed {
    pub(crate) blocks: Room<Place>,
    /// Windows on the grid.
    pub(crate) sparse: Room<Window>,
    /// Windows at every byte.
    pub(crate) dense: Room<Window>,
    /// Where short patterns may begin.
    pub(crate) short: Room<Begins>,
}

/// A place of a text: the text's number, and that of the byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) text: u32,
    pub(crate) at: u32,
}

/// The number of a block, times [`BLOCK`], and how far behind its first window one begins.
pub(crate) type Window = u32;

/// Bytes of a block at which something may begin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begins {
    pub(crate) block: u32,
    /// A bit each.
    pub(crate) mask: u64,
}

impl Passed {
    fn reserve(&mut self, matcher: &Matcher) {
        // One that is written without being kept; of windows, a vector of them.
        self.blocks.reserve(PART + 1);
        self.short.reserve(PART + 1);
        self.sparse.reserve(if matcher.sparse.is_some() { (PART + 1) * BLOCK / 4 } else { 0 });
        self.dense.reserve(if matcher.dense.is_some() { (PART + 1) * BLOCK } else { 0 });
    }

    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.sparse.clear();
        self.dense.clear();
        self.short.clear();
    }

    /// A place of a text.
    #[inline(always)]
    pub(crate) fn place(&self, window: Window) -> Place {
        let Place { text, at } = self.blocks.values()[window as usize / BLOCK];
        Place { text, at: at.wrapping_add(FIRST as u32 + window % BLOCK as u32) }
    }
}

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
        self.scratch.passed.reserve(self.matcher);
        // A copy of the code without folding, which most sets do without.
        match self.matcher.fold {
            0 => self.filter_all(simd, None),
            fold => self.filter_all(simd, Some(simd.splat(u32::from_ne_bytes([fold; 4])))),
        }
    }
}

/// The filters of a set.
#[derive(Clone, Copy)]
struct Filters<'a, S: Simd> {
    sparse: Option<FilterView<'a>>,
    dense: Option<FilterView<'a>>,
    classes: Option<ClassesView<'a, S>>,
    simd: S,
    fold: Option<S::V>,
}

/// How far behind the first window of a block those on the grid begin.
static ON_GRID: [u32; BLOCK / 4] = {
    let mut offsets = [0; _];
    let mut at = 0;
    while at < offsets.len() {
        offsets[at] = 4 * at as u32;
        at += 1;
    }
    offsets
};

impl<S: Simd> Filters<'_, S> {
    /// Filters the block at a place of a text, of which there are so many bytes from there on.
    #[inline(always)]
    fn filter<B: Block<S>>(&self, passed: &mut Passed, block: B, place: Place, len: usize) {
        let number = passed.blocks.len() as u32;
        passed.blocks.push_if(true, place);
        if let Some(filter) = self.sparse {
            self.windows(filter, &mut passed.sparse, block, number, 0, len);
        }
        if let Some(filter) = self.dense {
            for shift in 0..4 {
                self.windows(filter, &mut passed.dense, block, number, shift, len);
            }
        }
        if let Some(classes) = self.classes {
            let mask = classes.pass(self.simd, block) & ones(len);
            // Without a branch: nearly all masks are 0, but not so that a processor could tell which.
            passed.short.push_if(mask != 0, Begins { block: number, mask });
        }
    }

    #[inline(always)]
    fn windows<B: Block<S>>(
        &self,
        filter: FilterView<'_>,
        passed: &mut Room<Window>,
        block: B,
        number: u32,
        shift: usize,
        len: usize,
    ) {
        // Windows that lie behind the end of a text are none.
        let within = ones(len.saturating_sub(FIRST + shift) / 4);
        let of_block = self.simd.splat(number * BLOCK as u32 + shift as u32);
        for first in (0..BLOCK / 4).step_by(S::LANES) {
            let mask = filter.pass(self.simd, block, first, shift) & (within >> first) as u32;
            let windows = self.simd.add(self.simd.load(&ON_GRID[first..]), of_block);
            let count = self.simd.compress(windows, mask, passed.space());
            passed.advance(count);
        }
    }
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
        let filters = Filters {
            sparse: self.matcher.sparse.as_ref().map(Filter::view),
            dense: self.matcher.dense.as_ref().map(Filter::view),
            classes: self.matcher.classes.as_ref().map(|classes| Classes::view(classes, simd)),
            simd,
            fold,
        };
        // Matches from here on are not reduced yet.
        let mut first = self.matches.len();
        for (number, text) in self.texts.bytes.iter().enumerate() {
            let number = number as u32;
            let mut at = 0;
            loop {
                at = self.filter(&filters, text, number, at);
                if at >= text.len() {
                    break;
                }
                first = self.look_up(first, number);
            }
        }
        self.look_up(first, self.texts.bytes.len() as u32);
    }

    /// Filters a text from a place on; returns up to which.
    #[inline(always)]
    fn filter<S: Simd>(&mut self, filters: &Filters<'_, S>, text: &[u8], number: u32, from: usize) -> usize {
        let Scratch { passed, end, .. } = &mut *self.scratch;
        // One block may be that of the first window.
        let left = (PART - 1).saturating_sub(passed.blocks.len());
        if from == 0
            && left > 0
            && let Some(filter) = filters.dense
        {
            // There is no byte in front of the first window, which the filter would test.
            let window = passed.blocks.len() * BLOCK;
            let may_begin = filter.may_begin(text, self.matcher.fold);
            passed.blocks.push_if(may_begin, Place { text: number, at: 0u32.wrapping_sub(FIRST as u32) });
            passed.dense.push_if(may_begin, window as u32);
        }
        let mut at = from;
        let last = text.len().min(at + left * BLOCK);
        while at < last
            && let Some(block) = text[at..].first_chunk()
        {
            let place = Place { text: number, at: at as u32 };
            filters.filter(passed, Whole(block, filters.fold), place, usize::MAX);
            at += BLOCK;
        }
        if at < last {
            if !S::LOADS_RESTS {
                end.set(text);
            }
            while at < last {
                let (place, rest) = (Place { text: number, at: at as u32 }, &text[at..]);
                if S::LOADS_RESTS {
                    filters.filter(passed, Rest(rest, filters.fold), place, rest.len());
                } else {
                    let block = end.0[END - rest.len()..].first_chunk().expect("zeros behind the end");
                    filters.filter(passed, Whole(block, filters.fold), place, rest.len());
                }
                at += BLOCK;
            }
        }
        at
    }

    /// Looks up what passed the filters, and keeps of all matches from the first on what is wanted; returns up to where none is added to
    /// what is kept: those of a text that is not at its end.
    #[inline(never)]
    fn look_up(&mut self, first: usize, text: u32) -> usize {
        let Self { matcher, texts, report, scratch: Scratch { passed, lookup, .. }, matches } = self;
        lookup.run(matcher, *texts, *report, passed, matches);
        passed.clear();
        report.reduce(matches, first);
        first + matches[first..].partition_point(|found| found.text < text)
    }
}
