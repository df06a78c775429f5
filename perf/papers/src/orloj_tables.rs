//! Tables C.1 to C.7 of Yu's dissertation (Figures 4.7 to 4.11): the share of requests that finish
//! in time where their run times differ, by the SLO in multiples of the 99th percentile of the run
//! times, for Clipper, Nexus, Clockwork and ORLOJ; and for this engine's default.
//!
//! The dissertation gives a mean and a 99th percentile for the real workloads, the number of modes
//! and their standard deviation for the synthetic ones, and neither c0 and c1 of its GPU nor the
//! load. So here: one GPU; a batch of k takes a part of the mean run time, and the rest of k times
//! the longest; Poisson arrivals at a rate in proportion to that at which the GPU would be busy
//! with requests of the mean run time one by one; run times as [`RunTimeCase::applications`] says.
//! Both proportions are [`OrlojSetting::NEAREST`], which [`super::orloj_settings`] finds by Tables
//! C.1 and C.2. A scheduler that wants one number for each batch size has the mean run time's.
//!
//! About half a minute of one core.

use super::systems::{CLIPPER, CLOCKWORK_POW2, DEFAULT, NEXUS, System, TUNED};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use std::sync::Arc;
use symphony_perf::charts::{Axis, Figure, Panel, Shape};
use symphony_scheduler::run_time::{Application, Mode, RunTimeEstimate, RunTimeHistogram, VaryingModel};
use symphony_scheduler::workload::{Arrival, Network, Workload, WorkloadModel};
use symphony_transport::Nanos;

/// The dissertation's rows: table, case, SLO over the 99th percentile, and the share that finishes
/// under each system.
const ROWS: &str = include_str!("../data/orloj.csv");

/// ORLOJ.
pub(super) const ORLOJ: System = System::new("orloj", "ORLOJ", "orloj", 5);

const SYSTEMS: [System; 6] = [CLIPPER, NEXUS, CLOCKWORK_POW2, ORLOJ, DEFAULT, TUNED];

/// The SLOs over the 99th percentile.
pub(super) const SLOS: [&str; 5] = ["1.5", "2", "3", "4", "5"];

/// The mean run time of synthetic cases, ms.
pub(super) const SYNTHETIC_MS: f64 = 100.0;

/// What the dissertation does not give.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OrlojSetting {
    /// The part of what a request of the mean run time takes alone that does not depend on the
    /// batch.
    pub fixed_part: f64,
    /// The rate, over that of a GPU that is always busy with such requests one by one.
    pub load: f64,
    /// How requests arrive.
    pub arrival: Arrival,
    /// The largest batch.
    pub max_batch: usize,
    /// The time that passes before each batch, over what such a request takes alone.
    pub delay: f64,
}

impl OrlojSetting {
    /// The setting with which most rows of Tables C.1 and C.2 are near the dissertation's.
    pub(super) const NEAREST: OrlojSetting =
        OrlojSetting { fixed_part: 0.85, load: 1.5, arrival: Arrival::Poisson, max_batch: 16, delay: 0.0 };
}

/// The requests of a run, and under `--full`.
pub(super) const REQUESTS: (f64, f64) = (5_000.0, 50_000.0);

/// The difference up to which a row counts as near the dissertation's.
pub(super) const NEAR: f64 = 0.05;

/// The difference up to which a system counts as serving as many as another.
pub(super) const AS_GOOD: f64 = 0.005;

/// The samples from which a distribution's halves are made.
const QUANTILES: usize = 2_000;

/// The cases whose curves are drawn.
const DRAWN: [&str; 6] =
    ["std-1", "eight-modal", "resnet-imagenet", "skipnet-imagenet", "gpt-cornell", "bart-cnn"];

/// A row of the dissertation.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaperRow {
    pub(super) table: &'static str,
    pub(super) case: &'static str,
    pub(super) slo: &'static str,
    /// The shares of Clipper, Nexus, Clockwork and ORLOJ.
    finished: [&'static str; 4],
}

/// Returns the number that a cell of the dissertation or a key has.
pub(super) fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

pub(super) fn rows() -> impl Iterator<Item = PaperRow> {
    ROWS.lines().skip(1).map(|line| {
        let mut cells = line.split(',');
        let mut next = || cells.next().expect("the file has seven columns");
        PaperRow { table: next(), case: next(), slo: next(), finished: std::array::from_fn(|_| next()) }
    })
}

impl PaperRow {
    /// Returns true for a row of Tables C.1 and C.2, whose distributions were made.
    pub(super) fn is_synthetic(&self) -> bool {
        matches!(self.table, "C.1" | "C.2")
    }

    /// What the dissertation has for a system; empty for the default.
    pub(super) fn of(&self, system: &str) -> &'static str {
        let at = SYSTEMS.iter().position(|one| one.name == system);
        at.and_then(|at| self.finished.get(at)).copied().unwrap_or_default()
    }
}

/// Returns the share of a case's requests that finish under the dissertation's ORLOJ.
pub(super) fn in_paper(case: &str, slo: &str) -> &'static str {
    rows().find(|row| row.case == case && row.slo == slo).map_or("", |row| row.of(ORLOJ.name))
}

/// The distribution of a case's run times.
enum RunTimeCase {
    /// All the same.
    Constant,
    /// Normal distributions of these means and standard deviations, each an application.
    Modes(Vec<(f64, f64)>),
    /// A log-normal distribution of this mean and 99th percentile, ms; its shorter and its longer
    /// half are an application each, as the dissertation groups requests (section 4.5.2).
    Real(f64, f64),
}

impl RunTimeCase {
    /// Returns the case of this name: Table 4.1's mean and 99th percentile for the real workloads.
    /// Modes lie evenly between a tenth of the longest and the longest; `std-A/B` has A for the
    /// first.
    fn of(name: &str) -> RunTimeCase {
        const COUNTS: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "eight"];
        // The means of modes between 1 and 10, the unit of their standard deviations.
        let means = |count: usize| (0..count).map(move |at| 1.0 + 9.0 * (at as f64 + 0.5) / count as f64);
        if let Some(deviations) = name.strip_prefix("std-") {
            let (first, second) = deviations.split_once('/').unwrap_or((deviations, deviations));
            let deviations = [first, second].map(number);
            return RunTimeCase::Modes(means(2).zip(deviations).collect());
        }
        if let Some(count) = name.strip_suffix("-modal") {
            let count = COUNTS.iter().position(|one| *one == count).expect("one to eight") + 1;
            return RunTimeCase::Modes(means(count).map(|mean| (mean, 1.0)).collect());
        }
        match name {
            "rdinet-cifar" => RunTimeCase::Real(683.15, 2667.54),
            "skipnet-imagenet" => RunTimeCase::Real(3.24, 5.56),
            "blenderbot-convAI" => RunTimeCase::Real(200.39, 242.27),
            "blenderbot-cornell" => RunTimeCase::Real(203.22, 247.04),
            "gpt-convAI" => RunTimeCase::Real(79.47, 143.40),
            "gpt-cornell" => RunTimeCase::Real(94.84, 161.69),
            "bart-cnn" => RunTimeCase::Real(774.66, 1101.99),
            "t5-cnn" => RunTimeCase::Real(552.91, 797.28),
            "fsmt-wmt" => RunTimeCase::Real(189.30, 319.31),
            "mbart-wmt" => RunTimeCase::Real(432.38, 729.87),
            _ => RunTimeCase::Constant,
        }
    }

    /// Returns the applications, each with as many requests.
    fn applications(&self) -> Vec<Application> {
        let of_mode = |mean_ms, deviation_ms| of_mode(1.0, mean_ms, deviation_ms);
        match self {
            RunTimeCase::Constant => vec![of_mode(SYNTHETIC_MS, 0.0)],
            RunTimeCase::Modes(modes) => {
                let mean = modes.iter().map(|mode| mode.0).sum::<f64>() / modes.len() as f64;
                let scale = SYNTHETIC_MS / mean;
                modes.iter().map(|(mean, deviation)| of_mode(mean * scale, deviation * scale)).collect()
            }
            RunTimeCase::Real(mean, high) => {
                let (median, sigma) = log_normal(*mean, *high);
                let whole = RunTimeHistogram::log_normal(median, sigma).expect("a distribution");
                let half = |from: f64| {
                    let part = |at: usize| from + 0.5 * (at as f64 + 0.5) / QUANTILES as f64;
                    let samples: Vec<f64> = (0..QUANTILES).map(|at| whole.quantile(part(at))).collect();
                    let run_times = RunTimeHistogram::of_samples(&samples).expect("there are samples");
                    Application { share: 1.0, run_times, costs: None }
                };
                vec![half(0.0), half(0.5)]
            }
        }
    }
}

/// Returns an application whose run times have one mode.
pub(super) fn of_mode(share: f64, mean_ms: f64, deviation_ms: f64) -> Application {
    let mode = Mode { weight: 1.0, mean_ms, deviation_ms };
    let run_times = RunTimeHistogram::of_modes(&[mode]).expect("a distribution");
    Application { share, run_times, costs: None }
}

/// Returns the median and sigma of the log-normal distribution of this mean and 99th percentile:
/// ln(high / mean) = z sigma - sigma^2 / 2, the smaller solution.
fn log_normal(mean: f64, high: f64) -> (f64, f64) {
    /// The 99th percentile of the standard normal distribution.
    const Z: f64 = 2.326_347_9;
    let sigma = Z - (Z * Z - 2.0 * (high / mean).ln()).sqrt();
    (mean * (-sigma * sigma / 2.0).exp(), sigma)
}

fn workload(row: PaperRow, effort: Effort) -> Workload {
    of_case(row.case, number(row.slo), effort)
}

/// Returns the workload of a case whose SLO is `times` the 99th percentile of what its requests
/// take alone.
pub(super) fn of_case(case: &str, times: f64, effort: Effort) -> Workload {
    of_setting(case, times, effort, &OrlojSetting::NEAREST)
}

/// Returns the workload of a case in a setting.
pub(super) fn of_setting(case: &str, times: f64, effort: Effort, setting: &OrlojSetting) -> Workload {
    let applications = RunTimeCase::of(case).applications().into();
    let of_times = VaryingModel { fixed: Nanos::ZERO, per_request: 1.0, applications };
    let mean = of_times.mixture().mean();
    of_applications(case, of_times.applications, mean, times, effort, setting)
}

/// Returns the workload of a model with these applications in a setting whose parts are those of a
/// request that runs for `mean`, ms.
pub(super) fn of_applications(
    name: &str,
    applications: Arc<[Application]>,
    mean: f64,
    times: f64,
    effort: Effort,
    setting: &OrlojSetting,
) -> Workload {
    let fixed = Nanos::from_millis_f64(mean * setting.fixed_part);
    let varying = VaryingModel { fixed, per_request: 1.0 - setting.fixed_part, applications };
    // What a request takes alone.
    let high = varying.batch_ms(1, varying.mixture().quantile(0.99));
    let profile = varying.profile(RunTimeEstimate::Mean, setting.max_batch).expect("run times are above 0");
    let rate = setting.load * 1e3 / varying.batch_ms(1, mean);
    let model = WorkloadModel::new(name, profile, Nanos::from_millis_f64(times * high));
    let model = WorkloadModel { varying: Some(varying), arrival: setting.arrival.clone(), ..model };
    let mut workload = Workload::of_models(1, rate, vec![model]);
    workload.seed = effort.seed;
    workload.warmup = Nanos::from_secs_f64(200.0 / rate);
    workload.duration = Nanos::from_secs_f64(effort.choose(REQUESTS.0, REQUESTS.1) / rate);
    workload.network = Network { control: Nanos::from_millis_f64(mean * setting.delay), ..workload.network };
    workload
}

/// The tables.
pub(super) struct FinishRates;

impl Experiment for FinishRates {
    fn name(&self) -> &'static str {
        "orloj-tables"
    }

    fn about(&self) -> &'static str {
        "ORLOJ, Tables C.1 to C.7: requests in time where run times differ"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["table", "case", "slo", "system", "finished", "paper"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let pairs = rows().flat_map(|row| SYSTEMS.map(|system| (row, system)));
        let job = |(row, system): (PaperRow, System)| {
            Job::new(effort.choose(REQUESTS.0, REQUESTS.1), move || {
                let finished = 1.0 - system.run(&workload(row, effort))?.bad_rate;
                let texts = [row.table, row.case, row.slo, system.name].map(str::to_owned);
                Ok(vec![
                    texts.into_iter().chain([cell(finished, 3), row.of(system.name).to_owned()]).collect(),
                ])
            })
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |case: &str| Panel {
            title: case.to_owned(),
            x: Axis::up_to("SLO over the 99th percentile", 5.0),
            y: Axis::up_to("requests in time (%)", 100.0),
            series: SYSTEMS
                .iter()
                .map(|system| {
                    let keys = [("case", case), ("system", system.name)];
                    system.series(Shape::Marked, table.percents(&keys, "slo", "finished"))
                })
                .collect(),
        };
        Figure { title: self.about().to_owned(), columns: 3, panels: DRAWN.map(panel).into() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let here = |row: &PaperRow, system: &str| {
            let keys = [("case", row.case), ("slo", row.slo), ("system", system)];
            table.number(&keys, "finished")
        };
        let mean = |of: &[PaperRow], part: &dyn Fn(&PaperRow) -> f64| {
            of.iter().map(part).sum::<f64>() / of.len() as f64
        };
        let all: Vec<PaperRow> = rows().collect();
        let in_paper = |row: &PaperRow, system: System| number(row.of(system.name));
        let mut claims = Vec::new();
        for of_case in all.chunk_by(|a, b| a.case == b.case) {
            let PaperRow { table, case, .. } = of_case[0];
            let [orloj, default] =
                [ORLOJ, DEFAULT].map(|system| mean(of_case, &|row| here(row, system.name)));
            let paper = Paper::Is(mean(of_case, &|row| in_paper(row, ORLOJ)));
            let what = |label: &str| format!("Table {table}, {case}, mean of five SLOs: {label}");
            claims.push(Claim::new(what(ORLOJ.label), paper, orloj, Unit::Percent));
            claims.push(Claim::new(what(DEFAULT.label), Paper::Silent, default, Unit::Percent));
        }
        for system in [CLIPPER, NEXUS, CLOCKWORK_POW2] {
            let (paper, ours) =
                (mean(&all, &|row| in_paper(row, system)), mean(&all, &|row| here(row, system.name)));
            let what = format!("mean of all rows: {}", system.label);
            claims.push(Claim::new(what, Paper::Is(paper), ours, Unit::Percent));
        }
        let count = |holds: &dyn Fn(&PaperRow) -> bool| all.iter().filter(|row| holds(row)).count() as f64;
        let near = |row: &PaperRow| (here(row, ORLOJ.name) - in_paper(row, ORLOJ)).abs() <= NEAR;
        for (of, synthetic) in [("C.1 and C.2", true), ("C.3 to C.7", false)] {
            let rows = all.iter().filter(|row| row.is_synthetic() == synthetic).count();
            let what = format!("rows of {rows} of Tables {of} in which ORLOJ is within 0.05 of the paper's");
            let found = count(&|row| row.is_synthetic() == synthetic && near(row));
            claims.push(Claim::new(what, Paper::Silent, found, Unit::Count));
        }
        let rows = all.len();
        for (system, label) in [(DEFAULT, "the default"), (TUNED, "the default, tuned,")] {
            let as_good = count(&|row| here(row, system.name) >= here(row, ORLOJ.name) - AS_GOOD);
            let what = format!("rows of {rows} in which {label} serves as many as ORLOJ, to half a percent");
            claims.push(Claim::new(what, Paper::Silent, as_good, Unit::Count));
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_read_and_its_workload_has_the_mean_and_the_percentile() {
        assert_eq!(rows().count(), 125);
        for row in rows() {
            assert!(row.finished.iter().all(|text| text.parse::<f64>().is_ok()), "{row:?}");
            if let RunTimeCase::Real(mean, high) = RunTimeCase::of(row.case) {
                let applications = RunTimeCase::of(row.case).applications().into();
                let model = VaryingModel { fixed: Nanos::ZERO, per_request: 1.0, applications };
                let mixture = model.mixture();
                assert!((mixture.mean() / mean - 1.0).abs() < 0.02, "{} {}", row.case, mixture.mean());
                assert!(
                    (mixture.quantile(0.99) / high - 1.0).abs() < 0.03,
                    "{} {}",
                    row.case,
                    mixture.quantile(0.99)
                );
            }
        }
    }
}
