//! What a RankThread owns: which GPUs are free when, which models have a schedulable batch, and the
//! matching of the two (Symphony, section 4.3 and appendix C; docs/design/specification.md,
//! "Matching"). A pure state machine: `now` and messages come in, grants go out. Its work grows
//! with batches, never with requests.
//!
//! A candidate is offered *early* or *due*. Due ones get any GPU. Early ones would rather grow, but
//! take a GPU that would idle: only the lowest-numbered ones, as many as the load needs
//! ([`packing`]), so that whole GPUs stay free to be given back. Of both the earliest `latest` goes
//! first, which an overloaded model has earlier by its precedence ([`Offer::precedence`]). Models
//! that have had far more GPU time than an overloaded one yield to it ([`gpu_shares`]).
//!
//! Candidates of long batches may have to leave the last GPU that is free soon to those that can't
//! wait for another ([`Offer::leaves`]). They wait in trees of their own, and are passed over as
//! long as they must, or are told when they have to be over ([`Offer::shrinks`]).
//!
//! Cost per batch: one update of each of two [`MinTree`]s when a candidate becomes ready and when
//! it is granted, one when its GPU is reported and one when it completes; each at most four levels.

mod backfill;
pub mod checkpoint;
pub mod gpu_shares;
mod input;
mod long_batches;
mod look_budget;
pub mod min_tree;
pub mod packing;

pub use backfill::{BatchBounds, Reservation};
pub use input::{GpuReport, Offer, RankInput};

use crate::limits;
use crate::model::recent_service::WHOLE_PRECEDENCE;
use alloc::boxed::Box;
use alloc::vec::Vec;
use backfill::{Backfill, Chosen};
use gpu_shares::GpuShares;
use long_batches::LongBatches;
use min_tree::MinTree;
use packing::Packing;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Completion, GpuId, QueueId};

/// A GPU is given to a model for one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The model, silent towards the RankThread until it reports the GPU back.
    pub queue: QueueId,
    /// The GPU, taken until then.
    pub gpu: GpuId,
    /// When the GPU finishes what it was given before; may be past.
    pub free_at: Nanos,
    /// When the batch has to be over, since classes above the model's need the GPU, or it is the
    /// last one and [`Offer::shrinks`]; [`Nanos::MAX`] where it may take its time.
    pub until: Nanos,
    /// True if the last batch on any of the GPUs, if there was one, was the model's own.
    pub again: bool,
}

impl RankInput {
    /// Applies the input to the matching, which acts on it at once.
    #[inline]
    pub fn apply(self, state: &mut RankState, now: Nanos, grant: &mut impl FnMut(Grant)) {
        state.handle(self);
        state.on_timer(now, grant);
    }
}

#[derive(Clone, Copy)]
struct GpuState {
    /// When it finishes what it was given.
    free_at: Nanos,
    /// How long the batch that it was given last takes.
    last_duration: Nanos,
    /// When that batch starts.
    last_exec_at: Nanos,
    /// Batches reported and not completed. Below zero while a completion has overtaken the report
    /// of its batch: they come on different rings.
    outstanding: i32,
    /// Granted, and its model has not reported yet.
    taken: bool,
    /// What it was given last is of a lower class.
    lower: bool,
    /// True while its host is gone: it is granted to nobody.
    absent: bool,
}

impl GpuState {
    fn is_busy(&self) -> bool {
        self.taken || self.outstanding > 0
    }
}

/// What becomes of a long batch that would take the last GPU.
#[derive(Clone, Copy)]
enum LastGpu {
    /// The batch waits until then; [`Nanos::MAX`] if it is not known when another will be free.
    Waits(Nanos),
    /// The batch takes the GPU, and is over by then.
    EndsBy(Nanos),
}

/// The matching of schedulable candidates to GPUs. See the module's description. Where a model has
/// requests of several classes, each class of it is a model of its own here.
pub struct RankState {
    gpus: Vec<GpuState>,
    /// free_at of each GPU that may be granted.
    free: MinTree,
    /// `latest` of each model with a due candidate, less its precedence.
    due: MinTree,
    /// `latest` of each model with an early one, less its precedence.
    early: MinTree,
    /// The candidates of both kinds that leave the last GPU, instead.
    long: LongBatches,
    /// The number of queues with a due one.
    waiting: usize,
    /// The rule for the GPUs that early ones may have.
    packing: Packing,
    /// How long before a GPU is free each model's candidate can have it: delay(b), and for the
    /// highest class what batches are sent ahead by.
    delay: Vec<Nanos>,
    /// Models whose candidate has precedence: see [`Offer::precedence`].
    has_precedence: Vec<bool>,
    /// The longest batch seen.
    longest: Nanos,
    /// The GPU time of each model, and who yields for it.
    shares: GpuShares,
    /// Models whose grant is under way: what they said before they saw it is void.
    granted: Vec<bool>,
    /// The model that has run the last batch.
    last: Option<QueueId>,
    /// The largest delay seen: how long before a GPU is free matching has to look at it.
    horizon: Nanos,
    /// GPUs granted or running a batch.
    busy: usize,
    /// How long after free_at a completion may still be on its way.
    completion_delay: Nanos,
    /// See [`RankState::sending_ahead`].
    ahead: Nanos,
    keep_late: bool,
    next_timer: Nanos,
    /// Where models are of several classes.
    backfill: Option<Box<Backfill>>,
    /// What the highest class will need is known, so that others can be served.
    all_reserved: bool,
    /// GPUs that only run batches of lower classes: to those above they idle.
    lower: usize,
    /// GPUs whose hosts are gone.
    absent: usize,
}

impl RankState {
    /// `gpus` idle GPUs and `models` models with nothing to run. `keep_late`: a candidate past its
    /// latest still waits (drop rule fcfs). `completion_delay`: what a completion takes from a
    /// backend to here.
    pub fn new(gpus: usize, models: usize, keep_late: bool, completion_delay: Nanos) -> RankState {
        assert!(gpus <= limits::MAX_GPUS, "{gpus} GPUs; the limit is {}", limits::MAX_GPUS);
        assert!(
            models <= limits::MAX_QUEUES,
            "{models} queues of models; the limit is {}",
            limits::MAX_QUEUES
        );
        let idle = GpuState {
            free_at: Nanos::ZERO,
            last_duration: Nanos::ZERO,
            last_exec_at: Nanos::ZERO,
            outstanding: 0,
            taken: false,
            lower: false,
            absent: false,
        };
        let mut free = MinTree::new(gpus);
        for gpu in 0..gpus {
            free.set(gpu, Nanos::ZERO);
        }
        RankState {
            gpus: vec![idle; gpus],
            free,
            due: MinTree::new(models),
            early: MinTree::new(models),
            long: LongBatches::new(models),
            waiting: 0,
            packing: Packing::default(),
            delay: vec![Nanos::ZERO; models],
            has_precedence: vec![false; models],
            longest: Nanos::ZERO,
            shares: GpuShares::new(models),
            granted: vec![false; models],
            last: None,
            horizon: Nanos::ZERO,
            busy: 0,
            completion_delay,
            ahead: Nanos::ZERO,
            keep_late,
            next_timer: Nanos::MAX,
            backfill: None,
            all_reserved: false,
            lower: 0,
            absent: 0,
        }
    }

    /// Makes this the state of queues of these classes. Lower ones wait for
    /// [`RankInput::AllReserved`].
    pub fn among_classes(mut self, classes: Vec<Class>) -> RankState {
        assert_eq!(classes.len(), self.granted.len(), "each model has a class");
        let highest = classes.iter().rposition(|&class| class == Class::HIGHEST).map_or(0, |last| last + 1);
        (self.due, self.early) = (MinTree::new(highest), MinTree::new(highest));
        self.backfill = Some(Box::new(Backfill::new(classes)));
        self
    }

    /// Grants a GPU that is busy `ahead` before it is free, in addition to the delay of the batch,
    /// which starts when the GPU is free all the same. So a GPU that finishes on time need not wait
    /// for its completion, a grant and a batch to pass through the threads in turn.
    pub fn sending_ahead(self, ahead: Nanos) -> RankState {
        RankState { ahead, ..self }
    }

    /// Goes on as if so many GPUs had been asked for until now.
    pub fn expect(&mut self, now: Nanos, gpus: f64) {
        let average = gpus.min(self.gpus.len() as f64);
        self.packing = Packing { average, asked: average as usize, since: now };
    }

    /// Has a GPU that idles run a batch until then, whose completion is to come.
    pub fn occupy(&mut self, gpu: GpuId, now: Nanos, until: Nanos) {
        let state = &mut self.gpus[gpu.0 as usize];
        state.outstanding += 1;
        state.last_exec_at = now;
        state.last_duration = until - now;
        state.free_at = until;
        self.busy += 1;
        self.offer(gpu);
    }

    /// When [`RankState::on_timer`] is due; [`Nanos::MAX`] if never.
    #[inline]
    pub fn next_timer(&self) -> Nanos {
        self.next_timer
    }

    /// Notes an input. What follows from it is decided by [`RankState::on_timer`], which is owed
    /// before `now` changes, once for all inputs.
    #[inline]
    pub fn handle(&mut self, input: RankInput) {
        match input {
            RankInput::Ready { queue, offer } => self.on_ready(queue, offer),
            RankInput::Withdraw(queue) => self.forget(queue.0 as usize),
            RankInput::Report(report) => self.on_report(report),
            RankInput::Completion(completion) => self.on_completion(completion),
            RankInput::Reserve { queue, reservation } => {
                if let Some(backfill) = &mut self.backfill {
                    backfill.set_reservation(queue.0 as usize, reservation);
                }
            }
            RankInput::Bounds { queue, bounds } => {
                if let Some(backfill) = &mut self.backfill {
                    backfill.set_bounds(queue.0 as usize, bounds);
                }
            }
            RankInput::AllReserved => self.all_reserved = true,
            RankInput::Presence { gpu, is_up } => self.on_presence(gpu, is_up),
            RankInput::CompletionDelay(delay) => self.completion_delay = delay,
        }
    }

    /// Matches, since there were inputs or the time of [`RankState::next_timer`] has come.
    pub fn on_timer(&mut self, now: Nanos, grant: &mut impl FnMut(Grant)) {
        self.match_waiting(now, grant);
    }

    /// GPUs granted or running a batch at the moment.
    pub fn busy_gpus(&self) -> usize {
        self.busy
    }

    /// `model` has a schedulable candidate. Replaces what was known of the model.
    fn on_ready(&mut self, queue: QueueId, offer: Offer) {
        let at = queue.0 as usize;
        if self.granted[at] {
            return;
        }
        let latest = offer.latest.min(Nanos(u64::MAX - 1));
        if let Some(backfill) = &mut self.backfill
            && backfill.is_lower(at)
        {
            self.delay[at] = offer.delay;
            return backfill.set_waiting(at, latest);
        }
        let delay = offer.delay + self.ahead;
        self.delay[at] = delay;
        self.horizon = self.horizon.max(delay);
        if offer.leaves < Nanos::MAX || self.long.has(at) {
            self.forget(at);
        }
        if offer.precedence > 0 {
            self.shares.note_overloaded(at);
        }
        let before = Nanos(self.longest.0 / u64::from(WHOLE_PRECEDENCE) * u64::from(offer.precedence));
        self.set_waiting(at, Offer { latest: latest - before, ..offer });
    }

    /// Notes the candidate of a model that has none among long batches.
    #[inline]
    fn set_waiting(&mut self, at: usize, offer: Offer) {
        let Offer { latest, early, .. } = offer;
        self.has_precedence[at] = offer.precedence > 0;
        if offer.leaves < Nanos::MAX {
            self.waiting += usize::from(!early && latest < Nanos::MAX);
            self.long.set(at, offer);
        } else if early {
            self.set_due(at, Nanos::MAX);
            self.early.set(at, latest);
        } else {
            self.set_due(at, latest);
            self.set_not_early(at);
        }
    }

    /// Takes a model's candidate out.
    fn forget(&mut self, at: usize) {
        if let Some(backfill) = &mut self.backfill
            && backfill.is_lower(at)
        {
            return backfill.set_waiting(at, Nanos::MAX);
        }
        self.set_due(at, Nanos::MAX);
        self.set_not_early(at);
        if self.long.has(at) {
            self.waiting -= usize::from(self.long.forget(at));
        }
    }

    #[inline]
    fn set_due(&mut self, at: usize, latest: Nanos) {
        let old = self.due.get(at);
        if old != latest {
            self.waiting -= usize::from(old != Nanos::MAX);
            self.waiting += usize::from(latest != Nanos::MAX);
            self.due.set(at, latest);
        }
    }

    #[inline]
    fn set_not_early(&mut self, at: usize) {
        if self.early.get(at) != Nanos::MAX {
            self.early.set(at, Nanos::MAX);
        }
    }

    /// A granted model has used its GPU, or gives it back unused.
    fn on_report(&mut self, report: GpuReport) {
        self.granted[report.queue.0 as usize] = false;
        let gpu = &mut self.gpus[report.gpu.0 as usize];
        debug_assert!(gpu.taken, "a report of a GPU that was not granted");
        self.busy -= usize::from(gpu.is_busy());
        gpu.taken = false;
        if let Some(exec_at) = report.exec_at {
            self.last = Some(report.queue);
            gpu.outstanding += 1;
            gpu.last_exec_at = exec_at;
            gpu.last_duration = report.free_at - exec_at;
            self.longest = self.longest.max(gpu.last_duration);
            self.shares.add(report.queue.0 as usize, exec_at, gpu.last_duration);
            // The report knows the GPU as it was at its grant: what completions have said since
            // then of the batches before counts. Where the batch's own completion has overtaken the
            // report, free_at is what it really was.
            if gpu.outstanding > 0 {
                gpu.free_at = exec_at.max(gpu.free_at) + gpu.last_duration;
            }
        }
        self.busy += usize::from(gpu.is_busy());
        self.note_lower(report.gpu.0 as usize);
        self.offer(report.gpu);
    }

    /// A batch has left its GPU: free_at becomes what it really is.
    fn on_completion(&mut self, completion: Completion) {
        let gpu = &mut self.gpus[completion.gpu.0 as usize];
        self.busy -= usize::from(gpu.is_busy());
        gpu.outstanding -= 1;
        self.busy += usize::from(gpu.is_busy());
        match gpu.outstanding {
            ..=0 => gpu.free_at = completion.finished,
            1 => gpu.free_at = gpu.last_exec_at.max(completion.finished) + gpu.last_duration,
            // A later completion corrects it: what runs next is not the last batch given.
            _ => {}
        }
        self.note_lower(completion.gpu.0 as usize);
        self.offer(completion.gpu);
    }

    /// A GPU's host has come or gone.
    #[cold]
    fn on_presence(&mut self, gpu: GpuId, is_up: bool) {
        let state = &mut self.gpus[gpu.0 as usize];
        self.absent = self.absent + usize::from(!is_up) - usize::from(state.absent);
        state.absent = !is_up;
        self.offer(gpu);
    }

    /// GPUs that are there and have no batch. One that is gone and whose batches have not been
    /// completed yet counts twice, so there may be more.
    fn idle(&self) -> usize {
        self.gpus.len().saturating_sub(self.busy + self.absent)
    }

    /// A GPU without a batch runs none of a lower class either.
    #[inline]
    fn note_lower(&mut self, gpu: usize) {
        let gpu = &mut self.gpus[gpu];
        if gpu.lower && !gpu.is_busy() {
            gpu.lower = false;
            self.lower -= 1;
        }
    }

    /// Lets matching see a GPU again, unless it is taken, has all the batches it may have, or is
    /// gone.
    fn offer(&mut self, gpu: GpuId) {
        let state = &self.gpus[gpu.0 as usize];
        let has_room = !state.taken && state.outstanding < limits::MAX_OUTSTANDING_BATCHES as i32;
        let open = has_room && !state.absent;
        self.free.set(gpu.0 as usize, if open { state.free_at } else { Nanos::MAX });
    }

    /// Grants whatever can be granted, earliest latest first, and finds out when to look again.
    fn match_waiting(&mut self, now: Nanos, grant: &mut impl FnMut(Grant)) {
        self.match_highest(now, grant);
        if self.all_reserved && self.due.min_key() == Nanos::MAX {
            self.match_lower(now, grant);
        }
        self.packing.ask(now, self.busy - self.lower, self.waiting);
    }

    /// Grants GPUs that idle to lower classes, as far as those above do not need them.
    #[cold]
    fn match_lower(&mut self, now: Nanos, grant: &mut impl FnMut(Grant)) {
        self.backfill.iter_mut().for_each(|backfill| backfill.budget.matched());
        loop {
            let idle = self.idle();
            let waiting = self.backfill.as_mut().filter(|backfill| idle > 0 && backfill.has_waiting());
            let Some(backfill) = waiting else { return };
            let Some(gpu) = self.free.first_at_most(now) else {
                // A completion may tell of a moment after this thread has read its clock.
                self.next_timer = self.next_timer.min(self.free.min_key());
                return;
            };
            let next_look = backfill.budget.next_look();
            if next_look > now {
                self.next_timer = self.next_timer.min(next_look);
                return;
            }
            let Some(Chosen { model, until }) = backfill.choose(now, &self.delay, idle, &mut self.free)
            else {
                return;
            };
            self.try_grant(now, model, gpu, until, grant);
        }
    }

    /// What [`RankState::match_waiting`] does for the highest class, which is mostly all.
    #[inline]
    fn match_highest(&mut self, now: Nanos, grant: &mut impl FnMut(Grant)) {
        self.shares.begin(now, self.longest);
        // Often no GPU is free soon enough for any: what is below would find the same, for more.
        let soonest = self.free.min_key();
        if soonest > now + self.horizon && self.long.is_empty() {
            self.next_timer = self.next_horizon(now, soonest);
            return;
        }
        // Early candidates that find no GPU leave the rest to due ones, until then.
        let mut early_again = None;
        // And long ones that would take the last GPU, to shorter ones.
        let (mut are_long_left, mut long_again) = (!self.long.is_empty(), Nanos::MAX);
        self.next_timer = loop {
            let (early_ones, due_ones) = match are_long_left {
                true => self.long.or_before(&self.early, &self.due),
                false => (&self.early, &self.due),
            };
            let early = early_again.is_none() && early_ones.min_key() < due_ones.min_key();
            let (tree, limit) = match early {
                true => (early_ones, self.packing.limit(now, self.gpus.len())),
                false => (due_ones, self.gpus.len()),
            };
            let Some((latest, model)) = tree.min() else { break Nanos::MAX };
            let own = self.delay[model];
            let reach = self.shares.yields_to(model).map_or(own, |neediest| own.min(self.delay[neediest]));
            let start = now + reach;
            let waits = self.keep_late || self.has_precedence[model];
            let bound = if waits { start } else { start.min(latest) };
            // One that need not be waited for comes first.
            let idle = self.free.first_at_most(bound.min(start - self.ahead)).filter(|&gpu| gpu < limit);
            if let Some(gpu) = idle.or_else(|| self.free.first_at_most(bound))
                && gpu < limit
            {
                let last = if are_long_left { self.as_last(now, model, gpu) } else { None };
                match last {
                    None => self.try_grant(now, model, gpu, Nanos::MAX, grant),
                    Some(LastGpu::EndsBy(until)) => self.try_grant(now, model, gpu, until, grant),
                    Some(LastGpu::Waits(until)) => (are_long_left, long_again) = (false, until),
                }
                continue;
            }
            let free_at = self.free.min_key_before(limit);
            let again = if free_at == Nanos::MAX {
                Nanos::MAX
            } else if free_at > now + self.horizon {
                free_at - self.horizon
            } else if latest < free_at && !waits {
                // Its ModelThread sees the same and re-selects; it will be back with another batch.
                self.forget(model);
                continue;
            } else {
                free_at - reach
            };
            if !early {
                break again;
            }
            early_again = Some(again);
        };
        self.next_timer = self.next_timer.min(early_again.unwrap_or(Nanos::MAX)).min(long_again);
    }

    /// Returns when a GPU that waiting candidates may have is within the horizon, where none is yet
    /// and `soonest` is when the first is free.
    #[inline]
    fn next_horizon(&mut self, now: Nanos, soonest: Nanos) -> Nanos {
        let free_at = if self.due.min_key() < Nanos::MAX {
            soonest
        } else if soonest < Nanos::MAX && self.early.min_key() < Nanos::MAX {
            self.free.min_key_before(self.packing.limit(now, self.gpus.len()))
        } else {
            Nanos::MAX
        };
        if free_at < Nanos::MAX { free_at - self.horizon } else { free_at }
    }

    /// Returns what becomes of this model's batch if the GPU is the last one that others could have
    /// within the time that it has to leave it for.
    #[cold]
    fn as_last(&self, now: Nanos, model: usize, gpu: usize) -> Option<LastGpu> {
        let leaves = self.long.leaves(model)?;
        let other = self.free.min_key_beside(gpu);
        if self.long.shrinks(model) {
            let until = self.gpus[gpu].free_at.max(now) + leaves;
            return (other > until).then_some(LastGpu::EndsBy(until));
        }
        let is_last = other > now + leaves && self.gpus.len() > self.absent + 1;
        is_last.then(|| LastGpu::Waits(if other < Nanos::MAX { other - leaves } else { other }))
    }

    fn try_grant(
        &mut self,
        now: Nanos,
        model: usize,
        gpu: usize,
        until: Nanos,
        grant: &mut impl FnMut(Grant),
    ) {
        self.free.set(gpu, Nanos::MAX);
        let state = &mut self.gpus[gpu];
        let overdue = state.outstanding > 0 && now > state.free_at + self.completion_delay;
        if overdue {
            // It should have finished and has not said so. Nothing is known of it until its
            // completion comes.
            return;
        }
        self.busy += usize::from(!state.is_busy());
        state.taken = true;
        let lower = self.backfill.as_ref().is_some_and(|backfill| backfill.is_lower(model));
        self.lower = self.lower + usize::from(lower) - usize::from(state.lower);
        state.lower = lower;
        self.granted[model] = true;
        let free_at = state.free_at;
        self.forget(model);
        let queue = QueueId(model as u32);
        let again = self.last.is_none_or(|last| last == queue);
        grant(Grant { queue, gpu: GpuId(gpu as u32), free_at, until, again });
    }
}

#[cfg(test)]
mod tests;
