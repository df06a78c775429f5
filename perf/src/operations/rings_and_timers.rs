//! Rings, timers and the clock on one core, with all memory in the cache. Hand-off between cores is
//! timed in `benches/rings.rs`.

use super::Operation;
use bytemuck::Pod;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::hint::black_box;
use symphony::runtime::clock::Clock;
use symphony_transport::Nanos;
use symphony_transport::ring::ring;
use symphony_transport::wheel::Wheel;

/// The number of timers in the wheel.
const TIMERS: usize = 10_000;

pub(super) fn operations() -> Vec<Operation> {
    let mut operations = vec![Operation::new("clock", "one reading of the clock", || {
        let clock = Clock::start();
        Box::new(move |times| {
            for _ in 0..times {
                black_box(clock.now());
            }
        })
    })];
    for batch in [1, 16, 64] {
        operations.push(a_ring::<[u64; 2]>(16, batch));
        operations.push(a_ring::<[u64; 8]>(64, batch));
    }
    operations.push(Operation::new(
        "wheel_set_cancel",
        "arms a timer up to 100 ms ahead and disarms another, 10,000 being armed",
        || {
            let mut wheel = full_wheel();
            let spans = spans();
            let mut at = 0;
            Box::new(move |times| {
                for _ in 0..times {
                    at = (at + 1) % TIMERS;
                    wheel.set(at, spans[at]);
                    wheel.cancel((at + TIMERS / 2) % TIMERS);
                }
            })
        },
    ));
    operations.push(Operation::new(
        "wheel_push_on",
        "re-arms a timer 1 us later, as a request that joins a batch does",
        || {
            let mut wheel = full_wheel();
            let mut at = Nanos::from_millis(10);
            Box::new(move |times| {
                for _ in 0..times {
                    at += Nanos::from_micros(1);
                    wheel.set(7, at);
                }
            })
        },
    ));
    operations.push(Operation::new(
        "wheel_expire",
        "lets the earliest of 10,000 timers expire and arms it anew up to 100 ms ahead",
        || {
            let mut wheel = full_wheel();
            let spans = spans();
            let mut now = Nanos::ZERO;
            Box::new(move |times| {
                let mut expired = 0;
                while expired < times {
                    now += Nanos::from_micros(5);
                    while let Some((key, _)) = wheel.pop_expired(now) {
                        wheel.set(key, now + spans[key]);
                        expired += 1;
                    }
                }
            })
        },
    ));
    operations
}

/// Makes the operation that writes and takes messages of one size, `batch` at a time; a repetition
/// is one message.
fn a_ring<T: Pod>(bytes: usize, batch: u64) -> Operation {
    let name = format!("ring_{bytes}_bytes_by_{batch}");
    Operation::new(name, "writes one message into a ring and takes it out again", move || {
        let (mut producer, mut consumer) = ring::<T>(1_024);
        Box::new(move |times| {
            for _ in 0..times.div_ceil(batch) {
                for _ in 0..batch {
                    producer.write(black_box(T::zeroed())).expect("the ring is empty before each batch");
                }
                producer.publish();
                consumer.drain(batch as usize, |message| {
                    black_box(message);
                });
            }
        })
    })
}

fn spans() -> Vec<Nanos> {
    let mut rng = Pcg64Mcg::seed_from_u64(7);
    (0..TIMERS).map(|_| Nanos(rng.random_range(1_000..100_000_000))).collect()
}

fn full_wheel() -> Wheel {
    let mut wheel = Wheel::new(TIMERS, Nanos::ZERO);
    spans().into_iter().enumerate().for_each(|(key, at)| wheel.set(key, at));
    wheel
}
