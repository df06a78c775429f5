//! The real driver: threads pinned to cores that pump the state machines of
//! [`symphony_scheduler::model`] and [`symphony_scheduler::rank`], and the rings between them. An
//! [`Engine`] is all of them.
//!
//! ```text
//!  Frontend ──Request──▶ ModelThread ──Frame──▶ backend thread (a CPU executor, or emulated GPUs)
//!     ▲  ▲                 │    ▲                  │     │
//!     │  └────Response─────┘    │Grant             │     │
//!     │                messages ▼                  │     │
//!     │                    RankThread ◀─Completion─┘     │
//!     └──────────────────────Response────────────────────┘
//! ```
//!
//! Every arrow is a ring with one writer and one reader. Each RankThread matches sub-clusters of
//! its own, and a model sends to the RankThread of its sub-cluster only. A ring holds as much as
//! can be under way: as many answers as a frontend has slab slots, one grant per model, as many
//! completions as a GPU may be given batches. Only requests and batches can meet a full ring; they
//! then wait where they are, and a frontend whose ring is full refuses.
//!
//! | room | what is in it | invariant |
//! | --- | --- | --- |
//! | [`frontend`] | the client side: requests in, answers out | what is accepted is answered exactly once |
//! | `threads` | ModelThreads, RankThreads and the loop around an agent | no duty cycle locks or allocates |
//! | `backends` | threads that run batches: CPU executors, GPUs, emulated ones | none starts before exec_at or after latest |
//! | [`counters`] | what threads count and others read | a counter has one writer, which no reader holds up |
//! | `start` | putting an engine together | a start that fails leaves no thread behind |
//! | `fault`, `panics` | the fault for which an engine can't go on | the first report holds |
//! | `full_ring` | messages that always have room | a lost message ends the engine |
//! | `hosts` | the ends of the links between hosts, without sockets | a row is answered once, whatever becomes of hosts and links |
//! | [`discovery`] | who of the hosts is there, and where | losing its source stops changes only |
//! | [`links`] | the thread that moves their bytes | it decides nothing |
//! | `heartbeat`, `stall_watch` | threads that hang | a thread that stands still is found and named |
//! | `engine` | the running [`Engine`] | stages stop in the order in which requests pass them |
//! | [`gpu_memory`] | the pages of the GPUs, and whose weights are where | reading it waits for nobody |
//! | `model_slots` | loading and unloading models while it runs | no slot is reused while a request is left |
//! | `profiling` | has profiles follow the batches that ran | no other thread waits for it |
//! | `tuning` | replays recent arrivals to choose the default rule's setting | no other thread waits for it |
//! | `simulation` | all of these in virtual time, with faults | nothing of the engine knows of it |
//!
//! Architecture invariant: this room uses `recorder`, `config`, the scheduler and what is below,
//! and never `telemetry`, `control`, `api` or `cli`.

pub(crate) mod backends;
mod callbacks;
pub mod clock;
pub mod counters;
pub mod discovery;
mod engine;
mod fault;
pub mod frontend;
mod full_ring;
pub mod gpu_memory;
mod heartbeat;
pub(crate) mod hosts;
pub mod links;
mod model_setup;
mod model_slots;
pub(crate) mod panics;
pub(crate) mod ports;
pub(crate) mod profiling;
mod queue_ids;
mod set_aside;
// Public for the benchmark `chaos` and for tests.
#[doc(hidden)]
pub mod simulation;
mod stall_watch;
mod start;
// Public for the benchmarks, which connect the threads otherwise than an engine does.
#[doc(hidden)]
pub mod threads;
pub(crate) mod tuning;

pub(crate) use backends::executors::gpu_right;
pub use backends::executors::{LoadedGroup, load_file, load_group_files};
pub use backends::libraries::Libraries;
pub use backends::warming::warm_up;
pub use callbacks::{Progress, ThreadHook, no_progress};
pub use engine::Engine;
pub use fault::{FatalFault, FaultLatch};
pub use frontend::Frontend;
pub(crate) use model_setup::default_elements;
pub use model_slots::{LoadedModel, ModelSlotError, ModelSlots};
pub use start::layout::{Layout, rank_role};
pub use start::{HostIdentity, Options, StartError};
pub use threads::agent::{Idle, Placement};
pub use tuning::{LossCounts, TunedLink};
