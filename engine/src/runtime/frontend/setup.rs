//! The parts of a frontend, and the ends of its rings and slab that the engine's threads take.

use super::model_info::{ModelInfo, row_bytes};
use crate::runtime::clock::Clock;
use crate::runtime::fault::FaultLatch;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::{Request, Response};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::slab::{SlabView, SlotClass};

/// The hops of an answer on its way back: the frontend's poll, and what its thread does before it
/// sends.
pub(super) const HOPS_OF_AN_ANSWER: u64 = 2;

/// Row sizes, in bytes, that slab slots are kept for where models may be loaded later, up to the
/// largest that is asked for. Each is sixteen times the one before; memory that is not touched
/// costs nothing.
const LATER_ROWS: [usize; 5] = [1 << 6, 1 << 10, 1 << 14, 1 << 18, 1 << 22];

/// The engine's ends of a frontend's rings and slab: [`Frontend::new`](super::Frontend::new) makes
/// them, the engine's threads take them.
pub struct FrontendPeer {
    /// The requests for each ModelThread's models.
    pub requests: Vec<Consumer<Request>>,
    /// The answers of each thread that can end a request. Each ring holds as many as can be in
    /// flight, so it is never full.
    pub responses: Vec<Producer<Response>>,
    /// The slab slots that requests name.
    pub slab: SlabView,
}

/// The parts of a new [`Frontend`](super::Frontend).
pub struct FrontendSetup {
    /// The frontend's index, which requests carry and answers are routed by.
    pub id: u32,
    /// The engine's clock.
    pub clock: Clock,
    /// Every model slot of the engine, by id.
    pub models: Arc<[ModelInfo]>,
    /// The most bytes that a row of a model that is loaded later may have; 0 where none is.
    pub later_row: usize,
    /// The number of ModelThreads.
    pub model_threads: usize,
    /// The number of threads that can end a request: ModelThreads and backends.
    pub answering_threads: usize,
    /// The number of requests that may be in flight at once.
    pub capacity: usize,
    /// The least time that an answer takes back to its client, d_resp; the frontend measures the
    /// actual one.
    pub result_delay: Nanos,
    /// The lateness with which this machine's threads see that a time has come, as measured at
    /// start-up.
    pub lateness: Nanos,
    /// The time after which a request that is due is ended if the engine has not; [`Nanos::MAX`]
    /// leaves all to the engine.
    pub grace: Nanos,
    /// The flag that is cleared when the engine drains.
    pub accepting: Arc<AtomicBool>,
    /// The latch for faults that the engine can't survive.
    pub faults: FaultLatch,
}

/// Returns the slab's size classes: one per distinct row size, each with `capacity` slots or as
/// many as its share of [`limits::MAX_SLAB_BYTES`] holds.
pub(super) fn slot_classes(models: &[ModelInfo], later_row: usize, capacity: usize) -> Vec<SlotClass> {
    let mut sizes: Vec<usize> =
        ModelInfo::served(models).map(|model| row_bytes(model).next_power_of_two().max(64)).collect();
    if later_row > 0 {
        sizes.extend(LATER_ROWS.into_iter().filter(|&bytes| bytes < later_row));
        sizes.push(later_row.next_multiple_of(64));
    }
    sizes.sort_unstable();
    sizes.dedup();
    let share = limits::MAX_SLAB_BYTES / sizes.len().max(1);
    sizes
        .into_iter()
        .map(|slot_bytes| SlotClass { slot_bytes, count: capacity.min(share / slot_bytes).max(1) })
        .collect()
}
