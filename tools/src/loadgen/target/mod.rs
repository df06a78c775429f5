//! The targets of load: servers over HTTP or gRPC, with or without shared memory, or an engine in
//! this process.

mod call;
mod client;
mod connection;
mod describe;
pub mod echo;
mod grpc;
mod http;
pub mod in_process;
mod interface;
mod network;
mod pacer;
mod shared_memory;
mod url;
mod wire;

pub use interface::{Requests, Target, Tensors, Watch};
pub use network::Settings;
pub use url::ServerUrl;

use grpc::Grpc;
use http::Http;
use network::NetworkTarget;

/// A server over HTTP, which is not spoken to yet.
pub fn over_http(settings: Settings) -> Box<dyn Target> {
    Box::new(NetworkTarget::<Http>::new(settings))
}

/// A server over gRPC, which is not spoken to yet.
pub fn over_grpc(settings: Settings) -> Box<dyn Target> {
    Box::new(NetworkTarget::<Grpc>::new(settings))
}
