//! What a reader notices beside frames: faults that end the reading, and oddities that do not.

use std::collections::BTreeMap;
use std::fmt;

use packetloom_packet::LinkType;

/// Link types that a message names at most.
const NAMED: usize = 5;

/// Why reading ends at a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The byte-order magic of a section header, read as little-endian.
    Magic(u32),
    /// Length of a block that cannot be.
    BlockLength(u32),
    /// Length of a block that must be seen whole and is too long for that.
    LongBlock(u32),
    /// A block of this name has a body of so many bytes; it takes this many at least.
    ShortBlock(&'static str, usize, usize),
    /// One interface more than a section may have.
    Interfaces(usize),
    /// Captured length of a pcap record, and the most that is believed.
    Captured(u32, u32),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(
                f,
                "the section header's byte-order magic is {magic:#010x}; expected 0x1a2b3c4d in either byte order"
            ),
            Self::BlockLength(len) => {
                write!(f, "a block's length is {len}; expected a multiple of 4 that is 12 or more")
            }
            Self::LongBlock(len) => write!(f, "a block's length is {len}; expected 16 MiB at most"),
            Self::ShortBlock(name, len, least) => {
                write!(f, "{name} block has {len} bytes between its lengths; expected {least} or more")
            }
            Self::Interfaces(most) => write!(f, "a section describes more than {most} interfaces"),
            Self::Captured(len, most) => {
                write!(f, "a record's captured length is {len}; expected {most} at most")
            }
        }
    }
}

/// Oddities of a capture that do not end its reading. Every frame they are about was given to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Frames of each link type that cannot be parsed, by the number that the capture gives.
    pub unsupported: BTreeMap<u32, u64>,
    /// Packet blocks that name an interface which their section does not describe.
    pub undefined: Option<Undefined>,
    /// Packet blocks that claim more captured bytes than they hold.
    pub overlong: Option<Overlong>,
}

/// Packet blocks of pcapng that name an interface which their section does not describe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undefined {
    /// How many.
    pub frames: u64,
    /// The interface that the first of them names; a simple packet block means interface 0.
    pub interface: u32,
    /// Interfaces that the section had described until then.
    pub described: usize,
    /// Offset of the first of them in the (decompressed) file.
    pub offset: u64,
}

/// Packet blocks of pcapng that claim more captured bytes than they hold. Their frames end with the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlong {
    /// How many.
    pub frames: u64,
    /// Bytes that the first of them claims.
    pub claimed: u32,
    /// Bytes that it holds.
    pub held: u32,
    /// Its offset in the (decompressed) file.
    pub offset: u64,
}

impl Findings {
    pub(super) fn add_unsupported(&mut self, number: u32, frames: u64) {
        *self.unsupported.entry(number).or_default() += frames;
    }

    pub(super) fn add_undefined(&mut self, interface: u32, described: usize, offset: u64) {
        let first = Undefined { frames: 0, interface, described, offset };
        self.undefined.get_or_insert(first).frames += 1;
    }

    pub(super) fn add_overlong(&mut self, claimed: u32, held: u32, offset: u64) {
        self.overlong.get_or_insert(Overlong { frames: 0, claimed, held, offset }).frames += 1;
    }

    /// What the user should be told, a sentence each; nothing where nothing is odd.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(Undefined { frames, interface, described, offset }) = self.undefined {
            let described = match described {
                0 => "none".into(),
                1 => "interface 0 only".into(),
                more => format!("interfaces 0 to {} only", more - 1),
            };
            warnings.push(format!(
                "{} an interface that the section does not describe, first interface {interface} at byte {offset}, where {described} is \
                 described; without a link type they are not parsed and count as undefined_interface, for which a chain's malformed policy holds",
                count(frames, "packet block names", "packet blocks name"),
            ));
        }
        if !self.unsupported.is_empty() {
            warnings.push(self.unsupported_link_types());
        }
        if let Some(Overlong { frames, claimed, held, offset }) = self.overlong {
            warnings.push(format!(
                "{} more captured bytes than there are, first {claimed} of {held} at byte {offset}: these frames end with their block",
                count(frames, "packet block claims", "packet blocks claim"),
            ));
        }
        warnings
    }

    fn unsupported_link_types(&self) -> String {
        let named = |number: u32| {
            let name = u16::try_from(number).ok().and_then(|number| LinkType(number).name());
            name.map_or_else(|| number.to_string(), |name| format!("{number} ({name})"))
        };
        let list = |parts: Vec<String>| parts.join(", ");
        let total = self.unsupported.values().sum();
        let types = match self.unsupported.iter().next() {
            Some((&number, _)) if self.unsupported.len() == 1 => format!("link type {}", named(number)),
            _ => {
                // The most frequent first.
                let mut types: Vec<_> =
                    self.unsupported.iter().map(|(&number, &frames)| (frames, number)).collect();
                types.sort_by_key(|&(frames, number)| (std::cmp::Reverse(frames), number));
                let others = types.len().saturating_sub(NAMED);
                let mut parts: Vec<_> = types
                    .iter()
                    .take(NAMED)
                    .map(|&(frames, number)| format!("{}: {frames}", named(number)))
                    .collect();
                if others > 0 {
                    parts.push(format!("and {others} more"));
                }
                format!("link types {}", list(parts))
            }
        };
        let supported = LinkType::SUPPORTED.iter().map(|link| named(link.0.into())).collect();
        format!(
            "{} of {types} cannot be parsed and count as unsupported_link_type, for which a chain's unknown_framing policy holds; supported: {}",
            count(total, "frame", "frames"),
            list(supported)
        )
    }
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
