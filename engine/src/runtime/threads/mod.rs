//! The scheduler's threads as parts, for programs that connect them otherwise than
//! [`Engine`](super::Engine) does: the benchmarks run these very agents, between generated streams
//! of requests and emulated GPUs on the same core.
//!
//! A [`ModelThread`] is generic over its [`Intake`] and its [`Outlets`], a [`RankThread`] over its
//! [`Completions`]; in the engine all three are rings. [`link`] makes the rings between the two.
//! Each part is moved into a thread by [`spawn`], which then owns it.

pub(crate) mod agenda;
pub(crate) mod agent;
pub(crate) mod changes;
pub(crate) mod completions;
pub(crate) mod messages;
pub(crate) mod model_thread;
pub(crate) mod monitor;
pub(crate) mod policy_thread;
pub(crate) mod rank_thread;

pub use crate::runtime::queue_ids::QueueIds;
pub use crate::runtime::threads::agenda::Agenda;
pub use crate::runtime::threads::agent::{Agent, measure_lateness, run, spawn};
pub use crate::runtime::threads::changes::ChangeReceiver;
pub use crate::runtime::threads::messages::{GrantMessage, RankMessage};
pub use crate::runtime::threads::model_thread::{
    Intake, ModelThread, Outbox, Outlets, ReservationProgress, RingOutlets, SlotQueues, frames,
};
pub use crate::runtime::threads::monitor::ModelMonitor;
pub use crate::runtime::threads::rank_thread::{
    BackfillPhase, Completions, Grants, RankMonitor, RankThread, SubCluster,
};

use symphony_scheduler::deferral::Slack;
use symphony_scheduler::limits::RATE_SAMPLE;
use symphony_transport::Nanos;
use symphony_transport::ring::{Consumer, Producer, ring};

/// The number of hops between threads from a model's timer to the start of its batch: the timer
/// itself, the RankThread, the ModelThread again, the backend; and two more, so that a candidate
/// has time to be granted.
const HOPS_FROM_FRONTRUN: u64 = 6;

/// The number of hops from a grant to the start of the batch: the ModelThread, the backend.
const HOPS_FROM_GRANT: u64 = 2;

/// The number of hops between threads from the time at which a GPU is granted to the arrival of its
/// batch: the timer, the ModelThread, the backend.
const HOPS_TO_A_BATCH: u64 = 3;

/// Returns how long before a GPU is free it is to be granted, on threads that see with this
/// lateness that a time has come, so that its next batch is there when it is free.
pub fn ahead_for(lateness: Nanos) -> Nanos {
    Nanos(lateness.0 * HOPS_TO_A_BATCH)
}

/// Returns the slack that a [`QueueConfig`](symphony_scheduler::deferral::QueueConfig) must have on
/// threads that see with this lateness that a time has come.
pub fn slack_for(lateness: Nanos) -> Slack {
    Slack { frontrun: Nanos(lateness.0 * HOPS_FROM_FRONTRUN), latest: Nanos(lateness.0 * HOPS_FROM_GRANT) }
}

/// Returns the time from which the queue at `index` of `queues` on a thread measures its rate.
/// These times are spread over a sample: the work that follows from a rate takes a fraction of a
/// microsecond for a queue, and would hold the thread up for a thousand queues at once.
pub fn measures_from(start: Nanos, index: usize, queues: usize) -> Nanos {
    start + Nanos(RATE_SAMPLE.0 * index as u64 / queues.max(1) as u64)
}

/// The number of messages that a ring to a RankThread holds. A ModelThread whose ring is full
/// applies its next event a duty cycle later.
const MESSAGE_RING: usize = 4_096;

/// A ModelThread's ends of the rings to and from RankThreads, one of each per RankThread.
pub struct ModelLinks {
    /// Messages to the RankThread.
    pub messages: Vec<Producer<RankMessage>>,
    /// Grants from the RankThread.
    pub grants: Vec<Consumer<GrantMessage>>,
}

/// A RankThread's ends of the rings from and to ModelThreads, one of each per ModelThread.
pub struct RankLinks {
    /// Messages from the ModelThreads.
    pub messages: Vec<Consumer<RankMessage>>,
    /// Grants to the ModelThreads.
    pub grants: Vec<Producer<GrantMessage>>,
}

/// Makes the rings between ModelThreads, which own these numbers of queues, and RankThreads. A
/// queue has at most one grant under way, and the order to send reservations comes once, so a ring
/// of grants is never full.
pub fn link(queues_of: &[usize], rank_threads: usize) -> (Vec<ModelLinks>, Vec<RankLinks>) {
    let mut ranks: Vec<RankLinks> =
        (0..rank_threads).map(|_| RankLinks { messages: Vec::new(), grants: Vec::new() }).collect();
    let of_a_thread = |&models: &usize| {
        let mut links = ModelLinks { messages: Vec::new(), grants: Vec::new() };
        for rank in &mut ranks {
            let (messages_in, messages_out) = ring(MESSAGE_RING);
            let (grants_in, grants_out) = ring(models + 1);
            links.messages.push(messages_in);
            links.grants.push(grants_out);
            rank.messages.push(messages_out);
            rank.grants.push(grants_in);
        }
        links
    };
    let threads = queues_of.iter().map(of_a_thread).collect();
    (threads, ranks)
}
