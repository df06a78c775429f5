//! What load is sent to: servers over HTTP or gRPC, with or without shared memory, or an engine in
//! this process.

mod client;
mod describe;
pub mod echo;
mod grpc;
mod http;
pub mod in_process;
mod shared_memory;
mod url;

pub use client::Settings;
pub use url::ServerUrl;

use super::RunError;
use super::inputs::{Inputs, Tensor};
use super::measure::{Live, Tally};
use super::progress::Progress;
use super::report::RunInfo;
use super::schedule::{Plan, PlannedModel};
use client::NetworkTarget;
use grpc::Grpc;
use http::Http;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use symphony_transport::Nanos;

/// Something that requests can be sent to.
pub trait Target {
    /// The names of all models that it serves.
    ///
    /// Errors: it does not answer, or can't tell.
    fn model_names(&mut self) -> Result<Vec<String>, RunError>;

    /// Makes requests for these models, which [`Target::run`] then sends, and tells each model's
    /// own SLO where that is known.
    ///
    /// Errors: a model that is not there, or that no request can be made for.
    fn prepare(
        &mut self,
        models: &[PlannedModel],
        requests: &Requests,
    ) -> Result<Vec<Option<Nanos>>, RunError>;

    /// Sends what `plan` says to the models prepared, records in `watch` what comes of it, and
    /// returns when all is answered or given up. May be called again with another plan for the same
    /// models.
    ///
    /// Errors: what keeps the run from starting. What goes wrong with single requests is recorded.
    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError>;

    /// What it is, for a report: the target, the protocol, how tensors travel, the threads.
    fn info(&self) -> RunInfo;
}

/// A server over HTTP, which is not spoken to yet.
pub fn over_http(settings: Settings) -> Box<dyn Target> {
    Box::new(NetworkTarget::<Http>::new(settings))
}

/// A server over gRPC, which is not spoken to yet.
pub fn over_grpc(settings: Settings) -> Box<dyn Target> {
    Box::new(NetworkTarget::<Grpc>::new(settings))
}

/// What every request carries, whatever model it is for.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// The tensors.
    pub inputs: Inputs,
    /// The time limit sent with a request, instead of its model's SLO in the plan.
    pub deadline: Option<Nanos>,
    /// The priority class sent with a request: 0 is the highest.
    pub class: Option<u8>,
    /// How tensors travel.
    pub tensors: Tensors,
}

impl Requests {
    /// The time limit that requests for `model` carry.
    fn limit(&self, model: &PlannedModel) -> Option<Nanos> {
        self.deadline.or(model.slo)
    }
}

/// How tensors travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tensors {
    /// As bytes if the server takes them, else as JSON.
    #[default]
    Best,
    /// As JSON; HTTP only.
    Json,
    /// As bytes: HTTP's binary tensor extension, gRPC's raw contents.
    Binary,
    /// In system shared memory, inputs and outputs.
    Shared,
}

/// What a running [`Target`] reports to, and what can stop it.
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
    /// What watches over a run of `plan`, which `stop` ends. `keep_records` keeps every single
    /// request; `label` goes before what the progress bar says.
    pub fn new(plan: &Plan, stop: Arc<AtomicBool>, keep_records: bool, label: &str) -> Watch {
        let live = Arc::<Live>::default();
        let tally = Tally::new(plan, Arc::clone(&live), keep_records);
        let progress = Progress::new(plan, Arc::clone(&live), label);
        Watch { tally, stop, progress, live, keep_records }
    }

    /// Whether the run was asked to end early.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// A tally for one more thread of the run, to be merged into the first.
    fn part(&self, plan: &Plan) -> Tally {
        Tally::new(plan, Arc::clone(&self.live), self.keep_records)
    }
}

/// An infer request, before it is put into a protocol's words.
struct Call<'a> {
    model: &'a str,
    tensors: &'a [Tensor],
    limit: Option<Nanos>,
    class: Option<u8>,
    /// As JSON, where the protocol has it.
    json: bool,
    /// Where in a shared memory region the tensors are, if they are not in the request itself.
    shared: Option<SharedInputs<'a>>,
}

impl Call<'_> {
    /// The class as the protocol counts: from 1, since 0 leaves it to the model.
    fn priority(&self) -> Option<u8> {
        self.class.map(|class| class + 1)
    }
}

/// Tensors of a request that lie in a shared memory region: its name, and each tensor's slice.
struct SharedInputs<'a> {
    region: &'a str,
    slices: &'a [RegionSlice],
}

/// Bytes of a shared memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegionSlice {
    offset: usize,
    bytes: usize,
}
