//! JSON schemas of the lines that [`json`](crate::json) writes.

use packetloom_packet::NAMES_MAX;
use serde_json::{Map, Value, json};

use crate::Outcome;
use crate::fields::{self, Fields, Spec, Way};

/// A field of some type: its name, its greatest value, and what it is.
type Field = (&'static str, u64, &'static str);

const PORT: u64 = u16::MAX as u64;
const BYTE: u64 = u8::MAX as u64;
const ANY: u64 = u64::MAX;

const RECORD: &[Field] = &[
    ("flowStartMilliseconds", ANY, "The time of the first packet, in milliseconds since 1970."),
    ("flowEndMilliseconds", ANY, "The time of the last packet."),
    ("sourceTransportPort", PORT, "The port of who began, 0 where there is none."),
    ("destinationTransportPort", PORT, "The other port, 0 where there is none."),
    ("protocolIdentifier", BYTE, "The protocol above IP."),
    ("packetDeltaCount", ANY, "Packets of who began."),
    ("octetDeltaCount", ANY, "Their IP bytes."),
    ("reversePacketDeltaCount", ANY, "Packets of the other side."),
    ("reverseOctetDeltaCount", ANY, "Their IP bytes."),
    ("flowEndReason", 5, "Why the record ended, as IPFIX numbers it."),
];

const RECORD_IF_ANY: &[Field] = &[
    ("reverseFlowStartMilliseconds", ANY, "The time of the other side's first packet, where there is one."),
    ("reverseFlowEndMilliseconds", ANY, "The time of its last packet."),
    ("tcpControlBits", PORT, "Of TCP: all flags that who began has sent."),
    ("reverseTcpControlBits", PORT, "Of TCP: all flags that the other side has sent."),
    (fields::SAMPLING_INTERVAL, u32::MAX as u64, "Where packets are sampled: of how many one was taken."),
];

const PACKET: &[Field] = &[
    ("observationTimeMicroseconds", ANY, "The packet's time, in microseconds since 1970."),
    ("protocolIdentifier", BYTE, "The protocol above IP."),
    ("ipTotalLength", ANY, "Its IP bytes."),
];

const PACKET_IF_ANY: &[Field] = &[
    ("sourceTransportPort", PORT, "Its source port, where it has one."),
    ("destinationTransportPort", PORT, "Its destination port, where it has one."),
    ("icmpTypeIPv4", BYTE, "Of ICMP: the type."),
    ("icmpCodeIPv4", BYTE, "Of ICMP: the code."),
    ("icmpTypeIPv6", BYTE, "Of ICMPv6: the type."),
    ("icmpCodeIPv6", BYTE, "Of ICMPv6: the code."),
    ("tcpControlBits", PORT, "Of TCP: the flags."),
    ("mark", u32::MAX as u64, "The mark that rules gave it, if not 0."),
];

/// The fields as an object, addresses among them.
fn object(required: &[Field], others: &[Field]) -> Value {
    let mut properties = Map::new();
    for (name, most, what) in required.iter().chain(others) {
        let field = json!({ "type": "integer", "minimum": 0, "maximum": most, "description": what });
        properties.insert((*name).into(), field);
    }
    properties.insert("ipVersion".into(), json!({ "enum": [4, 6], "description": "The version of IP." }));
    for version in [4, 6] {
        for side in ["source", "destination"] {
            let format = format!("ipv{version}");
            let address =
                json!({ "type": "string", "format": format, "description": format!("The {side}.") });
            properties.insert(format!("{side}IPv{version}Address"), address);
        }
    }
    let mut required: Vec<_> = required.iter().map(|(name, ..)| *name).collect();
    required.push("ipVersion");
    let of_version = [4, 6].map(|version| {
        let addresses = [format!("sourceIPv{version}Address"), format!("destinationIPv{version}Address")];
        json!({ "required": addresses })
    });
    json!({ "type": "object", "properties": properties, "required": required, "oneOf": of_version })
}

fn titled(mut schema: Value, title: &str) -> Value {
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = title.into();
    schema
}

/// The schema of a flow record with the fields of a preset; the basic ones are required.
pub fn flow_record() -> Value {
    let mut record = object(RECORD, RECORD_IF_ANY);
    for column in Fields::FULL.columns().filter(|column| !Fields::BASIC.has(column.field)) {
        let Spec { most, len, what, .. } = column.field.spec();
        let description = match column.way {
            Way::Forward => what.to_owned(),
            Way::Reverse => format!("{what} Of the other side."),
        };
        let schema = match (len, most) {
            _ if column.field == fields::Field::Outcome => {
                json!({ "enum": Outcome::ALL.map(Outcome::name), "description": description })
            }
            (None, _) => {
                let name = json!({ "type": "string", "minLength": 1 });
                let names = json!({ "type": "array", "items": name, "minItems": 2, "maxItems": NAMES_MAX, "uniqueItems": true });
                json!({ "anyOf": [name, names], "description": description })
            }
            (Some(_), 0) => {
                let pattern = "^[0-9a-f]{2}(:[0-9a-f]{2}){5}$";
                json!({ "type": "string", "pattern": pattern, "description": description })
            }
            (Some(_), most) => {
                json!({ "type": "integer", "minimum": 0, "maximum": most, "description": description })
            }
        };
        for name in column.names() {
            record["properties"][name] = schema.clone();
        }
    }
    titled(record, "A flow record, with IPFIX element names")
}

/// The schema of a line of the log of an access list.
pub fn acl_log() -> Value {
    let mut line = object(PACKET, PACKET_IF_ANY);
    let count = |what: &str| json!({ "type": "integer", "minimum": 0, "description": what });
    let text = |what: &str| json!({ "type": "string", "description": what });
    for (name, schema) in [
        ("frame", count("The number of the packet in the run, from 1.")),
        ("action", json!({ "enum": ["permit", "deny", "reflect"], "description": "What the rule says." })),
        ("rule", count("The position of the rule in the list, from 0.")),
        ("line", count("Its line in the rule file; a rule that a transaction added has none.")),
        ("id", text("Its id, if it has one.")),
        ("comment", text("Its comment, if it has one.")),
        ("suppressed", count("Lines that the rate left out since the last one, if there are any.")),
        ("fragment", json!({ "enum": ["first", "later"], "description": "Of a fragment: which one it is." })),
    ] {
        line["properties"][name] = schema;
    }
    if let Some(required) = line["required"].as_array_mut() {
        required.extend(["frame", "action", "rule"].map(Value::from));
    }
    // What the rate left out at the end.
    let rest = json!({
        "type": "object",
        "properties": { "suppressed": count("Lines that the rate left out since the last one.") },
        "required": ["suppressed"],
    });
    titled(json!({ "anyOf": [line, rest] }), "A line of the log of an access list")
}
