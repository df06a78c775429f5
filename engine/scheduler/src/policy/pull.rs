//! What schedulers without a plan share: a queue a model in order of arrival, and GPUs that take a
//! batch from one of them whenever they have nothing to do. Which and how large is the policy's
//! word ([`Batching`]); of several models that have a batch, the one whose first request came first
//! is served. Requests are dropped lazily: when a GPU would take them.

use super::{Decisions, Scheduler};
use crate::limits;
use crate::profile::Profile;
use crate::rank::min_tree::MinTree;
use crate::workload::{Network, Workload};
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// How a policy batches. Models are asked about by their place in the workload.
pub(super) trait Batching {
    /// From when the `waiting` requests of a model, the first of which came at `since`, have a
    /// batch for an idle GPU.
    fn ready_at(&self, model: usize, waiting: usize, since: Nanos) -> Nanos;
    /// How many of the `waiting` requests to take, at least 1 and at most `waiting`.
    fn size(&self, model: usize, waiting: usize) -> usize;
    /// A request is given up where less than this is left to its deadline.
    fn hopeless_within(&self, model: usize) -> Nanos;
    /// A batch has run; `in_time` if none of it was late.
    fn ran(&mut self, model: usize, size: usize, in_time: bool);
}

/// The scheduler.
pub(super) struct Pull<B> {
    batching: B,
    queues: Vec<VecDeque<Request>>,
    profiles: Vec<Profile>,
    /// From when each model has a batch.
    ready: MinTree,
    /// GPUs with nothing to do, the lowest-numbered first.
    idle: BinaryHeap<Reverse<usize>>,
    /// What the others run.
    running: Vec<Running>,
    network: Network,
    batches: u64,
}

#[derive(Clone, Copy, Default)]
struct Running {
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
            running: vec![Running::default(); workload.gpus],
            network: workload.network,
            batches: 0,
        }
    }

    fn update(&mut self, model: usize) {
        let queue = &self.queues[model];
        let ready_at = |head: &Request| self.batching.ready_at(model, queue.len(), head.arrival);
        self.ready.set(model, queue.front().map_or(Nanos::MAX, ready_at));
    }

    /// Gives every idle GPU a batch, as far as there are any.
    fn pull(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while !self.idle.is_empty() {
            let Some((_, model)) = self.ready.min().filter(|&(ready, _)| ready <= now) else { return };
            let (queue, soonest) = (&mut self.queues[model], now + self.batching.hopeless_within(model));
            let hopeless = queue.iter().take_while(|request| request.deadline < soonest).count();
            if hopeless > 0 {
                for request in queue.drain(..hopeless) {
                    out.end(&request, Ending::DroppedInQueue, now);
                }
                // What is left may not have a batch yet.
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
        self.running[gpu] = Running { size, first_deadline };
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
        let Running { size, first_deadline } = self.running[gpu];
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
