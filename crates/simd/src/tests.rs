//! Every operation of every instruction set that this processor has, against arithmetic on one word.

use super::*;

/// Words with all kinds of edges in them.
fn words(seed: u32, count: usize) -> Vec<u32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x85eb_ca6b;
        match state & 7 {
            0 => 0,
            1 => u32::MAX,
            2 => 1 << 31,
            _ => state,
        }
    };
    (0..count).map(next).collect()
}

struct Arithmetic(u32);

impl Kernel for Arithmetic {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (a, b) = (words(self.0, S::LANES), words(!self.0, S::LANES));
        let b: Vec<u32> = b.iter().zip(&a).map(|(&b, &a)| if b & 3 == 0 { a } else { b }).collect();
        let (x, y) = (simd.load(&a), simd.load(&b));
        let check = |name: &str, vector: S::V, word: &dyn Fn(u32, u32) -> u32| {
            let mut found = vec![0; S::LANES];
            simd.store(vector, &mut found);
            let expected: Vec<u32> = a.iter().zip(&b).map(|(&a, &b)| word(a, b)).collect();
            assert_eq!(found, expected, "{name}");
        };
        check("splat", simd.splat(7), &|_, _| 7);
        check("and", simd.and(x, y), &|a, b| a & b);
        check("or", simd.or(x, y), &|a, b| a | b);
        check("xor", simd.xor(x, y), &|a, b| a ^ b);
        check("add", simd.add(x, y), &u32::wrapping_add);
        check("sub", simd.sub(x, y), &u32::wrapping_sub);
        let halves = |a: u32, b: u32, f: fn(u16, u16) -> u16| {
            u32::from(f(a as u16, b as u16)) | u32::from(f((a >> 16) as u16, (b >> 16) as u16)) << 16
        };
        check("sub16", simd.sub16(x, y), &|a, b| halves(a, b, u16::wrapping_sub));
        check("saturating_sub16", simd.saturating_sub16(x, y), &|a, b| halves(a, b, u16::saturating_sub));
        check("mul", simd.mul(x, y), &u32::wrapping_mul);
        check("min", simd.min(x, y), &u32::min);
        check("max", simd.max(x, y), &u32::max);
        for count in [0, 1, 17, 31, 32, 40] {
            check("shl", simd.shl(x, count), &|a, _| a.checked_shl(count).unwrap_or(0));
            check("shr", simd.shr(x, count), &|a, _| a.checked_shr(count).unwrap_or(0));
        }
        check("leading_zeros", simd.leading_zeros(x), &|a, _| a.leading_zeros());
        let shifted = simd.shr(x, self.0 % 33);
        check("leading_zeros", simd.leading_zeros(shifted), &|a, _| {
            a.checked_shr(self.0 % 33).unwrap_or(0).leading_zeros()
        });
        let bytes: Vec<u8> = a.iter().flat_map(|word| word.to_le_bytes()).collect();
        check("load_bytes", simd.load_bytes(&bytes), &|a, _| a);
        for len in 0..=bytes.len() {
            let mut rest = bytes.clone();
            rest[len..].fill(0);
            let mut found = vec![0; S::LANES];
            simd.store(simd.load_rest(&bytes[..len]), &mut found);
            assert!(rest.iter().copied().eq(found.iter().flat_map(|word| word.to_le_bytes())), "{len} bytes");
        }
        let more: Vec<u8> = bytes.iter().copied().chain(1..=8).collect();
        check("load_rest", simd.load_rest(&more), &|a, _| a);
        for len in 0..=more.len() {
            let mut rest = more.clone();
            rest[len..].fill(0);
            for (shift, vector) in simd.load_shifted_rest(&more[..len]).into_iter().enumerate() {
                let mut found = vec![0; S::LANES];
                simd.store(vector, &mut found);
                let found = found.iter().flat_map(|word| word.to_le_bytes());
                assert!(
                    found.eq(rest[shift..][..bytes.len()].iter().copied()),
                    "{len} bytes from {shift} on"
                );
            }
        }
        for (shift, vector) in simd.load_shifted(&more).into_iter().enumerate() {
            let word =
                |lane: usize| more[4 * lane + shift..].first_chunk().map_or(0, |w| u32::from_le_bytes(*w));
            let expected: Vec<u32> = (0..S::LANES).map(word).collect();
            let mut found = vec![0; S::LANES];
            simd.store(vector, &mut found);
            assert_eq!(found, expected, "from {shift} on");
        }
        let table = ByteClasses {
            exact: std::array::from_fn(|at| words(self.0 ^ 1, 128)[at] as u8),
            low: std::array::from_fn(|at| words(self.0 ^ 2, 32)[at] as u8),
            high: std::array::from_fn(|at| words(self.0 ^ 3, 8)[at] as u8),
        };
        check("classes", simd.classes(simd.load_classes(&table), x), &|a, _| {
            let class = |byte: u8| match S::CLASSES_ARE_EXACT {
                true => table.exact[usize::from(byte & 127)],
                false => table.low[usize::from(byte & 31)] & table.high[usize::from(byte >> 5)],
            };
            u32::from_le_bytes(a.to_le_bytes().map(class))
        });
        let nonzero = bytes.iter().enumerate().fold(0, |mask, (at, &byte)| mask | u64::from(byte != 0) << at);
        assert_eq!(simd.nonzero_bytes(x), nonzero, "nonzero_bytes");
        let lanes = |of: &dyn Fn(u32, u32) -> bool| {
            a.iter().zip(&b).enumerate().fold(0, |mask, (lane, (&a, &b))| mask | u32::from(of(a, b)) << lane)
        };
        assert_eq!(simd.eq(x, y), lanes(&|a, b| a == b));
        assert_eq!(simd.high_bits(x), lanes(&|a, _| a >> 31 == 1));
        let few = simd.and(x, y);
        let clear = |a: u32, b: u32| {
            let low = (a & b) >> (a & 15) & 1;
            low == 0 && (a & b) >> 16 >> (b >> 16 & 15) & 1 == 0
        };
        assert_eq!(simd.nibbles_clear(few, x, y), lanes(&clear));
    }
}

struct Memory(u32);

impl Kernel for Memory {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let table = words(self.0, 100);
        let halves: Vec<u16> = table.iter().map(|&word| word as u16).collect();
        // Some past the end, some of them negative as signed numbers.
        let index: Vec<u32> =
            words(!self.0, S::LANES).iter().map(|&w| if w & 3 == 0 { w } else { w % 100 }).collect();
        let vector = simd.load(&index);
        let mut found = vec![0; S::LANES];
        simd.store(simd.gather(&table, vector), &mut found);
        let expected: Vec<u32> = index.iter().map(|&i| table[(i as usize).min(99)]).collect();
        assert_eq!(found, expected);
        for len in [2, 3, 64, 100] {
            let bits = usize::ilog2(len);
            simd.store(simd.gather_top(HashTable::new(&table[..len]), vector), &mut found);
            let expected: Vec<u32> = index.iter().map(|i| table[(i >> (32 - bits)) as usize]).collect();
            assert_eq!(found, expected, "{len} words");
        }
        simd.store(simd.gather16(&halves, vector), &mut found);
        let expected: Vec<u32> = index.iter().map(|&i| halves[(i as usize).min(98)].into()).collect();
        assert_eq!(found, expected);
        let bytes: Vec<u8> = table.iter().map(|&word| word as u8).collect();
        simd.store(simd.gather8(&bytes, vector), &mut found);
        let expected: Vec<u32> = index.iter().map(|&i| bytes[(i as usize).min(96)].into()).collect();
        assert_eq!(found, expected);

        for stride in 4..=6 {
            for (column, vector) in simd.columns(&table, stride).into_iter().enumerate() {
                simd.store(vector, &mut found);
                let expected: Vec<u32> = (0..S::LANES).map(|lane| table[lane * stride + column]).collect();
                assert_eq!(found, expected);
            }
        }

        let mask = self.0.wrapping_mul(0x9e37_79b1) >> (32 - S::LANES);
        let len = simd.compress(vector, mask, &mut found);
        let expected: Vec<u32> =
            (0..S::LANES).filter(|lane| mask >> lane & 1 == 1).map(|l| index[l]).collect();
        assert_eq!(&found[..len], expected);
    }
}

struct Match<'a>(&'a Line, &'a [u16; 8], u16);

impl Kernel for Match<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u32 {
        simd.match_line(self.0, self.1, self.2)
    }
}

#[test]
fn operations_are_those_on_single_words() {
    for isa in Isa::all_for_bytes() {
        for seed in 0..2000 {
            isa.run_on_bytes(Arithmetic(seed));
            isa.run_on_bytes(Memory(seed));
        }
    }
}

struct Folds<'a>(&'a [u64], &'a [u64]);

impl Kernel for Folds<'_> {
    type Output = Vec<u64>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Vec<u64> {
        let mut folds = vec![0; self.0.len()];
        for ((fold, &a), &b) in folds.iter_mut().zip(self.0).zip(self.1) {
            *fold = simd.fold(a, b);
        }
        folds
    }
}

#[test]
fn products_are_folded_as_long_ones() {
    let long = |seed| -> Vec<u64> {
        let halves = words(seed, 2 * 1003);
        halves.chunks_exact(2).map(|halves| u64::from(halves[0]) << 32 | u64::from(halves[1])).collect()
    };
    let (a, b) = (long(1), long(2));
    let products = a.iter().zip(&b).map(|(&a, &b)| u128::from(a) * u128::from(b));
    let expected: Vec<_> = products.map(|product| product as u64 ^ (product >> 64) as u64).collect();
    for isa in Isa::all_available() {
        assert_eq!(isa.run(Folds(&a, &b)), expected, "{isa:?}");
    }
}

#[test]
fn a_line_is_matched_at_the_edges_of_each_word() {
    let key: [u16; 8] = [5, 0, u16::MAX, 0x8000, 0x7fff, 6, 0b1010, 9];
    // What the key itself has there is not looked at.
    let mut with_another = key;
    with_another[6] = !key[6];
    let exact = (key, [5, 0, u16::MAX, 0x8000, 0x7fff, 6, u16::MAX, 0]);
    let any = ([0; 8], [u16::MAX, u16::MAX, u16::MAX, u16::MAX, u16::MAX, u16::MAX, 0, 0]);
    let mut rules = vec![(exact, true), (any, true)];
    for (word, &value) in key.iter().enumerate().take(6) {
        // Bounds that just hold the word, and that just do not.
        for (low, high) in [(value, u16::MAX), (0, value)] {
            let mut rule = any;
            (rule.0[word], rule.1[word]) = (low, high);
            rules.push((rule, true));
        }
        if let Some(low) = value.checked_add(1) {
            let mut rule = any;
            rule.0[word] = low;
            rules.push((rule, false));
        }
        if let Some(high) = value.checked_sub(1) {
            let mut rule = any;
            rule.1[word] = high;
            rules.push((rule, false));
        }
    }
    for (value, mask, matches) in [(0b1000, 0b1000, true), (0b0001, 0b0001, false), (0b0010, 0b0110, true)] {
        let mut rule = any;
        (rule.0[6], rule.1[6]) = (value, mask);
        rules.push((rule, matches));
    }
    for isa in Isa::all_available() {
        for (first, first_matches) in &rules {
            for (second, second_matches) in &rules {
                let line = Line { low: [first.0, second.0], high: [first.1, second.1] };
                let expected = u32::from(*first_matches) | u32::from(*second_matches) << 1;
                assert_eq!(
                    isa.run(Match(&line, &with_another, key[6])),
                    expected,
                    "{isa:?} {first:?} {second:?}"
                );
            }
        }
    }
}

struct MatchLong<'a>(&'a LongLine, &'a [u64; 4], [u16; 4], u16);

impl Kernel for MatchLong<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u32 {
        simd.match_long_line(self.0, self.1, self.2, self.3)
    }
}

#[test]
fn a_long_line_is_matched_at_the_edges_of_each_word() {
    let addresses = [0x0123_4567_89ab_cdef, u64::MAX, 0, 1 << 63];
    // The state word stands where the key has something that is not looked at.
    let (rest, state) = ([5, 0x8000, 0xffff, 0xffff], 0b1010);
    let any = LongLine {
        addresses: [0; 4],
        low: [0; 4],
        high: [u16::MAX, u16::MAX, 0, 0],
        shifts: [64; 4],
        number: 0,
        reserved: [0; 8],
    };
    let exact = LongLine {
        addresses,
        low: [5, 0x8000, state, 0],
        high: [5, 0x8000, u16::MAX, 0],
        shifts: [0; 4],
        ..any
    };
    let mut lines = vec![(any, 1), (exact, 1)];
    for half in 0..4 {
        for shift in 0..64 {
            let mut line = exact;
            line.shifts[half] = shift;
            // The lowest bit that is looked at, and the highest that is not.
            line.addresses[half] ^= 1 << shift;
            lines.push((line, 0));
            line.shifts[half] = shift + 1;
            lines.push((line, 1));
        }
    }
    for (word, value) in [(0, 5), (1, 0x8000)] {
        for (low, high, matches) in [
            (value, value, 1),
            (value, u16::MAX, 1),
            (0, value, 1),
            (value + 1, u16::MAX, 0),
            (0, value - 1, 0),
            (u16::MAX, 0, 0),
        ] {
            let mut line = any;
            (line.low[word], line.high[word]) = (low, high);
            lines.push((line, matches));
        }
    }
    for (value, mask, matches) in [(0b1000, 0b1000, 1), (0b0001, 0b0001, 0), (0b0010, 0b0110, 1)] {
        let mut line = exact;
        (line.low[2], line.high[2]) = (value, mask);
        lines.push((line, matches));
    }
    for isa in Isa::all_available() {
        for (line, matches) in &lines {
            assert_eq!(isa.run(MatchLong(line, &addresses, rest, state)), *matches, "{isa:?} {line:?}");
        }
    }
}

struct LowerCase<'a>(&'a [u8], [u8; 2]);

impl Kernel for LowerCase<'_> {
    type Output = ([u8; 64], [u64; 2]);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut line = [b'x'; 64];
        let masks = simd.lower_case(self.0, &mut line, self.1);
        (line, masks)
    }
}

struct EndsWith<'a>(&'a [u8; 64], &'a [u8]);

impl Kernel for EndsWith<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> bool {
        simd.ends_with(self.0, self.1)
    }
}

#[test]
fn texts_of_any_length_are_put_at_the_end_of_a_line_and_compared_with_it() {
    let all: Vec<u8> = words(3, 32).iter().flat_map(|word| word.to_le_bytes()).chain(0..=255).collect();
    for isa in Isa::all_available() {
        for len in 0..=64 {
            for begin in (0..all.len() - len).step_by(3) {
                // By itself, so that what is before and behind it is no text.
                let text: Box<[u8]> = all[begin..begin + len].into();
                let bytes = [
                    b'.',
                    text.first().copied().filter(|byte| !matches!(byte, 0 | b'A'..=b'z')).unwrap_or(b'\\'),
                ];
                let (line, masks) = isa.run(LowerCase(&text, bytes));
                let mut expected = [0; 64];
                expected[64 - len..].copy_from_slice(&text.to_ascii_lowercase());
                assert_eq!(line, expected, "{isa:?} {text:?}");
                let mask =
                    |one: u8| (0..64).filter(|&at| expected[at] == one).fold(0, |mask, at| mask | 1 << at);
                assert_eq!(masks, bytes.map(mask), "{isa:?} {text:?}");
                assert!(isa.run(EndsWith(&line, &text.to_ascii_lowercase())), "{isa:?} {text:?}");
                for at in 0..len {
                    let mut other: Box<[u8]> = text.to_ascii_lowercase().into();
                    other[at] ^= 1;
                    assert!(!isa.run(EndsWith(&line, &other)), "{isa:?} {text:?} {at}");
                }
            }
        }
    }
}

struct HaveBits<'a>(&'a [u64; 8], &'a [u64; 8]);

impl Kernel for HaveBits<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u32 {
        simd.have_bits(self.0, self.1)
    }
}

#[test]
fn two_bits_of_a_word_are_looked_for() {
    for seed in 0..2000 {
        let long = |seed| -> [u64; 8] {
            let halves = words(seed, 16);
            std::array::from_fn(|at| u64::from(halves[2 * at]) << 32 | u64::from(halves[2 * at + 1]))
        };
        let (line, numbers) = (long(seed), long(!seed));
        let expected = numbers.iter().enumerate().fold(0, |mask, (at, number)| {
            let word = line[(number >> 12) as usize % 8];
            mask | ((word >> (number % 64) & word >> (number / 64 % 64) & 1) as u32) << at
        });
        for isa in Isa::all_available() {
            assert_eq!(isa.run(HaveBits(&line, &numbers)), expected, "{isa:?}");
        }
    }
}
