//! NFV compute acceleration (`packetloom-capi`'s `nca_…`): a stream whose one function looks for strings on a device, and how much of its copies its
//! scheduler does while kernels run.
//!
//! The function is a kernel as a program for C would add it (`strings.kernel.c`), and nothing is called but what programs call. Each combination of packets
//! of a buffer and of queues is measured four times a round: all of it, and with copies, kernels and both left out (`nca_leave_out`).
#![allow(unsafe_code, reason = "functions for C are called")]

mod automaton;

use std::ffi::{CStr, CString, c_int};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::ptr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use packetloom_capi::{
    nca_add_network_function, nca_buffer_memory, nca_buffer_ready, nca_dev, nca_dev_type,
    nca_function_params, nca_leave_out, nca_memory, nca_part, nca_read_results, nca_remove_network_function,
    nca_set_packets, nca_set_queues, nca_traffic_stream_close, nca_traffic_stream_init, nca_wait,
    pl_last_error,
};
use packetloom_device::Id;
use packetloom_io::input::Stop;
use packetloom_pattern::{Matcher, Patterns, Report, Scratch};
use packetloom_simd::Isa;
use serde_json::{Value, json};

use crate::Error;
use crate::acl::interrupted;
use crate::sample::{quantile, rounded, sorted};
use crate::strings::{Kind, Payloads, Size};

const KERNEL: &str = include_str!("strings.kernel.c");

/// The function's number: one benchmark runs at a time.
const FUNCTION: c_int = 1;
/// Time that each way is given in a round.
const TIME: Duration = Duration::from_millis(100);
/// Times that each buffer is on its way then, at least.
const MIN_TURNS: usize = 2;
/// Packets of a buffer at most.
pub const MAX_BATCH: usize = packetloom_capi::NCA_MAX_BUFFER_SIZE as usize;
/// Words of results for a packet.
const RESULT: usize = 2;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The patterns' name.
    pub name: String,
    /// The patterns: their bytes count, case-sensitive and anywhere.
    pub patterns: Patterns,
    /// The device: the first one of its kind.
    pub device: Id,
    /// Bytes of a packet, up to 2,048.
    pub size: usize,
    /// Percent of the packets that have a pattern put into them.
    pub matching: u8,
    /// Packets of a buffer, each measured.
    pub batch: Vec<usize>,
    /// Queues of the device, each measured.
    pub queues: Vec<usize>,
    /// Rounds that are timed.
    pub rounds: usize,
}

/// What is wrong, by the library.
fn failed(what: &str) -> Error {
    // SAFETY: it is text, and this thread makes no other call meanwhile.
    let why = unsafe { CStr::from_ptr(pl_last_error()) };
    Error::Nca(format!("{what}: {}", why.to_string_lossy()))
}

fn check(what: &str, status: c_int) -> Result<c_int, Error> {
    if status < 0 { Err(failed(what)) } else { Ok(status) }
}

/// The automaton, for the callback that hands it over.
static AUTOMATON: Mutex<Vec<u32>> = Mutex::new(Vec::new());

unsafe extern "C" fn init(_: c_int, params: *mut nca_function_params) -> c_int {
    let Ok(automaton) = AUTOMATON.lock() else { return 1 };
    // SAFETY: the library passes parameters that are to be filled in. The table stays: it is changed before and after the call that copies it.
    let params = unsafe { &mut *params };
    (params.table, params.table_size) = (automaton.as_ptr().cast(), size_of_val(&automaton[..]));
    0
}

/// The function as long as it is there.
struct Function;

impl Function {
    fn add(patterns: &Patterns) -> Result<Self, Error> {
        let too_large =
            || Error::Nca("the patterns' automaton has more than 2 GiB; expected fewer patterns".into());
        let automaton = automaton::build(patterns).ok_or_else(too_large)?;
        let path = std::env::temp_dir().join(format!("packetloom-{}.kernel.c", std::process::id()));
        let io = |error| packetloom_io::Error::io(path.display().to_string(), error);
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(io)?;
        file.write_all(KERNEL.as_bytes()).map_err(io)?;
        let name = CString::new(path.as_os_str().as_encoded_bytes());
        let name =
            name.map_err(|_| Error::Nca("the folder for temporary files has a NUL in its name".into()))?;
        let set = |table| AUTOMATON.lock().map(|mut automaton| *automaton = table);
        let poisoned = |_| Error::Nca("an earlier benchmark has failed".into());
        set(automaton).map_err(poisoned)?;
        // SAFETY: texts that end with a NUL, and a callback of its type.
        let added = unsafe {
            nca_add_network_function(
                FUNCTION,
                Some(init),
                name.as_ptr(),
                c"strings".as_ptr(),
                None,
                4 * RESULT as c_int,
            )
        };
        set(Vec::new()).map_err(poisoned)?;
        // It was read.
        std::fs::remove_file(&path).map_err(io)?;
        check("the function", added).map(|_| Self)
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        nca_remove_network_function(FUNCTION);
    }
}

/// A stream whose buffers have the same number of packets, of the same size.
struct Stream {
    id: c_int,
    buffers: usize,
    batch: usize,
    results: Vec<u32>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        nca_traffic_stream_close(self.id);
    }
}

impl Stream {
    /// With packets in all buffers.
    fn new(device: &Id, buffers: usize, batch: usize, packets: &[&[u8]]) -> Result<Self, Error> {
        let kind = match device {
            Id::Host => nca_dev_type::NCA_CPU,
            Id::OpenCl(0) => nca_dev_type::NCA_OPENCL,
            Id::Cuda(0) => nca_dev_type::NCA_CUDA,
            other => return Err(Error::Nca(format!("device {other}; expected host, opencl:0 or cuda:0"))),
        };
        let dev = nca_dev { dev_type: kind as c_int, num_devices: 1 };
        let (chain, sets) = ([FUNCTION], [1]);
        // SAFETY: there is one function and one set.
        let id = unsafe {
            nca_traffic_stream_init(
                buffers as c_int,
                batch as c_int,
                None,
                1,
                chain.as_ptr(),
                sets.as_ptr(),
                dev,
            )
        };
        let stream = Self { id: check("a stream", id)?, buffers, batch, results: vec![0; RESULT * batch] };
        for (buffer, packets) in packets.chunks(batch).enumerate() {
            let mut memory =
                nca_memory { bytes: ptr::null_mut(), offsets: ptr::null_mut(), size: 0, max_packets: 0 };
            // SAFETY: there is room for it.
            check("a buffer", unsafe { nca_buffer_memory(id, buffer as c_int, &raw mut memory) })?;
            for (at, packet) in packets.iter().enumerate() {
                // SAFETY: the buffer has as many packets at most, and 2,048 bytes for each; it is filled by this thread alone.
                unsafe {
                    let begin = *memory.offsets.add(at);
                    packet.as_ptr().copy_to_nonoverlapping(memory.bytes.add(begin as usize), packet.len());
                    *memory.offsets.add(at + 1) = begin + packet.len() as u32;
                }
            }
        }
        Ok(stream)
    }

    /// Hands a buffer over, with the packets that are in it.
    fn hand_over(&self, buffer: usize) -> Result<(), Error> {
        check("packets", nca_set_packets(self.id, buffer as c_int, self.batch as c_int))?;
        check("a buffer", nca_buffer_ready(self.id, buffer as c_int)).map(drop)
    }

    /// Waits for a buffer, and reads its results.
    fn finish(&mut self, buffer: usize) -> Result<&[u32], Error> {
        check("waiting", nca_wait(self.id, buffer as c_int, -1))?;
        // SAFETY: there is room for two words a packet; this thread alone uses the buffer.
        let read = unsafe { nca_read_results(self.id, buffer as c_int, self.results.as_mut_ptr().cast()) };
        check("results", read)?;
        Ok(&self.results)
    }

    /// Compares the results of all buffers with those of the CPU.
    fn compare(&mut self, expected: &[u32]) -> Result<(), Error> {
        (0..self.buffers).try_for_each(|buffer| self.hand_over(buffer))?;
        for (buffer, expected) in (0..self.buffers).zip(expected.chunks(RESULT * self.batch)) {
            let found = self.finish(buffer)?;
            if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
                let packet = at / RESULT;
                let of = |words: &[u32]| words[RESULT * packet..][..RESULT].to_vec();
                return Err(Error::Wrong(format!(
                    "buffer {buffer}, packet {packet}: the device finds {:?}, the processor {:?}",
                    of(found),
                    of(expected)
                )));
            }
        }
        Ok(())
    }

    /// Microseconds a buffer while all are on their way in turns, with something left out.
    fn measure(&mut self, left_out: c_int) -> Result<f64, Error> {
        check("parts that are left out", nca_leave_out(self.id, left_out))?;
        let (begun, mut sent) = (Instant::now(), 0);
        while begun.elapsed() < TIME || sent < MIN_TURNS * self.buffers {
            let buffer = sent % self.buffers;
            if sent >= self.buffers {
                self.finish(buffer)?;
            }
            self.hand_over(buffer)?;
            sent += 1;
        }
        for number in sent - self.buffers..sent {
            self.finish(number % self.buffers)?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / sent as f64)
    }
}

/// Measures every number of packets with every number of queues: a JSON object for each. Times are of the wall clock, medians over the rounds; results
/// are compared with the CPU's before and after.
///
/// # Errors
///
/// [`Error::Wrong`] where the device finds something else; [`Error::Nca`] what the library says.
pub fn run(options: &Options, stop: &Stop) -> Result<Vec<Value>, Error> {
    let Options { patterns, size, .. } = options;
    let function = Function::add(patterns)?;
    let matcher = Matcher::with(patterns.clone(), Isa::detect(), &[]);
    let mut values = Vec::new();
    for &batch in &options.batch {
        // Each queue has one that is processed and one that waits.
        let buffers = 2 * options.queues.iter().copied().max().unwrap_or(1);
        let kind = Kind::Text { matching: options.matching };
        let payloads = Payloads::new(patterns, Size::Fixed(*size), kind, buffers * batch * size, 1);
        let mut packets = payloads.texts();
        packets.truncate(buffers * batch);
        if packets.len() < buffers * batch {
            return Err(Error::Empty);
        }
        let mut expected = vec![0; RESULT * packets.len()];
        let (mut scratch, mut matches) = (Scratch::default(), Vec::new());
        matcher.find(&packets, Report::First, &mut scratch, &mut matches);
        for found in &matches {
            expected[RESULT * found.text as usize..][..RESULT]
                .copy_from_slice(&[found.pattern + 1, found.end]);
        }
        let mut stream = Stream::new(&options.device, buffers, batch, &packets)?;
        for &queues in &options.queues {
            check("queues", nca_set_queues(stream.id, queues as c_int))?;
            check("parts that are left out", nca_leave_out(stream.id, 0))?;
            stream.compare(&expected)?;
            let mut rounds = Vec::new();
            for _ in 0..options.rounds {
                interrupted(stop)?;
                let (copies, kernels) = (nca_part::NCA_COPIES as c_int, nca_part::NCA_KERNELS as c_int);
                let mut times = [kernels, copies, 0, copies | kernels].map(|left_out| (left_out, 0.0));
                for (left_out, time) in &mut times {
                    *time = stream.measure(*left_out)?;
                }
                rounds.push(times.map(|(_, time)| time));
            }
            check("parts that are left out", nca_leave_out(stream.id, 0))?;
            stream.compare(&expected)?;
            let median =
                |of: fn(&[f64; 4]) -> f64, share| quantile(&sorted(rounds.iter().map(of).collect()), share);
            let hidden =
                |[copies, kernels, both, _]: &[f64; 4]| (copies + kernels - both) / copies.min(*kernels);
            let bits = (batch * size * 8) as f64;
            values.push(json!({
                "workload": format!("nca {} {size}", options.name),
                "device": options.device.to_string(),
                "patterns": patterns.len(),
                "size": size,
                "batch": batch,
                "queues": queues,
                "buffers": buffers,
                "gbps": rounded(bits / 1000.0 / median(|times| times[2], 0.5)),
                "copies_us": rounded(median(|times| times[0], 0.5)),
                "kernels_us": rounded(median(|times| times[1], 0.5)),
                "both_us": rounded(median(|times| times[2], 0.5)),
                "neither_us": rounded(median(|times| times[3], 0.5)),
                "hidden": rounded(median(hidden, 0.5)),
                "hidden_min": rounded(median(hidden, 0.0)),
                "hidden_max": rounded(median(hidden, 1.0)),
                "matching": matches.len(),
                "rounds": options.rounds,
            }));
        }
    }
    drop(function);
    Ok(values)
}
