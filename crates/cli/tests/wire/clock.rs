//! The wall clock is set during a run: state goes on by the monotonic clock, and records have wall time.
//!
//! The run alone sees another clock (libfaketime). Packet sockets go on giving frames the kernel's time: to the run, frames have waited in
//! the ring as long as it believes where the clock was set forward, which is 10 s.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use packetloom_testing::faketime;
use packetloom_testing::net::{Net, SERVER};

use crate::product::{BACKENDS, Product, count, sum};
use crate::support::json_lines;

/// Flows of the second meter are idle soon.
const CHAIN: &str = "\
[[chain]]
nf = \"acl\"
rules = \"rules\"
[[chain]]
nf = \"conntrack\"
[[chain]]
nf = \"limiter\"
rate = \"10Gbit/s\"
burst = \"10MB\"
[[chain]]
nf = \"meter\"
idle_timeout = \"1h\"
active_timeout = \"2h\"
output = \"flows.jsonl\"
[[chain]]
nf = \"meter\"
idle_timeout = \"300ms\"
output = \"soon.jsonl\"
";
/// Answers pass as those of connections only.
const RULES: &str = "\
reflect tcp from 10.9.0.1 to any
reflect udp from 10.9.0.1 to any
deny any from 10.9.0.2 to any
permit any from any to any
";
const ARGUMENTS: &str = "--stats-every 20ms --stats-output stats.jsonl --watchdog 5s";
/// Nobody waits longer, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Seconds of a day, and of the time that a test takes at most.
const DAY: i64 = 86_400;
const LONG: u64 = 3_600;

fn wall() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

/// A connection and datagrams through a run.
struct Ends {
    client: TcpStream,
    server: TcpStream,
    from: UdpSocket,
    to: UdpSocket,
}

impl Ends {
    fn connect(net: &Net) -> Self {
        let listener = net.server.run(|| TcpListener::bind((SERVER[0], 0)).expect("bound"));
        let address = listener.local_addr().expect("bound");
        let client = net.client.run(|| TcpStream::connect_timeout(&address, PATIENCE).expect("connected"));
        let (server, _) = listener.accept().expect("a connection");
        let to = net.server.run(|| UdpSocket::bind((SERVER[0], 0)).expect("bound"));
        let from = net.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound"));
        from.connect(to.local_addr().expect("bound")).expect("set");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
        }
        for socket in [&from, &to] {
            socket.set_read_timeout(Some(PATIENCE)).expect("set");
        }
        Self { client, server, from, to }
    }

    /// Something there and back, by both.
    fn talk(&mut self) {
        let mut came = [0; 5];
        self.client.write_all(b"hello").expect("sent");
        self.server.read_exact(&mut came).expect("came");
        self.server.write_all(&came).expect("sent");
        self.client.read_exact(&mut came).expect("came");
        self.from.send(&came).expect("sent");
        let (_, sender) = self.to.recv_from(&mut came).expect("came");
        self.to.send_to(&came, sender).expect("sent");
        self.from.recv(&mut came).expect("came");
        assert_eq!(&came, b"hello");
    }
}

/// Has the run see its clock so many seconds from the real one.
fn set(clock: &Path, offset: i64) {
    let next = clock.with_extension("next");
    fs::write(&next, format!("{offset:+}\n")).expect("written");
    fs::rename(next, clock).expect("renamed");
}

/// Waits until the run says something at a time so many seconds from the real one.
fn wait_for_lines(product: &Product, offset: i64) {
    let (begin, path) = (Instant::now(), product.at("stats.jsonl"));
    loop {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let last =
            text.rsplit('\n').nth(1).and_then(|line| line.split("\"time\":").nth(1)?.split(',').next());
        let time = last.and_then(|time| time.parse::<i64>().ok()).unwrap_or(0) / 1000;
        if time.abs_diff(wall() + offset) < LONG {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "it is {time} at the run");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_clock_that_is_set_forward_and_back_expires_nothing() {
    let Some(library) = faketime() else { return };
    for (backend, workers) in BACKENDS.into_iter().zip([1, 2]) {
        // Of its own: connections of the other round are not known in this one.
        let Some(net) = Net::new() else { return };
        let folder = tempfile::tempdir().expect("a folder");
        let clock = folder.path().join("clock");
        set(&clock, 0);
        let environment = [
            ("LD_PRELOAD", library.as_os_str()),
            ("FAKETIME_TIMESTAMP_FILE", clock.as_os_str()),
            ("FAKETIME_NO_CACHE", "1".as_ref()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".as_ref()),
        ];
        let arguments = format!("{ARGUMENTS} --workers {workers}");
        let files = [("rules", RULES)];
        let product = Product::inline_with(&environment, backend, &net.product, CHAIN, &files, &arguments);
        let mut ends = Ends::connect(&net);
        ends.talk();
        for offset in [DAY, -DAY, 10 * DAY, -10 * DAY] {
            set(&clock, offset);
            wait_for_lines(&product, offset);
            ends.talk();
            ends.talk();
            assert_eq!(product.records().len(), 0, "{backend}: a flow has expired at {offset}");
        }
        // Time goes on all the same: the flows of the other meter are idle after a while.
        let begin = Instant::now();
        let soon = |product: &Product| fs::read_to_string(product.at("soon.jsonl")).unwrap_or_default();
        while soon(&product).lines().filter(|line| line.contains("\"protocolIdentifier\":17")).count() == 0 {
            assert!(begin.elapsed() < PATIENCE, "no flow has expired");
            std::thread::sleep(Duration::from_millis(5));
        }
        let lines = json_lines(&product.at("stats.jsonl"));
        assert!(lines.is_sorted_by_key(|line| line["elapsed"].as_u64()), "by the monotonic clock");
        let done = product.stop();
        for protocol in [6, 17] {
            let records: Vec<_> =
                done.records.iter().filter(|record| record["protocolIdentifier"] == protocol).collect();
            assert_eq!(records.len(), 1, "{backend}: {records:#?}");
            let [start, end] = ["/flowStartMilliseconds", "/flowEndMilliseconds"];
            let [start, end] = [start, end].map(|key| count(records[0], key) / 1000);
            let now = (wall() - 10 * DAY) as u64;
            assert!(start <= end && end - start < LONG, "{backend}: {records:#?}");
            assert!(end.abs_diff(now) < LONG, "{backend}: wall time, at the end: {now}: {records:#?}");
        }
        assert_eq!(sum(&done.summary, "/dropped"), 0, "{backend}: {:#}", done.summary);
    }
}
