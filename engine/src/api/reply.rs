//! What goes back over a connection: a response with its body, whole or in parts, in either protocol.

use http_body::{Body, Frame, SizeHint};
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A response to whatever was asked.
pub(super) type Reply = Response<ReplyBody>;

/// Frames that come as they are ready.
pub(super) type Frames = Pin<Box<dyn Body<Data = Bytes, Error = Infallible>>>;

/// A response's body.
pub(super) struct ReplyBody {
    parts: Parts,
    /// Its connection counts the clones, so that it knows when all its responses were taken.
    _at_hand: Option<Rc<()>>,
}

enum Parts {
    Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
    Stream(Frames),
}

impl ReplyBody {
    /// All of it.
    pub(super) fn whole(data: impl Into<Bytes>) -> ReplyBody {
        let data = Some(data.into()).filter(|data| !data.is_empty());
        ReplyBody { parts: Parts::Whole { data, trailers: None }, _at_hand: None }
    }

    /// All of it with trailers, which HTTP/2 has.
    pub(super) fn with_trailers(data: Bytes, trailers: HeaderMap) -> ReplyBody {
        ReplyBody { parts: Parts::Whole { data: Some(data), trailers: Some(trailers) }, _at_hand: None }
    }

    /// As it comes.
    pub(super) fn stream(frames: Frames) -> ReplyBody {
        ReplyBody { parts: Parts::Stream(frames), _at_hand: None }
    }

    /// The same, counted by `at_hand` until it is sent or dropped.
    pub(super) fn counted(self, at_hand: Rc<()>) -> ReplyBody {
        ReplyBody { _at_hand: Some(at_hand), ..self }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.parts {
            Parts::Whole { data, trailers } => {
                let data = data.take().map(Frame::data);
                Poll::Ready(data.or_else(|| trailers.take().map(Frame::trailers)).map(Ok))
            }
            Parts::Stream(frames) => frames.as_mut().poll_frame(cx),
        }
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
