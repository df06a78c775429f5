//! Figures 4.13 and 4.14 of Yu's dissertation, both on the three-modal distribution of
//! [`super::orloj_tables`], with the SLO in multiples of the 99th percentile of the run times.
//!
//! 4.13 varies b, the rate of the delay that ORLOJ's priorities anticipate. 4.14 scales all run
//! times down, until what the scheduler takes itself matters. In virtual time it takes none. So a
//! time stands for it here that passes between each decision and the start of the batch, as
//! messages to a GPU and the decision itself would take: none, 0.1, 1 and 5 ms.
//!
//! The dissertation draws both without numbers. It says that b does not matter from 10^-6 to 10^-1,
//! and that the finish rate begins to fall where the 99th percentile comes near 20 ms.
//!
//! Under a minute of one core.

use super::orloj_tables::{ORLOJ, REQUESTS, SLOS, in_paper, number, of_case};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_scheduler::run_time::{RunTimeHistogram, VaryingModel};
use symphony_scheduler::workload::{Network, Workload};
use symphony_transport::Nanos;

const CASE: &str = "three-modal";

/// The rates of the anticipated delay, in 1/ms.
const RATES: [&str; 6] = ["1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "1e-1"];

/// The 99th percentiles of what a request takes alone, ms.
const HIGH_MS: [&str; 9] = ["640", "320", "160", "80", "40", "20", "10", "5", "2.5"];

/// What passes between a decision and its batch, ms.
const DELAYS_MS: [&str; 4] = ["0", "0.1", "1", "5"];

/// The loss of the mean finish rate from which on it counts as falling.
const LOSS: f64 = 0.02;

/// Returns the workload with all times scaled, so that a request takes `high_ms` alone at the 99th
/// percentile.
fn scaled(slo: &str, high_ms: f64, delay_ms: f64, effort: Effort) -> Workload {
    let mut workload = of_case(CASE, number(slo), effort);
    let model = &mut workload.models[0];
    let by = high_ms * number(slo) / model.slo.as_millis_f64();
    let times = |time: Nanos| Nanos::from_millis_f64(time.as_millis_f64() * by);
    model.slo = times(model.slo);
    model.profile = model.profile.times(by);
    model.varying = model.varying.as_ref().map(|varying| {
        let applications = varying.applications.iter().cloned().map(|mut one| {
            let RunTimeHistogram { lowest_ms, width_ms, .. } = &mut one.run_times;
            (*lowest_ms, *width_ms) = (*lowest_ms * by, *width_ms * by);
            one
        });
        VaryingModel { fixed: times(varying.fixed), applications: applications.collect(), ..varying.clone() }
    });
    workload.rate_rps /= by;
    workload.warmup = times(workload.warmup);
    workload.duration = times(workload.duration);
    workload.network = Network { control: Nanos::from_millis_f64(delay_ms), ..workload.network };
    workload
}

/// Figure 4.13.
pub(super) struct DelayRates;

impl Experiment for DelayRates {
    fn name(&self) -> &'static str {
        "orloj-figure4-13"
    }

    fn about(&self) -> &'static str {
        "ORLOJ, Figure 4.13: requests in time by b, the rate of the delay that priorities anticipate"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["rate_per_ms", "slo", "finished"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let points = RATES.into_iter().flat_map(|rate| SLOS.map(|slo| (rate, slo)));
        let job = |(rate, slo): (&'static str, &'static str)| {
            Job::new(effort.choose(REQUESTS.0, REQUESTS.1), move || {
                let workload = of_case(CASE, number(slo), effort);
                let finished = 1.0 - ORLOJ.expecting(number(rate)).run(&workload)?.bad_rate;
                Ok(vec![vec![rate.to_owned(), slo.to_owned(), cell(finished, 3)]])
            })
        };
        points.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let line = |(at, slo): (usize, &&str)| Series {
            label: format!("SLO {slo} times the 99th percentile"),
            colour: COLOURS[at],
            shape: Shape::Marked,
            points: (0..).map(f64::from).zip(RATES.map(|rate| 100.0 * finished(table, rate, slo))).collect(),
        };
        let panel = Panel {
            title: "three modes".to_owned(),
            x: Axis::named("b (1/ms)", RATES.map(str::to_owned)),
            y: Axis::up_to("requests in time (%)", 100.0),
            series: SLOS.iter().enumerate().map(line).collect(),
        };
        Figure { title: self.about().to_owned(), columns: 1, panels: vec![panel] }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for slo in SLOS {
            let paper = number(in_paper(CASE, slo));
            let what = format!("SLO {slo} times the 99th percentile, b of 1e-4 (Table C.2)");
            claims.push(Claim::new(what, Paper::Is(paper), finished(table, "1e-4", slo), Unit::Percent));
            let all = RATES.map(|rate| finished(table, rate, slo));
            let most = all.into_iter().fold(f64::NEG_INFINITY, f64::max);
            let least = all.into_iter().fold(f64::INFINITY, f64::min);
            let what = format!("SLO {slo} times the 99th percentile, the best b less the worst");
            claims.push(Claim::new(what, Paper::Silent, most - least, Unit::Percent));
        }
        claims
    }
}

fn finished(table: &Table, rate: &str, slo: &str) -> f64 {
    table.number(&[("rate_per_ms", rate), ("slo", slo)], "finished")
}

/// Figure 4.14.
pub(super) struct ShortRunTimes;

impl Experiment for ShortRunTimes {
    fn name(&self) -> &'static str {
        "orloj-figure4-14"
    }

    fn about(&self) -> &'static str {
        "ORLOJ, Figure 4.14: requests in time by the 99th percentile of what they take alone"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["delay_ms", "high_ms", "slo", "finished"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let pairs = DELAYS_MS.into_iter().flat_map(|delay| HIGH_MS.map(|high| (delay, high)));
        let points = pairs.flat_map(|(delay, high)| SLOS.map(|slo| [delay, high, slo]));
        let job = |point: [&'static str; 3]| {
            Job::new(effort.choose(REQUESTS.0, REQUESTS.1), move || {
                let [delay, high, slo] = point;
                let workload = scaled(slo, number(high), number(delay), effort);
                let finished = cell(1.0 - ORLOJ.run(&workload)?.bad_rate, 3);
                Ok(vec![point.map(str::to_owned).into_iter().chain([finished]).collect()])
            })
        };
        points.map(job).collect()
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |delay: &str| {
            let line = |(at, slo): (usize, &&str)| Series {
                label: format!("SLO {slo} times the 99th percentile"),
                colour: COLOURS[at],
                shape: Shape::Marked,
                points: table.percents(&[("delay_ms", delay), ("slo", slo)], "high_ms", "finished"),
            };
            Panel {
                title: format!("{delay} ms before each batch"),
                x: Axis::ratios("99th percentile alone (ms)", 2.0, 640.0),
                y: Axis::up_to("requests in time (%)", 100.0),
                series: SLOS.iter().enumerate().map(line).collect(),
            }
        };
        Figure { title: self.about().to_owned(), columns: 2, panels: DELAYS_MS.map(panel).into() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mean = |delay: &str, high: &str| {
            let of = |slo| table.number(&[("delay_ms", delay), ("high_ms", high), ("slo", slo)], "finished");
            SLOS.map(of).iter().sum::<f64>() / SLOS.len() as f64
        };
        // The first claim says how much of the whole range nothing but the scale changes.
        let all = HIGH_MS.map(|high| mean(DELAYS_MS[0], high));
        let most = all.into_iter().fold(f64::NEG_INFINITY, f64::max);
        let least = all.into_iter().fold(f64::INFINITY, f64::min);
        let what = "no time before a batch: the best 99th percentile less the worst, mean of five SLOs";
        let mut claims = vec![Claim::new(what, Paper::Silent, most - least, Unit::Percent)];
        for delay in &DELAYS_MS[1..] {
            let at_first = mean(delay, HIGH_MS[0]);
            let falls = HIGH_MS.into_iter().find(|high| mean(delay, high) < at_first - LOSS);
            let what =
                format!("{delay} ms before each batch: the 99th percentile from which on 2 points are lost");
            claims.push(Claim::new(what, Paper::Is(20.0), falls.map_or(f64::NAN, number), Unit::Ms));
        }
        claims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scaled_workload_has_the_same_load_and_another_percentile() {
        let effort = Effort { full: false, seed: 1 };
        let (whole, short) = (of_case(CASE, 3.0, effort), scaled("3", 10.0, 1.0, effort));
        let [alone, scaled_alone] = [&whole, &short].map(|workload| {
            let varying = workload.models[0].varying.as_ref().unwrap();
            varying.batch_ms(1, varying.mixture().quantile(0.99))
        });
        assert!((scaled_alone - 10.0).abs() < 0.1, "{scaled_alone}");
        let by = scaled_alone / alone;
        assert!((short.rate_rps * by / whole.rate_rps - 1.0).abs() < 0.01);
        assert!((short.models[0].slo.as_millis_f64() - 30.0).abs() < 0.01);
        assert_eq!(short.network.control, Nanos::from_millis(1));
    }
}
