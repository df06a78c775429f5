//! The tables of docs/scheduling.md, made from the CSV file of [`super::Scheduling`].

use super::super::table::{Row, Table};
use super::{ABLATION, DEFAULT, PUBLISHED, SEEDS};
use std::fmt::Write;

/// Goodput by workload, and what it is beside that of the others.
pub(super) fn goodputs(table: &Table) -> String {
    let mut text = format!(
        "{}\n\n| workload | published, r/s | best other, r/s | `symphony`, r/s | over best other | over published | flat top \
         | GPUs in use at half load |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
        seeds(table)
    );
    let ours = || table.having(&[("system", DEFAULT.name)]);
    for row in ours() {
        writeln!(text, "{}", line(table, &row)).expect("memory takes it");
    }
    let all = |column: &str| ours().map(|row| row.number(column)).collect::<Vec<f64>>();
    let (best, published) = (all("of_best_other"), all("of_published"));
    let (flat, in_use) = (all("flat_top"), all("in_use"));
    writeln!(
        text,
        "| **geometric mean** | | | | {} | {} | | |\n| **worst** | | | | {} | {} | {} | {} |",
        written(geometric_mean(&best), 3),
        written(geometric_mean(&published), 3),
        written(least(&best), 3),
        written(least(&published), 3),
        written(least(&flat), 3),
        written(in_use.iter().copied().fold(f64::NAN, f64::max), 2),
    )
    .expect("memory takes it");
    text
}

/// Formats the goodput without each part of the rule, relative to the default's.
pub(super) fn ablation(table: &Table) -> String {
    let mut text = String::from(
        "| rule | geometric mean of its goodput over `symphony`'s | least | there | most | there |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for part in ABLATION {
        let share = |row: Row<'_>| {
            let workload = row.text("workload").to_owned();
            let whole = [("workload", &*workload), ("system", DEFAULT.name)];
            let share = row.number("goodput_rps") / table.number(&whole, "goodput_rps");
            (share, workload)
        };
        let keys = [("system", part.name)];
        let mut shares: Vec<(f64, String)> = table.having(&keys).map(share).collect();
        shares.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mean = geometric_mean(&shares.iter().map(|share| share.0).collect::<Vec<f64>>());
        let (Some(least), Some(most)) = (shares.first(), shares.last()) else { continue };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            part.label,
            written(mean, 3),
            written(least.0, 3),
            least.1,
            written(most.0, 3),
            most.1
        )
        .expect("memory takes it");
    }
    text
}

fn seeds(table: &Table) -> String {
    let seeds = table.rows().next().map_or(0.0, |row| row.number("seeds"));
    if seeds == SEEDS as f64 {
        format!("Means over {seeds} seeds; ± is half of the 95 % confidence interval (Student's t).")
    } else {
        format!(
            "**A short run** (seeds: {seeds}; shorter workloads), as `all` does it: too little to judge by."
        )
    }
}

/// A workload's line; `ours` is the default's row.
fn line(table: &Table, ours: &Row<'_>) -> String {
    let workload = ours.text("workload");
    let of = |system: &str, column: &str| table.number(&[("workload", workload), ("system", system)], column);
    let best = ours.text("best_other");
    let beside = |column: &str, decimals: usize| {
        let (own, published) = (ours.number(column), of(PUBLISHED.name, column));
        format!("{} ({})", written(own, decimals), written(published, decimals))
    };
    format!(
        "| {workload} | {} | {} ({best}) | {} | {} | {} | {} | {} |",
        written(of(PUBLISHED.name, "goodput_rps"), 0),
        written(of(best, "goodput_rps"), 0),
        give_or_take(ours.number("goodput_rps"), ours.number("half_width_rps"), 0),
        give_or_take(ours.number("of_best_other"), ours.number("of_best_other_half_width"), 3),
        written(ours.number("of_published"), 3),
        beside("flat_top", 3),
        beside("in_use", 2),
    )
}

fn give_or_take(value: f64, half_width: f64, decimals: usize) -> String {
    match half_width.is_finite() {
        true => format!("{} ± {}", written(value, decimals), written(half_width, decimals)),
        false => written(value, decimals),
    }
}

fn written(value: f64, decimals: usize) -> String {
    if value.is_finite() { format!("{value:.decimals$}") } else { "-".to_owned() }
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::min)
}

/// Returns the geometric mean of the values that are finite: a ratio to a rule with goodput 0 is
/// not.
fn geometric_mean(values: &[f64]) -> f64 {
    let logs: Vec<f64> = values.iter().filter(|value| value.is_finite()).map(|value| value.ln()).collect();
    (logs.iter().sum::<f64>() / logs.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_mean_leaves_out_what_is_no_number() {
        assert!((geometric_mean(&[1.0, 4.0, f64::NAN]) - 2.0).abs() < 1e-12);
        assert_eq!(least(&[2.0, f64::NAN, 1.0]), 1.0);
    }
}
