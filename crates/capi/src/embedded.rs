//! A chain over packets that the program holds: one worker, with the outputs of its functions.

use std::path::Path;
use std::sync::Arc;

use packetloom_engine::offload::Unfinished;
use packetloom_engine::pipeline::{Counted, LogEntry, Shared, Worker};
use packetloom_engine::{Chain, Outcome as Summary, Plan};
use packetloom_io::output::Output;
use packetloom_nf::{Context, Log};
use packetloom_packet::batch::{FrameRef, empty_arena};
use packetloom_packet::verdict::VerdictCounts;
use packetloom_packet::{Batch, LinkType, Timestamp, Verdict};

use crate::status::*;

/// Bytes of outputs that wait to be read, at most, before packets are refused.
const UNREAD: usize = 64 << 20;

/// Bytes of outputs after which the program is to read them, at the end.
const READ: usize = 1 << 20;

/// A packet of the program.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes on the wire.
    pub(crate) wire_len: u32,
    pub(crate) time: Timestamp,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    pub(crate) mark: u32,
    pub(crate) is_rewritten: bool,
}

/// Where a function's records or log go.
enum Lines {
    Nowhere,
    /// To the file that the chain names.
    File(Box<Output>),
    /// To the program; bytes before the place were read.
    Program(String, usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Runs,
    /// What functions still hold is being handed out.
    Drains,
    Finished,
}

/// See the module.
pub(crate) struct Embedded {
    plan: Plan,
    worker: Worker,
    batch: Batch,
    /// The bytes of the batch's frames.
    arena: Arc<Vec<u8>>,
    frames: Vec<FrameRef>,
    lines: Vec<Lines>,
    logs: Vec<(Option<Box<dyn Log>>, String)>,
    entries: Vec<LogEntry>,
    verdicts: VerdictCounts,
    wire_bytes: u64,
    /// Packets of the last call that were rewritten, with where their bytes end.
    rewritten: Vec<(usize, usize)>,
    rewritten_bytes: Vec<u8>,
    stage: Stage,
}

impl Embedded {
    /// Reads a chain file.
    pub(crate) fn load(path: &Path, to_program: bool) -> Outcome<Self> {
        Self::new(Chain::load(path, false)?, to_program)
    }

    /// Reads a chain from text; paths in it count from `folder`.
    pub(crate) fn parse(name: &str, text: &str, folder: &Path, to_program: bool) -> Outcome<Self> {
        Self::new(Chain::parse(name, text, Context { folder, ignore_flags: false })?, to_program)
    }

    fn new(chain: Chain, to_program: bool) -> Outcome<Self> {
        check(&chain)?;
        let lines = chain.functions().iter().map(|function| {
            let (path, header) = (function.records_path(), function.record_lines().header());
            let Some(path) = path else { return Ok(Lines::Nowhere) };
            if to_program {
                return Ok(Lines::Program(header.unwrap_or_default(), 0));
            }
            let mut output = Output::create(path)?;
            header.map_or(Ok(()), |header| output.write_header(header.as_bytes()))?;
            Ok(Lines::File(Box::new(output)))
        });
        let lines = lines.collect::<Outcome<Vec<_>>>()?;
        chain.functions().iter().for_each(|function| function.make_ready(None));
        Ok(Self::start(Plan::new(chain), lines))
    }

    /// The same chain once more, with state of its own, of one that writes nothing.
    pub(crate) fn another(&self) -> Self {
        Self::start(self.plan.clone(), self.lines.iter().map(|_| Lines::Nowhere).collect())
    }

    fn start(plan: Plan, lines: Vec<Lines>) -> Self {
        let chain = plan.chain();
        let size = chain.settings.run.batch.get();
        let logs = chain.functions().iter().map(|function| (function.log(), String::new())).collect();
        let worker = Worker::new(&plan, &Shared::new(&plan, 1, size), 0);
        Self {
            plan,
            worker,
            batch: Batch::new(size),
            arena: Arc::default(),
            frames: Vec::new(),
            lines,
            logs,
            entries: Vec::new(),
            verdicts: VerdictCounts::default(),
            wire_bytes: 0,
            rewritten: Vec::new(),
            rewritten_bytes: Vec::new(),
            stage: Stage::Runs,
        }
    }

    /// Whether what becomes of a packet, or what is written, depends on the packets before it.
    pub(crate) fn needs_order(&self) -> bool {
        let has_state = !self.plan.chain().layout().definitions.is_empty();
        has_state || self.writes() || self.functions().any(|name| name == "sample")
    }

    /// Whether functions have outputs.
    pub(crate) fn writes(&self) -> bool {
        self.lines.iter().any(|lines| !matches!(lines, Lines::Nowhere))
    }

    /// Says whether packets come as they are sent.
    pub(crate) fn set_live(&mut self, is_live: bool) {
        self.worker.set_live(is_live);
    }

    /// The functions' names, in order.
    pub(crate) fn functions(&self) -> impl ExactSizeIterator<Item = &'static str> {
        self.plan.chain().functions().iter().map(|function| function.name())
    }

    /// Judges packets, in order; `judged` is told of each.
    pub(crate) fn process<'a>(
        &mut self,
        link: LinkType,
        packets: impl ExactSizeIterator<Item = Packet<'a>>,
        mut judged: impl FnMut(usize, Judged),
    ) -> Outcome<()> {
        self.not_finished()?;
        let unread = self.unread();
        if unread > UNREAD {
            let text = format!("{unread} bytes of outputs are not read; expected them to be read first");
            return Err(Fault::new(PL_ERROR_FULL, text));
        }
        self.rewritten.clear();
        self.rewritten_bytes.clear();
        let mut packets = packets.peekable();
        let mut first = 0;
        while packets.peek().is_some() {
            self.batch.reset(empty_arena());
            self.batch.set_first_number(self.verdicts.received());
            // Nobody else has it but the batch, which just let it go.
            let arena = Arc::get_mut(&mut self.arena).expect("the arena is of no batch");
            arena.clear();
            self.frames.clear();
            for Packet { bytes, wire_len, time } in packets.by_ref().take(self.batch.capacity()) {
                let offset = arena.len() as u64;
                arena.extend_from_slice(bytes);
                self.frames.push(FrameRef { offset, time, len: bytes.len() as u32, wire_len, link, port: 0 });
            }
            let batch = &mut self.batch;
            batch.reset(self.arena.clone());
            batch.set_first_number(self.verdicts.received());
            self.frames.iter().for_each(|&frame| batch.push(frame));
            self.worker.judge(batch)?;
            let batch = &self.batch;
            for (index, &verdict) in batch.verdicts().iter().enumerate() {
                let is_rewritten = batch.is_rewritten(index);
                judged(first + index, Judged { verdict, mark: batch.mark(index), is_rewritten });
                if is_rewritten {
                    let start = self.rewritten_bytes.len();
                    self.rewritten_bytes.extend_from_slice(batch.bytes(index));
                    batch.apply_rewrites(index, &mut self.rewritten_bytes[start..]);
                    self.rewritten.push((first + index, self.rewritten_bytes.len()));
                }
            }
            first += batch.len();
            let before = self.verdicts.received();
            self.verdicts.merge(&VerdictCounts::of(batch.verdicts()));
            self.wire_bytes += batch.frames().iter().map(|frame| u64::from(frame.wire_len)).sum::<u64>();
            self.take_effects(before)?;
        }
        // The batch must not keep the arena.
        self.batch.reset(empty_arena());
        Ok(())
    }

    /// Has idle state expire.
    pub(crate) fn pass_time(&mut self, now: Timestamp) -> Outcome<()> {
        self.not_finished()?;
        self.worker.pass_time(now)?;
        self.take_effects(self.verdicts.received())
    }

    /// The bytes of a packet of the last call that was rewritten, as they are to be sent.
    pub(crate) fn rewritten(&self, index: usize) -> Option<&[u8]> {
        let at = self.rewritten.binary_search_by_key(&index, |&(index, _)| index).ok()?;
        let start = if at == 0 { 0 } else { self.rewritten[at - 1].1 };
        Some(&self.rewritten_bytes[start..self.rewritten[at].1])
    }

    /// Ends the state of all flows, and finishes files. Whether there is more to be read by the program before this is called again.
    pub(crate) fn finish(&mut self) -> Outcome<bool> {
        self.not_finished()?;
        self.stage = Stage::Drains;
        loop {
            if self.unread() > READ {
                return Ok(true);
            }
            let more = self.worker.drain();
            self.take_effects(self.verdicts.received())?;
            if !more {
                break;
            }
        }
        for (function, (log, lines)) in self.logs.iter_mut().enumerate() {
            if let Some(log) = log {
                log.finish(lines);
                write(&mut self.lines[function], lines)?;
            }
        }
        // What can fail comes before files get their names.
        for lines in &mut self.lines {
            if let Lines::File(output) = lines {
                output.flush()?;
            }
        }
        self.stage = Stage::Finished;
        for lines in &mut self.lines {
            if let Lines::File(_) = lines
                && let Lines::File(output) = std::mem::replace(lines, Lines::Nowhere)
            {
                output.finish()?;
            }
        }
        Ok(false)
    }

    /// Moves what a function has written, and was not read, to the program: how many bytes it was.
    pub(crate) fn read(&mut self, function: usize, to: &mut [std::mem::MaybeUninit<u8>]) -> Outcome<usize> {
        let count = self.lines.len();
        let Some(lines) = self.lines.get_mut(function) else {
            let text = format!("function {function} of {count}; expected one from 0");
            return Err(Fault::new(PL_ERROR_NOT_FOUND, text));
        };
        let Lines::Program(text, read) = lines else {
            let text = "its outputs do not go to the program; expected a chain opened with PL_OUTPUTS_TO_PROGRAM, and a \
                        function with an output or a log";
            return Err(Fault::new(PL_ERROR_NOT_FOUND, text));
        };
        let left = &text.as_bytes()[*read..];
        let taken = left.len().min(to.len());
        to[..taken].write_copy_of_slice(&left[..taken]);
        *read += taken;
        if *read == text.len() {
            text.clear();
            *read = 0;
        }
        Ok(taken)
    }

    /// What was counted so far, as `packetloom run --summary` writes it.
    pub(crate) fn summary(&self) -> String {
        let Counted { mut functions, flows } = self.worker.counted();
        for (report, (log, _)) in functions.iter_mut().zip(&self.logs) {
            if let Some(log) = log {
                report.merge(&*log.report());
            }
        }
        // A definition that a function has to itself is part of its report.
        let named = self.plan.chain().layout().definitions.iter().zip(flows).filter(|(used, _)| !used.is_own);
        let flows = named.map(|(used, counts)| (used.name.clone(), counts)).collect();
        let summary = Summary {
            verdicts: self.verdicts,
            wire_bytes: self.wire_bytes,
            functions: self.functions().zip(functions).collect(),
            flows,
            top_flows: Default::default(),
            truncation: None,
            files: Vec::new(),
            findings: Default::default(),
            stopped: false,
            elapsed: Default::default(),
            shares: None,
            unfinished: Unfinished::default(),
            reloads: Default::default(),
            rule_changes: 0,
            replaced: Vec::new(),
            replaced_before: 0,
            state: None,
            interfaces: Vec::new(),
            written: Vec::new(),
            exported: Vec::new(),
            reports: None,
        };
        summary.json().to_string()
    }

    fn not_finished(&self) -> Outcome<()> {
        match self.stage {
            Stage::Finished => {
                Err(Fault::new(PL_ERROR_FINISHED, "the chain is finished; it can only be closed"))
            }
            _ => Ok(()),
        }
    }

    fn unread(&self) -> usize {
        let unread = |lines: &Lines| match lines {
            Lines::Program(text, read) => text.len() - read,
            _ => 0,
        };
        self.lines.iter().map(unread).sum()
    }

    /// Hands on what came of packets beside verdicts; so many came before them.
    fn take_effects(&mut self, before: u64) -> Outcome<()> {
        let Self { worker, lines, logs, entries, .. } = self;
        for (effects, (lines, (log, logged))) in worker.effects().zip(lines.iter_mut().zip(logs)) {
            entries.append(effects.log_entries);
            for LogEntry { frame, rule, packet, offsets } in entries.drain(..) {
                if let Some(log) = log {
                    log.log(logged, rule, before + u64::from(frame), &packet, offsets.as_deref());
                }
            }
            write(lines, effects.lines)?;
            write(lines, logged)?;
        }
        Ok(())
    }
}

/// Writes lines, and forgets them.
fn write(to: &mut Lines, lines: &mut String) -> Outcome<()> {
    match to {
        Lines::Nowhere => {}
        Lines::File(output) => output.write(lines.as_bytes())?,
        Lines::Program(text, _) => text.push_str(lines),
    }
    lines.clear();
    Ok(())
}

/// Refuses what a chain asks for that the program does itself, or that is not had here.
pub(crate) fn check(chain: &Chain) -> Outcome<()> {
    let settings = &chain.settings;
    let run = &settings.run;
    let exports = chain.functions().iter().any(|function| !function.exports().is_empty());
    let asked = [
        (settings.sink.is_some(), "[sink] capture"),
        (settings.dropped.is_some(), "[sink] dropped"),
        (settings.matched.is_some(), "[sink] matched"),
        (run.summary.is_some(), "[run] summary"),
        (run.control.is_some(), "[run] control"),
        (run.stats_every.is_some(), "[run] stats_every"),
        (run.rotation().is_some(), "[run] rotate_every or rotate_size"),
        (run.device != packetloom_engine::chain::Device::Cpu, "[run] device"),
        (exports, "[[chain.export]]"),
    ];
    match asked.iter().find(|(is_asked, _)| *is_asked) {
        None => Ok(()),
        Some((_, what)) => {
            let text =
                format!("the chain has {what}, which the library has not; expected a chain without it");
            Err(Fault::new(PL_ERROR_CONFIG, text))
        }
    }
}
