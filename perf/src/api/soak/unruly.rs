//! Clients that do not behave: over HTTP they leave in the middle of whatever they are at, over
//! gRPC they reset calls and drop connections with calls under way. A thread each; what they do
//! follows from a seed.

use crate::api::Stop;
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

/// The pause between two deeds.
const PAUSE: Duration = Duration::from_millis(8);
/// A server that does not answer for so long has broken down.
const PATIENCE: Duration = Duration::from_secs(30);
/// Calls that a gRPC connection makes at once.
const CALLS: usize = 6;

/// How often they did what.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub struct Deeds {
    /// Connections that were closed before anything was sent.
    pub left_silently: u64,
    /// In the middle of a request's head or body.
    pub left_in_request: u64,
    /// With the whole request sent, and no answer read.
    pub left_before_answer: u64,
    /// In the middle of an answer.
    pub left_in_answer: u64,
    /// Bytes that are no HTTP.
    pub nonsense: u64,
    /// Requests that were wrong, and told so.
    pub wrong: u64,
    /// Requests that were waited for.
    pub patient: u64,
    /// gRPC calls that were reset.
    pub reset: u64,
    /// gRPC calls whose connection was dropped.
    pub dropped: u64,
}

impl Deeds {
    fn and(self, other: Deeds) -> Deeds {
        Deeds {
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
pub(super) struct Unruly {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Deeds, Stop>>>,
}

impl Unruly {
    /// One of each kind, against these addresses.
    pub(super) fn start(http: SocketAddr, grpc: SocketAddr) -> Unruly {
        let stop = Arc::new(AtomicBool::new(false));
        let (one, two) = (Arc::clone(&stop), Arc::clone(&stop));
        let threads = vec![
            std::thread::spawn(move || over_http(http, &one)),
            std::thread::spawn(move || over_grpc(grpc, &two)),
        ];
        Unruly { stop, threads }
    }

    /// Ends them.
    ///
    /// Errors: the server did not do what it must do by any of them.
    pub(super) fn stop(self) -> Result<Deeds, Stop> {
        self.stop.store(true, Ordering::Relaxed);
        let broke = |_| Stop::Failed("an unruly client broke down".into());
        self.threads
            .into_iter()
            .try_fold(Deeds::default(), |all, thread| Ok(all.and(thread.join().map_err(broke)??)))
    }
}

fn over_http(address: SocketAddr, stop: &AtomicBool) -> Result<Deeds, Stop> {
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let mut deeds = Deeds::default();
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(PAUSE);
        let model = if random.random() { "a" } else { "b" };
        let request = infer(model, "[1, 2, 3, 4]");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        match random.random_range(0..7) {
            0 => deeds.left_silently += 1,
            1 => {
                stream.write_all(&request[..random.random_range(1..request.len())])?;
                deeds.left_in_request += 1;
            }
            2 => {
                stream.write_all(&request)?;
                deeds.left_before_answer += 1;
            }
            3 => {
                stream.write_all(&request)?;
                stream.read_exact(&mut [0; 9])?;
                deeds.left_in_answer += 1;
            }
            4 => {
                let nonsense: Vec<u8> = (0..random.random_range(1..300)).map(|_| random.random()).collect();
                // The server may have hung up before all of it is written.
                let _ = stream.write_all(&nonsense);
                deeds.nonsense += 1;
            }
            5 => {
                stream.write_all(&infer(model, "[\"no number\"]"))?;
                expect(&mut stream, b"HTTP/1.1 400 ")?;
                deeds.wrong += 1;
            }
            _ => {
                stream.write_all(&request)?;
                expect(&mut stream, b"HTTP/1.1 ")?;
                deeds.patient += 1;
            }
        }
    }
    Ok(deeds)
}

fn infer(model: &str, data: &str) -> Vec<u8> {
    let body = format!(r#"{{"inputs":[{{"name":"input","datatype":"FP32","shape":[1,4],"data":{data}}}]}}"#);
    let length = body.len();
    format!("POST /v2/models/{model}/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
        .into()
}

/// Reads the beginning of an answer.
fn expect(stream: &mut TcpStream, beginning: &[u8]) -> Result<(), Stop> {
    let mut read = vec![0; beginning.len()];
    stream.read_exact(&mut read)?;
    if read == beginning {
        return Ok(());
    }
    let (is, right) = (String::from_utf8_lossy(&read), String::from_utf8_lossy(beginning));
    Err(Stop::Failed(format!("an answer begins with {is:?}, and should with {right:?}")))
}

fn over_grpc(address: SocketAddr, stop: &AtomicBool) -> Result<Deeds, Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut random = Pcg64Mcg::seed_from_u64(2);
    runtime.block_on(async {
        let mut deeds = Deeds::default();
        while !stop.load(Ordering::Relaxed) {
            tokio::time::timeout(PATIENCE, connection(address, &mut random, &mut deeds))
                .await
                .map_err(|_| Stop::Failed(format!("a gRPC call had no end after {PATIENCE:?}")))??;
        }
        Ok(deeds)
    })
}

/// One connection with a few calls, most of which come to a bad end.
async fn connection(address: SocketAddr, random: &mut Pcg64Mcg, deeds: &mut Deeds) -> Result<(), Stop> {
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
        deeds.dropped += calls.len() as u64;
        driver.abort();
        return Ok(());
    }
    for (answer, mut sending) in calls {
        if random.random_bool(0.7) {
            sending.send_reset(Reason::CANCEL);
            deeds.reset += 1;
        } else {
            // Any answer is one; how many of which kind, the server's counters tell.
            let mut body = answer.await?.into_body();
            while let Some(data) = body.data().await {
                body.flow_control().release_capacity(data?.len())?;
            }
            deeds.patient += 1;
        }
    }
    driver.abort();
    Ok(())
}

impl From<h2::Error> for Stop {
    fn from(error: h2::Error) -> Stop {
        Stop::Failed(format!("a gRPC connection broke: {error}"))
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
