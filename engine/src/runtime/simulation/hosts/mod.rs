//! The simulation of an engine that is spread over hosts: the processes of frontends, a scheduler
//! and backends, each put together as its command does, on one thread in virtual time. Their clocks
//! differ and drift; their links go over a network that delays, reorders between connections, cuts
//! and heals; processes of every role die and start again, or stand still. A seed draws all of it
//! ([`run_hosts_episode`]); docs/design/hosts.md says what holds.
//!
//! ```text
//! plan             what the seed stands for: hosts, models, CONFIG
//! episode          whose turn it is, what goes wrong, what must hold at the end
//!   site           a host and its process
//!     clients      requests into a frontend, answers checked byte by byte
//!     computing    GPUs whose outputs follow from their inputs
//!   network        the connections between the hosts
//!   devices        reads and writes of their slots past the connections, for every other seed
//! ```

mod clients;
mod computing;
mod devices;
mod episode;
mod network;
mod plan;
mod site;

pub use clients::RequestCounts;
pub use episode::{HostsReport, run_hosts_episode};
