//! What client and server do: connections that carry a known pattern, and echoes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::net::Net;

/// Whoever waits longer than this has lost something, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// What takes longer than this only trickles.
const DEADLINE: Duration = Duration::from_secs(300);
/// So long nobody answers who should not.
pub const SILENCE: Duration = Duration::from_secs(1);
const CHUNK: usize = 1 << 16;

/// An address and a port.
fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

/// Does again what a halt of the machine has interrupted.
pub fn retry<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match work() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The bytes of a stream from an offset on, which tell where they stand.
fn pattern(offset: usize, bytes: &mut [u8]) {
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let place = (offset / 8 + index) as u64;
        word.copy_from_slice(&place.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
}

fn write(stream: &mut TcpStream, len: usize) {
    let (mut chunk, begin) = (vec![0; CHUNK], Instant::now());
    for offset in (0..len).step_by(CHUNK) {
        assert!(begin.elapsed() < DEADLINE, "{offset} of {len} bytes written");
        pattern(offset, &mut chunk);
        stream.write_all(&chunk[..CHUNK.min(len - offset)]).expect("written");
    }
}

fn read(stream: &mut TcpStream, len: usize) {
    let (mut chunk, mut expected, begin) = (vec![0; CHUNK], vec![0; CHUNK], Instant::now());
    for offset in (0..len).step_by(CHUNK) {
        assert!(begin.elapsed() < DEADLINE, "{offset} of {len} bytes read");
        let part = CHUNK.min(len - offset);
        stream.read_exact(&mut chunk[..part]).expect("read");
        pattern(offset, &mut expected);
        assert!(chunk[..part] == expected[..part], "other bytes than were sent, from {offset} on");
    }
}

/// Sends `len` bytes from the client to `address`, where the server listens on all addresses, and as many back. Returns the rates of both in
/// Gb/s.
pub fn transfer(net: &Net, address: &str, len: usize) -> [f64; 2] {
    let any = if address.contains(':') { "::" } else { "0.0.0.0" };
    let listener = net.server.run(|| TcpListener::bind(at(any, 0)).expect("bound"));
    let port = listener.local_addr().expect("bound").port();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream.set_write_timeout(Some(PATIENCE)).expect("set");
            read(&mut stream, len);
            write(&mut stream, len);
        });
        let rates = net.client.run(|| {
            let mut stream = match TcpStream::connect_timeout(&at(address, port), PATIENCE) {
                Ok(stream) => stream,
                Err(error) => {
                    // The server must not wait for ever.
                    net.server.run(|| TcpStream::connect(at(any, port))).expect("itself");
                    panic!("no connection to {address}: {error}");
                }
            };
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream.set_write_timeout(Some(PATIENCE)).expect("set");
            let gigabits = |begin: Instant| len as f64 * 8e-9 / begin.elapsed().as_secs_f64();
            let begin = Instant::now();
            write(&mut stream, len);
            // Until the other side has begun to answer.
            let mut one = [0];
            retry(|| stream.peek(&mut one)).expect("peeked");
            let there = gigabits(begin);
            let begin = Instant::now();
            read(&mut stream, len);
            [there, gigabits(begin)]
        });
        server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rates
    })
}

/// Sends datagrams of these lengths to an echo server at `address` and back; `Err` says for which no answer came.
pub fn echo(net: &Net, address: &str, lens: &[usize]) -> Result<(), usize> {
    echo_within(net, address, lens, PATIENCE)
}

/// The same where an answer that takes longer than `patience` is none.
pub fn echo_within(net: &Net, address: &str, lens: &[usize], patience: Duration) -> Result<(), usize> {
    let any = if address.contains(':') { "::" } else { "0.0.0.0" };
    let server = net.server.run(|| UdpSocket::bind(at(any, 0)).expect("bound"));
    let port = server.local_addr().expect("bound").port();
    let client = net.client.run(|| UdpSocket::bind(at(any, 0)).expect("bound"));
    server.set_read_timeout(Some(patience)).expect("set");
    client.set_read_timeout(Some(patience)).expect("set");
    client.connect(at(address, port)).expect("connected");
    let (mut sent, mut got) = (vec![0; CHUNK], vec![0; CHUNK]);
    for (round, &len) in lens.iter().enumerate() {
        pattern(round * 8, &mut sent);
        client.send(&sent[..len]).map_err(|_| len)?;
        let (received, from) = retry(|| server.recv_from(&mut got)).map_err(|_| len)?;
        assert!(got[..received] == sent[..len], "{len} bytes");
        server.send_to(&got[..received], from).map_err(|_| len)?;
        let received = retry(|| client.recv(&mut got)).map_err(|_| len)?;
        assert!(got[..received] == sent[..len], "{len} bytes back");
    }
    Ok(())
}

/// Sends `count` ICMP echo requests of one identifier from the client, each when the one before was answered. All have to be answered.
pub fn ping(net: &Net, address: &str, count: usize) -> Result<(), String> {
    // A ping of several requests ends soon after the last one, with or without the last answers.
    let one = format!("ping -q -e 4711 -c 1 -W {} {address}", PATIENCE.as_secs());
    (0..count).try_for_each(|_| net.client.exec(&one))
}

/// Whether an ICMP echo request from the client is answered before long.
pub fn is_answered(net: &Net, address: &str) -> bool {
    net.client.exec(&format!("ping -q -c 1 -W {} {address}", SILENCE.as_secs())).is_ok()
}
