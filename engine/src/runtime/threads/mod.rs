//! The scheduler's threads as parts, for who puts them together otherwise than
//! [`Engine`](super::Engine) does: the benchmarks run these very agents, between streams of
//! requests and GPUs that are objects in place.
//!
//! A [`ModelThread`] is generic over its [`Intake`] and its [`Outlets`], a [`RankThread`] over its
//! [`Completions`]; in the engine all three are rings. [`link`] makes the rings between the two.
//! Each part is moved into a thread by [`spawn`], which then owns it.

pub(crate) mod agenda;
pub(crate) mod agent;
pub(crate) mod changes;
pub(crate) mod messages;
pub(crate) mod model_thread;
pub(crate) mod rank_thread;
pub(crate) mod watch;

pub use crate::runtime::queue_ids::QueueIds;
pub use crate::runtime::threads::agenda::Agenda;
pub use crate::runtime::threads::agent::{Agent, measure_lateness, run, spawn};
pub use crate::runtime::threads::changes::Taker;
pub use crate::runtime::threads::messages::{GrantMessage, RankMessage};
pub use crate::runtime::threads::model_thread::{
    Foretelling, Intake, ModelThread, Outbox, Outlets, RingOutlets, SlotQueues, frames,
};
pub use crate::runtime::threads::rank_thread::{
    Completions, Foretold, Grants, RankThread, RankWatch, SubCluster,
};
pub use crate::runtime::threads::watch::ModelWatch;

use symphony_scheduler::deferral::Slack;
use symphony_scheduler::limits::RATE_SAMPLE;
use symphony_transport::Nanos;
use symphony_transport::ring::{Consumer, Producer, ring};

/// Hops between threads from a model's timer to the start of its batch: the timer itself, the
/// RankThread, the ModelThread again, the backend; and two more, so that a candidate has time to be
/// granted.
const HOPS_FROM_FRONTRUN: u64 = 6;

/// Hops from a grant to the start of the batch: the ModelThread, the backend.
const HOPS_FROM_GRANT: u64 = 2;

/// What [`QueueConfig`](symphony_scheduler::model::QueueConfig) have to allow for on threads that
/// see a time come this late.
pub fn slack_for(lateness: Nanos) -> Slack {
    Slack { frontrun: Nanos(lateness.0 * HOPS_FROM_FRONTRUN), latest: Nanos(lateness.0 * HOPS_FROM_GRANT) }
}

/// From when the model at `place` of `models` on a thread measures its rate. Spread over a sample:
/// what follows from a rate takes a model a fraction of a microsecond, and of a thousand models at
/// once it would hold the thread up.
pub fn measures_from(start: Nanos, place: usize, models: usize) -> Nanos {
    start + Nanos(RATE_SAMPLE.0 * place as u64 / models.max(1) as u64)
}

/// Words that a ring to a RankThread holds. A ModelThread whose ring is full does its next event a
/// turn later.
const WORD_RING: usize = 4_096;

/// A ModelThread's ends of the rings to and from RankThreads, one of each per RankThread.
pub struct ModelLinks {
    /// What it says.
    pub words: Vec<Producer<RankMessage>>,
    /// What it is granted.
    pub grants: Vec<Consumer<GrantMessage>>,
}

/// A RankThread's ends of the rings from and to ModelThreads, one of each per ModelThread.
pub struct RankLinks {
    /// What it hears.
    pub words: Vec<Consumer<RankMessage>>,
    /// What it grants.
    pub grants: Vec<Producer<GrantMessage>>,
}

/// The rings between ModelThreads, of which each owns so many models or lanes of them, and so many
/// RankThreads. Each has at most one grant under way, and a wish to foretell comes once, so a ring
/// of grants is never full.
pub fn link(models_of: &[usize], rank_threads: usize) -> (Vec<ModelLinks>, Vec<RankLinks>) {
    let mut ranks: Vec<RankLinks> =
        (0..rank_threads).map(|_| RankLinks { words: Vec::new(), grants: Vec::new() }).collect();
    let of_a_thread = |&models: &usize| {
        let mut links = ModelLinks { words: Vec::new(), grants: Vec::new() };
        for rank in &mut ranks {
            let (words_in, words_out) = ring(WORD_RING);
            let (grants_in, grants_out) = ring(models + 1);
            links.words.push(words_in);
            links.grants.push(grants_out);
            rank.words.push(words_out);
            rank.grants.push(grants_in);
        }
        links
    };
    let threads = models_of.iter().map(of_a_thread).collect();
    (threads, ranks)
}
