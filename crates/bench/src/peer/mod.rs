//! Classifiers of other projects, to compare ours with.

#[cfg(feature = "dpdk")]
mod dpdk;
#[cfg(feature = "dpdk")]
mod layout;
#[cfg(feature = "dpdk")]
mod rte_acl;

use std::str::FromStr;

use packetloom_classify::RuleSet;
use packetloom_classify::formats::Headers;

use crate::Error;
use crate::engine::Engine;

/// The peers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// DPDK's access control library; in builds with the feature `dpdk`.
    RteAcl,
}

impl Peer {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RteAcl => "rte_acl",
        }
    }

    /// Builds the peer's index and brings the headers into the form it takes.
    ///
    /// # Errors
    ///
    /// [`Error::NoPeer`] in builds without it, [`Error::Peer`] with rules that it has no words for or that it cannot build.
    #[cfg_attr(not(feature = "dpdk"), expect(unused_variables))]
    pub fn prepare(self, rules: &RuleSet, headers: &Headers) -> Result<Box<dyn Engine>, Error> {
        match self {
            #[cfg(feature = "dpdk")]
            Self::RteAcl => Ok(Box::new(rte_acl::RteAcl::new(rules, headers)?)),
            #[cfg(not(feature = "dpdk"))]
            Self::RteAcl => Err(Error::NoPeer),
        }
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "rte_acl" => Ok(Self::RteAcl),
            _ => Err(format!("no peer {name:?}; expected rte_acl")),
        }
    }
}
