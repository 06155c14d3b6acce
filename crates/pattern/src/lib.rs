//! Multi-string matching: which of thousands of literals lie in a text, and where.
//!
//! [`Patterns`] are compiled once to a [`Matcher`], which looks through many texts at a time:
//!
//! ```
//! use packetloom_pattern::{Matcher, Match, Patterns, Report, Scratch};
//!
//! let patterns: Patterns = [&b"evil.com"[..], b"cmd.exe", b"e"].into_iter().collect();
//! let matcher = Matcher::new(patterns);
//! let texts: [&[u8]; 2] = [b"GET /cmd.exe", b"nothing"];
//! let mut matches = Vec::new();
//! matcher.find(&texts, Report::All, &mut Scratch::default(), &mut matches);
//! matches.sort_unstable();
//! let ends: Vec<_> = matches.iter().map(|m| (m.text, m.end, m.pattern)).collect();
//! assert_eq!(ends, [(0, 10, 2), (0, 12, 1), (0, 12, 2)]);
//! ```
//!
//! A text is looked at in windows of four bytes, each of which begins at a multiple of four. A pattern of seven bytes or more has four
//! windows, one for each way in which it can lie on that grid, and each occurrence of it shows exactly one of them. A gather and a test of
//! two bytes behind the window leave few windows (`filter`); those are looked up by the bytes around them (`index`), and what is found
//! there is compared with the text. Shorter patterns are found by classes of bytes (`classes`) or, where they are many, by windows that
//! begin at every byte; where the processor has exact classes, they stand for the filter of few such windows. The choice of windows is that
//! which makes the fewest candidates, by how often bytes occur in the set and in a sample of traffic where there is one.
//!
//! With the cargo feature `device`, `image` has the same for GPUs and other devices.

mod classes;
pub mod files;
mod filter;
#[cfg(feature = "device")]
pub mod image;
mod index;
mod lookup;
mod matcher;
pub mod oracle;
mod patterns;
mod plan;
mod scan;
mod stored;
mod windows;

pub use self::matcher::{Matcher, Part, Report};
pub use self::patterns::{Bounds, Pattern, Patterns, Refused};
pub use self::scan::Scratch;
pub use self::stored::{MAGIC, Unusable};

/// A pattern in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Match {
    /// The number of the text.
    pub text: u32,
    /// The byte after the last one of the pattern.
    pub end: u32,
    /// The number of the pattern.
    pub pattern: u32,
}
