//! Synthetic rule sets with the structure of real ones.
//!
//! Prefixes nest, cluster and repeat, port ranges and protocols come in the combinations that
//! occur, and the more specific of two nested rules stands first. See [`Style`] for the kinds and
//! their source.
//!
//! ```
//! use packetloom_generate::{RuleOptions, Style, generate_rules};
//!
//! let options = RuleOptions { style: Style::Acl, count: 100, seed: 1, ipv6: true };
//! let rules = generate_rules(&options)?;
//! assert_eq!(rules.len(), 100);
//! assert_eq!(rules[99].to_string(), "deny any from ::/0 to ::/0");
//! # Ok::<(), packetloom_generate::GenerateError>(())
//! ```

mod prefixes;
mod style;

use std::cmp::Reverse;

use packetloom_classify::rule::{PortRange, TcpFlagMatch};
use packetloom_classify::{Action, Rule};
use packetloom_packet::protocol::{ICMP, ICMPV6, TCP};

use self::prefixes::{Pool, Tree};
pub use self::style::Style;
use self::style::{Lengths, Ports, Profile, Weights};
use crate::error::GenerateError;
use crate::random::Random;
use crate::seen::Seen;
use crate::shape::{RuleShape, count};

/// The most rules that can be asked for: as many as can be read again.
pub use packetloom_classify::formats::MAX_RULES;

/// In sets that are larger than this rules share their prefixes with others less and less.
const PAIR_KNEE: u64 = 5000;

/// Draws of a rule that is there already before one between strangers takes its place.
const DRAWS: u32 = 16;

/// What rules to make. The same options give the same rules on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleOptions {
    /// The kind of rule set.
    pub style: Style,
    /// Rules, exactly; distinct in addresses, ports and protocol.
    pub count: usize,
    /// Chooses one of the many sets with these properties.
    pub seed: u64,
    /// IPv6 prefixes, with lengths usual there, instead of IPv4 ones.
    pub ipv6: bool,
}

/// Makes an ordered rule set; the first match decides.
///
/// Where one rule lies within another it comes first, so no rule is hidden by an earlier one. The
/// last rule matches everything and denies it. A million rules take a second or two and 220 MB.
///
/// # Errors
///
/// No rules, or more than [`MAX_RULES`].
pub fn generate_rules(options: &RuleOptions) -> Result<Vec<Rule>, GenerateError> {
    let wanted = options.count;
    if wanted == 0 {
        return Err(GenerateError::NoRules);
    }
    if wanted > MAX_RULES {
        return Err(GenerateError::TooManyRules { count: wanted, limit: MAX_RULES });
    }
    let mut random = Random::new(options.seed, 16);
    let maker = Maker::new(options, &mut random);
    let last = RuleShape::any(options.ipv6);
    let mut seen = Seen::with_capacity(wanted);
    seen.insert(last.hash());
    let mut rules: Vec<(Action, RuleShape)> = Vec::with_capacity(wanted);
    let pair_share = maker.profile.pair_share * PAIR_KNEE / (PAIR_KNEE + wanted as u64);
    for _ in 1..wanted {
        let mut draws = 0;
        let shape = loop {
            draws += 1;
            let mut shape = maker.draw(draws > DRAWS, &mut random);
            if draws <= DRAWS && !rules.is_empty() && random.below(100) < pair_share {
                let (_, other) = rules[random.below(rules.len() as u64) as usize];
                (shape.source, shape.destination) = (other.source, other.destination);
            }
            if seen.insert(shape.hash()) {
                break shape;
            }
        };
        let permit = random.percent(maker.profile.permit_share);
        rules.push((if permit { Action::Permit } else { Action::Deny }, shape));
    }
    // Within another rule: both prefixes at least as long, no more ports, a protocol if it has
    // one; and one of them strictly so. Such a rule gets a smaller key.
    rules.sort_by_key(|(_, shape)| {
        (
            Reverse(u16::from(shape.source.len) + u16::from(shape.destination.len)),
            count(shape.source_ports) * count(shape.destination_ports),
            shape.protocol.is_none(),
        )
    });
    rules.push((Action::Deny, last));
    Ok(rules.into_iter().map(|(action, shape)| shape.rule(action)).collect())
}

/// Draws rules of one set.
struct Maker {
    profile: &'static Profile,
    ipv6: bool,
    sources: Tree,
    destinations: Tree,
    source_pool: Pool,
    destination_pool: Pool,
}

impl Maker {
    fn new(options: &RuleOptions, random: &mut Random) -> Self {
        let profile = options.style.profile();
        let (source, destination) = (&profile.source, &profile.destination);
        let seed = random.bits();
        let rules = options.count as u64;
        let source_values = source.values.at(rules);
        let destination_values = destination.values.at(rules);
        let sources = Tree::new(options.ipv6, seed, source_values / source.per_network, None, random);
        let networks = destination_values / destination.per_network;
        let destinations = Tree::new(options.ipv6, seed, networks, Some(&sources), random);
        let source_shares = shares(profile, |lengths| lengths.source);
        let destination_shares = shares(profile, |lengths| lengths.destination);
        Self {
            profile,
            ipv6: options.ipv6,
            source_pool: Pool::new(&sources, source_values, &source_shares, source.power, random),
            destination_pool: Pool::new(
                &destinations,
                destination_values,
                &destination_shares,
                destination.power,
                random,
            ),
            sources,
            destinations,
        }
    }

    /// A rule that may be there already; with a `stranger` for its more specific side, hardly.
    fn draw(&self, stranger: bool, random: &mut Random) -> RuleShape {
        let lengths = random.weighted(self.profile.lengths);
        let mut source = self.source_pool.draw(random.weighted(lengths.source), random);
        let mut destination = self.destination_pool.draw(random.weighted(lengths.destination), random);
        if stranger && source.len > destination.len {
            source = self.sources.stranger(random);
        } else if stranger {
            destination = self.destinations.stranger(random);
        }
        let service = random.weighted(self.profile.services);
        let asks_ack = service.protocol == Some(TCP) && random.percent(self.profile.ack_share);
        RuleShape {
            ipv6: self.ipv6,
            source,
            destination,
            source_ports: self.ports(service.source, self.profile.source_ports, random),
            destination_ports: self.ports(service.destination, self.profile.destination_ports, random),
            protocol: service
                .protocol
                .map(|number| if self.ipv6 && number == ICMP { ICMPV6 } else { number }),
            flags: asks_ack.then_some(TcpFlagMatch::ACK),
        }
    }

    fn ports(&self, class: Ports, exact: &[u16], random: &mut Random) -> PortRange {
        match class {
            Ports::Any => PortRange::ANY,
            Ports::High => PortRange { low: 1024, high: u16::MAX },
            Ports::Low => PortRange { low: 0, high: 1023 },
            Ports::Exact => PortRange::exactly(exact[random.skewed(exact.len() as u64, 2) as usize]),
            Ports::Range => {
                let ranges = self.profile.ranges;
                ranges[random.skewed(ranges.len() as u64, 2) as usize]
            }
        }
    }
}

/// How often each IPv4 length occurs on one side of a style's rules.
fn shares(profile: &Profile, side: fn(&Lengths) -> Weights<u8>) -> [u64; 33] {
    let mut shares = [0; 33];
    for (lengths, group) in profile.lengths {
        let weights = side(lengths);
        let total: u64 = weights.iter().map(|&(_, weight)| u64::from(weight)).sum();
        for &(len, weight) in weights {
            shares[usize::from(len)] += u64::from(*group) * 1_000_000 * u64::from(weight) / total;
        }
    }
    shares
}
