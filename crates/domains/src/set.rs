//! Sets of names, and how names are looked up.

use packetloom_simd::{Isa, Kernel, Simd};

use crate::builder::{Action, AddError, Builder, Entry, Priority};
use crate::filter::Filter;
use crate::hash::Key;
use crate::memory::Arrays;
use crate::name::{Labels, MAX_LABEL, MAX_LABELS, MAX_NAME, in_label, split_last, without_root};
use crate::short::{MAX_TEXT, Short};
use crate::table::{Table, Totals};

/// The entry that decides about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Match {
    /// The entry's number.
    pub number: u32,
    /// Labels of the entry's name: 2 for `example.com`, 0 for the root.
    pub labels: u8,
    /// Whether the name is the entry's, not one below.
    pub exact: bool,
    /// What the entry does.
    pub action: Action,
}

/// Names that are looked up together, and how many times they are taken up.
const GROUP: usize = 8;
const STAGES: usize = 4;

/// An immutable set of entries; see the [crate](crate).
pub struct Domains {
    key: Key,
    arrays: Arrays,
    totals: Totals,
    isa: Isa,
}

impl std::fmt::Debug for Domains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domains").field("names", &self.len()).finish_non_exhaustive()
    }
}

impl Domains {
    pub(crate) fn new(key: Key, arrays: Arrays, totals: Totals) -> Self {
        Self { key, arrays, totals, isa: Isa::detect() }
    }

    #[inline]
    fn view(&self) -> View<'_> {
        let (filter, buckets, nodes) = self.arrays.get();
        View { key: &self.key, filter: Filter(filter), table: Table { buckets, nodes }, totals: &self.totals }
    }

    /// The set of these entries; of those that are equal but for their number, the first counts.
    ///
    /// # Errors
    ///
    /// [`AddError`] of the first entry that is not taken.
    pub fn build<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Result<Self, AddError> {
        let mut builder = Builder::new();
        entries.into_iter().try_for_each(|entry| builder.add(entry))?;
        Ok(builder.build())
    }

    /// Different names that entries have.
    pub fn len(&self) -> usize {
        self.totals.names
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory. From 1 MiB on, a set is in pages of 2 MiB, which the system's allocator knows nothing of.
    pub fn heap_bytes(&self) -> usize {
        self.arrays.bytes()
    }

    /// Names that are looked at, at most, for one name and each of its ancestors.
    pub fn max_probes(&self) -> usize {
        self.totals.max_bucket
    }

    /// The entry that decides about a name, in the text that `packetloom_names::Name` has: labels with dots between, with or without the dot
    /// at the end, in which `\.` and `\DDD` stand for bytes of a label. Case of ASCII does not count. A text of any length and form is
    /// looked up: what is no label has no entry, but may be below one. The text is taken for a name of DNS: a host of HTTP wants
    /// [`without_port`](crate::without_port).
    pub fn lookup(&self, name: &str) -> Option<Match> {
        self.isa.run(One { view: self.view(), text: name.as_bytes(), has_escapes: true })
    }

    /// The entry that decides about a name as it is on the wire (RFC 1035 section 3.1), not compressed: labels behind their lengths. It ends
    /// with the root or with the bytes. None, too, where that is no name.
    pub fn lookup_wire(&self, name: &[u8]) -> Option<Match> {
        let mut end = 0;
        let mut text = [0; MAX_NAME + 1];
        let mut has_dots = false;
        while let Some(&len @ 1..) = name.get(end) {
            let next = end + 1 + usize::from(len);
            if usize::from(len) > MAX_LABEL || next > text.len() {
                return None;
            }
            let label = name.get(end + 1..next)?;
            text[end] = b'.';
            for (to, &byte) in text[end + 1..next].iter_mut().zip(label) {
                has_dots |= byte == b'.';
                *to = in_label(byte);
            }
            end = next;
        }
        if end + 1 < name.len() {
            return None;
        }
        let text = text.get(1..end).unwrap_or_default();
        let view = self.view();
        if has_dots || text.len() > MAX_TEXT {
            return view.lookup_name(text);
        }
        self.isa.run(One { view, text, has_escapes: false })
    }

    /// [`Self::lookup`] of many names, which is faster: the cache misses of several are waited for together.
    ///
    /// # Panics
    ///
    /// If there are not as many places for matches as names.
    pub fn lookup_batch(&self, names: &[&str], matches: &mut [Option<Match>]) {
        assert_eq!(names.len(), matches.len(), "names, and places for matches");
        matches.fill(None);
        let view = &self.view();
        let mut groups = [const { Group::EMPTY }; STAGES];
        let count = names.len().div_ceil(GROUP);
        let range = |group: usize| group * GROUP..names.len().min((group + 1) * GROUP);
        // In each round, another stage of another group: what a stage asks for is there when the group comes again. Each stage is compiled by
        // itself, so that it has the registers for itself.
        for round in 0..count + STAGES - 1 {
            let at = |stage: usize| round.checked_sub(stage).filter(|&group| group < count);
            if let Some(group) = at(0) {
                self.isa.run(Parse { view, names: &names[range(group)], group: &mut groups[group % STAGES] });
            }
            if let Some(group) = at(1) {
                self.isa.run(Filtering {
                    view,
                    names: range(group).len(),
                    group: &mut groups[group % STAGES],
                });
            }
            if let Some(group) = at(2) {
                self.isa.run(Probing { view, group: &groups[group % STAGES] });
            }
            if let Some(group) = at(3) {
                let (names, matches) = (&names[range(group)], &mut matches[range(group)]);
                self.isa.run(Deciding { view, names, group: &groups[group % STAGES], matches });
            }
        }
    }
}

/// A name that is looked up by itself.
struct One<'a> {
    view: View<'a>,
    text: &'a [u8],
    /// Whether it is in presentation form, not in that of entries.
    has_escapes: bool,
}

impl Kernel for One<'_> {
    type Output = Option<Match>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<Match> {
        let Self { view, text, has_escapes } = self;
        let mut short = Short::EMPTY;
        short.set(simd, view.key, text, has_escapes);
        match (short.is_long(), has_escapes) {
            (false, _) => view.decide_short(simd, &short, view.depth(simd, &short)),
            (true, true) => view.lookup_long(text),
            (true, false) => view.lookup_name(text),
        }
    }
}

/// Names that are looked up together.
struct Group {
    shorts: [Short; GROUP],
    /// Which of them something is looked up for, and how many.
    probes: [u8; GROUP],
    count: usize,
}

impl Group {
    const EMPTY: Self = Self { shorts: [Short::EMPTY; GROUP], probes: [0; GROUP], count: 0 };

    /// The names that something is looked up for.
    #[inline(always)]
    fn probed(&self) -> impl Iterator<Item = &Short> {
        self.probes[..self.count.min(GROUP)].iter().map(|&at| &self.shorts[usize::from(at) % GROUP])
    }
}

/// The first stage: hashes of names.
struct Parse<'a> {
    view: &'a View<'a>,
    names: &'a [&'a str],
    group: &'a mut Group,
}

impl Kernel for Parse<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { view, names, group } = self;
        let (key, filter) = (view.key, view.filter);
        for (name, short) in names.iter().zip(&mut group.shorts) {
            short.set(simd, key, name.as_bytes(), true);
            filter.prefetch(short.hash_of_two());
        }
    }
}

/// The second: how many labels of each are looked up.
struct Filtering<'a> {
    view: &'a View<'a>,
    names: usize,
    group: &'a mut Group,
}

impl Kernel for Filtering<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { view, names, group } = self;
        let mut count = 0;
        for (at, short) in group.shorts[..names].iter_mut().enumerate() {
            let deepest = view.totals.deepest(view.depth(simd, short));
            short.depth = deepest.unwrap_or(0) as u8;
            view.table.prefetch_bucket(short.hash());
            // Without a branch that nobody can foresee.
            group.probes[count % GROUP] = at as u8;
            count += usize::from(deepest.is_some() | short.is_long());
        }
        group.count = count;
    }
}

/// The third: where their names are.
struct Probing<'a> {
    view: &'a View<'a>,
    group: &'a Group,
}

impl Kernel for Probing<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let table = self.view.table;
        self.group.probed().for_each(|short| table.prefetch_nodes(short.hash()));
    }
}

/// The last: what the entries say.
struct Deciding<'a> {
    view: &'a View<'a>,
    names: &'a [&'a str],
    group: &'a Group,
    matches: &'a mut [Option<Match>],
}

impl Kernel for Deciding<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { view, names, group, matches } = self;
        for (&at, short) in group.probes[..group.count.min(GROUP)].iter().zip(group.probed()) {
            let at = usize::from(at);
            matches[at] = if short.is_long() {
                view.lookup_long(names[at].as_bytes())
            } else {
                view.decide_short(simd, short, short.depth.into())
            };
        }
    }
}

/// A set's arrays.
struct View<'a> {
    key: &'a Key,
    filter: Filter<'a>,
    table: Table<'a>,
    totals: &'a Totals,
}

impl View<'_> {
    /// Names from the right that the filter lets through, and the one before them, of one label.
    #[inline(always)]
    fn depth<S: Simd>(&self, simd: S, short: &Short) -> usize {
        let passes = self.filter.has_each(simd, short.hash_of_two(), short.hashes()) | 1;
        // Without a branch that nobody can foresee.
        (passes & !(!0 << short.labels())).trailing_ones() as usize
    }

    /// What the entries say of a name with so many labels from the right.
    #[inline(always)]
    fn decide_short<S: Simd>(&self, simd: S, short: &Short, labels: usize) -> Option<Match> {
        self.decide(&short.passing(labels), |text| short.ends_with(simd, text))
    }

    /// A name in presentation form, of any length.
    fn lookup_long(&self, text: &[u8]) -> Option<Match> {
        let is_escaped = memchr::memchr(b'\\', text).is_some();
        let mut labels = Labels::new();
        let text = without_root(text);
        let mut rest = if text.is_empty() { None } else { Some(text) };
        // Only what entries may be about is needed.
        while let Some(text) = rest {
            let (before, label) = split_last(text);
            if labels.push(label, is_escaped).is_none() {
                return self.lookup_suffixes(labels.name(), false);
            }
            rest = before;
        }
        self.lookup_name(labels.name())
    }

    /// A name in the form of entries.
    fn lookup_name(&self, name: &[u8]) -> Option<Match> {
        self.lookup_suffixes(name, true)
    }

    /// The same for what may only be the end of a name.
    fn lookup_suffixes(&self, name: &[u8], is_all: bool) -> Option<Match> {
        let (mut lens, mut hashes) = ([0; MAX_LABELS], [0; MAX_LABELS]);
        let mut suffixes = self.key.suffixes(name);
        let (mut depth, mut is_whole) = (0, name.is_empty());
        let dots = memchr::memrchr_iter(b'.', name).map(|dot| name.len() - dot - 1);
        for len in dots.chain((!name.is_empty()).then_some(name.len())) {
            hashes[depth] = suffixes.next(len);
            if depth > 0 && !self.filter.has(hashes[1], hashes[depth]) {
                break;
            }
            lens[depth] = len as u8;
            depth += 1;
            is_whole = len == name.len();
        }
        let is_whole = is_whole && is_all;
        let passing = Passing { name, lens: &lens, hashes: &hashes[..depth], is_whole };
        self.decide(&passing, |text| name.ends_with(text))
    }

    /// What the entries say. `ends_with` tells what the name ends with.
    #[inline(always)]
    fn decide(&self, name: &Passing<'_>, ends_with: impl Fn(&[u8]) -> bool) -> Option<Match> {
        let all = name.hashes.len();
        let mut best: Option<Match> = None;
        let mut priority = Priority::Normal;
        // The longest first.
        for labels in (0..=all).rev() {
            if !self.totals.has(priority, labels) {
                continue;
            }
            let exact = name.is_whole & (labels == all);
            let verdict = match labels.checked_sub(1) {
                None if exact => self.totals.root.exact,
                None => self.totals.root.below,
                Some(at) => {
                    let bytes = usize::from(name.lens[at]);
                    let hash = match at {
                        0 => self.key.suffixes(name.name).next(bytes),
                        _ => name.hashes[at],
                    };
                    self.table.find(hash, bytes, exact, &ends_with)
                }
            };
            let Some(verdict) = verdict.filter(|verdict| verdict.priority >= priority) else { continue };
            best =
                Some(Match { number: verdict.number, labels: labels as u8, exact, action: verdict.action });
            match Priority::ALL.get(verdict.priority as usize + 1) {
                Some(&higher) if self.totals.has_any(higher) => priority = higher,
                _ => break,
            }
        }
        best
    }
}

/// A name, as far as the filter lets it through.
pub(crate) struct Passing<'a> {
    /// Ends with the name.
    pub(crate) name: &'a [u8],
    /// Bytes of each name that ends the name, from the right.
    pub(crate) lens: &'a [u8],
    /// Their hashes: those that have an entry or are above one, and perhaps others.
    pub(crate) hashes: &'a [u64],
    /// Whether the last of them is that of the whole name.
    pub(crate) is_whole: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_finds_the_same() {
        // Names of all lengths and depths, some of them below others.
        let label = |seed: usize, len: usize| -> String {
            (0..len).map(|at| char::from(b'a' + (seed * 7 + at * at) as u8 % 26)).collect()
        };
        let name = |seed: usize| -> String {
            let labels: Vec<_> =
                (0..1 + seed % 9).map(|at| label(seed / 9 % 40 + at, 1 + (seed * 5 + at) % 17)).collect();
            labels.join(".")
        };
        let names: Vec<_> = (0..4_000).map(name).collect();
        let entries = names.iter().step_by(3).zip(0..).map(|(name, number)| Entry::block(name, number));
        let mut domains = Domains::build(entries).expect("names");
        let asked: Vec<_> =
            names.iter().flat_map(|name| [name.clone(), format!("x.{}.", name.to_uppercase())]).collect();
        let asked: Vec<_> = asked.iter().map(String::as_str).collect();
        let mut found = Vec::new();
        for isa in Isa::all_available() {
            domains.isa = isa;
            let mut matches = vec![None; asked.len()];
            domains.lookup_batch(&asked, &mut matches);
            let single: Vec<_> = asked.iter().map(|name| domains.lookup(name)).collect();
            assert_eq!(matches, single, "{isa:?}");
            found.push(matches);
        }
        assert!(found[0].iter().flatten().count() > 1_000);
        assert!(found.iter().all(|other| *other == found[0]));
    }
}
