//! Infer requests: what is answered, and how wrong ones are refused.

use super::server::*;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

#[test]
fn an_infer_answer_has_the_outputs_the_id_and_the_times() {
    let server = TestServer::new(|_| {});
    let answer = server.infer("echo", &body());
    assert_eq!((answer.status, answer.header("symphony-outcome")), (200, Some("good")), "{answer:?}");
    let mut json = answer.json();
    let parameters = json["parameters"].take();
    assert_eq!(
        json,
        json!({
            "model_name": "echo",
            "model_version": "1",
            "id": "a \"quoted\" id",
            "parameters": null,
            "outputs": [
                { "name": "same", "datatype": "FP32", "shape": [1, 2, 2], "data": [0.1, 2.0, -300000.0, 4.5] },
                { "name": "flag", "datatype": "BOOL", "shape": [1], "data": [true] },
            ],
        })
    );
    for (name, value) in
        [("queued_us", 0), ("batched_us", 10), ("started_us", 20), ("finished_us", 30), ("batch_size", 3)]
    {
        assert_eq!(parameters[name], value, "{name}");
    }
    assert_eq!(parameters["gpu"], 5);
}

#[test]
fn nested_data_a_shape_without_the_batch_and_chosen_outputs_are_fine() {
    let server = TestServer::new(|_| {});
    let nested = body_with("/inputs/0/data", json!([[[0.1, 2], [-3e5, 4.5]]]));
    assert_eq!(
        server.infer("echo", &nested).json()["outputs"],
        server.infer("echo", &body()).json()["outputs"]
    );
    let row = body_with("/inputs/0/shape", json!([2, 2]));
    // Of several inputs some may have the batch dimension; the answer then has it too.
    assert_eq!(server.infer("echo", &row).json()["outputs"][0]["shape"], json!([1, 2, 2]));
    let mut none = row.clone();
    none["inputs"][1]["shape"] = json!([]);
    assert_eq!(server.infer("echo", &none).json()["outputs"][0]["shape"], json!([2, 2]));
    let mut chosen = body();
    chosen["outputs"] = json!([{ "name": "flag" }]);
    assert_eq!(server.infer("echo/versions/1", &chosen).json()["outputs"].as_array().unwrap().len(), 1);
    assert_eq!(server.infer("a%20b%2Fc", &body()).status, 200);
}

#[test]
fn every_ending_has_its_status_and_says_why() {
    let server = TestServer::new(|_| {});
    for (model, status, outcome, word) in [
        ("late", 504, "late", "after the deadline"),
        ("dropped", 504, "dropped", "dropped in the queue"),
        ("cancelled", 504, "cancelled", "too late to meet the deadline"),
        ("full", 429, "overloaded", "queue of model"),
        ("failed", 500, "failed", "executor"),
        ("stopped", 503, "draining", "stopped"),
    ] {
        let answer = server.infer(model, &body());
        assert_eq!((answer.status, answer.header("symphony-outcome")), (status, Some(outcome)));
        assert!(answer.error().contains(word), "{}", answer.error());
        assert_eq!(answer.header("retry-after"), (status == 429).then_some("1"));
        let line =
            server.metric(&format!("symphony_requests_total{{model=\"{model}\",outcome=\"{outcome}\""));
        assert!(line.ends_with(" 1"), "{line}");
    }
}

#[test]
fn a_wrong_infer_body_is_refused_with_what_would_be_right() {
    let server = TestServer::new(|_| {});
    let mut missing = body();
    missing["inputs"].as_array_mut().unwrap().pop();
    let mut twice = body();
    twice["inputs"][1] = twice["inputs"][0].clone();
    let mut no_data = body();
    no_data["inputs"][0].as_object_mut().unwrap().remove("data");
    let with_outputs = |outputs: Value| {
        let mut body = body();
        body["outputs"] = outputs;
        body
    };
    for (wrong, word) in [
        (
            body_with("/inputs/0/name", json!("imge")),
            r#"input "imge" is not one of the model's inputs ["image", "flag"]"#,
        ),
        (body_with("/inputs/0/name", json!("x".repeat(1000))), "…"),
        (missing, r#"input "flag" is missing"#),
        (twice, r#"input "image" is given twice"#),
        (no_data, "has no elements"),
        (body_with("/inputs/0/datatype", json!("FP64")), r#"datatype is "FP64"; it must be "FP32""#),
        (body_with("/inputs/0/shape", json!([1, 4])), "shape is [1, 4]; it must be [1, 2, 2] or [2, 2]"),
        (body_with("/inputs/0/shape", json!([-1, 2, 2])), "-1 rows; a request may have 1 to 64"),
        (body_with("/inputs/0/shape", json!([99, 2, 2])), "99 rows; a request may have 1 to 64"),
        (body_with("/inputs/0/shape", json!([0, 2, 2])), "0 rows; a request may have 1 to 64"),
        (body_with("/inputs/1/shape", json!([2])), "has 2 rows, but the inputs before have 1"),
        (
            body_with(
                "/inputs/1",
                json!({ "name": "flag", "shape": [2], "datatype": "BOOL", "data": [true, true] }),
            ),
            "has 2 rows, but the inputs before have 1",
        ),
        (body_with("/inputs/0/shape", json!(vec![1; 100])), "more than 32 entries"),
        (body_with("/inputs/0/shape", json!("2,2")), "expected a list of at most 32 entries"),
        (body_with("/inputs/0/data", json!([1, 2, 3])), "3 elements, but shape [1, 2, 2] needs 4"),
        (body_with("/inputs/0/data", json!([1, 2, 3, 4, 5])), "more elements"),
        (body_with("/inputs/0/data", json!([[[1, 2, 3], [4]]])), "array of 3"),
        (body_with("/inputs/0/data", json!([1, "2", 3, 4])), r#"data[1] is "2""#),
        (body_with("/inputs/0/data", json!([1, 1e39, 3, 4])), "that FP32 can hold"),
        (body_with("/inputs/1/data", json!([1])), "true or false"),
        (with_outputs(json!([{ "name": "label" }])), r#"output "label" is not one of"#),
        (with_outputs(json!([{ "name": "flag" }, { "name": "flag" }])), "asked for twice"),
        (with_outputs(json!([{ "name": "flag", "parameters": { "classification": 0 } }])), "at least 1"),
        (
            with_outputs(json!([{ "name": "flag", "parameters": { "shared_memory_region": "r" } }])),
            "shared_memory_byte_size is missing",
        ),
        (json!({}), "missing field `inputs`"),
        (json!([]), "not an infer request"),
    ] {
        let answer = server.infer("echo", &wrong);
        assert_eq!((answer.status, answer.header("symphony-outcome")), (400, Some("invalid")), "{answer:?}");
        assert!(answer.error().contains(word), "{} lacks {word}", answer.error());
        assert!(answer.error().len() < 1_000);
    }
    assert_eq!(server.control.taken.load(Ordering::Relaxed), 0, "none of it reached the engine");
}

#[test]
fn every_truncation_of_a_good_body_is_refused() {
    let server = TestServer::new(|_| {});
    let text = body().to_string();
    let mut client = server.client();
    for end in 0..text.len() {
        let answer = client.request("POST", "/v2/models/echo/infer", &text.as_bytes()[..end]);
        assert!(answer.status == 400 && answer.error().contains("not valid JSON"), "{answer:?}");
    }
}

#[test]
fn tensors_may_come_and_go_as_bytes_behind_the_json() {
    let server = TestServer::new(|_| {});
    let image: Vec<u8> = [1.5f32, -2.0, 0.0, 4.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let json = json!({
        "inputs": [
            { "name": "image", "shape": [2, 2], "datatype": "FP32", "parameters": { "binary_data_size": 16 } },
            { "name": "flag", "shape": [], "datatype": "BOOL", "parameters": { "binary_data_size": 1 } },
        ],
        "parameters": { "binary_data_output": true },
        "outputs": [{ "name": "flag", "parameters": { "binary_data": false } }, { "name": "same" }],
    });
    let text = json.to_string();
    let headers = format!("inference-header-content-length: {}\r\n", text.len());
    // A BOOL that is neither 0 nor 1 is true.
    let (answer, raw) = infer_with(&server, &headers, &[text.as_bytes(), &image, &[7]].concat());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let outputs = answer.json()["outputs"].clone();
    assert_eq!(outputs[0]["data"], json!([true]));
    assert_eq!(outputs[1]["parameters"], json!({ "binary_data_size": 16 }));
    assert_eq!((&outputs[1]["shape"], raw), (&json!([2, 2]), image));
    for (wrong, word) in [
        (&[text.as_bytes(), &[0; 16]].concat(), "only 0 bytes of binary data are left"),
        (&[text.as_bytes(), &[0; 18]].concat(), "1 bytes of binary data are left over"),
        (&b"{}".to_vec(), "Inference-Header-Content-Length"),
    ] {
        let (answer, _) = infer_with(&server, &headers, wrong);
        assert!(answer.status == 400 && answer.error().contains(word), "{answer:?}");
    }
}

#[test]
fn a_request_may_be_a_batch_of_several_rows() {
    let server = TestServer::new(|_| {});
    let batch = json!({
        "inputs": [
            { "name": "image", "shape": [3, 2, 2], "datatype": "FP32", "data": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] },
            { "name": "flag", "shape": [3], "datatype": "BOOL", "data": [true, false, true] },
        ],
        "outputs": [
            { "name": "flag" },
            { "name": "same", "parameters": { "classification": 2 } },
        ],
    });
    let outputs = server.infer("echo", &batch).json()["outputs"].clone();
    assert_eq!((&outputs[0]["shape"], &outputs[0]["data"]), (&json!([3]), &json!([true, false, true])));
    assert_eq!((&outputs[1]["shape"], &outputs[1]["datatype"]), (&json!([3, 2]), &json!("BYTES")));
    let classes =
        json!(["3.000000:3", "2.000000:2", "7.000000:3", "6.000000:2", "11.000000:3", "10.000000:2"]);
    assert_eq!(outputs[1]["data"], classes);
    assert_eq!(server.control.taken.load(Ordering::Relaxed), 3);
    let statistics = server.get("/v2/models/echo/stats").json()["model_stats"][0].clone();
    assert_eq!((&statistics["inference_count"], &statistics["execution_count"]), (&json!(3), &json!(1)));
    assert_eq!(statistics["inference_stats"]["success"]["count"], 1);
    assert_eq!(statistics["batch_stats"][0]["batch_size"], 3);
}

#[test]
fn whatever_the_body_is_the_answer_is_a_4xx_and_the_server_lives() {
    let server = TestServer::new(|_| {});
    let client = std::cell::RefCell::new(server.client());
    let good = body().to_string().into_bytes();
    let broken = (0..good.len(), any::<u8>(), 0usize..3).prop_map(move |(at, byte, what)| {
        let mut text = good.clone();
        match what {
            0 => text[at] = byte,
            1 => text.insert(at, byte),
            _ => drop(text.remove(at)),
        }
        text
    });
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..300);
    proptest!(ProptestConfig::with_cases(500), |(bytes in any_bytes)| {
        let answer = client.borrow_mut().request("POST", "/v2/models/echo/infer", &bytes);
        prop_assert_eq!(answer.status, 400);
        prop_assert!(!answer.error().is_empty());
    });
    proptest!(ProptestConfig::with_cases(1_000), |(bytes in broken)| {
        let answer = client.borrow_mut().request("POST", "/v2/models/echo/infer", &bytes);
        // A change inside a number or a string may leave a good request.
        prop_assert!(matches!(answer.status, 200 | 400), "{answer:?}");
    });
}
