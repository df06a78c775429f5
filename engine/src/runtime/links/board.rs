//! What others may read of the links of a process, and tell their thread.

use crate::config::Role;
use crate::runtime::discovery::{DiscoveryBoard, DiscoveryView};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use symphony_transport::Nanos;

/// Where a link is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// No connection.
    Down,
    /// A connection whose peer is not accepted yet.
    Greeting,
    /// Messages can be sent.
    Up,
    /// The hosts do not fit: there is no further connection.
    Refused,
}

impl LinkState {
    /// Returns the name of the state in metrics and on the dashboard.
    pub fn name(self) -> &'static str {
        match self {
            LinkState::Down => "down",
            LinkState::Greeting => "greeting",
            LinkState::Up => "up",
            LinkState::Refused => "refused",
        }
    }
}

/// A link, as it was at the last look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkView {
    /// The name of the peer.
    pub peer: String,
    /// The role of the peer.
    pub role: Role,
    /// The state.
    pub state: LinkState,
    /// The connections that have come up.
    pub connections: u64,
    /// How much more the peer's clock reads than this host's, in nanoseconds; `None` while that is
    /// not known, as are the next ones.
    pub clock_offset_ns: Option<i64>,
    /// The most by which that is wrong.
    pub clock_error: Option<Nanos>,
    /// How many parts per billion the peer's clock is faster.
    pub clock_drift_ppb: Option<i64>,
    /// The time that the last probe and its answer were under way.
    pub round_trip: Option<Nanos>,
    /// The delay that 99 % of the peer's frames do not exceed on their way here: d_ctrl at a
    /// backend, of the scheduler; d_resp at a frontend, of a backend.
    pub delay: Option<Nanos>,
    /// The time in which the peer, a backend, fetches 99 % of its batches' inputs, however few
    /// their bytes, as it has told this host, a scheduler: d_data.
    pub fetch: Option<Nanos>,
    /// What that takes longer for each KiB.
    pub fetch_per_kib: Option<Nanos>,
    /// Bytes that were received, and sent.
    pub bytes: [u64; 2],
    /// Why the last connection ended; empty if none has.
    pub last_end: String,
}

/// The links of a process. See the module's description.
#[derive(Debug)]
pub struct LinkBoard {
    links: Mutex<Vec<LinkView>>,
    listens_at: Option<SocketAddr>,
    discovery: Option<Arc<DiscoveryBoard>>,
    draining: AtomicBool,
    is_idle: AtomicBool,
}

impl LinkBoard {
    pub(super) fn new(
        links: Vec<LinkView>,
        listens_at: Option<SocketAddr>,
        discovery: Option<Arc<DiscoveryBoard>>,
    ) -> LinkBoard {
        let (draining, is_idle) = (AtomicBool::new(false), AtomicBool::new(false));
        LinkBoard { links: Mutex::new(links), listens_at, discovery, draining, is_idle }
    }

    /// Returns the links.
    pub fn links(&self) -> Vec<LinkView> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the address at which the process listens for other hosts, with the real port.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.listens_at
    }

    /// Returns the state of discovery; `None` where CONFIG says where all hosts are.
    pub fn discovery(&self) -> Option<DiscoveryView> {
        self.discovery.as_ref().map(|board| board.view())
    }

    pub(super) fn discovery_board(&self) -> Option<&DiscoveryBoard> {
        self.discovery.as_deref()
    }

    /// Has the host take nothing new from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Returns true once the host has drained, and nothing of others is under way in it.
    pub fn has_drained(&self) -> bool {
        // Acquire: pairs with the link thread's store, after its last turn with work.
        self.draining.load(Ordering::Relaxed) && self.is_idle.load(Ordering::Acquire)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(super) fn set_idle(&self, is_idle: bool) {
        self.is_idle.store(is_idle, Ordering::Release);
    }

    pub(super) fn update(&self, update: impl FnOnce(&mut [LinkView])) {
        update(&mut self.links.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
