//! Symphony's Table 4 and its Figures 8 and 9: one model on 8 GPUs, Poisson arrivals. The goodput
//! beside the two analytical bounds, how large the batches are at the goodput, and how long
//! requests wait there.
//!
//! Under 10 s of one core each.

use super::setting::{INCEPTION_RESNET, RESNET50, Setting};
use super::systems::{ALL, COMPARED, System};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Rows, Unit, cell};
use std::collections::BTreeMap;
use std::io;
use symphony_perf::charts::{Axis, Figure, GREY, Panel, Series, Shape};
use symphony_perf::zoo::Model;
use symphony_scheduler::sim::Observer;
use symphony_scheduler::workload::Workload;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Request};

const GPUS: usize = 8;
const MODELS: [Model<'_>; 2] = [RESNET50, INCEPTION_RESNET];

fn setting(model: Model<'static>, effort: Effort) -> Setting {
    Setting::new(GPUS, [model], effort).lasting(5.0, effort.choose(30.0, 120.0))
}

/// A job for each model and system: its rows begin with the model's and the system's name.
fn jobs(
    systems: &'static [System],
    effort: Effort,
    rows: fn(&System, Model<'static>, &Setting) -> io::Result<Rows>,
) -> Vec<Job> {
    let pairs = MODELS.iter().flat_map(|&model| systems.iter().map(move |&system| (model, system)));
    let job = |(model, system): (Model<'static>, System)| {
        let setting = setting(model, effort);
        Job::new(setting.search_weight(), move || {
            let names = [model.name.to_owned(), system.name.to_owned()];
            let found = rows(&system, model, &setting)?;
            Ok(found.into_iter().map(|row| names.iter().cloned().chain(row).collect()).collect())
        })
    };
    pairs.map(job).collect()
}

/// The largest b with l(b) * `share` <= SLO, and what 8 GPUs that run nothing else finish in a
/// second.
fn bound(model: &Model<'_>, share: f64) -> (f64, f64) {
    let batch = ((model.slo_ms / share - model.beta_ms) / model.alpha_ms).floor();
    (batch, GPUS as f64 * batch / model.latency_ms(batch) * 1e3)
}

/// Equation 1: a request that just missed a batch waits for a whole one.
fn uncoordinated(model: &Model<'_>) -> (f64, f64) {
    bound(model, 2.0)
}

/// Equation 2: the GPUs start batches at equal distances.
fn staggered(model: &Model<'_>) -> (f64, f64) {
    bound(model, 1.0 + 1.0 / GPUS as f64)
}

/// Table 4.
pub(super) struct Goodput;

impl Experiment for Goodput {
    fn name(&self) -> &'static str {
        "symphony-table4"
    }

    fn about(&self) -> &'static str {
        "Symphony, Table 4: goodput of one model on 8 GPUs beside the analytical bounds"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["model", "system", "goodput_rps", "mean_batch", "gpu_utilization"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        jobs(ALL, effort, |system, _, setting| {
            let report = system.goodput(setting.workload())?;
            let goodput = report.goodput_rps.unwrap_or(0.0);
            Ok(vec![vec![cell(goodput, 1), cell(report.mean_batch, 2), cell(report.gpu_utilization, 4)]])
        })
    }

    fn figure(&self, table: &Table) -> Figure {
        Figure {
            title: self.about().to_owned(),
            columns: 2,
            panels: MODELS.iter().map(|m| goodputs(table, m)).collect(),
        }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for (model, batches, bounds, measured) in [
            (RESNET50, (7.0, 16.0), (4501.0, 5839.0), [5169.0, 2036.0, 3965.0]),
            (INCEPTION_RESNET, (3.0, 8.0), (713.0, 1083.0), [907.0, 482.0, 590.0]),
        ] {
            let name = model.name;
            let ((alone, alone_rps), (together, together_rps)) = (uncoordinated(&model), staggered(&model));
            claims.extend([
                Claim::new(
                    format!("{name}: batch without coordination"),
                    Paper::Is(batches.0),
                    alone,
                    Unit::Count,
                ),
                Claim::new(
                    format!("{name}: throughput without coordination"),
                    Paper::Is(bounds.0),
                    alone_rps,
                    Unit::Rps,
                ),
                Claim::new(
                    format!("{name}: batch of staggered execution"),
                    Paper::Is(batches.1),
                    together,
                    Unit::Count,
                ),
                Claim::new(
                    format!("{name}: throughput of staggered execution"),
                    Paper::Is(bounds.1),
                    together_rps,
                    Unit::Rps,
                ),
            ]);
            let paper = |system: &System| match system.name {
                "symphony-published" => Paper::Is(measured[0]),
                "clockwork" => Paper::Is(measured[1]),
                "nexus" => Paper::Is(measured[2]),
                _ => Paper::Silent,
            };
            claims.extend(ALL.iter().map(|system| {
                let here = table.number(&[("model", name), ("system", system.name)], "goodput_rps");
                Claim::new(format!("{name}: goodput, {}", system.label), paper(system), here, Unit::Rps)
            }));
        }
        claims
    }
}

fn goodputs(table: &Table, model: &Model<'_>) -> Panel {
    let goodput =
        |system: &System| table.number(&[("model", model.name), ("system", system.name)], "goodput_rps");
    let bar = |(at, system): (usize, &System)| {
        system.series(Shape::Bars { offset: 0.0, width: 0.7 }, [(at as f64, goodput(system))])
    };
    let bounds =
        [("bound: staggered", staggered(model).1), ("bound: no coordination", uncoordinated(model).1)];
    let mut series: Vec<Series> = ALL.iter().enumerate().map(bar).collect();
    for ((label, bound), shape) in bounds.into_iter().zip([Shape::Line, Shape::Dashed]) {
        let points = vec![(-0.6, bound), (ALL.len() as f64 - 0.4, bound)];
        series.push(Series { label: label.to_owned(), colour: GREY, shape, points });
    }
    Panel {
        title: format!("{}, SLO {} ms, {GPUS} GPUs", model.name, model.slo_ms),
        x: Axis::named("", ALL.iter().map(|_| String::new())),
        y: Axis::up_to("goodput (requests/s)", staggered(model).1),
        series,
    }
}

/// Figure 8.
pub(super) struct Batches;

impl Experiment for Batches {
    fn name(&self) -> &'static str {
        "symphony-figure8"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 8: sizes of the batches that run at the goodput of Table 4"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["model", "system", "batch", "share_of_requests"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        jobs(COMPARED, effort, |system, _, setting| {
            let histogram = system.goodput(setting.workload())?.batch_histogram;
            let requests: u64 = histogram.iter().zip(0..).map(|(count, size)| count * size).sum();
            let share = |(size, &count): (usize, &u64)| {
                vec![size.to_string(), cell(size as f64 * count as f64 / requests.max(1) as f64, 5)]
            };
            Ok(histogram.iter().enumerate().skip(1).map(share).collect())
        })
    }

    fn figure(&self, table: &Table) -> Figure {
        let panels =
            MODELS.iter().flat_map(|model| COMPARED.iter().map(move |system| sizes(table, model, system)));
        Figure { title: self.about().to_owned(), columns: 3, panels: panels.collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let said = [("ResNet50", [14.0, 6.0]), ("InceptionResNetV2", [8.0, 3.0])];
        let mut claims = Vec::new();
        for (model, sizes) in said {
            for (system, size) in ["symphony-published", "nexus"].into_iter().zip(sizes) {
                let here = share_from(table, model, system, size);
                let what = format!("{model}, {system}: requests in batches of {size} and more");
                claims.push(Claim::new(what, Paper::AtLeast(0.5), here, Unit::Percent));
            }
        }
        claims
    }
}

/// The share of requests that ran in batches of at least `size`.
fn share_from(table: &Table, model: &str, system: &str, size: f64) -> f64 {
    let keys = [("model", model), ("system", system)];
    let mut rows = table.having(&keys).peekable();
    if rows.peek().is_none() {
        return f64::NAN;
    }
    rows.filter(|row| row.number("batch") >= size).map(|row| row.number("share_of_requests")).sum()
}

fn sizes(table: &Table, model: &Model<'_>, system: &System) -> Panel {
    let points =
        table.points(&[("model", model.name), ("system", system.name)], "batch", "share_of_requests");
    let points = points.into_iter().map(|(batch, share)| (batch, share * 100.0));
    let of_model = [("model", model.name)];
    let highest = table.having(&of_model).map(|row| row.number("share_of_requests")).fold(0.0, f64::max);
    Panel {
        title: format!("{}, {}", model.name, system.label),
        x: Axis::up_to("batch size", staggered(model).0 + 2.0),
        y: Axis::up_to("share of requests (%)", highest * 100.0),
        series: vec![system.series(Shape::Bars { offset: 0.0, width: 0.8 }, points)],
    }
}

/// Figure 9.
pub(super) struct Queueing;

/// Points of a distribution in the CSV file.
const STEPS: usize = 100;

impl Experiment for Queueing {
    fn name(&self) -> &'static str {
        "symphony-figure9"
    }

    fn about(&self) -> &'static str {
        "Symphony, Figure 9: time in the queue at the goodput of Table 4"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["model", "system", "share_of_requests", "queueing_ms"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        jobs(COMPARED, effort, |system, _, setting| {
            let goodput = system.goodput(setting.workload())?.rate_rps;
            let setting = setting.clone().rate(goodput);
            let mut waits = Waits::new(setting.workload());
            system.observed(setting.workload(), &mut waits)?;
            Ok(waits.quantiles())
        })
    }

    fn figure(&self, table: &Table) -> Figure {
        Figure {
            title: self.about().to_owned(),
            columns: 2,
            panels: MODELS.iter().map(|m| waiting(table, m)).collect(),
        }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let at = |model: &str, system: &str, share: &str| {
            table.number(&[("model", model), ("system", system), ("share_of_requests", share)], "queueing_ms")
        };
        let mut claims = Vec::new();
        for Model { name, slo_ms, .. } in MODELS {
            for other in ["clockwork", "nexus"] {
                let here = at(name, other, "0.50") / at(name, "symphony-published", "0.50");
                let what = format!("{name}: median wait, {other} over symphony-published");
                claims.push(Claim::new(what, Paper::Between(2.0, 3.0), here, Unit::Times));
            }
            let what = format!("{name}: longest wait in nexus over the SLO");
            claims.push(Claim::new(what, Paper::Is(0.5), at(name, "nexus", "1.00") / slo_ms, Unit::Percent));
        }
        claims
    }
}

fn waiting(table: &Table, model: &Model<'_>) -> Panel {
    let line = |system: &System| {
        let keys = [("model", model.name), ("system", system.name)];
        let points = table.points(&keys, "queueing_ms", "share_of_requests");
        system.series(Shape::Line, points.into_iter().map(|(wait, share)| (wait, share * 100.0)))
    };
    Panel {
        title: format!("{}, SLO {} ms, {GPUS} GPUs", model.name, model.slo_ms),
        x: Axis::up_to("time in the queue (ms)", model.slo_ms),
        y: Axis::up_to("share of requests (%)", 100.0),
        series: COMPARED.iter().map(line).collect(),
    }
}

/// The time that each request that ran has waited.
struct Waits {
    from: Nanos,
    /// The wait of each request by its id. One whose batch was preempted runs again, and its last
    /// start counts.
    waits: BTreeMap<u64, Nanos>,
}

impl Waits {
    fn new(workload: &Workload) -> Waits {
        Waits { from: workload.warmup, waits: BTreeMap::new() }
    }

    /// Rows of a share of the requests and the wait that it did not exceed.
    fn quantiles(self) -> Rows {
        let mut waits: Vec<Nanos> = self.waits.into_values().collect();
        waits.sort_unstable();
        let Some(last) = waits.len().checked_sub(1) else { return Vec::new() };
        let quantile = |step: usize| {
            let share = step as f64 / STEPS as f64;
            let wait = waits[(share * last as f64).round() as usize];
            vec![cell(share, 2), cell(wait.as_millis_f64(), 3)]
        };
        (0..=STEPS).map(quantile).collect()
    }
}

impl Observer for Waits {
    fn ran(
        &mut self,
        _now: Nanos,
        _batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        _finished: Nanos,
    ) {
        let Some(started) = started else { return };
        let counted = requests.0.iter().chain(requests.1).filter(|request| request.arrival >= self.from);
        self.waits.extend(counted.map(|request| (request.id, started - request.arrival)));
    }

    fn preempted(&mut self, _batch: &BatchHeader, requests: &[Request], _stopped: Nanos) {
        for request in requests {
            self.waits.remove(&request.id);
        }
    }
}
