//! The tables `[[executors]]` of CONFIG: what runs batches.

use super::cores::read_core_list;
use super::hosts::{HostConfig, Role};
use super::toml_reader::{TomlTable, TomlValue};
use symphony_gpu::cuda::PageOptions;
use symphony_scheduler::limits;

/// The most executors of a kind that have threads of their own.
const MAX_THREADED_EXECUTORS: usize = 1_024;

/// The largest page of a GPU's memory, and the most memory of a GPU, MiB.
const MOST_PAGE_MB: usize = 1 << 14;
const MOST_MEMORY_MB: usize = 1 << 24;

/// A kind of executor: what runs batches. GPUs are numbered by kind, in this order: those that have
/// a thread of their own first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExecutorKind {
    /// ONNX models on one CPU core, by the library that is built in.
    Cpu,
    /// ONNX models on one CPU core, by ONNX Runtime.
    OnnxRuntime,
    /// ONNX models as plans on one GPU.
    Cuda,
    /// A GPU that takes the time of its profile and answers zeros.
    Emulated,
}

impl ExecutorKind {
    /// Returns true if each executor has a backend thread, and a core, of its own; the others of a
    /// kind share one thread.
    pub fn has_own_thread(self) -> bool {
        match self {
            ExecutorKind::Cpu | ExecutorKind::OnnxRuntime | ExecutorKind::Cuda => true,
            ExecutorKind::Emulated => false,
        }
    }

    /// Returns the kind that runs an ONNX file whose configuration names none, where there are
    /// executors of these kinds.
    pub(super) fn for_files(kinds: &[ExecutorKind]) -> ExecutorKind {
        let of_files = [ExecutorKind::Cpu, ExecutorKind::OnnxRuntime, ExecutorKind::Cuda];
        of_files.into_iter().find(|kind| kinds.contains(kind)).unwrap_or(ExecutorKind::Cpu)
    }

    /// Returns the name of the kind in CONFIG.
    pub fn name(self) -> &'static str {
        match self {
            ExecutorKind::Cpu => "cpu",
            ExecutorKind::OnnxRuntime => "onnxruntime",
            ExecutorKind::Cuda => "cuda",
            ExecutorKind::Emulated => "emulated",
        }
    }
}

/// A group of executors of one kind: one table of `[[executors]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorGroup {
    /// The kind of all of them.
    pub kind: ExecutorKind,
    /// The number of executors, at least 1.
    pub count: usize,
    /// The core of each executor; empty, or of length `count`. Always empty for emulated ones.
    pub cores: Vec<usize>,
    /// How the memory of each is taken; of GPUs only.
    pub pages: PageOptions,
    /// The name of the backend that has them, where there are `[[hosts]]`.
    pub host: Option<String>,
}

/// The kinds of executors in CONFIG, as far as they could be read.
#[derive(Default)]
pub(super) struct ExecutorKinds {
    pub(super) known: Vec<ExecutorKind>,
    /// True if the kind of a table could not be read: it may be any.
    pub(super) unclear: bool,
}

/// Reads a kind of executor.
pub(super) fn read_kind(value: &TomlValue<'_>) -> Option<ExecutorKind> {
    Some(match value.word(&["cpu", "onnxruntime", "cuda", "emulated"])? {
        "cpu" => ExecutorKind::Cpu,
        "onnxruntime" => ExecutorKind::OnnxRuntime,
        "cuda" => ExecutorKind::Cuda,
        _ => ExecutorKind::Emulated,
    })
}

/// Reads the tables `[[executors]]`: one for each backend of `hosts`, where there are any.
pub(super) fn read_executors(
    root: &TomlTable<'_>,
    hosts: &[HostConfig],
) -> (Vec<ExecutorGroup>, ExecutorKinds) {
    let mut kinds = ExecutorKinds::default();
    let mut placed: Vec<String> = Vec::new();
    let executors = root.tables("executors", 0, |table| {
        let host = read_host_of(table, hosts, &placed);
        placed.extend(host.clone().flatten());
        let group = read_executor(table, &mut kinds)?;
        Some(ExecutorGroup { host: host?, ..group })
    });
    let backends = hosts.iter().filter(|host| host.role == Role::Backend);
    for idle in backends.filter(|host| !placed.contains(&host.name)) {
        let wrong = format!("the backend \"{}\" has none", idle.name);
        root.report("executors", wrong, "add a table with that `host`, or remove the host");
    }
    let total: usize = executors.iter().map(|group| group.count).sum();
    if total > limits::MAX_GPUS {
        let right = format!("one scheduler matches at most {}: lower the counts", limits::MAX_GPUS);
        root.report("executors", format!("{total} executors in all are too many"), right);
    }
    (executors, kinds)
}

/// Reads the backend that has a group of executors; `Some(None)` where there are no hosts.
fn read_host_of(table: &TomlTable<'_>, hosts: &[HostConfig], placed: &[String]) -> Option<Option<String>> {
    let backends: Vec<&str> =
        hosts.iter().filter(|host| host.role == Role::Backend).map(|host| host.name.as_str()).collect();
    if hosts.is_empty() {
        if table.optional("host").is_some() {
            table.report("host", "is given, and there are no hosts", "add `[[hosts]]`, or leave it out");
            return None;
        }
        return Some(None);
    }
    let host = table.required("host", "the name of the backend that has these executors")?;
    let host = host.word(&backends)?;
    if placed.iter().any(|other| other == host) {
        table.report("host", format!("\"{host}\" has executors already"), "give each backend one table");
        return None;
    }
    Some(Some(host.to_owned()))
}

fn read_executor(table: &TomlTable<'_>, kinds: &mut ExecutorKinds) -> Option<ExecutorGroup> {
    let kind = table
        .required("kind", "\"cpu\", \"onnxruntime\", \"cuda\" or \"emulated\"")
        .and_then(|v| read_kind(&v));
    match kind {
        Some(kind) => kinds.known.push(kind),
        None => kinds.unclear = true,
    }
    let has_own_thread = kind.is_some_and(ExecutorKind::has_own_thread);
    let pages = read_pages(table, kind);
    let most = if has_own_thread { MAX_THREADED_EXECUTORS } else { limits::MAX_GPUS };
    let count = table.optional("count").map(|v| v.count(1..=most));
    let cores = read_core_list(table, "cores", "executor", most)?;
    if kind == Some(ExecutorKind::Emulated) && !cores.is_empty() {
        table.report(
            "cores",
            "is given for emulated GPUs",
            "they share one thread: set `emulated` in [cores]",
        );
        return None;
    }
    let count = count.unwrap_or(Some(cores.len().max(1)))?;
    if !cores.is_empty() && cores.len() != count {
        let wrong = format!("lists {} cores for {count} executors", cores.len());
        table.report("cores", wrong, "list one core for each, or leave `count` out");
        return None;
    }
    Some(ExecutorGroup { kind: kind?, count, cores, pages: pages?, host: None })
}

/// Reads how the memory of GPUs is taken.
fn read_pages(table: &TomlTable<'_>, kind: Option<ExecutorKind>) -> Option<PageOptions> {
    let (page, memory) = (table.optional("page_mb"), table.optional("memory_mb"));
    for (key, given) in [("page_mb", &page), ("memory_mb", &memory)] {
        if given.is_some() && kind.is_some_and(|kind| kind != ExecutorKind::Cuda) {
            table.report(key, "is given for executors that are no GPUs", "only kind \"cuda\" has it");
            return None;
        }
    }
    // The inner option is that of a value which is no such number.
    let page = page.map(|value| value.count(1..=MOST_PAGE_MB));
    let memory = memory.map(|value| value.count(1..=MOST_MEMORY_MB));
    if [page, memory].contains(&Some(None)) {
        return None;
    }
    let (page_mb, memory_mb) = (page.flatten(), memory.flatten());
    if let (Some(page), Some(memory)) = (page_mb, memory_mb)
        && memory < page
    {
        let wrong = format!("is {memory}, less than a page, which is {page}");
        table.report("memory_mb", wrong, "give at least as much as the models need, or leave it out");
        return None;
    }
    Some(PageOptions {
        page_bytes: page_mb.map(|mb| mb << 20),
        memory: memory_mb.map(|mb| (mb as u64) << 20),
    })
}
