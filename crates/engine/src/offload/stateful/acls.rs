//! Access lists of a chain with state: the first rule of each packet that comes to one.
//!
//! A list between two runs of functions that share entries decides there, and sees packets as those before have left them. One among functions
//! that share entries, or whose rules admit connections, is one of these functions: its rules are found before them, for all packets that come to
//! any of them, and noted.

use std::sync::{Arc, PoisonError, RwLock};

use packetloom_classify::NO_RULE;
use packetloom_classify::image::{Algorithm, Image, Target};
use packetloom_device::{Arguments, Device, Entry, Kernel, LaidOut, Layout, Memory, Program, Queue};
use packetloom_nf::flows::{DECISION_BITS, Decision};
use packetloom_nf::{FunctionSpec, Offload};
use packetloom_packet::{MatchKey4, MatchKey6, Verdict};

use super::records::{self, Answer, ENDS, Ipv6Addresses, Record};
use super::{Buffers, Error};
use crate::offload::keys::Tables;
use crate::offload::target;

const ACLS: &str = include_str!("acls.kernel.c");

packetloom_device::arguments! {
    /// What `find_rules` takes.
    struct FindRules as FIND_RULES_PARAMETERS {
        records: read Record [count],
        wide: read Ipv6Addresses [wides],
        answers: write Answer [count],
        wide_answers: read Ipv6Addresses [wides],
        /// Positions of rules, those of this list from `first_begin` on.
        first: write u32 [first_begin + count],
        first_begin: u32,
        count: u32,
        begins: u32,
        note: u32,
        decisions: fixed u32 [..],
        by_default: u32,
        rules: fixed u32x4 [..],
        classes: fixed u32x4 [..],
        filter: fixed u32 [..],
        masks: fixed u32 [..],
        /// Packets that may have wide addresses.
        wides: host,
    }
}

/// Bits of notes that a list needs that is among other functions: the decision, and whether it was taken.
pub(super) const NOTE_BITS: u32 = DECISION_BITS + 1;
/// In place of a position, of packets that did not come to a list: no rule has it.
const NOT_ASKED: u32 = NO_RULE - 1;

/// Rules of one IP version.
#[derive(Debug)]
struct Version {
    /// Where rules change it stays, and only the tables are others.
    program: Program,
    kernel: Arc<Kernel<FindRules<'static>>>,
    tables: Tables,
    /// Packets that a group takes at a time.
    round: u32,
}

/// A list on a device.
#[derive(Debug)]
pub(super) struct Acl {
    pub(super) place: Place,
    /// Its rules as they are now.
    rules: RwLock<Arc<Rules>>,
    /// Groups that fill the device.
    groups: u32,
}

/// The rules of a list at some time, on a device.
#[derive(Debug)]
struct Rules {
    /// What each rule decides, and what is decided where none matches.
    decisions: Memory,
    by_default: u32,
    /// What the function calls its rules, where that is not their positions.
    names: Option<Vec<u32>>,
    versions: [Version; 2],
}

/// What says which rules of a list decided packets, of batches that were judged by the rules as they are.
#[derive(Clone, Debug)]
pub struct Decided {
    note: Option<u32>,
    rules: Arc<Rules>,
}

/// Where a list stands in a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) function: usize,
    /// Runs of functions that end before its rules are found.
    pub(super) stage: usize,
    /// Where notes begin that are for it, if it is among other functions.
    pub(super) note: Option<u32>,
    /// Whether functions before it may have rewritten headers.
    pub(super) sees_rewritten: bool,
}

impl Acl {
    /// Lays out the rules of a function as they are at first and copies them to the device.
    pub(super) fn new(device: &Device, function: &dyn FunctionSpec, place: Place) -> Result<Self, Error> {
        Ok(Self {
            place,
            rules: RwLock::new(Arc::new(Rules::new(device, function, place, 0, None)?)),
            groups: device.description().units * target(device, true).groups_per_unit,
        })
    }

    /// Goes on with the rules after so many changes, with no batch away.
    pub(super) fn change(
        &self,
        device: &Device,
        function: &dyn FunctionSpec,
        changes: usize,
    ) -> Result<(), Error> {
        let before = self.rules();
        let rules = Arc::new(Rules::new(device, function, self.place, changes, Some(&before))?);
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        Ok(())
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// See there.
    pub(super) fn decided(&self) -> Decided {
        Decided { note: self.place.note, rules: self.rules() }
    }
}

impl Decided {
    /// The rule that decided a packet, or [`packetloom_classify::NO_RULE`] for the default; none where that was not what decided. Asked by what
    /// [`Buffers::first`] has of the packet, and its answer.
    pub fn by(&self, first: u32, answer: &Answer) -> Option<u32> {
        let is_decided = match self.note {
            Some(note) => answer.has_note(note + DECISION_BITS),
            None => first != NOT_ASKED,
        };
        let name = |first: u32| self.rules.names.as_ref().and_then(|names| names.get(first as usize));
        is_decided.then(|| name(first).copied().unwrap_or(first))
    }
}

impl Rules {
    /// Lays out the rules of a function after so many changes, and copies them to the device. Kernels of the rules before are used again where they
    /// are the same.
    fn new(
        device: &Device,
        function: &dyn FunctionSpec,
        place: Place,
        changes: usize,
        before: Option<&Self>,
    ) -> Result<Self, Error> {
        let Some(Offload::Acl { rules, verdicts, admits, names }) = function.offload(changes) else {
            let why = format!("function {} has no rules", place.function);
            return Err(packetloom_device::Error::Misuse(why).into());
        };
        // Where rules change, one kernel for any rules serves them all.
        let specialise = !function.has_changing_rules();
        let (algorithm, target) = (Algorithm::default(), target(device, specialise));
        let of = |(position, verdict): (usize, &Verdict)| match verdict {
            Verdict::Drop(_) => Decision::Denies,
            Verdict::Pass if admits.get(position) == Some(&true) => Decision::Admits,
            Verdict::Pass => Decision::Permits,
        };
        let of_rules: Vec<_> = verdicts.iter().enumerate().take(rules.rules.len()).map(of).collect();
        let words = of_rules.chunks((u32::BITS / DECISION_BITS) as usize);
        let word = |rules: &[Decision]| {
            rules.iter().rev().fold(0, |word, &decision| word << DECISION_BITS | decision as u32)
        };
        let decisions: Vec<u32> = words.map(word).chain([0]).collect();
        let by_default = match verdicts.last() {
            Some(Verdict::Drop(_)) => Decision::DeniesByDefault,
            _ => Decision::Permits,
        };
        let [v4, v6] = [0, 1].map(|version| before.map(|before| &before.versions[version]));
        Ok(Self {
            decisions: device.memory_of(bytemuck::cast_slice(&decisions))?,
            by_default: by_default as u32,
            names,
            versions: [
                Version::new(device, &Image::new::<MatchKey4>(&rules, algorithm, &target)?, 4, &target, v4)?,
                Version::new(device, &Image::new::<MatchKey6>(&rules, algorithm, &target)?, 6, &target, v6)?,
            ],
        })
    }
}

impl Acl {
    /// Queues the kernels over a batch of so many packets of some IP versions; the list is the one with this number of those of its chain.
    pub(super) fn launch(
        &self,
        queue: &mut Queue,
        number: u32,
        buffers: &Buffers<'_>,
        packets: u32,
        versions: u32,
    ) -> Result<(), Error> {
        let begin = number * buffers.room;
        let rules = self.rules();
        let Rules { decisions, by_default, versions: of_versions, .. } = &*rules;
        for (version, Version { kernel, tables, round, .. }) in
            of_versions.iter().take(versions as usize).enumerate()
        {
            let [rules, classes, filter, masks] = tables.buffers();
            let arguments = FindRules {
                records: buffers.records,
                wide: buffers.wide,
                answers: buffers.answers,
                wide_answers: buffers.wide_answers,
                first: buffers.first,
                first_begin: begin,
                count: packets,
                begins: (number == 0 && self.place.stage == 0).into(),
                note: self.place.note.unwrap_or(0),
                decisions: decisions.into(),
                by_default: *by_default,
                rules,
                classes,
                filter,
                masks,
                wides: if version == 1 { packets.into() } else { 0 },
            };
            queue.launch(kernel, packets.div_ceil(*round).clamp(1, self.groups), &arguments)?;
        }
        Ok(())
    }
}

impl Version {
    fn new(
        device: &Device,
        image: &Image,
        version: u32,
        target: &Target,
        before: Option<&Self>,
    ) -> Result<Self, Error> {
        let layouts = Layout::declare([Record::LAYOUT, Ipv6Addresses::LAYOUT, Answer::LAYOUT]);
        let source =
            format!("{}#line 1 \"layouts\"\n{layouts}#line 1 \"acls.kernel.c\"\n{ACLS}", image.rounds());
        let number = |name: &str, value: u32| (name.to_owned(), format!("{value}u"));
        let mut defines: Vec<_> =
            records::defines().chain(Verdict::defines()).chain(Decision::defines()).collect();
        defines.extend([
            ("VERSION".to_owned(), version.to_string()),
            number("ANSWER_ENDS", ENDS),
            number("NOT_ASKED", NOT_ASKED),
            FindRules::define(),
        ]);
        let program = Program {
            name: "acls",
            source,
            defines,
            group: target.group,
            groups_per_unit: target.groups_per_unit,
            stays: false,
            local: image.local,
            entries: vec![Entry::of::<FindRules<'_>>("find_rules")],
        };
        let kernel = match before.filter(|before| before.program == program) {
            Some(before) => Arc::clone(&before.kernel),
            None => {
                let loaded = device.build(&program)?.remove(0);
                // SAFETY: the kernel goes through `count` packets, of which all memory has as many, and looks rules up in tables that are the
                // image's, as that was laid out; of decisions there is one for each rule. Only here are the arguments made.
                #[allow(unsafe_code)]
                let kernel = unsafe { Kernel::new(loaded)? };
                Arc::new(kernel)
            }
        };
        Ok(Self {
            program,
            kernel,
            tables: Tables::new(device, image)?,
            round: image.round * (target.group / target.lanes),
        })
    }
}
