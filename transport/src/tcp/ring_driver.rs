//! The driver of completions: io_uring, with one accept for each listener and one receive for each
//! socket that go on by themselves, and one send for each socket and turn. What the kernel does is
//! deferred until this thread asks: a turn without news makes no system call.

use super::driver::{Completed, ReceivedBuffer, SocketDriver, SocketWaker};
use super::uring::{Uring, UringLack, UringOperation, UringResult};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// See the module's description.
pub(super) struct RingDriver {
    uring: Uring,
    waker: SocketWaker,
    slots: Vec<RingSlot>,
    done: VecDeque<Completed>,
    /// The slots whose receive found no buffer: it goes on with the next turn.
    starved: Vec<usize>,
}

#[derive(Clone, Default)]
struct RingSlot {
    /// The half that is being sent, and its bytes that are still to go.
    sending: Option<(usize, Range<usize>)>,
    /// The socket is to be closed.
    is_releasing: bool,
    /// The slot is in the list of those that are starved.
    is_starved: bool,
}

impl RingDriver {
    /// Makes a driver of so many slots, each with two halves of so many bytes.
    pub(super) fn new(slots: usize, half: usize, waker: SocketWaker) -> Result<RingDriver, UringLack> {
        Ok(RingDriver {
            uring: Uring::new(slots, half, waker.clone())?,
            waker,
            slots: vec![RingSlot::default(); slots],
            done: VecDeque::with_capacity(4 * slots),
            starved: Vec::with_capacity(slots),
        })
    }

    /// Returns true if large sends may leave the copy out.
    pub(super) fn is_registered(&self) -> bool {
        self.uring.is_registered()
    }

    fn handle(&mut self, result: UringResult) {
        let slot = result.number;
        match result.operation {
            UringOperation::Accept => return self.on_accept(result),
            UringOperation::Wake => {
                self.waker.reset();
                if !result.has_more {
                    self.uring.push_wake();
                }
                return;
            }
            UringOperation::Connect => self.on_connect(slot, result.result),
            UringOperation::Receive => self.on_receive(result),
            UringOperation::Send => self.on_send(result),
            UringOperation::Cancel => {}
        }
        if self.slots[slot].is_releasing && self.uring.close(slot) {
            self.slots[slot].is_releasing = false;
            self.done.push_back(Completed::Released { slot });
        }
    }

    fn on_accept(&mut self, result: UringResult) {
        let listener = result.number;
        if let Some(fd) = Uring::accepted(&result) {
            self.done.push_back(Completed::Accepted { listener, fd });
        }
        match result.result {
            Err(error) => self.done.push_back(Completed::AcceptFailed { listener, error }),
            Ok(_) if !result.has_more => self.uring.push_accept(listener),
            Ok(_) => {}
        }
    }

    fn on_connect(&mut self, slot: usize, ready: io::Result<usize>) {
        if self.slots[slot].is_releasing {
            return;
        }
        let result = ready.and_then(|_| {
            rustix::net::sockopt::socket_error(self.uring.fd(slot))
                .and_then(|error| error)
                .map_err(io::Error::from)
        });
        if result.is_ok() {
            self.uring.push_receive(slot);
        }
        self.done.push_back(Completed::Connected { slot, result });
    }

    fn on_receive(&mut self, result: UringResult) {
        let UringResult { number: slot, result, buffer, has_more, .. } = result;
        let is_releasing = self.slots[slot].is_releasing;
        match (result, buffer) {
            (Ok(length @ 1..), Some(number)) if !is_releasing => {
                self.done.push_back(Completed::Received { slot, buffer: ReceivedBuffer { number, length } });
                if !has_more {
                    self.uring.push_receive(slot);
                }
            }
            (_, Some(number)) => self.uring.give_back(number),
            _ if is_releasing => {}
            (Err(error), _) if is_passing(&error) => {
                self.slots[slot].is_starved = true;
                self.starved.push(slot);
            }
            (ended, _) => {
                self.done.push_back(Completed::ReceiveEnded { slot, error: ended.err() });
            }
        }
    }

    fn on_send(&mut self, result: UringResult) {
        self.uring.end_send(&result);
        let slot = result.number;
        let RingSlot { sending, is_releasing, .. } = &mut self.slots[slot];
        let Some((half, left)) = sending else { return };
        if !result.is_notice {
            match result.result {
                Ok(bytes) => left.start += bytes,
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    *sending = None;
                    if !*is_releasing {
                        self.done.push_back(Completed::SendFailed { slot, error });
                    }
                    return;
                }
            }
        }
        // Without a copy, the half can be written only after the second result.
        if result.has_more || *is_releasing {
            return;
        }
        if left.start < left.end {
            let (half, left) = (*half, left.clone());
            return self.uring.push_send(slot, half, left);
        }
        *sending = None;
        self.done.push_back(Completed::Sent { slot });
    }
}

/// True for what keeps an operation from going on only for now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN | libc::EINTR))
}

impl SocketDriver for RingDriver {
    fn add_listener(&mut self, fd: OwnedFd) -> io::Result<()> {
        let listener = self.uring.add_listener(fd);
        self.uring.push_accept(listener);
        Ok(())
    }

    fn rearm_listener(&mut self, listener: usize) {
        self.uring.push_accept(listener);
    }

    fn adopt(&mut self, slot: usize, fd: OwnedFd, is_connecting: bool) -> io::Result<()> {
        self.uring.adopt(slot, fd);
        self.slots[slot] = RingSlot::default();
        match is_connecting {
            true => self.uring.push_connect(slot),
            false => self.uring.push_receive(slot),
        }
        Ok(())
    }

    fn fd(&self, slot: usize) -> BorrowedFd<'_> {
        self.uring.fd(slot)
    }

    fn half(&mut self, slot: usize, half: usize) -> &mut [u8] {
        self.uring.half(slot, half)
    }

    fn send(&mut self, slot: usize, half: usize, bytes: usize) {
        self.slots[slot].sending = Some((half, 0..bytes));
        self.uring.push_send(slot, half, 0..bytes);
    }

    fn release(&mut self, slot: usize) {
        self.slots[slot].is_releasing = true;
        self.uring.push_cancel(slot);
    }

    fn gather(&mut self) {
        self.uring.gather();
    }

    fn next(&mut self) -> Option<Completed> {
        loop {
            if let Some(done) = self.done.pop_front() {
                return Some(done);
            }
            let result = self.uring.reap()?;
            self.handle(result);
        }
    }

    fn received(&self, buffer: &ReceivedBuffer) -> &[u8] {
        self.uring.received(buffer.number, buffer.length)
    }

    fn recycle(&mut self, buffer: ReceivedBuffer) {
        self.uring.give_back(buffer.number);
    }

    fn submit(&mut self) {
        while let Some(slot) = self.starved.pop() {
            // It may have been released meanwhile, and adopted again.
            if self.slots[slot].is_starved && !self.slots[slot].is_releasing {
                self.uring.push_receive(slot);
            }
            self.slots[slot].is_starved = false;
        }
        self.uring.enter();
    }

    fn wait(&mut self, timeout: Duration) {
        if self.done.is_empty() {
            self.uring.wait(timeout);
        }
    }
}
