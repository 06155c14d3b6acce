//! Reports of meter, and its Parquet files.

#![allow(missing_docs)]

mod support;

use std::path::{Path, PathBuf};
use std::{fs, process::Command};

use serde_json::Value;
use support::{json, packetloom, root, run, schema, stderr, succeed};

fn edge() -> PathBuf {
    root().join("examples/edge/edge.pcap")
}

/// What meter writes in a folder.
fn meter(folder: &Path, arguments: &[&str]) -> String {
    succeed(packetloom().current_dir(folder).args(["-q", "meter", "-r"]).arg(edge()).args(arguments))
}

#[test]
fn reports_count_what_records_say() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines = meter(folder.path(), &[]);
    let (mut bytes, mut packets, mut flows) = (0, 0, 0);
    let mut of_web = 0;
    for line in lines.lines() {
        let record: Value = serde_json::from_str(line).expect("JSON");
        let number = |name: &str| record[name].as_u64().expect("a number");
        bytes += number("octetDeltaCount") + number("reverseOctetDeltaCount");
        packets += number("packetDeltaCount") + number("reversePacketDeltaCount");
        flows += 1 + u64::from(number("reversePacketDeltaCount") > 0);
        if number("destinationTransportPort") == 80 {
            of_web += number("octetDeltaCount");
        }
    }
    for workers in ["1", "3"] {
        let arguments =
            ["--top", "destination-port/bytes", "--top-rows", "100", "--series", "10s", "--report", "r.json"];
        // Records are not written beside it.
        assert_eq!(meter(folder.path(), &[&arguments[..], &["--workers", workers]].concat()), "");
        let reports = json(&folder.path().join("r.json"));
        let text = succeed(packetloom().args(["schema", "report"]));
        let known: Value = serde_json::from_str(&text).expect("a schema");
        assert_eq!(schema::check(&known, &reports), Ok(()));
        let [top, series] = [0, 1].map(|report| &reports["reports"][report]);
        for report in [top, series] {
            assert_eq!(report["total"]["bytes"], bytes, "{report:#}");
            assert_eq!(report["total"]["packets"], packets);
            assert_eq!(report["total"]["flows"], flows);
        }
        let text = top.to_string();
        assert!(text.contains(&format!("\"bytes\":{of_web}")), "{of_web} in {text}");
    }
}

#[test]
fn reports_are_tables_and_pictures() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = meter(folder.path(), &["--top", "source", "--top-rows", "2"]);
    assert!(table.starts_with("Top source by bytes: "), "{table}");
    assert_eq!(table.lines().count(), 5, "{table}");
    meter(folder.path(), &["--top", "source", "--top-rows", "2", "--report", "r.txt"]);
    assert_eq!(fs::read_to_string(folder.path().join("r.txt")).expect("text"), table);
    // With records in a file.
    meter(
        folder.path(),
        &["--top", "sslServerName/flows", "--series", "1s/protocol", "--report", "r.svg", "-o", "flows"],
    );
    let picture = fs::read_to_string(folder.path().join("r.svg")).expect("text");
    let document = roxmltree::Document::parse(&picture).expect("XML");
    assert_eq!(document.root_element().tag_name().name(), "svg");
    let lines = fs::read_to_string(folder.path().join("flows")).expect("text");
    assert_eq!(lines.lines().count(), meter(folder.path(), &[]).lines().count());
}

#[test]
fn what_is_no_report_is_refused() {
    for (arguments, expected) in [
        (&["--top", "nothing"][..], "expected"),
        (&["--series", "often"], "expected"),
        (&["--report", "r.txt"], "--report without --top and --series; expected one of them"),
        (&["--top", "source", "--report", "r.pdf"], "r.pdf"),
        (&["--top-rows", "3"], "--top"),
        (&["--top", "source", "--top-rows", "2M"], "expected a number from 1 to 1000000"),
        (&["--top", "source", "-o", "-"], "-"),
        (&["--top", "source", "--format", "csv"], "--format csv without -o; expected a file for the lines"),
        (&["--parquet", "p", "--parquet", "p"], "expected each place once"),
        (
            &["--netflow9", "udp://127.0.0.1:9", "--fields", "sslServerName"],
            "NetFlow v9 has too few; expected some more",
        ),
        (&["--partition", "day"], "--parquet"),
        (&["--parquet", "p", "--partition", "week"], "\"week\" is no partition; expected none, day or hour"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let output = run(packetloom().current_dir(&folder).args(["meter", "-r"]).arg(edge()).args(arguments));
        assert_ne!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

/// Files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn parquet_files_have_all_records() {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = ["--parquet", "flows", "--partition", "hour", "--fields", "full", "--summary", "s.json"];
    assert_eq!(meter(folder.path(), &arguments), "");
    let found = files(&folder.path().join("flows"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].to_string_lossy().contains("date=2026-11-21/hour=08/"), "{found:?}");
    let bytes = fs::read(&found[0]).expect("a file");
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    let export = &json(&folder.path().join("s.json"))["exports"][0];
    let records = meter(folder.path(), &[]).lines().count();
    assert_eq!(export["protocol"], "parquet");
    assert_eq!((&export["records"], &export["files"]), (&records.into(), &1.into()));
    assert_eq!(export["bytes"], bytes.len());
}

#[test]
fn duckdb_reads_the_same_totals() {
    if !packetloom_testing::has_python_modules(&["duckdb"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let chain = "[[chain]]\nnf = \"meter\"\noutput = \"flows.jsonl\"\n[[chain.export]]\nto = \"flows\"\nprotocol = \"parquet\"\nfile_rows = 100\n";
    fs::write(folder.path().join("chain.toml"), chain).expect("written");
    succeed(packetloom().current_dir(&folder).args(["-q", "run", "chain.toml", "-r"]).arg(edge()));
    assert_eq!(files(&folder.path().join("flows")).len(), 4);
    let query = "import duckdb; print(*duckdb.sql(\"select count(*), sum(packetDeltaCount + reversePacketDeltaCount), \
        sum(octetDeltaCount + reverseOctetDeltaCount) from 'flows/*.parquet'\").fetchall()[0])";
    let output = Command::new("python3").current_dir(&folder).args(["-c", query]).output().expect("python3");
    let text = fs::read_to_string(folder.path().join("flows.jsonl")).expect("text");
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let sum = |names: [&str; 2]| -> u64 {
        records.iter().flat_map(|record| names.map(|name| record[name].as_u64().expect("a number"))).sum()
    };
    let expected = format!(
        "{} {} {}\n",
        records.len(),
        sum(["packetDeltaCount", "reversePacketDeltaCount"]),
        sum(["octetDeltaCount", "reverseOctetDeltaCount"])
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", stderr(&output));
}
