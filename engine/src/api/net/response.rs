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
pub(in crate::api) type ApiResponse = Response<ResponseBody>;

/// BodyFrames that come as they are ready.
pub(in crate::api) type BodyFrames = Pin<Box<dyn Body<Data = Bytes, Error = Infallible>>>;

/// A response's body.
pub(in crate::api) struct ResponseBody {
    parts: BodyParts,
    /// Its connection counts the clones, so that it knows when all its responses were taken.
    _in_flight: Option<Rc<()>>,
    taking: Option<Delivery>,
}

/// What of a body is there for its client.
enum Delivery {
    /// All of it.
    All(Undelivered),
    /// The pieces that there are so far.
    Pieces(Rc<DeliveryProgress>),
}

/// Whether a connection's client takes what is there for it. Over HTTP/2 it may leave an answer
/// with the server although its connection goes on.
#[derive(Debug)]
pub(in crate::api) struct DeliveryProgress {
    untaken: Cell<usize>,
    since: Cell<Instant>,
}

impl DeliveryProgress {
    /// Nothing is there.
    pub(in crate::api) fn new() -> Rc<DeliveryProgress> {
        Rc::new(DeliveryProgress { untaken: Cell::new(0), since: Cell::new(Instant::now()) })
    }

    /// How long there has been something of which nothing was taken.
    pub(in crate::api) fn stalled(&self) -> Duration {
        if self.untaken.get() == 0 { Duration::ZERO } else { self.since.get().elapsed() }
    }

    fn count(self: &Rc<DeliveryProgress>) -> Undelivered {
        if self.untaken.replace(self.untaken.get() + 1) == 0 {
            self.moved();
        }
        Undelivered(self.clone())
    }

    fn moved(&self) {
        self.since.set(Instant::now());
    }
}

/// Something that is there for a client until this is dropped.
#[derive(Debug)]
struct Undelivered(Rc<DeliveryProgress>);

impl Drop for Undelivered {
    fn drop(&mut self) {
        self.0.untaken.set(self.0.untaken.get() - 1);
        self.0.moved();
    }
}

/// Bytes of a body, which are counted until they are sent.
#[derive(Debug)]
pub(in crate::api) struct BodyPiece {
    bytes: Bytes,
    taking: Option<Undelivered>,
}

impl Buf for BodyPiece {
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

enum BodyParts {
    Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
    Stream(BodyFrames),
}

impl ResponseBody {
    /// All of it.
    pub(in crate::api) fn whole(data: impl Into<Bytes>) -> ResponseBody {
        let data = Some(data.into()).filter(|data| !data.is_empty());
        ResponseBody::of(BodyParts::Whole { data, trailers: None })
    }

    /// All of it with trailers, which HTTP/2 has.
    pub(in crate::api) fn with_trailers(data: Bytes, trailers: HeaderMap) -> ResponseBody {
        ResponseBody::of(BodyParts::Whole { data: Some(data), trailers: Some(trailers) })
    }

    /// As it comes.
    pub(in crate::api) fn stream(frames: BodyFrames) -> ResponseBody {
        ResponseBody::of(BodyParts::Stream(frames))
    }

    fn of(parts: BodyParts) -> ResponseBody {
        ResponseBody { parts, _in_flight: None, taking: None }
    }

    /// The same, counted by `in_flight` until it is sent or dropped, and by `progress` as it is
    /// taken.
    pub(in crate::api) fn counted(self, in_flight: Rc<()>, progress: &Rc<DeliveryProgress>) -> ResponseBody {
        let taking = match self.parts {
            BodyParts::Whole { .. } => Delivery::All(progress.count()),
            BodyParts::Stream(_) => Delivery::Pieces(progress.clone()),
        };
        ResponseBody { _in_flight: Some(in_flight), taking: Some(taking), ..self }
    }

    /// A piece of it, counted too. Of a stream nothing is there but its pieces.
    fn piece(&self, bytes: Bytes) -> BodyPiece {
        let taking = self.taking.as_ref().map(|taking| match taking {
            Delivery::All(Undelivered(progress)) | Delivery::Pieces(progress) => progress.count(),
        });
        BodyPiece { bytes, taking }
    }
}

impl Body for ResponseBody {
    type Data = BodyPiece;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<BodyPiece>, Infallible>>> {
        let (data, trailers) = match &mut self.parts {
            BodyParts::Whole { data, trailers } => {
                let data = data.take();
                let trailers = if data.is_none() { trailers.take() } else { None };
                (data, trailers)
            }
            BodyParts::Stream(frames) => match ready!(frames.as_mut().poll_frame(cx)) {
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
            BodyParts::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            BodyParts::Stream(frames) => frames.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.parts {
            BodyParts::Whole { data, trailers: None } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            // gRPC's messages have their lengths in front; nobody misses another.
            BodyParts::Whole { .. } => SizeHint::default(),
            BodyParts::Stream(frames) => frames.size_hint(),
        }
    }
}
