//! A connection's socket for hyper, with TLS or without.

use super::glommio_io::GlommioIo;
use super::tls::TlsIo;
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A connection's socket.
pub(in crate::api) enum Socket {
    /// A socket without TLS.
    Plain(GlommioIo),
    /// A socket with TLS, after the handshake.
    Tls(Box<TlsIo>),
}

impl Socket {
    /// Returns the number of bytes that have come so far.
    pub(in crate::api) fn bytes_read(&self) -> u64 {
        match self {
            Socket::Plain(io) => io.bytes_read(),
            Socket::Tls(io) => io.bytes_read(),
        }
    }
}

impl Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Socket::Plain(io) => Pin::new(io).poll_read(cx, buf),
            Socket::Tls(io) => Pin::new(&mut **io).poll_read(cx, buf),
        }
    }
}

impl Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Socket::Plain(io) => Pin::new(io).poll_write(cx, buf),
            Socket::Tls(io) => Pin::new(&mut **io).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Socket::Plain(io) => Pin::new(io).poll_flush(cx),
            Socket::Tls(io) => Pin::new(&mut **io).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Socket::Plain(io) => Pin::new(io).poll_shutdown(cx),
            Socket::Tls(io) => Pin::new(&mut **io).poll_shutdown(cx),
        }
    }
}
