//! What the population says of each rule: its goodput over that of the best classic rule of each
//! workload, chosen in hindsight, as a distribution; and its share of the limit where that is
//! known.

use super::generator::Half;
use super::results::{PopulationResults, WorkloadResult};
use super::rules::{BOUND, CLAIRVOYANT, CLASSIC, DEFAULT};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Workloads whose best classic goodput is at most this are left out of the distributions: a few
/// requests decide them.
pub const LEAST_RPS: f64 = 50.0;

/// A rule's goodput over that of the best classic rule, workload by workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// The rule.
    pub rule: String,
    /// Name of the workload and ratio, the least first.
    pub ratios: Vec<(String, f64)>,
    /// The mean share of what is possible, and the number of workloads of which it is known.
    pub of_possible: Option<(f64, usize)>,
}

/// Returns the distributions of a half, the default's first, then the classic rules', then others'
/// by name. Only workloads for which all four classic rules have run are in them.
pub fn distributions(results: &PopulationResults, half: Half) -> Vec<Distribution> {
    let names: BTreeSet<&str> =
        results.of(half).flat_map(|found| found.goodput_rps.keys().map(String::as_str)).collect();
    let first = [DEFAULT].into_iter().chain(CLASSIC);
    let is_of_these = |name: &&str| [DEFAULT, CLAIRVOYANT, BOUND].contains(name) || CLASSIC.contains(name);
    let others = names.iter().copied().filter(|name| !is_of_these(name));
    let rules = first.filter(|name| names.contains(name)).chain(others);
    rules.map(|rule| distribution(results, half, rule)).filter(|found| !found.ratios.is_empty()).collect()
}

fn distribution(results: &PopulationResults, half: Half, rule: &str) -> Distribution {
    let ratio = |found: &WorkloadResult| {
        let best = counted(found)?;
        Some((found.name.clone(), mean(found, rule)? / best))
    };
    let mut ratios: Vec<(String, f64)> = results.of(half).filter_map(ratio).collect();
    ratios.sort_by(|a, b| a.1.total_cmp(&b.1));
    let share = |found: &WorkloadResult| {
        let possible = mean(found, CLAIRVOYANT).filter(|&possible| possible > 0.0)?;
        Some(mean(found, rule)? / possible)
    };
    let shares: Vec<f64> = results.of(half).filter_map(share).collect();
    let of_possible =
        (!shares.is_empty()).then(|| (shares.iter().sum::<f64>() / shares.len() as f64, shares.len()));
    Distribution { rule: rule.to_owned(), ratios, of_possible }
}

/// Returns the mean over the seeds.
fn mean(found: &WorkloadResult, rule: &str) -> Option<f64> {
    let rps = found.goodput_rps.get(rule).filter(|rps| !rps.is_empty())?;
    Some(rps.iter().sum::<f64>() / rps.len() as f64)
}

/// Returns the highest mean of the classic rules; `None` if one has not run.
fn best_classic(found: &WorkloadResult) -> Option<f64> {
    let means: Option<Vec<f64>> = CLASSIC.iter().map(|rule| mean(found, rule)).collect();
    means?.into_iter().reduce(f64::max)
}

/// Returns the highest mean of the classic rules if the workload is in the distributions.
fn counted(found: &WorkloadResult) -> Option<f64> {
    best_classic(found).filter(|&best| best > LEAST_RPS)
}

/// Returns true if the workload is known to be left out of the distributions.
pub fn is_left_out(found: &WorkloadResult) -> bool {
    best_classic(found).is_some_and(|best| best <= LEAST_RPS)
}

/// The bound over the best classic rule below which there is little to gain.
const LITTLE: f64 = 1.05;

/// Returns a sentence on how far [`BOUND`] is above the best classic rule of each workload of a
/// half: no rule can gain more; `None` where that is not known.
pub fn room(results: &PopulationResults, half: Half) -> Option<String> {
    let room = |found: &WorkloadResult| {
        let best = counted(found)?;
        Some(mean(found, BOUND)? / best)
    };
    let mut rooms: Vec<f64> = results.of(half).filter_map(room).collect();
    rooms.sort_by(f64::total_cmp);
    let median = rooms.get(rooms.len() / 2)?;
    let few = rooms.iter().filter(|&&room| room < LITTLE).count();
    Some(format!(
        "The bound is {median:.2} of the best classic rule of each workload as the median, and under \
         {LITTLE} of it on {few} of {}.",
        rooms.len()
    ))
}

/// Returns the geometric mean of the default's goodput over that of the classic rule that is best
/// *on the other seeds*: the best of four on the same seeds has chance on its side. `None` where
/// there are fewer than two seeds.
pub fn without_chance(results: &PopulationResults, half: Half) -> Option<f64> {
    let ratio = |found: &WorkloadResult| {
        let best = counted(found)?;
        let ours = found.goodput_rps.get(DEFAULT)?;
        let classic: Option<Vec<&Vec<f64>>> =
            CLASSIC.iter().map(|rule| found.goodput_rps.get(*rule)).collect();
        let classic = classic?;
        let seeds = classic.iter().map(|rps| rps.len()).min().filter(|&seeds| seeds > 1)?;
        let chosen = |seed: usize| {
            let on_others = |rps: &Vec<f64>| rps[..seeds].iter().sum::<f64>() - rps[seed];
            classic.iter().max_by(|a, b| on_others(a).total_cmp(&on_others(b))).map_or(0.0, |rps| rps[seed])
        };
        let theirs = (0..seeds).map(chosen).sum::<f64>() / seeds as f64;
        let ours = ours.iter().sum::<f64>() / ours.len().max(1) as f64;
        Some(ours / theirs.max(1e-3 * best))
    };
    let ratios: Vec<f64> = results.of(half).filter_map(ratio).collect();
    (!ratios.is_empty()).then(|| geometric_mean(ratios.into_iter()))
}

/// Returns the geometric mean of ratios above 0.
pub(super) fn geometric_mean(ratios: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = ratios.len() as f64;
    (ratios.map(f64::ln).sum::<f64>() / count).exp()
}

impl Distribution {
    /// Returns the geometric mean. A goodput of 0 counts as a thousandth.
    pub fn geometric_mean(&self) -> f64 {
        geometric_mean(self.ratios.iter().map(|(_, ratio)| ratio.max(1e-3)))
    }

    /// Returns the ratio that a share of `below` of the workloads does not exceed.
    pub fn quantile(&self, below: f64) -> f64 {
        let at = (below * (self.ratios.len() - 1) as f64).round() as usize;
        self.ratios[at].1
    }
}

/// Formats the distributions as a table.
pub fn table(distributions: &[Distribution]) -> String {
    let mut text = String::from(
        "| rule | workloads | geometric mean | least 5 % | least quarter | median | least | there | of what is possible |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for of in distributions {
        let possible =
            of.of_possible.map_or_else(|| "-".to_owned(), |(share, count)| format!("{share:.3} ({count})"));
        let (there, least) = &of.ratios[0];
        writeln!(
            text,
            "| {} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {least:.3} | {there} | {possible} |",
            of.rule,
            of.ratios.len(),
            of.geometric_mean(),
            of.quantile(0.05),
            of.quantile(0.25),
            of.quantile(0.5),
        )
        .expect("memory takes it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(goodputs: &[(&str, [f64; 5])]) -> PopulationResults {
        let mut results = PopulationResults::default();
        for (name, rps) in goodputs {
            let workload = Half::by_name(name).unwrap();
            for (rule, rps) in CLASSIC.into_iter().chain([DEFAULT]).zip(rps) {
                results.keep(&workload, rule, &[rps * 0.5, rps * 1.5]);
            }
        }
        results
    }

    #[test]
    fn a_rule_is_measured_by_the_best_classic_one_of_each_workload() {
        let mut results = results(&[
            ("tune-001", [100.0, 80.0, 50.0, 0.0, 90.0]),
            ("tune-002", [10.0, 100.0, 100.0, 100.0, 120.0]),
            ("tune-003", [10.0, 20.0, 30.0, 40.0, 1.0]),
            ("report-001", [100.0, 100.0, 100.0, 100.0, 10.0]),
        ]);
        results.keep(&Half::by_name("tune-001").unwrap(), CLAIRVOYANT, &[180.0]);
        let found = distributions(&results, Half::Tune);
        assert_eq!(found.iter().map(|of| of.rule.as_str()).collect::<Vec<_>>()[0], DEFAULT);
        assert_eq!(found.len(), 5);
        let ours = &found[0];
        assert_eq!(ours.ratios, [("tune-001".to_owned(), 0.9), ("tune-002".to_owned(), 1.2)]);
        assert!((ours.geometric_mean() - 1.08_f64.sqrt()).abs() < 1e-9);
        assert_eq!((ours.quantile(0.0), ours.quantile(1.0)), (0.9, 1.2));
        assert_eq!(ours.of_possible, Some((0.5, 1)));
        assert_eq!(found[4].ratios[0], ("tune-001".to_owned(), 0.0));
        assert!(table(&found).contains("| symphony | 2 | 1.039 | 0.900 |"), "{}", table(&found));
    }

    #[test]
    fn the_room_above_the_best_classic_rule_is_what_the_bound_leaves() {
        let mut results = results(&[
            ("tune-001", [80.0, 60.0, 60.0, 60.0, 60.0]),
            ("tune-002", [60.0, 98.0, 60.0, 60.0, 60.0]),
        ]);
        assert_eq!(room(&results, Half::Tune), None);
        for name in ["tune-001", "tune-002"] {
            results.keep(&Half::by_name(name).unwrap(), BOUND, &[100.0]);
        }
        let text = room(&results, Half::Tune).unwrap();
        assert!(text.contains("is 1.25 of the best") && text.contains("on 1 of 2."), "{text}");
        assert_eq!(distributions(&results, Half::Tune).len(), 5);
    }

    #[test]
    fn a_best_of_four_by_chance_is_not_the_best_on_other_seeds() {
        let mut results = PopulationResults::default();
        let workload = Half::by_name("tune-001").unwrap();
        for (rule, rps) in CLASSIC.into_iter().zip([[100.0, 60.0], [60.0, 100.0], [70.0, 70.0], [1.0, 1.0]]) {
            results.keep(&workload, rule, &rps);
        }
        results.keep(&workload, DEFAULT, &[60.0, 60.0]);
        // Each of the first two is best on the seed on which the other one is not.
        assert_eq!(without_chance(&results, Half::Tune), Some(1.0));
        assert_eq!(without_chance(&results, Half::Report), None);
    }

    #[test]
    fn a_workload_without_all_classic_rules_is_left_out() {
        let mut results = PopulationResults::default();
        results.keep(&Half::by_name("tune-001").unwrap(), DEFAULT, &[100.0]);
        assert!(distributions(&results, Half::Tune).is_empty());
    }
}
