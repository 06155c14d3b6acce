//! Lists of rules, each list once.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// Rules of a class in order, by their number among all.
pub(super) type List = Box<[u16]>;

/// Lists that are different, numbered.
#[derive(Default)]
pub(super) struct Lists {
    numbers: HashMap<List, u16, RandomState>,
    all: Vec<List>,
}

impl Lists {
    /// The number of a list; `None` where there are too many.
    pub(super) fn number(&mut self, list: &[u16]) -> Option<u16> {
        if let Some(&number) = self.numbers.get(list) {
            return Some(number);
        }
        let number = u16::try_from(self.all.len()).ok()?;
        self.numbers.insert(list.into(), number);
        self.all.push(list.into());
        Some(number)
    }

    /// All of them, by number.
    pub(super) fn into_all(self) -> Vec<List> {
        self.all
    }
}

/// Lists in the making, of which only some will be used: more than can have numbers of 16 bits.
#[derive(Default)]
pub(super) struct Made {
    numbers: HashMap<List, u32, RandomState>,
    all: Vec<List>,
}

impl Made {
    pub(super) fn number(&mut self, list: &[u16]) -> u32 {
        if let Some(&number) = self.numbers.get(list) {
            return number;
        }
        let number = self.all.len() as u32;
        self.numbers.insert(list.into(), number);
        self.all.push(list.into());
        number
    }

    pub(super) fn list(&self, number: u32) -> &[u16] {
        &self.all[number as usize]
    }

    /// A table of numbers of those that it uses, and these; `None` where they are too many. `table` has rows of `columns` cells;
    /// in the one that is made, the next row and the next column are these strides away.
    pub(super) fn into_table(
        mut self,
        table: &[u32],
        columns: usize,
        (row_stride, column_stride): (usize, usize),
    ) -> Option<(Vec<u16>, Vec<List>)> {
        let mut numbers: Vec<Option<u16>> = vec![None; self.all.len()];
        let mut used = Vec::new();
        let mut to = vec![0; table.len()];
        for (row, cells) in table.chunks_exact(columns).enumerate() {
            for (column, &cell) in cells.iter().enumerate() {
                let number = match numbers[cell as usize] {
                    Some(number) => number,
                    None => {
                        let number = u16::try_from(used.len()).ok()?;
                        used.push(std::mem::take(&mut self.all[cell as usize]));
                        *numbers[cell as usize].insert(number)
                    }
                };
                to[row * row_stride + column * column_stride] = number;
            }
        }
        Some((to, used))
    }
}
