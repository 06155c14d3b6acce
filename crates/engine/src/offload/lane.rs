//! A batch on its way to a device and back: the first bytes of its frames in memory that the device reads, answers in memory that it writes.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packetloom_device::{Buffer, Memory, Queue, Shared};
use packetloom_packet::{Batch, LinkType};

use super::acls::LANES;
use super::frames::{Answer, Buffers, Frames, Layout, Place};
use super::ring::Ring;
use super::{Error, is_gpu};
use crate::crew::Crew;

/// How a batch gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// By a launch of the kernel.
    Launch,
    /// To a kernel that stays.
    Resident,
}

/// Batches of the ring of a lane, as a power of two: for a thousand frames on a GPU.
const RING_BITS: u32 = 4;
/// Groups that judge them.
const GROUPS: u32 = 1 << RING_BITS;
/// How often a kernel that stays is asked in vain before somebody looks whether it is there.
const TURNS_PER_LOOK: u32 = 1 << 12;

/// A place for one batch at a time, with a queue of its own: several lanes keep a device busy while others are filled.
#[derive(Debug)]
pub struct Lane {
    kernel: Arc<Frames>,
    queue: Queue,
    /// For small batches, where there is one.
    ring: Option<Ring>,
    places: Vec<Place>,
    /// Whether the device can see them.
    are_places_there: bool,
    /// How the last batch was dispatched, and what came back of it from the ring.
    dispatch: Dispatch,
    judged: Vec<Answer>,
    host: Parts<Shared>,
    /// Where the device does not share the host's memory, what is copied there and back.
    device: Option<Parts<Memory>>,
    room: u32,
    count: u32,
}

/// Memory for slices of frames, their places, and what is found.
#[derive(Debug)]
struct Parts<M> {
    frames: M,
    places: M,
    answers: M,
    others: M,
}

impl<M> Parts<M> {
    fn new(
        kernel: &Frames,
        room: u32,
        memory: impl Fn(usize) -> Result<M, packetloom_device::Error>,
    ) -> Result<Self, Error> {
        let room = room as usize;
        Ok(Self {
            frames: memory(room * kernel.slice().bytes())?,
            places: memory(room * size_of::<Place>())?,
            answers: memory(room * size_of::<Answer>())?,
            others: memory(room * (kernel.acls() - 1) * 4)?,
        })
    }
}

impl Lane {
    /// A lane for batches of up to `room` frames; with a ring for small ones, if a kernel that stays is wanted, and the device can have one.
    ///
    /// # Errors
    /// Where the device fails, or there is no memory.
    pub fn new(kernel: &Arc<Frames>, room: u32, with_ring: bool) -> Result<Self, Error> {
        let device = kernel.device();
        let shares = device.description().shares;
        let host = Parts::new(kernel, room, |bytes| device.share(bytes))?;
        // What a ring finds of other ACLs than the first is not asked for here.
        let with_ring = with_ring && shares && kernel.acls() == 1;
        // Those of all lanes must find room beside each other, and launches beside them.
        let with_ring = with_ring && (!is_gpu(device) || kernel.groups() / (GROUPS + 1) > LANES as u32);
        let ring = || Ring::new(kernel, Layout::Anywhere, RING_BITS, GROUPS);
        Ok(Self {
            kernel: kernel.clone(),
            queue: device.queue()?,
            ring: if with_ring { Some(ring()?) } else { None },
            places: Vec::new(),
            are_places_there: false,
            dispatch: Dispatch::Launch,
            judged: Vec::new(),
            host,
            device: if shares { None } else { Some(Parts::new(kernel, room, |bytes| device.memory(bytes))?) },
            room,
            count: 0,
        })
    }

    /// Frames it holds.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets the frames; for a lane that is not on its way.
    pub fn clear(&mut self) {
        self.count = 0;
        self.places.clear();
        self.are_places_there = false;
    }

    /// Whether its frames can be dispatched like this.
    pub fn can(&self, dispatch: Dispatch) -> bool {
        let room = self.ring.as_ref().map_or(0, |ring| ring.batch() << RING_BITS);
        dispatch == Dispatch::Launch || (1..=room).contains(&self.len())
    }

    /// Appends a frame by its captured bytes; `false` where there is no room.
    #[must_use]
    pub fn push(&mut self, frame: &[u8], link: LinkType) -> bool {
        if self.count == self.room {
            return false;
        }
        let slice = self.kernel.slice().bytes();
        let at = self.count as usize;
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        self.host.frames.write(at * slice, &frame[..slice.min(frame.len())]);
        let place = Place::near((at * slice) as u32, len, link);
        self.places.push(place);
        self.are_places_there = false;
        self.count += 1;
        true
    }

    /// Takes the frames of batches, one after the other, in place of those before; `false` where there is no room.
    #[must_use]
    pub(crate) fn fill<'b>(&mut self, crew: &Crew, batches: impl Iterator<Item = &'b Batch> + Clone) -> bool {
        self.clear();
        let count: usize = batches.clone().map(Batch::len).sum();
        if count > self.room as usize {
            return false;
        }
        self.count = count as u32;
        self.places.resize(count, Place::NONE);
        let slice = self.kernel.slice().bytes();
        let mut places = &mut self.places[..];
        let mut first = 0;
        let slices = self.host.frames.split(batches.clone().map(|batch| batch.len() * slice));
        let jobs = batches.zip(slices).map(|(batch, slices)| {
            let (own, others) = std::mem::take(&mut places).split_at_mut(batch.len());
            places = others;
            let at = first;
            first += batch.len();
            (batch, slices, own, at)
        });
        let shared = &self.host.places;
        crew.each(jobs.collect(), |(batch, mut slices, places, first)| {
            let frames = batch.each_bytes().zip(batch.frames()).zip(&mut *places);
            for (index, ((bytes, frame), place)) in frames.enumerate() {
                slices.write(index * slice, &bytes[..slice.min(bytes.len())]);
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                *place = Place::near(((first + index) * slice) as u32, len, frame.link);
            }
            shared.store_words(first * size_of::<Place>(), bytemuck::cast_slice(places));
        });
        self.are_places_there = true;
        true
    }

    /// Sends the frames to the device, by a launch if they cannot be dispatched as asked.
    ///
    /// # Errors
    /// Where the device fails.
    pub fn submit(&mut self, dispatch: Dispatch) -> Result<(), Error> {
        self.dispatch = if self.can(dispatch) { dispatch } else { Dispatch::Launch };
        self.judged.clear();
        match (self.dispatch, &mut self.ring) {
            (Dispatch::Resident, Some(ring)) => {
                // There is room for all of them: nothing is under way.
                for places in self.places.chunks(ring.batch()) {
                    ring.publish(places);
                }
                ring.look_after(&self.host.frames)
            }
            _ => self.launch(),
        }
    }

    fn launch(&mut self) -> Result<(), Error> {
        if !self.are_places_there {
            self.host.places.store_words(0, bytemuck::cast_slice(&self.places));
        }
        let Self { kernel, queue, host, device, room, count, .. } = self;
        let packets = *count as usize;
        let buffers = |frames, places, answers, others| Buffers {
            frames,
            bytes: *room as usize * kernel.slice().bytes(),
            places,
            answers,
            others,
            room: *room,
        };
        let Some(there) = device else {
            let [frames, places, answers, others] =
                [&host.frames, &host.places, &host.answers, &host.others].map(Buffer::Shared);
            return kernel.launch(queue, &buffers(frames, places, answers, others), 0..*count);
        };
        queue.copy_in(&mut host.frames, 0..packets * kernel.slice().bytes(), &there.frames, 0)?;
        queue.copy_in(&mut host.places, 0..packets * size_of::<Place>(), &there.places, 0)?;
        let [frames, places, answers, others] =
            [&there.frames, &there.places, &there.answers, &there.others].map(Buffer::Memory);
        kernel.launch(queue, &buffers(frames, places, answers, others), 0..*count)?;
        queue.copy_out(&there.answers, 0..packets * size_of::<Answer>(), &mut host.answers, 0)?;
        // In arrays of `room` words each.
        for acl in 0..kernel.acls() - 1 {
            let from = acl * *room as usize * 4;
            queue.copy_out(&there.others, from..from + packets * 4, &mut host.others, from)?;
        }
        Ok(())
    }

    /// Whether they have arrived.
    ///
    /// # Errors
    /// What went wrong on the way.
    pub fn is_finished(&mut self) -> Result<bool, Error> {
        let Some(ring) = self.ring.as_mut().filter(|_| self.dispatch == Dispatch::Resident) else {
            return Ok(self.queue.is_finished()?);
        };
        let mut has_more = ring.under_way() > 0;
        while has_more {
            let from = self.judged.len();
            self.judged.resize(from + ring.batch(), Answer::default());
            let taken = ring.take(&mut self.judged[from..]);
            self.judged.truncate(from + taken.unwrap_or(0));
            has_more = taken.is_some() && ring.under_way() > 0;
        }
        Ok(ring.under_way() == 0)
    }

    /// Waits until they have arrived, for so long at most; answers whether they have.
    ///
    /// # Errors
    /// What went wrong on the way.
    pub fn finish_within(&mut self, limit: Duration) -> Result<bool, Error> {
        if self.dispatch == Dispatch::Launch {
            return Ok(self.queue.finish_within(limit)?);
        }
        let start = Instant::now();
        let mut turn = 0u32;
        loop {
            if self.is_finished()? {
                return Ok(true);
            }
            turn = turn.wrapping_add(1);
            if turn.is_multiple_of(TURNS_PER_LOOK) {
                // First, since a kernel may have left of itself: that is no reason to give the device up.
                if let Some(ring) = &mut self.ring {
                    let starts = ring.starts();
                    ring.look_after(&self.host.frames)?;
                    if ring.starts() > starts {
                        continue;
                    }
                }
                if start.elapsed() >= limit {
                    return Ok(false);
                }
            }
            std::hint::spin_loop();
        }
    }

    /// What was found about each frame.
    pub fn answers(&self, answers: &mut Vec<Answer>) {
        self.answers_of(0..self.len(), answers);
    }

    /// What was found about some of the frames.
    pub(crate) fn answers_of(&self, frames: Range<usize>, answers: &mut Vec<Answer>) {
        answers.clear();
        if self.dispatch == Dispatch::Resident {
            answers.extend_from_slice(&self.judged[frames]);
            return;
        }
        answers.resize(frames.len(), Answer::default());
        self.host.answers.load_words(frames.start * size_of::<Answer>(), bytemuck::cast_slice_mut(answers));
    }

    /// The first rule of another ACL than the first that matches each frame, as in [`Answer::first`].
    pub fn first(&mut self, acl: usize, positions: &mut Vec<u32>) {
        positions.resize(self.len(), 0);
        let from = (acl - 1) * self.room as usize * 4;
        self.host.others.read(from, bytemuck::cast_slice_mut(positions));
        positions.iter_mut().for_each(|word| *word = super::frames::position(*word));
    }

    /// Tells a kernel that stays to leave, and does not wait for that.
    pub fn dismiss(&self) {
        if let Some(ring) = &self.ring {
            ring.dismiss();
        }
    }

    /// Has a kernel that stays leave. To be called of all lanes before one is dropped: drivers wait for kernels when they take memory back.
    ///
    /// # Errors
    /// Where the device failed, or does not answer any more.
    pub fn rest(&mut self) -> Result<(), Error> {
        self.ring.as_mut().map_or(Ok(()), Ring::stop)
    }

    /// Leaves a device that hangs or failed to itself. What comes back is to be dropped once all lanes are left: drivers wait for kernels when they take
    /// memory back.
    pub fn abandon(self) -> impl Sized {
        let Self { kernel, queue, ring, host, device, .. } = self;
        if let Some(ring) = ring {
            ring.abandon();
        }
        queue.abandon();
        (kernel, host, device)
    }
}
