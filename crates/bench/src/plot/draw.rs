//! Axes, and the drawing of a picture as SVG.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Each has a contrast of 3 to 1 to white at least, and they differ for the colour-blind, too; lines differ in their markers as well.
pub(super) const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x8f, 0x68),
    RGBColor(0xb8, 0x58, 0x9a),
    RGBColor(0xa6, 0x7c, 0x00),
    RGBColor(0x4b, 0x3a, 0x94),
];
const DARK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
/// Corners of markers around their points: as many as are coprime to the colours.
const MARKERS: [&[(i32, i32)]; 7] = [
    &[(-2, -5), (2, -5), (5, -2), (5, 2), (2, 5), (-2, 5), (-5, 2), (-5, -2)],
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -6), (6, 5), (-6, 5)],
    &[(0, -6), (6, 0), (0, 6), (-6, 0)],
    &[(0, 6), (6, -5), (-6, -5)],
    &[
        (-2, -5),
        (2, -5),
        (2, -2),
        (5, -2),
        (5, 2),
        (2, 2),
        (2, 5),
        (-2, 5),
        (-2, 2),
        (-5, 2),
        (-5, -2),
        (-2, -2),
    ],
    &[(-6, 0), (-3, -5), (3, -5), (6, 0), (3, 5), (-3, 5)],
];
/// As many lines differ in colour and marker.
pub(super) const STYLES: usize = COLOURS.len() * MARKERS.len();

const WIDE: u32 = 640;
const HIGH: u32 = 400;
const TOP: u32 = 84;
const BELOW: u32 = 56;
/// Between entries of the legend, and between bars.
const ROW: u32 = 22;
/// Of a letter, at most.
const LETTER: u32 = 8;

/// Values from low to high.
pub(super) struct Axis {
    name: String,
    is_log: bool,
    /// From its low to its high end, as logarithms where it has these.
    range: Range<f64>,
    /// Which values have marks, and what these say.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From 0, in round steps.
    pub(super) fn linear(name: &str, highest: f64) -> Self {
        let highest = if highest > 0.0 { highest } else { 1.0 };
        let power = 10_f64.powf((highest / 5.0).log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|times| times * power);
        let step = steps.into_iter().find(|step| highest / step <= 6.0).unwrap_or(power * 10.0);
        let top = (highest / step - 1e-9).ceil().max(1.0);
        let ticks = (0..=top as u32).map(|at| f64::from(at) * step).map(|at| (at, tick(at))).collect();
        Self { name: name.into(), is_log: false, range: 0.0..top * step, ticks }
    }

    /// Of values above 0, logarithmic; `is_fit` where it ends with them, otherwise at the next 1, 2 or 5.
    pub(super) fn log(name: &str, low: f64, high: f64, is_fit: bool) -> Self {
        let of = |low: f64, high: f64, digits: &[f64]| -> Vec<f64> {
            let powers = low.log10().floor() as i32 - 1..=high.log10().ceil() as i32 + 1;
            let values = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
            values.filter(|value| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(value)).collect()
        };
        const ROUND: &[f64] = &[1.0, 2.0, 5.0];
        let below = of(low / 10.0, low, ROUND).last().copied().unwrap_or(low / 10.0);
        let above = of(high, high * 10.0, ROUND).first().copied().unwrap_or(high * 10.0);
        let (low, high) = match (is_fit && low < high, below < above) {
            (true, _) => (low, high),
            (false, true) => (below, above),
            (false, false) => (low / 10.0, high * 10.0),
        };
        let mut ticks = of(low, high, &[1.0]);
        if ticks.len() < 3 {
            ticks = of(low, high, ROUND);
        }
        if ticks.len() < 2 {
            ticks = vec![low, high];
        }
        let every = ticks.len().div_ceil(8);
        let ticks = ticks.into_iter().step_by(every).map(|at| (at, tick(at))).collect();
        Self { name: name.into(), is_log: true, range: low.log10()..high.log10(), ticks }
    }

    /// Of powers of two, each of which is a mark if there is room.
    pub(super) fn binary(name: &str, low: f64, high: f64) -> Self {
        let (first, last) = (low.log2() as i32, high.log2() as i32);
        let every = (last - first).unsigned_abs().div_ceil(8).max(1) as usize;
        let ticks = (first..=last).step_by(every).map(|power| 2_f64.powi(power)).map(|at| (at, binary(at)));
        Self { name: name.into(), is_log: true, ticks: ticks.collect(), range: low.log10()..high.log10() }
    }

    /// Names from the top down, one for each place from 0.
    pub(super) fn names(names: Vec<String>) -> Self {
        let high = names.len() as f64;
        let ticks = names.into_iter().enumerate().map(|(at, name)| (high - at as f64 - 0.5, name)).collect();
        Self { name: String::new(), is_log: false, range: 0.0..high, ticks }
    }

    /// With some room on both sides.
    pub(super) fn with_room(mut self) -> Self {
        let room = (self.range.end - self.range.start).max(1e-9) * 0.03;
        self.range = self.range.start - room..self.range.end + room;
        self
    }

    fn place(&self, value: f64) -> f64 {
        if self.is_log { value.max(f64::MIN_POSITIVE).log10() } else { value }
    }
}

impl Ranged for &Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (self.place(*value) - self.range.start) / (self.range.end - self.range.start);
        low + (f64::from(high - low) * share.clamp(0.0, 1.0)).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for &Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|(at, _)| at == value);
        tick.map(|(_, text)| shortened(text, 60)).unwrap_or_default()
    }
}

/// A figure as it is, with commas: 2,500 or 0.25.
pub(super) fn number(value: f64) -> String {
    if value.fract() != 0.0 || value.abs() >= 1e15 {
        return value.to_string();
    }
    let digits = value.to_string();
    let comma = |at: usize| if at > 0 && (digits.len() - at).is_multiple_of(3) { "," } else { "" };
    digits.char_indices().map(|(at, digit)| format!("{}{digit}", comma(at))).collect()
}

/// Of four digits, as a mark has it.
pub(super) fn tick(value: f64) -> String {
    number(format!("{value:.3e}").parse().unwrap_or(value))
}

/// Powers of two from 1,024 with IEC prefixes.
fn binary(value: f64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")].map(|(power, unit)| (2_f64.powi(power), unit));
    let unit = units.into_iter().find(|(unit, _)| value >= *unit);
    unit.map_or_else(|| number(value), |(unit, name)| format!("{} {name}", number(value / unit)))
}

/// What a line or bar looks like.
#[derive(Clone, Copy)]
pub(super) struct Style {
    colour: RGBColor,
    /// Its marker, if there are any.
    marker: Option<usize>,
    is_thin: bool,
}

impl Style {
    /// One of the styles that differ.
    pub(super) fn of(number: usize) -> Self {
        Self { colour: COLOURS[number % COLOURS.len()], marker: Some(number % MARKERS.len()), is_thin: false }
    }

    /// A grey one, for what is drawn to compare with.
    pub(super) fn grey(number: usize) -> Self {
        Self { colour: GREY, ..Self::of(number) }
    }

    /// The same, thinner, and with hollow markers.
    pub(super) fn thin(self) -> Self {
        Self { is_thin: true, ..self }
    }

    /// The same without markers.
    pub(super) fn without_markers(self) -> Self {
        Self { marker: None, ..self }
    }

    fn stroke(self) -> ShapeStyle {
        self.colour.stroke_width(if self.is_thin { 1 } else { 2 })
    }
}

/// A point, with the lowest and the highest of what was measured there, if these differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) spread: Option<(f64, f64)>,
}

pub(super) struct Line {
    /// Its name in the legend; none where it is not there.
    pub(super) label: Option<String>,
    pub(super) style: Style,
    pub(super) points: Vec<Point>,
}

/// What is drawn: lines over an axis, or bars, one for each name of the upright axis, whose points have no x.
pub(super) struct Picture {
    /// The title, and what is smaller below it.
    pub(super) head: [String; 3],
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<Line>,
    pub(super) bars: Vec<(Style, Point)>,
    /// What the legend has below the lines.
    pub(super) notes: Vec<(Style, &'static str)>,
    /// Points of 0 that a logarithmic axis does not have.
    pub(super) left_out: usize,
}

fn shortened(text: &str, letters: u32) -> String {
    let letters = letters.max(2) as usize;
    if text.chars().count() <= letters {
        return text.into();
    }
    text.chars().take(letters - 1).collect::<String>() + "…"
}

/// Letters of the longest.
fn longest<'a>(texts: impl Iterator<Item = &'a str>) -> u32 {
    texts.map(|text| text.chars().count()).max().unwrap_or(0).min(60) as u32
}

fn font(size: u32, colour: RGBColor, across: HPos) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour).pos(Pos::new(across, VPos::Center))
}

/// The picture as SVG.
pub(super) fn svg(picture: &Picture) -> Result<String, Box<dyn Error>> {
    let Picture { y, lines, bars, notes, .. } = picture;
    let entries: Vec<_> =
        lines.iter().filter_map(|line| Some((line.style, line.label.as_deref()?))).collect();
    let entries: Vec<_> = entries.into_iter().chain(notes.iter().copied()).collect();
    let left =
        if bars.is_empty() { 80 } else { 30 + LETTER * longest(y.ticks.iter().map(|(_, text)| &**text)) };
    let legend = 50 + LETTER * longest(entries.iter().map(|(_, text)| *text));
    let high = HIGH.max(ROW * entries.len() as u32);
    let high = if bars.is_empty() { high } else { ROW * bars.len() as u32 };
    let size = (left + WIDE + legend, TOP + high + BELOW);
    let mut svg = String::new();
    draw(&SVGBackend::with_string(&mut svg, size).into_drawing_area(), picture, left, &entries)?;
    Ok(svg)
}

/// Draws it, with so much room on the left.
fn draw<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    Picture { head, x, y, lines, bars, .. }: &Picture,
    left: u32,
    entries: &[(Style, &str)],
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let (width, _) = root.dim_in_pixel();
    root.fill(&WHITE)?;
    for (text, size, colour, top) in
        [(&head[0], 20, DARK, 22), (&head[1], 15, GREY, 44), (&head[2], 15, GREY, 62)]
    {
        let text = shortened(text, (width - 24) * 2 / size);
        if text.is_empty() {
            continue;
        }
        root.draw_text(&text, &font(size, colour, HPos::Left), (12, top))?;
    }
    let (area, right) = root.split_horizontally(left + WIDE);
    let mut chart = ChartBuilder::on(&area)
        .margin_top(TOP)
        .margin_bottom(BELOW - 48)
        .x_label_area_size(48)
        .margin_left(10)
        .y_label_area_size(left - 10)
        .build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    mesh.bold_line_style(GRID)
        .axis_style(DARK)
        .label_style(font(15, DARK, HPos::Center))
        .axis_desc_style(font(15, DARK, HPos::Center));
    mesh.x_desc(&x.name).y_desc(&y.name);
    if !bars.is_empty() {
        mesh.disable_y_mesh();
    }
    mesh.draw()?;

    let area = chart.plotting_area();
    for (at, (style, bar)) in bars.iter().enumerate() {
        let middle = (bars.len() - at) as f64 - 0.5;
        area.draw(&Rectangle::new([(0.0, middle + 0.35), (bar.y, middle - 0.35)], style.colour.filled()))?;
        if let Some((low, high)) = bar.spread {
            let marks = [(low, low, 0.2), (low, high, 0.0), (high, high, 0.2)];
            for (from, to, by) in marks {
                area.draw(&PathElement::new([(from, middle - by), (to, middle + by)], DARK.stroke_width(1)))?;
            }
        }
        let end = bar.spread.map_or(bar.y, |(_, most)| most.max(bar.y));
        let value = Text::new(tick(bar.y), (6, 0), font(14, DARK, HPos::Left));
        area.draw(&(EmptyElement::at((end, middle)) + value))?;
    }
    for line in lines {
        let places: Vec<_> = line.points.iter().map(|point| (point.x, point.y)).collect();
        area.draw(&PathElement::new(places, line.style.stroke()))?;
        for point in &line.points {
            let Some((low, high)) = point.spread else { continue };
            let by = |at: f64, from: (i32, i32), to: (i32, i32)| {
                EmptyElement::at((point.x, at))
                    + PathElement::new([from, to], line.style.colour.stroke_width(1))
            };
            let between = [low, high].map(|at| (point.x, at));
            area.draw(&PathElement::new(between, line.style.colour.stroke_width(1)))?;
            area.draw(&by(low, (-3, 0), (3, 0)))?;
            area.draw(&by(high, (-3, 0), (3, 0)))?;
        }
    }
    // All lines are below all markers.
    for line in lines {
        for point in &line.points {
            let at = area.map_coordinate(&(point.x, point.y));
            marker(root, at, line.style)?;
        }
    }
    let (origin, _) = right.get_pixel_range();
    for (number, (style, text)) in entries.iter().enumerate() {
        let (at, middle) = (origin.start, (TOP + 10 + ROW * number as u32) as i32);
        root.draw(&PathElement::new([(at + 10, middle), (at + 34, middle)], style.stroke()))?;
        marker(root, (at + 22, middle), *style)?;
        root.draw_text(&shortened(text, 60), &font(15, DARK, HPos::Left), (at + 42, middle))?;
    }
    root.present()
}

/// Draws a line's marker, if it has any.
fn marker<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    (x, y): (i32, i32),
    style: Style,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    let Some(corners) = style.marker.map(|marker| MARKERS[marker]) else { return Ok(()) };
    let corners: Vec<_> = corners.iter().map(|(by_x, by_y)| (x + by_x, y + by_y)).collect();
    root.draw(&Polygon::new(&corners[..], if style.is_thin { WHITE } else { style.colour }))?;
    if style.is_thin {
        let outline: Vec<_> = corners.iter().chain(corners.first()).copied().collect();
        root.draw(&PathElement::new(outline, style.colour.stroke_width(1)))?;
    }
    Ok(())
}
