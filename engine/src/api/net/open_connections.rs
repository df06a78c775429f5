//! The open connections of an API core.

use super::connection::ConnectionRefusal;
use super::memory::PeerMemory;
use super::peer::ListenerRules;
use crate::telemetry::Metrics;
use futures_channel::oneshot;
use ipnet::IpNet;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

/// The bits of an IPv6 address that tell clients apart: a client usually has all addresses that
/// share them.
const NETWORK_OF_A_CLIENT: u128 = !0 << 64;

/// The most open connections of an API core.
#[derive(Clone, Debug)]
pub(in crate::api) struct ConnectionBudget {
    /// The most connections of all listeners but the admin listener, together.
    pub(in crate::api) public: usize,
    /// The most connections of an admin listener, which other clients can't use up.
    pub(in crate::api) admin: usize,
    /// The most of the public connections that one remote address may have.
    pub(in crate::api) of_peer: usize,
    /// The addresses that may have all of them.
    pub(in crate::api) unlimited_peers: Vec<IpNet>,
}

/// The origin of a connection, as far as budgets go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Account {
    /// A connection of the admin listener.
    Admin,
    /// A connection from an address without a limit of its own.
    Public,
    /// A connection from an address, or one of a network of IPv6 addresses.
    Peer(IpAddr),
}

/// An open connection.
struct OpenConnection {
    /// The means to ask it to end, which dropping the sender does; `None` once it was asked.
    stop: Option<oneshot::Sender<()>>,
    account: Account,
}

/// The use that an account makes of a core.
#[derive(Default)]
struct AccountUse {
    connections: usize,
    memory: PeerMemory,
}

/// A connection that was opened.
#[derive(PartialEq, Eq, Debug)]
pub(in crate::api) struct OpenedConnection {
    /// The number by which it is removed.
    pub(in crate::api) number: u64,
    /// The memory of its client's address, if that has a limit.
    pub(in crate::api) memory: Option<PeerMemory>,
}

/// The open connections of an API core, each with the means to ask it to end.
pub(in crate::api) struct OpenConnections {
    metrics: Rc<Metrics>,
    budget: ConnectionBudget,
    by_number: RefCell<HashMap<u64, OpenConnection>>,
    /// The use of each account that has connections, or requests that outlive them.
    of_account: RefCell<HashMap<Account, AccountUse>>,
    next: Cell<u64>,
}

impl OpenConnections {
    /// Creates the table without connections; `metrics` counts them.
    pub(in crate::api) fn new(metrics: Rc<Metrics>, budget: ConnectionBudget) -> OpenConnections {
        OpenConnections {
            metrics,
            budget,
            by_number: RefCell::default(),
            of_account: RefCell::default(),
            next: Cell::new(0),
        }
    }

    /// Adds a connection from `peer`, if known, to the listener with these rules, and returns it;
    /// dropping `stop` asks it to end.
    ///
    /// Errors: the reason that there may be no such connection now.
    pub(in crate::api) fn open(
        &self,
        rules: ListenerRules,
        peer: Option<IpAddr>,
        stop: oneshot::Sender<()>,
    ) -> Result<OpenedConnection, ConnectionRefusal> {
        let account = self.account(rules, peer);
        let of = |account| self.of_account.borrow().get(&account).map_or(0, |of| of.connections);
        let of_admin = of(Account::Admin);
        match account {
            Account::Admin if of_admin >= self.budget.admin => return Err(ConnectionRefusal::ServerFull),
            Account::Admin => {}
            _ if self.len() - of_admin >= self.budget.public => return Err(ConnectionRefusal::ServerFull),
            Account::Peer(_) if of(account) >= self.budget.of_peer => {
                return Err(ConnectionRefusal::PeerFull);
            }
            _ => {}
        }
        let number = self.next.get();
        self.next.set(number + 1);
        self.by_number.borrow_mut().insert(number, OpenConnection { stop: Some(stop), account });
        let mut of_account = self.of_account.borrow_mut();
        let of = of_account.entry(account).or_default();
        of.connections += 1;
        self.metrics.opened();
        let memory = matches!(account, Account::Peer(_)).then(|| of.memory.clone());
        Ok(OpenedConnection { number, memory })
    }

    fn account(&self, rules: ListenerRules, peer: Option<IpAddr>) -> Account {
        let peer = peer.map(|peer| peer.to_canonical());
        match peer {
            _ if rules.dedicated => Account::Admin,
            Some(peer) if !self.budget.unlimited_peers.iter().any(|network| network.contains(&peer)) => {
                Account::Peer(client_of(peer))
            }
            _ => Account::Public,
        }
    }

    /// Removes a connection.
    pub(in crate::api) fn closed(&self, number: u64) {
        let Some(OpenConnection { account, .. }) = self.by_number.borrow_mut().remove(&number) else {
            return;
        };
        let mut of_account = self.of_account.borrow_mut();
        if let Some(of) = of_account.get_mut(&account) {
            of.connections -= 1;
            if of.connections == 0 && !of.memory.is_in_use() {
                of_account.remove(&account);
            }
        }
        if of_account.len() > self.len() {
            of_account.retain(|_, of| of.connections > 0 || of.memory.is_in_use());
        }
        self.metrics.closed();
    }

    /// Asks every connection to end after its requests in flight.
    pub(in crate::api) fn ask_to_end(&self) {
        self.by_number.borrow_mut().values_mut().for_each(|connection| connection.stop = None);
    }

    /// Returns the number of open connections.
    pub(in crate::api) fn len(&self) -> usize {
        self.by_number.borrow().len()
    }
}

/// Returns the address that stands for a client.
fn client_of(peer: IpAddr) -> IpAddr {
    match peer {
        IpAddr::V4(_) => peer,
        IpAddr::V6(peer) => IpAddr::V6(Ipv6Addr::from_bits(peer.to_bits() & NETWORK_OF_A_CLIENT)),
    }
}
