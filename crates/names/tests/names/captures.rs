//! Names in real captures, against tshark's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_names::{NameKind, Outcome, Watch};
use packetloom_packet::batch::{Parsed, Policy};
use packetloom_packet::{Batch, FlowKey, KeyBits, protocol};
use packetloom_testing::{corpus, has_tshark};

use crate::encode::{dns, labels};
use crate::watch::CLIENT;

/// A direction of a flow.
pub(crate) type Direction = (FlowKey, bool);

/// The TCP flag of a connection's first segment.
const SYN: u8 = 2;

/// What is known of a frame, as far as a watch needs it.
pub(crate) struct Packet<'a> {
    /// Counted from 1, as tshark does.
    pub(crate) frame: usize,
    pub(crate) direction: Direction,
    pub(crate) is_tcp: bool,
    pub(crate) ports: (u16, u16),
    /// Whether it begins a connection, and the sequence number of its first byte of payload.
    pub(crate) is_syn: bool,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

/// Calls `take` with every packet of TCP or UDP.
pub(crate) fn for_each_packet(path: &Path, mut take: impl FnMut(Packet<'_>)) {
    let mut reader = CaptureReader::open(path, &Stop::default()).expect("a capture");
    let mut batch = Batch::new(512);
    let mut before = 0;
    while reader.fill(&mut batch).expect("readable") {
        batch.parse(Policy::PASS);
        for index in 0..batch.len() {
            let (direction, ports, protocol, bits, flags) = match batch.parsed()[index] {
                Parsed::V4(at) => {
                    let key = &batch.v4().keys[at as usize];
                    let ports = (key.source_port, key.destination_port);
                    (FlowKey::from_v4(key), ports, key.protocol, key.bits, key.tcp_flags)
                }
                Parsed::V6(at) => {
                    let key = &batch.v6().keys[at as usize];
                    let ports = (key.source_port, key.destination_port);
                    (FlowKey::from_v6(key), ports, key.protocol, key.bits, key.tcp_flags)
                }
                Parsed::Rejected(_) => continue,
            };
            let is_tcp = protocol == protocol::TCP;
            if !bits.contains(KeyBits::PORTS) || !is_tcp && protocol != protocol::UDP {
                continue;
            }
            let (Some(payload), Some(layers)) = (batch.payload(index), batch.layers(index)) else { continue };
            let transport = &batch.bytes(index)[layers.transport as usize..];
            let is_syn = is_tcp && flags & SYN != 0;
            let sequence = u32::from_be_bytes(transport[4..8].try_into().expect("four bytes"));
            let sequence = sequence.wrapping_add(is_syn.into());
            take(Packet { frame: before + index + 1, direction, is_tcp, ports, is_syn, sequence, payload });
        }
        before += batch.len();
    }
}

/// What has one name at most: a direction of a flow since the frame that began it.
type Stream = (Direction, usize);

/// A name, and the number of its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    frame: usize,
    kind: NameKind,
    text: String,
}

/// A capture's names.
#[derive(Default)]
struct Names {
    by_stream: BTreeMap<Stream, Found>,
    /// Which stream a frame belongs to.
    streams: HashMap<usize, Stream>,
}

/// Watches all directions of a capture's flows: each connection of TCP, each datagram of DNS, and else each flow of UDP.
fn watch(path: &Path) -> Names {
    let mut names = Names::default();
    let mut watches: HashMap<Direction, (usize, Option<Watch>)> = HashMap::new();
    let mut begins = HashMap::new();
    for_each_packet(path, |packet| {
        let Packet { frame, direction, is_tcp, ports: (source, destination), is_syn, sequence, payload } =
            packet;
        let is_dns = !is_tcp && [source, destination].iter().any(|port| [53, 5353].contains(port));
        // A SYN that is sent again begins no other connection.
        if is_dns || is_syn && begins.insert(direction, sequence) != Some(sequence) {
            watches.remove(&direction);
        }
        if payload.is_empty() && !is_syn {
            return;
        }
        let (begin, outcome) = match watches.remove(&direction) {
            Some((begin, Some(watch))) => (begin, watch.next(sequence, payload)),
            Some((begin, None)) => (begin, Outcome::NoName),
            None if is_tcp => {
                let begin = is_syn.then_some(sequence);
                (frame, Watch::start_tcp(source, destination, begin, sequence, payload))
            }
            None => (frame, Watch::start_udp(source, destination, payload)),
        };
        names.streams.insert(frame, (direction, begin));
        let watch = match outcome {
            Outcome::More(watch) => Some(watch),
            Outcome::Found(name) => {
                let found = Found { frame, kind: name.kind, text: name.text.into() };
                assert_eq!(names.by_stream.insert((direction, begin), found), None);
                None
            }
            Outcome::NoName | Outcome::GaveUp(_) => None,
        };
        watches.insert(direction, (begin, watch));
    });
    names
}

/// Why a name of tshark's is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    /// In a tunnel, or in an ICMP message.
    Inner,
    /// DNS on a port of its relatives, or HTTP over UDP.
    OtherProtocol,
    /// Not the first one of its stream.
    Later,
}

/// The first name of each frame in which tshark finds one, with the names of its protocols.
fn tshark(path: &Path) -> Vec<(Found, Vec<String>)> {
    const FIELDS: [&str; 5] = [
        "frame.number",
        "frame.protocols",
        "dns.qry.name",
        "tls.handshake.extensions_server_name",
        "http.host",
    ];
    let output = Command::new("tshark")
        .args(["-r".as_ref(), path.as_os_str()])
        .args(["-n", "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f"])
        .args(FIELDS.iter().flat_map(|field| ["-e", field]))
        // Each packet by itself, but streams in the order of their bytes.
        .args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"])
        .args(["-o", "tcp.reassemble_out_of_order:TRUE"])
        .output()
        .expect("tshark runs");
    let row = |line: &str| {
        let fields: Vec<_> = line.split('\t').collect();
        let [frame, protocols, dns, server, host] = fields[..] else { panic!("{line:?}") };
        let protocols: Vec<_> = protocols.split(':').map(str::to_owned).collect();
        let (kind, text) = match (dns, server, host) {
            ("", "", "") => return None,
            ("<Root>", "", "") => (NameKind::DnsQuery, "."),
            (dns, "", "") => (NameKind::DnsQuery, dns),
            ("", "", host) => (NameKind::HttpHost, host),
            ("", server, "") if protocols.iter().any(|name| name == "quic") => (NameKind::QuicServer, server),
            ("", server, "") => (NameKind::TlsServer, server),
            several => panic!("{several:?}"),
        };
        Some((Found { frame: frame.parse().expect("a number"), kind, text: text.to_owned() }, protocols))
    };
    String::from_utf8(output.stdout).expect("UTF-8").lines().filter_map(row).collect()
}

/// All captures of the corpus.
pub(crate) fn captures() -> Option<Vec<PathBuf>> {
    let entries =
        corpus("captures")?.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path());
    let is_capture = |path: &PathBuf| {
        path.extension()
            .is_some_and(|extension| ["pcap", "pcapng", "cap"].iter().any(|name| extension == *name))
    };
    let mut captures: Vec<_> = entries.filter(is_capture).collect();
    captures.sort();
    assert!(captures.len() > 80, "{} captures", captures.len());
    Some(captures)
}

/// How the names of captures compare with tshark's.
#[derive(Default)]
struct Comparison {
    /// By kind, and whether the name was found before tshark has all of its message.
    equal: BTreeMap<(NameKind, bool), usize>,
    skipped: BTreeMap<Reason, usize>,
    /// With the capture, ours and theirs.
    differences: Vec<(String, Option<Found>, Option<Found>)>,
}

impl Comparison {
    fn add(&mut self, path: &Path, names: Names, theirs: Vec<(Found, Vec<String>)>) {
        let capture = path.file_name().expect("a name").to_string_lossy().into_owned();
        let Names { by_stream: mut names, streams } = names;
        let mut seen = BTreeSet::new();
        for (theirs, protocols) in theirs {
            let count =
                |names: &[&str]| protocols.iter().filter(|name| names.contains(&name.as_str())).count();
            let reason = if count(&["ip", "ipv6"]) != 1 {
                Some(Reason::Inner)
            } else if count(&["llmnr", "ssdp"]) > 0 {
                Some(Reason::OtherProtocol)
            } else {
                (!seen.insert(streams[&theirs.frame])).then_some(Reason::Later)
            };
            if let Some(reason) = reason {
                *self.skipped.entry(reason).or_default() += 1;
                continue;
            }
            match names.remove(&streams[&theirs.frame]) {
                Some(ours)
                    if (ours.kind, &ours.text) == (theirs.kind, &theirs.text)
                        && ours.frame <= theirs.frame =>
                {
                    *self.equal.entry((ours.kind, ours.frame < theirs.frame)).or_default() += 1;
                }
                ours => self.differences.push((capture.clone(), ours, Some(theirs))),
            }
        }
        self.differences.extend(names.into_values().map(|ours| (capture.clone(), Some(ours), None)));
    }
}

#[test]
fn names_in_captures_are_those_of_tshark() {
    let Some(captures) = captures() else { return };
    if !has_tshark() {
        return;
    }
    // tshark takes a while to start.
    let all = Mutex::new(Comparison::default());
    let next = AtomicUsize::new(0);
    let compare = || {
        while let Some(path) = captures.get(next.fetch_add(1, Relaxed)) {
            let (names, theirs) = (watch(path), tshark(path));
            all.lock().expect("no panic").add(path, names, theirs);
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(compare))));
    let all = all.into_inner().expect("no panic");
    eprintln!("equal {:?}, skipped {:?}", all.equal, all.skipped);
    assert!(all.differences.is_empty(), "{:#?}", all.differences);
    for (kind, least) in [
        (NameKind::DnsQuery, 300),
        (NameKind::TlsServer, 150),
        (NameKind::HttpHost, 50),
        (NameKind::QuicServer, 100),
    ] {
        let count: usize =
            all.equal.iter().filter(|((other, _), _)| *other == kind).map(|(_, count)| count).sum();
        assert!(count >= least, "{count} names of {kind:?}");
    }
    let skipped: usize = all.skipped.values().sum();
    assert!(skipped < 100, "{:?}", all.skipped);
}

/// IPv4 packets in a capture file (draft-ietf-opsawg-pcap).
fn capture(packets: &[Vec<u8>]) -> tempfile::NamedTempFile {
    const RAW_IP: u32 = 101;
    let mut file = [&0xa1b2_c3d4_u32.to_be_bytes()[..], &[0, 2, 0, 4]].concat();
    file.extend([0, 0, 65_535, RAW_IP].map(u32::to_be_bytes).concat());
    for (at, packet) in packets.iter().enumerate() {
        let len = packet.len() as u32;
        file.extend([at as u32, 0, len, len].map(u32::to_be_bytes).concat());
        file.extend(packet);
    }
    let path = tempfile::Builder::new().suffix(".pcap").tempfile().expect("a file");
    std::fs::write(path.path(), file).expect("written");
    path
}

/// A packet from 10.0.0.1 to 10.0.0.2.
fn ipv4(protocol: u8, transport: &[u8]) -> Vec<u8> {
    let len = (20 + transport.len() as u16).to_be_bytes();
    let header = [0x45, 0, len[0], len[1], 0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    [&header[..], transport].concat()
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let header = [CLIENT, port, 8 + payload.len() as u16, 0].map(u16::to_be_bytes).concat();
    ipv4(protocol::UDP, &[&header, payload].concat())
}

fn tcp(ports: (u16, u16), sequence: u32, payload: &[u8]) -> Vec<u8> {
    let header = [
        [ports.0, ports.1].map(u16::to_be_bytes).concat(),
        [sequence, 1].map(u32::to_be_bytes).concat(),
        [0x5018, 8192, 0, 0].map(u16::to_be_bytes).concat(),
    ];
    ipv4(protocol::TCP, &[header.concat(), payload.to_vec()].concat())
}

/// Packets by packets, of which each is a stream, what tshark finds, and what a watch finds: the table in the crate's documentation.
#[test]
fn the_differences_from_tshark_are_those_that_are_listed() {
    if !has_tshark() {
        return;
    }
    let question = |name: &[u8]| udp(53, &dns(0x0100, &[(name.to_vec(), 1)]));
    let label = |label: &[u8]| question(&labels(&[label, b"x"]));
    let long = [b'a'; 63];
    let cut = |mut message: Vec<u8>, len: usize| {
        message.truncate(message.len() - len);
        udp(53, &message)
    };
    // Each from a port of its own.
    let ports = std::cell::Cell::new(2000);
    let http = |request: &str| {
        ports.set(ports.get() + 1);
        tcp((ports.get(), 80), 1, request.as_bytes())
    };
    let cases: &[(Vec<u8>, Option<&str>, Option<&str>)] = &[
        (label(b"a b"), Some("a b.x"), Some("a b.x")),
        (label("\u{fc}".as_bytes()), Some("\u{fc}.x"), Some("\u{fc}.x")),
        (label(b"a.b"), Some("a.b.x"), Some("a\\.b.x")),
        (label(b"a\\b"), Some("a\\b.x"), Some("a\\\\b.x")),
        (label(b"a\x01b"), Some("a\\001b.x"), Some("a\\001b.x")),
        (label(b"a\nb"), Some("a\\nb.x"), Some("a\\010b.x")),
        (label(b"a\x7fb"), Some("a\\177b.x"), Some("a\\127b.x")),
        (label(b"a\xffb"), Some("a\u{fffd}b.x"), Some("a\\255b.x")),
        (label("\u{202e}".as_bytes()), Some("\\u202E.x"), Some("\\226\\128\\174.x")),
        // tshark's <Root>.
        (question(&labels(&[])), Some("."), Some(".")),
        (question(b"\x01a\xc0\x04"), Some("a"), Some("a")),
        (question(b"\x01a\xc0\x0c"), Some("<Name contains a pointer that loops>"), None),
        // To a name behind the question.
        (udp(53, &[&dns(0, &[(b"\x01a\xc0\x14".to_vec(), 1)])[..], b"\x01b\0"].concat()), Some("a.b"), None),
        (question(&labels(&[&long, &long, &long, &long[..62]])), Some("<Name too long>"), None),
        (cut(dns(0, &[(labels(&[b"abc"]), 1)]), 2), None, Some("abc")),
        (cut(dns(0, &[(labels(&[b"abc"]), 1)]), 5), None, None),
        (udp(5355, &dns(0, &[(labels(&[b"abc"]), 1)])), Some("abc"), None),
        (http("GET / HTTP/1.1\r\nHost:  a.b:80\r\n\r\n"), Some("a.b:80"), Some("a.b:80")),
        (http("GET / HTTP/1.1\r\nHost: a.b \t\r\n\r\n"), Some("a.b \\t"), Some("a.b")),
        (http("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), Some("a"), Some("a")),
        (http("GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n"), Some("a"), Some("a")),
        (http("GET / HTTP/1.1\r\nHost : a\r\n\r\n"), None, None),
        (http("GET / HTTP/1.1\nhOst: a\n\n"), Some("a"), Some("a")),
        (http("GET / HTTP/1.1\r\nHost:\r\n\r\n"), None, None),
        (http("GET http://x.y/ HTTP/1.1\r\nHost: z\r\n\r\n"), Some("z"), Some("z")),
        (http("CONNECT x.y:443 HTTP/1.1\r\n\r\n"), None, None),
        (http("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n"), Some("a"), Some("a\\000b")),
        (http("GET /\r\nHost: z\r\n\r\n"), Some("z"), None),
        (http("GET / HTTP/2.0\r\nHost: z\r\n\r\n"), Some("z"), None),
        (http("\r\nGET / HTTP/1.1\r\nHost: z\r\n\r\n"), Some("z"), None),
        (http("FOO / HTTP/1.1\r\nHost: z\r\n\r\n"), None, Some("z")),
        (http("GET / HTTP/1.1\r\nHost: z\r\n"), None, Some("z")),
        (http("GET / HTTP/1.1\r\nHost: z"), None, None),
    ];
    let packets: Vec<_> = cases.iter().map(|(packet, ..)| packet.clone()).collect();
    let file = capture(&packets);
    let theirs: HashMap<_, _> =
        tshark(file.path()).into_iter().map(|(found, _)| (found.frame, found.text)).collect();
    let ours: HashMap<_, _> =
        watch(file.path()).by_stream.into_values().map(|found| (found.frame, found.text)).collect();
    for (at, (_, expected_theirs, expected_ours)) in cases.iter().enumerate() {
        let of = |names: &HashMap<usize, String>| names.get(&(at + 1)).cloned();
        assert_eq!(of(&theirs).as_deref(), *expected_theirs, "tshark, case {at}");
        assert_eq!(of(&ours).as_deref(), *expected_ours, "case {at}");
    }
}
