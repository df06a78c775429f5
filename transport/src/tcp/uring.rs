//! The ring of a thread's sockets with all that the kernel refers to: descriptors, the memory of
//! sends, the buffers of receives. [`Uring`] is owned by the driver of io_uring, whose code is
//! safe: whatever it asks for, no memory is freed, lent out or reused that an operation may still
//! touch.
//!
//! # Guarantees
//!
//! - A slot's descriptor and memory outlive its operations: [`Uring::close`] refuses while one is
//!   under way, and dropping the ring waits for their ends, or leaks the memory.
//! - A half that is being sent can't be written: [`Uring::half`] refuses.
//! - A receive buffer can be read from its completion until it is given back, and only then.

use super::driver::SocketWaker;
use io_uring::types::{BufRingEntry, CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Bytes of a receive buffer.
pub(super) const RECEIVE_BYTES: usize = 32 << 10;

/// The receive buffers of a ring, at most.
const RECEIVE_BUFFERS: usize = 256;

/// The only group of receive buffers.
const GROUP: u16 = 0;

/// A send of so many bytes or more may leave the copy out: to pin and to notify costs about as much
/// as it takes to copy less.
const ZERO_COPY_FROM: usize = 32 << 10;

/// The most memory that is registered, and so locked.
const REGISTERED_AT_MOST: usize = 64 << 20;

/// The time that a ring that is dropped waits for its operations to end.
const DROP_WITHIN: Duration = Duration::from_secs(1);

/// What a kernel must have, and the sentence where it has not.
#[derive(Debug, thiserror::Error)]
pub(super) enum UringLack {
    #[error("the kernel has no io_uring, or a seccomp profile hides it")]
    Absent,
    #[error(
        "io_uring is not permitted: allow io_uring_setup, io_uring_enter and io_uring_register in the \
         container's seccomp profile, and set the sysctl kernel.io_uring_disabled to 0"
    )]
    Forbidden,
    #[error("the limit on locked memory is used up: raise it with `ulimit -l` or LimitMEMLOCK")]
    Memlock,
    #[error("the kernel's io_uring lacks {0}; Linux 6.1 or later has it")]
    TooOld(&'static str),
    #[error("io_uring fails: {0}")]
    Other(io::Error),
}

/// What an operation is of, kept in its user data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UringOperation {
    Connect,
    Receive,
    Send,
    Cancel,
    Accept,
    Wake,
}

impl UringOperation {
    const ALL: [UringOperation; 6] = {
        use UringOperation::*;
        [Connect, Receive, Send, Cancel, Accept, Wake]
    };

    fn tag(self, number: usize) -> u64 {
        (self as u64) << 32 | number as u64
    }
}

/// The end of an operation, or one of several results of it.
pub(super) struct UringResult {
    pub(super) operation: UringOperation,
    /// The slot or the listener.
    pub(super) number: usize,
    /// A count of bytes, for example.
    pub(super) result: io::Result<usize>,
    /// The receive buffer that has bytes.
    pub(super) buffer: Option<u16>,
    /// The operation goes on.
    pub(super) has_more: bool,
    /// The second result of a send without a copy: the memory is free again.
    pub(super) is_notice: bool,
}

struct UringSlot {
    fd: Option<OwnedFd>,
    halves: [Box<[u8]>; 2],
    /// The half that the kernel reads.
    sending: Option<usize>,
    /// Operations under way.
    pending: u32,
    /// Sends among them of which only the notice is missing: they need no descriptor.
    notices: u32,
    /// The last send without a copy was copied after all, as on loopback: it costs more than one
    /// that is copied at once.
    is_copied: bool,
}

/// See the module's description.
pub(super) struct Uring {
    ring: IoUring,
    is_enabled: bool,
    /// Entries that the ring has no room for yet.
    waiting: VecDeque<squeue::Entry>,
    slots: Vec<UringSlot>,
    listeners: Vec<OwnedFd>,
    /// Operations of listeners and of the waker under way.
    pending: u32,
    waker: SocketWaker,
    receive: ReceiveBuffers,
    /// The slots' halves are registered, in order.
    is_registered: bool,
}

// SAFETY: the pointers inside are to memory that `Uring` alone owns. The kernel accepts calls of
// one thread only, the first that enables the ring; another's fail, and change nothing.
unsafe impl Send for Uring {}

impl Uring {
    /// Takes all memory and asks the kernel for all that is needed.
    pub(super) fn new(slots: usize, half: usize, waker: SocketWaker) -> Result<Uring, UringLack> {
        let entries = (4 * slots + 16).next_power_of_two().min(4096) as u32;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            // The thread that drives it is not always the one that makes it.
            .setup_r_disabled()
            .setup_cqsize(4 * entries)
            .build(entries)
            .map_err(lack_of("a ring of one thread, with deferred work"))?;
        check_operations(&ring)?;
        let receive = ReceiveBuffers::new(2 * slots);
        // SAFETY: the entries are page-aligned, as many as said, and outlive the ring: dropping
        // `Uring` ends all receives first, or leaks them.
        unsafe {
            let (address, entries) = (receive.entries.as_ptr() as u64, receive.count);
            ring.submitter().register_buf_ring_with_flags(address, entries, GROUP, 0)
        }
        .map_err(lack_of("rings of receive buffers"))?;
        let memory = || vec![0; half].into_boxed_slice();
        let slot = || UringSlot {
            fd: None,
            halves: [memory(), memory()],
            sending: None,
            pending: 0,
            notices: 0,
            is_copied: false,
        };
        let slots: Vec<_> = (0..slots).map(|_| slot()).collect();
        let waiting = VecDeque::with_capacity(4 * slots.len());
        let mut uring = Uring {
            ring,
            is_enabled: false,
            waiting,
            slots,
            listeners: Vec::new(),
            pending: 0,
            waker,
            receive,
            is_registered: false,
        };
        uring.is_registered = uring.register_halves(half);
        uring.push_wake();
        Ok(uring)
    }

    /// Returns true if sends may leave the copy out.
    pub(super) fn is_registered(&self) -> bool {
        self.is_registered
    }

    fn register_halves(&self, half: usize) -> bool {
        if half < ZERO_COPY_FROM || 2 * half * self.slots.len() > REGISTERED_AT_MOST {
            return false;
        }
        let halves = self.slots.iter().flat_map(|slot| &slot.halves);
        let iovec = |half: &[u8]| libc::iovec { iov_base: half.as_ptr() as *mut _, iov_len: half.len() };
        let halves: Vec<_> = halves.map(|half| iovec(half)).collect();
        // SAFETY: the halves are never moved or freed before the ring.
        unsafe { self.ring.submitter().register_buffers(&halves) }.is_ok()
    }

    /// Gives a slot its socket.
    pub(super) fn adopt(&mut self, slot: usize, fd: OwnedFd) {
        let adopted = &mut self.slots[slot];
        assert!(adopted.fd.is_none(), "slot {slot} has a socket");
        (adopted.fd, adopted.is_copied) = (Some(fd), false);
    }

    /// Closes a slot's socket as soon as no operation needs it. Returns true if none is under way
    /// any more.
    pub(super) fn close(&mut self, slot: usize) -> bool {
        let UringSlot { fd, pending, notices, .. } = &mut self.slots[slot];
        if pending == notices {
            // With a peer that does not read, the notice comes only after this.
            *fd = None;
        }
        *pending == 0
    }

    /// Returns a slot's socket.
    pub(super) fn fd(&self, slot: usize) -> BorrowedFd<'_> {
        self.slots[slot].fd.as_ref().expect("the slot has a socket").as_fd()
    }

    /// Returns the half of a slot's memory. Panics if it is being sent.
    pub(super) fn half(&mut self, slot: usize, half: usize) -> &mut [u8] {
        assert_ne!(self.slots[slot].sending, Some(half), "the half is being sent");
        &mut self.slots[slot].halves[half]
    }

    /// Listens at one more socket.
    pub(super) fn add_listener(&mut self, fd: OwnedFd) -> usize {
        self.listeners.push(fd);
        self.listeners.len() - 1
    }

    /// Accepts connections until the operation ends.
    pub(super) fn push_accept(&mut self, listener: usize) {
        let fd = Fd(self.listeners[listener].as_raw_fd());
        let entry = opcode::AcceptMulti::new(fd).flags(libc::SOCK_CLOEXEC).build();
        self.pending += 1;
        self.push(entry.user_data(UringOperation::Accept.tag(listener)));
    }

    /// Reports calls of the waker until the operation ends.
    pub(super) fn push_wake(&mut self) {
        let fd = Fd(self.waker.fd().as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        self.pending += 1;
        self.push(entry.user_data(UringOperation::Wake.tag(0)));
    }

    /// Reports that a socket is connected, or can't be.
    pub(super) fn push_connect(&mut self, slot: usize) {
        let entry = opcode::PollAdd::new(self.raw(slot), libc::POLLOUT as u32).build();
        self.push_of(slot, UringOperation::Connect, entry);
    }

    /// Receives until the operation ends.
    pub(super) fn push_receive(&mut self, slot: usize) {
        let entry = opcode::RecvMulti::new(self.raw(slot), GROUP).build();
        self.push_of(slot, UringOperation::Receive, entry);
    }

    /// Sends bytes of a half, which is the kernel's until [`Uring::end_send`]. Panics if a send is
    /// under way, or the half has not as many.
    pub(super) fn push_send(&mut self, slot: usize, half: usize, bytes: std::ops::Range<usize>) {
        let fd = self.raw(slot);
        let UringSlot { halves, sending, is_copied, .. } = &mut self.slots[slot];
        assert!(sending.is_none(), "a send is under way");
        *sending = Some(half);
        let bytes = &halves[half][bytes];
        let (address, length) = (bytes.as_ptr(), bytes.len() as u32);
        let entry = if self.is_registered && !*is_copied && bytes.len() >= ZERO_COPY_FROM {
            opcode::SendZc::new(fd, address, length)
                .buf_index(Some((2 * slot + half) as u16))
                .flags(libc::MSG_NOSIGNAL)
                .zc_flags(SEND_ZC_REPORT_USAGE)
                .build()
        } else {
            opcode::Send::new(fd, address, length).flags(libc::MSG_NOSIGNAL).build()
        };
        self.push_of(slot, UringOperation::Send, entry);
    }

    /// Cancels the operations of a slot.
    pub(super) fn push_cancel(&mut self, slot: usize) {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::fd(self.raw(slot)).all()).build();
        self.push_of(slot, UringOperation::Cancel, entry);
    }

    fn raw(&self, slot: usize) -> Fd {
        Fd(self.fd(slot).as_raw_fd())
    }

    fn push_of(&mut self, slot: usize, operation: UringOperation, entry: squeue::Entry) {
        self.slots[slot].pending += 1;
        self.push(entry.user_data(operation.tag(slot)));
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: the descriptor and the memory of the entry are owned by `self`, which counts the
        // operation as pending: it keeps them until the kernel has reported its end.
        if !self.waiting.is_empty() || unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.waiting.push_back(entry);
        }
    }

    /// Hands entries to the kernel and has it do what is deferred. No call if there is neither.
    pub(super) fn enter(&mut self) {
        self.enable();
        loop {
            let (count, has_work) = self.due();
            if count == 0 && !has_work {
                return;
            }
            // SAFETY: the entries were checked when they were pushed; there is no argument.
            let entered =
                unsafe { self.ring.submitter().enter::<libc::sigset_t>(count, 0, ENTER_GETEVENTS, None) };
            // Where completions have no room, or a signal came, the next turn tries again.
            if self.waiting.is_empty() || entered.is_err() {
                return;
            }
            while let Some(entry) = self.waiting.pop_front() {
                // SAFETY: as in `push`.
                if unsafe { self.ring.submission().push(&entry) }.is_err() {
                    self.waiting.push_front(entry);
                    break;
                }
            }
        }
    }

    /// Has the kernel do what is deferred, if no completion is there yet.
    pub(super) fn gather(&mut self) {
        if self.ring.completion().is_empty() {
            self.enter();
        }
    }

    /// Sleeps until an operation has ended, or the time is over. Returns false if another thread
    /// has enabled the ring, which this one may not use.
    pub(super) fn wait(&mut self, timeout: Duration) -> bool {
        self.enter();
        let timeout = Timespec::from(timeout);
        // It ends with an error when the time is over, or a signal came.
        let waited = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout));
        !waited.is_err_and(|error| error.raw_os_error() == Some(libc::EEXIST))
    }

    fn enable(&mut self) {
        if !self.is_enabled {
            self.is_enabled = true;
            // A ring that can't be enabled completes nothing.
            let _ = self.ring.submitter().register_enable_rings();
        }
    }

    /// Returns how many entries the kernel has not seen, and whether it has work that is deferred.
    fn due(&mut self) -> (u32, bool) {
        let mut submission = self.ring.submission();
        submission.sync();
        (submission.len() as u32, submission.taskrun() || submission.cq_overflow())
    }

    /// Returns the next result.
    pub(super) fn reap(&mut self) -> Option<UringResult> {
        let entry = self.ring.completion().next()?;
        let (tag, flags) = (entry.user_data(), entry.flags());
        let (operation, number) = (UringOperation::ALL[(tag >> 32) as usize], tag as u32 as usize);
        let (has_more, is_notice) = (cqueue::more(flags), cqueue::notif(flags));
        let is_of_slot = !matches!(operation, UringOperation::Accept | UringOperation::Wake);
        if !has_more {
            let pending = if is_of_slot { &mut self.slots[number].pending } else { &mut self.pending };
            *pending -= 1;
        }
        let buffer = cqueue::buffer_select(flags);
        if let Some(buffer) = buffer {
            self.receive.take(buffer);
        }
        if operation == UringOperation::Send && has_more {
            self.slots[number].notices += 1;
        }
        if is_notice {
            self.slots[number].notices -= 1;
            // Its result says whether the bytes were copied.
            self.slots[number].is_copied = entry.result() != 0;
        }
        let result = match entry.result() {
            _ if is_notice => Ok(0),
            error @ ..0 => Err(io::Error::from_raw_os_error(-error)),
            count => Ok(count as usize),
        };
        Some(UringResult { operation, number, result, buffer, has_more, is_notice })
    }

    /// Takes the connection that an accept has returned.
    pub(super) fn accepted(result: &UringResult) -> Option<OwnedFd> {
        let fd = result.result.as_ref().ok().filter(|_| result.operation == UringOperation::Accept)?;
        // SAFETY: the kernel has made the descriptor for this result, which is handed out once.
        Some(unsafe { OwnedFd::from_raw_fd(*fd as i32) })
    }

    /// Notes that the last result of a send has come: the half can be written again.
    pub(super) fn end_send(&mut self, result: &UringResult) {
        if result.operation == UringOperation::Send && !result.has_more {
            self.slots[result.number].sending = None;
        }
    }

    /// Returns the first bytes of a receive buffer. Panics if the kernel has the buffer.
    pub(super) fn received(&self, buffer: u16, bytes: usize) -> &[u8] {
        self.receive.bytes(buffer, bytes)
    }

    /// Gives a receive buffer back to the kernel.
    pub(super) fn give_back(&mut self, buffer: u16) {
        self.receive.give(buffer);
    }

    fn pending(&self) -> u32 {
        self.pending + self.slots.iter().map(|slot| slot.pending).sum::<u32>()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // What the kernel has not seen need not end.
        let began = std::time::Instant::now();
        if self.is_enabled {
            self.push(opcode::AsyncCancel2::new(CancelBuilder::any().all()).build().user_data(DROP_TAG));
            self.pending += 1;
            while self.pending() > 0 && began.elapsed() < DROP_WITHIN && self.wait(DROP_WITHIN / 100) {
                while let Some(result) = self.reap() {
                    drop(Uring::accepted(&result));
                }
            }
        }
        if self.is_enabled && self.pending() > 0 {
            // The kernel may still write to them.
            mem::forget(mem::take(&mut self.slots));
            self.receive.leak();
        }
    }
}

/// Asks the kernel for the operations that are needed.
fn check_operations(ring: &IoUring) -> Result<(), UringLack> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(lack_of("the list of its operations"))?;
    let needed = [
        (opcode::AcceptMulti::CODE, "accept"),
        (opcode::RecvMulti::CODE, "recv"),
        (opcode::Send::CODE, "send"),
        // The name of what came with it in 6.0: receives of many results.
        (opcode::SendZc::CODE, "send without a copy"),
        (opcode::AsyncCancel2::CODE, "cancel"),
        (opcode::PollAdd::CODE, "poll"),
    ];
    match needed.into_iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, name)) => Err(UringLack::TooOld(name)),
        None => Ok(()),
    }
}

fn lack_of(what: &'static str) -> impl Fn(io::Error) -> UringLack {
    move |error| match error.raw_os_error() {
        Some(libc::ENOSYS) => UringLack::Absent,
        Some(libc::EPERM | libc::EACCES) => UringLack::Forbidden,
        Some(libc::ENOMEM) => UringLack::Memlock,
        Some(libc::EINVAL) => UringLack::TooOld(what),
        _ => UringLack::Other(error),
    }
}

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h.
const ENTER_GETEVENTS: u32 = 1;

/// `IORING_SEND_ZC_REPORT_USAGE` of linux/io_uring.h.
const SEND_ZC_REPORT_USAGE: u16 = 1 << 3;

/// The tag of the cancellation of everything: it counts as one of the waker's.
const DROP_TAG: u64 = (UringOperation::Wake as u64) << 32;

/// The memory of receives, and the ring by which the kernel is given buffers.
struct ReceiveBuffers {
    entries: NonNull<BufRingEntry>,
    count: u16,
    memory: Box<[u8]>,
    /// Whether the kernel has each buffer.
    lent: Box<[bool]>,
    tail: u16,
}

impl ReceiveBuffers {
    /// Makes about so many buffers, and gives all to the kernel.
    fn new(count: usize) -> ReceiveBuffers {
        let count = count.next_power_of_two().clamp(16, RECEIVE_BUFFERS) as u16;
        let layout = ReceiveBuffers::layout(count);
        // SAFETY: the layout has a size.
        let entries = NonNull::new(unsafe { alloc_zeroed(layout) }).map(NonNull::cast);
        let Some(entries) = entries else { handle_alloc_error(layout) };
        let memory = vec![0; count as usize * RECEIVE_BYTES].into_boxed_slice();
        let lent = vec![false; count as usize].into_boxed_slice();
        let mut buffers = ReceiveBuffers { entries, count, memory, lent, tail: 0 };
        (0..count).for_each(|number| buffers.give(number));
        buffers
    }

    /// The layout of the entries: from the beginning of a page.
    fn layout(count: u16) -> Layout {
        let bytes = usize::from(count) * size_of::<BufRingEntry>();
        Layout::from_size_align(bytes, 4096).expect("a few kilobytes")
    }

    fn give(&mut self, number: u16) {
        assert!(!mem::replace(&mut self.lent[number as usize], true), "the kernel has the buffer");
        let memory = self.memory[number as usize * RECEIVE_BYTES..][..RECEIVE_BYTES].as_mut_ptr();
        let at = usize::from(self.tail & (self.count - 1));
        // SAFETY: `at` is below the number of entries, which are plain data. The kernel reads an
        // entry once the tail is past it, which is so only after the store below.
        unsafe {
            let entry = &mut *self.entries.as_ptr().add(at);
            entry.set_addr(memory as u64);
            entry.set_len(RECEIVE_BYTES as u32);
            entry.set_bid(number);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, aligned to two bytes, and is accessed by this
        // and by the kernel alone. Release: the kernel sees the entry before the tail.
        unsafe {
            let tail = BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    /// Notes that the kernel has given a buffer back, filled.
    fn take(&mut self, number: u16) {
        self.lent[number as usize] = false;
    }

    fn bytes(&self, number: u16, bytes: usize) -> &[u8] {
        assert!(!self.lent[number as usize], "the kernel has the buffer");
        &self.memory[number as usize * RECEIVE_BYTES..][..bytes.min(RECEIVE_BYTES)]
    }

    /// Has the memory outlive this.
    fn leak(&mut self) {
        mem::forget(mem::take(&mut self.memory));
    }
}

impl Drop for ReceiveBuffers {
    fn drop(&mut self) {
        // The kernel holds the pages of the entries itself for as long as they are registered.
        // SAFETY: they were allocated with this layout, and nothing here refers to them any more.
        unsafe { dealloc(self.entries.as_ptr().cast(), ReceiveBuffers::layout(self.count)) };
    }
}
