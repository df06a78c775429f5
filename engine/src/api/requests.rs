//! One HTTP request from its head to its response: routing, reading the body within its limits, asking the
//! engine. Owned by an API core; `connection` calls [`Core::respond`] for each request.

use super::answers::Answers;
use super::dashboard;
use super::glommio_io::within;
use super::kserve::{self, Infer, ModelPart, Problem, Route};
use super::server::ApiConfig;
use crate::observe::{FailureLog, InferOutcome, NotReady, Observatory, Recorder};
use crate::runtime::frontend::{Ask, Due, Frontend, ModelInfo};
use futures_channel::oneshot;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// The header that says in a word how an infer request ended: see docs/api.md.
pub const OUTCOME: HeaderName = HeaderName::from_static("symphony-outcome");

/// The header by which Triton's clients announce binary tensors.
const BINARY_HEADER: &str = "inference-header-content-length";

/// A body that is promised gets this much memory at once; the rest comes as the bytes do.
const FIRST_ROOM: usize = 1 << 20;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// What all connections of one API core share.
pub(super) struct Core {
    /// The way to the engine.
    pub(super) answers: Answers,
    /// Limits and time-outs.
    pub(super) config: ApiConfig,
    /// What all cores have counted.
    pub(super) observatory: Arc<Observatory>,
    /// What this one counts.
    pub(super) recorder: Rc<Recorder>,
    failures: FailureLog,
    /// By connection number; `None` once it was asked to end, which dropping the sender does.
    pub(super) connections: RefCell<HashMap<u64, Option<oneshot::Sender<()>>>>,
    body_bytes: Cell<usize>,
}

/// A response with its body whole.
pub(super) type Reply = Response<Full<Bytes>>;

impl Core {
    /// The shared state of a core with no connections yet.
    pub(super) fn new(frontend: Frontend, config: ApiConfig) -> Core {
        let through = || Arc::new(Observatory::through(&frontend));
        let observatory = config.observatory.clone().unwrap_or_else(through);
        let recorder = Rc::new(observatory.recorder());
        Core {
            answers: Answers::new(frontend, Rc::clone(&recorder)),
            config,
            observatory,
            recorder,
            failures: FailureLog::default(),
            connections: RefCell::default(),
            body_bytes: Cell::new(0),
        }
    }

    /// Asks every connection to end after the request at hand.
    pub(super) fn ask_connections_to_end(&self) {
        self.connections.borrow_mut().values_mut().for_each(|stop| *stop = None);
    }

    /// A connection was opened; dropping `stop` asks it to end.
    pub(super) fn opened(&self, number: u64, stop: oneshot::Sender<()>) {
        self.connections.borrow_mut().insert(number, Some(stop));
        self.recorder.opened();
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

    /// Answers one request, whatever it is.
    pub(super) async fn respond(&self, request: Request<Incoming>) -> Reply {
        let response = self.route(request).await.unwrap_or_else(|problem| refusal(&problem));
        self.recorder.responded(response.status().as_u16());
        response
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Reply, Problem> {
        let path = request.uri().path();
        let route = Route::of(path).ok_or_else(|| {
            let known = "GET /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME[/ready], /metrics, /dashboard and \
                         POST /v2/models/NAME/infer";
            Problem::invalid(
                StatusCode::NOT_FOUND,
                format!("nothing is served at this path; there are {known}"),
            )
        })?;
        if !route.allowed().split(", ").any(|m| m == request.method().as_str()) {
            return Ok(wrong_method(request.method(), route.allowed()));
        }
        match route {
            Route::Server => Ok(ok(kserve::server_metadata())),
            Route::Live => Ok(ok(r#"{"live":true}"#)),
            Route::Ready => Ok(self.readiness(json!({}))),
            Route::Metrics => Ok(with_type(StatusCode::OK, PROMETHEUS, self.observatory.metrics())),
            Route::Dashboard(part) => self.dashboard(part, request.uri().query().unwrap_or_default()),
            Route::Model { name, version, part } => {
                // Held for the request: what it lists can be asked until then, even if it is unloaded meanwhile.
                let models = self.answers.models();
                let model = kserve::find_model(&models, &name, version.as_deref())?;
                match part {
                    ModelPart::Metadata => Ok(ok(kserve::model_metadata(&models, model))),
                    ModelPart::Ready => Ok(self.readiness(json!({ "name": model.name }))),
                    ModelPart::Infer => Ok(self.infer(model, request).await),
                }
            }
        }
    }

    fn dashboard(&self, part: dashboard::Part, query: &str) -> Result<Reply, Problem> {
        let (content_type, body) = part
            .body(&self.observatory, query)
            .map_err(|what| Problem::invalid(StatusCode::BAD_REQUEST, what))?;
        let mut response = with_type(StatusCode::OK, content_type, body);
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, dashboard::POLICY);
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// Whether requests can be served: `"ready"` and, if not, `"reasons"`, added to `body`.
    fn readiness(&self, mut body: Value) -> Reply {
        let reasons = self.observatory.readiness().err();
        body["ready"] = reasons.is_none().into();
        let Some(reasons) = reasons else { return ok(body.to_string()) };
        body["reasons"] = reasons.iter().map(NotReady::to_string).collect();
        with_type(StatusCode::SERVICE_UNAVAILABLE, JSON, body.to_string())
    }

    async fn infer(&self, model: &ModelInfo, request: Request<Incoming>) -> Reply {
        let mut counted = Counted { core: self, model, outcome: InferOutcome::Gone };
        let (outcome, mut response) = match self.try_infer(model, request).await {
            Ok(body) => (InferOutcome::Good, ok(body)),
            Err(problem) => {
                self.failures.note(self.observatory.now(), &model.name, problem.outcome, &problem.message);
                (problem.outcome, refusal(&problem))
            }
        };
        counted.outcome = outcome;
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.name()));
        response
    }

    async fn try_infer(&self, model: &ModelInfo, request: Request<Incoming>) -> Result<Vec<u8>, Problem> {
        let infer = {
            let body = self.read_body(request).await?;
            Infer::parse(&body.bytes, model)?
        };
        let due = infer.timeout.map_or(Due::Slo, Due::Within);
        let fill = |_, slot: &mut [u8]| slot.copy_from_slice(&infer.row);
        let reply = self.answers.ask(&Ask { due, ..Ask::one(model.id) }, fill).await?;
        kserve::infer_answer(model, &infer, &reply)
    }

    async fn read_body(&self, request: Request<Incoming>) -> Result<BodyLease<'_>, Problem> {
        let promised = promised_length(request.headers(), self.config.max_body_bytes)?;
        let mut body = request.into_body();
        let mut lease = BodyLease { core: self, bytes: Vec::new() };
        lease.bytes.reserve(promised.min(FIRST_ROOM));
        let end = Instant::now() + self.config.body_timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now()).min(self.config.read_timeout);
            let frame = within(left, body.frame()).await.ok_or_else(|| self.slow_body(lease.bytes.len()))?;
            let Some(frame) = frame else { return Ok(lease) };
            let frame = frame.map_err(|error| {
                Problem::invalid(StatusCode::BAD_REQUEST, format!("the request's body broke off: {error}"))
            })?;
            if let Ok(data) = frame.into_data() {
                lease.add(&data)?;
            }
        }
    }

    fn slow_body(&self, read: usize) -> Problem {
        let (pause, whole) = (self.config.read_timeout, self.config.body_timeout);
        let message = format!(
            "the request's body came too slowly: {read} bytes so far; a pause may take {pause:?}, the whole {whole:?}"
        );
        Problem::invalid(StatusCode::REQUEST_TIMEOUT, message)
    }
}

/// Counts an infer request once, when its handler ends or is dropped because the client left.
struct Counted<'a> {
    core: &'a Core,
    model: &'a ModelInfo,
    outcome: InferOutcome,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.core.recorder.ended(self.model.id, self.outcome);
    }
}

/// A request's body, counted against what all bodies of the core may hold together.
struct BodyLease<'a> {
    core: &'a Core,
    bytes: Vec<u8>,
}

impl BodyLease<'_> {
    fn add(&mut self, data: &[u8]) -> Result<(), Problem> {
        let config = &self.core.config;
        if self.bytes.len() + data.len() > config.max_body_bytes {
            return Err(too_large("more", config.max_body_bytes));
        }
        let together = self.core.body_bytes.get() + data.len();
        if together > config.max_bodies_bytes {
            let limit = config.max_bodies_bytes;
            let message = format!(
                "the server is overloaded: request bodies being read fill their {limit} bytes; try again later"
            );
            let outcome = InferOutcome::Overloaded;
            return Err(Problem { status: StatusCode::TOO_MANY_REQUESTS, message, outcome });
        }
        self.core.body_bytes.set(together);
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl Drop for BodyLease<'_> {
    fn drop(&mut self) {
        self.core.body_bytes.set(self.core.body_bytes.get() - self.bytes.len());
    }
}

/// What Content-Length says, zero where there is none.
fn promised_length(headers: &HeaderMap, limit: usize) -> Result<usize, Problem> {
    let bad = |message: &str| Problem::invalid(StatusCode::BAD_REQUEST, message);
    if headers.contains_key(BINARY_HEADER) {
        return Err(bad(
            "this server does not speak the binary tensor extension; send tensors as JSON \"data\"",
        ));
    }
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        let message = "compressed bodies are not read; send the JSON without a Content-Encoding";
        return Err(Problem::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    // hyper has refused what is no number.
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
    usize::try_from(length)
        .ok()
        .filter(|&length| length <= limit)
        .ok_or_else(|| too_large(&length.to_string(), limit))
}

fn too_large(size: &str, limit: usize) -> Problem {
    let message = format!("the request's body has {size} bytes; the limit is {limit}");
    Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message)
}

fn ok(body: impl Into<Bytes>) -> Reply {
    with_type(StatusCode::OK, JSON, body)
}

fn with_type(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn refusal(problem: &Problem) -> Reply {
    let mut response = with_type(problem.status, JSON, problem.body());
    let headers = response.headers_mut();
    match problem.status {
        StatusCode::TOO_MANY_REQUESTS => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // What is left of the body would be taken for the next request.
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        _ => {}
    }
    response
}

fn wrong_method(method: &Method, allowed: &'static str) -> Reply {
    let message = format!("this path does not take {method}; it takes {allowed}");
    let mut response = refusal(&Problem::invalid(StatusCode::METHOD_NOT_ALLOWED, message));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
