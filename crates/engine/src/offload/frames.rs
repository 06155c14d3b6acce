//! Frames in, verdicts out: the part of a chain that has kernels, as one kernel.

use std::mem::offset_of;
use std::num::NonZeroU32;
use std::ops::Range;
use std::str::FromStr;

use packetloom_classify::image::{Algorithm, Image, Target};
use packetloom_classify::{NO_RULE, RuleSet};
use packetloom_device::{
    Arguments, Buffer, Device, Entry, Id, Kernel, LaidOut, Layout as Layouts, Memory, Program, Queue,
};
use packetloom_packet::batch::Policy;
use packetloom_packet::{DropReason, LinkType, MatchKey4, MatchKey6, Verdict, dissect};

use super::{Error, MAX_PACKETS, policy_define, target};

/// The kernel's text, behind those of what it is made of.
const FRAMES: &str = include_str!("frames.kernel.c");

packetloom_device::arguments! {
    /// What `judge` takes.
    struct Judge as JUDGE_PARAMETERS {
        /// The frames, and bytes of them.
        frames: live u8 [bytes],
        bytes: u64,
        places: live u64 [stride],
        answers: write u64 [stride],
        /// For each ACL but the first, positions of as many packets as there is room for.
        others: write u32 [stride * (acls - 1)],
        stride: u32,
        /// Packets that are judged.
        begin: u32,
        end: u32,
        tables: fixed u32 [..],
        acls: host,
    } where bytes.is_multiple_of(16), begin <= end, end <= stride, stride <= MAX_PACKETS.into()
}

packetloom_device::arguments! {
    /// What `reside` takes.
    struct Reside as RESIDE_PARAMETERS {
        frames: live u8 [bytes],
        bytes: u64,
        /// Places or, in buffers, lengths.
        places: live u8 [room * if buffer == 0 { 8 } else { 2 }],
        answers: write u64 [room],
        others: write u32 [room * (acls - 1)],
        /// Bytes of a buffer, and the link type of all frames; 0 where frames lie anywhere.
        buffer: u32,
        link: u32,
        news: live u64 [1],
        told: write u64 [((TOLD_APART as u64) << ring_bits) + 1],
        ring_bits: u32,
        /// The batch to begin with, and how often it asks in vain before it leaves.
        first: u32,
        patience: u32,
        tables: fixed u32 [..],
        acls: host,
        /// Frames of the ring.
        room: host,
    } where bytes.is_multiple_of(16), room <= MAX_PACKETS.into(), room * buffer <= bytes
}

packetloom_device::layout! {
    /// Where each family of each ACL has its parts in the tables, in units of 16 bytes, which is less than there can be rules in 32 bits.
    #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
    struct FamilyParts {
        rules: u32,
        classes: u32,
        filter: u32,
        masks: u32,
        /// A bit for each rule, set where it drops the packet.
        denies: u32,
    }
}

packetloom_device::layout! {
    /// What the host tells a kernel that stays: batches published, and whether to leave. The kernel reads both at once.
    #[allow(dead_code, reason = "its words are stored one by one")]
    pub(super) struct News {
        pub(super) published: u32,
        pub(super) stop: u32,
    }
}

/// Structs of the kernels.
pub(super) const LAYOUTS: [Layouts; 2] = [FamilyParts::LAYOUT, News::LAYOUT];

/// ACLs of a kernel at most: each takes local memory for its filters, and has its masks in the kernel's text.
pub const MAX_ACLS: usize = 4;
/// Groups of a compute unit with one ACL: with their frames on the way, more than keep a bus busy, so that launches overlap.
const GROUPS_PER_UNIT: u32 = 8;
/// A place: a frame's offset, its link type, and 16 bits for its captured bytes.
const OFFSET_BITS: u32 = 39;
const LINK_BITS: u32 = 9;
/// An answer: a position, a verdict, a bit for the lap of a ring, and 32 for the packet's IP bytes.
const POSITION_BITS: u32 = 24;
const LAP_BIT: u32 = 31;
const NO_POSITION: u32 = (1 << POSITION_BITS) - 1;
/// The code of a verdict that software must give.
const BEYOND: u8 = 0x7f;
/// Words from what groups of a kernel that stays are told of one batch of its ring to that of the next one.
pub(super) const TOLD_APART: usize = 4;

/// Bytes of a frame that a device looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slice {
    /// Enough for IPv4, and for IPv6 but TCP's flags.
    Bytes64,
    /// Enough for all but long chains of headers.
    #[default]
    Bytes128,
}

impl Slice {
    /// How many they are.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

impl FromStr for Slice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "64" => Ok(Self::Bytes64),
            "128" => Ok(Self::Bytes128),
            _ => Err(format!("no slice of {text:?} bytes; expected 64 or 128")),
        }
    }
}

/// Where a frame lies, for a device: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Place(u64);

impl Place {
    /// Where no frame is.
    pub const NONE: Self = Self(u64::MAX);

    /// Of a frame's captured bytes; `None` where the offset is more than a place can say: half a terabyte.
    pub fn new(offset: u64, len: u32, link: LinkType) -> Option<Self> {
        let link = link_bits(link);
        // Only whether the headers are whole depends on the length: they are, long before this.
        let len = u64::from(len.min(u16::MAX.into()));
        // A place of all ones is none.
        let is_near = offset < (1 << OFFSET_BITS) - 1;
        is_near.then_some(Self(offset | link << OFFSET_BITS | len << (OFFSET_BITS + LINK_BITS)))
    }

    /// The same for an offset that a place can always say.
    pub fn near(offset: u32, len: u32, link: LinkType) -> Self {
        Self::new(offset.into(), len, link).unwrap_or(Self::NONE)
    }
}

/// A link type in as many bits as places have for it: all ones for [`LinkType::NONE`], and one less for all others
/// that are too large, of which none is supported.
fn link_bits(link: LinkType) -> u64 {
    const NONE: u64 = (1 << LINK_BITS) - 1;
    if link == LinkType::NONE { NONE } else { u64::from(link.0).min(NONE - 1) }
}

/// How the frames of a ring lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each where its [`Place`] says.
    Anywhere,
    /// In buffers that follow each other, as a network card fills them: the ring's first frame at the beginning of the first one.
    Buffers {
        /// From one to the next.
        bytes: NonZeroU32,
        /// What all frames begin with.
        link: LinkType,
    },
}

impl Layout {
    /// Bytes by which the device is told of each frame.
    pub(super) const fn bytes_per_place(self) -> usize {
        match self {
            Self::Anywhere => size_of::<Place>(),
            Self::Buffers { .. } => size_of::<u16>(),
        }
    }
}

/// What a device found out about a frame: 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Answer(u64);

impl Answer {
    /// The chain's verdict; `None` where software must look at the frame.
    pub fn verdict(self) -> Option<Verdict> {
        match self.code() {
            BEYOND => None,
            code => Verdict::of_code(code),
        }
    }

    /// The first rule of the first ACL that matches, by its position, or [`NO_RULE`].
    pub fn first(self) -> u32 {
        position(self.0 as u32)
    }

    /// The packet's IP bytes; 0 for frames without a match key.
    pub fn ip_bytes(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether the packet passes: the same as a verdict that says so.
    #[inline]
    pub fn passes(self) -> bool {
        self.code() == 0
    }

    #[inline]
    fn code(self) -> u8 {
        (self.0 >> POSITION_BITS) as u8 & BEYOND
    }

    /// What changes with each lap of a ring.
    pub(super) fn lap(self) -> bool {
        self.0 >> LAP_BIT & 1 == 1
    }

    /// Whether all are of a lap, without a branch for each.
    #[inline]
    pub(super) fn all_of_lap(answers: &[Self], lap: bool) -> bool {
        let other = u64::from(!lap) << LAP_BIT;
        answers.iter().fold(u64::MAX, |all, answer| all & (answer.0 ^ other)) >> LAP_BIT & 1 == 1
    }
}

pub(super) fn position(word: u32) -> u32 {
    match word & NO_POSITION {
        NO_POSITION => NO_RULE,
        position => position,
    }
}

/// An ACL as a kernel takes it.
#[derive(Clone, Copy, Debug)]
pub struct Acl<'a> {
    /// Its rules.
    pub rules: &'a RuleSet,
    /// The verdict of each and, after them, that where none matches.
    pub verdicts: &'a [Verdict],
}

/// How frames are judged on a device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How rules are laid out.
    pub algorithm: Algorithm,
    /// Whether the kernel is compiled for them: slower to begin with, faster after.
    pub specialise: bool,
    /// Bytes of each frame that are looked at.
    pub slice: Slice,
    /// What becomes of frames without a match key.
    pub policy: Policy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::default(),
            specialise: true,
            slice: Slice::default(),
            policy: Policy::PASS,
        }
    }
}

/// The first functions of a chain on a device: ACLs, from the headers to the verdict.
#[derive(Debug)]
pub struct Frames {
    device: Device,
    judge: Kernel<Judge<'static>>,
    reside: Kernel<Reside<'static>>,
    tables: Memory,
    acls: usize,
    slice: Slice,
    groups: u32,
}

/// Memory in which frames are judged; each may be the device's or shared with it.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    /// The frames, a multiple of 16 bytes.
    pub frames: Buffer<'a>,
    /// Bytes of that memory.
    pub bytes: usize,
    /// Where the frames lie: a [`Place`] each.
    pub places: Buffer<'a>,
    /// An [`Answer`] for each.
    pub answers: Buffer<'a>,
    /// For each ACL but the first, positions of as many packets: words of 32 bits.
    pub others: Buffer<'a>,
    /// Frames that there is room for in each.
    pub room: u32,
}

impl Frames {
    /// Lays out the rules, compiles the kernel and copies everything to the device.
    ///
    /// # Errors
    /// Where the rules are too many for it, or where it fails.
    ///
    /// # Panics
    /// With no ACL, or more than [`MAX_ACLS`].
    pub fn new(device: &Device, acls: &[Acl<'_>], options: Options) -> Result<Self, Error> {
        assert!((1..=MAX_ACLS).contains(&acls.len()), "{} ACLs", acls.len());
        let (target, staging) = fused_target(device, acls.len(), options);
        let mut tables = Tables::new(acls.len());
        let mut source = String::from("#line 1 \"dissect.kernel.c\"\n");
        source += dissect::KERNEL;
        let mut local = staging;
        let mut defines = dissect::defines();
        for (number, acl) in acls.iter().enumerate() {
            let v4 = Image::new::<MatchKey4>(acl.rules, options.algorithm, &target)?;
            let v6 = Image::new::<MatchKey6>(acl.rules, options.algorithm, &target)?;
            // They are the same for both families, and read where the first has its parts.
            for (family, image, denies) in [(4, v4, denies(acl)), (6, v6, Vec::new())] {
                source += &image.functions(&format!("acl{number}_v{family}_##x"));
                local += image.local.next_multiple_of(16);
                let parts = FamilyParts {
                    rules: tables.add(&image.rules),
                    classes: tables.add(&image.classes),
                    filter: tables.add(&image.filter),
                    masks: tables.add(&image.masks),
                    denies: tables.add(&denies),
                };
                tables.parts.push(parts);
            }
            let default = acl.verdicts.last().copied().unwrap_or_default();
            defines.push((format!("VERDICT_DEFAULT_{number}"), format!("{}u", default.code())));
        }
        source += "#line 1 \"layouts\"\n";
        source += &Layouts::declare(LAYOUTS);
        source += "#line 1 \"frames.kernel.c\"\n";
        source += FRAMES;
        let each: Vec<_> = (0..acls.len()).map(|number| format!("ACL({number})")).collect();
        defines.push(policy_define(options.policy));
        defines.extend([
            Judge::define(),
            Reside::define(),
            ("ACLS(ACL)".into(), each.join(" ")),
            ("ACL_COUNT".into(), format!("{}u", acls.len())),
            ("SLICE".into(), format!("{}u", options.slice.bytes())),
            ("OFFSET_BITS".into(), OFFSET_BITS.to_string()),
            ("LINK_BITS".into(), LINK_BITS.to_string()),
            ("POSITION_BITS".into(), POSITION_BITS.to_string()),
            ("LAP_BIT".into(), LAP_BIT.to_string()),
            ("TOLD_APART".into(), TOLD_APART.to_string()),
            ("NEWS_PUBLISHED".into(), (8 * offset_of!(News, published)).to_string()),
            ("NEWS_STOP".into(), (8 * offset_of!(News, stop)).to_string()),
            ("VERDICT_BEYOND".into(), format!("{BEYOND}u")),
            ("VERDICT_RULE".into(), format!("{}u", Verdict::Drop(DropReason::AclRule).code())),
        ]);
        let program = Program {
            name: "frames",
            source,
            defines,
            group: target.group,
            groups_per_unit: target.groups_per_unit,
            stays: true,
            local,
            entries: vec![Entry::of::<Judge<'_>>("judge"), Entry::of::<Reside<'_>>("reside")],
        };
        let mut loaded = device.build(&program)?;
        let (reside, judge) = (loaded.remove(1), loaded.remove(0));
        // SAFETY: the kernels read frames inside `bytes`, wherever places are, write what they say of packets from `begin` to `end` or of the ring's,
        // and look rules up in tables that were laid out for them: only here are the arguments made. They stay no longer than `patience`.
        #[allow(unsafe_code)]
        let (judge, reside) = unsafe { (Kernel::new(judge)?, Kernel::<Reside<'_>>::new(reside)?) };
        // A kernel that stays must have all its groups there at once.
        let groups_per_unit = reside.groups_per_unit()?.unwrap_or(u32::MAX).clamp(1, target.groups_per_unit);
        Ok(Self {
            device: device.clone(),
            judge,
            reside,
            tables: device.memory_of(bytemuck::cast_slice(&tables.words()))?,
            acls: acls.len(),
            slice: options.slice,
            groups: device.description().units * groups_per_unit,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// ACLs.
    pub fn acls(&self) -> usize {
        self.acls
    }

    /// Bytes of a frame that are looked at.
    pub fn slice(&self) -> Slice {
        self.slice
    }

    /// Frames of a batch of a ring.
    pub fn group(&self) -> u32 {
        self.judge.group()
    }

    /// Groups that the device holds at a time, but for one of each compute unit: where kernels that stay were to take all that a driver said
    /// there is room for, some groups found none.
    pub fn groups(&self) -> u32 {
        let units = self.device.description().units;
        self.groups.saturating_sub(units).max(units)
    }

    /// Queues the kernel over the frames at some of the places. A place that is not in the memory of the frames is answered as one that
    /// software must look at.
    ///
    /// # Errors
    /// Where there is no room for so many; and where the device fails.
    pub fn launch(&self, queue: &mut Queue, buffers: &Buffers<'_>, packets: Range<u32>) -> Result<(), Error> {
        let groups = (packets.len() as u32).div_ceil(self.judge.group()).clamp(1, self.groups);
        let &Buffers { frames, bytes, places, answers, others, room: stride } = buffers;
        let arguments = Judge {
            frames,
            bytes: bytes as u64,
            places,
            answers,
            others,
            stride,
            begin: packets.start,
            end: packets.end,
            tables: (&self.tables).into(),
            acls: self.acls as u64,
        };
        Ok(queue.launch(&self.judge, groups, &arguments)?)
    }

    /// Queues the kernel that stays: see [`super::ring`].
    pub(super) fn launch_resident(
        &self,
        queue: &mut Queue,
        buffers: &Buffers<'_>,
        layout: Layout,
        (news, told): (Buffer<'_>, &Memory),
        (ring_bits, first, patience): (u32, u32, u32),
        groups: u32,
    ) -> Result<(), Error> {
        let (buffer, link) = match layout {
            Layout::Anywhere => (0, LinkType(0)),
            Layout::Buffers { bytes, link } => (bytes.get(), link),
        };
        let &Buffers { frames, bytes, places, answers, others, room: _ } = buffers;
        let arguments = Reside {
            frames,
            bytes: bytes as u64,
            places,
            answers,
            others,
            buffer,
            link: link_bits(link) as u32,
            news,
            told: told.into(),
            ring_bits,
            first,
            patience,
            tables: (&self.tables).into(),
            acls: self.acls as u64,
            room: u64::from(self.group()) << ring_bits,
        };
        Ok(queue.launch(&self.reside, groups, &arguments)?)
    }
}

/// What the kernel's `tables` are: where parts lie, and they.
struct Tables {
    parts: Vec<FamilyParts>,
    /// Behind the parts of all families.
    words: Vec<u32>,
}

impl Tables {
    fn new(acls: usize) -> Self {
        let head = acls * 2 * size_of::<FamilyParts>() / size_of::<u32>();
        Self { parts: Vec::new(), words: vec![0; head.next_multiple_of(4)] }
    }

    /// Where it lies.
    fn add(&mut self, part: &[u32]) -> u32 {
        let at = (self.words.len() / 4) as u32;
        self.words.extend(part);
        self.words.resize(self.words.len().next_multiple_of(4), 0);
        at
    }

    fn words(mut self) -> Vec<u32> {
        let head: &[u32] = bytemuck::cast_slice(&self.parts);
        self.words[..head.len()].copy_from_slice(head);
        self.words
    }
}

/// A bit for each rule, set where it drops the packet.
fn denies(acl: &Acl<'_>) -> Vec<u32> {
    let mut words = vec![0u32; acl.rules.rules.len().div_ceil(32)];
    for (position, verdict) in acl.verdicts.iter().enumerate().take(acl.rules.rules.len()) {
        words[position / 32] |= u32::from(!verdict.is_pass()) << (position % 32);
    }
    words
}

/// What suits a device for images of so many ACLs in one kernel, and the bytes of local memory that frames take beside them.
fn fused_target(device: &Device, acls: usize, options: Options) -> (Target, u32) {
    let description = device.description();
    let whole = target(device, options.specialise);
    // Small groups: a batch of a ring is one.
    let groups_per_unit = (GROUPS_PER_UNIT / acls as u32).max(1);
    let (group, local_memory) = match description.id {
        Id::Cuda(_) => (whole.lanes * 2, (description.local_memory / groups_per_unit).saturating_sub(1024)),
        Id::OpenCl(_) => (whole.lanes * 2, whole.local_memory),
        Id::Host => (whole.group, whole.local_memory),
    };
    // `Warp` and `Group` of the kernel, without the lanes' part, which is counted with each image.
    let words = (options.slice.bytes() / 16 + 1) * 4 + 1;
    let warp = whole.lanes * (8 + 4 * words as u32);
    let staging = group / whole.lanes * warp.next_multiple_of(16) + 64;
    let images = 2 * acls as u32;
    let local_memory = (local_memory.saturating_sub(staging) / images) & !15;
    let target = Target { group, groups_per_unit, local_memory, packets_a_lane: 1, ..whole };
    (target, staging)
}
