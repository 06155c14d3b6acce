//! Messages over connections.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::has_collector;

use crate::support::{certificates, packetloom, run, stderr, succeed};
use crate::{capture, decode, expected, export, records, records_of, split, without_ends};

/// A port, and where it is.
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = format!("tcp://{}", listener.local_addr().expect("an address"));
    (listener, to)
}

fn meter(capture: &Path, to: &str, summary: &Path) -> Command {
    let mut command = packetloom();
    command.args(["meter", "-r"]).arg(capture).args(["--ipfix", to, "--summary"]).arg(summary);
    command
}

fn read_all(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("received");
    bytes
}

#[test]
fn a_connection_has_all_records_and_garbage_from_the_collector_does_not_matter() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, summary) = (capture(folder.path()), folder.path().join("summary.json"));
    let (listener, to) = listen();
    let received = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(&[0x55; 100_000]).expect("sent");
        read_all(stream)
    });
    let output = run(&mut meter(&capture, &to, &summary));
    assert!(output.status.success(), "{}", stderr(&output));
    let (flows, messages) = decode(&split(&received.join().expect("received")));
    assert_eq!(without_ends(flows), without_ends(expected(&records(&capture), false)));
    let export = export(&summary);
    assert_eq!((&export["messages"], &export["not_sent"]), (&messages.len().into(), &0.into()));
    // Once: nothing is lost here.
    assert_eq!(messages.iter().filter(|message| !message.templates.is_empty()).count(), 1);
}

/// Over TCP a message is whole or was not sent; what was not acknowledged comes again.
#[test]
fn after_a_connection_that_breaks_the_rest_comes_over_the_next_one() {
    rest_comes_over_the_next_connection(&[]);
}

/// How packets were sampled is said on each connection, before all flows.
#[test]
fn after_a_connection_that_breaks_the_next_one_says_how_packets_were_sampled() {
    let streams = rest_comes_over_the_next_connection(&["--sample", "2"]);
    for stream in streams {
        let (_, messages) = decode(&split(&stream[..whole_messages(&stream)]));
        assert!(messages[0].templates.ends_with(&[512, 513]), "{:?}", messages[0]);
        let options: Vec<_> =
            messages[1].options.iter().map(|fields| fields.keys().copied().collect::<Vec<_>>()).collect();
        assert_eq!(options, [vec![(0, 34), (0, 149)], vec![(0, 302), (0, 304), (0, 305), (0, 306)]]);
    }
}

/// What came over each of three connections.
fn rest_comes_over_the_next_connection(options: &[&str]) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, summary) = (capture(folder.path()), folder.path().join("summary.json"));
    let (listener, to) = listen();
    let received = thread::spawn(move || {
        let mut streams = Vec::new();
        // Two that break after some bytes, with more that nobody reads.
        for bytes in [1_000, 20_000] {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut head = vec![0; bytes];
            stream.read_exact(&mut head).expect("received");
            streams.push(head);
        }
        let (stream, _) = listener.accept().expect("a connection");
        streams.push(read_all(stream));
        streams
    });
    let output = run(meter(&capture, &to, &summary).args(options));
    let streams = received.join().expect("received");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("tried again and again"), "{}", stderr(&output));
    let export = export(&summary);
    assert_eq!((&export["reconnects"], &export["not_sent"]), (&2.into(), &0.into()));
    let mut seen = Vec::new();
    for stream in &streams {
        // Whole messages of it; each connection has templates first, and its sequence numbers begin at 0.
        let whole = whole_messages(stream);
        let (flows, messages) = decode(&split(&stream[..whole]));
        let mut sequence = 0;
        for message in &messages {
            assert_eq!(message.sequence, sequence);
            sequence += (message.flows.len() + message.options.len()) as u32;
        }
        seen.extend(without_ends(flows));
    }
    // What the kernel here took for arrived may be lost with a collector that breaks off, which is all that it does here: what it has
    // acknowledged and nobody has read. The rest is there, and nothing else.
    let all = without_ends(expected(&records_of(&capture, options), false));
    assert!(seen.iter().all(|flow| all.contains(flow)));
    let last = &seen[seen.len() - 1];
    assert_eq!(last, &all[all.len() - 1]);
    assert!(export["resent"].as_u64() > Some(0), "{export}");
    streams
}

/// Bytes of the whole messages at the beginning of a stream.
fn whole_messages(stream: &[u8]) -> usize {
    let mut at = 0;
    while at + 4 <= stream.len() {
        let len = usize::from(u16::from_be_bytes([stream[at + 2], stream[at + 3]]));
        if at + len > stream.len() {
            break;
        }
        at += len;
    }
    at
}

#[test]
fn a_collector_that_is_away_fails_a_run_over_a_capture() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, summary) = (capture(folder.path()), folder.path().join("summary.json"));
    let (listener, to) = listen();
    drop(listener);
    let output = run(&mut meter(&capture, &to, &summary));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("{to}: Connection refused")), "{}", stderr(&output));
    assert!(!summary.exists());
}

#[test]
fn a_collector_that_takes_nothing_is_not_waited_for_for_ever() {
    let folder = tempfile::tempdir().expect("a folder");
    // More than the buffers of both kernels hold.
    let capture = folder.path().join("capture.pcap");
    let options = ["--packets", "300k", "--flows", "200k", "--snap", "64", "-w"];
    succeed(packetloom().args(["-q", "generate", "traffic"]).args(options).arg(&capture));
    let summary = folder.path().join("summary.json");
    let (listener, to) = listen();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 1 << 14).expect("a small buffer");
    let begun = Instant::now();
    let output = run(&mut meter(&capture, &to, &summary));
    assert!(begun.elapsed() < Duration::from_secs(120));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let export = export(&summary);
    let [sent, not_sent] = ["records", "not_sent"].map(|name| export[name].as_u64().expect("a count"));
    assert!(not_sent > 0 && stderr(&output).contains(&format!("{not_sent} to {to}")), "{export}");
    // Each is in one of the counts.
    let uniflows = crate::support::json(&summary)["uniflows"].as_u64().expect("a count");
    assert_eq!(sent + not_sent, uniflows);
    drop(listener);
}

#[test]
fn openssl_receives_what_is_sent_over_tls() {
    if !has_collector("openssl") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, summary) = (capture(folder.path()), folder.path().join("summary.json"));
    certificates(folder.path());
    let (listener, to) = listen();
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let mut server = Command::new("openssl");
    server.args([
        "s_server", "-quiet", "-cert", "cert.pem", "-key", "key.pem", "-CAfile", "ca.pem", "-Verify", "1",
    ]);
    server.args(["-verify_return_error", "-accept", &address.to_string()]).current_dir(folder.path());
    let received = fs::File::create(folder.path().join("received")).expect("a file");
    let mut server =
        server.stdin(Stdio::piped()).stdout(received).stderr(Stdio::null()).spawn().expect("openssl");
    let begun = Instant::now();
    while let Err(error) = TcpStream::connect(address).and_then(|stream| stream.shutdown(Shutdown::Both)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
        thread::sleep(Duration::from_millis(20));
    }
    let to = to.replace("tcp", "tls");
    // Over TLS 1.3 it is told of this after its side of the handshake, and may have sent records by then.
    let without = run(meter(&capture, &to, &summary)
        .args(["--tls-ca", "ca.pem", "--tls-name", "collector.example"])
        .current_dir(folder.path()));
    assert_eq!(without.status.code(), Some(1), "{}", stderr(&without));
    assert_eq!(export(&summary)["records"], 0);
    fs::remove_file(&summary).expect("there was one");
    let with = |arguments: &str| {
        let mut command = meter(&capture, &to, &summary);
        run(command.args(arguments.split(' ')).current_dir(folder.path()))
    };
    // Neither a collector that nobody vouches for, nor one of another name.
    for (arguments, expected) in
        [("--tls-ca ca.pem", "certificate"), ("--tls-name collector.example", "certificate")]
    {
        let output = with(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    let identity = "--tls-certificate cert.pem --tls-key key.pem";
    let output = with(&format!("--tls-ca ca.pem --tls-name collector.example {identity}"));
    assert!(output.status.success(), "{}", stderr(&output));
    let expected = without_ends(expected(&records(&capture), false));
    let received = || fs::read(folder.path().join("received")).expect("a file");
    let begun = Instant::now();
    loop {
        let stream = received();
        let (flows, _) = decode(&split(&stream[..whole_messages(&stream)]));
        if flows.len() == expected.len() {
            assert_eq!(without_ends(flows), expected);
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{} of {}", flows.len(), expected.len());
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(export(&summary)["not_sent"], 0);
    server.kill().expect("ended");
    server.wait().expect("ended");
}

/// What a collector says over TLS is read and does not matter, however much it is.
#[test]
fn garbage_from_a_collector_over_tls_does_not_matter() {
    if !has_collector("openssl") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, summary) = (capture(folder.path()), folder.path().join("summary.json"));
    certificates(folder.path());
    let (listener, to) = listen();
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let mut server = Command::new("openssl");
    server.args([
        "s_server",
        "-quiet",
        "-cert",
        "cert.pem",
        "-key",
        "key.pem",
        "-accept",
        &address.to_string(),
    ]);
    let received = fs::File::create(folder.path().join("received")).expect("a file");
    server.current_dir(folder.path()).stdin(Stdio::piped()).stdout(received).stderr(Stdio::null());
    let mut server = server.spawn().expect("openssl");
    let begun = Instant::now();
    while let Err(error) = TcpStream::connect(address).and_then(|stream| stream.shutdown(Shutdown::Both)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
        thread::sleep(Duration::from_millis(20));
    }
    let mut command = meter(Path::new("-"), &to.replace("tcp", "tls"), &summary);
    command.args(["--tls-ca", "ca.pem", "--tls-name", "collector.example"]).current_dir(folder.path());
    // Otherwise what is idle leaves earlier from a pipe.
    command.args(["--idle-timeout", "0"]);
    let mut running = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    let (packets, mut input) =
        (fs::read(&capture).expect("a capture"), running.stdin.take().expect("a pipe"));
    let (first, rest) = packets.split_at(packets.len() / 2);
    input.write_all(first).expect("written");
    // More than pipes and sockets hold: the run has read some of it when this is over, before its input is.
    let mut says = server.stdin.take().expect("a pipe");
    says.write_all(&[0x55; 8 << 20]).expect("said");
    input.write_all(rest).expect("written");
    drop(input);
    let output = running.wait_with_output().expect("ended");
    assert!(output.status.success(), "{}", stderr(&output));
    drop(says);
    server.kill().expect("killed");
    server.wait().expect("ended");
    let received = fs::read(folder.path().join("received")).expect("a file");
    let (flows, messages) = decode(&split(&received));
    let records = records_of(&capture, &["--idle-timeout", "0"]);
    assert!(without_ends(flows) == without_ends(expected(&records, false)));
    let export = export(&summary);
    assert_eq!((&export["messages"], &export["not_sent"]), (&messages.len().into(), &0.into()));
}
