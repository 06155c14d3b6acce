//! A producer of librdkafka. Its functions have the types of `rdkafka.h` (1.0 and later).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libloading::Library;

use super::Options;

/// The library of all versions that have these functions.
const NAME: &str = "librdkafka.so.1";

/// `RD_KAFKA_PRODUCER`.
const PRODUCER: c_int = 0;
/// `RD_KAFKA_CONF_OK`.
const CONF_OK: c_int = 0;
/// `RD_KAFKA_PARTITION_UA`: the partitioner chooses one.
const ANY_PARTITION: i32 = -1;
/// `RD_KAFKA_MSG_F_COPY`.
const COPY: c_int = 2;
/// `RD_KAFKA_RESP_ERR__QUEUE_FULL`.
const QUEUE_FULL: c_int = -184;
/// `RD_KAFKA_PURGE_F_QUEUE` and `RD_KAFKA_PURGE_F_INFLIGHT`.
const PURGE_ALL: c_int = 1 | 2;
/// `RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART` and `RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE`, which a topic has while it is made.
const IN_THE_MAKING: [c_int; 2] = [3, 5];
/// How long it is waited until a topic is asked for again.
const AGAIN: Duration = Duration::from_millis(100);
/// Bytes of an error's text.
const TEXT: usize = 512;

/// `rd_kafka_t`, `rd_kafka_conf_t` and `rd_kafka_topic_t`.
type Opaque = c_void;

/// `rd_kafka_message_t`.
#[repr(C)]
struct Message {
    err: c_int,
    rkt: *mut Opaque,
    partition: i32,
    payload: *mut c_void,
    len: usize,
    key: *mut c_void,
    key_len: usize,
    offset: i64,
    private: *mut c_void,
}

/// `rd_kafka_metadata`.
#[repr(C)]
struct Metadata {
    broker_cnt: c_int,
    brokers: *const c_void,
    topic_cnt: c_int,
    topics: *const TopicMetadata,
    orig_broker_id: i32,
    orig_broker_name: *const c_char,
}

/// `rd_kafka_metadata_topic`.
#[repr(C)]
struct TopicMetadata {
    topic: *const c_char,
    partition_cnt: c_int,
    partitions: *const c_void,
    err: c_int,
}

type DeliveryReport = unsafe extern "C" fn(*mut Opaque, *const Message, *mut c_void);
type ErrorReport = unsafe extern "C" fn(*mut Opaque, c_int, *const c_char, *mut c_void);
type Log = unsafe extern "C" fn(*const Opaque, c_int, *const c_char, *const c_char);

/// What is called of the library.
struct Functions {
    conf_new: unsafe extern "C" fn() -> *mut Opaque,
    conf_destroy: unsafe extern "C" fn(*mut Opaque),
    conf_set: unsafe extern "C" fn(*mut Opaque, *const c_char, *const c_char, *mut c_char, usize) -> c_int,
    conf_set_opaque: unsafe extern "C" fn(*mut Opaque, *mut c_void),
    conf_set_dr_msg_cb: unsafe extern "C" fn(*mut Opaque, DeliveryReport),
    conf_set_error_cb: unsafe extern "C" fn(*mut Opaque, ErrorReport),
    conf_set_log_cb: unsafe extern "C" fn(*mut Opaque, Log),
    new: unsafe extern "C" fn(c_int, *mut Opaque, *mut c_char, usize) -> *mut Opaque,
    destroy: unsafe extern "C" fn(*mut Opaque),
    topic_new: unsafe extern "C" fn(*mut Opaque, *const c_char, *mut Opaque) -> *mut Opaque,
    topic_destroy: unsafe extern "C" fn(*mut Opaque),
    produce: unsafe extern "C" fn(
        *mut Opaque,
        i32,
        c_int,
        *mut c_void,
        usize,
        *const c_void,
        usize,
        *mut c_void,
    ) -> c_int,
    last_error: unsafe extern "C" fn() -> c_int,
    err2str: unsafe extern "C" fn(c_int) -> *const c_char,
    poll: unsafe extern "C" fn(*mut Opaque, c_int) -> c_int,
    outq_len: unsafe extern "C" fn(*mut Opaque) -> c_int,
    purge: unsafe extern "C" fn(*mut Opaque, c_int) -> c_int,
    metadata: unsafe extern "C" fn(*mut Opaque, c_int, *mut Opaque, *mut *const Metadata, c_int) -> c_int,
    metadata_destroy: unsafe extern "C" fn(*const Metadata),
    flush: unsafe extern "C" fn(*mut Opaque, c_int) -> c_int,
    /// Keeps the functions where they are.
    _library: Library,
}

impl Functions {
    /// Loaded once, and never unloaded: threads of the library may outlive a producer.
    fn get() -> Result<&'static Self, String> {
        static FUNCTIONS: OnceLock<Result<Functions, String>> = OnceLock::new();
        let loaded = FUNCTIONS.get_or_init(|| {
            Self::load().map_err(|_| {
                format!("{NAME} is not installed, or too old; on Debian: apt-get install librdkafka1")
            })
        });
        loaded.as_ref().map_err(String::clone)
    }

    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: librdkafka has no initializers that depend on anything of this program.
        let library = unsafe { Library::new(NAME)? };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the field has the type that rdkafka.h gives the function of this name.
                unsafe { *library.get(concat!("rd_kafka_", $name, "\0").as_bytes())? }
            };
        }
        Ok(Self {
            conf_new: function!("conf_new"),
            conf_destroy: function!("conf_destroy"),
            conf_set: function!("conf_set"),
            conf_set_opaque: function!("conf_set_opaque"),
            conf_set_dr_msg_cb: function!("conf_set_dr_msg_cb"),
            conf_set_error_cb: function!("conf_set_error_cb"),
            conf_set_log_cb: function!("conf_set_log_cb"),
            new: function!("new"),
            destroy: function!("destroy"),
            topic_new: function!("topic_new"),
            topic_destroy: function!("topic_destroy"),
            produce: function!("produce"),
            last_error: function!("last_error"),
            err2str: function!("err2str"),
            poll: function!("poll"),
            outq_len: function!("outq_len"),
            purge: function!("purge"),
            metadata: function!("metadata"),
            metadata_destroy: function!("metadata_destroy"),
            flush: function!("flush"),
            _library: library,
        })
    }

    fn text(&self, error: c_int) -> String {
        // SAFETY: it returns a static string for any number.
        text_of(unsafe { (self.err2str)(error) })
    }
}

/// A string that a library has made.
fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it ends with a NUL, and is there as long as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// What became of messages.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    delivered: AtomicU64,
    bytes: AtomicU64,
    failed: AtomicU64,
    /// What went wrong last, until it is taken.
    trouble: Mutex<Option<String>>,
}

impl Tally {
    /// Messages that a broker has acknowledged, and their bytes.
    pub(crate) fn delivered(&self) -> (u64, u64) {
        (self.delivered.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Messages that no broker has.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// What went wrong last.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set_trouble(&self, text: String) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }
}

/// Called by `rd_kafka_poll`, in the thread that calls that, for each message that was delivered or given up.
unsafe extern "C" fn on_delivery(_: *mut Opaque, message: *const Message, tally: *mut c_void) {
    // SAFETY: the library hands over its message, and the pointer that `Producer::new` gave it, which outlives the producer.
    let (message, tally) = unsafe { (&*message, &*tally.cast::<Tally>()) };
    if message.err == 0 {
        tally.delivered.fetch_add(1, Ordering::Relaxed);
        tally.bytes.fetch_add(message.len as u64, Ordering::Relaxed);
        return;
    }
    tally.failed.fetch_add(1, Ordering::Relaxed);
    if let Ok(functions) = Functions::get() {
        tally.set_trouble(functions.text(message.err));
    }
}

/// Called in the same way for what goes wrong with brokers, which the library tries again.
unsafe extern "C" fn on_error(_: *mut Opaque, _: c_int, reason: *const c_char, tally: *mut c_void) {
    // SAFETY: as above; the text is there during the call.
    unsafe { &*tally.cast::<Tally>() }.set_trouble(text_of(reason));
}

/// Nothing is said but by the exporter.
unsafe extern "C" fn on_log(_: *const Opaque, _: c_int, _: *const c_char, _: *const c_char) {}

/// That no more messages are taken until others have arrived.
pub(crate) struct Full;

/// A producer for one topic.
pub(crate) struct Producer {
    functions: &'static Functions,
    client: NonNull<Opaque>,
    topic: NonNull<Opaque>,
    /// Callbacks have its address.
    tally: Box<Tally>,
}

// SAFETY: librdkafka's handles may be used by any thread.
unsafe impl Send for Producer {}

impl Producer {
    /// # Errors
    ///
    /// The library is not there, or a property is none of its; as a text.
    pub(crate) fn new(brokers: &str, topic: &str, options: &Options) -> Result<Self, String> {
        let functions = Functions::get()?;
        let tally = Box::new(Tally::default());
        let mut why = [0 as c_char; TEXT];
        // SAFETY: it has no conditions.
        let conf = unsafe { (functions.conf_new)() };
        let mut set = |name: &str, value: &str| -> Result<(), String> {
            let c = |text: &str| CString::new(text).map_err(|_| format!("{name}: a NUL in it"));
            let (name, value) = (c(name)?, c(value)?);
            // SAFETY: `conf` is of conf_new, the strings end with NUL, and the buffer has the length that is said.
            let result =
                unsafe { (functions.conf_set)(conf, name.as_ptr(), value.as_ptr(), why.as_mut_ptr(), TEXT) };
            if result == CONF_OK { Ok(()) } else { Err(text_of(why.as_ptr())) }
        };
        let own = Options::DEFAULTS.into_iter();
        let own = own.filter(|(name, _)| !options.properties.contains_key(*name));
        let given = options.properties.iter().map(|(name, value)| (&**name, &**value));
        let all = [("bootstrap.servers", brokers)].into_iter().chain(own).chain(given);
        let is_set = all.into_iter().try_for_each(|(name, value)| set(name, value));
        if let Err(why) = is_set {
            // SAFETY: it is of conf_new, and nobody else has it.
            unsafe { (functions.conf_destroy)(conf) };
            return Err(why);
        }
        // SAFETY: `conf` is of conf_new; the functions have the types that the library expects, and the tally lives as long as the client.
        let client = unsafe {
            (functions.conf_set_opaque)(conf, ptr::from_ref(&*tally).cast_mut().cast());
            (functions.conf_set_dr_msg_cb)(conf, on_delivery);
            (functions.conf_set_error_cb)(conf, on_error);
            (functions.conf_set_log_cb)(conf, on_log);
            (functions.new)(PRODUCER, conf, why.as_mut_ptr(), TEXT)
        };
        let Some(client) = NonNull::new(client) else {
            // SAFETY: a client that could not be made leaves its configuration to the caller.
            unsafe { (functions.conf_destroy)(conf) };
            return Err(text_of(why.as_ptr()));
        };
        let name = CString::new(topic).map_err(|_| "a NUL in the topic".to_owned());
        // SAFETY: the client is there, and the name ends with NUL; no configuration of a topic is the default one.
        let topic = name
            .map(|name| unsafe { (functions.topic_new)(client.as_ptr(), name.as_ptr(), ptr::null_mut()) });
        match topic.map(NonNull::new) {
            Ok(Some(topic)) => Ok(Self { functions, client, topic, tally }),
            other => {
                // SAFETY: nobody else has the client.
                unsafe { (functions.destroy)(client.as_ptr()) };
                Err(other.err().unwrap_or_else(|| "the topic cannot be used".into()))
            }
        }
    }

    /// What became of messages so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Asks a broker for the topic, for so long at most; one that is made when it is asked for is waited for.
    ///
    /// # Errors
    ///
    /// No broker answers, or the topic cannot be written to; as a text.
    pub(crate) fn probe(&self, time: Duration) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let left = time.saturating_sub(begun.elapsed());
            match self.ask(left) {
                Ok(0) => return Ok(()),
                Ok(error) if IN_THE_MAKING.contains(&error) && left > AGAIN => thread::sleep(AGAIN),
                Ok(error) => return Err(self.functions.text(error)),
                Err(error) => {
                    self.poll(0);
                    return Err(self.tally.trouble().unwrap_or_else(|| self.functions.text(error)));
                }
            }
        }
    }

    /// The error of the topic, or 0; or that of asking.
    fn ask(&self, time: Duration) -> Result<c_int, c_int> {
        let milliseconds = c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
        let mut found = ptr::null();
        // SAFETY: client and topic are there; what is found is given back.
        let error = unsafe {
            let (client, topic) = (self.client.as_ptr(), self.topic.as_ptr());
            (self.functions.metadata)(client, 0, topic, &raw mut found, milliseconds)
        };
        if error != 0 {
            return Err(error);
        }
        // SAFETY: the call has made it, with as many topics as it says, and it is given back once.
        unsafe {
            let error = if (*found).topic_cnt > 0 { (*(*found).topics).err } else { 0 };
            (self.functions.metadata_destroy)(found);
            Ok(error)
        }
    }

    /// Takes a message; one that can never be sent is counted as failed.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub(crate) fn send(&self, message: &[u8]) -> Result<(), Full> {
        // SAFETY: the topic is there; with COPY the library reads the bytes during the call only.
        let (result, error) = unsafe {
            let payload = message.as_ptr().cast_mut().cast();
            let (topic, null) = (self.topic.as_ptr(), ptr::null_mut());
            let result =
                (self.functions.produce)(topic, ANY_PARTITION, COPY, payload, message.len(), null, 0, null);
            (result, (self.functions.last_error)())
        };
        match (result, error) {
            (0, _) => Ok(()),
            (_, QUEUE_FULL) => Err(Full),
            (_, error) => {
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                self.tally.set_trouble(self.functions.text(error));
                Ok(())
            }
        }
    }

    /// Messages that have neither arrived nor failed.
    pub(crate) fn waiting(&self) -> usize {
        // SAFETY: the client is there.
        usize::try_from(unsafe { (self.functions.outq_len)(self.client.as_ptr()) }).unwrap_or(0)
    }

    /// Waits so many milliseconds for news of messages, and counts them.
    pub(crate) fn poll(&self, milliseconds: c_int) {
        // SAFETY: the client is there; callbacks only count.
        unsafe { (self.functions.poll)(self.client.as_ptr(), milliseconds) };
    }

    /// The same where no more messages come: those that wait for others are sent.
    pub(crate) fn flush(&self, milliseconds: c_int) {
        // SAFETY: the client is there; callbacks only count.
        unsafe { (self.functions.flush)(self.client.as_ptr(), milliseconds) };
    }

    /// Gives up all messages that have not arrived: they fail with the next [`Producer::poll`].
    pub(crate) fn give_up(&self) {
        // SAFETY: the client is there.
        unsafe { (self.functions.purge)(self.client.as_ptr(), PURGE_ALL) };
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // What waits is not waited for here.
        self.give_up();
        // SAFETY: nobody else has them, and the tally is dropped after them.
        unsafe {
            (self.functions.topic_destroy)(self.topic.as_ptr());
            (self.functions.destroy)(self.client.as_ptr());
        }
    }
}
