//! The files of an output that is rotated: each is a part file until it is finished, and is named then by its time and its number.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::part;

/// When an output begins another file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Nanoseconds: files begin at multiples of this since 1970.
    pub every: Option<u64>,
    /// Bytes of a file at most, unless it has one record that is longer.
    pub size: Option<u64>,
    /// Files of a run that stay, the last ones; all of them unless given.
    pub keep: Option<NonZeroUsize>,
}

/// Bytes of an output's name at most, so that there is room for a time and a number.
pub(super) const MAX_NAME: usize = 224;

/// See above.
#[derive(Debug)]
pub(super) struct Series {
    /// The name without numbers, and what stands before and behind these.
    path: PathBuf,
    stem: OsString,
    extension: OsString,
    /// Of the last file that was named.
    number: u64,
    seconds: u64,
    keep: Option<NonZeroUsize>,
    /// Those that are there, where not all of them stay.
    finished: VecDeque<PathBuf>,
    /// The file that is being written, and its time in nanoseconds.
    part: Option<(PathBuf, u64)>,
    /// One that was made before there was anything for it.
    spare: Option<(PathBuf, File)>,
}

impl Series {
    /// Makes the part file of the first one.
    pub(super) fn new(path: &Path, keep: Option<NonZeroUsize>) -> io::Result<Self> {
        let name = |part: Option<&std::ffi::OsStr>| part.map(OsString::from);
        let stem = name(path.file_stem()).ok_or(io::ErrorKind::InvalidInput)?;
        let extension = name(path.extension()).unwrap_or_default();
        let spare = Some(part::create(path)?);
        let finished = VecDeque::new();
        let path = path.to_owned();
        Ok(Self { path, stem, extension, number: 0, seconds: 0, keep, finished, part: None, spare })
    }

    /// Makes a file whose first record has this time; the one before has ended.
    pub(super) fn begin(&mut self, time: u64) -> io::Result<File> {
        let (part, file) = self.spare.take().map_or_else(|| part::create(&self.path), Ok)?;
        self.part = Some((part, time));
        Ok(file)
    }

    /// Gives the file that is being written its name, if there is one; it must be open still. No file that is there is replaced. One that cannot be
    /// named stays as a part file, which a later run removes.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let Some((part, time)) = &self.part else { return Ok(()) };
        // So that names are in order, whatever times are.
        self.seconds = self.seconds.max(time / 1_000_000_000);
        let path = loop {
            self.number += 1;
            let path = self.path.with_file_name(self.name());
            match rename_new(part, &path) {
                Ok(()) => break path,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    // It stays under the name that it has.
                    let text = format!("{} cannot be named: {error}", part.display());
                    self.part = None;
                    return Err(io::Error::new(error.kind(), text));
                }
            }
        };
        self.part = None;
        if let Some(keep) = self.keep {
            self.finished.push_back(path);
            while self.finished.len() > keep.get() {
                // Somebody else may have removed it.
                let _ = self.finished.pop_front().map(fs::remove_file);
            }
        }
        Ok(())
    }

    /// Removes the file that is being written.
    pub(super) fn discard(&mut self) {
        let parts = [self.part.take().map(|(part, _)| part), self.spare.take().map(|(part, _)| part)];
        for part in parts.into_iter().flatten() {
            let _ = fs::remove_file(part);
        }
    }

    fn name(&self) -> OsString {
        let mut name = self.stem.clone();
        name.push(format!("-{}-{:06}", stamp(self.seconds), self.number));
        if !self.extension.is_empty() {
            name.push(".");
            name.push(&self.extension);
        }
        name
    }
}

impl Drop for Series {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Renames a file unless there is one of the new name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // File systems that cannot do both at once.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        result => Ok(result?),
    }
}

/// Seconds since 1970 as a date and a time of day, in UTC, as file names have them: `20261127T150000Z`.
pub fn stamp(seconds: u64) -> String {
    // A year beyond 9999 would not sort.
    let seconds = seconds.min(253_402_300_799);
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    loop {
        let length = 365 + u64::from(is_leap(year));
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}{month:02}{:02}T{hour:02}{minute:02}{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_709_164_800, "20240229T000000Z"),
            (1_795_791_600, "20261127T150000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
            (u64::MAX, "99991231T235959Z"),
        ] {
            assert_eq!(stamp(seconds), expected);
        }
    }

    #[test]
    fn files_are_named_in_order_and_replace_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = || {
            let entries = fs::read_dir(folder.path()).expect("a folder");
            let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            names
        };
        let other = folder.path().join("x.y-19700101T000005Z-000002.z");
        fs::write(&other, "kept").expect("written");
        let mut series = Series::new(&folder.path().join("x.y.z"), NonZeroUsize::new(2)).expect("made");
        for time in [5, 5, 3, 9] {
            let file = series.begin(time * 1_000_000_000).expect("made");
            series.end().expect("named");
            drop(file);
        }
        drop(series);
        let expected = [
            "x.y-19700101T000005Z-000002.z",
            "x.y-19700101T000005Z-000004.z",
            "x.y-19700101T000009Z-000005.z",
        ];
        assert_eq!(names(), expected);
        assert_eq!(fs::read(other).expect("there"), b"kept");
    }
}
