//! Access control of `serve` and of hosts: reads certificates and tokens, logs what is open, and
//! reloads both on SIGHUP.

use super::failure::CommandFailure;
use crate::api::tls::Tls;
use crate::api::tokens::Tokens;
use crate::config::{AccessConfig, Diagnostics, Location};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Access control, with the contents of the files that the configuration names.
pub(super) struct ServeAccess {
    pub(super) config: AccessConfig,
    pub(super) tls: Option<Tls>,
    pub(super) tokens: Option<Tokens>,
}

impl ServeAccess {
    /// Reads the files that `config` names.
    ///
    /// Errors: every diagnostic of the first file that has one, or an admin listener open to
    /// everybody that was not asked for; exit code 2.
    pub(super) fn load(config: AccessConfig) -> Result<ServeAccess, CommandFailure> {
        if let Some(addr) = config.open_admin() {
            return Err(CommandFailure::Input(format!(
                "admin: {addr} is not on loopback, and there are no tokens, so that whoever reaches it may load and \
                 unload models; give --tokens FILE, or an address on loopback such as 127.0.0.1:8002, or \
                 --insecure-admin if something else guards it"
            )));
        }
        let tls = load_tls(&config)?;
        let tokens = config.load_tokens()?.map(Tokens::new);
        Ok(ServeAccess { config, tls, tokens })
    }

    /// Reads the files again. A file with a diagnostic, which is logged, changes nothing.
    pub(super) fn reload(&self) {
        if let (Some(tls), Some((cert, key))) = (&self.tls, &self.config.tls) {
            match tls.reload(cert, key) {
                Ok(()) => tracing::info!("the certificate was read again; new connections get it"),
                Err(error) => tracing::error!("the certificate stays as it was: {error}"),
            }
        }
        let Some(tokens) = &self.tokens else { return };
        match self.config.load_tokens() {
            Ok(read) => {
                let read = read.unwrap_or_default();
                tracing::info!(tokens = read.len(), "the tokens were read again");
                tokens.replace(read);
            }
            Err(Diagnostics(diagnostics)) => {
                diagnostics
                    .iter()
                    .for_each(|diagnostic| tracing::error!("the tokens stay as they were: {diagnostic}"));
            }
        }
    }

    /// Returns the URL of the HTTP listener at `address`.
    pub(super) fn url(&self, address: SocketAddr) -> String {
        format!("{}://{address}", if self.tls.is_some() { "https" } else { "http" })
    }

    /// Returns the lines that announce the listeners.
    pub(super) fn ready(&self, http: SocketAddr, grpc: SocketAddr, admin: Option<SocketAddr>) -> String {
        let s = if self.tls.is_some() { "s" } else { "" };
        let mut lines = format!("ready http{s}://{http}\nready grpc{s}://{grpc}\n");
        lines.extend(admin.map(|admin| self.ready_admin(admin)));
        lines
    }

    /// Returns the line that announces an admin listener, which needs no TLS on loopback.
    pub(super) fn ready_admin(&self, admin: SocketAddr) -> String {
        let s = if self.tls.is_some() && !admin.ip().is_loopback() { "s" } else { "" };
        format!("ready admin http{s}://{admin}\n")
    }

    /// Warns of addresses beyond loopback that need no token, or where tokens are not encrypted.
    pub(super) fn log_open_addresses(&self, addresses: &[SocketAddr]) {
        for address in addresses.iter().filter(|address| !address.ip().is_loopback()) {
            if self.tokens.is_none() {
                tracing::warn!(
                    "whoever can reach {address} may use the models: --tokens FILE asks who it is"
                );
            } else if self.tls.is_none() {
                tracing::warn!("tokens come to {address} in plain text: --tls-cert and --tls-key hide them");
            }
        }
    }
}

/// Loads the certificates and the private key that `config` names, if it names any.
///
/// Errors: one of the files can't be used.
pub(super) fn load_tls(config: &AccessConfig) -> Result<Option<Tls>, Diagnostics> {
    let load = |(certificates, key): &(PathBuf, PathBuf)| {
        Tls::load(certificates, key).map_err(|error| {
            let location = Location { file: error.file, line: 1, field: "PEM".into() };
            Diagnostics(vec![location.diagnostic(error.what, error.right)])
        })
    };
    config.tls.as_ref().map(load).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_certificate_is_a_diagnostic_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let config = AccessConfig { tls: Some((file("c.pem"), file("k.pem"))), ..AccessConfig::default() };
        let diagnostics = load_tls(&config).unwrap_err().to_string();
        assert!(diagnostics.contains("c.pem:1: PEM: the certificate can't be read"), "{diagnostics}");
    }
}
