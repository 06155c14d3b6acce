//! The order of rules that are inserted and removed anywhere: each has a number, its rank, between those of its neighbours.
//!
//! Ranks leave gaps. Where one is used up, the rules around it are spread over a larger range of numbers, the smallest that is
//! not crowded: a few dozen rules, seldom more (Bender, Cole, Demaine, Farach-Colton, Zito: "Two Simplified Algorithms for
//! Maintaining Order in a List", 2002).

/// Rules of a chunk at most: what an insertion moves.
const CHUNK: usize = 512;
/// Between a new first or last rule and its neighbour.
const GAP: u32 = 1 << 10;
/// The rank of nothing: after all rules.
pub(crate) const NO_RANK: u32 = u32::MAX;
/// A range of 2^i ranks is crowded where more than one in this number to the i is used. With all of them, [`MAX_RULES`] are
/// not crowded.
///
/// [`MAX_RULES`]: crate::formats::MAX_RULES
const CROWD: f64 = 1.15;

/// Where a slot stands: chunk, and place in it.
type At = (usize, usize);

/// Slots in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    /// None of them empty.
    chunks: Vec<Vec<u32>>,
    /// By slot; of those that are in the order.
    ranks: Vec<u32>,
    len: usize,
    /// Slots whose rank is new, perhaps more than once.
    touched: Vec<u32>,
}

impl Order {
    /// The slots from 0 to `len`, in this order.
    pub(super) fn new(len: usize) -> Self {
        // In the middle, with room on both sides.
        let gap = (1u64 << 30) / (len as u64).max(1 << 10);
        let first = (1u64 << 31) - gap * len as u64 / 2;
        let slots: Vec<u32> = (0..len as u32).collect();
        Self {
            chunks: slots.chunks(CHUNK / 2).map(<[u32]>::to_vec).collect(),
            ranks: (0..len as u64).map(|at| (first + gap * at) as u32).collect(),
            len,
            touched: slots,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Ranks by slot; those of slots that are not in the order mean nothing.
    pub(super) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// The slots whose rank is new since the last time.
    pub(super) fn take_touched(&mut self) -> impl Iterator<Item = u32> {
        self.touched.drain(..)
    }

    /// All slots in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.chunks.iter().flatten().copied()
    }

    /// The slot at a place, from 0.
    pub(super) fn at(&self, mut place: usize) -> Option<u32> {
        for chunk in &self.chunks {
            match chunk.get(place) {
                Some(&slot) => return Some(slot),
                None => place -= chunk.len(),
            }
        }
        None
    }

    /// The last slot.
    pub(super) fn last(&self) -> Option<u32> {
        self.chunks.last()?.last().copied()
    }

    /// The slot before this one.
    pub(super) fn before(&self, slot: u32) -> Option<u32> {
        self.previous(self.find(slot)).map(|(chunk, at)| self.chunks[chunk][at])
    }

    /// Puts a slot after another one, or first.
    pub(super) fn insert_after(&mut self, before: Option<u32>, slot: u32) {
        if self.ranks.len() <= slot as usize {
            self.ranks.resize(slot as usize + 1, NO_RANK);
        }
        let before = before.map(|slot| self.find(slot));
        let rank = self.room_after(before);
        self.ranks[slot as usize] = rank;
        self.touched.push(slot);
        self.len += 1;
        let (chunk, at) = before.map_or((0, 0), |(chunk, at)| (chunk, at + 1));
        if self.chunks.is_empty() {
            self.chunks.push(Vec::new());
        }
        self.chunks[chunk].insert(at, slot);
        if self.chunks[chunk].len() > CHUNK {
            let rest = self.chunks[chunk].split_off(CHUNK / 2);
            self.chunks.insert(chunk + 1, rest);
        }
    }

    /// Takes a slot out; returns the one before it.
    pub(super) fn remove(&mut self, slot: u32) -> Option<u32> {
        let (chunk, at) = self.find(slot);
        let before = self.previous((chunk, at)).map(|(chunk, at)| self.chunks[chunk][at]);
        self.chunks[chunk].remove(at);
        if self.chunks[chunk].is_empty() {
            self.chunks.remove(chunk);
        }
        self.len -= 1;
        before
    }

    fn rank(&self, slot: u32) -> u32 {
        self.ranks[slot as usize]
    }

    fn find(&self, slot: u32) -> At {
        let rank = self.rank(slot);
        let chunk = self.chunks.partition_point(|chunk| self.rank(chunk[0]) <= rank) - 1;
        (chunk, self.chunks[chunk].partition_point(|&other| self.rank(other) < rank))
    }

    fn previous(&self, (chunk, at): At) -> Option<At> {
        match at.checked_sub(1) {
            Some(at) => Some((chunk, at)),
            None => chunk.checked_sub(1).map(|chunk| (chunk, self.chunks[chunk].len() - 1)),
        }
    }

    fn next(&self, (chunk, at): At) -> Option<At> {
        if at + 1 < self.chunks[chunk].len() {
            Some((chunk, at + 1))
        } else {
            (chunk + 1 < self.chunks.len()).then_some((chunk + 1, 0))
        }
    }

    /// A rank between that of the slot that stands here, or the least, and the next one's.
    fn room_after(&mut self, before_at: Option<At>) -> u32 {
        loop {
            let after_at = match before_at {
                Some(at) => self.next(at),
                None => (!self.chunks.is_empty()).then_some((0, 0)),
            };
            let rank_at = |(chunk, at): At| self.rank(self.chunks[chunk][at]);
            let rank = match (before_at.map(rank_at), after_at.map(rank_at)) {
                (None, None) => 1 << 31,
                (Some(before), None) => before + GAP.min((NO_RANK - before) / 2),
                (None, Some(after)) => after - GAP.min(after / 2),
                (Some(before), Some(after)) => before + (after - before) / 2,
            };
            let taken = |at: At| rank_at(at) == rank;
            match before_at.filter(|&at| taken(at)).or(after_at.filter(|&at| taken(at))) {
                Some(at) => self.spread(at),
                None => return rank,
            }
        }
    }

    /// Spreads the rules around one over a range of ranks that is not crowded.
    fn spread(&mut self, at: At) {
        let rank = u64::from(self.rank(self.chunks[at.0][at.1]));
        let (mut first, mut last, mut count) = (at, at, 1u64);
        for bits in 4..=32 {
            let low = rank >> bits << bits;
            let within = |(chunk, at): At, this: &Self| {
                (low..low + (1 << bits)).contains(&u64::from(this.rank(this.chunks[chunk][at])))
            };
            while let Some(at) = self.previous(first).filter(|&at| within(at, self)) {
                (first, count) = (at, count + 1);
            }
            while let Some(at) = self.next(last).filter(|&at| within(at, self)) {
                (last, count) = (at, count + 1);
            }
            // Room for a rule between any two.
            let room = (1u64 << bits) / (count + 1);
            let crowded = count as f64 > (2.0 / CROWD).powi(bits);
            if room >= 4 && (!crowded || bits == 32) {
                let mut at = first;
                for index in 1..=count {
                    let slot = self.chunks[at.0][at.1];
                    self.ranks[slot as usize] = (low + index * room) as u32;
                    self.touched.push(slot);
                    let Some(next) = self.next(at) else { break };
                    at = next;
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(order: &Order, model: &[u32]) {
        assert_eq!(order.len(), model.len());
        assert!(order.iter().eq(model.iter().copied()));
        let ranks: Vec<u32> = model.iter().map(|&slot| order.rank(slot)).collect();
        assert!(ranks.is_sorted_by(|a, b| a < b) && ranks.last().is_none_or(|&last| last < NO_RANK));
    }

    #[test]
    fn keeps_order_wherever_rules_are_put() {
        // Always first, always last, always at the same place, and anywhere.
        for kind in 0..4usize {
            let mut order = Order::new(100);
            let mut model: Vec<u32> = (0..100).collect();
            let mut random = 1u64;
            for slot in 100..20_000u32 {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let place = match kind {
                    0 => 0,
                    1 => model.len(),
                    2 => 50,
                    _ => (random >> 33) as usize % (model.len() + 1),
                };
                let before = place.checked_sub(1).map(|before| model[before]);
                order.insert_after(before, slot);
                model.insert(place, slot);
                if kind == 3 && random >> 60 < 6 {
                    let place = (random >> 20) as usize % model.len();
                    assert_eq!(order.at(place), Some(model[place]));
                    assert_eq!(order.before(model[place]), place.checked_sub(1).map(|before| model[before]));
                    let before = place.checked_sub(1).map(|before| model[before]);
                    assert_eq!(order.remove(model.remove(place)), before);
                }
                if slot % 997 == 0 {
                    check(&order, &model);
                }
            }
            check(&order, &model);
            // Always at the same place is the worst case: about a hundred numbers written for each rule, of four bytes.
            let touched = order.take_touched().count();
            assert!(touched < 20_000 * 128, "{kind}: {touched}");
        }
    }

    #[test]
    fn an_order_may_become_empty() {
        let mut order = Order::new(1);
        order.remove(0);
        assert_eq!((order.len(), order.at(0)), (0, None));
        order.insert_after(None, 5);
        order.insert_after(Some(5), 0);
        check(&order, &[5, 0]);
    }
}
