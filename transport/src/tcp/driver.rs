//! What stands between [`Sockets`](super::Sockets) and the kernel: [`SocketDriver`], and how a
//! thread that sleeps in one is woken.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

/// What a driver has done, or found.
pub(super) enum Completed {
    /// A connection has come.
    Accepted { listener: usize, fd: OwnedFd },
    /// A listener stands still until it is armed again.
    AcceptFailed { listener: usize, error: io::Error },
    /// A connection was made, or can't be.
    Connected { slot: usize, result: io::Result<()> },
    /// Bytes have come.
    Received { slot: usize, buffer: ReceivedBuffer },
    /// No more bytes come: the peer has closed its side, or there is an error.
    ReceiveEnded { slot: usize, error: Option<io::Error> },
    /// All bytes of a send have gone to the kernel.
    Sent { slot: usize },
    /// No more bytes can be sent.
    SendFailed { slot: usize, error: io::Error },
    /// The slot's descriptor is closed, and the kernel refers to none of its memory.
    Released { slot: usize },
}

/// A receive buffer with bytes: given back by [`SocketDriver::recycle`].
pub(super) struct ReceivedBuffer {
    pub(super) number: u16,
    pub(super) length: usize,
}

/// Moves the bytes of one thread's sockets, which have the numbers of slots. It owns the
/// descriptors, and the memory that the kernel reads from and writes to.
///
/// No method blocks but [`SocketDriver::wait`]. The methods for a slot are called from its `adopt`
/// to its `release`, and it is adopted again only after [`Completed::Released`].
pub(super) trait SocketDriver: Send {
    /// Accepts connections on a listening socket. Listeners are numbered from 0.
    fn add_listener(&mut self, fd: OwnedFd) -> io::Result<()>;

    /// Accepts connections again after [`Completed::AcceptFailed`].
    fn rearm_listener(&mut self, listener: usize);

    /// Takes a socket, and receives from it as soon as it is connected.
    fn adopt(&mut self, slot: usize, fd: OwnedFd, is_connecting: bool) -> io::Result<()>;

    /// Returns one of the two halves of a slot's memory, which is not being sent.
    fn half(&mut self, slot: usize, half: usize) -> &mut [u8];

    /// Sends the first bytes of a half, while no other send of the slot is under way. Ends with
    /// [`Completed::Sent`] or [`Completed::SendFailed`].
    fn send(&mut self, slot: usize, half: usize, bytes: usize);

    /// Returns the descriptor of a slot.
    fn fd(&self, slot: usize) -> BorrowedFd<'_>;

    /// Ends all that is under way in a slot and closes its descriptor.
    fn release(&mut self, slot: usize);

    /// Looks at what has completed, at the beginning of a turn.
    fn gather(&mut self);

    /// Returns the next of what has completed, of the present turn or later.
    fn next(&mut self) -> Option<Completed>;

    /// Returns the bytes that have come in a buffer.
    fn received(&self, buffer: &ReceivedBuffer) -> &[u8];

    /// Takes a buffer back.
    fn recycle(&mut self, buffer: ReceivedBuffer);

    /// Hands to the kernel what was asked for since the last turn.
    fn submit(&mut self);

    /// Sleeps until something has completed, the waker was called, or the time is over.
    fn wait(&mut self, timeout: Duration);
}

/// Ends [`Sockets::wait`](super::Sockets::wait) from another thread, or keeps the next one from
/// waiting.
#[derive(Clone)]
pub struct SocketWaker(Arc<EventFd>);

struct EventFd(OwnedFd);

impl SocketWaker {
    pub(super) fn new() -> io::Result<SocketWaker> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(SocketWaker(Arc::new(EventFd(fd))))
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        self.0.wake_by_ref();
    }

    /// Returns the waker for a [`Sleeper`](crate::doorbell::Sleeper).
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// Returns the descriptor that can be read once the waker was called.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }

    /// Forgets the calls so far.
    pub(super) fn reset(&self) {
        // It fails if there were none.
        let _ = rustix::io::read(self.fd(), &mut [0; 8]);
    }
}

impl EventFd {
    fn wake_by_ref(self: &Arc<EventFd>) {
        // It fails if 2^64 - 2 calls were not seen yet: then the thread is awake.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Wake for EventFd {
    fn wake(self: Arc<EventFd>) {
        EventFd::wake_by_ref(&self);
    }

    fn wake_by_ref(self: &Arc<EventFd>) {
        EventFd::wake_by_ref(self);
    }
}
