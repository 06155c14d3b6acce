//! Drivers leave the handlers of signals alone. A process of its own: what a driver does it does once.

#![allow(missing_docs, unsafe_code)]

use packetloom_device::{Cache, Device, Entry, Error, Id, Parameter, Program};

/// The handlers of signals that others send.
fn handlers() -> Vec<(i32, usize)> {
    let all = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGUSR2,
    ];
    all.into_iter()
        .map(|signal| {
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: nothing is changed; the old action has room, and is written where the call succeeds.
            let action = unsafe {
                assert_eq!(libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()), 0, "{signal}");
                action.assume_init()
            };
            (signal, action.sa_sigaction)
        })
        .collect()
}

#[test]
fn opencl_leaves_handlers_of_signals_as_they_are() {
    let before = handlers();
    let device = match Device::open(Id::OpenCl(0), Cache::none()) {
        Ok(device) => device,
        Err(error @ Error::Unavailable { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    // Another text each time, so that no driver has it compiled.
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after the epoch");
    let program = Program {
        name: "signals",
        source: "KERNEL void add(GLOBAL u32 *x) {\n  if (group_index() == 0 && local_index() == 0) {\n    x[0] += ADDED;\n  }\n}\n".into(),
        defines: vec![("ADDED".into(), format!("{}u", time.subsec_nanos()))],
        group: 64,
        groups_per_unit: 1,
        stays: false,
        local: 0,
        entries: vec![Entry { name: "add", parameters: &[Parameter::Memory] }],
    };
    let add = device.build(&program).expect("a kernel").remove(0);
    assert_eq!(handlers(), before, "compiled");
    let memory = device.memory_of(&[0; 4]).expect("memory");
    let mut queue = device.queue().expect("a queue");
    for _ in 0..2 {
        // SAFETY: the kernel uses one word of its memory, which has one.
        unsafe { queue.launch_unchecked(&add, 1, &[(&memory).into()]) }.expect("launched");
        queue.finish().expect("done");
        assert_eq!(handlers(), before, "launched");
    }
}
