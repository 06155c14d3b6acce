//! Frames made by hand, ports to send and to see them with, and slow looks into them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use packetloom_io::port::{Mode, Offload, Options, Outgoing, Port, ReceiveBuffer, Sender, wait};
use packetloom_packet::Batch;

use crate::net::{CLIENT, Net, SERVER};

/// Where the frames made here go to; nothing listens there.
pub(crate) const PORT: u16 = 47_777;
const UDP_GIANT: u8 = 5;
/// Whoever waits longer than this waits in vain.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes of an address.
pub(crate) fn address(text: &str) -> Vec<u8> {
    match text.parse().expect("an address") {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn sum(bytes: &[u8]) -> u32 {
    let mut total = 0;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        total = (total & 0xffff) + (total >> 16);
    }
    total
}

fn write_ipv4_checksum(frame: &mut [u8]) {
    frame[24..26].copy_from_slice(&[0, 0]);
    let checksum = !(sum(&frame[14..34]) as u16);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// An IPv4 datagram from the client to the server, with a right checksum.
pub(crate) fn udp(net: &Net, payload: &[u8]) -> Vec<u8> {
    udp_between(net.client.mac("c0"), net.server.mac("s0"), CLIENT[0], SERVER[0], payload)
}

/// The same between any two.
pub(crate) fn udp_between(
    from: [u8; 6],
    to: [u8; 6],
    source: &str,
    destination: &str,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((28 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(address(source));
    frame.extend(address(destination));
    frame.extend(PORT.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend((8 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    write_ipv4_checksum(&mut frame);
    let pseudo = [&frame[26..34], &[0, 17], &frame[38..40]].concat();
    let checksum = !((sum(&[pseudo, frame[34..].to_vec()].concat())) as u16);
    frame[40..42].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(is_checksum_right(&frame), Some(true));
    frame
}

/// The same frame with tags (TPID and TCI) behind its addresses.
pub(crate) fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    for (tpid, tci) in tags {
        tagged.extend(tpid.to_be_bytes());
        tagged.extend(tci.to_be_bytes());
    }
    tagged.extend(&frame[12..]);
    tagged
}

/// Whether a frame, tagged or not, is of the ones made here.
pub(crate) fn is_ours(bytes: &[u8]) -> bool {
    sequence_at(bytes).is_some()
}

/// Where the payload begins, in a frame made here.
fn sequence_at(bytes: &[u8]) -> Option<usize> {
    let mut at = 12;
    while matches!(bytes.get(at..at + 2)?, [0x81, 0] | [0x88, 0xa8] | [0x91, 0]) {
        at += 4;
    }
    let is_udp = bytes.get(at..at + 2)? == [8, 0] && bytes.get(at + 11)? == &17;
    let port = bytes.get(at + 24..at + 26)?;
    (is_udp && port == PORT.to_be_bytes()).then_some(at + 30)
}

/// The number that the payload of a frame made here begins with.
pub(crate) fn sequence(bytes: &[u8]) -> Option<u32> {
    let at = sequence_at(bytes)?;
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Writes that number; the checksum is switched off for it.
pub(crate) fn set_sequence(bytes: &mut [u8], number: u32) {
    let at = sequence_at(bytes).expect("a frame made here");
    bytes[at - 2..at].copy_from_slice(&[0, 0]);
    bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
}

/// Whether the checksum of TCP or UDP is right; `None` where there is none to be seen.
pub(crate) fn is_checksum_right(frame: &[u8]) -> Option<bool> {
    let (pseudo, at) = transport(frame)?;
    let segment = &frame[at..];
    if pseudo[pseudo.len() - 1] == 17 && segment[6..8] == [0, 0] {
        return None;
    }
    let len = (segment.len() as u32).to_be_bytes();
    Some(sum(&[&pseudo, &len[..], segment].concat()) == 0xffff)
}

/// A partial checksum for the TCP or UDP of a frame.
pub(crate) fn partial_of(frame: &[u8]) -> Offload {
    let (pseudo, at) = transport(frame).expect("TCP or UDP");
    Offload::partial(at as u16, if pseudo[pseudo.len() - 1] == 6 { 16 } else { 6 })
}

/// Addresses and protocol of TCP or UDP that is no fragment, and where it begins.
fn transport(frame: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (addresses, protocol, at) = match frame.get(12..14)? {
        [8, 0] if frame.get(20)? & 0x3f == 0 && frame[21] == 0 => (&frame[26..34], frame[23], 34),
        [0x86, 0xdd] => (frame.get(22..54)?, frame[20], 54),
        _ => return None,
    };
    matches!(protocol, 6 | 17).then(|| ([addresses, &[0, protocol]].concat(), at))
}

/// Replaces the destination address of TCP and UDP, where it is `from`; checksums of transport are left to somebody else.
pub(crate) fn replace_destination(frame: &mut [u8], from: &[u8], to: &[u8]) -> bool {
    replace(frame, from, to, if from.len() == 4 { 30 } else { 38 })
}

/// The same for the source.
pub(crate) fn replace_source(frame: &mut [u8], from: &[u8], to: &[u8]) -> bool {
    replace(frame, from, to, if from.len() == 4 { 26 } else { 22 })
}

fn replace(frame: &mut [u8], from: &[u8], to: &[u8], at: usize) -> bool {
    let ethertype: &[u8] = if from.len() == 4 { &[8, 0] } else { &[0x86, 0xdd] };
    if transport(frame).is_none() || frame[12..14] != *ethertype || frame[at..at + from.len()] != *from {
        return false;
    }
    frame[at..at + to.len()].copy_from_slice(to);
    if from.len() == 4 {
        write_ipv4_checksum(frame);
    }
    true
}

/// What a sender leaves of UDP that is to be cut into datagrams of this size.
pub(crate) fn udp_giant(size: u16) -> Offload {
    let mut bytes = Offload::partial(34, 6).to_bytes();
    bytes[1] = UDP_GIANT;
    bytes[2..4].copy_from_slice(&42u16.to_ne_bytes());
    bytes[4..6].copy_from_slice(&size.to_ne_bytes());
    Offload::from_bytes(bytes)
}

/// A frame as it was received.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Vec<u8>,
    pub(crate) wire_len: u32,
    pub(crate) nanos: u64,
    pub(crate) offload: Offload,
}

/// An interface of client or server, to see what comes and to send.
pub(crate) struct Monitor {
    pub(crate) port: Port,
    pub(crate) sender: Sender,
    buffer: ReceiveBuffer,
    batch: Batch,
}

impl Monitor {
    /// Opens an interface in the calling thread's namespace.
    pub(crate) fn open(interface: &str) -> Self {
        Self::with(&Options::new(interface, Mode::Monitor))
    }

    pub(crate) fn with(options: &Options) -> Self {
        let port = Port::open(options).expect("a port");
        let sender = port.sender();
        Self { port, sender, buffer: ReceiveBuffer::new(256), batch: Batch::new(256) }
    }

    /// Sends frames, all of them.
    pub(crate) fn send(&mut self, mut frames: &[Outgoing<'_>]) {
        let begin = Instant::now();
        while !frames.is_empty() {
            let sent = self.sender.send(frames).expect("sent");
            frames = &frames[sent.taken..];
            assert!(begin.elapsed() < PATIENCE, "{sent:?}");
        }
    }

    /// Sends frames with nothing left to be done, and numbers, all in order.
    pub(crate) fn send_numbered(&mut self, frames: &[Vec<u8>]) {
        let outgoing: Vec<_> =
            frames.iter().map(|bytes| Outgoing { bytes, offload: Offload::NONE }).collect();
        self.send(&outgoing);
    }

    /// What is there now.
    pub(crate) fn take(&mut self) -> Vec<Frame> {
        self.port.receive(&mut self.buffer);
        self.buffer.deliver(&mut self.batch);
        (0..self.batch.len())
            .map(|index| {
                let frame = self.batch.frames()[index];
                Frame {
                    bytes: self.batch.bytes(index).to_vec(),
                    wire_len: frame.wire_len,
                    nanos: frame.time.as_nanos(),
                    offload: self.batch.offload(index),
                }
            })
            .collect()
    }

    /// Waits until as many frames of a kind have come.
    pub(crate) fn collect(&mut self, is_wanted: impl Fn(&[u8]) -> bool, count: usize) -> Vec<Frame> {
        let begin = Instant::now();
        let mut wanted = Vec::new();
        while wanted.len() < count {
            let frames = self.take();
            let is_idle = frames.is_empty();
            wanted.extend(frames.into_iter().filter(|frame| is_wanted(&frame.bytes)));
            assert!(begin.elapsed() < PATIENCE, "{} of {count} frames came", wanted.len());
            if is_idle {
                wait(&[&self.port], &[], Some(Duration::from_millis(20))).expect("waited");
            }
        }
        wanted
    }

    /// All frames of a kind that come until none comes for so long, by the time that was waited: a halt of the machine is one wait.
    pub(crate) fn rest(&mut self, is_wanted: impl Fn(&[u8]) -> bool, quiet: Duration) -> Vec<Frame> {
        const WAIT: Duration = Duration::from_millis(5);
        let mut wanted = Vec::new();
        let mut in_vain = Duration::ZERO;
        while in_vain < quiet {
            let before = wanted.len();
            wanted.extend(self.take().into_iter().filter(|frame| is_wanted(&frame.bytes)));
            if wanted.len() > before {
                in_vain = Duration::ZERO;
            } else {
                wait(&[&self.port], &[], Some(WAIT)).expect("waited");
                in_vain += WAIT;
            }
        }
        wanted
    }
}
