//! Clients that attack, or break the rules of HTTP/2: their connection ends, with the reason
//! that the protocol has for it, and everybody else is served on.

use super::raw::*;
use super::server::*;
use std::io::Write;
use std::time::{Duration, Instant};

fn others_are_served(server: &TestServer) {
    assert_eq!(server.infer("echo", &body()).status, 200);
}

#[test]
fn frames_that_make_no_sense_end_the_connection_with_the_reason() {
    let server = TestServer::new(|_| {});
    for (frames, reasons) in [
        // More than SETTINGS_MAX_FRAME_SIZE.
        (frame(DATA, 0, 1, &vec![0; 100_000]), &[FRAME_SIZE_ERROR][..]),
        // An index that no table has. The library may call that by the general reason.
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0xff; 40]), &[COMPRESSION_ERROR, PROTOCOL_ERROR]),
        // Streams of a server's numbers, data out of nowhere, a continuation of nothing.
        (get(2), &[PROTOCOL_ERROR]),
        (frame(DATA, 0, 7, b"x"), &[PROTOCOL_ERROR]),
        (frame(CONTINUATION, END_HEADERS, 1, b""), &[PROTOCOL_ERROR]),
        // Lengths that these can't have.
        (frame(SETTINGS, 0, 0, &[0; 5]), &[FRAME_SIZE_ERROR, PROTOCOL_ERROR]),
        (frame(PING, 0, 0, &[0; 7]), &[FRAME_SIZE_ERROR, PROTOCOL_ERROR]),
    ] {
        let mut raw = Raw::new(&server);
        raw.send(&frames);
        let reason = raw.reason();
        assert!(reason.is_some_and(|reason| reasons.contains(&reason)), "{reason:?}: {:?}", &frames[..9]);
        others_are_served(&server);
    }
}

#[test]
fn a_preface_that_is_none_ends_the_connection() {
    let server = TestServer::new(|_| {});
    for preface in [
        &b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\nhost: t\r\n\r\n",
        b"\0\0\0\x04\0\0\0\0\0\r\n\r\n",
    ] {
        let mut client = server.client();
        client.stream.write_all(preface).unwrap();
        client.fill_until(|_| None);
        let answer = String::from_utf8_lossy(&client.read).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
        others_are_served(&server);
    }
}

#[test]
fn streams_that_are_opened_and_reset_in_haste_end_the_connection() {
    let server = TestServer::new(|_| {});
    let mut raw = Raw::new(&server);
    let pair = |at: u32| [get(2 * at + 1), frame(RST_STREAM, 0, 2 * at + 1, &8u32.to_be_bytes())].concat();
    let all: Vec<u8> = (0..5_000).flat_map(pair).collect();
    raw.send(&all);
    assert_eq!(raw.reason(), Some(ENHANCE_YOUR_CALM));
    others_are_served(&server);
}

#[test]
fn streams_beyond_the_limit_are_refused_and_the_others_answered() {
    let server = TestServer::new(|config| config.limits.max_in_flight_per_connection = 8);
    let mut raw = Raw::new(&server);
    // Bodies that never come: their requests stay in flight.
    let open = |at: u32| frame(HEADERS, END_HEADERS, 2 * at + 1, &head(3, "/v2/models/echo/infer"));
    raw.send(&(0..12).flat_map(open).collect::<Vec<u8>>());
    let mut refused = Vec::new();
    while refused.len() < 4 {
        let (kind, _, stream, payload) = raw.read().expect("the connection goes on");
        assert_ne!(kind, GOAWAY);
        if kind == RST_STREAM {
            assert_eq!(payload, REFUSED_STREAM.to_be_bytes());
            refused.push(stream);
        }
    }
    assert_eq!(refused, [17, 19, 21, 23]);
    others_are_served(&server);
}

#[test]
fn a_head_without_end_is_not_collected_for_ever() {
    let server = TestServer::new(|_| {});
    let mut raw = Raw::new(&server);
    raw.send(&frame(HEADERS, END_STREAM, 1, &head(2, "/v2")));
    let more = frame(
        CONTINUATION,
        0,
        1,
        &[&[0x00, 1, b'a', 0x7f, 0x81, 0x7e][..], &vec![b'x'; 16_256]].concat()[..16_000],
    );
    let sent = (0..10_000).take_while(|_| raw.send(&more)).count();
    assert!(sent < 10_000, "the server takes 160 MB of one head");
    others_are_served(&server);
}

#[test]
fn a_client_that_asks_and_never_reads_is_closed() {
    let server = TestServer::new(|config| config.limits.write_timeout = Duration::from_millis(300));
    for flood in [frame(PING, 0, 0, &[1; 8]), frame(SETTINGS, 0, 0, b"")] {
        let mut raw = Raw::new(&server);
        let many = flood.repeat(1_000);
        let end = Instant::now() + PATIENCE;
        // The answers fill both sockets' memory; then nothing more is taken, and the time runs out.
        while raw.send(&many) {
            assert!(Instant::now() < end, "the server goes on answering into the void");
        }
        others_are_served(&server);
    }
    server.wait_until("the connections are gone", || {
        server.metric("symphony_http_connections").ends_with(" 1")
    });
}

#[test]
fn a_client_that_lets_no_answer_come_over_http_2_is_closed() {
    let server = TestServer::new(|config| config.limits.write_timeout = Duration::from_millis(300));
    let mut raw = Raw::silent(&server);
    // SETTINGS_INITIAL_WINDOW_SIZE of 0: no answer may have a body until the client says so.
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    raw.send(&[PREFACE, &settings, &get(1)].concat());
    let mut answered = false;
    while let Some((kind, _, stream, _)) = raw.read() {
        answered |= (kind, stream) == (HEADERS, 1);
        assert_ne!(kind, DATA);
    }
    assert!(answered);
    others_are_served(&server);
}

#[test]
fn a_connection_whose_client_left_silently_is_closed() {
    let server = TestServer::new(|config| config.limits.keep_alive = Duration::from_millis(200));
    let mut raw = Raw::new(&server);
    // A request in flight, so that it is not simply unused.
    raw.send(&frame(HEADERS, END_HEADERS, 1, &head(3, "/v2/models/echo/infer")));
    let mut asked = false;
    while let Some((kind, _, _, payload)) = raw.read() {
        asked |= kind == PING && payload.len() == 8;
    }
    assert!(asked, "it is asked before it is closed");
    others_are_served(&server);
}
