//! A backend on another host: the two state machines at the ends of its link. Neither has a socket,
//! a thread or a clock. docs/design/hosts.md says why they are so, docs/protocol.md what they send.
//!
//! ```text
//! scheduler host                                        backend host
//! ModelThread ──batch, its requests──▶ RemoteBackend ══ link ══▶ BackendHost ──frames──▶ executor
//! RankThread ◀──presence, completions───┘    │                        ▲                     │
//! frontends  ◀──answers──────────────────────┤                        └─answers, completions┘
//! queues     ◀──requests to run again────────┘
//! ```
//!
//! Architecture invariant: a [`RemoteBackend`] completes each batch that it was handed once, and
//! ends or gives back each of its requests once, whatever becomes of the host.

mod backend_host;
mod host_port;
mod remote_backend;

pub(crate) use backend_host::{BackendHost, HostedRings};
pub(crate) use remote_backend::{RemoteBackend, RemoteSink};
