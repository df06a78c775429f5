//! The counters of the pinned threads: plain numbers that a thread adds to, and stores once a duty
//! cycle where others can read them. Each thread has cache lines of its own, written by no other,
//! so counting needs no atomic addition, and a reader delays the thread only for the moment in
//! which a line is fetched.
//!
//! Owned by the threads' agents; read through [`Counters`].

pub mod allowed_delays;
pub mod count;
pub mod executions;
pub mod frontends;
pub mod rolling_profiles;
pub mod run_times;
pub mod tuning;

use crate::runtime::counters::allowed_delays::AllowedDelays;
use crate::runtime::counters::executions::Executions;
use crate::runtime::counters::frontends::{FrontendCounts, FrontendTotals};
use crate::runtime::counters::rolling_profiles::RollingProfiles;
use crate::runtime::counters::run_times::RunTimeBoard;
use crate::runtime::counters::tuning::TuningCounts;
use bytemuck::{Pod, Zeroable};
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use symphony_transport::Nanos;

/// The duty cycles of a thread.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct DutyCycles {
    /// The number of duty cycles.
    pub all: u64,
    /// The number of duty cycles that found work.
    pub busy: u64,
    /// The length of the longest duty cycle that found work, in nanoseconds.
    pub longest_ns: u64,
}

/// The counters of a ModelThread, from its start on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ModelTally {
    /// The thread's duty cycles.
    pub cycles: DutyCycles,
    /// The number of requests taken from the rings.
    pub requests: u64,
    /// The number of times that a model was re-selected since requests had come for it: once for
    /// all requests of a duty cycle.
    pub settled: u64,
    /// The number of batches sent to backends.
    pub batches: u64,
    /// The number of requests in those batches.
    pub batched_requests: u64,
    /// The number of requests dropped since no good batch could meet their deadline.
    pub dropped_in_queue: u64,
    /// The number of requests refused since their model's queue was full.
    pub overloaded: u64,
    /// The number of requests that their clients cancelled.
    pub withdrawn: u64,
    /// The number of requests ended by the engine's stop.
    pub stopped: u64,
    /// The number of GPUs granted.
    pub grants: u64,
    /// The number of grants given back without a batch.
    pub grants_unused: u64,
    /// The number of timers that came due.
    pub timers: u64,
    /// The most requests seen waiting in a ring from a frontend.
    pub request_ring_high: u64,
    /// The most grants seen waiting in a ring from a RankThread.
    pub grant_ring_high: u64,
}

/// The counters of a RankThread, from its start on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RankTally {
    /// The thread's duty cycles.
    pub cycles: DutyCycles,
    /// The number of messages received from ModelThreads: ready, withdrawn, reports.
    pub messages: u64,
    /// The number of GPUs granted.
    pub grants: u64,
    /// The number of completions received from backends.
    pub completions: u64,
    /// The number of completions that had not come a quarter of a second after their backend sent
    /// them.
    pub lost_completions: u64,
    /// The number of completions that came a second time.
    pub doubled_completions: u64,
    /// The number of times that matching was repeated since a GPU was about to be free.
    pub timers: u64,
    /// The number of GPUs granted or running a batch as the duty cycle ended.
    pub gpus_busy: u64,
    /// The most messages seen waiting in a ring from a ModelThread.
    pub message_ring_high: u64,
    /// The most completions seen waiting in a ring from a backend.
    pub completion_ring_high: u64,
}

/// The number of buckets of a [`Lateness`]: the last one has no upper end.
pub const LATENESS_BUCKETS: usize = 28;

/// A histogram of latenesses, by powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Lateness {
    /// The counts: `buckets[i]` is of latenesses above [`Lateness::bound`]`(i - 1)` and at most
    /// [`Lateness::bound`]`(i)`.
    pub buckets: [u64; LATENESS_BUCKETS],
    /// The sum of all latenesses, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness::zeroed()
    }
}

impl Lateness {
    /// The binary logarithm of the first bucket's bound, 256 ns.
    const FIRST_BITS: u32 = 8;

    /// Returns the upper bound of bucket `at`: 256 ns, 512 ns, …; 17 s is the last.
    pub fn bound(at: usize) -> Nanos {
        if at + 1 >= LATENESS_BUCKETS { Nanos::MAX } else { Nanos(1 << (at as u32 + Lateness::FIRST_BITS)) }
    }

    /// Counts an event that was this late.
    #[inline]
    pub fn count(&mut self, late: Nanos) {
        let bits = u64::BITS - late.0.saturating_sub(1).leading_zeros();
        let at = bits.saturating_sub(Lateness::FIRST_BITS) as usize;
        self.buckets[at.min(LATENESS_BUCKETS - 1)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(late.0);
    }

    /// Returns the number of events counted.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// The counters of a backend thread, from its start on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BackendTally {
    /// The thread's duty cycles.
    pub cycles: DutyCycles,
    /// The number of batches run.
    pub batches: u64,
    /// The number of batches that could not start in time.
    pub cancelled: u64,
    /// The number of times that its thread was given up, in a batch that hung or since it died.
    pub hung: u64,
    /// The memory that the executor's models take, in bytes.
    pub model_bytes: u64,
    /// The lateness of batches' starts after exec_at.
    pub start: Lateness,
    /// The lateness of batches' ends after exec_at + l(b).
    pub finish: Lateness,
}

/// The counters of a thread, which are stored as words of 64 bits.
pub(crate) trait Tally: Pod + Default {
    /// Returns the thread's duty cycles.
    fn cycles(&mut self) -> &mut DutyCycles;
}

impl Tally for ModelTally {
    fn cycles(&mut self) -> &mut DutyCycles {
        &mut self.cycles
    }
}

impl Tally for RankTally {
    fn cycles(&mut self) -> &mut DutyCycles {
        &mut self.cycles
    }
}

impl Tally for BackendTally {
    fn cycles(&mut self) -> &mut DutyCycles {
        &mut self.cycles
    }
}

/// The number of words in a pair of cache lines, which [`CachePadded`] keeps apart.
const WORDS_PER_BLOCK: usize = 16;

/// The memory through which a thread publishes its tally.
#[derive(Debug)]
pub(crate) struct Board<T> {
    blocks: Box<[CachePadded<[AtomicU64; WORDS_PER_BLOCK]>]>,
    holds: PhantomData<fn() -> T>,
}

impl<T: Tally> Board<T> {
    /// Makes a board of zeros.
    pub(crate) fn new() -> Arc<Board<T>> {
        const { assert!(size_of::<T>().is_multiple_of(size_of::<u64>())) };
        let blocks = (size_of::<T>() / size_of::<u64>()).div_ceil(WORDS_PER_BLOCK);
        let blocks = (0..blocks).map(|_| CachePadded::new([const { AtomicU64::new(0) }; WORDS_PER_BLOCK]));
        Arc::new(Board { blocks: blocks.collect(), holds: PhantomData })
    }

    /// Stores the tally. Called by one thread only: each number is consistent, and all together are
    /// of one duty cycle or of two consecutive ones.
    #[inline]
    pub(crate) fn publish(&self, tally: &T) {
        let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(tally));
        for (block, words) in self.blocks.iter().zip(words.chunks(WORDS_PER_BLOCK)) {
            for (to, &word) in block.iter().zip(words) {
                // Relaxed: the numbers order nothing.
                to.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Returns the tally as it was stored last.
    pub(crate) fn read(&self) -> T {
        let mut tally = T::default();
        let words: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut tally));
        for (block, words) in self.blocks.iter().zip(words.chunks_mut(WORDS_PER_BLOCK)) {
            for (from, word) in block.iter().zip(words) {
                *word = from.load(Ordering::Relaxed);
            }
        }
        tally
    }
}

/// The interval between two publications by a thread, and so the age of what is read, at most.
const PUBLISHED_EVERY: Nanos = Nanos::from_micros(20);

/// The counters of a thread, and the board on which it publishes them.
pub(crate) struct Counting<T> {
    /// The numbers, added to by their owner.
    pub(crate) tally: T,
    board: Arc<Board<T>>,
    /// The start of the current duty cycle, once it has found work; [`Nanos::MAX`] before.
    busy_since: Nanos,
    /// The time of the next publication.
    publish_at: Nanos,
}

impl<T: Tally> Counting<T> {
    pub(crate) fn new(board: Arc<Board<T>>) -> Counting<T> {
        Counting { tally: T::default(), board, busy_since: Nanos::MAX, publish_at: Nanos::ZERO }
    }

    /// Makes counters that are not published before the thread ends.
    pub(crate) fn unpublished() -> Counting<T> {
        Counting { publish_at: Nanos::MAX, ..Counting::new(Board::new()) }
    }

    /// Begins a duty cycle. The one before has lasted until now, if it had work: an idle thread may
    /// have slept.
    #[inline]
    pub(crate) fn cycle_begins(&mut self, now: Nanos) {
        let lasted = now - self.busy_since;
        let cycles = self.tally.cycles();
        cycles.longest_ns = cycles.longest_ns.max(lasted.0);
        cycles.all += 1;
    }

    /// Ends the duty cycle that began at `now` and found this much work. Publishes the numbers if
    /// that is due.
    #[inline]
    pub(crate) fn cycle_ends(&mut self, now: Nanos, work: usize) {
        let found = work > 0;
        self.tally.cycles().busy += u64::from(found);
        self.busy_since = if found { now } else { Nanos::MAX };
        if now >= self.publish_at {
            self.publish_at = now + PUBLISHED_EVERY;
            self.publish();
        }
    }

    /// Publishes the numbers. It must be called when the thread ends, too.
    #[cold]
    pub(crate) fn publish(&self) {
        self.board.publish(&self.tally);
    }
}

/// Raises a high-water mark.
#[inline]
pub(crate) fn raise(mark: &mut u64, level: usize) {
    *mark = (*mark).max(level as u64);
}

/// The counters of all threads, readable from anywhere at any time. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    models: Arc<[Arc<Board<ModelTally>>]>,
    ranks: Arc<[Arc<Board<RankTally>>]>,
    backends: Arc<[Arc<Board<BackendTally>>]>,
    backend_roles: Arc<[String]>,
    executions: Executions,
    frontends: Arc<[Arc<FrontendCounts>]>,
    tuning: Arc<TuningCounts>,
    delays: Arc<AllowedDelays>,
    rolling: Arc<RollingProfiles>,
    run_times: Arc<RunTimeBoard>,
}

/// The counters of all threads at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CountersSnapshot {
    /// The counters of each ModelThread.
    pub models: Vec<ModelTally>,
    /// The counters of each RankThread.
    pub ranks: Vec<RankTally>,
    /// The counters of each backend thread, with the name of its role.
    pub backends: Vec<(String, BackendTally)>,
}

impl Counters {
    /// Makes boards for these numbers of ModelThreads and RankThreads and for these backends, each
    /// with its role's name and its GPUs.
    pub(crate) fn new(models: usize, ranks: usize, backends: Vec<(String, Range<u32>)>) -> Counters {
        let (backend_roles, gpus): (Vec<String>, Vec<Range<u32>>) = backends.into_iter().unzip();
        Counters {
            executions: Executions::new(gpus.into_iter()),
            models: (0..models).map(|_| Board::new()).collect(),
            ranks: (0..ranks).map(|_| Board::new()).collect(),
            backends: backend_roles.iter().map(|_| Board::new()).collect(),
            backend_roles: backend_roles.into(),
            frontends: Arc::default(),
            tuning: Arc::default(),
            delays: Arc::default(),
            rolling: Arc::default(),
            run_times: Arc::default(),
        }
    }

    /// Adds the counts of these frontends.
    pub(crate) fn with_frontends(self, frontends: impl Iterator<Item = Arc<FrontendCounts>>) -> Counters {
        Counters { frontends: frontends.collect(), ..self }
    }

    pub(crate) fn of_models(&self, at: usize) -> Counting<ModelTally> {
        Counting::new(Arc::clone(&self.models[at]))
    }

    pub(crate) fn of_rank(&self, at: usize) -> Counting<RankTally> {
        Counting::new(Arc::clone(&self.ranks[at]))
    }

    pub(crate) fn of_backend(&self, at: usize) -> Counting<BackendTally> {
        Counting::new(Arc::clone(&self.backends[at]))
    }

    /// Returns the executed batches of the backends, by model and by GPU.
    pub fn executions(&self) -> &Executions {
        &self.executions
    }

    /// Returns the delays of the network that the policy allows for.
    pub fn allowed_delays(&self) -> &Arc<AllowedDelays> {
        &self.delays
    }

    /// Returns the run times that a policy has learnt.
    pub fn run_times(&self) -> &Arc<RunTimeBoard> {
        &self.run_times
    }

    /// Returns the rolling profiles.
    pub fn rolling_profiles(&self) -> &Arc<RollingProfiles> {
        &self.rolling
    }

    /// Returns the counts of the tuner's thread.
    pub fn tuning(&self) -> &Arc<TuningCounts> {
        &self.tuning
    }

    /// Returns the counts of all frontends together.
    pub fn frontends(&self) -> FrontendTotals {
        self.frontends.iter().fold(FrontendTotals::default(), |sum, counts| sum.add(counts))
    }

    /// Reads all counters. Numbers of different threads are of slightly different moments.
    pub fn snapshot(&self) -> CountersSnapshot {
        let roles = self.backend_roles.iter().cloned();
        CountersSnapshot {
            models: self.models.iter().map(|board| board.read()).collect(),
            ranks: self.ranks.iter().map(|board| board.read()).collect(),
            backends: roles.zip(self.backends.iter().map(|board| board.read())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_read() {
        let board = Board::<BackendTally>::new();
        let mut counting = Counting::new(Arc::clone(&board));
        counting.cycle_begins(Nanos(10));
        counting.tally.batches = 7;
        counting.tally.finish.count(Nanos(u64::MAX));
        counting.cycle_ends(Nanos(10), 1);
        assert_eq!(board.read(), counting.tally);
        counting.cycle_begins(Nanos(110));
        assert_eq!(counting.tally.cycles, DutyCycles { all: 2, busy: 1, longest_ns: 100 });
    }

    #[test]
    fn numbers_are_published_now_and_then_whether_there_is_work_or_not() {
        let board = Board::<RankTally>::new();
        let mut counting = Counting::new(Arc::clone(&board));
        let mut cycle = |now: Nanos, work| {
            counting.cycle_begins(now);
            counting.cycle_ends(now, work);
            board.read().cycles.all
        };
        assert_eq!(cycle(Nanos(1), 1), 1);
        assert_eq!(cycle(Nanos(2), 1), 1);
        assert_eq!(cycle(Nanos(1) + PUBLISHED_EVERY, 0), 3);
    }

    #[test]
    fn lateness_is_counted_under_the_least_bound_that_holds_it() {
        for (late, bucket) in [(0, 0), (1, 0), (256, 0), (257, 1), (512, 1), (513, 2), (1 << 34, 26)] {
            let mut lateness = Lateness::default();
            lateness.count(Nanos(late));
            assert_eq!(lateness.buckets[bucket], 1, "{late} ns");
            assert!(Nanos(late) <= Lateness::bound(bucket));
            assert!(bucket == 0 || Nanos(late) > Lateness::bound(bucket - 1));
        }
        let mut lateness = Lateness::default();
        lateness.count(Nanos::MAX);
        assert_eq!((lateness.buckets[LATENESS_BUCKETS - 1], lateness.total()), (1, 1));
    }
}
