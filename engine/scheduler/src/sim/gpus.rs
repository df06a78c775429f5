//! The GPUs of a simulation: they take exactly what the profile says, or what the requests' own run
//! times make of it, or as much more as a [`Fault`] makes them. A scheduler's decisions go in,
//! completions come out, and the report is built on the way.

use super::observer::Observer;
use super::queries::RunningQueries;
use super::report::ReportBuilder;
use super::traffic::Traffic;
use crate::policy::Decisions;
use crate::profile::Profile;
use crate::run_time::VaryingModel;
use crate::workload::Workload;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};

/// The way in which GPUs of a simulation stray from their profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fault {
    /// The largest part of l(b) that a batch takes longer, evenly distributed: 0.2 is up to 20 %.
    pub slowdown: f64,
}

/// A batch on its GPU, ordered by the time at which it finishes, then by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PendingCompletion {
    finished: Nanos,
    batch: u64,
    model: ModelId,
    gpu: GpuId,
    started: Nanos,
}

/// A batch that may yet be preempted.
struct PreemptibleBatch {
    header: BatchHeader,
    requests: Vec<Request>,
    /// The time at which its GPU would be free without it.
    free_at: Nanos,
    started: Nanos,
    finished: Nanos,
}

/// The GPUs, and the report on what happens on them.
pub(super) struct VirtualGpus<'a> {
    pub(super) now: Nanos,
    /// d_ctrl: the delay of a message to a GPU.
    control: Nanos,
    completions: BinaryHeap<Reverse<PendingCompletion>>,
    /// The time from which each GPU is really free.
    free_at: Vec<Nanos>,
    /// The batch of each GPU that may yet be preempted.
    preemptible: Vec<Option<PreemptibleBatch>>,
    /// Batches that were preempted and whose completions have not been taken out yet.
    stopped: Vec<u64>,
    /// Empty vectors of requests, for reuse.
    spare: Vec<Vec<Request>>,
    fault: Fault,
    /// How long each model's batches take, where requests have run times of their own.
    varying: Vec<Option<VaryingModel>>,
    seed: u64,
    random: Pcg64Mcg,
    profiles: Vec<Profile>,
    /// The queries, where there are any.
    pub(super) queries: Option<RunningQueries>,
    pub(super) report: ReportBuilder,
    pub(super) observer: &'a mut dyn Observer,
}

impl<'a> VirtualGpus<'a> {
    /// Makes the GPUs of a workload, idle at time zero.
    pub(super) fn new(workload: &Workload, fault: Fault, observer: &'a mut dyn Observer) -> VirtualGpus<'a> {
        VirtualGpus {
            now: Nanos::ZERO,
            control: workload.network.control,
            completions: BinaryHeap::new(),
            free_at: vec![Nanos::ZERO; workload.gpus],
            preemptible: core::iter::repeat_with(|| None).take(workload.gpus).collect(),
            stopped: Vec::new(),
            spare: Vec::new(),
            fault,
            varying: workload.models.iter().map(|model| model.varying.clone()).collect(),
            seed: workload.seed,
            random: Pcg64Mcg::seed_from_u64(workload.seed),
            profiles: workload.models.iter().map(|model| model.profile.clone()).collect(),
            queries: RunningQueries::new(workload),
            report: ReportBuilder::new(workload),
            observer,
        }
    }

    /// Returns the time of the next completion; [`Nanos::MAX`] if no batch runs.
    pub(super) fn next_completion(&self) -> Nanos {
        self.completions.peek().map_or(Nanos::MAX, |next| next.0.finished)
    }

    /// Takes the next completion out. There must be one.
    pub(super) fn take_completion(&mut self) -> Completion {
        let Reverse(PendingCompletion { finished, batch, model, gpu, started }) =
            self.completions.pop().expect("only called when there is one");
        self.skip_stopped();
        let done = self.preemptible[gpu.0 as usize].take_if(|running| running.header.batch == batch);
        if let Some(done) = done {
            self.report_run(&done.header, (&done.requests, &[]), Some(done.started), done.finished);
            self.recycle(done.requests);
        }
        if let Some(queries) = &mut self.queries {
            queries.completed(batch, finished, self.observer);
        }
        Completion { batch, started, finished, model, gpu }
    }

    /// Removes the next completions as long as they are of batches that were preempted.
    fn skip_stopped(&mut self) {
        while let Some(next) = self.completions.peek()
            && let Some(at) = self.stopped.iter().position(|&batch| batch == next.0.batch)
        {
            self.stopped.swap_remove(at);
            self.completions.pop();
        }
    }

    fn recycle(&mut self, mut requests: Vec<Request>) {
        requests.clear();
        self.spare.push(requests);
    }

    /// Puts a batch on its GPU. Returns the time at which it starts, if it can, and that at which
    /// it finishes.
    fn send(&mut self, batch: &BatchHeader, requests: (&[Request], &[Request])) -> (Option<Nanos>, Nanos) {
        let gpu = batch.gpu.0 as usize;
        let start = batch.exec_at.max(self.free_at[gpu]);
        let started = (start <= batch.latest).then_some(start);
        let finished = match started {
            Some(start) => start + self.run_time(batch, requests),
            None => start,
        };
        self.free_at[gpu] = finished;
        let BatchHeader { batch: number, model, gpu, .. } = *batch;
        self.completions.push(Reverse(PendingCompletion {
            finished,
            batch: number,
            model,
            gpu,
            started: start,
        }));
        self.observer.ran(self.now, batch, requests, started, finished);
        (started, finished)
    }

    /// Takes a query that arrives.
    pub(super) fn query_arrived(&mut self, graph: usize, now: Nanos) {
        if let Some(queries) = &mut self.queries {
            queries.arrive(graph, now, self.observer);
        }
    }

    /// Returns the next request of a query's stage that arrives now, if there is one.
    pub(super) fn next_due(&mut self, workload: &Workload, traffic: &mut Traffic) -> Option<Request> {
        let request = self.queries.as_mut()?.next_due(self.now, workload, traffic, self.observer)?;
        self.observer.arrived(&request);
        Some(request)
    }

    /// Counts a batch; requests of queries are counted with these.
    fn report_run(
        &mut self,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        let Some(queries) = &self.queries else { return self.report.ran(batch, requests, started, finished) };
        let all = requests.0.iter().chain(requests.1);
        let own: Vec<Request> = all.filter(|request| !queries.has(request)).copied().collect();
        self.report.ran(batch, (&own, &[]), started, finished);
    }

    /// Ends the requests of a batch whose queries have ended. Returns the batch without them;
    /// `None` if none is left, which its GPU completes at once.
    fn without_ended(
        &mut self,
        batch: BatchHeader,
        requests: (&[Request], &[Request]),
    ) -> Option<(BatchHeader, Vec<Request>)> {
        let mut left = Vec::with_capacity(batch.size as usize);
        for request in requests.0.iter().chain(requests.1) {
            let queries = self.queries.as_mut();
            if queries.is_some_and(|queries| queries.take_ended(request)) {
                self.observer.ended(request, Ending::Withdrawn, self.now);
            } else {
                left.push(*request);
            }
        }
        if left.is_empty() {
            let at = batch.exec_at.max(self.free_at[batch.gpu.0 as usize]);
            let BatchHeader { batch: number, model, gpu, .. } = batch;
            let nothing = PendingCompletion { finished: at, batch: number, model, gpu, started: at };
            self.completions.push(Reverse(nothing));
            return None;
        }
        if left.len() == batch.size as usize {
            return Some((batch, left));
        }
        let duration = self.profiles[batch.model.0 as usize].latency(left.len());
        Some((BatchHeader { size: left.len() as u32, duration, ..batch }, left))
    }

    /// Hands a batch that was sent to the queries. Where it can't start, its requests are dropped.
    fn sent_with_queries(&mut self, batch: u64, requests: &[Request], started: Option<Nanos>) {
        let Some(queries) = &mut self.queries else { return };
        match started {
            Some(started) => queries.sent(batch, requests, started),
            None => requests.iter().for_each(|request| {
                queries.dropped(request, self.now, self.observer);
            }),
        }
    }

    fn run_now(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let (started, finished) = self.send(&batch, requests);
        self.report_run(&batch, requests, started, finished);
        if self.queries.is_some() {
            self.sent_with_queries(batch.batch, requests.0, started);
        }
    }

    fn run_until_preempted(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let free_at = self.free_at[batch.gpu.0 as usize];
        let (started, finished) = self.send(&batch, requests);
        let Some(start) = started else {
            self.report_run(&batch, requests, None, finished);
            return self.sent_with_queries(batch.batch, requests.0, None);
        };
        self.sent_with_queries(batch.batch, requests.0, started);
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(requests.0);
        kept.extend_from_slice(requests.1);
        let running = &mut self.preemptible[batch.gpu.0 as usize];
        assert!(running.is_none(), "GPU {} already runs a batch that may be preempted", batch.gpu.0);
        *running =
            Some(PreemptibleBatch { header: batch, requests: kept, free_at, started: start, finished });
    }

    /// Returns the time that a batch really takes.
    fn run_time(&mut self, batch: &BatchHeader, requests: (&[Request], &[Request])) -> Nanos {
        let planned = match &self.varying[batch.model.0 as usize] {
            Some(varying) => {
                let drawn = |request: &Request| varying.draw(self.seed, request.id).run_time_ms;
                let longest = requests.0.iter().chain(requests.1).map(drawn).fold(0.0, f64::max);
                Nanos::from_millis_f64(varying.batch_ms(batch.size as usize, longest))
            }
            None => batch.duration,
        };
        if self.fault.slowdown == 0.0 {
            return planned;
        }
        let factor = 1.0 + self.fault.slowdown * self.random.random::<f64>();
        Nanos((planned.0 as f64 * factor) as u64)
    }
}

impl Decisions for VirtualGpus<'_> {
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        if self.queries.is_none() {
            return self.run_now(batch, requests);
        }
        if let Some((batch, requests)) = self.without_ended(batch, requests) {
            self.run_now(batch, (&requests, &[]));
        }
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        if self.queries.is_none() {
            return self.run_until_preempted(batch, requests);
        }
        if let Some((batch, requests)) = self.without_ended(batch, requests) {
            self.run_until_preempted(batch, (&requests, &[]));
        }
    }

    fn preempt(&mut self, gpu: GpuId, back: &mut Vec<Request>) -> bool {
        let at = gpu.0 as usize;
        let message_arrives = self.now + self.control;
        let Some(stopped) = self.preemptible[at].take_if(|running| running.finished > message_arrives) else {
            return false;
        };
        let end = message_arrives.max(stopped.started);
        let begun = stopped.started < message_arrives;
        self.free_at[at] = if begun { message_arrives } else { stopped.free_at };
        self.stopped.push(stopped.header.batch);
        if let Some(queries) = &mut self.queries {
            queries.preempted(stopped.header.batch);
        }
        self.skip_stopped();
        self.observer.preempted(&stopped.header, &stopped.requests, end);
        self.report.preempted(&stopped.header, stopped.started, end);
        back.extend_from_slice(&stopped.requests);
        self.recycle(stopped.requests);
        true
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.observer.ended(request, ending, now);
        if let Some(queries) = &mut self.queries
            && queries.dropped(request, now, self.observer)
        {
            return;
        }
        self.report.ended(request, ending);
    }
}

#[cfg(test)]
mod tests;
