//! The table `[cores]` of CONFIG: the number of threads of each role, and the core of each. Where
//! nothing is given the engine chooses.

use super::diagnostics::Location;
use super::toml_reader::{TomlTable, TomlValue, read_each};
use symphony_scheduler::limits;

/// The threads of each role and their cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The number of ModelThreads; `None` for as many as the machine has room for.
    pub model_threads: Option<usize>,
    /// The core of each ModelThread; empty, or as many as there are ModelThreads.
    pub model: Vec<usize>,
    /// The number of RankThreads, at least 1. Each has at least one sub-cluster.
    pub rank_threads: usize,
    /// The core of each RankThread; empty, or as many as there are RankThreads.
    pub rank: Vec<usize>,
    /// The core of the thread that emulates GPUs.
    pub emulated: Option<usize>,
    /// The core of each API thread; empty means one thread on a core that the engine chooses.
    pub api: Vec<usize>,
    /// The core of the thread of the links to other hosts.
    pub links: Option<usize>,
}

impl Default for Cores {
    fn default() -> Cores {
        Cores {
            model_threads: Some(1),
            model: Vec::new(),
            rank_threads: 1,
            rank: Vec::new(),
            emulated: None,
            api: Vec::new(),
            links: None,
        }
    }
}

/// A role of several threads, and its fields in `[cores]`.
struct CoreRole {
    name: &'static str,
    /// The field that lists their cores.
    cores: &'static str,
    /// The field that gives their number.
    count: &'static str,
    limit: usize,
}

const MODEL_THREAD: CoreRole = CoreRole {
    name: "ModelThread",
    cores: "model",
    count: "model_threads",
    limit: limits::MAX_MODEL_THREADS,
};

const RANK_THREAD: CoreRole =
    CoreRole { name: "RankThread", cores: "rank", count: "rank_threads", limit: limits::MAX_RANK_THREADS };

impl CoreRole {
    /// Reads the threads' cores and their number, which defaults to that of the cores, and to one
    /// without cores. `read_count` reads a given number; its `None` lets the engine choose.
    fn read(
        &self,
        table: &TomlTable<'_>,
        read_count: impl FnOnce(&TomlValue<'_>) -> Option<Option<usize>>,
    ) -> Option<(Vec<usize>, Option<usize>)> {
        let cores = read_core_list(table, self.cores, self.name, self.limit);
        let default = cores.as_ref().map_or(1, |cores| cores.len().max(1));
        let count = table.optional(self.count).map_or(Some(Some(default)), |value| read_count(&value))?;
        let cores = cores?;
        if !cores.is_empty() && count != Some(cores.len()) {
            let wrong = format!("lists {} cores, which is not `{}`", cores.len(), self.count);
            let right = format!("list one core for each {}, or leave `{}` out", self.name, self.count);
            table.report(self.cores, wrong, right);
            return None;
        }
        Some((cores, count))
    }
}

/// Reads the table `[cores]`, and returns the location of the number of RankThreads too.
pub(super) fn read_cores(root: &TomlTable<'_>) -> Option<(Cores, Option<Location>)> {
    root.section("cores", |table| {
        let model = MODEL_THREAD.read(table, read_model_threads);
        let rank = RANK_THREAD.read(table, |value| value.count(1..=limits::MAX_RANK_THREADS).map(Some));
        let [emulated, links] = ["emulated", "links"]
            .map(|thread| table.optional(thread).map_or(Some(None), |v| read_core(&v).map(Some)));
        let api = read_core_list(table, "api", "API thread", limits::MAX_FRONTENDS);
        let ((model, model_threads), (rank, rank_threads)) = (model?, rank?);
        let location =
            table.location(if table.has(RANK_THREAD.count) { RANK_THREAD.count } else { RANK_THREAD.cores });
        let rank_threads = rank_threads.unwrap_or(1);
        let (emulated, api, links) = (emulated?, api?, links?);
        let cores = Cores { model_threads, model, rank_threads, rank, emulated, api, links };
        Some((cores, Some(location)))
    })
}

/// Reads the number of ModelThreads; `Some(None)` lets the engine choose.
fn read_model_threads(value: &TomlValue<'_>) -> Option<Option<usize>> {
    if !value.is_text() {
        return value.count(1..=limits::MAX_MODEL_THREADS).map(Some);
    }
    let right = format!("\"auto\" or a whole number from 1 to {}", limits::MAX_MODEL_THREADS);
    if value.text(&right)? == "auto" {
        return Some(None);
    }
    value.refuse_value(right);
    None
}

/// Reads a list of cores, or one core, of the threads of a role; no field is an empty list.
pub(super) fn read_core_list(
    table: &TomlTable<'_>,
    name: &'static str,
    role: &str,
    limit: usize,
) -> Option<Vec<usize>> {
    let Some(value) = table.optional(name) else { return Some(Vec::new()) };
    if value.is_whole() {
        return read_core(&value).map(|core| vec![core]);
    }
    let items = value.items("it must be a list of core numbers, like [2, 3]")?;
    if items.len() > limit {
        let wrong = format!("lists {} cores, one for each {role}", items.len());
        value.report(wrong, format!("there may be {limit} {role}s at most"));
        return None;
    }
    read_each(&items, read_core)
}

fn read_core(value: &TomlValue<'_>) -> Option<usize> {
    let core = value.count(0..=u16::MAX as usize)?;
    let cores: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|c| c.id).collect();
    if cores.is_empty() || cores.contains(&core) {
        return Some(core);
    }
    let numbers = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    value.report(format!("this process may not run on a core {core}"), format!("use one of {numbers}"));
    None
}
