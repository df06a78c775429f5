//! What Tables C.1 and C.2 of Yu's dissertation depend on that it does not give: the part of a
//! batch's time that is fixed, the load, and one at a time the arrivals, the largest batch and a
//! time before each batch. For each setting the rows of [`super::orloj_tables`] in which ORLOJ is
//! near the dissertation's; for some also how this engine's default compares with ORLOJ.
//!
//! About three minutes of one core.

use super::orloj_tables::{
    AS_GOOD, NEAR, ORLOJ, OrlojSetting, PaperRow, REQUESTS, SLOS, in_paper, number, of_setting, rows,
};
use super::systems::{DEFAULT, TUNED};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Rows, Unit, cell};
use std::io;
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_scheduler::workload::Arrival;

/// The fixed parts and the loads, each with each.
const FIXED_PARTS: [f64; 6] = [0.5, 0.7, 0.8, 0.85, 0.9, 0.95];
const LOADS: [f64; 8] = [0.8, 1.0, 1.2, 1.4, 1.5, 1.6, 1.8, 2.0];

/// The fixed parts and loads in which the default runs too.
const WITH_DEFAULT: [(f64, f64); 5] = [(0.5, 1.0), (0.7, 1.2), (0.8, 1.4), (0.85, 1.5), (0.9, 1.6)];

/// The fixed parts and loads whose means are drawn.
const DRAWN: [(f64, f64); 4] = [(0.5, 1.0), (0.5, 1.5), (0.85, 1.0), (0.85, 1.5)];

/// A setting, with the name of what is varied in it.
type VariedSetting = (&'static str, OrlojSetting);

fn settings() -> Vec<VariedSetting> {
    let grid = FIXED_PARTS.iter().flat_map(|&fixed_part| {
        LOADS.map(|load| (GRID, OrlojSetting { fixed_part, load, ..OrlojSetting::NEAREST }))
    });
    let arrivals = [Arrival::Uniform, Arrival::Gamma(3.0), Arrival::Gamma(0.3)];
    let arrivals = arrivals.map(|arrival| ("arrivals", OrlojSetting { arrival, ..OrlojSetting::NEAREST }));
    let batches =
        [2, 4, 8, 32].map(|max_batch| ("batch", OrlojSetting { max_batch, ..OrlojSetting::NEAREST }));
    let delays = [0.01, 0.05, 0.2].map(|delay| ("delay", OrlojSetting { delay, ..OrlojSetting::NEAREST }));
    grid.chain(arrivals).chain(batches).chain(delays).collect()
}

/// The name of what is varied where that is the fixed part and the load.
const GRID: &str = "fixed part and load";

fn name_of(arrival: &Arrival) -> String {
    match arrival {
        Arrival::Uniform => "uniform".to_owned(),
        Arrival::Gamma(shape) => format!("gamma {shape}"),
        _ => "Poisson".to_owned(),
    }
}

/// Runs a setting: a row for each SLO.
fn run(varied: &str, setting: &OrlojSetting, effort: Effort) -> io::Result<Rows> {
    let with_default = varied == GRID && WITH_DEFAULT.contains(&(setting.fixed_part, setting.load));
    let of_slo = |slo: &str| -> io::Result<Vec<String>> {
        let (mut count, mut near, mut sum, mut paper_sum) = (0, 0, 0.0, 0.0);
        let (mut as_good, mut ahead) = ([0; 2], [0.0; 2]);
        for PaperRow { case, .. } in rows().filter(|row| row.is_synthetic() && row.slo == slo) {
            let workload = of_setting(case, number(slo), effort, setting);
            let finished = 1.0 - ORLOJ.run(&workload)?.bad_rate;
            let paper = number(in_paper(case, slo));
            count += 1;
            near += u32::from((finished - paper).abs() <= NEAR);
            sum += finished;
            paper_sum += paper;
            if with_default {
                for (at, system) in [DEFAULT, TUNED].iter().enumerate() {
                    let default = 1.0 - system.run(&workload)?.bad_rate;
                    as_good[at] += u32::from(default >= finished - AS_GOOD);
                    ahead[at] += default - finished;
                }
            }
        }
        let mean = |sum: f64| cell(sum / f64::from(count), 3);
        let default = (0..2).flat_map(|at| match with_default {
            true => [as_good[at].to_string(), mean(ahead[at])],
            false => [String::new(), String::new()],
        });
        let OrlojSetting { fixed_part, load, arrival, max_batch, delay } = setting;
        let setting = [varied.to_owned(), fixed_part.to_string(), load.to_string(), name_of(arrival)];
        let setting = setting.into_iter().chain([max_batch.to_string(), delay.to_string(), slo.to_owned()]);
        let found = [near.to_string(), mean(sum), mean(paper_sum)];
        Ok(setting.chain(found).chain(default).collect())
    };
    SLOS.into_iter().map(of_slo).collect()
}

/// The experiment.
pub(super) struct Settings;

impl Settings {
    /// Returns the rows that are near in the setting of these keys, of all SLOs.
    fn near(table: &Table, keys: &[(&str, &str)]) -> f64 {
        let all = SLOS.map(|slo| {
            let keys: Vec<_> = keys.iter().copied().chain([("slo", slo)]).collect();
            table.number(&keys, "near")
        });
        all.iter().sum()
    }
}

impl Experiment for Settings {
    fn name(&self) -> &'static str {
        "orloj-settings"
    }

    fn about(&self) -> &'static str {
        "ORLOJ, Tables C.1 and C.2: rows near the dissertation's by what it does not give"
    }

    fn columns(&self) -> &'static [&'static str] {
        &[
            "varied",
            "fixed_part",
            "load",
            "arrivals",
            "max_batch",
            "delay",
            "slo",
            "near",
            "finished",
            "paper",
            "default_as_good",
            "default_ahead",
            "tuned_as_good",
            "tuned_ahead",
        ]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let weight =
            effort.choose(REQUESTS.0, REQUESTS.1) * rows().filter(PaperRow::is_synthetic).count() as f64;
        let job = |(varied, setting): VariedSetting| Job::new(weight, move || run(varied, &setting, effort));
        settings().into_iter().map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let of_part = |(at, part): (usize, &f64)| {
            let part = part.to_string();
            let near = |load: f64| {
                let load = load.to_string();
                Settings::near(table, &[("varied", GRID), ("fixed_part", &part), ("load", &load)])
            };
            Series {
                label: format!("fixed part {part}"),
                colour: COLOURS[at],
                shape: Shape::Marked,
                points: LOADS.map(|load| (load, near(load))).into(),
            }
        };
        let near = Panel {
            title: "Tables C.1 and C.2".to_owned(),
            x: Axis::up_to("load over that of requests one by one", 2.0),
            y: Axis::up_to("rows within 0.05, of 65", 65.0),
            series: FIXED_PARTS.iter().enumerate().map(of_part).collect(),
        };
        let curve = |at: usize, label: String, column: &str, (part, load): (f64, f64)| {
            let (part, load) = (part.to_string(), load.to_string());
            let keys = [("varied", GRID), ("fixed_part", part.as_str()), ("load", load.as_str())];
            let points = table.percents(&keys, "slo", column);
            Series { label, colour: COLOURS[at], shape: Shape::Marked, points }
        };
        let paper = curve(0, "the dissertation".to_owned(), "paper", DRAWN[0]);
        let of_setting = |(at, (part, load)): (usize, (f64, f64))| {
            curve(at + 1, format!("fixed part {part}, load {load}"), "finished", (part, load))
        };
        let means = Panel {
            title: "means over the 13 cases".to_owned(),
            x: Axis::up_to("SLO over the 99th percentile", 5.0),
            y: Axis::up_to("requests in time (%)", 100.0),
            series: std::iter::once(paper).chain(DRAWN.into_iter().enumerate().map(of_setting)).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: vec![near, means] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        let mut claim = |what: String, here, unit| claims.push(Claim::new(what, Paper::Silent, here, unit));
        for part in FIXED_PARTS {
            let part = part.to_string();
            let of = |load: f64| {
                let text = load.to_string();
                (Settings::near(table, &[("varied", GRID), ("fixed_part", &part), ("load", &text)]), load)
            };
            let best = LOADS
                .map(of)
                .into_iter()
                .fold((f64::NEG_INFINITY, 0.0), |a, b| if b.0 > a.0 { b } else { a });
            let what = format!("rows of 65 within 0.05, fixed part {part}, at the best load, {}", best.1);
            claim(what, best.0, Unit::Count);
        }
        for slo in SLOS {
            let keys = [("varied", GRID), ("fixed_part", "0.85"), ("load", "1.5"), ("slo", slo)];
            let what =
                format!("of these, SLO {slo} times the 99th percentile, fixed part 0.85, load 1.5, of 13");
            claim(what, table.number(&keys, "near"), Unit::Count);
        }
        for (varied, column, unit) in [
            ("arrivals", "arrivals", ""),
            ("batch", "max_batch", " at most"),
            ("delay", "delay", " of a run"),
        ] {
            let mut seen: Vec<&str> = Vec::new();
            let varied_rows = [("varied", varied)];
            for row in table.having(&varied_rows) {
                let value = row.text(column);
                if !seen.contains(&value) {
                    seen.push(value);
                    let what = format!("rows of 65 within 0.05, there with {varied} {value}{unit}");
                    claim(what, Settings::near(table, &[("varied", varied), (column, value)]), Unit::Count);
                }
            }
        }
        for (part, load) in WITH_DEFAULT {
            let (part, load) = (part.to_string(), load.to_string());
            let sum = |column: &str| -> f64 {
                let keys = [("varied", GRID), ("fixed_part", part.as_str()), ("load", load.as_str())];
                table.having(&keys).map(|row| row.number(column)).sum()
            };
            let of = format!("fixed part {part}, load {load}");
            for (label, name) in [("the default", "default"), ("the default, tuned,", "tuned")] {
                let what =
                    format!("rows of 65 in which {label} serves as many as ORLOJ, to half a percent, {of}");
                claim(what, sum(&format!("{name}_as_good")), Unit::Count);
                let ahead = sum(&format!("{name}_ahead")) / SLOS.len() as f64;
                claim(format!("{label} less ORLOJ, mean of 65 rows, {of}"), ahead, Unit::Percent);
            }
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_setting_is_of_the_grid_and_no_setting_comes_twice() {
        let all = settings();
        assert!(all.contains(&(GRID, OrlojSetting::NEAREST)));
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{one:?}");
        }
    }
}
