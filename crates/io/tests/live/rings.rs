//! What comes out of a port's rings: tags, order, cuts, counts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packetloom_io::Error;
use packetloom_io::port::{Guard, Mode, Offload, Options, Outgoing, Port, ReceiveBuffer, wait};
use packetloom_packet::Batch;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::forwarder::{Action, Forwarder, cpu_nanos, options};
use crate::frames::{self, Monitor};
use crate::net::Net;

/// How long nothing may come before nothing more is expected.
const QUIET: Duration = Duration::from_millis(300);

#[test]
fn tags_are_kept() {
    let Some(net) = Net::new() else { return };
    let plain = frames::udp(&net, &[0x77; 100]);
    let full = frames::udp(&net, &[0x55; 1_472]);
    assert_eq!(full.len(), 1_514);
    let cases: &[&[(u16, u16)]] = &[
        &[],
        &[(0x8100, 5)],
        &[(0x8100, 0)],
        &[(0x8100, 0xffff)],
        &[(0x88a8, 0x2064)],
        &[(0x88a8, 0)],
        &[(0x88a8, 100), (0x8100, 7)],
        &[(0x8100, 100), (0x8100, 7)],
        &[(0x9100, 3)],
    ];
    let mut sent: Vec<_> = cases.iter().map(|tags| frames::tagged(&plain, tags)).collect();
    // The longest frames that one tag leaves room for.
    sent.push(full.clone());
    sent.push(frames::tagged(&full, &[(0x8100, 5)]));
    for is_forwarded in [false, true] {
        let forwarder = is_forwarded.then(|| Forwarder::start(&net));
        let mut client = net.client.run(|| Monitor::open("c0"));
        let mut receiver = if is_forwarded {
            net.server.run(|| Monitor::open("s0"))
        } else {
            net.product.run(|| Monitor::open("pa"))
        };
        let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch").as_nanos() as u64;
        client.send_numbered(&sent);
        let received = receiver.collect(frames::is_ours, sent.len());
        for ((received, sent), last) in received.iter().zip(&sent).zip(
            received.iter().map(|f| f.nanos).scan(before, |last, nanos| Some(std::mem::replace(last, nanos))),
        ) {
            assert!(received.bytes == *sent, "{:02x?} came of {:02x?}", &received.bytes[..24], &sent[..24]);
            assert_eq!(received.wire_len as usize, sent.len());
            let late = received.nanos - before;
            assert!(received.nanos >= last && late < 60_000_000_000, "{late}");
        }
        assert_eq!(received.len(), sent.len());
        drop(forwarder);
    }
    // A partial checksum is counted from the start of the tagged frame.
    let mut partial = frames::tagged(&plain, &[(0x88a8, 9), (0x8100, 8)]);
    partial[48..50].copy_from_slice(&[0x12, 0x34]);
    let forwarder = Forwarder::start(&net);
    let mut client = net.client.run(|| Monitor::open("c0"));
    let mut receiver = net.server.run(|| Monitor::open("s0"));
    client.send(&[Outgoing { bytes: &partial, offload: Offload::partial(42, 6) }]);
    let received = receiver.collect(frames::is_ours, 1);
    assert!(received[0].bytes == partial && received[0].offload.needs_checksum());
    assert_eq!((received[0].offload.checksum_start(), received[0].offload.checksum_at()), (42, 48));
    drop(forwarder);
}

/// The kernel gives a frame of the full MTU room for an 802.1Q tag, and for no other.
#[test]
fn frames_that_are_too_long_are_passed_over_and_counted() {
    let Some(net) = Net::new() else { return };
    let full = frames::udp(&net, &[0x55; 1_472]);
    let long = frames::tagged(&full, &[(0x88a8, 5)]);
    let (mut client, mut receiver) =
        (net.client.run(|| Monitor::open("c0")), net.product.run(|| Monitor::open("pa")));
    let short = vec![0; 10];
    let outgoing = [&full, &long, &short, &full].map(|bytes| Outgoing { bytes, offload: Offload::NONE });
    let sent = client.sender.send(&outgoing).expect("sent");
    assert_eq!((sent.taken, sent.stopped), (4, None));
    let statistics = client.sender.statistics();
    assert_eq!((statistics.sent, statistics.too_long, statistics.refused), (2, 1, 1), "{statistics:?}");
    assert_eq!(statistics.sent_bytes, 2 * 1_514);
    assert_eq!(receiver.collect(frames::is_ours, 2).len(), 2);
    assert_eq!(receiver.rest(frames::is_ours, QUIET).len(), 0);
}

/// Frames that are longer than the slots for the MTU go to another ring; they still come in order.
#[test]
fn frames_of_two_rings_come_in_order() {
    let Some(net) = Net::new() else { return };
    let mut options = Options::new("pa", Mode::Monitor);
    // Room for all of them: this is about order.
    options.giants_bytes = 128 << 20;
    let mut receiver = net.product.run(|| Monitor::with(&options));
    assert!(receiver.port.ring_frames().1 > 1_600, "two rings");
    net.client.ip("link set c0 mtu 9000").expect("set");
    net.product.ip("link set pa mtu 9000").expect("set");
    let mut client = net.client.run(|| Monitor::open("c0"));
    const ROUNDS: usize = 400;
    let patterns = [60, 5_000, 60, 60, 60, 8_000, 1_900, 1_950, 2_000, 1_958, 1_959];
    let shapes: Vec<_> = patterns.iter().map(|len| frames::udp(&net, &vec![7; len - 42])).collect();
    let sender = std::thread::spawn(move || {
        let mut number = 0;
        for _ in 0..ROUNDS {
            let mut round = shapes.clone();
            for frame in &mut round {
                frames::set_sequence(frame, number);
                number += 1;
            }
            client.send_numbered(&round);
        }
    });
    let received = receiver.collect(frames::is_ours, ROUNDS * patterns.len());
    sender.join().expect("sent");
    for (number, frame) in received.iter().enumerate() {
        assert_eq!(frames::sequence(&frame.bytes), Some(number as u32));
        assert_eq!(
            (frame.bytes.len(), frame.wire_len as usize),
            (patterns[number % patterns.len()], frame.bytes.len())
        );
    }
}

#[test]
fn a_monitor_cuts_frames_and_says_how_long_they_were() {
    let Some(net) = Net::new() else { return };
    let mut snapped = Options::new("pa", Mode::Monitor);
    snapped.snap = Some(64);
    let mut receiver = net.product.run(|| Monitor::with(&snapped));
    let mut client = net.client.run(|| Monitor::open("c0"));
    let (short, long) = (frames::udp(&net, &[1; 10]), frames::udp(&net, &[2; 1_000]));
    let sent = [
        short.clone(),
        long.clone(),
        frames::tagged(&long, &[(0x88a8, 1)]),
        frames::tagged(&short, &[(0x8100, 1)]),
    ];
    client.send_numbered(&sent);
    let received = receiver.collect(frames::is_ours, sent.len());
    for (received, sent) in received.iter().zip(&sent) {
        assert_eq!(received.bytes, sent[..sent.len().min(64)]);
        assert_eq!(received.wire_len as usize, sent.len());
    }
}

/// Frames for others are received as long as the port is open; on a virtual link they come anyway, so the interface is asked.
#[test]
fn an_interface_is_promiscuous_as_long_as_its_port_is_open() {
    let Some(net) = Net::new() else { return };
    let promiscuity = || {
        let text = net.product.show("pa");
        let count = text.split("promiscuity ").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse::<u32>().ok()).expect("a number")
    };
    assert_eq!(promiscuity(), 0);
    let mut options = Options::new("pa", Mode::Monitor);
    let port = net.product.run(|| Port::open(&options).expect("a port"));
    assert_eq!(promiscuity(), 1);
    drop(port);
    // A process that another test starts holds the socket, too, until it becomes its program.
    let end = Instant::now() + Duration::from_secs(5);
    while promiscuity() != 0 {
        assert!(Instant::now() < end, "it stays promiscuous");
        std::thread::sleep(Duration::from_millis(5));
    }
    options.promiscuous = false;
    let _port = net.product.run(|| Port::open(&options).expect("a port"));
    assert_eq!(promiscuity(), 0);
}

/// What a machine sends itself is not received: neither past the queueing discipline, nor through it, nor by the kernel.
#[test]
fn own_frames_are_not_received() {
    let Some(net) = Net::new() else { return };
    let mut client = net.client.run(|| Monitor::open("c0"));
    let mut other = net.client.run(|| Monitor::open("c0"));
    client.send_numbered(&[frames::udp(&net, &[1; 10])]);
    net.client.run(|| {
        let socket = std::net::UdpSocket::bind("10.9.0.1:0").expect("bound");
        socket.send_to(b"hello", "10.9.0.255:47777").expect_err("not without a word");
        let _ = socket.set_broadcast(true);
        socket.send_to(b"hello", "10.9.0.255:47777").expect("sent");
    });
    for monitor in [&mut client, &mut other] {
        assert!(monitor.rest(frames::is_ours, QUIET).is_empty());
        let statistics = monitor.port.statistics().expect("counted");
        assert_eq!((statistics.arrived, statistics.received), (statistics.received, statistics.arrived));
    }
}

/// A ring that nobody looks at is full at some time; every frame is counted once, and those that were kept are the first ones, in order.
#[test]
fn counts_add_up_when_a_ring_is_full() {
    let Some(net) = Net::new() else { return };
    // Nobody else says anything.
    net.client.set("ipv6/conf/c0/disable_ipv6", "1");
    let mut small = Options::new("pa", Mode::Monitor);
    small.ring_bytes = 1 << 20;
    let mut receiver = net.product.run(|| Monitor::with(&small));
    let room = receiver.port.ring_frames().0;
    assert_eq!(room, 512);
    let mut client = net.client.run(|| Monitor::open("c0"));
    const COUNT: usize = 20_000;
    let shape = frames::udp(&net, &[0; 18]);
    let numbered = |range: std::ops::Range<usize>| -> Vec<_> {
        range
            .map(|number| {
                let mut frame = shape.clone();
                frames::set_sequence(&mut frame, number as u32);
                frame
            })
            .collect()
    };
    let others = receiver.rest(|_| true, QUIET).len() as u64;
    client.send_numbered(&numbered(0..COUNT));
    let received = receiver.rest(|_| true, QUIET);
    let numbers: Vec<_> = received.iter().filter_map(|frame| frames::sequence(&frame.bytes)).collect();
    assert!(numbers.len() <= room && numbers.len() > room - 20, "{}", numbers.len());
    assert!(numbers.iter().copied().eq(0..numbers.len() as u32), "in order, from the first one");
    let statistics = receiver.port.statistics().expect("counted");
    assert_eq!(statistics.received, others + received.len() as u64);
    assert_eq!(statistics.arrived, statistics.received + statistics.dropped);
    assert!(statistics.dropped as usize >= COUNT - numbers.len());
    // Counts go on from there, and the ring is as good as before.
    assert_eq!(receiver.port.statistics().expect("counted"), statistics);
    client.send_numbered(&numbered(0..100));
    assert_eq!(receiver.collect(frames::is_ours, 100).len(), 100);
    assert_eq!(client.sender.statistics().sent, COUNT as u64 + 100);
}

/// A buffer that is full leaves the rest in the ring.
#[test]
fn what_a_buffer_has_no_room_for_stays() {
    let Some(net) = Net::new() else { return };
    let mut client = net.client.run(|| Monitor::open("c0"));
    let mut port = net.product.run(|| Port::open(&Options::new("pa", Mode::Monitor)).expect("a port"));
    let mut numbered: Vec<_> = (0..100).map(|_| frames::udp(&net, &[0; 18])).collect();
    for (number, frame) in numbered.iter_mut().enumerate() {
        frames::set_sequence(frame, number as u32);
    }
    client.send_numbered(&numbered);
    let (mut buffer, mut batch) = (ReceiveBuffer::new(7), Batch::new(7));
    let mut next = 0;
    let begin = Instant::now();
    while next < 100 {
        let received = port.receive(&mut buffer);
        assert_eq!(received.frames, buffer.len());
        assert!(!received.is_more_left || received.frames == 7);
        buffer.deliver(&mut batch);
        for index in 0..batch.len() {
            if let Some(number) = frames::sequence(batch.bytes(index)) {
                assert_eq!(number, next);
                next += 1;
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn waiting_ends_with_a_frame_or_the_time() {
    let Some(net) = Net::new() else { return };
    let mut client = net.client.run(|| Monitor::open("c0"));
    let mut receiver = net.product.run(|| Monitor::open("pa"));
    receiver.rest(|_| true, QUIET);
    let begin = Instant::now();
    while wait(&[&receiver.port], &[], Some(Duration::from_millis(60))).expect("waited") {
        receiver.take();
    }
    assert!(begin.elapsed() >= Duration::from_millis(60));
    let frame = frames::udp(&net, &[0; 18]);
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        client.send_numbered(&[frame]);
    });
    receiver.collect(frames::is_ours, 1);
    sender.join().expect("sent");
}

#[test]
fn errors_say_what_to_do() {
    let Some(net) = Net::new() else { return };
    let open =
        |interface: &str, mode| net.product.run(|| Port::open(&Options::new(interface, mode)).map(drop));
    let error = open("eth9", Mode::Inline).expect_err("no such interface");
    let text = error.to_string();
    assert!(
        text.contains("\"eth9\"") && text.contains("lo, ") && text.contains("pa") && text.contains("pb"),
        "{text}"
    );
    let text = open("lo", Mode::Inline).expect_err("not Ethernet").to_string();
    assert!(text.contains("lo: hardware type 772"), "{text}");
    open("lo", Mode::Monitor).expect("a monitor");

    for (missing, expected) in
        [(CapabilitySet::NET_RAW, "CAP_NET_RAW"), (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")]
    {
        let error = net.product.run(|| {
            let mut sets = capabilities(None).expect("known");
            sets.effective.remove(missing);
            set_capabilities(None, sets).expect("fewer");
            Port::open(&options(0)).map(drop).expect_err("not permitted")
        });
        assert!(matches!(error, Error::NotPermitted { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("pa: not permitted to ") && text.contains(expected), "{text}");
    }
    // A monitor needs no more than the one.
    net.product.run(|| {
        let mut sets = capabilities(None).expect("known");
        sets.effective = CapabilitySet::NET_RAW;
        set_capabilities(None, sets).expect("fewer");
        Port::open(&Options::new("pa", Mode::Monitor)).map(drop).expect("a monitor");
    });
}

/// How many 64-byte frames a forwarder that spins carries from a sender that never waits.
#[test]
fn throughput_of_small_frames() {
    if !packetloom_testing::sweep("throughput between namespaces") {
        return;
    }
    let Some(net) = Net::new() else { return };
    let shape = frames::udp(&net, &[0; 18]);
    // The server drops what comes, as early as possible.
    let _sink = net.server.run(|| Guard::install("s0").expect("a guard"));
    for round in 0..5 {
        let forwarder =
            Forwarder::with(&net, [options(0), options(1)], true, Box::new(|_, _, _| Action::Pass));
        let mut client = net.client.run(|| Monitor::open("c0"));
        let outgoing = vec![Outgoing { bytes: &shape, offload: Offload::NONE }; 64];
        let (begin, cpu) = (Instant::now(), cpu_nanos());
        let mut sent = 0;
        while begin.elapsed() < Duration::from_secs(1) {
            client.send(&outgoing);
            sent += outgoing.len() as u64;
        }
        let (seconds, cpu) = (begin.elapsed().as_secs_f64(), cpu_nanos() - cpu);
        let seen = forwarder.stop();
        let mpps = |count: u64| count as f64 / seconds / 1e6;
        let ([came, _], [_, left]) = (seen.statistics, seen.sent);
        eprintln!(
            "round {round}: Mpps: {:.2} sent, {:.2} dropped by the ring, {:.2} forwarded; CPU ns a packet: {} to send, {} to forward",
            mpps(sent),
            mpps(came.dropped),
            mpps(left.sent),
            cpu / sent,
            seen.busy_nanos / left.sent.max(1),
        );
        assert!(left.sent > 0);
    }
}
