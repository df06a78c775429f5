//! The options of a start that are no part of the configuration.

use crate::recorder::RecordConfig;
use crate::runtime::callbacks::ThreadHook;
use crate::runtime::threads::agent::Idle;
use std::sync::Arc;
use symphony_gpu::cuda::driver::Driver;

/// The options of a start besides the configuration. By default there is no recorder, and the
/// layout decides how threads idle.
#[derive(Clone, Default)]
pub struct Options {
    /// The folder and the size of the flight recorder's files; `None` for no recorder.
    pub record: Option<RecordConfig>,
    /// A callback on each thread of ModelThreads, of RankThreads and of the emulated GPUs, after it
    /// is pinned and before its first duty cycle: to observe or limit a thread, or to set
    /// its priority.
    pub on_thread_start: Option<ThreadHook>,
    /// A callback with the name of the role before each duty cycle of a ModelThread, a RankThread,
    /// the emulated GPUs or a CPU executor, and with `cpu-N runs` before an executor runs a model.
    /// With it, tests make one of them panic or hang.
    #[doc(hidden)]
    pub before_cycle: Option<ThreadHook>,
    /// The driver of GPUs; NVIDIA's if none is given. Tests give one that has no GPU.
    #[doc(hidden)]
    pub cuda: Option<Arc<dyn Driver>>,
    /// The way in which ModelThreads and RankThreads idle, in place of the layout's.
    pub idle: Option<Idle>,
    /// The number of frontends besides those of the layout, for threads that are pinned to no core,
    /// such as an admin listener's. They come last. Each has at most 1,024 requests in flight.
    pub side_frontends: usize,
    /// Where a host listens and others reach it, `HOST:PORT`, in place of its address in CONFIG.
    pub address: Option<String>,
}
