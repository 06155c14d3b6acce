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
