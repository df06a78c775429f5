//! One client's connection from accept to close: hyper speaks HTTP/1.1 or HTTP/2 on it, whichever
//! its first bytes are, and a watch closes it when the client is too slow. Every wait has an end: a
//! connection that nobody uses for [`ApiConfig::idle_timeout`], a head that is not complete in
//! `header_timeout`, a body (see `body`), a client that does not read its answer. So a half-open
//! connection is gone after one of them.
//!
//! [`ApiConfig::idle_timeout`]: super::server::ApiConfig::idle_timeout

use super::access::{ListenerRules, Peer};
use super::core::Core;
use super::glommio_io::{GlommioIo, GlommioTimer, within};
use super::reply::{Progress, Reply};
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

/// What a client that speaks HTTP/2 without asking first begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// When we are the one to close, what the client still sends (the rest of a refused body) is thrown
/// away for this long at most: closing at once would reset the connection, and the client might
/// never see the response. A client that closes too ends the wait.
const LINGER: Duration = Duration::from_secs(1);

const SLOW_HEAD: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 70\r\n\r\n\
    {\"error\":\"the request's head came too slowly; send it without pauses\"}";

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    connection: close\r\nretry-after: 1\r\ncontent-length: 63\r\n\r\n\
    {\"error\":\"the server has all the connections that it may have\"}";

const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 58\r\n\r\n\
    {\"error\":\"this port speaks TLS; ask for https:// instead\"}";

/// What the connection waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The first byte of a request.
    Idle,
    /// The rest of a head.
    Head,
    /// The body, the engine.
    Busy,
    /// The client to take its response.
    Responding,
}

struct Watch {
    phase: Cell<Phase>,
    since: Cell<Instant>,
    /// Cloned for each request of an HTTP/2 connection until its response is taken: these may be
    /// many.
    at_hand: Rc<()>,
    /// Whether the client takes its answers, which over HTTP/2 the socket does not tell.
    progress: Rc<Progress>,
}

impl Watch {
    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(Instant::now());
    }
}

/// The socket as hyper sees it: tells the watch what happens on it.
struct Watched {
    io: Socket,
    /// What was read to find out which protocol it is, until hyper has it.
    first: Vec<u8>,
    watch: Rc<Watch>,
}

impl Read for Watched {
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
        if self.io.bytes_read() > before && self.watch.phase.get() == Phase::Idle {
            self.watch.enter(Phase::Head);
        }
        result
    }
}

impl Write for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    /// hyper flushes when everything it had was written: the client has its response.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        if self.watch.phase.get() == Phase::Responding {
            self.watch.enter(Phase::Idle);
        }
        Poll::Ready(Ok(()))
    }

    /// [`close`] does it, after it has seen how the connection ended.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Hands each request to the core and tells the watch.
struct Requests {
    core: Rc<Core>,
    watch: Rc<Watch>,
    listener: ListenerRules,
}

impl Service<Request<Incoming>> for Requests {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (core, watch) = (self.core.clone(), self.watch.clone());
        watch.enter(Phase::Busy);
        let at_hand = watch.at_hand.clone();
        let peer = Peer { listener: self.listener, at_hand: at_hand.clone() };
        Box::pin(async move {
            let response = core.respond(request, peer).await;
            watch.enter(Phase::Responding);
            Ok(response.map(|body| body.counted(at_hand, &watch.progress)))
        })
    }
}

/// Runs what hyper spawns, a task for each HTTP/2 request, on the connection's own thread.
#[derive(Clone, Copy)]
struct Local;

impl<F> Executor<F> for Local
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        glommio::spawn_local(task).detach();
    }
}

/// A connection in the protocol that its client speaks.
enum Http {
    One(Box<http1::Connection<Watched, Requests>>),
    Two(Box<http2::Connection<Watched, Requests, Local>>),
}

impl Http {
    fn new(core: &Core, io: Watched, service: Requests, two: bool) -> Http {
        if two {
            let mut builder = http2::Builder::new(Local);
            builder
                .timer(GlommioTimer)
                .keep_alive_interval(core.config.keep_alive)
                .keep_alive_timeout(core.config.keep_alive)
                .max_concurrent_streams(u32::try_from(core.config.max_requests_at_once).unwrap_or(u32::MAX))
                .max_header_list_size(u32::try_from(core.config.max_head_bytes).unwrap_or(u32::MAX));
            return Http::Two(Box::new(builder.serve_connection(io, service)));
        }
        let mut builder = http1::Builder::new();
        builder.max_header_size(core.config.max_head_bytes);
        Http::One(Box::new(builder.serve_connection(io, service)))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        match self {
            Http::One(http) => Pin::new(&mut **http).poll(cx),
            Http::Two(http) => Pin::new(&mut **http).poll(cx),
        }
    }

    fn graceful_shutdown(&mut self) {
        match self {
            Http::One(http) => Pin::new(&mut **http).graceful_shutdown(),
            Http::Two(http) => Pin::new(&mut **http).graceful_shutdown(),
        }
    }
}

/// Why a connection came to its end.
#[derive(PartialEq)]
enum End {
    /// As HTTP has it: the client left, or one of both asked to close.
    Closed,
    /// hyper gave up: what came was no HTTP, or the socket broke.
    Broken,
    /// The watch: a head was not complete in time.
    SlowHead,
    /// The watch: nobody used it. Or the server stops.
    Unused,
}

/// Serves one connection to its end. When `stop` is dropped, it ends after the requests at hand.
pub(super) async fn serve(
    core: Rc<Core>,
    io: GlommioIo,
    listener: ListenerRules,
    mut stop: oneshot::Receiver<()>,
) {
    // Only a zero is refused, which then means no limit.
    let _ = io.set_write_timeout(core.config.write_timeout);
    let mut io = match core.config.tls.as_ref().filter(|_| listener.tls) {
        None => Socket::Plain(io),
        Some(tls) => match handshake(&core, tls, io, &mut stop).await {
            Some(io) => Socket::Tls(io),
            None => return,
        },
    };
    let first = match first_bytes(&core, &mut io, &mut stop).await {
        Ok(first) => first,
        Err(end) => return close(io, end, false).await,
    };
    let two = first == PREFACE;
    let (phase, since) = (Cell::new(Phase::Head), Cell::new(Instant::now()));
    let watch = Rc::new(Watch { phase, since, at_hand: Rc::new(()), progress: Progress::new() });
    let service = Requests { core: core.clone(), watch: watch.clone(), listener };
    let mut http = Http::new(&core, Watched { io, first, watch: watch.clone() }, service, two);
    let tick = core.config.header_timeout.min(core.config.idle_timeout).min(core.config.write_timeout) / 4;
    let tick = tick.clamp(Duration::from_millis(5), Duration::from_secs(1));
    let mut timer = glommio::timer::Timer::new(tick);
    let mut stopping = false;
    let end = poll_fn(|cx| {
        if !stopping && Pin::new(&mut stop).poll(cx).is_ready() {
            stopping = true;
            http.graceful_shutdown();
        }
        if let Poll::Ready(result) = http.poll(cx) {
            return Poll::Ready(if result.is_ok() { End::Closed } else { End::Broken });
        }
        if stopping && !two && matches!(watch.phase.get(), Phase::Idle | Phase::Head) {
            return Poll::Ready(End::Unused);
        }
        while Pin::new(&mut timer).poll(cx).is_ready() {
            if let Some(end) = if two { overdue_two(&core, &watch) } else { overdue(&core, &watch) } {
                return Poll::Ready(end);
            }
            timer = glommio::timer::Timer::new(tick);
        }
        Poll::Pending
    })
    .await;
    // An HTTP/2 connection has said goodbye itself.
    if let Http::One(http) = http {
        close(http.into_parts().io.io, end, stopping).await;
    }
}

/// TLS's handshake: the connection, if it came to one in time.
async fn handshake(
    core: &Core,
    tls: &Tls,
    io: GlommioIo,
    stop: &mut oneshot::Receiver<()>,
) -> Option<Box<TlsIo>> {
    let mut io = Box::new(TlsIo::new(tls, io).ok()?);
    let shaken = within(
        core.config.header_timeout,
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
                close(io, End::Broken, false).await;
            }
            None
        }
    }
}

/// Reads as much as tells which protocol the client speaks: the whole of HTTP/2's preface, or what
/// differs from it.
async fn first_bytes(core: &Core, io: &mut Socket, stop: &mut oneshot::Receiver<()>) -> Result<Vec<u8>, End> {
    let mut first = Vec::with_capacity(PREFACE.len());
    let begun = Instant::now();
    while first.len() < PREFACE.len() && PREFACE.starts_with(&first) {
        let (limit, end) = match first.len() {
            0 => (core.config.idle_timeout, End::Unused),
            _ => (core.config.header_timeout.saturating_sub(begun.elapsed()), End::SlowHead),
        };
        let mut next = pin!(within(limit, read_some(io, PREFACE.len() - first.len())));
        let read = poll_fn(|cx| {
            if Pin::new(&mut *stop).poll(cx).is_ready() {
                return Poll::Ready(Err(End::Unused));
            }
            next.as_mut().poll(cx).map(Ok)
        });
        match read.await?.ok_or(end)? {
            Ok(more) if !more.is_empty() => first.extend(more),
            // Gone before it said anything of use.
            _ => return Err(End::Unused),
        }
    }
    Ok(first)
}

/// At most so many bytes, as soon as there are any; none at the end.
async fn read_some(io: &mut Socket, most: usize) -> io::Result<Vec<u8>> {
    let mut memory = vec![0; most];
    let mut buffer = ReadBuf::new(&mut memory);
    poll_fn(|cx| Pin::new(&mut *io).poll_read(cx, buffer.unfilled())).await?;
    let read = buffer.filled().len();
    memory.truncate(read);
    Ok(memory)
}

fn overdue(core: &Core, watch: &Watch) -> Option<End> {
    let waited = watch.since.get().elapsed();
    match watch.phase.get() {
        Phase::Idle => (waited >= core.config.idle_timeout).then_some(End::Unused),
        Phase::Head => (waited >= core.config.header_timeout).then_some(End::SlowHead),
        Phase::Busy | Phase::Responding => None,
    }
}

/// Of an HTTP/2 connection this is watched here: whether it has requests, and whether its client
/// lets their answers come. Their bodies have limits of their own.
fn overdue_two(core: &Core, watch: &Watch) -> Option<End> {
    if watch.progress.stalled() >= core.config.write_timeout {
        return Some(End::Unused);
    }
    if Rc::strong_count(&watch.at_hand) > 1 {
        watch.since.set(Instant::now());
        return None;
    }
    (watch.since.get().elapsed() >= core.config.idle_timeout).then_some(End::Unused)
}

/// Says goodbye, and where bytes may still be on their way, lets them come.
async fn close(mut io: Socket, end: End, in_haste: bool) {
    if end == End::SlowHead {
        write_now(&mut io, SLOW_HEAD).await;
    }
    let _ = poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await;
    if end != End::Unused && !in_haste {
        within(LINGER, discard(&mut io)).await;
    }
}

/// Tells a client that there is no room for it, and closes.
pub(super) async fn refuse(io: GlommioIo) {
    let mut io = Socket::Plain(io);
    write_now(&mut io, TOO_MANY).await;
    close(io, End::Broken, false).await;
}

/// Writes what the socket takes at once: a client that is to be closed is not waited for.
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
        for response in [SLOW_HEAD, TOO_MANY, NOT_TLS] {
            let text = std::str::from_utf8(response).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}", body.len())), "{} in {text}", body.len());
            serde_json::from_str::<serde_json::Value>(body).unwrap();
        }
    }
}
