//! A compiled set.

use packetloom_simd::Isa;

use crate::classes::{Begins, Classes};
use crate::filter::Filter;
use crate::index::{Index, Kind};
use crate::lookup::Texts;
use crate::plan::{Plan, Shape};
use crate::scan::{Scan, Scratch};
use crate::{Match, Patterns};

/// Which matches are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// All of them, in no particular order.
    All,
    /// Of each text every pattern once, where it ends first, by pattern: many times fewer where a text has a pattern at each of its bytes.
    Each,
    /// Of each text the one that ends first, and of those the one with the lowest number.
    First,
    /// Of each text any one.
    Any,
}

impl Report {
    /// Leaves of all matches in some texts those that are wanted.
    pub(crate) fn reduce(self, matches: &mut Vec<Match>, first: usize) {
        let same = match self {
            Self::All => return,
            Self::Each => {
                matches[first..].sort_unstable_by_key(|found| (found.text, found.pattern, found.end));
                |a: &Match, b: &Match| (a.text, a.pattern) == (b.text, b.pattern)
            }
            Self::First | Self::Any => {
                matches[first..].sort_unstable();
                |a: &Match, b: &Match| a.text == b.text
            }
        };
        let mut kept = first;
        for at in first..matches.len() {
            if at == first || !same(&matches[at], &matches[kept - 1]) {
                matches[kept] = matches[at];
                kept += 1;
            }
        }
        matches.truncate(kept);
    }
}

/// What a text is of a longer one, other parts of which were searched before: its bounds are those of the longer one, and what was found in
/// the other parts is not found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where the text begins in the longer one; bounds take what lies before 0 as lying at 0.
    pub begin: i64,
    /// From which place on, and up to which, the text was not searched before: a match has one of these bytes at least.
    pub new: (u32, u32),
}

/// Patterns, compiled.
#[derive(Clone, Debug)]
pub struct Matcher {
    pub(crate) isa: Isa,
    pub(crate) patterns: Patterns,
    /// Set in every byte before it is looked up: 0x20 where a pattern ignores case, or 0.
    pub(crate) fold: u8,
    /// Windows on the grid.
    pub(crate) sparse: Option<Filter>,
    /// Windows at every byte.
    pub(crate) dense: Option<Filter>,
    /// The same windows, where they are found by classes rather than by that filter.
    pub(crate) dense_classes: Option<Classes>,
    /// Where short patterns begin.
    pub(crate) classes: Option<(Classes, Begins)>,
    /// Lengths of the patterns in `classes`, shortest first.
    pub(crate) lengths: Vec<Kind>,
    pub(crate) index: Index,
}

impl Matcher {
    /// The longest text, in bytes: places in it are words, with some room behind the end.
    pub const MAX_TEXT: usize = (u32::MAX - 1024) as usize;

    /// Compiles a set for the best instruction set of this processor.
    pub fn new(patterns: Patterns) -> Self {
        Self::with(patterns, Isa::detect(), &[])
    }

    /// Compiles a set for an instruction set, and for texts such as those of `sample`, of which 8 MiB are looked at: windows are chosen
    /// that are rare in them. What is found is the same with any sample.
    pub fn with(patterns: Patterns, isa: Isa, sample: &[&[u8]]) -> Self {
        let shape = Shape::of(&patterns);
        let plan = Plan::new(&patterns, sample, shape.whole_below);
        let (sparse, dense) = (plan.filter(&plan.sparse), plan.filter(&plan.dense));
        let (classes, lengths) = shape.classes(&patterns, isa);
        let (fold, index) = (plan.fold, Index::new(plan.keys));
        let dense_classes = shape.dense_classes(&patterns, &index, isa);
        Self { isa, patterns, fold, sparse, dense, dense_classes, classes, lengths, index }
    }

    /// Looks through texts. Matches are added to `matches`; those of an earlier text before those of a later one, but for
    /// [`Report::All`].
    ///
    /// # Panics
    ///
    /// A text of more than [`MAX_TEXT`](Self::MAX_TEXT) bytes.
    pub fn find(&self, texts: &[&[u8]], report: Report, scratch: &mut Scratch, matches: &mut Vec<Match>) {
        self.run(Texts { bytes: texts, parts: &[] }, report, scratch, matches);
    }

    /// Looks through parts of longer texts, one for each text, as [`find`](Self::find) does; places of matches are those in `texts`.
    ///
    /// # Panics
    ///
    /// More or fewer parts than texts, and as [`find`](Self::find).
    pub fn find_in_parts(
        &self,
        texts: &[&[u8]],
        parts: &[Part],
        report: Report,
        scratch: &mut Scratch,
        matches: &mut Vec<Match>,
    ) {
        assert_eq!(texts.len(), parts.len(), "a part for each text");
        self.run(Texts { bytes: texts, parts }, report, scratch, matches);
    }

    fn run(&self, texts: Texts<'_>, report: Report, scratch: &mut Scratch, matches: &mut Vec<Match>) {
        assert!(texts.bytes.iter().all(|text| text.len() <= Self::MAX_TEXT), "a text of 4 GiB");
        self.isa.run_on_bytes(Scan { matcher: self, texts, report, scratch, matches });
    }

    /// What was compiled.
    pub fn patterns(&self) -> &Patterns {
        &self.patterns
    }

    /// The instruction set that it uses.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Patterns that one window of a text may have to be compared with.
    pub fn longest_list(&self) -> usize {
        self.index.longest()
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        let filters = [&self.sparse, &self.dense];
        let filters: usize = filters.into_iter().flatten().map(Filter::heap_bytes).sum();
        self.patterns.heap_bytes() + filters + self.index.heap_bytes()
    }
}
