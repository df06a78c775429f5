//! The responses of both protocols, with bodies that are whole or come in parts.

use super::core_tasks::CoreTasks;
use super::memory::{ConnectionMemory, MemoryLease};
use crate::runtime::panics::catch;
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

/// The most bytes of a frame of a whole body: hyper copies a frame to what it has to write, all of
/// it in one turn.
const FRAME_AT_MOST: usize = 64 << 10;

/// A response of either protocol.
pub(in crate::api) type ApiResponse = Response<ResponseBody>;

/// BodyFrames that come as they are ready.
pub(in crate::api) type BodyFrames = Pin<Box<dyn Body<Data = Bytes, Error = Infallible>>>;

/// A response's body.
pub(in crate::api) struct ResponseBody {
    parts: BodyParts,
    /// The connection's token: the number of its clones is the number of responses not yet taken.
    _in_flight: Option<Rc<ConnectionMemory>>,
    taking: Option<Delivery>,
    /// The memory that counts what is not yet a piece.
    memory: Option<MemoryLease>,
}

/// The part of a body that waits for its client.
enum Delivery {
    /// The whole body.
    All(Undelivered),
    /// The pieces made so far.
    Pieces(Rc<DeliveryProgress>),
}

/// The progress with which a connection's client takes its responses. Over HTTP/2 it may leave a
/// response with the server while its connection goes on.
#[derive(Debug)]
pub(in crate::api) struct DeliveryProgress {
    untaken: Cell<usize>,
    since: Cell<Instant>,
}

impl DeliveryProgress {
    /// Creates the progress of a connection without responses.
    pub(in crate::api) fn new() -> Rc<DeliveryProgress> {
        Rc::new(DeliveryProgress { untaken: Cell::new(0), since: Cell::new(Instant::now()) })
    }

    /// Returns the time for which parts have been waiting and none was taken.
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

/// A part that waits for a client until this is dropped.
#[derive(Debug)]
struct Undelivered(Rc<DeliveryProgress>);

impl Drop for Undelivered {
    fn drop(&mut self) {
        self.0.untaken.set(self.0.untaken.get() - 1);
        self.0.moved();
    }
}

/// The bytes of a body, which are counted until they are sent.
#[derive(Debug)]
pub(in crate::api) struct BodyPiece {
    bytes: Bytes,
    taking: Option<Undelivered>,
    /// The memory that counts it.
    _memory: Option<MemoryLease>,
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
    /// Returns a body that is complete.
    pub(in crate::api) fn whole(data: impl Into<Bytes>) -> ResponseBody {
        let data = Some(data.into()).filter(|data| !data.is_empty());
        ResponseBody::of(BodyParts::Whole { data, trailers: None })
    }

    /// Returns a body that is complete, with trailers, which HTTP/2 has.
    pub(in crate::api) fn with_trailers(data: Bytes, trailers: HeaderMap) -> ResponseBody {
        ResponseBody::of(BodyParts::Whole { data: Some(data), trailers: Some(trailers) })
    }

    /// Returns a body whose frames come as they are ready.
    pub(in crate::api) fn stream(frames: BodyFrames) -> ResponseBody {
        ResponseBody::of(BodyParts::Stream(frames))
    }

    fn of(parts: BodyParts) -> ResponseBody {
        ResponseBody { parts, _in_flight: None, taking: None, memory: None }
    }

    /// Lets a body whose frames come as they are ready end with `trailers` if making one panics.
    pub(in crate::api) fn contained(
        self,
        tasks: &Rc<CoreTasks>,
        condemned: Rc<Cell<bool>>,
        trailers: fn() -> HeaderMap,
    ) -> ResponseBody {
        let parts = match self.parts {
            BodyParts::Stream(frames) => {
                let (frames, tasks) = (Some(frames), tasks.clone());
                BodyParts::Stream(Box::pin(ContainedFrames { frames, tasks, condemned, trailers }))
            }
            whole => whole,
        };
        ResponseBody { parts, ..self }
    }

    /// Lets `in_flight` count the body until it is sent or dropped, `progress` as it is taken, and
    /// `memory`, which is empty, its bytes until they are sent.
    pub(in crate::api) fn counted(
        self,
        in_flight: Rc<ConnectionMemory>,
        mut memory: MemoryLease,
        progress: &Rc<DeliveryProgress>,
    ) -> ResponseBody {
        if let BodyParts::Whole { data: Some(data), .. } = &self.parts {
            memory.charge(data.len());
        }
        let taking = match self.parts {
            BodyParts::Whole { .. } => Delivery::All(progress.count()),
            BodyParts::Stream(_) => Delivery::Pieces(progress.clone()),
        };
        ResponseBody { _in_flight: Some(in_flight), taking: Some(taking), memory: Some(memory), ..self }
    }

    /// Returns a piece of the body, counted too.
    fn piece(&mut self, bytes: Bytes) -> BodyPiece {
        let taking = self.taking.as_ref().map(|taking| match taking {
            Delivery::All(Undelivered(progress)) | Delivery::Pieces(progress) => progress.count(),
        });
        let memory = self.memory.as_mut().map(|memory| {
            // A whole body was counted before.
            memory.charge(bytes.len().saturating_sub(memory.held()));
            memory.split(bytes.len())
        });
        BodyPiece { bytes, taking, _memory: memory }
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
                let data = match data {
                    Some(data) if data.len() > FRAME_AT_MOST => Some(data.split_to(FRAME_AT_MOST)),
                    rest => rest.take(),
                };
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
            // gRPC's messages have their lengths in front, so the body needs none.
            BodyParts::Whole { .. } => SizeHint::default(),
            BodyParts::Stream(frames) => frames.size_hint(),
        }
    }
}

/// The frames of a response, which end with trailers if making one of them panics.
struct ContainedFrames {
    /// The frames; `None` after a panic.
    frames: Option<BodyFrames>,
    /// The owner of the account of panics.
    tasks: Rc<CoreTasks>,
    /// The flag by which the connection is asked to end.
    condemned: Rc<Cell<bool>>,
    /// The trailers after a panic.
    trailers: fn() -> HeaderMap,
}

impl Body for ContainedFrames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(frames) = &mut self.frames else { return Poll::Ready(None) };
        let panic = match catch(|| frames.as_mut().poll_frame(cx)) {
            Ok(frame) => return frame,
            Err(panic) => panic,
        };
        self.tasks.panics.note(&panic);
        self.condemned.set(true);
        let frames = self.frames.take();
        if let Err(panic) = catch(|| drop(frames)) {
            self.tasks.panics.note(&panic);
        }
        Poll::Ready(Some(Ok(Frame::trailers((self.trailers)()))))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.as_ref().is_none_or(|frames| frames.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.frames.as_ref().map(|frames| frames.size_hint()).unwrap_or_default()
    }
}
