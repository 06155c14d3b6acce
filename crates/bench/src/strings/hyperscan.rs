//! Intel's Hyperscan, where its library is installed: `libhs.so.5`, opened when it is asked for.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;

use libloading::Library;
use packetloom_pattern::{Match, Patterns, Report};

/// From hs_compile.h and hs_runtime.h.
const CASELESS: c_uint = 1;
const BLOCK_MODE: c_uint = 1;
const SUCCESS: c_int = 0;
const TERMINATED: c_int = -3;

type OnMatch = unsafe extern "C" fn(
    id: c_uint,
    from: c_ulonglong,
    to: c_ulonglong,
    flags: c_uint,
    context: *mut c_void,
) -> c_int;

#[repr(C)]
struct CompileError {
    message: *const c_char,
    expression: c_int,
}

type CompileLiterals = unsafe extern "C" fn(
    expressions: *const *const c_char,
    flags: *const c_uint,
    ids: *const c_uint,
    lens: *const usize,
    elements: c_uint,
    mode: c_uint,
    platform: *const c_void,
    database: *mut *mut c_void,
    error: *mut *mut CompileError,
) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
type AllocScratch = unsafe extern "C" fn(database: *const c_void, scratch: *mut *mut c_void) -> c_int;
type ScanBlock = unsafe extern "C" fn(
    database: *const c_void,
    data: *const c_char,
    len: c_uint,
    flags: c_uint,
    scratch: *mut c_void,
    on_match: OnMatch,
    context: *mut c_void,
) -> c_int;

/// A compiled set, and what a scan needs.
pub struct Hyperscan {
    database: *mut c_void,
    scratch: *mut c_void,
    scan: ScanBlock,
    free_database: Free,
    free_scratch: Free,
    version: String,
    /// The functions are of this library.
    _library: Library,
}

/// Where a match is put.
struct Context<'a> {
    matches: &'a mut Vec<Match>,
    text: u32,
    stops: bool,
}

unsafe extern "C" fn on_match(
    id: c_uint,
    _from: c_ulonglong,
    to: c_ulonglong,
    _flags: c_uint,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `find` passes a context that lives longer than the scan, and nobody else uses it meanwhile.
    let context = unsafe { &mut *context.cast::<Context<'_>>() };
    context.matches.push(Match { text: context.text, end: to as u32, pattern: id });
    context.stops.into()
}

impl Hyperscan {
    /// Compiles a set, whose bounds it takes no notice of.
    ///
    /// # Errors
    ///
    /// The library is not there, or does not take the set.
    pub fn new(patterns: &Patterns) -> Result<Self, String> {
        // SAFETY: the library's initializers are those of Hyperscan; the types of its functions are those of its headers.
        let library = unsafe { Library::new("libhs.so.5") };
        let library = library.map_err(|e| format!("libhs.so.5: {e}; install libhyperscan5"))?;
        macro_rules! function {
            ($kind:ty, $name:literal) => {{
                // SAFETY: as above.
                let function = unsafe { library.get::<$kind>($name) };
                *function.map_err(|e| format!("libhs.so.5: {e}"))?
            }};
        }
        let compile = function!(CompileLiterals, b"hs_compile_lit_multi\0");
        let alloc_scratch = function!(AllocScratch, b"hs_alloc_scratch\0");
        let scan = function!(ScanBlock, b"hs_scan\0");
        let free_database = function!(Free, b"hs_free_database\0");
        let free_scratch = function!(Free, b"hs_free_scratch\0");
        let free_error = function!(Free, b"hs_free_compile_error\0");
        let version = function!(unsafe extern "C" fn() -> *const c_char, b"hs_version\0");

        let expressions: Vec<_> = patterns.iter().map(|pattern| pattern.bytes.as_ptr().cast()).collect();
        let flags: Vec<_> =
            patterns.iter().map(|pattern| if pattern.ignore_case { CASELESS } else { 0 }).collect();
        let ids: Vec<c_uint> = (0..patterns.len() as c_uint).collect();
        let lens: Vec<_> = patterns.iter().map(|pattern| pattern.bytes.len()).collect();
        let (mut database, mut error) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: four lists of as many elements as are said, of which the first points to as many bytes as the fourth says; no platform
        // is the one that it runs on.
        let code = unsafe {
            compile(
                expressions.as_ptr(),
                flags.as_ptr(),
                ids.as_ptr(),
                lens.as_ptr(),
                ids.len() as c_uint,
                BLOCK_MODE,
                ptr::null(),
                &raw mut database,
                &raw mut error,
            )
        };
        if code != SUCCESS {
            // SAFETY: where compiling fails, the error is set, and its message is a string; it is freed once.
            let message = unsafe {
                let message = CStr::from_ptr((*error).message).to_string_lossy().into_owned();
                free_error(error.cast());
                message
            };
            return Err(format!("Hyperscan refuses the patterns: {message}"));
        }
        let mut scratch = ptr::null_mut();
        // SAFETY: a database that was compiled just now.
        let code = unsafe { alloc_scratch(database, &raw mut scratch) };
        // SAFETY: it returns a static string.
        let version = unsafe { CStr::from_ptr(version()) }.to_string_lossy().into_owned();
        let new = Self { database, scratch, scan, free_database, free_scratch, version, _library: library };
        if code == SUCCESS { Ok(new) } else { Err(format!("Hyperscan has no scratch memory: error {code}")) }
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Looks through texts as [`packetloom_pattern::Matcher::find`] does; [`Report::First`] is as [`Report::Any`]. Says whether each scan
    /// went well.
    pub fn find(&mut self, texts: &[&[u8]], report: Report, matches: &mut Vec<Match>) -> bool {
        let mut context = Context { matches, text: 0, stops: matches!(report, Report::First | Report::Any) };
        let mut is_right = true;
        for (number, text) in texts.iter().enumerate() {
            context.text = number as u32;
            let (data, len) = (text.as_ptr().cast(), text.len() as c_uint);
            let to = (&raw mut context).cast();
            // SAFETY: database and scratch are those of `new`, `&mut self` keeps others from the scratch, `data` has `len` bytes,
            // and the context outlives the call.
            let code = unsafe { (self.scan)(self.database, data, len, 0, self.scratch, on_match, to) };
            is_right &= matches!(code, SUCCESS | TERMINATED);
        }
        is_right
    }
}

impl Drop for Hyperscan {
    fn drop(&mut self) {
        // SAFETY: both are of `new` (the scratch may be null, which is allowed) and not used again.
        unsafe {
            (self.free_scratch)(self.scratch);
            (self.free_database)(self.database);
        }
    }
}
