//! The columns of a file, and their values until a row group is written.

use std::net::IpAddr;
use std::sync::Arc;

use ::parquet::basic::{ConvertedType, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical};
use ::parquet::data_type::{
    ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type,
};
use ::parquet::errors::Result;
use ::parquet::file::writer::SerializedColumnWriter;
use ::parquet::schema::types::{Type, TypePtr};
use packetloom_packet::FlowRecord;

use crate::fields::{Column, Field, Fields, SAMPLING_INTERVAL, Value};
use crate::json::{write_address, write_mac};
use crate::messages::Sampling;

/// Bytes of an address.
const ADDRESS: usize = 16;

/// Values of text or bytes that are handed over together.
const CHUNK: usize = 1 << 12;

/// The unit of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Millis,
    Micros,
}

/// What is written of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A number of up to 31 bits.
    Small,
    /// A number, or 2⁶³ − 1 if that is less.
    Large,
    Time(Unit),
    Text,
    /// A list of them.
    Texts,
    /// An address as 16 bytes.
    Bytes,
}

/// Where values come from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Column(Column),
    /// All names of a field.
    Names(Field),
    Constant(u64),
}

/// Values of all rows that have one.
#[derive(Debug)]
enum Values {
    Small(Vec<i32>),
    Large(Vec<i64>),
    /// One behind the other, and where each ends.
    Text(String, Vec<u32>),
    Bytes(Vec<u8>),
}

/// A column of the next row group.
#[derive(Debug)]
pub(super) struct Buffer {
    name: &'static str,
    source: Source,
    kind: Kind,
    /// Whether it is for records of IPv6, if it is for those of one version alone.
    is_v6: Option<bool>,
    values: Values,
    /// For each row, or each text of a list, whether there is a value, as a definition level; empty where all rows have one.
    levels: Vec<i16>,
    /// Of lists: whether it is in the row of the one before, as a repetition level.
    repeats: Vec<i16>,
    is_optional: bool,
}

impl Kind {
    fn of(field: Field) -> Self {
        match field {
            Field::StartMillis | Field::EndMillis => Self::Time(Unit::Millis),
            Field::StartMicros | Field::EndMicros => Self::Time(Unit::Micros),
            Field::Source | Field::Destination | Field::SourceMac | Field::DestinationMac => Self::Text,
            text if text.spec().len.is_none() => Self::Text,
            other if other.spec().most <= i32::MAX as u64 => Self::Small,
            _ => Self::Large,
        }
    }

    fn physical(self) -> Physical {
        match self {
            Self::Small => Physical::INT32,
            Self::Large | Self::Time(_) => Physical::INT64,
            Self::Text | Self::Texts => Physical::BYTE_ARRAY,
            Self::Bytes => Physical::FIXED_LEN_BYTE_ARRAY,
        }
    }

    fn logical(self) -> (Option<LogicalType>, ConvertedType) {
        let time = |unit| Some(LogicalType::timestamp(true, unit));
        match self {
            Self::Small | Self::Large | Self::Bytes => (None, ConvertedType::NONE),
            Self::Time(Unit::Millis) => (time(TimeUnit::MILLIS), ConvertedType::TIMESTAMP_MILLIS),
            Self::Time(Unit::Micros) => (time(TimeUnit::MICROS), ConvertedType::TIMESTAMP_MICROS),
            Self::Text | Self::Texts => (Some(LogicalType::String), ConvertedType::UTF8),
        }
    }
}

/// Whether each record says something of a field, so that it is never null.
fn is_always_there(column: Column) -> bool {
    matches!(
        column.field,
        Field::IpVersion
            | Field::SourcePort
            | Field::DestinationPort
            | Field::Protocol
            | Field::Packets
            | Field::Octets
            | Field::EndReason
    )
}

/// What a list of all names of a field is called.
fn list_of(field: Field) -> Option<&'static str> {
    match field {
        Field::DnsQuery => Some("dnsQNames"),
        Field::TlsServer => Some("sslServerNames"),
        Field::HttpHost => Some("httpRequestHosts"),
        _ => None,
    }
}

/// The level of a text of a list: behind that of a list that is there, and that of a list with something in it.
const IN_LIST: i16 = 2;

impl Buffer {
    fn new(name: &'static str, source: Source, kind: Kind, is_v6: Option<bool>) -> Self {
        let values = match kind {
            Kind::Small => Values::Small(Vec::new()),
            Kind::Large | Kind::Time(_) => Values::Large(Vec::new()),
            Kind::Text | Kind::Texts => Values::Text(String::new(), Vec::new()),
            Kind::Bytes => Values::Bytes(Vec::new()),
        };
        let is_optional = match source {
            Source::Column(column) => kind != Kind::Bytes && (is_v6.is_some() || !is_always_there(column)),
            Source::Names(_) => true,
            Source::Constant(_) => false,
        };
        Self { name, source, kind, is_v6, values, levels: Vec::new(), repeats: Vec::new(), is_optional }
    }

    /// The columns for these fields, in order.
    pub(super) fn all(fields: Fields, sampling: Option<Sampling>) -> Vec<Self> {
        let mut buffers = Vec::new();
        for column in fields.columns() {
            let ([v4, v6], kind, source) = (column.names(), Kind::of(column.field), Source::Column(column));
            match v4 == v6 {
                true => buffers.push(Self::new(v4, source, kind, None)),
                false => buffers.extend(
                    [(v4, false), (v6, true)].map(|(name, is_v6)| Self::new(name, source, kind, Some(is_v6))),
                ),
            }
            let beside = match column.field {
                Field::Source => Some(("sourceAddressBytes", source, Kind::Bytes)),
                Field::Destination => Some(("destinationAddressBytes", source, Kind::Bytes)),
                field => list_of(field).map(|name| (name, Source::Names(field), Kind::Texts)),
            };
            buffers.extend(beside.map(|(name, source, kind)| Self::new(name, source, kind, None)));
        }
        let interval = sampling.map(|sampling| Source::Constant(sampling.interval.get().into()));
        buffers.extend(interval.map(|source| Self::new(SAMPLING_INTERVAL, source, Kind::Large, None)));
        buffers
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// How its values are encoded if that is not by a dictionary: in times and counters few are the same, and many near each other.
    pub(super) fn encoding(&self) -> Option<Encoding> {
        matches!(self.kind, Kind::Large | Kind::Time(_)).then_some(Encoding::DELTA_BINARY_PACKED)
    }

    fn data_type(&self) -> Result<TypePtr> {
        let (logical, converted) = self.kind.logical();
        let repetition = if self.is_optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let length = if self.kind == Kind::Bytes { ADDRESS as i32 } else { -1 };
        let primitive = |name, repetition| {
            Type::primitive_type_builder(name, self.kind.physical())
                .with_repetition(repetition)
                .with_converted_type(converted)
                .with_logical_type(logical.clone())
                .with_length(length)
                .build()
        };
        if self.kind != Kind::Texts {
            return Ok(Arc::new(primitive(self.name, repetition)?));
        }
        let element = primitive("element", Repetition::REQUIRED)?;
        let list = Type::group_type_builder("list")
            .with_repetition(Repetition::REPEATED)
            .with_fields(vec![Arc::new(element)])
            .build()?;
        let built = Type::group_type_builder(self.name)
            .with_repetition(repetition)
            .with_converted_type(ConvertedType::LIST)
            .with_logical_type(Some(LogicalType::List))
            .with_fields(vec![Arc::new(list)])
            .build();
        Ok(Arc::new(built?))
    }

    /// What all of them are together.
    pub(super) fn schema(buffers: &[Self]) -> Result<TypePtr> {
        let fields = buffers.iter().map(Self::data_type).collect::<Result<_>>()?;
        Ok(Arc::new(Type::group_type_builder("flow_record").with_fields(fields).build()?))
    }

    /// Takes the values of records.
    pub(super) fn extend(&mut self, records: &[FlowRecord]) {
        for record in records {
            let is_it = self.is_v6.is_none_or(|is_v6| record.source.is_ipv6() == is_v6);
            let value = match self.source {
                Source::Column(column) if is_it => column.value(record),
                Source::Column(_) => None,
                Source::Constant(value) => Some(Value::Number(value)),
                Source::Names(field) => {
                    self.extend_list(field.names(record));
                    continue;
                }
            };
            if self.is_optional {
                self.levels.push(value.is_some().into());
            }
            if let Some(value) = value {
                self.values.push(value);
            }
        }
    }

    /// Takes the list of a row; where it is empty, the row has none.
    fn extend_list<'a>(&mut self, texts: impl Iterator<Item = &'a str>) {
        let before = self.levels.len();
        for text in texts {
            self.repeats.push((self.levels.len() > before).into());
            self.levels.push(IN_LIST);
            self.values.push(Value::Text(text));
        }
        if self.levels.len() == before {
            self.repeats.push(0);
            self.levels.push(0);
        }
    }

    /// Bytes of its values.
    pub(super) fn len(&self) -> usize {
        let values = match &self.values {
            Values::Small(values) => values.len() * 4,
            Values::Large(values) => values.len() * 8,
            Values::Text(text, ends) => text.len() + ends.len() * 4,
            Values::Bytes(bytes) => bytes.len(),
        };
        values + (self.levels.len() + self.repeats.len()) * 2
    }

    /// Writes all values to a row group, and forgets them.
    pub(super) fn write(&mut self, to: &mut SerializedColumnWriter<'_>) -> Result<()> {
        let levels = Levels {
            definition: self.is_optional.then_some(&*self.levels),
            repetition: (self.kind == Kind::Texts).then_some(&*self.repeats),
        };
        match &mut self.values {
            Values::Small(values) => {
                to.typed::<Int32Type>().write_batch(values, levels.definition, None)?;
                values.clear();
            }
            Values::Large(values) => {
                to.typed::<Int64Type>().write_batch(values, levels.definition, None)?;
                values.clear();
            }
            Values::Text(text, ends) => {
                // Without a copy of each: all of them are parts of one.
                let all = ByteArray::from(std::mem::take(text).into_bytes());
                let mut start = 0;
                let values = ends.drain(..).map(|end| {
                    let (from, to) = (std::mem::replace(&mut start, end as usize), end as usize);
                    all.slice(from, to - from)
                });
                write_chunks::<ByteArrayType>(to, values, levels)?;
            }
            Values::Bytes(bytes) => {
                let all = ByteArray::from(std::mem::take(bytes));
                let starts = (0..all.len()).step_by(ADDRESS);
                let values = starts.map(|start| FixedLenByteArray::from(all.slice(start, ADDRESS)));
                write_chunks::<FixedLenByteArrayType>(to, values, levels)?;
            }
        }
        self.levels.clear();
        self.repeats.clear();
        Ok(())
    }
}

/// What says which rows values are of, where that is not one each.
#[derive(Clone, Copy)]
struct Levels<'a> {
    definition: Option<&'a [i16]>,
    repetition: Option<&'a [i16]>,
}

impl Values {
    fn push(&mut self, value: Value<'_>) {
        match (self, value) {
            (Self::Small(values), Value::Number(value)) => {
                values.push(i32::try_from(value).unwrap_or(i32::MAX));
            }
            (Self::Large(values), Value::Number(value)) => {
                values.push(i64::try_from(value).unwrap_or(i64::MAX));
            }
            (Self::Bytes(bytes), Value::Address(address)) => {
                let address = match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                bytes.extend_from_slice(&address.octets());
            }
            (Self::Text(text, ends), value) => {
                match value {
                    Value::Address(address) => write_address(text, address),
                    Value::Mac(address) => write_mac(text, address),
                    Value::Text(part) => text.push_str(part),
                    Value::Number(number) => text.push_str(itoa::Buffer::new().format(number)),
                }
                // A row group has far fewer bytes.
                ends.push(text.len() as u32);
            }
            (_, Value::Address(_) | Value::Mac(_) | Value::Text(_) | Value::Number(_)) => {
                unreachable!("a column has values of its kind")
            }
        }
    }
}

/// Writes values a few at a time, since each of them is larger than what it says.
fn write_chunks<T: DataType>(
    to: &mut SerializedColumnWriter<'_>,
    mut values: impl ExactSizeIterator<Item = T::T>,
    levels: Levels<'_>,
) -> Result<()> {
    let writer = to.typed::<T>();
    let mut chunk = Vec::with_capacity(CHUNK);
    let all = levels.definition.map_or(values.len(), <[i16]>::len);
    let mut start = 0;
    while start < all {
        let mut end = all.min(start + CHUNK);
        // A row stays together.
        while levels.repetition.and_then(|levels| levels.get(end)).is_some_and(|&level| level > 0) {
            end += 1;
        }
        let [definition, repetition] =
            [levels.definition, levels.repetition].map(|levels| levels.map(|levels| &levels[start..end]));
        let has_value = |levels: &[i16]| levels.iter().filter(|&&level| level > 0).count();
        chunk.clear();
        chunk.extend(values.by_ref().take(definition.map_or(end - start, has_value)));
        writer.write_batch(&chunk, definition, repetition)?;
        start = end;
    }
    Ok(())
}
