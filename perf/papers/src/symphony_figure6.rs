//! Symphony's Figure 6: goodput of mixed model zoos on 64 GPUs, all models, those that gain from
//! batching (beta over 2 alpha) and those that do not.
//!
//! About 20 s of one core: the A100's models serve 60 thousand requests a second.

use super::setting::Setting;
use super::systems::{CLOCKWORK, COMPARED, NEXUS, NEXUS_8, PUBLISHED, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, Figure, Panel, Shape};
use symphony_perf::zoo::{Model, zoo_1080ti, zoo_a100};

const GPUS: usize = 64;
const CARDS: [&str; 2] = ["1080Ti", "A100"];
/// The subsets of models by beta / alpha, as the paper names them.
const SUBSETS: [&str; 3] = ["all", "gt2", "lt2"];

fn models(card: &str, subset: &str) -> Vec<Model<'static>> {
    let mut models = if card == "A100" { zoo_a100() } else { zoo_1080ti() };
    models.retain(|model| {
        let gains = model.beta_ms / model.alpha_ms > 2.0;
        subset == "all" || gains == (subset == "gt2")
    });
    models
}

/// Figure 6.
pub(super) struct Zoos;

impl Experiment for Zoos {
    fn name(&self) -> &'static str {
        "symphony-figure6"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 6: goodput of mixed model zoos on 64 GPUs"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["gpu", "models", "system", "goodput_rps", "gpu_utilization", "mean_batch"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (card, subset) in CARDS.iter().flat_map(|card| SUBSETS.map(|subset| (*card, subset))) {
            let setting = Setting::new(GPUS, models(card, subset), effort);
            let setting = setting.lasting(2.0, effort.choose(20.0, 60.0));
            jobs.extend(COMPARED.iter().map(|&system| {
                let setting = setting.clone();
                Job::new(setting.search_weight(), move || {
                    let report = system.goodput(setting.workload())?;
                    let goodput = report.goodput_rps.unwrap_or(0.0);
                    let names = [card, subset, system.name].map(str::to_owned);
                    let found =
                        [cell(goodput, 1), cell(report.gpu_utilization, 4), cell(report.mean_batch, 2)];
                    Ok(vec![names.into_iter().chain(found).collect()])
                })
            }));
        }
        jobs
    }

    fn figure(&self, table: &Table) -> Figure {
        let panels = CARDS.iter().map(|card| {
            let of_card = [("gpu", *card)];
            let highest = table.having(&of_card).map(|row| row.number("goodput_rps")).fold(0.0, f64::max);
            let bars = |(at, system): (usize, &System)| {
                let goodputs = SUBSETS.map(|subset| goodput(table, card, subset, system.name));
                system.series(Shape::bar_beside(at, COMPARED.len()), (0..).map(f64::from).zip(goodputs))
            };
            Panel {
                title: format!("{GPUS} emulated {card}"),
                x: Axis::named("models", SUBSETS.map(str::to_owned)),
                y: Axis::up_to("goodput (requests/s)", highest),
                series: COMPARED.iter().enumerate().map(bars).collect(),
            }
        });
        Figure { title: self.about().to_owned(), columns: 2, panels: panels.collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (card, subset) in CARDS.iter().flat_map(|card| SUBSETS.map(|subset| (*card, subset))) {
            let paper = match (subset, card) {
                ("all", _) => Paper::Between(2.0, 2.4),
                ("gt2", "A100") => Paper::Is(5.7),
                ("gt2", _) => Paper::Is(3.5),
                (_, "A100") => Paper::Is(1.10),
                _ => Paper::Is(1.23),
            };
            for other in [CLOCKWORK, NEXUS, NEXUS_8] {
                let here =
                    goodput(table, card, subset, PUBLISHED.name) / goodput(table, card, subset, other.name);
                let what = format!("{card}, {subset}: Symphony as published over {}", other.label);
                claims.push(Claim::new(what, paper, here, Unit::Times));
            }
        }
        for (card, subset) in CARDS.iter().flat_map(|card| SUBSETS.map(|subset| (card, subset))) {
            let here = 1.0 - goodput(table, card, subset, "nexus-8") / goodput(table, card, subset, "nexus");
            let what = format!("{card}, {subset}: Nexus loses by 8 frontends instead of 1");
            claims.push(Claim::new(what, Paper::Between(0.11, 0.45), here, Unit::Percent));
        }
        for (card, subset) in CARDS.iter().flat_map(|card| SUBSETS.map(|subset| (card, subset))) {
            let default = goodput(table, card, subset, "symphony");
            let here = default / goodput(table, card, subset, "symphony-published");
            let what = format!("{card}, {subset}: this engine's default over Symphony as published");
            claims.push(Claim::new(what, Paper::Silent, here, Unit::Times));
        }
        claims
    }
}

fn goodput(table: &Table, card: &str, subset: &str, system: &str) -> f64 {
    table.number(&[("gpu", card), ("models", subset), ("system", system)], "goodput_rps")
}
