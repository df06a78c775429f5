//! A scheduler without a plan: a queue per model in order of arrival, and GPUs that take a batch
//! from one of them whenever they are idle. The policy says when a model has a batch and how large
//! it is ([`Batching`]); of several models that have one, the one with the earliest such time is
//! served. Requests are dropped lazily: when a GPU would take them.

use super::interface::{Decisions, Scheduler};
use crate::limits;
use crate::profile::Profile;
use crate::rank::min_tree::MinTree;
use crate::workload::{Network, Workload};
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// A policy's way to form batches. A model is named by its index in the workload.
pub(super) trait Batching: Send {
    /// Returns the time from which the `waiting` requests of a model, the first of which arrived at
    /// `since`, have a batch for an idle GPU.
    fn ready_at(&self, model: usize, waiting: usize, since: Nanos) -> Nanos;
    /// Returns the size of the batch to form of `waiting` requests, from 1 to `waiting`.
    fn size(&self, model: usize, waiting: usize) -> usize;
    /// Returns the time before its deadline from which on a request is dropped.
    fn hopeless_within(&self, model: usize) -> Nanos;
    /// Takes the result of a batch: `in_time` if none of its requests was late.
    fn ran(&mut self, model: usize, size: usize, in_time: bool);
}

/// The scheduler.
pub(super) struct Pull<B> {
    batching: B,
    queues: Vec<VecDeque<Request>>,
    profiles: Vec<Profile>,
    /// The time from which each model has a batch.
    ready: MinTree,
    /// The idle GPUs, the lowest-numbered first.
    idle: BinaryHeap<Reverse<usize>>,
    /// The batch of each GPU that is not idle.
    running: Vec<PulledBatch>,
    network: Network,
    batches: u64,
}

#[derive(Clone, Copy, Default)]
struct PulledBatch {
    size: usize,
    first_deadline: Nanos,
}

impl<B: Batching> Pull<B> {
    pub(super) fn new(workload: &Workload, batching: B) -> Pull<B> {
        let models = workload.models.len();
        Pull {
            batching,
            queues: vec![VecDeque::new(); models],
            profiles: workload.models.iter().map(|model| model.profile.clone()).collect(),
            ready: MinTree::new(models),
            idle: (0..workload.gpus).map(Reverse).collect(),
            running: vec![PulledBatch::default(); workload.gpus],
            network: workload.network,
            batches: 0,
        }
    }

    fn update(&mut self, model: usize) {
        let queue = &self.queues[model];
        let ready_at = |head: &Request| self.batching.ready_at(model, queue.len(), head.arrival);
        self.ready.set(model, queue.front().map_or(Nanos::MAX, ready_at));
    }

    /// Gives idle GPUs a batch each, while models have any.
    fn pull(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while !self.idle.is_empty() {
            let Some((_, model)) = self.ready.min().filter(|&(ready, _)| ready <= now) else { return };
            let (queue, soonest) = (&mut self.queues[model], now + self.batching.hopeless_within(model));
            let hopeless = queue.iter().take_while(|request| request.deadline < soonest).count();
            if hopeless > 0 {
                for request in queue.drain(..hopeless) {
                    out.end(&request, Ending::DroppedInQueue, now);
                }
                // The rest may not have a batch yet.
                self.update(model);
                continue;
            }
            self.run(now, model, out);
        }
    }

    fn run(&mut self, now: Nanos, model: usize, out: &mut dyn Decisions) {
        let Some(Reverse(gpu)) = self.idle.pop() else { return };
        let queue = &mut self.queues[model];
        let size = self.batching.size(model, queue.len());
        let taken: Vec<Request> = queue.drain(..size).collect();
        let first_deadline = taken.iter().map(|request| request.deadline).min().unwrap_or(Nanos::MAX);
        self.running[gpu] = PulledBatch { size, first_deadline };
        let batch = BatchHeader {
            batch: self.batches,
            exec_at: now + self.network.delay(size),
            latest: Nanos::MAX,
            duration: self.profiles[model].latency(size),
            model: ModelId(model as u32),
            gpu: GpuId(gpu as u32),
            size: size as u32,
            ..BatchHeader::default()
        };
        self.batches += 1;
        out.run(batch, (&taken, &[]));
        self.update(model);
    }
}

impl<B: Batching> Scheduler for Pull<B> {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        let model = request.queue.0 as usize;
        if self.queues[model].len() == limits::MAX_QUEUE_LENGTH {
            out.end(&request, Ending::Overloaded, now);
            return;
        }
        self.queues[model].push_back(request);
        self.update(model);
        self.pull(now, out);
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        let (model, gpu) = (completion.model.0 as usize, completion.gpu.0 as usize);
        let PulledBatch { size, first_deadline } = self.running[gpu];
        self.batching.ran(model, size, completion.finished <= first_deadline);
        self.idle.push(Reverse(gpu));
        self.update(model);
        self.pull(now, out);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        self.pull(now, out);
    }

    fn next_timer(&self) -> Nanos {
        if self.idle.is_empty() { Nanos::MAX } else { self.ready.min_key() }
    }
}
