//! Header views, one file a layer: checked once when made, after that no accessor can panic.
//!
//! A view borrows a fixed-size array of the header's bytes, so the compiler sees that every accessor is in
//! bounds. `new_checked` returns `None` where the bytes do not hold the whole fixed header; what a header says
//! about what follows is for [`dissect()`](crate::dissect()) to judge.

pub mod ethernet;
pub mod ip;
pub mod link;
pub mod transport;

/// The first `N` bytes of `data`, if there are as many.
pub(crate) fn prefix<const N: usize>(data: &[u8]) -> Option<&[u8; N]> {
    data.first_chunk()
}

/// A big-endian 16-bit field of a header.
macro_rules! be16 {
    ($bytes:expr, $at:expr) => {
        u16::from_be_bytes([$bytes[$at], $bytes[$at + 1]])
    };
}

/// A big-endian 32-bit field of a header.
macro_rules! be32 {
    ($bytes:expr, $at:expr) => {
        u32::from_be_bytes([$bytes[$at], $bytes[$at + 1], $bytes[$at + 2], $bytes[$at + 3]])
    };
}

/// A big-endian 64-bit field of a header.
macro_rules! be64 {
    ($bytes:expr, $at:expr) => {
        u64::from(crate::wire::be32!($bytes, $at)) << 32 | u64::from(crate::wire::be32!($bytes, $at + 4))
    };
}

pub(crate) use {be16, be32, be64};
