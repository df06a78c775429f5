//! `clockwork`: a central scheduler that plans a few milliseconds ahead for GPUs whose timing it
//! can predict, and picks what to run by deadline alone (Clockwork, section 5.3). Every model has a
//! *batch queue* per batch size, which holds the requests that a batch of that size could still
//! serve in time; each of them with enough requests offers a *strategy*, and the strategy that must
//! start first is taken. Runs in the simulator.
//!
//! All models are on all GPUs from the start: weights are never loaded, as in Symphony's comparison
//! (its section 5).

use super::interface::{Decisions, Policy, Scheduler};
use super::options::{ClockworkOptions, PolicyOptions};
use crate::limits;
use crate::profile::Profile;
use crate::rank::min_tree::MinTree;
use crate::workload::{Network, Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cmp::Reverse;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// The policy.
#[derive(Debug)]
pub(super) struct Clockwork;

impl Policy for Clockwork {
    fn name(&self) -> &'static str {
        "clockwork"
    }

    fn about(&self) -> &'static str {
        "batch queues by size, earliest latest start first, 5 ms ahead (Clockwork)"
    }

    fn options(&self) -> &'static [&'static str] {
        &["clockwork-batches", "clockwork-ahead-ms"]
    }

    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler> {
        Box::new(Controller::new(workload, options.clockwork))
    }
}

/// Clockwork's controller.
struct Controller {
    models: Vec<ClockworkModel>,
    /// A lower bound for each model of its strategies' latest; none where it has no requests.
    strategies: MinTree,
    gpus: Vec<ClockworkGpu>,
    /// The time at which each GPU will have done its outstanding work.
    free_at: MinTree,
    /// [`ClockworkOptions::ahead`].
    ahead: Nanos,
    network: Network,
    batches: u64,
}

impl Controller {
    fn new(workload: &Workload, options: ClockworkOptions) -> Controller {
        let model = |model: &WorkloadModel| ClockworkModel {
            sizes: options.batches.up_to(model.profile.max_batch()),
            profile: model.profile.clone(),
            queue: VecDeque::new(),
        };
        let mut free_at = MinTree::new(workload.gpus);
        (0..workload.gpus).for_each(|gpu| free_at.set(gpu, Nanos::ZERO));
        Controller {
            strategies: MinTree::new(workload.models.len()),
            models: workload.models.iter().map(model).collect(),
            gpus: vec![ClockworkGpu::default(); workload.gpus],
            free_at,
            ahead: options.ahead,
            network: workload.network,
            batches: 0,
        }
    }

    /// Returns the start times on the GPU that is free first.
    fn start_times(&self, now: Nanos) -> StartTimes {
        StartTimes { now, free_at: self.free_at.min_key(), network: self.network }
    }

    /// Gives a batch to every GPU whose outstanding work ends within `ahead`.
    fn schedule(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while let Some((free_at, gpu)) = self.free_at.min().filter(|&(free_at, _)| free_at < now + self.ahead)
        {
            let Some((bound, index)) = self.strategies.min() else { return };
            let start_times = StartTimes { now, free_at, network: self.network };
            let model = &mut self.models[index];
            model.drop_hopeless(start_times, out);
            let strategy = model.strategy(start_times);
            match strategy.filter(|strategy| strategy.latest <= bound) {
                Some(strategy) => self.run(start_times, gpu, index, strategy, out),
                // The bound was too low: another model's strategy may come first.
                None => self.strategies.set(index, strategy.map_or(Nanos::MAX, |strategy| strategy.latest)),
            }
        }
    }

    fn run(
        &mut self,
        start_times: StartTimes,
        gpu: usize,
        index: usize,
        strategy: Strategy,
        out: &mut dyn Decisions,
    ) {
        let model = &mut self.models[index];
        let size = model.enlarged(start_times, strategy);
        let duration = model.profile.latency(size);
        let batch = BatchHeader {
            batch: self.batches,
            exec_at: start_times.of(size),
            latest: model.queue[strategy.head].deadline - duration,
            duration,
            model: ModelId(index as u32),
            gpu: GpuId(gpu as u32),
            size: size as u32,
            ..BatchHeader::default()
        };
        self.batches += 1;
        let taken: Vec<Request> = model.queue.drain(strategy.head..strategy.head + size).collect();
        out.run(batch, (&taken, &[]));
        let offered = model.strategy(start_times).map_or(Nanos::MAX, |strategy| strategy.latest);
        self.strategies.set(index, offered);
        self.gpus[gpu].outstanding.push_back(batch);
        self.free_at.set(gpu, batch.exec_at + batch.duration);
    }
}

impl Scheduler for Controller {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        let index = request.queue.0 as usize;
        let (start_times, model) = (self.start_times(now), &mut self.models[index]);
        if start_times.of(1) + model.profile.latency(1) > request.deadline {
            out.end(&request, Ending::DroppedInQueue, now);
            return;
        }
        if model.queue.len() == limits::MAX_QUEUE_LENGTH {
            out.end(&request, Ending::Overloaded, now);
            return;
        }
        let at = model.queue.partition_point(|queued| queued.deadline <= request.deadline);
        model.queue.insert(at, request);
        // Its strategies are computed when a GPU needs work.
        self.strategies.set(index, Nanos::ZERO);
        self.schedule(now, out);
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        let gpu = completion.gpu.0 as usize;
        self.free_at.set(gpu, self.gpus[gpu].finished(completion));
        self.schedule(now, out);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        self.schedule(now, out);
    }

    fn next_timer(&self) -> Nanos {
        match self.strategies.min_key() {
            Nanos::MAX => Nanos::MAX,
            // The first instant at which the GPU's outstanding work ends within `ahead`.
            _ => self.free_at.min_key() - self.ahead + Nanos(1),
        }
    }
}

/// A GPU and its outstanding batches.
#[derive(Clone, Default)]
struct ClockworkGpu {
    outstanding: VecDeque<BatchHeader>,
}

impl ClockworkGpu {
    /// Removes a completed batch; returns the time at which the others will be done.
    fn finished(&mut self, completion: Completion) -> Nanos {
        self.outstanding.retain(|batch| batch.batch != completion.batch);
        self.outstanding.iter().fold(completion.finished, |free_at, batch| {
            let start = batch.exec_at.max(free_at);
            // The GPU itself cancels a batch that can't start by its latest.
            if start <= batch.latest { start + batch.duration } else { free_at }
        })
    }
}

/// The start times of batches on a GPU, if decided on now.
#[derive(Clone, Copy)]
struct StartTimes {
    now: Nanos,
    free_at: Nanos,
    network: Network,
}

impl StartTimes {
    /// Returns the earliest start of a batch of `size`.
    fn of(&self, size: usize) -> Nanos {
        (self.now + self.network.delay(size)).max(self.free_at)
    }
}

/// A batch that could run: `size` requests of a model's queue from `head` on, if it starts by
/// `latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strategy {
    latest: Nanos,
    size: usize,
    head: usize,
}

/// A model's requests in deadline order. The batch queue of a size is the part of it that a batch
/// of that size, started now, would serve in time: a suffix, so only its first request has to be
/// found.
struct ClockworkModel {
    profile: Profile,
    sizes: Box<[usize]>,
    queue: VecDeque<Request>,
}

impl ClockworkModel {
    /// Ends the requests that have left every batch queue.
    fn drop_hopeless(&mut self, start_times: StartTimes, out: &mut dyn Decisions) {
        for request in self.queue.drain(..self.batch_queue(start_times, 1)) {
            out.end(&request, Ending::DroppedInQueue, start_times.now);
        }
    }

    /// Returns the index of the first request in the batch queue of `size`.
    fn batch_queue(&self, start_times: StartTimes, size: usize) -> usize {
        let finish = start_times.of(size) + self.profile.latency(size);
        self.queue.partition_point(|request| request.deadline < finish)
    }

    /// Returns the valid strategy that must start first; of two, that of the larger batch.
    fn strategy(&self, start_times: StartTimes) -> Option<Strategy> {
        let valid = |&size: &usize| {
            let head = self.batch_queue(start_times, size);
            let enough = self.queue.len() - head >= size;
            enough.then(|| Strategy {
                latest: self.queue[head].deadline - self.profile.latency(size),
                size,
                head,
            })
        };
        // A larger batch needs more requests and fewer can wait for it: past the first that is not
        // valid, none is.
        self.sizes.iter().map_while(valid).min_by_key(|strategy| (strategy.latest, Reverse(strategy.size)))
    }

    /// Returns the largest size that the strategy's first request and those after it allow.
    fn enlarged(&self, start_times: StartTimes, strategy: Strategy) -> usize {
        let waiting = self.queue.len() - strategy.head;
        let deadline = self.queue[strategy.head].deadline;
        let fits =
            |size: usize| size <= waiting && start_times.of(size) + self.profile.latency(size) <= deadline;
        let larger = self.sizes.iter().copied().skip_while(|&size| size <= strategy.size);
        larger.take_while(|&size| fits(size)).last().unwrap_or(strategy.size)
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::BatchSizes;
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW: StartTimes = StartTimes {
        now: Nanos(100 * MS),
        free_at: Nanos::ZERO,
        network: Network { control: Nanos::ZERO, data_per_request: Nanos::ZERO, result: Nanos::ZERO },
    };

    /// A model of l(b) = b + 4 ms with requests due at these times.
    fn model(sizes: BatchSizes, deadlines_ms: &[u64]) -> ClockworkModel {
        let request = |&ms: &u64| Request { deadline: Nanos(ms * MS), ..Request::default() };
        ClockworkModel {
            profile: Profile::linear(Nanos(MS), Nanos(4 * MS), 16).unwrap(),
            sizes: sizes.up_to(16),
            queue: deadlines_ms.iter().map(request).collect(),
        }
    }

    #[test]
    fn the_strategy_that_must_start_first_wins_whatever_its_size() {
        // Alone, the first must start by 101; the first two by 100; the last two by 114.
        let model = model(BatchSizes::PowersOfTwo, &[106, 106, 120, 120]);
        assert_eq!(model.strategy(NOW), Some(Strategy { latest: Nanos(100 * MS), size: 2, head: 0 }));
        // A millisecond later, the pair is past its latest, and a batch of four would be too late
        // for the first two.
        let later = StartTimes { now: Nanos(101 * MS), ..NOW };
        assert_eq!(model.strategy(later), Some(Strategy { latest: Nanos(101 * MS), size: 1, head: 0 }));
    }

    #[test]
    fn a_batch_grows_as_far_as_its_first_request_allows() {
        let deadlines = [120; 7];
        let strategy = Strategy { latest: Nanos(115 * MS), size: 1, head: 0 };
        assert_eq!(model(BatchSizes::Any, &deadlines).enlarged(NOW, strategy), 7);
        assert_eq!(model(BatchSizes::PowersOfTwo, &deadlines).enlarged(NOW, strategy), 4);
        let tight = model(BatchSizes::Any, &[107, 120, 120, 120]);
        assert_eq!(tight.enlarged(NOW, strategy), 3);
    }

    #[test]
    fn a_gpu_is_free_when_what_it_was_given_is_done_or_cancelled() {
        let batch = |batch, exec_at, latest| BatchHeader {
            batch,
            exec_at: Nanos(exec_at),
            latest: Nanos(latest),
            duration: Nanos(10),
            ..BatchHeader::default()
        };
        let mut gpu =
            ClockworkGpu { outstanding: [batch(1, 0, 5), batch(2, 10, 15), batch(3, 20, 100)].into() };
        let done = Completion { batch: 1, finished: Nanos(16), ..Completion::default() };
        assert_eq!(gpu.finished(done), Nanos(30), "the second can't start any more, the third starts at 20");
    }
}
