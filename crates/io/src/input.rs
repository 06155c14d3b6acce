//! Inputs: a file or standard input, decompressed by content.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::decompress::{Decompressor, is_zstd};
use crate::map::Map;

/// Set from outside (a signal handler, say) to make streams end as if their writer had closed them.
pub type Stop = Arc<AtomicBool>;

const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];

/// What a path leads to.
pub(crate) enum Input {
    /// A regular file that is not compressed.
    Mapped(Arc<Map>),
    /// Anything else.
    Stream(Stream),
}

/// Bytes that can only be read in order.
pub(crate) struct Stream {
    pub(crate) reader: Box<dyn Read + Send>,
    /// Whether a decompressor stands between the file and the reader: its complaints mean a broken tail.
    pub(crate) compressed: bool,
    /// Who sends the bytes while we read: by a pipe, a socket, a terminal; none of a file, and of anything compressed.
    pub(crate) live: Option<Sender>,
}

/// Whoever sends bytes while they are read.
pub(crate) struct Sender(File);

impl Sender {
    /// Whether there is something to be read, if only the end; waits so long for it.
    pub(crate) fn has_sent(&self, timeout: Duration) -> bool {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // A descriptor that cannot be polled can still be read.
        !matches!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)), Ok(0))
    }
}

/// The name of an input in messages.
pub(crate) fn display_name(path: &Path) -> String {
    if is_standard(path) { "standard input".into() } else { path.display().to_string() }
}

/// Whether the path is `-`.
pub fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens `path`, or standard input where it is `-`.
pub(crate) fn open(path: &Path, stop: &Stop) -> Result<Input, Error> {
    let fail = |source| Error::io(display_name(path), source);
    if is_standard(path) {
        // Not io::stdin(): waiting for a descriptor says nothing about what a buffer before it holds.
        let inner = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(fail)?);
        return interruptible(inner, stop).map(Input::Stream).map_err(fail);
    }
    let mut file = File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    if metadata.is_dir() {
        return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    if !metadata.is_file() || metadata.len() == 0 {
        return interruptible(file, stop).map(Input::Stream).map_err(fail);
    }
    let mut head = Vec::new();
    file.by_ref().take(XZ.len() as u64).read_to_end(&mut head).map_err(fail)?;
    if Compression::of(&head) != Compression::None {
        return stream(Cursor::new(head).chain(file), None).map(Input::Stream).map_err(fail);
    }
    Map::new(&file).map(|map| Input::Mapped(Arc::new(map))).map_err(fail)
}

/// Opens a text file (rules, headers), or standard input where the path is `-`, decompressed by content.
///
/// # Errors
///
/// [`Error::Io`] where the file cannot be opened.
pub fn open_text(path: &Path) -> Result<Box<dyn BufRead + Send>, Error> {
    let fail = |source| Error::io(display_name(path), source);
    let stream = if is_standard(path) {
        stream(io::stdin(), None)
    } else {
        let file = File::open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.is_dir() {
            return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        stream(file, None)
    };
    Ok(Box::new(BufReader::with_capacity(1 << 16, stream.map_err(fail)?.reader)))
}

#[derive(PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    fn of(head: &[u8]) -> Self {
        if head.starts_with(GZIP) {
            Self::Gzip
        } else if head.starts_with(XZ) {
            Self::Xz
        } else if is_zstd(head) {
            Self::Zstd
        } else {
            Self::None
        }
    }
}

/// Reads what may come from somebody who is sending.
fn interruptible(inner: File, stop: &Stop) -> io::Result<Stream> {
    let live = if inner.metadata()?.is_file() { None } else { Some(Sender(inner.try_clone()?)) };
    stream(Interruptible { inner, stop: stop.clone() }, live)
}

/// Looks at the first bytes and puts a decompressor in between where they ask for one.
pub(crate) fn stream(mut reader: impl Read + Send + 'static, live: Option<Sender>) -> io::Result<Stream> {
    let mut head = Vec::new();
    reader.by_ref().take(XZ.len() as u64).read_to_end(&mut head)?;
    let compression = Compression::of(&head);
    let whole = Cursor::new(head).chain(reader);
    Ok(match compression {
        Compression::None => Stream { reader: Box::new(whole), compressed: false, live },
        Compression::Gzip => {
            Stream { reader: Box::new(Decompressor::gzip(whole)), compressed: true, live: None }
        }
        Compression::Xz => Stream { reader: Box::new(Decompressor::xz(whole)), compressed: true, live: None },
        Compression::Zstd => {
            Stream { reader: Box::new(Decompressor::zstd(whole)?), compressed: true, live: None }
        }
    })
}

/// A reader that wakes up while it waits, to see whether it should stop.
struct Interruptible {
    inner: File,
    stop: Stop,
}

impl Read for Interruptible {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(0);
            }
            match poll(&mut [PollFd::new(&self.inner, PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                // A descriptor that cannot be polled can still be read.
                Ok(_) | Err(_) => return self.inner.read(buffer),
            }
        }
    }
}
