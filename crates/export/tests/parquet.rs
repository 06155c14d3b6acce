//! Parquet files, as the `parquet` crate, pyarrow and DuckDB read them.
#![cfg(feature = "parquet")]

mod samples;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ::parquet::basic::Compression;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::record::Field as Cell;
use packetloom_export::parquet::{FileWriter, Options, Partition, SCHEMA};
use packetloom_export::{
    Counts, Destination, Error, Exporter, Fields, Format, LineFormat, Lines, Sampling, Settings, TlsSettings,
    messages,
};
use packetloom_packet::{Details, EndReason, FlowRecord, HalfFlow, More, NameKind, Timestamp};
use packetloom_testing::{amount, has_python_modules};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use self::samples::{SEVERAL, detailed, millis, named, options as message_options, v4, v6};

const PRESETS: [&str; 5] =
    ["basic", "standard", "full", "dnsQName,vlanId", "flowStartMicroseconds,icmpTypeIPv6"];

/// Of 2026-11-27, 13:05:01 UTC.
const NOON: u64 = 1_795_784_701_000;

/// Milliseconds of an hour.
const HOUR: u64 = 3_600_000;

/// The row that a record has to become, as JSON: what is null is left out.
fn expected(record: &FlowRecord, fields: Fields) -> Map<String, Value> {
    let mut line = String::new();
    Lines::new(LineFormat::Json, fields).write(&mut line, record);
    let mut row: Map<String, Value> = serde_json::from_str(&line).unwrap();
    for value in row.values_mut() {
        if value.as_u64().is_some_and(|number| number > i64::MAX as u64) {
            *value = i64::MAX.into();
        }
    }
    for (side, address) in [("source", record.source), ("destination", record.destination)] {
        if row.keys().any(|key| key.starts_with(&format!("{side}IPv"))) {
            let bytes = match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            row.insert(format!("{side}AddressBytes"), hex(&bytes).into());
        }
    }
    for (name, list) in LISTS {
        if let Some(names) = row.remove(name) {
            let names = if let Value::Array(names) = names { names } else { vec![names] };
            row.insert(name.into(), names[0].clone());
            row.insert(list.into(), names.into());
        }
    }
    row
}

/// Fields for names, and the columns with all of them.
const LISTS: [(&str, &str); 3] =
    [("dnsQName", "dnsQNames"), ("sslServerName", "sslServerNames"), ("httpRequestHost", "httpRequestHosts")];

fn all_expected(records: &[FlowRecord], fields: Fields) -> Vec<Map<String, Value>> {
    records.iter().map(|record| expected(record, fields)).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The rows of a file, as JSON.
fn rows(file: impl ::parquet::file::reader::ChunkReader + 'static) -> Vec<Map<String, Value>> {
    let reader = SerializedFileReader::new(file).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(|row| {
        let row = row.unwrap();
        let cells = row.get_column_iter().filter_map(|(name, cell)| {
            let value = match cell {
                Cell::Null => return None,
                Cell::Int(value) => (*value).into(),
                Cell::Long(value) | Cell::TimestampMillis(value) | Cell::TimestampMicros(value) => {
                    (*value).into()
                }
                Cell::Str(text) => text.clone().into(),
                Cell::Bytes(bytes) => hex(bytes.data()).into(),
                Cell::ListInternal(list) => {
                    let texts = list.elements().iter().map(|cell| match cell {
                        Cell::Str(text) => text.clone().into(),
                        other => panic!("{name}: {other}"),
                    });
                    Value::Array(texts.collect())
                }
                other => panic!("{name}: {other}"),
            };
            Some((name.clone(), value))
        });
        cells.collect()
    });
    rows.collect()
}

fn written(records: &[FlowRecord], fields: Fields) -> Vec<u8> {
    let mut writer = FileWriter::new(Vec::new(), fields, None).unwrap();
    writer.write(records).unwrap();
    assert_eq!(writer.rows(), records.len() as u64);
    writer.finish().unwrap()
}

fn records() -> Vec<FlowRecord> {
    let edge = |nanos: u64| HalfFlow {
        first: Timestamp::from_nanos(nanos),
        last: Timestamp::from_nanos(nanos),
        packets: u64::MAX,
        bytes: u64::MAX,
        tcp_flags: 0xff,
    };
    vec![
        v4(),
        v6(),
        FlowRecord { protocol: 17, ..v4() },
        FlowRecord {
            forward: edge(u64::MAX),
            reverse: edge(0),
            end_reason: EndReason::LackOfResources,
            ..v6()
        },
        FlowRecord { forward: edge(0), reverse: edge(u64::MAX), ..detailed(v4()) },
        FlowRecord { source: "::".parse().unwrap(), ..v4() },
        FlowRecord { destination: "::ffff:192.0.2.7".parse().unwrap(), ..v4() },
        detailed(v4()),
        detailed(v6()),
    ]
}

/// The same, and one with several names.
fn with_names() -> Vec<FlowRecord> {
    [records(), vec![named(v4(), &SEVERAL)]].concat()
}

/// Where packets are sampled, each row says so.
#[test]
fn sampled_rows_say_so() {
    let sampling = Some(Sampling { interval: NonZeroU32::new(100).unwrap(), is_random: false });
    let mut writer = FileWriter::new(Vec::new(), Fields::BASIC, sampling).unwrap();
    writer.write(&records()).unwrap();
    let mut expected = all_expected(&records(), Fields::BASIC);
    expected.iter_mut().for_each(|row| drop(row.insert("samplingInterval".into(), 100.into())));
    assert_eq!(rows(bytes(writer.finish().unwrap())), expected);
}

/// Lists that are longer together than what is handed over at a time.
#[test]
fn rows_keep_their_lists() {
    let names: Vec<_> = (0..16).map(|number| format!("{number}.example")).collect();
    let record = |number: usize| {
        let names = names[..number % 17].iter().map(|name| (NameKind::DnsQuery, name.as_str()));
        named(v4(), &names.collect::<Vec<_>>())
    };
    let records: Vec<_> = (0..3_000).map(record).collect();
    let fields = "dnsQName".parse().unwrap();
    assert_eq!(rows(bytes(written(&records, fields))), all_expected(&records, fields));
}

#[test]
fn values_are_those_of_json() {
    for fields in PRESETS.map(|text| text.parse().unwrap()) {
        assert_eq!(
            rows(bytes(written(&with_names(), fields))),
            all_expected(&with_names(), fields),
            "{fields}"
        );
    }
}

/// What the reader takes.
fn bytes(file: Vec<u8>) -> impl ::parquet::file::reader::ChunkReader + 'static {
    // From memory to a file that has no name any more.
    let mut named = tempfile::tempfile().unwrap();
    named.write_all(&file).unwrap();
    named
}

#[test]
fn a_file_says_what_it_is() {
    let fields = Fields::FULL;
    let reader = SerializedFileReader::new(bytes(written(&records(), fields))).unwrap();
    let metadata = reader.metadata();
    let file = metadata.file_metadata();
    assert_eq!(file.created_by(), Some(&*format!("packetloom version {}", env!("CARGO_PKG_VERSION"))));
    let keys: Vec<_> =
        file.key_value_metadata().unwrap().iter().map(|it| (&*it.key, it.value.as_deref())).collect();
    assert_eq!(
        keys,
        [("packetloom.schema", Some(SCHEMA)), ("packetloom.version", Some(env!("CARGO_PKG_VERSION")))]
    );
    // The columns of CSV, and addresses as bytes.
    let header = Lines::new(LineFormat::Csv, fields).header().unwrap();
    let names: Vec<_> =
        file.schema_descr().root_schema().get_fields().iter().map(|field| field.name()).collect();
    let is_other = |name: &&str| name.ends_with("AddressBytes") || LISTS.iter().any(|(_, list)| list == name);
    let (beside, others): (Vec<_>, Vec<_>) = names.iter().copied().partition(is_other);
    assert_eq!(others.join(",") + "\r\n", header);
    assert_eq!(beside.len(), 5);
    let group = metadata.row_group(0);
    for column in group.columns() {
        assert!(matches!(column.compression(), Compression::ZSTD(_)));
        assert!(column.statistics().is_some(), "{}", column.column_path());
    }
}

#[test]
fn row_groups_have_no_more_rows_than_they_may() {
    const GROUP: usize = 1 << 17;
    let fields = "sourceIPv4Address,sourceTransportPort".parse().unwrap();
    let record = |number: usize| {
        let source = IpAddr::V4(Ipv4Addr::from_bits(number as u32));
        FlowRecord { source, source_port: number as u16, ..v4() }
    };
    let records: Vec<_> = (0..GROUP + 1000).map(record).collect();
    let mut writer = FileWriter::new(Vec::new(), fields, None).unwrap();
    writer.write(&records[..1000]).unwrap();
    assert!(writer.buffered() > 1000 && writer.written() == 4);
    writer.write(&records[1000..]).unwrap();
    assert!(writer.buffered() < 1000 * 60 && writer.written() > 100_000);
    let file = writer.finish().unwrap();
    let reader = SerializedFileReader::new(bytes(file.clone())).unwrap();
    let sizes: Vec<_> = reader.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(sizes, [GROUP as i64, 1000]);
    assert_eq!(rows(bytes(file)), all_expected(&records, fields));
}

fn half() -> impl Strategy<Value = HalfFlow> {
    let counter = || prop_oneof![Just(0), Just(u64::MAX), 0..2_000_u64, any::<u64>()];
    (any::<u64>(), any::<u64>(), counter(), counter(), any::<u8>()).prop_map(
        |(first, last, packets, bytes, tcp_flags)| HalfFlow {
            first: Timestamp::from_nanos(first),
            last: Timestamp::from_nanos(last),
            packets,
            bytes,
            tcp_flags,
        },
    )
}

fn details() -> impl Strategy<Value = Details> {
    let vlan = proptest::option::of(0..4096_u16);
    let macs = proptest::option::of(any::<[[u8; 6]; 2]>());
    let icmp = proptest::option::of(any::<(u8, u8)>());
    let egress = proptest::option::of(any::<u16>());
    let bytes = any::<([u32; 2], [u8; 2], u8, u8, u8, u64)>();
    (bytes, icmp, vlan, macs, any::<u16>(), egress).prop_map(
        |(numbers, icmp, vlan, macs, ingress, egress)| {
            let (lengths, ttls, class_of_service, first_tcp_flags, fragment_flags, fragments) = numbers;
            Details {
                lengths,
                ttls,
                class_of_service,
                first_tcp_flags,
                fragment_flags,
                fragments,
                icmp,
                vlan,
                macs,
                ingress,
                egress,
            }
        },
    )
}

fn more() -> impl Strategy<Value = More> {
    let kind = prop_oneof![Just(NameKind::DnsQuery), Just(NameKind::TlsServer), Just(NameKind::HttpHost)];
    let names =
        proptest::collection::vec((kind, ".{0,300}").prop_map(|(kind, text)| (kind, text.into())), 0..5);
    ([details(), details()], names).prop_map(|(details, names)| More { details, names })
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits).into()),
    ]
}

fn record() -> impl Strategy<Value = FlowRecord> {
    let reason = prop_oneof![
        Just(EndReason::IdleTimeout),
        Just(EndReason::ActiveTimeout),
        Just(EndReason::ForcedEnd),
        Just(EndReason::LackOfResources)
    ];
    let protocol = prop_oneof![Just(6), Just(17), any::<u8>()];
    let more = proptest::option::of(more());
    // A record begins with a packet.
    let forward = half().prop_map(|half| HalfFlow { packets: half.packets.max(1), ..half });
    ([address(), address()], any::<[u16; 2]>(), protocol, (forward, half()), reason, more).prop_map(
        |(
            [source, destination],
            [source_port, destination_port],
            protocol,
            (forward, reverse),
            end_reason,
            more,
        )| {
            FlowRecord {
                source,
                destination,
                source_port,
                destination_port,
                protocol,
                forward,
                reverse,
                end_reason,
                more: more.map(Arc::new),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(amount(48, 2_000)))]

    /// Any records, in several calls and row groups.
    #[test]
    fn any_records_are_read_back(
        records in proptest::collection::vec(record(), 0..200),
        preset in 0..PRESETS.len(),
        cut in any::<prop::sample::Index>(),
    ) {
        let fields = PRESETS[preset].parse().unwrap();
        let (some, others) = records.split_at(cut.index(records.len() + 1));
        let mut writer = FileWriter::new(Vec::new(), fields, None).unwrap();
        writer.write(some).unwrap();
        writer.write_group().unwrap();
        writer.write(others).unwrap();
        prop_assert_eq!(rows(bytes(writer.finish().unwrap())), all_expected(&records, fields));
    }
}

/// Has room for so many bytes.
#[derive(Debug)]
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let count = self.0.min(bytes.len());
        self.0 -= count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_said() {
    let records = records();
    let size = written(&records, Fields::FULL).len();
    for room in (0..size).step_by(31).chain([size - 1]) {
        let result = FileWriter::new(Disk(room), Fields::FULL, None)
            .and_then(|mut writer| writer.write(&records).map(|()| writer))
            .and_then(|mut writer| writer.write_group().map(|()| writer))
            .and_then(FileWriter::finish);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull, "{room}");
    }
    let mut writer = FileWriter::new(Disk(size), Fields::FULL, None).unwrap();
    writer.write(&records).unwrap();
    assert_eq!(writer.finish().unwrap().0, 0);
}

fn settings(folder: &Path, options: Options) -> Settings {
    Settings {
        to: Destination::Folder(folder.into()),
        format: Format::Parquet(options),
        rate: None,
        statistics_interval: None,
        tls: TlsSettings::default(),
    }
}

fn options() -> Options {
    Options::new(Fields::BASIC)
}

/// Sends records in parts of so many, and gives files their names.
fn export(folder: &Path, options: Options, records: &[FlowRecord], part: usize) -> Counts {
    let mut exporter = Exporter::start(settings(folder, options), None, true).unwrap();
    records.chunks(part).for_each(|part| exporter.export(part).unwrap());
    exporter.finish().unwrap();
    let counts = exporter.counts();
    assert_eq!(exporter.notice(), None);
    exporter.publish().unwrap();
    counts
}

/// All files below a folder, by their names in it, in order.
fn files(folder: &Path) -> Vec<String> {
    let mut folders = vec![folder.to_owned()];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    let name = |path: PathBuf| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<_> = files.into_iter().map(name).collect();
    names.sort();
    names
}

fn open(folder: &Path, name: &str) -> File {
    File::open(folder.join(name)).unwrap()
}

fn size(folder: &Path) -> u64 {
    files(folder).iter().map(|name| open(folder, name).metadata().unwrap().len()).sum()
}

/// One packet each at this time in milliseconds.
fn at(time: u64, number: u16) -> FlowRecord {
    let time = millis(time);
    let forward = HalfFlow { first: time, last: time, packets: 1, bytes: number.into(), tcp_flags: 0 };
    FlowRecord { forward, reverse: HalfFlow::default(), source_port: number, ..v4() }
}

#[test]
fn files_appear_when_they_are_published() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("a/b");
    let mut exporter = Exporter::start(settings(&to, options()), None, true).unwrap();
    exporter.export(&records()).unwrap();
    exporter.close();
    exporter.finish().unwrap();
    let counts = exporter.counts();
    assert!(files(&to).iter().all(|name| name.starts_with(".packetloom-")));
    exporter.publish().unwrap();
    assert_eq!(files(&to), ["flows-20260921T141319Z-000001.parquet"]);
    assert_eq!(counts, Counts { files: 1, records: 9, bytes: size(&to), ..Counts::default() });
    let file = open(&to, "flows-20260921T141319Z-000001.parquet");
    assert_eq!(rows(file), all_expected(&records(), Fields::BASIC));
    // Another run in the same folder.
    export(&to, options(), &records()[..1], 1);
    assert_eq!(
        files(&to),
        ["flows-20260921T141319Z-000001.parquet", "flows-20260921T141319Z-000002.parquet"]
    );
}

#[test]
fn without_an_end_there_are_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let two = Options { rows: NonZeroU64::new(2).unwrap(), ..options() };
    for (options, left) in [(options(), 0), (two, 4)] {
        let mut exporter = Exporter::start(settings(folder.path(), options), None, true).unwrap();
        exporter.export(&records()).unwrap();
        while exporter.counts().files < left {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(exporter);
        assert_eq!(files(folder.path()).len(), left as usize);
    }
    // Nor without records.
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(export(folder.path(), options(), &[], 1), Counts::default());
    assert_eq!(files(folder.path()), [""; 0]);
}

#[test]
fn files_end_with_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let records: Vec<_> = (0..10).map(|number| at(NOON + 1000 * u64::from(number), number)).collect();
    let options = Options { rows: NonZeroU64::new(4).unwrap(), ..options() };
    let counts = export(folder.path(), options, &records, 3);
    assert_eq!(counts, Counts { files: 3, records: 10, bytes: size(folder.path()), ..Counts::default() });
    let names = files(folder.path());
    assert_eq!(
        names,
        [
            "flows-20261127T130501Z-000001.parquet",
            "flows-20261127T130505Z-000001.parquet",
            "flows-20261127T130509Z-000001.parquet"
        ]
    );
    let all = names.iter().flat_map(|name| rows(open(folder.path(), name)));
    assert_eq!(all.collect::<Vec<_>>(), all_expected(&records, Fields::BASIC));
}

#[test]
fn files_end_with_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    // Of what does not compress: a row is more than 32 bytes.
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 20
    };
    let records: Vec<_> = (0..20_000)
        .map(|number: u16| {
            let source = IpAddr::V6(Ipv6Addr::from_bits(u128::from(random()) << 64 | u128::from(random())));
            FlowRecord { source, ..at(NOON, number) }
        })
        .collect();
    let options = Options { bytes: 1 << 17, ..options() };
    let counts = export(folder.path(), options, &records, 1000);
    assert_eq!((counts.records, counts.bytes), (20_000, size(folder.path())));
    let sizes: Vec<_> =
        files(folder.path()).iter().map(|name| open(folder.path(), name).metadata().unwrap().len()).collect();
    assert!(sizes.len() > 4, "{sizes:?}");
    let (last, others) = sizes.split_last().unwrap();
    assert!(others.iter().all(|size| (1 << 17..1 << 18).contains(size)) && *last < 1 << 18, "{sizes:?}");
    // All of one second: numbers tell them apart.
    let mut all: Vec<_> =
        files(folder.path()).iter().flat_map(|name| rows(open(folder.path(), name))).collect();
    all.sort_by_key(|row| row["sourceTransportPort"].as_u64());
    assert_eq!(all, all_expected(&records, Fields::BASIC));
}

#[test]
fn files_end_with_their_intervals() {
    let folder = tempfile::tempdir().unwrap();
    // 13:05:01, 13:09:59.999 | 13:10:00, and one that comes late | 13:20:00.
    let minutes = 60_000;
    let times =
        [NOON, NOON + 5 * minutes - 1001, NOON + 5 * minutes - 1000, NOON, NOON + 15 * minutes - 1000];
    let records = times.map(|time| at(time, 1));
    let options = Options { every: Some(Duration::from_secs(300)), ..options() };
    let counts = export(folder.path(), options, &records, 10);
    assert_eq!((counts.files, counts.records), (3, 5));
    let names = files(folder.path());
    let counts = names.iter().map(|name| (&**name, rows(open(folder.path(), name)).len()));
    assert_eq!(
        counts.collect::<Vec<_>>(),
        [
            ("flows-20261127T130501Z-000001.parquet", 2),
            ("flows-20261127T131000Z-000001.parquet", 2),
            ("flows-20261127T132000Z-000001.parquet", 1)
        ]
    );
}

#[test]
fn a_live_run_ends_files_by_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { every: Some(Duration::from_millis(50)), ..options() };
    let mut exporter = Exporter::start(settings(folder.path(), options), None, false).unwrap();
    exporter.export(&[at(NOON, 1)]).unwrap();
    while exporter.counts().files == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(files(folder.path()), ["flows-20261127T130501Z-000001.parquet"]);
    exporter.export(&[at(NOON, 2)]).unwrap();
    exporter.finish().unwrap();
    exporter.publish().unwrap();
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn partitions_are_days_and_hours() {
    for (partition, names) in [
        (Partition::Day, ["date=2026-11-27", "date=2026-11-28"].as_slice()),
        (Partition::Hour, &["date=2026-11-27/hour=13", "date=2026-11-27/hour=14", "date=2026-11-28/hour=00"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let records =
            [0, HOUR, 1, 11 * HOUR, HOUR - 301_001, HOUR - 301_000].map(|after| at(NOON + after, 1));
        let counts = export(folder.path(), Options { partition, ..options() }, &records, 2);
        assert_eq!((counts.files, counts.records), (names.len() as u64, 6));
        for (name, folder_name) in files(folder.path()).iter().zip(names) {
            assert!(name.starts_with(&format!("{folder_name}/flows-2026112")), "{name}");
            for row in rows(open(folder.path(), name)) {
                let hour = row["flowStartMilliseconds"].as_u64().unwrap() / HOUR;
                let (day, hour) = (27 + (hour - 1_795_737_600_000 / HOUR) / 24, hour % 24);
                let expected = match partition {
                    Partition::Hour => format!("date=2026-11-{day}/hour={hour:02}"),
                    _ => format!("date=2026-11-{day}"),
                };
                assert_eq!(*folder_name, expected);
            }
        }
    }
}

/// Hours of 1970, and the last one that there is.
#[test]
fn few_partitions_are_open_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { partition: Partition::Hour, ..options() };
    let hours = [0, 1, 2, 3, 4, 5, 6, 7];
    let mut records: Vec<_> = hours.map(|hour| at(hour * HOUR, 1)).into();
    // The first one is used again; then the second one is the oldest.
    records.extend([at(0, 2), at(8 * HOUR, 1), at(1, 3), at(HOUR, 2)]);
    records.push(FlowRecord {
        forward: HalfFlow { first: Timestamp::from_nanos(u64::MAX), ..v4().forward },
        ..v4()
    });
    let counts = export(folder.path(), options, &records, 1);
    // Hour 1 has two files.
    assert_eq!((counts.files, counts.records, counts.not_sent), (11, 13, 0));
    let names = files(folder.path());
    assert_eq!(names.iter().filter(|name| name.contains("date=1970-01-01/hour=01/")).count(), 2);
    assert_eq!(names.iter().filter(|name| name.contains("date=1970-01-01/hour=00/")).count(), 1);
    assert!(names[10].starts_with("date=2554-07-21/hour=23/flows-25540721T233433Z"), "{}", names[10]);
}

/// Makes a folder's place a file.
fn block(folder: &Path) {
    fs::remove_dir_all(folder).unwrap();
    fs::write(folder, "").unwrap();
}

#[test]
fn a_run_over_a_capture_ends_where_a_file_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("flows");
    let mut exporter = Exporter::start(settings(&to, options()), None, true).unwrap();
    block(&to);
    exporter.export(&records()).unwrap();
    let error = exporter.finish().unwrap_err();
    assert!(matches!(&error, Error::File(_)));
    let text = error.to_string();
    assert!(text.starts_with(&*to.to_string_lossy()) && text.contains("expected a folder"), "{text}");
    assert_eq!(exporter.counts(), Counts { not_sent: 9, ..Counts::default() });
    // From the beginning, too.
    let error = Exporter::start(settings(&to, options()), None, true).unwrap_err().to_string();
    assert!(error.contains("expected a folder"), "{error}");
}

#[test]
fn a_live_run_counts_what_is_lost_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("flows");
    let mut exporter = Exporter::start(settings(&to, options()), None, false).unwrap();
    block(&to);
    exporter.export(&records()).unwrap();
    while exporter.counts().not_sent < 9 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let notice = exporter.notice().unwrap();
    assert!(notice.ends_with("records are left out, and counted"), "{notice}");
    // Where there is a place again it is used, after a second.
    fs::remove_file(&to).unwrap();
    let mut sent = 9;
    while exporter.counts().not_sent == sent {
        exporter.export(&[v4()]).unwrap();
        sent += 1;
        std::thread::sleep(Duration::from_millis(200));
    }
    exporter.finish().unwrap();
    let counts = exporter.counts();
    assert!(counts.records > 0 && counts.records + counts.not_sent == sent, "{counts:?}");
    assert_eq!(exporter.notice(), None);
    exporter.publish().unwrap();
    assert_eq!(files(&to).len(), 1);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = settings(Path::new("flows"), options());
    let messages = Format::Messages(message_options(messages::Protocol::Ipfix));
    for (settings, expected) in [
        (Settings { to: Destination::File("a".into()), ..folder.clone() }, "expected a folder"),
        (Settings { format: messages, ..folder.clone() }, "messages in a folder"),
        (Settings { rate: Some(1), ..folder.clone() }, "a rate"),
        (Settings { statistics_interval: Some(Duration::ZERO), ..folder.clone() }, "statistics"),
        (settings(Path::new("flows"), Options { bytes: 0, ..options() }), "flows: files of 0 bytes"),
    ] {
        let error = settings.check().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(folder.check().is_ok());
}

/// Prints all rows as pyarrow has them, in order of files; what partitions say is no column of a file.
const PYARROW: &str = r#"
import json, pathlib, sys
import pyarrow.parquet as pq
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.parquet")):
    table = pq.ParquetFile(path).read()
    for name, kind in zip(table.schema.names, table.schema.types):
        if "timestamp" in str(kind):
            assert str(kind) in ("timestamp[ms, tz=UTC]", "timestamp[us, tz=UTC]"), kind
            table = table.set_column(table.schema.names.index(name), name, table[name].cast("int64"))
    for row in table.to_pylist():
        row = {k: v.hex() if isinstance(v, bytes) else v for k, v in row.items() if v is not None}
        print(json.dumps(row))
"#;

/// Prints totals by partition as DuckDB has them.
const DUCKDB: &str = r#"
import json, sys
import duckdb
rows = duckdb.sql(f"""
    SET TimeZone = 'UTC';
    SELECT date::VARCHAR, hour::INTEGER, count(*), sum(packetDeltaCount), sum(octetDeltaCount),
        sum(reversePacketDeltaCount), sum(reverseOctetDeltaCount),
        min(epoch_ms(flowStartMilliseconds)), max(epoch_ms(flowEndMilliseconds)),
        min(coalesce(sourceIPv4Address, sourceIPv6Address)), max(octet_length(sourceAddressBytes)),
        min(date_part('hour', flowStartMilliseconds))
    FROM read_parquet('{sys.argv[1]}/**/*.parquet', hive_partitioning = true)
    GROUP BY ALL ORDER BY ALL
""").fetchall()
for row in rows:
    print(json.dumps([int(v) if not isinstance(v, str) else v for v in row]))
"#;

fn python(script: &str, folder: &Path) -> Vec<Value> {
    let output = Command::new("python3").args(["-c", script]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn pyarrow_reads_the_same_rows() {
    if !has_python_modules(&["pyarrow"]) {
        return;
    }
    for fields in PRESETS.map(|text| text.parse().unwrap()) {
        let folder = tempfile::tempdir().unwrap();
        export(folder.path(), Options::new(fields), &with_names(), 4);
        let expected = all_expected(&with_names(), fields).into_iter().map(Value::Object);
        assert_eq!(python(PYARROW, folder.path()), expected.collect::<Vec<_>>(), "{fields}");
    }
}

#[test]
fn duckdb_counts_the_same_totals() {
    if !has_python_modules(&["duckdb"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let hours = (0..40).map(|hour| NOON + HOUR * (hour % 5));
    let records: Vec<_> = (0..).zip(hours).map(|(number, time)| at(time, number)).collect();
    let records = [records.as_slice(), &[v4(), v6()]].concat();
    let options = Options { partition: Partition::Hour, rows: NonZeroU64::new(3).unwrap(), ..options() };
    let counts = export(folder.path(), options, &records, 7);
    assert_eq!(counts.records, 42);
    let hour_of = |record: &FlowRecord| record.start().as_millis() / HOUR;
    let mut hours: Vec<_> = records.iter().map(hour_of).collect();
    hours.sort_unstable();
    hours.dedup();
    let expected = hours.iter().map(|&hour| {
        let those: Vec<_> = records.iter().filter(|record| hour_of(record) == hour).collect();
        let sum = |of: &dyn Fn(&FlowRecord) -> u64| those.iter().map(|record| of(record)).sum::<u64>();
        json!([
            if hour_of(&v4()) == hour { "2026-09-21" } else { "2026-11-27" },
            hour % 24,
            those.len(),
            sum(&|it| it.forward.packets),
            sum(&|it| it.forward.bytes),
            sum(&|it| it.reverse.packets),
            sum(&|it| it.reverse.bytes),
            those.iter().map(|it| it.start().as_millis()).min(),
            those.iter().map(|it| it.end().as_millis()).max(),
            those.iter().map(|it| it.source.to_string()).min(),
            16,
            hour % 24,
        ])
    });
    assert_eq!(python(DUCKDB, folder.path()), expected.collect::<Vec<_>>());
}
