//! A set that tells new things from old ones by a 64-bit hash, in 5.3 bytes a thing.

/// Slots per thing, as a fraction: three quarters of the slots are used at most.
const SLOTS: (usize, usize) = (4, 3);

/// Which hashes have been met: open addressing over 32-bit tags.
///
/// Two different things are now and then (one time in 2³¹ or so) taken for the same. That is
/// harmless where a thing that was "met" is simply drawn again: what remains is distinct.
pub(crate) struct Seen {
    /// 0: empty; else the low half of a hash.
    tags: Vec<u32>,
}

impl Seen {
    /// Room for `capacity` things.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let slots = capacity.saturating_mul(SLOTS.0) / SLOTS.1 + 8;
        Self { tags: vec![0; slots] }
    }

    /// Notes `hash`; false when it was there already. At most the promised capacity may be noted.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u64) -> bool {
        let tag = (hash as u32).max(1);
        let mut slot = ((u128::from(hash) * self.tags.len() as u128) >> 64) as usize;
        loop {
            match self.tags[slot] {
                0 => {
                    self.tags[slot] = tag;
                    return true;
                }
                other if other == tag => return false,
                _ => {}
            }
            slot += 1;
            if slot == self.tags.len() {
                slot = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::mix;

    #[test]
    fn remembers_everything() {
        let mut seen = Seen::with_capacity(10_000);
        assert!((0..10_000).all(|thing| seen.insert(mix(thing))));
        assert!((0..10_000).all(|thing| !seen.insert(mix(thing))));
    }

    #[test]
    fn the_last_slot_wraps() {
        let mut seen = Seen::with_capacity(3);
        assert!(seen.insert(u64::MAX));
        assert!(seen.insert(u64::MAX - 1));
        assert!(!seen.insert(u64::MAX - 1));
        assert!(seen.insert(0), "the hash 0 is a hash like any other");
        assert!(!seen.insert(0));
    }
}
