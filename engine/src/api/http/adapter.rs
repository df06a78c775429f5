//! Takes an HTTP request through access control, its route, its body and its answer.

use super::infer::InferCall;
use super::routes::{MemoryKind, MemoryPart, ModelPart, Route};
use super::{admin, gpus, infer};
use crate::api::headers::{APPLICATION, DEADLINE, OUTCOME};
use crate::api::inference::{Inference, RequestDeadline, run};
use crate::api::net::compression::Coding;
use crate::api::net::large_buffers::{let_go, shared};
use crate::api::net::memory::ReadBounds;
use crate::api::net::peer::Peer;
use crate::api::net::response::{ApiResponse, ResponseBody};
use crate::api::net::slices::Slices;
use crate::api::problem::Problem;
use crate::api::services::CoreServices;
use crate::api::services::access::Caller;
use crate::api::services::accounting::InferRecord;
use crate::api::services::models::FoundModel;
use crate::api::services::shared_memory::{Regions, no_cuda_memory};
use crate::api::services::{dashboard, models, repository, weights};
use crate::telemetry::NotReady;
use crate::telemetry::otlp::Call;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap,
    HeaderValue, RETRY_AFTER,
};
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, Response, StatusCode, Version};
use serde_json::{Value, json};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4");

/// The size in bytes below which an answer is not compressed.
pub(in crate::api) const MIN_COMPRESSED_BYTES: usize = 1_024;

/// Answers one request.
pub(in crate::api) async fn respond(
    services: &CoreServices,
    request: Request<Incoming>,
    peer: &Peer,
) -> ApiResponse {
    let (version, is_head) = (request.version(), request.method() == Method::HEAD);
    let mut response = route(services, request, peer).await.unwrap_or_else(|problem| refusal(&problem));
    if version == Version::HTTP_2 {
        // HTTP/2 has no such header: its streams end by themselves.
        response.headers_mut().remove(CONNECTION);
        if is_head {
            response = without_body(response);
        }
    }
    services.metrics.responded(response.status().as_u16());
    response
}

/// Answers a request that came over this version of HTTP and is not handled to its end; its
/// connection is closed.
pub(in crate::api) fn fail(services: &CoreServices, version: Version, problem: &Problem) -> ApiResponse {
    services.metrics.responded(problem.status.as_u16());
    let mut response = refusal(problem);
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(problem.outcome.name()));
    if version != Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Returns the response to HEAD: the headers of the one to GET, and no body. Over HTTP/1.1 hyper
/// leaves the body out itself.
fn without_body(response: ApiResponse) -> ApiResponse {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, ResponseBody::whole(Bytes::new()))
}

async fn route(
    services: &CoreServices,
    request: Request<Incoming>,
    peer: &Peer,
) -> Result<ApiResponse, Problem> {
    let Some(route) = Route::of(request.uri().path()) else {
        let message = "nothing is served at this path; there are GET /v2, /v2/health/live, /v2/health/ready, \
                       /v2/models/NAME[/ready|/config|/stats], POST /v2/models/NAME/infer, /metrics, /dashboard and the paths of \
                       the extensions that docs/api.md lists";
        return Err(Problem::invalid(StatusCode::NOT_FOUND, message));
    };
    if !route.allowed().split(", ").any(|m| m == request.method().as_str()) {
        return Ok(wrong_method(request.method(), route.allowed()));
    }
    let needed = route.permission(request.method());
    let caller = &services.access.admit(peer.listener, request.uri(), request.headers(), needed)?;
    match route {
        Route::Server => Ok(ok(admin::server_metadata())),
        Route::Live => Ok(ok(r#"{"live":true}"#)),
        Route::Ready => Ok(readiness(services, admin::unavailable_models(services))),
        Route::Metrics => Ok(with_type(StatusCode::OK, PROMETHEUS, services.telemetry.metrics())),
        Route::Dashboard(part) => dashboard_part(services, part, request.uri().query().unwrap_or_default()),
        Route::Statistics => Ok(ok(admin::statistics(services, caller, "", "")?)),
        Route::Model { name, version, part } => {
            model(services, caller, &name, &version, part, (request, peer)).await
        }
        Route::Trace => settings(services, (request, peer), admin::update_trace, |_| admin::trace()).await,
        Route::Log => settings(services, (request, peer), admin::update_log, admin::log).await,
        Route::Index => {
            let (body, _bounds) = body(services, request, peer).await?;
            Ok(ok(admin::index(services, caller, &body)?))
        }
        Route::Load(name) => {
            let (body, _bounds) = body(services, request, peer).await?;
            let config = admin::load_config(&body)?;
            repository::load(&services.shared, caller, &name, config).await?;
            Ok(ok("{}"))
        }
        Route::Unload(name) => {
            let (body, _bounds) = body(services, request, peer).await?;
            let dependents = admin::unload_dependents(&body)?;
            repository::unload(&services.shared, caller, &name, dependents).await?;
            Ok(ok("{}"))
        }
        Route::Gpus => Ok(ok(gpus::list(services, caller))),
        Route::Weights(change, name) => {
            let (body, _bounds) = body(services, request, peer).await?;
            let order = gpus::order(change, name, &body)?;
            Ok(ok(gpus::done(&weights::change(&services.shared, caller, order).await?)))
        }
        Route::Memory { kind, region, part } => {
            let regions = services.access.regions(caller, &services.shared);
            memory(services, regions, kind, &region, part, (request, peer)).await
        }
    }
}

fn dashboard_part(
    services: &CoreServices,
    part: dashboard::DashboardPart,
    query: &str,
) -> Result<ApiResponse, Problem> {
    let (content_type, body) = part.body(&services.telemetry, query).map_err(Problem::bad)?;
    let mut response = with_type(StatusCode::OK, content_type, body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, dashboard::POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

async fn model(
    services: &CoreServices,
    caller: &Caller,
    name: &str,
    version: &str,
    part: ModelPart,
    (request, peer): (Request<Incoming>, &Peer),
) -> Result<ApiResponse, Problem> {
    let model = models::find(services, caller, name, version).map_err(|problem| match part {
        // As Triton answers: what is asked for is known, and the model is not ready.
        ModelPart::Ready if problem.status == StatusCode::NOT_FOUND => Problem::bad(problem.message),
        _ => problem,
    })?;
    match part {
        ModelPart::Metadata => Ok(ok(admin::model_metadata(services, &model))),
        ModelPart::Ready if services.telemetry.gpu_memory().is_unloaded(model.id) => {
            Err(Problem::bad(format!("the weights of model {:?} are not loaded", model.name)))
        }
        ModelPart::Ready => Ok(readiness(services, json!({ "name": model.name }))),
        ModelPart::Config => Ok(ok(admin::model_config(&model))),
        ModelPart::Statistics => Ok(ok(admin::statistics(services, caller, name, version)?)),
        ModelPart::Trace => {
            settings(services, (request, peer), admin::update_trace, |_| admin::trace()).await
        }
        ModelPart::Infer => Ok(infer(services, caller, &model, (request, peer)).await),
    }
}

/// Applies the settings that the request brings, if any, and answers with all settings.
async fn settings(
    services: &CoreServices,
    (request, peer): (Request<Incoming>, &Peer),
    update: impl Fn(&CoreServices, &[u8]) -> Result<(), Problem>,
    all: impl Fn(&CoreServices) -> Vec<u8>,
) -> Result<ApiResponse, Problem> {
    if request.method() == Method::POST {
        let (body, _bounds) = body(services, request, peer).await?;
        update(services, &body)?;
    }
    Ok(ok(all(services)))
}

async fn memory(
    services: &CoreServices,
    regions: &Regions,
    kind: MemoryKind,
    region: &str,
    part: MemoryPart,
    (request, peer): (Request<Incoming>, &Peer),
) -> Result<ApiResponse, Problem> {
    match (kind, part) {
        (MemoryKind::System, MemoryPart::Status) => Ok(ok(admin::regions(&regions.list(region)?))),
        (MemoryKind::System, MemoryPart::Register) => {
            let (body, _bounds) = body(services, request, peer).await?;
            admin::register(regions, region, &body)?;
            Ok(ok("{}"))
        }
        (MemoryKind::System, MemoryPart::Unregister) => {
            regions.unregister(region);
            Ok(ok("{}"))
        }
        (MemoryKind::Cuda, MemoryPart::Status) => Ok(ok("[]")),
        (MemoryKind::Cuda, MemoryPart::Register) => Err(no_cuda_memory()),
        // No such region exists, which is what the client wants.
        (MemoryKind::Cuda, MemoryPart::Unregister) => Ok(ok("{}")),
    }
}

async fn infer(
    services: &CoreServices,
    caller: &Caller,
    model: &FoundModel,
    (request, peer): (Request<Incoming>, &Peer),
) -> ApiResponse {
    let parent = services.accounting.parent_span(request.headers());
    let mut record = services.accounting.begin(model, Call::Http, parent);
    services.shared.call_hook(&model.name);
    let result = try_infer(services, caller, model, (request, peer), &mut record).await;
    let outcome = record.end(&result);
    let mut response = result.unwrap_or_else(|problem| refusal(&problem));
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.name()));
    response
}

async fn try_infer<'m: 'r, 'r>(
    services: &CoreServices,
    caller: &Caller,
    model: &'m FoundModel,
    (request, peer): (Request<Incoming>, &Peer),
    record: &mut InferRecord<'r>,
) -> Result<ApiResponse, Problem> {
    let mut deadline = deadline(request.headers())?;
    deadline.limit_class(caller.highest_class());
    let (head, body) = request.into_parts();
    let coding = coding(&head.headers)?;
    let (body, mut bounds) = services.bodies.read(&head.headers, body, &peer.in_flight).await?;
    let body = unpacked(coding, body, &mut bounds).await?;
    let most_rows = models::most_rows(services, model);
    let regions = services.access.regions(caller, &services.shared);
    let call = InferCall { headers: &head.headers, body, deadline, model, regions, most_rows };
    let inference = infer::parse(call, &mut bounds).await?;
    let answered = run(services, model, inference, bounds.memory, record).await?;
    let slices = Slices::on_core();
    let (body, json_bytes) = infer::answer(&answered, &slices).await?;
    drop(answered);
    Ok(packed(&head.headers, body, json_bytes, &slices).await)
}

/// Reads the complete body of an infer request for `model`.
///
/// Errors: 400, 413 if it or what it becomes is too large, 415.
pub(in crate::api) async fn read<'m>(
    headers: &HeaderMap,
    body: Bytes,
    bounds: &mut ReadBounds,
    model: &'m FoundModel,
    regions: &Regions,
    most_rows: usize,
) -> Result<Inference<'m>, Problem> {
    let deadline = deadline(headers)?;
    let body = unpacked(coding(headers)?, body, bounds).await?;
    infer::parse(InferCall { headers, body, deadline, model, regions, most_rows }, bounds).await
}

/// Returns the deadline that a request's headers give.
fn deadline(headers: &HeaderMap) -> Result<RequestDeadline, Problem> {
    let mut deadline = RequestDeadline::new();
    headers.get(DEADLINE).map_or(Ok(()), |value| deadline.deadline_header(value.as_bytes()))?;
    headers.get(APPLICATION).map_or(Ok(()), |value| deadline.application_header(value.as_bytes()))?;
    Ok(deadline)
}

fn coding(headers: &HeaderMap) -> Result<Option<Coding>, Problem> {
    headers.get(CONTENT_ENCODING).map_or(Ok(None), |name| Coding::named(name.as_bytes()))
}

async fn unpacked(coding: Option<Coding>, body: Bytes, bounds: &mut ReadBounds) -> Result<Bytes, Problem> {
    match coding {
        None => Ok(body),
        Some(coding) => coding.unpack(body, bounds).await,
    }
}

/// Returns the whole body of a request that is not an infer request, and the bounds that count its
/// memory while it is interpreted.
async fn body(
    services: &CoreServices,
    request: Request<Incoming>,
    peer: &Peer,
) -> Result<(Bytes, ReadBounds), Problem> {
    let (head, body) = request.into_parts();
    let coding = coding(&head.headers)?;
    let (body, mut bounds) = services.bodies.read(&head.headers, body, &peer.in_flight).await?;
    bounds.narrow();
    let body = unpacked(coding, body, &mut bounds).await?;
    bounds.take_decoded(body.len())?;
    Ok((body, bounds))
}

/// Returns the answer to an infer request, compressed if its client accepts that and it is large.
async fn packed(
    request: &HeaderMap,
    body: Vec<u8>,
    json_bytes: Option<usize>,
    slices: &Slices,
) -> ApiResponse {
    let accepted = request.get(ACCEPT_ENCODING).and_then(|list| Coding::acceptable(list.to_str().ok()?));
    let coding = accepted.filter(|_| body.len() >= MIN_COMPRESSED_BYTES);
    let body = match coding {
        Some(coding) => {
            let packed = coding.pack_in_slices(Vec::new(), &body, slices).await;
            let_go(body);
            packed
        }
        None => body,
    };
    let content_type = if json_bytes.is_some() { BINARY } else { JSON };
    let mut response = with_type(StatusCode::OK, content_type, shared(body));
    let headers = response.headers_mut();
    if let Some(length) = json_bytes {
        headers.insert(infer::JSON_LENGTH, HeaderValue::from(length));
    }
    if let Some(coding) = coding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    }
    response
}

fn ok(body: impl Into<Bytes>) -> ApiResponse {
    with_type(StatusCode::OK, JSON, body)
}

/// Answers a readiness check: adds to `body` `"ready"` and, if false, `"reasons"`.
fn readiness(services: &CoreServices, mut body: Value) -> ApiResponse {
    let reasons = services.telemetry.readiness().err();
    body["ready"] = reasons.is_none().into();
    let Some(reasons) = reasons else { return ok(body.to_string()) };
    body["reasons"] = reasons.iter().map(NotReady::to_string).collect();
    with_type(StatusCode::SERVICE_UNAVAILABLE, JSON, body.to_string())
}

fn with_type(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> ApiResponse {
    let mut response = Response::new(ResponseBody::whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn refusal(problem: &Problem) -> ApiResponse {
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

fn wrong_method(method: &Method, allowed: &'static str) -> ApiResponse {
    let message = format!("this path does not take {method}; it takes {allowed}");
    let mut response = refusal(&Problem::invalid(StatusCode::METHOD_NOT_ALLOWED, message));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
