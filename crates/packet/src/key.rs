//! Match keys and flow keys.

use std::num::NonZeroU16;

use bytemuck::{Pod, Zeroable};

/// What is known about a packet beyond its addresses and numbers.
///
/// A set of bits, one byte wide so that an IPv4 match key stays at 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct KeyBits(pub u8);

impl KeyBits {
    /// The port fields hold ports.
    pub const PORTS: Self = Self(1);
    /// The port fields hold an ICMP type (source) and code (destination).
    pub const ICMP: Self = Self(1 << 1);
    /// `tcp_flags` was captured.
    pub const TCP_FLAGS: Self = Self(1 << 2);
    /// The first fragment of several.
    pub const FIRST_FRAGMENT: Self = Self(1 << 3);
    /// A fragment other than the first: it has neither ports nor flags.
    pub const LATER_FRAGMENT: Self = Self(1 << 4);
    /// Not a fragment. Kept as a bit of its own so that "any of these" is one AND.
    pub const WHOLE: Self = Self(1 << 5);

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any bit of `other` is set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The bits of both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The fields of an IPv4 packet that rules look at: 16 bytes, host order.
///
/// For ICMP, `source_port` is the type and `destination_port` the code ([`KeyBits::ICMP`] is set).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct MatchKey4 {
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// Source port, or ICMP type, or 0.
    pub source_port: u16,
    /// Destination port, or ICMP code, or 0.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// The low eight TCP flags, CWR to FIN (RFC 9293 section 3.1), or 0.
    pub tcp_flags: u8,
    /// Which of the fields hold something, and fragmentation.
    pub bits: KeyBits,
    /// Keeps the size explicit.
    pub reserved: u8,
}

/// The fields of an IPv6 packet that rules look at: 40 bytes, host order; as [`MatchKey4`] but for the
/// addresses, each two 64-bit halves, the high one first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct MatchKey6 {
    /// Source address.
    pub source: [u64; 2],
    /// Destination address.
    pub destination: [u64; 2],
    /// Source port, or ICMPv6 type, or 0.
    pub source_port: u16,
    /// Destination port, or ICMPv6 code, or 0.
    pub destination_port: u16,
    /// IP protocol number: the one after the last extension header that was walked.
    pub protocol: u8,
    /// The low eight TCP flags, CWR to FIN, or 0.
    pub tcp_flags: u8,
    /// Which of the fields hold something, and fragmentation.
    pub bits: KeyBits,
    /// Keeps the size explicit.
    pub reserved: u8,
}

const _: () = assert!(size_of::<MatchKey4>() == 16 && size_of::<MatchKey6>() == 40);

impl MatchKey4 {
    /// The key that these words are in memory, the fields from the first on in their lower bits: two of them are written in fewer steps
    /// than eight fields.
    #[inline]
    pub(crate) fn of_words(words: [u64; 2]) -> Self {
        const { assert!(cfg!(target_endian = "little"), "big-endian processors are not supported") };
        bytemuck::cast(words)
    }
}

/// The two 64-bit halves of an IPv6 address, the high one first.
pub const fn halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

/// The IPv6 address of two 64-bit halves.
pub const fn join(halves: [u64; 2]) -> u128 {
    (halves[0] as u128) << 64 | halves[1] as u128
}

/// The number of a VLAN, 1 to 4095: a tag with the number 0 says a priority alone (IEEE 802.1Q, section 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct VlanId(NonZeroU16);

impl VlanId {
    /// The VLAN of a tag, by its low 12 bits.
    #[inline]
    pub fn new(tag: u16) -> Option<Self> {
        NonZeroU16::new(tag & 0xfff).map(Self)
    }

    /// Its number.
    #[inline]
    pub const fn number(self) -> u16 {
        self.0.get()
    }
}

/// A bidirectional flow: IP version, protocol and an unordered pair of (address, port): 40 bytes.
///
/// Endpoint `a` is the lower one, by address and then port. IPv4 addresses stand in the low 32 bits. Ports are
/// 0 for ICMP, for later fragments and for protocols without ports. The VLAN is part of some flows only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct FlowKey {
    /// Address of the lower endpoint.
    pub a: [u64; 2],
    /// Address of the higher endpoint.
    pub b: [u64; 2],
    /// Port of the lower endpoint.
    pub a_port: u16,
    /// Port of the higher endpoint.
    pub b_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// 4 or 6.
    pub version: u8,
    /// The VLAN of its packets, by their outer tag, where that is part of the flow and they are in one.
    pub vlan: Option<VlanId>,
}

const _: () = assert!(size_of::<FlowKey>() == 40);

impl FlowKey {
    /// The flow of an IPv4 packet, and whether the packet was sent by endpoint `a`.
    ///
    /// A packet whose two endpoints are the same counts as sent by `a`.
    #[inline]
    pub fn from_v4(key: &MatchKey4) -> (Self, bool) {
        let (source_port, destination_port) =
            if key.bits.contains(KeyBits::PORTS) { (key.source_port, key.destination_port) } else { (0, 0) };
        let source = (u64::from(key.source), source_port);
        let destination = (u64::from(key.destination), destination_port);
        let from_a = source <= destination;
        let (a, b) = if from_a { (source, destination) } else { (destination, source) };
        let key = Self {
            a: [0, a.0],
            b: [0, b.0],
            a_port: a.1,
            b_port: b.1,
            protocol: key.protocol,
            version: 4,
            vlan: None,
        };
        (key, from_a)
    }

    /// The flow of an IPv6 packet, and whether the packet was sent by endpoint `a`.
    #[inline]
    pub fn from_v6(key: &MatchKey6) -> (Self, bool) {
        let (source_port, destination_port) =
            if key.bits.contains(KeyBits::PORTS) { (key.source_port, key.destination_port) } else { (0, 0) };
        Self::between(6, key.protocol, (key.source, source_port), (key.destination, destination_port))
    }

    /// The flow between two endpoints, and whether `source` is endpoint `a`.
    #[inline]
    pub(crate) fn between(
        version: u8,
        protocol: u8,
        source: ([u64; 2], u16),
        destination: ([u64; 2], u16),
    ) -> (Self, bool) {
        let from_a = source <= destination;
        let (a, b) = if from_a { (source, destination) } else { (destination, source) };
        (Self::new(version, protocol, a, b), from_a)
    }

    /// The flow of endpoints whose order is known.
    #[inline]
    pub(crate) const fn new(version: u8, protocol: u8, a: ([u64; 2], u16), b: ([u64; 2], u16)) -> Self {
        Self { a: a.0, b: b.0, a_port: a.1, b_port: b.1, protocol, version, vlan: None }
    }

    /// The same value for both directions of a flow; keyed by `seed`, so that a sender who does not know it
    /// cannot aim flows at one bucket. The same in all VLANs.
    #[inline]
    pub fn hash(&self, seed: u64) -> u64 {
        // The 64x64 -> 128-bit multiply with its halves folded together mixes input bits into output bits, as in
        // the wyhash family; two rounds over three words, each keyed, and one over their result: where two hosts
        // have many flows only a port differs, and one multiply spreads so few bits unevenly for some seeds.
        #[inline]
        fn fold(x: u64, y: u64) -> u64 {
            let product = u128::from(x) * u128::from(y);
            (product as u64) ^ (product >> 64) as u64
        }
        let tail = u64::from(self.a_port)
            | u64::from(self.b_port) << 16
            | u64::from(self.protocol) << 32
            | u64::from(self.version) << 40;
        let mut hash = fold(self.a[1] ^ seed, self.b[1] ^ 0x9e37_79b9_7f4a_7c15);
        if self.version == 6 {
            hash ^= fold(self.a[0] ^ seed.rotate_left(17), self.b[0] ^ 0xd6e8_feb8_6659_fd93);
        }
        let hash = fold(hash ^ 0xa076_1d64_78bd_642f, tail ^ seed.rotate_left(32));
        fold(hash ^ seed, 0x9e37_79b9_7f4a_7c15)
    }
}
