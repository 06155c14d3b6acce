//! A worker's tables: the flows of a definition, with what functions keep for each.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_packet::key::join;
use packetloom_packet::{FlowKey, Timestamp};
use packetloom_table::states::{self, Counts, Entry, Key, PrefetchHint, Slot, StateAt, States, header_words};

use super::flow_keys::{V4, V6, flow_v4, flow_v6, vlan_of};
use super::{By, Definition, End, FlowName, WhenFull};

/// Flows of one definition, as one worker knows them. A [`Cursor`](super::Cursor) takes batches through them.
#[derive(Debug)]
pub struct Flows {
    pub(super) by: By,
    pub(super) when_full: WhenFull,
    pub(super) v4: States<V4>,
    pub(super) v6: States<V6>,
}

/// Where an entry is, as long as no batch comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldAt {
    slot: Slot,
    is_v4: bool,
}

/// An entry of either IP version, to be read.
#[derive(Clone, Copy, Debug)]
pub enum AnyEntry<'a> {
    /// Of IPv4.
    V4(Entry<'a, V4>),
    /// Of IPv6.
    V6(Entry<'a, V6>),
}

impl<'a> AnyEntry<'a> {
    /// One that was [saved](Flows::save), with a key of so many words.
    pub fn saved(words: &'a [u64], key_words: usize) -> Self {
        if key_words == V4 { Self::V4(Entry::new(words)) } else { Self::V6(Entry::new(words)) }
    }

    /// Its flow.
    pub fn flow(&self) -> FlowKey {
        match self {
            Self::V4(entry) => flow_v4(entry.key()),
            Self::V6(entry) => flow_v6(entry.key()),
        }
    }

    /// The time of its last packet, in nanoseconds.
    pub fn last(&self) -> u64 {
        match self {
            Self::V4(entry) => entry.last(),
            Self::V6(entry) => entry.last(),
        }
    }

    /// What a function keeps there, in so many words, if it has seen a packet of the flow.
    pub fn state_words(&self, at: StateAt, words: usize) -> Option<&'a [u64]> {
        match self {
            Self::V4(entry) => entry.state_words(at, words),
            Self::V6(entry) => entry.state_words(at, words),
        }
    }
}

/// Entries looked at by a sweep for each packet of a batch, and at least.
const SWEEP_PER_PACKET: usize = 4;
const SWEEP_MIN: usize = 16_384;
/// A round of sweeps takes so long, in nanoseconds.
const ROUND: u64 = 400_000_000;

/// How far entries were swept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sweep {
    /// Those of IPv4 and of IPv6.
    from: [usize; 2],
    until: Timestamp,
}

/// How far [`Flows::forget_if`] has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgotten([usize; 2]);

/// A table for one worker of `workers`: with room for batches of so many packets from the beginning, or one that begins small.
fn table<const W: usize>(
    definition: &Definition,
    workers: usize,
    batch: Option<usize>,
    words: usize,
    seeds: [u64; 2],
) -> States<W> {
    let timeout = definition.timeout.limit().unwrap_or(u64::MAX);
    let when_full = match definition.when_full {
        WhenFull::EvictOldest => states::WhenFull::Evict,
        WhenFull::DropNew | WhenFull::PassNew => states::WhenFull::Refuse,
    };
    let share = definition.max_flows.div_ceil(workers.max(1));
    let form = definition.by.key_form();
    match batch {
        Some(batch) => States::new(form, share, batch, words, timeout, when_full, seeds),
        None => States::growing(form, share, words, timeout, when_full, seeds),
    }
}

/// Puts in entries that were saved; how many had to go, each of which `on_gone` is shown.
fn restore<'a, const W: usize>(
    states: &mut States<W>,
    saved: &'a [u64],
    words: usize,
    mut on_gone: impl FnMut(Entry<'a, W>),
) -> u64 {
    let mut entries: Vec<_> = saved.chunks_exact(header_words(W) + words).map(Entry::<W>::new).collect();
    let capacity = states.capacity();
    if entries.len() > capacity {
        entries.sort_unstable_by_key(|entry| (Reverse(entry.last()), entry.key()));
    }
    let without_room = entries.split_off(capacity.min(entries.len()));
    let mut gone = 0;
    let mut on_gone = |entry| {
        on_gone(entry);
        gone += 1;
    };
    states.put_all(entries, &mut on_gone);
    without_room.into_iter().for_each(on_gone);
    gone
}

impl Flows {
    /// Tables for one worker of `workers`, whose functions keep `words` words for each flow, and whose batches have up to
    /// `batch` packets. Hashes are keyed by `seeds`.
    pub fn new(definition: &Definition, workers: usize, batch: usize, words: usize, seeds: [u64; 2]) -> Self {
        Self::of(definition, workers, Some(batch), words, seeds)
    }

    /// Tables of one worker of `workers` that begin small and grow with the flows they hold. Otherwise as [`Flows::new`].
    pub fn growing(definition: &Definition, workers: usize, words: usize, seeds: [u64; 2]) -> Self {
        Self::of(definition, workers, None, words, seeds)
    }

    fn of(
        definition: &Definition,
        workers: usize,
        batch: Option<usize>,
        words: usize,
        seeds: [u64; 2],
    ) -> Self {
        Self {
            by: definition.by,
            when_full: definition.when_full,
            v4: table(definition, workers, batch, words, seeds),
            v6: table(definition, workers, batch, words, seeds),
        }
    }

    /// What says where flows of IPv4 and of IPv6 probably are, for whoever does not have these tables yet.
    pub(super) fn prefetch_hints(&self) -> [PrefetchHint; 2] {
        [self.v4.prefetch_hint(), self.v6.prefetch_hint()]
    }

    /// Shows each entry that ended since the last batch was [left](Flows::leave). To be called when functions are done with the batch, as
    /// packets come to entries that were removed after them.
    pub fn each_ended(&self, mut on_end: impl FnMut(AnyEntry<'_>, End)) {
        self.v4.ended().for_each(|(entry, ended)| on_end(AnyEntry::V4(entry), ended.into()));
        self.v6.ended().for_each(|(entry, ended)| on_end(AnyEntry::V6(entry), ended.into()));
    }

    /// Ends entries that are dead at a time, after a batch of `packets`. Bounded work: what is not reached now is reached by later calls,
    /// and one round of them over all takes 0.4 s. [`Flows::each_ended`] shows them, until [`Flows::leave`].
    pub fn sweep(&mut self, sweep: &mut Sweep, now: Timestamp, packets: usize) {
        let Sweep { from: [v4, v6], until } = sweep;
        // Time that jumped ahead and came back must not keep the sweeps waiting until it is there again.
        *until = now.min(*until);
        // As much of the table as the round's share of the time since the last sweep.
        let elapsed = now.nanos_since(*until).min(ROUND);
        *until = now;
        let share = |places: usize| (places as u128 * u128::from(elapsed)).div_ceil(ROUND.into()) as usize;
        let most = SWEEP_MIN.max(SWEEP_PER_PACKET * packets);
        let now = now.as_nanos();
        *v4 = self.v4.sweep(*v4, share(self.v4.groups()), most, now);
        *v6 = self.v6.sweep(*v6, share(self.v6.groups()), most, now);
    }

    /// Where all entries are that a function has state in, of so many words.
    pub fn held(&self, at: StateAt, words: usize) -> impl Iterator<Item = (HeldAt, &[u64])> {
        fn of<const W: usize>(
            states: &States<W>,
            (at, words): (StateAt, usize),
            is_v4: bool,
        ) -> impl Iterator<Item = (HeldAt, &[u64])> {
            let state = move |slot| states.at(slot).state_words(at, words);
            states.slots().filter_map(move |slot| Some((HeldAt { slot, is_v4 }, state(slot)?)))
        }
        of(&self.v4, (at, words), true).chain(of(&self.v6, (at, words), false))
    }

    /// Brings in an entry that will be asked for.
    pub fn prefetch(&self, HeldAt { slot, is_v4 }: HeldAt) {
        if is_v4 { self.v4.prefetch_entry(slot) } else { self.v6.prefetch_entry(slot) }
    }

    /// An entry.
    pub fn entry(&self, HeldAt { slot, is_v4 }: HeldAt) -> AnyEntry<'_> {
        if is_v4 { AnyEntry::V4(self.v4.at(slot)) } else { AnyEntry::V6(self.v6.at(slot)) }
    }

    /// All that is held, dead or not, in no order.
    pub fn entries(&self) -> impl Iterator<Item = AnyEntry<'_>> {
        self.v4.iter().map(AnyEntry::V4).chain(self.v6.iter().map(AnyEntry::V6))
    }

    /// Forgets what a function keeps at a place of the entries that `is_over` says, of those it is in, and removes those that no function is
    /// in any more: after the ones `done` before, until it has looked at `most` entries; whether there are more. Between batches.
    pub fn forget_if(
        &mut self,
        done: &mut Forgotten,
        most: usize,
        at: StateAt,
        mut is_over: impl FnMut(AnyEntry<'_>) -> bool,
    ) -> bool {
        let Forgotten([v4, v6]) = done;
        if *v4 < self.v4.groups() {
            *v4 = self.v4.forget_if(*v4, most, at, |entry| is_over(AnyEntry::V4(entry)));
        } else {
            *v6 = self.v6.forget_if(*v6, most, at, |entry| is_over(AnyEntry::V6(entry)));
        }
        *v4 < self.v4.groups() || *v6 < self.v6.groups()
    }

    /// Forgets what a function keeps in an entry.
    pub fn forget(&mut self, HeldAt { slot, is_v4 }: HeldAt, at: StateAt) {
        if is_v4 { self.v4.entries().forget(slot, at) } else { self.v6.entries().forget(slot, at) }
    }

    /// To be called when all functions are done with a batch.
    pub fn leave(&mut self) {
        self.v4.end_batch();
        self.v6.end_batch();
    }

    /// Flows that are held, dead ones included.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the tables counted.
    pub fn counts(&self) -> Counts {
        self.v4.counts() + self.v6.counts()
    }

    /// Puts in flows that a device kept, of IPv4 and of IPv6, each in the place of what is here of it. Those for which there is no room, which
    /// `on_gone` is shown, count as evicted.
    pub fn put<'a>(
        &mut self,
        v4: impl Iterator<Item = Entry<'a, V4>>,
        v6: impl Iterator<Item = Entry<'a, V6>>,
        mut on_gone: impl FnMut(AnyEntry<'a>),
    ) {
        let mut gone = 0;
        let mut take = |entry| {
            gone += 1;
            on_gone(entry);
        };
        self.v4.put_all(v4, |entry| take(AnyEntry::V4(entry)));
        self.v6.put_all(v6, |entry| take(AnyEntry::V6(entry)));
        self.add(Counts { evicted: gone, ..Counts::default() });
    }

    /// Adds what other tables counted.
    pub fn add(&mut self, counts: Counts) {
        self.v4.add(counts);
    }

    /// All that is held, dead or not, apart from these tables, with `words` words of functions for each: of IPv4 and of IPv6, in no order,
    /// as [`States::save`] lays them out.
    pub fn save(&self, words: usize) -> [Vec<u64>; 2] {
        let [mut v4, mut v6] = [Vec::new(), Vec::new()];
        self.v4.save(words, &mut v4);
        self.v6.save(words, &mut v6);
        [v4, v6]
    }

    /// Puts in what was saved elsewhere, and what was counted there. Where there are more entries than room, those stay whose last packets
    /// were the latest; the others, which `on_gone` is shown, count as evicted.
    pub fn restore(
        &mut self,
        [v4, v6]: [&[u64]; 2],
        words: usize,
        counts: Counts,
        mut on_gone: impl FnMut(AnyEntry<'_>),
    ) {
        let gone = restore(&mut self.v4, v4, words, |entry| on_gone(AnyEntry::V4(entry)))
            + restore(&mut self.v6, v6, words, |entry| on_gone(AnyEntry::V6(entry)));
        self.add(Counts { evicted: counts.evicted + gone, ..counts });
    }

    /// What a function keeps for each flow that it has seen a packet of.
    pub fn states<S: bytemuck::Pod>(&self, at: StateAt) -> impl Iterator<Item = (FlowName, &S)> {
        let by = self.by;
        let v4 = self
            .v4
            .iter()
            .filter_map(move |entry: Entry<'_, V4>| Some((name_v4(by, entry.key()), entry.state(at)?)));
        let v6 = self
            .v6
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
    let (a, b) = ((a, rest as u16), (b, (rest >> 16) as u16));
    FlowName { by, protocol: (rest >> 32) as u8, a, b, vlan: vlan_of(rest) }
}
