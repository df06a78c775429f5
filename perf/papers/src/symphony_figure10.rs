//! Symphony's Figure 10: what a system under more load than it can take still finishes, and how
//! busy the GPUs are under less. 10 models like ResNet50 with an SLO of 100 ms on 24 GPUs.
//!
//! About 10 s of one core.

use super::setting::{RESNET50, Setting};
use super::systems::{COMPARED, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, Figure, GREY, Panel, Series, Shape};

const GPUS: usize = 24;
const MODELS: usize = 10;
const HIGHEST_RPS: f64 = 34_000.0;

/// Figure 10.
pub(super) struct Stability;

impl Experiment for Stability {
    fn name(&self) -> &'static str {
        "symphony-figure10"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 10: good requests and busy GPUs by offered load, 10 models on 24 GPUs"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["system", "offered_rps", "good_rps", "gpu_utilization", "gpus_in_use"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let step = effort.choose(2_000.0, 500.0);
        let rates = (1..).map(|at| f64::from(at) * step).take_while(|&rate| rate <= HIGHEST_RPS);
        let pairs = COMPARED.iter().flat_map(|&system| rates.clone().map(move |rate| (system, rate)));
        let job = |(system, rate): (System, f64)| {
            let setting = Setting::copies(GPUS, RESNET50.with_slo(100.0), MODELS, effort);
            let setting = setting.lasting(5.0, effort.choose(20.0, 60.0)).rate(rate);
            Job::new(setting.run_weight(rate), move || {
                let report = system.run(setting.workload())?;
                let used = report.gpu_busy.iter().filter(|&&busy| busy > 0.05).count();
                let (good, busy) = (cell(report.good_rps, 1), cell(report.gpu_utilization, 4));
                Ok(vec![vec![system.name.to_owned(), cell(rate, 0), good, busy, used.to_string()]])
            })
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let x = || Axis::up_to("offered load (requests/s)", HIGHEST_RPS);
        let lines = |y: &'static str, scale: f64| {
            COMPARED.iter().map(move |system| {
                let points = table.points(&[("system", system.name)], "offered_rps", y);
                system.series(Shape::Marked, points.into_iter().map(|(x, y)| (x, y * scale)))
            })
        };
        let most = table.highest("good_rps");
        let ideal = Series {
            label: "all that is offered".to_owned(),
            colour: GREY,
            shape: Shape::Dashed,
            points: vec![(0.0, 0.0), (most, most)],
        };
        let stability = Panel {
            title: "(left) stability".to_owned(),
            x: x(),
            y: Axis::up_to("good requests per second", most),
            series: std::iter::once(ideal).chain(lines("good_rps", 1.0)).collect(),
        };
        let utilization = Panel {
            title: "(right) GPU cluster utilization".to_owned(),
            x: x(),
            y: Axis::up_to("GPUs busy (%)", 100.0),
            series: lines("gpu_utilization", 100.0).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: vec![stability, utilization] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for system in COMPARED {
            let good = table.points(&[("system", system.name)], "offered_rps", "good_rps");
            let peak = good.iter().map(|point| point.1).reduce(f64::max).unwrap_or(f64::NAN);
            let at_end = good.last().map_or(f64::NAN, |point| point.1);
            let flat = match system.name {
                "symphony-published" | "nexus" => Paper::Is(1.0),
                _ => Paper::Silent,
            };
            let what = format!("{}: good at {HIGHEST_RPS} offered requests/s over its peak", system.label);
            claims.push(Claim::new(what, flat, at_end / peak, Unit::Times));
            let busy = table.number(&[("system", system.name), ("offered_rps", "10000")], "gpu_utilization");
            let what =
                format!("{}: GPUs busy at half of Symphony's goodput (10000 requests/s)", system.label);
            claims.push(Claim::new(what, Paper::Silent, busy, Unit::Percent));
        }
        claims
    }
}
