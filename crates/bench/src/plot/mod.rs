//! Pictures of what benchmarks print as JSON lines: lines over what was varied, or bars, one for each measurement.
//!
//! Rows that differ only in what a plot has across are a line. What they differ in otherwise is in the legend, and what they have in common
//! in the title. What was measured more than once is the median, with the lowest and the highest of all.

mod draw;
mod loads;
mod rows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufRead;

use self::draw::{Axis, Line, Picture, Point, STYLES, Style};
use self::rows::{Kind, Row};
use crate::Error;
use crate::sample::{quantile, sorted};

pub use self::loads::draw_loads;

/// Bars of a picture at most.
const BARS: usize = 100;
/// An axis is logarithmic where values differ by more than this, unless the plot says what it is.
const FAR: f64 = 30.0;

/// What lies beside the lines, to compare with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// A core of the machine, as `core_mpps` says.
    Core,
    /// As many times one worker.
    Perfect,
    /// The row that has nothing across: of tables that were made anew.
    Anew,
}

/// How a value lies on an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
    /// Logarithmic where values differ by much.
    Auto,
}

/// A picture that rows of a benchmark make.
struct Plot {
    file: &'static str,
    kind: Kind,
    /// The field across; bars where there is none.
    across: Option<&'static str>,
    /// What is drawn: a field for lines, and one for thin lines; of bars each is one.
    fields: &'static [&'static str],
    /// Fields of the spread: of the rate, or of nanoseconds a packet.
    spread: Option<[&'static str; 2]>,
    beside: Beside,
    scales: [Scale; 2],
}

const fn lines(
    file: &'static str,
    kind: Kind,
    across: &'static str,
    fields: &'static [&'static str],
) -> Plot {
    let scales = [Scale::Log, Scale::Auto];
    Plot { file, kind, across: Some(across), fields, spread: None, beside: Beside::Nothing, scales }
}

const fn bars(file: &'static str, kind: Kind, fields: &'static [&'static str]) -> Plot {
    let scales = [Scale::Linear; 2];
    Plot { file, kind, across: None, fields, spread: None, beside: Beside::Nothing, scales }
}

impl Plot {
    const fn scales(self, across: Scale, up: Scale) -> Self {
        Self { scales: [across, up], ..self }
    }

    const fn spread(self, low: &'static str, high: &'static str) -> Self {
        Self { spread: Some([low, high]), ..self }
    }

    const fn beside(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }
}

const LATENCY: &[&str] = &["latency_us_p50", "latency_us_p99"];

/// All of them.
const PLOTS: [Plot; 30] = {
    use Scale::{Auto, Linear, Log};
    [
        lines("throughput-batch.svg", Kind::Device, "batch", &["mpps"])
            .spread("mpps_min", "mpps_max")
            .beside(Beside::Core),
        lines("latency-batch.svg", Kind::Device, "batch", LATENCY).scales(Linear, Linear),
        lines("latency-batch-log.svg", Kind::Device, "batch", LATENCY).scales(Log, Log),
        lines("throughput-rules.svg", Kind::Device, "rules", &["mpps"])
            .spread("mpps_min", "mpps_max")
            .beside(Beside::Core),
        lines("throughput-workers.svg", Kind::Chain, "workers", &["mpps"])
            .scales(Linear, Linear)
            .spread("p75", "p25")
            .beside(Beside::Perfect),
        lines("throughput-flows.svg", Kind::Chain, "flows", &["mpps"]).spread("p75", "p25"),
        lines("latency-offered.svg", Kind::Offered, "offered_mpps", LATENCY).scales(Linear, Auto),
        bars("acl-throughput.svg", Kind::Acl, &["mpps_cpu"]).spread("cpu_p75", "cpu_p25"),
        lines("acl-batch.svg", Kind::Acl, "batch", &["mpps_cpu"]).spread("cpu_p75", "cpu_p25"),
        lines("acl-rules.svg", Kind::Acl, "rules", &["mpps_cpu"]).spread("cpu_p75", "cpu_p25"),
        bars("meter-throughput.svg", Kind::Meter, &["mpps"]).spread("p75", "p25"),
        lines("meter-workers.svg", Kind::Meter, "workers", &["mpps"])
            .scales(Linear, Linear)
            .spread("p75", "p25")
            .beside(Beside::Perfect),
        lines("meter-burst.svg", Kind::MeterOnDevice, "batch", &["mpps"]).spread("p75", "p25"),
        lines("meter-slice.svg", Kind::MeterOnDevice, "slice", &["mpps"]).spread("p75", "p25"),
        lines("meter-block.svg", Kind::MeterOnDevice, "block", &["mpps"]).spread("p75", "p25"),
        bars("meter-device.svg", Kind::MeterOnDevice, &["mpps"]).spread("p75", "p25"),
        bars("meter-hashes.svg", Kind::MeterOnDevice, &["chi_square", "aimed_chi_square"]),
        bars("meter-chains.svg", Kind::MeterOnDevice, &["longest_chain", "aimed_longest_chain"]),
        bars("changes-rate.svg", Kind::Changes, &["changes_per_second"]),
        bars("changes-latency.svg", Kind::Changes, &["transaction_us_p50", "transaction_us_p99"]),
        bars("changes-throughput.svg", Kind::Changes, &["mpps_quiet", "mpps_changing"]),
        bars("forward-rate.svg", Kind::Forward, &["no_loss_mpps"])
            .spread("no_loss_mpps_min", "no_loss_mpps_max"),
        bars("forward-flood.svg", Kind::Forward, &["flood_mpps"]).spread("flood_mpps_min", "flood_mpps_max"),
        lines("forward-rules.svg", Kind::Forward, "rules", &["flood_mpps"])
            .spread("flood_mpps_min", "flood_mpps_max"),
        bars("forward-latency.svg", Kind::Forward, &["latency_10_us_p50", "latency_10_us_p99"]),
        lines("churn-throughput.svg", Kind::Churn, "changes", &["mpps_cpu"])
            .scales(Linear, Linear)
            .beside(Beside::Anew),
        lines("churn-latency.svg", Kind::Churn, "changes", &["us_p50", "us_p99"]).scales(Linear, Auto),
        bars("strings-throughput.svg", Kind::Strings, &["gbps"]).spread("p25", "p75"),
        lines("strings-patterns.svg", Kind::Strings, "patterns", &["gbps"]).spread("p25", "p75"),
        bars("strings-ratio.svg", Kind::Strings, &["peer_ratio"]).spread("peer_ratio_min", "peer_ratio_max"),
    ]
};

/// The figures that plots of these rows draw.
fn figures(kind: Kind) -> Vec<&'static str> {
    let mut names = Vec::new();
    for plot in PLOTS.iter().filter(|plot| plot.kind == kind) {
        names.extend(plot.across.iter().chain(plot.fields).chain(plot.spread.iter().flatten()));
        names.extend((plot.beside == Beside::Core).then_some("core_mpps"));
    }
    names
}

/// What an axis says, or a field beside another one.
fn called(field: &str) -> &'static str {
    match field {
        "batch" => "Batch (packets)",
        "rules" => "Rules",
        "slice" => "Slice (bytes)",
        "block" => "Block (work items)",
        "workers" => "Workers",
        "flows" => "Flows",
        "changes" => "Changes made",
        "offered_mpps" => "Offered (Mpps)",
        "mpps_cpu" => "Throughput (Mpps of CPU time)",
        "latency_us_p50" | "latency_10_us_p50" => "Latency (µs)",
        "us_p50" | "transaction_us_p50" => "Time of a transaction (µs)",
        "changes_per_second" => "Rule changes (1/s)",
        "patterns" => "Patterns",
        "gbps" => "Throughput (Gb/s of CPU time)",
        "peer_ratio" => "Times as fast as the peer",
        "chi_square" => "Chi-square of places (1: as random ones)",
        "longest_chain" => "Keys in the fullest place",
        _ => "Throughput (Mpps)",
    }
}

/// A value without its field's unit, where several are drawn.
fn of_several(field: &str) -> &'static str {
    match field {
        "mpps_quiet" => "rules stay",
        "mpps_changing" => "rules change",
        "chi_square" | "longest_chain" => "keys of the packets",
        "aimed_chi_square" | "aimed_longest_chain" => "aimed keys",
        field if field.ends_with("p99") => "99th percentile",
        _ => "median",
    }
}

/// What a line has two of.
fn several_of(across: &str) -> &'static str {
    match across {
        "batch" => "batch sizes",
        "rules" => "numbers of rules",
        "slice" => "slices",
        "block" => "block sizes",
        "workers" => "numbers of workers",
        "flows" => "numbers of flows",
        "patterns" => "numbers of patterns",
        "offered_mpps" => "offered loads",
        _ => "numbers of changes",
    }
}

/// The lowest value above 0 and the highest, and whether the axis is logarithmic, which one without such a value is not.
fn ends(scale: Scale, lines: &[Line], of: impl Fn(&Point) -> [f64; 3]) -> (f64, f64, bool) {
    let values: Vec<_> = lines.iter().flat_map(|line| &line.points).flat_map(of).collect();
    let low = values.iter().copied().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    let is_far = || high > FAR * low && !values.contains(&0.0);
    (low, high, high > 0.0 && (scale == Scale::Log || scale == Scale::Auto && is_far()))
}

/// Lines that benchmarks printed.
#[derive(Debug, Default)]
pub struct Rows {
    rows: Vec<Row>,
    called: Option<String>,
}

/// Pictures, and what could not be drawn.
#[derive(Debug)]
pub struct Pictures {
    /// The names of files, and the SVG in them.
    pub files: Vec<(&'static str, String)>,
    /// What is not in them, and why.
    pub notes: Vec<String>,
}

impl Rows {
    /// None; `called` is what all workloads are to be called, if not by their names, so that they are the same.
    pub fn new(called: Option<String>) -> Self {
        Self { rows: Vec::new(), called }
    }

    /// Adds the JSON lines of an input, which has this name in messages.
    ///
    /// # Errors
    ///
    /// [`Error::Plot`] with the name and the line of what is no line of a benchmark, or cannot be read.
    pub fn read(&mut self, name: &str, input: impl BufRead) -> Result<(), Error> {
        rows::read(&mut self.rows, name, input, self.called.as_deref())
    }

    /// Draws what the rows have.
    ///
    /// # Errors
    ///
    /// [`Error::Plot`] where they make no picture.
    pub fn draw(&self) -> Result<Pictures, Error> {
        if self.rows.is_empty() {
            return Err(Error::Plot("no rows; expected JSON lines of \"packetloom bench\"".into()));
        }
        let (mut files, mut notes) = (Vec::new(), Vec::new());
        let long: Vec<_> = PLOTS.iter().map(|plot| plot.long(&self.rows)).collect();
        for (plot, own) in PLOTS.iter().zip(&long) {
            let of_kind = || self.rows.iter().filter(|row| row.kind == plot.kind);
            let mut rows: Vec<_> = of_kind().filter(|row| row.figure(plot.fields[0]).is_some()).collect();
            if let Some(across) = plot.across {
                // What is part of a line in one plot is no lonely point in another.
                let others = || PLOTS.iter().zip(&long).filter(|(other, _)| other.kind == plot.kind);
                rows.retain(|row| {
                    row.figure(across).is_some()
                        && (own.contains(&plot.key(row))
                            || !others().any(|(other, long)| long.contains(&other.key(row))))
                });
                if own.is_empty() {
                    rows.clear();
                }
            }
            if of_kind().next().is_none() {
                continue;
            }
            let picture = match (plot.across, rows.is_empty()) {
                (Some(across), true) => Err(format!("no line has two {}", several_of(across))),
                (None, true) => Err(format!("no row has {:?}", plot.fields[0])),
                (Some(across), _) => plot.lines(across, &rows, &of_kind().collect::<Vec<_>>()),
                (None, _) => plot.bars(&rows),
            };
            if let Ok(Picture { left_out: 1.., .. }) = &picture {
                notes.push(format!("{}: without points of 0, since an axis is logarithmic", plot.file));
            }
            match picture.and_then(|picture| draw::svg(&picture).map_err(|e| e.to_string())) {
                Ok(svg) => files.push((plot.file, svg)),
                Err(why) => notes.push(format!("{}: not written; {why}", plot.file)),
            }
        }
        if files.is_empty() {
            return Err(Error::Plot(format!("nothing to draw: {}", notes.join("; "))));
        }
        Ok(Pictures { files, notes })
    }
}

impl Plot {
    /// The keys that rows of a line, or a bar, have in common.
    fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.kind.keys().iter().copied().filter(|key| Some(*key) != self.across)
    }

    fn key<'a>(&self, row: &'a Row) -> Vec<&'a str> {
        self.keys().map(|key| row.words(key, self.across)).collect()
    }

    /// The keys of its lines of two points and more.
    fn long<'a>(&self, rows: &'a [Row]) -> HashSet<Vec<&'a str>> {
        let mut first = HashMap::new();
        let mut long = HashSet::new();
        let Some(across) = self.across else { return long };
        for row in rows.iter().filter(|row| row.kind == self.kind && row.figure(self.fields[0]).is_some()) {
            let Some(x) = row.figure(across) else { continue };
            if *first.entry(self.key(row)).or_insert(x) != x {
                long.insert(self.key(row));
            }
        }
        long
    }

    /// Which keys differ between rows; the number of rules only where rows of one workload differ in it.
    fn differing(&self, rows: &[&Row]) -> Vec<&'static str> {
        let count = |keys: &[&str]| {
            let words = |row: &&Row| keys.iter().map(|key| row.words(key, self.across).to_owned()).collect();
            rows.iter().map(words).collect::<HashSet<Vec<_>>>().len()
        };
        self.keys()
            .filter(|&key| match key {
                "rules" => count(&["workload", "rules"]) > count(&["workload"]),
                key => count(&[key]) > 1,
            })
            .collect()
    }

    fn label(&self, row: &Row, differing: &[&str]) -> String {
        let words = differing.iter().map(|key| row.words(key, self.across)).filter(|words| !words.is_empty());
        let words = words.collect::<Vec<_>>().join(", ");
        if words.is_empty() { row.words(self.kind.keys()[0], self.across).to_owned() } else { words }
    }

    /// The title, and what all rows have in common: of the benchmark, and of where it ran.
    fn head(&self, rows: &[&Row], differing: &[&str]) -> [String; 3] {
        let listed = |key: &str| {
            let mut names: Vec<_> = rows.iter().map(|row| row.words(key, self.across)).collect();
            names.dedup();
            names.sort_unstable();
            names.dedup();
            names.retain(|name| !name.is_empty());
            match names[..] {
                [first, .., _] if names.len() > 3 => format!("{first} and {} others", names.len() - 1),
                _ => names.join(", "),
            }
        };
        let common = |key: &&str| !differing.contains(key) && !["workload", "device"].contains(key);
        let (origin, own): (Vec<_>, Vec<_>) =
            self.keys().filter(common).partition(|key| ["machine", "commit"].contains(key));
        let said = |keys: Vec<&str>| keys.into_iter().map(listed).filter(|words| !words.is_empty()).collect();
        let mut own: Vec<String> = said(own);
        match self.spread {
            Some([low, _]) if low.ends_with("_min") => own.push("bars: lowest to highest round".into()),
            Some(_) => own.push("bars: quartiles of the rounds".into()),
            None => {}
        }
        let title = [listed("workload"), listed("device")];
        let title: Vec<_> = title.into_iter().filter(|part| !part.is_empty()).collect();
        [title.join(" on "), own.join("; "), said(origin).join("; ")]
    }

    /// What was measured at one place by a field: the median, and the spread if there is any.
    fn point(&self, x: f64, rows: &[&Row], field: &str) -> Option<Point> {
        let values: Vec<_> = rows.iter().filter_map(|row| row.figure(field)).collect();
        // Quartiles of other benchmarks are nanoseconds a packet.
        let is_time = |name: &str| self.kind != Kind::Strings && !name.contains("mpps");
        let rate = |name: &str, value: f64| if is_time(name) { 1e3 / value } else { value };
        let of_spread = |at: usize| {
            let name = self.spread.filter(|_| field == self.fields[0])?[at];
            let ends = rows.iter().filter_map(|row| Some(rate(name, row.figure(name)?)));
            Some(ends.chain(values.iter().copied()).filter(|end| end.is_finite()).collect::<Vec<_>>())
        };
        let ends =
            [of_spread(0).unwrap_or(values.clone()), of_spread(1).unwrap_or(values.clone())].map(sorted);
        let (low, high) = (*ends[0].first()?, *ends[1].last()?);
        let spread = (low < high).then_some((low, high));
        Some(Point { x, y: quantile(&sorted(values), 0.5), spread })
    }

    /// Rows in groups that have a key in common, in order of appearance.
    fn groups<'a>(rows: &[&'a Row], key: impl Fn(&'a Row) -> Vec<&'a str>) -> Vec<Vec<&'a Row>> {
        let mut places = HashMap::new();
        let mut groups: Vec<Vec<_>> = Vec::new();
        for row in rows {
            let place = *places.entry(key(row)).or_insert(groups.len());
            if place == groups.len() {
                groups.push(Vec::new());
            }
            groups[place].push(*row);
        }
        groups
    }

    /// The points of a line, from left to right.
    fn points(&self, across: &str, rows: &[&Row], field: &str) -> Vec<Point> {
        // Numbers that are not negative are in the order of their bits.
        let mut places: BTreeMap<u64, Vec<&Row>> = BTreeMap::new();
        for row in rows {
            places.entry(row.figure(across).unwrap_or_default().to_bits()).or_default().push(row);
        }
        places.into_iter().filter_map(|(x, rows)| self.point(f64::from_bits(x), &rows, field)).collect()
    }

    /// Lines of rows; `all` are those of the benchmark.
    fn lines(&self, across: &str, rows: &[&Row], all: &[&Row]) -> Result<Picture, String> {
        let differing = self.differing(rows);
        let groups = Self::groups(rows, |row| self.key(row));
        if groups.len() > STYLES {
            return Err(format!(
                "{} lines; expected {STYLES} at most, which can be told apart",
                groups.len()
            ));
        }
        let (mut lines, mut thin, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for (number, group) in groups.iter().enumerate() {
            let style = Style::of(number);
            let points = self.points(across, group, self.fields[0]);
            if let ([first, .., last], Beside::Perfect) = (&points[..], self.beside)
                && first.x == 1.0
            {
                let end = Point { x: last.x, y: first.y * last.x, spread: None };
                let points = vec![Point { spread: None, ..*first }, end];
                thin.push(Line { label: None, style: style.thin().without_markers(), points });
            }
            for field in &self.fields[1..] {
                let mut points = self.points(across, group, field);
                points.iter_mut().for_each(|point| point.spread = None);
                thin.push(Line { label: None, style: style.thin(), points });
            }
            lines.push(Line { label: Some(self.label(group[0], &differing)), style, points });
        }
        if !thin.is_empty() && self.beside == Beside::Perfect {
            notes.push((Style::grey(0).thin().without_markers(), "perfect scaling"));
        } else if !thin.is_empty() {
            notes.push((Style::grey(0).thin(), of_several(self.fields[1])));
        }
        lines.extend(thin);
        self.add_beside(across, rows, all, &mut lines);

        let (low, high, is_log) = ends(self.scales[0], &lines, |point| [point.x; 3]);
        let points = || lines.iter().flat_map(|line| &line.points);
        let is_binary = across == "batch" && points().all(|p| p.x >= 1.0 && p.x.log2().fract() == 0.0);
        let x = match (is_log, is_binary) {
            (true, true) => Axis::binary(called(across), low, high),
            (true, false) => Axis::log(called(across), low, high, true),
            (false, _) => Axis::linear(called(across), high),
        };
        let up = |point: &Point| {
            let (least, most) = point.spread.unwrap_or((point.y, point.y));
            [point.y, least, most]
        };
        let (low, high, is_log_up) = ends(self.scales[1], &lines, up);
        let y = match is_log_up {
            true => Axis::log(called(self.fields[0]), low, high, false),
            false => Axis::linear(called(self.fields[0]), high),
        };
        let count = |lines: &[Line]| lines.iter().map(|line| line.points.len()).sum::<usize>();
        let before = count(&lines);
        let fits = |point: &Point| (!is_log || point.x > 0.0) && (!is_log_up || point.y > 0.0);
        lines.iter_mut().for_each(|line| line.points.retain(fits));
        let left_out = before - count(&lines);
        let head = self.head(rows, &differing);
        Ok(Picture { head, x: x.with_room(), y, lines, bars: Vec::new(), notes, left_out })
    }

    /// Adds what the lines are compared with.
    fn add_beside(&self, across: &str, rows: &[&Row], all: &[&Row], lines: &mut Vec<Line>) {
        match self.beside {
            Beside::Core => {
                let own = ["workload", "rules", "device", "machine", "commit"];
                let own: Vec<_> = own.into_iter().filter(|key| *key != across).collect();
                let differing = self.differing(rows);
                let measured: Vec<_> =
                    rows.iter().copied().filter(|row| row.figure("core_mpps").is_some()).collect();
                let key = |row| own.iter().map(|key| Row::words(row, key, self.across)).collect();
                for (number, group) in Self::groups(&measured, key).into_iter().enumerate() {
                    let mut label = vec!["one core"];
                    let parts = own.iter().filter(|key| differing.contains(key));
                    label.extend(parts.map(|key| group[0].words(key, self.across)));
                    let mut points = self.points(across, &group, "core_mpps");
                    points.iter_mut().for_each(|point| point.spread = None);
                    lines.push(Line {
                        label: Some(label.join(", ")),
                        style: Style::grey(number).thin(),
                        points,
                    });
                }
            }
            Beside::Anew => {
                let xs = lines.iter().flat_map(|line| &line.points).map(|point| point.x);
                let last = xs.fold(0.0, f64::max);
                let anew: Vec<_> = all.iter().copied().filter(|row| row.figure(across).is_none()).collect();
                let differing = self.differing(rows);
                for (number, group) in Self::groups(&anew, |row| self.key(row)).into_iter().enumerate() {
                    let ends = [0.0, last].map(|x| self.point(x, &group, self.fields[0]));
                    let label = match differing.is_empty() {
                        true => "tables made anew".into(),
                        false => format!("tables made anew, {}", self.label(group[0], &differing)),
                    };
                    let style = Style::grey(number).thin();
                    lines.push(Line {
                        label: Some(label),
                        style,
                        points: ends.into_iter().flatten().collect(),
                    });
                }
            }
            Beside::Nothing | Beside::Perfect => {}
        }
    }

    /// A bar of each field for each key.
    fn bars(&self, rows: &[&Row]) -> Result<Picture, String> {
        let differing = self.differing(rows);
        let groups = Self::groups(rows, |row| self.key(row));
        let (mut names, mut bars) = (Vec::new(), Vec::new());
        if groups.len() * self.fields.len() > BARS {
            return Err(format!("{} bars; expected {BARS} at most", groups.len() * self.fields.len()));
        }
        // Of one field, what the first key says has a colour.
        let mut colours = Vec::new();
        for group in &groups {
            let first = group[0].words(self.kind.keys()[0], self.across);
            if !colours.contains(&first) {
                colours.push(first);
            }
            let of_first = colours.iter().position(|colour| *colour == first).unwrap_or_default();
            for (number, field) in self.fields.iter().enumerate() {
                let Some(point) = self.point(0.0, group, field) else { continue };
                let label = self.label(group[0], &differing);
                let is_one = self.fields.len() == 1;
                names.push(if is_one { label } else { format!("{label}, {}", of_several(field)) });
                bars.push((Style::of(if is_one { of_first } else { number }), point));
            }
        }
        let ends = bars.iter().map(|(_, point)| point.spread.map_or(point.y, |(_, high)| high.max(point.y)));
        let x = Axis::linear(called(self.fields[0]), ends.fold(0.0, f64::max));
        let head = self.head(rows, &differing);
        Ok(Picture {
            head,
            x,
            y: Axis::names(names),
            lines: Vec::new(),
            bars,
            notes: Vec::new(),
            left_out: 0,
        })
    }
}
