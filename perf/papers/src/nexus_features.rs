//! Nexus's Figures 10 and 11: what each of its features is worth on 16 GPUs, turned off one after
//! the other. The game application (section 7.3.1): 20 games with rates by Zipf-0.9, of each frame
//! six digits for a LeNet and an icon for a ResNet-50, SLO 50 ms. The traffic application (section
//! 7.3.2): SSD on each frame, then a recogniser of cars and one of faces, SLO 400 ms.
//!
//! - *-PB*: each game has networks of its own, which differ in the last layer only. With prefix
//!   batching they run as one; the last layers' time is left out.
//! - *-SS*: batch-oblivious placement (section 7.2) in place of squishy bin packing.
//! - *-ED*: lazy in place of early dropping.
//! - *-OL*: the preprocessing on the CPU, 10 ms (section 7.3.1), is part of each batch's time. With
//!   overlap it only takes 10 ms of the SLO.
//! - *-QA*: an even split of the SLO over the stages, in place of Nexus's.
//!
//! The paper does not say from when a stage's part of the SLO counts. In the rows of the figure it
//! is from its item's arrival; the last row has all features and Nexus's parts, with what a stage
//! leaves carried over to the next.
//!
//! The paper gives the times of batches of one (Table 1, section 7.3) and no further profile: LeNet
//! is 0.01 b + 0.09 ms here, SSD 20 b + 27 ms, GoogLeNet b + 3.2 ms, VGG-Face VGG16 and ResNet50
//! itself of Symphony's Table 5, for the same GPU. The items of a frame of the traffic application
//! are those of perf/workloads/queries/traffic.toml.
//!
//! About a minute of one core.

use super::setting::Setting;
use super::systems::{NEXUS, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, Figure, Panel, Shape};
use symphony_perf::zoo::{Model, zoo_1080ti};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::options::NexusPacking;
use symphony_scheduler::query::{DeadlineSplit, QueryGraph, QueryStage, StageInput};
use symphony_scheduler::workload::{Arrival, Workload, WorkloadQuery};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

const GPUS: usize = 16;
const GAMES: usize = 20;
const GAME_SLO_MS: f64 = 50.0;
const TRAFFIC_SLO_MS: f64 = 400.0;
/// The preprocessing of an image.
const CPU_MS: f64 = 10.0;
/// The digits of a frame.
const DIGITS: f64 = 6.0;

const LENET: Model<'_> = Model { name: "LeNet", alpha_ms: 0.01, beta_ms: 0.09, slo_ms: GAME_SLO_MS };
const SSD: Model<'_> = Model { name: "SSD", alpha_ms: 20.0, beta_ms: 27.0, slo_ms: TRAFFIC_SLO_MS };
const GOOGLENET: Model<'_> = Model { name: "GoogLeNet", alpha_ms: 1.0, beta_ms: 3.2, slo_ms: TRAFFIC_SLO_MS };
/// The items of GoogLeNet and of VGG-Face for each frame.
const ITEMS: [f64; 2] = [3.5, 0.4];

/// Returns the profile of this name for a GTX 1080 Ti.
pub(super) fn on_1080ti(name: &str) -> Model<'static> {
    zoo_1080ti().into_iter().find(|model| model.name == name).expect("Table 5 has the model")
}

/// How Nexus runs: which of its features are turned off.
#[derive(Clone, Copy)]
struct Ablation {
    name: &'static str,
    /// The first so many features of the figure's order are off.
    off: usize,
    /// The split of a query's SLO.
    split: DeadlineSplit,
    /// The throughput that the paper gives over that of all features.
    paper: Paper,
}

/// The features in the order in which they are turned off: the first is PB or QA.
const SQUISHY: usize = 2;
const EARLY: usize = 3;
const OVERLAP: usize = 4;

impl Ablation {
    fn system(self) -> System {
        let packed = if self.off >= SQUISHY { NEXUS.packed(NexusPacking::Oblivious) } else { NEXUS };
        if self.off >= EARLY { packed.dropping(DropRule::Timeout) } else { packed }
    }

    /// Returns a model as it runs: with its preprocessing before it, or in it.
    fn run<'a>(self, model: Model<'a>) -> Model<'a> {
        match self.off >= OVERLAP {
            true => Model { beta_ms: model.beta_ms + CPU_MS, ..model },
            false => model.with_slo(model.slo_ms - CPU_MS),
        }
    }
}

/// Figure 10 or 11.
pub(super) struct Features {
    name: &'static str,
    about: &'static str,
    ablations: &'static [Ablation],
    workload: fn(Ablation, Effort) -> Workload,
}

const fn ablation(name: &'static str, off: usize, paper: Paper) -> Ablation {
    let split = if off >= 1 { DeadlineSplit::Even } else { DeadlineSplit::Nexus };
    Ablation { name, off, split, paper }
}

/// All features, and what a stage leaves of its part is carried over.
const CARRIED: Ablation =
    Ablation { split: DeadlineSplit::Carried, ..ablation("Nexus, carried", 0, Paper::Silent) };

/// Figure 10.
pub(super) const GAME: Features = Features {
    name: "nexus-figure10",
    about: "Nexus, Figure 10: features turned off one after the other, game analysis on 16 GPUs",
    ablations: &[
        ablation("Nexus", 0, Paper::Is(1.0)),
        ablation("-PB", 1, Paper::Silent),
        ablation("-SS", 2, Paper::Silent),
        ablation("-ED", 3, Paper::Is(2143.0 / 4120.0)),
        ablation("-OL", 4, Paper::Is(2143.0 / 4120.0 / 7.4)),
    ],
    workload: game,
};

/// Figure 11.
pub(super) const TRAFFIC: Features = Features {
    name: "nexus-figure11",
    about: "Nexus, Figure 11: features turned off one after the other, traffic analysis on 16 GPUs",
    ablations: &[
        ablation("Nexus", 0, Paper::Is(1.0)),
        ablation("-QA", 1, Paper::Is(433.0 / 534.0)),
        ablation("-SS", 2, Paper::Silent),
        ablation("-ED", 3, Paper::Is(326.0 / 534.0)),
        ablation("-OL", 4, Paper::Is(216.0 / 534.0)),
        CARRIED,
    ],
    workload: traffic,
};

fn game(ablation: Ablation, effort: Effort) -> Workload {
    let copies = if ablation.off >= 1 { GAMES } else { 1 };
    let resnet = on_1080ti("ResNet50").with_slo(GAME_SLO_MS);
    let both = [(LENET, DIGITS), (resnet, 1.0)];
    let models = both.iter().flat_map(|(model, _)| std::iter::repeat_n(ablation.run(*model), copies));
    let share = |at: usize| both[at / copies].1 * ((at % copies) as f64 + 1.0).powf(-0.9);
    let setting = Setting::new(GPUS, models, effort).shared(share).arriving(&Arrival::Uniform);
    setting.lasting(2.0, effort.choose(6.0, 60.0)).workload().clone()
}

fn traffic(ablation: Ablation, effort: Effort) -> Workload {
    let face = on_1080ti("VGG16").with_slo(TRAFFIC_SLO_MS);
    let models = [SSD, GOOGLENET, face].map(|model| ablation.run(model));
    let stage = |(at, name): (usize, &str)| QueryStage {
        name: name.to_owned(),
        model: ModelId(at as u32),
        input: match at.checked_sub(1) {
            None => StageInput::Root,
            Some(at) => StageInput::each(0, ITEMS[at]),
        },
    };
    let graph = QueryGraph {
        name: "traffic".to_owned(),
        slo: Nanos::from_millis_f64(models[0].slo_ms),
        stages: ["detect", "cars", "faces"].into_iter().enumerate().map(stage).collect(),
    };
    let setting =
        Setting::new(GPUS, models, effort).shared(|_| 0.0).lasting(11.0, effort.choose(40.0, 300.0));
    let mut workload = setting.workload().clone();
    workload.models.iter_mut().for_each(|model| model.share = 0.0);
    let queries = vec![WorkloadQuery { graph, share: 1.0, arrival: Arrival::Uniform }];
    Workload { queries, split: ablation.split, ..workload }
}

impl Features {
    fn over(&self, table: &Table, ablation: &Ablation, all: &Ablation) -> f64 {
        let of = |name: &str| table.number(&[("features", name)], "goodput_rps");
        of(ablation.name) / of(all.name)
    }
}

impl Experiment for Features {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn columns(&self) -> &'static [&'static str] {
        &["features", "goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let workload = self.workload;
        let job = |&ablation: &Ablation| {
            Job::new(1e6, move || {
                let goodput = ablation.system().goodput_rps(&workload(ablation, effort))?;
                Ok(vec![vec![ablation.name.to_owned(), cell(goodput, 1)]])
            })
        };
        self.ablations.iter().map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let goodputs =
            self.ablations.iter().map(|one| table.number(&[("features", one.name)], "goodput_rps"));
        let bars = NEXUS.series(Shape::bar_beside(0, 1), (0..).map(f64::from).zip(goodputs));
        let panel = Panel {
            title: "each without what those before it are without".to_owned(),
            x: Axis::named("features", self.ablations.iter().map(|one| one.name.to_owned())),
            y: Axis::up_to("goodput (requests or queries/s)", table.highest("goodput_rps")),
            series: vec![bars],
        };
        Figure { title: self.about.to_owned(), columns: 1, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let off = || self.ablations.iter().filter(|one| one.off > 0);
        let claim = |one: &Ablation| {
            let what = format!("goodput with {} off, over that of all features", one.name);
            Claim::new(what, one.paper, self.over(table, one, &self.ablations[0]), Unit::Times)
        };
        let carried = self.ablations.iter().find(|one| one.name == CARRIED.name);
        let over_carried = carried.into_iter().flat_map(|carried| {
            off().map(|one| {
                let what = format!("goodput with {} off, over that of all features, carried", one.name);
                Claim::new(what, one.paper, self.over(table, one, carried), Unit::Times)
            })
        });
        off().map(claim).chain(over_carried).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_turned_off_one_after_the_other() {
        let effort = Effort { full: false, seed: 1 };
        let models: Vec<_> = GAME.ablations.iter().map(|one| game(*one, effort).models.len()).collect();
        assert_eq!(models, [2, 40, 40, 40, 40]);
        let traffics = || TRAFFIC.ablations.iter().map(|one| traffic(*one, effort));
        let splits: Vec<_> = traffics().map(|workload| workload.split).collect();
        use DeadlineSplit::{Carried, Even, Nexus};
        assert_eq!(splits, [Nexus, Even, Even, Even, Even, Carried]);
        let alone = |workload: Workload| workload.models[0].profile.latency(1).as_millis_f64();
        let alone: Vec<_> = traffics().map(alone).collect();
        assert_eq!(alone, [47.0, 47.0, 47.0, 47.0, 57.0, 47.0]);
        let shares: f64 = game(GAME.ablations[1], effort).models[..GAMES].iter().map(|one| one.share).sum();
        assert!((shares - 6.0 / 7.0).abs() < 1e-9);
    }
}
