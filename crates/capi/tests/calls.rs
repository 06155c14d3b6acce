//! Calls as C makes them, right and wrong: what each returns, and that nothing else happens.

#![allow(missing_docs)]
#![allow(unsafe_code, reason = "functions for C are called")]

#[path = "calls/devices.rs"]
mod devices;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use packetloom_capi::pl_status::*;
use packetloom_capi::*;
use packetloom_pattern::{Patterns, oracle};

const CPU: nca_dev = nca_dev { dev_type: 0, num_devices: 2 };

fn said() -> String {
    // SAFETY: it is text, and this thread makes no other call meanwhile.
    unsafe { CStr::from_ptr(pl_last_error()) }.to_str().expect("UTF-8").to_owned()
}

/// A call that fails: with which status, and with words of which this is a part.
#[track_caller]
fn fails(returned: c_int, status: pl_status, words: &str) {
    let said = said();
    assert_eq!(returned, status as c_int, "{said}");
    assert!(said.contains(words), "{said:?} has not {words:?}");
}

#[track_caller]
fn works(returned: c_int) -> c_int {
    assert!(returned >= 0, "{returned}: {}", said());
    returned
}

fn parse(toml: &str, flags: u32) -> c_int {
    let toml = CString::new(toml).expect("no NUL");
    // SAFETY: texts that end with a NUL.
    unsafe { pl_chain_parse(toml.as_ptr(), null(), flags) }
}

/// Has packets judged.
fn process(chain: c_int, packets: &[(&[u8], u64)], verdicts: &mut Vec<pl_verdict>) -> c_int {
    let packets: Vec<_> = packets
        .iter()
        .map(|(bytes, time_ns)| pl_packet {
            bytes: bytes.as_ptr(),
            len: bytes.len() as u32,
            wire_len: 0,
            time_ns: *time_ns,
        })
        .collect();
    verdicts.clear();
    verdicts.resize(packets.len(), pl_verdict::default());
    // SAFETY: there are as many packets and verdicts, with their bytes.
    unsafe {
        pl_chain_process(chain, PL_LINK_ETHERNET, packets.as_ptr(), packets.len(), verdicts.as_mut_ptr())
    }
}

/// All that a function has written.
fn read(chain: c_int, function: usize) -> String {
    let (mut all, mut part, mut len) = (Vec::new(), [0u8; 100], 1);
    while len > 0 {
        // SAFETY: there is as much room.
        works(unsafe { pl_chain_read(chain, function, part.as_mut_ptr().cast(), part.len(), &raw mut len) });
        all.extend_from_slice(&part[..len]);
    }
    String::from_utf8(all).expect("text")
}

/// A UDP packet over IPv4 to a port, with this payload.
fn packet(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let (ip, udp) = (28 + payload.len() as u16, 8 + payload.len() as u16);
    packet.extend([0x45, 0]);
    packet.extend(ip.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1]);
    for word in [4000, port, udp, 0] {
        packet.extend(word.to_be_bytes());
    }
    packet.extend(payload);
    packet
}

const METER: &str = "[[chain]]\nnf = \"meter\"\noutput = \"not-made\"\n";

#[test]
fn chains_that_cannot_be_had_say_why() {
    // SAFETY: NULL is refused.
    fails(unsafe { pl_chain_load(null(), 0) }, PL_ERROR_ARGUMENT, "path is NULL");
    // SAFETY: as above.
    fails(unsafe { pl_chain_parse(null(), null(), 0) }, PL_ERROR_ARGUMENT, "toml is NULL");
    // SAFETY: text that ends with a NUL.
    fails(unsafe { pl_chain_load(c"/no/such/file".as_ptr(), 0) }, PL_ERROR_CONFIG, "cannot be read");
    // SAFETY: text that ends with a NUL.
    fails(unsafe { pl_chain_load(c"\xff".as_ptr(), 0) }, PL_ERROR_ARGUMENT, "not UTF-8");
    fails(parse(METER, 4), PL_ERROR_ARGUMENT, "flags 0x4");
    fails(parse("[[chain]]\nnf = \"nothing\"\n", 0), PL_ERROR_CONFIG, "chain:2:");
    fails(
        parse("[[chain]]\nnf = \"meter\"\noutput = \"/no/such/folder/x\"\n", 0),
        PL_ERROR_IO,
        "/no/such/folder",
    );
    for (keys, what) in [
        ("[sink]\ncapture = \"x.pcap\"", "[sink] capture"),
        ("[sink]\ndropped = \"x.pcap\"", "[sink] dropped"),
        ("[run]\nsummary = \"x\"", "[run] summary"),
        ("[run]\ncontrol = \"x\"", "[run] control"),
        ("[run]\nstats_every = \"1s\"", "[run] stats_every"),
        ("[run]\nrotate_every = \"1s\"", "[run] rotate"),
        ("[run]\ndevice = \"oracle\"", "[run] device"),
    ] {
        fails(parse(&format!("{METER}{keys}\n"), PL_OUTPUTS_TO_PROGRAM), PL_ERROR_CONFIG, what);
    }
}

#[test]
fn wrong_calls_of_a_chain_are_refused_and_leave_it_as_it_was() {
    let chain = works(parse(METER, PL_OUTPUTS_TO_PROGRAM));
    let mut verdict = pl_verdict::default();
    let one = packet(53, b"x");
    let good = pl_packet { bytes: one.as_ptr(), len: one.len() as u32, wire_len: 0, time_ns: 0 };
    let mut call = |packets: *const pl_packet, count, verdicts: bool| {
        let verdicts = if verdicts { &raw mut verdict } else { null_mut() };
        // SAFETY: what there is of packets and verdicts is right.
        unsafe { pl_chain_process(chain, PL_LINK_ETHERNET, packets, count, verdicts) }
    };
    fails(call(null(), 1, true), PL_ERROR_ARGUMENT, "NULL");
    fails(call(&raw const good, 1, false), PL_ERROR_ARGUMENT, "NULL");
    fails(call(&raw const good, PL_MAX_PACKETS + 1, true), PL_ERROR_ARGUMENT, "1048577 packets");
    let bad = pl_packet { bytes: null(), ..good };
    fails(call(&raw const bad, 1, true), PL_ERROR_ARGUMENT, "packet 0 are NULL");
    let bad = pl_packet { len: PL_MAX_PACKET_BYTES + 1, ..good };
    fails(call(&raw const bad, 1, true), PL_ERROR_ARGUMENT, "262145 bytes");
    works(call(null(), 0, false));
    works(call(&raw const good, 1, true));
    let empty = pl_packet { bytes: null(), len: 0, ..good };
    works(call(&raw const empty, 1, true));

    let mut len = 7;
    // SAFETY: what there is of room is right.
    unsafe {
        fails(pl_chain_read(chain, 1, null_mut(), 0, &raw mut len), PL_ERROR_NOT_FOUND, "function 1 of 1");
        fails(pl_chain_read(chain, 0, null_mut(), 1, &raw mut len), PL_ERROR_ARGUMENT, "NULL");
        fails(pl_chain_read(chain, 0, null_mut(), 0, null_mut()), PL_ERROR_ARGUMENT, "NULL");
        fails(pl_chain_rewritten(chain, 0, null_mut(), 0, &raw mut len), PL_ERROR_NOT_FOUND, "not rewritten");
        fails(pl_chain_summary(chain, null_mut(), 0, null_mut()), PL_ERROR_ARGUMENT, "len is NULL");
        fails(pl_chain_summary(chain, null_mut(), 0, &raw mut len), PL_ERROR_FULL, "no room");
        fails(pl_chain_summary(chain, null_mut(), len + 1, &raw mut len), PL_ERROR_ARGUMENT, "NULL");
        let mut text = vec![1u8; len + 1];
        works(pl_chain_summary(chain, text.as_mut_ptr().cast(), text.len(), &raw mut len));
        assert_eq!((text.len(), text.pop()), (len + 1, Some(0)));
        let summary: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(summary["received"], 2);
    }
    assert_eq!(works(pl_chain_functions(chain)), 1);
    assert_eq!(pl_chain_finish(chain), PL_OK as c_int);
    assert_eq!(read(chain, 0).lines().count(), 1);
    fails(pl_chain_finish(chain), PL_ERROR_FINISHED, "finished");
    fails(process(chain, &[(&one, 1)], &mut Vec::new()), PL_ERROR_FINISHED, "finished");
    fails(pl_chain_pass_time(chain, 1), PL_ERROR_FINISHED, "finished");
    works(pl_chain_close(chain));
    for id in [chain, 0, -1, c_int::MAX] {
        fails(pl_chain_close(id), PL_ERROR_NOT_FOUND, "no chain");
        fails(pl_chain_functions(id), PL_ERROR_NOT_FOUND, "no chain");
        fails(pl_chain_finish(id), PL_ERROR_NOT_FOUND, "no chain");
        fails(process(id, &[], &mut Vec::new()), PL_ERROR_NOT_FOUND, "no chain");
    }
    assert!(pl_drop_reason(10_000).is_null() && pl_drop_reason(255).is_null());
    // SAFETY: static texts.
    let name = |number| unsafe { CStr::from_ptr(pl_drop_reason(number)) }.to_str().expect("text");
    assert_eq!([name(0), name(3)], ["pass", "acl_rule"]);
    // SAFETY: static text.
    assert_eq!(unsafe { CStr::from_ptr(pl_version()) }.to_str(), Ok(env!("CARGO_PKG_VERSION")));
}

#[test]
fn rewritten_packets_are_handed_out() {
    let chain = "[[chain]]\nnf = \"balancer\"\n[[chain.services]]\naddress = \"198.51.100.1\"\nport = 53\n\
                 protocol = \"udp\"\nbackends = [{ address = \"203.0.113.9\" }]\n";
    let chain = works(parse(chain, 0));
    let [one, other] = [packet(53, b"abc"), packet(80, b"abc")];
    let mut verdicts = Vec::new();
    works(process(chain, &[(&other, 5), (&one, 6)], &mut verdicts));
    assert_eq!(verdicts.iter().map(|verdict| verdict.rewritten).collect::<Vec<_>>(), [0, 1]);
    let (mut bytes, mut len) = ([0u8; 100], 0);
    // SAFETY: there is as much room.
    works(unsafe { pl_chain_rewritten(chain, 1, bytes.as_mut_ptr(), bytes.len(), &raw mut len) });
    assert_eq!(len, one.len());
    assert_eq!(bytes[30..34], [203, 0, 113, 9], "the address of the backend");
    assert_eq!(bytes[42..len], *b"abc");
    // SAFETY: there is as much room.
    fails(
        unsafe { pl_chain_rewritten(chain, 1, bytes.as_mut_ptr(), 3, &raw mut len) },
        PL_ERROR_FULL,
        "no room",
    );
    // SAFETY: there is as much room.
    let not = unsafe { pl_chain_rewritten(chain, 0, bytes.as_mut_ptr(), 100, &raw mut len) };
    fails(not, PL_ERROR_NOT_FOUND, "not rewritten");
    works(pl_chain_close(chain));
}

#[test]
fn idle_flows_end_as_time_goes_on_only_where_packets_come_as_they_are_sent() {
    let keys = "idle_timeout = \"10s\"\n";
    for (flags, ended) in [(PL_OUTPUTS_TO_PROGRAM | PL_LIVE, 1), (PL_OUTPUTS_TO_PROGRAM, 0)] {
        let chain = works(parse(&format!("{METER}{keys}"), flags));
        works(process(chain, &[(&packet(53, b"x"), 1_000_000_000)], &mut Vec::new()));
        works(pl_chain_pass_time(chain, 5_000_000_000));
        assert_eq!(read(chain, 0), "", "too early");
        works(pl_chain_pass_time(chain, 60_000_000_000));
        assert_eq!(read(chain, 0).lines().count(), ended, "flags {flags}");
        works(pl_chain_finish(chain));
        assert_eq!(read(chain, 0).lines().count(), 1 - ended);
        works(pl_chain_close(chain));
    }
}

#[test]
fn outputs_that_nobody_reads_stop_a_chain_and_many_records_come_in_parts() {
    let chain = works(parse(METER, PL_OUTPUTS_TO_PROGRAM));
    let mut flows = 0u32;
    let mut batch = || {
        let packets: Vec<_> = (0..4096)
            .map(|_| {
                flows += 1;
                let mut packet = packet(53, b"x");
                packet[26..30].copy_from_slice(&flows.to_be_bytes());
                packet
            })
            .collect();
        let packets: Vec<_> = packets.iter().map(|packet| (&packet[..], 1)).collect();
        works(process(chain, &packets, &mut Vec::new()));
    };
    (0..3).for_each(|_| batch());
    let mut records = 0;
    let mut parts = 0;
    loop {
        let status = works(pl_chain_finish(chain));
        records += read(chain, 0).lines().count();
        parts += 1;
        if status == PL_OK as c_int {
            break;
        }
        assert_eq!(status, PL_MORE as c_int);
    }
    assert_eq!(records, 3 * 4096);
    assert!(parts > 2, "{parts} parts");
    works(pl_chain_close(chain));

    // A log has a line for each packet.
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules");
    std::fs::write(&rules, "permit udp from any to any log\n").expect("written");
    let text = format!("[[chain]]\nnf = \"acl\"\nrules = {rules:?}\nlog = \"x\"\nlog_rate = \"unlimited\"\n");
    let chain = works(parse(&text, PL_OUTPUTS_TO_PROGRAM));
    let one = packet(53, b"x");
    let packets = vec![(&one[..], 1); 65_536];
    let mut calls = 0;
    while process(chain, &packets, &mut Vec::new()) >= 0 {
        calls += 1;
        assert!(calls < 100, "nothing stops it");
    }
    fails(process(chain, &packets, &mut Vec::new()), PL_ERROR_FULL, "are not read");
    let mut text = vec![0u8; 1 << 30];
    let mut len = 0;
    // SAFETY: there is as much room.
    works(unsafe { pl_chain_read(chain, 0, text.as_mut_ptr().cast(), text.len(), &raw mut len) });
    let lines = text[..len].iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines, calls * packets.len(), "nothing is lost");
    works(process(chain, &packets[..1], &mut Vec::new()));
    works(pl_chain_close(chain));
}

#[test]
fn two_threads_may_not_use_one_chain_at_a_time_and_may_use_different_ones() {
    let chain = works(parse(METER, PL_OUTPUTS_TO_PROGRAM));
    let one = packet(53, &[7; 1000]);
    let packets = vec![(&one[..], 1); 100_000];
    let busy = AtomicU32::new(0);
    let judged = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..10 {
                    match process(chain, &packets, &mut Vec::new()) {
                        0 => judged.fetch_add(1, Ordering::Relaxed),
                        status => {
                            fails(status, PL_ERROR_BUSY, "another thread");
                            busy.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
            scope.spawn(|| {
                let mine = works(parse(METER, PL_OUTPUTS_TO_PROGRAM));
                for _ in 0..10 {
                    works(process(mine, &packets[..1000], &mut Vec::new()));
                }
                works(pl_chain_close(mine));
            });
        }
    });
    assert_eq!(busy.load(Ordering::Relaxed) + judged.load(Ordering::Relaxed), 30);
    works(pl_chain_finish(chain));
    let record: serde_json::Value = serde_json::from_str(read(chain, 0).trim()).expect("a record");
    assert_eq!(record["packetDeltaCount"], u64::from(judged.load(Ordering::Relaxed)) * 100_000);
    works(pl_chain_close(chain));
}

// NCA. Tests of it share the ids of functions in this process, so each has its own.

/// Adds strings in memory under an id.
fn add_strings(id: c_int, name: &CStr, result_size: c_int) -> c_int {
    // SAFETY: texts, and a callback of its type.
    unsafe { nca_add_network_function(id, Some(init_strings), null(), name.as_ptr(), None, result_size) }
}

const WORDS: [&[u8]; 5] = [b"bc", b"abc", b"\x00\xff", b"d", b"bc"];

unsafe extern "C" fn init_strings(_: c_int, params: *mut nca_function_params) -> c_int {
    static BYTES: Mutex<[usize; 5]> = Mutex::new([0; 5]);
    static LENS: [c_int; 5] = [2, 3, 2, 1, 2];
    let mut bytes = BYTES.lock().expect("no panic");
    *bytes = WORDS.map(|word| word.as_ptr() as usize);
    // SAFETY: the library passes parameters that are to be filled in; what they point to is static.
    let params = unsafe { &mut *params };
    params.patterns = bytes.as_ptr().cast();
    params.pattern_len = LENS.as_ptr();
    params.num_patterns = 5;
    0
}

fn stream(
    buffers: c_int,
    size: c_int,
    notify: nca_notify,
    chain: &[c_int],
    sets: &[c_int],
    dev: nca_dev,
) -> c_int {
    assert_eq!(chain.len(), sets.len());
    // SAFETY: there are as many functions and sets.
    unsafe {
        nca_traffic_stream_init(
            buffers,
            size,
            notify,
            chain.len() as c_int,
            chain.as_ptr(),
            sets.as_ptr(),
            dev,
        )
    }
}

fn add(stream: c_int, buffer: c_int, packets: &[&[u8]]) -> c_int {
    let bytes = packets.concat();
    let lens: Vec<c_int> = packets.iter().map(|packet| packet.len() as c_int).collect();
    // SAFETY: there are as many lengths and bytes.
    unsafe { nca_add_packets(stream, buffer, bytes.as_ptr(), lens.as_ptr(), lens.len() as c_int) }
}

fn results(stream: c_int, buffer: c_int) -> Result<Vec<u32>, c_int> {
    let size = nca_results_size(stream, buffer);
    let count = usize::try_from(size).map_err(|_| size)? / 4;
    let mut words = vec![0u32; count.max(1)];
    // SAFETY: there is as much room: no other thread uses the buffer.
    match unsafe { nca_read_results(stream, buffer, words.as_mut_ptr().cast::<c_void>()) } {
        0 => {
            words.truncate(count);
            Ok(words)
        }
        status => Err(status),
    }
}

#[test]
fn functions_that_cannot_be_added_say_why() {
    unsafe extern "C" fn fails_itself(_: c_int, _: *mut nca_function_params) -> c_int {
        7
    }
    unsafe extern "C" fn wrong(id: c_int, params: *mut nca_function_params) -> c_int {
        static LONG: c_int = 256;
        static NONE: [usize; 1] = [0];
        // SAFETY: the library passes parameters that are to be filled in.
        let params = unsafe { &mut *params };
        match id {
            101 => params.num_patterns = -1,
            102 => params.num_patterns = 3,
            103 => {
                params.num_patterns = 1;
                params.patterns = NONE.as_ptr().cast();
                params.pattern_len = &raw const LONG;
            }
            104 => params.config = c"patterns = \"/no/such/file\"".as_ptr(),
            105 => params.config = c"unknown = 1".as_ptr(),
            106 => params.config = c"\xff".as_ptr(),
            107 => params.config = c"rules = \"/no/such/file\"".as_ptr(),
            108 => params.table_size = 5,
            109 => params.group = 4096,
            _ => {}
        }
        0
    }
    let add = |id, init: nca_init, file: Option<&CStr>, name: Option<&CStr>, size| {
        let [file, name] = [file, name].map(|text| text.map_or(null(), CStr::as_ptr));
        // SAFETY: texts, and callbacks of their types.
        unsafe { nca_add_network_function(id, init, file, name, None, size) }
    };
    let strings = Some(c"strings");
    fails(add(-1, None, None, strings, 4), PL_ERROR_ARGUMENT, "network_func_id is -1");
    fails(add(100, None, None, None, 4), PL_ERROR_ARGUMENT, "kernel_name is NULL");
    fails(add(100, None, None, Some(c"nothing"), 4), PL_ERROR_NOT_FOUND, "aho-corasick");
    fails(add(100, None, None, strings, 4), PL_ERROR_CONFIG, "no patterns");
    for size in [0, -4, 1 << 20] {
        fails(add(100, None, None, strings, size), PL_ERROR_ARGUMENT, "result_buffer_size");
    }
    fails(add(100, None, None, strings, 5), PL_ERROR_ARGUMENT, "expected 4 or 8");
    fails(add(100, Some(fails_itself), None, strings, 4), PL_ERROR_CALLBACK, "returned 7");
    for (id, status, words) in [
        (101, PL_ERROR_ARGUMENT, "num_patterns is -1"),
        (102, PL_ERROR_ARGUMENT, "NULL"),
        (103, PL_ERROR_ARGUMENT, "pattern 0 is NULL or has 256 bytes"),
        (104, PL_ERROR_CONFIG, "/no/such/file"),
        (105, PL_ERROR_CONFIG, "unknown"),
        (106, PL_ERROR_ARGUMENT, "not UTF-8"),
    ] {
        fails(add(id, Some(wrong), None, strings, 4), status, words);
    }
    fails(add(107, Some(wrong), None, Some(c"acl"), 4), PL_ERROR_CONFIG, "/no/such/file");
    fails(add(100, Some(init_strings), None, Some(c"meter"), 4), PL_ERROR_ARGUMENT, "takes none");
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/weigh.kernel.c\0");
    let kernels = CStr::from_bytes_with_nul(kernels.as_bytes()).expect("a text");
    fails(add(100, None, Some(c"/no/such/file"), Some(c"weigh"), 8), PL_ERROR_CONFIG, "/no/such/file");
    fails(add(100, None, Some(kernels), Some(c"a b"), 8), PL_ERROR_ARGUMENT, "kernel_name");
    fails(add(108, Some(wrong), Some(kernels), Some(c"weigh"), 8), PL_ERROR_ARGUMENT, "table is NULL");
    fails(add(109, Some(wrong), Some(kernels), Some(c"weigh"), 8), PL_ERROR_ARGUMENT, "group is 4096");
    works(add_strings(110, c"strings", 4));
    fails(add_strings(110, c"strings", 4), PL_ERROR_EXISTS, "110");
    works(nca_remove_network_function(110));
    fails(nca_remove_network_function(110), PL_ERROR_NOT_FOUND, "110");
    works(add_strings(110, c"strings", 4));
    works(nca_remove_network_function(110));
}

#[test]
fn wrong_calls_of_a_stream_are_refused_and_leave_it_as_it_was() {
    works(add_strings(200, c"strings", 4));
    fails(stream(-1, 0, None, &[200], &[1], CPU), PL_ERROR_ARGUMENT, "num_buffers is -1");
    fails(stream(0, -5, None, &[200], &[1], CPU), PL_ERROR_ARGUMENT, "buffer_size is -5");
    fails(stream(0, 1 << 21, None, &[200], &[1], CPU), PL_ERROR_ARGUMENT, "buffer_size");
    fails(stream(0, 0, None, &[], &[], CPU), PL_ERROR_ARGUMENT, "num_network_funcs is 0");
    fails(stream(0, 0, None, &[200], &[-1], CPU), PL_ERROR_ARGUMENT, "set -1");
    fails(stream(0, 0, None, &[299], &[1], CPU), PL_ERROR_NOT_FOUND, "no network function 299");
    let dev = |dev_type, num_devices| nca_dev { dev_type, num_devices };
    fails(stream(0, 0, None, &[200], &[1], dev(9, 1)), PL_ERROR_ARGUMENT, "dev_type is 9");
    fails(stream(0, 0, None, &[200], &[1], dev(0, -1)), PL_ERROR_ARGUMENT, "num_devices is -1");
    fails(stream(0, 0, None, &[200], &[1], dev(1, 200)), PL_ERROR_DEVICE, "expected 200");
    // SAFETY: NULL is refused.
    let nothing = unsafe { nca_traffic_stream_init(0, 0, None, 1, null(), null(), CPU) };
    fails(nothing, PL_ERROR_ARGUMENT, "NULL");

    let s = works(stream(2, 4, None, &[200], &[1], CPU));
    for buffer in [-1, 2, c_int::MAX] {
        fails(add(s, buffer, &[b"x"]), PL_ERROR_NOT_FOUND, "expected 0 to 1");
        fails(nca_buffer_ready(s, buffer), PL_ERROR_NOT_FOUND, "no buffer");
        fails(nca_wait(s, buffer, 0), PL_ERROR_NOT_FOUND, "no buffer");
        assert_eq!(results(s, buffer), Err(PL_ERROR_NOT_FOUND as c_int));
    }
    // SAFETY: what there is of memory is right.
    unsafe {
        let one = 1;
        fails(nca_add_packets(s, 0, null(), &raw const one, 1), PL_ERROR_ARGUMENT, "NULL");
        fails(nca_add_packets(s, 0, b"x".as_ptr(), null(), 1), PL_ERROR_ARGUMENT, "NULL");
        fails(
            nca_add_packets(s, 0, b"x".as_ptr(), &raw const one, -1),
            PL_ERROR_ARGUMENT,
            "num_packets is -1",
        );
        fails(
            nca_add_packets(s, 0, b"x".as_ptr(), [1, -1].as_ptr(), 2),
            PL_ERROR_ARGUMENT,
            "packet 1 has -1 bytes",
        );
        fails(nca_read_results(s, 0, null_mut()), PL_ERROR_ARGUMENT, "NULL");
        fails(nca_buffer_memory(s, 0, null_mut()), PL_ERROR_ARGUMENT, "NULL");
    }
    assert_eq!(nca_num_packets(s, 0), 0);
    fails(nca_buffer_ready(s, 0), PL_ERROR_ARGUMENT, "no packet");
    works(add(s, 0, &[]));
    works(add(s, 0, &[b"xabc", b"", b"d"]));
    fails(add(s, 0, &[b"1", b"2"]), PL_ERROR_FULL, "3 of 4 packets");
    fails(add(s, 0, &[&vec![0; 4 * 2048]]), PL_ERROR_FULL, "bytes left");
    assert_eq!(nca_num_packets(s, 0), 3);
    assert_eq!(results(s, 0), Err(PL_ERROR_NOT_READY as c_int));
    fails(nca_wait(s, 0, 1), PL_ERROR_NOT_READY, "not ready");
    works(nca_buffer_ready(s, 0));
    works(nca_wait(s, 0, -1));
    fails(nca_buffer_ready(s, 0), PL_ERROR_BUSY, "has results");
    fails(add(s, 0, &[b"1"]), PL_ERROR_BUSY, "has results");
    fails(nca_set_packets(s, 0, 0), PL_ERROR_BUSY, "has results");
    assert_eq!(nca_results_size(s, 0), 12);
    assert_eq!(results(s, 0), Ok(vec![1, 0, 4]), "of bc and abc, which end together, the first");
    assert_eq!(results(s, 0), Err(PL_ERROR_NOT_READY as c_int), "they were read");
    assert_eq!(nca_num_packets(s, 0), 0);
    // All of the room, by one packet.
    works(add(s, 0, &[&vec![0; 4 * 2048]]));
    fails(add(s, 0, &[b"1"]), PL_ERROR_FULL, "0 bytes left");
    works(nca_traffic_stream_close(s));
    for id in [s, 0, -1] {
        fails(nca_traffic_stream_close(id), PL_ERROR_NOT_FOUND, "no traffic stream");
        fails(add(id, 0, &[b"x"]), PL_ERROR_NOT_FOUND, "no traffic stream");
        fails(nca_buffer_ready(id, 0), PL_ERROR_NOT_FOUND, "no traffic stream");
        fails(nca_wait(id, 0, 0), PL_ERROR_NOT_FOUND, "no traffic stream");
    }
    // Arguments are named in a callback only.
    let args = 16 as *mut nca_kernel_args;
    for returned in [nca_arg_packets(args), nca_arg_table(null_mut()), nca_arg_u64(args, 1)] {
        fails(returned, PL_ERROR_ARGUMENT, "args");
    }
    works(nca_remove_network_function(200));
}

/// Packets of any bytes, many of them of few values.
fn random_packets(count: usize, seed: u32) -> Vec<Vec<u8>> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..count)
        .map(|_| {
            let len = next() % 60;
            (0..len).map(|_| b"abcx\x00\xffefgh"[(next() % 10) as usize]).collect()
        })
        .collect()
}

/// What the first string of each packet is, and where it ends.
fn expected(packets: &[Vec<u8>]) -> Vec<u32> {
    let patterns: Patterns = WORDS.into_iter().collect();
    let of_packet = |packet: &Vec<u8>| {
        let mut matches = oracle::matches(&patterns, packet, 0);
        matches.sort_unstable();
        matches.first().map_or([0, 0], |found| [found.pattern + 1, found.end])
    };
    packets.iter().flat_map(of_packet).collect()
}

#[test]
fn both_searches_find_what_the_oracle_finds_and_results_come_in_order() {
    static TOLD: Mutex<Vec<(c_int, c_int)>> = Mutex::new(Vec::new());
    unsafe extern "C" fn notify(_: c_int, buffer: c_int, event: c_int) -> c_int {
        TOLD.lock().expect("no panic").push((buffer, event));
        0
    }
    works(add_strings(300, c"strings", 8));
    works(add_strings(301, c"aho-corasick", 8));
    let s =
        works(stream(7, 100, Some(notify), &[300, 301], &[2, 1], nca_dev { dev_type: 0, num_devices: 4 }));
    let mut told = Vec::new();
    for round in 0..20 {
        let mut all = Vec::new();
        for step in 0..7 {
            // Not the order of their numbers.
            let buffer = step * 3 % 7;
            let packets =
                random_packets(1 + (round * 31 + step as usize * 17) % 100, round as u32 * 7 + step as u32);
            for packet in &packets {
                works(add(s, buffer, &[packet]));
            }
            works(nca_buffer_ready(s, buffer));
            told.push((buffer, nca_event::NCA_RESULTS as c_int));
            all.push((buffer, packets));
        }
        for (buffer, packets) in all {
            works(nca_wait(s, buffer, 60_000));
            let found = results(s, buffer).expect("results");
            let expected = expected(&packets);
            let (strings, automaton) = found.split_at(expected.len());
            assert_eq!(strings, expected);
            assert_eq!(automaton, expected);
        }
    }
    works(nca_traffic_stream_close(s));
    assert_eq!(*TOLD.lock().expect("no panic"), told);
    works(nca_remove_network_function(300));
    works(nca_remove_network_function(301));
}

#[test]
fn the_program_writes_packets_itself_and_wrong_offsets_are_refused() {
    works(add_strings(400, c"strings", 8));
    let s = works(stream(1, 8, None, &[400], &[1], CPU));
    let mut memory = nca_memory { bytes: null_mut(), offsets: null_mut(), size: 0, max_packets: 0 };
    // SAFETY: there is room.
    works(unsafe { nca_buffer_memory(s, 0, &raw mut memory) });
    assert_eq!(memory.max_packets, 8);
    // SAFETY: the memory is the program's until the buffer is ready, and has as many offsets.
    let offsets = unsafe { std::slice::from_raw_parts_mut(memory.offsets, 9) };
    let first = offsets[0];
    assert!(first >= 36 && memory.size - first == 8 * 2048);
    for wrong in [
        [first, first + 5, first + 4],
        [first, memory.size + 1, memory.size + 1],
        [first + 1; 3],
        [0; 3],
        [first, 0, first],
    ] {
        offsets[..3].copy_from_slice(&wrong);
        fails(nca_set_packets(s, 0, 2), PL_ERROR_ARGUMENT, "offset");
        assert_eq!(nca_num_packets(s, 0), 0);
    }
    fails(nca_set_packets(s, 0, 9), PL_ERROR_FULL, "9 packets");
    fails(nca_set_packets(s, 0, -1), PL_ERROR_ARGUMENT, "-1");
    offsets[..3].copy_from_slice(&[first, first + 3, first + 5]);
    // SAFETY: there is room behind the offsets.
    unsafe { memory.bytes.add(first as usize).copy_from_nonoverlapping(b"xbcd-".as_ptr(), 5) };
    works(nca_set_packets(s, 0, 2));
    works(add(s, 0, &[b"no", b"\x00\xff"]));
    assert_eq!(offsets[3..5], [first + 7, first + 9]);
    works(nca_buffer_ready(s, 0));
    works(nca_wait(s, 0, -1));
    // What is changed now leads nowhere.
    offsets.fill(u32::MAX);
    assert_eq!(results(s, 0), Ok(vec![1, 3, 4, 1, 0, 0, 3, 2]));
    works(nca_traffic_stream_close(s));
    works(nca_remove_network_function(400));
}

#[test]
fn callbacks_may_call_back_but_not_wait_for_themselves() {
    const PACKET: &[u8] = b"\x00\xffabc";
    static DONE: AtomicU32 = AtomicU32::new(0);
    static WRONG: Mutex<Vec<String>> = Mutex::new(Vec::new());
    unsafe extern "C" fn notify(s: c_int, buffer: c_int, _: c_int) -> c_int {
        let is = |what: &str, returned: c_int, expected: pl_status| {
            if returned != expected as c_int {
                WRONG.lock().expect("no panic").push(format!("{what}: {returned}"));
            }
        };
        is("close", nca_traffic_stream_close(s), PL_ERROR_BUSY);
        is("wait", nca_wait(s, buffer, 1), PL_ERROR_BUSY);
        is("cleanup", nca_cleanup(), PL_ERROR_BUSY);
        is("ready", nca_buffer_ready(s, buffer), PL_ERROR_BUSY);
        is("results", i32::from(results(s, buffer) != Ok(vec![2])), PL_OK);
        // And again, some times.
        if DONE.load(Ordering::SeqCst) < 9 {
            is("add", add(s, buffer, &[PACKET]), PL_OK);
            is("ready", nca_buffer_ready(s, buffer), PL_OK);
        }
        DONE.fetch_add(1, Ordering::SeqCst);
        0
    }
    unsafe extern "C" fn init_abc(id: c_int, params: *mut nca_function_params) -> c_int {
        // An init callback may add another function; not the same one.
        if id == 500 {
            assert_eq!(add_strings(501, c"strings", 4), 0);
            assert_eq!(nca_cleanup(), PL_ERROR_BUSY as c_int);
        }
        // SAFETY: as the library says.
        unsafe { init_strings(id, params) };
        // SAFETY: as the library says. Without the first word.
        unsafe {
            let params = &mut *params;
            params.patterns = params.patterns.add(1);
            params.pattern_len = params.pattern_len.add(1);
            params.num_patterns = 4;
        }
        0
    }
    // SAFETY: texts, and callbacks of their types.
    works(unsafe { nca_add_network_function(500, Some(init_abc), null(), c"strings".as_ptr(), None, 4) });
    works(nca_remove_network_function(501));
    // The words are abc, NUL and 0xff, d, bc: the second one ends first.
    let s = works(stream(2, 10, Some(notify), &[500], &[0], CPU));
    works(add(s, 1, &[PACKET]));
    works(nca_buffer_ready(s, 1));
    let start = Instant::now();
    while DONE.load(Ordering::SeqCst) < 10 {
        assert!(start.elapsed() < Duration::from_secs(60), "no callback");
        std::thread::yield_now();
    }
    works(nca_traffic_stream_close(s));
    assert_eq!(*WRONG.lock().expect("no panic"), [""; 0]);
    works(nca_remove_network_function(500));
}

#[test]
fn two_threads_use_one_stream_and_a_third_closes_it() {
    works(add_strings(600, c"strings", 8));
    let s = works(stream(4, 64, None, &[600], &[1], CPU));
    let packets = random_packets(500, 77);
    let whole: BTreeMap<Vec<u8>, [u32; 2]> = packets
        .iter()
        .map(|packet| (packet.clone(), expected(std::slice::from_ref(packet)).try_into().expect("two words")))
        .collect();
    let (packets, whole) = (&packets, &whole);
    // Each with buffers of its own.
    std::thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for round in 0..50 {
                    let buffer = thread * 2 + round % 2;
                    let some: Vec<&[u8]> =
                        packets.iter().skip(round as usize * 7).take(40).map(|packet| &packet[..]).collect();
                    works(add(s, buffer, &some));
                    works(nca_buffer_ready(s, buffer));
                    works(nca_wait(s, buffer, -1));
                    let found = results(s, buffer).expect("results");
                    assert_eq!(found.len(), 80);
                    for (packet, found) in some.iter().zip(found.chunks(2)) {
                        assert_eq!(found, whole[*packet]);
                    }
                }
            });
        }
    });
    // And then all with the same one: each call has a status, and no more.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let known = [
                    PL_OK,
                    PL_ERROR_ARGUMENT,
                    PL_ERROR_FULL,
                    PL_ERROR_BUSY,
                    PL_ERROR_NOT_READY,
                    PL_ERROR_NOT_FOUND,
                ];
                loop {
                    let added = add(s, 3, &[b"abc", b"d"]);
                    let mut room = [0u32; 128];
                    // SAFETY: there is room for the results of a full buffer.
                    let mut read = || unsafe { nca_read_results(s, 3, room.as_mut_ptr().cast()) };
                    let statuses = [added, nca_buffer_ready(s, 3), nca_wait(s, 3, 1), read()];
                    let is_known = |status: &c_int| known.iter().any(|&known| known as c_int == *status);
                    assert!(statuses.iter().all(is_known), "{statuses:?}");
                    if added == PL_ERROR_NOT_FOUND as c_int {
                        break;
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        works(nca_traffic_stream_close(s));
    });
    works(nca_remove_network_function(600));
}

/// Where records of a test go.
static FLOWS: Mutex<Option<CString>> = Mutex::new(None);

unsafe extern "C" fn init_meter(_: c_int, params: *mut nca_function_params) -> c_int {
    let config = FLOWS.lock().expect("no panic");
    // SAFETY: the library passes parameters that are to be filled in; the text stays.
    unsafe { (*params).config = config.as_ref().expect("set before").as_ptr() };
    0
}

#[test]
fn a_meter_of_several_threads_counts_each_packet_and_writes_its_records_when_it_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let flows = folder.path().join("flows.jsonl");
    *FLOWS.lock().expect("no panic") = Some(CString::new(format!("output = {flows:?}")).expect("no NUL"));
    // SAFETY: texts, and a callback of its type.
    works(unsafe { nca_add_network_function(700, Some(init_meter), null(), c"meter".as_ptr(), None, 4) });
    let s = works(stream(4, 100, None, &[700], &[1], nca_dev { dev_type: 0, num_devices: 4 }));
    fails(stream(4, 100, None, &[700], &[1], CPU), PL_ERROR_BUSY, "another stream");
    let packets: Vec<_> = (0..100).map(|number| packet(number % 10, b"x")).collect();
    let packets: Vec<_> = packets.iter().map(|packet| &packet[..]).collect();
    for round in 0..40 {
        let buffer = round % 4;
        if round >= 4 {
            works(nca_wait(s, buffer, -1));
            assert_eq!(results(s, buffer), Ok(vec![0; 100]));
        }
        works(add(s, buffer, &packets));
        works(nca_buffer_ready(s, buffer));
    }
    assert!(!flows.exists());
    works(nca_traffic_stream_close(s));
    let records = std::fs::read_to_string(&flows).expect("records");
    let counts = records.lines().map(|line| {
        let record: serde_json::Value = serde_json::from_str(line).expect("JSON");
        record["packetDeltaCount"].as_u64()
    });
    assert_eq!(counts.collect::<Vec<_>>(), [Some(400); 10]);
    // The function's outputs are another stream's now.
    let s = works(stream(4, 100, None, &[700], &[1], CPU));
    works(nca_traffic_stream_close(s));
    works(nca_remove_network_function(700));
}

static FAILS: AtomicI32 = AtomicI32::new(0);

/// Names the arguments of `weigh`, or others.
unsafe extern "C" fn set_weigh(id: c_int, args: *mut nca_kernel_args, packets: *const nca_packets) -> c_int {
    // SAFETY: the library passes packets.
    let packets = unsafe { &*packets };
    let has_packets = packets.num_packets > 0;
    assert!(
        !has_packets || nca_wait(packets.traffic_stream_id, packets.buffer_id, 0) == PL_ERROR_BUSY as c_int
    );
    for returned in
        [nca_set_queues(packets.traffic_stream_id, 1), nca_leave_out(packets.traffic_stream_id, 0)]
    {
        assert!(!has_packets || returned == PL_ERROR_BUSY as c_int);
    }
    let fails = FAILS.load(Ordering::SeqCst);
    if fails == 1 && has_packets {
        return 5;
    }
    nca_arg_packets(args);
    if id == 801 {
        nca_arg_table(args);
    } else {
        nca_arg_results(args);
    }
    nca_arg_results(args);
    nca_arg_u32(args, packets.num_packets);
    if fails == 2 && has_packets {
        nca_arg_u64(args, 1);
    } else {
        nca_arg_u32(args, 1);
    }
    0
}

#[test]
fn kernels_and_callbacks_that_fail_fail_their_buffers_and_the_stream_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("some.kernel.c");
    std::fs::write(
        &file,
        "KERNEL void wrong(int *x) { *x = ; }
         KERNEL void lens(GLOBAL const u32 *packets, GLOBAL u32 *unused, GLOBAL u32 *results, u32 count, u32 factor) {
           u32 packet = group_index() * GROUP + local_index();
           if (packet < count) results[packet] = (packets[packet + 1] - packets[packet]) * factor + 0 * (unused == results);
         }",
    )
    .expect("written");
    let good = folder.path().join("good.kernel.c");
    let text = std::fs::read_to_string(&file).expect("read");
    std::fs::write(&good, text.split_once('\n').expect("lines").1).expect("written");
    let add_kernel = |id, path: &std::path::Path, name: &CStr| {
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: texts, and callbacks of their types.
        unsafe { nca_add_network_function(id, None, path.as_ptr(), name.as_ptr(), Some(set_weigh), 4) }
    };
    works(add_kernel(800, &file, c"wrong"));
    works(add_kernel(801, &good, c"lens"));
    works(add_kernel(802, &good, c"lens"));
    fails(stream(2, 10, None, &[800], &[1], CPU), PL_ERROR_DEVICE, "function 800: kernel does not compile");
    fails(stream(2, 10, None, &[801], &[1], CPU), PL_ERROR_CALLBACK, "no table");
    works(add_strings(803, c"strings", 4));
    let s = works(stream(2, 10, None, &[803, 802, 803], &[2, 1, 0], CPU));
    let mut statuses = Vec::new();
    for fail in [0, 1, 0, 2, 0] {
        FAILS.store(fail, Ordering::SeqCst);
        works(add(s, 1, &[b"d23", b"", b"1234567"]));
        works(nca_buffer_ready(s, 1));
        works(nca_wait(s, 1, -1));
        match results(s, 1) {
            Ok(found) => {
                assert_eq!(found, [4, 0, 0, 3, 0, 7, 4, 0, 0]);
                statuses.push(0);
            }
            Err(status) => {
                let words = if fail == 1 { "returned 5" } else { "other kinds" };
                fails(status, PL_ERROR_CALLBACK, words);
                statuses.push(status);
            }
        }
        assert_eq!(nca_num_packets(s, 1), 0, "it is empty in any case");
    }
    let callback = PL_ERROR_CALLBACK as c_int;
    assert_eq!(statuses, [0, callback, 0, callback, 0]);
    works(nca_traffic_stream_close(s));
    for id in 800..804 {
        works(nca_remove_network_function(id));
    }
}

#[test]
fn sets_run_in_ascending_order_and_set_0_with_the_first() {
    static NAMED: Mutex<Vec<c_int>> = Mutex::new(Vec::new());
    unsafe extern "C" fn set(id: c_int, args: *mut nca_kernel_args, packets: *const nca_packets) -> c_int {
        // SAFETY: the library passes packets.
        let count = unsafe { (*packets).num_packets };
        if count > 0 {
            NAMED.lock().expect("no panic").push(id);
        }
        [nca_arg_packets(args), nca_arg_results(args), nca_arg_results(args), nca_arg_u32(args, count)]
            .into_iter()
            .chain([nca_arg_u32(args, id as u32)])
            .fold(0, |all, status| all | status)
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("some.kernel.c");
    let text = "KERNEL void number(GLOBAL const u32 *packets, GLOBAL u32 *unused, GLOBAL u32 *results, u32 count, u32 id) {
                  u32 packet = group_index() * GROUP + local_index();
                  if (packet < count) results[packet] = id + 0 * (packets[0] + (unused == results));
                }";
    std::fs::write(&file, text).expect("written");
    let file = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
    for id in 900..904 {
        // SAFETY: texts, and callbacks of their types.
        works(unsafe { nca_add_network_function(id, None, file.as_ptr(), c"number".as_ptr(), Some(set), 4) });
    }
    let s = works(stream(
        1,
        10,
        None,
        &[903, 900, 902, 901],
        &[7, 3, 0, 3],
        nca_dev { dev_type: 0, num_devices: 1 },
    ));
    // The functions may be forgotten: the stream has them.
    for id in 900..904 {
        works(nca_remove_network_function(id));
    }
    works(add(s, 0, &[b"1", b"2"]));
    works(nca_buffer_ready(s, 0));
    works(nca_wait(s, 0, -1));
    assert_eq!(results(s, 0), Ok(vec![903, 903, 900, 900, 902, 902, 901, 901]), "in the order of the chain");
    works(nca_traffic_stream_close(s));
    assert_eq!(*NAMED.lock().expect("no panic"), [902, 900, 901, 903]);
}

const LENS: &str = "KERNEL void lens(GLOBAL const u32 *packets, GLOBAL u32 *results, u32 count) {
  u32 packet = group_index() * GROUP + local_index();
  if (packet < count) results[packet] = packets[packet + 1] - packets[packet] + 0 * ((GLOBAL const u8 *)packets)[packets[packet]];
}";

/// Adds the kernel of [`LENS`], with the arguments that a kernel has unless the program names others.
fn add_lens(id: c_int, folder: &std::path::Path) {
    let file = folder.join("lens.kernel.c");
    std::fs::write(&file, LENS).expect("written");
    let file = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
    // SAFETY: texts.
    works(unsafe { nca_add_network_function(id, None, file.as_ptr(), c"lens".as_ptr(), None, 4) });
}

/// Has a buffer processed; its results.
fn run_buffer(s: c_int, buffer: c_int, packets: &[&[u8]]) -> Vec<u32> {
    works(add(s, buffer, packets));
    works(nca_buffer_ready(s, buffer));
    works(nca_wait(s, buffer, -1));
    results(s, buffer).expect("results")
}

static RULES: Mutex<Option<CString>> = Mutex::new(None);

unsafe extern "C" fn init_acl(_: c_int, params: *mut nca_function_params) -> c_int {
    let config = RULES.lock().expect("no panic");
    // SAFETY: the library passes parameters that are to be filled in; the text stays.
    unsafe { (*params).config = config.as_ref().expect("set before").as_ptr() };
    0
}

#[test]
fn queues_come_and_go_between_buffers_and_results_stay_in_order() {
    static TOLD: Mutex<Vec<c_int>> = Mutex::new(Vec::new());
    unsafe extern "C" fn notify(_: c_int, buffer: c_int, _: c_int) -> c_int {
        TOLD.lock().expect("no panic").push(buffer);
        0
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("a.rules"), "deny udp from any to any port 7\n").expect("written");
    let rules = folder.path().join("a.rules");
    *RULES.lock().expect("no panic") =
        Some(CString::new(format!("rules = {rules:?}\ndefault = \"permit\"")).expect("no NUL"));
    // Judged by a chain of each thread, searched, and weighed by a kernel.
    // SAFETY: texts, and a callback of its type.
    works(unsafe { nca_add_network_function(1000, Some(init_acl), null(), c"acl".as_ptr(), None, 4) });
    works(add_strings(1001, c"strings", 4));
    add_lens(1002, folder.path());
    let chain = [1000, 1001, 1002];
    let s = works(stream(6, 100, Some(notify), &chain, &[1, 1, 1], nca_dev { dev_type: 0, num_devices: 1 }));
    for queues in [0, -1, NCA_MAX_QUEUES + 1] {
        fails(nca_set_queues(s, queues), PL_ERROR_ARGUMENT, "expected 1 to 64");
    }
    fails(nca_set_queues(-1, 1), PL_ERROR_NOT_FOUND, "no traffic stream");
    let packets: Vec<_> = (0..20).map(|number| packet(number % 10, &b"x d"[..number as usize % 4])).collect();
    let packets: Vec<_> = packets.iter().map(|packet| &packet[..]).collect();
    let once = run_buffer(s, 0, &packets);
    assert_eq!(once.len(), 60);
    assert!(once[..20].iter().any(|&reason| reason != 0) && once[..20].contains(&0));
    assert!(once[40..].iter().zip(&packets).all(|(&len, packet)| len as usize == packet.len()));
    let mut told = vec![0];
    for queues in [4, 1, 3, 3, 2] {
        works(nca_set_queues(s, queues));
        for round in 0..3 {
            for buffer in 0..6 {
                let buffer = (buffer * 5 + round) % 6;
                works(add(s, buffer, &packets));
                works(nca_buffer_ready(s, buffer));
                told.push(buffer);
            }
            for buffer in 0..6 {
                works(nca_wait(s, buffer, -1));
                assert_eq!(results(s, buffer).as_ref(), Ok(&once), "{queues} queues");
            }
        }
    }
    works(nca_traffic_stream_close(s));
    fails(nca_set_queues(s, 1), PL_ERROR_NOT_FOUND, "no traffic stream");
    assert_eq!(*TOLD.lock().expect("no panic"), told);
    for id in chain {
        works(nca_remove_network_function(id));
    }
}

#[test]
fn a_callback_changes_a_stream_that_is_at_rest() {
    static RETURNED: Mutex<Vec<[c_int; 2]>> = Mutex::new(Vec::new());
    unsafe extern "C" fn notify(s: c_int, _: c_int, _: c_int) -> c_int {
        RETURNED.lock().expect("no panic").push([nca_set_queues(s, 3), nca_set_queues(s, 1)]);
        0
    }
    works(add_strings(1200, c"strings", 4));
    let s = works(stream(2, 10, Some(notify), &[1200], &[1], CPU));
    for _ in 0..5 {
        assert_eq!(run_buffer(s, 0, &[b"xabc", b"d"]), [1, 4]);
        // The second is not ready before the callback of the first one has returned.
        while RETURNED.lock().expect("no panic").is_empty() {
            std::thread::yield_now();
        }
    }
    works(nca_traffic_stream_close(s));
    let returned = RETURNED.lock().expect("no panic");
    assert_eq!((returned.len(), returned[0]), (5, [0, 0]));
    works(nca_remove_network_function(1200));
}

#[test]
fn parts_that_are_left_out_are_not_done_and_kernels_never_see_offsets_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    add_lens(1100, folder.path());
    let new = || works(stream(1, 100, None, &[1100], &[1], nca_dev { dev_type: 0, num_devices: 1 }));
    let leave_out = |s, parts| works(nca_leave_out(s, parts));
    let (copies, kernels) = (nca_part::NCA_COPIES as c_int, nca_part::NCA_KERNELS as c_int);
    let s = new();
    for parts in [4, -1, 7] {
        fails(nca_leave_out(s, parts), PL_ERROR_ARGUMENT, "NCA_COPIES, NCA_KERNELS, both or 0");
    }
    fails(nca_leave_out(-1, 0), PL_ERROR_NOT_FOUND, "no traffic stream");
    works(nca_leave_out(s, kernels));
    assert_eq!(run_buffer(s, 0, &[b"abc", b"d"]), [0, 0], "no kernel has run");
    leave_out(s, copies);
    assert_eq!(run_buffer(s, 0, &[b"xyz", b"e"]), [0, 0], "no result was copied");
    // More packets than the queue has, far behind: the sanitisers of kernels on this machine would see it.
    let many: Vec<_> = (0..100).map(|_| &[7; 900][..]).collect();
    assert_eq!(run_buffer(s, 0, &many).len(), 100);
    leave_out(s, copies | kernels);
    run_buffer(s, 0, &[b"abc"]);
    leave_out(s, 0);
    assert_eq!(run_buffer(s, 0, &[b"abc", b"de"]), [3, 2], "all is done");
    leave_out(s, copies);
    assert_eq!(run_buffer(s, 0, &[b"", b"de12"]), [3, 2], "what was copied last");
    works(nca_traffic_stream_close(s));
    works(nca_remove_network_function(1100));
}
