//! Real lists.

use packetloom_pattern::files::{Format, Signatures, display};

use crate::read;

fn file(format: Format, name: &str) -> Option<(String, Signatures)> {
    let path = packetloom_testing::corpus("strings")?.join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let read = read(format, text.as_bytes()).unwrap();
    assert_eq!(read.left_out, []);
    assert_eq!(read.signatures.len(), text.lines().count());
    Some((text, read))
}

#[test]
fn names() {
    for name in ["top5000.txt", "opendns-top10k.txt", "opendns-random10k.txt"] {
        let Some((text, read)) = file(Format::Auto, name) else { return };
        assert_eq!(read.format, Format::Lines);
        for (line, signature) in text.lines().zip(&read.signatures) {
            assert_eq!(read.patterns.get(signature.needs[0]).bytes, line.as_bytes());
            assert_eq!(signature.name, line);
        }
    }
}

#[test]
fn contents_of_rules() {
    let Some((text, read)) = file(Format::Hex, "snort3_longest_contents.hex") else { return };
    let mut rules = String::new();
    for (line, signature) in text.lines().zip(&read.signatures) {
        let bytes = read.patterns.get(signature.needs[0]).bytes;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digits, line.to_ascii_lowercase());
        rules += &format!("alert http (content:\"|{line}|\",fast_pattern; sid:{};)\n", signature.line);
    }
    // The same as rules, and as lines of text.
    let by_rules = crate::read(Format::Auto, rules.as_bytes()).unwrap();
    assert_eq!((by_rules.format, by_rules.left_out.len()), (Format::Rules, 0));
    assert_eq!(by_rules.patterns, read.patterns);
    let lines: String = read.patterns.iter().map(|pattern| display(pattern.bytes) + "\n").collect();
    assert_eq!(crate::read(Format::Lines, lines.as_bytes()).unwrap().patterns, read.patterns);
}
