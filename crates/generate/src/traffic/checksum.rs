//! The internet checksum (RFC 1071), taken apart so that a payload's part can be kept.

/// The sum of `bytes` as big-endian 16-bit words, an odd last byte padded with 0, not folded.
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    // 2¹⁶ ≡ 1 (mod 2¹⁶ − 1), so 32-bit words may be added as they are.
    let whole: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    whole + u64::from(u32::from_be_bytes(last))
}

/// Brings a sum down to 16 bits.
#[inline]
pub(super) fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
        assert_eq!(fold(sum(&bytes[..7])), 0xdcfb);
        assert_eq!(fold(sum(&[])), 0);
        assert_eq!(fold(u64::MAX), 0xffff);
    }
}
