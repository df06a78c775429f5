//! The thin API: KServe v2 over HTTP on pinned glommio executors. [`server::start`] makes one API core out
//! of a [`Frontend`](crate::runtime::frontend::Frontend); `connection` serves a client, `requests` one request
//! of it, `kserve` and `tensors` know the protocol, `answers` waits for the engine. What they
//! count is kept in [`observe`](crate::observe).

mod answers;
mod connection;
mod dashboard;
pub mod glommio_io;
mod kserve;
mod requests;
pub mod server;
pub mod tensors;
#[cfg(test)]
mod tests;

pub use requests::OUTCOME;
pub use server::{ApiConfig, ApiError, ApiHandle, start};
