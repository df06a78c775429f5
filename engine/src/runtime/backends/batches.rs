//! The common work of all backend threads: taking batches off the rings from ModelThreads and, when
//! a batch is over, answering its requests' frontends and reporting its completion to the
//! RankThread of its sub-cluster.

use crate::runtime::counters::count::Count;
use crate::runtime::counters::executions::Executing;
use crate::runtime::counters::{BackendTally, Counting};
use crate::runtime::full_ring::AlwaysRoom;
use crate::runtime::threads::completions::NumberedCompletion;
use std::collections::VecDeque;
use std::sync::Arc;
use symphony_transport::Nanos;
use symphony_transport::message::{
    BatchEntry, BatchHeader, Completion, ENTRIES_PER_FRAME, Ending, Frame, Response,
};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::slab::{SlabView, SlotClaim};

/// A batch that waits or runs at a backend.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) header: BatchHeader,
    pub(crate) entries: Vec<BatchEntry>,
    /// The time at which the header came: the batch was put together just before.
    pub(crate) received: Nanos,
}

/// The receiving end of batches. The lists of batches that are over are reused.
pub(crate) struct Inbox {
    rings: Vec<Consumer<Frame>>,
    spare: Vec<Batch>,
}

impl Inbox {
    /// Makes the receiving end of these rings, one per ModelThread.
    pub(crate) fn new(rings: Vec<Consumer<Frame>>) -> Inbox {
        Inbox { rings, spare: Vec::new() }
    }

    /// Hands every batch that has come to `take`.
    pub(crate) fn receive(&mut self, now: Nanos, mut take: impl FnMut(Batch)) -> usize {
        let mut received = 0;
        for ring in &mut self.rings {
            while let Some(header) = ring.pop() {
                let mut batch = self.spare.pop().unwrap_or_default();
                batch.header = header.into();
                batch.received = now;
                batch.entries.clear();
                // A batch is published whole, so its entries are there when its header is.
                for _ in 1..BatchHeader::frames(batch.header.size as usize) {
                    let frame = ring.pop().unwrap_or_default();
                    batch.entries.extend::<[BatchEntry; ENTRIES_PER_FRAME]>(frame.into());
                }
                batch.entries.truncate(batch.header.size as usize);
                take(batch);
                received += 1;
            }
        }
        received
    }

    /// Takes the list of a batch that is over, for reuse.
    pub(crate) fn recycle(&mut self, batch: Batch) {
        self.spare.push(batch);
    }
}

/// The batches that wait for one GPU. Those of different ModelThreads come on different rings, so
/// they come in any order; they wait in the order in which they start.
#[derive(Debug, Default)]
pub(crate) struct WaitingBatches(VecDeque<Batch>);

impl WaitingBatches {
    /// Adds a batch behind those that start no later than it: mostly behind all, and there are four
    /// at most.
    pub(crate) fn add(&mut self, batch: Batch) {
        let starts_later = |waiting: &&Batch| waiting.header.exec_at > batch.header.exec_at;
        let behind = self.0.iter().rev().take_while(starts_later).count();
        self.0.insert(self.0.len() - behind, batch);
    }

    /// Returns the header of the next batch.
    pub(crate) fn next(&self) -> Option<&BatchHeader> {
        self.0.front().map(|batch| &batch.header)
    }

    /// Takes the next batch out if it may start by now.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Option<Batch> {
        self.0.pop_front_if(|batch| batch.header.exec_at <= now)
    }

    /// Takes out a batch that can't start in time any more.
    pub(crate) fn take_late(&mut self, now: Nanos) -> Option<Batch> {
        let late = self.0.iter().position(|batch| batch.header.latest < now)?;
        self.0.remove(late)
    }

    /// Takes all batches out, the next one first.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Batch> {
        self.0.drain(..)
    }
}

/// The sending end of answers and completions.
pub(crate) struct Answers {
    /// The slabs of the frontends, by their numbers.
    pub(crate) slabs: Vec<SlabView>,
    /// The ring to each frontend. Each holds all that the frontend can have in flight, so it is
    /// never full.
    pub(crate) frontends: Vec<Producer<Response>>,
    /// The ring to each RankThread. It holds every batch that this thread's GPUs can have been
    /// given from there.
    pub(crate) completions: Vec<Producer<NumberedCompletion>>,
    /// The number of the last completion of each GPU of the engine; this thread's are its own.
    pub(crate) sent: Arc<[Count]>,
    /// The RankThread of each model's sub-cluster.
    pub(crate) rank_of: Arc<[u32]>,
    /// The counters of batches.
    pub(crate) counting: Counting<BackendTally>,
    /// The counts of executed batches, by model and by GPU.
    pub(crate) executing: Executing,
}

impl Answers {
    /// Claims the slot of a request; `None` if another holder has it, which never happens in a
    /// sound engine.
    pub(crate) fn claim(&self, entry: BatchEntry) -> Option<SlotClaim> {
        self.slabs.get(usize::from(entry.slot.frontend()))?.claim_owned(entry.slot)
    }

    /// Ends one request of a batch.
    pub(crate) fn answer(
        &mut self,
        batch: &Batch,
        entry: BatchEntry,
        ending: Ending,
        started: Nanos,
        finished: Nanos,
    ) {
        let response = Response {
            id: entry.id,
            slot: entry.slot,
            batched: batch.received,
            started,
            finished,
            ending: ending as u32,
            batch_size: batch.header.size,
            gpu: batch.header.gpu,
            ..Response::default()
        };
        if let Some(frontend) = self.frontends.get_mut(usize::from(entry.slot.frontend())) {
            frontend
                .push(response)
                .always_has_room("an answer: a frontend's ring holds all it can have in flight");
        }
    }

    /// Ends every request of a batch the same way.
    pub(crate) fn answer_all(&mut self, batch: &Batch, ending: Ending, started: Nanos, finished: Nanos) {
        for &entry in &batch.entries {
            self.answer(batch, entry, ending, started, finished);
        }
    }

    /// Counts a batch that has run, and leaves its completion to be reported.
    pub(crate) fn ran(&mut self, batch: &Batch, started: Nanos, finished: Nanos) {
        let BatchHeader { exec_at, duration, .. } = batch.header;
        let tally = &mut self.counting.tally;
        tally.batches += 1;
        tally.start.count(started - exec_at);
        tally.finish.count(finished - (exec_at + duration));
        self.executing.ran(&batch.header, started, finished);
    }

    /// Reports to the RankThread that the batch has left its GPU.
    pub(crate) fn complete(&mut self, batch: &Batch, started: Nanos, finished: Nanos) {
        let BatchHeader { batch, model, gpu, .. } = batch.header;
        let rank = self.rank_of[model.0 as usize] as usize;
        let completion = Completion { batch, started, finished, model, gpu };
        let sent = &self.sent[gpu.0 as usize];
        let number = sent.get() + 1;
        sent.set(number);
        self.completions[rank]
            .push(NumberedCompletion { completion, number })
            .always_has_room("a completion: the ring holds every batch that the GPUs can have been given");
    }

    /// Ends the requests of a batch that did not start in time, and leaves its completion to be
    /// reported.
    pub(crate) fn drop_late(&mut self, batch: &Batch, now: Nanos) {
        self.counting.tally.cancelled += 1;
        self.executing.cancelled(&batch.header, now);
        self.answer_all(batch, Ending::DroppedAtBackend, batch.header.latest, now);
    }

    /// Fails the requests of a batch that was not run, and leaves its completion to be reported.
    pub(crate) fn fail(&mut self, batch: &Batch, now: Nanos) {
        self.answer_all(batch, Ending::Failed, Nanos::ZERO, now);
        self.executing.failed(&batch.header, batch.entries.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use symphony_transport::ring::ring;

    proptest! {
        #[test]
        fn batches_of_several_rings_wait_in_the_order_in_which_they_start(
            // Of each batch: its ring, its start, and whether it is received at once.
            batches in prop::collection::vec((0usize..3, 0u64..100, any::<bool>()), 1..40),
        ) {
            let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| ring::<Frame>(128)).unzip();
            let mut inbox = Inbox::new(receivers);
            let mut waiting = WaitingBatches::default();
            for (number, &(of, start, now)) in batches.iter().enumerate() {
                let header = BatchHeader { batch: number as u64, exec_at: Nanos(start), size: 1, ..BatchHeader::default() };
                senders[of].write(header.into()).unwrap();
                senders[of].push([BatchEntry::default(); ENTRIES_PER_FRAME].into()).unwrap();
                if now {
                    inbox.receive(Nanos(1), |batch| waiting.add(batch));
                }
            }
            inbox.receive(Nanos(1), |batch| waiting.add(batch));
            let mut starts: Vec<_> = batches.iter().map(|&(_, start, _)| Nanos(start)).collect();
            starts.sort_unstable();
            prop_assert_eq!(waiting.next().map(|next| next.exec_at), starts.first().copied());
            let order: Vec<_> = waiting.drain().map(|batch| batch.header.exec_at).collect();
            prop_assert_eq!(order, starts);
        }
    }
}
