//! What is found out about packets when they arrive: their flows, and what functions ask about them. Loops over a batch, compiled for each
//! instruction set.

use bytemuck::{Pod, Zeroable};
use packetloom_packet::batch::{Columns, Keys};
use packetloom_packet::{
    Connection, FlowKey, FrameRef, KeyBits, MatchKey4, MatchKey6, Timestamp, Verdict, VlanId,
};
use packetloom_simd::{Kernel, Simd};
use packetloom_table::states::{self, Hashed, Hasher, Key, NO_SLOT, Slot};

use super::{By, Role, Seen};

/// Words of an IPv4 flow's key: both addresses; ports and protocol, perhaps with the VLAN.
pub const V4: usize = 2;
/// Words of an IPv6 flow's key: the halves of both addresses; ports and protocol, perhaps with the VLAN.
pub const V6: usize = 5;

/// What a packet is to its flow, in three bits: its role in two, 0 for a member, and in the third one whether the lower endpoint
/// sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Relation(u8);

impl Relation {
    fn new(from_a: bool, role: Role) -> Self {
        let role = match role {
            Role::Member => 0,
            Role::Related => 1,
            Role::Invalid => 2,
            Role::Untracked => 3,
        };
        Self(u8::from(from_a) << 2 | role)
    }

    #[inline]
    pub(super) fn member(from_a: bool) -> Self {
        Self::new(from_a, Role::Member)
    }

    #[inline]
    fn is_from_a(self) -> bool {
        self.0 & 4 != 0
    }

    #[inline]
    pub(super) fn role(self) -> Role {
        match self.0 & 3 {
            0 => Role::Member,
            1 => Role::Related,
            2 => Role::Invalid,
            _ => Role::Untracked,
        }
    }
}

/// A packet, with all that most functions ask about it side by side.
// As three words, so that a loop can write them as vectors.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Lookup {
    pub(super) now: Timestamp,
    /// Its place among the batch's keys, and in the top bits what it is to its flow.
    place: u32,
    pub(super) frame: u32,
    bytes: u32,
    pub(super) slot: Slot,
}

/// Bits of a place among keys: batches have fewer packets.
const PLACE: u32 = 29;

impl Lookup {
    #[inline]
    fn at(&self) -> u32 {
        self.place & ((1 << PLACE) - 1)
    }

    /// Whether it passes so far.
    #[inline]
    pub(super) fn passes(&self, verdicts: &[Verdict]) -> bool {
        verdicts[self.frame as usize].is_pass()
    }

    #[inline]
    pub(super) fn relation(&self) -> Relation {
        Relation((self.place >> PLACE) as u8)
    }

    #[inline]
    pub(super) fn is_member(&self) -> bool {
        self.relation().role() == Role::Member
    }

    /// As a function sees it.
    #[inline]
    pub(super) fn seen<'a, 'b>(&self, is_v4: bool, columns: &'a mut Columns<'b>) -> Seen<'a, 'b> {
        let &Self { now, frame, bytes, .. } = self;
        let (from_a, role) = (self.relation().is_from_a(), self.relation().role());
        Seen { frame, now, bytes, from_a, role, at: self.at(), is_v4, columns }
    }
}

impl states::Packet for Lookup {
    #[inline]
    fn now(&self) -> u64 {
        self.now.as_nanos()
    }

    #[inline]
    fn slot(&mut self) -> &mut Slot {
        &mut self.slot
    }
}

/// What flows need of either version's match keys. Part of loops that are compiled for several instruction sets.
pub(super) trait FlowKeys<const W: usize> {
    /// The 5-tuple with the lower endpoint first, and whether that is the sender.
    fn five_tuple(&self) -> (Key<W>, bool);
    /// The same of a packet that has ports.
    fn five_tuple_with_ports(&self) -> (Key<W>, bool) {
        self.five_tuple()
    }
    /// What a source's packets have in common.
    fn source(&self) -> Key<W>;
    /// What an initiator's packets and those that answer it have in common, and whether the packet is the initiator's.
    fn initiator(&self) -> (Key<W>, bool);
    /// By connection: the flow and what the packet is to it; `whole` finds that out from the frame, where the key does not say
    /// enough.
    fn connection(&self, whole: impl FnOnce(packetloom_packet::Key) -> Connection) -> (Key<W>, Relation);
}

/// A flow's key in the table.
#[inline]
fn key_v4(flow: &FlowKey) -> Key<V4> {
    [flow.a[1] | flow.b[1] << 32, rest(flow)]
}

fn key_v6(flow: &FlowKey) -> Key<V6> {
    [flow.a[0], flow.a[1], flow.b[0], flow.b[1], rest(flow)]
}

/// A key with the VLAN of a packet, or 0 if it is in none, as part of it.
#[inline]
pub(super) fn with_vlan<const W: usize>(mut key: Key<W>, vlan: Option<VlanId>) -> Key<W> {
    key[W - 1] = states::extended(key[W - 1], vlan.map_or(0, VlanId::number).into());
    key
}

/// The VLAN that is part of a key with this last word.
pub(super) fn vlan_of(rest: u64) -> Option<VlanId> {
    VlanId::new(states::extra(rest)? as u16)
}

/// The words of a flow's key in an entry of a table without VLANs; those of IPv4 are the first two.
pub fn key_words(flow: &FlowKey) -> Key<V6> {
    match flow.version {
        4 => {
            let [ends, rest] = key_v4(flow);
            [ends, rest, 0, 0, 0]
        }
        _ => key_v6(flow),
    }
}

/// The flow of a key by 5-tuple.
#[inline]
pub(super) fn flow_v4([ends, rest]: Key<V4>) -> FlowKey {
    flow([0, ends & 0xffff_ffff], [0, ends >> 32], rest, 4)
}

pub(super) fn flow_v6([a0, a1, b0, b1, rest]: Key<V6>) -> FlowKey {
    flow([a0, a1], [b0, b1], rest, 6)
}

fn flow(a: [u64; 2], b: [u64; 2], rest: u64, version: u8) -> FlowKey {
    let (a_port, b_port, protocol) = (rest as u16, (rest >> 16) as u16, (rest >> 32) as u8);
    FlowKey { a, b, a_port, b_port, protocol, version, vlan: vlan_of(rest) }
}

/// Ports and protocol.
fn rest(flow: &FlowKey) -> u64 {
    u64::from(flow.a_port) | u64::from(flow.b_port) << 16 | u64::from(flow.protocol) << 32
}

impl FlowKeys<V4> for MatchKey4 {
    // What `FlowKey::from_v4` finds, with address and port as one number to compare.
    #[inline(always)]
    fn five_tuple(&self) -> (Key<V4>, bool) {
        let has_ports = if self.bits.contains(KeyBits::PORTS) { 0xffff } else { 0 };
        Self {
            source_port: self.source_port & has_ports,
            destination_port: self.destination_port & has_ports,
            ..*self
        }
        .five_tuple_with_ports()
    }

    #[inline(always)]
    fn five_tuple_with_ports(&self) -> (Key<V4>, bool) {
        let end = |address: u32, port: u16| u64::from(address) << 16 | u64::from(port);
        let source = end(self.source, self.source_port);
        let destination = end(self.destination, self.destination_port);
        let from_a = source <= destination;
        let (a, b) = if from_a { (source, destination) } else { (destination, source) };
        let ports = a & 0xffff | (b & 0xffff) << 16;
        ([a >> 16 | b >> 16 << 32, ports | u64::from(self.protocol) << 32], from_a)
    }

    #[inline(always)]
    fn source(&self) -> Key<V4> {
        [self.source.into(), 0]
    }

    #[inline(always)]
    fn initiator(&self) -> (Key<V4>, bool) {
        let is_from_source = By::Initiator.is_from_source(self.tcp_flags);
        ([if is_from_source { self.source } else { self.destination }.into(), 0], is_from_source)
    }

    #[inline(always)]
    fn connection(&self, whole: impl FnOnce(packetloom_packet::Key) -> Connection) -> (Key<V4>, Relation) {
        if let Some(role) = Connection::role_of(self.protocol, self.bits) {
            let (key, from_a) = self.five_tuple();
            return (key, Relation::new(from_a, role));
        }
        let Connection { flow, from_a, role } = whole(packetloom_packet::Key::V4(*self));
        (key_v4(&flow), Relation::new(from_a, role))
    }
}

impl FlowKeys<V6> for MatchKey6 {
    #[inline(always)]
    fn five_tuple(&self) -> (Key<V6>, bool) {
        let (flow, from_a) = FlowKey::from_v6(self);
        (key_v6(&flow), from_a)
    }

    #[inline(always)]
    fn source(&self) -> Key<V6> {
        [self.source[0], self.source[1], 0, 0, 0]
    }

    #[inline(always)]
    fn initiator(&self) -> (Key<V6>, bool) {
        let is_from_source = By::Initiator.is_from_source(self.tcp_flags);
        let address = if is_from_source { self.source } else { self.destination };
        ([address[0], address[1], 0, 0, 0], is_from_source)
    }

    #[inline(always)]
    fn connection(&self, whole: impl FnOnce(packetloom_packet::Key) -> Connection) -> (Key<V6>, Relation) {
        if let Some(role) = Connection::role_of(self.protocol, self.bits) {
            let (key, from_a) = self.five_tuple();
            return (key, Relation::new(from_a, role));
        }
        let Connection { flow, from_a, role } = whole(packetloom_packet::Key::V6(*self));
        (key_v6(&flow), Relation::new(from_a, role))
    }
}

/// Packets that arrive, and what is found out about them: loops that are compiled for each instruction set.
pub(super) struct ExtractFlowKeys<'a, K, F, const W: usize> {
    pub(super) keys: &'a Keys<K>,
    pub(super) frames: &'a [FrameRef],
    pub(super) hasher: Hasher,
    pub(super) flow: F,
    pub(super) flows: &'a mut [Hashed<W>],
    pub(super) relations: &'a mut [Relation],
    pub(super) lookups: &'a mut [Lookup],
}

impl<K, F: Fn(&K, u32) -> (Key<W>, Relation), const W: usize> Kernel for ExtractFlowKeys<'_, K, F, W> {
    type Output = ();

    // In loops of their own: for all together there are too few registers.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { keys, frames, hasher, flow, flows, relations, lookups } = self;
        let places = flows.iter_mut().zip(&mut *relations);
        for ((key, &frame), (hashed, relation)) in keys.keys.iter().zip(&keys.frames).zip(places) {
            let (key, own) = flow(key, frame);
            *hashed = hasher.hashed(simd, key);
            *relation = own;
        }
        let packets = keys.frames.iter().zip(&keys.bytes).zip(&*relations).zip(0..);
        let packets = bytemuck::cast_slice_mut::<_, [u64; 3]>(lookups).iter_mut().zip(packets);
        let words = |time: Timestamp, (((&frame, &bytes), &Relation(relation)), at): (_, u32)| {
            let place = at | u32::from(relation) << PLACE;
            // In this machine's order of bytes, as fields lie.
            [time.as_nanos(), bytemuck::cast([place, frame]), bytemuck::cast([bytes, NO_SLOT])]
        };
        // Mostly each frame has its key at its own place.
        if frames.len() == keys.keys.len() {
            for ((lookups, packet), frame) in packets.zip(frames) {
                *lookups = words(frame.time, packet);
            }
        } else {
            for (lookups, packet) in packets {
                *lookups = words(frames[*packet.0.0.0 as usize].time, packet);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Pod;
    use packetloom_packet::LinkType;
    use packetloom_simd::Isa;
    use packetloom_table::states::{KeyForm, States};
    use proptest::prelude::*;

    use super::*;

    /// Finds a packet's flow, and whether its first end sent it.
    type FlowBy<K, const W: usize> = fn(&K) -> (Key<W>, bool);

    /// What each instruction set finds about packets, beside what there is to be found about each by itself.
    fn agrees<K: FlowKeys<W> + Pod, const W: usize>(bytes: &[u8], all_frames: bool, seeds: [u64; 2]) {
        let keys: Vec<K> = bytes.chunks_exact(size_of::<K>()).map(bytemuck::pod_read_unaligned).collect();
        // Where not all frames are of this IP version, every third one is.
        let apart = if all_frames { 1 } else { 3 };
        let frames: Vec<_> = (0..keys.len() * apart)
            .map(|number| FrameRef {
                offset: 64 * number as u64,
                time: Timestamp::from_nanos(u64::MAX / 1000 * number as u64),
                len: 60,
                wire_len: 64,
                link: LinkType::ETHERNET,
                port: 0,
            })
            .collect();
        let bytes = (0..keys.len() as u32).map(|number| number.wrapping_mul(0x9e37_79b1)).collect();
        let numbers = (0..keys.len()).map(|number| (number * apart) as u32).collect();
        let keys = Keys { keys, frames: numbers, bytes };
        let states = States::<W>::new(KeyForm::Whole, 1, 0, 1, u64::MAX, states::WhenFull::Refuse, seeds);
        let flows: [FlowBy<K, W>; 4] = [
            |key| key.five_tuple(),
            |key| key.five_tuple_with_ports(),
            |key| (key.source(), true),
            |key| key.initiator(),
        ];
        for (isa, flow) in Isa::all_available().into_iter().flat_map(|isa| flows.map(|flow| (isa, flow))) {
            let none = Hashed { key: [0; W], hash: 0 };
            let (mut flows, mut relations) =
                (vec![none; keys.keys.len()], vec![Relation(0); keys.keys.len()]);
            let mut lookups = vec![Lookup::zeroed(); keys.keys.len()];
            isa.run(ExtractFlowKeys {
                keys: &keys,
                frames: &frames,
                hasher: states.hasher(),
                flow: |key: &K, _| {
                    let (key, from_a) = flow(key);
                    (key, Relation::member(from_a))
                },
                flows: &mut flows,
                relations: &mut relations,
                lookups: &mut lookups,
            });
            for (number, key) in keys.keys.iter().enumerate() {
                let ((key, from_a), frame) = (flow(key), keys.frames[number]);
                let Hashed { key: own, hash } = flows[number];
                assert_eq!((own, hash), (key, states.hash(&key)), "{isa:?} {number}");
                let packet = lookups[number];
                assert_eq!((packet.at(), packet.relation()), (number as u32, Relation::member(from_a)));
                assert_eq!(relations[number], packet.relation());
                assert_eq!((packet.frame, packet.bytes), (frame, keys.bytes[number]));
                assert_eq!((packet.now, packet.slot), (frames[frame as usize].time, NO_SLOT));
            }
        }
    }

    proptest! {
        #[test]
        fn arrivals_are_the_same_with_every_instruction_set(
            bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(0xff), any::<u8>()], 0..4000),
            all_frames: bool,
            seeds: [u64; 2],
        ) {
            agrees::<MatchKey4, V4>(&bytes, all_frames, seeds);
            agrees::<MatchKey6, V6>(&bytes, all_frames, seeds);
        }
    }
}
