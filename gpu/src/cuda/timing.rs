//! A batch whose parts are timed one after another: the copy of its inputs, the host's calls, its
//! execution and the copy of its outputs. For `profile` and other measurements: what serves does
//! not use it.

use super::model::CudaModel;
use super::room::HOST_LANE;
use crate::host::{HostModel, RunError};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use symphony_transport::Nanos;

/// The time after which a batch that is measured counts as lost.
const PATIENCE: Duration = Duration::from_secs(600);

/// The times of one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchTimes {
    /// The copy of the inputs to the device, by its clock.
    pub copy_in: Nanos,
    /// The host's calls that ask for the batch to be run and its outputs to be copied.
    pub launch: Nanos,
    /// The execution of the batch's graph, by the device's clock.
    pub execution: Nanos,
    /// The copy of the outputs to the host, by the device's clock.
    pub copy_out: Nanos,
    /// The time from before the host's calls until it has seen that the outputs are there: what the
    /// executor takes for a batch from its exec_at on.
    pub whole: Nanos,
}

impl CudaModel {
    /// Runs the first `rows` rows that were staged and returns how long each part has taken. The
    /// inputs have arrived before the batch is launched; the host looks for the ends without a
    /// pause.
    ///
    /// # Errors
    /// Those of [`HostModel::run`].
    pub fn run_timed(&mut self, rows: usize) -> Result<BatchTimes, RunError> {
        let max_batch = self.max_batch();
        if rows == 0 || rows > max_batch {
            return Err(RunError::Rows { rows, max_batch });
        }
        let staged = self.take_staged();
        let (open, lane) = (&self.device().open, &self.lanes[HOST_LANE]);
        let (plan, signature) = (self.plan(), self.signature());
        let failed = |error| RunError::Failed { reason: open.note(error).to_string() };
        staged.map_err(failed)?;
        let unloaded = || RunError::Failed { reason: "its weights are not on the GPU".to_owned() };
        let _weights = self.weights().in_use().ok_or_else(unloaded)?;
        let _alone = self.device().host_run.lock().unwrap_or_else(PoisonError::into_inner);
        lane.arrive(plan, signature, rows, &[]).map_err(failed)?;
        self.look_until(|| lane.has_arrived().map_err(failed))?;
        let asked = Instant::now();
        lane.run(plan, signature, rows, &[]).map_err(failed)?;
        let launch = asked.elapsed();
        self.look_until(|| lane.has_left().map_err(failed))?;
        let whole = asked.elapsed();
        self.outcome(HOST_LANE)?;
        let times = lane.times().map_err(failed)?;
        Ok(BatchTimes {
            copy_in: times.copy_in,
            launch: launch.into(),
            execution: times.execution,
            copy_out: times.copy_out,
            whole: whole.into(),
        })
    }

    /// Looks without a pause until something holds.
    fn look_until(&self, holds: impl Fn() -> Result<bool, RunError>) -> Result<(), RunError> {
        let began = Instant::now();
        while !holds()? {
            if began.elapsed() > PATIENCE {
                let reason = format!("a batch has not ended after {} s", PATIENCE.as_secs());
                self.device().open.give_up(reason.clone());
                return Err(RunError::Failed { reason });
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}
