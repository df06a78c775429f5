//! The chart of [`super::Scheduling`]: for each workload, the default's goodput over that of the
//! best other rule and of the published one.

use super::super::table::{Row, Table};
use super::DEFAULT;
use symphony_perf::charts::{Axis, Figure, GREY, Panel, Series, Shape};

/// The chart.
pub(super) fn figure(title: &str, table: &Table) -> Figure {
    let ours: Vec<Row<'_>> = table.having(&[("system", DEFAULT.name)]).collect();
    let panels = vec![beside_best(&ours), beside_published(&ours)];
    Figure { title: title.to_owned(), columns: 2, panels }
}

fn beside_best(ours: &[Row<'_>]) -> Panel {
    let ratios = ours.iter().map(|row| row.number("of_best_other"));
    let (least, most) = ratios.fold((1.0, 1.0), |(least, most), ratio| (ratio.min(least), ratio.max(most)));
    let from = ((least - 0.01) * 20.0_f64).floor() / 20.0;
    let mut series = vec![even(ours.len())];
    series.extend(heights(ours).map(|(row, at)| interval(row, at)));
    series.push(dots(ours, "of_best_other"));
    Panel {
        title: "over the best other rule (bars: 95 % confidence)".to_owned(),
        x: Axis::between("goodput ratio", from, most + 0.01),
        y: names(ours),
        series,
    }
}

fn beside_published(ours: &[Row<'_>]) -> Panel {
    let (mut least, mut most) = (0.9_f64, 2.0_f64);
    for ratio in ours.iter().map(|row| row.number("of_published")).filter(|ratio| ratio.is_finite()) {
        (least, most) = (least.min(ratio * 0.9), most.max(ratio));
    }
    Panel {
        title: "over symphony-published".to_owned(),
        x: Axis::ratios("goodput ratio (logarithmic)", least, most),
        y: names(ours),
        series: vec![even(ours.len()), dots(ours, "of_published")],
    }
}

/// The workloads, the first on top.
fn names(ours: &[Row<'_>]) -> Axis {
    Axis::named("", ours.iter().rev().map(|row| row.text("workload").to_owned()))
}

/// Each row with its height in the chart.
fn heights<'a, 'b>(ours: &'b [Row<'a>]) -> impl Iterator<Item = (&'b Row<'a>, f64)> {
    ours.iter().rev().zip((0..).map(f64::from))
}

fn dots(ours: &[Row<'_>], column: &str) -> Series {
    let points = heights(ours).map(|(row, at)| (row.number(column), at));
    DEFAULT.series(Shape::Dots, points.filter(|point| point.0.is_finite()))
}

fn interval(row: &Row<'_>, at: f64) -> Series {
    let (ratio, half) = (row.number("of_best_other"), row.number("of_best_other_half_width"));
    let ends = [(ratio - half, at), (ratio + half, at)];
    Series {
        label: String::new(),
        ..DEFAULT.series(Shape::Line, ends.into_iter().filter(|end| end.0.is_finite()))
    }
}

fn even(rows: usize) -> Series {
    let points = vec![(1.0, -0.6), (1.0, rows as f64 - 0.4)];
    Series { label: "as good".to_owned(), colour: GREY, shape: Shape::Dashed, points }
}
