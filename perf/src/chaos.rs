//! Runs of the simulations of the whole engine, over a range of seeds: of one process
//! (docs/design/chaos.md), and of an engine across hosts (docs/design/hosts.md).
//!
//! Each thread takes the next seed until enough requests were simulated, so the seeds that were run
//! are consecutive, on however many threads. A run of hours is saved every ten seconds, and can be
//! interrupted: what it has found so far is its result.

use crate::provenance::{command_line, commit};
use crate::scale::machine::Machine;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::IsTerminal;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use symphony::runtime::simulation::{BrokenInvariant, Campaign, SeedReport, run_campaign};

/// The time between two savings of the result so far, and two lines of progress where standard
/// error is no terminal.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// Simulates the whole engine in virtual time, with faults, and checks that every request is
/// answered once, with its own answer, and that the engine recovers. Exits with 1 if something does
/// not hold, and prints the command that repeats it. Ctrl-C ends it with the result so far.
#[derive(Parser, Clone, Debug)]
#[command(name = "chaos", max_term_width = 100)]
pub struct ChaosOptions {
    /// Simulate an engine across hosts: its frontends, scheduler and backends as processes that die
    /// and stand still, and the links between them
    #[arg(long)]
    pub hosts: bool,
    /// Stop once that many requests were simulated; with --hosts each row of a request counts
    #[arg(long, value_name = "N", default_value = "10000000", value_parser = read_count)]
    pub requests: u64,
    /// The first seed, or the first and the one after the last
    #[arg(long, value_name = "A..B", default_value = "0..", value_parser = read_seeds)]
    pub seeds: Range<u64>,
    /// Run this seed alone
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "requests"])]
    pub seed: Option<u64>,
    /// The threads to run on; by default one for each core
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Write the result to this file, every ten seconds what is known so far
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Reads a number of requests: `10000000` or `1e7`.
fn read_count(text: &str) -> Result<u64, String> {
    let count = text.parse::<u64>().ok().or_else(|| {
        let number = text.parse::<f64>().ok()?;
        ((1.0..=1e15).contains(&number) && number.fract() == 0.0).then_some(number as u64)
    });
    count.filter(|&count| count > 0).ok_or_else(|| "give a number of requests, as 10000000 or 1e7".to_owned())
}

/// Reads a range of seeds: `3..`, `3..9`.
fn read_seeds(text: &str) -> Result<Range<u64>, String> {
    let wrong = || format!("{text:?} is no range of seeds: give the first, as 3.., or 3..9 for 3 to 8");
    let (from, to) = text.split_once("..").ok_or_else(wrong)?;
    let from = from.parse().map_err(|_| wrong())?;
    let to = if to.is_empty() { u64::MAX } else { to.parse().map_err(|_| wrong())? };
    if from < to { Ok(from..to) } else { Err(wrong()) }
}

/// A run in which something did not hold.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The seed.
    pub seed: u64,
    /// What did not hold, and the command that repeats it.
    pub what: String,
}

/// The result of all runs.
#[derive(Clone, Debug, Serialize)]
pub struct ChaosReport<R> {
    /// True if everything held in every run.
    pub passed: bool,
    /// False if it was interrupted, or is still running.
    pub complete: bool,
    /// The machine.
    pub machine: Machine,
    /// `release`, or `dev`, whose assertions are checked too.
    pub profile: &'static str,
    /// The threads that ran.
    pub threads: usize,
    /// The seeds that were run.
    pub seeds: Range<u64>,
    /// What the runs in which everything held did.
    #[serde(flatten)]
    pub sum: R,
    /// The time that it took, in seconds.
    pub wall_s: f64,
    /// The accepted requests a second.
    pub requests_per_s: f64,
    /// What did not hold.
    pub findings: Vec<Finding>,
}

/// A report with what makes it repeatable, as perf/results/ has it.
#[derive(Serialize)]
pub struct RecordedResult<'a, R> {
    command: String,
    commit: Option<String>,
    result: &'a ChaosReport<R>,
}

impl<'a, R> RecordedResult<'a, R> {
    /// Adds this process's command line and the commit of the working directory.
    pub fn new(result: &'a ChaosReport<R>) -> RecordedResult<'a, R> {
        RecordedResult { command: command_line(), commit: commit(), result }
    }
}

/// Runs the simulation whose report is `R` as the options say, with its progress on standard error,
/// until it is through or SIGINT or SIGTERM comes; a second signal ends the process.
///
/// Errors: the file of `--json` cannot be written.
pub fn run<R: SeedReport + Serialize>(options: &ChaosOptions) -> std::io::Result<ChaosReport<R>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or(cores).max(1);
    let seeds = options.seed.map_or_else(|| options.seeds.clone(), |seed| seed..seed + 1);
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&interrupted))?;
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let begun = BegunRun { options, machine: Machine::this(cores), threads, began: Instant::now() };
    let progress = ProgressBar::new(options.requests);
    let style = "{bar:30} {human_pos} of {human_len} requests, {per_sec}, {eta} left; {msg}";
    progress.set_style(ProgressStyle::with_template(style).expect("the template is right"));
    let saving = Mutex::new((Instant::now(), begun.save(&Campaign::<R>::default(), false)));
    let campaign = run_campaign(seeds, options.requests, threads, |so_far: &Campaign<R>| {
        progress.set_position(so_far.sum.requests());
        let found = so_far.findings.last().map(ToString::to_string).unwrap_or_default();
        progress.set_message(format!("{} findings {found}", so_far.findings.len()));
        let (saved, result) = &mut *saving.lock().unwrap_or_else(PoisonError::into_inner);
        if saved.elapsed() >= SAVE_EVERY {
            (*saved, *result) = (Instant::now(), begun.save(so_far, false));
            if !std::io::stderr().is_terminal() {
                eprintln!(
                    "{} of {} requests, seed {}",
                    so_far.sum.requests(),
                    options.requests,
                    so_far.seeds.end
                );
            }
        }
        result.is_ok() && !interrupted.load(Ordering::Relaxed)
    });
    progress.finish_and_clear();
    saving.into_inner().unwrap_or_else(PoisonError::into_inner).1?;
    begun.save(&campaign, campaign.goes_on)?;
    Ok(begun.report(&campaign, campaign.goes_on))
}

/// A run that has begun.
struct BegunRun<'a> {
    options: &'a ChaosOptions,
    machine: Machine,
    threads: usize,
    began: Instant,
}

impl BegunRun<'_> {
    fn report<R: SeedReport>(&self, campaign: &Campaign<R>, complete: bool) -> ChaosReport<R> {
        let Campaign { seeds, sum, findings, .. } = campaign;
        let wall_s = self.began.elapsed().as_secs_f64();
        let finding = |broken: &BrokenInvariant| Finding { seed: broken.seed, what: broken.to_string() };
        ChaosReport {
            passed: findings.is_empty(),
            complete,
            machine: self.machine.clone(),
            profile: if cfg!(debug_assertions) { "dev" } else { "release" },
            threads: self.threads,
            seeds: seeds.clone(),
            sum: sum.clone(),
            wall_s,
            requests_per_s: sum.requests() as f64 / wall_s,
            findings: findings.iter().map(finding).collect(),
        }
    }

    /// Writes the result so far to the file of `--json`, if there is one.
    fn save<R: SeedReport + Serialize>(&self, campaign: &Campaign<R>, complete: bool) -> std::io::Result<()> {
        let Some(file) = &self.options.json else { return Ok(()) };
        let report = self.report(campaign, complete);
        let text =
            serde_json::to_string_pretty(&RecordedResult::new(&report)).expect("figures are plain data");
        // In its place at once: a run that ends meanwhile leaves a whole file.
        let beside = file.with_extension("part");
        std::fs::write(&beside, text + "\n")?;
        std::fs::rename(&beside, file)
    }
}

impl<R: SeedReport + Serialize> ChaosReport<R> {
    /// Returns the report as text.
    pub fn lines(&self) -> String {
        let ChaosReport { seeds, sum, wall_s, requests_per_s, findings, .. } = self;
        let mut text = format!(
            "seeds {} to {}: {} requests in {wall_s:.1} s ({:.3} M/s on {} threads)\n  {}\n",
            seeds.start,
            seeds.end.saturating_sub(1),
            sum.requests(),
            requests_per_s / 1e6,
            self.threads,
            serde_json::to_string(sum).expect("figures are plain data"),
        );
        for Finding { what, .. } in findings {
            text += &format!("  {what}\n");
        }
        text += if self.complete { "" } else { "INTERRUPTED; so far " };
        text + if self.passed { "everything held" } else { "NOT EVERYTHING HELD" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony::runtime::simulation::{EpisodeReport, HostsReport};

    #[test]
    fn counts_and_seeds_are_read_or_refused() {
        assert_eq!([read_count("1e9"), read_count("12")], [Ok(1_000_000_000), Ok(12)]);
        assert!(["0", "1.5", "-1", "many"].into_iter().all(|text| read_count(text).is_err()));
        assert_eq!([read_seeds("3..9"), read_seeds("7..")], [Ok(3..9), Ok(7..u64::MAX)]);
        assert!(["", "3", "9..3", "..4", "a..b"].into_iter().all(|text| read_seeds(text).is_err()));
    }

    #[test]
    fn a_range_of_seeds_is_run_whole_and_counted() {
        let options = ChaosOptions::parse_from(["chaos", "--seeds", "1..3", "--threads", "2"]);
        let report = run::<EpisodeReport>(&options).unwrap();
        assert!(report.passed && report.complete, "{}", report.lines());
        let answers = report.sum.answers;
        assert_eq!((report.seeds.clone(), answers.accepted), (1..3, answers.answered()));
        let report = run::<HostsReport>(&options).unwrap();
        assert!(report.passed && report.complete, "{}", report.lines());
        assert_eq!((report.seeds.clone(), report.sum.requests.sent), (1..3, report.sum.requests.ended()));
    }

    #[test]
    fn a_run_is_saved_with_what_it_has_found_and_what_was_injected() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("result.json");
        let file = file.to_str().unwrap();
        let options = ChaosOptions::parse_from(["chaos", "--seed", "1", "--json", file]);
        let report = run::<EpisodeReport>(&options).unwrap();
        let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let result = &saved["result"];
        assert_eq!(result["complete"], true);
        assert_eq!(result["requests"]["accepted"], report.sum.answers.accepted);
        assert_eq!(result["faults"]["stalls"], report.sum.faults.stalls);
        assert_eq!(result["seeds"], serde_json::json!({ "start": 1, "end": 2 }));
        let options = ChaosOptions::parse_from(["chaos", "--seed", "1", "--json", "/dev/null/no"]);
        assert!(run::<EpisodeReport>(&options).is_err());
    }
}
