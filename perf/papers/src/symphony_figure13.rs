//! Symphony's Figure 13: what the network's latency costs in goodput, 20 models like ResNet50 on 32
//! GPUs. The latency is what the scheduler allows for between its decision and the batch's start
//! (d_ctrl), as the paper's high percentile is.
//!
//! About 20 s of one core.

use super::setting::{RESNET50, Setting};
use super::systems::{DEFAULT, PUBLISHED};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;

const GPUS: usize = 32;
const MODELS: usize = 20;
const SLOS_MS: [f64; 4] = [20.0, 25.0, 50.0, 100.0];
/// Up to three times the paper's 99.99th percentile of RDMA, 33 us.
const RDMA_US: [f64; 5] = [0.0, 25.0, 50.0, 75.0, 100.0];
/// Tails of TCP; the paper's is 12 times the median.
const TCP_US: [f64; 7] = [0.0, 1_000.0, 2_000.0, 3_000.0, 4_000.0, 6_000.0, 8_000.0];

/// Figure 13.
pub(super) struct Latency;

impl Experiment for Latency {
    fn name(&self) -> &'static str {
        "symphony-figure13"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 13: goodput by network latency, 20 models on 32 GPUs"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["slo_ms", "latency_us", "system", "goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let mut jobs = Vec::new();
        let latencies = || RDMA_US.iter().chain(&TCP_US[1..]);
        for (slo_ms, &latency_us) in SLOS_MS.iter().flat_map(|&slo| latencies().map(move |us| (slo, us))) {
            for system in [PUBLISHED, DEFAULT] {
                let network =
                    Network { control: Nanos::from_millis_f64(latency_us / 1e3), ..Network::default() };
                let setting = Setting::copies(GPUS, RESNET50.with_slo(slo_ms), MODELS, effort);
                let setting = setting.network(network).lasting(2.0, effort.choose(10.0, 60.0));
                jobs.push(Job::new(setting.search_weight(), move || {
                    let goodput = system.goodput_rps(setting.workload())?;
                    let names = [slo_ms.to_string(), latency_us.to_string(), system.name.to_owned()];
                    Ok(vec![names.into_iter().chain([cell(goodput, 1)]).collect()])
                }));
            }
        }
        jobs
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |title: &str, unit: &str, per_unit: f64, latencies: &[f64]| {
            let most = latencies.last().copied().unwrap_or(0.0);
            let mut series = Vec::new();
            for (at, slo_ms) in SLOS_MS.iter().enumerate() {
                for (system, shape, of) in
                    [(PUBLISHED, Shape::Marked, "as published"), (DEFAULT, Shape::Dashed, "our default")]
                {
                    let keys = [("slo_ms", &*slo_ms.to_string()), ("system", system.name)];
                    let points = table.points(&keys, "latency_us", "goodput_rps");
                    let shown = points.into_iter().filter(|point| latencies.contains(&point.0));
                    series.push(Series {
                        label: format!("SLO {slo_ms} ms, {of}"),
                        colour: COLOURS[at],
                        shape,
                        points: shown.map(|(us, goodput)| (us / per_unit, goodput)).collect(),
                    });
                }
            }
            Panel {
                title: title.to_owned(),
                x: Axis::up_to(&format!("network latency ({unit})"), most / per_unit),
                y: Axis::up_to("goodput (requests/s)", table.highest("goodput_rps")),
                series,
            }
        };
        let panels = vec![
            panel("(left) within RDMA range", "us", 1.0, &RDMA_US),
            panel("(right) within TCP range", "ms", 1e3, &TCP_US),
        ];
        Figure { title: self.about().to_owned(), columns: 2, panels }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let goodput = |slo_ms: f64, us: &str, system: &str| {
            let slo = slo_ms.to_string();
            table.number(&[("slo_ms", &slo), ("latency_us", us), ("system", system)], "goodput_rps")
        };
        let mut claims = Vec::new();
        for (us, said) in [("25", "RDMA's"), ("4000", "TCP's")] {
            for slo_ms in SLOS_MS {
                let system = PUBLISHED.name;
                let here = 1.0 - goodput(slo_ms, us, system) / goodput(slo_ms, "0", system);
                let what = format!("SLO {slo_ms} ms: goodput lost by {us} us, {said} range");
                claims.push(Claim::new(what, Paper::Silent, here, Unit::Percent));
            }
        }
        claims
    }
}
