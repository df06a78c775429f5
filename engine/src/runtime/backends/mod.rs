//! Backend threads: they take batches from the ModelThreads' rings, run them on an executor between
//! exec_at and latest, answer the frontends, and report completions to the RankThread. One loop
//! drives every kind of executor ([`Executor`](symphony_gpu::Executor)). A watchdog replaces the
//! thread of a CPU executor whose model hangs.

pub(crate) mod backend;
pub(crate) mod batches;
pub(crate) mod executor_state;
pub(crate) mod executors;
pub(crate) mod file_executor;
pub(crate) mod lease;
pub(crate) mod libraries;
pub(crate) mod model_faults;
pub(crate) mod warming;
pub(crate) mod watchdog;
