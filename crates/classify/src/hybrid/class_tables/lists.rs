//! Lists of rules, each list once.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Lists of rules that are different, numbered: the rules by their number among all, and in order.
#[derive(Default)]
pub(super) struct Lists {
    /// All of them, one behind the other.
    rules: Vec<u16>,
    /// Where each one ends.
    ends: Vec<usize>,
    numbers: HashTable<u32>,
    hasher: RandomState,
}

/// A list by its number.
fn list<'a>(rules: &'a [u16], ends: &[usize], number: usize) -> &'a [u16] {
    let start = if number == 0 { 0 } else { ends[number - 1] };
    &rules[start..ends[number]]
}

impl Lists {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, number: usize) -> &[u16] {
        list(&self.rules, &self.ends, number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u16]> {
        (0..self.len()).map(|number| self.get(number))
    }

    /// The number of a list, which is [`Self::len`] where it is a new one.
    pub(super) fn number(&mut self, new: &[u16]) -> usize {
        let Self { rules, ends, numbers, hasher } = self;
        let found = numbers.entry(
            hasher.hash_one(new),
            |&number| list(rules, ends, number as usize) == new,
            |&number| hasher.hash_one(list(rules, ends, number as usize)),
        );
        match found {
            Entry::Occupied(number) => *number.get() as usize,
            Entry::Vacant(place) => {
                let number = ends.len();
                place.insert(number as u32);
                rules.extend_from_slice(new);
                ends.push(rules.len());
                number
            }
        }
    }

    /// Likewise of a class; `None` where there are too many.
    pub(super) fn class(&mut self, list: &[u16]) -> Option<u16> {
        u16::try_from(self.number(list)).ok()
    }

    /// Those lists that a table of their numbers uses, and the table with the numbers that they have there; `None` where they are
    /// too many. `table` has rows of `columns` cells; in the one that is made, the next row and the next column are these strides
    /// away.
    pub(super) fn used_by(
        &self,
        table: &[u32],
        columns: usize,
        (row_stride, column_stride): (usize, usize),
    ) -> Option<(Vec<u16>, Self)> {
        let mut classes: Vec<Option<u16>> = vec![None; self.len()];
        let mut used = Self::default();
        let mut to = vec![0; table.len()];
        for (row, cells) in table.chunks_exact(columns).enumerate() {
            for (column, &cell) in cells.iter().enumerate() {
                let class = match classes[cell as usize] {
                    Some(class) => class,
                    None => *classes[cell as usize].insert(used.class(self.get(cell as usize))?),
                };
                to[row * row_stride + column * column_stride] = class;
            }
        }
        Some((to, used))
    }
}

/// For each rule, the lists that hold it.
pub(super) struct Holders {
    numbers: Vec<u32>,
    /// Where the numbers of a rule begin; one more than there are rules.
    starts: Vec<usize>,
}

impl Holders {
    pub(super) fn new(lists: &Lists, rules: usize) -> Self {
        let mut starts = vec![0; rules + 1];
        for &rule in &lists.rules {
            starts[usize::from(rule) + 1] += 1;
        }
        for rule in 0..rules {
            starts[rule + 1] += starts[rule];
        }
        let mut next = starts.clone();
        let mut numbers = vec![0; lists.rules.len()];
        for (list, number) in lists.iter().zip(0..) {
            for &rule in list {
                let next = &mut next[usize::from(rule)];
                numbers[*next] = number;
                *next += 1;
            }
        }
        Self { numbers, starts }
    }

    pub(super) fn of(&self, rule: u16) -> &[u32] {
        &self.numbers[self.starts[usize::from(rule)]..self.starts[usize::from(rule) + 1]]
    }
}
