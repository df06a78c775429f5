//! The start and the stop of a server, and requests whose client has left.

use super::server::*;
use crate::api::{ApiConfig, ApiError, start};
use crate::runtime::clock::Clock;
use serde_json::json;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn no_free_slot_is_answered_429_at_once() {
    let server = TestServer::with_capacity(1, |_| {});
    let mut holder = server.client();
    holder.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    server.wait_until("the engine has it", || server.control.taken.load(Ordering::Relaxed) == 1);
    let answer = server.infer("echo", &body());
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    server.control.release.store(true, Ordering::Relaxed);
    assert_eq!(holder.answer().status, 200);
    assert_eq!(server.infer("echo", &body()).status, 200);
}

#[test]
fn a_draining_engine_is_not_ready_and_takes_nothing() {
    let server = TestServer::new(|_| {});
    server.accepting.store(false, Ordering::Relaxed);
    assert_eq!(server.get("/v2/health/live").status, 200);
    let ready = server.get("/v2/health/ready");
    assert_eq!((ready.status, server.get("/v2/models/echo/ready").status), (503, 503));
    assert_eq!(ready.json(), json!({ "ready": false, "reasons": ["the server is shutting down"] }));
    assert_eq!(server.metric("symphony_ready"), "symphony_ready 0");
    let answer = server.infer("echo", &body());
    assert_eq!((answer.status, answer.header("symphony-outcome")), (503, Some("draining")));
}

#[test]
fn a_stop_answers_what_is_in_flight_and_closes_the_rest() {
    let mut server = TestServer::new(|_| {});
    let mut in_flight = server.client();
    in_flight.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    let (mut idle, mut fresh, mut partial) = (server.client(), server.client(), server.client());
    assert_eq!(idle.request("GET", "/v2", b"").status, 200);
    partial.stream.write_all(b"GET /v2").unwrap();
    server.wait_until("the engine has it", || server.control.taken.load(Ordering::Relaxed) == 1);
    let api = server.api.take().unwrap();
    let stopping = std::thread::spawn(move || api.stop());
    assert!(idle.is_closed() && fresh.is_closed() && partial.is_closed());
    server.wait_until("the port is closed", || TcpStream::connect(server.addr).is_err());
    assert!(!stopping.is_finished(), "one request is still to be answered");
    server.control.release.store(true, Ordering::Relaxed);
    assert_eq!(in_flight.answer().status, 200);
    assert!(in_flight.is_closed());
    stopping.join().unwrap().unwrap();
}

#[test]
fn a_stop_cuts_off_with_503_what_has_no_answer_in_time() {
    let mut server = TestServer::new(|config| config.stop_timeout = Duration::from_millis(50));
    let mut client = server.client();
    client.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    server.wait_until("the engine has it", || server.control.taken.load(Ordering::Relaxed) == 1);
    assert_eq!(server.api.take().unwrap().stop().unwrap(), 1);
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("symphony-outcome")), (503, Some("draining")));
    assert!(client.is_closed());
    assert!(!server.control.release.load(Ordering::Relaxed));
}

#[test]
fn a_fault_of_the_engine_ends_what_is_in_flight_at_once_with_503() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    client.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    server.wait_until("the engine has it", || server.control.taken.load(Ordering::Relaxed) == 1);
    server.faults.report("rank", "died");
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("symphony-outcome")), (503, Some("draining")));
    assert!(answer.error().contains("broken down"), "{answer:?}");
    let in_flight = "symphony_requests_in_flight{model=\"held\",version=\"1\"}";
    assert_eq!(server.metric(in_flight), format!("{in_flight} 0"));
}

#[test]
fn a_client_that_leaves_is_withdrawn_and_its_answer_still_taken() {
    let server = TestServer::new(|_| {});
    for _ in 0..10 {
        let mut client = server.client();
        client.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    }
    server.wait_until("the engine has them", || server.control.taken.load(Ordering::Relaxed) == 10);
    server.wait_until("their connections are gone", || {
        server.metric("symphony_http_connections").ends_with(" 1")
    });
    let in_flight = "symphony_requests_in_flight{model=\"held\",version=\"1\"}";
    assert_eq!(server.metric(in_flight), format!("{in_flight} 10"));
    server.control.release.store(true, Ordering::Relaxed);
    server.wait_until("all are answered", || server.metric(in_flight).ends_with(" 0"));
    assert_eq!(server.infer("held", &body()).status, 200);
    let gone = server.metric("symphony_requests_total{model=\"held\",outcome=\"gone\"");
    assert!(gone.ends_with(" 10"), "{gone}");
}

#[test]
fn a_port_in_use_is_named_before_anything_starts() {
    let server = TestServer::new(|_| {});
    let (frontend, _peer) = frontend(1, Clock::start(), Arc::new(AtomicBool::new(true)));
    let error = start(frontend, ApiConfig::at(server.addr)).unwrap_err();
    assert!(matches!(error, ApiError::PortInUse(addr) if addr == server.addr), "{error}");
}

#[test]
fn a_core_that_is_not_there_is_an_error_of_start() {
    let (frontend, _peer) = frontend(1, Clock::start(), Arc::new(AtomicBool::new(true)));
    let mut config = ApiConfig::at(([127, 0, 0, 1], 0).into());
    config.placement.core = Some(77_777);
    assert!(start(frontend, config).unwrap_err().to_string().contains("core 77777"));
}

#[test]
fn several_cores_may_share_a_port() {
    let share = |addr: SocketAddr| {
        let (frontend, peer) = frontend(1, Clock::start(), Arc::new(AtomicBool::new(true)));
        let mut config = ApiConfig::at(addr);
        config.share_port = true;
        (start(frontend, config).unwrap(), peer)
    };
    let (first, _peer) = share(([127, 0, 0, 1], 0).into());
    let (second, _other_peer) = share(first.local_addr());
    assert_eq!(first.local_addr(), second.local_addr());
}
