//! Places in a list of rules where something was left out that may decide packets.
//!
//! What was left out is not known. It may permit a packet, deny it, or let it go on; in a chain it may return the packet to
//! the chain's caller. Whoever says something about the rules of such a list says only what holds in all of these cases.

use std::ops::Range;

use packetloom_packet::{Key, MatchKey4, MatchKey6};

use crate::compiled::{CompiledRule, MatchKey};
use crate::rule::{PacketContext, Rule};

/// One place where something was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What was left out: an index into [`Reading::skipped`](crate::formats::Reading::skipped).
    pub skipped: u32,
    /// How many rules stand before it, at least.
    pub position: u32,
    /// How many rules stand before it, at most; more than `position` where its place is not known.
    pub latest: u32,
    /// The rules from `position` to before this one may be passed over by a packet that matches: it returns from their chain.
    /// As `position` where none is.
    pub resumes: u32,
    /// A rule without an action that matches every packet that may be concerned, and perhaps others.
    pub at_most: Rule,
}

impl Gap {
    /// One whose place is known and that passes over no rules.
    pub const fn at(position: u32, skipped: u32, at_most: Rule) -> Self {
        Self { skipped, position, latest: position, resumes: position, at_most }
    }

    /// Whether it may concern a packet.
    pub fn may_match(&self, key: &Key) -> bool {
        fn matches<K: MatchKey>(rule: &Rule, key: &K) -> bool {
            CompiledRule::<K>::new(rule, 0).is_some_and(|rule| rule.matches(key))
        }
        match key {
            Key::V4(key) => matches::<MatchKey4>(&self.at_most, key),
            Key::V6(key) => matches::<MatchKey6>(&self.at_most, key),
        }
    }
}

/// What is not known of a list of rules because something was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// The places.
    pub list: Vec<Gap>,
    /// Positions of rules that packets may also come to in ways that the list does not show: a left-out rule may jump to their
    /// chain, or may change packets before they come to them. Nothing can be said about what these rules do.
    pub doubtful: Vec<Range<u32>>,
}

impl Gaps {
    /// The same for packets of a context: of the rules that they meet these are the positions ([`RuleSet::seen_in`]).
    ///
    /// [`RuleSet::seen_in`]: crate::RuleSet::seen_in
    pub fn seen_in(&self, context: &PacketContext<'_>, positions: &[u32]) -> Self {
        let before = |position: u32| positions.partition_point(|&other| other < position) as u32;
        let seen = |gap: &Gap| Gap {
            skipped: gap.skipped,
            position: before(gap.position),
            latest: before(gap.latest),
            resumes: before(gap.resumes),
            at_most: gap.at_most.clone().without_context(),
        };
        let doubtful = self.doubtful.iter().map(|range| before(range.start)..before(range.end));
        Self {
            list: self.list.iter().filter(|gap| gap.at_most.is_for(context)).map(seen).collect(),
            doubtful: doubtful.filter(|range| !range.is_empty()).collect(),
        }
    }

    /// The gaps that may decide a packet before the rule at position `first` does, or before the default does where `first`
    /// is `None`; of several places of one thing that was left out, the first alone.
    pub fn before(&self, first: Option<u32>, key: &Key) -> Vec<&Gap> {
        let mut found: Vec<&Gap> = Vec::new();
        for gap in &self.list {
            if first.is_none_or(|first| gap.position <= first)
                && found.iter().all(|other| other.skipped != gap.skipped)
                && gap.may_match(key)
            {
                found.push(gap);
            }
        }
        found
    }
}
