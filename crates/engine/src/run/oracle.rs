//! Packet by packet through the slow forms, with the oracle's own parser.

use std::collections::HashMap;
use std::net::IpAddr;

use packetloom_io::Polled;
use packetloom_nf::flows::{
    AnyEntry, End, FUNCTIONS, FlowName, FlowOracle, Found, OracleFlows, Role, SavedFlow, V4, V6,
    key_and_functions,
};
use packetloom_nf::oracle::{OracleIp, OraclePacket};
use packetloom_nf::{Form, Oracle, Report};
use packetloom_packet::key::halves;
use packetloom_packet::{Address, Batch, DropReason, Dscp, End as PacketEnd, Reject, Rewrite, Verdict};

use super::lifecycle::{ChainSwap, Lifecycle, Runner};
use super::listing::Scan;
use super::{Intake, Outlet};
use crate::layout::{Part, Parts, Used};
use crate::outcome::TopFlows;
use crate::pipeline::{Before, Encoder, WorkerReport};
use crate::state::Saved;
use crate::{Chain, Error, Plan, State};

/// A function's slow form.
enum Slow {
    Standalone(Box<dyn Oracle>),
    PerFlow(Box<dyn FlowOracle>, Parts),
}

impl Slow {
    /// That of a chain's function.
    fn new(chain: &Chain, function: usize) -> Self {
        match (chain.functions[function].form(), chain.layout.parts[function]) {
            (Form::Standalone(function), _) => Self::Standalone(function.oracle()),
            (Form::PerFlow(function), Some(parts)) => Self::PerFlow(function.oracle(), parts),
            (Form::PerFlow(_), None) => unreachable!("the layout has a part for each of them"),
        }
    }

    fn go_on(&mut self, counted: &dyn Report) {
        match self {
            Self::Standalone(oracle) => oracle.go_on(counted),
            Self::PerFlow(oracle, _) => oracle.go_on(counted),
        }
    }
}

/// A chain in its slow form.
struct SlowChain {
    stages: Vec<(Slow, Encoder)>,
    flows: Vec<OracleFlows>,
}

impl SlowChain {
    fn new(chain: &Chain) -> Self {
        let definitions = chain.layout.definitions.iter();
        let functions = chain.functions.iter().enumerate();
        let functions =
            functions.map(|(number, function)| (Slow::new(chain, number), Encoder::new(&**function)));
        Self {
            stages: functions.collect(),
            flows: definitions.map(|used| OracleFlows::new(used.definition.clone())).collect(),
        }
    }

    /// The functions that keep state for a definition, in the order of their words, and whether they judge packets by it.
    fn parts<'a>(
        stages: &'a mut [(Slow, Encoder)],
        used: &'a Used,
        definition: usize,
    ) -> impl Iterator<Item = (&'a mut Box<dyn FlowOracle>, usize, bool)> {
        stages.iter_mut().enumerate().filter_map(move |(number, (slow, _))| {
            let (_, words) = used.functions.iter().find(|(function, _)| *function == number)?;
            let Slow::PerFlow(oracle, parts) = slow else { return None };
            Some((oracle, *words, parts.main.definition == definition))
        })
    }

    /// Begins with the flows of a state, whose lives are above all that there were.
    fn restore(&mut self, chain: &Chain, mut state: State, lives: u64) {
        for (definition, used) in chain.layout.definitions.iter().enumerate() {
            let (entries, words, counts) = state.held(definition);
            let mut saved = Vec::new();
            let mut kept = HashMap::new();
            for (entries, key_words) in entries.iter().zip([V4, V6]) {
                for entry in entries.chunks(key_words + 1 + words) {
                    let mut key = entry[..key_words].to_vec();
                    let (last, has_state) = key_and_functions(key[key_words - 1]);
                    key[key_words - 1] = last;
                    kept.insert(key.clone(), (has_state, entry[key_words + 1..].to_vec()));
                    saved.push(SavedFlow { key, last: entry[key_words] });
                }
            }
            let restored = self.flows[definition].restore(saved, counts, lives);
            let ended = self.flows[definition].take_ended();
            for (flow, life) in restored {
                let has_ended = ended.iter().any(|&(other, ..)| other == life);
                if has_ended && !used.hears_ends {
                    continue;
                }
                let (has_state, words) = &kept[&flow.key];
                let mut words = &words[..];
                for (number, (oracle, own, is_main)) in
                    Self::parts(&mut self.stages, used, definition).enumerate()
                {
                    let (mine, rest) = words.split_at(own);
                    words = rest;
                    match (has_state >> number & 1 == 1, is_main) {
                        (false, _) => {}
                        (true, true) => oracle.load(life, mine),
                        (true, false) => oracle.recall(life),
                    }
                }
            }
            self.end(definition, ended);
        }
    }

    /// What a function has counted so far.
    fn report(&self, function: usize) -> Box<dyn Report> {
        match &self.stages[function].0 {
            Slow::Standalone(oracle) => oracle.report(),
            Slow::PerFlow(oracle, parts) => oracle.report(&self.flows[parts.main.definition]),
        }
    }

    /// Tells the functions of a definition of lives that ended.
    fn end(&mut self, definition: usize, ended: Vec<(u64, FlowName, End)>) {
        for (slow, encoder) in &mut self.stages {
            if let Slow::PerFlow(oracle, parts) = slow
                && parts.main.definition == definition
            {
                for (life, flow, end) in &ended {
                    oracle.on_end(*life, flow, *end, &mut |record| encoder.record(record));
                }
            }
        }
    }

    /// What becomes of a packet of a batch, its number in the run; the oracle's parser reads it.
    fn judge(
        &mut self,
        chain: &Chain,
        (batch, index): (&mut Batch, usize),
        number: u64,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        let Self { stages, flows } = self;
        for (slow, _) in &mut *stages {
            match slow {
                Slow::Standalone(oracle) => oracle.reach(number),
                Slow::PerFlow(oracle, _) => oracle.reach(number),
            }
        }
        let frame = batch.frames()[index];
        let mut packet =
            OraclePacket::new(frame.time.as_nanos(), frame.link, batch.bytes(index), frame.wire_len);
        packet.wall_offset = batch.wall_offset();
        packet.port = frame.port;
        packet.egress = batch.egress().get(index).copied();
        packet.interface = batch.port_name(index).map(Into::into);
        packet.out = batch.egress_name(index).map(Into::into);
        let mut verdict = match &packet.ip {
            Ok(_) => Verdict::Pass,
            Err(reject) => chain.settings.run.policy().verdict(*reject),
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
                    verdict = oracle.step(&mut packet);
                    log(outlet, index, oracle.logged(), number, &packet)?;
                }
                Slow::PerFlow(oracle, Parts { main, remembers }) => {
                    let is_own = chain.layout.definitions[main.definition].is_own;
                    if is_own && !oracle.select(&packet) {
                        continue;
                    }
                    let ip = if is_own { packet.ip.clone() } else { arrived.clone() };
                    let mut find = |part: Part| {
                        let found = &mut found[part.definition];
                        if let (true, Ok(ip)) = (part.is_first, &ip) {
                            *found = flows[part.definition].find_or_insert(&packet, ip);
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
                        Found::Flow(flow) => {
                            oracle.step(&mut packet, &flow, &mut |record| encoder.record(record))
                        }
                        Found::Dropped => {
                            verdict = Verdict::Drop(DropReason::FlowTableFull);
                            continue;
                        }
                        Found::Without(role) => oracle.step_without(&mut packet, role),
                    };
                    log(outlet, index, oracle.logged(), number, &packet)?;
                }
            }
        }
        for definition in 0..self.flows.len() {
            let ended = self.flows[definition].take_ended();
            self.end(definition, ended);
        }
        batch.judge().0[index] = verdict;
        if packet.mark != 0 {
            batch.set_mark(index, packet.mark);
        }
        rewrite(batch, index, arrived.as_ref(), packet.ip.as_ref());
        Ok(())
    }
}

impl Runner for SlowChain {
    fn save(&mut self, chain: &Chain) -> Result<State, Error> {
        let Self { stages, flows } = self;
        let used = chain.layout.definitions.iter().zip(flows).enumerate();
        let held = used.map(|(definition, (used, flows))| {
            let mut saved = Saved { counts: flows.counts(), ..Saved::default() };
            for (SavedFlow { key, last }, life) in flows.save() {
                let mut entry = [&key[..], &[last]].concat();
                for (number, (oracle, words, is_main)) in Self::parts(stages, used, definition).enumerate() {
                    let kept = match is_main {
                        true => oracle.save(life),
                        false => oracle.is_remembered(life).then(Vec::new),
                    };
                    if kept.is_some() {
                        entry[key.len() - 1] += 1 << (FUNCTIONS as usize + number);
                    }
                    if let Some(text) = oracle.text(life).filter(|_| is_main && kept.is_some()) {
                        let whole = std::array::from_fn(|word| key.get(word).copied().unwrap_or(0));
                        saved.texts.insert((number, key.len() != V4, whole), text);
                    }
                    entry.extend(kept.unwrap_or_else(|| vec![0; words]));
                }
                saved.entries[usize::from(key.len() != V4)].extend(entry);
            }
            saved
        });
        Ok(State::of(&chain.functions, &chain.layout, held))
    }

    fn remove(&mut self, chain: &Chain, scan: &Scan<'_>, outlet: &mut Outlet<'_>) -> Result<u64, Error> {
        let Part { definition, at, .. } = scan.part;
        let flows = &self.flows[definition];
        let held: Vec<_> = flows.names().zip(flows.save()).collect();
        let mut removed = 0;
        for ((flow, life), (SavedFlow { mut key, last }, _)) in held {
            let (Slow::PerFlow(oracle, _), encoder) = &mut self.stages[scan.function] else { continue };
            let Some(words) = oracle.save(life) else { continue };
            let key_words = key.len();
            key[key_words - 1] += 1 << (FUNCTIONS + at.function);
            let entry = [&key[..], &[last], &vec![0; at.word], &words].concat();
            if !scan.is_meant(AnyEntry::saved(&entry, key_words), &mut removed) {
                continue;
            }
            oracle.on_end(life, &flow, End::Removed, &mut |record| encoder.record(record));
            oracle.forget(life);
            let mut others = Self::parts(&mut self.stages, &chain.layout.definitions[definition], definition);
            if others.all(
                |(other, _, is_main)| {
                    if is_main { other.save(life).is_none() } else { !other.is_remembered(life) }
                },
            ) {
                self.flows[definition].end(&flow);
            }
        }
        self.write_records(outlet)?;
        Ok(removed)
    }

    fn drain(&mut self, ending: &[usize]) -> Result<bool, Error> {
        for &function in ending {
            let (slow, encoder) = &mut self.stages[function];
            let Slow::PerFlow(oracle, parts) = slow else { continue };
            let mut held: Vec<_> = self.flows[parts.main.definition].names().collect();
            held.sort_by_key(|&(flow, life)| (oracle.rank(life), flow));
            for (flow, life) in held {
                oracle.on_end(life, &flow, End::Run, &mut |record| encoder.record(record));
            }
        }
        Ok(false)
    }

    fn write_records(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let mut stages = self.stages.iter_mut().enumerate();
        stages.try_for_each(|(function, (_, encoder))| outlet.write_records(function, &mut encoder.records))
    }

    fn reports(
        &mut self,
        _chain: &Chain,
        leaving: &[usize],
    ) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
        let mut top_flows = TopFlows::default();
        let reports = leaving.iter().map(|&function| {
            top_flows.merge(&self.stages[function].1.top_flows);
            self.report(function)
        });
        Ok((reports.collect(), top_flows))
    }

    fn counted(&mut self, chain: &Chain) -> Result<WorkerReport, Error> {
        let all: Vec<_> = (0..self.stages.len()).collect();
        let (reports, top_flows) = self.reports(chain, &all)?;
        let flows = self.flows.iter().map(OracleFlows::counts).collect();
        Ok(WorkerReport { reports, top_flows, flows, state: None })
    }

    fn change(&mut self, plan: &Plan, function: usize) -> Result<(), Error> {
        let counted = self.report(function);
        let next = Slow::new(plan.chain(), function);
        let Self { stages, flows } = self;
        let slow = &mut stages[function].0;
        let old = std::mem::replace(slow, next);
        slow.go_on(&*counted);
        if let (Slow::PerFlow(old, parts), Slow::PerFlow(new, _)) = (old, slow) {
            for (_, life) in flows[parts.main.definition].save() {
                if let Some(words) = old.save(life) {
                    new.load(life, &words);
                }
            }
        }
        Ok(())
    }

    fn swap(&mut self, plan: &Plan, swap: ChainSwap) -> Result<(), Error> {
        let ChainSwap { before, state, .. } = swap;
        let chain = plan.chain();
        let lives = self.flows.iter().map(OracleFlows::lives).max().unwrap_or_default();
        let Self { mut stages, flows } = Self::new(chain);
        for ((slow, _), before) in stages.iter_mut().zip(&before) {
            if let Before::OtherRules(before) = before {
                slow.go_on(&*self.report(*before));
            }
        }
        self.flows = flows;
        let mut old: Vec<_> = self.stages.drain(..).map(Some).collect();
        for ((slow, encoder), before) in stages.into_iter().zip(before) {
            let before = if let Before::Same(before) = before { old[before].take() } else { None };
            self.stages.push(match (before, slow) {
                // At its new place.
                (Some((Slow::PerFlow(oracle, _), encoder)), Slow::PerFlow(_, parts)) => {
                    (Slow::PerFlow(oracle, parts), encoder)
                }
                (Some(before), _) => before,
                (None, slow) => (slow, encoder),
            });
        }
        self.restore(chain, state, lives);
        Ok(())
    }
}

pub(super) fn run(
    lifecycle: &mut Lifecycle<'_, '_>,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<WorkerReport, Error> {
    let mut slow = SlowChain::new(lifecycle.chain());
    if let Some(state) = lifecycle.restored() {
        slow.restore(lifecycle.chain(), state, 0);
    }
    let mut batch = Batch::new(lifecycle.chain().settings.run.batch.get());
    let mut number: u64 = 0;
    loop {
        let at = intake.position();
        let mut source = || intake.report();
        intake.until = lifecycle.between_batches(at, &mut slow, outlet, &mut source)?;
        outlet.tell(intake, lifecycle.notice());
        match intake.poll(&mut batch)? {
            Polled::Frames => {}
            Polled::Nothing => {
                // It goes on all the same.
                outlet.publish_statistics();
                intake.rest()?;
                continue;
            }
            Polled::End => break,
        }
        for (_, encoder) in &mut slow.stages {
            encoder.wall_offset = batch.wall_offset();
        }
        // For what is written out: rewrites need keys. Verdicts are the oracle's.
        batch.parse(lifecycle.chain().settings.run.policy());
        for index in 0..batch.len() {
            slow.judge(lifecycle.chain(), (&mut batch, index), number, outlet)?;
            number += 1;
        }
        outlet.deliver(&mut batch)?;
        outlet.write_logs()?;
        for (index, (_, encoder)) in slow.stages.iter_mut().enumerate() {
            if encoder.records.are_many() || outlet.live {
                outlet.write_records(index, &mut encoder.records)?;
            }
        }
    }
    let state = lifecycle.last_state(intake.position(), &mut slow)?;
    outlet.outputs.linger();
    let all: Vec<_> = (0..slow.stages.len()).collect();
    if state.is_none() {
        slow.drain(&all)?;
    }
    slow.write_records(outlet)?;
    Ok(WorkerReport { state, ..slow.counted(lifecycle.chain())? })
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
        (PacketEnd::Source, (before.source, before_ports.0), (after.source, after_ports.0)),
        (PacketEnd::Destination, (before.destination, before_ports.1), (after.destination, after_ports.1)),
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
        batch.set_dscp(frame as u32, dscp);
    }
}

/// Logs a packet for each of the rules that ask for it.
fn log(
    outlet: &mut Outlet<'_>,
    function: usize,
    rules: &[u32],
    number: u64,
    packet: &OraclePacket,
) -> Result<(), Error> {
    let Some(record) = packet.record().filter(|_| !rules.is_empty()) else { return Ok(()) };
    rules.iter().try_for_each(|&rule| outlet.log(function, rule, number, &record, None))
}
