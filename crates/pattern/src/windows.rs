//! Which windows of a pattern are looked for.

use crate::filter::NIBBLE;
use crate::index::Kind;

/// Patterns of at least so many bytes have a window on the grid, however they lie on it.
pub(crate) const MIN_ON_GRID: usize = 7;

/// Of how many places a hash is counted in; more than one hash may share a count, which then is too high.
const COUNTS: usize = 1 << 22;

/// What an occurrence of a window in the sample costs which the filter lets through, and one that has patterns to be compared with, against a
/// pattern of the set that has the same window.
const PASSED_WEIGHT: u64 = 100;
const FOUND_WEIGHT: u64 = 200;

/// What a window costs with a sample for each time that its four bytes come in the set: texts that are made of pieces of patterns have it as
/// often. In larger sets, whose patterns are each a smaller share of such a text, it is the second over the number of patterns, and 0 in the end.
const SET_WEIGHT: u64 = 80;
const SET_WEIGHT_OF_ALL: u64 = 900_000;

/// What a window costs that is new to the filter, over how often its four bytes come in the set: those that many patterns can share leave the
/// filter empty, so that it excludes more. In smaller sets, whose windows fill it less, it is the square of the number of patterns over the
/// second.
const NEW_WEIGHT: u64 = 100_000;
const NEW_WEIGHT_OF_ONE: u64 = 20_000;

/// How much the square of how many patterns have the key of a window already weighs where there is a sample, which has windows shared.
const LISTED_WEIGHT: u64 = 16;

/// What a window costs in front of which, or behind which, there is no byte that the filter could test.
const UNKNOWN: u64 = 16;

/// A window of a pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) offset: usize,
    pub(crate) kind: Kind,
    pub(crate) key: u64,
}

impl Window {
    fn new(bytes: &[u8], offset: usize) -> Self {
        let after = bytes.len() - offset - 4;
        let kind = if bytes.len() < MIN_ON_GRID { Kind::Window } else { Kind::on_grid(offset, after) };
        Self { offset, kind, key: kind.key(around(bytes, offset)) }
    }

    fn place(&self) -> usize {
        hash(self.key ^ (self.kind.number() << 60))
    }

    /// What the filter has of it.
    fn test(&self, bytes: &[u8]) -> usize {
        let before = self.offset.checked_sub(1).map(|at| bytes[at]);
        test(&bytes[self.offset..][..4], before, bytes.get(self.offset + 4).copied())
    }
}

/// What the filter has of four bytes, between these as far as they are known.
fn test(window: &[u8], before: Option<u8>, behind: Option<u8>) -> usize {
    let number = |byte: Option<u8>| u64::from(byte.map_or(NIBBLE + 1, |byte| byte & NIBBLE));
    hash(u64::from(word(window)) | number(before) << 32 | number(behind) << 40)
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - COUNTS.ilog2())) as usize
}

/// The eight bytes from two in front of `at` on, the first the lowest; 0 where there are none.
#[inline(always)]
pub(crate) fn around(text: &[u8], at: usize) -> u64 {
    if at >= 2
        && let Some(bytes) = text.get(at - 2..at + 6)
    {
        return u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    around_edge(text, at)
}

#[inline(always)]
fn around_edge(text: &[u8], at: usize) -> u64 {
    // Eight bytes that are there, moved.
    let begin = at.saturating_sub(2).min(text.len().saturating_sub(8));
    match text.get(begin..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => {
            let (skipped, missing) = (at.saturating_sub(2) - begin, 2usize.saturating_sub(at));
            (u64::from_le_bytes(*bytes) >> (8 * skipped)) << (8 * missing)
        }
        None => around_short(text, at),
    }
}

#[inline(never)]
fn around_short(text: &[u8], at: usize) -> u64 {
    let byte = |place: usize| (at + place).checked_sub(2).and_then(|at| text.get(at)).copied().unwrap_or(0);
    u64::from_le_bytes(std::array::from_fn(byte))
}

/// How often hashes came.
struct Counts(Vec<u32>);

impl Counts {
    fn new() -> Self {
        Self(vec![0; COUNTS])
    }

    fn add(&mut self, place: usize) {
        self.0[place] = self.0[place].saturating_add(1);
    }

    fn get(&self, place: usize) -> u64 {
        self.0[place].into()
    }
}

/// What is in a sample of texts.
struct Sample {
    keys: Counts,
    /// What the filter has of each place, with all and with a part of what it may know.
    tests: Counts,
    /// What the filter has of windows that were chosen.
    chosen: Counts,
}

impl Sample {
    fn new() -> Self {
        Self { keys: Counts::new(), tests: Counts::new(), chosen: Counts::new() }
    }

    fn add(&mut self, text: &[u8]) {
        for at in 0..text.len().saturating_sub(3) {
            let around = around(text, at);
            for kind in [Kind::Both, Kind::Before, Kind::After, Kind::Window] {
                self.keys.add(Window { offset: 0, kind, key: kind.key(around) }.place());
            }
            let (window, behind) = (&text[at..][..4], text.get(at + 4).copied());
            let before = at.checked_sub(1).map(|at| text[at]);
            for (before, behind) in [(before, behind), (before, None), (None, behind)] {
                self.tests.add(test(window, before, behind));
            }
        }
    }
}

/// Chooses windows, one pattern after another.
pub(crate) struct Chooser {
    /// Windows of the set.
    pieces: Counts,
    /// None without texts.
    sample: Option<Sample>,
    /// Windows that were chosen, by key.
    chosen: Counts,
    /// As [`NEW_WEIGHT`] and [`SET_WEIGHT`] say.
    new_weight: u64,
    set_weight: u64,
}

fn piece(bytes: &[u8]) -> usize {
    hash(word(bytes).into())
}

impl Chooser {
    /// For patterns and texts that are folded already.
    pub(crate) fn new<'a>(
        patterns: impl Iterator<Item = &'a [u8]>,
        sample: impl Iterator<Item = &'a [u8]>,
    ) -> Self {
        let (mut pieces, mut count) = (Counts::new(), 0u64);
        for pattern in patterns {
            pattern.windows(4).for_each(|bytes| pieces.add(piece(bytes)));
            count += 1;
        }
        let mut counts: Option<Sample> = None;
        sample.for_each(|text| counts.get_or_insert_with(Sample::new).add(text));
        let new_weight = (count * count / NEW_WEIGHT_OF_ONE).min(NEW_WEIGHT);
        let set_weight = (SET_WEIGHT_OF_ALL / count.max(1)).min(SET_WEIGHT);
        Self { pieces, sample: counts, chosen: Counts::new(), new_weight, set_weight }
    }

    fn cost(&self, bytes: &[u8], window: &Window) -> u64 {
        let place = window.place();
        let listed = self.chosen.get(place);
        let of_set = self.pieces.get(piece(&bytes[window.offset..][..4]));
        let (common, listed_weight) = match &self.sample {
            Some(Sample { keys, tests, chosen }) => {
                let test = window.test(bytes);
                let is_new = chosen.get(test) == 0;
                let passed =
                    if is_new { PASSED_WEIGHT * tests.get(test) + self.new_weight / of_set } else { 0 };
                (passed + FOUND_WEIGHT * keys.get(place) + self.set_weight * of_set, LISTED_WEIGHT)
            }
            None => (of_set, 1),
        };
        let is_unknown = window.offset == 0 || window.offset + 4 == bytes.len();
        let unknown = if is_unknown { UNKNOWN } else { 0 };
        common + listed_weight * listed * listed + unknown
    }

    /// The best of the windows that begin at these offsets.
    pub(crate) fn choose(&mut self, bytes: &[u8], offsets: impl Iterator<Item = usize>) -> Window {
        let windows = offsets.map(|offset| Window::new(bytes, offset));
        let best = windows.min_by_key(|window| self.cost(bytes, window)).expect("a window");
        self.chosen.add(best.place());
        if let Some(sample) = &mut self.sample {
            sample.chosen.add(best.test(bytes));
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_around_a_place_are_zeros_where_there_are_none() {
        let text: Vec<u8> = (1..=20).collect();
        for text in (0..=text.len()).map(|len| &text[..len]) {
            for at in 0..text.len() {
                assert_eq!(around(text, at), around_short(text, at), "{at} of {}", text.len());
            }
        }
    }

    /// Where the four windows of each pattern are, as the plan asks for them.
    fn chosen(patterns: &[String], sample: &[&[u8]]) -> Vec<usize> {
        let bytes: Vec<_> = patterns.iter().map(String::as_bytes).collect();
        let mut chooser = Chooser::new(bytes.iter().copied(), sample.iter().copied());
        let phases = bytes.iter().flat_map(|bytes| (0..4).map(move |phase| (bytes, phase)));
        let windows =
            phases.map(|(bytes, phase)| chooser.choose(bytes, (phase..=bytes.len() - 4).step_by(4)));
        windows.map(|window| window.offset).collect()
    }

    #[test]
    fn patterns_share_windows_only_where_texts_have_the_others() {
        let patterns: Vec<_> = (0..200).map(|number| format!("{:05}-shared-part", number * 419)).collect();
        // Those behind the numbers.
        let shared =
            |sample: &[&[u8]]| chosen(&patterns, sample).iter().filter(|&&offset| offset > 4).count();
        assert_eq!(shared(&[]), 0);
        assert_eq!(shared(&[b"1234 some other text 5678"]), 0);
        let numbers: Vec<u8> =
            patterns.iter().flat_map(|pattern| &pattern.as_bytes()[..9]).copied().collect();
        let shared = shared(&[&numbers.repeat(1000)]);
        assert!(shared > 400, "{shared}");
    }
}
