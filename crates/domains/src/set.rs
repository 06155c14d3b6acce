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
const GROUP: usize = 16;
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
        self.view().lookup(name.as_bytes())
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
        let mut short = Short::EMPTY;
        short.set(view.key, text, false);
        if short.is_long() { view.lookup_name(text) } else { view.decide(&short.passing(view.depth(&short))) }
    }

    /// [`Self::lookup`] of many names, which is faster: the cache misses of several are waited for together.
    ///
    /// # Panics
    ///
    /// If there are not as many places for matches as names.
    pub fn lookup_batch(&self, names: &[&str], matches: &mut [Option<Match>]) {
        assert_eq!(names.len(), matches.len(), "names, and places for matches");
        self.isa.run(Batch { view: self.view(), names, matches });
    }
}

/// See [`Domains::lookup_batch`].
struct Batch<'a> {
    view: View<'a>,
    names: &'a [&'a str],
    matches: &'a mut [Option<Match>],
}

impl Kernel for Batch<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { view, names, matches } = self;
        matches.fill(None);
        let mut groups = [const { Group::EMPTY }; STAGES];
        let count = names.len().div_ceil(GROUP);
        let range = |group: usize| group * GROUP..names.len().min((group + 1) * GROUP);
        // In each round, another stage of another group: what a stage asks for is there when the group comes again.
        for round in 0..count + STAGES - 1 {
            let at = |stage: usize| round.checked_sub(stage).filter(|&group| group < count);
            if let Some(group) = at(0) {
                groups[group % STAGES].parse(&view, &names[range(group)]);
            }
            if let Some(group) = at(1) {
                groups[group % STAGES].filter(&view, range(group).len());
            }
            if let Some(group) = at(2) {
                groups[group % STAGES].probed().for_each(|short| view.table.prefetch_nodes(short.hash()));
            }
            if let Some(group) = at(3) {
                let range = range(group);
                groups[group % STAGES].decide(&view, &names[range.clone()], &mut matches[range]);
            }
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

    #[inline(always)]
    fn parse(&mut self, view: &View<'_>, names: &[&str]) {
        for (name, short) in names.iter().zip(&mut self.shorts) {
            short.set(view.key, name.as_bytes(), true);
            view.filter.prefetch(short.hash_of_two());
        }
    }

    #[inline(always)]
    fn filter(&mut self, view: &View<'_>, names: usize) {
        self.count = 0;
        for (at, short) in self.shorts[..names].iter_mut().enumerate() {
            let deepest = view.totals.deepest(view.depth(short));
            short.depth = deepest.unwrap_or(0) as u8;
            view.table.prefetch_bucket(short.hash());
            // Without a branch that nobody can foresee.
            self.probes[self.count % GROUP] = at as u8;
            self.count += usize::from(deepest.is_some() | short.is_long());
        }
    }

    /// The names that something is looked up for.
    #[inline(always)]
    fn probed(&self) -> impl Iterator<Item = &Short> {
        self.probes[..self.count].iter().map(|&at| &self.shorts[usize::from(at) % GROUP])
    }

    #[inline(always)]
    fn decide(&self, view: &View<'_>, names: &[&str], matches: &mut [Option<Match>]) {
        for (&at, short) in self.probes[..self.count].iter().zip(self.probed()) {
            let at = usize::from(at);
            matches[at] = if short.is_long() {
                view.lookup_long(names[at].as_bytes())
            } else {
                view.decide(&short.passing(short.depth.into()))
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
    fn depth(&self, short: &Short) -> usize {
        let hashes = short.hashes();
        let of = short.hash_of_two();
        // The usual ones without branches that nobody can foresee.
        let usual = short.usual_hashes();
        let passes =
            (1..usual.len()).fold(1, |bits, at| bits | u32::from(self.filter.has(of, usual[at])) << at);
        let mut depth = hashes.len().min(passes.trailing_ones() as usize);
        if hashes.len() > usual.len() && depth == usual.len() {
            depth += hashes[depth..].iter().take_while(|&&hash| self.filter.has(of, hash)).count();
        }
        depth
    }

    fn lookup(&self, text: &[u8]) -> Option<Match> {
        let mut short = Short::EMPTY;
        short.set(self.key, text, true);
        if short.is_long() {
            return self.lookup_long(text);
        }
        self.decide(&short.passing(self.depth(&short)))
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
        self.decide(&Passing { name, lens: &lens, hashes: &hashes[..depth], is_whole })
    }

    /// What the entries say.
    #[inline(always)]
    fn decide(&self, name: &Passing<'_>) -> Option<Match> {
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
                    let own = &name.name[name.name.len() - usize::from(name.lens[at])..];
                    let hash = if at == 0 { self.key.suffixes(own).next(own.len()) } else { name.hashes[at] };
                    self.table.find(hash, own, exact)
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
