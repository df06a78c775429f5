//! The workload format (docs/design/specification.md, "Simulation"; docs/workloads.md lists every
//! key): TOML in, [`Workload`] out. `simulate`, `loadgen`, the benchmarks and the experiments read
//! their files through here.

use super::arrivals::read_arrival;
use super::queries::QueryEntry;
use super::zoo::{self, ZooModel};
use super::{applications, queries};
use crate::config::diagnostics::{Diagnostic, Diagnostics, Location};
use crate::config::linear_profile;
use crate::config::network::read_network;
use crate::config::profile_file;
use crate::config::toml_reader::{Bounds, TomlTable, TomlValue, read};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use symphony_scheduler::limits;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::run_time::VaryingModel;
use symphony_scheduler::workload::{Workload, WorkloadModel, WorkloadQuery};
use symphony_transport::Nanos;
use symphony_transport::message::{Class, NO_DEADLINE};

const SEED: u64 = 1;
const WARMUP_S: f64 = 5.0;
const DURATION_S: f64 = 30.0;

/// Reads the workload in the TOML file at `path`. Files that it names are relative to its
/// folder.
///
/// Errors: every diagnostic in it and in the files that it names.
pub fn read_workload(path: &Path) -> Result<Workload, Diagnostics> {
    read(path, |root| read_root(root, path))
}

fn read_root(root: &TomlTable<'_>, path: &Path) -> Option<Workload> {
    let seconds = |name, bounds, default| match root.optional(name) {
        Some(value) => value.number(bounds).map(Nanos::from_secs_f64),
        None => Some(Nanos::from_secs_f64(default)),
    };
    let gpus = root.required("gpus", "the number of GPUs").and_then(|v| v.count(1..=limits::MAX_GPUS));
    let seed = root.optional("seed").map_or(Some(SEED), |v| v.integer(0..=i64::MAX as u64));
    let warmup = seconds("warmup_s", Bounds::from(0.0, 1e6), WARMUP_S);
    let duration = seconds("duration_s", Bounds::above(0.0, 1e6), DURATION_S);
    let rate = root.required("rate_rps", "the requests per second of all models together");
    let rate_rps = rate.and_then(|v| v.number(Bounds::above(0.0, 1e9)));
    let network = read_network(root);
    let popularity = read_popularity(root);
    let entries: Vec<WorkloadEntry> = root.tables("models", 1, read_entry).into_iter().flatten().collect();
    let query_entries = queries::read(root);
    let split = queries::read_split(root);
    let staged: HashSet<&str> = query_entries.iter().flat_map(QueryEntry::models).collect();
    let models = expand(root, entries, &staged);
    let popularity = popularity.filter(|popularity| can_rank(root, *popularity, &query_entries));
    let (models, popularity) = (models?, popularity?);
    let queries = queries::resolve(root, query_entries, &models)?;
    let (models, queries) = share_out(models, queries, popularity);
    Some(Workload {
        name: path.file_stem().map_or_else(|| "workload".into(), |stem| stem.to_string_lossy().into_owned()),
        gpus: gpus?,
        seed: seed?,
        warmup: warmup?,
        duration: duration?,
        rate_rps: rate_rps?,
        network: network?,
        models,
        queries,
        split: split?,
    })
}

/// The distribution of the rate over the models.
#[derive(Clone, Copy)]
enum Popularity {
    /// Shares given by `share`, equal by default.
    Shares,
    /// The k-th model of the file is 1 / k^S times as popular as the first.
    Zipf(f64),
}

fn read_popularity(root: &TomlTable<'_>) -> Option<Popularity> {
    const RIGHT: &str = "\"equal\", or \"zipf:S\" with S from 0 to 10, like \"zipf:0.9\"";
    let Some(value) = root.optional("popularity") else { return Some(Popularity::Shares) };
    let text = value.text(RIGHT)?;
    if text == "equal" {
        return Some(Popularity::Shares);
    }
    let exponent = text.strip_prefix("zipf:").and_then(|s| s.trim().parse().ok());
    let exponent = exponent.filter(|&s| Bounds::from(0.0, 10.0).contain(s));
    if exponent.is_none() {
        value.refuse_value(RIGHT);
    }
    exponent.map(Popularity::Zipf)
}

/// Reports a ranking of models by popularity where there are queries, which have shares.
fn can_rank(root: &TomlTable<'_>, popularity: Popularity, queries: &[QueryEntry]) -> bool {
    let can = matches!(popularity, Popularity::Shares) || queries.is_empty();
    if !can {
        root.report("popularity", "ranks models, and this file has queries", "give each its `share`");
    }
    can
}

/// One model before its copies are made.
struct WorkloadEntry {
    location: Location,
    model: WorkloadModel,
    copies: usize,
    /// True if the file gives its share.
    has_share: bool,
}

fn read_entry(table: &TomlTable<'_>) -> Option<Vec<WorkloadEntry>> {
    let share = table.optional("share").map_or(Some(1.0), |v| v.number(Bounds::above(0.0, 1e9)));
    let arrival = read_arrival(table);
    let copies = table.optional("copies").map_or(Some(1), |v| v.count(1..=limits::MAX_MODELS));
    let models = if table.has("zoo") { read_zoo(table) } else { read_one(table).map(|m| vec![m]) };
    let class = read_class(table);
    let (share, arrival, copies, class) = (share?, arrival?, copies?, class?);
    let entry = |EntryModel { name, profile, slo, varying }| {
        let model = WorkloadModel { name, profile, slo, class, share, arrival: arrival.clone(), varying };
        WorkloadEntry {
            location: table.location(if table.has("zoo") { "zoo" } else { "name" }),
            model,
            copies,
            has_share: table.has("share"),
        }
    };
    Some(models?.into_iter().map(entry).collect())
}

/// What tells the models of an entry apart.
struct EntryModel {
    name: String,
    profile: Profile,
    slo: Nanos,
    varying: Option<VaryingModel>,
}

/// The priority, which is the lowest unless it is given where there are no deadlines.
fn read_class(table: &TomlTable<'_>) -> Option<Class> {
    let has_deadlines = table.has("zoo") || !table.optional("slo_ms").is_some_and(|slo| slo.is_text());
    let Some(value) = table.optional("priority") else {
        return Some(if has_deadlines { Class::HIGHEST } else { Class::LOWEST });
    };
    let least = if has_deadlines { 0 } else { 1 };
    let number = value.integer(least..=u64::from(Class::LOWEST.number()))?;
    Class::new(number as u8)
}

/// The latency promised: a number of milliseconds, or "none".
fn read_slo(value: &TomlValue<'_>) -> Option<Nanos> {
    if !value.is_text() {
        return value.number(linear_profile::SLO).map(Nanos::from_millis_f64);
    }
    if value.text("none")? != "none" {
        value.refuse(format!("{}, or \"none\"", linear_profile::SLO));
        return None;
    }
    Some(NO_DEADLINE)
}

fn read_one(table: &TomlTable<'_>) -> Option<EntryModel> {
    let name = table.required("name", "the model's name, or `zoo`, a CSV file of models");
    let name = name.and_then(|value| {
        let name = value.text("the model's name")?;
        if name.is_empty() {
            value.refuse_value("a name");
            return None;
        }
        Some(name.to_string())
    });
    let varies = table.has("applications");
    let file = if varies { None } else { table.optional("profile") };
    let terms = if varies || file.is_some() { None } else { linear_profile::read_terms(table) };
    let slo = table.required("slo_ms", "the latency promised, in ms, or \"none\"");
    let slo = slo.and_then(|value| read_slo(&value))?;
    if varies {
        let (varying, profile) = applications::read(table, slo)?;
        return Some(EntryModel { name: name?, profile, slo, varying: Some(varying) });
    }
    let profile = match file {
        Some(value) => {
            let name = value.text("a CSV file's name, as `profile --csv` writes it")?;
            profile_file::read(&value, table, (name, slo), "give alpha_ms and beta_ms, or ")?
        }
        None => linear_profile::profile(terms?, slo),
    };
    match profile {
        Ok(profile) => Some(EntryModel { name: name?, profile, slo, varying: None }),
        Err((wrong, right)) => {
            table.report("slo_ms", wrong, right);
            None
        }
    }
}

/// The models of the zoo that an entry names, those outside its filters left out.
fn read_zoo(table: &TomlTable<'_>) -> Option<Vec<EntryModel>> {
    let ratio =
        |name, default| table.optional(name).map_or(Some(default), |v| v.number(Bounds::from(0.0, 1e9)));
    let above = ratio("min_beta_over_alpha", f64::NEG_INFINITY);
    let below = ratio("max_beta_over_alpha", f64::INFINITY);
    let value = table.optional("zoo")?;
    let path = table.folder().join(value.text("a CSV file with the columns model,alpha_ms,beta_ms,slo_ms")?);
    let (above, below) = (above?, below?);
    let zoo = match zoo::read(&path) {
        Ok(zoo) => zoo,
        Err(diagnostics) if !path.is_file() => {
            diagnostics
                .first()
                .inspect(|m| value.report(format!("{}: {}", path.display(), m.wrong), &m.right));
            return None;
        }
        Err(diagnostics) => {
            diagnostics.into_iter().for_each(|diagnostic| table.add(diagnostic));
            return None;
        }
    };
    let total = zoo.len();
    let wanted = |m: &ZooModel| {
        let ratio = m.beta_ms / m.alpha_ms;
        ratio > above && ratio <= below
    };
    let kept: Vec<ZooModel> = zoo.into_iter().filter(wanted).collect();
    if kept.is_empty() {
        value.report(format!("none of its {total} models passes the filters"), "widen the filters");
        return None;
    }
    Some(kept.into_iter().filter_map(|model| zoo_model(table, &path, model)).collect())
}

fn zoo_model(table: &TomlTable<'_>, path: &Path, model: ZooModel) -> Option<EntryModel> {
    let slo = Nanos::from_millis_f64(model.slo_ms);
    match linear_profile::profile((model.alpha_ms, model.beta_ms), slo) {
        Ok(profile) => Some(EntryModel { name: model.name, profile, slo, varying: None }),
        Err((wrong, right)) => {
            let (file, line) = (path.into(), model.line);
            table.add(Diagnostic { file, line, field: "slo_ms".into(), wrong, right });
            None
        }
    }
}

/// Makes the copies, and sees that there are not too many models and that their names differ. Those
/// that queries name have no requests of their own, unless the file gives them a share.
fn expand(
    root: &TomlTable<'_>,
    entries: Vec<WorkloadEntry>,
    staged: &HashSet<&str>,
) -> Option<Vec<WorkloadModel>> {
    let total: usize = entries.iter().map(|entry| entry.copies).sum();
    if total > limits::MAX_MODELS {
        let right =
            format!("one scheduler ranks at most {}: give fewer entries or copies", limits::MAX_MODELS);
        root.report("models", format!("{total} models in all are too many"), right);
        return None;
    }
    let mut lines: HashMap<String, usize> = HashMap::new();
    let mut models = Vec::with_capacity(total);
    for WorkloadEntry { location, model, copies, has_share } in entries {
        for copy in 1..=copies {
            let name = if copy == 1 { model.name.clone() } else { format!("{}-{copy}", model.name) };
            if let Some(line) = lines.insert(name.clone(), location.line) {
                let wrong = format!("\"{name}\" is already the name of the model at line {line}");
                root.add(location.diagnostic(wrong, "give each model a name of its own"));
                break;
            }
            let share = if !has_share && staged.contains(name.as_str()) { 0.0 } else { model.share };
            models.push(WorkloadModel { name, share, ..model.clone() });
        }
    }
    Some(models)
}

/// Sets the shares so that those of models and queries sum to 1.
fn share_out(
    mut models: Vec<WorkloadModel>,
    mut queries: Vec<WorkloadQuery>,
    popularity: Popularity,
) -> (Vec<WorkloadModel>, Vec<WorkloadQuery>) {
    if let Popularity::Zipf(exponent) = popularity {
        for (rank, model) in (1..).zip(&mut models) {
            model.share = f64::from(rank).powf(-exponent);
        }
    }
    let of_models: f64 = models.iter().map(|model| model.share).sum();
    let sum = of_models + queries.iter().map(|query| query.share).sum::<f64>();
    models.iter_mut().for_each(|model| model.share /= sum);
    queries.iter_mut().for_each(|query| query.share /= sum);
    (models, queries)
}
