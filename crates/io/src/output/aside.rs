//! A file that a thread of its own writes, so that whoever has something for it never waits: neither for a reader that is slow, nor for
//! a disk. What does not fit between the two is left out and counted.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::series::Series;

/// Bytes that may wait to be written.
const ROOM: usize = 64 << 20;
/// Bytes of a system call at most, so that a slow reader is told from one that takes nothing.
const CALL: usize = 1 << 16;
/// How long, once nothing more comes, it is waited for somebody who takes nothing.
const PATIENCE: Duration = Duration::from_secs(5);

/// See above.
#[derive(Debug)]
pub(super) struct Aside {
    shared: Arc<Shared>,
    /// What goes to the thread next.
    held: Vec<Piece>,
    /// What was left out together with records: the beginning or the end of a file.
    owed: Option<Mark>,
}

/// Whole records, and how many they are.
#[derive(Debug, Default)]
struct Piece {
    /// What comes before them, where there are several files.
    mark: Option<Mark>,
    bytes: Vec<u8>,
    items: u64,
}

/// What is to be done with the files of an output before something is written.
#[derive(Clone, Debug)]
enum Mark {
    /// Begin another one, with a header; and the time of its first record.
    Begin(u64, Box<[u8]>),
    /// Finish the one that there is.
    End,
}

#[derive(Debug)]
struct Shared {
    name: String,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    /// The first one is being written.
    pieces: VecDeque<Arc<Piece>>,
    /// Bytes of all of them.
    bytes: usize,
    /// When somebody last took something, or nothing was to be taken.
    taken: Instant,
    /// Whether there is time to wait for room.
    lingers: bool,
    is_over: bool,
    fate: Fate,
    /// Whether one of several files could not be written, which is said once.
    has_failed: bool,
    not_written: u64,
    /// Records in the one of several files that is being written, which has no name yet.
    unnamed: u64,
    notices: VecDeque<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is written to.
    Open,
    /// Something was left out, and that was said.
    Late,
    /// It is not written to any more.
    GivenUp,
    /// Nobody reads it any more; whether that was said.
    Left(bool),
}

impl Queue {
    fn is_open(&self) -> bool {
        matches!(self.fate, Fate::Open | Fate::Late)
    }

    /// Takes away what was written.
    fn pop(&mut self, piece: &Piece) {
        self.pieces.pop_front();
        self.bytes -= piece.bytes.len();
    }

    /// Notes that one of several files could not be written.
    fn miss(&mut self, name: &str, error: &io::Error) {
        if self.fate == Fate::Open {
            self.fate = Fate::Late;
        }
        if !std::mem::replace(&mut self.has_failed, true) {
            let text = format!("{name}: {error}; what comes until the next file is left out, and counted");
            self.notices.push_back(text);
        }
    }

    /// Counts all that waits as not written.
    fn end(&mut self, fate: Fate) {
        self.fate = fate;
        self.not_written += self.pieces.drain(..).map(|piece| piece.items).sum::<u64>();
        self.not_written += mem::take(&mut self.unnamed);
        self.bytes = 0;
    }
}

/// What the thread writes to.
struct Files {
    /// None between two of several files, and where one could not be made.
    file: Option<File>,
    series: Option<Series>,
    /// Bytes of its header, and all that are whole.
    header: u64,
    whole: u64,
    /// Records in the file of several that is written, and in such as could not be named.
    items: u64,
    lost: u64,
}

impl Files {
    /// Finishes a file of several, and begins another one.
    fn turn(&mut self, mark: &Mark) -> io::Result<()> {
        let ended = self.end();
        let (Mark::Begin(time, header), Some(series)) = (mark, &mut self.series) else { return ended };
        let mut file = series.begin(*time)?;
        if let Err(error) = file.write_all(header) {
            series.discard();
            return Err(error);
        }
        self.header = header.len() as u64;
        self.whole = self.header;
        self.file = Some(file);
        ended
    }

    /// Cuts off what is not whole of a file that is ours alone, where so many bytes more were written.
    fn cut(&mut self, done: u64) {
        // Unless another process has appended to it, which would lose that.
        if let Some(file) = &self.file
            && file.metadata().is_ok_and(|found| found.len() == self.whole + done)
        {
            let _ = file.set_len(self.whole);
        }
    }

    /// Gives the file of several its name that is written, unless nothing is in it.
    fn end(&mut self) -> io::Result<()> {
        let Some(series) = &mut self.series else { return Ok(()) };
        let Some(file) = self.file.take() else { return Ok(()) };
        if self.whole <= self.header {
            series.discard();
            return Ok(());
        }
        let result = series.end();
        // It is locked until it has its name.
        drop(file);
        let items = mem::take(&mut self.items);
        if result.is_err() {
            self.lost += items;
        }
        result
    }
}

impl Aside {
    /// Begins a thread that writes to a file, or to several; where it is ours alone, what is there of a record that could not be written whole
    /// is cut off.
    pub(super) fn new(
        name: String,
        file: Option<File>,
        is_own: bool,
        series: Option<Series>,
    ) -> io::Result<Self> {
        let queue = Queue {
            pieces: VecDeque::new(),
            bytes: 0,
            taken: Instant::now(),
            lingers: false,
            is_over: false,
            fate: Fate::Open,
            has_failed: false,
            not_written: 0,
            unnamed: 0,
            notices: VecDeque::new(),
        };
        let shared = Arc::new(Shared { name, queue: Mutex::new(queue), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("output".into()).spawn(move || theirs.write_all(file, is_own, series))?;
        Ok(Self { shared, held: Vec::new(), owed: None })
    }

    /// Takes whole records, which [`Aside::hand_over`] takes along.
    pub(super) fn write(&mut self, bytes: &[u8], items: u64) {
        if self.held.is_empty() {
            self.held.push(Piece::default());
        }
        if let Some(piece) = self.held.last_mut() {
            piece.bytes.extend_from_slice(bytes);
            piece.items += items;
        }
    }

    /// Has what is written from now on go to another file.
    pub(super) fn begin(&mut self, time: u64, header: &[u8]) {
        self.mark(Mark::Begin(time, header.into()));
    }

    /// Has the file be finished.
    pub(super) fn end(&mut self) {
        self.mark(Mark::End);
    }

    fn mark(&mut self, mark: Mark) {
        self.held.push(Piece { mark: Some(mark), ..Piece::default() });
    }

    /// Gives the thread what was written, if there is room. Fails where nobody reads it any more.
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        let mut queue = self.shared.lock();
        for piece in mem::take(&mut self.held) {
            queue = self.shared.hand_over(queue, piece, &mut self.owed);
        }
        match queue.fate {
            Fate::Left(_) => Err(ErrorKind::BrokenPipe.into()),
            _ => Ok(()),
        }
    }

    /// From now on there is time to wait for room.
    pub(super) fn linger(&mut self) {
        let mut queue = self.shared.lock();
        queue.lingers = true;
        queue.taken = Instant::now();
    }

    /// Waits until all is written, or nothing was taken for too long.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.linger();
        let result = self.hand_over();
        drop(self.shared.wait_while(self.shared.lock(), |queue| !queue.pieces.is_empty()));
        result
    }

    /// Writes nothing more, for this reason; so many records were not handed over.
    pub(super) fn give_up(&mut self, why: &str, items: u64) {
        // What came before can still be written.
        let _ = self.hand_over();
        let mut queue = self.shared.lock();
        queue.not_written += items;
        if queue.is_open() {
            // Of several files the one that is written is the last.
            queue.pieces.push_back(Arc::new(Piece { mark: Some(Mark::End), ..Piece::default() }));
            self.shared.changed.notify_all();
            queue.fate = Fate::GivenUp;
            queue.notices.push_back(format!("{why}; nothing more is written there"));
        }
    }

    /// Notes that the reader has gone, and that others have not.
    pub(super) fn say_that_nobody_reads(&mut self) {
        let mut queue = self.shared.lock();
        if queue.fate == Fate::Left(false) {
            queue.fate = Fate::Left(true);
            let text =
                format!("{}: nobody reads it any more; nothing more is written there", self.shared.name);
            queue.notices.push_back(text);
        }
    }

    pub(super) fn notice(&mut self) -> Option<String> {
        self.shared.lock().notices.pop_front()
    }

    /// Records that were left out.
    pub(super) fn not_written(&self) -> u64 {
        self.shared.lock().not_written
    }

    /// Whether all was written so far, or waits.
    pub(super) fn is_whole(&self) -> bool {
        self.shared.lock().fate == Fate::Open
    }

    /// Whether nobody reads it any more.
    pub(super) fn is_left(&self) -> bool {
        matches!(self.shared.lock().fate, Fate::Left(_))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // The thread ends after what waits. Nobody waits for it here: it may be in a call that never returns.
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a piece for the thread, if there is room; what it had to do with files is left to the next one otherwise.
    fn hand_over<'q>(
        &'q self,
        mut queue: MutexGuard<'q, Queue>,
        mut piece: Piece,
        owed: &mut Option<Mark>,
    ) -> MutexGuard<'q, Queue> {
        let len = piece.bytes.len();
        piece.mark = piece.mark.or_else(|| owed.take());
        *owed = None;
        // One that is larger than all the room goes alone.
        let is_full = |queue: &Queue| len > 0 && queue.bytes > 0 && queue.bytes + len > ROOM;
        if queue.lingers {
            queue = self.wait_while(queue, is_full);
        }
        if !queue.is_open() {
            queue.not_written += piece.items;
        } else if is_full(&queue) {
            *owed = piece.mark;
            queue.not_written += piece.items;
            if queue.fate == Fate::Open {
                queue.fate = Fate::Late;
                let text = format!(
                    "{}: what is written is not taken fast enough; what does not fit is left out, and counted",
                    self.name
                );
                queue.notices.push_back(text);
            }
        } else if len > 0 || piece.mark.is_some() {
            if queue.pieces.is_empty() {
                queue.taken = Instant::now();
            }
            queue.bytes += len;
            queue.pieces.push_back(Arc::new(piece));
            self.changed.notify_all();
        }
        queue
    }

    /// Waits as long as something holds and somebody takes what is written.
    fn wait_while<'q>(
        &self,
        mut queue: MutexGuard<'q, Queue>,
        holds: impl Fn(&Queue) -> bool,
    ) -> MutexGuard<'q, Queue> {
        while holds(&queue) {
            let left = PATIENCE.saturating_sub(queue.taken.elapsed());
            if left.is_zero() {
                queue.end(Fate::GivenUp);
                let text = format!(
                    "{}: for {} s nobody has taken what is written; nothing more is written there",
                    self.name,
                    PATIENCE.as_secs()
                );
                queue.notices.push_back(text);
                break;
            }
            let waited = self.changed.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        queue
    }

    /// What the thread does.
    fn write_all(&self, file: Option<File>, is_own: bool, series: Option<Series>) {
        let mut files = Files { file, series, header: 0, whole: 0, items: 0, lost: 0 };
        files.whole = files.file.as_mut().and_then(|file| file.stream_position().ok()).unwrap_or(0);
        loop {
            let mut queue = self.lock();
            while queue.pieces.is_empty() && !queue.is_over {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(piece) = queue.pieces.front().cloned() else {
                drop(queue);
                let ended = files.end();
                drop(self.note(self.lock(), &mut files, ended.err()));
                return;
            };
            drop(queue);
            let turned = piece.mark.as_ref().map_or(Ok(()), |mark| files.turn(mark));
            let mut done = 0;
            let result = match &mut files.file {
                Some(file) => self.write(file, &piece.bytes, &mut done).map_err(Some),
                None if piece.bytes.is_empty() => Ok(()),
                // That there is no file was said.
                None => Err(None),
            };
            let mut queue = self.note(self.lock(), &mut files, turned.err());
            // Who gave it up meanwhile has counted what waited.
            if queue.pieces.is_empty() {
                drop(queue);
                if is_own {
                    files.cut(done);
                }
                let _ = files.end();
                return;
            }
            match result {
                Ok(()) => {
                    files.whole += piece.bytes.len() as u64;
                    if files.series.is_some() {
                        files.items += piece.items;
                        queue.unnamed = files.items;
                    }
                    queue.pop(&piece);
                }
                Err(error) => {
                    // Packets do not wait for what the disk does meanwhile.
                    drop(queue);
                    if is_own {
                        files.cut(done);
                    }
                    // The next one of several may have room.
                    let ended = files.end();
                    queue = self.note(self.lock(), &mut files, ended.err());
                    if queue.pieces.is_empty() {
                        return;
                    }
                    match error {
                        error if files.series.is_some() => {
                            queue.not_written += piece.items;
                            queue.pop(&piece);
                            if let Some(error) = error {
                                queue.miss(&self.name, &error);
                            }
                        }
                        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                            queue.end(Fate::GivenUp);
                            let text = format!("{}: {error}; nothing more is written there", self.name);
                            queue.notices.push_back(text);
                        }
                        _ => queue.end(Fate::Left(false)),
                    }
                }
            }
            self.changed.notify_all();
        }
    }

    /// Notes what became of the last of several files.
    fn note<'q>(
        &self,
        mut queue: MutexGuard<'q, Queue>,
        files: &mut Files,
        error: Option<io::Error>,
    ) -> MutexGuard<'q, Queue> {
        queue.not_written += mem::take(&mut files.lost);
        // Who gave it up has counted them.
        queue.unnamed = if queue.is_open() { files.items } else { 0 };
        if let Some(error) = error {
            queue.miss(&self.name, &error);
        }
        queue
    }

    /// Writes all of some bytes; `done` is how many were, also where that fails.
    fn write(&self, file: &mut File, mut bytes: &[u8], done: &mut u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match file.write(&bytes[..bytes.len().min(CALL)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
                    *done += written as u64;
                    self.lock().taken = Instant::now();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A descriptor that others have made so.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&*file, PollFlags::OUT)], None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
