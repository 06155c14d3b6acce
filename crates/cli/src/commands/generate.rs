//! `packetloom generate`.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use packetloom_generate::{GenerateError, TrafficOptions};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;

use super::stop_on_signals;
use crate::args::{GenerateVerb, TrafficArgs, TrafficShape};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(verb: GenerateVerb) -> Done {
    match verb {
        GenerateVerb::Traffic(TrafficArgs { write, shape }) => write_traffic(&write, &shape),
        GenerateVerb::Rules(_) | GenerateVerb::Headers(_) => unimplemented!(),
    }
}

/// An output that generators write to, and that fails once the user asked to stop.
struct Sink {
    output: Output,
    stop: Stop,
}

impl Write for Sink {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("interrupted"));
        }
        match self.output.write(buffer) {
            Ok(()) => Ok(buffer.len()),
            Err(packetloom_io::Error::Io { source, .. }) => Err(source),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a generator into a file that appears when it is whole.
fn generate(path: &Path, work: impl FnOnce(&mut Sink) -> Result<(), GenerateError>) -> Done {
    let mut sink = Sink { output: Output::create(path)?, stop: stop_on_signals()? };
    match work(&mut sink) {
        Ok(()) => Ok(sink.output.finish()?),
        Err(GenerateError::Io(source)) => Err(packetloom_io::Error::io(sink.output.name(), source).into()),
        Err(error) => Err(Failure::Usage(error.to_string())),
    }
}

/// Writes a capture of the asked-for shape.
pub(super) fn write_traffic(path: &Path, shape: &TrafficShape) -> Done {
    let options = TrafficOptions {
        packets: shape.packets,
        flows: shape.flows,
        seed: shape.seed,
        snap: shape.snap,
        duration: Duration::from_nanos(shape.duration.as_nanos()),
        ipv6_share: shape.ipv6_share.into(),
        vlan_share: shape.vlan_share.into(),
        ..TrafficOptions::default()
    };
    let bar = talk::bar(Some(shape.packets), "generating", talk::Template::Count);
    let made = generate(path, |sink| {
        packetloom_generate::write_pcap(&options, sink, |packets| bar.set_position(packets)).map(|_| ())
    });
    bar.finish_and_clear();
    made
}
