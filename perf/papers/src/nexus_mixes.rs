//! Nexus's Figure 16: squishy bin packing over batch-oblivious placement (section 7.2), 16 sessions
//! on 8 GPUs in five mixes.
//!
//! Profiles are those of Symphony's Table 5, for the same GPU. Where the paper gives no SLO, for
//! mixed rates, it is 100 ms here. The eight architectures are the first of that table of which two
//! batches of one run within the tighter SLO. Arrivals are uniform.
//!
//! About 20 s of one core.

use super::nexus_features::on_1080ti;
use super::setting::Setting;
use super::systems::{NEXUS, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, Figure, Panel, Shape};
use symphony_perf::zoo::{Model, zoo_1080ti};
use symphony_scheduler::policy::options::NexusPacking;
use symphony_scheduler::workload::Arrival;

const SESSIONS: usize = 16;
const GPUS: usize = 8;
const SLO_MS: f64 = 100.0;
/// The SLOs of a mix of SLOs, ms, from the first to the last.
const SLOS_MS: (f64, f64) = (50.0, 200.0);
/// The SLOs that each architecture has.
const TWO_SLOS_MS: [f64; 2] = [50.0, 100.0];

const MIXES: [&str; 5] =
    ["SLOs, Inception", "SLOs, ResNet", "rates, Inception", "rates, ResNet", "models and SLOs"];

const OBLIVIOUS: System =
    NEXUS.packed(NexusPacking::Oblivious).named("nexus-oblivious", "batch-oblivious").coloured(6);
const PACKINGS: [System; 2] = [NEXUS, OBLIVIOUS];

fn mix(name: &str, effort: Effort) -> Setting {
    let model = on_1080ti(if name.contains("Inception") { "InceptionV3" } else { "ResNet50" });
    let setting = match name.split(',').next() {
        Some("SLOs") => {
            let step = (SLOS_MS.1 - SLOS_MS.0) / (SESSIONS - 1) as f64;
            let slo = |at: usize| model.with_slo(SLOS_MS.0 + step * at as f64);
            Setting::new(GPUS, (0..SESSIONS).map(slo), effort)
        }
        Some("rates") => Setting::copies(GPUS, model.with_slo(SLO_MS), SESSIONS, effort).zipf(0.9),
        _ => {
            let quick = |model: &Model<'_>| 2.0 * model.latency_ms(1.0) <= TWO_SLOS_MS[0];
            let architectures = zoo_1080ti().into_iter().filter(quick).take(SESSIONS / TWO_SLOS_MS.len());
            let sessions = architectures.flat_map(|model| TWO_SLOS_MS.map(|slo| model.with_slo(slo)));
            Setting::new(GPUS, sessions, effort)
        }
    };
    setting.arriving(&Arrival::Uniform).lasting(2.0, effort.choose(20.0, 60.0))
}

/// Figure 16.
pub(super) struct Mixes;

impl Experiment for Mixes {
    fn name(&self) -> &'static str {
        "nexus-figure16"
    }

    fn about(&self) -> &'static str {
        "Nexus, Figure 16: goodput of 16 sessions on 8 GPUs by how they are placed"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["mix", "system", "goodput_rps"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let pairs = MIXES.iter().flat_map(|mix| PACKINGS.map(|system| (*mix, system)));
        let job = |(name, system): (&'static str, System)| {
            let setting = mix(name, effort);
            Job::new(setting.search_weight(), move || {
                let goodput = system.goodput_rps(setting.workload())?;
                Ok(vec![vec![name.to_owned(), system.name.to_owned(), cell(goodput, 1)]])
            })
        };
        pairs.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let bars = |(at, system): (usize, &System)| {
            let of = |mix: &str| table.number(&[("mix", mix), ("system", system.name)], "goodput_rps");
            system.series(Shape::bar_beside(at, PACKINGS.len()), (0..).map(f64::from).zip(MIXES.map(of)))
        };
        let panel = Panel {
            title: "mixes of SLOs, rates and models".to_owned(),
            x: Axis::named("mix", MIXES.map(str::to_owned)),
            y: Axis::up_to("goodput (requests/s)", table.highest("goodput_rps")),
            series: PACKINGS.iter().enumerate().map(bars).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 1, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let claim = |mix: &str| {
            let of = |system: System| table.number(&[("mix", mix), ("system", system.name)], "goodput_rps");
            let what = format!("mixed {mix}: squishy over batch-oblivious");
            Claim::new(what, Paper::Between(1.11, 1.64), of(NEXUS) / of(OBLIVIOUS), Unit::Times)
        };
        MIXES.map(claim).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mix_has_sixteen_sessions_on_eight_gpus() {
        let effort = Effort { full: false, seed: 1 };
        for name in MIXES {
            let setting = mix(name, effort);
            assert_eq!(
                (setting.workload().models.len(), setting.workload().gpus),
                (SESSIONS, GPUS),
                "{name}"
            );
        }
        let slos = |name| mix(name, effort).workload().models.iter().map(|one| one.slo).collect::<Vec<_>>();
        assert!(
            slos(MIXES[0]).is_sorted_by(|a, b| a < b)
                && slos(MIXES[2]).iter().all(|slo| *slo == slos(MIXES[2])[0])
        );
    }
}
