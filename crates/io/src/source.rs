//! What packets come from, whatever it is.

use std::time::Duration;

use packetloom_packet::{Batch, PortNames, Timestamp};

use crate::Error;
use crate::capture::{FileReport, Findings, Section, Sections, Truncation};
pub use crate::map::Paging;

/// What a look at a source came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The batch has frames.
    Frames,
    /// Nothing has come; more may come later. The batch is empty.
    Nothing,
    /// There is no more. The batch is empty.
    End,
}

/// Where packets come from: a capture, or network interfaces.
pub trait Source: Send {
    /// Takes what comes next into `batch`, whose frames are forgotten, until it is full or more would have to be waited for. A source that
    /// [is live](Source::is_live) never waits; another one may wait for its first frame, as where a compressed capture comes by a pipe.
    ///
    /// # Errors
    ///
    /// Reading or receiving fails. A broken tail of a capture is no error: see [`Source::truncation`].
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, Error>;

    /// Told once that no more is read of it: network interfaces are left to the kernel where that is to forward from then on.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn release(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Waits until more may have come, at most so long. Without effect where [`Source::poll`] may wait itself.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn wait(&mut self, timeout: Duration) -> Result<(), Error>;

    /// Whether frames come as somebody sends them, so that waiting for more may take for ever.
    fn is_live(&self) -> bool;

    /// The time by the clock of the frames' times, where it goes on without frames.
    fn now(&self) -> Option<Timestamp> {
        None
    }

    /// From the time of [`Source::now`] to wall time, in nanoseconds.
    fn wall_offset(&self) -> i64 {
        0
    }

    /// Pages of a mapped file that are best brought in before the next batch, by this thread or another one.
    fn paging(&mut self) -> Option<Paging> {
        None
    }

    /// Sections of so many bytes from here on, whose frames several threads may find at the same time; none where only [`Source::poll`] can.
    fn sections(&self, bytes: usize) -> Option<Sections> {
        let _ = bytes;
        None
    }

    /// Goes on behind a section, if that begins where the source is; if not, its frames do not count.
    fn accept(&mut self, section: Section) -> bool {
        let _ = section;
        false
    }

    /// The names of the ports by which frames come, where they are known from the start.
    fn port_names(&self) -> Option<PortNames> {
        None
    }

    /// Bytes read so far, for a progress bar.
    fn position(&self) -> u64 {
        0
    }

    /// Where and why reading ended before the end, if it did.
    fn truncation(&self) -> Option<&Truncation> {
        None
    }

    /// What was odd about the frames given so far; of several captures [`Source::files`] says it.
    fn findings(&self) -> Findings {
        Findings::default()
    }

    /// What is to be said of each of several captures that were read so far, in that order, where there is anything.
    fn files(&self) -> Vec<FileReport> {
        Vec::new()
    }

    /// Something the user should know, if there is any: that an interface went down.
    fn notice(&mut self) -> Option<String> {
        None
    }

    /// What came in by each network interface so far.
    ///
    /// # Errors
    ///
    /// The kernel does not tell.
    fn ingress_counts(&mut self) -> Result<Vec<crate::port::IngressCounts>, Error> {
        Ok(Vec::new())
    }
}
