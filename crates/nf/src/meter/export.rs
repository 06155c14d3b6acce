//! Where a meter's records are sent, in a chain file.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use packetloom_export::{Destination, Options, Protocol, Settings, TlsSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use crate::units::{Span, Throughput, Unit, quoted};
use crate::{Context, Error};

/// Bytes a second over UDP, unless another rate is given: 200 Mbit/s.
const RATE: u64 = 25_000_000;

/// Over UDP, templates are sent again after so many messages.
const TEMPLATE_MESSAGES: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// Over UDP, templates are sent so often before the first records, since a datagram may be lost.
const FIRST_TEMPLATES: u32 = 3;

/// A collector or a file that flow records are sent to.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "export")]
pub struct ExportConfig {
    /// Where: "udp://HOST:PORT", "tcp://HOST:PORT", "tls://HOST:PORT", or the name of a file. Without a port it is 4739 for IPFIX, 4740 for
    /// IPFIX over TLS, and 2055 for NetFlow v9.
    #[serde(deserialize_with = "destination")]
    #[schemars(with = "String")]
    pub to: Destination,
    /// "ipfix" or "netflow9".
    #[serde(default)]
    pub protocol: ExportProtocol,
    /// One record for both directions of a flow (RFC 5103) instead of one for each. IPFIX only.
    #[serde(default)]
    pub biflows: bool,
    /// The observation domain (IPFIX) or source id (NetFlow v9).
    #[serde(default)]
    pub domain: u32,
    /// Bytes of a message at most, 128 to 65,535.
    #[serde(default = "ExportConfig::default_message_size")]
    #[schemars(range(min = 128, max = 65_535))]
    pub message_size: u32,
    /// Over UDP, how often templates are sent again; they are also sent again after 64 messages.
    #[serde(default = "ExportConfig::default_template_interval")]
    pub template_interval: Span,
    /// How often it is said what was exported so far, as options data; "0" is never.
    #[serde(default = "ExportConfig::default_template_interval")]
    pub statistics_interval: Span,
    /// Over UDP, how fast messages are sent at most: "200Mbit/s" unless given.
    pub rate: Option<Throughput>,
    /// With "tls://", a file with the certificates that the collector's is signed by, in PEM. Without it, those that the machine trusts.
    pub ca: Option<PathBuf>,
    /// With "tls://", a file with the certificates that are shown to a collector, in PEM.
    pub certificate: Option<PathBuf>,
    /// With "tls://", a file with the private key of the first of them, in PEM.
    pub key: Option<PathBuf>,
    /// With "tls://", the name that the collector's certificate has, if it is not that of its host.
    pub server_name: Option<String>,
}

/// What messages look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExportProtocol {
    /// RFC 7011.
    #[default]
    Ipfix,
    /// RFC 3954.
    Netflow9,
}

fn destination<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Destination, D::Error> {
    quoted(deserializer, "a place in quotes, such as \"udp://192.0.2.1:4739\"")
}

impl ExportConfig {
    /// 1,400 bytes: with its headers a message fits into an Ethernet frame.
    pub fn default_message_size() -> u32 {
        1_400
    }

    /// 60 s.
    pub fn default_template_interval() -> Span {
        Span::from_secs(60)
    }

    /// One with all defaults.
    pub fn to(to: Destination, protocol: ExportProtocol) -> Self {
        Self {
            to,
            protocol,
            biflows: false,
            domain: 0,
            message_size: Self::default_message_size(),
            template_interval: Self::default_template_interval(),
            statistics_interval: Self::default_template_interval(),
            rate: None,
            ca: None,
            certificate: None,
            key: None,
            server_name: None,
        }
    }

    /// Checks what goes together, and finds files.
    pub(super) fn prepare(self, context: &Context<'_>) -> Result<Settings, Error> {
        let wrong = |why: String| Error::Invalid(format!("export to {}: {why}", self.to));
        let interval = |span: Span| span.limit().map(Duration::from_nanos);
        let is_udp = matches!(self.to, Destination::Udp(_));
        let rate = match self.rate.map(Throughput::parts) {
            None => is_udp.then_some(RATE),
            Some((bytes, Unit::Bytes)) => Some(bytes),
            Some((_, Unit::Packets)) => {
                return Err(wrong(
                    "rate counts packets; expected bits or bytes, such as \"200Mbit/s\"".into(),
                ));
            }
        };
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((context.resolve(certificate), context.resolve(key))),
            (None, None) => None,
            _ => return Err(wrong("certificate and key; expected both or none".into())),
        };
        let to = match self.to.clone() {
            Destination::File(path) => Destination::File(context.resolve(&path)),
            other => other,
        };
        let settings = Settings {
            to,
            messages: Options {
                protocol: match self.protocol {
                    ExportProtocol::Ipfix => Protocol::Ipfix,
                    ExportProtocol::Netflow9 => Protocol::NetflowV9,
                },
                biflows: self.biflows,
                domain: self.domain,
                message_len: self.message_size as usize,
                first_templates: if is_udp { FIRST_TEMPLATES } else { 1 },
                template_packets: is_udp.then_some(TEMPLATE_MESSAGES),
                template_interval: interval(self.template_interval).filter(|_| is_udp),
            },
            rate,
            statistics_interval: interval(self.statistics_interval),
            tls: TlsSettings {
                ca: self.ca.as_deref().map(|path| context.resolve(path)),
                identity,
                name: self.server_name.clone(),
            },
        };
        settings.check().map_err(|e| Error::Invalid(format!("export to {e}")))?;
        Ok(settings)
    }
}
