//! The keys of `scan` in a chain file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Action, Distinct, Hypotheses, Method, Scan};
use crate::units::{Bounded, Probability, Span};
use crate::{Context, Error, FunctionSpec};

/// Sources that scan addresses or ports.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "scan")]
pub struct Config {
    /// The flow definition of the sources, by "source" with "fan-out" and by "initiator" with "trw" or either; that of this name unless
    /// given.
    pub flows: Option<String>,
    /// What makes a scanner of a source.
    pub method: Kind,
    /// With "fan-out", distinct contacts within the window that make a scanner.
    pub threshold: Option<Threshold>,
    /// With "fan-out", the time in which they are counted; "0" is all the time that the source is not forgotten; "60s" unless given.
    pub window: Option<Span>,
    /// With "fan-out", what makes contacts distinct; "both" unless given.
    pub distinct: Option<Distinct>,
    /// With "fan-out", whether first packets of UDP flows are contacts, as TCP packets with SYN and without ACK are; true unless given.
    pub udp: Option<bool>,
    /// With "fan-out" and UDP, the flow definition by "5-tuple" that says which flows are new; that of this name unless given.
    pub sessions: Option<String>,
    /// With "trw", the probability that an honest source's first contact succeeds; 0.8 unless given.
    pub theta0: Option<Probability>,
    /// With "trw", the probability that a scanner's first contact succeeds; 0.2 unless given.
    pub theta1: Option<Probability>,
    /// With "trw", the probability that an honest source is taken for a scanner; 0.01 unless given.
    pub alpha: Option<Probability>,
    /// With "trw", the probability that a scanner is found; 0.99 unless given.
    pub beta: Option<Probability>,
    /// How long a source is a scanner; "0" is until it is forgotten.
    #[serde(default)]
    pub block_for: Span,
    /// What becomes of a scanner's packets.
    #[serde(default)]
    pub action: Action,
    /// Changes which contacts are taken for the same: a number that scanners do not know.
    #[serde(default)]
    pub seed: u64,
}

/// What makes a scanner of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Distinct contacts within a window.
    FanOut,
    /// First contacts that fail: threshold random walk.
    Trw,
}

/// A number of contacts.
pub type Threshold = Bounded<1, 1_000_000>;

impl Config {
    fn method(&self) -> Result<Method, Error> {
        let fan_out = [
            ("threshold", self.threshold.is_some()),
            ("window", self.window.is_some()),
            ("distinct", self.distinct.is_some()),
            ("udp", self.udp.is_some()),
            ("sessions", self.sessions.is_some()),
        ];
        let trw = [
            ("theta0", self.theta0.is_some()),
            ("theta1", self.theta1.is_some()),
            ("alpha", self.alpha.is_some()),
            ("beta", self.beta.is_some()),
        ];
        let (name, own, others) = match self.method {
            Kind::FanOut => ("fan-out", &fan_out[..], &trw[..]),
            Kind::Trw => ("trw", &trw[..], &fan_out[..]),
        };
        if let Some((key, _)) = others.iter().find(|(_, is_given)| *is_given) {
            let own: Vec<_> = own.iter().map(|(key, _)| *key).collect();
            let own = own.join(", ");
            return Err(Error::Invalid(format!("{key} with method = {name:?}; expected keys of {own}")));
        }
        match self.method {
            Kind::FanOut => {
                let udp = self.udp.unwrap_or(true);
                if !udp && self.sessions.is_some() {
                    return Err(Error::Invalid("sessions with udp = false; expected no sessions".into()));
                }
                let missing =
                    || Error::Invalid("no threshold with method = \"fan-out\"; expected a number".into());
                Ok(Method::FanOut {
                    threshold: self.threshold.ok_or_else(missing)?.get() as u32,
                    window: self.window.unwrap_or(Span::from_secs(60)),
                    distinct: self.distinct.unwrap_or_default(),
                    udp,
                })
            }
            Kind::Trw => {
                let or = |probability: Option<_>, millionths| {
                    probability.unwrap_or(Probability::from_millionths(millionths))
                };
                let hypotheses = Hypotheses {
                    theta0: or(self.theta0, 800_000),
                    theta1: or(self.theta1, 200_000),
                    alpha: or(self.alpha, 10_000),
                    beta: or(self.beta, 990_000),
                };
                above("theta0", hypotheses.theta0, "theta1", hypotheses.theta1)?;
                above("beta", hypotheses.beta, "alpha", hypotheses.alpha)?;
                Ok(Method::Trw(hypotheses))
            }
        }
    }
}

fn above(name: &str, value: Probability, other: &str, least: Probability) -> Result<(), Error> {
    if value > least {
        Ok(())
    } else {
        Err(Error::Invalid(format!("{name} {value}; expected more than {other}, {least}")))
    }
}

impl crate::Config for Config {
    const NAME: &'static str = "scan";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let method = self.method()?;
        let Self { flows, sessions, block_for, action, seed, .. } = self;
        Ok(Box::new(Scan { flows, sessions, method, block_for, action, seed, begins_anew: false }))
    }
}
