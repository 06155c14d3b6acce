//! The batch form.

use packetloom_packet::Batch;

use super::contact::{self, Headers};
use super::fan_out::{FanOut, Window};
use super::trw::{Test, Walk};
use super::{Action, Contact, Detection, Distinct, Judged, ScanReport};
use crate::flows::{Beginnings, FlowFunction, Flows, Seen, StateAt, Visit};
use crate::{Records, Report};

/// How packets are judged.
pub(super) enum Steps {
    FanOut(FanOut, Distinct, bool),
    Trw(Test),
}

pub(super) struct ScanCpu {
    at: StateAt,
    steps: Steps,
    action: Action,
    seed: u64,
    beginnings: Beginnings,
    report: ScanReport,
}

impl ScanCpu {
    pub(super) fn new(at: StateAt, steps: Steps, action: Action, seed: u64) -> Self {
        let report = ScanReport::new(matches!(steps, Steps::Trw(_)));
        Self { at, steps, action, seed, beginnings: Beginnings::default(), report }
    }
}

/// Judges a batch by a step: from a source's state, a packet and its headers to what was found out.
#[inline]
fn judge<S: bytemuck::Pod>(
    (at, action, report): (StateAt, Action, &mut ScanReport),
    (batch, flows): (&mut Batch, &mut Visit<'_>),
    step: impl Fn(&mut S, &Seen<'_, '_>, &Headers) -> Judged,
) {
    flows.each(at, batch, |mut packet, state: &mut S| {
        let headers = Headers::from(packet.headers().key());
        let judged = step(state, &packet, &headers);
        report.count(judged, packet.bytes);
        if let Judged::Detected { attempts } = judged {
            let [source, _] = headers.ends;
            let source = contact::address(source, headers.version);
            report.detect(Detection { time: packet.now, source, attempts });
        }
        action.verdict(judged)
    });
}

impl FlowFunction for ScanCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn begin(&mut self, packets: usize) {
        self.beginnings.begin(packets);
    }

    fn remember(&mut self, at: StateAt, batch: &mut Batch, flows: &mut Visit<'_>) {
        self.beginnings.remember(at, batch, flows);
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, steps, action, seed, beginnings, report } = self;
        let (own, seed) = ((*at, *action, report), *seed);
        match steps {
            Steps::FanOut(fan_out, distinct, udp) => {
                let step = |window: &mut Window, packet: &Seen<'_, '_>, headers: &Headers| {
                    let opens = contact::opens_connection(headers.tcp_flags)
                        || *udp && headers.is_udp() && beginnings.contains(packet.frame);
                    let contact = opens.then(|| headers.contact(*distinct, seed));
                    fan_out.step(window, packet.now.as_nanos(), contact)
                };
                judge(own, (batch, flows), step);
            }
            Steps::Trw(test) => {
                let step = |walk: &mut Walk, packet: &Seen<'_, '_>, headers: &Headers| {
                    let [source, destination] = headers.ends;
                    let hash = |end| contact::hash(end, headers.version, (0, 0), seed);
                    let contact = if contact::opens_connection(headers.tcp_flags) {
                        Contact::Opens(hash(destination))
                    } else if contact::answers(headers.tcp_flags) {
                        Contact::Answers(hash(source))
                    } else {
                        Contact::None
                    };
                    test.step(walk, packet.now.as_nanos(), contact)
                };
                judge(own, (batch, flows), step);
            }
        }
    }

    fn add(&mut self, counted: &[u64]) {
        self.report.add(counted);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
