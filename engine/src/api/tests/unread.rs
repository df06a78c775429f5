//! Clients that ask and do not read: their answers count as memory of their connections.

use super::raw::*;
use super::server::*;
use crate::api::grpc::messages::ModelInferRequest;
use prost::Message;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The budget of a connection in these tests, in bytes.
const BUDGET: usize = 8 << 10;

/// SETTINGS_INITIAL_WINDOW_SIZE of 0: no answer may have a body until the client says so.
fn shut_window() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat()
}

fn ask_for_metadata(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(2, "/v2/models/echo"))
}

#[test]
fn answers_that_a_client_does_not_take_count_as_memory_of_its_connection() {
    let server = TestServer::new(|config| config.limits.max_connection_bytes = BUDGET);
    let answer = server.get("/v2/models/echo").text.len();
    let most = BUDGET / answer + 1;
    let mut raw = Raw::silent(&server);
    raw.send(&shut_window());
    let (mut good, mut stream) = (0, 1);
    // The first byte of a head is its status: 0x88 is 200, in HPACK's static table.
    let refused = loop {
        raw.send(&ask_for_metadata(stream));
        let status = loop {
            match raw.read().expect("the connection goes on") {
                (HEADERS, _, of, payload) if of == stream => break payload,
                (kind, ..) => assert!(![DATA, GOAWAY, RST_STREAM].contains(&kind)),
            }
        };
        if status[0] != 0x88 {
            break stream;
        }
        good += 1;
        stream += 2;
        assert!(good <= most, "{good} answers of {answer} bytes in {BUDGET}");
    };
    assert!(good >= most - 1, "{good} of {most}");
    assert_eq!(server.get("/v2/models/echo").status, 200, "others have budgets of their own");
    // WINDOW_UPDATE: one answer may come, and another is made then.
    let update = |stream: u32| frame(8, 0, stream, &(1u32 << 16).to_be_bytes());
    raw.send(&[update(1), update(3)].concat());
    let mut ended = 0;
    while ended < 2 {
        let (kind, flags, of, _) = raw.read().expect("the connection goes on");
        ended += u32::from(kind == DATA && flags & END_STREAM != 0 && of <= 3);
    }
    let next = refused + 2;
    raw.send(&ask_for_metadata(next));
    loop {
        if let (HEADERS, _, of, payload) = raw.read().expect("the connection goes on")
            && of == next
        {
            assert_eq!(payload[0], 0x88);
            break;
        }
    }
}

#[test]
fn a_stream_whose_client_reads_nothing_asks_the_engine_for_little() {
    let server = TestServer::new(|config| config.limits.max_connection_bytes = 1 << 20);
    let mut raw = Raw::silent(&server);
    raw.send(&shut_window());
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call("ModelStreamInfer")));
    let message = ModelInferRequest { model_name: "echo".into(), ..ModelInferRequest::default() };
    let message = message.encode_to_vec();
    let message = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    for _ in 0..1_000 {
        raw.send(&frame(DATA, 0, 1, &message));
    }
    // Once this is answered, what came before it has been read.
    raw.send(&frame(PING, 0, 0, &[1; 8]));
    while raw.read().expect("the connection goes on").0 != PING {}
    assert_eq!(server.infer("echo", &body()).status, 200);
    let taken = server.control.taken.load(Ordering::Relaxed);
    assert!(taken <= 2, "{taken} requests, one of them not the stream's");
}

#[test]
fn a_client_that_pipelines_and_never_reads_is_closed() {
    let server = TestServer::new(|config| config.limits.write_timeout = Duration::from_millis(300));
    let mut client = server.client();
    let many = b"GET /v2/models/echo HTTP/1.1\r\nhost: t\r\n\r\n".repeat(100);
    let end = Instant::now() + PATIENCE;
    while client.stream.write_all(&many).is_ok() {
        assert!(Instant::now() < end, "the server goes on answering into the void");
    }
    server.wait_until("it is forgotten", || server.metric("symphony_http_connections ").ends_with(" 1"));
}
