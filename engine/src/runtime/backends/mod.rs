//! Backend threads: they take batches from the ModelThreads' rings, run them on a CPU executor or
//! an emulated GPU between exec_at and latest, answer the frontends, and report completions to the
//! RankThread. A watchdog replaces the thread of a CPU executor whose model hangs.

pub(crate) mod batches;
pub(crate) mod cpu;
pub(crate) mod emulated;
mod executor_state;
pub(crate) mod executors;
mod lease;
pub(crate) mod model_faults;
pub(crate) mod warming;
pub(crate) mod watchdog;
