//! What goes back over a connection: a response with its body, whole or in parts, in either
//! protocol.

use http_body::{Body, Frame, SizeHint};
use hyper::Response;
use hyper::body::{Buf, Bytes};
use hyper::header::HeaderMap;
use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// A response to whatever was asked.
pub(super) type Reply = Response<ReplyBody>;

/// Frames that come as they are ready.
pub(super) type Frames = Pin<Box<dyn Body<Data = Bytes, Error = Infallible>>>;

/// A response's body.
pub(super) struct ReplyBody {
    parts: Parts,
    /// Its connection counts the clones, so that it knows when all its responses were taken.
    _at_hand: Option<Rc<()>>,
    taking: Option<Taken>,
}

/// What of a body is there for its client.
enum Taken {
    /// All of it.
    All(Taking),
    /// The pieces that there are so far.
    Pieces(Rc<Progress>),
}

/// Whether a connection's client takes what is there for it. Over HTTP/2 it may leave an answer
/// with the server although its connection goes on.
#[derive(Debug)]
pub(super) struct Progress {
    untaken: Cell<usize>,
    since: Cell<Instant>,
}

impl Progress {
    /// Nothing is there.
    pub(super) fn new() -> Rc<Progress> {
        Rc::new(Progress { untaken: Cell::new(0), since: Cell::new(Instant::now()) })
    }

    /// How long there has been something of which nothing was taken.
    pub(super) fn stalled(&self) -> Duration {
        if self.untaken.get() == 0 { Duration::ZERO } else { self.since.get().elapsed() }
    }

    fn count(self: &Rc<Progress>) -> Taking {
        if self.untaken.replace(self.untaken.get() + 1) == 0 {
            self.moved();
        }
        Taking(self.clone())
    }

    fn moved(&self) {
        self.since.set(Instant::now());
    }
}

/// Something that is there for a client until this is dropped.
#[derive(Debug)]
struct Taking(Rc<Progress>);

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.untaken.set(self.0.untaken.get() - 1);
        self.0.moved();
    }
}

/// Bytes of a body, which are counted until they are sent.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    taking: Option<Taking>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(taking) = &self.taking {
            taking.0.moved();
        }
    }
}

enum Parts {
    Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
    Stream(Frames),
}

impl ReplyBody {
    /// All of it.
    pub(super) fn whole(data: impl Into<Bytes>) -> ReplyBody {
        let data = Some(data.into()).filter(|data| !data.is_empty());
        ReplyBody::of(Parts::Whole { data, trailers: None })
    }

    /// All of it with trailers, which HTTP/2 has.
    pub(super) fn with_trailers(data: Bytes, trailers: HeaderMap) -> ReplyBody {
        ReplyBody::of(Parts::Whole { data: Some(data), trailers: Some(trailers) })
    }

    /// As it comes.
    pub(super) fn stream(frames: Frames) -> ReplyBody {
        ReplyBody::of(Parts::Stream(frames))
    }

    fn of(parts: Parts) -> ReplyBody {
        ReplyBody { parts, _at_hand: None, taking: None }
    }

    /// The same, counted by `at_hand` until it is sent or dropped, and by `progress` as it is
    /// taken.
    pub(super) fn counted(self, at_hand: Rc<()>, progress: &Rc<Progress>) -> ReplyBody {
        let taking = match self.parts {
            Parts::Whole { .. } => Taken::All(progress.count()),
            Parts::Stream(_) => Taken::Pieces(progress.clone()),
        };
        ReplyBody { _at_hand: Some(at_hand), taking: Some(taking), ..self }
    }

    /// A piece of it, counted too. Of a stream nothing is there but its pieces.
    fn piece(&self, bytes: Bytes) -> Piece {
        let taking = self.taking.as_ref().map(|taking| match taking {
            Taken::All(Taking(progress)) | Taken::Pieces(progress) => progress.count(),
        });
        Piece { bytes, taking }
    }
}

impl Body for ReplyBody {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        let (data, trailers) = match &mut self.parts {
            Parts::Whole { data, trailers } => {
                let data = data.take();
                let trailers = if data.is_none() { trailers.take() } else { None };
                (data, trailers)
            }
            Parts::Stream(frames) => match ready!(frames.as_mut().poll_frame(cx)) {
                None => (None, None),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => (Some(data), None),
                    Err(frame) => (None, frame.into_trailers().ok()),
                },
            },
        };
        let data = data.map(|data| Frame::data(self.piece(data)));
        Poll::Ready(data.or_else(|| trailers.map(Frame::trailers)).map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match &self.parts {
            Parts::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Parts::Stream(frames) => frames.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.parts {
            Parts::Whole { data, trailers: None } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            // gRPC's messages have their lengths in front; nobody misses another.
            Parts::Whole { .. } => SizeHint::default(),
            Parts::Stream(frames) => frames.size_hint(),
        }
    }
}
