//! The experiment on this engine's default beside every other rule, over the workloads of
//! perf/workloads/ and perf/workloads/scheduling/: goodput over five seeds, the effect of each part
//! of the rule, the good rate under overload and the number of GPUs in use at half load.
//! docs/scheduling.md has its tables. The short form, that of `all`, has one seed and shorter
//! workloads.
//!
//! This file has the runs. [`summary`] makes the CSV file's rows of them, [`tables`] and [`chart`]
//! show them.

mod chart;
mod summary;
mod tables;

use super::results;
use super::setting::Setting;
use super::systems::{
    CLIPPER, CLOCKWORK, DEFAULT, NEXUS, PUBLISHED, SHEPHERD, System, TRITON, WORK_CONSERVING,
};
use super::table::Table;
use super::{Claim, Effort, Experiment, Job, Rows, cell};
use std::io;
use std::path::{Path, PathBuf};
use symphony::config::read_workload;
use symphony_perf::charts::Figure;
use symphony_scheduler::deferral::Deferral;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::deferred::Deferred;
use symphony_scheduler::policy::symphony::Weighed;
use symphony_scheduler::policy::{Policy, PolicyOptions, Scheduler};
use symphony_scheduler::rule_setting::RuleSetting;
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::workload::Workload;
use symphony_transport::Nanos;

/// Seeds per workload.
const SEEDS: u64 = 5;

/// The default drop rule's part of the default: on the published rule alone.
const EXCHANGE: System =
    PUBLISHED.named("published-exchange", "published, drop exchange").dropping(DropRule::Exchange);
/// The default with the published drop rule.
const EARLY: System =
    DEFAULT.named("symphony-window", "early offers, drop window").dropping(DropRule::Window);
const NO_SPACING: System =
    System::own("no-spacing", "without beta/p after the last start", &DefaultWithout { left_out: "spacing" });
const NO_LEAD: System = System::own("no-lead", "without the lead", &DefaultWithout { left_out: "lead" });
const NO_POOL: System =
    System::own("no-pool", "without the pool's size in p", &DefaultWithout { left_out: "pool" });

/// The systems with parts of the default.
const ABLATION: [System; 6] = [PUBLISHED, EXCHANGE, EARLY, NO_SPACING, NO_LEAD, NO_POOL];

/// The systems that the default is compared with.
const OTHERS: [System; 9] = [
    PUBLISHED,
    PUBLISHED.named("published-timeout", "published, drop timeout").dropping(DropRule::Timeout),
    WORK_CONSERVING.dropping(DropRule::Window),
    WORK_CONSERVING
        .named("work-conserving-timeout", "work-conserving, drop timeout")
        .dropping(DropRule::Timeout),
    CLOCKWORK,
    NEXUS,
    SHEPHERD,
    CLIPPER,
    TRITON,
];

/// Every system, each once.
fn systems() -> impl Iterator<Item = System> {
    let parts = ABLATION.into_iter().filter(|part| OTHERS.iter().all(|other| other.name != part.name));
    std::iter::once(DEFAULT).chain(OTHERS).chain(parts)
}

/// The default with a part of its deferral left out.
#[derive(Debug)]
struct DefaultWithout {
    left_out: &'static str,
}

impl DefaultWithout {
    fn weighed(&self) -> &'static dyn Deferral {
        match self.left_out {
            "spacing" => &Weighed { spacing: false, lead: true, pool: true },
            "lead" => &Weighed { spacing: true, lead: false, pool: true },
            _ => &Weighed { spacing: true, lead: true, pool: false },
        }
    }
}

impl Policy for DefaultWithout {
    fn name(&self) -> &'static str {
        "symphony in part"
    }

    fn about(&self) -> &'static str {
        "the default with a part of its deferral left out"
    }

    fn drop(&self) -> DropRule {
        DropRule::Exchange
    }

    fn options(&self) -> &'static [&'static str] {
        &[]
    }

    fn scheduler(&self, workload: &Workload, _options: &PolicyOptions) -> Box<dyn Scheduler> {
        Box::new(Deferred::new(workload, self.drop(), self.weighed(), RuleSetting::default()))
    }

    fn deferral(&self) -> Option<&'static dyn Deferral> {
        Some(self.weighed())
    }
}

/// The experiment.
pub(super) struct Scheduling;

impl Experiment for Scheduling {
    fn name(&self) -> &'static str {
        "scheduling"
    }

    fn about(&self) -> &'static str {
        "This engine's default beside every other rule, on workloads of 1 to 512 GPUs"
    }

    fn columns(&self) -> &'static [&'static str] {
        summary::COLUMNS
    }

    fn jobs(&self, effort: Effort) -> Vec<Job> {
        match workloads() {
            Ok(workloads) => workloads
                .into_iter()
                .map(|workload| shortened(workload, effort))
                .flat_map(|workload| systems().flat_map(move |system| jobs_of(&workload, system, effort)))
                .collect(),
            // Told when it is run, as every other failure of an experiment is.
            Err(error) => vec![Job::new(1.0, || Err(error))],
        }
    }

    fn jobs_again(&self, effort: Effort, again: &[String], known: &Table) -> Result<Vec<Job>, String> {
        if let Some(unknown) = again.iter().find(|name| systems().all(|system| system.name != **name)) {
            let names: Vec<&str> = systems().map(|system| system.name).collect();
            return Err(format!(
                "--again {unknown}: there is no such system; there are {}",
                names.join(", ")
            ));
        }
        let mut jobs = Vec::new();
        for workload in workloads().map_err(|error| error.to_string())? {
            for system in systems() {
                if again.iter().any(|name| name == system.name) {
                    jobs.extend(jobs_of(&shortened(workload.clone(), effort), system, effort));
                    continue;
                }
                let runs = summary::runs(known, &workload.name, system.name);
                if runs.len() as u64 != SEEDS {
                    let (workload, system) = (&workload.name, system.name);
                    return Err(format!(
                        "the CSV file has {} runs of {system} on {workload}, and {SEEDS} are needed; run \
                         the whole of it once, without --again",
                        runs.len()
                    ));
                }
                jobs.push(Job::new(1.0, move || Ok(runs)));
            }
        }
        Ok(jobs)
    }

    fn figure(&self, table: &Table) -> Figure {
        chart::figure(self.about(), table)
    }

    fn claims(&self, _table: &Table) -> Vec<Claim> {
        Vec::new()
    }

    fn gathered(&self, rows: Rows) -> Rows {
        summary::rows(&Table::new(RUN_COLUMNS, rows))
    }

    fn is_long(&self) -> bool {
        true
    }

    fn document(&self) -> &'static str {
        "scheduling.md"
    }

    fn parts(&self, table: &Table) -> Vec<(String, String)> {
        let chart = results::chart(self.name(), self.about());
        vec![
            (self.name().to_owned(), format!("{chart}\n{}", tables::goodputs(table))),
            ("scheduling-ablation".to_owned(), tables::ablation(table)),
        ]
    }
}

/// The workloads, from the fewest GPUs to the most. Requests of each take as long as their model
/// says: those that vary are compared with ORLOJ's (`orloj_tables.rs`).
///
/// Errors: a folder or file that can't be read.
fn workloads() -> io::Result<Vec<Workload>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads");
    let mut found = Vec::new();
    for folder in [folder.join("scheduling"), folder] {
        for entry in std::fs::read_dir(&folder)? {
            let file: PathBuf = entry?.path();
            if file.extension().is_some_and(|ending| ending == "toml") {
                let workload = read_workload(&file);
                found.push(workload.map_err(|wrong| io::Error::other(wrong.to_string()))?);
            }
        }
    }
    found.retain(|workload| workload.models.iter().all(|model| model.varying.is_none()));
    found.sort_by(|a, b| (a.gpus, a.models.len(), &a.name).cmp(&(b.gpus, b.models.len(), &b.name)));
    Ok(found)
}

/// The workload as it is, or for the short form a few seconds of it.
fn shortened(workload: Workload, effort: Effort) -> Workload {
    let warmup = workload.warmup.min(effort.choose(Nanos::from_secs(2), Nanos::MAX));
    let duration = Nanos(workload.duration.0 / effort.choose(6, 1));
    Workload { warmup, duration, ..workload }
}

/// A job a seed.
fn jobs_of(workload: &Workload, system: System, effort: Effort) -> Vec<Job> {
    let seeds = effort.seed..effort.seed + effort.choose(1, SEEDS);
    let job = |seed| {
        let setting = Setting::of(workload.clone(), seed);
        Job::new(setting.search_weight(), move || Ok(vec![row(&system, setting)?]))
    };
    seeds.map(job).collect()
}

/// The columns of a job's rows.
const RUN_COLUMNS: &[&str] =
    &["workload", "gpus", "models", "system", "goodput_rps", "flat_top", "in_use", "idle_gpus"];

fn row(system: &System, setting: Setting) -> io::Result<Vec<String>> {
    let best = system.goodput(setting.workload())?;
    let goodput = best.goodput_rps.unwrap_or(0.0);
    let Workload { name, gpus, models, .. } = setting.workload();
    let mut row = vec![
        name.clone(),
        gpus.to_string(),
        models.len().to_string(),
        system.name.to_owned(),
        cell(goodput, 2),
    ];
    let watched = goodput > 0.0 && [DEFAULT.name, PUBLISHED.name].contains(&system.name);
    if watched {
        let at = |share: f64| system.run(setting.clone().rate(goodput * share).workload());
        let flat = flat_top(best.good_rps, at(1.2)?.good_rps, at(1.5)?.good_rps);
        let (in_use, idle) = in_use(&at(0.5)?);
        row.extend([cell(flat, 5), cell(in_use, 4), idle.to_string()]);
    } else {
        row.extend(std::iter::repeat_n(String::new(), 3));
    }
    Ok(row)
}

/// The good rate under the highest load over the best good rate of the three loads.
fn flat_top(at_goodput: f64, above: f64, highest: f64) -> f64 {
    highest / at_goodput.max(above).max(highest)
}

/// GPUs that are busy over 5 % of the time: how many for each GPU's worth of work, and how many
/// others there are.
fn in_use(report: &Report) -> (f64, usize) {
    let used = report.gpu_busy.iter().filter(|&&busy| busy > 0.05).count();
    (used as f64 / report.gpu_busy.iter().sum::<f64>(), report.gpus - used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_workloads_span_1_to_512_gpus_and_1_to_400_models() {
        let workloads = workloads().unwrap();
        assert!(workloads.len() >= 16, "{}", workloads.len());
        assert_eq!((workloads[0].gpus, workloads[workloads.len() - 1].gpus), (1, 512));
        let models = || workloads.iter().map(|workload| workload.models.len());
        assert!(models().min() == Some(1) && models().max() >= Some(400));
    }

    #[test]
    fn every_system_has_a_name_of_its_own() {
        let names: HashSet<&str> = systems().map(|system| system.name).collect();
        assert_eq!(names.len(), systems().count());
        assert_eq!(names.len(), 1 + OTHERS.len() + ABLATION.len() - 1);
    }

    #[test]
    fn a_fall_under_overload_shows_against_the_best_load() {
        assert_eq!(flat_top(100.0, 110.0, 99.0), 0.9);
        assert_eq!(flat_top(100.0, 110.0, 120.0), 1.0);
    }
}
