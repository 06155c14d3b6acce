//! What flows are grouped by: fields, and their values as compact bytes.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use packetloom_export::fields::{ALL, Field, Fields, Value, Way};
use packetloom_packet::{FlowRecord, protocol};
use serde_json::Value as Json;

use crate::Error;
use crate::text::clean;

/// Of what a flow is grouped by: one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Its name in specifications, tables and JSON.
    name: &'static str,
    /// The field of the sender's side, and of the receiver's; the same twice where there is only one.
    sides: [Field; 2],
}

/// Names that are shorter than those of IPFIX. They are the names of these fields in all outputs.
const SHORT: [Part; 11] = [
    Part { name: "source", sides: [Field::Source; 2] },
    Part { name: "destination", sides: [Field::Destination; 2] },
    Part { name: "address", sides: [Field::Source, Field::Destination] },
    Part { name: "source-port", sides: [Field::SourcePort; 2] },
    Part { name: "destination-port", sides: [Field::DestinationPort; 2] },
    Part { name: "port", sides: [Field::SourcePort, Field::DestinationPort] },
    Part { name: "protocol", sides: [Field::Protocol; 2] },
    Part { name: "vlan", sides: [Field::Vlan; 2] },
    Part { name: "icmp-type", sides: [Field::IcmpType; 2] },
    Part { name: "icmp-code", sides: [Field::IcmpCode; 2] },
    Part { name: "mac", sides: [Field::SourceMac, Field::DestinationMac] },
];

const FLOW: [&str; 5] = ["source", "destination", "source-port", "destination-port", "protocol"];

impl Part {
    fn is_either(self) -> bool {
        self.sides[0] != self.sides[1]
    }

    fn named(name: &str) -> Result<Self, Error> {
        if let Some(part) = SHORT.into_iter().find(|part| part.name == name) {
            return Ok(part);
        }
        let field = ALL.into_iter().find(|field| field.spec().names.contains(&name)).ok_or_else(|| {
            let is_reverse = ALL.into_iter().any(|it| it.spec().reverse.is_some_and(|it| it.contains(&name)));
            if is_reverse { Error::Reverse(name.into()) } else { Error::Field(name.into()) }
        })?;
        let short = SHORT.into_iter().find(|part| part.sides == [field; 2]);
        Ok(short.unwrap_or(Self { name: field.spec().names[0], sides: [field; 2] }))
    }
}

/// What flows are grouped by: one field or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySpec {
    parts: Vec<Part>,
}

impl KeySpec {
    /// Names with commas or plus signs between them.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let mut parts = Vec::new();
        for name in text.split([',', '+']).map(str::trim) {
            let names: &[&str] = if name == "flow" { &FLOW } else { &[name] };
            for name in names {
                let part = Part::named(name)?;
                if parts.contains(&part) {
                    return Err(Error::Twice(part.name.into()));
                }
                parts.push(part);
            }
        }
        Ok(Self { parts })
    }

    /// Names of the fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.parts.iter().map(|part| part.name)
    }

    /// Whether a flow counts at both of its sides.
    pub(crate) fn is_either(&self) -> bool {
        self.parts.iter().any(|part| part.is_either())
    }

    /// The fields that records have to have.
    pub(crate) fn fields(&self) -> Fields {
        let fields: Vec<_> = self.parts.iter().flat_map(|part| part.sides).collect();
        Fields::of(&fields)
    }

    /// Writes the key of one side of one direction. False where no field of it has a value.
    pub(crate) fn encode(&self, record: &FlowRecord, way: Way, side: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        let mut is_any = false;
        for part in &self.parts {
            let value = part.sides[side].uniflow_value(record, way);
            is_any |= value.is_some();
            encode(value, out);
        }
        is_any
    }
}

impl fmt::Display for KeySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, name) in self.names().enumerate() {
            f.write_str(if number > 0 { "+" } else { "" })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// The first byte of a value. Numbers have as many bytes behind it as it is more than [`NUMBER`], most significant byte first. So bytes
/// that are less are values that are less.
const NOTHING: u8 = 0;
const NUMBER: u8 = 1;
const IPV4: u8 = 10;
const IPV6: u8 = 11;
const MAC: u8 = 12;
const TEXT: u8 = 13;

fn encode(value: Option<Value<'_>>, out: &mut Vec<u8>) {
    match value {
        None => out.push(NOTHING),
        Some(Value::Number(number)) => {
            let bytes = number.to_be_bytes();
            let zeros = number.leading_zeros() as usize / 8;
            out.push(NUMBER + (8 - zeros) as u8);
            out.extend_from_slice(&bytes[zeros..]);
        }
        Some(Value::Address(IpAddr::V4(address))) => {
            out.push(IPV4);
            out.extend_from_slice(&address.octets());
        }
        Some(Value::Address(IpAddr::V6(address))) => {
            out.push(IPV6);
            out.extend_from_slice(&address.octets());
        }
        Some(Value::Mac(address)) => {
            out.push(MAC);
            out.extend_from_slice(&address);
        }
        Some(Value::Text(text)) => {
            // A name has NAME_MAX bytes at most, which one byte says.
            let text = &text[..text.floor_char_boundary(u8::MAX.into())];
            out.extend_from_slice(&[TEXT, text.len() as u8]);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// Takes a value off the front of a key.
fn decode<'a>(bytes: &mut &'a [u8]) -> Option<Value<'a>> {
    let mut take = |len: usize| {
        let (taken, rest) = bytes.split_at(len);
        *bytes = rest;
        taken
    };
    match take(1)[0] {
        NOTHING => None,
        IPV4 => Some(Value::Address(IpAddr::from(array::<4>(take(4))))),
        IPV6 => Some(Value::Address(IpAddr::from(array::<16>(take(16))))),
        MAC => Some(Value::Mac(array(take(6)))),
        TEXT => {
            let len = take(1)[0];
            Some(Value::Text(str::from_utf8(take(len.into())).expect("it was text")))
        }
        number => {
            let bytes = take((number - NUMBER).into());
            Some(Value::Number(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))))
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("as many bytes as were taken")
}

/// Bytes of a key that need no memory of their own: a flow of IPv4 has up to 22.
const SHORT_KEY: usize = 22;

/// What flows of a row have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub(crate) Bytes);

/// The encoded values of a key.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    Short(u8, [u8; SHORT_KEY]),
    Long(Box<[u8]>),
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        let mut short = [0; SHORT_KEY];
        match short.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                Self::Short(bytes.len() as u8, short)
            }
            None => Self::Long(bytes.into()),
        }
    }
}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.get().hash(state);
    }
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bytes {}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Self) -> Ordering {
        self.get().cmp(other.get())
    }
}

impl Key {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.get()
    }

    /// The value of each field of the specification, in its order; none where flows say nothing there.
    pub fn values(&self) -> impl Iterator<Item = Option<Value<'_>>> {
        let mut bytes = self.bytes();
        std::iter::from_fn(move || (!bytes.is_empty()).then(|| decode(&mut bytes)))
    }

    /// The values as people read them: what cannot be shown is escaped, and `-` is none.
    pub(crate) fn texts(&self, spec: &KeySpec) -> Vec<String> {
        spec.parts.iter().zip(self.values()).map(|(part, value)| shown(*part, value)).collect()
    }

    /// The same in one text.
    pub(crate) fn label(&self, spec: &KeySpec) -> String {
        self.texts(spec).join(" ")
    }

    /// An object of the values by the names of the fields.
    pub(crate) fn json(&self, spec: &KeySpec) -> Json {
        let values = spec.names().zip(self.values());
        let fields = values.map(|(name, value)| {
            let value = match value {
                None => Json::Null,
                Some(Value::Number(number)) => number.into(),
                Some(Value::Address(address)) => address.to_string().into(),
                Some(Value::Mac(address)) => mac(address).into(),
                Some(Value::Text(text)) => text.into(),
            };
            (name.to_owned(), value)
        });
        Json::Object(fields.collect())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

fn shown(part: Part, value: Option<Value<'_>>) -> String {
    match value {
        None => "-".into(),
        Some(Value::Number(number)) if part.sides == [Field::Protocol; 2] => {
            let name = u8::try_from(number).ok().and_then(protocol::name);
            name.map_or_else(|| number.to_string(), str::to_owned)
        }
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Address(address)) => address.to_string(),
        Some(Value::Mac(address)) => mac(address),
        Some(Value::Text(text)) => clean(text),
    }
}

fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_give_their_values_back_in_order() {
        let values = [
            None,
            Some(Value::Number(0)),
            Some(Value::Number(255)),
            Some(Value::Number(256)),
            Some(Value::Number(u64::MAX)),
            Some(Value::Address("192.0.2.1".parse().unwrap())),
            Some(Value::Address("2001:db8::1".parse().unwrap())),
            Some(Value::Mac([1, 2, 3, 4, 5, 6])),
            Some(Value::Text("")),
            Some(Value::Text("ä name")),
        ];
        let mut keys = Vec::new();
        let mut all = Vec::new();
        for value in values {
            let mut bytes = Vec::new();
            encode(value, &mut bytes);
            all.extend_from_slice(&bytes);
            let key = Key::new(&bytes);
            assert_eq!(key.values().collect::<Vec<_>>(), [value]);
            keys.push(key);
        }
        assert!(keys.is_sorted());
        assert_eq!(Key::new(&all).values().collect::<Vec<_>>(), values);
        assert_eq!(size_of::<Key>(), 24);
    }
}
