//! Frames cut anywhere, and bytes that are no frames.

use packetloom_packet::{Headers, Key, KeyBits, LinkType, Reject, dissect};
use proptest::prelude::*;

use crate::support::*;

/// The parts of a key that no cut may change, and those that a cut may take away.
fn parts(key: Key) -> ([u64; 4], u8, KeyBits, (u16, u16), u8) {
    match key {
        Key::V4(k) => {
            let addresses = [0, k.source.into(), 0, k.destination.into()];
            (addresses, k.protocol, k.bits, (k.source_port, k.destination_port), k.tcp_flags)
        }
        Key::V6(k) => {
            let addresses = [k.source[0], k.source[1], k.destination[0], k.destination[1]];
            (addresses, k.protocol, k.bits, (k.source_port, k.destination_port), k.tcp_flags)
        }
    }
}

/// Whether `cut` says the same as `whole`, but for what stands in bytes that were cut off.
fn agrees(cut: Headers, whole: Headers) -> bool {
    let ((addresses, protocol, bits, ports, flags), whole_parts) = (parts(cut.key), parts(whole.key));
    let (whole_bits, whole_ports, whole_flags) = (whole_parts.2, whole_parts.3, whole_parts.4);
    let lost = KeyBits(whole_bits.0 & !bits.0);
    let may_be_lost = KeyBits::TCP_FLAGS.with(KeyBits::ICMP);
    let ports_known = bits.intersects(KeyBits::PORTS.with(KeyBits::ICMP));
    cut.ip_bytes == whole.ip_bytes
        && (addresses, protocol) == (whole_parts.0, whole_parts.1)
        && whole_bits.contains(bits)
        && may_be_lost.contains(lost)
        && ports == if ports_known { whole_ports } else { (0, 0) }
        && flags == if bits.contains(KeyBits::TCP_FLAGS) { whole_flags } else { 0 }
}

#[test]
fn a_cut_frame_has_the_same_key_or_none() {
    for (name, link, header) in carriers() {
        for packet in packets() {
            let frame = [&header[..], &packet].concat();
            let wire_len = frame.len() as u32;
            let whole = dissect(link, &frame, wire_len).expect(name);
            let mut has_key = false;
            for cut in 0..=frame.len() {
                match dissect(link, &frame[..cut], wire_len) {
                    Ok(headers) => {
                        assert!(agrees(headers, whole), "{name} cut at {cut}: {headers:?}, whole: {whole:?}");
                        has_key = true;
                    }
                    Err(reject) => {
                        let cuts = [
                            Reject::LinkTruncated,
                            Reject::IpTruncated,
                            Reject::ExtensionChain,
                            Reject::TransportTruncated,
                        ];
                        assert!(cuts.contains(&reject), "{name} cut at {cut}: {reject:?}");
                        // More bytes never take a key away.
                        assert!(!has_key, "{name} cut at {cut}: {reject:?} after a key");
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        link in prop_oneof![proptest::sample::select(carriers()).prop_map(|(_, link, _)| link), any::<u16>().prop_map(LinkType)],
        data in proptest::collection::vec(any::<u8>(), 0..200),
        wire_len in any::<u32>(),
    ) {
        let _ = dissect(link, &data, wire_len);
    }

    #[test]
    fn damaged_frames_never_panic(
        carrier in proptest::sample::select(carriers()),
        packet in proptest::sample::select(packets()),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        wire_len in any::<u32>(),
    ) {
        let (_, link, header) = carrier;
        let mut frame = [header, packet].concat();
        for (index, byte) in damage {
            let at = index.index(frame.len());
            frame[at] = byte;
        }
        if let Ok(headers) = dissect(link, &frame, wire_len) {
            let least = if matches!(headers.key, Key::V4(_)) { 20 } else { 40 };
            prop_assert!(headers.ip_bytes >= least);
        }
    }
}
