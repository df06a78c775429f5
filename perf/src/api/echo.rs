//! The echo server with which the API is compared: the same hyper on the same glommio, with the
//! protocol's own messages. An infer request's tensors are returned unchanged; nothing is checked,
//! scheduled or counted. It answers the gRPC calls `ModelInfer` and `ModelMetadata`, which
//! `loadgen` sends first.

use super::Spin;
use crate::MeasureError;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::combinators::WithTrailers;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use prost::Message;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::Write;
use std::net::SocketAddr;
use symphony::api::glommio_io::{GlommioIo, listen, local_executor};
use symphony::api::grpc::messages::model_infer_response::InferOutputTensor;
use symphony::api::grpc::messages::model_metadata_response::TensorMetadata;
use symphony::api::grpc::messages::{ModelInferRequest, ModelInferResponse, ModelMetadataResponse};
use symphony::runtime::{Idle, Placement};

/// The name of the only model.
pub const MODEL: &str = "m";
/// The number of elements of its input and of its output, FP32.
pub const ELEMENTS: i64 = 4;
/// The length of a message's prefix: a flag for compression and the message's length.
const PREFIX: usize = 5;

/// Runs what hyper spawns on the executor of this thread.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future<Output: 'static> + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        glommio::spawn_local(task).detach();
    }
}

/// Serves on `core` until the process is ended. Prints `ready http://…` and `ready grpc://…` when
/// the listener is open; both are HTTP/2.
///
/// Errors: the port or the core can't be had.
pub fn serve(core: usize, spin: Spin) -> Result<(), MeasureError> {
    let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), false)?;
    let address = listener.local_addr()?;
    let idle = if spin == Spin::Yes { Idle::Spin } else { Idle::Nap };
    let thread = std::thread::Builder::new().name("api".into()).spawn(move || {
        let executor = local_executor(Placement { core: Some(core), idle })
            .map_err(|error| MeasureError::Machine(error.to_string()))?;
        executor.run(async move {
            let listener = listener.into_local();
            // The parent process may not read it.
            let _ = write!(std::io::stdout(), "ready http://{address}\nready grpc://{address}\n");
            loop {
                let stream =
                    listener.accept().await.map_err(|error| MeasureError::Failed(error.to_string()))?;
                let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
                let mut builder = http2::Builder::new(Local);
                let connection =
                    builder.max_concurrent_streams(1_024).serve_connection(GlommioIo::new(stream), service);
                glommio::spawn_local(async move { drop(connection.await) }).detach();
            }
        })
    })?;
    thread.join().unwrap_or_else(|_| Err(MeasureError::Failed("the echo server's thread broke down".into())))
}

type Body = WithTrailers<Full<Bytes>, Ready<Option<Result<HeaderMap, Infallible>>>>;

async fn answer(request: Request<Incoming>) -> Response<Body> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let frame = match method.as_str() {
        "ModelInfer" => echoed(&body).map(|response| sealed(&response)),
        "ModelMetadata" => Some(sealed(&metadata())),
        _ => None,
    };
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static(if frame.is_some() { "0" } else { "12" }));
    let body = Full::new(frame.unwrap_or_default()).with_trailers(ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Returns the answer with the request's tensors; `None` if it can't be decoded.
fn echoed(body: &Bytes) -> Option<ModelInferResponse> {
    let request = ModelInferRequest::decode(body.get(PREFIX..).map(|_| body.slice(PREFIX..))?).ok()?;
    let output =
        |input: symphony::api::grpc::messages::model_infer_request::InferInputTensor| InferOutputTensor {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape,
            ..InferOutputTensor::default()
        };
    Some(ModelInferResponse {
        model_name: request.model_name,
        id: request.id,
        outputs: request.inputs.into_iter().map(output).collect(),
        raw_output_contents: request.raw_input_contents,
        ..ModelInferResponse::default()
    })
}

fn metadata() -> ModelMetadataResponse {
    let tensor =
        |name: &str| TensorMetadata { name: name.into(), datatype: "FP32".into(), shape: vec![-1, ELEMENTS] };
    ModelMetadataResponse {
        name: MODEL.into(),
        inputs: vec![tensor("input")],
        outputs: vec![tensor("output")],
        ..ModelMetadataResponse::default()
    }
}

fn sealed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(length as u32);
    message.encode(&mut frame).expect("a BytesMut has room for all");
    frame.freeze()
}
