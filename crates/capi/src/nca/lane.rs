//! Functions on devices: kernels of the program, and those that are built in. A lane is a queue of a device with the memory that they work with.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use packetloom_device::{Device, Id, Memory, Queue, Shared};
use packetloom_engine::Chain;
use packetloom_engine::offload;
use packetloom_engine::offload::frames::{self, Acl, Answer, Buffers, Frames, Place};
use packetloom_nf::Offload;
use packetloom_packet::LinkType;
use packetloom_pattern::image::{Batch, FirstOnDevice, Image, Shape, Target};

use super::buffer::Buffer;
use super::function::{Function, Kind, Search, put};
use super::kernel::{Kernel, Ready};
use super::nca_packets;
use crate::status::*;

/// How long the kernels of a buffer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A function, ready to be loaded onto devices.
enum LaidOut<'a> {
    Kernel(&'a Arc<Kernel>),
    Strings(Box<Image>, Search),
    Acl(Box<Chain>, LinkType),
}

impl<'a> LaidOut<'a> {
    /// None where the function is for cores. Those that are built in are for GPUs and the like: this machine's cores run them without kernels.
    fn new(function: &'a Function, devices: &[Device]) -> Outcome<Option<Self>> {
        let mut all = devices.iter().map(Device::description);
        let is_host = all.clone().any(|device| device.id == Id::Host);
        Ok(match &function.kind {
            Kind::Kernel(kernel) => Some(Self::Kernel(kernel)),
            _ if is_host || devices.is_empty() => None,
            Kind::Strings(..) | Kind::AhoCorasick(..) if !all.all(|device| device.atomics_64) => None,
            Kind::Strings(matcher, search) => {
                Some(Self::Strings(Box::new(Image::new(matcher.patterns(), &[])), *search))
            }
            Kind::AhoCorasick(_, patterns, search) => {
                Some(Self::Strings(Box::new(Image::new(patterns, &[])), *search))
            }
            Kind::Chain(text) if !text.is_acl => None,
            Kind::Chain(text) => {
                let chain = text.chain()?;
                let can_have = match chain.functions() {
                    [acl] => acl.is_offloadable() && !acl.has_changing_rules() && acl.log().is_none(),
                    _ => false,
                };
                can_have.then(|| Self::Acl(Box::new(chain), text.link))
            }
        })
    }

    /// None where the device cannot have it.
    fn load(&self, device: &Device) -> Outcome<Option<OnDevice>> {
        match self {
            Self::Kernel(kernel) => Ready::new(kernel, device).map(|kernel| Some(OnDevice::Kernel(kernel))),
            Self::Strings(image, search) => {
                let strings = FirstOnDevice::new(device, image, &Target::of(device))?;
                Ok(Some(OnDevice::Strings(strings, *search)))
            }
            Self::Acl(chain, link) => {
                let offload = chain.functions().first().and_then(|function| function.offload(0));
                let Some(Offload::Acl { rules, verdicts, .. }) = offload else { return Ok(None) };
                let policy = chain.settings.run.policy();
                let options = frames::Options { policy, ..frames::Options::default() };
                let acl = Acl { rules: &rules, verdicts: &verdicts };
                let frames = match Frames::new(device, &[acl], options) {
                    Ok(frames) => frames,
                    // Too many rules.
                    Err(offload::Error::Image(_)) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                let marks = rules.rules.iter().map(|rule| rule.mark).collect();
                Ok(Some(OnDevice::Acl(Box::new(AclOnDevice { frames, marks, link: *link }))))
            }
        }
    }
}

/// A function on a device. Queues share it.
pub(super) enum OnDevice {
    Kernel(Ready),
    Strings(FirstOnDevice, Search),
    Acl(Box<AclOnDevice>),
}

/// An ACL on a device.
pub(super) struct AclOnDevice {
    frames: Frames,
    /// Of each rule.
    marks: Vec<u32>,
    /// What packets begin with.
    link: LinkType,
}

impl OnDevice {
    /// Loads a function onto each of some devices; none where it is for cores.
    pub(super) fn load(function: &Function, devices: &[Device]) -> Outcome<Option<Vec<Self>>> {
        let loaded = || {
            let Some(laid_out) = LaidOut::new(function, devices)? else { return Ok(None) };
            devices.iter().map(|device| laid_out.load(device)).collect()
        };
        loaded().map_err(|fault: Fault| fault.of_function(function.id))
    }

    /// Whether it takes a buffer whose contents end at this byte.
    pub(super) fn takes(&self, end: u32) -> bool {
        match self {
            Self::Kernel(_) | Self::Acl(_) => true,
            Self::Strings(..) => (end as usize) < Shape::LIMIT,
        }
    }

    /// Bytes that it finds out about a packet.
    fn bytes(&self) -> usize {
        match self {
            Self::Kernel(kernel) => kernel.result_size(),
            Self::Strings(..) => size_of::<u64>(),
            Self::Acl(_) => size_of::<Answer>(),
        }
    }
}

/// What is not done with a buffer, so that the rest is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Copies, to the device and from it, where the queue has packets that lie as those of the buffer.
    pub(super) copies: bool,
    pub(super) kernels: bool,
}

/// A queue of a device, and what its functions work with.
pub(super) struct Lane {
    queue: Queue,
    packets: Memory,
    /// Of each function.
    rooms: Vec<Room>,
    is_copied: bool,
    /// Where the packets lie that were copied last.
    offsets: Vec<u32>,
}

/// Where a function works.
struct Room {
    /// What it finds out, and where that is copied to.
    found: Memory,
    out: Shared,
    /// Where an ACL is told that packets lie, and where that is copied from.
    places: Option<(Memory, Shared)>,
    /// Where an ACL writes nothing.
    none: Memory,
}

impl Room {
    fn new(device: &Device, function: &OnDevice, packets: usize) -> Outcome<Self> {
        let bytes = packets * function.bytes();
        let places = match function {
            OnDevice::Acl(_) => {
                let bytes = packets * size_of::<Place>();
                Some((device.zeros(bytes)?, device.share(bytes)?))
            }
            _ => None,
        };
        let (found, out) = (device.zeros(bytes)?, device.share(bytes)?);
        Ok(Self { found, out, places, none: device.memory(0)? })
    }
}

impl Lane {
    pub(super) fn new<'a>(
        device: &Device,
        functions: impl Iterator<Item = &'a OnDevice>,
        buffer: &Buffer,
    ) -> Outcome<Self> {
        let rooms = functions.map(|function| Room::new(device, function, buffer.max_packets()));
        let rooms = rooms.collect::<Outcome<_>>()?;
        let (queue, packets) = (device.queue()?, device.memory(buffer.size() as usize)?);
        Ok(Self { queue, packets, rooms, is_copied: false, offsets: Vec::new() })
    }

    /// Another buffer's packets come.
    pub(super) fn begin(&mut self) {
        self.is_copied = false;
    }

    /// Queues a function over a buffer's packets, and the copies that it needs.
    pub(super) fn launch(
        &mut self,
        number: usize,
        function: &OnDevice,
        buffer: &Buffer,
        left_out: LeftOut,
        offsets: &[u32],
        packets: &nca_packets,
    ) -> Outcome<()> {
        let Self { queue, packets: memory, rooms, .. } = self;
        let (Some(shared), [.., end]) = (&buffer.shared, offsets) else {
            return Err(Fault::new(PL_ERROR_INTERNAL, "a buffer without memory that is copied from"));
        };
        let (first, end, count) = (buffer.first(), *end, packets.num_packets);
        // A kernel of the program relies on offsets that are those of as many packets.
        let has_copies = !left_out.copies || self.offsets != offsets;
        if !self.is_copied && has_copies {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            queue.copy_in(&mut shared, 0..4 * offsets.len(), memory, 0)?;
            queue.copy_in(&mut shared, first as usize..end as usize, memory, first as usize)?;
            self.is_copied = true;
            offsets.clone_into(&mut self.offsets);
        }
        let Room { found, out, places, none } = &mut rooms[number];
        // Where packets were copied, too: also by another function of this buffer.
        if let (OnDevice::Acl(acl), Some((to, from)), true) = (function, &mut *places, self.is_copied) {
            let place = |pair: &[u32]| Place::near(pair[0], pair[1] - pair[0], acl.link);
            let all: Vec<_> = offsets.windows(2).map(place).collect();
            let bytes: &[u8] = bytemuck::cast_slice(&all);
            from.write(0, bytes);
            queue.copy_in(from, 0..bytes.len(), to, 0)?;
        }
        if !left_out.kernels {
            match function {
                OnDevice::Kernel(kernel) => kernel.launch(queue, memory, found, packets)?,
                OnDevice::Strings(strings, search) => {
                    let shape = Shape { texts: count, len: end - first };
                    let memory = (&*memory).into();
                    let batch = Batch { memory, shape, begin: first, offsets: 0, skip: search.skip };
                    strings.find(queue, &batch, found)?;
                }
                OnDevice::Acl(acl) => {
                    let buffers = Buffers {
                        frames: (&*memory).into(),
                        bytes: memory.len(),
                        places: places.as_ref().map_or(&*none, |(places, _)| places).into(),
                        answers: (&*found).into(),
                        others: (&*none).into(),
                        room: buffer.max_packets() as u32,
                    };
                    acl.frames.launch(queue, &buffers, 0..count)?;
                }
            }
        }
        if !left_out.copies {
            queue.copy_out(found, 0..count as usize * function.bytes(), out, 0)?;
        }
        Ok(())
    }

    /// Waits for all that is queued. A lane that fails is of no use any more.
    pub(super) fn finish(&mut self) -> Outcome<()> {
        if self.queue.finish_within(PATIENCE)? {
            return Ok(());
        }
        let text = format!("kernels of a buffer took more than {} s", PATIENCE.as_secs());
        Err(Fault::new(PL_ERROR_DEVICE, text))
    }

    /// What a function has found, after [`Lane::finish`]: `size` bytes for each packet. Returns the packets that cores must look at.
    pub(super) fn read(
        &mut self,
        number: usize,
        function: &OnDevice,
        size: usize,
        results: &mut [u8],
    ) -> Vec<usize> {
        let (out, count) = (&mut self.rooms[number].out, results.len() / size);
        let mut left = Vec::new();
        match function {
            OnDevice::Kernel(_) => out.read(0, results),
            OnDevice::Strings(..) => {
                let mut words = vec![0u64; count];
                out.read(0, bytemuck::cast_slice_mut(&mut words));
                for (index, word) in words.into_iter().enumerate() {
                    if let Some((end, pattern)) = FirstOnDevice::first(word) {
                        put(results, size, index, [pattern + 1, end]);
                    }
                }
            }
            OnDevice::Acl(acl) => {
                let mut answers = vec![Answer::default(); count];
                out.read(0, bytemuck::cast_slice_mut(&mut answers));
                for (index, answer) in answers.into_iter().enumerate() {
                    match answer.verdict() {
                        None => left.push(index),
                        Some(verdict) => {
                            // Frames without a match key have no rule.
                            let rule = (answer.ip_bytes() > 0).then(|| answer.first() as usize);
                            let mark = rule.and_then(|rule| acl.marks.get(rule)).copied().unwrap_or(0);
                            put(results, size, index, [verdict.code().into(), mark]);
                        }
                    }
                }
            }
        }
        left
    }

    /// Leaves a device that fails or hangs.
    pub(super) fn abandon(self) {
        self.queue.abandon();
    }
}
