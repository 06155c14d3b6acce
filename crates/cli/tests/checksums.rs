//! Rewritten packets as tshark reads them: addresses, ports and DSCPs are those that are expected, and no checksum is wrong that was not
//! wrong before.
//!
//! Where tshark is not installed they say that they are skipped; where `PACKETLOOM_TSHARK` is set, it has to be.

#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use packetloom_testing::has_tshark;
use support::{packetloom, root, succeed};

/// One end of a packet.
type End = (IpAddr, Option<u16>);

/// What tshark says about a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// The protocol after the outermost IP header.
    protocol: String,
    source: Option<End>,
    destination: Option<End>,
    dscp: Option<u8>,
    /// Of IPv4, TCP, UDP and ICMPv6: 0 bad, 1 good, 2 not looked at, since not all of it is there; none where there is none.
    checksums: [Option<u8>; 4],
}

const FIELDS: [&str; 15] = [
    "frame.protocols",
    "ip.src",
    "ipv6.src",
    "ip.dst",
    "ipv6.dst",
    "tcp.srcport",
    "udp.srcport",
    "tcp.dstport",
    "udp.dstport",
    "ip.dsfield.dscp",
    "ipv6.tclass.dscp",
    "ip.checksum.status",
    "tcp.checksum.status",
    "udp.checksum.status",
    "icmpv6.checksum.status",
];

impl Row {
    fn new(line: &str) -> Self {
        let fields: Vec<_> = line.split('\t').collect();
        let field = |name: &str| {
            let at = FIELDS.iter().position(|field| *field == name).expect("a field that is asked for");
            Some(fields[at]).filter(|value| !value.is_empty())
        };
        let mut layers = field("frame.protocols").expect("protocols").split(':');
        let is_ip = layers.by_ref().any(|layer| layer == "ip" || layer == "ipv6");
        let protocol = layers.find(|layer| !layer.starts_with("ipv6.")).filter(|_| is_ip).unwrap_or_default();
        let number = |name: &str| field(name).map(|value| value.parse().expect("a number"));
        let end = |v4: &str, v6: &str, side: &str| {
            let address = field(v4).or(field(v6)).filter(|_| is_ip)?.parse().expect("an address");
            // Those of a packet that an error quotes are not its own.
            let port = ["tcp", "udp"].contains(&protocol).then(|| number(&format!("{protocol}.{side}port")));
            Some((address, port.flatten()))
        };
        let byte = |name: &str| number(name).map(|number| number as u8);
        Self {
            source: end("ip.src", "ipv6.src", "src"),
            destination: end("ip.dst", "ipv6.dst", "dst"),
            dscp: byte("ip.dsfield.dscp").or(byte("ipv6.tclass.dscp")),
            checksums: [
                byte("ip.checksum.status"),
                byte("tcp.checksum.status"),
                byte("udp.checksum.status"),
                byte("icmpv6.checksum.status"),
            ],
            protocol: protocol.to_owned(),
        }
    }
}

/// All frames of a capture. Each by itself: fragments are not put together.
fn rows(capture: &Path) -> Vec<Row> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(capture).args(["-T", "fields", "-E", "occurrence=f"]);
    for preference in ["ip.check_checksum", "tcp.check_checksum", "udp.check_checksum"] {
        command.arg("-o").arg(format!("{preference}:TRUE"));
    }
    command.args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    FIELDS.iter().for_each(|field| {
        command.arg("-e").arg(field);
    });
    succeed(&mut command).lines().map(Row::new).collect()
}

/// A service with its backend: protocol, address and port of each.
struct Service {
    protocol: &'static str,
    address: (IpAddr, u16),
    backend: (IpAddr, u16),
}

impl Service {
    fn new(protocol: &'static str, address: (&str, u16), backend: (&str, u16)) -> Self {
        let end = |(address, port): (&str, u16)| (address.parse().expect("an address"), port);
        Self { protocol, address: end(address), backend: end(backend) }
    }
}

fn end((address, port): (IpAddr, u16)) -> Option<End> {
    Some((address, Some(port)))
}

/// Runs a chain of a balancer with these services and a policer that marks; all frames before and after, and how many packets the
/// policer found of each colour.
fn balanced(capture: &Path, services: &[Service]) -> (Vec<Row>, Vec<Row>, [u64; 3]) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |file: &str| folder.path().join(file);
    let mut chain = "[[chain]]\nnf = \"balancer\"\nreturns = true\n".to_owned();
    for Service { protocol, address, backend } in services {
        chain += &format!(
            "[[chain.services]]\naddress = \"{}\"\nport = {}\nprotocol = \"{protocol}\"\n\
             backends = [{{ address = \"{}\", port = {} }}]\n",
            address.0, address.1, backend.0, backend.1
        );
    }
    chain += "[[chain]]\nnf = \"policer\"\nmarker = \"single-rate\"\ncir = \"16kbit/s\"\ncbs = \"3000B\"\nebs = \"3000B\"\n\
        green = { dscp = \"af11\" }\nyellow = { dscp = \"af12\" }\nred = { dscp = \"af13\" }\n[run]\nworkers = 2\n";
    std::fs::write(at("chain.toml"), chain).expect("written");
    let mut command = packetloom();
    command.arg("run").arg(at("chain.toml")).arg("-r").arg(capture).arg("-w").arg(at("out.pcap"));
    succeed(command.arg("--summary").arg(at("summary.json")));
    let summary = support::json(&at("summary.json"));
    assert_eq!(summary["passed"], summary["received"]);
    let colours = ["green", "yellow", "red"]
        .map(|colour| summary["functions"][1][colour]["packets"].as_u64().expect("a number"));

    // What is wrong is found: a DSCP that is written without the checksum.
    let mut damaged = std::fs::read(at("out.pcap")).expect("a capture");
    let frame = damaged.windows(4).position(|bytes| bytes[..3] == [8, 0, 0x45]).expect("an IPv4 packet");
    damaged[frame + 3] ^= 0x04;
    std::fs::write(at("damaged.pcap"), damaged).expect("written");
    let is_bad = |row: &&Row| row.checksums[0] == Some(0);
    let (after, damaged) = (rows(&at("out.pcap")), rows(&at("damaged.pcap")));
    assert_eq!(damaged.iter().filter(is_bad).count(), after.iter().filter(is_bad).count() + 1);
    (rows(capture), after, colours)
}

/// Compares all frames with what is expected of them; how many went to a backend, and how many came from one.
fn compare(services: &[Service], before: &[Row], after: &[Row], colours: [u64; 3]) -> [usize; 2] {
    assert_eq!(before.len(), after.len());
    let mut rewritten = [0; 2];
    let mut marked = [0; 3];
    for (number, (before, after)) in (1..).zip(before.iter().zip(after)) {
        let mut expected = Row { dscp: after.dscp, ..before.clone() };
        let of = |service: &&Service| service.protocol == before.protocol;
        let mut services = services.iter().filter(of);
        if let Some(service) = services.clone().find(|service| end(service.address) == before.destination) {
            expected.destination = end(service.backend);
            rewritten[0] += 1;
        } else if let Some(service) = services.find(|service| end(service.backend) == before.source) {
            expected.source = end(service.address);
            rewritten[1] += 1;
        }
        assert_eq!(*after, expected, "frame {number}");
        assert_eq!(before.dscp.is_some(), after.dscp.is_some(), "frame {number}");
        if let Some(dscp) = after.dscp {
            // AF11, AF12, AF13.
            assert!([10, 12, 14].contains(&dscp), "frame {number}: {dscp}");
            marked[usize::from(dscp - 10) / 2] += 1;
        }
    }
    assert_eq!(marked, colours);
    assert!(colours.iter().all(|&packets| packets > 100), "{colours:?}");
    rewritten
}

/// How many checksums of each kind were summed up and found to be right.
fn good(rows: &[Row]) -> [usize; 4] {
    [0, 1, 2, 3].map(|kind| rows.iter().filter(|row| row.checksums[kind] == Some(1)).count())
}

#[test]
fn the_recording_as_tshark_reads_it() {
    if !has_tshark() {
        return;
    }
    const SERVER: &str = "198.51.100.10";
    const SERVER6: &str = "2001:db8:2::10";
    let services = [
        // What is asked goes elsewhere, over IPv4 and IPv6.
        Service::new("tcp", (SERVER, 80), ("10.0.0.1", 8080)),
        Service::new("udp", (SERVER6, 53), ("2001:db8:f::1", 5353)),
        // What the server answers is from elsewhere.
        Service::new("udp", ("203.0.113.53", 5300), (SERVER, 53)),
        Service::new("tcp", ("2001:db8:f::80", 8000), (SERVER6, 80)),
    ];
    let (before, after, colours) = balanced(&root().join("examples/edge/edge.pcap"), &services);
    assert_eq!(after.len(), 5_061);
    let rewritten = compare(&services, &before, &after, colours);
    // Summed up by tshark, with the recorded ones.
    assert_eq!((good(&before), good(&after)), ([2827, 2493, 248, 116], [2827, 2493, 248, 116]));

    // By hand: a SYN to the web server and the answer, a question to the name server and the answer, and the same over IPv6.
    let row = |number: usize| {
        let Row { source, destination, .. } = after[number - 1].clone();
        let text = |end: Option<End>| {
            let (address, port) = end.expect("an address");
            format!("{address} {}", port.expect("a port"))
        };
        format!("{} > {}", text(source), text(destination))
    };
    assert_eq!(row(25), "192.0.2.10 36600 > 198.51.100.10 53");
    assert_eq!(row(26), "203.0.113.53 5300 > 192.0.2.10 36600");
    assert_eq!(row(27), "192.0.2.10 48958 > 10.0.0.1 8080");
    assert_eq!(row(28), "198.51.100.10 80 > 192.0.2.10 48958");
    assert_eq!(row(192), "2001:db8:1:1::10 33360 > 2001:db8:2::10 80");
    assert_eq!(row(193), "2001:db8:f::80 8000 > 2001:db8:1:1::10 33360");
    // The first packet of each source finds full buckets.
    assert_eq!([25, 26, 27, 192].map(|number: usize| after[number - 1].dscp), [Some(10); 4]);
    // As display filters of tshark count them in the recording.
    assert_eq!(rewritten, [409, 715]);
}

#[test]
fn generated_traffic_as_tshark_reads_it() {
    if !has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("traffic.pcap");
    let options = ["--packets", "20000", "--flows", "400", "--seed", "11", "--snap", "2000"];
    succeed(packetloom().args(["generate", "traffic", "-w"]).arg(&capture).args(options));
    let before = rows(&capture);
    // Clients have ports above; the first packet of a flow is theirs.
    const CLIENTS: u16 = 10_000;
    // For each protocol and version a service that many packets are for, and a backend that sends many.
    let mut services = Vec::new();
    for (protocol, is_v4, backend, service) in [
        ("tcp", true, "10.255.0.1", "203.0.113.1"),
        ("udp", true, "10.255.0.2", "203.0.113.2"),
        ("tcp", false, "2001:db8:f::1", "2001:db8:f::2"),
        ("udp", false, "2001:db8:f::3", "2001:db8:f::4"),
    ] {
        let busiest = |end: fn(&Row) -> Option<End>, other: Option<IpAddr>| {
            let mut packets = BTreeMap::new();
            for row in before.iter().filter(|row| row.protocol == protocol) {
                if let Some((address, Some(port))) = end(row)
                    && address.is_ipv4() == is_v4
                    && Some(address) != other
                    && port < CLIENTS
                {
                    *packets.entry((address, port)).or_insert(0) += 1;
                }
            }
            packets.into_iter().max_by_key(|(_, packets)| *packets).expect("a packet").0
        };
        let asked = busiest(|row| row.destination, None);
        let answers = busiest(|row| row.source, Some(asked.0));
        let fixed = |address: &str, port| (address.parse().expect("an address"), port);
        services.push(Service { protocol, address: asked, backend: fixed(backend, 7_001) });
        services.push(Service { protocol, address: fixed(service, 7_002), backend: answers });
    }
    let (before, after, colours) = balanced(&capture, &services);
    let [to, from] = compare(&services, &before, &after, colours);
    assert!(to > 40 && from > 40, "{to} {from}");
    let good = good(&after);
    assert!(good.iter().all(|&good| good > 20), "{good:?}");
    assert_eq!(after.iter().flat_map(|row| row.checksums).filter(|status| *status == Some(0)).count(), 0);
}
