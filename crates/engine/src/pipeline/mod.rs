//! What one core does with a chain: it takes parsed batches through the functions, which leave verdicts in them, and collects what
//! else comes of it: flow records, encoded, and packets that are to be logged.
//!
//! [`Worker`] is this for whoever has batches of their own; [`Shared`] is what the workers of a chain share.

mod shared;
pub(crate) mod work;
mod worker;

use std::ops::Range;

use packetloom_export::Lines;
use packetloom_nf::flows::{
    AnyEntry, Counts, End, Ending, Exported, FlowFunction, Forgotten, V4, V6, header_words,
};
use packetloom_nf::{Form, Found, Function, FunctionSpec, Logged, Offsets, Report};
use packetloom_packet::{Batch, FlowKey, FlowRecord, LinkType, PacketRecord, Timestamp};
use packetloom_pattern::Match;

pub use self::shared::Shared;
use self::shared::Tables;
use self::work::Records;
pub use self::worker::{Counted, Worker};
use crate::layout::Parts;
use crate::offload::stateful;
use crate::outcome::TopFlows;
use crate::state::Saved;
use crate::{Chain, Error, State};

/// How late a packet of a live source may come, in nanoseconds, and still find its flow: idle state is kept for so much longer. Packets of
/// several queues and interfaces are read in turn, and in a pipe some are out of order, by milliseconds. With a round of sweeps (0.4 s), a
/// tick (50 ms) and what an exporter waits for others (0.1 s), a record leaves within a second of its timeout.
const REORDER_NANOS: u64 = 200_000_000;

/// As many packets' work is done to expire idle state when no packet has come for a while: with four entries a packet, 2.6 million entries a
/// second, and less than 50 ms at a time in which packets wait.
const IDLE_PACKETS: usize = 1 << 15;

/// Records handed out at a time at the end: about as many as fill the buffer of encoded ones.
const DRAINED: usize = 256;

/// Entries looked at at a time where some are to be removed: the records of so many are written before the next ones.
pub(crate) const REMOVED: usize = 1 << 12;

/// A chain's functions with the state of one worker.
pub(crate) struct Pipeline {
    stages: Vec<Stage>,
    /// The tables of the chain's flow definitions.
    tables: Vec<Tables>,
}

/// A function, and what comes out of it beside verdicts.
struct Stage {
    function: Fast,
    encoder: Encoder,
    /// Words of its state, if it is told what becomes of that in the end; and how far it was told, where it is over.
    ends: Option<(usize, Ending)>,
    /// Whether it judges each piece or part of a batch right after the function before it, while the entries are at hand that both keep
    /// their state in.
    joins: bool,
}

/// A function's batch form.
enum Fast {
    Standalone(Box<dyn Function>),
    PerFlow(Box<dyn FlowFunction>, Parts),
}

/// What tells a state of a function that hears of its end from all others, from its first packet on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StateId {
    definition: usize,
    flow: FlowKey,
    rank: u128,
}

/// What a function of a chain was in the chain before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// It was not there.
    None,
    /// The one at this place, which goes on.
    Same(usize),
    /// The one at this place with other rules, whose counts it goes on with.
    OtherRules(usize),
}

impl Fast {
    /// That of a chain's function.
    fn new(chain: &Chain, function: usize) -> Self {
        match (chain.functions[function].form(), chain.layout.parts[function]) {
            (Form::Standalone(function), _) => Self::Standalone(function.function()),
            (Form::PerFlow(function), Some(parts)) => Self::PerFlow(function.function(parts.main.at), parts),
            (Form::PerFlow(_), None) => unreachable!("the layout has a part for each of them"),
        }
    }

    fn go_on(&mut self, counted: &dyn Report) {
        match self {
            Self::Standalone(function) => function.go_on(counted),
            Self::PerFlow(function, _) => function.go_on(counted),
        }
    }
}

impl Pipeline {
    /// Those of the only worker, for batches of up to `batch` packets.
    pub(crate) fn alone(chain: &Chain, batch: usize) -> Self {
        Self::new(chain, &Shared::nothing(chain, batch), 0)
    }

    /// Those of a worker.
    pub(crate) fn new(chain: &Chain, shared: &Shared, worker: usize) -> Self {
        let tables = shared.tables_of(chain, worker);
        let mut before = None;
        let stages = chain.functions.iter().zip(&chain.layout.parts).enumerate();
        let stages = stages.map(|(number, (function, parts))| {
            let encoder = Encoder::new(&**function);
            let main = parts.map(|parts| parts.main.definition);
            let remembers = parts.is_some_and(|parts| parts.remembers.is_some());
            let joins = main.is_some() && !remembers && before == main;
            before = main;
            let ends = match function.form() {
                Form::PerFlow(function) if function.hears_ends() => {
                    Some((function.keeps().words, Ending::default()))
                }
                _ => None,
            };
            Stage { function: Fast::new(chain, number), encoder, ends, joins }
        });
        Self { stages: stages.collect(), tables }
    }

    /// Puts in the state of flows of a chain with the same layout, where no other worker shares their tables.
    pub(crate) fn restore(&mut self, state: &State) {
        let Self { stages, tables } = self;
        for (number, (held, tables)) in state.definitions.iter().zip(tables).enumerate() {
            if let Some(flows) = tables.own() {
                let [v4, v6] = &held.entries;
                flows.restore([v4, v6], held.words(), held.counts, |entry| {
                    let stages = stages.iter_mut().filter(|stage| stage.definition() == Some(number));
                    stages.for_each(|stage| stage.end(entry, End::Evicted));
                });
            }
        }
    }

    /// The flows of each definition of this worker alone, and what its tables counted.
    pub(crate) fn save<'a>(&'a self, chain: &'a Chain) -> impl Iterator<Item = Saved> + use<'a> {
        let used = chain.layout.definitions.iter().zip(&self.tables).enumerate();
        used.map(|(definition, (used, tables))| {
            let (flows, words) = (tables.flows(), used.words());
            let mut saved = Saved { entries: flows.save(words), counts: flows.counts(), ..Saved::default() };
            for (stage, spec) in self.stages.iter().zip(&chain.functions) {
                if let (Fast::PerFlow(function, parts), Form::PerFlow(spec)) = (&stage.function, spec.form())
                    && parts.main.definition == definition
                    && spec.has_texts()
                {
                    let own = spec.keeps().words;
                    saved.add_texts(parts.main.at, (own, words), |state| function.text(state));
                }
            }
            saved
        })
    }

    /// Goes on as those of the chain that follows, whose functions were these before; those that are the same are taken out of these.
    pub(crate) fn succeed(&mut self, mut next: Self, before: &[Before]) {
        let wall_offset = self.stages.first().map_or(0, |stage| stage.encoder.wall_offset);
        next.stages.iter_mut().for_each(|stage| stage.encoder.wall_offset = wall_offset);
        for (stage, before) in next.stages.iter_mut().zip(before) {
            if let Before::OtherRules(before) = before {
                stage.function.go_on(&*self.counted(*before));
            }
        }
        let mut old: Vec<_> = self.stages.drain(..).map(Some).collect();
        for (stage, before) in next.stages.iter_mut().zip(before) {
            let Before::Same(before) = *before else { continue };
            let Some(mut before) = old[before].take() else { continue };
            if let (Fast::PerFlow(function, parts), Fast::PerFlow(_, now)) =
                (&mut before.function, &stage.function)
            {
                *parts = *now;
                function.move_to(now.main.at);
            }
            *stage = Stage { joins: stage.joins, ..before };
        }
        *self = next;
    }

    /// Goes on with a chain of the same layout in which one function has other rules.
    pub(crate) fn change(&mut self, chain: &Chain, function: usize) {
        let counted = self.counted(function);
        let stage = &mut self.stages[function];
        stage.function = Fast::new(chain, function);
        stage.function.go_on(&*counted);
    }

    /// What a function has counted so far.
    fn counted(&self, function: usize) -> Box<dyn Report> {
        match &self.stages[function].function {
            Fast::Standalone(function) => function.report(),
            Fast::PerFlow(function, parts) => function.report(self.tables[parts.main.definition].flows()),
        }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.stages.len()
    }

    /// Takes the flows of a batch's packets as they came, whatever is rewritten later: before they meet the first of the
    /// functions that are here.
    pub(crate) fn extract_keys(&mut self, batch: &Batch) {
        self.tables.iter_mut().for_each(|tables| tables.extract_keys(batch));
    }

    /// Forgets the flows of the first definitions of the chain, which a device keeps from now on, and what was counted of them.
    pub(crate) fn hand_over(&mut self, chain: &Chain, definitions: usize, batch: usize) {
        let empty = Shared::nothing(chain, batch);
        let definitions = self.tables.iter_mut().enumerate().take(definitions);
        definitions.for_each(|(definition, tables)| *tables = empty.tables(chain, definition, 0));
    }

    /// Takes over what a device kept for the first functions.
    pub(crate) fn take_over(&mut self, state: &stateful::State) {
        for definition in 0..state.definitions() {
            state.pieces(definition).for_each(|piece| self.put(definition, piece));
        }
        self.add(state);
    }

    /// Takes over some of the flows that it kept.
    pub(crate) fn put(&mut self, definition: usize, piece: stateful::Piece<'_>) {
        let Self { stages, tables } = self;
        let Some(flows) = tables[definition].own() else { return };
        let mut without_room = Vec::new();
        let is_there = |entry| is_there(stages, definition, piece, entry);
        let v4 = piece.of::<V4>().filter(|&entry| is_there(AnyEntry::V4(entry)));
        let v6 = piece.of::<V6>().filter(|&entry| is_there(AnyEntry::V6(entry)));
        flows.put(v4, v6, |entry| without_room.push(entry));
        for entry in without_room {
            let stages = stages.iter_mut().filter(|stage| stage.definition() == Some(definition));
            stages.for_each(|stage| stage.end(entry, End::Evicted));
        }
    }

    /// Adds what was counted there.
    pub(crate) fn add(&mut self, state: &stateful::State) {
        for (tables, counts) in self.tables.iter_mut().zip(state.counts()) {
            if let Some(flows) = tables.own() {
                flows.add(counts);
            }
        }
        self.add_counted(state);
    }

    /// Adds what the first functions counted on a device.
    pub(crate) fn add_counted(&mut self, state: &stateful::State) {
        for (Stage { function, .. }, counted) in self.stages.iter_mut().zip(&state.functions) {
            if let Fast::PerFlow(function, _) = function {
                function.add(counted);
            }
        }
    }

    /// The functions that hear of the ends of their states in entries of a definition.
    pub(crate) fn ending(&self, definition: usize) -> Vec<usize> {
        let stages = self.stages.iter().enumerate();
        let ending =
            stages.filter(|(_, stage)| stage.ends.is_some() && stage.definition() == Some(definition));
        ending.map(|(function, _)| function).collect()
    }

    /// The states of such a function in some of the flows that a device kept, each with what they are in order by.
    pub(crate) fn ranked<'a>(
        &self,
        function: usize,
        piece: stateful::Piece<'a>,
    ) -> impl Iterator<Item = (u128, AnyEntry<'a>)> {
        let stage = &self.stages[function];
        let definition = stage.definition().unwrap_or_default();
        let entries = piece.entries().filter(move |&entry| is_there(&self.stages, definition, piece, entry));
        entries.filter_map(move |entry| Some((stage.rank(entry)?, entry)))
    }

    /// Tells it of states that are over with the run, and takes the records of them.
    pub(crate) fn end<'a>(
        &mut self,
        function: usize,
        entries: impl Iterator<Item = AnyEntry<'a>>,
        records: &mut Records,
    ) {
        let stage = &mut self.stages[function];
        entries.for_each(|entry| stage.end(entry, End::Run));
        records.append(&mut stage.encoder.records);
    }

    /// From packets' times to those of its records, in nanoseconds.
    pub(crate) fn wall_offset(&self, function: usize) -> i64 {
        self.stages[function].encoder.wall_offset
    }

    /// Takes a parsed batch through the chain.
    ///
    /// # Errors
    /// Another worker failed that shares tables with this one.
    pub(crate) fn judge(&mut self, batch: &mut Batch, expiry: Option<Expiry>) -> Result<(), Error> {
        self.extract_keys(batch);
        self.process(0..self.stages.len(), batch, expiry)
    }

    /// Takes a parsed batch through some of the chain.
    ///
    /// # Errors
    /// Another worker failed that shares tables with this one.
    pub(crate) fn process(
        &mut self,
        part: Range<usize>,
        batch: &mut Batch,
        expiry: Option<Expiry>,
    ) -> Result<(), Error> {
        let tables = &mut self.tables;
        let is_last = part.end == self.stages.len();
        let wall_offset = batch.wall_offset();
        self.stages.iter_mut().for_each(|stage| stage.encoder.wall_offset = wall_offset);
        for run in self.stages[part].chunk_by_mut(|_, after| after.joins) {
            match &mut run[0] {
                Stage { function: Fast::Standalone(function), .. } => function.process(batch),
                Stage { function: Fast::PerFlow(function, parts), .. } => {
                    let Parts { main, remembers } = *parts;
                    if let Some(part) = remembers {
                        function.begin(batch.len());
                        tables[part.definition].visit(part.is_first, false, batch, |batch, flows| {
                            function.remember(part.at, batch, flows);
                        })?;
                    }
                    tables[main.definition].arrive_late(batch, |batch, flows| function.select(batch, flows));
                    let whole = run.iter_mut().filter_map(Stage::per_flow).any(|(f, _)| f.wants_whole());
                    tables[main.definition].visit(main.is_first, whole, batch, |batch, flows| {
                        for (function, encoder) in run.iter_mut().filter_map(Stage::per_flow) {
                            function.process(batch, flows, &mut |record| encoder.record(record));
                        }
                    })?;
                }
            }
            run.iter_mut().for_each(|stage| stage.take_logged(batch, |frame| frame));
        }
        if is_last {
            self.leave();
            if let Some(expiry) = expiry {
                self.tables.iter_mut().for_each(|tables| tables.sweep(expiry));
                self.leave();
            }
        }
        Ok(())
    }

    /// To be called when all functions are done with a batch, or those of a part with whose tables no others do anything: tells them which
    /// states are over.
    pub(crate) fn leave(&mut self) {
        for stage in self.stages.iter_mut().filter(|stage| stage.ends.is_some()) {
            if let Some(definition) = stage.definition() {
                self.tables[definition].flows().each_ended(|entry, end| stage.end(entry, end));
            }
        }
        self.tables.iter_mut().for_each(Tables::leave);
    }

    /// Takes some frames of a batch, in a batch of their own, through standalone functions of the chain; `frames` are their places
    /// in the whole one.
    pub(crate) fn process_aside(&mut self, part: Range<usize>, aside: &mut Batch, frames: &[u32]) {
        for stage in &mut self.stages[part] {
            let Fast::Standalone(function) = &mut stage.function else { continue };
            function.process(aside);
            stage.take_logged(aside, |frame| frames[frame as usize]);
        }
    }

    /// Has a function take what a device found about so many packets in its place.
    pub(crate) fn take(
        &mut self,
        function: usize,
        packets: usize,
        found: &mut Vec<Found>,
        batch: &mut Batch,
    ) {
        let stage = &mut self.stages[function];
        match &mut stage.function {
            Fast::Standalone(function) => function.take(packets, found, batch),
            Fast::PerFlow(function, _) => function.take(packets, found, batch),
        }
        stage.take_logged(batch, |frame| frame);
        // With those of frames that were judged aside.
        stage.encoder.log_entries.sort_unstable_by_key(LogEntry::place);
    }

    /// Has a function judge a batch with what a device found in the first `searched` packets.
    pub(crate) fn take_matches(
        &mut self,
        function: usize,
        searched: usize,
        matches: &[Match],
        batch: &mut Batch,
    ) {
        let stage = &mut self.stages[function];
        if let Fast::Standalone(function) = &mut stage.function {
            function.take_matches(searched, matches, batch);
        }
        stage.take_logged(batch, |frame| frame);
    }

    /// Tells a function of a batch, or a piece of one, that a device has judged in its place.
    pub(crate) fn judged(&mut self, function: usize, batch: &Batch) {
        if let Fast::PerFlow(function, _) = &mut self.stages[function].function {
            function.judged(batch);
        }
    }

    /// Has its records have times as far from those of packets as this many nanoseconds.
    pub(crate) fn go_by(&mut self, function: usize, wall_offset: i64) {
        self.stages[function].encoder.wall_offset = wall_offset;
    }

    /// Tells it of a state that was exported there; which one that is, of all that there ever are.
    pub(crate) fn exported(
        &mut self,
        function: usize,
        why: Exported,
        entry: AnyEntry<'_>,
        state: &[u64],
    ) -> Option<StateId> {
        let Stage { function, encoder, .. } = &mut self.stages[function];
        let Fast::PerFlow(function, parts) = function else { return None };
        let flow = entry.flow();
        function.exported(&flow, state, why, &mut |record| encoder.record(record));
        Some(StateId { definition: parts.main.definition, flow, rank: function.rank(state) })
    }

    /// Tells functions of entries of a definition for which a device has no room, as [`Flows::save`](packetloom_nf::flows::Flows::save) has them.
    pub(crate) fn evicted(&mut self, definition: usize, entries: &[Vec<u64>; 2], words: usize) {
        for (entries, key_words) in entries.iter().zip([V4, V6]) {
            for entry in entries.chunks_exact(header_words(key_words) + words) {
                let entry = AnyEntry::saved(entry, key_words);
                let stages = self.stages.iter_mut().filter(|stage| stage.definition() == Some(definition));
                stages.for_each(|stage| stage.end(entry, End::Evicted));
            }
        }
    }

    /// Hands out some of what the functions still hold; returns whether there is more.
    pub(crate) fn drain(&mut self) -> bool {
        let Self { stages, tables } = self;
        stages.iter_mut().any(|stage| stage.drain(tables))
    }

    /// The same of some functions.
    pub(crate) fn drain_some(&mut self, functions: &[usize]) -> bool {
        let Self { stages, tables } = self;
        functions.iter().any(|&function| stages[function].drain(tables))
    }

    /// The entries of a definition that no other worker has.
    pub(crate) fn entries(&self, definition: usize) -> impl Iterator<Item = AnyEntry<'_>> {
        self.tables[definition].flows().entries()
    }

    /// Takes a function's state out of those entries that `is_meant` says, of some after the ones `done` before, as far as no other worker
    /// shares them; whether there are more.
    pub(crate) fn remove_some(
        &mut self,
        function: usize,
        done: &mut Forgotten,
        mut is_meant: impl FnMut(AnyEntry<'_>) -> bool,
    ) -> bool {
        let Self { stages, tables } = self;
        let Stage { function, encoder, ends, .. } = &mut stages[function];
        let Fast::PerFlow(function, Parts { main, .. }) = function else { return false };
        let Some(flows) = tables[main.definition].own() else { return false };
        flows.forget_if(done, REMOVED, main.at, |entry| {
            let is_meant = is_meant(entry);
            if let (true, Some((words, _))) = (is_meant, &*ends)
                && let Some(state) = entry.state_words(main.at, *words)
            {
                let records = &mut |record: &FlowRecord| encoder.record(record);
                function.on_end(&entry.flow(), state, End::Removed, records);
            }
            is_meant
        })
    }

    /// What came of the packets so far beside verdicts, function by function.
    pub(crate) fn effects(&mut self) -> impl Iterator<Item = Effects<'_>> {
        self.stages.iter_mut().map(|Stage { encoder: Encoder { records, log_entries, .. }, .. }| Effects {
            lines: &mut records.lines,
            flows: &mut records.flows,
            log_entries,
        })
    }

    /// Forgets that.
    pub(crate) fn forget_effects(&mut self) {
        for Effects { lines, flows, log_entries } in self.effects() {
            lines.clear();
            flows.clear();
            log_entries.clear();
        }
    }

    /// The records so far, function by function.
    pub(crate) fn records(&mut self) -> impl Iterator<Item = &mut Records> {
        self.stages.iter_mut().map(|stage| &mut stage.encoder.records)
    }

    /// The packets of the last batch that are to be logged, function by function.
    pub(crate) fn log_entries(&mut self) -> impl Iterator<Item = &mut Vec<LogEntry>> {
        self.stages.iter_mut().map(|stage| &mut stage.encoder.log_entries)
    }

    /// What some functions counted, and the flow records that they made.
    pub(crate) fn reports(&self, functions: impl Iterator<Item = usize>) -> (Vec<Box<dyn Report>>, TopFlows) {
        let mut top_flows = TopFlows::default();
        let reports = functions.map(|function| {
            top_flows.merge(&self.stages[function].encoder.top_flows);
            self.counted(function)
        });
        (reports.collect(), top_flows)
    }

    /// What all functions and tables have counted so far.
    pub(crate) fn report(&self) -> WorkerReport {
        let (reports, top_flows) = self.reports(0..self.stages.len());
        let flows = self.tables.iter().map(|tables| tables.flows().counts()).collect();
        WorkerReport { reports, top_flows, flows, state: None }
    }
}

/// Whether an entry that a device kept is still there: what was exported since it was copied is not.
fn is_there(stages: &[Stage], definition: usize, piece: stateful::Piece<'_>, entry: AnyEntry<'_>) -> bool {
    let id = || stages.iter().find_map(|stage| stage.id_of(definition, entry));
    piece.gone.is_empty() || id().is_none_or(|id| !piece.gone.contains(&id))
}

impl Stage {
    /// Hands out some of what the function still holds; returns whether there is more.
    fn drain(&mut self, tables: &mut [Tables]) -> bool {
        let Self { function, encoder, ends, .. } = self;
        let (Fast::PerFlow(function, Parts { main, .. }), Some((words, ending))) = (function, ends) else {
            return false;
        };
        let Some(flows) = tables[main.definition].own() else { return false };
        let records = &mut |record: &FlowRecord| encoder.record(record);
        ending.step(&mut **function, (main.at, *words), flows, DRAINED, records)
    }

    /// Tells the function of an entry that is over, if it has state there and wants to know.
    fn end(&mut self, entry: AnyEntry<'_>, end: End) {
        let Self { function, encoder, ends, .. } = self;
        if let (Fast::PerFlow(function, Parts { main, .. }), Some((words, _))) = (function, ends)
            && let Some(state) = entry.state_words(main.at, *words)
        {
            function.on_end(&entry.flow(), state, end, &mut |record| encoder.record(record));
        }
    }

    /// Which state it has in an entry of a definition, if it hears of its end.
    fn id_of(&self, definition: usize, entry: AnyEntry<'_>) -> Option<StateId> {
        let (Fast::PerFlow(function, Parts { main, .. }), Some((words, _))) = (&self.function, &self.ends)
        else {
            return None;
        };
        if main.definition != definition {
            return None;
        }
        let state = entry.state_words(main.at, *words)?;
        Some(StateId { definition, flow: entry.flow(), rank: function.rank(state) })
    }

    /// By what its state in an entry is over, if it has one there and hears of its end.
    fn rank(&self, entry: AnyEntry<'_>) -> Option<u128> {
        let (Fast::PerFlow(function, Parts { main, .. }), Some((words, _))) = (&self.function, &self.ends)
        else {
            return None;
        };
        Some(function.rank(entry.state_words(main.at, *words)?))
    }

    /// The definition by which it judges packets, if it keeps its state in the entries of flows.
    fn definition(&self) -> Option<usize> {
        match &self.function {
            Fast::PerFlow(_, parts) => Some(parts.main.definition),
            Fast::Standalone(_) => None,
        }
    }

    /// What keeps its state there, and where its records go.
    fn per_flow(&mut self) -> Option<(&mut dyn FlowFunction, &mut Encoder)> {
        match &mut self.function {
            Fast::PerFlow(function, _) => Some((&mut **function, &mut self.encoder)),
            Fast::Standalone(_) => None,
        }
    }

    /// Takes the packets of a batch that are to be logged, as they are after this function, whatever becomes of them later; `named` are the
    /// frames' places where they are looked for.
    fn take_logged(&mut self, batch: &Batch, named: impl Fn(u32) -> u32) {
        let Encoder { logged, log_entries, .. } = &mut self.encoder;
        match &mut self.function {
            Fast::Standalone(function) => function.logged(logged),
            Fast::PerFlow(function, _) => function.logged(logged),
        }
        log_entries.extend(logged.drain(..).filter_map(|Logged { frame, rule, offsets }| {
            let packet = PacketRecord::of(batch, frame as usize)?;
            Some(LogEntry { frame: named(frame), rule, packet, offsets })
        }));
    }
}

/// A packet that is to be logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its index in the batch.
    pub frame: u32,
    /// The rule that asks for it, by its position.
    pub rule: u32,
    /// The packet as it was when the function had judged it.
    pub packet: PacketRecord,
    /// Where the rule's strings lie, where the log says so.
    pub offsets: Option<Box<Offsets>>,
}

impl LogEntry {
    /// By what entries of a function are in order of arrival.
    pub(crate) fn place(&self) -> (u32, u32) {
        (self.frame, self.rule)
    }
}

/// What a function made of packets beside verdicts.
#[derive(Debug)]
pub struct Effects<'a> {
    /// Records of flows that ended, a JSON line each; of functions that have an output for them.
    pub lines: &'a mut String,
    /// The same records, not encoded; of functions that export them.
    pub flows: &'a mut Vec<FlowRecord>,
    /// The packets that it wants logged.
    pub log_entries: &'a mut Vec<LogEntry>,
}

/// What a run, or a worker of it, leaves behind.
pub(crate) struct WorkerReport {
    pub(crate) reports: Vec<Box<dyn Report>>,
    pub(crate) top_flows: TopFlows,
    /// What the tables of each flow definition counted.
    pub(crate) flows: Vec<Counts>,
    /// The state of flows, where it is wanted.
    pub(crate) state: Option<State>,
}

impl WorkerReport {
    /// Adds what another worker counted.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (report, other) in self.reports.iter_mut().zip(&other.reports) {
            report.merge(&**other);
        }
        self.top_flows.merge(&other.top_flows);
        for (counts, &other) in self.flows.iter_mut().zip(&other.flows) {
            *counts = *counts + other;
        }
    }
}

/// What comes out of a function beside verdicts, on its way out.
pub(crate) struct Encoder {
    /// How records are written, if they are at all; and whether they are handed over.
    lines: Option<Lines>,
    is_handed_over: bool,
    /// From packets' times to wall time, in nanoseconds.
    pub(crate) wall_offset: i64,
    pub(crate) records: Records,
    pub(crate) top_flows: TopFlows,
    /// Packets of the last batch that are to be logged.
    pub(crate) log_entries: Vec<LogEntry>,
    /// The same before they are looked at.
    logged: Vec<Logged>,
}

impl Encoder {
    pub(crate) fn new(function: &dyn FunctionSpec) -> Self {
        Self {
            lines: function.records_path().map(|_| function.record_lines()),
            is_handed_over: function.hands_over(),
            wall_offset: 0,
            records: Records::default(),
            top_flows: TopFlows::default(),
            log_entries: Vec::new(),
            logged: Vec::new(),
        }
    }

    pub(crate) fn record(&mut self, record: &FlowRecord) {
        let record = &record.shifted(self.wall_offset);
        self.top_flows.add(record);
        if let Some(lines) = &self.lines {
            lines.write(&mut self.records.lines, record);
        }
        if self.is_handed_over {
            self.records.flows.push(record.clone());
        }
    }
}

/// The time of a batch's last frame whose time can be trusted: where its interface is undefined, so is the unit.
pub(crate) fn last_time(batch: &Batch) -> Option<Timestamp> {
    batch.frames().iter().rev().find(|frame| frame.link != LinkType::NONE).map(|frame| frame.time)
}

/// How far time has come on a live source, so that idle state can expire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiry {
    /// The last packet's time, less what order may be off by.
    now: Timestamp,
    /// Packets since the last time.
    packets: usize,
}

impl Expiry {
    /// How far time has come.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// Where time went on without packets.
    pub(crate) fn at(now: Timestamp) -> Self {
        Self {
            now: Timestamp::from_nanos(now.as_nanos().saturating_sub(REORDER_NANOS)),
            packets: IDLE_PACKETS,
        }
    }

    pub(crate) fn after(batch: &Batch) -> Option<Self> {
        let last = last_time(batch)?.as_nanos();
        let now = Timestamp::from_nanos(last.saturating_sub(REORDER_NANOS));
        Some(Self { now, packets: batch.len() })
    }
}
