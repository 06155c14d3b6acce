//! Random names in random sets.

use packetloom_domains::{Action, Builder, Entry, Priority, Reach};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::encode::{text, wire};
use crate::oracle::Oracle;

/// Labels that often meet, some of them that need escapes, and long ones.
fn label() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        20 => select(vec!["a", "b", "A", "B", "c", "com", "COM", "evil", "notevil"]).prop_map(|label| label.as_bytes().to_vec()),
        2 => select(vec!["a.b", "a\\", ".", "\\", "a.com", "\0", "@"]).prop_map(|label| label.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..64),
        1 => (select(b"aB-".to_vec()), 6usize..64).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

/// Labels of a name that is no longer than may be.
fn name(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(label(), 0..most).prop_map(|mut labels| {
        while wire(&labels).len() > 255 {
            labels.pop();
        }
        labels
    })
}

fn entry() -> impl Strategy<Value = (Vec<Vec<u8>>, Reach, Action, Priority)> {
    let reaches = [Reach::Name, Reach::Subdomains, Reach::All];
    let priorities = [
        Priority::Normal,
        Priority::Normal,
        Priority::Exception,
        Priority::Important,
        Priority::ImportantException,
    ];
    let actions = [Action::Block, Action::Allow];
    (
        prop_oneof![4 => name(4), 1 => name(12)],
        select(reaches.to_vec()),
        select(actions.to_vec()),
        select(priorities.to_vec()),
    )
}

/// A name of up to so many labels of one byte.
fn deep() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(select(b"ab".to_vec()).prop_map(|byte| vec![byte]), 100..128)
}

proptest! {
    #[test]
    fn a_set_tells_what_a_map_of_strings_tells(
        mut entries in vec(entry(), 0..40),
        below in vec((any::<proptest::sample::Index>(), vec(label(), 0..3)), 0..20),
        others in vec(prop_oneof![8 => name(7), 1 => deep()], 0..20),
        deep_entries in vec((deep(), entry()), 0..2),
        numbers in any::<u64>(),
        seed in any::<Option<u64>>(),
    ) {
        entries.extend(deep_entries.into_iter().map(|(labels, (_, reach, action, priority))| (labels, reach, action, priority)));
        let as_number = |at: usize| numbers >> (at % 64) & 1 == 1;
        let mut builder = seed.map_or_else(Builder::new, Builder::with_seed);
        let mut oracle = Oracle::default();
        for (number, (labels, reach, action, priority)) in (0..).zip(&entries) {
            let mut name = text(labels, as_number);
            if name.is_empty() || number % 2 == 1 {
                name.push('.');
            }
            let entry = Entry { name: &name, reach: *reach, action: *action, priority: *priority, number };
            builder.add(entry).expect("a name");
            oracle.add(labels, entry);
        }
        prop_assert_eq!(builder.len(), entries.len());
        let domains = builder.build();
        prop_assert_eq!(domains.len(), oracle.len());

        let mut names = others;
        names.extend(entries.iter().map(|(labels, ..)| labels.clone()));
        for (of, labels) in &below {
            if let Some((parent, ..)) = (!entries.is_empty()).then(|| &entries[of.index(entries.len())]) {
                names.push(labels.iter().chain(parent).cloned().collect());
            }
        }
        let expected: Vec<_> = names.iter().map(|labels| oracle.lookup(labels)).collect();
        for as_numbers in [false, true] {
            let texts: Vec<_> = names.iter().map(|labels| text(labels, |at| as_numbers && as_number(at))).collect();
            let dotted: Vec<_> = texts.iter().map(|text| format!("{text}.")).collect();
            for texts in [&texts, &dotted] {
                let texts: Vec<_> = texts.iter().map(String::as_str).collect();
                for (name, expected) in texts.iter().zip(&expected) {
                    prop_assert_eq!(domains.lookup(name), *expected, "{}", name);
                }
                let mut matches = vec![None; texts.len()];
                domains.lookup_batch(&texts, &mut matches);
                prop_assert_eq!(&matches, &expected);
            }
        }
        for (labels, expected) in names.iter().zip(&expected) {
            let wire = wire(labels);
            // What is too long is no name there.
            let expected = if wire.len() > 255 { None } else { *expected };
            prop_assert_eq!(domains.lookup_wire(&wire), expected, "{:?}", wire);
            prop_assert_eq!(domains.lookup_wire(&wire[..wire.len() - 1]), expected, "{:?}", wire);
        }
    }

    #[test]
    fn any_text_and_any_bytes_can_be_looked_up(texts in vec(".{0,80}", 0..80), bytes in vec(any::<u8>(), 0..300)) {
        let domains = packetloom_domains::Domains::build([Entry::block("com", 1), Entry::block("a.b", 2)]).expect("names");
        let mut matches = vec![None; texts.len()];
        let texts: Vec<_> = texts.iter().map(String::as_str).collect();
        domains.lookup_batch(&texts, &mut matches);
        for (text, found) in texts.iter().zip(matches) {
            prop_assert_eq!(domains.lookup(text), found);
        }
        let found = domains.lookup_wire(&bytes);
        prop_assert!(found.is_none_or(|found| found.number == 1 || found.number == 2));
    }
}
