//! The options of a start that are no part of the configuration.

use crate::recorder::RecordConfig;
use crate::runtime::callbacks::ThreadHook;
use crate::runtime::threads::agent::Idle;

/// How an engine is started, besides its configuration. The default: no recorder, the rest as the
/// machine asks.
#[derive(Clone, Default)]
pub struct Options {
    /// Where each ModelThread and RankThread keeps its flight recorder's file; `None` for no
    /// recorder.
    pub record: Option<RecordConfig>,
    /// Called by each thread of ModelThreads, of RankThreads and of the emulated GPUs, once it has
    /// its core and before its first turn: where a thread is to be watched, limited or given
    /// priority from outside.
    pub on_thread_start: Option<ThreadHook>,
    /// What ModelThreads and RankThreads do in turns without work, whatever the layout says.
    pub idle: Option<Idle>,
}
