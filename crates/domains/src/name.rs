//! Names in the form that they are compared in: labels with dots between, ASCII in lower case. A dot within a label is [`DOT`], which no
//! other byte is.

use std::borrow::Cow;

/// Bytes of a name: without the length of the first label, and the root's (RFC 1035 section 2.3.4).
pub(crate) const MAX_NAME: usize = 253;
/// Bytes of a label.
pub(crate) const MAX_LABEL: usize = 63;
/// Labels of a name.
pub(crate) const MAX_LABELS: usize = MAX_NAME.div_ceil(2);
/// A dot within a label: a letter in upper case, of which there are no others.
pub(crate) const DOT: u8 = b'A';

/// Why a text is no name of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum NameError {
    /// There is no text.
    #[error("an empty name")]
    Empty,
    /// Two dots follow one another, or the name begins with one.
    #[error("an empty label")]
    EmptyLabel,
    /// A label has more than 63 bytes.
    #[error("a label of more than 63 bytes")]
    LabelTooLong,
    /// The name has more than 253 characters.
    #[error("a name of more than 253 bytes")]
    NameTooLong,
    /// A backslash is followed by nothing, or by digits that are no number of a byte.
    #[error("a backslash before neither a character nor the three digits of a byte")]
    Escape,
    /// The name is not of ASCII, and cannot be written in ASCII (UTS 46).
    #[error("an internationalized name that UTS 46 does not allow")]
    Internationalized,
}

/// A byte of a label.
pub(crate) const fn in_label(byte: u8) -> u8 {
    if byte == b'.' { DOT } else { byte.to_ascii_lowercase() }
}

/// Appends a name in presentation form (RFC 1035 section 5.1), and says how many labels it has. A name that is not of ASCII is written
/// in ASCII first (UTS 46, nontransitional). On an error, `name` is as it was.
pub(crate) fn push_name(name: &mut Vec<u8>, text: &[u8]) -> Result<usize, NameError> {
    let begin = name.len();
    let pushed =
        if text.is_ascii() { push_ascii(name, text) } else { push_ascii(name, to_ascii(text)?.as_bytes()) };
    if pushed.is_err() {
        name.truncate(begin);
    }
    pushed
}

fn to_ascii(text: &[u8]) -> Result<Cow<'_, str>, NameError> {
    // Escapes are about bytes, UTS 46 is about characters.
    if text.contains(&b'\\') {
        return Err(NameError::Internationalized);
    }
    idna::domain_to_ascii_cow(text, idna::AsciiDenyList::EMPTY).map_err(|_| NameError::Internationalized)
}

fn push_ascii(name: &mut Vec<u8>, mut text: &[u8]) -> Result<usize, NameError> {
    match text {
        [] => return Err(NameError::Empty),
        b"." => return Ok(0),
        _ => {}
    }
    let begin = name.len();
    let mut labels = 0;
    // A dot at the end is followed by the root.
    while !text.is_empty() {
        if labels > 0 {
            name.push(b'.');
        }
        let at = name.len();
        let mut rest = text;
        text = loop {
            match *rest {
                [] => break rest,
                [b'.', ref after @ ..] => break after,
                [b'\\', ref after @ ..] => {
                    let (byte, after) = unescape(after).ok_or(NameError::Escape)?;
                    name.push(in_label(byte));
                    rest = after;
                }
                [byte, ref after @ ..] => {
                    name.push(in_label(byte));
                    rest = after;
                }
            }
            if name.len() - at > MAX_LABEL {
                return Err(NameError::LabelTooLong);
            }
        };
        if name.len() == at {
            return Err(NameError::EmptyLabel);
        }
        labels += 1;
        if name.len() - begin > MAX_NAME {
            return Err(NameError::NameTooLong);
        }
    }
    Ok(labels)
}

/// The byte that is meant behind a backslash, and what follows.
fn unescape(text: &[u8]) -> Option<(u8, &[u8])> {
    match *text {
        [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', ref rest @ ..] => {
            let number =
                [a, b, c].into_iter().fold(0u16, |number, digit| 10 * number + u16::from(digit - b'0'));
            Some((u8::try_from(number).ok()?, rest))
        }
        [b'0'..=b'9', ..] | [] => None,
        [byte, ref rest @ ..] => Some((byte, rest)),
    }
}

/// Labels that are put one before the other.
pub(crate) struct Labels {
    bytes: [u8; MAX_NAME],
    begin: usize,
}

impl Labels {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; MAX_NAME], begin: MAX_NAME }
    }

    /// The name so far.
    pub(crate) fn name(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    /// Puts a label, in presentation form or as it is, before the others. None where no name of an entry has such a label.
    pub(crate) fn push(&mut self, text: &[u8], is_escaped: bool) -> Option<()> {
        let mut label = [0; MAX_LABEL];
        let (mut len, mut rest) = (0, text);
        while let [first, after @ ..] = rest {
            let (byte, after) =
                if is_escaped && *first == b'\\' { unescape(after)? } else { (*first, after) };
            *label.get_mut(len)? = in_label(byte);
            (len, rest) = (len + 1, after);
        }
        let label = label.get(..len).filter(|label| !label.is_empty())?;
        let mut end = self.begin;
        if end < MAX_NAME {
            end = end.checked_sub(1)?;
        }
        let begin = end.checked_sub(len)?;
        if end < self.begin {
            self.bytes[end] = b'.';
        }
        self.bytes[begin..end].copy_from_slice(label);
        self.begin = begin;
        Some(())
    }
}

/// The last label of a name in presentation form, and what is before its dot, if there is one.
pub(crate) fn split_last(text: &[u8]) -> (Option<&[u8]>, &[u8]) {
    memchr::memrchr_iter(b'.', text)
        .find(|&dot| !is_escaped(text, dot))
        .map_or((None, text), |dot| (Some(&text[..dot]), &text[dot + 1..]))
}

/// A name without the dot of the root.
#[inline]
pub(crate) fn without_root(text: &[u8]) -> &[u8] {
    match text {
        [before @ .., b'.'] if !is_escaped(text, before.len()) => before,
        _ => text,
    }
}

/// Whether an odd number of backslashes is before a place.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let backslashes = text[..at].iter().rev().take_while(|&&byte| byte == b'\\').count();
    backslashes % 2 == 1
}
