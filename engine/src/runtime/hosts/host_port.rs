//! A link with the bytes of its connection: what the ends of all links have in common.

use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms, Parting, SendRefusal};
use symphony_transport::wire::{CloseCode, Payload};

/// The most records in a frame of answers or completions.
pub(super) const RECORDS_PER_FRAME: usize = 32;

/// The room for one of the link's own frames. The first, `Hello`, has all models.
const OWN_FRAME_ROOM: usize = 1 << 10;

/// A [`HostLink`] with the bytes that came and those that are to go.
pub(super) struct HostPort {
    link: HostLink,
    /// The bytes of an offered model, all of which are in the first frame.
    hello_room: usize,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl HostPort {
    pub(super) fn new(terms: LinkTerms, now: Nanos) -> HostPort {
        let hello_room = OWN_FRAME_ROOM + size_of_val(&terms.models[..]);
        let (incoming, outgoing) = (Vec::new(), Vec::new());
        HostPort { link: HostLink::new(terms, now), hello_room, incoming, outgoing }
    }

    pub(super) fn link(&self) -> &HostLink {
        &self.link
    }

    /// Begins a connection.
    pub(super) fn connect(&mut self, now: Nanos) {
        self.incoming.clear();
        self.outgoing.clear();
        self.link.connected(now);
    }

    /// Ends the connection, which was closed or could not be made.
    pub(super) fn disconnect(&mut self, now: Nanos) -> Parting {
        self.incoming.clear();
        self.outgoing.clear();
        self.link.disconnected(now)
    }

    /// Ends the connection since this host stops: the bytes that are to go end with the reason.
    pub(super) fn leave(&mut self, now: Nanos) -> Parting {
        let unsent = std::mem::take(&mut self.outgoing);
        let parting = self.link.leave(now, "the host stops");
        self.part(&parting);
        let closing = std::mem::replace(&mut self.outgoing, unsent);
        self.outgoing.extend(closing);
        parting
    }

    /// Ends the connection for a reason that the link does not see: the bytes that are to go are
    /// that reason.
    pub(super) fn close(&mut self, now: Nanos, code: CloseCode, sentence: &str) -> Parting {
        let parting = self.link.close(now, code, sentence);
        self.part(&parting);
        parting
    }

    /// Takes bytes of the connection.
    pub(super) fn take_in(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that are to go to the peer.
    pub(super) fn outgoing_bytes(&self) -> usize {
        self.outgoing.len()
    }

    /// Returns the bytes that are to go to the peer, in place of which `outgoing` is empty.
    pub(super) fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Hands each message that has come to `take`, which returns how many records it had; then
    /// looks whether the peer is silent. Returns the end of the connection, if it has ended: the
    /// bytes that are to go end with the reason.
    pub(super) fn receive(
        &mut self,
        now: Nanos,
        mut take: impl FnMut(&HostLink, Payload<'_>) -> usize,
    ) -> Option<Parting> {
        let HostPort { link, incoming, .. } = self;
        let mut read = 0;
        let parting = loop {
            match link.receive(now, &incoming[read..]) {
                Ok(None) => break link.check_silence(now),
                Ok(Some((message, length))) => {
                    read += length;
                    if let Some(message) = message {
                        let records = take(link, message);
                        link.consumed(records as u64);
                    }
                }
                Err(parting) => break Some(parting),
            }
        };
        incoming.drain(..read);
        if let Some(parting) = &parting {
            self.part(parting);
        }
        parting
    }

    /// Drops what is left of a connection that is over, but for the reason to give to the peer.
    fn part(&mut self, parting: &Parting) {
        self.incoming.clear();
        self.outgoing.clear();
        if let Some(closing) = parting.closing() {
            let payload = Payload::Closing(closing);
            self.outgoing.resize(payload.encoded_len(), 0);
            // The room is what the frame takes.
            let length = payload.encode(&mut self.outgoing).unwrap_or(0);
            self.outgoing.truncate(length);
        }
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// The link is not up, or has no credits for it; nothing was sent.
    pub(super) fn send(&mut self, now: Nanos, payload: &Payload<'_>) -> Result<(), SendRefusal> {
        let begin = self.outgoing.len();
        self.outgoing.resize(begin + payload.encoded_len(), 0);
        let sent = self.link.send(now, payload, &mut self.outgoing[begin..]);
        self.outgoing.truncate(begin + sent.as_ref().copied().unwrap_or(0));
        sent.map(|_| ())
    }

    /// Sends the first records of `queue`, as many as there are credits for, and takes them out.
    pub(super) fn send_records<T: bytemuck::Pod>(
        &mut self,
        now: Nanos,
        queue: &mut Vec<T>,
        payload: impl for<'a> Fn(&'a [T]) -> Payload<'a>,
    ) {
        let mut sent = 0;
        let mut most = RECORDS_PER_FRAME;
        while sent < queue.len() {
            let end = queue.len().min(sent + most);
            match self.send(now, &payload(&queue[sent..end])) {
                Ok(()) => sent = end,
                Err(SendRefusal::NoCredit { left: left @ 1.., .. }) => most = left as usize,
                Err(_) => break,
            }
        }
        queue.drain(..sent);
    }

    /// Sends the link's own frames that are due.
    pub(super) fn send_own(&mut self, now: Nanos) {
        loop {
            let begin = self.outgoing.len();
            self.outgoing.resize(begin + self.hello_room, 0);
            let length = self.link.write(now, &mut self.outgoing[begin..]);
            self.outgoing.truncate(begin + length);
            if length == 0 {
                return;
            }
        }
    }
}

/// Returns an instant of the peer's clock by this host's, of something that has happened: so it is
/// not after now.
pub(super) fn happened(link: &HostLink, theirs: Nanos, now: Nanos) -> Nanos {
    link.clock().to_ours(theirs, now).map_or(now, |bounds| bounds.latest.min(now))
}
