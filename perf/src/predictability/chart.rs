//! The charts of times and of errors: how many take longer, on two logarithmic axes, as tails are
//! read.

use super::SortedTimes;
use super::isolation::IsolatedTimes;
use super::served::ServedBatches;
use crate::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};

/// The most points of a curve: more can't be told apart.
const POINTS: usize = 2_000;

/// The least time that is drawn, milliseconds.
const LEAST_MS: f64 = 0.001;

/// Returns the chart of executions in isolation.
pub fn isolated(title: &str, times: &IsolatedTimes) -> Figure {
    let curves = [("execution", &times.execution), ("as the host sees it", &times.whole)];
    let same = times.execution == times.whole;
    let panel = panel("", "milliseconds", &curves[..if same { 1 } else { 2 }]);
    Figure { title: title.to_owned(), columns: 1, panels: vec![panel] }
}

/// Returns the chart of batches under load.
pub fn served(title: &str, batches: &ServedBatches) -> Figure {
    let (prediction, completion) = (&batches.prediction, &batches.completion);
    let panels = vec![
        panel(
            "duration of executions",
            "prediction error, milliseconds",
            &[("shorter than predicted", &prediction.over), ("longer than predicted", &prediction.under)],
        ),
        panel(
            "end of executions",
            "completion error, milliseconds",
            &[("earlier than predicted", &completion.over), ("later than predicted", &completion.under)],
        ),
    ];
    Figure { title: title.to_owned(), columns: 2, panels }
}

fn panel(title: &str, x: &str, curves: &[(&str, &SortedTimes)]) -> Panel {
    let series: Vec<Series> = curves
        .iter()
        .enumerate()
        .map(|(at, (label, times))| Series {
            label: (*label).to_owned(),
            colour: COLOURS[at],
            shape: Shape::Line,
            points: points(times),
        })
        .collect();
    let all = || series.iter().flat_map(|series| &series.points);
    let most = all().map(|point| point.0).fold(LEAST_MS, f64::max);
    let least = all().map(|point| point.0).fold(most, f64::min);
    let rarest = all().map(|point| point.1).fold(1.0, f64::min);
    Panel {
        title: title.to_owned(),
        x: Axis::ratios(x, power_below(least), most),
        y: Axis::ratios("part that is above it", power_below(rarest), 1.0),
        series,
    }
}

/// Returns the power of ten at or below a number above 0.
fn power_below(value: f64) -> f64 {
    10f64.powf(value.log10().floor())
}

/// Returns the curve: a time, and the part of all that is not below it.
fn points(times: &SortedTimes) -> Vec<(f64, f64)> {
    let all = times.as_slice();
    let count = all.len();
    if count == 0 {
        return Vec::new();
    }
    let at = |rank: usize| (all[rank].as_millis_f64().max(LEAST_MS), (count - rank) as f64 / count as f64);
    // Evenly in the logarithm of what is left, so that the tail keeps each of its points.
    let mut ranks: Vec<usize> = (0..POINTS)
        .map(|step| count - (count as f64).powf(1.0 - step as f64 / (POINTS - 1) as f64).round() as usize)
        .filter(|rank| *rank < count)
        .collect();
    ranks.dedup();
    ranks.into_iter().map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_transport::Nanos;

    #[test]
    fn a_curve_falls_from_all_to_the_slowest_one() {
        let times = SortedTimes::new((1..=100_000).map(|at| Nanos(at * 1_000)).collect());
        let points = points(&times);
        assert_eq!(points[0], (0.001, 1.0));
        assert_eq!(points.last().unwrap(), &(100.0, 1e-5));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 >= b.1));
        assert!(points.len() > 1_000);
    }

    #[test]
    fn charts_are_drawn_of_few_times_and_of_none() {
        let times = |all: &[u64]| SortedTimes::new(all.iter().map(|&ns| Nanos(ns)).collect());
        for all in [&[][..], &[0], &[5_000, 7_000_000]] {
            let isolated_times = IsolatedTimes { execution: times(all), whole: times(&[9]) };
            assert!(isolated("title", &isolated_times).svg().unwrap().contains("title"));
        }
    }
}
