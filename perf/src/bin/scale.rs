//! The command `scale`: see `--help` and docs/performance.md.

use clap::Parser;
use std::process::ExitCode;
use symphony::cli::end_quietly_on_closed_pipe;
use symphony_perf::scale::agreement::Agreement;
use symphony_perf::scale::compare::compare;
use symphony_perf::scale::machine::Machine;
use symphony_perf::scale::machine::busy_process::{BusyProcess, be_busy};
use symphony_perf::scale::machine::gaps::Gaps;
use symphony_perf::scale::options::Options;
use symphony_perf::scale::report::Report;
use symphony_perf::scale::run::arrivals::MIN_RATE;
use symphony_perf::scale::run::arrivals::cost_of_stream;
use symphony_perf::scale::run::{Outcome, run};
use symphony_perf::scale::search::{Search, highest};
use symphony_perf::scale::sweep_chart::{self, Unmeasured};

/// The rate at which a search's ramp starts, in requests per second and ModelThread.
const FIRST_RATE: f64 = 1e6;

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let options = Options::parse();
    if let Some(share) = options.be_busy {
        be_busy(share);
        return ExitCode::SUCCESS;
    }
    // Read before any thread is pinned: afterwards the list is that of the pinned thread.
    let cores: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    match carry_out(&options, &cores) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(ScaleError::Usage(wrong)) => {
            eprintln!("scale: {wrong}");
            ExitCode::from(2)
        }
        Err(ScaleError::Machine(wrong)) => {
            eprintln!("scale: {wrong}");
            ExitCode::from(3)
        }
    }
}

/// An error that ends the command without figures.
enum ScaleError {
    Usage(String),
    Machine(String),
}

impl From<std::io::Error> for ScaleError {
    fn from(error: std::io::Error) -> ScaleError {
        ScaleError::Machine(error.to_string())
    }
}

/// Runs the command and returns true if every run passed.
fn carry_out(options: &Options, cores: &[usize]) -> Result<bool, ScaleError> {
    let _busy = options.disturb.map(BusyProcess::start).transpose()?;
    if !options.sweep_model_threads.is_empty() {
        return sweep(options, cores);
    }
    if let Some(rounds) = options.compare {
        let rate = if options.max { FIRST_RATE * options.model_threads as f64 } else { options.rate };
        options.plan(options.model_threads, rate).map_err(ScaleError::Usage)?;
        let plan_at = |rate| options.plan(options.model_threads, rate).map_err(std::io::Error::other);
        let searched = options.max.then(|| search_of(options, options.model_threads));
        let comparison = compare(&plan_at, rate, rounds, searched, cores)?;
        println!("{}", if options.json { json(&comparison) } else { comparison.lines() });
        return Ok(true);
    }
    if let Some(searches) = options.searches {
        let reports = (0..searches).map(|_| search(options, options.model_threads, cores));
        let agreement = Agreement::of(reports.collect::<Result<_, _>>()?, options.disturb);
        println!("{}", if options.json { json(&agreement) } else { agreement.lines() });
        return Ok(agreement.passed);
    }
    let report =
        if options.max { search(options, options.model_threads, cores)? } else { once(options, cores)? };
    println!("{}", if options.json { json(&report) } else { report.lines() });
    Ok(report.passed)
}

fn json(figures: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(figures).expect("figures are plain data")
}

fn once(options: &Options, cores: &[usize]) -> Result<Report, ScaleError> {
    let plan = options.plan(options.model_threads, options.rate).map_err(ScaleError::Usage)?;
    let stream = cost_of_stream(&plan);
    let machine = Machine::this(cores.len());
    let mut outcome = run(&plan, cores)?;
    for _ in 1..options.attempts {
        if outcome.failure().is_none() {
            break;
        }
        print_outcome(&outcome);
        outcome = run(&plan, cores)?;
    }
    Ok(report(&outcome, machine, stream))
}

/// Makes the report of a run that has just ended.
fn report(outcome: &Outcome, machine: Machine, stream: f64) -> Report {
    let gaps = if outcome.shared { Vec::new() } else { Gaps::of(&outcome.cores) };
    Report::new(outcome, machine, stream, &gaps)
}

fn search_of(options: &Options, model_threads: usize) -> Search {
    let threads = model_threads as f64;
    let (first, lowest) = (FIRST_RATE * threads, MIN_RATE * threads);
    Search { first, growth: 2.0, lowest, attempts: options.attempts }
}

fn search(options: &Options, model_threads: usize, cores: &[usize]) -> Result<Report, ScaleError> {
    let first = FIRST_RATE * model_threads as f64;
    let stream = cost_of_stream(&options.plan(model_threads, first).map_err(ScaleError::Usage)?);
    let machine = Machine::this(cores.len());
    let best = highest(search_of(options, model_threads), |trial| {
        let plan = options.plan(model_threads, trial.rate).map_err(std::io::Error::other)?;
        let outcome = run(&trial.shortened(plan), cores)?;
        print_outcome(&outcome);
        Ok(outcome)
    })?;
    let lowest = MIN_RATE * model_threads as f64;
    let best =
        best.ok_or_else(|| ScaleError::Machine(format!("not even {lowest} requests per second passed")))?;
    Ok(report(&best, machine, stream))
}

fn print_outcome(outcome: &Outcome) {
    let verdict = outcome.failure().unwrap_or_else(|| "passed".to_owned());
    eprintln!("{:.3} M requests/s: {verdict}", outcome.plan.rate / 1e6);
}

fn sweep(options: &Options, cores: &[usize]) -> Result<bool, ScaleError> {
    let asked = &options.sweep_model_threads;
    let measured = asked.iter().take_while(|&threads| threads + options.rank_threads <= cores.len()).count();
    let unmeasured = asked[measured..].first().map(|&first| Unmeasured {
        first,
        last: asked[measured..].iter().copied().fold(first, usize::max),
        rank_threads: options.rank_threads,
        cores: cores.len(),
    });
    let (mut reports, mut nothing) = (Vec::new(), None);
    for &model_threads in &asked[..measured] {
        match search(options, model_threads, cores) {
            Ok(report) => {
                if !options.json {
                    println!("{}\n", report.lines());
                }
                reports.push(report);
            }
            // What was found with other numbers of threads stays.
            Err(ScaleError::Machine(why)) => {
                eprintln!("scale: {model_threads} ModelThreads: {why}");
                nothing = Some(ScaleError::Machine(why));
            }
            Err(wrong) => return Err(wrong),
        }
    }
    let found_all = nothing.is_none();
    if let Some(why) = nothing.filter(|_| reports.is_empty()) {
        return Err(why);
    }
    if options.json {
        println!("{}", json(&reports));
    }
    if let Some(unmeasured) = &unmeasured {
        eprintln!("{}", unmeasured.why());
    }
    if let Some(file) = &options.svg {
        sweep_chart::draw(&reports, unmeasured.as_ref(), file)
            .map_err(|error| ScaleError::Machine(format!("--svg {}: {error}", file.display())))?;
    }
    Ok(found_all && !reports.is_empty() && reports.iter().all(|report| report.passed))
}
