//! Emulated GPUs: each runs one batch at a time, which takes exactly the duration given at its
//! start. All of them share one timer wheel, so that a single backend thread drives tens of
//! thousands. The backend thread owns them and passes `now`, of a real or a simulated clock.

use crate::executor::{EnqueueError, Executor, FinishedJob, Job, NoWork, RowSlots};
use crate::host::ComputeThread;
use std::ops::Range;
use symphony_transport::Nanos;
use symphony_transport::wheel::Wheel;

/// A batch that has left a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The GPU that ran it, idle again.
    pub gpu: u32,
    /// The batch's number, as given to [`EmulatedGpus::start`].
    pub batch: u64,
    /// The time at which it started.
    pub started: Nanos,
    /// The time at which it finished: `started` plus its duration, however late it was polled.
    pub finished: Nanos,
}

/// An error that keeps a batch from being started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmulatedStartError {
    /// The GPU is running another batch.
    #[error("GPU {gpu} is running batch {batch}: start the next one after it has finished")]
    Busy {
        /// The GPU asked for.
        gpu: u32,
        /// The batch that it is running.
        batch: u64,
    },
    /// No GPU has this number.
    #[error("there is no GPU {gpu}: the emulated ones are 0 to {count}, the last excluded")]
    NoSuchGpu {
        /// The GPU asked for.
        gpu: u32,
        /// The number of GPUs.
        count: u32,
    },
}

/// Emulated GPUs, which compute nothing and only keep their batches' times.
///
/// ```
/// use symphony_gpu::EmulatedGpus;
/// use symphony_transport::Nanos;
/// let mut gpus = EmulatedGpus::new(2, Nanos::ZERO);
/// gpus.start(1, 77, Nanos(100), Nanos(50)).unwrap();
/// assert!(gpus.poll(Nanos(149)).is_none());
/// assert_eq!(gpus.poll(Nanos(160)).unwrap().finished, Nanos(150));
/// ```
pub struct EmulatedGpus {
    running: Vec<Option<RunningBatch>>,
    finishes: Wheel,
    busy: usize,
}

#[derive(Clone, Copy)]
struct RunningBatch {
    batch: u64,
    started: Nanos,
    finished: Nanos,
}

impl EmulatedGpus {
    /// Makes `count` idle GPUs, numbered from 0. All memory is allocated here.
    pub fn new(count: u32, now: Nanos) -> EmulatedGpus {
        let count = count as usize;
        EmulatedGpus { running: vec![None; count], finishes: Wheel::new(count, now), busy: 0 }
    }

    /// Starts `batch` on `gpu`, to finish at `now + duration`.
    ///
    /// # Errors
    /// If the GPU is busy, or there is none of that number. A GPU stays busy until
    /// [`EmulatedGpus::poll`] has returned its batch.
    pub fn start(
        &mut self,
        gpu: u32,
        batch: u64,
        now: Nanos,
        duration: Nanos,
    ) -> Result<(), EmulatedStartError> {
        let count = self.running.len() as u32;
        let slot = self.running.get_mut(gpu as usize).ok_or(EmulatedStartError::NoSuchGpu { gpu, count })?;
        if let Some(running) = slot {
            return Err(EmulatedStartError::Busy { gpu, batch: running.batch });
        }
        let finished = now + duration;
        *slot = Some(RunningBatch { batch, started: now, finished });
        self.finishes.set(gpu as usize, finished);
        self.busy += 1;
        Ok(())
    }

    /// Returns a batch that has finished by `now`, if there is one; call it until there is none.
    pub fn poll(&mut self, now: Nanos) -> Option<Finished> {
        let (gpu, _) = self.finishes.pop_expired(now)?;
        let running = self.running[gpu].take()?;
        debug_assert!(running.finished <= now, "the wheel fired early");
        self.busy -= 1;
        let RunningBatch { batch, started, finished } = running;
        Some(Finished { gpu: gpu as u32, batch, started, finished })
    }

    /// Returns the number of GPUs with a batch, those included whose batch has finished and was not
    /// polled.
    pub fn busy(&self) -> usize {
        self.busy
    }

    /// Returns a time before which no batch finishes; `None` where none runs.
    pub fn next(&self) -> Option<Nanos> {
        self.finishes.next()
    }
}

/// The emulated GPUs as an executor. A model is the range of its outputs in a row's slot, which are
/// answered as zeros; inputs are not read.
pub struct EmulatedExecutor {
    gpus: EmulatedGpus,
    outputs: Vec<Option<Range<usize>>>,
    /// The model of the batch that each GPU runs or ran last.
    runs: Vec<usize>,
}

impl EmulatedExecutor {
    /// Makes `count` idle GPUs with these models.
    pub fn new(count: u32, outputs: Vec<Option<Range<usize>>>, now: Nanos) -> EmulatedExecutor {
        EmulatedExecutor { gpus: EmulatedGpus::new(count, now), outputs, runs: vec![0; count as usize] }
    }
}

impl Executor for EmulatedExecutor {
    type Model = Range<usize>;
    type Work = NoWork;

    fn gpus(&self) -> u32 {
        self.runs.len() as u32
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<Range<usize>>) {
        std::mem::swap(&mut self.outputs[slot], model);
    }

    fn has_model(&self, slot: usize) -> bool {
        self.outputs[slot].is_some()
    }

    fn is_loaded(&self, slot: usize) -> bool {
        self.has_model(slot)
    }

    fn has_room(&self, gpu: u32) -> bool {
        self.gpus.running.get(gpu as usize).is_some_and(Option::is_none)
    }

    fn enqueue(&mut self, job: Job, _: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError> {
        if !self.has_model(job.model) {
            return Err(EnqueueError::NoModel);
        }
        self.gpus.start(job.gpu, job.batch, now, job.duration).map_err(|_| EnqueueError::NoRoom)?;
        self.runs[job.gpu as usize] = job.model;
        Ok(())
    }

    fn take_work(&mut self) -> Option<(Job, NoWork)> {
        None
    }

    fn end_work(&mut self, work: NoWork, _: Nanos) {
        match work {}
    }

    fn poll(&mut self, now: Nanos) -> Option<FinishedJob> {
        let Finished { gpu, batch, started, finished } = self.gpus.poll(now)?;
        Some(FinishedJob { gpu, batch, started, finished, result: Ok(()) })
    }

    fn next_end(&self) -> Option<Nanos> {
        self.gpus.next()
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        let Some(outputs) = &self.outputs[self.runs[finished.gpu as usize]] else { return true };
        let claimed = (0..).map_while(|row| rows.claim(row));
        claimed.for_each(|mut slot| slot[outputs.clone()].fill(0));
        true
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn die(&mut self) {
        let idle = EmulatedGpus::new(self.gpus(), Nanos::ZERO);
        self.gpus = idle;
    }

    fn revive(&mut self, _: &ComputeThread) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_busy_gpu_refuses_a_batch_until_its_own_was_polled() {
        let mut gpus = EmulatedGpus::new(1, Nanos::ZERO);
        gpus.start(0, 1, Nanos(10), Nanos(5)).unwrap();
        assert_eq!(gpus.start(0, 2, Nanos(20), Nanos(5)), Err(EmulatedStartError::Busy { gpu: 0, batch: 1 }));
        let first = Finished { gpu: 0, batch: 1, started: Nanos(10), finished: Nanos(15) };
        assert_eq!(gpus.poll(Nanos(20)), Some(first));
        assert_eq!(gpus.start(0, 2, Nanos(20), Nanos(5)), Ok(()));
    }

    #[test]
    fn a_gpu_that_is_not_there_is_refused() {
        let mut gpus = EmulatedGpus::new(3, Nanos::ZERO);
        let refused = gpus.start(3, 1, Nanos::ZERO, Nanos(1));
        assert_eq!(refused, Err(EmulatedStartError::NoSuchGpu { gpu: 3, count: 3 }));
    }

    #[test]
    fn a_batch_of_no_duration_finishes_when_it_starts() {
        let mut gpus = EmulatedGpus::new(1, Nanos(7));
        gpus.start(0, 9, Nanos(7), Nanos::ZERO).unwrap();
        assert_eq!(gpus.poll(Nanos(7)).map(|finished| finished.finished), Some(Nanos(7)));
        assert_eq!(gpus.busy(), 0);
    }

    #[test]
    fn ten_thousand_gpus_each_finish_their_own_batches_on_time() {
        const COUNT: u32 = 10_000;
        let mut rng = fastrand::Rng::with_seed(7);
        let mut gpus = EmulatedGpus::new(COUNT, Nanos::ZERO);
        for gpu in 0..COUNT {
            gpus.start(gpu, gpu as u64, Nanos(gpu as u64), Nanos(rng.u64(0..20_000_000))).unwrap();
        }
        assert_eq!(gpus.busy(), COUNT as usize);
        let mut done = vec![0u32; COUNT as usize];
        let mut now = Nanos(COUNT as u64);
        while gpus.busy() > 0 {
            now += Nanos(rng.u64(1..300_000));
            assert!(gpus.next().is_some());
            while let Some(finished) = gpus.poll(now) {
                assert_eq!(finished.batch % COUNT as u64, finished.gpu as u64);
                assert!(finished.finished <= now);
                done[finished.gpu as usize] += 1;
                if done[finished.gpu as usize] < 3 {
                    let batch = finished.batch + COUNT as u64;
                    gpus.start(finished.gpu, batch, now, Nanos(rng.u64(0..5_000_000))).unwrap();
                }
            }
        }
        assert!(done.iter().all(|&batches| batches == 3));
        assert_eq!(gpus.next(), None);
    }

    proptest! {
        #[test]
        fn a_batch_is_never_given_back_early_and_its_times_are_exact(
            durations in proptest::collection::vec(0u64..100_000_000, 1..40),
            steps in proptest::collection::vec(1u64..20_000_000, 1..40),
        ) {
            let mut gpus = EmulatedGpus::new(durations.len() as u32, Nanos::ZERO);
            for (gpu, &duration) in durations.iter().enumerate() {
                gpus.start(gpu as u32, gpu as u64, Nanos::ZERO, Nanos(duration)).unwrap();
            }
            let mut now = Nanos::ZERO;
            let mut left: Vec<usize> = (0..durations.len()).collect();
            for step in steps {
                now += Nanos(step);
                while let Some(finished) = gpus.poll(now) {
                    prop_assert_eq!(finished.finished, Nanos(durations[finished.gpu as usize]));
                    prop_assert!(finished.finished <= now);
                    left.retain(|&gpu| gpu != finished.gpu as usize);
                }
                prop_assert_eq!(gpus.busy(), left.len());
                prop_assert!(left.iter().all(|&gpu| durations[gpu] > now.0), "one that is due was kept");
                let earliest = left.iter().map(|&gpu| Nanos(durations[gpu])).min();
                prop_assert!(gpus.next() <= earliest, "next() must not be after the first finish");
                prop_assert_eq!(gpus.next().is_some(), earliest.is_some());
            }
        }
    }
}
