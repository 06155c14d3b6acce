//! The slow form: the rules of the RFCs' sections 3 over tokens as fractions of 10^9, in 128 bits.

use std::collections::HashMap;

use packetloom_packet::{DropReason, Verdict};

use super::{Action, PolicerReport, Terms};
use crate::Report;
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::units::{Size, Throughput};

const SECOND: u128 = 1_000_000_000;

/// Places of the colours in the report.
const GREEN: usize = 0;
const YELLOW: usize = 1;
const RED: usize = 2;

pub(super) struct PolicerOracle {
    terms: Terms,
    yellow: Action,
    red: Action,
    buckets: HashMap<u64, Buckets>,
    report: PolicerReport,
}

/// Parts of 10^-9 tokens in Tc and in Te or Tp, and when they were counted.
#[derive(Clone, Copy)]
struct Buckets {
    tc: u128,
    other: u128,
    time: u64,
}

/// Bytes per second are parts per nanosecond.
fn rate(rate: Throughput) -> u128 {
    rate.parts().0.into()
}

fn size(size: Size) -> u128 {
    u128::from(size.parts().0) * SECOND
}

/// Section 3 of RFC 2697: the tokens and the colour after a packet of `b` parts, `elapsed` nanoseconds after the one before.
fn single_rate(
    (cir, cbs, ebs): (u128, u128, u128),
    (tc, te): (u128, u128),
    elapsed: u128,
    b: u128,
) -> ((u128, u128), usize) {
    // What is more than CBS goes on to Te, and what is more than EBS is lost.
    let all = tc + cir * elapsed;
    let tc = if all > cbs { cbs } else { all };
    let te = if te + (all - tc) > ebs { ebs } else { te + (all - tc) };
    if tc >= b {
        ((tc - b, te), GREEN)
    } else if te >= b {
        ((tc, te - b), YELLOW)
    } else {
        ((tc, te), RED)
    }
}

/// Section 3 of RFC 2698.
fn two_rate(
    (cir, cbs, pir, pbs): (u128, u128, u128, u128),
    (tc, tp): (u128, u128),
    elapsed: u128,
    b: u128,
) -> ((u128, u128), usize) {
    let tc = if tc + cir * elapsed > cbs { cbs } else { tc + cir * elapsed };
    let tp = if tp + pir * elapsed > pbs { pbs } else { tp + pir * elapsed };
    if tp < b {
        ((tc, tp), RED)
    } else if tc < b {
        ((tc, tp - b), YELLOW)
    } else {
        ((tc - b, tp - b), GREEN)
    }
}

impl PolicerOracle {
    pub(super) fn new(terms: Terms, yellow: Action, red: Action) -> Self {
        Self { terms, yellow, red, buckets: HashMap::new(), report: PolicerReport::default() }
    }
}

impl FlowOracle for PolicerOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let Buckets { tc, other, time } = *self.buckets.get(&life)?;
        Some(vec![u64::try_from(tc).ok()?, u64::try_from(other).ok()?, time])
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        // No bucket holds more than it does now; what it held more is lost.
        let (tc, other) = match self.terms {
            Terms::SingleRate { cbs, ebs, .. } => (size(cbs), size(ebs)),
            Terms::TwoRate { cbs, pbs, .. } => (size(cbs), size(pbs)),
        };
        let (tc, other) = (tc.min(words[0].into()), other.min(words[1].into()));
        self.buckets.insert(life, Buckets { tc, other, time: words[2] });
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        let now = packet.nanos;
        let b = u128::from(ip.bytes) * SECOND;
        let held = self.buckets.get(&flow.life).copied();
        let ((tc, other), colour, time) = match self.terms {
            Terms::SingleRate { cir, cbs, ebs } => {
                let full = Buckets { tc: size(cbs), other: size(ebs), time: now };
                let Buckets { tc, other, time } = held.unwrap_or(full);
                let elapsed = u128::from(now.saturating_sub(time));
                let (left, colour) = single_rate((rate(cir), size(cbs), size(ebs)), (tc, other), elapsed, b);
                (left, colour, time)
            }
            Terms::TwoRate { cir, cbs, pir, pbs } => {
                let full = Buckets { tc: size(cbs), other: size(pbs), time: now };
                let Buckets { tc, other, time } = held.unwrap_or(full);
                let elapsed = u128::from(now.saturating_sub(time));
                let agreed = (rate(cir), size(cbs), rate(pir), size(pbs));
                let (left, colour) = two_rate(agreed, (tc, other), elapsed, b);
                (left, colour, time)
            }
        };
        self.buckets.insert(flow.life, Buckets { tc, other, time: now.max(time) });
        let counts = &mut self.report.colours[colour];
        counts[0] += 1;
        counts[1] += u64::from(ip.bytes);
        let is_dropped = match colour {
            GREEN => false,
            YELLOW => self.yellow == Action::Drop,
            _ => self.red == Action::Drop,
        };
        if is_dropped { Verdict::Drop(DropReason::Policer) } else { Verdict::Pass }
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
