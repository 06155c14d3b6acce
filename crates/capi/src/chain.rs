//! The engine for C: chains over packets that the program holds.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::path::Path;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use packetloom_packet::{DropReason, LinkType, Timestamp, Verdict};

use crate::embedded::{Embedded, Judged, Packet};
use crate::status::*;

/// Outputs of functions (flow records, logs) go to the program, which reads them with `pl_chain_read`: none of the files is made that the
/// chain names for them.
pub const PL_OUTPUTS_TO_PROGRAM: u32 = 1;

/// Packets come as they are sent: flows that were silent end a second after their timeout, without a further packet of theirs. Without this,
/// the same packets give the same records at any time.
pub const PL_LIVE: u32 = 2;

/// The link type of Ethernet frames; others are numbered as in capture files (LINKTYPE_...; 101 is raw IP).
pub const PL_LINK_ETHERNET: u32 = 1;

/// Packets of a call of `pl_chain_process` at most.
pub const PL_MAX_PACKETS: usize = 1 << 20;

/// The longest packet, in bytes.
pub const PL_MAX_PACKET_BYTES: u32 = 1 << 18;

/// A packet that the program holds. It is only read, and only during the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct pl_packet {
    /// Its bytes from the link header on. NULL only where `len` is 0.
    pub bytes: *const u8,
    /// Bytes that are there, at most `PL_MAX_PACKET_BYTES`.
    pub len: u32,
    /// Bytes it had on the wire; 0 is as many as are there.
    pub wire_len: u32,
    /// When it came, in nanoseconds since 1970.
    pub time_ns: u64,
}

/// What became of a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub struct pl_verdict {
    /// 0 where it passes, else the number of the reason why it was dropped: see `pl_drop_reason`.
    pub dropped: u32,
    /// The mark that a function gave it, or 0.
    pub mark: u32,
    /// 1 where a function rewrote it: `pl_chain_rewritten` has its bytes then.
    pub rewritten: u32,
}

type Chains = BTreeMap<c_int, Arc<Mutex<Embedded>>>;

/// All chains that are open, and the last number that one got.
static CHAINS: Mutex<(Chains, c_int)> = Mutex::new((BTreeMap::new(), 0));

fn with_chains<T>(does: impl FnOnce(&mut Chains, &mut c_int) -> T) -> T {
    // What is done with the lock held leaves no half of a change.
    let mut all = CHAINS.lock().unwrap_or_else(PoisonError::into_inner);
    let (chains, last) = &mut *all;
    does(chains, last)
}

/// Does something with a chain that no other thread uses.
fn with<T>(chain: c_int, does: impl FnOnce(MutexGuard<'_, Embedded>) -> Outcome<T>) -> Outcome<T> {
    let found = with_chains(|chains, _| chains.get(&chain).cloned()).ok_or_else(|| none(chain))?;
    match found.try_lock() {
        Ok(embedded) => does(embedded),
        Err(TryLockError::WouldBlock) => {
            let text = format!("chain {chain} is in use by another thread; expected one thread at a time");
            Err(Fault::new(PL_ERROR_BUSY, text))
        }
        Err(TryLockError::Poisoned(_)) => {
            Err(Fault::new(PL_ERROR_INTERNAL, format!("chain {chain} failed before; it can only be closed")))
        }
    }
}

fn none(chain: c_int) -> Fault {
    Fault::new(PL_ERROR_NOT_FOUND, format!("no chain {chain}; expected one that is open"))
}

fn open(flags: u32, make: impl FnOnce(bool) -> Outcome<Embedded>) -> Outcome<c_int> {
    if flags & !(PL_OUTPUTS_TO_PROGRAM | PL_LIVE) != 0 {
        return Err(Fault::argument(format!(
            "flags {flags:#x}; expected PL_OUTPUTS_TO_PROGRAM and PL_LIVE, or 0"
        )));
    }
    let mut embedded = make(flags & PL_OUTPUTS_TO_PROGRAM != 0)?;
    embedded.set_live(flags & PL_LIVE != 0);
    with_chains(|chains, last| {
        *last = last
            .checked_add(1)
            .ok_or_else(|| Fault::new(PL_ERROR_FULL, "more chains than there are numbers"))?;
        chains.insert(*last, Arc::new(Mutex::new(embedded)));
        Ok(*last)
    })
}

/// Opens the chain of a chain file. `[source]` of the file is not used: the program has the packets, and is what decides where those go that
/// pass. So a chain with `[sink]` files, exporters, a device, a summary or a control socket is refused. Functions run in the thread that
/// calls `pl_chain_process`.
///
/// `flags` is 0, or `PL_OUTPUTS_TO_PROGRAM` and `PL_LIVE`, combined with |. Any thread may call it.
///
/// Returns the chain's id, which is positive, or `PL_ERROR_ARGUMENT`, `PL_ERROR_CONFIG` with all mistakes of the file, `PL_ERROR_IO` where
/// an output cannot be made. To be closed with `pl_chain_close`.
///
/// # Safety
/// `path` is NULL or text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pl_chain_load(path: *const c_char, flags: u32) -> c_int {
    call(|| {
        // SAFETY: as above.
        let path = unsafe { text("path", path) }?;
        open(flags, |to_program| Embedded::load(Path::new(path), to_program))
    })
}

/// Opens a chain from the text of a chain file; paths in it count from `folder`, or from the working directory where that is NULL. All else is
/// as with `pl_chain_load`.
///
/// # Safety
/// `toml` and `folder` are NULL or texts that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pl_chain_parse(toml: *const c_char, folder: *const c_char, flags: u32) -> c_int {
    call(|| {
        // SAFETY: as above.
        let toml = unsafe { text("toml", toml) }?;
        // SAFETY: as above.
        let folder = if folder.is_null() { "" } else { unsafe { text("folder", folder) }? };
        open(flags, |to_program| Embedded::parse("chain", toml, Path::new(folder), to_program))
    })
}

/// Takes packets through a chain, in order, and writes a verdict for each. Packets are copied; `packets` and `verdicts` are the program's
/// again when it returns. It takes any number of packets from 0 to `PL_MAX_PACKETS`; some hundred at a time are good.
///
/// `link_type` says what the packets begin with: `PL_LINK_ETHERNET`, or another number of capture files.
///
/// One thread at a time may use a chain; different chains may be used at the same time.
///
/// Returns `PL_OK`, or, with no packet processed: `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, `PL_ERROR_BUSY`, `PL_ERROR_FINISHED`, or
/// `PL_ERROR_FULL` where more than 64 MiB of outputs wait for `pl_chain_read`. With `PL_ERROR_IO` an output failed, and some packets were
/// processed.
///
/// # Safety
/// `packets` and `verdicts` have `count` elements, and the packets have the bytes that they say, which nobody writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pl_chain_process(
    chain: c_int,
    link_type: u32,
    packets: *const pl_packet,
    count: usize,
    verdicts: *mut pl_verdict,
) -> c_int {
    call(|| {
        if count > PL_MAX_PACKETS {
            return Err(Fault::argument(format!("{count} packets; expected {PL_MAX_PACKETS} at most")));
        }
        if count > 0 && (packets.is_null() || verdicts.is_null()) {
            return Err(Fault::argument("packets or verdicts is NULL; expected both"));
        }
        // SAFETY: there are so many, says the program.
        let packets = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(packets, count) } };
        for (index, packet) in packets.iter().enumerate() {
            if packet.bytes.is_null() && packet.len > 0 {
                return Err(Fault::argument(format!(
                    "the bytes of packet {index} are NULL; expected {}",
                    packet.len
                )));
            }
            if packet.len > PL_MAX_PACKET_BYTES {
                let (len, most) = (packet.len, PL_MAX_PACKET_BYTES);
                return Err(Fault::argument(format!(
                    "packet {index} has {len} bytes; expected {most} at most"
                )));
            }
        }
        let all = packets.iter().map(|&pl_packet { bytes, len, wire_len, time_ns }| Packet {
            bytes: match len {
                0 => &[],
                // SAFETY: it has so many bytes, says the program.
                _ => unsafe { slice::from_raw_parts(bytes, len as usize) },
            },
            wire_len: wire_len.max(len),
            time: Timestamp::from_nanos(time_ns),
        });
        let judged = |index: usize, judged: Judged| {
            let Judged { verdict, mark, is_rewritten } = judged;
            let verdict =
                pl_verdict { dropped: verdict.code().into(), mark, rewritten: u32::from(is_rewritten) };
            // SAFETY: there are `count` of them, and the index is that of a packet.
            unsafe { verdicts.add(index).write(verdict) };
        };
        with(chain, |mut chain| chain.process(LinkType::of_number(link_type), all, judged))?;
        Ok(PL_OK as c_int)
    })
}

/// Says that no packet came until `time_ns`, in nanoseconds since 1970, so that idle flows of a chain with `PL_LIVE` end. Other chains take no
/// notice.
///
/// Returns `PL_OK`, `PL_ERROR_NOT_FOUND`, `PL_ERROR_BUSY`, `PL_ERROR_FINISHED` or `PL_ERROR_IO`.
#[unsafe(no_mangle)]
pub extern "C" fn pl_chain_pass_time(chain: c_int, time_ns: u64) -> c_int {
    call(|| {
        with(chain, |mut chain| chain.pass_time(Timestamp::from_nanos(time_ns)))?;
        Ok(PL_OK as c_int)
    })
}

/// Copies the bytes of packet `index` of the last call of `pl_chain_process`, as they are to be sent: functions rewrote it. Its length is what
/// it was.
///
/// `size` is the room at `bytes`, in bytes. `len` gets how many bytes it has, also where there is no room for them.
///
/// Returns `PL_OK`, `PL_ERROR_FULL` where there is no room, `PL_ERROR_NOT_FOUND` where there is no such packet or it was not rewritten,
/// `PL_ERROR_ARGUMENT` or `PL_ERROR_BUSY`.
///
/// # Safety
/// There is room for `size` bytes at `bytes`, and for a number at `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pl_chain_rewritten(
    chain: c_int,
    index: usize,
    bytes: *mut u8,
    size: usize,
    len: *mut usize,
) -> c_int {
    call(|| {
        with(chain, |chain| {
            let rewritten = chain.rewritten(index).ok_or_else(|| {
                let text =
                    format!("packet {index} was not rewritten by the last call; expected one that was");
                Fault::new(PL_ERROR_NOT_FOUND, text)
            })?;
            // SAFETY: there is as much room as the program says.
            unsafe { copy_out(rewritten, bytes, size, len) }
        })
    })
}

/// How many functions a chain has: they are numbered from 0 in the order of the chain. Returns the number, `PL_ERROR_NOT_FOUND` or
/// `PL_ERROR_BUSY`.
#[unsafe(no_mangle)]
pub extern "C" fn pl_chain_functions(chain: c_int) -> c_int {
    call(|| with(chain, |chain| Ok(chain.functions().len() as c_int)))
}

/// Copies outputs of a function that were not read yet: flow records or lines of a log, as the chain has them (JSON lines unless it says
/// something else). What was copied is forgotten. It is text without a NUL; a line may be continued by the next call.
///
/// `size` is the room at `to`, in bytes; `len` gets how many were copied, 0 where there is nothing.
///
/// Returns `PL_OK`, `PL_ERROR_ARGUMENT`, `PL_ERROR_BUSY`, or `PL_ERROR_NOT_FOUND` where there is no such function or its outputs do not go to
/// the program.
///
/// # Safety
/// There is room for `size` bytes at `to`, and for a number at `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pl_chain_read(
    chain: c_int,
    function: usize,
    to: *mut c_char,
    size: usize,
    len: *mut usize,
) -> c_int {
    call(|| {
        if len.is_null() || (to.is_null() && size > 0) {
            return Err(Fault::argument("to or len is NULL; expected both"));
        }
        with(chain, |mut chain| {
            let to = match size {
                0 => &mut [],
                // SAFETY: there is as much room as the program says; what lies there is not read.
                _ => unsafe { slice::from_raw_parts_mut(to.cast::<MaybeUninit<u8>>(), size) },
            };
            let read = chain.read(function, to)?;
            // SAFETY: there is room for a number.
            unsafe { len.write(read) };
            Ok(PL_OK as c_int)
        })
    })
}

/// Copies what a chain has counted so far as JSON: the summary that `packetloom run --summary` writes. The text ends with a NUL.
///
/// `size` is the room at `json`, in bytes. `len` gets the length of the text without the NUL, also where there is no room for it.
///
/// Returns `PL_OK`, `PL_ERROR_FULL` where `size` is not larger than that length, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND` or
/// `PL_ERROR_BUSY`.
///
/// # Safety
/// There is room for `size` bytes at `json`, and for a number at `len`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pl_chain_summary(
    chain: c_int,
    json: *mut c_char,
    size: usize,
    len: *mut usize,
) -> c_int {
    call(|| {
        with(chain, |chain| {
            let mut text = chain.summary().into_bytes();
            text.push(0);
            // SAFETY: there is as much room as the program says.
            let copied = unsafe { copy_out(&text, json.cast(), size, len) };
            if !len.is_null() {
                // SAFETY: there is room for a number.
                unsafe { len.write(text.len() - 1) };
            }
            copied
        })
    })
}

/// Ends all flows of a chain, with their records, and finishes its files, which then have their names. Afterwards the chain can be read and
/// closed, but takes no packets.
///
/// Returns `PL_OK`, or `PL_MORE` where outputs are to be read with `pl_chain_read` first, before it is called again; `PL_ERROR_NOT_FOUND`,
/// `PL_ERROR_BUSY`, `PL_ERROR_FINISHED` or `PL_ERROR_IO`.
#[unsafe(no_mangle)]
pub extern "C" fn pl_chain_finish(chain: c_int) -> c_int {
    call(|| {
        let more = with(chain, |mut chain| chain.finish())?;
        Ok(if more { PL_MORE } else { PL_OK } as c_int)
    })
}

/// Closes a chain and frees what it has. Files of a chain that is not finished do not appear. Its id is not used again.
///
/// Returns `PL_OK`, `PL_ERROR_NOT_FOUND` where it was closed already, or `PL_ERROR_BUSY` where another thread uses it: then it stays open.
#[unsafe(no_mangle)]
pub extern "C" fn pl_chain_close(chain: c_int) -> c_int {
    call(|| {
        let removed = with_chains(|chains, _| {
            let found = chains.get(&chain).ok_or_else(|| none(chain))?;
            // A chain that failed is nobody's.
            if matches!(found.try_lock(), Err(TryLockError::WouldBlock)) {
                let text = format!("chain {chain} is in use by another thread; expected none");
                return Err(Fault::new(PL_ERROR_BUSY, text));
            }
            Ok(chains.remove(&chain))
        })?;
        drop(removed);
        Ok(PL_OK as c_int)
    })
}

/// The name of a reason why packets are dropped, by the number in `pl_verdict`: "acl_rule", for one, as summaries have it. "pass" for 0, and
/// NULL where there is no such reason. The text is static. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn pl_drop_reason(dropped: u32) -> *const c_char {
    /// The names, each with a NUL, one after the other.
    static NAMES: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        let names = DropReason::ALL.map(DropReason::name);
        std::iter::once("pass").chain(names).map(|name| format!("{name}\0")).collect()
    });
    let Some(Verdict::Pass | Verdict::Drop(_)) = u8::try_from(dropped).ok().and_then(Verdict::of_code) else {
        return std::ptr::null();
    };
    let before: usize = NAMES.split_inclusive('\0').take(dropped as usize).map(str::len).sum();
    NAMES[before..].as_ptr().cast()
}

/// Copies bytes to the program, if there is room.
///
/// # Safety
/// There is room for `size` bytes at `to` unless it is NULL, and for a number at `len` unless that is.
unsafe fn copy_out(bytes: &[u8], to: *mut u8, size: usize, len: *mut usize) -> Outcome<c_int> {
    if len.is_null() {
        return Err(Fault::argument("len is NULL; expected room for a number"));
    }
    // SAFETY: as above.
    unsafe { len.write(bytes.len()) };
    if bytes.len() > size {
        let text = format!("no room for {} bytes in {size}; expected as many", bytes.len());
        return Err(Fault::new(PL_ERROR_FULL, text));
    }
    if to.is_null() && !bytes.is_empty() {
        return Err(Fault::argument("no memory to copy to: NULL; expected room"));
    }
    // SAFETY: there is room for `size` bytes, says the program, and it is not part of what is copied.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(PL_OK as c_int)
}
