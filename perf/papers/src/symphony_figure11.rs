//! Symphony's Figure 11 (right): goodput by number of GPUs, 20 equally popular models like
//! ResNet50, SLO 100 ms. Its left side is `scale`'s (docs/performance.md).
//!
//! About 30 s of one core: 256 GPUs serve 230 thousand requests a second.

use super::setting::{RESNET50, Setting};
use super::systems::{COMPARED, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, Figure, Panel, Shape};

const MODELS: usize = 20;
const GPUS: [usize; 6] = [8, 16, 32, 64, 128, 256];
const FULL_GPUS: [usize; 8] = [8, 16, 32, 64, 128, 256, 384, 512];

/// Figure 11, right.
pub(super) struct Growth;

impl Experiment for Growth {
    fn name(&self) -> &'static str {
        "symphony-figure11"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 11 (right): goodput by number of GPUs, 20 models, SLO 100 ms"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["gpus", "system", "goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let gpus = effort.choose(&GPUS[..], &FULL_GPUS[..]);
        let pairs = gpus.iter().flat_map(|&gpus| COMPARED.iter().map(move |&system| (gpus, system)));
        let job = |(gpus, system): (usize, System)| {
            let setting = Setting::copies(gpus, RESNET50.with_slo(100.0), MODELS, effort);
            let setting = setting.lasting_for(effort.choose(12_000.0, 60_000.0), 5.0);
            Job::new(setting.search_weight(), move || {
                let goodput = system.goodput_rps(setting.workload())?;
                Ok(vec![vec![gpus.to_string(), system.name.to_owned(), cell(goodput, 1)]])
            })
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let line = |system: &System| {
            let points = table.points(&[("system", system.name)], "gpus", "goodput_rps");
            system.series(Shape::Marked, points.into_iter().map(|(gpus, goodput)| (gpus, goodput / 1e3)))
        };
        let panel = Panel {
            title: format!("{MODELS} equally popular models"),
            x: Axis::up_to("emulated GPUs", table.highest("gpus")),
            y: Axis::up_to("goodput (thousand requests/s)", table.highest("goodput_rps") / 1e3),
            series: COMPARED.iter().map(line).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let per_gpu = |system: &str, gpus: &str| {
            let keys = [("system", system), ("gpus", gpus)];
            table.number(&keys, "goodput_rps") / table.number(&keys, "gpus")
        };
        let claim = |system: &System| {
            let here = per_gpu(system.name, "256") / per_gpu(system.name, "32");
            let paper = if system.name == "symphony-published" { Paper::Is(1.0) } else { Paper::Silent };
            Claim::new(
                format!("{}: goodput per GPU of 256 GPUs over that of 32", system.label),
                paper,
                here,
                Unit::Times,
            )
        };
        COMPARED.iter().map(claim).collect()
    }
}
