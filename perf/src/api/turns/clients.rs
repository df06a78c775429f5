//! Clients that send one large request and take its answer as fast as it comes.

use crate::MeasureError;
use bytes::Bytes;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// The longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// The windows of the client: an answer is never waited for.
const WINDOW: u32 = 1 << 30;

/// An answer.
pub(super) struct LargeAnswer {
    /// True if the request was carried out.
    pub(super) is_good: bool,
    /// The bytes of the body.
    pub(super) bytes: usize,
    /// The beginning of the answer, for errors.
    pub(super) start: String,
}

/// Sends a request over HTTP/1.1.
///
/// Errors: the connection broke.
pub(super) fn post(
    addr: SocketAddr,
    path: &str,
    headers: &[(&'static str, String)],
    body: &[u8],
) -> Result<LargeAnswer, MeasureError> {
    let mut stream = std::net::TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!(
        "POST /{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    stream.write_all(body)?;
    let mut part = vec![0; 256 << 10];
    let (mut bytes, mut start) = (0, Vec::new());
    loop {
        let read = stream.read(&mut part)?;
        if read == 0 {
            break;
        }
        bytes += read;
        start.extend(&part[..read.min(400 - start.len())]);
    }
    let start = String::from_utf8_lossy(&start).into_owned();
    Ok(LargeAnswer { is_good: start.starts_with("HTTP/1.1 200"), bytes, start })
}

/// Makes a gRPC call with one message; `body` has its prefix.
///
/// Errors: the connection broke.
pub(super) fn grpc(
    addr: SocketAddr,
    call: &str,
    headers: &[(&'static str, String)],
    body: &[u8],
) -> Result<LargeAnswer, MeasureError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let called =
            tokio::time::timeout(PATIENCE, called(addr, call, headers, Bytes::copy_from_slice(body)));
        let answer = called.await.map_err(|_| MeasureError::Failed(format!("{call} was not answered")))?;
        answer.map_err(|error| MeasureError::Failed(format!("{call}: {error}")))
    })
}

async fn called(
    addr: SocketAddr,
    call: &str,
    headers: &[(&'static str, String)],
    body: Bytes,
) -> Result<LargeAnswer, Box<dyn std::error::Error>> {
    let socket = tokio::net::TcpStream::connect(addr).await?;
    let (mut client, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake::<_, Bytes>(socket)
        .await?;
    tokio::spawn(connection);
    let mut request =
        hyper::Request::post(format!("http://localhost/{call}")).header("content-type", "application/grpc");
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let (response, mut send) = client.send_request(request.body(())?, false)?;
    send.send_data(body, true)?;
    let (parts, mut answer) = response.await?.into_parts();
    let mut bytes = 0;
    while let Some(part) = answer.data().await {
        let part = part?;
        bytes += part.len();
        answer.flow_control().release_capacity(part.len())?;
    }
    let trailers = answer.trailers().await?.unwrap_or(parts.headers);
    let is_good = trailers.get("grpc-status").is_some_and(|status| status == "0");
    Ok(LargeAnswer { is_good, bytes, start: format!("{trailers:?}") })
}
