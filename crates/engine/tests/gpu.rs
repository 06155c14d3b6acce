//! What GPUs do by themselves. The test breaks the device for its process, so it is the only one here.

#![allow(missing_docs)]

mod support;

use std::path::Path;
use std::thread;
use std::time::Duration;

use packetloom_device::{Argument, Cache, Device, Entry, Parameter, Program};
use support::{How, results, traffic};

const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";

/// A kernel that waits for the host's word, and one that writes where there is nothing.
const BAD: &str = "\
KERNEL void stay(GLOBAL const u64 *word) {
  while (!load_acquire_64(word)) {
  }
}

KERNEL void crash(GLOBAL u64 *word, u64 far) {
  word[far] = 1;
}
";

fn gpu() -> Option<Device> {
    let cache = Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    let opened = packetloom_testing::accelerators().into_iter().map(|id| Device::open(id, cache.clone()));
    opened.map(|device| device.expect("it was listed")).find(|device| device.description().lanes > 1)
}

/// Memory that others have taken, a kernel that does not end, a launch that fails and breaks the device for
/// good. In one test, the last part of which ends what this process can do with the GPU.
#[test]
fn faults_of_a_gpu() {
    let Some(device) = gpu() else { return };
    let id = device.description().id;
    let capture = traffic(200_000, 200_000 / 20 + 1, 14);
    let (expected, _, _) = results(ACL, &capture, How::default());
    let run = |settings: &str, call: &mut (dyn FnMut() + Send)| {
        let settings = format!("device = \"{settings}\"\nmax_latency = \"1us\"\ndevice_timeout = \"500ms\"");
        let at: Option<(u64, Box<dyn FnMut() + Send>)> = Some((50_000, Box::new(call)));
        let how = How { settings: &settings, devices: vec![device.clone()], at, ..How::default() };
        let (found, shares, notices) = results(ACL, &capture, how);
        assert!(found == expected, "{id}: {notices:?}");
        let shares = shares.expect("a device was used");
        assert_eq!(shares.device + shares.here, 200_000);
        eprintln!("{shares:?} {notices:?}");
        (shares, notices)
    };
    let nothing = || {};
    let (shares, _) = run(&id.to_string(), &mut { nothing });
    assert!(shares.device > 190_000);

    // Somebody has all memory.
    let mut taken = Vec::new();
    for bytes in [1 << 30, 1 << 24, 1 << 21] {
        while let Ok(memory) = device.memory(bytes) {
            taken.push(memory);
        }
    }
    // Whether the run lasts until it is known that there is no room depends on the machine.
    let (shares, notices) = run("auto", &mut { nothing });
    assert!(shares.device == 0 && notices.iter().all(|notice| notice.contains("memory")), "{notices:?}");
    drop(taken);
    let (shares, _) = run(&id.to_string(), &mut { nothing });
    assert!(shares.device > 190_000);

    let program = Program {
        name: "bad",
        source: BAD.into(),
        defines: Vec::new(),
        group: 1024,
        groups_per_unit: 2,
        stays: false,
        local: 0,
        entries: vec![
            Entry { name: "stay", parameters: &[Parameter::Memory] },
            Entry { name: "crash", parameters: &[Parameter::Memory, Parameter::U64] },
        ],
    };
    let kernels = device.build(&program).expect("kernels");
    // All processors are waiting for a word that does not come for a while.
    let word = device.share(64).expect("memory");
    let (shares, notices) = thread::scope(|scope| {
        run(&id.to_string(), &mut || {
            let mut queue = device.queue().expect("a queue");
            let groups = device.description().units * 2;
            // SAFETY: it reads a word of memory until that changes.
            #[allow(unsafe_code)]
            unsafe { queue.launch_unchecked(&kernels[0], groups, &[(&word).into()]) }.expect("launched");
            scope.spawn(|| {
                let mut queue = queue;
                thread::sleep(Duration::from_secs(2));
                word.store(0, 1);
                queue.finish().expect("it ended");
            });
        })
    });
    assert!(shares.faults > 0 && shares.here > 100_000 && notices[0].contains("no answer"), "{notices:?}");
    let (shares, _) = run(&id.to_string(), &mut { nothing });
    assert!(shares.device > 190_000);

    let memory = device.memory(64).expect("memory");
    let (shares, notices) = run(&id.to_string(), &mut || {
        let mut queue = device.queue().expect("a queue");
        let far = [(&memory).into(), Argument::U64(1 << 44)];
        // SAFETY: it writes where nothing is, which the device finds: what this test is about. This process has no other memory there.
        #[allow(unsafe_code)]
        unsafe { queue.launch_unchecked(&kernels[1], 1, &far) }.expect("launched");
        queue.finish().expect_err("it writes where nothing is");
        queue.abandon();
    });
    assert!(shares.faults > 0 && shares.here > 100_000 && notices.len() == 1, "{notices:?}");
}
