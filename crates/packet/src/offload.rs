//! What a sender has left for the interface to do to a frame: finish a checksum, cut a giant into segments.

/// The transport checksum is still to be finished (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
const NEEDS_CHECKSUM: u8 = 1;
/// The transport checksum was verified by who received it (`VIRTIO_NET_HDR_F_DATA_VALID`).
const CHECKSUM_VALID: u8 = 2;
/// Not a giant (`VIRTIO_NET_HDR_GSO_NONE`).
const GSO_NONE: u8 = 0;
/// TCP in IPv4 and in IPv6 (`VIRTIO_NET_HDR_GSO_TCPV4`, `_TCPV6`), and a bit that may stand beside (`VIRTIO_NET_HDR_GSO_ECN`).
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_ECN: u8 = 0x80;
/// Where TCP's header length stands, and the length of UDP's header.
const TCP_OFFSET: usize = 12;
const UDP_HEADER: usize = 8;
/// Where the checksum stands in an SCTP packet (RFC 9260 section 3.1).
const SCTP_CHECKSUM: u16 = 8;
/// The longest transport header before the payload of a giant: TCP's with all options.
const LONGEST_TRANSPORT_HEADER: u16 = 60;

/// The work that is left on a frame: the fields of the kernel's `struct virtio_net_hdr`, 10 bytes.
///
/// A local sender on a virtual link leaves only the sum over the pseudo header in the checksum field, and hands over "giants" of up to 64 KiB
/// that are to be cut into segments. Positions count from the first byte of the frame, VLAN tags included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offload {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum_start: u16,
    checksum_offset: u16,
}

impl Offload {
    /// Bytes of the header in front of a frame.
    pub const LEN: usize = 10;
    /// Nothing is left to be done.
    pub const NONE: Self =
        Self { flags: 0, gso_type: 0, header_len: 0, gso_size: 0, checksum_start: 0, checksum_offset: 0 };

    /// A partial checksum: it covers the frame from `start` on and stands `offset` bytes after that.
    pub const fn partial(start: u16, offset: u16) -> Self {
        Self { flags: NEEDS_CHECKSUM, checksum_start: start, checksum_offset: offset, ..Self::NONE }
    }

    /// From a `struct virtio_net_hdr` in the byte order of this machine, as packet sockets have it.
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [flags, gso_type, h0, h1, s0, s1, c0, c1, o0, o1] = bytes;
        Self {
            flags,
            gso_type,
            header_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([s0, s1]),
            checksum_start: u16::from_ne_bytes([c0, c1]),
            checksum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    /// The `struct virtio_net_hdr` to put in front of the frame.
    pub const fn to_bytes(self) -> [u8; Self::LEN] {
        let [h0, h1] = self.header_len.to_ne_bytes();
        let [s0, s1] = self.gso_size.to_ne_bytes();
        let [c0, c1] = self.checksum_start.to_ne_bytes();
        let [o0, o1] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, s0, s1, c0, c1, o0, o1]
    }

    /// Whether the checksum field holds only the sum over the pseudo header.
    pub const fn needs_checksum(self) -> bool {
        self.flags & NEEDS_CHECKSUM != 0
    }

    /// Whether the kernel has verified the checksum.
    pub const fn is_checksum_valid(self) -> bool {
        self.flags & CHECKSUM_VALID != 0
    }

    /// Whether the frame is a giant that must be cut into segments before it goes to a wire.
    pub const fn is_giant(self) -> bool {
        self.gso_type != GSO_NONE
    }

    /// Frames that one is on the wire: the segments of a giant, which begins with `frame` and has `wire_len` bytes.
    pub fn segments(self, frame: &[u8], wire_len: u32) -> u32 {
        if !self.is_giant() || self.gso_size == 0 {
            return 1;
        }
        let payload = (wire_len as usize).saturating_sub(self.headers(frame));
        (payload.div_ceil(usize::from(self.gso_size)) as u32).max(1)
    }

    /// Bytes of the longest segment of a giant that begins with `frame`, link header and tags included; of another frame all of it.
    pub fn longest_segment(self, frame: &[u8]) -> usize {
        match self.is_giant() && self.gso_size > 0 {
            true => frame.len().min(self.headers(frame) + usize::from(self.gso_size)),
            false => frame.len(),
        }
    }

    /// Bytes of the headers that each segment of a giant has.
    fn headers(self, frame: &[u8]) -> usize {
        let transport = self.checksum_start as usize;
        let header = match self.gso_type & !GSO_ECN {
            GSO_TCP4 | GSO_TCP6 => {
                frame.get(transport + TCP_OFFSET).map_or(0, |byte| usize::from(byte >> 4) * 4)
            }
            _ => UDP_HEADER,
        };
        transport + header
    }

    /// Payload bytes of each segment of a giant.
    pub const fn segment_size(self) -> u16 {
        self.gso_size
    }

    /// Where the bytes begin that the checksum covers: the transport header.
    pub const fn checksum_start(self) -> usize {
        self.checksum_start as usize
    }

    /// Where the checksum field stands in the frame.
    pub const fn checksum_at(self) -> usize {
        self.checksum_start as usize + self.checksum_offset as usize
    }

    /// Whether a partial checksum may be SCTP's, by where it stands in its header.
    pub const fn is_at_sctp_checksum(self) -> bool {
        self.checksum_offset == SCTP_CHECKSUM
    }

    /// Says whether the checksum is still to be finished; where it stands is kept.
    pub const fn set_needs_checksum(&mut self, needs: bool) {
        self.flags = if needs { NEEDS_CHECKSUM } else { 0 };
    }

    /// As it is after `bytes` bytes were inserted before the network header.
    pub const fn shifted(mut self, bytes: u16) -> Self {
        if self.needs_checksum() {
            self.checksum_start = self.checksum_start.saturating_add(bytes);
        }
        if self.header_len != 0 {
            self.header_len = self.header_len.saturating_add(bytes);
        }
        self
    }

    /// As it should be sent: the kernel says as `header_len` how many bytes were in one piece, and would ask for as many in one piece again,
    /// the whole giant perhaps. Those of the headers are enough.
    pub const fn trimmed(mut self) -> Self {
        let headers = self.checksum_start.saturating_add(LONGEST_TRANSPORT_HEADER);
        if self.needs_checksum() && self.header_len > headers {
            self.header_len = headers;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Field by field against the layout in the kernel's `virtio_net.h`, as the system's C types have it.
    #[test]
    fn bytes_are_laid_out_as_the_kernel_has_them() {
        let mut bytes = [0; Offload::LEN];
        bytes[0] = 1; // flags
        bytes[1] = 4; // gso_type: TCPV6
        bytes[2..4].copy_from_slice(&86u16.to_ne_bytes()); // hdr_len
        bytes[4..6].copy_from_slice(&1_440u16.to_ne_bytes()); // gso_size
        bytes[6..8].copy_from_slice(&54u16.to_ne_bytes()); // csum_start
        bytes[8..10].copy_from_slice(&16u16.to_ne_bytes()); // csum_offset
        let offload = Offload::from_bytes(bytes);
        assert!(offload.needs_checksum() && offload.is_giant() && !offload.is_checksum_valid());
        assert_eq!(offload.segment_size(), 1_440);
        assert_eq!((offload.checksum_start(), offload.checksum_at()), (54, 70));
        assert_eq!(offload.to_bytes(), bytes);
        assert_eq!(Offload::from_bytes([0; 10]), Offload::NONE);
        assert_eq!(Offload::partial(34, 16).to_bytes()[..2], [1, 0]);
    }

    #[test]
    fn a_tag_shifts_the_checksum_and_the_headers() {
        let giant = Offload { header_len: 66, gso_type: 1, gso_size: 1_448, ..Offload::partial(34, 16) };
        let shifted = giant.shifted(4);
        assert_eq!((shifted.checksum_start(), shifted.checksum_at(), shifted.header_len), (38, 54, 70));
        assert_eq!(Offload::NONE.shifted(4), Offload::NONE);
    }

    #[test]
    fn a_giant_counts_for_its_segments() {
        let mut frame = [0; 66];
        frame[34 + TCP_OFFSET] = 8 << 4;
        let giant = Offload { gso_type: GSO_TCP4 | GSO_ECN, gso_size: 1_448, ..Offload::partial(34, 16) };
        for (payload, segments) in [(0, 1), (1, 1), (1_448, 1), (1_449, 2), (65_160, 45)] {
            assert_eq!(giant.segments(&frame, 66 + payload), segments, "{payload}");
        }
        let udp = Offload { gso_type: 5, gso_size: 1_000, ..Offload::partial(34, 6) };
        assert_eq!(udp.segments(&frame, 42 + 2_500), 3);
        let long = [&frame[..], &[0; 4_000]].concat();
        assert_eq!((giant.longest_segment(&long), giant.longest_segment(&frame)), (66 + 1_448, 66));
        assert_eq!((udp.longest_segment(&long), Offload::NONE.longest_segment(&long)), (1_042, 4_066));
        assert_eq!(Offload::NONE.segments(&frame, 9_000), 1);
        assert_eq!(giant.segments(&[], 1_400), 1, "cut before its header");
    }

    #[test]
    fn a_giant_in_one_piece_asks_for_its_headers_only() {
        let whole = Offload { header_len: 65_000, gso_type: 1, gso_size: 1_448, ..Offload::partial(34, 16) };
        assert_eq!(whole.trimmed().header_len, 94);
        let split = Offload { header_len: 66, ..whole };
        assert_eq!(split.trimmed(), split);
    }
}
