//! What is wrong with a filter's text, and where.

/// A mistake in a filter: the message quotes the word and says what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {message}")]
pub struct Error {
    column: usize,
    word: String,
    message: String,
}

/// Characters of a word that messages quote.
const QUOTED: usize = 40;

impl Error {
    /// A mistake at a byte of the text.
    pub(crate) fn new(text: &str, at: usize, word: &str, message: impl Into<String>) -> Self {
        let column = 1 + text.get(..at).map_or(0, |before| before.chars().count());
        Self { column, word: word.into(), message: message.into() }
    }

    /// Where in the text it is: characters from the beginning, the first one is 1. The end of the text is one after the last.
    pub fn column(&self) -> usize {
        self.column
    }

    /// The word there; empty at the end of the text.
    pub fn word(&self) -> &str {
        &self.word
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// A word in quotes, cut where it is long.
pub(crate) fn quote(word: &str) -> String {
    match word.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}", format!("{}…", &word[..end])),
        None => format!("{word:?}"),
    }
}
