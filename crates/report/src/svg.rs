//! Reports as a picture: bars for the keys with most, lines over time. What is below the pointer is said in numbers (`<title>`).
//!
//! Colours are those of `packetloom plot`; lines differ in their dashes and markers as well. The library that draws there cannot write
//! `<title>`, and has no axis of times in which ticks are at round times.

use crate::counts::{Counts, Measure};
use crate::series::{Line, Series};
use crate::table::{series_notes, series_title, title};
use crate::text::{clean, grouped, percent, scaled, shortened};
use crate::time;
use crate::top::Top;

/// Each has a contrast of 3 to 1 to white at least, and they differ for the colour-blind, too.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#008f68", "#b8589a", "#a67c00", "#4b3a94"];
const DASHES: [&str; 5] = ["", "8 3", "3 3", "10 3 2 3", "14 4"];
/// Corners of markers around their points: as many as are coprime to colours and dashes.
const MARKERS: [&str; 7] = [
    "-4,-4 4,-4 4,4 -4,4",
    "0,-6 6,5 -6,5",
    "0,-6 6,0 0,6 -6,0",
    "0,6 6,-5 -6,-5",
    "-2,-5 2,-5 5,-2 5,2 2,5 -2,5 -5,2 -5,-2",
    "-2,-5 2,-5 2,-2 5,-2 5,2 2,2 2,5 -2,5 -2,2 -5,2 -5,-2 -2,-2",
    "-6,0 -3,-5 3,-5 6,0 3,5 -3,5",
];
const DARK: &str = "#222222";
const GREY: &str = "#666666";
const GRID: &str = "#e4e4e4";

const WIDTH: u32 = 960;
const MARGIN: u32 = 16;
/// Below an axis: its marks and its name.
const AXIS: u32 = 52;
/// Of a bar, and of an entry of a legend.
const ROW: u32 = 24;
/// Of a letter of 13 pixels, at most.
const LETTER: u32 = 8;
const LABEL: usize = 44;
/// Right of the longest bar, for its value.
const VALUE: u32 = 120;
const LEGEND: u32 = 240;
const LEGEND_LETTERS: usize = 25;
/// Intervals that are drawn at most.
const INTERVALS: usize = 600;

/// Text in XML.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            letter => xml.push(letter),
        }
    }
    xml
}

/// Where a text begins, or ends.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// Elements that are drawn so far, and where the next report begins.
#[derive(Default)]
struct Drawing {
    elements: String,
    top: u32,
}

impl Drawing {
    fn put(&mut self, element: &str) {
        self.elements.push_str(element);
        self.elements.push('\n');
    }

    fn text(&mut self, (x, y): (f64, f64), size: u32, colour: &str, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.put(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.put(&format!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="1"/>"#
        ));
    }

    /// Writes the title, and a line for each note; where what is below them begins.
    fn head(&mut self, title: &str, notes: &[String]) -> f64 {
        let fits = |size: u32| ((WIDTH - 2 * MARGIN) * 2 / size) as usize;
        let mut y = f64::from(self.top) + 28.0;
        self.text((f64::from(MARGIN), y), 18, DARK, Anchor::Start, &shortened(title, fits(18)));
        for note in notes {
            y += 18.0;
            self.text((f64::from(MARGIN), y), 13, GREY, Anchor::Start, &shortened(note, fits(13)));
        }
        y + 18.0
    }
}

/// Marks of an axis from 0, in round steps; the last one is at its end.
fn marks(highest: u64) -> Vec<u64> {
    let highest = highest.max(1);
    let mut step: u64 = 1;
    while highest / step > 5 {
        let next = [2, 5, 10].map(|times| step.saturating_mul(times));
        match next.into_iter().find(|next| highest / next <= 5) {
            Some(next) => step = next,
            None => step = next[2],
        }
    }
    let count = highest.div_ceil(step);
    (0..=count).map(|number| number.saturating_mul(step)).collect()
}

/// A part of a length.
fn share(value: u64, most: u64, length: f64) -> f64 {
    value as f64 / most.max(1) as f64 * length
}

/// What a pointer is told.
fn told(counts: Counts) -> String {
    let counts = Measure::ALL.map(|measure| format!("{} {}", grouped(counts.get(measure)), measure.title()));
    counts.join(", ")
}

fn top(drawing: &mut Drawing, top: &Top) {
    let spec = top.spec();
    let measure = spec.measure();
    let (rows, all) = (top.rows(), top.total());
    let mut notes = vec![format!("All flows: {}", told(all))];
    if top.without() != Counts::default() {
        let count = grouped(top.without().get(measure));
        notes.push(format!("Without a value: {count} {}", measure.title()));
    }
    if !top.is_exact() {
        notes.push(format!(
            "Not exact: a bar may be shorter by its hatched part. What is missing has {} {} at most.",
            grouped(top.floor()),
            measure.title()
        ));
    }
    let begin = drawing.head(&title(top), &notes);
    let labels: Vec<_> = rows.iter().map(|row| row.key.label(spec.key())).collect();
    let letters = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0).min(LABEL) as u32;
    let left = f64::from(MARGIN + LETTER * letters.max(4) + 8);
    let length = f64::from(WIDTH - MARGIN - VALUE) - left;
    let marks = marks(rows.first().map_or(0, |row| row.counts.get(measure)));
    let end = marks.last().copied().unwrap_or(1);
    let bottom = begin + f64::from(ROW * rows.len().max(1) as u32) + 4.0;
    for mark in marks {
        let x = left + share(mark, end, length);
        drawing.line((x, begin), (x, bottom), GRID);
        drawing.text((x, bottom + 18.0), 13, DARK, Anchor::Middle, &scaled(mark));
    }
    drawing.text((left + length / 2.0, bottom + 38.0), 13, DARK, Anchor::Middle, measure.title());
    if rows.is_empty() {
        drawing.text((left + 8.0, begin + 18.0), 13, GREY, Anchor::Start, "no flows");
    }
    for (number, (row, label)) in rows.iter().zip(&labels).enumerate() {
        let y = begin + f64::from(ROW * number as u32) + 4.0;
        let value = row.counts.get(measure);
        let (sure, long) = (share(value.saturating_sub(row.error), end, length), share(value, end, length));
        let mut says = format!("{label}: {}", told(row.counts));
        if row.error > 0 {
            says.push_str(&format!("; {} may be less by {}", measure.title(), grouped(row.error)));
        }
        drawing.put(&format!("<g><title>{}</title>", escaped(&says)));
        drawing.text((left - 8.0, y + 15.0), 13, DARK, Anchor::End, &shortened(label, LABEL));
        let colour = COLOURS[0];
        drawing.put(&format!(
            r#"<rect x="{left:.1}" y="{y:.1}" width="{sure:.1}" height="18" fill="{colour}"/>"#
        ));
        if row.error > 0 {
            let (x, width) = (left + sure, long - sure);
            drawing.put(&format!(
                r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="18" fill="url(#unsure)" stroke="{colour}"/>"#
            ));
        }
        let text = format!("{} ({})", scaled(value), percent(value, all.get(measure)));
        drawing.text((left + long + 6.0, y + 14.0), 13, DARK, Anchor::Start, &text);
        drawing.put("</g>");
    }
    drawing.line((left, begin), (left, bottom), DARK);
    drawing.line((left, bottom), (left + length, bottom), DARK);
    drawing.top = bottom.ceil() as u32 + AXIS;
}

/// A line of a panel.
struct Curve<'a> {
    /// What the legend calls it; none where there is no legend.
    label: Option<String>,
    counts: &'a [Counts],
    /// Which colour, dashes and marker it has; none is the grey of all others.
    style: Option<usize>,
}

impl Curve<'_> {
    fn colour(&self) -> &'static str {
        self.style.map_or(GREY, |style| COLOURS[style % COLOURS.len()])
    }

    fn marker(&self, (x, y): (f64, f64)) -> Option<String> {
        let corners = MARKERS[self.style? % MARKERS.len()];
        let colour = self.colour();
        Some(format!(r#"<polygon points="{corners}" transform="translate({x:.1} {y:.1})" fill="{colour}"/>"#))
    }

    fn stroke(&self) -> String {
        let dashes = self.style.map_or("1 2", |style| DASHES[style % DASHES.len()]);
        let dashes =
            if dashes.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dashes}""#) };
        format!(r#"fill="none" stroke="{}" stroke-width="2"{dashes}"#, self.colour())
    }
}

/// Where the values of a series are drawn.
struct Panel {
    left: f64,
    top: f64,
    length: f64,
    height: f64,
    measure: Measure,
    /// The value at the upper end.
    end: u64,
}

impl Panel {
    fn y(&self, value: u64) -> f64 {
        self.top + self.height - share(value, self.end, self.height)
    }

    fn axis(&self, drawing: &mut Drawing, marks: &[u64], interval: u64) {
        let Self { left, top, length, .. } = *self;
        for mark in marks {
            let y = self.y(*mark);
            drawing.line((left, y), (left + length, y), GRID);
            drawing.text((left - 8.0, y + 4.0), 13, DARK, Anchor::End, &scaled(*mark));
        }
        let name = format!("{} per {}", self.measure.title(), time::interval(interval));
        drawing.text((left, top - 8.0), 13, DARK, Anchor::Start, &name);
    }

    /// Draws a curve as steps: a value holds for its whole interval.
    fn curve(&self, drawing: &mut Drawing, curve: &Curve<'_>, is_area: bool) {
        let step = self.length / curve.counts.len().max(1) as f64;
        let bottom = self.top + self.height;
        let mut path = String::new();
        for (at, counts) in curve.counts.iter().enumerate() {
            let y = self.y(counts.get(self.measure));
            let x = self.left + step * (at + 1) as f64;
            match at {
                0 => path.push_str(&format!("M{:.1} {y:.1}", self.left)),
                _ => path.push_str(&format!("V{y:.1}")),
            }
            path.push_str(&format!("H{x:.1}"));
        }
        if path.is_empty() {
            return;
        }
        if is_area {
            let colour = curve.colour();
            drawing.put(&format!(
                r#"<path d="{path}V{bottom:.1}H{:.1}Z" fill="{colour}" fill-opacity="0.2"/>"#,
                self.left
            ));
        }
        drawing.put(&format!(r#"<path d="{path}" {}/>"#, curve.stroke()));
        // Markers of different lines are at different intervals where there are enough.
        let every = curve.counts.len().div_ceil(12).max(1);
        let from = curve.style.unwrap_or(0) * every / COLOURS.len() % every;
        for at in (from..curve.counts.len()).step_by(every).filter(|_| !is_area) {
            let y = self.y(curve.counts[at].get(self.measure));
            if let Some(marker) = curve.marker((self.left + step * (at as f64 + 0.5), y)) {
                drawing.put(&marker);
            }
        }
    }
}

fn series(drawing: &mut Drawing, series: &Series) {
    let coarse = series.coarse(INTERVALS);
    let interval = coarse.interval_nanos();
    let mut notes: Vec<_> = series_notes(series).collect();
    if interval != series.interval_nanos() {
        notes.push(format!("Drawn with intervals of {}.", time::interval(interval)));
    }
    notes.insert(0, format!("All flows: {}", told(series.total())));
    let begin = drawing.head(&series_title(series), &notes);
    let all: Vec<_> = coarse.counts().collect();
    let lines = coarse.lines();
    let others = coarse.others(&lines);
    let key = series.spec().key();
    let left = f64::from(MARGIN + LETTER * 8);
    let (length, height, measures): (_, _, &[Measure]) = match key {
        None => {
            (f64::from(WIDTH - 2 * MARGIN) - left, 120.0, &[Measure::Bytes, Measure::Packets, Measure::Flows])
        }
        Some(_) => (f64::from(WIDTH - LEGEND) - left, 320.0, &[series.spec().measure()]),
    };
    let curves: Vec<_> = match key {
        None => vec![Curve { label: None, counts: &all, style: Some(0) }],
        Some(key) => {
            let lines = lines.iter().enumerate().map(|(number, line)| {
                let label = Some(line.key.label(key));
                Curve { label, counts: &line.counts, style: Some(number) }
            });
            lines.chain([Curve { label: Some("(others)".into()), counts: &others, style: None }]).collect()
        }
    };
    let mut top = begin + 16.0;
    for &measure in measures {
        let values = curves.iter().flat_map(|curve| curve.counts).map(|counts| counts.get(measure));
        let marks = marks(values.max().unwrap_or(0));
        let panel = Panel { left, top, length, height, measure, end: marks.last().copied().unwrap_or(1) };
        panel.axis(drawing, &marks, interval);
        time_grid(drawing, &panel, &coarse);
        // The first ones are above the others.
        curves.iter().rev().for_each(|curve| panel.curve(drawing, curve, key.is_none()));
        drawing.line((left, top), (left, top + height), DARK);
        drawing.line((left, top + height), (left + length, top + height), DARK);
        if key.is_none() {
            tell(drawing, &panel, &coarse, &all, &[], &others);
        } else {
            tell(drawing, &panel, &coarse, &all, &lines, &others);
        }
        top += height + 36.0;
    }
    top -= 36.0;
    time_marks(drawing, (left, top, length), &coarse);
    let mut lowest = top;
    for (number, curve) in curves.iter().enumerate() {
        let Some(label) = &curve.label else { continue };
        let (x, y) = (left + length + 20.0, begin + 24.0 + f64::from(ROW * number as u32));
        drawing.put(&format!("<g><title>{}</title>", escaped(label)));
        let end = x + 28.0;
        drawing.put(&format!(r#"<path d="M{x:.1} {y:.1}H{end:.1}" {}/>"#, curve.stroke()));
        if let Some(marker) = curve.marker((x + 14.0, y)) {
            drawing.put(&marker);
        }
        drawing.text((x + 36.0, y + 4.0), 13, DARK, Anchor::Start, &shortened(label, LEGEND_LETTERS));
        drawing.put("</g>");
        lowest = lowest.max(y);
    }
    drawing.top = lowest.ceil() as u32 + AXIS;
}

/// Times that have a mark: where they are, and what they are, in nanoseconds.
fn marked(series: &Series, length: f64) -> Vec<(f64, u64)> {
    let Some(start) = series.start_nanos() else { return Vec::new() };
    let span = series.interval_nanos().saturating_mul(series.counts().len() as u64).max(1);
    let step = time::step(span, 7);
    let first = start.checked_next_multiple_of(step).unwrap_or(u64::MAX);
    let times = (0..=7).map(|number| first.saturating_add(number * step));
    let inside = times.filter(|time| time - start <= span);
    inside.map(|time| (share(time - start, span, length), time)).collect()
}

fn time_grid(drawing: &mut Drawing, panel: &Panel, series: &Series) {
    for (at, _) in marked(series, panel.length) {
        let x = panel.left + at;
        drawing.line((x, panel.top), (x, panel.top + panel.height), GRID);
    }
}

/// Writes the times below the lowest panel.
fn time_marks(drawing: &mut Drawing, (left, bottom, length): (f64, f64, f64), series: &Series) {
    let marks = marked(series, length);
    let start = series.start_nanos().unwrap_or(0);
    let span = series.interval_nanos().saturating_mul(series.counts().len() as u64).max(1);
    let step = time::step(span, 7);
    for (at, nanos) in &marks {
        let text =
            if step >= time::DAY { time::day(*nanos) } else { time::clock(*nanos, time::is_fine(step)) };
        drawing.text((left + at, bottom + 18.0), 13, DARK, Anchor::Middle, &text);
    }
    let since =
        if marks.is_empty() { "no flows".into() } else { format!("time (UTC), from {}", time::day(start)) };
    drawing.text((left + length / 2.0, bottom + 38.0), 13, DARK, Anchor::Middle, &since);
}

/// Says what is in each interval, where a pointer is above it.
fn tell(
    drawing: &mut Drawing,
    panel: &Panel,
    series: &Series,
    all: &[Counts],
    lines: &[Line],
    others: &[Counts],
) {
    let (interval, start) = (series.interval_nanos(), series.start_nanos().unwrap_or(0));
    let width = panel.length / all.len().max(1) as f64;
    for (at, counts) in all.iter().enumerate() {
        let mut says =
            format!("{}: {}", time::instant(start + interval * at as u64, interval), told(*counts));
        if let Some(key) = series.spec().key() {
            let of = |name: &str, counts: Counts| format!("; {name}: {}", grouped(counts.get(panel.measure)));
            lines.iter().for_each(|line| says.push_str(&of(&line.key.label(key), line.counts[at])));
            says.push_str(&of("(others)", others[at]));
        }
        let (x, y, height) = (panel.left + width * at as f64, panel.top, panel.height);
        drawing.put(&format!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.2}" height="{height:.1}" fill="none" pointer-events="all"><title>{}</title></rect>"#,
            escaped(&says)
        ));
    }
}

/// All reports, one below the other.
pub(crate) fn picture(tops: &[Top], all_series: &[Series]) -> String {
    let mut drawing = Drawing::default();
    tops.iter().for_each(|it| top(&mut drawing, it));
    all_series.iter().for_each(|it| series(&mut drawing, it));
    let titles: Vec<_> = tops.iter().map(title).chain(all_series.iter().map(series_title)).collect();
    let title = escaped(&clean(&titles.join("; ")));
    let height = drawing.top.max(1);
    let colour = COLOURS[0];
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" role="img">
<title>{title}</title>
<defs><pattern id="unsure" width="6" height="6" patternUnits="userSpaceOnUse"><path d="M0 6L6 0" stroke="{colour}"/></pattern></defs>
<rect width="{WIDTH}" height="{height}" fill="white"/>
{}</svg>
"#,
        drawing.elements
    )
}
