//! [`Sockets`]: which connection is open, closing or gone, what it is to send, and until when
//! something must have happened. The driver below moves the bytes.

use super::driver::{Completed, ReceivedBuffer, SocketDriver, SocketWaker};
use super::poll_driver::PollDriver;
use super::ring_driver::RingDriver;
use super::tls::{LinkTls, TlsChannel, overhead};
use crate::Nanos;
use crate::wire::HostRole;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The most events of a turn, and of what comes to none.
pub const EVENTS_PER_TURN: usize = 1024;

/// The most connections that wait for a turn of the thread.
const BACKLOG: i32 = 1024;

/// The time for which a listener stands still after it could not accept, for want of descriptors.
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);

/// The driver that [`Sockets`] are to use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DriverChoice {
    /// io_uring where this machine has and permits it, else epoll.
    #[default]
    Best,
    /// io_uring, or an error.
    Uring,
    /// epoll.
    Poll,
}

/// The bounds of [`Sockets`], and their driver.
#[derive(Clone, Copy, Debug)]
pub struct SocketOptions {
    /// The driver.
    pub driver: DriverChoice,
    /// The most sockets at a time, those that are being closed included.
    pub sockets: usize,
    /// The bytes that a socket queues while as many again are being sent. A longer frame can't be
    /// sent.
    pub outgoing_bytes: usize,
    /// The time after which a connection that is not made is given up.
    pub connect_within: Nanos,
    /// The time that a peer has, after [`Sockets::close`], to take what was queued and to close its
    /// side.
    pub close_within: Nanos,
}

impl Default for SocketOptions {
    fn default() -> SocketOptions {
        SocketOptions {
            driver: DriverChoice::Best,
            sockets: 64,
            outgoing_bytes: 64 << 10,
            connect_within: Nanos::from_secs(3),
            close_within: Nanos::from_secs(1),
        }
    }
}

/// A socket of one [`Sockets`]. A later one in the same slot has another id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SocketId {
    slot: u32,
    generation: u32,
}

/// A listener of one [`Sockets`], numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(u32);

/// What has happened to a socket. Each begins with `Accepted` or `Connected`, unless it ends
/// before, and ends with `Closed`, unless [`Sockets::close`] was called: then nothing more is said
/// of it.
#[derive(Debug)]
pub enum SocketEvent<'a> {
    /// A peer has connected.
    Accepted {
        /// Where.
        listener: ListenerId,
        /// The connection.
        socket: SocketId,
        /// The peer's address.
        address: SocketAddr,
    },
    /// A connection that was asked for is made.
    Connected {
        /// The connection.
        socket: SocketId,
        /// The peer's address.
        address: SocketAddr,
    },
    /// Bytes have come, in order.
    Received {
        /// The connection.
        socket: SocketId,
        /// The bytes, at least one.
        bytes: &'a [u8],
    },
    /// The connection is over. What was not sent is lost.
    Closed {
        /// The connection.
        socket: SocketId,
        /// Why.
        end: SocketEnd,
    },
    /// A listener can't accept at present. It tries again in a tenth of a second.
    AcceptFailed {
        /// The listener.
        listener: ListenerId,
        /// Why: most often too many open files.
        error: io::Error,
    },
}

/// Why there is no connection, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum SocketEnd {
    /// The peer has closed it.
    #[error("the peer has closed the connection")]
    ClosedByPeer,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(io::Error),
    /// The connection could not be made.
    #[error("can't connect to {address}: {error}")]
    NotConnected {
        /// The peer's address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The peer has no right to be here, or this host none to be there.
    #[error("{address}: {sentence}")]
    Stranger {
        /// The peer's address.
        address: SocketAddr,
        /// Why.
        sentence: String,
    },
    /// All sockets are in use.
    #[error("can't connect to {address}: all {limit} sockets of the thread are in use")]
    TooMany {
        /// The peer's address.
        address: SocketAddr,
        /// [`SocketOptions::sockets`].
        limit: usize,
    },
}

/// Why bytes were not queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendRefused {
    /// The socket is not open.
    #[error("the socket is not open")]
    NotOpen,
    /// The peer does not take what was sent as fast as more is queued.
    #[error("{needed} bytes are more than the {room} that can be queued")]
    NoRoom {
        /// The bytes asked for.
        needed: usize,
        /// [`Sockets::room`].
        room: usize,
    },
}

/// What the sockets of a thread have done since they were made.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SocketCounters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections that came while all sockets were in use, and were closed at once.
    pub turned_away: u64,
    /// Connections that ended since one side is a stranger to the other.
    pub strangers: u64,
    /// Connections made.
    pub connected: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes handed to the driver.
    pub sent_bytes: u64,
    /// Sends handed to the driver: at most one for each socket and turn.
    pub sends: u64,
}

impl SocketSlot {
    /// Returns true if bytes wait for a flush.
    fn has_queued(&self) -> bool {
        let is_encrypting = |tls: &SecuredSlot| tls.queued > 0 || tls.channel.wants_write();
        self.filled > 0 || self.tls.as_deref().is_some_and(is_encrypting)
    }
}

/// Where a socket is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SocketPhase {
    /// The slot has no socket.
    Free,
    /// A connection is asked for, until the deadline.
    Connecting,
    /// A connection whose peer has not been checked yet, until the deadline.
    Securing,
    Open,
    /// A socket to be closed once what was queued has gone; until the deadline.
    Flushing,
    /// A socket whose own side is closed, and the peer's not; until the deadline. Bytes that come
    /// are dropped: to close with some unread would reset the connection, and the peer would not
    /// see our last ones.
    Lingering,
    /// The driver ends what is under way.
    Releasing,
}

struct SocketSlot {
    phase: SocketPhase,
    generation: u32,
    address: SocketAddr,
    deadline: Nanos,
    /// The half that is being filled, and how many bytes it has.
    filling: usize,
    filled: usize,
    /// The other half is being sent.
    is_sending: bool,
    /// The slot is in the list of those that have something to send.
    is_dirty: bool,
    /// The peer has closed its side.
    is_ended: bool,
    /// The listener at which the peer came; `None` where this side has dialled.
    listener: Option<ListenerId>,
    tls: Option<Box<SecuredSlot>>,
}

/// A socket over TLS: what is queued lies here until the flush encrypts it.
struct SecuredSlot {
    channel: TlsChannel,
    queue: Box<[u8]>,
    queued: usize,
}

struct ListenerState {
    address: SocketAddr,
    /// When it accepts again, if it stands still.
    retry_at: Nanos,
}

/// What a completion comes to.
enum Happened {
    Nothing,
    Accepted(ListenerId, SocketId, SocketAddr),
    Connected(SocketId, SocketAddr),
    Received(SocketId, ReceivedBuffer),
    Decrypted(SocketId),
    Closed(SocketId, SocketEnd),
    AcceptFailed(ListenerId, io::Error),
}

/// The TCP connections of one thread. See the module's description.
///
/// In each turn the thread calls [`Sockets::next`] until there is no event left, then
/// [`Sockets::reserve`] and [`Sockets::commit`], or [`Sockets::send`], for what it has to say, and
/// [`Sockets::flush`].
pub struct Sockets {
    driver: Box<dyn SocketDriver>,
    /// The driver's name, and why it is no other.
    chosen: String,
    waker: SocketWaker,
    options: SocketOptions,
    tls: Option<LinkTls>,
    listeners: Vec<ListenerState>,
    slots: Vec<SocketSlot>,
    free: Vec<u32>,
    /// The slots that have something to send.
    dirty: Vec<u32>,
    /// Ends that no completion has brought.
    ended: VecDeque<(SocketId, SocketEnd)>,
    /// The buffer of the last event.
    held: Option<ReceivedBuffer>,
    /// The socket that is open since its last event, with bytes that came before.
    decrypted: Option<SocketId>,
    /// The events of the present turn; `None` between turns.
    turn: Option<usize>,
    /// No slot or listener has an earlier deadline.
    next_deadline: Nanos,
    counters: SocketCounters,
}

impl Sockets {
    /// Takes all memory, and asks the kernel for what a driver needs.
    ///
    /// # Errors
    ///
    /// The system's own: too many open files, for example. That there is no io_uring, if no other
    /// driver may be chosen.
    pub fn new(options: SocketOptions) -> io::Result<Sockets> {
        let waker = SocketWaker::new()?;
        let (driver, chosen) = choose_driver(&options, &waker)?;
        let slot = || SocketSlot {
            phase: SocketPhase::Free,
            generation: 0,
            address: SocketAddr::from(([0; 4], 0)),
            deadline: Nanos::MAX,
            filling: 0,
            filled: 0,
            is_sending: false,
            is_dirty: false,
            is_ended: false,
            listener: None,
            tls: None,
        };
        Ok(Sockets {
            tls: None,
            driver,
            chosen,
            waker,
            options,
            listeners: Vec::new(),
            slots: (0..options.sockets).map(|_| slot()).collect(),
            free: (0..options.sockets as u32).rev().collect(),
            dirty: Vec::with_capacity(options.sockets),
            ended: VecDeque::with_capacity(options.sockets),
            held: None,
            decrypted: None,
            turn: None,
            next_deadline: Nanos::MAX,
            counters: SocketCounters::default(),
        })
    }

    /// Has all connections from now on use TLS, both sides with a certificate: a peer is accepted
    /// or connected once it was checked. A queue of each connection is made when it is, and
    /// encrypting takes memory.
    pub fn protect(&mut self, tls: LinkTls) {
        self.tls = Some(tls);
    }

    /// Returns the driver's name, and why it is no better one: a sentence for the log.
    pub fn driver(&self) -> &str {
        &self.chosen
    }

    /// Accepts connections at an address, whose port may be 0: any that is free.
    ///
    /// # Errors
    ///
    /// The system's own, such as [`io::ErrorKind::AddrInUse`]; that an address beyond loopback
    /// needs [`Sockets::protect`].
    pub fn listen(&mut self, address: SocketAddr) -> io::Result<ListenerId> {
        self.check_reach(address)?;
        let fd = stream_socket(address)?;
        sockopt::set_socket_reuseaddr(&fd, true)?;
        rustix::net::bind(&fd, &address)?;
        rustix::net::listen(&fd, BACKLOG)?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?;
        self.driver.add_listener(fd)?;
        self.listeners.push(ListenerState { address, retry_at: Nanos::MAX });
        Ok(ListenerId(self.listeners.len() as u32 - 1))
    }

    /// Returns the address of a listener, with its real port.
    pub fn address(&self, listener: ListenerId) -> SocketAddr {
        self.listeners[listener.0 as usize].address
    }

    /// Begins to connect: ends in `Connected`, or `Closed` if it can't be.
    ///
    /// # Errors
    ///
    /// [`SocketEnd::TooMany`], or [`SocketEnd::NotConnected`] where the system says so at once.
    pub fn connect(&mut self, now: Nanos, address: SocketAddr) -> Result<SocketId, SocketEnd> {
        let Some(&slot) = self.free.last() else {
            return Err(SocketEnd::TooMany { address, limit: self.options.sockets });
        };
        self.check_reach(address)
            .and_then(|()| dial(address))
            .and_then(|fd| self.driver.adopt(slot as usize, fd, true))
            .map_err(|error| SocketEnd::NotConnected { address, error })?;
        let deadline = now + self.options.connect_within;
        Ok(self.occupy(SocketPhase::Connecting, address, deadline))
    }

    /// Returns an error if bytes would leave this host in clear.
    fn check_reach(&self, address: SocketAddr) -> io::Result<()> {
        if address.ip().is_loopback() || self.tls.is_some() {
            return Ok(());
        }
        let sentence = format!("{address} is not on this host's loopback: links that leave it need TLS");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, sentence))
    }

    /// Returns true if the peer of an open socket may have this role, as far as its certificate
    /// goes: without TLS, all may.
    pub fn peer_may_be(&self, socket: SocketId, role: HostRole) -> bool {
        let secured = self.open(socket).and_then(|slot| slot.tls.as_deref()).zip(self.tls.as_ref());
        secured.is_none_or(|(secured, tls)| secured.channel.peer_may_be(tls, role))
    }

    /// Returns how many bytes can be queued now; zero if the socket is not open.
    pub fn room(&self, socket: SocketId) -> usize {
        self.open(socket).map_or(0, |slot| match &slot.tls {
            None => self.options.outgoing_bytes - slot.filled,
            Some(tls) => tls.queue.len() - tls.queued,
        })
    }

    /// Returns room for so many bytes, which [`Sockets::commit`] queues.
    ///
    /// # Errors
    ///
    /// [`SendRefused`].
    pub fn reserve(&mut self, socket: SocketId, bytes: usize) -> Result<&mut [u8], SendRefused> {
        let Some(&SocketSlot { filling, filled, .. }) = self.open(socket) else {
            return Err(SendRefused::NotOpen);
        };
        let (queue, begin) = match &mut self.slots[socket.slot as usize].tls {
            None => (self.driver.half(socket.slot as usize, filling), filled),
            Some(tls) => (&mut tls.queue[..], tls.queued),
        };
        let (needed, room) = (bytes, queue.len() - begin);
        queue.get_mut(begin..begin + bytes).ok_or(SendRefused::NoRoom { needed, room })
    }

    /// Queues the first bytes of what was reserved last: they go with the next flush. Panics if
    /// they are more than there is room for.
    pub fn commit(&mut self, socket: SocketId, bytes: usize) {
        assert!(bytes <= self.room(socket), "{bytes} bytes were committed, more than reserved");
        let slot = &mut self.slots[socket.slot as usize];
        match &mut slot.tls {
            None => slot.filled += bytes,
            Some(tls) => tls.queued += bytes,
        }
        self.mark(socket.slot);
    }

    /// Queues bytes: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`SendRefused`].
    pub fn send(&mut self, socket: SocketId, bytes: &[u8]) -> Result<(), SendRefused> {
        self.reserve(socket, bytes.len())?.copy_from_slice(bytes);
        self.commit(socket, bytes.len());
        Ok(())
    }

    /// Sends what was queued and closes the connection. The socket is not open any more: nothing
    /// that still comes is seen, and nothing is said of its end.
    pub fn close(&mut self, now: Nanos, socket: SocketId) {
        let deadline = now + self.options.close_within;
        let Some(slot) = self.live(socket) else { return };
        match slot.phase {
            SocketPhase::Open => {
                (slot.phase, slot.deadline) = (SocketPhase::Flushing, deadline);
                self.next_deadline = self.next_deadline.min(deadline);
                self.finish_flushing(socket.slot);
            }
            SocketPhase::Connecting | SocketPhase::Securing => self.release(socket.slot),
            _ => {}
        }
    }

    /// Returns the next event of this turn; `None` ends the turn.
    pub fn next(&mut self, now: Nanos) -> Option<SocketEvent<'_>> {
        if let Some(buffer) = self.held.take() {
            self.driver.recycle(buffer);
        }
        if self.turn.is_none() {
            self.turn = Some(0);
            self.driver.gather();
            self.expire(now);
        }
        Some(match self.outcome(now)? {
            Happened::Nothing => return None,
            Happened::Accepted(listener, socket, address) => {
                SocketEvent::Accepted { listener, socket, address }
            }
            Happened::Connected(socket, address) => SocketEvent::Connected { socket, address },
            Happened::Closed(socket, end) => SocketEvent::Closed { socket, end },
            Happened::AcceptFailed(listener, error) => SocketEvent::AcceptFailed { listener, error },
            Happened::Decrypted(socket) => {
                let slot = &self.slots[socket.slot as usize];
                let bytes = slot.tls.as_ref().map_or(&[][..], |tls| tls.channel.plain());
                SocketEvent::Received { socket, bytes }
            }
            Happened::Received(socket, buffer) => {
                let bytes = self.driver.received(self.held.insert(buffer));
                SocketEvent::Received { socket, bytes }
            }
        })
    }

    /// Hands what was queued to the kernel: one send for each socket that has no other under way.
    pub fn flush(&mut self) {
        let Sockets { driver, slots, dirty, counters, .. } = self;
        for number in dirty.drain(..) {
            let slot = &mut slots[number as usize];
            slot.is_dirty = false;
            let may = matches!(slot.phase, SocketPhase::Securing | SocketPhase::Open | SocketPhase::Flushing);
            if !may || slot.is_sending {
                continue;
            }
            if let Some(tls) = &mut slot.tls {
                tls.channel.queue(&tls.queue[..std::mem::take(&mut tls.queued)]);
                slot.filled = tls.channel.write(driver.half(number as usize, slot.filling));
            }
            if slot.filled > 0 {
                driver.send(number as usize, slot.filling, slot.filled);
                counters.sends += 1;
                counters.sent_bytes += slot.filled as u64;
                (slot.is_sending, slot.filling, slot.filled) = (true, 1 - slot.filling, 0);
            }
        }
        driver.submit();
    }

    /// Sleeps until there may be an event, the waker was called, or the time is over. What was not
    /// flushed is not sent meanwhile.
    pub fn wait(&mut self, timeout: Duration) {
        if self.turn.is_none() && self.ended.is_empty() {
            self.driver.wait(timeout);
        }
    }

    /// Returns the instant by which a turn is needed even if nothing happens.
    pub fn next_timer(&self) -> Nanos {
        self.next_deadline
    }

    /// Returns what ends [`Sockets::wait`] from another thread.
    pub fn waker(&self) -> SocketWaker {
        self.waker.clone()
    }

    /// Returns what was done so far.
    pub fn counters(&self) -> SocketCounters {
        self.counters
    }

    /// Returns how many more sockets there can be now.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    fn live(&mut self, socket: SocketId) -> Option<&mut SocketSlot> {
        self.slots.get_mut(socket.slot as usize).filter(|slot| slot.generation == socket.generation)
    }

    fn open(&self, socket: SocketId) -> Option<&SocketSlot> {
        let slot = self.slots.get(socket.slot as usize)?;
        (slot.generation == socket.generation && slot.phase == SocketPhase::Open).then_some(slot)
    }

    /// Occupies the slot that is free last.
    fn occupy(&mut self, phase: SocketPhase, address: SocketAddr, deadline: Nanos) -> SocketId {
        let slot = self.free.pop().expect("the caller has seen that one is free");
        let generation = self.slots[slot as usize].generation;
        self.slots[slot as usize] = SocketSlot {
            phase,
            generation,
            address,
            deadline,
            filling: 0,
            filled: 0,
            is_sending: false,
            is_dirty: self.slots[slot as usize].is_dirty,
            is_ended: false,
            listener: None,
            tls: None,
        };
        self.next_deadline = self.next_deadline.min(deadline);
        SocketId { slot, generation }
    }

    fn mark(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if !slot.is_dirty {
            slot.is_dirty = true;
            self.dirty.push(number);
        }
    }

    fn release(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if slot.is_sending {
            // Reset, so that nobody takes a part of a message for all that there is, and so that no
            // peer that does not read holds the memory of what was to be sent.
            let _ = sockopt::set_socket_linger(self.driver.fd(number as usize), Some(Duration::ZERO));
        }
        (slot.phase, slot.deadline, slot.filled) = (SocketPhase::Releasing, Nanos::MAX, 0);
        slot.tls = None;
        self.driver.release(number as usize);
    }

    /// Closes this side once all has gone that was queued.
    fn finish_flushing(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        if slot.phase != SocketPhase::Flushing || slot.is_sending || slot.has_queued() {
            return;
        }
        if slot.is_ended {
            return self.release(number);
        }
        slot.phase = SocketPhase::Lingering;
        // It fails if the peer is gone, which is then received.
        let _ = rustix::net::shutdown(self.driver.fd(number as usize), Shutdown::Write);
    }

    /// Ends what took too long.
    fn expire(&mut self, now: Nanos) {
        if now < self.next_deadline {
            return;
        }
        self.next_deadline = Nanos::MAX;
        for at in 0..self.listeners.len() {
            let listener = &mut self.listeners[at];
            if listener.retry_at <= now {
                listener.retry_at = Nanos::MAX;
                self.driver.rearm_listener(at);
            }
            self.next_deadline = self.next_deadline.min(self.listeners[at].retry_at);
        }
        for number in 0..self.slots.len() as u32 {
            let SocketSlot { phase, generation, address, deadline, listener, .. } =
                self.slots[number as usize];
            if deadline <= now {
                let is_owned = listener.is_none();
                if is_owned && matches!(phase, SocketPhase::Connecting | SocketPhase::Securing) {
                    let error = Errno::TIMEDOUT.into();
                    let end = SocketEnd::NotConnected { address, error };
                    self.ended.push_back((SocketId { slot: number, generation }, end));
                }
                self.release(number);
            } else {
                self.next_deadline = self.next_deadline.min(deadline);
            }
        }
    }

    /// Handles completions until one is an event.
    fn outcome(&mut self, now: Nanos) -> Option<Happened> {
        loop {
            if let Some((socket, end)) = self.ended.pop_front() {
                return Some(Happened::Closed(socket, end));
            }
            if let Some(socket) = self.decrypted.take().filter(|socket| self.open(*socket).is_some()) {
                return Some(Happened::Decrypted(socket));
            }
            let handled = self.turn.filter(|handled| *handled < EVENTS_PER_TURN);
            let next = handled.and_then(|_| self.driver.next());
            let (Some(handled), Some(completed)) = (handled, next) else {
                self.turn = None;
                return None;
            };
            self.turn = Some(handled + 1);
            match self.handle(now, completed) {
                Happened::Nothing => {}
                outcome => return Some(outcome),
            }
        }
    }

    fn handle(&mut self, now: Nanos, completed: Completed) -> Happened {
        match completed {
            Completed::Accepted { listener, fd } => self.on_accepted(now, listener, fd),
            Completed::AcceptFailed { listener, error } => {
                let retry_at = now + ACCEPT_PAUSE;
                self.listeners[listener].retry_at = retry_at;
                self.next_deadline = self.next_deadline.min(retry_at);
                Happened::AcceptFailed(ListenerId(listener as u32), error)
            }
            Completed::Connected { slot, result } => self.on_connected(now, slot as u32, result),
            Completed::Received { slot, buffer } => self.on_received(now, slot as u32, buffer),
            Completed::ReceiveEnded { slot, error } => self.on_receive_ended(slot as u32, error),
            Completed::Sent { slot } => {
                self.slots[slot].is_sending = false;
                if self.slots[slot].has_queued() {
                    self.mark(slot as u32);
                }
                self.finish_flushing(slot as u32);
                Happened::Nothing
            }
            Completed::SendFailed { slot, error } => self.fail(slot as u32, SocketEnd::Failed(error)),
            Completed::Released { slot } => {
                let released = &mut self.slots[slot];
                released.phase = SocketPhase::Free;
                released.generation = released.generation.wrapping_add(1);
                self.free.push(slot as u32);
                Happened::Nothing
            }
        }
    }

    fn on_accepted(&mut self, now: Nanos, listener: usize, fd: OwnedFd) -> Happened {
        let Some(&slot) = self.free.last() else {
            self.counters.turned_away += 1;
            return Happened::Nothing;
        };
        // A peer that has left meanwhile has no address.
        let address = peer_address(&fd);
        let adopted = address.and_then(|address| {
            sockopt::set_tcp_nodelay(&fd, true)?;
            self.driver.adopt(slot as usize, fd, false)?;
            Ok(address)
        });
        let Ok(address) = adopted else { return Happened::Nothing };
        self.occupy(SocketPhase::Securing, address, Nanos::MAX);
        self.slots[slot as usize].listener = Some(ListenerId(listener as u32));
        self.begin(now, slot)
    }

    fn on_connected(&mut self, now: Nanos, number: u32, result: io::Result<()>) -> Happened {
        let SocketSlot { phase, address, .. } = self.slots[number as usize];
        if phase != SocketPhase::Connecting {
            return Happened::Nothing;
        }
        let result = result.and_then(|()| {
            // A port of this host that nobody listens at may be drawn for this side as well: then
            // TCP connects the socket with itself.
            let ours = SocketAddr::try_from(rustix::net::getsockname(self.driver.fd(number as usize))?)?;
            if ours == address { Err(Errno::CONNREFUSED.into()) } else { Ok(()) }
        });
        match result {
            Err(error) => self.fail(number, SocketEnd::NotConnected { address, error }),
            Ok(()) => self.begin(now, number),
        }
    }

    /// Opens a connection that was made: after the handshake, where there is one.
    fn begin(&mut self, now: Nanos, number: u32) -> Happened {
        let Some(tls) = &self.tls else { return self.open_up(number) };
        let deadline = now + self.options.connect_within;
        let slot = &mut self.slots[number as usize];
        let outgoing = self.options.outgoing_bytes;
        match TlsChannel::new(tls, slot.listener.is_none()) {
            Err(error) => {
                let (address, sentence) = (slot.address, error.to_string());
                self.fail(number, SocketEnd::Stranger { address, sentence })
            }
            Ok(channel) => {
                let queue = vec![0; outgoing.saturating_sub(overhead(outgoing))].into_boxed_slice();
                slot.tls = Some(Box::new(SecuredSlot { channel, queue, queued: 0 }));
                (slot.phase, slot.deadline) = (SocketPhase::Securing, deadline);
                self.next_deadline = self.next_deadline.min(deadline);
                self.mark(number);
                Happened::Nothing
            }
        }
    }

    fn open_up(&mut self, number: u32) -> Happened {
        let slot = &mut self.slots[number as usize];
        (slot.phase, slot.deadline) = (SocketPhase::Open, Nanos::MAX);
        let (socket, address) = (SocketId { slot: number, generation: slot.generation }, slot.address);
        match slot.listener {
            Some(listener) => {
                self.counters.accepted += 1;
                Happened::Accepted(listener, socket, address)
            }
            None => {
                self.counters.connected += 1;
                Happened::Connected(socket, address)
            }
        }
    }

    fn on_received(&mut self, now: Nanos, number: u32, buffer: ReceivedBuffer) -> Happened {
        let SocketSlot { phase, generation, .. } = self.slots[number as usize];
        if !matches!(phase, SocketPhase::Securing | SocketPhase::Open) {
            self.driver.recycle(buffer);
            return Happened::Nothing;
        }
        self.counters.received_bytes += buffer.length as u64;
        let socket = SocketId { slot: number, generation };
        if self.slots[number as usize].tls.is_some() {
            let result = self.decrypt(now, socket, &buffer);
            self.driver.recycle(buffer);
            return result;
        }
        Happened::Received(socket, buffer)
    }

    /// Takes bytes of TLS. What the peer has sent with the end of its handshake is the next event.
    fn decrypt(&mut self, now: Nanos, socket: SocketId, buffer: &ReceivedBuffer) -> Happened {
        let slot = &mut self.slots[socket.slot as usize];
        let Some(tls) = &mut slot.tls else { return Happened::Nothing };
        let read = tls.channel.read(self.driver.received(buffer)).map(<[u8]>::is_empty);
        let (has_plain, wants_write) = (read == Ok(false), tls.channel.wants_write());
        let is_secured = slot.phase == SocketPhase::Securing && !tls.channel.is_handshaking();
        if wants_write {
            self.mark(socket.slot);
        }
        match read {
            Err(sentence) => self.refuse(now, socket, sentence),
            Ok(_) if is_secured => {
                if has_plain {
                    self.decrypted = Some(socket);
                }
                self.open_up(socket.slot)
            }
            Ok(_) if has_plain => Happened::Decrypted(socket),
            Ok(_) => Happened::Nothing,
        }
    }

    /// Closes a connection with a stranger, behind the sentence for it.
    fn refuse(&mut self, now: Nanos, socket: SocketId, sentence: String) -> Happened {
        self.counters.strangers += 1;
        let slot = &mut self.slots[socket.slot as usize];
        let address = slot.address;
        (slot.phase, slot.deadline) = (SocketPhase::Flushing, now + self.options.close_within);
        self.next_deadline = self.next_deadline.min(slot.deadline);
        self.finish_flushing(socket.slot);
        Happened::Closed(socket, SocketEnd::Stranger { address, sentence })
    }

    fn on_receive_ended(&mut self, number: u32, error: Option<io::Error>) -> Happened {
        let slot = &mut self.slots[number as usize];
        slot.is_ended = true;
        match (slot.phase, error) {
            // The peer may still take what was queued.
            (SocketPhase::Flushing, None) => Happened::Nothing,
            (_, None) => self.fail(number, SocketEnd::ClosedByPeer),
            (_, Some(error)) => self.fail(number, SocketEnd::Failed(error)),
        }
    }

    /// Ends a socket, and says so if its owner has not closed it.
    fn fail(&mut self, number: u32, end: SocketEnd) -> Happened {
        let SocketSlot { phase, generation, .. } = self.slots[number as usize];
        match phase {
            SocketPhase::Free | SocketPhase::Releasing => return Happened::Nothing,
            _ => self.release(number),
        }
        let is_owned = match phase {
            SocketPhase::Securing => self.slots[number as usize].listener.is_none(),
            phase => matches!(phase, SocketPhase::Connecting | SocketPhase::Open),
        };
        if is_owned {
            Happened::Closed(SocketId { slot: number, generation }, end)
        } else {
            Happened::Nothing
        }
    }
}

/// Makes the driver, and says which it is.
fn choose_driver(
    options: &SocketOptions,
    waker: &SocketWaker,
) -> io::Result<(Box<dyn SocketDriver>, String)> {
    let &SocketOptions { driver, sockets, outgoing_bytes, .. } = options;
    let why = if driver == DriverChoice::Poll {
        "as was asked for".to_owned()
    } else {
        match RingDriver::new(sockets, outgoing_bytes, waker.clone()) {
            Ok(ring) => {
                let copies = if ring.is_registered() { "" } else { ", which copies what it sends" };
                return Ok((Box::new(ring), format!("io_uring{copies}")));
            }
            Err(lack) if driver == DriverChoice::Uring => return Err(io::Error::other(lack)),
            Err(lack) => lack.to_string(),
        }
    };
    let poll = PollDriver::new(sockets, outgoing_bytes, waker.clone())?;
    Ok((Box::new(poll), format!("epoll: {why}")))
}

fn stream_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Makes a socket that is being connected.
fn dial(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = stream_socket(address)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    rustix::io::ioctl_fionbio(&fd, true)?;
    let result = match rustix::net::connect(&fd, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error),
    };
    // The drivers ask for calls that do not block one by one.
    rustix::io::ioctl_fionbio(&fd, false)?;
    result?;
    Ok(fd)
}

fn peer_address(fd: impl AsFd) -> io::Result<SocketAddr> {
    let address = rustix::net::getpeername(fd)?.ok_or(Errno::NOTCONN)?;
    Ok(SocketAddr::try_from(address)?)
}
