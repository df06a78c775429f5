//! The style of all charts and the drawing of a [`Figure`]: panels of lines and bars side by side,
//! with one legend above them all. Every experiment's chart is a figure;
//! [`crate::scale::sweep_chart`] uses the colours.
//!
//! Drawn with plotters and its SVG backend alone: pure Rust, no fonts or images to link.

use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

/// The colour of bounds, axes and legends.
pub const GREY: RGBColor = RGBColor(0x88, 0x88, 0x88);

/// The colours of series, distinguishable by colour-blind readers too (most are Okabe and Ito's).
pub const COLOURS: [RGBColor; 11] = [
    RGBColor(0x1f, 0x5f, 0xa8),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x33, 0x33, 0x33),
    RGBColor(0x8f, 0x5f, 0x2f),
    RGBColor(0x7a, 0x6f, 0xb8),
    RGBColor(0xb0, 0xa0, 0x20),
    RGBColor(0x8f, 0xd9, 0xc0),
];

/// The font of labels and legends.
pub const LABEL: (&str, u32) = ("sans-serif", 13);

/// The font of axis descriptions.
pub const AXIS: (&str, u32) = ("sans-serif", 14);

/// The font of titles.
pub const TITLE: (&str, u32) = ("sans-serif", 16);

/// A chart: panels row by row, under one title and one legend.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The title above everything.
    pub title: String,
    /// The number of panels in a row.
    pub columns: usize,
    /// The panels.
    pub panels: Vec<Panel>,
}

/// One pair of axes and what is drawn on it.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The title above the panel.
    pub title: String,
    /// The axis below.
    pub x: Axis,
    /// The axis at the left.
    pub y: Axis,
    /// The series, the first at the back.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
    kind: Kind,
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Numbers,
    /// Numbers, as far from each other as their ratio is large.
    Ratios,
    Names,
}

impl Axis {
    /// Makes an axis from 0 to a round number at or above `highest`. `label` says the unit.
    pub fn up_to(label: &str, highest: f64) -> Axis {
        Axis::between(label, 0.0, highest)
    }

    /// Makes an axis from `from` to a round number at or above `highest`.
    pub fn between(label: &str, from: f64, highest: f64) -> Axis {
        let highest = if highest > from { highest } else { from + 1.0 };
        let step = round_step((highest - from) / 5.0);
        let count = ((highest - from) / step - 1e-9).ceil() as usize;
        let whole = |value: f64| (value - value.round()).abs() < 1e-9 * value;
        let decimals = (0..9).find(|&decimals| whole(step * 10f64.powi(decimals))).unwrap_or(9) as usize;
        let ticks = (0..=count).map(|i| from + i as f64 * step);
        let ticks = ticks.map(|at| (at, format!("{at:.decimals$}"))).collect();
        Axis { label: label.to_owned(), from, to: from + count as f64 * step, ticks, kind: Kind::Numbers }
    }

    /// Makes an axis with positions 0, 1, 2 … that have these names: for bars, and for values that
    /// are not evenly spaced.
    pub fn named(label: &str, names: impl IntoIterator<Item = String>) -> Axis {
        let ticks: Vec<(f64, String)> =
            names.into_iter().enumerate().map(|(at, name)| (at as f64, name)).collect();
        Axis { label: label.to_owned(), from: -0.6, to: ticks.len() as f64 - 0.4, ticks, kind: Kind::Names }
    }

    /// Makes an axis from `from` to the first of 1, 2 and 5 times a power of ten that is at least
    /// `highest`, logarithmic, with ticks there. `from` is above 0.
    pub fn ratios(label: &str, from: f64, highest: f64) -> Axis {
        let powers = (from.log10().floor() as i32..).map(|power| 10f64.powi(power));
        let rounds = powers.flat_map(|power| [power, 2.0 * power, 5.0 * power]);
        let mut ticks: Vec<(f64, String)> = Vec::new();
        for at in rounds.skip_while(|&at| at < from) {
            ticks.push((at, at.to_string()));
            if at >= highest {
                break;
            }
        }
        let to = ticks.last().map_or(from, |tick| tick.0);
        Axis { label: label.to_owned(), from, to, ticks, kind: Kind::Ratios }
    }

    /// Returns the width in pixels of the names at the left of a panel; `None` for numbers.
    fn names_width(&self) -> Option<u32> {
        let longest = self.ticks.iter().map(|tick| tick.1.chars().count()).max()?;
        (self.kind == Kind::Names).then_some((longest as f64 * CHARACTERS.1) as u32 + 12)
    }
}

/// Labels plotters' axis at the given ticks and nowhere else.
impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self.kind {
            Kind::Ratios => RangedCoordf64::from(self.from.ln()..self.to.ln()).map(&value.ln(), limit),
            Kind::Numbers | Kind::Names => RangedCoordf64::from(self.from..self.to).map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, at: &f64) -> String {
        self.ticks.iter().find(|tick| tick.0 == *at).map_or(String::new(), |tick| tick.1.clone())
    }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    power * steps.into_iter().find(|&step| step * power >= least * 0.999).unwrap_or(10.0)
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name in the legend; series of several panels that share a name share the legend's entry.
    pub label: String,
    /// The colour of lines, dots and bars.
    pub colour: RGBColor,
    /// The shape of its points.
    pub shape: Shape,
    /// (x, y).
    pub points: Vec<(f64, f64)>,
}

/// The shape of a [`Series`] in a chart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// A line with a dot at each point.
    Marked,
    /// A dot at each point.
    Dots,
    /// A line.
    Line,
    /// A dashed line.
    Dashed,
    /// Bars from 0, `width` wide and moved by `offset`, both in units of the x axis.
    Bars {
        /// The distance of the bar's middle from x, to the right.
        offset: f64,
        /// The width of the bar.
        width: f64,
    },
}

impl Shape {
    /// Returns bars of series number `index` of `count` that stand side by side at each name of an
    /// [`Axis::named`].
    pub fn bar_beside(index: usize, count: usize) -> Shape {
        let width = 0.8 / count as f64;
        Shape::Bars { offset: (index as f64 + 0.5) * width - 0.4, width: width * 0.92 }
    }
}

/// The width of the labels at the left of a panel with numbers.
const NUMBERS_WIDTH: u32 = 62;
/// The height of each name at the left of a panel, and of the margins above and below the panel.
const NAME_ROW: u32 = 19;
const ABOVE_AND_BELOW: u32 = 90;
const PANEL: (u32, u32) = (400, 290);
/// The size of a panel without others.
const LONE_PANEL: (u32, u32) = (640, 330);
const MARGIN: u32 = 14;
const TITLE_ROW: u32 = 24;
const LEGEND_ROW: u32 = 20;
/// The width in pixels of a character of a title and of a legend, estimated on the safe side, as
/// the reader's font is not known.
const CHARACTERS: (f64, f64) = (8.0, 6.8);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Coordinates = Cartesian2d<Axis, Axis>;
type Drawn = Result<(), Box<dyn Error + Send + Sync>>;

impl Figure {
    /// Draws the figure as SVG. The same figure gives the same bytes.
    ///
    /// Errors: a value that plotters can't draw, such as an axis that is not finite.
    pub fn svg(&self) -> Result<String, Box<dyn Error + Send + Sync>> {
        let mut svg = String::new();
        let columns = self.columns.clamp(1, self.panels.len().max(1)) as u32;
        let size = self.panel_size();
        let inner = columns * size.0;
        let title = wrapped(&self.title, (f64::from(inner) / CHARACTERS.0) as usize);
        let legend = self.legend(f64::from(inner));
        let below_title = MARGIN + title.len() as u32 * TITLE_ROW;
        let head = below_title + legend.len() as u32 * LEGEND_ROW + 8;
        let rows = (self.panels.len() as u32).div_ceil(columns);
        let whole = (inner + 2 * MARGIN, head + rows * size.1 + MARGIN);
        let area = SVGBackend::with_string(&mut svg, whole).into_drawing_area();
        area.fill(&WHITE)?;
        for (line, row) in title.into_iter().zip(0..) {
            area.draw(&Text::new(line, (MARGIN as i32 + 4, 12 + row * TITLE_ROW as i32), TITLE.into_font()))?;
        }
        draw_legend(&area, &legend, below_title)?;
        for (at, panel) in self.panels.iter().enumerate() {
            let (column, row) = (at as u32 % columns, at as u32 / columns);
            panel.draw(&area.clone().shrink((MARGIN + column * size.0, head + row * size.1), size))?;
        }
        area.present()?;
        drop(area);
        Ok(svg)
    }

    /// Returns the size of every panel: larger where names stand at the left.
    fn panel_size(&self) -> (u32, u32) {
        let least = if self.panels.len() == 1 { LONE_PANEL } else { PANEL };
        let named = self.panels.iter().filter_map(|panel| {
            let rows = panel.y.ticks.len() as u32;
            Some((least.0 + panel.y.names_width()? - NUMBERS_WIDTH, rows * NAME_ROW + ABOVE_AND_BELOW))
        });
        named.fold(least, |size, named| (size.0.max(named.0), size.1.max(named.1)))
    }

    /// Returns the legend's entries in rows, each with its horizontal position.
    fn legend(&self, width: f64) -> Vec<Vec<(f64, &Series)>> {
        let mut entries: Vec<&Series> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !series.label.is_empty() && entries.iter().all(|known| known.label != series.label) {
                entries.push(series);
            }
        }
        let mut rows = Vec::new();
        let (mut row, mut at) = (Vec::new(), 0.0);
        for entry in entries {
            let needs = 44.0 + entry.label.chars().count() as f64 * CHARACTERS.1;
            if at + needs > width && !row.is_empty() {
                rows.push(std::mem::take(&mut row));
                at = 0.0;
            }
            row.push((at, entry));
            at += needs;
        }
        rows.extend((!row.is_empty()).then_some(row));
        rows
    }
}

/// Breaks text into lines of whole words, each of at most `width` characters where its words allow.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < width => *line += &format!(" {word}"),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn draw_legend(area: &Area<'_>, rows: &[Vec<(f64, &Series)>], top: u32) -> Drawn {
    for (at, row) in rows.iter().enumerate() {
        let y = (top + at as u32 * LEGEND_ROW) as i32 + 8;
        for &(x, series) in row {
            let x = MARGIN as i32 + 4 + x as i32;
            draw_key(area, series, (x, y))?;
            area.draw(&Text::new(series.label.clone(), (x + 28, y - 6), LABEL.into_font()))?;
        }
    }
    Ok(())
}

/// Draws the legend's symbol of `series`.
fn draw_key(area: &Area<'_>, series: &Series, (x, y): (i32, i32)) -> Drawn {
    let colour = series.colour;
    match series.shape {
        Shape::Bars { .. } => {
            area.draw(&Rectangle::new([(x + 5, y - 5), (x + 19, y + 5)], colour.filled()))?
        }
        Shape::Dashed => {
            for part in 0..3 {
                let from = x + part * 9;
                area.draw(&PathElement::new([(from, y), (from + 5, y)], colour.stroke_width(2)))?;
            }
        }
        Shape::Line | Shape::Marked => {
            area.draw(&PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2)))?;
        }
        Shape::Dots => {}
    }
    if matches!(series.shape, Shape::Marked | Shape::Dots) {
        area.draw(&Circle::new((x + 11, y), 3, colour.filled()))?;
    }
    Ok(())
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, LABEL)
            .margin(6)
            .margin_right(16)
            .x_label_area_size(42)
            .y_label_area_size(self.y.names_width().unwrap_or(NUMBERS_WIDTH))
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let mut mesh = chart.configure_mesh();
        if self.y.kind != Kind::Names {
            mesh.disable_x_mesh();
        }
        mesh.x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .bold_line_style(RGBColor(0xe4, 0xe4, 0xe4))
            .light_line_style(WHITE)
            .label_style(LABEL)
            .axis_desc_style(AXIS)
            .axis_style(GREY)
            .draw()?;
        self.series.iter().try_for_each(|series| draw_series(&mut chart, series))
    }
}

fn draw_series(chart: &mut ChartContext<'_, SVGBackend<'_>, Coordinates>, series: &Series) -> Drawn {
    let line = series.colour.stroke_width(2);
    let points = || series.points.iter().copied();
    match series.shape {
        Shape::Line => drop(chart.draw_series(LineSeries::new(points(), line))?),
        Shape::Dashed => drop(chart.draw_series(DashedLineSeries::new(points(), 5, 4, line))?),
        Shape::Marked => {
            chart.draw_series(LineSeries::new(points(), line))?;
            chart.draw_series(points().map(|point| Circle::new(point, 3, series.colour.filled())))?;
        }
        Shape::Dots => {
            chart.draw_series(points().map(|point| Circle::new(point, 4, series.colour.filled())))?;
        }
        Shape::Bars { offset, width } => {
            let bar = |(x, y): (f64, f64)| {
                let (left, right) = (x + offset - width / 2.0, x + offset + width / 2.0);
                Rectangle::new([(left, 0.0), (right, y)], series.colour.filled())
            };
            chart.draw_series(points().map(bar))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.1.as_str()).collect()
    }

    #[test]
    fn an_axis_ends_at_a_round_number_and_its_ticks_have_the_decimals_that_they_need() {
        assert_eq!(ticks(&Axis::up_to("", 5839.0)), ["0", "2000", "4000", "6000"]);
        assert_eq!(ticks(&Axis::up_to("", 1.0)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(ticks(&Axis::up_to("", 1.2)), ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25"]);
        assert_eq!(ticks(&Axis::between("", 1.0, 1.8)), ["1.0", "1.2", "1.4", "1.6", "1.8"]);
        assert_eq!(ticks(&Axis::up_to("", 1083.0)), ["0", "250", "500", "750", "1000", "1250"]);
        assert_eq!(ticks(&Axis::up_to("", 0.0)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    }

    #[test]
    fn an_axis_of_ratios_ends_at_a_round_number_and_spaces_them_by_their_logarithms() {
        let axis = Axis::ratios("", 1.0, 60.0);
        assert_eq!(ticks(&axis), ["1", "2", "5", "10", "20", "50", "100"]);
        assert_eq!(
            (axis.map(&1.0, (0, 200)), axis.map(&10.0, (0, 200)), axis.map(&100.0, (0, 200))),
            (0, 100, 200)
        );
    }

    #[test]
    fn a_panel_with_names_at_its_left_has_room_for_them() {
        let named = Axis::named("", (0..30).map(|at| format!("a workload of some length, {at}")));
        let panel =
            Panel { title: String::new(), x: Axis::ratios("", 0.5, 2.0), y: named.clone(), series: vec![] };
        let (width, height) = Figure { title: String::new(), columns: 1, panels: vec![panel] }.panel_size();
        assert!(width > LONE_PANEL.0 && height >= 30 * NAME_ROW, "{width} {height}");
        assert!(named.names_width() > Some(NUMBERS_WIDTH) && Axis::up_to("", 1.0).names_width().is_none());
    }

    #[test]
    fn a_figure_names_every_series_once_and_labels_its_axes() {
        let series = |label: &str, shape| Series {
            label: label.to_owned(),
            colour: COLOURS[0],
            shape,
            points: vec![(0.0, 1.0), (1.0, 2.0)],
        };
        let panel = Panel {
            title: "a panel".to_owned(),
            x: Axis::named("systems", ["one".to_owned(), "two".to_owned()]),
            y: Axis::up_to("goodput (requests/s)", 2.0),
            series: vec![series("lines", Shape::Marked), series("bars", Shape::bar_beside(0, 2))],
        };
        let figure = Figure { title: "a title".to_owned(), columns: 2, panels: vec![panel.clone(), panel] };
        let svg = figure.svg().unwrap();
        for (text, times) in [("a title", 1), ("a panel", 2), ("lines", 1), ("goodput (requests/s)", 2)] {
            assert_eq!(svg.matches(text).count(), times, "{text}");
        }
        assert_eq!(svg, figure.svg().unwrap());
    }
}
