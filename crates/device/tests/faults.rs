//! Faults of the host's device are seen where they were asked for, and what waits for a device that hangs comes to an end.

use std::time::{Duration, Instant};

use packetloom_device::faults::{Call, Chances, Counts, Faults};
use packetloom_device::{
    Argument, Cache, Device, Entry, Error, Id, Loaded, Memory, Parameter, Program, Queue,
};

const LONG: Duration = Duration::from_secs(30);

/// The host with faults, and a kernel that adds a number to the first word.
fn faulty() -> (Device, Faults, Loaded) {
    let faults = Faults::new();
    let host = Device::open(Id::Host, Cache::none()).expect("a C compiler with sanitisers");
    let device = host.with_faults(&faults);
    let program = Program {
        name: "faults_test",
        source: "KERNEL void add(GLOBAL u32 *words, u32 number) { words[0] += number; }\n".into(),
        defines: Vec::new(),
        group: 1,
        groups_per_unit: 1,
        stays: false,
        local: 0,
        entries: vec![Entry { name: "add", parameters: &[Parameter::Memory, Parameter::U32] }],
    };
    let kernel = device.build(&program).expect("compiles").remove(0);
    (device, faults, kernel)
}

/// Launches a kernel of this file.
#[allow(unsafe_code)]
fn launch(queue: &mut Queue, kernel: &Loaded, groups: u32, arguments: &[Argument<'_>]) -> Result<(), Error> {
    // SAFETY: the tests give kernels the memory that their texts use.
    unsafe { queue.launch_unchecked(kernel, groups, arguments) }
}

fn add(queue: &mut Queue, kernel: &Loaded, memory: &Memory, number: u32) -> Result<(), Error> {
    launch(queue, kernel, 1, &[memory.into(), Argument::U32(number)])
}

fn word(queue: &mut Queue, memory: &Memory) -> u32 {
    let mut bytes = [0; 4];
    queue.read(memory, 0, &mut bytes).expect("reads");
    u32::from_le_bytes(bytes)
}

fn call(error: Error) -> &'static str {
    match error {
        Error::Failed { call, .. } => call,
        other => panic!("{other:?}"),
    }
}

/// Whatever threads of a name do meanwhile.
#[test]
fn a_fault_leaves_threads_of_a_name_alone() {
    let (device, faults, _) = faulty();
    let elsewhere = || {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("copy".into());
            thread
                .spawn_scoped(scope, || device.memory(4).is_ok())
                .expect("a thread")
                .join()
                .expect("no panic")
        })
    };
    faults.fail_beside("copy", Call::Allocation, 1);
    assert!(elsewhere() && elsewhere() && device.memory(4).is_ok() && elsewhere());
    assert_eq!(device.memory(8).err(), Some(Error::OutOfMemory { bytes: 8 }));
    assert!(device.memory(4).is_ok() && elsewhere());
    assert_eq!(faults.counts(Call::Allocation).faults, 1);
}

#[test]
fn each_fault_is_seen_once() {
    let (device, faults, kernel) = faulty();
    let memory = device.memory_of(&1_u32.to_le_bytes()).expect("memory");
    let mut shared = device.share(4).expect("memory");
    shared.store(0, 50);
    let mut queue = device.queue().expect("a queue");

    faults.fail(Call::Allocation, 1);
    assert!(device.memory(4).is_ok());
    assert_eq!(device.memory(4).err(), Some(Error::OutOfMemory { bytes: 4 }));
    assert!(device.memory(4).is_ok());
    faults.fail(Call::Allocation, 0);
    assert_eq!(device.share(9).err(), Some(Error::OutOfMemory { bytes: 9 }));

    // What fails is not done, and the queue goes on.
    faults.fail(Call::Launch, 0);
    faults.fail(Call::Launch, 2);
    assert_eq!(call(add(&mut queue, &kernel, &memory, 10).expect_err("the first")), "launch");
    add(&mut queue, &kernel, &memory, 100).expect("the second");
    assert_eq!(call(add(&mut queue, &kernel, &memory, 1000).expect_err("the third")), "launch");
    assert_eq!(word(&mut queue, &memory), 101);

    faults.fail(Call::Copy, 0);
    assert_eq!(call(queue.copy_in(&mut shared, 0..4, &memory, 0).expect_err("a copy")), "copy");
    assert_eq!(word(&mut queue, &memory), 101);
    faults.fail(Call::Copy, 1);
    queue.copy_in(&mut shared, 0..4, &memory, 0).expect("copies");
    assert_eq!(call(queue.read(&memory, 0, &mut [0]).expect_err("a copy")), "copy");
    queue.finish().expect("finishes");
    assert_eq!(word(&mut queue, &memory), 50);

    // A queue that failed says so at every call, without the device; others are as before.
    for wait in 0..3 {
        faults.fail(Call::Finish, 0);
        add(&mut queue, &kernel, &memory, 1).expect("launches");
        let error = match wait {
            0 => queue.finish().expect_err("a wait"),
            1 => queue.is_finished().expect_err("a wait"),
            _ => queue.finish_within(LONG).expect_err("a wait"),
        };
        let before = [Call::Copy, Call::Launch, Call::Finish].map(|call| faults.counts(call));
        for _ in 0..3 {
            assert_eq!(queue.finish(), Err(error.clone()));
            assert_eq!(queue.is_finished(), Err(error.clone()));
            assert_eq!(queue.finish_within(LONG), Err(error.clone()));
            assert_eq!(add(&mut queue, &kernel, &memory, 1), Err(error.clone()));
            assert_eq!(queue.write(&memory, 0, &[1]), Err(error.clone()));
            assert_eq!(queue.copy_out(&memory, 0..1, &mut shared, 0), Err(error.clone()));
        }
        assert_eq!(before, [Call::Copy, Call::Launch, Call::Finish].map(|call| faults.counts(call)));
        queue = device.queue().expect("a queue");
        assert_eq!(word(&mut queue, &memory), 51 + wait);
        assert_eq!(faults.queues(), 1, "the one that failed is done, so it is closed");
    }

    let faulted = |call| faults.counts(call).faults;
    assert_eq!([Call::Allocation, Call::Copy, Call::Launch, Call::Finish].map(faulted), [2, 2, 2, 3]);
    assert_eq!(faults.counts(Call::Launch).calls, 6);
    assert_eq!(faults.memories(), 2);
    drop((memory, shared, queue));
    assert_eq!((faults.memories(), faults.queues()), (0, 0));
}

#[test]
fn a_device_that_hangs_is_waited_for_so_long() {
    let (device, faults, kernel) = faulty();
    let memory = device.memory_of(&[0; 4]).expect("memory");
    let mut queue = device.queue().expect("a queue");
    assert_eq!(queue.finish_within(Duration::ZERO), Ok(true));
    faults.hang();
    add(&mut queue, &kernel, &memory, 3).expect("launches");
    for limit in [0, 1, 60].map(Duration::from_millis) {
        let start = Instant::now();
        assert_eq!(queue.finish_within(limit), Ok(false));
        assert!(start.elapsed() >= limit && start.elapsed() < limit + Duration::from_secs(60));
    }
    assert_eq!(queue.is_finished(), Ok(false));
    let finishes = faults.counts(Call::Finish);
    std::thread::scope(|scope| {
        // Without a limit, and with one that is long.
        let other = scope.spawn(|| {
            let mut queue = device.queue().expect("a queue");
            queue.finish()
        });
        let waiting = scope.spawn(|| queue.finish_within(LONG));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!other.is_finished() && !waiting.is_finished() && faults.hangs());
        faults.release();
        assert_eq!(other.join().expect("no panic"), Ok(()));
        assert_eq!(waiting.join().expect("no panic"), Ok(true));
    });
    assert_eq!(word(&mut queue, &memory), 3);
    add(&mut queue, &kernel, &memory, 4).expect("launches");
    queue.finish().expect("finishes");
    assert_eq!(word(&mut queue, &memory), 7);
    let Counts { calls, faults } = faults.counts(Call::Finish);
    assert_eq!((calls, faults), (finishes.calls + 5, 0), "a hang that was released is no fault");
}

#[test]
fn a_queue_that_hangs_can_be_left_alone() {
    let (device, faults, kernel) = faulty();
    let memory = device.memory_of(&[0; 4]).expect("memory");
    let mut shared = device.share(4).expect("memory");
    let unused = device.memory(4).expect("memory");
    let start = Instant::now();

    faults.hang();
    let mut queue = device.queue().expect("a queue");
    add(&mut queue, &kernel, &memory, 3).expect("launches");
    queue.copy_out(&memory, 0..4, &mut shared, 0).expect("copies");
    assert_eq!(queue.finish_within(Duration::from_millis(1)), Ok(false));
    queue.abandon();
    // What it used is there still, and what a driver would wait for.
    drop((shared, unused));
    assert_eq!((faults.memories(), faults.queues()), (3, 1));
    assert!(device.settle().is_err());
    assert!(device.memory(4).is_err() && device.share(4).is_err());
    // Another queue is as good as the device.
    let mut other = device.queue().expect("a queue");
    add(&mut other, &kernel, &memory, 4).expect("launches");
    assert_eq!(other.finish_within(Duration::from_millis(1)), Ok(false));
    assert!(start.elapsed() < Duration::from_secs(60));

    faults.release();
    assert_eq!(other.finish_within(LONG), Ok(true));
    assert_eq!(word(&mut other, &memory), 7);
    assert_eq!(device.settle(), Ok(()));
    assert_eq!((faults.memories(), faults.queues()), (1, 1));
    assert!(device.memory(4).is_ok());

    // One that is done is just closed.
    other.abandon();
    assert_eq!(faults.queues(), 0);
}

/// Without faults: a kernel that does not end until it is told to, on what devices there are.
#[test]
fn a_kernel_that_hangs_is_left_alone() {
    for id in packetloom_device::list().0 {
        let Ok(device) = Device::open(id, Cache::none()) else { continue };
        if !device.description().shares {
            continue;
        }
        let program = Program {
            name: "hang_test",
            source: "KERNEL void turns(GLOBAL volatile u32 *words, GLOBAL u32 *out) {
                       while (words[0] == 0) {}
                       out[0] = words[1];
                     }\n"
            .into(),
            defines: Vec::new(),
            group: 1,
            groups_per_unit: 1,
            stays: false,
            local: 0,
            entries: vec![Entry { name: "turns", parameters: &[Parameter::Memory, Parameter::Memory] }],
        };
        let kernel = device.build(&program).expect("compiles").remove(0);
        let (words, out) = (device.share(8).expect("memory"), device.share(4).expect("memory"));
        let unused = device.memory(1 << 20).expect("memory");
        let mut queue = device.queue().expect("a queue");
        let start = Instant::now();
        launch(&mut queue, &kernel, 1, &[(&words).into(), (&out).into()]).expect("launches");
        let finished = queue.finish_within(Duration::from_millis(30));
        queue.abandon();
        drop((unused, kernel));
        let settled = device.settle();
        let took = start.elapsed();
        let said = device.memory(1);
        // Whatever is found wrong, the device is let go before that is told.
        words.store(4, 77);
        words.store(0, 1);
        assert_eq!(finished, Ok(false), "{id}");
        assert!(settled.is_err() && said.is_err(), "{id}");
        assert!(took < Duration::from_secs(60), "{id}: {took:?}");
        let start = Instant::now();
        while device.settle().is_err() {
            assert!(start.elapsed() < LONG, "{id}");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(out.load(0), 77, "{id}");
        let memory = device.memory_of(&[1, 2, 3]).expect("memory");
        let mut bytes = [0; 3];
        device.queue().expect("a queue").read(&memory, 0, &mut bytes).expect("reads");
        assert_eq!(bytes, [1, 2, 3], "{id}");
        println!("{id}: left alone");
    }
}

#[test]
fn a_device_disappears_and_comes_back() {
    let (device, faults, kernel) = faulty();
    let memory = device.memory_of(&5_u32.to_le_bytes()).expect("memory");
    let extra = device.memory(4).expect("memory");
    let (mut working, mut idle) = (device.queue().expect("a queue"), device.queue().expect("a queue"));
    add(&mut working, &kernel, &memory, 1).expect("launches");
    // Who waits for a device that hangs learns that it is gone.
    faults.hang();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| working.finish());
        std::thread::sleep(Duration::from_millis(20));
        faults.disappear();
        assert_eq!(call(waiting.join().expect("no panic").expect_err("gone")), "finish");
    });
    faults.release();
    assert!(faults.is_gone());
    assert!(matches!(device.memory(4), Err(Error::Failed { .. })));
    assert!(device.share(4).is_err() && device.queue().is_err() && device.memory_of(&[1]).is_err());
    assert_eq!(call(add(&mut idle, &kernel, &memory, 1).expect_err("gone")), "launch");
    assert_eq!(call(idle.write(&memory, 0, &[0]).expect_err("gone")), "copy");
    let gone = working.finish().expect_err("gone");
    drop((working, extra));
    assert_eq!(device.settle(), Err(gone));
    assert_eq!((faults.memories(), faults.queues()), (2, 2));

    faults.restore();
    assert_eq!(device.settle(), Ok(()));
    assert_eq!((faults.memories(), faults.queues()), (1, 1));
    // Nothing was queued there that could have failed.
    add(&mut idle, &kernel, &memory, 10).expect("launches");
    assert_eq!(word(&mut idle, &memory), 16);
}

#[test]
fn a_queue_does_not_wait_for_one_that_failed_or_is_another_devices() {
    let (device, faults, kernel) = faulty();
    let memory = device.memory_of(&[0; 4]).expect("memory");
    let [mut queue, mut other] = [device.queue().expect("a queue"), device.queue().expect("a queue")];
    add(&mut other, &kernel, &memory, 3).expect("queued");
    queue.wait_for(&other).expect("ordered");
    add(&mut queue, &kernel, &memory, 4).expect("queued");
    assert_eq!(word(&mut queue, &memory), 7);
    let stranger = Device::open(Id::Host, Cache::none()).expect("it was opened").queue().expect("a queue");
    assert!(matches!(queue.wait_for(&stranger), Err(Error::Misuse(_))));
    faults.disappear();
    assert_eq!(call(queue.wait_for(&other).expect_err("it is gone")), "order queues");
    faults.restore();
    queue.wait_for(&other).expect("nothing was queued, and the queue goes on");
    faults.fail(Call::Finish, 0);
    assert_eq!(call(other.finish().expect_err("a fault")), "finish");
    assert_eq!(call(queue.wait_for(&other).expect_err("it failed")), "finish");
    add(&mut queue, &kernel, &memory, 1).expect("the other queue's failure is not its own");
}

#[test]
fn a_device_with_faults_is_another_device() {
    let host = Device::open(Id::Host, Cache::none()).expect("a C compiler with sanitisers");
    let faults = Faults::new();
    let faulty = host.with_faults(&faults);
    assert_eq!(faulty.description(), host.description());
    faults.disappear();
    let memory = host.memory_of(&[1, 2, 3]).expect("the host has no faults");
    faults.restore();
    let mut queue = faulty.queue().expect("a queue");
    assert!(matches!(queue.read(&memory, 0, &mut [0]), Err(Error::Misuse(_))));
    assert_eq!(faults.counts(Call::Copy), Counts::default());
}

/// Rounds of an allocation, a copy, a launch and a copy back; gives what failed, by kind, in order.
fn rounds(count: u32, seed: u64) -> Vec<(u32, Call)> {
    let (device, faults, kernel) = faulty();
    let memory = device.memory(4).expect("memory");
    let mut queue = device.queue().expect("a queue");
    faults.at_random(seed, Chances { allocation: 0.1, copy: 0.05, launch: 0.2, finish: 0.05 });
    let mut failed = Vec::new();
    // Of each kind, calls that were made.
    let mut calls = [1, 0, 0, 0];
    // None where a wait failed: what was waited for may have been done or not.
    let mut known = None;
    for round in 0..count {
        calls[Call::Allocation as usize] += 1;
        match device.memory(100) {
            Ok(memory) => assert_eq!(memory.len(), 100),
            Err(error) => {
                assert_eq!(error, Error::OutOfMemory { bytes: 100 });
                failed.push((round, Call::Allocation));
            }
        }
        for step in 0..3 {
            let mut bytes = round.to_le_bytes();
            let (kind, done) = match step {
                0 => (Call::Copy, queue.write(&memory, 0, &bytes)),
                1 => (Call::Launch, add(&mut queue, &kernel, &memory, 7).and_then(|()| queue.finish())),
                _ => (Call::Copy, queue.read(&memory, 0, &mut bytes)),
            };
            calls[kind as usize] += 1;
            match done {
                Ok(()) => {
                    calls[Call::Finish as usize] += 1;
                    match step {
                        0 => known = Some(round),
                        1 => known = known.map(|word| word + 7),
                        _ => assert!(known.is_none_or(|word| word.to_le_bytes() == bytes), "round {round}"),
                    }
                }
                Err(Error::Failed { call: "finish", .. }) => {
                    calls[Call::Finish as usize] += 1;
                    failed.push((round, Call::Finish));
                    known = None;
                    queue = device.queue().expect("a queue");
                }
                Err(error) => {
                    assert_eq!(call(error), if kind == Call::Copy { "copy" } else { "launch" });
                    failed.push((round, kind));
                }
            }
        }
    }
    for kind in [Call::Allocation, Call::Copy, Call::Launch, Call::Finish] {
        let seen = failed.iter().filter(|failed| failed.1 == kind).count() as u64;
        assert_eq!(faults.counts(kind), Counts { calls: calls[kind as usize], faults: seen }, "{kind:?}");
        assert!(seen > 0 || count < 100, "{kind:?}");
    }
    assert_eq!((faults.memories(), faults.queues()), (1, 1));
    failed
}

#[test]
fn faults_at_random_are_all_seen() {
    rounds(300, 1);
    assert_eq!(rounds(30, 2), rounds(30, 2));
    assert_ne!(rounds(30, 2), rounds(30, 3));
}
