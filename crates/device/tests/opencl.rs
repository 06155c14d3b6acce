//! Kernels on the first device of OpenCL. Where there is none, the tests say so and pass.

use std::process::Command;

use packetloom_device::{
    Argument, Cache, Device, Entry, Error, Id, Loaded, Memory, Parameter, Program, Queue,
};

/// Items in a group.
const GROUP: u32 = 64;

const SOURCE: &str = "
typedef struct {
  u32 least;
  u32 bits;
  u32 sums[GROUP];
} Scratch;

/* out[group]: least, bits of all, sum and first's place of the group's numbers. */
KERNEL void fold(GLOBAL const u32 *RESTRICT in, GLOBAL u32x4 *RESTRICT out, GLOBAL u32 *RESTRICT total, u32 count) {
  LOCAL_MEMORY(Scratch, scratch);
  u32 at = group_index() * local_count() + local_index();
  u32 x = at < count ? in[at] : 0;
  if (local_index() == 0) {
    scratch->least = 0xffffffffu;
    scratch->bits = 0;
  }
  scratch->sums[local_index()] = x;
  barrier_group();
  if (at < count) {
    min_local(&scratch->least, x);
    or_local(&scratch->bits, x);
  }
  for (u32 step = GROUP / 2; step > 0; step /= 2) {
    barrier_group();
    if (local_index() < step) {
      scratch->sums[local_index()] += scratch->sums[local_index() + step];
    }
  }
  barrier_group();
  if (local_index() == 0) {
    u32x4 answer;
    answer.x = scratch->least;
    answer.y = scratch->bits;
    answer.z = scratch->sums[0];
    answer.w = at;
    out[group_index()] = answer;
    add_global(total, scratch->sums[0]);
  }
}

/* Each of two counts, in its own way, grows by `each` for every item. */
KERNEL void count_up(GLOBAL u64 *RESTRICT counts, u64 each, u32 times) {
#ifdef HAS_ATOMICS_64
  for (u32 i = 0; i < times; i++) {
    add_global_64(&counts[0], each);
    u64 old = counts[1];
    u64 seen;
    while ((seen = swap_global_64(&counts[1], old, old + each)) != old) {
      old = seen;
    }
  }
#endif
}

/* Writes the place, the number and whether lanes agree. */
KERNEL void places(GLOBAL u32 *RESTRICT out, u64 high, u32 low) {
  u32 all = ballot(local_index() % 2 == 0);
  sync_lanes();
  u32 agree = count_ones(all) == (LANES + 1) / 2 && lanes_below(all) <= lane() && lanes_index() == local_index() / LANES;
  GLOBAL u32 *mine = &out[(group_index() * local_count() + local_index()) * 4];
  mine[0] = group_index() * 1000 + local_index() + group_count() * 1000000;
  mine[1] = (u32)(high >> 32);
  mine[2] = (u32)high + low;
  mine[3] = agree + shift_right(low, 32) + shift_right(8, 2);
}

/* x[i] = x[i] * factor, slowly. */
KERNEL void scale(GLOBAL u32 *RESTRICT x, u32 factor, u32 times) {
  u32 at = group_index() * local_count() + local_index();
  u32 value = x[at];
  for (u32 i = 0; i < times; i++) {
    value *= factor;
  }
  x[at] = value;
}
";

const MEMORY: Parameter = Parameter::Memory;

fn program() -> Program {
    let entries = vec![
        Entry { name: "fold", parameters: &[MEMORY, MEMORY, MEMORY, Parameter::U32] },
        Entry { name: "count_up", parameters: &[MEMORY, Parameter::U64, Parameter::U32] },
        Entry { name: "places", parameters: &[MEMORY, Parameter::U64, Parameter::U32] },
        Entry { name: "scale", parameters: &[MEMORY, Parameter::U32, Parameter::U32] },
    ];
    Program {
        name: "opencl-test",
        source: SOURCE.into(),
        defines: Vec::new(),
        group: GROUP,
        groups_per_unit: 1,
        stays: false,
        local: 4 * GROUP + 8,
        entries,
    }
}

fn device_with(cache: Cache) -> Option<Device> {
    match Device::open(Id::OpenCl(0), cache) {
        Ok(device) => Some(device),
        Err(error @ Error::Unavailable { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn device() -> Option<Device> {
    device_with(Cache::none())
}

fn kernels(device: &Device) -> [Loaded; 4] {
    device.build(&program()).unwrap().try_into().unwrap()
}

/// Launches a kernel of this file.
#[allow(unsafe_code)]
fn launch(queue: &mut Queue, kernel: &Loaded, groups: u32, arguments: &[Argument<'_>]) -> Result<(), Error> {
    // SAFETY: the tests give kernels the memory that their texts use.
    unsafe { queue.launch_unchecked(kernel, groups, arguments) }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(queue: &mut Queue, memory: &Memory) -> Vec<u32> {
    let mut bytes = vec![0; memory.len()];
    queue.read(memory, 0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn it_describes_itself() {
    let Some(device) = device() else { return };
    let description = device.description();
    println!("{description:?}");
    assert_eq!(description.id, Id::OpenCl(0));
    assert!(!description.name.is_empty() && description.name.trim() == description.name);
    assert!(description.driver.contains("OpenCL"));
    assert!(description.memory > 0 && description.units > 0 && description.local_memory > 0);
    assert!(description.group >= GROUP);
    assert!([1, 32].contains(&description.lanes));
    assert!(packetloom_device::list().0.contains(&Id::OpenCl(0)));
}

#[test]
fn copies_come_back() {
    let Some(device) = device() else { return };
    let mut queue = device.queue().unwrap();
    let memory = device.memory_of(&bytes(&[1, 2, 3, 4])).unwrap();
    queue.write(&memory, 4, &bytes(&[9])).unwrap();
    queue.write(&memory, 16, &[]).unwrap();
    assert_eq!(words(&mut queue, &memory), [1, 9, 3, 4]);

    let mut shared = device.share(12_345).unwrap();
    let mut all = vec![1; 12_345];
    shared.read(0, &mut all);
    assert!(all.iter().all(|&byte| byte == 0), "memory that is not zero");
    shared.store(8, 77);
    queue.copy_in(&mut shared, 8..12, &memory, 12).unwrap();
    queue.copy_out(&memory, 0..16, &mut shared, 12_000).unwrap();
    queue.copy_out(&memory, 3..3, &mut shared, 0).unwrap();
    queue.finish().unwrap();
    assert!(queue.is_finished().unwrap());
    assert_eq!([0, 4, 8, 12].map(|at| shared.load(12_000 + at)), [1, 9, 3, 77]);
    assert!(matches!(queue.write(&memory, 13, &bytes(&[9])), Err(Error::Misuse(_))));

    let none = device.memory(0).unwrap();
    queue.write(&none, 0, &[]).unwrap();
    assert!(none.is_empty() && device.share(0).unwrap().is_empty());
}

#[test]
fn too_much_memory_is_said_to_be_so() {
    let Some(device) = device() else { return };
    let too_much = usize::MAX / 4;
    assert!(matches!(device.memory(too_much), Err(Error::OutOfMemory { bytes }) if bytes == too_much));
    assert!(matches!(device.share(too_much), Err(Error::OutOfMemory { bytes }) if bytes == too_much));
    assert!(matches!(device.share(usize::MAX), Err(Error::OutOfMemory { .. })));
}

#[test]
fn groups_fold_numbers() {
    let Some(device) = device() else { return };
    let [fold, ..] = kernels(&device);
    let (groups, count) = (5, 5 * GROUP - 7);
    let numbers: Vec<u32> = (0..count).map(|i| i.wrapping_mul(2_654_435_761) % 100_000 + 3).collect();
    let input = device.memory_of(&bytes(&numbers)).unwrap();
    let output = device.memory(16 * groups as usize).unwrap();
    let total = device.memory_of(&bytes(&[100])).unwrap();
    let mut queue = device.queue().unwrap();
    let arguments = [(&input).into(), (&output).into(), (&total).into(), Argument::U32(count)];
    launch(&mut queue, &fold, groups, &arguments).unwrap();
    // No groups, no change.
    launch(&mut queue, &fold, 0, &arguments).unwrap();
    queue.finish().unwrap();
    let expected: Vec<u32> = numbers
        .chunks(GROUP as usize)
        .zip(0..)
        .flat_map(|(group, number)| {
            let bits = group.iter().fold(0, |bits, x| bits | x);
            [*group.iter().min().unwrap(), bits, group.iter().sum(), number * GROUP]
        })
        .collect();
    assert_eq!(words(&mut queue, &output), expected);
    assert_eq!(words(&mut queue, &total), [100 + numbers.iter().sum::<u32>()]);
}

#[test]
fn atomics_of_64_bits() {
    let Some(device) = device() else { return };
    if !device.description().atomics_64 {
        eprintln!("skipped: no 64-bit atomics");
        return;
    }
    let [_, count_up, ..] = kernels(&device);
    let counts = device.memory_of(&[0; 16]).unwrap();
    let mut queue = device.queue().unwrap();
    let (each, times) = (0x1_0000_0001u64, 3u32);
    launch(&mut queue, &count_up, 7, &[(&counts).into(), Argument::U64(each), Argument::U32(times)]).unwrap();
    let all = each * u64::from(7 * GROUP * times);
    let expected = [all as u32, (all >> 32) as u32];
    assert_eq!(words(&mut queue, &counts), [expected, expected].concat());
}

#[test]
fn numbers_and_places() {
    let Some(device) = device() else { return };
    let [_, _, places, _] = kernels(&device);
    let groups = 3;
    let out = device.memory((groups * GROUP * 16) as usize).unwrap();
    let mut queue = device.queue().unwrap();
    let arguments = [(&out).into(), Argument::U64(0xaabb_ccdd_0000_0010), Argument::U32(0xffff_0000)];
    launch(&mut queue, &places, groups, &arguments).unwrap();
    let expected: Vec<u32> = (0..groups)
        .flat_map(|group| (0..GROUP).map(move |item| group * 1000 + item + groups * 1_000_000))
        .flat_map(|place| [place, 0xaabb_ccdd, 0xffff_0010, 3])
        .collect();
    let lanes = device.description().lanes;
    let found = words(&mut queue, &out);
    if lanes == 1 {
        // An odd item alone asks for nothing set.
        for (found, expected) in found.chunks(4).zip(expected.chunks(4)) {
            assert_eq!(found[..3], expected[..3]);
            assert_eq!(found[3], 3 - found[0] % 2);
        }
    } else {
        assert_eq!(found, expected);
    }
}

#[test]
fn kernels_use_shared_memory_in_place() {
    let Some(device) = device() else { return };
    let [_, _, _, scale] = kernels(&device);
    let words = 2 * GROUP as usize;
    let shared = device.share(4 * words).unwrap();
    let mut queue = device.queue().unwrap();
    let arguments = [(&shared).into(), Argument::U32(3), Argument::U32(2)];
    if !device.description().shares {
        assert!(matches!(launch(&mut queue, &scale, 2, &arguments), Err(Error::Misuse(_))));
        eprintln!("skipped: kernels cannot use the host's memory");
        return;
    }
    // Twice: it stays mapped, and what the host writes later is seen too.
    for round in 1..=2 {
        for at in 0..words {
            shared.store(4 * at, round * at as u32);
        }
        launch(&mut queue, &scale, 2, &arguments).unwrap();
        queue.finish().unwrap();
        for at in 0..words {
            assert_eq!(shared.load(4 * at), 9 * round * at as u32);
        }
    }
}

#[test]
fn queues_work_beside_each_other() {
    let Some(device) = device() else { return };
    let [_, _, _, scale] = kernels(&device);
    // One kernel, with arguments of its own for each queue and launch.
    std::thread::scope(|scope| {
        for factor in 1..=4u32 {
            let (device, scale) = (&device, &scale);
            scope.spawn(move || {
                let mut queue = device.queue().unwrap();
                let memories: Vec<_> =
                    (0..20).map(|_| device.memory_of(&bytes(&[5; GROUP as usize])).unwrap()).collect();
                for (times, memory) in (0..).zip(&memories) {
                    let arguments = [memory.into(), Argument::U32(factor), Argument::U32(times)];
                    launch(&mut queue, scale, 1, &arguments).unwrap();
                }
                while !queue.is_finished().unwrap() {
                    std::thread::yield_now();
                }
                for (times, memory) in (0..).zip(&memories) {
                    assert_eq!(
                        words(&mut queue, memory),
                        [factor.wrapping_pow(times).wrapping_mul(5); GROUP as usize]
                    );
                }
            });
        }
    });
}

#[test]
fn queues_wait_for_each_other_where_they_are_told() {
    let Some(device) = device() else { return };
    let [_, _, _, scale] = kernels(&device);
    let memory = device.memory_of(&bytes(&[1; GROUP as usize])).unwrap();
    let mut queues = [device.queue().unwrap(), device.queue().unwrap()];
    // In turns, with most to do in the first: what does not wait reads what was there before, and is written over.
    for round in 0..40 {
        let [first, second] = &mut queues;
        let (queue, other, times) =
            if round % 2 == 0 { (first, second, 1 << 16) } else { (second, first, 1) };
        queue.wait_for(other).unwrap();
        launch(queue, &scale, 1, &[(&memory).into(), Argument::U32(3), Argument::U32(times)]).unwrap();
    }
    queues[1].finish().unwrap();
    let expected = 3u32.wrapping_pow(20 * ((1 << 16) + 1));
    assert_eq!(words(&mut queues[0], &memory), [expected; GROUP as usize]);
}

#[test]
fn a_queue_that_works_is_not_finished() {
    let Some(device) = device() else { return };
    let [_, _, _, scale] = kernels(&device);
    let memory = device.memory_of(&bytes(&[1; GROUP as usize])).unwrap();
    let mut queue = device.queue().unwrap();
    assert!(queue.is_finished().unwrap());
    let arguments = [(&memory).into(), Argument::U32(3), Argument::U32(1 << 20)];
    let (mut unfinished, mut rounds) = (0, 0);
    // This thread may not get to run until all is done; not each time.
    while unfinished == 0 {
        assert!(rounds < 10, "fifty million steps in no time");
        rounds += 1;
        for _ in 0..50 {
            launch(&mut queue, &scale, 1, &arguments).unwrap();
        }
        while !queue.is_finished().unwrap() {
            unfinished += 1;
            std::thread::yield_now();
        }
    }
    let expected = 3u32.wrapping_pow(rounds * (50 << 20));
    assert_eq!(words(&mut queue, &memory), [expected; GROUP as usize]);
}

#[test]
fn compiled_kernels_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let files = || {
        let entries = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().modified().unwrap())).collect::<Vec<_>>()
    };
    let run = |device: &Device| {
        let [_, _, _, scale] = kernels(device);
        let memory = device.memory_of(&bytes(&[2; GROUP as usize])).unwrap();
        let mut queue = device.queue().unwrap();
        let arguments = [(&memory).into(), Argument::U32(7), Argument::U32(1)];
        launch(&mut queue, &scale, 1, &arguments).unwrap();
        assert_eq!(words(&mut queue, &memory), [14; GROUP as usize]);
    };
    let Some(device) = device_with(Cache::at(folder.path())) else { return };
    run(&device);
    let kept = files();
    assert_eq!(kept.len(), 1);
    // Opened anew, it finds the file and leaves it as it is; a program that is compiled is written.
    drop(device);
    let Some(device) = device_with(Cache::at(folder.path())) else { return };
    run(&device);
    assert_eq!(files(), kept);
    // What does not load is compiled and written anew.
    std::fs::write(&kept[0].0, b"nonsense").unwrap();
    run(&device);
    assert!(std::fs::read(&kept[0].0).unwrap().len() > 40);
}

#[test]
fn compilers_say_what_they_miss() {
    let Some(device) = device() else { return };
    let mut wrong = program();
    wrong.source = "KERNEL void fold(GLOBAL u32 *x) { *x = nowhere; }".into();
    match device.build(&wrong) {
        Err(Error::Build { log }) => assert!(log.contains("nowhere"), "{log}"),
        other => panic!("{other:?}"),
    }
    let mut missing = program();
    missing.entries.push(Entry { name: "nowhere", parameters: &[] });
    assert!(matches!(device.build(&missing), Err(Error::Failed { call: "clCreateKernel", .. })));
    let mut large = program();
    large.local = u32::MAX;
    if device.description().local_memory < u32::MAX {
        assert!(matches!(device.build(&large), Err(Error::Misuse(_))));
    }
}

#[test]
fn a_group_that_is_too_large_is_refused() {
    let Some(device) = device() else { return };
    let mut program = program();
    program.group = 2 * device.description().group;
    program.local = 0;
    // A compiler may refuse it already.
    if let Ok(kernels) = device.build(&program) {
        let memory = device.memory(4 * program.group as usize).unwrap();
        let arguments = [(&memory).into(), Argument::U32(7), Argument::U32(1)];
        let launched = launch(&mut device.queue().unwrap(), &kernels[3], 1, &arguments);
        assert!(matches!(launched, Err(Error::Failed { .. })), "{launched:?}");
    }
}

#[test]
fn devices_that_are_not_there() {
    let Err(Error::Unavailable { device, why }) = Device::open(Id::OpenCl(1_000_000), Cache::none()) else {
        panic!("a device that is not there was opened, or failed otherwise");
    };
    println!("{device}: {why}");
    assert_eq!(device, "opencl:1000000");
    if !packetloom_device::list().0.contains(&Id::OpenCl(0)) {
        return;
    }
    assert!(why.contains("only"), "{why}");
}

/// The library is looked for once in a process, so each case is a process of its own, which runs this test again.
#[test]
fn without_library_or_drivers() {
    const CASE: &str = "PACKETLOOM_TEST_OPENCL";
    if let Ok(case) = std::env::var(CASE) {
        let (ids, missing) = packetloom_device::list();
        assert!(!ids.iter().any(|id| matches!(id, Id::OpenCl(_))), "{ids:?}");
        let said =
            missing.iter().map(ToString::to_string).find(|error| error.starts_with("opencl: ")).unwrap();
        println!("{said}");
        assert!(said.contains(if case == "library" { "library" } else { "driver" }), "{said}");
        let error = Device::open(Id::OpenCl(0), Cache::none()).expect_err("opened");
        assert!(matches!(error, Error::Unavailable { .. }) && error.to_string().starts_with("opencl:0: "));
        return;
    }
    if device().is_none() {
        return;
    }
    // A file that is no library stands before the real one; a folder without drivers instead of the real one.
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("libOpenCL.so.1"), b"").unwrap();
    for (case, variable) in [("library", "LD_LIBRARY_PATH"), ("drivers", "OCL_ICD_VENDORS")] {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--nocapture", "without_library_or_drivers"]);
        let output = again.env(CASE, case).env(variable, folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}: {said}");
        println!("{said}");
    }
}
