//! From text to tokens.

use crate::error::{Error, quote};

/// A token, with the byte where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) at: usize,
    pub(crate) kind: Kind<'a>,
    /// As it stands in the text.
    pub(crate) text: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// Letters, digits, `.`, `-`, `_`, and outside of brackets `:`.
    Word(&'a str),
    /// A word behind a backslash: a name, never a keyword.
    Name(&'a str),
    /// An operator or a bracket.
    Symbol(&'static str),
    End,
}

/// Operators, longer ones first.
const SYMBOLS: [&str; 26] = [
    "&&", "||", "<<", ">>", "<=", ">=", "==", "!=", "(", ")", "[", "]", ":", "/", "!", "&", "|", "^", "+",
    "-", "*", "%", "<", ">", "=", ",",
];

/// The tokens of a text; the last one is its end.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Error> {
    let mut tokens = Vec::new();
    let (mut at, mut brackets) = (0, 0_usize);
    loop {
        at += text[at..].len() - text[at..].trim_ascii_start().len();
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else {
            tokens.push(Token { at, kind: Kind::End, text: "" });
            return Ok(tokens);
        };
        let is_escaped = first == '\\';
        let word = word(&rest[usize::from(is_escaped)..], brackets > 0);
        let (kind, len) = if is_escaped {
            if word.is_empty() {
                return Err(Error::new(text, at, "\\", "expected a name after \"\\\""));
            }
            (Kind::Name(word), word.len() + 1)
        } else if !word.is_empty() {
            (Kind::Word(word), word.len())
        } else if let Some(symbol) = SYMBOLS.into_iter().find(|symbol| rest.starts_with(symbol)) {
            match symbol {
                "[" => brackets += 1,
                "]" => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            (Kind::Symbol(symbol), symbol.len())
        } else {
            let word = &rest[..first.len_utf8()];
            let message = format!("{} is not part of the filter language", quote(word));
            return Err(Error::new(text, at, word, message));
        };
        tokens.push(Token { at, kind, text: &rest[..len] });
        at += len;
    }
}

/// The word at the beginning of a text; empty where there is none.
fn word(text: &str, in_brackets: bool) -> &str {
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') || (c == ':' && !in_brackets);
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || (c == ':' && !in_brackets));
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    if begins { &text[..end] } else { "" }
}
