//! The command `population`: see `--help` and docs/population.md.

use clap::Parser;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use symphony::cli::end_quietly_on_closed_pipe;
use symphony_perf::population::chart;
use symphony_perf::population::generator::Half;
use symphony_perf::population::loads;
use symphony_perf::population::results::PopulationResults;
use symphony_perf::population::rules::{BOUND, CLAIRVOYANT, CLASSIC, DEFAULT, Rule};
use symphony_perf::population::run::Campaign;
use symphony_perf::population::summary::{distributions, room, table, without_chance};

/// Compare scheduling rules on a population of random workloads
///
/// Finds the goodput of each rule on each workload and prints how it compares with the best classic
/// rule, chosen for each workload in hindsight. What was found is kept in FILE: a run that was
/// interrupted goes on where it was, and a rule that is in the file does not run again.
#[derive(Parser)]
#[command(name = "population", version, after_help = AFTER_HELP)]
struct PopulationOptions {
    /// The half to run: `tune`, to find a rule on, or `report`, which is only looked at to report;
    /// the file says how often. Or a list beside them: `mixed`, whose models differ more; `faults`,
    /// on which faults were looked for; `fresh`, where nobody had looked
    #[arg(long, default_value = "tune", value_name = "HALF", value_parser = half)]
    half: Half,
    /// Rules, each a policy, or a policy and a drop rule as in work-conserving:timeout;
    /// `clairvoyant` is the limit for one GPU and one model, `rollout` what can be reached there
    /// without knowing the future, `bound` a bound for any number
    #[arg(long, value_name = "RULE,...", value_delimiter = ',', default_values_t = default_rules())]
    rules: Vec<Rule>,
    /// Run the rules again that are in the file, after a change of their code
    #[arg(long)]
    again: bool,
    /// Run only every n-th workload
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    every: u16,
    /// Begin with this workload of the half, and not with the first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..400))]
    from: u16,
    /// Seeds of each workload
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    seeds: u16,
    /// Number of threads that simulate [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// File of what was found
    #[arg(long, value_name = "FILE", default_value = "perf/results/population.json")]
    file: PathBuf,
    /// Draw the distributions into this file (SVG)
    #[arg(long, value_name = "FILE")]
    chart: Option<PathBuf>,
    /// Compare GPU time below the default's goodput too, and good requests above it, on the
    /// workloads of which FILE has that goodput, and write what was found to this file (JSON)
    #[arg(long, value_name = "JSON")]
    loads: Option<PathBuf>,
    /// Print a workload, for `simulate`, and run nothing
    #[arg(long, value_name = "NAME", value_parser = workload_file)]
    show: Option<String>,
}

const AFTER_HELP: &str = "Exit codes: 0 done; 1 a file can't be read or written; 2 bad usage.";

fn default_rules() -> Vec<Rule> {
    let names = [DEFAULT].into_iter().chain(CLASSIC).chain([CLAIRVOYANT, BOUND]);
    names.map(|name| name.parse().expect("each is a rule: a test looks")).collect()
}

fn half(name: &str) -> Result<Half, String> {
    Half::parse(name).ok_or_else(|| "give tune, report, mixed, faults or fresh".to_owned())
}

fn workload_file(name: &str) -> Result<String, String> {
    Half::by_name(name)
        .map(|workload| symphony_perf::population::generator::toml(&workload))
        .ok_or_else(|| "give a name like tune-017, report-017 or mixed-017, from 000 to 399".to_owned())
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let options = PopulationOptions::parse();
    if let Some(text) = &options.show {
        print!("{text}");
        return ExitCode::SUCCESS;
    }
    match carry_out(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("population: {error}");
            ExitCode::from(1)
        }
    }
}

fn carry_out(options: &PopulationOptions) -> Result<(), Box<dyn Error + Send + Sync>> {
    let named = |file: &Path, error: io::Error| format!("{}: {error}", file.display());
    let mut results = PopulationResults::read(&options.file).map_err(|error| named(&options.file, error))?;
    if options.again {
        options.rules.iter().for_each(|rule| results.forget(options.half, &rule.to_string()));
    }
    let campaign = Campaign {
        half: options.half,
        every: options.every.into(),
        from: options.from.into(),
        rules: options.rules.clone(),
        seeds: options.seeds.into(),
        threads: options.threads.map_or_else(cores, usize::from),
    };
    campaign.run(&mut results, &options.file).map_err(|error| named(&options.file, error))?;
    let found = distributions(&results, options.half);
    print!("{}", table(&found));
    if let Some(room) = room(&results, options.half) {
        println!("\n{room}");
    }
    if let Some(ratio) = without_chance(&results, options.half) {
        println!("\n{DEFAULT} over the classic rule that is best on the other seeds: {ratio:.3}.");
    }
    let times = if results.looks() == 1 { "1 time" } else { &format!("{} times", results.looks()) };
    println!("\nThe half that is only reported was looked at {times}.");
    if let Some(file) = &options.chart {
        let svg = chart::figure(&found).svg()?;
        std::fs::write(file, svg).map_err(|error| named(file, error))?;
    }
    if let Some(file) = &options.loads {
        let done = |done, of| eprintln!("population: loads of {done} of {of} workloads");
        let part = (campaign.half, campaign.from, campaign.every);
        let found = loads::loads(&results, part, campaign.threads, done)?;
        found.write(file).map_err(|error| named(file, error))?;
        print!("\n{}", found.table());
    }
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
