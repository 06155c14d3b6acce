//! Headers that a device reads where they lie in this machine's memory, and what it found out, back in this machine's memory.
//!
//! A batch takes three steps, in each of which another one may be at the same time: its headers are read and parsed to records in the device's
//! memory, it is partitioned and judged there ([`Stateful::partition`], [`Stateful::judge`]), verdicts and rewritten headers are written. Between the first two this machine
//! looks whether there are packets whose headers go on behind what was read: it parses them itself, before the batch is judged, so that they
//! take effect in order, too. Which rules of access lists decided is not told: verdicts are.

use std::ops::Range;
use std::sync::Arc;

use packetloom_device::{
    Arguments, Buffer, Device, Entry, Id, Kernel, LaidOut, Layout, Memory, Program, Queue, Shared, u32x4,
};
use packetloom_packet::batch::Policy;
use packetloom_packet::{Headers, LinkType, Timestamp, Verdict, dissect, protocol};

use super::records::{self, Answer, ENDS, IS_V6, Ipv6Addresses, MARKED, Needs, Record, TAKES_PART, VERDICT};
use super::{Buffers, Partition, Stateful};
use crate::offload::frames::Slice;
use crate::offload::{Error, is_gpu, policy_define};

const HEADERS: &str = include_str!("headers.kernel.c");

packetloom_device::arguments! {
    /// What `read_headers` takes.
    struct ReadHeaders as READ_HEADERS_PARAMETERS {
        /// Slots: frames that begin `stride` bytes apart, their lengths, and their times after `base`.
        frames: live u8 [(first + count) * stride],
        lens: live u16 [first + count],
        times: live u32 [first + count],
        first: u32,
        count: u32,
        stride: u32,
        link: u32,
        base: u64,
        slices: write u32x4 [count * slice / 16],
        spots: write u32 [count],
        records: write Record [count],
        wide: write Ipv6Addresses [count],
        found: write u64 [count.div_ceil(lanes)],
        /// Bytes that are read of each frame, and items that run in step.
        slice: host,
        lanes: host,
    } where slice <= stride, stride.is_multiple_of(16)
}

packetloom_device::arguments! {
    /// What `mend_records` takes: of packets below `room` each.
    struct MendRecords as MEND_RECORDS_PARAMETERS {
        mended: fixed Mended [count],
        count: u32,
        records: write Record [room],
        wide: write Ipv6Addresses [room],
        spots: write u32 [room],
        room: host,
    }
}

packetloom_device::arguments! {
    /// What `write_headers` takes.
    struct WriteHeaders as WRITE_HEADERS_PARAMETERS {
        count: u32,
        records: read Record [count],
        answers: read Answer [count],
        wide_answers: read Ipv6Addresses [count],
        slices: read u32x4 [count * slice / 16],
        spots: read u32 [count],
        verdicts: write u8 [count],
        written: write u32x4 [count * slice / 16],
        slice: host,
    }
}

/// Of so many compute units of a GPU one has a group that reads, and one a group that writes, as large as can be: with a header of each item on its
/// way that keeps a bus busy. Groups that judge may need whole units, and wait for each that has any of those.
const UNITS_OF_A_READER: u32 = 8;
/// So many sixteenths of the groups that can judge do: those that read, write and partition find most of what they need beside them.
const JUDGING_SIXTEENTHS: u32 = 13;
/// In place of a frame's length: software must look at it.
const NO_LEN: u16 = u16::MAX;
/// Packets that software parsed which go to the device at a time.
const MENDED: usize = 1024;
/// Bits beside a verdict.
const WRITTEN: u8 = 1 << 7;
const BY_HOST: u8 = 1 << 6;

/// Memory that is shared with a device, for the frames that it is to read: places of as many bytes, each with a length and a time.
#[derive(Debug)]
pub struct Slots {
    frames: Shared,
    lens: Shared,
    times: Shared,
    stride: u32,
    count: u32,
    link: LinkType,
}

impl Slots {
    /// So many slots, for frames that begin with `link`; of each, as many bytes are kept as `slice` says.
    ///
    /// # Errors
    /// Where there is no memory.
    pub fn new(device: &Device, count: u32, slice: Slice, link: LinkType) -> Result<Self, Error> {
        let stride = slice.bytes();
        let slots = count as usize;
        Ok(Self {
            frames: device.share(slots * stride)?,
            lens: device.share(slots * size_of::<u16>())?,
            times: device.share(slots * size_of::<u32>())?,
            stride: stride as u32,
            count,
            link,
        })
    }

    /// Puts a frame's captured bytes into a slot, and its time, nanoseconds after that of its batch. Where that is none that can be said, or the frame is of
    /// another link, this machine will be [asked](Lane::judge).
    ///
    /// # Panics
    /// Where there is no such slot.
    pub fn put(&mut self, slot: u32, frame: &[u8], link: LinkType, time: Option<u32>) {
        let slot = slot as usize;
        let stride = self.stride as usize;
        self.frames.write(slot * stride, &frame[..frame.len().min(stride)]);
        // Only whether the headers are whole depends on the length: they are, long before this.
        let len = frame.len().min((NO_LEN - 1).into()) as u16;
        let (len, time) = match time {
            Some(time) if link == self.link => (len, time),
            _ => (NO_LEN, 0),
        };
        self.lens.write(slot * size_of::<u16>(), &len.to_ne_bytes());
        self.times.write(slot * size_of::<u32>(), &time.to_ne_bytes());
    }
}

/// What became of a packet: a byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Outcome(u8);

impl Outcome {
    /// The chain's verdict; none where the device wrote none.
    pub fn verdict(self) -> Option<Verdict> {
        Verdict::of_code(self.0 & !(WRITTEN | BY_HOST))
    }

    /// Whether it passes.
    #[inline]
    pub fn passes(self) -> bool {
        self.0 & !(WRITTEN | BY_HOST) == 0
    }

    /// Whether it passes, and its headers were rewritten and [written](Lane::read_header).
    pub fn is_written(self) -> bool {
        self.0 & WRITTEN != 0
    }

    /// Whether it passes, and its headers are to be rewritten by this machine, as [`Lane::answers`] say: the rewrite goes beyond what
    /// was read of it.
    pub fn is_for_host(self) -> bool {
        self.0 & BY_HOST != 0
    }
}

/// The kernels that read and write headers.
#[derive(Debug)]
pub struct Port {
    device: Device,
    read: Kernel<ReadHeaders<'static>>,
    mend: Kernel<MendRecords<'static>>,
    write: Kernel<WriteHeaders<'static>>,
    slice: Slice,
    /// Packets that a word of what is found tells of.
    lanes: u32,
    groups: u32,
    policy: Policy,
}

impl Port {
    /// Compiles them, for so many bytes of each frame and for what becomes of frames without a match key.
    ///
    /// # Errors
    /// Where the device fails, or cannot read this machine's memory.
    pub fn new(device: &Device, slice: Slice, policy: Policy) -> Result<Self, Error> {
        let description = device.description();
        if !description.shares {
            let why = "it does not share this machine's memory, in which frames are read".into();
            let device = description.id.to_string();
            return Err(packetloom_device::Error::Unavailable { device, why }.into());
        }
        let (lanes, group) = match description.id {
            _ if is_gpu(device) => {
                let lanes = description.lanes;
                let most = description.local_memory / local_bytes(slice);
                (lanes, (most.min(description.group) / lanes).max(1) * lanes)
            }
            Id::Host => (description.lanes, description.lanes),
            // Not one item, as for judging: PoCL 3.1 then reads other bytes of a slice than those that were written.
            _ => (1, description.group.min(64)),
        };
        let number = |name: &str, value: u32| (name.to_owned(), format!("{value}u"));
        let mut defines = dissect::defines();
        defines.push(policy_define(policy));
        defines.extend([
            ReadHeaders::define(),
            MendRecords::define(),
            WriteHeaders::define(),
            number("SLICE", slice.bytes() as u32),
            number("VERDICT_PASS", Verdict::Pass.code().into()),
            number("RECORD_TAKES_PART", TAKES_PART),
            number("RECORD_IS_V6", IS_V6),
            number("RECORD_VERDICT", VERDICT),
            number("ANSWER_ENDS", ENDS),
            number("ANSWER_MARKED", MARKED),
            number("PROTOCOL_UDP", protocol::UDP.into()),
            number("PROTOCOL_ICMPV6", protocol::ICMPV6.into()),
            number("PROTOCOL_SCTP", protocol::SCTP.into()),
            number("WRITTEN", WRITTEN.into()),
            number("BY_HOST", BY_HOST.into()),
        ]);
        let program = Program {
            name: "headers",
            source: format!(
                "#line 1 \"dissect.kernel.c\"\n{}#line 1 \"layouts\"\n{}#line 1 \"headers.kernel.c\"\n{HEADERS}",
                dissect::KERNEL,
                Layout::declare(LAYOUTS),
            ),
            defines,
            group,
            groups_per_unit: 1,
            // Others are to find room for their groups where there are units left.
            stays: true,
            local: (group * local_bytes(slice)).next_multiple_of(16),
            entries: vec![
                Entry::of::<ReadHeaders<'_>>("read_headers"),
                Entry::of::<MendRecords<'_>>("mend_records"),
                Entry::of::<WriteHeaders<'_>>("write_headers"),
            ],
        };
        let mut loaded = device.build(&program)?;
        let (write, mend, read) = (loaded.remove(2), loaded.remove(1), loaded.remove(0));
        // SAFETY: the kernels go through `count` packets, of which all memory has as many; those that are mended lie below `room`, as they were
        // read here. What a header says of where others are is checked against the slice.
        #[allow(unsafe_code)]
        let (read, mend, write) = unsafe { (Kernel::new(read)?, Kernel::new(mend)?, Kernel::new(write)?) };
        let groups =
            if is_gpu(device) { description.units.div_ceil(UNITS_OF_A_READER) } else { description.units };
        Ok(Self { device: device.clone(), read, mend, write, slice, lanes, groups, policy })
    }

    /// Groups for so many packets.
    fn groups(&self, packets: u32) -> u32 {
        packets.div_ceil(self.read.group()).clamp(1, self.groups)
    }
}

/// Bytes of a group's memory for each of its items.
const fn local_bytes(slice: Slice) -> u32 {
    slice.bytes() as u32 + size_of::<u32>() as u32
}

packetloom_device::layout! {
    /// What software found out about a packet.
    #[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
    align(16) struct Mended {
        record: Record,
        wide: Ipv6Addresses,
        packet: u32,
        none: [u32; 3],
    }
}

/// What kernels have to know.
const LAYOUTS: [Layout; 4] = [Record::LAYOUT, Ipv6Addresses::LAYOUT, Answer::LAYOUT, Mended::LAYOUT];

/// A place for one batch at a time, with a queue of its own: several of them keep a bus busy in both directions while a device judges.
#[derive(Debug)]
pub struct Lane {
    port: Arc<Port>,
    queue: Queue,
    there: There,
    partition: Partition,
    found: Shared,
    mended: Shared,
    verdicts: Shared,
    written: Shared,
    room: u32,
    count: u32,
    words: Vec<u64>,
    has_v6: bool,
}

/// Memory of the device.
#[derive(Debug)]
struct There {
    slices: Memory,
    spots: Memory,
    records: Memory,
    wide: Memory,
    answers: Memory,
    wide_answers: Memory,
    first: Memory,
}

impl Lane {
    /// A lane for batches of as many packets as there is room for.
    ///
    /// # Errors
    /// Where the device fails, or there is no memory.
    pub fn new(port: &Arc<Port>, stateful: &Stateful) -> Result<Self, Error> {
        let device = &port.device;
        let room = stateful.room();
        let slice = port.slice.bytes();
        let packets = room as usize;
        Ok(Self {
            queue: device.queue()?,
            partition: stateful.partition_memory()?,
            there: There {
                slices: device.memory(packets * slice)?,
                spots: device.memory(packets * 4)?,
                records: device.memory(packets * size_of::<Record>())?,
                wide: device.memory(packets * size_of::<Ipv6Addresses>())?,
                answers: device.memory(packets * size_of::<Answer>())?,
                wide_answers: device.memory(packets * size_of::<Ipv6Addresses>())?,
                first: device.memory(stateful.acls() * packets * size_of::<u32>())?,
            },
            found: device.share(room.div_ceil(port.lanes) as usize * 8)?,
            mended: device.share(packets.min(MENDED) * size_of::<Mended>())?,
            verdicts: device.share(packets)?,
            written: device.share(packets * slice)?,
            port: port.clone(),
            room,
            count: 0,
            words: Vec::new(),
            has_v6: false,
        })
    }

    /// Packets of its batch.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Has the device begin to read some slots, in which times are nanoseconds after `base`. What it found out about the batch before is lost.
    ///
    /// # Errors
    /// For slots that are not there, or more than there is room for, and where the device fails.
    pub fn read(&mut self, slots: &Slots, packets: Range<u32>, base: Timestamp) -> Result<(), Error> {
        let count = packets.len() as u32;
        let slice = self.port.slice.bytes() as u32;
        if count > self.room || packets.end > slots.count || slots.stride != slice {
            let why =
                format!("{packets:?} of {} slots do not fit into a lane for {}", slots.count, self.room);
            return Err(packetloom_device::Error::Misuse(why).into());
        }
        self.count = count;
        if count == 0 {
            return Ok(());
        }
        let There { slices, spots, records, wide, .. } = &self.there;
        let arguments = ReadHeaders {
            frames: (&slots.frames).into(),
            lens: (&slots.lens).into(),
            times: (&slots.times).into(),
            first: packets.start,
            count,
            stride: slots.stride,
            link: slots.link.0.into(),
            base: base.as_nanos(),
            slices: slices.into(),
            spots: spots.into(),
            records: records.into(),
            wide: wide.into(),
            found: (&self.found).into(),
            slice: slice.into(),
            lanes: self.port.lanes.into(),
        };
        Ok(self.queue.launch(&self.port.read, self.port.groups(count), &arguments)?)
    }

    /// Whether all that was begun is done: the batch is read or, if it is judged, verdicts and headers are there.
    ///
    /// # Errors
    /// What went wrong.
    pub fn is_finished(&mut self) -> Result<bool, Error> {
        Ok(self.queue.is_finished()?)
    }

    /// Waits until the batch is read, has it partitioned, judged in a queue that is the same for all batches, after those before it, and then written. Whose
    /// headers go on behind what was read is looked at here: `look` is told the number of a packet in the batch, and tells what its headers say, and its time.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn judge(
        &mut self,
        stateful: &Stateful,
        queue: &mut Queue,
        look: impl FnMut(u32) -> (Result<Headers, packetloom_packet::Reject>, Timestamp),
    ) -> Result<(), Error> {
        if stateful.needs() != Needs::default() {
            let why = "headers that a device reads say neither connections nor DSCPs nor numbers of packets, which functions need";
            return Err(packetloom_device::Error::Misuse(why.into()).into());
        }
        self.queue.finish()?;
        if self.count == 0 {
            return Ok(());
        }
        self.words.resize(self.count.div_ceil(self.port.lanes) as usize, 0);
        self.found.load_words(0, &mut self.words);
        let any = self.words.iter().fold(0, |any, word| any | word);
        self.has_v6 = any >> 32 != 0;
        if any as u32 != 0 {
            self.mend(look)?;
        }
        let There { slices, spots, records, wide, answers, wide_answers, first } = &self.there;
        let [records, wide, answers, wide_answers, first] =
            [records, wide, answers, wide_answers, first].map(Buffer::Memory);
        let (room, has_v6) = (self.room, self.has_v6);
        // Of functions that export nothing.
        let (exports, details) = (first, first);
        let buffers = Buffers { records, wide, answers, wide_answers, first, exports, details, room, has_v6 };
        stateful.partition(&mut self.queue, &mut self.partition, &buffers, self.count)?;
        queue.wait_for(&self.queue)?;
        let groups = match is_gpu(stateful.device()) {
            true => (stateful.groups * JUDGING_SIXTEENTHS / 16).max(1),
            false => stateful.groups,
        };
        stateful.judge_with(queue, &self.partition, &buffers, (0, 0), groups)?;
        self.queue.wait_for(queue)?;
        let arguments = WriteHeaders {
            count: self.count,
            records,
            answers,
            wide_answers,
            slices: slices.into(),
            spots: spots.into(),
            verdicts: (&self.verdicts).into(),
            written: (&self.written).into(),
            slice: self.port.slice.bytes() as u64,
        };
        Ok(self.queue.launch(&self.port.write, self.port.groups(self.count), &arguments)?)
    }

    /// Parses packets here that the device could not.
    fn mend(
        &mut self,
        mut look: impl FnMut(u32) -> (Result<Headers, packetloom_packet::Reject>, Timestamp),
    ) -> Result<(), Error> {
        let lanes = self.port.lanes;
        let beyond = (0..).zip(&self.words).flat_map(|(at, &word): (u32, _)| {
            (0..lanes).filter(move |lane| word >> lane & 1 == 1).map(move |lane| at * lanes + lane)
        });
        let beyond: Vec<_> = beyond.collect();
        for packets in beyond.chunks(MENDED) {
            let mended = packets.iter().map(|&packet| {
                let (headers, time) = look(packet);
                let headers = headers.map_err(|reject| self.port.policy.verdict(reject));
                let (record, wide) = records::of_packet(headers, time);
                self.has_v6 |= record.is_v6();
                Mended { record, wide, packet, ..Mended::default() }
            });
            let mended: Vec<_> = mended.collect();
            self.mended.write(0, bytemuck::cast_slice(&mended));
            let arguments = MendRecords {
                mended: (&self.mended).into(),
                count: mended.len() as u32,
                records: (&self.there.records).into(),
                wide: (&self.there.wide).into(),
                spots: (&self.there.spots).into(),
                room: self.room.into(),
            };
            self.queue.launch(&self.port.mend, self.port.groups(mended.len() as u32), &arguments)?;
            // Before they are judged, and before the memory is used again.
            self.queue.finish()?;
        }
        Ok(())
    }

    /// What became of each packet, once it is all there.
    pub fn outcomes(&mut self, outcomes: &mut Vec<Outcome>) {
        outcomes.resize(self.len(), Outcome::default());
        self.verdicts.read(0, bytemuck::cast_slice_mut(outcomes));
    }

    /// Writes the headers of a packet that was [written](Outcome::is_written) over those of its frame.
    ///
    /// # Panics
    /// Where there is no such packet.
    pub fn read_header(&mut self, packet: u32, frame: &mut [u8]) {
        assert!(packet < self.count, "packet {packet} of {}", self.count);
        let slice = self.port.slice.bytes();
        let len = frame.len().min(slice);
        self.written.read(packet as usize * slice, &mut frame[..len]);
    }

    /// What was found about each packet, for those whose headers are [to be rewritten here](Outcome::is_for_host): copied now.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn answers(&mut self) -> Result<Vec<(Answer, Ipv6Addresses)>, Error> {
        let mut answers = vec![Answer::default(); self.len()];
        let mut wide = vec![Ipv6Addresses::default(); self.len()];
        self.queue.read(&self.there.answers, 0, bytemuck::cast_slice_mut(&mut answers))?;
        if self.has_v6 {
            self.queue.read(&self.there.wide_answers, 0, bytemuck::cast_slice_mut(&mut wide))?;
        }
        Ok(answers.into_iter().zip(wide).collect())
    }
}

#[cfg(test)]
mod tests {
    use packetloom_device::Cache;

    use super::*;

    #[test]
    fn compilers_lay_out_what_is_shared_as_it_is_here() {
        let all = [&LAYOUTS[..], &super::super::kernels::LAYOUTS, &crate::offload::frames::LAYOUTS].concat();
        for id in [Id::Host, Id::OpenCl(0), Id::Cuda(0)] {
            match Device::open(id, Cache::none()) {
                Ok(device) => assert_eq!(device.check_layouts(&all), Ok(()), "{id}"),
                Err(error) => assert!(id != Id::Host, "{error}"),
            }
        }
    }
}
