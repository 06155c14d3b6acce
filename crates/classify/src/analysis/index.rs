//! Finds the rules that overlap a rule.
//!
//! Prefixes are nested or apart, so those of one axis are a forest. The rules that overlap another on this axis are those of
//! its own prefix and of prefixes inside it, which lie together where rules are sorted by prefix, and those of the prefixes
//! around it, at most 128. There are two forests, by source and by destination, and of these the one is taken in which fewer
//! rules overlap.

use std::cmp::Reverse;

use super::span::Span;

/// A rule that packets can match.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) span: Span,
    /// Its classes, many of them in one bit: rules without a common bit have no class in common.
    pub(super) digest: u64,
    /// Its demand's place among the demands.
    pub(super) demand: u32,
    /// Its position in the rule set.
    pub(super) position: u32,
}

/// Entries by the prefixes of both axes.
#[derive(Debug)]
pub(super) struct Index {
    forests: [Forest; 2],
}

/// Entries by the prefixes of one axis.
#[derive(Debug)]
struct Forest {
    entries: Vec<Entry>,
    nodes: Vec<Node>,
    /// For each entry, in the order it was given, its node.
    node_of: Vec<u32>,
}

/// A prefix: its entries are `begin..end`, followed by those of prefixes inside it up to `inside`.
#[derive(Debug)]
struct Node {
    begin: u32,
    end: u32,
    inside: u32,
    /// The node of the next shorter prefix around it, or [`NONE`].
    around: u32,
    /// Entries of all prefixes around it.
    outer: u32,
}

const NONE: u32 = u32::MAX;

impl Index {
    pub(super) fn new(entries: &[Entry]) -> Self {
        Self { forests: [0, 1].map(|axis| Forest::new(entries, axis)) }
    }

    /// Runs of entries, among them every one that overlaps entry `at`; and how many entries that is.
    pub(super) fn near(&self, at: usize) -> (u64, impl Iterator<Item = &[Entry]>) {
        let [by_source, by_destination] = &self.forests;
        let forest = if by_source.count(at) <= by_destination.count(at) { by_source } else { by_destination };
        (forest.count(at).into(), forest.runs(at))
    }
}

impl Forest {
    fn new(entries: &[Entry], axis: usize) -> Self {
        // Longer prefixes come after those that they are in.
        let prefix = |entry: &Entry| (entry.span.low[axis], Reverse(entry.span.high[axis]));
        let mut order: Vec<u32> = (0..entries.len() as u32).collect();
        order.sort_by_key(|&at| prefix(&entries[at as usize]));
        let mut nodes: Vec<Node> = Vec::new();
        let mut node_of = vec![NONE; entries.len()];
        let mut sorted: Vec<Entry> = Vec::with_capacity(entries.len());
        // The node that is being filled, which is the last, and those around it.
        let mut open: Vec<u32> = Vec::new();
        for at in order {
            let entry = entries[at as usize];
            let place = sorted.len() as u32;
            if sorted.last().is_none_or(|last| prefix(last) != prefix(&entry)) {
                while let Some(node) = open.last().map(|&node| &mut nodes[node as usize])
                    && sorted[node.begin as usize].span.high[axis] < entry.span.low[axis]
                {
                    node.inside = place;
                    open.pop();
                }
                let around = open.last().copied().unwrap_or(NONE);
                let outer = nodes.get(around as usize).map_or(0, |node| node.outer + node.end - node.begin);
                open.push(nodes.len() as u32);
                nodes.push(Node { begin: place, end: place, inside: place, around, outer });
            }
            let node = nodes.len() - 1;
            nodes[node].end = place + 1;
            node_of[at as usize] = node as u32;
            sorted.push(entry);
        }
        for node in open {
            nodes[node as usize].inside = sorted.len() as u32;
        }
        Self { entries: sorted, nodes, node_of }
    }

    /// How many entries overlap entry `at` on this axis.
    fn count(&self, at: usize) -> u32 {
        let node = &self.nodes[self.node_of[at] as usize];
        node.inside - node.begin + node.outer
    }

    fn runs(&self, at: usize) -> impl Iterator<Item = &[Entry]> {
        let node = &self.nodes[self.node_of[at] as usize];
        let around = |node: &Node| self.nodes.get(node.around as usize);
        let outer = std::iter::successors(around(node), move |node| around(node));
        std::iter::once(node.begin..node.inside)
            .chain(outer.map(|node| node.begin..node.end))
            .map(|run| &self.entries[run.start as usize..run.end as usize])
    }
}

/// Shows `each` those of a run that overlap an entry; where classes are many, some that do not as well.
///
/// Which test fails, and on which axis, cannot be foretold, and a wrong guess costs more than all the tests: so all are made,
/// for many entries, before anything hangs on them.
pub(super) fn overlapping<'a>(run: &'a [Entry], with: &Entry, mut each: impl FnMut(&'a Entry)) {
    let with = *with;
    for chunk in run.chunks(64) {
        let mut found = chunk.iter().zip(0..).fold(0u64, |found, (entry, bit)| {
            found | u64::from(entry.span.overlaps(&with.span) & (entry.digest & with.digest != 0)) << bit
        });
        while found != 0 {
            each(&chunk[found.trailing_zeros() as usize]);
            found &= found - 1;
        }
    }
}
