//! Figure 4.9 of Yu's dissertation, the rows `std-2/0.5` and `std-0.5/2` of Table C.1: two modes
//! that are not alike. The dissertation says that the two distributions mirror each other, not how
//! many requests each mode has. So here: modes at 1 and 10, the unit of their standard deviations,
//! which are 0.5 and 2 or 2 and 0.5; and any share of requests of the shorter one. The GPU and the
//! rate are those of modes with as many requests each, whatever the share, as one model that serves
//! one client after another would have them ([`super::orloj_tables`]).
//!
//! A few seconds of one core.

use super::orloj_tables::{
    NEAR, ORLOJ, OrlojSetting, REQUESTS, SLOS, SYNTHETIC_MS, in_paper, number, of_applications, of_mode,
};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_scheduler::workload::Workload;

/// The means of the modes, ms: 1 and 10 times the unit.
const MODES_MS: [f64; 2] = [UNIT_MS, 10.0 * UNIT_MS];

/// The unit with which the modes' mean is that of the synthetic cases.
const UNIT_MS: f64 = SYNTHETIC_MS / 5.5;

/// The standard deviations of the modes, in units.
const DEVIATIONS: [(&str, [f64; 2]); 2] = [("0.5/2", [0.5, 2.0]), ("2/0.5", [2.0, 0.5])];

/// The shares of requests of the shorter mode.
const SHARES: [&str; 9] = ["0.02", "0.05", "0.1", "0.2", "0.5", "0.8", "0.9", "0.95", "0.98"];

/// The rows of Table C.1, each with the shares that are drawn beside it.
const CASES: [(&str, [&str; 3]); 2] =
    [("std-2/0.5", ["0.5", "0.8", "0.9"]), ("std-0.5/2", ["0.5", "0.1", "0.02"])];

fn workload(deviations: [f64; 2], share: f64, slo: &str, effort: Effort) -> Workload {
    let [short, long] = [0, 1].map(|at| (MODES_MS[at], UNIT_MS * deviations[at]));
    let applications = [of_mode(share, short.0, short.1), of_mode(1.0 - share, long.0, long.1)];
    of_applications("unequal", applications.into(), SYNTHETIC_MS, number(slo), effort, &OrlojSetting::NEAREST)
}

/// Figure 4.9.
pub(super) struct UnequalModes;

impl UnequalModes {
    /// Returns the largest difference from the dissertation's row over all SLOs, and the number of
    /// SLOs at which it is near.
    fn off(table: &Table, case: &str, deviations: &str, share: &str) -> (f64, usize) {
        let off = SLOS.map(|slo| {
            let keys = [("deviations", deviations), ("share", share), ("slo", slo)];
            (table.number(&keys, "finished") - number(in_paper(case, slo))).abs()
        });
        // Both have few digits; their difference has more.
        let near = off.iter().filter(|&&off| off <= NEAR + 1e-9).count();
        (off.into_iter().fold(0.0, f64::max), near)
    }
}

impl Experiment for UnequalModes {
    fn name(&self) -> &'static str {
        "orloj-figure4-9"
    }

    fn about(&self) -> &'static str {
        "ORLOJ, Figure 4.9: requests in time by how many are short, two modes that are not alike"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["deviations", "share", "slo", "finished"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let modes = DEVIATIONS.into_iter().flat_map(|deviations| SHARES.map(|share| (deviations, share)));
        let points = modes.flat_map(|(deviations, share)| SLOS.map(|slo| (deviations, share, slo)));
        let job =
            |((name, deviations), share, slo): ((&'static str, [f64; 2]), &'static str, &'static str)| {
                Job::new(effort.choose(REQUESTS.0, REQUESTS.1), move || {
                    let workload = workload(deviations, number(share), slo, effort);
                    let finished = cell(1.0 - ORLOJ.run(&workload)?.bad_rate, 3);
                    Ok(vec![[name, share, slo].map(str::to_owned).into_iter().chain([finished]).collect()])
                })
            };
        points.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |(case, shares): (&str, [&str; 3])| {
            let paper = Series {
                label: "the dissertation".to_owned(),
                colour: COLOURS[0],
                shape: Shape::Marked,
                points: SLOS.map(|slo| (number(slo), 100.0 * number(in_paper(case, slo)))).into(),
            };
            let of_share = |share: &str| {
                let at = SHARES.iter().position(|one| *one == share).expect("it is one of them");
                let keys = [("deviations", DEVIATIONS[0].0), ("share", share)];
                Series {
                    label: format!("{:.0} % short", 100.0 * number(share)),
                    colour: COLOURS[at + 1],
                    shape: Shape::Marked,
                    points: table.percents(&keys, "slo", "finished"),
                }
            };
            Panel {
                title: case.to_owned(),
                x: Axis::up_to("SLO over the 99th percentile", 5.0),
                y: Axis::up_to("requests in time (%)", 100.0),
                series: std::iter::once(paper).chain(shares.map(of_share)).collect(),
            }
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: CASES.map(panel).into() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (case, _) in CASES {
            for (deviations, _) in DEVIATIONS {
                let off = |share| UnequalModes::off(table, case, deviations, share);
                let nearest = SHARES.into_iter().min_by(|a, b| off(a).0.total_cmp(&off(b).0));
                for share in ["0.5"].into_iter().chain(nearest) {
                    let (most, near) = off(share);
                    let short = 100.0 * number(share);
                    let of = format!("{case}, standard deviations {deviations}, {short:.0} % short");
                    let what = format!("{of}: the largest difference of five SLOs");
                    claims.push(Claim::new(what, Paper::Silent, most, Unit::Percent));
                    let what = format!("{of}: SLOs of five within 0.05");
                    claims.push(Claim::new(what, Paper::Silent, near as f64, Unit::Count));
                }
            }
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_and_the_gpu_stay_and_the_mean_and_the_slo_follow_the_share() {
        let effort = Effort { full: false, seed: 1 };
        let [few, many] = ["0.1", "0.9"].map(|share| workload([0.5, 2.0], number(share), "2", effort));
        assert!((few.rate_rps - many.rate_rps).abs() < 1e-9);
        let varying = [&few, &many].map(|workload| workload.models[0].varying.clone().unwrap());
        assert_eq!(varying[0].fixed, varying[1].fixed);
        let [few_ms, many_ms] = varying.map(|varying| varying.mixture().mean());
        for (found, expected) in [(few_ms, 9.1), (many_ms, 1.9)] {
            assert!((found / UNIT_MS / expected - 1.0).abs() < 0.03, "{found} {expected}");
        }
        assert!(many.models[0].slo < few.models[0].slo);
    }
}
