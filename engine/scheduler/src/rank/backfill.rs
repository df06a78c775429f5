//! Backfilling: lower-class batches run if they are over before a queue of a class above needs
//! their GPU. Owned by a [`RankState`](super::RankState) whose models are of several classes;
//! others have none and pay nothing.
//!
//! Each queue of a class above reserves: it says when its next batch has to start at the earliest
//! ([`Reservation`]), once for each new head of its queue, and how far apart its batches start. A
//! queue that is empty says how long after a request that comes it will need a GPU: that
//! request may come at any moment. So what is needed in the time to come is a list of starts, and
//! what there will be is known too: GPUs that idle, and GPUs that finish what they have. Going
//! through both in the order of time, each start takes a GPU; the first that would find none, were
//! one more GPU taken by a lower batch, is when that batch has to be over.
//!
//! A look ahead takes up to [`MOST_STARTS`] steps for each class, of four updates of a [`MinTree`]
//! each, some 50 us together. Looks in vain have a [`LookBudget`]: O(log n) for each matching, and
//! a twentieth of the time.

use super::look_budget::{LookBudget, MOST_STARTS};
use super::min_tree::MinTree;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::Class;

/// Candidates of a class that are looked at for one GPU: where that many can't run now, the class
/// waits.
const MOST_PASSED_OVER: usize = 64;

/// The bounds of the batches of a lower class's queue, sent before its first candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchBounds {
    /// The time that a GPU must be free for: l(1), and what threads are late by.
    pub shortest: Nanos,
    /// l(b) of its largest batch.
    pub longest: Nanos,
    /// How long after a request came it needs a GPU: to protect it from the classes below its own.
    pub patience: Nanos,
}

impl BatchBounds {
    /// The bounds of a queue that has sent none: no GPU is free for that time.
    const UNKNOWN: BatchBounds =
        BatchBounds { shortest: Nanos::MAX, longest: Nanos::ZERO, patience: Nanos::MAX };
}

/// The time for which a queue reserves a GPU: its next batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// When the batch that waits has to start at the earliest; where none waits, how long after a
    /// request that comes.
    pub at: Nanos,
    /// Whether none waits.
    pub silent: bool,
    /// The time between the starts of its batches; [`Nanos::MAX`] where it has hardly any requests.
    pub every: Nanos,
}

impl Reservation {
    /// The reservation of a vacant model slot.
    pub const NEVER: Reservation = Reservation { at: Nanos::MAX, silent: true, every: Nanos::MAX };
}

/// GPUs that must be left over after so many starts, since batches may start sooner than was
/// reserved: half of the square root of their number, found by trial (docs/scheduling.md).
fn margin(starts: usize) -> usize {
    (4 * starts).isqrt().div_ceil(4)
}

/// Backfill that have one below them.
const UPPER: usize = Class::COUNT - 1;

/// See the module's description.
pub(super) struct Backfill {
    /// The class of each model's requests.
    classes: Vec<Class>,
    bounds: Vec<BatchBounds>,
    /// `latest` of each lower model's candidate, by class, from class 1.
    waiting: [MinTree; UPPER],
    /// When each model of a class with classes below it, and with requests that wait, starts its
    /// next batch.
    starts: [MinTree; UPPER],
    /// The starts of queues in which no request waits, as the time from now.
    silent: [MinTree; UPPER],
    every: Vec<Nanos>,
    /// Starts put into the trees while looking ahead, to be taken out again: class, model, and what
    /// was there.
    looked_at: Vec<(usize, usize, Nanos, Nanos)>,
    /// GPUs put into the tree while looking ahead, to be taken out again.
    freed: Vec<(usize, Nanos)>,
    /// Candidates that can't run now, taken out of the trees and to be put back.
    passed_over: Vec<(usize, usize, Nanos)>,
    /// What looks ahead may still cost.
    pub(super) budget: LookBudget,
}

/// A lower candidate that can run now.
pub(super) struct Chosen {
    pub(super) model: usize,
    /// The time by which its batch has to be over.
    pub(super) until: Nanos,
}

impl Backfill {
    /// The state of queues of these classes that have sent nothing.
    pub(super) fn new(classes: Vec<Class>) -> Backfill {
        let tree = || core::array::from_fn(|_| MinTree::new(classes.len()));
        Backfill {
            bounds: vec![BatchBounds::UNKNOWN; classes.len()],
            waiting: tree(),
            starts: tree(),
            silent: tree(),
            every: vec![Nanos::MAX; classes.len()],
            looked_at: Vec::with_capacity(MOST_STARTS),
            freed: Vec::with_capacity(MOST_STARTS),
            passed_over: Vec::with_capacity(UPPER * MOST_PASSED_OVER),
            budget: LookBudget::default(),
            classes,
        }
    }

    #[inline]
    fn class(&self, model: usize) -> usize {
        usize::from(self.classes[model].number())
    }

    /// Whether the model's candidates only use what others leave.
    #[inline]
    pub(super) fn is_lower(&self, model: usize) -> bool {
        self.classes[model] > Class::HIGHEST
    }

    /// A lower model has a candidate, which must start by `latest`; [`Nanos::MAX`]: it has none any
    /// more.
    pub(super) fn set_waiting(&mut self, model: usize, latest: Nanos) {
        let class = self.class(model);
        self.waiting[class - 1].set(model, latest);
    }

    /// The time by which a lower queue's candidate must start; [`Nanos::MAX`] if none waits.
    pub(super) fn waiting(&self, model: usize) -> Nanos {
        self.waiting[self.class(model) - 1].get(model)
    }

    /// Sets the bounds of a lower queue. Nothing is known of its batches to come but that there may
    /// be some.
    pub(super) fn set_bounds(&mut self, model: usize, bounds: BatchBounds) {
        self.bounds[model] = bounds;
        self.set_reservation(model, Reservation { at: bounds.patience, silent: true, every: Nanos::MAX });
    }

    /// The bounds of a lower queue, if it has sent them.
    pub(super) fn bounds(&self, model: usize) -> Option<BatchBounds> {
        let bounds = self.bounds[model];
        (bounds != BatchBounds::UNKNOWN).then_some(bounds)
    }

    /// The reservation of a queue; none where it is of the lowest class, or has sent none.
    pub(super) fn reservation(&self, model: usize) -> Option<Reservation> {
        let class = self.class(model);
        let (starts, silent) = (self.starts.get(class)?.get(model), self.silent.get(class)?.get(model));
        let at = starts.min(silent);
        let reservation = Reservation { at, silent: starts == Nanos::MAX, every: self.every[model] };
        (at < Nanos::MAX).then_some(reservation)
    }

    /// Sets the reservation of a queue.
    pub(super) fn set_reservation(&mut self, model: usize, reservation: Reservation) {
        let class = self.class(model);
        if class < UPPER {
            let (of, other) = if reservation.silent {
                (&mut self.silent[class], &mut self.starts[class])
            } else {
                (&mut self.starts[class], &mut self.silent[class])
            };
            other.set(model, Nanos::MAX);
            of.set(model, reservation.at);
            self.every[model] = reservation.every;
        }
    }

    /// Whether a lower model has a candidate.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|tree| tree.min_key() < Nanos::MAX)
    }

    /// The candidate to be granted one of `idle` GPUs at `now`: of the highest class, of that the
    /// one that must start first, among those that can be over in time. `free`: when each GPU that
    /// can be granted is free.
    pub(super) fn choose(
        &mut self,
        now: Nanos,
        delay: &[Nanos],
        idle: usize,
        free: &mut MinTree,
    ) -> Option<Chosen> {
        let (mut chosen, mut steps) = (None, 1);
        for class in 1..Class::COUNT {
            let Some(longest) = self.longest_waiting(class) else { continue };
            let until = self.needed_again(class, now, now + longest, idle, free);
            steps += self.put_back(free);
            chosen = self.first_within(class, now, delay, until);
            if chosen.is_some() {
                break;
            }
        }
        steps += self.passed_over.len();
        for (class, model, latest) in self.passed_over.drain(..) {
            self.waiting[class - 1].set(model, latest);
        }
        if chosen.is_none() {
            self.budget.spend(now, steps);
        }
        chosen.map(|(model, until)| Chosen { model, until })
    }

    /// The longest time that the first candidate of a class can run.
    fn longest_waiting(&self, class: usize) -> Option<Nanos> {
        let (_, model) = self.waiting[class - 1].min()?;
        Some(self.bounds[model].longest)
    }

    fn first_within(
        &mut self,
        class: usize,
        now: Nanos,
        delay: &[Nanos],
        until: Nanos,
    ) -> Option<(usize, Nanos)> {
        while let Some((latest, model)) = self.waiting[class - 1].min() {
            let (start, shortest) = (now + delay[model], self.bounds[model].shortest);
            if shortest < Nanos::MAX && start + shortest <= until && start <= latest {
                return Some((model, until));
            }
            self.waiting[class - 1].set(model, Nanos::MAX);
            self.passed_over.push((class, model, latest));
            if self.passed_over.len() >= class * MOST_PASSED_OVER {
                break;
            }
        }
        None
    }

    /// When a GPU that is taken now for this class would be needed by one above; [`Nanos::MAX`] if
    /// not before `horizon`. What it has changed in the trees is to be put back.
    fn needed_again(
        &mut self,
        class: usize,
        now: Nanos,
        horizon: Nanos,
        idle: usize,
        free: &mut MinTree,
    ) -> Nanos {
        let mut spare = idle - 1;
        let mut until = Nanos::MAX;
        for step in 0..MOST_STARTS {
            let Some((at, of, model)) = self.first_start(class, now) else { break };
            if at >= horizon {
                break;
            }
            spare += self.freed_by(at, now, free);
            if spare <= margin(step) || step + 1 == MOST_STARTS {
                until = at;
                break;
            }
            spare -= 1;
            let before = (self.starts[of].get(model), self.silent[of].get(model));
            self.looked_at.push((of, model, before.0, before.1));
            self.starts[of].set(model, at + self.every[model]);
            self.silent[of].set(model, Nanos::MAX);
        }
        until
    }

    /// Puts the trees back to what they were before a look ahead. Returns its steps.
    fn put_back(&mut self, free: &mut MinTree) -> usize {
        let steps = self.looked_at.len() + self.freed.len();
        for (of, model, start, silent) in self.looked_at.drain(..).rev() {
            self.starts[of].set(model, start);
            self.silent[of].set(model, silent);
        }
        for (gpu, free_at) in self.freed.drain(..) {
            free.set(gpu, free_at);
        }
        steps
    }

    /// The first start of the classes above `class`: when, and whose.
    fn first_start(&self, class: usize, now: Nanos) -> Option<(Nanos, usize, usize)> {
        let heads = (0..class.min(UPPER)).filter_map(|of| {
            let start = self.starts[of].min().map(|(at, model)| (at.max(now), of, model));
            let silent = self.silent[of].min().map(|(after, model)| (now + after, of, model));
            start.into_iter().chain(silent).min()
        });
        heads.min()
    }

    /// How many GPUs that are busy now are free by `at`, and have not been counted.
    fn freed_by(&mut self, at: Nanos, now: Nanos, free: &mut MinTree) -> usize {
        let mut freed = 0;
        while let Some((free_at, gpu)) = free.min().filter(|&(free_at, _)| free_at <= at)
            && self.freed.len() < MOST_STARTS
        {
            freed += usize::from(free_at > now);
            self.freed.push((gpu, free_at));
            free.set(gpu, Nanos::MAX);
        }
        freed
    }
}
