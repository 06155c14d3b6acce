//! Calls into DPDK, through the plain functions of `shim.c`: the one place of this crate with unsafe code.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::layout::{Field, Layout, Rules, Words};
use crate::Error;
use crate::sample::{Clock, measure};

/// What the first index of so many rules is given: most sets of real structure need less.
fn first_guess(rules: usize) -> usize {
    (32 << 20) + rules * (12 << 10)
}

/// No index is given more than this.
const MAX_BYTES: usize = 32 << 30;

/// A context of rte_acl.
#[repr(C)]
struct Context {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn packetloom_start() -> c_int;
    fn packetloom_reserve(bytes: usize) -> c_int;
    fn packetloom_build(
        address_words: u32,
        extra: c_int,
        fields: *const Field,
        positions: *const u32,
        rules: u32,
        context: *mut *mut Context,
        algorithm: *mut *const c_char,
        bytes: *mut usize,
    ) -> c_int;
    fn rte_acl_classify(
        context: *const Context,
        data: *const *const u8,
        results: *mut u32,
        count: u32,
        categories: u32,
    ) -> c_int;
    fn rte_acl_free(context: *mut Context);
    fn rte_version() -> *const c_char;
}

/// Held while indexes are made or freed: the shim reads the heap's level before and after.
static HEAP: Mutex<()> = Mutex::new(());

/// Turns what the shim returns into an error.
fn check(what: &str, code: c_int) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        code => Err(Error::Peer(format!(
            "rte_acl: {what}: {}",
            io::Error::from_raw_os_error(code.wrapping_neg())
        ))),
    }
}

/// Starts DPDK, once.
fn start() -> Result<(), Error> {
    static STARTED: OnceLock<c_int> = OnceLock::new();
    // SAFETY: the function takes nothing, and is called once in the life of the process, as rte_eal_init asks.
    check("cannot start DPDK", *STARTED.get_or_init(|| unsafe { packetloom_start() }))
}

/// Which DPDK it is.
pub(super) fn version() -> String {
    // SAFETY: the function has no conditions, and returns a string that ends in 0 and is never freed or changed.
    unsafe { CStr::from_ptr(rte_version()) }.to_string_lossy().into_owned()
}

/// Keys where rte_acl can read them.
#[derive(Debug)]
pub(super) struct Keys {
    layout: Layout,
    /// One for each key, to the first of its words in `words`.
    pointers: Vec<*const u8>,
    /// Never touched again: the pointers point into it.
    _words: Vec<u32>,
}

impl Keys {
    /// Lays keys out.
    pub(super) fn new<K: Words>(layout: Layout, keys: &[K]) -> Self {
        let words = layout.keys(keys);
        let pointers = words.chunks_exact(layout.key_words()).map(|key| key.as_ptr().cast()).collect();
        Self { layout, pointers, _words: words }
    }
}

/// An index of rules.
#[derive(Debug)]
pub(super) struct Index {
    context: NonNull<Context>,
    layout: Layout,
    algorithm: &'static CStr,
    bytes: usize,
    build_time: Duration,
}

impl Index {
    /// Builds the index, with as much memory as it needs.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] with what DPDK says.
    pub(super) fn build(rules: &Rules) -> Result<Self, Error> {
        let heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
        start()?;
        let count = rules.positions.len();
        assert_eq!(rules.fields.len(), count * rules.layout.fields());
        let c_count = u32::try_from(count).map_err(|_| Error::Peer("rte_acl: too many rules".into()))?;
        let mut room = first_guess(count);
        let (mut context, mut algorithm, mut bytes) = (ptr::null_mut(), ptr::null(), 0);
        loop {
            // SAFETY: DPDK is started, and the lock keeps out other users of the heap.
            check("cannot get memory", unsafe { packetloom_reserve(room) })?;
            let (code, round) = measure(Clock::Thread, || {
                // SAFETY: DPDK is started. Both arrays are as long as the count says, with the fields of the layout for
                // each rule (asserted above), and only read during the call. The last three point to variables that the
                // function writes when it returns 0.
                unsafe {
                    packetloom_build(
                        rules.layout.address_words,
                        rules.layout.extra.into(),
                        rules.fields.as_ptr(),
                        rules.positions.as_ptr(),
                        c_count,
                        &raw mut context,
                        &raw mut algorithm,
                        &raw mut bytes,
                    )
                }
            });
            let is_short = code == -rustix::io::Errno::NOMEM.raw_os_error();
            if is_short && room < MAX_BYTES {
                room *= 2;
                continue;
            }
            check("cannot build the index", code)?;
            drop(heap);
            let context = NonNull::new(context).ok_or_else(|| Error::Peer("rte_acl: no context".into()))?;
            // SAFETY: on success the function points this to a string constant.
            let algorithm = unsafe { CStr::from_ptr(algorithm) };
            return Ok(Self { context, layout: rules.layout, algorithm, bytes, build_time: round.wall() });
        }
    }

    /// The instructions it uses.
    pub(super) fn algorithm(&self) -> &str {
        self.algorithm.to_str().unwrap_or_default()
    }

    /// Memory that it holds.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What building it took.
    pub(super) fn build_time(&self) -> Duration {
        self.build_time
    }

    /// Classifies as many keys as there is room for results, from the key `start` on: positions plus 1, or 0.
    ///
    /// # Panics
    ///
    /// Where there are fewer keys, or their layout is another.
    pub(super) fn classify(&self, keys: &Keys, start: usize, results: &mut [u32]) {
        assert_eq!(keys.layout, self.layout);
        let pointers = &keys.pointers[start..start + results.len()];
        let count = u32::try_from(results.len()).expect("a batch below 2^32");
        // SAFETY: the context was built and lives until `self` is dropped. Every pointer leads to a key of the layout that
        // the index was built for, which lives as long as `keys`; there are as many pointers as results, of one category.
        let code = unsafe {
            rte_acl_classify(self.context.as_ptr(), pointers.as_ptr(), results.as_mut_ptr(), count, 1)
        };
        debug_assert_eq!(code, 0, "the only error is of the number of categories");
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _heap = HEAP.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nobody else has the context, and it is not used after this.
        unsafe { rte_acl_free(self.context.as_ptr()) };
    }
}
