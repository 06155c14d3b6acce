//! What is kept of a direction beside its counters.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};
use packetloom_packet::batch::Parsed;
use packetloom_packet::wire::ethernet;
use packetloom_packet::{Batch, Details, Key, KeyBits, Layers, LinkType, rewrite};

use super::names::{Names, Search};
use crate::flows::Seen;
use crate::watches::{Payload, sequence_of};

/// [`Details`] in six words.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Kept {
    lengths: [u32; 2],
    ttls: [u8; 2],
    class_of_service: u8,
    first_tcp_flags: u8,
    fragment_flags: u8,
    /// Which of the fields that may be absent are there.
    has: u8,
    vlan: u16,
    macs: [[u8; 6]; 2],
    icmp: [u8; 2],
    ingress: u16,
    egress: u16,
    /// How far the search for names is: [`WATCHING`], [`OVER`], [`HAS_BEGIN`], [`LATER`].
    names: u8,
    reserved: u8,
    /// Of TCP, the sequence number of the direction's first byte of payload, once its SYN was seen.
    begin: [u8; 4],
    fragments: u64,
}

// Kernels have words; those between lengths and fragments have the name of the first of them.
packetloom_memory::layout!(impl Kept { lengths: u64, ttls: [u64; DETAIL_WORDS], fragments: u64 });

/// Words that a device is told of a packet's details.
pub const DETAIL_WORDS: usize = (offset_of!(Kept, fragments) - offset_of!(Kept, ttls)) / 8;

/// Bits of the first of these words where fields begin.
pub(super) const CLASS_OF_SERVICE: usize = 8 * (offset_of!(Kept, class_of_service) - offset_of!(Kept, ttls));
pub(super) const FRAGMENT_FLAGS: usize = 8 * (offset_of!(Kept, fragment_flags) - offset_of!(Kept, ttls));

/// Bits that mean something in one run alone: what of a name is on its way.
pub(super) const PASSING: u64 = !0 << 16 & !(((OVER | LATER) as u64) << 16);

const WATCHING: u8 = 1;
const OVER: u8 = 2;
const HAS_BEGIN: u8 = 4;
const LATER: u8 = 8;

const HAS_MACS: u8 = 1;
const HAS_VLAN: u8 = 2;
const HAS_ICMP: u8 = 4;
const HAS_EGRESS: u8 = 8;

/// What an IP header says beside a packet's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IpHeader {
    ttl: u8,
    /// The two bits behind the DSCP.
    ecn: u8,
    fragment_flags: u8,
}

impl IpHeader {
    /// Of a packet with a key: its fixed header was captured.
    #[inline]
    fn of(header: &[u8], has_more: bool) -> Self {
        match header {
            // RFC 791.
            [first, tos, _, _, _, _, flags, _, ttl, ..] if first >> 4 == 4 => {
                Self { ttl: *ttl, ecn: tos & 3, fragment_flags: flags & 0x60 }
            }
            // RFC 8200: of the traffic class, the last bits stand in the second byte.
            [_, class, _, _, _, _, _, hop_limit, ..] => {
                let fragment_flags = if has_more { 0x20 } else { 0 };
                Self { ttl: *hop_limit, ecn: class >> 4 & 3, fragment_flags }
            }
            _ => Self { ttl: 0, ecn: 0, fragment_flags: 0 },
        }
    }
}

/// What details are taken from.
pub(super) trait Described {
    /// IP bytes.
    fn ip_bytes(&self) -> u32;

    /// As [`Seen::frame`].
    fn frame(&self) -> (LinkType, &[u8], Layers);

    /// TCP flags, and which fields of its key hold something.
    fn flags(&self) -> (u8, KeyBits);

    /// As [`Seen::numbers`].
    fn numbers(&self) -> (u16, u16);

    /// As [`Seen::ports`].
    fn ports(&self) -> (u16, Option<u16>);

    /// As [`Seen::dscp`].
    fn dscp(&self) -> u8;
}

impl Described for Seen<'_, '_> {
    #[inline]
    fn ip_bytes(&self) -> u32 {
        self.bytes
    }

    #[inline]
    fn frame(&self) -> (LinkType, &[u8], Layers) {
        self.frame()
    }

    #[inline]
    fn flags(&self) -> (u8, KeyBits) {
        let transport = self.transport();
        (transport.tcp_flags, transport.bits)
    }

    #[inline]
    fn numbers(&self) -> (u16, u16) {
        self.numbers()
    }

    #[inline]
    fn ports(&self) -> (u16, Option<u16>) {
        self.ports()
    }

    #[inline]
    fn dscp(&self) -> u8 {
        self.dscp().number()
    }
}

/// A packet of a parsed batch as it came.
struct InBatch<'a> {
    batch: &'a Batch,
    index: usize,
    layers: Layers,
    key: Key,
    ip_bytes: u32,
}

impl Described for InBatch<'_> {
    fn ip_bytes(&self) -> u32 {
        self.ip_bytes
    }

    fn frame(&self) -> (LinkType, &[u8], Layers) {
        (self.batch.frames()[self.index].link, self.batch.bytes(self.index), self.layers)
    }

    fn flags(&self) -> (u8, KeyBits) {
        match self.key {
            Key::V4(key) => (key.tcp_flags, key.bits),
            Key::V6(key) => (key.tcp_flags, key.bits),
        }
    }

    fn numbers(&self) -> (u16, u16) {
        match self.key {
            Key::V4(key) => (key.source_port, key.destination_port),
            Key::V6(key) => (key.source_port, key.destination_port),
        }
    }

    fn ports(&self) -> (u16, Option<u16>) {
        (self.batch.frames()[self.index].port, self.batch.egress().get(self.index).copied())
    }

    fn dscp(&self) -> u8 {
        let header = self.batch.bytes(self.index).get(self.layers.network as usize..);
        header.and_then(rewrite::dscp_of).unwrap_or_default().number()
    }
}

/// What a device is told of a packet's details: what its direction would have with this packet alone, of `Kept` the words between the first
/// and the last one, which are known there.
pub fn details_of(batch: &Batch, index: usize) -> Option<[u64; DETAIL_WORDS]> {
    let layers = batch.layers(index)?;
    let (key, ip_bytes) = match batch.parsed()[index] {
        Parsed::V4(at) => (Key::V4(batch.v4().keys[at as usize]), batch.v4().bytes[at as usize]),
        Parsed::V6(at) => (Key::V6(batch.v6().keys[at as usize]), batch.v6().bytes[at as usize]),
        Parsed::Rejected(_) => return None,
    };
    let mut kept = Kept::zeroed();
    kept.add(&InBatch { batch, index, layers, key, ip_bytes }, true);
    let [_, details @ .., _]: [u64; DETAIL_WORDS + 2] = bytemuck::cast(kept);
    Some(details)
}

impl Kept {
    /// Adds a packet, which may be the first one of its direction.
    #[inline]
    pub(super) fn add(&mut self, packet: &impl Described, is_first: bool) {
        let (_, bytes, layers) = packet.frame();
        let header = bytes.get(layers.network as usize..).unwrap_or_default();
        let (_, bits) = packet.flags();
        // Later fragments of IPv6 have the fragment header right before the rest, and the bit in its fourth byte (RFC 8200 section 4.5).
        let flags = || bytes.get((layers.transport as usize).checked_sub(5)?);
        let has_more = bits.contains(KeyBits::FIRST_FRAGMENT)
            || bits.contains(KeyBits::LATER_FRAGMENT) && flags().is_some_and(|byte| byte & 1 == 1);
        let ip = IpHeader::of(header, has_more);
        if is_first {
            self.begin(packet, ip);
        }
        let [shortest, longest] = &mut self.lengths;
        (*shortest, *longest) = ((*shortest).min(packet.ip_bytes()), (*longest).max(packet.ip_bytes()));
        let [lowest, highest] = &mut self.ttls;
        (*lowest, *highest) = ((*lowest).min(ip.ttl), (*highest).max(ip.ttl));
        self.fragment_flags |= ip.fragment_flags;
        let is_fragment = bits.intersects(KeyBits::FIRST_FRAGMENT.with(KeyBits::LATER_FRAGMENT));
        self.fragments += u64::from(is_fragment);
    }

    fn begin(&mut self, packet: &impl Described, ip: IpHeader) {
        let (link, bytes, _) = packet.frame();
        let is_ethernet = link == LinkType::ETHERNET;
        let macs = ethernet::addresses_of(bytes).filter(|_| is_ethernet);
        let vlan = ethernet::vlan_of(bytes).filter(|_| is_ethernet);
        let (first_tcp_flags, bits) = packet.flags();
        let is_icmp = bits.contains(KeyBits::ICMP);
        let (kind, code) = packet.numbers();
        let icmp = is_icmp.then_some([kind as u8, code as u8]);
        let (ingress, egress) = packet.ports();
        let has = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
        *self = Self {
            lengths: [packet.ip_bytes(); 2],
            ttls: [ip.ttl; 2],
            class_of_service: packet.dscp() << 2 | ip.ecn,
            first_tcp_flags,
            fragment_flags: 0,
            has: has(macs.is_some(), HAS_MACS)
                | has(vlan.is_some(), HAS_VLAN)
                | has(icmp.is_some(), HAS_ICMP)
                | has(egress.is_some(), HAS_EGRESS),
            vlan: vlan.unwrap_or(0),
            macs: macs.unwrap_or_default(),
            icmp: icmp.unwrap_or_default(),
            ingress,
            egress: egress.unwrap_or(0),
            names: self.names,
            reserved: 0,
            begin: self.begin,
            fragments: 0,
        };
    }

    /// Has names look at the payload of a packet of a direction of a flow. Whether that ended the search in both directions.
    #[inline]
    pub(super) fn look(&mut self, flow: u64, way: usize, packet: &Seen<'_, '_>, names: &mut Names) -> bool {
        self.names & OVER == 0 && self.look_at_payload(flow, way, packet, names) == Some(Search::FlowOver)
    }

    fn look_at_payload(
        &mut self,
        flow: u64,
        way: usize,
        packet: &Seen<'_, '_>,
        names: &mut Names,
    ) -> Option<Search> {
        let (sequence, is_first) = sequence_of(packet)?;
        if is_first {
            self.begin = sequence.to_ne_bytes();
            self.names |= HAS_BEGIN;
        }
        let bytes = packet.payload()?;
        let search = match self.names {
            bits if bits & (WATCHING | LATER) == WATCHING | LATER => Search::WatchingAgain,
            bits if bits & WATCHING != 0 => Search::Watching,
            bits if bits & LATER != 0 => Search::Later,
            _ => Search::Before,
        };
        let payload = Payload {
            protocol: packet.transport().protocol,
            ports: packet.numbers(),
            sequence,
            begin: (self.names & HAS_BEGIN != 0).then(|| u32::from_ne_bytes(self.begin)),
            bytes,
        };
        let search = names.look(flow, way, search, payload);
        let is = match search {
            Search::Before => 0,
            Search::Watching => WATCHING,
            Search::WatchingAgain => WATCHING | LATER,
            Search::Later => LATER,
            Search::Over | Search::FlowOver => OVER,
        };
        self.names = self.names & HAS_BEGIN | is;
        Some(search)
    }

    /// Makes what another meter kept its own, so that counting on never overflows.
    pub(super) fn adopt(&mut self, most: u64) {
        self.fragments = self.fragments.min(most);
        self.names &= OVER | LATER | WATCHING | HAS_BEGIN;
    }

    /// Ends the search.
    pub(super) fn stop_looking(&mut self) {
        self.names |= OVER;
    }

    /// Whether names may know something of it.
    pub(super) fn has_looked(&self) -> bool {
        self.names & (WATCHING | OVER | LATER) != 0
    }

    pub(super) fn details(&self) -> Details {
        let has = |bit: u8| self.has & bit != 0;
        Details {
            lengths: self.lengths,
            ttls: self.ttls,
            class_of_service: self.class_of_service,
            first_tcp_flags: self.first_tcp_flags,
            fragment_flags: self.fragment_flags,
            fragments: self.fragments,
            icmp: has(HAS_ICMP).then_some((self.icmp[0], self.icmp[1])),
            vlan: has(HAS_VLAN).then_some(self.vlan),
            macs: has(HAS_MACS).then_some(self.macs),
            ingress: self.ingress,
            egress: has(HAS_EGRESS).then_some(self.egress),
        }
    }
}
