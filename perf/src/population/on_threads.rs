//! A workload of the population on the engine's own threads, in real time, with emulated GPUs: what
//! the simulator says of a rule has to hold there too.
//!
//! The requests are those of the simulator, at the same times after the start. They are submitted
//! by the calling thread through a frontend of the embedding API, as soon as it sees that their
//! times have come.

use super::generator::workload_profile;
use super::rules::{ChosenSetting, Rule};
use super::search::{FIRST, LAST, rate, refined_goodput};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;
use symphony::config::parse_config;
use symphony::runtime::frontend::{Ask, Frontend, Outcome};
use symphony::runtime::{Engine, no_progress};
use symphony_scheduler::sim::arrivals::Arrivals;
use symphony_scheduler::sim::goodput::ALLOWED_BAD_RATE;
use symphony_scheduler::sim::grid::highest;
use symphony_scheduler::workload::{Network, Workload};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The first stride of the search on threads: their goodput is near the simulator's.
const STRIDE: usize = 2;

/// The longest time in which requests count: it is real time, and there are several runs.
const LONGEST: Nanos = Nanos::from_secs(60);

/// A workload's goodput in the simulator and on threads.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadsGoodput {
    /// The workload.
    pub workload: String,
    /// The name of the rule.
    pub rule: String,
    /// The goodput of the rule in the simulator, requests/s.
    pub simulated_rps: f64,
    /// The goodput of the rule on threads, requests/s.
    pub on_threads_rps: f64,
    /// The latter over the former.
    pub ratio: f64,
    /// The runs in real time from which the second follows.
    pub runs: Vec<ThreadsRun>,
}

/// A run in real time.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadsRun {
    /// Offered load, requests/s.
    pub offered_rps: f64,
    /// The share of bad requests of the model that has the highest.
    pub worst_bad_rate: f64,
    /// The lateness for which the engine allowed, as measured at its start, microseconds.
    pub lateness_us: f64,
    /// The longest time after its arrival at which a request was submitted, milliseconds.
    pub latest_submit_ms: f64,
}

/// Finds the goodput of a rule on `workload`, in the simulator and on threads, on the same grid of
/// rates. `each` is told of every run on threads.
///
/// Errors: the workload has a network, or models that the engine refuses; the engine can't be
/// configured for the rule.
pub fn compare(
    workload: &Workload,
    rule: &Rule,
    mut each: impl FnMut(&ThreadsRun),
) -> Result<ThreadsGoodput, String> {
    if workload.network != Network::default() {
        return Err(format!("{}: its network can't be had on one machine", workload.name));
    }
    let workload = &Workload { duration: workload.duration.min(LONGEST), ..workload.clone() };
    // Says what is wrong with the rule before the simulator runs for minutes.
    config_of(workload, rule)?;
    let simulated_rps = refined_goodput(rule, workload).map_err(|error| error.to_string())?;
    let start =
        (0..).find(|&point| rate(workload, f64::from(point)) <= simulated_rps).unwrap_or(FIRST as u32);
    let (mut runs, mut on_threads_rps) = (Vec::new(), 0.0);
    highest(start as usize, STRIDE, LAST, |point| {
        let run = run(&Workload { rate_rps: rate(workload, point as f64), ..workload.clone() }, rule)?;
        each(&run);
        let passes = run.worst_bad_rate <= ALLOWED_BAD_RATE;
        on_threads_rps = if passes { run.offered_rps } else { on_threads_rps };
        runs.push(run);
        Ok::<_, String>(passes)
    })?;
    let ratio = on_threads_rps / simulated_rps;
    let (workload, rule) = (workload.name.clone(), rule.to_string());
    Ok(ThreadsGoodput { workload, rule, simulated_rps, on_threads_rps, ratio, runs })
}

/// What became of a model's requests in the time that counts.
#[derive(Clone, Copy, Default)]
struct AskedAndBad {
    asked: u64,
    bad: u64,
}

/// Runs the workload in real time on an engine in this process.
///
/// Errors: the engine refuses the workload, or does not start.
fn run(workload: &Workload, rule: &Rule) -> Result<ThreadsRun, String> {
    let config = parse_config(&config_of(workload, rule)?).map_err(|diagnostics| diagnostics.to_string())?;
    let (engine, mut frontends) =
        Engine::start(config, 1, no_progress()).map_err(|error| error.to_string())?;
    let lateness_us = engine.lateness().as_secs_f64() * 1e6;
    let mut frontend = frontends.pop().ok_or("the engine has no frontend")?;
    let (counts, latest_submit) = send_and_count(workload, &mut frontend)?;
    drop(frontend);
    engine.stop();
    let asked: u64 = counts.iter().map(|model| model.asked).sum();
    let bad = counts.iter().map(|model| model.bad as f64 / (model.asked as f64).max(1.0));
    Ok(ThreadsRun {
        offered_rps: asked as f64 / workload.duration.as_secs_f64(),
        worst_bad_rate: bad.fold(0.0, f64::max),
        lateness_us,
        latest_submit_ms: latest_submit.as_millis_f64(),
    })
}

fn send_and_count(workload: &Workload, frontend: &mut Frontend) -> Result<(Vec<AskedAndBad>, Nanos), String> {
    let mut streams = Vec::new();
    let mut next = BinaryHeap::new();
    for index in 0..workload.models.len() {
        let mut stream = Arrivals::of(workload, index).map_err(|error| error.to_string())?;
        next.extend(stream.next().map(|at| Reverse((at, index))));
        streams.push(stream);
    }
    let mut counts = vec![AskedAndBad::default(); workload.models.len()];
    // The model of each request in flight, by its ticket's index, if it counts.
    let mut counted: Vec<Option<usize>> = vec![None; frontend.capacity()];
    let (began, end, mut latest_submit) = (frontend.now(), workload.warmup + workload.duration, Nanos::ZERO);
    loop {
        let now = frontend.now() - began;
        while let Some(&Reverse((at, model))) = next.peek()
            && at <= now
            && at < end
        {
            next.pop();
            next.extend(streams[model].next().map(|at| Reverse((at, model))));
            latest_submit = latest_submit.max(now - at);
            let counts_here = at >= workload.warmup;
            counts[model].asked += u64::from(counts_here);
            match frontend.submit(&Ask::one(ModelId(model as u32)), |_, _| ()) {
                Ok(ticket) => counted[ticket.index] = counts_here.then_some(model),
                Err(_) => counts[model].bad += u64::from(counts_here),
            }
        }
        frontend.poll(|ticket, answer| {
            if let Some(model) = counted[ticket.index] {
                counts[model].bad += u64::from(answer.outcome != Outcome::Good);
            }
        });
        let is_over = next.peek().is_none_or(|&Reverse((at, _))| at >= end);
        if is_over && frontend.in_flight() == 0 {
            return Ok((counts, latest_submit));
        }
        std::thread::yield_now();
    }
}

/// Returns the configuration of an engine that serves the workload.
fn config_of(workload: &Workload, rule: &Rule) -> Result<String, String> {
    let Rule::Policy { policy, drop, setting } = rule else {
        return Err(format!("{rule} is no rule of the engine"));
    };
    // Writing to a string never fails.
    let mut text = format!("policy = {:?}\n", policy.name());
    if let Some(drop) = drop {
        let _ = writeln!(text, "drop = {:?}", drop.name());
    }
    match setting {
        None => {}
        Some(ChosenSetting::Latency) => text.push_str("prefer = \"latency\"\n"),
        Some(ChosenSetting::Fixed(_)) => return Err(format!("{rule}: the engine has no key for a setting")),
    }
    let _ = writeln!(text, "[[executors]]\nkind = \"emulated\"\ncount = {}", workload.gpus);
    for model in &workload.models {
        let (alpha, beta) = workload_profile(model);
        let _ = write!(
            text,
            "\n[[models]]\nname = {:?}\nexecutor = \"emulated\"\nslo_ms = {:?}\nmax_batch = {}\n\
             profile = {{ alpha_ms = {:?}, beta_ms = {:?} }}\n",
            model.name,
            model.slo.as_millis_f64(),
            model.profile.max_batch(),
            alpha.as_millis_f64(),
            beta.as_millis_f64(),
        );
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::generator::Half;

    #[test]
    fn the_engine_takes_every_workload_without_a_network() {
        for number in 0..40 {
            let workload = Half::Tune.workload(number);
            let config = parse_config(&config_of(&workload, &"symphony".parse().unwrap()).unwrap()).unwrap();
            assert_eq!(config.models.len(), workload.models.len());
            for (served, drawn) in config.models.iter().zip(&workload.models) {
                assert_eq!(served.name, drawn.name);
            }
        }
        let network = (0..)
            .map(|number| Half::Tune.workload(number))
            .find(|workload| workload.network != Network::default());
        let error = compare(&network.unwrap(), &"symphony".parse().unwrap(), |_| ()).unwrap_err();
        assert!(error.contains("network"), "{error}");
    }

    #[test]
    fn a_light_load_is_served_on_threads() {
        let mut workload =
            (0..).map(|number| Half::Tune.workload(number)).find(|workload| workload.gpus > 4).unwrap();
        (workload.warmup, workload.duration) = (Nanos::from_millis(100), Nanos::from_millis(300));
        workload.rate_rps = 200.0;
        for model in &mut workload.models {
            model.slo = Nanos::from_secs_f64(5.0);
        }
        let found = run(&workload, &"symphony".parse().unwrap()).unwrap();
        assert!(found.offered_rps > 50.0 && found.worst_bad_rate < 0.5, "{found:?}");
    }
}
