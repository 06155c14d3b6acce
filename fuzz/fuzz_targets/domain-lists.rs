//! Any bytes as a list in any format: no panic, and each line is an entry, passed over or refused; what was added is found.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_domains::Builder;
use packetloom_domains::formats::{Format, ReadOptions};

// A byte that chooses the format, then the list.
fuzz_target!(|input: &[u8]| {
    let [format, list @ ..] = input else { return };
    let format = Format::ALL.get(usize::from(*format) % (Format::ALL.len() + 1)).copied();
    let options = ReadOptions { format, ..ReadOptions::default() };
    let mut builder = Builder::with_seed(0);
    let report = builder.read(list, &options, |line| line).expect("a slice can be read");
    assert!(format.is_none_or(|format| format == report.format));
    assert_eq!(report.entries, builder.len());
    assert_eq!(report.refused.len(), report.refused_count());
    assert!(report.refused.is_sorted_by_key(|refused| refused.line));
    assert!(report.refused.iter().all(|refused| (1..=report.lines).contains(&refused.line)));
    assert!(report.lines as usize <= list.len());
    let domains = builder.build();
    assert!(domains.len() <= report.entries && domains.is_empty() == (report.entries == 0));
    // As names, too.
    for line in list.split(|&byte| byte == b'\n') {
        if let Some(found) = domains.lookup(&String::from_utf8_lossy(line)) {
            assert!((1..=report.lines).contains(&found.number));
        }
    }
});
