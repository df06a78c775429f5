//! The batches that each backend thread has run: counts by model and by GPU, and the last batches
//! of its first GPUs. A backend thread is the only one that sees a batch's true start and end, once
//! each, so its counts are exact whatever sent the requests. The thread stores a few words of its
//! own per batch; readers disturb it no further.

use crate::runtime::counters::count::Count;
use bytemuck::Zeroable;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use symphony_scheduler::limits;
use symphony_scheduler::profile::SIZE_BOUNDS;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, GpuId, ModelId};

/// The number of GPUs of a backend thread whose batches are kept one by one. GPUs are granted
/// lowest number first, so these are the busiest.
pub const TRACED_GPUS: usize = 64;

/// The number of batches kept for each of these: some seconds of batches of a few milliseconds.
const BATCHES_PER_GPU: usize = 256;

/// The counts of one model on a backend thread.
#[derive(Debug, Zeroable)]
#[repr(C, align(128))]
struct ModelExecutionCounts {
    batches: Count,
    rows: Count,
    busy_ns: Count,
    cancelled_batches: Count,
    cancelled_rows: Count,
    failed_rows: Count,
    hung_batches: Count,
    sizes: [Count; SIZE_BOUNDS.len()],
}

/// The counts of one GPU on a backend thread.
#[derive(Debug, Zeroable)]
#[repr(C)]
struct GpuExecutionCounts {
    batches: Count,
    busy_ns: Count,
}

/// A batch that has left its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Executed {
    /// The time at which the batch started. Equal to `finished` where it was cancelled.
    pub started: Nanos,
    /// The time at which the batch finished, or was cancelled.
    pub finished: Nanos,
    /// The GPU that ran the batch.
    pub gpu: GpuId,
    /// The model that ran.
    pub model: ModelId,
    /// The number of rows in the batch.
    pub size: u32,
    /// True if the batch came too late to start.
    pub cancelled: bool,
}

const WORDS: usize = 4;
const CANCELLED: u64 = 1 << 32;

impl Executed {
    fn words(&self) -> [u64; WORDS] {
        [
            self.started.0,
            self.finished.0,
            u64::from(self.gpu.0) << 32 | u64::from(self.model.0),
            u64::from(self.size) | if self.cancelled { CANCELLED } else { 0 },
        ]
    }

    fn from_words([started, finished, gpu_and_model, size]: [u64; WORDS]) -> Executed {
        Executed {
            started: Nanos(started),
            finished: Nanos(finished),
            gpu: GpuId((gpu_and_model >> 32) as u32),
            model: ModelId(gpu_and_model as u32),
            size: size as u32,
            cancelled: size & CANCELLED != 0,
        }
    }
}

/// The last batches, written by one thread and read by any at any time.
#[derive(Debug)]
struct Recent {
    /// The ring of entries; its length is a power of two.
    entries: Box<[[AtomicU64; WORDS]]>,
    /// The number of entries ever written.
    written: AtomicU64,
}

impl Recent {
    fn new(gpus: usize) -> Recent {
        let room = (gpus.clamp(1, TRACED_GPUS) * BATCHES_PER_GPU).next_power_of_two();
        Recent { entries: bytemuck::allocation::zeroed_slice_box(room), written: AtomicU64::new(0) }
    }

    fn at(&self, number: u64) -> &[AtomicU64; WORDS] {
        &self.entries[number as usize & (self.entries.len() - 1)]
    }

    fn push(&self, executed: &Executed) {
        let number = self.written.load(Ordering::Relaxed);
        // A reader that sees one of the words stored below reads, after a fence of its own, a
        // `written` of at least `number`.
        fence(Ordering::Release);
        for (to, word) in self.at(number).iter().zip(executed.words()) {
            to.store(word, Ordering::Relaxed);
        }
        // Release: a reader that sees the new number sees the words.
        self.written.store(number + 1, Ordering::Release);
    }

    /// Calls `take` with the remaining entries from number `since` on, oldest first. Returns the
    /// number to go on from.
    fn read(&self, since: u64, mut take: impl FnMut(Executed)) -> u64 {
        let written = self.written.load(Ordering::Acquire);
        let room = self.entries.len() as u64;
        for number in since.max(written.saturating_sub(room))..written {
            let words = self.at(number).each_ref().map(|word| word.load(Ordering::Relaxed));
            // Acquire: pairs with the writer's fence. The entry is whole if the writer had not come
            // round to it.
            fence(Ordering::Acquire);
            if self.written.load(Ordering::Relaxed) < number + room {
                take(Executed::from_words(words));
            }
        }
        written
    }
}

/// The counts and recent batches of one backend thread.
#[derive(Debug)]
struct ThreadExecutions {
    /// The GPUs of the thread, by the engine's numbers.
    gpus: Range<u32>,
    by_model: Box<[ModelExecutionCounts]>,
    by_gpu: Box<[GpuExecutionCounts]>,
    recent: Recent,
}

/// The writing end, owned by the backend thread that runs the batches. There is one of each.
#[derive(Debug)]
pub(crate) struct Executing(Arc<ThreadExecutions>);

impl Executing {
    /// Counts a batch that has run.
    pub(crate) fn ran(&mut self, batch: &BatchHeader, started: Nanos, finished: Nanos) {
        let (size, busy) = (batch.size as usize, (finished - started).0);
        if let Some(counts) = self.0.by_model.get(batch.model.0 as usize) {
            counts.batches.add(1);
            counts.rows.add(size as u64);
            counts.busy_ns.add(busy);
            counts.sizes[SIZE_BOUNDS.partition_point(|&bound| bound < size).min(SIZE_BOUNDS.len() - 1)]
                .add(1);
        }
        if let Some(counts) = self.0.by_gpu.get((batch.gpu.0 - self.0.gpus.start) as usize) {
            counts.batches.add(1);
            counts.busy_ns.add(busy);
        }
        self.trace(batch, started, finished, false);
    }

    /// Counts a batch that could not start in time.
    pub(crate) fn cancelled(&mut self, batch: &BatchHeader, now: Nanos) {
        if let Some(counts) = self.0.by_model.get(batch.model.0 as usize) {
            counts.cancelled_batches.add(1);
            counts.cancelled_rows.add(u64::from(batch.size));
        }
        self.trace(batch, now, now, true);
    }

    /// Counts rows of a batch on which the model failed.
    pub(crate) fn failed(&mut self, batch: &BatchHeader, rows: usize) {
        if let Some(counts) = self.0.by_model.get(batch.model.0 as usize) {
            counts.failed_rows.add(rows as u64);
        }
    }

    /// Counts a batch in which the model hung.
    pub(crate) fn hung(&mut self, batch: &BatchHeader) {
        if let Some(counts) = self.0.by_model.get(batch.model.0 as usize) {
            counts.hung_batches.add(1);
        }
    }

    /// Clears the counts of a model slot, which has got another model.
    pub(crate) fn forget(&mut self, model: ModelId) {
        let Some(counts) = self.0.by_model.get(model.0 as usize) else { return };
        let ModelExecutionCounts {
            batches,
            rows,
            busy_ns,
            cancelled_batches,
            cancelled_rows,
            failed_rows,
            hung_batches,
            sizes,
        } = counts;
        [batches, rows, busy_ns, cancelled_batches, cancelled_rows, failed_rows, hung_batches]
            .into_iter()
            .chain(sizes)
            .for_each(Count::clear);
    }

    fn trace(&self, batch: &BatchHeader, started: Nanos, finished: Nanos, cancelled: bool) {
        let BatchHeader { gpu, model, size, .. } = *batch;
        if ((gpu.0 - self.0.gpus.start) as usize) < TRACED_GPUS {
            self.0.recent.push(&Executed { started, finished, gpu, model, size, cancelled });
        }
    }
}

/// The executed batches of one model, on all backend threads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelExecutions {
    /// The number of batches run.
    pub batches: u64,
    /// The number of requests' rows in them.
    pub rows: u64,
    /// The time that they ran, all together.
    pub busy: Nanos,
    /// The number of batches that could not start in time.
    pub cancelled_batches: u64,
    /// The number of requests' rows in those.
    pub cancelled_rows: u64,
    /// The number of rows on which the model failed.
    pub failed_rows: u64,
    /// The number of batches in which the model made its executor hang.
    pub hung_batches: u64,
    /// The number of batches run by size: up to each of [`SIZE_BOUNDS`] and above the one before.
    pub sizes: [u64; SIZE_BOUNDS.len()],
}

/// The executed batches of one GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GpuExecutions {
    /// The number of batches run.
    pub batches: u64,
    /// The time that they ran, all together.
    pub busy: Nanos,
}

/// The executed batches of all backend threads, readable from anywhere at any time. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Executions {
    /// The entry of each backend thread, in the order of their GPUs' numbers.
    threads: Arc<[Arc<ThreadExecutions>]>,
}

impl Executions {
    /// Makes empty counts of backend threads that own these GPUs, whose numbers are consecutive
    /// from 0 on.
    pub(crate) fn new(threads: impl Iterator<Item = Range<u32>>) -> Executions {
        let notes = |gpus: Range<u32>| {
            Arc::new(ThreadExecutions {
                by_model: bytemuck::allocation::zeroed_slice_box(limits::MAX_MODELS),
                by_gpu: bytemuck::allocation::zeroed_slice_box(gpus.len()),
                recent: Recent::new(gpus.len()),
                gpus,
            })
        };
        Executions { threads: threads.map(notes).collect() }
    }

    /// Returns the writing end of the backend thread numbered `at`. It must be taken once.
    pub(crate) fn of_backend(&self, at: usize) -> Executing {
        Executing(Arc::clone(&self.threads[at]))
    }

    /// Returns the executed batches of a model.
    pub fn of_model(&self, model: ModelId) -> ModelExecutions {
        let mut all = ModelExecutions::default();
        for counts in self.threads.iter().filter_map(|notes| notes.by_model.get(model.0 as usize)) {
            all.batches += counts.batches.get();
            all.rows += counts.rows.get();
            all.busy += Nanos(counts.busy_ns.get());
            all.cancelled_batches += counts.cancelled_batches.get();
            all.cancelled_rows += counts.cancelled_rows.get();
            all.failed_rows += counts.failed_rows.get();
            all.hung_batches += counts.hung_batches.get();
            all.sizes.iter_mut().zip(&counts.sizes).for_each(|(sum, count)| *sum += count.get());
        }
        all
    }

    /// Returns the number of GPUs.
    pub fn gpus(&self) -> usize {
        self.threads.iter().map(|notes| notes.gpus.len()).sum()
    }

    /// Returns the index of the backend thread that runs a GPU's batches.
    pub fn backend_of(&self, gpu: GpuId) -> usize {
        self.threads.partition_point(|notes| notes.gpus.end <= gpu.0)
    }

    /// Returns the executed batches of each GPU, by number.
    pub fn of_gpus(&self) -> impl Iterator<Item = GpuExecutions> + '_ {
        let of = |counts: &GpuExecutionCounts| GpuExecutions {
            batches: counts.batches.get(),
            busy: Nanos(counts.busy_ns.get()),
        };
        self.threads.iter().flat_map(move |notes| notes.by_gpu.iter().map(of))
    }

    /// Calls `take` with the batches that have left their GPUs since the last call with this
    /// `cursor`, which is empty at first. Only batches of the first `gpus` GPUs are kept, and of
    /// each backend thread those of its first [`TRACED_GPUS`], the newest few hundred of a GPU.
    pub fn recent(&self, gpus: usize, cursor: &mut Vec<u64>, mut take: impl FnMut(Executed)) {
        let shown = |gpu: u32| (gpu as usize) < gpus;
        let threads = self.threads.iter().take_while(|notes| shown(notes.gpus.start));
        cursor.resize(threads.clone().count(), 0);
        for (notes, next) in threads.zip(cursor) {
            let take = |batch: Executed| {
                if shown(batch.gpu.0) {
                    take(batch)
                }
            };
            *next = notes.recent.read(*next, take);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn header(gpu: u32, model: u32, size: u32) -> BatchHeader {
        BatchHeader { gpu: GpuId(gpu), model: ModelId(model), size, ..BatchHeader::default() }
    }

    #[test]
    fn what_ran_is_summed_over_the_backend_threads() {
        let executions = Executions::new([0..1, 1..4].into_iter());
        let (mut first, mut second) = (executions.of_backend(0), executions.of_backend(1));
        first.ran(&header(0, 7, 5), Nanos(10), Nanos(40));
        second.ran(&header(3, 7, limits::MAX_BATCH as u32), Nanos(20), Nanos(120));
        second.cancelled(&header(2, 7, 3), Nanos(50));
        let model = executions.of_model(ModelId(7));
        assert_eq!((model.batches, model.rows, model.busy), (2, 5 + limits::MAX_BATCH as u64, Nanos(130)));
        assert_eq!((model.cancelled_batches, model.cancelled_rows), (1, 3));
        assert_eq!((model.sizes[4], model.sizes[SIZE_BOUNDS.len() - 1]), (1, 1));
        assert_eq!(executions.of_model(ModelId(6)), ModelExecutions::default());
        let busy: Vec<u64> = executions.of_gpus().map(|gpu| gpu.busy.0).collect();
        assert_eq!(busy, [30, 0, 0, 100]);
        assert_eq!([0, 1, 3].map(|gpu| executions.backend_of(GpuId(gpu))), [0, 1, 1]);
    }

    #[test]
    fn recent_batches_are_handed_out_once_and_the_oldest_are_forgotten() {
        let executions = Executions::new(std::iter::once(0..1));
        let mut executing = executions.of_backend(0);
        let (mut cursor, mut seen) = (Vec::new(), Vec::new());
        executing.ran(&header(0, 1, 4), Nanos(1), Nanos(2));
        executing.cancelled(&header(0, 2, 3), Nanos(9));
        executions.recent(1 << 20, &mut cursor, |batch| seen.push(batch));
        let ran = Executed {
            started: Nanos(1),
            finished: Nanos(2),
            gpu: GpuId(0),
            model: ModelId(1),
            size: 4,
            cancelled: false,
        };
        let at_nine = Executed { started: Nanos(9), finished: Nanos(9), model: ModelId(2), size: 3, ..ran };
        assert_eq!(seen, [ran, Executed { cancelled: true, ..at_nine }]);
        (0..1_000).for_each(|n| executing.ran(&header(0, 0, 1), Nanos(n), Nanos(n)));
        seen.clear();
        executions.recent(1 << 20, &mut cursor, |batch| seen.push(batch));
        let starts: Vec<u64> = seen.iter().map(|batch| batch.started.0).collect();
        assert!(starts.len() >= BATCHES_PER_GPU - 1, "{}", starts.len());
        assert!(
            starts.windows(2).all(|pair| pair[1] == pair[0] + 1) && starts.ends_with(&[999]),
            "{starts:?}"
        );
    }

    #[test]
    fn a_reader_beside_the_writer_sees_only_whole_batches() {
        let executions = Executions::new(std::iter::once(0..1));
        let mut executing = executions.of_backend(0);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..200_000 {
                    executing.ran(&header(0, n, n), Nanos(n.into()), Nanos(n.into()));
                }
                over.store(true, Ordering::Release);
            });
            let (mut cursor, mut last) = (Vec::new(), 0);
            while !over.load(Ordering::Acquire) {
                executions.recent(1 << 20, &mut cursor, |batch| {
                    let number = batch.started.0;
                    assert!(number >= last, "{number} after {last}");
                    assert_eq!((batch.finished.0, u64::from(batch.size)), (number, number));
                    assert_eq!(u64::from(batch.model.0), number);
                    last = number;
                });
            }
        });
    }
}
