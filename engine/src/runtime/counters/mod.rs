//! What the pinned threads count: plain numbers that a thread adds to as it goes, and stores once a
//! turn where others can read them. Each thread has cache lines of its own, written by nobody else,
//! so counting needs no atomic addition and reading disturbs nobody for more than the moment in
//! which a line is fetched.
//!
//! Owned by the threads' agents; read through [`Counters`] by whoever shows them.

pub mod count;
pub mod executions;

use crate::runtime::counters::executions::Executions;
use bytemuck::{Pod, Zeroable};
use crossbeam_utils::CachePadded;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use symphony_transport::Nanos;

/// DutyCycles of any thread.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct DutyCycles {
    /// DutyCycles of the loop.
    pub all: u64,
    /// Those that found work.
    pub busy: u64,
    /// The longest turn that found work, in nanoseconds.
    pub longest_ns: u64,
}

/// What a ModelThread counts, from its start on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ModelTally {
    /// Its turns.
    pub turns: DutyCycles,
    /// Requests taken from the rings.
    pub requests: u64,
    /// Times that a model was re-selected since requests had come for it: once for all requests of
    /// a turn.
    pub settled: u64,
    /// Batches sent to backends.
    pub batches: u64,
    /// Requests in them.
    pub batched_requests: u64,
    /// Requests given up since no good batch could meet their deadline.
    pub dropped_in_queue: u64,
    /// Requests refused since their model's queue was full.
    pub overloaded: u64,
    /// Requests that their clients took back.
    pub withdrawn: u64,
    /// Requests ended by the engine's stop.
    pub stopped: u64,
    /// GPUs granted.
    pub grants: u64,
    /// Those given back without a batch.
    pub grants_unused: u64,
    /// Timers that came due.
    pub timers: u64,
    /// The most requests seen waiting in a ring from a frontend.
    pub request_ring_high: u64,
    /// The most grants seen waiting in a ring from a RankThread.
    pub grant_ring_high: u64,
}

/// What a RankThread counts, from its start on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RankTally {
    /// Its turns.
    pub turns: DutyCycles,
    /// Words heard from ModelThreads: ready, withdrawn, reports.
    pub words: u64,
    /// GPUs granted.
    pub grants: u64,
    /// Completions heard from backends.
    pub completions: u64,
    /// Times that matching was looked at again since a GPU was about to be free.
    pub timers: u64,
    /// GPUs granted or running a batch as the turn ended.
    pub gpus_busy: u64,
    /// The most words seen waiting in a ring from a ModelThread.
    pub word_ring_high: u64,
    /// The most completions seen waiting in a ring from a backend.
    pub completion_ring_high: u64,
}

/// Buckets of a [`Lateness`]: the last one has no upper end.
pub const LATENESS_BUCKETS: usize = 28;

/// How late something was, counted by powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Lateness {
    /// `buckets[i]` counts what was later than that of `i - 1` allows and at most
    /// [`Lateness::bound`]`(i)`.
    pub buckets: [u64; LATENESS_BUCKETS],
    /// All of it together, in nanoseconds.
    pub sum_ns: u64,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness::zeroed()
    }
}

impl Lateness {
    /// Below this many nanoseconds everything is one bucket: 256.
    const FIRST_BITS: u32 = 8;

    /// What bucket `at` counts at most: 256 ns, 512 ns, …; 17 s is the last that has a bound.
    pub fn bound(at: usize) -> Nanos {
        if at + 1 >= LATENESS_BUCKETS { Nanos::MAX } else { Nanos(1 << (at as u32 + Lateness::FIRST_BITS)) }
    }

    /// Counts one that was this late.
    #[inline]
    pub fn count(&mut self, late: Nanos) {
        let bits = u64::BITS - late.0.saturating_sub(1).leading_zeros();
        let at = bits.saturating_sub(Lateness::FIRST_BITS) as usize;
        self.buckets[at.min(LATENESS_BUCKETS - 1)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(late.0);
    }

    /// How many were counted.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// What a backend thread counts, from its start on.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BackendTally {
    /// Its turns.
    pub turns: DutyCycles,
    /// Batches run.
    pub batches: u64,
    /// Batches that could not start in time.
    pub cancelled: u64,
    /// How long after exec_at batches started.
    pub start: Lateness,
    /// How long after exec_at + l(b) batches finished.
    pub finish: Lateness,
}

/// A tally as its words, which is how it is stored.
pub(crate) trait Tally: Pod + Default {
    /// Its turns.
    fn turns(&mut self) -> &mut DutyCycles;
}

impl Tally for ModelTally {
    fn turns(&mut self) -> &mut DutyCycles {
        &mut self.turns
    }
}

impl Tally for RankTally {
    fn turns(&mut self) -> &mut DutyCycles {
        &mut self.turns
    }
}

impl Tally for BackendTally {
    fn turns(&mut self) -> &mut DutyCycles {
        &mut self.turns
    }
}

/// Words in a pair of cache lines, which is what [`CachePadded`] keeps apart.
const WORDS_PER_BLOCK: usize = 16;

/// Where a thread stores its tally and others read it.
#[derive(Debug)]
pub(crate) struct Board<T> {
    blocks: Box<[CachePadded<[AtomicU64; WORDS_PER_BLOCK]>]>,
    holds: PhantomData<fn() -> T>,
}

impl<T: Tally> Board<T> {
    /// All zero.
    pub(crate) fn new() -> Arc<Board<T>> {
        const { assert!(size_of::<T>().is_multiple_of(size_of::<u64>())) };
        let blocks = (size_of::<T>() / size_of::<u64>()).div_ceil(WORDS_PER_BLOCK);
        let blocks = (0..blocks).map(|_| CachePadded::new([const { AtomicU64::new(0) }; WORDS_PER_BLOCK]));
        Arc::new(Board { blocks: blocks.collect(), holds: PhantomData })
    }

    /// Stores the tally. Called by one thread only: each number is right on its own, all together
    /// are of one turn or of two that follow each other.
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

    /// The tally as it was stored last.
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

/// Between two publications by a thread: numbers that are read are at most so old.
const PUBLISHED_EVERY: Nanos = Nanos::from_micros(20);

/// A thread's own numbers, and where it publishes them.
pub(crate) struct Counting<T> {
    /// The numbers, added to by their owner.
    pub(crate) tally: T,
    board: Arc<Board<T>>,
    /// When the turn under way began, once it has found work; [`Nanos::MAX`] before.
    busy_since: Nanos,
    /// When to publish again.
    publish_at: Nanos,
}

impl<T: Tally> Counting<T> {
    pub(crate) fn new(board: Arc<Board<T>>) -> Counting<T> {
        Counting { tally: T::default(), board, busy_since: Nanos::MAX, publish_at: Nanos::ZERO }
    }

    /// Counts that nobody reads: never published before the thread ends.
    pub(crate) fn unseen() -> Counting<T> {
        Counting { publish_at: Nanos::MAX, ..Counting::new(Board::new()) }
    }

    /// A turn begins. The turn before it has lasted until now, if it had work: an idle thread may
    /// have slept.
    #[inline]
    pub(crate) fn turn_begins(&mut self, now: Nanos) {
        let lasted = now - self.busy_since;
        let turns = self.tally.turns();
        turns.longest_ns = turns.longest_ns.max(lasted.0);
        turns.all += 1;
    }

    /// The turn that began at `now` has found this much work. Publishes the numbers if it is time
    /// to.
    #[inline]
    pub(crate) fn turn_ends(&mut self, now: Nanos, work: usize) {
        let found = work > 0;
        self.tally.turns().busy += u64::from(found);
        self.busy_since = if found { now } else { Nanos::MAX };
        if now >= self.publish_at {
            self.publish_at = now + PUBLISHED_EVERY;
            self.publish();
        }
    }

    /// Publishes the numbers: also when the thread ends.
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

/// Every thread's numbers, readable from anywhere at any time. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    models: Arc<[Arc<Board<ModelTally>>]>,
    ranks: Arc<[Arc<Board<RankTally>>]>,
    backends: Arc<[Arc<Board<BackendTally>>]>,
    backend_roles: Arc<[String]>,
    executions: Executions,
}

/// Every thread's numbers as they were read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CountersSnapshot {
    /// By ModelThread.
    pub models: Vec<ModelTally>,
    /// By RankThread.
    pub ranks: Vec<RankTally>,
    /// By backend thread, with its role's name.
    pub backends: Vec<(String, BackendTally)>,
}

impl Counters {
    /// Boards for so many ModelThreads and RankThreads and for these backends, each with its role's
    /// name and its GPUs.
    pub(crate) fn new(models: usize, ranks: usize, backends: Vec<(String, Range<u32>)>) -> Counters {
        let (backend_roles, gpus): (Vec<String>, Vec<Range<u32>>) = backends.into_iter().unzip();
        Counters {
            executions: Executions::new(gpus.into_iter()),
            models: (0..models).map(|_| Board::new()).collect(),
            ranks: (0..ranks).map(|_| Board::new()).collect(),
            backends: backend_roles.iter().map(|_| Board::new()).collect(),
            backend_roles: backend_roles.into(),
        }
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

    /// What the backends have run, by model and by GPU.
    pub fn executions(&self) -> &Executions {
        &self.executions
    }

    /// Reads all of them. Numbers of different threads are of slightly different moments.
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
        counting.turn_begins(Nanos(10));
        counting.tally.batches = 7;
        counting.tally.finish.count(Nanos(u64::MAX));
        counting.turn_ends(Nanos(10), 1);
        assert_eq!(board.read(), counting.tally);
        counting.turn_begins(Nanos(110));
        assert_eq!(counting.tally.turns, DutyCycles { all: 2, busy: 1, longest_ns: 100 });
    }

    #[test]
    fn numbers_are_published_now_and_then_whether_there_is_work_or_not() {
        let board = Board::<RankTally>::new();
        let mut counting = Counting::new(Arc::clone(&board));
        let mut turn = |now: Nanos, work| {
            counting.turn_begins(now);
            counting.turn_ends(now, work);
            board.read().turns.all
        };
        assert_eq!(turn(Nanos(1), 1), 1);
        assert_eq!(turn(Nanos(2), 1), 1);
        assert_eq!(turn(Nanos(1) + PUBLISHED_EVERY, 0), 3);
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
