//! The host as a device, for tests.
//!
//! Kernels are compiled by the C compiler of this machine, with its sanitisers, and run in a process of their own
//! (`kernels/host.c`): one that goes wrong ends that process, and its launch fails with the sanitiser's report. Memory is shared
//! with that process, and surrounded there by bytes that nobody may touch.
//!
//! Launches and copies are done when they are queued, which keeps their order.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::backend::{Backend, Handle, SharedMemory, Value};
use crate::{Cache, Description, Entry, Error, Id, Parameter, Program};

/// The program around the kernels.
const RUNNER: &str = include_str!("../kernels/host.c");
/// At fixed addresses: with many random bits of them, early sanitisers' own memory is in the way of the program's. What was never written
/// is no zero by chance. Of functions and lines, which reports name, the compiler notes all; of variables nothing, which takes a quarter of
/// its time.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O1",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-ftrivial-auto-var-init=pattern",
    "-fno-omit-frame-pointer",
    "-fno-pie",
    "-no-pie",
    "-Wall",
    "-Wshadow",
    "-Werror",
];
/// Lanes are bits of a word, and a group is one set of lanes unless it is said.
pub(crate) const MAX_GROUP: u32 = 32;
/// How long a launch may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How much longer the process that runs kernels may take to answer, which ends itself at the launch's limit.
const GRACE: Duration = Duration::from_secs(10);
/// How long the compiler may take.
const COMPILER_LIMIT: Duration = Duration::from_secs(300);
/// Memory is laid out in multiples of this, which is one of the size of a page everywhere.
const PAGE: usize = 1 << 16;
/// Memory begins at a multiple of this; up to this many bytes behind it are kept by the sanitiser instead of the end of a page.
const ALIGNMENT: usize = 16;
/// What memory holds at first: nothing that a kernel would take for a value of its own.
const UNWRITTEN: u8 = 0xa5;
/// Of a report, at most this many bytes are told.
const MAX_REPORT: usize = 8000;

/// What is asked of the runner, and the words that it takes at once.
const MAP: u64 = 1;
const UNMAP: u64 = 2;
const LAUNCH: u64 = 3;
const MAX_WORDS: usize = 256;

const SIGNAL_ALARM: i32 = 14;

/// The host, if it has a C compiler with sanitisers, with so many items that run in step. The program that tries the compiler is kept in
/// `cache`.
pub(crate) fn open(lanes: u32, cache: &Cache) -> Result<Arc<dyn Backend>, Error> {
    if !lanes.is_power_of_two() || lanes > MAX_GROUP {
        return Err(Error::Misuse(format!("{lanes} lanes; expected a power of two up to {MAX_GROUP}")));
    }
    Ok(Arc::new(Host::new(LIMIT, lanes, cache)?))
}

/// The compiler of this machine.
#[derive(Clone, Debug)]
struct Compiler {
    /// The command and its first arguments.
    command: Vec<String>,
    /// The first line of what it says of its version.
    version: String,
    /// The program around the kernels, compiled for the first of them.
    runner: Arc<OnceLock<Vec<u8>>>,
}

#[derive(Debug)]
struct Host {
    description: Description,
    compiler: Compiler,
    /// How long a launch may take.
    limit: Duration,
    kept: Mutex<Kept>,
}

/// What handles stand for.
#[derive(Debug, Default)]
struct Kept {
    last: Handle,
    memories: HashMap<Handle, Arc<Region>>,
    programs: HashMap<Handle, Arc<Runner>>,
    /// The program, and the number of its entry.
    kernels: HashMap<Handle, (Arc<Runner>, usize)>,
}

impl Kept {
    fn handle(&mut self) -> Handle {
        self.last += 1;
        self.last
    }
}

/// Memory: a file without a name, mapped here, and by each runner that gets it.
#[derive(Debug)]
struct Region {
    file: File,
    map: MmapRaw,
    /// Where the memory begins: so that it ends where the pages do.
    start: usize,
    bytes: usize,
}

impl Region {
    fn new(bytes: usize) -> Option<Self> {
        let length = bytes.checked_next_multiple_of(PAGE)?;
        let file = File::from(memfd_create(c"memory", MemfdFlags::CLOEXEC).ok()?);
        file.set_len(length as u64).ok()?;
        let map = MmapOptions::new().len(length).map_raw(&file).ok()?;
        Some(Self { file, map, start: length - bytes.next_multiple_of(ALIGNMENT), bytes })
    }

    /// Where the memory begins; `bytes` from here on are mapped as long as this lives.
    fn host(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(self.start)
    }

    /// A part of the memory, whole words in the middle. Other threads' queues and the processes of kernels may use it at the same time.
    ///
    /// # Safety
    /// The part lies inside, and whoever else in this process accesses it meanwhile does it through here.
    unsafe fn atomics(&self, offset: usize, bytes: usize) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        // SAFETY: so many bytes are mapped as long as this lives, as the caller promises, and all of this process use atomics.
        let bytes: &[AtomicU8] = unsafe { std::slice::from_raw_parts(self.host().add(offset).cast(), bytes) };
        // SAFETY: eight of the one are one of the other.
        unsafe { bytes.align_to() }
    }
}

/// What a kernel is given.
#[derive(Debug)]
enum Given {
    Memory(Handle, Arc<Region>),
    Word(u64),
}

/// A compiled program, and the process that runs it.
#[derive(Debug)]
struct Runner {
    binary: File,
    signature: String,
    /// None after a launch failed; the next one starts another.
    process: Mutex<Option<Process>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    questions: ChildStdin,
    answers: ChildStdout,
    /// What it writes on standard error.
    report: File,
    /// Memory that it has mapped, and the address there.
    mapped: HashMap<Handle, u64>,
    /// How long an answer may take.
    limit: Duration,
    /// Whether one took longer.
    late: bool,
}

impl Process {
    fn start(binary: &File, signature: &str) -> Result<Self, Error> {
        let failed = |why: std::io::Error| Error::Failed { call: "start kernels", why: why.to_string() };
        let report = tempfile::tempfile().map_err(failed)?;
        let mut child = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()))
            .env("ASAN_OPTIONS", "detect_leaks=0:print_legend=0")
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(report.try_clone().map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(ErrorKind::BrokenPipe.into()));
        };
        let (mapped, limit) = (HashMap::new(), LIMIT + GRACE);
        let mut process = Self { child, questions, answers, report, mapped, limit, late: false };
        // The entries may have changed while the text has not.
        let mut said = vec![0; signature.len()];
        let answer = process.answer().and_then(|length| {
            process.hear(&mut said)?;
            Ok(length)
        });
        match answer {
            Ok(length) if length == signature.len() as u64 && said == signature.as_bytes() => Ok(process),
            Ok(_) => Err(Error::Failed { call: "start kernels", why: "the binary has other entries".into() }),
            Err(_) => Err(Error::Failed { call: "start kernels", why: process.death() }),
        }
    }

    fn answer(&mut self) -> std::io::Result<u64> {
        let mut word = [0; 8];
        self.hear(&mut word)?;
        Ok(u64::from_ne_bytes(word))
    }

    /// Reads all of `bytes`; ends a process that does not say them in time.
    fn hear(&mut self, mut bytes: &mut [u8]) -> std::io::Result<()> {
        let start = Instant::now();
        while !bytes.is_empty() {
            let left = self.limit.saturating_sub(start.elapsed());
            let timeout = Timespec::try_from(left).ok();
            match poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => {
                    self.late = true;
                    self.child.kill()?;
                    return Err(ErrorKind::TimedOut.into());
                }
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            match self.answers.read(bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fails only if the process has ended.
    fn ask(&mut self, words: &[u64]) -> std::io::Result<u64> {
        // In one write: the process is woken once.
        let mut question = vec![words.len() as u64];
        question.extend(words);
        self.questions.write_all(bytemuck::cast_slice(&question))?;
        self.answer()
    }

    /// The address of memory in that process.
    fn address(&mut self, handle: Handle, region: &Region) -> std::io::Result<u64> {
        if let Some(&address) = self.mapped.get(&handle) {
            return Ok(address);
        }
        let address = self.ask(&[MAP, region.file.as_raw_fd() as u64, region.bytes as u64])?;
        self.mapped.insert(handle, address);
        Ok(address)
    }

    /// Why a process that does not answer has ended.
    fn death(&mut self) -> String {
        let status = match self.child.wait() {
            Ok(_) if self.late => return "did not answer in time".into(),
            Ok(status) if status.signal() == Some(SIGNAL_ALARM) => return "did not finish in time".into(),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let mut bytes = vec![0; MAX_REPORT];
        let count = self.report.read_at(&mut bytes, 0).unwrap_or(0);
        let report = String::from_utf8_lossy(&bytes[..count]);
        // What follows is of the runner, and bytes of the sanitiser's own memory.
        let report = report.split("\nThread T").next().unwrap_or_default();
        let report = report.split("Shadow bytes around").next().unwrap_or_default();
        let report = report.trim_matches(|c: char| c == '=' || c.is_whitespace());
        if report.is_empty() { format!("ended with {status}") } else { report.into() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Runner {
    /// Keeps a binary, and starts it.
    fn new(program: &Program, binary: &[u8]) -> Result<Self, Error> {
        let failed = |why: std::io::Error| Error::Failed { call: "load kernels", why: why.to_string() };
        let mut file = executable(c"kernels").map_err(failed)?;
        file.write_all(binary).map_err(failed)?;
        let signature = signature(program);
        let process = Process::start(&file, &signature)?;
        Ok(Self { binary: file, signature, process: Mutex::new(Some(process)) })
    }

    fn launch(&self, entry: usize, groups: u32, limit: Duration, values: &[Given]) -> Result<(), Error> {
        let mut place = locked(&self.process);
        let mut process = match place.take() {
            Some(process) => process,
            None => Process::start(&self.binary, &self.signature)?,
        };
        process.limit = limit.saturating_add(GRACE);
        let mut run = || {
            let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
            let mut words = vec![LAUNCH, entry as u64, u64::from(groups), limit];
            for value in values {
                words.push(match value {
                    Given::Memory(handle, region) => process.address(*handle, region)?,
                    Given::Word(word) => *word,
                });
            }
            process.ask(&words)
        };
        match run() {
            Ok(_) => {
                *place = Some(process);
                Ok(())
            }
            Err(_) => {
                let name = self.signature.split([' ', ';']).nth(entry * 2).unwrap_or_default();
                let mut why = format!("{name}: {}", process.death());
                // Reports tell addresses.
                for (number, value) in values.iter().enumerate() {
                    if let Given::Memory(handle, region) = value
                        && let Some(address) = process.mapped.get(handle)
                    {
                        why += &format!("\nargument {number}: {} bytes at {address:#x}", region.bytes);
                    }
                }
                Err(Error::Failed { call: "launch", why })
            }
        }
    }

    /// Memory that is given back is unmapped there too.
    fn forget(&self, handle: Handle, region: &Region) {
        let mut place = locked(&self.process);
        if let Some(process) = place.as_mut()
            && let Some(address) = process.mapped.remove(&handle)
            && process.ask(&[UNMAP, address, region.bytes as u64]).is_err()
        {
            // The next launch starts another.
            *place = None;
        }
    }
}

impl Host {
    fn new(limit: Duration, lanes: u32, cache: &Cache) -> Result<Self, Error> {
        static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
        let compiler = match COMPILER.get_or_init(|| Compiler::find(cache)) {
            Ok(compiler) => compiler.clone(),
            Err(why) => return Err(Error::Unavailable { device: Id::Host.to_string(), why: why.clone() }),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let description = Description {
            id: Id::Host,
            name: "host C compiler, sanitised".into(),
            driver: compiler.version.clone(),
            // Where it is not told, allocation itself says when there is no more.
            memory: host_memory("MemTotal").unwrap_or(u64::MAX),
            units: u32::try_from(cores).unwrap_or(u32::MAX),
            local_memory: 1 << 20,
            group: MAX_GROUP,
            lanes,
            shares: true,
            atomics_64: true,
        };
        Ok(Self { description, compiler, limit, kept: Mutex::default() })
    }

    fn region(&self, bytes: usize) -> Result<(Arc<Region>, Handle), Error> {
        let none = Error::OutOfMemory { bytes };
        if bytes as u64 > self.description.memory {
            return Err(none);
        }
        let region = Arc::new(Region::new(bytes).ok_or(none)?);
        let mut kept = locked(&self.kept);
        let handle = kept.handle();
        kept.memories.insert(handle, region.clone());
        Ok((region, handle))
    }

    fn memory(&self, handle: Handle) -> Result<Arc<Region>, Error> {
        let none = || Error::Misuse("memory that the host does not have".into());
        locked(&self.kept).memories.get(&handle).cloned().ok_or_else(none)
    }

    fn give_back(&self, handle: Handle) {
        let mut kept = locked(&self.kept);
        let Some(region) = kept.memories.remove(&handle) else { return };
        let programs: Vec<_> = kept.programs.values().cloned().collect();
        // A program may be running for long.
        drop(kept);
        for program in programs {
            program.forget(handle, &region);
        }
    }
}

impl Backend for Host {
    fn description(&self) -> &Description {
        &self.description
    }

    fn fingerprint(&self) -> String {
        self.compiler.fingerprint()
    }

    fn compile(&self, program: &Program, text: &str) -> Result<Vec<u8>, Error> {
        self.compiler.compile(program, text)
    }

    fn load(&self, program: &Program, binary: &[u8]) -> Result<Handle, Error> {
        let runner = Arc::new(Runner::new(program, binary)?);
        let mut kept = locked(&self.kept);
        let handle = kept.handle();
        kept.programs.insert(handle, runner);
        Ok(handle)
    }

    unsafe fn kernel(&self, program: Handle, name: &str) -> Result<Handle, Error> {
        let mut kept = locked(&self.kept);
        let none = || Error::Failed { call: "find kernel", why: format!("no kernel is called {name}") };
        let runner = kept.programs.get(&program).ok_or_else(none)?.clone();
        let mut names = runner.signature.split_terminator(';').map(|entry| entry.split(' ').next());
        let entry = names.position(|entry| entry == Some(name)).ok_or_else(none)?;
        let handle = kept.handle();
        kept.kernels.insert(handle, (runner, entry));
        Ok(handle)
    }

    unsafe fn unload(&self, program: Handle, kernels: &[Handle]) {
        let mut kept = locked(&self.kept);
        let mut gone: Vec<_> =
            kernels.iter().filter_map(|kernel| kept.kernels.remove(kernel)).map(|k| k.0).collect();
        gone.extend(kept.programs.remove(&program));
        // Ending a process takes a while.
        drop(kept);
        drop(gone);
    }

    fn allocate(&self, bytes: usize) -> Result<Handle, Error> {
        let (region, handle) = self.region(bytes)?;
        // SAFETY: the region has so many bytes, and nobody else has it yet.
        unsafe { region.host().write_bytes(UNWRITTEN, bytes) };
        Ok(handle)
    }

    fn allocate_zeros(&self, bytes: usize) -> Result<Handle, Error> {
        self.region(bytes).map(|(_, handle)| handle)
    }

    unsafe fn free(&self, memory: Handle) {
        self.give_back(memory);
    }

    fn share(&self, bytes: usize) -> Result<SharedMemory, Error> {
        let (region, handle) = self.region(bytes)?;
        let host = NonNull::new(region.host()).ok_or(Error::OutOfMemory { bytes })?;
        Ok(SharedMemory { handle, host })
    }

    unsafe fn unshare(&self, memory: SharedMemory, _bytes: usize) {
        self.give_back(memory.handle);
    }

    fn queue(&self) -> Result<Handle, Error> {
        Ok(locked(&self.kept).handle())
    }

    unsafe fn close(&self, _queue: Handle) {}

    unsafe fn write(
        &self,
        _queue: Handle,
        to: Handle,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let region = self.memory(to)?;
        // SAFETY: the caller has both ranges inside their memory, and lets nobody write `from` meanwhile.
        let (from, to) = unsafe { (std::slice::from_raw_parts(from, bytes), region.atomics(offset, bytes)) };
        let (head, words, tail) = to;
        let (first, rest) = from.split_at(head.len());
        let (middle, last) = rest.split_at(words.len() * 8);
        let set = |(to, &from): (&AtomicU8, &u8)| to.store(from, Ordering::Relaxed);
        head.iter().zip(first).for_each(set);
        words.iter().zip(middle.as_chunks().0).for_each(|(to, &from)| {
            to.store(u64::from_ne_bytes(from), Ordering::Relaxed);
        });
        tail.iter().zip(last).for_each(set);
        Ok(())
    }

    unsafe fn read(
        &self,
        _queue: Handle,
        from: Handle,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let region = self.memory(from)?;
        // SAFETY: the caller has both ranges inside their memory, and leaves `to`, which is written already, to this call.
        let (from, to) =
            unsafe { (region.atomics(offset, bytes), std::slice::from_raw_parts_mut(to, bytes)) };
        let (head, words, tail) = from;
        let (first, rest) = to.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(words.len() * 8);
        let get = |(to, from): (&mut u8, &AtomicU8)| *to = from.load(Ordering::Relaxed);
        first.iter_mut().zip(head).for_each(get);
        middle.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, from)| {
            *to = from.load(Ordering::Relaxed).to_ne_bytes();
        });
        last.iter_mut().zip(tail).for_each(get);
        Ok(())
    }

    unsafe fn copy(&self, _queue: Handle, from: Handle, to: Handle, bytes: usize) -> Result<(), Error> {
        let (from, to) = (self.memory(from)?, self.memory(to)?);
        // SAFETY: the caller has both ranges inside their memory; both begin at a multiple of 16 bytes.
        let ((_, from, last), (_, to, to_last)) = unsafe { (from.atomics(0, bytes), to.atomics(0, bytes)) };
        for (to, from) in to.iter().zip(from) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (to, from) in to_last.iter().zip(last) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(())
    }

    unsafe fn clear(&self, _queue: Handle, memory: Handle, _bytes: usize) -> Result<(), Error> {
        // Its pages are given back, for this process and those of programs: new ones are zeros.
        let region = self.memory(memory)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let cleared = fallocate(&region.file, flags, 0, region.map.len() as u64);
        cleared.map_err(|error| Error::Failed { call: "clear", why: error.to_string() })
    }

    unsafe fn launch(
        &self,
        _queue: Handle,
        kernel: Handle,
        groups: u32,
        _group: u32,
        values: &[Value],
    ) -> Result<(), Error> {
        if values.len() + 4 > MAX_WORDS {
            let why = format!("{} arguments cannot be passed", values.len());
            return Err(Error::Misuse(why));
        }
        let mut given = Vec::with_capacity(values.len());
        for &value in values {
            given.push(match value {
                Value::Memory(handle) | Value::Shared(handle) => Given::Memory(handle, self.memory(handle)?),
                Value::U32(word) => Given::Word(u64::from(word)),
                Value::U64(word) => Given::Word(word),
            });
        }
        let none = || Error::Misuse("a kernel that the host does not have".into());
        let (runner, entry) = locked(&self.kept).kernels.get(&kernel).cloned().ok_or_else(none)?;
        runner.launch(entry, groups, self.limit, &given)
    }

    unsafe fn wait_for(&self, _queue: Handle, _other: Handle) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn finish(&self, _queue: Handle) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn is_finished(&self, _queue: Handle) -> Result<bool, Error> {
        Ok(true)
    }
}

impl Compiler {
    /// The compiler, after a try of what is needed of it; or why there is none.
    fn find(cache: &Cache) -> Result<Self, String> {
        let command = std::env::var("CC").unwrap_or_default();
        let mut command: Vec<_> = command.split_whitespace().map(str::to_owned).collect();
        if command.is_empty() {
            command.push("cc".into());
        }
        Self::of(command, cache)
    }

    /// As [`Self::find`], of a command. What the cache has of this version is run, but not compiled again.
    fn of(command: Vec<String>, cache: &Cache) -> Result<Self, String> {
        let said = output(Command::new(&command[0]).args(&command[1..]).arg("--version"), COMPILER_LIMIT);
        let said = said.map_err(|error| format!("no C compiler: {}: {error}", command[0]))?;
        let version =
            String::from_utf8_lossy(&said.stdout).lines().next().unwrap_or_default().trim().to_owned();
        let compiler = Self { command, version, runner: Arc::default() };
        let entries = vec![Entry { name: "nothing", parameters: &[] }];
        let source = "KERNEL void nothing(void) {}\n".into();
        let program = Program {
            name: "nothing",
            source,
            defines: Vec::new(),
            group: 1,
            groups_per_unit: 1,
            stays: false,
            local: 0,
            entries,
        };
        let text = program.text(MAX_GROUP);
        let key = Cache::key(&[&compiler.fingerprint(), &text]);
        let works = |binary: &[u8]| Runner::new(&program, binary).map(drop);
        if cache.get(&key).is_some_and(|binary| works(&binary).is_ok()) {
            return Ok(compiler);
        }
        let tried = compiler.compile(&program, &text).and_then(|binary| {
            works(&binary)?;
            cache.put(&key, &binary);
            Ok(())
        });
        match tried {
            Ok(()) => Ok(compiler),
            Err(error) => {
                let command = compiler.command.join(" ");
                Err(format!("programs that {command} compiles with sanitisers do not work: {error}"))
            }
        }
    }

    /// What tells its binaries from those of another.
    fn fingerprint(&self) -> String {
        let Self { command, version, .. } = self;
        // Whatever changes here may change the generated part of the text.
        let text = Cache::key(&[RUNNER, include_str!("host.rs")]);
        format!("host {} {version} {} {} {text}", command.join(" "), FLAGS.join(" "), std::env::consts::ARCH)
    }

    fn compile(&self, program: &Program, text: &str) -> Result<Vec<u8>, Error> {
        if program.group == 0 || program.group > MAX_GROUP {
            let group = program.group;
            return Err(Error::Misuse(format!(
                "a group of the host has 1 to {MAX_GROUP} items, not {group}"
            )));
        }
        let failed = |why: std::io::Error| Error::Failed { call: "compile kernels", why: why.to_string() };
        let folder = tempfile::tempdir().map_err(failed)?;
        let at = |name: &str| folder.path().join(name);
        let kernels = format!("{text}\n{}", glue(program));
        // Reports name the program by its file.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name: String = program.name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let name = format!("kernels_{name}.c");
        std::fs::write(at(&name), kernels).map_err(failed)?;
        match self.runner.get() {
            Some(runner) => std::fs::write(at("host.o"), runner).map_err(failed)?,
            None => {
                std::fs::write(at("host.c"), RUNNER).map_err(failed)?;
                self.run(folder.path(), &["-c", "host.c", "-o", "host.o"])?;
                let _ = self.runner.set(std::fs::read(at("host.o")).map_err(failed)?);
            }
        }
        self.run(folder.path(), &[&name, "host.o", "-o", "kernels"])?;
        std::fs::read(at("kernels")).map_err(failed)
    }

    /// Compiles or links files of a folder.
    fn run(&self, folder: &Path, arguments: &[&str]) -> Result<(), Error> {
        let failed = |why: std::io::Error| Error::Failed { call: "compile kernels", why: why.to_string() };
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            .args(FLAGS)
            .arg(format!("-ffile-prefix-map={}=.", folder.display()))
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C");
        let said = output(&mut command, COMPILER_LIMIT).map_err(failed)?;
        if !said.status.success() {
            let log = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            return Err(Error::Build { log: if log.is_empty() { said.status.to_string() } else { log } });
        }
        Ok(())
    }
}

/// What a command says; one that takes longer than `limit` is ended, with all that it started.
fn output(command: &mut Command, limit: Duration) -> std::io::Result<Output> {
    // Files, not pipes: nobody has to read them for the command to go on.
    let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?).process_group(0);
    let mut child = command.spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() >= limit {
            kill_process_group(Pid::from_child(&child), Signal::KILL)?;
            child.wait()?;
            return Err(std::io::Error::new(ErrorKind::TimedOut, format!("did not end in {limit:?}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |file: File| {
        let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
        file.read_exact_at(&mut bytes, 0)?;
        Ok::<_, std::io::Error>(bytes)
    };
    Ok(Output { status, stdout: text(out)?, stderr: text(err)? })
}

/// The entries, as the runner says them at its start: `name letters;` for each.
fn signature(program: &Program) -> String {
    let letter = |parameter: &Parameter| match parameter {
        Parameter::Memory => 'm',
        Parameter::Constant => 'c',
        Parameter::Live => 'l',
        Parameter::U32 => 'w',
        Parameter::U64 => 'd',
    };
    let entry = |entry: &Entry| {
        let letters: String = entry.parameters.iter().map(letter).collect();
        format!("{} {letters};", entry.name)
    };
    program.entries.iter().map(entry).collect()
}

/// The end of the kernels' text: how the runner calls them.
fn glue(program: &Program) -> String {
    let mut text = String::from("#line 1 \"generated\"\n");
    for (number, entry) in program.entries.iter().enumerate() {
        let value = |(index, parameter): (usize, &Parameter)| match parameter {
            Parameter::Memory | Parameter::Constant | Parameter::Live => {
                format!("(void *)(__UINTPTR_TYPE__)values[{index}]")
            }
            Parameter::U32 => format!("(u32)values[{index}]"),
            Parameter::U64 => format!("values[{index}]"),
        };
        let values: Vec<_> = entry.parameters.iter().enumerate().map(value).collect();
        let (name, values) = (entry.name, values.join(", "));
        text += &format!(
            "static void host_call_{number}(const u64 *values) {{ (void)values; {name}({values}); }}\n"
        );
    }
    text += "void (*const host_kernels[])(const u64 *values) = {";
    for number in 0..program.entries.len() {
        text += &format!("host_call_{number}, ");
    }
    text += &format!("0}};\nconst char host_signature[] = \"{}\";\n", signature(program));
    text += "const u32 host_group = GROUP;\nconst u32 host_lanes = HOST_LANES;\n";
    text += "_Static_assert(GROUP % HOST_LANES == 0, \"a group is whole sets of lanes\");\n";
    text
}

/// A file without a name that can be run.
fn executable(name: &CStr) -> std::io::Result<File> {
    // Systems before Linux 6.3 do not know the second flag.
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::EXEC);
    Ok(File::from(file.or_else(|_| memfd_create(name, MemfdFlags::CLOEXEC))?))
}

/// Bytes of this machine's memory by a line of `/proc/meminfo`, as `MemTotal` and `MemAvailable` (proc_meminfo(5)), if the system says so.
pub fn host_memory(line: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let size = text.lines().find_map(|own| own.strip_prefix(line)?.strip_prefix(':'))?;
    size.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// What a lock keeps is whole after each step, whoever panicked meanwhile.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_never_ends_is_ended() {
        let mut host = Host::new(LIMIT, MAX_GROUP, &Cache::none()).expect("a C compiler with sanitisers");
        let source = "KERNEL void turns(GLOBAL volatile u32 *stop, u32 once) {\n\
            while (!once && *stop == 0) {\n  }\n  if (local_index() == 0) *stop += 1;\n}\n";
        let entries = vec![Entry { name: "turns", parameters: &[Parameter::Memory, Parameter::U32] }];
        let program = Program {
            name: "endless",
            source: source.into(),
            defines: Vec::new(),
            group: 3,
            groups_per_unit: 1,
            stays: false,
            local: 0,
            entries,
        };
        let binary = host.compile(&program, &program.text(MAX_GROUP)).expect("compiles");
        let loaded = host.load(&program, &binary).expect("loads");
        let shared = host.share(4).expect("memory");
        // SAFETY: the handles are of this host and are given back at the end; the word lies inside the memory.
        unsafe {
            let kernel = host.kernel(loaded, "turns").expect("is there");
            let launch = |host: &Host, once| {
                host.launch(0, kernel, 2, 3, &[Value::Shared(shared.handle), Value::U32(once)])
            };
            assert_eq!(launch(&host, 1), Ok(()));
            assert_eq!(shared.host.cast::<u32>().read(), 2);
            shared.host.cast::<u32>().write(0);
            host.limit = Duration::from_millis(300);
            match launch(&host, 0) {
                Err(Error::Failed { why, .. }) => {
                    assert!(why.starts_with("turns: did not finish in time"), "{why}")
                }
                other => panic!("{other:?}"),
            }
            host.limit = LIMIT;
            assert_eq!(launch(&host, 1), Ok(()), "another process takes its place");
            assert_eq!(shared.host.cast::<u32>().read(), 2);
            host.unload(loaded, &[kernel]);
            host.unshare(shared, 4);
        }
        let kept = locked(&host.kept);
        assert!(kept.memories.is_empty() && kept.programs.is_empty() && kept.kernels.is_empty());
    }

    #[test]
    fn a_compiler_that_never_ends_is_ended() {
        let start = Instant::now();
        // Two processes, of which only one is known here.
        let mut command = Command::new("sh");
        let said = output(command.args(["-c", "sleep 100; true"]), Duration::from_millis(50));
        assert_eq!(said.expect_err("it sleeps").kind(), ErrorKind::TimedOut);
        let said = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]), LIMIT);
        let said = said.expect("runs");
        assert_eq!((&said.stdout[..], &said.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(said.status.code(), Some(3));
        assert!(start.elapsed() < LIMIT);
    }

    /// Each time its version is asked for; what it compiled works still, or it compiles again.
    #[test]
    fn a_compiler_is_tried_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
        let script =
            format!("echo \"$1\" >> {0}\n[ -e {1} ] && exit 7\nexec cc \"$@\"\n", at("calls"), at("broken"));
        std::fs::write(at("compiler"), script).expect("written");
        let calls = |cache: &Cache| {
            let _ = std::fs::remove_file(at("calls"));
            let found = Compiler::of(vec!["sh".into(), at("compiler")], cache);
            let calls = std::fs::read_to_string(at("calls")).expect("it was called");
            assert!(calls.starts_with("--version\n"), "{calls}");
            (found.map(drop), calls.lines().count())
        };
        let cache = Cache::at(at("cache"));
        // The program around the kernels, and the program.
        assert_eq!([0; 2].map(|_| calls(&Cache::none())), [(Ok(()), 3), (Ok(()), 3)]);
        assert_eq!([0; 2].map(|_| calls(&cache)), [(Ok(()), 3), (Ok(()), 1)]);
        let kept = std::fs::read_dir(at("cache")).expect("a folder").next().expect("a file").expect("read");
        std::fs::write(kept.path(), "spoiled").expect("written");
        assert_eq!([0; 2].map(|_| calls(&cache)), [(Ok(()), 3), (Ok(()), 1)]);
        // Without sanitisers, say; of a version that says nothing.
        std::fs::write(at("broken"), "").expect("written");
        let (found, count) = calls(&cache);
        assert!(found.expect_err("it fails").contains("do not work: "));
        assert_eq!(count, 2);
        assert!(Compiler::of(vec!["cc".into()], &cache).is_ok(), "another one is tried by itself");
        assert_eq!(std::fs::read_dir(at("cache")).expect("a folder").count(), 2);
    }

    #[test]
    fn a_process_that_never_answers_is_ended() {
        let start = Instant::now();
        let (mut child, report) = (Command::new("sleep"), tempfile::tempfile().expect("a file"));
        let child = child.arg("100").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("starts");
        let (questions, answers) =
            (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (mapped, limit) = (HashMap::new(), Duration::from_millis(50));
        let mut process = Process { child, questions, answers, report, mapped, limit, late: false };
        assert_eq!(process.ask(&[UNMAP, 0, 0]).expect_err("it sleeps").kind(), ErrorKind::TimedOut);
        assert_eq!(process.death(), "did not answer in time");
        assert!(start.elapsed() < LIMIT);
    }

    #[test]
    fn a_binary_of_other_entries_is_not_loaded() {
        let host = Host::new(LIMIT, MAX_GROUP, &Cache::none()).expect("a C compiler with sanitisers");
        let program = |parameters| Program {
            name: "entries",
            source: "KERNEL void entry(u64 x) { (void)x; }\n".into(),
            defines: Vec::new(),
            group: 1,
            groups_per_unit: 1,
            stays: false,
            local: 0,
            entries: vec![Entry { name: "entry", parameters }],
        };
        let (wide, narrow) = (program(&[Parameter::U64]), program(&[Parameter::U32]));
        let binary = host.compile(&wide, &wide.text(MAX_GROUP)).expect("compiles");
        assert!(host.load(&wide, &binary).is_ok());
        assert!(matches!(host.load(&narrow, &binary), Err(Error::Failed { .. })));
        assert!(matches!(host.load(&narrow, b"no program"), Err(Error::Failed { .. })));
    }

    #[test]
    fn memory_is_laid_out_before_the_end_of_pages() {
        for bytes in [1, 15, 16, 17, PAGE - 1, PAGE, PAGE + 1, 1_000_003] {
            let region = Region::new(bytes).expect("memory");
            let end = region.start + bytes;
            assert!(region.start.is_multiple_of(ALIGNMENT));
            assert!(end <= region.map.len() && end + ALIGNMENT > region.map.len());
        }
        assert!(Region::new(usize::MAX).is_none());
    }
}
