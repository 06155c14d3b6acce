//! Entries, and how a set is made of them.

use crate::filter;
use crate::hash::{Key, scale};
use crate::memory::Arrays;
use crate::name::{NameError, push_name};
use crate::set::Domains;
use crate::table::{Making, Node, Verdict, bucket_order};

/// What an entry does with the names that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// They are blocked.
    Block,
    /// They are allowed, though another entry may block them.
    Allow,
}

/// Which names an entry matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// Its name alone.
    Name,
    /// All names below its name: `*.example.com`.
    Subdomains,
    /// Its name and all below.
    All,
}

impl Reach {
    const fn has_name(self) -> bool {
        !matches!(self, Self::Subdomains)
    }

    const fn has_subdomains(self) -> bool {
        !matches!(self, Self::Name)
    }
}

/// What an entry yields to: one of a higher priority decides, however short its name is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Entries that block, as a rule.
    #[default]
    Normal,
    /// Exceptions of AdBlock lists (`@@`).
    Exception,
    /// AdBlock's `$important`.
    Important,
    /// AdBlock's `@@` with `$important`.
    ImportantException,
}

impl Priority {
    pub(crate) const ALL: [Self; 4] =
        [Self::Normal, Self::Exception, Self::Important, Self::ImportantException];
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry<'a> {
    /// The name in presentation form (RFC 1035 section 5.1), with or without the dot at its end; `.` is the root, below which all names
    /// are. A name in Unicode stands for the one that UTS 46 makes of it: `bücher.example` for `xn--bcher-kva.example`.
    pub name: &'a str,
    /// Which names it matches.
    pub reach: Reach,
    /// What it does with them.
    pub action: Action,
    /// What it yields to.
    pub priority: Priority,
    /// A number of the caller's, such as that of the list or of the line.
    pub number: u32,
}

impl<'a> Entry<'a> {
    /// An entry that blocks a name and all below.
    pub const fn block(name: &'a str, number: u32) -> Self {
        Self { name, reach: Reach::All, action: Action::Block, priority: Priority::Normal, number }
    }

    /// An entry that allows a name and all below.
    pub const fn allow(name: &'a str, number: u32) -> Self {
        Self { action: Action::Allow, ..Self::block(name, number) }
    }
}

/// Why an entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Its name is none.
    #[error("{0}")]
    Name(#[from] NameError),
    /// The names have more bytes than a set can have.
    #[error("more than 2 GiB of names")]
    Full,
}

/// Bytes of an entry beside its name.
const HEAD: usize = 6;
/// Bytes of entries: offsets in a table have 32 bits, and a name has a byte more there.
const MAX_BYTES: usize = 1 << 31;
/// Names of a bucket; where one has more, another key is tried. With a random key, one set of a million names in a billion has such a bucket.
const MAX_BUCKET: usize = 16;
/// Keys that are tried.
const KEYS: usize = 8;

/// Collects the entries of a set.
pub struct Builder {
    key: Key,
    /// Each: what it is about in a byte, its number, and the name behind its length.
    entries: Vec<u8>,
    count: usize,
    labels: usize,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("entries", &self.count).finish_non_exhaustive()
    }
}

impl Builder {
    /// Without entries. Names are hashed with a random key: who writes a list cannot choose names that fall together.
    pub fn new() -> Self {
        Self::with_key(Key::random())
    }

    /// Without entries; the seed decides the key of the hash function. Lists of others want a seed that they do not know.
    pub fn with_seed(seed: u64) -> Self {
        Self::with_key(Key::from_seed(seed))
    }

    fn with_key(key: Key) -> Self {
        Self { key, entries: Vec::new(), count: 0, labels: 0 }
    }

    /// Entries so far.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// [`AddError`]; the entry is left out then.
    pub fn add(&mut self, entry: Entry<'_>) -> Result<(), AddError> {
        self.add_bytes(entry.name.as_bytes(), entry)
    }

    /// The same with a name of any bytes instead of the entry's.
    pub(crate) fn add_bytes(&mut self, name: &[u8], entry: Entry<'_>) -> Result<(), AddError> {
        let at = self.entries.len();
        // What a name can take, and more.
        if at > MAX_BYTES - 512 {
            return Err(AddError::Full);
        }
        let kind = entry.reach as u8 | (entry.action as u8) << 2 | (entry.priority as u8) << 3;
        self.entries.push(kind);
        self.entries.extend(entry.number.to_le_bytes());
        self.entries.push(0);
        match push_name(&mut self.entries, name) {
            Ok(labels) => {
                self.entries[at + HEAD - 1] = (self.entries.len() - at - HEAD) as u8;
                self.count += 1;
                self.labels += labels;
                Ok(())
            }
            Err(error) => {
                self.entries.truncate(at);
                Err(error.into())
            }
        }
    }

    /// The set of the entries.
    pub fn build(self) -> Domains {
        let mut key = self.key.clone();
        let mut parts = self.with(&key);
        for _ in 1..KEYS {
            if parts.table.totals.max_bucket <= MAX_BUCKET {
                break;
            }
            key = key.next();
            parts = self.with(&key);
        }
        // No longer needed beside their copy.
        drop(self.entries);
        let Parts { filter, table } = parts;
        Domains::new(key, Arrays::new(&filter, &table.buckets, &table.nodes), table.totals)
    }

    fn with(&self, key: &Key) -> Parts {
        // Hashes, turned so that they come in the order of buckets, and where the entries are.
        let mut order: Vec<(u64, u32)> = Vec::with_capacity(self.count);
        let mut distinct = Distinct::new(self.labels);
        let mut at = 0;
        for _ in 0..self.count {
            let name = self.name(at);
            let (hash, _) = hash(key, &self.entries[name.clone()], |_, hash| distinct.add(hash));
            order.push((bucket_order(hash), at as u32));
            at = name.end;
        }
        order.sort_unstable();
        // Names with the same hash are apart; nearly always there are none.
        for same in order.chunk_by_mut(|a, b| a.0 == b.0) {
            if same.len() > 1 {
                same.sort_unstable_by_key(|&(_, at)| (&self.entries[self.name(at as usize)], at));
            }
        }
        let is_same = |a: &(u64, u32), b: &(u64, u32)| {
            a.0 == b.0 && self.entries[self.name(a.1 as usize)] == self.entries[self.name(b.1 as usize)]
        };

        let mut filter = filter::empty(distinct.estimate());
        let names = order.chunk_by(is_same).count();
        let mut table = Making::new(names, self.entries.len() + names);
        for same in order.chunk_by(is_same) {
            let name = &self.entries[self.name(same[0].1 as usize)];
            let (hash, labels) = hash(key, name, |of, hash| filter::add(&mut filter, of, hash));
            let mut node = Merging::default();
            same.iter().for_each(|&(_, at)| node.add(&self.entries[at as usize..]));
            table.push(hash, name, labels, node.finish());
        }
        table.finish();
        Parts { filter, table }
    }

    /// Where the name of the entry at `at` is, behind which the next entry is.
    fn name(&self, at: usize) -> std::ops::Range<usize> {
        let begin = at + HEAD;
        begin..begin + usize::from(self.entries[begin - 1])
    }
}

/// Tells the hashes of the names that a name ends with, from two labels on and each with that of two labels; and gives back the name's
/// own, and how many labels it has.
fn hash(key: &Key, name: &[u8], mut tell: impl FnMut(u64, u64)) -> (u64, usize) {
    let mut suffixes = key.suffixes(name);
    let (mut hash, mut of_two, mut labels) = (0, 0, 0);
    let dots = memchr::memrchr_iter(b'.', name).map(|dot| name.len() - dot - 1);
    for len in dots.chain((!name.is_empty()).then_some(name.len())) {
        hash = suffixes.next(len);
        labels += 1;
        if labels == 2 {
            of_two = hash;
        }
        if labels >= 2 {
            tell(of_two, hash);
        }
    }
    (hash, labels)
}

/// A set, while it is made.
struct Parts {
    filter: Vec<u64>,
    table: Making,
}

/// How many different hashes there are, about (linear counting).
struct Distinct {
    bits: Vec<u64>,
    set: usize,
}

impl Distinct {
    fn new(at_most: usize) -> Self {
        // Four bits for each: some of the hashes fall together, not many.
        Self { bits: vec![0; at_most / 16 + 1], set: 0 }
    }

    fn add(&mut self, hash: u64) {
        let place = scale((hash >> 32) as u32, self.bits.len());
        let word = &mut self.bits[place];
        let bit = 1 << (hash & 63);
        self.set += usize::from(*word & bit == 0);
        *word |= bit;
    }

    fn estimate(&self) -> usize {
        let all = self.bits.len() as f64 * 64.0;
        let free = (all - self.set as f64).max(1.0);
        (all * (all / free).ln()).ceil() as usize
    }
}

/// What entries of the same name come to.
#[derive(Default)]
struct Merging {
    exact: Option<Candidate>,
    below: Option<Candidate>,
}

/// Priority, whether it is exact, whether it allows; and a number.
type Candidate = ((u8, bool, bool), u32);

impl Merging {
    /// Takes the entry that `entry` begins with. Of equal ones, the first counts.
    fn add(&mut self, entry: &[u8]) {
        let [kind, a, b, c, d, ..] = *entry else { return };
        let number = u32::from_le_bytes([a, b, c, d]);
        let (allows, priority) = (kind >> 2 & 1 == 1, kind >> 3);
        let reach = [Reach::Name, Reach::Subdomains, Reach::All][usize::from(kind & 3)];
        let better = |best: &mut Option<Candidate>, rank| {
            if best.is_none_or(|(other, _)| rank > other) {
                *best = Some((rank, number));
            }
        };
        if reach.has_name() {
            better(&mut self.exact, (priority, !reach.has_subdomains(), allows));
        }
        if reach.has_subdomains() {
            better(&mut self.below, (priority, false, allows));
        }
    }

    fn finish(self) -> Node {
        let verdict = |((priority, _, allows), number): Candidate| Verdict {
            number,
            action: if allows { Action::Allow } else { Action::Block },
            priority: Priority::ALL[usize::from(priority)],
        };
        Node { exact: self.exact.map(verdict), below: self.below.map(verdict) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_chosen_for_one_bucket_are_spread_by_another_key() {
        // Whoever knows the seed finds names that fall together.
        let key = Key::from_seed(7);
        let names = (0..200_000).map(|number| format!("{number}.example"));
        let chosen: Vec<String> =
            names.filter(|name| hash(&key, name.as_bytes(), |_, _| {}).0 as u32 >> 24 == 0).collect();
        assert!(chosen.len() > 500, "{}", chosen.len());
        let mut builder = Builder::with_seed(7);
        for name in &chosen {
            builder.add(Entry::block(name, 0)).expect("a name");
        }
        assert!(builder.with(&key).table.totals.max_bucket > 100);
        let domains = builder.build();
        assert!(domains.max_probes() <= MAX_BUCKET);
        assert!(chosen.iter().all(|name| domains.lookup(name).is_some()));
    }
}
