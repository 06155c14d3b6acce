//! Netlink messages (RFC 3549; `linux/netlink.h`), as far as links and packet filters need them.
//!
//! All numbers are in the byte order of this machine, except where a protocol says otherwise.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// A request, and no more than that.
pub(super) const REQUEST: u16 = 0x1;
/// The kernel is to answer with the number of an error, or 0.
pub(super) const ACK: u16 = 0x4;
/// Refuse what exists already.
pub(super) const EXCLUSIVE: u16 = 0x200;
/// Make what does not exist.
pub(super) const CREATE: u16 = 0x400;
/// List all.
pub(super) const DUMP: u16 = 0x300;

/// An error number, or 0.
pub(super) const ERROR: u16 = 2;
/// The end of a list.
pub(super) const DONE: u16 = 3;

/// Marks attributes that hold attributes.
const NESTED: u16 = 0x8000;
/// The bits of an attribute's type that are its number.
const NUMBER: u16 = 0x3fff;
/// Messages and attributes begin on multiples of this.
const ALIGNMENT: usize = 4;
const MESSAGE_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// Bytes that one answer of the kernel may have: it makes them no larger than this.
const LONGEST_ANSWER: usize = 1 << 15;

/// Messages to be sent together.
#[derive(Debug, Default)]
pub(super) struct Request(Vec<u8>);

impl Request {
    /// Appends a message: the header of its family, then attributes.
    pub(super) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        header: &[u8],
        attributes: impl FnOnce(&mut Attributes<'_>),
    ) {
        let start = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(sequence.to_ne_bytes());
        self.0.extend([0; 4]);
        self.0.extend(header);
        pad(&mut self.0);
        attributes(&mut Attributes(&mut self.0));
        let len = (self.0.len() - start) as u32;
        self.0[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The attributes of a message, or of another attribute.
pub(super) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    /// Appends an attribute.
    pub(super) fn put(&mut self, kind: u16, value: &[u8]) {
        self.write(kind, |bytes| bytes.extend(value));
    }

    /// Appends a string, which ends with 0.
    pub(super) fn string(&mut self, kind: u16, value: &str) {
        self.write(kind, |bytes| {
            bytes.extend(value.bytes());
            bytes.push(0);
        });
    }

    /// Appends an attribute that holds attributes.
    pub(super) fn nested(&mut self, kind: u16, attributes: impl FnOnce(&mut Attributes<'_>)) {
        self.write(kind | NESTED, |bytes| attributes(&mut Attributes(bytes)));
    }

    fn write(&mut self, kind: u16, value: impl FnOnce(&mut Vec<u8>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        value(self.0);
        let len = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        pad(self.0);
    }
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}

/// A message as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) sequence: u32,
    /// The header of its family, and attributes.
    pub(super) payload: &'a [u8],
}

impl Message<'_> {
    /// What an answer of the kind [`ERROR`] says: an error, or that all is well.
    pub(super) fn error(&self) -> Result<(), Errno> {
        match self.payload.first_chunk().map_or(i32::MIN, |&code| i32::from_ne_bytes(code)) {
            0 => Ok(()),
            code => Err(Errno::from_raw_os_error(code.checked_neg().unwrap_or(Errno::PROTO.raw_os_error()))),
        }
    }
}

/// The first message of some bytes, and the bytes after it; `None` where there is none, or it is not whole.
pub(super) fn split_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let header: &[u8; MESSAGE_HEADER] = bytes.first_chunk()?;
    let word = |at| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let len = word(0) as usize;
    let payload = bytes.get(MESSAGE_HEADER..len)?;
    let rest = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    Some((Message { kind: u16::from_ne_bytes([header[4], header[5]]), sequence: word(8), payload }, rest))
}

/// The attributes in some bytes: number and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[l0, l1, k0, k1] = bytes.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(ATTRIBUTE_HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((u16::from_ne_bytes([k0, k1]) & NUMBER, value))
    })
}

/// A netlink socket.
pub(super) struct Netlink {
    socket: OwnedFd,
    buffer: Vec<u8>,
    /// The bytes of the buffer that are still to be read.
    unread: std::ops::Range<usize>,
}

impl Netlink {
    /// Opens a socket of a protocol (`None`: routing), which listens to these groups (a mask). With groups it does not wait for messages.
    pub(super) fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let mut flags = SocketFlags::CLOEXEC;
        flags.set(SocketFlags::NONBLOCK, groups != 0);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self { socket, buffer: vec![0; LONGEST_ANSWER], unread: 0..0 })
    }

    /// The same socket, of which the kernel lets go [before others](super::going_first).
    pub(super) fn going_first(self) -> Self {
        Self { socket: super::going_first(self.socket), ..self }
    }

    /// Sends messages to the kernel.
    pub(super) fn send(&self, request: &Request) -> Result<(), Errno> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.socket, request.bytes(), SendFlags::empty(), &kernel)?;
        Ok(())
    }

    /// Sends a message that asks for an [answer](ACK), and waits for it.
    pub(super) fn request(&mut self, request: &Request) -> Result<(), Errno> {
        self.send(request)?;
        loop {
            let answer = self.receive()?;
            if answer.kind == ERROR {
                return answer.error();
            }
        }
    }

    /// The next message of the kernel.
    pub(super) fn receive(&mut self) -> Result<Message<'_>, Errno> {
        // Looked at twice: a message that is borrowed here could not be returned only sometimes.
        while split_message(&self.buffer[self.unread.clone()]).is_none() {
            let received =
                rustix::net::recvfrom(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty());
            let (_, len, from) = match received {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            // Nobody but the kernel is listened to.
            let is_kernel = from
                .and_then(|from| SocketAddrNetlink::try_from(from).ok())
                .is_some_and(|from| from.pid() == 0);
            self.unread = if is_kernel { 0..len.min(self.buffer.len()) } else { 0..0 };
        }
        let (message, rest) = split_message(&self.buffer[self.unread.clone()]).ok_or(Errno::PROTO)?;
        self.unread.start = self.unread.end - rest.len();
        Ok(message)
    }
}

impl std::fmt::Debug for Netlink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netlink").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut request = Request::default();
        request.message(18, REQUEST | DUMP, 7, &[1, 2, 3, 4, 5], |attributes| {
            attributes.string(3, "eth0");
            attributes.nested(4, |inner| {
                inner.put(1, &[1]);
                inner.put(2, &[0, 0, 0, 9]);
            });
            attributes.put(5, &[]);
        });
        request.message(ERROR, 0, 8, &(-17i32).to_ne_bytes(), |_| {});
        let (first, rest) = split_message(request.bytes()).expect("a message");
        assert_eq!((first.kind, first.sequence), (18, 7));
        let found: Vec<_> = attributes(&first.payload[8..]).collect();
        assert_eq!((found[0], found[2]), ((3, &b"eth0\0"[..]), (5, &[][..])));
        assert_eq!(attributes(found[1].1).collect::<Vec<_>>(), [(1, &[1][..]), (2, &[0, 0, 0, 9][..])]);
        let (second, rest) = split_message(rest).expect("another");
        assert_eq!((second.error(), rest), (Err(Errno::EXIST), &[][..]));
        // The wire form of the first: lengths count headers, not padding.
        let bytes = request.bytes();
        assert_eq!(bytes[..4], 60u32.to_ne_bytes());
        assert_eq!(bytes[24..28], [9u16.to_ne_bytes(), 3u16.to_ne_bytes()].concat());
        assert_eq!(bytes[36..40], [20u16.to_ne_bytes(), 0x8004u16.to_ne_bytes()].concat());
    }

    #[test]
    fn broken_messages_end_the_reading() {
        let mut request = Request::default();
        request.message(1, 0, 1, &[0; 4], |attributes| attributes.put(1, &[1, 2, 3]));
        let bytes = request.bytes();
        for len in 0..bytes.len() {
            assert_eq!(split_message(&bytes[..len]), None, "{len}");
        }
        for len in [0u32, 15, 29, u32::MAX] {
            let mut broken = bytes.to_vec();
            broken[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(split_message(&broken), None, "{len}");
        }
        for len in [0u16, 3, 9, u16::MAX] {
            let mut broken = bytes[20..].to_vec();
            broken[..2].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(attributes(&broken).count(), 0, "{len}");
        }
        let message = Message { kind: ERROR, sequence: 0, payload: &[] };
        assert!(message.error().is_err());
    }
}
