//! The functions there are, one line each.

use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::{
    Config, Context, Error, FunctionSpec, acl, balancer, conntrack, counter, domains, filter, limiter, meter,
    policer, sample, scan, source_counter, strings,
};

/// Every function a chain file can name.
pub const FUNCTIONS: &[Registration] = &[
    Registration::of::<acl::Config, acl::Summary>("ordered rules, first match wins"),
    Registration::of::<balancer::Config, balancer::Summary>("flows to services spread over backends"),
    Registration::of::<conntrack::Config, conntrack::Summary>(
        "the state of connections; packets of none are dropped",
    ),
    Registration::of::<counter::Config, counter::Summary>("packets and bytes of each flow"),
    Registration::of::<domains::Config, domains::Summary>("names of lists in DNS, TLS, HTTP and QUIC"),
    Registration::of::<filter::Config, filter::Summary>(
        "packets that match an expression of tcpdump's, or of a time",
    ),
    Registration::of::<limiter::Config, limiter::Summary>("a token bucket for each flow"),
    Registration::of::<meter::Config, meter::Summary>("bidirectional flow records"),
    Registration::of::<policer::Config, policer::Summary>("a marker of RFC 2697 or RFC 2698 for each source"),
    Registration::of::<sample::Config, sample::Summary>("one of so many packets"),
    Registration::of::<scan::Config, scan::Summary>("sources that scan addresses or ports"),
    Registration::of::<source_counter::Config, source_counter::Summary>(
        "packets, bytes and flows of each source",
    ),
    Registration::of::<strings::Config, strings::Summary>("strings of a list in payloads"),
];

/// How a function is made from its part of a chain file.
#[derive(Debug)]
pub struct Registration {
    /// What `nf = "…"` calls it.
    pub name: &'static str,
    /// What it does, in a few words.
    pub summary: &'static str,
    /// The schema of its keys.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// The schema of what it counted, as [`Report::json`](crate::Report::json) has it.
    pub report: fn(&mut SchemaGenerator) -> Schema,
    /// Reads its keys.
    pub parse: fn(toml::de::ValueDeserializer<'_>) -> Result<Prepare, toml::de::Error>,
}

/// Keys that were read, to be prepared.
pub type Prepare = Box<dyn FnOnce(&Context<'_>) -> Result<Box<dyn FunctionSpec>, Error>>;

impl Registration {
    const fn of<C: Config + 'static, S: JsonSchema>(summary: &'static str) -> Self {
        Self {
            name: C::NAME,
            summary,
            schema: C::json_schema,
            report: S::json_schema,
            parse: |keys| {
                let config = C::deserialize(keys)?;
                Ok(Box::new(move |context| config.prepare(context)))
            },
        }
    }

    /// The function called `name`.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        FUNCTIONS.iter().find(|function| function.name == name)
    }
}
