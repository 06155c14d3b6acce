//! Chains of rules that jump to each other, as Netfilter's, made into one list of which the first rule to match decides.
//!
//! A jump's rules apply to what matches both. Packets that come back from a chain, because they matched none of its rules that
//! decide or one that returns, meet the rules after the jump, as they would in one list. What is left to do is to keep packets
//! that returned away from the rest of a chain ([`Region::without`]), or, in a base chain, to give them the policy's verdict.
//!
//! What has no equal and is left out leaves a gap at each place where its chain is called ([`crate::gaps`]).

use std::ops::Range;

use super::Error;
use super::builder::{Builder, Fault};
use super::mistakes::Mistakes;
use super::region::Region;
use crate::{Action, Rule};

/// Chains that may be inside each other. Netfilter's own limit is 16.
const MAX_DEPTH: usize = 32;
/// Fields of regions compared at most: a bound on the time that chains which call each other can take.
const MAX_WORK: usize = 1 << 24;
/// Parts that the packets of one call of a chain may fall into.
const MAX_PARTS: usize = 1 << 14;

/// What a rule does with a packet that matches it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    /// Decides.
    Decide(Action),
    /// Goes on in another chain and comes back.
    Jump(usize),
    /// Goes on in another chain and comes back to where this one was called.
    Goto(usize),
    /// Comes back to where the chain was called; in a base chain the policy decides.
    Return,
}

/// A rule of a chain.
#[derive(Debug)]
pub(super) struct ChainRule {
    pub(super) line: u32,
    /// The number of the statement that it is from.
    pub(super) origin: u32,
    /// It matches what is in one of them.
    pub(super) regions: Vec<Region>,
    pub(super) verdict: Verdict,
    pub(super) log: bool,
    pub(super) comment: Option<Box<str>>,
}

/// A line of a chain.
#[derive(Debug)]
pub(super) enum Entry {
    /// A rule.
    Rule(ChainRule),
    /// A note of the packets that match, and nothing else.
    Log { line: u32, origin: u32, regions: Vec<Region> },
    /// What there are no words for.
    Unsupported(Unsupported),
}

impl Entry {
    /// The chains in which packets may go on.
    pub(super) fn jumps(&self) -> impl Iterator<Item = usize> {
        let (own, others) = match self {
            Self::Rule(ChainRule { verdict: Verdict::Jump(chain) | Verdict::Goto(chain), .. }) => {
                (Some(*chain), &[][..])
            }
            Self::Rule(_) | Self::Log { .. } => (None, &[][..]),
            Self::Unsupported(unsupported) => (None, unsupported.effect.jumps()),
        };
        own.into_iter().chain(others.iter().copied())
    }
}

/// A construct without an equal.
#[derive(Debug)]
pub(super) struct Unsupported {
    pub(super) line: u32,
    /// The number of the statement that it is from: the line unless it is said.
    pub(super) origin: u32,
    pub(super) construct: String,
    pub(super) effect: Effect,
    /// It matches at most what is in one of them; `None` is everything.
    pub(super) regions: Option<Vec<Region>>,
}

impl Unsupported {
    /// One that may match any packet and decide it.
    pub(super) fn new(line: u32, construct: String) -> Self {
        Self { line, origin: line, construct, effect: Effect::Decides { jumps: Vec::new() }, regions: None }
    }

    /// The same of one that matches at most what is in one of these regions.
    #[must_use]
    pub(super) fn within(self, regions: Vec<Region>) -> Self {
        Self { regions: Some(regions), ..self }
    }

    /// The same from a statement of this number.
    #[must_use]
    pub(super) fn of(self, origin: u32) -> Self {
        Self { origin, ..self }
    }

    /// The same with another effect.
    #[must_use]
    pub(super) fn with(self, effect: Effect) -> Self {
        Self { effect, ..self }
    }
}

/// What a construct without an equal may do with a packet that it matches.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Nothing that decides, as a log.
    Nothing,
    /// Decides, returns from its chain, goes on in one of these chains, or does nothing; the packet stays as it is.
    Decides { jumps: Vec<usize> },
    /// As before, and it may change the packet.
    Changes { jumps: Vec<usize> },
}

impl Effect {
    fn jumps(&self) -> &[usize] {
        match self {
            Self::Nothing => &[],
            Self::Decides { jumps } | Self::Changes { jumps } => jumps,
        }
    }
}

/// A chain.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) name: String,
    /// What a base chain decides where no rule does.
    pub(super) policy: Option<Action>,
    pub(super) entries: Vec<Entry>,
    /// The numbers of its statements, those that became no entry among them.
    pub(super) origins: Vec<u32>,
}

/// Adds the rules that do what the chain `root` does with the packets of `everything`. What there are no words for in the chains
/// that it reaches is refused or left out, with what is `elsewhere` in the file and may do something before.
pub(super) fn flatten(
    mut chains: Vec<Chain>,
    root: usize,
    everything: Region,
    elsewhere: Vec<Unsupported>,
    builder: &mut Builder<'_>,
) -> Result<(), Error> {
    let policy = chains[root].policy;
    let mut lists: Vec<Vec<Item>> =
        chains.iter_mut().map(|chain| items(std::mem::take(&mut chain.entries))).collect();
    spread_changes(&mut lists);
    let mut heights = vec![Height::Unknown; lists.len()];
    height(&lists, root, 0, &mut heights).map_err(|fault| match fault {
        (line, None) => {
            builder.syntax(line, format!("chains inside each other; expected at most {MAX_DEPTH}"))
        }
        (line, Some(target)) => {
            let name = &chains[target].name;
            builder
                .syntax(line, format!("chain {name:?} leads back to itself; expected chains without a loop"))
        }
    })?;
    let reached: Vec<bool> = heights.iter().map(|height| matches!(height, Height::Known(_))).collect();
    let entered = entered(&lists, &reached);
    let mut elsewhere: Vec<Item> = elsewhere.into_iter().map(Item::left_out).collect();
    let of_chains = lists.iter_mut().zip(&reached).filter(|(_, reached)| **reached);
    let all = elsewhere.iter_mut().chain(of_chains.flat_map(|(list, _)| list));
    let mut left_out: Vec<(&mut Unsupported, &mut u32)> = all.filter_map(Item::as_left_out).collect();
    left_out.sort_by_key(|(unsupported, _)| unsupported.line);
    let mut mistakes = Mistakes::default();
    for (unsupported, number) in left_out {
        let construct = std::mem::take(&mut unsupported.construct);
        builder.statement(unsupported.origin);
        match builder.leave_out(unsupported.line, Fault::Unsupported(construct)) {
            Ok(index) => *number = index,
            Err(error) => mistakes.add(error)?,
        }
    }
    mistakes.end(builder.file())?;
    for (chain, _) in chains.iter().zip(&reached).filter(|(_, reached)| **reached) {
        builder.statements(&chain.origins);
    }
    let everything = vec![everything];
    let mut flattening = Flattening { lists: &lists, entered: &entered, builder, work: 0 };
    for item in &elsewhere {
        if let Item::LeftOut { unsupported, number } = item {
            flattening.gaps(unsupported, *number, &everything)?;
        }
    }
    flattening.items(root, everything, policy).map(|_| ())
}

/// A line of a chain, as it is made into a part of the list.
#[derive(Debug)]
enum Item {
    Rule(ChainRule),
    LeftOut {
        unsupported: Unsupported,
        /// Its index among what is left out, once it has one.
        number: u32,
    },
}

impl Item {
    const fn left_out(unsupported: Unsupported) -> Self {
        Self::LeftOut { unsupported, number: 0 }
    }

    fn as_left_out(&mut self) -> Option<(&mut Unsupported, &mut u32)> {
        match self {
            Self::Rule(_) => None,
            Self::LeftOut { unsupported, number } => Some((unsupported, number)),
        }
    }
}

/// The rules among a chain's entries, and what has no equal, in order. An entry that only logs, before a rule that decides over
/// the same packets, makes that one log; others have no equal.
fn items(entries: Vec<Entry>) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::with_capacity(entries.len());
    // From the end: several in a row are taken into one.
    for entry in entries.into_iter().rev() {
        let item = match (entry, items.last_mut()) {
            (Entry::Log { regions, .. }, Some(Item::Rule(next)))
                if matches!(next.verdict, Verdict::Decide(_)) && next.regions == regions =>
            {
                next.log = true;
                continue;
            }
            (Entry::Rule(rule), _) => Item::Rule(rule),
            (Entry::Unsupported(unsupported), _) => Item::left_out(unsupported),
            (Entry::Log { line, origin, .. }, _) => {
                let construct = "logging without a rule right after it that accepts or drops the same packets has no equal here";
                Item::left_out(Unsupported::new(line, construct.into()).of(origin).with(Effect::Nothing))
            }
        };
        items.push(item);
    }
    items.reverse();
    items
}

/// Where something left out may change packets, whatever else is left out may do so by jumping there.
fn spread_changes(lists: &mut [Vec<Item>]) {
    let mut effects: Vec<&mut Effect> =
        lists.iter_mut().flatten().filter_map(Item::as_left_out).map(|(it, _)| &mut it.effect).collect();
    if effects.iter().any(|effect| matches!(effect, Effect::Changes { .. })) {
        for effect in &mut effects {
            if let Effect::Decides { jumps } = &mut **effect
                && !jumps.is_empty()
            {
                **effect = Effect::Changes { jumps: std::mem::take(jumps) };
            }
        }
    }
}

/// The chains that packets may get into in ways that the list does not show: those that something left out jumps to, and those
/// that these lead to.
fn entered(lists: &[Vec<Item>], reached: &[bool]) -> Vec<bool> {
    let mut entered = vec![false; lists.len()];
    let mut open: Vec<usize> = Vec::new();
    for (list, _) in lists.iter().zip(reached).filter(|(_, reached)| **reached) {
        for item in list {
            if let Item::LeftOut { unsupported, .. } = item {
                open.extend(unsupported.effect.jumps());
            }
        }
    }
    while let Some(chain) = open.pop() {
        if std::mem::replace(&mut entered[chain], true) {
            continue;
        }
        for item in &lists[chain] {
            match item {
                Item::LeftOut { unsupported, .. } => open.extend(unsupported.effect.jumps()),
                Item::Rule(ChainRule { verdict: Verdict::Jump(target) | Verdict::Goto(target), .. }) => {
                    open.push(*target);
                }
                Item::Rule(_) => {}
            }
        }
    }
    entered
}

/// What is known of how deep chains go below one.
#[derive(Clone, Copy)]
enum Height {
    Unknown,
    /// It is being looked at: whoever finds it again has found a loop.
    Open,
    Known(usize),
}

/// Finds loops and chains that are nested too deeply: the line at fault, and the chain that leads back to itself if one does.
fn height(
    lists: &[Vec<Item>],
    chain: usize,
    depth: usize,
    heights: &mut [Height],
) -> Result<usize, (u32, Option<usize>)> {
    heights[chain] = Height::Open;
    let mut tallest = 0;
    for item in &lists[chain] {
        let Item::Rule(rule) = item else { continue };
        let (Verdict::Jump(target) | Verdict::Goto(target)) = rule.verdict else { continue };
        let below = match heights[target] {
            Height::Known(height) => height,
            Height::Open => return Err((rule.line, Some(target))),
            Height::Unknown if depth == MAX_DEPTH => MAX_DEPTH,
            Height::Unknown => height(lists, target, depth + 1, heights)?,
        };
        tallest = tallest.max(below + 1);
        if tallest > MAX_DEPTH {
            return Err((rule.line, None));
        }
    }
    heights[chain] = Height::Known(tallest);
    Ok(tallest)
}

/// The work of [`flatten`].
struct Flattening<'c, 'b, 'f> {
    lists: &'c [Vec<Item>],
    /// Chains that packets may get into in other ways.
    entered: &'c [bool],
    builder: &'b mut Builder<'f>,
    work: usize,
}

impl Flattening<'_, '_, '_> {
    /// Adds what a chain that is called does with the packets of `left`; `policy` is what decides over those that return from
    /// it.
    fn chain(&mut self, chain: usize, left: Vec<Region>, policy: Option<Action>) -> Result<(), Error> {
        let start = self.builder.position();
        let gaps = self.items(chain, left, policy)?;
        // What was left out may have returned from the chain.
        gaps.into_iter().for_each(|gaps| self.builder.resume_here(gaps));
        if self.entered[chain] {
            self.builder.doubt(start..self.builder.position());
        }
        Ok(())
    }

    /// As [`Flattening::chain`], for the list's own chain as well: the gaps in the chain itself, those in chains that it calls
    /// not among them.
    fn items(
        &mut self,
        chain: usize,
        mut left: Vec<Region>,
        policy: Option<Action>,
    ) -> Result<Vec<Range<usize>>, Error> {
        let mut gaps = Vec::new();
        for item in &self.lists[chain] {
            if left.is_empty() {
                break;
            }
            let rule = match item {
                Item::Rule(rule) => rule,
                Item::LeftOut { unsupported, number } => {
                    gaps.push(self.gaps(unsupported, *number, &left)?);
                    continue;
                }
            };
            self.count(rule.line, &rule.regions, &left)?;
            let pairs = left.iter().flat_map(|part| rule.regions.iter().map(move |region| (part, region)));
            let mut both = pairs.filter_map(|(part, region)| part.intersection(region));
            if let Verdict::Decide(action) = rule.verdict {
                both.try_for_each(|region| self.decide(rule, action, &region))?;
                continue;
            }
            let matched: Vec<Region> = both.take(MAX_PARTS + 1).collect();
            self.limit(rule, &matched)?;
            match rule.verdict {
                _ if matched.is_empty() => continue,
                Verdict::Jump(target) => {
                    self.chain(target, matched, None)?;
                    continue;
                }
                Verdict::Goto(target) => self.chain(target, matched.clone(), policy)?,
                Verdict::Return | Verdict::Decide(_) => {}
            }
            // What matched has returned from this chain.
            match policy {
                Some(action) => matched.iter().try_for_each(|region| self.decide(rule, action, region))?,
                None => left = self.without(rule, left)?,
            }
        }
        Ok(gaps)
    }

    /// Adds the gaps that something left out leaves where the packets of `left` come to it, and says which they are.
    fn gaps(
        &mut self,
        unsupported: &Unsupported,
        number: u32,
        left: &[Region],
    ) -> Result<Range<usize>, Error> {
        let start = self.builder.gap_count();
        let line = unsupported.line;
        match (&unsupported.effect, &unsupported.regions) {
            (Effect::Nothing, _) => return Ok(start..start),
            (_, None) => {
                for part in left {
                    self.builder.gap(line, number, part)?;
                }
            }
            (_, Some(regions)) => {
                self.count(line, regions, left)?;
                for part in left {
                    for both in regions.iter().filter_map(|region| part.intersection(region)) {
                        self.builder.gap(line, number, &both)?;
                    }
                }
            }
        }
        let end = self.builder.gap_count();
        if end > start && matches!(unsupported.effect, Effect::Changes { .. }) {
            self.builder.doubt(self.builder.position()..u32::MAX);
        }
        Ok(start..end)
    }

    fn decide(&mut self, rule: &ChainRule, action: Action, region: &Region) -> Result<(), Error> {
        let (line, log, comment) = (rule.line, rule.log, rule.comment.clone());
        let template = Rule { line, log, comment, ..Rule::any(Some(action)) };
        self.builder.statement(rule.origin);
        self.builder.region(&template, region)
    }

    /// What of `left` a rule does not match.
    fn without(&mut self, rule: &ChainRule, mut left: Vec<Region>) -> Result<Vec<Region>, Error> {
        for region in &rule.regions {
            self.count(rule.line, &rule.regions, &left)?;
            left = left.into_iter().flat_map(|part| part.without(region)).take(MAX_PARTS + 1).collect();
            self.limit(rule, &left)?;
        }
        Ok(left)
    }

    /// Counts the work of comparing a line's regions with others.
    fn count(&mut self, line: u32, regions: &[Region], left: &[Region]) -> Result<(), Error> {
        let sizes = |regions: &[Region]| regions.iter().map(Region::size).sum::<usize>();
        let work = sizes(regions).saturating_mul(left.len());
        let work = work.saturating_add(sizes(left).saturating_mul(regions.len()));
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK {
            let message = "chains that call each other too often to be made into one list";
            return Err(self.builder.syntax(line, message));
        }
        Ok(())
    }

    fn limit(&self, rule: &ChainRule, parts: &[Region]) -> Result<(), Error> {
        if parts.len() > MAX_PARTS {
            let message = format!("jumps and returns that take packets apart in more than {MAX_PARTS} ways");
            return Err(self.builder.syntax(rule.line, message));
        }
        Ok(())
    }
}
