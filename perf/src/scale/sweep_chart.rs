//! The chart of a sweep: requests per second by number of ModelThreads, beside the multiples of one
//! ModelThread's rate, and the range for which this machine has no cores.
//!
//! Drawn with plotters and its SVG backend alone: pure Rust, no fonts or images to link.

use super::report::Report;
use crate::charts::{COLOURS, GREY};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::error::Error;
use std::path::Path;

const SIZE: (u32, u32) = (760, 520);
const MEASURED: RGBColor = COLOURS[0];
const LINEAR: RGBColor = GREY;
const UNMEASURED: RGBColor = RGBColor(0xf0, 0xf0, 0xf0);

/// The part of a sweep that could not be measured.
pub struct Unmeasured {
    /// The first number of ModelThreads that was not measured.
    pub first: usize,
    /// The largest number of ModelThreads asked for.
    pub last: usize,
    /// The number of RankThreads beside them.
    pub rank_threads: usize,
    /// The number of cores of the machine.
    pub cores: usize,
}

impl Unmeasured {
    /// Returns the reason for which the sweep stopped, as a sentence.
    pub fn why(&self) -> String {
        let Unmeasured { first, rank_threads, cores, .. } = self;
        format!(
            "The sweep stops before {} beside {}: that takes {} cores, and there are {cores}.",
            count(*first, "ModelThread"),
            count(*rank_threads, "RankThread"),
            first + rank_threads
        )
    }
}

fn count(number: usize, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}

/// Writes the chart of `sweep`, which has one report per number of ModelThreads.
///
/// Errors: the file can't be written.
pub fn draw(sweep: &[Report], unmeasured: Option<&Unmeasured>, file: &Path) -> Result<(), Box<dyn Error>> {
    paint(sweep, unmeasured, SVGBackend::new(file, SIZE))
}

fn paint(
    sweep: &[Report],
    unmeasured: Option<&Unmeasured>,
    onto: SVGBackend<'_>,
) -> Result<(), Box<dyn Error>> {
    let points: Vec<(f64, f64)> =
        sweep.iter().map(|report| (report.model_threads as f64, report.requests_per_s / 1e6)).collect();
    let last = points.last().map_or(0.0, |point| point.0);
    let most = unmeasured.map_or(last, |beyond| beyond.last as f64).max(1.0);
    let one = points.first().map_or(0.0, |(threads, rate)| rate / threads);
    let highest = points.iter().map(|point| point.1).fold(one * most, f64::max).max(1.0);
    let (right, top) = (most * 1.05, highest * 1.1);

    let area = onto.into_drawing_area();
    area.fill(&WHITE)?;
    let area =
        area.margin(12, 8, 12, 12).titled("Requests per second by ModelThreads", ("sans-serif", 19))?;
    let (chart_area, foot) = area.split_vertically(436);
    let mut chart = ChartBuilder::on(&chart_area)
        .caption(sweep.first().map_or(String::new(), caption), ("sans-serif", 14))
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc("ModelThreads, a core each")
        .y_desc("million requests per second")
        .x_labels((most as usize + 1).min(16))
        .x_label_formatter(&|threads| format!("{threads:.0}"))
        .y_label_formatter(&|rate| format!("{rate}"))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .light_line_style(TRANSPARENT)
        .draw()?;
    if let Some(beyond) = unmeasured {
        let from = (last + beyond.first as f64) / 2.0;
        chart.draw_series([Rectangle::new([(from, 0.0), (right, top)], UNMEASURED.filled())])?;
        let middle = Pos::new(HPos::Center, VPos::Center);
        let style = ("sans-serif", 14).into_font().color(&BLACK.mix(0.6)).pos(middle);
        let text = format!("not measured: the machine has {}", count(beyond.cores, "core"));
        chart.draw_series([Text::new(text, ((from + right) / 2.0, top * 0.12), style)])?;
    }
    chart
        .draw_series(LineSeries::new([(0.0, 0.0), (most, one * most)], LINEAR))?
        .label("as many times one")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], LINEAR));
    chart
        .draw_series(LineSeries::new(points.iter().copied(), MEASURED.stroke_width(2)))?
        .label("measured")
        .legend(|(x, y)| Circle::new((x + 9, y), 4, MEASURED.filled()));
    chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, MEASURED.filled())))?;
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 13))
        .background_style(WHITE)
        .border_style(LINEAR)
        .draw()?;
    let lines = sweep.first().map(machine).into_iter().chain(unmeasured.map(Unmeasured::why));
    for (line, y) in lines.zip([6, 26]) {
        foot.draw(&Text::new(line, (12, y), ("sans-serif", 13).into_font()))?;
    }
    area.present()?;
    Ok(())
}

fn caption(report: &Report) -> String {
    let Report { slo_ms, batch_mean, .. } = report;
    let models = count(report.models / report.model_threads, "model");
    let ranks = count(report.rank_threads, "RankThread");
    format!("{models} a thread, SLO {slo_ms} ms, batches of about {batch_mean:.0}, {ranks}")
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    format!("{}, {}, Linux {}", machine.cpu, count(machine.cores, "core"), machine.kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::machine::Machine;
    use crate::scale::options::Options;
    use crate::scale::run::gather;
    use crate::scale::run::stopwatch::Window;
    use clap::Parser;

    fn report(threads: usize, requests: u64) -> Report {
        let plan = Options::parse_from(["scale"]).plan(threads, 1e6).unwrap();
        let mut outcome = gather(&plan, Window::ALL, Vec::new(), Vec::new());
        outcome.requests = requests;
        (outcome.ran.batches, outcome.ran.requests) = (requests / 80, requests);
        let machine =
            Machine { cpu: "a processor".to_owned(), cores: 16, kernel: String::new(), load_before: None };
        Report::new(&outcome, machine, 1.0, &[])
    }

    #[test]
    fn a_chart_says_what_it_shows_and_marks_each_run() {
        let sweep = [report(1, 24_000_000), report(4, 90_000_000), report(12, 270_000_000)];
        let svg = drawn(&sweep, None);
        for text in ["ModelThreads, a core each", "million requests per second", "SLO 100 ms", "a processor"]
        {
            assert!(svg.contains(text), "{text}");
        }
        // One mark a run, and that of the legend.
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(!svg.contains("not measured"));
    }

    #[test]
    fn a_chart_says_what_was_asked_for_and_not_measured() {
        let unmeasured = Unmeasured { first: 2, last: 12, rank_threads: 1, cores: 2 };
        let svg = drawn(&[report(1, 24_000_000)], Some(&unmeasured));
        let why =
            "The sweep stops before 2 ModelThreads beside 1 RankThread: that takes 3 cores, and there are 2.";
        for text in [why, "not measured: the machine has 2 cores", "\n12\n"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }

    #[test]
    fn a_chart_of_nothing_still_says_why() {
        let unmeasured = Unmeasured { first: 1, last: 4, rank_threads: 1, cores: 1 };
        assert!(drawn(&[], Some(&unmeasured)).contains(&unmeasured.why()));
    }

    fn drawn(sweep: &[Report], unmeasured: Option<&Unmeasured>) -> String {
        let mut svg = String::new();
        paint(sweep, unmeasured, SVGBackend::with_string(&mut svg, SIZE)).unwrap();
        svg
    }
}
