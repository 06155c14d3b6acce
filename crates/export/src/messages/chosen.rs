//! Records with other fields than the basic ones: templates that follow the choice, and values in their order.

use std::net::IpAddr;

use packetloom_packet::FlowRecord;

use super::fields::{
    BASIC_LIST, BIFLOW_DIRECTION, Element, FIRST_SWITCHED, INITIATOR, LAST_SWITCHED, write_field,
    write_template,
};
use super::{Protocol, mapped};
use crate::fields::{CERT, Field, Fields, NAME_MAX, Value, Way};

/// What an element of a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A field of the direction that the record begins with.
    Own(Field),
    /// The same field of the other one.
    Other(Field),
    /// All names of a field.
    Names(Field),
    /// ICMP type and code in one number, as NetFlow v9 has them.
    Icmp,
    /// Milliseconds since the boot time of the first and the last packet.
    Uptime(usize),
    /// That the source is the initiator.
    Initiator,
}

/// What records look like that have the fields of a choice.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) id: u16,
    elements: Vec<(Element, Source)>,
}

/// Which of them: each comes for IPv4 and for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One direction; of NetFlow v9 with times since the boot time.
    Uniflow,
    /// Both directions; of NetFlow v9 one direction with times since 1970.
    Other,
}

/// All layouts of a choice, and where a record is put together.
///
/// A record without a name has no field for one, and a record with one name has that one field: some decoders read no record in which a text
/// is empty. A record with several has a list for each field for names.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    /// The names of the choice.
    names: Vec<Field>,
    /// Without a name, then with each of them, then with lists of all; of these by kind and IP version.
    layouts: Vec<[[Layout; 2]; 2]>,
    record: Vec<u8>,
    /// Names for which messages had no room.
    pub(super) left_out: u64,
}

/// A record of one flow or of both directions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow<'a> {
    pub(super) record: &'a FlowRecord,
    pub(super) way: Way,
    /// Milliseconds since the boot time of its first and its last packet, where they are said so.
    pub(super) times: [u32; 2],
}

impl Chosen {
    /// None where the choice is the one that has layouts of its own.
    pub(super) fn new(fields: Fields, protocol: Protocol) -> Option<Self> {
        if fields == Fields::BASIC {
            return None;
        }
        let all: Vec<_> = fields.iter().filter(|field| field.is_in_messages()).collect();
        let (names, others): (Vec<_>, Vec<_>) = all.iter().partition(|field| field.is_name());
        // NetFlow v9 has none.
        let names = if protocol == Protocol::Ipfix { names } else { Vec::new() };
        // A template without fields would be a withdrawal (RFC 7011 section 8.1).
        let nameless = if others.is_empty() { all } else { others.clone() };
        let with_name = names.iter().map(|&name| ([&others[..], &[name]].concat(), &[][..]));
        let with_lists = (!names.is_empty()).then(|| (others.clone(), &names[..]));
        let all = std::iter::once((nameless, &[][..])).chain(with_name).chain(with_lists);
        let layouts = all.enumerate().map(|(number, (fields, lists))| {
            let of = |kind: Kind| {
                [0, 1].map(|family| {
                    let id = first_id(number) + 2 * kind as u16 + family as u16;
                    let mut elements = elements(&fields, protocol, kind, family);
                    elements.extend(lists.iter().map(|&field| (BASIC_LIST, Source::Names(field))));
                    Layout { id, elements }
                })
            };
            [of(Kind::Uniflow), of(Kind::Other)]
        });
        Some(Self { layouts: layouts.collect(), names, record: Vec::new(), left_out: 0 })
    }

    /// The template records of those that are used.
    pub(super) fn templates(&self, protocol: Protocol, biflows: bool) -> Vec<Vec<u8>> {
        self.used(protocol, biflows)
            .map(|layout| {
                let mut out = Vec::new();
                let elements: Vec<_> = layout.elements.iter().map(|(element, _)| *element).collect();
                write_template(layout.id, 0, &elements, protocol, &mut out);
                out
            })
            .collect()
    }

    /// Bytes that a record has at least, and at most; lists take what is left.
    pub(super) fn lengths(&self, protocol: Protocol, biflows: bool) -> [usize; 2] {
        let record = |layout: &Layout| [layout.len(1), layout.len(1 + NAME_MAX)];
        let records = self.used(protocol, biflows).map(record);
        records.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]).unwrap_or_default()
    }

    /// The layouts that are used.
    fn used(&self, protocol: Protocol, biflows: bool) -> impl Iterator<Item = &Layout> {
        let both = biflows || protocol == Protocol::NetflowV9;
        self.layouts.iter().flat_map(move |kinds| kinds[..if both { 2 } else { 1 }].iter().flatten())
    }

    /// Puts a record of at most `room` bytes together, which [`Self::lengths`] has as the most, or more; the id of its template, and its bytes.
    pub(super) fn encode(&mut self, kind: Kind, flow: Flow<'_>, room: usize) -> (u16, &[u8]) {
        let record = flow.record;
        let is_v4 = record.source.is_ipv4() && record.destination.is_ipv4();
        let count = |field: &Field| field.names(record).count();
        let number = match self.names.iter().map(count).sum::<usize>() {
            0 => 0,
            1 => 1 + self.names.iter().position(|field| count(field) > 0).unwrap_or(0),
            _ => 1 + self.names.len(),
        };
        let layout = &self.layouts[number][kind as usize][usize::from(!is_v4)];
        let mut room = room.saturating_sub(layout.len(1));
        self.record.clear();
        for &(element, source) in &layout.elements {
            match source {
                Source::Names(field) => {
                    self.left_out += write_list(field, record, &mut room, &mut self.record);
                }
                _ => flow.write(element, source, &mut self.record),
            }
        }
        (layout.id, &self.record)
    }
}

impl Layout {
    /// Bytes of a record, where a text has so many, with its length, and lists have nothing.
    fn len(&self, of_text: usize) -> usize {
        let lens = self.elements.iter().map(|(element, source)| match source {
            Source::Names(field) => LIST_LENGTH + list_header(*field).len(),
            _ if element.length == Element::VARIABLE => of_text,
            _ => element.length.into(),
        });
        lens.sum()
    }
}

/// Bytes that say the length of a list: always three (RFC 7011 section 7).
const LIST_LENGTH: usize = 3;

/// That a list is in order (RFC 6313 section 4.4.1): in that in which the names came.
const ORDERED: u8 = 4;

/// What a list of texts begins with (RFC 6313 section 4.5.1): what order means, the element, and that each text has its length before it.
fn list_header(field: Field) -> Vec<u8> {
    let mut header = vec![ORDERED];
    write_field(element(field, 0), &mut header);
    header
}

/// Writes a list of the names of a field for which there is room; how many were left out.
fn write_list(field: Field, record: &FlowRecord, room: &mut usize, out: &mut Vec<u8>) -> u64 {
    let start = out.len();
    out.extend([u8::MAX, 0, 0]);
    out.extend(list_header(field));
    let mut left_out = 0;
    for name in field.names(record) {
        let needs = 1 + name.len();
        if needs > *room {
            left_out += 1;
            continue;
        }
        *room -= needs;
        write_short_text(name, out);
    }
    let len = (out.len() - start - LIST_LENGTH) as u16;
    out[start + 1..start + LIST_LENGTH].copy_from_slice(&len.to_be_bytes());
    left_out
}

/// Writes a text of at most [`NAME_MAX`] bytes: one byte says a length below 255 (RFC 7011 section 7).
fn write_short_text(text: &str, out: &mut Vec<u8>) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

impl Flow<'_> {
    fn write(&self, element: Element, source: Source, out: &mut Vec<u8>) {
        let Self { record, way, times } = *self;
        let other = match way {
            Way::Forward => Way::Reverse,
            Way::Reverse => Way::Forward,
        };
        let value = match source {
            Source::Own(field) => field.uniflow_value(record, way),
            Source::Other(field) => field.uniflow_value(record, other),
            Source::Icmp => {
                let of = |field: Field| match field.value(record, way) {
                    Some(Value::Number(number)) => number,
                    _ => 0,
                };
                Some(Value::Number(of(Field::IcmpType) << 8 | of(Field::IcmpCode)))
            }
            Source::Uptime(which) => Some(Value::Number(times[which].into())),
            Source::Initiator => Some(Value::Number(INITIATOR.into())),
            // A list is no value.
            Source::Names(_) => None,
        };
        let value = match (source, value) {
            (
                Source::Own(Field::StartMicros | Field::EndMicros)
                | Source::Other(Field::StartMicros | Field::EndMicros),
                Some(Value::Number(micros)),
            ) => Some(Value::Number(ntp(micros))),
            (_, value) => value,
        };
        match value {
            Some(Value::Text(text)) if element.length == Element::VARIABLE => write_short_text(text, out),
            _ if element.length == Element::VARIABLE => out.push(0),
            Some(Value::Number(number)) => {
                let len = usize::from(element.length).min(8);
                let most = if len == 8 { u64::MAX } else { (1 << (8 * len)) - 1 };
                out.extend_from_slice(&number.min(most).to_be_bytes()[8 - len..]);
            }
            Some(Value::Mac(address)) => out.extend_from_slice(&address),
            Some(Value::Address(IpAddr::V4(address))) if element.length == 4 => {
                out.extend_from_slice(&address.octets());
            }
            Some(Value::Address(address)) => out.extend_from_slice(&mapped(&address)),
            Some(Value::Text(_)) | None => out.resize(out.len() + usize::from(element.length), 0),
        }
    }
}

/// Microseconds since 1970 as RFC 7011 section 6.1.9 has them: seconds since 1900 and a fraction, whose last 11 bits are 0.
fn ntp(micros: u64) -> u64 {
    const FROM_1900_TO_1970: u64 = 2_208_988_800;
    let seconds = (micros / 1_000_000).wrapping_add(FROM_1900_TO_1970);
    // Rounded up, so that whoever cuts it off finds the same microsecond.
    let fraction = ((micros % 1_000_000) << 32).div_ceil(1_000_000).next_multiple_of(1 << 11);
    seconds << 32 | fraction
}

/// The id of the first of four templates. Those of options are between the first four and the others.
fn first_id(number: usize) -> u16 {
    match number {
        0 => 256,
        number => 258 + 4 * number as u16,
    }
}

fn elements(fields: &[Field], protocol: Protocol, kind: Kind, family: usize) -> Vec<(Element, Source)> {
    let mut elements = Vec::new();
    if protocol == Protocol::Ipfix && kind == Kind::Other {
        // Reverse elements first, as in the basic layouts.
        let reverse = fields.iter().copied().filter(|field| field.spec().reverse.is_some());
        elements.extend(reverse.map(|field| (element(field, family).reverse(), Source::Other(field))));
        elements.push((BIFLOW_DIRECTION, Source::Initiator));
    }
    match protocol {
        Protocol::Ipfix => {
            elements.extend(fields.iter().map(|&field| (element(field, family), Source::Own(field))));
        }
        Protocol::NetflowV9 => {
            elements.extend(fields.iter().filter_map(|&field| netflow(field, kind, family)));
        }
    }
    elements
}

fn element(field: Field, family: usize) -> Element {
    let spec = field.spec();
    let length = spec.len.map_or(Element::VARIABLE, |lens| lens[family].into());
    Element { id: spec.numbers[family], length, enterprise: spec.enterprise }
}

/// An element of NetFlow v9, where it has one: numbers are shared up to 127, and collectors know a few of the others.
fn netflow(field: Field, kind: Kind, family: usize) -> Option<(Element, Source)> {
    let Element { id, length, enterprise } = element(field, family);
    let own = |length| Some((Element { id, length, enterprise }, Source::Own(field)));
    match field {
        Field::StartMillis if kind == Kind::Uniflow => Some((FIRST_SWITCHED, Source::Uptime(0))),
        Field::EndMillis if kind == Kind::Uniflow => Some((LAST_SWITCHED, Source::Uptime(1))),
        Field::StartMillis | Field::EndMillis | Field::EndReason => own(length),
        Field::IcmpType => Some((Element { id: 32, length: 2, enterprise: 0 }, Source::Icmp)),
        Field::TcpFlags => own(1),
        Field::MinLength | Field::MaxLength => own(2),
        _ if id < 128 && enterprise == 0 && length != Element::VARIABLE => own(length),
        _ => None,
    }
}

/// Whether an element is CERT's, whose reverse has a number of its own: the same with this bit.
pub(super) const CERT_REVERSE: u16 = 0x4000;

impl Element {
    /// The same of the reverse direction.
    pub(super) const fn reverse(self) -> Self {
        match self.enterprise {
            CERT => Self { id: self.id | CERT_REVERSE, ..self },
            _ => Self { enterprise: super::fields::REVERSE, ..self },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_survive() {
        for micros in [0, 1, 999_999, 1_000_000, 1_789_999_999_123_457] {
            let time = ntp(micros);
            let seconds = (time >> 32).wrapping_sub(2_208_988_800) & 0xffff_ffff;
            let found = seconds * 1_000_000 + (((time & 0xffff_f800) * 1_000_000) >> 32);
            assert_eq!(found, micros);
            assert_eq!(time & 0x7ff, 0);
        }
    }
}
