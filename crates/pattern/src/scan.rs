//! From texts to matches: blocks are filtered, a part of the texts at a time; what passes is looked up and compared.

use packetloom_simd::{Kernel, Simd};

use crate::Match;
use crate::classes::Classes;
use crate::filter::{BLOCK, FIRST, Filter, FilterView, READ};
use crate::lookup::{Lookup, Room, Texts};
use crate::matcher::{Matcher, Report};

/// Bytes of texts after which what passed the filters is looked up: so few that they are still in the cache.
const PART: usize = 64 << 10;

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

impl AllPassed {
    fn reserve(&mut self, blocks: usize) {
        self.sparse.reserve(blocks);
        self.dense.reserve(4 * blocks + 1);
        self.short.reserve(blocks);
    }
}

/// Places of a block that a filter let through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    pub(crate) text: u32,
    pub(crate) at: u32,
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
        let fold = match self.matcher.fold {
            0 => None,
            fold => Some(simd.splat(u32::from_ne_bytes([fold; 4]))),
        };
        let mut first = 0;
        while first < self.texts.bytes.len() {
            // Texts with so many bytes together, or one that is longer.
            let mut blocks = 0;
            let of_part = self.texts.bytes[first..].iter().take_while(|text| {
                let is_taken = blocks < PART / BLOCK;
                blocks += if is_taken { text.len() / BLOCK + 2 } else { 0 };
                is_taken
            });
            let last = first + of_part.count();
            self.scratch.passed.reserve(blocks);
            // A copy of the code without folding, which most sets do without.
            if fold.is_none() {
                for number in first..last {
                    self.filter(simd, number, None);
                }
            } else {
                for number in first..last {
                    self.filter(simd, number, fold);
                }
            }
            self.look_up();
            first = last;
        }
    }
}

/// The blocks of a text.
struct Blocks<'a, S: Simd> {
    sparse: Option<FilterView<'a>>,
    dense: Option<FilterView<'a>>,
    classes: Option<&'a Classes>,
    passed: &'a mut AllPassed,
    simd: S,
    fold: Option<S::V>,
    text: u32,
}

/// Without a branch: nearly all masks are 0, but not so that a processor could tell which.
#[inline(always)]
fn push(passed: &mut Passed, text: u32, at: usize, mask: u64) {
    passed.push_if(mask != 0, Places { text, at: at as u32, mask });
}

impl<S: Simd> Blocks<'_, S> {
    /// Filters the block that begins at `at`; `from` are its bytes, and those behind it.
    #[inline(always)]
    fn filter(&mut self, from: &[u8], at: usize) {
        let Self { sparse, dense, classes, passed, simd, fold, text } = self;
        if let Some(filter) = sparse {
            let mask = filter.pass(*simd, block(from), *fold).into();
            push(&mut passed.sparse, *text, at + FIRST, mask);
        }
        if let Some(filter) = dense {
            for shift in 0..4 {
                let mask = filter.pass(*simd, block(&from[shift..]), *fold).into();
                push(&mut passed.dense, *text, at + FIRST + shift, mask);
            }
        }
        if let Some(classes) = classes {
            push(&mut passed.short, *text, at, classes.pass(*simd, block(from), *fold));
        }
    }
}

#[inline(always)]
fn block(from: &[u8]) -> &[u8; READ] {
    from.first_chunk().expect("a block and what is read behind it")
}

/// Bytes behind the beginning of a block that have to be readable.
const ROOM: usize = READ + 3;

/// Bytes of the end of a text that are copied, so that there are zeros behind it.
const END: usize = 2 * BLOCK;

/// The end of a text, and zeros.
#[derive(Debug)]
struct End([u8; END + BLOCK + ROOM]);

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
    /// Filters a text.
    #[inline(always)]
    fn filter<S: Simd>(&mut self, simd: S, number: usize, fold: Option<S::V>) {
        let text = self.texts.bytes[number];
        let Scratch { passed, end, .. } = &mut *self.scratch;
        let mut blocks = Blocks {
            sparse: self.matcher.sparse.as_ref().map(Filter::view),
            dense: self.matcher.dense.as_ref().map(Filter::view),
            classes: self.matcher.classes.as_ref(),
            passed,
            fold,
            simd,
            text: number as u32,
        };
        if blocks.dense.is_some() {
            // There is no byte in front of the first window, which the filter would test.
            push(&mut blocks.passed.dense, blocks.text, 0, 1);
        }
        let mut at = 0;
        while at + ROOM <= text.len() {
            blocks.filter(&text[at..][..ROOM], at);
            at += BLOCK;
        }
        // Patterns that would need the zeros behind the end are found too long when they are compared.
        end.set(text);
        while at < text.len() {
            blocks.filter(&end.0[END - (text.len() - at)..][..ROOM], at);
            at += BLOCK;
        }
    }

    /// Looks up what passed the filters, and keeps of it what is wanted.
    #[inline(never)]
    fn look_up(&mut self) {
        let Self { matcher, texts, report, scratch: Scratch { passed, lookup, .. }, matches } = self;
        let first = matches.len();
        lookup.run(matcher, *texts, *report, passed, matches);
        // No text is in two parts.
        report.reduce(matches, first);
    }
}
