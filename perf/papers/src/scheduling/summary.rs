//! The CSV file of [`super::Scheduling`]: a row per workload and system, made from those of single
//! runs.

use super::super::table::Table;
use super::super::{Rows, cell};
use super::{OTHERS, PUBLISHED, RUN_COLUMNS, SEEDS};

/// The file's columns. Half-widths are of 95 % confidence intervals, empty where there are too few
/// seeds; `flat_top` and what follows is only measured of the default and the published rule.
pub(super) const COLUMNS: &[&str] = &[
    "workload",
    "gpus",
    "models",
    "system",
    "seeds",
    "goodput_rps",
    "half_width_rps",
    "of_published",
    "of_best_other",
    "of_best_other_half_width",
    "best_other",
    "flat_top",
    "in_use",
    "idle_gpus",
    "goodputs_rps",
];

/// The 97.5 % quantile of Student's t distribution with [`SEEDS`] - 1 degrees of freedom.
const T: f64 = 2.776;

/// The file's rows.
pub(super) fn rows(runs: &Table) -> Rows {
    let mut rows = Rows::new();
    for workload in runs.distinct("workload") {
        let goodputs = |system: &str| values(runs, &workload, system, "goodput_rps");
        let published = goodputs(PUBLISHED.name);
        let best = best_other(runs, &workload);
        let best_goodputs = goodputs(best);
        for system in runs.distinct("system") {
            let own = goodputs(&system);
            let shape = |column: &str| {
                let keys = [("workload", &*workload)];
                runs.having(&keys).next().map_or(String::new(), |row| row.text(column).to_owned())
            };
            let watched = |column: &str| values(runs, &workload, &system, column);
            rows.push(vec![
                workload.clone(),
                shape("gpus"),
                shape("models"),
                system.clone(),
                own.len().to_string(),
                number(mean(&own), 2),
                number(half_width(&own), 2),
                number(mean(&own) / mean(&published), 5),
                number(mean(&own) / mean(&best_goodputs), 5),
                number(half_width(&ratios(&own, &best_goodputs)), 5),
                best.to_owned(),
                number(mean(&watched("flat_top")), 5),
                number(mean(&watched("in_use")), 4),
                number(mean(&watched("idle_gpus")), 1),
                own.iter().map(|&goodput| cell(goodput, 2)).collect::<Vec<_>>().join(" "),
            ]);
        }
    }
    rows
}

/// The single runs that a workload's and system's row was made from. Of what was only kept as a
/// mean, each run has the mean.
pub(super) fn runs(file: &Table, workload: &str, system: &str) -> Rows {
    let keys = [("workload", workload), ("system", system)];
    let Some(row) = file.having(&keys).next() else { return Rows::new() };
    let run = |goodput: &str| {
        let text =
            |column: &&str| if *column == "goodput_rps" { goodput } else { row.text(column) }.to_owned();
        RUN_COLUMNS.iter().map(text).collect()
    };
    row.text("goodputs_rps").split_whitespace().map(run).collect()
}

/// The other system with the highest mean goodput.
fn best_other(runs: &Table, workload: &str) -> &'static str {
    let goodput = |system: &str| mean(&values(runs, workload, system, "goodput_rps"));
    let names = OTHERS.iter().map(|system| system.name);
    names.max_by(|a, b| goodput(a).total_cmp(&goodput(b))).unwrap_or(PUBLISHED.name)
}

/// A column of a workload's and system's runs, seed by seed; cells without a number are left out.
fn values(runs: &Table, workload: &str, system: &str, column: &str) -> Vec<f64> {
    let keys = [("workload", workload), ("system", system)];
    runs.having(&keys).map(|row| row.number(column)).filter(|value| value.is_finite()).collect()
}

/// Seed by seed: a seed gives both the same arrivals, so much of their chance is shared.
fn ratios(own: &[f64], other: &[f64]) -> Vec<f64> {
    own.iter().zip(other).map(|(own, other)| own / other).collect()
}

/// NaN of nothing.
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Half of the 95 % confidence interval of the mean, by Student's t; NaN where there are not as
/// many values as [`SEEDS`].
fn half_width(values: &[f64]) -> f64 {
    if values.len() as u64 != SEEDS {
        return f64::NAN;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let count = values.len() as f64;
    T * (squares / (count - 1.0) / count).sqrt()
}

/// Empty where there is no number.
fn number(value: f64, decimals: usize) -> String {
    if value.is_finite() { cell(value, decimals) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::super::DEFAULT;
    use super::*;

    #[test]
    fn a_confidence_interval_is_student_s() {
        // Standard deviation 1.5811, over the root of 5, times 2.776.
        assert!((half_width(&[1.0, 2.0, 3.0, 4.0, 5.0]) - 1.9629).abs() < 1e-4);
        assert!(half_width(&[1.0]).is_nan());
    }

    #[test]
    fn a_row_gives_back_the_runs_that_it_was_made_from() {
        let run = |goodput: &str, flat: &str| {
            ["w", "4", "2", DEFAULT.name, goodput, flat, "1.2500", "3"].map(str::to_owned).to_vec()
        };
        let before = vec![run("90.50", "0.99000"), run("95.25", "0.99000")];
        let file = Table::new(COLUMNS, rows(&Table::new(RUN_COLUMNS, before.clone())));
        let after = runs(&file, "w", DEFAULT.name);
        assert_eq!(after[1][..7], before[1][..7]);
        assert_eq!(Table::new(COLUMNS, rows(&Table::new(RUN_COLUMNS, after))), file);
        assert_eq!(runs(&file, "w", "nexus"), Rows::new());
    }

    #[test]
    fn a_system_is_measured_against_the_best_of_the_others() {
        let run = |system: &str, goodput: &str| {
            ["w", "1", "1", system, goodput, "", "", ""].map(str::to_owned).to_vec()
        };
        let runs = vec![run(DEFAULT.name, "90"), run(PUBLISHED.name, "60"), run("nexus", "100")];
        let table = Table::new(COLUMNS, rows(&Table::new(RUN_COLUMNS, runs)));
        let keys = [("system", DEFAULT.name)];
        assert_eq!(table.number(&keys, "of_published"), 1.5);
        assert_eq!(table.number(&keys, "of_best_other"), 0.9);
        assert_eq!(table.having(&keys).next().unwrap().text("best_other"), "nexus");
    }
}
