//! The ClientHello in a QUIC client's Initial packets (RFC 9000 sections 12, 17.2 and 19, RFC 9001 section 5, RFC 9369).

use ring::aead::quic::{AES_128, HeaderProtectionKey};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

use crate::hello::server_name;
use crate::stream::Step;
use crate::text::escaped;
use crate::wire::Stop;
use crate::{Finding, GiveUp, Name, NameKind, Outcome, State};

/// Bytes from the beginning of the handshake in which the name has to end.
const MAX_CRYPTO: usize = 16 * 1024;
/// Datagrams among which those with the name have to be.
const MAX_DATAGRAMS: u8 = 16;
/// Parts of the handshake with gaps between.
const MAX_PIECES: usize = 64;

/// Bytes of a connection ID, and those that the first one of a client has at least (RFC 9000 sections 17.2 and 7.2).
const MAX_ID: usize = 20;
const MIN_FIRST_ID: usize = 8;

/// Bytes of ciphertext that the header's mask is made of; they begin where they would behind the longest packet number.
const SAMPLE: usize = 16;
const MAX_NUMBER: usize = 4;

/// What differs between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// RFC 9000; drafts 33 and 34 protect packets in the same way.
    V1,
    /// RFC 9369.
    V2,
    /// Drafts 29 to 32.
    Draft29,
}

impl Version {
    #[inline]
    fn of_number(number: u32) -> Option<Self> {
        match number {
            1 | 0xff00_0021 | 0xff00_0022 => Some(Self::V1),
            0x6b33_43cf => Some(Self::V2),
            0xff00_001d..=0xff00_0020 => Some(Self::Draft29),
            _ => None,
        }
    }

    /// The salt of the secrets of Initial packets (RFC 9001 section 5.2, RFC 9369 section 3.3.1).
    fn salt(self) -> [u8; 20] {
        match self {
            Self::V1 => [
                0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17, 0x9a, 0xe6, 0xa4, 0xc8, 0x0c,
                0xad, 0xcc, 0xbb, 0x7f, 0x0a,
            ],
            Self::V2 => [
                0x0d, 0xed, 0xe3, 0xde, 0xf7, 0x00, 0xa6, 0xdb, 0x81, 0x93, 0x81, 0xbe, 0x6e, 0x26, 0x9d,
                0xcb, 0xf9, 0xbd, 0x2e, 0xd9,
            ],
            Self::Draft29 => [
                0xaf, 0xbf, 0xec, 0x28, 0x99, 0x93, 0xd2, 0x4c, 0x9e, 0x97, 0x86, 0xf1, 0x9c, 0x61, 0x11,
                0xe0, 0x43, 0x90, 0xa8, 0x99,
            ],
        }
    }

    /// The labels of the key, the nonce's base and the header's key.
    fn labels(self) -> [&'static [u8]; 3] {
        match self {
            Self::V1 | Self::Draft29 => [b"tls13 quic key", b"tls13 quic iv", b"tls13 quic hp"],
            Self::V2 => [b"tls13 quicv2 key", b"tls13 quicv2 iv", b"tls13 quicv2 hp"],
        }
    }

    /// The type of a packet with a long header (RFC 9000 table 5, RFC 9369 section 3.2).
    fn kind(self, first: u8) -> Kind {
        let bits = first >> 4 & 3;
        match if self == Self::V2 { bits.wrapping_sub(1) & 3 } else { bits } {
            0 => Kind::Initial,
            1 => Kind::ZeroRtt,
            2 => Kind::Handshake,
            _ => Kind::Retry,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Initial,
    ZeroRtt,
    Handshake,
    Retry,
}

/// Whether a datagram may be the first one of a client: a long header of a version that is known.
#[inline]
pub(crate) fn may_begin_with(datagram: &[u8]) -> bool {
    version(datagram).is_some()
}

#[inline]
fn version(packet: &[u8]) -> Option<Version> {
    match packet {
        [0x80..=0xff, a, b, c, d, ..] => Version::of_number(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => None,
    }
}

/// A connection ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Id {
    bytes: [u8; MAX_ID],
    len: u8,
}

impl Id {
    fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_ID];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(Self { bytes, len: id.len() as u8 })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// Bytes that are read from the front.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    /// A variable-length integer (RFC 9000 section 16).
    fn varint(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let rest = self.take((1 << (first >> 6)) - 1)?;
        Some(rest.iter().fold(u64::from(first & 0x3f), |value, &byte| value << 8 | u64::from(byte)))
    }

    /// Bytes behind their number, a variable-length integer.
    fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.varint()?;
        self.take(usize::try_from(len).ok()?)
    }
}

/// A packet with a long header and a length, whole.
struct Packet<'a> {
    version: Version,
    kind: Kind,
    destination: Id,
    has_token: bool,
    /// From its first byte to its last one.
    bytes: &'a [u8],
    /// Offset of the packet number.
    number: usize,
}

impl<'a> Packet<'a> {
    /// The first packet of the rest of a datagram, if it is one whose end is known.
    fn first(datagram: &'a [u8]) -> Option<Self> {
        let version = version(datagram)?;
        let kind = version.kind(datagram[0]);
        let mut reader = Reader { bytes: &datagram[5..] };
        let len = reader.byte()?;
        let destination = Id::new(reader.take(len.into())?)?;
        let len = reader.byte()?;
        Id::new(reader.take(len.into())?)?;
        let has_token = match kind {
            Kind::Initial => !reader.counted()?.is_empty(),
            Kind::ZeroRtt | Kind::Handshake => false,
            Kind::Retry => return None,
        };
        let len = reader.varint()?;
        let number = datagram.len() - reader.bytes.len();
        reader.take(usize::try_from(len).ok()?)?;
        let bytes = &datagram[..datagram.len() - reader.bytes.len()];
        Some(Self { version, kind, destination, has_token, bytes, number })
    }

    /// The frames of an Initial packet whose keys come from `id`, as a client protects them; `None` where it did not.
    fn open<'b>(&self, id: &Id, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
        let sample = self.bytes.get(self.number + MAX_NUMBER..)?.get(..SAMPLE)?;
        let keys = Keys::new(self.version, id);
        let [mask, number_mask @ ..] = keys.header.new_mask(sample).ok()?;
        buffer.clear();
        buffer.extend_from_slice(self.bytes);
        buffer[0] ^= mask & 0x0f;
        let number_len = usize::from(buffer[0] & 3) + 1;
        let (header, sealed) = buffer.split_at_mut(self.number + number_len);
        let mut nonce = keys.nonce;
        let number = header[self.number..].iter_mut().zip(number_mask);
        for ((byte, mask), place) in number.zip(NONCE_LEN - number_len..) {
            *byte ^= mask;
            nonce[place] ^= *byte;
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        keys.packet.open_in_place(nonce, Aad::from(header), sealed).ok().map(|frames| &*frames)
    }
}

/// The keys of a client's Initial packets.
struct Keys {
    packet: LessSafeKey,
    nonce: [u8; NONCE_LEN],
    header: HeaderProtectionKey,
}

/// A number of bytes to derive.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Keys {
    /// Those that come from the connection ID that the client chose for the server (RFC 9001 section 5.2).
    fn new(version: Version, id: &Id) -> Self {
        let initial = Salt::new(HKDF_SHA256, &version.salt()).extract(id.bytes());
        let secret: [u8; 32] = expand_label(&initial, b"tls13 client in");
        let client = Prk::new_less_safe(HKDF_SHA256, &secret);
        let [key, nonce, header] = version.labels();
        let key: [u8; 16] = expand_label(&client, key);
        let header: [u8; 16] = expand_label(&client, header);
        Self {
            packet: LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("the length of its keys")),
            nonce: expand_label(&client, nonce),
            header: HeaderProtectionKey::new(&AES_128, &header).expect("the length of its keys"),
        }
    }
}

/// HKDF-Expand-Label without a context (RFC 8446 section 7.1); the label has its prefix.
fn expand_label<const LEN: usize>(secret: &Prk, label: &[u8]) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let info = [&(LEN as u16).to_be_bytes()[..], &[label.len() as u8], label, &[0]];
    let key = secret.expand(&info, Len(LEN)).expect("fewer bytes than HKDF can give");
    key.fill(&mut bytes).expect("as many as were asked for");
    bytes
}

/// A connection whose client's first datagram was seen.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What the keys come from.
    id: Id,
    datagrams: u8,
    /// The handshake from its first byte on, with zeros in gaps, and which parts of it are there: in order, none touches the next.
    crypto: Vec<u8>,
    pieces: Vec<(usize, usize)>,
}

/// Initial packets of a datagram that are looked at.
const MAX_INITIALS: usize = 4;

impl Connection {
    /// The first datagram, of which [`may_begin_with`] is true.
    #[cold]
    pub(crate) fn start(datagram: &[u8]) -> Outcome<Finding, State> {
        let Some(packet) = Packet::first(datagram) else { return Outcome::NoName };
        // A server's Initial packet has neither a long ID for the client, mostly, nor a token.
        let is_client = match packet.kind {
            Kind::Initial => packet.has_token || usize::from(packet.destination.len) >= MIN_FIRST_ID,
            // Early data that overtook the Initial packet: to the same ID.
            Kind::ZeroRtt => true,
            Kind::Handshake | Kind::Retry => false,
        };
        if !is_client {
            return Outcome::NoName;
        }
        let mut connection =
            Self { id: packet.destination, datagrams: 0, crypto: Vec::new(), pieces: Vec::new() };
        match connection.read(datagram) {
            Err(reason) => Outcome::GaveUp(reason),
            Ok((Step::Found(finding), _)) => Outcome::Found(finding),
            Ok((Step::NoName, _)) => Outcome::NoName,
            Ok((Step::More, opened)) if opened || packet.kind == Kind::ZeroRtt => {
                Outcome::More(State::Quic(Box::new(connection)))
            }
            Ok((Step::More, _)) => Outcome::NoName,
        }
    }

    /// Another datagram of the client.
    pub(crate) fn next(&mut self, datagram: &[u8]) -> Result<Step, GiveUp> {
        self.read(datagram).map(|(step, _)| step)
    }

    /// Reads a datagram; tells, too, whether it had an Initial packet of the client.
    fn read(&mut self, mut datagram: &[u8]) -> Result<(Step, bool), GiveUp> {
        let mut buffer = Vec::new();
        let mut opened = false;
        let mut fits = true;
        let mut initials = 0;
        while let Some(packet) = Packet::first(datagram) {
            datagram = &datagram[packet.bytes.len()..];
            if packet.kind != Kind::Initial {
                continue;
            }
            // Clients send one or two; each costs keys.
            initials += 1;
            if initials > MAX_INITIALS {
                break;
            }
            if let Some(frames) = packet.open(&self.id, &mut buffer) {
                opened = true;
                fits &= self.take_frames(frames)?;
            } else if packet.destination != self.id
                && let Some(frames) = packet.open(&packet.destination, &mut buffer)
            {
                // After a Retry keys come from the ID that the server chose, and all of the handshake comes again (RFC 9001 section 5.2,
                // RFC 9000 section 17.2.5.2).
                opened = true;
                self.id = packet.destination;
                self.crypto.clear();
                self.pieces.clear();
                fits = self.take_frames(frames)?;
            }
        }
        self.datagrams += 1;
        let begin = match self.pieces.first() {
            Some(&(0, end)) => &self.crypto[..end],
            _ => &[],
        };
        match server_name(begin) {
            Ok(name) => {
                let name = Name::new(NameKind::QuicServer, escaped(name));
                Ok((Step::Found(Finding::Name(name)), opened))
            }
            Err(Stop::NoName) => Ok((Step::NoName, opened)),
            Err(Stop::Needs(_)) if !fits => Err(GiveUp::Length),
            Err(Stop::Needs(_)) if self.datagrams == MAX_DATAGRAMS => Err(GiveUp::Datagrams),
            Err(Stop::Needs(_)) => Ok((Step::More, opened)),
        }
    }

    /// Takes the parts of the handshake in an Initial packet; false where one is beyond the bound. What is no frame of such a packet ends
    /// it.
    fn take_frames(&mut self, frames: &[u8]) -> Result<bool, GiveUp> {
        let mut reader = Reader { bytes: frames };
        let mut fits = true;
        while let Some(frame) = Frame::next(&mut reader) {
            if let Frame::Crypto(offset, data) = frame {
                fits &= self.take_crypto(offset, data)?;
            }
        }
        Ok(fits)
    }

    fn take_crypto(&mut self, offset: u64, data: &[u8]) -> Result<bool, GiveUp> {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(MAX_CRYPTO);
        let end = MAX_CRYPTO.min(begin + data.len());
        if begin < end {
            if self.crypto.len() < end {
                self.crypto.resize(end, 0);
            }
            self.crypto[begin..end].copy_from_slice(&data[..end - begin]);
            // Those that it touches become one with it.
            let first = self.pieces.partition_point(|&(_, other)| other < begin);
            let last = self.pieces.partition_point(|&(other, _)| other <= end);
            let touched = &self.pieces[first..last];
            let whole = touched
                .iter()
                .fold((begin, end), |(begin, end), piece| (begin.min(piece.0), end.max(piece.1)));
            self.pieces.splice(first..last, [whole]);
            if self.pieces.len() > MAX_PIECES {
                return Err(GiveUp::Pieces);
            }
        }
        Ok(end - begin == data.len())
    }

    /// Bytes on the heap, without its own.
    pub(crate) fn heap(&self) -> usize {
        self.crypto.capacity() + self.pieces.capacity() * size_of::<(usize, usize)>()
    }
}

/// A frame of an Initial packet (RFC 9000 sections 12.4 and 19).
enum Frame<'a> {
    /// Part of the handshake, with its offset.
    Crypto(u64, &'a [u8]),
    Other,
}

impl<'a> Frame<'a> {
    /// The next one; `None` at the end, and where there is none that an Initial packet may have.
    fn next(reader: &mut Reader<'a>) -> Option<Self> {
        match reader.byte()? {
            // PADDING, PING.
            0 | 1 => {}
            // ACK, with ECN counts or without.
            kind @ (2 | 3) => {
                let (_largest, _delay, ranges, _first) =
                    (reader.varint()?, reader.varint()?, reader.varint()?, reader.varint()?);
                for _ in 0..ranges {
                    let (_gap, _len) = (reader.varint()?, reader.varint()?);
                }
                if kind == 3 {
                    let _counts = (reader.varint()?, reader.varint()?, reader.varint()?);
                }
            }
            6 => return Some(Self::Crypto(reader.varint()?, reader.counted()?)),
            // CONNECTION_CLOSE.
            0x1c => {
                let (_error, _frame, _reason) = (reader.varint()?, reader.varint()?, reader.counted()?);
            }
            _ => return None,
        }
        Some(Self::Other)
    }
}
