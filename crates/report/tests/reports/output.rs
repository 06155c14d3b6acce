//! What reports look like: the same every time, and whatever names are in them.
//!
//! `PACKETLOOM_GOLDEN=1` writes the expected files anew.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use packetloom_packet::{EndReason, FlowRecord, NameKind};
use packetloom_report::{Bounds, Error, Format, Reports, Series, SeriesSpec, Top, TopSpec, schema};
use packetloom_testing::amount;
use proptest::prelude::*;
use roxmltree::Document;
use serde_json::{Value, json};

use crate::records::{any_records, half, named, record};

#[path = "../../../cli/tests/support/schema.rs"]
#[allow(unreachable_pub, reason = "it belongs to other tests, too")]
mod checker;

/// A few flows whose reports can be read.
fn records() -> Vec<FlowRecord> {
    let web = |number: u16, host: &str, packets: u64| {
        let first = u64::from(number) * 7_000;
        let forward = half(first, first + 20_000, packets, packets * 90);
        let reverse = half(first + 10, first + 20_000, 2 * packets, packets * 2_800);
        let ports = [50_000 + number, 443];
        let source = format!("192.0.2.{}", 1 + number % 4);
        named(
            FlowRecord { reverse, ..record(&source, "198.51.100.7", ports, forward) },
            NameKind::TlsServer,
            host,
        )
    };
    let mut records: Vec<_> = (0..12)
        .map(|number| {
            web(
                number,
                ["example.com", "bücher.example", "a.example"][usize::from(number % 3)],
                5 + u64::from(number),
            )
        })
        .collect();
    let query = half(30_000, 30_000, 1, 71);
    let answer = half(30_020, 30_020, 1, 187);
    records.push(FlowRecord {
        protocol: 17,
        reverse: answer,
        end_reason: EndReason::ForcedEnd,
        ..named(record("2001:db8::5", "2001:db8::53", [40_000, 53], query), NameKind::DnsQuery, "example.com")
    });
    records.push(FlowRecord {
        protocol: 1,
        ..record("192.0.2.1", "198.51.100.7", [0, 0], half(31_000, 60_000, 30, 2_520))
    });
    records
}

fn reports(records: &[FlowRecord], tops: &[&str], series: &[&str]) -> Reports {
    let tops: Vec<TopSpec> = tops.iter().map(|spec| spec.parse().unwrap()).collect();
    let series: Vec<SeriesSpec> = series.iter().map(|spec| spec.parse().unwrap()).collect();
    let mut reports = Reports::new(tops, series);
    records.iter().for_each(|record| reports.add(record));
    reports
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports/golden").join(name)
}

fn check_golden(reports: &Reports, name: &str) {
    for ending in ["txt", "json", "svg"] {
        let path = golden(&format!("{name}.{ending}"));
        let found = reports.write(Format::of(&path).unwrap());
        if std::env::var_os("PACKETLOOM_GOLDEN").is_some() {
            fs::write(&path, &found).unwrap();
        }
        let expected = fs::read_to_string(&path).unwrap();
        assert!(found == expected, "{} differs:\n{found}", path.display());
    }
}

/// The text of all elements of a name.
fn elements<'a>(document: &'a Document<'_>, name: &str) -> Vec<&'a str> {
    let all = document.descendants().filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", name)));
    all.filter_map(|node| node.text()).collect()
}

/// Holds all outputs to what is promised of any: JSON to the schema, SVG to XML, tables to their columns.
fn check(reports: &Reports) {
    let json = reports.json();
    checker::check(&schema::reports(), &json).unwrap();
    let written: Value = serde_json::from_str(&reports.write(Format::Json)).unwrap();
    assert_eq!(written, json);
    let svg = reports.svg();
    let document = Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
    assert_eq!(document.root_element().tag_name().name(), "svg");
    assert!(!elements(&document, "script").iter().any(|_| true));
    assert!(!svg.contains("NaN") && !svg.contains("inf\""));
    for text in [&svg, &reports.text()] {
        let hidden = |letter: char| {
            letter != '\n' && letter.is_control() || ('\u{202a}'..='\u{202e}').contains(&letter)
        };
        assert!(!text.contains(hidden), "{text:?}");
    }
}

#[test]
fn tables_json_and_pictures_of_a_few_flows() {
    let reports = reports(
        &records(),
        &["source", "address+port/packets", "flow/flows", "sslServerName"],
        &["10s", "10s/protocol/packets"],
    );
    check(&reports);
    check_golden(&reports, "few");
    let document = reports.svg();
    let document = Document::parse(&document).unwrap();
    // Each bar, each interval and each line of a legend say what they are.
    assert!(elements(&document, "title").iter().any(|it| it.starts_with("198.51.100.7: ")));
    assert!(elements(&document, "title").iter().any(|it| it.starts_with("2026-09-21T14:13:20Z: ")));
    for axis in
        ["IP bytes", "IP bytes per 10s", "packets per 10s", "flows per 10s", "time (UTC), from 2026-09-21"]
    {
        assert!(elements(&document, "text").contains(&axis), "{axis}");
    }
}

#[test]
fn nothing_is_a_report_as_well() {
    let reports = reports(&[], &["source", "dnsQName/flows"], &["1m", "1m/protocol"]);
    check(&reports);
    check_golden(&reports, "nothing");
    assert_eq!(Reports::default().text(), "");
    assert_eq!(Reports::default().json(), json!({ "reports": [] }));
    check(&Reports::default());
}

/// Reports that are not exact say so.
#[test]
fn errors_are_in_all_outputs() {
    let spec = |text: &str| text.parse::<TopSpec>().unwrap().with_rows(NonZeroUsize::new(3).unwrap());
    let mut top = Top::with_keys(spec("source/packets"), NonZeroUsize::new(3).unwrap());
    let bounds = Bounds { intervals: 4, cells: 6 };
    let mut series = Series::with_bounds("1s/destination-port".parse().unwrap(), bounds);
    for record in records() {
        top.add(&record);
        series.add(&record);
    }
    assert!(!top.is_exact() && !series.is_exact());
    let reports = Reports::from_parts(vec![top], vec![series]);
    check(&reports);
    check_golden(&reports, "inexact");
    let (text, svg) = (reports.text(), reports.svg());
    for said in [
        "more than 3 distinct values",
        "Not exact: packets may be less",
        "Intervals are 32s, not 1s",
        "(error)",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    for said in ["Not exact: a bar may be shorter", "url(#unsure)", "Intervals are 32s, not 1s"] {
        assert!(svg.contains(said), "{said}: {svg}");
    }
    let json = reports.json();
    assert_eq!(json["reports"][0]["exact"], false);
    assert!(json["reports"][0]["error"].as_u64().unwrap() > 0);
    assert_eq!(json["reports"][1]["asked_interval_ms"], 1_000);
    assert_eq!(json["reports"][1]["interval_ms"], 32_000);
}

#[test]
fn hostile_names_are_shown_and_do_nothing() {
    let names = [
        "</text><script>alert(1)</script>",
        "\u{1b}]0;title\u{7}\u{1b}[2J",
        "a\nb\rc\td\0e",
        "x\u{202e}gpj.exe",
        "\" onload=\"x & <!-- ]]>",
        "\\u{1b}",
        "\u{ffff}\u{fffe}\u{feff}",
    ];
    let long = "ä".repeat(4_000);
    let flows = names.into_iter().chain([&*long]).map(|name| {
        named(record("192.0.2.1", "192.0.2.2", [1, 80], half(0, 100, 2, 100)), NameKind::HttpHost, name)
    });
    let reports = reports(
        &flows.collect::<Vec<_>>(),
        &["httpRequestHost", "source+httpRequestHost/flows"],
        &["1s/httpRequestHost"],
    );
    check(&reports);
    let text = reports.text();
    assert!(text.contains(r"\u{1b}]0;title\u{7}\u{1b}[2J"), "{text}");
    assert!(text.contains(r"a\u{a}b\u{d}c\u{9}d\u{0}e"), "{text}");
    // What looks like an escape is another name than what it stands for.
    assert!(text.contains(r"\\u{1b}"), "{text}");
    let json = reports.json();
    let rows = json["reports"][0]["rows"].as_array().unwrap();
    let found: Vec<_> = rows.iter().filter_map(|row| row["key"]["httpRequestHost"].as_str()).collect();
    assert!(names.iter().all(|name| found.contains(name)), "JSON has names as they are");
    assert!(!reports.svg().contains("<script"));
}

#[test]
fn formats_are_those_of_names() {
    for (name, format) in [("a.txt", Format::Text), ("b/c.JSON", Format::Json), ("d.e.svg", Format::Svg)] {
        assert_eq!(Format::of(Path::new(name)), Ok(format));
    }
    for name in ["a", "a.png", ".svg", "svg", ""] {
        assert_eq!(Format::of(Path::new(name)), Err(Error::Format(name.into())));
    }
}

#[test]
fn reports_merge_and_say_what_they_need() {
    let records = records();
    let of = |records: &[FlowRecord]| reports(records, &["source/flows", "vlan"], &["10s/sslServerName"]);
    let all = of(&records);
    let mut merged = of(&records[..5]);
    merged.merge(&of(&records[5..]));
    assert_eq!(merged.json(), all.json());
    assert_eq!(all.fields().to_string(), "sourceIPv4Address,vlanId,sslServerName");
    assert_eq!((all.tops().len(), all.series().len()), (2, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(amount(64, 2_000)))]

    #[test]
    fn any_records_have_valid_reports(records in any_records(40), keys in 1..6_usize, cells in 1..50_usize, intervals in 2..2_000_usize) {
        let tops = ["sslServerName", "flow/packets", "vlan+address/flows"].map(|spec| {
            let spec = spec.parse::<TopSpec>().unwrap().with_rows(NonZeroUsize::MIN);
            Top::with_keys(spec, NonZeroUsize::new(keys).unwrap())
        });
        let series = ["100ms", "1s/vlan/flows", "10s/sslServerName"]
            .map(|spec| Series::with_bounds(spec.parse().unwrap(), Bounds { intervals, cells }));
        let mut reports = Reports::from_parts(tops.into(), series.into());
        records.iter().for_each(|record| reports.add(record));
        check(&reports);
    }
}
