//! The XDP program that hands frames to sockets, in the kernel as long as this process holds it (bpf(2)).
//!
//! Its instructions are bytes of this program; `redirect.c` lies beside them. The kernel detaches it when the process ends, however it ends:
//! it is attached by a link, which is closed then.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

use super::super::going_first;

/// What clang makes of `redirect.c`.
const INSTRUCTIONS: &[u8] = include_bytes!("redirect.bin");
/// Bytes of an instruction (RFC 9669 section 3.1).
const INSTRUCTION: usize = 8;
/// Code of an instruction that loads a 64-bit constant, which takes the place of two.
const LOAD_CONSTANT: u8 = 0x18;
/// In place of the source register: the constant is a map's file descriptor (`BPF_PSEUDO_MAP_FD`).
const MAP: u8 = 1;
/// The constants that stand where maps belong.
const SOCKETS: u64 = 0x7061_636b_6574_0001;
const LOST: u64 = 0x7061_636b_6574_0002;

/// Commands of bpf(2).
const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const PROGRAM_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
/// `BPF_MAP_TYPE_ARRAY`, `BPF_MAP_TYPE_XSKMAP`.
const ARRAY: u32 = 2;
const SOCKET_MAP: u32 = 17;
/// `BPF_PROG_TYPE_XDP`, `BPF_XDP`, `BPF_F_XDP_HAS_FRAGS`.
const XDP_PROGRAM: u32 = 6;
const XDP: u32 = 37;
const HAS_FRAGMENTS: u32 = 1 << 5;
/// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

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
    sockets: OwnedFd,
    lost: OwnedFd,
    program: OwnedFd,
    /// Where it is attached.
    link: Option<OwnedFd>,
}

impl Redirect {
    /// Loads the program; it does nothing until it is [attached](Self::attach).
    pub(super) fn load() -> Result<Self, Errno> {
        let sockets = create_map(SOCKET_MAP, 4, MOST_QUEUES, b"packetloom_xsks")?;
        let lost = create_map(ARRAY, 8, 1, b"packetloom_lost")?;
        let instructions = with_maps(INSTRUCTIONS, sockets.as_raw_fd(), lost.as_raw_fd());
        let license = c"Apache-2.0";
        let attributes = ProgramLoad {
            kind: XDP_PROGRAM,
            instructions: (instructions.len() / INSTRUCTION) as u32,
            code: instructions.as_ptr().expose_provenance() as u64,
            license: license.as_ptr().expose_provenance() as u64,
            flags: HAS_FRAGMENTS,
            name: *b"packetloom\0\0\0\0\0\0",
            expected_attach_type: XDP,
            ..ProgramLoad::default()
        };
        // SAFETY: the attributes are those of this command; instructions and license live until the call returns.
        let program = unsafe { call_for_fd(PROGRAM_LOAD, &attributes)? };
        Ok(Self { sockets, lost, program, link: None })
    }

    /// Has an interface's frames go through it.
    pub(super) fn attach(&mut self, interface: u32, attachment: Attachment) -> Result<(), Errno> {
        let flags = match attachment {
            Attachment::Native => NATIVE,
            Attachment::Generic => GENERIC,
        };
        let attributes = LinkCreate { program: fd(&self.program), interface, attach_type: XDP, flags };
        // SAFETY: the attributes are those of this command.
        self.link = Some(going_first(unsafe { call_for_fd(LINK_CREATE, &attributes)? }));
        Ok(())
    }

    /// Leaves an interface's frames to the kernel again.
    pub(super) fn detach(&mut self) {
        self.link = None;
    }

    /// Has a queue's frames go to a socket.
    pub(super) fn set_socket(&self, queue: u32, socket: impl AsFd) -> Result<(), Errno> {
        let value = fd(&socket);
        let attributes = element(&self.sockets, &raw const queue, (&raw const value).expose_provenance());
        // SAFETY: the attributes are those of this command; key and value have the map's sizes and live until the call returns.
        unsafe { call(MAP_UPDATE, &attributes) }.map(drop)
    }

    /// Frames that were dropped so far since their queues have no sockets.
    pub(super) fn lost(&self) -> Result<u64, Errno> {
        let (first, mut count) = (0u32, 0u64);
        let attributes = element(&self.lost, &raw const first, (&raw mut count).expose_provenance());
        // SAFETY: the attributes are those of this command; key and value have the map's sizes and live until the call returns, which writes
        // the value.
        unsafe { call(MAP_LOOKUP, &attributes) }?;
        // SAFETY: as above; read from memory, since the compiler does not see that the call has written there.
        Ok(unsafe { (&raw const count).read_volatile() })
    }
}

/// Instructions with maps in the places of the constants that stand for them.
fn with_maps(instructions: &[u8], sockets: RawFd, lost: RawFd) -> Vec<u8> {
    let mut instructions = instructions.to_vec();
    let mut at = 0;
    while at + 2 * INSTRUCTION <= instructions.len() {
        let pair = &mut instructions[at..at + 2 * INSTRUCTION];
        if pair[0] != LOAD_CONSTANT {
            at += INSTRUCTION;
            continue;
        }
        let constant = [&pair[4..8], &pair[12..16]].concat();
        let map = match constant.try_into().map(u64::from_le_bytes) {
            Ok(SOCKETS) => Some(sockets),
            Ok(LOST) => Some(lost),
            _ => None,
        };
        if let Some(map) = map {
            pair[1] = pair[1] & 0x0f | MAP << 4;
            pair[4..8].copy_from_slice(&map.to_le_bytes());
            pair[12..16].fill(0);
        }
        at += 2 * INSTRUCTION;
    }
    instructions
}

/// `union bpf_attr` as `BPF_MAP_CREATE` has it.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
}

/// As `BPF_MAP_LOOKUP_ELEM` and `BPF_MAP_UPDATE_ELEM` have it.
#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// As `BPF_PROG_LOAD` has it.
#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

/// As `BPF_LINK_CREATE` has it.
#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

fn fd(fd: &impl AsFd) -> u32 {
    // A descriptor that is there is not negative.
    fd.as_fd().as_raw_fd() as u32
}

fn element(map: &OwnedFd, key: *const u32, value: usize) -> Element {
    Element { map: fd(map), padding: 0, key: key.expose_provenance() as u64, value: value as u64, flags: 0 }
}

fn create_map(kind: u32, value: u32, entries: u32, name: &[u8; 15]) -> Result<OwnedFd, Errno> {
    let mut padded = [0; 16];
    padded[..15].copy_from_slice(name);
    let attributes =
        MapCreate { kind, key: 4, value, entries, flags: 0, inner: 0, numa_node: 0, name: padded };
    // SAFETY: the attributes are those of this command.
    unsafe { call_for_fd(MAP_CREATE, &attributes) }
}

/// # Safety
///
/// As [`call`], of a command that makes a file descriptor.
unsafe fn call_for_fd<T>(command: i32, attributes: &T) -> Result<OwnedFd, Errno> {
    // SAFETY: by the caller's word.
    let fd = unsafe { call(command, attributes)? };
    // SAFETY: the kernel has just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// # Safety
///
/// The attributes must be those of the command, and what they point to must be valid for what it reads and writes there.
unsafe fn call<T>(command: i32, attributes: &T) -> Result<libc::c_long, Errno> {
    // SAFETY: by the caller's word.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_stand_where_their_constants_stood() {
        assert!(INSTRUCTIONS.len().is_multiple_of(INSTRUCTION) && INSTRUCTIONS.len() < 512);
        let loaded = with_maps(INSTRUCTIONS, 0x1234, 0x56);
        let (mut maps, mut at) = (Vec::new(), 0);
        for (before, after) in INSTRUCTIONS.chunks_exact(8).zip(loaded.chunks_exact(8)) {
            if before[0] == LOAD_CONSTANT {
                // Destination, then the map's mark; what follows is the second half.
                assert_eq!((after[0], after[1] >> 4, after[1] & 0xf), (0x18, 1, before[1] & 0xf));
                maps.push(i32::from_le_bytes(after[4..].try_into().expect("four bytes")));
                at = 1;
            } else if at == 1 {
                assert_eq!(after, [0; 8]);
                at = 0;
            } else {
                assert_eq!(before, after);
            }
        }
        assert_eq!(maps, [0x1234, 0x56]);
        // No other instruction is taken for one.
        assert_eq!(with_maps(&[0x18; 8], 1, 2), [0x18; 8]);
        assert_eq!(with_maps(&[0x18; 16], 1, 2), [0x18; 16]);
    }

    #[test]
    fn attributes_are_laid_out_as_the_kernel_has_them() {
        assert_eq!((size_of::<MapCreate>(), size_of::<Element>(), size_of::<LinkCreate>()), (44, 32, 16));
        assert_eq!(std::mem::offset_of!(ProgramLoad, log), 32);
        assert_eq!(std::mem::offset_of!(ProgramLoad, expected_attach_type), 68);
        assert_eq!(size_of::<ProgramLoad>(), 72);
    }
}
