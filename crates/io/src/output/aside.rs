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
    held: Piece,
}

/// Whole records, and how many they are.
#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    items: u64,
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
    not_written: u64,
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

    /// Counts all that waits as not written.
    fn end(&mut self, fate: Fate) {
        self.fate = fate;
        self.not_written += self.pieces.drain(..).map(|piece| piece.items).sum::<u64>();
        self.bytes = 0;
    }
}

impl Aside {
    /// Begins a thread that writes to a file; where it is ours alone, what is there of a record that could not be written whole is cut off.
    pub(super) fn new(name: String, file: File, is_own: bool) -> io::Result<Self> {
        let queue = Queue {
            pieces: VecDeque::new(),
            bytes: 0,
            taken: Instant::now(),
            lingers: false,
            is_over: false,
            fate: Fate::Open,
            not_written: 0,
            notices: VecDeque::new(),
        };
        let shared = Arc::new(Shared { name, queue: Mutex::new(queue), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        thread::Builder::new().name("output".into()).spawn(move || theirs.write_all(file, is_own))?;
        Ok(Self { shared, held: Piece::default() })
    }

    /// Takes whole records, which [`Aside::hand_over`] takes along.
    pub(super) fn write(&mut self, bytes: &[u8], items: u64) {
        self.held.bytes.extend_from_slice(bytes);
        self.held.items += items;
    }

    /// Gives the thread what was written, if there is room. Fails where nobody reads it any more.
    pub(super) fn hand_over(&mut self) -> io::Result<()> {
        let mut queue = self.shared.lock();
        if !self.held.bytes.is_empty() {
            let piece = mem::take(&mut self.held);
            let len = piece.bytes.len();
            // One that is larger than all the room goes alone.
            let is_full = |queue: &Queue| queue.bytes > 0 && queue.bytes + len > ROOM;
            if queue.lingers {
                queue = self.shared.wait_while(queue, is_full);
            }
            if !queue.is_open() {
                queue.not_written += piece.items;
            } else if is_full(&queue) {
                queue.not_written += piece.items;
                if queue.fate == Fate::Open {
                    queue.fate = Fate::Late;
                    let text = format!(
                        "{}: what is written is not taken fast enough; what does not fit is left out, and counted",
                        self.shared.name
                    );
                    queue.notices.push_back(text);
                }
            } else {
                if queue.pieces.is_empty() {
                    queue.taken = Instant::now();
                }
                queue.bytes += len;
                queue.pieces.push_back(Arc::new(piece));
                self.shared.changed.notify_all();
            }
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
    fn write_all(&self, mut file: File, is_own: bool) {
        let mut whole = file.stream_position().unwrap_or(0);
        loop {
            let mut queue = self.lock();
            while queue.pieces.is_empty() && !queue.is_over {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(piece) = queue.pieces.front().cloned() else { return };
            drop(queue);
            let result = self.write(&mut file, &piece.bytes);
            let mut queue = self.lock();
            // Who gave it up meanwhile has counted what waited.
            if queue.pieces.is_empty() {
                return;
            }
            match result {
                Ok(()) => {
                    whole += piece.bytes.len() as u64;
                    queue.pieces.pop_front();
                    queue.bytes -= piece.bytes.len();
                }
                Err(error) => {
                    if is_own {
                        let _ = file.set_len(whole);
                    }
                    if error.kind() == ErrorKind::BrokenPipe {
                        queue.end(Fate::Left(false));
                    } else {
                        queue.end(Fate::GivenUp);
                        let text = format!("{}: {error}; nothing more is written there", self.name);
                        queue.notices.push_back(text);
                    }
                }
            }
            self.changed.notify_all();
        }
    }

    fn write(&self, file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match file.write(&bytes[..bytes.len().min(CALL)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = &bytes[written..];
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
