//! The HTTP adapter: `routes` knows the paths, `infer` the bodies of infer requests, `admin` all
//! other bodies; this file leads a request through them.

mod admin;
mod infer;
mod routes;

use super::access::{Caller, Peer};
use super::compression::Coding;
use super::core::{Core, Counted, DEADLINE, OUTCOME};
use super::dashboard;
use super::inference::{Inference, Terms};
use super::problem::Problem;
use super::regions::Regions;
use super::reply::{Reply, ReplyBody};
use crate::runtime::frontend::ModelInfo;
use crate::telemetry::NotReady;
use crate::telemetry::otlp::Call;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER,
};
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, Response, StatusCode, Version};
use routes::{MemoryKind, MemoryPart, ModelPart, Route};
use serde_json::{Value, json};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// Answers smaller than this many bytes are sent as they are, whatever the client takes.
const WORTH_PACKING: usize = 1_024;

/// Answers one request, whatever it is.
pub(super) async fn respond(core: &Core, request: Request<Incoming>, peer: &Peer) -> Reply {
    let version = request.version();
    let mut response = route(core, request, peer).await.unwrap_or_else(|problem| refusal(&problem));
    if version == Version::HTTP_2 {
        // HTTP/2 knows no such header: the stream ends by itself.
        response.headers_mut().remove(CONNECTION);
    }
    core.recorder.responded(response.status().as_u16());
    response
}

async fn route(core: &Core, request: Request<Incoming>, peer: &Peer) -> Result<Reply, Problem> {
    let Some(route) = Route::of(request.uri().path()) else {
        let message = "nothing is served at this path; there are GET /v2, /v2/health/live, /v2/health/ready, \
                       /v2/models/NAME[/ready|/config|/stats], POST /v2/models/NAME/infer, /metrics, /dashboard and the paths of \
                       the extensions that docs/api.md lists";
        return Err(Problem::invalid(StatusCode::NOT_FOUND, message));
    };
    if !route.allowed().split(", ").any(|m| m == request.method().as_str()) {
        return Ok(wrong_method(request.method(), route.allowed()));
    }
    let caller = match route {
        Route::Live | Route::Ready => core.anybody(peer.listener),
        _ => core.identify(peer.listener, request.headers())?,
    };
    if route.is_admin(request.method()) {
        caller.see_admin()?;
    }
    caller.count()?;
    let caller = &caller;
    match route {
        Route::Server => Ok(ok(admin::server_metadata())),
        Route::Live => Ok(ok(r#"{"live":true}"#)),
        Route::Ready => Ok(readiness(core, json!({}))),
        Route::Metrics => Ok(with_type(StatusCode::OK, PROMETHEUS, core.observatory.metrics())),
        Route::Dashboard(part) => dashboard_part(core, part, request.uri().query().unwrap_or_default()),
        Route::Statistics => Ok(ok(admin::statistics(core, caller, "", "")?)),
        Route::Model { name, version, part } => model(core, caller, &name, &version, part, request).await,
        Route::Trace => settings(core, request, admin::update_trace, |_| admin::trace()).await,
        Route::Log => settings(core, request, admin::update_log, admin::log).await,
        Route::Index => {
            let body = body(core, request).await?;
            Ok(ok(admin::index(core, caller, &body)?))
        }
        Route::Load(name) => {
            let body = body(core, request).await?;
            admin::check_load(&body)?;
            core.load(&name).await?;
            Ok(ok("{}"))
        }
        Route::Unload(name) => {
            core.unload(&name).await?;
            Ok(ok("{}"))
        }
        Route::Memory { kind, region, part } => memory(core, kind, &region, part, request).await,
    }
}

fn dashboard_part(core: &Core, part: dashboard::Part, query: &str) -> Result<Reply, Problem> {
    let (content_type, body) = part.body(&core.observatory, query).map_err(Problem::bad)?;
    let mut response = with_type(StatusCode::OK, content_type, body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, dashboard::POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn model(
    core: &Core,
    caller: &Caller,
    name: &str,
    version: &str,
    part: ModelPart,
    request: Request<Incoming>,
) -> Result<Reply, Problem> {
    let model = core.find_model(caller, name, version)?;
    match part {
        ModelPart::Metadata => Ok(ok(admin::model_metadata(core, &model))),
        ModelPart::Ready => Ok(readiness(core, json!({ "name": model.name }))),
        ModelPart::Config => Ok(ok(admin::model_config(&model))),
        ModelPart::Statistics => Ok(ok(admin::statistics(core, caller, name, version)?)),
        ModelPart::Trace => settings(core, request, admin::update_trace, |_| admin::trace()).await,
        ModelPart::Infer => Ok(infer(core, &model, request).await),
    }
}

/// Takes in new settings, if the request brings any, and answers those that hold then.
async fn settings(
    core: &Core,
    request: Request<Incoming>,
    update: impl Fn(&Core, &[u8]) -> Result<(), Problem>,
    all: impl Fn(&Core) -> Vec<u8>,
) -> Result<Reply, Problem> {
    if request.method() == Method::POST {
        let body = body(core, request).await?;
        update(core, &body)?;
    }
    Ok(ok(all(core)))
}

async fn memory(
    core: &Core,
    kind: MemoryKind,
    region: &str,
    part: MemoryPart,
    request: Request<Incoming>,
) -> Result<Reply, Problem> {
    let regions = &core.config.shared.regions;
    match (kind, part) {
        (MemoryKind::System, MemoryPart::Status) => Ok(ok(admin::regions(&regions.list(region)?))),
        (MemoryKind::System, MemoryPart::Register) => {
            let body = body(core, request).await?;
            admin::register(regions, region, &body)?;
            Ok(ok("{}"))
        }
        (MemoryKind::System, MemoryPart::Unregister) => {
            regions.unregister(region);
            Ok(ok("{}"))
        }
        (MemoryKind::Cuda, MemoryPart::Status) => Ok(ok("[]")),
        (MemoryKind::Cuda, MemoryPart::Register) => Err(no_cuda_memory()),
        // There is none, which is what was asked for.
        (MemoryKind::Cuda, MemoryPart::Unregister) => Ok(ok("{}")),
    }
}

/// Why a region of CUDA shared memory can't be registered.
pub(super) fn no_cuda_memory() -> Problem {
    let message = "CUDA shared memory is not supported by this server; use system shared memory";
    Problem::invalid(StatusCode::NOT_IMPLEMENTED, message)
}

async fn infer(core: &Core, model: &ModelInfo, request: Request<Incoming>) -> Reply {
    let mut counted = core.count(model, Call::Http, core.caller(request.headers()));
    let result = try_infer(core, model, request, &mut counted).await;
    let outcome = counted.end(&result);
    let mut response = result.unwrap_or_else(|problem| refusal(&problem));
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.name()));
    response
}

async fn try_infer(
    core: &Core,
    model: &ModelInfo,
    request: Request<Incoming>,
    counted: &mut Counted<'_>,
) -> Result<Reply, Problem> {
    let terms = terms(request.headers())?;
    let (head, body) = request.into_parts();
    let coding = coding(&head.headers)?;
    let mut lease = core.read_body(&head.headers, body).await?;
    let body = unpacked(coding, lease.bytes(), core.config.max_body_bytes)?;
    let most_rows = core.answers.most_rows(model.id);
    let regions = &core.config.shared.regions;
    let inference = infer::parse(&head.headers, &body, terms, model, regions, most_rows)?;
    drop(body);
    let answered = core.run(model, inference, lease, counted).await?;
    let (body, json_bytes) = infer::answer(model, &answered)?;
    Ok(packed(&head.headers, body, json_bytes))
}

/// Reads the body of an infer request for `model` that is there whole, as a connection's is read.
///
/// Errors: 400, 413 where it unpacks to more than `limit` bytes, 415.
pub(super) fn read(
    headers: &HeaderMap,
    body: Bytes,
    limit: usize,
    model: &ModelInfo,
    regions: &Regions,
    most_rows: usize,
) -> Result<Inference, Problem> {
    let terms = terms(headers)?;
    let body = unpacked(coding(headers)?, body, limit)?;
    infer::parse(headers, &body, terms, model, regions, most_rows)
}

/// What a request's headers say of its terms.
fn terms(headers: &HeaderMap) -> Result<Terms, Problem> {
    let mut terms = Terms::new();
    headers.get(DEADLINE).map_or(Ok(()), |deadline| terms.deadline_header(deadline.as_bytes()))?;
    Ok(terms)
}

fn coding(headers: &HeaderMap) -> Result<Option<Coding>, Problem> {
    headers.get(CONTENT_ENCODING).map_or(Ok(None), |name| Coding::named(name.as_bytes()))
}

fn unpacked(coding: Option<Coding>, body: Bytes, limit: usize) -> Result<Bytes, Problem> {
    match coding {
        None => Ok(body),
        Some(coding) => coding.unpack(&body, limit),
    }
}

/// The whole body of a request that is not an infer request.
async fn body(core: &Core, request: Request<Incoming>) -> Result<Bytes, Problem> {
    let (head, body) = request.into_parts();
    let coding = coding(&head.headers)?;
    let mut lease = core.read_body(&head.headers, body).await?;
    unpacked(coding, lease.bytes(), core.config.max_body_bytes)
}

/// The answer to an infer request, compressed if its client takes that and it is worth it.
fn packed(request: &HeaderMap, body: Vec<u8>, json_bytes: Option<usize>) -> Reply {
    let accepted = request.get(ACCEPT_ENCODING).and_then(|list| Coding::acceptable(list.to_str().ok()?));
    let coding = accepted.filter(|_| body.len() >= WORTH_PACKING);
    let body = match coding {
        Some(coding) => coding.pack(&body),
        None => body,
    };
    let mut response = with_type(StatusCode::OK, if json_bytes.is_some() { BINARY } else { JSON }, body);
    let headers = response.headers_mut();
    if let Some(length) = json_bytes {
        headers.insert(infer::JSON_LENGTH, HeaderValue::from(length));
    }
    if let Some(coding) = coding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    }
    response
}

fn ok(body: impl Into<Bytes>) -> Reply {
    with_type(StatusCode::OK, JSON, body)
}

/// Whether requests can be served: `"ready"` and, if not, `"reasons"`, added to `body`.
fn readiness(core: &Core, mut body: Value) -> Reply {
    let reasons = core.observatory.readiness().err();
    body["ready"] = reasons.is_none().into();
    let Some(reasons) = reasons else { return ok(body.to_string()) };
    body["reasons"] = reasons.iter().map(NotReady::to_string).collect();
    with_type(StatusCode::SERVICE_UNAVAILABLE, JSON, body.to_string())
}

fn with_type(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Reply {
    let mut response = Response::new(ReplyBody::whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn refusal(problem: &Problem) -> Reply {
    let mut response = with_type(problem.status, JSON, problem.body());
    let headers = response.headers_mut();
    match problem.status {
        StatusCode::TOO_MANY_REQUESTS => {
            let seconds = problem.wait().as_secs_f64().ceil() as u64;
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        StatusCode::UNAUTHORIZED => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
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
