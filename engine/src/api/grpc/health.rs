//! `grpc.health.v1.Health`: whether the server, or one model of it, can serve. `Check` answers
//! once, `Watch` at once and then with each change, which it looks for every [`WATCH_EVERY`];
//! `List` with every status that the caller may know.

use super::framing::{self, Envelope, decode};
use super::health_messages::health_check_response::ServingStatus;
use super::health_messages::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use super::status::GrpcStatus;
use crate::api::net::glommio_io::within;
use crate::api::net::peer::Peer;
use crate::api::net::response::{ApiResponse, ResponseBody};
use crate::api::problem::{Problem, quoted};
use crate::api::services::CoreServices;
use crate::api::services::access::{Caller, Permission};
use crate::api::services::models::{self, ModelState};
use bytes::Bytes;
use futures_util::stream::unfold;
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::header::HeaderMap;
use hyper::{StatusCode, Uri};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// The path of every call, up to the call's name.
pub(super) const SERVICE: &str = "/grpc.health.v1.Health/";

/// The service whose status is the server's, as the empty name is.
const INFERENCE: &str = "inference.GRPCInferenceService";

/// The interval at which a watched status is looked at.
pub(in crate::api) const WATCH_EVERY: Duration = Duration::from_secs(1);

/// The most watches of an API core. Each costs a look a second for as long as its client likes.
pub(in crate::api) const MAX_WATCHES: usize = 1_024;

/// The most versions of models in the answer to `List`.
pub(in crate::api) const MAX_LISTED: usize = 1_024;

/// The client that asks for a status, and what it asks about.
struct HealthQuery {
    services: Rc<CoreServices>,
    caller: Caller,
    /// The service or model, as [`HealthCheckRequest::service`] names it.
    subject: String,
}

impl HealthQuery {
    /// Returns the status, if the caller still may know it.
    ///
    /// Errors: 401, 403.
    fn status(&self) -> Result<ServingStatus, Problem> {
        let services = &self.services;
        if is_server(&self.subject) {
            let ready = services.telemetry.readiness().is_ok();
            return Ok(if ready { ServingStatus::Serving } else { ServingStatus::NotServing });
        }
        let caller = self.caller.renewed()?;
        let (name, version) = self.subject.split_once('/').unwrap_or((&self.subject, ""));
        Ok(match models::state(services, &caller, name, version)? {
            ModelState::Ready => ServingStatus::Serving,
            ModelState::NotReady => ServingStatus::NotServing,
            ModelState::Unknown => ServingStatus::ServiceUnknown,
        })
    }
}

/// Returns true if the status is the server's, which is everyone's to know; that of a model needs a
/// token for the model, where tokens are required.
fn is_server(subject: &str) -> bool {
    matches!(subject, "" | INFERENCE)
}

/// Answers the call named `method`, whose message is `message`; `head` is its path and headers.
///
/// Errors: those of [`HealthQuery::status`], 400, 404 for `Check` of what does not exist, 429 for
/// too many watches, 501 for a call that does not exist.
pub(super) fn respond(
    services: &Rc<CoreServices>,
    method: &str,
    head: (&Uri, &HeaderMap),
    peer: &Peer,
    message: Bytes,
    envelope: Envelope,
) -> Result<ApiResponse, Problem> {
    if method == "List" {
        decode::<HealthListRequest>(message)?;
        return Ok(framing::answered(&list(services, head, peer)?, envelope));
    }
    let HealthCheckRequest { service } = decode(message)?;
    let needed = if is_server(&service) { Permission::Health } else { Permission::Use };
    let caller = services.access.admit(peer.listener, head.0, head.1, needed)?;
    let query = HealthQuery { services: Rc::clone(services), caller, subject: service };
    match method {
        "Check" => match query.status()? {
            ServingStatus::ServiceUnknown => {
                let message = format!(
                    "there is no service or model {}; the empty name and {INFERENCE} are the server's",
                    quoted(&query.subject)
                );
                Err(Problem::invalid(StatusCode::NOT_FOUND, message))
            }
            status => Ok(framing::answered(&HealthCheckResponse { status: status.into() }, envelope)),
        },
        "Watch" => {
            query.status()?;
            let body = HealthWatch::new(query, envelope)?.body();
            Ok(framing::headers(body, envelope))
        }
        other => Err(framing::unknown_call(SERVICE, other)),
    }
}

/// Returns the status of the server and of every version of a model that the caller may use and
/// that is served, or was unloaded for a fault: without a token, where tokens are required, of
/// none.
///
/// Errors: 429 if there are more models than [`MAX_LISTED`].
fn list(
    services: &CoreServices,
    head: (&Uri, &HeaderMap),
    peer: &Peer,
) -> Result<HealthListResponse, Problem> {
    let ready = services.telemetry.readiness().is_ok();
    let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    let status = HealthCheckResponse { status: status.into() };
    let mut names: Vec<String> = ["", INFERENCE].map(String::from).to_vec();
    let mut withdrawn = services.engine.withdrawn();
    if let Ok(caller) = services.access.admit(peer.listener, head.0, head.1, Permission::Use) {
        let found = models::find_all(services, &caller, "", "")?;
        if found.len() > MAX_LISTED {
            let message =
                format!("{} models are served; List answers for {MAX_LISTED}, use Check", found.len());
            return Err(Problem::invalid(StatusCode::TOO_MANY_REQUESTS, message));
        }
        for model in found {
            names.push(format!("{}/{}", model.name, model.version));
            names.push(model.name);
        }
        withdrawn.retain(|of| caller.may_use(&of.name));
    } else {
        withdrawn.clear();
    }
    let not_serving = HealthCheckResponse { status: ServingStatus::NotServing.into() };
    let withdrawn = withdrawn.into_iter().flat_map(|of| [format!("{}/{}", of.name, of.version), of.name]);
    let mut statuses: HashMap<String, HealthCheckResponse> =
        withdrawn.map(|name| (name, not_serving)).collect();
    statuses.extend(names.into_iter().map(|name| (name, status)));
    Ok(HealthListResponse { statuses })
}

/// A call of `Watch`.
struct HealthWatch {
    query: HealthQuery,
    envelope: Envelope,
    /// The watch's number among the streams of the core.
    number: u64,
    told: Option<ServingStatus>,
    ended: bool,
}

impl HealthWatch {
    fn new(query: HealthQuery, envelope: Envelope) -> Result<HealthWatch, Problem> {
        let services = &query.services;
        let open = services.health_watches.get();
        if open >= MAX_WATCHES {
            let message = format!("{open} watches of health are open already; use Check");
            return Err(Problem::invalid(StatusCode::TOO_MANY_REQUESTS, message));
        }
        services.health_watches.set(open + 1);
        let number = services.idle_streams.number();
        Ok(HealthWatch { query, envelope, number, told: None, ended: false })
    }

    fn body(self) -> ResponseBody {
        ResponseBody::stream(Box::pin(StreamBody::new(unfold(self, HealthWatch::next))))
    }

    /// Returns the next frame of the answer: a status that has changed, or the end.
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, Infallible>, HealthWatch)> {
        if self.ended {
            return None;
        }
        let end = loop {
            let stopping = self.told.is_some() && self.server_stops().await;
            match self.query.status() {
                Ok(status) if self.told.replace(status) != Some(status) => {
                    let message = self.envelope.seal(&HealthCheckResponse { status: status.into() });
                    return Some((Ok(Frame::data(message)), self));
                }
                Ok(_) if stopping => {
                    let message = "the server is shutting down";
                    break Problem::invalid(StatusCode::SERVICE_UNAVAILABLE, message);
                }
                Ok(_) => {}
                Err(problem) => break problem,
            }
        };
        self.ended = true;
        Some((Ok(Frame::trailers(GrpcStatus::of(&end).trailers())), self))
    }

    /// Waits until it is time to look again. Returns true if the server stops.
    async fn server_stops(&self) -> bool {
        let streams = &self.query.services.idle_streams;
        let stopping = poll_fn(|cx| match streams.is_stopping(self.number, cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        within(WATCH_EVERY, stopping).await.is_some()
    }
}

impl Drop for HealthWatch {
    fn drop(&mut self) {
        let services = &self.query.services;
        services.idle_streams.forget(self.number);
        services.health_watches.set(services.health_watches.get() - 1);
    }
}
