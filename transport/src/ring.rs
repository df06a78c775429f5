//! A bounded ring from one thread to one other, in which every message of the dataplane travels.
//! [`ring`] makes its two ends; each end is owned and called by one pinned thread.
//!
//! The memory is allocated once. An end keeps its own index and a copy of the other end's, and
//! loads the shared index only when the copy says "full" or "empty". So a busy ring moves one cache
//! line of indices per batch and not per message. The slots carry no sequence numbers.
//!
//! ```
//! use symphony_transport::ring::ring;
//!
//! let (mut to_rank, mut from_model) = ring::<u64>(4);
//! let rank = std::thread::spawn(move || {
//!     let mut sum = 0;
//!     while !(from_model.is_abandoned() && from_model.len() == 0) {
//!         from_model.drain(16, |message| sum += message);
//!         std::thread::yield_now();
//!     }
//!     sum
//! });
//!
//! // A batch of two becomes visible at once.
//! assert!(to_rank.has_room(2));
//! to_rank.write(1).unwrap();
//! to_rank.write(2).unwrap();
//! to_rank.publish();
//! to_rank.push(3).unwrap();
//! drop(to_rank);
//! assert_eq!(rank.join().unwrap(), 6);
//! ```
//!
//! # Memory orderings
//!
//! `tail` counts messages published and is stored by the producer only; `head` counts messages
//! taken and is stored by the consumer only. Both wrap around. Two pairs carry all the
//! synchronisation:
//!
//! - `tail`: stored Release after the slots were filled, loaded Acquire before they are read. A
//!   message that the consumer counts is completely written.
//! - `head`: stored Release after the slots were read, loaded Acquire before they are filled again.
//!   No slot is overwritten while it may still be read.
//!
//! The two `gone` flags are stored Release and loaded Acquire: an end that sees the other one gone
//! also sees all that the other one did before.

use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell};
use bytemuck::Pod;
use crossbeam_utils::CachePadded;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// The slots start on a cache line, so that a message of a whole line never lies across two.
const CACHE_LINE: usize = 64;

/// The ring has no room for the message: the consumer is behind. Nothing was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ring is full: its consumer is behind; answer overloaded, or try again after it has taken some")]
pub struct Full;

/// Makes a ring of at least `capacity` messages (rounded up to a power of two, at least 1) and
/// returns its ends.
///
/// A `T` of size zero is refused at compile time:
///
/// ```compile_fail
/// symphony_transport::ring::ring::<()>(4);
/// ```
///
/// # Panics
///
/// Where `capacity` messages would not fit in the address space.
pub fn ring<T: Pod>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    const { assert!(size_of::<T>() > 0, "a ring's message must have a size") };
    let shared = Arc::new(SharedRing {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        producer_gone: AtomicBool::new(false),
        consumer_gone: AtomicBool::new(false),
        slots: RingSlots::new(capacity),
    });
    let producer =
        Producer { shared: Arc::clone(&shared), tail: 0, published: 0, head: 0, not_sync: PhantomData };
    let consumer = Consumer { shared, head: 0, tail: 0, not_sync: PhantomData };
    (producer, consumer)
}

struct SharedRing<T> {
    head: CachePadded<AtomicUsize>,
    tail: CachePadded<AtomicUsize>,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
    slots: RingSlots<T>,
}

/// The end that sends. It can be moved to another thread, but is never shared or cloned.
pub struct Producer<T: Pod> {
    shared: Arc<SharedRing<T>>,
    /// The number of messages written, published or not.
    tail: usize,
    /// The number of messages published, as in `shared.tail`.
    published: usize,
    /// A copy of `shared.head`, which is never behind it.
    head: usize,
    not_sync: PhantomData<Cell<()>>,
}

impl<T: Pod> Producer<T> {
    /// Sends one message, and with it all that was written before.
    ///
    /// # Errors
    ///
    /// [`Full`] where there is no room; what was written before stays unpublished.
    #[inline]
    pub fn push(&mut self, message: T) -> Result<(), Full> {
        self.write(message)?;
        self.publish();
        Ok(())
    }

    /// Writes one message that the consumer does not see before [`publish`](Producer::publish).
    ///
    /// Ask [`has_room`](Producer::has_room) before the first message of several that belong
    /// together.
    ///
    /// # Errors
    ///
    /// [`Full`] where there is no room.
    #[inline]
    pub fn write(&mut self, message: T) -> Result<(), Full> {
        if !self.has_room(1) {
            return Err(Full);
        }
        self.shared.slots.at(self.tail).with_mut(|slot| {
            // SAFETY: `has_room` saw (Acquire) that the consumer has left this slot, and it does
            // not come back before `publish`. No other thread writes: there is one producer,
            // borrowed mutably.
            unsafe { slot.write(message) }
        });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Makes all written messages visible to the consumer at once.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            // Release: the slots' contents go before the count. Pairs with the Acquire in
            // `Consumer::refresh`.
            self.shared.tail.store(self.tail, Ordering::Release);
        }
    }

    /// Returns true if `n` more messages can be written. Loads the consumer's index only if the
    /// copy of it does not show enough room.
    #[inline]
    pub fn has_room(&mut self, n: usize) -> bool {
        self.known_free() >= n || self.free() >= n
    }

    /// Returns the number of messages that can certainly be written: the consumer may be making
    /// more room at this moment.
    #[inline]
    pub fn free(&mut self) -> usize {
        // Acquire: the consumer's reads of the slots go before our writes. Pairs with
        // `Consumer::release`.
        self.head = self.shared.head.load(Ordering::Acquire);
        self.known_free()
    }

    /// Returns the number of messages that the ring holds when full.
    pub fn capacity(&self) -> usize {
        self.shared.slots.capacity()
    }

    /// Takes back the oldest published message that the consumer had not taken when it was dropped.
    /// Returns `None` while the consumer is there, and if no message is left.
    ///
    /// So each message is taken once, by the consumer or by its sender, however late it was sent.
    pub fn take_back(&mut self) -> Option<T> {
        if !self.is_abandoned() || self.free() == self.capacity() || self.head == self.published {
            return None;
        }
        let message = self.shared.slots.at(self.head).with(|slot| {
            // SAFETY: the slots from `head` to `published` are filled, by this end, and no other
            // thread accesses them: the consumer is gone (Acquire, in `is_abandoned`).
            unsafe { slot.read() }
        });
        self.head = self.head.wrapping_add(1);
        // Relaxed: only this end loads it any more.
        self.shared.head.store(self.head, Ordering::Relaxed);
        Some(message)
    }

    /// Returns true if the consumer was dropped: no message will be read any more.
    pub fn is_abandoned(&self) -> bool {
        // Acquire: what the consumer did before its drop is visible too. Pairs with its drop.
        self.shared.consumer_gone.load(Ordering::Acquire)
    }

    #[inline]
    fn known_free(&self) -> usize {
        self.capacity() - self.tail.wrapping_sub(self.head)
    }
}

impl<T: Pod> Drop for Producer<T> {
    /// Marks the ring as abandoned. Messages written but not published are never received.
    fn drop(&mut self) {
        // Release: all that was published goes before the flag. Pairs with
        // `Consumer::is_abandoned`.
        self.shared.producer_gone.store(true, Ordering::Release);
    }
}

/// The end that receives. It can be moved to another thread, but is never shared or cloned.
pub struct Consumer<T: Pod> {
    shared: Arc<SharedRing<T>>,
    /// The number of messages taken, as in `shared.head`.
    head: usize,
    /// A copy of `shared.tail`, which is never behind it.
    tail: usize,
    not_sync: PhantomData<Cell<()>>,
}

impl<T: Pod> Consumer<T> {
    /// Takes the oldest message, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let message = self.peek()?;
        self.release(1);
        Some(message)
    }

    /// Returns a copy of the oldest message, which stays in the ring.
    #[inline]
    pub fn peek(&mut self) -> Option<T> {
        if self.known_len() == 0 && self.len() == 0 {
            return None;
        }
        Some(self.read(self.head))
    }

    /// Takes up to `max` messages, oldest first, passes each to `f` and returns their number. The
    /// producer's index is loaded at most once, and the slots are released once, at the end: this
    /// is the cheap way to receive.
    ///
    /// If `f` panics, none of them counts as taken.
    #[inline]
    pub fn drain(&mut self, max: usize, mut f: impl FnMut(T)) -> usize {
        let known = self.known_len();
        let count = if known < max { self.len().min(max) } else { max };
        for offset in 0..count {
            f(self.read(self.head.wrapping_add(offset)));
        }
        if count > 0 {
            self.release(count);
        }
        count
    }

    /// Returns the number of messages that can certainly be taken: the producer may be publishing
    /// more at this moment.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "it loads the other end's index; `peek` shows emptiness")]
    pub fn len(&mut self) -> usize {
        // Acquire: the slots' contents are read after the count. Pairs with `Producer::publish`.
        self.tail = self.shared.tail.load(Ordering::Acquire);
        self.known_len()
    }

    /// Returns the number of messages that the ring holds when full.
    pub fn capacity(&self) -> usize {
        self.shared.slots.capacity()
    }

    /// Returns true if the producer was dropped. From then on [`len`](Consumer::len) is final: no
    /// message will be published any more.
    pub fn is_abandoned(&self) -> bool {
        // Acquire: the producer's last publication is visible too. Pairs with its drop.
        self.shared.producer_gone.load(Ordering::Acquire)
    }

    #[inline]
    fn known_len(&self) -> usize {
        self.tail.wrapping_sub(self.head)
    }

    /// Returns the message at `index`, which must be in `head..tail`.
    #[inline]
    fn read(&self, index: usize) -> T {
        debug_assert!(index.wrapping_sub(self.head) < self.known_len());
        self.shared.slots.at(index).with(|slot| {
            // SAFETY: `index` is before the `tail` that we loaded (Acquire), so the slot is filled,
            // and not before the `head` that we stored, so the producer does not write to it.
            unsafe { slot.read() }
        })
    }

    /// Gives the oldest `count` slots back to the producer.
    #[inline]
    fn release(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count);
        // Release: our reads of the slots go before the count. Pairs with the Acquire in
        // `Producer::free`.
        self.shared.head.store(self.head, Ordering::Release);
    }
}

impl<T: Pod> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Release: pairs with `Producer::is_abandoned`.
        self.shared.consumer_gone.store(true, Ordering::Release);
    }
}

/// The slots of a ring: a power of two of cells in one allocation that starts on a cache line.
struct RingSlots<T> {
    first: NonNull<UnsafeCell<T>>,
    mask: usize,
}

// SAFETY: the cells are owned as a Box<[UnsafeCell<T>]> owns them, so they move with it when T may
// move.
unsafe impl<T: Send> Send for RingSlots<T> {}
// SAFETY: a shared reference gives only `&UnsafeCell<T>`; the one producer and the one consumer
// access a cell alternately, ordered by `head` and `tail`. A message moves from one thread to the
// other, hence `T: Send`.
unsafe impl<T: Send> Sync for RingSlots<T> {}

impl<T: Pod> RingSlots<T> {
    fn new(capacity: usize) -> RingSlots<T> {
        let capacity =
            capacity.checked_next_power_of_two().expect("a ring's capacity fits the address space");
        let layout = RingSlots::<T>::layout(capacity);
        // SAFETY: the layout's size is not zero: capacity >= 1, and `ring` refuses a T of size
        // zero.
        let memory = unsafe { alloc(layout) }.cast::<UnsafeCell<T>>();
        let Some(first) = NonNull::new(memory) else { handle_alloc_error(layout) };
        for index in 0..capacity {
            // SAFETY: `index` is inside the allocation, whose alignment is at least the cell's.
            unsafe { first.add(index).write(UnsafeCell::new(T::zeroed())) };
        }
        RingSlots { first, mask: capacity - 1 }
    }
}

impl<T> RingSlots<T> {
    fn layout(capacity: usize) -> Layout {
        Layout::array::<UnsafeCell<T>>(capacity)
            .and_then(|layout| layout.align_to(CACHE_LINE))
            .expect("a ring's memory fits the address space")
    }

    fn capacity(&self) -> usize {
        self.mask + 1
    }

    /// Returns the cell of the message numbered `index`.
    #[inline]
    fn at(&self, index: usize) -> &UnsafeCell<T> {
        // SAFETY: masked, the index is below the capacity, and `new` made every cell.
        unsafe { self.first.add(index & self.mask).as_ref() }
    }
}

impl<T> Drop for RingSlots<T> {
    fn drop(&mut self) {
        let cells = NonNull::slice_from_raw_parts(self.first, self.capacity());
        // SAFETY: `new` made exactly these cells, and no reference to them is left.
        unsafe { cells.drop_in_place() };
        // SAFETY: allocated in `new` with this very layout.
        unsafe { dealloc(self.first.as_ptr().cast(), RingSlots::<T>::layout(self.capacity())) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::thread;

    const MANY: u64 = if cfg!(miri) { 300 } else { 1_000_000 };

    /// Ends of a ring that has moved `index` messages already.
    fn ring_at<T: Pod>(capacity: usize, index: usize) -> (Producer<T>, Consumer<T>) {
        let (mut producer, mut consumer) = ring(capacity);
        producer.shared.head.store(index, Ordering::Relaxed);
        producer.shared.tail.store(index, Ordering::Relaxed);
        (producer.head, producer.tail, producer.published) = (index, index, index);
        (consumer.head, consumer.tail) = (index, index);
        (producer, consumer)
    }

    #[test]
    fn capacity_is_rounded_up_to_a_power_of_two() {
        for (asked, given) in [(0, 1), (1, 1), (2, 2), (3, 4), (1000, 1024)] {
            let (producer, consumer) = ring::<u64>(asked);
            assert_eq!((producer.capacity(), consumer.capacity()), (given, given));
        }
    }

    #[test]
    fn a_full_ring_refuses_and_loses_nothing() {
        let (mut producer, mut consumer) = ring(2);
        assert_eq!([producer.push(1u64), producer.push(2), producer.push(3)], [Ok(()), Ok(()), Err(Full)]);
        assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Some(1), Some(2), None]);
    }

    #[test]
    fn what_is_written_is_seen_only_when_published() {
        let (mut producer, mut consumer) = ring(4);
        producer.write(1u64).unwrap();
        producer.write(2).unwrap();
        assert_eq!((consumer.len(), consumer.peek(), producer.free()), (0, None, 2));
        producer.publish();
        assert_eq!((consumer.len(), consumer.peek()), (2, Some(1)));
    }

    #[test]
    fn what_was_not_published_goes_with_the_producer() {
        let (mut producer, mut consumer) = ring(4);
        producer.push(1u64).unwrap();
        producer.write(2).unwrap();
        drop(producer);
        assert!(consumer.is_abandoned());
        assert_eq!((consumer.pop(), consumer.pop()), (Some(1), None));
    }

    #[test]
    fn what_the_consumer_left_unread_is_taken_back_once() {
        for index in [0, usize::MAX - 1] {
            let (mut producer, mut consumer) = ring_at(4, index);
            (1u64..=3).for_each(|message| producer.push(message).unwrap());
            assert_eq!((consumer.pop(), producer.take_back()), (Some(1), None));
            drop(consumer);
            producer.push(4).unwrap();
            producer.write(5).unwrap();
            assert_eq!([producer.take_back(), producer.take_back()], [Some(2), Some(3)]);
            assert_eq!([producer.take_back(), producer.take_back()], [Some(4), None]);
            producer.publish();
            assert_eq!((producer.take_back(), producer.take_back(), producer.free()), (Some(5), None, 4));
        }
    }

    #[test]
    fn each_message_is_taken_once_whenever_the_consumer_goes() {
        for taken in [0, 1, MANY / 100, MANY / 3] {
            let (mut producer, mut consumer) = ring(64);
            let reader = thread::spawn(move || {
                let mut sum = 0u64;
                for _ in 0..taken {
                    loop {
                        if let Some(message) = consumer.pop() {
                            sum += message;
                            break;
                        }
                        thread::yield_now();
                    }
                }
                sum
            });
            let (mut sent, mut back) = (0, 0);
            while sent < taken + 50 {
                sent += u64::from(producer.push(sent + 1).is_ok());
                back += producer.take_back().unwrap_or_default();
            }
            let read = reader.join().unwrap();
            back += std::iter::from_fn(|| producer.take_back()).sum::<u64>();
            assert_eq!(read + back, (1..=sent).sum());
        }
    }

    #[test]
    fn a_producer_sees_that_its_consumer_is_gone() {
        let (producer, consumer) = ring::<u64>(4);
        assert!(!producer.is_abandoned() && !consumer.is_abandoned());
        drop(consumer);
        assert!(producer.is_abandoned());
    }

    #[test]
    fn a_message_of_a_cache_line_lies_in_one() {
        let (producer, _consumer) = ring::<crate::message::Frame>(4);
        assert_eq!(producer.shared.slots.first.as_ptr().addr() % CACHE_LINE, 0);
        let (producer, _consumer) = ring::<u8>(1);
        assert_eq!(producer.shared.slots.first.as_ptr().addr() % CACHE_LINE, 0);
    }

    #[test]
    fn a_panic_while_draining_takes_nothing() {
        let (mut producer, mut consumer) = ring(4);
        (1..=3u64).for_each(|message| producer.push(message).unwrap());
        let drain = || consumer.drain(9, |message| assert!(message < 2, "stop here"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(drain)).is_err());
        assert_eq!(consumer.len(), 3);
    }

    #[test]
    fn messages_cross_threads_once_and_in_order() {
        let (mut producer, mut consumer) = ring(64);
        let sender = thread::spawn(move || {
            for message in 0..MANY {
                while producer.push(message).is_err() {
                    thread::yield_now();
                }
            }
        });
        for expected in 0..MANY {
            let message = loop {
                match consumer.pop() {
                    Some(message) => break message,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(message, expected);
        }
        sender.join().unwrap();
        assert!(consumer.is_abandoned() && consumer.len() == 0);
    }

    #[test]
    fn batches_cross_threads_whole() {
        let (mut producer, mut consumer) = ring::<[u64; 8]>(64);
        let sender = thread::spawn(move || {
            let mut sent = 0;
            while sent < MANY {
                let size = 1 + sent % 7;
                while !producer.has_room(size as usize) {
                    thread::yield_now();
                }
                for left in (0..size).rev() {
                    producer.write([sent, left, 0, 0, 0, 0, 0, sent]).unwrap();
                    sent += 1;
                }
                producer.publish();
            }
            sent
        });
        let (mut taken, mut left) = (0, 0);
        loop {
            let last_look = consumer.is_abandoned();
            let count = consumer.drain(usize::MAX, |message| {
                assert_eq!((message[0], message[7]), (taken, taken));
                left = message[1];
                taken += 1;
            });
            assert_eq!(left, 0, "a batch came in two parts");
            match count {
                0 if last_look => break,
                0 => thread::yield_now(),
                _ => {}
            }
        }
        assert_eq!(taken, sender.join().unwrap());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(u32),
        Write(u32),
        Publish,
        Pop,
        Peek,
        Drain(usize),
        HasRoom(usize),
        Free,
        Len,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<u32>().prop_map(Step::Push),
            4 => any::<u32>().prop_map(Step::Write),
            2 => Just(Step::Publish),
            4 => Just(Step::Pop),
            1 => Just(Step::Peek),
            2 => (0..6usize).prop_map(Step::Drain),
            1 => (0..12usize).prop_map(Step::HasRoom),
            1 => Just(Step::Free),
            1 => Just(Step::Len),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 2 } else { 1024 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_ring_does_what_a_bounded_queue_does(
            asked in 1..9usize,
            before_wrap in 0..40usize,
            steps in proptest::collection::vec(step(), 1..if cfg!(miri) { 30 } else { 200 }),
        ) {
            let (mut producer, mut consumer) = ring_at::<u32>(asked, 0usize.wrapping_sub(before_wrap));
            let capacity = producer.capacity();
            let (mut queue, mut written) = (VecDeque::new(), Vec::new());
            for step in steps {
                let free = capacity - queue.len() - written.len();
                match step {
                    Step::Push(message) | Step::Write(message) => {
                        let pushes = matches!(step, Step::Push(_));
                        let result = if pushes { producer.push(message) } else { producer.write(message) };
                        prop_assert_eq!(result.is_ok(), free > 0);
                        if result.is_ok() {
                            written.push(message);
                            if pushes {
                                queue.extend(written.drain(..));
                            }
                        }
                    }
                    Step::Publish => {
                        producer.publish();
                        queue.extend(written.drain(..));
                    }
                    Step::Pop => prop_assert_eq!(consumer.pop(), queue.pop_front()),
                    Step::Peek => prop_assert_eq!(consumer.peek(), queue.front().copied()),
                    Step::Drain(max) => {
                        let mut got = Vec::new();
                        let count = consumer.drain(max, |message| got.push(message));
                        prop_assert_eq!(count, got.len());
                        prop_assert_eq!(got, queue.drain(..max.min(queue.len())).collect::<Vec<_>>());
                    }
                    Step::HasRoom(n) => prop_assert_eq!(producer.has_room(n), free >= n),
                    Step::Free => prop_assert_eq!(producer.free(), free),
                    Step::Len => prop_assert_eq!(consumer.len(), queue.len()),
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    #[test]
    fn single_messages_arrive_whole_and_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring::<u32>(2);
            let sender = thread::spawn(move || {
                for message in 1..=3 {
                    while producer.push(message).is_err() {
                        thread::yield_now();
                    }
                }
            });
            for expected in 1..=3 {
                let message = loop {
                    match consumer.pop() {
                        Some(message) => break message,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(message, expected);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn a_batch_is_seen_whole_or_not_at_all() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring::<u32>(2);
            let sender = thread::spawn(move || {
                for first in [1, 3] {
                    while !producer.has_room(2) {
                        thread::yield_now();
                    }
                    producer.write(first).unwrap();
                    producer.write(first + 1).unwrap();
                    producer.publish();
                }
            });
            let mut got = Vec::new();
            while got.len() < 4 {
                let count = consumer.drain(4, |message| got.push(message));
                assert!(count == 0 || count == 2);
                if count == 0 {
                    thread::yield_now();
                }
            }
            assert_eq!(got, [1, 2, 3, 4]);
            sender.join().unwrap();
        });
    }

    #[test]
    fn after_the_producer_is_gone_the_length_is_final() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring::<u32>(2);
            let sender = thread::spawn(move || {
                producer.push(1).unwrap();
                producer.push(2).unwrap();
            });
            if consumer.is_abandoned() {
                assert_eq!(consumer.len(), 2);
            }
            sender.join().unwrap();
        });
    }

    #[test]
    fn after_the_consumer_is_gone_the_room_is_final() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring::<u32>(1);
            producer.push(1).unwrap();
            let receiver = thread::spawn(move || assert_eq!(consumer.pop(), Some(1)));
            if producer.is_abandoned() {
                assert_eq!(producer.free(), 1);
            }
            receiver.join().unwrap();
        });
    }
}
