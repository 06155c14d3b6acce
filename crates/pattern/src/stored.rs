//! Compiled sets in files, so that a large one need not be compiled by each run.
//!
//! A file holds what [`Matcher`] adds to its patterns, which it does not hold: who reads it brings them, and a digest tells whether they are
//! those that were compiled. The form is the same for all instruction sets.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | [`MAGIC`] |
//! | 32 | digest (SHA-256) of the version of this library, and of the patterns with their options |
//! | 4 | binary logarithm of the number of slots |
//! | 4, and 4 each | binary logarithm of the number of words of the filter on the grid, and the words; the same of that at every byte |
//! | 8 each | slots: tag, list; in buckets of four that are filled from the front, and what finds its bucket full is in the next one |
//! | 8 each | words of the gate |
//! | 12 each | items: pattern, four of its bytes, offset, kind, whether it is the last of its list, 0 |
//! | 4 | checksum (CRC-32) of all that stands before |
//!
//! Numbers are little-endian. How many there are of each follows from the patterns and the number of slots. No byte of a file is trusted: a
//! list that begins behind the last item, an item of a pattern that is not there, and tables without an end are refused, and what else is not
//! as it was written fails the checksum.

use std::io::{self, Read, Write};

use crc32fast::Hasher;
use packetloom_simd::Isa;
use ring::digest::{Context, SHA256};

use crate::filter::{Filter, MAX_WORDS, MIN_WORDS};
use crate::index::{Bucket, Index, Item, Kind, Slot};
use crate::matcher::Matcher;
use crate::plan::Shape;
use crate::{Pattern, Patterns};

/// What files begin with.
pub const MAGIC: [u8; 8] = *b"plstring";

/// Bytes of the digest, and of an item.
const DIGEST: usize = 32;
const ITEM: usize = 12;

/// Bytes that are read or written at a time: a multiple of those of a word, a slot and an item.
const CHUNK: usize = 3 << 18;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error(transparent)]
    Io(io::Error),
    /// It is something else.
    #[error("not a compiled set")]
    Foreign,
    /// It was compiled of other patterns, with other options, or by another version.
    #[error("compiled of other patterns, or by another version")]
    OtherSet,
    /// It ends too early.
    #[error("truncated")]
    Truncated,
    /// It is not as it was written.
    #[error("damaged: {0}")]
    Damaged(&'static str),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

/// To be changed with what is written, and with whatever gives that a meaning: the hashes of windows, the gate, the filter, what an item says.
const FORMAT: u32 = 4;

/// What tells one set from another.
fn digest_of(patterns: &Patterns) -> [u8; DIGEST] {
    let mut context = Context::new(&SHA256);
    context.update(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes());
    context.update(&FORMAT.to_le_bytes());
    patterns.digest(|bytes| context.update(bytes));
    let mut digest = [0; DIGEST];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// Writes numbers, and sums them up.
struct Summed<'a, W> {
    to: &'a mut W,
    sum: Hasher,
    chunk: Vec<u8>,
}

impl<W: Write> Summed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }

    fn write_all<const N: usize>(&mut self, mut all: impl Iterator<Item = [u8; N]>) -> io::Result<()> {
        loop {
            let mut chunk = std::mem::take(&mut self.chunk);
            chunk.clear();
            all.by_ref().take(CHUNK / N).for_each(|bytes| chunk.extend_from_slice(&bytes));
            self.write(&chunk)?;
            self.chunk = chunk;
            if self.chunk.is_empty() {
                return Ok(());
            }
        }
    }
}

/// Reads numbers, and sums them up.
struct Summing<'a, R> {
    from: &'a mut R,
    sum: Hasher,
    chunk: Vec<u8>,
}

impl<R: Read> Summing<'_, R> {
    fn read<const N: usize>(&mut self) -> Result<[u8; N], Unusable> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.sum.update(&bytes);
        Ok(bytes)
    }

    /// Calls `take` with so many values of so many bytes.
    fn read_all<const N: usize>(
        &mut self,
        mut count: usize,
        mut take: impl FnMut(&[u8; N]) -> Result<(), Unusable>,
    ) -> Result<(), Unusable> {
        while count > 0 {
            let now = count.min(CHUNK / N);
            count -= now;
            self.chunk.resize(now * N, 0);
            self.from.read_exact(&mut self.chunk)?;
            self.sum.update(&self.chunk);
            self.chunk.as_chunks().0.iter().try_for_each(&mut take)?;
        }
        Ok(())
    }

    fn filter(&mut self, windows: usize) -> Result<Option<Filter>, Unusable> {
        if windows == 0 {
            return Ok(None);
        }
        let bits = u32::from_le_bytes(self.read()?);
        if !(MIN_WORDS.ilog2()..=MAX_WORDS.ilog2()).contains(&bits) {
            return Err(Unusable::Damaged("a number of words that no filter has"));
        }
        let words = 1 << bits;
        let mut read = Vec::with_capacity(words);
        self.read_all(words, |bytes| {
            read.push(u32::from_le_bytes(*bytes));
            Ok(())
        })?;
        Ok(Some(Filter::from_words(read)))
    }

    fn index(&mut self, patterns: &Patterns, bits: u32, items: usize) -> Result<Index, Unusable> {
        let mut index = Index::with_slots(bits);
        let (mut at, mut used) = (0, 0);
        self.read_all(index.buckets.len() * Bucket::SLOTS, |bytes: &[u8; 8]| {
            let [tag, list] = bytes.as_chunks().0 else { unreachable!("two words") };
            let slot = Slot { tag: u32::from_le_bytes(*tag), list: u32::from_le_bytes(*list) };
            if slot.tag != 0 && slot.list as usize >= items {
                return Err(Unusable::Damaged("a list behind the last item"));
            }
            used += usize::from(slot.tag != 0);
            index.buckets[at / Bucket::SLOTS].0[at % Bucket::SLOTS] = slot;
            at += 1;
            Ok(())
        })?;
        // A search ends at a bucket with an empty slot.
        if 2 * used > index.buckets.len() * Bucket::SLOTS || index.buckets.iter().all(Bucket::is_full) {
            return Err(Unusable::Damaged("too few empty slots"));
        }
        at = 0;
        self.read_all(index.gate.len(), |bytes| {
            index.gate[at] = u64::from_le_bytes(*bytes);
            at += 1;
            Ok(())
        })?;
        index.items.reserve_exact(items);
        let (mut list, mut lists) = (0, 0);
        self.read_all(items, |bytes: &[u8; ITEM]| {
            let item = item_of(bytes, patterns).ok_or(Unusable::Damaged("an item of no pattern"))?;
            index.items.push(item);
            list += 1;
            index.longest = index.longest.max(list);
            lists += usize::from(item.is_last);
            list = if item.is_last { 0 } else { list };
            Ok(())
        })?;
        // Each list is one slot's, from its first item to its last one.
        let is_list = |slot: Slot| {
            let before = (slot.list as usize).checked_sub(1);
            slot.tag == 0 || before.is_none_or(|before| index.items[before].is_last)
        };
        if list > 0 || lists != used || !index.slots().all(is_list) {
            return Err(Unusable::Damaged("lists that are not those of the slots"));
        }
        Ok(index)
    }
}

fn bytes_of(item: &Item) -> [u8; ITEM] {
    let mut bytes = [0; ITEM];
    bytes[..4].copy_from_slice(&item.pattern.to_le_bytes());
    bytes[4..8].copy_from_slice(&item.checked.to_le_bytes());
    bytes[8..11].copy_from_slice(&[item.offset, item.kind, item.is_last.into()]);
    bytes
}

/// An item, if it is one of a pattern.
fn item_of(bytes: &[u8; ITEM], patterns: &Patterns) -> Option<Item> {
    let &[p0, p1, p2, p3, t0, t1, t2, t3, offset, kind, is_last, 0] = bytes else { return None };
    let (pattern, checked) = (u32::from_le_bytes([p0, p1, p2, p3]), u32::from_le_bytes([t0, t1, t2, t3]));
    if pattern as usize >= patterns.len() || is_last > 1 {
        return None;
    }
    let Pattern { bytes: whole, .. } = patterns.get(pattern);
    let window = match Kind::of_number(kind)? {
        Kind::Whole(len) => len.into(),
        _ => 4,
    };
    (usize::from(offset) + window <= whole.len()).then(|| Item {
        pattern,
        bytes: patterns.begin(pattern),
        checked,
        offset,
        len: whole.len() as u8,
        kind,
        is_last: is_last == 1,
    })
}

impl Matcher {
    /// Writes what was compiled, for [`read_from`](Self::read_from).
    ///
    /// # Errors
    ///
    /// The writer's.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        let Self { patterns, sparse, dense, index, .. } = self;
        let mut to = Summed { to, sum: Hasher::new(), chunk: Vec::with_capacity(CHUNK) };
        to.write(&MAGIC)?;
        to.write(&digest_of(patterns))?;
        to.write(&(index.buckets.len() * Bucket::SLOTS).ilog2().to_le_bytes())?;
        for filter in [sparse, dense].into_iter().flatten() {
            to.write(&filter.words().len().ilog2().to_le_bytes())?;
            to.write_all(filter.words().iter().map(|word| word.to_le_bytes()))?;
        }
        let bytes = |slot: Slot| (u64::from(slot.list) << 32 | u64::from(slot.tag)).to_le_bytes();
        to.write_all(index.slots().map(bytes))?;
        to.write_all(index.gate.iter().map(|word| word.to_le_bytes()))?;
        to.write_all(index.items.iter().map(bytes_of))?;
        let sum = to.sum.clone().finalize();
        to.to.write_all(&sum.to_le_bytes())
    }

    /// Reads what was compiled of these patterns, for an instruction set. It takes a fraction of the time that [`Matcher::with`] takes, finds
    /// the same, and never needs more memory than that, whatever is read.
    ///
    /// # Errors
    ///
    /// What is read is not what [`write_to`](Self::write_to) writes of a matcher of the same patterns.
    pub fn read_from(patterns: Patterns, isa: Isa, from: &mut impl Read) -> Result<Self, Unusable> {
        let mut from = Summing { from, sum: Hasher::new(), chunk: Vec::new() };
        if from.read()? != MAGIC {
            return Err(Unusable::Foreign);
        }
        if from.read()? != digest_of(&patterns) {
            return Err(Unusable::OtherSet);
        }
        let shape = Shape::of(&patterns);
        let items = shape.sparse + shape.dense + shape.whole;
        let bits = u32::from_le_bytes(from.read()?);
        if !(Index::slot_bits(0)..=Index::slot_bits(items)).contains(&bits) {
            return Err(Unusable::Damaged("a number of slots that no such set has"));
        }
        let sparse = from.filter(shape.sparse)?;
        let dense = from.filter(shape.dense)?;
        let index = from.index(&patterns, bits, items)?;
        let sum = from.sum.clone().finalize();
        if u32::from_le_bytes(from.read()?) != sum {
            return Err(Unusable::Damaged("its checksum is another one"));
        }
        if from.from.read(&mut [0])? != 0 {
            return Err(Unusable::Damaged("bytes behind its end"));
        }
        // Classes are made of those that are looked for at every byte.
        let count = |is: fn(Kind) -> bool| {
            index.items.iter().filter(|item| Kind::of_number(item.kind).is_some_and(is)).count()
        };
        let windows = count(|kind| kind == Kind::Window);
        let whole = count(|kind| matches!(kind, Kind::Whole(_)));
        if (windows, whole) != (shape.dense, shape.whole) {
            return Err(Unusable::Damaged("items of other kinds than the set has"));
        }
        let (classes, lengths) = shape.classes(&patterns, isa);
        let dense_classes = shape.dense_classes(&patterns, &index, isa);
        Ok(Self { isa, patterns, fold: shape.fold, sparse, dense, dense_classes, classes, lengths, index })
    }
}
