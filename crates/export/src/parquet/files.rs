//! The Parquet files of a folder: which one a record goes to, and when one ends.
//!
//! A file is a part file until it is complete, and then is named by the time of its first record: `flows-20261127T130501Z-000001.parquet`.
//! None is replaced. As many as [`OPEN`] are written at a time, one for each partition; where another one begins, the one that was not used
//! for longest ends.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use packetloom_io::output::{Output, Rotation, stamp};
use packetloom_packet::{FlowRecord, Timestamp};

use super::{FileWriter, Options, Partition};

/// Files that are written at a time.
const OPEN: usize = 8;

/// Bytes of values that wait in all of them, about.
const BUFFERED: usize = 256 << 20;

/// How long nothing is written after a file that could not be.
const PAUSE: Duration = Duration::from_secs(1);

/// What became of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Files that are complete.
    pub(crate) files: u64,
    /// Records and bytes in them.
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Records that were lost with files that could not be written.
    pub(crate) lost: u64,
}

/// See above.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    options: Options,
    open: Vec<Open>,
    /// Bytes of values that may wait in all of them.
    room: usize,
    /// How often a file was looked for.
    looks: u64,
    /// The number of the interval that files are of, from 1970 on.
    period: u64,
    written: Written,
    failed: Option<packetloom_io::Error>,
    /// When a file could not be written for the last time.
    pause: Option<Instant>,
}

/// A file that is written.
#[derive(Debug)]
struct Open {
    /// The number of its day or hour.
    partition: u64,
    /// When it was last looked for.
    used: u64,
    name: String,
    writer: FileWriter<Sink>,
}

/// Has a writer write to an output.
#[derive(Debug)]
struct Sink {
    output: Output,
    /// The time that names the file.
    time: u64,
    bytes: u64,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write_record(self.time, bytes).map_err(source)?;
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush().map_err(source)
    }
}

/// What the system said.
fn source(error: packetloom_io::Error) -> io::Error {
    match error {
        packetloom_io::Error::Io { source, .. } | packetloom_io::Error::Open { source, .. } => source,
        other => io::Error::other(other),
    }
}

impl Partition {
    /// The number of a time's partition.
    fn number(self, time: Timestamp) -> u64 {
        let seconds = time.as_nanos() / 1_000_000_000;
        match self {
            Self::None => 0,
            Self::Day => seconds / 86_400,
            Self::Hour => seconds / 3_600,
        }
    }

    /// The name of its folder in that of all.
    fn folder(self, number: u64) -> String {
        let date = |seconds| {
            let text = stamp(seconds);
            format!("date={}-{}-{}", &text[..4], &text[4..6], &text[6..8])
        };
        match self {
            Self::None => String::new(),
            Self::Day => date(number * 86_400),
            Self::Hour => format!("{}/hour={:02}", date(number * 3_600), number % 24),
        }
    }
}

impl Files {
    /// Makes the folder, and sees whether there can be files in it.
    pub(crate) fn new(folder: PathBuf, options: Options) -> Result<Self, packetloom_io::Error> {
        let files = Self {
            folder,
            options,
            open: Vec::new(),
            room: BUFFERED,
            looks: 0,
            period: 0,
            written: Written::default(),
            failed: None,
            pause: None,
        };
        files.create(PathBuf::new())?;
        Ok(files)
    }

    fn create(&self, partition: PathBuf) -> Result<Output, packetloom_io::Error> {
        let folder = self.folder.join(partition);
        fs::create_dir_all(&folder).map_err(|source| packetloom_io::Error::Open {
            path: folder.display().to_string(),
            expected: "a folder that can be made, or is there",
            source,
        })?;
        Output::rotating(&folder.join("flows.parquet"), Rotation::default())
    }

    /// What became of records so far.
    pub(crate) fn written(&self) -> Written {
        self.written
    }

    /// Why a file could not be written, if one could not since it was asked for the last time.
    pub(crate) fn failure(&mut self) -> Option<packetloom_io::Error> {
        self.failed.take()
    }

    /// Writes records, in order. Those that cannot be written are counted.
    pub(crate) fn write(&mut self, records: &[FlowRecord]) {
        let mut rest = records;
        while let Some(first) = rest.first() {
            let period = self.period_of(first.end());
            if period > self.period {
                self.end_all();
                self.period = period;
            }
            let partition = self.options.partition.number(first.start());
            let goes_with = |record: &&FlowRecord| {
                self.options.partition.number(record.start()) == partition
                    && self.period_of(record.end()) <= self.period
            };
            let count = rest.iter().take_while(goes_with).count();
            let (some, others) = rest.split_at(count.max(1));
            rest = others;
            self.write_to(partition, some);
        }
    }

    /// Writes records of one partition.
    fn write_to(&mut self, partition: u64, records: &[FlowRecord]) {
        let mut rest = records;
        while let Some(first) = rest.first() {
            if self.pause.is_some_and(|since| since.elapsed() < PAUSE) {
                self.written.lost += rest.len() as u64;
                return;
            }
            self.looks += 1;
            let at = match self.open.iter().position(|open| open.partition == partition) {
                Some(at) => at,
                None => match self.begin(partition, first.start()) {
                    Ok(open) => {
                        self.open.push(open);
                        self.open.len() - 1
                    }
                    Err(error) => {
                        self.fail(error, 0);
                        continue;
                    }
                },
            };
            let open = &mut self.open[at];
            open.used = self.looks;
            let room = self.options.rows.get() - open.writer.rows();
            let (some, others) = rest.split_at(rest.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            rest = others;
            let rows = open.writer.rows() + some.len() as u64;
            if let Err(error) = open.writer.write(some) {
                self.lose(at, error, rows);
                continue;
            }
            if open.writer.rows() >= self.options.rows.get() || open.writer.written() >= self.options.bytes {
                self.end(at);
            }
            self.relieve();
        }
    }

    /// Has the file with the most values that wait write them, if there are too many in all.
    fn relieve(&mut self) {
        let buffered = |open: &Open| open.writer.buffered();
        if self.open.iter().map(buffered).sum::<usize>() > self.room
            && let Some((at, open)) = self.open.iter_mut().enumerate().max_by_key(|(_, open)| buffered(open))
            && let Err(error) = open.writer.write_group()
        {
            let rows = open.writer.rows();
            self.lose(at, error, rows);
        }
    }

    /// Begins a file whose first record has this time.
    fn begin(&mut self, partition: u64, time: Timestamp) -> Result<Open, packetloom_io::Error> {
        if self.open.len() >= OPEN
            && let Some((at, _)) = self.open.iter().enumerate().min_by_key(|(_, open)| open.used)
        {
            self.end(at);
        }
        let output = self.create(self.options.partition.folder(partition).into())?;
        let name = output.name().to_owned();
        let sink = Sink { output, time: time.as_nanos(), bytes: 0 };
        let mut writer = FileWriter::new(sink, self.options.fields, self.options.sampling)
            .map_err(|source| packetloom_io::Error::Io { path: name.clone(), source })?;
        writer.limit_groups(self.options.bytes);
        Ok(Open { partition, used: self.looks, name, writer })
    }

    /// Finishes a file.
    fn end(&mut self, at: usize) {
        let rows = self.open[at].writer.rows();
        match self.complete(at) {
            Ok((output, bytes)) => match output.finish() {
                Ok(()) => self.count(rows, bytes),
                Err(error) => self.fail(error, rows),
            },
            Err(error) => self.fail(error, rows),
        }
    }

    fn end_all(&mut self) {
        while !self.open.is_empty() {
            self.end(0);
        }
    }

    fn count(&mut self, rows: u64, bytes: u64) {
        self.written.files += 1;
        self.written.records += rows;
        self.written.bytes += bytes;
    }

    /// Takes a file away that is complete, but for its name; and its bytes.
    fn complete(&mut self, at: usize) -> Result<(Output, u64), packetloom_io::Error> {
        let Open { name, writer, .. } = self.open.remove(at);
        let fail = |source| packetloom_io::Error::Io { path: name.clone(), source };
        let mut sink = writer.finish().map_err(fail)?;
        sink.flush().map_err(fail)?;
        Ok((sink.output, sink.bytes))
    }

    /// Takes a file away that cannot be written, and so many rows with it.
    fn lose(&mut self, at: usize, source: io::Error, rows: u64) {
        let Open { name, .. } = self.open.remove(at);
        self.fail(packetloom_io::Error::Io { path: name, source }, rows);
    }

    fn fail(&mut self, error: packetloom_io::Error, lost: u64) {
        self.written.lost += lost;
        self.pause = Some(Instant::now());
        self.failed.get_or_insert(error);
    }

    /// The number of the interval that a time is in.
    fn period_of(&self, time: Timestamp) -> u64 {
        let every = self.options.every.map(|every| u64::try_from(every.as_nanos()).unwrap_or(u64::MAX));
        every.map_or(0, |every| time.as_nanos() / every)
    }

    /// Finishes files whose interval is over at this time of a clock.
    pub(crate) fn pass_time(&mut self, time: Timestamp) {
        let (period, before) = (self.period_of(time), self.period);
        // What comes late goes to the file that is written then. A clock that was far ahead begins anew.
        self.period = if period + 1 < before { period } else { period.max(before) };
        if self.period != before {
            self.end_all();
        }
    }

    /// Completes all files, which have no names yet; `each` is told of every one.
    pub(crate) fn complete_all(&mut self, mut each: impl FnMut()) -> Vec<Output> {
        let mut outputs = Vec::new();
        while let Some(open) = self.open.first() {
            let rows = open.writer.rows();
            match self.complete(0) {
                Ok((output, bytes)) => {
                    self.count(rows, bytes);
                    outputs.push(output);
                }
                Err(error) => self.fail(error, rows),
            }
            each();
        }
        outputs
    }

    /// Removes all files that are not complete, and counts what was in them.
    pub(crate) fn abandon(&mut self) {
        self.written.lost += self.open.drain(..).map(|open| open.writer.rows()).sum::<u64>();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use packetloom_packet::{EndReason, HalfFlow};

    use super::*;
    use crate::fields::Fields;

    const HOUR: u64 = 3_600_000_000_000;

    fn record(nanos: u64) -> FlowRecord {
        let time = Timestamp::from_nanos(nanos);
        let half = HalfFlow { first: time, last: time, packets: 1, bytes: nanos, tcp_flags: 0 };
        FlowRecord {
            source: [192, 0, 2, 1].into(),
            destination: std::net::Ipv4Addr::from_bits((nanos as u32).wrapping_mul(0x9e37_79b9)).into(),
            source_port: nanos as u16,
            destination_port: 53,
            protocol: 17,
            forward: half,
            reverse: HalfFlow::default(),
            end_reason: EndReason::IdleTimeout,
            more: None,
        }
    }

    fn files(folder: &Path, partition: Partition) -> Files {
        Files::new(folder.into(), Options { partition, ..Options::new(Fields::BASIC) }).expect("a folder")
    }

    #[test]
    fn few_values_wait() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut files = files(folder.path(), Partition::Hour);
        files.room = 50_000;
        let records: Vec<_> = (0..8_000).map(|number| record(number % 5 * HOUR + number)).collect();
        for records in records.chunks(100) {
            files.write(records);
            // One file has written what waited in it before the next records came.
            let waiting: usize = files.open.iter().map(|open| open.writer.buffered()).sum();
            assert!(waiting < 50_000, "{waiting}");
        }
        assert!(files.open.iter().all(|open| open.writer.written() > 4));
        files.end_all();
        let written = files.written();
        assert_eq!((written.files, written.records, written.lost), (5, 8_000, 0));
        assert!(files.failure().is_none());
    }

    /// Has the file of a partition be a device that is full.
    fn fill(files: &mut Files, partition: u64) {
        let output = Output::create(Path::new("/dev/full")).expect("a device");
        let sink = Sink { output, time: 0, bytes: 0 };
        let writer = FileWriter::new(sink, Fields::BASIC, None).expect("nothing is written yet");
        files.open.push(Open { partition, used: 0, name: "/dev/full".into(), writer });
    }

    fn assert_full(files: &mut Files) {
        let error = files.failure().expect("it is full").to_string();
        assert_eq!(error, "/dev/full: No space left on device");
        assert!(files.failure().is_none());
    }

    #[test]
    fn records_on_a_full_disk_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut files = files(folder.path(), Partition::Hour);
        // At its end.
        fill(&mut files, 0);
        files.write(&[record(0), record(1), record(HOUR)]);
        assert_eq!(files.open.len(), 2);
        files.end_all();
        assert_full(&mut files);
        let written = files.written();
        assert_eq!((written.files, written.records, written.lost), (1, 1, 2));
        // Before its end: a row group is more than what is buffered.
        fill(&mut files, 0);
        files.pause = None;
        let records: Vec<_> = (0..200_000).map(record).collect();
        files.write(&records);
        assert_full(&mut files);
        let written = files.written();
        assert_eq!((written.files, written.records, written.lost), (1, 1, 200_002));
        // Then there is a pause, and then it is tried again.
        files.write(&[record(0)]);
        files.pause = Instant::now().checked_sub(PAUSE);
        files.write(&[record(1)]);
        assert_eq!(files.complete_all(|| {}).len(), 1);
        let written = files.written();
        assert_eq!((written.files, written.records, written.lost), (2, 2, 200_003));
        assert!(files.failure().is_none());
    }
}
