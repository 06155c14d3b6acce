//! Puts the VLAN tag back that the kernel takes out of a frame and hands over beside it.

/// Bytes of both MAC addresses: the tag stands behind them (IEEE 802.1Q).
const ADDRESSES: usize = 12;
/// The TPID that is meant where the kernel says none: 802.1Q.
pub(super) const TPID_8021Q: u16 = 0x8100;

/// A VLAN tag as it stands in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub(super) tpid: u16,
    /// Priority, drop eligibility and VLAN ID; all of it may be 0.
    pub(super) tci: u16,
}

impl Tag {
    /// Bytes of a tag.
    pub(super) const LEN: usize = 4;

    /// Whether a frame of which so many bytes were captured, without the tag, is long enough for it to be put back.
    pub(super) const fn fits(captured: usize) -> bool {
        captured >= ADDRESSES
    }
}

/// Writes a frame with its tag into `place`, which may be shorter than both. `copy` copies the frame's bytes from an offset on.
pub(super) fn write_tagged(place: &mut [u8], tag: Tag, mut copy: impl FnMut(usize, &mut [u8])) {
    let len = place.len().min(ADDRESSES);
    let (addresses, rest) = place.split_at_mut(len);
    copy(0, addresses);
    let bytes = [tag.tpid.to_be_bytes(), tag.tci.to_be_bytes()];
    let (tag, rest) = rest.split_at_mut(rest.len().min(Tag::LEN));
    tag.copy_from_slice(&bytes.as_flattened()[..tag.len()]);
    copy(ADDRESSES, rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_comes_behind_the_addresses() {
        let frame: Vec<u8> = (0..60).collect();
        let copy = |from: usize, to: &mut [u8]| {
            let len = to.len();
            to.copy_from_slice(&frame[from..from + len]);
        };
        for (tpid, tci, bytes) in [
            (0x8100, 0, [0x81, 0, 0, 0]),
            (0x88a8, 0xe064, [0x88, 0xa8, 0xe0, 0x64]),
            (0x8100, 5, [0x81, 0, 0, 5]),
        ] {
            let mut place = vec![0xee; 64];
            write_tagged(&mut place, Tag { tpid, tci }, copy);
            assert_eq!(place, [&frame[..12], &bytes, &frame[12..]].concat());
            // Snapped anywhere.
            for len in 0..64 {
                let mut cut = vec![0xee; len];
                write_tagged(&mut cut, Tag { tpid, tci }, copy);
                assert_eq!(cut, place[..len]);
            }
        }
        assert!(Tag::fits(12) && !Tag::fits(11));
    }
}
