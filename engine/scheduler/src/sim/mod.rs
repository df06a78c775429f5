//! The deterministic driver: a policy's scheduler in virtual time, with seeded arrivals and GPUs
//! that take exactly what the profile says, or as much more as a [`Fault`] makes them. The same
//! seed gives the same decisions. `simulate` prints what comes out; property tests watch every
//! event through an [`Observer`].

pub mod arrivals;
pub mod goodput;
pub mod minutes;
pub mod report;

use crate::policy::{Decisions, Options, Policy};
use crate::rank::min_tree::MinTree;
use crate::workload::Workload;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use arrivals::{ArrivalError, Arrivals, stream_seed};
use core::cmp::Reverse;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use report::{Report, Tally};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, NO_DEADLINE, Request};

/// How GPUs of a simulation stray from their profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fault {
    /// A batch takes up to this much of l(b) longer, evenly distributed: 0.2 is up to 20 %.
    pub slowdown: f64,
}

/// What a simulation tells of what happens, in the order in which it happens.
pub trait Observer {
    /// A request has come.
    fn arrived(&mut self, _request: &Request) {}
    /// A batch was sent to its GPU at `now`; it will run from `started` to `finished`, or was
    /// cancelled there (`started` is `None`) since it could not start by its `latest`.
    fn ran(
        &mut self,
        _now: Nanos,
        _batch: &BatchHeader,
        _requests: (&[Request], &[Request]),
        _started: Option<Nanos>,
        _finished: Nanos,
    ) {
    }
    /// A batch that was sent stops at `stopped` (when it would have started, if that is still to
    /// come) and will not have run; its requests are the scheduler's again. The GPU's time from its
    /// start until then is wasted.
    fn preempted(&mut self, _batch: &BatchHeader, _requests: &[Request], _stopped: Nanos) {}
    /// A request ended without having run.
    fn ended(&mut self, _request: &Request, _ending: Ending, _now: Nanos) {}
}

/// Observes nothing.
impl Observer for () {}

/// Runs `workload` under `policy` and reports on the requests that arrived after its warm-up.
///
/// Errors: a trace file that can't be read.
pub fn simulate(workload: &Workload, policy: &dyn Policy, options: &Options) -> Result<Report, ArrivalError> {
    simulate_observed(workload, policy, options, Fault::default(), &mut ())
}

/// As [`simulate`], with faults, and with every event shown to `observer`.
pub fn simulate_observed(
    workload: &Workload,
    policy: &dyn Policy,
    options: &Options,
    fault: Fault,
    observer: &mut dyn Observer,
) -> Result<Report, ArrivalError> {
    let mut traffic = Traffic::new(workload)?;
    let mut scheduler = policy.scheduler(workload, options);
    let mut world = World::new(workload, fault, observer);
    let mut events = 0u64;
    loop {
        let arrival = traffic.next_at();
        let timer = scheduler.next_timer();
        let completion = world.next_completion();
        let now = arrival.min(timer).min(completion);
        if now == Nanos::MAX {
            break;
        }
        events += 1;
        world.now = now;
        // Of events at one instant, what a GPU says comes first, then what a client says, then
        // timers.
        if completion <= now {
            let done = world.take_completion();
            scheduler.on_completion(now, done, &mut world);
        } else if arrival <= now {
            let request = traffic.take(workload);
            world.observer.arrived(&request);
            world.tally.arrived(&request);
            scheduler.on_request(now, request, &mut world);
        } else {
            scheduler.on_timer(now, &mut world);
        }
    }
    let drop =
        if policy.options().contains(&"drop") { options.drop.unwrap_or(policy.drop()).name() } else { "own" };
    Ok(world.tally.report(workload, policy.name(), drop, events))
}

/// The arrivals of all models, merged.
struct Traffic {
    streams: Vec<Arrivals>,
    next: MinTree,
    end: Nanos,
    next_id: u64,
}

impl Traffic {
    fn new(workload: &Workload) -> Result<Traffic, ArrivalError> {
        let mut traffic = Traffic {
            streams: Vec::with_capacity(workload.models.len()),
            next: MinTree::new(workload.models.len()),
            end: workload.warmup + workload.duration,
            next_id: 0,
        };
        for (index, model) in workload.models.iter().enumerate() {
            let seed = stream_seed(workload.seed, index as u64);
            traffic.streams.push(Arrivals::new(&model.arrival, workload.rate_rps * model.share, seed)?);
            traffic.advance(index);
        }
        Ok(traffic)
    }

    fn next_at(&self) -> Nanos {
        self.next.min_key()
    }

    fn advance(&mut self, index: usize) {
        let at = self.streams[index].next().filter(|&at| at < self.end);
        self.next.set(index, at.unwrap_or(Nanos::MAX));
    }

    fn take(&mut self, workload: &Workload) -> Request {
        let (arrival, index) = self.next.min().expect("only asked when there is one");
        self.advance(index);
        let id = self.next_id;
        self.next_id += 1;
        Request {
            id,
            arrival,
            deadline: match workload.models[index].slo {
                NO_DEADLINE => NO_DEADLINE,
                slo => arrival + slo - workload.network.result,
            },
            queue: ModelId(index as u32).only_queue(),
            class: workload.models[index].class,
            ..Request::default()
        }
    }
}

/// A batch on its GPU; ordered by when it finishes, then by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    finished: Nanos,
    batch: u64,
    model: ModelId,
    gpu: GpuId,
    started: Nanos,
}

/// A batch that may yet be preempted.
struct Preemptible {
    header: BatchHeader,
    requests: Vec<Request>,
    /// When its GPU would be free without it.
    free_at: Nanos,
    started: Nanos,
    finished: Nanos,
}

/// The GPUs and what is kept of what happens on them.
struct World<'a> {
    now: Nanos,
    /// d_ctrl: how long a word takes to a GPU.
    control: Nanos,
    completions: BinaryHeap<Reverse<Running>>,
    /// When each GPU really is free.
    free_at: Vec<Nanos>,
    /// What each GPU runs or will run that may be preempted.
    preemptible: Vec<Option<Preemptible>>,
    /// Batches that were preempted and whose completions have not been taken out yet.
    stopped: Vec<u64>,
    /// Memory for requests, to be used again.
    spare: Vec<Vec<Request>>,
    fault: Fault,
    random: Pcg64Mcg,
    tally: Tally,
    observer: &'a mut dyn Observer,
}

impl<'a> World<'a> {
    fn new(workload: &Workload, fault: Fault, observer: &'a mut dyn Observer) -> World<'a> {
        World {
            now: Nanos::ZERO,
            control: workload.network.control,
            completions: BinaryHeap::new(),
            free_at: vec![Nanos::ZERO; workload.gpus],
            preemptible: core::iter::repeat_with(|| None).take(workload.gpus).collect(),
            stopped: Vec::new(),
            spare: Vec::new(),
            fault,
            random: Pcg64Mcg::seed_from_u64(workload.seed),
            tally: Tally::new(workload),
            observer,
        }
    }

    fn next_completion(&self) -> Nanos {
        self.completions.peek().map_or(Nanos::MAX, |next| next.0.finished)
    }

    fn take_completion(&mut self) -> Completion {
        let Reverse(Running { finished, batch, model, gpu, started }) =
            self.completions.pop().expect("only asked when there is one");
        self.skip_stopped();
        let done = self.preemptible[gpu.0 as usize].take_if(|running| running.header.batch == batch);
        if let Some(done) = done {
            self.tally.ran(&done.header, (&done.requests, &[]), Some(done.started), done.finished);
            self.recycle(done.requests);
        }
        Completion { batch, started, finished, model, gpu }
    }

    /// Takes out the next completions that will not be, since their batches were preempted.
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

    /// Puts a batch on its GPU and tells when it starts, if it can, and is through.
    fn send(&mut self, batch: &BatchHeader, requests: (&[Request], &[Request])) -> (Option<Nanos>, Nanos) {
        let gpu = batch.gpu.0 as usize;
        let start = batch.exec_at.max(self.free_at[gpu]);
        let started = (start <= batch.latest).then_some(start);
        let finished = match started {
            Some(start) => start + self.run_time(batch.duration),
            None => start,
        };
        self.free_at[gpu] = finished;
        let BatchHeader { batch: number, model, gpu, .. } = *batch;
        self.completions.push(Reverse(Running { finished, batch: number, model, gpu, started: start }));
        self.observer.ran(self.now, batch, requests, started, finished);
        (started, finished)
    }

    /// How long the batch really takes.
    fn run_time(&mut self, planned: Nanos) -> Nanos {
        if self.fault.slowdown == 0.0 {
            return planned;
        }
        let factor = 1.0 + self.fault.slowdown * self.random.random::<f64>();
        Nanos((planned.0 as f64 * factor) as u64)
    }
}

impl Decisions for World<'_> {
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let (started, finished) = self.send(&batch, requests);
        self.tally.ran(&batch, requests, started, finished);
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        let free_at = self.free_at[batch.gpu.0 as usize];
        let (started, finished) = self.send(&batch, requests);
        let Some(started) = started else { return self.tally.ran(&batch, requests, None, finished) };
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.extend_from_slice(requests.0);
        kept.extend_from_slice(requests.1);
        let running = &mut self.preemptible[batch.gpu.0 as usize];
        assert!(running.is_none(), "GPU {} already runs a batch that may be preempted", batch.gpu.0);
        *running = Some(Preemptible { header: batch, requests: kept, free_at, started, finished });
    }

    fn preempt(&mut self, gpu: GpuId, back: &mut Vec<Request>) -> bool {
        let at = gpu.0 as usize;
        let word_there = self.now + self.control;
        let Some(stopped) = self.preemptible[at].take_if(|running| running.finished > word_there) else {
            return false;
        };
        let end = word_there.max(stopped.started);
        let begun = stopped.started < word_there;
        self.free_at[at] = if begun { word_there } else { stopped.free_at };
        self.stopped.push(stopped.header.batch);
        self.skip_stopped();
        self.observer.preempted(&stopped.header, &stopped.requests, end);
        self.tally.preempted(&stopped.header, stopped.started, end);
        back.extend_from_slice(&stopped.requests);
        self.recycle(stopped.requests);
        true
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.observer.ended(request, ending, now);
        self.tally.ended(request, ending);
    }
}

#[cfg(test)]
mod tests;
