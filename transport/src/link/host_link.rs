//! A link to one peer, over all of its connections: [`HostLink`]. Whoever has the socket drives it,
//! and a test with a network of its own.

use super::backoff::{self, Backoff};
use super::clock::PeerClock;
use super::credits::{ReceiveCredits, SendCredits, price};
use super::delays::DelayWindow;
use super::terms::{Disagreement, LinkTerms};
use crate::Nanos;
use crate::wire::{
    Accepted, Alive, CloseCode, Closing, CreditGrant, EncodeFault, Hello, Payload, TimeAnswer, TimeProbe,
    WireFault, decode,
};

/// A peer is taken for dead after so many heartbeats without a byte from it.
const HEARTBEATS: u64 = 2;

/// Probes for each heartbeat.
const PROBES: u64 = 4;

/// The delays of an epoch of the window, at least: fewer have no tail.
const LEAST_DELAYS: u64 = 64;

/// The end of a connection. The driver writes [`Parting::closing`], where there is one, and closes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parting {
    /// The reason to give the peer; `None` if the connection is gone, or the peer has closed it.
    pub code: Option<CloseCode>,
    /// The incarnation that is lost: nothing of it is accepted any more. `None` if the link was not
    /// up.
    pub lost: Option<u64>,
    /// The sentence for the log.
    pub sentence: String,
}

impl Parting {
    /// Returns the last frame for the peer.
    pub fn closing(&self) -> Option<Closing> {
        Some(Closing::new(self.code?, &self.sentence))
    }
}

/// An error that keeps a message from being sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendRefusal {
    /// The link is not up.
    #[error("the link is not up")]
    NotUp,
    /// The peer has not granted so many records.
    #[error("the message takes {needed} credits, {left} are left")]
    NoCredit {
        /// The message's credits.
        needed: u64,
        /// The credits left.
        left: u64,
    },
    /// The frame does not fit.
    #[error(transparent)]
    Encode(#[from] EncodeFault),
}

/// Where a link is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No connection; the next is made at this time.
    Down(Nanos),
    /// A connection, on which the hosts introduce themselves.
    Greeting,
    /// Both have accepted each other, since this time.
    Up(Nanos),
    /// The hosts do not fit: there is no further connection.
    Refused,
}

/// What belongs to one connection.
#[derive(Clone, Default, Debug)]
struct ConnectionState {
    greeted: bool,
    /// The peer, once it was accepted.
    peer: Option<Hello>,
    owes_accepted: bool,
    is_accepted: bool,
    heard: Nanos,
    wrote: Nanos,
    heartbeats: u64,
    probe_at: Nanos,
    /// When the probe was sent that has no answer yet.
    probed: Option<Nanos>,
    /// The probe to answer, and when it came.
    asked: Option<(Nanos, Nanos)>,
    to_peer: SendCredits,
    from_peer: ReceiveCredits,
}

/// A link to one peer: handshake, heartbeats, credits, the peer's clock, and when to connect again.
///
/// In each turn the driver calls, in this order:
///
/// 1. [`HostLink::connected`] or [`HostLink::disconnected`], if the socket says so;
/// 2. [`HostLink::receive`] until no whole frame is left. First, since what has come before the
///    driver was paused shows that the peer lives;
/// 3. [`HostLink::check_silence`];
/// 4. [`HostLink::send`] for its messages, then [`HostLink::write`] for the link's own frames.
///
/// It is due again at [`HostLink::next_timer`]. While [`HostLink::dial_at`] is some instant, the
/// side that dials connects then.
#[derive(Clone, Debug)]
pub struct HostLink {
    terms: LinkTerms,
    phase: Phase,
    connection: ConnectionState,
    /// The peer's incarnation of the last connection that was accepted.
    known: u64,
    clock: PeerClock,
    one_way: DelayWindow,
    /// The time that the last probe and its answer were under way.
    round_trip: Option<Nanos>,
    backoff: Backoff,
}

impl HostLink {
    /// Makes a link that is down, to be connected at `now`. `terms.hello.incarnation` has to be
    /// greater than any that an earlier process with this role and number has used, such as the
    /// nanoseconds since 1970.
    pub fn new(terms: LinkTerms, now: Nanos) -> HostLink {
        let backoff = Backoff::new(terms.hello.incarnation);
        let phase = Phase::Down(now);
        let connection = ConnectionState::default();
        let (clock, one_way) = (PeerClock::default(), DelayWindow::new(LEAST_DELAYS));
        HostLink { terms, phase, connection, known: 0, clock, one_way, round_trip: None, backoff }
    }

    /// Returns when to connect; `None` while there is a connection, or if there is to be none.
    pub fn dial_at(&self) -> Option<Nanos> {
        if let Phase::Down(at) = self.phase { Some(at) } else { None }
    }

    /// Returns true if messages can be sent.
    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up(_))
    }

    /// Returns the peer while the link is up: all messages are of this incarnation.
    pub fn peer(&self) -> Option<&Hello> {
        self.connection.peer.as_ref().filter(|_| self.is_up())
    }

    /// Returns true if the hosts do not fit, so that the link stays down.
    pub fn is_refused(&self) -> bool {
        self.phase == Phase::Refused
    }

    /// Returns this side's incarnation on the present connection.
    pub fn incarnation(&self) -> u64 {
        self.terms.hello.incarnation
    }

    /// Returns the peer's clock, to map the instants of its messages.
    pub fn clock(&self) -> &PeerClock {
        &self.clock
    }

    /// Returns the delays of the peer's frames on their way here: from the instant at which a probe
    /// or a heartbeat was written to that at which this side has read it, by the middle of the
    /// clock's bounds: so the delays of both directions together are right, and each is wrong by
    /// half of what the ways of the fastest probe differ by. Of the scheduler's frames at a backend
    /// that is d_ctrl; of a backend's at a frontend, d_resp.
    pub fn one_way(&self) -> &DelayWindow {
        &self.one_way
    }

    /// Returns the time that the last probe and its answer were under way; `None` before the first.
    pub fn round_trip(&self) -> Option<Nanos> {
        self.round_trip
    }

    /// Begins a connection: the next [`HostLink::write`] gives the `Hello`. Each connection is a
    /// new incarnation of this side. A peer that was refused and connects once more may have been
    /// started anew, and fit now.
    pub fn connected(&mut self, now: Nanos) {
        self.terms.hello.incarnation += 1;
        self.phase = Phase::Greeting;
        let from_peer = ReceiveCredits::new(self.terms.hello.credits);
        self.connection = ConnectionState { heard: now, wrote: now, from_peer, ..ConnectionState::default() };
    }

    /// Ends the connection, which the driver has found closed, or could not make.
    pub fn disconnected(&mut self, now: Nanos) -> Parting {
        self.part(now, None, "the connection was closed".to_owned())
    }

    /// Ends the connection since this host stops.
    pub fn leave(&mut self, now: Nanos, sentence: &str) -> Parting {
        self.close(now, CloseCode::Leaving, sentence)
    }

    /// Ends the connection for a reason that the link does not see.
    pub fn close(&mut self, now: Nanos, code: CloseCode, sentence: &str) -> Parting {
        self.part(now, Some(code), sentence.to_owned())
    }

    /// Returns the time between two frames after which the peer is taken for dead.
    pub fn patience(&self) -> Nanos {
        Nanos(self.terms.hello.heartbeat_every.0.saturating_mul(HEARTBEATS))
    }

    /// Reads the frame that `bytes` begin with, and returns its length, and its payload if it is a
    /// message and not one of the link's own. `None` as long as more bytes are needed.
    ///
    /// # Errors
    ///
    /// The connection is over: a frame was wrong, or the peer has closed it.
    pub fn receive<'a>(
        &mut self,
        now: Nanos,
        bytes: &'a [u8],
    ) -> Result<Option<(Option<Payload<'a>>, usize)>, Parting> {
        let decoded = match decode(bytes) {
            Ok(decoded) => decoded,
            Err(fault) => return Err(self.break_off(now, fault)),
        };
        let Some((payload, length)) = decoded else { return Ok(None) };
        self.connection.heard = now;
        if let Payload::Closing(closing) = payload {
            return Err(self.on_closing(now, closing));
        }
        let message = match self.phase {
            Phase::Greeting => self.greet(now, payload).map(|()| None),
            Phase::Up(_) => self.take(now, payload),
            Phase::Down(_) | Phase::Refused => {
                Err(disagreement(CloseCode::Protocol, "there is no connection".to_owned()))
            }
        };
        match message {
            Ok(message) => Ok(Some((message, length))),
            Err(Disagreement { code, sentence }) => Err(self.part(now, Some(code), sentence)),
        }
    }

    /// Notes that there is room again for so many of the records that came on this connection:
    /// rows, responses, entries. Records of an earlier connection take no credits of this one.
    pub fn consumed(&mut self, records: u64) {
        self.connection.from_peer.consume(records);
    }

    /// Ends the connection if nothing has come from the peer for two heartbeats.
    pub fn check_silence(&mut self, now: Nanos) -> Option<Parting> {
        let has_connection = matches!(self.phase, Phase::Greeting | Phase::Up(_));
        if !has_connection || now < self.silent_at() {
            return None;
        }
        let silence = now - self.connection.heard;
        let sentence = format!("nothing came for {silence:?}, {HEARTBEATS} heartbeats");
        Some(self.part(now, Some(CloseCode::Silent), sentence))
    }

    /// Writes a message to the peer, and returns the frame's length.
    ///
    /// # Errors
    ///
    /// The link is not up, the credits do not suffice, or the frame does not fit. Nothing was
    /// written, and no credit taken.
    pub fn send(
        &mut self,
        now: Nanos,
        payload: &Payload<'_>,
        buffer: &mut [u8],
    ) -> Result<usize, SendRefusal> {
        if !self.is_up() {
            return Err(SendRefusal::NotUp);
        }
        let (needed, left) = (price(payload), self.connection.to_peer.left());
        if needed > left {
            return Err(SendRefusal::NoCredit { needed, left });
        }
        let length = payload.encode(buffer)?;
        self.connection.to_peer.take(needed);
        self.connection.wrote = now;
        Ok(length)
    }

    /// Writes the next of the link's own frames that is due, and returns its length; zero if none
    /// is, or the buffer has no room for it. Call it until it returns zero.
    pub fn write(&mut self, now: Nanos, buffer: &mut [u8]) -> usize {
        if self.phase == Phase::Greeting && !self.connection.greeted {
            let hello = Payload::Hello(self.terms.hello, (&self.terms.models[..]).into());
            let length = hello.encode(buffer).unwrap_or(0);
            self.connection.greeted = length > 0;
            return length;
        }
        let Some(payload) = self.due(now) else { return 0 };
        let Ok(length) = payload.encode(buffer) else { return 0 };
        self.wrote(now, payload);
        length
    }

    /// Returns when the link has something to write or to find out, if nothing comes before.
    pub fn next_timer(&self) -> Nanos {
        match self.phase {
            Phase::Down(at) => at,
            Phase::Refused => Nanos::MAX,
            Phase::Greeting => self.silent_at(),
            Phase::Up(_) => self.silent_at().min(self.alive_at()).min(self.probe_at()),
        }
    }

    fn silent_at(&self) -> Nanos {
        self.connection.heard + self.patience()
    }

    fn alive_at(&self) -> Nanos {
        self.connection.wrote + self.terms.hello.heartbeat_every
    }

    fn probe_at(&self) -> Nanos {
        if self.connection.probed.is_some() { Nanos::MAX } else { self.connection.probe_at }
    }

    /// The next of the link's own frames after the `Hello`.
    fn due(&self, now: Nanos) -> Option<Payload<'static>> {
        let connection = &self.connection;
        if connection.owes_accepted {
            let incarnation = connection.peer.as_ref()?.incarnation;
            return Some(Payload::Accepted(Accepted { incarnation }));
        }
        if !self.is_up() {
            return None;
        }
        if let Some((sent, received)) = connection.asked {
            return Some(Payload::TimeAnswer(TimeAnswer { sent, received, answered: now }));
        }
        if let Some(total) = connection.from_peer.due() {
            return Some(Payload::Credit(CreditGrant { total }));
        }
        if now >= self.probe_at() {
            return Some(Payload::TimeProbe(TimeProbe { sent: now }));
        }
        let number = connection.heartbeats;
        (now >= self.alive_at()).then_some(Payload::Alive(Alive { number, sent: now }))
    }

    /// Notes that one of the link's own frames was written.
    fn wrote(&mut self, now: Nanos, payload: Payload<'_>) {
        let every = Nanos(self.terms.hello.heartbeat_every.0 / PROBES);
        let connection = &mut self.connection;
        connection.wrote = now;
        match payload {
            Payload::Accepted(_) => {
                connection.owes_accepted = false;
                self.go_up(now);
            }
            Payload::TimeAnswer(_) => connection.asked = None,
            Payload::Credit(CreditGrant { total }) => connection.from_peer.told(total),
            Payload::TimeProbe(_) => (connection.probed, connection.probe_at) = (Some(now), now + every),
            Payload::Alive(_) => connection.heartbeats += 1,
            _ => {}
        }
    }

    /// Goes up if both sides have accepted each other.
    fn go_up(&mut self, now: Nanos) {
        let ConnectionState { peer, owes_accepted, is_accepted, .. } = &self.connection;
        if self.phase == Phase::Greeting && peer.is_some() && !owes_accepted && *is_accepted {
            self.phase = Phase::Up(now);
        }
    }

    /// Takes a frame of the handshake.
    fn greet(&mut self, now: Nanos, payload: Payload<'_>) -> Result<(), Disagreement> {
        match payload {
            Payload::Hello(theirs, models) if self.connection.peer.is_none() => {
                self.terms.check(&theirs, models, self.known)?;
                // Another process's clock has another origin.
                self.clock = PeerClock::default();
                self.one_way = DelayWindow::new(LEAST_DELAYS);
                self.round_trip = None;
                self.known = theirs.incarnation;
                self.connection.to_peer = SendCredits::new(theirs.credits);
                self.connection.peer = Some(theirs);
                self.connection.owes_accepted = true;
                Ok(())
            }
            Payload::Accepted(Accepted { incarnation }) if incarnation != self.incarnation() => {
                let ours = self.incarnation();
                let sentence = format!("Accepted: incarnation is {incarnation}, where it should be {ours}");
                Err(disagreement(CloseCode::Protocol, sentence))
            }
            Payload::Accepted(_) if !self.connection.is_accepted => {
                self.connection.is_accepted = true;
                self.go_up(now);
                Ok(())
            }
            other => {
                let sentence = format!("{} is no frame of the handshake, or came twice", other.kind());
                Err(disagreement(CloseCode::Protocol, sentence))
            }
        }
    }

    /// Takes a frame of a link that is up.
    fn take<'a>(&mut self, now: Nanos, payload: Payload<'a>) -> Result<Option<Payload<'a>>, Disagreement> {
        let records = price(&payload);
        if !self.connection.from_peer.receive(records) {
            let sentence = format!("{}: {records} records, more than were granted", payload.kind());
            return Err(disagreement(CloseCode::Protocol, sentence));
        }
        match payload {
            Payload::Hello(..) | Payload::Accepted(_) | Payload::Closing(_) => {
                let sentence = format!("{} after the handshake", payload.kind());
                return Err(disagreement(CloseCode::Protocol, sentence));
            }
            Payload::Alive(Alive { sent, .. }) => self.note_delay(now, sent),
            Payload::Credit(CreditGrant { total }) => self.connection.to_peer.on_grant(total),
            Payload::TimeProbe(TimeProbe { sent }) => {
                self.connection.asked = Some((sent, now));
                self.note_delay(now, sent);
            }
            Payload::TimeAnswer(answer) => self.on_time_answer(now, answer)?,
            message => return Ok(Some(message)),
        }
        Ok(None)
    }

    /// Notes the delay of a frame of the peer, once its clock can be mapped.
    fn note_delay(&mut self, now: Nanos, sent: Nanos) {
        if let Some(bounds) = self.clock.to_ours(sent, now) {
            self.one_way.record(Nanos(now.0.saturating_sub(bounds.middle().0)), now);
        }
    }

    fn on_time_answer(&mut self, now: Nanos, answer: TimeAnswer) -> Result<(), Disagreement> {
        if self.connection.probed.take() == Some(answer.sent) && self.clock.on_answer(answer, now) {
            self.round_trip = Some((now - answer.sent) - (answer.answered - answer.received));
            return Ok(());
        }
        let sentence = "TimeAnswer: an answer to no probe, or one that no clock gives".to_owned();
        Err(disagreement(CloseCode::Protocol, sentence))
    }

    fn on_closing(&mut self, now: Nanos, closing: Closing) -> Parting {
        let parting = self.part(now, None, format!("the peer says: {}", closing.sentence));
        if CloseCode::from_code(closing.code) == Some(CloseCode::Mismatch) {
            self.phase = Phase::Refused;
        }
        parting
    }

    /// Ends the connection over a frame that could not be read.
    fn break_off(&mut self, now: Nanos, fault: WireFault) -> Parting {
        self.part(now, Some(fault.close_code()), fault.to_string())
    }

    /// Ends the connection and decides when there is to be another.
    fn part(&mut self, now: Nanos, code: Option<CloseCode>, sentence: String) -> Parting {
        let lost = self.peer().map(|peer| peer.incarnation);
        if let Phase::Up(since) = self.phase
            && now - since >= backoff::LONGEST
        {
            self.backoff.reset();
        }
        self.phase = match (code, self.phase) {
            (Some(CloseCode::Mismatch), _) | (_, Phase::Refused) => Phase::Refused,
            _ => Phase::Down(now + self.backoff.pause()),
        };
        self.connection = ConnectionState::default();
        Parting { code, lost, sentence }
    }
}

fn disagreement(code: CloseCode, sentence: String) -> Disagreement {
    Disagreement { code, sentence }
}
