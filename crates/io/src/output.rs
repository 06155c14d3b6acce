//! Outputs: a file that appears under its name only when it is whole, or standard output.
//!
//! A symbolic link as an output's name stays: the file that it leads to is replaced. Another hard link to that file keeps
//! what it had.

mod aside;
mod part;

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use self::aside::Aside;
pub use self::part::removed as removed_parts;
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
}

impl Target {
    fn sync(&self) -> io::Result<()> {
        match self {
            Self::Standard(_) => Ok(()),
            Self::File(file) => file.sync_all(),
        }
    }
}

impl Write for Target {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(stdout) => stdout.write(buffer),
            Self::File(file) => file.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(stdout) => stdout.flush(),
            Self::File(file) => file.flush(),
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

    fn new(name: String, target: Target, pending: Option<Pending>) -> Self {
        Self { name, writer: Some(Writer::Here(BufWriter::with_capacity(1 << 18, target))), pending }
    }

    /// Has a thread of its own write it from now on, for a run that does not wait for its outputs. Up to 64 MiB wait for the thread.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where there can be no thread, or what was written before cannot be.
    pub fn detach(&mut self) -> Result<(), Error> {
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
                (File::from(stdout.as_fd().try_clone_to_owned().map_err(fail)?), false)
            }
            Target::File(file) => {
                let is_own = file.metadata().map_err(fail)?.is_file();
                (file, is_own)
            }
        };
        self.writer = Some(Writer::Aside(Aside::new(self.name.clone(), file, is_own).map_err(fail)?));
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
        if let Some(Writer::Here(writer)) = self.writer.take() {
            // What is still buffered belongs to an output that failed.
            let _ = writer.into_parts();
        }
        if let Some(pending) = self.pending.take() {
            let _ = fs::remove_file(pending.part);
        }
    }
}
