//! Takes a gRPC call through access control, its messages and its status.

use super::framing::{self, Envelope};
use super::message_reader::infer_message;
use super::status::{GrpcCode, GrpcStatus};
use super::{admin, health, infer, reflection, stream};
use crate::api::headers::{APPLICATION, DEADLINE, STREAM_ORDER};
use crate::api::inference::{Inference, RequestDeadline};
use crate::api::net::memory::ReadBounds;
use crate::api::net::peer::Peer;
use crate::api::net::response::{ApiResponse, ResponseBody};
use crate::api::net::slices::Slices;
use crate::api::problem::{Problem, quoted};
use crate::api::services::CoreServices;
use crate::api::services::access::{Caller, Permission};
use crate::api::services::models::FoundModel;
use crate::api::services::shared_memory::Regions;
use crate::telemetry::InferOutcome;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode, Version};
use std::rc::Rc;

/// Returns true if a request is a gRPC call.
pub(in crate::api) fn is_grpc(request: &Request<Incoming>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Answers one call.
pub(in crate::api) async fn respond(
    services: &Rc<CoreServices>,
    request: Request<Incoming>,
    peer: Peer,
) -> ApiResponse {
    if request.version() != Version::HTTP_2 {
        let mut response = Response::new(ResponseBody::whole("gRPC needs HTTP/2"));
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    answer(services, request, peer).await.unwrap_or_else(|problem| refuse(services, &problem))
}

/// A call, by the service that has it.
enum CallName<'p> {
    /// One of `inference.GRPCInferenceService`.
    Inference(&'p str),
    /// One of `grpc.health.v1.Health`.
    Health(&'p str),
    /// One of `grpc.reflection.v1.ServerReflection`, or its older name.
    Reflection(&'p str),
    /// The path of one of no service.
    Unknown(&'p str),
}

impl CallName<'_> {
    fn of(path: &str) -> CallName<'_> {
        if let Some(method) = path.strip_prefix(framing::SERVICE) {
            return CallName::Inference(method);
        }
        if let Some(method) = path.strip_prefix(health::SERVICE) {
            return CallName::Health(method);
        }
        let reflection = reflection::SERVICES.iter().find_map(|service| path.strip_prefix(service));
        reflection.map_or(CallName::Unknown(path), CallName::Reflection)
    }

    /// Returns the permission that the call needs, whatever its message.
    fn permission(&self) -> Permission {
        match self {
            CallName::Inference(method) => admin::permission(method),
            // The status of a model needs more, which is asked for when the message is known.
            CallName::Health(_) => Permission::Health,
            CallName::Reflection(_) | CallName::Unknown(_) => Permission::Use,
        }
    }
}

async fn answer(
    services: &Rc<CoreServices>,
    request: Request<Incoming>,
    peer: Peer,
) -> Result<ApiResponse, Problem> {
    let (Parts { uri, headers, .. }, body) = request.into_parts();
    let call = CallName::of(uri.path());
    let envelope = Envelope::of(&headers)?;
    let caller = services.access.admit(peer.listener, &uri, &headers, call.permission())?;
    let response = match call {
        CallName::Inference("ModelStreamInfer") => {
            let client = stream::StreamClient {
                caller,
                peer,
                ordered: ordered(&headers)?,
                deadline: own_header(&headers, DEADLINE),
                application: own_header(&headers, APPLICATION),
                span: services.accounting.parent_span(&headers),
            };
            framing::headers(stream::body(services.clone(), body, envelope, client), envelope)
        }
        CallName::Inference(method) => {
            let mut outcome = None;
            let message =
                unary(services, &caller, method, &headers, (body, &peer), envelope, &mut outcome).await?;
            let status = GrpcStatus { code: GrpcCode::Ok, message: "", outcome, again: None };
            framing::headers(ResponseBody::with_trailers(message, status.trailers()), envelope)
        }
        CallName::Health(method) => {
            let (body, mut bounds) = services.bodies.read(&headers, body, &peer.in_flight).await?;
            bounds.narrow();
            let message = envelope.open(body, &mut bounds).await?;
            bounds.take_decoded(message.len())?;
            health::respond(services, method, (&uri, &headers), &peer, message, envelope)?
        }
        CallName::Reflection("ServerReflectionInfo") => {
            framing::headers(reflection::body(services.clone(), body, envelope, &peer), envelope)
        }
        CallName::Reflection(method) => {
            return Err(framing::unknown_call(reflection::SERVICES[0], method));
        }
        CallName::Unknown(path) => return Err(framing::unknown_call(framing::SERVICE, path)),
    };
    services.metrics.responded(StatusCode::OK.as_u16());
    Ok(response)
}

/// Returns the trailers of a call whose handler has panicked.
pub(in crate::api) fn trailers_after_panic() -> HeaderMap {
    GrpcStatus::of(&Problem::after_panic()).trailers()
}

/// Answers a call that has no result.
pub(in crate::api) fn refuse(services: &CoreServices, problem: &Problem) -> ApiResponse {
    services.metrics.responded(problem.status.as_u16());
    framing::without_message(&GrpcStatus::of(problem))
}

/// Makes a call with one message each way and returns the answer's message in its envelope. Sets
/// `outcome` if it was an infer request that has a result.
async fn unary(
    services: &CoreServices,
    caller: &Caller,
    method: &str,
    headers: &HeaderMap,
    (body, peer): (Incoming, &Peer),
    envelope: Envelope,
    outcome: &mut Option<InferOutcome>,
) -> Result<Bytes, Problem> {
    let mut deadline = RequestDeadline::new();
    let (body, mut bounds) = services.bodies.read(headers, body, &peer.in_flight).await?;
    if method == "ModelInfer" {
        let message = envelope.open(body, &mut bounds).await?;
        read_deadline(headers, &mut deadline)?;
        let message = infer_message(message, &mut bounds).await?;
        let (response, _memory) = infer::infer(
            services,
            caller,
            message,
            deadline,
            services.accounting.parent_span(headers),
            bounds,
        )
        .await?;
        *outcome = Some(InferOutcome::Good);
        return Ok(envelope.seal_answer(response, false, &Slices::on_core()).await);
    }
    bounds.narrow();
    let message = envelope.open(body, &mut bounds).await?;
    bounds.take_decoded(message.len())?;
    admin::call(services, caller, method, message, envelope).await
}

/// Reads the body of a call of `ModelInfer` for `model`.
///
/// Errors: 400, 413 where it or what it becomes is too large, 415.
pub(in crate::api) async fn read<'m>(
    headers: &HeaderMap,
    body: Bytes,
    bounds: &mut ReadBounds,
    model: &'m FoundModel,
    regions: &Regions,
    most_rows: usize,
) -> Result<Inference<'m>, Problem> {
    let mut deadline = RequestDeadline::new();
    let message = Envelope::of(headers)?.open(body, bounds).await?;
    read_deadline(headers, &mut deadline)?;
    let message = infer_message(message, bounds).await?;
    infer::parse(message, deadline, model, regions, most_rows, bounds).await
}

fn read_deadline(headers: &HeaderMap, deadline: &mut RequestDeadline) -> Result<(), Problem> {
    if let Some(timeout) = headers.get("grpc-timeout") {
        deadline.within(framing::timeout(timeout.as_bytes())?);
    }
    headers.get(APPLICATION).map_or(Ok(()), |value| deadline.application_header(value.as_bytes()))?;
    headers.get(DEADLINE).map_or(Ok(()), |value| deadline.deadline_header(value.as_bytes()))
}

/// Returns true if a stream's metadata ask for answers in the order of its requests.
///
/// Errors: 400.
fn ordered(headers: &HeaderMap) -> Result<bool, Problem> {
    match headers.get(STREAM_ORDER).map(|value| value.as_bytes()) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(other) => {
            let is = quoted(&String::from_utf8_lossy(other));
            Err(Problem::bad(format!("{STREAM_ORDER} is {is}; it must be true or false")))
        }
    }
}

/// Returns a header that holds for each request of a stream. `grpc-timeout` is the whole stream's.
fn own_header(headers: &HeaderMap, name: HeaderName) -> Option<Vec<u8>> {
    headers.get(name).map(|value| value.as_bytes().to_vec())
}
