//! What the split of a query's SLO is worth where the load changes within an epoch of Nexus's
//! (section 6.2), which plans it by the means of the epoch before: chains of two and three stages,
//! a fan and a join, whose rate, number of items per item, or both go up and down every few
//! seconds. This engine's split beside Nexus's and the even one, under Nexus's scheduler and the
//! default, with its tuner and without.
//!
//! The models are those of [`super::nexus_queries`], and one as cheap as GoogLeNet. In the high
//! half of a cycle of 10 s a load that varies is four times that of the low half.
//!
//! The split is planned every 10 s here, where Nexus's epochs are of 30 to 60 s: each has one cycle
//! or more, and the same means.
//!
//! About three minutes of one core.

use super::nexus_features::on_1080ti;
use super::systems::{DEFAULT, NEXUS, System, TUNED};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_perf::zoo::Model;
use symphony_scheduler::load_phases::{LoadPhase, LoadPhases};
use symphony_scheduler::query::{DeadlineSplit, ItemDraw, QueryGraph, QueryStage, StageInput};
use symphony_scheduler::workload::{Arrival, Workload, WorkloadModel, WorkloadQuery};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

const GPUS: usize = 8;
const SLO_MS: f64 = 400.0;
/// The length of a half of a cycle, and the loads of both: within an epoch of the split.
const HALF: Nanos = Nanos::from_secs(5);
const LOADS: [f64; 2] = [0.4, 1.6];
const SYSTEMS: [System; 3] = [NEXUS, DEFAULT, TUNED];

/// Seconds of each run, and under `--full`.
const SECONDS: (u64, u64) = (100, 300);

/// About how many requests a goodput search simulates, per second of each run.
const SEARCH_WEIGHT: f64 = 10_000.0;

/// A name, and each stage but the root by its model and what it is after.
type QueryShape = (&'static str, &'static [(u32, After)]);

/// The shapes.
const SHAPES: [QueryShape; 4] = [
    ("two in a row", &[(1, After::Each(0, 3.0))]),
    ("three in a row", &[(1, After::Each(0, 1.0)), (2, After::Each(1, 3.0))]),
    ("a fan", &[(1, After::Each(0, 1.5)), (2, After::Each(0, 3.5))]),
    ("a fan and a join", &[(1, After::Each(0, 1.5)), (2, After::Each(0, 3.5)), (2, After::Join(1, 2))]),
];

/// What a stage is after.
#[derive(Clone, Copy)]
enum After {
    /// A stage, with so many items for each of its own on average.
    Each(usize, f64),
    /// Two stages.
    Join(usize, usize),
}

/// What varies, whether that is the rate and the items, and how a claim says it.
const VARIES: [(&str, bool, bool, &str); 4] = [
    ("nothing", false, false, "with a steady load"),
    ("the rate", true, false, "with a varying rate"),
    ("the items", false, true, "with varying items"),
    ("both", true, true, "with both varying"),
];

/// One point.
#[derive(Clone, Copy)]
struct PhasesCase {
    shape: &'static QueryShape,
    varies: &'static (&'static str, bool, bool, &'static str),
    split: (DeadlineSplit, &'static str),
}

fn cases() -> impl Iterator<Item = PhasesCase> {
    let splits = DeadlineSplit::ALL.map(|split| (split.0, split.1));
    let pairs = SHAPES.iter().flat_map(|shape| VARIES.iter().map(move |varies| (shape, varies)));
    pairs.flat_map(move |(shape, varies)| splits.map(|split| PhasesCase { shape, varies, split }))
}

fn phases() -> LoadPhases {
    LoadPhases::new(&LOADS.map(|factor| LoadPhase { lasts: HALF, factor })).expect("a load")
}

impl PhasesCase {
    fn graph(&self) -> QueryGraph {
        let stage = |(at, &(model, after)): (usize, &(u32, After))| {
            let input = match after {
                After::Join(one, other) => StageInput::All(vec![one, other]),
                After::Each(stage, gamma) if self.varies.2 => {
                    StageInput::Each { stage, gamma, draw: ItemDraw::Poisson, phases: phases() }
                }
                After::Each(stage, gamma) => {
                    StageInput::Each { stage, gamma, draw: ItemDraw::Poisson, phases: LoadPhases::default() }
                }
            };
            QueryStage { name: format!("stage-{}", at + 1), model: ModelId(model), input }
        };
        let root = QueryStage { name: "root".to_owned(), model: ModelId(0), input: StageInput::Root };
        let stages = std::iter::once(root).chain(self.shape.1.iter().enumerate().map(stage)).collect();
        QueryGraph { name: self.shape.0.to_owned(), slo: Nanos::from_millis_f64(SLO_MS), stages }
    }

    fn workload(&self, effort: Effort) -> Workload {
        let detector = Model { name: "SSD", alpha_ms: 20.0, beta_ms: 27.0, slo_ms: SLO_MS };
        let cheap = Model { name: "GoogLeNet", alpha_ms: 1.0, beta_ms: 3.2, slo_ms: SLO_MS };
        let model = |model: Model<'_>| WorkloadModel {
            share: 0.0,
            ..WorkloadModel::new(model.name, model.profile(), Nanos::from_millis_f64(SLO_MS))
        };
        let arrival = match self.varies.1 {
            true => Arrival::Phased(Arrival::Poisson.into(), phases()),
            false => Arrival::Poisson,
        };
        Workload {
            seed: effort.seed,
            // An epoch of the split.
            warmup: Nanos::from_secs(10),
            duration: Nanos::from_secs(effort.choose(SECONDS.0, SECONDS.1)),
            models: [detector, on_1080ti("InceptionV3").with_slo(SLO_MS), cheap].map(model).into(),
            queries: vec![WorkloadQuery { graph: self.graph(), share: 1.0, arrival }],
            split: self.split.0,
            ..Workload::of_models(GPUS, 1.0, Vec::new())
        }
    }
}

/// The row of the bound, in the place of a split.
const BOUND: &str = "bound";

impl PhasesCase {
    /// Returns the rate that keeps all GPUs busy in the high half, each with the batches that need
    /// the least GPU time of all whose times fit into the SLO along each path: what no split and no
    /// scheduler can pass for longer. It is f(root, SLO) of Nexus's section 6.2, with the load of
    /// the high half in place of the mean.
    fn bound_qps(&self, effort: Effort) -> f64 {
        let workload = self.workload(effort);
        let (rate_factor, items_factor) =
            (if self.varies.1 { LOADS[1] } else { 1.0 }, if self.varies.2 { LOADS[1] } else { 1.0 });
        // Of each stage the model, the depth and the items of a query. What is at one depth has the
        // same time.
        let mut stages: Vec<(u32, usize, f64)> = vec![(0, 0, 1.0)];
        for &(model, after) in self.shape.1 {
            let (depth, items) = match after {
                After::Each(stage, gamma) => (stages[stage].1, stages[stage].2 * gamma * items_factor),
                After::Join(one, other) => (stages[one].1.max(stages[other].1), 1.0),
            };
            stages.push((model, depth + 1, items));
        }
        let cost = |(model, _, items): (u32, usize, f64), ms: usize| {
            let profile = &workload.models[model as usize].profile;
            let fits = |size: &usize| profile.latency(*size) <= Nanos::from_millis(ms as u64);
            let of = |size: usize| profile.latency(size).as_secs_f64() / size as f64;
            items * (1..=profile.max_batch()).take_while(fits).map(of).fold(f64::INFINITY, f64::min)
        };
        let whole = SLO_MS as usize;
        let deepest = stages.iter().map(|stage| stage.1).max().unwrap_or(0);
        let mut least = vec![0.0; whole + 1];
        for depth in (0..=deepest).rev() {
            let at_depth: Vec<_> = stages.iter().filter(|stage| stage.1 == depth).collect();
            let own: Vec<f64> =
                (0..=whole).map(|ms| at_depth.iter().map(|stage| cost(**stage, ms)).sum()).collect();
            let within =
                |ms: usize| (0..=ms).map(|part| own[part] + least[ms - part]).fold(f64::INFINITY, f64::min);
            least = (0..=whole).map(within).collect();
        }
        GPUS as f64 / least[whole] / rate_factor
    }
}

/// The experiment.
pub(super) struct QueryPhases;

/// Returns the goodput of each split: carried, Nexus's and the even one.
fn goodputs(table: &Table, system: System, shape: &str, varies: &str) -> [f64; 3] {
    DeadlineSplit::ALL.map(|(_, split, _)| {
        let keys = [("shape", shape), ("varies", varies), ("system", system.name), ("split", split)];
        table.number(&keys, "goodput_qps")
    })
}

impl Experiment for QueryPhases {
    fn name(&self) -> &'static str {
        "query-phases"
    }

    fn about(&self) -> &'static str {
        "Queries whose load varies within an epoch: goodput by the split of their SLO"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["shape", "varies", "system", "split", "goodput_qps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let pairs = cases().flat_map(|case| SYSTEMS.map(|system| (case, system)));
        let job = |(case, system): (PhasesCase, System)| {
            Job::new(SEARCH_WEIGHT * effort.choose(SECONDS.0, SECONDS.1) as f64, move || {
                let goodput = system.goodput_rps(&case.workload(effort))?;
                let texts = [case.shape.0, case.varies.0, system.name, case.split.1].map(str::to_owned);
                Ok(vec![texts.into_iter().chain([cell(goodput, 2)]).collect()])
            })
        };
        let bounds = move || {
            let row = |case: PhasesCase| {
                let texts = [case.shape.0, case.varies.0, "", BOUND].map(str::to_owned);
                texts.into_iter().chain([cell(case.bound_qps(effort), 2)]).collect()
            };
            Ok(cases().filter(|case| case.split.0 == DeadlineSplit::default()).map(row).collect())
        };
        pairs.map(job).chain([Job::new(SEARCH_WEIGHT, bounds)]).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |(system, (shape, _)): (&System, &QueryShape)| {
            let of = |varies: &(&str, bool, bool, &str)| goodputs(table, *system, shape, varies.0);
            let series = DeadlineSplit::ALL.iter().enumerate().map(|(at, (_, split, _))| Series {
                label: (*split).to_owned(),
                colour: COLOURS[at],
                shape: Shape::bar_beside(at, DeadlineSplit::ALL.len()),
                points: (0..).map(f64::from).zip(VARIES.iter().map(|varies| of(varies)[at])).collect(),
            });
            let highest = VARIES.iter().flat_map(of).fold(0.0, f64::max);
            Panel {
                title: format!("{shape}, {}", system.label),
                x: Axis::named("what varies", VARIES.map(|varies| varies.0.to_owned())),
                y: Axis::up_to("goodput (queries/s)", highest),
                series: series.collect(),
            }
        };
        let panels = SYSTEMS.iter().flat_map(|system| SHAPES.iter().map(move |shape| (system, shape)));
        Figure { title: self.about().to_owned(), columns: 2, panels: panels.map(panel).collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for system in SYSTEMS {
            for (varies, _, _, says) in VARIES {
                let ratios = SHAPES.map(|(shape, _)| {
                    let [carried, nexus, _] = goodputs(table, system, shape, varies);
                    carried / nexus
                });
                for ((shape, _), ratio) in SHAPES.iter().zip(ratios) {
                    let what = format!("{}, {shape}, {says}: carried over nexus", system.label);
                    claims.push(Claim::new(what, Paper::Silent, ratio, Unit::Times));
                }
                let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
                let what = format!("{}, {says}: carried over nexus, mean", system.label);
                claims.push(Claim::new(what, Paper::Silent, mean, Unit::Times));
                let bounds = SHAPES.map(|(shape, _)| {
                    let keys = [("shape", shape), ("varies", varies), ("split", BOUND)];
                    table.number(&keys, "goodput_qps") / goodputs(table, system, shape, varies)[1]
                });
                let mean = bounds.iter().sum::<f64>() / bounds.len() as f64;
                let what = format!("{}, {says}: the bound over nexus, mean", system.label);
                claims.push(Claim::new(what, Paper::Silent, mean, Unit::Times));
            }
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_has_the_mean_of_what_does_not() {
        let effort = Effort { full: false, seed: 1 };
        for case in cases() {
            let workload = case.workload(effort);
            let items = workload.queries[0].graph.expected_items();
            let steady = PhasesCase { varies: &VARIES[0], ..case }.graph().expected_items();
            assert_eq!(items, steady, "{} {}", case.shape.0, case.varies.0);
            assert_eq!(
                (workload.split, workload.queries[0].arrival != Arrival::Poisson),
                (case.split.0, case.varies.1)
            );
        }
    }

    #[test]
    fn the_bound_is_the_best_division_by_hand() {
        let case = cases().find(|case| case.shape.0 == "two in a row" && case.varies.3.contains("rate"));
        let bound = case.expect("the case").bound_qps(Effort { full: false, seed: 1 });
        // SSD in batches of 14, 307 ms, leaves 93 ms to batches of 42 of InceptionV3.
        let by_hand = 8e3 / (20.0 + 27.0 / 14.0 + 3.0 * (1.964 + 8.771 / 42.0)) / 1.6;
        assert!((bound / by_hand - 1.0).abs() < 1e-6, "{bound} {by_hand}");
    }
}
