//! Completions on their way from a backend to a RankThread. Each has a number, which counts those
//! of its GPU, and the backend publishes the last number beside the ring. So a completion that
//! comes twice is found out, and one that was lost too: by the next one of its GPU, or, where none
//! comes since the GPU is granted to nobody, by a look at what the backend says. A GPU whose
//! completion was lost is thus in service again within twice [`LOOK_EVERY`].
//!
//! Cost: an addition and a comparison a completion, a comparison of times a duty cycle, and two
//! loads for each GPU every quarter of a second, 64 GPUs at a time.

use super::rank_thread::Completions;
use crate::runtime::counters::RankTally;
use crate::runtime::counters::count::Count;
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use std::sync::Arc;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, GpuId, ModelId};
use symphony_transport::ring::Consumer;

/// The time between two looks at what the backend says of a GPU. A completion that it has sent
/// before the first and that has not come by the second was lost.
const LOOK_EVERY: Nanos = Nanos::from_millis(250);

/// The number of GPUs that are looked at in one duty cycle.
const GPUS_PER_LOOK: usize = 64;

/// The number of the batch in a completion that stands for a lost one.
const LOST_BATCH: u64 = u64::MAX;

/// A completion with its number among those of its GPU, the first of which is 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct NumberedCompletion {
    pub(crate) completion: Completion,
    pub(crate) number: u64,
}

/// What is known of a GPU.
#[derive(Clone, Copy, Default)]
struct GpuProgress {
    /// The number of the last completion that came.
    came: u64,
    /// The number of the last one that the backend had sent at the last look.
    sent: u64,
}

/// The completions of one backend's GPUs, each once. See the module's description.
pub(crate) struct CheckedCompletions {
    ring: Consumer<NumberedCompletion>,
    /// The number of the last completion of each GPU of the engine.
    sent: Arc<[Count]>,
    /// The engine's number of the first of these GPUs.
    first_gpu: u32,
    /// A model that runs on these GPUs.
    model: ModelId,
    gpus: Vec<GpuProgress>,
    /// The completions that come next, the last one first: in place of lost ones, and the one by
    /// which they were found.
    next: Vec<Completion>,
    /// The GPU that the next look begins at, and its time.
    cursor: usize,
    look_at: Nanos,
    doubled: u64,
}

impl CheckedCompletions {
    /// Makes the receiving end for these GPUs, on which `model` runs, among others. `sent` has the
    /// number of each GPU's last completion.
    pub(crate) fn new(
        ring: Consumer<NumberedCompletion>,
        sent: Arc<[Count]>,
        gpus: Range<u32>,
        model: ModelId,
    ) -> CheckedCompletions {
        let count = gpus.len();
        CheckedCompletions {
            ring,
            sent,
            first_gpu: gpus.start,
            model,
            gpus: vec![GpuProgress::default(); count],
            next: Vec::with_capacity(count.min(GPUS_PER_LOOK) * limits::MAX_OUTSTANDING_BATCHES + 1),
            cursor: 0,
            look_at: LOOK_EVERY,
            doubled: 0,
        }
    }

    /// Returns the ring, to put something between its ends.
    pub(crate) fn ring_mut(&mut self) -> &mut Consumer<NumberedCompletion> {
        &mut self.ring
    }

    /// Takes a completion that is not the next one of its GPU.
    #[cold]
    fn take_other(&mut self, NumberedCompletion { completion, number }: NumberedCompletion) {
        let at = (completion.gpu.0 - self.first_gpu) as usize;
        if number <= self.gpus[at].came {
            self.doubled += 1;
            return;
        }
        self.next.push(completion);
        self.replace_lost(at, number - 1, completion.started);
        self.gpus[at].came = number;
    }

    /// Puts completions in place of those of a GPU that were lost, up to this number.
    fn replace_lost(&mut self, at: usize, number: u64, finished: Nanos) {
        let came = std::mem::replace(&mut self.gpus[at].came, number);
        let gpu = GpuId(self.first_gpu + at as u32);
        let lost = Completion { batch: LOST_BATCH, started: finished, finished, model: self.model, gpu };
        self.next.extend((came..number).map(|_| lost));
    }

    /// Looks for lost completions of the next few GPUs.
    #[cold]
    fn find_lost(&mut self, now: Nanos, tally: &mut RankTally) {
        tally.doubled_completions += std::mem::take(&mut self.doubled);
        let (count, first) = (self.gpus.len(), self.cursor);
        let end = (first + GPUS_PER_LOOK).min(count);
        for at in first..end {
            let GpuProgress { came, sent } = self.gpus[at];
            if came < sent {
                tally.lost_completions += sent - came;
                self.replace_lost(at, sent, now);
            }
            self.gpus[at].sent = self.sent[self.first_gpu as usize + at].get();
        }
        self.cursor = if end == count { 0 } else { end };
        let looks = count.div_ceil(GPUS_PER_LOOK).max(1) as u64;
        self.look_at = now + Nanos(LOOK_EVERY.0 / looks);
    }
}

impl Completions for CheckedCompletions {
    #[inline]
    fn next(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.next.pop() {
                return Some(completion);
            }
            let numbered = self.ring.pop()?;
            let gpu = &mut self.gpus[(numbered.completion.gpu.0 - self.first_gpu) as usize];
            if numbered.number == gpu.came + 1 {
                gpu.came = numbered.number;
                return Some(numbered.completion);
            }
            self.take_other(numbered);
        }
    }

    fn waiting(&mut self) -> usize {
        self.ring.len()
    }

    #[inline]
    fn look(&mut self, now: Nanos, tally: &mut RankTally) {
        if now >= self.look_at {
            self.find_lost(now, tally);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use symphony_transport::ring::ring;

    /// What becomes of a completion.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Fate {
        Comes,
        IsLost,
        ComesTwice,
        ComesAgainLater,
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![
            4 => Just(Fate::Comes),
            1 => Just(Fate::IsLost),
            1 => Just(Fate::ComesTwice),
            1 => Just(Fate::ComesAgainLater),
        ]
    }

    proptest! {
        #[test]
        fn every_batch_completes_once_whichever_messages_are_lost_or_doubled(
            batches in prop::collection::vec((0u32..3, fate()), 1..60),
        ) {
            let sent: Arc<[Count]> = (0..8).map(|_| Count::new()).collect();
            let (mut to, from) = ring(256);
            let mut completions = CheckedCompletions::new(from, Arc::clone(&sent), 5..8, ModelId(1));
            let mut tally = RankTally::default();
            let (mut given, mut came) = ([0; 3], [0; 3]);
            let mut later = Vec::new();
            for &(gpu, fate) in &batches {
                given[gpu as usize] += 1;
                let completion = Completion { gpu: GpuId(gpu + 5), ..Completion::default() };
                let numbered = NumberedCompletion { completion, number: given[gpu as usize] };
                sent[gpu as usize + 5].set(numbered.number);
                let times = match fate {
                    Fate::IsLost => 0,
                    Fate::Comes => 1,
                    Fate::ComesTwice => 2,
                    Fate::ComesAgainLater => {
                        later.push(numbered);
                        1
                    }
                };
                (0..times).for_each(|_| to.push(numbered).unwrap());
                while let Some(completion) = completions.next() {
                    came[(completion.gpu.0 - 5) as usize] += 1;
                }
                prop_assert!((0..3).all(|gpu| came[gpu] <= given[gpu]), "a completion too many");
            }
            later.into_iter().for_each(|numbered| to.push(numbered).unwrap());
            for look in 1..=3 {
                completions.look(Nanos(LOOK_EVERY.0 * look), &mut tally);
                while let Some(completion) = completions.next() {
                    came[(completion.gpu.0 - 5) as usize] += 1;
                }
            }
            prop_assert_eq!(came, given);
            let doubled = batches.iter().filter(|(_, fate)| matches!(fate, Fate::ComesTwice | Fate::ComesAgainLater));
            prop_assert_eq!(tally.doubled_completions, doubled.count() as u64);
        }
    }
}
