//! Clockwork's Figures 7 and 8: how tight SLOs may be on six workers with copies of ResNet50, alone
//! and beside clients that submit batch work. The GPU is the paper's V100 (its Table 1): no load of
//! weights, no network and no jitter, which a simulator does not have.
//!
//! Under 10 s of one core each.

use super::setting::Setting;
use super::systems::{CLOCKWORK, DEFAULT, PUBLISHED, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use std::io;
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_perf::zoo::Model;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::Observer;
use symphony_scheduler::workload::Workload;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Request};

const WORKERS: usize = 6;
/// The number of SLOs: from 2.9 ms, one execution of a single request, each 1.5 times the one
/// before, up to 74 ms.
const SLOS: usize = 9;
const SYSTEMS: [System; 3] = [CLOCKWORK, PUBLISHED, DEFAULT];

/// Batch size and latency (ms) of ResNet50 on a V100, Clockwork's Table 1.
const MEASURED_MS: [(f64, f64); 5] = [(1.0, 2.61), (2.0, 3.78), (4.0, 5.61), (8.0, 9.13), (16.0, 15.67)];

fn slo_ms(at: usize) -> f64 {
    2.9 * 1.5f64.powi(at as i32)
}

/// The V100's ResNet50 for batches up to `largest`, straight lines between what was measured.
fn profile(largest: usize) -> Profile {
    let latency = |size: usize| {
        let size = size as f64;
        let part = MEASURED_MS.windows(2).find(|part| size <= part[1].0).unwrap_or(&MEASURED_MS[3..]);
        let ((from, low), (to, high)) = (part[0], part[1]);
        Nanos::from_millis_f64(low + (high - low) * (size - from) / (to - from))
    };
    let latencies: Vec<Nanos> = (1..=largest.clamp(1, 16)).map(latency).collect();
    Profile::measured(&latencies).expect("latencies rise from 2.61 ms on")
}

/// The largest batch that fits in an SLO.
fn largest(slo_ms: f64) -> usize {
    let whole = profile(16);
    (1..=16).rev().find(|&size| whole.latency(size).as_millis_f64() <= slo_ms).unwrap_or(1)
}

fn resnet50(slo_ms: f64) -> Model<'static> {
    // Alpha and beta are replaced by the measured profile.
    Model { name: "ResNet50", alpha_ms: 1.0, beta_ms: 1.0, slo_ms }
}

fn named_slos(table: &Table) -> Vec<String> {
    table.distinct("slo_ms")
}

fn slo_axis(table: &Table) -> Axis {
    Axis::named("SLO (ms)", named_slos(table))
}

/// Figure 7.
pub(super) struct Lowest;

const CLIENTS: [usize; 2] = [12, 48];
const RATES: [f64; 3] = [600.0, 1200.0, 2400.0];

impl Experiment for Lowest {
    fn name(&self) -> &'static str {
        "clockwork-figure7"
    }

    fn about(&self) -> &'static str {
        "Clockwork, Figure 7: workload satisfaction by SLO, N copies of ResNet50 at R requests/s on 6 GPUs"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["system", "clients", "rate_rps", "slo_ms", "satisfaction"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (system, clients) in SYSTEMS.iter().flat_map(|&system| CLIENTS.map(|clients| (system, clients))) {
            for (rate, slo) in RATES.iter().flat_map(|&rate| (0..SLOS).map(move |at| (rate, slo_ms(at)))) {
                let setting = Setting::copies(WORKERS, resnet50(slo), clients, effort).rate(rate);
                let setting = setting.each_model(|_, model| model.profile = profile(largest(slo)));
                let setting = setting.lasting(2.0, effort.choose(30.0, 300.0));
                jobs.push(Job::new(setting.run_weight(rate), move || {
                    let satisfied = 1.0 - system.run(setting.workload())?.bad_rate;
                    let names = [system.name.to_owned(), clients.to_string(), rate.to_string(), cell(slo, 1)];
                    Ok(vec![names.into_iter().chain([cell(satisfied, 5)]).collect()])
                }));
            }
        }
        jobs
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |system: &System| {
            let lines = CLIENTS.iter().flat_map(|clients| {
                RATES.iter().enumerate().map(move |(at, rate)| Series {
                    label: format!("N = {clients}, R = {rate}"),
                    colour: COLOURS[at],
                    shape: if *clients == CLIENTS[0] { Shape::Marked } else { Shape::Dashed },
                    points: (0..).map(f64::from).zip(satisfaction(table, system, *clients, *rate)).collect(),
                })
            });
            Panel {
                title: system.label.to_owned(),
                x: slo_axis(table),
                y: Axis::up_to("workload satisfaction", 1.0),
                series: lines.collect(),
            }
        };
        Figure { title: self.about().to_owned(), columns: 3, panels: SYSTEMS.iter().map(panel).collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (clients, (rate, slo)) in CLIENTS
            .iter()
            .flat_map(|n| [(600.0, "9.8"), (1200.0, "22.0"), (2400.0, "74.3")].map(|said| (n, said)))
        {
            let keys =
                [("clients", &*clients.to_string()), ("rate_rps", &*f64::to_string(&rate)), ("slo_ms", slo)];
            let found = |system: &System| {
                table.number(&[keys[0], keys[1], keys[2], ("system", system.name)], "satisfaction")
            };
            let what = format!("Clockwork, N = {clients}, R = {rate}: satisfaction at an SLO of {slo} ms");
            claims.push(Claim::new(what, Paper::Is(1.0), found(&CLOCKWORK), Unit::Percent));
        }
        claims
    }
}

fn satisfaction(table: &Table, system: &System, clients: usize, rate: f64) -> Vec<f64> {
    let keys =
        [("system", system.name), ("clients", &*clients.to_string()), ("rate_rps", &*rate.to_string())];
    table.having(&keys).map(|row| row.number("satisfaction")).collect()
}

/// Figure 8.
pub(super) struct Isolation;

/// The scenarios: the name, the number of batch clients, and the outstanding requests of each,
/// which is the largest batch of its requests.
const SCENARIOS: [(&str, usize, usize); 3] =
    [("no batch clients", 0, 0), ("12 big-batch clients", 12, 16), ("48 small-batch clients", 48, 4)];
const SENSITIVE: usize = 6;
const SENSITIVE_RPS: f64 = 200.0;
/// Batch work has no SLO in the paper: here it has one that no run is long enough to make urgent.
const BATCH_SLO_MS: f64 = 600_000.0;
/// The paper's batch clients submit anew what was answered. Here they offer more than six GPUs can
/// take, and what waits only grows.
const BATCH_RPS: f64 = 7_000.0;

impl Experiment for Isolation {
    fn name(&self) -> &'static str {
        "clockwork-figure8"
    }

    fn about(&self) -> &'static str {
        "Clockwork, Figure 8: six latency-sensitive clients of 200 requests/s beside batch clients on 6 GPUs"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["system", "scenario", "slo_ms", "satisfaction", "batch_goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (system, scenario) in
            SYSTEMS.iter().flat_map(|&system| SCENARIOS.map(|scenario| (system, scenario)))
        {
            for slo in (0..SLOS).map(slo_ms) {
                let setting = shared(scenario, slo, effort);
                let weight = setting.run_weight(setting.workload().rate_rps);
                jobs.push(Job::new(weight, move || isolation(&system, scenario.0, slo, &setting)));
            }
        }
        jobs
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |system: &System, column: &'static str, y: Axis| {
            let lines = SCENARIOS.iter().enumerate().map(|(at, scenario)| {
                let keys = [("system", system.name), ("scenario", scenario.0)];
                let values = table.having(&keys).map(|row| row.number(column));
                Series {
                    label: scenario.0.to_owned(),
                    colour: COLOURS[at],
                    shape: Shape::Marked,
                    points: (0..).map(f64::from).zip(values).collect(),
                }
            });
            Panel { title: system.label.to_owned(), x: slo_axis(table), y, series: lines.collect() }
        };
        let satisfied = SYSTEMS
            .iter()
            .map(|system| panel(system, "satisfaction", Axis::up_to("satisfaction, latency-sensitive", 1.0)));
        let most = table.highest("batch_goodput_rps");
        let goodput = SYSTEMS.iter().map(|system| {
            panel(system, "batch_goodput_rps", Axis::up_to("batch clients (requests/s)", most))
        });
        Figure { title: self.about().to_owned(), columns: 3, panels: satisfied.chain(goodput).collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for slo in ["22.0", "74.3"] {
            let satisfied = |scenario: &str| {
                let keys = [("system", CLOCKWORK.name), ("scenario", scenario), ("slo_ms", slo)];
                table.number(&keys, "satisfaction")
            };
            for (scenario, ..) in &SCENARIOS[1..] {
                let here = satisfied(scenario) / satisfied(SCENARIOS[0].0);
                let what = format!(
                    "Clockwork, SLO {slo} ms, {scenario}: satisfaction over that without batch clients"
                );
                claims.push(Claim::new(what, Paper::Is(1.0), here, Unit::Times));
            }
        }
        claims
    }
}

/// Six latency-sensitive models, and as many batch models as the scenario has.
fn shared((_, clients, outstanding): (&str, usize, usize), slo: f64, effort: Effort) -> Setting {
    let batch = if clients == 0 { 0.0 } else { BATCH_RPS };
    let total = SENSITIVE as f64 * SENSITIVE_RPS + batch;
    let models = std::iter::repeat_n(resnet50(slo), SENSITIVE);
    let models = models.chain(std::iter::repeat_n(resnet50(BATCH_SLO_MS), clients));
    Setting::new(WORKERS, models, effort)
        .shared(move |at| if at < SENSITIVE { SENSITIVE_RPS } else { batch / clients as f64 })
        .each_model(move |at, model| {
            model.profile = profile(if at < SENSITIVE { largest(slo) } else { outstanding });
        })
        .rate(total)
        .lasting(5.0, effort.choose(20.0, 100.0))
}

fn isolation(system: &System, scenario: &str, slo: f64, setting: &Setting) -> io::Result<super::Rows> {
    let Workload { warmup, duration, .. } = *setting.workload();
    let mut done = BatchWork { from: warmup, to: warmup + duration, requests: 0 };
    let report = system.observed(setting.workload(), &mut done)?;
    let sensitive = &report.models[..SENSITIVE];
    let good: u64 = sensitive.iter().map(|model| model.good).sum();
    let offered: u64 = sensitive.iter().map(|model| model.offered).sum();
    let satisfied = good as f64 / offered.max(1) as f64;
    let batch_rps = done.requests as f64 / duration.as_secs_f64();
    Ok(vec![vec![
        system.name.to_owned(),
        scenario.to_owned(),
        cell(slo, 1),
        cell(satisfied, 5),
        cell(batch_rps, 1),
    ]])
}

/// Counts the batch clients' requests that are done while the run counts. Most are only done long
/// after, when nothing new comes.
struct BatchWork {
    from: Nanos,
    to: Nanos,
    requests: usize,
}

impl Observer for BatchWork {
    fn ran(
        &mut self,
        _now: Nanos,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        let counts = batch.model.0 as usize >= SENSITIVE && (self.from..self.to).contains(&finished);
        if counts && started.is_some() {
            self.requests += requests.0.len() + requests.1.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_what_was_measured_and_straight_between() {
        let ms = |size: usize| profile(16).latency(size).as_millis_f64();
        for (size, latency) in MEASURED_MS {
            assert!((ms(size as usize) - latency).abs() < 1e-6);
        }
        assert!((ms(12) - (9.13 + 15.67) / 2.0).abs() < 1e-6);
        assert_eq!((largest(2.9), largest(9.8), largest(74.0)), (1, 8, 16));
    }

    #[test]
    fn slos_go_from_2_9_to_74_ms() {
        assert_eq!((slo_ms(0), slo_ms(SLOS - 1).round()), (2.9, 74.0));
    }
}
