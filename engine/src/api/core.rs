//! What all connections of one API core share, and what a request needs whatever its protocol:
//! finding its model, reading its body within the limits, running it, counting it.

use super::access::{Caller, Peer};
use super::answers::{Answers, Reply as EngineReply};
use super::inference::{Answered, Inference, refused};
use super::problem::{Problem, names, quoted};
use super::reply::Reply;
use super::server::ApiConfig;
use super::statistics::CoreStatistics;
use super::{grpc, http};
use crate::control::{ControlError, Done, IndexEntry, Repository, State};
use crate::runtime::frontend::{Ask, Frontend, ModelInfo};
use crate::telemetry::otlp::{Call, Parent, Traced, TracedRun, Tracer};
use crate::telemetry::{FailureLog, InferOutcome, Metrics, Telemetry};
use futures_channel::oneshot;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName};
use hyper::{Request, StatusCode};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

/// The header that says in a word how an infer request ended: see docs/api.md.
pub const OUTCOME: HeaderName = HeaderName::from_static("symphony-outcome");

/// The header that says how long a client waits for the answer, in milliseconds, or `none`.
pub(super) const DEADLINE: HeaderName = HeaderName::from_static("x-request-deadline-ms");

/// The headers of W3C Trace Context, in which a client says which span its request belongs to.
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");

/// What all connections of one API core share.
pub(super) struct Core {
    /// The way to the engine.
    pub(super) answers: Answers,
    /// Limits and time-outs, and what is shared with other cores.
    pub(super) config: ApiConfig,
    /// What all cores have counted.
    pub(super) observatory: Arc<Telemetry>,
    /// What this one counts.
    pub(super) recorder: Rc<Metrics>,
    /// What Triton's clients want counted.
    statistics: CoreStatistics,
    failures: FailureLog,
    tracer: Tracer,
    /// By connection number; `None` once it was asked to end, which dropping the sender does.
    pub(super) connections: RefCell<HashMap<u64, Option<oneshot::Sender<()>>>>,
    next_connection: Cell<u64>,
    /// Of all bodies that are being read.
    pub(super) body_bytes: Cell<usize>,
    /// Streams to be told when the server stops.
    pub(super) idle_streams: IdleStreams,
}

/// Streams without a request at hand: nothing but the server's end or their client has to do with
/// them.
#[derive(Default)]
pub(super) struct IdleStreams {
    stopping: Cell<bool>,
    next: Cell<u64>,
    wakers: RefCell<HashMap<u64, Waker>>,
}

impl IdleStreams {
    /// A number for a new stream.
    pub(super) fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Whether the server stops; if it does later, the stream of this number is woken.
    pub(super) fn stops(&self, stream: u64, cx: &Context<'_>) -> bool {
        if !self.stopping.get() {
            self.wakers.borrow_mut().insert(stream, cx.waker().clone());
        }
        self.stopping.get()
    }

    /// The stream is gone.
    pub(super) fn forget(&self, stream: u64) {
        self.wakers.borrow_mut().remove(&stream);
    }

    fn stop(&self) {
        self.stopping.set(true);
        self.wakers.take().into_values().for_each(Waker::wake);
    }
}

impl Core {
    /// The shared state of a core with no connections yet.
    pub(super) fn new(frontend: Frontend, config: ApiConfig) -> Core {
        let through = || Arc::new(Telemetry::through(&frontend));
        let observatory = config.observatory.clone().unwrap_or_else(through);
        let recorder = Rc::new(observatory.add_core());
        Core {
            statistics: config.shared.statistics.join(),
            failures: FailureLog::default(),
            tracer: Tracer::new(config.shared.tracing.clone()),
            answers: Answers::new(frontend, Rc::clone(&recorder), config.placement.idle),
            observatory,
            recorder,
            config,
            connections: RefCell::default(),
            next_connection: Cell::new(0),
            body_bytes: Cell::new(0),
            idle_streams: IdleStreams::default(),
        }
    }

    /// A new connection's number; dropping `stop` asks it to end.
    pub(super) fn opened(&self, stop: oneshot::Sender<()>) -> u64 {
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        self.connections.borrow_mut().insert(number, Some(stop));
        self.recorder.opened();
        number
    }

    /// Asks every connection to end after the request at hand.
    pub(super) fn ask_connections_to_end(&self) {
        self.idle_streams.stop();
        self.connections.borrow_mut().values_mut().for_each(|stop| *stop = None);
    }

    /// Forgets a connection.
    pub(super) fn closed(&self, number: u64) {
        self.connections.borrow_mut().remove(&number);
        self.recorder.closed();
    }

    /// Whether no connection is open and no request is with the engine.
    pub(super) fn is_quiet(&self) -> bool {
        self.connections.borrow().is_empty() && self.answers.in_flight() == 0
    }

    /// Answers one request, whatever it is, in the protocol that it speaks.
    pub(super) async fn respond(self: Rc<Core>, request: Request<Incoming>, peer: Peer) -> Reply {
        if grpc::is_grpc(&request) {
            grpc::respond(self, request, peer).await
        } else {
            http::respond(&self, request, &peer).await
        }
    }

    /// The versions of the model of this name that are served, oldest first.
    pub(super) fn versions(&self, name: &str) -> Vec<String> {
        let models = self.answers.models();
        let named = ModelInfo::served(&models).filter(|model| model.name == name);
        let mut versions: Vec<u64> = named.map(|model| model.version).collect();
        versions.sort_unstable();
        versions.iter().map(u64::to_string).collect()
    }

    /// The model of this name and version; the newest if the version is empty.
    ///
    /// Errors: 403 where it is none of `caller`'s, 404 with the names or versions that there are.
    pub(super) fn find_model(&self, caller: &Caller, name: &str, version: &str) -> Result<Found, Problem> {
        caller.see_model(name)?;
        let table = self.answers.models();
        let model = match version {
            "" => ModelInfo::find(&table, name, None),
            _ => version.parse().ok().and_then(|version| ModelInfo::find(&table, name, Some(version))),
        };
        if let Some(model) = model {
            let at = model.id.0 as usize;
            return Ok(Found { table, at });
        }
        let versions = self.versions(name);
        let message = if versions.is_empty() {
            let served = ModelInfo::served(&table).map(|model| model.name.as_str());
            let known: Vec<&str> = served.filter(|name| caller.may_use(name)).collect();
            format!("there is no model {}; the models are {}", quoted(name), names(known.into_iter()))
        } else {
            let known = names(versions.iter().map(String::as_str));
            format!("model {name:?} has no version {}; it has {known}", quoted(version))
        };
        Err(Problem::invalid(StatusCode::NOT_FOUND, message))
    }

    /// The models that a request for several names: all if the name is empty, all versions if the
    /// version is.
    ///
    /// Errors: as [`Core::find_model`].
    pub(super) fn find_models(
        &self,
        caller: &Caller,
        name: &str,
        version: &str,
    ) -> Result<Vec<ModelInfo>, Problem> {
        if !name.is_empty() {
            let found = self.find_model(caller, name, version)?;
            if !version.is_empty() {
                return Ok(vec![found.clone()]);
            }
        }
        let table = self.answers.models();
        let wanted = ModelInfo::served(&table)
            .filter(|model| caller.may_use(&model.name) && (name.is_empty() || model.name == name));
        Ok(wanted.cloned().collect())
    }

    /// Runs a request that was found right, and counts it; `counted` is told what the engine said.
    /// `held`, which keeps the request's bytes counted, is let go as soon as the engine has them.
    ///
    /// Errors: why it has no result in time.
    pub(super) async fn run(
        &self,
        model: &ModelInfo,
        inference: Inference,
        held: impl Sized,
        counted: &mut Counted<'_>,
    ) -> Result<Answered, Problem> {
        let ask = inference.ask(model);
        let Inference { id, inputs, wanted, .. } = inference;
        let rows = inputs.rows;
        let fill = move |row: usize, slot: &mut [u8]| {
            let _until_sent = &held;
            inputs.fill(model, row, slot);
        };
        let reply = self.answers.ask(&ask, fill).await?;
        self.statistics.count(model, rows.count, &reply);
        counted.saw(&ask, &reply);
        match refused(model, &reply) {
            None => Ok(Answered::new(id, wanted, rows, reply)),
            Some(problem) => Err(problem),
        }
    }

    /// Which span a request with these headers belongs to, if anything is traced.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Option<Parent> {
        if !self.tracer.is_on() {
            return None;
        }
        let state = headers.get(TRACE_STATE).map(|value| value.as_bytes()).unwrap_or_default();
        Parent::parse(headers.get(TRACE_PARENT)?.as_bytes(), state)
    }

    /// Counts an infer request once, when the guard goes: with what [`Counted::end`] was told, or
    /// as one whose client left; and traces it, where that is wanted.
    pub(super) fn count<'a>(
        &'a self,
        model: &'a ModelInfo,
        call: Call,
        caller: Option<Parent>,
    ) -> Counted<'a> {
        let trace = self.tracer.begin(call, caller, model, || self.observatory.now());
        Counted { core: self, model, outcome: InferOutcome::Gone, trace }
    }

    /// Every version of every model that `caller` may use: of the repository, and of those that the
    /// server started with.
    pub(super) fn repository_index(&self, caller: &Caller) -> Vec<IndexEntry> {
        let mut index = self.config.shared.repository.as_ref().map(|from| from.index()).unwrap_or_default();
        for model in ModelInfo::served(&self.answers.models()) {
            if !index.iter().any(|of| of.name == model.name && of.version == Some(model.version)) {
                let (name, version) = (model.name.clone(), Some(model.version));
                index.push(IndexEntry { name, version, state: State::Ready, reason: String::new() });
            }
        }
        index.retain(|entry| caller.may_use(&entry.name));
        index
    }

    /// Loads a model of the repository.
    ///
    /// Errors: what the repository says; 503 where there is none.
    pub(super) async fn load(&self, name: &str) -> Result<(), Problem> {
        self.order(|repository, done| repository.load(name, done)).await
    }

    /// Unloads a model.
    ///
    /// Errors: as [`Core::load`].
    pub(super) async fn unload(&self, name: &str) -> Result<(), Problem> {
        self.order(|repository, done| repository.unload(name, done)).await
    }

    async fn order(&self, order: impl FnOnce(&Repository, Done)) -> Result<(), Problem> {
        const OFF: ControlError = ControlError::Off("explicit control is off: start with a model repository");
        let Some(repository) = &self.config.shared.repository else { return Err(OFF.into()) };
        let (done, ended) = oneshot::channel();
        // Whoever asked may be gone.
        order(repository, Box::new(|result| drop(done.send(result))));
        const GONE: ControlError = ControlError::Off("the control of the repository has ended");
        Ok(ended.await.unwrap_or(Err(GONE))?)
    }
}

/// A model that a request is about. It can be asked as long as this is held, even if it is unloaded
/// meanwhile; so it is held for no longer than the request.
pub(super) struct Found {
    table: Arc<[ModelInfo]>,
    at: usize,
}

impl Deref for Found {
    type Target = ModelInfo;

    fn deref(&self) -> &ModelInfo {
        &self.table[self.at]
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Problem {
        let status = match &error {
            ControlError::Off(_) => StatusCode::SERVICE_UNAVAILABLE,
            ControlError::Unknown(_) => StatusCode::NOT_FOUND,
            ControlError::Wrong(_) => StatusCode::BAD_REQUEST,
            ControlError::Busy => StatusCode::TOO_MANY_REQUESTS,
        };
        Problem::invalid(status, error.to_string())
    }
}

/// See [`Core::count`].
pub(super) struct Counted<'a> {
    core: &'a Core,
    model: &'a ModelInfo,
    outcome: InferOutcome,
    trace: Option<Box<Traced>>,
}

impl Counted<'_> {
    /// What the engine said.
    fn saw(&mut self, ask: &Ask, reply: &EngineReply) {
        let Some(trace) = &mut self.trace else { return };
        trace.saw(TracedRun {
            rows: ask.rows,
            class: ask.class.number(),
            timeline: reply.timeline,
            batch_size: reply.batch_size,
            gpu: reply.gpu,
        });
    }

    /// How it ended, which is also returned.
    pub(super) fn end<T>(&mut self, result: &Result<T, Problem>) -> InferOutcome {
        self.outcome = result.as_ref().err().map_or(InferOutcome::Good, |problem| problem.outcome);
        if let Err(problem) = result {
            let now = self.core.observatory.now();
            self.core.failures.note(now, &self.model.name, self.outcome, &problem.message);
        }
        if self.core.config.shared.log.is_verbose() {
            tracing::info!(model = self.model.name, outcome = self.outcome.name(), "infer");
        }
        self.outcome
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.core.recorder.ended(self.model.id, self.outcome);
        if let Some(trace) = self.trace.take() {
            self.core.tracer.end(trace, self.outcome, self.core.observatory.now());
        }
    }
}
