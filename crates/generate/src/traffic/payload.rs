//! What the packets carry: a few fixed patterns, each with the checksum of all its prefixes.

use super::checksum::{fold, sum};
use crate::random::mix;

/// Room for the headers before a payload: two VLAN tags, IPv6, TCP with its longest options is 102.
pub(super) const HEADROOM: usize = 104;

/// The longest payload of most patterns, that of an Ethernet frame.
const LONGEST: usize = 1500;

/// The longest payload of data: what the lengths of IPv6 leave behind the shortest transport header (RFC 8200 section 3).
const LONGEST_DATA: usize = 65_535 - 8;

/// The shortest frame, without its check sequence (IEEE 802.3).
pub(super) const SHORTEST_FRAME: usize = 60;

/// The patterns. A payload of n bytes is the first n bytes of its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// Zeros: no payload, or the padding of a short frame.
    Zeros,
    /// Bytes without structure, as encrypted data has.
    Data,
    /// A question for the address of www.example.net, 33 bytes.
    DnsQuestion,
    /// Its answer, 49 bytes.
    DnsAnswer,
    /// An NTP request, 48 bytes.
    NtpRequest,
    /// An NTP reply, 48 bytes.
    NtpReply,
    /// A QUIC version 1 packet with a long header.
    QuicInitial,
    /// A QUIC packet with a short header.
    QuicShort,
}

impl Payload {
    const ALL: [Self; 8] = [
        Self::Zeros,
        Self::Data,
        Self::DnsQuestion,
        Self::DnsAnswer,
        Self::NtpRequest,
        Self::NtpReply,
        Self::QuicInitial,
        Self::QuicShort,
    ];

    /// The most bytes that there are of it.
    fn longest(self) -> usize {
        if self == Self::Data { LONGEST_DATA } else { LONGEST }
    }

    /// How the pattern begins; bytes without structure follow.
    fn beginning(self) -> &'static [u8] {
        match self {
            Self::Zeros => &[0; LONGEST],
            Self::Data => &[],
            Self::DnsQuestion => b"\x1a\x2b\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03net\0\0\x01\0\x01",
            Self::DnsAnswer => {
                b"\x1a\x2b\x81\x80\0\x01\0\x01\0\0\0\0\x03www\x07example\x03net\0\0\x01\0\x01\
                  \xc0\x0c\0\x01\0\x01\0\0\x0e\x10\0\x04\xc0\0\x02\x50"
            }
            // Version 4, mode 3 (client); version 4, mode 4 (server), stratum 2 (RFC 5905).
            Self::NtpRequest => {
                b"\x23\0\x06\xec\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
                  \0\0\0\0\0\0\0\0\xed\0\x36\x80\0\0\0\0"
            }
            Self::NtpReply => {
                b"\x24\x02\x06\xec\0\0\x02\x1c\0\0\x03\x50\xc0\0\x02\x7b\xed\0\x36\x70\0\0\0\0\
                  \xed\0\x36\x80\0\0\0\0\xed\0\x36\x80\x10\0\0\0\xed\0\x36\x80\x11\0\0\0"
            }
            // Long header, type Initial, version 1, 8-byte connection ids (RFC 9000).
            Self::QuicInitial => b"\xc3\0\0\0\x01\x08loompack\x08packloom\0\x44\x9a",
            Self::QuicShort => b"\x4bpackloom",
        }
    }
}

/// A pattern with room for headers before it, so that a frame is made without moving its payload.
struct Pattern {
    buffer: Box<[u8]>,
    /// The folded sum of the first n bytes, for every n.
    sums: Box<[u16]>,
}

/// All patterns.
pub(super) struct Patterns(Box<[Pattern]>);

impl Patterns {
    pub(super) fn new() -> Self {
        Self(Payload::ALL.iter().map(|&payload| Pattern::new(payload)).collect())
    }

    /// The buffer of `payload`, which begins at [`HEADROOM`] in it.
    #[inline]
    pub(super) fn buffer(&mut self, payload: Payload) -> &mut [u8] {
        &mut self.0[payload as usize].buffer
    }

    /// The folded sum of the first `len` bytes of `payload`.
    #[inline]
    pub(super) fn sum(&self, payload: Payload, len: usize) -> u16 {
        self.0[payload as usize].sums[len]
    }
}

impl Pattern {
    fn new(payload: Payload) -> Self {
        let mut buffer = vec![0; HEADROOM + payload.longest()].into_boxed_slice();
        let bytes = &mut buffer[HEADROOM..];
        for (place, word) in bytes.chunks_mut(8).enumerate() {
            let noise = mix(mix(payload as u64) ^ place as u64).to_le_bytes();
            word.copy_from_slice(&noise[..word.len()]);
        }
        let beginning = payload.beginning();
        bytes[..beginning.len()].copy_from_slice(beginning);
        let sums = prefix_sums(bytes);
        Self { buffer, sums }
    }
}

/// The folded sums of all prefixes of `bytes`, the empty one and the whole included.
fn prefix_sums(bytes: &[u8]) -> Box<[u16]> {
    let mut sums = vec![0];
    let mut even = 0;
    for word in bytes.chunks(2) {
        sums.push(fold(even + sum(&word[..1])));
        if word.len() == 2 {
            even += sum(word);
            sums.push(fold(even));
        }
    }
    sums.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_sums_are_sums_of_prefixes() {
        let patterns = Patterns::new();
        for payload in Payload::ALL {
            let pattern = &patterns.0[payload as usize];
            // All of an Ethernet frame's, and the longest ones.
            let longest = payload.longest();
            for len in (0..=longest).filter(|len| *len <= LONGEST || longest - len < 10) {
                let whole = fold(sum(&pattern.buffer[HEADROOM..HEADROOM + len]));
                // 0 and 0xffff are the same number in this arithmetic.
                assert_eq!(pattern.sums[len] % 0xffff, whole % 0xffff, "{payload:?} {len}");
            }
        }
    }

    #[test]
    fn messages_have_the_lengths_that_are_sent() {
        assert_eq!(Payload::DnsQuestion.beginning().len(), 33);
        assert_eq!(Payload::DnsAnswer.beginning().len(), 49);
        assert_eq!(Payload::NtpRequest.beginning().len(), 48);
        assert_eq!(Payload::NtpReply.beginning().len(), 48);
    }
}
