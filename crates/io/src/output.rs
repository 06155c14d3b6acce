//! Outputs: a file that appears under its name only when it is whole, or standard output.
//!
//! A symbolic link as an output's name stays: the file that it leads to is replaced. Another hard link to that file keeps
//! what it had.

mod aside;
mod part;
mod series;

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use self::aside::Aside;
pub use self::part::removed as removed_parts;
use self::series::Series;
pub use self::series::{Rotation, stamp};
use crate::Error;
use crate::input::is_standard;

/// A buffered output.
///
/// A regular file is written beside its final name and renamed by [`Output::finish`]; dropped before that, it is
/// removed. What a run that died has left there is removed, too: see [`removed_parts`]. Devices, pipes and standard output (`-`) are written directly.
///
/// Once it is [detached](Output::detach) nobody waits for it, and writing does not fail: what becomes of it is said by
/// [`Output::notice`], [`Output::not_written`] and [`Output::is_whole`].
#[derive(Debug)]
pub struct Output {
    name: String,
    writer: Option<Writer>,
    pending: Option<Pending>,
    rotor: Option<Rotor>,
}

/// When the next of several files begins, and with what.
#[derive(Debug)]
struct Rotor {
    rotation: Rotation,
    /// The files, unless another thread writes them.
    series: Option<Series>,
    /// What each file begins with.
    header: Vec<u8>,
    /// Whether there is a file that is written; what time it is for, by the interval, and its bytes.
    is_begun: bool,
    period: u64,
    bytes: u64,
}

impl Rotor {
    /// The number of the interval that a time in nanoseconds is in, from 1970 on.
    fn period(&self, time: u64) -> u64 {
        self.rotation.every.map_or(0, |every| time / every)
    }

    /// Whether a file begins with a record of this time and so many bytes.
    fn begins_with(&self, time: u64, len: usize) -> bool {
        let is_full = self.rotation.size.is_some_and(|size| self.bytes + len as u64 > size);
        // One that has no record yet takes any.
        let is_empty = self.bytes <= self.header.len() as u64;
        !self.is_begun || self.period(time) > self.period || is_full && !is_empty
    }
}

#[derive(Debug)]
enum Writer {
    Here(BufWriter<Target>),
    Aside(Aside),
}

#[derive(Debug)]
enum Target {
    Standard(io::Stdout),
    File(File),
    /// None of several files.
    None,
}

impl Target {
    fn sync(&self) -> io::Result<()> {
        match self {
            Self::Standard(_) | Self::None => Ok(()),
            Self::File(file) => file.sync_all(),
        }
    }
}

impl Write for Target {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(stdout) => stdout.write(buffer),
            Self::File(file) => file.write(buffer),
            Self::None => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(stdout) => stdout.flush(),
            Self::File(file) => file.flush(),
            Self::None => Ok(()),
        }
    }
}

#[derive(Debug)]
struct Pending {
    part: PathBuf,
    path: PathBuf,
}

impl Output {
    /// Opens `path` for writing, or standard output where it is `-`.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] where the file, or its part file beside it, cannot be made.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let fail = |source| Error::io(name.clone(), source).expecting("a file that can be written");
        let path = resolve(path).map_err(fail)?;
        if is_standard(&path) {
            return Ok(Self::new("standard output".into(), Target::Standard(io::stdout()), None));
        }
        let mut permissions = None;
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
            }
            Ok(metadata) if !metadata.is_file() => {
                let file = OpenOptions::new().write(true).open(&path).map_err(fail)?;
                return Ok(Self::new(name, Target::File(file), None));
            }
            // An existing file that may not be written is not replaced either.
            Ok(metadata) => {
                drop(OpenOptions::new().append(true).open(&path).map_err(fail)?);
                permissions = Some(metadata.permissions());
            }
            Err(_) => {}
        }
        let (part, file) = part::create(&path).map_err(fail)?;
        if let Some(permissions) = permissions {
            file.set_permissions(permissions).map_err(fail)?;
        }
        Ok(Self::new(name, Target::File(file), Some(Pending { part, path })))
    }

    /// Opens `path` for writing behind what is there already, or standard output where it is `-`. The file has its name at once.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] where it cannot be opened or made.
    pub fn append(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let fail = |source| Error::io(name.clone(), source).expecting("a file that can be written");
        if is_standard(&resolve(path).map_err(fail)?) {
            return Ok(Self::new("standard output".into(), Target::Standard(io::stdout()), None));
        }
        let mut file = OpenOptions::new().append(true).create(true).open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.is_file() {
            // So that it is known where a line begins that could not be written whole.
            file.seek(SeekFrom::End(0)).map_err(fail)?;
        }
        Ok(Self::new(name, Target::File(file), None))
    }

    /// Begins a file after another, named after `path`, as records come: see [`Output::write_record`]. A file has its name, such as
    /// `flows-20261127T150000Z-000001.jsonl` of `flows.jsonl`, when it is finished; none is replaced.
    ///
    /// # Errors
    ///
    /// [`Error::NotRotated`] where `path` stands for something else than files, and [`Error::Open`] where the first one cannot be made.
    pub fn rotating(path: &Path, rotation: Rotation) -> Result<Self, Error> {
        let name = path.display().to_string();
        if let Some(found) = cannot_rotate(path) {
            return Err(Error::NotRotated { path: name, found });
        }
        let made = resolve(path).and_then(|path| Series::new(&path, rotation.keep));
        let series = Some(
            made.map_err(|source| Error::io(name.clone(), source).expecting("a file that can be written"))?,
        );
        let rotor = Rotor { rotation, series, header: Vec::new(), is_begun: false, period: 0, bytes: 0 };
        let mut output = Self::new(name, Target::None, None);
        output.rotor = Some(rotor);
        Ok(output)
    }

    fn new(name: String, target: Target, pending: Option<Pending>) -> Self {
        let writer = Some(Writer::Here(BufWriter::with_capacity(1 << 18, target)));
        Self { name, writer, pending, rotor: None }
    }

    /// Has a thread of its own write it from now on, for a run that does not wait for its outputs. Up to 64 MiB wait for the thread.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where there can be no thread, or what was written before cannot be.
    pub fn detach(&mut self) -> Result<(), Error> {
        self.end()?;
        self.flush()?;
        let writer = match self.writer.take() {
            Some(Writer::Here(writer)) => writer,
            other => {
                self.writer = other;
                return Ok(());
            }
        };
        let fail = |source| Error::io(self.name.clone(), source);
        let (file, is_own) = match writer.into_inner().map_err(|e| fail(e.into_error()))? {
            Target::Standard(stdout) => {
                (Some(File::from(stdout.as_fd().try_clone_to_owned().map_err(fail)?)), false)
            }
            Target::File(file) => {
                let is_own = file.metadata().map_err(fail)?.is_file();
                (Some(file), is_own)
            }
            Target::None => (None, true),
        };
        let series = self.rotor.as_mut().and_then(|rotor| rotor.series.take());
        let aside = Aside::new(self.name.clone(), file, is_own, series).map_err(fail)?;
        self.writer = Some(Writer::Aside(aside));
        Ok(())
    }

    fn aside(&mut self) -> Option<&mut Aside> {
        match &mut self.writer {
            Some(Writer::Aside(aside)) => Some(aside),
            _ => None,
        }
    }

    /// Whether a thread of its own writes it.
    pub fn is_detached(&self) -> bool {
        matches!(self.writer, Some(Writer::Aside(_)))
    }

    /// From now on, since nothing else is to be done, there is time to wait for the thread: as long as it comes forward at least every
    /// five seconds.
    pub fn linger(&mut self) {
        if let Some(aside) = self.aside() {
            aside.linger();
        }
    }

    /// As [`Output::flush`]; also waits as [`Output::linger`] says.
    ///
    /// # Errors
    ///
    /// As [`Output::flush`].
    pub fn settle(&mut self) -> Result<(), Error> {
        if self.is_detached() {
            self.end()?;
        }
        match &mut self.writer {
            Some(Writer::Aside(aside)) => aside.settle().map_err(|e| Error::io(self.name.clone(), e)),
            _ => self.flush(),
        }
    }

    /// Writes nothing more to a detached output, for this reason; so many records do not come any more.
    pub fn give_up(&mut self, why: &Error, items: u64) {
        if let Some(aside) = self.aside() {
            aside.give_up(&why.to_string(), items);
        }
    }

    /// Notes that a detached output has no reader, and that this is not the end of the run.
    pub fn say_that_nobody_reads(&mut self) {
        if let Some(aside) = self.aside() {
            aside.say_that_nobody_reads();
        }
    }

    /// What the user should know of a detached output, if there is anything.
    pub fn notice(&mut self) -> Option<String> {
        self.aside()?.notice()
    }

    /// Records that were left out of a detached output.
    pub fn not_written(&self) -> u64 {
        match &self.writer {
            Some(Writer::Aside(aside)) => aside.not_written(),
            _ => 0,
        }
    }

    /// Whether nothing was left out of a detached output.
    pub fn is_whole(&self) -> bool {
        !matches!(&self.writer, Some(Writer::Aside(aside)) if !aside.is_whole())
    }

    /// Whether the reader of a detached output has gone.
    pub fn is_left(&self) -> bool {
        matches!(&self.writer, Some(Writer::Aside(aside)) if aside.is_left())
    }

    /// Gives the file its name now, in place of one that has it: for what grows for a long time and is read meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the file then does not appear.
    pub fn appear(&mut self) -> Result<(), Error> {
        let Some(pending) = &self.pending else { return Ok(()) };
        fs::rename(&pending.part, &pending.path).map_err(|e| Error::io(self.name.clone(), e))?;
        self.pending = None;
        Ok(())
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with the file's name.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_items(bytes, 0)
    }

    /// Writes all of `bytes`, which are so many whole records.
    ///
    /// # Errors
    ///
    /// As [`Output::write`].
    pub fn write_items(&mut self, bytes: &[u8], items: u64) -> Result<(), Error> {
        match &mut self.writer {
            Some(Writer::Here(writer)) => {
                writer.write_all(bytes).map_err(|e| Error::io(self.name.clone(), e))
            }
            Some(Writer::Aside(aside)) => {
                aside.write(bytes, items);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Writes what a file begins with before its first record; of several files, each.
    ///
    /// # Errors
    ///
    /// As [`Output::write`].
    pub fn write_header(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match &mut self.rotor {
            None => self.write(bytes),
            Some(rotor) => {
                rotor.header.extend_from_slice(bytes);
                if !rotor.is_begun {
                    return Ok(());
                }
                rotor.bytes += bytes.len() as u64;
                self.write(bytes)
            }
        }
    }

    /// Writes a record, which has this time, in nanoseconds; of several files, to the next one if it is time for that, or the one before has no
    /// room.
    ///
    /// # Errors
    ///
    /// As [`Output::write`], and where a file cannot be made or named.
    pub fn write_record(&mut self, time: u64, bytes: &[u8]) -> Result<(), Error> {
        if let Some(rotor) = &mut self.rotor {
            if rotor.begins_with(time, bytes.len()) {
                self.begin(time)?;
            }
            if let Some(rotor) = &mut self.rotor {
                rotor.bytes += bytes.len() as u64;
            }
        }
        self.write_items(bytes, 1)
    }

    /// Whether it is several files.
    pub fn is_rotating(&self) -> bool {
        self.rotor.is_some()
    }

    /// Finishes a file whose interval is over at this time, in nanoseconds.
    ///
    /// # Errors
    ///
    /// As [`Output::write_record`].
    pub fn pass_time(&mut self, time: u64) -> Result<(), Error> {
        let Some(rotor) = &mut self.rotor else { return Ok(()) };
        let (period, before) = (rotor.period(time), rotor.period);
        // What comes late goes to the file that is written then. A clock that was far ahead begins anew.
        rotor.period = if period + 1 < before { period } else { period.max(before) };
        if rotor.is_begun && rotor.period != before {
            self.end()?;
            return self.flush();
        }
        Ok(())
    }

    /// Begins the next of several files.
    fn begin(&mut self, time: u64) -> Result<(), Error> {
        self.end()?;
        let Some(rotor) = &mut self.rotor else { return Ok(()) };
        rotor.is_begun = true;
        rotor.period = rotor.period.max(rotor.period(time));
        rotor.bytes = rotor.header.len() as u64;
        let result = match (&mut self.writer, &mut rotor.series) {
            (Some(Writer::Aside(aside)), _) => {
                aside.begin(time, &rotor.header);
                Ok(())
            }
            (Some(Writer::Here(writer)), Some(series)) => series.begin(time).and_then(|file| {
                *writer.get_mut() = Target::File(file);
                writer.write_all(&rotor.header)
            }),
            _ => Ok(()),
        };
        result.map_err(|e| Error::io(self.name.clone(), e))
    }

    /// Finishes the one of several files that is written, if there is one.
    fn end(&mut self) -> Result<(), Error> {
        let Some(rotor) = self.rotor.as_mut().filter(|rotor| rotor.is_begun) else { return Ok(()) };
        rotor.is_begun = false;
        let result = match (&mut self.writer, &mut rotor.series) {
            (Some(Writer::Aside(aside)), _) => {
                aside.end();
                Ok(())
            }
            (Some(Writer::Here(writer)), Some(series)) => {
                writer.flush().and_then(|()| series.end()).map(|()| *writer.get_mut() = Target::None)
            }
            _ => Ok(()),
        };
        result.map_err(|e| Error::io(self.name.clone(), e))
    }

    /// Hands everything so far to the system, or to the thread that writes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with the file's name; of a detached output, only where its reader has gone.
    pub fn flush(&mut self) -> Result<(), Error> {
        let result = match &mut self.writer {
            Some(Writer::Here(writer)) => writer.flush(),
            Some(Writer::Aside(aside)) => aside.hand_over(),
            None => Ok(()),
        };
        result.map_err(|e| Error::io(self.name.clone(), e))
    }

    /// As [`Output::flush`], and waits until a file that is to get its name is where a crash of the machine leaves it.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with the file's name.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.flush()?;
        match (&self.writer, &self.pending) {
            (Some(Writer::Here(writer)), Some(_)) => {
                writer.get_ref().sync().map_err(|e| Error::io(self.name.clone(), e))
            }
            _ => Ok(()),
        }
    }

    /// The name used in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes what is buffered and gives the file its name. Where several outputs belong together, [`Output::flush`] them
    /// all first: what can fail then is behind them. A detached one is [settled](Self::settle).
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the file then does not appear.
    pub fn finish(mut self) -> Result<(), Error> {
        self.end()?;
        self.settle()?;
        // Before it is closed, which unlocks it: nobody takes it for left behind.
        if let Some(pending) = self.pending.take()
            && let Err(e) = fs::rename(&pending.part, &pending.path)
        {
            let _ = fs::remove_file(&pending.part);
            return Err(Error::io(self.name.clone(), e));
        }
        Ok(())
    }
}

/// What stands at a path that cannot be one file after another, if it is such.
pub fn cannot_rotate(path: &Path) -> Option<&'static str> {
    if resolve(path).is_ok_and(|path| is_standard(&path)) {
        return Some("standard output");
    }
    // Nothing can be renamed there, but in the memory that is a file system.
    let is_special = ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder));
    if is_special && !path.starts_with("/dev/shm") {
        return Some("a device");
    }
    if path.file_name().is_some_and(|name| name.len() > series::MAX_NAME) {
        return Some("a name of more than 224 bytes");
    }
    let kind = fs::metadata(path).ok()?.file_type();
    match kind {
        kind if kind.is_file() => None,
        kind if kind.is_dir() => Some("a folder"),
        kind if kind.is_fifo() => Some("a pipe"),
        kind if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

/// What tells files apart whatever they are called: [`Identity::of_input`], [`Identity::of_output`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(Is);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Is {
    /// A regular file, by its device and inode.
    File(u64, u64),
    /// A file that is not there yet, by those of its folder and its name.
    Missing(u64, u64, OsString),
    /// Standard output where that is no regular file.
    StandardOutput,
}

impl Identity {
    /// That of an input, or of standard input where the path is `-`; none unless it is a regular file.
    pub fn of_input(path: &Path) -> Option<Self> {
        let metadata =
            if is_standard(path) { of_descriptor(io::stdin().as_fd()) } else { fs::metadata(path).ok() };
        Self::of_file(&metadata?)
    }

    /// That of an output, whether it is there or not; none where it is a device, a pipe or a folder, which are not replaced, or
    /// cannot be looked up.
    pub fn of_output(path: &Path) -> Option<Self> {
        let path = resolve(path).ok()?;
        if is_standard(&path) {
            let file = of_descriptor(io::stdout().as_fd()).and_then(|metadata| Self::of_file(&metadata));
            return Some(file.unwrap_or(Self(Is::StandardOutput)));
        }
        if let Ok(metadata) = fs::metadata(&path) {
            return Self::of_file(&metadata);
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::metadata(folder).ok()?;
        Some(Self(Is::Missing(folder.dev(), folder.ino(), path.file_name()?.into())))
    }

    fn of_file(metadata: &Metadata) -> Option<Self> {
        metadata.is_file().then(|| Self(Is::File(metadata.dev(), metadata.ino())))
    }
}

/// What is known of an open descriptor.
fn of_descriptor(descriptor: std::os::fd::BorrowedFd<'_>) -> Option<Metadata> {
    File::from(descriptor.try_clone_to_owned().ok()?).metadata().ok()
}

/// The file that an output at `path` would replace: at the end of all links, so that a link itself is not replaced; `-` for
/// standard output under any of its names.
///
/// # Errors
///
/// A folder on the way that cannot be looked into.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    const STANDARD_OUTPUT: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
    if STANDARD_OUTPUT.iter().any(|name| path == Path::new(name)) {
        return Ok(PathBuf::from("-"));
    }
    match fs::canonicalize(path) {
        Ok(real) => Ok(real),
        // What a link in /proc leads to may have no real path, but exists.
        Err(e) if e.kind() == io::ErrorKind::NotFound && path.exists() => Ok(path.to_path_buf()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(link_target(path)),
        Err(e) => Err(e),
    }
}

/// Where a file that does not exist yet is to appear: at the end of the links that lead to it.
fn link_target(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    // As many links as the kernel follows.
    for _ in 0..40 {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

impl AsMut<Self> for Output {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // What a thread has written of a run that failed is not lost.
        if self.is_detached() && self.rotor.as_ref().is_some_and(|rotor| rotor.is_begun) {
            let _ = self.settle();
        }
        if let Some(Writer::Here(writer)) = self.writer.take() {
            // What is still buffered belongs to an output that failed.
            let _ = writer.into_parts();
        }
        if let Some(pending) = self.pending.take() {
            let _ = fs::remove_file(pending.part);
        }
    }
}
