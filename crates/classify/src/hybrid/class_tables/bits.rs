//! Sets of rules as bits.

use std::collections::HashMap;

/// For each rule, a set of rules.
pub(super) struct Matrix {
    /// 64-bit words of a set.
    pub(super) words: usize,
    rows: Vec<u64>,
}

impl Matrix {
    /// Of `rules` rules: row `i` has those `j` after it for which `holds(i, j)`.
    pub(super) fn later(rules: usize, holds: impl Fn(usize, usize) -> bool) -> Self {
        let words = rules.div_ceil(64).max(1);
        let mut rows = vec![0; rules * words];
        for (i, row) in rows.chunks_exact_mut(words).enumerate() {
            for j in i + 1..rules {
                row[j / 64] |= u64::from(holds(i, j)) << (j % 64);
            }
        }
        Self { words, rows }
    }

    /// Row by row, what is in both.
    pub(super) fn and(&mut self, other: &Self) {
        for (word, other) in self.rows.iter_mut().zip(&other.rows) {
            *word &= other;
        }
    }

    pub(super) fn row(&self, rule: usize) -> &[u64] {
        &self.rows[rule * self.words..][..self.words]
    }
}

/// Takes from a set the rules that an earlier one of the set covers, by the rows of `covers`.
pub(super) fn prune(set: &mut [u64], covers: &Matrix) {
    for word in 0..set.len() {
        let mut left = set[word];
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            let row = covers.row(word * 64 + bit);
            for at in word..set.len() {
                set[at] &= !row[at];
            }
            left &= set[word] & (u64::MAX << bit << 1);
        }
    }
}

/// The first rule of a set.
pub(super) fn first(set: &[u64]) -> Option<usize> {
    let word = set.iter().position(|&word| word != 0)?;
    Some(word * 64 + set[word].trailing_zeros() as usize)
}

/// Sets that are different, numbered.
#[derive(Default)]
pub(super) struct Sets {
    numbers: HashMap<Box<[u64]>, u16>,
    all: Vec<Box<[u64]>>,
}

impl Sets {
    /// The number of a set; `None` where there are too many.
    pub(super) fn number(&mut self, set: &[u64]) -> Option<u16> {
        if let Some(&number) = self.numbers.get(set) {
            return Some(number);
        }
        let number = u16::try_from(self.all.len()).ok()?;
        self.numbers.insert(set.into(), number);
        self.all.push(set.into());
        Some(number)
    }

    /// All of them, by number.
    pub(super) fn into_all(self) -> Vec<Box<[u64]>> {
        self.all
    }
}
