//! Bytes as text that can be read, and numbers.

use std::fmt::Write;

/// The most bytes of a line that are shown.
const MAX_SHOWN: usize = 80;

/// A pattern as it is written in a file of lines: reads back as the same bytes. Letters and digits of UTF-8 and printable ASCII are
/// shown as they are.
pub fn display(pattern: &[u8]) -> String {
    let mut shown = String::with_capacity(pattern.len());
    let last = pattern.len().saturating_sub(1);
    let mut at = 0;
    each(pattern, |piece| {
        match piece {
            Piece::Char('\\') => shown.push_str(r"\\"),
            Piece::Char('#') if at == 0 => shown.push_str(r"\#"),
            Piece::Char(' ') if at == 0 || at == last => shown.push_str(r"\x20"),
            Piece::Char(char) => shown.push(char),
            Piece::Byte(byte) => match byte {
                b'\n' => shown.push_str(r"\n"),
                b'\r' => shown.push_str(r"\r"),
                b'\t' => shown.push_str(r"\t"),
                0 => shown.push_str(r"\0"),
                _ => push_byte(&mut shown, byte),
            },
        }
        at += piece.len();
    });
    shown
}

/// Text without what is not printable.
pub(super) fn printable(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    each(text, |piece| match piece {
        Piece::Char(char) => shown.push(char),
        Piece::Byte(b'\t') => shown.push(' '),
        Piece::Byte(byte) => push_byte(&mut shown, byte),
    });
    shown
}

/// The beginning of a text.
pub(super) fn cut(text: &[u8]) -> String {
    let text = text.trim_ascii();
    if text.len() <= MAX_SHOWN {
        return printable(text);
    }
    printable(&text[..MAX_SHOWN]) + "..."
}

fn push_byte(shown: &mut String, byte: u8) {
    write!(shown, r"\x{byte:02x}").expect("a String takes all");
}

#[derive(Clone, Copy)]
enum Piece {
    /// A printable one.
    Char(char),
    Byte(u8),
}

impl Piece {
    fn len(self) -> usize {
        match self {
            Self::Char(char) => char.len_utf8(),
            Self::Byte(_) => 1,
        }
    }
}

fn each(text: &[u8], mut show: impl FnMut(Piece)) {
    for chunk in text.utf8_chunks() {
        for char in chunk.valid().chars() {
            if matches!(char, ' '..='~') || char.is_alphanumeric() {
                show(Piece::Char(char));
            } else {
                char.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| show(Piece::Byte(byte)));
            }
        }
        chunk.invalid().iter().for_each(|&byte| show(Piece::Byte(byte)));
    }
}

/// The value of a hex digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}
