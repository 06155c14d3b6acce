//! Chains of rules that jump to each other, as Netfilter's, made into one list of which the first rule to match decides.
//!
//! A jump's rules apply to what matches both. Packets that come back from a chain, because they matched none of its rules that
//! decide or one that returns, meet the rules after the jump, as they would in one list. What is left to do is to keep packets
//! that returned away from the rest of a chain ([`Region::without`]), or, in a base chain, to give them the policy's verdict.

use super::Error;
use super::builder::{Builder, Fault};
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
    Log { line: u32, regions: Vec<Region> },
    /// What there are no words for.
    Unsupported(Unsupported),
}

/// A construct without an equal.
#[derive(Debug)]
pub(super) struct Unsupported {
    pub(super) line: u32,
    pub(super) construct: String,
}

/// A chain.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) name: String,
    /// What a base chain decides where no rule does.
    pub(super) policy: Option<Action>,
    pub(super) entries: Vec<Entry>,
}

/// Adds the rules that do what the chain `root` does with the packets of `everything`. What there are no words for in the chains
/// that it reaches is refused or left out, with `unsupported` from elsewhere in the file.
pub(super) fn flatten(
    mut chains: Vec<Chain>,
    root: usize,
    everything: Region,
    mut unsupported: Vec<Unsupported>,
    builder: &mut Builder<'_>,
) -> Result<(), Error> {
    let policy = chains[root].policy;
    let mut lists = Vec::new();
    let mut refused = Vec::new();
    for chain in &mut chains {
        let (rules, unsupported) = rules(std::mem::take(&mut chain.entries));
        lists.push(rules);
        refused.push(unsupported);
    }
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
    let reached = refused.into_iter().zip(&heights).filter(|(_, height)| matches!(height, Height::Known(_)));
    unsupported.extend(reached.flat_map(|(refused, _)| refused));
    unsupported.sort_by_key(|unsupported| unsupported.line);
    for Unsupported { line, construct } in unsupported {
        builder.fault(line, Fault::Unsupported(construct))?;
    }
    Flattening { lists: &lists, builder, work: 0 }.chain(root, vec![everything], policy)
}

/// The rules among a chain's entries, and what has no equal. An entry that only logs, before a rule that decides over the same
/// packets, makes that one log; others have no equal.
fn rules(entries: Vec<Entry>) -> (Vec<ChainRule>, Vec<Unsupported>) {
    let mut rules: Vec<ChainRule> = Vec::with_capacity(entries.len());
    let mut refused = Vec::new();
    // From the end: several in a row are taken into one.
    let mut next_is_rule = false;
    for entry in entries.into_iter().rev() {
        let entry = match (entry, rules.last_mut()) {
            (Entry::Log { regions, .. }, Some(next))
                if next_is_rule && matches!(next.verdict, Verdict::Decide(_)) && next.regions == regions =>
            {
                next.log = true;
                continue;
            }
            (entry, _) => entry,
        };
        next_is_rule = matches!(entry, Entry::Rule(_));
        match entry {
            Entry::Rule(rule) => rules.push(rule),
            Entry::Unsupported(unsupported) => refused.push(unsupported),
            Entry::Log { line, .. } => {
                let construct = "logging without a rule right after it that accepts or drops the same packets has no equal here";
                refused.push(Unsupported { line, construct: construct.into() });
            }
        }
    }
    rules.reverse();
    (rules, refused)
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
    lists: &[Vec<ChainRule>],
    chain: usize,
    depth: usize,
    heights: &mut [Height],
) -> Result<usize, (u32, Option<usize>)> {
    heights[chain] = Height::Open;
    let mut tallest = 0;
    for rule in &lists[chain] {
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
    lists: &'c [Vec<ChainRule>],
    builder: &'b mut Builder<'f>,
    work: usize,
}

impl Flattening<'_, '_, '_> {
    /// Adds what a chain does with the packets of `left`; `policy` is what decides over those that return from it.
    fn chain(&mut self, chain: usize, mut left: Vec<Region>, policy: Option<Action>) -> Result<(), Error> {
        for rule in &self.lists[chain] {
            if left.is_empty() {
                break;
            }
            self.count(rule, &left)?;
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
        Ok(())
    }

    fn decide(&mut self, rule: &ChainRule, action: Action, region: &Region) -> Result<(), Error> {
        let (line, log, comment) = (rule.line, rule.log, rule.comment.clone());
        let template = Rule { line, log, comment, ..Rule::any(Some(action)) };
        self.builder.region(&template, region)
    }

    /// What of `left` a rule does not match.
    fn without(&mut self, rule: &ChainRule, mut left: Vec<Region>) -> Result<Vec<Region>, Error> {
        for region in &rule.regions {
            self.count(rule, &left)?;
            left = left.into_iter().flat_map(|part| part.without(region)).take(MAX_PARTS + 1).collect();
            self.limit(rule, &left)?;
        }
        Ok(left)
    }

    /// Counts the work of comparing a rule with regions.
    fn count(&mut self, rule: &ChainRule, left: &[Region]) -> Result<(), Error> {
        let sizes = |regions: &[Region]| regions.iter().map(Region::size).sum::<usize>();
        let work = sizes(&rule.regions).saturating_mul(left.len());
        let work = work.saturating_add(sizes(left).saturating_mul(rule.regions.len()));
        self.work = self.work.saturating_add(work);
        if self.work > MAX_WORK {
            let message = "chains that call each other too often to be made into one list";
            return Err(self.builder.syntax(rule.line, message));
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
