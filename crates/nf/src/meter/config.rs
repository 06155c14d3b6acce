//! The keys of `meter` in a chain file.

use std::path::PathBuf;

use packetloom_export::fields::Field;
use packetloom_export::{Fields, LineFormat};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::export::ExportConfig;
use super::{Meter, Settings};
use crate::units::{MaxFlows, Span, quoted};
use crate::{Context, Error, FunctionSpec};

/// Bidirectional flow records.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "meter")]
pub struct Config {
    /// A record ends when its flow was silent for so long; "0" is never.
    #[serde(default = "Config::default_idle_timeout")]
    pub idle_timeout: Span,
    /// A record ends when its flow has lasted so long; "0" is never.
    #[serde(default = "Config::default_active_timeout")]
    pub active_timeout: Span,
    /// End records of TCP with their connections: with a RST, or with the first ACK without FIN after both sides have sent FIN. What comes behind
    /// it begins another record.
    #[serde(default)]
    pub end_of_flow: bool,
    /// Make the VLAN part of what a flow is, by the outer tag: packets that differ in it alone are of two flows. Records have the field vlanId then.
    #[serde(default)]
    pub vlan_in_key: bool,
    /// Flows of each IP version held at a time, over all workers; when there are more, one that was not used for long is exported.
    /// Memory grows with the flows, 128 bytes each in a table that is a third to four fifths full.
    #[serde(default = "Config::default_max_flows")]
    pub max_flows: MaxFlows,
    /// The framings whose packets are counted: "basic" or "all".
    #[serde(default)]
    pub framings: Framings,
    /// The fields of records: "basic", "standard", "full", or names of IPFIX elements with commas between them. Beyond the basic ones a flow
    /// takes 192 bytes, and 256 of IPv6.
    #[serde(default = "Config::default_fields", deserialize_with = "fields")]
    #[schemars(with = "String")]
    pub fields: Fields,
    /// What the lines of `output` are: "json", "csv" or "flowtest".
    #[serde(default, deserialize_with = "format")]
    #[schemars(with = "String")]
    pub format: LineFormat,
    /// The file for the records, as lines; "-" is standard output. Without it they are only counted, or exported.
    pub output: Option<PathBuf>,
    /// Where else they are sent, as IPFIX or NetFlow v9.
    #[serde(default)]
    pub export: Vec<ExportConfig>,
    /// Whether records are handed over in any case, for reports; and with which fields beside those that are written.
    #[serde(skip)]
    pub reports: Option<Fields>,
}

/// Framings whose packets a meter counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Framings {
    /// The basic ones: Ethernet II, VLAN tags, MPLS, PPPoE, Linux cooked, BSD loopback and raw IP.
    #[default]
    Basic,
    /// All in which IP is found.
    All,
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
    quoted(deserializer, "fields in quotes, such as \"standard\"")
}

fn format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LineFormat, D::Error> {
    quoted(deserializer, "\"json\", \"csv\" or \"flowtest\"")
}

impl Config {
    /// The basic ones.
    pub fn default_fields() -> Fields {
        Fields::BASIC
    }

    /// 30 s.
    pub fn default_idle_timeout() -> Span {
        Span::from_secs(30)
    }

    /// 300 s.
    pub fn default_active_timeout() -> Span {
        Span::from_secs(300)
    }

    /// About four million.
    pub fn default_max_flows() -> MaxFlows {
        MaxFlows::clamped(1 << 22)
    }
}

impl crate::Config for Config {
    const NAME: &'static str = "meter";

    fn prepare(self, context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        if self.output.is_none() && self.format != LineFormat::default() {
            let format = self.format;
            return Err(Error::Invalid(format!(
                "format is {format}, but there is no output; expected a file for the lines"
            )));
        }
        let output = self.output.map(|path| context.resolve(&path));
        let fields = if self.vlan_in_key { self.fields.and(Fields::of(&[Field::Vlan])) } else { self.fields };
        let exports = self
            .export
            .into_iter()
            .map(|export| export.prepare(fields, context))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(Meter::new(Settings {
            idle: self.idle_timeout,
            active: self.active_timeout,
            end_of_flow: self.end_of_flow,
            vlan_in_key: self.vlan_in_key,
            max_flows: self.max_flows.get(),
            framings: self.framings,
            fields,
            format: self.format,
            output,
            exports,
            reports: self.reports,
            // Known where the chain is.
            sampling: None,
        })))
    }
}
