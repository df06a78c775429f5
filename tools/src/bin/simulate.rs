//! `simulate`: runs workload files through the engine's own scheduler in virtual time, or searches
//! for their goodput. Reads the command line and prints; the simulator is
//! [`symphony_scheduler::sim`].

use clap::Parser;
use indicatif::ProgressBar;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use symphony::cli::end_quietly_on_closed_pipe;
use symphony::config::read_workload;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::options::{BatchSizes, NexusPacking};
use symphony_scheduler::policy::{self, POLICIES, Policy, PolicyOptions, when};
use symphony_scheduler::query::DeadlineSplit;
use symphony_scheduler::rule_setting::{Prefer, RuleSetting};
use symphony_scheduler::sim::arrivals::ArrivalError;
use symphony_scheduler::sim::goodput::search;
use symphony_scheduler::sim::report::{QueryReport, Report};
use symphony_scheduler::sim::simulate;
use symphony_scheduler::workload::Workload;
use symphony_transport::Nanos;

/// Run workloads through the scheduler in virtual time and report goodput, batches and latency
///
/// The same seed gives the same output, wall_s and events aside.
#[derive(Parser)]
#[command(name = "simulate", version, after_help = after_help())]
struct CommandLine {
    /// Workload files (docs/workloads.md)
    #[arg(required = true, value_name = "WORKLOAD")]
    workloads: Vec<PathBuf>,
    /// The scheduling policy; they are listed below
    #[arg(long, value_name = "NAME", default_value = POLICIES[0].name())]
    policy: String,
    /// The drop rule: window, timeout, fcfs or exchange; explained below. Default: the policy's own
    #[arg(long, value_name = "RULE")]
    drop: Option<String>,
    /// The rule for how long policy symphony-published holds a batch back; the rules are listed
    /// below
    #[arg(long, value_name = "RULE")]
    when: Option<String>,
    /// The setting of policy symphony's rule, which stays as it is without --tuning on:
    /// PRICE/PATIENCE/LEAD, each from 0 to inf, if need be with /spread behind it, and with
    /// /reserve=MS or /brief=MS behind that (default 1/1/1, and tuned; docs/scheduling.md)
    #[arg(long, value_name = "SETTING")]
    setting: Option<RuleSetting>,
    /// Whether policy symphony tunes its setting by what has arrived: on or off (default on, unless
    /// --setting is given or with --drop fcfs)
    #[arg(long, value_name = "ON", value_parser = ["on", "off"])]
    tuning: Option<String>,
    /// What is tuned for, among settings that serve as many in time: efficiency (the least GPU
    /// time, a fifth less also where more are lost, up to 1 %; default) or latency
    #[arg(long, value_name = "WHAT", value_parser = prefer)]
    prefer: Option<Prefer>,
    /// Frontends that route requests independently of each other, for policy nexus (default 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    frontends: Option<u16>,
    /// The factor by which a batch must be larger than a running one for policy shepherd to preempt
    /// that (default 3.03)
    #[arg(long, value_name = "FACTOR", value_parser = at_least_one)]
    shepherd_preempt: Option<f64>,
    /// Batch sizes of policy clockwork: pow2 (default) or any
    #[arg(long, value_name = "SIZES", value_parser = sizes)]
    clockwork_batches: Option<BatchSizes>,
    /// The placement of models on GPUs by policy nexus: squishy (default) or oblivious
    #[arg(long, value_name = "PACKING", value_parser = packing)]
    nexus_packing: Option<NexusPacking>,
    /// b of policy orloj, the rate of the delay that its priorities anticipate, in 1/ms (default
    /// 1e-4)
    #[arg(long, value_name = "RATE", value_parser = positive)]
    orloj_delay_rate: Option<f64>,
    /// The outstanding work below which policy clockwork gives a GPU more (default 5)
    #[arg(long, value_name = "MS", value_parser = positive)]
    clockwork_ahead_ms: Option<f64>,
    /// The time that a request of policy triton waits for a preferred batch size (default: the part
    /// of the SLO that is left when a full batch waits for another)
    #[arg(long, value_name = "MS", value_parser = not_negative)]
    triton_queue_delay_ms: Option<f64>,
    /// Preferred batch sizes of policy triton, such as 4,8 (default: the largest that runs in half
    /// the SLO, alone)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    triton_preferred: Option<Vec<u16>>,
    /// The wait after which policy triton rejects a request (default: when the largest batch would
    /// be late)
    #[arg(long, value_name = "MS", value_parser = positive)]
    triton_timeout_ms: Option<f64>,
    /// How the SLO of `[[queries]]` is divided over their stages, instead of the workload's
    /// `split`; the splits are listed below
    #[arg(long, value_name = "NAME", value_parser = split)]
    split: Option<DeadlineSplit>,
    /// Total requests per second, instead of the workload's
    #[arg(long, conflicts_with = "goodput", value_parser = positive)]
    rate: Option<f64>,
    /// Search for the highest total rate at which every model's and every query's bad rate is at
    /// most 1 % (0.5 % resolution)
    #[arg(long)]
    goodput: bool,
    /// GPUs, instead of the workload's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    gpus: Option<u32>,
    /// Seed of every random choice, instead of the workload's
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds of virtual time that count, instead of the workload's
    #[arg(long, value_name = "S", value_parser = positive)]
    duration: Option<f64>,
    /// Print one JSON object per workload and nothing else
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("give a number above 0".to_owned()),
    }
}

fn at_least_one(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 1.0 => Ok(value),
        _ => Err("give a number of at least 1, or inf to preempt nothing".to_owned()),
    }
}

fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value >= 0.0 && value.is_finite() => Ok(value),
        _ => Err("give a number from 0".to_owned()),
    }
}

fn prefer(text: &str) -> Result<Prefer, String> {
    Prefer::parse(text).ok_or_else(|| "give efficiency or latency".to_owned())
}

fn split(text: &str) -> Result<DeadlineSplit, String> {
    DeadlineSplit::parse(text).ok_or_else(|| {
        let names = DeadlineSplit::ALL.map(|split| split.1);
        format!("give one of {}", names.join(", "))
    })
}

fn sizes(text: &str) -> Result<BatchSizes, String> {
    BatchSizes::parse(text).ok_or_else(|| "give pow2 or any".to_owned())
}

fn packing(text: &str) -> Result<NexusPacking, String> {
    NexusPacking::parse(text).ok_or_else(|| "give squishy or oblivious".to_owned())
}

fn after_help() -> String {
    let mut text = String::from("Policies:\n");
    for policy in POLICIES {
        text += &format!("  {:<18} {}\n", policy.name(), policy.about());
    }
    text += "\nDrop rules:\n";
    for (_, name, about) in DropRule::ALL {
        text += &format!("  {name:<18} {about}\n");
    }
    text += "\nRules of --when: a batch is held back …\n";
    for rule in when::RULES {
        text += &format!("  {:<22} {}\n", rule.name, rule.about);
    }
    text += "\nSplits: a stage of a query may take …\n";
    for (_, name, about) in DeadlineSplit::ALL {
        text += &format!("  {name:<18} {about}\n");
    }
    text + "\nEntry b of batch_histogram in the JSON is the count of batches of size b.\n\
            Exit codes: 0 done; 2 bad usage or input."
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let line = CommandLine::parse();
    match run(&line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(line: &CommandLine) -> Result<(), String> {
    let policy = policy::by_name(&line.policy).ok_or_else(|| {
        format!("--policy: {:?} is no policy; give one of {}", line.policy, policy::names().join(", "))
    })?;
    let options = options(policy, line)?;
    let workloads = line
        .workloads
        .iter()
        .map(|path| read_workload(path).map(|workload| changed(workload, line)).map_err(|m| m.to_string()))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(workload) = workloads.iter().find(|workload| workload.has_classes())
        && policy.deferral().is_none()
    {
        let (name, right) = (policy.name(), policy::served().join(", "));
        return Err(format!(
            "{}: has models with a priority or without an SLO, which policy {name} does not support; give one of {right}",
            workload.name
        ));
    }
    if line.split.is_some()
        && let Some(workload) = workloads.iter().find(|workload| workload.queries.is_empty())
    {
        return Err(format!("--split: {} has no [[queries]] to split the SLO of", workload.name));
    }
    for workload in &workloads {
        let report = run_one(workload, policy, &options, line.goodput).map_err(|error| error.to_string())?;
        if line.json {
            println!("{}", serde_json::to_string(&report).expect("a report is plain numbers and names"));
        } else {
            print(&report);
        }
    }
    Ok(())
}

/// Returns the policy's options, from the flags that apply to it.
///
/// Errors: a flag that does not apply, or a value that is no rule's name.
fn options(policy: &dyn Policy, line: &CommandLine) -> Result<PolicyOptions, String> {
    let given = [
        ("drop", line.drop.is_some()),
        ("when", line.when.is_some()),
        ("setting", line.setting.is_some()),
        ("tuning", line.tuning.is_some()),
        ("prefer", line.prefer.is_some()),
        ("frontends", line.frontends.is_some()),
        ("nexus-packing", line.nexus_packing.is_some()),
        ("orloj-delay-rate", line.orloj_delay_rate.is_some()),
        ("shepherd-preempt", line.shepherd_preempt.is_some()),
        ("clockwork-batches", line.clockwork_batches.is_some()),
        ("clockwork-ahead-ms", line.clockwork_ahead_ms.is_some()),
        ("triton-queue-delay-ms", line.triton_queue_delay_ms.is_some()),
        ("triton-timeout-ms", line.triton_timeout_ms.is_some()),
        ("triton-preferred", line.triton_preferred.is_some()),
    ];
    if let Some((flag, _)) =
        given.into_iter().find(|&(flag, given)| given && !policy.options().contains(&flag))
    {
        let right = policy::taking(flag).join(", ");
        return Err(format!("--{flag}: policy {} does not take it; it goes with {right}", policy.name()));
    }
    let mut options = PolicyOptions::default();
    if let Some(name) = &line.drop {
        let rule = DropRule::parse(name).ok_or_else(|| {
            let names: Vec<&str> = DropRule::ALL.iter().map(|rule| rule.1).collect();
            format!("--drop: {name:?} is no drop rule; give one of {}", names.join(", "))
        })?;
        options.drop = Some(rule);
    }
    if let Some(name) = &line.when {
        let rule = when::by_name(name).ok_or_else(|| {
            format!("--when: {name:?} is no rule; give one of {}", when::names().join(", "))
        })?;
        options.when = Some(rule);
    }
    options.setting = line.setting.unwrap_or_default();
    let is_tuned = match line.tuning.as_deref() {
        Some(word) => word == "on",
        None => policy.is_tuned(options.drop) && line.setting.is_none(),
    };
    if line.prefer.is_some() && !is_tuned {
        return Err("--prefer: only with --tuning on".to_owned());
    }
    options.tuning = is_tuned.then_some(line.prefer.unwrap_or_default());
    options.frontends = line.frontends.map_or(options.frontends, usize::from);
    options.nexus_packing = line.nexus_packing.unwrap_or(options.nexus_packing);
    options.orloj_delay_rate = line.orloj_delay_rate.unwrap_or(options.orloj_delay_rate);
    options.preempt = line.shepherd_preempt.unwrap_or(options.preempt);
    let clockwork = &mut options.clockwork;
    clockwork.batches = line.clockwork_batches.unwrap_or(clockwork.batches);
    clockwork.ahead = line.clockwork_ahead_ms.map_or(clockwork.ahead, Nanos::from_millis_f64);
    options.triton.max_queue_delay = line.triton_queue_delay_ms.map(Nanos::from_millis_f64);
    options.triton.timeout = line.triton_timeout_ms.map(Nanos::from_millis_f64);
    options.triton.preferred = line.triton_preferred.iter().flatten().map(|&size| size.into()).collect();
    options.triton.preferred.sort_unstable();
    Ok(options)
}

/// Returns the workload with the command line's values in place of its own.
fn changed(mut workload: Workload, line: &CommandLine) -> Workload {
    if let Some(rate) = line.rate {
        workload.rate_rps = rate;
    }
    if let Some(split) = line.split {
        workload.split = split;
    }
    if let Some(gpus) = line.gpus {
        workload.gpus = gpus as usize;
    }
    if let Some(seed) = line.seed {
        workload.seed = seed;
    }
    if let Some(duration) = line.duration {
        workload.duration = Nanos::from_secs_f64(duration);
    }
    workload
}

fn run_one(
    workload: &Workload,
    policy: &dyn Policy,
    options: &PolicyOptions,
    goodput: bool,
) -> Result<Report, ArrivalError> {
    let began = Instant::now();
    // Shown only where standard error is a terminal.
    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(100));
    progress.set_message(format!("{} …", workload.name));
    let report = if goodput {
        search(workload, policy, options, &mut |rate| {
            progress.set_message(format!("{}: trying {rate:.0} requests per second …", workload.name));
        })
    } else {
        simulate(workload, policy, options)
    };
    progress.finish_and_clear();
    report.map(|report| Report { wall_s: began.elapsed().as_secs_f64(), ..report })
}

fn print(report: &Report) {
    let busy = report.gpu_busy.iter().filter(|&&share| share > 0.05).count();
    println!("{} under {} ({} drop), {} GPUs", report.workload, report.policy, report.drop, report.gpus);
    if let Some(goodput) = report.goodput_rps {
        println!("  goodput        {goodput:>10.1} requests/s");
    }
    println!("  offered        {:>10.1} requests/s", report.offered_rps);
    println!("  good           {:>10.1} requests/s", report.good_rps);
    println!(
        "  bad rate       {:>10.3} %   (worst model {:.3} %)",
        report.bad_rate * 100.0,
        report.worst_bad_rate * 100.0
    );
    println!(
        "  GPUs busy      {:>10.1} %   ({busy} of {} over 5 %)",
        report.gpu_utilization * 100.0,
        report.gpus
    );
    println!("  mean batch     {:>10.2}", report.mean_batch);
    println!(
        "  queueing       {:>10.2} ms p50, {:.2} p99, {:.2} max",
        report.queueing_ms.p50, report.queueing_ms.p99, report.queueing_ms.max
    );
    println!(
        "  latency        {:>10.2} ms p50, {:.2} p99, {:.2} p99.9, {:.2} max",
        report.latency_ms.p50, report.latency_ms.p99, report.latency_ms.p999, report.latency_ms.max
    );
    let several = report.models.len() + report.queries.len() > 1;
    for model in report.models.iter().filter(|model| several && model.offered > 0) {
        println!(
            "  {:<28} offered {:>8}  good {:>8}  dropped {:>6}  late {:>6}  rejected {:>6}",
            model.name, model.offered, model.good, model.dropped, model.late, model.rejected
        );
    }
    report.queries.iter().for_each(print_query);
    println!("  ({} events in {:.2} s)", report.events, report.wall_s);
}

fn print_query(query: &QueryReport) {
    println!(
        "  {:<28} offered {:>8}  good {:>8}  dropped {:>6}  late {:>6}  {:.2} ms p50, {:.2} p99",
        query.name, query.offered, query.good, query.dropped, query.late, query.p50_ms, query.p99_ms
    );
    for stage in &query.stages {
        println!(
            "    {:<26} over {:>11}  ended queries {:>6}  {:.2} ms p50, {:.2} p99",
            stage.name, stage.over, stage.ended_queries, stage.p50_ms, stage.p99_ms
        );
    }
}
