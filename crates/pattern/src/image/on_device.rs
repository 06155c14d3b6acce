//! A set that was loaded onto a device.

use packetloom_device::{
    Arguments, Buffer, Description, Device, Entry, Id, Kernel, Memory, Program, Queue, u32x4,
};

use super::{Image, WHOLE_WORDS};
use crate::Match;

const FIND: &str = include_str!("find.kernel.c");

/// Steps that a warp takes before it goes on in another part of the batch, at most.
const MAX_PIECE: u32 = 16;

/// Matches that a [`Finder`] has room for at first.
const ROOM: u32 = 1 << 12;

/// Bytes of texts that a [`Finder`] hands over at a time.
const MAX_PART: usize = 1 << 25;

/// Why texts could not be looked through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] packetloom_device::Error),
    /// Too much for a batch.
    #[error("a batch of {texts} texts with {bytes} bytes; expected less than {} of both", Shape::LIMIT)]
    Batch {
        /// How many.
        texts: usize,
        /// Their bytes.
        bytes: usize,
    },
    /// More matches than can be reported.
    #[error("{0} matches in one batch; expected up to {max}", max = u32::MAX)]
    Matches(u64),
}

packetloom_device::arguments! {
    /// What `find` takes.
    struct Find as FIND_PARAMETERS {
        memory: fixed u32x4 [(begin + len).div_ceil(16).max((offsets + 4 * (texts + 1)).div_ceil(16))],
        begin: u32,
        len: u32,
        offsets: u32,
        texts: u32,
        skip: u32,
        /// The quotient of both, times 2^32.
        texts_per_byte: u64,
        /// Steps of a piece.
        piece: u32,
        filter: fixed u32 [..],
        filter_shift: u32,
        dense: fixed u32 [..],
        whole: fixed u32 [..],
        gate: fixed u32 [..],
        gate_shift: u32,
        slots: fixed u64 [..],
        slot_shift: u32,
        items: fixed u32x4 [..],
        bytes: fixed u32 [..],
        bounds: fixed u32 [..],
        matches: write u32 [3 * room],
        /// How many, with the carry in a word of its own.
        found: write u32 [2],
        room: u32,
        /// What is not the end and the pattern of each text's first match; 0 where it has none.
        firsts: write u64 [texts * is_first],
        is_first: host,
    } where begin.is_multiple_of(16), offsets.is_multiple_of(4), begin + len < Shape::LIMIT as u64, texts < Shape::LIMIT as u64,
        texts > 0 || len == 0, piece > 0
}

/// How kernels are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Items that run in step.
    pub lanes: u32,
    /// Items of a group.
    pub group: u32,
    /// Groups that a compute unit holds at a time.
    pub groups_per_unit: u32,
    /// Groups of a launch.
    pub groups: u32,
    /// Bytes that a group's items can share.
    pub local_memory: u32,
}

impl Target {
    /// What suits a device.
    pub fn of(device: &Device) -> Self {
        let Description { id, lanes, group, units, local_memory, .. } = *device.description();
        let (lanes, group, groups_per_unit, groups) = match id {
            // With 64 registers an item, as many as fit.
            Id::Cuda(_) => (lanes, group.min(512), 2, 2 * units),
            Id::OpenCl(_) if lanes > 1 => (lanes, group.min(512), 2, 2 * units),
            // Cores: a group has nobody to wait for.
            Id::OpenCl(_) => (1, 1, 1, 4 * units),
            // One core runs all of them: few are enough to meet each other.
            Id::Host => (lanes.min(4), lanes.min(4), 1, 2),
        };
        // The driver keeps 1 KB for each group.
        let local_memory = (local_memory / groups_per_unit).saturating_sub(1024);
        Self { lanes, group, groups_per_unit, groups, local_memory }
    }
}

/// How a packed batch lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Texts.
    pub texts: u32,
    /// Their bytes.
    pub len: u32,
}

impl Shape {
    /// A batch has fewer texts, and fewer bytes of them.
    pub const LIMIT: usize = 1 << 28;

    /// That of texts.
    ///
    /// # Errors
    ///
    /// [`Error::Batch`] where there are too many, or they are too long.
    pub fn of(texts: &[&[u8]]) -> Result<Self, Error> {
        let len = texts.iter().fold(0usize, |len, text| len.saturating_add(text.len()));
        if texts.len() >= Self::LIMIT || len >= Self::LIMIT {
            return Err(Error::Batch { texts: texts.len(), bytes: len });
        }
        Ok(Self { texts: texts.len() as u32, len: len as u32 })
    }

    /// Bytes in front of the offsets.
    pub fn offsets_at(self) -> usize {
        (self.len as usize).next_multiple_of(16)
    }

    /// Bytes of the whole batch.
    pub fn bytes(self) -> usize {
        self.offsets_at() + (4 * (self.texts as usize + 1)).next_multiple_of(16)
    }
}

/// Packs texts: their bytes one behind the other, padded to a multiple of 16; then, as words, where each of them begins, and where the last one
/// ends, padded likewise. The padding may be of any bytes. Replaces what was in `to`.
///
/// # Errors
///
/// [`Error::Batch`] where there are too many texts, or they are too long.
pub fn pack(texts: &[&[u8]], to: &mut Vec<u8>) -> Result<Shape, Error> {
    let shape = Shape::of(texts)?;
    to.clear();
    to.reserve(shape.bytes());
    texts.iter().for_each(|text| to.extend_from_slice(text));
    to.resize(shape.offsets_at(), 0);
    let mut end = 0;
    to.extend(0u32.to_ne_bytes());
    for text in texts {
        end += text.len() as u32;
        to.extend(end.to_ne_bytes());
    }
    to.resize(shape.bytes(), 0);
    Ok(shape)
}

/// Texts in memory, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Where they are.
    pub memory: Buffer<'a>,
    /// How many texts and bytes.
    pub shape: Shape,
    /// The byte of the memory with which the first text begins, a multiple of 16. The memory goes on to such a multiple behind the last one.
    pub begin: u32,
    /// The byte of the memory, a multiple of 4, where words say with which byte of the memory each text begins, and behind which the last one ends.
    pub offsets: u32,
    /// Bytes at the beginning of each text that are not searched. Bounds count from there, ends of matches from the text's beginning.
    pub skip: u32,
}

impl<'a> Batch<'a> {
    /// Texts that were [packed](pack).
    pub fn packed(memory: Buffer<'a>, shape: Shape) -> Self {
        Self { memory, shape, begin: 0, offsets: shape.offsets_at() as u32, skip: 0 }
    }
}

/// Where matches go.
#[derive(Clone, Copy, Debug)]
pub struct Results<'a> {
    /// Text, pattern's end and pattern of each, as three words.
    pub matches: Buffer<'a>,
    /// How many of them there is room for.
    pub room: u32,
    /// How many were found, also those for which there was no room: a `u64`, low word first. It is cleared before.
    pub found: &'a Memory,
}

/// Bytes of a match.
pub(super) const MATCH: usize = 12;

/// A set that was loaded onto a device, to find all matches.
#[derive(Debug)]
pub struct OnDevice(Loaded);

impl OnDevice {
    /// Loads a set. Waits for copies, and for the compiler unless the kernel is in the device's cache; sets of the same kind share one.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn new(device: &Device, image: &Image, target: &Target) -> Result<Self, Error> {
        Loaded::new(device, image, target, false).map(Self)
    }

    /// Queues a search of a batch.
    ///
    /// # Errors
    ///
    /// Memory that is too short for the batch or the results, or what the device says.
    pub fn find(&self, queue: &mut Queue, batch: &Batch<'_>, results: Results<'_>) -> Result<(), Error> {
        queue.clear(results.found)?;
        let Results { matches, room, found } = results;
        self.0.launch(queue, batch, matches, room, found, None)
    }
}

/// A set that was loaded onto a device, to find of each text the match that ends first, and of those the one with the lowest pattern: see
/// [`Report::First`](crate::Report::First).
#[derive(Debug)]
pub struct FirstOnDevice(Loaded);

impl FirstOnDevice {
    /// Loads a set, as [`OnDevice::new`] does.
    ///
    /// # Errors
    ///
    /// What the device says, which needs [64-bit atomics](Description::atomics_64).
    pub fn new(device: &Device, image: &Image, target: &Target) -> Result<Self, Error> {
        Loaded::new(device, image, target, true).map(Self)
    }

    /// Queues a search of a batch. `firsts` gets a `u64` for each text, which [`first`](Self::first) reads; all of it is cleared before.
    ///
    /// # Errors
    ///
    /// Memory that is too short for the batch or the results, or what the device says.
    pub fn find(&self, queue: &mut Queue, batch: &Batch<'_>, firsts: &Memory) -> Result<(), Error> {
        queue.clear(firsts)?;
        let Self(Loaded { none, .. }) = self;
        self.0.launch(queue, batch, none.into(), 0, none, Some(firsts.into()))
    }

    /// Where a text's match ends, and its pattern; none where it has no match.
    pub fn first(word: u64) -> Option<(u32, u32)> {
        (word != 0).then_some(((!word >> 32) as u32, !word as u32))
    }
}

/// A kernel, and a set.
#[derive(Debug)]
struct Loaded {
    kernel: Kernel<Find<'static>>,
    target: Target,
    filter: Memory,
    filter_shift: u32,
    dense: Memory,
    whole: Memory,
    gate: Memory,
    gate_shift: u32,
    slots: Memory,
    slot_shift: u32,
    items: Memory,
    bytes: Memory,
    bounds: Memory,
    /// Where the kernel writes nothing.
    none: Memory,
}

impl Loaded {
    fn new(device: &Device, image: &Image, target: &Target, is_first: bool) -> Result<Self, Error> {
        let loaded = device.build(&program(image, target, is_first))?.remove(0);
        // SAFETY: of the memory it reads as many bytes and offsets as the arguments are checked for, and none of what they are leads anywhere but
        // to such, or through hashes to places of the tables: `Image` made those, whose lists, bytes and bounds lie in each other, and
        // nobody else has their memory. It writes matches below `room`, and the words of `found`; or a first match of a text. Every search ends
        // at an empty slot, of which there are as many as others.
        #[allow(unsafe_code)]
        let kernel = unsafe { Kernel::new(loaded)? };
        let words = |words: &[u32]| device.memory_of(bytemuck::cast_slice(words));
        Ok(Self {
            kernel,
            target: *target,
            filter: words(&image.filter)?,
            filter_shift: image.filter_shift,
            dense: words(&image.dense)?,
            whole: words(&image.whole)?,
            gate: words(&image.gate)?,
            gate_shift: image.gate_shift,
            slots: device.memory_of(bytemuck::cast_slice(&image.slots))?,
            slot_shift: image.slot_shift,
            items: device.memory_of(bytemuck::cast_slice(&image.items))?,
            bytes: words(&image.bytes)?,
            bounds: device.memory_of(bytemuck::cast_slice(&image.bounds))?,
            none: device.memory(8)?,
        })
    }

    fn launch(
        &self,
        queue: &mut Queue,
        batch: &Batch<'_>,
        matches: Buffer<'_>,
        room: u32,
        found: &Memory,
        firsts: Option<Buffer<'_>>,
    ) -> Result<(), Error> {
        let Batch { memory, shape: Shape { texts, len }, begin, offsets, skip } = *batch;
        let Target { lanes, group, groups, .. } = self.target;
        let (steps, warps) = (len.div_ceil(16).div_ceil(lanes), groups * (group / lanes));
        let piece = (steps / (4 * warps)).clamp(1, MAX_PIECE);
        let arguments = Find {
            memory,
            begin,
            len,
            offsets,
            texts,
            skip,
            // What it would be for more texts than bytes is of no use, and too large.
            texts_per_byte: ((u64::from(texts) << 32) / u64::from(len.max(1))).min(1 << 35),
            piece,
            filter: (&self.filter).into(),
            filter_shift: self.filter_shift,
            dense: (&self.dense).into(),
            whole: (&self.whole).into(),
            gate: (&self.gate).into(),
            gate_shift: self.gate_shift,
            slots: (&self.slots).into(),
            slot_shift: self.slot_shift,
            items: (&self.items).into(),
            bytes: (&self.bytes).into(),
            bounds: (&self.bounds).into(),
            matches,
            found: found.into(),
            room,
            firsts: firsts.unwrap_or((&self.none).into()),
            is_first: firsts.is_some().into(),
        };
        // No more groups than there is work for.
        let groups = steps.div_ceil(piece).div_ceil(group / lanes).min(groups);
        Ok(queue.launch(&self.kernel, groups, &arguments)?)
    }
}

/// The kernel for a set, and for others of its kind.
fn program(image: &Image, target: &Target, is_first: bool) -> Program {
    let flag = |is_set: bool| u32::from(is_set).to_string();
    let (has_dense, has_whole) = (!image.dense.is_empty(), !image.whole.is_empty());
    let dense_bits = if has_dense { image.dense.len().ilog2() } else { 0 };
    // Two queues and room for matches of three words, each of twice as many as there are lanes, and a counter.
    let warps = (target.group / target.lanes) * 4 * (10 * target.lanes + 1);
    // Bitmaps lie there, too, as far as they fit.
    let mut local = warps;
    let mut fits = |is_there: bool, words: usize| {
        let fits = is_there && words <= WHOLE_WORDS && local + 4 * words as u32 <= target.local_memory;
        local += if fits { 4 * words as u32 } else { 0 };
        fits
    };
    let dense_local = fits(has_dense, image.dense.len());
    let whole_local = fits(has_whole, WHOLE_WORDS);
    let fold = u32::from_ne_bytes([image.fold; 4]);
    let defines = [
        ("FIRST", flag(is_first)),
        ("FOLD", format!("{fold}u")),
        ("HAS_SPARSE", flag(!image.filter.is_empty())),
        ("HAS_DENSE", flag(has_dense)),
        ("DENSE_BITS", dense_bits.to_string()),
        ("DENSE_LOCAL", flag(dense_local)),
        ("HAS_WHOLE", flag(has_whole)),
        ("WHOLE_LOCAL", flag(whole_local)),
    ];
    let defines = defines.map(|(name, value)| (name.to_owned(), value));
    Program {
        name: "find",
        source: FIND.into(),
        defines: defines.into_iter().chain([Find::define()]).collect(),
        group: target.group,
        groups_per_unit: target.groups_per_unit,
        stays: false,
        local,
        entries: vec![Entry::of::<Find<'_>>("find")],
    }
}

/// Looks through texts on a device, and waits for it.
#[derive(Debug)]
pub struct Finder {
    device: Device,
    set: OnDevice,
    queue: Queue,
    batch: Memory,
    matches: Memory,
    found: Memory,
    packed: Vec<u8>,
}

impl Finder {
    /// Loads a set onto a device.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn new(device: &Device, image: &Image) -> Result<Self, Error> {
        Self::with(device, image, &Target::of(device))
    }

    /// The same, for a target of one's own.
    ///
    /// # Errors
    ///
    /// What the device says.
    pub fn with(device: &Device, image: &Image, target: &Target) -> Result<Self, Error> {
        Ok(Self {
            device: device.clone(),
            set: OnDevice::new(device, image, target)?,
            queue: device.queue()?,
            batch: device.memory(0)?,
            matches: device.memory(ROOM as usize * MATCH)?,
            found: device.memory(8)?,
            packed: Vec::new(),
        })
    }

    /// Adds all matches in texts, those of an earlier batch of 32 MiB before those of a later one, otherwise in no particular order. A batch with
    /// more matches than there is room for is looked through once more.
    ///
    /// # Errors
    ///
    /// A text that is too long for a batch, too many matches, no memory for them, or what else the device says. Matches of batches before
    /// were added.
    pub fn find(&mut self, texts: &[&[u8]], matches: &mut Vec<Match>) -> Result<(), Error> {
        let mut first = 0;
        while first < texts.len() {
            let mut bytes = 0usize;
            let count = texts[first..].iter().take_while(|text| {
                bytes = bytes.saturating_add(text.len() + size_of::<u32>());
                bytes <= MAX_PART
            });
            let end = first + count.count().max(1);
            self.find_in_batch(&texts[first..end], first as u32, matches)?;
            first = end;
        }
        Ok(())
    }

    fn find_in_batch(&mut self, texts: &[&[u8]], first: u32, matches: &mut Vec<Match>) -> Result<(), Error> {
        let Self { device, set, queue, packed, .. } = self;
        let shape = pack(texts, packed)?;
        if self.batch.len() < packed.len() {
            self.batch = device.memory(packed.len())?;
        }
        queue.write(&self.batch, 0, packed)?;
        let found = loop {
            let room = (self.matches.len() / MATCH) as u32;
            let results = Results { matches: (&self.matches).into(), room, found: &self.found };
            set.find(queue, &Batch::packed((&self.batch).into(), shape), results)?;
            let mut found = [0u32; 2];
            queue.read(&self.found, 0, bytemuck::cast_slice_mut(&mut found))?;
            let found = u64::from(found[1]) << 32 | u64::from(found[0]);
            if found <= u64::from(room) {
                break found as usize;
            }
            let room = u32::try_from(found).map_err(|_| Error::Matches(found))?;
            self.matches = device.memory(room as usize * MATCH)?;
        };
        let mut words = vec![[0u32; 3]; found];
        queue.read(&self.matches, 0, bytemuck::cast_slice_mut(&mut words))?;
        matches.extend(words.iter().map(|&[text, end, pattern]| Match { text: first + text, end, pattern }));
        Ok(())
    }
}
