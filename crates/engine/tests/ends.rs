//! A function that wants to know what becomes of its state hears of each life of a flow once, however the chain is run.

#![allow(missing_docs)]

mod support;

use std::any::Any;
use std::collections::HashMap;

use packetloom_nf::flows::{
    By, End, FlowFunction, FlowName, FlowOracle, Flows, OracleFlow, OracleFlows, StateAt, StateSpec, Visit,
};
use packetloom_nf::oracle::OraclePacket;
use packetloom_nf::{Form, FunctionSpec, PerFlow, Records, Report};
use packetloom_packet::{Batch, FlowKey, Key, MatchKey4, MatchKey6, Verdict};
use proptest::prelude::*;
use serde_json::json;
use support::{How, capture, plan, results};

/// Counts the packets of each source until its state is over.
#[derive(Clone, Debug)]
struct Ender;

impl FunctionSpec for Ender {
    fn name(&self) -> &'static str {
        "ender"
    }

    fn describe(&self) -> Vec<String> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Ender {
    fn keeps(&self) -> StateSpec {
        StateSpec { flows: None, by: &[By::Source], words: 1 }
    }

    fn hears_ends(&self) -> bool {
        true
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(Fast { at, ended: Ended::default() })
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::<Slow>::default()
    }
}

/// Lives that ended, and their packets, by why.
#[derive(Clone, Debug, Default)]
struct Ended([[u64; 2]; 3]);

impl Ended {
    fn add(&mut self, end: End, packets: u64) {
        let [lives, all] = &mut self.0[end as usize];
        *lives += 1;
        *all += packets;
    }
}

impl Report for Ended {
    fn merge(&mut self, other: &dyn Report) {
        let Self(other) = (other as &dyn Any).downcast_ref().expect("the same function's");
        self.0.iter_mut().flatten().zip(other.iter().flatten()).for_each(|(own, other)| *own += other);
    }

    fn json(&self) -> serde_json::Value {
        json!({ "ended": self.0 })
    }

    fn rows(&self) -> Vec<(String, String)> {
        vec![]
    }
}

struct Fast {
    at: StateAt,
    ended: Ended,
}

impl FlowFunction for Fast {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        flows.each(self.at, batch, |_, packets: &mut u64| {
            *packets += 1;
            Verdict::Pass
        });
    }

    fn on_end(&mut self, _flow: &FlowKey, state: &[u64], end: End, _records: &mut Records<'_>) {
        self.ended.add(end, state[0]);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.ended.clone())
    }
}

#[derive(Default)]
struct Slow {
    packets: HashMap<u64, u64>,
    ended: Ended,
}

impl FlowOracle for Slow {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        Some(vec![*self.packets.get(&life)?])
    }

    fn forget(&mut self, life: u64) {
        self.packets.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        self.packets.insert(life, words[0]);
    }

    fn step(&mut self, _packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        *self.packets.entry(flow.life).or_default() += 1;
        Verdict::Pass
    }

    fn on_end(&mut self, life: u64, _flow: &FlowName, end: End, _records: &mut Records<'_>) {
        if let Some(packets) = self.packets.remove(&life) {
            self.ended.add(end, packets);
        }
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.ended.clone())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_life_ends_once(
        // Seconds from packet to packet: state is forgotten after 60.
        packets in prop::collection::vec((0u64..30, 0u32..8, any::<bool>(), any::<bool>()), 1..300),
    ) {
        let mut now = 0;
        let capture = capture(packets.iter().map(|&(seconds, source, is_v6, is_udp)| {
            now += seconds * 1_000_000_000;
            let protocol = if is_udp { 17 } else { 6 };
            let key = match is_v6 {
                true => Key::V6(MatchKey6 { source: [1, source.into()], protocol, ..MatchKey6::default() }),
                false => Key::V4(MatchKey4 { source, protocol, ..MatchKey4::default() }),
            };
            (now, key)
        }));
        // Beside one that keeps more in the entry, and one with another definition, before and behind it.
        let chain = "[[chain]]\nnf = \"counter\"\n[[chain]]\nnf = \"counter\"\nflows = \"source\"\n\
            [[chain]]\nnf = \"counter\"\n";
        let summary = |settings, functions: Vec<(usize, Box<dyn FunctionSpec>)>| {
            results(chain, &capture, How { settings, functions, ..How::default() }).0.summary
        };
        let enders = || -> Vec<(usize, Box<dyn FunctionSpec>)> { vec![(1, Box::new(Ender)), (4, Box::new(Ender))] };
        let oracle = summary("device = \"oracle\"", enders());
        for function in [1, 4] {
            let ended = &oracle["functions"][function]["ended"];
            let sum = |what: usize| (0..3).map(|end| ended[end][what].as_u64().expect("a number")).sum::<u64>();
            prop_assert_eq!(sum(1), packets.len() as u64);
            prop_assert_eq!(Some(sum(0)), oracle["flows"]["source"]["created"].as_u64());
        }
        for settings in ["", "batch = 7", "workers = 2", "workers = 7\nbatch = 5"] {
            prop_assert_eq!(summary(settings, enders()), oracle.clone(), "{}", settings);
        }
    }
}

/// Workers do not share the tables of such a function, so packets are spread by its flows; others' tables are shared.
#[test]
fn packets_are_spread_by_what_ends() {
    use packetloom_engine::Plan;
    use packetloom_engine::chain::Chain;
    let spread = |chain: &str, ender: bool| {
        let (settings, mut functions) = {
            let folder = std::path::Path::new("");
            let context = packetloom_nf::Context { folder, ignore_flags: false };
            Chain::parse("chain", chain, context).expect("a good chain").into_parts()
        };
        if ender {
            functions.push(std::sync::Arc::new(Ender));
        }
        let chain = Chain::new(settings, functions, &std::collections::BTreeMap::new()).expect("a chain");
        let plan = Plan::new(chain);
        (plan.workers(), plan.spread())
    };
    let run = "[run]\nworkers = 3\n";
    let of = |nf: &str| format!("[[chain]]\nnf = \"{nf}\"\n{run}");
    assert_eq!(plan("", "workers = 3").workers(), 3);
    assert_eq!(spread(&of("counter"), false), (3, By::FiveTuple));
    assert_eq!(spread(&of("counter"), true), (3, By::Source));
    assert_eq!(spread(&of("meter"), false), (3, By::FiveTuple));
    // VLANs are parts of such flows: who has a definition by 5-tuple to itself goes with them.
    let by_vlan = "[[chain]]\nnf = \"meter\"\nvlan_in_key = true\n";
    assert_eq!(spread(&format!("{by_vlan}{run}"), false), (3, By::FiveTuple));
    assert_eq!(spread(&format!("{by_vlan}{}", of("meter")), false), (3, By::FiveTuple));
    // No way to spread packets suits both.
    assert_eq!(spread(&of("meter"), true).0, 1);
    assert_eq!(spread(&of("conntrack"), true).0, 1);
}
