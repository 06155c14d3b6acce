//! `scripts/plot.py`, which draws what `bench device --json` and `bench chain --json` print. Skipped where there is no Python.

#![allow(missing_docs)]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{packetloom, root, run, stderr, succeed};
use tempfile::TempDir;

const BATCHES: [u32; 4] = [64, 1024, 16_384, 1_048_576];
const PLOTS: [&str; 4] =
    ["latency-batch-log.svg", "latency-batch.svg", "throughput-batch.svg", "throughput-rules.svg"];
const CHAIN_PLOTS: [&str; 3] = ["latency-offered.svg", "throughput-flows.svg", "throughput-workers.svg"];

/// Whether Python 3.11 can be started; if not, the test says that it skips.
fn python_is_there() -> bool {
    let modern = "import sys; sys.exit(sys.version_info < (3, 11))";
    let there = Command::new("python3").args(["-c", modern]).status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("skipped: no python3 of version 3.11 or later");
    }
    there
}

/// The script, in a folder.
fn plot(folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().canonicalize().expect("the repository").join("scripts/plot.py"));
    command.current_dir(folder).env_remove("PYTHONIOENCODING").stdin(Stdio::null());
    command
}

/// A line as `bench device --json` prints it.
fn row(algorithm: &str, batch: u32, mpps: f64, rules: u32) -> Value {
    json!({
        "workload": format!("device acl1_{rules}.rules.xz"), "device": "GPU <1> & \"2\"", "algorithm": algorithm,
        "batch": batch, "mpps": mpps, "mpps_min": mpps * 0.9, "mpps_max": mpps * 1.1, "rounds": 7, "cores": 1.0,
        "latency_us_p50": f64::from(batch) / mpps, "latency_us_p99": f64::from(batch) / mpps + 5.0,
        "latency_us_max": 1e6, "core_mpps": 20.0, "rules": rules, "packets": 1 << 20, "specialised": true,
    })
}

/// Two algorithms over batch sizes at 1,000 rules.
fn over_batches() -> Vec<Value> {
    let rates = [("masks", [4.0, 50.0, 300.0, 2500.0]), ("linear", [2.0, 10.0, 100.0, 900.0])];
    let of = |(name, rates): (&'static str, [f64; 4])| {
        BATCHES.into_iter().zip(rates).map(move |(batch, mpps)| row(name, batch, mpps, 1000))
    };
    rates.into_iter().flat_map(of).collect()
}

/// The two over numbers of rules, in the largest batch.
fn over_rules() -> Vec<Value> {
    let of = |rules| {
        [("masks", 2500.0), ("linear", 9e5 / f64::from(rules))].map(|(name, mpps)| (name, mpps, rules))
    };
    [10, 100, 10_000]
        .into_iter()
        .flat_map(of)
        .map(|(name, mpps, rules)| row(name, BATCHES[3], mpps, rules))
        .collect()
}

/// A line as `bench chain --json` prints it, of rounds whose quartiles are 0.8 and 1.25 times as fast.
fn chain_row(workers: u32, flows: u32, mpps: f64) -> Value {
    json!({
        "workload": "chain fw <1>, balancer", "mpps": mpps, "mpps_cpu": 1.0, "ns_per_packet": 1e3 / mpps,
        "p25": 800.0 / mpps, "p75": 1250.0 / mpps, "cpu_ns_per_packet": 1.0, "cpu_p25": 1.0, "cpu_p75": 1.0,
        "classifier": null, "batch": 256, "device": "cpu", "packets": 1 << 21, "rounds": 5, "workers": workers,
        "shared": null, "flows": flows, "packet_size": 64, "passed": 1.0, "new_flows": null, "flood": null,
        "created": flows, "expired": 0, "evicted": 0, "refused": 0, "offered_mpps": null, "latency_us_p50": null,
        "latency_us_p99": null, "latency_us_p999": null, "latency_us_max": null,
    })
}

/// One at an offered load.
fn offered_row(offered: f64, p50: f64, p99: f64) -> Value {
    let mut row = chain_row(1, 10_000, offered);
    for (name, value) in [("offered_mpps", offered), ("latency_us_p50", p50), ("latency_us_p99", p99)] {
        row[name] = value.into();
    }
    row
}

/// Workers at two numbers of flows, one more number of flows of one worker, and three loads.
fn chains() -> Vec<Value> {
    let over_workers = [10_000, 2_000_000].into_iter().flat_map(|flows| {
        [(1, 20.0), (2, 38.0), (4, 70.0), (8, 120.0)].map(|(workers, mpps)| chain_row(workers, flows, mpps))
    });
    let loads = [(1.0, 0.5, 2.0), (5.0, 0.75, 4.0), (10.0, 1.5, 8.0)];
    over_workers
        .chain([chain_row(1, 20, 21.0)])
        .chain(loads.map(|(offered, p50, p99)| offered_row(offered, p50, p99)))
        .collect()
}

fn text(values: &[Value]) -> String {
    values.iter().fold(String::new(), |mut text, value| {
        writeln!(text, "{value}").expect("text");
        text
    })
}

/// A folder with a file of these lines.
fn folder(lines: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rows"), lines).expect("written");
    folder
}

/// Names of the plots in a folder, and what is in them.
fn plots(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let mut plots: Vec<_> =
        entries.map(|path| (name(&path), fs::read_to_string(&path).expect("text"))).collect();
    plots.sort();
    plots
}

/// The plots of these lines.
fn drawn(lines: &str) -> Vec<(String, String)> {
    let folder = folder(lines);
    succeed(plot(folder.path()).args(["-o", "out", "rows"]));
    plots(&folder.path().join("out"))
}

fn marks(plot: &str, class: &str) -> usize {
    plot.matches(&format!("class=\"{class}\"")).count()
}

fn names(plots: &[(String, String)]) -> Vec<&str> {
    plots.iter().map(|(name, _)| name.as_str()).collect()
}

/// The numbers of a path.
fn numbers(path: &str) -> Vec<f64> {
    let parts = path.split(|letter: char| letter.is_ascii_alphabetic() || letter == ' ');
    parts.filter(|part| !part.is_empty()).map(|part| part.parse().expect("a number")).collect()
}

/// The numbers of each path of a class.
fn paths(plot: &str, class: &str) -> Vec<Vec<f64>> {
    let class = format!(" class=\"{class}\"");
    let of_class = plot.lines().filter(|line| line.contains(&class));
    of_class.map(|line| numbers(line.split('"').nth(1).expect("commands"))).collect()
}

/// Where markers lie.
fn places(plot: &str) -> Vec<[f64; 2]> {
    let place = |part: &str| {
        let (x, rest) = part.split_once(' ').expect("two numbers");
        let y = rest.split('m').next().expect("a number");
        [x, y].map(|number| number.parse().expect("a number"))
    };
    plot.split("class=\"marker\" d=\"M").skip(1).map(place).collect()
}

/// Tags in pairs, attributes in quotes, no bare `&`: as much of XML as these plots use.
fn assert_well_formed(plot: &str) {
    let mut open = Vec::new();
    let mut rest = plot.trim_end();
    while let Some(at) = rest.find('<') {
        let (text, tag) = rest.split_at(at);
        assert!(!text.contains('>'), "{text:?}");
        for after in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;"].iter().any(|name| after.starts_with(name)), "{text:?}");
        }
        let end = tag.find('>').expect("an end of the tag");
        let inner = &tag[1..end];
        assert!(inner.matches('"').count() % 2 == 0 && !inner.contains(['<', '&']), "{inner:?}");
        match inner.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if inner.ends_with('/') => {}
            None => open.push(inner.split(' ').next().expect("a name")),
        }
        rest = &tag[end + 1..];
        assert!(!open.is_empty() || rest.is_empty(), "one root: {rest:?}");
    }
    assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest:?}");
}

#[test]
fn each_algorithm_is_a_line_and_each_row_a_marker() {
    if !python_is_there() {
        return;
    }
    let plots = drawn(&text(&[over_batches(), over_rules()].concat()));
    assert_eq!(names(&plots), PLOTS);
    for (name, plot) in &plots {
        assert_well_formed(plot);
        assert!(
            plot.len() < 16_384 && plot.contains("fill=\"#ffffff\"") && !plot.contains("script"),
            "{name}"
        );
        assert!(plot.contains(">masks</text>") && plot.contains(">linear</text>"), "{plot}");
        assert!(plot.contains(" on GPU &lt;1&gt; &amp; \"2\"</text>"), "{plot}");
        assert_eq!(marks(plot, "line"), 2, "{name}");
        let (throughput, latency) = (name.starts_with("throughput"), name.starts_with("latency"));
        // Over rules: three sizes, and the one whose batches are measured too, in the same batch.
        assert_eq!(marks(plot, "marker"), 8, "{name}");
        assert_eq!(marks(plot, "p99"), if latency { 2 } else { 0 }, "{name}");
        assert_eq!(
            (marks(plot, "spread"), marks(plot, "core")),
            if throughput { (2, 1) } else { (0, 0) },
            "{name}"
        );
        assert_eq!(plot.contains(">one core</text>"), throughput, "{name}");
    }
    let has = |at: usize, words: &[&str]| {
        let said = |word: &&str| plots[at].1.contains(&format!(">{word}</text>"));
        assert!(words.iter().all(said), "{words:?} in {}", plots[at].1);
    };
    has(
        0,
        &[
            "acl1_1000 on GPU &lt;1&gt; &amp; \"2\"",
            "Latency (µs)",
            "Batch (packets)",
            "64",
            "1 Ki",
            "1 Mi",
            "100",
        ],
    );
    has(1, &["Latency (µs)", "256 Ki", "0", "99th percentile", "Latency of a batch at 1,000 rules"]);
    // The core is 125 times slower than the fastest: logarithmic, and 2 Mpps are too few for Gpps.
    has(2, &["Throughput (Mpps)", "1", "10", "1,000", "64", "1 Mi"]);
    // Rule sets of different sizes are one line.
    has(3, &["acl1 on GPU &lt;1&gt; &amp; \"2\"", "Rules", "Throughput (Gpps)", "10,000"]);
}

#[test]
fn markers_lie_where_the_numbers_are() {
    if !python_is_there() {
        return;
    }
    let rows: Vec<_> =
        [(64, 10.0), (512, 20.0), (4096, 40.0)].map(|(batch, mpps)| row("a", batch, mpps, 10)).into();
    let plots = drawn(&text(&rows));
    assert_eq!(plots.len(), 3, "nothing over rules");
    let [a, b, c] = places(&plots[2].1)[..] else { panic!("three markers") };
    // Equal factors of the batch are equal steps; 20 Mpps more is twice as far as 10 more.
    assert!((c[0] - b[0] - (b[0] - a[0])).abs() < 0.3 && b[0] > a[0], "{a:?} {b:?} {c:?}");
    assert!((b[1] - c[1] - 2.0 * (a[1] - b[1])).abs() < 0.3 && b[1] < a[1], "{a:?} {b:?} {c:?}");
    // In the linear plot batches lie as they are.
    let [a, b, c] = places(&plots[1].1)[..] else { panic!("three markers") };
    assert!(
        ((c[0] - a[0]) / (b[0] - a[0]) - (4096.0 - 64.0) / (512.0 - 64.0)).abs() < 0.1,
        "{a:?} {b:?} {c:?}"
    );
}

#[test]
fn transports_devices_and_offers_are_lines_of_their_own() {
    if !python_is_there() {
        return;
    }
    for (name, values, labels) in [
        ("transport", json!(["keys", "in-place"]), ["masks, keys", "masks, in-place"]),
        ("device", json!(["GPU", "host"]), ["masks, GPU", "masks, host"]),
        ("offered_mpps", json!([null, 12.5]), ["masks", "masks, 12.5 Mpps offered"]),
        ("specialised", json!([true, false]), ["masks, compiled for the rules", "masks, for any rules"]),
        ("workload", json!(["device fw.rules", "device ipc.rules"]), ["masks, fw", "masks, ipc"]),
    ] {
        let mut rows = Vec::new();
        for value in values.as_array().expect("two") {
            for mut row in over_batches().into_iter().take(4) {
                row[name] = value.clone();
                rows.push(row);
            }
        }
        for (file, plot) in drawn(&text(&rows)) {
            assert_eq!((marks(&plot, "line"), marks(&plot, "marker")), (2, 8), "{name} in {file}");
            assert!(
                labels.iter().all(|label| plot.contains(&format!(">{label}</text>"))),
                "{name} in {plot}"
            );
        }
    }
    // The same measured again is no other line: the median is shown, with the spread of all.
    let mut twice = over_batches();
    twice.extend(over_batches());
    let of_once = drawn(&text(&over_batches()));
    assert!(drawn(&text(&twice)) == of_once);
}

#[test]
fn chains_are_drawn_over_workers_flows_and_offered_loads() {
    if !python_is_there() {
        return;
    }
    let plots = drawn(&text(&chains()));
    assert_eq!(names(&plots), CHAIN_PLOTS);
    let classes = ["line", "marker", "spread", "ideal", "p99", "core"];
    // The row of 20 flows is part of a line over flows, so no lonely point over workers.
    for ((name, plot), (counts, words)) in plots.iter().zip([
        ([1, 3, 0, 0, 1, 0], ["Latency (µs)", "Offered (Mpps)", "10", "99th percentile"]),
        ([4, 9, 4, 0, 0, 0], ["Throughput (Mpps)", "Flows", "1 worker", "8 workers"]),
        ([2, 8, 2, 2, 0, 0], ["Workers", "10,000 flows", "2,000,000 flows", "perfect scaling"]),
    ]) {
        assert_well_formed(plot);
        assert_eq!(classes.map(|class| marks(plot, class)), counts, "{name}");
        let said = |word: &str| plot.contains(&format!(">{word}</text>"));
        assert!(said("fw &lt;1&gt;, balancer on cpu"), "{plot}");
        assert!(words.iter().all(|word| said(word)), "{words:?} in {plot}");
    }
    let below = [
        "Latency of a packet; 1 worker; 10,000 flows; packets of 64 bytes; batches of 256",
        "Median throughput; packets of 64 bytes; batches of 256; bars: quartiles of 5 rounds",
        "Median throughput; packets of 64 bytes; batches of 256; bars: quartiles of 5 rounds",
    ];
    for ((_, plot), below) in plots.iter().zip(below) {
        assert!(plot.contains(&format!(">{below}</text>")), "{below} in {plot}");
    }
}

#[test]
fn what_the_benchmark_of_chains_prints_is_drawn() {
    if !python_is_there() {
        return;
    }
    let args = ["bench", "chain", "--flows", "100", "--rounds", "1", "--offered", "0.01,0.02", "--json"];
    let plots = drawn(&succeed(packetloom().args(args)));
    assert_eq!(names(&plots), ["latency-offered.svg"]);
    let plot = &plots[0].1;
    assert_well_formed(plot);
    assert_eq!(["line", "marker", "p99"].map(|class| marks(plot, class)), [1, 2, 1]);
    let below = "Latency of a packet; 1 worker; 100 flows; uniform; packets of 64 bytes; batches of 256";
    assert!(plot.contains(below) && plot.contains(">counter, limiter, balancer on cpu</text>"), "{plot}");
}

#[test]
fn bars_of_chains_are_quartiles_and_perfect_is_a_multiple_of_one() {
    if !python_is_there() {
        return;
    }
    let rows = [(1, 10.0), (2, 20.0), (4, 30.0)].map(|(workers, mpps)| chain_row(workers, 10, mpps));
    let plots = drawn(&text(&rows));
    assert_eq!(names(&plots), ["throughput-workers.svg"]);
    let plot = &plots[0].1;
    let [one, two, four] = places(plot)[..] else { panic!("three markers") };
    let near = |a: f64, b: f64| (a - b).abs() < 0.3;
    // Both axes begin at 0, the one across a little to the right of the other.
    assert!(near(four[0] - two[0], 2.0 * (two[0] - one[0])) && four[0] > two[0], "{one:?} {two:?} {four:?}");
    let of_ten = one[1] - two[1];
    assert!(near(two[1] - four[1], of_ten) && of_ten > 0.0, "{one:?} {two:?} {four:?}");
    let [ideal] = &paths(plot, "ideal")[..] else { panic!("one") };
    assert!([one[0], one[1], four[0]].iter().zip(ideal).all(|(&a, &b)| near(a, b)), "{ideal:?}");
    assert!(near(ideal[3], one[1] - 3.0 * of_ten), "40 Mpps: {ideal:?}");
    // M x y h6 M x y h6 M x y V y: the first bar from 8 to 12.5.
    let [bars] = &paths(plot, "spread")[..] else { panic!("of one line") };
    assert_eq!(bars.len(), 3 * 9, "{bars:?}");
    assert!(near(bars[1], one[1] + 0.2 * of_ten) && near(bars[4], one[1] - 0.25 * of_ten), "{bars:?}");
    assert!(plot.contains(": 1, 10 (8 to 12.5)</title>") && plot.contains(": 4, 30 (24 to 37.5)</title>"));

    let without_one = drawn(&text(&rows[1..]));
    assert_eq!((marks(&without_one[0].1, "line"), marks(&without_one[0].1, "ideal")), (1, 0));
    assert!(!without_one[0].1.contains("perfect scaling"));
}

#[test]
fn latency_has_a_logarithmic_axis_where_it_differs_by_much() {
    if !python_is_there() {
        return;
    }
    for (highest, is_log) in [(8.0, false), (5000.0, true)] {
        let rows = [(2.0, 1.0, 3.0), (4.0, 2.0, 4.0), (6.0, 4.0, highest)]
            .map(|(at, p50, p99)| offered_row(at, p50, p99));
        let plots = drawn(&text(&rows));
        assert_eq!(names(&plots), ["latency-offered.svg"]);
        let [a, b, c] = places(&plots[0].1)[..] else { panic!("three markers") };
        assert!((c[0] - b[0] - (b[0] - a[0])).abs() < 0.3 && b[0] > a[0], "{a:?} {b:?} {c:?}");
        // 1 to 2 to 4: equal steps, or the second twice the first.
        let ratio = (b[1] - c[1]) / (a[1] - b[1]);
        assert!((ratio - if is_log { 1.0 } else { 2.0 }).abs() < 0.05, "{ratio}");
        // The dashed line is of the 99th percentile: 4 of the second load is where the median of the third is.
        let p99 = &paths(&plots[0].1, "p99")[0];
        assert!(p99.len() == 6 && (p99[3] - c[1]).abs() < 0.3, "{p99:?} {c:?}");
    }
}

#[test]
fn what_differs_between_chains_makes_lines() {
    if !python_is_there() {
        return;
    }
    for (name, values, labels) in [
        ("workload", json!(["chain a.toml", "chain b.toml"]), ["a", "b"]),
        ("distribution", json!(["uniform", "zipf"]), ["uniform", "zipf"]),
        ("batch", json!([32, 1024]), ["batches of 32", "batches of 1 Ki"]),
        ("packet_size", json!([64, 1518]), ["packets of 64 bytes", "packets of 1,518 bytes"]),
        ("new_flows", json!([1000, 200_000]), ["1,000 new flows a second", "200,000 new flows a second"]),
        ("flood", json!([null, 500]), ["fw &lt;1&gt;, balancer", "under a flood"]),
        ("on", json!(["cuda:0", "cuda:1"]), ["cuda:0", "cuda:1"]),
        ("transport", json!(["records", "in-place"]), ["records", "in-place"]),
    ] {
        let mut rows = Vec::new();
        for value in values.as_array().expect("two") {
            for (workers, flows) in [(1, 10), (2, 10), (1, 20), (2, 20)] {
                let mut row = chain_row(workers, flows, 10.0);
                row[name] = value.clone();
                rows.push(row);
            }
        }
        // Once over workers alone, once over flows alone.
        for step in [1, 2] {
            let rows: Vec<_> =
                rows.chunks(4).flat_map(|four| [four[0].clone(), four[step].clone()]).collect();
            let plots = drawn(&text(&rows));
            assert_eq!(
                names(&plots),
                [["throughput-workers.svg", "throughput-flows.svg"][step - 1]],
                "{name}"
            );
            let plot = &plots[0].1;
            assert_eq!((marks(plot, "line"), marks(plot, "marker")), (2, 4), "{name}");
            assert!(
                labels.iter().all(|label| plot.contains(&format!(">{label}</text>"))),
                "{name} in {plot}"
            );
        }
    }
    // How many packets of a flood were sent is another number each time.
    let mut rows = [chain_row(1, 10, 10.0), chain_row(2, 10, 20.0)];
    for (row, sent) in rows.iter_mut().zip([500, 700]) {
        row["flood"] = sent.into();
    }
    assert_eq!(marks(&drawn(&text(&rows))[0].1, "line"), 1);
}

#[test]
fn a_chain_on_a_device_has_no_workers() {
    if !python_is_there() {
        return;
    }
    let mut rows = chains();
    for (on, flows, mpps) in
        [("cuda:0", 10_000, 3000.0), ("cuda:0", 2_000_000, 2000.0), ("cuda:1", 10_000, 2500.0)]
    {
        let mut row = chain_row(1, flows, mpps);
        row.as_object_mut().expect("an object").remove("workers");
        row["device"] = "device".into();
        row["on"] = on.into();
        rows.push(row);
    }
    let plots = drawn(&text(&rows));
    assert_eq!(names(&plots), CHAIN_PLOTS);
    // The second device is a point over flows, and nothing over workers.
    assert_eq!((marks(&plots[1].1, "line"), marks(&plots[1].1, "marker")), (5, 12));
    assert_eq!((marks(&plots[2].1, "line"), marks(&plots[2].1, "marker")), (2, 8));
    // A hundred times as fast: both axes are logarithmic.
    let said = |word: &str| plots[1].1.contains(&format!(">{word}</text>"));
    assert!(
        ["cuda:0", "cuda:1", "1 worker, cpu", "Throughput (Gpps)", "0.1", "1"].into_iter().all(said),
        "{}",
        plots[1].1
    );
    assert!(!plots[2].1.contains("cuda"), "{}", plots[2].1);
}

#[test]
fn rows_of_both_benchmarks_are_drawn_side_by_side() {
    if !python_is_there() {
        return;
    }
    let (device, chain) = ([over_batches(), over_rules()].concat(), chains());
    // In turns.
    let mut mixed = Vec::new();
    for at in 0..device.len().max(chain.len()) {
        mixed.extend(device.get(at).cloned());
        mixed.extend(chain.get(at).cloned());
    }
    let plots = drawn(&text(&mixed));
    let mut expected = [&PLOTS[..], &CHAIN_PLOTS].concat();
    expected.sort_unstable();
    assert_eq!(names(&plots), expected);
    let (of_chain, of_device): (Vec<_>, Vec<_>) =
        plots.into_iter().partition(|(name, _)| CHAIN_PLOTS.contains(&name.as_str()));
    assert!(of_device == drawn(&text(&device)));
    // Colours and markers go on where those of devices ended.
    for ((name, plot), (_, alone)) in of_chain.iter().zip(drawn(&text(&chain))) {
        assert_well_formed(plot);
        for class in ["line", "marker", "spread", "ideal", "p99"] {
            assert_eq!(marks(plot, class), marks(&alone, class), "{class} of {name}");
        }
        assert_eq!(places(plot), places(&alone), "{name}");
    }
}

#[test]
fn plots_without_a_line_are_named() {
    if !python_is_there() {
        return;
    }
    let unmeasured = [1.0, 2.0].map(|offered| {
        let mut row = offered_row(offered, 1.0, 1.0);
        row["latency_us_p50"] = Value::Null;
        row
    });
    let workers = [chain_row(1, 10, 1.0), chain_row(2, 10, 2.0)];
    let flows = "plots/throughput-flows.svg: not written; no line has two numbers of flows";
    let offered = "plots/latency-offered.svg: not written; no line has two offered loads with latencies";
    let rules = "plots/throughput-rules.svg: not written; no line has two numbers of rules";
    for (rows, expected) in [
        ([&workers[..], &unmeasured].concat(), vec![flows, offered]),
        ([&workers[..], &over_batches()].concat(), vec![rules, flows, offered]),
        (over_batches(), vec![rules]),
    ] {
        let folder = folder(&text(&rows));
        let output = run(plot(folder.path()).arg("rows"));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let expected: Vec<_> = expected.iter().map(|line| format!("plot.py: {line}")).collect();
        assert_eq!(stderr(&output).lines().collect::<Vec<_>>(), expected);
    }
    let chain = "expected several numbers of workers or of flows, or several offered loads, of one chain";
    let device = "expected several batch sizes or several numbers of rules of one algorithm";
    for (rows, expected) in [
        (vec![workers[0].clone()], chain.to_owned()),
        (
            vec![workers[0].clone(), over_batches()[0].clone()],
            format!("{device}, or {}", &chain["expected ".len()..]),
        ),
        (vec![over_batches()[0].clone()], device.to_owned()),
    ] {
        let output = run(plot(folder(&text(&rows)).path()).arg("rows"));
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(stderr(&output).trim_end(), format!("plot.py: rows: no plottable rows; {expected}"));
    }
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    if !python_is_there() {
        return;
    }
    let (batches, rules) = (text(&over_batches()), text(&[over_rules(), chains()].concat()));
    let expected = drawn(&format!("{batches}\n\n{rules}"));
    let folder = folder(&batches);
    fs::write(folder.path().join("more"), rules).expect("written");
    for (seed, out) in [("1", "first"), ("2", "second")] {
        // Two files, one of them standard input.
        let mut command = plot(folder.path());
        command.stdin(fs::File::open(folder.path().join("rows")).expect("a file"));
        succeed(command.env("PYTHONHASHSEED", seed).args(["--out", out, "-", "more"]));
        assert!(plots(&folder.path().join(out)) == expected, "{out}");
    }
}

#[test]
fn rows_with_few_fields_are_drawn() {
    if !python_is_there() {
        return;
    }
    let rows =
        "{\"algorithm\":\"a\",\"batch\":1,\"mpps\":0}\n{\"algorithm\":\"a\",\"batch\":3,\"mpps\":0.5}\n";
    let plots = drawn(rows);
    assert_eq!(names(&plots), ["throughput-batch.svg"]);
    let plot = &plots[0].1;
    assert_well_formed(plot);
    assert_eq!(["line", "marker", "core", "spread"].map(|class| marks(plot, class)), [1, 2, 0, 0]);

    let few =
        |workers: u32| json!({"workload": "chain ", "workers": workers, "flows": 1, "batch": 1, "mpps": 0});
    let plots = drawn(&text(&[few(1), few(300)]));
    assert_eq!(names(&plots), ["throughput-workers.svg"]);
    let plot = &plots[0].1;
    assert_well_formed(plot);
    assert_eq!(["line", "marker", "ideal", "spread"].map(|class| marks(plot, class)), [1, 2, 1, 0]);
    assert!(plot.contains(">packetloom bench chain</text>"), "{plot}");
}

#[test]
fn bad_input_is_named_with_its_line() {
    if !python_is_there() {
        return;
    }
    let good = over_batches()[0].to_string();
    let with = |name: &str, value: Value| {
        let mut row = over_batches()[0].clone();
        row[name] = value;
        row.to_string()
    };
    let of_chain = |name: &str, value: Value| {
        let mut row = offered_row(5.0, 1.0, 2.0);
        row[name] = value;
        row.to_string()
    };
    let deep = "[".repeat(100_000);
    for (line, why) in [
        ("nonsense", "not JSON"),
        ("{\"batch\": NaN}", "not JSON"),
        (deep.as_str(), "not JSON"),
        ("[1]", "expected a JSON object"),
        ("{}", "no \"algorithm\""),
        (&with("mpps", Value::Null), "no \"mpps\""),
        (&with("batch", json!(0)), "\"batch\": expected more than 0"),
        (&with("mpps", json!(-1)), "\"mpps\": expected a number"),
        (&with("mpps", json!(true)), "\"mpps\": expected a number"),
        (&with("core_mpps", json!("20")), "\"core_mpps\": expected a number"),
        (&with("rules", json!(1e300)), "\"rules\": expected a number"),
        (&with("device", json!(7)), "\"device\": expected text"),
        (&with("specialised", json!(1)), "\"specialised\": expected true or false"),
        (
            &of_chain("workload", json!("acl fw")),
            "no \"algorithm\"; expected a line of \"packetloom bench device --json\" or \"packetloom bench chain --json\"",
        ),
        (&of_chain("workload", json!(7)), "no \"algorithm\""),
        (
            &of_chain("workers", Value::Null),
            "no \"workers\"; expected a line of \"packetloom bench chain --json\"",
        ),
        (&of_chain("flows", Value::Null), "no \"flows\""),
        (&of_chain("mpps", Value::Null), "no \"mpps\""),
        (&of_chain("batch", Value::Null), "no \"batch\""),
        (&of_chain("workers", json!(0)), "\"workers\": expected more than 0"),
        (&of_chain("workers", json!([2])), "\"workers\": expected a number"),
        (&of_chain("flows", json!(0)), "\"flows\": expected more than 0"),
        (&of_chain("flows", json!("10")), "\"flows\": expected a number"),
        (&of_chain("p25", json!(0)), "\"p25\": expected more than 0"),
        (&of_chain("p75", json!(-1)), "\"p75\": expected a number"),
        (&of_chain("flood", json!(true)), "\"flood\": expected a number"),
        (&of_chain("offered_mpps", json!(0)), "\"offered_mpps\": expected more than 0"),
        (&of_chain("offered_mpps", json!(1e300)), "\"offered_mpps\": expected a number"),
        (&of_chain("latency_us_p99", json!({})), "\"latency_us_p99\": expected a number"),
        (&of_chain("distribution", json!(1)), "\"distribution\": expected text"),
        (&of_chain("on", json!(1)), "\"on\": expected text"),
    ] {
        let folder = folder(&format!("{good}\n\n{line}\n"));
        let output = run(plot(folder.path()).arg("rows"));
        let said = stderr(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
        assert!(said.starts_with(&format!("plot.py: rows:3: {why}")) && said.lines().count() == 1, "{said}");
        assert!(!folder.path().join("plots").exists(), "nothing is written");
    }
    for (lines, why) in
        [("", "rows: no rows"), (good.as_str(), "rows: no plottable rows; expected several batch sizes")]
    {
        let output = run(plot(folder(lines).path()).arg("rows"));
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    let folder = folder(&good);
    fs::write(folder.path().join("bytes"), b"\n\xff\n").expect("written");
    for (file, why) in
        [("bytes", "bytes:2: not UTF-8"), ("absent", "absent: No such file"), (".", ".: Is a directory")]
    {
        let output = run(plot(folder.path()).arg(file));
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).starts_with(&format!("plot.py: {why}")), "{}", stderr(&output));
    }
}

#[test]
fn help_has_an_example() {
    if !python_is_there() {
        return;
    }
    let help = succeed(plot(&root()).arg("--help"));
    assert!(PLOTS.iter().chain(&CHAIN_PLOTS).all(|name| help.contains(name)), "{help}");
    assert!(
        help.contains("packetloom bench device --rules") && help.contains("packetloom bench chain --workers")
    );
}
