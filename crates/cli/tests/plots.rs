//! `packetloom plot`: each series, label and point of a picture is where its figure is, and input that cannot be drawn is named.

#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use roxmltree::{Document, Node};
use serde_json::{Value, json};
use support::{packetloom, run, stderr, succeed};
use tempfile::TempDir;

const BATCHES: [u32; 4] = [64, 1024, 16_384, 1_048_576];

/// A line as `bench device --json` prints it.
fn device_row(algorithm: &str, batch: u32, mpps: f64, rules: u32) -> Value {
    json!({
        "workload": format!("device acl1_{rules}.rules.xz"), "device": "GPU <1> & \"2\"", "transport": "on-device",
        "algorithm": algorithm, "specialised": true, "rules": rules, "packets": 1 << 20, "batch": batch, "mpps": mpps,
        "mpps_min": mpps * 0.9, "mpps_max": mpps * 1.1, "latency_us_p50": f64::from(batch) / mpps,
        "latency_us_p99": f64::from(batch) / mpps + 5.0, "latency_us_max": 1e6, "core_mpps": 20.0, "cores": 1.0,
        "rounds": 7, "machine": "a processor", "version": "0.1.0", "commit": null,
    })
}

/// Two algorithms over batch sizes at 1,000 rules.
fn over_batches() -> Vec<Value> {
    let rates = [("masks", [4.0, 50.0, 300.0, 2500.0]), ("linear", [2.0, 10.0, 100.0, 900.0])];
    let of = |(name, rates): (&'static str, [f64; 4])| {
        BATCHES.into_iter().zip(rates).map(move |(batch, mpps)| device_row(name, batch, mpps, 1000))
    };
    rates.into_iter().flat_map(of).collect()
}

/// What a measurement of a workload has, of rounds whose quartiles are 0.8 and 1.25 times as fast.
fn measurement(workload: &str, mpps: f64, more: &Value) -> Value {
    let mut row = json!({
        "workload": workload, "mpps": mpps, "mpps_cpu": mpps, "ns_per_packet": 1e3 / mpps, "p25": 800.0 / mpps,
        "p75": 1250.0 / mpps, "cpu_ns_per_packet": 1e3 / mpps, "cpu_p25": 800.0 / mpps, "cpu_p75": 1250.0 / mpps,
        "classifier": null, "batch": 256, "device": "cpu", "packets": 1 << 21, "rounds": 5,
    });
    for (name, value) in more.as_object().expect("fields") {
        row[name] = value.clone();
    }
    row
}

fn chain_row(workers: u32, flows: u32, mpps: f64) -> Value {
    let more = json!({
        "workers": workers, "shared": null, "flows": flows, "distribution": "uniform", "packet_size": 64,
        "passed": 1.0, "new_flows": null, "flood": null, "offered_mpps": null, "latency_us_p50": null,
    });
    measurement("chain fw, balancer", mpps, &more)
}

fn offered_row(offered: f64, p50: f64, p99: f64) -> Value {
    let mut row = chain_row(1, 10_000, offered);
    for (name, value) in [("offered_mpps", offered), ("latency_us_p50", p50), ("latency_us_p99", p99)] {
        row[name] = value.into();
    }
    row
}

fn text(rows: &[Value]) -> String {
    rows.iter().fold(String::new(), |mut text, row| {
        writeln!(text, "{row}").expect("text");
        text
    })
}

/// A folder with a file of these lines.
fn folder(lines: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rows"), lines).expect("written");
    folder
}

/// The command in a folder.
fn plot(folder: &Path) -> Command {
    let mut command = packetloom();
    command.current_dir(folder).arg("plot").stdin(Stdio::null());
    command
}

/// The files of a folder.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    entries.map(|path| (name(&path), fs::read_to_string(&path).expect("text"))).collect()
}

/// The plots of these rows.
fn drawn(rows: &[Value]) -> BTreeMap<String, String> {
    let folder = folder(&text(rows));
    let said = succeed(plot(folder.path()).args(["-o", "out", "rows"]));
    let files = files(&folder.path().join("out"));
    let mut names: Vec<_> = said.lines().map(|line| line.trim_start_matches("out/").to_owned()).collect();
    names.sort();
    assert_eq!(names, files.keys().cloned().collect::<Vec<_>>(), "they are listed");
    files
}

type Place = (f64, f64);

/// The numbers of a list of points.
fn points(node: Node<'_, '_>) -> Vec<Place> {
    let list = node.attribute("points").expect("points");
    let pair = |pair: &str| {
        let (x, y) = pair.split_once(',').expect("two");
        (x.parse().expect("a number"), y.parse().expect("a number"))
    };
    list.split_whitespace().map(pair).collect()
}

fn attribute(node: Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{name} of {node:?}"))
}

/// What an SVG file shows.
struct Picture<'a>(Document<'a>);

impl<'a> Picture<'a> {
    fn of(svg: &'a str) -> Self {
        let document = Document::parse(svg).expect("XML");
        assert_eq!(document.root_element().tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        Self(document)
    }

    fn all(&self, tag: &'static str) -> impl Iterator<Item = Node<'_, 'a>> {
        self.0.descendants().filter(move |node| node.has_tag_name(tag))
    }

    fn texts(&self) -> Vec<&str> {
        self.all("text").map(|node| node.text().unwrap_or_default().trim()).collect()
    }

    fn text(&self, words: &str) -> Node<'_, 'a> {
        let found =
            self.all("text").filter(|node| node.text().is_some_and(|text| text.trim() == words)).last();
        found.unwrap_or_else(|| panic!("no {words:?} in {:?}", self.texts()))
    }

    /// Values of the marks of an axis and where they are; checks that all are where a scale has them.
    fn axis(&self, is_across: bool, is_log: bool) -> impl Fn(f64) -> f64 {
        let ticks = self.all("text").filter(|node| {
            let anchor = if is_across { ("middle", "0.76em") } else { ("end", "0.5ex") };
            (node.attribute("text-anchor"), node.attribute("dy")) == (Some(anchor.0), Some(anchor.1))
                && node.attribute("transform").is_none()
        });
        let value = |text: &str| {
            let (number, unit) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
            let times = ["", "Ki", "Mi", "Gi"].iter().position(|name| *name == unit).expect("a unit");
            number.replace(',', "").parse::<f64>().expect("a number") * 1024_f64.powi(times as i32)
        };
        let of = move |value: f64| if is_log { value.log10() } else { value };
        let at = |node: Node<'_, '_>| attribute(node, if is_across { "x" } else { "y" });
        let ticks: Vec<_> = ticks.map(|node| (of(value(node.text().expect("a number"))), at(node))).collect();
        let (&[first, ..], &[.., last]) = (&ticks[..], &ticks[..]) else { panic!("no marks: {ticks:?}") };
        let place = move |value: f64| first.1 + (value - first.0) / (last.0 - first.0) * (last.1 - first.1);
        assert!(ticks.len() >= 2 && first.1 != last.1, "{ticks:?}");
        for (value, at) in ticks {
            assert!((place(value) - at).abs() <= 1.5, "{value} at {at}, not {}", place(value));
        }
        move |value| place(of(value))
    }

    /// The colour of what the legend calls so, whether it is hollow, and its markers' places but for the one in the legend.
    fn series(&self, label: &str) -> (String, bool, Vec<Place>) {
        let (x, y) = (attribute(self.text(label), "x") - 20.0, attribute(self.text(label), "y"));
        let corners = |node: &Node<'_, 'a>| points(*node);
        let is_near = |node: &Node<'_, 'a>| {
            corners(node).iter().all(|corner| (corner.0 - x).abs() < 8.0 && (corner.1 - y).abs() < 8.0)
        };
        let polygons: Vec<_> = self.all("polygon").collect();
        let own =
            polygons.iter().find(|node| is_near(node)).unwrap_or_else(|| panic!("no sample of {label}"));
        let is_hollow = own.attribute("fill") == Some("#FFFFFF");
        // A hollow one has its outline after it.
        let colour = |node: &Node<'_, 'a>| match is_hollow {
            true => node.next_sibling_element().and_then(|next| next.attribute("stroke").map(str::to_owned)),
            false => node.attribute("fill").map(str::to_owned),
        };
        let from = |node: &Node<'_, 'a>, by: Place| -> Vec<Place> {
            corners(node).iter().map(|corner| (corner.0 - by.0, corner.1 - by.1)).collect()
        };
        let (first, shape) = (corners(own)[0], from(own, corners(own)[0]));
        let same = polygons.iter().filter(|node| {
            *node != own
                && node.attribute("fill") == own.attribute("fill")
                && colour(node) == colour(own)
                && from(node, corners(node)[0]) == shape
        });
        let places = same.map(|node| (corners(node)[0].0 - first.0 + x, corners(node)[0].1 - first.1 + y));
        (colour(own).expect("a colour"), is_hollow, places.collect())
    }

    /// Has a series have these points and no others.
    fn assert_series(&self, label: &str, logs: [bool; 2], expected: &[Place]) {
        let (across, up) = (self.axis(true, logs[0]), self.axis(false, logs[1]));
        let (colour, is_hollow, places) = self.series(label);
        assert_eq!(places.len(), expected.len(), "points of {label}: {places:?}");
        for (place, (x, y)) in places.iter().zip(expected) {
            let expected = (across(*x), up(*y));
            let is_near = (place.0 - expected.0).abs() <= 2.0 && (place.1 - expected.1).abs() <= 2.0;
            assert!(is_near, "{label}: ({x}, {y}) at {place:?}, not {expected:?}");
        }
        // A line goes through them.
        let width = if is_hollow { "1" } else { "2" };
        let is_line = |node: &Node<'_, 'a>| {
            node.attribute("stroke") == Some(&colour) && node.attribute("stroke-width") == Some(width)
        };
        let through = |node: Node<'_, 'a>| {
            points(node).len() == places.len()
                && points(node)
                    .iter()
                    .zip(&places)
                    .all(|(a, b)| (a.0 - b.0).abs() <= 1.0 && (a.1 - b.1).abs() <= 1.0)
        };
        assert!(self.all("polyline").filter(is_line).any(through), "a line of {label}");
    }

    /// Has a series have bars from the lowest to the highest at x.
    fn assert_spread(&self, label: &str, logs: [bool; 2], x: f64, low: f64, high: f64) {
        let (across, up) = (self.axis(true, logs[0]), self.axis(false, logs[1]));
        let (colour, ..) = self.series(label);
        let wanted = [(across(x), up(low)), (across(x), up(high))];
        let is_it = |node: Node<'_, 'a>| {
            let found = points(node);
            node.attribute("stroke") == Some(&colour)
                && found.len() == 2
                && found.iter().zip(wanted).all(|(a, b)| (a.0 - b.0).abs() <= 2.0 && (a.1 - b.1).abs() <= 2.0)
        };
        assert!(self.all("polyline").any(is_it), "{label} from {low} to {high} at {x}: {wanted:?}");
    }

    /// Labels of bars, and how long these are on the axis.
    fn bars(&self) -> Vec<(String, f64)> {
        let across = self.axis(true, false);
        let scale = (across(1.0) - across(0.0), across(0.0));
        let bars = self.all("rect").skip(1).map(|node| {
            assert!((attribute(node, "x") - scale.1).abs() <= 1.0, "bars begin at 0");
            let middle = attribute(node, "y") + attribute(node, "height") / 2.0;
            let is_beside = |text: &Node<'_, 'a>| {
                text.attribute("text-anchor") == Some("end") && (attribute(*text, "y") - middle).abs() < 4.0
            };
            let label = self.all("text").find(is_beside).and_then(|text| text.text()).expect("a label");
            (label.trim().to_owned(), attribute(node, "width") / scale.0)
        });
        bars.collect()
    }
}

fn assert_has(svg: &str, words: &[&str]) {
    let picture = Picture::of(svg);
    for word in words {
        picture.text(word);
    }
}

#[test]
fn devices_are_drawn_over_batches_and_rules() {
    let mut rows = over_batches();
    for rules in [10, 100, 10_000] {
        rows.push(device_row("masks", BATCHES[3], 2500.0, rules));
        rows.push(device_row("linear", BATCHES[3], 9e5 / f64::from(rules), rules));
    }
    let plots = drawn(&rows);
    let names =
        ["latency-batch-log.svg", "latency-batch.svg", "throughput-batch.svg", "throughput-rules.svg"];
    assert_eq!(plots.keys().collect::<Vec<_>>(), names);
    let over = |rates: [f64; 4]| BATCHES.map(f64::from).into_iter().zip(rates).collect::<Vec<_>>();
    let (masks, linear) = (over([4.0, 50.0, 300.0, 2500.0]), over([2.0, 10.0, 100.0, 900.0]));

    let picture = Picture::of(&plots["throughput-batch.svg"]);
    picture.assert_series("masks", [true; 2], &masks);
    picture.assert_series("linear", [true; 2], &linear);
    picture.assert_series("one core", [true; 2], &over([20.0; 4]));
    picture.assert_spread("masks", [true; 2], 1024.0, 45.0, 55.0);
    picture.assert_spread("linear", [true; 2], 64.0, 1.8, 2.2);
    let words = [
        "acl1_1000 on GPU <1> & \"2\"",
        "Batch (packets)",
        "Throughput (Mpps)",
        "1 Ki",
        "1 Mi",
        "a processor",
    ];
    assert_has(&plots["throughput-batch.svg"], &words);
    assert_has(
        &plots["throughput-batch.svg"],
        &["on-device; compiled for the rules; 1,000 rules; bars: lowest to highest round"],
    );

    for (name, is_log) in [("latency-batch.svg", false), ("latency-batch-log.svg", true)] {
        let picture = Picture::of(&plots[name]);
        let latency: Vec<_> = masks.iter().map(|(batch, mpps)| (*batch, batch / mpps)).collect();
        picture.assert_series("masks", [is_log; 2], &latency);
        assert_has(&plots[name], &["Latency (µs)", "99th percentile"]);
        // The thin line is five microseconds above.
        let above: Vec<_> = latency.iter().map(|(x, y)| (*x, y + 5.0)).collect();
        let (across, up) = (picture.axis(true, is_log), picture.axis(false, is_log));
        let (colour, ..) = picture.series("masks");
        let is_thin = |node: &Node<'_, '_>| {
            node.attribute("stroke") == Some(&colour) && node.attribute("stroke-width") == Some("1")
        };
        let thin = picture.all("polyline").filter(is_thin).map(points).find(|points| points.len() == 4);
        for (place, (x, y)) in thin.expect("a thin line").into_iter().zip(above) {
            let expected = (across(x), up(y));
            assert!((place.0 - expected.0).abs() <= 2.0 && (place.1 - expected.1).abs() <= 2.0, "{place:?}");
        }
    }

    // Rule sets of different sizes are one line, of the batch size that all were measured with.
    let picture = Picture::of(&plots["throughput-rules.svg"]);
    picture.assert_series("linear", [true; 2], &[(10.0, 9e4), (100.0, 9e3), (1e3, 900.0), (1e4, 90.0)]);
    picture.assert_series("one core", [true; 2], &[(10.0, 20.0), (100.0, 20.0), (1e3, 20.0), (1e4, 20.0)]);
    assert_has(&plots["throughput-rules.svg"], &["acl1 on GPU <1> & \"2\"", "Rules", "10,000"]);
    for (name, svg) in &plots {
        assert!(svg.len() < 32_768 && !svg.contains("script"), "{name}");
    }
}

#[test]
fn chains_are_drawn_over_workers_flows_and_offered_loads() {
    let mut rows = Vec::new();
    for (flows, times) in [(10_000, 1.0), (2_000_000, 0.5)] {
        let of = |(workers, mpps): (u32, f64)| chain_row(workers, flows, mpps * times);
        rows.extend([(1, 20.0), (2, 38.0), (4, 70.0), (8, 120.0)].map(of));
    }
    // Part of a line over flows, so no lonely point over workers.
    rows.push(chain_row(1, 20, 21.0));
    rows.extend(
        [(1.0, 0.5, 2.0), (5.0, 0.75, 4.0), (10.0, 1.5, 8.0)].map(|(at, p50, p99)| offered_row(at, p50, p99)),
    );
    let plots = drawn(&rows);
    assert_eq!(
        plots.keys().collect::<Vec<_>>(),
        ["latency-offered.svg", "throughput-flows.svg", "throughput-workers.svg"]
    );
    let picture = Picture::of(&plots["throughput-workers.svg"]);
    picture.assert_series("10,000 flows", [false; 2], &[(1.0, 20.0), (2.0, 38.0), (4.0, 70.0), (8.0, 120.0)]);
    picture.assert_series(
        "2,000,000 flows",
        [false; 2],
        &[(1.0, 10.0), (2.0, 19.0), (4.0, 35.0), (8.0, 60.0)],
    );
    picture.assert_spread("10,000 flows", [false; 2], 4.0, 56.0, 87.5);
    // From one worker to eight times that.
    picture.assert_perfect("2,000,000 flows", [(1.0, 10.0), (8.0, 80.0)]);
    assert_has(
        &plots["throughput-workers.svg"],
        &[
            "perfect scaling",
            "Workers",
            "fw, balancer on cpu",
            "uniform; packets of 64 bytes; batches of 256; bars: quartiles of the rounds",
        ],
    );
    let picture = Picture::of(&plots["throughput-flows.svg"]);
    picture.assert_series("1 worker", [true, false], &[(20.0, 21.0), (1e4, 20.0), (2e6, 10.0)]);
    picture.assert_series("8 workers", [true, false], &[(1e4, 120.0), (2e6, 60.0)]);
    let picture = Picture::of(&plots["latency-offered.svg"]);
    picture.assert_series("fw, balancer", [false; 2], &[(1.0, 0.5), (5.0, 0.75), (10.0, 1.5)]);
    assert_has(&plots["latency-offered.svg"], &["Offered (Mpps)", "99th percentile"]);

    // Latencies that differ by much have a logarithmic axis.
    let far = [(1.0, 0.5, 2.0), (5.0, 0.75, 4.0), (10.0, 1.5, 9000.0)]
        .map(|(at, p50, p99)| offered_row(at, p50, p99));
    let plots = drawn(&far);
    let picture = Picture::of(&plots["latency-offered.svg"]);
    picture.assert_series("fw, balancer", [false, true], &[(1.0, 0.5), (5.0, 0.75), (10.0, 1.5)]);
}

impl<'a> Picture<'a> {
    /// Has a thin line in a series' colour lead from one point to the other.
    fn assert_perfect(&self, label: &str, ends: [Place; 2]) {
        let (across, up) = (self.axis(true, false), self.axis(false, false));
        let (colour, ..) = self.series(label);
        let is_it = |node: Node<'_, 'a>| {
            let found = points(node);
            node.attribute("stroke") == Some(&colour)
                && found.len() == 2
                && found
                    .iter()
                    .zip(ends)
                    .all(|(a, (x, y))| (a.0 - across(x)).abs() <= 2.0 && (a.1 - up(y)).abs() <= 2.0)
        };
        assert!(self.all("polyline").any(is_it), "a line of {label} to {ends:?}");
    }
}

fn close(found: Vec<(String, f64)>, expected: &[(&str, f64)]) {
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((label, value), (name, figure)) in found.iter().zip(expected) {
        assert!(label == name && (value - figure).abs() <= figure * 0.02 + 0.1, "{found:?}");
    }
}

#[test]
fn a_meter_on_a_device_is_drawn_over_bursts_slices_and_blocks() {
    let row = |hash: &str, burst: u32, slice: u32, mpps: f64| {
        let more = json!({
            "workers": 1, "records": 5, "device": "device", "on": "a GPU", "memory": "device", "launch": "burst",
            "in_flight": 4, "slice": slice, "parse": "local", "block": 256, "keys_per_thread": 1, "hash": hash,
            "stage": "all", "table_mb": 1.0, "batch": burst,
        });
        measurement("meter a.pcap", mpps, &more)
    };
    let rows = [("fold", 500.0), ("xxh32", 400.0)].map(|(hash, mpps)| {
        [row(hash, 64, 64, mpps / 10.0), row(hash, 65_536, 64, mpps), row(hash, 65_536, 128, mpps / 2.0)]
    });
    let plots = drawn(&rows.concat());
    assert_eq!(
        plots.keys().collect::<Vec<_>>(),
        ["meter-burst.svg", "meter-device.svg", "meter-slice.svg"],
        "no line has two blocks, and no row says how keys are spread"
    );
    let picture = Picture::of(&plots["meter-burst.svg"]);
    picture.assert_series("xxh32", [true, false], &[(64.0, 40.0), (65_536.0, 400.0)]);
    assert_has(&plots["meter-burst.svg"], &["a.pcap on a GPU", "Throughput (Mpps)"]);
    let picture = Picture::of(&plots["meter-slice.svg"]);
    picture.assert_series("fold", [true, false], &[(64.0, 500.0), (128.0, 250.0)]);
    assert_has(&plots["meter-slice.svg"], &["Slice (bytes)"]);
}

#[test]
fn strings_are_drawn_over_workloads_and_patterns() {
    let row = |workload: &str, patterns: u32, gbps: f64, ratio: Option<f64>| {
        let mut row = json!({
            "workload": format!("strings names.txt {workload}"), "gbps": gbps, "p25": gbps - 2.0, "p75": gbps + 1.0, "mpps": 9.0,
            "patterns": patterns, "payloads": 9, "bytes": 900, "batch": 256, "report": "all", "matches_per_kb": 0.5,
            "isa": "avx512", "sampled": false, "build_ms": 3.0, "memory_mb": 1.0, "longest_list": 3, "rounds": 5,
        });
        if let Some(ratio) = ratio {
            row["peer_ratio"] = ratio.into();
            row["peer_ratio_min"] = (ratio - 0.5).into();
            row["peer_ratio_max"] = (ratio + 0.5).into();
        }
        row
    };
    let plots = drawn(&[
        row("64, 0%", 1000, 40.0, Some(4.0)),
        row("583, 35%", 1000, 30.0, Some(2.0)),
        row("64, 0%", 5000, 20.0, None),
    ]);
    assert_eq!(
        plots.keys().collect::<Vec<_>>(),
        ["strings-patterns.svg", "strings-ratio.svg", "strings-throughput.svg"]
    );
    let bars = Picture::of(&plots["strings-throughput.svg"]).bars();
    let values: Vec<_> = bars.iter().map(|(_, value)| value.round()).collect();
    assert_eq!(values, [40.0, 30.0, 20.0], "{bars:?}");
    assert!(bars[0].0.contains("64, 0%") && bars[2].0.contains("5,000 patterns"), "{bars:?}");
    assert_has(
        &plots["strings-throughput.svg"],
        &["Throughput (Gb/s of CPU time)", "all; avx512; batches of 256; bars: quartiles of the rounds"],
    );
    assert_eq!(Picture::of(&plots["strings-ratio.svg"]).bars().len(), 2);
    assert_has(
        &plots["strings-ratio.svg"],
        &[
            "Times as fast as the peer",
            "1,000 patterns; all; avx512; batches of 256; bars: lowest to highest round",
        ],
    );
    let picture = Picture::of(&plots["strings-patterns.svg"]);
    picture.assert_series("names.txt 64, 0%", [true, false], &[(1000.0, 40.0), (5000.0, 20.0)]);
    assert_has(&plots["strings-patterns.svg"], &["Patterns"]);
}

#[test]
fn other_benchmarks_are_bars_and_lines() {
    let acl = |classifier: &str, name: &str, batch: u32, mpps: f64| {
        let more = json!({ "classifier": classifier, "batch": batch, "rules": 1000, "passes": 1, "build_ms": 1.0, "memory_mb": 1.0 });
        measurement(&format!("acl {name}.rules"), mpps, &more)
    };
    let meter = |workers: u32, mpps: f64| {
        measurement("meter a.pcap", mpps, &json!({ "workers": workers, "records": 5 }))
    };
    let mut rows = vec![
        acl("hybrid", "fw", 256, 30.0),
        acl("linear", "fw", 256, 2.0),
        acl("hybrid", "acl", 256, 40.0),
        acl("hybrid", "fw", 1024, 36.0),
        meter(1, 5.0),
        meter(2, 9.0),
    ];
    for machine in ["one", "two"] {
        let mut row = json!({
            "workload": "changes fw.rules", "changes_per_second": 1e5, "changes_per_transaction": 10, "batch": 256,
            "transaction_us_p50": 10.0, "transaction_us_p99": null, "mpps_quiet": 20.0, "mpps_changing": 15.0, "rules": 1000,
        });
        row["machine"] = machine.into();
        rows.push(row);
    }
    for (changes, mpps) in [(json!(0), 20.0), (json!(1000), 19.0), (json!(2000), 18.0), (Value::Null, 21.0)] {
        rows.push(json!({
            "workload": "changes fw.rules", "changes": changes, "mpps_cpu": mpps, "us_p50": 10.0, "us_p99": 20.0,
        }));
    }
    let plots = drawn(&rows);
    let bars = |name: &str| Picture::of(&plots[name]).bars();
    close(
        bars("acl-throughput.svg"),
        &[
            ("hybrid, fw, batches of 256", 30.0),
            ("linear, fw, batches of 256", 2.0),
            ("hybrid, acl, batches of 256", 40.0),
            ("hybrid, fw, batches of 1,024", 36.0),
        ],
    );
    assert_has(&plots["acl-throughput.svg"], &["Throughput (Mpps of CPU time)", "30", "2"]);
    // From the lower to the upper quartile: 24 to 37.5.
    let picture = Picture::of(&plots["acl-throughput.svg"]);
    let across = picture.axis(true, false);
    let whisker = |node: Node<'_, '_>| {
        let found = points(node);
        found.len() == 2
            && (found[0].0 - across(24.0)).abs() <= 2.0
            && (found[1].0 - across(37.5)).abs() <= 2.0
            && found[0].1 == found[1].1
    };
    assert!(picture.all("polyline").any(whisker), "a spread");
    let picture = Picture::of(&plots["acl-batch.svg"]);
    picture.assert_series("hybrid, fw", [true; 2], &[(256.0, 30.0), (1024.0, 36.0)]);
    picture.assert_series("linear, fw", [true; 2], &[(256.0, 2.0)]);
    close(bars("meter-throughput.svg"), &[("1 worker", 5.0), ("2 workers", 9.0)]);
    Picture::of(&plots["meter-workers.svg"]).assert_series("a.pcap", [false; 2], &[(1.0, 5.0), (2.0, 9.0)]);
    close(bars("changes-rate.svg"), &[("one", 1e5), ("two", 1e5)]);
    assert_has(&plots["changes-rate.svg"], &["Rule changes (1/s)"]);
    close(bars("changes-latency.svg"), &[("one, median", 10.0), ("two, median", 10.0)]);
    close(
        bars("changes-throughput.svg"),
        &[
            ("one, rules stay", 20.0),
            ("one, rules change", 15.0),
            ("two, rules stay", 20.0),
            ("two, rules change", 15.0),
        ],
    );
    let picture = Picture::of(&plots["churn-throughput.svg"]);
    picture.assert_series("fw", [false; 2], &[(0.0, 20.0), (1000.0, 19.0), (2000.0, 18.0)]);
    picture.assert_series("tables made anew", [false; 2], &[(0.0, 21.0), (2000.0, 21.0)]);
    assert_has(&plots["churn-latency.svg"], &["Time of a transaction (µs)", "Changes made"]);
    assert_eq!(plots.len(), 9, "{:?}", plots.keys());
}

#[test]
fn what_differs_makes_lines_and_what_was_measured_twice_is_a_median() {
    for (name, values, labels) in [
        ("transport", json!(["keys", "in-place"]), ["keys", "in-place"]),
        ("device", json!(["GPU", "host"]), ["GPU", "host"]),
        ("offered_mpps", json!([null, 12.5]), ["masks", "12.5 Mpps offered"]),
        ("specialised", json!([true, false]), ["compiled for the rules", "for any rules"]),
        ("workload", json!(["device fw.rules", "device ipc.rules"]), ["fw", "ipc"]),
        ("machine", json!(["a", "b"]), ["a", "b"]),
        ("commit", json!(["1c", "2d"]), ["commit 1c", "commit 2d"]),
    ] {
        let mut rows = Vec::new();
        for (number, value) in values.as_array().expect("two").iter().enumerate() {
            for mut row in over_batches().into_iter().take(4) {
                row[name] = value.clone();
                row["mpps"] = (row["mpps"].as_f64().expect("a number") * (1.0 + number as f64)).into();
                rows.push(row);
            }
        }
        let plots = drawn(&rows);
        let picture = Picture::of(&plots["throughput-batch.svg"]);
        for (times, label) in [1.0, 2.0].into_iter().zip(labels) {
            let expected =
                BATCHES.map(f64::from).into_iter().zip([4.0, 50.0, 300.0, 2500.0].map(|mpps| mpps * times));
            picture.assert_series(label, [true; 2], &expected.collect::<Vec<_>>());
        }
    }
    let again =
        [40.0, 10.0, 20.0].map(|mpps| [64, 128].map(|batch| device_row("masks", batch, mpps, 10))).concat();
    let plots = drawn(&again);
    let picture = Picture::of(&plots["throughput-batch.svg"]);
    picture.assert_series("masks", [true, false], &[(64.0, 20.0), (128.0, 20.0)]);
    picture.assert_spread("masks", [true, false], 64.0, 9.0, 44.0);
    // Workloads of any names are one, if they are to be.
    let mut rows = [10, 1000].map(|rules| device_row("masks", 64, 5.0, rules));
    rows[1]["workload"] = "device other.rules".into();
    let folder = folder(&text(&rows));
    assert_eq!(run(plot(folder.path()).arg("rows")).status.code(), Some(1));
    succeed(plot(folder.path()).args(["rows", "--workload", "both"]));
    let plots = files(&folder.path().join("plots"));
    Picture::of(&plots["throughput-rules.svg"]).assert_series(
        "masks",
        [true, false],
        &[(10.0, 5.0), (1000.0, 5.0)],
    );
}

#[test]
fn what_a_benchmark_prints_is_drawn() {
    let args = ["bench", "chain", "--flows", "100", "--rounds", "1", "--offered", "0.01,0.02", "--json"];
    let lines = succeed(packetloom().args(args));
    let folder = tempfile::tempdir().expect("a folder");
    // From standard input.
    let mut child =
        plot(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("written");
    assert!(child.wait().expect("an end").success());
    let plots = files(&folder.path().join("plots"));
    let figure = |line: &str, name: &str| serde_json::from_str::<Value>(line).expect("JSON")[name].as_f64();
    let expected: Vec<_> = lines
        .lines()
        .map(|line| {
            (figure(line, "offered_mpps").expect("a load"), figure(line, "latency_us_p50").expect("a time"))
        })
        .collect();
    let picture = Picture::of(&plots["latency-offered.svg"]);
    let (_, _, places) = picture.series("counter, limiter, balancer");
    let across = picture.axis(true, false);
    assert_eq!((plots.len(), places.len(), expected.len()), (1, 2, 2));
    assert!(
        places.iter().zip(&expected).all(|(place, (x, _))| (place.0 - across(*x)).abs() <= 2.0),
        "{places:?}"
    );
}

#[test]
fn bad_input_is_named_with_its_line() {
    let good = over_batches()[0].to_string();
    let with = |name: &str, value: Value| {
        let mut row = over_batches()[0].clone();
        row[name] = value;
        row.to_string()
    };
    let without = |name: &str| {
        let mut row = over_batches()[0].clone();
        row.as_object_mut().expect("an object").remove(name);
        row.to_string()
    };
    let deep = "[".repeat(100_000);
    let long = " ".repeat(1 << 21);
    for (line, why) in [
        ("nonsense", "not JSON; expected a line of \"packetloom bench "),
        ("{\"batch\": NaN}", "not JSON"),
        (&*deep, "not JSON"),
        (&*long, "a line of more than 1048576 bytes"),
        ("[1]", "not a JSON object"),
        ("{}", "no \"workload\""),
        (&with("workload", json!(7)), "no \"workload\""),
        (&with("workload", json!("sort fw")), "\"workload\": no benchmark \"sort\" is known"),
        (&without("mpps"), "no \"mpps\"; expected a line of \"packetloom bench device --json\""),
        (&without("algorithm"), "no \"algorithm\""),
        (&with("mpps", Value::Null), "\"mpps\": expected a number"),
        (&with("mpps", json!(-1)), "\"mpps\" is -1; expected 0, or from 1e-9 to 1e15"),
        (&with("mpps", json!(1e300)), "\"mpps\" is 1e+300"),
        (&with("batch", json!(0.5)), "\"batch\": expected a whole number"),
        (&with("specialised", json!(1)), "\"specialised\": expected true or false"),
        (&with("device", json!([])), "\"device\": expected text"),
        (
            &chain_row(2, 10, 1.0).to_string().replace("\"workers\":2", "\"workers\":\"2\""),
            "\"workers\": expected a whole",
        ),
    ] {
        let folder = folder(&format!("{good}\n\n{line}\n"));
        let output = run(plot(folder.path()).arg("rows"));
        let said = stderr(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said}");
        assert!(
            said.starts_with(&format!("packetloom: rows:3: {why}")) && said.lines().count() == 1,
            "{why}: {said}"
        );
        assert!(!folder.path().join("plots").exists(), "nothing is written");
    }
    let say = |lines: &[u8]| {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("rows"), lines).expect("written");
        let output = run(plot(folder.path()).arg("rows"));
        assert_eq!(output.status.code(), Some(1));
        assert!(!folder.path().join("plots").exists(), "nothing is written");
        stderr(&output)
    };
    assert!(say(b"\n\xff\n").contains("rows:2: not UTF-8"));
    assert!(say(b"").contains("no rows; expected JSON lines of \"packetloom bench\""));
    // One point is no line.
    assert!(
        say(good.as_bytes())
            .contains("nothing to draw: throughput-batch.svg: not written; no line has two batch sizes; ")
    );
    let output = run(plot(Path::new("/")).arg("/absent"));
    assert!(stderr(&output).starts_with("packetloom: /absent: "), "{}", stderr(&output));
}

#[test]
fn many_rows_are_drawn_or_refused() {
    // 50,000 measurements of each of two batch sizes.
    let row = |batch, at: u32| device_row("masks", batch, 10.0 + f64::from(at % 100), 10);
    let rows: Vec<_> = (0..50_000).flat_map(|at| [row(64, at), row(1024, at)]).collect();
    let plots = drawn(&rows);
    Picture::of(&plots["throughput-batch.svg"]).assert_series(
        "masks",
        [true, false],
        &[(64.0, 59.5), (1024.0, 59.5)],
    );
    // More lines than can be told apart.
    let mut rows: Vec<_> = (0..1000).flat_map(|_| [row(64, 0), row(1024, 0)]).collect();
    for (number, pair) in rows.chunks_mut(2).enumerate() {
        pair.iter_mut().for_each(|row| row["machine"] = format!("machine {number}").into());
    }
    let folder = folder(&text(&rows));
    let output = run(plot(folder.path()).arg("rows"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("1000 lines; expected 42 at most"), "{}", stderr(&output));
    // 42 can.
    let plots = drawn(&rows[..84]);
    let picture = Picture::of(&plots["throughput-batch.svg"]);
    for number in 0..42 {
        picture.assert_series(&format!("machine {number}"), [true, false], &[(64.0, 10.0), (1024.0, 10.0)]);
    }
    // What XML cannot hold, and zeros.
    let mut rows = over_batches();
    for row in &mut rows {
        row["machine"] = "a\u{1}b\nc".into();
        row["latency_us_p50"] = 0.into();
    }
    let folder = self::folder(&text(&rows));
    let output = run(plot(folder.path()).arg("rows"));
    assert!(output.status.success());
    let said = stderr(&output);
    assert!(
        said.contains(
            "packetloom: latency-batch-log.svg: without points of 0, since an axis is logarithmic\n"
        ),
        "{said}"
    );
    assert_has(&files(&folder.path().join("plots"))["throughput-batch.svg"], &["a\u{fffd}b\u{fffd}c"]);
}

#[test]
fn files_are_written_whole_or_not_at_all() {
    let lines = text(&over_batches());
    let folder = folder(&lines);
    let at = |name: &str| folder.path().join(name);
    // Files of these names are replaced, others stay.
    fs::create_dir(at("plots")).expect("a folder");
    fs::write(at("plots/throughput-batch.svg"), "old").expect("written");
    fs::write(at("plots/mine.svg"), "mine").expect("written");
    succeed(plot(folder.path()).arg("rows"));
    let first = files(&at("plots"));
    assert_eq!((first.len(), &*first["mine.svg"]), (4, "mine"));
    assert!(first["throughput-batch.svg"].starts_with("<svg "));
    // The same rows give the same bytes; several files are as one.
    fs::write(
        at("half"),
        &lines[..lines.len() / 2][..lines[..lines.len() / 2].rfind('\n').expect("lines") + 1],
    )
    .expect("written");
    fs::write(at("rest"), &lines[fs::read(at("half")).expect("a file").len()..]).expect("written");
    succeed(plot(folder.path()).args(["half", "rest", "-o", "again"]));
    assert!(
        first
            .iter()
            .filter(|(name, _)| *name != "mine.svg")
            .all(|(name, svg)| files(&at("again"))[name] == *svg)
    );
    // One that cannot be replaced: none is.
    fs::write(at("again/latency-batch.svg"), "old").expect("written");
    fs::remove_file(at("again/throughput-batch.svg")).expect("removed");
    fs::remove_file(at("again/latency-batch-log.svg")).expect("removed");
    fs::create_dir(at("again/latency-batch-log.svg")).expect("a folder");
    let output = run(plot(folder.path()).args(["rows", "-o", "again"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("again/latency-batch-log.svg: "), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(at("again/latency-batch.svg")).expect("a file"), "old");
    assert_eq!(fs::read_dir(at("again")).expect("a folder").count(), 2, "no parts are left");
    // A file where the folder is to be, and an input that would be lost.
    for (args, code, why) in [
        (["rows", "-o", "rows"], 1, "packetloom: rows: "),
        (["rows", "-o", "rows/below"], 1, "packetloom: rows/below: "),
        (
            ["plots/throughput-batch.svg", "-o", "plots"],
            1,
            "packetloom: plots/throughput-batch.svg:1: not JSON",
        ),
    ] {
        let output = run(plot(folder.path()).args(args));
        assert_eq!(output.status.code(), Some(code));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    fs::write(at("plots/throughput-batch.svg"), &lines).expect("written");
    let output = run(plot(folder.path()).args(["plots/throughput-batch.svg", "-o", "plots"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("which would be lost"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(at("plots/throughput-batch.svg")).expect("a file"), lines);
}

#[test]
fn ways_of_a_meter_on_a_device_and_its_hash_functions_are_bars() {
    let row = |hash: &str, parse: &str, mpps: f64, squares: [f64; 2], chains: [u32; 2]| {
        let more = json!({
            "workers": 1, "records": 5, "device": "device", "on": "a GPU", "memory": "device", "launch": "burst",
            "in_flight": 4, "slice": 128, "parse": parse, "block": 256, "keys_per_thread": 1, "hash": hash,
            "stage": "all", "table_mb": 1.0, "batch": 64, "chi_square": squares[0], "longest_chain": chains[0],
            "aimed_chi_square": squares[1], "aimed_longest_chain": chains[1],
        });
        measurement("meter a.pcap", mpps, &more)
    };
    let rows =
        [row("fold", "local", 500.0, [1.0, 1.1], [7, 6]), row("fnv1a", "local", 400.0, [0.9, 64.0], [5, 87])];
    let plots = drawn(&rows);
    assert_eq!(
        plots.keys().collect::<Vec<_>>(),
        ["meter-chains.svg", "meter-device.svg", "meter-hashes.svg"]
    );
    let bars = |file: &str| Picture::of(&plots[file]).bars();
    close(bars("meter-device.svg"), &[("fold", 500.0), ("fnv1a", 400.0)]);
    assert_has(&plots["meter-hashes.svg"], &["fnv1a, aimed keys", "fold, keys of the packets"]);
    assert_has(&plots["meter-chains.svg"], &["Keys in the fullest place"]);
}

#[test]
fn help_names_all_plots_with_an_example() {
    let help = succeed(packetloom().args(["plot", "--help"]));
    assert!(help.contains("packetloom plot workers.jsonl offered.jsonl -o plots"), "{help}");
    let page = succeed(packetloom().args(["man", "plot"]));
    for name in [
        "throughput-rules.svg",
        "latency-offered.svg",
        "acl-rules.svg",
        "meter-workers.svg",
        "meter-hashes.svg",
        "strings-ratio.svg",
        "forward-rate.svg",
        "churn-latency.svg",
    ] {
        assert!(help.contains(name) && page.contains(&name.replace('-', "\\-")), "{name}");
    }
    assert!(succeed(packetloom().args(["completions", "bash"])).contains("packetloom__subcmd__plot"));
}
