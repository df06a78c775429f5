//! Backend threads: they take batches from the ModelThreads' rings, run them on a CPU executor or
//! an emulated GPU between exec_at and latest, answer the frontends, and report completions to the
//! RankThread.

pub(crate) mod batches;
pub(crate) mod cpu;
pub(crate) mod emulated;
pub(crate) mod executors;
