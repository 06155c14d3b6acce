//! Any bytes as a file of patterns, in every format: no panic; what is shown of a pattern reads as the same; signatures are those that
//! need what is there; and a matcher finds in the rest of the bytes what the slow form finds, also one that was written and read. One that was
//! damaged meanwhile is refused, or finds nothing that is not there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_pattern::files::{BUFFERS, Format, Options, Places, display, read};
use packetloom_pattern::{Matcher, Patterns, Report, Scratch, oracle};
use packetloom_simd::Isa;

/// Bytes that are looked through, and patterns that are looked for: the slow form compares each with each.
const MAX_TEXT: usize = 4096;
const MAX_PATTERNS: usize = 1000;

/// Writes a matcher, has bytes of it replaced by those of a text, and reads it again.
fn damage(matcher: &Matcher, patterns: &Patterns, text: &[u8]) {
    const HEAD: usize = 8 + 32;
    let mut bytes = Vec::new();
    matcher.write_to(&mut bytes).expect("memory");
    let again =
        Matcher::read_from(patterns.clone(), Isa::detect(), &mut &bytes[..]).expect("what was written");
    let found = |matcher: &Matcher| {
        let mut found = Vec::new();
        matcher.find(&[text], Report::All, &mut Scratch::default(), &mut found);
        found.sort_unstable();
        found
    };
    let all = found(matcher);
    assert_eq!(found(&again), all);
    let end = bytes.len() - 4;
    for place in text.chunks_exact(4).take(16) {
        let at = usize::from(u16::from_le_bytes([place[0], place[1]])) * usize::from(place[2]) % (end - HEAD);
        bytes[HEAD + at] = place[3];
    }
    let sum = crc32fast::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum.to_le_bytes());
    if let Ok(damaged) = Matcher::read_from(patterns.clone(), Isa::detect(), &mut &bytes[..]) {
        assert!(found(&damaged).iter().all(|found| all.binary_search(found).is_ok()));
    }
}

// A byte that tells whether rules are taken by their fast patterns, and of which field, with the payload or not, the file, two NULs, the payload.
fuzz_target!(|input: &[u8]| {
    let [choice, rest @ ..] = input else { return };
    let by_fast_pattern = choice % 2 == 1;
    let field = BUFFERS.get(usize::from(choice / 4)).and_then(|&(name, _)| Places::field(name.as_bytes()));
    let places = field.map(|field| if choice % 4 > 1 { field.and(Places::PAYLOAD) } else { field });
    let end = rest.windows(2).position(|pair| pair == [0, 0]).unwrap_or(rest.len());
    let text = rest.get(end + 2..).unwrap_or_default();
    let text = &text[..text.len().min(MAX_TEXT)];
    for format in Format::ALL {
        let Ok(read_file) =
            read(&rest[..end], &Options { format, by_fast_pattern, places, ..Options::default() })
        else {
            continue;
        };
        for pattern in read_file.patterns.iter() {
            let line = display(pattern.bytes);
            let again = read(line.as_bytes(), &Options { format: Format::Lines, ..Options::default() });
            let again = again.expect("a pattern that is shown can be read");
            assert_eq!(again.patterns.get(0).bytes, pattern.bytes, "{line}");
        }
        if format == Format::Auto || read_file.patterns.len() > MAX_PATTERNS {
            continue;
        }
        let mut found = Vec::new();
        let matcher = Matcher::new(read_file.patterns.clone());
        matcher.find(&[text], Report::All, &mut Scratch::default(), &mut found);
        found.sort_unstable();
        assert_eq!(found, oracle::matches(&read_file.patterns, text, 0));
        damage(&matcher, &read_file.patterns, text);

        let mut found: Vec<_> = found.iter().map(|found| found.pattern).collect();
        found.sort_unstable();
        found.dedup();
        let mut matched = Vec::new();
        read_file.matched(&found, Places::ALL, &mut matched, &mut Vec::new());
        let holds = |number: &u32| {
            let signature = &read_file.signatures[*number as usize];
            signature.needs.iter().all(|pattern| found.contains(pattern))
                && !signature.excludes.iter().any(|pattern| found.contains(pattern))
        };
        assert_eq!(matched, (0..read_file.signatures.len() as u32).filter(holds).collect::<Vec<_>>());
    }
});
