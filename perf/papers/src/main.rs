//! The command `experiments`: see `--help` and docs/results.md.

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony::cli::end_quietly_on_closed_pipe;
use symphony_papers::output::Output;
use symphony_papers::{EXPERIMENTS, Effort, Experiment, Job, by_name, queue};

/// Redo the figures of the papers in the simulator
///
/// Each experiment writes DIR/results/NAME.csv, a chart (SVG), and its part of DIR/results.md,
/// where the paper's figures stand beside ours. The same seed gives the same files. `scheduling`,
/// on this engine's default, writes DIR/scheduling.md; it takes long, so `all` runs a short form of
/// it, and its name the whole.
#[derive(Parser)]
#[command(name = "experiments", version, after_help = AFTER_HELP)]
struct CommandLine {
    /// Experiments, or `all`
    #[arg(required_unless_present_any = ["list", "redraw"], value_name = "NAME")]
    names: Vec<String>,
    /// Longer durations and finer sweeps, and all of `scheduling`
    #[arg(long)]
    full: bool,
    /// Folder of the results; prose in its documents is kept
    #[arg(long, value_name = "DIR", default_value = "docs")]
    out: PathBuf,
    /// Seed of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of threads that simulate [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// List the experiments, a line each
    #[arg(long)]
    list: bool,
    /// Run only these systems of `scheduling`, after a change that affects no other; the others'
    /// runs are taken from the CSV file
    #[arg(long, value_name = "SYSTEM,...", value_delimiter = ',', conflicts_with = "redraw")]
    again: Vec<String>,
    /// Only draw the charts and write the documents from the CSV files that are there
    #[arg(long, conflicts_with_all = ["names", "full"])]
    redraw: bool,
}

const AFTER_HELP: &str =
    "Exit codes: 0 done; 1 a file can't be read or written; 2 bad usage; 130 interrupted.";

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let line = CommandLine::parse();
    if line.list {
        for experiment in EXPERIMENTS {
            println!("{:<18} {}", experiment.name(), experiment.about());
        }
        return ExitCode::SUCCESS;
    }
    let chosen = match chosen(&line.names) {
        Ok(chosen) => chosen,
        Err(unknown) => {
            eprintln!("experiments: {unknown}");
            return ExitCode::from(2);
        }
    };
    match carry_out(&line, &chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("experiments: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::InvalidInput { 2 } else { 1 })
        }
    }
}

/// The experiments of these names, each once and in the list's order.
fn chosen(names: &[String]) -> Result<Vec<&'static dyn Experiment>, String> {
    if let Some(unknown) = names.iter().find(|name| *name != "all" && by_name(name).is_none()) {
        let known: Vec<&str> = EXPERIMENTS.iter().map(|experiment| experiment.name()).collect();
        return Err(format!("{unknown:?} is no experiment; give `all` or any of {}", known.join(", ")));
    }
    let wanted =
        |experiment: &&dyn Experiment| names.iter().any(|name| name == "all" || name == experiment.name());
    Ok(EXPERIMENTS.iter().copied().filter(wanted).collect())
}

fn carry_out(line: &CommandLine, chosen: &[&'static dyn Experiment]) -> io::Result<()> {
    let output = Arc::new(Output::new(&line.out));
    // Shown only where standard error is a terminal.
    let bar = ProgressBar::new(0);
    end_cleanly_when_interrupted(output.clone(), bar.clone())?;
    if line.redraw {
        return output.redraw();
    }
    let mut jobs = Vec::new();
    for (at, &experiment) in chosen.iter().enumerate() {
        jobs.extend(jobs_of(line, experiment, &output)?.into_iter().map(|job| (at, job)));
    }
    bar.set_length(jobs.iter().map(|(_, job)| job.weight as u64).sum());
    let style =
        ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {percent:>3} %, {eta} left; {msg}");
    bar.set_style(style.expect("the template is right: it is drawn in each run"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let began = Instant::now();
    let threads = line.threads.map_or_else(cores, usize::from);
    let done = queue::run(
        jobs,
        threads,
        &|at, weight| {
            bar.inc(weight as u64);
            bar.set_message(chosen[at].name());
        },
        &|at, rows, took| {
            let experiment = chosen[at];
            output.write(experiment, experiment.gathered(rows))?;
            let (since, took) = (began.elapsed().as_secs_f64(), took.as_secs_f64());
            let svg = output.file(experiment, "svg");
            bar.suspend(|| println!("{since:>5.0} s: {} ({took:.0} s of a core)", svg.display()));
            Ok(())
        },
    );
    bar.finish_and_clear();
    done
}

fn jobs_of(line: &CommandLine, experiment: &dyn Experiment, output: &Output) -> io::Result<Vec<Job>> {
    let effort = effort(line, experiment);
    if line.again.is_empty() {
        return Ok(experiment.jobs(effort));
    }
    let known = output.read(experiment)?.ok_or_else(|| {
        let file = output.file(experiment, "csv");
        wrong(format!("--again: {} is not there; run the whole of it once", file.display()))
    })?;
    experiment.jobs_again(effort, &line.again, &known).map_err(wrong)
}

/// Makes the error of a wrong command line.
fn wrong(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn effort(line: &CommandLine, experiment: &dyn Experiment) -> Effort {
    let named = || line.names.iter().any(|name| name == experiment.name());
    Effort { full: line.full || experiment.is_long() && named(), seed: line.seed }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Makes SIGINT and SIGTERM wait until files being written are complete, then exit.
fn end_cleanly_when_interrupted(output: Arc<Output>, bar: ProgressBar) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _guard = output.quiet();
            bar.finish_and_clear();
            eprintln!(
                "experiments: interrupted; experiments that were done are written, the others are as before"
            );
            std::process::exit(130);
        }
    });
    Ok(())
}
