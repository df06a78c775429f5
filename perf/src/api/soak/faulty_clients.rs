//! Faulty clients: over HTTP they disconnect in the middle of a request or an answer, over gRPC
//! they reset calls and drop connections with calls in flight. Each is a thread; its actions follow
//! from a seed.

use crate::MeasureError;
use bytes::Bytes;
use h2::Reason;
use h2::client::{ResponseFuture, SendRequest};
use hyper::Request;
use prost::Message;
use rand::RngExt;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use symphony::api::grpc::messages::ModelInferRequest;
use symphony::api::grpc::messages::model_infer_request::InferInputTensor;

/// The pause between two actions.
const PAUSE: Duration = Duration::from_millis(8);
/// The time limit of an answer, after which the server counts as broken down.
const PATIENCE: Duration = Duration::from_secs(30);
/// The number of calls that a gRPC connection makes at once.
const CALLS: usize = 6;

/// The number of actions of each kind.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct ClientActions {
    /// Connections that were closed before anything was sent.
    pub left_silently: u64,
    /// Connections that were closed in the middle of a request's head or body.
    pub left_in_request: u64,
    /// Connections that were closed after the request and before the answer.
    pub left_before_answer: u64,
    /// Connections that were closed in the middle of an answer.
    pub left_in_answer: u64,
    /// Connections that sent bytes other than HTTP.
    pub nonsense: u64,
    /// Wrong requests, which were answered with an error.
    pub wrong: u64,
    /// Requests whose answer was awaited.
    pub patient: u64,
    /// gRPC calls that were reset.
    pub reset: u64,
    /// gRPC calls whose connection was dropped.
    pub dropped: u64,
}

impl ClientActions {
    fn and(self, other: ClientActions) -> ClientActions {
        ClientActions {
            left_silently: self.left_silently + other.left_silently,
            left_in_request: self.left_in_request + other.left_in_request,
            left_before_answer: self.left_before_answer + other.left_before_answer,
            left_in_answer: self.left_in_answer + other.left_in_answer,
            nonsense: self.nonsense + other.nonsense,
            wrong: self.wrong + other.wrong,
            patient: self.patient + other.patient,
            reset: self.reset + other.reset,
            dropped: self.dropped + other.dropped,
        }
    }
}

/// The clients, until they are stopped.
pub(super) struct FaultyClients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<ClientActions, MeasureError>>>,
}

impl FaultyClients {
    /// Starts a client for each protocol, against these addresses.
    pub(super) fn start(http: SocketAddr, grpc: SocketAddr) -> FaultyClients {
        let stop = Arc::new(AtomicBool::new(false));
        let (one, two) = (Arc::clone(&stop), Arc::clone(&stop));
        let threads = vec![
            std::thread::spawn(move || over_http(http, &one)),
            std::thread::spawn(move || over_grpc(grpc, &two)),
        ];
        FaultyClients { stop, threads }
    }

    /// Stops the clients.
    ///
    /// Errors: the server did not answer one of them as it must.
    pub(super) fn stop(self) -> Result<ClientActions, MeasureError> {
        self.stop.store(true, Ordering::Relaxed);
        let broke = |_| MeasureError::Failed("a faulty client's thread panicked".into());
        self.threads
            .into_iter()
            .try_fold(ClientActions::default(), |all, thread| Ok(all.and(thread.join().map_err(broke)??)))
    }
}

fn over_http(address: SocketAddr, stop: &AtomicBool) -> Result<ClientActions, MeasureError> {
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let mut actions = ClientActions::default();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let model = if random.random() { "a" } else { "b" };
        let request = infer(model, "[1, 2, 3, 4]");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        match random.random_range(0..7) {
            0 => actions.left_silently += 1,
            1 => {
                stream.write_all(&request[..random.random_range(1..request.len())])?;
                actions.left_in_request += 1;
            }
            2 => {
                stream.write_all(&request)?;
                actions.left_before_answer += 1;
            }
            3 => {
                stream.write_all(&request)?;
                stream.read_exact(&mut [0; 9])?;
                actions.left_in_answer += 1;
            }
            4 => {
                let nonsense: Vec<u8> = (0..random.random_range(1..300)).map(|_| random.random()).collect();
                // The server may have closed the connection before all of it is written.
                let _ = stream.write_all(&nonsense);
                actions.nonsense += 1;
            }
            5 => {
                stream.write_all(&infer(model, "[\"no number\"]"))?;
                expect(&mut stream, b"HTTP/1.1 400 ")?;
                actions.wrong += 1;
            }
            _ => {
                stream.write_all(&request)?;
                expect(&mut stream, b"HTTP/1.1 ")?;
                actions.patient += 1;
            }
        }
    }
    Ok(actions)
}

fn infer(model: &str, data: &str) -> Vec<u8> {
    let body = format!(r#"{{"inputs":[{{"name":"input","datatype":"FP32","shape":[1,4],"data":{data}}}]}}"#);
    let length = body.len();
    format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into()
}

/// Reads the beginning of an answer and compares it.
fn expect(stream: &mut TcpStream, beginning: &[u8]) -> Result<(), MeasureError> {
    let mut read = vec![0; beginning.len()];
    stream.read_exact(&mut read)?;
    if read == beginning {
        return Ok(());
    }
    let (is, right) = (String::from_utf8_lossy(&read), String::from_utf8_lossy(beginning));
    Err(MeasureError::Failed(format!("an answer begins with {is:?}, and should with {right:?}")))
}

fn over_grpc(address: SocketAddr, stop: &AtomicBool) -> Result<ClientActions, MeasureError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut random = Pcg64Mcg::seed_from_u64(2);
    runtime.block_on(async {
        let mut actions = ClientActions::default();
        while !stop.load(Ordering::Relaxed) {
            tokio::time::timeout(PATIENCE, connection(address, &mut random, &mut actions))
                .await
                .map_err(|_| MeasureError::Failed(format!("a gRPC call had no end after {PATIENCE:?}")))??;
        }
        Ok(actions)
    })
}

/// Makes one connection with a few calls, most of which are reset or dropped.
async fn connection(
    address: SocketAddr,
    random: &mut Pcg64Mcg,
    actions: &mut ClientActions,
) -> Result<(), MeasureError> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (mut client, connection) = h2::client::handshake(stream).await?;
    let driver = tokio::spawn(async move { drop(connection.await) });
    let is_dropped = random.random_bool(0.3);
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        client = client.ready().await?;
        calls.push(call(&mut client, if random.random() { "a" } else { "b" })?);
        tokio::time::sleep(PAUSE).await;
    }
    if is_dropped {
        actions.dropped += calls.len() as u64;
        driver.abort();
        return Ok(());
    }
    for (answer, mut sending) in calls {
        if random.random_bool(0.7) {
            sending.send_reset(Reason::CANCEL);
            actions.reset += 1;
        } else {
            // Every answer is accepted; the server's counters have the number of each outcome.
            let mut body = answer.await?.into_body();
            while let Some(data) = body.data().await {
                body.flow_control().release_capacity(data?.len())?;
            }
            actions.patient += 1;
        }
    }
    driver.abort();
    Ok(())
}

impl From<h2::Error> for MeasureError {
    fn from(error: h2::Error) -> MeasureError {
        MeasureError::Failed(format!("a gRPC connection broke: {error}"))
    }
}

fn call(
    client: &mut SendRequest<Bytes>,
    model: &str,
) -> Result<(ResponseFuture, h2::SendStream<Bytes>), h2::Error> {
    let message = ModelInferRequest {
        model_name: model.into(),
        inputs: vec![InferInputTensor {
            name: "input".into(),
            datatype: "FP32".into(),
            shape: vec![1, 4],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![Bytes::from_static(&[0; 16])],
        ..ModelInferRequest::default()
    };
    let mut frame = vec![0; 5];
    frame[1..].copy_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    frame.extend(message.encode_to_vec());
    let request = Request::post("http://soak/inference.GRPCInferenceService/ModelInfer")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("all parts are valid");
    let (answer, mut sending) = client.send_request(request, false)?;
    sending.send_data(frame.into(), true)?;
    Ok((answer, sending))
}
