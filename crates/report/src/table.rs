//! Reports as tables.

use crate::counts::{Counts, Measure};
use crate::series::Series;
use crate::text::{grouped, percent, shortened, table};
use crate::time;
use crate::top::Top;

/// Letters of a value at the head of a column.
const HEAD: usize = 40;

fn counts(of: Counts) -> impl Iterator<Item = String> {
    Measure::ALL.into_iter().map(move |measure| grouped(of.get(measure)))
}

fn names(fixed: &[&str]) -> Vec<String> {
    fixed.iter().map(|name| (*name).to_owned()).collect()
}

pub(crate) fn top(top: &Top) -> String {
    let spec = top.spec();
    let measure = spec.measure();
    let fields: Vec<_> = spec.field_names().collect();
    let (is_exact, rows) = (top.is_exact(), top.rows());
    let mut head = names(&fields);
    head.extend(names(&["packets", "bytes", "flows", "share"]));
    head.extend((!is_exact).then(|| "error".into()));
    let share = |counts: Counts| percent(counts.get(measure), top.total().get(measure));
    let mut lines: Vec<Vec<String>> = Vec::new();
    for row in &rows {
        let mut line = row.key.texts(spec.key());
        line.extend(counts(row.counts));
        line.push(share(row.counts));
        line.extend((!is_exact).then(|| grouped(row.error)));
        lines.push(line);
    }
    let mut sum = |name: &str, of: Counts| {
        let mut line = vec![String::new(); fields.len()];
        line[0] = name.into();
        line.extend(counts(of));
        line.push(share(of));
        line.extend((!is_exact).then(String::new));
        lines.push(line);
    };
    if top.without() != Counts::default() {
        sum("(no value)", top.without());
    }
    sum("(all flows)", top.total());
    let mut text = format!("{}\n", title(top));
    text.push_str(&table(&head, &lines, fields.len()));
    text.extend(note(top));
    text
}

/// What a table or a picture of them is called.
pub(crate) fn title(top: &Top) -> String {
    let fields: Vec<_> = top.spec().field_names().collect();
    let most = if top.is_exact() { "" } else { "more than " };
    let (keys, plural) = (grouped(top.keys() as u64), if top.keys() == 1 { "" } else { "s" });
    format!("Top {} by {}: {most}{keys} distinct value{plural}", fields.join(" + "), top.spec().measure())
}

/// What of it is not exact.
fn note(top: &Top) -> Option<String> {
    let measure = top.spec().measure();
    let floor = grouped(top.floor());
    let others: Vec<_> = Measure::ALL.into_iter().filter(|it| *it != measure).map(Measure::name).collect();
    let others = others.join(" and ");
    (!top.is_exact()).then(|| {
        format!(
            "Not exact: {measure} may be less by as much as \"error\" says; {others} may be more. What is missing has {floor} {measure} at most.\n"
        )
    })
}

pub(crate) fn series(series: &Series) -> String {
    let mut text = format!("{}\n", series_title(series));
    let interval = series.interval_nanos();
    let start = series.start_nanos().unwrap_or(0);
    let times =
        (0..).map(|at: u64| time::instant(start.saturating_add(at.saturating_mul(interval)), interval));
    let mut head = names(&["start"]);
    let mut rows: Vec<Vec<String>> = Vec::new();
    match series.spec().key() {
        None => {
            head.extend(names(&["packets", "bytes", "flows"]));
            for (time, all) in times.zip(series.counts()) {
                rows.push([time].into_iter().chain(counts(all)).collect());
            }
            rows.push(["(all)".to_owned()].into_iter().chain(counts(series.total())).collect());
        }
        Some(key) => {
            let measure = series.spec().measure();
            let lines = series.lines();
            head.extend(lines.iter().map(|line| shortened(&line.key.label(key), HEAD)));
            head.extend(names(&["(others)", "(all)"]));
            let row = |name: String, values: &mut dyn Iterator<Item = Counts>| {
                [name].into_iter().chain(values.map(|it| grouped(it.get(measure)))).collect()
            };
            for (at, ((time, all), others)) in
                times.zip(series.counts()).zip(series.others(&lines)).enumerate()
            {
                rows.push(row(time, &mut lines.iter().map(|line| line.counts[at]).chain([others, all])));
            }
            let all = series.total();
            let others = lines.iter().fold(all, |rest, line| rest.without(line.total));
            rows.push(row("(all)".into(), &mut lines.iter().map(|line| line.total).chain([others, all])));
            if !series.is_exact() {
                let errors = lines.iter().map(|line| grouped(line.error));
                let empty = [String::new(), String::new()];
                rows.push(["(error)".to_owned()].into_iter().chain(errors).chain(empty).collect());
            }
        }
    }
    text.push_str(&table(&head, &rows, 1));
    series_notes(series).for_each(|note| text.extend([&*note, "\n"]));
    text
}

/// What a table or a picture of it is called.
pub(crate) fn series_title(series: &Series) -> String {
    let interval = time::interval(series.interval_nanos());
    let fields: Vec<_> = series.spec().field_names().collect();
    match &*fields {
        [] => format!("Packets, bytes and flows in intervals of {interval}"),
        fields => {
            let mut name = series.spec().measure().name().to_owned();
            name[..1].make_ascii_uppercase();
            format!("{name} in intervals of {interval} by {}", fields.join(" + "))
        }
    }
}

/// What of it is not as it was asked for, or not exact.
pub(crate) fn series_notes(series: &Series) -> impl Iterator<Item = String> {
    let [asked, interval] = [series.spec().interval_nanos(), series.interval_nanos()].map(time::interval);
    let longer = (asked != interval).then(|| {
        format!("Intervals are {interval}, not {asked}: there would have been too many of {asked}.")
    });
    let measure = series.spec().measure();
    let floor = grouped(series.floor());
    let inexact = (!series.is_exact()).then(|| {
        format!(
            "Not exact: a value may have up to {floor} {measure} more, which are among the others; so may a value that is missing."
        )
    });
    [longer, inexact].into_iter().flatten()
}
