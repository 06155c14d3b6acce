//! Captures, batch by batch.

use std::path::PathBuf;
use std::time::Duration;

use packetloom_io::capture::CaptureSeries;
use packetloom_io::input::Stop;
use packetloom_io::source::{Polled, Source};
use packetloom_packet::Batch;

use crate::Error;
use crate::acl::interrupted;

/// Frames of a batch.
const FRAMES: usize = 4096;

/// How long a capture that grows is waited for.
const WAIT: Duration = Duration::from_millis(10);

/// Calls `take` with every batch of captures.
pub(crate) fn each_batch(
    captures: &[PathBuf],
    stop: &Stop,
    mut take: impl FnMut(&mut Batch) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut series = CaptureSeries::open(captures, stop)?;
    let mut batch = Batch::new(FRAMES);
    loop {
        match series.poll(&mut batch)? {
            Polled::End => return interrupted(stop),
            Polled::Nothing => series.wait(WAIT)?,
            Polled::Frames => {
                interrupted(stop)?;
                take(&mut batch)?;
            }
        }
    }
}
