//! What names captures: files, folders of them, and patterns.

use std::fs;
use std::path::{Component, Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::CaptureReader;
use crate::Error;
use crate::input::{Stop, is_standard};
use crate::output::Identity;

/// The captures that paths name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The files, in the order in which they are named; those of a folder or a pattern in the order of their names.
    pub captures: Vec<PathBuf>,
    /// What is in the folders beside captures.
    pub left_out: Vec<PathBuf>,
}

impl Selection {
    /// Finds the captures that paths name. A path is that of a file, `-` for standard input; or of a folder, for the files in it that begin like
    /// captures, but for hidden ones and those in folders below; or, where nothing has such a name, a pattern with `*`, `?` and `[...]`, for
    /// files and folders.
    ///
    /// # Errors
    ///
    /// A folder cannot be read or has no captures, nothing matches a pattern, or a file is named twice.
    pub fn of(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut selection = Self::default();
        for path in paths {
            if is_standard(path) || fs::symlink_metadata(path).is_ok() {
                selection.add(path)?;
            } else if let Some(pattern) = pattern(path) {
                for found in matches(path, &pattern)? {
                    selection.add(&found)?;
                }
            } else {
                // Who opens it says what is wrong.
                selection.captures.push(path.clone());
            }
        }
        selection.check()?;
        Ok(selection)
    }

    /// Adds a file, or the captures of a folder.
    fn add(&mut self, path: &Path) -> Result<(), Error> {
        if is_standard(path) || !path.is_dir() {
            self.captures.push(path.into());
            return Ok(());
        }
        let fail = |error| Error::io(path.display().to_string(), error);
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") && !entry.path().is_dir() {
                files.push(entry.path());
            }
        }
        files.sort();
        let (captures, others): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| is_capture(file));
        if captures.is_empty() {
            return Err(Error::NoCaptures { path: path.display().to_string() });
        }
        self.captures.extend(captures);
        self.left_out.extend(others);
        Ok(())
    }

    /// Refuses a file that is named twice.
    fn check(&self) -> Result<(), Error> {
        if self.captures.len() < 2 {
            return Ok(());
        }
        let mut seen: Vec<(Identity, &PathBuf)> = self
            .captures
            .iter()
            .filter_map(|path| Identity::of_input(path).map(|identity| (identity, path)))
            .collect();
        seen.sort_by(|(a, _), (b, _)| a.cmp(b));
        match seen.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(Error::CaptureTwice {
                first: pair[0].1.display().to_string(),
                second: pair[1].1.display().to_string(),
            }),
            None => Ok(()),
        }
    }
}

/// Whether a file of a folder is read as a capture: what begins like something else is none, what cannot be read is not known to be none.
fn is_capture(path: &Path) -> bool {
    let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    is_file
        && !matches!(
            CaptureReader::open(path, &Stop::default()),
            Err(Error::NotACapture { .. } | Error::Empty { .. })
        )
}

/// A path as a pattern, if it has something that is none in a name. What there is by its name is no pattern, such as the folder of a chain file.
fn pattern(path: &Path) -> Option<String> {
    let mut literal = PathBuf::new();
    let mut pattern = String::new();
    let mut is_pattern = false;
    for component in path.components() {
        let name = component.as_os_str().to_str()?;
        literal.push(component);
        if !pattern.is_empty() && !pattern.ends_with('/') {
            pattern.push('/');
        }
        if matches!(component, Component::Normal(_))
            && name.contains(['*', '?', '['])
            && fs::symlink_metadata(&literal).is_err()
        {
            is_pattern = true;
            pattern.push_str(name);
        } else {
            pattern.push_str(&Pattern::escape(name));
        }
    }
    is_pattern.then_some(pattern)
}

/// What matches a pattern, in the order of the names.
fn matches(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let shown = || path.display().to_string();
    let found = glob::glob_with(pattern, options)
        .map_err(|error| Error::BadPattern { pattern: shown(), reason: error.msg.into() })?;
    let mut paths = Vec::new();
    for path in found {
        paths.push(path.map_err(|error| {
            let path = error.path().display().to_string();
            Error::io(path, error.into())
        })?);
    }
    if paths.is_empty() { Err(Error::NoMatch { pattern: shown() }) } else { Ok(paths) }
}
