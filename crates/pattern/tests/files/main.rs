//! Files of patterns: what they give, and what a payload has by the patterns in it.

mod corpus;
mod lists;
mod matched;
mod rules;

use packetloom_pattern::Pattern;
use packetloom_pattern::files::{Error, Format, Options, Signatures};

/// Reads a file of a format.
pub(crate) fn read(format: Format, text: &[u8]) -> Result<Signatures, Error> {
    packetloom_pattern::files::read(text, &Options { format, ..Options::default() })
}

/// The literals of a file, which all may lie anywhere and are in order.
pub(crate) fn literals(format: Format, text: &[u8]) -> Vec<Vec<u8>> {
    let read = read(format, text).unwrap();
    assert_eq!(read.left_out, []);
    let needed = |number| {
        let pattern = read.patterns.get(number);
        assert_eq!(pattern, Pattern::new(pattern.bytes));
        pattern.bytes.to_vec()
    };
    read.signatures.iter().flat_map(|signature| signature.needs.iter().map(|&n| needed(n))).collect()
}

/// Line and reason of all that was left out.
pub(crate) fn left_out(read: &Signatures) -> Vec<(u32, String)> {
    read.left_out.iter().map(|left| (left.line, left.reason.to_string())).collect()
}
