//! The gRPC adapter, on hyper's HTTP/2: `framing` is gRPC's envelope, `messages` are those of
//! proto/inference.proto, `infer` and `stream` translate infer requests, `admin` everything else;
//! this file leads a call through them.

mod admin;
mod framing;
mod infer;
mod stream;

/// The messages of `proto/inference.proto`, whose fields its comments explain.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

use super::access::{Caller, Peer};
use super::compression::Coding;
use super::core::{Core, DEADLINE};
use super::inference::{Inference, Terms};
use super::problem::{GrpcCode, Problem, quoted};
use super::regions::Regions;
use super::reply::{Reply, ReplyBody};
use crate::runtime::frontend::ModelInfo;
use crate::telemetry::InferOutcome;
use bytes::Bytes;
use framing::{Envelope, Status};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Request, Response, StatusCode, Version};
use std::rc::Rc;

/// The path of every call, up to the call's name.
const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Whether a request is a gRPC call.
pub(super) fn is_grpc(request: &Request<Incoming>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Answers one call, whatever it is.
pub(super) async fn respond(core: Rc<Core>, request: Request<Incoming>, peer: Peer) -> Reply {
    if request.version() != Version::HTTP_2 {
        let mut response = Response::new(ReplyBody::whole("gRPC needs HTTP/2"));
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let (head, body) = request.into_parts();
    let method = head.uri.path().strip_prefix(SERVICE).unwrap_or_default();
    let envelope = match Envelope::of(&head.headers) {
        Ok(envelope) => envelope,
        Err(problem) => return refuse(&core, &problem),
    };
    let caller = match caller(&core, method, &head.headers, &peer) {
        Ok(caller) => caller,
        Err(problem) => return refuse(&core, &problem),
    };
    if method == "ModelStreamInfer" {
        core.recorder.responded(StatusCode::OK.as_u16());
        let client = stream::Client {
            caller,
            peer,
            deadline: deadline_of_each(&head.headers),
            span: core.caller(&head.headers),
        };
        return framing::headers(stream::body(core, body, envelope, client), envelope);
    }
    let mut outcome = None;
    match call(&core, &caller, method, &head.headers, body, envelope, &mut outcome).await {
        Ok(message) => {
            core.recorder.responded(StatusCode::OK.as_u16());
            let status = Status { code: GrpcCode::Ok, message: "", outcome, again: None };
            framing::headers(ReplyBody::with_trailers(message, status.trailers()), envelope)
        }
        Err(problem) => refuse(&core, &problem),
    }
}

/// Who makes a call, which is counted.
///
/// Errors: 401, 403, 429.
fn caller(core: &Core, method: &str, headers: &HeaderMap, peer: &Peer) -> Result<Caller, Problem> {
    let caller = match method {
        "ServerLive" | "ServerReady" => core.anybody(peer.listener),
        _ => core.identify(peer.listener, headers)?,
    };
    if admin::is_admin(method) {
        caller.see_admin()?;
    }
    caller.count()?;
    Ok(caller)
}

fn refuse(core: &Core, problem: &Problem) -> Reply {
    core.recorder.responded(problem.status.as_u16());
    framing::without_message(&Status::of(problem))
}

/// One call with one message each way: the answer's message in its envelope. `outcome` is told how
/// an infer request ended.
async fn call(
    core: &Core,
    caller: &Caller,
    method: &str,
    headers: &HeaderMap,
    body: Incoming,
    envelope: Envelope,
    outcome: &mut Option<InferOutcome>,
) -> Result<Bytes, Problem> {
    let mut terms = Terms::new();
    let mut lease = core.read_body(headers, body).await?;
    let message = envelope.open(lease.bytes(), core.config.max_body_bytes)?;
    if method == "ModelInfer" {
        header_terms(headers, &mut terms)?;
        let request = framing::decode(message)?;
        let response = infer::infer(core, caller, request, terms, core.caller(headers), lease).await?;
        *outcome = Some(InferOutcome::Good);
        return Ok(envelope.seal(&response));
    }
    admin::call(core, caller, method, message, envelope).await
}

/// Reads what a call of `ModelInfer` for `model` carries, as a connection's is read.
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
    let mut terms = Terms::new();
    let message = Envelope::of(headers)?.open(body, limit)?;
    header_terms(headers, &mut terms)?;
    infer::parse(framing::decode(message)?, terms, model, regions, most_rows)
}

fn header_terms(headers: &HeaderMap, terms: &mut Terms) -> Result<(), Problem> {
    if let Some(timeout) = headers.get("grpc-timeout") {
        terms.within(framing::timeout(timeout.as_bytes())?);
    }
    headers.get(DEADLINE).map_or(Ok(()), |deadline| terms.deadline_header(deadline.as_bytes()))
}

/// The header that gives each request of a stream a deadline of its own; `grpc-timeout` is the
/// whole stream's.
fn deadline_of_each(headers: &HeaderMap) -> Option<Vec<u8>> {
    headers.get(DEADLINE).map(|deadline| deadline.as_bytes().to_vec())
}

/// Why a call that there is not can't be made.
fn unknown(method: &str) -> Problem {
    let message = format!("there is no call {} at {SERVICE}", quoted(method));
    Problem::invalid(StatusCode::NOT_IMPLEMENTED, message)
}

/// What an answer is compressed with: with what its request was.
type Mirror = Option<Coding>;
