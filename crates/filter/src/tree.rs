//! The syntax tree of a filter: what the text says, before it is made a program.
//!
//! Nodes stand in one list in post-order: operands come before what joins them, in the order of the text. So a filter of any length is
//! walked, compiled and dropped without recursion.

/// A node of the tree; operands are places in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A test of the packet.
    Test(Test),
    /// True where the operand is false.
    Not(u32),
    /// True where both are.
    And(u32, u32),
    /// True where one of them is.
    Or(u32, u32),
}

/// Which end of a packet a test looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source (`src`).
    Source,
    /// The destination (`dst`).
    Destination,
    /// One of them (`src or dst`, the default).
    Either,
    /// Both of them (`src and dst`).
    Both,
}

impl Side {
    /// What holds for the side, given what holds for both ends.
    #[inline]
    pub fn holds(self, source: bool, destination: bool) -> bool {
        match self {
            Self::Source => source,
            Self::Destination => destination,
            Self::Either => source | destination,
            Self::Both => source & destination,
        }
    }
}

/// A set of the protocols that have ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports(pub u8);

impl Transports {
    /// TCP alone.
    pub const TCP: Self = Self(1);
    /// UDP alone.
    pub const UDP: Self = Self(1 << 1);
    /// SCTP alone.
    pub const SCTP: Self = Self(1 << 2);
    /// All three.
    pub const ALL: Self = Self(7);

    /// Whether a protocol with ports is in the set.
    #[inline]
    pub fn contains(self, protocol: u8) -> bool {
        use packetloom_packet::protocol;
        let one = match protocol {
            protocol::TCP => Self::TCP,
            protocol::UDP => Self::UDP,
            protocol::SCTP => Self::SCTP,
            _ => return false,
        };
        self.0 & one.0 != 0
    }
}

/// One test of a packet. A test of what a packet does not have is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// An IPv4 packet.
    Ipv4,
    /// An IPv6 packet.
    Ipv6,
    /// An IP protocol number, in IPv4, IPv6 or both. Of an IPv6 packet that is what follows the extension headers; the number of an
    /// extension header itself is looked for in the first header alone and, as libpcap does, behind a fragment header that is the first.
    Protocol {
        /// The number.
        number: u8,
        /// Looked for in IPv4.
        ipv4: bool,
        /// Looked for in IPv6.
        ipv6: bool,
    },
    /// The frame's EtherType, or one behind its VLAN tags.
    EtherType(u16),
    /// An IPv4 address under a mask.
    Net4 {
        /// Where it is looked for.
        side: Side,
        /// The address, host order, no bit set outside of the mask.
        value: u32,
        /// The mask.
        mask: u32,
        /// In IPv4 packets.
        ip: bool,
        /// In ARP's sender and target protocol addresses.
        arp: bool,
        /// In RARP's.
        rarp: bool,
    },
    /// An IPv6 address under a mask; halves, the high one first.
    Net6 {
        /// Where it is looked for.
        side: Side,
        /// The address, no bit set outside of the mask.
        value: [u64; 2],
        /// The mask.
        mask: [u64; 2],
    },
    /// A range of ports; later fragments have none.
    Ports {
        /// Of packets of these protocols.
        transports: Transports,
        /// Where it is looked for.
        side: Side,
        /// The lowest one.
        low: u16,
        /// The highest one.
        high: u16,
    },
    /// An Ethernet address.
    Mac {
        /// Where it is looked for.
        side: Side,
        /// The address.
        address: [u8; 6],
    },
    /// The group bit of the Ethernet destination.
    EtherMulticast,
    /// An IPv4 destination of 224.0.0.0 or above.
    Ipv4Multicast,
    /// An IPv6 destination in ff00::/8.
    Ipv6Multicast,
    /// A VLAN tag, with this VLAN id if one is given; any tag of several.
    Vlan(Option<u16>),
    /// A range of the length on the wire.
    Length {
        /// The lowest one.
        low: u32,
        /// The highest one.
        high: u32,
    },
    /// Some of the TCP flags: `flags & mask == value`, or its opposite. False where the packet has no flags.
    TcpFlags {
        /// The flags looked at.
        mask: u8,
        /// Those of them that are set.
        value: u8,
        /// Whether they have to be equal, else unequal.
        equal: bool,
    },
    /// A comparison of two values. False where one of them cannot be had.
    Compare(Box<Comparison>),
}

/// A comparison of two values, each a program of a stack machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The left one.
    pub left: Vec<Op>,
    /// How they are compared, unsigned.
    pub relation: Relation,
    /// The right one.
    pub right: Vec<Op>,
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `=` or `==`.
    Equal,
    /// `!=`.
    NotEqual,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
}

impl Relation {
    /// Whether two numbers compare so.
    pub fn holds(self, left: u32, right: u32) -> bool {
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
        }
    }

    /// The one that holds for swapped operands.
    pub(crate) fn swapped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }
}

/// A step of a value's program: takes its operands from the stack and puts its result there. All numbers have 32 bits and wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A number.
    Number(u32),
    /// The frame's length on the wire.
    Length,
    /// Bytes of a header, big-endian, from the offset on that is taken from the stack.
    Load {
        /// Where the offset counts from.
        base: Base,
        /// 1, 2 or 4.
        size: u8,
    },
    /// The TCP flags, from the key: `tcp[13]`.
    TcpFlags,
    /// Type or code of an ICMP message, from the key: `icmp[0]`, `icmp[1]`.
    Icmp {
        /// Of ICMPv6.
        v6: bool,
        /// The code, else the type.
        code: bool,
    },
    /// The negative of a number.
    Negate,
    /// Two numbers become one.
    Binary(Binary),
}

/// What makes one number of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`: there is no result where the divisor is 0.
    Divide,
    /// `%`: likewise.
    Modulo,
    /// `&`
    And,
    /// `|`
    Or,
    /// `^`
    Xor,
    /// `<<`: 0 beyond 31 bits.
    ShiftLeft,
    /// `>>`: likewise.
    ShiftRight,
}

impl Binary {
    /// The result; none for a division by 0.
    pub fn apply(self, left: u32, right: u32) -> Option<u32> {
        Some(match self {
            Self::Add => left.wrapping_add(right),
            Self::Subtract => left.wrapping_sub(right),
            Self::Multiply => left.wrapping_mul(right),
            Self::Divide => left.checked_div(right)?,
            Self::Modulo => left.checked_rem(right)?,
            Self::And => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
            Self::ShiftLeft => left.checked_shl(right).unwrap_or(0),
            Self::ShiftRight => left.checked_shr(right).unwrap_or(0),
        })
    }
}

/// Where the offset of a load counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The beginning of the frame.
    Frame,
    /// The IPv4 header.
    Ipv4,
    /// The IPv6 header.
    Ipv6,
    /// What follows Ethernet's header and VLAN tags in frames of this EtherType (ARP, RARP).
    EtherType(u16),
    /// The transport header of packets of this protocol, in IPv4, IPv6 or both; not in later fragments.
    Transport {
        /// The IP protocol.
        number: u8,
        /// In IPv4.
        ipv4: bool,
        /// In IPv6.
        ipv6: bool,
    },
}
