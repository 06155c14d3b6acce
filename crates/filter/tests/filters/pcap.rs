//! libpcap's own compiler, and a machine for its programs that tells what a program read.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};

use libloading::Library;

use crate::frames::RawFrame;

const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];
const NO_NETMASK: c_uint = u32::MAX;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Instruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
struct RawProgram {
    len: c_uint,
    instructions: *mut Instruction,
}

/// `struct pcap_pkthdr`, with the time as two words.
#[repr(C)]
struct Header {
    time: [c_long; 2],
    caplen: u32,
    len: u32,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut RawProgram, *const c_char, c_int, c_uint) -> c_int;
type OfflineFilter = unsafe extern "C" fn(*const RawProgram, *const Header, *const u8) -> c_int;
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;

/// The library, with a handle for Ethernet.
pub(crate) struct Pcap {
    library: Library,
    handle: *mut c_void,
}

/// A filter that libpcap compiled; lives as long as the process.
pub(crate) struct Program {
    instructions: Vec<Instruction>,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) matches: bool,
    /// It was not decided: a load beyond the captured bytes or a division by 0 ended the program.
    pub(crate) is_aborted: bool,
    /// One behind the last byte that was read.
    pub(crate) read_to: usize,
}

impl Pcap {
    /// The library; says that the test does not run where there is none.
    ///
    /// # Panics
    ///
    /// `PACKETLOOM_TSHARK` is set, and there is no libpcap: tshark comes with it.
    pub(crate) fn load() -> Option<Self> {
        // SAFETY: libpcap's initialisers have no preconditions.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        assert!(
            library.is_some() || !packetloom_testing::requires_tshark(),
            "PACKETLOOM_TSHARK is set, but there is no libpcap"
        );
        let Some(library) = library else {
            eprintln!("skipped: libpcap is not installed");
            return None;
        };
        // SAFETY: the type is that of pcap_open_dead(3PCAP), which takes any numbers.
        let handle =
            unsafe { library.get::<OpenDead>(b"pcap_open_dead\0").expect("a function of libpcap")(1, 65535) };
        assert!(!handle.is_null());
        Some(Self { library, handle })
    }

    /// Compiles a filter, without optimisation.
    pub(crate) fn compile(&self, text: &str) -> Result<Program, String> {
        let text = CString::new(text).expect("no NUL");
        let mut raw = RawProgram { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the types are those of pcap_compile(3PCAP) and pcap_geterr(3PCAP); the handle is open, the text ends with a NUL, and one
        // thread uses the handle since it cannot be shared.
        unsafe {
            let compile = self.library.get::<Compile>(b"pcap_compile\0").expect("a function of libpcap");
            if compile(self.handle, &raw mut raw, text.as_ptr(), 0, NO_NETMASK) != 0 {
                let error = self.library.get::<GetError>(b"pcap_geterr\0").expect("a function of libpcap")(
                    self.handle,
                );
                return Err(CStr::from_ptr(error).to_string_lossy().into_owned());
            }
        }
        // SAFETY: pcap_compile made so many instructions there. They are copied; the few bytes are not freed.
        let instructions = unsafe { std::slice::from_raw_parts(raw.instructions, raw.len as usize) }.to_vec();
        Ok(Program { instructions })
    }

    /// Runs a program on a frame, in libpcap and here, which have to agree.
    pub(crate) fn run(&self, program: &Program, frame: &RawFrame) -> Run {
        let mut instructions = program.instructions.clone();
        let raw = RawProgram { len: instructions.len() as c_uint, instructions: instructions.as_mut_ptr() };
        let header = Header { time: [0; 2], caplen: frame.bytes.len() as u32, len: frame.wire_len };
        // SAFETY: the type is that of pcap_offline_filter(3PCAP); the program came from pcap_compile, and the header says how many bytes
        // there are.
        let result = unsafe {
            let filter =
                self.library.get::<OfflineFilter>(b"pcap_offline_filter\0").expect("a function of libpcap");
            filter(&raw const raw, &raw const header, frame.bytes.as_ptr())
        };
        let run = program.interpret(frame);
        assert_eq!(result != 0, run.matches, "{:?} {:02x?}", program.instructions, frame);
        run
    }
}

impl Program {
    fn interpret(&self, frame: &RawFrame) -> Run {
        let (mut a, mut x, mut memory) = (0_u32, 0_u32, [0_u32; 16]);
        let mut run = Run { matches: false, is_aborted: false, read_to: 0 };
        let mut at = 0;
        loop {
            let Instruction { code, jt, jf, k } = self.instructions[at];
            at += 1;
            let source = if code & 0x08 != 0 { x } else { k };
            let mut load = |offset: Option<u32>, size: u32| {
                let begin = offset? as usize;
                let end = begin.checked_add(size as usize)?;
                let bytes = frame.bytes.get(begin..end)?;
                run.read_to = run.read_to.max(end);
                Some(bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte)))
            };
            let size = match code & 0x18 {
                0x00 => 4,
                0x08 => 2,
                _ => 1,
            };
            let result = match code & 0x07 {
                // Loads into A or X: a number, the length, scratch memory, bytes.
                kind @ (0 | 1) => {
                    let value = match code & 0xe0 {
                        0x00 => Some(k),
                        0x20 => load(Some(k), size),
                        0x40 => load(k.checked_add(x), size),
                        0x60 => Some(memory[k as usize]),
                        0x80 => Some(frame.wire_len),
                        0xa0 => load(Some(k), 1).map(|byte| (byte & 0xf) * 4),
                        other => panic!("load {other:#x}"),
                    };
                    value.map(|value| if kind == 0 { a = value } else { x = value })
                }
                2 => {
                    memory[k as usize] = a;
                    Some(())
                }
                3 => {
                    memory[k as usize] = x;
                    Some(())
                }
                4 => {
                    let value = match code & 0xf0 {
                        0x00 => Some(a.wrapping_add(source)),
                        0x10 => Some(a.wrapping_sub(source)),
                        0x20 => Some(a.wrapping_mul(source)),
                        0x30 => a.checked_div(source),
                        0x40 => Some(a | source),
                        0x50 => Some(a & source),
                        0x60 => Some(a.checked_shl(source).unwrap_or(0)),
                        0x70 => Some(a.checked_shr(source).unwrap_or(0)),
                        0x80 => Some(a.wrapping_neg()),
                        0x90 => a.checked_rem(source),
                        0xa0 => Some(a ^ source),
                        other => panic!("operation {other:#x}"),
                    };
                    value.map(|value| a = value)
                }
                5 => {
                    at += match code & 0xf0 {
                        0x00 => k as usize,
                        0x10 if a == source => jt.into(),
                        0x20 if a > source => jt.into(),
                        0x30 if a >= source => jt.into(),
                        0x40 if a & source != 0 => jt.into(),
                        0x10..=0x40 => jf.into(),
                        other => panic!("jump {other:#x}"),
                    };
                    Some(())
                }
                6 => {
                    run.matches = if code & 0x18 == 0x10 { a != 0 } else { k != 0 };
                    return run;
                }
                _ => {
                    if code & 0xf8 == 0x80 {
                        a = x
                    } else {
                        x = a
                    }
                    Some(())
                }
            };
            if result.is_none() {
                run.is_aborted = true;
                return run;
            }
        }
    }
}
