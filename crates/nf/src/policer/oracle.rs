//! The slow form: the rules of the RFCs' sections 3 over tokens as fractions of 10^9, in 128 bits.

use std::collections::HashMap;

use packetloom_packet::{DropReason, Verdict};

use super::meter::Colour;
use super::{Action, Mark, PolicerReport, Terms};
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::units::{Size, Throughput};
use crate::{Records, Report};

const SECOND: u128 = 1_000_000_000;

/// Places of the colours in the report.
const GREEN: usize = 0;
const YELLOW: usize = 1;
const RED: usize = 2;

pub(super) struct PolicerOracle {
    terms: Terms,
    /// In the colour-aware mode, the colour of a DSCP that says none.
    others: Option<Colour>,
    /// What becomes of each colour.
    actions: [Action; 3],
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

/// The table of RFC 2597's section 6 by the six bits: a class from 001 to 100, and a drop precedence of 010, 100 or 110.
fn colour_before(dscp: u8, others: Colour) -> usize {
    match dscp {
        0b001_010 | 0b010_010 | 0b011_010 | 0b100_010 => GREEN,
        0b001_100 | 0b010_100 | 0b011_100 | 0b100_100 => YELLOW,
        0b001_110 | 0b010_110 | 0b011_110 | 0b100_110 => RED,
        _ => match others {
            Colour::Green => GREEN,
            Colour::Yellow => YELLOW,
            Colour::Red => RED,
        },
    }
}

/// Section 3 of RFC 2697: the tokens and the colour after a packet of `b` parts that has a colour, `elapsed` nanoseconds after the one
/// before; in the colour-blind mode all are green.
fn single_rate(
    (cir, cbs, ebs): (u128, u128, u128),
    (tc, te): (u128, u128),
    elapsed: u128,
    (b, before): (u128, usize),
) -> ((u128, u128), usize) {
    // What is more than CBS goes on to Te, and what is more than EBS is lost.
    let all = tc + cir * elapsed;
    let tc = if all > cbs { cbs } else { all };
    let te = if te + (all - tc) > ebs { ebs } else { te + (all - tc) };
    if before == GREEN && tc >= b {
        ((tc - b, te), GREEN)
    } else if (before == GREEN || before == YELLOW) && te >= b {
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
    (b, before): (u128, usize),
) -> ((u128, u128), usize) {
    let tc = if tc + cir * elapsed > cbs { cbs } else { tc + cir * elapsed };
    let tp = if tp + pir * elapsed > pbs { pbs } else { tp + pir * elapsed };
    if before == RED || tp < b {
        ((tc, tp), RED)
    } else if before == YELLOW || tc < b {
        ((tc, tp - b), YELLOW)
    } else {
        ((tc - b, tp - b), GREEN)
    }
}

impl PolicerOracle {
    pub(super) fn new(terms: Terms, others: Option<Colour>, actions: [Action; 3]) -> Self {
        Self { terms, others, actions, buckets: HashMap::new(), report: PolicerReport::default() }
    }
}

impl FlowOracle for PolicerOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let Buckets { tc, other, time } = *self.buckets.get(&life)?;
        Some(vec![u64::try_from(tc).ok()?, u64::try_from(other).ok()?, time])
    }

    fn forget(&mut self, life: u64) {
        self.buckets.remove(&life);
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

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &mut packet.ip else { return Verdict::Pass };
        let now = packet.nanos;
        let before = self.others.map_or(GREEN, |others| colour_before(ip.dscp, others));
        let b = (u128::from(ip.bytes) * SECOND, before);
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
        match self.actions[colour] {
            Action::Pass => Verdict::Pass,
            Action::Drop => Verdict::Drop(DropReason::Policer),
            Action::Dscp(Mark(dscp)) => {
                ip.dscp = dscp.number();
                Verdict::Pass
            }
        }
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
