//! The TCP connections that both protocols are spoken on, and the event loop of a thread that has
//! them.

use super::url::ServerUrl;
use crate::loadgen::RunError;
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The longest time that a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Times that a request is sent again after a kept connection turned out to be closed.
pub(super) const MAX_RESENDS: u32 = 3;
/// The longest answer that is read.
pub(super) const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The reason for which a request got no answer.
#[derive(Debug)]
pub(super) struct Failure {
    /// The reason, for a report.
    pub(super) reason: String,
    /// True if no connection could be made: the server is not there.
    pub(super) refused: bool,
}

/// The event loop of one thread.
///
/// Errors: the machine has none left.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| RunError::Machine(format!("can't start a thread's event loop: {e}")))
}

/// The first of a server's addresses that takes a connection, and the connection.
pub(super) async fn first_of<S>(
    server: &ServerUrl,
    open: impl AsyncFn(SocketAddr) -> Result<S, Failure>,
) -> Result<(SocketAddr, S), RunError> {
    let unreachable = |what: String| RunError::Unreachable(format!("{server}: {what}"));
    let addresses =
        server.addresses().map_err(|e| unreachable(format!("no address is known for it ({e})")))?;
    let mut last = None;
    for address in addresses {
        match open(address).await {
            Ok(sender) => return Ok((address, sender)),
            Err(failure) => last = Some(failure.reason),
        }
    }
    let reason = last.unwrap_or_else(|| "it has no address".into());
    Err(unreachable(format!("{reason}; is the server running there?")))
}

pub(super) fn broken(error: impl fmt::Display) -> Failure {
    Failure { reason: format!("the connection broke before the answer was whole ({error})"), refused: false }
}

/// A TCP connection.
pub(super) async fn stream(address: SocketAddr) -> Result<TokioIo<TcpStream>, Failure> {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut};
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connected.unwrap_or_else(|_| Err(TimedOut.into())).map_err(|e| Failure {
        reason: format!("can't connect to {address}: {e}"),
        refused: matches!(e.kind(), ConnectionRefused | ConnectionReset | TimedOut),
    })?;
    // A connection that the server has closed already fails at its first read.
    let _ = stream.set_nodelay(true);
    Ok(TokioIo::new(stream))
}
