//! What a host's links are to whoever has its sockets: [`Host`]. The thread of the links drives one
//! over TCP, a simulation over a network of its own.

use crate::config::{DiscoveryConfig, LinkTlsFiles, Role};
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, Parting};
use symphony_transport::rdma::RdmaCounters;
use symphony_transport::wire::{HostRole, MeasuredDelays};

/// A host: its links, numbered from 0, and what passes between them and the process's threads. It
/// has no socket, no thread and no clock.
///
/// In each turn the driver calls, for each link, [`Host::connect`] or [`Host::disconnect`] if its
/// socket says so, [`Host::take_in`] with the bytes that came, and [`Host::read`]; then once
/// [`Host::turn`]; then [`Host::take_out`] for each link.
pub(crate) trait Host: Send {
    /// Returns the number of links.
    fn links(&self) -> usize;

    /// Returns a link: when to connect, and whether it is up.
    fn link(&self, at: usize) -> &HostLink;

    /// Returns the role and number of the peer of a link.
    fn peer(&self, at: usize) -> (HostRole, u32);

    /// Begins a connection of a link, which ends the one before.
    fn connect(&mut self, at: usize, now: Nanos);

    /// Ends the connection of a link, which was closed or could not be made.
    fn disconnect(&mut self, at: usize, now: Nanos);

    /// Takes bytes of a link's connection.
    fn take_in(&mut self, at: usize, bytes: &[u8]);

    /// Reads what has come on a link, and finds out whether its peer is silent. Returns the end of
    /// the connection if it is over: the last bytes say why, and it is to be closed behind them.
    fn read(&mut self, at: usize, now: Nanos) -> Option<Parting>;

    /// Passes messages on between the links and the threads. Returns how many there were.
    fn turn(&mut self, now: Nanos) -> usize;

    /// Returns the bytes for a link's connection, the link's own frames included.
    fn take_out(&mut self, at: usize, now: Nanos) -> Vec<u8>;

    /// Returns true if a device works for the host, which says nothing when it is done: then turns
    /// follow one another.
    fn awaits_device(&self) -> bool {
        false
    }

    /// Returns the number of messages that were ignored, since no peer may send them.
    fn refused(&self) -> u64;

    /// Returns the number of GPUs of a link's peer that can be granted.
    fn gpus_up(&self, at: usize) -> usize {
        let _ = at;
        0
    }

    /// Returns what a link's peer has told that it measures of the network.
    fn told_delays(&self, at: usize) -> Option<&MeasuredDelays> {
        let _ = at;
        None
    }

    /// Returns how many rows were queued again by a scheduler, or requests sent again by frontends,
    /// after something was lost.
    fn repeated(&self) -> u64 {
        0
    }

    /// Returns what a device has done on a link's connections beside their frames.
    fn direct_counters(&self, at: usize) -> Option<RdmaCounters> {
        let _ = at;
        None
    }

    /// Begins to leave: nothing new is taken, what there is goes on.
    fn drain(&mut self);

    /// Returns true if nothing is under way, so that the host can leave without a loss.
    fn is_idle(&self) -> bool;

    /// Ends all connections: the last bytes of each say that the host leaves.
    fn leave(&mut self, now: Nanos);
}

/// A host's links, for whoever drives them.
pub(crate) struct HostLinks {
    pub(crate) host: Box<dyn Host>,
    /// The host's role and name in CONFIG.
    pub(crate) own: (Role, String),
    /// How hosts find each other.
    pub(crate) discovery: DiscoveryConfig,
    /// Where the host listens for peers.
    pub(crate) listens_at: Option<String>,
    /// The files of the links' TLS, where they leave loopback.
    pub(crate) tls: Option<LinkTlsFiles>,
    /// The peer of each link.
    pub(crate) peers: Vec<HostPeer>,
}

/// The peer of a link.
#[derive(Clone, Debug)]
pub(crate) struct HostPeer {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// True if this host connects to the peer, and not the peer to this host.
    pub(crate) dials: bool,
    /// The peer's address in CONFIG, where this host connects to it.
    pub(crate) address: Option<String>,
}
