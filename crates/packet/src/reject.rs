//! Why a frame has no match key, or is not metered.

macro_rules! rejects {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a frame was not counted by a meter. All but [`Reject::Protocol`] and [`Reject::OtherFraming`] also mean that the frame has
        /// no match key, so that a chain's policy for such frames decides.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reject { $($(#[$doc])* $variant,)* }

        impl Reject {
            /// Every reason, in the order of their numbers.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name used in summaries.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The number that stands for it in kernels: its place in [`Self::ALL`].
            pub const fn number(self) -> u32 {
                self as u32
            }
        }
    };
}

rejects! {
    /// The capture's link type is not one that can be parsed.
    LinkType = "unsupported_link_type",
    /// The capture does not describe the interface that the frame names, so its link type is unknown.
    UndefinedInterface = "undefined_interface",
    /// The frame ends within its layer-2 headers (or a PPPoE, MPLS or VLAN header is cut).
    LinkTruncated = "link_truncated",
    /// Layer 2 carries something else than IP.
    NotIp = "not_ip",
    /// The frame ends within the fixed IP header or its options.
    IpTruncated = "ip_truncated",
    /// A version that is neither 4 nor 6, or lengths that contradict each other.
    IpMalformed = "ip_malformed",
    /// The chain of IPv6 extension headers runs past the packet's end.
    ExtensionChain = "extension_chain",
    /// TCP, UDP or SCTP without room for its ports.
    TransportTruncated = "transport_truncated",
    /// IP, but a protocol that is not metered.
    Protocol = "protocol",
    /// Layer 2 is nothing that the walk over headers knows: it may carry IP.
    UnknownFraming = "unknown_framing",
    /// IP, but in a framing that is not metered.
    OtherFraming = "other_framing",
}

impl Reject {
    /// Whether the frame is of a protocol that is known not to carry IP.
    pub const fn is_non_ip(self) -> bool {
        matches!(self, Self::NotIp)
    }

    /// Whether the frame may carry IP in a framing that is not known.
    pub const fn is_unknown_framing(self) -> bool {
        matches!(self, Self::LinkType | Self::UnknownFraming)
    }
}

/// One counter for each [`Reject`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RejectCounts([u64; Reject::ALL.len()]);

impl RejectCounts {
    /// Counts one frame.
    pub fn add(&mut self, reject: Reject) {
        self.0[reject as usize] += 1;
    }

    /// Counts so many frames.
    pub fn add_many(&mut self, reject: Reject, frames: u64) {
        self.0[reject as usize] += frames;
    }

    /// Adds another set of counters to this one.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Frames over all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with its count, zeros included.
    pub fn iter(&self) -> impl Iterator<Item = (Reject, u64)> + '_ {
        Reject::ALL.into_iter().zip(self.0)
    }
}
