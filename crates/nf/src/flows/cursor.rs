//! Takes a batch's packets through tables: their keys and hashes first, then lookups, piece by piece with the functions that keep their
//! state in the entries; cache misses are started ahead.

use std::mem;
use std::ops::Range;

use bytemuck::Zeroable;
use packetloom_packet::batch::{Columns, Keys};
use packetloom_packet::{Batch, DropReason, FrameRef, Verdict};
use packetloom_simd::Isa;
use packetloom_table::states::{Begun, EntriesMut, Hashed, Hasher, Key, NO_SLOT, StateAt, States};

use super::arrivals::{Arrive, FlowOf, Relation, Touched, V4, V6};
use super::config::connection;
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
    fn of(states: &States<W>) -> Self {
        Self {
            isa: Isa::detect(),
            hasher: states.hasher(),
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
        let Self { isa, hasher, relations, flows, touched, .. } = self;
        relations.resize(keys.keys.len(), Relation::member(true));
        flows.resize(keys.keys.len(), Hashed { key: [0; W], hash: 0 });
        touched.resize(keys.keys.len(), Touched::zeroed());
        isa.run(Arrive { keys, frames, hasher: *hasher, flow, flows, relations, touched });
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
    fn ask(&mut self, states: &mut States<W>, from: usize) {
        let piece = self.piece_from(from);
        // Mostly packets are of one IP version.
        if !piece.is_empty() {
            states.ask(&self.flows[piece.clone()], &mut self.touched[piece]);
        }
    }

    /// Only those of a piece will be judged, whose entries were asked for.
    fn begin_piece(&mut self, from: usize) {
        self.piece = self.piece_from(from);
        self.without_from = self.without.len();
    }

    /// The packets that are being judged, if there are any, and the table's entries.
    #[inline]
    fn present<'a>(&'a self, states: &'a mut States<W>) -> Option<(&'a [Touched], EntriesMut<'a>)> {
        let touched = &self.touched[self.piece.clone()];
        if touched.is_empty() { None } else { Some((touched, states.entries())) }
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
    fn touch(&mut self, states: &mut States<W>, is_asked: bool) {
        let Self { touched, flows, piece, has_others, fresh, begun, begun_before, .. } = self;
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
        if self.has_others || states.counts().refused != refused {
            self.set_apart();
        }
    }

    /// Finds the entries of these packets as they are, where a signpost was asked.
    fn find(&mut self, states: &mut States<W>) {
        states.find_asked(&self.flows, &mut self.touched);
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

impl Cursor {
    /// For these tables, and others with the same seeds.
    pub fn new(flows: &Flows) -> Self {
        Self { by: flows.by, any_dropped: false, v4: Family::of(&flows.v4), v6: Family::of(&flows.v6) }
    }

    /// As [`Cursor::arrive`] where tables [grow](Flows::growing), for which there is room then.
    pub fn arrive_growing(&mut self, batch: &Batch, flows: &mut Flows) {
        flows.v4.reserve(batch.v4().keys.len());
        flows.v6.reserve(batch.v6().keys.len());
        self.arrive(batch, flows);
    }

    /// Leaves out packets that arrived, before they are looked up: all but those that `keeps` holds by their index in the batch.
    pub fn retain(&mut self, keeps: impl Fn(u32) -> bool) {
        self.v4.retain_if(|packet| keeps(packet.frame));
        self.v6.retain_if(|packet| keeps(packet.frame));
    }

    /// Takes the flows of a batch's packets as they came to the chain, and starts to look for them.
    pub fn arrive(&mut self, batch: &Batch, flows: &Flows) {
        self.arrive_elsewhere(batch);
        flows.v4.bring(&self.v4.flows);
        flows.v6.bring(&self.v6.flows);
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
                visit.touch(batch, false);
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
        let most = self.cursor.v4.touched.len().max(self.cursor.v6.touched.len());
        self.ask(0);
        for from in (0..most).step_by(PIECE) {
            self.cursor.begin_piece(from);
            self.ask(from + PIECE);
            self.touch(batch, true);
            judge(batch, self);
            self.cursor.end_piece();
        }
    }

    /// Asks for the entries of a piece.
    fn ask(&mut self, from: usize) {
        self.cursor.v4.ask(&mut self.flows.v4, from);
        self.cursor.v6.ask(&mut self.flows.v6, from);
    }

    /// Finds the entries of the packets that will be judged, or makes them; `is_asked` if the tables, or their signposts, were asked where
    /// they are.
    pub(super) fn touch(&mut self, batch: &mut Batch, is_asked: bool) {
        let Self { cursor: Cursor { v4, v6, .. }, flows } = self;
        v4.touch(&mut flows.v4, is_asked);
        v6.touch(&mut flows.v6, is_asked);
        if flows.when_full == WhenFull::DropNew {
            let verdicts = batch.columns().verdicts;
            for packet in v4.without().iter().chain(v6.without()) {
                if packet.is_member() {
                    verdicts[packet.frame as usize] = Verdict::Drop(DropReason::FlowTableFull);
                }
            }
        }
    }

    /// Finds the entries of the packets that will be judged, of which signposts were asked: who has none gets none.
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
        let Self { cursor: Cursor { any_dropped, v4, v6, .. }, flows } = self;
        // One loop for both, so that there is one place for the step to be put into.
        for (of_version, is_v4) in [(v4.present(&mut flows.v4), true), (v6.present(&mut flows.v6), false)] {
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
            let Some((touched, mut entries)) = of_version else { continue };
            for packet in touched {
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
        let of_v4 = (&v4.touched[v4.piece.clone()], &v4.fresh, flows.v4.entries(), true);
        let of_v6 = (&v6.touched[v6.piece.clone()], &v6.fresh, flows.v6.entries(), false);
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
