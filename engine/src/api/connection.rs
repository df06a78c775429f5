//! One client's connection from accept to close: hyper speaks HTTP/1.1 on it, and a watch closes it when
//! the client is too slow. Every wait has an end: a connection that nobody uses for
//! [`ApiConfig::idle_timeout`], a head that is not complete in `header_timeout`, a body (see `requests`), a
//! client that does not read its answer. So a half-open connection is gone after one of them.
//!
//! [`ApiConfig::idle_timeout`]: super::server::ApiConfig::idle_timeout

use super::glommio_io::{GlommioIo, within};
use super::requests::{Core, Reply};
use futures_channel::oneshot;
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::Service;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// When we are the one to close, what the client still sends (the rest of a refused body) is thrown away
/// for this long at most: closing at once would reset the connection, and the client might never see the
/// response. A client that closes too ends the wait.
const LINGER: Duration = Duration::from_secs(1);

const SLOW_HEAD: &[u8] = b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\n\
    connection: close\r\ncontent-length: 70\r\n\r\n\
    {\"error\":\"the request's head came too slowly; send it without pauses\"}";

const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    connection: close\r\nretry-after: 1\r\ncontent-length: 63\r\n\r\n\
    {\"error\":\"the server has all the connections that it may have\"}";

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
}

impl Watch {
    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(Instant::now());
    }
}

/// The socket as hyper sees it: tells the watch what happens on it.
struct Watched {
    io: GlommioIo,
    watch: Rc<Watch>,
}

impl Read for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
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
}

impl Service<Request<Incoming>> for Requests {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>>>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (core, watch) = (self.core.clone(), self.watch.clone());
        watch.enter(Phase::Busy);
        Box::pin(async move {
            let response = core.respond(request).await;
            watch.enter(Phase::Responding);
            Ok(response)
        })
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

/// Serves one connection to its end. When `stop` is dropped, it ends after the request at hand.
pub(super) async fn serve(core: Rc<Core>, io: GlommioIo, mut stop: oneshot::Receiver<()>) {
    // Only a zero is refused, which then means no limit.
    let _ = io.set_write_timeout(core.config.write_timeout);
    let watch = Rc::new(Watch { phase: Cell::new(Phase::Idle), since: Cell::new(Instant::now()) });
    let service = Requests { core: core.clone(), watch: watch.clone() };
    let mut http = http1::Builder::new()
        .max_header_size(core.config.max_head_bytes)
        .serve_connection(Watched { io, watch: watch.clone() }, service);
    let tick = core.config.header_timeout.min(core.config.idle_timeout) / 4;
    let tick = tick.clamp(Duration::from_millis(5), Duration::from_secs(1));
    let mut timer = glommio::timer::Timer::new(tick);
    let mut stopping = false;
    let end = poll_fn(|cx| {
        if !stopping && Pin::new(&mut stop).poll(cx).is_ready() {
            stopping = true;
            Pin::new(&mut http).graceful_shutdown();
        }
        if let Poll::Ready(result) = Pin::new(&mut http).poll(cx) {
            return Poll::Ready(if result.is_ok() { End::Closed } else { End::Broken });
        }
        if stopping && matches!(watch.phase.get(), Phase::Idle | Phase::Head) {
            return Poll::Ready(End::Unused);
        }
        while Pin::new(&mut timer).poll(cx).is_ready() {
            if let Some(end) = overdue(&core, &watch) {
                return Poll::Ready(end);
            }
            timer = glommio::timer::Timer::new(tick);
        }
        Poll::Pending
    })
    .await;
    close(http.into_parts().io.io, end, stopping).await;
}

fn overdue(core: &Core, watch: &Watch) -> Option<End> {
    let waited = watch.since.get().elapsed();
    match watch.phase.get() {
        Phase::Idle => (waited >= core.config.idle_timeout).then_some(End::Unused),
        Phase::Head => (waited >= core.config.header_timeout).then_some(End::SlowHead),
        Phase::Busy | Phase::Responding => None,
    }
}

/// Says goodbye, and where bytes may still be on their way, lets them come.
async fn close(mut io: GlommioIo, end: End, in_haste: bool) {
    if end == End::SlowHead {
        write_now(&mut io, SLOW_HEAD).await;
    }
    let _ = poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx)).await;
    if end != End::Unused && !in_haste {
        within(LINGER, discard(&mut io)).await;
    }
}

/// Tells a client that there is no room for it, and closes.
pub(super) async fn refuse(mut io: GlommioIo) {
    write_now(&mut io, TOO_MANY).await;
    close(io, End::Broken, false).await;
}

/// Writes what the socket takes at once: a client that is to be closed is not waited for.
async fn write_now(io: &mut GlommioIo, bytes: &[u8]) {
    poll_fn(|cx| {
        let _ = Pin::new(&mut *io).poll_write(cx, bytes);
        Poll::Ready(())
    })
    .await;
}

async fn discard(io: &mut GlommioIo) {
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
        for response in [SLOW_HEAD, TOO_MANY] {
            let text = std::str::from_utf8(response).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}", body.len())), "{} in {text}", body.len());
            serde_json::from_str::<serde_json::Value>(body).unwrap();
        }
    }
}
