//! The bodies of requests: their limits, their time-outs, compression.

use super::server::*;
use crate::api::ApiConfig;
use crate::api::net::compression::Coding;
use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn a_gigabyte_is_refused_by_its_length_alone() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    client
        .stream
        .write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 1073741824\r\n\r\n")
        .unwrap();
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    assert!(answer.error().contains("1073741824 bytes; the limit is 67108864"), "{}", answer.error());
}

#[test]
fn a_client_that_sends_a_refused_body_whole_still_sees_why() {
    let server = TestServer::new(|config| config.limits.max_body_bytes = 1_000);
    let mut client = server.client();
    let answer = client.request("POST", "/v2/models/echo/infer", &vec![b' '; 20 << 20]);
    assert!(answer.status == 413 && client.is_closed(), "{answer:?}");
}

#[test]
fn a_body_that_breaks_off_is_no_request() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    client
        .stream
        .write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n{")
        .unwrap();
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    server.wait_until("it is forgotten", || server.metric("symphony_http_connections").ends_with(" 1"));
    assert_eq!(server.control.taken.load(Ordering::Relaxed), 0);
}

#[test]
fn a_chunked_body_is_counted_and_one_within_the_limit_is_read() {
    let server = TestServer::new(|config| config.limits.max_body_bytes = 1_000);
    let head = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut client = server.client();
    client.stream.write_all(head).unwrap();
    for part in body().to_string().as_bytes().chunks(7) {
        client
            .stream
            .write_all(&[format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat())
            .unwrap();
    }
    client.stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(client.answer().status, 200);
    let mut client = server.client();
    client.stream.write_all(head).unwrap();
    let chunk = format!("190\r\n{}\r\n", " ".repeat(400));
    for _ in 0..3 {
        client.stream.write_all(chunk.as_bytes()).unwrap();
    }
    let answer = client.answer();
    assert!(answer.status == 413 && answer.error().contains("the limit is 1000"), "{answer:?}");
}

#[test]
fn bodies_together_have_a_limit_too() {
    let server = TestServer::new(|config| config.limits.max_bodies_bytes = 100);
    let answer = server.infer("echo", &body());
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
}

#[test]
fn the_requests_of_a_connection_have_a_limit_of_memory() {
    let server = TestServer::new(|config| config.limits.max_connection_bytes = 100);
    let answer = server.infer("echo", &body());
    assert_eq!(answer.status, 429);
    assert!(
        answer.error().contains("its connection's requests and answers fill their 100 bytes"),
        "{}",
        answer.error()
    );
}

#[test]
fn other_calls_have_small_bodies() {
    let server = TestServer::new(|_| {});
    let body = format!("{{\"ready\":{}1}}", " ".repeat(300_000));
    let answer = server.client().request("POST", "/v2/repository/index", body.as_bytes());
    assert!(answer.status == 413 && answer.error().contains("the limit is 262144"), "{answer:?}");
}

#[test]
fn gzip_may_have_several_members_and_its_name_any_case() {
    let server = TestServer::new(|_| {});
    let text = body().to_string();
    let (one, two) = text.as_bytes().split_at(text.len() / 2);
    let members = [Coding::Gzip.pack(one), Coding::Gzip.pack(two)].concat();
    let (answer, _) = infer_with(&server, "content-encoding: GZip\r\n", &members);
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn bodies_may_be_compressed_either_way_and_what_is_not_known_is_refused() {
    let server = TestServer::new(|_| {});
    let text = body().to_string();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    let (answer, _) = infer_with(&server, "content-encoding: gzip\r\n", &packed.finish().unwrap());
    assert_eq!(answer.status, 200, "{answer:?}");
    let (answer, _) = infer_with(&server, "content-encoding: br\r\n", text.as_bytes());
    assert_eq!(answer.status, 415);
    let (answer, _) = infer_with(&server, "content-encoding: gzip\r\n", text.as_bytes());
    assert!(answer.status == 400 && answer.error().contains("not valid gzip"), "{answer:?}");
    // An answer too small to be worth it comes as it is.
    let (answer, _) = infer_with(&server, "accept-encoding: gzip\r\n", text.as_bytes());
    assert_eq!((answer.status, answer.header("content-encoding")), (200, None));
}

#[test]
fn a_body_that_pauses_or_drips_is_answered_408() {
    let pauses: fn(&mut ApiConfig) = |config| config.limits.read_timeout = Duration::from_millis(150);
    let drips: fn(&mut ApiConfig) = |config| config.limits.body_timeout = Duration::from_millis(150);
    for configure in [pauses, drips] {
        let server = TestServer::new(configure);
        let mut client = server.client();
        let head = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{";
        client.stream.write_all(head).unwrap();
        let answer = client.answer();
        assert!(answer.status == 408 && answer.error().contains("1 bytes so far"), "{answer:?}");
        assert!(client.is_closed());
    }
}
