//! The Open Inference Protocol (KServe v2) as far as this server speaks it: which path means what, what an
//! infer request's body must hold, and every body that goes out. Pure; `requests` calls it.

use super::answers::Reply;
use super::dashboard;
use super::tensors;
use crate::clock::Nanos;
use crate::observe::InferOutcome;
use crate::runtime::frontend::{ModelInfo, Outcome, Refusal};
use hyper::StatusCode;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::fmt::Write as _;
use symphony_gpu::TensorSpec;
use symphony_transport::message::Ending;

/// How many names an error lists.
const NAMES_LISTED: usize = 10;

/// How many characters of a client's own words an error repeats.
const QUOTED: usize = 80;

/// What a path asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// `/v2`
    Server,
    /// `/v2/health/live`
    Live,
    /// `/v2/health/ready`
    Ready,
    /// `/metrics`
    Metrics,
    /// `/dashboard` and what is below.
    Dashboard(dashboard::Part),
    /// `/v2/models/NAME[/versions/VERSION]` and what follows.
    Model {
        /// Its name, percent-decoded.
        name: String,
        /// Its version, where the path has one.
        version: Option<String>,
        /// What of it.
        part: ModelPart,
    },
}

/// What a path asks of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelPart {
    /// Its tensors.
    Metadata,
    /// Whether it can serve.
    Ready,
    /// To run it.
    Infer,
}

impl Route {
    /// The route of a path without its query, `None` where there is none.
    pub(super) fn of(path: &str) -> Option<Route> {
        let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        Some(match segments[..] {
            ["metrics"] => Route::Metrics,
            ["dashboard", ref rest @ ..] => Route::Dashboard(dashboard::Part::of(rest)?),
            ["v2"] => Route::Server,
            ["v2", "health", "live"] => Route::Live,
            ["v2", "health", "ready"] => Route::Ready,
            ["v2", "models", name, "versions", version, ref rest @ ..] => {
                Route::Model { name: decoded(name)?, version: Some(decoded(version)?), part: part(rest)? }
            }
            ["v2", "models", name, ref rest @ ..] => {
                Route::Model { name: decoded(name)?, version: None, part: part(rest)? }
            }
            _ => return None,
        })
    }

    /// The methods it answers, as an `Allow` header lists them.
    pub(super) fn allowed(&self) -> &'static str {
        match self {
            Route::Model { part: ModelPart::Infer, .. } => "POST",
            _ => "GET, HEAD",
        }
    }
}

fn part(rest: &[&str]) -> Option<ModelPart> {
    match rest {
        [] => Some(ModelPart::Metadata),
        ["ready"] => Some(ModelPart::Ready),
        ["infer"] => Some(ModelPart::Infer),
        _ => None,
    }
}

fn decoded(segment: &str) -> Option<String> {
    let text = percent_encoding::percent_decode_str(segment).decode_utf8().ok()?;
    (!text.is_empty()).then(|| text.into_owned())
}

/// A request that gets no result: the status, and the words for the body's `error`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Problem {
    /// The HTTP status.
    pub(super) status: StatusCode,
    /// What was wrong, where, and what would be right.
    pub(super) message: String,
    /// How it counts if it was an infer request.
    pub(super) outcome: InferOutcome,
}

impl Problem {
    /// A request that must be changed to succeed.
    pub(super) fn invalid(status: StatusCode, message: impl Into<String>) -> Problem {
        Problem { status, message: message.into(), outcome: InferOutcome::Invalid }
    }

    fn bad(message: impl Into<String>) -> Problem {
        Problem::invalid(StatusCode::BAD_REQUEST, message)
    }

    /// The answer's body, in Triton's shape.
    pub(super) fn body(&self) -> Vec<u8> {
        json!({ "error": self.message }).to_string().into_bytes()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let (status, outcome) = match refusal {
            Refusal::Overloaded => (StatusCode::TOO_MANY_REQUESTS, InferOutcome::Overloaded),
            Refusal::Draining => (StatusCode::SERVICE_UNAVAILABLE, InferOutcome::Draining),
            Refusal::TooManyRows { .. } => (StatusCode::BAD_REQUEST, InferOutcome::Invalid),
            Refusal::Unloaded => (StatusCode::NOT_FOUND, InferOutcome::Invalid),
        };
        Problem { status, message: refusal.to_string(), outcome }
    }
}

/// The model that a path names.
///
/// Errors: 404 with the names or versions that there are.
pub(super) fn find_model<'a>(
    models: &'a [ModelInfo],
    name: &str,
    version: Option<&str>,
) -> Result<&'a ModelInfo, Problem> {
    let versions: Vec<&ModelInfo> = ModelInfo::served(models).filter(|model| model.name == name).collect();
    let Some(newest) = versions.iter().max_by_key(|model| model.version) else {
        let known: Vec<&str> = ModelInfo::served(models).map(|model| model.name.as_str()).collect();
        let known = names(known.into_iter());
        let message = format!("there is no model {}; the models are {known}", quoted(name));
        return Err(Problem::invalid(StatusCode::NOT_FOUND, message));
    };
    match version {
        None => Ok(newest),
        Some(version) => {
            versions.iter().find(|model| model.version.to_string() == version).copied().ok_or_else(|| {
                let known: Vec<String> = versions.iter().map(|model| model.version.to_string()).collect();
                let known = names(known.iter().map(String::as_str));
                let message = format!("model {name:?} has no version {}; it has {known}", quoted(version));
                Problem::invalid(StatusCode::NOT_FOUND, message)
            })
        }
    }
}

/// The body of `GET /v2`.
pub(super) fn server_metadata() -> Vec<u8> {
    json!({ "name": "symphony", "version": env!("CARGO_PKG_VERSION"), "extensions": [] })
        .to_string()
        .into_bytes()
}

/// The body of `GET /v2/models/NAME`: of this version of the model, with all versions of that name among `models`.
pub(super) fn model_metadata(models: &[ModelInfo], model: &ModelInfo) -> Vec<u8> {
    let versions = ModelInfo::served(models).filter(|other| other.name == model.name);
    let versions: Vec<String> = versions.map(|version| version.version.to_string()).collect();
    let tensors = |specs: &[TensorSpec]| -> Vec<Value> {
        specs
            .iter()
            .map(|spec| {
                let shape: Vec<i64> =
                    std::iter::once(-1).chain(spec.shape.iter().map(|&d| d as i64)).collect();
                json!({ "name": spec.name, "datatype": spec.datatype.name(), "shape": shape })
            })
            .collect()
    };
    json!({
        "name": model.name,
        "versions": versions,
        "platform": model.platform,
        "inputs": tensors(&model.signature.inputs),
        "outputs": tensors(&model.signature.outputs),
    })
    .to_string()
    .into_bytes()
}

/// An infer request, understood.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Infer {
    /// The client's own id, to be repeated.
    pub(super) id: Option<String>,
    /// The client's own time limit.
    pub(super) timeout: Option<Nanos>,
    /// The input row in the layout of the model's signature.
    pub(super) row: Vec<u8>,
    /// Which outputs to send, as indices into the signature's.
    pub(super) outputs: Vec<usize>,
}

#[derive(Deserialize)]
struct Body<'a> {
    id: Option<String>,
    parameters: Option<RequestParameters>,
    #[serde(borrow)]
    inputs: Vec<Input<'a>>,
    outputs: Option<Vec<Output>>,
}

#[derive(Deserialize)]
struct RequestParameters {
    #[serde(default, deserialize_with = "microseconds")]
    timeout: Option<Nanos>,
    binary_data_output: Option<bool>,
}

#[derive(Deserialize)]
struct Input<'a> {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    parameters: Option<OutputParameters>,
}

#[derive(Deserialize)]
struct OutputParameters {
    binary_data: Option<bool>,
    classification: Option<Value>,
}

/// A whole number of microseconds, as a number or in a string. Zero is no limit, as with Triton's clients.
fn microseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Nanos>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Number(u64),
        Text(String),
        Else(serde::de::IgnoredAny),
    }
    let us = match Option::<Given>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Given::Number(us)) => Some(us),
        Some(Given::Text(text)) => text.parse().ok(),
        Some(Given::Else(_)) => None,
    };
    let us = us.ok_or_else(|| {
        serde::de::Error::custom("parameters.timeout must be a whole number of microseconds, such as 20000")
    })?;
    Ok((us > 0).then(|| Nanos(us.saturating_mul(1_000))))
}

impl Infer {
    /// Reads the body of an infer request for `model`.
    ///
    /// Errors: 400 with what was wrong, where, and what would be right.
    pub(super) fn parse(body: &[u8], model: &ModelInfo) -> Result<Infer, Problem> {
        let body: Body<'_> = serde_json::from_slice(body).map_err(|e| malformed(&e))?;
        let timeout = match body.parameters {
            Some(RequestParameters { binary_data_output: Some(true), .. }) => return Err(no_binary()),
            Some(parameters) => parameters.timeout,
            None => None,
        };
        let outputs = requested_outputs(body.outputs.unwrap_or_default(), &model.signature.outputs)?;
        let row = input_row(&body.inputs, model)?;
        Ok(Infer { id: body.id, timeout, row, outputs })
    }
}

fn malformed(error: &serde_json::Error) -> Problem {
    let what = shortened(&error.to_string(), 300);
    if error.is_data() {
        return Problem::bad(format!("the body is not an infer request: {what}"));
    }
    Problem::bad(format!("the body is not valid JSON: {what}"))
}

fn no_binary() -> Problem {
    Problem::bad(
        "this server does not speak the binary tensor extension; send and ask for tensors as JSON \"data\"",
    )
}

fn requested_outputs(requested: Vec<Output>, specs: &[TensorSpec]) -> Result<Vec<usize>, Problem> {
    if requested.is_empty() {
        return Ok((0..specs.len()).collect());
    }
    let mut chosen = Vec::new();
    for output in requested {
        let at = position(specs, &output.name, "output")?;
        if chosen.contains(&at) {
            return Err(Problem::bad(format!("output {} is asked for twice", quoted(&output.name))));
        }
        match output.parameters {
            Some(OutputParameters { binary_data: Some(true), .. }) => return Err(no_binary()),
            Some(OutputParameters { classification: Some(_), .. }) => {
                return Err(Problem::bad("this server does not speak the classification extension"));
            }
            _ => chosen.push(at),
        }
    }
    Ok(chosen)
}

fn input_row(inputs: &[Input<'_>], model: &ModelInfo) -> Result<Vec<u8>, Problem> {
    let specs = &model.signature.inputs;
    let mut given: Vec<Option<&Input<'_>>> = vec![None; specs.len()];
    for input in inputs {
        let at = position(specs, &input.name, "input")?;
        if given[at].replace(input).is_some() {
            return Err(Problem::bad(format!("input {} is given twice", quoted(&input.name))));
        }
    }
    let mut row = vec![0; model.signature.input_bytes()];
    for (at, (spec, input)) in specs.iter().zip(given).enumerate() {
        let input = input.ok_or_else(|| {
            let all = names(specs.iter().map(|s| s.name.as_str()));
            Problem::bad(format!("input {:?} is missing; the model's inputs are {all}", spec.name))
        })?;
        let range = model.signature.input_range(at);
        read_input(input, spec, &mut row[range])
            .map_err(|what| Problem::bad(format!("input {:?}: {what}", spec.name)))?;
    }
    Ok(row)
}

fn read_input(input: &Input<'_>, spec: &TensorSpec, out: &mut [u8]) -> Result<(), String> {
    if input.datatype != spec.datatype.name() {
        return Err(format!(
            "datatype is {}; it must be {:?}",
            quoted(&input.datatype),
            spec.datatype.name()
        ));
    }
    let shape = checked_shape(&input.shape, &spec.shape)?;
    let data = input.data.ok_or(
        "\"data\" is missing; this server does not speak the binary tensor or shared memory extensions",
    )?;
    tensors::parse(data.get(), spec.datatype, &shape, out)
}

/// The client's shape, found to be one row's, with or without the batch dimension.
fn checked_shape(given: &[i64], row: &[usize]) -> Result<Vec<usize>, String> {
    let is_row = |shape: &[i64]| shape.iter().copied().eq(row.iter().map(|&d| d as i64));
    if is_row(given) || matches!(given, [1, rest @ ..] if is_row(rest)) {
        return Ok(given.iter().map(|&d| d as usize).collect());
    }
    let batched: Vec<usize> = std::iter::once(1).chain(row.iter().copied()).collect();
    match given {
        [rows, rest @ ..] if *rows > 1 && is_row(rest) => Err(format!(
            "shape is {given:?}, {rows} rows; send one row per request, as {batched:?}: batching is the \
             engine's job"
        )),
        _ if given.len() > tensors::MAX_RANK => {
            Err(format!("shape has {} dimensions; it must be {batched:?} or {row:?}", given.len()))
        }
        _ => Err(format!("shape is {given:?}; it must be {batched:?} or {row:?}")),
    }
}

fn position(specs: &[TensorSpec], name: &str, kind: &str) -> Result<usize, Problem> {
    specs.iter().position(|spec| spec.name == name).ok_or_else(|| {
        let known = names(specs.iter().map(|s| s.name.as_str()));
        Problem::bad(format!("{kind} {} is not one of the model's {kind}s {known}", quoted(name)))
    })
}

fn names<'a>(all: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = all.len().saturating_sub(NAMES_LISTED);
    let mut text = format!("{:?}", all.take(NAMES_LISTED).collect::<Vec<_>>());
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text, QUOTED))
}

fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// The body of an answer in time, or why there is none.
///
/// Errors: late and dropped 504, full 429, failed 500, stopped 503; each says what happened.
pub(super) fn infer_answer(model: &ModelInfo, request: &Infer, reply: &Reply) -> Result<Vec<u8>, Problem> {
    let budget = in_ms(reply.due - reply.arrival);
    let spent = in_ms(reply.finished - reply.arrival);
    let (gpu, batch) = (reply.gpu.0, reply.batch_size);
    let (status, outcome, message) = match reply.outcome {
        Outcome::Good => return Ok(infer_body(model, request, reply)),
        Outcome::Late(by) => (
            StatusCode::GATEWAY_TIMEOUT,
            InferOutcome::Late,
            format!(
                "late: the answer came {} after the deadline, which was {budget} after arrival; it ran on \
                 GPU {gpu} in a batch of {batch}",
                in_ms(by)
            ),
        ),
        Outcome::Bad(Ending::DroppedInQueue) => (
            StatusCode::GATEWAY_TIMEOUT,
            InferOutcome::Dropped,
            format!(
                "dropped in the queue after {spent}: its deadline, {budget} after arrival, could not be met"
            ),
        ),
        Outcome::Bad(Ending::DroppedAtBackend) => (
            StatusCode::GATEWAY_TIMEOUT,
            InferOutcome::Cancelled,
            format!(
                "cancelled at the backend after {spent}: its batch reached GPU {gpu} too late to meet the \
                 deadline, {budget} after arrival"
            ),
        ),
        Outcome::Bad(Ending::Overloaded) => (
            StatusCode::TOO_MANY_REQUESTS,
            InferOutcome::Overloaded,
            format!("overloaded: the queue of model {:?} is full; try again later", model.name),
        ),
        Outcome::Bad(Ending::Failed | Ending::Done) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            InferOutcome::Failed,
            format!(
                "the executor of GPU {gpu} failed on the request's batch of {batch}; the server's log says why"
            ),
        ),
        Outcome::Bad(Ending::Stopped) => (
            StatusCode::SERVICE_UNAVAILABLE,
            InferOutcome::Draining,
            "the engine was stopped before the request could run".to_string(),
        ),
        Outcome::Bad(Ending::Withdrawn) => (
            StatusCode::REQUEST_TIMEOUT,
            InferOutcome::Gone,
            format!("withdrawn after {spent}: the client took the request back before it ran"),
        ),
    };
    Err(Problem { status, message, outcome })
}

fn in_ms(time: Nanos) -> String {
    format!("{:.3} ms", time.as_millis_f64())
}

fn infer_body(model: &ModelInfo, request: &Infer, reply: &Reply) -> Vec<u8> {
    let since_arrival = |at: Nanos| (at - reply.arrival).0 / 1_000;
    let parameters = json!({
        "queued_us": 0,
        "batched_us": since_arrival(reply.batched),
        "started_us": since_arrival(reply.started),
        "finished_us": since_arrival(reply.finished),
        "answered_us": since_arrival(reply.answered),
        "batch_size": reply.batch_size,
        "gpu": reply.gpu.0,
    });
    let mut head = json!({
        "model_name": model.name,
        "model_version": model.version.to_string(),
        "parameters": parameters,
    });
    if let Some(id) = &request.id {
        head["id"] = id.as_str().into();
    }
    let mut out = head.to_string().into_bytes();
    out.pop();
    out.extend(b",\"outputs\":[");
    for (nth, &at) in request.outputs.iter().enumerate() {
        if nth > 0 {
            out.push(b',');
        }
        let spec = &model.signature.outputs[at];
        let shape: Vec<usize> = std::iter::once(1).chain(spec.shape.iter().copied()).collect();
        let head = json!({ "name": spec.name, "datatype": spec.datatype.name(), "shape": shape });
        out.extend(head.to_string().into_bytes());
        out.pop();
        out.extend(b",\"data\":");
        tensors::write(&mut out, spec.datatype, &reply.output[model.signature.output_range(at)]);
        out.push(b'}');
    }
    out.extend(b"]}");
    out
}
