//! Bytes of names as text.

/// Text of a name on the wire, as [`Name::text`](crate::Name::text) documents it. In a `label`, a dot is escaped.
pub(crate) fn push_escaped(text: &mut String, bytes: &[u8], label: bool) {
    // Nearly all names.
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'\\' && !(label && *byte == b'.');
    if bytes.iter().all(is_plain) {
        text.extend(std::str::from_utf8(bytes));
        return;
    }
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '.' if label => text.push_str("\\."),
                char if is_shown(char) => text.push(char),
                char => push_numbers(text, char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        push_numbers(text, chunk.invalid());
    }
}

/// The text of a name that is no list of labels.
pub(crate) fn escaped(bytes: &[u8]) -> Box<str> {
    let mut text = String::with_capacity(bytes.len());
    push_escaped(&mut text, bytes, false);
    text.into()
}

/// Whether a character stands for itself: not controls, nor what changes the order or the place of its neighbours on a terminal.
fn is_shown(char: char) -> bool {
    let is_format = matches!(char,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !char.is_control() && !is_format
}

/// Each byte as a backslash and three decimal digits (RFC 1035 section 5.1).
fn push_numbers(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        text.push('\\');
        text.extend([byte / 100, byte / 10 % 10, byte % 10].map(|digit| char::from(b'0' + digit)));
    }
}
