//! Packet by packet through the slow forms, with the oracle's own parser.

use std::net::IpAddr;

use packetloom_nf::flows::{FlowOracle, Found, OracleFlows, Role};
use packetloom_nf::oracle::{OracleIp, OraclePacket};
use packetloom_nf::{Form, Oracle};
use packetloom_packet::key::halves;
use packetloom_packet::{Address, Batch, DropReason, Dscp, End, Reject, Rewrite, Verdict};

use super::{ENCODED, Encoder, Intake, Outlet, Remains};
use crate::layout::{Part, Parts};
use crate::outcome::TopFlows;
use crate::{Chain, Error};

/// A function's slow form.
enum Slow {
    Standalone(Box<dyn Oracle>),
    PerFlow(Box<dyn FlowOracle>, Parts),
}

pub(super) fn run(chain: &Chain, intake: &mut Intake<'_>, outlet: &mut Outlet<'_>) -> Result<Remains, Error> {
    let settings = &chain.settings.run;
    let definitions = chain.layout.definitions.iter();
    let mut flows: Vec<_> = definitions.map(|used| OracleFlows::new(used.definition.clone())).collect();
    let functions = chain.functions.iter().zip(&chain.layout.parts).map(|(function, part)| {
        let encoder = Encoder::new(&**function);
        match (function.form(), part) {
            (Form::Standalone(function), _) => (Slow::Standalone(function.oracle()), encoder),
            (Form::PerFlow(function), Some(parts)) => (Slow::PerFlow(function.oracle(), *parts), encoder),
            (Form::PerFlow(_), None) => unreachable!("the layout has a part for each of them"),
        }
    });
    let mut stages: Vec<_> = functions.collect();
    let mut batch = Batch::new(settings.batch.get());
    let mut number: u64 = 0;
    while intake.fill(&mut batch)? {
        // For what is written out: rewrites need keys. Verdicts are the oracle's.
        batch.parse(settings.policy());
        for index in 0..batch.len() {
            for (slow, _) in &mut stages {
                match slow {
                    Slow::Standalone(oracle) => oracle.reach(number),
                    Slow::PerFlow(oracle, _) => oracle.reach(number),
                }
            }
            let frame = batch.frames()[index];
            let mut packet =
                OraclePacket::new(frame.time.as_nanos(), frame.link, batch.bytes(index), frame.wire_len);
            let mut verdict = match &packet.ip {
                Ok(_) => Verdict::Pass,
                Err(reject) => settings.policy().verdict(*reject),
            };
            // Keys are those of the packet as it came, whatever is rewritten later.
            let arrived = packet.ip.clone();
            let mut found = vec![Found::Without(Role::Member); flows.len()];
            for (index, (slow, encoder)) in stages.iter_mut().enumerate() {
                if !verdict.is_pass() {
                    break;
                }
                match slow {
                    Slow::Standalone(oracle) => {
                        verdict = oracle.step(&packet, &mut |record| encoder.record(record));
                        if let (Some(rule), Some(packet)) = (oracle.logged(), packet.record()) {
                            outlet.log(index, rule, number, &packet)?;
                        }
                    }
                    Slow::PerFlow(oracle, Parts { main, remembers }) => {
                        let mut find = |part: Part| {
                            let found = &mut found[part.definition];
                            if let (true, Ok(ip)) = (part.is_first, &arrived) {
                                *found = flows[part.definition].touch(ip, packet.nanos);
                            }
                            *found
                        };
                        let remembered = remembers.map(&mut find);
                        if remembered == Some(Found::Dropped) {
                            verdict = Verdict::Drop(DropReason::FlowTableFull);
                            continue;
                        }
                        match remembered {
                            Some(Found::Flow(flow)) => oracle.remember(&packet, Some(&flow)),
                            Some(_) => oracle.remember(&packet, None),
                            None => {}
                        }
                        verdict = match find(*main) {
                            Found::Flow(flow) => oracle.step(&mut packet, &flow),
                            Found::Dropped => {
                                verdict = Verdict::Drop(DropReason::FlowTableFull);
                                continue;
                            }
                            Found::Without(role) => oracle.step_without(&packet, role),
                        };
                        if let (Some(rule), Some(packet)) = (oracle.logged(), packet.record()) {
                            outlet.log(index, rule, number, &packet)?;
                        }
                    }
                }
            }
            batch.judge().0[index] = verdict;
            rewrite(&mut batch, index, arrived.as_ref(), packet.ip.as_ref());
            number += 1;
        }
        outlet.deliver(&batch)?;
        for (index, (_, encoder)) in stages.iter_mut().enumerate() {
            if encoder.lines.len() >= ENCODED {
                outlet.write_records(index, &mut encoder.lines)?;
            }
        }
    }
    let mut top_flows = TopFlows::default();
    let mut reports = Vec::new();
    for (index, (mut slow, mut encoder)) in stages.into_iter().enumerate() {
        if let Slow::Standalone(oracle) = &mut slow {
            oracle.finish(&mut |record| encoder.record(record));
        }
        outlet.write_records(index, &mut encoder.lines)?;
        top_flows.merge(&encoder.top_flows);
        reports.push(match slow {
            Slow::Standalone(oracle) => oracle.report(),
            Slow::PerFlow(oracle, parts) => oracle.report(&flows[parts.main.definition]),
        });
    }
    Ok(Remains { reports, top_flows, flows: flows.iter().map(OracleFlows::counts).collect() })
}

/// Has a frame rewritten as the packet was.
fn rewrite(
    batch: &mut Batch,
    frame: usize,
    before: Result<&OracleIp, &Reject>,
    after: Result<&OracleIp, &Reject>,
) {
    let (Ok(before), Ok(after)) = (before, after) else { return };
    let ports = |ip: &OracleIp| {
        ip.ports.map_or((None, None), |(source, destination)| (Some(source), Some(destination)))
    };
    let (before_ports, after_ports) = (ports(before), ports(after));
    for (end, before, after) in [
        (End::Source, (before.source, before_ports.0), (after.source, after_ports.0)),
        (End::Destination, (before.destination, before_ports.1), (after.destination, after_ports.1)),
    ] {
        if before != after {
            let address = match after.0 {
                IpAddr::V4(address) => Address::V4(address.into()),
                IpAddr::V6(address) => Address::V6(halves(address.into())),
            };
            let port = if before.1 == after.1 { None } else { after.1 };
            batch.rewrite(Rewrite { frame: frame as u32, end, address, port });
        }
    }
    if let Some(dscp) = Dscp::new(after.dscp.into()).filter(|_| after.dscp != before.dscp) {
        batch.mark(frame as u32, dscp);
    }
}
