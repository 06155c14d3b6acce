//! From the bytes around a window to the patterns that have them there.

use std::hint::select_unpredictable;

use packetloom_memory::prefetch_at;

/// What of a text is known at a window: eight bytes from two in front of it, the first the lowest.
pub(crate) type Around = u64;

/// Which of the eight bytes a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// All.
    Both,
    /// Two bytes and the window.
    Before,
    /// The window and two bytes.
    After,
    /// The window alone, of a pattern that is looked for at every byte.
    Window,
    /// The first bytes of the window and those behind it: a whole pattern of this length, 1 to 6.
    Whole(u8),
}

impl Kind {
    /// The kind of a window on the grid: that of as many bytes as are known on its sides. A pattern of seven bytes or more has two at
    /// least on one of them. One kind is found on the grid alone or at every byte alone, or a pattern might be found twice.
    pub(crate) const fn on_grid(before: usize, after: usize) -> Self {
        match (before >= 2, after >= 2) {
            (true, true) => Self::Both,
            (true, false) => Self::Before,
            (false, _) => Self::After,
        }
    }

    /// The key of a text.
    #[inline(always)]
    pub(crate) const fn key(self, around: Around) -> u64 {
        match self {
            Self::Both => around,
            Self::Before => around & 0xffff_ffff_ffff,
            Self::After => around >> 16,
            Self::Window => around >> 16 & 0xffff_ffff,
            Self::Whole(len) => around >> 16 & ((1 << (8 * len)) - 1),
        }
    }

    /// A number of each kind.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::Both => 1,
            Self::Before => 2,
            Self::After => 3,
            Self::Window => 4,
            Self::Whole(len) => 5 + len as u64,
        }
    }

    /// That of a number.
    pub(crate) const fn of_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Both),
            2 => Some(Self::Before),
            3 => Some(Self::After),
            4 => Some(Self::Window),
            6..=11 => Some(Self::Whole(number - 5)),
            _ => None,
        }
    }

    /// The hash of a text's key.
    pub(crate) const fn hash(self, around: Around) -> u64 {
        self.hasher().hash(around)
    }

    /// What makes hashes of texts' keys.
    #[inline(always)]
    pub(crate) const fn hasher(self) -> Hasher {
        Hasher {
            shift: match self {
                Self::Both | Self::Before => 0,
                _ => 16,
            },
            mask: self.key(u64::MAX),
            salt: self.number().wrapping_mul(0xd6e8_feb8_6659_fd93),
        }
    }
}

/// Makes hashes of keys of one kind, without a branch for the kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher {
    shift: u32,
    mask: u64,
    salt: u64,
}

impl Hasher {
    /// The hash of a text's key: its highest bits are a place, its lowest ones a tag.
    #[inline(always)]
    pub(crate) const fn hash(self, around: Around) -> u64 {
        let key = around >> self.shift & self.mask;
        let mixed = (key ^ self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xff51_afd7_ed55_8ccd)
    }
}

/// A window of a pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// The number of the pattern.
    pub(crate) pattern: u32,
    /// Where its bytes begin among those of all.
    pub(crate) bytes: u32,
    /// Four of its bytes, folded, from [`checked_at`](Self::checked_at) on; 0 for a shorter one.
    pub(crate) checked: u32,
    /// Where in it the window begins.
    pub(crate) offset: u8,
    /// Its length.
    pub(crate) len: u8,
    /// The number of the kind of its key. What is found by a tag of another kind that happens to be equal is passed over, or a pattern might be found twice.
    pub(crate) kind: u8,
    /// Whether no more follow in the list.
    pub(crate) is_last: bool,
}

impl Item {
    /// A window of the kind at this offset of a pattern, whose bytes are folded.
    pub(crate) fn new((pattern, begin): (u32, u32), bytes: &[u8], offset: usize, kind: Kind) -> Self {
        let mut new = Self {
            pattern,
            bytes: begin,
            checked: 0,
            offset: offset as u8,
            len: bytes.len() as u8,
            kind: kind.number() as u8,
            is_last: false,
        };
        let checked = bytes.get(new.checked_at()..).and_then(<[u8]>::first_chunk);
        new.checked = checked.map_or(0, |bytes| u32::from_le_bytes(*bytes));
        new
    }

    /// Where in the pattern the four bytes are which are compared first: those of its ends that the window is farther from.
    #[inline(always)]
    pub(crate) fn checked_at(&self) -> usize {
        let (offset, len) = (usize::from(self.offset), usize::from(self.len));
        select_unpredictable(2 * offset + 4 > len, 0, len.wrapping_sub(4))
    }
}

/// A place of the table. The tag tells most keys apart; that a text has the bytes is compared afterwards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    /// 0 where there is no key.
    pub(crate) tag: u32,
    /// Where its list begins.
    pub(crate) list: u32,
}

/// That of a key with this hash.
#[inline(always)]
fn tag_of(hash: u64) -> u32 {
    hash as u32 | 1
}

/// Slots that are looked at at once. The first ones of a bucket are taken first; keys for which there is no room go to the next bucket.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
pub(crate) struct Bucket(pub(crate) [Slot; Bucket::SLOTS]);

impl Bucket {
    pub(crate) const SLOTS: usize = 4;

    /// The slots with the tag of a hash, a bit each.
    #[inline(always)]
    pub(crate) fn with_tag(&self, hash: u64) -> u32 {
        let bits = self.0.iter().enumerate().map(|(at, slot)| u32::from(slot.tag == tag_of(hash)) << at);
        bits.fold(0, |all, bit| all | bit)
    }

    /// The list of the first of some slots.
    #[inline(always)]
    pub(crate) fn first(&self, slots: u32) -> u32 {
        self.0[slots.trailing_zeros() as usize % Self::SLOTS].list
    }

    /// Whether a search goes on behind it.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.0[Self::SLOTS - 1].tag != 0
    }
}

/// Binary logarithm of the gate's bits for each slot: the latter where the gate would have more bits than the third, 256 KiB, and push
/// the filter out of the cache.
const GATE_BITS: u32 = 3;
const MIN_GATE_BITS: u32 = 1;
const GATE_IN_CACHE: u32 = 21;

/// The table as it lies in memory.
#[cfg(feature = "device")]
pub(crate) struct Parts<'a> {
    /// Tag and list of each slot; a tag of 0 is that of none.
    pub(crate) slots: Vec<(u32, u32)>,
    /// By how much a hash is shifted to be the number of a slot, in whose bucket it is looked for.
    pub(crate) shift: u32,
    /// A bit for each hash, and by how much that is shifted.
    pub(crate) gate: &'a [u64],
    pub(crate) gate_shift: u32,
    pub(crate) items: &'a [Item],
}

/// An open-addressing table of lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    pub(crate) buckets: Vec<Bucket>,
    /// By how much a hash is shifted to be the number of a bucket.
    shift: u32,
    /// A bit for each hash, set where a key has it.
    pub(crate) gate: Vec<u64>,
    gate_shift: u32,
    pub(crate) items: Vec<Item>,
    /// Items of the longest list.
    pub(crate) longest: usize,
}

impl Index {
    /// The binary logarithm of how many slots so many lists have, twice as many at least.
    pub(crate) fn slot_bits(lists: usize) -> u32 {
        (lists * 2).next_power_of_two().max(16).ilog2()
    }

    /// One without lists.
    pub(crate) fn with_slots(bits: u32) -> Self {
        let gate_bits = (bits + GATE_BITS).min(GATE_IN_CACHE.max(bits + MIN_GATE_BITS));
        Self {
            buckets: vec![Bucket::default(); (1 << bits) / Bucket::SLOTS],
            shift: 64 - bits + Bucket::SLOTS.ilog2(),
            gate: vec![0; 1 << (gate_bits - 6)],
            gate_shift: 64 - gate_bits,
            items: Vec::new(),
            longest: 0,
        }
    }

    /// Of windows with what lies around them.
    pub(crate) fn new(mut windows: Vec<(u64, Item)>) -> Self {
        windows.sort_unstable_by_key(|&(key, item)| (item.kind, key, item.pattern, item.offset));
        let lists = || windows.chunk_by(|a, b| (a.1.kind, a.0) == (b.1.kind, b.0));
        let mut index = Self::with_slots(Self::slot_bits(lists().count()));
        let Self { buckets, shift, gate, gate_shift, items, longest } = &mut index;
        items.reserve_exact(windows.len());
        for list in lists() {
            let (key, item) = list[0];
            let kind = Kind::of_number(item.kind).expect("the number of a kind");
            let around = match kind {
                Kind::Both | Kind::Before => key,
                _ => key << 16,
            };
            let hash = kind.hash(around);
            let bit = hash >> *gate_shift;
            gate[(bit >> 6) as usize] |= 1 << (bit & 63);
            let mut at = (hash >> *shift) as usize;
            while buckets[at].is_full() {
                at = (at + 1) & (buckets.len() - 1);
            }
            let room = buckets[at].0.iter_mut().find(|slot| slot.tag == 0).expect("a bucket with room");
            *room = Slot { tag: tag_of(hash), list: items.len() as u32 };
            items.extend(list.iter().map(|&(_, item)| item));
            items.last_mut().expect("a list is not empty").is_last = true;
            *longest = (*longest).max(list.len());
        }
        index
    }

    /// Whether a key with this hash may be there: nearly always right, and without a branch.
    #[inline(always)]
    pub(crate) fn may_have(&self, hash: u64) -> bool {
        let bit = hash >> self.gate_shift;
        self.gate[(bit >> 6) as usize] >> (bit & 63) & 1 == 1
    }

    /// Has the processor load where a hash is looked up.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch_at(&self.buckets, (hash >> self.shift) as usize);
    }

    /// The bucket in which a key with this hash is, if there is room in it.
    #[inline(always)]
    pub(crate) fn bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[(hash >> self.shift) as usize]
    }

    /// Calls `found` with where the lists begin that may be those of a key with this hash, but for the first in its bucket.
    #[inline(never)]
    pub(crate) fn other_lists(&self, hash: u64, mut found: impl FnMut(u32)) {
        let mut at = (hash >> self.shift) as usize;
        let first = self.buckets[at].with_tag(hash);
        let mut with_tag = first & first.wrapping_sub(1);
        loop {
            while with_tag != 0 {
                found(self.buckets[at].first(with_tag));
                with_tag &= with_tag - 1;
            }
            if !self.buckets[at].is_full() {
                return;
            }
            at = (at + 1) & (self.buckets.len() - 1);
            with_tag = self.buckets[at].with_tag(hash);
        }
    }

    /// All slots.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.buckets.iter().flat_map(|bucket| bucket.0)
    }

    /// Has the processor load an item.
    #[inline(always)]
    pub(crate) fn prefetch_list(&self, list: u32) {
        prefetch_at(&self.items, list as usize);
    }

    /// The first item of a list, which ends with the first that says so.
    #[inline(always)]
    pub(crate) fn item(&self, list: u32) -> &Item {
        &self.items[list as usize]
    }

    /// The items behind one that is not the last of its list.
    #[inline(always)]
    pub(crate) fn items_behind(&self, list: u32) -> &[Item] {
        &self.items[list as usize + 1..]
    }

    /// What a device is given of it.
    #[cfg(feature = "device")]
    pub(crate) fn parts(&self) -> Parts<'_> {
        let Self { shift, gate, gate_shift, items, .. } = self;
        let slots = self.slots().map(|slot| (slot.tag, slot.list)).collect();
        let shift = shift - Bucket::SLOTS.ilog2();
        Parts { slots, shift, gate, gate_shift: *gate_shift, items }
    }

    /// Items of the longest list.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
            + self.gate.capacity() * 8
            + self.items.capacity() * size_of::<Item>()
    }
}

#[cfg(test)]
mod tests {
    use packetloom_simd::Isa;

    use super::*;
    use crate::{Match, Matcher, Patterns, Report, Scratch, oracle};

    /// What an odd number times this is 1.
    fn inverse(odd: u64) -> u64 {
        (0..6).fold(odd, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse))))
    }

    /// The eight bytes with this hash.
    fn around_of(hash: u64) -> Around {
        let mixed = hash.wrapping_mul(inverse(0xff51_afd7_ed55_8ccd));
        let key = (mixed ^ mixed >> 32).wrapping_mul(inverse(0x9e37_79b9_7f4a_7c15));
        key ^ Kind::Both.hasher().salt
    }

    /// Patterns whose keys have one place in the table, and one tag, so many that they fill several buckets: each is found once.
    #[test]
    fn keys_with_one_place_and_tag_are_told_apart() {
        for count in [2, 3, 4, 5, 8, 9, 40] {
            let hashes = (0..count).map(|number: u64| 0xabcd_0000_1234_5679 | number << 33);
            let all: Vec<_> = hashes.map(|hash| (hash, around_of(hash))).collect();
            assert!(all.iter().all(|&(hash, around)| Kind::Both.hash(around) == hash));
            let bytes: Vec<_> = all.iter().map(|(_, around)| around.to_le_bytes()).collect();
            let patterns: Patterns = bytes.iter().map(|bytes| &bytes[..]).collect();
            // Each at each place of the grid, and each less a byte of its beginning or end.
            let mut texts: Vec<Vec<u8>> = Vec::new();
            for pattern in &bytes {
                texts.extend((0..9).map(|before| [&vec![b'.'; before][..], pattern, b"......"].concat()));
                texts.extend([
                    [&pattern[1..], b"......."].concat(),
                    [b"..", &pattern[..7], b"......"].concat(),
                ]);
            }
            let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
            let expected: Vec<Match> =
                (0..).zip(&texts).flat_map(|(at, text)| oracle::matches(&patterns, text, at)).collect();
            assert_eq!(expected.len(), 9 * all.len());
            for isa in Isa::all_for_bytes() {
                let mut found = Vec::new();
                let matcher = Matcher::with(patterns.clone(), isa, &[]);
                matcher.find(&texts, Report::All, &mut Scratch::default(), &mut found);
                found.sort_unstable();
                assert_eq!(found, expected, "{count} patterns, {isa:?}");
            }
        }
    }
}
