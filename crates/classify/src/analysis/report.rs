//! What an analysis finds.

/// What is known of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether the rule does anything.
    pub verdict: Verdict,
    /// Earlier rules whose order with this one matters; `None` where the work did not suffice to find them.
    pub correlated: Option<Correlated>,
}

/// Whether a rule does anything. Positions are those in the rule set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It decides packets, and without it some would be decided otherwise (where rules have actions); or, where something was
    /// left out, that may be so.
    Effective,
    /// No packet can meet all its conditions.
    Unmatchable,
    /// Earlier rules match all its packets, and rules have no actions.
    Covered(Causes),
    /// Earlier rules match all its packets, and those of its own action would not suffice.
    Shadowed(Causes),
    /// Without it every packet is decided as with it, and it is not [`Verdict::Shadowed`].
    Redundant {
        /// The rules of its own action that take its place.
        causes: Causes,
        /// Where they are.
        side: Side,
    },
    /// The work did not suffice.
    Undecided {
        /// Whether it is known that earlier rules match all its packets.
        never_hit: bool,
    },
}

impl Verdict {
    /// Its name in one word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Effective => "effective",
            Self::Unmatchable => "unmatchable",
            Self::Covered(_) => "covered",
            Self::Shadowed(_) => "shadowed",
            Self::Redundant { .. } => "redundant",
            Self::Undecided { .. } => "undecided",
        }
    }

    /// The rules to blame, where there can be some.
    pub const fn causes(&self) -> Option<&Causes> {
        match self {
            Self::Covered(causes) | Self::Shadowed(causes) | Self::Redundant { causes, .. } => Some(causes),
            Self::Effective | Self::Unmatchable | Self::Undecided { .. } => None,
        }
    }
}

/// Where the rules are that make a rule redundant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before it: they match all its packets.
    Earlier,
    /// Behind it: they decide the packets that come to it, as it does.
    Later {
        /// Whether some of its packets are left to the default.
        default: bool,
    },
}

/// The rules that are to blame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Causes {
    /// Their positions, in order.
    pub rules: Vec<u32>,
    /// Whether it is known that none of them can be left out.
    pub minimal: bool,
}

impl Causes {
    pub(super) fn one(rule: u32) -> Self {
        Self { rules: vec![rule], minimal: true }
    }
}

/// Earlier rules of another action that overlap a rule, where neither holds the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Correlated {
    /// How many.
    pub count: u64,
    /// The positions of the first, in order.
    pub first: Vec<u32>,
}

impl Correlated {
    /// Counts `position`, and keeps it if it is one of the first `named`.
    pub(super) fn add(&mut self, position: u32, named: usize) {
        self.count += 1;
        if self.first.len() < named || self.first.last().is_some_and(|&last| position < last) {
            let place = self.first.partition_point(|&other| other < position);
            self.first.insert(place, position);
            self.first.truncate(named);
        }
    }
}
