//! The papers' figures and tables, redone in the simulator: the command `experiments` and
//! docs/results.md. Beside them stands one of our own, `scheduling`, with docs/scheduling.md.
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
mod nexus_drops;
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
    &nexus_drops::Lazy,
    &nexus_drops::LazyAndEarly,
    &clockwork_slos::Lowest,
    &clockwork_slos::Isolation,
    &scheduling::Scheduling,
];

/// One figure or table of a paper, or of ours.
pub trait Experiment: Sync {
    /// Its name on the command line and of its files: paper and figure.
    fn name(&self) -> &'static str;
    /// What it shows, in a line.
    fn about(&self) -> &'static str;
    /// The columns of its CSV file.
    fn columns(&self) -> &'static [&'static str];
    /// The simulations that it needs. Each is independent of the others; their rows are written in
    /// this order.
    fn jobs(&self, effort: Effort) -> Vec<Job>;
    /// The jobs for these of its systems alone; the runs of all others are as its CSV file,
    /// `known`, has them.
    ///
    /// Errors: it always runs as a whole, has no such system, or the file lacks runs.
    fn jobs_again(&self, _effort: Effort, _systems: &[String], _known: &Table) -> Result<Vec<Job>, String> {
        Err(format!("{} always runs as a whole; leave out --again", self.name()))
    }
    /// Its chart.
    fn figure(&self, table: &Table) -> Figure;
    /// What the paper says in numbers, beside what came out here.
    fn claims(&self, table: &Table) -> Vec<Claim>;
    /// The CSV file's rows, made from those of all jobs.
    fn gathered(&self, rows: Rows) -> Rows {
        rows
    }
    /// Whether the whole of it takes too long for `all`: that runs a short form, naming it or
    /// `--full` the whole.
    fn is_long(&self) -> bool {
        false
    }
    /// The file of DIR that its generated parts stand in.
    fn document(&self) -> &'static str {
        results::DOCUMENT
    }
    /// Its generated parts there, each with the name that its marker has.
    fn parts(&self, table: &Table) -> Vec<(String, String)> {
        let section = results::section(self.name(), self.about(), &self.claims(table));
        vec![(self.name().to_owned(), section)]
    }
}

/// The experiment of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Experiment> {
    EXPERIMENTS.iter().copied().find(|experiment| experiment.name() == name)
}

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Longer durations and finer sweeps.
    pub full: bool,
    /// The seed of every random choice.
    pub seed: u64,
}

impl Effort {
    /// `normal`, or `full` under `--full`.
    pub fn choose<T>(&self, normal: T, full: T) -> T {
        if self.full { full } else { normal }
    }
}

/// The rows that a job found: cells in the order of [`Experiment::columns`].
pub type Rows = Vec<Vec<String>>;

/// A part of an experiment that runs on one core.
pub struct Job {
    /// How long it takes compared with other jobs: about how many requests it simulates. The
    /// longest are begun first.
    pub weight: f64,
    run: Box<dyn FnOnce() -> io::Result<Rows> + Send>,
}

impl Job {
    /// A job of this weight.
    pub fn new(weight: f64, run: impl FnOnce() -> io::Result<Rows> + Send + 'static) -> Job {
        Job { weight, run: Box::new(run) }
    }
}

/// A figure of the paper beside ours.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What is measured.
    pub what: String,
    /// What the paper says.
    pub paper: Paper,
    /// What came out here; not finite where the CSV file does not have it.
    pub here: f64,
    /// How the number is written.
    pub unit: Unit,
}

impl Claim {
    /// A claim.
    pub fn new(what: impl Into<String>, paper: Paper, here: f64, unit: Unit) -> Claim {
        Claim { what: what.into(), paper, here, unit }
    }
}

/// What a paper says of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Paper {
    /// A number.
    Is(f64),
    /// Somewhere from the first to the second.
    Between(f64, f64),
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// Nothing in numbers: ours stands alone.
    Silent,
}

/// How a number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Requests per second.
    Rps,
    /// Milliseconds.
    Ms,
    /// A share, written in percent.
    Percent,
    /// How many times as much.
    Times,
    /// Requests, or GPUs.
    Count,
}

/// A cell with a number of this many decimals.
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
