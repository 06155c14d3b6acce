//! Tables that are laid out here for the memory of a device: what a kernel's search finds there.

use packetloom_table::regions::{Image, Regions, save};
use packetloom_table::states::{FUNCTIONS, Key, KeyForm, States, WhenFull, header_words};
use proptest::prelude::*;

const SEEDS: [u64; 2] = [7, 11];
/// Words that functions keep, and those of an entry in the device's memory.
const STATE: usize = 2;
const LINE: usize = 8;

/// Entries as they are saved: a number as key, with function 1 having state or not; its time; two words.
fn saved<const W: usize>(times: &[u64]) -> Vec<u64> {
    let entry = |(number, &time): (usize, &u64)| {
        let mut key: Key<W> = [number as u64; W];
        key[W - 1] |= (number as u64 % 2) << (FUNCTIONS + 1);
        [&key[..], &[time, 10 * number as u64, u64::MAX]].concat()
    };
    times.iter().enumerate().flat_map(entry).collect()
}

fn hash<const W: usize>(key: &Key<W>) -> u64 {
    States::<W>::new(KeyForm::Whole, 1, 1, STATE, 0, WhenFull::Evict, SEEDS).hash(key)
}

/// The place of a key, searched for as `states.kernel.c` says.
fn find<const W: usize>(image: &Image, regions: &Regions, key: &Key<W>) -> Option<usize> {
    let hash = hash(key);
    let region = ((hash >> 32) * u64::from(regions.regions)) >> 32;
    let home = ((hash >> 8 & 0xffff_ffff) * u64::from(regions.groups)) >> 32;
    for next in 0..u64::from(regions.groups) {
        let group = region * u64::from(regions.groups) + (home + next) % u64::from(regions.groups);
        for place in group as usize * 8..group as usize * 8 + 8 {
            let is_own = image.entries[place * LINE..][..W]
                .iter()
                .zip(key)
                .all(|(own, key)| own & ((1 << FUNCTIONS) - 1) == *key);
            match image.tags[place] {
                0 => return None,
                tag if u64::from(tag) == hash & 0x7f | 0x80 && is_own => return Some(place),
                _ => {}
            }
        }
    }
    None
}

fn check<const W: usize>(times: &[u64], flows: usize) {
    let saved = saved::<W>(times);
    let (image, gone) = Image::new::<W>(&saved, STATE, LINE, flows, SEEDS);
    let regions = Regions::new(flows);
    let stride = header_words(W) + STATE;
    let found: Vec<_> = saved
        .chunks(stride)
        .filter(|entry| {
            let mut key: Key<W> = entry[..W].try_into().expect("a key");
            key[W - 1] &= (1 << FUNCTIONS) - 1;
            find(&image, &regions, &key).is_some()
        })
        .collect();
    // Each of the others is handed back as it was.
    let mut all: Vec<_> = found.iter().copied().chain(gone.chunks(stride)).collect();
    all.sort_by_key(|entry| entry[0]);
    assert_eq!(all, saved.chunks(stride).collect::<Vec<_>>());
    assert_eq!(image.held.iter().sum::<u32>() as usize, found.len());
    assert!(image.held.iter().all(|&held| held <= regions.capacity));
    // What is there comes out as it went in.
    let back = save::<W>(&image.entries, LINE, STATE);
    let mut back: Vec<_> = back.chunks(stride).collect();
    back.sort_by_key(|entry| entry[0]);
    assert_eq!(back, found);
    // Nobody goes who is later than one that stays in his region; with one region, in all.
    assert!(found.len() <= flows);
    if regions.regions == 1 {
        assert_eq!(found.len(), flows.min(times.len()));
        let mut sorted = times.to_vec();
        sorted.sort_unstable_by_key(|&time| std::cmp::Reverse(time));
        let mut kept: Vec<_> = found.iter().map(|entry| entry[W]).collect();
        kept.sort_unstable_by_key(|&time| std::cmp::Reverse(time));
        assert_eq!(kept, sorted[..kept.len()]);
    } else if times.len() < flows / 2 {
        assert_eq!(gone, [] as [u64; 0]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_saved_is_found(
        times in prop::collection::vec(0u64..1_000, 0..3_000),
        flows in prop_oneof![1usize..40, 1usize..5_000],
    ) {
        check::<2>(&times, flows);
        check::<5>(&times, flows);
    }
}

/// By hand: of three flows in a table for two the one whose last packet was the first goes; the word behind the key is the time.
#[test]
fn the_latest_stay() {
    let (image, gone) = Image::new::<2>(&saved::<2>(&[30, 10, 20]), STATE, LINE, 2, SEEDS);
    assert_eq!((&gone[..], &image.held[..]), (&saved::<2>(&[30, 10, 20])[5..10], &[2][..]));
    let mut kept: Vec<_> = save::<2>(&image.entries, LINE, STATE);
    if kept[0] == 2 {
        kept.rotate_left(5);
    }
    assert_eq!(kept, [0, 0, 30, 0, u64::MAX, 2, 2, 20, 20, u64::MAX]);
    let (empty, gone) = Image::new::<5>(&[], STATE, LINE, 100, SEEDS);
    assert!(
        gone.is_empty()
            && empty.tags.iter().all(|&tag| tag == 0)
            && empty.entries.iter().all(|&word| word == 0)
    );
}
