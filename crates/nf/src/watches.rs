//! Searches for names in the payloads of flows that are on their way.

use std::collections::HashMap;

use packetloom_names::{Name, Outcome, Watch};
use packetloom_packet::{KeyBits, protocol};

use crate::flows::Seen;

/// Bytes that searches take at most, of a worker: 64 MiB.
const MAX_BYTES: usize = 64 << 20;

/// What a map takes for an entry, beside what the entry has on the heap.
pub(crate) const ENTRY: usize = 64;

/// The flag of TCP (RFC 9293 section 3.1).
pub(crate) const SYN: u8 = 2;

/// How far a direction of a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// There was no payload.
    Before,
    /// There may be a name.
    Watching,
    /// There is one, or there is none.
    Over,
}

/// A payload of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    pub(crate) protocol: u8,
    pub(crate) ports: (u16, u16),
    /// Of TCP, the sequence number of its first byte, and of the first byte of its direction, where that is known.
    pub(crate) sequence: u32,
    pub(crate) begin: Option<u32>,
    pub(crate) bytes: &'a [u8],
}

impl Payload<'_> {
    fn start(&self) -> Outcome {
        let (source, destination) = self.ports;
        match self.protocol {
            protocol::UDP => Watch::start_udp(source, destination, self.bytes),
            protocol::TCP => Watch::start_tcp(source, destination, self.begin, self.sequence, self.bytes),
            _ => Outcome::NoName,
        }
    }

    /// The name in it, without what came before.
    pub(crate) fn name(&self) -> Option<Name> {
        match (Self { begin: None, ..*self }).start() {
            Outcome::Found(name) => Some(name),
            Outcome::NoName | Outcome::More(_) | Outcome::GaveUp(_) => None,
        }
    }
}

/// Of a packet with ports that is whole, as far as headers say: of TCP the sequence number of the first byte of payload, and whether it is
/// that of its direction.
pub(crate) fn sequence_of(packet: &Seen<'_, '_>) -> Option<(u32, bool)> {
    let transport = packet.transport();
    if !transport.bits.contains(KeyBits::PORTS) || transport.bits.contains(KeyBits::FIRST_FRAGMENT) {
        return None;
    }
    if transport.protocol != protocol::TCP {
        return Some((0, false));
    }
    let (_, bytes, layers) = packet.frame();
    let sequence = bytes.get(layers.transport as usize..)?.get(4..)?.first_chunk()?;
    let is_first = transport.tcp_flags & SYN != 0;
    // RFC 9293 section 3.4: the SYN is before the first byte.
    Some((u32::from_be_bytes(*sequence).wrapping_add(u32::from(is_first)), is_first))
}

/// The searches of a worker, by the numbers of flows.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    watches: HashMap<(u64, usize), Watch>,
    bytes: usize,
    /// Directions whose name took too much to find, and those that were not looked at, since there was no memory for it.
    pub(crate) gave_up: u64,
    pub(crate) no_room: u64,
}

impl Watches {
    /// Looks at a payload of a direction of a flow, in order: what it is then, and the name that was found.
    pub(crate) fn look(
        &mut self,
        flow: u64,
        way: usize,
        stage: Stage,
        payload: Payload<'_>,
    ) -> (Stage, Option<Name>) {
        let outcome = match stage {
            Stage::Over => return (Stage::Over, None),
            Stage::Watching => {
                // Not there where it was begun before a reload.
                let Some(watch) = self.remove(flow, way) else { return (Stage::Over, None) };
                watch.next(payload.sequence, payload.bytes)
            }
            Stage::Before if payload.bytes.is_empty() => return (Stage::Before, None),
            Stage::Before => payload.start(),
        };
        match outcome {
            Outcome::NoName => {}
            Outcome::GaveUp(_) => self.gave_up += 1,
            Outcome::Found(name) => return (Stage::Over, Some(name)),
            Outcome::More(watch) if self.bytes + watch.bytes() + ENTRY > MAX_BYTES => self.no_room += 1,
            Outcome::More(watch) => {
                self.bytes += watch.bytes() + ENTRY;
                if let Some(before) = self.watches.insert((flow, way), watch) {
                    self.bytes -= before.bytes() + ENTRY;
                }
                return (Stage::Watching, None);
            }
        }
        (Stage::Over, None)
    }

    fn remove(&mut self, flow: u64, way: usize) -> Option<Watch> {
        let watch = self.watches.remove(&(flow, way))?;
        self.bytes -= watch.bytes() + ENTRY;
        Some(watch)
    }

    /// Ends the searches of a flow.
    pub(crate) fn end(&mut self, flow: u64) {
        for way in [0, 1] {
            drop(self.remove(flow, way));
        }
    }
}
