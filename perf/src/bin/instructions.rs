//! Counts the instructions of each operation under valgrind's callgrind and compares them with the
//! committed baseline: an increase by more than 10 % fails. See docs/performance.md.

use clap::Parser;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use symphony::cli::end_quietly_on_closed_pipe;
use symphony_perf::operations::{self, Operation, Repeat};

/// The number of repetitions that are counted: enough for the share of rare steps to settle.
const REPETITIONS: u64 = 20_000;

/// The ratio to the baseline up to which a count passes.
const TOLERANCE: f64 = 1.10;

/// Counts the instructions of each operation under valgrind and compares them with the baseline.
///
/// Exit code 1: an operation takes over 10 % more than the baseline says, or is not in it. 3: there
/// is no valgrind.
#[derive(Parser)]
#[command(name = "instructions", version)]
struct InstructionOptions {
    /// Only operations whose name contains this
    filter: Option<String>,
    /// Write the counts as the new baseline; commit it and say why
    #[arg(long, conflicts_with = "filter")]
    update: bool,
    /// File of the baseline
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline/instructions.json"))]
    baseline: PathBuf,
    /// List the operations with their descriptions
    #[arg(long)]
    list: bool,
    /// Time the operations instead, in ns: the fastest tenth of 900 stretches of 50 us
    #[arg(long, conflicts_with = "update")]
    times: bool,
    /// Run this operation, for callgrind to count
    #[arg(long, value_name = "NAME", hide = true)]
    run: Option<String>,
}

/// The number of instructions of one repetition, by operation.
type Counts = BTreeMap<String, f64>;

/// The function whose instructions callgrind counts. [`count`] passes its name to callgrind.
#[inline(never)]
fn counted_part(repeat: &mut Repeat) {
    repeat(REPETITIONS);
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let options = InstructionOptions::parse();
    let chosen: Vec<Operation> = operations::all()
        .into_iter()
        .filter(|operation| options.filter.as_ref().is_none_or(|part| operation.name.contains(part)))
        .collect();
    if let Some(name) = &options.run {
        return run(&chosen, name);
    }
    if options.list {
        chosen.iter().for_each(|operation| println!("{:42} {}", operation.name, operation.about));
        return ExitCode::SUCCESS;
    }
    if options.times {
        let times = operations::times(&chosen);
        chosen.iter().zip(times).for_each(|(operation, ns)| println!("{:42} {ns:9.1} ns", operation.name));
        return ExitCode::SUCCESS;
    }
    match compare_or_update(&options, &chosen) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(wrong) => {
            eprintln!("instructions: {wrong}");
            ExitCode::from(3)
        }
    }
}

fn run(operations: &[Operation], name: &str) -> ExitCode {
    let Some(operation) = operations.iter().find(|operation| operation.name == name) else {
        eprintln!("instructions: there is no operation {name}; --list names them");
        return ExitCode::from(2);
    };
    counted_part(&mut operation.ready());
    ExitCode::SUCCESS
}

fn compare_or_update(options: &InstructionOptions, chosen: &[Operation]) -> Result<bool, String> {
    let baseline = if options.update { Counts::new() } else { read(&options.baseline)? };
    let mut counts = Counts::new();
    let mut fine = true;
    for operation in chosen {
        let now = count(&operation.name)?;
        let before = baseline.get(&operation.name).copied();
        fine &= options.update || before.is_some_and(|before| now <= before * TOLERANCE);
        println!("{}", line(&operation.name, now, before));
        counts.insert(operation.name.clone(), now);
    }
    if options.update {
        let text = serde_json::to_string_pretty(&counts).map_err(|error| error.to_string())?;
        fs::write(&options.baseline, text + "\n")
            .map_err(|error| format!("{}: {error}", options.baseline.display()))?;
    }
    if !fine {
        eprintln!(
            "dearer by over 10 % than the baseline; if that is worth it, run with --update and commit, saying why"
        );
    }
    Ok(fine)
}

fn line(name: &str, now: f64, before: Option<f64>) -> String {
    match before {
        Some(before) => {
            let mark = if now > before * TOLERANCE { "  DEARER" } else { "" };
            format!(
                "{name:42} {now:9.1}  baseline {before:9.1}  {:+6.1} %{mark}",
                (now / before - 1.0) * 100.0
            )
        }
        None => format!("{name:42} {now:9.1}"),
    }
}

fn read(baseline: &Path) -> Result<Counts, String> {
    let text = fs::read_to_string(baseline).map_err(|error| format!("{}: {error}", baseline.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", baseline.display()))
}

/// Counts the instructions of one repetition, to a tenth.
fn count(name: &str) -> Result<f64, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted_part*"])
        .arg(this)
        .args(["--run", name])
        .output()
        .map_err(|error| {
            format!("valgrind can't be run: {error}; install it (Debian: apt-get install valgrind)")
        })?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let collected = stderr.lines().find_map(|line| line.split_once("Collected : "));
    let total: f64 = collected
        .and_then(|(_, total)| total.trim().parse().ok())
        .filter(|&total: &f64| total > 0.0)
        .ok_or_else(|| format!("valgrind counted nothing for {name}; its output:\n{stderr}"))?;
    Ok((total / REPETITIONS as f64 * 10.0).round() / 10.0)
}
