//! Small batches: a kernel that stays on the device and is fed through a ring.
//!
//! The host publishes batches by one number and the device answers frame by frame; an answer carries the lap of the ring, so nothing is
//! cleared between laps. The kernel leaves when it is told to, and by itself where nothing was published for a while: then it is
//! launched again when there is something. So neither can keep the other from ending.

use std::iter::repeat;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packetloom_device::{Buffer, Memory, Queue, Shared};

use super::frames::{Answer, Buffers, Frames, Layout, News, Place, TOLD_APART};
use super::{Error, is_gpu};

/// Where the host's words stand.
const PUBLISHED: usize = offset_of!(News, published);
const STOP: usize = offset_of!(News, stop);
/// Batches from the one that is taken to one whose answers are asked for.
const AHEAD: u32 = 2;
/// Bytes that a processor's cache takes at a time.
const LINE: usize = 64;
/// How often a kernel asks in vain before it leaves: some seconds over a bus, less in a CPU.
const PATIENCE: u32 = 1 << 21;
/// How long a kernel that was told to leave may take.
const LEAVE: Duration = Duration::from_secs(10);

/// A ring of batches, and the kernel that judges them.
#[derive(Debug)]
pub struct Ring {
    kernel: Arc<Frames>,
    /// Where the kernel is; none before it was launched for the first time, and after it was stopped.
    queue: Option<Queue>,
    layout: Layout,
    places: Shared,
    answers: Shared,
    others: Shared,
    news: Shared,
    told: Memory,
    /// What it begins with.
    told_first: Shared,
    bits: u32,
    groups: u32,
    /// Frames of each batch in the ring.
    counts: Vec<u32>,
    published: u32,
    taken: u32,
    starts: u64,
}

impl Ring {
    /// A ring of 2^`bits` batches of frames, judged by up to `groups` groups beside the one that asks for news. The kernel is launched
    /// when something is published and [`Ring::look_after`] is called; until then other memory can be had without waiting for it.
    ///
    /// # Errors
    /// Where the device cannot use the host's memory, where it fails, or there is no memory.
    pub fn new(kernel: &Arc<Frames>, layout: Layout, bits: u32, groups: u32) -> Result<Self, Error> {
        let device = kernel.device();
        let room = (kernel.group() as usize) << bits;
        // A word for each batch, and the number of the next one.
        let told = ((TOLD_APART << bits) + 1) * 8;
        // One group does all the work on a CPU, where groups may take turns.
        let groups = if is_gpu(device) { groups.saturating_add(1).clamp(2, kernel.groups()) } else { 1 };
        Ok(Self {
            kernel: kernel.clone(),
            queue: None,
            layout,
            places: device.share(room * layout.bytes_per_place())?,
            answers: device.share(room * size_of::<Answer>())?,
            others: device.share(room * (kernel.acls() - 1) * 4)?,
            news: device.share(LINE)?,
            told: device.memory(told)?,
            told_first: device.share(told)?,
            bits,
            groups,
            counts: vec![0; 1 << bits],
            published: 0,
            taken: 0,
            starts: 0,
        })
    }

    /// Frames of a batch at most.
    pub fn batch(&self) -> usize {
        self.kernel.group() as usize
    }

    /// Batches that were published and not taken.
    pub fn under_way(&self) -> u32 {
        self.published.wrapping_sub(self.taken)
    }

    /// How often the kernel was launched.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    fn start(&mut self, frames: &Shared) -> Result<(), Error> {
        let mut queue = self.kernel.device().queue()?;
        // Batches that were judged before, and only not taken yet, are not judged again: their places may belong to others by then.
        let mut first = self.taken;
        let mut answers = vec![Answer::default(); self.batch()];
        while first != self.published && self.has_answers(first, &mut answers) {
            first = first.wrapping_add(1);
        }
        if self.told_first.is_busy() {
            let why = "the kernel that was left to itself has not begun".into();
            return Err(packetloom_device::Error::Failed { call: "Ring::start", why }.into());
        }
        let told = vec![u64::from(first); self.told.len() / 8];
        self.told_first.store_words(0, &told);
        queue.copy_in(&mut self.told_first, 0..self.told.len(), &self.told, 0)?;
        self.news.store(STOP, 0);
        let [places, answers, others] = [&self.places, &self.answers, &self.others].map(Buffer::Shared);
        let buffers = Buffers {
            frames: Buffer::Shared(frames),
            bytes: frames.len() & !15,
            places,
            answers,
            others,
            room: self.kernel.group() << self.bits,
        };
        let news = (Buffer::Shared(&self.news), &self.told);
        let numbers = (self.bits, first, PATIENCE);
        self.kernel.launch_resident(&mut queue, &buffers, self.layout, news, numbers, self.groups)?;
        self.queue = Some(queue);
        self.starts += 1;
        Ok(())
    }

    /// Publishes a batch of frames that lie anywhere; `false` where the ring is full.
    ///
    /// # Panics
    /// With more than [`Ring::batch`] places, and where frames lie in buffers.
    pub fn publish(&mut self, places: &[Place]) -> bool {
        assert_eq!(self.layout, Layout::Anywhere, "places for buffers that follow each other");
        let words = places.iter().copied().chain(repeat(Place::NONE)).take(self.batch());
        let words: Vec<Place> = words.collect();
        self.publish_words(places.len(), bytemuck::cast_slice(&words))
    }

    /// Publishes a batch of frames in the buffers that come next, by their captured bytes; `false` where the ring is full.
    ///
    /// # Panics
    /// With more than [`Ring::batch`] frames, and where they do not lie in buffers.
    pub fn publish_buffers(&mut self, lens: &[u16]) -> bool {
        assert_ne!(self.layout, Layout::Anywhere, "buffers for frames that lie anywhere");
        // Only whether the headers are whole depends on the length, and the greatest stands for no frame.
        let words = lens.iter().map(|&len| len.min(u16::MAX - 1)).chain(repeat(u16::MAX)).take(self.batch());
        let words: Vec<u16> = words.collect();
        self.publish_words(lens.len(), bytemuck::cast_slice(&words))
    }

    fn publish_words(&mut self, count: usize, words: &[u8]) -> bool {
        assert!(count <= self.batch(), "{count} frames");
        if self.under_way() >> self.bits > 0 {
            return false;
        }
        let slot = self.slot(self.published);
        self.places.write(slot * words.len(), words);
        self.counts[slot] = count as u32;
        self.publish_again(1)
    }

    /// Publishes so many batches that stood there a lap ago, for buffers that are filled in turns; `false` where the ring has no room for
    /// all of them.
    pub fn publish_again(&mut self, batches: u32) -> bool {
        if batches > (1 << self.bits) - self.under_way() {
            return false;
        }
        self.published = self.published.wrapping_add(batches);
        self.news.store(PUBLISHED, self.published);
        true
    }

    fn slot(&self, batch: u32) -> usize {
        (batch & ((1 << self.bits) - 1)) as usize
    }

    /// Takes the oldest batch that was published, once it is judged: what was found about each of its frames, whose number it returns. There must
    /// be room for [`Ring::batch`] answers.
    ///
    /// # Panics
    /// Where there is less.
    pub fn take(&mut self, answers: &mut [Answer]) -> Option<usize> {
        if self.under_way() == 0 {
            return None;
        }
        let slot = self.slot(self.taken);
        if !self.has_answers(self.taken, answers) {
            return None;
        }
        self.taken = self.taken.wrapping_add(1);
        Some(self.counts[slot] as usize)
    }

    /// Whether a batch is judged; its answers are read then.
    #[inline]
    fn has_answers(&self, batch: u32, answers: &mut [Answer]) -> bool {
        let slot = self.slot(batch);
        let lap = batch >> self.bits & 1 == 0;
        // All places of the batch are answered, and waited for: one that is not would look like an answer of the next lap but one.
        let answers = &mut answers[..self.batch()];
        let bytes = size_of_val(answers);
        // Mostly it is too early, and the last one tells.
        if let Some(last) = answers.last_mut() {
            let at = (slot + 1) * bytes - size_of::<Answer>();
            self.answers.load_words(at, bytemuck::cast_slice_mut(std::slice::from_mut(last)));
            if last.lap() != lap {
                return false;
            }
        }
        let ahead = self.slot(batch.wrapping_add(AHEAD)) * bytes;
        (0..bytes).step_by(LINE).for_each(|line| self.answers.prefetch(ahead + line));
        self.answers.load_words(slot * bytes, bytemuck::cast_slice_mut(answers));
        Answer::all_of_lap(answers, lap)
    }

    /// Launches the kernel if it is not there and there is something to do, for frames that lie in `frames`. To be called now and then while
    /// batches are under way. The frames of batches that are not under way may be written meanwhile.
    ///
    /// # Errors
    /// Where the device failed, or has no room for the ring's buffers: batches that are under way will not be judged.
    pub fn look_after(&mut self, frames: &Shared) -> Result<(), Error> {
        let has_left = match &mut self.queue {
            Some(queue) => queue.is_finished()?,
            None => true,
        };
        if has_left && self.under_way() > 0 { self.start(frames) } else { Ok(()) }
    }

    /// Tells the kernel to leave, and does not wait for that.
    pub fn dismiss(&self) {
        self.news.store(STOP, 1);
    }

    /// Leaves the kernel to itself: it is told to leave, and not waited for.
    pub fn abandon(mut self) {
        self.dismiss();
        if let Some(queue) = self.queue.take() {
            queue.abandon();
        }
    }

    /// Tells the kernel to leave, once it has judged what was published, and waits for that.
    ///
    /// # Errors
    /// Where the device failed, or does not answer any more.
    pub fn stop(&mut self) -> Result<(), Error> {
        let Some(mut queue) = self.queue.take() else { return Ok(()) };
        self.dismiss();
        let start = Instant::now();
        match queue.finish_within(LEAVE) {
            Ok(true) => Ok(()),
            Ok(false) => {
                queue.abandon();
                let why = format!("the kernel has not left for {:?}", start.elapsed());
                Err(packetloom_device::Error::Failed { call: "Ring::stop", why }.into())
            }
            Err(error) => {
                queue.abandon();
                Err(error.into())
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // What went wrong was, or will be, told by those who wait for answers.
        let _ = self.stop();
    }
}
