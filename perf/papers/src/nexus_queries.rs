//! Nexus's Figure 17: what the division of a query's SLO over its stages is worth. SSD, then
//! Inception gamma times, on 8 GPUs; gamma 0.1, 1 and 10, SLO 300 to 500 ms; and this engine's
//! split beside Nexus's and the even one.
//!
//! The paper gives SSD's time for a batch of one (47 ms, section 7.3) and no further profile. Here
//! l(b) of SSD is 20 b + 27 ms, and Inception is InceptionV3 of Symphony's Table 5, for the same
//! GPU. Beside Poisson arrivals there are bursty ones, of gamma shape 0.1: their rate changes
//! within an epoch.
//!
//! About two minutes of one core.

use super::systems::{DEFAULT, NEXUS, System, TUNED};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_perf::zoo::{Model, zoo_1080ti};
use symphony_scheduler::query::{DeadlineSplit, QueryGraph, QueryStage, StageInput};
use symphony_scheduler::workload::{Arrival, Workload, WorkloadModel, WorkloadQuery};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

const SLOS_MS: [u32; 3] = [300, 400, 500];
const GAMMAS: [f64; 3] = [0.1, 1.0, 10.0];
const ARRIVALS: [(&str, Arrival); 2] = [("Poisson", Arrival::Poisson), ("bursty", Arrival::Gamma(0.1))];
const SYSTEMS: [System; 3] = [NEXUS, DEFAULT, TUNED];

/// Seconds of each run, and under `--full`: several epochs of the split.
const SECONDS: (u64, u64) = (100, 300);

/// About how many requests a goodput search simulates, per second of each run.
const SEARCH_WEIGHT: f64 = 5_000.0;

/// One point of the figure.
#[derive(Clone, Copy)]
struct QueryCase {
    slo_ms: u32,
    gamma: f64,
    arrivals: &'static (&'static str, Arrival),
    split: (DeadlineSplit, &'static str),
}

fn cases() -> impl Iterator<Item = QueryCase> {
    let splits = DeadlineSplit::ALL.map(|split| (split.0, split.1));
    let axes = ARRIVALS.iter().flat_map(|arrivals| GAMMAS.map(|gamma| (arrivals, gamma)));
    let points = axes.flat_map(|(arrivals, gamma)| SLOS_MS.map(|slo_ms| (arrivals, gamma, slo_ms)));
    points.flat_map(move |(arrivals, gamma, slo_ms)| {
        splits.map(|split| QueryCase { slo_ms, gamma, arrivals, split })
    })
}

impl QueryCase {
    fn workload(&self, effort: Effort) -> Workload {
        let slo_ms = f64::from(self.slo_ms);
        let inception = zoo_1080ti().into_iter().find(|model| model.name == "InceptionV3");
        let inception = inception.expect("Table 5 has InceptionV3");
        let ssd = Model { name: "SSD", alpha_ms: 20.0, beta_ms: 27.0, slo_ms };
        let model = |model: Model<'_>| WorkloadModel {
            share: 0.0,
            ..WorkloadModel::new(model.name, model.profile(), Nanos::from_millis_f64(slo_ms))
        };
        let stage = |name: &str, model: u32, input| QueryStage {
            name: name.to_owned(),
            model: ModelId(model),
            input,
        };
        let graph = QueryGraph {
            name: "traffic".to_owned(),
            slo: Nanos::from_millis_f64(slo_ms),
            stages: vec![
                stage("detect", 0, StageInput::Root),
                stage("recognise", 1, StageInput::each(0, self.gamma)),
            ],
        };
        Workload {
            seed: effort.seed,
            warmup: Nanos::from_secs(11),
            duration: Nanos::from_secs(effort.choose(SECONDS.0, SECONDS.1)),
            models: vec![model(ssd), model(inception.with_slo(slo_ms))],
            queries: vec![WorkloadQuery { graph, share: 1.0, arrival: self.arrivals.1.clone() }],
            split: self.split.0,
            ..Workload::of_models(8, 1.0, Vec::new())
        }
    }
}

/// Figure 17.
pub(super) struct QuerySplits;

/// Returns the goodput of each split in a case: carried, Nexus's and the even one.
fn goodputs(table: &Table, system: System, arrivals: &str, gamma: &str, slo: &str) -> [f64; 3] {
    DeadlineSplit::ALL.map(|(_, split, _)| {
        let keys = [
            ("arrivals", arrivals),
            ("gamma", gamma),
            ("slo_ms", slo),
            ("system", system.name),
            ("split", split),
        ];
        table.number(&keys, "goodput_qps")
    })
}

/// Returns those of every gamma and SLO.
fn all(table: &Table, system: System, arrivals: &str) -> Vec<[f64; 3]> {
    let slos = table.distinct("slo_ms");
    let of_gamma = |gamma: String| -> Vec<[f64; 3]> {
        slos.iter().map(|slo| goodputs(table, system, arrivals, &gamma, slo)).collect()
    };
    table.distinct("gamma").into_iter().flat_map(of_gamma).collect()
}

impl Experiment for QuerySplits {
    fn name(&self) -> &'static str {
        "nexus-queries"
    }

    fn about(&self) -> &'static str {
        "Nexus, Figure 17: goodput of two-stage queries by the split of their SLO"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["arrivals", "gamma", "slo_ms", "system", "split", "goodput_qps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let pairs = cases().flat_map(|case| SYSTEMS.map(|system| (case, system)));
        let job = |(case, system): (QueryCase, System)| {
            let weight = SEARCH_WEIGHT * effort.choose(SECONDS.0, SECONDS.1) as f64 * (1.0 + case.gamma);
            Job::new(weight, move || {
                let goodput = system.goodput_rps(&case.workload(effort))?;
                Ok(vec![vec![
                    case.arrivals.0.to_owned(),
                    cell(case.gamma, 1),
                    case.slo_ms.to_string(),
                    system.name.to_owned(),
                    case.split.1.to_owned(),
                    cell(goodput, 2),
                ]])
            })
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let gammas = table.distinct("gamma");
        let panel = |(arrivals, gamma): (&str, &String)| {
            let series = DeadlineSplit::ALL.iter().enumerate().map(|(at, (_, split, _))| Series {
                label: (*split).to_owned(),
                colour: COLOURS[at],
                shape: Shape::Marked,
                points: table.points(
                    &[("arrivals", arrivals), ("gamma", gamma), ("system", DEFAULT.name), ("split", split)],
                    "slo_ms",
                    "goodput_qps",
                ),
            });
            let highest =
                SLOS_MS.iter().flat_map(|slo| goodputs(table, DEFAULT, arrivals, gamma, &slo.to_string()));
            Panel {
                title: format!("{arrivals} arrivals, gamma {gamma}"),
                x: Axis::between("SLO (ms)", 300.0, 500.0),
                y: Axis::up_to("goodput (queries/s)", highest.fold(0.0, f64::max)),
                series: series.collect(),
            }
        };
        let panels = ARRIVALS.iter().flat_map(|arrivals| gammas.iter().map(move |gamma| (arrivals.0, gamma)));
        let title = format!("{}, under {}", self.about(), DEFAULT.label);
        Figure { title, columns: 3, panels: panels.map(panel).collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (system, arrivals) in
            SYSTEMS.iter().flat_map(|system| ARRIVALS.iter().map(move |a| (system, a.0)))
        {
            let found = all(table, *system, arrivals);
            let mut claim = |what: &str, paper: Paper, part: &dyn Fn(&[f64; 3]) -> f64| {
                let ratios: Vec<f64> = found.iter().map(part).collect();
                let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
                let most = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
                for (which, value) in [("least", least), ("mean", mean), ("most", most)] {
                    let what = format!("{}, {arrivals} arrivals, {what}: {which}", system.label);
                    claims.push(Claim::new(what, paper, value, Unit::Times));
                }
            };
            let is_papers = system.name == NEXUS.name && arrivals == "Poisson";
            let paper = if is_papers { Paper::Between(1.13, 1.55) } else { Paper::Silent };
            claim("split nexus over even", paper, &|[_, nexus, even]| nexus / even);
            claim("split carried over nexus", Paper::Silent, &|[carried, nexus, _]| carried / nexus);
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_query_of_two_stages_in_which_gamma_items_follow_one() {
        for case in cases() {
            let workload = case.workload(Effort { full: false, seed: 1 });
            assert_eq!(workload.queries[0].graph.expected_items(), [1.0, case.gamma]);
            assert_eq!(workload.split, case.split.0);
        }
    }
}
