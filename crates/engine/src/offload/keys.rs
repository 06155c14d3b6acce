//! Keys in, positions of rules out.

use std::ops::Range;

use packetloom_classify::RuleSet;
use packetloom_classify::image::{Image, Target};
use packetloom_device::{Arguments, Buffer, Device, Entry, Kernel, Memory, Program, Queue};
use packetloom_packet::{MatchKey4, MatchKey6};

use super::{Error, Options, target};

packetloom_device::arguments! {
    /// What `classify` takes: see `keys.kernel.c`.
    struct Classify as CLASSIFY_PARAMETERS {
        keys: fixed u32 [end * key_words],
        first: write u32 [end],
        begin: u32,
        end: u32,
        rules: fixed u32x4 [..],
        classes: fixed u32x4 [..],
        filter: fixed u32 [..],
        masks: fixed u32 [..],
        /// Words of a key.
        key_words: host,
    } where end <= u64::from(MAX_PACKETS), begin <= end
}

/// Packets of a launch at most: places of packets are 32 bits in the kernel, and it goes on past the last one by what all groups take.
pub const MAX_PACKETS: u32 = 1 << 31;

/// A rule set on a device, and what it takes to have batches of keys classified there.
#[derive(Debug)]
pub struct Classifier {
    queue: Queue,
    v4: OnDevice,
    v6: OnDevice,
}

impl Classifier {
    /// Lays out the rules, compiles the kernels and copies everything to the device.
    ///
    /// # Errors
    /// Where the rules are too many for it, or where it fails.
    pub fn new(device: &Device, rules: &RuleSet, options: Options) -> Result<Self, Error> {
        let target = target(device, options.specialise);
        Ok(Self {
            queue: device.queue()?,
            v4: OnDevice::new(device, &Image::new::<MatchKey4>(rules, options.algorithm, &target)?, &target)?,
            v6: OnDevice::new(device, &Image::new::<MatchKey6>(rules, options.algorithm, &target)?, &target)?,
        })
    }

    /// Writes to `first` the position in the rule set of the first rule that matches each key, or
    /// [`packetloom_classify::NO_RULE`]. Both slices have the same length.
    ///
    /// # Errors
    /// Where the device fails; what `first` holds then is not defined.
    pub fn classify_v4(&mut self, keys: &[MatchKey4], first: &mut [u32]) -> Result<(), Error> {
        self.v4.classify(&mut self.queue, bytemuck::cast_slice(keys), first)
    }

    /// As [`Classifier::classify_v4`], for IPv6.
    ///
    /// # Errors
    /// As there.
    pub fn classify_v6(&mut self, keys: &[MatchKey6], first: &mut [u32]) -> Result<(), Error> {
        self.v6.classify(&mut self.queue, bytemuck::cast_slice(keys), first)
    }
}

/// What an image has in the memory of a device.
#[derive(Debug)]
pub(super) struct Tables([Memory; 4]);

impl Tables {
    pub(super) fn new(device: &Device, image: &Image) -> Result<Self, packetloom_device::Error> {
        let memory = |words: &[u32]| device.memory_of(bytemuck::cast_slice(words));
        let Image { rules, classes, filter, masks, .. } = image;
        Ok(Self([memory(rules)?, memory(classes)?, memory(filter)?, memory(masks)?]))
    }

    /// As kernels take them, in this order.
    pub(super) fn buffers(&self) -> [Buffer<'_>; 4] {
        self.0.each_ref().map(Buffer::Memory)
    }
}

/// The rules of one family on a device.
#[derive(Debug)]
pub struct OnDevice {
    device: Device,
    kernel: Kernel<Classify<'static>>,
    tables: Tables,
    /// Bytes of a key.
    key_bytes: usize,
    /// Groups that fill the device.
    groups: u32,
    /// Packets that a group takes at a time.
    round: u32,
    keys: Memory,
    first: Memory,
}

impl OnDevice {
    /// Compiles an image's kernel and copies its tables.
    ///
    /// # Errors
    /// Where the device fails, or has no room.
    pub fn new(device: &Device, image: &Image, target: &Target) -> Result<Self, Error> {
        let program = Program {
            name: "rules",
            source: image.keys_kernel(),
            defines: vec![Classify::define()],
            group: target.group,
            groups_per_unit: target.groups_per_unit,
            stays: false,
            local: image.local,
            entries: vec![Entry::of::<Classify<'_>>("classify")],
        };
        let loaded = device.build(&program)?.remove(0);
        // SAFETY: the kernel takes keys and finds rules from `begin` to `end`, and looks rules up in tables that are the image's, as that was laid
        // out: only here are the arguments made.
        #[allow(unsafe_code)]
        let kernel = unsafe { Kernel::new(loaded)? };
        Ok(Self {
            device: device.clone(),
            kernel,
            tables: Tables::new(device, image)?,
            key_bytes: image.key_bytes,
            groups: device.description().units * target.groups_per_unit,
            round: image.round * (target.group / target.lanes),
            keys: device.memory(0)?,
            first: device.memory(0)?,
        })
    }

    /// Queues the kernel over some of the keys that are on the device.
    ///
    /// # Errors
    /// Where there are not so many keys, or no room for the answers; and where the device fails.
    pub fn launch(
        &self,
        queue: &mut Queue,
        keys: &Memory,
        first: &Memory,
        packets: Range<u32>,
    ) -> Result<(), Error> {
        let groups = (packets.len() as u32).div_ceil(self.round).clamp(1, self.groups);
        let [rules, classes, filter, masks] = self.tables.buffers();
        let (keys, first) = (keys.into(), first.into());
        let Range { start: begin, end } = packets;
        let key_words = self.key_bytes as u64 / 4;
        let arguments = Classify { keys, first, begin, end, rules, classes, filter, masks, key_words };
        Ok(queue.launch(&self.kernel, groups, &arguments)?)
    }

    fn classify(&mut self, queue: &mut Queue, keys: &[u8], first: &mut [u32]) -> Result<(), Error> {
        if first.is_empty() {
            return Ok(());
        }
        if self.keys.len() < keys.len() {
            self.keys = self.device.memory(keys.len())?;
            self.first = self.device.memory(size_of_val(first))?;
        }
        queue.write(&self.keys, 0, keys)?;
        self.launch(queue, &self.keys, &self.first, 0..first.len() as u32)?;
        Ok(queue.read(&self.first, 0, bytemuck::cast_slice_mut(first))?)
    }
}
