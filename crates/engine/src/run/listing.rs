//! Flows of a function as others ask for them: the first ones by an order, or those that are to be removed.
//!
//! Entries are looked at once, where they are, by the workers that have them; only as many are kept as are wanted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

use packetloom_nf::connections::Phase;
use packetloom_nf::flows::{AnyEntry, By, Facts, FactsKept, FlowEnds, FlowFacts, Selection};
use packetloom_nf::{Form, PerFlow, summary};
use packetloom_packet::{FlowKey, Timestamp, VlanId};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::Chain;
use crate::layout::{Part, Parts};

/// Flows that are listed at most.
pub const MOST_LISTED: usize = 10_000;

/// A function of a chain, as it is named from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FunctionName {
    /// By its place in the chain, from 0.
    Number(u64),
    /// By its name: all that have it.
    Name(String),
}

impl FromStr for FunctionName {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::Name(text.into()), Self::Number))
    }
}

impl FunctionName {
    /// Whether it is the one at a place, with a name.
    pub fn is(&self, number: usize, nf: &str) -> bool {
        match self {
            Self::Number(asked) => *asked == number as u64,
            Self::Name(asked) => asked == nf,
        }
    }
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "number {number}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// What comes first in a list of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOrder {
    /// Those with the most packets.
    Packets,
    /// Those with the most IP bytes.
    Bytes,
    /// Those with the latest last packets.
    Last,
    /// Those with the earliest first packets.
    First,
}

impl FlowOrder {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Packets, Self::Bytes, Self::Last, Self::First];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Last => "last",
            Self::First => "first",
        }
    }

    fn suits(self, kept: FactsKept) -> bool {
        match self {
            Self::Packets | Self::Bytes => kept.counts,
            Self::Last => true,
            Self::First => kept.first,
        }
    }

    /// The more, the further ahead.
    fn rank(self, facts: &FlowFacts) -> u64 {
        match self {
            Self::Packets => facts.counts.unwrap_or_default()[0],
            Self::Bytes => facts.counts.unwrap_or_default()[1],
            Self::Last => facts.last.unwrap_or_default(),
            Self::First => !facts.first.unwrap_or_default(),
        }
    }
}

/// Which flows are to be listed.
#[derive(Clone, Debug)]
pub struct FlowQuery {
    /// The function; it may be left out where only one suits.
    pub function: Option<FunctionName>,
    /// Which of its flows.
    pub selection: Selection,
    /// Whether only functions suit that track connections.
    pub connections: bool,
    /// Only connections that are so far.
    pub phase: Option<Phase>,
    /// What comes first; otherwise the most bytes, or the latest packets of functions that count none.
    pub order: Option<FlowOrder>,
    /// How many are listed at most, up to [`MOST_LISTED`].
    pub most: usize,
}

/// Which flows are to be removed.
#[derive(Clone, Debug)]
pub struct FlowRemoval {
    /// The function.
    pub function: FunctionName,
    /// Which of its flows.
    pub selection: Selection,
}

/// How many flows were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(title = "What was removed")]
pub struct Removed {
    /// The function's place in the chain, from 0.
    pub function: usize,
    /// Its name.
    pub nf: &'static str,
    /// Flows that it keeps nothing of any more.
    pub removed: u64,
}

/// What is looked for in the entries of a function.
pub(super) struct Scan<'c> {
    /// Its place in the chain, and its name.
    pub(super) function: usize,
    nf: &'static str,
    /// Where its state is.
    pub(super) part: Part,
    words: usize,
    is_by_address: bool,
    facts: Facts<'c>,
    selection: &'c Selection,
    phase: Option<Phase>,
    order: FlowOrder,
    most: usize,
}

/// Flows that a scan has come to.
#[derive(Default)]
pub(super) struct Scanned {
    entries: u64,
    matching: u64,
    /// Those that are the furthest ahead, the last of them at the top.
    ahead: BinaryHeap<Reverse<(u64, Reverse<FlowKey>, FlowFacts)>>,
}

/// A function that suits, by its place.
fn find<'c>(
    chain: &'c Chain,
    asked: Option<&FunctionName>,
    suits: impl Fn(&dyn PerFlow) -> bool,
    what: &str,
) -> Result<(usize, &'c dyn PerFlow, Parts), String> {
    let functions = chain.functions.iter().zip(&chain.layout.parts).enumerate();
    let all: Vec<_> = functions
        .filter_map(|(number, (function, parts))| match (function.form(), parts) {
            (Form::PerFlow(per_flow), Some(parts)) if suits(per_flow) => Some((number, per_flow, *parts)),
            _ => None,
        })
        .collect();
    let name = |number: usize| chain.functions[number].name();
    let list = |of: &[(usize, &dyn PerFlow, Parts)]| {
        let each: Vec<_> = of.iter().map(|&(number, ..)| format!("{number} ({})", name(number))).collect();
        each.join(", ")
    };
    if all.is_empty() {
        return Err(format!("the chain has no function that {what}"));
    }
    let Some(asked) = asked else {
        return match all[..] {
            [one] => Ok(one),
            _ => Err(format!(
                "several functions of the chain suit; expected a function, one of: {}",
                list(&all)
            )),
        };
    };
    let those: Vec<_> = all.iter().copied().filter(|&(number, ..)| asked.is(number, name(number))).collect();
    match those[..] {
        [one] => Ok(one),
        [] => {
            Err(format!("function {asked} is none of the chain that {what}; expected one of: {}", list(&all)))
        }
        _ => {
            Err(format!("several functions are called {asked}; expected a number, one of: {}", list(&those)))
        }
    }
}

impl<'c> Scan<'c> {
    /// For the flows of a query, at a time.
    pub(super) fn list(chain: &'c Chain, query: &'c FlowQuery, now: u64) -> Result<Self, String> {
        let what = if query.connections { "tracks connections" } else { "keeps state for flows" };
        let suits = |function: &dyn PerFlow| !query.connections || function.facts_kept().state;
        let found = find(chain, query.function.as_ref(), suits, what)?;
        let kept = found.1.facts_kept();
        let order = match query.order {
            Some(order) if order.suits(kept) => order,
            Some(order) => {
                let orders =
                    FlowOrder::ALL.iter().filter(|order| order.suits(kept)).map(|order| order.name());
                return Err(format!(
                    "{} does not keep what flows would be in order by, {}; expected {}",
                    chain.functions[found.0].name(),
                    order.name(),
                    orders.collect::<Vec<_>>().join(", ")
                ));
            }
            None if kept.counts => FlowOrder::Bytes,
            None => FlowOrder::Last,
        };
        let most = query.most.min(MOST_LISTED);
        Ok(Self { phase: query.phase, order, most, ..Self::new(chain, found, &query.selection, now)? })
    }

    /// For those that are to be removed, whether they are over or not.
    pub(super) fn remove(chain: &'c Chain, removal: &'c FlowRemoval) -> Result<Self, String> {
        let found = find(chain, Some(&removal.function), |_| true, "keeps state for flows")?;
        Self::new(chain, found, &removal.selection, 0)
    }

    fn new(
        chain: &'c Chain,
        (function, per_flow, parts): (usize, &'c dyn PerFlow, Parts),
        selection: &'c Selection,
        now: u64,
    ) -> Result<Self, String> {
        let (part, nf) = (parts.main, chain.functions[function].name());
        let by = chain.layout.definitions[part.definition].definition.by;
        if selection.tests_vlans() && by != By::VlanFiveTuple {
            return Err(format!(
                "filter: it tests VLANs, which flows of function {function} ({nf}) do not have; expected a filter without vlan, or a meter with \
                 vlan_in_key = true"
            ));
        }
        Ok(Self {
            function,
            nf,
            part,
            words: per_flow.keeps().words,
            is_by_address: by.is_address(),
            facts: per_flow.facts(now),
            selection,
            phase: None,
            order: FlowOrder::Last,
            most: 0,
        })
    }

    /// What the function says of an entry, if it keeps something there.
    fn facts(&self, entry: AnyEntry<'_>) -> Option<FlowFacts> {
        let facts = (self.facts)(entry.state_words(self.part.at, self.words)?)?;
        Some(FlowFacts { last: facts.last.or(Some(entry.last())), ..facts })
    }

    /// Whether an entry is among those that are meant; counts those that the function says something of.
    pub(super) fn is_meant(&self, entry: AnyEntry<'_>, counted: &mut u64) -> bool {
        let is_meant = self.selection.has(&entry.flow(), self.is_by_address);
        *counted += u64::from(is_meant && self.facts(entry).is_some());
        is_meant
    }

    /// Looks at an entry.
    pub(super) fn see(&self, entry: AnyEntry<'_>, scanned: &mut Scanned) {
        let Some(facts) = self.facts(entry) else { return };
        scanned.entries += 1;
        let is_so_far = |phase: Phase| facts.state.is_some_and(|state| state.phase() == phase);
        let flow = entry.flow();
        if !self.phase.is_none_or(is_so_far) || !self.selection.has(&flow, self.is_by_address) {
            return;
        }
        scanned.matching += 1;
        scanned.take(Reverse((self.order.rank(&facts), Reverse(flow), facts)), self.most);
    }

    /// What it has come to, for others; times are as many nanoseconds from wall time.
    pub(super) fn listed(&self, scanned: Scanned, now: u64, wall_offset: i64) -> Listed {
        let Scanned { entries, matching, ahead } = scanned;
        let flows =
            ahead.into_sorted_vec().into_iter().map(|Reverse((_, Reverse(flow), facts))| (flow, facts));
        Listed {
            function: self.function,
            nf: self.nf,
            is_by_address: self.is_by_address,
            entries,
            matching,
            now,
            wall_offset,
            flows: flows.collect(),
        }
    }

    pub(super) fn removed(&self, removed: u64) -> Removed {
        Removed { function: self.function, nf: self.nf, removed }
    }

    /// Adds what another worker has come to.
    pub(super) fn merge(&self, scanned: &mut Scanned, other: Scanned) {
        scanned.entries += other.entries;
        scanned.matching += other.matching;
        other.ahead.into_iter().for_each(|one| scanned.take(one, self.most));
    }
}

impl Scanned {
    fn take(&mut self, one: Reverse<(u64, Reverse<FlowKey>, FlowFacts)>, most: usize) {
        if self.ahead.len() < most {
            self.ahead.push(one);
        } else if let Some(mut last) = self.ahead.peek_mut()
            && one < *last
        {
            *last = one;
        }
    }
}

/// Flows that were asked for.
#[derive(Clone, Debug)]
pub struct Listed {
    function: usize,
    nf: &'static str,
    is_by_address: bool,
    entries: u64,
    matching: u64,
    now: u64,
    wall_offset: i64,
    flows: Vec<(FlowKey, FlowFacts)>,
}

/// Flows of a function.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "Flows of a function")]
pub(crate) struct FlowList {
    /// The function's place in the chain, from 0.
    function: usize,
    /// Its name.
    nf: &'static str,
    /// Flows that it keeps something of.
    entries: u64,
    /// Those of them that were asked for.
    matching: u64,
    /// The time of the answer, in nanoseconds since 1970: over a capture, that of the last packet.
    time: u64,
    /// The first of those that were asked for, by the order that was asked for.
    flows: Vec<ListedFlow>,
}

/// A flow.
#[derive(Serialize, JsonSchema)]
struct ListedFlow {
    /// The flow, as `--flow` takes it.
    flow: String,
    /// IP protocol number, of flows that are not by one address.
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<u8>,
    /// The address; of flows with two ends, that of who sent the first packet, or the lower one where the function does not know that.
    a: String,
    /// Its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    a_port: Option<u16>,
    /// The other end's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    b: Option<String>,
    /// Its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    b_port: Option<u16>,
    /// Its VLAN, where that is part of flows and its packets are in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    /// Packets, of functions that count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    packets: Option<u64>,
    /// Their IP bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// The time of the first packet, in nanoseconds since 1970, of functions that keep it.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    /// The time of the last packet.
    last: u64,
    /// Of connections: new, opening, established, closing or reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    /// The step of the protocol, such as syn-sent, unreplied or time-wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'static str>,
    /// When the connection is gone, if no packet comes before.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

impl Listed {
    /// For machines: [`crate::schema::flow_list`] is its schema.
    pub fn json(&self) -> Value {
        let wall = |nanos: u64| Timestamp::from_nanos(nanos).shifted(self.wall_offset).as_nanos();
        let flows = self.flows.iter().map(|(flow, facts)| {
            let ends = FlowEnds::of(flow, self.is_by_address, facts.from_a);
            let (protocol, a, b) = match ends {
                FlowEnds::Address(address) => (None, (address, None), None),
                FlowEnds::Ends(protocol, [a, b], _) => (Some(protocol), (a.0, Some(a.1)), Some(b)),
            };
            ListedFlow {
                flow: ends.to_string(),
                protocol,
                a: a.0.to_string(),
                a_port: a.1,
                b: b.map(|b| b.0.to_string()),
                b_port: b.map(|b| b.1),
                vlan: flow.vlan.map(VlanId::number),
                packets: facts.counts.map(|counts| counts[0]),
                bytes: facts.counts.map(|counts| counts[1]),
                first: facts.first.map(wall),
                last: wall(facts.last.unwrap_or_default()),
                state: facts.state.map(|state| state.phase().name()),
                step: facts.state.map(|state| state.name()),
                expires: facts.expires.map(wall),
            }
        });
        let list = FlowList {
            function: self.function,
            nf: self.nf,
            entries: self.entries,
            matching: self.matching,
            time: wall(self.now),
            flows: flows.collect(),
        };
        summary::value(&list)
    }
}

impl Removed {
    /// For machines: [`crate::schema::removed`] is its schema.
    pub fn json(&self) -> Value {
        summary::value(self)
    }
}
