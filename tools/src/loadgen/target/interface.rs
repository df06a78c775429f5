//! The interface of targets: what one does, what it is given, and what it reports to.

use crate::loadgen::RunError;
use crate::loadgen::inputs::Inputs;
use crate::loadgen::measure::{Live, StallWatch, Tally};
use crate::loadgen::progress::Progress;
use crate::loadgen::report::RunInfo;
use crate::loadgen::schedule::{Plan, PlannedModel};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use symphony::runtime::clock::Clock;
use symphony_transport::Nanos;

/// Something that requests can be sent to.
pub trait Target {
    /// The names of all models that it serves.
    ///
    /// Errors: it does not answer, or can't tell.
    fn model_names(&mut self) -> Result<Vec<String>, RunError>;

    /// Makes requests for these models, which [`Target::run`] then sends, and returns each model's
    /// own SLO where that is known.
    ///
    /// Errors: a model that is not there, or that no request can be made for.
    fn prepare(
        &mut self,
        models: &[PlannedModel],
        requests: &Requests,
    ) -> Result<Vec<Option<Nanos>>, RunError>;

    /// Sends the requests of `plan` to the models prepared, records in `watch` how they end, and
    /// returns when all is answered or given up. May be called again with another plan for the same
    /// models.
    ///
    /// Errors: what keeps the run from starting. What goes wrong with single requests is recorded.
    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError>;

    /// Returns the settings for a report: the target, the protocol, the form of tensors, the
    /// threads.
    fn info(&self) -> RunInfo;
}

/// The contents of every request, whatever model it is for.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// The tensors.
    pub inputs: Inputs,
    /// The time limit sent with a request, instead of its model's SLO in the plan.
    pub deadline: Option<Nanos>,
    /// The priority class sent with a request: 0 is the highest.
    pub class: Option<u8>,
    /// The form of tensors.
    pub tensors: Tensors,
}

impl Requests {
    /// The time limit that requests for `model` carry.
    pub(super) fn limit(&self, model: &PlannedModel) -> Option<Nanos> {
        self.deadline.or(model.slo)
    }
}

/// The form of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tensors {
    /// Bytes if the server takes them, else JSON.
    #[default]
    Best,
    /// JSON; HTTP only.
    Json,
    /// Bytes: HTTP's binary tensor extension, gRPC's raw contents.
    Binary,
    /// System shared memory, for inputs and outputs.
    Shared,
}

/// The object that a running [`Target`] reports to, and that can stop it.
pub struct Watch {
    /// Every request and its end.
    pub tally: Tally,
    /// Set by Ctrl-C: send no more.
    pub stop: Arc<AtomicBool>,
    /// Shown to a user who waits.
    pub progress: Progress,
    live: Arc<Live>,
    keep_records: bool,
}

impl Watch {
    /// Returns the watch over a run of `plan`, which `stop` ends. `keep_records` keeps every single
    /// request; `label` precedes the text of the progress bar.
    pub fn new(plan: &Plan, stop: Arc<AtomicBool>, keep_records: bool, label: &str) -> Watch {
        let live = Arc::<Live>::default();
        let tally = Tally::new(plan, Arc::clone(&live), keep_records);
        let progress = Progress::new(plan, Arc::clone(&live), label);
        Watch { tally, stop, progress, live, keep_records }
    }

    /// True if the run must end early.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Looks for stalls of the machine from now on, the run's `clock` having just been started,
    /// until the result is dropped.
    pub(super) fn stalls(&self, clock: Clock) -> StallWatch {
        StallWatch::start(Arc::clone(&self.live.stalls), clock)
    }

    /// A tally for one more thread of the run, to be merged into the first.
    pub(super) fn part(&self, plan: &Plan) -> Tally {
        Tally::new(plan, Arc::clone(&self.live), self.keep_records)
    }
}
