//! `shepherd`: the scheduler of SHEPHERD (Zhang and others, NSDI 2023), as far as its public
//! descriptions say how it works. From the paper's abstract: streams are periodically put into
//! groups of models and GPUs ([`groups`]), and an online algorithm serves each group, with
//! preemptions.
//! From the public source of the Symphony paper's authors, who ran that algorithm (they call it
//! flex) as a baseline: a free GPU takes the largest batch that can still meet its first deadline,
//! of any model; a new request may preempt a running batch if the batch that it completes is at
//! least 3.03 times as large; for the model that runs, that batch includes the running requests;
//! requests of a preempted batch count as new. All code is this project's own. Only the simulator
//! drives it.

mod groups;

use super::epoch::{Epoch, expected_rates};
use super::interface::{Decisions, Policy, Scheduler};
use super::options::PolicyOptions;
use super::queue::{DeadlineQueue, last_that};
use crate::profile::Profile;
use crate::rank::min_tree::MinTree;
use crate::workload::{Network, Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use groups::{ServingGroup, group};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// The policy.
#[derive(Debug)]
pub(super) struct Shepherd;

impl Policy for Shepherd {
    fn name(&self) -> &'static str {
        "shepherd"
    }

    fn about(&self) -> &'static str {
        "the largest feasible batch first, preempting much smaller ones (like SHEPHERD, NSDI 2023)"
    }

    fn options(&self) -> &'static [&'static str] {
        &["shepherd-preempt"]
    }

    fn preempts(&self) -> bool {
        true
    }

    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler> {
        Box::new(FlexScheduler::new(workload, options.preempt))
    }
}

/// Flex, for all groups. Queues and running batches stay as they are when groups change.
struct FlexScheduler {
    models: Vec<ShepherdModel>,
    gpus: Vec<ShepherdGpu>,
    groups: Vec<ServingGroup>,
    /// The idle GPUs of each group; the lowest-numbered is used first.
    idle: Vec<BinaryHeap<Reverse<usize>>>,
    network: Network,
    /// The factor by which a batch must be larger than another to preempt it.
    factor: f64,
    /// The time from which the first request of each model's queue can no longer run.
    expiries: MinTree,
    epoch: Epoch,
    batches: u64,
    /// Models with requests that are new or were preempted, and have not been offered to the GPUs
    /// yet.
    unoffered: Vec<usize>,
    /// Requests of a batch that was just preempted.
    preempted: Vec<Request>,
}

/// A model, its queue and its group.
struct ShepherdModel {
    profile: Profile,
    slo: Nanos,
    queue: DeadlineQueue,
    group: usize,
}

/// The batch that a GPU runs.
#[derive(Clone, Copy)]
struct AssignedBatch {
    model: usize,
    size: usize,
    deadline: Nanos,
}

/// A GPU, its group and its batch.
#[derive(Clone, Copy, Default)]
struct ShepherdGpu {
    group: usize,
    running: Option<AssignedBatch>,
}

impl ShepherdModel {
    /// Returns the number of GPUs that the model keeps busy at this rate, in the largest batches
    /// that may wait for one other.
    fn load(&self, rate: f64) -> f64 {
        let fits = |size: usize| self.profile.latency(size).0.saturating_mul(2) <= self.slo.0;
        let size = last_that(self.profile.max_batch(), fits).max(1);
        rate * self.profile.latency(size).as_secs_f64() / size as f64
    }

    /// Returns the time from the decision to run a batch to its end.
    fn span(&self, network: Network, size: usize) -> Nanos {
        network.delay(size) + self.profile.latency(size)
    }

    /// Returns the largest batch of at most `most` requests that would end by `deadline`.
    fn feasible(&self, now: Nanos, network: Network, most: usize, deadline: Nanos) -> usize {
        let most = most.min(self.profile.max_batch());
        last_that(most, |size| now + self.span(network, size) <= deadline)
    }

    /// Returns the largest feasible batch of the queued requests.
    fn candidate(&self, now: Nanos, network: Network) -> usize {
        self.queue.deadline(0).map_or(0, |deadline| self.feasible(now, network, self.queue.len(), deadline))
    }
}

impl FlexScheduler {
    fn new(workload: &Workload, factor: f64) -> FlexScheduler {
        let model = |model: &WorkloadModel| ShepherdModel {
            profile: model.profile.clone(),
            slo: model.slo,
            queue: DeadlineQueue::default(),
            group: 0,
        };
        let mut scheduler = FlexScheduler {
            models: workload.models.iter().map(model).collect(),
            gpus: vec![ShepherdGpu::default(); workload.gpus],
            groups: Vec::new(),
            idle: Vec::new(),
            network: workload.network,
            factor,
            expiries: MinTree::new(workload.models.len()),
            epoch: Epoch::new(workload.models.len()),
            batches: 0,
            unoffered: Vec::new(),
            preempted: Vec::new(),
        };
        scheduler.plan(&expected_rates(workload));
        scheduler
    }

    /// Makes new groups, for these rates.
    fn plan(&mut self, rates: &[f64]) {
        let loads: Vec<f64> = self.models.iter().zip(rates).map(|(model, &rate)| model.load(rate)).collect();
        self.groups = group(&loads, self.gpus.len());
        self.idle.clear();
        for (at, group) in self.groups.iter().enumerate() {
            group.models.iter().for_each(|&model| self.models[model].group = at);
            self.gpus[group.gpus.clone()].iter_mut().for_each(|gpu| gpu.group = at);
            let idle = group.gpus.clone().filter(|&gpu| self.gpus[gpu].running.is_none());
            self.idle.push(idle.map(Reverse).collect());
        }
    }

    /// Offers the models of `unoffered` to their GPUs.
    fn offer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while let Some(model) = self.unoffered.pop() {
            self.expire(now, model, out);
            self.use_idle(now, model, out);
            self.preempt(now, model, out);
        }
    }

    /// Drops the requests of a model that can't even run alone any more.
    fn expire(&mut self, now: Nanos, model: usize, out: &mut dyn Decisions) {
        let ShepherdModel { queue, profile, .. } = &mut self.models[model];
        let alone = self.network.delay(1) + profile.latency(1);
        while queue.deadline(0).is_some_and(|deadline| now + alone > deadline) {
            if let Some(request) = queue.pop() {
                out.end(&request, Ending::DroppedInQueue, now);
            }
        }
        self.set_expiry(model);
    }

    /// Sets the timer for the model's first request.
    fn set_expiry(&mut self, model: usize) {
        let ShepherdModel { queue, profile, .. } = &self.models[model];
        let alone = self.network.delay(1) + profile.latency(1);
        let expiry = queue.deadline(0).map_or(Nanos::MAX, |deadline| deadline - alone + Nanos(1));
        self.expiries.set(model, expiry);
    }

    /// Runs batches of a model on idle GPUs.
    fn use_idle(&mut self, now: Nanos, model: usize, out: &mut dyn Decisions) {
        let group = self.models[model].group;
        while !self.idle[group].is_empty() {
            let size = self.models[model].candidate(now, self.network);
            if size == 0 {
                return;
            }
            if let Some(Reverse(gpu)) = self.idle[group].pop() {
                self.run(now, gpu, model, size, out);
            }
        }
    }

    /// Preempts, GPU by GPU, each batch for which one of this model's requests would be at least
    /// `factor` times as large.
    fn preempt(&mut self, now: Nanos, model: usize, out: &mut dyn Decisions) {
        for gpu in self.groups[self.models[model].group].gpus.clone() {
            let Some(running) = self.gpus[gpu].running else { continue };
            // The same model's batch would grow by what is queued, another's be replaced by it.
            let queued = self.models[model].queue.len() as f64;
            if queued < (self.factor - 1.0) * running.size as f64 {
                continue;
            }
            let size = self.instead_of(now, model, running);
            let worth = size > running.size && size as f64 >= self.factor * running.size as f64;
            if worth && out.preempt(GpuId(gpu as u32), &mut self.preempted) {
                self.replace(now, gpu, running.model, model, out);
            }
        }
    }

    /// Returns the size of the batch of `model` that could run in place of `running`.
    fn instead_of(&self, now: Nanos, model: usize, running: AssignedBatch) -> usize {
        let queue = &self.models[model].queue;
        if running.model != model {
            return self.models[model].candidate(now, self.network);
        }
        let deadline = queue.deadline(0).map_or(running.deadline, |first| first.min(running.deadline));
        self.models[model].feasible(now, self.network, running.size + queue.len(), deadline)
    }

    /// Puts the preempted requests back into their queue and runs a batch of `model` on their GPU.
    fn replace(&mut self, now: Nanos, gpu: usize, old: usize, model: usize, out: &mut dyn Decisions) {
        self.models[old].queue.take_back(&self.preempted);
        self.preempted.clear();
        let size = self.models[model].candidate(now, self.network);
        self.run(now, gpu, model, size, out);
        self.expire(now, old, out);
        if old != model {
            self.unoffered.push(old);
        }
    }

    /// Sends the first `size` requests of `model` to `gpu`, which is free.
    fn run(&mut self, now: Nanos, gpu: usize, model: usize, size: usize, out: &mut dyn Decisions) {
        let ShepherdModel { queue, profile, .. } = &mut self.models[model];
        let deadline = queue.deadline(0).unwrap_or(Nanos::MAX);
        let duration = profile.latency(size);
        let header = BatchHeader {
            batch: self.batches,
            exec_at: now + self.network.delay(size),
            latest: deadline - duration,
            duration,
            model: ModelId(model as u32),
            gpu: GpuId(gpu as u32),
            size: size as u32,
            ..BatchHeader::default()
        };
        out.run_preemptible(header, queue.front(size));
        queue.remove(size);
        self.gpus[gpu].running = Some(AssignedBatch { model, size, deadline });
        self.batches += 1;
        self.set_expiry(model);
    }

    /// Runs the largest feasible batch of the group on an idle GPU.
    fn next_batch(&mut self, now: Nanos, gpu: usize, out: &mut dyn Decisions) {
        let group = self.gpus[gpu].group;
        let (mut best, mut size) = (0, 0);
        for &model in &self.groups[group].models {
            // No batch is larger than its queue.
            if self.models[model].queue.len() > size {
                let candidate = self.models[model].candidate(now, self.network);
                if candidate > size {
                    (best, size) = (model, candidate);
                }
            }
        }
        match size {
            0 => self.idle[group].push(Reverse(gpu)),
            size => self.run(now, gpu, best, size, out),
        }
    }
}

impl Scheduler for FlexScheduler {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        if let Some(rates) = self.epoch.count(now, request.queue.only_model()) {
            self.plan(&rates);
            self.unoffered.extend(0..self.models.len());
        }
        let model = request.queue.0 as usize;
        match self.models[model].queue.push(request) {
            Ok(()) => self.unoffered.push(model),
            Err(refused) => out.end(&refused, Ending::Overloaded, now),
        }
        self.offer(now, out);
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        let gpu = completion.gpu.0 as usize;
        self.gpus[gpu].running = None;
        self.on_timer(now, out);
        self.next_batch(now, gpu, out);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while let Some((_, model)) = self.expiries.min().filter(|&(at, _)| at <= now) {
            self.expire(now, model, out);
        }
    }

    fn next_timer(&self) -> Nanos {
        self.expiries.min_key()
    }
}

#[cfg(test)]
mod tests;
