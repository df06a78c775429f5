//! The simulation of the whole engine: its real frontends, rings, ModelThreads, RankThreads and
//! emulated GPUs on one thread, in virtual time, with clients, a control thread and faults that a
//! seed draws ([`run_episode`]; of many seeds [`run_campaign`]). docs/design/chaos.md says what is
//! injected and what is checked.
//!
//! ```text
//! scenario, faults     what the seed stands for
//! episode              whose turn it is, how much time passes, what must hold at the end
//!   wiring, wire       a wire in each ring: what it carries may come late, twice or never
//!   passage            which answers and completions are lost or come twice
//!   client, mark       requests in, answers checked, by the mark in each row
//!   executors          batches on their way to the GPUs and back: hung, failing, checked
//!   control            models loaded and unloaded
//! campaign, report     many seeds, and what they did
//! hosts                frontends, a scheduler and backends, and the links between them
//! ```
//!
//! Architecture invariant: nothing of the engine knows of it. Its roles are polled as their threads
//! would, its clock is a clock that stands, and its rings are the rings.

mod campaign;
mod client;
mod control;
mod dice;
mod episode;
mod executors;
mod faults;
mod hosts;
mod mark;
mod passage;
mod report;
mod scenario;
#[cfg(test)]
mod slow_executors;
mod wire;
mod wiring;

pub use campaign::{Campaign, run_campaign};
pub use client::AnswerCounts;
pub use episode::run_episode;
pub use hosts::{HostsReport, RequestCounts, run_hosts_episode};
pub use report::{BrokenInvariant, EpisodeReport, FaultCounts, SeedReport};
