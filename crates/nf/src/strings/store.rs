//! The compiled set in a file: read where it is that of the list, else written.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use packetloom_io::input::is_standard;
use packetloom_io::output::Output;
use packetloom_pattern::{MAGIC, Matcher, Patterns, Unusable};
use packetloom_simd::Isa;

/// A file, and what became of it.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    told: OnceLock<Told>,
}

/// What there is to say once the set is there.
#[derive(Debug)]
struct Told {
    detail: String,
    warning: Option<String>,
}

impl Store {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, told: OnceLock::new() }
    }

    /// Why a path cannot be that of a compiled set: it is something else, which is not replaced.
    pub(super) fn check(path: &Path) -> Option<&'static str> {
        if is_standard(path) {
            return Some("not a file");
        }
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(_) => return Some("cannot be read"),
        };
        if !metadata.is_file() {
            return Some("not a file");
        }
        let mut begin = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut begin));
        match read {
            Ok(_) if MAGIC.starts_with(&begin) => None,
            Ok(_) => Some("not a compiled set"),
            Err(_) => Some("cannot be read"),
        }
    }

    /// The compiled set, out of the file or compiled now.
    pub(super) fn matcher(&self, patterns: &Patterns) -> Matcher {
        let path = self.path.display();
        let why = match self.read(patterns) {
            Ok(matcher) => {
                self.tell(format!("the compiled set is read from {path}"), None);
                return matcher;
            }
            Err(Unusable::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Err(why) => Some(why),
        };
        let matcher = Matcher::new(patterns.clone());
        // What is not a compiled set is somebody's.
        let is_foreign = matches!(why, Some(Unusable::Foreign));
        let written = if is_foreign { Ok(()) } else { self.write(&matcher) };
        let what = if is_foreign || written.is_err() { "not written" } else { "written" };
        let warning = match (written, why) {
            (Err(error), _) => Some(format!("the compiled set is not kept: {error}")),
            (Ok(()), Some(why)) => Some(format!("{path}: {why}; compiled again")),
            (Ok(()), None) => None,
        };
        self.tell(format!("the compiled set is {what} to {path}"), warning);
        matcher
    }

    fn read(&self, patterns: &Patterns) -> Result<Matcher, Unusable> {
        Matcher::read_from(patterns.clone(), Isa::detect(), &mut File::open(&self.path)?)
    }

    fn write(&self, matcher: &Matcher) -> Result<(), packetloom_io::Error> {
        let mut output = ToOutput { output: Output::create(&self.path)?, failed: None };
        let written = matcher.write_to(&mut output);
        match output.failed {
            Some(error) => Err(error),
            None => {
                debug_assert!(written.is_ok(), "a writer fails with what it keeps");
                output.output.finish()
            }
        }
    }

    /// What became of the file, and what should be known of it, once the set is there.
    pub(super) fn detail(&self) -> Option<&str> {
        self.told.get().map(|told| &*told.detail)
    }

    pub(super) fn warning(&self) -> Option<&str> {
        self.told.get().and_then(|told| told.warning.as_deref())
    }

    fn tell(&self, detail: String, warning: Option<String>) {
        self.told.get_or_init(|| Told { detail, warning });
    }
}

/// An output as a writer, and why it failed.
struct ToOutput {
    output: Output,
    failed: Option<packetloom_io::Error>,
}

impl Write for ToOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes).map_err(|error| {
            self.failed = Some(error);
            io::Error::other("see failed")
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
