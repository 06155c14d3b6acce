//! What calls return, and the one place where errors and panics become status codes.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What functions of both APIs return where they do not succeed; 0 or a positive number is success. `pl_last_error` has the reason as text.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum pl_status {
    /// Done.
    PL_OK = 0,
    /// Done, but there is more: read what there is, then call again.
    PL_MORE = 1,
    /// An argument is NULL, negative or too large, or texts are not UTF-8.
    PL_ERROR_ARGUMENT = -1,
    /// No chain, function, stream or buffer has this id (any more).
    PL_ERROR_NOT_FOUND = -2,
    /// There is no room; nothing was taken.
    PL_ERROR_FULL = -3,
    /// Another thread, or the library, has it; or the call is not allowed in a callback. Nothing was done.
    PL_ERROR_BUSY = -4,
    /// There are no results yet.
    PL_ERROR_NOT_READY = -5,
    /// A file or a setting is not usable.
    PL_ERROR_CONFIG = -6,
    /// The device cannot be had, does not compile a kernel, or failed.
    PL_ERROR_DEVICE = -7,
    /// There is one with this id already.
    PL_ERROR_EXISTS = -8,
    /// A callback of the program returned something else than 0.
    PL_ERROR_CALLBACK = -9,
    /// An output cannot be written.
    PL_ERROR_IO = -10,
    /// There is no memory, or no thread, left for it.
    PL_ERROR_MEMORY = -11,
    /// The chain is finished.
    PL_ERROR_FINISHED = -12,
    /// A defect of this library. The chain or stream can only be closed.
    PL_ERROR_INTERNAL = -13,
}

pub(crate) use pl_status::*;

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) status: pl_status,
    pub(crate) text: String,
}

pub(crate) type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub(crate) fn new(status: pl_status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(PL_ERROR_ARGUMENT, text)
    }

    /// The same, said of a network function.
    pub(crate) fn of_function(self, id: c_int) -> Self {
        Self::new(self.status, format!("function {id}: {}", self.text))
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().copied();
        let said = said.or_else(|| panic.downcast_ref::<String>().map(|said| &**said));
        let what = said.unwrap_or("a panic");
        Self::new(PL_ERROR_INTERNAL, format!("{what}; this is a defect of packetloom"))
    }

    /// Keeps the text for `pl_last_error`; the number to return.
    fn keep(self) -> c_int {
        // A text for C ends at its first NUL.
        let text: Vec<u8> = self.text.into_bytes().into_iter().filter(|&byte| byte != 0).collect();
        let text = CString::new(text).unwrap_or_default();
        // A thread that ends has none any more.
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        self.status as c_int
    }
}

impl From<packetloom_engine::Error> for Fault {
    fn from(error: packetloom_engine::Error) -> Self {
        let status = match &error {
            packetloom_engine::Error::Io(_) => PL_ERROR_IO,
            packetloom_engine::Error::Worker => PL_ERROR_INTERNAL,
            _ => PL_ERROR_CONFIG,
        };
        Self::new(status, error.to_string())
    }
}

impl From<packetloom_io::Error> for Fault {
    fn from(error: packetloom_io::Error) -> Self {
        Self::new(PL_ERROR_IO, error.to_string())
    }
}

impl From<packetloom_engine::ConfigError> for Fault {
    fn from(error: packetloom_engine::ConfigError) -> Self {
        Self::new(PL_ERROR_CONFIG, error.to_string())
    }
}

impl From<packetloom_device::Error> for Fault {
    fn from(error: packetloom_device::Error) -> Self {
        let status = match &error {
            packetloom_device::Error::OutOfMemory { .. } => PL_ERROR_MEMORY,
            _ => PL_ERROR_DEVICE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<packetloom_engine::offload::Error> for Fault {
    fn from(error: packetloom_engine::offload::Error) -> Self {
        match error {
            packetloom_engine::offload::Error::Device(error) => error.into(),
            error => Self::new(PL_ERROR_DEVICE, error.to_string()),
        }
    }
}

impl From<packetloom_pattern::image::Error> for Fault {
    fn from(error: packetloom_pattern::image::Error) -> Self {
        match error {
            packetloom_pattern::image::Error::Device(error) => error.into(),
            error => Self::new(PL_ERROR_DEVICE, error.to_string()),
        }
    }
}

thread_local! {
    /// Why the last call of this thread that failed did so.
    static LAST: RefCell<CString> = RefCell::default();
    /// Callbacks of the program that this thread is in.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// Does what a call asks for. No panic leaves it.
pub(crate) fn call(does: impl FnOnce() -> Outcome<c_int>) -> c_int {
    caught(does).unwrap_or_else(Fault::keep)
}

/// Does something whose panics are faults like others.
pub(crate) fn caught<T>(does: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(does)).unwrap_or_else(|panic| Err(Fault::of_panic(&*panic)))
}

/// Calls the program.
pub(crate) fn callback<T>(calls: impl FnOnce() -> T) -> T {
    CALLBACKS.with(|depth| depth.set(depth.get() + 1));
    let returned = calls();
    CALLBACKS.with(|depth| depth.set(depth.get() - 1));
    returned
}

/// Refuses what would wait for the callback in which it is called.
pub(crate) fn outside_callbacks(what: &str) -> Outcome<()> {
    if CALLBACKS.with(Cell::get) == 0 {
        return Ok(());
    }
    let text = format!("{what} in a callback, for which it would wait; expected a call outside of callbacks");
    Err(Fault::new(PL_ERROR_BUSY, text))
}

/// Text that the program passed.
///
/// # Safety
/// It is NULL, or ends with a NUL and lives as long as `'a`.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Fault::argument(format!("{name} is NULL; expected text")));
    }
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Fault::argument(format!("{name} is not UTF-8; expected text")))
}

/// The text of the last error of this thread: why the last call that returned a negative number did so. Empty where none has.
///
/// The text ends with a NUL, is never NULL, and stays until the next call of this thread that fails. For calls of other threads, each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn pl_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// The library's version, such as "0.1.0". The text is static. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn pl_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no NUL"),
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: text of this thread, which makes no other call meanwhile.
        unsafe { CStr::from_ptr(pl_last_error()) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_and_each_thread_has_its_own_text() {
        assert_eq!(last(), "");
        assert_eq!(call(|| panic!("index {}", 7)), PL_ERROR_INTERNAL as c_int);
        assert_eq!(last(), "index 7; this is a defect of packetloom");
        assert_eq!(call(|| std::panic::panic_any(1)), PL_ERROR_INTERNAL as c_int);
        assert_eq!(last(), "a panic; this is a defect of packetloom");
        assert_eq!(std::thread::spawn(last).join().expect("no panic"), "");
        assert_eq!(call(|| Err(Fault::argument("a\0b"))), PL_ERROR_ARGUMENT as c_int);
        assert_eq!(last(), "ab", "text for C ends at a NUL");
        assert_eq!(call(|| Ok(3)), 3);
        assert_eq!(last(), "ab", "what succeeds leaves it");
    }

    #[test]
    fn callbacks_are_known_as_long_as_they_last() {
        outside_callbacks("x").expect("none");
        let inside = callback(|| callback(|| true) && outside_callbacks("x").is_err());
        assert!(inside && outside_callbacks("x").is_ok());
    }
}
