//! What a run of the simulation tells: its counts, or what did not hold.

use super::client::AnswerCounts;
use std::fmt;

/// Something that must hold and does not.
#[derive(Clone, Debug)]
pub struct BrokenInvariant {
    /// The seed of the run.
    pub seed: u64,
    /// What was seen, and when.
    pub what: String,
}

impl fmt::Display for BrokenInvariant {
    /// Says what was seen, and the command that repeats it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = if cfg!(debug_assertions) { "" } else { " --release" };
        let BrokenInvariant { seed, what } = self;
        write!(f, "seed {seed}: {what}; again: cargo run{profile} --bin chaos -- --seed {seed}")
    }
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
    pub answers: AnswerCounts,
    /// The faults, by kind.
    pub faults: FaultCounts,
    /// The batches with rows of several models that are run as one.
    pub mixed_batches: u64,
    /// The virtual time that it took, in milliseconds.
    pub virtual_ms: u64,
}

impl EpisodeReport {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: &EpisodeReport) {
        self.answers.add(&other.answers);
        self.faults.add(&other.faults);
        self.mixed_batches += other.mixed_batches;
        self.virtual_ms += other.virtual_ms;
    }
}
