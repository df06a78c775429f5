//! Messages between two pinned threads: this project's ring beside rtrb and crossbeam-channel, one
//! way and in bulk. `cargo bench --bench rings`. It needs two cores that nothing else uses.

use bytemuck::Pod;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use symphony_transport::ring::{self, ring};

const CAPACITY: usize = 1_024;

/// The sending end of a queue.
trait Sender<T>: Send + 'static {
    /// Sends up to `count` messages, in one operation where the queue supports that; returns their
    /// number.
    fn send(&mut self, message: T, count: usize) -> usize;
}

/// The receiving end of a queue.
trait Receiver<T>: Send + 'static {
    /// Takes up to `max` messages, in one operation where the queue supports that; returns their
    /// number.
    fn receive(&mut self, max: usize) -> usize;
}

impl<T: Pod + Send> Sender<T> for ring::Producer<T> {
    fn send(&mut self, message: T, count: usize) -> usize {
        let count = if self.has_room(count) { count } else { self.free().min(count) };
        for _ in 0..count {
            self.write(message).expect("room was seen");
        }
        self.publish();
        count
    }
}

impl<T: Pod + Send> Receiver<T> for ring::Consumer<T> {
    fn receive(&mut self, max: usize) -> usize {
        self.drain(max, |message| {
            std::hint::black_box(message);
        })
    }
}

impl<T: Pod + Send> Sender<T> for rtrb::Producer<T> {
    fn send(&mut self, message: T, count: usize) -> usize {
        let count = count.min(self.slots());
        let chunk = self.write_chunk_uninit(count).expect("as many slots were seen");
        chunk.fill_from_iter(std::iter::repeat_n(message, count))
    }
}

impl<T: Pod + Send> Receiver<T> for rtrb::Consumer<T> {
    fn receive(&mut self, max: usize) -> usize {
        let count = max.min(self.slots());
        let chunk = self.read_chunk(count).expect("as many slots were seen");
        chunk.into_iter().map(std::hint::black_box).count()
    }
}

impl<T: Pod + Send> Sender<T> for crossbeam_channel::Sender<T> {
    fn send(&mut self, message: T, count: usize) -> usize {
        (0..count).take_while(|_| self.try_send(message).is_ok()).count()
    }
}

impl<T: Pod + Send> Receiver<T> for crossbeam_channel::Receiver<T> {
    fn receive(&mut self, max: usize) -> usize {
        self.try_iter().take(max).map(std::hint::black_box).count()
    }
}

/// A thread on the second core that calls `step` until it is dropped.
struct OtherThread {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl OtherThread {
    fn start(mut step: impl FnMut() + Send + 'static) -> OtherThread {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            core_affinity::set_for_current(core_affinity::CoreId { id: 1 });
            while !seen.load(Ordering::Relaxed) {
                step();
            }
        });
        OtherThread { stop, thread: Some(thread) }
    }
}

impl Drop for OtherThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Returns half of the time of a message there and one back, times `times`.
fn one_way<T: Pod + Send>(
    times: u64,
    (mut there, mut arrives): (impl Sender<T>, impl Receiver<T>),
    (mut back, mut returns): (impl Sender<T>, impl Receiver<T>),
) -> Duration {
    let _other = OtherThread::start(move || {
        if arrives.receive(1) == 1 {
            back.send(T::zeroed(), 1);
        }
        spin_loop();
    });
    let before = Instant::now();
    for _ in 0..times {
        there.send(T::zeroed(), 1);
        while returns.receive(1) == 0 {
            spin_loop();
        }
    }
    before.elapsed() / 2
}

/// Returns the time of `times` messages, `batch` at a time, until all have been taken.
fn in_bulk<T: Pod + Send>(
    times: u64,
    batch: usize,
    (mut sender, mut receiver): (impl Sender<T>, impl Receiver<T>),
) -> Duration {
    let _other = OtherThread::start(move || {
        if sender.send(T::zeroed(), batch) == 0 {
            spin_loop();
        }
    });
    let mut taken = 0;
    let before = Instant::now();
    while taken < times {
        taken += receiver.receive(batch) as u64;
    }
    before.elapsed()
}

fn of_size<T: Pod + Send>(criterion: &mut Criterion) {
    let bytes = size_of::<T>();
    let mut group = criterion.benchmark_group(format!("one_way_{bytes}_bytes"));
    group.bench_function("symphony", |b| b.iter_custom(|n| one_way::<T>(n, ring(CAPACITY), ring(CAPACITY))));
    group.bench_function("rtrb", |b| {
        b.iter_custom(|n| one_way::<T>(n, rtrb::RingBuffer::new(CAPACITY), rtrb::RingBuffer::new(CAPACITY)))
    });
    group.bench_function("crossbeam-channel", |b| {
        b.iter_custom(|n| {
            one_way::<T>(n, crossbeam_channel::bounded(CAPACITY), crossbeam_channel::bounded(CAPACITY))
        })
    });
    group.finish();
    let mut group = criterion.benchmark_group(format!("in_bulk_{bytes}_bytes"));
    group.throughput(Throughput::Elements(1));
    for batch in [1, 16, 64] {
        group.bench_function(BenchmarkId::new("symphony", batch), |b| {
            b.iter_custom(|n| in_bulk::<T>(n, batch, ring(CAPACITY)))
        });
        group.bench_function(BenchmarkId::new("rtrb", batch), |b| {
            b.iter_custom(|n| in_bulk::<T>(n, batch, rtrb::RingBuffer::new(CAPACITY)))
        });
        group.bench_function(BenchmarkId::new("crossbeam-channel", batch), |b| {
            b.iter_custom(|n| in_bulk::<T>(n, batch, crossbeam_channel::bounded(CAPACITY)))
        });
    }
    group.finish();
}

fn rings(criterion: &mut Criterion) {
    core_affinity::set_for_current(core_affinity::CoreId { id: 0 });
    of_size::<[u64; 2]>(criterion);
    of_size::<[u64; 8]>(criterion);
}

criterion_group!(benches, rings);
criterion_main!(benches);
