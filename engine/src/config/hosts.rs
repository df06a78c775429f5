//! The tables `[[hosts]]` and `[links]` of CONFIG: the hosts of an engine that is spread over
//! several, the role of each, and what holds for the links between them. All hosts read the same
//! file.

use super::discovery::{DiscoveryConfig, split_port};
use super::toml_reader::{Bounds, TomlTable};
use std::path::PathBuf;
use symphony_scheduler::limits;
use symphony_transport::Nanos;

/// The most characters of a host's name: what a `Hello` has room for.
const LONGEST_NAME: usize = 56;

/// The part of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Accepts requests over HTTP and gRPC, and holds their tensors.
    Frontend,
    /// Runs the ModelThreads and RankThreads.
    Scheduler,
    /// Runs batches on its executors.
    Backend,
}

impl Role {
    /// Returns the role's name in CONFIG and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Role::Frontend => "frontend",
            Role::Scheduler => "scheduler",
            Role::Backend => "backend",
        }
    }

    /// Returns true if hosts of this role connect to those of `peer`, and not the other way.
    pub fn dials(self, peer: Role) -> bool {
        matches!(
            (self, peer),
            (Role::Frontend | Role::Backend, Role::Scheduler) | (Role::Backend, Role::Frontend)
        )
    }
}

/// A host: one table of `[[hosts]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// The host's name.
    pub name: String,
    /// The host's role.
    pub role: Role,
    /// Where others reach it, `HOST:PORT`; empty for a backend, which only reaches others, and
    /// where others find it by etcd or DNS.
    pub address: String,
    /// The number of API threads of a host with frontends.
    pub api_threads: usize,
}

impl HostConfig {
    /// Returns the number of its frontends: its API threads, and one for its admin listener.
    pub fn frontends(&self) -> usize {
        if self.role == Role::Frontend { self.api_threads + 1 } else { 0 }
    }
}

/// What moves tensors between frontends' hosts and backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorTransport {
    /// The frames of the links.
    Tcp,
    /// RDMA verbs, beside the links.
    Rdma,
}

/// What holds for all links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// The time between two frames on a link, at most. A host that is silent for twice as long is
    /// taken for dead.
    pub heartbeat: Nanos,
    /// What makes this host one of the engine's, where links leave loopback.
    pub tls: Option<LinkTlsFiles>,
    /// What moves tensors.
    pub tensors: TensorTransport,
    /// The RDMA device, by its name; the first with an active port where there is none.
    pub rdma_device: Option<String>,
}

/// The files of the links' mutual TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTlsFiles {
    /// The host's certificate, with its intermediates.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
    /// The authorities that sign all hosts' certificates.
    pub authorities: PathBuf,
    /// The DNS name in all hosts' certificates.
    pub name: String,
}

impl Default for LinkConfig {
    fn default() -> LinkConfig {
        LinkConfig {
            heartbeat: Nanos::from_millis(200),
            tls: None,
            tensors: TensorTransport::Tcp,
            rdma_device: None,
        }
    }
}

impl LinkConfig {
    /// Reads the table `[links]`.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<LinkConfig> {
        root.section("links", |table| {
            let default = LinkConfig::default();
            let heartbeat = table.optional("heartbeat_ms").map_or(Some(default.heartbeat), |value| {
                value.number(Bounds::from(1.0, 60_000.0)).map(Nanos::from_millis_f64)
            });
            let tls = read_tls(table);
            let tensors = table.optional("tensors").map_or(Some("tcp"), |value| value.word(&["tcp", "rdma"]));
            let device = table.optional("rdma_device").map(|value| value.name("a device's name, \"mlx5_0\""));
            let tensors = if tensors? == "rdma" { TensorTransport::Rdma } else { TensorTransport::Tcp };
            let rdma_device = device.map_or(Some(None), |name| name.map(Some))?;
            Some(LinkConfig { heartbeat: heartbeat?, tls: tls?, tensors, rdma_device })
        })
    }
}

/// Reads the keys about TLS: all three files, or none.
fn read_tls(table: &TomlTable<'_>) -> Option<Option<LinkTlsFiles>> {
    let file =
        |name| table.optional(name).map(|value| Some(table.folder().join(value.text("a file's name")?)));
    let files = [file("tls_cert"), file("tls_key"), file("tls_ca")];
    let name =
        table.optional("tls_name").map_or(Some("symphony".to_owned()), |value| value.name("a DNS name"))?;
    match files {
        [None, None, None] => Some(None),
        [Some(certificate), Some(key), Some(authorities)] => {
            let (certificate, key, authorities) = (certificate?, key?, authorities?);
            Some(Some(LinkTlsFiles { certificate, key, authorities, name }))
        }
        _ => {
            table.report("tls_cert", "is given without the others", "give tls_cert, tls_key and tls_ca");
            None
        }
    }
}

/// Reads the tables `[[hosts]]`. All addresses have to be there where hosts are not discovered
/// otherwise.
pub(super) fn read_hosts(root: &TomlTable<'_>, discovery: Option<&DiscoveryConfig>) -> Vec<HostConfig> {
    let needs_address = discovery == Some(&DiscoveryConfig::Configuration);
    let mut names: Vec<String> = Vec::new();
    let hosts = root.tables("hosts", 0, |table| {
        let host = read_host(table, needs_address)?;
        if names.contains(&host.name) {
            table.report("name", format!("there are two hosts \"{}\"", host.name), "give each its own");
            return None;
        }
        names.push(host.name.clone());
        Some(host)
    });
    if hosts.is_empty() {
        return hosts;
    }
    let count = |role| hosts.iter().filter(|host| host.role == role).count();
    if count(Role::Scheduler) != 1 {
        let wrong = format!("{} hosts are schedulers", count(Role::Scheduler));
        root.report("hosts", wrong, "give one host the role \"scheduler\"");
    }
    for role in [Role::Frontend, Role::Backend].into_iter().filter(|role| count(*role) == 0) {
        let right = format!("give at least one host the role \"{}\"", role.name());
        root.report("hosts", format!("no host is a {}", role.name()), right);
    }
    let frontends: usize = hosts.iter().map(HostConfig::frontends).sum();
    if frontends > limits::MAX_FRONTENDS {
        let wrong = format!("{frontends} frontends, with one for each admin listener, are too many");
        root.report("hosts", wrong, format!("there may be {}: lower api_threads", limits::MAX_FRONTENDS));
    }
    hosts
}

fn read_host(table: &TomlTable<'_>, needs_address: bool) -> Option<HostConfig> {
    let name = table.required("name", "the host's name").and_then(|value| {
        let name = value.name("the host's name")?;
        if name.len() > LONGEST_NAME {
            value.refuse_value(format!("a name of at most {LONGEST_NAME} bytes"));
            return None;
        }
        Some(name)
    });
    let role = table.required("role", "\"frontend\", \"scheduler\" or \"backend\"");
    let role = role.and_then(|value| {
        Some(match value.word(&["frontend", "scheduler", "backend"])? {
            "frontend" => Role::Frontend,
            "scheduler" => Role::Scheduler,
            _ => Role::Backend,
        })
    });
    let address = table.optional("address").map(|value| {
        let right = "HOST:PORT, such as \"10.0.0.7:7400\" or \"scheduler.internal:7400\"";
        let address = value.text(right)?;
        if split_port(address).is_none() {
            value.refuse_value(right);
            return None;
        }
        Some(address.to_owned())
    });
    let api_threads = table.optional("api_threads").map(|value| value.count(1..=limits::MAX_FRONTENDS));
    let (name, role) = (name?, role?);
    let listens = role != Role::Backend;
    if listens && needs_address && address.is_none() {
        table.report("address", "is missing", "add where other hosts reach this one, HOST:PORT");
        return None;
    }
    if !listens && address.is_some() {
        table.report("address", "is given for a backend", "leave it out: backends only reach others");
        return None;
    }
    if role != Role::Frontend && api_threads.is_some() {
        table.report("api_threads", "is given for a host without frontends", "leave it out");
        return None;
    }
    let api_threads = api_threads.unwrap_or(Some(1))?;
    Some(HostConfig { name, role, address: address.unwrap_or(Some(String::new()))?, api_threads })
}
