//! One trial of a model by `inspect`: it is loaded on an executor, and runs one row.

use crate::runtime::panics::catch;
use std::time::{Duration, Instant};
use symphony_gpu::import::put_defaults;
use symphony_gpu::{ComputeThread, HostModel, LoadError, RunError};

/// The runs of which the shortest counts.
const RUNS: usize = 3;

/// What one executor says about a model.
pub(super) struct Trial {
    pub(super) executor: &'static str,
    pub(super) result: Result<TrialResult, TrialFailure>,
}

/// A failure of a model on one executor.
pub(super) struct TrialFailure {
    pub(super) why: String,
    /// True if it may run at other sizes of its dynamic dimensions.
    pub(super) depends_on_sizes: bool,
}

impl From<LoadError> for TrialFailure {
    fn from(error: LoadError) -> TrialFailure {
        let depends_on_sizes = matches!(
            error,
            LoadError::BatchDimension { .. }
                | LoadError::Operator { .. }
                | LoadError::Panicked { .. }
                | LoadError::Refused { .. }
                | LoadError::TooLarge { .. }
                | LoadError::Trial { .. }
        );
        TrialFailure { why: error.to_string(), depends_on_sizes }
    }
}

/// What one executor found out about a model that it runs.
pub(super) struct TrialResult {
    pub(super) max_batch: usize,
    pub(super) note: Option<String>,
    pub(super) memory_bytes: u64,
    pub(super) alone: Duration,
}

/// Loads a model on a thread that computes, and runs one row of zeros and of defaults.
pub(super) fn attempt<M: HostModel>(
    compute: &ComputeThread,
    load: impl FnOnce() -> Result<M, LoadError> + Send,
) -> Result<TrialResult, TrialFailure> {
    let run = || {
        let mut model = load()?;
        let mut row = vec![0; model.signature().input_bytes()];
        put_defaults(model.defaults(), model.signature(), &mut row);
        model.stage(0, &row);
        let timed = |_| {
            let began = Instant::now();
            model.run(1).map(|()| began.elapsed())
        };
        let times = (0..RUNS).map(timed).collect::<Result<Vec<Duration>, RunError>>();
        let failed = |error: RunError| TrialFailure { why: error.to_string(), depends_on_sizes: true };
        let times = times.map_err(failed)?;
        Ok(TrialResult {
            max_batch: model.max_batch(),
            note: model.import_note().map(str::to_owned),
            memory_bytes: model.memory_bytes(),
            alone: times.into_iter().min().unwrap_or_default(),
        })
    };
    // A library's panic is a line of the output and nothing else.
    let panicked = |why| Err(TrialFailure { why, depends_on_sizes: true });
    compute.run(|| catch(run).unwrap_or_else(panicked))
}
