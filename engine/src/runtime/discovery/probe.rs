//! A single look at the source of who is there, for `symphony doctor`.

use super::dns::addresses;
use super::etcd::{EtcdAccess, EtcdClient, EtcdFault, Mirror};
use crate::config::{DiscoveryConfig, EtcdConfig};

/// What was found at one place where the source is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbedSource {
    /// The one that was asked: a member of an etcd, or a name.
    pub asked: String,
    /// What it says, or why it says nothing.
    pub answer: Result<String, String>,
}

/// Asks every member of an etcd, or every name; nothing where CONFIG says it all.
pub fn probe(config: &DiscoveryConfig) -> Vec<ProbedSource> {
    match config {
        DiscoveryConfig::Configuration => Vec::new(),
        DiscoveryConfig::Etcd(config) => probe_etcd(config),
        DiscoveryConfig::Dns(config) => {
            let names = [&config.scheduler, &config.frontends];
            let answer = |name| addresses(name).map(|found| join(found.iter().map(ToString::to_string)));
            names.map(|name| ProbedSource { asked: name.name.clone(), answer: answer(name) }).into()
        }
    }
}

fn probe_etcd(config: &EtcdConfig) -> Vec<ProbedSource> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ask = |endpoint: &String| {
        let answer = match (&runtime, EtcdAccess::read(config)) {
            (Ok(runtime), Ok(access)) => runtime.block_on(registered(config, &access, endpoint)),
            (Err(error), _) => Err(error.to_string()),
            (_, Err(error)) => Err(error.to_string()),
        };
        ProbedSource { asked: endpoint.clone(), answer }
    };
    config.endpoints.iter().map(ask).collect()
}

/// Returns the hosts that have registered, as a sentence.
async fn registered(config: &EtcdConfig, access: &EtcdAccess, endpoint: &str) -> Result<String, String> {
    let listed = async {
        let mut client = EtcdClient::connect(access, endpoint).await?;
        client.list(&config.prefix).await
    };
    let (keys, revision) = listed.await.map_err(|fault| match fault {
        EtcdFault::Lost(why) => why,
        EtcdFault::TokenExpired => "the token has expired".to_owned(),
    })?;
    let mut mirror = Mirror::new(config.prefix.clone());
    mirror.list(&keys, revision);
    let host = |((role, name), host): (&(crate::config::Role, String), &super::update::RegisteredHost)| {
        let at = if host.address.is_empty() { String::new() } else { format!(" at {}", host.address) };
        format!("{} {name}{at}", role.name())
    };
    Ok(join(mirror.hosts().map(host)))
}

/// Joins the words of a list.
fn join(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "nobody".to_owned() } else { words.join(", ") }
}
