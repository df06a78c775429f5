//! A host's part in an etcd: it registers, keeps its lease, and watches the others. When a member
//! is lost it goes on with the next, after a pause that grows.

use super::client::{EtcdAccess, EtcdClient, EtcdFault};
use super::messages::WatchResponse;
use super::mirror::{Mirror, WatchEnd};
use crate::config::EtcdConfig;
use crate::runtime::discovery::update::{HostKey, UpdateSender};
use rand::RngExt as _;
use std::io;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

/// The first pause before another attempt, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// How often a lease is kept within its time.
const KEPT_IN_A_LEASE: u32 = 3;

/// A source: an etcd. See the room's description.
pub(in crate::runtime::discovery) struct EtcdSource {
    access: EtcdAccess,
    lease_time: Duration,
    own: HostKey,
    address: String,
    mirror: Mirror,
    sender: UpdateSender,
    /// The lease that this host has taken out.
    lease: Option<i64>,
    /// The host has registered once: whoever has its name later is another process.
    has_registered: bool,
}

impl EtcdSource {
    /// Makes the source of the host `own`, which others reach at `address`.
    ///
    /// Errors: a file of CONFIG can't be read.
    pub(in crate::runtime::discovery) fn new(
        config: EtcdConfig,
        own: HostKey,
        address: String,
        sender: UpdateSender,
    ) -> io::Result<EtcdSource> {
        let access = EtcdAccess::read(&config)?;
        let mirror = Mirror::new(config.prefix);
        let lease_time = config.lease;
        Ok(EtcdSource {
            access,
            lease_time,
            own,
            address,
            mirror,
            sender,
            lease: None,
            has_registered: false,
        })
    }

    /// Runs until the host ends, and takes its key back then.
    pub(in crate::runtime::discovery) fn run(self, stop: oneshot::Receiver<()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        match runtime {
            Ok(runtime) => runtime.block_on(self.run_until(stop)),
            Err(error) => self.sender.board.set_up(Err(&error.to_string())),
        }
    }

    async fn run_until(mut self, mut stop: oneshot::Receiver<()>) {
        let endpoints = self.access.endpoints().to_vec();
        let mut pause = PAUSES[0];
        for endpoint in endpoints.iter().cycle() {
            let began = Instant::now();
            let fault = tokio::select! {
                biased;
                _ = &mut stop => break,
                fault = self.session(endpoint) => fault,
            };
            if let EtcdFault::Lost(why) = fault {
                self.sender.board.set_up(Err(&format!("{endpoint}: {why}")));
            }
            pause = if began.elapsed() > PAUSES[1] { PAUSES[0] } else { PAUSES[1].min(pause * 2) };
            let pause = pause.mul_f64(rand::rng().random_range(0.75..1.25));
            tokio::select! {
                biased;
                _ = &mut stop => break,
                () = sleep(pause) => {}
            }
        }
        self.leave(&endpoints).await;
    }

    /// Takes this host's key back, by the first member that does it.
    async fn leave(&mut self, endpoints: &[String]) {
        let Some(lease) = self.lease.take() else { return };
        for endpoint in endpoints {
            if let Ok(mut client) = EtcdClient::connect(&self.access, endpoint).await
                && client.revoke(lease).await.is_ok()
            {
                return;
            }
        }
    }

    /// Registers and watches with one member, until it is lost.
    async fn session(&mut self, endpoint: &str) -> EtcdFault {
        let mut client = match EtcdClient::connect(&self.access, endpoint).await {
            Ok(client) => client,
            Err(fault) => return fault,
        };
        loop {
            match self.follow(&mut client).await {
                Ok(never) => match never {},
                Err(WatchEnd::Compacted) => {
                    tracing::info!("discovery: etcd has compacted what is not seen yet")
                }
                Err(WatchEnd::Lost(fault)) => return fault,
            }
        }
    }

    /// Lists the hosts, and follows the changes.
    async fn follow(&mut self, client: &mut EtcdClient) -> Result<std::convert::Infallible, WatchEnd> {
        self.keep_lease(client).await?;
        self.list(client).await?;
        self.register(client).await?;
        let mut watch = client.watch(self.mirror.prefix(), self.mirror.watch_from()).await?;
        self.sender.board.set_up(Ok(()));
        let mut keep_at = Instant::now() + self.lease_time / KEPT_IN_A_LEASE;
        loop {
            tokio::select! {
                answer = watch.message() => self.take_answer(answer.map_err(EtcdFault::from)?)?,
                () = sleep_until(keep_at) => {
                    if self.keep_lease(client).await? {
                        self.list(client).await?;
                        self.register(client).await?;
                    }
                    keep_at = Instant::now() + self.lease_time / KEPT_IN_A_LEASE;
                }
            }
        }
    }

    async fn list(&mut self, client: &mut EtcdClient) -> Result<(), EtcdFault> {
        let (keys, revision) = client.list(self.mirror.prefix()).await?;
        self.mirror.list(&keys, revision);
        self.sender.send(self.mirror.update());
        Ok(())
    }

    /// Keeps the lease, or takes out another, and returns whether it is another.
    async fn keep_lease(&mut self, client: &mut EtcdClient) -> Result<bool, EtcdFault> {
        if let Some(lease) = self.lease
            && client.keep_alive(lease).await?
        {
            return Ok(false);
        }
        self.lease = None;
        self.lease = Some(client.grant(self.lease_time).await?);
        Ok(true)
    }

    /// Sets this host's key, where etcd does not have it. A process that starts takes its
    /// predecessor's over; one that comes back to find another's leaves it.
    async fn register(&mut self, client: &mut EtcdClient) -> Result<(), EtcdFault> {
        let Some(lease) = self.lease else { return Ok(()) };
        let key = self.mirror.key_of(&self.own);
        if let Some((_, there)) = self.mirror.hosts().find(|(host, _)| **host == self.own)
            && self.has_registered
        {
            if there.address != self.address {
                let (role, name) = (self.own.0.name(), &self.own.1);
                tracing::warn!(
                    "discovery: another process has registered as {role} {name}, at {}: this one leaves it so",
                    there.address
                );
                return Ok(());
            }
            if there.lease == lease {
                return Ok(());
            }
        }
        client.put(&key, &self.address, lease).await?;
        self.has_registered = true;
        Ok(())
    }

    /// Takes an answer of a watch.
    fn take_answer(&mut self, answer: Option<WatchResponse>) -> Result<(), WatchEnd> {
        let ended = || WatchEnd::Lost(EtcdFault::Lost("it has ended the watch".to_owned()));
        if self.mirror.take(&answer.ok_or_else(ended)?)? {
            self.sender.send(self.mirror.update());
        }
        Ok(())
    }
}
