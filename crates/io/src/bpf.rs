//! BPF programs and maps in the kernel, as long as this process holds them (bpf(2)).
//!
//! Instructions are bytes that programs of ours carry; nothing is compiled at run time, and no library is needed. Where a program uses a map,
//! it loads a 64-bit constant, in whose place the map is put when it is loaded. What is attached is detached when its [`Link`] goes, however the
//! process ends.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// Bytes of an instruction (RFC 9669 section 3.1).
const INSTRUCTION: usize = 8;
/// Code of an instruction that loads a 64-bit constant, which takes the place of two.
const LOAD_CONSTANT: u8 = 0x18;
/// In place of the source register: the constant is a map's file descriptor (`BPF_PSEUDO_MAP_FD`).
const MAP: u8 = 1;

/// Commands of bpf(2).
const MAP_CREATE: i32 = 0;
const MAP_LOOKUP: i32 = 1;
const MAP_UPDATE: i32 = 2;
const PROGRAM_LOAD: i32 = 5;
const TEST_RUN: i32 = 10;
const LINK_CREATE: i32 = 28;
/// `BPF_MAP_TYPE_ARRAY`, `_PERCPU_ARRAY`, `_XSKMAP`.
const ARRAY: u32 = 2;
const ARRAY_OF_EACH_CPU: u32 = 6;
const SOCKET_MAP: u32 = 17;
/// `BPF_PROG_TYPE_SCHED_CLS`, `BPF_TCX_INGRESS`.
const CLASSIFIER_PROGRAM: u32 = 3;
const TCX_INGRESS: u32 = 46;
/// `BPF_PROG_TYPE_XDP`, `BPF_XDP`, `BPF_F_XDP_HAS_FRAGS`.
const XDP_PROGRAM: u32 = 6;
const XDP: u32 = 37;
const HAS_FRAGMENTS: u32 = 1 << 5;
/// `XDP_FLAGS_SKB_MODE`, `XDP_FLAGS_DRV_MODE`.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;
/// `BPF_F_TEST_XDP_LIVE_FRAMES`.
const LIVE_FRAMES: u32 = 1 << 1;

/// What runs a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The driver, for frames that it receives (XDP).
    Native,
    /// The kernel, behind the driver, with the interface of [`Native`](Self::Native).
    Generic,
    /// The kernel, for the packets that it makes of received frames (tcx).
    Tcx,
}

impl Hook {
    /// The type of the program, what it is attached as, and the flags of that.
    fn codes(self) -> (u32, u32, u32) {
        match self {
            Self::Native => (XDP_PROGRAM, XDP, NATIVE),
            Self::Generic => (XDP_PROGRAM, XDP, GENERIC),
            Self::Tcx => (CLASSIFIER_PROGRAM, TCX_INGRESS, 0),
        }
    }
}

/// An array in the kernel: values of one size, by their places.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    /// Bytes that are read and written at a time.
    bytes: usize,
}

impl Map {
    /// An array of `entries` values of so many bytes each.
    ///
    /// # Errors
    ///
    /// What bpf(2) says: `EPERM` without `CAP_BPF`.
    pub fn array(name: &str, value: u32, entries: u32) -> Result<Self, Errno> {
        Self::create(ARRAY, name, value, entries, value as usize)
    }

    /// The same, with values of each processor for itself. Reading gives those of all `processors` that there may be, one after the other, of
    /// `value` bytes each, which has to be a multiple of 8.
    ///
    /// # Errors
    ///
    /// As of [`array`](Self::array).
    pub fn array_of_each_cpu(name: &str, value: u32, entries: u32, processors: usize) -> Result<Self, Errno> {
        Self::create(ARRAY_OF_EACH_CPU, name, value, entries, value as usize * processors)
    }

    /// AF_XDP sockets, by their queues; a value is a file descriptor.
    pub(crate) fn sockets(name: &str, entries: u32) -> Result<Self, Errno> {
        Self::create(SOCKET_MAP, name, 4, entries, 4)
    }

    fn create(kind: u32, name: &str, value: u32, entries: u32, bytes: usize) -> Result<Self, Errno> {
        let attributes =
            MapCreate { kind, key: 4, value, entries, flags: 0, inner: 0, numa_node: 0, name: padded(name) };
        // SAFETY: the attributes are those of this command.
        let fd = unsafe { call_for_fd(MAP_CREATE, &attributes)? };
        Ok(Self { fd, bytes })
    }

    /// The value at a place.
    ///
    /// # Errors
    ///
    /// `ENOENT` where there is no such place.
    pub fn read(&self, place: u32) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0u8; self.bytes];
        let attributes = self.element(&raw const place, value.as_mut_ptr().expose_provenance());
        // SAFETY: the attributes are those of this command; key and value have the map's sizes and live until the call returns, which writes
        // the value, through a pointer whose provenance is exposed.
        unsafe { call(MAP_LOOKUP, &attributes) }?;
        Ok(value)
    }

    /// Puts a value at a place.
    ///
    /// # Errors
    ///
    /// `E2BIG` where there is no such place, `EINVAL` where the value has another size.
    pub fn write(&self, place: u32, value: &[u8]) -> Result<(), Errno> {
        if value.len() != self.bytes {
            return Err(Errno::INVAL);
        }
        let attributes = self.element(&raw const place, value.as_ptr().expose_provenance());
        // SAFETY: the attributes are those of this command; key and value have the map's sizes and live until the call returns.
        unsafe { call(MAP_UPDATE, &attributes) }.map(drop)
    }

    fn element(&self, place: *const u32, value: usize) -> Element {
        let map = number(self.fd.as_fd());
        Element { map, padding: 0, key: place.expose_provenance() as u64, value: value as u64, flags: 0 }
    }
}

/// A program, loaded.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    hook: Hook,
}

impl Program {
    /// Loads a program, with maps in the places of the constants that stand for them. It does nothing until it is attached or run.
    ///
    /// # Errors
    ///
    /// What bpf(2) says: `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, `EINVAL` or `EACCES` where the kernel refuses the instructions.
    pub fn load(hook: Hook, name: &str, instructions: &[u8], maps: &[(u64, &Map)]) -> Result<Self, Errno> {
        let instructions = with_maps(instructions, maps);
        let (kind, expected_attach_type, _) = hook.codes();
        let license = c"Apache-2.0";
        let attributes = ProgramLoad {
            kind,
            instructions: (instructions.len() / INSTRUCTION) as u32,
            code: instructions.as_ptr().expose_provenance() as u64,
            license: license.as_ptr().expose_provenance() as u64,
            flags: if kind == XDP_PROGRAM { HAS_FRAGMENTS } else { 0 },
            name: padded(name),
            expected_attach_type,
            ..ProgramLoad::default()
        };
        // SAFETY: the attributes are those of this command; instructions and license live until the call returns.
        let fd = unsafe { call_for_fd(PROGRAM_LOAD, &attributes)? };
        Ok(Self { fd, hook })
    }

    /// Has what comes by an interface go through the program, by its number.
    ///
    /// # Errors
    ///
    /// What bpf(2) says: `EBUSY` or `EEXIST` where another program is there, `EOPNOTSUPP` where the driver runs none.
    pub fn attach(&self, interface: u32) -> Result<Link, Errno> {
        self.attach_as(self.hook, interface)
    }

    /// The same at another hook for programs of this type.
    pub(crate) fn attach_as(&self, hook: Hook, interface: u32) -> Result<Link, Errno> {
        let (_, attach_type, flags) = hook.codes();
        let attributes = LinkCreate { program: number(self.fd.as_fd()), interface, attach_type, flags };
        // SAFETY: the attributes are those of this command.
        Ok(Link(unsafe { call_for_fd(LINK_CREATE, &attributes)? }))
    }

    /// Has the kernel make so many frames of these bytes, run the XDP program on each, and do what it says: frames that it redirects are sent.
    /// They are sent `batch` at a time, 1 to 256. Memory of frames is used again and comes back as its last receiver left it. At its end the
    /// call sleeps for some 24 ms.
    ///
    /// # Errors
    ///
    /// `EINTR` where a signal came; some frames have been sent then. What else bpf(2) says.
    pub fn run_live(&self, frame: &[u8], repeat: u32, batch: u32) -> Result<(), Errno> {
        let mut attributes = TestRun {
            program: number(self.fd.as_fd()),
            frame_length: frame.len() as u32,
            frame: frame.as_ptr().expose_provenance() as u64,
            repeat,
            flags: LIVE_FRAMES,
            batch,
            ..TestRun::default()
        };
        // SAFETY: the attributes are those of this command, which writes the results into them and nothing elsewhere; the frame lives until
        // the call returns.
        unsafe { call_with(TEST_RUN, &raw mut attributes) }.map(drop)
    }
}

/// Where a program is attached; it is detached when this is dropped.
#[derive(Debug)]
pub struct Link(pub(crate) OwnedFd);

/// Instructions with maps in the places of the constants that stand for them.
fn with_maps(instructions: &[u8], maps: &[(u64, &Map)]) -> Vec<u8> {
    let of = |constant: u64| maps.iter().find(|(own, _)| *own == constant);
    replaced(instructions, |constant| of(constant).map(|(_, map)| map.fd.as_raw_fd()))
}

fn replaced(instructions: &[u8], map_of: impl Fn(u64) -> Option<RawFd>) -> Vec<u8> {
    let mut instructions = instructions.to_vec();
    let mut at = 0;
    while at + 2 * INSTRUCTION <= instructions.len() {
        let pair = &mut instructions[at..at + 2 * INSTRUCTION];
        if pair[0] != LOAD_CONSTANT {
            at += INSTRUCTION;
            continue;
        }
        let constant = [&pair[4..8], &pair[12..16]].concat();
        let map = constant.try_into().map(u64::from_le_bytes).ok().and_then(&map_of);
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

/// As `BPF_PROG_TEST_RUN` has it.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    result: u32,
    frame_length: u32,
    frame_length_out: u32,
    frame: u64,
    frame_out: u64,
    repeat: u32,
    duration: u32,
    context_length: u32,
    context_length_out: u32,
    context: u64,
    context_out: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    padding: u32,
}

/// As `BPF_LINK_CREATE` has it.
#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// A file descriptor as attributes have it.
fn number(fd: BorrowedFd<'_>) -> u32 {
    // A descriptor that is there is not negative.
    fd.as_raw_fd() as u32
}

/// A name as the kernel keeps it: 15 bytes at most, and zeros.
fn padded(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    let length = name.len().min(15);
    padded[..length].copy_from_slice(&name.as_bytes()[..length]);
    padded
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
/// The attributes must be those of the command, which does not write to them, and what they point to must be valid for what it reads and
/// writes there.
unsafe fn call<T>(command: i32, attributes: &T) -> Result<libc::c_long, Errno> {
    // SAFETY: by the caller's word.
    unsafe { call_with(command, std::ptr::from_ref(attributes).cast_mut()) }
}

/// # Safety
///
/// As [`call`], but the command may write to the attributes if the pointer may be written through.
unsafe fn call_with<T>(command: i32, attributes: *mut T) -> Result<libc::c_long, Errno> {
    // SAFETY: by the caller's word.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKETS: u64 = 0x7061_636b_6574_0001;
    const LOST: u64 = 0x7061_636b_6574_0002;

    fn numbers(constant: u64) -> Option<RawFd> {
        match constant {
            SOCKETS => Some(0x1234),
            LOST => Some(0x56),
            _ => None,
        }
    }

    #[test]
    fn maps_stand_where_their_constants_stood() {
        let instructions = include_bytes!("port/af_xdp/redirect.bin");
        assert!(instructions.len().is_multiple_of(INSTRUCTION) && instructions.len() < 512);
        let loaded = replaced(instructions, numbers);
        let (mut maps, mut at) = (Vec::new(), 0);
        for (before, after) in instructions.chunks_exact(8).zip(loaded.chunks_exact(8)) {
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
        assert_eq!(replaced(&[0x18; 8], numbers), [0x18; 8]);
        assert_eq!(replaced(&[0x18; 16], numbers), [0x18; 16]);
    }

    #[test]
    fn attributes_are_laid_out_as_the_kernel_has_them() {
        assert_eq!((size_of::<MapCreate>(), size_of::<Element>(), size_of::<LinkCreate>()), (44, 32, 16));
        assert_eq!(std::mem::offset_of!(ProgramLoad, log), 32);
        assert_eq!(std::mem::offset_of!(ProgramLoad, expected_attach_type), 68);
        assert_eq!((size_of::<ProgramLoad>(), size_of::<TestRun>()), (72, 80));
        assert_eq!(std::mem::offset_of!(TestRun, batch), 72);
    }
}
