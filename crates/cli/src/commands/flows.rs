//! All packets of flows that a run over captures has found: the captures are read a second time for them.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use packetloom_engine::run::MAX_COLLECTED_FLOWS;
use packetloom_io::capture::{CaptureSeries, PcapngWriter};
use packetloom_io::input::{Stop, is_standard};
use packetloom_io::output::Output;
use packetloom_io::{Polled, Source};
use packetloom_packet::batch::Policy;
use packetloom_packet::{Batch, FlowKey};

use crate::Done;
use crate::failure::Failure;

/// Frames that are read at a time.
const BATCH: usize = 1024;

/// Refuses captures that cannot be read twice, for an option that has them read so.
pub(super) fn check_twice(option: &str, captures: &[PathBuf]) -> Done {
    // What is not there is told by whoever opens it.
    let is_file =
        |path: &&PathBuf| !is_standard(path) && fs::metadata(path).map_or(true, |data| data.is_file());
    match captures.iter().find(|path| !is_file(path)) {
        Some(path) => Err(Failure::Usage(format!(
            "{option} with -r {}; expected a file, which can be read twice",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Writes all packets of flows, in the order of the captures, to the file of an option.
pub(super) fn write_packets(
    option: &str,
    flows: &HashSet<FlowKey>,
    captures: &[PathBuf],
    limit: Option<u64>,
    output: Output,
    stop: &Stop,
) -> Done {
    if flows.len() > MAX_COLLECTED_FLOWS {
        return Err(Failure::Run(anyhow::anyhow!(
            "{option}: packets of more than {MAX_COLLECTED_FLOWS} flows; expected fewer, as with a filter (-f)"
        )));
    }
    let mut source = CaptureSeries::open(captures, stop)?;
    let mut writer = PcapngWriter::over(output);
    let mut batch = Batch::new(BATCH);
    let mut left = limit.unwrap_or(u64::MAX);
    while left > 0 && source.poll(&mut batch)? == Polled::Frames {
        batch.parse(Policy::PASS);
        let count = batch.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= count as u64;
        let is_wanted = |index: &usize| batch.flow_key(*index).is_some_and(|flow| flows.contains(&flow));
        writer.write_commented(&batch, (0..count).filter(is_wanted).map(|index| (index, &[][..])))?;
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Run(anyhow::anyhow!("stopped; {option} wrote nothing")));
    }
    Ok(writer.finish()?)
}
