//! Names in the payloads of flows, on their way and found.
//!
//! A direction is searched from its first payload on, over segments and datagrams. Where that begins with a request of HTTP or a message of DNS, each later
//! segment that begins with another one is searched, too. A server name of TLS or QUIC is the last name of a flow. Every datagram of DNS is searched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use packetloom_export::fields::NAME_MAX;
use packetloom_names::{
    Name, NameKind as Found, begins_with_request, behind_request, for_each_question, is_dns,
};
use packetloom_packet::{NAMES_MAX, NameKind, protocol};
use schemars::JsonSchema;
use serde::Serialize;

use super::OTHERS;
use crate::watches::{ENTRY, Payload, Stage, Watches};

/// Bytes that names take at most that are found: 256 MiB.
const NAMES: usize = 256 << 20;

/// A name of a flow.
pub(super) type FlowName = (NameKind, Box<str>);

/// What became of flows' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NameCounts {
    /// Flow records with a name.
    pub(super) found: u64,
    /// Times that a name took too much to find: segments missing, or no name in the first bytes.
    pub(super) gave_up: u64,
    /// Times that no name was looked for, or that a name was not kept, since there was no memory for it.
    pub(super) no_room: u64,
    /// Times that a name was found for which a record had no room beside those that it had: it has 16 at most.
    pub(super) left_out: u64,
}

impl NameCounts {
    pub(super) fn merge(&mut self, other: &Self) {
        self.found += other.found;
        self.gave_up += other.gave_up;
        self.no_room += other.no_room;
        self.left_out += other.left_out;
    }
}

/// How far the search in a direction of a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// There was no payload.
    Before,
    /// There may be a name in what came.
    Watching,
    /// The same, and another one in what begins with a later payload.
    WatchingAgain,
    /// There may be another one in what begins with the next payload.
    Later,
    /// There is none any more.
    Over,
    /// There is none any more in either direction.
    FlowOver,
}

/// Names of a worker's flows, by the numbers of these.
#[derive(Debug, Default)]
pub(super) struct Names {
    watches: Watches,
    known: Arc<KnownNames>,
    names: HashMap<u64, Vec<FlowName>>,
    /// Bytes of names.
    kept: usize,
    found: u64,
    no_room: u64,
    left_out: u64,
}

impl Names {
    /// None, of flows that begin; of others those that are known.
    pub(super) fn new(known: Arc<KnownNames>) -> Self {
        Self { known, ..Self::default() }
    }

    /// Looks at a payload of a direction of a flow, in order.
    pub(super) fn look(&mut self, flow: u64, way: usize, search: Search, payload: Payload<'_>) -> Search {
        if matches!(search, Search::Over | Search::FlowOver) {
            return search;
        }
        let is_tcp = payload.protocol == protocol::TCP;
        let is_dns =
            (is_tcp || payload.protocol == protocol::UDP) && is_dns(payload.ports.0, payload.ports.1);
        let is_watching = matches!(search, Search::Watching | Search::WatchingAgain);
        if is_dns && !is_watching && !payload.bytes.is_empty() {
            let has_messages = for_each_question(payload.bytes, is_tcp, |name| self.keep(flow, name));
            // What has no whole messages may begin anywhere in one.
            if has_messages || search == Search::Later {
                return Search::Later;
            }
        }
        let (mut search, mut payload) = (search, payload);
        loop {
            let (next, kind) = self.look_once(flow, way, search, payload);
            // One without a host may be followed by one that has it.
            let is_request = match kind {
                Some(kind) => kind == Found::HttpHost,
                None => {
                    is_tcp
                        && matches!(next, Search::Over | Search::Later)
                        && begins_with_request(payload.bytes)
                }
            };
            search = match next {
                Search::Over if is_request || is_dns && is_tcp => Search::Later,
                next => next,
            };
            let rest = if is_request { behind_request(payload.bytes) } else { None };
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { return search };
            let skipped = (payload.bytes.len() - rest.len()) as u32;
            payload = Payload { sequence: payload.sequence.wrapping_add(skipped), bytes: rest, ..payload };
        }
    }

    /// Looks for one name; its kind, if it is found.
    fn look_once(
        &mut self,
        flow: u64,
        way: usize,
        search: Search,
        payload: Payload<'_>,
    ) -> (Search, Option<Found>) {
        let (stage, begin) = match search {
            Search::Before => (Stage::Before, payload.begin),
            Search::Watching | Search::WatchingAgain => (Stage::Watching, None),
            Search::Later => (Stage::Before, None),
            Search::Over | Search::FlowOver => return (search, None),
        };
        let (stage, name) = self.watches.look(flow, way, stage, Payload { begin, ..payload });
        let kind = name.as_ref().map(|name| name.kind);
        if let Some(name) = name {
            self.keep(flow, name);
        }
        let next = match (stage, kind) {
            (_, Some(Found::TlsServer | Found::QuicServer)) => {
                self.watches.end(flow);
                Search::FlowOver
            }
            (_, Some(Found::HttpHost | Found::DnsQuery)) => Search::Later,
            (Stage::Watching, None) => match search {
                Search::Later | Search::WatchingAgain => Search::WatchingAgain,
                _ => Search::Watching,
            },
            (Stage::Before, None) => search,
            // What began like one may be followed by one.
            (Stage::Over, None) if payload.protocol == protocol::TCP && search != Search::Before => {
                Search::Later
            }
            (Stage::Over, None) => Search::Over,
        };
        (next, kind)
    }

    /// What was counted.
    pub(super) fn counts(&self) -> NameCounts {
        let Watches { gave_up, no_room, .. } = self.watches;
        NameCounts { found: self.found, gave_up, no_room: no_room + self.no_room, left_out: self.left_out }
    }

    fn keep(&mut self, flow: u64, name: Name) {
        let kind = match name.kind {
            Found::DnsQuery => NameKind::DnsQuery,
            Found::TlsServer | Found::QuicServer => NameKind::TlsServer,
            Found::HttpHost => NameKind::HttpHost,
        };
        self.claim(flow);
        let text = &name.text[..name.text.floor_char_boundary(NAME_MAX)];
        let names = self.names.get(&flow).map_or(&[][..], Vec::as_slice);
        if names.iter().any(|(other, known)| *other == kind && **known == *text) {
            return;
        }
        if names.len() == NAMES_MAX {
            self.left_out += 1;
        } else if self.kept + bytes_of(text) > NAMES {
            self.no_room += 1;
        } else {
            self.kept += bytes_of(text);
            // Mostly the only one.
            self.names.entry(flow).or_insert_with(|| Vec::with_capacity(1)).push((kind, text.into()));
        }
    }

    /// Takes what is known of a flow that began elsewhere.
    fn claim(&mut self, flow: u64) {
        if let Some(names) = self.known.take(flow) {
            self.kept += names.iter().map(|(_, text)| bytes_of(text)).sum::<usize>();
            self.names.insert(flow, names);
        }
    }

    /// The names of a flow as a text.
    pub(super) fn text(&self, flow: u64) -> Option<Box<str>> {
        self.names.get(&flow).map(|names| text_of(names)).or_else(|| self.known.text(flow))
    }

    /// Ends a flow; its names.
    pub(super) fn end(&mut self, flow: u64) -> Vec<FlowName> {
        self.watches.end(flow);
        self.claim(flow);
        let names = self.names.remove(&flow).unwrap_or_default();
        self.kept -= names.iter().map(|(_, text)| bytes_of(text)).sum::<usize>();
        self.found += u64::from(!names.is_empty());
        names
    }
}

/// What is known of the names of flows that began elsewhere, until the workers that have these flows take it.
#[derive(Debug, Default)]
pub(super) struct KnownNames(Mutex<HashMap<u64, Vec<FlowName>>>);

impl KnownNames {
    /// Takes what another meter kept of a flow, whatever that is.
    pub(super) fn add(&self, flow: u64, text: &str) {
        let names = names_of(text);
        if !names.is_empty() {
            self.lock().insert(flow, names);
        }
    }

    fn take(&self, flow: u64) -> Option<Vec<FlowName>> {
        if flow & OTHERS == 0 { None } else { self.lock().remove(&flow) }
    }

    fn text(&self, flow: u64) -> Option<Box<str>> {
        if flow & OTHERS == 0 { None } else { self.lock().get(&flow).map(|names| text_of(names)) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<FlowName>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What kinds are called in texts.
const KINDS: [(&str, NameKind); 3] =
    [("dns", NameKind::DnsQuery), ("tls", NameKind::TlsServer), ("http", NameKind::HttpHost)];

/// Names as a text: a line each, with its kind. Names have no ends of lines.
fn text_of(names: &[FlowName]) -> Box<str> {
    let kind = |kind: NameKind| KINDS.iter().find(|(_, known)| *known == kind).map_or("", |(name, _)| name);
    let lines: Vec<_> = names.iter().map(|(of, text)| format!("{} {text}", kind(*of))).collect();
    lines.join("\n").into()
}

/// What [`text_of`] made a text of, as far as it is one.
fn names_of(text: &str) -> Vec<FlowName> {
    let line = |line: &str| {
        let (kind, name) = line.split_once(' ')?;
        let (_, kind) = KINDS.into_iter().find(|(known, _)| *known == kind)?;
        let is_name = (1..=NAME_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
        is_name.then(|| (kind, Box::from(name)))
    };
    let mut names: Vec<FlowName> = Vec::new();
    for name in text.split('\n').filter_map(line).take(NAMES_MAX) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// What a name takes, with its part of a list and of a map.
fn bytes_of(text: &str) -> usize {
    text.len() + ENTRY
}
