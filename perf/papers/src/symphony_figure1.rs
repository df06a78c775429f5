//! Symphony's Figure 1: what Nexus loses when several frontends route requests without knowing of
//! each other, over setups from 8 to 64 GPUs, 1 to 37 models and SLOs of 20 to 100 ms.
//!
//! About 10 s of one core.

use super::setting::{RESNET50, Setting};
use super::systems::NEXUS;
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_perf::zoo::{zoo_1080ti, zoo_a100};

const FRONTENDS: [usize; 5] = [1, 2, 4, 8, 16];

/// A setup's name and workload.
type NexusSetup = (&'static str, fn(Effort) -> Setting);

const SETUPS: [NexusSetup; 7] = [
    ("8 GPUs, 1 model, 25 ms", |effort| Setting::new(8, [RESNET50], effort)),
    ("8 GPUs, 1 model, 100 ms", |effort| Setting::new(8, [RESNET50.with_slo(100.0)], effort)),
    ("16 GPUs, 4 models, 50 ms", |effort| Setting::copies(16, RESNET50.with_slo(50.0), 4, effort)),
    ("32 GPUs, 10 models, 20 ms", |effort| Setting::copies(32, RESNET50.with_slo(20.0), 10, effort)),
    ("32 GPUs, 20 models, 50 ms", |effort| Setting::copies(32, RESNET50.with_slo(50.0), 20, effort)),
    ("64 GPUs, 35 models of a 1080Ti", |effort| Setting::new(64, zoo_1080ti(), effort)),
    ("64 GPUs, 37 models of an A100", |effort| Setting::new(64, zoo_a100(), effort)),
];

/// Figure 1.
pub(super) struct Frontends;

impl Experiment for Frontends {
    fn name(&self) -> &'static str {
        "symphony-figure1"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 1: goodput of Nexus by number of frontends that do not coordinate"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["setup", "frontends", "goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let pairs = SETUPS.iter().flat_map(|setup| FRONTENDS.map(|frontends| (setup, frontends)));
        let job = |(&(name, make), frontends): (&'static NexusSetup, usize)| {
            let setting = make(effort).lasting(2.0, effort.choose(20.0, 60.0));
            Job::new(setting.search_weight(), move || {
                let goodput = NEXUS.routed_by(frontends).goodput_rps(setting.workload())?;
                Ok(vec![vec![name.to_owned(), frontends.to_string(), cell(goodput, 1)]])
            })
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let line = |(at, &(name, _)): (usize, &NexusSetup)| Series {
            label: name.to_owned(),
            colour: COLOURS[at % COLOURS.len()],
            shape: Shape::Marked,
            points: (0..).map(f64::from).zip(FRONTENDS.map(|n| relative(table, name, n) * 100.0)).collect(),
        };
        let panel = Panel {
            title: "Nexus".to_owned(),
            x: Axis::named("frontends", FRONTENDS.map(|frontends| frontends.to_string())),
            y: Axis::up_to("goodput, 1 frontend = 100 %", 100.0),
            series: SETUPS.iter().enumerate().map(line).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let claim = |&(name, _): &NexusSetup| {
            let here = 1.0 - relative(table, name, 8);
            Claim::new(
                format!("{name}: lost by 8 frontends"),
                Paper::Between(0.05, 0.40),
                here,
                Unit::Percent,
            )
        };
        SETUPS.iter().map(claim).collect()
    }
}

/// The goodput over that with one frontend.
fn relative(table: &Table, setup: &str, frontends: usize) -> f64 {
    let goodput = |frontends: usize| {
        table.number(&[("setup", setup), ("frontends", &frontends.to_string())], "goodput_rps")
    };
    goodput(frontends) / goodput(1)
}
