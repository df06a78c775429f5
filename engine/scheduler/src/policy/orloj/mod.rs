//! `orloj`: batches of requests whose run times are not known but whose applications' histograms
//! are (Yu's dissertation, chapter 4, Algorithm 4.1). Whenever a GPU is idle, the batch size is the
//! one that the most urgent request can still be served in, the largest of several, and the batch
//! has those of the highest priority: requests that a batch of that size serves in time with the
//! most probability, and of these the more urgent.
//!
//! [`learned`] keeps the histograms, [`estimates`] derives from them how long batches take,
//! [`score`] is the priority, [`waiting`] keeps the requests.
//!
//! What the text leaves open, or its printed algorithm has another way round: batch sizes are the
//! powers of two; of sizes whose most urgent request is the same the largest goes first; several
//! models share the GPUs, the one with the most urgent request first.

mod estimates;
mod learned;
mod score;
mod waiting;

use super::interface::{Decisions, Policy, Scheduler};
use super::options::{BatchSizes, PolicyOptions};
use crate::run_time::{MAX_APPLICATIONS, RunTimeHistogram, VaryingModel};
use crate::workload::{Network, Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::{Ordering, Reverse};
use core::ops::Range;
use estimates::Estimates;
use learned::LearnedRunTimes;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, ModelId, Request};
use waiting::{Place, WaitingRequests};

/// The batches of a model after which its estimates are made anew from what was learned.
const REFRESH: u32 = 100;

/// The policy.
#[derive(Debug)]
pub(super) struct Orloj;

impl Policy for Orloj {
    fn name(&self) -> &'static str {
        "orloj"
    }

    fn about(&self) -> &'static str {
        "priorities by the distribution of each application's run times (ORLOJ)"
    }

    fn options(&self) -> &'static [&'static str] {
        &["orloj-delay-rate"]
    }

    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler> {
        let model = |model| OrlojModel::new(model, options.orloj_delay_rate);
        Box::new(OrlojScheduler {
            models: workload.models.iter().map(model).collect(),
            idle: (0..workload.gpus).map(Reverse).collect(),
            running: vec![Vec::new(); workload.gpus],
            network: workload.network,
            batches: 0,
        })
    }
}

/// The scheduler of all models.
struct OrlojScheduler {
    models: Vec<OrlojModel>,
    /// The idle GPUs, the lowest-numbered first.
    idle: BinaryHeap<Reverse<usize>>,
    /// The requests of each application in the batch of each GPU that is not idle.
    running: Vec<Vec<u32>>,
    network: Network,
    batches: u64,
}

/// A batch that could run: this many requests, the most urgent of which is due by `deadline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeChoice {
    deadline: Nanos,
    /// The index of the batch size.
    at: usize,
}

impl OrlojScheduler {
    /// Gives idle GPUs a batch each, while there are any.
    fn pull(&mut self, now: Nanos, out: &mut dyn Decisions) {
        while !self.idle.is_empty() {
            let network = self.network;
            let choice = |(index, model): (usize, &mut OrlojModel)| {
                model.drop_late(now, network, out);
                Some((model.choose(now, network)?, index))
            };
            let choices = self.models.iter_mut().enumerate().filter_map(choice);
            let Some((choice, index)) =
                choices.min_by_key(|(choice, _)| (choice.deadline, Reverse(choice.at)))
            else {
                return;
            };
            self.run(now, index, choice, out);
        }
    }

    fn run(&mut self, now: Nanos, index: usize, choice: SizeChoice, out: &mut dyn Decisions) {
        let Some(Reverse(gpu)) = self.idle.pop() else { return };
        let model = &mut self.models[index];
        let size = model.estimates.sizes()[choice.at];
        let exec_at = now + self.network.delay(size);
        let taken = model.take_best(exec_at, choice.at);
        let mut counts = vec![0; model.queues.len()];
        taken.iter().for_each(|request| counts[model.queue_of(request)] += 1);
        self.running[gpu] = counts;
        let batch = BatchHeader {
            batch: self.batches,
            exec_at,
            latest: Nanos::MAX,
            duration: model.estimates.expected(choice.at),
            model: ModelId(index as u32),
            gpu: GpuId(gpu as u32),
            size: size as u32,
            ..BatchHeader::default()
        };
        self.batches += 1;
        out.run(batch, (&taken, &[]));
    }
}

impl Scheduler for OrlojScheduler {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        let model = &mut self.models[request.queue.0 as usize];
        let queue = model.queue_of(&request);
        match model.queues[queue].add(request) {
            Ok(()) => self.pull(now, out),
            Err(request) => out.end(&request, Ending::Overloaded, now),
        }
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        let gpu = completion.gpu.0 as usize;
        let counts = core::mem::take(&mut self.running[gpu]);
        self.models[completion.model.0 as usize].learn(&counts, completion.finished - completion.started);
        self.idle.push(Reverse(gpu));
        self.pull(now, out);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        self.pull(now, out);
    }

    fn next_timer(&self) -> Nanos {
        Nanos::MAX
    }

    fn learned_run_times(&self, model: ModelId) -> Vec<RunTimeHistogram> {
        let Some((_, learned)) = &self.models[model.0 as usize].learned else { return Vec::new() };
        (0..self.models[model.0 as usize].queues.len()).map(|application| learned.of(application)).collect()
    }
}

/// A model: its requests, and what is known of their run times.
struct OrlojModel {
    /// The requests of each application, by deadline.
    queues: Vec<WaitingRequests>,
    /// `None` where all requests take the same time.
    learned: Option<(VaryingModel, LearnedRunTimes)>,
    estimates: Estimates,
    /// The rate of the anticipated delay: [`PolicyOptions::orloj_delay_rate`].
    delay_rate: f64,
    /// The batches since the estimates were made.
    learned_from: u32,
}

impl OrlojModel {
    fn new(model: &WorkloadModel, delay_rate: f64) -> OrlojModel {
        let sizes = BatchSizes::PowersOfTwo.up_to(model.profile.max_batch());
        let learned = model.varying.as_ref().map(|varying| (varying.clone(), LearnedRunTimes::new(varying)));
        let estimates = match &learned {
            Some((varying, learned)) => Estimates::of_distributions(&sizes, varying, learned, delay_rate),
            None => Estimates::of_profile(&sizes, &model.profile, delay_rate),
        };
        let applications = model.varying.as_ref().map_or(1, |varying| varying.applications.len());
        let queues = vec![WaitingRequests::default(); applications.min(MAX_APPLICATIONS)];
        OrlojModel { queues, learned, estimates, delay_rate, learned_from: 0 }
    }

    /// Returns the queue of a request's application.
    fn queue_of(&self, request: &Request) -> usize {
        usize::from(request.application).min(self.queues.len() - 1)
    }

    /// Takes the time into account that a batch took with so many requests of each application.
    fn learn(&mut self, counts: &[u32], took: Nanos) {
        let Some((varying, learned)) = &mut self.learned else { return };
        let size = counts.iter().sum::<u32>() as usize;
        learned.note(counts, varying.longest_ms(size, took.as_millis_f64()));
        self.learned_from += 1;
        if self.learned_from == REFRESH {
            self.learned_from = 0;
            let sizes = self.estimates.sizes();
            self.estimates = Estimates::of_distributions(sizes, varying, learned, self.delay_rate);
        }
    }

    /// Returns the least deadline of an application's requests that a batch of the size at `at` is
    /// expected to keep, if it is decided on now.
    fn feasible_from(&self, now: Nanos, network: Network, application: usize, at: usize) -> Nanos {
        let starts = now + network.delay(self.estimates.sizes()[at]);
        starts + self.estimates.expected_with(at, application)
    }

    /// Ends the requests that not even a batch of one is expected to serve in time.
    fn drop_late(&mut self, now: Nanos, network: Network, out: &mut dyn Decisions) {
        for application in 0..self.queues.len() {
            let feasible = self.feasible_from(now, network, application, 0);
            while let Some(request) = self.queues[application].take_before(feasible) {
                out.end(&request, Ending::DroppedInQueue, now);
            }
        }
    }

    /// Chooses the batch size: the one with the most urgent request, and of several the largest.
    fn choose(&self, now: Nanos, network: Network) -> Option<SizeChoice> {
        let of_size = |at: usize| {
            let size = self.estimates.sizes()[at];
            let of_application = |(application, queue): (usize, &WaitingRequests)| {
                queue.from(self.feasible_from(now, network, application, at), size)
            };
            let feasible = self.queues.iter().enumerate().map(of_application);
            let both = |sum: (Nanos, usize), one: (Nanos, usize)| (sum.0.min(one.0), sum.1 + one.1);
            let (deadline, count) = feasible.fold((Nanos::MAX, 0), both);
            (count >= size).then_some(SizeChoice { deadline, at })
        };
        let sizes = 0..self.estimates.sizes().len();
        sizes.filter_map(of_size).min_by_key(|choice| (choice.deadline, Reverse(choice.at)))
    }

    /// Takes the requests of the highest priority out of those that a batch of the size at `at`,
    /// which starts at `exec_at`, is expected to serve in time.
    fn take_best(&mut self, exec_at: Nanos, at: usize) -> Vec<Request> {
        let size = self.estimates.sizes()[at];
        let mut cursors: BinaryHeap<Cursor> =
            (0..self.queues.len()).flat_map(|application| self.cursors(exec_at, application, at)).collect();
        let mut best: Vec<(usize, Place)> = Vec::with_capacity(size);
        while best.len() < size
            && let Some(cursor) = cursors.pop()
        {
            best.push((cursor.application, cursor.place));
            cursors.extend(self.next_of(&cursor, exec_at, at));
        }
        best.into_iter().filter_map(|(application, place)| self.queues[application].take(place)).collect()
    }

    /// Returns a cursor for each piece of an application's curve that has requests in it.
    fn cursors(&self, exec_at: Nanos, application: usize, at: usize) -> impl Iterator<Item = Cursor> {
        let feasible = exec_at + self.estimates.expected_with(at, application);
        let after = move |left_ms: f64| match left_ms.is_finite() {
            true => (exec_at + Nanos::from_millis_f64(left_ms)).max(feasible),
            false => Nanos::MAX,
        };
        let pieces = self.estimates.curve(at, application).pieces().iter();
        pieces.filter_map(move |piece| {
            let range = after(piece.from_ms)..after(piece.to_ms);
            let place = self.queues[application].end_of(range.clone(), piece.rises)?;
            Some(self.cursor(application, place, range, piece.rises, exec_at, at))
        })
    }

    /// Returns the cursor that follows: at the next request of its piece.
    fn next_of(&self, cursor: &Cursor, exec_at: Nanos, at: usize) -> Option<Cursor> {
        let Cursor { application, ref range, backwards, .. } = *cursor;
        let place = self.queues[application].beside(cursor.place, range.clone(), backwards)?;
        Some(self.cursor(application, place, range.clone(), backwards, exec_at, at))
    }

    fn cursor(
        &self,
        application: usize,
        place: Place,
        range: Range<Nanos>,
        backwards: bool,
        exec_at: Nanos,
        at: usize,
    ) -> Cursor {
        let score = self.estimates.curve(at, application).at((place.0 - exec_at).as_millis_f64());
        Cursor { score, application, place, range, backwards }
    }
}

/// A place in an application's requests: those of a piece of the curve that are left, best first.
#[derive(Clone, Debug)]
struct Cursor {
    score: f64,
    application: usize,
    /// The place of its best request.
    place: Place,
    /// The deadlines of the piece.
    range: Range<Nanos>,
    backwards: bool,
}

impl Ord for Cursor {
    fn cmp(&self, other: &Cursor) -> Ordering {
        let place = |of: &Cursor| Reverse((of.application, of.place));
        self.score.total_cmp(&other.score).then_with(|| place(self).cmp(&place(other)))
    }
}

impl PartialOrd for Cursor {
    fn partial_cmp(&self, other: &Cursor) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cursor {
    fn eq(&self, other: &Cursor) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Cursor {}

#[cfg(test)]
mod tests;
