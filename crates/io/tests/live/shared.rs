//! Interfaces of one run that use AF_XDP: frames leave from the memory in which they came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use packetloom_io::port::{Backend, Egress, EgressCounts, Ingress, IngressCounts, Mode, OnExit, PortBackend};
use packetloom_io::{Polled, Sink, Source};
use packetloom_packet::batch::{Policy, empty_arena};
use packetloom_packet::{Address, Batch, End, Key, Rewrite};

use crate::ends::{SILENCE, echo, echo_within, ping, transfer};
use crate::frames::{self, Monitor};
use crate::links::PATIENCE;
use crate::net::{Net, SERVER};

/// What is sent over a connection in each direction.
const TRANSFER: usize = 20 << 20;
/// How long nothing may come before nothing more is expected.
const QUIET: Duration = Duration::from_millis(50);

/// Rewrites what is to be rewritten in a batch that is parsed.
type Hook = Box<dyn FnMut(&mut Batch) + Send>;

/// A run in a thread, as small as one can be, between the product's interfaces.
struct Run {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// What has come and left by each interface.
#[derive(Debug)]
struct Seen {
    ingress: Vec<IngressCounts>,
    egress: Vec<EgressCounts>,
}

impl Run {
    fn start(net: &Net, mut hook: Hook) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = net.product.spawn(move || {
            let interfaces = ["pa".to_owned(), "pb".to_owned()];
            let mut ingress =
                Ingress::open(&interfaces, Mode::Inline, Backend::AfXdp, OnExit::Closed).expect("opened");
            let mut egress = Egress::new(ingress.senders());
            ready.send(()).expect("waited for");
            let (mut batch, mut last) = (Batch::new(256), Instant::now());
            while !stopped.load(Ordering::Relaxed) || last.elapsed() < QUIET {
                if ingress.poll(&mut batch).expect("received") != Polled::Frames {
                    ingress.wait(QUIET).expect("waited");
                    continue;
                }
                last = Instant::now();
                batch.parse(Policy::PASS);
                hook(&mut batch);
                egress.send_passed(&mut batch);
                batch.reset(empty_arena());
            }
            Seen { ingress: ingress.ingress_counts().expect("counted"), egress: egress.egress_counts() }
        });
        is_ready.recv().expect("opened");
        Self { stop, thread }
    }

    fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Seen {
    /// Frames that were received, and those of them that were copied then.
    fn received(&self) -> (u64, u64) {
        let of = |of: fn(&IngressCounts) -> u64| self.ingress.iter().map(of).sum();
        (of(|port| port.counts.received), of(|port| port.counts.copied))
    }

    /// Frames that were sent, those that were not, and those that were copied to be sent.
    fn sent(&self) -> (u64, u64, u64) {
        let not_sent = self.egress.iter().flat_map(EgressCounts::not_sent).map(|(_, count)| count).sum();
        let of = |of: fn(&EgressCounts) -> u64| self.egress.iter().map(of).sum();
        (of(|port| port.counts.sent), not_sent, of(|port| port.counts.copied))
    }

    /// Every frame is in one count, and none was copied.
    fn assert_none_is_copied(&self) {
        let ((received, copied), (sent, not_sent, copied_to_send)) = (self.received(), self.sent());
        assert_eq!((received, copied, copied_to_send), (sent + not_sent, 0, 0), "{self:?}");
        assert!(self.ingress.iter().all(|port| port.counts.unsound == 0), "{self:?}");
    }
}

fn pass() -> Hook {
    Box::new(|_| {})
}

fn comes_back(net: &Net) {
    let begin = Instant::now();
    while echo_within(net, SERVER[0], &[100], SILENCE).is_err() {
        assert!(begin.elapsed() < PATIENCE, "no answer");
    }
}

#[test]
fn frames_leave_from_where_they_came() {
    let Some(net) = Net::new() else { return };
    let run = Run::start(&net, pass());
    for address in SERVER {
        ping(&net, address, 10).expect("pinged");
        echo(&net, address, &[0, 1, 17, 100, 1_000, 1_452, 4_000, 60_000]).expect("an answer");
        transfer(&net, address, TRANSFER);
    }
    let seen = run.stop();
    seen.assert_none_is_copied();
    assert!(seen.ingress.iter().all(|port| port.backend == PortBackend::AfXdpNative));
    assert!(seen.received().0 > 10_000, "{seen:?}");
}

/// The same, with each byte looked at: lengths, tags, checksums that are partial and such that are not.
#[test]
fn frames_are_kept_as_they_came() {
    let Some(net) = Net::new() else { return };
    let run = Run::start(&net, pass());
    let plain = frames::udp(&net, &[0x77; 100]);
    let mut sent =
        vec![frames::tagged(&plain, &[(0x8100, 5)]), frames::tagged(&plain, &[(0x88a8, 100), (0x8100, 7)])];
    sent.extend((18..1_473).step_by(7).map(|len| frames::udp(&net, &vec![len as u8; len])));
    let mut client = net.client.run(|| Monitor::open("c0"));
    let mut receiver = net.server.run(|| Monitor::open("s0"));
    for _ in 0..20 {
        client.send_numbered(&sent);
        let received = receiver.collect(frames::is_ours, sent.len());
        for (received, sent) in received.iter().zip(&sent) {
            assert!(received.bytes == *sent, "{:02x?} came of {:02x?}", &received.bytes[..24], &sent[..24]);
        }
    }
    run.stop().assert_none_is_copied();
}

/// The client talks to an address that is the server's only behind a translation: what is rewritten is so where it lies.
#[test]
fn rewritten_frames_stay_where_they_came() {
    let Some(net) = Net::new() else { return };
    for (place, address) in ["10.9.0.77", "fd09::77"].into_iter().enumerate() {
        let mac = net.server.mac("s0").map(|byte| format!("{byte:02x}")).join(":");
        net.client.ip(&format!("neigh add {address} lladdr {mac} dev c0")).expect("a neighbour");
        let of = |text: &str| match text.parse().expect("an address") {
            std::net::IpAddr::V4(address) => Address::V4(address.to_bits()),
            std::net::IpAddr::V6(address) => {
                Address::V6([(address.to_bits() >> 64) as u64, address.to_bits() as u64])
            }
        };
        let (real, translated) = (of(SERVER[place]), of(address));
        let translate: Hook = Box::new(move |batch| {
            for frame in 0..batch.len() as u32 {
                let key = match batch.parsed()[frame as usize] {
                    packetloom_packet::batch::Parsed::V4(at) => Key::V4(batch.v4().keys[at as usize]),
                    packetloom_packet::batch::Parsed::V6(at) => Key::V6(batch.v6().keys[at as usize]),
                    packetloom_packet::batch::Parsed::Rejected(_) => continue,
                };
                let (from, to) = match key {
                    Key::V4(key) => (Address::V4(key.source), Address::V4(key.destination)),
                    Key::V6(key) => (Address::V6(key.source), Address::V6(key.destination)),
                };
                let rewrite = |end, address| Rewrite { frame, end, address, port: None };
                if to == translated {
                    batch.rewrite(rewrite(End::Destination, real));
                } else if from == real {
                    batch.rewrite(rewrite(End::Source, translated));
                }
            }
        });
        let run = Run::start(&net, translate);
        echo(&net, address, &[0, 1, 100, 1_452]).expect("an answer");
        transfer(&net, address, TRANSFER);
        run.stop().assert_none_is_copied();
    }
}

/// Frames in several chunks of memory are copied, all others are not.
#[test]
fn jumbo_frames_pass() {
    let Some(net) = Net::new() else { return };
    for (namespace, interface) in
        [(&net.client, "c0"), (&net.product, "pa"), (&net.product, "pb"), (&net.server, "s0")]
    {
        namespace.ip(&format!("link set {interface} mtu 9000")).expect("set");
    }
    let run = Run::start(&net, pass());
    for address in SERVER {
        echo(&net, address, &[100, 1_472, 2_000, 3_700, 5_000, 8_950, 20_000]).expect("an answer");
        transfer(&net, address, TRANSFER);
    }
    let seen = run.stop();
    let ((received, copied), (sent, not_sent, copied_to_send)) = (seen.received(), seen.sent());
    assert_eq!((received, copied_to_send), (sent + not_sent, copied), "{seen:?}");
    assert!(copied > 1_000 && received > copied, "{seen:?}");
}

/// One interface goes and comes back, then the other one, then both at once: nothing of the memory is lost, and no frame is copied.
#[test]
fn interfaces_go_and_come_back() {
    let Some(net) = Net::new() else { return };
    let run = Run::start(&net, pass());
    let connect = || {
        net.connect_a().expect("made again");
        comes_back(&net);
    };
    comes_back(&net);
    for _ in 0..3 {
        net.product.ip("link del pa").expect("removed");
        std::thread::sleep(QUIET);
        connect();
        transfer(&net, SERVER[0], TRANSFER / 10);
    }
    let move_away = |interface: &str| {
        net.product.ip(&format!("link set {interface} netns {}", net.client.name())).expect("moved");
    };
    let move_back = |interface: &str| {
        net.client.ip(&format!("link set {interface} netns {}", net.product.name())).expect("moved back");
        net.product.ip(&format!("link set {interface} up")).expect("up");
    };
    for both in [false, true, true] {
        move_away("pb");
        if both {
            move_away("pa");
        }
        std::thread::sleep(QUIET);
        move_back("pb");
        if both {
            std::thread::sleep(QUIET);
            move_back("pa");
        }
        comes_back(&net);
        transfer(&net, SERVER[0], TRANSFER / 10);
    }
    let seen = run.stop();
    let ((received, copied), (sent, not_sent, copied_to_send)) = (seen.received(), seen.sent());
    assert_eq!((received, copied, copied_to_send), (sent + not_sent, 0, 0), "{seen:?}");
}

/// A flood in both directions that the run cannot carry: what is dropped is counted, and it goes on.
#[test]
fn a_flood_loses_no_memory() {
    let Some(net) = Net::new() else { return };
    // Batches are kept for a while, so that rings run full.
    let run = Run::start(&net, Box::new(|_| std::thread::sleep(Duration::from_micros(300))));
    let mut client = net.client.run(|| Monitor::open("c0"));
    let mut server = net.server.run(|| Monitor::open("s0"));
    let there = vec![frames::udp(&net, &[1; 700]); 30_000];
    let back: Vec<_> =
        there.iter().map(|frame| [&frame[6..12], &frame[..6], &frame[12..]].concat()).collect();
    for _ in 0..3 {
        client.send_numbered(&there);
        server.send_numbered(&back);
    }
    client.rest(frames::is_ours, QUIET);
    server.rest(frames::is_ours, QUIET);
    comes_back(&net);
    transfer(&net, SERVER[0], TRANSFER / 10);
    let seen = run.stop();
    let ((received, _), (sent, not_sent, _)) = (seen.received(), seen.sent());
    assert_eq!(received, sent + not_sent, "{seen:?}");
    assert!(received > 20_000, "{seen:?}");
}
