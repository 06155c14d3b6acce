//! `packetloom generate`.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use packetloom_classify::formats::{self, Format, WriteOptions};
use packetloom_generate::profile::{Adjustments, Profile, ProfileOptions, write_profile_pcap};
use packetloom_generate::{
    GenerateError, HeaderFormat, HeaderOptions, Headers, RuleOptions, RuleShape, TrafficOptions, rules,
};
use packetloom_io::input::{Stop, open_text};
use packetloom_io::output::Output;

use super::files::Files;
use super::{Sink, stop_on_signals};
use crate::args::{self, GenerateVerb, HeadersArgs, RulesArgs, TrafficArgs, TrafficShape};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(verb: GenerateVerb) -> Done {
    match verb {
        GenerateVerb::Traffic(TrafficArgs { write, shape }) => {
            Files::default()
                .input("--profile", shape.profile.as_deref())
                .output("-w", Some(&write))
                .check()?;
            write_traffic(&write, &shape, &stop_on_signals()?)
        }
        GenerateVerb::Rules(args) => write_rules(&args),
        GenerateVerb::Headers(args) => write_headers(&args),
    }
}

/// Runs a generator into a file that appears when it is whole.
fn generate(path: &Path, stop: &Stop, work: impl FnOnce(&mut Sink) -> Result<(), GenerateError>) -> Done {
    let mut sink = Sink { output: Output::create(path)?, stop: stop.clone() };
    match work(&mut sink) {
        Ok(()) => Ok(sink.output.finish()?),
        Err(GenerateError::Io(source)) => Err(packetloom_io::Error::io(sink.output.name(), source).into()),
        Err(error) => Err(Failure::Usage(error.to_string())),
    }
}

/// Writes a capture of the asked-for shape.
pub(super) fn write_traffic(path: &Path, shape: &TrafficShape, stop: &Stop) -> Done {
    if let Some(profile) = &shape.profile {
        return write_profile(path, profile, shape, stop);
    }
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
    let made = generate(path, stop, |sink| {
        packetloom_generate::write_pcap(&options, sink, |packets| bar.set_position(packets)).map(|_| ())
    });
    bar.finish_and_clear();
    made
}

/// Writes a capture with the flows of a profile.
fn write_profile(path: &Path, profile: &Path, shape: &TrafficShape, stop: &Stop) -> Done {
    let reader = open_text(profile).map_err(|error| error.expecting("a network profile"))?;
    let name = profile.display().to_string();
    let profile = Profile::read(reader, &name).map_err(|error| match error {
        GenerateError::Io(source) => Failure::from(packetloom_io::Error::io(&*name, source)),
        GenerateError::NoFlows => {
            Failure::Run(anyhow::anyhow!("{name}: no flow that can be made; expected one"))
        }
        error => Failure::Run(error.into()),
    })?;
    for adjustment in adjustments(&profile.adjustments()) {
        talk::say(&format!("packetloom: warning: {name}: {adjustment}\n"));
    }
    let options = ProfileOptions { seed: shape.seed, snap: shape.snap, ..ProfileOptions::default() };
    let bar = talk::bar(Some(profile.packets()), "generating", talk::Template::Count);
    let made = generate(path, stop, |sink| {
        write_profile_pcap(profile, &options, sink, |packets| bar.set_position(packets)).map(|_| ())
    });
    bar.finish_and_clear();
    made
}

/// What a profile has and packets cannot.
fn adjustments(adjustments: &Adjustments) -> impl Iterator<Item = String> {
    let &Adjustments { protocol, empty, short, long, single, ports } = adjustments;
    let told = [
        (protocol, "left out: neither TCP, UDP nor ICMP (ICMPv6 for IPv6)"),
        (empty, "left out: without packets"),
        (short, "with fewer bytes than the headers of their packets need: raised to that"),
        (long, "with more bytes than their packets can hold: lowered to that"),
        (single, "of one packet, but with another END_TIME than START_TIME: ended at the start"),
        (ports, "of ICMP with ports: set to 0"),
    ];
    told.into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{} {what}", talk::amount(count, "flow")))
}

/// Writes a generated rule set.
fn write_rules(args: &RulesArgs) -> Done {
    let format = match args.text.format {
        Some(args::Format::Classbench) => Format::ClassBench,
        None if !args.ipv6 => Format::ClassBench,
        _ => Format::Native,
    };
    let style = match args.style {
        args::Style::Acl => rules::Style::Acl,
        args::Style::Fw => rules::Style::Fw,
        args::Style::Ipc => rules::Style::Ipc,
    };
    let options = RuleOptions { style, count: args.rules, seed: args.text.seed, ipv6: args.ipv6 };
    let rules = packetloom_generate::generate_rules(&options).map_err(|e| Failure::Usage(e.to_string()))?;
    generate(&args.text.output, &stop_on_signals()?, |sink| {
        let mut writer = BufWriter::new(sink);
        let options = WriteOptions { conditions_only: true, ..WriteOptions::default() };
        match formats::write_rules(&rules, format, &options, &mut writer) {
            Ok(_) => Ok(writer.flush()?),
            Err(formats::WriteError::Io(error)) => Err(error.into()),
            Err(error) => Err(io::Error::other(error).into()),
        }
    })
}

/// Writes headers for the rules of a file.
fn write_headers(args: &HeadersArgs) -> Done {
    Files::default().input("--rules", Some(&args.rules)).output("-o", Some(&args.text.output)).check()?;
    let rules = super::acl::read_rules(&args.rules)?;
    let shapes: Vec<_> = rules.rules.iter().flat_map(RuleShape::of).collect();
    let only_v4 = shapes.iter().all(|shape| !shape.ipv6);
    let format = match args.text.format {
        Some(args::Format::Classbench) if !only_v4 => {
            let message = "headers in ClassBench's format are IPv4 only; expected --format native";
            return Err(Failure::Usage(message.into()));
        }
        None if !only_v4 => HeaderFormat::Native,
        Some(args::Format::Native) => HeaderFormat::Native,
        _ => HeaderFormat::ClassBench,
    };
    let options = HeaderOptions {
        count: args.headers,
        seed: args.text.seed,
        mix: args.mix,
        ..HeaderOptions::default()
    };
    generate(&args.text.output, &stop_on_signals()?, |sink| {
        packetloom_generate::write_headers(Headers::new(&shapes, &options)?, format, sink)
    })
}
