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
}

/// Every packet that came in, in exactly one counter: received = passed + dropped by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerdictCounts {
    /// Packets that went through the whole chain.
    pub passed: u64,
    dropped: [u64; DropReason::ALL.len()],
}

impl VerdictCounts {
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
