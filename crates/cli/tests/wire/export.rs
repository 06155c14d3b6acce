//! Records of what interfaces see, on their way to a collector.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::collector::{Collector, Flow};
use packetloom_testing::ends::echo;
use packetloom_testing::net::{Net, SERVER};

use crate::monitor::bridge;
use crate::product::{Product, count};

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
