//! Large outputs: they are copied, encoded and packed in slices, and arrive whole in every form.

use super::grpc_client::*;
use super::server::*;
use super::streams::{STREAM, infer_request};
use crate::api::grpc::messages::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use serde_json::{Value, json};
use std::io::{Read, Write};

const ROWS: usize = 3;

/// The bytes of `texts` in the protocol's binary form.
fn texts() -> Vec<u8> {
    let one = [&(LARGE_TEXT as u32).to_le_bytes()[..], &[b'<'; LARGE_TEXT]].concat();
    one.repeat(ROWS * LARGE[1])
}

fn numbers() -> Vec<u8> {
    vec![b'<'; 4 * ROWS * LARGE[0]]
}

fn large_body(outputs: Value) -> Vec<u8> {
    let inputs = json!([
        { "name": "image", "shape": [ROWS, 2, 2], "datatype": "FP32", "data": vec![0; 4 * ROWS] },
        { "name": "flag", "shape": [ROWS], "datatype": "BOOL", "data": vec![true; ROWS] },
    ]);
    json!({ "inputs": inputs, "outputs": outputs }).to_string().into_bytes()
}

fn ask(client: &mut Client, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!(
        "POST /v2/models/large/infer HTTP/1.1\r\nhost: t\r\n{headers}content-length: {length}\r\n\r\n"
    );
    client.stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
}

#[test]
fn large_outputs_arrive_whole_over_http_and_their_slots_come_back() {
    let server = TestServer::with_capacity(2 * ROWS, |_| {});
    let binary = json!({ "binary_data": true });
    let raw = large_body(json!([
        { "name": "numbers", "parameters": binary }, { "name": "texts", "parameters": binary },
    ]));
    // More than the slots hold, two at a time.
    for _ in 0..4 {
        let mut clients = [server.client(), server.client()];
        clients.iter_mut().for_each(|client| ask(client, "", &raw));
        for client in &mut clients {
            let (answer, raw) = client.raw_answer();
            assert_eq!(answer.status, 200, "{answer:?}");
            assert!(raw == [numbers(), texts()].concat(), "{} bytes", raw.len());
        }
    }
    let mut client = server.client();
    let classes = json!({ "classification": 2 });
    let outputs = json!([{ "name": "texts" }, { "name": "numbers", "parameters": classes }]);
    ask(&mut client, "accept-encoding: gzip\r\n", &large_body(outputs));
    let head = client.read_head();
    assert_eq!(head.header("content-encoding"), Some("gzip"));
    let length: usize = head.header("content-length").unwrap().parse().unwrap();
    client.fill_until(|read| (read.len() >= length).then_some(length)).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(&client.read[..length]).read_to_string(&mut text).unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    let row = [b'<'; LARGE_TEXT];
    assert_eq!(answer["outputs"][0]["data"], json!(vec![str::from_utf8(&row).unwrap(); ROWS * LARGE[1]]));
    assert_eq!(answer["outputs"][1]["data"], json!(["0.011489:0", "0.011489:1"].repeat(ROWS)));
}

#[test]
fn large_outputs_arrive_whole_over_grpc() {
    let server = TestServer::new(|_| {});
    with_client(&server, async |mut client| {
        let mut request = ModelInferRequest {
            raw_input_contents: vec![vec![0; 16 * ROWS].into(), vec![1; ROWS].into()],
            ..infer_request("large")
        };
        request.inputs.iter_mut().for_each(|input| input.shape[0] = ROWS as i64);
        let check = |answer: ModelInferResponse| {
            assert_eq!((answer.id.as_str(), answer.outputs.len()), ("large", 2));
            assert!(answer.raw_output_contents == [numbers(), texts()]);
        };
        for encoding in ["identity", "gzip", "deflate"] {
            let metadata = [("grpc-encoding", encoding)];
            let mut call =
                client.begin("inference.GRPCInferenceService/ModelInfer", &metadata, &request).await;
            check(call.next_packed().await.unwrap());
            let mut call = client.begin(STREAM, &metadata, &request).await;
            let answer: ModelStreamInferResponse = call.next_packed().await.unwrap();
            check(answer.infer_response.unwrap());
        }
    });
}
