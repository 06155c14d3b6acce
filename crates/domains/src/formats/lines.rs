//! Lines of any bytes and any length.

use std::io::{self, Read};

use super::MAX_LINE;

/// Bytes that are read at once, and that a file is recognised by.
const BUFFER: usize = 64 * 1024;

/// A line, without its end.
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    /// The beginning of one that is too long.
    TooLong(&'a [u8]),
}

pub(super) struct Lines<R> {
    reader: R,
    buffer: Box<[u8]>,
    /// What of the buffer is still to be read.
    begin: usize,
    end: usize,
    /// Whether nothing follows.
    is_end: bool,
    /// That of a line that is longer than the buffer.
    beginning: Vec<u8>,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: vec![0; BUFFER].into(),
            begin: 0,
            end: 0,
            is_end: false,
            beginning: Vec::new(),
        }
    }

    /// What the file begins with, without a byte order mark.
    pub(super) fn head(&mut self) -> io::Result<&[u8]> {
        self.fill()?;
        if self.buffer[..self.end].starts_with(b"\xef\xbb\xbf") {
            self.begin = 3;
        }
        Ok(&self.buffer[self.begin..self.end])
    }

    /// Reads until the buffer is full or nothing follows.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        while !self.is_end && self.end < BUFFER {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.is_end = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next line; none at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut newline = memchr::memchr(b'\n', &self.buffer[self.begin..self.end]);
        if newline.is_none() && !self.is_end {
            self.fill()?;
            newline = memchr::memchr(b'\n', &self.buffer[self.begin..self.end]);
        }
        let begin = self.begin;
        let len = match newline {
            Some(len) => {
                self.begin += len + 1;
                len
            }
            None if self.is_end => {
                if begin == self.end {
                    return Ok(None);
                }
                self.begin = self.end;
                self.end - begin
            }
            // Longer than the buffer.
            None => {
                self.beginning = self.buffer[begin..begin + MAX_LINE].to_vec();
                self.skip()?;
                return Ok(Some(Line::TooLong(&self.beginning)));
            }
        };
        let line = &self.buffer[begin..begin + len];
        if len > MAX_LINE {
            return Ok(Some(Line::TooLong(&line[..MAX_LINE])));
        }
        Ok(Some(Line::Whole(line.strip_suffix(b"\r").unwrap_or(line))))
    }

    /// Passes over the rest of a line.
    fn skip(&mut self) -> io::Result<()> {
        loop {
            self.begin = self.end;
            self.fill()?;
            if let Some(newline) = memchr::memchr(b'\n', &self.buffer[..self.end]) {
                self.begin = newline + 1;
                return Ok(());
            }
            if self.is_end {
                self.begin = self.end;
                return Ok(());
            }
        }
    }
}
