//! Packet by packet through the slow forms, with the oracle's own parser.

use packetloom_nf::flows::{FlowOracle, Found, OracleFlows};
use packetloom_nf::oracle::OraclePacket;
use packetloom_nf::{Form, Oracle};
use packetloom_packet::{Batch, DropReason, Verdict};

use super::{ENCODED, Encoder, Intake, Outlet, Remains};
use crate::layout::Part;
use crate::outcome::TopFlows;
use crate::{Chain, Error};

/// A function's slow form.
enum Slow {
    Standalone(Box<dyn Oracle>),
    PerFlow(Box<dyn FlowOracle>, Part),
}

pub(super) fn run(chain: &Chain, intake: &mut Intake<'_>, outlet: &mut Outlet<'_>) -> Result<Remains, Error> {
    let settings = &chain.settings.run;
    let definitions = chain.layout.definitions.iter();
    let mut flows: Vec<_> = definitions.map(|used| OracleFlows::new(used.definition.clone())).collect();
    let functions = chain.functions.iter().zip(&chain.layout.parts).map(|(function, part)| {
        let encoder = Encoder::new(&**function);
        match (function.form(), part) {
            (Form::Standalone(function), _) => (Slow::Standalone(function.oracle()), encoder),
            (Form::PerFlow(function), Some(part)) => (Slow::PerFlow(function.oracle(), *part), encoder),
            (Form::PerFlow(_), None) => unreachable!("the layout has a part for each of them"),
        }
    });
    let mut stages: Vec<_> = functions.collect();
    let mut batch = Batch::new(settings.batch.get());
    let mut number: u64 = 0;
    while intake.fill(&mut batch)? {
        for index in 0..batch.len() {
            for (slow, _) in &mut stages {
                if let Slow::Standalone(oracle) = slow {
                    oracle.reach(number);
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
            let mut found = vec![Found::PassesBy; flows.len()];
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
                    Slow::PerFlow(oracle, part) => {
                        let found = &mut found[part.definition];
                        if let (true, Ok(ip)) = (part.is_first, &arrived) {
                            *found = flows[part.definition].touch(ip, packet.nanos);
                        }
                        verdict = match found {
                            Found::Flow(flow) => oracle.step(&mut packet, flow),
                            Found::Dropped => Verdict::Drop(DropReason::FlowTableFull),
                            Found::PassesBy => Verdict::Pass,
                        };
                    }
                }
            }
            batch.push_verdict(verdict);
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
            Slow::PerFlow(oracle, part) => oracle.report(&flows[part.definition]),
        });
    }
    Ok(Remains { reports, top_flows, flows: flows.iter().map(OracleFlows::counts).collect() })
}
