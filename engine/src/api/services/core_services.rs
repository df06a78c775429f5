//! The services of one API core, which all its connections share.

use super::access::AccessControl;
use super::accounting::InferAccounting;
use super::engine_client::EngineClient;
use super::queries::CoreQueries;
use super::shared::SharedState;
use crate::api::net::body::BodyBudget;
use crate::api::net::idle_streams::IdleStreams;
use crate::telemetry::{Metrics, Telemetry};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// The services of one API core.
pub(in crate::api) struct CoreServices {
    /// The way to the engine.
    pub(in crate::api) engine: EngineClient,
    /// The queries, which are called as models.
    pub(in crate::api) queries: CoreQueries,
    /// The rules about which client may make which call.
    pub(in crate::api) access: AccessControl,
    /// The memory for request bodies.
    pub(in crate::api) bodies: BodyBudget,
    /// The accounts of infer requests.
    pub(in crate::api) accounting: InferAccounting,
    /// The metrics that this core counts.
    pub(in crate::api) metrics: Rc<Metrics>,
    /// The metrics of all cores.
    pub(in crate::api) telemetry: Arc<Telemetry>,
    /// The state that all cores of the server share.
    pub(in crate::api) shared: SharedState,
    /// The streams to be woken when the server stops.
    pub(in crate::api) idle_streams: IdleStreams,
    /// The longest time that a stream stays open without a request.
    pub(in crate::api) stream_idle_timeout: Duration,
    /// The number of watches of health that are open.
    pub(in crate::api) health_watches: Cell<usize>,
    /// The most requests in flight on one connection.
    pub(in crate::api) max_requests_at_once: usize,
}
