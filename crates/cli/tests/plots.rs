//! `scripts/plot.py`, which draws what `bench device --json` prints. Skipped where there is no Python.

#![allow(missing_docs)]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use support::{root, run, stderr, succeed};
use tempfile::TempDir;

const BATCHES: [u32; 4] = [64, 1024, 16_384, 1_048_576];
const PLOTS: [&str; 4] =
    ["latency-batch-log.svg", "latency-batch.svg", "throughput-batch.svg", "throughput-rules.svg"];

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
    assert_eq!(plots.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), PLOTS);
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
    let places = |plot: &str| -> Vec<[f64; 2]> {
        let place = |part: &str| {
            let (x, rest) = part.split_once(' ').expect("two numbers");
            let y = rest.split('m').next().expect("a number");
            [x, y].map(|number| number.parse().expect("a number"))
        };
        plot.split("class=\"marker\" d=\"M").skip(1).map(place).collect()
    };
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
fn the_same_rows_give_the_same_bytes() {
    if !python_is_there() {
        return;
    }
    let (batches, rules) = (text(&over_batches()), text(&over_rules()));
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
    assert_eq!(plots.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["throughput-batch.svg"]);
    let plot = &plots[0].1;
    assert_well_formed(plot);
    assert_eq!(["line", "marker", "core", "spread"].map(|class| marks(plot, class)), [1, 2, 0, 0]);
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
    assert!(
        PLOTS.iter().all(|name| help.contains(name)) && help.contains("packetloom bench device"),
        "{help}"
    );
}
