//! Connections whose peer has not said yet who it is: its first frame, the `Hello`, says so. A
//! stranger can hold a few bytes for a short time here, and nothing else.

use symphony_transport::Nanos;
use symphony_transport::tcp::SocketId;
use symphony_transport::wire::{
    CloseCode, Closing, HEADER_BYTES, HostRole, MAX_PAYLOAD_BYTES, Payload, decode,
};

/// The most connections that have not greeted.
const MOST: usize = 64;

/// A connection without a name.
struct Greeting {
    socket: SocketId,
    bytes: Vec<u8>,
    until: Nanos,
}

/// What the bytes of a connection say.
pub(super) enum Greeted {
    /// Not yet.
    Waits,
    /// The peer's role and number; the bytes that came are the link's.
    As((HostRole, u32), Vec<u8>),
    /// What is no peer, and why: the code and the sentence of the last frame.
    Refused(CloseCode, String),
}

/// What the first frame of a connection says of the peer.
pub(super) enum Introduction {
    /// Nothing: the frame is not whole yet.
    Partial,
    /// The peer's role and number.
    Host(HostRole, u32),
    /// Something else: the link's state machine knows what.
    Other,
}

/// Reads who the peer is from the first bytes that have come from it.
pub(super) fn introduction(bytes: &[u8]) -> Introduction {
    match decode(bytes) {
        Ok(None) if bytes.len() <= HEADER_BYTES + MAX_PAYLOAD_BYTES => Introduction::Partial,
        Ok(Some((Payload::Hello(hello, _), _))) => match HostRole::from_code(hello.role) {
            Some(role) => Introduction::Host(role, hello.number),
            None => Introduction::Other,
        },
        _ => Introduction::Other,
    }
}

/// The connections that have not greeted. See the module's description.
#[derive(Default)]
pub(super) struct Greetings(Vec<Greeting>);

impl Greetings {
    /// Adds a connection that has come. False if there are too many.
    pub(super) fn add(&mut self, socket: SocketId, until: Nanos) -> bool {
        let has_room = self.0.len() < MOST;
        if has_room {
            self.0.push(Greeting { socket, bytes: Vec::new(), until });
        }
        has_room
    }

    /// Takes bytes, if the connection is one of these.
    pub(super) fn take_in(&mut self, socket: SocketId, bytes: &[u8]) -> Option<Greeted> {
        let at = self.0.iter().position(|greeting| greeting.socket == socket)?;
        let greeting = &mut self.0[at];
        greeting.bytes.extend_from_slice(bytes);
        let greeted = match decode(&greeting.bytes) {
            Ok(None) if greeting.bytes.len() <= HEADER_BYTES + MAX_PAYLOAD_BYTES => {
                return Some(Greeted::Waits);
            }
            Ok(Some((Payload::Hello(hello, _), _))) => {
                let role = HostRole::from_code(hello.role);
                let no_role = (CloseCode::Protocol, "Hello: no such role".to_owned());
                role.map(|role| (role, hello.number)).ok_or(no_role)
            }
            Ok(_) => Err((CloseCode::Protocol, "the first frame of a connection is a Hello".to_owned())),
            Err(fault) => Err((fault.close_code(), fault.to_string())),
        };
        let bytes = self.0.swap_remove(at).bytes;
        Some(match greeted {
            Ok(peer) => Greeted::As(peer, bytes),
            Err((code, sentence)) => Greeted::Refused(code, sentence),
        })
    }

    /// Forgets a connection that is over.
    pub(super) fn remove(&mut self, socket: SocketId) {
        self.0.retain(|greeting| greeting.socket != socket);
    }

    /// Takes out a connection that has said nothing for too long.
    pub(super) fn take_late(&mut self, now: Nanos) -> Option<SocketId> {
        let at = self.0.iter().position(|greeting| greeting.until <= now)?;
        Some(self.0.swap_remove(at).socket)
    }
}

/// Returns the bytes of a last frame.
pub(super) fn closing(code: CloseCode, sentence: &str) -> Vec<u8> {
    let payload = Payload::Closing(Closing::new(code, sentence));
    let mut bytes = vec![0; payload.encoded_len()];
    // The room is what the frame takes.
    let _ = payload.encode(&mut bytes);
    bytes
}
