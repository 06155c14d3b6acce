//! `packetloom generate`.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use packetloom_classify::formats::Options;
use packetloom_classify::rule::Addresses;
use packetloom_generate::{
    FlagMatch, GenerateError, HeaderOptions, Headers, PortRange, Prefix, RuleOptions, RuleShape, TextFormat,
    TrafficOptions, rules,
};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;

use super::stop_on_signals;
use crate::args::{self, GenerateVerb, HeadersArgs, RulesArgs, TrafficArgs, TrafficShape};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(verb: GenerateVerb) -> Done {
    match verb {
        GenerateVerb::Traffic(TrafficArgs { write, shape }) => write_traffic(&write, &shape),
        GenerateVerb::Rules(args) => write_rules(&args),
        GenerateVerb::Headers(args) => write_headers(&args),
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

/// Writes a generated rule set.
fn write_rules(args: &RulesArgs) -> Done {
    let format = format(args.format, !args.ipv6)?;
    let style = match args.style {
        args::Style::Acl => rules::Style::Acl,
        args::Style::Fw => rules::Style::Fw,
        args::Style::Ipc => rules::Style::Ipc,
    };
    let options = RuleOptions { style, count: args.rules, seed: args.seed, ipv6: args.ipv6 };
    generate(&args.output, |sink| {
        packetloom_generate::write_rules(&packetloom_generate::generate_rules(&options)?, format, sink)
    })
}

/// Writes headers for the rules of a file.
fn write_headers(args: &HeadersArgs) -> Done {
    let rules = super::acl::read_rules(&args.rules, Options { ignore_flags: true })?;
    // A rule for either family is one of each; headers of both need our own format.
    let mut shapes = Vec::new();
    for rule in &rules.rules {
        shapes.extend(shapes_of(rule));
    }
    let format = format(args.format, shapes.iter().all(|shape| !shape.ipv6))?;
    let options =
        HeaderOptions { count: args.headers, seed: args.seed, mix: args.mix, ..HeaderOptions::default() };
    generate(&args.output, |sink| {
        packetloom_generate::write_headers(Headers::new(&shapes, &options)?, format, sink)
    })
}

/// The format to write: the one asked for, or ClassBench's where it can hold everything.
fn format(wanted: Option<args::Format>, only_v4: bool) -> Result<TextFormat, Failure> {
    match wanted {
        Some(args::Format::Classbench) if !only_v4 => {
            Err(Failure::Usage("ClassBench's format holds IPv4 only; expected --format native".into()))
        }
        Some(args::Format::Classbench) => Ok(TextFormat::ClassBench),
        None if only_v4 => Ok(TextFormat::ClassBench),
        _ => Ok(TextFormat::Packetloom),
    }
}

/// A rule as generators know it, for each family that it is for.
fn shapes_of(rule: &packetloom_classify::Rule) -> Vec<RuleShape> {
    let ports = |range: packetloom_classify::rule::PortRange| PortRange { low: range.low, high: range.high };
    let shape = |ipv6, source: (u128, u8), destination: (u128, u8)| RuleShape {
        ipv6,
        source: Prefix { address: source.0, len: source.1 },
        destination: Prefix { address: destination.0, len: destination.1 },
        source_ports: ports(rule.source_ports),
        destination_ports: ports(rule.destination_ports),
        protocol: rule.protocol,
        flags: rule.tcp_flags.map_or(FlagMatch::NONE, |flags| FlagMatch { set: flags.set, mask: flags.mask }),
    };
    match rule.addresses {
        Addresses::Any => vec![shape(false, (0, 0), (0, 0)), shape(true, (0, 0), (0, 0))],
        Addresses::V4(source, destination) => vec![shape(
            false,
            (source.address().into(), source.len()),
            (destination.address().into(), destination.len()),
        )],
        Addresses::V6(source, destination) => {
            vec![shape(true, (source.address(), source.len()), (destination.address(), destination.len()))]
        }
    }
}
