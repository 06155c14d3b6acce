//! Payloads to look through, made of a seed.

use std::cmp::Reverse;
use std::collections::HashMap;

use packetloom_pattern::Patterns;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// How long payloads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All of so many bytes.
    Fixed(usize),
    /// 64, 583 and 1,450 bytes, in the shares 7 : 4 : 1.
    Mixed,
}

/// What payloads are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text such as HTTP's; so many percent of the payloads have one pattern at a random place.
    Text {
        /// Percent.
        matching: u8,
    },
    /// Patterns without their last byte.
    WithoutLast,
    /// Patterns without their first byte.
    WithoutFirst,
    /// Runs of one, two or four bytes of patterns, and whole patterns again and again.
    Runs,
    /// The eight bytes that most patterns have in common, whose lists of candidates are the longest, and patterns of up to six bytes without their
    /// last byte.
    LongLists,
}

/// Bytes of [`Kind::LongLists`], and how many such pieces there are.
const UNIT: usize = 8;
const UNITS: usize = 256;
/// Bytes of short patterns at most.
const SHORT: usize = 6;

/// Payloads one behind the other.
#[derive(Clone, Debug)]
pub struct Payloads {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Bytes at the beginning of each that are not looked at.
    skip: usize,
}

impl Payloads {
    /// So many bytes of payloads, and a little more.
    pub fn new(patterns: &Patterns, size: Size, kind: Kind, total: usize, seed: u64) -> Self {
        let units = if kind == Kind::LongLists { units(patterns) } else { Vec::new() };
        let mut maker = Maker { random: Xoshiro256PlusPlus::seed_from_u64(seed), patterns, units };
        let (mut bytes, mut ends) = (Vec::with_capacity(total + 2000), Vec::new());
        while bytes.len() < total {
            let len = match size {
                Size::Fixed(len) => len,
                Size::Mixed => [64, 64, 64, 64, 64, 64, 64, 583, 583, 583, 583, 1450][maker.below(12)],
            };
            let begin = bytes.len();
            let end = begin + len;
            match kind {
                Kind::Text { .. } => maker.text(&mut bytes, end),
                _ => maker.attack(&mut bytes, end, kind),
            }
            bytes.truncate(end);
            if let Kind::Text { matching } = kind
                && maker.below(100) < usize::from(matching)
            {
                let pattern = maker.pattern();
                if pattern.len() <= len {
                    let at = begin + maker.below(len - pattern.len() + 1);
                    bytes[at..][..pattern.len()].copy_from_slice(pattern);
                }
            }
            ends.push(end);
        }
        Self { bytes, ends, skip: 0 }
    }

    /// Payloads that are there already.
    pub fn of<'a>(all: impl Iterator<Item = &'a [u8]>) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for payload in all {
            bytes.extend_from_slice(payload);
            ends.push(bytes.len());
        }
        Self { bytes, ends, skip: 0 }
    }

    /// The same, of each of which so many bytes are not looked at, as those of headers.
    #[must_use]
    pub fn with_skip(self, skip: usize) -> Self {
        Self { skip, ..self }
    }

    /// What is looked at of each of them.
    pub fn texts(&self) -> Vec<&[u8]> {
        let begins = [0].iter().chain(&self.ends);
        begins.zip(&self.ends).map(|(&begin, &end)| &self.bytes[(begin + self.skip).min(end)..end]).collect()
    }

    /// Bytes of all, looked at or not.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

struct Maker<'a> {
    random: Xoshiro256PlusPlus,
    patterns: &'a Patterns,
    /// Pieces of [`Kind::LongLists`].
    units: Vec<&'a [u8]>,
}

/// Pieces of as many patterns as there can be, and the heads of short patterns.
fn units(patterns: &Patterns) -> Vec<&[u8]> {
    let mut counts: HashMap<&[u8], u32> = HashMap::new();
    let all = || (0..patterns.len() as u32).map(|number| patterns.get(number).bytes);
    all().flat_map(|bytes| bytes.windows(UNIT)).for_each(|unit| *counts.entry(unit).or_default() += 1);
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|&(unit, count)| (Reverse(count), unit));
    let heads =
        all().filter(|bytes| (2..=SHORT).contains(&bytes.len())).map(|bytes| &bytes[..bytes.len() - 1]);
    counts.into_iter().take(UNITS).map(|(unit, _)| unit).chain(heads.take(UNITS)).collect()
}

/// Lines that HTTP's clients and servers send.
const LINES: &[&str] = &[
    "GET /",
    "POST /",
    " HTTP/1.1\r\n",
    "HTTP/1.1 200 OK\r\n",
    "Host: www.",
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n",
    "Accept: text/html,application/xhtml+xml;q=0.9\r\n",
    "Accept-Language: en-US,en;q=0.5\r\n",
    "Connection: keep-alive\r\n",
    "Content-Type: text/html; charset=utf-8\r\n",
    "Content-Length: ",
    "Cookie: session=",
    "Cache-Control: max-age=0\r\n",
    "Referer: http://",
    "<div class=\"",
    "</div>\n",
    "<a href=\"",
    "</a>",
    "<p>",
    "</p>\n",
    "<td>",
    "</td>",
    "&nbsp;",
];
/// By how often they come in English.
const LETTERS: &[u8] = b"eeeeeeeeeeeetttttttttaaaaaaaaooooooooiiiiiiinnnnnnnsssssshhhhhhrrrrrrddddllllcccuuummmwwffggyyppbbvkjxqz";
const ENDINGS: &[&str] =
    &[" ", " ", " ", " ", ".", ", ", "/", "=", "-", "_", "&", "\"", "\r\n", ".html", ".png", ".js"];

impl<'a> Maker<'a> {
    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.random.next_u64()) * limit as u128) >> 64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn pattern(&mut self) -> &'a [u8] {
        let number = self.below(self.patterns.len());
        self.patterns.get(number as u32).bytes
    }

    /// Words, numbers and lines, up to `end` or a little more.
    fn text(&mut self, bytes: &mut Vec<u8>, end: usize) {
        while bytes.len() < end {
            match self.below(12) {
                0 | 1 => bytes.extend_from_slice(self.one(LINES).as_bytes()),
                2 => (0..1 + self.below(8)).for_each(|_| bytes.push(self.one(b"0123456789"))),
                _ => {
                    (0..2 + self.below(9)).for_each(|_| bytes.push(self.one(LETTERS)));
                    bytes.extend_from_slice(self.one(ENDINGS).as_bytes());
                }
            }
        }
    }

    fn attack(&mut self, bytes: &mut Vec<u8>, end: usize, kind: Kind) {
        while bytes.len() < end {
            let pattern = self.pattern();
            match kind {
                Kind::WithoutLast => bytes.extend_from_slice(&pattern[..pattern.len() - 1]),
                Kind::WithoutFirst => bytes.extend_from_slice(&pattern[1..]),
                Kind::LongLists if !self.units.is_empty() => {
                    let number = self.below(self.units.len());
                    bytes.extend_from_slice(self.units[number]);
                }
                Kind::Runs | Kind::LongLists | Kind::Text { .. } => {
                    let len = self.one(&[1, 2, 4, pattern.len()]).min(pattern.len());
                    let at = self.below(pattern.len() - len + 1);
                    let run = end - bytes.len();
                    bytes.extend(pattern[at..][..len].iter().cycle().take(run));
                }
            }
            // A set of patterns of one byte would never fill a text.
            if pattern.len() == 1 {
                bytes.push(b' ');
            }
        }
    }
}
