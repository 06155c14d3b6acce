//! The slow, obvious way: a map of owned strings, asked for the name and each of its ancestors.

use std::collections::HashMap;

use packetloom_domains::{Action, Entry, Match, Priority, Reach};

/// Entries by the labels of their names, in lower case, each behind a slash.
#[derive(Default)]
pub(crate) struct Oracle(HashMap<String, Vec<(Reach, Action, Priority, u32)>>);

/// Labels as a key: what is no lower-case letter, digit or hyphen is a number.
fn key(labels: &[Vec<u8>]) -> String {
    let mut key = String::new();
    for label in labels {
        key.push('/');
        for byte in label.to_ascii_lowercase() {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' => key.push(byte.into()),
                _ => key += &format!("<{byte}>"),
            }
        }
    }
    key
}

impl Oracle {
    pub(crate) fn add(&mut self, labels: &[Vec<u8>], entry: Entry<'_>) {
        let entry = (entry.reach, entry.action, entry.priority, entry.number);
        self.0.entry(key(labels)).or_default().push(entry);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn lookup(&self, labels: &[Vec<u8>]) -> Option<Match> {
        let mut best = None;
        for dropped in 0..=labels.len() {
            let length = labels.len() - dropped;
            let matching = self.0.get(&key(&labels[dropped..])).into_iter().flatten().filter(
                |(reach, ..)| match reach {
                    Reach::Name => dropped == 0,
                    Reach::Subdomains => dropped > 0,
                    Reach::All => true,
                },
            );
            for &(reach, action, priority, number) in matching {
                let rank = (priority, length, reach == Reach::Name, action == Action::Allow);
                let found = Match {
                    number,
                    labels: u8::try_from(length).expect("few labels"),
                    exact: dropped == 0,
                    action,
                };
                if best.is_none_or(|(other, _)| rank > other) {
                    best = Some((rank, found));
                }
            }
        }
        best.map(|(_, found)| found)
    }
}
