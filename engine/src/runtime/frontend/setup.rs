//! The parts of a frontend, and the ends of its rings and slab that the engine's threads take.

use super::model_info::{ModelInfo, row_bytes};
use crate::runtime::clock::Clock;
use crate::runtime::fault::FaultLatch;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_transport::Nanos;
use symphony_transport::doorbell::Doorbells;
use symphony_transport::message::{REQUEST_IDS, Request, Response};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::slab::{MAX_CLASSES, SlabPages, SlabView, SlotClass};

/// The hops of an answer on its way back: the frontend's poll, and what its thread does before it
/// sends.
pub(super) const HOPS_OF_AN_ANSWER: u64 = 2;

/// The bytes of a cache line, of which slots take whole ones.
const CACHE_LINE: usize = 64;

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

/// Where the ids of a frontend's requests and slots begin: at 0 by default, which is enough where
/// all that knows of them ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FirstIds {
    /// The id of its first request, below [`REQUEST_IDS`].
    pub(super) request: u64,
    /// What the first generation of its slots follows from.
    pub(super) slots: u64,
}

impl FirstIds {
    /// Returns where the ids of a process begin that other hosts deal with, by the time of its
    /// start. A backend may still have a request of the process before it, whose answer must not
    /// pass for that of one of its own: so the two begin far apart, at places as good as random.
    pub(crate) fn of_process(started: u64) -> FirstIds {
        // The finalizer of the generator SplitMix64: neighbouring times have unlike results.
        let mixed = (started ^ started >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let mixed = mixed ^ mixed >> 31;
        FirstIds { request: mixed % REQUEST_IDS, slots: mixed.rotate_left(16) }
    }
}

/// The parts of a new [`Frontend`](super::Frontend).
pub struct FrontendSetup {
    /// The frontend's index, which requests carry and answers are routed by.
    pub id: u32,
    /// Where the ids of its requests and slots begin.
    pub first_ids: FirstIds,
    /// The engine's clock.
    pub clock: Clock,
    /// The doorbells of the engine's threads.
    pub bells: Doorbells,
    /// Every model slot of the engine, by id.
    pub models: Arc<[ModelInfo]>,
    /// The most bytes that a row of a model that is loaded later may have; 0 where none is.
    pub later_row: usize,
    /// The number of ModelThreads.
    pub model_threads: usize,
    /// The number of threads that can end a request: ModelThreads and backends.
    pub answering_threads: usize,
    /// The number of rows that may be in flight at once.
    pub capacity: usize,
    /// The bytes of their slots together, at most.
    pub slab_bytes: usize,
    /// The pages that the slots lie on. All of huge ones is taken at once, so then the classes
    /// share the memory instead of each being made for all of it.
    pub pages: SlabPages,
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

impl FrontendSetup {
    /// Returns the parts of a frontend of these models whose engine is a test: one thread that
    /// takes its requests and answers them, 64 slots of memory enough, and no time limits.
    #[doc(hidden)]
    pub fn of_models(models: Arc<[ModelInfo]>) -> FrontendSetup {
        let accepting = Arc::new(AtomicBool::new(true));
        FrontendSetup {
            id: 0,
            first_ids: FirstIds::default(),
            clock: Clock::start(),
            bells: Doorbells::none(),
            models,
            later_row: 0,
            model_threads: 1,
            answering_threads: 1,
            capacity: 64,
            slab_bytes: 1 << 30,
            pages: SlabPages::Plain,
            result_delay: Nanos::ZERO,
            lateness: Nanos::ZERO,
            grace: Nanos::MAX,
            faults: FaultLatch::new(Arc::clone(&accepting)),
            accepting,
        }
    }
}

/// The sizes of slots between a power of two and the next: with eight, an eighth of a slot at most
/// is not used. Fewer where there would be more than a slab has.
const SIZES_PER_POWER: [usize; 4] = [8, 4, 2, 1];

/// Returns the sizes of slots, smallest first: those of the models' rows, rounded up, and those
/// that are kept for models that are loaded later.
fn slot_sizes(models: &[ModelInfo], later_row: usize) -> Vec<usize> {
    let mut later: Vec<usize> = LATER_ROWS.into_iter().filter(|&bytes| bytes < later_row).collect();
    later.extend((later_row > 0).then(|| later_row.next_multiple_of(CACHE_LINE)));
    let mut sizes = Vec::new();
    for per_power in SIZES_PER_POWER {
        sizes = ModelInfo::served(models).map(|model| rounded_up(row_bytes(model), per_power)).collect();
        sizes.extend(&later);
        sizes.sort_unstable();
        sizes.dedup();
        if sizes.len() <= MAX_CLASSES {
            break;
        }
    }
    // Rows of the smallest sizes have larger slots then.
    sizes.drain(..sizes.len().saturating_sub(MAX_CLASSES));
    sizes
}

/// Rounds up to one of `per_power` sizes in each power of two, of whole cache lines.
fn rounded_up(bytes: usize, per_power: usize) -> usize {
    let step = bytes.next_power_of_two() / 2 / per_power;
    bytes.max(1).next_multiple_of(step.max(CACHE_LINE))
}

/// Returns the size of the largest slots.
pub(crate) fn largest_slot(models: &[ModelInfo], later_row: usize) -> usize {
    slot_sizes(models, later_row).last().copied().unwrap_or_default()
}

/// Returns the slab's size classes, each with as many slots as `slots` and `bytes` allow: which of
/// them are used is for the requests to decide. Memory that a device reaches is locked, used or
/// not: there each class has its share of `bytes`.
pub(crate) fn slot_classes(
    models: &[ModelInfo],
    later_row: usize,
    slots: usize,
    bytes: usize,
    pages: SlabPages,
) -> Vec<SlotClass> {
    let sizes = slot_sizes(models, later_row);
    let share = if pages == SlabPages::Plain { bytes } else { bytes / sizes.len().max(1) };
    let class = |slot_bytes| SlotClass { slot_bytes, count: slots.min(share / slot_bytes).max(1) };
    sizes.into_iter().map(class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::frontend::{Ask, Frontend, Refusal, SlotState};
    use symphony_gpu::{DataType, Signature, TensorSpec};
    use symphony_scheduler::limits;
    use symphony_transport::message::ModelId;

    /// Returns a model whose rows have this number of bytes.
    fn model(id: u32, bytes: usize) -> ModelInfo {
        let inputs = vec![TensorSpec { name: "in".into(), datatype: DataType::Uint8, shape: vec![bytes] }];
        let signature = Signature::of_rows(inputs, Vec::new());
        let slo = Nanos::from_secs(60);
        ModelInfo { signature, slo, state: SlotState::Serving, ..ModelInfo::vacant(ModelId(id), 0) }
    }

    fn frontend(models: &[ModelInfo], capacity: usize, slab_bytes: usize) -> (Frontend, FrontendPeer) {
        let setup = FrontendSetup::of_models(models.into());
        Frontend::new(FrontendSetup { later_row: 1 << 20, capacity, slab_bytes, ..setup }).unwrap()
    }

    /// Sends requests of one row until one is refused.
    fn accepted(frontend: &mut Frontend, model: u32) -> usize {
        let mut accepted = 0;
        loop {
            match frontend.submit(&Ask::one(ModelId(model)), |_, _| ()) {
                Ok(_) => accepted += 1,
                Err(refusal) => {
                    assert_eq!(refusal, Refusal::Overloaded);
                    return accepted;
                }
            }
        }
    }

    #[test]
    fn two_thousand_images_are_in_flight_beside_small_rows_in_a_slab_of_an_eighth_of_12_gb() {
        // The input of ResNet-50 is 602,112 bytes.
        let models = [model(0, 602_112 + 4_000), model(1, 40)];
        let (mut frontend, _peer) = frontend(&models, limits::MAX_IN_FLIGHT, 12_000_000_000 / 8);
        let images: Vec<_> =
            (0..2_000).map(|_| frontend.submit(&Ask::one(ModelId(0)), |_, row| row[0] = 1)).collect();
        assert!(images.iter().all(Result::is_ok), "{:?}", images.last());
        assert_eq!(accepted(&mut frontend, 1), limits::MAX_IN_FLIGHT - 2_000);
    }

    #[test]
    fn all_the_memory_goes_to_the_rows_that_come() {
        let models = [model(0, 100_000), model(1, 300), model(2, 1_000)];
        let (mut frontend, _peer) = frontend(&models, 16_384, 50_000_000);
        let large = accepted(&mut frontend, 0);
        assert!((450..=500).contains(&large), "{large} of at most 500");
        assert!(accepted(&mut frontend, 1) < 500);
    }

    #[test]
    fn a_slot_is_at_most_an_eighth_larger_than_its_row() {
        for bytes in (1..3_000).chain([602_112, 606_112, 1 << 20, (1 << 20) + 1]) {
            let slot = rounded_up(bytes, 8);
            assert!(slot >= bytes && slot - bytes < (bytes / 8).max(CACHE_LINE), "{bytes} in {slot}");
        }
        let many: Vec<ModelInfo> = (0..300).map(|n| model(n, 100 * n as usize)).collect();
        let sizes = slot_sizes(&many, 1 << 20);
        assert!(sizes.len() <= MAX_CLASSES && sizes.last() == Some(&(1 << 20)), "{sizes:?}");
        assert_eq!(largest_slot(&many[..10], 0), 960);
    }
}
