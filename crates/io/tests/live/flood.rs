//! What a forwarder carries by packet sockets and by AF_XDP, and what CPU time a frame takes, over the same links in turns.
//!
//! The source costs next to nothing: the kernel sends one frame again and again by an XDP program that is run as a test
//! (`BPF_F_TEST_XDP_LIVE_FRAMES`), without a copy. Rates hang on the machine; the ratios are what is asked for.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use packetloom_io::port::{Backend, Guard, Options};

use crate::forwarder::{Action, Forwarder, Seen, cpu_nanos, options};
use crate::frames;
use crate::net::Net;

const PROGRAM_LOAD: i32 = 5;
const PROGRAM_TEST_RUN: i32 = 10;
const LIVE_FRAMES: u32 = 2;
/// Frames of a burst that rings hold, and how many of these.
const BURST: u32 = 2_000;
const BURSTS: usize = 40;
/// Frames of a flood.
const FLOOD: u32 = 2_000_000;
const ROUNDS: usize = 5;

/// A program that sends frames out of an interface.
struct Source(i32);

impl Source {
    /// By an interface of the calling thread's namespace.
    fn new(index: u32) -> Self {
        let instruction = |code: u8, registers: u8, value: u32| {
            u64::from(code) | u64::from(registers) << 8 | u64::from(value) << 32
        };
        // r1 = index; r2 = 0; bpf_redirect; exit
        let code = [
            instruction(0xb7, 1, index),
            instruction(0xb7, 2, 0),
            instruction(0x85, 0, 23),
            instruction(0x95, 0, 0),
        ];
        let mut attributes = [0u32; 32];
        attributes[0] = 6;
        attributes[1] = code.len() as u32;
        put(&mut attributes, 2, code.as_ptr().addr());
        put(&mut attributes, 4, c"GPL".as_ptr().addr());
        Self(bpf(PROGRAM_LOAD, &attributes))
    }

    /// Sends a frame as often.
    fn send(&self, frame: &[u8], count: u32) {
        let context = [0u32, frame.len() as u32, 0, 0, 0, 0];
        let mut attributes = [0u32; 32];
        attributes[0] = self.0 as u32;
        attributes[2] = frame.len() as u32;
        put(&mut attributes, 4, frame.as_ptr().addr());
        attributes[8] = count;
        attributes[10] = size_of_val(&context) as u32;
        put(&mut attributes, 12, context.as_ptr().addr());
        attributes[16] = LIVE_FRAMES;
        attributes[18] = 64;
        bpf(PROGRAM_TEST_RUN, &attributes);
    }
}

fn put(attributes: &mut [u32; 32], at: usize, address: usize) {
    attributes[at] = address as u32;
    attributes[at + 1] = (address as u64 >> 32) as u32;
}

fn bpf(command: i32, attributes: &[u32; 32]) -> i32 {
    // SAFETY: the attributes are those of the commands above; what they point to lives in the callers until this returns.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes[..20])) };
    assert!(result >= 0, "bpf: {}", std::io::Error::last_os_error());
    result as i32
}

fn pin(core: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores).expect("pinned");
}

/// What a round has shown.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    /// Million frames per second that left, in a flood.
    rate: f64,
    /// Nanoseconds of CPU time for each frame, to bring it to the port and to forward it, where none is lost.
    bring: f64,
    forward: f64,
}

fn forwarder(net: &Net, backend: Backend) -> Forwarder {
    let with = |place| -> Options {
        let mut options = options(place);
        options.backend = backend;
        options
    };
    let mut is_pinned = false;
    let hook = Box::new(move |_: usize, _: &[u8], _| {
        if !is_pinned {
            pin(1);
            is_pinned = true;
        }
        Action::Pass
    });
    Forwarder::with(net, [with(0), with(1)], true, hook)
}

fn round(net: &Net, backend: Backend, frame: &[u8]) -> Shown {
    let index = net.client.index("c0");
    let forwarder_of_floods = forwarder(net, backend);
    let seconds = net.client.run(|| {
        pin(0);
        let source = Source::new(index);
        source.send(frame, 1_000);
        let begin = Instant::now();
        source.send(frame, FLOOD);
        begin.elapsed().as_secs_f64()
    });
    let seen = forwarder_of_floods.stop();
    let rate = seen.sent[1].sent as f64 / seconds / 1e6;
    let forwarder = forwarder(net, backend);
    let cpu = net.client.run(|| {
        pin(0);
        let source = Source::new(index);
        let begin = cpu_nanos();
        for _ in 0..BURSTS {
            source.send(frame, BURST);
            std::thread::sleep(Duration::from_millis(5));
        }
        cpu_nanos() - begin
    });
    let Seen { statistics: [came, _], sent: [_, left], busy_nanos, .. } = forwarder.stop();
    eprintln!("    {} of {} frames came, {} left", came.received, BURST as usize * BURSTS, left.sent);
    Shown {
        rate,
        bring: cpu as f64 / came.received.max(1) as f64,
        forward: busy_nanos as f64 / left.sent.max(1) as f64,
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn af_xdp_carries_more_than_packet_sockets() {
    if !packetloom_testing::sweep("floods between namespaces by both backends") {
        return;
    }
    let Some(net) = Net::alone() else { return };
    // Without it, frames that no socket buffer was made for are lost where no XDP program is.
    net.product.exec("ethtool -K pa gro on").expect("set");
    // The server drops what comes, as early as possible.
    let _sink = net.server.run(|| Guard::install("s0").expect("a guard"));
    for payload in [18, 1_472] {
        let frame = frames::udp(&net, &vec![0; payload]);
        let mut shown: [Vec<Shown>; 2] = Default::default();
        for number in 0..ROUNDS {
            for (backend, shown) in [Backend::AfPacket, Backend::AfXdp].into_iter().zip(&mut shown) {
                let new = round(&net, backend, &frame);
                eprintln!(
                    "{} bytes, round {number}, {backend:?}: {:.2} Mpps in a flood; {:.0} ns to bring a frame, {:.0} ns to forward it",
                    frame.len(),
                    new.rate,
                    new.bring,
                    new.forward
                );
                shown.push(new);
            }
        }
        let [packet, xdp] = shown.map(|shown| {
            (
                median(shown.iter().map(|shown| shown.rate).collect()),
                median(shown.iter().map(|shown| shown.bring + shown.forward).collect()),
                // Whatever else the machine does makes it slower, never faster.
                shown.iter().map(|shown| shown.rate).fold(0.0, f64::max),
                shown.iter().map(|shown| shown.bring + shown.forward).fold(f64::INFINITY, f64::min),
            )
        });
        eprintln!(
            "{} bytes: floods {:.2} and {:.2} Mpps, {:.2} x; CPU a frame {:.0} and {:.0} ns, {:.2} x",
            frame.len(),
            packet.0,
            xdp.0,
            xdp.0 / packet.0,
            packet.1,
            xdp.1,
            xdp.1 / packet.1
        );
        assert!(xdp.2 > packet.2 && xdp.3 < packet.3, "{packet:?} {xdp:?}");
    }
}
