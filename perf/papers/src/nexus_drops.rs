//! Nexus's Figures 5 and 9: what becomes of requests that a GPU can't serve in time. Lazy dropping
//! serves the head of the queue whatever it costs; early dropping gives up what would spoil a batch
//! of the right size. One GPU, SLO 100 ms, 500 requests a second where it always runs the batch of
//! 25 that takes half of the SLO; alpha varies, beta follows.
//!
//! Under 5 s of one core each.

use super::setting::Setting;
use super::systems::{DEFAULT, PUBLISHED, System, WORK_CONSERVING};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_perf::zoo::Model;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::workload::Arrival;

const SLO_MS: f64 = 100.0;
/// The best throughput, requests per second.
const OPTIMAL_RPS: f64 = 500.0;
const ALPHAS_MS: (f64, f64) = (1.0, 1.8);

/// Serves the head whatever it costs.
const LAZY: System = WORK_CONSERVING.dropping(DropRule::Timeout).named("lazy", "lazy drop");

/// Drops what a batch of the size that the rate calls for can't include.
const EARLY: System = WORK_CONSERVING.named("early", "early drop").coloured(2);

fn model(alpha_ms: f64) -> Model<'static> {
    // 2 l(b) <= SLO, and the throughput b / l(b) is to be OPTIMAL_RPS.
    let batch = OPTIMAL_RPS * SLO_MS / 2.0 / 1e3;
    let beta_ms = SLO_MS / 2.0 - alpha_ms * batch;
    Model { name: "model", alpha_ms, beta_ms, slo_ms: SLO_MS }
}

fn alphas(effort: Effort) -> Vec<f64> {
    let steps = effort.choose(8, 16);
    (0..=steps)
        .map(|at| ALPHAS_MS.0 + (ALPHAS_MS.1 - ALPHAS_MS.0) * f64::from(at) / f64::from(steps))
        .collect()
}

fn setting(alpha_ms: f64, effort: Effort) -> Setting {
    Setting::new(1, [model(alpha_ms)], effort).lasting(10.0, effort.choose(200.0, 2000.0))
}

/// Figure 5.
pub(super) struct Lazy;

const ARRIVALS: [(&str, Arrival); 2] = [("uniform", Arrival::Uniform), ("Poisson", Arrival::Poisson)];

impl Experiment for Lazy {
    fn name(&self) -> &'static str {
        "nexus-figure5"
    }

    fn about(&self) -> &'static str {
        "Nexus, Figure 5: bad rate of lazy dropping at 90 % of the best throughput"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["alpha_ms", "arrivals", "system", "bad_rate"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (alpha, arrivals) in
            alphas(effort).into_iter().flat_map(|alpha| ARRIVALS.iter().map(move |a| (alpha, a)))
        {
            for system in [LAZY, EARLY] {
                let setting = setting(alpha, effort).arriving(&arrivals.1).rate(OPTIMAL_RPS * 0.9);
                jobs.push(Job::new(setting.run_weight(OPTIMAL_RPS), move || {
                    let bad = system.run(setting.workload())?.bad_rate;
                    Ok(vec![vec![
                        cell(alpha, 2),
                        arrivals.0.to_owned(),
                        system.name.to_owned(),
                        cell(bad, 5),
                    ]])
                }));
            }
        }
        jobs
    }

    fn figure(&self, table: &Table) -> Figure {
        let lines = ARRIVALS.iter().enumerate().flat_map(|(at, (arrivals, _))| {
            [(LAZY, Shape::Marked), (EARLY, Shape::Dashed)].map(|(system, shape)| {
                let points =
                    table.points(&[("arrivals", arrivals), ("system", system.name)], "alpha_ms", "bad_rate");
                Series {
                    label: format!("{}, {arrivals}", system.label),
                    colour: COLOURS[at],
                    shape,
                    points: points.into_iter().map(|(alpha, bad)| (alpha, bad * 100.0)).collect(),
                }
            })
        });
        let panel = Panel {
            title: format!("one GPU, SLO {SLO_MS} ms, {} requests/s", OPTIMAL_RPS * 0.9),
            x: Axis::between("alpha (ms)", ALPHAS_MS.0, ALPHAS_MS.1),
            y: Axis::up_to("bad rate (%)", table.highest("bad_rate") * 100.0),
            series: lines.collect(),
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let bad = |alpha: &str, arrivals: &str| {
            table.number(&[("alpha_ms", alpha), ("arrivals", arrivals), ("system", "lazy")], "bad_rate")
        };
        let pairs = ["1.00", "1.80"].into_iter().flat_map(|alpha| ARRIVALS.iter().map(move |a| (alpha, a.0)));
        let claim = |(alpha, arrivals): (&str, &str)| {
            let what = format!("{arrivals} arrivals, alpha {alpha} ms: bad rate of lazy dropping");
            Claim::new(what, Paper::Silent, bad(alpha, arrivals), Unit::Percent)
        };
        pairs.map(claim).collect()
    }
}

/// Figure 9.
pub(super) struct LazyAndEarly;

/// Lazy and early dropping, and Symphony's rules beside them.
const DROPPING: [System; 4] = [LAZY, EARLY, PUBLISHED, DEFAULT];

impl Experiment for LazyAndEarly {
    fn name(&self) -> &'static str {
        "nexus-figure9"
    }

    fn about(&self) -> &'static str {
        "Nexus, Figure 9: throughput with 99 % in time, lazy and early dropping"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["alpha_ms", "system", "goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let pairs = alphas(effort).into_iter().flat_map(|alpha| DROPPING.map(|system| (alpha, system)));
        let job = |(alpha, system): (f64, System)| {
            let setting = setting(alpha, effort);
            Job::new(setting.search_weight(), move || {
                let goodput = system.goodput_rps(setting.workload())?;
                Ok(vec![vec![cell(alpha, 2), system.name.to_owned(), cell(goodput, 1)]])
            })
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let line = |system: &System| {
            system.series(Shape::Marked, table.points(&[("system", system.name)], "alpha_ms", "goodput_rps"))
        };
        let panel = Panel {
            title: format!("one GPU, SLO {SLO_MS} ms, Poisson arrivals"),
            x: Axis::between("alpha (ms)", ALPHAS_MS.0, ALPHAS_MS.1),
            y: Axis::up_to("max throughput (requests/s)", table.highest("goodput_rps")),
            series: DROPPING.iter().map(line).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let gain = |alpha: &String| {
            let goodput =
                |system: &str| table.number(&[("alpha_ms", alpha), ("system", system)], "goodput_rps");
            goodput("early") / goodput("lazy")
        };
        let most = table.distinct("alpha_ms").iter().map(gain).reduce(f64::max).unwrap_or(f64::NAN);
        vec![Claim::new("early over lazy dropping: largest gain", Paper::Is(1.25), most, Unit::Times)]
    }
}
