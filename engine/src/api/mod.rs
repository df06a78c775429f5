//! The thin API: the Open Inference Protocol (KServe v2) with Triton's extensions, over HTTP and
//! gRPC, on pinned glommio executors. [`start`] makes one API core out of a
//! [`Frontend`](crate::runtime::frontend::Frontend).
//!
//! Each file uses only files further down:
//!
//! ```text
//!  server        a core's thread: accepts connections, polls the engine, stops
//!    ▼
//!  dispatcher    makes the core's services, chooses the protocol adapter of a request
//!    ▼
//!  http/ grpc/   protocol adapters: routes, bodies, messages, streams
//!    ▼
//!  inference/    an infer request without its protocol: inputs, deadline, run, outputs
//!    ▼
//!  services/     access, models, repository, statistics, settings, shared memory, the engine
//!    ▼
//!  net/          sockets, TLS, connections, bodies, compression
//!    ▼
//!  problem, headers
//! ```
//!
//! `config` (the configuration of a core) is used by `server` and `dispatcher`; [`reading`] uses
//! the adapters to read requests without a socket.
//!
//! **Architecture invariant:** adapters translate and do not decide. What a request means and which
//! problems it can have is written once, in `inference` and `services`.
//!
//! **Architecture invariant:** no two files use each other. A connection reaches the dispatcher
//! through the trait `RequestHandler`, which the dispatcher implements.

mod config;
mod dispatcher;
pub mod grpc;
mod headers;
mod http;
mod inference;
mod net;
mod problem;
pub mod reading;
mod server;
mod services;
#[cfg(test)]
mod tests;

pub use config::ApiConfig;
pub use headers::OUTCOME;
pub use net::core_tasks::TurnClock;
pub use net::{glommio_io, tls};
pub use server::{ApiError, ApiHandle, start, start_admin};
pub use services::{SharedState, tokens};
