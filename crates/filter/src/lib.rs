//! Packet filters in tcpdump's language, compiled to tests of header keys.
//!
//! [`Filter::parse`] reads a subset of the language of pcap-filter(7); `docs/filters.md` lists it, and where its meaning differs from
//! libpcap's. A filter runs on packets that were [parsed](Batch::parse) before: most tests read the 16 or 40 bytes of a packet's key, and
//! only what a key does not have (Ethernet addresses, VLAN tags, indexed bytes) is read from the frame.
//!
//! A test of what a packet does not have is false, and so its negation is true.
//!
//! ```
//! # use packetloom_filter::Filter;
//! let filter = Filter::parse("tcp port 443 and net 10.0.0.0/8")?;
//! let error = Filter::parse("tpc port 443").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "column 1: \"tpc\" is not a word of the filter language; did you mean \"tcp\"?"
//! );
//! # Ok::<(), packetloom_filter::Error>(())
//! ```

mod error;
mod flow;
mod frame;
mod lex;
mod names;
mod parse;
mod program;
pub mod tree;

use std::fmt;
use std::str::FromStr;

use packetloom_packet::batch::Parsed;
use packetloom_packet::dissect::dissect_with_layers;
use packetloom_packet::wire::ethernet;
use packetloom_packet::{Batch, Key, LinkType, Reject};

pub use error::Error;
pub use flow::FlowFilter;

use frame::Frame;
use program::{KeyRef, Packet, Program};
use tree::Node;

/// Bytes that the text of a filter may have.
pub const MAX_TEXT: usize = 65_536;

const ETHERTYPE_IPV4: u16 = ethernet::TYPE_IPV4;
const ETHERTYPE_IPV6: u16 = ethernet::TYPE_IPV6;
/// ARP (RFC 826) and RARP (RFC 903).
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_RARP: u16 = 0x8035;

/// A compiled filter.
#[derive(Clone, Debug)]
pub struct Filter {
    text: Box<str>,
    nodes: Vec<Node>,
    program: Program,
}

impl Filter {
    /// Reads a filter of up to [`MAX_TEXT`] bytes. One of blanks alone matches every frame.
    ///
    /// # Errors
    ///
    /// The first mistake, with its place, or what of the language is not supported.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_TEXT {
            let message =
                format!("a filter of {} bytes is too long; expected at most {MAX_TEXT}", text.len());
            return Err(Error::new(text, 0, "", message));
        }
        let nodes = parse::parse(text)?;
        Ok(Self { text: text.into(), program: Program::new(&nodes), nodes })
    }

    /// The text that it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its syntax tree, in post-order: the last node is the root; none in a filter that matches everything.
    pub fn tree(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether a frame matches that is in no batch: walks its headers first. `bytes` are the captured ones, `wire_len` those on the wire.
    pub fn matches(&self, link: LinkType, bytes: &[u8], wire_len: u32) -> bool {
        match dissect_with_layers(link, bytes, wire_len) {
            Ok((headers, layers)) => {
                let packet = Alone { frame: Frame::new(link, bytes, layers, headers.ip_bytes), wire_len };
                self.program.run(key_ref(Some(&headers.key)), &packet)
            }
            Err(reject) => self.matches_without_key(link, bytes, wire_len, reject),
        }
    }

    /// Whether a frame of a parsed batch matches: its key with the rewrites so far, its bytes without. False where there is no such frame.
    pub fn matches_in(&self, batch: &Batch, index: usize) -> bool {
        batch.parsed().get(index).is_some_and(|&parsed| self.matches_parsed(batch, index, parsed))
    }

    /// Appends the places of all frames of a parsed batch that match, in order: what [`Batch::gather`] takes.
    pub fn select(&self, batch: &Batch, matched: &mut Vec<u32>) {
        let parsed = batch.parsed();
        // Each place is written; those of frames that do not match are written over.
        let begin = matched.len();
        matched.resize(begin + parsed.len(), 0);
        let places = &mut matched[begin..];
        let mut len = 0;
        if batch.is_common() {
            for (index, key) in batch.v4().keys.iter().enumerate() {
                places[len] = index as u32;
                let packet = InBatch { batch, index, ip_bytes: &batch.v4().bytes[index] };
                len += usize::from(self.program.run(KeyRef::V4(key), &packet));
            }
        } else {
            for (index, &parsed) in parsed.iter().enumerate() {
                places[len] = index as u32;
                len += usize::from(self.matches_parsed(batch, index, parsed));
            }
        }
        matched.truncate(begin + len);
    }

    #[inline]
    fn matches_parsed(&self, batch: &Batch, index: usize, parsed: Parsed) -> bool {
        let (v4, v6) = (batch.v4(), batch.v6());
        let (key, ip_bytes) = match parsed {
            Parsed::V4(at) => (KeyRef::V4(&v4.keys[at as usize]), &v4.bytes[at as usize]),
            Parsed::V6(at) => (KeyRef::V6(&v6.keys[at as usize]), &v6.bytes[at as usize]),
            Parsed::Rejected(reject) => {
                let frame = &batch.frames()[index];
                return self.matches_without_key(frame.link, batch.bytes(index), frame.wire_len, reject);
            }
        };
        self.program.run(key, &InBatch { batch, index, ip_bytes })
    }

    #[cold]
    fn matches_without_key(&self, link: LinkType, bytes: &[u8], wire_len: u32, reject: Reject) -> bool {
        let (frame, key) = Frame::without_key(link, bytes, reject);
        self.program.run(key_ref(key.as_ref()), &Alone { frame, wire_len })
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn key_ref(key: Option<&Key>) -> KeyRef<'_> {
    match key {
        Some(Key::V4(key)) => KeyRef::V4(key),
        Some(Key::V6(key)) => KeyRef::V6(key),
        None => KeyRef::None,
    }
}

/// A packet of a batch, which has a key.
struct InBatch<'a> {
    batch: &'a Batch,
    index: usize,
    ip_bytes: &'a u32,
}

impl Packet for InBatch<'_> {
    #[inline]
    fn wire_len(&self) -> u32 {
        self.batch.frames()[self.index].wire_len
    }

    fn frame(&self) -> Frame<'_> {
        let link = self.batch.frames()[self.index].link;
        let bytes = self.batch.bytes(self.index);
        match self.batch.layers(self.index) {
            Some(layers) => Frame::new(link, bytes, layers, *self.ip_bytes),
            None => Frame::without_key(link, bytes, Reject::NotIp).0,
        }
    }
}

/// A frame that is looked at by itself.
struct Alone<'a> {
    frame: Frame<'a>,
    wire_len: u32,
}

impl Packet for Alone<'_> {
    fn wire_len(&self) -> u32 {
        self.wire_len
    }

    fn frame(&self) -> Frame<'_> {
        self.frame
    }
}
