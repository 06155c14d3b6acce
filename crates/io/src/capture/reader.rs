//! Reads a capture into batches.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use packetloom_packet::batch::empty_arena;
use packetloom_packet::{Batch, FrameRef, PortNames};

use super::{Decoder, Findings, HEADER_LEN, Resolution, Section, Sections, Step, pcap, pcapng};
use crate::Error;
use crate::input::{self, Input, Sender, Stop, Stream};
use crate::map::{Map, Paging};
use crate::source::{Polled, Source};

/// Bytes of a stream that are read ahead.
const CHUNK: usize = 1 << 18;

/// Why a capture ended before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Offset in the (decompressed) file of the record that could not be read.
    pub offset: u64,
    /// What was wrong with it.
    pub reason: String,
}

/// A capture being read: from a mapped file, whose frames are never copied, or from a stream, chunk by chunk.
pub struct CaptureReader {
    name: String,
    window: Window,
    decoder: Decoder,
    /// Offset in the file of the window's first byte.
    base: u64,
    /// Offset in the window of the next record.
    position: usize,
    /// Bytes still to be skipped before the next record.
    skip: u64,
    /// Offset in the file of the record that is skipped.
    skip_start: u64,
    truncation: Option<Truncation>,
    done: bool,
    /// Names of a pcapng file's interfaces.
    port_names: Option<PortNames>,
    stop: Stop,
}

/// The bytes that can be seen at once.
enum Window {
    /// All of a file; its pages are in memory up to `present`.
    Mapped {
        map: Arc<Map>,
        present: usize,
    },
    /// All of a capture that is in memory.
    Memory(Arc<Vec<u8>>),
    Stream(Chunks),
}

/// A stream's bytes, in chunks that batches share; a chunk is used again when no batch holds it any more.
struct Chunks {
    stream: Stream,
    current: Arc<Vec<u8>>,
    filled: usize,
    pool: Vec<Arc<Vec<u8>>>,
}

/// What reading more of a stream came to.
enum More {
    Bytes,
    End,
    /// The decompressor gave up.
    Corrupt(String),
}

impl Chunks {
    /// Forgets the bytes before `keep`, which moves to the start of a chunk, and reads more behind the others.
    fn read_more(&mut self, keep: usize) -> std::io::Result<More> {
        if keep > 0 || self.filled == self.current.len() || Arc::get_mut(&mut self.current).is_none() {
            self.start_chunk(keep);
        }
        let Some(buffer) = Arc::get_mut(&mut self.current) else { unreachable!("a chunk nobody else holds") };
        loop {
            match self.stream.reader.read(&mut buffer[self.filled..]) {
                Ok(0) => return Ok(More::End),
                Ok(n) => {
                    self.filled += n;
                    return Ok(More::Bytes);
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                // An error that no system call raised is the decompressor's.
                Err(e) if self.stream.compressed && e.raw_os_error().is_none() => {
                    return Ok(More::Corrupt(e.to_string()));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Puts the bytes from `keep` on at the start of a chunk that no batch holds, with room behind them.
    fn start_chunk(&mut self, keep: usize) {
        let rest = self.filled - keep;
        // Room for the bytes there are and as many again: what a stream makes us hold grows with what it sent,
        // not with the lengths it claims.
        let size = CHUNK.max((rest * 2).next_power_of_two());
        let free =
            self.pool.iter_mut().position(|chunk| Arc::get_mut(chunk).is_some_and(|c| c.len() >= size));
        let mut next = match free {
            Some(index) => self.pool.swap_remove(index),
            None => Arc::new(vec![0; size]),
        };
        let Some(buffer) = Arc::get_mut(&mut next) else { unreachable!("a chunk nobody else holds") };
        buffer[..rest].copy_from_slice(&self.current[keep..self.filled]);
        let last = std::mem::replace(&mut self.current, next);
        // Chunks grown for one long record are not kept.
        self.pool.retain(|chunk| chunk.len() == CHUNK);
        if last.len() == CHUNK {
            self.pool.push(last);
        }
        self.filled = rest;
    }
}

impl CaptureReader {
    /// Opens the capture at `path`, or on standard input where that is `-`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is empty, is not a capture, has a bad file header, or ends within it.
    pub fn open(path: &Path, stop: &Stop) -> Result<Self, Error> {
        let opened = input::open(path, stop).map_err(|error| error.expecting("a pcap or pcapng capture"));
        let window = match opened? {
            Input::Mapped(map) => Window::Mapped { map, present: 0 },
            Input::Stream(stream) => Window::stream(stream),
        };
        Self::new(input::display_name(path), window, stop.clone())
    }

    /// Reads a capture from anything that yields bytes, decompressed by content; `name` is for messages.
    ///
    /// # Errors
    ///
    /// As [`CaptureReader::open`].
    pub fn from_reader(name: &str, reader: impl Read + Send + 'static, stop: &Stop) -> Result<Self, Error> {
        let stream = input::stream(reader, None).map_err(|e| Error::io(name, e))?;
        Self::new(name.into(), Window::stream(stream), stop.clone())
    }

    /// Reads an uncompressed capture that is in memory; `name` is for messages.
    ///
    /// # Errors
    ///
    /// As [`CaptureReader::open`].
    pub fn from_bytes(name: &str, bytes: Arc<Vec<u8>>) -> Result<Self, Error> {
        Self::new(name.into(), Window::Memory(bytes), Stop::default())
    }

    fn new(name: String, mut window: Window, stop: Stop) -> Result<Self, Error> {
        let mut corrupt = None;
        // Enough for the file header, or all there is.
        if let Window::Stream(chunks) = &mut window {
            while chunks.filled < HEADER_LEN {
                match chunks.read_more(0).map_err(|e| Error::io(name.clone(), e))? {
                    More::Bytes => {}
                    More::End => break,
                    More::Corrupt(reason) => {
                        corrupt = Some(reason);
                        break;
                    }
                }
            }
        }
        let stopped = stop.load(Ordering::Relaxed);
        let (decoder, position) = match recognise(&name, window.bytes()) {
            Ok(recognised) => recognised,
            // Stopped on purpose before enough came to know the format: a capture without frames.
            Err(_) if stopped => (Decoder::Pcapng(pcapng::Decoder::new()), 0),
            Err(e) => {
                let broken =
                    |reason: String| Error::BadHeader { path: name.clone(), reason: broken_data(&reason) };
                return Err(corrupt.map_or(e, broken));
            }
        };
        let mut reader = Self {
            name,
            window,
            decoder,
            base: 0,
            position,
            skip: 0,
            skip_start: 0,
            truncation: None,
            done: stopped,
            port_names: None,
            stop,
        };
        reader.first_block()?;
        Ok(reader)
    }

    /// A pcapng file whose first block is not whole is no capture yet.
    fn first_block(&mut self) -> Result<(), Error> {
        if !matches!(self.decoder, Decoder::Pcapng(_)) {
            return Ok(());
        }
        loop {
            match self.decoder.step(self.window.bytes(), 0) {
                _ if self.stop.load(Ordering::Relaxed) => {
                    self.done = true;
                    return Ok(());
                }
                Step::Skip(len) => {
                    self.skip = len;
                    return Ok(());
                }
                Step::NeedMore if self.read_more()? => {}
                step => {
                    let path = self.name.clone();
                    return Err(match (step, self.truncation.take()) {
                        (Step::Broken(fault), _) => Error::BadHeader { path, reason: fault.to_string() },
                        (_, Some(Truncation { reason, .. })) => Error::BadHeader { path, reason },
                        _ => Error::HeaderCut { path, format: "pcapng" },
                    });
                }
            }
        }
    }

    /// Fills `batch` with the frames that come next, until it is full or more would have to be waited for.
    /// Returns `false` at the end of the capture, when no frame was left.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where reading fails. A broken tail is no error: see [`CaptureReader::truncation`].
    pub fn fill(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        Ok(self.fill_or(batch, true)? == Polled::Frames)
    }

    /// The same; unless it `waits`, [`Polled::Nothing`] where somebody is to send more.
    fn fill_or(&mut self, batch: &mut Batch, waits: bool) -> Result<Polled, Error> {
        if self.done {
            batch.reset(empty_arena());
            return Ok(Polled::End);
        }
        batch.reset(self.window.arena());
        if let Decoder::Pcapng(decoder) = &mut self.decoder
            && decoder.are_names_new()
        {
            self.port_names = decoder.take_names();
        }
        batch.set_port_names(self.port_names.clone());
        while !batch.is_full() {
            if let (Decoder::Pcap(decoder), 0) = (&mut self.decoder, self.skip) {
                self.position += decoder.frames(self.window.bytes(), self.position, batch);
                if batch.is_full() {
                    break;
                }
            }
            if self.skip > 0 {
                let step =
                    (self.window.len() - self.position).min(usize::try_from(self.skip).unwrap_or(usize::MAX));
                self.position += step;
                self.skip -= step as u64;
            }
            let step = if self.skip > 0 {
                Step::NeedMore
            } else {
                let offset = self.position();
                self.decoder.step(&self.window.bytes()[self.position..], offset)
            };
            match step {
                Step::Frame(frame, len) => {
                    batch.push(FrameRef { offset: frame.offset + self.position as u64, ..frame });
                    self.position += len;
                    if let Decoder::Pcapng(decoder) = &mut self.decoder {
                        decoder.look_ahead(self.window.bytes(), self.position, len);
                    }
                }
                Step::Skip(len) => {
                    self.skip = len;
                    self.skip_start = self.position();
                    if let Decoder::Pcapng(decoder) = &mut self.decoder
                        && decoder.are_names_new()
                    {
                        // The frames that follow may come by interfaces of other names.
                        if !batch.is_empty() {
                            break;
                        }
                        self.port_names = decoder.take_names();
                        batch.set_port_names(self.port_names.clone());
                    }
                }
                Step::NeedMore if !batch.is_empty() && matches!(self.window, Window::Stream(_)) => break,
                Step::NeedMore => {
                    // The batch must not hold the chunk that is to be used again.
                    if batch.is_empty() {
                        batch.reset(empty_arena());
                        if !waits && self.sender().is_some_and(|sender| !sender.has_sent(Duration::ZERO)) {
                            return Ok(Polled::Nothing);
                        }
                    }
                    if !self.read_more()? {
                        self.end();
                        break;
                    }
                    if batch.is_empty() {
                        batch.reset(self.window.arena());
                        batch.set_port_names(self.port_names.clone());
                    }
                }
                Step::Broken(fault) => {
                    self.truncate(&fault.to_string());
                    break;
                }
            }
        }
        Ok(if batch.is_empty() && self.done { Polled::End } else { Polled::Frames })
    }

    /// Reads on in a stream; `false` where there is nothing more, as in a mapped file.
    fn read_more(&mut self) -> Result<bool, Error> {
        let Window::Stream(chunks) = &mut self.window else { return Ok(false) };
        let keep = self.position;
        let outcome = chunks.read_more(keep).map_err(|e| Error::io(self.name.clone(), e))?;
        self.base += keep as u64;
        self.position = 0;
        match outcome {
            More::Bytes => Ok(true),
            More::End => Ok(false),
            More::Corrupt(reason) => {
                self.truncate(&broken_data(&reason));
                Ok(false)
            }
        }
    }

    /// Notes the end of the file: bytes that are left over belong to a record that was cut, unless reading was
    /// stopped on purpose.
    fn end(&mut self) {
        self.done = true;
        let left = self.skip > 0 || self.position < self.window.len();
        if left {
            self.truncate("the file ends within a record");
        }
    }

    /// Notes that nothing can be read from here on; the first reason counts.
    fn truncate(&mut self, reason: &str) {
        self.done = true;
        // A reader that was stopped on purpose ends where it is, and decompressors take that for damage.
        if self.stop.load(Ordering::Relaxed) {
            return;
        }
        let offset = if self.skip > 0 { self.skip_start } else { self.position() };
        self.truncation.get_or_insert_with(|| Truncation { offset, reason: reason.into() });
    }

    /// Pages of a mapped capture that are best brought in before the next batch, by this thread or another one.
    pub fn paging(&mut self) -> Option<Paging> {
        match &mut self.window {
            Window::Mapped { map, present } => map.paging(self.position, present),
            Window::Memory(_) | Window::Stream(_) => None,
        }
    }

    /// Sections of so many bytes from here on, of a pcap file that is in memory; none of other captures, and at the end.
    pub fn sections(&self, bytes: usize) -> Option<Sections> {
        let (Decoder::Pcap(decoder), 0, false) = (&self.decoder, self.skip, self.done) else { return None };
        if matches!(self.window, Window::Stream(_)) || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let seconds = decoder.seconds(self.window.bytes(), self.position)?;
        let (arena, decoder) = (self.window.arena(), decoder.clone());
        Some(Sections { arena, decoder, begin: self.position, bytes: bytes.max(1), seconds })
    }

    /// Goes on behind a section, if that begins where this is; whether it does.
    pub fn accept(&mut self, section: Section) -> bool {
        let Decoder::Pcap(decoder) = &mut self.decoder else { return false };
        let is_next = section.begin == self.position && self.skip == 0 && !self.done;
        if is_next {
            self.position = section.end;
            decoder.count(section.frames);
        }
        is_next
    }

    /// How finely the timestamps read so far are divided.
    pub fn resolution(&self) -> Resolution {
        self.decoder.resolution()
    }

    /// What was odd about the frames given so far.
    pub fn findings(&self) -> Findings {
        self.decoder.findings()
    }

    /// Where and why reading ended before the end of the file, if it did.
    pub fn truncation(&self) -> Option<&Truncation> {
        self.truncation.as_ref()
    }

    /// The name used in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.base + self.position as u64
    }

    /// Bytes there are in all, where that is known beforehand.
    pub fn total(&self) -> Option<u64> {
        match &self.window {
            Window::Mapped { .. } | Window::Memory(_) => Some(self.window.len() as u64),
            Window::Stream(_) => None,
        }
    }

    /// Whether frames come as somebody sends them, so that waiting for more may take for ever: from a pipe, say.
    pub fn is_live(&self) -> bool {
        self.sender().is_some()
    }

    /// Who sends the bytes while they are read, if anybody does.
    fn sender(&self) -> Option<&Sender> {
        match &self.window {
            Window::Stream(chunks) => chunks.stream.live.as_ref(),
            Window::Mapped { .. } | Window::Memory(_) => None,
        }
    }
}

/// Says why a decompressor gave up.
fn broken_data(reason: &str) -> String {
    format!("the compressed data are broken: {reason}")
}

/// Tells the format by the first bytes: its decoder, and where the first record or block begins.
fn recognise(name: &str, head: &[u8]) -> Result<(Decoder, usize), Error> {
    let path = || name.to_owned();
    if let Some(order) = pcap::Decoder::recognise(head) {
        let Some(header) = head.first_chunk() else {
            return Err(Error::HeaderCut { path: path(), format: "pcap" });
        };
        Ok((Decoder::Pcap(pcap::Decoder::new(order, header)), HEADER_LEN))
    } else if pcapng::Decoder::recognise(head) {
        Ok((Decoder::Pcapng(pcapng::Decoder::new()), 0))
    } else if head.is_empty() {
        Err(Error::Empty { path: path() })
    } else {
        let found = head.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        // As much as tells what it is.
        let head = head[..head.len().min(1 << 12)].to_vec();
        Err(Error::NotACapture { path: path(), found, head })
    }
}

impl Window {
    fn stream(stream: Stream) -> Self {
        Self::Stream(Chunks { stream, current: Arc::new(Vec::new()), filled: 0, pool: Vec::new() })
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped { map, .. } => (**map).as_ref(),
            Self::Memory(bytes) => bytes,
            Self::Stream(chunks) => &chunks.current[..chunks.filled],
        }
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// The memory to which a batch's offsets refer.
    fn arena(&self) -> packetloom_packet::Arena {
        match self {
            Self::Mapped { map, .. } => map.clone(),
            Self::Memory(bytes) => bytes.clone(),
            Self::Stream(chunks) => chunks.current.clone(),
        }
    }
}

impl Source for CaptureReader {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        self.fill_or(batch, false)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        if let Some(sender) = self.sender() {
            sender.has_sent(timeout);
        }
        Ok(())
    }

    fn is_live(&self) -> bool {
        self.is_live()
    }

    fn paging(&mut self) -> Option<Paging> {
        self.paging()
    }

    fn sections(&self, bytes: usize) -> Option<Sections> {
        self.sections(bytes)
    }

    fn accept(&mut self, section: Section) -> bool {
        self.accept(section)
    }

    fn position(&self) -> u64 {
        self.position()
    }

    fn truncation(&self) -> Option<&Truncation> {
        self.truncation()
    }

    fn findings(&self) -> Findings {
        self.findings()
    }
}

impl std::fmt::Debug for CaptureReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureReader").field("name", &self.name).field("position", &self.position()).finish()
    }
}
