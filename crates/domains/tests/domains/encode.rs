//! Names by labels, as text and as on the wire.

/// A label of any bytes in presentation form; `as_numbers` says of which places numbers are written.
fn push_label(text: &mut String, label: &[u8], as_number: impl Fn(usize) -> bool) {
    for (at, &byte) in label.iter().enumerate() {
        match byte {
            b'!'..=b'~' if !as_number(at) => {
                if matches!(byte, b'.' | b'\\') {
                    text.push('\\');
                }
                text.push(byte.into());
            }
            _ => text.push_str(&format!("\\{byte:03}")),
        }
    }
}

/// A name in presentation form, without the dot at the end.
pub(crate) fn text(labels: &[Vec<u8>], as_number: impl Fn(usize) -> bool) -> String {
    let mut text = String::new();
    for (at, label) in labels.iter().enumerate() {
        if at > 0 {
            text.push('.');
        }
        push_label(&mut text, label, &as_number);
    }
    text
}

/// A name on the wire, with the root.
pub(crate) fn wire(labels: &[Vec<u8>]) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in labels {
        wire.push(u8::try_from(label.len()).expect("a label"));
        wire.extend(label);
    }
    wire.push(0);
    wire
}
