//! When a flow's packets come: bursts with gaps between them, and here and there a long silence.

use super::flow::{Flow, Traits};
use crate::random::Random;

const MICROSECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

/// The least time that a packet of a long flow takes on average.
const LEAST_PER_PACKET: u64 = 20 * MICROSECOND;

/// The percentage of flows of four or more packets that fall silent in mid-life.
const SILENT_SHARE: u32 = 1;

/// Spreads flows and their packets over a capture.
pub(super) struct Pace {
    /// The capture's nanoseconds.
    duration: u64,
    /// The shortest and the longest silence.
    silence: (u64, u64),
}

impl Pace {
    pub(super) fn new(duration: u64) -> Self {
        // Longer than the usual inactive timeout of 30 s, where the capture has room for that.
        let shortest = (35 * SECOND).min(duration / 20 * 11);
        let longest = (125 * SECOND).min(duration / 5 * 4);
        Self { duration, silence: (shortest, longest) }
    }

    /// Gives a new flow with `left` packets its first packet's time and its life's end.
    pub(super) fn begin(&self, flow: &mut Flow, random: &mut Random) {
        let packets = u64::from(flow.left);
        // Lives are uniform over octaves: a millisecond to half a second for the smallest flows,
        // 4 ms to 8.6 s times the logarithm of their size for others.
        let octave = if packets < 4 { random.between(20, 28) } else { random.between(22, 32) };
        let base = (1 << octave) + random.below(1 << octave);
        let mut life = (base * u64::from(1 + packets.ilog2())).max(packets * LEAST_PER_PACKET);
        let mut rest = 0;
        if packets >= 4 && random.percent(SILENT_SHARE) {
            flow.traits.set(Traits::IDLES, true);
            life = life.min(self.duration / 8);
            rest = self.silence.1;
        }
        life = if packets == 1 { 0 } else { life.min(self.duration / 16 * 15) };
        flow.next = random.below(self.duration - life - rest + 1);
        flow.end = flow.next + life;
        flow.burst_gap = clamp(life / packets / 4);
    }

    /// Moves `next` on to the next of the flow's `left` (at least one) packets.
    ///
    /// An eighth of the gaps separate bursts. These are measured by the time that remains, so
    /// that a life comes out about as long as it was meant to be, and never longer.
    #[inline]
    pub(super) fn advance(&self, flow: &mut Flow, random: &mut Random) {
        let bits = random.bits();
        let remaining = flow.end - flow.next;
        let fraction = bits >> 32;
        let gap = if bits & 7 != 0 {
            (fraction * u64::from(flow.burst_gap)) >> 32
        } else {
            // 1/8 · U(0, 1/4) · 7 + 1/8 · U(2, 12.25) is one mean gap.
            let mean = remaining / u64::from(flow.left);
            flow.burst_gap = clamp(mean / 4);
            let gap = 2 * mean + (((mean >> 8) * fraction) >> 32) * 2624;
            if flow.left > 1 { gap.min(remaining / 2) } else { gap }
        };
        flow.next += gap.min(remaining);
        if flow.traits.has(Traits::IDLES) && (flow.left == 1 || bits & 31 == 0) {
            let silence = random.between(self.silence.0, self.silence.1);
            flow.traits.set(Traits::IDLES, false);
            flow.next += silence;
            flow.end += silence;
        }
    }
}

fn clamp(gap: u64) -> u32 {
    u32::try_from(gap).unwrap_or(u32::MAX)
}
