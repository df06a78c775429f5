//! The chart of a sweep: requests per second by number of ModelThreads, beside what as many times one would be.
//!
//! Drawn with plotters and its SVG backend alone: pure Rust, no fonts or images to link.

use super::report::Report;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

const MEASURED: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const LINEAR: RGBColor = RGBColor(0x88, 0x88, 0x88);

/// Writes the chart of `sweep`, one report per number of ModelThreads.
///
/// Errors: the file can't be written.
pub fn draw(sweep: &[Report], file: &Path) -> Result<(), Box<dyn Error>> {
    let points: Vec<(f64, f64)> =
        sweep.iter().map(|report| (report.model_threads as f64, report.requests_per_s / 1e6)).collect();
    let (most, highest) = points.iter().fold((1.0f64, 0.0f64), |(x, y), p| (x.max(p.0), y.max(p.1)));
    let one = points.first().map_or(0.0, |(threads, rate)| rate / threads);
    let area = SVGBackend::new(file, (760, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = sweep.first().map_or(String::new(), caption);
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..most * 1.08, 0.0..highest.max(one * most) * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("ModelThreads, a core each")
        .y_desc("million requests per second")
        .x_labels((most as usize + 1).min(16))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .light_line_style(WHITE)
        .draw()?;
    chart
        .draw_series(LineSeries::new([(0.0, 0.0), (most, one * most)], LINEAR))?
        .label("as many times one")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], LINEAR));
    chart
        .draw_series(LineSeries::new(points.iter().copied(), MEASURED.stroke_width(2)))?
        .label("measured (hollow: threads shared cores)")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], MEASURED.stroke_width(2)));
    let marks = sweep.iter().zip(&points).map(|(report, &point)| {
        let style = if report.shared_cores { MEASURED.stroke_width(2) } else { MEASURED.filled() };
        Circle::new(point, 4, style)
    });
    chart.draw_series(marks)?;
    let label = ("sans-serif", 13);
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(label)
        .border_style(LINEAR)
        .draw()?;
    area.present()?;
    Ok(())
}

fn caption(report: &Report) -> String {
    let Report { slo_ms, batch_mean, machine, rank_threads, .. } = report;
    let per_thread = report.models / report.model_threads;
    format!(
        "{per_thread} models a thread, SLO {slo_ms} ms, batches of {batch_mean:.0}, {rank_threads} RankThread(s); {}",
        machine.cpu
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::machine::Machine;
    use crate::scale::options::Options;
    use crate::scale::world::gather;
    use clap::Parser;

    fn report(threads: usize, requests: u64) -> Report {
        let plan = Options::parse_from(["scale"]).plan(threads, 1e6).unwrap();
        let mut outcome = gather(&plan, Vec::new(), Vec::new(), &[]);
        outcome.requests = requests;
        (outcome.ran.batches, outcome.ran.requests) = (requests / 80, requests);
        let machine =
            Machine { cpu: "a processor".to_owned(), cores: 16, kernel: String::new(), load_before: None };
        Report::new(&outcome, machine, 1.0)
    }

    #[test]
    fn a_chart_says_what_it_shows_and_marks_each_run() {
        let file = std::env::temp_dir().join(format!("symphony-chart-{}.svg", std::process::id()));
        let sweep = [report(1, 24_000_000), report(4, 90_000_000), report(12, 270_000_000)];
        draw(&sweep, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for text in ["ModelThreads, a core each", "million requests per second", "SLO 100 ms", "a processor"]
        {
            assert!(svg.contains(text), "{text}");
        }
        // One mark a run and nothing else is a circle.
        assert_eq!(svg.matches("<circle").count(), 3);
    }
}
