//! A server that answers every infer request at once, over HTTP and gRPC: against it the generator
//! shows what it can send by itself. It has one model, `echo`, which takes 16 numbers and answers
//! with nothing; it infers nothing.

use super::grpc::messages::{
    ModelIndex, ModelInferResponse, ModelMetadataResponse, RepositoryIndexResponse, TensorMetadata,
};
use super::grpc::{OnThisThread, framed};
use crate::loadgen::RunError;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};

/// The largest body that is read.
const MAX_BODY_BYTES: usize = 64 << 20;
/// After an error of `accept` this passes before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Elements that the model takes.
const ELEMENTS: i64 = 16;

/// Serves on one thread until the process is ended. Prints `ready`, the HTTP and the gRPC address
/// once it does.
///
/// Errors: an address that can't be had.
pub fn serve(http: SocketAddr, grpc: SocketAddr) -> Result<u8, RunError> {
    LocalSet::new().block_on(&super::connection::runtime()?, async {
        let (http, grpc) = (listen(http).await?, listen(grpc).await?);
        println!("ready http://{} http://{}", address(&http)?, address(&grpc)?);
        spawn_local(accept(grpc, |stream| {
            let service = service_fn(|request| async { Ok::<_, Infallible>(grpc_answer(request).await) });
            let mut builder = http2::Builder::new(OnThisThread);
            builder.max_concurrent_streams(100_000);
            let connection = builder.serve_connection(TokioIo::new(stream), service);
            spawn_local(async move { drop(connection.await) });
        }));
        accept(http, |stream| {
            let service = service_fn(|request| async { Ok::<_, Infallible>(http_answer(request).await) });
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            spawn_local(async move { drop(connection.await) });
        })
        .await;
        Ok(0)
    })
}

async fn listen(address: SocketAddr) -> Result<TcpListener, RunError> {
    let listening = TcpListener::bind(address).await;
    listening.map_err(|e| RunError::Usage(format!("can't listen on {address}: {e}")))
}

fn address(listener: &TcpListener) -> Result<SocketAddr, RunError> {
    listener.local_addr().map_err(|e| RunError::Machine(format!("the listener has no address: {e}")))
}

async fn accept(listener: TcpListener, serve: impl Fn(TcpStream)) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // A connection that is closed already fails at its first read.
                let _ = stream.set_nodelay(true);
                serve(stream);
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Takes the request's body in, as a server must.
async fn read(body: Incoming) -> bool {
    Limited::new(body, MAX_BODY_BYTES).collect().await.is_ok()
}

async fn http_answer(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    if !read(request.into_body()).await {
        return answer(StatusCode::PAYLOAD_TOO_LARGE, r#"{"error":"the body is too large"}"#);
    }
    match path.as_str() {
        "/v2/models/echo/infer" => answer(StatusCode::OK, r#"{"model_name":"echo","outputs":[]}"#),
        "/v2" => answer(StatusCode::OK, r#"{"name":"echo","extensions":["binary_tensor_data"]}"#),
        "/v2/models/echo" => answer(
            StatusCode::OK,
            r#"{"name":"echo","inputs":[{"name":"x","datatype":"FP32","shape":[-1,16]}],"outputs":[]}"#,
        ),
        "/v2/repository/index" => answer(StatusCode::OK, r#"[{"name":"echo","state":"READY"}]"#),
        _ => answer(StatusCode::NOT_FOUND, r#"{"error":"there is no such path; the only model is echo"}"#),
    }
}

fn answer(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response
}

async fn grpc_answer(
    request: Request<Incoming>,
) -> Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>> {
    let path = request.uri().path().to_owned();
    let method = path.strip_prefix("/inference.GRPCInferenceService/").unwrap_or_default().to_owned();
    let frame = if read(request.into_body()).await { grpc_message(&method) } else { None };
    let code = if frame.is_some() { "0" } else { "12" };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(code));
    let body = Full::new(frame.unwrap_or_default()).with_trailers(ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn grpc_message(method: &str) -> Option<Bytes> {
    let input = TensorMetadata { name: "x".into(), datatype: "FP32".into(), shape: vec![-1, ELEMENTS] };
    match method {
        "ModelInfer" => Some(framed(&[], &ModelInferResponse::default())),
        "ModelMetadata" => {
            Some(framed(&[], &ModelMetadataResponse { inputs: vec![input], outputs: Vec::new() }))
        }
        "RepositoryIndex" => {
            Some(framed(&[], &RepositoryIndexResponse { models: vec![ModelIndex { name: "echo".into() }] }))
        }
        _ => None,
    }
}
