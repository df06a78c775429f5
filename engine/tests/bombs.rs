//! Requests that are small on the wire and large in memory, sent to the `symphony` binary over a
//! socket: each is refused in bounded memory, and others are served meanwhile.

mod harness;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use harness::process::{ServerProcess, request, wait_until};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2::handshake;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use symphony::api::glommio_io::{GlommioIo, local_executor};
use symphony::runtime::{Idle, Placement};

/// The longest time that one bomb may take. The one that gave the reason for this test took 54 s.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most memory that the server may take beyond that before the first bomb: four times the
/// default limit on bodies, and a quarter of that for all else.
const MOST_MEMORY: u64 = 5 * (64 << 20);

/// The entries of the original bomb, of two bytes each: 62 MB, 63 KB when packed.
const ENTRIES: usize = 31_000_000;

/// Runs what hyper spawns on the calling thread.
#[derive(Clone)]
struct SameThread;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for SameThread {
    fn execute(&self, task: F) {
        glommio::spawn_local(task).detach();
    }
}

/// Sends messages in one gRPC call, and returns its status and the status's message.
fn grpc(address: SocketAddr, call: &str, encoding: &str, messages: &[&[u8]]) -> (String, String) {
    let seal = |message: &&[u8]| [&[1][..], &(message.len() as u32).to_be_bytes(), message].concat();
    let body = Full::new(Bytes::from(messages.iter().flat_map(seal).collect::<Vec<u8>>()));
    let request = Request::post(format!("http://localhost/inference.GRPCInferenceService/{call}"))
        .header("content-type", "application/grpc")
        .header("grpc-encoding", encoding)
        .body(body)
        .unwrap();
    let executor = local_executor(Placement { core: None, idle: Idle::Nap }).unwrap();
    executor.run(async move {
        let io = GlommioIo::connect(address, PATIENCE).await.unwrap();
        let (mut sender, connection) = handshake(SameThread, io).await.unwrap();
        glommio::spawn_local(async move { drop(connection.await) }).detach();
        let response = sender.send_request(request).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        let of = |name: &str| body.trailers().and_then(|t| t.get(name)).or_else(|| head.headers.get(name));
        let text = |name: &str| of(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        (text("grpc-status"), text("grpc-message"))
    })
}

/// Sends a body over HTTP/1.1, and returns the status.
fn http(address: SocketAddr, encoding: &str, body: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST /v2/models/resnet50/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-encoding: {encoding}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    std::str::from_utf8(&answer[9..]).unwrap().parse().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// The most memory that a process ever had, in bytes.
fn peak_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A message's empty fields of this number: two bytes each.
fn empty_fields(number: u8) -> Vec<u8> {
    [number << 3 | 2, 0].repeat(ENTRIES)
}

#[test]
fn bombs_are_refused_in_bounded_memory_while_others_are_served() {
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart");
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(quickstart);
    let server = ServerProcess::start(&mut command, Stdio::null());
    let address = server.address();
    assert_eq!(http(address, "identity", b"{}"), 400);
    let (before, process) = (peak_memory(server.id()), server.id());
    let (served, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let live = || {
        while !done.load(Ordering::Relaxed) {
            assert_eq!(request(address, ("GET", "/v2/health/live"), "", "").unwrap().0, 200);
            served.fetch_add(1, Ordering::Relaxed);
        }
    };
    let checked = |name: &str, send: &dyn Fn()| {
        let (began, others) = (Instant::now(), served.load(Ordering::Relaxed));
        send();
        assert!(began.elapsed() < PATIENCE, "{name}: {:?}", began.elapsed());
        wait_until("others are served", || served.load(Ordering::Relaxed) > others);
        let taken = peak_memory(process) - before;
        assert!(taken < MOST_MEMORY, "{name}: {taken} bytes");
    };
    std::thread::scope(|threads| {
        threads.spawn(live);
        let _until_done = Done(&done);
        for (name, number, reason) in [
            ("inputs", 5, "more than 1024 inputs"),
            ("parameters", 4, "more than 4096 parameters"),
            ("outputs", 6, "more than 1024 outputs"),
            ("raw_input_contents", 7, "more than 1024 raw_input_contents"),
        ] {
            let message = empty_fields(number);
            let (packed, deflated) = (gzip(&message), zlib(&message));
            assert!(packed.len() < 70_000, "{} bytes", packed.len());
            let twice = gzip(&packed);
            for (call, messages) in [("ModelInfer", 1), ("ModelStreamInfer", 10)] {
                for (encoding, bomb) in [("gzip", &packed), ("deflate", &deflated)] {
                    checked(name, &|| {
                        let (status, message) = grpc(address, call, encoding, &vec![&bomb[..]; messages]);
                        assert!(status == "8" && message.contains(reason), "{name}: {status} {message}");
                    });
                }
                checked("gzip in gzip", &|| {
                    let (status, _) = grpc(address, call, "gzip", &[&twice]);
                    assert_eq!(status, "3", "{name}, packed twice");
                });
            }
        }
        for (name, text) in [
            ("nested", "[".repeat(2 * ENTRIES)),
            ("nested objects", "{\"a\":".repeat(2 * ENTRIES / 5)),
            ("entries", format!("{{\"inputs\":[{}", "{},".repeat(2 * ENTRIES / 3))),
        ] {
            for (encoding, bomb) in [("gzip", gzip(text.as_bytes())), ("deflate", zlib(text.as_bytes()))] {
                checked(name, &|| assert!([400, 413].contains(&http(address, encoding, &bomb)), "{name}"));
            }
        }
        let beyond = gzip(&vec![b' '; 200 << 20]);
        checked("more than the limit", &|| assert_eq!(http(address, "gzip", &beyond), 413));
        checked("gzip in gzip", &|| assert_eq!(http(address, "gzip", &gzip(&beyond)), 400));
    });
}

/// Ends the thread that asks, also after a failure.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
