//! The kernels of a flow meter on a device, their table, and what comes out of it.

use std::fmt;
use std::str::FromStr;

use packetloom_device::{
    Arguments, Buffer, Device, Entry, Id, Kernel, LaidOut, Layout, Memory, Program, Queue, Shared, u32x4,
};
use packetloom_packet::{LinkType, dissect, protocol};

use crate::Error;

const METER: &str = include_str!("meter.kernel.c");
const HASHES: &str = include_str!("hashes.kernel.c");

/// Places that a flow may have from that of its hash on.
const PROBES: u32 = 64;
/// Work items that a unit of a GPU is to hold at a time, at least.
const ITEMS_OF_A_UNIT: u32 = 768;
/// What the words of a key are XORed with in the table.
const KEY_MASK: u32 = 0x9e37_79b9;
/// Words of counters; their order is the kernel's.
const COUNTERS: usize = 16;
const HANDED: usize = 6;
const SINK: usize = 7;
const EMITTED: [u32; 2] = [8, 9];

packetloom_device::layout! {
    /// What was added up of a flow: of packets from endpoint a, and of those from b.
    #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    pub(super) struct Totals {
        pub(super) bytes: [u64; 2],
        /// The latest time, in nanoseconds.
        pub(super) last: [u64; 2],
        pub(super) packets: [u32; 2],
        /// `u32::MAX` minus the lowest number; 0 where there is no packet.
        pub(super) first: [u32; 2],
    }
}

packetloom_device::layout! {
    /// A flow of IPv4: state, ports, addresses.
    #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    align(16) pub(super) struct EntryV4 {
        head: [u32; 4],
        totals: Totals,
    }
}

packetloom_device::layout! {
    /// A flow of IPv6: state, ports, addresses, two words that are not used.
    #[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    align(16) pub(super) struct EntryV6 {
        head: [u32; 12],
        totals: Totals,
    }
}

/// What kernels have to know.
const LAYOUTS: [Layout; 3] = [Totals::LAYOUT, EntryV4::LAYOUT, EntryV6::LAYOUT];

const _: () = assert!(size_of::<EntryV4>() == 64 && size_of::<EntryV6>() == 96);

packetloom_device::arguments! {
    /// What `meter` takes.
    struct Meter as METER_PARAMETERS {
        frames: live u8 [(from + count) * slice],
        lens: live u16 [from + count],
        times: live u64 [from + count],
        from: u32,
        count: u32,
        number: u32,
        link: u32,
        seed: u64,
        table_v4: write EntryV4 [slots_v4],
        table_v6: write EntryV6 [slots_v6],
        slots_v4: u32,
        slots_v6: u32,
        counts: write u32 [COUNTERS as u64],
        handed: write u32 [handed_room],
        handed_room: u32,
        slice: host,
    } where slots_v4 > 0, slots_v6 > 0, number + count <= 1 << 31
}

packetloom_device::arguments! {
    /// What `meter_resident` takes.
    struct Resident as RESIDENT_PARAMETERS {
        frames: live u8 [count * slice],
        lens: live u16 [count],
        times: live u64 [count],
        count: u32,
        link: u32,
        seed: u64,
        table_v4: write EntryV4 [slots_v4],
        table_v6: write EntryV6 [slots_v6],
        slots_v4: u32,
        slots_v6: u32,
        counts: write u32 [COUNTERS as u64],
        handed: write u32 [handed_room],
        handed_room: u32,
        /// Packets of a burst, and how many of them there are.
        burst: u32,
        bursts: u32,
        /// Bursts that are published.
        news: live u64 [1],
        /// A word for each burst: whether it is done.
        told: write u64 [bursts],
        /// Zeros: parts of each burst that are done, and parts that were taken.
        tickets: write u32 [bursts + 1],
        /// How often a group asks in vain for news before it leaves.
        patience: u32,
        slice: host,
    } where slots_v4 > 0, slots_v6 > 0, burst > 0, count <= 1 << 31, bursts == count.div_ceil(burst)
}

packetloom_device::arguments! {
    /// What `emit` takes.
    struct Emit as EMIT_PARAMETERS {
        table: read u32x4 [slots * quads],
        slots: u32,
        quads: u32,
        out: write u32x4 [room * quads],
        room: u32,
        counts: write u32 [COUNTERS as u64],
        which: u32,
    } where which < COUNTERS as u64, quads > 0
}

packetloom_device::arguments! {
    /// What `hash_keys` takes.
    struct HashKeys as HASH_PARAMETERS {
        keys: fixed u32 [count * words],
        count: u32,
        words: u32,
        seed: u64,
        hashes: write u32 [count],
    } where words == 4 || words == 10
}

/// A hash function over flow keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hash {
    /// FNV-1a, a byte at a time; no seed.
    Fnv1a,
    /// SuperFastHash, a word at a time; no seed.
    SuperFast,
    /// All words at once, a multiplier for each; no seed.
    Lanes,
    /// MurmurHash3, 32 bits.
    Murmur3,
    /// xxHash, 32 bits.
    Xxh32,
    /// The lower half of xxHash of 64 bits.
    Xxh64,
    /// Folded products of 128 bits, as in the flow tables.
    #[default]
    Fold,
}

impl Hash {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Fnv1a, Self::SuperFast, Self::Lanes, Self::Murmur3, Self::Xxh32, Self::Xxh64, Self::Fold];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fnv1a => "fnv1a",
            Self::SuperFast => "superfast",
            Self::Lanes => "lanes",
            Self::Murmur3 => "murmur3",
            Self::Xxh32 => "xxh32",
            Self::Xxh64 => "xxh64",
            Self::Fold => "fold",
        }
    }
}

/// Where an item of the kernel ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Headers are parsed to keys.
    Parse,
    /// And keys are hashed.
    Hash,
    /// And entries are found or made.
    Find,
    /// And packets are added to them: the whole meter.
    #[default]
    All,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Parse, Self::Hash, Self::Find, Self::All];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Hash => "hash",
            Self::Find => "find",
            Self::All => "all",
        }
    }
}

/// From where a kernel parses headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parse {
    /// From the memory that they are in.
    InPlace,
    /// From the group's memory, to which neighbouring items copy them first.
    #[default]
    Local,
}

impl Parse {
    const ALL: [Self; 2] = [Self::InPlace, Self::Local];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InPlace => "in-place",
            Self::Local => "local",
        }
    }
}

/// Bytes of each frame that a device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceBytes(u32);

impl SliceBytes {
    /// How many they are: 64, 128 or 256.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl Default for SliceBytes {
    fn default() -> Self {
        Self(128)
    }
}

impl FromStr for SliceBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "64" => Ok(Self(64)),
            "128" => Ok(Self(128)),
            "256" => Ok(Self(256)),
            _ => Err(format!("no slice of {text:?} bytes; expected 64, 128 or 256")),
        }
    }
}

impl fmt::Display for SliceBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! words {
    ($($name:ident, $what:literal);*) => {$(
        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|one| one.name() == text);
                found.ok_or_else(|| {
                    let words = Self::ALL.map(Self::name).join(", ");
                    format!(concat!("no ", $what, " {:?}; expected one of {}"), text, words)
                })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}
pub(super) use words;

words!(Hash, "hash function"; Stage, "stage"; Parse, "way of parsing");

/// How a kernel is made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shape {
    pub(super) slice: SliceBytes,
    pub(super) parse: Parse,
    /// Packets of an item at a time.
    pub(super) keys: u32,
    pub(super) hash: Hash,
    pub(super) stage: Stage,
    /// Items of a group; unless given, what suits the device.
    pub(super) block: Option<u32>,
}

/// The kernels of one shape.
#[derive(Debug)]
pub(super) struct Kernels {
    shape: Shape,
    meter: Kernel<Meter<'static>>,
    resident: Kernel<Resident<'static>>,
    emit: Kernel<Emit<'static>>,
    hash_keys: Kernel<HashKeys<'static>>,
    /// Items of a group, and groups that the device runs at a time.
    pub(super) block: u32,
    groups: u32,
    resident_groups: u32,
}

/// Whether kernels run beside the host, many items of them in step.
pub(super) fn is_gpu(device: &Device) -> bool {
    device.description().lanes > 1 && device.description().id != Id::Host
}

impl Kernels {
    /// Compiles them.
    pub(super) fn new(device: &Device, shape: Shape) -> Result<Self, Error> {
        let description = device.description();
        if !description.atomics_64 {
            let why = "its kernels have no 64-bit atomics, which a meter needs".into();
            let device = description.id.to_string();
            return Err(packetloom_device::Error::Unavailable { device, why }.into());
        }
        let most = match description.id {
            Id::Host => description.group.min(description.lanes),
            _ if is_gpu(device) => description.group.min(256),
            // PoCL 3.1 with one item reads other bytes of a slice than those that were written.
            _ => description.group.min(64),
        };
        let block = shape.block.unwrap_or(most);
        let lanes = if is_gpu(device) { description.lanes } else { description.lanes.min(block) };
        if block > description.group || !block.is_multiple_of(lanes) {
            let (id, most) = (description.id, description.group);
            let why = format!("a block of {block}; expected a multiple of {lanes} up to {most} on {id}");
            return Err(packetloom_device::Error::Misuse(why).into());
        }
        let number = |name: &str, value: u32| (name.to_owned(), format!("{value}u"));
        let is_local = shape.parse == Parse::Local;
        let metered: Vec<_> = (0..=u8::MAX)
            .filter(|&protocol| protocol::is_metered(protocol))
            .map(|protocol| format!("(x) == {protocol}u"))
            .collect();
        let mut defines = dissect::defines();
        defines.extend([
            Meter::define(),
            Resident::define(),
            Emit::define(),
            HashKeys::define(),
            ("HEADERS_SPACE".into(), if is_local { "LOCAL" } else { "GLOBAL" }.into()),
            ("HASH".into(), format!("hash_{}", shape.hash)),
            ("METER_IS_METERED(x)".into(), format!("({})", metered.join(" || "))),
            // Conditions of the preprocessor.
            ("SLICE".into(), shape.slice.to_string()),
            ("PARSE_LOCAL".into(), u32::from(is_local).to_string()),
            ("KEYS".into(), shape.keys.to_string()),
            ("STAGE".into(), (shape.stage as u32 + 1).to_string()),
            number("PROBES", PROBES),
            number("HEAD_V4", std::mem::offset_of!(EntryV4, totals) as u32),
            number("HEAD_V6", std::mem::offset_of!(EntryV6, totals) as u32),
            number("COUNT_COUNTED", 0),
            number("COUNT_HANDED", HANDED as u32),
            number("COUNT_SINK", SINK as u32),
        ]);
        let program = Program {
            name: "meter",
            source: format!(
                "#line 1 \"dissect.kernel.c\"\n{}#line 1 \"layouts\"\n{}#line 1 \"hashes.kernel.c\"\n{HASHES}#line 1 \"meter.kernel.c\"\n{METER}",
                dissect::KERNEL,
                Layout::declare(LAYOUTS),
            ),
            defines,
            group: block,
            // So that registers suffice, and local memory is kept for as many: with fewer, units wait for memory.
            groups_per_unit: if is_gpu(device) { (ITEMS_OF_A_UNIT / block).max(1) } else { 1 },
            stays: false,
            // Two words that a resident kernel's items tell each other.
            local: (if is_local { block * (shape.slice.get() as u32 + 4) } else { 0 } + 8)
                .next_multiple_of(16),
            entries: vec![
                Entry::of::<Meter<'_>>("meter_burst"),
                Entry::of::<Resident<'_>>("meter_resident"),
                Entry::of::<Emit<'_>>("emit"),
                Entry::of::<HashKeys<'_>>("hash_keys"),
            ],
        };
        let mut loaded = device.build(&program)?;
        let (hash_keys, emit) = (loaded.remove(3), loaded.remove(2));
        let (resident, meter) = (loaded.remove(1), loaded.remove(0));
        // SAFETY: the kernels go through `count` packets or keys and `slots` entries, of which memory has as many; `meter` writes entries below
        // `slots`, numbers below `handed_room` and counters, that which stays a word for each burst below `bursts` too, `emit` entries below `room`. What a header says of where others are is checked against the
        // slice. An item waits for another one only between two steps of that which do not wait.
        #[allow(unsafe_code)]
        let (meter, resident, emit, hash_keys) = unsafe {
            (Kernel::new(meter)?, Kernel::new(resident)?, Kernel::new(emit)?, Kernel::new(hash_keys)?)
        };
        let per_unit = meter.groups_per_unit()?.unwrap_or(1).max(1);
        let groups = description.units.max(1) * per_unit;
        let resident_groups = description.units.max(1) * resident.groups_per_unit()?.unwrap_or(1).max(1);
        Ok(Self { shape, meter, resident, emit, hash_keys, block, groups, resident_groups })
    }

    /// Groups for so many items.
    fn groups(&self, items: u32) -> u32 {
        items.div_ceil(self.block).clamp(1, self.groups)
    }

    /// Queues that a burst is metered: packets from place `from` of `packets` on, the first of which has this number.
    pub(super) fn meter(
        &self,
        queue: &mut Queue,
        packets: Slices<'_>,
        burst: Burst,
        tables: &Tables,
        seed: u64,
    ) -> Result<(), Error> {
        let arguments = Meter {
            frames: packets.frames,
            lens: packets.lens,
            times: packets.times,
            from: burst.from,
            count: burst.count,
            number: burst.number,
            link: packets.link.0.into(),
            seed,
            table_v4: (&tables.v4).into(),
            table_v6: (&tables.v6).into(),
            slots_v4: tables.slots[0],
            slots_v6: tables.slots[1],
            counts: (&tables.counts).into(),
            handed: (&tables.handed).into(),
            handed_room: tables.handed_room,
            slice: self.shape.slice.get() as u64,
        };
        Ok(queue.launch(&self.meter, self.groups(burst.count.div_ceil(self.shape.keys)), &arguments)?)
    }

    /// Queues the kernel that stays, over all of `packets`.
    pub(super) fn reside(
        &self,
        queue: &mut Queue,
        packets: Slices<'_>,
        count: u32,
        feed: &Feed<'_>,
        tables: &Tables,
        seed: u64,
    ) -> Result<(), Error> {
        let arguments = Resident {
            frames: packets.frames,
            lens: packets.lens,
            times: packets.times,
            count,
            link: packets.link.0.into(),
            seed,
            table_v4: (&tables.v4).into(),
            table_v6: (&tables.v6).into(),
            slots_v4: tables.slots[0],
            slots_v6: tables.slots[1],
            counts: (&tables.counts).into(),
            handed: (&tables.handed).into(),
            handed_room: tables.handed_room,
            burst: feed.burst,
            bursts: count.div_ceil(feed.burst),
            news: feed.news.into(),
            told: feed.told.into(),
            tickets: feed.tickets.into(),
            patience: feed.patience,
            slice: self.shape.slice.get() as u64,
        };
        let parts = self.block * self.shape.keys;
        let groups = count.div_ceil(feed.burst) * feed.burst.div_ceil(parts);
        Ok(queue.launch(&self.resident, groups.min(self.resident_groups), &arguments)?)
    }

    /// Hashes of keys, so many words each.
    pub(super) fn hash_keys(
        &self,
        device: &Device,
        keys: &[u32],
        words: usize,
        seed: u64,
    ) -> Result<Vec<u32>, Error> {
        let count = keys.len() / words;
        let mut hashes = vec![0u32; count];
        if count == 0 {
            return Ok(hashes);
        }
        let there = device.memory_of(bytemuck::cast_slice(keys))?;
        let out = device.memory(count * 4)?;
        let mut queue = device.queue()?;
        let arguments = HashKeys {
            keys: (&there).into(),
            count: count as u32,
            words: words as u32,
            seed,
            hashes: (&out).into(),
        };
        queue.launch(&self.hash_keys, self.groups(count as u32), &arguments)?;
        queue.read(&out, 0, bytemuck::cast_slice_mut(&mut hashes))?;
        Ok(hashes)
    }

    /// Takes what a meter found out: its flows leave the device by a buffer, one after the other.
    pub(super) fn collect(
        &self,
        device: &Device,
        queue: &mut Queue,
        tables: &Tables,
    ) -> Result<Found, Error> {
        let mut counts = [0u32; COUNTERS];
        queue.read(&tables.counts, 0, bytemuck::cast_slice_mut(&mut counts))?;
        let mut flows = Vec::new();
        let mut emit = |table: &Memory, family: usize, room: u32, bytes: usize| -> Result<Vec<u8>, Error> {
            let quads = (bytes / size_of::<u32x4>()) as u32;
            let out = device.memory(room as usize * bytes)?;
            let arguments = Emit {
                table: table.into(),
                slots: tables.slots[family],
                quads,
                out: (&out).into(),
                room,
                counts: (&tables.counts).into(),
                which: EMITTED[family],
            };
            queue.launch(&self.emit, self.groups(tables.slots[family]), &arguments)?;
            let mut count = [0u32];
            queue.read(&tables.counts, EMITTED[family] as usize * 4, bytemuck::cast_slice_mut(&mut count))?;
            if count[0] != room {
                let why = format!("{} of {room} flows left the device", count[0]);
                return Err(Error::Wrong(why));
            }
            let mut entries = vec![0u8; room as usize * bytes];
            queue.read(&out, 0, &mut entries)?;
            Ok(entries)
        };
        let entries = emit(&tables.v4, 0, counts[4], size_of::<EntryV4>())?;
        flows.extend(entries.chunks_exact(size_of::<EntryV4>()).map(|bytes| {
            let EntryV4 { head, totals } = bytemuck::pod_read_unaligned(bytes);
            let key = |word: usize| head[word] ^ KEY_MASK;
            Flow::new(head[0], key(1), [key(2).into(), key(3).into()], 4, totals)
        }));
        let entries = emit(&tables.v6, 1, counts[5], size_of::<EntryV6>())?;
        flows.extend(entries.chunks_exact(size_of::<EntryV6>()).map(|bytes| {
            let EntryV6 { head, totals } = bytemuck::pod_read_unaligned(bytes);
            let key = |word: usize| u128::from(head[word] ^ KEY_MASK);
            let address = |at: usize| key(at) << 96 | key(at + 1) << 64 | key(at + 2) << 32 | key(at + 3);
            Flow::new(head[0], head[1] ^ KEY_MASK, [address(2), address(6)], 6, totals)
        }));
        let mut handed = vec![0u32; counts[HANDED].min(tables.handed_room) as usize];
        queue.read(&tables.handed, 0, bytemuck::cast_slice_mut(&mut handed))?;
        handed.sort_unstable();
        Ok(Found {
            flows,
            counted: counts[0].into(),
            rejected: u64::from(counts[1]) + u64::from(counts[2]),
            full: counts[3].into(),
            handed,
        })
    }
}

/// Which packets a launch takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    /// The place of the first one, in the memory that the launch is given.
    pub(super) from: u32,
    pub(super) count: u32,
    /// The number of the first one, in the capture.
    pub(super) number: u32,
}

/// How a kernel that stays is fed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Feed<'a> {
    pub(super) burst: u32,
    pub(super) news: &'a Shared,
    pub(super) told: &'a Shared,
    pub(super) tickets: &'a Memory,
    pub(super) patience: u32,
}

/// The first bytes of frames, their captured lengths and their times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slices<'a> {
    pub(super) frames: Buffer<'a>,
    pub(super) lens: Buffer<'a>,
    pub(super) times: Buffer<'a>,
    pub(super) link: LinkType,
}

/// Flow tables of both IP versions in a device's memory, counters, and numbers of packets that are handed back.
#[derive(Debug)]
pub(super) struct Tables {
    v4: Memory,
    v6: Memory,
    slots: [u32; 2],
    counts: Memory,
    handed: Memory,
    handed_room: u32,
}

impl Tables {
    /// Empty ones with so many slots each, for so many packets.
    pub(super) fn new(device: &Device, slots: [u32; 2], packets: u32) -> Result<Self, Error> {
        Ok(Self {
            v4: device.zeros(slots[0] as usize * size_of::<EntryV4>())?,
            v6: device.zeros(slots[1] as usize * size_of::<EntryV6>())?,
            slots,
            counts: device.zeros(COUNTERS * 4)?,
            handed: device.zeros(packets as usize * 4)?,
            handed_room: packets,
        })
    }

    /// Queues that they become empty.
    pub(super) fn clear(&self, queue: &mut Queue) -> Result<(), Error> {
        for memory in [&self.v4, &self.v6, &self.counts] {
            queue.clear(memory)?;
        }
        Ok(())
    }

    /// Bytes of both.
    pub(super) fn bytes(&self) -> usize {
        self.v4.len() + self.v6.len()
    }
}

/// What came out of a device.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) flows: Vec<Flow>,
    /// Packets that are in flows.
    pub(super) counted: u64,
    /// Those that are in none, since they have no key, or are of another protocol.
    pub(super) rejected: u64,
    /// Those for whose flow there was no room.
    pub(super) full: u64,
    /// Numbers of packets that the host must meter, in order; those without room are among them.
    pub(super) handed: Vec<u32>,
}

/// A flow as it left a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Addresses of the endpoints a and b.
    pub(super) addresses: [u128; 2],
    pub(super) ports: [u16; 2],
    pub(super) protocol: u8,
    pub(super) version: u8,
    /// TCP flags of packets from a and from b.
    pub(super) flags: [u8; 2],
    pub(super) totals: Totals,
}

impl Flow {
    fn new(state: u32, ports: u32, addresses: [u128; 2], version: u8, totals: Totals) -> Self {
        Self {
            addresses,
            ports: [ports as u16, (ports >> 16) as u16],
            protocol: (state >> 16) as u8,
            version,
            flags: [state as u8, (state >> 8) as u8],
            totals,
        }
    }

    /// The words of its key as they are hashed.
    pub(super) fn words(&self, to: &mut Vec<u32>) {
        to.push(u32::from(self.ports[0]) | u32::from(self.ports[1]) << 16);
        for address in self.addresses {
            match self.version {
                4 => to.push(address as u32),
                _ => to.extend([96, 64, 32, 0].map(|shift| (address >> shift) as u32)),
            }
        }
        to.push(self.protocol.into());
    }
}

#[cfg(test)]
mod tests {
    use packetloom_device::{Cache, Device, Id};

    use super::*;

    #[test]
    fn compilers_lay_entries_out_as_rust_does() {
        let device = Device::open(Id::Host, Cache::none()).expect("the host");
        assert_eq!(device.check_layouts(&LAYOUTS), Ok(()));
    }

    /// What the reference implementations give: xxhash 0.8 and mmh3 5 for Python, the others by their definitions, for words i * 0x01020304.
    #[test]
    fn hash_functions_are_those_that_they_are_called() {
        let device = Device::open(Id::Host, Cache::none()).expect("the host");
        let seed = 0x1234_5678_9abc_def0;
        for (hash, expected) in [
            (Hash::Fnv1a, [0x90c1_88d9, 0x3868_7b8d]),
            (Hash::SuperFast, [0xcce9_045b, 0xdfd1_52e6]),
            (Hash::Murmur3, [0xc6c2_53c1, 0x71cd_0576]),
            (Hash::Xxh32, [0x4576_db73, 0xbed8_85d6]),
            (Hash::Xxh64, [0x4651_b67b, 0x9704_e584]),
        ] {
            let kernels =
                Kernels::new(&device, Shape { hash, keys: 1, ..Shape::default() }).expect("kernels");
            for (words, expected) in [4, 10].into_iter().zip(expected) {
                let key: Vec<u32> = (1..=words).map(|word| word * 0x0102_0304).collect();
                let found = kernels.hash_keys(&device, &key, words as usize, seed).expect("hashes");
                assert_eq!(found, [expected], "{hash} of {words} words");
            }
        }
    }
}
