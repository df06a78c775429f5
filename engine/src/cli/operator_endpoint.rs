//! The HTTP endpoint of a scheduler and of a backend: metrics, health and the dashboard, for
//! operators. It is an admin listener of an API core whose frontend has no models.

use super::access::ServeAccess;
use super::failure::CommandFailure;
use super::serve_arguments::GuardArguments;
use super::shutdown::cut_off_after;
use crate::api::{self, ApiConfig, ApiHandle};
use crate::config::Config;
use crate::runtime::{Engine, Frontend};
use crate::telemetry::Telemetry;
use clap::Args;
use std::net::SocketAddr;
use std::sync::Arc;

/// Flags about the endpoint, which override `[api]` of CONFIG.
#[derive(Args)]
pub(super) struct OperatorArguments {
    /// Answer calls for metrics, health and the dashboard at this address; none are answered where
    /// neither this nor CONFIG gives one
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    #[command(flatten)]
    guard: GuardArguments,
}

/// The endpoint of a host, where one is asked for, and what it tells.
pub(super) struct OperatorEndpoint {
    pub(super) access: ServeAccess,
    pub(super) telemetry: Arc<Telemetry>,
    server: Option<ApiHandle>,
}

impl OperatorArguments {
    /// Reads the files that the flags and CONFIG name.
    ///
    /// Errors: as [`ServeAccess::load`].
    pub(super) fn load(self, config: &Config) -> Result<ServeAccess, CommandFailure> {
        ServeAccess::load(config.access.with(&self.guard.of_listener(self.admin)))
    }
}

impl OperatorEndpoint {
    /// Starts the endpoint of this engine, on the frontend of its own, if there is to be one.
    ///
    /// Errors: the address can't be used, or the machine lacks what the API needs.
    pub(super) fn start(
        config: &Config,
        access: ServeAccess,
        engine: &Engine,
        frontend: Option<Frontend>,
    ) -> Result<OperatorEndpoint, CommandFailure> {
        let telemetry = Arc::new(Telemetry::of(engine));
        let start = |(frontend, addr): (Frontend, SocketAddr)| {
            let api = ApiConfig {
                telemetry: Some(Arc::clone(&telemetry)),
                tls: access.tls.clone(),
                tokens: access.tokens.clone(),
                allowed_hosts: access.config.allowed_hosts.clone(),
                stop_timeout: cut_off_after(config.shutdown.timeout),
                limits: config.http.clone(),
                ..ApiConfig::at(addr)
            };
            api::start_admin(frontend, addr, api)
        };
        let server = frontend.zip(access.config.admin).map(start).transpose()?;
        Ok(OperatorEndpoint { access, telemetry, server })
    }

    /// Returns the line that announces it, if it is there.
    pub(super) fn ready(&self) -> String {
        let address = self.server.as_ref().map(ApiHandle::local_addr);
        address.map_or(String::new(), |address| self.access.ready_admin(address))
    }

    /// Ends it.
    pub(super) fn stop(self) {
        // A panic of it was reported as a fault already.
        self.server.into_iter().for_each(|server| drop(server.stop()));
    }
}
