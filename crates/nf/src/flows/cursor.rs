//! Takes a batch's packets through tables: their keys and hashes first, then lookups, piece by piece with the functions that keep their
//! state in the entries; cache misses are started ahead.

use std::mem;
use std::ops::Range;

use bytemuck::Zeroable;
use packetloom_packet::batch::{Columns, Keys};
use packetloom_packet::{Batch, DropReason, FrameRef, Verdict};
use packetloom_simd::Isa;
use packetloom_table::states::{EntriesMut, Hashed, Hasher, Initialized, Key, NO_SLOT, StateAt, States};

use super::config::{connection, vlan};
use super::flow_keys::{ExtractFlowKeys, FlowKeys, Lookup, Relation, V4, V6, with_vlan};
use super::{By, Flows, Role, Seen, WhenFull};

/// Packets that all functions judge before the next ones are looked up: enough that calls cost little, few enough that their entries
/// stay in the first cache from the lookup on.
const PIECE: usize = 128;

/// The packets of a batch by their flows of one definition, as one worker has them.
#[derive(Debug)]
pub struct Cursor {
    by: By,
    /// Whether any of the packets that are being judged was dropped since such packets were last left out.
    any_dropped: bool,
    pub(super) v4: Family<V4>,
    pub(super) v6: Family<V6>,
}

/// The packets that functions are to judge, and the tables that have their entries.
#[derive(Debug)]
pub struct Visit<'a> {
    pub(super) cursor: &'a mut Cursor,
    pub(super) flows: &'a mut Flows,
}

/// The batch's packets of an IP version, and those of them that are being judged.
#[derive(Debug)]
pub(super) struct Family<const W: usize> {
    isa: Isa,
    hasher: Hasher,
    /// Packets of the batch, in order: those that came; once looked up, those of them that passed before and have an entry.
    pub(super) lookups: Vec<Lookup>,
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
    inserted: Vec<u32>,
    initialized: Initialized,
    /// Functions that had state in all entries of the batch's packets that were looked up so far: what is known of them when they come by
    /// again.
    initialized_before: Initialized,
    /// Those that have no entry: members for which there was no room, and others.
    without: Vec<Lookup>,
    /// The first of them that is being judged.
    without_from: usize,
}

impl<const W: usize> Family<W> {
    fn of(states: &States<W>) -> Self {
        Self {
            isa: Isa::detect(),
            hasher: states.hasher(),
            lookups: Vec::new(),
            piece: 0..0,
            judged: 0,
            flows: Vec::new(),
            relations: Vec::new(),
            has_others: false,
            inserted: Vec::new(),
            initialized: Initialized::default(),
            initialized_before: Initialized::default(),
            without: Vec::new(),
            without_from: 0,
        }
    }

    fn extract_keys<K: FlowKeys<W>>(&mut self, by: By, keys: &Keys<K>, batch: &Batch) {
        self.without.clear();
        self.has_others = false;
        self.initialized_before = Initialized::ALL;
        let member = |(key, from_a)| (key, Relation::member(from_a));
        let frames = batch.frames();
        match by {
            By::FiveTuple if batch.is_common() => {
                self.arrive_by(keys, frames, |key, _| member(key.five_tuple_with_ports()));
            }
            By::FiveTuple => self.arrive_by(keys, frames, |key, _| member(key.five_tuple())),
            By::VlanFiveTuple => self.arrive_by(keys, frames, |key, frame| {
                let (key, from_a) = key.five_tuple();
                member((with_vlan(key, vlan(batch, frame as usize)), from_a))
            }),
            By::Source => self.arrive_by(keys, frames, |key, _| member((key.source(), true))),
            By::Initiator => self.arrive_by(keys, frames, |key, _| member(key.initiator())),
            By::Connection => {
                self.arrive_by(keys, frames, |key, frame| {
                    key.connection(|key| connection(&key, batch, frame as usize))
                });
                self.has_others = !self.lookups.iter().all(Lookup::is_member);
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
        let Self { isa, hasher, relations, flows, lookups, .. } = self;
        relations.resize(keys.keys.len(), Relation::member(true));
        flows.resize(keys.keys.len(), Hashed { key: [0; W], hash: 0 });
        lookups.resize(keys.keys.len(), Lookup::zeroed());
        isa.run(ExtractFlowKeys { keys, frames, hasher: *hasher, flow, flows, relations, lookups });
    }

    /// Takes packets, and their flows, in place of those that there were.
    pub(super) fn take(&mut self, packets: &[Lookup], flows: &[Hashed<W>]) {
        self.lookups.clear();
        self.lookups.extend_from_slice(packets);
        self.flows.clear();
        self.flows.extend_from_slice(flows);
        self.without.clear();
    }

    /// Leaves out the packets that do not pass any more, before they are looked up.
    pub(super) fn retain(&mut self, verdicts: &[Verdict]) {
        self.retain_if(|packet| packet.passes(verdicts));
    }

    fn retain_if(&mut self, keeps: impl Fn(&Lookup) -> bool) {
        let mut kept = self.lookups.iter().map(&keeps);
        self.flows.retain(|_| kept.next() == Some(true));
        self.lookups.retain(keeps);
    }

    /// All packets that there are will be judged.
    pub(super) fn begin(&mut self) {
        (self.piece, self.judged) = (0..self.lookups.len(), 0);
        self.inserted.clear();
        self.initialized = self.initialized_before;
        self.without_from = 0;
    }

    /// The piece that begins with a packet.
    fn piece_from(&self, from: usize) -> Range<usize> {
        let all = self.lookups.len();
        from.min(all)..(from + PIECE).min(all)
    }

    /// Asks for the entries of a piece.
    fn prefetch_entries(&mut self, states: &mut States<W>, from: usize) {
        let piece = self.piece_from(from);
        // Mostly packets are of one IP version.
        if !piece.is_empty() {
            states.prefetch_entries(&self.flows[piece.clone()], &mut self.lookups[piece]);
        }
    }

    /// Only those of a piece will be judged, whose entries were asked for.
    fn begin_piece(&mut self, from: usize) {
        self.piece = self.piece_from(from);
        self.without_from = self.without.len();
    }

    /// The packets that are being judged, if there are any, and the table's entries.
    #[inline]
    fn present<'a>(&'a self, states: &'a mut States<W>) -> Option<(&'a [Lookup], EntriesMut<'a>)> {
        let lookups = &self.lookups[self.piece.clone()];
        if lookups.is_empty() { None } else { Some((lookups, states.entries())) }
    }

    /// These were judged.
    fn end_piece(&mut self) {
        let Self { lookups, piece, judged, .. } = self;
        if *judged < piece.start {
            lookups.copy_within(piece.clone(), *judged);
        }
        *judged += piece.len();
    }

    /// All that were judged stay for visits that come later, which leave out what was dropped since.
    fn end(&mut self) {
        self.lookups.truncate(self.judged);
    }

    /// Those of the packets that are being judged whose entries may lack a function's state, by their numbers.
    #[inline]
    fn may_lack(&mut self, at: StateAt) -> &[u32] {
        if !self.initialized.contains(at) {
            self.inserted.clear();
            // Asked first, as it mostly is of one of both IP versions: an extension by nothing is not free.
            if !self.piece.is_empty() {
                self.inserted.extend(0..self.piece.len() as u32);
            }
        }
        &self.inserted
    }

    /// Leaves out the packets that are being judged and do not pass any more.
    fn leave_out(&mut self, verdicts: &[Verdict]) {
        let Self { lookups, piece, .. } = self;
        keep(lookups, piece, |packet| packet.passes(verdicts));
        self.renumber();
    }

    /// Packets have other numbers now: which of them were inserted is not known any more.
    fn renumber(&mut self) {
        if !self.inserted.is_empty() {
            self.initialized = Initialized::default();
        }
    }

    /// Finds or inserts the entries of these packets; `is_prefetched` if their slots were looked for before.
    fn find_or_insert(&mut self, states: &mut States<W>, is_prefetched: bool) {
        let Self { lookups, flows, piece, has_others, inserted, initialized, initialized_before, .. } = self;
        inserted.clear();
        let (flows, lookups) = (&flows[piece.clone()], &mut lookups[piece.clone()]);
        if lookups.is_empty() {
            return;
        }
        let refused = states.counts().refused;
        *initialized = if *has_others {
            find_or_insert_around(states, flows, lookups, inserted)
        } else if is_prefetched {
            states.find_or_insert_prefetched(flows, lookups, inserted)
        } else {
            states.find_or_insert_all(flows, lookups, inserted)
        };
        let of_all = if inserted.is_empty() { *initialized } else { Initialized::default() };
        *initialized_before = *initialized_before & of_all;
        if self.has_others || states.counts().refused != refused {
            self.set_apart();
        }
    }

    /// Finds the entries of these packets whose slots a prefetch hint has said, and inserts none.
    fn find(&mut self, states: &mut States<W>) {
        states.find_prefetched(&self.flows, &mut self.lookups);
        // Not known of entries that were found.
        self.initialized = Initialized::default();
        self.set_apart();
    }

    /// Sets those apart that have none.
    fn set_apart(&mut self) {
        let Self { lookups, piece, without, .. } = self;
        without.extend(lookups[piece.clone()].iter().filter(|packet| packet.slot == NO_SLOT));
        keep(lookups, piece, |packet| packet.slot != NO_SLOT);
        self.renumber();
    }

    /// Those of the packets that are being judged that have none.
    fn without(&self) -> &[Lookup] {
        &self.without[self.without_from..]
    }
}

/// Leaves out some packets of a piece; the others stay in order.
fn keep(packets: &mut [Lookup], piece: &mut Range<usize>, keeps: impl Fn(&Lookup) -> bool) {
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
fn find_or_insert_around<const W: usize>(
    states: &mut States<W>,
    mut flows: &[Hashed<W>],
    packets: &mut [Lookup],
    inserted: &mut Vec<u32>,
) -> Initialized {
    for packets in packets.chunk_by_mut(|before, after| before.is_member() && after.is_member()) {
        let (own, rest) = flows.split_at(packets.len());
        flows = rest;
        match packets {
            [packet] if packet.relation().role() == Role::Related => {
                let found = states.find(&own[0], packet.now.as_nanos());
                packet.slot = found.unwrap_or(NO_SLOT);
            }
            // It does not look at what a prefetch hint said.
            [packet] if !packet.is_member() => packet.slot = NO_SLOT,
            members => _ = states.find_or_insert_all(own, members, inserted),
        }
    }
    // Not known of entries that were found.
    Initialized::default()
}

impl Cursor {
    /// For these tables, and others with the same seeds.
    pub fn new(flows: &Flows) -> Self {
        Self { by: flows.by, any_dropped: false, v4: Family::of(&flows.v4), v6: Family::of(&flows.v6) }
    }

    /// Leaves out packets that arrived, before they are looked up: all but those that `keeps` holds by their index in the batch.
    pub fn retain(&mut self, keeps: impl Fn(u32) -> bool) {
        self.v4.retain_if(|packet| keeps(packet.frame));
        self.v6.retain_if(|packet| keeps(packet.frame));
    }

    /// Takes the flows of a batch's packets as they came to the chain, and starts to look for them. There is room for them then in tables
    /// that [grow](Flows::growing).
    pub fn extract_keys(&mut self, batch: &Batch, flows: &mut Flows) {
        flows.v4.reserve(batch.v4().keys.len());
        flows.v6.reserve(batch.v6().keys.len());
        self.extract_keys_elsewhere(batch);
        flows.v4.prefetch(&self.v4.flows);
        flows.v6.prefetch(&self.v6.flows);
    }

    /// Takes the flows of packets that will be looked for in other tables with the same seeds.
    pub(super) fn extract_keys_elsewhere(&mut self, batch: &Batch) {
        self.v4.extract_keys(self.by, batch.v4(), batch);
        self.v6.extract_keys(self.by, batch.v6(), batch);
    }

    /// Has functions judge the packets of a batch that pass. Where it is the first time for a batch, their flows are looked up before, and
    /// those without an entry get one: piece by piece, in several calls of `judge`, if they do not need the `whole` batch in one.
    pub fn visit(
        &mut self,
        flows: &mut Flows,
        is_first: bool,
        whole: bool,
        batch: &mut Batch,
        mut judge: impl FnMut(&mut Batch, &mut Visit<'_>),
    ) {
        let verdicts = batch.verdicts();
        let any_dropped = !all_pass(verdicts);
        if is_first && any_dropped {
            self.v4.retain(verdicts);
            self.v6.retain(verdicts);
        }
        let visit = &mut Visit { cursor: self, flows };
        visit.cursor.begin_part();
        // Of packets that were looked up before, the first function leaves them out.
        visit.cursor.any_dropped = any_dropped && !is_first;
        if is_first && !whole && !visit.cursor.v4.has_others && !visit.cursor.v6.has_others {
            visit.pieces(batch, judge);
        } else {
            if is_first {
                visit.find_or_insert(batch, false);
            }
            judge(batch, visit);
            visit.cursor.end_piece();
        }
        self.v4.end();
        self.v6.end();
    }

    /// All packets that there are will be judged: those of a batch, or of a part of shared tables.
    pub(super) fn begin_part(&mut self) {
        self.any_dropped = false;
        self.v4.begin();
        self.v6.begin();
    }

    /// Only those of a piece will be judged, whose entries were asked for.
    fn begin_piece(&mut self, from: usize) {
        self.v4.begin_piece(from);
        self.v6.begin_piece(from);
    }

    fn end_piece(&mut self) {
        self.v4.end_piece();
        self.v6.end_piece();
    }
}

impl Visit<'_> {
    /// Entries of the next piece are on their way while functions judge this one.
    fn pieces(&mut self, batch: &mut Batch, mut judge: impl FnMut(&mut Batch, &mut Self)) {
        let most = self.cursor.v4.lookups.len().max(self.cursor.v6.lookups.len());
        self.prefetch_entries(0);
        for from in (0..most).step_by(PIECE) {
            self.cursor.begin_piece(from);
            self.prefetch_entries(from + PIECE);
            self.find_or_insert(batch, true);
            judge(batch, self);
            self.cursor.end_piece();
        }
    }

    /// Asks for the entries of a piece.
    fn prefetch_entries(&mut self, from: usize) {
        self.cursor.v4.prefetch_entries(&mut self.flows.v4, from);
        self.cursor.v6.prefetch_entries(&mut self.flows.v6, from);
    }

    /// Finds or inserts the entries of the packets that will be judged; `is_prefetched` if their slots were looked for before.
    pub(super) fn find_or_insert(&mut self, batch: &mut Batch, is_prefetched: bool) {
        let Self { cursor: Cursor { v4, v6, .. }, flows } = self;
        v4.find_or_insert(&mut flows.v4, is_prefetched);
        v6.find_or_insert(&mut flows.v6, is_prefetched);
        if flows.when_full == WhenFull::DropNew {
            let verdicts = batch.columns().verdicts;
            for packet in v4.without().iter().chain(v6.without()) {
                if packet.is_member() {
                    verdicts[packet.frame as usize] = Verdict::Drop(DropReason::FlowTableFull);
                }
            }
        }
    }

    /// Finds the entries of the packets that will be judged, whose slots prefetch hints have said; inserts none.
    pub(super) fn find(&mut self) {
        self.cursor.v4.find(&mut self.flows.v4);
        self.cursor.v6.find(&mut self.flows.v6);
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
        self.for_each_initialized(at, batch, |_, _| {}, step);
    }

    /// The same where a state begins as something else than 0: `begin` makes it so, by the flow's first packet that the function sees. It
    /// may be called before steps of packets that came earlier, of other flows.
    #[inline]
    pub fn for_each_initialized<S: bytemuck::Pod>(
        &mut self,
        at: StateAt,
        batch: &mut Batch,
        begin: impl FnMut(Seen<'_, '_>, &mut S),
        mut step: impl FnMut(Seen<'_, '_>, &mut S) -> Verdict,
    ) {
        self.each_new(at, batch, begin);
        let columns = &mut batch.columns();
        let Self { cursor: Cursor { any_dropped, v4, v6, .. }, flows } = self;
        // One loop for both, so that there is one place for the step to be put into.
        for (of_version, is_v4) in [(v4.present(&mut flows.v4), true), (v6.present(&mut flows.v6), false)] {
            let Some((lookups, mut entries)) = of_version else { continue };
            for packet in lookups {
                let state = entries.state(packet.slot, at);
                let verdict = step(packet.seen(is_v4, columns), state);
                if !verdict.is_pass() {
                    columns.verdicts[packet.frame as usize] = verdict;
                    *any_dropped = true;
                }
            }
        }
    }

    /// Has a function look at the packets that pass and have an entry, in order, each with the function's state as it is before any of
    /// them is judged.
    pub fn look<S: bytemuck::Pod>(
        &mut self,
        at: StateAt,
        batch: &mut Batch,
        mut see: impl FnMut(Seen<'_, '_>, &S),
    ) {
        self.each_new(at, batch, |_, _: &mut S| {});
        let columns = &mut batch.columns();
        let Self { cursor: Cursor { v4, v6, .. }, flows } = self;
        for (of_version, is_v4) in [(v4.present(&mut flows.v4), true), (v6.present(&mut flows.v6), false)] {
            let Some((lookups, mut entries)) = of_version else { continue };
            for packet in lookups {
                see(packet.seen(is_v4, columns), entries.state(packet.slot, at));
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
        let Cursor { any_dropped, v4, v6, .. } = &mut *self.cursor;
        if mem::take(any_dropped) {
            v4.leave_out(columns.verdicts);
            v6.leave_out(columns.verdicts);
        }
        // Of both, since those that lack it are to be known.
        if !(v4.may_lack(at).is_empty() & v6.may_lack(at).is_empty()) {
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
        let Self { cursor: Cursor { v4, v6, .. }, flows } = self;
        let of_v4 = (&v4.lookups[v4.piece.clone()], &v4.inserted, flows.v4.entries(), true);
        let of_v6 = (&v6.lookups[v6.piece.clone()], &v6.inserted, flows.v6.entries(), false);
        for (lookups, inserted, mut entries, is_v4) in [of_v4, of_v6] {
            for &number in inserted {
                let packet = &lookups[number as usize];
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
        let Cursor { v4, v6, .. } = &*self.cursor;
        for (without, is_v4) in [(v4.without(), true), (v6.without(), false)] {
            for packet in without {
                let frame = packet.frame as usize;
                if columns.verdicts[frame].is_pass() {
                    let verdict = step(packet.seen(is_v4, columns));
                    columns.verdicts[frame] = verdict;
                }
            }
        }
    }
}

/// Whether no packet was dropped, as it mostly is.
#[inline]
pub(super) fn all_pass(verdicts: &[Verdict]) -> bool {
    verdicts.iter().fold(true, |all, verdict| all & verdict.is_pass())
}
