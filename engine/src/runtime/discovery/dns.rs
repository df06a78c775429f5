//! Names of DNS that stand for the addresses of all hosts of a role, as a headless service's does.
//! The system's resolver asks, on a thread of its own, since that may take seconds: it knows the
//! machine's name servers, search domains and host files.

use super::update::{DirectoryUpdate, UpdateSender};
use crate::config::{DnsConfig, DnsName, Role};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// The longest time in which the end of the host is not seen.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A source: names that are asked again and again.
pub(super) struct DnsSource {
    names: Vec<(Role, DnsName)>,
    every: Duration,
    sender: UpdateSender,
}

impl DnsSource {
    /// Makes the source of a host of this role.
    pub(super) fn new(config: DnsConfig, role: Role, sender: UpdateSender) -> DnsSource {
        let names = [(Role::Scheduler, config.scheduler), (Role::Frontend, config.frontends)];
        let names = names.into_iter().filter(|(other, _)| role.dials(*other)).collect();
        DnsSource { names, every: config.every, sender }
    }

    /// Asks until the host ends.
    pub(super) fn run(self, mut stop: oneshot::Receiver<()>) {
        loop {
            let mut fault = None;
            for (role, name) in &self.names {
                match addresses(name) {
                    Ok(addresses) => self.sender.send(DirectoryUpdate::Addresses(*role, addresses)),
                    Err(why) => fault = Some(why),
                }
            }
            self.sender.board.set_up(fault.as_deref().map_or(Ok(()), Err));
            let mut waited = Duration::ZERO;
            while waited < self.every {
                if stop.try_recv() != Err(TryRecvError::Empty) {
                    return;
                }
                let pause = LOOK_EVERY.min(self.every - waited);
                std::thread::sleep(pause);
                waited += pause;
            }
        }
    }
}

/// Asks for the addresses of a name: those of IPv4, if it has any, so that a host which has both is
/// not taken for two.
///
/// Errors: a sentence. A name without an address is one: those that were known are better than
/// none.
pub(super) fn addresses(DnsName { name, port }: &DnsName) -> Result<Vec<SocketAddr>, String> {
    let found = (name.as_str(), *port).to_socket_addrs();
    let found: Vec<SocketAddr> =
        found.map_err(|error| format!("{name} can't be resolved: {error}"))?.collect();
    let has_v4 = found.iter().any(SocketAddr::is_ipv4);
    let mut found: Vec<SocketAddr> =
        found.into_iter().filter(|address| address.is_ipv4() == has_v4).collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() { Err(format!("{name} has no address")) } else { Ok(found) }
}
