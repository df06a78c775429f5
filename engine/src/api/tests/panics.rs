//! Panics in the handlers of requests: they end their request and its connection, and nothing else.

use super::grpc_client::*;
use super::raw::*;
use super::server::*;
use super::streams::{STREAM, infer_request};
use crate::api::ApiConfig;
use crate::api::grpc::messages::{ModelInferResponse, ModelStreamInferResponse};
use crate::api::net::handler_panics::MOST_PANICS;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Has every request for the model `full` panic. It is on a connection of its own, or not.
fn panicking(config: &mut ApiConfig) {
    let hook = |model: &str| assert_ne!(model, "full", "a defect");
    config.shared = config.shared.clone().with_hook(Some(Arc::new(hook)));
}

fn panics(server: &TestServer) -> u64 {
    let line = server.metric("symphony_handler_panics_total ");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_panic_in_a_requests_handler_is_answered_500_and_ends_its_connection_alone() {
    let server = TestServer::with_capacity(4, panicking);
    let mut other = server.client();
    other.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    server.wait_until("the engine has it", || server.control.taken.load(Ordering::Relaxed) == 1);
    for _ in 0..20 {
        let mut client = server.client();
        let answer = client.infer("full", &body());
        assert_eq!((answer.status, answer.header("connection")), (500, Some("close")), "{answer:?}");
        assert_eq!(answer.header("symphony-outcome"), Some("failed"));
        assert!(answer.error().contains("by a defect"), "{answer:?}");
        assert!(client.is_closed());
    }
    assert_eq!(panics(&server), 20);
    assert!(server.metric("symphony_requests_total{model=\"full\",outcome=\"failed\"").ends_with(" 20"));
    server.control.release.store(true, Ordering::Relaxed);
    assert_eq!(other.answer().status, 200);
    assert_eq!(server.infer("echo", &body()).status, 200);
    assert!(server.metric("symphony_http_connections ").ends_with(" 2"), "those of the panics are gone");
}

#[test]
fn a_panic_in_a_grpc_call_ends_it_as_internal_and_the_others_of_its_connection_go_on() {
    let server = TestServer::new(panicking);
    with_client(&server, async |mut client| {
        let mut held = client.begin(STREAM, &[], &infer_request("held")).await;
        let call = "inference.GRPCInferenceService/ModelInfer";
        let failed = client.call::<ModelInferResponse>(call, &[], &infer_request("full")).await;
        assert!(matches!(&failed, Err((13, message)) if message.contains("by a defect")), "{failed:?}");
        server.control.release.store(true, Ordering::Relaxed);
        let answer = held.next::<ModelStreamInferResponse>().await.unwrap();
        assert_eq!(answer.infer_response.unwrap().id, "held");
    });
    with_client(&server, async |mut client| {
        let mut call = client.begin(STREAM, &[], &infer_request("echo")).await;
        assert!(call.next::<ModelStreamInferResponse>().await.is_some());
        call.send(&infer_request("full"));
        assert!(call.next::<ModelStreamInferResponse>().await.is_none());
        assert_eq!(call.status().0, 13, "{:?}", call.status());
    });
    assert_eq!(panics(&server), 2);
    let mut raw = Raw::new(&server);
    let post = head(3, "/v2/models/full/infer");
    raw.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &post));
    assert_eq!(raw.reason(), Some(0), "the connection is closed in order");
    assert_eq!(server.infer("echo", &body()).status, 200);
}

#[test]
fn more_panics_than_single_requests_explain_are_a_fault_of_the_core() {
    let server = TestServer::new(panicking);
    for _ in 0..MOST_PANICS {
        assert_eq!(server.infer("full", &body()).status, 500);
    }
    assert_eq!(server.infer("echo", &body()).status, 200);
    assert_eq!(server.infer("full", &body()).status, 500);
    assert_eq!(server.infer("echo", &body()).status, 503, "it accepts nothing more");
}
