//! Functions that keep state for flows on a device, exactly as a loop over packets would run them.
//!
//! A batch of packets whose headers were read is partitioned by the flows' hashes, and each part of the flows is judged by one group of a
//! kernel's items: see `chain.kernel.c`. State stays in the memory of the device, in entries of the same shape as those of this machine's
//! tables, so it can be taken over.
//!
//! - `stages`: which functions a device takes, and in which order.
//! - `kernels`: the texts of their kernels, and what these take.
//! - [`records`]: packets on their way there, and what comes back.
//! - [`headers`]: the same of headers that the device reads itself.
//! - `acls`: access lists before and among them.
//! - `exports`: what functions export.
//! - `snapshot`: the state, copied here and put there.
//! - `functions`: what a run has of all that.

mod acls;
mod exports;
mod functions;
pub mod headers;
mod kernels;
pub mod records;
mod snapshot;
mod stages;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use packetloom_device::{Buffer, Description, Device, Id, Kernel as Vouched, Loaded, Memory, Queue, Shared};
use packetloom_nf::FunctionSpec;
use packetloom_nf::flows::{By, Counts, Definition, LISTED, ListRecord, V4, V6};
use packetloom_table::regions::Regions;
use packetloom_table::states::entry_bytes;

use self::acls::Acl;
pub use self::acls::Decided;
use self::exports::{SWEPT, Sweep, export_words};
pub(crate) use self::functions::{Functions, room};
use self::kernels::{
    ElephantBatches, Elephants, FULL, Judge, ListHead, PartitionArguments, Settle, SummaryHead, programs,
    vouch,
};
use self::records::{Answer, Ipv6Addresses, Needs, Record};
use self::snapshot::Gather;
pub use self::snapshot::State;
pub(crate) use self::snapshot::{Left, Piece};
pub use self::stages::offloadable;
use self::stages::{Exporter, Split, Stage, split};
pub(crate) use self::stages::{definitions, why_on_cores};
use super::{Error, is_gpu};
use crate::layout::Layout;

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

/// Words of a list before its records, and of a record.
const LIST_HEAD: usize = size_of::<ListHead>() / size_of::<u64>();
const LIST_RECORD: usize = size_of::<ListRecord>() / size_of::<u64>();

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

/// Whether elephants' pieces are looked at in a stage.
fn takes_elephants(shape: &Shape, stage: &Stage) -> bool {
    shape.elephants_from.is_some() && stage.summary_words().is_some()
}

/// Words of summaries of functions, the most of any stage.
fn summary_words(shape: &Shape, stages: &[Stage]) -> usize {
    let stages = stages.iter().filter(|stage| takes_elephants(shape, stage));
    stages.filter_map(Stage::summary_words).max().unwrap_or(0)
}

/// Words of an entry, the most of any definition; an even number.
fn entry_words(tables: &[Tables]) -> usize {
    tables.iter().flat_map(|tables| tables.entry_words).max().unwrap_or(1)
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
