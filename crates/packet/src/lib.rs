//! Frames, header views, keys and batches: the ground floor of Packetloom.
//!
//! A frame goes through this crate once: [`dissect()`] walks its headers and yields the match key that
//! every function reads, or the [`Reject`] that says why it has none. Views in [`wire`] check their
//! length when they are made; after that no accessor can panic.
//!
//! All integers in keys are in host order; all times are nanoseconds since the Unix epoch.

pub mod batch;
pub mod dissect;
pub mod dscp;
pub mod flow;
pub mod key;
pub mod link;
pub mod offload;
pub mod protocol;
pub mod record;
pub mod reject;
pub mod rewrite;
pub mod time;
pub mod verdict;
pub mod wire;

pub use packetloom_memory::prefetch_at;

pub use batch::{Arena, Batch, FrameRef, PortNames};
pub use dissect::{Connection, Headers, Key, Layers, Message, Role, dissect};
pub use dscp::Dscp;
pub use flow::{Details, EndReason, FlowRecord, HalfFlow, More, NAMES_MAX, NameKind};
pub use key::{FlowKey, KeyBits, MatchKey4, MatchKey6, VlanId};
pub use link::LinkType;
pub use offload::Offload;
pub use record::{Fragment, PacketRecord};
pub use reject::Reject;
pub use rewrite::{Address, End, Rewrite};
pub use time::{Timestamp, date};
pub use verdict::{DropReason, Verdict};
