//! gRPC's own services: health and server reflection.

use super::grpc_client::*;
use super::server::*;
use crate::api::grpc::health_messages::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use crate::api::grpc::messages::model_repository_parameter::ParameterChoice;
use crate::api::grpc::messages::{
    ModelReadyRequest, ModelReadyResponse, ModelRepositoryParameter, RepositoryModelLoadRequest,
    RepositoryModelLoadResponse,
};
use crate::api::grpc::reflection_messages::server_reflection_request::MessageRequest;
use crate::api::grpc::reflection_messages::server_reflection_response::MessageResponse;
use crate::api::grpc::reflection_messages::{
    ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse,
};
use crate::api::tokens::Tokens;
use crate::config::{Fingerprint, TokenGrant};
use serde_json::json;
use std::sync::atomic::Ordering;
use symphony_transport::message::ModelId;

const CHECK: &str = "grpc.health.v1.Health/Check";
const WATCH: &str = "grpc.health.v1.Health/Watch";
const INFERENCE: &str = "inference.GRPCInferenceService";

// The numbers of the protocol.
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

/// The status that `Check` answers, or the call's own.
async fn check(client: &mut GrpcClient, metadata: &[(&str, &str)], service: &str) -> Result<i32, u16> {
    let answer = client.call(CHECK, metadata, &of(service)).await;
    answer.map(|answer: HealthCheckResponse| answer.status).map_err(|(status, _)| status)
}

#[test]
fn the_server_and_each_model_have_a_status() {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        for service in ["", INFERENCE, "echo", "echo/1"] {
            assert_eq!(check(&mut client, &[], service).await, Ok(SERVING), "{service}");
        }
        for service in ["nobody", "echo/2", "echo/", "grpc.health.v1.Health"] {
            let expected = if service == "echo/" { Ok(SERVING) } else { Err(5) };
            assert_eq!(check(&mut client, &[], service).await, expected, "{service}");
        }
        let unknown = client.call::<HealthCheckResponse>("grpc.health.v1.Health/Look", &[], &of("")).await;
        assert_eq!(unknown.unwrap_err().0, 12);
        server.accepting.store(false, Ordering::Relaxed);
        for service in ["", INFERENCE, "echo"] {
            assert_eq!(check(&mut client, &[], service).await, Ok(NOT_SERVING), "{service}");
        }
    });
}

/// The names that `List` has a status of, all of which have this one.
async fn list(client: &mut GrpcClient, metadata: &[(&str, &str)], status: i32) -> Vec<String> {
    let call = "grpc.health.v1.Health/List";
    let answer: HealthListResponse = client.call(call, metadata, &HealthListRequest {}).await.unwrap();
    assert!(answer.statuses.values().all(|of| of.status == status), "{answer:?}");
    let mut names: Vec<String> = answer.statuses.into_keys().collect();
    names.sort();
    names
}

#[test]
fn a_list_has_the_status_of_the_server_and_of_every_model_that_the_caller_may_use() {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        let all = list(&mut client, &[], SERVING).await;
        assert_eq!(all.len(), 2 + 2 * MODELS.len(), "{all:?}");
        assert!(["", INFERENCE, "echo", "echo/1"].iter().all(|name| all.iter().any(|of| of == name)));
        server.accepting.store(false, Ordering::Relaxed);
        assert_eq!(list(&mut client, &[], NOT_SERVING).await, all);
    });
    let fingerprint = Fingerprint::of(b"token-of-echo");
    let grant =
        TokenGrant { name: "echo".into(), fingerprint, models: vec!["echo".into()], ..TokenGrant::default() };
    let server = TestServer::new(|config| config.tokens = Some(Tokens::new(vec![grant])));
    with_client(&server, async |mut client| {
        assert_eq!(list(&mut client, &[], SERVING).await, ["", INFERENCE]);
        let token = [("authorization", "Bearer token-of-echo")];
        assert_eq!(list(&mut client, &token, SERVING).await, ["", "echo", "echo/1", INFERENCE]);
    });
}

#[test]
fn a_model_that_was_unloaded_for_a_fault_is_named_and_the_server_is_ready_without_it() {
    let grant = TokenGrant {
        name: "all".into(),
        fingerprint: Fingerprint::of(b"token"),
        models: vec!["*".into()],
        ..TokenGrant::default()
    };
    let open = TestServer::new(|_| {});
    let guarded = TestServer::new(|config| config.tokens = Some(Tokens::new(vec![grant])));
    for server in [&open, &guarded] {
        assert_eq!(server.get("/v2/health/ready").json(), json!({ "ready": true }));
        server.model_table.note_withdrawal(&[ModelId(0)], "unloaded: why");
        server.model_table.close(&[ModelId(0)]);
    }
    let named = json!([{ "name": "echo", "version": "1", "reason": "unloaded: why" }]);
    let ready = open.get("/v2/health/ready");
    assert_eq!((ready.status, ready.json()), (200, json!({ "ready": true, "unavailable": named })));
    assert_eq!(guarded.get("/v2/health/ready").json(), json!({ "ready": true }), "it takes no token");
    let of_model = open.get("/v2/models/echo/ready");
    assert!(of_model.status == 400 && of_model.error().contains("unloaded: why"), "{of_model:?}");
    assert_eq!(open.get("/v2/models/late/ready").status, 200);
    with_client(&open, async |mut client| {
        for (service, expected) in [("", SERVING), ("late", SERVING), ("echo", NOT_SERVING)] {
            assert_eq!(check(&mut client, &[], service).await, Ok(expected), "{service}");
        }
        let call = client.call("grpc.health.v1.Health/List", &[], &HealthListRequest {});
        let listed: HealthListResponse = call.await.unwrap();
        let status_of = |name| listed.statuses[name].status;
        assert_eq!(
            ["", "late", "echo", "echo/1"].map(status_of),
            [SERVING, SERVING, NOT_SERVING, NOT_SERVING]
        );
        let request = ModelReadyRequest { name: "echo".into(), version: String::new() };
        let call = client.call("inference.GRPCInferenceService/ModelReady", &[], &request);
        assert_eq!(call.await.map(|answer: ModelReadyResponse| answer.ready), Ok(false));
    });
}

#[test]
fn a_watch_tells_each_change_and_ends_with_the_server() {
    let mut server = TestServer::new(|_| {});
    let (api, accepting) = (server.api.take().unwrap(), server.accepting.clone());
    with_client(&server, async |mut client| {
        let mut unknown = client.begin(WATCH, &[], &of("nobody")).await;
        assert_eq!(unknown.next::<HealthCheckResponse>().await.unwrap().status, SERVICE_UNKNOWN);
        let mut model = client.begin(WATCH, &[], &of("echo")).await;
        let mut all = client.begin(WATCH, &[], &of("")).await;
        for watch in [&mut model, &mut all] {
            assert_eq!(watch.next::<HealthCheckResponse>().await.unwrap().status, SERVING);
        }
        accepting.store(false, Ordering::Relaxed);
        for watch in [&mut model, &mut all] {
            assert_eq!(watch.next::<HealthCheckResponse>().await.unwrap().status, NOT_SERVING);
        }
        let stopping = std::thread::spawn(move || api.stop());
        for mut watch in [model, all, unknown] {
            assert!(watch.next::<HealthCheckResponse>().await.is_none());
            assert_eq!(watch.status(), (14, "the server is shutting down".into()));
        }
        drop(client);
        glommio::executor().spawn_blocking(move || stopping.join().unwrap().unwrap()).await;
    });
}

#[test]
fn the_status_of_a_model_needs_a_token_for_it_and_that_of_the_server_none() {
    let fingerprint = Fingerprint::of(b"token-of-echo");
    let grant =
        TokenGrant { name: "echo".into(), fingerprint, models: vec!["echo".into()], ..TokenGrant::default() };
    let server = TestServer::new(|config| config.tokens = Some(Tokens::new(vec![grant])));
    with_client(&server, async |mut client| {
        let own = [("authorization", "Bearer token-of-echo")];
        assert_eq!(check(&mut client, &[], "").await, Ok(SERVING));
        for service in ["echo", "late", "nobody"] {
            assert_eq!(check(&mut client, &[], service).await, Err(16), "{service}");
        }
        assert_eq!(check(&mut client, &own, "echo").await, Ok(SERVING));
        assert_eq!(check(&mut client, &own, "late").await, Err(7));
        assert_eq!(check(&mut client, &own, "nobody").await, Err(7));
        let mut watch = client.begin(WATCH, &[], &of("echo")).await;
        assert!(watch.next::<HealthCheckResponse>().await.is_none());
        assert_eq!(watch.status().0, 16);
        let mut reflection =
            client.begin(REFLECTION[0], &[], &asked(MessageRequest::ListServices("".into()))).await;
        assert!(reflection.next::<ServerReflectionResponse>().await.is_none());
        assert_eq!(reflection.status().0, 16);
    });
}

const REFLECTION: [&str; 2] = [
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

fn asked(request: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: "h".into(), message_request: Some(request) }
}

#[test]
fn the_services_are_described_under_both_names_of_reflection() {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        for call in REFLECTION {
            let list = asked(MessageRequest::ListServices(String::new()));
            let mut call = client.begin(call, &[], &list).await;
            let answer: ServerReflectionResponse = call.next().await.unwrap();
            assert_eq!((answer.valid_host.as_str(), answer.original_request), ("h", Some(list)));
            let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else { panic!() };
            let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
            assert_eq!(
                names,
                [
                    INFERENCE,
                    "grpc.health.v1.Health",
                    "grpc.reflection.v1.ServerReflection",
                    "grpc.reflection.v1alpha.ServerReflection"
                ]
            );
            for (request, part) in [
                (MessageRequest::FileContainingSymbol(INFERENCE.into()), "ModelStreamInfer"),
                (MessageRequest::FileContainingSymbol(format!("{INFERENCE}.ModelInfer")), "ModelStreamInfer"),
                (
                    MessageRequest::FileContainingSymbol(
                        "inference.ModelInferRequest.InferInputTensor".into(),
                    ),
                    "raw_input_contents",
                ),
                (MessageRequest::FileByFilename("grpc/health/v1/health.proto".into()), "NOT_SERVING"),
            ] {
                call.send(&asked(request));
                let answer: ServerReflectionResponse = call.next().await.unwrap();
                let Some(MessageResponse::FileDescriptorResponse(files)) = answer.message_response else {
                    panic!("no file with {part}")
                };
                assert_eq!(files.file_descriptor_proto.len(), 1);
                assert!(find(&files.file_descriptor_proto[0], part.as_bytes()).is_some(), "{part}");
            }
            let extension =
                ExtensionRequest { containing_type: "inference.ModelConfig".into(), extension_number: 9 };
            for (request, code) in [
                (Some(MessageRequest::FileContainingSymbol("inference.Nothing".into())), 5),
                (Some(MessageRequest::FileByFilename("/etc/passwd".into())), 5),
                (Some(MessageRequest::FileContainingExtension(extension)), 5),
                (Some(MessageRequest::AllExtensionNumbersOfType("nothing".into())), 5),
                (None, 3),
            ] {
                call.send(&ServerReflectionRequest { host: String::new(), message_request: request });
                let answer: ServerReflectionResponse = call.next().await.unwrap();
                let Some(MessageResponse::ErrorResponse(error)) = answer.message_response else { panic!() };
                assert_eq!(error.error_code, code, "{}", error.error_message);
            }
            call.finish();
            assert!(call.next::<ServerReflectionResponse>().await.is_none());
            assert_eq!(call.status(), (0, String::new()));
        }
        let long = asked(MessageRequest::FileByFilename("x".repeat(5_000)));
        let mut call = client.begin(REFLECTION[0], &[], &long).await;
        assert!(call.next::<ServerReflectionResponse>().await.is_none());
        assert_eq!(call.status().0, 8);
    });
}

#[test]
fn a_load_takes_a_configuration_and_no_files() {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        for (name, value, status) in [
            // This server has no repository, which is found out after the parameters were read.
            ("config", ParameterChoice::StringParam("{}".into()), 14),
            ("config", ParameterChoice::Int64Param(1), 3),
            ("file:1/model.onnx", ParameterChoice::BytesParam(b"x".to_vec().into()), 3),
        ] {
            let value = ModelRepositoryParameter { parameter_choice: Some(value) };
            let request = RepositoryModelLoadRequest {
                model_name: "echo".into(),
                parameters: [(name.to_owned(), value)].into(),
                ..RepositoryModelLoadRequest::default()
            };
            let call = "inference.GRPCInferenceService/RepositoryModelLoad";
            let answer = client.call::<RepositoryModelLoadResponse>(call, &[], &request).await;
            assert_eq!(answer.unwrap_err().0, status, "{name}");
        }
    });
}
