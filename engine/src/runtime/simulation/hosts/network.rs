//! A connection between two hosts: bytes come in order, after a delay of their own on each
//! connection; it is closed with and without a word.

use super::super::dice::Dice;
use std::collections::VecDeque;
use symphony_transport::Nanos;

/// The longest delay of the network.
pub(super) const LONGEST_DELAY: Nanos = Nanos::from_millis(3);

/// What comes to a host.
pub(super) enum ConnectionEvent {
    Bytes(Vec<u8>),
    /// The connection is closed.
    Closed,
}

/// The ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The host that connects.
    Dialer = 0,
    /// The host that listens.
    Acceptor = 1,
}

impl End {
    pub(super) const BOTH: [End; 2] = [End::Dialer, End::Acceptor];
}

/// A connection.
#[derive(Default)]
pub(super) struct Connection {
    /// What is under way to each end, with the time at which it comes.
    to: [VecDeque<(Nanos, ConnectionEvent)>; 2],
    /// Nothing passes any more, and nobody is told.
    pub(super) is_cut: bool,
}

impl Connection {
    /// Puts bytes on their way from an end.
    pub(super) fn send(&mut self, now: Nanos, from: End, delivery: ConnectionEvent, dice: &mut Dice) {
        let delay = if dice.chance(0.02) {
            dice.time(Nanos::from_micros(100), LONGEST_DELAY)
        } else {
            dice.time(Nanos::from_micros(10), Nanos::from_micros(60))
        };
        let queue = &mut self.to[1 - from as usize];
        let last = queue.back().map_or(Nanos::ZERO, |(comes, _)| *comes);
        if !self.is_cut {
            queue.push_back(((now + delay).max(last), delivery));
        }
    }

    /// Returns what comes to an end next, if it has come.
    pub(super) fn receive(&mut self, now: Nanos, at: End) -> Option<ConnectionEvent> {
        self.to[at as usize].pop_front_if(|(comes, _)| *comes <= now).map(|(_, delivery)| delivery)
    }
}
