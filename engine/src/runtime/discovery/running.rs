//! The thread of a source, which tells that of the links what it finds out.

use super::board::DiscoveryBoard;
use super::dns::DnsSource;
use super::etcd::EtcdSource;
use super::update::{DirectoryUpdate, HostKey, UpdateSender};
use crate::config::DiscoveryConfig;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use symphony_transport::tcp::SocketWaker;
use tokio::sync::oneshot;

/// The longest wait for a source to take this host's key back.
const LEAVES_WITHIN: Duration = Duration::from_secs(1);

/// What a source is told of this host.
pub(crate) struct DiscoveryPlan {
    pub(crate) config: DiscoveryConfig,
    /// The host of this process.
    pub(crate) own: HostKey,
    /// Where others reach it; empty if they do not.
    pub(crate) address: String,
}

/// A source whose thread runs, unless CONFIG says it all. Dropping it takes this host's key back.
pub(crate) struct RunningDiscovery {
    updates: Receiver<DirectoryUpdate>,
    pub(crate) board: Option<Arc<DiscoveryBoard>>,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    /// A channel that is closed when the thread has ended.
    ended: Receiver<()>,
}

impl RunningDiscovery {
    /// Starts the thread, which wakes that of the links when it has found out something.
    ///
    /// Errors: a file that can't be read, an address that nobody could use, or the system gives no
    /// thread.
    pub(crate) fn start(plan: DiscoveryPlan, waker: SocketWaker) -> io::Result<RunningDiscovery> {
        let (updates, received) = channel();
        let (ending, ended) = channel::<()>();
        let (stop, stopped) = oneshot::channel();
        let source = plan.config.name();
        let board = match plan.config {
            DiscoveryConfig::Configuration => None,
            _ => Some(Arc::new(DiscoveryBoard::new(source))),
        };
        let sender = board.clone().map(|board| UpdateSender { updates, waker, board });
        let run: Option<Box<dyn FnOnce() + Send>> = match (plan.config, sender) {
            (DiscoveryConfig::Etcd(config), Some(sender)) => {
                check_reachable(&plan.address)?;
                let source = EtcdSource::new(config, plan.own, plan.address, sender)?;
                Some(Box::new(|| source.run(stopped)))
            }
            (DiscoveryConfig::Dns(config), Some(sender)) => {
                let source = DnsSource::new(config, plan.own.0, sender);
                Some(Box::new(|| source.run(stopped)))
            }
            _ => None,
        };
        if let Some(run) = run {
            std::thread::Builder::new().name("discovery".to_owned()).spawn(move || {
                run();
                drop(ending);
            })?;
        }
        Ok(RunningDiscovery { updates: received, board, stop: Some(stop), ended })
    }

    /// Returns the next update that has come.
    pub(crate) fn take(&self) -> Option<DirectoryUpdate> {
        self.updates.try_recv().ok()
    }

    /// Has the source take this host's key back.
    pub(crate) fn begin_stop(&mut self) {
        self.stop = None;
    }
}

impl Drop for RunningDiscovery {
    fn drop(&mut self) {
        self.begin_stop();
        // What the source does not take back in time goes with its lease.
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(LEAVES_WITHIN) {
            tracing::warn!("discovery: this host's key could not be taken back: it goes with its lease");
        }
    }
}

/// Checks that others can use the address that they are told.
fn check_reachable(address: &str) -> io::Result<()> {
    let is_of_none =
        address.parse::<std::net::SocketAddr>().is_ok_and(|address| address.ip().is_unspecified());
    if !is_of_none {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{address} is no address by which others could reach this host: say by --address what is"
    )))
}
