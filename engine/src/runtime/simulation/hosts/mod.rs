//! The simulation of an engine across hosts: a scheduler with its queues, its matching and its
//! frontends on one host, backends with their executors on others, and links between them over a
//! network that delays, reorders between connections, cuts and heals. A seed draws all of it
//! ([`run_hosts_episode`]); docs/design/hosts.md says what holds.
//!
//! ```text
//! episode          whose turn it is, what goes wrong, what must hold at the end
//!   scheduler      queues, matching, frontends, and a remote backend for each host
//!   process        a backend's process: its link and its executor
//!   network        the connection to each of them
//! ```

mod episode;
mod network;
mod process;
mod scheduler;

pub use episode::{HostsReport, run_hosts_episode};

use symphony_transport::Nanos;
use symphony_transport::link::LinkTerms;
use symphony_transport::wire::{Hello, HostRole, Text};

/// The heartbeat of all links.
const HEARTBEAT: Nanos = Nanos::from_millis(20);

/// The most requests of a batch.
const MAX_BATCH: u32 = 32;

/// A host's clock, by the time of the network.
#[derive(Clone, Copy)]
struct HostClock {
    offset: u64,
    drift_ppb: i128,
}

impl HostClock {
    fn read(self, time: Nanos) -> Nanos {
        let drift = i128::from(time.0) * self.drift_ppb / 1_000_000_000;
        Nanos((i128::from(self.offset) + i128::from(time.0) + drift) as u64)
    }
}

/// The terms of a host on the link between the scheduler and a backend.
fn terms(
    role: HostRole,
    backend: u32,
    (first_gpu, gpus): (u32, u32),
    incarnation: u64,
    credits: u32,
) -> LinkTerms {
    let is_backend = role == HostRole::Backend;
    let hello = Hello {
        config: [0; 32],
        incarnation,
        heartbeat_every: HEARTBEAT,
        role: role as u32,
        number: if is_backend { backend } else { 0 },
        first_gpu: if is_backend { first_gpu } else { 0 },
        gpus: if is_backend { gpus } else { 0 },
        max_batch: MAX_BATCH,
        credits,
        name: Text::new(role.name()),
    };
    let peer = if is_backend { (HostRole::Scheduler, 0) } else { (HostRole::Backend, backend) };
    LinkTerms { hello, models: Vec::new(), peer }
}
