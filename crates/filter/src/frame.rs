//! What tests read of a frame where its key does not have it.

use packetloom_packet::wire::ethernet::{self, VlanTag};
use packetloom_packet::wire::ip::{Ipv4, Ipv6};
use packetloom_packet::{Key, KeyBits, Layers, LinkType, MatchKey4, MatchKey6, Reject};

use crate::tree::Side;

/// A frame, and where its headers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) link: LinkType,
    /// The captured bytes.
    pub(crate) bytes: &'a [u8],
    /// Offset of the IP header; of no meaning where there is no key.
    pub(crate) network: usize,
    /// Offset of the transport header.
    pub(crate) transport: usize,
    /// Bytes up to the end of the IP packet; behind it is padding.
    pub(crate) end: usize,
}

/// Where the link header and VLAN tags have led.
struct Step {
    ethertype: u16,
    /// The tag that had it; none for the link header.
    vlan: Option<u16>,
    /// What follows begins here.
    rest: usize,
}

impl<'a> Frame<'a> {
    /// Of a packet with a key.
    pub(crate) fn new(link: LinkType, bytes: &'a [u8], layers: Layers, ip_bytes: u32) -> Self {
        let network = layers.network as usize;
        let end = bytes.len().min(network.saturating_add(ip_bytes as usize));
        Self { link, bytes, network, transport: layers.transport as usize, end }
    }

    /// Of a frame that has no key, with what there is of one: addresses and the protocol, if the fixed IP header was captured.
    pub(crate) fn without_key(link: LinkType, bytes: &'a [u8], reject: Reject) -> (Self, Option<Key>) {
        let frame = Self { link, bytes, network: bytes.len(), transport: bytes.len(), end: bytes.len() };
        let is_cut = matches!(
            reject,
            Reject::IpTruncated | Reject::IpMalformed | Reject::ExtensionChain | Reject::TransportTruncated
        );
        let found = if is_cut { frame.cut_packet() } else { None };
        match found {
            Some((key, network, header)) => {
                (Self { network, transport: network + header, ..frame }, Some(key))
            }
            None => (frame, None),
        }
    }

    /// What the fixed IP header says, where it is, and how long the header is.
    fn cut_packet(&self) -> Option<(Key, usize, usize)> {
        let (ethertype, network) = match self.steps().last() {
            Some(step) => (step.ethertype, step.rest),
            None if is_raw(self.link) => match self.bytes.first()? >> 4 {
                4 => (ethernet::TYPE_IPV4, 0),
                6 => (ethernet::TYPE_IPV6, 0),
                _ => return None,
            },
            None => return None,
        };
        let packet = &self.bytes[network..];
        match ethertype {
            ethernet::TYPE_IPV4 => {
                let header = Ipv4::new_checked(packet)?;
                let is_later = header.fragment_offset() > 0;
                let key = MatchKey4 {
                    source: header.source(),
                    destination: header.destination(),
                    protocol: header.protocol(),
                    bits: if is_later { KeyBits::LATER_FRAGMENT } else { KeyBits::default() },
                    ..MatchKey4::default()
                };
                Some((Key::V4(key), network, header.header_len()))
            }
            ethernet::TYPE_IPV6 => {
                let header = Ipv6::new_checked(packet)?;
                let key = MatchKey6 {
                    source: header.source(),
                    destination: header.destination(),
                    protocol: header.next_header(),
                    ..MatchKey6::default()
                };
                Some((Key::V6(key), network, Ipv6::LEN))
            }
            _ => None,
        }
    }

    /// The link header and VLAN tags, each with what it says that follows. None where the link has no EtherType.
    fn steps(&self) -> impl Iterator<Item = Step> {
        let bytes = self.bytes;
        let (at, len) = match self.link {
            LinkType::ETHERNET => (12, 14),
            LinkType::SLL => (14, 16),
            LinkType::SLL2 => (0, 20),
            _ => (0, usize::MAX),
        };
        let first = (bytes.len() >= len).then(|| Step {
            ethertype: u16::from_be_bytes([bytes[at], bytes[at + 1]]),
            vlan: None,
            rest: len,
        });
        std::iter::successors(first, move |step| {
            if !ethernet::is_vlan(step.ethertype) {
                return None;
            }
            let rest = bytes.get(step.rest..)?;
            let tag = VlanTag::new_checked(rest)?;
            let vlan = u16::from_be_bytes([rest[0], rest[1]]) & 0xfff;
            Some(Step { ethertype: tag.ethertype(), vlan: Some(vlan), rest: step.rest + VlanTag::LEN })
        })
    }

    pub(crate) fn has_ethertype(&self, ethertype: u16) -> bool {
        self.steps().any(|step| step.ethertype == ethertype)
    }

    /// Where what follows the EtherType begins.
    pub(crate) fn behind_ethertype(&self, ethertype: u16) -> Option<usize> {
        self.steps().find(|step| step.ethertype == ethertype).map(|step| step.rest)
    }

    pub(crate) fn has_vlan(&self, id: Option<u16>) -> bool {
        self.steps().any(|step| step.vlan.is_some_and(|vlan| id.is_none_or(|id| id == vlan)))
    }

    /// Destination and source address of Ethernet.
    fn macs(&self) -> Option<([u8; 6], [u8; 6])> {
        if self.link != LinkType::ETHERNET {
            return None;
        }
        let header: &[u8; 14] = self.bytes.first_chunk()?;
        Some((*header.first_chunk()?, *header[6..].first_chunk()?))
    }

    pub(crate) fn has_mac(&self, side: Side, address: [u8; 6]) -> bool {
        self.macs().is_some_and(|(destination, source)| side.holds(source == address, destination == address))
    }

    pub(crate) fn is_ether_multicast(&self) -> bool {
        self.macs().is_some_and(|(destination, _)| destination[0] & 1 == 1)
    }

    /// Whether an ARP or RARP message has such an address.
    pub(crate) fn has_arp(&self, ethertype: u16, side: Side, value: u32, mask: u32) -> bool {
        let Some(at) = self.behind_ethertype(ethertype) else { return false };
        // Of IPv4 over Ethernet (RFC 826): sender's and target's protocol address.
        let address = |offset| self.field(self.bytes.len(), at.checked_add(offset), 4);
        let holds = |offset| address(offset).is_some_and(|address| address & mask == value);
        side.holds(holds(14), holds(24))
    }

    /// Whether an IPv6 packet's first header is of this number, or the one behind a fragment header that is the first.
    pub(crate) fn has_first_header(&self, number: u8) -> bool {
        use packetloom_packet::protocol;
        let byte = |at| self.field(self.end, self.network.checked_add(at), 1).map(|byte| byte as u8);
        let first = byte(6);
        first == Some(number) || (first == Some(protocol::FRAGMENT) && byte(Ipv6::LEN) == Some(number))
    }

    /// A big-endian field of 1, 2 or 4 bytes, if it was captured before `end`.
    pub(crate) fn field(&self, end: usize, at: Option<usize>, size: u8) -> Option<u32> {
        let bytes = self.bytes.get(..end)?.get(at?..)?.get(..size.into())?;
        Some(bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
    }
}

fn is_raw(link: LinkType) -> bool {
    matches!(
        link,
        LinkType::RAW | LinkType::RAW_BSD | LinkType::RAW_OPENBSD | LinkType::IPV4 | LinkType::IPV6
    )
}
