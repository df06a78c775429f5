//! The table `[discovery]` of CONFIG: how the hosts of `[[hosts]]` find each other.
//! docs/deploying.md is for users.

use super::toml_reader::{Bounds, TomlTable, TomlValue, read_each};
use std::path::PathBuf;
use std::time::Duration;

/// The keys of an etcd.
const ETCD_KEYS: [&str; 8] =
    ["endpoints", "prefix", "lease_s", "user", "password_file", "tls_ca", "tls_cert", "tls_key"];

/// The keys of names of DNS.
const DNS_KEYS: [&str; 3] = ["frontends", "scheduler", "every_s"];

/// The source of who is there, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiscoveryConfig {
    /// The addresses of `[[hosts]]`.
    #[default]
    Configuration,
    /// Keys of an etcd, which each host keeps under a lease.
    Etcd(EtcdConfig),
    /// Names of DNS that stand for the hosts of a role.
    Dns(DnsConfig),
}

impl DiscoveryConfig {
    /// Returns the source's name in CONFIG and in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            DiscoveryConfig::Configuration => "configuration",
            DiscoveryConfig::Etcd(_) => "etcd",
            DiscoveryConfig::Dns(_) => "dns",
        }
    }
}

/// An etcd, and what to do there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The URLs of its members, `http://HOST:PORT` or `https://HOST:PORT`: one after the other is
    /// tried until one answers.
    pub endpoints: Vec<String>,
    /// What the keys begin with; it ends with a slash.
    pub prefix: String,
    /// The time for which a host's key outlives it.
    pub lease: Duration,
    /// The user, and the file that has the password.
    pub login: Option<(String, PathBuf)>,
    /// What `https` needs.
    pub tls: Option<EtcdTlsFiles>,
}

/// The files of TLS to an etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTlsFiles {
    /// The authorities that sign the certificates of its members.
    pub authorities: PathBuf,
    /// The certificate and the key by which hosts are known there.
    pub identity: Option<[PathBuf; 2]>,
}

/// Names of DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsConfig {
    /// The name and the port of the hosts with frontends.
    pub frontends: DnsName,
    /// The name and the port of the scheduler.
    pub scheduler: DnsName,
    /// The time between two questions.
    pub every: Duration,
}

/// A name that stands for the addresses of all hosts of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName {
    /// The name.
    pub name: String,
    /// The port at which each of the hosts listens.
    pub port: u16,
}

impl DiscoveryConfig {
    /// Reads the table `[discovery]`.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<DiscoveryConfig> {
        root.section("discovery", |table| {
            let source = table.required("source", "\"configuration\", \"etcd\" or \"dns\"");
            let source = source.and_then(|value| value.word(&["configuration", "etcd", "dns"]));
            let others: Vec<&'static str> = match source {
                Some("etcd") => DNS_KEYS.to_vec(),
                Some("dns") => ETCD_KEYS.to_vec(),
                _ => ETCD_KEYS.into_iter().chain(DNS_KEYS).collect(),
            };
            for name in others {
                if let (true, Some(source)) = (table.optional(name).is_some(), source) {
                    table.report(name, format!("is of another source than \"{source}\""), "leave it out");
                }
            }
            match source? {
                "etcd" => read_etcd(table).map(DiscoveryConfig::Etcd),
                "dns" => read_dns(table).map(DiscoveryConfig::Dns),
                _ => Some(DiscoveryConfig::Configuration),
            }
        })
    }
}

/// Reads a time in seconds, `default` where there is none.
fn read_seconds(table: &TomlTable<'_>, name: &'static str, within: Bounds, default: f64) -> Option<Duration> {
    let seconds = table.optional(name).map_or(Some(default), |value| value.number(within))?;
    Some(Duration::from_secs_f64(seconds))
}

fn read_etcd(table: &TomlTable<'_>) -> Option<EtcdConfig> {
    let endpoints = table.required("endpoints", "a list of URLs, [\"http://10.0.0.5:2379\"]");
    let endpoints = endpoints.and_then(|value| {
        let items = value.items("write a list of URLs, [\"http://10.0.0.5:2379\"]")?;
        if items.is_empty() {
            value.report("is empty", "give at least one URL, \"http://10.0.0.5:2379\"");
            return None;
        }
        read_each(&items, read_endpoint)
    });
    let prefix = table.optional("prefix").map_or(Some("/symphony/"), |value| {
        let right = "what keys begin with, \"/NAME/\": it ends with a slash";
        let prefix = value.text(right)?;
        if prefix.len() < 2 || !prefix.ends_with('/') {
            value.refuse_value(right);
            return None;
        }
        Some(prefix)
    });
    let lease = read_seconds(table, "lease_s", Bounds::from(2.0, 3_600.0), 10.0);
    let user = table.optional("user").map(|value| value.name("a user of etcd"));
    let file = |name| {
        table.optional(name).map(|value| value.text("a file's name").map(|file| table.folder().join(file)))
    };
    let password = file("password_file");
    let [authorities, certificate, key] = [file("tls_ca"), file("tls_cert"), file("tls_key")];
    let login = match (user, password) {
        (None, None) => None,
        (Some(user), Some(password)) => Some((user?, password?)),
        _ => {
            table.report(
                "user",
                "is given without its password, or the other way",
                "give user and password_file",
            );
            return None;
        }
    };
    let identity = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some([certificate?, key?]),
        _ => {
            table.report(
                "tls_cert",
                "is given without its key, or the other way",
                "give tls_cert and tls_key",
            );
            return None;
        }
    };
    let endpoints = endpoints?;
    let is_secure = endpoints.iter().any(|endpoint| endpoint.starts_with("https:"));
    let tls = match authorities {
        Some(authorities) => Some(EtcdTlsFiles { authorities: authorities?, identity }),
        None if is_secure || identity.is_some() => {
            table.report(
                "tls_ca",
                "is missing",
                "add the file of the authorities that sign etcd's certificates",
            );
            return None;
        }
        None => None,
    };
    Some(EtcdConfig { endpoints, prefix: prefix?.to_owned(), lease: lease?, login, tls })
}

fn read_endpoint(value: &TomlValue<'_>) -> Option<String> {
    let right = "a URL, http://HOST:PORT or https://HOST:PORT";
    let url = value.text(right)?;
    let authority = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_right = authority.and_then(split_port).is_some_and(|(host, _)| !host.contains('/'));
    if !is_right {
        value.refuse_value(right);
        return None;
    }
    Some(url.to_owned())
}

fn read_dns(table: &TomlTable<'_>) -> Option<DnsConfig> {
    let name = |key: &'static str| {
        let right = "the name of a headless service and the port, \"frontends.default.svc:7400\"";
        let value = table.required(key, right)?;
        let found = split_port(value.text(right)?);
        if found.is_none() {
            value.refuse_value(right);
        }
        found.map(|(name, port)| DnsName { name: name.to_owned(), port })
    };
    let (frontends, scheduler) = (name("frontends"), name("scheduler"));
    let every = read_seconds(table, "every_s", Bounds::from(0.1, 3_600.0), 5.0);
    Some(DnsConfig { frontends: frontends?, scheduler: scheduler?, every: every? })
}

/// Splits `HOST:PORT`.
pub(super) fn split_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
    Some((host, port.parse().ok()?))
}
