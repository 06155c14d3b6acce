//! Network functions as the program adds them, and how they run on host cores.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use aho_corasick::AhoCorasick;
use packetloom_engine::Chain;
use packetloom_nf::Context;
use packetloom_packet::{LinkType, Timestamp};
use packetloom_pattern::files::{self, Format, Options, Places};
use packetloom_pattern::{Bounds, Match, Matcher, Pattern, Patterns, Report, Scratch};
use serde::Deserialize;

use super::kernel::Kernel;
use crate::embedded::{self, Embedded, Packet};
use crate::status::*;

/// A network function.
pub(super) struct Function {
    pub(super) id: c_int,
    /// Bytes of results for a packet.
    pub(super) result_size: usize,
    pub(super) kind: Kind,
    /// Whether a stream uses it that writes to its outputs.
    writes: AtomicBool,
}

pub(super) enum Kind {
    /// Strings, by Packetloom's own matcher.
    Strings(Box<Matcher>, Search),
    /// Strings, by an automaton; devices find them by their patterns.
    AhoCorasick(AhoCorasick, Patterns, Search),
    /// Functions of the engine.
    Chain(ChainText),
    /// Of the program.
    Kernel(Arc<Kernel>),
}

/// What is looked through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search {
    /// Bytes at the beginning of a packet that are not.
    pub(super) skip: u32,
}

/// A chain that was read once, to know that it can be.
pub(super) struct ChainText {
    text: String,
    folder: PathBuf,
    pub(super) link: LinkType,
    /// Whether it is the function "acl".
    pub(super) is_acl: bool,
}

/// The keys of `strings` and `aho-corasick`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct StringsKeys {
    patterns: Option<PathBuf>,
    format: Option<String>,
    by_fast_pattern: bool,
    ignore_case: bool,
    skip: u32,
}

/// What an init callback has said.
pub(super) struct Params<'a> {
    pub(super) config: &'a str,
    pub(super) folder: &'a Path,
    pub(super) patterns: Vec<&'a [u8]>,
    pub(super) link: LinkType,
}

/// The functions that are built in.
const BUILT_IN: [&str; 5] = ["strings", "aho-corasick", "acl", "meter", "chain"];

impl Function {
    /// One that is built in.
    pub(super) fn built_in(id: c_int, name: &str, result_size: usize, params: &Params<'_>) -> Outcome<Self> {
        if !matches!(result_size, 4 | 8) {
            let text = format!("result_buffer_size {result_size} for {name:?}; expected 4 or 8");
            return Err(Fault::argument(text));
        }
        let kind = match name {
            "strings" => {
                let (patterns, search) = patterns(params)?;
                Kind::Strings(Box::new(Matcher::new(patterns)), search)
            }
            "aho-corasick" => {
                let (patterns, search) = patterns(params)?;
                Kind::AhoCorasick(automaton(&patterns)?, patterns, search)
            }
            "acl" | "meter" => {
                let text = ChainText::new(format!("[[chain]]\nnf = {name:?}\n{}", params.config), params)?;
                Kind::Chain(ChainText { is_acl: name == "acl", ..text })
            }
            "chain" => Kind::Chain(ChainText::new(params.config.into(), params)?),
            _ => {
                let text = format!(
                    "no function {name:?} is built in; expected one of {}, or a kernel file",
                    BUILT_IN.join(", ")
                );
                return Err(Fault::new(PL_ERROR_NOT_FOUND, text));
            }
        };
        if !matches!(kind, Kind::Chain(_)) || params.patterns.is_empty() {
            return Ok(Self { id, result_size, kind, writes: AtomicBool::new(false) });
        }
        Err(Fault::argument(format!("patterns for {name:?}, which takes none")))
    }

    /// A kernel of the program.
    pub(super) fn kernel(kernel: Kernel) -> Self {
        let (id, result_size) = (kernel.id, kernel.result_size);
        Self { id, result_size, kind: Kind::Kernel(Arc::new(kernel)), writes: AtomicBool::new(false) }
    }
}

/// The patterns, from the keys and from memory.
fn patterns(params: &Params<'_>) -> Outcome<(Patterns, Search)> {
    let config = |text: String| Fault::new(PL_ERROR_CONFIG, text);
    let keys: StringsKeys =
        toml::from_str(params.config).map_err(|error| config(format!("config: {error}")))?;
    let mut patterns = match &keys.patterns {
        None => Patterns::new(),
        Some(path) => {
            let path = params.folder.join(path);
            let name = path.display();
            let text = std::fs::read(&path).map_err(|e| {
                config(format!("{name}: {}; expected a pattern file", packetloom_io::plain(&e)))
            })?;
            let format = match &keys.format {
                None => Format::Auto,
                Some(format) => *Format::ALL.iter().find(|all| all.name() == format).ok_or_else(|| {
                    let all = Format::ALL.map(Format::name).join(", ");
                    config(format!("format {format:?}; expected one of {all}"))
                })?,
            };
            let options = Options {
                format,
                by_fast_pattern: keys.by_fast_pattern,
                ignore_case: keys.ignore_case,
                places: Some(Places::PAYLOAD),
            };
            let read = files::read(&text, &options).map_err(|error| config(format!("{name}: {error}")))?;
            if let Some(left) = read.left_out.first() {
                let (line, reason, count) = (left.line, &left.reason, read.left_out.len());
                return Err(config(format!(
                    "{name}:{line}: {reason}; {count} lines cannot be used, expected none"
                )));
            }
            if !read.are_single() {
                let text = "rules with several contents; expected a list, or by_fast_pattern = true";
                return Err(config(format!("{name}: {text}")));
            }
            read.patterns
        }
    };
    for (index, bytes) in params.patterns.iter().enumerate() {
        let pattern = Pattern { ignore_case: keys.ignore_case, ..Pattern::new(bytes) };
        patterns.push(pattern).map_err(|refused| Fault::argument(format!("pattern {index}: {refused}")))?;
    }
    if patterns.is_empty() {
        return Err(config("no patterns; expected the key patterns, or num_patterns".into()));
    }
    Ok((patterns, Search { skip: keys.skip }))
}

/// The automaton that finds the same.
fn automaton(patterns: &Patterns) -> Outcome<AhoCorasick> {
    let ignore_case = patterns.iter().any(|pattern| pattern.ignore_case);
    if patterns.iter().any(|pattern| pattern.ignore_case != ignore_case || pattern.bounds != Bounds::ANYWHERE)
    {
        let text = "patterns with offset or depth, or with and without nocase; expected function \"strings\" for those";
        return Err(Fault::new(PL_ERROR_CONFIG, text));
    }
    let built = AhoCorasick::builder()
        .ascii_case_insensitive(ignore_case)
        .build(patterns.iter().map(|pattern| pattern.bytes));
    built.map_err(|error| Fault::new(PL_ERROR_CONFIG, error.to_string()))
}

impl ChainText {
    fn new(text: String, params: &Params<'_>) -> Outcome<Self> {
        let folder = params.folder;
        let chain = Chain::parse("config", &text, Context { folder, ignore_flags: false })?;
        embedded::check(&chain)?;
        Ok(Self { text, folder: folder.into(), link: params.link, is_acl: false })
    }

    /// The chain, once more.
    pub(super) fn chain(&self) -> Outcome<Chain> {
        let context = Context { folder: &self.folder, ignore_flags: false };
        Ok(Chain::parse("config", &self.text, context)?)
    }
}

/// How a stream runs a function on cores.
pub(super) enum Form {
    Strings,
    /// Each thread has its own.
    Chain(Mutex<Vec<Embedded>>),
    /// All buffers go through one, in order.
    Ordered(Box<Mutex<Embedded>>, Turn),
    /// It is a kernel of the program, for devices alone.
    Kernel,
}

impl Form {
    /// For a stream with so many threads.
    pub(super) fn new(function: &Function, threads: usize) -> Outcome<Self> {
        match &function.kind {
            Kind::Strings(..) | Kind::AhoCorasick(..) => Ok(Self::Strings),
            Kind::Kernel(_) => Ok(Self::Kernel),
            Kind::Chain(chain) => {
                if function.writes.load(Ordering::Acquire) {
                    let text = format!(
                        "function {} has outputs, which another stream writes; expected one stream at a time",
                        function.id
                    );
                    return Err(Fault::new(PL_ERROR_BUSY, text));
                }
                let embedded = Embedded::parse("config", &chain.text, &chain.folder, false)?;
                if !embedded.needs_order() {
                    let mut all: Vec<_> = (1..threads).map(|_| embedded.another()).collect();
                    all.push(embedded);
                    return Ok(Self::Chain(Mutex::new(all)));
                }
                if embedded.writes() && function.writes.swap(true, Ordering::AcqRel) {
                    let text = format!("function {} has outputs, which another stream writes", function.id);
                    return Err(Fault::new(PL_ERROR_BUSY, text));
                }
                Ok(Self::Ordered(Box::new(Mutex::new(embedded)), Turn::default()))
            }
        }
    }

    /// Makes it fit for so many threads; none uses it now.
    pub(super) fn grow(&self, function: &Function, threads: usize) -> Outcome<()> {
        let Self::Chain(all) = self else { return Ok(()) };
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() < threads {
            let another = all.last().ok_or_else(|| failed(function))?.another();
            all.push(another);
        }
        Ok(())
    }

    /// Ends what a stream did; no thread uses it any more.
    pub(super) fn end(&self, function: &Function) -> Outcome<()> {
        let Self::Ordered(embedded, _) = self else { return Ok(()) };
        let mut embedded = embedded.lock().map_err(|_| failed(function))?;
        let result = embedded.finish();
        drop(embedded);
        self.release(function);
        result.map(drop)
    }

    /// Leaves outputs to another stream.
    pub(super) fn release(&self, function: &Function) {
        if matches!(self, Self::Ordered(..)) {
            function.writes.store(false, Ordering::Release);
        }
    }
}

fn failed(function: &Function) -> Fault {
    Fault::new(PL_ERROR_INTERNAL, format!("function {} failed before", function.id))
}

/// Buffers by their numbers, one after the other.
#[derive(Default)]
pub(super) struct Turn {
    next: Mutex<u64>,
    moved: Condvar,
}

/// It is a buffer's turn, until this is dropped.
struct Its<'a>(&'a Turn);

impl Turn {
    fn wait(&self, number: u64) -> Its<'_> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        while *next != number {
            next = self.moved.wait(next).unwrap_or_else(PoisonError::into_inner);
        }
        Its(self)
    }
}

impl Drop for Its<'_> {
    fn drop(&mut self) {
        *self.0.next.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.moved.notify_all();
    }
}

/// Room of a thread.
#[derive(Default)]
pub(super) struct Room {
    scratch: Scratch,
    matches: Vec<Match>,
}

/// A buffer's packets, for a function.
pub(super) struct Batch<'a> {
    /// The number of the buffer in the stream.
    pub(super) number: u64,
    /// When it was ready.
    pub(super) time: u64,
    pub(super) packets: &'a [&'a [u8]],
}

impl Function {
    /// Runs a function on this core; `results` gets what it has found, packet by packet.
    pub(super) fn run(
        &self,
        form: &Form,
        batch: &Batch<'_>,
        room: &mut Room,
        results: &mut Vec<u8>,
    ) -> Outcome<()> {
        results.clear();
        results.resize(batch.packets.len() * self.result_size, 0);
        let mut put = |index, words| put(results, self.result_size, index, words);
        match (&self.kind, form) {
            (Kind::Strings(matcher, search), _) => {
                let texts: Vec<_> = batch.packets.iter().map(|packet| search.text(packet)).collect();
                room.matches.clear();
                matcher.find(&texts, Report::First, &mut room.scratch, &mut room.matches);
                for &Match { text, end, pattern } in &room.matches {
                    put(text as usize, [pattern + 1, end + search.skip]);
                }
                Ok(())
            }
            (Kind::AhoCorasick(automaton, _, search), _) => {
                for (index, packet) in batch.packets.iter().enumerate() {
                    // The first that ends, and of those the one with the lowest number.
                    let mut found = automaton.find_overlapping_iter(search.text(packet));
                    let Some(first) = found.next() else { continue };
                    let same = found.take_while(|other| other.end() == first.end());
                    let pattern = same.map(|other| other.pattern()).fold(first.pattern(), Ord::min);
                    put(index, [pattern.as_u32() + 1, first.end() as u32 + search.skip]);
                }
                Ok(())
            }
            (Kind::Chain(chain), Form::Chain(all)) => {
                let taken = all.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let mut embedded = taken.ok_or_else(|| failed(self))?;
                let result = judge(&mut embedded, chain.link, batch, put);
                all.lock().unwrap_or_else(PoisonError::into_inner).push(embedded);
                result
            }
            (Kind::Chain(chain), Form::Ordered(embedded, turn)) => {
                let _its = turn.wait(batch.number);
                judge(&mut *embedded.lock().map_err(|_| failed(self))?, chain.link, batch, put)
            }
            _ => Err(Fault::new(PL_ERROR_INTERNAL, "a kernel on a host core")),
        }
    }
}

/// Writes the numbers of a packet into results of so many bytes for each: as many of the numbers as fit.
pub(super) fn put(results: &mut [u8], size: usize, index: usize, words: [u32; 2]) {
    let to = &mut results[index * size..][..size];
    to.iter_mut().zip(words.iter().flat_map(|word| word.to_ne_bytes())).for_each(|(to, byte)| *to = byte);
}

impl Search {
    fn text<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        packet.get(self.skip as usize..).unwrap_or_default()
    }
}

fn judge(
    embedded: &mut Embedded,
    link: LinkType,
    batch: &Batch<'_>,
    mut put: impl FnMut(usize, [u32; 2]),
) -> Outcome<()> {
    let time = Timestamp::from_nanos(batch.time);
    let packets = batch.packets.iter();
    let packets = packets.map(|&bytes| Packet { bytes, wire_len: bytes.len() as u32, time });
    embedded.process(link, packets, |index, judged| put(index, [judged.verdict.code().into(), judged.mark]))
}
