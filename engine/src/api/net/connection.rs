//! A client's connection from accept to close: hyper speaks HTTP/1.1 or HTTP/2 on it, whichever its
//! first bytes are, and a watch closes it when the client is too slow. Every wait has an end: a
//! connection without requests for [`ConnectionLimits::idle_timeout`], a head that is not complete
//! in `header_timeout`, a body (see `body`), a client that does not read its answer. So a half-open
//! connection is gone after one of them.

use super::core_tasks::CoreTasks;
use super::glommio_io::{GlommioIo, GlommioTimer, within};
use super::limits::ConnectionLimits;
use super::memory::{ConnectionMemory, CoreMemory, PeerMemory, ReceiveWindow};
use super::peer::{ListenerRules, Peer};
use super::response::{ApiResponse, DeliveryProgress};
use super::socket::Socket;
use super::tls::{Tls, TlsIo};
use futures_channel::oneshot;
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::{Executor, Read, ReadBuf, ReadBufCursor, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// The first bytes of a client that speaks HTTP/2 with prior knowledge.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The longest time for which the server, when it closes a connection, discards the bytes that the
/// client still sends (the rest of a refused body). Closing at once would reset the connection, and
/// the client might never see the response. A client that closes too ends the wait.
const LINGER: Duration = Duration::from_secs(1);

const SLOW_HEAD: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 70\r\n\r\n\
    {\"error\":\"the request's head came too slowly; send it without pauses\"}";

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    connection: close\r\nretry-after: 1\r\ncontent-length: 63\r\n\r\n\
    {\"error\":\"the server has all the connections that it may have\"}";

const TOO_MANY_OF_PEER: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n\
    connection: close\r\nretry-after: 1\r\ncontent-length: 65\r\n\r\n\
    {\"error\":\"your address has all the connections that it may have\"}";

const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 58\r\n\r\n\
    {\"error\":\"this port speaks TLS; ask for https:// instead\"}";

/// The event that a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionPhase {
    /// The first byte of a request.
    Idle,
    /// The end of a head.
    Head,
    /// The body, or the engine.
    Busy,
    /// The client's reading of its response.
    Responding,
}

struct ConnectionWatch {
    phase: Cell<ConnectionPhase>,
    since: Cell<Instant>,
    /// A token cloned for each request in flight, until its response is taken.
    in_flight: Rc<ConnectionMemory>,
    /// The progress of responses, which over HTTP/2 the socket does not show.
    progress: Rc<DeliveryProgress>,
    /// True if the connection is to end after the requests in flight.
    condemned: Rc<Cell<bool>>,
}

impl ConnectionWatch {
    fn enter(&self, phase: ConnectionPhase) {
        self.phase.set(phase);
        self.since.set(Instant::now());
    }
}

/// The socket for hyper, which reports its events to the watch.
struct WatchedSocket {
    io: Socket,
    /// The bytes read to detect the protocol, until hyper has taken them.
    first: Vec<u8>,
    watch: Rc<ConnectionWatch>,
}

impl Read for WatchedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let taken = self.first.len().min(buf.remaining());
            buf.put_slice(&self.first[..taken]);
            self.first.drain(..taken);
            return Poll::Ready(Ok(()));
        }
        let before = self.io.bytes_read();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        if self.io.bytes_read() > before && self.watch.phase.get() == ConnectionPhase::Idle {
            self.watch.enter(ConnectionPhase::Head);
        }
        result
    }
}

impl Write for WatchedSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    /// Flushes; hyper does so after the last byte, when the client has its response.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        if self.watch.phase.get() == ConnectionPhase::Responding {
            self.watch.enter(ConnectionPhase::Idle);
        }
        Poll::Ready(Ok(()))
    }

    /// Does nothing: [`close`] shuts down, depending on how the connection ended.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The handler of the requests of connections, with the limits that connections keep for it.
pub(in crate::api) trait RequestHandler: 'static {
    /// Returns the limits of each connection.
    fn limits(&self) -> &ConnectionLimits;

    /// Returns the memory that the requests and answers of all connections share.
    fn memory(&self) -> &Rc<CoreMemory>;

    /// Returns the runner of the core's tasks.
    fn tasks(&self) -> &Rc<CoreTasks>;

    /// Returns the certificate for listeners that speak TLS.
    fn tls(&self) -> Option<&Tls>;

    /// Answers one request of `peer`, whatever happens meanwhile: a panic is answered too.
    fn respond(
        self: Rc<Self>,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = ApiResponse> + 'static;
}

/// Hands each request to the handler, and reports to the watch what the connection waits for.
struct RequestService<H> {
    handler: Rc<H>,
    watch: Rc<ConnectionWatch>,
    listener: ListenerRules,
}

impl<H: RequestHandler> Service<Request<Incoming>> for RequestService<H> {
    type Response = ApiResponse;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<ApiResponse, Infallible>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (handler, watch) = (self.handler.clone(), self.watch.clone());
        watch.enter(ConnectionPhase::Busy);
        let in_flight = watch.in_flight.clone();
        let condemned = watch.condemned.clone();
        let peer = Peer { listener: self.listener, in_flight: in_flight.clone(), condemned };
        Box::pin(async move {
            let memory = handler.memory().lease(&in_flight);
            let response = handler.respond(request, peer).await;
            watch.enter(ConnectionPhase::Responding);
            Ok(response.map(|body| body.counted(in_flight, memory, &watch.progress)))
        })
    }
}

/// Runs what hyper spawns, a task for each HTTP/2 request, on the connection's own thread. A panic
/// ends that task alone.
#[derive(Clone)]
struct TaskExecutor(Rc<CoreTasks>);

impl<F> Executor<F> for TaskExecutor
where
    F: Future + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(async move { drop(task.await) });
    }
}

/// A connection in the protocol that its client speaks.
enum HttpConnection<H: RequestHandler> {
    One(Box<http1::Connection<WatchedSocket, RequestService<H>>>),
    Two(Box<http2::Connection<WatchedSocket, RequestService<H>, TaskExecutor>>),
}

impl<H: RequestHandler> HttpConnection<H> {
    fn new(
        limits: &ConnectionLimits,
        io: WatchedSocket,
        service: RequestService<H>,
        window: Option<&ReceiveWindow>,
    ) -> HttpConnection<H> {
        if let Some(window) = window {
            let mut builder = http2::Builder::new(TaskExecutor(service.handler.tasks().clone()));
            builder
                .timer(GlommioTimer)
                .initial_connection_window_size(window.bytes())
                .initial_stream_window_size(window.bytes())
                .keep_alive_interval(limits.keep_alive)
                .keep_alive_timeout(limits.keep_alive)
                .max_concurrent_streams(u32::try_from(limits.max_requests_at_once).unwrap_or(u32::MAX))
                .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX));
            return HttpConnection::Two(Box::new(builder.serve_connection(io, service)));
        }
        let mut builder = http1::Builder::new();
        builder.max_header_size(limits.max_head_bytes);
        HttpConnection::One(Box::new(builder.serve_connection(io, service)))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        match self {
            HttpConnection::One(http) => Pin::new(&mut **http).poll(cx),
            HttpConnection::Two(http) => Pin::new(&mut **http).poll(cx),
        }
    }

    fn graceful_shutdown(&mut self) {
        match self {
            HttpConnection::One(http) => Pin::new(&mut **http).graceful_shutdown(),
            HttpConnection::Two(http) => Pin::new(&mut **http).graceful_shutdown(),
        }
    }
}

/// The reason that a connection ended.
#[derive(PartialEq)]
enum ConnectionEnd {
    /// The rules of HTTP: the client left, or either side asked to close.
    Closed,
    /// An error of hyper: the bytes were not HTTP, or the socket broke.
    Broken,
    /// A time-out: a head was not complete in time.
    SlowHead,
    /// A time-out without requests, or the stop of the server.
    Unused,
}

/// Serves one connection to its end; `peer` counts the memory of its client's address, if that has
/// a limit. When `stop` is dropped, it ends after the requests in flight.
pub(in crate::api) async fn serve<H: RequestHandler>(
    handler: Rc<H>,
    io: GlommioIo,
    listener: ListenerRules,
    peer: Option<PeerMemory>,
    mut stop: oneshot::Receiver<()>,
) {
    let limits = *handler.limits();
    // Only a zero is refused, which then means no limit.
    let _ = io.set_write_timeout(limits.write_timeout);
    let mut io = match handler.tls().filter(|_| listener.tls) {
        None => Socket::Plain(io),
        Some(tls) => match handshake(&limits, tls, io, &mut stop).await {
            Some(io) => Socket::Tls(io),
            None => return,
        },
    };
    let first = match first_bytes(&limits, &mut io, &mut stop).await {
        Ok(first) => first,
        Err(end) => return close(io, end, false).await,
    };
    let two = first == PREFACE;
    let (phase, since) = (Cell::new(ConnectionPhase::Head), Cell::new(Instant::now()));
    let watch = Rc::new(ConnectionWatch {
        phase,
        since,
        in_flight: ConnectionMemory::of_peer(peer),
        progress: DeliveryProgress::new(),
        condemned: Rc::default(),
    });
    let window = two.then(|| handler.memory().receive_window());
    let service = RequestService { handler, watch: watch.clone(), listener };
    let io = WatchedSocket { io, first, watch: watch.clone() };
    let mut http = HttpConnection::new(&limits, io, service, window.as_ref());
    let tick = limits.header_timeout.min(limits.idle_timeout).min(limits.write_timeout) / 4;
    let tick = tick.clamp(Duration::from_millis(5), Duration::from_secs(1));
    let mut timer = glommio::timer::Timer::new(tick);
    let mut stopping = false;
    let end = poll_fn(|cx| {
        if !stopping && Pin::new(&mut stop).poll(cx).is_ready() {
            stopping = true;
            http.graceful_shutdown();
        }
        if watch.condemned.take() {
            http.graceful_shutdown();
        }
        if let Poll::Ready(result) = http.poll(cx) {
            return Poll::Ready(if result.is_ok() { ConnectionEnd::Closed } else { ConnectionEnd::Broken });
        }
        if stopping && !two && matches!(watch.phase.get(), ConnectionPhase::Idle | ConnectionPhase::Head) {
            return Poll::Ready(ConnectionEnd::Unused);
        }
        while Pin::new(&mut timer).poll(cx).is_ready() {
            if let Some(end) = if two { overdue_two(&limits, &watch) } else { overdue(&limits, &watch) } {
                return Poll::Ready(end);
            }
            timer = glommio::timer::Timer::new(tick);
        }
        Poll::Pending
    })
    .await;
    // hyper has closed an HTTP/2 connection itself.
    if let HttpConnection::One(http) = http {
        close(http.into_parts().io.io, end, stopping).await;
    }
}

/// Makes TLS's handshake and returns the connection, if it succeeds in time.
async fn handshake(
    limits: &ConnectionLimits,
    tls: &Tls,
    io: GlommioIo,
    stop: &mut oneshot::Receiver<()>,
) -> Option<Box<TlsIo>> {
    let mut io = Box::new(TlsIo::new(tls, io).ok()?);
    let shaken = within(
        limits.header_timeout,
        poll_fn(|cx| {
            if Pin::new(&mut *stop).poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            io.poll_handshake(cx)
        }),
    );
    match shaken.await? {
        Ok(()) => Some(io),
        Err(_) => {
            if io.began_in_plain() {
                let mut io = Socket::Plain(io.into_socket());
                write_now(&mut io, NOT_TLS).await;
                close(io, ConnectionEnd::Broken, false).await;
            }
            None
        }
    }
}

/// Reads the bytes that determine the client's protocol: the whole preface of HTTP/2, or those up
/// to the first that differs from it.
async fn first_bytes(
    limits: &ConnectionLimits,
    io: &mut Socket,
    stop: &mut oneshot::Receiver<()>,
) -> Result<Vec<u8>, ConnectionEnd> {
    let mut first = Vec::with_capacity(PREFACE.len());
    let begun = Instant::now();
    while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
        let (limit, end) = match first.len() {
            0 => (limits.idle_timeout, ConnectionEnd::Unused),
            _ => (limits.header_timeout.saturating_sub(begun.elapsed()), ConnectionEnd::SlowHead),
        };
        let mut next = pin!(within(limit, read_some(io, PREFACE.len() - first.len())));
        let read = poll_fn(|cx| {
            if Pin::new(&mut *stop).poll(cx).is_ready() {
                return Poll::Ready(Err(ConnectionEnd::Unused));
            }
            next.as_mut().poll(cx).map(Ok)
        });
        match read.await?.ok_or(end)? {
            Ok(more) if !more.is_empty() => first.extend(more),
            // The client left before it sent anything of use.
            _ => return Err(ConnectionEnd::Unused),
        }
    }
    Ok(first)
}

/// Reads at most `most` bytes, as soon as there are any; none at the end.
async fn read_some(io: &mut Socket, most: usize) -> io::Result<Vec<u8>> {
    let mut memory = vec![0; most];
    let mut buffer = ReadBuf::new(&mut memory);
    poll_fn(|cx| Pin::new(&mut *io).poll_read(cx, buffer.unfilled())).await?;
    let read = buffer.filled().len();
    memory.truncate(read);
    Ok(memory)
}

fn overdue(limits: &ConnectionLimits, watch: &ConnectionWatch) -> Option<ConnectionEnd> {
    let waited = watch.since.get().elapsed();
    match watch.phase.get() {
        ConnectionPhase::Idle => (waited >= limits.idle_timeout).then_some(ConnectionEnd::Unused),
        ConnectionPhase::Head => (waited >= limits.header_timeout).then_some(ConnectionEnd::SlowHead),
        ConnectionPhase::Busy | ConnectionPhase::Responding => None,
    }
}

/// Returns the reason to end an HTTP/2 connection: its client takes no responses, or it has been
/// without requests for too long. Bodies have limits of their own.
fn overdue_two(limits: &ConnectionLimits, watch: &ConnectionWatch) -> Option<ConnectionEnd> {
    if watch.progress.stalled() >= limits.write_timeout {
        return Some(ConnectionEnd::Unused);
    }
    if Rc::strong_count(&watch.in_flight) > 1 {
        watch.since.set(Instant::now());
        return None;
    }
    (watch.since.get().elapsed() >= limits.idle_timeout).then_some(ConnectionEnd::Unused)
}

/// Closes the connection, after discarding bytes that may still be on their way.
async fn close(mut io: Socket, end: ConnectionEnd, stopping: bool) {
    if end == ConnectionEnd::SlowHead {
        write_now(&mut io, SLOW_HEAD).await;
    }
    let _ = poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await;
    if end != ConnectionEnd::Unused && !stopping {
        within(LINGER, discard(&mut io)).await;
    }
}

/// The reason that a connection is not served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum ConnectionRefusal {
    /// The listener has all the connections that it may have.
    ServerFull,
    /// The client's address has all the connections that one may have.
    PeerFull,
}

/// Answers a client over a limit of connections with 503 or 429, and closes.
pub(in crate::api) async fn refuse(io: GlommioIo, reason: ConnectionRefusal) {
    let mut io = Socket::Plain(io);
    let answer = match reason {
        ConnectionRefusal::ServerFull => TOO_MANY,
        ConnectionRefusal::PeerFull => TOO_MANY_OF_PEER,
    };
    write_now(&mut io, answer).await;
    close(io, ConnectionEnd::Broken, false).await;
}

/// Writes as many bytes as the socket takes at once, without waiting for the client.
async fn write_now(io: &mut Socket, bytes: &[u8]) {
    poll_fn(|cx| {
        let _ = Pin::new(&mut *io).poll_write(cx, bytes);
        Poll::Ready(())
    })
    .await;
}

async fn discard(io: &mut Socket) {
    let mut memory = [0; 4096];
    loop {
        let before = io.bytes_read();
        let mut buffer = ReadBuf::new(&mut memory);
        let read = poll_fn(|cx| Pin::new(&mut *io).poll_read(cx, buffer.unfilled())).await;
        if read.is_err() || io.bytes_read() == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_responses_are_as_long_as_they_say() {
        for response in [SLOW_HEAD, TOO_MANY, TOO_MANY_OF_PEER, NOT_TLS] {
            let text = std::str::from_utf8(response).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}", body.len())), "{} in {text}", body.len());
            serde_json::from_str::<serde_json::Value>(body).unwrap();
        }
    }
}
