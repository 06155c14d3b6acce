//! NVRTC, which compiles kernels for CUDA. It needs neither a GPU nor a driver.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::Error;

/// Options of every compilation, the architecture aside. 177 is the warning of functions that no kernel calls, as are most of
/// the prelude's.
pub(super) const OPTIONS: &[&str] = &["--std=c++14", "--diag-suppress=177"];

/// The environment's name for the library's path, where it is not where the loader looks.
const PATH: &str = "PACKETLOOM_NVRTC";

/// A function that every NVRTC has.
const SYMBOL: &[u8] = b"nvrtcVersion";

/// The oldest major version that is used: older ones may lack functions, at which the bindings would panic.
const OLDEST: c_int = 12;

/// The compiler's version, where there is one.
pub(super) fn version() -> Option<(c_int, c_int)> {
    library().ok()
}

/// Compiles to a CUBIN for an architecture (90 for `sm_90`), or to PTX, with its zero at the end, for one that NVRTC is too
/// old for. `name` is what the text is called in the compiler's messages.
pub(super) fn compile(name: &str, text: &str, architecture: u32) -> Result<Vec<u8>, Error> {
    library().map_err(unavailable)?;
    let supported = architectures().map_err(failed)?;
    let target = Target::of(architecture, &supported).map_err(|why| unavailable(&why))?;
    let c_string = |text| {
        CString::new(text).map_err(|_| Error::Build { log: format!("{name}: there is a zero in the text") })
    };
    let (c_name, c_text) = (c_string(name)?, c_string(text)?);
    let unit = result::create_program(&c_text, Some(&c_name)).map_err(failed)?;
    // Dropped before what it may refer to: name and text.
    let unit = Unit(unit);
    let option = target.option();
    let options: Vec<&str> = OPTIONS.iter().copied().chain([option.as_str()]).collect();
    // SAFETY: the unit is not destroyed yet.
    if let Err(error) = unsafe { result::compile_program(unit.0, &options) } {
        return Err(match unit.log() {
            log if log.is_empty() => failed(error),
            log => Error::Build { log },
        });
    }
    match target {
        Target::Cubin(_) => unit.output(sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        Target::Ptx(_) => unit.output(sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    }
    .map_err(failed)
}

/// What is compiled to.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// The GPU's own code.
    Cubin(u32),
    /// What the driver of a GPU of this architecture or a newer one compiles further.
    Ptx(u32),
}

impl Target {
    /// For a GPU, by a compiler that knows the architectures of `supported`.
    fn of(architecture: u32, supported: &[u32]) -> Result<Self, String> {
        if supported.contains(&architecture) {
            return Ok(Self::Cubin(architecture));
        }
        match supported.iter().filter(|&&other| other < architecture).max() {
            Some(&below) => Ok(Self::Ptx(below)),
            None => Err(format!("this NVRTC is too new for a GPU of architecture sm_{architecture}")),
        }
    }

    fn option(&self) -> String {
        match self {
            Self::Cubin(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Self::Ptx(architecture) => format!("--gpu-architecture=compute_{architecture}"),
        }
    }
}

/// A program of NVRTC's.
struct Unit(sys::nvrtcProgram);

impl Unit {
    /// What the compiler said.
    fn log(&self) -> String {
        // SAFETY: the program is not destroyed yet.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&log).trim().to_owned()
    }

    /// What came out, by the two functions that give its size and its bytes.
    fn output(
        &self,
        size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program is not destroyed yet; a number is written.
        unsafe { size(self.0, &raw mut bytes) }.result()?;
        let mut output = vec![0; bytes];
        // SAFETY: the program is not destroyed yet; as many bytes are written as `size` said.
        unsafe { get(self.0, output.as_mut_ptr().cast()) }.result()?;
        Ok(output)
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: the program was created, and is destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
    }
}

/// The architectures that this NVRTC compiles for.
fn architectures() -> Result<Vec<u32>, NvrtcError> {
    let mut count = 0;
    // SAFETY: a number is written.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }.result()?;
    let mut all: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: as many numbers are written as were told.
    unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) }.result()?;
    Ok(all.into_iter().filter_map(|architecture| u32::try_from(architecture).ok()).collect())
}

/// Finds the library, once; gives its version, or why there is none.
fn library() -> Result<(c_int, c_int), &'static str> {
    static LIBRARY: OnceLock<Result<(c_int, c_int), String>> = OnceLock::new();
    LIBRARY.get_or_init(find).as_ref().map(|&version| version).map_err(String::as_str)
}

fn find() -> Result<(c_int, c_int), String> {
    // Once it is loaded, the bindings get it when they ask the loader for its name. Held until they hold it too.
    let named = match env::var_os(PATH).filter(|path| !path.is_empty()) {
        Some(path) => {
            let failed = |error| format!("{PATH}: {}", all_words(&error));
            // SAFETY: loading NVRTC runs its initialisers, which have no demands; that it is NVRTC is up to the user.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map_err(failed)?;
            // SAFETY: of the symbol, only the address is used.
            let address = unsafe { library.get::<*const c_void>(SYMBOL).map(|symbol| *symbol) };
            Some((library, address.map_err(failed)?))
        }
        None => None,
    };
    // SAFETY: as above.
    if !unsafe { sys::is_culib_present() } {
        return Err(match named {
            Some(_) => format!("the NVRTC of {PATH} is newer than all versions that are known here"),
            None => format!(
                "the compiler's library, libnvrtc.so, is not where the loader looks; it is in NVIDIA's package \
                 nvidia-cuda-nvrtc, and {PATH} can hold its path"
            ),
        });
    }
    // SAFETY: the library is present; of the symbol, only the address is used.
    let used = unsafe { sys::culib().get::<*const c_void>(SYMBOL).map(|symbol| *symbol) };
    let used = used.map_err(|error| format!("libnvrtc.so: {}", all_words(&error)))?;
    // The bindings ask for some names before the library's own.
    if named.is_some_and(|(_, address)| address != used) {
        return Err(format!("the loader finds another libnvrtc before the one of {PATH}"));
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two numbers are written.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result().map_err(words)?;
    if major < OLDEST {
        return Err(format!("NVRTC is of CUDA {major}.{minor}; that of CUDA {OLDEST}.0 or newer is needed"));
    }
    Ok((major, minor))
}

fn unavailable(why: &str) -> Error {
    Error::Unavailable { device: "cuda".into(), why: why.into() }
}

fn failed(error: NvrtcError) -> Error {
    Error::Failed { call: "compile", why: words(error) }
}

/// What NVRTC calls an error.
fn words(error: NvrtcError) -> String {
    // SAFETY: the library is present, else there were no error; its answer is a static string.
    let words = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(error.0)) };
    words.to_string_lossy().into_owned()
}

/// An error of the loader, with its cause, which has what matters.
fn all_words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Program};

    fn program(source: &str) -> Program {
        Program {
            name: "test",
            source: source.into(),
            defines: Vec::new(),
            group: 128,
            groups_per_unit: 2,
            stays: false,
            local: 100_000,
            entries: vec![Entry { name: "first", parameters: &[] }],
        }
    }

    /// All of the dialect, and more local memory than a group has by itself.
    const SOURCE: &str = "
        typedef struct { u32x4 wide[6000]; u32 sum, least, all; } Local;
        typedef struct ALIGNED(8) { u32 a, b; } Pair;
        FUNCTION u32 twice(u32 x) { return shift_right(x, 31) + 2 * x; }
        KERNEL void first(GLOBAL const u32 *RESTRICT in, GLOBAL u32 *out, CONSTANT u8 *bytes, GLOBAL u64 *big, u32 n) {
            LOCAL_MEMORY(Local, local);
            if (local_index() == 0) { local->sum = 0; local->least = ~0u; local->all = 0; }
            barrier_group();
            u32 at = group_index() * local_count() + local_index();
            i32 some = at < n;
            u32 x = some ? twice(in[at]) + bytes[at % 16] : 0;
            u32 all = ballot(some);
            local->wide[local_index()].x = lanes_below(all) + lanes_index();
            sync_lanes();
            add_local(&local->sum, x);
            min_local(&local->least, x);
            or_local(&local->all, count_ones(all));
            barrier_group();
            if (lane() == 0) add_global(&out[0], local->sum + local->least + local->all + local->wide[LANES].x);
            add_global_64(big, (u64)x);
            swap_global_64(big + 1, 0, group_count());
        }
        KERNEL void second(GLOBAL Pair *out) {
            LOCAL_MEMORY(Local, memory);
            memory->sum = 1;
            out->a = memory->sum;
        }";

    #[test]
    fn the_architecture_decides_what_is_compiled_to() {
        let supported = [75, 80, 90, 100, 120];
        assert_eq!(Target::of(90, &supported), Ok(Target::Cubin(90)));
        assert_eq!(Target::of(103, &supported), Ok(Target::Ptx(100)));
        assert_eq!(Target::of(121, &supported), Ok(Target::Ptx(120)));
        assert!(Target::of(70, &supported).unwrap_err().contains("sm_70"));
        assert!(Target::of(90, &[]).is_err());
    }

    #[test]
    fn without_nvrtc_nothing_is_compiled_and_nothing_panics() {
        if version().is_some() {
            return;
        }
        match compile("test", &program(SOURCE).text(32), 90) {
            Err(Error::Unavailable { why, .. }) => assert!(why.to_lowercase().contains("nvrtc"), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    /// Does nothing where there is no NVRTC.
    #[test]
    fn the_dialect_compiles() {
        if version().is_none() {
            return;
        }
        let compile = |source: &str, architecture| compile("test", &program(source).text(32), architecture);
        let cubin = compile(SOURCE, 90).unwrap();
        assert!(cubin.starts_with(b"\x7fELF"));
        for name in [&b"\0first\0"[..], b"\0second\0"] {
            assert!(cubin.windows(name.len()).any(|window| window == name));
        }
        let ptx = String::from_utf8(compile(SOURCE, 999).unwrap()).unwrap();
        assert!(ptx.ends_with('\0') && ptx.contains(".visible .entry first("), "{ptx}");
        match compile("\nKERNEL void first() { no_such_thing(); }", 90) {
            Err(Error::Build { log }) => {
                assert!(log.contains("test(2)") && log.contains("no_such_thing"), "{log}");
                assert!(!log.contains("warning"), "{log}");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(compile(SOURCE, 20), Err(Error::Unavailable { .. })));
        assert!(matches!(compile("\0", 90), Err(Error::Build { .. })));
    }
}
