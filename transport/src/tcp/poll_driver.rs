//! The driver of readiness: epoll, level-triggered, and non-blocking reads and writes. It runs on
//! any Linux, and where io_uring is forbidden.

use super::driver::{Completed, ReceivedBuffer, SocketDriver, SocketWaker};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The most descriptors that are looked at in a turn.
const READY_AT_MOST: usize = 256;

/// The most connections that a listener accepts in a turn.
const ACCEPTED_AT_MOST: usize = 16;

/// The most bytes that are read from a socket in a turn.
const READ_AT_MOST: usize = 64 << 10;

/// The key of the waker. A slot's key is its number, a listener's has this bit as well.
const WAKER: u64 = u64::MAX;
const LISTENER: u64 = 1 << 32;

/// See the module's description.
pub(super) struct PollDriver {
    epoll: OwnedFd,
    waker: SocketWaker,
    listeners: Vec<OwnedFd>,
    slots: Vec<PolledSlot>,
    /// What epoll has reported, and how much of it was handled.
    ready: Vec<(u64, epoll::EventFlags)>,
    handled: usize,
    done: VecDeque<Completed>,
    /// Bytes of the one socket that was read last.
    scratch: Box<[u8]>,
}

struct PolledSlot {
    fd: Option<OwnedFd>,
    halves: [Box<[u8]>; 2],
    /// The half and its bytes that are still to go.
    sending: Option<(usize, Range<usize>)>,
    stage: PollStage,
    /// What epoll reports of it.
    watched: epoll::EventFlags,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PollStage {
    Connecting,
    Receiving,
    /// Nothing more comes.
    Ended,
}

impl PollDriver {
    /// Makes a driver of so many slots, each with two halves of so many bytes.
    pub(super) fn new(slots: usize, half: usize, waker: SocketWaker) -> io::Result<PollDriver> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, waker.fd(), epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        let memory = || vec![0; half].into_boxed_slice();
        let slot = || PolledSlot {
            fd: None,
            halves: [memory(), memory()],
            sending: None,
            stage: PollStage::Ended,
            watched: epoll::EventFlags::empty(),
        };
        Ok(PollDriver {
            epoll,
            waker,
            listeners: Vec::new(),
            slots: (0..slots).map(|_| slot()).collect(),
            ready: Vec::with_capacity(READY_AT_MOST),
            handled: 0,
            done: VecDeque::with_capacity(4 * slots + 2 * ACCEPTED_AT_MOST),
            scratch: vec![0; READ_AT_MOST].into_boxed_slice(),
        })
    }

    /// Waits for readiness, unless some of the last is not handled yet.
    fn poll(&mut self, timeout: Duration) {
        if self.handled < self.ready.len() {
            return;
        }
        let (tv_sec, tv_nsec) = (timeout.as_secs() as i64, timeout.subsec_nanos().into());
        self.ready.clear();
        self.handled = 0;
        let mut events = [MaybeUninit::uninit(); READY_AT_MOST];
        // It fails where a signal came: the turn then finds nothing.
        let ready = epoll::wait(&self.epoll, &mut events, Some(&Timespec { tv_sec, tv_nsec }));
        let events = ready.map_or(&mut [][..], |(events, _)| events);
        self.ready.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
    }

    fn handle(&mut self, (key, flags): (u64, epoll::EventFlags)) {
        match key {
            WAKER => self.waker.reset(),
            key if key & LISTENER != 0 => self.accept((key ^ LISTENER) as usize),
            key => self.handle_slot(key as usize, flags),
        }
    }

    fn watch_listener(&self, listener: usize) -> io::Result<()> {
        let key = epoll::EventData::new_u64(listener as u64 | LISTENER);
        Ok(epoll::add(&self.epoll, &self.listeners[listener], key, epoll::EventFlags::IN)?)
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTED_AT_MOST {
            match rustix::net::accept_with(&self.listeners[listener], SocketFlags::CLOEXEC) {
                Ok(fd) => self.done.push_back(Completed::Accepted { listener, fd }),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(error) => {
                    // It would be reported again at once.
                    let _ = epoll::delete(&self.epoll, &self.listeners[listener]);
                    return self.done.push_back(Completed::AcceptFailed { listener, error: error.into() });
                }
            }
        }
    }

    /// Does what a socket is ready for. One that was released since epoll has reported it has no
    /// descriptor, or another one, of which a read finds nothing.
    fn handle_slot(&mut self, slot: usize, flags: epoll::EventFlags) {
        let PolledSlot { fd: Some(fd), stage, sending, .. } = &mut self.slots[slot] else { return };
        if *stage == PollStage::Connecting {
            let result = rustix::net::sockopt::socket_error(&*fd).and_then(|error| error);
            *stage = if result.is_ok() { PollStage::Receiving } else { PollStage::Ended };
            self.done.push_back(Completed::Connected { slot, result: result.map_err(io::Error::from) });
            return self.watch(slot);
        }
        let is_sending = sending.is_some();
        if is_sending && flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::ERR) {
            self.continue_sending(slot);
        }
        let other = epoll::EventFlags::IN | epoll::EventFlags::ERR | epoll::EventFlags::HUP;
        if flags.intersects(other) {
            self.receive(slot);
        }
    }

    fn receive(&mut self, slot: usize) {
        let PolledSlot { fd: Some(fd), stage: stage @ PollStage::Receiving, .. } = &mut self.slots[slot]
        else {
            return;
        };
        match rustix::net::recv(&*fd, &mut self.scratch[..], RecvFlags::DONTWAIT) {
            Ok((length @ 1.., _)) => {
                let buffer = ReceivedBuffer { number: 0, length };
                self.done.push_back(Completed::Received { slot, buffer });
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            ended => {
                *stage = PollStage::Ended;
                self.done
                    .push_back(Completed::ReceiveEnded { slot, error: ended.err().map(io::Error::from) });
                self.watch(slot);
            }
        }
    }

    fn continue_sending(&mut self, slot: usize) {
        let PolledSlot { fd: Some(fd), sending: Some((half, left)), halves, .. } = &mut self.slots[slot]
        else {
            return;
        };
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let done = loop {
            match rustix::net::send(&*fd, &halves[*half][left.clone()], flags) {
                Ok(bytes) => {
                    left.start += bytes;
                    if left.start == left.end {
                        break Completed::Sent { slot };
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.watch(slot),
                Err(error) => break Completed::SendFailed { slot, error: error.into() },
            }
        };
        self.slots[slot].sending = None;
        self.done.push_back(done);
        self.watch(slot);
    }

    /// Has epoll report what the slot waits for.
    fn watch(&mut self, slot: usize) {
        let PolledSlot { fd: Some(fd), stage, sending, watched, .. } = &mut self.slots[slot] else { return };
        let flags = watched_flags(*stage, sending.is_some());
        if *watched == flags {
            return;
        }
        *watched = flags;
        if let Err(error) = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(slot as u64), flags) {
            self.done.push_back(Completed::SendFailed { slot, error: error.into() });
        }
    }
}

fn watched_flags(stage: PollStage, is_sending: bool) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, stage == PollStage::Receiving);
    flags.set(epoll::EventFlags::OUT, is_sending || stage == PollStage::Connecting);
    flags
}

impl SocketDriver for PollDriver {
    fn add_listener(&mut self, fd: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        self.listeners.push(fd);
        self.watch_listener(self.listeners.len() - 1)
    }

    fn rearm_listener(&mut self, listener: usize) {
        if let Err(error) = self.watch_listener(listener) {
            self.done.push_back(Completed::AcceptFailed { listener, error });
        }
    }

    fn adopt(&mut self, slot: usize, fd: OwnedFd, is_connecting: bool) -> io::Result<()> {
        let stage = if is_connecting { PollStage::Connecting } else { PollStage::Receiving };
        let flags = watched_flags(stage, false);
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(slot as u64), flags)?;
        let polled = &mut self.slots[slot];
        (polled.fd, polled.stage, polled.sending, polled.watched) = (Some(fd), stage, None, flags);
        Ok(())
    }

    fn half(&mut self, slot: usize, half: usize) -> &mut [u8] {
        &mut self.slots[slot].halves[half]
    }

    fn send(&mut self, slot: usize, half: usize, bytes: usize) {
        self.slots[slot].sending = Some((half, 0..bytes));
        self.continue_sending(slot);
    }

    fn fd(&self, slot: usize) -> BorrowedFd<'_> {
        self.slots[slot].fd.as_ref().expect("the slot was adopted and not released").as_fd()
    }

    fn release(&mut self, slot: usize) {
        // Epoll drops a descriptor that is closed.
        let polled = &mut self.slots[slot];
        (polled.fd, polled.sending, polled.stage) = (None, None, PollStage::Ended);
        self.done.push_back(Completed::Released { slot });
    }

    fn gather(&mut self) {
        self.poll(Duration::ZERO);
    }

    fn next(&mut self) -> Option<Completed> {
        loop {
            if let Some(done) = self.done.pop_front() {
                return Some(done);
            }
            let event = *self.ready.get(self.handled)?;
            self.handled += 1;
            self.handle(event);
        }
    }

    fn received(&self, buffer: &ReceivedBuffer) -> &[u8] {
        &self.scratch[..buffer.length]
    }

    fn recycle(&mut self, _: ReceivedBuffer) {}

    fn submit(&mut self) {}

    fn wait(&mut self, timeout: Duration) {
        self.poll(if self.done.is_empty() { timeout } else { Duration::ZERO });
    }
}
