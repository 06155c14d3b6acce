//! An automaton that finds the pattern that ends first (Aho and Corasick 1975), as `strings.kernel.c` takes it.

use std::collections::VecDeque;

use packetloom_pattern::Patterns;

/// Words with the class of each byte.
const CLASSES: usize = 256 / 4;
/// Words of a table at most: 2 GiB.
const MAX_WORDS: usize = 1 << 29;

/// Builds it of the patterns' bytes, case-sensitive and anywhere; `None` where it would have more than 2 GiB.
pub(super) fn build(patterns: &Patterns) -> Option<Vec<u32>> {
    // Bytes that no pattern has are of one class, the first; where there are none, the last byte that patterns have is alone there.
    let mut classes = [0u8; 256];
    let mut count = 1usize;
    for byte in patterns.iter().flat_map(|pattern| pattern.bytes) {
        if classes[usize::from(*byte)] == 0 && count < 256 {
            classes[usize::from(*byte)] = count as u8;
            count += 1;
        }
    }
    let row = 1 + count;
    let mut table: Vec<u32> = classes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    table.resize(CLASSES + row, 0);
    // A trie first; no state has the place 0.
    for (pattern, number) in patterns.iter().zip(1u32..) {
        let mut at = CLASSES;
        for &byte in pattern.bytes {
            let place = at + 1 + usize::from(classes[usize::from(byte)]);
            if table[place] == 0 {
                if table.len() + row > MAX_WORDS {
                    return None;
                }
                table[place] = table.len() as u32;
                table.resize(table.len() + row, 0);
            }
            at = table[place] as usize;
        }
        if table[at] == 0 {
            table[at] = number;
        }
    }
    // Then, the shortest texts first, where each state goes on that has no longer text.
    let mut queue = VecDeque::new();
    for next in &mut table[CLASSES + 1..CLASSES + row] {
        match *next {
            0 => *next = CLASSES as u32,
            state => queue.push_back((state as usize, CLASSES)),
        }
    }
    while let Some((state, shorter)) = queue.pop_front() {
        table[state] = match (table[state], table[shorter]) {
            (0, number) | (number, 0) => number,
            (a, b) => a.min(b),
        };
        for class in 1..row {
            let next = table[shorter + class];
            match table[state + class] {
                0 => table[state + class] = next,
                longer => queue.push_back((longer as usize, next as usize)),
            }
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use packetloom_pattern::{Pattern, oracle};

    use super::*;

    /// What the kernel does.
    fn first(table: &[u32], text: &[u8]) -> [u32; 2] {
        let classes: &[u8] = bytemuck::cast_slice(&table[..CLASSES]);
        let mut row = CLASSES;
        for (&byte, end) in text.iter().zip(1..) {
            row = table[row + 1 + usize::from(classes[usize::from(byte)])] as usize;
            if table[row] != 0 {
                return [table[row], end];
            }
        }
        [0, 0]
    }

    #[test]
    fn it_finds_what_the_oracle_finds_first() {
        let mut state = 1u32;
        let mut next = |below: u32| {
            state = state.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x85eb_ca6b;
            (state >> 8) % below
        };
        for round in 0..300 {
            let bytes = if round % 10 == 0 { 256 } else { 2 + round % 5 };
            let mut text = |len: u32| -> Vec<u8> { (0..len).map(|_| next(bytes) as u8).collect() };
            let mut patterns = Patterns::new();
            for number in 0..1 + round % 40 {
                let len = if round % 10 == 0 { 60 } else { 1 + number % 6 };
                patterns.push(Pattern::new(&text(len))).expect("a pattern");
            }
            let table = build(&patterns).expect("a small one");
            for len in 0..60 {
                let text = text(len);
                let found = oracle::matches(&patterns, &text, 0);
                let expected = found
                    .iter()
                    .map(|found| [found.pattern + 1, found.end])
                    .min_by_key(|found| [found[1], found[0]]);
                assert_eq!(first(&table, &text), expected.unwrap_or([0, 0]), "{text:?}");
            }
        }
    }
}
