//! Names of the packets of a batch, which are looked up together.

use packetloom_domains::Match;
use packetloom_names::Name;

use super::{Names, looked_up};

/// Names of packets, in their order.
#[derive(Debug, Default)]
pub(super) struct NamesInBatch {
    names: Vec<(u32, Name)>,
    /// Kept for the next batch.
    matches: Vec<Option<Match>>,
}

impl NamesInBatch {
    /// Adds the name of a packet.
    pub(super) fn push(&mut self, frame: u32, name: Name) {
        self.names.push((frame, name));
    }

    /// Hands out each packet's name and the line that decides about it, and has no names then.
    pub(super) fn decide(&mut self, names: &Names, mut take: impl FnMut(u32, Name, Option<Match>)) {
        let Self { names: all, matches } = self;
        let texts: Vec<_> = all.iter().map(|(_, name)| looked_up(name)).collect();
        matches.clear();
        matches.resize(texts.len(), None);
        names.set.lookup_batch(&texts, matches);
        for ((frame, name), &found) in all.drain(..).zip(&*matches) {
            take(frame, name, found);
        }
    }
}
