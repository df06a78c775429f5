//! Batch selection: which requests of a model's queue run next and which can't be helped any more
//! (docs/design/specification.md, "Batch selection"; Symphony, section 4.3). Pure arithmetic over a
//! queue in deadline order; [`super::ModelQueue`] carries the result out.

use crate::deferral::QueueConfig;
use crate::drop_rule::DropRule;
use crate::profile::Profile;
use alloc::collections::VecDeque;
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// The outcome of a selection: drop the first `dropped` requests of the queue; the `size` after
/// them are the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selection {
    /// Requests at the head that are given up.
    pub dropped: usize,
    /// The batch; 0 only if nothing is left.
    pub size: usize,
}

impl Selection {
    /// Returns this selection, if the requests that it drops beyond `other` are no more than
    /// `price` times those that join its batch for it; else `other`. Where the GPUs are full, a
    /// GPU's time serves as many as the target batch does in it, and to drop d for a batch that is
    /// larger by g comes to the same at d = g: a price of 1 (docs/scheduling.md).
    pub fn if_worth(self, other: Selection, price: f32) -> Selection {
        let lost = self.dropped.saturating_sub(other.dropped);
        let gained = self.size.saturating_sub(other.size);
        if lost == 0 || lost as f32 <= price * gained as f32 { self } else { other }
    }
}

/// When a batch could start and finish: fin(b) = max(now + delay(b), gpu_free_at) + l(b).
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    /// The model's profile and delays.
    pub terms: &'a QueueConfig,
    /// The time of the decision.
    pub now: Nanos,
    /// When the granted GPU is free; [`Nanos::ZERO`] while none is.
    pub gpu_free_at: Nanos,
}

impl Finish<'_> {
    /// When a batch of `size` starts at the earliest.
    #[inline]
    pub fn earliest_start(&self, size: usize) -> Nanos {
        (self.now + self.terms.network.delay(size)).max(self.gpu_free_at)
    }

    /// fin(`size`).
    #[inline]
    pub fn at(&self, size: usize) -> Nanos {
        self.earliest_start(size) + self.terms.profile.latency(size)
    }
}

/// When the batches of a queue would finish.
pub trait BatchFinish: Copy {
    /// fin of the batch of `size` requests behind the first `from`. It does not fall where a
    /// request joins at either end.
    fn of(&self, from: usize, size: usize) -> Nanos;
    /// The least that fin of a batch of `size` can be, whatever requests these are.
    fn least(&self, size: usize) -> Nanos;
    /// When a batch of `size` starts at the earliest.
    fn start(&self, size: usize) -> Nanos;
}

/// All requests are alike.
impl BatchFinish for Finish<'_> {
    #[inline]
    fn of(&self, _: usize, size: usize) -> Nanos {
        self.at(size)
    }

    #[inline]
    fn least(&self, size: usize) -> Nanos {
        self.at(size)
    }

    #[inline]
    fn start(&self, size: usize) -> Nanos {
        self.earliest_start(size)
    }
}

/// [`BatchFinish`] of a queue with requests of several applications.
#[derive(Clone, Copy)]
pub struct FinishByApplication<'a> {
    /// When batches start.
    pub finish: Finish<'a>,
    /// What those of each application take.
    pub applications: &'a [Profile],
    /// The requests.
    pub queue: &'a VecDeque<Request>,
}

impl BatchFinish for FinishByApplication<'_> {
    fn of(&self, from: usize, size: usize) -> Nanos {
        let profile = &self.finish.terms.profile;
        self.finish.earliest_start(size) + batch_time(profile, self.applications, self.queue, from, size)
    }

    fn least(&self, size: usize) -> Nanos {
        let quickest = self.applications.iter().map(|own| own.latency(size)).min();
        self.finish.earliest_start(size) + quickest.unwrap_or(Nanos::ZERO)
    }

    fn start(&self, size: usize) -> Nanos {
        self.finish.earliest_start(size)
    }
}

/// Returns what the batch of `size` requests behind the first `from` of a queue takes, by the
/// profiles of the applications: as long as that of the slowest of its own. Where so many do not
/// wait, any may join, and it takes as long as `profile` says at least. O(size).
pub fn batch_time(
    profile: &Profile,
    applications: &[Profile],
    queue: &VecDeque<Request>,
    from: usize,
    size: usize,
) -> Nanos {
    let to = from + size;
    let any =
        if size > profile.max_batch() || to > queue.len() { profile.latency(size) } else { Nanos::ZERO };
    let own = |request: &Request| applications[usize::from(request.application)].latency(size);
    let waiting = queue.range(from.min(queue.len())..to.min(queue.len()));
    if any < Nanos::MAX { waiting.map(own).fold(any, Nanos::max) } else { any }
}

/// Selects from a queue of `len` requests whose deadlines `deadline(0) <= deadline(1) <= …`.
/// `target`: the batch size that the model's rate calls for; `price`: that of
/// [`DropRule::Exchange`], see [`Selection::if_worth`]; 0 never drops for a larger batch, infinity
/// always does. O(log len) and a step per request that joins, under [`DropRule::Timeout`] of those
/// beyond `target` alone; where requests differ, a step per request that would be in time if all of
/// its batch were of the quickest application, and is not.
#[inline(always)]
pub fn select(
    rule: DropRule,
    finish: impl BatchFinish,
    target: usize,
    price: f32,
    len: usize,
    deadline: impl Fn(usize) -> Nanos,
) -> Selection {
    let deadline = &deadline;
    if len == 0 {
        return Selection { dropped: 0, size: 0 };
    }
    // Most often: all that waits can run together.
    if rule != DropRule::Fcfs && finish.of(0, len) <= deadline(0) {
        return Selection { dropped: 0, size: len };
    }
    if rule == DropRule::Fcfs {
        let late = finish.of(0, 1) > deadline(0);
        let size = if late { target.clamp(1, len) } else { grow(finish, 0, 1, len, deadline(0)) };
        return Selection { dropped: 0, size };
    }
    let exchanges = rule == DropRule::Exchange;
    if rule == DropRule::Timeout || exchanges && price == 0.0 {
        return select_all_in_time(finish, target, len, deadline);
    }
    let window = select_window(finish, target, len, deadline);
    if !exchanges || window.dropped == 0 || price == f32::INFINITY {
        return window;
    }
    window.if_worth(select_all_in_time(finish, target, len, deadline), price)
}

/// Selects from a queue that can't run whole.
#[inline]
fn select_window(
    finish: impl BatchFinish,
    target: usize,
    len: usize,
    deadline: &impl Fn(usize) -> Nanos,
) -> Selection {
    let feasible = |from: usize| finish.of(from, len - from) <= deadline(from);
    // Both sides are monotone in `from`, so the longest feasible suffix is found by bisection.
    let suffix_start = partition_point(1, len, |from| !feasible(from));
    let wanted = target.min(len - suffix_start).max(1);
    let needed = finish.least(wanted);
    let mut dropped = partition_point(0, len, |at| deadline(at) < needed);
    while dropped < len && finish.of(dropped, wanted) > deadline(dropped) {
        dropped += 1;
    }
    if dropped == len {
        return Selection { dropped, size: 0 };
    }
    let room = len - dropped;
    Selection { dropped, size: grow(finish, dropped, wanted.min(room), room, deadline(dropped)) }
}

/// [`select_window`] for a target of one: drops nothing that can still be served. The batch is
/// looked for around `guess`. What both have in common stands in each: a function for it, inlined
/// or not, costs a request two to three instructions, or a selection a tenth.
#[inline]
fn select_all_in_time(
    finish: impl BatchFinish,
    guess: usize,
    len: usize,
    deadline: &impl Fn(usize) -> Nanos,
) -> Selection {
    let needed = finish.least(1);
    let mut dropped = partition_point(0, len, |at| deadline(at) < needed);
    while dropped < len && finish.of(dropped, 1) > deadline(dropped) {
        dropped += 1;
    }
    if dropped == len {
        return Selection { dropped, size: 0 };
    }
    let (room, head_deadline) = (len - dropped, deadline(dropped));
    let is_in_time = |size: usize| finish.of(dropped, size) <= head_deadline;
    let guess = guess.clamp(1, room);
    let size = match is_in_time(guess) {
        true => grow(finish, dropped, guess, room, head_deadline),
        false => partition_point(2, guess, is_in_time) - 1,
    };
    Selection { dropped, size }
}

/// What a selection for the only GPU expects of the next batch.
#[derive(Clone, Copy, Debug)]
pub struct Outlook {
    /// What a request that the next batch drops costs, in requests that are dropped now.
    pub price: f32,
    /// The target of the next batch.
    pub target: usize,
    /// The time of the decision.
    pub now: Nanos,
    /// The deadline of a request that comes now.
    pub deadline: Nanos,
    /// The rate at which requests come, per nanosecond.
    pub rate_per_ns: f64,
}

/// The numbers of dropped requests that [`look_ahead`] compares at most.
const COMPARED: usize = 16;

/// Selects for the only GPU from a queue that can't run whole: drops as many more requests than
/// `all`, the selection that drops none that can still be served, as have the fewest dropped by now
/// and by the next batch together. That starts when this one is over, and is selected by
/// [`DropRule::Window`] from what is left and what has come until then, evenly spaced. To drop a
/// request is worth it where this batch becomes so much larger that fewer are too late for the
/// next. O(log² len) for each of at most 17 numbers.
///
/// `deadline` is that of the request at an index of the queue of `len`.
pub fn look_ahead(
    all: Selection,
    finish: impl BatchFinish,
    outlook: Outlook,
    len: usize,
    deadline: impl Fn(usize) -> Nanos,
) -> Selection {
    if all.dropped + all.size == len {
        return all;
    }
    let cost = |one: Selection| {
        one.dropped as f32 + outlook.price * dropped_next(one, finish, outlook, len, &deadline) as f32
    };
    // From here on, all that is left runs together.
    let feasible = |from: usize| finish.of(from, len - from) <= deadline(from);
    let most = partition_point(all.dropped, len - 1, |from| !feasible(from));
    let step = (most - all.dropped).div_ceil(COMPARED).max(1);
    let (mut best, mut least) = (all, cost(all));
    let mut size = all.size;
    for dropped in (all.dropped + step..=most).step_by(step) {
        let room = len - dropped;
        size = grow(finish, dropped, size.min(room), room, deadline(dropped));
        let one = Selection { dropped, size };
        let its = cost(one);
        if its < least {
            (best, least) = (one, its);
        }
    }
    best
}

/// The requests that [`DropRule::Window`] drops for the batch after this one.
fn dropped_next(
    this: Selection,
    finish: impl BatchFinish,
    outlook: Outlook,
    len: usize,
    deadline: &impl Fn(usize) -> Nanos,
) -> usize {
    let from = this.dropped + this.size;
    let (left, over) = (len - from, finish.of(this.dropped, this.size));
    let come = (outlook.rate_per_ns * (over - outlook.now).0 as f64) as usize;
    let of_new = |at: usize| Nanos(((at as f64 + 0.5) / outlook.rate_per_ns) as u64);
    let deadline =
        |at: usize| if at < left { deadline(from + at) } else { outlook.deadline + of_new(at - left) };
    let finished = |size: usize| over + (finish.least(size) - finish.start(size));
    let waiting = left + come;
    if waiting == 0 || finished(waiting) <= deadline(0) {
        return 0;
    }
    let suffix = partition_point(1, waiting, |at| finished(waiting - at) > deadline(at));
    let needed = finished(outlook.target.min(waiting - suffix).max(1));
    partition_point(0, waiting, |at| deadline(at) < needed)
}

/// The largest batch behind the first `from`, from `size` up to `room`, that finishes by the
/// deadline of its head.
fn grow(finish: impl BatchFinish, from: usize, mut size: usize, room: usize, head_deadline: Nanos) -> usize {
    while size < room && finish.of(from, size + 1) <= head_deadline {
        size += 1;
    }
    size
}

/// The first of `from..to` for which `before` is false, `to` if there is none. Always inlined: as a
/// function of its own it loads what `before` captures anew in each step, a fifth of a selection.
#[inline(always)]
pub(crate) fn partition_point(mut from: usize, mut to: usize, before: impl Fn(usize) -> bool) -> usize {
    while from < to {
        let middle = from + (to - from) / 2;
        if before(middle) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

/// The batch size that a model's rate calls for: the largest b with l(b) + b/rate + d_data*b within
/// `budget` = SLO - d_ctrl - d_resp. With n = rate*l(b)/b GPUs, b/rate is l(b)/n, the time between
/// the starts of n staggered GPUs (Symphony, equations 2 and 3) as well as the time in which b
/// requests come when one GPU is more than enough. Without a rate yet: the largest b with l(b) <=
/// SLO/2.
pub fn target_batch(terms: &QueueConfig, rate_rps: f64) -> usize {
    let fits = |size: usize| fits_as_target(terms, rate_rps, size);
    partition_point(1, terms.profile.max_batch() + 1, fits).saturating_sub(1).max(1)
}

/// [`target_batch`], found in two steps where it still is what it was at another rate.
pub(super) fn target_batch_near(terms: &QueueConfig, rate_rps: f64, before: usize) -> usize {
    let fits = |size: usize| fits_as_target(terms, rate_rps, size);
    let largest = terms.profile.max_batch();
    let before = before.min(largest);
    let stays = (before == 1 || fits(before)) && (before == largest || !fits(before + 1));
    if stays { before } else { target_batch(terms, rate_rps) }
}

/// Whether a batch of `size` is gathered, fetched and run within the budget of [`target_batch`].
fn fits_as_target(terms: &QueueConfig, rate_rps: f64, size: usize) -> bool {
    let run = terms.profile.latency(size);
    if rate_rps <= 0.0 {
        return run <= Nanos(terms.slo.0 / 2);
    }
    let gather = Nanos::from_secs_f64(size as f64 / rate_rps);
    let fetch = Nanos(terms.network.data_per_request.0 * size as u64);
    run + gather + fetch <= terms.slo - terms.network.control - terms.network.result
}
