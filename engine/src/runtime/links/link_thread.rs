//! The agent of the links: see the room's description.

use super::board::{LinkBoard, LinkState, LinkView};
use super::greetings::{Greeted, Greetings, Introduction, closing, introduction};
use super::resolver::{Resolved, Resolver};
use crate::config::Role;
use crate::runtime::discovery::{Directory, DirectoryPeer, RunningDiscovery};
use crate::runtime::hosts::{Host, HostPeer};
use crate::runtime::threads::agent::Agent;
use std::sync::Arc;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, PeerClock};
use symphony_transport::rdma::RdmaCounters;
use symphony_transport::tcp::{SocketEnd, SocketEvent, SocketId, Sockets};
use symphony_transport::wire::{CloseCode, HostRole, MeasuredDelays};

/// The time between two looks at the links for others.
const SHOWN_EVERY: Nanos = Nanos::from_millis(20);

/// The share of delays that are not longer than what is shown.
const SHOWN_SHARE: f64 = 0.99;

/// The time that a connection has to say who its peer is.
const GREET_WITHIN: Nanos = Nanos::from_secs(2);

/// Bytes that wait for a connection after which its link gives no more.
const MOST_WAITING: usize = 512 << 10;

/// The connection of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LinkSocket {
    #[default]
    None,
    /// A connection whose peer's name is looked up.
    Resolving,
    /// A connection that is being made.
    Dialing(SocketId),
    Open(SocketId),
}

/// A link with its connection.
#[derive(Default)]
struct LinkEnd {
    socket: LinkSocket,
    /// The bytes that are to go, and how many of them the socket has.
    out: Vec<u8>,
    queued: usize,
    is_up: bool,
    /// The first bytes from an address where another host than the link's may be, until they say
    /// who it is.
    unproven: Option<Vec<u8>>,
}

/// What has happened to a socket, without the bytes of the event.
enum SocketChange {
    Accepted(SocketId),
    Connected(SocketId),
    Greeted(SocketId, Greeted),
    /// The bytes of the peer of a link, which has said who it is.
    Introduced(usize, Vec<u8>),
    /// Another host than the link's peer was found where that was dialled.
    Mistaken(usize, (HostRole, u32)),
    Closed(SocketId, SocketEnd),
}

/// The agent of the links. See the room's description.
pub(super) struct LinkThread {
    host: Box<dyn Host>,
    peers: Vec<HostPeer>,
    sockets: Sockets,
    ends: Vec<LinkEnd>,
    greetings: Greetings,
    resolver: Resolver,
    discovery: RunningDiscovery,
    directory: Directory,
    board: Arc<LinkBoard>,
    shown: Nanos,
    /// The host was told to leave.
    drains: bool,
}

impl LinkThread {
    pub(super) fn new(
        host: Box<dyn Host>,
        peers: Vec<HostPeer>,
        sockets: Sockets,
        (resolver, discovery): (Resolver, RunningDiscovery),
        board: Arc<LinkBoard>,
    ) -> LinkThread {
        let ends = peers.iter().map(|_| LinkEnd::default()).collect();
        let (greetings, shown) = (Greetings::default(), Nanos::ZERO);
        let entry = |(at, HostPeer { name, role, dials, address }): (usize, &HostPeer)| DirectoryPeer {
            role: *role,
            number: host.peer(at).1,
            name: name.clone(),
            dials: *dials,
            address: address.clone(),
        };
        let is_fixed = discovery.board.is_none();
        let directory = Directory::new(peers.iter().enumerate().map(entry), is_fixed);
        let drains = false;
        LinkThread {
            host,
            peers,
            sockets,
            ends,
            greetings,
            resolver,
            discovery,
            directory,
            board,
            shown,
            drains,
        }
    }

    /// Takes what the source of discovery has found out.
    fn take_updates(&mut self) {
        while let Some(update) = self.discovery.take() {
            let changes = self.directory.update(update);
            changes.iter().for_each(|change| tracing::info!("discovery: {change}"));
            let known = self.directory.known();
            self.board.discovery_board().into_iter().for_each(|board| board.set_known(known, changes.len()));
        }
    }

    /// Has the source take this host's key back.
    pub(super) fn begin_leaving(&mut self) {
        self.discovery.begin_stop();
    }

    /// Returns the sockets, for the thread to sleep in.
    pub(super) fn sockets_mut(&mut self) -> &mut Sockets {
        &mut self.sockets
    }

    /// Takes what has happened to the sockets.
    fn take_events(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        loop {
            let LinkThread { sockets, ends, greetings, host, board, directory, .. } = self;
            let change = match sockets.next(now) {
                None => return taken,
                Some(SocketEvent::Received { socket, bytes }) => {
                    taken += 1;
                    if let Some(at) = ends.iter().position(|end| end.socket == LinkSocket::Open(socket)) {
                        board.update(|links| links[at].bytes[0] += bytes.len() as u64);
                        match take_first(&mut ends[at].unproven, bytes) {
                            First::Proven => {
                                host.take_in(at, bytes);
                                continue;
                            }
                            First::Partial => continue,
                            First::Said(bytes, who) => match who {
                                Some(other) if !directory.found(at, (role_of(other.0), other.1)) => {
                                    SocketChange::Mistaken(at, other)
                                }
                                _ => SocketChange::Introduced(at, bytes),
                            },
                        }
                    } else {
                        let Some(greeted) = greetings.take_in(socket, bytes) else { continue };
                        SocketChange::Greeted(socket, greeted)
                    }
                }
                Some(SocketEvent::Accepted { socket, .. }) => SocketChange::Accepted(socket),
                Some(SocketEvent::Connected { socket, .. }) => SocketChange::Connected(socket),
                Some(SocketEvent::Closed { socket, end }) => SocketChange::Closed(socket, end),
                Some(SocketEvent::AcceptFailed { error, .. }) => {
                    tracing::warn!("a connection could not be accepted: {error}");
                    continue;
                }
            };
            taken += 1;
            self.apply(now, change);
        }
    }

    fn apply(&mut self, now: Nanos, change: SocketChange) {
        match change {
            SocketChange::Accepted(socket) => {
                if !self.greetings.add(socket, now + GREET_WITHIN) {
                    self.sockets.close(now, socket);
                }
            }
            SocketChange::Connected(socket) => {
                let Some(at) = self.link_of(LinkSocket::Dialing(socket)) else { return };
                let role = self.host.peer(at).0;
                if self.sockets.peer_may_be(socket, role) {
                    return self.open(at, socket, now);
                }
                self.refuse(now, socket, &closing(CloseCode::Mismatch, &wrong_role(role)));
                self.ended(at, now, &wrong_role(role));
            }
            SocketChange::Introduced(at, bytes) => self.host.take_in(at, &bytes),
            SocketChange::Mistaken(at, other) => self.turn_away(at, other, now),
            SocketChange::Greeted(_, Greeted::Waits) => {}
            SocketChange::Greeted(socket, Greeted::Refused(code, sentence)) => {
                tracing::warn!("a connection was refused: {sentence}");
                self.refuse(now, socket, &closing(code, &sentence));
            }
            SocketChange::Greeted(socket, Greeted::As(peer, bytes)) => self.greet(now, socket, peer, &bytes),
            SocketChange::Closed(socket, end) => self.on_closed(now, socket, &end),
        }
    }

    /// Closes the connection of a link to a host that is not its peer. Another address is dialled
    /// next, if there is one.
    fn turn_away(&mut self, at: usize, (role, number): (HostRole, u32), now: Nanos) {
        let LinkSocket::Open(socket) = self.ends[at].socket else { return };
        let HostPeer { name, role: meant, .. } = &self.peers[at];
        let why = format!("{} {name} was looked for, and {} {number} is there", meant.name(), role.name());
        self.refuse(now, socket, &closing(CloseCode::Leaving, &why));
        self.ended(at, now, &why);
    }

    fn link_of(&self, socket: LinkSocket) -> Option<usize> {
        self.ends.iter().position(|end| end.socket == socket)
    }

    /// Gives a connection to a link.
    fn open(&mut self, at: usize, socket: SocketId, now: Nanos) {
        let unproven = (self.peers[at].dials && self.directory.is_discovered()).then(Vec::new);
        self.ends[at] = LinkEnd { socket: LinkSocket::Open(socket), unproven, ..LinkEnd::default() };
        self.host.connect(at, now);
    }

    /// Gives a connection to the link of the peer that it is from: one that the peer dials.
    fn greet(&mut self, now: Nanos, socket: SocketId, peer: (HostRole, u32), bytes: &[u8]) {
        let mut links = 0..self.host.links();
        let is_meant = |at: &usize| self.host.peer(*at) == peer && !self.peers[*at].dials;
        let Some(at) = links.find(is_meant) else {
            let (role, number) = (peer.0.name(), peer.1);
            let sentence = format!("this host expects no connection of {role} {number}: is CONFIG the same?");
            tracing::warn!("a connection was refused: {sentence}");
            return self.refuse(now, socket, &closing(CloseCode::Mismatch, &sentence));
        };
        if !self.sockets.peer_may_be(socket, peer.0) {
            tracing::warn!("a connection was refused: {}", wrong_role(peer.0));
            return self.refuse(now, socket, &closing(CloseCode::Mismatch, &wrong_role(peer.0)));
        }
        if let LinkSocket::Open(before) = self.ends[at].socket {
            self.sockets.close(now, before);
        }
        self.open(at, socket, now);
        self.host.take_in(at, bytes);
    }

    /// Closes a connection behind these last bytes.
    fn refuse(&mut self, now: Nanos, socket: SocketId, bytes: &[u8]) {
        // One that takes nothing is closed all the same.
        let _ = self.sockets.send(socket, bytes);
        self.sockets.close(now, socket);
    }

    fn on_closed(&mut self, now: Nanos, socket: SocketId, end: &SocketEnd) {
        self.greetings.remove(socket);
        let is_meant =
            |of: &LinkEnd| of.socket == LinkSocket::Open(socket) || of.socket == LinkSocket::Dialing(socket);
        if let Some(at) = self.ends.iter().position(is_meant) {
            self.ended(at, now, &end.to_string());
        }
    }

    /// Notes that a link has no connection any more. The last bytes that came may say why.
    fn ended(&mut self, at: usize, now: Nanos, why: &str) {
        let LinkEnd { socket, is_up, unproven, .. } = std::mem::take(&mut self.ends[at]);
        self.directory.failed(at, unproven.is_none() && matches!(socket, LinkSocket::Open(_)));
        let last = self.host.read(at, now).filter(|_| matches!(socket, LinkSocket::Open(_)));
        if last.is_none() {
            self.host.disconnect(at, now);
        }
        self.note_end(at, is_up, last.as_ref().map_or(why, |parting| &parting.sentence));
    }

    /// Logs what a device has done beside a link.
    fn note_counters(&self, at: usize) {
        let Some(RdmaCounters { reads, stale_reads, read_bytes, writes, .. }) = self.host.direct_counters(at)
        else {
            return;
        };
        let HostPeer { name, role, .. } = &self.peers[at];
        tracing::info!(
            "RDMA with {} {name}: {reads} one-sided reads of {read_bytes} bytes, {stale_reads} of slots that were \
             another's by then, {writes} writes of outputs",
            role.name()
        );
    }

    fn note_end(&mut self, at: usize, was_up: bool, why: &str) {
        let HostPeer { name, role, .. } = &self.peers[at];
        let is_refused = self.host.link(at).is_refused();
        let mut is_new = false;
        self.board.update(|links| {
            is_new = links[at].last_end != why;
            links[at].last_end = why.to_owned();
        });
        if is_refused {
            tracing::error!("{} {name} and this host do not fit: {why}", role.name());
        } else if was_up {
            tracing::warn!("the link to {} {name} is down: {why}", role.name());
        } else if is_new {
            tracing::info!("no link to {} {name}: {why}", role.name());
        }
    }

    /// Reads what has come on the links, and ends connections that are over.
    fn read_links(&mut self, now: Nanos) {
        for at in 0..self.ends.len() {
            let LinkSocket::Open(socket) = self.ends[at].socket else { continue };
            match self.host.read(at, now) {
                Some(parting) => {
                    let last = self.host.take_out(at, now);
                    let LinkEnd { is_up: was_up, unproven, .. } = std::mem::take(&mut self.ends[at]);
                    self.directory.failed(at, unproven.is_none());
                    self.refuse(now, socket, &last);
                    self.note_end(at, was_up, &parting.sentence);
                }
                None => self.note_up(at),
            }
        }
    }

    fn note_up(&mut self, at: usize) {
        if self.host.link(at).is_up() && !std::mem::replace(&mut self.ends[at].is_up, true) {
            let HostPeer { name, role, .. } = &self.peers[at];
            tracing::info!("the link to {} {name} is up", role.name());
            self.board.update(|links| links[at].connections += 1);
        }
    }

    /// Connects the links whose time has come.
    fn dial(&mut self, now: Nanos) {
        while let Some(late) = self.greetings.take_late(now) {
            self.sockets.close(now, late);
        }
        while let Some(resolved) = self.resolver.take() {
            self.connect(now, resolved);
        }
        for at in 0..self.ends.len() {
            if self.dial_at(at) > now {
                continue;
            }
            let Some(address) = self.directory.dial(at) else { continue };
            self.ends[at].socket = LinkSocket::Resolving;
            if let Some(resolved) = self.resolver.ask(at, &address) {
                self.connect(now, resolved);
            }
        }
    }

    /// Returns when to dial the peer of a link; never where it has a connection, or no address is
    /// known. One that has registered anew is dialled at once, also if it did not fit before.
    fn dial_at(&self, at: usize) -> Nanos {
        if self.ends[at].socket != LinkSocket::None || !self.directory.has_address(at) {
            return Nanos::MAX;
        }
        if self.directory.has_news(at) {
            return Nanos::ZERO;
        }
        self.host.link(at).dial_at().unwrap_or(Nanos::MAX)
    }

    fn connect(&mut self, now: Nanos, (at, address): Resolved) {
        let socket =
            address.and_then(|address| self.sockets.connect(now, address).map_err(|error| error.to_string()));
        match socket {
            Ok(socket) => self.ends[at].socket = LinkSocket::Dialing(socket),
            Err(why) => self.ended(at, now, &why),
        }
    }

    /// Hands the links' bytes to their sockets, as far as these have room.
    fn write(&mut self, now: Nanos) -> usize {
        let LinkThread { host, ends, sockets, board, .. } = self;
        let mut sent = 0;
        for (at, end) in ends.iter_mut().enumerate() {
            let LinkSocket::Open(socket) = end.socket else { continue };
            if end.out.len() - end.queued < MOST_WAITING {
                let more = host.take_out(at, now);
                if end.queued == end.out.len() {
                    (end.out, end.queued) = (more, 0);
                } else {
                    end.out.extend(more);
                }
            }
            let bytes = sockets.room(socket).min(end.out.len() - end.queued);
            if bytes > 0 && sockets.send(socket, &end.out[end.queued..end.queued + bytes]).is_ok() {
                end.queued += bytes;
                sent += bytes;
                board.update(|links| links[at].bytes[1] += bytes as u64);
            }
        }
        sockets.flush();
        sent
    }

    /// Shows others the state of the links.
    fn show(&mut self, now: Nanos) {
        if now < self.shown + SHOWN_EVERY {
            return;
        }
        self.shown = now;
        let LinkThread { host, ends, board, drains, .. } = self;
        board.set_idle(*drains && host.is_idle() && ends.iter().all(|end| end.queued == end.out.len()));
        board.update(|links| {
            for (at, view) in links.iter_mut().enumerate() {
                let link = host.link(at);
                view.state = state_of(link, ends[at].socket);
                show_network(view, link, now);
                show_fetches(view, host.told_delays(at).filter(|_| link.is_up()));
            }
        });
    }
}

/// What has become of the first bytes of a connection.
enum First {
    /// No more: who the peer is was found out before.
    Proven,
    /// Nothing yet.
    Partial,
    /// All of them, and whom they name.
    Said(Vec<u8>, Option<(HostRole, u32)>),
}

/// Adds to the first bytes of a connection until they say who the peer is.
fn take_first(unproven: &mut Option<Vec<u8>>, bytes: &[u8]) -> First {
    let Some(first) = unproven else { return First::Proven };
    first.extend_from_slice(bytes);
    let who = match introduction(first) {
        Introduction::Partial => return First::Partial,
        Introduction::Host(role, number) => Some((role, number)),
        Introduction::Other => None,
    };
    First::Said(unproven.take().unwrap_or_default(), who)
}

/// Returns the role in CONFIG of one on the wire.
fn role_of(role: HostRole) -> Role {
    match role {
        HostRole::Frontend => Role::Frontend,
        HostRole::Scheduler => Role::Scheduler,
        HostRole::Backend => Role::Backend,
    }
}

/// Says that a peer's certificate is of hosts of another role.
fn wrong_role(role: HostRole) -> String {
    format!("the peer's certificate is of another role than {}, by its DNS names", role.name())
}

/// Sets what is known of the network between the hosts, while the link is up.
fn show_network(view: &mut LinkView, link: &HostLink, now: Nanos) {
    let clock = link.is_up().then(|| link.clock());
    view.clock_offset_ns = clock.and_then(|clock| clock.offset_ns(now));
    view.clock_error = clock.and_then(|clock| clock.error(now));
    let drift = clock.and_then(PeerClock::drift_ppb);
    view.clock_drift_ppb = drift.map(|bounds| bounds.start().midpoint(*bounds.end()));
    view.round_trip = link.round_trip().filter(|_| link.is_up());
    view.delay = link.one_way().percentile(SHOWN_SHARE).filter(|_| link.is_up());
}

/// Sets what the peer has told of its fetches, while the link is up.
fn show_fetches(view: &mut LinkView, told: Option<&MeasuredDelays>) {
    let known = |delay: Nanos| (delay < Nanos::MAX).then_some(delay);
    view.fetch = told.and_then(|told| known(told.fetch));
    view.fetch_per_kib = told.and_then(|told| known(told.fetch_per_kib));
}

fn state_of(link: &HostLink, socket: LinkSocket) -> LinkState {
    match socket {
        _ if link.is_refused() => LinkState::Refused,
        _ if link.is_up() => LinkState::Up,
        LinkSocket::Open(_) => LinkState::Greeting,
        _ => LinkState::Down,
    }
}

/// Returns the first views of the links to these peers.
pub(super) fn first_views(peers: &[HostPeer]) -> Vec<LinkView> {
    let view = |HostPeer { name, role, .. }: &HostPeer| LinkView {
        peer: name.clone(),
        role: *role,
        state: LinkState::Down,
        connections: 0,
        clock_offset_ns: None,
        clock_error: None,
        clock_drift_ppb: None,
        round_trip: None,
        delay: None,
        fetch: None,
        fetch_per_kib: None,
        bytes: [0; 2],
        last_end: String::new(),
    };
    peers.iter().map(view).collect()
}

impl Agent for LinkThread {
    fn poll(&mut self, now: Nanos) -> usize {
        if self.board.is_draining() {
            self.host.drain();
            self.drains = true;
        }
        self.take_updates();
        let mut work = self.take_events(now);
        self.read_links(now);
        self.dial(now);
        work += self.host.turn(now);
        work += self.write(now);
        self.show(now);
        work
    }

    fn next_due(&self) -> Nanos {
        if self.host.awaits_device() {
            return Nanos::ZERO;
        }
        let due = |at: usize| match self.ends[at].socket {
            LinkSocket::None => self.dial_at(at),
            LinkSocket::Resolving | LinkSocket::Dialing(_) => Nanos::MAX,
            LinkSocket::Open(_) => self.host.link(at).next_timer(),
        };
        (0..self.ends.len()).map(due).min().unwrap_or(Nanos::MAX).min(self.sockets.next_timer())
    }

    /// Says to each peer that the host leaves.
    fn stop(&mut self, now: Nanos) {
        // What threads have said last.
        self.poll(now);
        (0..self.ends.len()).for_each(|at| self.note_counters(at));
        self.host.leave(now);
        self.write(now);
        for at in 0..self.ends.len() {
            if let LinkSocket::Open(socket) = self.ends[at].socket {
                self.sockets.close(now, socket);
            }
        }
        self.sockets.flush();
    }
}
