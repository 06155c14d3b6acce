//! The XDP program that hands frames to sockets.
//!
//! Its instructions are bytes of this program; `redirect.c` lies beside them. The kernel detaches it when the process ends, however it ends:
//! it is attached by a link, which is closed then.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::super::going_first;
use crate::bpf::{Hook, Link, Map, Program};

/// What clang makes of `redirect.c`.
const INSTRUCTIONS: &[u8] = include_bytes!("redirect.bin");
/// The constants that stand where maps belong.
const SOCKETS: u64 = 0x7061_636b_6574_0001;
const LOST: u64 = 0x7061_636b_6574_0002;

/// Queues of an interface that get sockets.
pub(super) const MOST_QUEUES: u32 = 128;

/// What runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Attachment {
    /// The driver.
    Native,
    /// The kernel, behind the driver.
    Generic,
}

/// The program, loaded, with its maps.
#[derive(Debug)]
pub(super) struct Redirect {
    sockets: Map,
    lost: Map,
    program: Program,
    /// Where it is attached.
    link: Option<Link>,
}

impl Redirect {
    /// Loads the program; it does nothing until it is [attached](Self::attach).
    pub(super) fn load() -> Result<Self, Errno> {
        let sockets = Map::sockets("packetloom_xsks", MOST_QUEUES)?;
        let lost = Map::array("packetloom_lost", 8, 1)?;
        let maps = [(SOCKETS, &sockets), (LOST, &lost)];
        let program = Program::load(Hook::Native, "packetloom", INSTRUCTIONS, &maps)?;
        Ok(Self { sockets, lost, program, link: None })
    }

    /// Has an interface's frames go through it.
    pub(super) fn attach(&mut self, interface: u32, attachment: Attachment) -> Result<(), Errno> {
        let hook = match attachment {
            Attachment::Native => Hook::Native,
            Attachment::Generic => Hook::Generic,
        };
        let Link(link) = self.program.attach_as(hook, interface)?;
        self.link = Some(Link(going_first(link)));
        Ok(())
    }

    /// Leaves an interface's frames to the kernel again.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    /// Has a queue's frames go to a socket.
    pub(super) fn set_socket(&self, queue: u32, socket: impl AsFd) -> Result<(), Errno> {
        self.sockets.write(queue, &socket.as_fd().as_raw_fd().to_ne_bytes())
    }

    /// Frames that were dropped so far since their queues have no sockets.
    pub(super) fn lost(&self) -> Result<u64, Errno> {
        let count = self.lost.read(0)?;
        count.try_into().map(u64::from_ne_bytes).map_err(|_| Errno::IO)
    }
}
