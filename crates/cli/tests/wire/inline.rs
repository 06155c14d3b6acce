//! Real programs through a chain between two interfaces.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use packetloom_testing::amount;
use packetloom_testing::ends::{echo, ping, retry, transfer};
use packetloom_testing::net::{CLIENT, Net, SERVER, ip};

use crate::product::{BACKENDS, Product, count, packets};

const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
/// Its tables are small: a device that is a core copies them in its own memory each second, and packets wait for that.
const CHAIN: &str = "\
[flows.connections]
by = \"connection\"
max_flows = 10000
[flows.flows]
by = \"5-tuple\"
max_flows = 10000
[[chain]]
nf = \"acl\"
rules = \"rules\"
[[chain]]
nf = \"conntrack\"
flows = \"connections\"
[[chain]]
nf = \"limiter\"
flows = \"flows\"
rate = \"100Gbit/s\"
burst = \"100MB\"
[[chain]]
nf = \"meter\"
max_flows = 10000
output = \"flows.jsonl\"
";
/// Ports that the rules deny.
const DENIED: u16 = 81;
/// Whoever waits longer than this has lost something.
const PATIENCE: Duration = Duration::from_secs(60);
/// Whoever waits longer for something that is denied waits in vain.
const IN_VAIN: Duration = Duration::from_millis(300);

/// Ten thousand rules about other networks, and some about this one.
fn rules() -> String {
    let mut rules = String::new();
    for number in 0..10_000u32 {
        let (high, low) = (number / 250, number % 250);
        let port = 1_000 + number % 5_000;
        let _ = writeln!(rules, "deny tcp from 198.18.{high}.{low} to 203.0.113.0/24 port {port}");
    }
    let _ = writeln!(rules, "deny tcp from any to any port {DENIED}");
    let _ = writeln!(rules, "deny udp from any to any port {DENIED}");
    rules + "permit any from any to any\n"
}

/// Requests of a connection each, as many as `count`, to a server that answers with a few bytes.
fn small_requests(net: &Net, address: &str, count: usize) {
    let any = if address.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let listener = net.server.run(|| TcpListener::bind(any).expect("bound"));
    let port = listener.local_addr().expect("bound").port();
    let server = thread::spawn(move || {
        for _ in 0..count {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = [0; 100];
            stream.read_exact(&mut request).expect("a request");
            stream.write_all(&request.map(|byte| byte ^ 0xff)).expect("answered");
        }
    });
    net.client.run(|| {
        for number in 0..count {
            let to = SocketAddr::new(address.parse().expect("an address"), port);
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            let request = [number as u8; 100];
            stream.write_all(&request).expect("sent");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("an answer");
            assert_eq!(answer, request.map(|byte| byte ^ 0xff));
        }
    });
    server.join().expect("a server");
}

/// Names looked up at a server that answers each query once: an A record of 192.0.2.1 (RFC 1035 section 4).
fn lookups(net: &Net, address: &str, count: u16) {
    let any: IpAddr = if address.contains(':') { "::" } else { "0.0.0.0" }.parse().expect("an address");
    let server = net.server.run(|| UdpSocket::bind((any, 53)).expect("bound"));
    server.set_read_timeout(Some(PATIENCE)).expect("set");
    let answers = thread::spawn(move || {
        let mut message = [0; 512];
        for _ in 0..count {
            let (len, from) = retry(|| server.recv_from(&mut message)).expect("a query");
            // An answer, with one record, whose name is that of the question.
            message[2..4].copy_from_slice(&[0x81, 0x80]);
            message[6..8].copy_from_slice(&[0, 1]);
            let record = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
            message[len..len + record.len()].copy_from_slice(&record);
            server.send_to(&message[..len + record.len()], from).expect("answered");
        }
    });
    net.client.run(|| {
        for number in 0..count {
            let socket = UdpSocket::bind((any, 0)).expect("bound");
            socket.set_read_timeout(Some(PATIENCE)).expect("set");
            let mut query = number.to_be_bytes().to_vec();
            query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
            query.extend(b"\x07example\x04test\x00\x00\x01\x00\x01");
            socket.send_to(&query, (address, 53)).expect("sent");
            let mut answer = [0; 512];
            let len = retry(|| socket.recv(&mut answer)).expect("an answer");
            assert_eq!((&answer[..2], &answer[len - 4..len]), (&query[..2], &[192, 0, 2, 1][..]));
        }
    });
    answers.join().expect("a server");
}

/// What is denied comes to nobody, by TCP and by UDP.
fn denied_ones_do_not_arrive(net: &Net, address: &str) {
    let any: IpAddr = if address.contains(':') { "::" } else { "0.0.0.0" }.parse().expect("an address");
    let (listener, socket) = net.server.run(|| {
        (TcpListener::bind((any, DENIED)).expect("bound"), UdpSocket::bind((any, DENIED)).expect("bound"))
    });
    listener.set_nonblocking(true).expect("set");
    socket.set_read_timeout(Some(IN_VAIN)).expect("set");
    net.client.run(|| {
        let to = SocketAddr::new(address.parse().expect("an address"), DENIED);
        let error = TcpStream::connect_timeout(&to, IN_VAIN).expect_err("denied");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        UdpSocket::bind((any, 0)).expect("bound").send_to(&[1; 50], to).expect("sent");
    });
    assert_eq!(listener.accept().expect_err("nobody").kind(), ErrorKind::WouldBlock);
    let error = socket.recv(&mut [0; 100]).expect_err("nothing");
    // A machine that was halted meanwhile interrupts it.
    let in_vain = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted];
    assert!(in_vain.contains(&error.kind()), "{error}");
}

/// Requests of a connection each, and bytes of transfers alone and beside others.
#[derive(Clone, Copy)]
struct Load {
    requests: usize,
    alone: usize,
    beside: usize,
}

fn load() -> Load {
    Load {
        requests: amount(300, 1_000),
        alone: amount(32 << 20, 1 << 30),
        beside: amount(8 << 20, 128 << 20),
    }
}

fn everything_works(backend: &str, arguments: &str, forwards: bool, load: Load) {
    let Some(net) = Net::new() else { return };
    if forwards {
        // The kernel would forward, had it the packets.
        net.product.set("ipv4/ip_forward", "1");
        net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
        net.product.ip("addr add 10.9.0.9/24 dev pb").expect("an address");
    }
    let mut product = Product::inline_by(backend, &net.product, CHAIN, &[("rules", &rules())], arguments);
    product.wait_until_ready(&net);
    for address in SERVER {
        ping(&net, address, 10).expect("answered");
        lookups(&net, address, 50);
        // One in fragments, too.
        echo(&net, address, &[0, 1, 18, 100, 1_400, 1_472, 20_000]).expect("echoed");
        small_requests(&net, address, load.requests);
        denied_ones_do_not_arrive(&net, address);
        transfer(&net, address, load.alone);
    }
    // Both ways at once, in both families.
    thread::scope(|scope| {
        for _ in 0..2 {
            for address in SERVER {
                let net = &net;
                scope.spawn(move || transfer(net, address, load.beside));
            }
        }
    });
    let done = product.stop();
    let summary = &done.summary;
    let denied = count(summary, "/dropped/acl_rule");
    // Of each family one datagram, and a SYN that may be sent again.
    let hits = summary["functions"][0]["hits"].as_array().expect("rules");
    let of = |protocol: &str| {
        let rule =
            hits.iter().find(|rule| rule["text"] == format!("deny {protocol} from any to any port {DENIED}"));
        count(rule.unwrap_or_else(|| panic!("no {protocol} denied: {summary:#}")), "/packets")
    };
    assert!(of("udp") == 2 && of("tcp") >= 2 && denied == 2 + of("tcp"), "{summary:#}");
    let others = ["acl_default", "rate_limit", "malformed", "flow_table_full"];
    for reason in others {
        assert_eq!(count(summary, &format!("/dropped/{reason}")), 0, "{summary:#}");
    }
    for interface in summary["interfaces"].as_array().expect("two") {
        assert_eq!(count(interface, "/oversized") + count(interface, "/unsound"), 0, "{interface:#}");
        let has_giants = count(interface, "/segments") > count(interface, "/received");
        assert_eq!(has_giants, backend == "af_packet", "{interface:#}");
        let used = interface["backend"].as_str().expect("a name");
        assert_eq!(used, if backend == "af_packet" { "af_packet" } else { "af_xdp_native" });
    }
    let metered = count(summary, "/functions/3/counted_packets");
    assert_eq!(packets(&done.records), metered);
    assert!(metered > 3 * load.requests as u64, "{summary:#}");
}

#[test]
fn everything_works_through_a_chain() {
    everything_works("af_packet", "--workers 1", false, load());
}

#[test]
fn everything_works_by_af_xdp() {
    // In frames of the MTU.
    let load = Load { alone: amount(32 << 20, 128 << 20), beside: amount(8 << 20, 32 << 20), ..load() };
    everything_works("af_xdp", "--workers 1", true, load);
    everything_works("auto", "--workers 3", false, load);
}

#[test]
fn everything_works_through_a_chain_of_three_workers() {
    everything_works("af_packet", "--workers 3", false, load());
}

#[test]
fn the_kernel_forwards_nothing_meanwhile() {
    everything_works("af_packet", "--workers 2", true, load());
}

/// A list, functions with state and a meter on a device. Few bytes: devices that are cores take some 20 MB a second.
#[test]
fn everything_works_through_a_chain_on_a_device() {
    for device in packetloom_testing::devices() {
        let load = Load { requests: 50, alone: 8 << 20, beside: 2 << 20 };
        everything_works("af_packet", &format!("--device {device} --max-latency 1ms"), false, load);
    }
}

/// Destinations are rewritten while senders leave checksums to be finished and packets to be cut.
#[test]
fn connections_to_a_service_reach_its_backend() {
    BACKENDS.into_iter().for_each(a_service_is_reached);
}

fn a_service_is_reached(backend: &str) {
    let Some(net) = Net::new() else { return };
    let mac = net.server.mac("s0").map(|byte| format!("{byte:02x}")).join(":");
    let services = [("10.9.0.100", "10.9.0.2"), ("fd09::100", "fd09::2")];
    let mut chain = "[[chain]]\nnf = \"balancer\"\nreturns = true\n".to_owned();
    for (service, server) in services {
        net.client.ip(&format!("neigh add {service} lladdr {mac} dev c0")).expect("added");
        let _ = write!(
            chain,
            "[[chain.services]]\naddress = \"{service}\"\nport = 8080\nbackends = [{{ address = \"{server}\", port = 9090 }}]\n"
        );
    }
    let product = Product::inline_by(backend, &net.product, &chain, &[], "-w passed.pcap");
    // Of both services, both ways, no more than may wait for the writer of the capture.
    let len = amount(4 << 20, 12 << 20);
    for (service, _) in services {
        let any: IpAddr = if service.contains(':') { "::" } else { "0.0.0.0" }.parse().expect("an address");
        let listener = net.server.run(|| TcpListener::bind((any, 9090)).expect("bound"));
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut bytes = vec![0; len];
            stream.read_exact(&mut bytes).expect("read");
            stream.write_all(&bytes).expect("written back");
        });
        net.client.run(|| {
            let to = SocketAddr::new(service.parse().expect("an address"), 8080);
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            let sent: Vec<u8> =
                (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let mut got = vec![0; len];
            thread::scope(|scope| {
                let mut writer = stream.try_clone().expect("a second handle");
                let sent = &sent;
                scope.spawn(move || writer.write_all(sent).expect("sent"));
                stream.read_exact(&mut got).expect("got");
            });
            assert!(sent == got, "other bytes than were sent");
        });
        server.join().expect("a server");
    }
    let done = product.stop();
    assert!(count(&done.summary, "/functions/0/backends/0/returned/packets") > 100, "{:#}", done.summary);
    // In what was captured all checksums are finished, those of rewritten giants, too.
    if packetloom_testing::has_tshark() {
        crate::support::assert_checksums(&done.passed);
    }
}

/// Who may ask whom is said by the interface.
#[test]
fn rules_are_for_packets_of_their_interfaces() {
    let Some(net) = Net::new() else { return };
    let rules = "\
permit icmp from any to any type 8 in pa
permit icmp from any to any type 0 in pb
deny icmp from any to any
permit any from any to any
";
    for workers in [1, 3] {
        let arguments = format!("--workers {workers}");
        let product = Product::inline(&net.product, ACL, &[("rules", rules)], &arguments);
        ping(&net, SERVER[0], 5).expect("answered");
        let back = net.server.exec(&format!("ping -q -i 0.1 -W 1 -c 2 {}", CLIENT[0]));
        back.expect_err("the other way it is denied");
        let done = product.stop();
        assert_eq!(count(&done.summary, "/dropped/acl_rule"), 2, "{:#}", done.summary);
    }
}

/// Who opens connections, and where they leave: what answers them comes back, whatever it is.
#[test]
fn rules_are_for_packets_of_their_states() {
    let Some(net) = Net::new() else { return };
    let rules = "\
permit any from any to any state established,related
permit icmp from any to any type 8 state new in pa out pb
permit icmp from any to any state new in pa out pa id nowhere
deny icmp from any to any
";
    for workers in [1, 3] {
        let arguments = format!("--workers {workers}");
        let product = Product::inline(&net.product, ACL, &[("rules", rules)], &arguments);
        ping(&net, SERVER[0], 5).expect("answered");
        let back = net.server.exec(&format!("ping -q -i 0.1 -W 1 -c 2 {}", CLIENT[0]));
        back.expect_err("the other way it is denied");
        let done = product.stop();
        assert_eq!(count(&done.summary, "/dropped/acl_rule"), 2, "{:#}", done.summary);
        // All answers, and all queries but the first: each is sent when the one before was answered.
        assert_eq!(count(&done.summary, "/functions/0/tracked/established"), 9, "{:#}", done.summary);
    }
}

/// What is no IP passes.
#[test]
fn arp_passes() {
    let Some(net) = Net::new() else { return };
    // An address for which the client has to ask.
    ip(&format!("-n {} neigh flush all", net.client.name())).expect("flushed");
    let mut product = Product::inline(&net.product, ACL, &[("rules", "permit icmp from any to any\n")], "");
    ping(&net, SERVER[0], 3).expect("answered");
    // Six packets, a question and an answer.
    product.wait_until_passed(8);
    product.stop();
}

/// The meter says by which port packets of each direction came in, and by which they leave.
#[test]
fn records_say_by_which_ports_packets_come_and_leave() {
    let chain = "[[chain]]\nnf = \"meter\"\nfields = \"standard\"\noutput = \"flows.jsonl\"\n";
    for (backend, workers) in BACKENDS.into_iter().zip([1, 2]) {
        let Some(net) = Net::new() else { return };
        let product = Product::inline_by(backend, &net.product, chain, &[], &format!("--workers {workers}"));
        for address in SERVER {
            echo(&net, address, &[10, 100]).expect("echoed");
        }
        let done = product.stop();
        let udp: Vec<_> = done.records.iter().filter(|it| it["protocolIdentifier"] == 17).collect();
        assert_eq!(udp.len(), 2, "{backend}: {:#?}", done.records);
        for record in udp {
            let ports = ["/ingressInterface", "/egressInterface"].map(|name| count(record, name));
            let reverse =
                ["/reverseIngressInterface", "/reverseEgressInterface"].map(|name| count(record, name));
            // The client is at the first port.
            assert_eq!((ports, reverse), ([0, 1], [1, 0]), "{backend}: {record:#}");
        }
    }
}
