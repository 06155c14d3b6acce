//! What can go wrong at the edge of the program.

use std::io;

/// An input or output that failed; the text names the file or the interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a file failed.
    #[error("{path}: {}", plain(.source))]
    Io {
        /// The file, or "standard input" or "standard output".
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be opened or made.
    #[error("{path}: {}; expected {expected}", plain(.source))]
    Open {
        /// The file, or "standard input" or "standard output".
        path: String,
        /// What it should be.
        expected: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An output that is to be one file after another, and cannot be.
    #[error("{path}: {found}, which cannot be rotated; expected the name of a file")]
    NotRotated {
        /// The output.
        path: String,
        /// What it is.
        found: &'static str,
    },
    /// The file holds nothing.
    #[error("{path}: empty; expected a pcap or pcapng capture")]
    Empty {
        /// The file.
        path: String,
    },
    /// The file does not begin like a capture.
    #[error(
        "{path}: not a capture: it begins with {found}; expected pcap or pcapng, plain or in gzip, xz or zstd"
    )]
    NotACapture {
        /// The file.
        path: String,
        /// The first bytes in hexadecimal.
        found: String,
        /// More of them.
        head: Vec<u8>,
    },
    /// The file ends within the header that says how to read it.
    #[error("{path}: cut within its {format} file header")]
    HeaderCut {
        /// The file.
        path: String,
        /// "pcap" or "pcapng".
        format: &'static str,
    },
    /// The file header is there, and something in it is wrong.
    #[error("{path}: {reason}")]
    BadHeader {
        /// The file.
        path: String,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// A folder has no captures in it.
    #[error(
        "{path}: a folder without captures; expected pcap or pcapng files in it, plain or in gzip, xz or zstd"
    )]
    NoCaptures {
        /// The folder.
        path: String,
    },
    /// Nothing has a name that matches a pattern.
    #[error(
        "{pattern}: nothing has such a name; expected captures, folders of captures, or a pattern that matches some"
    )]
    NoMatch {
        /// The pattern.
        pattern: String,
    },
    /// Something that looks like a pattern is none.
    #[error("{pattern}: neither a file nor a pattern: {reason}; expected *, ? and [...] for parts of names")]
    BadPattern {
        /// What was given.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// One capture under two names.
    #[error("{first} and {second} are one file; expected each capture once")]
    CaptureTwice {
        /// A name.
        first: String,
        /// The other one.
        second: String,
    },
    /// Several captures are opened twice: to find out which of them begins first, and to be read.
    #[error(
        "{path}: one of several captures, and no regular file; expected regular files, or this one alone"
    )]
    OneOfSeveral {
        /// What cannot be opened twice.
        path: String,
    },
    /// A frame without a link type cannot be written to a pcap file, which has one for all frames.
    #[error(
        "{path}: a frame that passes names an undefined interface and has no link type, without which a pcap file cannot hold it; \
         expected malformed = \"drop\" with a sink capture"
    )]
    NoLinkType {
        /// The file to be written.
        path: String,
    },
    /// A pcap file has one link type for all its frames.
    #[error(
        "{path}: a pcap file holds frames of one link type; this one has {first}, and a frame of link type {other} is to be written"
    )]
    MixedLinkTypes {
        /// The file to be written.
        path: String,
        /// Link type of the frames so far.
        first: u16,
        /// Link type of the frame that does not fit.
        other: u16,
    },
    /// There is no network interface of this name.
    #[error("interface \"{interface}\" does not exist; present: {present}")]
    NoInterface {
        /// The name that was asked for.
        interface: String,
        /// The names there are.
        present: String,
    },
    /// The process may not do something with an interface.
    #[error("{interface}: not permitted to {action}; run as root, or give the process {capability}")]
    NotPermitted {
        /// The interface.
        interface: String,
        /// What was to be done.
        action: &'static str,
        /// The capability that it takes (capabilities(7)).
        capability: &'static str,
    },
    /// A system call on an interface failed.
    #[error("{interface}: cannot {action}: {source}")]
    Interface {
        /// The interface.
        interface: String,
        /// What was to be done.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An interface whose frames begin with an unknown header.
    #[error("{interface}: hardware type {hardware}; expected {expected}")]
    HardwareType {
        /// The interface.
        interface: String,
        /// Its hardware type (`ARPHRD_*`).
        hardware: u16,
        /// What it may be.
        expected: &'static str,
    },
    /// The kernel could not be kept from handling the packets of an interface too.
    #[error("{interface}: cannot keep the kernel from handling its packets: {reason}")]
    Guard {
        /// The interface.
        interface: String,
        /// What is in the way, or missing.
        reason: String,
    },
    /// What is to happen to the traffic between two interfaces when this process ends cannot be had.
    #[error("{interfaces}: {reason}")]
    Bridge {
        /// Both interfaces.
        interfaces: String,
        /// What is in the way, or missing.
        reason: String,
    },
    /// An interface cannot be used by AF_XDP sockets.
    #[error("{interface}: cannot use AF_XDP: {reason}")]
    Xdp {
        /// The interface.
        interface: String,
        /// What is in the way, or missing.
        reason: String,
    },
    /// The kernel does not tell about network interfaces.
    #[error("cannot ask for network interfaces: {source}")]
    Links {
        /// What the system said.
        source: io::Error,
    },
    /// Waiting for packets failed.
    #[error("cannot wait for packets: {source}")]
    Wait {
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Attaches a file's name to what the system said.
    pub fn io(path: impl Into<String>, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// Says what a file that could not be opened should be, such as "a rule file".
    #[must_use]
    pub fn expecting(self, expected: &'static str) -> Self {
        match self {
            Self::Io { path, source } => Self::Open { path, expected, source },
            other => other,
        }
    }

    /// Whether the reader of our output has gone away: no error to speak of.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What the system said, without the number that it has for it.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
