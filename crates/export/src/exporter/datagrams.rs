//! Messages as datagrams (RFC 7011 section 10.3): from one port for as long as the run lasts, no faster than their pace.

use std::io;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use super::destination::{Host, socket_for};
use crate::Error;

/// Bytes that may leave at once: what a collector has room for with the buffer that Linux gives to a socket.
const BURST: f64 = 64.0 * 1024.0;

/// The shortest time to wait, in seconds, unless half a burst is there sooner: to sleep before each message would cost as much as to send it.
const REST: f64 = 1e-3;

/// How often a message is sent again that an error kept from being sent.
const ATTEMPTS: usize = 3;

/// A socket that is connected to a collector.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    pace: Option<Pace>,
}

impl Datagrams {
    pub(super) fn open(host: &Host, default_port: u16, rate: Option<u64>) -> Result<Self, Error> {
        let fail = |source| Error::Io { to: format!("udp://{host}"), source };
        let mut last = None;
        for address in host.resolve(default_port)? {
            match socket_for(address).and_then(|socket| socket.connect(address).map(|()| socket)) {
                Ok(socket) => return Ok(Self { socket, pace: rate.map(Pace::new) }),
                Err(error) => last = Some(error),
            }
        }
        Err(fail(last.unwrap_or_else(|| io::ErrorKind::NotFound.into())))
    }

    /// Hands a message to the system, and counts messages before it that were answered by "port unreachable".
    pub(super) fn send(&mut self, message: &[u8], refused: &mut u64) -> io::Result<()> {
        if let Some(pace) = &mut self.pace {
            pace.wait(message.len());
        }
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            result = self.socket.send(message).map(|_| ());
            match &result {
                // Said of a message before; this one was not sent.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => *refused += 1,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        result
    }

    /// Whether a message before was answered by "port unreachable".
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.socket.take_error(), Ok(Some(error)) if error.kind() == io::ErrorKind::ConnectionRefused)
    }
}

/// A token bucket.
#[derive(Debug)]
struct Pace {
    /// Bytes a second.
    rate: f64,
    tokens: f64,
    at: Instant,
}

impl Pace {
    fn new(rate: u64) -> Self {
        Self { rate: rate as f64, tokens: BURST, at: Instant::now() }
    }

    /// Takes so many bytes; how long that has to wait.
    fn take(&mut self, bytes: usize, now: Instant) -> Duration {
        let grown = now.saturating_duration_since(self.at).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + grown).min(BURST) - bytes as f64;
        self.at = now;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        let bytes = (-self.tokens).max((self.rate * REST).min(BURST / 2.0));
        Duration::try_from_secs_f64(bytes / self.rate).unwrap_or_default()
    }

    fn wait(&mut self, bytes: usize) {
        let time = self.take(bytes, Instant::now());
        if !time.is_zero() {
            thread::sleep(time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that leave in two seconds, and how often that waited.
    fn sent(rate: u64) -> (u64, usize) {
        let mut pace = Pace::new(rate);
        let begin = pace.at;
        let mut now = begin;
        let (mut sent, mut waits) = (0, 0);
        while now - begin < Duration::from_secs(2) {
            let wait = pace.take(1_000, now);
            now += wait;
            sent += 1_000;
            waits += usize::from(!wait.is_zero());
        }
        (sent, waits)
    }

    #[test]
    fn a_burst_leaves_at_once_and_the_rest_at_its_pace() {
        for rate in [100_000, 1_000_000, 25_000_000, 1_250_000_000] {
            let (sent, waits) = sent(rate);
            let expected = BURST as u64 + 2 * rate;
            assert!(sent.abs_diff(expected) <= BURST as u64 / 2 + 1_000, "{rate}: {sent}");
            // For a message each, or more of them; times are whole nanoseconds.
            let most = 2_000.max(2 * rate / (BURST as u64 / 2));
            assert!(waits as u64 <= most + most / 100, "{rate}: {waits}");
        }
    }

    #[test]
    fn a_pause_saves_no_more_than_a_burst() {
        let mut pace = Pace::new(1_000);
        let later = pace.at + Duration::from_secs(1_000_000);
        assert_eq!(pace.take(BURST as usize, later), Duration::ZERO);
        assert!(pace.take(1_000, later) >= Duration::from_millis(999));
    }

    #[test]
    fn a_closed_port_is_noticed() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = closed.local_addr().unwrap().port();
        drop(closed);
        let host = format!("127.0.0.1:{port}").parse().unwrap();
        let mut datagrams = Datagrams::open(&host, 1, None).unwrap();
        let mut refused = 0;
        for _ in 0..100 {
            datagrams.send(b"message", &mut refused).unwrap();
        }
        assert!(refused + u64::from(datagrams.is_refused()) > 10, "{refused}");
    }
}
