//! The host runs kernels, and catches those that go wrong.

use packetloom_device::{Argument, Cache, Device, Entry, Error, Id, Loaded, Parameter, Program, Queue};

use Parameter::{Memory, U32, U64};

fn host() -> Device {
    Device::open(Id::Host, Cache::none()).expect("a C compiler with sanitisers")
}

fn program(source: &str, group: u32, entries: &[Entry]) -> Program {
    Program {
        name: "host_test",
        source: source.into(),
        defines: vec![("ADDED".into(), "7".into())],
        group,
        groups_per_unit: 1,
        stays: false,
        local: 1024,
        entries: entries.to_vec(),
    }
}

/// Launches a kernel of this file.
#[allow(unsafe_code)]
fn launch(queue: &mut Queue, kernel: &Loaded, groups: u32, arguments: &[Argument<'_>]) -> Result<(), Error> {
    // SAFETY: the tests give kernels the memory that their texts use, or see that the host keeps them from other memory.
    unsafe { queue.launch_unchecked(kernel, groups, arguments) }
}

/// The kernel `entry` of `source`, to be run on so many bytes of memory in groups of four; gives the sanitiser's words.
fn failing(source: &str) -> impl Fn(usize, u32) -> String {
    let device = host();
    let source = format!("KERNEL void entry(GLOBAL u32 *words, u32 number) {{ {source} }}\n");
    let entry = Entry { name: "entry", parameters: &[Memory, U32] };
    let kernels = device.build(&program(&source, 4, &[entry])).expect("compiles");
    move |bytes, number| {
        let memory = device.memory_of(&vec![0; bytes]).expect("memory");
        let mut queue = device.queue().expect("a queue");
        match launch(&mut queue, &kernels[0], 2, &[(&memory).into(), Argument::U32(number)]) {
            Err(Error::Failed { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }
}

fn failure(source: &str, number: u32) -> String {
    failing(source)(64, number)
}

#[test]
fn kernels_run() {
    let device = host();
    let source = "
        KERNEL void add(GLOBAL const u32 *RESTRICT in, GLOBAL u64 *RESTRICT out, u32 count, u64 large) {
          u32 i = group_index() * local_count() + local_index();
          if (i < count) out[i] = large + in[i] + ADDED;
        }
        KERNEL void stand(GLOBAL u32 *out) {
          GLOBAL u32 *at = out + 4 * (group_index() * GROUP + local_index());
          at[0] = group_index(), at[1] = group_count(), at[2] = local_index(), at[3] = local_count();
        }";
    for group in [1, 3, 4, 32] {
        let entries = [
            Entry { name: "stand", parameters: &[Memory] },
            Entry { name: "add", parameters: &[Memory, Memory, U32, U64] },
        ];
        let kernels = device.build(&program(source, group, &entries)).expect("compiles");
        let mut queue = device.queue().expect("a queue");

        let (count, large) = (1001_u32, 1 << 40);
        let input: Vec<u8> = (0..count).flat_map(|i| (i * 3).to_le_bytes()).collect();
        let input = device.memory_of(&input).expect("memory");
        let output = device.memory(count as usize * 8).expect("memory");
        let arguments = [(&input).into(), (&output).into(), Argument::U32(count), Argument::U64(large)];
        launch(&mut queue, &kernels[1], count.div_ceil(group), &arguments).expect("runs");
        let mut got = vec![0; output.len()];
        queue.read(&output, 0, &mut got).expect("reads");
        for (i, got) in (0..).zip(got.chunks_exact(8)) {
            assert_eq!(got, (large + i * 3 + 7).to_le_bytes(), "item {i} in groups of {group}");
        }

        let shared = device.share(5 * group as usize * 16).expect("memory");
        launch(&mut queue, &kernels[0], 5, &[(&shared).into()]).expect("runs");
        for i in 0..5 * group {
            let words = [0, 1, 2, 3].map(|word| shared.load(i as usize * 16 + word * 4));
            assert_eq!(words, [i / group, 5, i % group, group]);
        }
    }
}

#[test]
fn items_of_a_group_meet() {
    let device = host();
    let source = "
        typedef struct { u32 sum[2], words[GROUP]; } shared;
        KERNEL void meet(GLOBAL u32 *out, u32 rounds) {
          LOCAL_MEMORY(shared, all);
          u32 i = local_index(), x = group_index() + i;
          if (i < 2) all->sum[i] = 0;
          barrier_group();
          for (u32 round = 0; round < rounds; ++round) {
            all->words[i] = x;
            barrier_group();
            x = all->words[(i + 1) % GROUP] + 1;
            u32 odd = ballot(x & 1);
            if (odd >> lane() != x % 2 + (odd >> lane() & ~1u)) add_local(&all->sum[1], 1);
            add_local(&all->sum[0], lanes_below(odd));
            barrier_group();
          }
          out[group_index() * GROUP + i] = x + all->sum[0] + 1000000 * all->sum[1];
        }";
    for group in [1, 2, 5, 31, 32] {
        let entry = Entry { name: "meet", parameters: &[Memory, U32] };
        let kernels = device.build(&program(source, group, &[entry])).expect("compiles");
        let (groups, rounds) = (7, 20);
        let output = device.share((groups * group) as usize * 4).expect("memory");
        let mut queue = device.queue().expect("a queue");
        launch(&mut queue, &kernels[0], groups, &[(&output).into(), Argument::U32(rounds)]).expect("runs");
        for number in 0..groups {
            let mut words: Vec<u32> = (0..group).map(|i| number + i).collect();
            let mut sum = 0;
            for _ in 0..rounds {
                words.rotate_left(1);
                words.iter_mut().for_each(|word| *word += 1);
                let odd = |i: u32| (0..i).filter(|&j| words[j as usize] % 2 == 1).count() as u32;
                sum += (0..group).map(odd).sum::<u32>();
            }
            for i in 0..group {
                let got = output.load((number * group + i) as usize * 4);
                assert_eq!(got, words[i as usize] + sum, "item {i} of {group}, group {number}");
            }
        }
    }
}

#[test]
fn access_outside_memory_is_caught() {
    let write = failing("if (group_index() == 1 && local_index() == 2) words[(i32)number] = 1;");
    let read = failing("if (words[(i32)number] == 0x12345) words[0] = 1;");
    // The end of memory is exact, whatever its length.
    for (count, place) in [(1, 1_i32), (3, 3), (3, -1), (16384, 16384), (20001, 20001), (20001, -1)] {
        let why = write(count * 4, place as u32);
        assert!(why.contains("AddressSanitizer") && why.contains("WRITE of size 4"), "{why}");
        assert!(why.contains("host_test.kernel.c:1"), "it says where: {why}");
        assert!(why.contains(&format!("argument 0: {} bytes at 0x", count * 4)), "{why}");
        let why = read(count * 4, place as u32);
        assert!(why.contains("AddressSanitizer") && why.contains("READ of size 4"), "{why}");
    }
    for far in [-10_000_000_i32, 10_000_000] {
        let why = write(64, far as u32);
        assert!(why.contains("AddressSanitizer") && why.contains("SEGV"), "{why}");
    }
    let why = failure("LOCAL_MEMORY(u32, word); word[number] = 1; words[0] = *word;", 1);
    assert!(why.contains("insufficient space") || why.contains("AddressSanitizer"), "{why}");
}

#[test]
fn undefined_arithmetic_is_caught() {
    let why = failure("words[0] = (u32)((i32)number + (i32)local_index());", i32::MAX as u32);
    assert!(why.contains("signed integer overflow"), "{why}");
    let why = failure("words[0] = 1u << number;", 32);
    assert!(why.contains("shift exponent 32"), "{why}");
    let why = failure("words[0] = 1 / (number - 5);", 5);
    assert!(why.contains("division by zero"), "{why}");
    let why = failure("*(GLOBAL u64 *)(words + number) = 1;", 1);
    assert!(why.contains("misaligned address"), "{why}");
}

#[test]
fn items_that_do_not_meet_are_caught() {
    let why = failure("if (local_index() != number) barrier_group();", 2);
    assert!(why.contains("some wait at a barrier, have ended"), "{why}");
    let why = failure("if (local_index() != number) barrier_group(); else words[0] = ballot(1);", 2);
    assert!(why.contains("some wait at a barrier, wait at a ballot"), "{why}");
}

/// Items take turns in both directions, so that one sees too early, and another one too late, what others write.
#[test]
fn a_barrier_that_is_missing_shows() {
    let device = host();
    let source = "
        KERNEL void miss(GLOBAL u32 *words, GLOBAL u32 *seen, u32 meets) {
          u32 i = local_index();
          for (u32 round = 0; round < 2; round++) {
            barrier_group();
            words[i] = round + 1;
            if (meets) barrier_group();
            seen[(2 * round + 0) * GROUP + i] = words[(i + 1) % GROUP] == round + 1;
            seen[(2 * round + 1) * GROUP + i] = words[(i + GROUP - 1) % GROUP] == round + 1;
            if (meets) barrier_group();
          }
        }";
    let entry = Entry { name: "miss", parameters: &[Memory, Memory, U32] };
    let kernels = device.build(&program(source, 8, &[entry])).expect("compiles");
    let mut queue = device.queue().expect("a queue");
    for meets in [0, 1] {
        let (words, seen) = (device.share(8 * 4).expect("memory"), device.share(32 * 4).expect("memory"));
        let arguments = [(&words).into(), (&seen).into(), Argument::U32(meets)];
        launch(&mut queue, &kernels[0], 1, &arguments).expect("runs");
        for way in 0..4 {
            let seen = (0..8).filter(|item| seen.load((way * 8 + item) * 4) == 1).count();
            assert_eq!(seen == 8, meets == 1, "way {way}: {seen} of 8 items have seen it");
        }
    }
}

#[test]
fn a_device_lives_on_after_a_failure() {
    let device = host();
    let source = "KERNEL void entry(GLOBAL u32 *words, u32 number) { words[number] += 1; }\n";
    let entry = Entry { name: "entry", parameters: &[Memory, U32] };
    let kernels = device.build(&program(source, 1, &[entry])).expect("compiles");
    let mut queue = device.queue().expect("a queue");
    for round in 1..4 {
        let memory = device.memory_of(&[0; 12]).expect("memory");
        let mut launch =
            |number| launch(&mut queue, &kernels[0], 1, &[(&memory).into(), Argument::U32(number)]);
        launch(2).expect("runs");
        assert!(matches!(launch(3), Err(Error::Failed { call: "launch", .. })));
        launch(2).expect("runs");
        let mut words = [0; 12];
        queue.read(&memory, 0, &mut words).expect("reads");
        assert_eq!(words, [0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0], "round {round}");
    }
}

#[test]
fn memory_that_was_not_written_shows() {
    let device = host();
    let mut bytes = [0; 100];
    device
        .queue()
        .expect("a queue")
        .read(&device.memory(100).expect("memory"), 0, &mut bytes)
        .expect("reads");
    assert_eq!(bytes, [0xa5; 100]);
    device.share(100).expect("memory").read(0, &mut bytes);
    assert_eq!(bytes, [0; 100]);
    let none = device.memory(usize::MAX / 2).expect_err("more than there is");
    assert_eq!(none, Error::OutOfMemory { bytes: usize::MAX / 2 });
}

/// The process that runs kernels has mapped it before.
#[test]
fn memory_is_cleared_between_kernels() {
    let device = host();
    let source = "KERNEL void add(GLOBAL u32 *words) { words[group_index() * GROUP + local_index()] += 7; }";
    let entry = Entry { name: "add", parameters: &[Memory] };
    let kernels = device.build(&program(source, 4, &[entry])).expect("compiles");
    let mut queue = device.queue().expect("a queue");
    // Its beginning and its end lie within pages.
    let memory = device.zeros(4 * 3_000).expect("memory");
    let words = |queue: &mut Queue| {
        let mut bytes = vec![1; 4 * 3_000];
        queue.read(&memory, 0, &mut bytes).expect("reads");
        let words =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
        words.collect::<Vec<_>>()
    };
    for _ in 0..2 {
        for count in 1..3 {
            launch(&mut queue, &kernels[0], 750, &[(&memory).into()]).expect("runs");
            assert_eq!(words(&mut queue), [7 * count; 3_000]);
        }
        queue.clear(&memory).expect("cleared");
        assert_eq!(words(&mut queue), [0; 3_000]);
    }
}

#[test]
fn the_compiler_is_heard() {
    let device = host();
    let log = |source: &str, group, parameters| {
        let entry = Entry { name: "entry", parameters };
        match device.build(&program(source, group, &[entry])) {
            Err(Error::Build { log }) => log,
            other => panic!("{other:?}"),
        }
    };
    let source = "KERNEL void entry(GLOBAL u32 *words) {\n  words[0] = unknown_thing;\n}\n";
    let said = log(source, 4, &[Memory]);
    assert!(said.contains("host_test.kernel.c:2") && said.contains("unknown_thing"), "{said}");
    let said = log("KERNEL void entry(u32 x) { u32 unused; }\n", 4, &[U32]);
    assert!(said.contains("unused"), "warnings are errors: {said}");
    // The entry is not what the kernel is.
    let source = "KERNEL void entry(GLOBAL u32 *words) { words[0] = 1; }\n";
    log(source, 4, &[Memory, U32]);
    log(source, 4, &[U32]);
    let large = program(source, 64, &[Entry { name: "entry", parameters: &[Memory] }]);
    assert!(matches!(device.build(&large), Err(Error::Misuse(_))));
}

#[test]
fn compiled_kernels_are_kept() {
    // The compiler is tried before: that would be kept there, too.
    drop(host());
    let folder = tempfile::tempdir().expect("a folder");
    let files = || {
        let files = std::fs::read_dir(folder.path()).expect("the folder");
        let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        paths.sort();
        paths
    };
    let source = "KERNEL void entry(GLOBAL u32 *words) { words[0] = ADDED; }\n";
    let wanted = program(source, 2, &[Entry { name: "entry", parameters: &[Memory] }]);
    let run = || {
        let device = Device::open(Id::Host, Cache::at(folder.path())).expect("a C compiler with sanitisers");
        let kernels = device.build(&wanted).expect("compiles");
        let word = device.share(4).expect("memory");
        launch(&mut device.queue().expect("a queue"), &kernels[0], 1, &[(&word).into()]).expect("runs");
        assert_eq!(word.load(0), 7);
    };
    run();
    let kept = files();
    assert_eq!(kept.len(), 1);
    let written = || std::fs::metadata(&kept[0]).expect("the file").modified().expect("a time");
    let first = written();
    run();
    assert_eq!((files(), written()), (kept.clone(), first), "it was taken from there");
    // What is spoilt is made anew.
    let whole = std::fs::read(&kept[0]).expect("the file");
    std::fs::write(&kept[0], &whole[..whole.len() / 2]).expect("writes");
    run();
    assert_eq!(std::fs::read(&kept[0]).expect("the file").len(), whole.len());
}

#[test]
fn threads_share_a_device() {
    let device = host();
    let source = "KERNEL void entry(GLOBAL u32 *words) { add_global(words, 1); }\n";
    let entry = Entry { name: "entry", parameters: &[Memory] };
    let kernels = device.build(&program(source, 2, &[entry])).expect("compiles");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut queue = device.queue().expect("a queue");
                for _ in 0..20 {
                    let word = device.share(4).expect("memory");
                    for count in 1..4 {
                        launch(&mut queue, &kernels[0], 5, &[(&word).into()]).expect("runs");
                        assert_eq!(word.load(0), count * 10);
                    }
                    queue.finish().expect("finishes");
                }
            });
        }
    });
}

/// Times of launches: `cargo test -p packetloom-device --test host -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn time_of_launches() {
    let device = host();
    let source = "
        KERNEL void barriers(GLOBAL u32 *words) {
          for (u32 i = 0; i < 10; ++i) barrier_group();
          words[group_index() * GROUP + local_index()] += 1;
        }
        KERNEL void nothing(GLOBAL u32 *words) { words[group_index() * GROUP + local_index()] += 1; }";
    let before = std::time::Instant::now();
    let entries = ["barriers", "nothing"].map(|name| Entry { name, parameters: &[Memory] }).to_vec();
    for group in [1, 4, 32] {
        let kernels = device.build(&program(source, group, &entries)).expect("compiles");
        println!("opened and compiled: {:?}", before.elapsed());
        let memory = device.memory(40_000 + 4 * 32).expect("memory");
        let mut queue = device.queue().expect("a queue");
        for kernel in &kernels {
            for groups in [10_000_u32.div_ceil(group), 1] {
                let before = std::time::Instant::now();
                launch(&mut queue, kernel, groups, &[(&memory).into()]).expect("runs");
                println!("{} in {groups} groups of {group}: {:?}", kernel.entry.name, before.elapsed());
            }
        }
    }
}

/// Sets of lanes ask each other only, as often as they like; all meet at a barrier.
#[test]
fn a_group_has_several_sets_of_lanes() {
    let source = "
        KERNEL void ask(GLOBAL u32 *out) {
          GLOBAL u32 *at = out + 4 * local_index();
          at[0] = lane();
          for (u32 turn = 0; turn <= lanes_index(); turn++) {
            at[1] = ballot(local_index() % 3 == 0);
            at[2] = lanes_read(10 * local_index(), (lane() + 1) % LANES);
          }
          sync_lanes();
          barrier_group();
          at[3] = out[4 * (GROUP - 1 - local_index())];
        }";
    let entries = [Entry { name: "ask", parameters: &[Memory] }];
    for lanes in [1, 2, 4, 8, 32] {
        let device = Device::host(lanes, Cache::none()).expect("a C compiler with sanitisers");
        let kernels = device.build(&program(source, 8, &entries)).expect("compiles");
        let shared = device.share(8 * 16).expect("memory");
        let mut queue = device.queue().expect("a queue");
        launch(&mut queue, &kernels[0], 1, &[(&shared).into()]).expect("runs");
        let lanes = lanes.min(8);
        for item in 0..8 {
            let first = item / lanes * lanes;
            let thirds = (0..lanes).filter(|lane| (first + lane) % 3 == 0).map(|lane| 1 << lane).sum();
            let next = first + (item - first + 1) % lanes;
            let words = [0, 1, 2, 3].map(|word| shared.load(item as usize * 16 + word * 4));
            assert_eq!(words, [item % lanes, thirds, 10 * next, (7 - item) % lanes], "{item} of {lanes}");
        }
    }
    let device = Device::host(2, Cache::none()).expect("a C compiler with sanitisers");
    let source_of_two = "KERNEL void part(GLOBAL u32 *out) { if (local_index() < 2) out[0] = ballot(1); else barrier_group(); }";
    let part = [Entry { name: "part", parameters: &[Memory] }];
    let kernels = device.build(&program(source_of_two, 4, &part)).expect("compiles");
    let out = device.share(4).expect("memory");
    let mut queue = device.queue().expect("a queue");
    let error =
        launch(&mut queue, &kernels[0], 1, &[(&out).into()]).expect_err("some wait, others have ended");
    assert!(error.to_string().contains("some wait at a barrier, have ended"), "{error}");
    let source_of_one = "KERNEL void part(GLOBAL u32 *out) { if (local_index() == 0) out[0] = ballot(1); else barrier_group(); }";
    let kernels = device.build(&program(source_of_one, 4, &part)).expect("compiles");
    let error = launch(&mut queue, &kernels[0], 1, &[(&out).into()]).expect_err("each waits for others");
    assert!(error.to_string().contains("all wait, at different places"), "{error}");
    let error = device.build(&program(source, 3, &entries)).expect_err("a lane is alone");
    assert!(error.to_string().contains("whole sets of lanes"), "{error}");
    for lanes in [0, 3, 64] {
        let error = Device::host(lanes, Cache::none()).expect_err("no power of two up to 32");
        assert!(error.to_string().contains("expected a power of two"), "{error}");
    }
}
