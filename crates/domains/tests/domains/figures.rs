//! Bytes, probes and times.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::Range;
use std::time::Instant;

use packetloom_domains::formats::ReadOptions;
use packetloom_domains::{Builder, Domains, Entry, Match};

/// Counts what a thread has on the heap.
struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(added: usize, freed: usize) {
    // What another thread allocated may be freed here.
    let now = NOW.get().wrapping_add(added).wrapping_sub(freed);
    NOW.set(now);
    if now as isize > PEAK.get() as isize {
        PEAK.set(now);
    }
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(number ^ (number >> 31)) * limit as u128) >> 64) as usize
    }

    fn label(&mut self, shortest: usize, longest: usize) -> String {
        const BYTES: &[u8] = b"aeiourstlnmdcbpghfkvywxzjq-0123456789";
        let len = shortest + self.below(longest - shortest + 1);
        // The first ones more often.
        let mut byte = || char::from(BYTES[self.below(BYTES.len()).min(self.below(BYTES.len()))]);
        (0..len).map(|_| byte()).collect()
    }

    /// A name of 2 to 4 labels, about 20 bytes.
    fn name(&mut self) -> String {
        const TOP: [&str; 16] = [
            "com", "com", "com", "com", "net", "org", "de", "ru", "info", "co", "io", "xyz", "top", "online",
            "br", "uk",
        ];
        let top = TOP[self.below(TOP.len())];
        let mut name = format!("{}.{top}", self.label(6, 18));
        for _ in 0..[0, 0, 1, 1, 2][self.below(5)] {
            name = format!("{}.{name}", self.label(1, 8));
        }
        name
    }
}

/// A set of so many names, and names to look up, half of which are in it or below.
fn names(count: usize) -> (Vec<String>, Vec<String>) {
    let mut random = Random(1);
    let entries: Vec<_> = (0..count).map(|_| random.name()).collect();
    let asked = |random: &mut Random| match random.below(2) {
        0 => random.name(),
        _ => {
            let name = entries[random.below(count)].clone();
            let below = name.bytes().filter(|&byte| byte == b'.').count() < 3 && random.below(3) == 0;
            if below { format!("{}.{name}", random.label(1, 8)) } else { name }
        }
    };
    let asked = (0..count).map(|_| asked(&mut random)).collect();
    (entries, asked)
}

fn build(entries: &[String]) -> Domains {
    let mut builder = Builder::new();
    for (name, number) in entries.iter().zip(0..) {
        builder.add(Entry::block(name, number)).expect("a name");
    }
    builder.build()
}

#[test]
fn bytes_are_told() {
    for count in [0, 1, 10, 1_000, 20_000, 100_000] {
        let (entries, _) = names(count.max(1));
        let before = NOW.get();
        let domains = build(&entries[..count]);
        let (bytes, on_heap) = (domains.heap_bytes(), NOW.get() - before);
        let names: usize = entries[..count].iter().map(String::len).sum();
        let most = names + 18 * domains.len() + 256;
        if count < 100_000 {
            assert_eq!(bytes, on_heap, "{count} names");
            assert!(bytes <= most, "{count} names: {bytes}");
        } else {
            // Pages of two megabytes.
            assert_eq!(on_heap, 0);
            assert!(bytes >= names && bytes <= most.next_multiple_of(2 << 20), "{count} names: {bytes}");
        }
    }
}

#[test]
fn looking_up_allocates_nothing() {
    let (entries, asked) = names(1_000);
    let domains = build(&entries);
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let mut matches = vec![None; asked.len()];
    let long = format!("{}\\046.evil.com", "a.".repeat(1_000));
    let before = (NOW.get(), PEAK.replace(NOW.get()));
    domains.lookup_batch(&asked, &mut matches);
    let found: Vec<Option<Match>> = Vec::new();
    assert!(
        domains.lookup_wire(b"\x04evil\x03com\0").is_none()
            && domains.lookup(&long).is_none()
            && found.is_empty()
    );
    assert_eq!((NOW.get(), PEAK.get()), (before.0, before.0));
}

#[test]
fn few_names_are_looked_at() {
    let (entries, _) = names(200_000);
    for seed in 0..3 {
        let mut builder = Builder::with_seed(seed);
        entries.iter().for_each(|name| builder.add(Entry::block(name, 0)).expect("a name"));
        let probes = builder.build().max_probes();
        assert!((2..=16).contains(&probes), "{probes}");
    }
}

/// Nanoseconds for each of `count`, which come in parts: the best time of some for each part, so that what else the machine does counts
/// little. Between two times of a part all others come, so it is as cold as at first. And the sum of what `run` told.
fn best(count: usize, mut run: impl FnMut(Range<usize>) -> usize) -> (f64, usize) {
    const PART: usize = 4096;
    let mut best = vec![f64::MAX; count.div_ceil(PART)];
    let mut sum = 0;
    for _ in 0..7 {
        sum = 0;
        for (part, best) in best.iter_mut().enumerate() {
            let start = Instant::now();
            sum += run(part * PART..((part + 1) * PART).min(count));
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    (best.iter().sum::<f64>() * 1e9 / count as f64, sum)
}

#[test]
#[ignore = "a measurement"]
fn figures() {
    let (entries, asked) = names(1_000_000);
    let before = NOW.get();
    PEAK.set(before);
    let start = Instant::now();
    let domains = build(&entries);
    let time = start.elapsed();
    let bytes: usize = entries.iter().map(String::len).sum();
    println!(
        "{} names of {:.1} bytes: built in {time:.2?}, {:.1} MB (on the heap meanwhile {:.1} MB at most), {} probes at most",
        domains.len(),
        bytes as f64 / entries.len() as f64,
        domains.heap_bytes() as f64 / 1e6,
        (PEAK.get() - before) as f64 / 1e6,
        domains.max_probes(),
    );
    // One behind the other, as packets are: what is measured is no cache miss of the names themselves.
    let text = asked.concat();
    let mut rest = text.as_str();
    let mut next = |name: &String| {
        let (name, after) = rest.split_at(name.len());
        rest = after;
        name
    };
    let asked: Vec<&str> = asked.iter().map(&mut next).collect();
    let wires: Vec<Vec<u8>> = asked
        .iter()
        .map(|name| {
            let labels: Vec<_> = name.split('.').map(|label| label.as_bytes().to_vec()).collect();
            crate::encode::wire(&labels)
        })
        .collect();
    let mut matches = vec![None; asked.len()];
    let all = asked.len();
    let figures = [
        (
            "lookup_batch",
            best(all, |part| {
                domains.lookup_batch(&asked[part.clone()], &mut matches[part.clone()]);
                matches[part].iter().flatten().count()
            }),
        ),
        (
            "lookup",
            best(all, |part| asked[part].iter().filter(|name| domains.lookup(name).is_some()).count()),
        ),
        (
            "lookup_wire",
            best(all, |part| wires[part].iter().filter(|name| domains.lookup_wire(name).is_some()).count()),
        ),
    ];
    for (what, (nanoseconds, found)) in figures {
        let share = 100.0 * found as f64 / all as f64;
        println!("{what}: {:.1} M/s ({nanoseconds:.1} ns), {share:.1} % found", 1e3 / nanoseconds);
    }

    let lists = [
        ("plain", entries.join("\n")),
        ("hosts", entries.iter().map(|name| format!("0.0.0.0 {name}\n")).collect()),
        ("adblock", entries.iter().map(|name| format!("||{name}^\n")).collect()),
        ("rpz", entries.iter().map(|name| format!("{name} CNAME .\n")).collect()),
    ];
    for (format, text) in lists {
        let mut builder = Builder::new();
        let start = Instant::now();
        let report = builder.read(text.as_bytes(), &ReadOptions::default(), |line| line).expect("a list");
        println!("{format}: {} lines read in {:.2?}", report.lines, start.elapsed());
        assert_eq!((report.format.name(), report.refused_count()), (format, 0));
    }
}
