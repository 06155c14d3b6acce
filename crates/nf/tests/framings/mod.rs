//! The framings beyond Ethernet II and VLAN tags, as bytes, written from their formats once more: they share no code with either parser.

/// Puts a header before what has an EtherType; says what EtherType, or length, that has then.
pub(crate) type Wrap = fn(u16, &[u8]) -> (u16, Vec<u8>);

/// Puts an IP packet of a version into something of an EtherType, or of a length.
pub(crate) type Wrap4Or6 = fn(u8, &[u8]) -> (u16, Vec<u8>);

fn length(bytes: &[u8]) -> u16 {
    bytes.len().min(1_500) as u16
}

fn with(ethertype: u16, bytes: Vec<u8>) -> (u16, Vec<u8>) {
    (ethertype, bytes)
}

fn tagged(outer: u16, tag: &[u8], ethertype: u16, rest: &[u8]) -> (u16, Vec<u8>) {
    with(outer, [tag, &ethertype.to_be_bytes(), rest].concat())
}

fn ethernet(first: u8, ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let addresses = [first, 0x10, 0x20, 0x30, 0x40, 0x50, 2, 0, 0xc0, 0xc1, 0xc2, 0xc3];
    [&addresses[..], &ethertype.to_be_bytes(), rest].concat()
}

fn tunnel(outer: u16, header: &[u8], ethertype: u16, rest: &[u8]) -> (u16, Vec<u8>) {
    with(outer, [header, &ethernet(2, ethertype, rest)].concat())
}

/// A length cannot stand in SNAP: what is of one goes there behind a VLAN tag.
fn snap(organisation: [u8; 3], ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let (ethertype, rest) = match ethertype {
        0..0x600 => tagged(0x8100, &[0, 1], ethertype, rest),
        _ => (ethertype, rest.to_vec()),
    };
    [&[0xaa, 0xaa, 3], &organisation[..], &ethertype.to_be_bytes(), &rest].concat()
}

fn llc(bytes: Vec<u8>) -> (u16, Vec<u8>) {
    (length(&bytes), bytes)
}

const LABELS: [u8; 8] = [0, 1, 0x20, 64, 0, 1, 0x31, 64];
const SESSION: [u8; 6] = [0x11, 0, 0, 1, 0, 9];

fn nsh(next: u8, rest: &[u8]) -> (u16, Vec<u8>) {
    with(0x894f, [&[0x0f, 0xc2, 2, next, 0, 0, 10, 255], rest].concat())
}

/// Headers that say what is behind them.
pub(crate) const SURE: &[(&str, Wrap)] = &[
    ("VLAN", |t, r| tagged(0x8100, &[0, 1], t, r)),
    ("802.1ad", |t, r| tagged(0x88a8, &[0, 2], t, r)),
    ("0x9300", |t, r| tagged(0x9300, &[0, 3], t, r)),
    ("SNAP", |t, r| llc(snap([0, 0, 0], t, r))),
    ("SNAP 802.1H", |t, r| llc(snap([0, 0, 0xf8], t, r))),
    ("SNAP Apple", |t, r| llc(snap([8, 0, 7], t, r))),
    ("jumbo SNAP", |t, r| with(0x8870, snap([0, 0, 0], t, r))),
    ("VN-Tag", |t, r| tagged(0x8926, &[0, 1, 0, 2], t, r)),
    ("E-Tag", |t, r| tagged(0x893f, &[0, 1, 0, 2, 0, 3], t, r)),
    ("EDSA", |t, r| tagged(0xdada, &[0, 0, 0x40, 0, 0, 1], t, r)),
    ("Cisco MetaData", |t, r| tagged(0x8909, &[1, 1, 0, 1, 0, 7], t, r)),
    ("HSR", |t, r| tagged(0x892f, &[0, 60, 0, 1], t, r)),
    ("I-Tag", |t, r| tunnel(0x88e7, &[0, 0, 0, 9], t, r)),
    ("bridging", |t, r| tunnel(0x6558, &[], t, r)),
    ("TRILL", |t, r| tunnel(0x22f3, &[0, 1, 0, 2, 0, 3], t, r)),
    ("TRILL, options", |t, r| tunnel(0x22f3, &[0, 0x41, 0, 2, 0, 3, 9, 9, 9, 9], t, r)),
    ("FabricPath", |t, r| tunnel(0x8903, &[0, 0x60], t, r)),
    ("NSH, Ethernet", |t, r| nsh(3, &ethernet(2, t, r))),
    ("NSH in NSH", |t, r| nsh(4, &nsh(3, &ethernet(2, t, r)).1)),
    ("PPPoE, bridged", |t, r| with(0x8864, [&SESSION, &[0, 0x31, 0, 1][..], &ethernet(2, t, r)].concat())),
];

/// Headers of which there are two readings.
pub(crate) const GUESSED: &[(&str, Wrap)] = &[
    ("control word", |t, r| with(0x8847, [&LABELS, &[0; 4][..], &ethernet(2, t, r)].concat())),
    ("no control word", |t, r| with(0x8847, [&LABELS[..], &ethernet(2, t, r)].concat())),
    ("no control word, another nibble", |t, r| with(0x8848, [&LABELS[..], &ethernet(0xa2, t, r)].concat())),
    ("no control word, that of a channel", |t, r| {
        with(0x8848, [&LABELS[..], &ethernet(0x12, t, r)].concat())
    }),
    ("NSH, control word", |t, r| nsh(5, &[&LABELS, &[0; 4][..], &ethernet(2, t, r)].concat())),
    ("bridged SNAP, padded", |t, r| {
        llc([&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7, 0, 0][..], &ethernet(2, t, r)].concat())
    }),
    ("bridged SNAP", |t, r| llc([&[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 1][..], &ethernet(2, t, r)].concat())),
];

/// What IP packets are in.
pub(crate) const INNERMOST: &[(&str, Wrap4Or6)] = &[
    ("its EtherType", |version, r| with(if version == 4 { 0x0800 } else { 0x86dd }, r.to_vec())),
    ("LLC", |_, r| llc([&[6, 6, 3][..], r].concat())),
    ("NSH", |version, r| nsh(if version == 4 { 1 } else { 2 }, r)),
    ("NSH, MPLS", |_, r| nsh(5, &[&LABELS[..], r].concat())),
    ("MPLS", |_, r| with(0x8847, [&LABELS[..], r].concat())),
    ("compressed PPP", |version, r| with(0x8864, [&SESSION, &[short(version)][..], r].concat())),
    ("PPP, MPLS", |_, r| with(0x8864, [&SESSION, &[2, 0x81][..], &LABELS, r].concat())),
    ("PPP, MPLS multicast", |_, r| with(0x8864, [&SESSION, &[2, 0x83][..], &LABELS, r].concat())),
];

/// The same where there are two readings.
pub(crate) const INNERMOST_GUESSED: &[(&str, Wrap4Or6)] =
    &[("channel", |version, r| with(0x8847, [&LABELS, &[0x10, 0, 0, short(version)][..], r].concat()))];

/// The PPP protocol number of one byte.
fn short(version: u8) -> u8 {
    if version == 4 { 0x21 } else { 0x57 }
}

/// What a link header is put before: the IP version, or what else has this EtherType (or a length, before LLC).
#[derive(Clone, Copy)]
pub(crate) struct Behind<'a> {
    pub(crate) ethertype: u16,
    pub(crate) rest: &'a [u8],
}

/// A link header and what is behind it, as a frame.
pub(crate) type OnLink = fn(Behind<'_>) -> Vec<u8>;

impl Behind<'_> {
    /// An EtherType, and what is behind it: a length has none, so it goes behind a VLAN tag.
    fn typed(self) -> Vec<u8> {
        let (ethertype, rest) = match self.ethertype {
            0..0x600 => tagged(0x8100, &[0, 1], self.ethertype, self.rest),
            _ => (self.ethertype, self.rest.to_vec()),
        };
        [&ethertype.to_be_bytes()[..], &rest].concat()
    }

    /// LLC, and SNAP where there is an EtherType.
    fn llc(self) -> Vec<u8> {
        match self.ethertype {
            0..0x600 => self.rest.to_vec(),
            _ => snap([0, 0, 0], self.ethertype, self.rest),
        }
    }

    /// A PPP protocol, and what is behind it: a bridged Ethernet frame where PPP has no number of its own.
    fn ppp(self, is_short: bool) -> Vec<u8> {
        let protocol = match self.ethertype {
            0x0800 => [0, 0x21],
            0x86dd => [0, 0x57],
            0x8847 => [0x02, 0x81],
            other => return [&[0, 0x31, 0, 1], &ethernet(2, other, self.rest)[..]].concat(),
        };
        let skip = usize::from(is_short && protocol[0] == 0);
        [&protocol[skip..], self.rest].concat()
    }

    /// An 802.11 frame with these first bytes, and so many bytes of header, in which the last ones are of quality of service and HT.
    fn wifi(self, control: [u8; 2], len: usize) -> Vec<u8> {
        let mut header = vec![0x10; len];
        header[..2].copy_from_slice(&control);
        for (at, address) in [(4, 1u8), (10, 2), (16, 3), (24, 4)] {
            if at + 6 <= len {
                header[at..at + 6].copy_from_slice(&[2, 0, 0, 0, 0, address]);
            }
        }
        // Sequence number, fragment 0.
        header[22..24].copy_from_slice(&[0x50, 0x12]);
        if control[0] & 0x80 != 0 {
            let quality = if control[1] & 3 == 3 { 30 } else { 24 };
            header[quality..quality + 2].copy_from_slice(&[5, 0]);
        }
        [header, self.llc()].concat()
    }

    /// Attributes of NFLOG before the packet, numbers in either byte order.
    fn nflog(self, is_big: bool) -> Vec<u8> {
        let family = if self.ethertype == 0x86dd { 10 } else { 2 };
        let number = |number: u16| if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
        let attribute = |kind: u16, value: &[u8]| {
            [
                &number(value.len() as u16 + 4)[..],
                &number(kind),
                value,
                &vec![0; value.len().wrapping_neg() % 4],
            ]
            .concat()
        };
        let [packet, prefix] = [attribute(1, &[8, 0, 3, 0]), attribute(10, b"log\0\0")];
        [&[family, 0, 0, 5], &packet[..], &prefix, &attribute(9, self.rest)].concat()
    }
}

/// Link headers, by hand.
pub(crate) const LINKS: &[(&str, u16, OnLink)] = &[
    ("PPP", 9, |b| b.ppp(false)),
    ("PPP with a short number", 9, |b| b.ppp(true)),
    ("PPP in HDLC", 9, |b| [vec![0xff, 3], b.ppp(false)].concat()),
    ("PPP in HDLC with a short number", 50, |b| [vec![0xff, 3], b.ppp(true)].concat()),
    ("Cisco HDLC for PPP", 50, |b| [vec![0x0f, 0], b.typed()].concat()),
    ("PPPoE", 51, |b| [SESSION.to_vec(), b.ppp(false)].concat()),
    ("Cisco HDLC", 104, |b| [vec![0x0f, 0], b.typed()].concat()),
    ("Cisco HDLC to all", 104, |b| [vec![0x8f, 0], b.typed()].concat()),
    ("802.11", 105, |b| b.wifi([0x08, 0x01], 24)),
    ("802.11, QoS", 105, |b| b.wifi([0x88, 0x02], 26)),
    ("802.11, four addresses", 105, |b| b.wifi([0x08, 0x03], 30)),
    ("802.11, four addresses and QoS", 105, |b| b.wifi([0x88, 0x03], 32)),
    ("802.11, QoS and HT", 105, |b| b.wifi([0x88, 0x81], 30)),
    ("Frame Relay", 107, |b| match b.ethertype {
        0x0800 => [&[0x18, 0x41, 3, 0xcc], b.rest].concat(),
        0x86dd => [&[0x18, 0x41, 3, 0x8e], b.rest].concat(),
        _ => [vec![0x18, 0x41], b.typed()].concat(),
    }),
    ("Frame Relay, SNAP", 107, |b| {
        let typed = b.typed();
        [&[0x18, 0x41, 3, 0, 0x80, 0, 0, 0], &typed[..]].concat()
    }),
    ("Frame Relay, Cisco", 107, |b| [vec![0x18, 0x41], b.typed()].concat()),
    ("Frame Relay, PPP", 107, |b| [vec![0x18, 0x41, 3, 0xcf], b.ppp(false)].concat()),
    ("pflog", 117, |b| {
        let family = if b.ethertype == 0x86dd { 24 } else { 2 };
        [&[61, family, 0, 0], &b"em0\0"[..], &[0; 56], b.rest].concat()
    }),
    ("pflog of OpenBSD 4.9", 117, |b| {
        let family = if b.ethertype == 0x86dd { 24 } else { 2 };
        [&[100, family, 0, 0], &b"em0\0"[..], &[0; 92], b.rest].concat()
    }),
    ("Prism", 119, |b| [vec![0x44, 0, 0, 0, 144, 0, 0, 0], vec![0; 136], b.wifi([0x08, 0x01], 24)].concat()),
    ("Prism, big-endian", 119, |b| {
        [vec![0, 0, 0, 0x44, 0, 0, 0, 144], vec![0; 136], b.wifi([0x88, 0x01], 26)].concat()
    }),
    ("radiotap", 127, |b| [vec![0, 0, 8, 0, 0, 0, 0, 0], b.wifi([0x88, 0x02], 26)].concat()),
    ("radiotap with a padded header", 127, |b| {
        // Two words of fields; time at 16, flags at 24, rate.
        let header = [0, 0, 26, 0, 0x07, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x20, 2];
        let frame = b.wifi([0x88, 0x02], 26);
        [&header[..], &frame[..26], &[0, 0], &frame[26..]].concat()
    }),
    ("NFLOG", 239, |b| b.nflog(false)),
    ("NFLOG, big-endian", 239, |b| b.nflog(true)),
];

/// Whether packets alone are behind a link header, whatever their framing was.
pub(crate) fn has_packets_alone(link: u16) -> bool {
    [117, 239].contains(&link)
}
