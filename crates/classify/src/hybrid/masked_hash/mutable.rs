//! A table whose rules change. What is needed to change it is kept apart from the table itself, of which there may be several
//! copies: a change yields [`Write`]s, and the same ones are made to each copy.

use super::build::{MAX_COPIES, choose};
use super::{Block, LINE, LINE_BITS, MAX_LINES, Mask, Table, cell_word};
use crate::huge::Slab;
use crate::hybrid::block::LOAD;
use crate::hybrid::entry::Entry;
use crate::hybrid::family::{Family, RuleLine};
use crate::hybrid::state::States;
use packetloom_simd::Simd;

/// Rules under the keys of one cell at most, those too that earlier ones cover and that have no line: it takes a comparison for
/// each pair to find them.
const MAX_CELL: usize = 64;

/// Something to write into a table.
#[derive(Clone, Copy, Debug)]
pub(in crate::hybrid) enum Write<K: Family> {
    Line {
        line: u32,
        content: K::Line,
    },
    Cell {
        cell: u32,
        word: u32,
    },
    /// The most lines of a cell after the first.
    More(u32),
}

/// Rules by slot, with their ranks: what the order of rules in a cell is decided by.
#[derive(Clone, Copy)]
pub(in crate::hybrid) struct Slots<'a> {
    pub(in crate::hybrid) entries: &'a [Option<Entry>],
    pub(in crate::hybrid) ranks: &'a [u32],
}

/// What must be known to change a table.
#[derive(Debug)]
pub(in crate::hybrid) struct Keeper {
    mask: Mask,
    protocols: Vec<u16>,
    states_mask: [u32; 10],
    shift: u32,
    line_bits: u32,
    cells: Vec<Cell>,
    lines: Lines,
    /// Cells by their number of lines.
    by_lines: [usize; MAX_LINES + 1],
    /// Places that rules have in cells.
    copies: usize,
    more: u32,
}

/// The rules under the keys of a cell.
#[derive(Clone, Debug, Default)]
struct Cell {
    /// Slot and hash, in the order of the rules; a slot under several hashes stands here several times.
    rules: Vec<(u32, u32)>,
    first: u32,
    lines: u32,
}

impl Cell {
    /// The rules that need a place in a line: no earlier one covers them.
    fn kept(&self, entries: &[Option<Entry>]) -> Vec<Entry> {
        let mut kept: Vec<Entry> = Vec::with_capacity(self.rules.len());
        for entry in self.rules.iter().filter_map(|&(slot, _)| entries[slot as usize]) {
            if !kept.iter().any(|earlier| earlier.covers(&entry)) {
                kept.push(entry);
            }
        }
        kept
    }
}

/// Which lines are free: runs of up to [`MAX_LINES`], by their length, and all from `unused` on.
#[derive(Debug)]
struct Lines {
    free: [Vec<u32>; MAX_LINES + 1],
    unused: u32,
    total: u32,
}

impl Lines {
    /// The first of `count` lines.
    fn take(&mut self, count: usize) -> Option<u32> {
        if let Some(first) = self.free[count].pop() {
            return Some(first);
        }
        if self.total - self.unused >= count as u32 {
            self.unused += count as u32;
            return Some(self.unused - count as u32);
        }
        // A part of a longer run.
        let longer = (count + 1..=MAX_LINES).find(|&longer| !self.free[longer].is_empty())?;
        let first = self.free[longer].pop()?;
        self.free[longer - count].push(first + count as u32);
        Some(first)
    }

    fn give_back(&mut self, first: u32, count: usize) {
        self.free[count].push(first);
    }

    /// Whether there are so many runs of the longest kind.
    fn has(&self, runs: usize) -> bool {
        self.free[MAX_LINES].len() + (self.total - self.unused) as usize / MAX_LINES >= runs
    }
}

impl Keeper {
    /// Of no rules yet, but made for these, of which it is to take one in `least`.
    pub(in crate::hybrid) fn new<K: Family>(rules: &[Entry], states: &States, least: usize) -> Option<Self> {
        let protocols: Vec<u16> = states.protocol_numbers().collect();
        let mask = choose::<K>(rules, states, &protocols, least)?;
        let copies = rules.iter().map(|rule| mask.copies(rule, &protocols, states));
        let copies = copies.filter(|&copies| copies <= MAX_COPIES).sum::<u64>() as usize;
        let cells = (copies * 2).next_power_of_two().clamp(1 << 8, 1 << 28);
        // Half as many again as if every rule had a line of its own.
        let total = (copies + copies / 2 + (1 << 10)).min(1 << LINE_BITS) as u32;
        Some(Self {
            states_mask: mask.words::<K>(states),
            mask,
            protocols,
            shift: 32 - cells.trailing_zeros(),
            line_bits: (u32::BITS - total.leading_zeros()).min(LINE_BITS),
            cells: vec![Cell::default(); cells],
            lines: Lines { free: Default::default(), unused: 1, total },
            by_lines: [0; MAX_LINES + 1],
            copies: 0,
            more: 0,
        })
    }

    /// The table, without rules.
    pub(in crate::hybrid) fn empty_table<K: Family>(&self) -> Table<K> {
        let mut lines = Slab::open(self.lines.total as usize);
        lines.set(0, K::Line::new(&[]));
        Table {
            masks: self.states_mask,
            shift: self.shift,
            line_bits: self.line_bits,
            more: 0,
            cells: Slab::open(self.cells.len()),
            lines,
        }
    }

    /// The hashes under which a rule stands, each once, in order; `None` where there are too many.
    fn hashes<K: Family>(&self, rule: &Entry, states: &States) -> Option<Vec<u32>> {
        if self.mask.copies(rule, &self.protocols, states) > MAX_COPIES {
            return None;
        }
        let mut hashes = Vec::with_capacity(4);
        self.mask.hashes::<K>(rule, &self.protocols, states, |hash| hashes.push(hash));
        hashes.sort_unstable();
        hashes.dedup();
        Some(hashes)
    }

    /// Takes up a rule; `false`, and nothing is changed, where there is no room.
    pub(in crate::hybrid) fn insert<K: Family>(
        &mut self,
        slot: u32,
        Slots { entries, ranks }: Slots<'_>,
        states: &States,
        mut write: impl FnMut(Write<K>),
    ) -> bool {
        let Some(rule) = &entries[slot as usize] else { return false };
        let Some(hashes) = self.hashes::<K>(rule, states) else { return false };
        if !self.lines.has(hashes.len()) {
            return false;
        }
        let shift = self.shift;
        let before = |&(other, _): &(u32, u32)| ranks[other as usize] < ranks[slot as usize];
        let mut fits = true;
        let mut done = 0;
        // Hashes are in order, so those of one cell stand together.
        for hashes in hashes.chunk_by(|a, b| a >> shift == b >> shift) {
            let at = (hashes[0] >> shift) as usize;
            let cell = &mut self.cells[at];
            let place = cell.rules.partition_point(before);
            cell.rules.splice(place..place, hashes.iter().map(|&hash| (slot, hash)));
            done += hashes.len();
            if cell.rules.len() > MAX_CELL || cell.kept(entries).len() > MAX_LINES * K::Line::RULES {
                fits = false;
                break;
            }
        }
        for hashes in hashes[..done].chunk_by(|a, b| a >> shift == b >> shift) {
            let at = (hashes[0] >> shift) as usize;
            if fits {
                self.write(at, entries, &mut write);
            } else {
                self.cells[at].rules.retain(|&(other, _)| other != slot);
            }
        }
        self.copies += if fits { hashes.len() } else { 0 };
        fits
    }

    /// Lets go of a rule. Those that it covered may need more room than there is: these are named in `evicted`, and must be
    /// removed as well.
    pub(in crate::hybrid) fn remove<K: Family>(
        &mut self,
        slot: u32,
        entries: &[Option<Entry>],
        states: &States,
        evicted: &mut Vec<u32>,
        mut write: impl FnMut(Write<K>),
    ) {
        let hashes = entries[slot as usize].as_ref().and_then(|rule| self.hashes::<K>(rule, states));
        let (hashes, shift) = (hashes.unwrap_or_default(), self.shift);
        self.copies -= hashes.len();
        for hashes in hashes.chunk_by(|a, b| a >> shift == b >> shift) {
            let at = (hashes[0] >> shift) as usize;
            self.cells[at].rules.retain(|&(other, _)| other != slot);
            let excess = self.write(at, entries, &mut write);
            evicted.extend(excess.iter().map(|rule| rule.position));
        }
    }

    /// Writes the lines of a cell; returns the rules for which there is no room.
    fn write<K: Family>(
        &mut self,
        at: usize,
        entries: &[Option<Entry>],
        write: &mut impl FnMut(Write<K>),
    ) -> Vec<Entry> {
        let cell = &mut self.cells[at];
        let mut kept = cell.kept(entries);
        if cell.lines > 0 {
            self.lines.give_back(cell.first, cell.lines as usize);
            self.by_lines[cell.lines as usize] -= 1;
        }
        let mut lines = kept.len().div_ceil(K::Line::RULES).min(MAX_LINES);
        let mut first = 0;
        // Before a cell grows, it is made sure that there are lines; a cell that grows as a covering rule goes has no such luck.
        while lines > 0 {
            if let Some(taken) = self.lines.take(lines) {
                first = taken;
                break;
            }
            lines -= 1;
        }
        let excess = kept.split_off(kept.len().min(lines * K::Line::RULES));
        (cell.first, cell.lines) = (first, lines as u32);
        let mut word = 0;
        if lines > 0 {
            self.by_lines[lines] += 1;
            for (line, rules) in (first..).zip(kept.chunks(K::Line::RULES)) {
                write(Write::Line { line, content: K::Line::new(rules) });
            }
            let hash = cell.rules[0].1;
            let one_key = cell.rules.iter().all(|&(_, other)| other == hash);
            word = cell_word(hash, one_key, first, lines as u32, self.line_bits);
        }
        write(Write::Cell { cell: at as u32, word });
        let most = (1..=MAX_LINES).rev().find(|&lines| self.by_lines[lines] > 0).unwrap_or(1);
        if self.more != most as u32 - 1 {
            self.more = most as u32 - 1;
            write(Write::More(self.more));
        }
        excess
    }

    /// Lines that are in use.
    pub(in crate::hybrid) fn lines_used(&self) -> usize {
        self.by_lines.iter().enumerate().map(|(lines, cells)| lines * cells).sum()
    }

    /// Places that rules have in cells.
    pub(in crate::hybrid) fn copies(&self) -> usize {
        self.copies
    }

    /// Bytes held.
    pub(in crate::hybrid) fn memory(&self) -> usize {
        let rules: usize = self.cells.iter().map(|cell| cell.rules.capacity()).sum();
        let free: usize = self.lines.free.iter().map(Vec::capacity).sum();
        size_of_val(&self.cells[..]) + rules * size_of::<(u32, u32)>() + free * size_of::<u32>()
    }
}

impl<K: Family> Table<K> {
    pub(in crate::hybrid) fn write(&mut self, write: &Write<K>) {
        match *write {
            Write::Line { line, content } => self.lines.set(line as usize, content),
            Write::Cell { cell, word } => self.cells.set(cell as usize, word),
            Write::More(more) => self.more = more,
        }
    }

    /// As [`Table::compare`], where lines hold slots: the best is the one of least rank, which stands above the slot.
    #[inline(always)]
    pub(in crate::hybrid) fn compare_ranked<S: Simd>(
        &self,
        simd: S,
        list: &[u32],
        block: &Block,
        keys: &[K],
        ranks: &[u32],
        best: &mut [u64; LOAD],
    ) {
        let lines = &self.lines[..];
        let keys = &keys[..keys.len().min(LOAD)];
        // First what matches, then how it ranks: ranks are far away, and loads that wait for no others overlap.
        let mut found = [(0, 0); LOAD * MAX_LINES];
        let mut len = 0;
        for &item in list {
            let packet = item >> LINE_BITS;
            let line = &lines[(item & LINE) as usize];
            let state = block.state[packet as usize] as u16;
            let (matches, slot) = line.first_match(simd, &keys[packet as usize], state);
            found[len] = (packet, slot);
            len += usize::from(matches);
        }
        for &(packet, slot) in &found[..len] {
            let best = &mut best[packet as usize];
            *best = (*best).min(u64::from(ranks[slot as usize]) << 32 | u64::from(slot));
        }
    }
}
