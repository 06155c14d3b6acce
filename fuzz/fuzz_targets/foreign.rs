//! Any bytes as rules in a format of others: no panic; and what is written from the rules, in any format, is read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_classify::Action;
use packetloom_classify::formats::{Format, FragmentsAs, Options, WriteOptions, read_rules, write_rules};

// A byte for the format, one for what to do with the unsupported, one for the format to write; then the text.
fuzz_target!(|input: &[u8]| {
    let [from, skip, to, text @ ..] = input else { return };
    let formats: Vec<Format> = Format::all().collect();
    let [from, to] = [from, to].map(|byte| formats[usize::from(*byte) % formats.len()]);
    let skip_unsupported = skip % 2 == 1;
    let options = Options { format: Some(from), skip_unsupported, ..Options::default() };
    let Ok(reading) = read_rules("text", &mut &*text, &options) else { return };
    let mut rules = reading.rules.rules;
    // A few lines can become a million rules: what is done with those takes longer than a fuzzer waits.
    if rules.len() > 20_000 {
        return;
    }
    for rule in &mut rules {
        rule.action.get_or_insert(Action::Deny);
    }
    let mut written = Vec::new();
    let fragments = if skip_unsupported { FragmentsAs::Ignored } else { FragmentsAs::Exact };
    let options =
        WriteOptions { default: reading.default, skip_unsupported, conditions_only: true, fragments };
    if write_rules(&rules, to, &options, &mut written).is_err() {
        return;
    }
    let options = Options { format: Some(to), ..Options::default() };
    if let Err(error) = read_rules("again", &mut &*written, &options) {
        // A file without a rule is one of no list.
        assert!(rules.is_empty() || skip_unsupported, "{error}\n{}", String::from_utf8_lossy(&written));
    }
});
