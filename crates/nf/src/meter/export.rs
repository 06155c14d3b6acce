//! Where a meter's records are sent, in a chain file.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use packetloom_export::kafka;
use packetloom_export::parquet::{self, Partition};
use packetloom_export::{Destination, Fields, Format, Options, Protocol, Settings, TlsSettings};
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
    /// Where: "udp://HOST:PORT", "tcp://HOST:PORT", "tls://HOST:PORT", "kafka://HOST:PORT,HOST:PORT/TOPIC", or the name of a file, or of a folder
    /// for Parquet. Without a port it is 4739 for IPFIX, 4740 for IPFIX over TLS, 2055 for NetFlow v9, and 9092 for Kafka.
    #[serde(deserialize_with = "destination")]
    #[schemars(with = "String")]
    pub to: Destination,
    /// "ipfix", "netflow9", "parquet" or "kafka".
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
    /// Of Parquet, the folders that files are in by the time of a record's first packet: "none", "day" or "hour".
    #[serde(default, deserialize_with = "partition")]
    #[schemars(with = "String")]
    pub partition: Partition,
    /// Of Parquet, rows of a file at most; another one begins before, too, at about 256 MiB.
    pub file_rows: Option<NonZeroU64>,
    /// Of Parquet, how often another file begins.
    pub file_time: Option<Span>,
    /// Of Kafka, properties of librdkafka, such as "security.protocol" = "ssl".
    #[serde(default)]
    pub properties: BTreeMap<String, String>,
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
    /// Parquet files in a folder.
    Parquet,
    /// Messages of a topic of Apache Kafka, a JSON object each.
    Kafka,
}

fn destination<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Destination, D::Error> {
    quoted(deserializer, "a place in quotes, such as \"udp://192.0.2.1:4739\"")
}

fn partition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Partition, D::Error> {
    quoted(deserializer, "\"none\", \"day\" or \"hour\"")
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
            partition: Partition::default(),
            file_rows: None,
            file_time: None,
            properties: BTreeMap::new(),
        }
    }

    /// Checks what goes together, and finds files.
    pub(super) fn prepare(self, fields: Fields, context: &Context<'_>) -> Result<Settings, Error> {
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
        let is_parquet = self.protocol == ExportProtocol::Parquet;
        let is_kafka = self.protocol == ExportProtocol::Kafka;
        let to = match self.to.clone() {
            Destination::File(path) if is_parquet => Destination::Folder(context.resolve(&path)),
            Destination::File(path) => Destination::File(context.resolve(&path)),
            other => other,
        };
        let is_for_files =
            self.partition != Partition::None || self.file_rows.is_some() || self.file_time.is_some();
        if is_for_files && !is_parquet {
            return Err(wrong("partition, file_rows or file_time; expected them with Parquet only".into()));
        }
        let of_messages = |config: &Self| {
            let Self { biflows, domain, message_size, template_interval, statistics_interval, .. } = config;
            (*biflows, *domain, *message_size, *template_interval, *statistics_interval)
        };
        let usual = Self::to(self.to.clone(), self.protocol);
        if (is_parquet || is_kafka) && of_messages(&self) != of_messages(&usual) {
            return Err(wrong(
                "biflows, domain, message_size, template_interval or statistics_interval; expected them with ipfix and netflow9 only"
                    .into(),
            ));
        }
        if !is_kafka && !self.properties.is_empty() {
            return Err(wrong("properties; expected them with Kafka only".into()));
        }
        let messages = |protocol| {
            Format::Messages(Options {
                protocol,
                fields,
                biflows: self.biflows,
                domain: self.domain,
                message_len: self.message_size as usize,
                first_templates: if is_udp { FIRST_TEMPLATES } else { 1 },
                template_packets: is_udp.then_some(TEMPLATE_MESSAGES),
                template_interval: interval(self.template_interval).filter(|_| is_udp),
                // Known where the chain is.
                sampling: None,
            })
        };
        let defaults = parquet::Options::new(fields);
        let format = match self.protocol {
            ExportProtocol::Ipfix => messages(Protocol::Ipfix),
            ExportProtocol::Netflow9 => messages(Protocol::NetflowV9),
            ExportProtocol::Parquet => Format::Parquet(parquet::Options {
                rows: self.file_rows.unwrap_or(defaults.rows),
                every: self.file_time.and_then(interval),
                partition: self.partition,
                ..defaults
            }),
            ExportProtocol::Kafka => Format::Kafka(kafka::Options {
                properties: self.properties.clone(),
                ..kafka::Options::new(fields)
            }),
        };
        let settings = Settings {
            to,
            format,
            rate,
            statistics_interval: interval(self.statistics_interval).filter(|_| !is_parquet && !is_kafka),
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
