//! Header fields, against a finder that splits text, and against tshark.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;

use packetloom_names::{Field, FieldValue, FieldWatch, Fields, Outcome, Values};
use packetloom_testing::has_tshark;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::captures::{Direction, Packet, captures, for_each_packet};
use crate::encode::{Initial, counted, crypto, dns, hello_with, labels, records};
use crate::watch::{CLIENT, Segment};

/// What segments of a stream tell, in their order; the first one's sequence number is near the last of all.
fn tcp(fields: impl Into<Fields>, port: u16, begins: bool, segments: &[Segment<'_>]) -> Option<Values> {
    let begin = u32::MAX - 20;
    let sequence = |offset: usize| begin.wrapping_add(offset as u32);
    let mut segments = segments.iter();
    let &(offset, bytes) = segments.next().expect("a segment");
    let known = begins.then_some(begin);
    let mut outcome = FieldWatch::start_tcp(fields.into(), (CLIENT, port), known, sequence(offset), bytes);
    let mut values = Values::new();
    loop {
        match outcome {
            Outcome::More(mut watch) => {
                values.extend(watch.take());
                assert!(watch.bytes() <= FieldWatch::MAX_BYTES);
                let Some(&(offset, bytes)) = segments.next() else { break };
                outcome = watch.next(sequence(offset), bytes);
            }
            Outcome::Found(last) => {
                assert!(!last.is_empty());
                values.extend(last);
                break;
            }
            Outcome::NoName | Outcome::GaveUp(_) => break,
        }
    }
    Some(values).filter(|values| !values.is_empty())
}

fn whole(field: Field, request: &str) -> Option<String> {
    let values = tcp(field, 80, false, &[(0, request.as_bytes())])?;
    assert_eq!(values.len(), 1);
    assert_eq!((values[0].field, values[0].question), (field, 0));
    Some(String::from_utf8(values[0].bytes.to_vec()).expect("text"))
}

#[test]
fn fields_of_a_request() {
    let request = "POST http://u@Example.COM:8080/a%2Fb//./c/../d%?q=%41%zz//.. HTTP/1.1\r\n\
                   hOsT:  Example.COM:8080 \t\r\nUser-Agent: \r\nuser-agent: curl/8\r\n\
                   X-A:1 \r\n  folded \r\nCookie: a=b; c\r\n more of it\r\nReferer: http://x/\r\nno colon\r\n\r\nHost: not\r\n";
    let values = [
        (Field::HttpMethod, "POST"),
        (Field::HttpUri, "/a/b/d%?q=A%zz//.."),
        (Field::HttpUriRaw, "http://u@Example.COM:8080/a%2Fb//./c/../d%?q=%41%zz//.."),
        (Field::HttpRequestLine, request.split('\r').next().expect("a line")),
        (Field::HttpHost, "example.com"),
        (Field::HttpHostRaw, "Example.COM:8080"),
        (Field::HttpUserAgent, "curl/8"),
        (Field::HttpReferer, "http://x/"),
        (Field::HttpCookie, "a=b; c"),
        (
            Field::HttpHeader,
            "hOsT: Example.COM:8080\r\nUser-Agent: \r\nuser-agent: curl/8\r\nX-A: 1 folded\r\nReferer: http://x/\r\nno colon\r\n",
        ),
    ];
    for (field, value) in values {
        assert_eq!(whole(field, request).as_deref(), Some(value), "{}", field.name());
    }
    let begin = request.find("hOsT").expect("it is there");
    let end = request.find("Host: not").expect("it is there");
    assert_eq!(whole(Field::HttpHeaderRaw, request).as_deref(), Some(&request[begin..end]));
    for field in [Field::DnsQuery, Field::TlsSni, Field::QuicSni] {
        assert_eq!(whole(field, request), None);
    }
}

#[test]
fn targets_are_normalized() {
    for (target, uri) in [
        ("/", "/"),
        ("*", "*"),
        ("example.com:443", "example.com:443"),
        ("http://a", ""),
        ("http://a?b/../c", "?b/../c"),
        ("/a/b/../../../c/.", "/c/"),
        ("/..", "/"),
        ("/a/..", "/"),
        ("/a//", "/a/"),
        ("/%2e%2E/%2f/a%2520b", "/a%20b"),
        ("/a?b=//./../%2e", "/a?b=//./../."),
        ("/a?b=http://c/d", "/a?b=http://c/d"),
        ("/a%", "/a%"),
        ("/a%4", "/a%4"),
        ("/%c3%bc", "/\u{fc}"),
        ("/a b\\..\\c", "/a b\\..\\c"),
    ] {
        let request = format!("GET {target} HTTP/1.0\n");
        assert_eq!(whole(Field::HttpUri, &request).as_deref(), Some(uri), "{target}");
        assert_eq!(whole(Field::HttpUriRaw, &request).as_deref(), Some(target));
    }
    let nul = tcp(Field::HttpUri, 80, false, &[(0, b"GET /%00%ff HTTP/1.1\r\n")]).expect("a target");
    assert_eq!(&*nul[0].bytes, b"/\x00\xff");
}

#[test]
fn hosts_are_without_ports() {
    for (sent, host) in
        [("A.b", "a.b"), ("[::1]:8080", "[::1]"), ("[::1]", "[::1]"), ("a:", "a"), ("a:b", "a:b"), (":1", "")]
    {
        let request = format!("GET / HTTP/1.1\r\nHost: {sent}\r\n\r\n");
        assert_eq!(whole(Field::HttpHost, &request).as_deref(), Some(host), "{sent}");
        assert_eq!(whole(Field::HttpHostRaw, &request).as_deref(), Some(sent));
    }
}

#[test]
fn what_is_not_there_is_no_value() {
    for (field, request) in [
        (Field::HttpUserAgent, "GET / HTTP/1.1\r\nX-User-Agent: a\r\n\r\nUser-Agent: a\r\n"),
        (Field::HttpUserAgent, "GET / HTTP/1.1\r\nUser-Agent: a"),
        (Field::HttpCookie, "GET / HTTP/1.1\r\nCookie:\r\n\r\n"),
        (Field::HttpHeader, "GET / HTTP/1.1\r\nA: b\r\n"),
        (Field::HttpHeader, "GET / HTTP/1.1\r\nCookie: b\r\n\r\n"),
        (Field::HttpHeaderRaw, "GET / HTTP/1.1\r\nA: b\r\n"),
        (Field::HttpUri, "GET /a"),
        (Field::HttpUri, "GET /a\r\n"),
        (Field::HttpMethod, "HTTP/1.1 200 OK\r\n"),
    ] {
        assert_eq!(whole(field, request), None, "{} {request:?}", field.name());
    }
    // A head without an end is given up.
    let long = format!("GET / HTTP/1.1\r\n{}", "A: b\r\n".repeat(2000));
    let outcome = FieldWatch::start_tcp(Field::HttpHeader.into(), (CLIENT, 80), None, 0, long.as_bytes());
    assert!(matches!(outcome, Outcome::GaveUp(_)), "{outcome:?}");
    // What was found before counts.
    let fields = Fields::from_iter([Field::HttpHeader, Field::HttpMethod]);
    assert_eq!(texts(tcp(fields, 80, false, &[(0, long.as_bytes())])), Some(vec!["GET".into()]));
}

fn texts(values: Option<Values>) -> Option<Vec<String>> {
    let text = |value: FieldValue| String::from_utf8(value.bytes.into()).expect("text");
    Some(values?.into_iter().map(text).collect())
}

#[test]
fn names_of_queries() {
    let question = |name: &str| (labels(&name.split('.').map(str::as_bytes).collect::<Vec<_>>()), 1);
    let udp =
        |port, message: &[u8]| match FieldWatch::start_udp(Field::DnsQuery.into(), (CLIENT, port), message) {
            Outcome::Found(values) => texts(Some(values)),
            _ => None,
        };
    let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    let two = dns(0x0100, &[question("Example.com"), question("b")]);
    assert_eq!(udp(53, &two), names(&["Example.com", "b"]));
    assert_eq!(udp(5353, &two), names(&["Example.com", "b"]));
    assert_eq!(udp(54, &two), None);
    // Of a pointer, too; a message that is cut off has those before.
    let pointer = dns(0x0100, &[question("a.example.com"), (b"\x01b\xc0\x0e".to_vec(), 1)]);
    assert_eq!(udp(53, &pointer), names(&["a.example.com", "b.example.com"]));
    assert_eq!(udp(53, &pointer[..pointer.len() - 6]), names(&["a.example.com"]));
    assert_eq!(udp(53, &dns(0x8180, &[question("example.com")])), None, "a response");
    assert_eq!(udp(53, &dns(0, &[])), None);
    let many = dns(0, &vec![question("a"); 40]);
    assert_eq!(udp(53, &many).map(|names| names.len()), Some(32));
    let stream = counted(2, &two);
    for cut in 0..=stream.len() {
        let values = tcp(Field::DnsQuery, 53, true, &[(cut, &stream[cut..]), (0, &stream[..cut])]);
        assert_eq!(texts(values), names(&["Example.com", "b"]), "{cut}");
    }
    let longest = (labels(&[&[b'a'; 63], &[b'b'; 63], &[b'c'; 63], &[b'd'; 61]]), 1);
    let stream = counted(2, &dns(0, &vec![longest; 32]));
    let bytes: Vec<_> = (0..stream.len()).map(|at| (at, &stream[at..=at])).collect();
    assert_eq!(tcp(Field::DnsQuery, 53, false, &bytes).map(|values| values.len()), Some(32));
}

#[test]
fn server_names() {
    let stream = records(&hello_with("Example.com", 1500), 700);
    for cut in [1, 5, 6, 50, 800, stream.len() - 1] {
        let segments = [(cut, &stream[cut..]), (0, &stream[..cut])];
        assert_eq!(
            texts(tcp(Field::TlsSni, 443, true, &segments)),
            Some(vec!["Example.com".into()]),
            "{cut}"
        );
        assert_eq!(tcp(Field::HttpHost, 443, true, &segments), None);
    }
    let hello = hello_with("example.org", 0);
    let datagram = Initial::FIRST.datagram(&crypto(&hello, 0..hello.len()));
    let quic = FieldWatch::start_udp(Field::QuicSni.into(), (CLIENT, 443), &datagram);
    let Outcome::Found(values) = quic else { panic!("{quic:?}") };
    assert_eq!(texts(Some(values)), Some(vec!["example.org".into()]));
    assert!(matches!(FieldWatch::start_udp(Field::TlsSni.into(), (CLIENT, 443), &datagram), Outcome::NoName));
}

/// The obvious way to find a field in a whole request, with an end of each line as CR LF.
fn naive(field: Field, request: &str) -> Option<String> {
    let (head, _) = request.split_once("\r\n\r\n").expect("a blank line");
    let (line, fields) = head.split_once("\r\n").unwrap_or((head, ""));
    let lines = || fields.split("\r\n").filter(|line| !line.is_empty());
    let value = |name: &str| {
        lines().find_map(|line| {
            let (of, value) = line.split_once(':')?;
            let value = value.trim_matches([' ', '\t']);
            (of.eq_ignore_ascii_case(name) && !value.is_empty()).then(|| value.to_owned())
        })
    };
    let raw = line.split_once(' ').and_then(|(_, rest)| rest.rsplit_once(' ')).expect("a request").0;
    match field {
        Field::HttpMethod => line.split(' ').next().map(str::to_owned),
        Field::HttpRequestLine => Some(line.to_owned()),
        Field::HttpUriRaw => Some(raw.to_owned()),
        Field::HttpUri => Some(normal(raw)),
        Field::HttpHostRaw => value("host"),
        Field::HttpHost => value("host").map(|host| {
            let (name, port) = host.rsplit_once(':').unwrap_or((&host, ""));
            let is_port = port.chars().all(|digit| digit.is_ascii_digit());
            if host.contains(':') && is_port { name.to_lowercase() } else { host.to_lowercase() }
        }),
        Field::HttpUserAgent => value("user-agent"),
        Field::HttpReferer => value("referer"),
        Field::HttpCookie => value("cookie"),
        Field::HttpHeaderRaw => Some(format!("{fields}{}\r\n", if fields.is_empty() { "" } else { "\r\n" })),
        Field::HttpHeader => {
            let parts = lines().map(|line| line.split_once(':').expect("a colon"));
            let kept = parts.filter(|(name, _)| !name.eq_ignore_ascii_case("cookie"));
            let kept = kept.map(|(name, value)| {
                format!("{}: {}\r\n", name.trim_matches([' ', '\t']), value.trim_matches([' ', '\t']))
            });
            Some(kept.collect::<String>()).filter(|all| !all.is_empty())
        }
        Field::DnsQuery | Field::TlsSni | Field::QuicSni => None,
    }
}

/// A target by rewriting it until nothing is left to be rewritten.
fn normal(target: &str) -> String {
    let mut decoded = String::new();
    let mut rest = target;
    while let Some(char) = rest.chars().next() {
        let escape = rest.get(1..3).filter(|_| char == '%');
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii)) {
            Some(byte) => {
                decoded.push(byte.into());
                rest = &rest[3..];
            }
            None => {
                decoded.push(char);
                rest = &rest[char.len_utf8()..];
            }
        }
    }
    // Targets of these tests have no escaped question mark.
    let (path, query) = decoded.split_at(decoded.find('?').unwrap_or(decoded.len()));
    let mut path = format!("{path}\n");
    loop {
        let before = path.clone();
        path = path.replace("//", "/").replace("/./", "/").replace("/.\n", "/\n").replace("/..\n", "/../\n");
        // Empty segments are gone before one leads up.
        if let Some(up) = path.find("/../").filter(|_| path == before) {
            let parent = path[..up].rfind('/').unwrap_or(0);
            path = format!("{}{}", &path[..parent], &path[up + 3..]);
        }
        if path == before {
            return path.trim_end_matches('\n').to_owned() + query;
        }
    }
}

/// A request of HTTP.
fn request() -> impl Strategy<Value = String> {
    const PIECES: &[&str] =
        &["a", "bc", ".", "..", "", "%41", "%2f", "%2E", "%", "%4", "d.e", "%zz", "x=/../y"];
    let target = (vec(select(PIECES), 0..8), proptest::option::of("[g-z=&%./]{0,20}")).prop_map(
        |(segments, query)| {
            let path = format!("/{}", segments.join("/"));
            query.map_or(path.clone(), |query| format!("{path}?{query}"))
        },
    );
    const NAMES: &[&str] =
        &["Host", "hOST", "User-Agent", "Referer", "Cookie", "cookie", "X-A", "Accept", "Hos", "X-Host"];
    let values = prop_oneof!["[ -~]{0,40}", "[a-zA-Z.]{1,10}(:[0-9]{0,4})?"];
    let blanks = select(&["", " ", "\t ", "  "][..]);
    let fields = vec((select(NAMES), blanks.clone(), values, blanks), 0..8);
    ("[A-Z]{1,10}", target, fields).prop_map(|(method, target, fields)| {
        let line = |(name, front, value, behind): &(&str, &str, String, &str)| {
            format!("{name}:{front}{value}{behind}\r\n")
        };
        let lines: String = fields.iter().map(line).collect();
        format!("{method} {target} HTTP/1.1\r\n{lines}\r\n")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However a request is cut, and in whichever order its segments come.
    #[test]
    fn fields_are_those_of_the_naive_finder(
        request in request(),
        cuts in vec(any::<Index>(), 0..3),
        order in any::<u64>(),
        mask in any::<u16>(),
    ) {
        let stream = request.as_bytes();
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).chain([0, stream.len()]).collect();
        ends.sort_unstable();
        ends.dedup();
        let mut segments: Vec<_> = ends.windows(2).map(|ends| (ends[0], &stream[ends[0]..ends[1]])).collect();
        let count = segments.len();
        segments.rotate_left(order as usize % count);
        if order % 3 == 0 {
            segments.reverse();
        }
        let mut one_by_one = Vec::new();
        for field in Field::ALL {
            one_by_one.extend(tcp(field, 80, true, &segments).into_iter().flatten());
            let expected = naive(field, &request);
            let found = texts(tcp(field, 80, true, &segments)).map(|values| values.concat());
            prop_assert_eq!(&found, &expected, "{}", field.name());
            // Of what is there of it, all or nothing.
            let part = texts(tcp(field, 80, false, &[(0, &stream[..ends[ends.len() / 2].max(1)])]));
            prop_assert!(part.is_none() || part.map(|values| values.concat()) == expected, "{}", field.name());
        }
        // Several at once are those of each.
        let wanted: Fields = Field::ALL.into_iter().filter(|field| mask >> *field as u32 & 1 == 1).collect();
        one_by_one.retain(|value| wanted.has(value.field));
        let mut together = tcp(wanted, 80, true, &segments).unwrap_or_default();
        together.sort_by_key(|value| value.field);
        prop_assert_eq!(together, one_by_one);
    }
}

/// All values of a field in a capture: of the first message of each direction of a flow over segments, of later ones in one packet.
fn ours(path: &Path, field: Field) -> BTreeMap<String, usize> {
    let mut values = BTreeMap::new();
    let mut watches: HashMap<Direction, Option<FieldWatch>> = HashMap::new();
    let mut begins = HashMap::new();
    for_each_packet(path, |Packet { direction, is_tcp, ports, is_syn, sequence, payload, .. }| {
        if is_syn && begins.insert(direction, sequence) != Some(sequence) {
            watches.remove(&direction);
        }
        if payload.is_empty() {
            return;
        }
        let alone = || match is_tcp {
            true => FieldWatch::start_tcp(field.into(), ports, None, sequence, payload),
            false => FieldWatch::start_udp(field.into(), ports, payload),
        };
        let outcome = match watches.remove(&direction).filter(|_| is_tcp) {
            Some(Some(watch)) => watch.next(sequence, payload),
            Some(None) => match alone() {
                Outcome::More(_) => Outcome::NoName,
                outcome => outcome,
            },
            None if is_tcp => {
                let begin = begins.get(&direction).copied();
                FieldWatch::start_tcp(field.into(), ports, begin, sequence, payload)
            }
            None => alone(),
        };
        let watch = match outcome {
            Outcome::More(watch) => Some(watch),
            Outcome::Found(found) => {
                for value in found {
                    *values.entry(String::from_utf8_lossy(&value.bytes).into_owned()).or_default() += 1;
                }
                None
            }
            Outcome::NoName | Outcome::GaveUp(_) => None,
        };
        watches.insert(direction, watch);
    });
    values
}

/// The same as tshark has it, of packets outside of tunnels and of other protocols.
fn theirs(path: &Path, name: &str, filter: &str) -> BTreeMap<String, usize> {
    let output = Command::new("tshark")
        .args(["-r".as_ref(), path.as_os_str()])
        .args(["-n", "-Y", filter, "-T", "fields", "-E", "separator=/t", "-E", "aggregator=/s"])
        .args(["-e", "frame.protocols", "-e", name])
        .args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"])
        .args(["-o", "tcp.reassemble_out_of_order:TRUE"])
        .output()
        .expect("tshark runs");
    let mut values = BTreeMap::new();
    for line in String::from_utf8(output.stdout).expect("UTF-8").lines() {
        let (protocols, value) = line.split_once('\t').expect("two fields");
        let count = |names: &[&str]| protocols.split(':').filter(|name| names.contains(name)).count();
        if count(&["ip", "ipv6"]) == 1 && count(&["llmnr", "ssdp", "icmp", "icmpv6"]) == 0 {
            // Blanks are part of values of HTTP, of which a packet has one, and no part of names.
            let all: Vec<&str> =
                if name.starts_with("dns") { value.split(' ').collect() } else { vec![value] };
            for value in all {
                let value = if value == "<Root>" { "." } else { value };
                *values.entry(value.to_owned()).or_default() += 1;
            }
        }
    }
    values.remove("");
    values
}

/// Differences: HTTP on the port of SSH, which tshark goes by; and a flow that comes twice, with VLAN tags and without.
const KNOWN: [(&str, &str, usize, usize); 2] =
    [("zeek__http-single-conn-22.pcap", "/", 1, 0), ("zeek__mixed-vlan-mpls.pcap", "/", 1, 2)];

#[test]
fn fields_in_captures_are_those_of_tshark() {
    let Some(captures) = captures() else { return };
    if !has_tshark() {
        return;
    }
    let fields = [
        (Field::HttpUriRaw, "http.request.uri", "http.request"),
        (Field::HttpUserAgent, "http.user_agent", "http.request"),
        (Field::DnsQuery, "dns.qry.name", "dns.flags.response == 0"),
    ];
    let next = std::sync::atomic::AtomicUsize::new(0);
    let all = std::sync::Mutex::new((BTreeMap::<Field, usize>::new(), Vec::new()));
    let compare = || {
        while let Some(path) = captures.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            for (field, name, filter) in fields {
                let (ours, theirs) = (ours(path, field), theirs(path, name, filter));
                let mut all = all.lock().expect("no panic");
                *all.0.entry(field).or_default() += ours.values().sum::<usize>();
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                for value in ours.keys().chain(theirs.keys()) {
                    let count = |values: &BTreeMap<String, usize>| values.get(value).copied().unwrap_or(0);
                    let (own, other) = (count(&ours), count(&theirs));
                    // A segment that is sent again is told again, since a packet by itself is looked at.
                    let is_known = KNOWN.contains(&(&*name, &**value, own, other));
                    if !is_known && (own < other || other == 0) {
                        all.1.push((name.clone(), field, value.clone(), own, other));
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(compare))));
    let (counts, differences) = all.into_inner().expect("no panic");
    eprintln!("{counts:?}");
    assert!(differences.is_empty(), "{differences:#?}");
    for (field, least) in [(Field::HttpUriRaw, 50), (Field::HttpUserAgent, 30), (Field::DnsQuery, 100)] {
        assert!(counts[&field] >= least, "{counts:?}");
    }
}
