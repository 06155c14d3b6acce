#![doc = include_str!("README.md")]

mod copies;
mod list;
mod order;
mod plan;
mod writer;

pub use copies::{Reader, View};
pub use list::{Change, ChangeError, Name, Place, Problem};
pub use plan::{Checked, check, serials_after};
pub use writer::{Figures, Writer};
