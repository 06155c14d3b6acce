//! Messages with names in them.

use ring::aead::quic::{AES_128, HeaderProtectionKey};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;

/// Bytes of hexadecimal digits; blanks do not count.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter_map(|char| char.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

/// Bytes behind their number, which has `width` bytes.
pub(crate) fn counted(width: usize, bytes: &[u8]) -> Vec<u8> {
    let mut counted = (bytes.len() as u64).to_be_bytes()[8 - width..].to_vec();
    counted.extend_from_slice(bytes);
    counted
}

/// An extension of a ClientHello.
pub(crate) fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &counted(2, body)].concat()
}

/// The extension with these names, each with its type.
pub(crate) fn server_names(names: &[(u8, &[u8])]) -> Vec<u8> {
    let names: Vec<_> = names.iter().map(|(kind, name)| [&[*kind][..], &counted(2, name)].concat()).collect();
    extension(0, &counted(2, &names.concat()))
}

/// A handshake message.
pub(crate) fn handshake(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &counted(3, body)].concat()
}

/// A ClientHello of TLS 1.3, from its type on.
pub(crate) fn hello(session: &[u8], suites: usize, extensions: &[Vec<u8>]) -> Vec<u8> {
    let body = [
        vec![3, 3],
        // Random bytes, which look like other fields.
        (0..32).map(|byte| byte % 4).collect(),
        counted(1, session),
        counted(2, &[0x13, 0x01].repeat(suites)),
        counted(1, &[0]),
        counted(2, &extensions.concat()),
    ];
    handshake(1, &body.concat())
}

/// One with a server name between other extensions, `padding` bytes of them before it.
pub(crate) fn hello_with(name: &str, padding: usize) -> Vec<u8> {
    let names = server_names(&[(0, name.as_bytes())]);
    hello(
        &[7; 32],
        16,
        &[extension(0x0a0a, b""), extension(51, &vec![0; padding]), names, extension(43, &[2, 3, 4])],
    )
}

/// Messages in records of up to `len` bytes.
pub(crate) fn records(messages: &[u8], len: usize) -> Vec<u8> {
    messages.chunks(len).flat_map(|part| [&[22, 3, 1][..], &counted(2, part)].concat()).collect()
}

/// A DNS message with these questions, each the name on the wire and its type.
pub(crate) fn dns(flags: u16, questions: &[(Vec<u8>, u16)]) -> Vec<u8> {
    let mut message = [0x1234, flags, questions.len() as u16, 0, 0, 0].map(u16::to_be_bytes).concat();
    for (name, kind) in questions {
        message.extend_from_slice(name);
        message.extend_from_slice(&[*kind, 1].map(u16::to_be_bytes).concat());
    }
    message
}

/// A name on the wire.
pub(crate) fn labels(labels: &[&[u8]]) -> Vec<u8> {
    labels.iter().chain([&&b""[..]]).flat_map(|label| counted(1, label)).collect()
}

/// A variable-length integer of QUIC, in two bytes or more.
pub(crate) fn varint(value: usize) -> Vec<u8> {
    if value < 1 << 14 {
        (value as u16 | 0x4000).to_be_bytes().to_vec()
    } else {
        (value as u32 | 0x8000_0000).to_be_bytes().to_vec()
    }
}

/// A CRYPTO frame with the bytes of a message in a range.
pub(crate) fn crypto(message: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    let bytes = &message[range.clone()];
    [vec![6], varint(range.start), varint(bytes.len()), bytes.to_vec()].concat()
}

pub(crate) const QUIC_V1: u32 = 1;
pub(crate) const QUIC_V2: u32 = 0x6b33_43cf;
pub(crate) const QUIC_DRAFT_29: u32 = 0xff00_001d;

/// An Initial packet.
#[derive(Clone, Debug)]
pub(crate) struct Initial<'a> {
    pub(crate) version: u32,
    /// What the keys come from.
    pub(crate) key_id: &'a [u8],
    pub(crate) destination: &'a [u8],
    pub(crate) token: &'a [u8],
    pub(crate) number: u32,
    /// Bytes of the packet number: 1 to 4.
    pub(crate) number_len: usize,
}

impl Initial<'_> {
    pub(crate) const FIRST: Initial<'static> = Initial {
        version: QUIC_V1,
        key_id: &[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08],
        destination: &[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08],
        token: b"",
        number: 0,
        number_len: 1,
    };

    /// The packet with these frames, protected as a client does, or a server.
    pub(crate) fn seal(&self, sender: &str, frames: &[u8]) -> Vec<u8> {
        let (salt, prefix, kind) = match self.version {
            QUIC_V2 => ("0dede3def700a6db819381be6e269dcbf9bd2ed9", "quicv2", 1),
            QUIC_DRAFT_29 => ("afbfec289993d24c9e9786f19c6111e04390a899", "quic", 0),
            _ => ("38762cf7f55934b34d179ae6a4c80cadccbb7f0a", "quic", 0),
        };
        let initial = hmac(&hex(salt), self.key_id);
        let secret = expand(&initial, &format!("{sender} in"), 32);
        let [key, nonce, header] = [("key", 16), ("iv", 12), ("hp", 16)]
            .map(|(name, len)| expand(&secret, &format!("{prefix} {name}"), len));

        let number = &self.number.to_be_bytes()[4 - self.number_len..];
        let mut packet = [
            vec![0xc0 | kind << 4 | (self.number_len - 1) as u8],
            self.version.to_be_bytes().to_vec(),
            counted(1, self.destination),
            counted(1, b"source"),
            varint(self.token.len()),
            self.token.to_vec(),
            varint(self.number_len + frames.len() + 16),
            number.to_vec(),
        ]
        .concat();
        let header_len = packet.len();

        let mut nonce: [u8; 12] = nonce.try_into().expect("12 bytes");
        nonce[12 - self.number_len..].iter_mut().zip(number).for_each(|(byte, number)| *byte ^= number);
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("16 bytes"));
        let mut sealed = frames.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(&packet), &mut sealed)
            .expect("short");
        packet.extend_from_slice(&sealed);

        let number_at = header_len - self.number_len;
        let mask = HeaderProtectionKey::new(&AES_128, &header)
            .expect("16 bytes")
            .new_mask(&packet[number_at + 4..number_at + 20])
            .expect("16 bytes");
        packet[0] ^= mask[0] & 15;
        packet[number_at..header_len].iter_mut().zip(&mask[1..]).for_each(|(byte, mask)| *byte ^= mask);
        packet
    }

    /// A client's datagram with these frames.
    pub(crate) fn datagram(&self, frames: &[u8]) -> Vec<u8> {
        let mut frames = frames.to_vec();
        frames.resize(frames.len().max(1162), 0);
        self.seal("client", &frames)
    }
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message).as_ref().to_vec()
}

/// HKDF-Expand-Label of up to 32 bytes.
fn expand(secret: &[u8], label: &str, len: u8) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let info = [&[0, len][..], &counted(1, label.as_bytes()), &[0, 1]].concat();
    hmac(secret, &info)[..len.into()].to_vec()
}
