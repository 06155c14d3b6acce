//! Names of the packets of a batch, which are looked up together.

use packetloom_domains::Match;
use packetloom_names::{Name, NameKind};

use super::{Names, looked_up};

/// Names that are held before they are looked up, but for those of one packet: a batch may have a million, of a thousand bytes each.
const MANY: usize = 1 << 12;

/// Names of packets, in their order, those of a packet side by side.
#[derive(Debug, Default)]
pub(super) struct NamesInBatch {
    names: Vec<(u32, Name)>,
    /// Kept for the next batch: what was decided about the names, and those of a packet.
    matches: Vec<Option<Match>>,
    of_packet: Vec<(NameKind, Option<Match>)>,
}

impl NamesInBatch {
    /// Adds a name of a packet.
    pub(super) fn push(&mut self, frame: u32, name: Name) {
        self.names.push((frame, name));
    }

    /// Whether there are so many that they are to be decided before those of another packet come.
    pub(super) fn are_many(&self) -> bool {
        self.names.len() >= MANY
    }

    /// Hands out each packet, with the kinds of its names and what decides about them, and has no names then.
    pub(super) fn decide(&mut self, names: &Names, mut take: impl FnMut(u32, &[(NameKind, Option<Match>)])) {
        let Self { names: all, matches, of_packet } = self;
        let texts: Vec<_> = all.iter().map(|(_, name)| looked_up(name)).collect();
        matches.clear();
        matches.resize(texts.len(), None);
        names.set.lookup_batch(&texts, matches);
        let mut matches = &matches[..];
        for packet in all.chunk_by(|a, b| a.0 == b.0) {
            let (own, rest) = matches.split_at(packet.len());
            matches = rest;
            of_packet.clear();
            of_packet.extend(packet.iter().zip(own).map(|((_, name), &found)| (name.kind, found)));
            take(packet[0].0, of_packet);
        }
        all.clear();
    }
}
