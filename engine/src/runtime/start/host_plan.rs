//! One host of CONFIG as a process: its layout, its peers and what it has of the engine.

use super::error::StartError;
use super::identity::{CommonTerms, HostIdentity};
use super::layout::Layout;
use crate::config::{Config, DiscoveryConfig, DnsConfig, Role};
use crate::runtime::frontend::ModelInfo;
use crate::runtime::hosts::{Host, HostLinks, HostPeer};
use std::sync::Arc;
use symphony_transport::link::LinkTerms;

/// A process of one host: CONFIG as it was read, and which host this is.
pub(crate) struct HostPlan {
    pub(crate) whole: Arc<Config>,
    pub(crate) identity: HostIdentity,
    /// The incarnation to begin with: the time of the start, so greater than that of each process
    /// before.
    pub(crate) incarnation: u64,
    /// Where others reach it, in place of its address in CONFIG.
    pub(crate) address: Option<String>,
}

impl HostPlan {
    /// Returns the layout of the host's threads; the frontend of an admin listener has no core.
    pub(super) fn layout(&self, cores: &[usize]) -> Layout {
        let api_threads = self.identity.frontends(&self.whole).len().saturating_sub(1);
        Layout::of_host(&self.identity.own_part(&self.whole), self.identity.role, api_threads, cores)
    }

    /// Returns where the host listens for others: where it was told to, else at its address in
    /// CONFIG, else at the port that its role's hosts have in DNS. `None` of one that does not
    /// listen.
    fn listens_at(&self) -> Option<String> {
        let HostIdentity { role, .. } = self.identity;
        let of_dns = |config: &DnsConfig| match role {
            Role::Scheduler => format!("0.0.0.0:{}", config.scheduler.port),
            _ => format!("0.0.0.0:{}", config.frontends.port),
        };
        let own = || Some(self.identity.host(&self.whole).address.clone()).filter(|own| !own.is_empty());
        let given = self.address.clone().or_else(own);
        match &self.whole.discovery {
            _ if role == Role::Backend => None,
            DiscoveryConfig::Dns(config) => Some(given.unwrap_or_else(|| of_dns(config))),
            _ => given,
        }
    }

    /// Checks that the host knows where to listen.
    ///
    /// Errors: [`StartError::Address`].
    pub(super) fn check(&self) -> Result<(), StartError> {
        if self.identity.role == Role::Backend || self.listens_at().is_some() {
            return Ok(());
        }
        let (file, name) = (self.whole.file.display(), &self.identity.host(&self.whole).name);
        Err(StartError::Address(format!(
            "{file}: host \"{name}\" has no address: say by --address HOST:PORT where others reach it"
        )))
    }

    fn peers(&self) -> Vec<HostIdentity> {
        let all = |role| HostIdentity::all(&self.whole, role);
        match self.identity.role {
            Role::Frontend => all(Role::Scheduler).chain(all(Role::Backend)).collect(),
            Role::Scheduler => all(Role::Frontend).chain(all(Role::Backend)).collect(),
            Role::Backend => all(Role::Scheduler).chain(all(Role::Frontend)).collect(),
        }
    }

    /// Returns the links of the host.
    pub(super) fn links(&self, host: impl Host + 'static) -> HostLinks {
        let peer = |peer: HostIdentity| HostPeer {
            name: peer.host(&self.whole).name.clone(),
            role: peer.role,
            dials: self.identity.role.dials(peer.role),
            address: Some(peer.host(&self.whole).address.clone()).filter(|address| !address.is_empty()),
        };
        HostLinks {
            host: Box::new(host),
            own: (self.identity.role, self.identity.host(&self.whole).name.clone()),
            discovery: self.whole.discovery.clone(),
            listens_at: self.listens_at(),
            tls: self.whole.links.tls.clone(),
            peers: self.peers().into_iter().map(peer).collect(),
        }
    }

    /// Returns what the terms of all its links have in common, once it has loaded these models.
    pub(super) fn terms(&self, models: &[ModelInfo]) -> CommonTerms<'_> {
        CommonTerms::new(&self.whole, self.identity, models, self.incarnation)
    }

    /// Returns the terms of the links to the first peer, and to the others.
    pub(super) fn split(&self, terms: &CommonTerms<'_>) -> [Vec<LinkTerms>; 2] {
        let peers = self.peers();
        let (first, others) = peers.split_at(1);
        [first, others].map(|peers| peers.iter().map(|peer| terms.with(*peer)).collect())
    }
}
