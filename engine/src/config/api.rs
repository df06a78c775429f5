//! The table `[api]` of CONFIG, and the flags that override it. `serve` and `check` read the files
//! that it names; on SIGHUP `serve` reads them again.

use super::diagnostics::Diagnostics;
use super::tokens::{TokenGrant, read_tokens};
use super::toml_reader::{TomlTable, TomlValue};
use std::net::SocketAddr;
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
}

impl AccessConfig {
    /// Reads the table `[api]`.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<AccessConfig> {
        root.section("api", |table| {
            let admin = table.optional("admin").map_or(Some(None), |value| read_address(&value).map(Some));
            let cert = read_file(table, "tls_cert", "the PEM file of certificates");
            let key = read_file(table, "tls_key", "the PEM file of the private key");
            let tokens = read_file(table, "tokens", "the TOML file of tokens")?;
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
            Some(AccessConfig { admin: admin?, tls, tokens })
        })
    }

    /// Returns this configuration, overridden by the command line's `flags`.
    pub fn with(&self, flags: &AccessConfig) -> AccessConfig {
        AccessConfig {
            admin: flags.admin.or(self.admin),
            tls: flags.tls.clone().or_else(|| self.tls.clone()),
            tokens: flags.tokens.clone().or_else(|| self.tokens.clone()),
        }
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

/// Reads the field `name`, a file relative to the folder of CONFIG.
fn read_file(table: &TomlTable<'_>, name: &'static str, right: &str) -> Option<Option<PathBuf>> {
    let Some(value) = table.optional(name) else { return Some(None) };
    value.text(right).map(|file| Some(table.folder().join(file)))
}
