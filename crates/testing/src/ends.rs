//! What client and server do: connections that carry a known pattern, and echoes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::net::Net;

/// Whoever waits longer than this has lost something.
const PATIENCE: Duration = Duration::from_secs(5);
/// A datagram takes less than this.
const ANSWER: Duration = Duration::from_secs(1);
/// What takes longer than this only trickles.
const DEADLINE: Duration = Duration::from_secs(30);
const CHUNK: usize = 1 << 16;

/// An address and a port.
fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
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
            stream.peek(&mut one).expect("peeked");
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
    let any = if address.contains(':') { "::" } else { "0.0.0.0" };
    let server = net.server.run(|| UdpSocket::bind(at(any, 0)).expect("bound"));
    let port = server.local_addr().expect("bound").port();
    let client = net.client.run(|| UdpSocket::bind(at(any, 0)).expect("bound"));
    server.set_read_timeout(Some(ANSWER)).expect("set");
    client.set_read_timeout(Some(ANSWER)).expect("set");
    client.connect(at(address, port)).expect("connected");
    let (mut sent, mut got) = (vec![0; CHUNK], vec![0; CHUNK]);
    for (round, &len) in lens.iter().enumerate() {
        pattern(round * 8, &mut sent);
        client.send(&sent[..len]).map_err(|_| len)?;
        let (received, from) = server.recv_from(&mut got).map_err(|_| len)?;
        assert!(got[..received] == sent[..len], "{len} bytes");
        server.send_to(&got[..received], from).map_err(|_| len)?;
        let received = client.recv(&mut got).map_err(|_| len)?;
        assert!(got[..received] == sent[..len], "{len} bytes back");
    }
    Ok(())
}

/// Sends ICMP echo requests from the client to the server's kernel and waits for the answers.
pub fn ping(net: &Net, address: &str, count: usize) -> Result<(), String> {
    net.client.exec(&format!("ping -q -i 0.02 -W 2 -c {count} {address}"))
}
