//! Which functions of a chain a device takes with their state, and in which stages it runs them.

use std::sync::Arc;

use packetloom_nf::flows::DeviceKernel;
use packetloom_nf::{Form, FunctionSpec};

use super::acls;
use super::kernels::EXPORTS;
use super::records::FIRST_NOTE;
use crate::layout::{Layout, Part, Parts};

/// Notes of a packet's answer: a bit for each flow definition, from [`FIRST_NOTE`] up; those of functions, below the last one, which says that
/// a DSCP is to be written.
const MAX_NOTES: u32 = 15;

pub(super) const MAX_STAGES: usize = 16;

/// Access lists at most.
const MAX_LISTS: usize = 16;

/// A run of functions that share entries.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) definition: usize,
    pub(super) is_first: bool,
    /// Their places in the chain, with their kernels and where their state is; a function that remembers flows is there twice. An access list that keeps
    /// none has the part of the function before it, which has seen the flow when the list is asked.
    pub(super) functions: Vec<(usize, DeviceKernel, Part)>,
    /// The first bit of notes that say what its function exports, where it does: it is the only one then.
    pub(super) exports_note: Option<u32>,
}

/// A function that exports, as the host takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exporter {
    /// Its place in the chain.
    pub(super) function: usize,
    /// The definition that it has to itself.
    pub(super) definition: usize,
    /// The words of its state.
    pub(super) words: usize,
    pub(super) note: u32,
}

impl Stage {
    /// Words of summaries of all functions, if they have such.
    pub(super) fn summary_words(&self) -> Option<usize> {
        self.functions.iter().map(|(_, kernel, _)| kernel.summary_words()).sum()
    }
}

/// How many functions of a chain, from its beginning, a device can run with their state: no others use the same entries. None where none of
/// these has state.
pub fn offloadable(functions: &[Arc<dyn FunctionSpec>], layout: &Layout) -> usize {
    let can = |function: &dyn FunctionSpec| match function.form() {
        Form::PerFlow(per_flow) => match per_flow.kernel() {
            Some(kernel) => !kernel.decides || function.rules().is_some(),
            None => false,
        },
        Form::Standalone(_) => function.is_offloadable() && function.rules().is_some(),
    };
    let mut count = functions.iter().take_while(|function| can(&***function)).count();
    let is_split = |count: usize| {
        let (there, here) = layout.parts.split_at(count);
        let used = |parts: &[Option<Parts>]| -> Vec<usize> {
            let of = |parts: &Parts| [Some(parts.main), parts.remembers];
            parts.iter().flatten().flat_map(of).flatten().map(|part| part.definition).collect()
        };
        let (there, here) = (used(there), used(here));
        there.iter().any(|definition| here.contains(definition))
    };
    let is_too_much = |count: usize| {
        let Split { stages, acls, notes, is_parted, .. } = split(functions, layout, count);
        stages.len() > MAX_STAGES
            || acls.len() > MAX_LISTS
            || definitions(layout, count) as u32 + notes > MAX_NOTES
            || is_parted
    };
    while is_split(count) || is_too_much(count) {
        count -= 1;
    }
    if layout.parts[..count].iter().all(Option::is_none) { 0 } else { count }
}

/// Why a function stays on cores, with those behind it, where it is one that devices run otherwise.
pub(crate) fn why_on_cores(functions: &[Arc<dyn FunctionSpec>], index: usize) -> Option<&'static str> {
    let Form::PerFlow(per_flow) = functions.get(index)?.form() else { return None };
    match per_flow.kernel() {
        None => per_flow.only_on_cores(),
        Some(kernel) => {
            let is_behind = functions[..index].iter().any(|function| function.rewrites());
            (kernel.exports.is_some() && is_behind).then_some("a function before it rewrites headers")
        }
    }
}

/// Definitions that the first functions use.
pub(crate) fn definitions(layout: &Layout, count: usize) -> usize {
    let parts = layout.parts[..count].iter().flatten();
    let used = parts.flat_map(|parts| [Some(parts.main), parts.remembers]).flatten();
    used.map(|part| part.definition + 1).max().unwrap_or(0)
}

/// The first functions of a chain as a device takes them.
#[derive(Debug, Default)]
pub(super) struct Split {
    pub(super) stages: Vec<Stage>,
    /// Before which of these the rules of access lists are found.
    pub(super) acls: Vec<acls::Place>,
    /// Bits of packets' notes that functions need.
    pub(super) notes: u32,
    /// The last stage in which packets are given other addresses or ports.
    pub(super) rewritten: Option<usize>,
    /// Whether it cannot be taken: a list behind such a function parts functions that share entries, and what these are between two looks
    /// at them is not known; or a list that logs stands between two such functions.
    is_parted: bool,
}

pub(super) fn split(functions: &[Arc<dyn FunctionSpec>], layout: &Layout, count: usize) -> Split {
    let mut split = Split::default();
    let first = |parts: &Parts| parts.remembers.unwrap_or(parts.main).definition;
    for (index, (function, parts)) in functions.iter().zip(&layout.parts).enumerate().take(count) {
        let kernel = match function.form() {
            Form::PerFlow(per_flow) => per_flow.kernel(),
            Form::Standalone(_) => None,
        };
        let (Some(mut kernel), Some(Parts { main, remembers })) = (kernel, *parts) else {
            let next = layout.parts[index..count].iter().flatten().next().map(first);
            split.add_list(index, next);
            continue;
        };
        if let Some(part) = remembers {
            let note = split.note(1);
            kernel.set_note(note);
            split.add(index, DeviceKernel::remember(note), part);
        }
        if kernel.decides {
            let note = split.note(acls::NOTE_BITS);
            kernel.set_note(note);
            split.find_rules(index, main.definition, note);
        }
        let exports_note = kernel.exports.map(|_| split.note(EXPORTS));
        // The keys of its flows are those of packets as they come to it.
        split.is_parted |= exports_note.is_some() && split.rewritten.is_some();
        split.add(index, kernel, main);
        if let Some(stage) = split.stages.last_mut() {
            stage.exports_note = exports_note;
        }
        if function.rewrites() {
            // What it hands out are packets between two rewrites, of which answers have the last one only.
            let logs = |acl: &acls::Place| functions[acl.function].hands_out();
            split.is_parted |= split.acls.iter().any(|acl| acl.sees_rewritten && logs(acl));
            split.rewritten = Some(split.stages.len() - 1);
        }
    }
    split
}

impl Split {
    /// The first of so many bits of notes that no other function has.
    fn note(&mut self, bits: u32) -> u32 {
        self.notes += bits;
        (FIRST_NOTE + MAX_NOTES).saturating_sub(self.notes)
    }

    /// Adds a list that keeps no state. Between functions that share entries it is a function as they are, with the part of the one before it;
    /// else it decides between stages.
    fn add_list(&mut self, function: usize, next: Option<usize>) {
        let last = self.stages.last().filter(|stage| Some(stage.definition) == next);
        match last.and_then(|stage| stage.functions.last()) {
            Some(&(_, _, part)) => {
                let note = self.note(acls::NOTE_BITS);
                self.find_rules(function, part.definition, note);
                self.add(function, DeviceKernel::decide(note), part);
            }
            None => self.decide(function, self.stages.len(), None),
        }
    }

    /// Has the rules of a function found before its stage, that of a definition.
    pub(super) fn find_rules(&mut self, function: usize, definition: usize, note: u32) {
        let joins = self.stages.last().is_some_and(|stage| stage.definition == definition);
        let stage = self.stages.len() - usize::from(joins);
        self.is_parted |= self.rewritten == Some(stage);
        self.decide(function, stage, Some(note));
    }

    fn decide(&mut self, function: usize, stage: usize, note: Option<u32>) {
        let sees_rewritten = self.rewritten.is_some();
        self.acls.push(acls::Place { function, stage, note, sees_rewritten });
    }

    fn add(&mut self, index: usize, kernel: DeviceKernel, part: Part) {
        let last = self.stages.last_mut().filter(|stage| stage.definition == part.definition);
        match last {
            Some(stage) => stage.functions.push((index, kernel, part)),
            None => self.stages.push(Stage {
                definition: part.definition,
                is_first: part.is_first,
                functions: vec![(index, kernel, part)],
                exports_note: None,
            }),
        }
    }
}
