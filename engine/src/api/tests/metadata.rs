//! Health, metadata, settings, and the refusals of paths and methods that do not exist.

use super::grpc_client::*;
use super::server::*;
use crate::api::grpc::messages::{ModelReadyRequest, ModelReadyResponse};
use http_body_util::BodyExt;
use hyper::Request;
use serde_json::json;
use std::sync::atomic::Ordering;

#[test]
fn a_model_that_is_not_served_is_not_ready() {
    let server = TestServer::new(|_| {});
    let ready = with_client(&server, async |mut client| {
        let mut ready = Vec::new();
        for (name, version) in [("echo", ""), ("echo", "1"), ("echo", "2"), ("echo", "x"), ("nobody", "")] {
            let request = ModelReadyRequest { name: name.into(), version: version.into() };
            let answer = client.call("inference.GRPCInferenceService/ModelReady", &[], &request).await;
            ready.push(answer.map(|answer: ModelReadyResponse| answer.ready));
        }
        ready
    });
    assert_eq!(ready, [Ok(true), Ok(true), Ok(false), Ok(false), Ok(false)]);
    // Over HTTP as Triton: 400, and why.
    let answer = server.get("/v2/models/nobody/ready");
    assert!(answer.status == 400 && answer.error().contains("no model \"nobody\""), "{answer:?}");
}

#[test]
fn head_is_answered_as_get_without_a_body_over_http_2_too() {
    let server = TestServer::new(|_| {});
    let get = server.get("/v2/models/echo");
    let head = server.client().head("/v2/models/echo");
    assert_eq!(head.header("content-length"), get.header("content-length"));
    with_client(&server, async |mut client| {
        for (path, status, length) in [("/v2/models/echo", 200, get.text.len()), ("/v1", 404, 300)] {
            let (_, response) = client.request(Request::head(format!("http://localhost{path}"))).await;
            let response = response.await;
            assert_eq!(response.status(), status);
            let said: usize = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
            assert!(said == length || status == 404 && said > 0, "{said}");
            assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
        }
    });
}

#[test]
fn a_request_that_is_not_answered_yet_is_pending() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    client.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    server.wait_until("the engine has the request", || server.control.taken.load(Ordering::Relaxed) == 1);
    let pending = || server.metric("nv_inference_pending_request_count{model=\"held\"");
    assert!(pending().ends_with(" 1"), "{}", pending());
    server.control.release.store(true, Ordering::Relaxed);
    assert_eq!(client.answer().status, 200);
    assert!(pending().ends_with(" 0"), "{}", pending());
}

#[test]
fn health_and_metadata_are_as_the_protocol_says() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    assert_eq!(client.request("GET", "/v2/health/live", b"").json(), json!({ "live": true }));
    assert_eq!(client.request("GET", "/v2/health/ready", b"").json(), json!({ "ready": true }));
    let server = client.request("GET", "/v2", b"").json();
    assert_eq!(server["name"], "symphony");
    assert!(server["extensions"].as_array().unwrap().contains(&json!("binary_tensor_data")), "{server}");
    let model = client.request("GET", "/v2/models/echo?x=1", b"");
    assert_eq!(model.header("content-type"), Some("application/json"));
    assert_eq!(
        model.json(),
        json!({
            "name": "echo",
            "versions": ["1"],
            "platform": "emulated",
            "inputs": [
                { "name": "image", "datatype": "FP32", "shape": [-1, 2, 2] },
                { "name": "flag", "datatype": "BOOL", "shape": [-1] },
            ],
            "outputs": [
                { "name": "same", "datatype": "FP32", "shape": [-1, 2, 2] },
                { "name": "flag", "datatype": "BOOL", "shape": [-1] },
            ],
        })
    );
    assert_eq!(client.request("GET", "/v2/models/echo/versions/1", b"").json(), model.json());
    let ready = json!({ "name": "echo", "ready": true });
    assert_eq!(client.request("GET", "/v2/models/echo/ready", b"").json(), ready);
    assert_eq!(client.request("GET", "/v2/models/echo/versions/1/ready", b"").json(), ready);
    assert_eq!(client.request("GET", "/v2/models/a%20b%2Fc/ready", b"").status, 200);
    assert_eq!(client.head("/v2/health/live").status, 200);
    assert_eq!(client.request("GET", "/v2", b"").status, 200);
}

#[test]
fn unknown_paths_models_versions_and_wrong_methods_have_their_statuses() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    for path in ["/", "/v1", "/v2/", "/v2/models", "/v2/models//ready", "/v2/models/echo/cfg", "/metrics/x"] {
        let answer = client.request("GET", path, b"");
        assert!(answer.status == 404 && answer.error().contains("/v2/models/NAME"), "{path} {answer:?}");
    }
    let unknown = client.infer("resnet", &body());
    assert_eq!(unknown.status, 404);
    assert!(unknown.error().contains(r#"no model "resnet"; the models are ["echo", "late""#));
    let version = client.request("GET", "/v2/models/echo/versions/2", b"");
    assert!(version.status == 404 && version.error().contains(r#"no version "2"; it has ["1"]"#));
    let get = client.request("GET", "/v2/models/echo/infer", b"");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    let post = client.request("POST", "/v2/health/live", b"{}");
    assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
    assert!(post.error().contains("does not take POST"));
}

#[test]
fn the_models_configuration_index_and_settings_are_answered() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    let config = client.request("GET", "/v2/models/echo/config", b"").json();
    assert_eq!(config["input"][0], json!({ "name": "image", "data_type": "TYPE_FP32", "dims": [2, 2] }));
    assert_eq!((&config["max_batch_size"], &config["dynamic_batching"]), (&json!(8), &json!({})));
    let index = client.request("POST", "/v2/repository/index", b"").json();
    assert_eq!(index[0], json!({ "name": "echo", "version": "1", "state": "READY", "reason": "" }));
    let load = client.request("POST", "/v2/repository/models/echo/load", b"{}");
    assert!(load.status == 503 && load.error().contains("explicit control is off"), "{load:?}");
    let log = client.request("POST", "/v2/logging", br#"{"log_verbose_level":1}"#).json();
    assert_eq!(log["log_verbose_level"], 1);
    let wrong = client.request("POST", "/v2/logging", br#"{"log_levle":1}"#);
    assert!(wrong.status == 400 && wrong.error().contains("log_levle"));
    let trace = client.request("GET", "/v2/models/echo/trace/setting", b"").json();
    assert_eq!(trace["trace_level"], json!(["OFF"]));
    assert_eq!(client.request("POST", "/v2/trace/setting", br#"{"trace_rate":"5"}"#).status, 400);
    assert_eq!(client.request("GET", "/v2/cudasharedmemory/status", b"").json(), json!([]));
    let cuda = client.request("POST", "/v2/cudasharedmemory/region/r/register", b"{}");
    assert!(cuda.status == 501 && cuda.error().contains("not supported"), "{cuda:?}");
}
