//! Records of what interfaces see, on their way to a collector.

use std::fs;
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::collector::{Collector, Flow};
use packetloom_testing::ends::echo;
use packetloom_testing::net::{Net, SERVER};
use packetloom_testing::running::Running;
use packetloom_testing::{amount, has_collector};

use crate::link::Link;
use crate::monitor::bridge;
use crate::product::{Product, count};
use crate::support::certificates;
use crate::support::packets::packet;

/// What a collector has received of a stream: the records of its whole messages.
fn flows(stream: &[u8]) -> Vec<Flow> {
    let (mut collector, mut flows, mut rest) = (Collector::default(), Vec::new(), stream);
    while rest.len() >= 4 {
        let len = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let Some((message, behind)) = rest.split_at_checked(len) else { break };
        let message = collector.message(message);
        flows.extend(message.flows.iter().map(|fields| Flow::new(&message, fields)));
        rest = behind;
    }
    flows
}

/// Packets of the records of one protocol.
fn udp_packets(flows: &[Flow]) -> u64 {
    flows.iter().filter(|flow| flow.protocol == 17).map(|flow| flow.forward.packets).sum()
}

/// A collector that comes late gets all records, each soon after its timeout, though nothing else comes.
#[test]
fn a_collector_that_comes_late_gets_all_records() {
    let Some(net) = Net::new() else { return };
    bridge(&net);
    net.server.ip("link set lo up").expect("up");
    let port = net
        .server
        .run(|| TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port());
    let arguments = format!("meter -i s0 --idle-timeout 1s --ipfix tcp://127.0.0.1:{port}");
    let mut product = Product::start(&net.server, &[], &arguments);
    product.wait_for("it is tried again and again");
    echo(&net, SERVER[0], &[10, 100, 1_000]).expect("echoed");
    let listener = net.server.run(|| TcpListener::bind(("127.0.0.1", port)).expect("the port"));
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    while udp_packets(&flows(&bytes)) < 6 {
        let len = stream.read(&mut buffer).expect("more");
        assert!(len > 0, "it ended after {} bytes", bytes.len());
        bytes.extend_from_slice(&buffer[..len]);
    }
    let found: Vec<_> = flows(&bytes).into_iter().filter(|flow| flow.protocol == 17).collect();
    // Idle, not the end of the run.
    assert!(found.iter().all(|flow| flow.end_reason == 1), "{found:#?}");
    let done = product.stop();
    stream.read_to_end(&mut bytes).expect("the rest");
    let export = &done.summary["exports"][0];
    assert_eq!((count(export, "/not_sent"), count(export, "/records")), (0, flows(&bytes).len() as u64));
}

/// A port of UDP at which nobody listens.
fn free_port(net: &Net) -> u16 {
    let socket = net.server.run(|| UdpSocket::bind("127.0.0.1:0").expect("a port"));
    socket.local_addr().expect("bound").port()
}

/// A collector of datagrams, and how long it waits for one.
fn datagrams(net: &Net, port: u16, wait: Duration) -> UdpSocket {
    let socket = net.server.run(|| UdpSocket::bind(("127.0.0.1", port)).expect("the port"));
    socket.set_read_timeout(Some(wait)).expect("set");
    socket
}

/// By the clock, though no packet comes any more: in a file and at a collector, but for a machine that runs somebody else.
#[test]
fn records_leave_within_a_second_of_their_timeout() {
    const WITHIN: Duration = Duration::from_secs(2);
    let Some(net) = Net::new() else { return };
    bridge(&net);
    net.server.ip("link set lo up").expect("up");
    for workers in [1, 3] {
        let port = free_port(&net);
        let socket = datagrams(&net, port, Duration::from_millis(5));
        let arguments = format!(
            "meter -i s0 --idle-timeout 1s --workers {workers} -o flows.jsonl --ipfix udp://127.0.0.1:{port}"
        );
        let product = Product::start(&net.server, &[], &arguments);
        let in_file = || {
            let records = product.records();
            records.iter().filter(|record| record["protocolIdentifier"] == 17).count()
        };
        let (mut collector, mut received, mut buffer) = (Collector::default(), Vec::new(), vec![0; 1 << 16]);
        let mut shown: Vec<[Duration; 2]> = Vec::new();
        while shown.last().is_none_or(|waits| waits.iter().any(|&wait| wait >= WITHIN)) {
            assert!(shown.len() < 10, "{shown:?}");
            let before = (in_file(), udp_packets(&received));
            echo(&net, SERVER[0], &[10]).expect("echoed");
            let sent = Instant::now();
            let mut waits = [None; 2];
            while waits.contains(&None) {
                assert!(sent.elapsed() < Duration::from_secs(60), "{waits:?}");
                if let Ok(len) = socket.recv(&mut buffer) {
                    let message = collector.message(&buffer[..len]);
                    received.extend(message.flows.iter().map(|fields| Flow::new(&message, fields)));
                }
                let is_there = [in_file() > before.0, udp_packets(&received) >= before.1 + 2];
                for (wait, is_there) in waits.iter_mut().zip(is_there) {
                    if is_there {
                        wait.get_or_insert_with(|| sent.elapsed());
                    }
                }
            }
            shown.push(waits.map(Option::unwrap_or_default));
        }
        eprintln!("{workers} workers: {shown:?} after the last packet, with an idle timeout of a second");
        product.stop();
    }
}

/// Over UDP templates come again though no data do, so that the first data after a long silence can be read.
#[test]
fn a_collector_that_comes_late_gets_templates_on_a_silent_link() {
    const INTERVAL: Duration = Duration::from_secs(1);
    let Some(net) = Net::new() else { return };
    bridge(&net);
    net.server.ip("link set lo up").expect("up");
    let ports = [free_port(&net), free_port(&net)];
    let arguments = format!(
        "meter -i s0 --idle-timeout 1s --template-interval 1s --ipfix udp://127.0.0.1:{} --netflow9 udp://127.0.0.1:{}",
        ports[0], ports[1]
    );
    let product = Product::start(&net.server, &[], &arguments);
    thread::sleep(2 * INTERVAL);
    for port in ports {
        let (mut buffer, mut shown) = (vec![0; 1 << 16], Vec::new());
        // On however busy a machine, soon once.
        let (socket, mut collector) = loop {
            assert!(shown.len() < 10, "{shown:?}");
            let mut collector = Collector::default();
            let (begun, socket) = (Instant::now(), datagrams(&net, port, Duration::from_secs(60)));
            // As collectors do, it passes over data without templates, of what the kernel itself sends.
            let len = loop {
                let len = socket.recv(&mut buffer).expect("templates");
                let first_set = if buffer[1] == 10 { 16 } else { 20 };
                if buffer[first_set..len].starts_with(&[0]) {
                    break len;
                }
            };
            shown.push(begun.elapsed());
            let message = collector.message(&buffer[..len]);
            assert!(!message.templates.is_empty() && message.flows.is_empty(), "{message:?}");
            if shown.last().is_some_and(|&wait| wait <= INTERVAL + INTERVAL / 2) {
                break (socket, collector);
            }
        };
        // With these templates, data are read.
        echo(&net, SERVER[0], &[10]).expect("echoed");
        loop {
            let len = socket.recv(&mut buffer).expect("more");
            let message = collector.message(&buffer[..len]);
            if message.flows.iter().any(|fields| fields[&(0, 4)] == [17]) {
                break;
            }
        }
    }
    product.stop();
}

/// With nobody there at all, packets go on to be metered, and the run ends.
#[test]
fn without_a_collector_packets_are_metered_all_the_same() {
    let Some(net) = Net::new() else { return };
    net.server.ip("link set lo up").expect("up");
    let [tcp, udp] = net.server.run(|| {
        let tcp = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        [tcp, UdpSocket::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port()]
    });
    bridge(&net);
    let arguments = format!(
        "meter -i s0 --idle-timeout 1s -o flows.jsonl --ipfix tcp://127.0.0.1:{tcp} --ipfix udp://127.0.0.1:{udp}"
    );
    let mut product = Product::start(&net.server, &[], &arguments);
    for _ in 0..3 {
        echo(&net, SERVER[0], &[10, 100, 1_000]).expect("echoed");
    }
    product.wait_for("nobody listens there");
    let done = product.stop_incomplete();
    let [tcp, udp] = [&done.summary["exports"][0], &done.summary["exports"][1]];
    let uniflows = count(&done.summary, "/uniflows");
    assert!(uniflows >= 6);
    assert_eq!((count(tcp, "/records"), count(tcp, "/not_sent")), (0, uniflows));
    assert_eq!((count(udp, "/records"), count(udp, "/not_sent")), (uniflows, 0));
    assert!(count(udp, "/refused") > 0);
}

/// A file grows while packets come, and has everything in the end; what a firewall here keeps back is counted.
#[test]
fn a_file_grows_and_what_is_kept_back_is_counted() {
    let Some(net) = Net::new() else { return };
    bridge(&net);
    net.server.ip("link set lo up").expect("up");
    let udp = net
        .server
        .run(|| UdpSocket::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port());
    net.server.exec("nft add table ip t").expect("a table");
    net.server.exec("nft add chain ip t out { type filter hook output priority 0 ; }").expect("a chain");
    net.server.exec(&format!("nft add rule ip t out udp dport {udp} drop")).expect("a rule");
    let arguments =
        format!("meter -i s0 --idle-timeout 1s --ipfix flows.ipfix --ipfix udp://127.0.0.1:{udp}");
    let mut product = Product::start(&net.server, &[], &arguments);
    echo(&net, SERVER[0], &[10, 100, 1_000]).expect("echoed");
    let read = |product: &Product| flows(&fs::read(product.at("flows.ipfix")).unwrap_or_default());
    let begun = Instant::now();
    while udp_packets(&read(&product)) < 6 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:#?}", read(&product));
        thread::sleep(Duration::from_millis(20));
    }
    product.wait_for("was not sent: Operation not permitted");
    let file = product.at("flows.ipfix");
    let kept = fs::File::open(&file).expect("it is there");
    let done = product.stop_incomplete();
    let mut bytes = Vec::new();
    (&kept).read_to_end(&mut bytes).expect("read");
    let uniflows = count(&done.summary, "/uniflows");
    assert_eq!(flows(&bytes).len() as u64, uniflows);
    let [file, udp] = [&done.summary["exports"][0], &done.summary["exports"][1]];
    assert_eq!((count(file, "/records"), count(file, "/not_sent")), (uniflows, 0));
    assert_eq!((count(udp, "/records"), count(udp, "/not_sent")), (0, uniflows));
}

/// Where datagrams go whose flows are counted.
const SINK: u16 = 9_000;

/// Datagrams of the records for the sink that came over some connections, each record once.
fn sunk(streams: &[&[u8]]) -> u64 {
    let mut flows: Vec<_> = streams.iter().flat_map(|stream| flows(stream)).collect();
    flows.retain(|flow| flow.protocol == 17 && flow.ports[1] == u64::from(SINK));
    flows.sort_by_key(|flow| (flow.ports, flow.forward.start));
    flows.dedup();
    flows.iter().map(|flow| flow.forward.packets).sum()
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// A collector over TCP, which reads all that comes over the first connection.
struct Tap {
    stream: TcpStream,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().expect("a connection");
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (stream.try_clone().expect("another"), Arc::clone(&bytes));
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(len @ 1..) = from.read(&mut buffer) {
                into.lock().expect("no panic").extend_from_slice(&buffer[..len]);
            }
        });
        Self { stream, bytes }
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().expect("no panic").clone()
    }
}

/// A collector over TLS, which writes what comes into a file.
fn tls_collector(net: &Net, folder: &Path, port: u16, into: &str) -> Running {
    let mut server = Command::new("openssl");
    server.args(["s_server", "-quiet", "-cert", "cert.pem", "-key", "key.pem", "-accept", &port.to_string()]);
    let received = fs::File::create(folder.join(into)).expect("a file");
    server.current_dir(folder).stdin(Stdio::piped()).stdout(received).stderr(Stdio::null());
    net.server.run(|| Running::start(&mut server))
}

/// Collectors that are away for a while, a minute with sweeps. Over TCP and TLS all records of this time come when they are back; over UDP none
/// of them does, and answers that nobody listens are counted. No packet waits meanwhile.
#[test]
fn what_collectors_missed_comes_when_they_are_back() {
    let Some(net) = Net::new() else { return };
    if !has_collector("openssl") {
        return;
    }
    let away = Duration::from_secs(amount(3, 60));
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| fs::read(folder.path().join(name)).unwrap_or_default();
    certificates(folder.path());
    bridge(&net);
    net.server.ip("link set lo up").expect("up");
    let (_sink, tcp, udp, tls) = net.server.run(|| {
        let sink = UdpSocket::bind(("0.0.0.0", SINK)).expect("the sink");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let tls = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        (sink, tcp, udp, tls)
    });
    let [tcp_port, udp_port] =
        [tcp.local_addr(), udp.local_addr()].map(|address| address.expect("an address").port());
    let first_tls = tls_collector(&net, folder.path(), tls, "first");

    let ca = folder.path().join("ca.pem");
    let arguments = format!(
        "meter -i s0 --idle-timeout 1s --ipfix tcp://127.0.0.1:{tcp_port} --ipfix udp://127.0.0.1:{udp_port} \
         --ipfix tls://127.0.0.1:{tls} --tls-ca {} --tls-name collector.example",
        ca.display()
    );
    let mut product = Product::start(&net.server, &[], &arguments);
    // Each datagram is a flow, but where a port comes again soon.
    let (goes, ends) = (Arc::new(Mutex::new(false)), Arc::new(AtomicBool::new(false)));
    let sent = Arc::new(AtomicU64::new(0));
    let sender = {
        let (goes, ends, sent) = (Arc::clone(&goes), Arc::clone(&ends), Arc::clone(&sent));
        net.client.spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let goes = goes.lock().expect("no panic");
                if *goes {
                    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
                    socket.send_to(b"a datagram", (SERVER[0], SINK)).expect("sent");
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                drop(goes);
                thread::sleep(Duration::from_millis(5));
            }
        })
    };
    let send_for = |time: Duration| {
        *goes.lock().expect("no panic") = true;
        thread::sleep(time);
        *goes.lock().expect("no panic") = false;
        sent.load(Ordering::Relaxed)
    };
    let received = |udp: &UdpSocket, stream: &mut Vec<u8>| {
        udp.set_nonblocking(true).expect("set");
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len) = udp.recv(&mut buffer) {
            stream.extend_from_slice(&buffer[..len]);
        }
    };

    let first = Tap::accept(&tcp);
    let before = send_for(Duration::from_secs(1));
    until("before, over TCP", || sunk(&[&first.bytes()]) == before);
    until("before, over TLS", || sunk(&[&at("first")]) == before);
    let datagrams = Mutex::new(Vec::new());
    until("before, over UDP", || {
        received(&udp, &mut datagrams.lock().expect("no panic"));
        sunk(&[&datagrams.lock().expect("no panic")]) == before
    });

    // All of them go, and what they have had was read.
    drop((tcp, udp));
    first.stream.shutdown(Shutdown::Both).expect("closed");
    drop(first_tls);
    let missed = send_for(away) - before;
    assert!(missed > 100, "{missed} datagrams");
    product.wait_for("nobody listens there");
    // Until the last of these records has left, on however busy a machine.
    thread::sleep(Duration::from_secs(10));

    let (tcp, udp) = net.server.run(|| {
        let tcp = TcpListener::bind(("127.0.0.1", tcp_port)).expect("the port");
        (tcp, UdpSocket::bind(("127.0.0.1", udp_port)).expect("the port"))
    });
    let _second_tls = tls_collector(&net, folder.path(), tls, "second");
    let second = Tap::accept(&tcp);
    let all = send_for(Duration::from_secs(1));
    until("all, over TCP", || sunk(&[&first.bytes(), &second.bytes()]) == all);
    until("all, over TLS", || sunk(&[&at("first"), &at("second")]) == all);
    until("before and after, over UDP", || {
        received(&udp, &mut datagrams.lock().expect("no panic"));
        sunk(&[&datagrams.lock().expect("no panic")]) == all - missed
    });
    ends.store(true, Ordering::Relaxed);
    sender.join().expect("sent");
    let done = product.stop();
    let [tcp, udp, tls] = [0, 1, 2].map(|number| &done.summary["exports"][number]);
    eprintln!("{all} datagrams, {missed} while collectors were away for {away:?}; {tcp} {udp} {tls}");
    for session in [tcp, tls] {
        assert_eq!(count(session, "/not_sent"), 0, "{session}");
        assert!(count(session, "/reconnects") > 0, "{session}");
    }
    assert_eq!(count(udp, "/not_sent"), 0, "{udp}");
    assert!(count(udp, "/refused") > 0, "{udp}");
    assert!(count(&done.summary, "/counted_packets") >= all);
}

/// Frames of a flow each.
fn flows_of_one_packet(count: u32) -> Vec<Vec<u8>> {
    let frame = packet("0 udp 10.0.0.1:1000 > 10.0.0.2:80 payload 18").bytes;
    let address = |number: u32| [10, (number >> 16) as u8 + 1, (number >> 8) as u8, number as u8];
    let frames = (0..count).map(|number| [&frame[..26], &address(number), &frame[30..]].concat());
    frames.collect()
}

/// A collector that takes a few kilobytes a second keeps no packet waiting. What it has not taken at the end, and with sweeps more than is kept for
/// it, is counted.
#[test]
fn a_slow_collector_keeps_no_packet_waiting() {
    let Some(net) = Net::new() else { return };
    let frames = flows_of_one_packet(amount(20_000, 1_000_000) as u32);
    net.product.ip("link set lo up").expect("up");
    let listener = net.product.run(|| TcpListener::bind("127.0.0.1:0").expect("a port"));
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 1 << 12).expect("a small buffer");
    let to = listener.local_addr().expect("an address");
    // Few flows at a time, so that records come at the rate of packets; as long as can be.
    let chain = format!(
        "[[chain]]\nnf = \"meter\"\nmax_flows = 64\nfields = \"full\"\n[[chain.export]]\nto = \"tcp://{to}\"\n"
    );
    let mut link = Link::new(&net);
    let mut product = Product::inline(&net.product, &chain, &[], "");
    let (mut stream, _) = listener.accept().expect("a connection");
    let is_over = Arc::new(AtomicBool::new(false));
    let collector = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 10]);
            loop {
                let len = stream.read(&mut buffer).unwrap_or(0);
                bytes.extend_from_slice(&buffer[..len]);
                if len == 0 {
                    return bytes;
                }
                if !is_over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(100));
                }
            }
        })
    };
    let come = link.send(&mut product, &frames);
    assert!(come == frames, "{} of {} packets have come", come.len(), frames.len());
    is_over.store(true, Ordering::Relaxed);
    let is_too_much = frames.len() > 500_000;
    let done = if is_too_much { product.stop_incomplete() } else { product.stop() };
    let bytes = collector.join().expect("no panic");
    let (mut collector, mut received, mut rest) = (Collector::default(), 0, &bytes[..]);
    while rest.len() >= 4 {
        let (message, behind) = rest.split_at(usize::from(u16::from_be_bytes([rest[2], rest[3]])));
        received += collector.message(message).flows.len() as u64;
        rest = behind;
    }
    let export = &done.summary["exports"][0];
    let [records, not_sent] = ["/records", "/not_sent"].map(|name| count(export, name));
    assert_eq!(records, received, "{export:#}");
    assert_eq!(records + not_sent, count(&done.summary["functions"][0], "/uniflows"), "{export:#}");
    assert_eq!(records + not_sent, frames.len() as u64, "{export:#}");
    assert_eq!(not_sent > 0, is_too_much, "{export:#}");
    if is_too_much {
        assert!(done.said.iter().any(|line| line.contains("too slow")), "{export:#}");
    }
}
