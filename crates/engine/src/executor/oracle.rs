//! Packet by packet through the slow forms, with the oracle's own parser.

use packetloom_nf::oracle::OraclePacket;
use packetloom_nf::{Prepared, Report};
use packetloom_packet::{Batch, Verdict};

use super::{ENCODED, Encoder, Intake, Outlet};
use crate::Error;
use crate::chain::Run;
use crate::outcome::TopFlows;

pub(super) fn run(
    functions: &[Box<dyn Prepared>],
    settings: &Run,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
    let mut stages: Vec<_> = functions.iter().map(|f| (f.oracle(), Encoder::new(&**f))).collect();
    let mut batch = Batch::new(settings.batch.get());
    let mut number: u64 = 0;
    while intake.fill(&mut batch)? {
        for index in 0..batch.len() {
            stages.iter_mut().for_each(|(oracle, _)| oracle.reach(number));
            let frame = batch.frames()[index];
            let packet =
                OraclePacket::new(frame.time.as_nanos(), frame.link, batch.bytes(index), frame.wire_len);
            let mut verdict = match &packet.ip {
                Ok(_) => Verdict::Pass,
                Err(reject) => settings.policy().verdict(*reject),
            };
            for (index, (oracle, encoder)) in stages.iter_mut().enumerate() {
                if !verdict.is_pass() {
                    break;
                }
                verdict = oracle.step(&packet, &mut |record| encoder.record(record));
                if let (Some(rule), Some(packet)) = (oracle.logged(), packet.record()) {
                    outlet.log(index, rule, number, &packet)?;
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
    for (index, (mut oracle, mut encoder)) in stages.into_iter().enumerate() {
        oracle.finish(&mut |record| encoder.record(record));
        outlet.write_records(index, &mut encoder.lines)?;
        top_flows.merge(&encoder.top_flows);
        reports.push(oracle.report());
    }
    Ok((reports, top_flows))
}
