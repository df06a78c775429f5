//! The load generator: sends requests to a server, or to an engine in this process, at times that
//! do not depend on the answers (open loop) or as fast as N clients get answers (closed loop), and
//! reports how they ended. Latency counts from the time a request was meant to be sent, so a
//! stall of the server, or of the generator, shows in the figures instead of hiding.

mod args;
mod error;
pub mod goodput;
pub mod inputs;
pub mod measure;
mod progress;
pub mod report;
pub mod schedule;
pub mod target;

pub use args::{Args, Protocol};
pub use error::RunError;

use crate::loadgen::args::{Command, CompareArgs};
use crate::loadgen::report::{Comparison, Criteria, Files, FinishedRun, Report, RunInfo, Saved, Step};
use crate::loadgen::schedule::{Pace, Plan};
use crate::loadgen::target::{Target, Watch};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Runs the whole command and prints its report.
pub fn main(args: &Args) -> ExitCode {
    let done = match &args.command {
        Some(Command::Compare(compared)) => compare(compared),
        Some(Command::Echo(echoed)) => target::echo::serve(echoed.http, echoed.grpc),
        None => generate(args),
    };
    ExitCode::from(done.unwrap_or_else(|error| {
        eprintln!("loadgen: {error}");
        error.exit_code()
    }))
}

/// Generates load, from the command line to the exit code.
fn generate(args: &Args) -> Result<u8, RunError> {
    let mut target = args.target()?;
    let all = if args.all_models() { target.model_names()? } else { Vec::new() };
    let mut plan = args.plan(&all)?;
    let stop = stop_on_ctrl_c()?;
    let slos = target.prepare(&plan.models, &args.requests())?;
    // What a request carries is settled; from here on the SLO is that by which answers are judged.
    plan.models.iter_mut().zip(slos).for_each(|(model, stated)| model.slo = model.slo.or(stated));
    if let (true, Some(model)) = (args.find_goodput, plan.models.iter().find(|model| model.slo.is_none())) {
        let name = &model.name;
        let what = format!("the SLO of model \"{name}\" is not known, so nothing is late: give --slo-ms");
        return Err(RunError::Usage(what));
    }
    let slos = plan.models.iter().map(|model| model.slo).collect();
    let criteria = Criteria { slos, allowed_lateness: args.allowed_lateness(), strict: args.strict };
    let files = Files::create(&args.files(), args.svg.as_deref()).map_err(RunError::Usage)?;
    let mut run = Runner { target, criteria, stop, keep_records: files.need_records() };
    let report = match args.goodput_search() {
        None => run.once(&plan, "")?,
        Some(resolution) => run.search(&plan, resolution)?,
    };
    files.write(&report).map_err(RunError::Machine)?;
    print(&report, args.json);
    Ok(report.exit_code())
}

/// Compares two runs, from the command line to the exit code.
fn compare(args: &CompareArgs) -> Result<u8, RunError> {
    let read = |path| Saved::read(path).map_err(RunError::Usage);
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let comparison = Comparison::new(&a, &b);
    if let Some(path) = &args.html {
        let failed = |e| RunError::Usage(format!("{}: can't be written ({e})", path.display()));
        std::fs::write(path, comparison.html(&a, &b)).map_err(failed)?;
    }
    comparison.unlike.iter().for_each(|unlike| eprintln!("loadgen: {unlike}"));
    if args.json {
        println!(
            "{}",
            serde_json::to_string(&comparison).expect("plain numbers and names can always be written")
        );
    } else {
        print!("{comparison}");
    }
    let worse = args.fail_if_worse.map(|percent| comparison.worse_by_more_than(percent / 100.0));
    let worse = worse.unwrap_or_default();
    worse.iter().for_each(|change| eprintln!("loadgen: failed: {} got worse", change.name));
    Ok(u8::from(!worse.is_empty()))
}

/// Runs plans on a target that is prepared for their models.
struct Runner {
    target: Box<dyn Target>,
    criteria: Criteria,
    stop: Arc<AtomicBool>,
    keep_records: bool,
}

impl Runner {
    fn once(&mut self, plan: &Plan, label: &str) -> Result<Report, RunError> {
        let began = SystemTime::now();
        let mut watch = Watch::new(plan, Arc::clone(&self.stop), self.keep_records, label);
        let ran = self.target.run(plan, &mut watch);
        watch.progress.finish();
        ran?;
        let (rate_rps, concurrency) = match plan.pace {
            Pace::Open { .. } if plan.models.iter().any(|model| model.arrival.has_own_rate()) => (None, None),
            Pace::Open { .. } => (Some(plan.total_rps()), None),
            Pace::Closed { clients, .. } => (None, Some(clients)),
        };
        let info = RunInfo { rate_rps, concurrency, seed: plan.seed, ..self.target.info() };
        Ok(Report::new(plan, FinishedRun { began, tally: watch.tally, info }, &self.criteria))
    }

    fn search(&mut self, plan: &Plan, resolution: f64) -> Result<Report, RunError> {
        let stop = Arc::clone(&self.stop);
        let stopped = move || stop.load(Ordering::Relaxed);
        let mut step = |rate| {
            let report = self.once(&plan.at_rate(rate), &format!("trying {rate:.0}/s: "))?;
            Ok((!stopped()).then_some(report))
        };
        goodput::search(plan.total_rps(), resolution, &mut step, &mut say_step)
    }
}

/// A line on standard error for each step of a search.
fn say_step(step: &Step) {
    let Step { rate_rps, worst_bad_rate, p99_ms, passed, worst_bad_rate_without_stalls, .. } = step;
    let verdict = if *passed { "good" } else { "too much" };
    let without = worst_bad_rate_without_stalls.filter(|without| without != worst_bad_rate);
    let without = without
        .map_or(String::new(), |rate| format!("   ({:.3} % without the machine's stalls)", 100.0 * rate));
    eprintln!(
        "{rate_rps:>10.1}/s   bad {:>7.3} %   p99 {p99_ms:>9.3} ms   {verdict}{without}",
        100.0 * worst_bad_rate
    );
}

/// A flag that the first Ctrl-C sets; a second one ends the process.
fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>, RunError> {
    let stop = Arc::new(AtomicBool::new(false));
    let machine = |e: io::Error| RunError::Machine(format!("can't watch for Ctrl-C: {e}"));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // In this order: the first signal finds the flag unset, and the second finds it set.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop)).map_err(machine)?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(machine)?;
    }
    Ok(stop)
}

fn print(report: &Report, json: bool) {
    for note in report.notes() {
        eprintln!("loadgen: {note}");
    }
    if json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
}
