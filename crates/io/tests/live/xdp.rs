//! Ports that use AF_XDP: what packet sockets carry they carry, and what is said and counted is true.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use packetloom_io::Error;
use packetloom_io::port::{
    Backend, Mode, Offload, Options, Outgoing, Port, PortBackend, PortState, ReceiveBuffer, Stop,
    complete_checksum, restart_partial, wait,
};
use packetloom_packet::Batch;

use crate::ends::{SILENCE, echo, echo_within, is_answered, ping, transfer};
use crate::forwarder::{Action, Forwarder, Hook, options};
use crate::frames::{self, Monitor};
use crate::links::{PATIENCE, loses_carrier, send_through_changes};
use crate::net::{Net, SERVER};

/// What is sent over a connection in each direction.
const TRANSFER: usize = 20 << 20;
/// How long nothing may come before nothing more is expected.
const QUIET: Duration = Duration::from_millis(300);

/// Options of a port, by the place of a port in the product.
fn xdp_options(place: usize) -> Options {
    let mut options = options(place);
    options.backend = Backend::AfXdp;
    options
}

fn forwarder(net: &Net, hook: Hook) -> Forwarder {
    Forwarder::with(net, [xdp_options(0), xdp_options(1)], false, hook)
}

fn pass() -> Hook {
    Box::new(|_, _, _| Action::Pass)
}

fn open(net: &Net, options: &Options) -> Result<Port, Error> {
    net.product.run(|| Port::open(options))
}

#[test]
fn pings_datagrams_and_connections_pass() {
    let Some(net) = Net::new() else { return };
    let forwarder = forwarder(&net, pass());
    for address in SERVER {
        ping(&net, address, 10).expect("pinged");
        echo(&net, address, &[0, 1, 2, 17, 100, 1_000, 1_452]).expect("an answer");
        // In fragments.
        echo(&net, address, &[1_473, 4_000, 60_000]).expect("an answer");
        let [there, back] = transfer(&net, address, TRANSFER);
        eprintln!("TCP to {address}: {there:.1} Gb/s there, {back:.1} Gb/s back");
    }
    let seen = forwarder.stop();
    assert!(seen.partial > 1_000, "local senders leave checksums partial: {seen:?}");
    assert_eq!((seen.giants, seen.longest), (0, 1_514));
    for (statistics, sent) in seen.statistics.into_iter().zip(seen.sent) {
        assert_eq!(statistics.arrived, statistics.received + statistics.dropped, "{statistics:?}");
        let skipped = statistics.oversized + statistics.unsound + sent.refused + sent.too_long;
        assert_eq!(skipped, 0, "{statistics:?} {sent:?}");
    }
    // Those of both directions that were given up for want of room are counted together.
    let received: u64 = seen.statistics.iter().map(|counts| counts.received).sum();
    let left: u64 = seen.sent.iter().map(|sent| sent.sent + sent.dropped).sum();
    assert_eq!(received, left + seen.given_up as u64, "{seen:?}");
}

/// The client talks to an address that is the server's only behind a translation. Sums that are partial are made for the new addresses, or are
/// finished before.
#[test]
fn rewritten_frames_pass() {
    let Some(net) = Net::new() else { return };
    for (place, address) in ["10.9.0.77", "fd09::77"].into_iter().enumerate() {
        let mac = net.server.mac("s0").map(|byte| format!("{byte:02x}")).join(":");
        net.client.ip(&format!("neigh add {address} lladdr {mac} dev c0")).expect("a neighbour");
        for is_finished_before in [false, true] {
            let (real, translated) = (frames::address(SERVER[place]), frames::address(address));
            let translate: Hook = Box::new(move |from, bytes, mut offload| {
                let mut copy = bytes.to_vec();
                if is_finished_before {
                    complete_checksum(&mut copy, &mut offload).expect("in the frame");
                    assert_ne!(frames::is_checksum_right(&copy), Some(false), "{offload:?}");
                }
                let is_translated = match from {
                    0 => frames::replace_destination(&mut copy, &translated, &real),
                    _ => frames::replace_source(&mut copy, &real, &translated),
                };
                if !is_translated {
                    return Action::Pass;
                }
                if !offload.needs_checksum() {
                    offload = frames::partial_of(&copy);
                }
                assert!(restart_partial(&mut copy, &mut offload));
                Action::Replace(copy, offload)
            });
            let forwarder = forwarder(&net, translate);
            echo(&net, address, &[0, 1, 100, 1_452]).expect("an answer");
            transfer(&net, address, TRANSFER);
            assert!(forwarder.stop().partial > 0);
        }
    }
}

/// What the receivers verify is finished in what leaves, whoever sent it: here the ends look at the sums.
#[test]
fn checksums_are_finished_in_what_leaves() {
    let Some(net) = Net::new() else { return };
    let forwarder = forwarder(&net, pass());
    let mut sender = net.client.run(|| Monitor::open("c0"));
    let mut receiver = net.server.run(|| Monitor::open("s0"));
    let finished = frames::udp(&net, &[0x3c; 200]);
    let mut partial = finished.clone();
    let mut offload = Offload::partial(34, 6);
    assert!(restart_partial(&mut partial, &mut offload) && partial != finished);
    // One that is wrong and stays so, and SCTP, whose checksum is a CRC.
    let mut wrong = finished.clone();
    wrong[41] ^= 0x55;
    let mut sctp = frames::udp(&net, &[7; 50]);
    sctp[14 + 9] = 132;
    sctp[42..46].copy_from_slice(&[0; 4]);
    let mut finished_sctp = sctp.clone();
    complete_checksum(&mut finished_sctp, &mut Offload::partial(34, 8)).expect("in the frame");
    for (frame, offload, expected) in [
        (&partial, offload, &finished),
        (&finished, Offload::NONE, &finished),
        (&wrong, Offload::NONE, &wrong),
        (&sctp, Offload::partial(34, 8), &finished_sctp),
    ] {
        sender.send(&[Outgoing { bytes: frame, offload }]);
        let came = receiver.collect(|bytes| frames::is_ours(bytes) || bytes.get(23) == Some(&132), 1);
        assert_eq!(&came[0].bytes, expected);
        assert!(!came[0].offload.needs_checksum());
    }
    drop(forwarder);
}

/// Tags stand in the frame, and frames of all lengths up to the MTU pass.
#[test]
fn tags_and_lengths_are_kept() {
    let Some(net) = Net::new() else { return };
    let plain = frames::udp(&net, &[0x77; 100]);
    let full = frames::udp(&net, &[0x55; 1_472]);
    let cases: &[&[(u16, u16)]] = &[
        &[],
        &[(0x8100, 5)],
        &[(0x8100, 0)],
        &[(0x8100, 0xffff)],
        &[(0x88a8, 0x2064)],
        &[(0x88a8, 100), (0x8100, 7)],
        &[(0x8100, 100), (0x8100, 7)],
        &[(0x9100, 3)],
    ];
    let mut sent: Vec<_> = cases.iter().map(|tags| frames::tagged(&plain, tags)).collect();
    sent.push(full.clone());
    sent.push(frames::tagged(&full, &[(0x8100, 5)]));
    sent.extend((18..200).step_by(13).map(|len| frames::udp(&net, &vec![len as u8; len])));
    let forwarder = forwarder(&net, pass());
    let mut client = net.client.run(|| Monitor::open("c0"));
    let mut receiver = net.server.run(|| Monitor::open("s0"));
    client.send_numbered(&sent);
    let received = receiver.collect(frames::is_ours, sent.len());
    for (received, sent) in received.iter().zip(&sent) {
        assert!(received.bytes == *sent, "{:02x?} came of {:02x?}", &received.bytes[..24], &sent[..24]);
    }
    let seen = forwarder.stop();
    assert_eq!((seen.given_up, seen.sent[1].too_long), (0, 0));
}

/// Frames that are longer than a chunk of memory come and leave in several.
#[test]
fn jumbo_frames_pass() {
    let Some(net) = Net::new() else { return };
    for (namespace, interface) in
        [(&net.client, "c0"), (&net.product, "pa"), (&net.product, "pb"), (&net.server, "s0")]
    {
        namespace.ip(&format!("link set {interface} mtu 9000")).expect("set");
    }
    let forwarder = forwarder(&net, pass());
    for address in SERVER {
        echo(&net, address, &[100, 1_472, 2_000, 3_900, 5_000, 8_950, 20_000]).expect("an answer");
        transfer(&net, address, TRANSFER);
    }
    let seen = forwarder.stop();
    assert_eq!(seen.longest, 9_014);
    assert!(seen.partial > 0);
}

/// A flood that a small ring has no room for: every frame is in one count.
#[test]
fn counts_add_up_under_a_flood() {
    let Some(net) = Net::new() else { return };
    let mut options = xdp_options(0);
    // Of the smallest size that there is.
    options.ring_bytes = 0;
    let mut port = open(&net, &options).expect("a port");
    assert_eq!((port.ring_frames(), port.ring_bytes()), ((64, 0), 64 * 2_048));
    let mut client = net.client.run(|| Monitor::open("c0"));
    let (mut buffer, mut batch) = (ReceiveBuffer::new(256), Batch::new(256));
    let mut take = |port: &mut Port| {
        port.receive(&mut buffer);
        buffer.deliver(&mut batch);
        (0..batch.len()).filter_map(|index| frames::sequence(batch.bytes(index))).collect::<Vec<_>>()
    };
    std::thread::sleep(QUIET);
    take(&mut port);
    let before = port.statistics().expect("counted");
    assert_eq!((before.arrived, before.dropped), (before.received, 0), "{before:?}");
    const COUNT: u32 = 20_000;
    let shape = frames::udp(&net, &[0; 18]);
    let numbered: Vec<_> = (0..COUNT)
        .map(|number| {
            let mut frame = shape.clone();
            frames::set_sequence(&mut frame, number);
            frame
        })
        .collect();
    client.send_numbered(&numbered);
    std::thread::sleep(QUIET);
    let full = port.statistics().expect("counted");
    assert_eq!(full.received, before.received);
    let unread = full.arrived - full.received - full.dropped;
    assert_eq!(unread, 64, "{full:?}");
    let numbers = take(&mut port);
    assert!(
        numbers.len() > 50 && numbers.iter().copied().eq(0..numbers.len() as u32),
        "the first ones, in order"
    );
    let statistics = port.statistics().expect("counted");
    assert_eq!(statistics.arrived, statistics.received + statistics.dropped);
    let came = statistics.arrived - before.arrived + statistics.dropped_by_driver - before.dropped_by_driver;
    assert!((u64::from(COUNT)..u64::from(COUNT) + 20).contains(&came), "{came} of {COUNT}: {statistics:?}");
    assert!(statistics.dropped > 0);
    // The ring is as good as before.
    for part in numbered.chunks(50).take(20) {
        client.send_numbered(part);
        let (mut came, begin) = (Vec::new(), Instant::now());
        while came.len() < part.len() {
            wait(&[&port], &[], Some(Duration::from_millis(20))).expect("waited");
            came.extend(take(&mut port));
            assert!(begin.elapsed() < PATIENCE, "{} came", came.len());
        }
    }
}

/// Makes the link to the client anew, with queues.
fn connect_with_queues(net: &Net, queues: u32) {
    net.product.ip("link del pa").expect("removed");
    let (client, product) = (net.client.name(), net.product.name());
    crate::net::ip(&format!(
        "link add c0 netns {client} numrxqueues {queues} numtxqueues {queues} type veth peer name pa netns {product} numrxqueues \
         {queues} numtxqueues {queues}"
    ))
    .expect("made");
    net.product.set("ipv6/conf/pa/disable_ipv6", "1");
    net.client.ip("addr add 10.9.0.1/24 dev c0").expect("an address");
    net.client.ip("link set c0 up").expect("up");
    net.product.ip("link set pa up").expect("up");
}

/// Every receive queue has a socket: flows come by any of them.
#[test]
fn all_queues_are_received_by() {
    let Some(net) = Net::new() else { return };
    connect_with_queues(&net, 4);
    let forwarder = forwarder(&net, pass());
    // Which queue a flow goes to is the sender's choice, by its socket.
    for _ in 0..8 {
        echo(&net, SERVER[0], &[10, 100, 1_000]).expect("an answer");
    }
    transfer(&net, SERVER[0], TRANSFER);
    let seen = forwarder.stop();
    assert_eq!(seen.statistics[0].unsound, 0);
    let port = open(&net, &xdp_options(0)).expect("a port");
    assert_eq!((port.fds().count(), port.ring_frames().0), (4, 4 * 4_096));
}

/// Frames of a queue without a socket are dropped, not handed to the kernel, and counted: here there are more queues than get sockets.
#[test]
fn frames_of_a_queue_without_a_socket_are_dropped_and_counted() {
    let Some(net) = Net::new() else { return };
    connect_with_queues(&net, 140);
    let mut options = xdp_options(0);
    options.guard = false;
    let mut port = open(&net, &options).expect("a port");
    assert_eq!((port.fds().count(), port.ring_frames().0), (128, 128 * 128));
    net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
    let mac = net.product.mac("pa").map(|byte| format!("{byte:02x}")).join(":");
    net.client.ip(&format!("neigh replace 10.9.0.8 lladdr {mac} dev c0")).expect("a neighbour");
    let listener = net.product.run(|| std::net::UdpSocket::bind("10.9.0.8:4711").expect("bound"));
    listener.set_read_timeout(Some(QUIET)).expect("set");
    let before = port.statistics().expect("counted");
    const COUNT: u64 = 1_000;
    net.client.run(|| {
        for _ in 0..COUNT {
            // Another port, so another flow, by another queue perhaps.
            let socket = std::net::UdpSocket::bind("10.9.0.1:0").expect("bound");
            socket.send_to(&[1; 30], "10.9.0.8:4711").expect("sent");
        }
    });
    listener.recv(&mut [0; 100]).expect_err("the kernel has none");
    let counts = port.statistics().expect("counted");
    let arrived = counts.arrived - before.arrived;
    assert!((COUNT..COUNT + 20).contains(&arrived), "{counts:?}");
    let lost = counts.dropped - before.dropped;
    assert!((10..COUNT / 2).contains(&lost), "12 of 140 queues have no sockets: {counts:?}");
}

/// A veth runs no program for queues that are added later: the guard drops what comes by them.
#[test]
fn the_kernel_has_nothing_of_queues_that_are_added_later() {
    let Some(net) = Net::new() else { return };
    connect_with_queues(&net, 4);
    net.client.exec("ethtool -L c0 rx 1 tx 1").expect("set");
    net.product.exec("ethtool -L pa rx 1 tx 1").expect("set");
    let port = open(&net, &xdp_options(0)).expect("a port");
    assert_eq!(port.fds().count(), 1);
    net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
    net.product.exec("ethtool -L pa rx 4 tx 4").expect("set");
    net.client.exec("ethtool -L c0 rx 4 tx 4").expect("set");
    let mac = net.product.mac("pa").map(|byte| format!("{byte:02x}")).join(":");
    net.client.ip(&format!("neigh replace 10.9.0.8 lladdr {mac} dev c0")).expect("a neighbour");
    let listener = net.product.run(|| std::net::UdpSocket::bind("10.9.0.8:4711").expect("bound"));
    listener.set_read_timeout(Some(QUIET)).expect("set");
    net.client.run(|| {
        for _ in 0..100 {
            let socket = std::net::UdpSocket::bind("10.9.0.1:0").expect("bound");
            socket.send_to(&[1; 30], "10.9.0.8:4711").expect("sent");
        }
    });
    listener.recv(&mut [0; 100]).expect_err("the kernel has none");
}

/// The kernel does not see what comes, and does when the port is closed.
#[test]
fn the_kernel_has_the_packets_again_when_the_port_is_closed() {
    let Some(net) = Net::new() else { return };
    net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
    ping(&net, "10.9.0.8", 2).expect("answered by the kernel");
    let port = open(&net, &xdp_options(0)).expect("a port");
    assert_eq!((port.backend(), port.backend_reason()), (PortBackend::AfXdpNative, None));
    assert!(!is_answered(&net, "10.9.0.8"), "nobody answers");
    assert!(net.product.show("pa").contains("prog/xdp"));
    drop(port);
    ping(&net, "10.9.0.8", 2).expect("answered by the kernel");
    assert!(!net.product.show("pa").contains("prog/xdp"), "{}", net.product.show("pa"));
}

/// Whoever opens a queue that was just closed meets the old socket for some milliseconds.
#[test]
fn a_port_can_be_opened_again_at_once() {
    let Some(net) = Net::new() else { return };
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let begin = Instant::now();
        let port = open(&net, &xdp_options(0)).expect("a port");
        longest = longest.max(begin.elapsed());
        drop(port);
    }
    eprintln!("opened within {longest:?}");
    // Another one that stays is said.
    let mut options = xdp_options(0);
    options.guard = false;
    let _port = open(&net, &options).expect("a port");
    let error = open(&net, &options).expect_err("it is in use").to_string();
    assert!(error.starts_with("pa: cannot use AF_XDP: ") && error.contains("another"), "{error}");
}

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The name of a variable that makes [`child_that_receives`] receive.
const CHILD: &str = "PACKETLOOM_LIVE_XDP";

/// Not a test by itself: what the test below runs in a process of its own.
#[test]
fn child_that_receives() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let _port = Port::open(&xdp_options(0)).expect("a port");
    println!("receiving");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let Some(net) = Net::new() else { return };
    net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
    for _ in 0..3 {
        let child = Command::new("ip")
            .args(["netns", "exec", net.product.name()])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", "xdp::child_that_receives", "--nocapture"])
            .env(CHILD, "1")
            .stdout(Stdio::piped())
            .spawn();
        let mut child = Killed(child.expect("started"));
        let lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("receiving")), "the child receives");
        assert!(!is_answered(&net, "10.9.0.8"), "nobody answers");
        drop(child);
        // Another process can have the interface at once.
        drop(open(&net, &xdp_options(0)).expect("a port"));
        // The client may have given up asking for the address, and asks again.
        let begin = Instant::now();
        while !is_answered(&net, "10.9.0.8") {
            assert!(begin.elapsed() < PATIENCE, "not answered by the kernel");
        }
        assert!(!net.product.show("pa").contains("prog/xdp"));
    }
}

#[test]
fn a_forwarder_goes_on_after_its_links_were_down_or_gone() {
    let Some(net) = Net::new() else { return };
    let forwarder = forwarder(&net, pass());
    let comes_back = || {
        let begin = Instant::now();
        while echo_within(&net, SERVER[0], &[100], SILENCE).is_err() {
            assert!(begin.elapsed() < PATIENCE, "no answer");
        }
    };
    comes_back();
    net.product.ip("link set pa down").expect("down");
    assert_eq!(echo_within(&net, SERVER[0], &[100], SILENCE), Err(100));
    net.product.ip("link set pa up").expect("up");
    comes_back();
    net.server.ip("link set s0 down").expect("down");
    loses_carrier(&net, "pb");
    std::thread::sleep(Duration::from_millis(100));
    net.server.ip("link set s0 up").expect("up");
    comes_back();
    for _ in 0..3 {
        net.product.ip("link del pa").expect("removed");
        std::thread::sleep(Duration::from_millis(50));
        net.connect_a().expect("made again");
        comes_back();
    }
    // With the number that it had, from another namespace.
    net.product.ip(&format!("link set pa netns {}", net.client.name())).expect("moved");
    let begin = Instant::now();
    while net.client.show("pa").contains("prog/xdp") {
        assert!(begin.elapsed() < PATIENCE, "it stays on it");
        std::thread::sleep(Duration::from_millis(5));
    }
    net.client.ip(&format!("link set pa netns {}", net.product.name())).expect("moved back");
    net.product.ip("link set pa up").expect("up");
    comes_back();
    assert!(net.product.show("pa").contains("prog/xdp"));
    let seen = forwarder.stop();
    let gone = seen.states[0].iter().filter(|&&state| state == PortState::Gone).count();
    assert_eq!((gone, seen.states[0].last()), (4, Some(&PortState::Up)), "{seen:?}");
}

#[test]
fn sending_says_why_it_stops() {
    let Some(net) = Net::new() else { return };
    let mut port = open(&net, &xdp_options(0)).expect("a port");
    let mut sender = send_through_changes(&net, &mut port);
    let frame = frames::udp(&net, &[1; 20]);
    let outgoing = [Outgoing { bytes: &frame, offload: Offload::NONE }; 3];
    // Those that the other end does not take, before that is known, are counted.
    let mut receiver = net.client.run(|| Monitor::open("c0"));
    net.client.ip("link set c0 down").expect("down");
    let sent = sender.send(&outgoing).expect("sent");
    let statistics = sender.statistics();
    assert_eq!(statistics.sent + statistics.dropped, 6 + sent.taken as u64, "{statistics:?}");
    assert!(statistics.dropped > 0 || sent.stopped == Some(Stop::Busy), "{statistics:?} {sent:?}");
    net.client.ip("link set c0 up").expect("up");
    receiver.rest(frames::is_ours, QUIET);
}

/// A port can be opened while its link is down, and receives once it is up.
#[test]
fn a_port_that_is_down_can_be_opened() {
    let Some(net) = Net::new() else { return };
    net.product.ip("link set pa down").expect("down");
    let mut port = open(&net, &xdp_options(0)).expect("a port");
    assert_eq!(port.state(), PortState::Down);
    // Waiting is waiting.
    let begin = Instant::now();
    while wait(&[&port], &[], Some(Duration::from_millis(60))).expect("waited") {
        assert!(begin.elapsed() < PATIENCE, "it spins");
    }
    net.product.ip("link set pa up").expect("up");
    let mut client = net.client.run(|| Monitor::open("c0"));
    std::thread::sleep(QUIET);
    client.send_numbered(&[frames::udp(&net, &[1; 20])]);
    let (mut buffer, begin) = (ReceiveBuffer::new(256), Instant::now());
    while port.statistics().expect("counted").received == 0 {
        port.receive(&mut buffer);
        assert!(begin.elapsed() < PATIENCE);
    }
}

/// The kernel runs the program where the driver does not: here the peer has more queues to send by than the port has to receive by.
#[test]
fn the_kernel_runs_the_program_where_the_driver_does_not() {
    let Some(net) = Net::new() else { return };
    net.product.ip("link del pa").expect("removed");
    let (client, product) = (net.client.name(), net.product.name());
    crate::net::ip(&format!(
        "link add c0 netns {client} numtxqueues 4 type veth peer name pa netns {product}"
    ))
    .expect("made");
    net.product.set("ipv6/conf/pa/disable_ipv6", "1");
    net.client.ip("addr add 10.9.0.1/24 dev c0").expect("an address");
    net.client.ip("link set c0 up").expect("up");
    net.product.ip("link set pa up").expect("up");
    let port = open(&net, &xdp_options(0)).expect("a port");
    assert_eq!(port.backend(), PortBackend::AfXdpGeneric);
    assert!(port.backend_reason().is_some_and(|why| why.contains("fewer receive queues")), "{port:?}");
    drop(port);
    // Where there is a choice packet sockets are used, and it is said why.
    let mut options = xdp_options(0);
    options.backend = Backend::Auto;
    let port = open(&net, &options).expect("a port");
    assert_eq!(port.backend(), PortBackend::AfPacket);
    assert!(port.backend_reason().is_some_and(|why| why.contains("fewer receive queues")), "{port:?}");
    drop(port);
    // Frames up to the MTU pass, partial checksums among them; giants come whole and do not leave.
    let forwarder = forwarder(&net, pass());
    ping(&net, SERVER[0], 5).expect("pinged");
    echo(&net, SERVER[0], &[0, 1, 100, 1_472, 5_000]).expect("an answer");
    net.client.exec("ethtool -K c0 tso off gso off").expect("set");
    transfer(&net, SERVER[0], TRANSFER);
    let mut giant = frames::udp(&net, &[5; 10_000]);
    let mut offload = frames::udp_giant(1_000);
    assert!(restart_partial(&mut giant, &mut offload));
    net.client.run(|| Monitor::open("c0")).send(&[Outgoing { bytes: &giant, offload }]);
    let seen = forwarder.stop();
    assert!(seen.partial > 100 && seen.longest > 1_514, "{seen:?}");
    assert!(seen.sent[1].too_long > 0, "{seen:?}");
    assert_eq!(seen.statistics[0].oversized + seen.statistics[0].unsound, 0, "{seen:?}");
}

/// What monitors look at the kernel must have.
#[test]
fn monitors_use_packet_sockets() {
    let Some(net) = Net::new() else { return };
    let mut options = Options::new("pa", Mode::Monitor);
    options.backend = Backend::AfXdp;
    let error = open(&net, &options).expect_err("refused").to_string();
    assert!(error.contains("the kernel would not get the packets") && error.contains("inline"), "{error}");
    options.backend = Backend::Auto;
    let port = open(&net, &options).expect("a port");
    assert_eq!(port.backend(), PortBackend::AfPacket);
    let mut options = xdp_options(0);
    options.backend = Backend::Auto;
    assert_eq!(open(&net, &options).expect("a port").backend(), PortBackend::AfXdpNative);
}

/// Whoever may not load programs is told what it takes; where there is a choice, packet sockets are used.
#[test]
fn rights_that_are_missing_are_named() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let Some(net) = Net::new() else { return };
    let without = |missing: CapabilitySet, options: Options| {
        net.product.run(move || {
            let mut sets = capabilities(None).expect("known");
            sets.effective.remove(missing);
            set_capabilities(None, sets).expect("fewer");
            Port::open(&options)
        })
    };
    for missing in [CapabilitySet::NET_RAW, CapabilitySet::NET_ADMIN] {
        let error = without(missing, xdp_options(0)).expect_err("not permitted");
        assert!(matches!(error, Error::NotPermitted { .. }), "{error:?}");
        assert!(error.to_string().contains("CAP_NET_"), "{error}");
    }
    let mut options = xdp_options(0);
    options.backend = Backend::Auto;
    options.guard = false;
    let port = without(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN, options).expect("a port");
    assert_eq!(port.backend(), PortBackend::AfPacket);
    assert!(port.backend_reason().is_some_and(|why| why.contains("CAP_BPF")), "{:?}", port.backend_reason());
}
