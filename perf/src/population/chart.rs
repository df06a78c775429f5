//! The chart of the population: for each rule its ratios to the best classic rule, sorted.

use super::rules::{CLASSIC, DEFAULT};
use super::summary::Distribution;
use crate::charts::{Axis, COLOURS, Figure, GREY, Panel, Series, Shape};

/// The range of ratios that is shown; what lies outside is at its edge.
const SHOWN: (f64, f64) = (0.4, 1.2);

/// Returns the chart of these distributions: of the default, of the classic rules, and of the
/// others that are there.
pub fn figure(distributions: &[Distribution]) -> Figure {
    let best = Series {
        label: "the best classic rule of each workload".to_owned(),
        colour: GREY,
        shape: Shape::Dashed,
        points: vec![(0.0, 1.0), (100.0, 1.0)],
    };
    let mut series = vec![best];
    // The default is drawn last, above the others.
    let order = distributions.iter().filter(|of| of.rule != DEFAULT);
    series.extend(order.chain(distributions.iter().filter(|of| of.rule == DEFAULT)).enumerate().map(curve));
    Figure {
        title: "Goodput over that of the best classic rule in hindsight, each rule's ratios sorted"
            .to_owned(),
        columns: 1,
        panels: vec![Panel {
            title: String::new(),
            x: Axis::up_to("share of the workloads (%)", 100.0),
            y: Axis::between("ratio", SHOWN.0, SHOWN.1),
            series,
        }],
    }
}

fn curve((at, of): (usize, &Distribution)) -> Series {
    let count = of.ratios.len() as f64;
    let points = of.ratios.iter().zip(1..);
    // The default has the colour that it has in every chart; no other has it.
    let other = [0, 6, 4, 3, 2, 5, 7, 8, 9, 10];
    let colour = if of.rule == DEFAULT { 1 } else { other[at % other.len()] };
    Series {
        label: of.rule.clone(),
        colour: COLOURS[colour],
        shape: if CLASSIC[1..].contains(&of.rule.as_str()) { Shape::Dashed } else { Shape::Line },
        points: points
            .map(|((_, ratio), rank)| (f64::from(rank) / count * 100.0, ratio.clamp(SHOWN.0, SHOWN.1)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_a_curve_and_the_default_is_on_top() {
        let of = |rule: &str| Distribution {
            rule: rule.to_owned(),
            ratios: vec![("tune-001".to_owned(), 0.1), ("tune-002".to_owned(), 1.0)],
            of_possible: None,
        };
        let figure = figure(&[of(DEFAULT), of(CLASSIC[0]), of(CLASSIC[3])]);
        let series = &figure.panels[0].series;
        assert_eq!(series.iter().map(|one| one.label.as_str()).next_back(), Some(DEFAULT));
        assert_eq!(series[1].points, [(50.0, SHOWN.0), (100.0, 1.0)]);
        assert!(figure.svg().unwrap().contains("symphony-published:window"));
    }
}
