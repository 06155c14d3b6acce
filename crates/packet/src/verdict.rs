//! What a chain decides about a packet.

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $variant,)* }

        impl DropReason {
            /// Every reason, in the order of their numbers.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name used in summaries.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

drop_reasons! {
    /// The chain's policy drops frames that are not IP.
    NonIp = "non_ip",
    /// The chain's policy drops frames whose headers cannot be parsed.
    Malformed = "malformed",
    /// A `deny` rule of an ACL matched.
    AclRule = "acl_rule",
    /// No rule of an ACL matched, and its default is to deny.
    AclDefault = "acl_default",
    /// There is no room for the state of a new flow, and its definition is to drop its packets.
    FlowTableFull = "flow_table_full",
    /// Its flow sends more than a limiter lets through.
    RateLimit = "rate_limit",
    /// A function is to rewrite its headers, which cannot be rewritten.
    Rewrite = "rewrite",
    /// A policer marked it with a colour that does not pass.
    Policer = "policer",
    /// Its source scans addresses or ports.
    Scan = "scan",
    /// It belongs to no connection, and could not open one.
    InvalidConnection = "invalid_connection",
    /// The chain's policy drops frames that may carry IP in a framing that is not known.
    UnknownFraming = "unknown_framing",
    /// It does not match a filter.
    Filter = "filter",
    /// Patterns of a list lie in it, and the list is one of what is dropped.
    Strings = "strings",
    /// It has a name of a list, and the list is one of what is dropped.
    Domains = "domains",
    /// It is not part of the sample.
    Sample = "sample",
}

/// What a chain decides about one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Goes on, and to the sink at the end of the chain.
    #[default]
    Pass,
    /// Leaves the chain here; later functions do not see it.
    Drop(DropReason),
}

impl Verdict {
    /// Whether the packet goes on.
    pub const fn is_pass(self) -> bool {
        matches!(self, Self::Pass)
    }

    /// The number that kernels have for it: 0 where the packet passes.
    pub const fn code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Drop(reason) => reason as u8 + 1,
        }
    }

    /// The verdict with a number; none where there is no such one.
    pub fn of_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Pass),
            code => DropReason::ALL.get(usize::from(code) - 1).copied().map(Self::Drop),
        }
    }

    /// What kernels are to be told: `VERDICT_` and a name for each, and its number.
    pub fn defines() -> impl Iterator<Item = (String, String)> {
        let drops = DropReason::ALL.map(|reason| (reason.name().to_uppercase(), Self::Drop(reason)));
        let all = [("PASS".into(), Self::Pass)].into_iter().chain(drops);
        all.map(|(name, verdict)| (format!("VERDICT_{name}"), format!("{}u", verdict.code())))
    }
}

/// Every packet that came in, in exactly one counter: received = passed + dropped by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounts {
    /// Packets that went through the whole chain.
    pub passed: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl VerdictCounts {
    /// Counts the packets of a batch.
    pub fn of(verdicts: &[Verdict]) -> Self {
        let passed = verdicts.iter().filter(|verdict| verdict.is_pass()).count();
        let mut counts = Self { passed: passed as u64, ..Self::default() };
        if passed < verdicts.len() {
            let dropped = verdicts.iter().filter(|verdict| !verdict.is_pass());
            dropped.for_each(|&verdict| counts.add(verdict));
        }
        counts
    }

    /// Adds other counts to these.
    pub fn merge(&mut self, other: &Self) {
        self.passed += other.passed;
        for (mine, theirs) in self.dropped.iter_mut().zip(other.dropped) {
            *mine += theirs;
        }
    }

    /// Counts one packet.
    pub fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Pass => self.passed += 1,
            Verdict::Drop(reason) => self.dropped[reason as usize] += 1,
        }
    }

    /// All packets.
    pub fn received(&self) -> u64 {
        self.passed + self.dropped.iter().sum::<u64>()
    }

    /// Every reason with its count, zeros included.
    pub fn dropped(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.into_iter().zip(self.dropped)
    }
}
