//! A gRPC client for tests: hyper's HTTP/2 on an executor of the calling thread.

use super::server::*;
use crate::api::net::glommio_io::{GlommioIo, local_executor, within};
use crate::runtime::{Idle, Placement};
use bytes::{Buf, Bytes, BytesMut};
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::stream::{Map, StreamExt};
use glommio::net::TcpStream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Request, Response};
use prost::Message;
use std::convert::Infallible;
use std::io::Read;

type Piece = Result<Frame<Bytes>, Infallible>;
type Sent = StreamBody<Map<UnboundedReceiver<Bytes>, fn(Bytes) -> Piece>>;

/// An executor for hyper's client.
#[derive(Clone)]
struct OnThisThread;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for OnThisThread {
    fn execute(&self, task: F) {
        glommio::spawn_local(task).detach();
    }
}

/// A connection to a server.
pub(super) struct GrpcClient(SendRequest<Sent>);

/// A call under way.
pub(super) struct GrpcCall {
    send: Option<UnboundedSender<Bytes>>,
    response: Response<Incoming>,
    received: BytesMut,
    trailers: HeaderMap,
}

/// Connects to a server and makes calls.
pub(super) fn with_client<T>(server: &TestServer, calls: impl AsyncFnOnce(GrpcClient) -> T) -> T {
    let executor = local_executor(Placement { core: None, idle: Idle::Nap }).unwrap();
    let addr = server.addr;
    executor.run(async move {
        let socket = GlommioIo::new(TcpStream::connect(addr).await.unwrap());
        let (sender, connection) = handshake(OnThisThread, socket).await.unwrap();
        glommio::spawn_local(async move { drop(connection.await) }).detach();
        within(PATIENCE, calls(GrpcClient(sender))).await.expect("the server answers")
    })
}

pub(super) fn sealed(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    [&[0][..], &(bytes.len() as u32).to_be_bytes(), &bytes].concat().into()
}

impl GrpcClient {
    /// Sends a request, whose body is what is sent into the channel.
    pub(super) async fn request(
        &mut self,
        request: hyper::http::request::Builder,
    ) -> (UnboundedSender<Bytes>, impl Future<Output = Response<Incoming>> + use<>) {
        let (send, body) = unbounded();
        let as_frame: fn(Bytes) -> Piece = |bytes| Ok(Frame::data(bytes));
        self.0.ready().await.unwrap();
        let response = self.0.send_request(request.body(StreamBody::new(body.map(as_frame))).unwrap());
        (send, async move { response.await.unwrap() })
    }

    /// Begins the call `SERVICE/METHOD` with `first`, and goes on without waiting for an answer.
    pub(super) async fn begin(
        &mut self,
        call: &str,
        metadata: &[(&str, &str)],
        first: &impl Message,
    ) -> GrpcCall {
        let mut request =
            Request::post(format!("http://localhost/{call}")).header(CONTENT_TYPE, "application/grpc");
        for (name, value) in metadata {
            request = request.header(*name, *value);
        }
        let (send, response) = self.request(request).await;
        send.unbounded_send(sealed(first)).unwrap();
        let unary = !call.contains("Stream") && !call.contains("Reflection");
        let send = Some(send).filter(|_| !unary);
        let response = response.await;
        GrpcCall { send, response, received: BytesMut::new(), trailers: HeaderMap::new() }
    }

    /// Makes a call with one message each way.
    ///
    /// Errors: the status and its message.
    pub(super) async fn call<M: Message + Default>(
        &mut self,
        call: &str,
        metadata: &[(&str, &str)],
        request: &impl Message,
    ) -> Result<M, (u16, String)> {
        let mut call = self.begin(call, metadata, request).await;
        match call.next().await {
            Some(answer) => Ok(answer),
            None => Err(call.status()),
        }
    }
}

impl GrpcCall {
    /// Sends another message.
    pub(super) fn send(&mut self, message: &impl Message) {
        self.send.as_ref().unwrap().unbounded_send(sealed(message)).unwrap();
    }

    /// Says that no more messages come.
    pub(super) fn finish(&mut self) {
        self.send = None;
    }

    /// Returns the next message; `None` at the end of the call.
    pub(super) async fn next<M: Message + Default>(&mut self) -> Option<M> {
        let (packed, message) = self.next_bytes().await?;
        assert_eq!(packed, 0);
        Some(M::decode(message).unwrap())
    }

    /// Returns the next message, compressed as the call's headers say.
    pub(super) async fn next_packed<M: Message + Default>(&mut self) -> Option<M> {
        let (packed, message) = self.next_bytes().await?;
        let mut bytes = Vec::new();
        let encoding = self.response.headers().get("grpc-encoding").map(|name| name.as_bytes());
        match (packed, encoding) {
            (0, None) => return Some(M::decode(message).unwrap()),
            (1, Some(b"gzip")) => flate2::read::GzDecoder::new(&message[..]).read_to_end(&mut bytes).unwrap(),
            (1, Some(b"deflate")) => {
                flate2::read::ZlibDecoder::new(&message[..]).read_to_end(&mut bytes).unwrap()
            }
            other => panic!("{other:?}"),
        };
        Some(M::decode(&bytes[..]).unwrap())
    }

    /// Returns the next message and the byte that says whether it is compressed.
    async fn next_bytes(&mut self) -> Option<(u8, Bytes)> {
        loop {
            if self.received.len() >= 5 {
                let length = u32::from_be_bytes(self.received[1..5].try_into().unwrap()) as usize;
                if self.received.len() >= 5 + length {
                    let packed = self.received[0];
                    self.received.advance(5);
                    return Some((packed, self.received.split_to(length).freeze()));
                }
            }
            match self.response.body_mut().frame().await?.unwrap().into_data() {
                Ok(data) => self.received.extend_from_slice(&data),
                Err(frame) => self.trailers = frame.into_trailers().unwrap(),
            }
        }
    }

    /// Returns the status of a call that has ended, and its message.
    pub(super) fn status(&self) -> (u16, String) {
        let of = |name: &str| self.trailers.get(name).or_else(|| self.response.headers().get(name));
        let text = |name: &str| of(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        (text("grpc-status").parse().unwrap(), text("grpc-message"))
    }
}
