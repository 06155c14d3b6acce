//! Flow definitions: which packets belong together, and how long and for how many of them state is kept.
//!
//! Functions that name the same definition share one entry for each flow: the table looks a packet's flow up once, and each
//! function finds its own part of the entry, which is absent until the function has seen a packet of the flow. The entry's
//! lifetime is the definition's: it is dead when the time since the last packet that came to the first of these functions has reached
//! the timeout, judged when the next one comes there.
//!
//! - Shape: an entry takes whole cache lines: 24 bytes (IPv6: 48) and what the functions keep.
//! - Keys are those of the packet as it came to the chain, whatever functions have rewritten since.
//! - Time comes from the packets; time that runs backwards counts as 0.

mod config;
mod cursor;
mod ends;
mod facts;
mod flow_keys;
mod name;
mod oracle;
mod shared;
mod tables;

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_memory::{LaidOut, Layout};
pub use packetloom_packet::Role;
use packetloom_packet::batch::{Columns, Parsed, Rewritable};
use packetloom_packet::{
    Batch, Dscp, EndReason, FlowKey, Key, KeyBits, Layers, LinkType, Timestamp, Verdict,
};
pub use packetloom_table::states::{
    Counts, Entry, FUNCTIONS, StateAt, entry_bytes, header_words, key_and_functions, state_words,
};

pub use self::config::{By, Config, WhenFull, connection_of};
pub(crate) use self::config::{Remembered, describe_remembered};
pub use self::cursor::{Cursor, Visit};
pub use self::ends::{End, Ending, in_order};
pub use self::facts::{Facts, FactsKept, FlowEnds, FlowFacts, Selection};
pub use self::flow_keys::{V4, V6, key_words};
pub use self::name::{FlowName, Top};
pub use self::oracle::{Found, OracleFlow, OracleFlows, SavedFlow};
pub use self::shared::{Poisoned, SharedFlows, Visitor};
pub use self::tables::{AnyEntry, Flows, Forgotten, HeldAt, Sweep};
use crate::oracle::OraclePacket;
use crate::units::Span;
use crate::{Logged, Records, Report};

/// Which packets belong together, and what holds for their state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// What packets of a flow have in common.
    pub by: By,
    /// State is forgotten when its flow was silent for so long.
    pub timeout: Span,
    /// Flows of each IP version at a time, over all workers.
    pub max_flows: usize,
    /// What becomes of a new flow when there are as many.
    pub when_full: WhenFull,
}

impl Definition {
    /// Bytes of an entry of IPv4 and of IPv6 whose functions keep so many words.
    pub fn entry_bytes(&self, words: usize) -> [usize; 2] {
        [V4, V6].map(|key_words| entry_bytes(self.by.key_form().words(key_words), words))
    }
}

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, timeout, max_flows, when_full } = self;
        write!(f, "{by}, forgotten after ")?;
        match timeout.limit() {
            Some(_) => timeout.fmt(f)?,
            None => f.write_str("no time")?,
        }
        write!(f, ", at most {max_flows}, then {when_full}")
    }
}

/// What a function keeps for each flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// The definition's name in the chain file; none for the one that is meant unless another is named.
    pub flows: Option<String>,
    /// What its flows may be.
    pub by: &'static [By],
    /// Words of 64 bits.
    pub words: usize,
}

/// How a function takes many packets of one flow on a device.
#[derive(Clone, Copy, Debug)]
pub enum FlowGroup {
    /// `<name>_group` takes them with all items of a group.
    Own,
    /// The same; and `<name>_summarize` says in this struct, if there is something to say, what they do to a state, and `<name>_apply` brings a
    /// state up to date by that, if it can: of packets that functions before have dropped it knows how many there are, not which ones.
    Summarized(Option<Layout>),
    /// One step after the other.
    Serial,
}

/// The step of a function as text for a device.
///
/// `STEP(name)` takes one packet with its flow's state, and counts; `STEP_WITHOUT(name)` judges packets without an entry:
/// `packets.kernel.c` of the engine has these, and what else is there before it.
///
/// Devices run it as it is, so there are those of this crate alone: their texts access the flow's words, parameters and counters that they are given, and
/// nothing else.
#[derive(Clone, Debug)]
pub struct DeviceKernel(KernelSpec);

/// What there is to say of a [`DeviceKernel`].
#[derive(Clone, Debug)]
pub struct KernelSpec {
    /// What its step is called.
    pub name: &'static str,
    /// Its text after such as it shares with other functions.
    pub texts: &'static [Text],
    /// Its state, if it keeps any: words of 64 bits.
    pub state: Option<Layout>,
    /// What it is given. A field `note` of that is the bit of a packet's notes which the engine has for it: of a function that remembers flows
    /// ([`crate::PerFlow::remembers`]) the one that says that a packet is the first one of its flow.
    pub parameters: Parameters,
    /// How it takes many packets of one flow.
    pub flow_group: FlowGroup,
    /// What it counts by name: words of 64 bits.
    pub totals: Option<Layout>,
    /// What it counts by an index that only packets decide: these words of 64 bits, so many times, one after the other.
    pub more: Vec<(Layout, usize)>,
    /// Whether it looks at DSCPs.
    pub dscps: bool,
    /// Whether it lists packets one by one: the first [`LISTED`], by time and then by IP version and source. What it counted goes on with a
    /// [`ListRecord`] for each.
    pub lists: bool,
    /// Whether rules are to be found for it, which [`Offload`](crate::Offload) has. What they [decide](Decision) stands in the packet's notes, from the bit
    /// `note` of its parameters on; behind these [`DECISION_BITS`] it notes that it was this that decided.
    pub decides: bool,
    /// What it hands out of flows, whose definition it has to itself: then it judges the packets that a meter counts.
    pub exports: Option<Exports>,
}

/// What the step of a function that exports its state hands out, and looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exports {
    /// Whether it judges packets in all framings.
    pub all_framings: bool,
    /// Whether it looks at more than keys say: [`details_of`](crate::meter::details_of).
    pub details: bool,
}

impl KernelSpec {
    /// A step with these texts that keeps, is given and counts nothing, and takes one packet after the other.
    pub(crate) fn new(name: &'static str, texts: &'static [Text]) -> Self {
        Self {
            name,
            texts,
            state: None,
            parameters: Parameters::default(),
            flow_group: FlowGroup::Serial,
            totals: None,
            more: Vec::new(),
            dscps: false,
            lists: false,
            decides: false,
            exports: None,
        }
    }
}

/// Why a step hands out the state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// The state of the flow was over.
    State(End),
    /// The step says that the record ends.
    Record(EndReason),
}

impl Exported {
    /// All, with the names that kernels have for them.
    const NAMED: [(&str, Self); 6] = [
        ("ENDED_EXPIRED", Self::State(End::Expired)),
        ("ENDED_EVICTED", Self::State(End::Evicted)),
        ("ENDED_IDLE", Self::Record(EndReason::IdleTimeout)),
        ("ENDED_ACTIVE", Self::Record(EndReason::ActiveTimeout)),
        ("ENDED_CONNECTION", Self::Record(EndReason::EndOfFlow)),
        ("ENDED_WITHOUT_ROOM", Self::Record(EndReason::LackOfResources)),
    ];

    /// What kernels are to be told of them.
    pub fn defines() -> impl Iterator<Item = (String, String)> {
        (1..).zip(Self::NAMED).map(|(number, (name, _)): (u32, _)| (name.into(), format!("{number}u")))
    }

    /// That of a number that a kernel has written.
    pub fn of_number(number: u64) -> Option<Self> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::NAMED.get(index).map(|&(_, exported)| exported)
    }
}

/// What rules decide about a packet, as kernels have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The packet passes.
    Permits,
    /// So does the connection that it opens.
    Admits,
    /// It is dropped.
    Denies,
    /// It is dropped, since no rule matches.
    DeniesByDefault,
}

/// Bits of a [`Decision`].
pub const DECISION_BITS: u32 = 2;

impl Decision {
    /// What kernels are to be told of them.
    pub fn defines() -> impl Iterator<Item = (String, String)> {
        let numbers = [
            ("DECISION_PERMITS", Self::Permits as u32),
            ("DECISION_ADMITS", Self::Admits as u32),
            ("DECISION_DENIES", Self::Denies as u32),
            ("DECISION_DENIES_BY_DEFAULT", Self::DeniesByDefault as u32),
            ("DECISION_BITS", DECISION_BITS),
        ];
        let numbers = numbers.into_iter().map(|(name, number)| (name.into(), format!("{number}u")));
        let verdict = "((decision) == DECISION_DENIES ? VERDICT_ACL_RULE : \
            (decision) == DECISION_DENIES_BY_DEFAULT ? VERDICT_ACL_DEFAULT : VERDICT_PASS)";
        numbers.chain([("DECISION_VERDICT(decision)".into(), verdict.into())])
    }
}

/// What functions list one by one at most.
pub const LISTED: usize = 100;

/// A text of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// The name of its file, without `.kernel.c`.
    pub name: &'static str,
    /// The text.
    pub source: &'static str,
    /// Numbers that it has by name.
    pub constants: &'static [(&'static str, u32)],
}

/// What a step is given, in words of 32 bits: a struct, and rows of others behind it.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    words: Vec<u32>,
    /// Of the struct, then of rows.
    layouts: Vec<Layout>,
}

/// Rows behind the struct that a step is given.
pub(crate) struct Rows {
    /// Words before them.
    begin: usize,
    words: Vec<u32>,
    layouts: Vec<Layout>,
}

impl Rows {
    /// Adds rows: in how many words of 32 bits from the struct's beginning on they begin, for `ROWS` in kernels.
    pub(crate) fn add<T: NoUninit + LaidOut>(&mut self, rows: &[T]) -> u32 {
        // Words of 64 bits begin where there can be some.
        self.words.resize(self.words.len().next_multiple_of(2), 0);
        let begin = self.begin + self.words.len();
        self.words.extend(words_of(rows));
        self.layouts.push(T::LAYOUT);
        begin as u32
    }
}

impl Parameters {
    /// A struct alone.
    pub(crate) fn of<T: NoUninit + LaidOut>(own: &T) -> Self {
        Self::with_rows(|_| *own)
    }

    /// A struct that knows where rows behind it begin.
    pub(crate) fn with_rows<T: NoUninit + LaidOut>(make: impl FnOnce(&mut Rows) -> T) -> Self {
        let mut rows =
            Rows { begin: (size_of::<T>() / 4).next_multiple_of(2), words: Vec::new(), layouts: Vec::new() };
        let own = make(&mut rows);
        let mut words = words_of(&[own]);
        words.resize(rows.begin, 0);
        words.extend(rows.words);
        Self { words, layouts: [vec![T::LAYOUT], rows.layouts].concat() }
    }

    /// The words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

packetloom_memory::layout! {
    /// The parameters of a step that is given a bit of notes alone.
    #[derive(Clone, Copy, NoUninit)]
    struct NoteParameters {
        note: u32,
    }
}

packetloom_memory::layout! {
    /// Packets and IP bytes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    pub struct Tally {
        /// Packets.
        pub packets: u64,
        /// Their IP bytes.
        pub bytes: u64,
    }
}

impl Tally {
    /// In this order.
    pub(crate) fn words(self) -> [u64; 2] {
        bytemuck::cast(self)
    }
}

packetloom_memory::layout! {
    /// What is listed of a packet.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    pub struct ListRecord {
        /// Nanoseconds since the epoch.
        pub time: u64,
        /// 1 if it is IPv6, or 0.
        pub is_v6: u64,
        /// The halves of its source.
        pub source: [u64; 2],
        /// What the function says of it.
        pub number: u64,
    }
}

/// What a step counted by name, or by an index, in front of words, and the words behind it; nothing where no device had it.
pub(crate) fn counted<T: Pod>(words: &[u64]) -> (T, &[u64]) {
    match words.split_at_checked(size_of::<T>() / size_of::<u64>()) {
        Some((own, behind)) => (*bytemuck::from_bytes(bytemuck::cast_slice(own)), behind),
        None => (T::zeroed(), &[]),
    }
}

impl Deref for DeviceKernel {
    type Target = KernelSpec;

    fn deref(&self) -> &KernelSpec {
        &self.0
    }
}

impl DeviceKernel {
    pub(crate) fn new(spec: KernelSpec) -> Self {
        Self(spec)
    }

    /// Tells it the bit of packets' notes that is its own, by the field `note` of its parameters.
    ///
    /// # Panics
    /// Where these have none.
    pub fn set_note(&mut self, note: u32) {
        let Parameters { words, layouts } = &mut self.0.parameters;
        let fields = layouts.first().map_or(&[][..], |layout| layout.fields);
        let field = fields.iter().find(|field| field.name == "note").expect("parameters with a note");
        words[field.at / 4] = note;
    }

    /// Words of 64 bits of its state.
    pub fn words(&self) -> usize {
        words_in(self.state)
    }

    /// Words of 64 bits that it counts: by name, and by an index.
    pub fn counters(&self) -> [usize; 2] {
        [words_in(self.totals), self.more.iter().map(|&(layout, rows)| words_in(Some(layout)) * rows).sum()]
    }

    /// Words of 64 bits of its summary, if packets are summarized.
    pub fn summary_words(&self) -> Option<usize> {
        matches!(self.flow_group, FlowGroup::Summarized(_)).then(|| words_in(self.summary()))
    }

    fn summary(&self) -> Option<Layout> {
        match self.flow_group {
            FlowGroup::Summarized(summary) => summary,
            FlowGroup::Own | FlowGroup::Serial => None,
        }
    }

    /// All structs in its text that are declared here.
    pub fn layouts(&self) -> impl Iterator<Item = Layout> {
        self.word_layouts().chain(self.parameters.layouts.iter().copied())
    }

    /// Those of them that are words of 64 bits: state, summary, what it counts.
    pub fn word_layouts(&self) -> impl Iterator<Item = Layout> {
        let more = self.more.iter().map(|&(layout, _)| layout);
        [self.state, self.totals, self.summary()].into_iter().flatten().chain(more)
    }

    /// The names by which its text has them: `NAME_State`, `NAME_Parameters`, `NAME_Totals`, `NAME_More`, `NAME_Summary`.
    pub fn types(&self) -> String {
        let types = [
            ("State", self.state, "u64"),
            ("Parameters", self.parameters.layouts.first().copied(), "u32"),
            ("Totals", self.totals, "u64"),
            ("More", self.more.first().map(|&(layout, _)| layout), "u64"),
            ("Summary", self.summary(), "u64"),
        ];
        let own = self.name;
        let types = types.map(|(what, layout, otherwise)| {
            format!("typedef {} {own}_{what};\n", layout.map_or(otherwise, |layout| layout.name))
        });
        types.concat()
    }

    /// What notes the first packets of flows that a function remembers, by a bit of packets' notes.
    pub fn remember(note: u32) -> Self {
        const TEXTS: &[Text] =
            &[Text { name: "remember", source: include_str!("remember.kernel.c"), constants: &[] }];
        let parameters = Parameters::of(&NoteParameters { note });
        Self(KernelSpec { parameters, flow_group: FlowGroup::Own, ..KernelSpec::new("remember", TEXTS) })
    }

    /// What has rules decide that were found before, as notes say from this bit on.
    pub fn decide(note: u32) -> Self {
        const TEXTS: &[Text] =
            &[Text { name: "decide", source: include_str!("decide.kernel.c"), constants: &[] }];
        let parameters = Parameters::of(&NoteParameters { note });
        let flow_group = FlowGroup::Summarized(None);
        Self(KernelSpec { parameters, flow_group, ..KernelSpec::new("decide", TEXTS) })
    }
}

/// A number for a new flow, from 1, that no other one has: of all workers and runs of this process, since a function may come upon entries that
/// another one began.
pub(crate) fn number_of_new() -> u64 {
    static FLOWS: AtomicU64 = AtomicU64::new(1);
    FLOWS.fetch_add(1, Ordering::Relaxed)
}

/// Takes over words that are counts, whatever they are: counting on never overflows.
pub(crate) fn adopt_counts(words: &mut [u64]) -> bool {
    words.iter_mut().for_each(|count| *count = (*count).min(u64::MAX / 2));
    true
}

/// Words of 32 bits of structs that have no others.
fn words_of<T: NoUninit>(structs: &[T]) -> Vec<u32> {
    let (words, _) = bytemuck::cast_slice(structs).as_chunks();
    words.iter().map(|&bytes| u32::from_ne_bytes(bytes)).collect()
}

/// Words of 64 bits.
fn words_in(layout: Option<Layout>) -> usize {
    layout.map_or(0, |layout| layout.size / size_of::<u64>())
}

/// The batch form of a function that keeps state for flows, owned by one worker.
///
/// A batch may be handed over in several calls, each time with other packets of it: what is found out about a packet in one call and
/// asked for in another stands under its index in the batch.
pub trait FlowFunction: Send {
    /// Told where its state is from now on, where entries are laid out anew during a run.
    fn move_to(&mut self, at: StateAt);

    /// Told of each batch, and how many packets it has, before what it remembers is asked for: forgets those of the batch before.
    /// Only where [`crate::PerFlow::remembers`] says what that is.
    fn begin(&mut self, packets: usize) {
        let _ = packets;
    }

    /// Takes note of the packets of a batch that still pass, in their order, by what it remembers of their flows `at` this place of
    /// each entry; before it judges them.
    fn remember(&mut self, at: StateAt, batch: &mut Batch, flows: &mut Visit<'_>) {
        let _ = (at, batch, flows);
    }

    /// Whether it is to judge all packets of a batch in one call, because it looks at them together beside their flows. Only where
    /// workers never share its table.
    fn wants_whole(&self) -> bool {
        false
    }

    /// Told of each batch that comes to the definition that it has to itself ([`crate::PerFlow::own`]), before flows are looked up: leaves out
    /// the packets that it keeps nothing for.
    fn select(&mut self, batch: &Batch, packets: &mut Cursor) {
        let _ = (batch, packets);
    }

    /// Judges the packets of a batch that still pass, in their order, each with its flow's state; in several calls, one for each
    /// piece of them, or for each part of a shared table.
    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, records: &mut Records<'_>);

    /// Told that its state of a flow, in words, is over; after the batch in which that came about. Only where
    /// [`crate::PerFlow::hears_ends`] says that it wants to know.
    fn on_end(&mut self, flow: &FlowKey, state: &[u64], end: End, records: &mut Records<'_>) {
        let _ = (flow, state, end, records);
    }

    /// Told of a batch that a device has judged in its place, before it is told what was exported there. Only where its [`DeviceKernel`] exports.
    fn judged(&mut self, batch: &Batch) {
        let _ = batch;
    }

    /// Told of a state that its [`DeviceKernel`] has exported.
    fn exported(&mut self, flow: &FlowKey, state: &[u64], why: Exported, records: &mut Records<'_>) {
        let _ = (flow, state, why, records);
    }

    /// By what states are over at the [end of the run](End::Run), lower ones first.
    fn rank(&self, state: &[u64]) -> u128 {
        let _ = state;
        0
    }

    /// What it keeps of a flow beside its words, by these, if anything: [`crate::FunctionSpec::adopt_text`] takes it. Only where
    /// [`crate::PerFlow::has_texts`] says that there is such a thing.
    fn text(&self, state: &[u64]) -> Option<Box<str>> {
        let _ = state;
        None
    }

    /// As [`Function::logged`](crate::Function::logged).
    fn logged(&mut self, into: &mut Vec<Logged>) {
        let _ = into;
    }

    /// Takes note of those of so many packets that its rules decided on a device, in order: only where its [`DeviceKernel`] decides by rules.
    fn take(&mut self, packets: usize, found: &[crate::Found], batch: &mut Batch) {
        let _ = (packets, batch);
        debug_assert!(found.is_empty(), "a function without rules");
    }

    /// Adds what its [`DeviceKernel`] counted on a device.
    fn add(&mut self, counted: &[u64]) {
        debug_assert!(counted.is_empty(), "a function without a kernel");
    }

    /// As [`Function::go_on`](crate::Function::go_on).
    fn go_on(&mut self, counted: &dyn Report) {
        let _ = counted;
    }

    /// What it counted.
    fn report(&self, flows: &Flows) -> Box<dyn Report>;
}

/// The slow, obvious form of such a function.
pub trait FlowOracle {
    /// What it keeps of a life of a flow, in the words of the batch form; none where it keeps nothing.
    fn save(&self, life: u64) -> Option<Vec<u64>>;

    /// As [`FlowFunction::text`].
    fn text(&self, life: u64) -> Option<Box<str>> {
        let _ = life;
        None
    }

    /// Takes over what was kept of a flow that has this life now.
    fn load(&mut self, life: u64, words: &[u64]);

    /// Forgets what it keeps of a life of a flow.
    fn forget(&mut self, life: u64);

    /// Whether it remembers a life of a flow.
    fn is_remembered(&self, life: u64) -> bool {
        let _ = life;
        false
    }

    /// Remembers a life of a flow.
    fn recall(&mut self, life: u64) {
        let _ = life;
    }

    /// As [`Oracle::reach`](crate::Oracle::reach).
    fn reach(&mut self, packet: u64) {
        let _ = packet;
    }

    /// Takes note of one packet before it is judged, by its flow of the definition of what is remembered; by none where there was no
    /// room. Only where [`crate::PerFlow::remembers`] says what that is.
    fn remember(&mut self, packet: &OraclePacket, flow: Option<&OracleFlow>) {
        let _ = (packet, flow);
    }

    /// As [`FlowFunction::select`]: whether it keeps something for a packet.
    fn select(&mut self, packet: &OraclePacket) -> bool {
        let _ = packet;
        true
    }

    /// Judges one packet, and may rewrite its headers. State is kept by [`OracleFlow::life`].
    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, records: &mut Records<'_>) -> Verdict;

    /// As [`FlowFunction::on_end`], of a life of a flow.
    fn on_end(&mut self, life: u64, flow: &FlowName, end: End, records: &mut Records<'_>) {
        let _ = (life, flow, end, records);
    }

    /// As [`FlowFunction::rank`], of a life of a flow.
    fn rank(&self, life: u64) -> u128 {
        let _ = life;
        0
    }

    /// Judges a packet that has no flow, since there is no room or since it is of none.
    fn step_without(&mut self, packet: &mut OraclePacket, role: Role) -> Verdict {
        let _ = (packet, role);
        Verdict::Pass
    }

    /// As [`Oracle::logged`](crate::Oracle::logged).
    fn logged(&self) -> &[u32] {
        &[]
    }

    /// As [`Function::go_on`](crate::Function::go_on).
    fn go_on(&mut self, counted: &dyn Report) {
        let _ = counted;
    }

    /// What it counted, in the same form as the function's; of the flows that `flows` says are held.
    fn report(&self, flows: &OracleFlows) -> Box<dyn Report>;
}

/// A packet as a function sees it that keeps state for flows.
#[derive(Debug)]
pub struct Seen<'a, 'b> {
    /// Its index in the batch.
    pub frame: u32,
    /// When it came.
    pub now: Timestamp,
    /// IP bytes.
    pub bytes: u32,
    /// Whether the lower endpoint of its flow sent it, or the initiator; of a query of ICMP, whether it is the request.
    pub from_a: bool,
    /// What it is to its flow: one of its packets, where flows are not by connection.
    pub role: Role,
    /// Its place among the keys of its IP version.
    at: u32,
    is_v4: bool,
    columns: &'a mut Columns<'b>,
}

/// A packet's place among the keys of its IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAt {
    /// Among IPv4's.
    V4(usize),
    /// Among IPv6's.
    V6(usize),
}

/// What a packet's key says beside its addresses; as in [`MatchKey4`](packetloom_packet::MatchKey4).
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// IP protocol number.
    pub protocol: u8,
    /// TCP flags.
    pub tcp_flags: u8,
    /// Which fields hold something.
    pub bits: KeyBits,
    /// Source port, or ICMP type.
    pub source_port: u16,
}

impl Seen<'_, '_> {
    /// Its place among the keys of its IP version.
    #[inline]
    pub fn key_at(&self) -> KeyAt {
        if self.is_v4 { KeyAt::V4(self.at as usize) } else { KeyAt::V6(self.at as usize) }
    }

    /// Its 5-tuple, as functions before have rewritten it.
    pub fn flow(&self) -> FlowKey {
        match self.key_at() {
            KeyAt::V4(at) => FlowKey::from_v4(&self.columns.v4.keys[at]).0,
            KeyAt::V6(at) => FlowKey::from_v6(&self.columns.v6.keys[at]).0,
        }
    }

    /// Its key, as functions before have rewritten it.
    #[inline]
    pub fn key(&self) -> Key {
        match self.key_at() {
            KeyAt::V4(at) => Key::V4(self.columns.v4.keys[at]),
            KeyAt::V6(at) => Key::V6(self.columns.v6.keys[at]),
        }
    }

    /// What its key says beside its addresses.
    #[inline]
    pub fn transport(&self) -> Transport {
        let at = self.at as usize;
        if self.is_v4 {
            let key = &self.columns.v4.keys[at];
            let (protocol, tcp_flags, bits) = (key.protocol, key.tcp_flags, key.bits);
            Transport { protocol, tcp_flags, bits, source_port: key.source_port }
        } else {
            let key = &self.columns.v6.keys[at];
            let (protocol, tcp_flags, bits) = (key.protocol, key.tcp_flags, key.bits);
            Transport { protocol, tcp_flags, bits, source_port: key.source_port }
        }
    }

    /// What its key has for ports: those of source and destination, or ICMP type and code.
    pub fn numbers(&self) -> (u16, u16) {
        match self.key() {
            Key::V4(key) => (key.source_port, key.destination_port),
            Key::V6(key) => (key.source_port, key.destination_port),
        }
    }

    /// The port that it came in by, and the one that it leaves by if it passes, if it leaves by one.
    pub fn ports(&self) -> (u16, Option<u16>) {
        let frame = self.frame as usize;
        (self.columns.frames[frame].port, self.columns.egress.get(frame).copied())
    }

    /// What its frame begins with, its captured bytes as they came, and where its headers are.
    #[inline]
    pub fn frame(&self) -> (LinkType, &[u8], Layers) {
        let link = self.columns.frames[self.frame as usize].link;
        (link, self.columns.bytes(self.frame), self.columns.layers(self.frame))
    }

    /// Whether less of its frame was captured than there was.
    pub fn is_cut_off(&self) -> bool {
        let frame = &self.columns.frames[self.frame as usize];
        frame.len < frame.wire_len
    }

    /// As [`Batch::payload`].
    pub fn payload(&self) -> Option<&[u8]> {
        self.columns.payload(self.frame, self.parsed())
    }

    fn parsed(&self) -> Parsed {
        if self.is_v4 { Parsed::V4(self.at) } else { Parsed::V6(self.at) }
    }

    /// Its DSCP, as functions before have rewritten it.
    #[inline]
    pub fn dscp(&self) -> Dscp {
        self.columns.dscp(self.frame)
    }

    /// Its headers, to be read, as functions before have rewritten them, and to be rewritten.
    #[inline]
    pub fn headers(&mut self) -> Rewritable<'_> {
        match self.columns.packet(self.frame, self.parsed()) {
            Some(packet) => packet,
            None => unreachable!("what has a flow has a key"),
        }
    }
}

/// Which packets of a batch begin a flow: what functions remember most often. A function keeps no words for it.
#[derive(Clone, Debug, Default)]
pub struct Beginnings(Vec<bool>);

impl Beginnings {
    /// Forgets the packets of the batch before; there are so many in this one.
    pub fn begin(&mut self, packets: usize) {
        self.0.clear();
        self.0.resize(packets, false);
    }

    /// Takes note of those that are the first ones of their flows that the function sees, which is `at` this place of each entry.
    pub fn remember(&mut self, at: StateAt, batch: &mut Batch, flows: &mut Visit<'_>) {
        flows.each_new(at, batch, |packet, _: &mut ()| self.0[packet.frame as usize] = true);
    }

    /// Whether the packet with this index in the batch is one.
    #[inline]
    pub fn contains(&self, frame: u32) -> bool {
        self.0.get(frame as usize).is_some_and(|&begins| begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    packetloom_memory::layout! {
        #[derive(Clone, Copy, NoUninit)]
        struct Head {
            first: u32,
            note: u32,
            rows: u32,
        }
    }

    #[test]
    fn rows_of_parameters_stand_where_the_head_says() {
        let parameters = Parameters::with_rows(|rows| Head {
            first: rows.add(&[7u32, 8, 9]),
            note: 0,
            rows: rows.add(&[0x1_0000_0002u64]),
        });
        // Words of 64 bits begin at even places.
        assert_eq!(parameters.words(), [4, 0, 8, 0, 7, 8, 9, 0, 2, 1]);
        let mut kernel = DeviceKernel::new(KernelSpec { parameters, ..KernelSpec::new("own", &[]) });
        kernel.set_note(21);
        assert_eq!(kernel.parameters.words()[..3], [4, 21, 8]);
        let types = "typedef u64 own_State;\ntypedef Head own_Parameters;\ntypedef u64 own_Totals;\n\
            typedef u64 own_More;\ntypedef u64 own_Summary;\n";
        assert_eq!(kernel.types(), types);
    }

    /// Blocks of code that are in a page, of a language.
    fn blocks<'a>(page: &'a str, language: &str) -> impl Iterator<Item = &'a str> {
        let fence = format!("```{language}\n");
        let begins: Vec<_> = page.match_indices(&fence).map(|(at, _)| at + fence.len()).collect();
        begins.into_iter().filter_map(|begin| Some(page[begin..].split_once("```")?.0))
    }

    /// What `docs/kernels.md` shows of a step is what is compiled and compared with the oracle.
    #[test]
    fn the_page_on_kernels_shows_a_step_as_it_is() {
        let page = include_str!("../../../../docs/kernels.md");
        let (_, page) = page.split_once("## A step of a network function").expect("the part on steps");
        let (declared, source) =
            (include_str!("../counter/mod.rs"), include_str!("../counter/counter.kernel.c"));
        assert_eq!(blocks(page, "c").collect::<Vec<_>>(), [source]);
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        let shown: Vec<_> = blocks(page, "rs").map(words).collect();
        assert_eq!(shown.len(), 2);
        shown.iter().for_each(|block| assert!(words(declared).contains(block), "{block}"));
    }
}
