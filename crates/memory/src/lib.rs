//! Memory for tables that are read at random: in huge pages ([`huge_pages`]), and brought into the cache before it is needed
//! ([`prefetch()`] and the others). And [`layout!`], which declares what lies in memory that kernels of devices share.

mod huge;
mod layout;
mod prefetch;

pub use self::huge::huge_pages;
pub use self::layout::{Field, LaidOut, Layout};
pub use self::prefetch::{prefetch, prefetch_address, prefetch_at, prefetch_l2, prefetch_l2_at};
