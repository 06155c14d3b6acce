//! Link headers that only this walk knows: of 802.11, with and without what receivers add, of serial lines, and of logs of packet filters.
//!
//! What stands behind them is followed as anywhere else. Where it cannot be known whether there is IP, as in frames that are encrypted,
//! aggregated or fragments, the framing is unknown.

use super::{Next, Walk, is_length};
use crate::wire::ethernet;
use crate::wire::{be16, be32};
use crate::{LinkType, Reject};

/// Frames that Cisco's HDLC sends to one station and to all (RFC 1547 section 4.3.1).
const CISCO_UNICAST: u8 = 0x0f;
const CISCO_MULTICAST: u8 = 0x8f;
/// Cisco's discovery protocol, in the place of an EtherType.
const CISCO_DISCOVERY: u16 = 0x2000;
/// Unnumbered information.
const INFORMATION: u8 = 0x03;

impl<'a> Walk<'a> {
    /// Follows a frame from its link header on.
    pub(super) fn link(mut self, link: LinkType) -> Result<&'a [u8], Reject> {
        let next = match link {
            LinkType::PPP | LinkType::PPP_HDLC => self.serial()?,
            LinkType::PPP_ETHER => Next::Type(ethernet::TYPE_PPPOE_SESSION),
            LinkType::C_HDLC => self.cisco_hdlc()?,
            LinkType::FRELAY => return self.frame_relay(),
            LinkType::PFLOG => self.packet_filter_log()?,
            LinkType::NFLOG => self.netfilter_log()?,
            LinkType::IEEE802_11 => return self.wireless(false),
            LinkType::IEEE802_11_PRISM => return self.prism(),
            LinkType::IEEE802_11_RADIOTAP => return self.radiotap(),
            _ => return Err(Reject::LinkType),
        };
        self.follow(next)
    }

    /// PPP without framing, or framed as HDLC is (RFC 1662 section 3.1); or Cisco's HDLC, which its first byte tells.
    fn serial(&mut self) -> Result<Next, Reject> {
        match *self.rest {
            [CISCO_UNICAST | CISCO_MULTICAST, ..] => return self.cisco_hdlc(),
            [0xff, INFORMATION, ..] => self.skip(2)?,
            // No protocol's number begins so (RFC 1661 section 2); numbered frames do (RFC 1663).
            [0xff, _, ..] => return Err(Reject::UnknownFraming),
            [0xff] => return Err(Reject::LinkTruncated),
            _ => {}
        }
        self.count()?;
        Ok(Next::Ppp)
    }

    /// Address, control, EtherType.
    fn cisco_hdlc(&mut self) -> Result<Next, Reject> {
        self.count()?;
        let header: &[u8; 4] = self.take()?;
        match (header[0], be16!(header, 2)) {
            (CISCO_UNICAST | CISCO_MULTICAST, CISCO_DISCOVERY) => Err(Reject::NotIp),
            (CISCO_UNICAST | CISCO_MULTICAST, number) if !is_length(number) => Ok(Next::Type(number)),
            _ => Err(Reject::UnknownFraming),
        }
    }

    /// An address of two to four bytes (Q.922), then control and a network layer protocol's number (RFC 2427 section 3), or an EtherType, as
    /// Cisco writes it: what has one may also be a numbered frame, with IP in it.
    fn frame_relay(mut self) -> Result<&'a [u8], Reject> {
        const SNAP: u8 = 0x80;
        self.count()?;
        let mut len = 0;
        loop {
            let [byte] = *self.take()?;
            len += 1;
            match (byte & 1, len) {
                (1, 2..) => break,
                (1, _) | (_, 4) => return Err(Reject::UnknownFraming),
                _ => {}
            }
        }
        let [first] = *self.take()?;
        let [mut second] = *self.take()?;
        if first != INFORMATION {
            let number = u16::from_be_bytes([first, second]);
            if is_length(number) {
                return Err(Reject::UnknownFraming);
            }
            return match self.follow(Next::Type(number)) {
                Err(Reject::NotIp) => Err(Reject::UnknownFraming),
                found => found,
            };
        }
        // A byte that aligns the rest.
        if second == 0 {
            [second] = *self.take()?;
        }
        let next = match second {
            0xcc | 0x8e => Next::Ip,
            0xcf => Next::Ppp,
            SNAP => self.snap()?,
            // ES-IS, IS-IS.
            0x82 | 0x83 => return Err(Reject::NotIp),
            _ => return Err(Reject::UnknownFraming),
        };
        self.follow(next)
    }

    /// OpenBSD's pflog: its length without the padding to words, and the address family.
    fn packet_filter_log(&mut self) -> Result<Next, Reject> {
        /// Up to the first fields that all versions have.
        const LEAST: u8 = 45;
        let &[len, family, ..] = self.rest else { return Err(Reject::LinkTruncated) };
        if len < LEAST {
            return Err(Reject::UnknownFraming);
        }
        self.skip(usize::from(len).next_multiple_of(4))?;
        // AF_INET, and AF_INET6 of OpenBSD and NetBSD, FreeBSD, macOS.
        if matches!(family, 2 | 24 | 28 | 30) { Ok(Next::Ip) } else { Err(Reject::UnknownFraming) }
    }

    /// Linux' NFLOG: family, version, group; then attributes in the byte order of the host, the last of which is the packet.
    fn netfilter_log(&mut self) -> Result<Next, Reject> {
        const HEADER: usize = 4;
        const PAYLOAD: u8 = 9;
        let &[family, version, _, _] = self.take()?;
        // AF_INET, AF_INET6.
        if version != 0 || !matches!(family, 2 | 10) {
            return Err(Reject::UnknownFraming);
        }
        loop {
            // Numbers of attributes are small, which tells the byte order.
            let (number, len) = match *self.take()? {
                [low, high, number @ 1..=u8::MAX, 0] => (number, u16::from_le_bytes([low, high])),
                [high, low, 0, number @ 1..=u8::MAX] => (number, u16::from_be_bytes([high, low])),
                _ => return Err(Reject::UnknownFraming),
            };
            let len = usize::from(len).checked_sub(HEADER).ok_or(Reject::UnknownFraming)?;
            if number == PAYLOAD {
                // What follows but padding would be taken for a part of the packet.
                let behind = self.rest.len().saturating_sub(len);
                return if behind < 4 { Ok(Next::Ip) } else { Err(Reject::UnknownFraming) };
            }
            self.skip(len.next_multiple_of(4))?;
        }
    }

    /// Radiotap: a header whose length it says, and fields of which one tells whether the 802.11 header is padded.
    fn radiotap(mut self) -> Result<&'a [u8], Reject> {
        const MORE: u32 = 1 << 31;
        const TIME: u32 = 1;
        const FLAGS: u32 = 1 << 1;
        const IS_PADDED: u8 = 0x20;
        let start: &[u8; 8] = self.rest.first_chunk().ok_or(Reject::LinkTruncated)?;
        let len = usize::from(u16::from_le_bytes([start[2], start[3]]));
        if start[0] != 0 || len < start.len() {
            return Err(Reject::UnknownFraming);
        }
        let header = self.rest.get(..len).ok_or(Reject::LinkTruncated)?;
        self.skip(len)?;
        let mut words = header[4..].chunks_exact(4).map(|word| be32!(word, 0).swap_bytes());
        let present = words.next().unwrap_or(0);
        let others =
            if present & MORE == 0 { 0 } else { 1 + words.take_while(|word| word & MORE != 0).count() };
        let mut at = start.len() + others * 4;
        if present & TIME != 0 {
            at = at.next_multiple_of(8) + 8;
        }
        let flags = match present & FLAGS {
            0 => 0,
            _ => *header.get(at).ok_or(Reject::UnknownFraming)?,
        };
        self.wireless(flags & IS_PADDED != 0)
    }

    /// The header of Prism's drivers, in the byte order of the host: its number and its length.
    fn prism(mut self) -> Result<&'a [u8], Reject> {
        const LEN: u8 = 144;
        match *self.rest.first_chunk().ok_or(Reject::LinkTruncated)? {
            [0x44, 0, 0, 0, LEN, 0, 0, 0] | [0, 0, 0, 0x44, 0, 0, 0, LEN] => {}
            _ => return Err(Reject::UnknownFraming),
        }
        self.skip(LEN.into())?;
        self.wireless(false)
    }

    /// An 802.11 frame (IEEE 802.11-2020 section 9.2), whose header may be padded to words.
    fn wireless(mut self, is_padded: bool) -> Result<&'a [u8], Reject> {
        const MANAGEMENT: u8 = 0;
        const CONTROL: u8 = 1;
        const DATA: u8 = 2;
        const TO_AND_FROM_DS: u8 = 0x03;
        const PROTECTED: u8 = 0x40;
        const ORDER: u8 = 0x80;
        self.count()?;
        let frame = self.rest;
        let &[first, flags] = self.take()?;
        let (version, kind, subtype) = (first & 3, first >> 2 & 3, first >> 4);
        match (version, kind, subtype) {
            (0, MANAGEMENT | CONTROL, _) => return Err(Reject::NotIp),
            // Without data; one is reserved.
            (0, DATA, 4..=7 | 12 | 14 | 15) => return Err(Reject::NotIp),
            (0, DATA, 0..=3 | 8..=11) if flags & PROTECTED == 0 => {}
            _ => return Err(Reject::UnknownFraming),
        }
        let addresses: usize = if flags & TO_AND_FROM_DS == TO_AND_FROM_DS { 30 } else { 24 };
        let is_qos = subtype & 8 != 0;
        let mut len = addresses;
        if is_qos {
            // HT control is behind QoS control.
            len += if flags & ORDER != 0 { 6 } else { 2 };
        }
        if is_padded {
            len = len.next_multiple_of(4);
        }
        let header = frame.get(..len).ok_or(Reject::LinkTruncated)?;
        let fragment = header[22] & 0x0f;
        let is_aggregate = is_qos && header[addresses] & 0x80 != 0;
        if fragment != 0 || is_aggregate {
            return Err(Reject::UnknownFraming);
        }
        self.rest = &frame[len..];
        // What has no SNAP may be a mesh header, or Ethernet as some bridges sent it.
        let is_snap = self.rest.starts_with(&[0xaa, 0xaa]);
        match self.follow(Next::Llc) {
            Err(Reject::NotIp) if !is_snap => Err(Reject::UnknownFraming),
            found => found,
        }
    }
}
