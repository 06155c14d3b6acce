//! Records that become Parquet files, in a thread of their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use packetloom_io::output::Output;
use packetloom_packet::Timestamp;

use super::{AFTER, Counts, Format, HOLD, Shared, wall_clock};
use crate::Error;
use crate::parquet::Options;
use crate::parquet::files::{Files, Written};

/// What the thread has.
pub(super) struct Folder {
    shared: Arc<Shared>,
    options: Options,
    files: Files,
    /// Whether a file that cannot be written ends the run, and whether one could not be.
    fails: bool,
    has_failed: bool,
    /// Records that came after the end.
    not_written: u64,
}

impl Folder {
    /// Makes the folder if it is not there.
    pub(super) fn open(
        shared: Arc<Shared>,
        path: PathBuf,
        options: Options,
        fails: bool,
    ) -> Result<Self, Error> {
        let files = Files::new(path, options.clone()).map_err(Error::File)?;
        Ok(Self { shared, options, files, fails, has_failed: false, not_written: 0 })
    }

    /// Writes until nothing more comes; the last files, which have no names yet.
    pub(super) fn run(mut self) -> Vec<Output> {
        loop {
            let (records, is_over) = self.shared.take(HOLD);
            let is_idle = records.is_none();
            if let Some(records) = records {
                match self.fails && self.has_failed {
                    true => self.not_written += records.len() as u64,
                    false => self.files.write(&records),
                }
                self.shared.give_back(records);
            }
            // While packets come from interfaces, files end with their intervals.
            if !self.fails {
                let now = wall_clock().as_nanos().saturating_sub(AFTER);
                self.files.pass_time(Timestamp::from_nanos(now));
            }
            self.report();
            if is_idle && is_over {
                break;
            }
        }
        let shared = Arc::clone(&self.shared);
        let outputs = self.files.complete_all(|| shared.queue().moved = Instant::now());
        self.report();
        shared.end(self.counts(), &Format::Parquet(self.options));
        outputs
    }

    fn counts(&self) -> Counts {
        let Written { files, records, bytes, lost } = self.files.written();
        Counts { files, records, bytes, not_sent: lost + self.not_written, ..Counts::default() }
    }

    /// Tells what became of records, and the first time that a file cannot be written.
    fn report(&mut self) {
        let first = self.files.failure().filter(|_| !self.has_failed);
        self.has_failed |= first.is_some();
        if self.fails && self.has_failed {
            self.files.abandon();
        }
        let counts = self.counts();
        let mut queue = self.shared.queue();
        queue.counts = counts;
        if let Some(error) = first {
            match self.fails {
                true => queue.failed = Some(error),
                false => queue.notices.push_back(format!("{error}; records are left out, and counted")),
            }
        }
    }
}
