//! Models of a workload file whose requests have run times of their own: `applications`, each with
//! a share, a distribution and costs by latency, and c0 and c1 of a batch (docs/varying.md).

use crate::config::linear_profile::{self, check_alone};
use crate::config::toml_reader::{Bounds, TomlTable, TomlValue, read_each};
use std::path::Path;
use symphony_scheduler::limits;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::run_time::{
    Application, HistogramError, MAX_APPLICATIONS, Mode, RunTimeEstimate, RunTimeHistogram, VaryingModel,
};
use symphony_scheduler::step_costs::{CostStep, MAX_STEPS, StepCosts};
use symphony_transport::Nanos;

/// The largest batch, unless the file says another.
const MAX_BATCH: usize = 16;

/// A run time, ms.
const RUN_TIME: Bounds = Bounds::above(0.0, 3.6e6);

/// A cost.
const COST: Bounds = Bounds::above(0.0, 1e9);

const DISTRIBUTIONS: &str =
    "`log_normal`, `normals`, `histogram` or `samples`: the distribution of the run times";

/// Reads the run times of a model's requests, and the profile that stands for them where a
/// scheduler wants one.
pub(super) fn read(table: &TomlTable<'_>, slo: Nanos) -> Option<(VaryingModel, Profile)> {
    let fixed = table.optional("fixed_ms").map_or(Some(0.0), |value| value.number(linear_profile::TERM));
    let per_request =
        table.optional("per_request").map_or(Some(1.0), |value| value.number(Bounds::above(0.0, 1e3)));
    let largest =
        table.optional("max_batch").map_or(Some(MAX_BATCH), |value| value.count(1..=limits::MAX_BATCH));
    let estimate =
        table.optional("estimate").map_or(Some(RunTimeEstimate::Mean), |value| read_estimate(&value));
    let value = table.optional("applications")?;
    let items = value.items("give a list of tables")?;
    if items.is_empty() || items.len() > MAX_APPLICATIONS {
        value.report(format!("has {} applications", items.len()), format!("give 1 to {MAX_APPLICATIONS}"));
        return None;
    }
    let applications = read_each(&items, |item| item.table(|table| read_application(table, slo)))?;
    let fixed = Nanos::from_millis_f64(fixed?);
    let varying = VaryingModel { fixed, per_request: per_request?, applications: applications.into() };
    match profile(&varying, estimate?, largest?, slo) {
        Ok(profile) => Some((varying, profile)),
        Err((wrong, right)) => {
            table.report("slo_ms", wrong, right);
            None
        }
    }
}

/// Returns the profile up to the largest batch that takes at most `slo`.
fn profile(
    varying: &VaryingModel,
    estimate: RunTimeEstimate,
    largest: usize,
    slo: Nanos,
) -> Result<Profile, (String, String)> {
    let bad = |error| (format!("is of a bad profile ({error})"), "give longer run times".to_owned());
    let profile = varying.profile(estimate, largest).map_err(bad)?;
    check_alone(profile.latency(1), slo)?;
    Ok(profile.truncated(profile.largest_within(slo)))
}

/// Reads "mean", or "pNN" for a quantile.
fn read_estimate(value: &TomlValue<'_>) -> Option<RunTimeEstimate> {
    const RIGHT: &str = "\"mean\", or \"pNN\" with NN from 1 to 99, like \"p90\"";
    let text = value.text(RIGHT)?;
    if text == "mean" {
        return Some(RunTimeEstimate::Mean);
    }
    let percent = text.strip_prefix('p').and_then(|percent| percent.parse::<u32>().ok());
    let quantile =
        percent.filter(|percent| (1..100).contains(percent)).map(|percent| f64::from(percent) / 100.0);
    if quantile.is_none() {
        value.refuse_value(RIGHT);
    }
    quantile.map(RunTimeEstimate::Quantile)
}

fn read_application(table: &TomlTable<'_>, slo: Nanos) -> Option<Application> {
    let costs = read_costs(table, slo);
    let share = table.optional("share").map_or(Some(1.0), |value| value.number(Bounds::above(0.0, 1e9)));
    let given: Vec<&'static str> = ["log_normal", "normals", "histogram", "samples"]
        .into_iter()
        .filter(|name| table.has(name))
        .collect();
    let [name] = given[..] else {
        match given.get(1) {
            Some(second) => table.report(second, "is a second distribution", "give one"),
            None => {
                table.required("log_normal", DISTRIBUTIONS);
            }
        }
        return None;
    };
    let value = table.optional(name)?;
    let run_times = match name {
        "log_normal" => value.table(|table| {
            let median = table.required("median_ms", "the median, in ms")?.number(RUN_TIME);
            let sigma = table.required("sigma", "the standard deviation of the logarithm")?;
            kept(&value, RunTimeHistogram::log_normal(median?, sigma.number(Bounds::from(0.0, 10.0))?))
        }),
        "normals" => {
            let modes = read_each(&value.items("give a list of tables")?, |item| item.table(read_mode))?;
            kept(&value, RunTimeHistogram::of_modes(&modes))
        }
        "histogram" => value.table(|table| {
            let lowest = table.required("lowest_ms", "the lower edge of the first bin, in ms")?;
            let width = table.required("width_ms", "the width of a bin, in ms")?;
            let weights = table.required("weights", "a list of numbers, one for each bin")?;
            let weights = weights.items("give a list of numbers")?;
            let weights = read_each(&weights, |one| one.number(Bounds::from(0.0, 1e12)))?;
            let (lowest, width) = (lowest.number(linear_profile::TERM)?, width.number(RUN_TIME)?);
            kept(&value, RunTimeHistogram::of_weights(lowest, width, &weights))
        }),
        _ => read_samples(&value, table.folder()),
    };
    Some(Application { share: share?, run_times: run_times?, costs: costs? })
}

/// Reads `cost`, that of missing the SLO, and `cost_steps`, what longer latencies cost before that.
/// The inner `None` is that of neither.
fn read_costs(table: &TomlTable<'_>, slo: Nanos) -> Option<Option<StepCosts>> {
    let most = table.optional("cost").map(|value| value.number(COST));
    let earlier = table.optional("cost_steps").map(|value| {
        read_each(&value.items("give a list of tables")?, |item| item.table(read_step))
            .map(|steps| (value, steps))
    });
    if most.is_none() && earlier.is_none() {
        return Some(None);
    }
    let slo_step = CostStep { after: slo, cost: most.unwrap_or(Some(1.0))? };
    let (value, mut steps) = match earlier {
        None => (None, Vec::new()),
        Some(read) => read.map(|(value, steps)| (Some(value), steps))?,
    };
    steps.push(slo_step);
    let costs = StepCosts::new(steps);
    if let (Err(error), Some(value)) = (&costs, value) {
        let right = format!("give up to {} steps that rise, below slo_ms and below `cost`", MAX_STEPS - 1);
        value.report(format!("with the step at slo_ms {error}"), right);
    }
    costs.ok().map(Some)
}

fn read_step(table: &TomlTable<'_>) -> Option<CostStep> {
    let after = table.required("after_ms", "the latency after which it costs this, in ms");
    let cost = table.required("cost", "what it costs then").and_then(|value| value.number(COST));
    let after = after.and_then(|value| value.number(RUN_TIME));
    Some(CostStep { after: Nanos::from_millis_f64(after?), cost: cost? })
}

fn read_mode(table: &TomlTable<'_>) -> Option<Mode> {
    let weight = table.optional("weight").map_or(Some(1.0), |value| value.number(Bounds::above(0.0, 1e9)));
    let mean = table.required("mean_ms", "the mean, in ms").and_then(|value| value.number(RUN_TIME));
    let deviation = table.required("deviation_ms", "the standard deviation, in ms");
    let deviation = deviation.and_then(|value| value.number(linear_profile::TERM));
    Some(Mode { weight: weight?, mean_ms: mean?, deviation_ms: deviation? })
}

/// Reads a file of measured run times, one in ms on each line.
fn read_samples(value: &TomlValue<'_>, folder: &Path) -> Option<RunTimeHistogram> {
    let path = folder.join(value.text("a file of run times, one in ms on each line")?);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            let wrong = format!("the file {} can't be read ({error})", path.display());
            value.report(wrong, "name a file beside this one with a run time in ms on each line");
            return None;
        }
    };
    let mut samples = Vec::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        match text.trim().parse().ok().filter(|&ms| RUN_TIME.contain(ms)) {
            Some(ms) => samples.push(ms),
            None => {
                let wrong = format!("line {line} of {} is no run time", path.display());
                value.report(wrong, format!("it must be {RUN_TIME}"));
                return None;
            }
        }
    }
    kept(value, RunTimeHistogram::of_samples(&samples))
}

/// Reports numbers that are no distribution.
fn kept(
    value: &TomlValue<'_>,
    histogram: Result<RunTimeHistogram, HistogramError>,
) -> Option<RunTimeHistogram> {
    histogram.inspect_err(|error| value.report(format!("is no distribution: {error}"), "correct it")).ok()
}
