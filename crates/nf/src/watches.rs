//! Searches for names and header fields in the payloads of flows that are on their way.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use packetloom_names::{
    FieldWatch, Fields, Name, NameKind, Outcome, Values, Watch, begins_with_request, behind_request,
    for_each_leading_question, for_each_question, is_dns,
};
use packetloom_packet::batch::Parsed;
use packetloom_packet::{Batch, KeyBits, protocol};

use crate::flows::{OracleFlow, Seen, number_of_new};
use crate::oracle::OraclePacket;

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
    /// What it has, without what came before.
    pub(crate) fn alone<F: Follow>(&self, wanted: F::Wanted) -> Option<F::Found> {
        match F::start(wanted, &Self { begin: None, ..*self }) {
            Outcome::Found(found) => Some(found),
            Outcome::More(mut watch) => watch.take(),
            Outcome::NoName | Outcome::GaveUp(_) => None,
        }
    }
}

impl Payload<'_> {
    /// What is behind the request that it begins with, where all of that is there.
    pub(crate) fn behind_request(&self) -> Option<Self> {
        let is_request = self.protocol == protocol::TCP && begins_with_request(self.bytes);
        let rest = if is_request { behind_request(self.bytes) } else { None };
        rest.filter(|rest| !rest.is_empty()).map(|bytes| Self { bytes, ..*self })
    }

    /// Hands out all names that it has, without what came before.
    pub(crate) fn each_name(&self, mut take: impl FnMut(Name)) {
        let first = Progress::alone(self.alone::<Watch>(()));
        let kind = first.kind();
        first.found.into_iter().for_each(&mut take);
        self.each_later_name(&kind, take);
    }

    /// Hands out its names but for the one that was found first: those of further questions and messages of DNS where messages begin with it, and
    /// those of requests that are behind the first one.
    pub(crate) fn each_later_name(&self, first: &Progress<NameKind>, mut take: impl FnMut(Name)) {
        let (kind, is_segment) = (first.found, self.protocol == protocol::TCP);
        let is_dns = (is_segment || self.protocol == protocol::UDP) && is_dns(self.ports.0, self.ports.1);
        if is_dns && kind.is_none_or(|kind| kind == NameKind::DnsQuery) {
            if first.waits || self.bytes.is_empty() {
                return;
            }
            let mut left_out = usize::from(kind.is_some());
            let mut take = |name| match left_out {
                0 => take(name),
                _ => left_out -= 1,
            };
            match kind {
                // Behind whole messages the first bytes of another one may stand.
                Some(_) if first.begins && is_segment => for_each_leading_question(self.bytes, take),
                Some(_) if !first.begins => {}
                _ => drop(for_each_question(self.bytes, is_segment, &mut take)),
            }
            return;
        }
        // Of the first one a part of the head may be in packets before.
        let mut rest = match kind {
            Some(NameKind::HttpHost) => behind_request(self.bytes).map(|bytes| Self { bytes, ..*self }),
            _ => self.behind_request(),
        };
        while let Some(payload) = rest {
            payload.alone::<Watch>(()).into_iter().for_each(&mut take);
            rest = payload.behind_request();
        }
    }
}

/// What follows the payloads of a direction of a flow until it has found something.
pub(crate) trait Follow: Sized {
    type Wanted: Copy;
    type Found;
    fn start(wanted: Self::Wanted, payload: &Payload<'_>) -> Outcome<Self::Found, Self>;
    fn next(self, sequence: u32, bytes: &[u8]) -> Outcome<Self::Found, Self>;
    /// What was found, where there may be more.
    fn take(&mut self) -> Option<Self::Found> {
        None
    }
    /// Bytes of memory that it takes.
    fn bytes(&self) -> usize;
}

/// What a packet has of what is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress<T> {
    /// Whether it is of a message that begins with the packet.
    pub(crate) begins: bool,
    pub(crate) found: Option<T>,
    /// Whether the message goes on in packets to come.
    pub(crate) waits: bool,
}

impl<T> Progress<T> {
    /// What a packet has by itself.
    pub(crate) fn alone(found: Option<T>) -> Self {
        Self { begins: found.is_some(), found, waits: false }
    }
}

impl Progress<Name> {
    /// The same with the kind of the name alone.
    pub(crate) fn kind(&self) -> Progress<NameKind> {
        let found = self.found.as_ref().map(|name| name.kind);
        Progress { found, begins: self.begins, waits: self.waits }
    }
}

impl Follow for Watch {
    type Wanted = ();
    type Found = Name;

    fn start((): (), payload: &Payload<'_>) -> Outcome {
        let (source, destination) = payload.ports;
        match payload.protocol {
            protocol::UDP => Self::start_udp(source, destination, payload.bytes),
            protocol::TCP => {
                Self::start_tcp(source, destination, payload.begin, payload.sequence, payload.bytes)
            }
            _ => Outcome::NoName,
        }
    }

    fn next(self, sequence: u32, bytes: &[u8]) -> Outcome {
        self.next(sequence, bytes)
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }
}

impl Follow for FieldWatch {
    type Wanted = Fields;
    type Found = Values;

    fn start(fields: Fields, payload: &Payload<'_>) -> Outcome<Values, Self> {
        let Payload { ports, begin, sequence, bytes, .. } = *payload;
        match payload.protocol {
            protocol::UDP => Self::start_udp(fields, ports, bytes),
            protocol::TCP => Self::start_tcp(fields, ports, begin, sequence, bytes),
            _ => Outcome::NoName,
        }
    }

    fn next(self, sequence: u32, bytes: &[u8]) -> Outcome<Values, Self> {
        self.next(sequence, bytes)
    }

    fn take(&mut self) -> Option<Values> {
        Some(self.take()).filter(|values| !values.is_empty())
    }

    fn bytes(&self) -> usize {
        self.bytes()
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
#[derive(Debug)]
pub(crate) struct Watches<F: Follow = Watch> {
    wanted: F::Wanted,
    watches: HashMap<(u64, usize), F>,
    bytes: usize,
    /// Directions in which it took too much to find anything, and those that were not looked at, since there was no memory for it.
    pub(crate) gave_up: u64,
    pub(crate) no_room: u64,
}

impl Default for Watches {
    fn default() -> Self {
        Self::new(())
    }
}

impl<F: Follow> Watches<F> {
    pub(crate) fn new(wanted: F::Wanted) -> Self {
        Self { wanted, watches: HashMap::new(), bytes: 0, gave_up: 0, no_room: 0 }
    }

    /// Looks at a payload of a direction of a flow, in order: what it is then, and what was found.
    pub(crate) fn look(
        &mut self,
        flow: u64,
        way: usize,
        stage: Stage,
        payload: Payload<'_>,
    ) -> (Stage, Option<F::Found>) {
        let outcome = match stage {
            Stage::Over => return (Stage::Over, None),
            Stage::Watching => {
                // Not there where it was begun before a reload.
                let Some(watch) = self.remove(flow, way) else { return (Stage::Over, None) };
                watch.next(payload.sequence, payload.bytes)
            }
            Stage::Before if payload.bytes.is_empty() => return (Stage::Before, None),
            Stage::Before => F::start(self.wanted, &payload),
        };
        match outcome {
            Outcome::NoName => {}
            Outcome::GaveUp(_) => self.gave_up += 1,
            Outcome::Found(found) => return (Stage::Over, Some(found)),
            Outcome::More(mut watch) => {
                let found = watch.take();
                if self.bytes + watch.bytes() + ENTRY > MAX_BYTES {
                    self.no_room += 1;
                    return (Stage::Over, found);
                }
                self.bytes += watch.bytes() + ENTRY;
                if let Some(before) = self.watches.insert((flow, way), watch) {
                    self.bytes -= before.bytes() + ENTRY;
                }
                return (Stage::Watching, found);
            }
        }
        (Stage::Over, None)
    }

    fn remove(&mut self, flow: u64, way: usize) -> Option<F> {
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

/// What is kept of a flow whose payloads are followed.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Followed {
    /// [`DROPPED`]; how far each direction is, from [`WAYS`] on; its number, from [`NUMBER`] on.
    bits: u64,
    /// Of each direction of TCP the sequence number of its first byte, once its SYN was seen.
    begins: [u32; 2],
}

/// The flow is dropped.
const DROPPED: u64 = 1;
const WAYS: u32 = 1;
const NUMBER: u32 = 8;

/// How far a direction is, in three bits: whether there may be something, whether that is over, whether its beginning is known.
const WATCHING: u64 = 1;
const OVER: u64 = 2;
const HAS_BEGIN: u64 = 4;

impl Followed {
    /// Words of a flow of which nothing is kept in files: all but that it is dropped.
    pub(crate) const PASSING: &[(usize, u64)] = &[(0, !DROPPED), (1, !0)];

    /// Makes the words of a flow its own, whatever they are: that it is dropped only as long as flows are.
    pub(crate) fn adopt(words: &mut [u64], drops: bool) {
        if let [bits, begins] = words {
            (*bits, *begins) = (*bits & if drops { DROPPED } else { 0 }, 0);
        }
    }

    /// The number in the words of a flow.
    pub(crate) fn number_in(words: &[u64]) -> u64 {
        words[0] >> NUMBER
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.bits & DROPPED != 0
    }

    fn way(&self, way: usize) -> u64 {
        self.bits >> (WAYS + 3 * way as u32) & 7
    }

    fn set_way(&mut self, way: usize, bits: u64) {
        let shift = WAYS + 3 * way as u32;
        self.bits = self.bits & !(7 << shift) | bits << shift;
    }

    /// Its number, which it has from now on.
    pub(crate) fn number(&mut self) -> u64 {
        if self.bits >> NUMBER == 0 {
            self.bits |= number_of_new() << NUMBER;
        }
        self.bits >> NUMBER
    }

    /// Notes that the flow is dropped, and nothing else.
    pub(crate) fn drop_flow(&mut self) {
        *self = Self { bits: DROPPED, ..Self::zeroed() };
    }
}

impl<F: Follow> Watches<F> {
    /// What a packet completes, or has by itself.
    pub(crate) fn follow(&mut self, packet: &Seen<'_, '_>, followed: &mut Followed) -> Progress<F::Found> {
        let Some(alone) = payload_of(packet) else { return Progress::alone(None) };
        let wanted = self.wanted;
        let Some((sequence, is_first)) = sequence_of(packet) else {
            return Progress::alone(alone.alone::<F>(wanted));
        };
        let way = usize::from(!packet.from_a);
        let mut bits = followed.way(way);
        if is_first && (bits & HAS_BEGIN == 0 || followed.begins[way] != sequence) {
            // The first connection of these ports, or another one.
            followed.begins[way] = sequence;
            bits = HAS_BEGIN;
        }
        let stage = match bits {
            bits if bits & OVER != 0 => Stage::Over,
            bits if bits & WATCHING != 0 => Stage::Watching,
            _ => Stage::Before,
        };
        let begin = (bits & HAS_BEGIN != 0).then_some(followed.begins[way]);
        let begins = stage == Stage::Before && !alone.bytes.is_empty();
        let (stage, found) = match stage {
            Stage::Over => (stage, None),
            _ if alone.bytes.is_empty() => (stage, None),
            _ => self.look(followed.number(), way, stage, Payload { sequence, begin, ..alone }),
        };
        let is = match stage {
            Stage::Before => 0,
            Stage::Watching => WATCHING,
            Stage::Over => OVER,
        };
        followed.set_way(way, bits & HAS_BEGIN | is);
        match found {
            // What later requests and questions have, and connections whose beginning was not seen.
            None if stage == Stage::Over => {
                let later = Progress::alone(alone.alone::<F>(wanted));
                Progress { begins: begins || later.begins, ..later }
            }
            found => Progress { begins, found, waits: stage == Stage::Watching },
        }
    }

    /// Drops a flow from now on.
    pub(crate) fn drop_flow(&mut self, followed: &mut Followed) {
        self.end(followed.bits >> NUMBER);
        followed.drop_flow();
    }
}

/// The payload of a packet with ports.
pub(crate) fn payload_of<'a>(packet: &'a Seen<'_, '_>) -> Option<Payload<'a>> {
    let transport = packet.transport();
    if !transport.bits.contains(KeyBits::PORTS) || transport.bits.contains(KeyBits::LATER_FRAGMENT) {
        return None;
    }
    let (protocol, ports) = (transport.protocol, packet.numbers());
    let bytes = packet.payload().unwrap_or_default();
    Some(Payload { protocol, ports, sequence: 0, begin: None, bytes })
}

/// The same of a packet of a batch.
pub(crate) fn payload_in(batch: &Batch, index: usize) -> Option<Payload<'_>> {
    let (protocol, ports, bits) = match batch.parsed()[index] {
        Parsed::V4(at) => {
            let key = &batch.v4().keys[at as usize];
            (key.protocol, (key.source_port, key.destination_port), key.bits)
        }
        Parsed::V6(at) => {
            let key = &batch.v6().keys[at as usize];
            (key.protocol, (key.source_port, key.destination_port), key.bits)
        }
        Parsed::Rejected(_) => return None,
    };
    if !bits.contains(KeyBits::PORTS) || bits.contains(KeyBits::LATER_FRAGMENT) {
        return None;
    }
    let bytes = batch.payload(index).unwrap_or_default();
    Some(Payload { protocol, ports, sequence: 0, begin: None, bytes })
}

/// The slow form of [`Watches::follow`]. What is found in payloads is tested in `packetloom-names`.
pub(crate) struct OracleWatches<F: Follow = Watch> {
    watches: Watches<F>,
    lives: HashMap<u64, Life>,
    /// Lives of flows, and whether they are dropped.
    flows: HashMap<u64, bool>,
}

/// What is known of a life of a flow.
struct Life {
    stages: [Stage; 2],
    begins: [Option<u32>; 2],
}

/// The payload of a packet with ports.
pub(crate) fn payload_of_oracle(packet: &OraclePacket) -> Option<Payload<'_>> {
    let ip = packet.ip.as_ref().ok().filter(|ip| !ip.later_fragment)?;
    let bytes = packet.payload().unwrap_or_default();
    Some(Payload { protocol: ip.protocol, ports: ip.ports?, sequence: 0, begin: None, bytes })
}

impl<F: Follow> OracleWatches<F> {
    pub(crate) fn new(wanted: F::Wanted) -> Self {
        Self { watches: Watches::new(wanted), lives: HashMap::new(), flows: HashMap::new() }
    }

    /// Whether a life of a flow, which has begun, is dropped.
    pub(crate) fn is_dropped(&mut self, life: u64) -> bool {
        *self.flows.entry(life).or_default()
    }

    /// Drops the rest of a life of a flow.
    pub(crate) fn drop_flow(&mut self, life: u64) {
        self.end(life);
        self.flows.insert(life, true);
    }

    /// The words of a [`Followed`] that has no watch.
    pub(crate) fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.flows.get(&life).map(|&is_dropped| vec![u64::from(is_dropped), 0])
    }

    /// What [`Self::save`] has said.
    pub(crate) fn load(&mut self, life: u64, words: &[u64]) {
        self.flows.insert(life, words[0] % 2 == 1);
    }

    /// Directions in which it took too much to find anything, and those for which there was no memory.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.watches.gave_up, self.watches.no_room)
    }

    /// Forgets a life of a flow.
    pub(crate) fn end(&mut self, life: u64) {
        self.flows.remove(&life);
        self.lives.remove(&life);
        self.watches.end(life);
    }

    /// What a packet completes, or has by itself.
    pub(crate) fn follow(&mut self, packet: &OraclePacket, flow: &OracleFlow) -> Progress<F::Found> {
        let wanted = self.watches.wanted;
        let Some(mut payload) = payload_of_oracle(packet) else { return Progress::alone(None) };
        let alone = Progress::alone(payload.alone::<F>(wanted));
        let ip = packet.ip.as_ref().ok().filter(|ip| !ip.first_fragment);
        let Some(ip) = ip else { return alone };
        let new = || Life { stages: [Stage::Before; 2], begins: [None; 2] };
        let way = usize::from(!flow.from_a);
        if ip.protocol == 6 {
            let transport = packet.frame.get(packet.network + ip.header..).unwrap_or_default();
            let Some(number) = transport.get(4..8) else { return alone };
            payload.sequence = number.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        }
        let Life { stages, begins } = self.lives.entry(flow.life).or_insert_with(new);
        if ip.protocol == 6 && ip.tcp_flags.is_some_and(|flags| flags / 2 % 2 == 1) {
            payload.sequence = payload.sequence.wrapping_add(1);
            if begins[way] != Some(payload.sequence) {
                begins[way] = Some(payload.sequence);
                stages[way] = Stage::Before;
            }
        }
        payload.begin = begins[way];
        let begins = stages[way] == Stage::Before && !payload.bytes.is_empty();
        if stages[way] != Stage::Over && !payload.bytes.is_empty() {
            let (stage, found) = self.watches.look(flow.life, way, stages[way], payload);
            stages[way] = stage;
            if found.is_some() || stage != Stage::Over {
                return Progress { begins, found, waits: stage == Stage::Watching };
            }
        }
        match stages[way] {
            Stage::Over => Progress { begins: begins || alone.begins, ..alone },
            stage => Progress { begins, found: None, waits: stage == Stage::Watching },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A DNS message that asks for these names.
    fn message(names: &[&str]) -> Vec<u8> {
        let mut message = vec![0, 1, 1, 0, 0, names.len() as u8, 0, 0, 0, 0, 0, 0];
        for name in names {
            for label in name.split('.') {
                message.push(label.len() as u8);
                message.extend(label.bytes());
            }
            message.extend([0, 0, 1, 0, 1]);
        }
        message
    }

    /// The same as TCP has it.
    fn framed(names: &[&str]) -> Vec<u8> {
        let message = message(names);
        [&(message.len() as u16).to_be_bytes(), &message[..]].concat()
    }

    fn request(host: &str) -> Vec<u8> {
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
    }

    fn names(protocol: u8, port: u16, bytes: &[u8]) -> Vec<String> {
        let payload = Payload { protocol, ports: (40_000, port), sequence: 0, begin: None, bytes };
        let mut names = Vec::new();
        payload.each_name(|name| names.push(name.text.into_string()));
        names
    }

    #[test]
    fn all_names_of_a_packet_are_found() {
        let (tcp, udp) = (protocol::TCP, protocol::UDP);
        let two = framed(&["a.example", "b.example"]);
        let cases: [(u8, u16, Vec<u8>, &[&str]); 9] = [
            (udp, 53, message(&["a.example", "b.example"]), &["a.example", "b.example"]),
            (tcp, 53, two.clone(), &["a.example", "b.example"]),
            (tcp, 53, [&two[..], &framed(&["c.example"])].concat(), &["a.example", "b.example", "c.example"]),
            // Of another message its first byte is there, or a part of its name.
            (tcp, 53, [&two[..], &[0]].concat(), &["a.example", "b.example"]),
            (tcp, 53, [&two[..], &framed(&["c.example"])[..18]].concat(), &["a.example", "b.example"]),
            (tcp, 80, [request("a.example"), request("b.example")].concat(), &["a.example", "b.example"]),
            (tcp, 80, two, &[]),
            (protocol::SCTP, 53, message(&["a.example"]), &[]),
            (protocol::ICMP, 53, message(&["a.example"]), &[]),
        ];
        for (protocol, port, bytes, expected) in cases {
            assert_eq!(names(protocol, port, &bytes), expected, "{protocol} {port} {bytes:?}");
        }
    }
}
