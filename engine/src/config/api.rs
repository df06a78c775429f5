//! The table `[api]` of CONFIG, and the flags that override it. `serve` and `check` read the files
//! that it names; on SIGHUP `serve` reads them again.

use super::diagnostics::Diagnostics;
use super::tokens::{TokenGrant, read_tokens};
use super::toml_reader::{TomlTable, TomlValue};
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// Access control of the API: the address of admin calls, TLS and bearer tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The address at which admin calls are answered.
    pub admin: Option<SocketAddr>,
    /// The PEM files of the certificates and of their private key, for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The file of tokens.
    pub tokens: Option<PathBuf>,
    /// The names by which clients on loopback may address the server where there are no tokens,
    /// besides those of loopback.
    pub allowed_hosts: Vec<String>,
    /// True if admin calls may be answered beyond loopback without a token.
    pub insecure_admin: bool,
}

impl AccessConfig {
    /// Reads the table `[api]`.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<AccessConfig> {
        root.section("api", |table| {
            let admin = table.optional("admin").map_or(Some(None), |value| read_address(&value).map(Some));
            let cert = read_file(table, "tls_cert", "the PEM file of certificates");
            let key = read_file(table, "tls_key", "the PEM file of the private key");
            let tokens = read_file(table, "tokens", "the TOML file of tokens");
            let allowed_hosts = table.optional("allowed_hosts").map_or(Some(Vec::new()), |v| read_hosts(&v));
            let insecure_admin = table.optional("insecure_admin").map_or(Some(false), |v| v.truth());
            let tls = match (cert?, key?) {
                (None, None) => None,
                (Some(cert), Some(key)) => Some((cert, key)),
                (Some(_), None) => {
                    table.report("tls_cert", "is given without `tls_key`", "add the private key's PEM file");
                    return None;
                }
                (None, Some(_)) => {
                    table.report("tls_key", "is given without `tls_cert`", "add the certificates' PEM file");
                    return None;
                }
            };
            let (admin, tokens) = (admin?, tokens?);
            let (allowed_hosts, insecure_admin) = (allowed_hosts?, insecure_admin?);
            Some(AccessConfig { admin, tls, tokens, allowed_hosts, insecure_admin })
        })
    }

    /// Returns this configuration, overridden by the command line's `flags`.
    pub fn with(&self, flags: &AccessConfig) -> AccessConfig {
        AccessConfig {
            admin: flags.admin.or(self.admin),
            tls: flags.tls.clone().or_else(|| self.tls.clone()),
            tokens: flags.tokens.clone().or_else(|| self.tokens.clone()),
            allowed_hosts: self.allowed_hosts.iter().chain(&flags.allowed_hosts).cloned().collect(),
            insecure_admin: flags.insecure_admin || self.insecure_admin,
        }
    }

    /// Returns the address beyond loopback at which everybody could make admin calls, unless the
    /// configuration says that this is wanted.
    pub fn open_admin(&self) -> Option<SocketAddr> {
        let guarded = self.tokens.is_some() || self.insecure_admin;
        self.admin.filter(|addr| !guarded && !addr.ip().is_loopback())
    }

    /// The address of a listener for admin calls, if the server listens at `addresses`: the
    /// configured one, else one on loopback if one of `addresses` is not, else none.
    pub fn admin_beside(&self, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let open = addresses.iter().any(|addr| !addr.ip().is_loopback());
        // A user who lets the system choose a port probably runs several servers on the machine.
        let port = if addresses.iter().any(|addr| addr.port() == 0) { 0 } else { 8002 };
        self.admin.or_else(|| open.then(|| SocketAddr::from(([127, 0, 0, 1], port))))
    }

    /// Reads the file of tokens, if there is one.
    ///
    /// Errors: every diagnostic of the file.
    pub fn load_tokens(&self) -> Result<Option<Vec<TokenGrant>>, Diagnostics> {
        self.tokens.as_deref().map(read_tokens).transpose()
    }
}

fn read_address(value: &TomlValue<'_>) -> Option<SocketAddr> {
    let right = "an address and a port, like \"127.0.0.1:8002\"";
    let address = value.text(right)?.parse().ok();
    if address.is_none() {
        value.refuse_value(right);
    }
    address
}

fn read_hosts(value: &TomlValue<'_>) -> Option<Vec<String>> {
    let items = value.items("it must be a list of names without ports, like [\"models.example\"]")?;
    items.iter().map(|item| read_host(item)).collect()
}

fn read_host(value: &TomlValue<'_>) -> Option<String> {
    let host = value.text("a name without a port")?;
    if !is_host(host) {
        value.refuse_value("a name without a scheme and a port, like \"models.example\"");
        return None;
    }
    Some(host.to_owned())
}

/// Returns true if `text` can be the name of a host, as requests give it without the port.
pub fn is_host(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_address = bare.is_some_and(|bare| bare.parse::<Ipv6Addr>().is_ok());
    !text.is_empty() && (is_address || text.bytes().all(is_name))
}

/// Reads the field `name`, a file relative to the folder of CONFIG.
fn read_file(table: &TomlTable<'_>, name: &'static str, right: &str) -> Option<Option<PathBuf>> {
    let Some(value) = table.optional(name) else { return Some(None) };
    value.text(right).map(|file| Some(table.folder().join(file)))
}
