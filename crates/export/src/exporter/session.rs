//! Messages over a connection (RFC 7011 section 10.4), each kept until the other side's kernel has it, and sent again over the next
//! connection where it may not.
//!
//! What the other side's kernel has acknowledged it hands to the collector, unless that one ends before. A message that was sent and not
//! acknowledged is sent again: a collector may then have it twice.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::connection::{Connection, Tls};
use super::destination::Host;
use crate::Error;
use crate::messages::sequence_number;

/// Bytes of messages that are kept.
const SPOOL: usize = 64 << 20;

/// Bytes of messages that are written together.
const GROUP: usize = 1 << 16;

/// Times from a connection that fails to the next one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a handshake may take when the run begins.
const HANDSHAKE: Duration = Duration::from_secs(5);

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

/// See above.
pub(super) struct Session {
    name: String,
    host: Host,
    default_port: u16,
    tls: Option<Tls>,
    connection: Option<Connection>,
    /// Messages, the oldest first: those of `groups`, then those of `group`, then those that are still to be sent.
    kept: VecDeque<Kept>,
    bytes: usize,
    /// Groups that the kernel has: how many messages, and where they end among all bytes of the connection.
    groups: VecDeque<(usize, u64)>,
    /// Messages that are being written.
    group: usize,
    /// The sequence number that is 0 on this connection (RFC 7011 section 3.1: each counts anew).
    base: Option<u32>,
    /// The messages before the first one of another connection.
    preamble: Vec<u8>,
    has_connected: bool,
    retry: (Instant, Duration),
    carried: Carried,
    notices: Vec<String>,
}

impl Session {
    /// Connects. Where `is_needed` is not set and the collector is away, it is called again later.
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
            connection: None,
            kept: VecDeque::new(),
            bytes: 0,
            groups: VecDeque::new(),
            group: 0,
            base: None,
            preamble: Vec::new(),
            has_connected: false,
            retry: (Instant::now(), PAUSES.0),
            carried: Carried::default(),
            notices: Vec::new(),
        };
        if let Err(error) = session.connect(true) {
            if is_needed {
                return Err(error);
            }
            session.notices.push(format!("{error}; it is tried again and again"));
            session.retry.0 = Instant::now() + session.retry.1;
        }
        Ok(session)
    }

    fn connect(&mut self, shakes_hands: bool) -> Result<(), Error> {
        let addresses = self.host.resolve(self.default_port)?;
        let connected = Connection::open(&addresses, self.tls.as_ref()).and_then(|mut connection| {
            if shakes_hands {
                connection.shake_hands(HANDSHAKE)?;
            }
            Ok(connection)
        });
        let connection = connected.map_err(|source| Error::Io { to: self.name.clone(), source })?;
        self.connection = Some(connection);
        self.base = None;
        if self.has_connected {
            self.carried.reconnects += 1;
        }
        Ok(())
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

    /// Something that the user should know.
    pub(super) fn notices(&mut self) -> impl Iterator<Item = String> {
        self.notices.drain(..)
    }

    /// Takes a message to be sent.
    pub(super) fn push(&mut self, message: &[u8], records: u32) {
        self.bytes += message.len();
        self.kept.push_back(Kept { bytes: message.to_vec(), records, was_sent: false });
    }

    /// Whether another connection is to begin, for which it needs messages with templates.
    pub(super) fn wants_preamble(&self) -> bool {
        self.connection.is_none() && self.has_connected && Instant::now() >= self.retry.0
    }

    /// Takes messages with templates for the next connection.
    pub(super) fn set_preamble(&mut self, messages: Vec<u8>) {
        self.preamble = messages;
    }

    /// Sends what can be sent, and forgets what has arrived; whether it came forward.
    pub(super) fn advance(&mut self) -> bool {
        if self.connection.is_none() {
            if Instant::now() < self.retry.0 {
                return false;
            }
            if self.connect(false).is_err() {
                self.pause();
                return false;
            }
        }
        match self.send() {
            Ok(has_moved) => has_moved,
            Err(error) => {
                self.lose(&error);
                false
            }
        }
    }

    fn pause(&mut self) {
        let pause = self.retry.1;
        self.retry = (Instant::now() + pause, (pause * 2).min(PAUSES.1));
    }

    /// Begins anew after a connection that failed.
    fn lose(&mut self, error: &io::Error) {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the collector ended the connection".into(),
            _ => packetloom_io::plain(error),
        };
        // Said once for a connection that stood.
        if self.connection.as_ref().is_some_and(|connection| !connection.is_shaking_hands()) {
            self.notices.push(format!(
                "{}: {why}; what may not have arrived is sent again over the next one",
                self.name
            ));
        }
        self.connection = None;
        let sent =
            self.groups.drain(..).map(|(count, _)| count).sum::<usize>() + std::mem::take(&mut self.group);
        self.kept.iter_mut().take(sent).for_each(|kept| kept.was_sent = true);
        self.pause();
    }

    fn send(&mut self) -> io::Result<bool> {
        let Some(connection) = &mut self.connection else { return Ok(false) };
        let mut has_moved = connection.advance()?;
        if connection.is_shaking_hands() {
            return Ok(has_moved);
        }
        if connection.is_idle() && self.group > 0 {
            self.groups.push_back((std::mem::take(&mut self.group), connection.taken()));
        }
        let sent: usize = self.groups.iter().map(|(count, _)| count).sum();
        if connection.is_idle() && sent < self.kept.len() {
            if self.base.is_none() {
                let first = &self.kept[sent].bytes;
                self.base = Some(sequence_number(first));
                if std::mem::replace(&mut self.has_connected, true) {
                    connection.push(&self.preamble)?;
                }
            }
            let base = self.base.unwrap_or_default();
            let mut bytes = 0;
            for kept in self.kept.iter_mut().skip(sent).take_while(|kept| {
                bytes += kept.bytes.len();
                bytes <= GROUP.max(kept.bytes.len())
            }) {
                let number = sequence_number(&kept.bytes).wrapping_sub(base);
                connection.push(&renumbered(&kept.bytes, number))?;
                self.carried.resent += u64::from(kept.was_sent);
                self.group += 1;
            }
            has_moved |= connection.advance()?;
        }
        let acknowledged = connection.acknowledged()?;
        while let Some(&(count, end)) = self.groups.front().filter(|(_, end)| *end <= acknowledged) {
            debug_assert!(end <= acknowledged);
            self.groups.pop_front();
            for Kept { bytes, records, .. } in self.kept.drain(..count) {
                self.bytes -= bytes.len();
                self.carried.messages += 1;
                self.carried.records += u64::from(records);
                self.carried.bytes += bytes.len() as u64;
            }
            // It works: a failure is the first one again.
            self.retry.1 = PAUSES.0;
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Waits until it may come forward, for so long at most.
    pub(super) fn wait(&self, time: Duration) {
        match &self.connection {
            Some(connection) => connection.wait(time),
            None => std::thread::sleep(time.min(self.retry.0.saturating_duration_since(Instant::now()))),
        }
    }

    /// Ends it.
    pub(super) fn close(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.close();
        }
    }
}

/// The same message with another sequence number.
fn renumbered(message: &[u8], number: u32) -> Vec<u8> {
    let mut message = message.to_vec();
    crate::messages::set_sequence_number(&mut message, number);
    message
}
