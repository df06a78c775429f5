//! An engine that is put together and does not run yet: [`Assembly`].

use super::findings::Findings;
use crate::runtime::counters::Counters;
use crate::runtime::frontend::Frontend;
use crate::runtime::frontend::model_table::ModelTable;
use crate::runtime::hosts::{DelayWays, HostLinks};
use crate::runtime::model_slots::{ChangeChannels, ModelSlots};
use crate::runtime::profiling::ProfileKeeper;
use crate::runtime::threads::agent::{Member, Placement};
use crate::runtime::tuning::TunerThread;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use symphony_scheduler::limits;

/// The most requests in flight at a frontend of
/// [`Options::side_frontends`](super::Options::side_frontends): a request of the most rows fits.
pub(super) const SIDE_CAPACITY: usize = limits::MAX_BATCH;

/// An engine that is put together, and whose ModelThreads, RankThreads and emulated GPUs have no
/// threads yet.
pub(crate) struct Assembly {
    pub(super) findings: Findings,
    /// ModelThreads, RankThreads and the emulated GPUs, to be stopped in this order.
    pub(crate) stages: [Vec<(Placement, Member)>; 3],
    /// The thread that the CPU executors answer to.
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) stop_executors: Arc<AtomicBool>,
    pub(crate) frontends: Vec<Frontend>,
    pub(super) model_table: Arc<ModelTable>,
    pub(crate) model_slots: Option<ModelSlots>,
    /// The tuner of the default rule, where that is tuned.
    pub(super) tuner: Option<TunerThread>,
    /// The keeper of rolling profiles, where there is a scheduler.
    pub(crate) profiles: Option<ProfileKeeper>,
    pub(super) counters: Counters,
    /// The links to other hosts, where the engine is spread over several.
    pub(crate) links: Option<HostLinks>,
}

/// What ModelThreads are linked with beside their rings.
pub(super) struct SchedulerAids<'a> {
    pub(super) profiles: &'a mut ProfileKeeper,
    pub(super) tuner: &'a mut Option<TunerThread>,
    pub(super) channels: Option<&'a mut ChangeChannels>,
    /// The ways by which measured delays come, where there are links.
    pub(super) delays: Option<&'a mut DelayWays>,
}
