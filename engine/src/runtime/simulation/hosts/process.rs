//! A backend's process: its link and an executor of emulated GPUs, as a backend thread drives it.
//! Once it ends, another takes its place, which has nothing of it but a greater incarnation.

use super::{HostClock, terms};
use crate::runtime::backends::batches::{Answers, Inbox};
use crate::runtime::backends::executor_state::ExecutorState;
use crate::runtime::backends::model_faults::ModelFaults;
use crate::runtime::counters::Counting;
use crate::runtime::counters::count::Count;
use crate::runtime::counters::executions::Executions;
use crate::runtime::frontend::{ModelInfo, ModelTable};
use crate::runtime::hosts::{BackendHost, HostedRings};
use std::sync::Arc;
use symphony_gpu::EmulatedExecutor;
use symphony_transport::Nanos;
use symphony_transport::ring::ring;
use symphony_transport::wire::HostRole;

/// Messages in each ring of the executor: more than its GPUs can have under way.
const RING: usize = 1 << 10;

/// What stays the same when a backend is restarted.
#[derive(Clone, Copy)]
pub(super) struct BackendPlan {
    pub(super) number: u32,
    pub(super) first_gpu: u32,
    pub(super) gpus: u32,
    /// The GPUs of all backends.
    pub(super) all_gpus: usize,
    pub(super) models: usize,
    pub(super) credits: u32,
    pub(super) clock: HostClock,
}

/// A backend's process. See the module's description.
pub(super) struct BackendProcess {
    pub(super) host: BackendHost,
    executor: Box<ExecutorState<EmulatedExecutor>>,
    faults: ModelFaults,
}

impl BackendProcess {
    /// Starts a process, whose incarnations are greater than this one.
    pub(super) fn start(plan: &BackendPlan, incarnation: u64, now: Nanos) -> BackendProcess {
        let BackendPlan { number, first_gpu, gpus, all_gpus, models, credits, clock } = *plan;
        let now = clock.read(now);
        let (batches, inbox) = ring(RING);
        let (frontend, responses) = ring(RING);
        let (rank, completions) = ring(RING);
        let answers = Answers {
            slabs: Vec::new(),
            frontends: vec![frontend],
            completions: vec![rank],
            sent: (0..all_gpus).map(|_| Count::new()).collect(),
            rank_of: vec![0; models].into(),
            counting: Counting::unpublished(),
            executing: Executions::new(std::iter::once(0..all_gpus as u32)).of_backend(0),
        };
        let outputs = vec![Some(0..0); models];
        let executor = EmulatedExecutor::new(gpus, outputs, now);
        let inbox = Inbox::new(vec![inbox]);
        let executor = Box::new(ExecutorState::new(inbox, answers, executor, None, first_gpu, now));
        let terms = terms(HostRole::Backend, number, (first_gpu, gpus), incarnation, credits);
        let rings = HostedRings { batches, responses, completions };
        let host = BackendHost::new(terms, rings, first_gpu, gpus as usize, now);
        let faults = ModelFaults::new(ModelTable::new(Arc::from(Vec::<ModelInfo>::new())), false);
        BackendProcess { host, executor, faults }
    }

    /// Runs one turn: of the link, and of the executor's thread. Returns true if the connection is
    /// over.
    pub(super) fn turn(&mut self, now: Nanos) -> bool {
        let is_over = self.host.poll(now);
        self.executor.receive(now);
        self.executor.finish(now, |_, _, _| ());
        self.executor.start(now, &self.faults);
        is_over
    }
}
