//! Mutual TLS between hosts: [`LinkTls`] is what a host shows and whom it admits, [`TlsChannel`]
//! one connection's state machine, by rustls: bytes of the socket go in, what the peer has sent
//! comes out, and the other way round. Neither has a socket or a clock.

use crate::wire::{CloseCode, Closing, HostRole, Payload};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, Connection, RootCertStore, ServerConfig};
use std::io::{Read, Write};
use std::sync::Arc;

/// Bytes that TLS may add to those of one flush: the headers of its records, and what it says of
/// its own accord.
pub(super) fn overhead(bytes: usize) -> usize {
    bytes / 256 + 1024
}

/// What makes a host of the cluster: a certificate of its own, with its key, and the authorities
/// whose certificates all hosts have. All hosts' certificates have the same DNS name. One that also
/// has that name below a role's, such as `backend.symphony`, is of hosts of that role only.
#[derive(Clone)]
pub struct LinkTls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// The names of hosts of one role.
    role_names: Vec<(HostRole, ServerName<'static>)>,
}

/// Why certificates can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the {part} of the links' TLS can't be used ({fault}): {right}")]
pub struct LinkTlsError {
    part: &'static str,
    fault: String,
    right: &'static str,
}

impl LinkTls {
    /// Reads PEM: the host's certificate with its intermediates, its key, and the authorities.
    /// `name` is the DNS name in every host's certificate.
    ///
    /// # Errors
    ///
    /// A sentence that names the part, and what it should be.
    pub fn new(chain: &[u8], key: &[u8], authorities: &[u8], name: &str) -> Result<LinkTls, LinkTlsError> {
        let right = "give PEM with `-----BEGIN CERTIFICATE-----`";
        let certificates = |part, pem| {
            let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            match read {
                Ok(read) if !read.is_empty() => Ok(read),
                Ok(_) => Err(LinkTlsError { part, fault: "there is none".to_owned(), right }),
                Err(error) => Err(LinkTlsError { part, fault: error.to_string(), right }),
            }
        };
        let chain = certificates("certificate", chain)?;
        let right = "give PEM with `-----BEGIN PRIVATE KEY-----`, of the certificate";
        let bad_key = |fault: String| LinkTlsError { part: "key", fault, right };
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad_key(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        let bad_root = |fault: String| LinkTlsError {
            part: "authorities",
            fault,
            right: "give the certificates that have signed those of all hosts",
        };
        for root in certificates("authorities", authorities)? {
            roots.add(root).map_err(|error| bad_root(error.to_string()))?;
        }
        let right = "give a DNS name that all hosts' certificates have, such as links.example.internal";
        let of_role =
            |role: HostRole| Some((role, ServerName::try_from(format!("{}.{name}", role.name())).ok()?));
        let role_names = HostRole::ALL.into_iter().filter_map(of_role).collect();
        let name = ServerName::try_from(name.to_owned()).map_err(|error| LinkTlsError {
            part: "name",
            fault: error.to_string(),
            right,
        })?;
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| bad_root(error.to_string()))?;
        let bad_pair = |error: rustls::Error| bad_key(error.to_string());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| {
                builder.with_client_cert_verifier(verifier).with_single_cert(chain.clone(), key.clone_key())
            })
            .map_err(bad_pair)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .and_then(|builder| builder.with_root_certificates(roots).with_client_auth_cert(chain, key))
            .map_err(bad_pair)?;
        Ok(LinkTls { server: Arc::new(server), client: Arc::new(client), name, role_names })
    }
}

/// One connection over TLS, of one side.
pub struct TlsChannel {
    connection: Connection,
    /// What the peer has sent, decrypted.
    plain: Vec<u8>,
    /// The first bytes were none of TLS: what is answered to a peer that speaks the links' protocol
    /// without it.
    in_clear: Option<Vec<u8>>,
    is_first: bool,
}

impl TlsChannel {
    /// Makes the side of who listens, or of who has dialled.
    ///
    /// # Errors
    ///
    /// rustls's own.
    pub fn new(tls: &LinkTls, has_dialled: bool) -> Result<TlsChannel, rustls::Error> {
        let mut connection = match has_dialled {
            true => {
                Connection::from(rustls::ClientConnection::new(Arc::clone(&tls.client), tls.name.clone())?)
            }
            false => Connection::from(rustls::ServerConnection::new(Arc::clone(&tls.server))?),
        };
        // Its caller bounds what is queued.
        connection.set_buffer_limit(None);
        Ok(TlsChannel { connection, plain: Vec::new(), in_clear: None, is_first: true })
    }

    /// Returns true until each side has checked the other's certificate, as far as this one knows:
    /// a peer that refuses ours may say so a moment later.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns true if the peer's certificate, which was checked, lets it have this role: it names
    /// the role, or none.
    pub fn peer_may_be(&self, tls: &LinkTls, role: HostRole) -> bool {
        let certificate = self.connection.peer_certificates().and_then(|chain| chain.first());
        let Some(certificate) = certificate.and_then(|first| ParsedCertificate::try_from(first).ok()) else {
            return false;
        };
        let is_named =
            |(_, name): &&(HostRole, ServerName<'static>)| verify_server_name(&certificate, name).is_ok();
        let mut named = tls.role_names.iter().filter(is_named).map(|(role, _)| *role).peekable();
        named.peek().is_none() || named.any(|named| named == role)
    }

    /// Takes bytes of the socket, and returns what they were when the peer sent them; bytes of an
    /// earlier call are gone.
    ///
    /// # Errors
    ///
    /// The peer is a stranger, or something has changed what it sent: the sentence for the log.
    /// [`TlsChannel::write`] has what is still to be said to it.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<&[u8], String> {
        self.plain.clear();
        if self.is_first && !bytes.is_empty() {
            self.is_first = false;
            // The first byte of a TLS handshake; a frame begins with `SYMF`.
            if bytes[0] != 22 {
                return Err(self.refuse_clear());
            }
        }
        while !bytes.is_empty() {
            self.connection.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            self.connection.process_new_packets().map_err(|error| sentence(&error))?;
            let unread = self.connection.reader().read_to_end(&mut self.plain);
            // It reads until no more is decrypted, and says so with an error.
            if unread.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock) {
                return Err("the peer has cut the connection off".to_owned());
            }
        }
        Ok(&self.plain)
    }

    /// Returns what the last [`TlsChannel::read`] returned.
    pub fn plain(&self) -> &[u8] {
        &self.plain
    }

    fn refuse_clear(&mut self) -> String {
        let closing =
            Closing::new(CloseCode::Mismatch, "links of this host need TLS: give this host's `tls` too");
        let mut frame = vec![0; 512];
        let length = Payload::Closing(closing).encode(&mut frame).unwrap_or(0);
        frame.truncate(length);
        self.in_clear = Some(frame);
        "the peer does not speak TLS, which links of this host need".to_owned()
    }

    /// Encrypts bytes for the peer, to be written. Before the handshake is over they wait for it.
    pub fn queue(&mut self, plain: &[u8]) {
        // Without a limit, it takes all of them.
        let _ = self.connection.writer().write_all(plain);
    }

    /// Writes what goes to the socket next, and returns how many bytes.
    pub fn write(&mut self, mut room: &mut [u8]) -> usize {
        let all = room.len();
        if let Some(frame) = self.in_clear.take() {
            let length = frame.len().min(all);
            room[..length].copy_from_slice(&frame[..length]);
            return length;
        }
        while self.connection.wants_write() && !room.is_empty() {
            if !self.connection.write_tls(&mut room).is_ok_and(|written| written > 0) {
                break;
            }
        }
        all - room.len()
    }

    /// Returns true if [`TlsChannel::write`] has bytes.
    pub fn wants_write(&self) -> bool {
        self.in_clear.is_some() || self.connection.wants_write()
    }
}

/// Says who is a stranger to whom.
fn sentence(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(alert) => {
            format!("the peer refuses this host's certificate, or its TLS ({alert:?})")
        }
        rustls::Error::NoCertificatesPresented => "the peer shows no certificate".to_owned(),
        rustls::Error::InvalidCertificate(fault) => {
            format!("the peer's certificate is not of this cluster ({fault:?})")
        }
        other => format!("TLS fails: {other}"),
    }
}
