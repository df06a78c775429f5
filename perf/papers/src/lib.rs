//! The papers' figures and tables, redone in the simulator: the command `experiments` and
//! docs/results.md; and an experiment on this engine's default, `scheduling`, with
//! docs/scheduling.md.
//!
//! An [`Experiment`] is one figure. It says which simulations it needs (independent jobs, each
//! giving rows of a CSV file), how the chart is drawn from that file, and which figures of the
//! paper stand beside which of ours. The chart and docs/results.md are made from the CSV file
//! alone, so they can't say anything else.
//!
//! To add one: write its file here and add a line to [`EXPERIMENTS`]. Its jobs should need at most
//! two minutes of one core; its docs say how long they take. What others use: [`systems`] (what is
//! compared), [`setting`] (models and workloads), [`symphony_perf::charts`].

pub mod output;
pub mod queue;
pub mod results;
pub mod setting;
pub mod systems;
pub mod table;

mod clockwork_slos;
mod encoder_sizes;
mod nexus_drops;
mod nexus_features;
mod nexus_mixes;
mod nexus_plans;
mod nexus_prefixes;
mod nexus_queries;
mod orloj_sensitivity;
mod orloj_settings;
mod orloj_tables;
mod orloj_unequal;
mod query_phases;
mod scheduling;
mod symphony_figure1;
mod symphony_figure10;
mod symphony_figure11;
mod symphony_figure13;
mod symphony_figure4;
mod symphony_figure6;
mod symphony_figure7;
mod symphony_table2;
mod symphony_table4;

use std::io;
use symphony_perf::charts::Figure;
use table::Table;

/// Every experiment: those of the papers in their order, then our own.
pub static EXPERIMENTS: &[&dyn Experiment] = &[
    &symphony_table2::Fluctuations,
    &symphony_figure1::Frontends,
    &symphony_figure4::Deferral,
    &symphony_figure6::Zoos,
    &symphony_figure7::Characteristics,
    &symphony_table4::Goodput,
    &symphony_table4::Batches,
    &symphony_table4::Queueing,
    &symphony_figure10::Stability,
    &symphony_figure11::Growth,
    &symphony_figure13::Latency,
    &nexus_plans::Plans,
    &nexus_drops::Lazy,
    &nexus_drops::LazyAndEarly,
    &nexus_features::GAME,
    &nexus_features::TRAFFIC,
    &nexus_prefixes::Variants,
    &nexus_mixes::Mixes,
    &nexus_queries::QuerySplits,
    &query_phases::QueryPhases,
    &clockwork_slos::Lowest,
    &clockwork_slos::Isolation,
    &orloj_tables::FinishRates,
    &orloj_unequal::UnequalModes,
    &orloj_settings::Settings,
    &orloj_sensitivity::DelayRates,
    &orloj_sensitivity::ShortRunTimes,
    &encoder_sizes::EncoderSizes,
    &scheduling::Scheduling,
];

/// One figure or table of a paper, or of ours.
pub trait Experiment: Sync {
    /// Returns the name on the command line and of its files: paper and figure.
    fn name(&self) -> &'static str;
    /// Returns a description in one line.
    fn about(&self) -> &'static str;
    /// Returns the columns of its CSV file.
    fn columns(&self) -> &'static [&'static str];
    /// Returns the simulations that it needs. Each is independent of the others; their rows are
    /// written in this order.
    fn jobs(&self, effort: Effort) -> Vec<Job>;
    /// Returns the jobs of these of its systems alone; the runs of all others are taken from its
    /// CSV file, `known`.
    ///
    /// Errors: it always runs as a whole, has no such system, or the file lacks runs.
    fn jobs_again(&self, _effort: Effort, _systems: &[String], _known: &Table) -> Result<Vec<Job>, String> {
        Err(format!("{} always runs as a whole; leave out --again", self.name()))
    }
    /// Makes its chart.
    fn figure(&self, table: &Table) -> Figure;
    /// Returns the paper's numbers beside those of this run.
    fn claims(&self, table: &Table) -> Vec<Claim>;
    /// Makes the CSV file's rows from those of all jobs.
    fn gathered(&self, rows: Rows) -> Rows {
        rows
    }
    /// Returns true if the whole takes too long for `all`, which then runs a short form; its name
    /// or `--full` runs the whole.
    fn is_long(&self) -> bool {
        false
    }
    /// Returns the file of DIR with its generated parts.
    fn document(&self) -> &'static str {
        results::DOCUMENT
    }
    /// Returns its generated parts, each with the name in its marker.
    fn parts(&self, table: &Table) -> Vec<(String, String)> {
        let section = results::section(self.name(), self.about(), &self.claims(table));
        vec![(self.name().to_owned(), section)]
    }
}

/// Returns the experiment of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Experiment> {
    EXPERIMENTS.iter().copied().find(|experiment| experiment.name() == name)
}

/// The extent of the simulations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// True for longer durations and finer sweeps.
    pub full: bool,
    /// The seed of every random choice.
    pub seed: u64,
}

impl Effort {
    /// Returns `normal`, or `full` under `--full`.
    pub fn choose<T>(&self, normal: T, full: T) -> T {
        if self.full { full } else { normal }
    }
}

/// The rows that a job found: cells in the order of [`Experiment::columns`].
pub type Rows = Vec<Vec<String>>;

/// A part of an experiment that runs on one core.
pub struct Job {
    /// The duration relative to other jobs: about the number of requests that it simulates. The
    /// longest jobs are begun first.
    pub weight: f64,
    run: Box<dyn FnOnce() -> io::Result<Rows> + Send>,
}

impl Job {
    /// Makes a job of this weight.
    pub fn new(weight: f64, run: impl FnOnce() -> io::Result<Rows> + Send + 'static) -> Job {
        Job { weight, run: Box::new(run) }
    }
}

/// A figure of the paper beside that of this run.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The quantity.
    pub what: String,
    /// The paper's figure.
    pub paper: Paper,
    /// The figure of this run; not finite where the CSV file does not have it.
    pub here: f64,
    /// The unit in which the numbers are written.
    pub unit: Unit,
}

impl Claim {
    /// Makes a claim.
    pub fn new(what: impl Into<String>, paper: Paper, here: f64, unit: Unit) -> Claim {
        Claim { what: what.into(), paper, here, unit }
    }
}

/// A paper's statement of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// A number.
    Is(f64),
    /// A range, from the first number to the second.
    Between(f64, f64),
    /// A lower bound.
    AtLeast(f64),
    /// An upper bound.
    AtMost(f64),
    /// No number.
    Silent,
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests per second.
    Rps,
    /// Milliseconds.
    Ms,
    /// A share, written in percent.
    Percent,
    /// A ratio.
    Times,
    /// Requests, or GPUs.
    Count,
}

/// Formats a cell with a number of this many decimals.
pub fn cell(value: f64, decimals: usize) -> String {
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_differ_and_an_unknown_one_is_none() {
        let names: HashSet<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name()).collect();
        assert_eq!(names.len(), EXPERIMENTS.len());
        assert!(by_name("symphony-table4").is_some());
        assert!(by_name("table-4").is_none());
    }

    #[test]
    fn every_experiment_has_jobs_whose_work_is_known() {
        for experiment in EXPERIMENTS {
            let jobs = experiment.jobs(Effort { full: false, seed: 1 });
            assert!(!jobs.is_empty(), "{}", experiment.name());
            assert!(
                jobs.iter().all(|job| job.weight > 0.0 && job.weight.is_finite()),
                "{}",
                experiment.name()
            );
        }
    }
}
