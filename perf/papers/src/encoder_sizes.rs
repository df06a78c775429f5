//! What size classes are worth: the goodput of a small encoder like BERT whose requests have 8 to
//! 512 tokens, padded to buckets, in batches of equal lengths only, and padded to 512.
//!
//! `data/encoder.csv` is the model of `gpu/tests/make_exported_models.py --dynamic` on ONNX Runtime
//! and one core of an AMD EPYC: the median time by number of tokens and of rows, measured by
//! `profile --device onnxruntime --size sequence=N --max-batch 16`. Times of other lengths are
//! interpolated. The SLO is ten times what a request of 512 tokens takes alone. The goodput is the
//! highest rate of a grid of 1 % at which at most 1 % of all requests are bad: lengths of which
//! there are few requests count as much as these.
//!
//! Under 60 s of one core each.

use super::systems::DEFAULT;
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Paper, Unit, cell};
use std::io;
use symphony_perf::charts::{Axis, COLOURS, Figure, Panel, Series, Shape};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::workload::{Workload, WorkloadModel};
use symphony_transport::Nanos;

/// The measured times: tokens, rows, milliseconds.
const TIMES: &str = include_str!("../data/encoder.csv");

/// The fewest and the most tokens of a request.
const TOKENS: (usize, usize) = (8, 512);

/// The SLO in times of the longest request alone.
const SLO_RUNS: f64 = 10.0;

/// The share of requests that may be bad.
const BAD: f64 = 0.01;

/// The ratio of neighbouring rates.
const STEP: f64 = 1.01;

/// The requests of a run at the rates that are looked for, and under `--full`.
const SECONDS: (f64, f64) = (10.0, 60.0);

/// Executors, and what is added to the time of each batch, in milliseconds: devices that launch
/// many kernels for a batch, or run short ones no faster, have a fixed cost that this core lacks.
const DEVICES: [(usize, f64); 3] = [(1, 0.0), (8, 0.0), (8, 5.0)];

/// How many tokens requests have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lengths {
    /// Each number equally often.
    Uniform,
    /// Each part of a doubling equally often: many short ones.
    LogUniform,
}

impl Lengths {
    const ALL: [Lengths; 2] = [Lengths::Uniform, Lengths::LogUniform];

    fn name(self) -> &'static str {
        match self {
            Lengths::Uniform => "uniform",
            Lengths::LogUniform => "log-uniform",
        }
    }

    /// Returns the share of requests with more than `above` tokens and at most `up_to`.
    fn share(self, above: usize, up_to: usize) -> f64 {
        let (least, most) = (TOKENS.0 - 1, TOKENS.1);
        let below = |tokens: usize| {
            let tokens = tokens.clamp(least, most) as f64;
            match self {
                Lengths::Uniform => (tokens - least as f64) / (most - least) as f64,
                Lengths::LogUniform => (tokens / least as f64).ln() / (most as f64 / least as f64).ln(),
            }
        };
        below(up_to) - below(above)
    }
}

/// How requests of different lengths become batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Padded to the next power of two.
    Doubling,
    /// Padded to the next multiple of 64.
    Steps,
    /// Only requests of equal length in a batch.
    Equal,
    /// Padded to the longest that there is.
    Longest,
}

impl Way {
    const ALL: [Way; 4] = [Way::Doubling, Way::Steps, Way::Equal, Way::Longest];

    /// Returns the name in the CSV file and in the chart.
    fn name(self) -> &'static str {
        match self {
            Way::Doubling => "buckets of powers of two",
            Way::Steps => "buckets of multiples of 64",
            Way::Equal => "equal lengths only",
            Way::Longest => "padded to 512",
        }
    }

    /// Returns the lengths of batches, ascending.
    fn buckets(self) -> Vec<usize> {
        match self {
            Way::Doubling => (3..=9).map(|power| 1 << power).collect(),
            Way::Steps => (1..=8).map(|step| 64 * step).collect(),
            Way::Equal => (TOKENS.0..=TOKENS.1).collect(),
            Way::Longest => vec![TOKENS.1],
        }
    }
}

/// The measured time of a batch by its tokens and rows, in milliseconds; of equal or longer batches
/// at least that of shorter ones.
struct Times(Vec<(usize, Vec<f64>)>);

impl Times {
    /// Reads the times, with `fixed_ms` more for each batch.
    fn read(fixed_ms: f64) -> Times {
        let mut times: Vec<(usize, Vec<f64>)> = Vec::new();
        for line in TIMES.lines().skip(1) {
            let mut cells = line.split(',');
            let mut next = || cells.next().expect("the file has three columns");
            let (tokens, _, ms) = (next(), next(), next());
            let tokens: usize = tokens.parse().expect("a number");
            let ms = fixed_ms + ms.parse::<f64>().expect("a number");
            match times.last_mut().filter(|(before, _)| *before == tokens) {
                Some((_, rows)) => {
                    let least = rows.last().copied().unwrap_or_default();
                    rows.push(ms.max(least));
                }
                None => times.push((tokens, vec![ms])),
            }
        }
        Times(times)
    }

    /// Returns the profile of batches of so many tokens a row.
    fn profile(&self, tokens: usize) -> Profile {
        let above = self.0.iter().position(|(of, _)| *of >= tokens).expect("up to the most tokens");
        let (longer, long) = &self.0[above];
        let (shorter, short) = &self.0[above.saturating_sub(1)];
        let part =
            if longer == shorter { 1.0 } else { (tokens - shorter) as f64 / (longer - shorter) as f64 };
        let between = |(short, long): (&f64, &f64)| Nanos::from_millis_f64(short + part * (long - short));
        let latencies: Vec<Nanos> = short.iter().zip(long).map(between).collect();
        Profile::measured(&latencies).expect("times rise with rows")
    }

    /// Returns the SLO.
    fn slo(&self) -> Nanos {
        Nanos::from_millis_f64(SLO_RUNS * self.profile(TOKENS.1).latency(1).as_millis_f64())
    }
}

/// Returns requests of these lengths on executors of [`DEVICES`], without a rate.
fn workload(way: Way, lengths: Lengths, (executors, fixed_ms): (usize, f64), effort: Effort) -> Workload {
    let (times, buckets) = (Times::read(fixed_ms), way.buckets());
    let mut above = 0;
    let models = buckets.iter().map(|&tokens| {
        let share = lengths.share(above, tokens);
        above = tokens;
        let model = WorkloadModel::new(&format!("encoder-{tokens}"), times.profile(tokens), times.slo());
        WorkloadModel { share, ..model }
    });
    let models: Vec<WorkloadModel> = models.collect();
    let shares: Vec<f64> = models.iter().map(|model| model.share).collect();
    let mut workload = Workload::of_models(executors, 1.0, models);
    workload.models.iter_mut().zip(shares).for_each(|(model, share)| model.share = share);
    workload.duration = Nanos::from_secs_f64(effort.choose(SECONDS.0, SECONDS.1));
    workload.seed = effort.seed;
    workload
}

/// Returns the rate at which the executors would be busy with batches of the largest size alone.
fn most(workload: &Workload) -> f64 {
    let of_row = |model: &WorkloadModel| {
        let batch = model.profile.max_batch();
        model.share * model.profile.latency(batch).as_secs_f64() / batch as f64
    };
    workload.gpus as f64 / workload.models.iter().map(of_row).sum::<f64>()
}

/// Finds the highest rate at which at most 1 % of the requests are bad, and the run there.
fn goodput(workload: &Workload) -> io::Result<(f64, Option<Report>)> {
    let most = 1.05 * most(workload);
    let (mut bad, mut good, mut found) = (-1_i32, 500_i32, (0.0, None));
    while good - bad > 1 {
        let point = i32::midpoint(good, bad);
        let rate_rps = most * STEP.powi(-point);
        let report = DEFAULT.run(&Workload { rate_rps, ..workload.clone() })?;
        if report.bad_rate <= BAD {
            (good, found) = (point, (rate_rps, Some(report)));
        } else {
            bad = point;
        }
    }
    Ok(found)
}

/// The experiment.
pub(super) struct EncoderSizes;

impl Experiment for EncoderSizes {
    fn name(&self) -> &'static str {
        "encoder-sizes"
    }

    fn about(&self) -> &'static str {
        "Requests of 8 to 512 tokens: size classes, equal lengths only, and padding to the longest"
    }

    fn columns(&self) -> &'static [&'static str] {
        &["lengths", "executors", "fixed_ms", "way", "goodput_rps", "mean_batch", "utilization"]
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        let mut jobs = Vec::new();
        for lengths in Lengths::ALL {
            for device in DEVICES {
                for way in Way::ALL {
                    let workload = workload(way, lengths, device, effort);
                    let weight = 10.0 * most(&workload) * workload.duration.as_secs_f64();
                    jobs.push(Job::new(weight, move || {
                        let (goodput, report) = goodput(&workload)?;
                        let (batch, used) =
                            report.map_or((0.0, 0.0), |report| (report.mean_batch, report.gpu_utilization));
                        Ok(vec![vec![
                            lengths.name().to_owned(),
                            device.0.to_string(),
                            device.1.to_string(),
                            way.name().to_owned(),
                            cell(goodput, 1),
                            cell(batch, 2),
                            cell(used, 3),
                        ]])
                    }));
                }
            }
        }
        jobs
    }

    fn figure(&self, table: &Table) -> Figure {
        let panel = |(lengths, device): (Lengths, (usize, f64))| {
            let rps = |way: Way| goodput_of(table, lengths, device, way);
            let bar = |(at, &way): (usize, &Way)| Series {
                label: way.name().to_owned(),
                colour: COLOURS[at],
                shape: Shape::Bars { offset: 0.0, width: 0.7 },
                points: vec![(at as f64, rps(way))],
            };
            Panel {
                title: setting(lengths, device),
                x: Axis::named("", Way::ALL.iter().map(|_| String::new())),
                y: Axis::up_to("goodput (requests/s)", Way::ALL.map(rps).into_iter().fold(0.0, f64::max)),
                series: Way::ALL.iter().enumerate().map(bar).collect(),
            }
        };
        let all = Lengths::ALL.iter().flat_map(|&lengths| DEVICES.map(|device| (lengths, device)));
        Figure { title: self.about().to_owned(), columns: 3, panels: all.map(panel).collect() }
    }

    fn claims(&self, table: &Table) -> Vec<Claim> {
        let mut claims = Vec::new();
        for lengths in Lengths::ALL {
            for device in DEVICES {
                let rps = |way| goodput_of(table, lengths, device, way);
                let setting = setting(lengths, device);
                claims.extend(Way::ALL.map(|way| {
                    Claim::new(
                        format!("{setting}: goodput, {}", way.name()),
                        Paper::Silent,
                        rps(way),
                        Unit::Rps,
                    )
                }));
                for (other, way) in [("padding to 512", Way::Longest), ("equal lengths only", Way::Equal)] {
                    let ratio = rps(Way::Steps).max(rps(Way::Doubling)) / rps(way);
                    let what = format!("{setting}: the better buckets over {other}");
                    claims.push(Claim::new(what, Paper::Silent, ratio, Unit::Times));
                }
            }
        }
        claims
    }
}

/// Returns the setting in words.
fn setting(lengths: Lengths, (executors, fixed_ms): (usize, f64)) -> String {
    let more = if fixed_ms > 0.0 { format!(", {fixed_ms} ms more a batch") } else { String::new() };
    format!("{} lengths, executors: {executors}{more}", lengths.name())
}

fn goodput_of(table: &Table, lengths: Lengths, (executors, fixed_ms): (usize, f64), way: Way) -> f64 {
    let (executors, fixed_ms) = (executors.to_string(), fixed_ms.to_string());
    let keys = [
        ("lengths", lengths.name()),
        ("executors", executors.as_str()),
        ("fixed_ms", fixed_ms.as_str()),
        ("way", way.name()),
    ];
    table.number(&keys, "goodput_rps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_bucket_that_holds_it() {
        for lengths in Lengths::ALL {
            for way in Way::ALL {
                let workload = workload(way, lengths, DEVICES[0], Effort { full: false, seed: 1 });
                let share: f64 = workload.models.iter().map(|model| model.share).sum();
                assert!((share - 1.0).abs() < 1e-9, "{way:?}, {lengths:?}: {share}");
                assert!(workload.models.iter().all(|model| model.share > 0.0));
                assert_eq!(way.buckets().last(), Some(&TOKENS.1));
            }
        }
    }

    #[test]
    fn times_between_two_lengths_lie_between_theirs() {
        let times = Times::read(0.0);
        let alone = |tokens| times.profile(tokens).latency(1);
        assert!(alone(64) < alone(65) && alone(65) < alone(128));
        assert!(times.profile(8).latency(16) > alone(8));
    }
}
