//! Names of hosts to addresses. A look-up may take seconds, so it runs on a thread of its own; a
//! name is looked up again for each connection, since what it stands for may change.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use symphony_transport::tcp::SocketWaker;

/// An answer: the link, and the address or why there is none.
pub(super) type Resolved = (usize, Result<SocketAddr, String>);

/// The ends of the thread's channels; it ends when this is dropped.
pub(super) struct Resolver {
    names: Sender<(usize, String)>,
    answers: Receiver<Resolved>,
}

impl Resolver {
    /// Starts the thread, which wakes the thread of the links when it has an answer.
    ///
    /// Errors: the system gives no thread.
    pub(super) fn start(waker: SocketWaker) -> std::io::Result<Resolver> {
        let (names, asked) = channel::<(usize, String)>();
        let (answer, answers) = channel();
        std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
            while let Ok((link, name)) = asked.recv() {
                if answer.send((link, resolve(&name))).is_err() {
                    return;
                }
                waker.wake();
            }
        })?;
        Ok(Resolver { names, answers })
    }

    /// Looks up the address of a link's peer. One that is no name is there at once.
    pub(super) fn ask(&mut self, link: usize, name: &str) -> Option<Resolved> {
        if let Ok(address) = name.parse() {
            return Some((link, Ok(address)));
        }
        let sent = self.names.send((link, name.to_owned()));
        sent.err().map(|_| (link, Err("the resolver has ended".to_owned())))
    }

    /// Returns the next answer that has come.
    pub(super) fn take(&mut self) -> Option<Resolved> {
        self.answers.try_recv().ok()
    }
}

/// Returns the first address of a name.
pub(super) fn resolve(name: &str) -> Result<SocketAddr, String> {
    let addresses = name.to_socket_addrs().map_err(|error| format!("{name} can't be resolved: {error}"))?;
    addresses.into_iter().next().ok_or_else(|| format!("{name} has no address"))
}
