//! Symphony's Figure 7: goodput of 20 models like ResNet50 on 32 GPUs, by SLO, popularity and
//! burstiness.
//!
//! About a minute of one core.

use super::setting::{RESNET50, Setting};
use super::systems::{CLOCKWORK, COMPARED, NEXUS, PUBLISHED, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, Figure, Panel, Shape};
use symphony_scheduler::workload::Arrival;

const GPUS: usize = 32;
const MODELS: usize = 20;
const POPULARITIES: [&str; 2] = ["equal", "zipf 0.9"];
const ARRIVALS: [(&str, Arrival); 2] = [("Poisson", Arrival::Poisson), ("Gamma 0.05", Arrival::Gamma(0.05))];
const SLOS_MS: [f64; 8] = [15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 75.0, 100.0];
const FULL_SLOS_MS: [f64; 13] =
    [15.0, 17.5, 20.0, 22.5, 25.0, 30.0, 35.0, 40.0, 50.0, 60.0, 70.0, 85.0, 100.0];

/// Figure 7.
pub(super) struct Characteristics;

impl Experiment for Characteristics {
    fn name(&self) -> &'static str {
        "symphony-figure7"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 7: goodput of 20 equal models on 32 GPUs by SLO, popularity and arrivals"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["popularity", "arrivals", "slo_ms", "system", "goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let slos = effort.choose(&SLOS_MS[..], &FULL_SLOS_MS[..]);
        let mut jobs = Vec::new();
        for (popularity, arrivals) in POPULARITIES.iter().flat_map(|p| ARRIVALS.iter().map(move |a| (p, a))) {
            for (&slo_ms, &system) in slos.iter().flat_map(|slo| COMPARED.iter().map(move |s| (slo, s))) {
                let setting = Setting::copies(GPUS, RESNET50.with_slo(slo_ms), MODELS, effort);
                let setting = setting.arriving(&arrivals.1).lasting(2.0, effort.choose(10.0, 60.0));
                let setting = if *popularity == "equal" { setting } else { setting.zipf(0.9) };
                jobs.push(Job::new(setting.search_weight(), move || {
                    let goodput = system.goodput_rps(setting.workload())?;
                    let names = [popularity, arrivals.0, &slo_ms.to_string(), system.name].map(str::to_owned);
                    Ok(vec![names.into_iter().chain([cell(goodput, 1)]).collect()])
                }));
            }
        }
        jobs
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |popularity: &str, arrivals: &str| {
            let line = |system: &System| {
                let keys = [("popularity", popularity), ("arrivals", arrivals), ("system", system.name)];
                system.series(Shape::Marked, table.points(&keys, "slo_ms", "goodput_rps"))
            };
            Panel {
                title: format!("{popularity} popularity, {arrivals} arrivals"),
                x: Axis::up_to("SLO (ms)", table.highest("slo_ms")),
                y: Axis::up_to("goodput (requests/s)", table.highest("goodput_rps")),
                series: COMPARED.iter().map(line).collect(),
            }
        };
        let panels = POPULARITIES.iter().flat_map(|p| ARRIVALS.iter().map(|a| panel(p, a.0)));
        Figure { title: self.about().to_owned(), columns: 2, panels: panels.collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (popularity, (arrivals, _)) in
            POPULARITIES.iter().flat_map(|p| ARRIVALS.iter().map(move |a| (p, a)))
        {
            let goodput = |slo: &str, system: &str| {
                let keys = [
                    ("popularity", *popularity),
                    ("arrivals", *arrivals),
                    ("slo_ms", slo),
                    ("system", system),
                ];
                table.number(&keys, "goodput_rps")
            };
            for slo in ["20", "100"] {
                for other in [CLOCKWORK, NEXUS] {
                    let here = goodput(slo, other.name) / goodput(slo, PUBLISHED.name);
                    let what = format!(
                        "{popularity}, {arrivals}, SLO {slo} ms: {} over Symphony as published",
                        other.label
                    );
                    claims.push(Claim::new(what, Paper::Silent, here, Unit::Times));
                }
            }
        }
        claims
    }
}
