//! Real patterns on bytes of real captures, against the crate `aho-corasick`.

use aho_corasick::{AhoCorasick, MatchKind};
use packetloom_pattern::{Match, Patterns};

use crate::find_all;

/// Bytes of a capture that are looked through.
const MOST: usize = 1 << 20;

fn check(patterns: &[Vec<u8>]) {
    let Some(corpus) = packetloom_testing::corpus("captures") else { return };
    let set: Patterns = patterns.iter().map(|bytes| &bytes[..]).collect();
    let other = AhoCorasick::builder().match_kind(MatchKind::Standard).build(patterns).unwrap();
    let mut files: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    assert!(files.len() > 50);
    let mut total = 0;
    // The bytes of a capture file in pieces such as payloads, headers and all.
    let texts: Vec<Vec<u8>> = files
        .iter()
        .flat_map(|path| {
            let bytes = std::fs::read(path).unwrap();
            bytes[..bytes.len().min(MOST)].chunks(1460).map(<[u8]>::to_vec).collect::<Vec<_>>()
        })
        .collect();
    let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
    let mut expected = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        expected.extend(other.find_overlapping_iter(*text).map(|found| Match {
            text: number as u32,
            end: found.end() as u32,
            pattern: found.pattern().as_u32(),
        }));
    }
    expected.sort_unstable();
    total += expected.len();
    assert!(total > 100, "{total}");
    assert_eq!(find_all(&set, &texts), expected);
}

fn lines(name: &str) -> Option<Vec<String>> {
    let path = packetloom_testing::corpus("strings")?.join(name);
    Some(std::fs::read_to_string(path).unwrap().lines().map(str::to_string).collect())
}

#[test]
fn names_in_captures() {
    let Some(names) = lines("top5000.txt") else { return };
    check(&names.into_iter().map(String::into_bytes).collect::<Vec<_>>());
}

#[test]
fn contents_of_rules_in_captures() {
    let Some(contents) = lines("snort3_longest_contents.hex") else { return };
    let byte = |line: &str, at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
    let contents = contents.iter().map(|line| (0..line.len()).step_by(2).map(|at| byte(line, at)).collect());
    check(&contents.collect::<Vec<Vec<u8>>>());
}
