//! The command `clairvoyant`: see `--help` and docs/population.md.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use symphony::cli::end_quietly_on_closed_pipe;
use symphony::config::read_workload;
use symphony_perf::population::clairvoyant::applies_to;
use symphony_perf::population::rules::{CLASSIC, DEFAULT, Rule};
use symphony_perf::population::search::refined_goodput;
use symphony_scheduler::workload::Workload;

/// Print what a scheduler that knew all arrivals could serve, and what rules serve of it
///
/// The workload has one GPU and one model. A row is a rule, its goodput for each seed, and the mean
/// of its share of what is possible.
#[derive(Parser)]
#[command(name = "clairvoyant", version, after_help = "Exit codes: 0 done; 2 bad usage or a bad file.")]
struct ClairvoyantOptions {
    /// The workload file
    #[arg(value_name = "WORKLOAD")]
    file: PathBuf,
    /// Rules, each a policy, or a policy and a drop rule as in work-conserving:timeout; `rollout`
    /// knows how requests come, but not when, and takes minutes where batches are large
    #[arg(long, value_name = "RULE,...", value_delimiter = ',', default_values_t = default_rules())]
    rules: Vec<Rule>,
    /// Seeds, from the workload's own on
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    seeds: u16,
}

fn default_rules() -> Vec<Rule> {
    let names = [DEFAULT].into_iter().chain(CLASSIC);
    names.map(|name| name.parse().expect("each is a rule: a test looks")).collect()
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let options = ClairvoyantOptions::parse();
    match table(&options) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::from(2)
        }
    }
}

fn table(options: &ClairvoyantOptions) -> Result<String, String> {
    let workload = read_workload(&options.file).map_err(|wrong| wrong.to_string())?;
    if !applies_to(&workload) {
        let Workload { gpus, models, .. } = &workload;
        let (file, models) = (options.file.display(), models.len());
        return Err(format!(
            "{file}: the limit is known only for 1 GPU and 1 model, with an SLO, a rate that can be chosen and \
             no network; this has {gpus} GPUs and {models} models"
        ));
    }
    let of = |rule: &Rule| {
        let seeds = (0..u64::from(options.seeds)).map(|seed| workload.seed.saturating_add(seed));
        let runs = seeds.map(|seed| refined_goodput(rule, &Workload { seed, ..workload.clone() }));
        runs.collect::<Result<Vec<f64>, _>>().map_err(|error| error.to_string())
    };
    let possible = of(&Rule::Clairvoyant)?;
    let mut text = row("clairvoyant", &possible, &possible);
    for rule in &options.rules {
        text += &row(&rule.to_string(), &of(rule)?, &possible);
    }
    Ok(text)
}

fn row(name: &str, rps: &[f64], possible: &[f64]) -> String {
    let shares = rps.iter().zip(possible).map(|(rps, possible)| rps / possible);
    let share = shares.sum::<f64>() / rps.len() as f64;
    let cells: String = rps.iter().map(|rps| format!("{rps:>10.1}")).collect();
    format!("{name:<28}{cells} requests/s {share:>8.3}\n")
}
