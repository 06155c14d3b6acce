//! A worker's tables: keys and hashes of a batch first, then its lookups, with their cache misses started together.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_packet::batch::{Columns, Keys};
use packetloom_packet::key::join;
use packetloom_packet::{
    Batch, DropReason, FlowKey, FrameRef, KeyBits, MatchKey4, MatchKey6, Timestamp, Verdict,
};
use packetloom_table::states::{self, Counts, Entry, Hashed, Key, NO_SLOT, Slot, StateAt, States};

use super::{By, Definition, FlowName, Seen, WhenFull};

/// Words of a flow's key.
pub(super) const V4: usize = 2;
pub(super) const V6: usize = 5;

/// Flows of one definition, as one worker knows them.
#[derive(Debug)]
pub struct Flows {
    by: By,
    when_full: WhenFull,
    v4: Family<V4>,
    v6: Family<V6>,
}

/// Flows of an IP version, and those of the batch that is being judged.
#[derive(Debug)]
struct Family<const W: usize> {
    states: States<W>,
    /// For each of the batch's keys its flow, and whether the lower endpoint sent it.
    flows: Vec<Hashed<W>>,
    from_a: Vec<bool>,
    /// The packets that have an entry, in order.
    touched: Vec<Touched>,
    /// Frames of those for which there was no room.
    refused: Vec<u32>,
}

/// A packet that passed when the first function looked, with all that most functions ask about it side by side.
#[derive(Clone, Copy, Debug)]
struct Touched {
    now: Timestamp,
    /// Its place among the batch's keys.
    at: u32,
    frame: u32,
    bytes: u32,
    slot: Slot,
    from_a: bool,
}

impl Touched {
    const NONE: Self =
        Self { now: Timestamp::from_nanos(0), at: 0, frame: 0, bytes: 0, slot: NO_SLOT, from_a: false };
}

impl states::Packet for Touched {
    #[inline]
    fn flow(&self) -> usize {
        self.at as usize
    }

    #[inline]
    fn now(&self) -> u64 {
        self.now.as_nanos()
    }

    #[inline]
    fn slot(&mut self) -> &mut Slot {
        &mut self.slot
    }
}

/// What flows need of either version's match keys.
trait FlowOf<const W: usize> {
    /// The 5-tuple with the lower endpoint first, and whether that is the sender.
    fn five_tuple(&self) -> (Key<W>, bool);
    fn source(&self) -> Key<W>;
}

impl FlowOf<V4> for MatchKey4 {
    // What `FlowKey::from_v4` finds, with address and port as one number to compare.
    #[inline]
    fn five_tuple(&self) -> (Key<V4>, bool) {
        let has_ports = if self.bits.contains(KeyBits::PORTS) { 0xffff } else { 0 };
        let end = |address: u32, port: u16| u64::from(address) << 16 | u64::from(port & has_ports);
        let source = end(self.source, self.source_port);
        let destination = end(self.destination, self.destination_port);
        let from_a = source <= destination;
        let (a, b) = if from_a { (source, destination) } else { (destination, source) };
        let ports = a & 0xffff | (b & 0xffff) << 16;
        ([a >> 16 | b >> 16 << 32, ports | u64::from(self.protocol) << 32], from_a)
    }

    #[inline]
    fn source(&self) -> Key<V4> {
        [self.source.into(), 0]
    }
}

impl FlowOf<V6> for MatchKey6 {
    #[inline]
    fn five_tuple(&self) -> (Key<V6>, bool) {
        let (flow, from_a) = FlowKey::from_v6(self);
        let ports = u64::from(flow.a_port) | u64::from(flow.b_port) << 16;
        let [a, b] = [flow.a, flow.b];
        ([a[0], a[1], b[0], b[1], ports | u64::from(flow.protocol) << 32], from_a)
    }

    #[inline]
    fn source(&self) -> Key<V6> {
        [self.source[0], self.source[1], 0, 0, 0]
    }
}

impl<const W: usize> Family<W> {
    fn new(definition: &Definition, workers: usize, batch: usize, words: usize, seeds: [u64; 2]) -> Self {
        let timeout = definition.timeout.limit().unwrap_or(u64::MAX);
        let when_full = match definition.when_full {
            WhenFull::EvictOldest => states::WhenFull::Evict,
            WhenFull::DropNew | WhenFull::PassNew => states::WhenFull::Refuse,
        };
        let share = definition.max_flows.div_ceil(workers.max(1));
        Self {
            states: States::new(share, batch, words, timeout, when_full, seeds),
            flows: Vec::new(),
            from_a: Vec::new(),
            touched: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn arrive<K: FlowOf<W>>(&mut self, by: By, keys: &Keys<K>) {
        self.flows.clear();
        self.from_a.clear();
        self.touched.clear();
        match by {
            By::FiveTuple => self.arrive_by(keys, K::five_tuple),
            By::Source => self.arrive_by(keys, |key| (key.source(), true)),
        }
    }

    fn arrive_by<K>(&mut self, keys: &Keys<K>, flow: impl Fn(&K) -> (Key<W>, bool)) {
        let Self { states, flows, from_a, .. } = self;
        from_a.resize(keys.keys.len(), true);
        flows.extend(keys.keys.iter().zip(from_a).map(|(key, is_from_a)| {
            let (key, from_a) = flow(key);
            *is_from_a = from_a;
            let hash = states.hash(&key);
            states.prefetch_tags(hash);
            Hashed { key, hash }
        }));
    }

    fn touch<K>(&mut self, keys: &Keys<K>, verdicts: &[Verdict], frames: &[FrameRef]) {
        let Self { states, flows, from_a, touched, refused } = self;
        // Room for all to pass, so that none has to ask for it.
        touched.resize(keys.frames.len(), Touched::NONE);
        let mut next = 0;
        for (((&frame, &bytes), &from_a), at) in keys.frames.iter().zip(&keys.bytes).zip(&*from_a).zip(0..) {
            if verdicts[frame as usize].is_pass() {
                let now = frames[frame as usize].time;
                touched[next] = Touched { now, at, frame, bytes, slot: NO_SLOT, from_a };
                next += 1;
            }
        }
        touched.truncate(next);
        states.touch_all(flows, touched);
        refused.clear();
        let has_none = |packet: &Touched| packet.slot == NO_SLOT;
        if touched.iter().fold(false, |any, packet| any | has_none(packet)) {
            refused.extend(touched.iter().filter(|packet| has_none(packet)).map(|packet| packet.frame));
            touched.retain(|packet| !has_none(packet));
        }
    }
}

impl Flows {
    /// Tables for one worker of `workers`, whose functions keep `words` words for each flow, and whose batches have up to
    /// `batch` packets. Hashes are keyed by `seeds`.
    pub fn new(definition: &Definition, workers: usize, batch: usize, words: usize, seeds: [u64; 2]) -> Self {
        Self {
            by: definition.by,
            when_full: definition.when_full,
            v4: Family::new(definition, workers, batch, words, seeds),
            v6: Family::new(definition, workers, batch, words, seeds),
        }
    }

    /// Takes the flows of a batch's packets as they came to the chain, and starts to look for them.
    pub fn arrive(&mut self, batch: &Batch) {
        self.v4.arrive(self.by, batch.v4());
        self.v6.arrive(self.by, batch.v6());
    }

    /// Looks up the flows of the packets that pass, before the first function that keeps state for them, and makes entries for
    /// those that have none.
    pub fn touch(&mut self, batch: &mut Batch) {
        let Columns { frames, verdicts, v4, v6, .. } = batch.columns();
        self.v4.touch(v4, verdicts, frames);
        self.v6.touch(v6, verdicts, frames);
        if self.when_full == WhenFull::DropNew {
            for &frame in self.v4.refused.iter().chain(&self.v6.refused) {
                verdicts[frame as usize] = Verdict::Drop(DropReason::FlowTableFull);
            }
        }
    }

    /// Has a function judge the packets that pass and have an entry, in order, each with the function's state of its flow; `true` where
    /// it has seen no packet of the flow before, and the state is all 0.
    #[inline]
    pub fn each<S: bytemuck::Pod>(
        &mut self,
        at: StateAt,
        batch: &mut Batch,
        mut step: impl FnMut(Seen<'_, '_>, &mut S, bool) -> Verdict,
    ) {
        let mut columns = batch.columns();
        let columns = &mut columns;
        let Self { v4, v6, .. } = self;
        // One loop for both, so that there is one place for the step to be put into.
        for (touched, mut entries, is_v4) in
            [(&v4.touched, v4.states.entries(), true), (&v6.touched, v6.states.entries(), false)]
        {
            for &Touched { now, at: key, frame, bytes, slot, from_a } in touched {
                if columns.verdicts[frame as usize].is_pass() {
                    let (state, is_new) = entries.state(slot, at);
                    let seen = Seen { frame, now, bytes, from_a, at: key, is_v4, columns };
                    let verdict = step(seen, state, is_new);
                    columns.verdicts[frame as usize] = verdict;
                }
            }
        }
    }

    /// To be called when all functions are done with a batch.
    pub fn leave(&mut self) {
        self.v4.states.end_batch(|_| {});
        self.v6.states.end_batch(|_| {});
    }

    /// Flows that are held, dead ones included.
    pub fn len(&self) -> usize {
        self.v4.states.len() + self.v6.states.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the tables counted.
    pub fn counts(&self) -> Counts {
        self.v4.states.counts() + self.v6.states.counts()
    }

    /// What a function keeps for each flow that it has seen a packet of.
    pub fn states<S: bytemuck::Pod>(&self, at: StateAt) -> impl Iterator<Item = (FlowName, &S)> {
        let by = self.by;
        let v4 = self
            .v4
            .states
            .iter()
            .filter_map(move |entry: Entry<'_, V4>| Some((name_v4(by, entry.key()), entry.state(at)?)));
        let v6 = self
            .v6
            .states
            .iter()
            .filter_map(move |entry: Entry<'_, V6>| Some((name_v6(by, entry.key()), entry.state(at)?)));
        v4.chain(v6)
    }
}

fn name_v4(by: By, [addresses, rest]: Key<V4>) -> FlowName {
    let address = |bits: u64| IpAddr::V4(Ipv4Addr::from(bits as u32));
    name(by, [address(addresses), address(addresses >> 32)], rest)
}

fn name_v6(by: By, [a0, a1, b0, b1, rest]: Key<V6>) -> FlowName {
    let address = |halves| IpAddr::V6(Ipv6Addr::from(join(halves)));
    name(by, [address([a0, a1]), address([b0, b1])], rest)
}

fn name(by: By, [a, b]: [IpAddr; 2], rest: u64) -> FlowName {
    FlowName { by, protocol: (rest >> 32) as u8, a: (a, rest as u16), b: (b, (rest >> 16) as u16) }
}
