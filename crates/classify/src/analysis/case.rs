//! The case of one rule.

use super::index::Entry;
use super::packet::Packet;
use super::question::{Grounds, Question};
use super::report::{Causes, Side, Verdict};
use super::search::{Exhausted, Search, Work};
use super::{Analysis, Later, Neighbours};

/// Packets tried before a question is decided in full, as far as one in so many of the comparisons that are left suffice.
const TRIES: usize = 64;
const SHARE_OF_TRIES: u64 = 8;

/// What it takes to decide over a rule.
#[derive(Debug)]
pub(super) struct Case<'a> {
    pub(super) analysis: &'a Analysis,
    pub(super) rule: &'a Entry,
    pub(super) search: Search,
    pub(super) work: Work,
}

/// Earlier rules that match all packets of a rule.
enum Cover<'a> {
    One(u32),
    /// The question that was answered with "yes", and what this rests on.
    Several(Question<'a>, Vec<u32>),
}

impl<'a> Case<'a> {
    /// The verdict; `never_hit` is set as soon as that is known.
    pub(super) fn verdict(&mut self, near: Neighbours, never_hit: &mut bool) -> Result<Verdict, Exhausted> {
        let covered = match self.analysis.actions {
            None => Verdict::Covered,
            Some(_) => |causes| Verdict::Redundant { causes, side: Side::Earlier },
        };
        if let Some(cause) = near.same_cover {
            return Ok(covered(Causes::one(cause)));
        }
        let cover = match near.other_cover {
            Some(cause) => Some(Cover::One(cause)),
            None => self.cover(near.earlier.iter())?,
        };
        let Some(cover) = cover else { return self.without(near) };
        *never_hit = true;
        if self.analysis.actions.is_none() {
            return Ok(covered(self.causes(cover)));
        }
        let (analysis, rule) = (self.analysis, self.rule);
        let own = near.earlier.iter().filter(|entry| analysis.same_action(entry, rule));
        Ok(match self.cover(own)? {
            Some(cover) => covered(self.causes(cover)),
            None => Verdict::Shadowed(self.causes(cover)),
        })
    }

    /// Whether every packet of the rule is matched by one of `entries`, none of which holds all of it.
    fn cover<'b>(
        &mut self,
        entries: impl Iterator<Item = &'b Entry> + Clone,
    ) -> Result<Option<Cover<'a>>, Exhausted> {
        let Self { analysis, rule, search, work } = self;
        let seen = work.attempt(SHARE_OF_TRIES, |work| {
            for _ in 0..TRIES {
                let packet = Packet::random(rule, rule.demand, &analysis.classes, &mut search.random);
                if let Some(packet) = packet
                    && !packet.meets_any(entries.clone(), work)?
                {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        if seen == Some(true) {
            return Ok(None);
        }
        let candidates = entries.map(|entry| (*entry, true)).collect();
        let question = Question { classes: &analysis.classes, rule, candidates, default: false };
        Ok(question.ask(search, work)?.map(|used| Cover::Several(question, used)))
    }

    fn causes(&mut self, cover: Cover<'a>) -> Causes {
        match cover {
            Cover::One(cause) => Causes::one(cause),
            Cover::Several(question, used) => {
                question.grounds(&used, |_| false, &mut self.search, &mut self.work).into()
            }
        }
    }

    /// The verdict over a rule that decides packets: whether they would be decided in the same way without it.
    fn without(&mut self, near: Neighbours) -> Result<Verdict, Exhausted> {
        let Self { analysis, rule, search, work } = self;
        if analysis.actions.is_none() {
            return Ok(Verdict::Effective);
        }
        let Neighbours { earlier, mut later, .. } = near;
        let default = analysis.is_default(rule);
        let seen = work.attempt(SHARE_OF_TRIES, |work| {
            let others: Vec<&Entry> =
                later.iter().filter(|later| !later.good).map(|later| &later.entry).collect();
            for count in 0..TRIES {
                // Packets that the default decides otherwise, or that some later rule may.
                let part = match others.len() as u32 {
                    0 if default => break,
                    len if len > 0 && (default || count % 2 == 0) => {
                        others[search.random.below(len) as usize]
                    }
                    _ => rule,
                };
                let packet = Packet::random(part, rule.demand, &analysis.classes, &mut search.random);
                let Some(packet) = packet else { continue };
                if packet.meets_any(earlier.iter(), work)? {
                    continue;
                }
                work.spend(later.len() as u64)?;
                let next =
                    later.iter().filter(|later| packet.meets(&later.entry)).min_by_key(|later| later.order);
                // Where the default is good, the part is of a later rule, and there is a next one.
                if !next.is_some_and(|later| later.good) {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        if seen == Some(true) {
            return Ok(Verdict::Effective);
        }
        later.sort_unstable_by_key(|later| later.order);
        let earlier = earlier.into_iter().map(|entry| (entry, true));
        let later = later.into_iter().map(|Later { entry, good, .. }| (entry, good));
        let candidates = earlier.chain(later).collect();
        let question = Question { classes: &analysis.classes, rule, candidates, default };
        let Some(used) = question.ask(search, work)? else { return Ok(Verdict::Effective) };
        let is_earlier = |entry: &Entry| entry.position < rule.position;
        let grounds = question.grounds(&used, is_earlier, search, work);
        let side = Side::Later { default: grounds.default };
        Ok(Verdict::Redundant { causes: grounds.into(), side })
    }
}

impl From<Grounds> for Causes {
    fn from(Grounds { rules, minimal, .. }: Grounds) -> Self {
        Self { rules, minimal }
    }
}
