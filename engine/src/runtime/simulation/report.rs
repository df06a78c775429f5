//! What a run of the simulation tells: its counts, or what did not hold.

use super::client::AnswerCounts;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a run of a simulation reports, and the sum of such reports.
pub trait SeedReport: Clone + Default + Send {
    /// Runs the simulation of this seed.
    ///
    /// Errors: something that must hold does not.
    fn run(seed: u64) -> Result<Self, BrokenInvariant>;

    /// Adds the numbers of another run.
    fn add(&mut self, other: &Self);

    /// Returns the number of requests that were simulated.
    fn requests(&self) -> u64;
}

/// Something that must hold and does not.
#[derive(Clone, Debug)]
pub struct BrokenInvariant {
    /// The flags of the command `chaos` that choose the simulation.
    pub flags: &'static str,
    /// The seed of the run.
    pub seed: u64,
    /// What was seen, and when.
    pub what: String,
}

impl fmt::Display for BrokenInvariant {
    /// Says what was seen, and the command that repeats it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = if cfg!(debug_assertions) { "" } else { " --release" };
        let BrokenInvariant { flags, seed, what } = self;
        write!(f, "seed {seed}: {what}; again: cargo run{profile} --bin chaos -- {flags}--seed {seed}")
    }
}

/// Runs the simulation of a seed.
///
/// Errors: what `run` says, or its panic.
pub(super) fn judge<R>(
    flags: &'static str,
    seed: u64,
    run: impl FnOnce() -> Result<R, String>,
) -> Result<R, BrokenInvariant> {
    let result = catch_unwind(AssertUnwindSafe(run));
    let result = result.unwrap_or_else(|panic| Err(format!("panicked: {}", message_of(&*panic))));
    result.map_err(|what| BrokenInvariant { flags, seed, what })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// The faults that were injected, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FaultCounts {
    /// Roles and API cores that did not run for a while.
    pub stalls: u64,
    /// Times in which no thread ran.
    pub pauses: u64,
    /// Rings whose messages came late for a while.
    pub late_rings: u64,
    /// GPUs that hung for a while.
    pub hung_gpus: u64,
    /// Executors whose threads died and were replaced.
    pub dead_executors: u64,
    /// Times in which rows failed.
    pub failures: u64,
    /// Times in which requests came more often.
    pub floods: u64,
    /// Answers that were lost.
    pub lost_answers: u64,
    /// Answers that came twice.
    pub doubled_answers: u64,
    /// Completions that were lost.
    pub lost_completions: u64,
    /// Completions that came twice.
    pub doubled_completions: u64,
    /// Roles and API cores that died, each of which ended its engine.
    pub dead_roles: u64,
}

impl FaultCounts {
    /// Adds the numbers of others.
    pub fn add(&mut self, other: &FaultCounts) {
        self.stalls += other.stalls;
        self.pauses += other.pauses;
        self.late_rings += other.late_rings;
        self.hung_gpus += other.hung_gpus;
        self.dead_executors += other.dead_executors;
        self.failures += other.failures;
        self.floods += other.floods;
        self.lost_answers += other.lost_answers;
        self.doubled_answers += other.doubled_answers;
        self.lost_completions += other.lost_completions;
        self.doubled_completions += other.doubled_completions;
        self.dead_roles += other.dead_roles;
    }
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct EpisodeReport {
    /// The requests, by what became of them.
    #[serde(rename = "requests")]
    pub answers: AnswerCounts,
    /// The faults, by kind.
    pub faults: FaultCounts,
    /// The batches with rows of several models that are run as one.
    pub mixed_batches: u64,
    /// The virtual time that it took, in milliseconds.
    pub virtual_ms: u64,
}
