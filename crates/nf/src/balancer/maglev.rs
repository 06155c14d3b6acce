//! Maglev hashing: a table from hashes to backends that is balanced, and changes little when backends come or
//! go.
//!
//! Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section 3.4.
//! Each backend prefers the table's entries in an order of its own, a permutation that comes from two hashes
//! of its name; backends take turns, and in its turn each takes the entry that it likes best of those that
//! are free. With equal weights the backends' numbers of entries differ by 1 at most.
//!
//! The paper leaves open how weights are kept. Here, with backends in the order of their names' bytes: in
//! each round each backend gains its weight as credit and, where it then has as much as the largest of all
//! weights, pays so much for a turn. So in `r` rounds it takes ⌊`r` · weight / largest⌋ turns, and with equal
//! weights one a round, as in the paper. A backend of weight 0 gets nothing: it is drained. One whose share
//! is less than an entry may get none.
//!
//! Which backend an entry gets does not depend on the order in which they are listed, but for those of the same
//! name.

use packetloom_memory::prefetch_at;

use crate::Error;

/// The size that the paper evaluates: good for 655 backends.
pub const DEFAULT_SIZE: u32 = 65_537;

/// The largest size: 64 MiB.
pub const MAX_SIZE: u32 = 1 << 24;

/// A backend: the bytes of its name, which decide what entries it prefers, and its weight.
pub type Backend<'a> = (&'a [u8], u32);

/// A table from hashes to backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maglev {
    table: Table,
}

/// Positions in the list of backends, a byte each where these are enough: so more of the table stays in a cache, into which each new
/// flow looks elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Table {
    Bytes(Vec<u8>),
    Words(Vec<u32>),
}

impl Maglev {
    /// Makes the table for a list of backends.
    ///
    /// For shares within 1 % of what weights ask for, `size` should be 100 times the number of backends or
    /// more (the paper, section 3.4). It takes about `size` · log(`size`) steps, and more where a few weights
    /// are far above the others: one for each backend and round.
    ///
    /// # Errors
    ///
    /// A size that is not prime, not above the number of backends, or above [`MAX_SIZE`]; no backend with a
    /// weight above 0.
    pub fn new(backends: &[Backend<'_>], size: u32) -> Result<Self, Error> {
        if size > MAX_SIZE || !is_prime(size) {
            return Err(Error::Invalid(format!(
                "table size {size}; expected a prime number up to {MAX_SIZE}, such as {DEFAULT_SIZE}"
            )));
        }
        if size as usize <= backends.len() {
            return Err(Error::Invalid(format!(
                "table size {size}; expected more than the number of backends, {}",
                backends.len()
            )));
        }
        let mut takers: Vec<_> = (0..).zip(backends).filter(|(_, (_, weight))| *weight > 0).collect();
        if takers.is_empty() {
            return Err(Error::Invalid("no backend has a weight; expected one above 0".into()));
        }
        takers.sort_by_key(|(_, (name, _))| *name);
        let takers = takers.iter().map(|&(backend, &(name, weight))| Taker {
            backend,
            weight,
            permutation: Permutation::of(name, size),
        });
        let words = populate(takers.collect(), size);
        let bytes: Result<_, _> = words.iter().map(|&word| u8::try_from(word)).collect();
        Ok(Self { table: bytes.map_or(Table::Words(words), Table::Bytes) })
    }

    /// The backend for a hash, by its position in the list: that of the hash's [entry](Self::entry).
    #[inline]
    pub fn lookup(&self, hash: u64) -> u32 {
        self.backend(self.entry(hash))
    }

    /// The entry of a hash: ⌊`h` · size / 2³²⌋, where `h` is the upper half of the hash.
    #[inline]
    pub fn entry(&self, hash: u64) -> u32 {
        // Below the size, as `h` is below 2³².
        (((hash >> 32) * self.size() as u64) >> 32) as u32
    }

    /// Brings an entry into the cache.
    #[inline]
    pub fn prefetch(&self, entry: u32) {
        match &self.table {
            Table::Bytes(table) => prefetch_at(table, entry as usize),
            Table::Words(table) => prefetch_at(table, entry as usize),
        }
    }

    /// The backend of an entry, by its position in the list.
    #[inline]
    pub fn backend(&self, entry: u32) -> u32 {
        match &self.table {
            Table::Bytes(table) => table[entry as usize].into(),
            Table::Words(table) => table[entry as usize],
        }
    }

    /// How many entries there are.
    pub fn size(&self) -> usize {
        match &self.table {
            Table::Bytes(table) => table.len(),
            Table::Words(table) => table.len(),
        }
    }

    /// All entries: positions in the list of backends.
    pub fn entries(&self) -> Vec<u32> {
        match &self.table {
            Table::Bytes(table) => table.iter().map(|&byte| byte.into()).collect(),
            Table::Words(table) => table.clone(),
        }
    }
}

/// The order in which a backend prefers entries: `offset`, `offset` + `skip`, `offset` + 2 · `skip` and so
/// on, modulo a prime size; each entry comes once.
#[derive(Clone, Copy, Debug)]
struct Permutation {
    offset: u32,
    /// From 1 to the size less 1.
    skip: u32,
}

impl Permutation {
    fn of(name: &[u8], size: u32) -> Self {
        let modulo = |hash: u64, size: u32| (hash % u64::from(size)) as u32;
        Self {
            offset: modulo(hash(name, OFFSET_BASIS), size),
            // Size 2 has one skip.
            skip: modulo(hash(name, SKIP_BASIS), size - 1) + 1,
        }
    }
}

/// A backend that takes turns.
#[derive(Clone, Copy, Debug)]
struct Taker {
    backend: u32,
    weight: u32,
    permutation: Permutation,
}

/// An entry that is free: no backend's position, as the size is above their number.
const FREE: u32 = u32::MAX;

/// The paper's pseudocode 1, with weights. One taker at least.
fn populate(mut takers: Vec<Taker>, size: u32) -> Vec<u32> {
    let mut table = vec![FREE; size as usize];
    let cost = takers.iter().map(|taker| u64::from(taker.weight)).max().unwrap_or_default();
    let mut credits = vec![0; takers.len()];
    let mut free = size;
    loop {
        for (taker, credit) in takers.iter_mut().zip(&mut credits) {
            *credit += u64::from(taker.weight);
            if *credit < cost {
                continue;
            }
            *credit -= cost;
            // The next that is preferred is kept as the offset of what remains of the permutation.
            let Permutation { offset, skip } = &mut taker.permutation;
            let mut next = || {
                let entry = *offset as usize;
                *offset = (*offset + *skip) % size;
                entry
            };
            let mut entry = next();
            while table[entry] != FREE {
                entry = next();
            }
            table[entry] = taker.backend;
            free -= 1;
            if free == 0 {
                return table;
            }
        }
    }
}

/// Where FNV-1a starts, by its definition.
const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Another start, for a hash that does not follow from the first: the first digits of π after its point.
const SKIP_BASIS: u64 = 0x243f_6a88_85a3_08d3;

/// FNV-1a of a name, from `basis` on, and the finalizer of SplitMix64, which spreads what differs in a few
/// letters. The same everywhere.
fn hash(name: &[u8], basis: u64) -> u64 {
    let fnv = name.iter().fold(basis, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mut z = fnv.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn is_prime(number: u32) -> bool {
    number >= 2
        && (2..)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::balancer::paper;

    fn names(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|n| format!("10.0.{}.{}:80", n / 256, n % 256).into_bytes()).collect()
    }

    fn maglev(names: &[Vec<u8>], weights: &[u32], size: u32) -> Maglev {
        let backends: Vec<_> =
            names.iter().zip(weights).map(|(name, &weight)| (name.as_slice(), weight)).collect();
        Maglev::new(&backends, size).expect("backends and a size that fit")
    }

    fn counts(table: &Maglev, backends: usize) -> Vec<usize> {
        let mut counts = vec![0; backends];
        table.entries().iter().for_each(|&backend| counts[backend as usize] += 1);
        counts
    }

    /// Table 1 of the paper.
    #[test]
    fn the_papers_example() {
        let taker =
            |backend, offset, skip| Taker { backend, weight: 1, permutation: Permutation { offset, skip } };
        let [b0, b1, b2] = [taker(0, 3, 4), taker(1, 0, 2), taker(2, 3, 1)];
        assert_eq!(populate(vec![b0, b1, b2], 7), [1, 0, 1, 0, 2, 2, 0]);
        // After B1 is removed.
        assert_eq!(populate(vec![b0, b2], 7), [0, 0, 0, 0, 2, 2, 2]);
    }

    /// By hand: B0 takes a turn each round, B1, of two thirds its weight, in the second and the third of
    /// three rounds.
    #[test]
    fn turns_by_weight() {
        let taker =
            |backend, weight, offset| Taker { backend, weight, permutation: Permutation { offset, skip: 1 } };
        // Credits of B1 when its turn is judged: 2; 4, so it pays 3; 1 + 2, so it pays 3; and again.
        let takers = vec![taker(0, 3, 0), taker(1, 2, 6)];
        // Round 1: B0 0. Round 2: B0 1, B1 6. Round 3: B0 2, B1 3. Round 4: B0 4. Round 5: B0 5.
        assert_eq!(populate(takers, 7), [0, 0, 0, 1, 0, 0, 1]);
    }

    /// From another program, which gives FNV-1a's published values before the finalizer.
    #[test]
    fn hashes_never_change() {
        for (name, offset, skip) in [
            ("", 0xc381_7c01_6ba4_ff30, 0x2cb0_f69f_4abe_a221),
            ("a", 0x5f29_c2aa_dd9b_8527, 0x88e0_f3c6_dc6d_b746),
            ("foobar", 0x5df2_9541_3403_de4f, 0x1b74_eb45_5053_0fca),
            ("10.0.0.1:80", 0xdf1d_561f_bd00_135a, 0x08d2_69f6_93af_0fe4),
        ] {
            let found = [OFFSET_BASIS, SKIP_BASIS].map(|basis| hash(name.as_bytes(), basis));
            assert_eq!(found, [offset, skip], "{name}");
        }
    }

    /// From another program, too.
    #[test]
    fn tables_never_change() {
        let small = maglev(&names(3), &[1; 3], 13);
        assert_eq!(small.entries(), [0, 2, 2, 0, 2, 0, 0, 1, 0, 1, 1, 2, 1]);
        let weights: Vec<_> = (0..20).map(|n| n % 5).collect();
        let large = maglev(&names(20), &weights, DEFAULT_SIZE);
        // FNV-1a of the entries' bytes, the least significant first.
        let digest = large
            .entries()
            .iter()
            .flat_map(|entry| entry.to_le_bytes())
            .fold(OFFSET_BASIS, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        assert_eq!(digest, 0x2b5a_cc8a_a839_abd4);
    }

    #[test]
    fn equal_weights_give_equal_shares() {
        for (backends, size) in [(1, DEFAULT_SIZE), (100, DEFAULT_SIZE), (655, DEFAULT_SIZE), (6, 7), (1, 2)]
        {
            let weights = vec![1_000; backends];
            let counts = counts(&maglev(&names(backends), &weights, size), backends);
            let least = size as usize / backends;
            assert!(counts.iter().all(|count| (least..=least + 1).contains(count)), "{backends}: {counts:?}");
        }
    }

    #[test]
    fn shares_are_in_proportion_to_weights() {
        let weights: Vec<_> = (1..=100).map(|n| n * n).collect();
        let sum: u32 = weights.iter().sum();
        let counts = counts(&maglev(&names(100), &weights, DEFAULT_SIZE), 100);
        for (&weight, &count) in weights.iter().zip(&counts) {
            let expected = f64::from(DEFAULT_SIZE) * f64::from(weight) / f64::from(sum);
            // Turns are rounded down, for each backend by less than one; the others share what that leaves.
            assert!((count as f64 - expected).abs() < 2.0, "weight {weight}: {count}, {expected} expected");
        }
    }

    /// The flows of the backend that goes must move; of the others, fewer than 1 %. The same where it comes
    /// back.
    #[test]
    fn little_changes_when_a_backend_goes() {
        let names = names(100);
        let all = maglev(&names, &[1; 100], DEFAULT_SIZE);
        for gone in 0..100 {
            let mut weights = [1; 100];
            weights[gone] = 0;
            let without = maglev(&names, &weights, DEFAULT_SIZE);
            let pairs = all.entries().into_iter().zip(without.entries());
            assert!(without.entries().iter().all(|&backend| backend != gone as u32));
            let moved = pairs.filter(|&(before, after)| before != gone as u32 && before != after).count();
            assert!(moved < DEFAULT_SIZE as usize / 100, "{gone}: {moved} entries of others");
        }
    }

    #[test]
    fn a_drained_backend_is_as_one_that_is_not_listed() {
        let names = names(10);
        let drained = maglev(&names, &[1, 2, 3, 0, 5, 6, 7, 8, 9, 10], 1_009);
        let mut listed = names;
        listed.remove(3);
        let absent = maglev(&listed, &[1, 2, 3, 5, 6, 7, 8, 9, 10], 1_009);
        let shifted: Vec<_> = absent.entries().iter().map(|&entry| entry + u32::from(entry >= 3)).collect();
        assert_eq!(drained.entries(), shifted);
    }

    #[test]
    fn a_hash_finds_its_entry() {
        let table = maglev(&names(3), &[1; 3], 13);
        let all = table.entries();
        assert_eq!((table.lookup(0), table.lookup(u64::MAX)), (all[0], all[12]));
        // Entry 5 begins at ceil(5 * 2^32 / 13) = 1651910499; the lower half does not count.
        for (upper, entry) in [(1_651_910_498, 4), (1_651_910_499, 5)] {
            for lower in [0, u64::from(u32::MAX)] {
                assert_eq!(table.lookup(upper << 32 | lower), all[entry]);
            }
        }
    }

    /// Whether a byte is enough for each of them or not.
    #[test]
    fn hashes_find_entries_of_few_and_of_many_backends() {
        for backends in [256, 257] {
            let table = maglev(&names(backends), &vec![1; backends], 1_009);
            let all = table.entries();
            assert_eq!((all.len(), all.iter().max()), (table.size(), Some(&(backends as u32 - 1))));
            for (entry, &backend) in all.iter().enumerate() {
                // The middle of the entry's hashes.
                let upper = ((2 * entry as u64 + 1) << 31) / 1_009;
                assert_eq!(table.lookup(upper << 32), backend, "{entry} of {backends}");
            }
        }
    }

    #[test]
    fn mistakes_have_clear_errors() {
        let names = names(7);
        let new = |weights: &[u32], size| {
            let backends: Vec<_> = names.iter().map(Vec::as_slice).zip(weights.iter().copied()).collect();
            Maglev::new(&backends, size).map(drop)
        };
        for (weights, size, text) in [
            (&[1][..], 0, "table size 0; expected a prime number up to 16777216, such as 65537"),
            (&[1], 1, "table size 1; expected a prime number up to 16777216, such as 65537"),
            (&[1], 65_536, "table size 65536; expected a prime number up to 16777216, such as 65537"),
            // 4093 squared.
            (&[1], 16_752_649, "table size 16752649; expected a prime number up to 16777216, such as 65537"),
            // Prime, but too large.
            (
                &[1],
                4_294_967_291,
                "table size 4294967291; expected a prime number up to 16777216, such as 65537",
            ),
            (&[1, 1, 1, 1, 1, 1, 1], 7, "table size 7; expected more than the number of backends, 7"),
            (&[1, 0, 0, 0, 0, 0, 0], 7, "table size 7; expected more than the number of backends, 7"),
            (&[0, 0], 7, "no backend has a weight; expected one above 0"),
            (&[], 7, "no backend has a weight; expected one above 0"),
        ] {
            assert_eq!(new(weights, size).expect_err(text).to_string(), text);
        }
        assert!(new(&[1; 6], 7).is_ok() && new(&[u32::MAX, 1], 16_777_213).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_024))]

        #[test]
        fn tables_are_the_papers(
            backends in prop::collection::btree_map(
                prop::collection::vec(any::<u8>(), 0..12),
                prop_oneof![0..4u32, 0..200u32, u32::MAX - 9..=u32::MAX],
                1..12,
            ),
            size in prop::sample::select(vec![13u32, 17, 101, 499, 1_009]),
            turn in 0..12usize,
        ) {
            let mut backends: Vec<_> = backends.into_iter().collect();
            prop_assume!(backends.iter().any(|backend| backend.1 > 0));
            // In another order than that of the names.
            let turn = turn % backends.len();
            backends.rotate_left(turn);
            let listed: Vec<_> = backends.iter().map(|(name, weight)| (name.as_slice(), *weight)).collect();
            let found = Maglev::new(&listed, size).unwrap();
            prop_assert_eq!(found.entries(), paper::table(&backends, size as usize));
            // The order of the list does not matter.
            let mut turned = listed.clone();
            turned.reverse();
            let reversed = Maglev::new(&turned, size).unwrap();
            let last = listed.len() as u32 - 1;
            let as_listed: Vec<_> = reversed.entries().iter().map(|entry| last - entry).collect();
            prop_assert_eq!(as_listed, found.entries());
        }

        #[test]
        fn primes_are_known(number in 0..70_000u32) {
            let has_divisor = (2..number).any(|divisor| number.is_multiple_of(divisor));
            prop_assert_eq!(is_prime(number), number >= 2 && !has_divisor);
        }
    }
}
