//! Captures that are read one after the other, as one.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use packetloom_packet::{Batch, Timestamp};

use super::{CaptureReader, Findings, Resolution, Section, Sections, Truncation};
use crate::Error;
use crate::input::{Stop, display_name, is_standard};
use crate::source::{Paging, Polled, Source};

/// What is to be said of one of several captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// Its name.
    pub name: String,
    /// Where and why reading it ended before its end, if it did.
    pub truncation: Option<Truncation>,
    /// What was odd about its frames.
    pub findings: Findings,
}

/// Captures in the order of the times of their first packets, each of which is opened when the one before it ends. One capture alone may be
/// anything that a [`CaptureReader`] reads; several are regular files.
pub struct CaptureSeries {
    name: String,
    current: CaptureReader,
    /// Those that come after it.
    next: VecDeque<PathBuf>,
    /// How many there are.
    count: usize,
    /// What is to be said of those before it.
    reports: Vec<FileReport>,
    /// Bytes of those before it.
    before: u64,
    total: Option<u64>,
    resolution: Resolution,
    stop: Stop,
}

/// What is known of one of several captures before it is its turn.
struct Sighted {
    path: PathBuf,
    first: Option<Timestamp>,
    total: Option<u64>,
    resolution: Resolution,
}

impl Sighted {
    fn of(path: PathBuf, stop: &Stop) -> Result<Self, Error> {
        let is_regular = || fs::metadata(&path).map(|metadata| metadata.is_file());
        let fail = |error| Error::io(display_name(&path), error);
        if is_standard(&path) || !is_regular().map_err(fail)? {
            return Err(Error::OneOfSeveral { path: display_name(&path) });
        }
        let mut reader = CaptureReader::open(&path, stop)?;
        let (total, resolution) = (reader.total(), reader.resolution());
        let mut batch = Batch::new(1);
        let first = match reader.fill(&mut batch)? {
            true => batch.frames().first().map(|frame| frame.time),
            false => None,
        };
        Ok(Self { path, first, total, resolution })
    }
}

impl CaptureSeries {
    /// Opens captures, and finds out which of them begins first; where several begin at the same time, in the order in which they are given.
    /// Those without packets come last.
    ///
    /// # Errors
    ///
    /// As [`CaptureReader::open`], for each of them; one of several is no regular file; there is none.
    pub fn open(captures: &[PathBuf], stop: &Stop) -> Result<Self, Error> {
        if let [capture] = captures {
            return Ok(Self::of_one(CaptureReader::open(capture, stop)?, stop));
        }
        let mut sighted =
            captures.iter().map(|path| Sighted::of(path.clone(), stop)).collect::<Result<Vec<_>, _>>()?;
        sighted.sort_by_key(|capture| (capture.first.is_none(), capture.first));
        let total = sighted.iter().map(|capture| capture.total).sum();
        let is_fine = sighted.iter().any(|capture| capture.resolution == Resolution::Nanos);
        let mut next: VecDeque<_> = sighted.into_iter().map(|capture| capture.path).collect();
        let Some(first) = next.pop_front() else {
            return Err(Error::io("captures", std::io::ErrorKind::NotFound.into()));
        };
        Ok(Self {
            name: format!("{} captures", captures.len()),
            next,
            count: captures.len(),
            total,
            resolution: if is_fine { Resolution::Nanos } else { Resolution::Micros },
            ..Self::of_one(CaptureReader::open(&first, stop)?, stop)
        })
    }

    fn of_one(current: CaptureReader, stop: &Stop) -> Self {
        Self {
            name: current.name().to_owned(),
            next: VecDeque::new(),
            count: 1,
            reports: Vec::new(),
            before: 0,
            total: current.total(),
            resolution: current.resolution(),
            stop: stop.clone(),
            current,
        }
    }

    /// The name used in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes there are in all, where that is known beforehand.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// The finest of how timestamps are divided.
    pub fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// What is to be said of the capture that is being read, if anything.
    fn report(&self) -> Option<FileReport> {
        let (truncation, findings) = (self.current.truncation().cloned(), self.current.findings());
        let name = self.current.name().to_owned();
        (truncation.is_some() || findings != Findings::default()).then_some(FileReport {
            name,
            truncation,
            findings,
        })
    }
}

impl Source for CaptureSeries {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        loop {
            let polled = self.current.poll(batch)?;
            if polled != Polled::End || self.stop.load(Ordering::Relaxed) {
                return Ok(polled);
            }
            let Some(path) = self.next.pop_front() else { return Ok(polled) };
            let next = CaptureReader::open(&path, &self.stop)?;
            self.reports.extend(self.report());
            self.before += self.current.total().unwrap_or_else(|| self.current.position());
            self.current = next;
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        self.current.wait(timeout)
    }

    fn is_live(&self) -> bool {
        self.current.is_live()
    }

    fn paging(&mut self) -> Option<Paging> {
        self.current.paging()
    }

    fn sections(&self, bytes: usize) -> Option<Sections> {
        self.current.sections(bytes)
    }

    fn accept(&mut self, section: Section) -> bool {
        self.current.accept(section)
    }

    fn position(&self) -> u64 {
        self.before + self.current.position()
    }

    fn truncation(&self) -> Option<&Truncation> {
        self.reports.iter().find_map(|report| report.truncation.as_ref()).or(self.current.truncation())
    }

    fn findings(&self) -> Findings {
        if self.count == 1 { self.current.findings() } else { Findings::default() }
    }

    fn files(&self) -> Vec<FileReport> {
        if self.count == 1 {
            return Vec::new();
        }
        self.reports.iter().cloned().chain(self.report()).collect()
    }
}

impl std::fmt::Debug for CaptureSeries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureSeries")
            .field("current", &self.current)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}
