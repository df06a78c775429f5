//! The hosts of an engine that is spread over several: the state machines at the ends of their
//! links. None has a socket, a thread or a clock. docs/design/hosts.md says why they are so,
//! docs/protocol.md what they send.
//!
//! ```text
//! frontends' host          scheduler's host                          backend's host
//! Frontend ─▶ FrontendHost ══ SchedulerHost ─▶ ModelThread           BackendHost ─▶ executor
//!                 ║           (RemoteFrontend,  RankThread             ║   ║
//!                 ║            RemoteBackend) ═════════════════════════╝   ║
//!                 ╚════════════════════ tensors, answers ══════════════════╝
//! ```
//!
//! Architecture invariant: a `RemoteBackend` completes each batch that it was handed once, and ends
//! or gives back each of its rows once, whatever becomes of the host; a [`FrontendHost`] answers
//! each row once, whatever comes for it from wherever.

mod backend_host;
mod delay_feed;
mod direct_memory;
mod direct_path;
mod direct_slots;
mod frontend_host;
mod host;
mod host_port;
mod measured_delays;
mod pending;
mod remote_backend;
mod remote_frontend;
mod row_table;
mod scheduler_host;
mod tensor_orders;
mod tensor_path;

pub(crate) use backend_host::{BackendHost, BackendParts, FrontendOfBackend, HostedRings, RowBytes};
pub(crate) use delay_feed::{DelayFeed, DelayWays, FedModel};
pub(crate) use direct_memory::{DirectEnd, DirectMemory};
pub(crate) use frontend_host::{BackendOfFrontend, FrontendHost, LocalFrontend};
pub(crate) use host::{Host, HostLinks, HostPeer};
pub(crate) use remote_frontend::FrontendRings;
pub(crate) use scheduler_host::{BackendPlace, FrontendPlace, PresenceRings, SchedulerHost};
