//! From the patterns of a packet to what is said of it.

use std::sync::Arc;

use packetloom_pattern::Match;

use super::{List, Named, StringsReport};
use crate::Logged;

/// Judges packets by the patterns in them, and counts.
pub(super) struct Judge {
    pub(super) list: Arc<List>,
    pub(super) report: StringsReport,
    /// Packets of the batch that are handed out.
    pub(super) logged: Vec<Logged>,
    /// What a packet has, and room to find it out.
    signatures: Vec<u32>,
    room: Vec<u32>,
}

impl Judge {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self {
            report: StringsReport::new(Arc::clone(&list)),
            list,
            logged: Vec::new(),
            signatures: Vec::new(),
            room: Vec::new(),
        }
    }

    /// Whether a packet with these patterns has a signature. Of what lies in a stream
    /// those count alone of which it brought one of `new`, which are sorted.
    pub(super) fn matches(&mut self, frame: u32, patterns: &[u32], new: Option<&[u32]>) -> bool {
        let Self { list, signatures, room, .. } = self;
        signatures.clear();
        list.signatures.matched(patterns, signatures, room);
        if let Some(new) = new {
            let needs = |signature: &u32| &list.signature(*signature).needs;
            signatures.retain(|signature| {
                needs(signature).iter().any(|pattern| new.binary_search(pattern).is_ok())
            });
        }
        self.tell(frame)
    }

    /// The same of a packet with several texts, by what each of them has, and none of what is in a stream.
    pub(super) fn matches_in_texts(
        &mut self,
        frame: u32,
        matches: &[Match],
        patterns: &mut Vec<u32>,
    ) -> bool {
        let Self { list, signatures, room, .. } = self;
        signatures.clear();
        for of_text in matches.chunk_by(|a, b| a.text == b.text) {
            patterns.clear();
            patterns.extend(of_text.iter().map(|found| found.pattern));
            list.signatures.matched(patterns, signatures, room);
        }
        signatures.sort_unstable();
        signatures.dedup();
        self.tell(frame)
    }

    /// Counts a packet with the signatures that it has, if any.
    fn tell(&mut self, frame: u32) -> bool {
        let Self { list, report, logged, signatures, .. } = self;
        if signatures.is_empty() {
            return false;
        }
        report.counts.matched += 1;
        let named = match list.settings.named {
            Named::All => &signatures[..],
            Named::First => &signatures[..1],
            Named::Any => &[],
        };
        for &signature in named {
            report.by_signature[signature as usize] += 1;
            if list.is_handed_out[signature as usize] {
                logged.push(Logged { frame, rule: signature });
            }
        }
        true
    }
}
