//! What a source has found out: all that it knows now, not what has changed, so that an update that
//! comes twice or replaces others is as good.

use super::board::DiscoveryBoard;
use crate::config::Role;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use symphony_transport::tcp::SocketWaker;

/// A host, by its role and its name in CONFIG.
pub(crate) type HostKey = (Role, String);

/// A host that has registered under its name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RegisteredHost {
    /// Where others reach it, `HOST:PORT`; empty for one that only reaches others.
    pub(crate) address: String,
    /// A number that is another one each time the host registers.
    pub(crate) registration: i64,
    /// The lease of its key.
    pub(crate) lease: i64,
}

/// All that a source knows of some hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DirectoryUpdate {
    /// The hosts of all roles, by name.
    Registered(BTreeMap<HostKey, RegisteredHost>),
    /// The addresses of the hosts of a role. Which is whose a handshake says.
    Addresses(Role, Vec<SocketAddr>),
}

/// The way from a source to the thread of the links.
pub(super) struct UpdateSender {
    pub(super) updates: Sender<DirectoryUpdate>,
    pub(super) waker: SocketWaker,
    pub(super) board: Arc<DiscoveryBoard>,
}

impl UpdateSender {
    /// Sends an update. One that nobody takes any more is lost.
    pub(super) fn send(&self, update: DirectoryUpdate) {
        if self.updates.send(update).is_ok() {
            self.waker.wake();
        }
    }
}
