//! The walk over headers as text for kernels.

use super::framing;
use crate::wire::ethernet::{self, Ethernet, PppoeSession, VlanTag};
use crate::wire::ip::Extension;
use crate::wire::link::Loopback;
use crate::{KeyBits, LinkType, Reject, protocol};

/// The same walk as [`dissect()`](super::dissect()), in the dialect of Packetloom's kernels: types and functions, to be
/// put before the text of a kernel, with [`defines`].
///
/// `dissect(frame, have, len, link)` walks over the first `have` bytes of a frame of which `len` were captured. Its
/// answer is that of [`dissect()`](super::dissect()) for all that was captured; or [`HEADERS_BEYOND`], where a byte that
/// matters is not among the first, the IP packet does not say its length, or the framing is one that only software knows: none of
/// those that [`is_basic`](super::is_basic()) names, nor an EtherType that never carries IP.
pub const KERNEL: &str = include_str!("../dissect.kernel.c");

/// In place of an IP version: the frame has no match key.
pub const HEADERS_REJECTED: u32 = 0;
/// In place of an IP version: software must look at the frame.
pub const HEADERS_BEYOND: u32 = 1;
/// The key is of an IPv4 packet.
pub const HEADERS_V4: u32 = 4;
/// The key is of an IPv6 packet.
pub const HEADERS_V6: u32 = 6;

/// What [`KERNEL`] needs defined before it, names with values. They come from what the software's walk asks, so that
/// both know the same numbers.
pub fn defines() -> Vec<(String, String)> {
    let numbers = [
        ("HEADERS_REJECTED", HEADERS_REJECTED),
        ("HEADERS_BEYOND", HEADERS_BEYOND),
        ("HEADERS_V4", HEADERS_V4),
        ("HEADERS_V6", HEADERS_V6),
        ("LINK_NULL", LinkType::NULL.0.into()),
        ("LINK_ETHERNET", LinkType::ETHERNET.0.into()),
        ("LINK_RAW_BSD", LinkType::RAW_BSD.0.into()),
        ("LINK_RAW_OPENBSD", LinkType::RAW_OPENBSD.0.into()),
        ("LINK_RAW", LinkType::RAW.0.into()),
        ("LINK_LOOP", LinkType::LOOP.0.into()),
        ("LINK_SLL", LinkType::SLL.0.into()),
        ("LINK_IPV4", LinkType::IPV4.0.into()),
        ("LINK_IPV6", LinkType::IPV6.0.into()),
        ("LINK_SLL2", LinkType::SLL2.0.into()),
        ("LINK_NONE", LinkType::NONE.0.into()),
        ("ETHERTYPE_IPV4", ethernet::TYPE_IPV4.into()),
        ("ETHERTYPE_IPV6", ethernet::TYPE_IPV6.into()),
        ("ETHERTYPE_MPLS", ethernet::TYPE_MPLS.into()),
        ("ETHERTYPE_MPLS_MULTICAST", ethernet::TYPE_MPLS_MULTICAST.into()),
        ("ETHERTYPE_PPPOE_SESSION", ethernet::TYPE_PPPOE_SESSION.into()),
        ("PROTOCOL_TCP", protocol::TCP.into()),
        ("PROTOCOL_FRAGMENT", protocol::FRAGMENT.into()),
        ("PROTOCOL_AH", protocol::AH.into()),
        ("KEY_PORTS", KeyBits::PORTS.0.into()),
        ("KEY_ICMP", KeyBits::ICMP.0.into()),
        ("KEY_TCP_FLAGS", KeyBits::TCP_FLAGS.0.into()),
        ("KEY_FIRST_FRAGMENT", KeyBits::FIRST_FRAGMENT.0.into()),
        ("KEY_LATER_FRAGMENT", KeyBits::LATER_FRAGMENT.0.into()),
        ("KEY_WHOLE", KeyBits::WHOLE.0.into()),
    ];
    let numbers = numbers.into_iter().map(|(name, number)| (name.into(), format!("{number}u")));
    let reject = |reject: Reject| {
        (format!("REJECT_{}", reject.name().to_uppercase()), format!("{}u", reject.number()))
    };
    let is_ppp_ip = |number: &u16| {
        let [high, low] = number.to_be_bytes();
        PppoeSession::new_checked(&[0, 0, 0, 0, 0, 0, high, low]).is_some_and(PppoeSession::carries_ip)
    };
    let is_family_ip = |number: &u16| {
        let bytes = u32::from(*number).to_be_bytes();
        Loopback::new_checked(&bytes).is_some_and(|header| header.carries_ip(true))
    };
    let protocols = |is_one: fn(u8) -> bool| (0..=u8::MAX).filter(move |&number| is_one(number));
    let questions = [
        one_of("HEADERS_IS_NEVER_IP", (0..=u16::MAX).filter(|&number| framing::is_never_ip(number))),
        one_of("HEADERS_IS_LINK_BEYOND", LinkType::BEYOND_KERNELS.into_iter().map(|link| link.0)),
        one_of("HEADERS_IS_VLAN", (0..=u16::MAX).filter(|&number| ethernet::is_vlan(number))),
        one_of("HEADERS_IS_PPP_IP", (0..=u16::MAX).filter(is_ppp_ip)),
        one_of("HEADERS_IS_FAMILY_IP", (0..=u16::MAX).filter(is_family_ip)),
        one_of("HEADERS_IS_WALKED", protocols(Extension::is_walked)),
        one_of("HEADERS_HAS_PORTS", protocols(protocol::has_ports)),
        one_of("HEADERS_HAS_TYPE_AND_CODE", protocols(protocol::has_type_and_code)),
    ];
    numbers.chain(Reject::ALL.map(reject)).chain(questions).collect()
}

/// Whether kernels know that a frame, which is in no basic framing, does not carry IP.
pub(super) fn is_never_ip(link: LinkType, data: &[u8]) -> bool {
    let Some(header) = Ethernet::new_checked(data).filter(|_| link == LinkType::ETHERNET) else {
        return false;
    };
    let (mut ethertype, mut rest) = (header.ethertype(), &data[Ethernet::LEN..]);
    while let Some(tag) = VlanTag::new_checked(rest).filter(|_| ethernet::is_vlan(ethertype)) {
        (ethertype, rest) = (tag.ethertype(), &rest[VlanTag::LEN..]);
    }
    framing::is_never_ip(ethertype)
}

/// A macro that tells whether a number is one of these.
fn one_of<T: std::fmt::Display>(name: &str, numbers: impl Iterator<Item = T>) -> (String, String) {
    let terms: Vec<_> = numbers.map(|number| format!("(x) == {number}u")).collect();
    (format!("{name}(x)"), format!("({})", terms.join(" || ")))
}
