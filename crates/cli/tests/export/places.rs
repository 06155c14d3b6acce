//! Messages as datagrams.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{packetloom, run, stderr};
use crate::{capture, decode, expected, export, records, without_ends};

/// A socket with what comes to it until it is asked for.
struct Receiver {
    is_over: Arc<AtomicBool>,
    thread: thread::JoinHandle<Vec<(Vec<u8>, u16)>>,
}

impl Receiver {
    fn start(socket: UdpSocket) -> Self {
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 1 << 20).expect("a larger buffer");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a limit");
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let (mut datagrams, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            loop {
                // What was sent before is in the socket.
                let is_last = stop.load(Ordering::SeqCst);
                match socket.recv_from(&mut buffer) {
                    Ok((len, from)) => datagrams.push((buffer[..len].to_vec(), from.port())),
                    Err(_) if is_last => return datagrams,
                    Err(_) => {}
                }
            }
        });
        Self { is_over, thread }
    }

    fn end(self) -> Vec<(Vec<u8>, u16)> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().expect("received")
    }
}

#[test]
fn datagrams_have_all_records_and_come_from_one_port() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let records = records(&capture);
    for (option, address) in
        [("--ipfix", "127.0.0.1:0"), ("--netflow9", "127.0.0.1:0"), ("--ipfix", "[::1]:0")]
    {
        let socket = UdpSocket::bind(address).expect("a port");
        let to = format!("udp://{}", socket.local_addr().expect("an address"));
        let received = Receiver::start(socket);
        let summary = folder.path().join("summary.json");
        // A pace at which no buffer runs over.
        let mut command = packetloom();
        command.args(["-q", "meter", "-r"]).arg(&capture).args([option, &to, "--export-rate", "8Mbit/s"]);
        let output = run(command.arg("--summary").arg(&summary));
        assert!(output.status.success(), "{}", stderr(&output));
        let received = received.end();
        let ports: std::collections::BTreeSet<_> = received.iter().map(|(_, port)| port).collect();
        assert_eq!(ports.len(), 1);
        let messages: Vec<_> = received.into_iter().map(|(message, _)| message).collect();
        assert!(messages.iter().all(|message| message.len() <= 1_400));
        let (flows, messages) = decode(&messages);
        assert_eq!(without_ends(flows.clone()), without_ends(expected(&records, false)));
        // Several times before the first data.
        let before = messages.iter().take_while(|message| message.flows.is_empty()).count();
        assert!(before >= 3, "{before}");
        let export = export(&summary);
        assert_eq!((&export["to"], &export["records"]), (&to.into(), &flows.len().into()));
        assert_eq!(export["messages"], messages.len());
    }
}

#[test]
fn a_port_that_nobody_listens_at_is_said_and_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let closed = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let to = format!("udp://{}", closed.local_addr().expect("an address"));
    drop(closed);
    let summary = folder.path().join("summary.json");
    let output = run(packetloom()
        .args(["meter", "-r"])
        .arg(&capture)
        .args(["--ipfix", &to])
        .arg("--summary")
        .arg(&summary));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("{to}: nobody listens there")), "{}", stderr(&output));
    assert!(export(&summary)["refused"].as_u64() > Some(0));
}
