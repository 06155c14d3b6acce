//! A batch on its way to a device and back: in one piece or several, each for one of the threads that share the work.

use std::time::Instant;

use packetloom_io::Polled;
use packetloom_packet::Batch;
use packetloom_packet::batch::{Policy, empty_arena};

use super::super::Intake;
use super::super::reader::Partition;
use crate::Error;
use crate::crew::Crew;
use crate::pipeline::work::{Records, Work};

/// Packets that are worth a piece of their own.
const PIECE: usize = 512;

/// A batch in pieces, each with packets but the first of a batch that has none.
pub(super) struct Pieces {
    pub(super) works: Vec<Work>,
    /// How many of these are in use, from the first on.
    pub(super) used: usize,
    /// Packets in all.
    pub(super) packets: usize,
    /// Packets that were to be read, and when they had been.
    pub(super) asked: usize,
    pub(super) read: Instant,
    pub(super) is_parsed: bool,
    /// Whether they are about as many as were asked for, since there are more.
    pub(super) is_about: bool,
    /// Where flows are spread among several devices, or threads here, for each of them its packets of each piece; and whether the batch is split so.
    shares: Vec<Vec<Work>>,
    pub(super) is_split: bool,
}

impl Pieces {
    /// Room for a batch in so many pieces at most, and for so many shares of it.
    pub(super) fn new(count: usize, room: usize, shares: usize) -> Self {
        let shares = if shares > 1 { shares } else { 0 };
        let works = |room, shares| (0..count).map(move |_| Work::new(room, shares)).collect();
        Self {
            works: works(room / count, shares),
            used: 0,
            packets: 0,
            asked: 0,
            read: Instant::now(),
            is_parsed: false,
            is_about: false,
            // Their memory grows with what they get.
            shares: (0..shares).map(|_| works(0, 0)).collect(),
            is_split: false,
        }
    }

    pub(super) fn used(&mut self) -> &mut [Work] {
        &mut self.works[..self.used]
    }

    /// A device's packets of each piece, of a batch that was split.
    pub(super) fn share(&mut self, device: usize) -> &mut [Work] {
        &mut self.shares[device][..self.used]
    }

    /// The same of each device, or of each thread.
    pub(super) fn shares(&mut self) -> impl Iterator<Item = &mut [Work]> {
        self.shares.iter_mut().map(|share| &mut share[..self.used])
    }

    /// Reads up to so many packets; the first piece of them by `first`. Pages of a mapped capture that are needed soon are brought in `later`.
    pub(super) fn fill(
        &mut self,
        size: usize,
        intake: &mut Intake<'_>,
        later: &impl Fn(Box<dyn FnOnce() + Send>),
        first: impl FnOnce(&mut Intake<'_>, &mut Batch) -> Result<Polled, Error>,
    ) -> Result<Polled, Error> {
        (self.used, self.packets, self.asked) = (0, 0, size);
        (self.is_parsed, self.is_about, self.is_split) = (false, false, false);
        let each = self.size_of_piece(size);
        let mut first = Some(first);
        while self.packets < size && self.used < self.works.len() {
            let batch = &mut self.works[self.used].batch;
            batch.set_capacity(each.min(size - self.packets));
            let polled = match first.take() {
                Some(first) => first(intake, batch)?,
                // What is to be done between two batches is not done within one.
                None if intake.is_at_bound() => break,
                None => match intake.poll(batch) {
                    Err(error) => {
                        intake.failed = Some(error);
                        break;
                    }
                    polled => polled?,
                },
            };
            if intake.leaves_paging
                && let Some(paging) = intake.source.paging()
            {
                later(Box::new(|| paging.run()));
            }
            if polled != Polled::Frames {
                if self.used > 0 {
                    break;
                }
                return Ok(polled);
            }
            self.packets += batch.len();
            self.used += 1;
        }
        self.read = Instant::now();
        Ok(Polled::Frames)
    }

    /// Packets of a piece of a batch at most.
    fn size_of_piece(&self, size: usize) -> usize {
        size.div_ceil(self.works.len()).max(PIECE.min(size))
    }

    /// Reads about so many packets with all threads of a crew, which also parse them, as a policy says, if one is given; whether that can be.
    pub(super) fn fill_sections(
        &mut self,
        size: usize,
        intake: &mut Intake<'_>,
        crew: &Crew,
        policy: Option<Policy>,
    ) -> bool {
        let works = size.div_ceil(self.size_of_piece(size));
        // All of them together are no more than that.
        let (each, works) = (size / works, &mut self.works[..works]);
        let parse = |work: &mut Work| policy.into_iter().for_each(|policy| work.batch.parse(policy));
        let Some(used) = intake.poll_sections(works, each, crew, parse) else { return false };
        self.packets = works[..used].iter().map(|work| work.batch.len()).sum();
        (self.used, self.asked, self.read) = (used, size, Instant::now());
        (self.is_parsed, self.is_about) = (policy.is_some(), used == works.len());
        self.is_split = false;
        true
    }

    /// Does something with each piece.
    pub(super) fn each(&mut self, crew: &Crew, work: impl Fn(&mut Work) + Send + Sync) {
        crew.each(self.used().iter_mut().collect(), work);
    }

    /// Splits a parsed batch among devices, or threads.
    pub(super) fn split(&mut self, partition: Partition, crew: &Crew) {
        crew.each(self.with_shares(), |(whole, shares)| {
            partition.split(&whole.batch, &mut whole.indices);
            for (share, indices) in shares.into_iter().zip(&whole.indices) {
                share.batch.gather(&whole.batch, indices);
                share.expiry = whole.expiry;
            }
        });
        self.is_split = true;
    }

    /// Puts together what became of a batch that was split.
    pub(super) fn merge(&mut self, crew: &Crew) {
        crew.each(self.with_shares(), |(whole, shares)| {
            for (number, Work { batch, effects, .. }) in shares.into_iter().enumerate() {
                whole.merge(number, batch, effects);
                let all = &mut whole.effects.records;
                all.resize_with(all.len().max(effects.records.len()), Records::default);
                for (all, own) in all.iter_mut().zip(&mut effects.records) {
                    all.append(own);
                }
                // The batch's memory is not held any longer.
                batch.reset(empty_arena());
            }
            whole.effects.sort();
        });
        self.is_split = false;
    }

    /// Each piece with the shares of it.
    fn with_shares(&mut self) -> Vec<(&mut Work, Vec<&mut Work>)> {
        let Self { works, used, shares, .. } = self;
        let mut shares: Vec<_> = shares.iter_mut().map(|share| share.iter_mut()).collect();
        let of_next = || shares.iter_mut().filter_map(Iterator::next).collect();
        works[..*used].iter_mut().zip(std::iter::repeat_with(of_next)).collect()
    }
}
