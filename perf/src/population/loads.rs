//! What a rule costs below its goodput, and what is left of it above: the GPUs that are busy at
//! parts of the default's goodput, beside the published rule's at the same rate, and the rate of
//! good requests at 1.5 times it. The command `population --loads` calls it.

use super::generator::{HALF, Half, at_rate};
use super::results::PopulationResults;
use super::rules::{DEFAULT, Rule};
use super::search::of_seed;
use super::summary::{LEAST_RPS, geometric_mean};
use crate::provenance;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use symphony_scheduler::sim::arrivals::ArrivalError;
use symphony_scheduler::workload::Workload;

/// The parts of the default's goodput at which GPU time is compared.
pub const PARTS: [f64; 4] = [0.2, 0.4, 0.6, 0.8];

/// The rate at which the flat top is looked at, in parts of the default's goodput.
pub const OVERLOAD: f64 = 1.5;

/// The rule whose GPU time is the measure.
pub const PUBLISHED: &str = "symphony-published:window";

/// The default as it is tuned by `prefer = "latency"`.
pub const LATENCY: &str = "symphony@latency";

/// What the default may take more than the published rule: a share of it, or so many GPUs.
pub const PROMISE: (f64, f64) = (1.25, 1.0);

/// What a rule did at a rate.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct AtLoad {
    /// The GPUs that were busy, as a mean over the time.
    pub busy_gpus: f64,
    /// The requests of the worst model that were not answered in time, as a share.
    pub worst_bad_rate: f64,
    /// The requests per second that were answered in time.
    pub good_rps: f64,
    /// The median latency, ms.
    pub p50_ms: f64,
}

/// The three rules at one part of the default's goodput.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Part {
    /// The part.
    pub part: f64,
    /// The default.
    pub default: AtLoad,
    /// The default, tuned for latency.
    pub latency: AtLoad,
    /// The published rule.
    pub published: AtLoad,
}

impl Part {
    /// Returns true if the default takes no more GPU time than is promised.
    pub fn is_kept(&self) -> bool {
        let (share, gpus) = PROMISE;
        let published = self.published.busy_gpus;
        self.default.busy_gpus <= (share * published).max(published + gpus)
    }
}

/// What was found on a workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WorkloadLoads {
    /// The workload's name.
    pub name: String,
    /// The default's goodput, requests per second.
    pub goodput_rps: f64,
    /// The three rules at each of [`PARTS`].
    pub parts: Vec<Part>,
    /// The default's rate of good requests at [`OVERLOAD`] times its goodput, over that at its
    /// goodput.
    pub flat_top: f64,
}

/// The results of all workloads, with what they came from.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LoadsResults {
    command: String,
    commit: Option<String>,
    /// What was found.
    pub result: Vec<WorkloadLoads>,
}

/// Runs the three rules on the workloads of `half` of which `results` has the default's goodput,
/// `from` and every `every`-th after it, on `threads` threads. `done` is called after each workload
/// with the number of those that are done, and of all.
///
/// Errors: those of [`Rule::report`].
pub fn loads(
    results: &PopulationResults,
    (half, from, every): (Half, usize, usize),
    threads: usize,
    done: impl Fn(usize, usize) + Sync,
) -> Result<LoadsResults, ArrivalError> {
    let known = (from..HALF).step_by(every.max(1)).filter_map(|number| {
        let workload = half.workload(number);
        let goodput = *results.found(&workload.name, DEFAULT)?.first()?;
        (goodput > LEAST_RPS).then_some((workload, goodput))
    });
    let known: Vec<(Workload, f64)> = known.collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((workload, goodput)) = known.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = of_workload(workload, *goodput);
                    let mut found = found.lock().expect("a thread that panics ends the scope");
                    found.push(one);
                    done(found.len(), known.len());
                }
            });
        }
    });
    let found = found.into_inner().expect("a thread that panics ends the scope");
    let mut result = found.into_iter().collect::<Result<Vec<_>, _>>()?;
    result.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(LoadsResults { command: provenance::command_line(), commit: provenance::commit(), result })
}

fn of_workload(workload: &Workload, goodput_rps: f64) -> Result<WorkloadLoads, ArrivalError> {
    let at = |rule: &str, part: f64| {
        let rule: Rule = rule.parse().expect("each is a rule: a test looks");
        let report = rule.report(&at_rate(&of_seed(workload, 0), part * goodput_rps));
        report.expect("each is a policy").map(|report| AtLoad {
            busy_gpus: report.gpu_utilization * workload.gpus as f64,
            worst_bad_rate: report.worst_bad_rate,
            good_rps: report.good_rps,
            p50_ms: report.latency_ms.p50,
        })
    };
    let part = |part: f64| {
        let [default, latency, published] = [DEFAULT, LATENCY, PUBLISHED].map(|rule| at(rule, part));
        Ok(Part { part, default: default?, latency: latency?, published: published? })
    };
    let parts = PARTS.into_iter().map(part).collect::<Result<_, _>>()?;
    let flat_top = at(DEFAULT, OVERLOAD)?.good_rps / at(DEFAULT, 1.0)?.good_rps;
    Ok(WorkloadLoads { name: workload.name.clone(), goodput_rps, parts, flat_top })
}

impl LoadsResults {
    /// Writes the results as JSON.
    ///
    /// Errors: the file can't be written.
    pub fn write(&self, file: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(self).expect("plain data has a form in JSON");
        std::fs::write(file, text + "\n")
    }

    /// Formats the results as a table, and the workloads where a promise is not kept.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "| part of the goodput | workloads | GPUs over published | latency's | within the promise | p50 latency over published | latency's |\n\
             | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for (at, part) in PARTS.into_iter().enumerate() {
            let of = || self.result.iter().map(move |one| &one.parts[at]);
            let gpus = |one: &AtLoad, other: &AtLoad| one.busy_gpus / other.busy_gpus;
            let p50 = |one: &AtLoad, other: &AtLoad| one.p50_ms / other.p50_ms;
            writeln!(
                text,
                "| {part} | {} | {:.3} | {:.3} | {} | {:.3} | {:.3} |",
                self.result.len(),
                geometric_mean(of().map(|part| gpus(&part.default, &part.published))),
                geometric_mean(of().map(|part| gpus(&part.latency, &part.published))),
                of().filter(|part| part.is_kept()).count(),
                geometric_mean(of().map(|part| p50(&part.default, &part.published))),
                geometric_mean(of().map(|part| p50(&part.latency, &part.published))),
            )
            .expect("memory takes it");
        }
        for one in &self.result {
            for part in one.parts.iter().filter(|part| !part.is_kept()) {
                let (ours, theirs) = (part.default.busy_gpus, part.published.busy_gpus);
                writeln!(text, "{} at {}: {ours:.1} GPUs, published {theirs:.1}", one.name, part.part)
                    .expect("memory takes it");
            }
        }
        let mut tops: Vec<(f64, &str)> =
            self.result.iter().map(|one| (one.flat_top, one.name.as_str())).collect();
        tops.sort_by(|a, b| a.0.total_cmp(&b.0));
        let flat = tops.iter().filter(|top| top.0 >= FLAT).count();
        writeln!(text, "\nGood requests at {OVERLOAD} times the goodput, over those at it: {flat} of {} at least {FLAT};", tops.len())
            .expect("memory takes it");
        let least = tops.iter().take(SHOWN).map(|(top, name)| format!("{name} {top:.3}"));
        writeln!(text, "least: {}", least.collect::<Vec<_>>().join(", ")).expect("memory takes it");
        text
    }
}

/// What is asked of the flat top.
const FLAT: f64 = 0.98;

/// The number of workloads that are named with the least flat tops.
const SHOWN: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_compared_at_each_part_of_the_goodput() {
        let name = "tune-125";
        let workload = Half::by_name(name).unwrap();
        let mut results = PopulationResults::default();
        results.keep(&workload, DEFAULT, &[1_000.0]);
        results.keep(&Half::by_name("tune-000").unwrap(), PUBLISHED, &[1_000.0]);
        let found = loads(&results, (Half::Tune, 0, 1), 1, |_, _| ()).unwrap();
        assert_eq!(found.result.len(), 1, "only where the default's goodput is known");
        let one = &found.result[0];
        assert_eq!((one.name.as_str(), one.goodput_rps), (name, 1_000.0));
        let busy: Vec<f64> = one.parts.iter().map(|part| part.published.busy_gpus).collect();
        assert!(busy.is_sorted() && busy[0] > 0.0, "{busy:?}");
        assert!(one.flat_top > 0.0);
        assert!(found.table().contains("| 0.2 | 1 | "), "{}", found.table());
    }

    #[test]
    fn a_quarter_more_or_one_gpu_more_is_within_the_promise() {
        let busy = |busy_gpus| AtLoad { busy_gpus, worst_bad_rate: 0.0, good_rps: 1.0, p50_ms: 1.0 };
        let kept = |ours, theirs| {
            Part { part: 0.2, default: busy(ours), latency: busy(9.0), published: busy(theirs) }.is_kept()
        };
        assert!(kept(2.0, 1.0) && kept(12.5, 10.0));
        assert!(!kept(2.1, 1.0) && !kept(12.6, 10.0));
    }
}
