//! Names in the payloads of flows, on their way and found.

use std::collections::HashMap;

use packetloom_names::{Name, NameKind as Found};
use packetloom_packet::NameKind;
use schemars::JsonSchema;
use serde::Serialize;

use crate::watches::{ENTRY, Payload, Stage, Watches};

/// Bytes that names take at most that are found: 256 MiB.
const NAMES: usize = 256 << 20;

/// What became of flows' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NameCounts {
    /// Flow records with a name.
    pub(super) found: u64,
    /// Directions of flows whose name took too much to find: segments missing, or no name in the first bytes.
    pub(super) gave_up: u64,
    /// Directions of flows that were not looked at, or whose name was not kept, since there was no memory for it.
    pub(super) no_room: u64,
}

impl NameCounts {
    pub(super) fn merge(&mut self, other: &Self) {
        self.found += other.found;
        self.gave_up += other.gave_up;
        self.no_room += other.no_room;
    }
}

/// Names of a worker's flows, by the numbers of these.
#[derive(Debug, Default)]
pub(super) struct Names {
    watches: Watches,
    names: HashMap<u64, (NameKind, Box<str>)>,
    /// Bytes of names.
    kept: usize,
    found: u64,
    no_room: u64,
}

impl Names {
    /// Looks at a payload of a direction of a flow, in order. Once one of them has a name the flow has it.
    ///
    /// Flows that come out of a file have no number of their own, and began before: they have no name.
    pub(super) fn look(&mut self, flow: u64, way: usize, stage: Stage, payload: Payload<'_>) -> Stage {
        if flow == 0 {
            return Stage::Over;
        }
        let (stage, name) = self.watches.look(flow, way, stage, payload);
        if let Some(name) = name {
            self.watches.end(flow);
            self.keep(flow, name);
        }
        stage
    }

    /// What was counted.
    pub(super) fn counts(&self) -> NameCounts {
        let Watches { gave_up, no_room, .. } = self.watches;
        NameCounts { found: self.found, gave_up, no_room: no_room + self.no_room }
    }

    fn keep(&mut self, flow: u64, name: Name) {
        let kind = match name.kind {
            Found::DnsQuery => NameKind::DnsQuery,
            Found::TlsServer | Found::QuicServer => NameKind::TlsServer,
            Found::HttpHost => NameKind::HttpHost,
        };
        let bytes = name.text.len() + ENTRY;
        if self.kept + bytes > NAMES {
            self.no_room += 1;
        } else if !self.names.contains_key(&flow) {
            self.kept += bytes;
            self.names.insert(flow, (kind, name.text));
        }
    }

    pub(super) fn has(&self, flow: u64) -> bool {
        self.names.contains_key(&flow)
    }

    /// Ends a flow; its name, if it has one.
    pub(super) fn end(&mut self, flow: u64) -> Option<(NameKind, Box<str>)> {
        self.watches.end(flow);
        let name = self.names.remove(&flow)?;
        self.kept -= name.1.len() + ENTRY;
        self.found += 1;
        Some(name)
    }
}
