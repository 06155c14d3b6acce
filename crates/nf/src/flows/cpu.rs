//! A worker's tables: keys and hashes of a batch first, then its lookups, piece by piece with the functions that keep their state in the
//! entries; cache misses are started ahead.

use std::cmp::Reverse;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use bytemuck::Zeroable;
use packetloom_packet::batch::{Columns, Keys};
use packetloom_packet::key::join;
use packetloom_packet::{Batch, DropReason, FlowKey, FrameRef, Timestamp, Verdict};
use packetloom_simd::Isa;
use packetloom_table::regions;
use packetloom_table::states::{
    self, Begun, Counts, EntriesMut, Entry, Hashed, Key, NO_SLOT, Signpost, Slot, StateAt, States,
    entry_bytes, header_words,
};

use super::arrivals::{Arrive, FlowOf, Relation, Touched, V4, V6, flow_v4, flow_v6};
use super::config::connection;
use super::{By, Definition, End, FlowName, Role, Seen, WhenFull};

/// Packets that all functions judge before the next ones are looked up: enough that calls cost little, few enough that their entries
/// stay in the first cache from the lookup on.
const PIECE: usize = 128;

/// Flows of one definition, as one worker knows them.
#[derive(Debug)]
pub struct Flows {
    by: By,
    when_full: WhenFull,
    /// Whether any of the packets that are being judged was dropped since such packets were last left out.
    any_dropped: bool,
    pub(super) v4: Family<V4>,
    pub(super) v6: Family<V6>,
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
    /// Its flow.
    pub fn flow(&self) -> FlowKey {
        match self {
            Self::V4(entry) => flow_v4(entry.key()),
            Self::V6(entry) => flow_v6(entry.key()),
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
const ROUND: u64 = 1_000_000_000;

/// How far entries were swept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sweep {
    /// Those of IPv4 and of IPv6.
    from: [usize; 2],
    until: Timestamp,
}

/// Flows of an IP version, and those of the batch that is being judged.
#[derive(Debug)]
pub(super) struct Family<const W: usize> {
    isa: Isa,
    /// By itself, so that what seldom changes of it is not written to where it changes hands.
    states: Box<States<W>>,
    /// Packets of the batch, in order: those that came; once looked up, those of them that passed before and have an entry.
    pub(super) touched: Vec<Touched>,
    /// Those of them that are being judged. Before them lie those that were, so many of them, without what functions left out; what is
    /// between is nothing any more, and what is behind is not looked up yet.
    piece: Range<usize>,
    judged: usize,
    /// Their flows, beside them until they are looked up.
    pub(super) flows: Vec<Hashed<W>>,
    /// What those that came are to their flows.
    relations: Vec<Relation>,
    /// Whether any of those that came is something else than a member of its flow.
    has_others: bool,
    /// Those that are being judged whose entries may be new, from the first of the piece on; functions that had state in all other
    /// entries when they were looked up.
    fresh: Vec<u32>,
    begun: Begun,
    /// Functions that had state in all entries of the batch's packets that were looked up so far: what is known of them when they come by
    /// again.
    begun_before: Begun,
    /// Those that have no entry: members for which there was no room, and others.
    without: Vec<Touched>,
    /// The first of them that is being judged.
    without_from: usize,
}

impl<const W: usize> Family<W> {
    fn new(definition: &Definition, workers: usize, batch: usize, words: usize, seeds: [u64; 2]) -> Self {
        let timeout = definition.timeout.limit().unwrap_or(u64::MAX);
        let when_full = match definition.when_full {
            WhenFull::EvictOldest => states::WhenFull::Evict,
            WhenFull::DropNew | WhenFull::PassNew => states::WhenFull::Refuse,
        };
        let share = definition.max_flows.div_ceil(workers.max(1));
        Self::of(States::new(definition.by.key_form(), share, batch, words, timeout, when_full, seeds))
    }

    fn growing(definition: &Definition, workers: usize, words: usize, seeds: [u64; 2]) -> Self {
        let timeout = definition.timeout.limit().unwrap_or(u64::MAX);
        let share = definition.max_flows.div_ceil(workers.max(1));
        Self::of(States::growing(definition.by.key_form(), share, words, timeout, seeds))
    }

    fn of(states: States<W>) -> Self {
        Self {
            isa: Isa::detect(),
            states: Box::new(states),
            touched: Vec::new(),
            piece: 0..0,
            judged: 0,
            flows: Vec::new(),
            relations: Vec::new(),
            has_others: false,
            fresh: Vec::new(),
            begun: Begun::default(),
            begun_before: Begun::default(),
            without: Vec::new(),
            without_from: 0,
        }
    }

    /// Puts in entries that were saved; how many had to go, each of which `on_gone` is shown.
    fn restore<'a>(&mut self, saved: &'a [u64], words: usize, mut on_gone: impl FnMut(Entry<'a, W>)) -> u64 {
        let mut entries: Vec<_> = saved.chunks_exact(header_words(W) + words).map(Entry::<W>::new).collect();
        let capacity = self.states.capacity();
        if entries.len() > capacity {
            entries.sort_unstable_by_key(|entry| (Reverse(entry.last()), entry.key()));
        }
        let mut gone = 0;
        for (number, entry) in entries.into_iter().enumerate() {
            if number >= capacity || !self.states.put(entry) {
                on_gone(entry);
                gone += 1;
            }
        }
        gone
    }

    fn arrive<K: FlowOf<W>>(&mut self, by: By, keys: &Keys<K>, batch: &Batch) {
        self.without.clear();
        self.has_others = false;
        self.begun_before = Begun::ALL;
        let member = |(key, from_a)| (key, Relation::member(from_a));
        let frames = batch.frames();
        match by {
            By::FiveTuple if batch.is_common() => {
                self.arrive_by(keys, frames, |key, _| member(key.five_tuple_with_ports()));
            }
            By::FiveTuple => self.arrive_by(keys, frames, |key, _| member(key.five_tuple())),
            By::Source => self.arrive_by(keys, frames, |key, _| member((key.source(), true))),
            By::Initiator => self.arrive_by(keys, frames, |key, _| member(key.initiator())),
            By::Connection => {
                self.arrive_by(keys, frames, |key, frame| {
                    key.connection(|key| connection(&key, batch, frame as usize))
                });
                self.has_others = !self.touched.iter().all(Touched::is_member);
            }
        }
        self.begin();
    }

    /// `flow` finds a packet's flow, by its key and its frame.
    fn arrive_by<K, F: Fn(&K, u32) -> (Key<W>, Relation)>(
        &mut self,
        keys: &Keys<K>,
        frames: &[FrameRef],
        flow: F,
    ) {
        let Self { isa, states, relations, flows, touched, .. } = self;
        relations.resize(keys.keys.len(), Relation::member(true));
        flows.resize(keys.keys.len(), Hashed { key: [0; W], hash: 0 });
        touched.resize(keys.keys.len(), Touched::zeroed());
        let hasher = states.hasher();
        isa.run(Arrive { keys, frames, hasher, flow, flows, relations, touched });
    }

    /// Takes packets, and their flows, in place of those that there were.
    pub(super) fn take(&mut self, packets: &[Touched], flows: &[Hashed<W>]) {
        self.touched.clear();
        self.touched.extend_from_slice(packets);
        self.flows.clear();
        self.flows.extend_from_slice(flows);
        self.without.clear();
    }

    /// Leaves out the packets that do not pass any more, before they are looked up.
    pub(super) fn retain(&mut self, verdicts: &[Verdict]) {
        self.retain_if(|packet| packet.passes(verdicts));
    }

    fn retain_if(&mut self, keeps: impl Fn(&Touched) -> bool) {
        let mut kept = self.touched.iter().map(&keeps);
        self.flows.retain(|_| kept.next() == Some(true));
        self.touched.retain(keeps);
    }

    /// All packets that there are will be judged.
    pub(super) fn begin(&mut self) {
        (self.piece, self.judged) = (0..self.touched.len(), 0);
        self.fresh.clear();
        self.begun = self.begun_before;
        self.without_from = 0;
    }

    /// The piece that begins with a packet.
    fn piece_from(&self, from: usize) -> Range<usize> {
        let all = self.touched.len();
        from.min(all)..(from + PIECE).min(all)
    }

    /// Asks for the entries of a piece.
    fn ask(&mut self, from: usize) {
        let piece = self.piece_from(from);
        // Mostly packets are of one IP version.
        if !piece.is_empty() {
            self.states.ask(&self.flows[piece.clone()], &mut self.touched[piece]);
        }
    }

    /// Only those of a piece will be judged, whose entries were asked for.
    fn begin_piece(&mut self, from: usize) {
        self.piece = self.piece_from(from);
        self.without_from = self.without.len();
    }

    /// The packets that are being judged, if there are any, and the table's entries.
    #[inline]
    fn present(&mut self) -> Option<(&[Touched], EntriesMut<'_>)> {
        let touched = &self.touched[self.piece.clone()];
        if touched.is_empty() { None } else { Some((touched, self.states.entries())) }
    }

    /// These were judged.
    fn end_piece(&mut self) {
        let Self { touched, piece, judged, .. } = self;
        if *judged < piece.start {
            touched.copy_within(piece.clone(), *judged);
        }
        *judged += piece.len();
    }

    /// All that were judged stay for visits that come later, which leave out what was dropped since.
    fn end(&mut self) {
        self.touched.truncate(self.judged);
    }

    /// Those of the packets that are being judged whose entries may lack a function's state, by their numbers.
    #[inline]
    fn may_lack(&mut self, at: StateAt) -> &[u32] {
        if !self.begun.contains(at) {
            self.fresh.clear();
            // Asked first, as it mostly is of one of both IP versions: an extension by nothing is not free.
            if !self.piece.is_empty() {
                self.fresh.extend(0..self.piece.len() as u32);
            }
        }
        &self.fresh
    }

    /// Leaves out the packets that are being judged and do not pass any more.
    fn leave_out(&mut self, verdicts: &[Verdict]) {
        let Self { touched, piece, .. } = self;
        keep(touched, piece, |packet| packet.passes(verdicts));
        self.renumber();
    }

    /// Packets have other numbers now: so which of them are fresh is not known any more, if any was.
    fn renumber(&mut self) {
        if !self.fresh.is_empty() {
            self.begun = Begun::default();
        }
    }

    /// Finds the entries of these packets, or makes them; `is_asked` if the table was asked where they are.
    fn touch(&mut self, is_asked: bool) {
        let Self { states, touched, flows, piece, has_others, fresh, begun, begun_before, .. } = self;
        fresh.clear();
        let (flows, touched) = (&flows[piece.clone()], &mut touched[piece.clone()]);
        if touched.is_empty() {
            return;
        }
        let refused = states.counts().refused;
        *begun = if *has_others {
            touch_around(states, flows, touched, fresh)
        } else if is_asked {
            states.touch_asked(flows, touched, fresh)
        } else {
            states.touch_all(flows, touched, fresh)
        };
        let of_all = if fresh.is_empty() { *begun } else { Begun::default() };
        *begun_before = *begun_before & of_all;
        if self.has_others || self.states.counts().refused != refused {
            self.set_apart();
        }
    }

    /// Finds the entries of these packets as they are, where a signpost was asked.
    fn find(&mut self) {
        self.states.find_asked(&self.flows, &mut self.touched);
        // Not known of entries that were found.
        self.begun = Begun::default();
        self.set_apart();
    }

    /// Sets those apart that have none.
    fn set_apart(&mut self) {
        let Self { touched, piece, without, .. } = self;
        without.extend(touched[piece.clone()].iter().filter(|packet| packet.slot == NO_SLOT));
        keep(touched, piece, |packet| packet.slot != NO_SLOT);
        self.renumber();
    }

    /// Those of the packets that are being judged that have none.
    fn without(&self) -> &[Touched] {
        &self.without[self.without_from..]
    }
}

/// Leaves out some packets of a piece; the others stay in order.
fn keep(packets: &mut [Touched], piece: &mut Range<usize>, keeps: impl Fn(&Touched) -> bool) {
    let mut kept = piece.start;
    for at in piece.clone() {
        if keeps(&packets[at]) {
            packets[kept] = packets[at];
            kept += 1;
        }
    }
    piece.end = kept;
}

/// Looks up the flows of packets some of which are not members: errors find an entry or not, and change nothing.
#[cold]
fn touch_around<const W: usize>(
    states: &mut States<W>,
    mut flows: &[Hashed<W>],
    packets: &mut [Touched],
    fresh: &mut Vec<u32>,
) -> Begun {
    for packets in packets.chunk_by_mut(|before, after| before.is_member() && after.is_member()) {
        let (own, rest) = flows.split_at(packets.len());
        flows = rest;
        match packets {
            [packet] if packet.relation().role() == Role::Related => {
                let found = states.find(&own[0], packet.now.as_nanos());
                packet.slot = found.unwrap_or(NO_SLOT);
            }
            // What a signpost said is nothing to it.
            [packet] if !packet.is_member() => packet.slot = NO_SLOT,
            members => _ = states.touch_all(own, members, fresh),
        }
    }
    // Not known of entries that were found.
    Begun::default()
}

impl Flows {
    /// Tables for one worker of `workers`, whose functions keep `words` words for each flow, and whose batches have up to
    /// `batch` packets. Hashes are keyed by `seeds`.
    pub fn new(definition: &Definition, workers: usize, batch: usize, words: usize, seeds: [u64; 2]) -> Self {
        Self {
            by: definition.by,
            when_full: definition.when_full,
            any_dropped: false,
            v4: Family::new(definition, workers, batch, words, seeds),
            v6: Family::new(definition, workers, batch, words, seeds),
        }
    }

    /// Tables of one worker of `workers` that begin small and grow with the flows they hold; they evict at capacity. Otherwise as
    /// [`Flows::new`].
    pub fn growing(definition: &Definition, workers: usize, words: usize, seeds: [u64; 2]) -> Self {
        Self {
            by: definition.by,
            when_full: WhenFull::EvictOldest,
            any_dropped: false,
            v4: Family::growing(definition, workers, words, seeds),
            v6: Family::growing(definition, workers, words, seeds),
        }
    }

    /// As [`Flows::arrive`] where tables [grow](Flows::growing), for which there is room then.
    pub fn arrive_growing(&mut self, batch: &Batch) {
        self.v4.states.reserve(batch.v4().keys.len());
        self.v6.states.reserve(batch.v6().keys.len());
        self.arrive(batch);
    }

    /// Leaves out packets that arrived, before they are looked up: all but those that `keeps` holds by their index in the batch.
    pub fn retain(&mut self, keeps: impl Fn(u32) -> bool) {
        self.v4.retain_if(|packet| keeps(packet.frame));
        self.v6.retain_if(|packet| keeps(packet.frame));
    }

    /// Takes the flows of a batch's packets as they came to the chain, and starts to look for them.
    pub fn arrive(&mut self, batch: &Batch) {
        self.arrive_elsewhere(batch);
        self.v4.states.bring(&self.v4.flows);
        self.v6.states.bring(&self.v6.flows);
    }

    /// Takes the flows of packets that will be looked for in other tables with the same seeds.
    pub(super) fn arrive_elsewhere(&mut self, batch: &Batch) {
        self.v4.arrive(self.by, batch.v4(), batch);
        self.v6.arrive(self.by, batch.v6(), batch);
    }

    /// Has functions judge the packets of a batch that pass. Where it is the first time for a batch, their flows are looked up before, and
    /// those without an entry get one: piece by piece, in several calls of `judge`, if they do not need the `whole` batch in one.
    pub fn visit(
        &mut self,
        is_first: bool,
        whole: bool,
        batch: &mut Batch,
        mut judge: impl FnMut(&mut Batch, &mut Self),
    ) {
        let verdicts = batch.verdicts();
        let any_dropped = !all_pass(verdicts);
        if is_first && any_dropped {
            self.v4.retain(verdicts);
            self.v6.retain(verdicts);
        }
        self.begin_part();
        // Of packets that were looked up before, the first function leaves them out.
        self.any_dropped = any_dropped && !is_first;
        if is_first && !whole && !self.v4.has_others && !self.v6.has_others {
            self.visit_pieces(batch, judge);
        } else {
            if is_first {
                self.touch_these(batch, false);
            }
            judge(batch, self);
            self.v4.end_piece();
            self.v6.end_piece();
        }
        self.v4.end();
        self.v6.end();
    }

    /// Entries of the next piece are on their way while functions judge this one.
    fn visit_pieces(&mut self, batch: &mut Batch, mut judge: impl FnMut(&mut Batch, &mut Self)) {
        let most = self.v4.touched.len().max(self.v6.touched.len());
        self.ask(0);
        for from in (0..most).step_by(PIECE) {
            self.v4.begin_piece(from);
            self.v6.begin_piece(from);
            self.ask(from + PIECE);
            self.touch_these(batch, true);
            judge(batch, self);
            self.v4.end_piece();
            self.v6.end_piece();
        }
    }

    /// Asks for the entries of a piece.
    fn ask(&mut self, from: usize) {
        self.v4.ask(from);
        self.v6.ask(from);
    }

    /// All packets that there are will be judged: those of a batch, or of a part of shared tables.
    pub(super) fn begin_part(&mut self) {
        self.any_dropped = false;
        self.v4.begin();
        self.v6.begin();
    }

    /// Looks up the packets that a worker gathered, of which it asked signposts.
    pub(super) fn touch_gathered(&mut self, batch: &mut Batch) {
        self.touch_these(batch, true);
    }

    fn touch_these(&mut self, batch: &mut Batch, is_asked: bool) {
        self.v4.touch(is_asked);
        self.v6.touch(is_asked);
        if self.when_full == WhenFull::DropNew {
            let verdicts = batch.columns().verdicts;
            for packet in self.v4.without().iter().chain(self.v6.without()) {
                if packet.is_member() {
                    verdicts[packet.frame as usize] = Verdict::Drop(DropReason::FlowTableFull);
                }
            }
        }
    }

    /// The same as they are: who has no entry gets none.
    pub(super) fn find_gathered(&mut self) {
        self.v4.find();
        self.v6.find();
    }

    /// What says where flows of IPv4 and of IPv6 probably are, for whoever does not have these tables yet.
    pub(super) fn signposts(&self) -> [Signpost; 2] {
        [self.v4.states.signpost(), self.v6.states.signpost()]
    }

    /// Changes its tables of some IP versions for those of others; packets stay.
    pub(super) fn swap_tables(&mut self, others: &mut Self, [of_v4, of_v6]: [bool; 2]) {
        if of_v4 {
            mem::swap(&mut self.v4.states, &mut others.v4.states);
        }
        if of_v6 {
            mem::swap(&mut self.v6.states, &mut others.v6.states);
        }
    }

    /// Has a function judge the packets that pass and have an entry, in order, each with the function's state of its flow: all 0 where it
    /// has seen no packet of the flow before.
    #[inline]
    pub fn each<S: bytemuck::Pod>(
        &mut self,
        at: StateAt,
        batch: &mut Batch,
        step: impl FnMut(Seen<'_, '_>, &mut S) -> Verdict,
    ) {
        self.each_begun(at, batch, |_, _| {}, step);
    }

    /// The same where a state begins as something else than 0: `begin` makes it so, by the flow's first packet that the function sees. It
    /// may be called before steps of packets that came earlier, of other flows.
    #[inline]
    pub fn each_begun<S: bytemuck::Pod>(
        &mut self,
        at: StateAt,
        batch: &mut Batch,
        begin: impl FnMut(Seen<'_, '_>, &mut S),
        mut step: impl FnMut(Seen<'_, '_>, &mut S) -> Verdict,
    ) {
        self.each_new(at, batch, begin);
        let columns = &mut batch.columns();
        let Self { any_dropped, v4, v6, .. } = self;
        // One loop for both, so that there is one place for the step to be put into.
        for (of_version, is_v4) in [(v4.present(), true), (v6.present(), false)] {
            let Some((touched, mut entries)) = of_version else { continue };
            for packet in touched {
                let state = entries.state(packet.slot, at);
                let verdict = step(packet.seen(is_v4, columns), state);
                if !verdict.is_pass() {
                    columns.verdicts[packet.frame as usize] = verdict;
                    *any_dropped = true;
                }
            }
        }
    }

    /// Has a function look at the packets that pass and are the first ones of a flow that it sees, in order, each with its state, all 0.
    #[inline]
    pub fn each_new<S: bytemuck::Pod>(
        &mut self,
        at: StateAt,
        batch: &mut Batch,
        begin: impl FnMut(Seen<'_, '_>, &mut S),
    ) {
        let columns = &mut batch.columns();
        if mem::take(&mut self.any_dropped) {
            self.v4.leave_out(columns.verdicts);
            self.v6.leave_out(columns.verdicts);
        }
        // Of both, since those that lack it are to be known.
        if !(self.v4.may_lack(at).is_empty() & self.v6.may_lack(at).is_empty()) {
            self.begin_states(at, columns, begin);
        }
    }

    // By itself, so that loops over packets of known flows have all registers.
    #[inline(never)]
    fn begin_states<S: bytemuck::Pod>(
        &mut self,
        at: StateAt,
        columns: &mut Columns<'_>,
        mut begin: impl FnMut(Seen<'_, '_>, &mut S),
    ) {
        let Self { v4, v6, .. } = self;
        let of_v4 = (&v4.touched[v4.piece.clone()], &v4.fresh, v4.states.entries(), true);
        let of_v6 = (&v6.touched[v6.piece.clone()], &v6.fresh, v6.states.entries(), false);
        for (touched, fresh, mut entries, is_v4) in [of_v4, of_v6] {
            for &number in fresh {
                let packet = &touched[number as usize];
                if let Some(state) = entries.begin(packet.slot, at) {
                    begin(packet.seen(is_v4, columns), state);
                }
            }
        }
    }

    /// Has a function judge the packets that pass and have no entry: members of a flow for which there was no room, and packets that
    /// are no members and found none.
    pub fn each_without(&mut self, batch: &mut Batch, mut step: impl FnMut(Seen<'_, '_>) -> Verdict) {
        let columns = &mut batch.columns();
        for (without, is_v4) in [(self.v4.without(), true), (self.v6.without(), false)] {
            for packet in without {
                let frame = packet.frame as usize;
                if columns.verdicts[frame].is_pass() {
                    let verdict = step(packet.seen(is_v4, columns));
                    columns.verdicts[frame] = verdict;
                }
            }
        }
    }

    /// Shows each entry that ended since the last batch was [left](Flows::leave). To be called when functions are done with the batch, as
    /// packets come to entries that were removed after them.
    pub fn each_ended(&self, mut on_end: impl FnMut(AnyEntry<'_>, End)) {
        self.v4.states.ended().for_each(|(entry, ended)| on_end(AnyEntry::V4(entry), ended.into()));
        self.v6.states.ended().for_each(|(entry, ended)| on_end(AnyEntry::V6(entry), ended.into()));
    }

    /// Ends entries that are dead at a time, after a batch of `packets`. Bounded work: what is not reached now is reached by later calls,
    /// and one round of them over all takes a second. [`Flows::each_ended`] shows them, until [`Flows::leave`].
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
        *v4 = self.v4.states.sweep(*v4, share(self.v4.states.groups()), most, now);
        *v6 = self.v6.states.sweep(*v6, share(self.v6.states.groups()), most, now);
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
        of(&self.v4.states, (at, words), true).chain(of(&self.v6.states, (at, words), false))
    }

    /// Brings in an entry that will be asked for.
    pub fn bring(&self, HeldAt { slot, is_v4 }: HeldAt) {
        if is_v4 { self.v4.states.bring_entry(slot) } else { self.v6.states.bring_entry(slot) }
    }

    /// An entry.
    pub fn entry(&self, HeldAt { slot, is_v4 }: HeldAt) -> AnyEntry<'_> {
        if is_v4 { AnyEntry::V4(self.v4.states.at(slot)) } else { AnyEntry::V6(self.v6.states.at(slot)) }
    }

    /// Forgets what a function keeps in an entry.
    pub fn forget(&mut self, HeldAt { slot, is_v4 }: HeldAt, at: StateAt) {
        if is_v4 {
            self.v4.states.entries().forget(slot, at)
        } else {
            self.v6.states.entries().forget(slot, at)
        }
    }

    /// To be called when all functions are done with a batch.
    pub fn leave(&mut self) {
        self.v4.states.end_batch();
        self.v6.states.end_batch();
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

    /// Takes over the flows that a device keeps, with `words` words for each, from its memory as it lies there, and what its tables counted.
    pub fn take_over(&mut self, [v4, v6]: [&[u64]; 2], words: usize, counts: Counts) {
        // One for which there is no room is one that had to go.
        let put_v4 = |entry| u64::from(!self.v4.states.put(entry));
        let gone = regions::entries::<V4>(v4, entry_bytes(V4, words) / 8).map(put_v4).sum::<u64>();
        let put_v6 = |entry| u64::from(!self.v6.states.put(entry));
        let gone = gone + regions::entries::<V6>(v6, entry_bytes(V6, words) / 8).map(put_v6).sum::<u64>();
        self.v4.states.add(Counts { evicted: counts.evicted + gone, ..counts });
    }

    /// All that is held, dead or not, apart from these tables, with `words` words of functions for each: of IPv4 and of IPv6, in no order,
    /// as [`States::save`] lays them out.
    pub fn save(&self, words: usize) -> [Vec<u64>; 2] {
        let [mut v4, mut v6] = [Vec::new(), Vec::new()];
        self.v4.states.save(words, &mut v4);
        self.v6.states.save(words, &mut v6);
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
        let gone = self.v4.restore(v4, words, |entry| on_gone(AnyEntry::V4(entry)))
            + self.v6.restore(v6, words, |entry| on_gone(AnyEntry::V6(entry)));
        self.v4.states.add(Counts { evicted: counts.evicted + gone, ..counts });
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

/// Whether no packet was dropped, as it mostly is.
#[inline]
pub(super) fn all_pass(verdicts: &[Verdict]) -> bool {
    verdicts.iter().fold(true, |all, verdict| all & verdict.is_pass())
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
