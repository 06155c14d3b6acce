//! Messages over a connection (RFC 7011 section 10.4), each kept until the other side's kernel has it, and sent again over the next
//! connection where it may not.
//!
//! What the other side's kernel has acknowledged it hands to the collector, unless that one ends before. A message that was sent and not
//! acknowledged is sent again: a collector may then have it twice. A connection has to stand for a second before acknowledgements count: a
//! proxy without a collector behind it accepts and closes, and over TLS 1.3 a server refuses a client's certificate after the handshake.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use super::connection::{Connection, Tls};
use super::destination::Host;
use crate::Error;
use crate::messages::{date, sequence_number, set_date, set_sequence_number};

/// Bytes of messages that are kept.
const SPOOL: usize = 64 << 20;

/// Bytes of messages that are written together.
const GROUP: usize = 1 << 16;

/// Times from a connection that fails to the next one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long a connection has to stand before what it acknowledges counts.
const PROOF: Duration = Duration::from_secs(1);

/// How often the same is said again.
const SILENCE: Duration = Duration::from_secs(60);

/// What a collector's connections have carried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    pub(super) messages: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// Connections after the first one.
    pub(super) reconnects: u64,
    /// Messages that were sent again.
    pub(super) resent: u64,
}

/// A message that is kept.
struct Kept {
    bytes: Vec<u8>,
    records: u32,
    /// Whether it was sent over a connection before.
    was_sent: bool,
}

/// What there is between a session and a collector.
enum State {
    /// Nothing until then.
    Pause(Instant),
    /// A thread connects, which may take long.
    Connecting(Receiver<Result<Connection, Error>>),
    Connected(Connection),
}

/// See above.
pub(super) struct Session {
    name: String,
    host: Host,
    default_port: u16,
    tls: Option<Tls>,
    state: State,
    /// Messages, the oldest first: those of `groups`, then those of `group`, then those that are still to be sent.
    kept: VecDeque<Kept>,
    bytes: usize,
    /// Groups that the kernel has: how many messages, and where they end among all bytes of the connection.
    groups: VecDeque<(usize, u64)>,
    /// Messages that are being written.
    group: usize,
    /// Bytes that the other side's kernel had at the last look.
    acknowledged: u64,
    /// The sequence number that is 0 on this connection (RFC 7011 section 3.1: each counts anew).
    base: Option<u32>,
    /// Whether there was a connection before, and what the next one begins with: templates, and how packets were sampled; its data records.
    has_sent: bool,
    preamble: Vec<Vec<u8>>,
    preamble_records: u32,
    pause: Duration,
    carried: Carried,
    connections: u64,
    notices: Vec<String>,
    /// What was said last, and when.
    said: Option<(String, Instant)>,
}

impl Session {
    /// Connects. Where it is not needed now and the collector is away, that is tried again later.
    pub(super) fn open(
        name: String,
        host: Host,
        default_port: u16,
        tls: Option<Tls>,
        is_needed: bool,
    ) -> Result<Self, Error> {
        let mut session = Self {
            name,
            host,
            default_port,
            tls,
            state: State::Pause(Instant::now()),
            kept: VecDeque::new(),
            bytes: 0,
            groups: VecDeque::new(),
            group: 0,
            acknowledged: 0,
            base: None,
            has_sent: false,
            preamble: Vec::new(),
            preamble_records: 0,
            pause: PAUSES.0,
            carried: Carried::default(),
            connections: 0,
            notices: Vec::new(),
            said: None,
        };
        let connected = connect(&session.name, &session.host, default_port, session.tls.as_ref());
        let connected = connected.and_then(|mut connection| {
            let shaken = connection.shake_hands(HANDSHAKE);
            shaken.map_err(|source| Error::Io { to: session.name.clone(), source })?;
            Ok(connection)
        });
        match connected {
            Ok(connection) => session.begin(connection),
            Err(error) if is_needed => return Err(error),
            Err(error) => session.retry(&error.to_string()),
        }
        Ok(session)
    }

    fn begin(&mut self, connection: Connection) {
        self.carried.reconnects += u64::from(self.connections > 0);
        self.connections += 1;
        self.base = None;
        self.acknowledged = 0;
        self.state = State::Connected(connection);
    }

    /// Whether there is room for more messages.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < SPOOL
    }

    /// Whether all messages have arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Records of messages that have not arrived.
    pub(super) fn left(&self) -> u64 {
        self.kept.iter().map(|kept| u64::from(kept.records)).sum()
    }

    /// What was carried so far.
    pub(super) fn carried(&self) -> Carried {
        self.carried
    }

    /// What the user should know.
    pub(super) fn notices(&mut self) -> impl Iterator<Item = String> {
        self.notices.drain(..)
    }

    /// Takes a message to be sent.
    pub(super) fn push(&mut self, message: &[u8], records: u32) {
        self.bytes += message.len();
        self.kept.push_back(Kept { bytes: message.to_vec(), records, was_sent: false });
    }

    /// Whether another connection needs messages with templates before it begins.
    pub(super) fn wants_preamble(&self) -> bool {
        self.has_sent && self.preamble.is_empty() && !matches!(self.state, State::Connected(_))
    }

    /// Takes messages that the next connection begins with: templates, and perhaps a last one with so many data records.
    pub(super) fn set_preamble(&mut self, messages: Vec<Vec<u8>>, records: u32) {
        (self.preamble, self.preamble_records) = (messages, records);
    }

    /// Sends what can be sent, and forgets what has arrived; whether more has arrived. That it connects again and again does not count.
    pub(super) fn advance(&mut self) -> bool {
        match &self.state {
            State::Pause(until) if Instant::now() < *until || self.wants_preamble() => false,
            State::Pause(_) => {
                let (send, receiver) = sync_channel(1);
                let (name, host, tls) = (self.name.clone(), self.host.clone(), self.tls.clone());
                let port = self.default_port;
                let connects = move || {
                    // Nobody may be there any more.
                    let _ = send.send(connect(&name, &host, port, tls.as_ref()));
                };
                match thread::Builder::new().name("connect".into()).spawn(connects) {
                    Ok(_) => self.state = State::Connecting(receiver),
                    Err(error) => self.retry(&format!("{}: {error}", self.name)),
                }
                false
            }
            State::Connecting(receiver) => match receiver.try_recv() {
                Err(TryRecvError::Empty) => false,
                Ok(Ok(connection)) => {
                    self.begin(connection);
                    false
                }
                Ok(Err(error)) => {
                    self.retry(&error.to_string());
                    false
                }
                Err(TryRecvError::Disconnected) => {
                    self.retry(&format!("{}: the connecting thread failed", self.name));
                    false
                }
            },
            State::Connected(_) => match self.send() {
                Ok(has_moved) => has_moved,
                Err(error) => {
                    self.lose(&error);
                    false
                }
            },
        }
    }

    /// Tries again after a pause, and says why, unless that was said.
    fn retry(&mut self, why: &str) {
        self.state = State::Pause(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
        if self.said.as_ref().is_none_or(|(said, at)| said != why || at.elapsed() > SILENCE) {
            self.notices.push(format!("{why}; it is tried again and again"));
            self.said = Some((why.to_owned(), Instant::now()));
        }
    }

    /// Begins anew after a connection that failed.
    fn lose(&mut self, error: &io::Error) {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the collector ended the connection".into(),
            _ => packetloom_io::plain(error),
        };
        let sent =
            self.groups.drain(..).map(|(count, _)| count).sum::<usize>() + std::mem::take(&mut self.group);
        self.kept.iter_mut().take(sent).for_each(|kept| kept.was_sent = true);
        self.retry(&format!("{}: {why}", self.name));
    }

    fn send(&mut self) -> io::Result<bool> {
        let State::Connected(connection) = &mut self.state else { return Ok(false) };
        connection.advance()?;
        if connection.is_shaking_hands() {
            if connection.age() > HANDSHAKE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to the TLS handshake"));
            }
            return Ok(false);
        }
        loop {
            if connection.is_idle() && self.group > 0 {
                self.groups.push_back((std::mem::take(&mut self.group), connection.taken()));
            }
            let sent: usize = self.groups.iter().map(|(count, _)| count).sum();
            if !connection.is_idle() || sent == self.kept.len() {
                break;
            }
            if self.base.is_none() {
                let first = &self.kept[sent].bytes;
                let before = if self.preamble.is_empty() { 0 } else { self.preamble_records };
                self.base = Some(sequence_number(first).wrapping_sub(before));
                for mut message in std::mem::take(&mut self.preamble) {
                    // No record is in a message before another of them. They are no later than data that use them (RFC 7011 section 8.2).
                    let time = date(&message).min(date(first));
                    set_date(&mut message, time);
                    set_sequence_number(&mut message, 0);
                    connection.push(&message)?;
                }
                self.has_sent = true;
            }
            let base = self.base.unwrap_or_default();
            let mut bytes = 0;
            for kept in self.kept.iter().skip(sent) {
                let mut message = kept.bytes.clone();
                let number = sequence_number(&message).wrapping_sub(base);
                set_sequence_number(&mut message, number);
                connection.push(&message)?;
                self.carried.resent += u64::from(kept.was_sent);
                self.group += 1;
                bytes += message.len();
                if bytes >= GROUP {
                    break;
                }
            }
            connection.advance()?;
        }
        let age = connection.age();
        if age >= PAUSES.1 {
            self.pause = PAUSES.0;
        }
        if age < PROOF {
            return Ok(false);
        }
        let acknowledged = connection.acknowledged()?;
        let has_moved = acknowledged > std::mem::replace(&mut self.acknowledged, acknowledged);
        while let Some(&(count, _)) = self.groups.front().filter(|(_, end)| *end <= acknowledged) {
            self.groups.pop_front();
            for Kept { bytes, records, .. } in self.kept.drain(..count) {
                self.bytes -= bytes.len();
                self.carried.messages += 1;
                self.carried.records += u64::from(records);
                self.carried.bytes += bytes.len() as u64;
            }
        }
        Ok(has_moved)
    }

    /// Waits until it may come forward, for so long at most.
    pub(super) fn wait(&self, time: Duration) {
        match &self.state {
            State::Connected(connection) => connection.wait(time),
            State::Pause(_) | State::Connecting(_) => thread::sleep(time),
        }
    }

    /// Ends it.
    pub(super) fn close(&mut self) {
        if let State::Connected(connection) = &mut self.state {
            connection.close();
        }
    }
}

/// Looks up a collector's addresses, and connects to one of them.
fn connect(name: &str, host: &Host, default_port: u16, tls: Option<&Tls>) -> Result<Connection, Error> {
    let addresses = host.resolve(default_port)?;
    Connection::open(&addresses, tls).map_err(|source| Error::Io { to: name.into(), source })
}
