//! The slow, obvious form: every pattern at every byte.

use crate::{Match, Patterns};

/// All matches in a text, by end, then by pattern.
pub fn matches(patterns: &Patterns, text: &[u8], number: u32) -> Vec<Match> {
    let mut matches = Vec::new();
    for (pattern, wanted) in patterns.iter().enumerate() {
        for (begin, found) in text.windows(wanted.bytes.len()).enumerate() {
            let end = begin + found.len();
            let is_equal = if wanted.ignore_case {
                found.eq_ignore_ascii_case(wanted.bytes)
            } else {
                found == wanted.bytes
            };
            if is_equal && wanted.bounds.hold(begin as u64, end as u64) {
                matches.push(Match { text: number, end: end as u32, pattern: pattern as u32 });
            }
        }
    }
    matches.sort_unstable();
    matches
}
