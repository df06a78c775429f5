//! `ModelStreamInfer` at the server's end.

use super::grpc_client::*;
use super::raw::*;
use super::server::*;
use crate::api::ApiConfig;
use crate::api::grpc::messages::infer_parameter::ParameterChoice;
use crate::api::grpc::messages::model_infer_request::InferInputTensor;
use crate::api::grpc::messages::{InferParameter, ModelInferRequest, ModelStreamInferResponse};
use crate::api::net::compression::Coding;
use crate::api::tokens::Tokens;
use crate::config::{Fingerprint, TokenGrant, TokenRole};
use http_body_util::BodyExt;
use hyper::Request;
use prost::Message;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(super) const STREAM: &str = "inference.GRPCInferenceService/ModelStreamInfer";

pub(super) fn infer_request(model: &str) -> ModelInferRequest {
    let input = |name: &str, datatype: &str, shape: &[i64]| InferInputTensor {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.into(),
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: model.into(),
        id: model.into(),
        inputs: vec![input("image", "FP32", &[1, 2, 2]), input("flag", "BOOL", &[1])],
        raw_input_contents: vec![vec![0; 16].into(), vec![1].into()],
        ..ModelInferRequest::default()
    }
}

/// Asks `held`, which answers once it is let go, and `echo`, and returns the models in the order of
/// their answers.
fn answered(metadata: &[(&str, &str)], parameter: Option<ParameterChoice>) -> Vec<String> {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        let mut first = infer_request("held");
        let parameter = parameter.map(|choice| InferParameter { parameter_choice: Some(choice) });
        first.parameters.extend(parameter.map(|parameter| ("symphony_ordered".to_owned(), parameter)));
        let mut call = client.begin(STREAM, metadata, &first).await;
        call.send(&infer_request("echo"));
        call.finish();
        let mut order = Vec::new();
        // Both are with the engine, and `echo` is answered, before `held` may end.
        let answered = |count: usize| {
            let line = "symphony_requests_total{model=\"echo\",outcome=\"good\",version=\"1\"}";
            server.metric(line).ends_with(&format!(" {count}"))
        };
        while server.control.taken.load(Ordering::Relaxed) < 2 || !answered(1) {
            glommio::timer::sleep(std::time::Duration::from_millis(2)).await;
        }
        server.control.release.store(true, Ordering::Relaxed);
        while let Some(answer) = call.next::<ModelStreamInferResponse>().await {
            assert_eq!(answer.error_message, "");
            order.push(answer.infer_response.unwrap().id);
        }
        assert_eq!(call.status(), (0, String::new()));
        order
    })
}

#[test]
fn answers_come_as_they_are_ready_or_in_order_where_the_client_asks_for_that() {
    assert_eq!(answered(&[], None), ["echo", "held"]);
    assert_eq!(answered(&[("symphony-ordered", "false")], None), ["echo", "held"]);
    assert_eq!(answered(&[("symphony-ordered", "true")], None), ["held", "echo"]);
    assert_eq!(answered(&[], Some(ParameterChoice::BoolParam(true))), ["held", "echo"]);
}

#[test]
fn an_order_that_is_neither_true_nor_false_is_refused() {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        let request = infer_request("echo");
        let mut call = client.begin(STREAM, &[("symphony-ordered", "yes")], &request).await;
        assert!(call.next::<ModelStreamInferResponse>().await.is_none());
        assert_eq!(call.status(), (3, "symphony-ordered is \"yes\"; it must be true or false".into()));
        let mut request = request;
        let wrong = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("yes".into())) };
        request.parameters.insert("symphony_ordered".into(), wrong);
        let mut call = client.begin(STREAM, &[], &request).await;
        assert!(call.next::<ModelStreamInferResponse>().await.is_none());
        assert!(call.status().0 == 3 && call.status().1.contains("symphony_ordered"), "{:?}", call.status());
    });
}

#[test]
fn a_stop_ends_a_stream_that_has_nothing_to_do_at_once() {
    let mut server = TestServer::new(|_| {});
    let mut raw = Raw::new(&server);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call("ModelStreamInfer")));
    let is_open = |(kind, flags, stream, _): (u8, u8, u32, Vec<u8>)| {
        (kind, stream) == (HEADERS, 1) && flags & END_STREAM == 0
    };
    while !is_open(raw.read().expect("the stream is opened")) {}
    let begun = Instant::now();
    let api = server.api.take().unwrap();
    let stopping = std::thread::spawn(move || api.stop());
    let mut trailers = false;
    while let Some((kind, flags, stream, payload)) = raw.read() {
        trailers |= (kind, stream) == (HEADERS, 1) && flags & END_STREAM != 0;
        // A client acknowledges a PING. The flag ACK is 1, as END_STREAM is.
        if kind == PING && flags & END_STREAM == 0 {
            raw.send(&frame(PING, END_STREAM, 0, &payload));
        }
    }
    assert!(trailers, "the call ends with a status");
    stopping.join().unwrap().unwrap();
    let limit = ApiConfig::at(([127, 0, 0, 1], 0).into()).stop_timeout;
    assert!(begun.elapsed() < limit / 3, "{:?}", begun.elapsed());
}

#[test]
fn a_stream_without_a_request_is_closed_after_its_time() {
    let server = TestServer::new(|config| config.limits.stream_idle_timeout = Duration::from_millis(100));
    let mut raw = Raw::new(&server);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call("ModelStreamInfer")));
    let is_trailer = |(kind, flags, stream, _): (u8, u8, u32, Vec<u8>)| {
        (kind, stream) == (HEADERS, 1) && flags & END_STREAM != 0
    };
    while !is_trailer(raw.read().expect("the call ends with a status")) {}
}

/// The head of a call with this token.
fn call_with_token(method: &str, token: &str) -> Vec<u8> {
    let mut head = call(method);
    let value = format!("Bearer {token}");
    // Literal, not indexed, with name 23: authorization.
    head.extend([0x0f, 23 - 15, value.len() as u8]);
    head.extend(value.bytes());
    head
}

/// Asks for `echo` without inputs on stream 1, and returns the error message of the answer.
fn ask_for_echo(raw: &mut Raw) -> String {
    let request = ModelInferRequest { model_name: "echo".into(), ..ModelInferRequest::default() };
    let message = request.encode_to_vec();
    let length = (message.len() as u32).to_be_bytes();
    raw.send(&frame(DATA, 0, 1, &[&[0], &length[..], &message].concat()));
    loop {
        let (kind, _, stream, payload) = raw.read().expect("the stream goes on");
        if (kind, stream) == (DATA, 1) {
            return ModelStreamInferResponse::decode(&payload[5..]).unwrap().error_message;
        }
    }
}

#[test]
fn a_token_that_is_narrowed_or_revoked_counts_from_the_next_request_of_an_open_stream() {
    let fingerprint = Fingerprint::of(b"token-of-the-stream");
    let grant = |models: &str| {
        let models = vec![models.to_owned()];
        TokenGrant { name: "streamer".into(), fingerprint, models, ..TokenGrant::default() }
    };
    let tokens = Tokens::new(vec![grant("*")]);
    let given = tokens.clone();
    let server = TestServer::new(move |config| config.tokens = Some(given));
    let mut raw = Raw::new(&server);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call_with_token("ModelStreamInfer", "token-of-the-stream")));
    assert!(ask_for_echo(&mut raw).contains("is missing"), "it is read, and has no inputs");
    tokens.replace(vec![grant("held")]);
    assert!(ask_for_echo(&mut raw).contains("\"streamer\" is not for model \"echo\""));
    tokens.replace(vec![grant("echo")]);
    assert!(ask_for_echo(&mut raw).contains("is missing"));
    tokens.replace(vec![TokenGrant { role: TokenRole::Metrics, ..grant("*") }]);
    assert!(ask_for_echo(&mut raw).contains("has the role \"metrics\""));
    tokens.replace(Vec::new());
    assert!(ask_for_echo(&mut raw).contains("a valid token is needed"));
}

#[test]
fn a_stream_of_bombs_ends_with_the_reason_and_others_are_served() {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        let request = Request::post(format!("http://test/{STREAM}"))
            .header("content-type", "application/grpc")
            .header("grpc-encoding", "gzip");
        let (send, response) = client.request(request).await;
        // A million empty inputs.
        let bomb = Coding::Gzip.pack(&[0x2a, 0].repeat(1_000_000));
        let message = [&[1][..], &(bomb.len() as u32).to_be_bytes(), &bomb].concat();
        for _ in 0..100 {
            send.unbounded_send(message.clone().into()).unwrap();
        }
        let ended = response.await.into_body().collect().await.unwrap();
        let trailers = ended.trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "8");
        assert_eq!(trailers["grpc-message"], "the request has more than 1024 inputs, which is the limit");
    });
    assert_eq!(server.infer("echo", &body()).status, 200);
}
