//! The PolicyThread: runs a whole [`Scheduler`] for each sub-cluster, as the simulator does, in
//! place of ModelThreads and RankThreads. It serves the policies of other papers, which are no
//! deferral: requests and completions come over rings, and batches and drops go out.
//!
//! ```text
//! frontends ──Request──▶ HeldRequests ──▶ Scheduler of the sub-cluster ◀──Completion── backends
//!     ▲                       │ run: leave, by number
//!     └──── drops ────────────┴──▶ batches of each GPU ── once a cycle ──▶ backends
//! ```
//!
//! A policy sees requests as the simulator has them: each row by itself, with a number of its own,
//! of the policy's models and their applications. What it gives out is translated back. Bounds: it
//! holds what frontends have in flight; a GPU has at most
//! [`MAX_OUTSTANDING_BATCHES`](limits::MAX_OUTSTANDING_BATCHES) batches, and others wait here. It
//! may allocate. Cancellations are not taken: a policy has no event for them, and the frontend
//! answers its client meanwhile.

use super::agent::Agent;
use super::model_thread::{Intake, Outlets};
use super::rank_thread::Completions;
use crate::runtime::counters::run_times::RunTimeBoard;
use crate::runtime::counters::{Counting, ModelTally, RankTally, raise};
use std::collections::VecDeque;
use std::sync::Arc;
use symphony_scheduler::limits;
use symphony_scheduler::policy::{Decisions, Scheduler};
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::message::{
    BatchHeader, Class, Completion, Ending, GpuId, ModelId, NO_DEADLINE, QueueId, Request,
};

/// The most completions that are taken from one ring in a duty cycle.
const COMPLETIONS_PER_CYCLE: usize = 256;

/// The time between two times that what was learnt is shown.
const SHOWN_EVERY: Nanos = Nanos::from_secs(1);

/// A queue of the engine as a policy sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PolicyQueue {
    /// The index of its sub-cluster.
    pub(crate) cluster: usize,
    /// The model, as the policy of the sub-cluster counts them.
    pub(crate) model: ModelId,
    /// The application.
    pub(crate) application: u8,
    /// The SLO: requests without a deadline are given it.
    pub(crate) slo: Nanos,
}

/// A model as backends have it, where a policy sees one with these applications.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct PolicyModel {
    /// The model slot of each application, and how long its batches take there.
    pub(crate) slots: Vec<(ModelId, Profile)>,
}

/// A sub-cluster and the policy that schedules it.
pub(crate) struct PolicyCluster {
    scheduler: Box<dyn Scheduler>,
    pub(crate) models: Vec<PolicyModel>,
    first_gpu: u32,
    gpus: Vec<PolicyGpu>,
}

/// The batches that a policy has given to a GPU and that have not completed, in their order.
#[derive(Default)]
struct PolicyGpu {
    /// All of them, as the policy numbered them.
    given: VecDeque<BatchHeader>,
    /// The last ones, which have not been sent, as backends are to have them.
    unsent: VecDeque<(BatchHeader, Vec<Request>)>,
}

impl PolicyCluster {
    /// Makes the sub-cluster of `gpus` GPUs, from the engine's number `first_gpu` on.
    pub(crate) fn new(
        scheduler: Box<dyn Scheduler>,
        models: Vec<PolicyModel>,
        first_gpu: u32,
        gpus: usize,
    ) -> PolicyCluster {
        let gpus = (0..gpus).map(|_| PolicyGpu::default()).collect();
        PolicyCluster { scheduler, models, first_gpu, gpus }
    }
}

/// The agent of a PolicyThread. See the module's description.
///
/// One duty cycle takes completions, timers that are due, and requests, in this order, and then
/// sends batches.
pub(crate) struct PolicyThread<I, C, O> {
    pub(crate) clusters: Vec<PolicyCluster>,
    /// What each queue of the engine is for its policy; `None` of a vacant slot.
    pub(crate) queues: Vec<Option<PolicyQueue>>,
    /// The index of the sub-cluster of each queue.
    pub(crate) cluster_of: Arc<[u32]>,
    /// The source of requests of each frontend.
    pub(crate) requests: Vec<I>,
    /// The source of completions of each backend thread.
    pub(crate) completions: Vec<C>,
    pub(crate) outbox: PolicyOutbox<O>,
    pub(crate) counting: PolicyCounting,
    /// Where it shows what its policies have learnt, and the time at which it does so next.
    pub(crate) learned: (Arc<RunTimeBoard>, Nanos),
}

/// The counters of a PolicyThread: those of a ModelThread and of a RankThread.
pub(crate) struct PolicyCounting {
    pub(crate) models: Counting<ModelTally>,
    pub(crate) rank: Counting<RankTally>,
}

/// The requests that wait, and the destination of decisions.
pub(crate) struct PolicyOutbox<O> {
    outlets: O,
    held: HeldRequests,
    /// The GPUs with batches that have not been sent, each once: the indices of the sub-cluster,
    /// and of the GPU there.
    waiting: Vec<(usize, usize)>,
    next_batch: u64,
}

impl<O: Outlets> PolicyOutbox<O> {
    /// Makes an outbox that holds nothing.
    pub(crate) fn new(outlets: O) -> PolicyOutbox<O> {
        PolicyOutbox { outlets, held: HeldRequests::default(), waiting: Vec::new(), next_batch: 0 }
    }
}

/// The requests that a policy has, as their frontends sent them, by the numbers that the policy
/// knows them by.
#[derive(Default)]
struct HeldRequests {
    requests: Vec<Option<Request>>,
    free: Vec<u32>,
}

impl HeldRequests {
    /// Keeps a request; returns its number.
    fn keep(&mut self, request: Request) -> u64 {
        if let Some(at) = self.free.pop() {
            self.requests[at as usize] = Some(request);
            return u64::from(at);
        }
        self.requests.push(Some(request));
        self.requests.len() as u64 - 1
    }

    /// Returns the request of this number, which is free again.
    fn take(&mut self, number: u64) -> Option<Request> {
        let request = self.requests.get_mut(number as usize)?.take()?;
        self.free.push(number as u32);
        Some(request)
    }

    /// Removes all.
    fn drain(&mut self) -> impl Iterator<Item = Request> {
        self.free.clear();
        self.requests.drain(..).flatten()
    }
}

/// The sink of a sub-cluster's decisions.
struct ClusterSink<'a, O> {
    cluster: usize,
    models: &'a [PolicyModel],
    first_gpu: u32,
    gpus: &'a mut [PolicyGpu],
    outbox: &'a mut PolicyOutbox<O>,
    tally: &'a mut ModelTally,
}

impl<O: Outlets> Decisions for ClusterSink<'_, O> {
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let model = &self.models[batch.model.0 as usize];
        let both = || requests.0.iter().chain(requests.1);
        // Of applications that run together, the one that takes the longest: all have one network.
        let slot = both().filter_map(|request| model.slots.get(usize::from(request.application)));
        let Some((slot, profile)) = slot.max_by_key(|(_, profile)| profile.latency(1)) else { return };
        let taken: Vec<Request> = both().filter_map(|request| self.outbox.held.take(request.id)).collect();
        debug_assert_eq!(taken.len(), batch.size as usize, "a policy runs a request that it has, once");
        let size = taken.len() as u32;
        self.tally.batches += 1;
        self.tally.batched_requests += u64::from(size);
        let gpu = GpuId(self.first_gpu + batch.gpu.0);
        // What backends expect and emulate is the profile, and not what a policy guesses of a
        // batch.
        let duration = profile.latency(batch.size as usize);
        let sent = BatchHeader { batch: self.outbox.next_batch, model: *slot, gpu, size, duration, ..batch };
        self.outbox.next_batch += 1;
        let at = batch.gpu.0 as usize;
        let PolicyGpu { given, unsent } = &mut self.gpus[at];
        if unsent.is_empty() {
            self.outbox.waiting.push((self.cluster, at));
        }
        given.push_back(batch);
        unsent.push_back((sent, taken));
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        self.run(batch, requests);
    }

    fn preempt(&mut self, _: GpuId, _: &mut Vec<Request>) -> bool {
        false
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        let Some(request) = self.outbox.held.take(request.id) else { return };
        match ending {
            Ending::DroppedInQueue => self.tally.dropped_in_queue += 1,
            Ending::Overloaded => self.tally.overloaded += 1,
            _ => self.tally.stopped += 1,
        }
        self.outbox.outlets.end(&request, ending, now);
    }
}

impl<I: Intake, C: Completions, O: Outlets> PolicyThread<I, C, O> {
    /// Calls `act` with the scheduler of a sub-cluster and the sink of its decisions.
    fn with(&mut self, cluster: usize, act: impl FnOnce(&mut dyn Scheduler, &mut dyn Decisions)) {
        let PolicyCluster { scheduler, models, first_gpu, gpus } = &mut self.clusters[cluster];
        let (outbox, tally) = (&mut self.outbox, &mut self.counting.models.tally);
        let mut sink = ClusterSink { cluster, models, first_gpu: *first_gpu, gpus, outbox, tally };
        act(&mut **scheduler, &mut sink);
    }

    fn take_completions(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.completions.len() {
            raise(&mut self.counting.rank.tally.completion_ring_high, self.completions[at].waiting());
            for _ in 0..COMPLETIONS_PER_CYCLE {
                let Some(completion) = self.completions[at].next() else {
                    self.completions[at].look(now, &mut self.counting.rank.tally);
                    break;
                };
                self.complete(now, completion);
                taken += 1;
            }
        }
        self.counting.rank.tally.completions += taken as u64;
        taken
    }

    /// Tells a policy that the first batch of a GPU is over: they complete in their order, and one
    /// that was lost stands for the first.
    fn complete(&mut self, now: Nanos, completion: Completion) {
        let cluster = self.cluster_of[completion.model.0 as usize] as usize;
        let gpu = GpuId(completion.gpu.0 - self.clusters[cluster].first_gpu);
        let Some(batch) = self.clusters[cluster].gpus[gpu.0 as usize].given.pop_front() else { return };
        let of_policy = Completion { batch: batch.batch, model: batch.model, gpu, ..completion };
        self.with(cluster, |scheduler, sink| scheduler.on_completion(now, of_policy, sink));
    }

    /// Sends the batches that their GPUs, and the rings to their backends, have room for.
    fn send_waiting(&mut self) -> usize {
        let PolicyThread { clusters, outbox: PolicyOutbox { outlets, waiting, .. }, .. } = self;
        let mut sent = 0;
        waiting.retain(|&(cluster, gpu)| {
            let PolicyGpu { given, unsent } = &mut clusters[cluster].gpus[gpu];
            while given.len() - unsent.len() < limits::MAX_OUTSTANDING_BATCHES
                && let Some((batch, requests)) = unsent.pop_front_if(|(batch, _)| outlets.has_room(batch.gpu))
            {
                outlets.run(batch.exec_at, batch, (&requests, &[]));
                sent += 1;
            }
            !unsent.is_empty()
        });
        sent
    }

    fn fire_timers(&mut self, now: Nanos) -> usize {
        let due = |at: &usize| self.clusters[*at].scheduler.next_timer() <= now;
        let fired: Vec<usize> = (0..self.clusters.len()).filter(due).collect();
        fired.iter().for_each(|&at| self.with(at, |scheduler, sink| scheduler.on_timer(now, sink)));
        self.counting.models.tally.timers += fired.len() as u64;
        fired.len()
    }

    /// Shows what the policies have learnt, once in [`SHOWN_EVERY`].
    fn show_learned(&mut self, now: Nanos) {
        let PolicyThread { clusters, learned: (shown, next), .. } = self;
        if now < *next {
            return;
        }
        *next = now + SHOWN_EVERY;
        for PolicyCluster { scheduler, models, .. } in clusters {
            for (at, model) in models.iter().enumerate() {
                let learned = scheduler.learned_run_times(ModelId(at as u32));
                let slots = model.slots.iter().map(|(slot, _)| *slot);
                shown.set(slots.zip(learned));
            }
        }
    }

    fn take_requests(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.requests.len() {
            raise(&mut self.counting.models.tally.request_ring_high, self.requests[at].waiting());
            for _ in 0..limits::REQUESTS_PER_CYCLE {
                let Some(request) = self.requests[at].next(now) else { break };
                taken += 1;
                if request.takes_back == 0 {
                    self.counting.models.tally.requests += 1;
                    self.take_request(now, request);
                }
            }
        }
        taken
    }

    fn take_request(&mut self, now: Nanos, request: Request) {
        let Some(queue) = self.queues.get(request.queue.0 as usize).copied().flatten() else {
            self.counting.models.tally.stopped += 1;
            self.outbox.outlets.end(&request, Ending::Stopped, now);
            return;
        };
        let PolicyQueue { cluster, model, application, slo } = queue;
        let never_due = request.deadline >= NO_DEADLINE;
        let of_policy = Request {
            id: self.outbox.held.keep(request),
            deadline: if never_due { request.arrival + slo } else { request.deadline },
            queue: QueueId(model.0),
            row: 0,
            rows_after: 0,
            class: Class::HIGHEST,
            application,
            ..request
        };
        self.with(cluster, |scheduler, sink| scheduler.on_request(now, of_policy, sink));
    }
}

impl<I: Intake, C: Completions, O: Outlets> Agent for PolicyThread<I, C, O> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.counting.models.cycle_begins(now);
        self.counting.rank.cycle_begins(now);
        let mut work = self.take_completions(now) + self.fire_timers(now) + self.take_requests(now);
        work += self.send_waiting();
        self.show_learned(now);
        if work > 0 {
            let gpus = self.clusters.iter().flat_map(|cluster| &cluster.gpus);
            self.counting.rank.tally.gpus_busy = gpus.filter(|gpu| !gpu.given.is_empty()).count() as u64;
        }
        self.counting.models.cycle_ends(now, work);
        self.counting.rank.cycle_ends(now, work);
        work
    }

    fn next_due(&self) -> Nanos {
        if !self.outbox.waiting.is_empty() {
            return Nanos::ZERO;
        }
        self.clusters.iter().map(|cluster| cluster.scheduler.next_timer()).min().unwrap_or(Nanos::MAX)
    }

    fn stop(&mut self, now: Nanos) {
        self.learned.1 = now;
        self.show_learned(now);
        let PolicyOutbox { outlets, held, .. } = &mut self.outbox;
        let gpus = self.clusters.iter_mut().flat_map(|cluster| &mut cluster.gpus);
        let of_batches = gpus.flat_map(|gpu| gpu.unsent.drain(..)).flat_map(|(_, requests)| requests);
        let mut waiting: Vec<Request> = held.drain().chain(of_batches).collect();
        // A request that is sent after this goes back to its frontend, as its ring has no reader.
        for mut requests in self.requests.drain(..) {
            waiting.extend(std::iter::from_fn(|| requests.next(now)).filter(|of| of.takes_back == 0));
        }
        self.counting.models.tally.stopped += waiting.len() as u64;
        waiting.iter().for_each(|request| outlets.end(request, Ending::Stopped, now));
        self.counting.models.publish();
        self.counting.rank.publish();
    }
}

#[cfg(test)]
mod tests;
