//! Reports of flow records: the keys that flows have most of, and packets, bytes and flows by time.
//!
//! - [`Top`] counts what a [`TopSpec`] says, such as `source/bytes`: exactly up to a bound of distinct keys, beyond it with an error that
//!   its output states.
//! - [`Series`] counts by intervals what a [`SeriesSpec`] says, such as `1m/protocol`.
//! - [`Reports`] are several of them, and their output as text, JSON ([`schema`]) and SVG.
//!
//! Both count *uniflows*: each direction of a record in which there were packets is a flow of its own, whose source is the sender of that
//! direction. These are the flows that a NetFlow collector receives, so that the sums are those of `nfdump -s`. Bytes are IP bytes.
//!
//! There is no I/O here. Workers may count apart, and [merge](Reports::merge) at the end.

mod counts;
mod error;
mod json;
mod key;
mod reports;
pub mod schema;
mod series;
mod svg;
mod table;
mod text;
mod time;
mod top;

use packetloom_export::fields::Way;
use packetloom_packet::{FlowRecord, HalfFlow};

pub use counts::{Counts, Measure};
pub use error::Error;
pub use key::Key;
pub use reports::{Format, Reports};
pub use series::{Bounds, Line, Series, SeriesSpec};
pub use top::{Row, Top, TopSpec};

/// The directions of a record in which there were packets. The first one is never empty.
fn ways(record: &FlowRecord) -> impl Iterator<Item = (Way, &HalfFlow)> {
    let reverse = (record.reverse.packets > 0).then_some((Way::Reverse, &record.reverse));
    std::iter::once((Way::Forward, &record.forward)).chain(reverse)
}
