//! The thread on which rten computes all models of a core. Executor threads make it and keep it as
//! long as their models.

use rten::ThreadPool;
use std::sync::Arc;

/// A thread for rten to compute on, shared by all models of one executor.
///
/// rten always computes on a pool of its own. A pool of one thread inherits the core that the
/// thread which makes it is pinned to: **pin first, then make it**. A batch that is run from
/// another thread is handed over and back, some 10 us on one core; inside [`ComputeThread::run`]
/// there is no hand-over, so an executor's whole loop belongs in there.
#[derive(Clone, Debug)]
pub struct ComputeThread {
    pool: Arc<ThreadPool>,
}

impl ComputeThread {
    /// Starts the thread, on the cores of the calling one.
    pub fn new() -> ComputeThread {
        ComputeThread { pool: Arc::new(ThreadPool::with_num_threads(1)) }
    }

    /// Runs `work` on the thread and waits for its end; calls it directly if the caller is that
    /// thread. A panic of `work` continues in the caller.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.run(work)
    }

    pub(crate) fn pool(&self) -> Arc<ThreadPool> {
        Arc::clone(&self.pool)
    }
}

impl Default for ComputeThread {
    fn default() -> ComputeThread {
        ComputeThread::new()
    }
}
