//! The cost of the thin API, measured from outside: `symphony serve` in a process of its own,
//! loaded by `loadgen` in another, as users run them (docs/performance.md).
//!
//! ```text
//!  overhead     a lone request: its latency minus its batch's time on the GPU
//!  throughput   64 in flight: requests per second of the API core, beside an echo server
//!  goodput      one emulated GPU behind the API, beside the simulator's
//!  hosts        an engine of three processes, beside the simulator's; with delays put in
//!  overload     three times the capacity for minutes: the good rate stays, memory is flat
//!  soak         minutes of load with clients that cancel and die: nothing leaks, counters add up
//!  turns        the largest bodies of every kind: no task keeps an API core for 2 ms
//! ```

mod counters;
pub mod echo;
pub mod goodput;
pub mod hosts;
pub mod loadgen;
pub mod overhead;
pub mod overload;
pub mod process;
pub mod soak;
pub mod throughput;
pub mod turns;

use crate::MeasureError;
use serde::Serialize;

/// The idle behaviour of the API's thread. The engine's threads always spin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spin {
    /// Spinning, on a core of its own.
    Yes,
    /// Sleeping, as other threads need its core.
    No,
}

/// The cores of the API thread and of the engine's threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ApiPlacements {
    /// The core of the API thread.
    pub api: usize,
    /// The core of the ModelThread, the RankThread and the emulated GPUs.
    pub engine: usize,
}

impl ApiPlacements {
    /// Takes the first two of these cores, or the only one twice.
    ///
    /// Errors: the list is empty.
    pub fn of(cores: &[usize]) -> Result<ApiPlacements, MeasureError> {
        let api = *cores.first().ok_or_else(|| MeasureError::Machine("no core is known".into()))?;
        Ok(ApiPlacements { api, engine: *cores.get(1).unwrap_or(&api) })
    }

    /// Makes a configuration with `gpus` emulated GPUs and these models.
    pub fn config(self, gpus: usize, spin: Spin, models: &[EmulatedModel]) -> String {
        let ApiPlacements { api, engine } = self;
        // A core that is named for one thread alone is that thread's own.
        let own = match spin {
            Spin::Yes => format!("api = {api}\n"),
            Spin::No => String::new(),
        };
        let mut text = format!(
            "[cores]\n{own}model = {engine}\nrank = {engine}\nemulated = {engine}\n\
             [[executors]]\nkind = \"emulated\"\ncount = {gpus}\n"
        );
        for EmulatedModel { name, alpha_ms, beta_ms, slo_ms } in models {
            text += &format!(
                "[[models]]\nname = \"{name}\"\nexecutor = \"emulated\"\nslo_ms = {slo_ms}\n\
                 profile = {{ alpha_ms = {alpha_ms}, beta_ms = {beta_ms} }}\n"
            );
        }
        text
    }
}

/// A model whose batches of b take `alpha_ms` * b + `beta_ms`; 16 bytes in, 16 out.
#[derive(Clone, Debug, Serialize)]
pub struct EmulatedModel {
    /// The model's name.
    pub name: &'static str,
    /// Milliseconds per request of a batch.
    pub alpha_ms: f64,
    /// Milliseconds per batch.
    pub beta_ms: f64,
    /// The latency SLO, milliseconds.
    pub slo_ms: f64,
}

/// Returns the median, the lower of two middle ones; 0 if there is none.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Returns the memory in use after the first fifth and at the end, medians of a tenth of the time
/// each, and their difference.
fn growth(memory: &[u64]) -> [f64; 3] {
    let (fifth, tenth) = (memory.len() / 5, memory.len().div_ceil(10));
    let of = |part: &[u64]| median(part.iter().map(|&bytes| bytes as f64));
    let first = of(&memory[fifth..memory.len().min(fifth + tenth)]);
    let last = of(&memory[memory.len() - tenth.min(memory.len())..]);
    [first, last, last - first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_between_the_end_of_the_first_part_and_the_end() {
        let memory: Vec<u64> = (0..100).map(|second| if second < 15 { 10 * second } else { 150 }).collect();
        assert_eq!(growth(&memory), [150.0, 150.0, 0.0]);
        let rising: Vec<u64> = (0..100).collect();
        assert_eq!(growth(&rising), [24.0, 94.0, 70.0]);
    }
}
