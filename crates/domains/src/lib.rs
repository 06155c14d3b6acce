//! Lists of domain names, matched by label.
//!
//! A [`Domains`] is an immutable set of entries: names that are blocked or allowed, alone or with the names below. It is asked for a name,
//! as text or as it is on the wire, and gives the entry that decides: [`Match`]. A [`Builder`] makes it of entries, and of lists in the
//! formats of [`formats`].
//!
//! ```
//! use packetloom_domains::{Action, Builder, Entry, formats::ReadOptions};
//!
//! let mut builder = Builder::new();
//! builder.add(Entry::allow("good.evil.com", 0))?;
//! // The entries of a list have the numbers of their lines, here.
//! let report = builder.read("# a list\nevil.com\n*.tracker.example\n".as_bytes(), &ReadOptions::default(), |line| line)?;
//! assert_eq!((report.entries, report.refused_count()), (2, 0));
//!
//! let domains = builder.build();
//! let found = domains.lookup("www.EVIL.com.").expect("evil.com and all below");
//! assert_eq!((found.action, found.number, found.labels), (Action::Block, 2, 2));
//! assert_eq!(domains.lookup("a.good.evil.com").map(|found| found.action), Some(Action::Allow));
//! assert_eq!(domains.lookup("notevil.com"), None);
//! assert_eq!(domains.lookup_wire(b"\x07tracker\x07example\0"), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which entry decides
//!
//! Of the entries that match a name, the one with the highest [`Priority`]; of these, the one whose name has the most labels; of entries of
//! the same name, one that is for this name alone, then one that allows, then the first.
//!
//! # How it works
//!
//! A name and each of its ancestors are hashed with a secret key. A Bloom filter, which has the ancestors of all entries, too, says how many
//! labels from the right are worth looking at. Those are looked up in a table, the longest name first, and their bytes are compared: a hash
//! is never trusted. A table with more than 16 names in a bucket is made anew with another key ([`Domains::max_probes`]), so a lookup has a
//! bound whatever a list contains: 16 comparisons for each label, and a name of entries has 127 labels at most.
//!
//! A set takes about 15 bytes for each name beside the name itself.

mod builder;
mod filter;
pub mod formats;
mod hash;
mod memory;
mod name;
mod set;
mod short;
mod table;

pub use builder::{Action, AddError, Builder, Entry, Priority, Reach};
pub use name::NameError;
pub use set::{Domains, Match};

/// A host of HTTP without the port that it may have: `example.com` of `example.com:8080`. An address in brackets stays as it is.
pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.contains(':') => name,
        _ => host,
    }
}
