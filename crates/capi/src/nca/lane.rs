//! Functions on devices: kernels of the program, and those that are built in. A lane is a queue of a device with the memory that they work with.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use packetloom_device::{Device, Id, Memory, Queue, Shared};
use packetloom_pattern::image::{Batch, FirstOnDevice, Image, Shape, Target};

use super::buffer::Buffer;
use super::function::{Function, Kind, Search, put};
use super::kernel::{Kernel, Ready};
use super::nca_packets;
use crate::status::*;

/// How long the kernels of a buffer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A function, laid out for any device.
enum LaidOut<'a> {
    Kernel(&'a Arc<Kernel>),
    Strings(Image, Search),
}

/// Whether devices can have a function. Those that are built in are for GPUs and the like: this machine's cores run them without kernels.
fn can_have(devices: &[Device], function: &Function) -> bool {
    let all = |what: fn(&Device) -> bool| !devices.is_empty() && devices.iter().all(what);
    match function.kind {
        Kind::Kernel(_) => all(|_| true),
        Kind::Strings(..) | Kind::AhoCorasick(..) => all(|device| {
            let description = device.description();
            description.id != Id::Host && description.atomics_64
        }),
        Kind::Chain(_) => false,
    }
}

/// A function on a device. Queues share it.
pub(super) enum OnDevice {
    Kernel(Ready),
    Strings(FirstOnDevice, Search),
}

impl OnDevice {
    /// Loads a function onto each of some devices; none where it is for cores.
    pub(super) fn load(function: &Function, devices: &[Device]) -> Outcome<Option<Vec<Self>>> {
        if !can_have(devices, function) {
            return Ok(None);
        }
        let laid_out = match &function.kind {
            Kind::Kernel(kernel) => LaidOut::Kernel(kernel),
            Kind::Strings(matcher, search) => LaidOut::Strings(Image::new(matcher.patterns(), &[]), *search),
            Kind::AhoCorasick(_, patterns, search) => LaidOut::Strings(Image::new(patterns, &[]), *search),
            Kind::Chain(_) => return Ok(None),
        };
        let load = |device: &Device| match &laid_out {
            LaidOut::Kernel(kernel) => Ready::new(kernel, device).map(Self::Kernel),
            LaidOut::Strings(image, search) => {
                let loaded = FirstOnDevice::new(device, image, &Target::of(device));
                let loaded = loaded.map_err(|error| Fault::from(error).of_function(function.id))?;
                Ok(Self::Strings(loaded, *search))
            }
        };
        devices.iter().map(load).collect::<Outcome<_>>().map(Some)
    }

    /// Whether it takes a buffer whose contents end at this byte.
    pub(super) fn takes(&self, end: u32) -> bool {
        match self {
            Self::Kernel(_) => true,
            Self::Strings(..) => (end as usize) < Shape::LIMIT,
        }
    }

    /// Bytes that it finds out about a packet.
    fn bytes(&self) -> usize {
        match self {
            Self::Kernel(kernel) => kernel.result_size(),
            Self::Strings(..) => size_of::<u64>(),
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
    /// For each function, what it finds out: on the device, and where it is copied to.
    found: Vec<(Memory, Shared)>,
    is_copied: bool,
    /// Where the packets lie that were copied last.
    offsets: Vec<u32>,
}

impl Lane {
    pub(super) fn new<'a>(
        device: &Device,
        functions: impl Iterator<Item = &'a OnDevice>,
        buffer: &Buffer,
    ) -> Outcome<Self> {
        let found = functions.map(|function| {
            let bytes = buffer.max_packets() * function.bytes();
            Ok((device.zeros(bytes)?, device.share(bytes)?))
        });
        let found = found.collect::<Outcome<_>>()?;
        let (queue, packets) = (device.queue()?, device.memory(buffer.size() as usize)?);
        Ok(Self { queue, packets, found, is_copied: false, offsets: Vec::new() })
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
        let (Some(shared), [.., end]) = (&buffer.shared, offsets) else {
            return Err(Fault::new(PL_ERROR_INTERNAL, "a buffer without memory that is copied from"));
        };
        let (first, end) = (buffer.first(), *end);
        // A kernel of the program relies on offsets that are those of as many packets.
        let has_copies = !left_out.copies || self.offsets != offsets;
        if !self.is_copied && has_copies {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let contents = first as usize..end as usize;
            self.queue.copy_in(&mut shared, 0..4 * offsets.len(), &self.packets, 0)?;
            self.queue.copy_in(&mut shared, contents, &self.packets, first as usize)?;
            self.is_copied = true;
            offsets.clone_into(&mut self.offsets);
        }
        let (found, out) = &mut self.found[number];
        if !left_out.kernels {
            match function {
                OnDevice::Kernel(kernel) => kernel.launch(&mut self.queue, &self.packets, found, packets)?,
                OnDevice::Strings(strings, search) => {
                    let shape = Shape { texts: packets.num_packets, len: end - first };
                    let memory = (&self.packets).into();
                    let batch = Batch { memory, shape, begin: first, offsets: 0, skip: search.skip };
                    strings.find(&mut self.queue, &batch, found)?;
                }
            }
        }
        if !left_out.copies {
            self.queue.copy_out(found, 0..packets.num_packets as usize * function.bytes(), out, 0)?;
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

    /// What a function has found, after [`Lane::finish`]: `size` bytes for each packet.
    pub(super) fn read(&mut self, number: usize, function: &OnDevice, size: usize, results: &mut [u8]) {
        let found = &mut self.found[number].1;
        match function {
            OnDevice::Kernel(_) => found.read(0, results),
            OnDevice::Strings(..) => {
                let mut words = vec![0; results.len() / size * size_of::<u64>()];
                found.read(0, &mut words);
                for (index, word) in words.as_chunks().0.iter().enumerate() {
                    let Some((end, pattern)) = FirstOnDevice::first(u64::from_ne_bytes(*word)) else {
                        continue;
                    };
                    put(results, size, index, [pattern + 1, end]);
                }
            }
        }
    }

    /// Leaves a device that fails or hangs.
    pub(super) fn abandon(self) {
        self.queue.abandon();
    }
}
