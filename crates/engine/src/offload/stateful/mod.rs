//! Functions that keep state for flows on a device, exactly as a loop over packets would run them.
//!
//! A batch of packets whose headers were read is partitioned by the flows' hashes, and each part of the flows is judged by one group of a
//! kernel's items: see `chain.kernel.c`. State stays in the memory of the device, in entries of the same shape as those of this machine's
//! tables, so it can be taken over.

mod acls;
mod functions;
pub mod headers;
pub mod records;

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::iter;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use packetloom_device::{
    Arguments, Buffer, Description, Device, Entry, Id, Kernel as Vouched, LaidOut, Layout as Layouts, Loaded,
    Memory, Part as DevicePart, Program, Queue, Shared,
};
use packetloom_nf::flows::{
    AnyEntry, By, Counts, Decision, Definition, DeviceKernel, End, Exported, Exports, FlowGroup, LISTED,
    ListRecord, Text, V4, V6, WhenFull,
};
use packetloom_nf::meter::DETAIL_WORDS;
use packetloom_nf::{Form, FunctionSpec};
use packetloom_packet::{KeyBits, Verdict, protocol};
use packetloom_table::regions::{self, Image, Regions};
use packetloom_table::states::{self, entry_bytes, header_words};

use self::acls::Acl;
pub use self::acls::Decided;
pub(crate) use self::functions::{Functions, room};
use self::records::{Answer, FIRST_NOTE, Ipv6Addresses, Needs, Record};
use super::accelerator::late;
use super::{Error, is_gpu};
use crate::crew::Crew;
use crate::layout::{Layout, Part, Parts};
use crate::pipeline::StateId;
use crate::state::Held;

const PACKETS: &str = include_str!("packets.kernel.c");
const CHAIN: &str = include_str!("chain.kernel.c");
const ELEPHANTS: &str = include_str!("elephants.kernel.c");

/// Tiles of a batch.
const MAX_TILES: u32 = 128;
/// Packets of a part of a batch, more or less; of small batches fewer, so that there are as many parts as can be judged at a time.
const PER_PART: u32 = 32;
const FEW_PER_PART: u32 = 8;
const MANY_PARTS: u32 = 512;
/// Flows with very many packets of a batch that are looked at, of each definition, and in how many batches they are expected after one that
/// had such.
const MAX_ELEPHANTS: u32 = 64;
const LATELY: u64 = 64;
/// Words of a summary beside those of functions and the entry: see `elephants.kernel.c`.
const SUMMARY_HEAD: usize = size_of::<SummaryHead>() / size_of::<u64>();
/// What is counted of each table, behind functions' counters: [`Counts`].
const TABLE_COUNTS: usize = size_of::<Counts>() / size_of::<u64>();
/// Counters by an index that groups keep for themselves; with more, all groups use the same.
const MAX_LOCAL_COUNTERS: usize = 256;
/// Notes of a packet's answer: a bit for each flow definition, from [`FIRST_NOTE`] up; those of functions, below the last one, which says that
/// a DSCP is to be written.
const MAX_NOTES: u32 = 15;
/// What items add up together: see `sum_before` in `chain.kernel.c`.
const SPAN: u32 = 16;
/// What a new flow finds in a full table, as kernels have it.
const FULL: [(&str, WhenFull); 3] = [
    ("FULL_EVICTS", WhenFull::EvictOldest),
    ("FULL_DROPS", WhenFull::DropNew),
    ("FULL_PASSES", WhenFull::PassNew),
];

/// What flows may be by, as kernels have it: those of all packets, and of those that a meter counts, in all framings or in basic ones.
const BY: [&str; 6] =
    ["BY_FIVE_TUPLE", "BY_SOURCE", "BY_INITIATOR", "BY_CONNECTION", "BY_METERED", "BY_METERED_BASIC"];

fn name_of_by(definition: &Definition, exports: Option<Exports>) -> &'static str {
    match (definition.by, exports) {
        (_, Some(Exports { all_framings: true, .. })) => "BY_METERED",
        (_, Some(_)) => "BY_METERED_BASIC",
        (By::FiveTuple | By::VlanFiveTuple, None) => "BY_FIVE_TUPLE",
        (By::Source, None) => "BY_SOURCE",
        (By::Initiator, None) => "BY_INITIATOR",
        (By::Connection, None) => "BY_CONNECTION",
    }
}

/// Structs of the kernels, beside those of steps.
const LAYOUTS: [Layouts; 8] = [
    Record::LAYOUT,
    Ipv6Addresses::LAYOUT,
    Answer::LAYOUT,
    Elephants::LAYOUT,
    ElephantBatches::LAYOUT,
    SummaryHead::LAYOUT,
    ListHead::LAYOUT,
    ListRecord::LAYOUT,
];

packetloom_device::layout! {
    /// Parts with very many packets of a batch: see `chain.kernel.c`.
    #[allow(dead_code, reason = "kernels alone have it")]
    struct Elephants {
        /// How many there are, in this turn and in the next one.
        counts: [u32; 2],
        parts: [[u32; MAX_ELEPHANTS as usize]; 2],
    }
}

packetloom_device::layout! {
    /// The last batch that had elephants, and the last one in which they were looked for; 0 is none.
    #[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
    struct ElephantBatches {
        any: u64,
        last: u64,
    }
}

packetloom_device::layout! {
    /// What a summary begins with: see `elephants.kernel.c`.
    #[allow(dead_code, reason = "kernels alone have it")]
    struct SummaryHead {
        /// What became of it.
        kind: u64,
        /// When the first and the latest packet came, and the longest time without any.
        first: u64,
        latest: u64,
        gap: u64,
    }
}

packetloom_device::layout! {
    /// What a list begins with, before its [`ListRecord`]s.
    #[derive(Clone, Copy, Debug, Pod, Zeroable)]
    struct ListHead {
        /// Records.
        count: u64,
        /// The time after which no packet is among the first ones.
        latest: u64,
    }
}

/// Exports of a packet at most, by each function that exports; and bits of notes that say which there are.
const EXPORTS: u32 = 2;

packetloom_device::arguments! {
    /// What kernels that partition take.
    struct PartitionArguments as PARTITION_PARAMETERS {
        records: read Record [count],
        wide: read Ipv6Addresses [wides],
        count: u32,
        /// Packets of a tile for each item.
        rounds: u32,
        part_bits: u32,
        versions: u32,
        first_seed: u64,
        second_seed: u64,
        /// Whole tiles, and where the parts of each begin.
        order: write u16 [count.div_ceil(partitioners * rounds) * partitioners * rounds],
        offsets: write u16 [count.div_ceil(partitioners * rounds) * ((versions << part_bits) + 1)],
        answers: write Answer [count],
        elephants: write Elephants [..],
        turn: u32,
        found: write ElephantBatches [1],
        batch: u32,
        /// Packets, and keys of connections behind them, that may be wide; items of a group.
        wides: host,
        partitioners: host,
    }
}

packetloom_device::arguments! {
    /// What kernels that judge take, and those of the steps of elephants.
    struct Judge as JUDGE_PARAMETERS {
        records: read Record [packets],
        wide: read Ipv6Addresses [wides],
        answers: write Answer [packets],
        wide_answers: write Ipv6Addresses [if versions == 2 { packets } else { 0 }],
        tiles: u32,
        tile_items: u32,
        part_bits: u32,
        versions: u32,
        order: read u16 [tiles * tile_items],
        offsets: read u16 [tiles * ((versions << part_bits) + 1)],
        /// Tables of flows: see `states.kernel.c`.
        tags: write u32 [..],
        entries: write u64 [..],
        held: write u32 [regions],
        since: u64,
        regions: u32,
        groups: u32,
        capacity: u32,
        timeout: u64,
        when_full: u32,
        first_seed: u64,
        second_seed: u64,
        /// What functions are given, and what they count and list.
        parameters: read u32 [..],
        counted: write u64 [counters],
        lists: write u64 [..],
        list_words: u64,
        elephants: write Elephants [..],
        summaries: write u64 [..],
        turn: u32,
        leaves: u32,
        /// Where functions export, and what those look at beside records.
        exports: write u64 [packets * export_words],
        details: read u64 [packets * detail_words],
        first_number: u64,
        packets: host,
        wides: host,
        counters: host,
        export_words: host,
        detail_words: host,
    } where packets <= tiles * tile_items
}

packetloom_device::arguments! {
    /// What `settle` takes.
    struct Settle as SETTLE_PARAMETERS {
        lists: write u64 [words * count],
        words: u64,
        /// Lists, with a group for each.
        count: host,
    }
}

packetloom_device::arguments! {
    /// What `sweep` takes.
    struct SweepArguments as SWEEP_PARAMETERS {
        tags: read u32 [places / 4],
        entries: write u64 [places * words],
        /// Entries, and words of each.
        places: u32,
        words: u32,
        key_words: u32,
        state_words: u32,
        now: u64,
        timeout: u64,
        exports: write u64 [rows * export_words],
        found: write u32 [1],
        rows: u32,
        export_words: u32,
    }
}

packetloom_device::arguments! {
    /// What `gather` takes.
    struct GatherArguments as GATHER_PARAMETERS {
        entries: read u64 [(first + places) * words],
        first: u32,
        places: u32,
        words: u32,
        key_words: u32,
        gathered: write u64 [places * words],
        found: write u32 [1],
    }
}

/// Flows that are exported at a time by a sweep.
const SWEPT: usize = 4096;

/// Memory for what a sweep exports, and how many that are.
#[derive(Debug)]
struct Sweep {
    kernel: Vouched<SweepArguments<'static>>,
    exports: Memory,
    found: Memory,
}

/// Brings entries together on the device, so that places without one are not copied.
#[derive(Debug)]
struct Gather {
    kernel: Vouched<GatherArguments<'static>>,
    way: Mutex<Way>,
}

/// Memory on the way from the device to this machine, for who copies at a time.
#[derive(Debug)]
struct Way {
    gathered: Memory,
    found: Memory,
    here: Shared,
    count: Shared,
}

/// Bytes of what a device keeps that are copied here at a time, and how long that may take before the device counts as one that hangs.
const CHUNK: usize = 16 << 20;
/// Bytes of entries that one thread takes at a time.
const PIECE: usize = 512 << 10;
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Words of a list before its records, and of a record.
const LIST_HEAD: usize = size_of::<ListHead>() / size_of::<u64>();
const LIST_RECORD: usize = size_of::<ListRecord>() / size_of::<u64>();
/// Names of entry points, which are there for as long as the program runs.
macro_rules! numbered {
    ($name:literal) => {
        numbered!($name; "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15")
    };
    ($name:literal; $($number:literal)*) => { [$(concat!($name, $number)),*] };
}
const PARTITIONS: [&str; MAX_STAGES] = numbered!("partition_");
const JUDGES: [[&str; MAX_STAGES]; 2] = [numbered!("judge_v4_"), numbered!("judge_v6_")];
/// The steps of elephants.
const STEPS: [[[&str; MAX_STAGES]; 2]; 3] = [
    [numbered!("summarize_v4_"), numbered!("summarize_v6_")],
    [numbered!("apply_v4_"), numbered!("apply_v6_")],
    [numbered!("finish_v4_"), numbered!("finish_v6_")],
];
const MAX_STAGES: usize = 16;
/// Access lists at most.
const MAX_LISTS: usize = 16;

/// What suits a device.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Items that run in step.
    lanes: u32,
    /// Items of a group that partitions, and packets of a tile that each of them partitions at most.
    partitioners: u32,
    rounds: u32,
    /// Items of a group that judges.
    judges: u32,
    /// The most parts there are of one IP version, as a power of two.
    part_bits: u32,
    /// Packets of a batch from which on elephants are looked for, if they are.
    elephants_from: Option<u32>,
}

/// Bytes of memory for a group with which the largest groups can be.
const LARGE: u32 = 128 << 10;

impl Shape {
    fn of(device: &Device) -> Self {
        let Description { id, lanes, local_memory, .. } = device.description();
        let lanes = *lanes;
        match id {
            _ if is_gpu(device) && *local_memory >= LARGE => Self {
                lanes,
                partitioners: 512,
                rounds: 16,
                judges: 512,
                part_bits: 12,
                elephants_from: Some(1 << 15),
            },
            _ if is_gpu(device) => Self {
                lanes,
                partitioners: 256,
                rounds: 8,
                judges: 256,
                part_bits: 10,
                elephants_from: Some(1 << 15),
            },
            Id::Host => {
                let lanes = lanes.min(8);
                Self { lanes, partitioners: 8, rounds: 32, judges: 8, part_bits: 4, elephants_from: Some(64) }
            }
            // Cores: a group is an item, which waits for nobody.
            _ => {
                Self { lanes: 1, partitioners: 1, rounds: 512, judges: 1, part_bits: 4, elephants_from: None }
            }
        }
    }

    /// The most packets that a batch may have.
    fn room(&self) -> u32 {
        self.partitioners * self.rounds * MAX_TILES
    }
}

/// A run of functions that share entries.
#[derive(Debug)]
struct Stage {
    definition: usize,
    is_first: bool,
    /// Their places in the chain, with their kernels and where their state is; a function that remembers flows is there twice. An access list that keeps
    /// none has the part of the function before it, which has seen the flow when the list is asked.
    functions: Vec<(usize, DeviceKernel, Part)>,
    /// The first bit of notes that say what its function exports, where it does: it is the only one then.
    exports_note: Option<u32>,
}

/// A function that exports, as the host takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exporter {
    /// Its place in the chain.
    pub(super) function: usize,
    /// The definition that it has to itself.
    definition: usize,
    /// The words of its state.
    words: usize,
    note: u32,
}

impl Stage {
    /// Words of summaries of all functions, if they have such.
    fn summary_words(&self) -> Option<usize> {
        self.functions.iter().map(|(_, kernel, _)| kernel.summary_words()).sum()
    }
}

/// Tables of a flow definition on a device: of IPv4 and IPv6.
#[derive(Debug)]
struct Tables {
    definition: Definition,
    /// Words that functions keep for a flow, and words of entries.
    words: usize,
    entry_words: [usize; 2],
    regions: Regions,
    seeds: [u64; 2],
    tags: [Memory; 2],
    entries: [Memory; 2],
    held: [Memory; 2],
}

/// Memory for how a batch is partitioned, of one batch at a time.
#[derive(Debug)]
pub struct Partition {
    definitions: Vec<PartOrder>,
    /// The most packets of a batch.
    room: u32,
    /// How often a batch was partitioned in it, from 1 on.
    turn: u32,
    /// Of this batch: its packets and IP versions, and whether elephants are judged before others.
    packets: u32,
    versions: u32,
    expects_elephants: bool,
}

/// How a batch's packets are partitioned by the flows of a definition.
#[derive(Debug)]
struct PartOrder {
    /// The numbers of packets by part, and where parts begin.
    order: Memory,
    offsets: Memory,
    /// Which parts are those of elephants.
    elephants: Memory,
}

/// What functions list of packets, in the memory of a device: see `chain.kernel.c`.
#[derive(Debug)]
struct Lists {
    /// The functions' places in the chain.
    functions: Vec<usize>,
    memory: Memory,
    /// Of a list.
    words: usize,
    /// What is done after each batch, where any function lists.
    settle: Option<Vouched<Settle<'static>>>,
}

/// The first functions of a chain on a device, with their state.
#[derive(Debug)]
pub struct Stateful {
    device: Device,
    shape: Shape,
    partitions: Vec<Vouched<PartitionArguments<'static>>>,
    /// For each run of functions, those for IPv4 and IPv6.
    judges: Vec<[Vouched<Judge<'static>>; 2]>,
    /// The same of each step that elephants take before, if they do.
    steps: Vec<Option<[[Vouched<Judge<'static>>; 2]; 3]>>,
    /// Outlines of their pieces.
    summaries: Memory,
    /// What was found of elephants, and batches in which they were looked for.
    found: Found,
    batches: AtomicU32,
    stages: Vec<Stage>,
    acls: Vec<Acl>,
    tables: Vec<Tables>,
    parameters: Memory,
    counted: Memory,
    /// For each function of the chain the number of its first counters, by name and by index.
    counters: Vec<[usize; 2]>,
    counter_count: usize,
    lists: Lists,
    exporters: Vec<Exporter>,
    /// Where any function exports.
    sweep: Option<Sweep>,
    gather: Gather,
    room: u32,
    groups: u32,
}

/// Where a device says which batch had elephants last, and in which they were looked for: in this machine's memory, or where nobody looks.
#[derive(Debug)]
enum Found {
    Here(Shared),
    There(Memory),
}

impl Found {
    fn new(device: &Device) -> Result<Self, Error> {
        Ok(match device.description().shares {
            true => Self::Here(device.share(size_of::<ElephantBatches>())?),
            false => Self::There(device.memory(size_of::<ElephantBatches>())?),
        })
    }

    fn buffer(&self) -> Buffer<'_> {
        match self {
            Self::Here(shared) => shared.into(),
            Self::There(memory) => memory.into(),
        }
    }

    /// Whether any of the last batches had elephants. Those that are queued do not count: there may be many.
    fn lately(&self) -> bool {
        let Self::Here(shared) = self else { return false };
        let mut found = [ElephantBatches::default()];
        shared.load_words(0, bytemuck::cast_slice_mut(&mut found));
        let [ElephantBatches { any, last }] = found;
        any != 0 && last.saturating_sub(any) <= LATELY
    }
}

/// Memory for a batch; each may be the device's or shared with it.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    /// A [`Record`] for each packet.
    pub records: Buffer<'a>,
    /// A [`Ipv6Addresses`] for each packet, where it is IPv6; and keys of connections behind them, where these are needed.
    pub wide: Buffer<'a>,
    /// An [`Answer`] for each packet.
    pub answers: Buffer<'a>,
    /// A [`Ipv6Addresses`] for each packet, where it is IPv6 and rewritten.
    pub wide_answers: Buffer<'a>,
    /// For each of the [access lists](Stateful::acls) a word for each packet.
    pub first: Buffer<'a>,
    /// [`Stateful::export_words`] and [`Stateful::detail_words`] for each packet.
    pub exports: Buffer<'a>,
    /// As that.
    pub details: Buffer<'a>,
    /// Packets that there is room for in each.
    pub room: u32,
    /// Whether any packet may be IPv6.
    pub has_v6: bool,
}

/// How many functions of a chain, from its beginning, a device can run with their state: no others use the same entries. None where none of
/// these has state.
pub fn offloadable(functions: &[Arc<dyn FunctionSpec>], layout: &Layout) -> usize {
    let can = |function: &dyn FunctionSpec| match function.form() {
        Form::PerFlow(per_flow) => match per_flow.kernel() {
            Some(kernel) => !kernel.decides || function.rules().is_some(),
            None => false,
        },
        Form::Standalone(_) => function.is_offloadable() && function.rules().is_some(),
    };
    let mut count = functions.iter().take_while(|function| can(&***function)).count();
    let is_split = |count: usize| {
        let (there, here) = layout.parts.split_at(count);
        let used = |parts: &[Option<Parts>]| -> Vec<usize> {
            let of = |parts: &Parts| [Some(parts.main), parts.remembers];
            parts.iter().flatten().flat_map(of).flatten().map(|part| part.definition).collect()
        };
        let (there, here) = (used(there), used(here));
        there.iter().any(|definition| here.contains(definition))
    };
    let is_too_much = |count: usize| {
        let Split { stages, acls, notes, is_parted, .. } = split(functions, layout, count);
        stages.len() > MAX_STAGES
            || acls.len() > MAX_LISTS
            || definitions(layout, count) as u32 + notes > MAX_NOTES
            || is_parted
    };
    while is_split(count) || is_too_much(count) {
        count -= 1;
    }
    if layout.parts[..count].iter().all(Option::is_none) { 0 } else { count }
}

/// Why a function stays on cores, with those behind it, where it is one that devices run otherwise.
pub(crate) fn why_on_cores(functions: &[Arc<dyn FunctionSpec>], index: usize) -> Option<&'static str> {
    let Form::PerFlow(per_flow) = functions.get(index)?.form() else { return None };
    match per_flow.kernel() {
        None => per_flow.only_on_cores(),
        Some(kernel) => {
            let is_behind = functions[..index].iter().any(|function| function.rewrites());
            (kernel.exports.is_some() && is_behind).then_some("a function before it rewrites headers")
        }
    }
}

/// Definitions that the first functions use.
pub(crate) fn definitions(layout: &Layout, count: usize) -> usize {
    let parts = layout.parts[..count].iter().flatten();
    let used = parts.flat_map(|parts| [Some(parts.main), parts.remembers]).flatten();
    used.map(|part| part.definition + 1).max().unwrap_or(0)
}

/// Whether elephants' pieces are looked at in a stage.
fn takes_elephants(shape: &Shape, stage: &Stage) -> bool {
    shape.elephants_from.is_some() && stage.summary_words().is_some()
}

/// Words of summaries of functions, the most of any stage.
fn summary_words(shape: &Shape, stages: &[Stage]) -> usize {
    let stages = stages.iter().filter(|stage| takes_elephants(shape, stage));
    stages.filter_map(Stage::summary_words).max().unwrap_or(0)
}

/// Words of an export at most.
const MAX_EXPORT: usize = 64;

/// Words of an export before what an entry has: why.
const EXPORT_ENTRY: usize = 1;

/// Words of an export: why, and what an entry has; an even number.
fn export_words(tables: &[Tables], stages: &[Stage]) -> usize {
    let exporting = stages.iter().filter(|stage| stage.exports_note.is_some());
    let words = exporting.map(|stage| EXPORT_ENTRY + header_words(V6) + tables[stage.definition].words);
    words.max().unwrap_or(1).next_multiple_of(2)
}

/// Whether any function looks at details.
fn has_details(stages: &[Stage]) -> bool {
    let mut kernels = stages.iter().flat_map(|stage| &stage.functions).map(|(_, kernel, _)| kernel);
    kernels.any(|kernel| kernel.exports.is_some_and(|exports| exports.details))
}

/// Words of an entry, the most of any definition; an even number.
fn entry_words(tables: &[Tables]) -> usize {
    tables.iter().flat_map(|tables| tables.entry_words).max().unwrap_or(1)
}

/// The first functions of a chain as a device takes them.
#[derive(Debug, Default)]
struct Split {
    stages: Vec<Stage>,
    /// Before which of these the rules of access lists are found.
    acls: Vec<acls::Place>,
    /// Bits of packets' notes that functions need.
    notes: u32,
    /// The last stage in which packets are given other addresses or ports.
    rewritten: Option<usize>,
    /// Whether it cannot be taken: a list behind such a function parts functions that share entries, and what these are between two looks
    /// at them is not known; or a list that logs stands between two such functions.
    is_parted: bool,
}

fn split(functions: &[Arc<dyn FunctionSpec>], layout: &Layout, count: usize) -> Split {
    let mut split = Split::default();
    let first = |parts: &Parts| parts.remembers.unwrap_or(parts.main).definition;
    for (index, (function, parts)) in functions.iter().zip(&layout.parts).enumerate().take(count) {
        let kernel = match function.form() {
            Form::PerFlow(per_flow) => per_flow.kernel(),
            Form::Standalone(_) => None,
        };
        let (Some(mut kernel), Some(Parts { main, remembers })) = (kernel, *parts) else {
            let next = layout.parts[index..count].iter().flatten().next().map(first);
            split.add_list(index, next);
            continue;
        };
        if let Some(part) = remembers {
            let note = split.note(1);
            kernel.set_note(note);
            split.add(index, DeviceKernel::remember(note), part);
        }
        if kernel.decides {
            let note = split.note(acls::NOTE_BITS);
            kernel.set_note(note);
            split.find_rules(index, main.definition, note);
        }
        let exports_note = kernel.exports.map(|_| split.note(EXPORTS));
        // The keys of its flows are those of packets as they come to it.
        split.is_parted |= exports_note.is_some() && split.rewritten.is_some();
        split.add(index, kernel, main);
        if let Some(stage) = split.stages.last_mut() {
            stage.exports_note = exports_note;
        }
        if function.rewrites() {
            // What it hands out are packets between two rewrites, of which answers have the last one only.
            let logs = |acl: &acls::Place| functions[acl.function].hands_out();
            split.is_parted |= split.acls.iter().any(|acl| acl.sees_rewritten && logs(acl));
            split.rewritten = Some(split.stages.len() - 1);
        }
    }
    split
}

impl Split {
    /// The first of so many bits of notes that no other function has.
    fn note(&mut self, bits: u32) -> u32 {
        self.notes += bits;
        (FIRST_NOTE + MAX_NOTES).saturating_sub(self.notes)
    }

    /// Adds a list that keeps no state. Between functions that share entries it is a function as they are, with the part of the one before it;
    /// else it decides between stages.
    fn add_list(&mut self, function: usize, next: Option<usize>) {
        let last = self.stages.last().filter(|stage| Some(stage.definition) == next);
        match last.and_then(|stage| stage.functions.last()) {
            Some(&(_, _, part)) => {
                let note = self.note(acls::NOTE_BITS);
                self.find_rules(function, part.definition, note);
                self.add(function, DeviceKernel::decide(note), part);
            }
            None => self.decide(function, self.stages.len(), None),
        }
    }

    /// Has the rules of a function found before its stage, that of a definition.
    fn find_rules(&mut self, function: usize, definition: usize, note: u32) {
        let joins = self.stages.last().is_some_and(|stage| stage.definition == definition);
        let stage = self.stages.len() - usize::from(joins);
        self.is_parted |= self.rewritten == Some(stage);
        self.decide(function, stage, Some(note));
    }

    fn decide(&mut self, function: usize, stage: usize, note: Option<u32>) {
        let sees_rewritten = self.rewritten.is_some();
        self.acls.push(acls::Place { function, stage, note, sees_rewritten });
    }

    fn add(&mut self, index: usize, kernel: DeviceKernel, part: Part) {
        let last = self.stages.last_mut().filter(|stage| stage.definition == part.definition);
        match last {
            Some(stage) => stage.functions.push((index, kernel, part)),
            None => self.stages.push(Stage {
                definition: part.definition,
                is_first: part.is_first,
                functions: vec![(index, kernel, part)],
                exports_note: None,
            }),
        }
    }
}

impl Stateful {
    /// Compiles the first `count` functions of a chain, as many as [`offloadable`] says or fewer, one of which keeps state, for batches of up to `room` packets, and makes empty
    /// tables, of a size for one of so many `devices` that share the flows.
    ///
    /// # Errors
    /// Where the device fails, has no room, or no atomics of 64 bits.
    pub fn new(
        device: &Device,
        functions: &[Arc<dyn FunctionSpec>],
        layout: &Layout,
        count: usize,
        room: u32,
        devices: usize,
    ) -> Result<Self, Error> {
        let description = device.description();
        if !description.atomics_64 {
            let why = "no atomics of 64 bits, which counters need".into();
            let device = description.id.to_string();
            return Err(packetloom_device::Error::Unavailable { device, why }.into());
        }
        let shape = Shape::of(device);
        let room = room.clamp(1, shape.room());
        let Split { stages, acls, .. } = split(functions, layout, count);
        let mut counters = vec![[0; 2]; count];
        let (mut named, mut indexed) = (0, 0);
        let mut parameters = Vec::new();
        let mut begins = Vec::new();
        for (index, kernel, part) in stages.iter().flat_map(|stage| &stage.functions) {
            // Steps believe it.
            if part.at.word + kernel.words() > layout.definitions[part.definition].words() {
                let why = format!("function {index} has fewer words of a flow than its step takes");
                return Err(packetloom_device::Error::Misuse(why).into());
            }
            counters[*index] = [named, indexed];
            let [by_name, by_index] = kernel.counters();
            named += by_name;
            indexed += by_index;
            // 64 bits may be read at a time.
            parameters.resize(parameters.len().next_multiple_of(2), 0u32);
            begins.push(parameters.len());
            parameters.extend(kernel.parameters.words());
        }
        for counters in &mut counters {
            counters[1] += named;
        }
        let definitions = &layout.definitions[..definitions(layout, count)];
        let tables = definitions.iter().map(|used| {
            let max_flows = used.definition.max_flows.div_ceil(devices.max(1));
            Tables::new(device, &Definition { max_flows, ..used.definition.clone() }, used.words())
        });
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let kernels = stages.iter().flat_map(|stage| &stage.functions);
        let listing: Vec<_> =
            kernels.filter(|(_, kernel, _)| kernel.lists).map(|(index, ..)| *index).collect();
        let exporters = stages.iter().filter_map(|stage| {
            let (function, kernel, part) = stage.functions.first()?;
            let (definition, words) = (part.definition, kernel.words());
            Some(Exporter { function: *function, definition, words, note: stage.exports_note? })
        });
        let exporters: Vec<_> = exporters.collect();
        let acls = acls.into_iter().map(|place| Acl::new(device, &*functions[place.function], place));
        let acls = acls.collect::<Result<Vec<_>, _>>()?;
        let [partitions, judges] =
            programs(&shape, (&stages, &acls), &tables, &counters, &begins, (named, indexed), &listing);
        let mut partitions = device.build(&partitions)?;
        let mut others = partitions.split_off(tables.len()).into_iter();
        let settle = if listing.is_empty() { None } else { others.next() };
        let sweep = if exporters.is_empty() { None } else { others.next() };
        let sweep = sweep.map(|kernel| -> Result<_, Error> {
            let exports = device.memory(SWEPT * export_words(&tables, &stages) * size_of::<u64>())?;
            Ok(Sweep { kernel: vouch(kernel)?, exports, found: device.zeros(size_of::<u32>())? })
        });
        let sweep = sweep.transpose()?;
        let gather = others.next().map(|kernel| Gather::new(device, kernel, &tables)).transpose()?;
        let gather = gather.unwrap_or_else(|| unreachable!("it is the last one of that program"));
        let partitions = partitions.into_iter().map(vouch).collect::<Result<Vec<_>, Error>>()?;
        let judges = device.build(&judges)?.into_iter().map(vouch).collect::<Result<Vec<_>, Error>>()?;
        let mut judges = judges.into_iter();
        let steps = stages.iter().map(|stage| {
            let mut next = || judges.next().zip(judges.next()).map(|(v4, v6)| [v4, v6]);
            let judge = next()?;
            Some((judge, takes_elephants(&shape, stage).then(|| Some([next()?, next()?, next()?])).flatten()))
        });
        let (judges, steps): (Vec<_>, Vec<_>) = steps.flatten().unzip();
        let counter_count = named + indexed + TABLE_COUNTS * tables.len();
        let pieces = room.div_ceil(shape.judges) + MAX_ELEPHANTS;
        let summary = SUMMARY_HEAD + summary_words(&shape, &stages) + entry_words(&tables);
        let summaries = pieces as usize * summary * size_of::<u64>();
        let per_unit = judges.iter().flatten().map(|kernel| Ok(kernel.groups_per_unit()?.unwrap_or(1)));
        let per_unit = per_unit.collect::<Result<Vec<_>, Error>>()?.into_iter().min().unwrap_or(1);
        Ok(Self {
            device: device.clone(),
            shape,
            partitions,
            judges,
            stages,
            acls,
            tables,
            parameters: device.memory_of(bytemuck::cast_slice(&parameters))?,
            counted: device.zeros(counter_count * 8)?,
            counters,
            counter_count,
            lists: Lists::new(device, listing, room, settle)?,
            exporters,
            sweep,
            gather,
            room,
            groups: description.units * per_unit.max(1),
            steps,
            summaries: device.memory(summaries)?,
            found: Found::new(device)?,
            batches: AtomicU32::new(0),
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The most packets of a batch.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// What functions need to know of packets.
    pub fn needs(&self) -> Needs {
        let connections = self.tables.iter().any(|tables| tables.definition.by == By::Connection);
        let mut kernels = self.stages.iter().flat_map(|stage| &stage.functions).map(|(_, kernel, _)| kernel);
        let dscps = kernels.any(|kernel| kernel.dscps);
        Needs { connections, dscps, details: self.detail_words() > 0, exports: !self.exporters.is_empty() }
    }

    /// Words of what functions export with a packet, at most.
    pub fn export_words(&self) -> usize {
        self.exporters.len() * EXPORTS as usize * export_words(&self.tables, &self.stages)
    }

    /// Words of a packet's details, if functions look at them.
    pub fn detail_words(&self) -> usize {
        if has_details(&self.stages) { DETAIL_WORDS } else { 0 }
    }

    /// Functions that export.
    pub(super) fn exporters(&self) -> &[Exporter] {
        &self.exporters
    }

    /// Whether any of them has exported something with a packet, by its answer.
    pub(super) fn has_exported(&self, answer: &Answer) -> bool {
        let mut notes =
            self.exporters.iter().flat_map(|exporter| (0..EXPORTS).map(|when| exporter.note + when));
        notes.any(|note| answer.has_note(note))
    }

    /// What such a function has exported with a packet, by its answer: `read` is asked for so many words, from so many on of the packet's.
    pub(super) fn exported(
        &self,
        number: usize,
        answer: &Answer,
        is_v6: bool,
        mut read: impl FnMut(usize, &mut [u64]),
        mut each: impl FnMut(Exported, AnyEntry<'_>, &[u64]),
    ) {
        let Exporter { words, note, .. } = self.exporters[number];
        let stride = export_words(&self.tables, &self.stages);
        let mut export = [0u64; MAX_EXPORT];
        for when in (0..EXPORTS).filter(|when| answer.has_note(note + when)) {
            let key_words = if is_v6 { V6 } else { V4 };
            let export = &mut export[..EXPORT_ENTRY + header_words(key_words) + words];
            read((number * EXPORTS as usize + when as usize) * stride, export);
            let [why, entry @ ..] = export else { unreachable!("there is why") };
            // What is none cannot be: kernels write what they were told.
            if let Some(why) = Exported::of_number(*why) {
                each(why, AnyEntry::saved(entry, key_words), &entry[header_words(key_words)..]);
            }
        }
    }

    /// Access lists among its functions, which find a rule for each packet.
    pub fn acls(&self) -> usize {
        self.acls.len()
    }

    /// The place in the chain of one of them.
    pub fn acl(&self, number: usize) -> usize {
        self.acls[number].place.function
    }

    /// Whether functions may have rewritten headers before one of them.
    pub fn sees_rewritten(&self, number: usize) -> bool {
        self.acls[number].place.sees_rewritten
    }

    /// What says which of the rules of one of them decided packets.
    pub fn decided(&self, number: usize) -> Decided {
        self.acls[number].decided()
    }

    /// Goes on with the rules of its functions after so many changes, with no batch away.
    ///
    /// # Errors
    /// Where the rules do not fit, and where the device fails.
    pub fn change_rules(&self, functions: &[Arc<dyn FunctionSpec>], changes: usize) -> Result<(), Error> {
        let changing = self.acls.iter().map(|acl| (acl, &*functions[acl.place.function]));
        let mut changing = changing.filter(|(_, function)| !function.changes_at().is_empty());
        changing.try_for_each(|(acl, function)| acl.change(&self.device, function, changes))
    }

    /// Functions that it runs.
    pub fn functions(&self) -> usize {
        self.counters.len()
    }

    /// Flow definitions that these use, the first ones of the chain: no other function uses them.
    pub fn definitions(&self) -> usize {
        self.tables.len()
    }

    /// Memory to partition batches in.
    ///
    /// # Errors
    /// Where there is none.
    pub fn partition_memory(&self) -> Result<Partition, Error> {
        let Shape { partitioners, rounds, part_bits, .. } = self.shape;
        let parts = 2usize << part_bits;
        let part_order = || -> Result<PartOrder, Error> {
            // Behind it the last turn of each part.
            let elephants = size_of::<Elephants>() + parts * size_of::<u32>();
            Ok(PartOrder {
                // As many as whole tiles have.
                order: self.device.memory((self.room as usize + (partitioners * rounds) as usize) * 2)?,
                offsets: self.device.memory(MAX_TILES as usize * (parts + 1) * 2)?,
                elephants: self.device.zeros(elephants)?,
            })
        };
        let definitions = self.tables.iter().map(|_| part_order()).collect::<Result<_, Error>>()?;
        Ok(Partition {
            definitions,
            room: self.room,
            turn: 0,
            packets: 0,
            versions: 1,
            expects_elephants: false,
        })
    }

    /// Queues a batch of so many packets, whose times are nanoseconds after `since`: [partitions](Self::partition) it and [judges](Self::judge) it.
    ///
    /// # Errors
    /// As these.
    pub fn launch(
        &self,
        queue: &mut Queue,
        partition: &mut Partition,
        buffers: &Buffers<'_>,
        packets: u32,
        since: u64,
    ) -> Result<(), Error> {
        self.partition(queue, partition, buffers, packets)?;
        self.judge(queue, partition, buffers, since)
    }

    /// The same of packets whose times are as they are, the first of which has this number in the run.
    pub(super) fn launch_numbered(
        &self,
        queue: &mut Queue,
        partition: &mut Partition,
        buffers: &Buffers<'_>,
        packets: u32,
        first_number: u64,
    ) -> Result<(), Error> {
        self.partition(queue, partition, buffers, packets)?;
        self.judge_with(queue, partition, buffers, (0, first_number), self.groups)
    }

    /// Partitions a batch of so many packets by their flows, and finds the rules of access lists before and among the first ones that share entries: what
    /// depends on no state, in any queue, at the time when batches with other buffers are judged. Before, the batch that was partitioned in the same memory must have
    /// been judged.
    ///
    /// # Errors
    /// Where there is no room for so many, and where the device fails.
    pub fn partition(
        &self,
        queue: &mut Queue,
        partition: &mut Partition,
        buffers: &Buffers<'_>,
        packets: u32,
    ) -> Result<(), Error> {
        self.check(partition, buffers, packets)?;
        partition.packets = packets;
        partition.versions = if buffers.has_v6 { 2 } else { 1 };
        if packets == 0 {
            return Ok(());
        }
        // As 0 nothing was noted; and the next one is the other of two.
        partition.turn = partition.turn.checked_add(1).unwrap_or(2);
        // In those that have a number, from 1 on, they are looked for.
        let are_enough = self.shape.elephants_from.is_some_and(|from| packets >= from);
        let batch = match are_enough {
            true => self.batches.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1),
            false => 0,
        };
        // On a GPU their steps take time that is lost where there are none.
        partition.expects_elephants = are_enough && (!is_gpu(&self.device) || self.found.lately());
        // What no function before can have changed depends on no state, either.
        self.find_rules(queue, partition, buffers, 0)?;
        let (rounds, tiles) = self.tiles(packets);
        let wides = self.wides(packets, partition.versions);
        for ((kernel, tables), part_order) in
            self.partitions.iter().zip(&self.tables).zip(&partition.definitions)
        {
            let arguments = PartitionArguments {
                records: buffers.records,
                wide: buffers.wide,
                count: packets,
                rounds,
                part_bits: self.part_bits(tables, packets),
                versions: partition.versions,
                first_seed: tables.seeds[0],
                second_seed: tables.seeds[1],
                order: (&part_order.order).into(),
                offsets: (&part_order.offsets).into(),
                answers: buffers.answers,
                elephants: (&part_order.elephants).into(),
                turn: partition.turn,
                found: self.found.buffer(),
                batch,
                wides,
                partitioners: self.shape.partitioners.into(),
            };
            queue.launch(kernel, tiles, &arguments)?;
        }
        Ok(())
    }

    /// Has the rules found that are before this stage: of lists in front of it and in it.
    fn find_rules(
        &self,
        queue: &mut Queue,
        partition: &Partition,
        buffers: &Buffers<'_>,
        stages: usize,
    ) -> Result<(), Error> {
        let mut acls = self.acls.iter().enumerate().filter(|(_, acl)| acl.place.stage == stages);
        acls.try_for_each(|(number, acl)| {
            acl.launch(queue, number as u32, buffers, partition.packets, partition.versions)
        })
    }

    /// Packets of a tile for each item that partitions, and tiles, of so many packets.
    fn tiles(&self, packets: u32) -> (u32, u32) {
        let partitioners = self.shape.partitioners;
        let rounds = packets.div_ceil(partitioners * MAX_TILES);
        (rounds, packets.div_ceil(partitioners * rounds))
    }

    /// Judges a batch that was partitioned, with times that are nanoseconds after `since`. Batches take effect in the order in which this is called, so they
    /// go to one queue, or to queues that wait for each other in that order.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn judge(
        &self,
        queue: &mut Queue,
        partition: &Partition,
        buffers: &Buffers<'_>,
        since: u64,
    ) -> Result<(), Error> {
        self.judge_with(queue, partition, buffers, (since, 0), self.groups)
    }

    /// Judges it with so many groups at most, where others are to run beside them.
    fn judge_with(
        &self,
        queue: &mut Queue,
        partition: &Partition,
        buffers: &Buffers<'_>,
        numbers: (u64, u64),
        groups: u32,
    ) -> Result<(), Error> {
        self.check(partition, buffers, partition.packets)?;
        if partition.packets == 0 {
            return Ok(());
        }
        for number in 0..self.stages.len() {
            self.judge_stage(queue, partition, buffers, numbers, number, groups)?;
            self.find_rules(queue, partition, buffers, number + 1)?;
        }
        let Lists { functions, memory, words, settle } = &self.lists;
        if let Some(settle) = settle {
            let (lists, words, count) = (memory.into(), *words as u64, functions.len() as u64);
            let arguments = Settle { lists, words, count };
            queue.launch(settle, functions.len() as u32, &arguments)?;
        }
        Ok(())
    }

    /// Queues the functions of a stage.
    fn judge_stage(
        &self,
        queue: &mut Queue,
        partition: &Partition,
        buffers: &Buffers<'_>,
        (since, first_number): (u64, u64),
        number: usize,
        at_most: u32,
    ) -> Result<(), Error> {
        let &Partition { packets, versions, turn, expects_elephants, .. } = partition;
        let stage = &self.stages[number];
        let tables = &self.tables[stage.definition];
        let part_order = &partition.definitions[stage.definition];
        let steps = self.steps[number].as_ref().filter(|_| expects_elephants);
        let (rounds, tiles) = self.tiles(packets);
        let part_bits = self.part_bits(tables, packets);
        let Regions { regions, groups, capacity } = tables.regions;
        let when_full = FULL.iter().position(|(_, when_full)| *when_full == tables.definition.when_full);
        let wides = self.wides(packets, versions);
        for version in 0..versions as usize {
            let arguments = Judge {
                records: buffers.records,
                wide: buffers.wide,
                answers: buffers.answers,
                wide_answers: buffers.wide_answers,
                tiles,
                tile_items: self.shape.partitioners * rounds,
                part_bits,
                versions,
                order: (&part_order.order).into(),
                offsets: (&part_order.offsets).into(),
                tags: (&tables.tags[version]).into(),
                entries: (&tables.entries[version]).into(),
                held: (&tables.held[version]).into(),
                since,
                regions,
                groups,
                capacity,
                timeout: tables.definition.timeout.limit().unwrap_or(u64::MAX),
                when_full: when_full.unwrap_or_default() as u32,
                first_seed: tables.seeds[0],
                second_seed: tables.seeds[1],
                parameters: (&self.parameters).into(),
                counted: (&self.counted).into(),
                lists: (&self.lists.memory).into(),
                list_words: self.lists.words as u64,
                elephants: (&part_order.elephants).into(),
                summaries: (&self.summaries).into(),
                turn,
                leaves: steps.is_some().into(),
                exports: buffers.exports,
                details: buffers.details,
                first_number,
                packets: packets.into(),
                wides,
                counters: self.counter_count as u64,
                export_words: self.export_words() as u64,
                detail_words: self.detail_words() as u64,
            };
            for (step, groups) in
                steps.into_iter().flatten().zip([at_most, MAX_ELEPHANTS.min(at_most), at_most])
            {
                queue.launch(&step[version], groups, &arguments)?;
            }
            queue.launch(&self.judges[number][version], (1 << part_bits).min(at_most), &arguments)?;
        }
        Ok(())
    }

    /// How many of so many packets, and of keys of connections behind them, may be wide.
    fn wides(&self, packets: u32, versions: u32) -> u64 {
        match self.needs() {
            Needs { connections: true, .. } => 3 * u64::from(packets),
            _ if versions == 2 => packets.into(),
            _ => 0,
        }
    }

    /// Parts in which the flows of an IP version are judged, as a power of two.
    fn part_bits(&self, tables: &Tables, packets: u32) -> u32 {
        let parts = (packets / PER_PART).max(MANY_PARTS.min(packets / FEW_PER_PART));
        let parts = parts.clamp(1, tables.regions.regions);
        parts.ilog2().min(self.shape.part_bits)
    }

    fn check(&self, partition: &Partition, buffers: &Buffers<'_>, packets: u32) -> Result<(), Error> {
        let room = buffers.room as usize;
        let fits = packets <= buffers.room
            && packets <= self.room
            && partition.definitions.len() == self.tables.len()
            && partition.room == self.room
            && room * size_of::<Record>() <= buffers.records.len()
            && self.needs().wides(room) * size_of::<Ipv6Addresses>() <= buffers.wide.len()
            && room * size_of::<Answer>() <= buffers.answers.len()
            && room * size_of::<Ipv6Addresses>() <= buffers.wide_answers.len()
            && room * self.acls.len() * size_of::<u32>() <= buffers.first.len()
            && room * self.export_words() * size_of::<u64>() <= buffers.exports.len()
            && room * self.detail_words() * size_of::<u64>() <= buffers.details.len();
        if fits {
            return Ok(());
        }
        let why = format!("{packets} packets do not fit into {buffers:?}");
        Err(packetloom_device::Error::Misuse(why).into())
    }

    /// Copies what it keeps to this machine, as it is after all that was queued, into the memory of a state that nobody needs any more.
    ///
    /// # Errors
    /// Where the device fails.
    pub(super) fn state(&self, queue: &mut Queue, spare: State, crew: &Crew) -> Result<State, Error> {
        self.state_in(queue, &self.kept(), spare, Some(crew))
    }

    /// Exports the states of functions that export in entries that are dead at a time, with no batch away: of which function, and the rest as
    /// [`Stateful::exported`] has it.
    ///
    /// # Errors
    /// Where the device fails, or takes longer than the limit.
    pub(super) fn sweep(
        &self,
        queue: &mut Queue,
        (now, limit): (u64, Duration),
        mut each: impl FnMut(&Exporter, Exported, AnyEntry<'_>, &[u64]),
    ) -> Result<(), Error> {
        let Some(Sweep { kernel, exports, found }) = &self.sweep else { return Ok(()) };
        let stride = export_words(&self.tables, &self.stages);
        let mut rows = Vec::new();
        for exporter in &self.exporters {
            let tables = &self.tables[exporter.definition];
            let Some(timeout) = tables.definition.timeout.limit() else { continue };
            for (version, key_words) in [V4, V6].into_iter().enumerate() {
                loop {
                    queue.write(found, 0, &[0; size_of::<u32>()])?;
                    let arguments = SweepArguments {
                        tags: (&tables.tags[version]).into(),
                        entries: (&tables.entries[version]).into(),
                        places: tables.regions.places() as u32,
                        words: tables.entry_words[version] as u32,
                        key_words: key_words as u32,
                        state_words: exporter.words as u32,
                        now,
                        timeout,
                        exports: exports.into(),
                        found: found.into(),
                        rows: SWEPT as u32,
                        export_words: stride as u32,
                    };
                    queue.launch(kernel, self.groups, &arguments)?;
                    // A copy waits without a limit.
                    let begin = Instant::now();
                    if !queue.finish_within(limit)? {
                        return Err(late(begin));
                    }
                    let mut count = [0u32];
                    queue.read(found, 0, bytemuck::cast_slice_mut(&mut count))?;
                    let here = (count[0] as usize).min(SWEPT);
                    rows.resize(here * stride, 0u64);
                    queue.read(exports, 0, bytemuck::cast_slice_mut(&mut rows))?;
                    let entry = EXPORT_ENTRY..EXPORT_ENTRY + header_words(key_words) + exporter.words;
                    let mut rows: Vec<_> = rows.chunks_exact(stride).map(|row| &row[entry.clone()]).collect();
                    // In the order of their last packets, and of flows: entries are anywhere.
                    rows.sort_unstable_by_key(|entry| (entry[key_words], &entry[..key_words]));
                    for entry in rows {
                        let state = &entry[header_words(key_words)..];
                        let why = Exported::State(End::Expired);
                        each(exporter, why, AnyEntry::saved(entry, key_words), state);
                    }
                    if count[0] as usize <= SWEPT {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// The memory of what it keeps.
    fn kept(&self) -> Snapshot {
        Snapshot {
            counted: self.counted.clone(),
            entries: self.tables.iter().map(|tables| tables.entries.clone()).collect(),
            lists: self.lists.memory.clone(),
        }
    }

    /// Memory for a snapshot.
    ///
    /// # Errors
    /// Where the device has no room for one.
    pub(super) fn snapshot_memory(&self) -> Result<Snapshot, Error> {
        let like = |memory: &Memory| self.device.memory(memory.len());
        let entries = self.tables.iter().map(|Tables { entries: [v4, v6], .. }| Ok([like(v4)?, like(v6)?]));
        Ok(Snapshot {
            counted: like(&self.counted)?,
            entries: entries.collect::<Result<_, packetloom_device::Error>>()?,
            lists: like(&self.lists.memory)?,
        })
    }

    /// Queues a snapshot of what it keeps, as it is after all that was queued. It takes none of this machine's time.
    ///
    /// # Errors
    /// Where the device fails.
    pub(super) fn take_snapshot(&self, queue: &mut Queue, snapshot: &Snapshot) -> Result<(), Error> {
        let kept = self.kept();
        queue.copy(&kept.counted, &snapshot.counted)?;
        for (from, to) in kept.entries.iter().flatten().zip(snapshot.entries.iter().flatten()) {
            queue.copy(from, to)?;
        }
        Ok(queue.copy(&kept.lists, &snapshot.lists)?)
    }

    /// Copies a snapshot to this machine, or what there is, into the memory of a state that nobody needs any more: by the threads of a crew, where
    /// there is one.
    ///
    /// # Errors
    /// Where the device fails.
    pub(super) fn state_in(
        &self,
        queue: &mut Queue,
        snapshot: &Snapshot,
        spare: State,
        crew: Option<&Crew>,
    ) -> Result<State, Error> {
        let Gather { kernel, way } = &self.gather;
        let mut way = way.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = read(queue, &snapshot.counted, &mut way.here)?;
        let counts = counted[self.counts_at()..].as_chunks::<TABLE_COUNTS>().0;
        let tables = self.tables.iter().zip(&snapshot.entries);
        let spare =
            spare.definitions.into_iter().map(|kept| kept.entries).chain(iter::repeat_with(Default::default));
        let definitions = tables.zip(counts).zip(spare).map(|(((tables, kept), &counts), spare)| {
            let ([v4, v6], [of_v4, of_v6], [spare_v4, spare_v6]) = (kept, tables.entry_words, spare);
            let entries = [
                way.gather(kernel, queue, v4, (V4, of_v4, self.groups), spare_v4, crew)?,
                way.gather(kernel, queue, v6, (V6, of_v6, self.groups), spare_v6, crew)?,
            ];
            let [created, expired, evicted, refused] = counts;
            Ok(Kept { entries, words: tables.words, counts: Counts { created, expired, evicted, refused } })
        });
        let definitions = definitions.collect::<Result<_, Error>>()?;
        drop(way);
        let mut functions = vec![Vec::new(); self.functions()];
        for (index, kernel, _) in self.stages.iter().flat_map(|stage| &stage.functions) {
            let [first, indexed] = self.counters[*index];
            let [by_name, by_index] = kernel.counters();
            functions[*index].extend(&counted[first..first + by_name]);
            functions[*index].extend(&counted[indexed..indexed + by_index]);
        }
        for (number, index) in self.lists.functions.iter().enumerate() {
            functions[*index].extend(self.lists.read(queue, &snapshot.lists, number)?);
        }
        Ok(State { definitions, functions, gone: HashSet::new() })
    }

    /// Begins with these flows of its definitions, and what was counted of them, in place of all that it keeps; what it keeps then, and for which
    /// flows of each definition it has no room.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn restore(&self, queue: &mut Queue, held: &[Held]) -> Result<(State, Vec<Left>), Error> {
        let restored = self.tables.iter().zip(held).map(|(tables, held)| tables.restore(queue, held));
        let restored = restored.collect::<Result<Vec<_>, Error>>()?;
        let (definitions, left): (Vec<_>, Vec<_>) = restored.into_iter().unzip();
        let mut counted = vec![0u64; self.counter_count];
        for (own, kept) in counted[self.counts_at()..].chunks_exact_mut(TABLE_COUNTS).zip(&definitions) {
            let Counts { created, expired, evicted, refused } = kept.counts;
            own.copy_from_slice(&[created, expired, evicted, refused]);
        }
        queue.write(&self.counted, 0, bytemuck::cast_slice(&counted))?;
        self.lists.clear(queue)?;
        Ok((State { definitions, ..State::default() }, left))
    }

    /// Where among all counters those of tables begin.
    fn counts_at(&self) -> usize {
        self.counter_count - TABLE_COUNTS * self.tables.len()
    }
}

/// What a device keeps, or kept at some time, in its memory.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    counted: Memory,
    /// Of each definition, entries of IPv4 and IPv6.
    entries: Vec<[Memory; 2]>,
    lists: Memory,
}

/// What a device kept.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// For each definition, entries and counts.
    definitions: Vec<Kept>,
    /// What functions counted and listed.
    pub functions: Vec<Vec<u64>>,
    /// States that were exported since.
    pub(crate) gone: HashSet<StateId>,
}

/// Flows of a definition for which a device has no room: of IPv4 and IPv6 as [`Flows::save`](packetloom_nf::flows::Flows::save) has them, with so many words of functions.
pub(crate) type Left = ([Vec<u64>; 2], usize);

#[derive(Clone, Debug)]
struct Kept {
    /// Of IPv4 and IPv6, in pieces; each as it lies in the device's memory, some places without one among them, perhaps.
    entries: [Vec<Vec<u64>>; 2],
    words: usize,
    counts: Counts,
}

/// Some of the flows of a definition that a device kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    memory: &'a [u64],
    key_words: usize,
    words: usize,
    /// States of them that are no longer there.
    pub(crate) gone: &'a HashSet<StateId>,
}

impl<'a> Piece<'a> {
    /// They, where they are of IPv4 or of IPv6.
    pub(crate) fn of<const W: usize>(self) -> impl Iterator<Item = states::Entry<'a, W>> {
        let memory = if self.key_words == W { self.memory } else { &[] };
        regions::entries(memory, entry_bytes(W, self.words) / 8)
    }

    /// They.
    pub(crate) fn entries(self) -> impl Iterator<Item = AnyEntry<'a>> {
        self.of::<V4>().map(AnyEntry::V4).chain(self.of::<V6>().map(AnyEntry::V6))
    }
}

impl State {
    /// How many definitions there are.
    pub(crate) fn definitions(&self) -> usize {
        self.definitions.len()
    }

    /// The flows of one of them, piece by piece.
    pub(crate) fn pieces(&self, definition: usize) -> impl Iterator<Item = Piece<'_>> {
        let kept = self.definitions.get(definition).into_iter();
        kept.flat_map(move |Kept { entries, words, .. }| {
            entries.iter().zip([V4, V6]).flat_map(move |(pieces, key_words)| {
                pieces.iter().map(move |memory| Piece { memory, key_words, words: *words, gone: &self.gone })
            })
        })
    }

    /// For each definition what its tables counted.
    pub(crate) fn counts(&self) -> impl Iterator<Item = Counts> {
        self.definitions.iter().map(|kept| kept.counts)
    }

    /// For each definition its flows apart from the device, as [`Flows::save`](packetloom_nf::flows::Flows::save) has them, and what was counted.
    pub fn saved(&self) -> impl Iterator<Item = ([Vec<u64>; 2], Counts)> {
        self.definitions.iter().map(|Kept { entries: [v4, v6], words, counts }| {
            let v4 = v4.iter().flat_map(|v4| regions::save::<V4>(v4, entry_bytes(V4, *words) / 8, *words));
            let v6 = v6.iter().flat_map(|v6| regions::save::<V6>(v6, entry_bytes(V6, *words) / 8, *words));
            ([v4.collect(), v6.collect()], *counts)
        })
    }
}

impl Tables {
    fn new(device: &Device, definition: &Definition, words: usize) -> Result<Self, Error> {
        let regions = Regions::new(definition.max_flows);
        let entry_words = [V4, V6].map(|key_words| entry_bytes(key_words, words) / 8);
        // Places are found by tags, which say whether there is one; but what lies there is read as it is at the end.
        let entries = |words: usize| device.zeros(regions.places() * words * 8);
        let seed = |number: u64| RandomState::new().hash_one(number);
        Ok(Self {
            definition: definition.clone(),
            words,
            entry_words,
            regions,
            seeds: [seed(0), seed(1)],
            tags: [device.zeros(regions.tag_bytes())?, device.zeros(regions.tag_bytes())?],
            entries: [entries(entry_words[0])?, entries(entry_words[1])?],
            held: [device.zeros(regions.regions as usize * 4)?, device.zeros(regions.regions as usize * 4)?],
        })
    }

    /// Puts flows in that were saved, in the place of all.
    fn restore(&self, queue: &mut Queue, held: &Held) -> Result<(Kept, Left), Error> {
        if held.entries.iter().all(Vec::is_empty) {
            // The device clears them by itself.
            let Self { tags, entries, held: counts, .. } = self;
            let memory = tags.iter().chain(entries).chain(counts);
            memory.into_iter().try_for_each(|memory| queue.clear(memory))?;
            queue.finish()?;
            let entries = [Vec::new(), Vec::new()];
            let kept = Kept { entries, words: self.words, counts: held.counts };
            return Ok((kept, Left::default()));
        }
        let (words, flows, [v4, v6]) = (self.words, self.definition.max_flows, self.entry_words);
        let (v4, v4_gone) = Image::new::<V4>(&held.entries[0], words, v4, flows, self.seeds);
        let (v6, v6_gone) = Image::new::<V6>(&held.entries[1], words, v6, flows, self.seeds);
        for (version, image) in [&v4, &v6].into_iter().enumerate() {
            queue.write(&self.tags[version], 0, &image.tags)?;
            queue.write(&self.entries[version], 0, bytemuck::cast_slice(&image.entries))?;
            queue.write(&self.held[version], 0, bytemuck::cast_slice(&image.held))?;
        }
        let gone = v4_gone.len() / (header_words(V4) + words) + v6_gone.len() / (header_words(V6) + words);
        let counts = Counts { evicted: held.counts.evicted + gone as u64, ..held.counts };
        let entries = [vec![v4.entries], vec![v6.entries]];
        Ok((Kept { entries, words, counts }, ([v4_gone, v6_gone], words)))
    }
}

impl Lists {
    /// Empty ones, for batches of so many packets.
    fn new(device: &Device, functions: Vec<usize>, room: u32, settle: Option<Loaded>) -> Result<Self, Error> {
        let settle = settle.map(vouch).transpose()?;
        // A batch's behind those that were the first before it.
        let words = LIST_HEAD + LIST_RECORD * (LISTED + room as usize);
        let memory = device.zeros(words * functions.len() * 8)?;
        let lists = Self { functions, memory, words, settle };
        lists.clear(&mut device.queue()?)?;
        Ok(lists)
    }

    /// Empties them.
    fn clear(&self, queue: &mut Queue) -> Result<(), Error> {
        let head = ListHead { count: 0, latest: u64::MAX };
        let mut numbers = 0..self.functions.len();
        Ok(numbers.try_for_each(|number| {
            queue.write(&self.memory, number * self.words * 8, bytemuck::bytes_of(&head))
        })?)
    }

    /// The records of a list, in this memory.
    fn read(&self, queue: &mut Queue, memory: &Memory, number: usize) -> Result<Vec<u64>, Error> {
        let at = number * self.words * 8;
        let mut words = vec![0u64; LIST_HEAD + LIST_RECORD * LISTED];
        queue.read(memory, at, bytemuck::cast_slice_mut(&mut words))?;
        let head: &ListHead = bytemuck::from_bytes(bytemuck::cast_slice(&words[..LIST_HEAD]));
        let records = head.count.min(LISTED as u64) as usize;
        Ok(words[LIST_HEAD..][..LIST_RECORD * records].to_vec())
    }
}

impl Gather {
    fn new(device: &Device, kernel: Loaded, tables: &[Tables]) -> Result<Self, Error> {
        let largest = tables.iter().flat_map(|tables| &tables.entries).map(Memory::len).max();
        let bytes = largest.unwrap_or(0).clamp(size_of::<u64>(), CHUNK);
        let way = Way {
            gathered: device.memory(bytes)?,
            found: device.zeros(size_of::<u32>())?,
            here: device.share(bytes)?,
            count: device.share(size_of::<u32>())?,
        };
        Ok(Self { kernel: vouch(kernel)?, way: Mutex::new(way) })
    }
}

impl Way {
    /// Copies the entries of a device's memory to this machine that there are, with keys of so many words and so many words each: in pieces, into
    /// memory that is spare, by the threads of a crew, where there is one.
    fn gather(
        &mut self,
        kernel: &Vouched<GatherArguments<'static>>,
        queue: &mut Queue,
        memory: &Memory,
        (key_words, words, groups): (usize, usize, u32),
        spare: Vec<Vec<u64>>,
        crew: Option<&Crew>,
    ) -> Result<Vec<Vec<u64>>, Error> {
        let Self { gathered, found, here, count } = self;
        let bytes = words * size_of::<u64>();
        let (places, most) = (memory.len() / bytes, gathered.len() / bytes);
        // Flows that were restored are in one piece.
        let spare = spare.into_iter().filter(|piece| piece.capacity() * size_of::<u64>() <= 2 * PIECE);
        let mut spare = spare.chain(iter::repeat_with(Vec::new));
        let mut all = Vec::new();
        for first in (0..places).step_by(most.max(1)) {
            let arguments = GatherArguments {
                entries: memory.into(),
                first: first as u32,
                places: (places - first).min(most) as u32,
                words: words as u32,
                key_words: key_words as u32,
                gathered: (&*gathered).into(),
                found: (&*found).into(),
            };
            queue.clear(found)?;
            queue.launch(kernel, groups, &arguments)?;
            queue.copy_out(found, 0..size_of::<u32>(), count, 0)?;
            finish(queue)?;
            let entries = (count.load(0) as usize).min(most);
            queue.copy_out(gathered, 0..entries * bytes, here, 0)?;
            finish(queue)?;
            let each = (PIECE / bytes).max(1);
            let parts = here.split((0..entries).step_by(each).map(|at| (entries - at).min(each) * bytes));
            let mut pieces: Vec<_> = parts.zip(&mut spare).collect();
            let take = |(part, piece): &mut (DevicePart<'_>, Vec<u64>)| {
                piece.resize(part.len() / size_of::<u64>(), 0);
                part.read(0, bytemuck::cast_slice_mut(piece));
            };
            match crew {
                Some(crew) => crew.each(pieces.iter_mut().collect(), take),
                None => pieces.iter_mut().for_each(take),
            }
            all.extend(pieces.into_iter().map(|(_, piece)| piece));
        }
        Ok(all)
    }
}

/// Copies all words of a device's memory to this machine, some at a time: by memory that both share, as other threads use the device meanwhile, which
/// drivers let wait for copies to memory that is not.
fn read(queue: &mut Queue, from: &Memory, way: &mut Shared) -> Result<Vec<u64>, Error> {
    let mut words = vec![0u64; from.len() / size_of::<u64>()];
    let mut at = 0;
    for piece in words.chunks_mut(way.len() / size_of::<u64>()) {
        let piece: &mut [u8] = bytemuck::cast_slice_mut(piece);
        queue.copy_out(from, at..at + piece.len(), way, 0)?;
        finish(queue)?;
        way.read(0, piece);
        at += piece.len();
    }
    Ok(words)
}

/// Waits until all is done that is queued; the device failed where that takes too long.
fn finish(queue: &mut Queue) -> Result<(), Error> {
    let begin = Instant::now();
    if queue.finish_within(READ_LIMIT)? { Ok(()) } else { Err(late(begin)) }
}

/// Vouches for a kernel of [`programs`].
#[allow(unsafe_code)]
fn vouch<A: Arguments>(loaded: Loaded) -> Result<Vouched<A>, Error> {
    // SAFETY: kernels go through the packets of tiles, of which all memory has as many, in the order that the kernels before them wrote. Tables, what
    // is partitioned, lists, counters and summaries are as large as the program's numbers say, since both are made in `Stateful::new`; functions'
    // steps get their own words, parameters and counters. Only here are the arguments made, and the program belongs to one `Stateful`.
    Ok(unsafe { Vouched::new(loaded)? })
}

/// The text of the kernels that partition and that judge, and what it is told.
fn programs(
    shape: &Shape,
    (stages, acls): (&[Stage], &[Acl]),
    tables: &[Tables],
    counters: &[[usize; 2]],
    begins: &[usize],
    (named, indexed): (usize, usize),
    listing: &[usize],
) -> [Program; 2] {
    let Shape { lanes, partitioners, rounds, judges: judging, part_bits, .. } = *shape;
    let is_local = indexed <= MAX_LOCAL_COUNTERS;
    let mut defines = regions::defines();
    defines.extend(Verdict::defines());
    defines.extend(records::defines());
    defines.extend(Decision::defines());
    defines.extend(FULL.iter().zip(0..).map(|((name, _), number)| ((*name).into(), format!("{number}u"))));
    let number = |name: &str, value: usize| (name.to_owned(), format!("{value}u"));
    let by = |number: usize| {
        let stage = stages.iter().find(|stage| stage.definition == number);
        let exports = stage.and_then(|stage| stage.functions.first()?.1.exports);
        name_of_by(&tables[number].definition, exports)
    };
    defines.extend(BY.iter().zip(0..).map(|(name, number)| ((*name).into(), format!("{number}u"))));
    defines.extend(Exported::defines());
    let each_definition = (0..tables.len()).map(|index| format!("D({index}, {})", by(index)));
    let each_stage = (0..).zip(stages).map(|(index, stage): (u32, _)| {
        let own = &tables[stage.definition];
        let mask = stage.functions.iter().fold(0u64, |mask, (_, _, part)| mask | 1 << part.at.function);
        format!(
            "S({index}, {}, {}, {}, {}u, {}u, (u64){mask}u << STATES_FUNCTIONS)",
            stage.definition,
            by(stage.definition),
            u32::from(stage.is_first),
            own.entry_words[0],
            own.entry_words[1],
        )
    });
    let each_stage: Vec<_> = each_stage.collect();
    let mut exporters = 0;
    for (index, stage) in stages.iter().enumerate() {
        let [exporter, note, words] = match stage.exports_note {
            Some(note) => {
                exporters += 1;
                [exporters - 1, note, tables[stage.definition].words as u32]
            }
            None => [u32::MAX, 0, 0],
        };
        let names = ["EXPORTER", "EXPORTS_NOTE", "EXPORT_WORDS"].into_iter().zip([exporter, note, words]);
        defines.extend(names.map(|(name, value)| (format!("{name}_{index}"), format!("{value}u"))));
    }
    let of_elephants = stages.iter().zip(&each_stage).filter(|(stage, _)| takes_elephants(shape, stage));
    let of_elephants: Vec<_> = of_elephants.map(|(_, text)| text.as_str()).collect();
    defines.extend([
        ("DEFINITIONS(D)".into(), each_definition.collect::<Vec<_>>().join(" ")),
        ("STAGES(S)".into(), each_stage.join(" ")),
        ("ELEPHANT_STAGES(S)".into(), of_elephants.join(" ")),
        number("ELEPHANTS", MAX_ELEPHANTS as usize),
        number("SUMMARY_WORDS", summary_words(shape, stages)),
        ("MORE_IS_LOCAL".into(), u32::from(is_local).to_string()),
        PartitionArguments::define(),
        Judge::define(),
        Settle::define(),
        SweepArguments::define(),
        GatherArguments::define(),
        number("KEY_PORTS", KeyBits::PORTS.0.into()),
        number("KEY_ICMP", KeyBits::ICMP.0.into()),
        number("KEY_TCP_FLAGS", KeyBits::TCP_FLAGS.0.into()),
        number("KEY_FIRST_FRAGMENT", KeyBits::FIRST_FRAGMENT.0.into()),
        number("KEY_LATER_FRAGMENT", KeyBits::LATER_FRAGMENT.0.into()),
        number("PROTOCOL_ICMP", protocol::ICMP.into()),
        number("PROTOCOL_ICMPV6", protocol::ICMPV6.into()),
        number("PROTOCOL_TCP", protocol::TCP.into()),
        number("PROTOCOL_UDP", protocol::UDP.into()),
        number("PROTOCOL_SCTP", protocol::SCTP.into()),
        number("TCP_SYN_ACK", By::SYN_ACK.into()),
        number("RULES_BEFORE", acls.iter().filter(|acl| acl.place.stage == 0).count()),
        number("LISTS", listing.len()),
        number("LISTED", LISTED),
        number("EXPORTERS", exporters as usize),
        number("EXPORT_WORDS", export_words(tables, stages)),
        number("EXPORT_ENTRY", EXPORT_ENTRY),
        number("EXPORTS", EXPORTS as usize),
        number("EXPORT_DETAILS", has_details(stages).into()),
        number("DETAIL_WORDS", DETAIL_WORDS),
        number("TOTALS", named),
        number("TABLE_COUNTS", TABLE_COUNTS),
        number("MORE_COUNT", indexed),
        number("ROUNDS", rounds as usize),
        number("SPAN", SPAN as usize),
        number("MAX_TILES", MAX_TILES as usize),
        number("PART_BITS", part_bits as usize),
        number("MAX_WORDS", entry_words(tables)),
    ]);
    let kernels = stages.iter().flat_map(|stage| &stage.functions).map(|(_, kernel, _)| kernel);
    let layouts = Layouts::declare(LAYOUTS.into_iter().chain(kernels.flat_map(|kernel| kernel.layouts())));
    let mut source = format!(
        "#line 1 \"layouts\"\n{layouts}#line 1 \"states.kernel.c\"\n{}#line 1 \"packets.kernel.c\"\n{PACKETS}",
        regions::KERNEL
    );
    let (mut included, mut typed): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut begins = begins.iter();
    for (index, stage) in stages.iter().enumerate() {
        let mut steps = Vec::new();
        let mut summary = 0;
        for (function, kernel, part) in &stage.functions {
            // With another name, its text is there for other types.
            if !typed.contains(&kernel.name) {
                typed.push(kernel.name);
                source += &format!("#line 1 \"types\"\n{}", kernel.types());
            }
            for Text { name, source: text, constants } in kernel.texts {
                if !included.contains(name) {
                    included.push(name);
                    defines
                        .extend(constants.iter().map(|(name, value)| ((*name).into(), format!("{value}u"))));
                    source += &format!("#line 1 \"{name}.kernel.c\"\n{text}");
                }
            }
            let words = kernel.words();
            let begin = begins.next().unwrap_or(&0);
            let [by_name, by_index] = counters[*function];
            let list = listing.iter().position(|listing| kernel.lists && listing == function);
            let list = list.map_or("NO_LIST".to_owned(), |number| format!("{number}u"));
            steps.push(format!(
                "F({}, {}, {}, {words}, {begin}, {by_name}, {}, {list}, {}, {summary})",
                kernel.name,
                part.at.function,
                part.at.word,
                by_index - named,
                match kernel.flow_group {
                    FlowGroup::Own | FlowGroup::Summarized(_) => "OWN",
                    FlowGroup::Serial => "SERIAL",
                },
            ));
            summary += kernel.summary_words().unwrap_or(0);
        }
        defines.push((format!("STAGE_{index}(F)"), steps.join(" ")));
    }
    source += "#line 1 \"chain.kernel.c\"\n";
    source += CHAIN;
    source += "#line 1 \"elephants.kernel.c\"\n";
    source += ELEPHANTS;
    let partitions =
        PARTITIONS.iter().take(tables.len()).map(|name| Entry::of::<PartitionArguments<'_>>(name));
    let partitions = partitions.chain((!listing.is_empty()).then_some(Entry::of::<Settle<'_>>("settle")));
    let partitions = partitions.chain((exporters > 0).then_some(Entry::of::<SweepArguments<'_>>("sweep")));
    let partitions = partitions.chain([Entry::of::<GatherArguments<'_>>("gather")]);
    let judges = stages.iter().enumerate().flat_map(|(number, stage)| {
        let steps = if takes_elephants(shape, stage) { &STEPS[..] } else { &[] };
        [&JUDGES].into_iter().chain(steps).flatten().map(move |names| names[number])
    });
    let judges = judges.map(Entry::of::<Judge<'_>>);
    let parts = 2u32 << part_bits;
    let spans = partitioners.div_ceil(SPAN);
    let partition = partitioners / lanes * 256
        + 512
        + parts * 4
        + partitioners * rounds * 10
        + (partitioners + spans) * 4;
    let more = if is_local { indexed as u32 * 8 + 8 } else { 0 };
    let words = entry_words(tables) as u32;
    let of_team = MAX_TILES * 6 + words * 8 + (named + TABLE_COUNTS) as u32 * 8 + 24;
    let judge = judging / lanes * of_team + judging * 26 + parts.div_ceil(32) * 4 + more + 144;
    let program = |partitions: bool, group: u32, local: u32, entries: Vec<Entry>| {
        let mut defines = defines.clone();
        defines.push(("PARTITIONS".into(), u32::from(partitions).to_string()));
        let local = local.next_multiple_of(16);
        Program {
            name: "chain",
            source: source.clone(),
            defines,
            group,
            groups_per_unit: 1,
            stays: false,
            local,
            entries,
        }
    };
    [
        program(true, partitioners, partition, partitions.collect()),
        program(false, judging, judge, judges.collect()),
    ]
}
