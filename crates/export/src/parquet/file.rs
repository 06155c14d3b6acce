//! One Parquet file.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::ColumnPath;
use packetloom_packet::FlowRecord;

use super::SCHEMA;
use super::columns::Buffer;
use crate::fields::Fields;
use crate::messages::Sampling;

/// Rows of a row group at most.
const GROUP_ROWS: usize = 1 << 17;

/// Bytes of values of a row group, about.
const GROUP_BYTES: usize = 64 << 20;

/// Records of which columns are filled together: they stay in a processor's cache.
const TOGETHER: usize = 1 << 8;

/// Writes flow records to one Parquet file.
///
/// Values wait until there are enough for a row group: [`FileWriter::buffered`] bytes of them, 64 MiB and a little at most.
pub struct FileWriter<W: Write + Send> {
    writer: SerializedFileWriter<Watched<W>>,
    failed: Failure,
    columns: Vec<Buffer>,
    group_bytes: usize,
    buffered: usize,
    buffered_rows: usize,
    rows: u64,
}

/// What the system said, which the `parquet` crate keeps as a text at best.
type Failure = Arc<Mutex<Option<io::Error>>>;

/// Keeps the first error.
struct Watched<W> {
    to: W,
    failed: Failure,
}

impl<W> Watched<W> {
    fn watch<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            kind.into()
        })
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.to.write(bytes);
        self.watch(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.to.flush();
        self.watch(result)
    }
}

impl<W: Write + Send> fmt::Debug for FileWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileWriter").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl<W: Write + Send> FileWriter<W> {
    /// Begins a file with these fields, of packets that were sampled or not.
    ///
    /// # Errors
    ///
    /// Those of `to`.
    pub fn new(to: W, fields: Fields, sampling: Option<Sampling>) -> io::Result<Self> {
        let columns = Buffer::all(fields, sampling);
        let key = |key: &str, value: &str| KeyValue::new(key.into(), Some(value.into()));
        let version = env!("CARGO_PKG_VERSION");
        let mut properties = WriterProperties::builder()
            .set_created_by(format!("packetloom version {version}"))
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .set_key_value_metadata(Some(vec![
                key("packetloom.schema", SCHEMA),
                key("packetloom.version", version),
            ]));
        for column in &columns {
            if let Some(encoding) = column.encoding() {
                let path = ColumnPath::from(column.name());
                properties = properties
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path, encoding);
            }
        }
        let failed = Failure::default();
        let to = Watched { to, failed: Arc::clone(&failed) };
        let writer = Buffer::schema(&columns)
            .and_then(|schema| SerializedFileWriter::new(to, schema, Arc::new(properties.build())))
            .map_err(|error| plain(error, &failed))?;
        Ok(Self { writer, failed, columns, group_bytes: GROUP_BYTES, buffered: 0, buffered_rows: 0, rows: 0 })
    }

    /// Ends row groups after so many bytes of values, if that is less than usual.
    pub(super) fn limit_groups(&mut self, bytes: u64) {
        self.group_bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(GROUP_BYTES);
    }

    /// Writes records, in order.
    ///
    /// # Errors
    ///
    /// Those of what it writes to; the file is of no use then.
    pub fn write(&mut self, records: &[FlowRecord]) -> io::Result<()> {
        let mut rest = records;
        while !rest.is_empty() {
            let (some, others) = rest.split_at(rest.len().min(TOGETHER).min(GROUP_ROWS - self.buffered_rows));
            rest = others;
            self.columns.iter_mut().for_each(|column| column.extend(some));
            self.rows += some.len() as u64;
            self.buffered_rows += some.len();
            self.buffered = self.columns.iter().map(Buffer::len).sum();
            if self.buffered_rows == GROUP_ROWS || self.buffered >= self.group_bytes {
                self.write_group()?;
            }
        }
        Ok(())
    }

    /// Ends a row group: writes what waits.
    ///
    /// # Errors
    ///
    /// As [`FileWriter::write`].
    pub fn write_group(&mut self) -> io::Result<()> {
        if self.buffered_rows == 0 {
            return Ok(());
        }
        (self.buffered, self.buffered_rows) = (0, 0);
        let columns = &mut self.columns;
        let write = || {
            let mut group = self.writer.next_row_group()?;
            for buffer in columns {
                if let Some(mut column) = group.next_column()? {
                    buffer.write(&mut column)?;
                    column.close()?;
                }
            }
            group.close().map(|_| ())
        };
        write().map_err(|error| plain(error, &self.failed))
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes so far, without those that wait.
    pub fn written(&self) -> u64 {
        self.writer.bytes_written() as u64
    }

    /// Bytes of values that wait for the rest of their row group.
    pub fn buffered(&self) -> usize {
        self.buffered
    }

    /// Ends the file.
    ///
    /// # Errors
    ///
    /// As [`FileWriter::write`].
    pub fn finish(mut self) -> io::Result<W> {
        self.write_group()?;
        let watched = self.writer.into_inner().map_err(|error| plain(error, &self.failed))?;
        Ok(watched.to)
    }
}

/// What the system said, if it was that.
fn plain(error: ParquetError, failed: &Failure) -> io::Error {
    let failed = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
    failed.unwrap_or_else(|| io::Error::other(error))
}
