//! A ClientHello in TLS records (RFC 8446 section 5.1).

use crate::hello::server_name;
use crate::stream::Step;
use crate::text::escaped;
use crate::wire::Stop;
use crate::{Finding, Name, NameKind};

/// Bytes from the beginning of a stream in which the name has to end.
pub(crate) const MAX_STREAM: usize = 16 * 1024;

/// The type, version and length of a record.
const HEADER: usize = 5;
/// The type of records with handshake messages, and the high byte of each version.
pub(crate) const HANDSHAKE: u8 = 22;
const MAJOR: u8 = 3;
/// The low byte of TLS 1.3's version.
const LAST_MINOR: u8 = 4;
/// Bytes of a record (RFC 8446 section 5.1).
const MAX_RECORD: u16 = 1 << 14;

/// Handshake messages, out of their records.
#[derive(Debug, Default)]
pub(crate) struct Records {
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    header_len: u8,
    /// Bytes that are missing of the record.
    missing: u16,
    message: Vec<u8>,
    /// Bytes of the message before which nothing more can be said.
    needs: usize,
}

impl Records {
    /// Whether a stream that begins with these bytes, one or more, may be records with a handshake.
    #[inline]
    pub(crate) fn may_begin_with(bytes: &[u8]) -> bool {
        bytes[0] == HANDSHAKE
            && bytes.get(1).is_none_or(|&major| major == MAJOR)
            && bytes.get(2).is_none_or(|&minor| minor <= LAST_MINOR)
    }

    /// Whether it may, with a ClientHello; false where not enough is there to tell.
    pub(crate) fn begins_with_hello(bytes: &[u8]) -> bool {
        Self::may_begin_with(bytes) && bytes.get(HEADER).is_some_and(|&kind| kind == 1)
    }

    /// Takes the bytes that follow.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Step {
        // Nearly always one record has all of it, and nothing needs to be kept.
        if self.header_len == 0
            && self.message.is_empty()
            && let Some((header, body)) = bytes.split_first_chunk()
            && let Some(len) = record_len(header)
            && let step @ (Step::Found(_) | Step::NoName) = self.read(&body[..body.len().min(len.into())])
        {
            return step;
        }
        let mut is_record = true;
        while is_record && !bytes.is_empty() {
            if self.missing == 0 {
                let part;
                (part, bytes) = bytes.split_at(bytes.len().min(HEADER - usize::from(self.header_len)));
                self.header[self.header_len.into()..][..part.len()].copy_from_slice(part);
                self.header_len += part.len() as u8;
                is_record = Self::may_begin_with(&self.header[..self.header_len.into()]);
                if usize::from(self.header_len) == HEADER {
                    self.header_len = 0;
                    let len = record_len(&self.header);
                    is_record = len.is_some();
                    self.missing = len.unwrap_or(0);
                }
            } else {
                let part;
                (part, bytes) = bytes.split_at(bytes.len().min(self.missing.into()));
                self.message.extend_from_slice(part);
                self.missing -= part.len() as u16;
            }
        }
        let message = std::mem::take(&mut self.message);
        let step = self.read(&message);
        self.message = message;
        match step {
            Step::More if !is_record => Step::NoName,
            step => step,
        }
    }

    /// Looks for the name in what is there of a message.
    fn read(&mut self, message: &[u8]) -> Step {
        if message.len() < self.needs {
            return Step::More;
        }
        match server_name(message) {
            Ok(name) => Step::Found(Finding::Name(Name::new(NameKind::TlsServer, escaped(name)))),
            Err(Stop::NoName) => Step::NoName,
            Err(Stop::Needs(len)) => {
                self.needs = len;
                Step::More
            }
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.message.capacity()
    }
}

/// The length of a record that may be part of a handshake: not of an empty one.
fn record_len(header: &[u8; HEADER]) -> Option<u16> {
    let [_, _, _, high, low] = *header;
    let len = u16::from_be_bytes([high, low]);
    (Records::may_begin_with(header) && (1..=MAX_RECORD).contains(&len)).then_some(len)
}
