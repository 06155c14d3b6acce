//! Mistakes of a file, all of them told at once, and what may have been meant.

use super::Error;
use super::text;

/// Mistakes that are told in one text; the others are counted there.
const TOLD: usize = 20;
/// Mistakes that are kept, to be listed one by one; the others are counted.
const KEPT: usize = 1 << 16;

/// Mistakes so far.
#[derive(Default)]
pub(super) struct Mistakes {
    first: Vec<Error>,
    more: usize,
}

impl Mistakes {
    /// Takes note of the mistake of a line.
    ///
    /// # Errors
    ///
    /// Anything else, after which reading cannot go on; and all mistakes so far, where there is more of something than may be: what follows
    /// would say the same.
    pub(super) fn add(&mut self, error: Error) -> Result<(), Error> {
        let limited = match &error {
            Error::Syntax { file, message, .. } if is_limit(message) => Some(file.clone()),
            _ => None,
        };
        match error {
            Error::Syntax { .. } | Error::Unsupported { .. } if self.first.len() < KEPT => {
                self.first.push(error)
            }
            Error::Syntax { .. } | Error::Unsupported { .. } => self.more += 1,
            error => return Err(error),
        }
        limited.map_or(Ok(()), |file| self.end(&file))
    }

    /// The end of the file.
    ///
    /// # Errors
    ///
    /// The mistakes, if there are any.
    pub(super) fn end(&mut self, file: &str) -> Result<(), Error> {
        let (mut first, more) = (std::mem::take(&mut self.first), std::mem::take(&mut self.more));
        match first.len() {
            0 => Ok(()),
            1 => Err(first.remove(0)),
            _ => Err(Error::Several { file: file.into(), first, more }),
        }
    }
}

/// Whether a message says that there is more of something than may be.
fn is_limit(message: &str) -> bool {
    let beginnings =
        ["lists, negations and jumps that make more than ", "more than ", "sets with more than "];
    beginnings.iter().any(|text| message.starts_with(text))
}

/// Several mistakes, a line each.
pub(super) fn several(file: &str, first: &[Error], more: usize) -> String {
    let all = first.len() + more;
    let mut text = format!("{file}: {} mistakes", grouped(all));
    first.iter().take(TOLD).for_each(|error| text += &format!("\n    {error}"));
    if all > TOLD {
        text += &format!("\n    and {} more", grouped(all - TOLD));
    }
    text
}

/// A number with commas between groups of three digits.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group));
    groups.collect::<Vec<_>>().join(",")
}

/// The word that may have been meant where a message says `"WORD"…; expected WORDS`, or `unknown field `WORD`, expected WORDS`.
pub fn did_you_mean(message: &str) -> Option<String> {
    /// What messages say beside the words that are expected.
    const OTHERS: [&str; 15] = [
        "an", "as", "or", "and", "such", "name", "number", "none", "line", "end", "the", "for", "some",
        "with", "one",
    ];
    // It may have been asked already.
    if message.contains("; did you mean ") {
        return None;
    }
    let (found, expected) = message.split_once("expected ")?;
    let quote = if found.contains('`') { '`' } else { '"' };
    let word = found.split(quote).nth(1)?.split_ascii_whitespace().next()?;
    let lower = word.to_ascii_lowercase();
    if word.len() < 3 || !word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '-') {
        return None;
    }
    let max = if word.len() < 5 { 1 } else { 2 };
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+');
    let candidates = expected.split(|c: char| !is_part(c));
    let candidates: Vec<&str> =
        candidates.filter(|other| other.len() > 1 && !OTHERS.contains(other)).collect();
    if candidates.contains(&word) {
        return None;
    }
    // The nearest one.
    let nearest = (0..=max).find_map(|max| candidates.iter().find(|other| text::is_near(&lower, other, max)));
    nearest.map(|other| (*other).to_owned())
}

#[cfg(test)]
mod tests {
    use super::did_you_mean;

    #[test]
    fn near_words_among_those_expected_are_meant() {
        for (message, expected) in [
            ("\"permti\"; expected permit, deny or reflect", Some("permit")),
            ("\"Deny\"; expected permit, deny or reflect", Some("deny")),
            ("\"form\"; expected \"from\"", Some("from")),
            ("protocol \"tpc\"; expected any, a name such as tcp, or a number from 0 to 255", Some("tcp")),
            ("unknown field `rulez`, expected one of `rules`, `default`", Some("rules")),
            ("unknown key \"chian\"; expected one of source, flows, chain, sink, run", Some("chain")),
            ("\"allow\"; expected permit, deny or reflect", None),
            ("\"80\"; expected 81", None),
            ("nothing to say", None),
        ] {
            assert_eq!(did_you_mean(message).as_deref(), expected, "{message}");
        }
    }
}
