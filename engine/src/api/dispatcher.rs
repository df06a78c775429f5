//! The dispatcher of one API core: makes its services out of a [`Frontend`] and a configuration,
//! and hands each request to the adapter of the protocol that it speaks.

use super::config::ApiConfig;
use super::net::body::BodyBudget;
use super::net::connection::RequestHandler;
use super::net::core_tasks::CoreTasks;
use super::net::handler_panics::{HandlerPanics, contained};
use super::net::idle_streams::IdleStreams;
use super::net::limits::ConnectionLimits;
use super::net::memory::CoreMemory;
use super::net::peer::Peer;
use super::net::response::ApiResponse;
use super::net::tls::Tls;
use super::problem::Problem;
use super::services::CoreServices;
use super::services::access::AccessControl;
use super::services::accounting::InferAccounting;
use super::services::engine_client::EngineClient;
use super::services::origin::AllowedHosts;
use super::services::queries::CoreQueries;
use super::{grpc, http};
use crate::runtime::frontend::Frontend;
use crate::telemetry::otlp::Tracer;
use crate::telemetry::{FailureLog, Telemetry};
use hyper::Request;
use hyper::body::Incoming;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// The dispatcher of one API core.
pub(super) struct Dispatcher {
    /// The services that both adapters use.
    pub(super) services: Rc<CoreServices>,
    limits: ConnectionLimits,
    tls: Option<Tls>,
    tasks: Rc<CoreTasks>,
}

impl Dispatcher {
    /// Makes the services of the core of this name around `frontend`.
    pub(super) fn new(role: &str, frontend: Frontend, config: &ApiConfig) -> Dispatcher {
        let through = || Arc::new(Telemetry::through(&frontend));
        let telemetry = config.telemetry.clone().unwrap_or_else(through);
        let metrics = Rc::new(telemetry.add_core(role));
        let shared = config.shared.clone();
        let model_table = Arc::clone(frontend.model_table());
        let (faults, clock) = (frontend.faults().clone(), frontend.clock().clone());
        let accounting = InferAccounting {
            metrics: Rc::clone(&metrics),
            telemetry: Arc::clone(&telemetry),
            statistics: shared.statistics.join(),
            failures: FailureLog::default(),
            tracer: Tracer::new(shared.tracing.clone()),
            log: Arc::clone(&shared.log),
        };
        let services = CoreServices {
            engine: EngineClient::new(frontend, Rc::clone(&metrics), config.placement.idle),
            queries: CoreQueries::new(model_table),
            access: AccessControl::new(
                config.tokens.clone(),
                config.admin,
                AllowedHosts(config.allowed_hosts.clone()),
            ),
            bodies: BodyBudget::new(config.body_limits()),
            accounting,
            metrics,
            telemetry,
            shared,
            idle_streams: IdleStreams::default(),
            stream_idle_timeout: config.limits.stream_idle_timeout,
            health_watches: Cell::new(0),
            max_requests_at_once: config.limits.max_in_flight_per_connection,
        };
        let (limits, tls) = (config.connection_limits(), config.tls.clone());
        let broken = services.engine.broken();
        let panics = HandlerPanics::new(role, faults, services.metrics.clone(), broken);
        let tasks = CoreTasks::new(panics, services.metrics.clone(), clock, config.turn_clock);
        Dispatcher { services: Rc::new(services), limits, tls, tasks: Rc::new(tasks) }
    }
}

impl RequestHandler for Dispatcher {
    fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    fn memory(&self) -> &Rc<CoreMemory> {
        self.services.bodies.memory()
    }

    fn tasks(&self) -> &Rc<CoreTasks> {
        &self.tasks
    }

    async fn respond(self: Rc<Self>, request: Request<Incoming>, peer: Peer) -> ApiResponse {
        let (services, condemned) = (&self.services, peer.condemned.clone());
        let (is_grpc, version) = (grpc::is_grpc(&request), request.version());
        let refuse = |problem: Problem| match is_grpc {
            true => grpc::refuse(services, &problem),
            false => http::fail(services, version, &problem),
        };
        if let Err(problem) = self.memory().check(&peer.in_flight) {
            return refuse(problem);
        }
        let answer = async {
            if is_grpc {
                grpc::respond(services, request, peer).await
            } else {
                http::respond(services, request, &peer).await
            }
        };
        match contained(answer).await {
            Ok(response) if is_grpc => {
                response.map(|body| body.contained(&self.tasks, condemned, grpc::trailers_after_panic))
            }
            Ok(response) => response,
            Err(panic) => {
                self.tasks.panics.note(&panic);
                condemned.set(true);
                refuse(Problem::after_panic())
            }
        }
    }
}
