//! TLS on an API core's sockets, by rustls with ring: [`Tls`] holds the certificate, which can be
//! replaced while the server runs, `TlsIo` is a connection for hyper. Buffers are bounded: one read
//! of the socket on the way in, `UNSENT` bytes on the way out.

use super::glommio_io::GlommioIo;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, ready};

/// The most bytes that wait to be encrypted and sent.
const UNSENT: usize = 64 << 10;

/// The bytes of one read of the socket: a record of TLS and a little more.
const READ_AT_ONCE: usize = 18 << 10;

/// The reason that a certificate can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{}:1: {what}; {right}", file.display())]
pub struct TlsError {
    /// The file that is wrong.
    pub file: PathBuf,
    /// The fault.
    pub what: String,
    /// The remedy.
    pub right: &'static str,
}

/// The server's certificate and key. Clones share them.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Arc<ServerConfig>>>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the certificates (the server's own first) and the private key in these PEM files.
    ///
    /// Errors: a file can't be read or holds neither, or key and certificate do not match.
    pub fn load(certificates: &Path, key: &Path) -> Result<Tls, TlsError> {
        Ok(Tls(Arc::new(RwLock::new(read(certificates, key)?))))
    }

    /// Reads the files again, for new connections.
    ///
    /// Errors: as [`Tls::load`]; nothing changes then.
    pub fn reload(&self, certificates: &Path, key: &Path) -> Result<(), TlsError> {
        let config = read(certificates, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    fn config(&self) -> Arc<ServerConfig> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(certificates: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    const RIGHT: &str = "give a PEM file with `-----BEGIN CERTIFICATE-----`, the server's own first";
    const RIGHT_KEY: &str = "give a PEM file with `-----BEGIN PRIVATE KEY-----`, which this process may read";
    let wrong = |file: &Path, what: String, right| TlsError { file: file.into(), what, right };
    let chain = CertificateDer::pem_file_iter(certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(certificates, format!("the certificate can't be read ({error})"), RIGHT))?;
    if chain.is_empty() {
        return Err(wrong(certificates, "there is no certificate in it".into(), RIGHT));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| wrong(key, format!("the private key can't be read ({error})"), RIGHT_KEY))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| {
            let what = format!("the certificate and the key of {} can't be used ({error})", key.display());
            wrong(certificates, what, "give a certificate and the key that it was made for")
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A connection over TLS that hyper can drive.
pub(in crate::api) struct TlsIo {
    io: GlommioIo,
    tls: ServerConnection,
    /// The bytes read from the socket, and the range that rustls has not taken yet.
    inbox: Box<[u8]>,
    untaken: Range<usize>,
    /// The encrypted bytes, and the number of them that are sent.
    outbox: Vec<u8>,
    sent: usize,
    bytes_read: u64,
    /// True if the client's first byte was that of an HTTP method; `None` before the first byte.
    in_plain: Option<bool>,
}

impl TlsIo {
    /// Creates the server's side of a new connection.
    ///
    /// Errors: rustls's own.
    pub(in crate::api) fn new(tls: &Tls, io: GlommioIo) -> io::Result<TlsIo> {
        let mut tls = ServerConnection::new(tls.config()).map_err(io::Error::other)?;
        tls.set_buffer_limit(Some(UNSENT));
        let inbox = vec![0; READ_AT_ONCE].into_boxed_slice();
        Ok(TlsIo {
            io,
            tls,
            inbox,
            untaken: 0..0,
            outbox: Vec::new(),
            sent: 0,
            bytes_read: 0,
            in_plain: None,
        })
    }

    /// Returns the socket below.
    pub(in crate::api) fn into_socket(self) -> GlommioIo {
        self.io
    }

    /// Returns the number of decrypted bytes that have come.
    pub(in crate::api) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Continues the handshake until it is done.
    ///
    /// Errors: the client's first bytes are not TLS ([`io::ErrorKind::InvalidData`]), or it left.
    pub(in crate::api) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.is_handshaking() {
            // First, as bytes that rustls has given away may have had to wait: the client answers
            // only them.
            ready!(self.poll_send(cx))?;
            if ready!(self.poll_receive(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        self.poll_send(cx)
    }

    /// Returns true if the client began with HTTP without TLS.
    pub(in crate::api) fn began_in_plain(&self) -> bool {
        self.in_plain == Some(true)
    }

    /// Passes received bytes to rustls and returns the number of bytes taken, zero at the end.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.untaken.is_empty() {
            let mut buffer = ReadBuf::new(&mut self.inbox);
            ready!(Pin::new(&mut self.io).poll_read(cx, buffer.unfilled()))?;
            self.untaken = 0..buffer.filled().len();
            let first = self.inbox[0];
            // No record of TLS begins so. rustls would answer with an alert, which such a client
            // can't read.
            if *self.in_plain.get_or_insert_with(|| first.is_ascii_uppercase()) {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
        }
        let taken = self.tls.read_tls(&mut &self.inbox[self.untaken.clone()])?;
        self.untaken.start += taken;
        if let Err(error) = self.tls.process_new_packets() {
            // The alert is sent if the socket takes it at once.
            let _ = self.poll_send(cx);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        Poll::Ready(Ok(taken))
    }

    /// Sends all that rustls has encrypted.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.sent == self.outbox.len() {
                self.outbox.clear();
                self.sent = 0;
                if !self.tls.wants_write() {
                    return Poll::Ready(Ok(()));
                }
                self.tls.write_tls(&mut self.outbox)?;
            }
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.outbox[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
    }
}

impl Read for TlsIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut plain = [0; 4 << 10];
        let room = buf.remaining().min(plain.len());
        loop {
            match self.tls.reader().read(&mut plain[..room]) {
                Ok(read) => {
                    buf.put_slice(&plain[..read]);
                    self.bytes_read += read as u64;
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
            // TLS's own messages; if they must wait, they are sent with the next write.
            if let Poll::Ready(Err(error)) = self.poll_send(cx) {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_receive(cx))?;
        }
    }
}

impl Write for TlsIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let taken = self.tls.writer().write(buf)?;
            match self.poll_send(cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                _ if taken > 0 || buf.is_empty() => return Poll::Ready(Ok(taken)),
                Poll::Ready(Ok(())) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.send_close_notify();
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
