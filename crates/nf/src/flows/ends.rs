//! The end of what functions keep for flows.

use packetloom_packet::FlowKey;
use packetloom_table::states::Ended;

use super::{FlowFunction, Flows, HeldAt, StateAt};
use crate::Records;

/// Records handed out at the end ahead of which an entry is brought in.
const AHEAD: usize = 16;

/// Why a function's state of a flow is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The time since the flow's last packet has reached the timeout.
    Expired,
    /// The table was full, and another flow needed its place.
    Evicted,
    /// The run is over, or the function's part in it, and nobody goes on with the state.
    Run,
    /// Somebody asked for it.
    Removed,
}

impl From<Ended> for End {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Expired => Self::Expired,
            Ended::Evicted => Self::Evicted,
        }
    }
}

/// Brings states into the order in which they are over: by their [ranks](FlowFunction::rank), and those that are equal by their flows.
pub fn in_order<S>(states: &mut [(u128, S)], flow: impl Fn(&S) -> FlowKey) {
    states.sort_unstable_by_key(|&(rank, _)| rank);
    for equal in states.chunk_by_mut(|(one, _), (other, _)| one == other).filter(|equal| equal.len() > 1) {
        equal.sort_by_cached_key(|(_, state)| flow(state));
    }
}

/// How far the states of a function are over that a worker holds at the end of its run.
#[derive(Debug, Default)]
pub struct Ending {
    /// What is left, the first one last, with what it is in order by.
    left: Option<Vec<(u128, HeldAt)>>,
}

impl Ending {
    /// Tells a function with so many words `at` this place of each entry of some more states that are over now, at most of so many; whether
    /// there are more.
    pub fn step(
        &mut self,
        function: &mut dyn FlowFunction,
        (at, words): (StateAt, usize),
        flows: &mut Flows,
        most: usize,
        records: &mut Records<'_>,
    ) -> bool {
        let left = self.left.get_or_insert_with(|| {
            let held = flows.held(at, words).map(|(held, state)| (function.rank(state), held));
            let mut held: Vec<_> = held.collect();
            in_order(&mut held, |&at| flows.entry(at).flow());
            held.reverse();
            held
        });
        for _ in 0..most {
            let Some((_, held)) = left.pop() else { break };
            if let Some((_, ahead)) = left.len().checked_sub(AHEAD).and_then(|ahead| left.get(ahead)) {
                flows.prefetch(*ahead);
            }
            let entry = flows.entry(held);
            if let Some(state) = entry.state_words(at, words) {
                function.on_end(&entry.flow(), state, End::Run, records);
            }
            flows.forget(held, at);
        }
        let more = !left.is_empty();
        if !more {
            self.left = None;
        }
        more
    }
}
