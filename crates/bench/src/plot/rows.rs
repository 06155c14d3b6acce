//! Rows: lines that benchmarks print, checked, and what of them is drawn.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};

use packetloom_io::plain;
use serde_json::{Map, Value};

use super::draw::number;
use crate::{Error, schema};

/// Rows that are held at most, and bytes of a line.
const ROWS: usize = 200_000;
const LINE: u64 = 1 << 20;
/// Figures between which axes have room; 0 is one, too.
const LEAST: f64 = 1e-9;
const MOST: f64 = 1e15;

/// Which benchmark a row is of. A chain at an offered load, changes with a total ("churn"), and a meter on a device have plots of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Acl,
    Chain,
    Changes,
    Churn,
    Device,
    Forward,
    Meter,
    MeterOnDevice,
    Offered,
    Strings,
}

impl Kind {
    /// What tells rows apart, by the names of fields; the rows of a line, or a bar, have all of it in common but what is drawn across.
    pub(super) fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Acl => &["classifier", "workload", "rules", "batch", "machine", "commit"],
            Self::Chain | Self::Offered => &[
                "workload",
                "workers",
                "flows",
                "distribution",
                "new_flows",
                "flood",
                "packet_size",
                "batch",
                "device",
                "transport",
                "offered_mpps",
                "machine",
                "commit",
            ],
            Self::Changes => &["workload", "changes_per_transaction", "rules", "batch", "machine", "commit"],
            Self::Churn => &["workload", "machine", "commit"],
            Self::Device => &[
                "algorithm",
                "transport",
                "specialised",
                "workload",
                "rules",
                "batch",
                "device",
                "offered_mpps",
                "machine",
                "commit",
            ],
            Self::Forward => &["forwarder", "workload", "rules", "packet_size", "flows", "machine", "commit"],
            Self::Meter => &["workload", "workers", "batch", "machine", "commit"],
            Self::MeterOnDevice => &[
                "memory",
                "launch",
                "parse",
                "hash",
                "stage",
                "workload",
                "slice",
                "block",
                "keys_per_thread",
                "batch",
                "device",
                "machine",
                "commit",
            ],
            Self::Strings => &[
                "workload",
                "patterns",
                "report",
                "skip",
                "isa",
                "sampled",
                "batch",
                "device",
                "transport",
                "machine",
                "commit",
            ],
        }
    }

    /// The benchmark's verb.
    fn verb(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Chain | Self::Offered => "chain",
            Self::Changes | Self::Churn => "changes",
            Self::Device => "device",
            Self::Forward => "forward",
            Self::Meter | Self::MeterOnDevice => "meter",
            Self::Strings => "strings",
        }
    }
}

/// A line of a benchmark.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) kind: Kind,
    numbers: BTreeMap<&'static str, f64>,
    /// What tells it from others, in words.
    words: BTreeMap<&'static str, String>,
    /// Its workload without the size of the rule set.
    pub(super) family: String,
}

impl Row {
    /// The figure of a field, if it has one.
    pub(super) fn figure(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }

    /// What a key says, nothing where it is not there. Over numbers of rules, rule sets of one family are one workload.
    pub(super) fn words(&self, key: &str, across: Option<&str>) -> &str {
        match key {
            "workload" if across == Some("rules") => &self.family,
            key => self.words.get(key).map_or("", String::as_str),
        }
    }

    /// A row of a line; `called` is what its workload is called, if that is not to be its own name.
    fn of(line: &[u8], called: Option<&str>) -> Result<Self, String> {
        const EXPECTED: &str = "expected a line of \"packetloom bench acl, chain, changes, device, forward, meter or strings --json\"";
        let text = std::str::from_utf8(line).map_err(|_| format!("not UTF-8; {EXPECTED}"))?;
        let value: Value = serde_json::from_str(text).map_err(|_| format!("not JSON; {EXPECTED}"))?;
        let fields = value.as_object().ok_or_else(|| format!("not a JSON object; {EXPECTED}"))?;
        let workload = fields.get("workload").and_then(Value::as_str);
        let workload = workload.ok_or_else(|| format!("no \"workload\"; {EXPECTED}"))?;
        let (verb, workload) = workload.split_once(' ').unwrap_or((workload, ""));
        let is_there = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
        let (kind, known) = match verb {
            "acl" => (Kind::Acl, "acl"),
            "chain" if is_there("offered_mpps") => (Kind::Offered, "chain"),
            "chain" => (Kind::Chain, "chain"),
            "changes" if is_there("changes_per_transaction") => (Kind::Changes, "changes"),
            "changes" => (Kind::Churn, "churn"),
            "device" => (Kind::Device, "device"),
            "forward" => (Kind::Forward, "forward"),
            "meter" if is_there("memory") => (Kind::MeterOnDevice, "meter"),
            "meter" => (Kind::Meter, "meter"),
            "strings" => (Kind::Strings, "strings"),
            verb => return Err(format!("\"workload\": no benchmark {verb:?} is known; {EXPECTED}")),
        };
        Self::checked(kind, known, fields, clean(called.map_or(&without_endings(workload), |called| called)))
            .map_err(|why| format!("{why}; expected a line of \"packetloom bench {} --json\"", kind.verb()))
    }

    fn checked(
        kind: Kind,
        known: &str,
        fields: &Map<String, Value>,
        workload: String,
    ) -> Result<Self, String> {
        let mut row = Self { kind, numbers: BTreeMap::new(), words: BTreeMap::new(), family: String::new() };
        let wanted = [kind.keys(), &super::figures(kind)[..], &["on"]].concat();
        for (name, value) in schema::pick(known, fields, &wanted)? {
            if let Some(figure) = value.as_f64() {
                if figure != 0.0 && !(LEAST..=MOST).contains(&figure) {
                    return Err(format!("{name:?} is {value}; expected 0, or from {LEAST:e} to {MOST:e}"));
                }
                row.numbers.insert(name, figure);
            }
            if kind.keys().contains(&name) {
                row.words.insert(name, words(name, value));
            } else if let ("on", Some(id)) = (name, value.as_str()) {
                // Which device of its kind.
                row.words.insert("device", clean(id));
            }
        }
        row.family = family(&workload, row.figure("rules"));
        row.words.insert("workload", workload);
        Ok(row)
    }
}

/// The rows of an input, which is called so in messages; `called` is what all workloads are called, if not by their names.
pub(super) fn read(
    rows: &mut Vec<Row>,
    name: &str,
    mut input: impl BufRead,
    called: Option<&str>,
) -> Result<(), Error> {
    let mut line = Vec::new();
    for at in 1.. {
        let fail = |why: String| Error::Plot(format!("{name}:{at}: {why}"));
        line.clear();
        let read = input.by_ref().take(LINE + 1).read_until(b'\n', &mut line);
        match read.map_err(|e| fail(plain(&e)))? {
            0 => break,
            length if length as u64 > LINE => return Err(fail(format!("a line of more than {LINE} bytes"))),
            _ if line.trim_ascii().is_empty() => {}
            _ if rows.len() == ROWS => return Err(fail(format!("more than {ROWS} rows; expected fewer"))),
            _ => rows.push(Row::of(&line, called).map_err(fail)?),
        }
    }
    Ok(())
}

/// What a value of a key says.
fn words(key: &str, value: &Value) -> String {
    let of = |what: &str, n: f64| format!("{} {what}{}", number(n), if n == 1.0 { "" } else { "s" });
    match (key, value.as_f64()) {
        (_, None) => match value {
            Value::String(text) if key == "commit" => format!("commit {}", clean(text)),
            Value::String(text) => clean(text),
            Value::Bool(is_sampled) if key == "sampled" => if *is_sampled { "sampled" } else { "" }.into(),
            Value::Bool(true) => "compiled for the rules".into(),
            Value::Bool(false) => "for any rules".into(),
            _ => String::new(),
        },
        ("workers", Some(n)) => of("worker", n),
        ("flows", Some(n)) => of("flow", n),
        ("rules", Some(n)) => of("rule", n),
        ("patterns", Some(n)) => of("pattern", n),
        ("changes_per_transaction", Some(n)) => of("change", n) + " a transaction",
        ("new_flows", Some(n)) => format!("{} a second", of("new flow", n)),
        // How many packets were sent is another number each time.
        ("flood", Some(n)) => if n > 0.0 { "under a flood" } else { "" }.into(),
        ("packet_size", Some(n)) => format!("packets of {} bytes", number(n)),
        ("skip", Some(n)) => {
            if n > 0.0 {
                format!("{} skipped", of("byte", n))
            } else {
                String::new()
            }
        }
        ("slice", Some(n)) => format!("slices of {} bytes", number(n)),
        ("block", Some(n)) => format!("blocks of {}", number(n)),
        ("keys_per_thread", Some(n)) => of("key", n) + " a thread",
        ("batch", Some(n)) => format!("batches of {}", number(n)),
        ("offered_mpps", Some(n)) => format!("{} Mpps offered", number(n)),
        (_, Some(n)) => number(n),
    }
}

/// Text that XML can hold, on one line.
fn clean(text: &str) -> String {
    let fits = |letter: char| !letter.is_control() && !matches!(letter, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|letter| if fits(letter) { letter } else { '\u{fffd}' }).collect()
}

/// A workload's names without what says how a file is written.
fn without_endings(workload: &str) -> String {
    const ENDINGS: [&str; 7] = [".rules", ".txt", ".json", ".toml", ".gz", ".xz", ".zst"];
    let without = |mut part: &str| {
        while let Some(rest) = ENDINGS.iter().find_map(|ending| part.strip_suffix(ending)) {
            part = rest;
        }
        part.to_owned()
    };
    workload.split(", ").map(without).collect::<Vec<_>>().join(", ")
}

/// Rule sets of different sizes are one line over the number of rules: "acl1_10k" of 9,603 rules is "acl1".
fn family(workload: &str, rules: Option<f64>) -> String {
    let mut end = workload.len();
    while let Some(last) = workload[..end].rfind(|letter: char| letter.is_ascii_digit()) {
        let before =
            workload[..=last].trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
        let (size, mut after) = (&workload[before.len()..=last], &workload[last + 1..]);
        let mut times = 1.0;
        for (letter, of_it) in [('k', 1e3), ('K', 1e3), ('m', 1e6), ('M', 1e6)] {
            if let Some(rest) = after.strip_prefix(letter) {
                (times, after) = (of_it, rest);
                break;
            }
        }
        let is_size = |rules: f64| {
            size.parse::<f64>().is_ok_and(|size| (rules / 2.0..=rules * 2.0).contains(&(size * times)))
        };
        if !after.starts_with(|letter: char| letter.is_alphanumeric()) && rules.is_some_and(is_size) {
            let before = before.strip_suffix(['-', '_', ' ']).unwrap_or(before);
            let name = format!("{before}{after}");
            return if name.is_empty() { "rules".into() } else { name };
        }
        end = before.len();
    }
    workload.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_a_workload_without_the_size_of_its_rules() {
        for (workload, rules, expected) in [
            ("acl1_10k", 9603.0, "acl1"),
            ("acl_100, mixed headers", 100.0, "acl, mixed headers"),
            ("acl1_1k", 9603.0, "acl1_1k"),
            ("1.5M", 1_500_000.0, "rules"),
            ("10kb", 10_000.0, "10kb"),
            ("fw-7", 5.0, "fw"),
            ("ünï10", 10.0, "ünï"),
            ("1..2.", 1.0, "1..2."),
            ("", 1.0, ""),
        ] {
            assert_eq!(family(workload, Some(rules)), expected, "{workload}");
        }
        assert_eq!(family("acl1_10k", None), "acl1_10k");
        assert_eq!(without_endings("a.rules.xz, b.toml, mixed"), "a, b, mixed");
    }
}
