//! What a ModelThread owns of one model: its queue in deadline order, its request rate, its
//! candidate batch and when to wake for it (Symphony, sections 4.3 and 4.5, appendix C). A pure
//! state machine: `now` and an event come in, decisions go into a [`ModelSink`].
//!
//! ```text
//! request, grant or timer -> re-select the batch -> set the timer
//!    before frontrun      the candidate may still grow and is not offered, unless it would take
//!                         a GPU that idles (its policy's head start): offered as early
//!    frontrun .. latest   due: offered to the RankThread, which grants a GPU or keeps it waiting
//!    after latest         re-selected: the head is dropped or the batch shrinks
//! ```
//!
//! Each class of a model's requests has a queue of its own. The queue of a lower class holds
//! nothing back. Where there are such, the queues of the highest class reserve a GPU for their next
//! batch.
//!
//! Each row of a request is an entry of the queue, one after the other, of one deadline.
//! A batch holds all of them or none, unless they fit no batch that is in time. They are taken in
//! together, or refused together.
//!
//! Where run times differ, a profile says what most batches do not exceed. A request that has less
//! time left is *doubtful* until not even a quick batch of one would be in time. It is given up for
//! one behind it that is not doubtful. Where there is none, the last of them, which has the best
//! chance, is tried in a batch of its own, on a GPU that no batch in time wants.

pub mod checkpoint;
mod event;
pub mod rate;
pub mod recent_service;
pub mod selection;

use crate::deferral::{Demand, HeadStart, Moment, QueueConfig};
use crate::drop_rule::DropRule;
use crate::limits;
use crate::profile::{Profile, ProfileScale, ScaledProfile};
use crate::rank::{BatchBounds, GpuReport, Grant, Offer, RankInput, Reservation};
use crate::rule_setting::RuleSetting;
use crate::workload::Network;
use alloc::collections::VecDeque;
pub use event::ModelEvent;
use rate::RateMeter;
use recent_service::RecentService;
use selection::{
    BatchFinish, Finish, FinishByApplication, Outlook, Selection, batch_time, look_ahead, partition_point,
    select, target_batch_near,
};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Ending, GpuId, ModelId, NO_DEADLINE, QueueId, Request};

/// A batch on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatch {
    /// The queue.
    pub queue: QueueId,
    /// The granted GPU.
    pub gpu: GpuId,
    /// When it was put together.
    pub batched: Nanos,
    /// When it is to start.
    pub exec_at: Nanos,
    /// When it must have started; [`Nanos::MAX`] where late is accepted.
    pub latest: Nanos,
    /// l(b).
    pub duration: Nanos,
}

impl Dispatch {
    /// The header of the batch, for the backend. `model`: the queue's.
    pub fn header(&self, model: ModelId, batch: u64, size: usize) -> BatchHeader {
        BatchHeader {
            batch,
            exec_at: self.exec_at,
            latest: self.latest,
            duration: self.duration,
            model,
            gpu: self.gpu,
            size: size as u32,
            ..BatchHeader::default()
        }
    }
}

/// Where a model's decisions go.
pub trait ModelSink {
    /// Sends a message to the RankThread. A reservation comes only from a queue that [has classes
    /// below](ModelQueue::above_others); bounds come once, before the first candidate, from a queue
    /// that is [below others](ModelQueue::below_others).
    fn to_rank(&mut self, message: RankInput);
    /// Sends a batch of these requests to the backend, the first slice's before the second's.
    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request]));
    /// Ends a request that has not run, at its frontend.
    fn end(&mut self, request: &Request, ending: Ending, now: Nanos);
}

/// What other classes there are beside a queue's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ClassRole {
    /// No other class has had requests.
    Alone,
    /// None, of a model whose own class is lower: there may never be a request of this one.
    Unexpected,
    /// Some below: the queue sends reservations.
    Above(LastReservation),
    /// Some above: the queue uses what they leave, so it holds nothing back. True once its bounds
    /// are sent.
    Below(bool),
    /// The model slot is vacant, so there are no batches to come.
    Nobody,
}

/// The last reservation that a queue has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastReservation {
    /// The deadline of the head that it was for; the lowest if the queue had none.
    pub head: Nanos,
    /// The time from the last head's arrival to its deadline.
    pub budget: Nanos,
}

/// The share of a queue's requests that classes below may cost it. One that has lost as many
/// reserves as if its requests could wait half as long.
const MAY_COST: f64 = 0.001;

/// The deadline that stands for a queue without a head.
const NO_HEAD: Nanos = Nanos::ZERO;

/// A deadline that no head has: no reservation was sent yet.
const NOT_SENT: Nanos = Nanos::MAX;

/// The batch that the model would run next.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    size: usize,
    /// The time from which it would take a GPU that idles, less its delay; at most `due`.
    early: Nanos,
    /// The time from which it takes any GPU: exec_at - delay(b).
    due: Nanos,
    /// D - l(b), less its slack.
    latest: Nanos,
    delay: Nanos,
    /// A doubtful request is tried: `latest` is by the time of a batch of one at best.
    tried: bool,
}

/// One model's queue of one class, and its candidate. See the module's description.
///
/// Methods come in groups:
/// - *Constructors*: [`ModelQueue::new`] or [`ModelQueue::of_nothing`], then at most one of
///   [`ModelQueue::above_others`], [`ModelQueue::below_others`] and [`ModelQueue::unexpected`].
/// - *Getters*: [`ModelQueue::len`], [`ModelQueue::config`], [`ModelQueue::reservation`] and the
///   others that take `&self`. They may be called at any time.
/// - *Inputs*: [`ModelQueue::apply`], and its short forms [`ModelQueue::apply_request`] and
///   [`ModelQueue::push_last`].
/// - *Outputs*: the [`ModelSink`] of each input, and [`ModelQueue::next_timer`].
///
/// `now` never decreases. After [`ModelEvent::Enqueue`] or [`ModelEvent::Cancel`] that returned
/// true, [`ModelEvent::Settle`] comes before `now` changes and before any other kind of event.
/// After each other event [`ModelQueue::next_timer`] is read anew; [`ModelEvent::Timer`] comes
/// then.
pub struct ModelQueue {
    terms: QueueConfig,
    /// The profile that it began with, and the scale of the one that it has.
    base: Profile,
    scale: ProfileScale,
    queue: VecDeque<Request>,
    rate: RateMeter,
    /// What the meter said when its last sample ended, and the batch size that it calls for.
    rate_rps: f64,
    target: usize,
    /// [`Grant::again`] of the last grant; true before the first.
    runs_again: bool,
    /// How it selects at present.
    selects: SelectionRule,
    /// The policy's, for this rate.
    head_start: Option<HeadStart>,
    setting: RuleSetting,
    recent: RecentService,
    last_start: Nanos,
    candidate: Option<Candidate>,
    /// The offer that waits at the RankThread.
    offered: Option<Offer>,
    next_timer: Nanos,
    role: ClassRole,
}

/// How a queue selects its batches.
#[derive(Clone, Copy, Debug)]
struct SelectionRule {
    /// What is dropped.
    drop: DropRule,
    /// True if a batch for the only GPU is selected with a view to the next one, once the GPU is
    /// granted, since that will be the queue's own too. Until then nothing is dropped that can
    /// still be served.
    looks_ahead: bool,
}

impl SelectionRule {
    /// The one for these terms and this setting; `runs_again` if the queue's batches follow each
    /// other. At a price of 0 nothing is dropped that can still be served, not even while the model
    /// is overloaded.
    fn of(terms: &QueueConfig, price: f32, overloaded: bool, runs_again: bool) -> SelectionRule {
        let drop = terms.drop.while_overloaded(overloaded && price > 0.0);
        let has_price = price > 0.0 && price < f32::INFINITY;
        let looks_ahead = drop == DropRule::Exchange && terms.gpus == 1 && runs_again && has_price;
        SelectionRule { drop: if looks_ahead { DropRule::Timeout } else { drop }, looks_ahead }
    }
}

/// Drops requests, and returns how many of them came with `least` time or more. By itself, as it is
/// seldom: it would take registers from what every request does.
#[cold]
#[inline(never)]
fn give_up(
    requests: impl Iterator<Item = Request>,
    least: Nanos,
    now: Nanos,
    sink: &mut impl ModelSink,
) -> usize {
    let end = |request: Request| {
        sink.end(&request, Ending::DroppedInQueue, now);
        usize::from(request.deadline - request.arrival >= least)
    };
    requests.map(end).sum()
}

impl ModelQueue {
    /// An empty queue; `now` starts its rate meter.
    pub fn new(terms: QueueConfig, now: Nanos) -> ModelQueue {
        ModelQueue::with_memory(terms, now, VecDeque::with_capacity(limits::MAX_QUEUE_LENGTH))
    }

    /// The queue of a vacant model slot: it has no memory for requests, since none comes.
    pub fn of_nothing(terms: QueueConfig, now: Nanos) -> ModelQueue {
        let mut queue = ModelQueue::with_memory(terms, now, VecDeque::new());
        queue.role = ClassRole::Nobody;
        queue
    }

    fn with_memory(terms: QueueConfig, now: Nanos, memory: VecDeque<Request>) -> ModelQueue {
        let mut queue = ModelQueue {
            scale: ProfileScale::default(),
            terms: QueueConfig { profile: terms.profile.worthwhile(), ..terms },
            base: terms.profile,
            queue: memory,
            rate: RateMeter::new(now),
            rate_rps: 0.0,
            target: 1,
            runs_again: true,
            selects: SelectionRule { drop: DropRule::Timeout, looks_ahead: false },
            head_start: None,
            setting: RuleSetting::default(),
            recent: RecentService::default(),
            last_start: Nanos::ZERO,
            candidate: None,
            offered: None,
            next_timer: Nanos::MAX,
            role: ClassRole::Alone,
        };
        queue.read_rate();
        queue
    }

    /// Starts with this setting instead of the default one.
    pub fn with_setting(mut self, setting: RuleSetting) -> ModelQueue {
        self.setting = setting;
        self.read_rate();
        self
    }

    /// Returns the profile that it began with: the one that a [`ModelEvent::Rescale`] scales.
    pub fn base_profile(&self) -> &Profile {
        &self.base
    }

    /// Returns what it began with: its configuration, with the profile whole.
    pub fn base_config(&self) -> QueueConfig {
        QueueConfig { profile: self.base.clone(), ..self.terms.clone() }
    }

    /// Returns the setting that it has.
    pub fn setting(&self) -> RuleSetting {
        self.setting
    }

    /// Goes on as if requests had come at this rate until now.
    pub fn expect(&mut self, now: Nanos, rate_rps: f64) {
        self.rate = RateMeter::steady(now, rate_rps);
        self.read_rate();
    }

    /// Makes this the queue of a class that has classes below it.
    pub fn above_others(mut self) -> ModelQueue {
        self.role = ClassRole::Above(LastReservation { head: NOT_SENT, budget: self.promise() });
        self
    }

    /// Makes this the queue of a class that only uses what others leave.
    pub fn below_others(mut self) -> ModelQueue {
        self.role = ClassRole::Below(false);
        self
    }

    /// Makes this the queue of the highest class of a model whose own class is another: it has no
    /// batches to come before its first request.
    pub fn unexpected(mut self) -> ModelQueue {
        self.role = ClassRole::Unexpected;
        self
    }

    /// True if the queue sends reservations.
    pub fn has_classes_below(&self) -> bool {
        matches!(self.role, ClassRole::Above(_))
    }

    /// True for the queue of a vacant model slot.
    pub fn is_of_nothing(&self) -> bool {
        self.role == ClassRole::Nobody
    }

    /// Sends the RankThread the first reservation.
    fn start_reserving(&mut self, now: Nanos, sink: &mut impl ModelSink) {
        self.update_rate(now);
        match self.role {
            ClassRole::Alone => {
                let last = LastReservation { head: NOT_SENT, budget: self.promise() };
                self.reserve(last, sink);
            }
            ClassRole::Unexpected => {
                let last = LastReservation { head: NO_HEAD, budget: self.promise() };
                self.role = ClassRole::Above(last);
                if self.queue.is_empty() {
                    self.send_reservation(Reservation::NEVER, sink);
                } else {
                    self.reserve(last, sink);
                }
            }
            ClassRole::Nobody => self.send_reservation(Reservation::NEVER, sink),
            ClassRole::Above(_) | ClassRole::Below(_) => return,
        }
        // What was lost before fades. A timer that is over still has to be seen.
        self.next_timer = self.next_timer.min(self.timer(now));
    }

    /// The bounds of the batches of a queue of a lower class.
    fn bounds(&self) -> BatchBounds {
        let QueueConfig { profile, slack, .. } = &self.terms;
        // Twice what the batch itself allows for: the grant is on its way meanwhile.
        let shortest = profile.latency(1) + slack.latest + slack.latest;
        let longest = profile.latency(profile.max_batch());
        BatchBounds { shortest, longest, patience: self.patience(self.promise()) }
    }

    /// The time from a request's arrival to its deadline, if its SLO is the model's.
    fn promise(&self) -> Nanos {
        self.terms.slo - self.terms.network.result
    }

    /// The time of the next [`ModelEvent::Timer`]; [`Nanos::MAX`] if none.
    #[inline]
    pub fn next_timer(&self) -> Nanos {
        self.next_timer
    }

    /// Requests waiting.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Applies an event at `now` and sends what follows from it to `sink`. True if the event was a
    /// request that was enqueued or cancelled, so that a [`ModelEvent::Settle`] is owed.
    ///
    /// The event's kind is a constant at most callers, for which the match costs nothing.
    #[inline(always)]
    pub fn apply(&mut self, now: Nanos, event: ModelEvent<'_>, sink: &mut impl ModelSink) -> bool {
        match event {
            ModelEvent::Enqueue(request) => {
                return self.push_last(now, request) || self.insert_or_refuse(now, request, sink);
            }
            ModelEvent::Cancel(first_row) => return self.cancel(now, first_row, sink),
            ModelEvent::Settle => self.settle(now, sink),
            ModelEvent::Timer => self.on_timer(now, sink),
            ModelEvent::Grant(grant) => self.on_grant(now, grant, sink),
            ModelEvent::Set(setting) => self.set(now, setting, sink),
            ModelEvent::Rescale(scaled) => self.rescale(now, scaled, sink),
            ModelEvent::Delays(network) => self.set_delays(now, network, sink),
            ModelEvent::StartReserving => self.start_reserving(now, sink),
            ModelEvent::Stop => self.stop(now, sink),
        }
        false
    }

    /// Applies [`ModelEvent::Enqueue`], then [`ModelEvent::Settle`]: for callers that take requests
    /// in one at a time.
    pub fn apply_request(&mut self, now: Nanos, request: &Request, sink: &mut impl ModelSink) {
        if self.apply(now, ModelEvent::Enqueue(request), sink) {
            self.settle(now, sink);
        }
    }

    /// Applies [`ModelEvent::Enqueue`] if the request would be the last of the queue, as mostly:
    /// there is room for it and its rows to come, no request of a later deadline waits, and its
    /// rows before it were enqueued. False, and nothing done, if not.
    #[inline]
    pub fn push_last(&mut self, now: Nanos, request: &Request) -> bool {
        let last = self.queue.back();
        let is_last = self.has_room(request)
            && last.is_none_or(|last| last.deadline <= request.deadline)
            && (request.row == 0 || last.is_some_and(|last| last.is_of_one_with(request)));
        if is_last {
            self.update_rate(now);
            self.rate.count();
            self.queue.push_back(*request);
        }
        is_last
    }

    /// Whether there is room for a row and those of its request that follow.
    #[inline]
    fn has_room(&self, request: &Request) -> bool {
        self.queue.len() + usize::from(request.rows_after) < limits::MAX_QUEUE_LENGTH
    }

    /// Ends all rows of a request that still wait. False if none does: the request has been sent,
    /// or has ended.
    #[cold]
    fn cancel(&mut self, now: Nanos, first_row: &Request, sink: &mut impl ModelSink) -> bool {
        self.update_rate(now);
        let from = self.queue.partition_point(|queued| queued.deadline < first_row.deadline);
        let same = self.queue.range(from..).take_while(|queued| queued.deadline == first_row.deadline);
        let Some(skipped) = same.into_iter().position(|queued| queued.is_of_one_with(first_row)) else {
            return false;
        };
        let first = from + skipped;
        let rows = self.queue.range(first..).take_while(|queued| queued.is_of_one_with(first_row)).count();
        for request in self.queue.drain(first..first + rows) {
            sink.end(&request, Ending::Withdrawn, now);
        }
        true
    }

    /// Selects the batch anew and publishes what follows from it.
    fn settle(&mut self, now: Nanos, sink: &mut impl ModelSink) {
        self.reselect(now, Nanos::ZERO, sink);
        self.publish(now, sink);
    }

    fn on_timer(&mut self, now: Nanos, sink: &mut impl ModelSink) {
        self.update_rate(now);
        if let (ClassRole::Above(last), true) = (&mut self.role, self.queue.is_empty()) {
            // What was lost has faded since the reservation was sent.
            last.head = NOT_SENT;
        }
        self.settle(now, sink);
    }

    /// Takes over a setting, and selects the batch anew by it.
    #[cold]
    fn set(&mut self, now: Nanos, setting: RuleSetting, sink: &mut impl ModelSink) {
        self.setting = setting;
        self.update_rate(now);
        self.read_rate();
        self.settle(now, sink);
    }

    /// Takes over a profile, and selects the batch anew by it. Whoever has sent it keeps the old
    /// one alive meanwhile, so that nothing is freed here.
    #[cold]
    fn rescale(&mut self, now: Nanos, scaled: &ScaledProfile, sink: &mut impl ModelSink) {
        debug_assert!(scaled.base == self.base, "a profile of another model");
        self.terms.profile = scaled.profile.worthwhile();
        self.scale = scaled.scale;
        self.terms_changed(now, sink);
    }

    /// Takes over the network's delays, and selects the batch anew by them.
    #[cold]
    fn set_delays(&mut self, now: Nanos, network: Network, sink: &mut impl ModelSink) {
        self.terms.network = network;
        self.terms_changed(now, sink);
    }

    /// Selects the batch anew by other terms.
    fn terms_changed(&mut self, now: Nanos, sink: &mut impl ModelSink) {
        if self.role == ClassRole::Below(true) {
            // The bounds of its batches are others.
            self.role = ClassRole::Below(false);
        }
        self.update_rate(now);
        self.read_rate();
        self.settle(now, sink);
    }

    /// Finalises the batch for a granted GPU and sends it, reports the GPU, and forms the next
    /// candidate.
    fn on_grant(&mut self, now: Nanos, grant: Grant, sink: &mut impl ModelSink) {
        self.offered = None;
        self.update_rate(now);
        if grant.again != self.runs_again {
            self.runs_again = grant.again;
            self.choose_selection();
        }
        self.reselect(now, grant.free_at, sink);
        if grant.until < Nanos::MAX {
            self.shrink(now, grant);
        }
        let mut report =
            GpuReport { queue: grant.queue, gpu: grant.gpu, exec_at: None, free_at: grant.free_at };
        if let Some(candidate) = self.candidate.take() {
            let dispatch = self.finalise(now, grant, candidate);
            self.recent.add_gpu_time(dispatch.duration);
            report.exec_at = Some(dispatch.exec_at);
            report.free_at = dispatch.exec_at + dispatch.duration;
            sink.dispatch(dispatch, front_slices(&self.queue, candidate.size));
            self.queue.drain(..candidate.size);
            self.last_start = dispatch.exec_at;
        }
        sink.to_rank(RankInput::Report(report));
        self.settle(now, sink);
    }

    /// Ends every request that still waits.
    fn stop(&mut self, now: Nanos, sink: &mut impl ModelSink) {
        self.update_rate(now);
        for request in self.queue.drain(..) {
            sink.end(&request, Ending::Stopped, now);
        }
        self.settle(now, sink);
    }

    /// Puts a request before some that came earlier, or ends it since the queue is full or was for
    /// its first row.
    #[cold]
    fn insert_or_refuse(&mut self, now: Nanos, request: &Request, sink: &mut impl ModelSink) -> bool {
        self.update_rate(now);
        self.rate.count();
        let at = self.queue.partition_point(|queued| queued.deadline <= request.deadline);
        let follows = |before: usize| self.queue[before].is_of_one_with(request);
        if !self.has_room(request) || (request.row > 0 && !at.checked_sub(1).is_some_and(follows)) {
            sink.end(request, Ending::Overloaded, now);
            self.recent.add_lost(1);
            return false;
        }
        self.queue.insert(at, *request);
        true
    }

    #[inline]
    fn update_rate(&mut self, now: Nanos) {
        let ended = self.rate.advance(now);
        if ended > 0 {
            self.samples_ended(ended);
        }
    }

    /// What follows from samples of the rate that have ended. By itself, as it is seldom: it would
    /// take registers from what every request does.
    #[cold]
    #[inline(never)]
    fn samples_ended(&mut self, samples: u64) {
        let (rate_rps, overloaded) = (self.rate.rate(), self.recent.overloaded);
        self.recent.samples_ended(samples, rate_rps, &self.terms);
        if rate_rps != self.rate_rps || self.recent.overloaded != overloaded {
            self.read_rate();
        }
    }

    /// What follows from the rate, the setting and what was lost, alone.
    fn read_rate(&mut self) {
        let terms = &self.terms;
        self.rate_rps = self.rate.rate();
        self.target = target_batch_near(terms, self.rate_rps, self.target);
        let demand = Demand { rate_rps: self.rate_rps, target: self.target, setting: self.setting, terms };
        self.head_start = terms.deferral.head_start(&demand);
        self.choose_selection();
    }

    fn choose_selection(&mut self) {
        let overloaded = self.recent.overloaded;
        self.selects = SelectionRule::of(&self.terms, self.setting.price, overloaded, self.runs_again);
    }

    fn finalise(&self, now: Nanos, grant: Grant, candidate: Candidate) -> Dispatch {
        let finish = Finish { terms: &self.terms, now, gpu_free_at: grant.free_at };
        let exec_at = finish.earliest_start(candidate.size).max(candidate.early + candidate.delay);
        Dispatch {
            queue: grant.queue,
            gpu: grant.gpu,
            batched: now,
            exec_at,
            latest: match self.terms.drop {
                DropRule::Fcfs => Nanos::MAX,
                _ => (candidate.latest + self.terms.slack.latest).max(exec_at),
            },
            duration: self.batch_time(0, candidate.size),
        }
    }

    /// Drops what can't be helped and forms the candidate anew.
    #[inline]
    fn reselect(&mut self, now: Nanos, gpu_free_at: Nanos, sink: &mut impl ModelSink) {
        match self.terms.profile.applications() {
            None => self.reselect_as::<false>(now, gpu_free_at, sink),
            Some(_) => self.reselect_as::<true>(now, gpu_free_at, sink),
        }
    }

    /// [`ModelQueue::reselect`]; `APART` where requests are told apart by their applications, which
    /// costs a queue of requests that are all alike nothing.
    fn reselect_as<const APART: bool>(&mut self, now: Nanos, gpu_free_at: Nanos, sink: &mut impl ModelSink) {
        let finish = Finish { terms: &self.terms, now, gpu_free_at };
        let selection = if APART { self.select(finish) } else { self.select_by(finish) };
        let looks_ahead = self.selects.looks_ahead && gpu_free_at > Nanos::ZERO;
        let Selection { mut dropped, size } =
            if looks_ahead { self.look_ahead(selection, finish) } else { selection };
        let tried = size == 0 && self.may_try_last(finish);
        if tried {
            dropped -= 1;
        }
        if dropped > 0 {
            // A client that gives less time than a batch of one takes says nothing of the GPUs.
            let least = self.terms.network.delay(1) + self.terms.profile.latency(1);
            self.recent.add_lost(give_up(self.queue.drain(..dropped), least, now, sink));
        }
        self.candidate = match tried {
            true => Some(self.candidate_to_try()),
            false => (size > 0).then(|| self.candidate_of::<APART>(now, self.uncut(finish, size))),
        };
    }

    /// Selects from the queue by the rule of the moment.
    fn select(&self, finish: Finish<'_>) -> Selection {
        match self.terms.profile.applications() {
            None => self.select_by(finish),
            Some(applications) => {
                self.select_by(FinishByApplication { finish, applications, queue: &self.queue })
            }
        }
    }

    #[inline(always)]
    fn select_by(&self, finish: impl BatchFinish) -> Selection {
        let deadline = |at: usize| self.queue[at].deadline;
        select(self.selects.drop, finish, self.target, self.setting.price, self.queue.len(), deadline)
    }

    /// Selects for the only GPU, of which `all` has all that can still be served.
    #[cold]
    fn look_ahead(&self, all: Selection, finish: Finish<'_>) -> Selection {
        let outlook = Outlook {
            price: self.setting.price,
            target: self.target,
            now: finish.now,
            deadline: finish.now + self.promise(),
            rate_per_ns: self.rate_rps / 1e9,
        };
        let (queue, deadline) = (&self.queue, |at: usize| self.queue[at].deadline);
        match self.terms.profile.applications() {
            None => look_ahead(all, finish, outlook, queue.len(), deadline),
            Some(applications) => {
                let finish = FinishByApplication { finish, applications, queue };
                look_ahead(all, finish, outlook, queue.len(), deadline)
            }
        }
    }

    /// What the batch of `size` requests behind the first `from` takes.
    #[inline]
    fn batch_time(&self, from: usize, size: usize) -> Nanos {
        let profile = &self.terms.profile;
        match profile.applications() {
            None => profile.latency(size),
            Some(applications) => batch_time(profile, applications, &self.queue, from, size),
        }
    }

    /// When the batch of the first `size` requests is over, if it starts as soon as it can.
    #[inline]
    fn finished(&self, finish: Finish<'_>, size: usize) -> Nanos {
        finish.earliest_start(size) + self.batch_time(0, size)
    }

    /// The rows in a batch of the first `size` whose request has others behind it; 0 if it takes no
    /// request apart.
    #[inline]
    fn cut_rows(&self, size: usize) -> usize {
        let last = size.checked_sub(1).and_then(|last| self.queue.get(last));
        last.filter(|last| last.rows_after > 0).map_or(0, |last| {
            self.queue.range(..size).rev().take_while(|row| row.is_of_one_with(last)).count()
        })
    }

    /// The profile of a request by itself: its application's, if requests are told apart.
    #[inline]
    fn profile_of(&self, request: &Request) -> &Profile {
        let applications = self.terms.profile.applications();
        applications.map_or(&self.terms.profile, |own| &own[usize::from(request.application)])
    }

    /// Returns true if the last request, which no batch is sure to serve in time, has a chance by
    /// itself.
    #[inline]
    fn may_try_last(&self, finish: Finish<'_>) -> bool {
        let Some(last) = self.queue.back() else { return false };
        let profile = self.profile_of(last);
        let at_best = profile.at_best();
        at_best < profile.latency(1)
            && !matches!(self.role, ClassRole::Below(_))
            && last.row == 0
            && finish.earliest_start(1) + at_best <= last.deadline
    }

    /// Returns the candidate of the one doubtful request that is left: it can't grow, so it is due.
    fn candidate_to_try(&self) -> Candidate {
        let QueueConfig { network, slack, .. } = &self.terms;
        let only = &self.queue[0];
        let latest = only.deadline - self.profile_of(only).at_best() - slack.latest;
        let due = Nanos::ZERO;
        Candidate { size: 1, early: due, due, latest, delay: network.delay(1), tried: true }
    }

    /// The batch size nearest to `size` that takes no request of several rows apart: without the
    /// request that is cut if that leaves any, else with all of it, if that can run by the head's
    /// deadline or is late in any case. A request that fits no batch in time is cut.
    #[inline]
    fn uncut(&self, finish: Finish<'_>, size: usize) -> usize {
        let last = &self.queue[size - 1];
        if last.rows_after == 0 { size } else { self.uncut_before(last, finish, size) }
    }

    /// [`ModelQueue::uncut`] where rows of `last`, the last request of the batch, are behind it. By
    /// itself, as most requests have one row.
    #[inline(never)]
    fn uncut_before(&self, last: &Request, finish: Finish<'_>, size: usize) -> usize {
        let cut = self.cut_rows(size);
        if cut < size {
            return size - cut;
        }
        let whole = (size + usize::from(last.rows_after)).min(self.queue.len());
        let at = |size: usize| self.finished(finish, size);
        let late_anyway = at(size) > last.deadline && whole <= self.terms.profile.max_batch();
        if at(whole) <= last.deadline || late_anyway { whole } else { size }
    }

    /// Makes the candidate small enough to be over when the GPU is needed, even if it starts late:
    /// for classes above it nothing may be left of it, for models beside it a request is.
    #[cold]
    fn shrink(&mut self, now: Nanos, grant: Grant) {
        let Some(Candidate { size, .. }) = self.candidate else { return };
        let finish = Finish { terms: &self.terms, now, gpu_free_at: grant.free_at };
        let until = grant.until - self.terms.slack.latest;
        let least = match self.role {
            ClassRole::Below(_) => 0,
            _ => self.queue.front().map_or(1, |head| usize::from(head.rows_after) + 1),
        };
        let fits = (partition_point(1, size + 1, |size| self.finished(finish, size) <= until) - 1).max(least);
        if fits >= size {
            return;
        }
        let cut = self.cut_rows(fits);
        let size = if cut < fits { fits - cut } else { fits };
        self.candidate = (size > 0).then(|| self.candidate_of::<true>(now, size));
    }

    #[inline]
    fn candidate_of<const APART: bool>(&self, now: Nanos, size: usize) -> Candidate {
        let QueueConfig { profile, network, slack, .. } = &self.terms;
        let head_deadline = self.queue[0].deadline;
        let delay = network.delay(size);
        let takes = |size| if APART { self.batch_time(0, size) } else { profile.latency(size) };
        let latest = head_deadline - takes(size) - slack.latest;
        if matches!(self.role, ClassRole::Below(_)) {
            let due = Nanos::ZERO;
            return Candidate { size, early: due, due, latest, delay, tried: false };
        }
        let joining = self.joining(size);
        let fetch = Nanos(network.data_per_request.0 * joining as u64);
        let frontrun = head_deadline - takes(size + joining) - fetch - slack.frontrun;
        let when = self.terms.deferral.when(&Moment {
            now,
            size,
            earliest: now + delay,
            frontrun,
            latest,
            queued: self.queue.len(),
            rate_rps: self.rate_rps,
            last_start: self.last_start,
            terms: &self.terms,
            target: self.target,
        });
        let due = when.min(latest);
        let (early, due) = self.head_start.map_or((due, due), |HeadStart { after_last, lead, spread }| {
            let spaced = if after_last == Nanos::ZERO { now } else { self.last_start + after_last };
            let early = due.min(spaced).min(due - lead);
            (early, if spread { early } else { due })
        });
        Candidate { size, early: early - delay, due: due - delay, latest, delay, tried: false }
    }

    /// How many rows would join a batch of `size` at once: the next request's, or as many as the
    /// last one has.
    #[inline]
    fn joining(&self, size: usize) -> usize {
        match self.queue.get(size) {
            Some(next) => usize::from(next.rows_after) + 1,
            None => self.queue.back().map_or(0, |last| usize::from(last.row)) + 1,
        }
    }

    /// When a schedulable candidate is to be re-selected: the moment after its latest, since at
    /// latest itself it can still start; once that is past and it still can, since latest was early
    /// by the slack, the moment after the true one.
    fn expiry(&self, now: Nanos, ready: Candidate) -> Nanos {
        let decided = ready.latest - ready.delay;
        let last = if now <= decided { decided } else { decided + self.terms.slack.latest };
        last.max(now) + Nanos(1)
    }

    /// Sends the RankThread what has changed for it, and sets the timer.
    fn publish(&mut self, now: Nanos, sink: &mut impl ModelSink) {
        match self.role {
            ClassRole::Alone | ClassRole::Unexpected | ClassRole::Nobody => {}
            ClassRole::Above(last) => self.reserve(last, sink),
            ClassRole::Below(_) => return self.publish_below(now, sink),
        }
        let offer = self.candidate.filter(|candidate| candidate.early <= now).map(|candidate| {
            let offer = Offer {
                latest: self.latest_to_offer(now, candidate),
                delay: candidate.delay,
                early: candidate.due > now,
                precedence: if candidate.tried { 0 } else { self.recent.precedence },
                ..Offer::default()
            };
            if self.setting.reserve < Nanos::MAX { self.with_reserve(offer, candidate.size) } else { offer }
        });
        if offer != self.offered && !self.is_offered_enough(offer) {
            self.send_offer(offer, sink);
        }
        self.next_timer = self.timer(now);
    }

    /// When to look again, of a queue that is not below others.
    #[inline]
    fn timer(&self, now: Nanos) -> Nanos {
        match self.candidate {
            None if self.recent.lost > 0 && self.has_classes_below() => now + limits::RATE_WINDOW,
            None => Nanos::MAX,
            Some(waiting) if waiting.early > now => waiting.early,
            Some(early) if early.due > now => early.due,
            Some(_) if self.terms.drop == DropRule::Fcfs => Nanos::MAX,
            Some(due) => self.expiry(now, due),
        }
    }

    /// The offer of a batch of this size, as it is where the setting has a reserve: a long batch
    /// leaves the last GPU, or becomes brief for it. It then can start later than it could as it
    /// is, and waits behind others by that.
    #[inline]
    fn with_reserve(&self, offer: Offer, size: usize) -> Offer {
        let RuleSetting { reserve: leaves, brief: shrinks, .. } = self.setting;
        let takes = self.batch_time(0, size);
        if takes <= leaves || shrinks && self.batch_time(0, 1) > leaves {
            return offer;
        }
        let later = if shrinks { takes - leaves } else { Nanos::ZERO };
        Offer { latest: offer.latest + later, leaves, shrinks, ..offer }
    }

    /// The time by which a GPU still serves this candidate, or the one that follows it: on threads
    /// a grant takes time, in which the candidate may expire while requests behind it wait. A queue
    /// whose heads expire one after the other would else offer only what is too late, and get no
    /// GPU as long as other models want them.
    ///
    /// A doubtful request is offered an SLO later than it can wait, and withdrawn in time: batches
    /// that are sure to be in time go before it.
    #[inline]
    fn latest_to_offer(&self, now: Nanos, candidate: Candidate) -> Nanos {
        if candidate.tried {
            return candidate.latest + self.terms.slo;
        }
        let granted = now + self.terms.slack.frontrun - self.terms.slack.latest;
        if granted == now
            || candidate.latest - candidate.delay >= granted
            || self.terms.drop == DropRule::Fcfs
        {
            return candidate.latest;
        }
        self.latest_of_next(now + self.terms.slack.frontrun)
            .map_or(candidate.latest, |next| next.max(candidate.latest))
    }

    /// The `latest` of the candidate that there would be if nothing happened until `then`.
    #[cold]
    fn latest_of_next(&self, then: Nanos) -> Option<Nanos> {
        let finish = Finish { terms: &self.terms, now: then, gpu_free_at: Nanos::ZERO };
        let next = self.select(finish);
        let head = self.queue.get(next.dropped).filter(|_| next.size > 0)?;
        Some(head.deadline - self.batch_time(next.dropped, next.size) - self.terms.slack.latest)
    }

    /// [`ModelQueue::publish`] of a queue below others: its candidate may have any GPU that is
    /// left, at once and as a batch of one. So a message is sent for a new head only.
    #[cold]
    fn publish_below(&mut self, now: Nanos, sink: &mut impl ModelSink) {
        let offer = self.queue.front().filter(|_| self.candidate.is_some()).map(|head| Offer {
            latest: head.deadline - self.terms.profile.latency(1) - self.terms.slack.latest,
            delay: self.terms.network.delay(1),
            early: false,
            ..Offer::default()
        });
        if offer != self.offered {
            if self.role == ClassRole::Below(false) {
                self.role = ClassRole::Below(true);
                sink.to_rank(RankInput::Bounds { queue: self.terms.queue, bounds: self.bounds() });
            }
            self.send_offer(offer, sink);
        }
        self.next_timer = match self.candidate {
            Some(waiting) if self.terms.drop != DropRule::Fcfs && self.queue[0].deadline < NO_DEADLINE => {
                self.expiry(now, waiting)
            }
            _ => Nanos::MAX,
        };
    }

    /// Sends the candidate that now waits for a GPU, or withdraws the one before it.
    #[inline]
    fn send_offer(&mut self, offer: Option<Offer>, sink: &mut impl ModelSink) {
        let queue = self.terms.queue;
        match offer {
            Some(offer) => sink.to_rank(RankInput::Ready { queue, offer }),
            None => sink.to_rank(RankInput::Withdraw(queue)),
        }
        self.offered = offer;
    }

    fn send_reservation(&self, reservation: Reservation, sink: &mut impl ModelSink) {
        sink.to_rank(RankInput::Reserve { queue: self.terms.queue, reservation });
    }

    /// Sends a reservation for the next batch: once for each head.
    #[cold]
    fn reserve(&mut self, last: LastReservation, sink: &mut impl ModelSink) {
        let head = self.queue.front().map_or(NO_HEAD, |head| head.deadline);
        if head == last.head {
            return;
        }
        let budget = self.queue.front().map_or(last.budget, |head| head.deadline - head.arrival);
        self.role = ClassRole::Above(LastReservation { head, budget });
        self.send_reservation(self.reservation(), sink);
    }

    /// When the next batch will have to start at the earliest.
    pub fn reservation(&self) -> Reservation {
        let budget = match self.role {
            ClassRole::Above(last) => last.budget,
            _ => self.promise(),
        };
        let every = match self.rate_rps > 0.0 {
            true => Nanos::from_secs_f64(self.target as f64 / self.rate_rps),
            false => Nanos::MAX,
        };
        let care = 1.0 + self.recent.lost_share(self.rate_rps) / MAY_COST;
        let patience = Nanos((self.patience(budget).0 as f64 / care) as u64);
        match self.queue.front() {
            Some(head) => Reservation { at: head.deadline - (budget - patience), silent: false, every },
            None => Reservation { at: patience, silent: true, every },
        }
    }

    /// How long after a request came that has so much time its batch has to start at the earliest.
    /// It may be larger than the rate calls for: by the square root of its size, and by more where
    /// there are few GPUs, as no other is there for a burst. Of the time left, it may be offered
    /// earlier by up to a half (docs/scheduling.md).
    fn patience(&self, budget: Nanos) -> Nanos {
        let QueueConfig { profile, slack, gpus, .. } = &self.terms;
        let burst = (self.target * (gpus + 1).pow(2) / gpus.pow(2)).isqrt();
        let size = (self.target + 1 + burst).min(profile.max_batch());
        let time = budget - profile.latency(size) - slack.frontrun;
        let lead = self.head_start.map_or(Nanos::ZERO, |start| start.lead);
        time - lead.min(Nanos(time.0 / 2))
    }

    /// True if the offer of an early candidate still serves: the candidate has only grown, and
    /// takes at most a third longer than was offered. So a batch costs the RankThread a few
    /// messages, whatever the number of requests that join it.
    fn is_offered_enough(&self, offer: Option<Offer>) -> bool {
        let (Some(sent), Some(offer), Some(candidate)) = (self.offered, offer, self.candidate) else {
            return false;
        };
        let longer = sent.latest - offer.latest;
        let grown =
            sent.latest >= offer.latest && longer <= Nanos(self.terms.profile.latency(candidate.size).0 / 4);
        let alike = sent.leaves == offer.leaves
            && sent.shrinks == offer.shrinks
            && sent.precedence == offer.precedence;
        sent.early && offer.early && alike && grown
    }
}

/// The first `count` requests of the queue, as its one or two pieces of memory.
pub(crate) fn front_slices(queue: &VecDeque<Request>, count: usize) -> (&[Request], &[Request]) {
    let (front, back) = queue.as_slices();
    let split = count.min(front.len());
    (&front[..split], &back[..count - split])
}

#[cfg(test)]
pub(crate) mod tests;
