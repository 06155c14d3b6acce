//! The framings beyond the basic ones: what may stand between a link header and IP, stepped over header by header.
//!
//! The walk over basic framings (see [`is_basic`](super::is_basic)) is what common frames take. A frame that it does not
//! know comes here, and ends in one of four ways: IP is found, and the frame is judged as any other; the frame is of a protocol that is
//! known not to carry IP ([`Reject::NotIp`]); a header is cut ([`Reject::LinkTruncated`]); or nobody can say
//! ([`Reject::UnknownFraming`]), which a chain with an access list drops unless told otherwise.
//!
//! At most [`MAX_HEADERS`] headers are stepped over, Ethernet's among them, beside VLAN tags and MPLS labels, whose number only the
//! frame's end limits. PPPoE and PPP are one header, and so are LLC and SNAP; the control word of a pseudowire is none. A length field
//! of IEEE 802.3 is not looked at: receivers do not look at it either.
//!
//! What MPLS and bridged frames carry is not always written in the frame. Then there are two readings, and IP is taken only where one
//! of them finds it and the other one finds the same or leads nowhere. A frame is guessed at only once, so a hostile one costs two walks at most.

use crate::wire::ethernet::{self, Ethernet, MplsLabel, PppoeSession};
use crate::wire::link::{Loopback, Sll, Sll2};
use crate::wire::{be16, be32};
use crate::{LinkType, Reject};

mod links;

/// Headers that are stepped over beside VLAN tags and MPLS labels.
pub const MAX_HEADERS: u32 = 16;

/// EtherTypes of headers that are stepped over here, beside those of the basic framings.
mod types {
    /// A VLAN tag, as an early switch wrote it.
    pub(super) const VLAN_9300: u16 = 0x9300;
    /// LLC in frames that are too long for a length field (draft-ietf-isis-ext-eth-01).
    pub(super) const JUMBO_LLC: u16 = 0x8870;
    /// Cisco VN-Tag: 4 bytes.
    pub(super) const VN_TAG: u16 = 0x8926;
    /// IEEE 802.1BR E-Tag: 6 bytes.
    pub(super) const E_TAG: u16 = 0x893f;
    /// IEEE 802.1ah I-Tag: 4 bytes, then an Ethernet frame.
    pub(super) const I_TAG: u16 = 0x88e7;
    /// Distributed switch architecture with an EtherType (Marvell): 2 bytes 0, 4 bytes.
    pub(super) const EDSA: u16 = 0xdada;
    /// Cisco MetaData: version, length, an option and a security group tag.
    pub(super) const CISCO_METADATA: u16 = 0x8909;
    /// Transparent Ethernet bridging: an Ethernet frame.
    pub(super) const BRIDGING: u16 = 0x6558;
    /// HSR (IEC 62439-3): path, size and sequence number, 4 bytes.
    pub(super) const HSR: u16 = 0x892f;
    /// TRILL (RFC 6325 section 3): 6 bytes and options, then an Ethernet frame.
    pub(super) const TRILL: u16 = 0x22f3;
    /// Cisco FabricPath: 2 bytes, then an Ethernet frame.
    pub(super) const FABRIC_PATH: u16 = 0x8903;
    /// Network service header (RFC 8300).
    pub(super) const NSH: u16 = 0x894f;
    /// MACsec (IEEE 802.1AE): not stepped over, since what it carries is mostly encrypted.
    pub(super) const MACSEC: u16 = 0x88e5;
    /// Fibre Channel over Ethernet, which may carry IP (RFC 4338).
    pub(super) const FCOE: u16 = 0x8906;
    /// AppleTalk, which may carry IP (MacIP).
    pub(super) const APPLE_TALK: u16 = 0x809b;
}

/// Whether frames of an EtherType never carry IP, whatever follows; devices are told the same.
pub(crate) const fn is_never_ip(ethertype: u16) -> bool {
    matches!(
        ethertype,
        // ARP, wake-on-LAN, RARP, AppleTalk's ARP.
        0x0806 | 0x0842 | 0x8035 | 0x80f3
        // DECnet: MOP dump and load, MOP remote console, phase IV, LAT, diagnostics, LAVC.
        | 0x6001 | 0x6002 | 0x6003 | 0x6004 | 0x6005 | 0x6007
        // IPX.
        | 0x8137 | 0x8138
        // MSRP, L2-IS-IS, slow protocols (LACP), PPPoE discovery.
        | 0x22ea | 0x22f4 | 0x8809 | 0x8863
        // HomePlug, 802.1X, PROFINET, ATA over Ethernet, GOOSE and its management, sampled values.
        | 0x887b | 0x888e | 0x8892 | 0x88a2 | 0x88b8 | 0x88b9 | 0x88ba
        // 802.1X pre-authentication, LLDP, HomePlug AV, MRP of IEC 62439-2, E-LMI.
        | 0x88c7 | 0x88cc | 0x88e1 | 0x88e3 | 0x88ee
        // MVRP, MMRP, PTP, PRP's supervision, CFM and Y.1731, 802.11's own (TDLS), FIP, loopback test.
        | 0x88f5 | 0x88f6 | 0x88f7 | 0x88fb | 0x8902 | 0x890d | 0x8914 | 0x9000
    )
}

/// Whether the payload of an LLC service access point never is IP; both of a frame must be such. The lowest bit is none of the number.
const fn is_never_ip_sap(sap: u8) -> bool {
    // Null, management, SNA, spanning tree, BACnet, IPX, NetBIOS, LAN management, remote program load (two).
    matches!(sap & 0xfe, 0x00 | 0x02 | 0x04 | 0x42 | 0x82 | 0xe0 | 0xf0 | 0xf4 | 0xf8 | 0xfc)
}

/// Whether a protocol that an organisation numbers in SNAP never carries IP.
const fn is_never_ip_snap(organisation: u32, protocol: u16) -> bool {
    match organisation {
        // Cisco: PAgP, PVST+, VLAN bridge, UDLD, CDP, CGMP, VTP, DTP, UplinkFast.
        0x00_000c => {
            matches!(protocol, 0x0104 | 0x010b | 0x010c | 0x0111 | 0x2000 | 0x2001 | 0x2003 | 0x2004 | 0x200a)
        }
        // Spanning tree in a bridged frame (RFC 2684).
        0x00_80c2 => protocol == 0x000e,
        // Nortel's, Extreme's and Foundry's discovery.
        0x00_0081 => matches!(protocol, 0x01a1 | 0x01a2),
        0x00_e02b => protocol == 0x00bb,
        0x00_e052 => protocol == 0x2000,
        _ => false,
    }
}

/// Whether a PPP protocol never carries IP: network and link control protocols.
const fn is_never_ip_ppp(protocol: u16) -> bool {
    matches!(
        protocol,
        // OSINLCP, IPCP, ATCP, IPXCP, BCP, CDPCP, ECP, IPV6CP, CCP, MPLSCP.
        0x8023 | 0x8021 | 0x8029 | 0x802b | 0x8031 | 0x8207 | 0x8053 | 0x8057 | 0x80fd | 0x8281
        // LCP, PAP, LQR, CHAP, BAP, BACP, EAP.
        | 0xc021 | 0xc023 | 0xc025 | 0xc223 | 0xc02d | 0xc02b | 0xc227
    )
}

/// Whether an address family of BSD loopback never is IP: OSI, AppleTalk, IPX.
const fn is_never_ip_family(family: u32) -> bool {
    matches!(family, 7 | 16 | 23)
}

/// Whether a cooked header's protocol is no EtherType, by the type of its interface: Frame Relay, 802.11 (three), netlink.
const fn has_other_protocols(arphrd: u16) -> bool {
    matches!(arphrd, 770 | 801..=803 | 824)
}

/// What the bytes that come next are.
#[derive(Clone, Copy)]
enum Next {
    /// An Ethernet header.
    Ethernet,
    /// What an EtherType says, or LLC where it is a length.
    Type(u16),
    /// An LLC header.
    Llc,
    /// A PPP protocol number.
    Ppp,
    /// MPLS labels.
    Mpls,
    /// IPv4 or IPv6.
    Ip,
}

/// The captured bytes from the outermost IP header on, of a frame that is in none of the basic framings.
///
/// # Errors
///
/// [`Reject::NotIp`], [`Reject::LinkTruncated`], [`Reject::UnknownFraming`] or, of a link type that is not known,
/// [`Reject::LinkType`].
#[cold]
#[inline(never)]
pub(super) fn unwrap(link: LinkType, frame: &[u8]) -> Result<&[u8], Reject> {
    let walk = Walk { rest: frame, headers: 0, may_guess: true };
    match link {
        LinkType::ETHERNET => walk.follow(Next::Ethernet),
        LinkType::SLL => {
            let header: [u8; Sll::LEN] = *frame.first_chunk().ok_or(Reject::LinkTruncated)?;
            walk.cooked(Sll::LEN, be16!(header, 2), be16!(header, 14))
        }
        LinkType::SLL2 => {
            let header: [u8; Sll2::LEN] = *frame.first_chunk().ok_or(Reject::LinkTruncated)?;
            walk.cooked(Sll2::LEN, be16!(header, 8), be16!(header, 0))
        }
        LinkType::NULL | LinkType::LOOP => {
            let header = Loopback::new_checked(frame).ok_or(Reject::LinkTruncated)?;
            let is_known = is_never_ip_family(header.family(link == LinkType::LOOP));
            Err(if is_known { Reject::NotIp } else { Reject::UnknownFraming })
        }
        _ => walk.link(link),
    }
}

/// A walk over headers.
struct Walk<'a> {
    /// The bytes that come next.
    rest: &'a [u8],
    /// Headers so far, of those that are counted.
    headers: u32,
    /// Whether two readings may be tried.
    may_guess: bool,
}

impl<'a> Walk<'a> {
    /// The next header's bytes.
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Reject> {
        let (header, rest) = self.rest.split_first_chunk().ok_or(Reject::LinkTruncated)?;
        self.rest = rest;
        Ok(header)
    }

    /// Steps over bytes of which nothing matters.
    fn skip(&mut self, bytes: usize) -> Result<(), Reject> {
        self.rest = self.rest.get(bytes..).ok_or(Reject::LinkTruncated)?;
        Ok(())
    }

    /// Steps over a header of so many bytes.
    fn header(&mut self, bytes: usize, next: Next) -> Result<Next, Reject> {
        self.count()?;
        self.skip(bytes)?;
        Ok(next)
    }

    /// Steps over so many bytes to the EtherType behind them.
    fn tag(&mut self, bytes: usize) -> Result<Next, Reject> {
        self.skip(bytes)?;
        Ok(Next::Type(u16::from_be_bytes(*self.take()?)))
    }

    /// Follows a cooked header of so many bytes.
    fn cooked(mut self, bytes: usize, arphrd: u16, protocol: u16) -> Result<&'a [u8], Reject> {
        /// IPX without LLC.
        const NOVELL: u16 = 0x0001;
        const LLC: u16 = 0x0004;
        if has_other_protocols(arphrd) {
            return Err(Reject::UnknownFraming);
        }
        self.skip(bytes)?;
        match protocol {
            NOVELL => Err(Reject::NotIp),
            LLC => self.follow(Next::Llc),
            0..0x0600 => Err(Reject::UnknownFraming),
            _ => self.follow(Next::Type(protocol)),
        }
    }

    /// Counts a header that is to be stepped over.
    fn count(&mut self) -> Result<(), Reject> {
        self.headers += 1;
        if self.headers > MAX_HEADERS { Err(Reject::UnknownFraming) } else { Ok(()) }
    }

    /// Steps over headers to the first IP header.
    fn follow(mut self, mut next: Next) -> Result<&'a [u8], Reject> {
        loop {
            next = match next {
                Next::Ip => return Ok(self.rest),
                Next::Ethernet => self.ethernet()?,
                Next::Type(number) => self.ethertype(number)?,
                Next::Llc => self.llc()?,
                Next::Ppp => self.ppp()?,
                Next::Mpls => {
                    while !MplsLabel::new_checked(self.rest).ok_or(Reject::LinkTruncated)?.is_bottom() {
                        self.skip(MplsLabel::LEN)?;
                    }
                    self.skip(MplsLabel::LEN)?;
                    return self.pseudowire();
                }
            };
        }
    }

    fn ethernet(&mut self) -> Result<Next, Reject> {
        self.count()?;
        let header: &[u8; Ethernet::LEN] = self.take()?;
        let ethertype = be16!(header, 12);
        // Cisco ISL: what looks like LLC and SNAP is the rest of a header of 26 bytes.
        if is_length(ethertype) && matches!(header[..5], [0x01 | 0x03, 0, 0x0c, 0, 0]) {
            self.skip(12)?;
            // The type of the frame that follows.
            return if header[5] >> 4 == 0 { Ok(Next::Ethernet) } else { Err(Reject::UnknownFraming) };
        }
        Ok(Next::Type(ethertype))
    }

    /// What an EtherType says.
    fn ethertype(&mut self, number: u16) -> Result<Next, Reject> {
        match number {
            number if is_ip(number) => Ok(Next::Ip),
            number if is_vlan(number) => self.tag(2),
            number if is_length(number) => Ok(Next::Llc),
            ethernet::TYPE_MPLS | ethernet::TYPE_MPLS_MULTICAST => Ok(Next::Mpls),
            ethernet::TYPE_PPPOE_SESSION => {
                self.count()?;
                PppoeSession::new_checked(self.rest).ok_or(Reject::LinkTruncated)?;
                // The last two bytes are PPP's.
                self.skip(PppoeSession::LEN - 2)?;
                Ok(Next::Ppp)
            }
            types::JUMBO_LLC => Ok(Next::Llc),
            types::VN_TAG | types::HSR => {
                self.count()?;
                self.tag(4)
            }
            types::E_TAG | types::EDSA => {
                self.count()?;
                self.tag(6)
            }
            types::CISCO_METADATA => {
                self.count()?;
                match self.take::<6>()? {
                    // Version 1, one option.
                    [1, 1, ..] => self.tag(0),
                    _ => Err(Reject::UnknownFraming),
                }
            }
            types::BRIDGING => Ok(Next::Ethernet),
            types::I_TAG => self.header(4, Next::Ethernet),
            types::FABRIC_PATH => self.header(2, Next::Ethernet),
            types::TRILL => {
                self.count()?;
                let header: &[u8; 6] = self.take()?;
                // Options, in words: five bits across two bytes.
                self.skip(usize::from(be16!(header, 0) >> 6 & 0x1f) * 4)?;
                Ok(Next::Ethernet)
            }
            types::NSH => self.nsh(),
            types::FCOE => {
                // 14 bytes before the Fibre Channel header: R_CTL is its first byte, TYPE its ninth.
                let header: &[u8; 23] = self.take()?;
                let may_be_ip = header[14] >> 4 == 5 || header[22] == 5;
                Err(if may_be_ip { Reject::UnknownFraming } else { Reject::NotIp })
            }
            types::APPLE_TALK => {
                /// MacIP: IP in datagrams of AppleTalk.
                const MAC_IP: u8 = 22;
                let header: &[u8; 13] = self.take()?;
                Err(if header[12] == MAC_IP { Reject::UnknownFraming } else { Reject::NotIp })
            }
            number if is_never_ip(number) => Err(Reject::NotIp),
            _ => Err(Reject::UnknownFraming),
        }
    }

    /// Network service header (RFC 8300 section 2).
    fn nsh(&mut self) -> Result<Next, Reject> {
        self.count()?;
        let header: &[u8; 4] = self.take()?;
        let bytes = usize::from(header[1] & 0x3f) * 4;
        // Version 0, and room for the service path.
        if header[0] >> 6 != 0 || bytes < 8 {
            return Err(Reject::UnknownFraming);
        }
        self.skip(bytes - 4)?;
        match header[3] {
            1 | 2 => Ok(Next::Ip),
            3 => Ok(Next::Ethernet),
            4 => Ok(Next::Type(types::NSH)),
            5 => Ok(Next::Mpls),
            _ => Err(Reject::UnknownFraming),
        }
    }

    /// LLC (IEEE 802.2) and SNAP.
    fn llc(&mut self) -> Result<Next, Reject> {
        self.count()?;
        let [destination, source, control] = *self.take()?;
        // Unnumbered information, with or without the poll bit.
        let is_information = control & 0xef == 0x03;
        match (destination & 0xfe, source & 0xfe) {
            (SAP_SNAP, SAP_SNAP) if is_information => self.snap(),
            (SAP_IP, _) if is_information => Ok(Next::Ip),
            // No LLC at all, but IPX (IEEE 802.3 alone).
            _ if destination == 0xff && source == 0xff => Err(Reject::NotIp),
            (0xfe, 0xfe) if is_information => {
                // ES-IS and IS-IS. CLNP may carry IP.
                let [network] = *self.take()?;
                Err(if matches!(network, 0x82 | 0x83) { Reject::NotIp } else { Reject::UnknownFraming })
            }
            _ if is_never_ip_sap(destination) && is_never_ip_sap(source) => Err(Reject::NotIp),
            _ => Err(Reject::UnknownFraming),
        }
    }

    fn snap(&mut self) -> Result<Next, Reject> {
        let header: &[u8; 5] = self.take()?;
        let (organisation, protocol) = (be32!(header, 0) >> 8, be16!(header, 3));
        match organisation {
            // RFC 1042, IEEE 802.1H, Apple: an EtherType.
            0 | 0x00_00f8 | 0x08_0007 if !is_length(protocol) => Ok(Next::Type(protocol)),
            // Ethernet, with its checksum or without (RFC 2684 section 5.2): behind two bytes on ATM, and none on frame relay.
            0x00_80c2 if matches!(protocol, 0x0001 | 0x0007) => {
                let padded = self.rest.get(2..).map(|rest| (Next::Ethernet, rest));
                let packet = self.either([padded, Some((Next::Ethernet, self.rest))])?;
                self.rest = packet;
                Ok(Next::Ip)
            }
            _ if is_never_ip_snap(organisation, protocol) => Err(Reject::NotIp),
            _ => Err(Reject::UnknownFraming),
        }
    }

    /// A PPP protocol number, of one byte where that is odd (RFC 1661 section 6.5), and what follows it.
    fn ppp(&mut self) -> Result<Next, Reject> {
        let [first] = *self.take()?;
        let protocol = match first & 1 {
            1 => first.into(),
            _ => u16::from_be_bytes([first, self.take::<1>()?[0]]),
        };
        match protocol {
            0x0021 | 0x0057 => Ok(Next::Ip),
            0x0281 | 0x0283 => Ok(Next::Mpls),
            // Bridged Ethernet without a LAN's number (RFC 3518 section 4.3).
            0x0031 => match self.take::<2>()? {
                [flags, 1] if flags & 0x40 == 0 => Ok(Next::Ethernet),
                _ => Err(Reject::UnknownFraming),
            },
            _ if is_never_ip_ppp(protocol) => {
                // The packet that a rejection sends back has its protocol's number before it.
                let is_sent_back = match *self.rest {
                    [PROTOCOL_REJECT, _, _, _, high, low, ..] => {
                        !is_never_ip_ppp(u16::from_be_bytes([high, low]))
                    }
                    _ => false,
                };
                Err(if is_sent_back { Reject::UnknownFraming } else { Reject::NotIp })
            }
            _ => Err(Reject::UnknownFraming),
        }
    }

    /// What follows the last MPLS label. MPLS does not say what it carries: where the first nibble looks like IP's, it is IP (RFC 4928
    /// section 3); 0 may be a control word before Ethernet (RFC 4385, RFC 4448), 1 an associated channel (RFC 5586), and any
    /// of them the beginning of an Ethernet address.
    fn pseudowire(&self) -> Result<&'a [u8], Reject> {
        const CONTROL_WORD: usize = 4;
        let rest = self.rest;
        let ethernet = Some((Next::Ethernet, rest));
        match rest.first().ok_or(Reject::LinkTruncated)? >> 4 {
            4 | 6 => Ok(rest),
            0 => {
                let behind = rest.get(CONTROL_WORD..).map(|rest| (Next::Ethernet, rest));
                self.either([behind, ethernet])
            }
            1 => {
                let channel = rest.split_at_checked(CONTROL_WORD).and_then(|(header, rest)| match header {
                    [0x10, 0, 0, 0x21] => Some((Next::Type(ethernet::TYPE_IPV4), rest)),
                    [0x10, 0, 0, 0x57] => Some((Next::Type(ethernet::TYPE_IPV6), rest)),
                    _ => None,
                });
                self.either([channel, ethernet])
            }
            _ => self.either([ethernet, None]),
        }
    }

    /// The IP header that one of two readings finds, where the other one finds the same or leads nowhere.
    fn either(&self, readings: [Option<(Next, &'a [u8])>; 2]) -> Result<&'a [u8], Reject> {
        if !self.may_guess {
            return Err(Reject::UnknownFraming);
        }
        let read = |reading: Option<(Next, &'a [u8])>| {
            reading.map_or(Reading::Nowhere, |(next, rest)| self.read(next, rest))
        };
        match readings.map(read) {
            [Reading::Ip(packet), Reading::Nowhere] | [Reading::Nowhere, Reading::Ip(packet)] => Ok(packet),
            // Both end with the frame: with a VLAN tag, control word or not, it is the same packet.
            [Reading::Ip(packet), Reading::Ip(other)] if packet.len() == other.len() => Ok(packet),
            _ => Err(Reject::UnknownFraming),
        }
    }

    /// What is found where the bytes are read in one way.
    fn read(&self, next: Next, rest: &'a [u8]) -> Reading<'a> {
        let (number, inner) = match next {
            Next::Type(number) => (number, Some(rest)),
            _ => match rest.first_chunk::<{ Ethernet::LEN }>() {
                Some(header) => (be16!(header, 12), rest.get(Ethernet::LEN..)),
                None => return Reading::Nowhere,
            },
        };
        let inner = inner.unwrap_or_default();
        let version = inner.first().map(|first| first >> 4);
        let is_plausible = match number {
            ethernet::TYPE_IPV4 => version == Some(4),
            ethernet::TYPE_IPV6 => version == Some(6),
            _ => may_lead_to_ip(number, inner),
        };
        if !is_plausible {
            return Reading::Nowhere;
        }
        match (Walk { rest, headers: self.headers, may_guess: false }).follow(next) {
            Ok(packet) if matches!(packet.first().map(|first| first >> 4), Some(4 | 6)) => {
                Reading::Ip(packet)
            }
            _ => Reading::Doubt,
        }
    }
}

/// What one reading of a frame finds.
enum Reading<'a> {
    /// IP.
    Ip(&'a [u8]),
    /// Something that may carry IP.
    Doubt,
    /// Nothing that would carry IP: the frame was hardly meant so.
    Nowhere,
}

/// The code of LCP's Protocol-Reject (RFC 1661 section 5.7).
const PROTOCOL_REJECT: u8 = 8;
/// The service access point of SNAP.
const SAP_SNAP: u8 = 0xaa;
/// That of IP itself (RFC 948).
const SAP_IP: u8 = 0x06;

const fn is_ip(ethertype: u16) -> bool {
    matches!(ethertype, ethernet::TYPE_IPV4 | ethernet::TYPE_IPV6)
}

const fn is_vlan(ethertype: u16) -> bool {
    ethernet::is_vlan(ethertype) || ethertype == types::VLAN_9300
}

/// Whether what stands in an EtherType's place is a length: receivers take all below the first EtherType for one.
const fn is_length(ethertype: u16) -> bool {
    ethertype < 0x0600
}

/// Whether an EtherType or a length, and what follows it, is a header that may have IP behind it.
fn may_lead_to_ip(ethertype: u16, rest: &[u8]) -> bool {
    match ethertype {
        ethernet::TYPE_MPLS
        | ethernet::TYPE_MPLS_MULTICAST
        | ethernet::TYPE_PPPOE_SESSION
        | types::JUMBO_LLC
        | types::VN_TAG
        | types::E_TAG
        | types::I_TAG
        | types::EDSA
        | types::CISCO_METADATA
        | types::BRIDGING
        | types::HSR
        | types::TRILL
        | types::FABRIC_PATH
        | types::NSH
        | types::MACSEC => true,
        _ if is_length(ethertype) => {
            matches!(rest, [destination, ..] if matches!(destination & 0xfe, SAP_SNAP | SAP_IP))
        }
        _ => is_vlan(ethertype),
    }
}
