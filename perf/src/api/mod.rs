//! What the thin API costs, measured from outside: `symphony serve` in a process of its own, asked
//! by `loadgen` in another, as users run them (docs/performance.md).
//!
//! ```text
//!  overhead     a lone request: answer's time minus its batch's time on the GPU
//!  throughput   64 in flight: requests per second of the API core, beside a plain echo of the same stack
//!  goodput      one emulated GPU behind the API, beside the simulator's
//!  soak         minutes of load with clients that come, cancel and die: nothing leaks, every counter adds up
//! ```

pub mod echo;
pub mod goodput;
pub mod loadgen;
pub mod overhead;
pub mod process;
pub mod soak;
pub mod throughput;

use serde::Serialize;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The command line is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The machine lacks something: exit code 3.
    #[error("{0}")]
    Machine(String),
    /// Something that was measured broke down: exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Failed(error.to_string())
    }
}

/// Whether the API's thread looks for work all the time. The engine's does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spin {
    /// Its core belongs to it.
    Yes,
    /// Others need its core too.
    No,
}

/// Which core has the API thread, and which the engine's threads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Seats {
    /// Of the API.
    pub api: usize,
    /// Of the ModelThread, the RankThread and the emulated GPUs.
    pub engine: usize,
}

impl Seats {
    /// The first two of these cores, or the same one twice.
    ///
    /// Errors: there is none.
    pub fn of(cores: &[usize]) -> Result<Seats, Stop> {
        let api = *cores.first().ok_or_else(|| Stop::Machine("no core is known".into()))?;
        Ok(Seats { api, engine: *cores.get(1).unwrap_or(&api) })
    }

    /// A configuration with `gpus` emulated GPUs, and these models besides.
    pub fn config(self, gpus: usize, spin: Spin, models: &[EmulatedModel]) -> String {
        let Seats { api, engine } = self;
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
    /// Its name.
    pub name: &'static str,
    /// Milliseconds per request of a batch.
    pub alpha_ms: f64,
    /// Milliseconds per batch.
    pub beta_ms: f64,
    /// The latency promised, milliseconds.
    pub slo_ms: f64,
}

/// The middle one of some figures, or the lower of both; 0 of none.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}
