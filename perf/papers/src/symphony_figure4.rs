//! Symphony's Figure 4: the goodput of holding batches back over that of the work-conserving
//! policy, over the settings of its Table 3 and mixed models. Table 3 has 7,560 settings; a run
//! takes an even sample of them, a larger one with `--full`.
//!
//! About 2 minutes of one core.

use super::setting::Setting;
use super::systems::{BETA_LAMBDA, DEFAULT, PUBLISHED, System, WORK_CONSERVING};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, Figure, GREY, Panel, Series, Shape};
use symphony_perf::zoo::{Model, zoo_1080ti};
use symphony_scheduler::workload::Arrival;

/// The models of Table 3, as measured on a GTX 1080 Ti.
const MODELS: [&str; 6] = ["DenseNet121", "InceptionV3", "ResNet50V2", "VGG16", "Xception", "BERT"];
const COPIES: [usize; 6] = [8, 16, 24, 32, 48, 64];
const GPUS_PER_MODEL: [f64; 7] = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0];
const SLOS_MS: [f64; 5] = [20.0, 25.0, 30.0, 40.0, 50.0];
const SHAPES: [f64; 6] = [0.1, 0.2, 0.3, 0.5, 0.7, 1.0];
/// Settings of all.
const ALL: usize = MODELS.len() * COPIES.len() * GPUS_PER_MODEL.len() * SLOS_MS.len() * SHAPES.len();
/// The 35 models of the paper's Table 5 together.
const MIXED: &str = "mixed";

/// The systems that are compared with the work-conserving policy.
const DEFERRING: [System; 3] = [PUBLISHED, BETA_LAMBDA, DEFAULT];

/// One setting of Table 3.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    panel: &'static str,
    model: &'static str,
    copies: usize,
    gpus_per_model: f64,
    /// The SLO; `None` for the mixed models, each of which has its own.
    slo_ms: Option<f64>,
    shape: f64,
}

impl Case {
    /// Setting number `at` of Table 3.
    fn of_table3(at: usize) -> Case {
        let mut rest = at;
        let mut digit = |count: usize| {
            let digit = rest % count;
            rest /= count;
            digit
        };
        Case {
            panel: "d",
            model: MODELS[digit(MODELS.len())],
            slo_ms: Some(SLOS_MS[digit(SLOS_MS.len())]),
            shape: SHAPES[digit(SHAPES.len())],
            gpus_per_model: GPUS_PER_MODEL[digit(GPUS_PER_MODEL.len())],
            copies: COPIES[digit(COPIES.len())],
        }
    }

    fn setting(&self, effort: Effort) -> Setting {
        let zoo = zoo_1080ti();
        let models: Vec<Model<'_>> = match self.slo_ms {
            None => zoo,
            Some(slo_ms) => {
                let named = zoo.into_iter().filter(|model| model.name == self.model);
                named.flat_map(|model| std::iter::repeat_n(model.with_slo(slo_ms), self.copies)).collect()
            }
        };
        let gpus = (models.len() as f64 * self.gpus_per_model).round() as usize;
        let setting = Setting::new(gpus, models, effort).arriving(&Arrival::Gamma(self.shape));
        setting.lasting_for(effort.choose(3_000.0, 10_000.0), effort.choose(3.0, 30.0))
    }

    /// The cells that name it.
    fn cells(&self) -> [String; 6] {
        let slo = self.slo_ms.map_or("own".to_owned(), |slo| slo.to_string());
        let Case { panel, model, copies, gpus_per_model, shape, .. } = self;
        [
            panel.to_string(),
            model.to_string(),
            copies.to_string(),
            gpus_per_model.to_string(),
            slo,
            shape.to_string(),
        ]
    }
}

/// The settings of panels (a), (b) and (c).
fn examples() -> Vec<Case> {
    let mut cases = Vec::new();
    for (gpus_per_model, shape) in
        [1.0, 2.0, 4.0].into_iter().flat_map(|gpus| [0.1, 1.0].map(|shape| (gpus, shape)))
    {
        cases.push(Case { panel: "a", model: MIXED, copies: 1, gpus_per_model, slo_ms: None, shape });
    }
    for shape in [0.1, 0.3, 1.0] {
        for (panel, model) in [("b", "DenseNet121"), ("c", "BERT")] {
            for slo_ms in [30.0, 50.0] {
                cases.push(Case {
                    panel,
                    model,
                    copies: 24,
                    gpus_per_model: 2.0,
                    slo_ms: Some(slo_ms),
                    shape,
                });
            }
        }
    }
    cases
}

/// `count` settings of Table 3, spread so that neighbours differ in every dimension.
fn sample(count: usize) -> impl Iterator<Item = Case> {
    // ALL times the golden ratio, made prime to ALL: each step lands as far as can be from the
    // settings before.
    let stride = 4673;
    (0..count.min(ALL)).map(move |at| Case::of_table3(at * stride % ALL))
}

/// Figure 4.
pub(super) struct Deferral;

impl Experiment for Deferral {
    fn name(&self) -> &'static str {
        "symphony-figure4"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 4: goodput of holding batches back over that of the work-conserving policy"
    }

    fn columns(&self) -> &'static [&'static str] {
        &[
            "panel",
            "model",
            "copies",
            "gpus_per_model",
            "slo_ms",
            "gamma_shape",
            "system",
            "goodput_rps",
            "relative",
        ]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let job = |case: Case| {
            let setting = case.setting(effort);
            Job::new(setting.search_weight() * (DEFERRING.len() + 1) as f64, move || {
                let goodput = |system: &System| system.goodput_rps(setting.workload());
                let base: f64 = goodput(&WORK_CONSERVING)?;
                let row = |system: &System| {
                    let found: f64 = goodput(system)?;
                    let cells = [system.name.to_owned(), cell(found, 1), cell(found / base, 4)];
                    Ok(case.cells().into_iter().chain(cells).collect())
                };
                DEFERRING.iter().map(row).collect()
            })
        };
        examples().into_iter().chain(sample(effort.choose(120, 600))).map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let panels = vec![
            example(table, "a", "(a) mixed models"),
            example(table, "b", "(b) 24 DenseNet121, 2 GPUs per model"),
            example(table, "c", "(c) 24 BERT, 2 GPUs per model"),
            all_cases(table),
        ];
        Figure { title: self.about().to_owned(), columns: 2, panels }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let published = |panel: &str, slo: Option<&str>| -> Vec<f64> {
            let keys = [("panel", panel), ("system", PUBLISHED.name)];
            let rows = table.having(&keys).filter(|row| slo.is_none_or(|slo| row.text("slo_ms") == slo));
            rows.map(|row| row.number("relative")).collect()
        };
        let least = |values: &[f64]| values.iter().copied().reduce(f64::min).unwrap_or(f64::NAN);
        let most = |values: &[f64]| values.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
        let (mixed, dense, bert) = (published("a", None), published("b", Some("30")), published("c", None));
        let mut claims = vec![
            Claim::new("(a) mixed models: least gain", Paper::Is(1.34), least(&mixed), Unit::Times),
            Claim::new("(a) mixed models: largest gain", Paper::Is(1.89), most(&mixed), Unit::Times),
            Claim::new("(b) DenseNet121, SLO 30 ms: least gain", Paper::Is(1.14), least(&dense), Unit::Times),
            Claim::new(
                "(b) DenseNet121, SLO 30 ms: largest gain",
                Paper::Is(2.52),
                most(&dense),
                Unit::Times,
            ),
            Claim::new("(c) BERT: least gain", Paper::Is(1.0), least(&bert), Unit::Times),
            Claim::new("(c) BERT: largest gain", Paper::Is(1.0), most(&bert), Unit::Times),
        ];
        for system in DEFERRING {
            let all: Vec<f64> = table
                .having(&[("panel", "d"), ("system", system.name)])
                .map(|row| row.number("relative"))
                .collect();
            let share =
                |least: f64| all.iter().filter(|&&gain| gain >= least).count() as f64 / all.len() as f64;
            let said = |paper: Paper| if system.name == PUBLISHED.name { paper } else { Paper::Silent };
            let of = format!("(d) {}", system.label);
            claims.extend([
                Claim::new(
                    format!("{of}: cases with 0.95 and more"),
                    said(Paper::AtLeast(0.95)),
                    share(0.95),
                    Unit::Percent,
                ),
                Claim::new(
                    format!("{of}: cases with 1.5 and more"),
                    said(Paper::AtLeast(0.10)),
                    share(1.5),
                    Unit::Percent,
                ),
                Claim::new(format!("{of}: largest gain"), said(Paper::AtLeast(2.0)), most(&all), Unit::Times),
            ]);
        }
        claims
    }
}

/// Bars for the settings of one of the first three panels.
fn example(table: &Table, panel: &str, title: &str) -> Panel {
    let keys = [("panel", panel), ("system", PUBLISHED.name)];
    let name = |row: super::table::Row<'_>| match row.text("slo_ms") {
        "own" => format!("{}x, {}", row.text("gpus_per_model"), row.text("gamma_shape")),
        slo => format!("{slo}, {}", row.text("gamma_shape")),
    };
    let names: Vec<String> = table.having(&keys).map(name).collect();
    let bars = |(at, system): (usize, &System)| {
        let keys = [("panel", panel), ("system", system.name)];
        let gains = table.having(&keys).map(|row| row.number("relative"));
        system.series(Shape::bar_beside(at, DEFERRING.len()), (0..).map(f64::from).zip(gains))
    };
    let end = names.len() as f64 - 0.4;
    let mut series: Vec<Series> = DEFERRING.iter().enumerate().map(bars).collect();
    series.push(even(vec![(-0.6, 1.0), (end, 1.0)]));
    let of_panel = [("panel", panel)];
    let highest = table.having(&of_panel).map(|row| row.number("relative")).fold(1.0, f64::max);
    let x = if panel == "a" { "GPUs per model, Gamma shape" } else { "SLO (ms), Gamma shape" };
    Panel {
        title: title.to_owned(),
        x: Axis::named(x, names),
        y: Axis::up_to("relative goodput", highest),
        series,
    }
}

/// The distribution over the sample of Table 3.
fn all_cases(table: &Table) -> Panel {
    let line = |system: &System| {
        let keys = [("panel", "d"), ("system", system.name)];
        let mut gains: Vec<f64> = table.having(&keys).map(|row| row.number("relative")).collect();
        gains.sort_by(f64::total_cmp);
        let last = gains.len().max(2) as f64 - 1.0;
        let points = gains.into_iter().enumerate().map(|(at, gain)| (at as f64 / last * 100.0, gain));
        system.series(Shape::Line, points)
    };
    let of_panel = [("panel", "d")];
    let highest = table.having(&of_panel).map(|row| row.number("relative")).fold(1.0, f64::max);
    let mut series: Vec<Series> = DEFERRING.iter().map(line).collect();
    series.push(even(vec![(0.0, 1.0), (100.0, 1.0)]));
    Panel {
        title: "(d) a sample of all cases".to_owned(),
        x: Axis::up_to("cases, by relative goodput (%)", 100.0),
        y: Axis::up_to("relative goodput", highest),
        series,
    }
}

fn even(points: Vec<(f64, f64)>) -> Series {
    Series { label: "work-conserving = 1".to_owned(), colour: GREY, shape: Shape::Dashed, points }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_setting_of_table_3_is_reached_once() {
        assert_eq!(ALL, 7_560);
        let all: HashSet<String> = sample(ALL).map(|case| case.cells().join(",")).collect();
        assert_eq!(all.len(), ALL);
    }

    #[test]
    fn a_sample_has_every_value_of_every_dimension() {
        let cases: Vec<Case> = sample(120).collect();
        for column in 1..6 {
            let values: HashSet<String> = cases.iter().map(|case| case.cells()[column].clone()).collect();
            assert!(values.len() >= 5, "{values:?}");
        }
    }
}
