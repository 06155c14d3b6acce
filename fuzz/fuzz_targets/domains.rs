//! Any names in a set, and any name looked up as text, in a batch and on the wire: no panic, and all ways tell the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packetloom_domains::{Action, Builder, Entry, Match, Priority, Reach};

const REACHES: [Reach; 3] = [Reach::Name, Reach::Subdomains, Reach::All];
const PRIORITIES: [Priority; 4] =
    [Priority::Normal, Priority::Exception, Priority::Important, Priority::ImportantException];

/// A name on the wire as text, if it is one.
fn text(mut wire: &[u8]) -> Option<String> {
    let mut text = String::new();
    while let [len @ 1..=63, rest @ ..] = wire {
        let (label, after) = rest.split_at_checked(usize::from(*len))?;
        label.iter().for_each(|byte| text += &format!("\\{byte:03}"));
        text.push('.');
        wire = after;
    }
    // Each byte is four characters, each length one.
    (wire.is_empty() && text.len() <= 4 * 254).then_some(text)
}

// The number of entries; each with a byte of what it says, one for its length, and its name; then names to look up, each with its length.
fuzz_target!(|input: &[u8]| {
    let [count, rest @ ..] = input else { return };
    let mut rest = rest;
    let mut next = || {
        let [kind, len, bytes @ ..] = rest else { return None };
        let (own, after) = bytes.split_at(usize::from(*len).min(bytes.len()));
        rest = after;
        Some((*kind, own))
    };
    let mut builder = Builder::with_seed(u64::from(*count));
    for number in 0..u32::from(*count % 64) {
        let Some((kind, name)) = next() else { break };
        let entry = Entry {
            name: &String::from_utf8_lossy(name),
            reach: REACHES[usize::from(kind) % 3],
            action: if kind & 4 == 0 { Action::Block } else { Action::Allow },
            priority: PRIORITIES[usize::from(kind >> 3) % 4],
            number,
        };
        let before = builder.len();
        let added = builder.add(entry).is_ok();
        assert_eq!(builder.len(), before + usize::from(added));
    }
    let entries = builder.len();
    let domains = builder.build();
    assert!(domains.len() <= entries);
    let mut names = Vec::new();
    while let Some((_, name)) = next() {
        let found = domains.lookup_wire(name);
        if let Some(text) = text(name) {
            let of_text: Option<Match> = domains.lookup(&text);
            // A text of more than a name may have is below what it ends with; on the wire it is none.
            assert!(found.is_none() || of_text == found, "{text}");
        }
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut matches = vec![None; names.len()];
    domains.lookup_batch(&names, &mut matches);
    for (name, found) in names.iter().zip(matches) {
        assert_eq!(domains.lookup(name), found, "{name}");
    }
});
