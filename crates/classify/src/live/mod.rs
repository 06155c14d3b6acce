#![doc = include_str!("README.md")]

mod copies;
mod list;
mod order;
mod pair;
mod plan;
mod writer;

pub use copies::{Reader, View};
pub use list::{Change, ChangeError, Name, Place, Problem, RuleList};
pub use plan::{Checked, check, serials_after};
pub use writer::{Figures, Writer};

/// What `pair` is made of, in place of which loom has its own.
mod sync {
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicUsize, Ordering};
    pub(super) use std::sync::{PoisonError, RwLock, RwLockReadGuard};
}
