//! The documents give the limits of the API that have no key in CONFIG as they are here.

use crate::api::ApiConfig;
use crate::api::grpc::limits::{MAX_FIELD, MAX_LISTED, MAX_REQUEST_BYTES, MAX_WATCHES, WATCH_EVERY};
use crate::api::http::limits::{MAX_TEXT, MIN_COMPRESSED_BYTES};
use crate::api::inference::bounds::{MAX_PARAMETERS, MAX_RANK, MAX_TENSORS};
use crate::api::net::compression::MAX_MEMBERS;
use crate::api::net::handler_panics::{MOST_PANICS, WITHIN};
use crate::api::net::memory::{LEAST_WINDOW, MAX_CALL, MOST_WINDOW};
use crate::api::net::slices::SLICE_BYTES;
use crate::api::problem::NAMES_LISTED;
use crate::api::services::shared_memory::MAX_REGIONS;

/// A number with a comma before its thousands.
fn grouped(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}

fn kib(bytes: usize) -> String {
    assert_eq!(bytes % 1_024, 0);
    format!("{} KiB", bytes >> 10)
}

#[test]
fn the_limits_without_a_key_are_as_the_documents_say() {
    let on_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let api = on_one_line(include_str!("../../../../docs/api.md"));
    let security = on_one_line(include_str!("../../../../docs/security.md"));
    let head = ApiConfig::at(([127, 0, 0, 1], 0).into()).max_head_bytes;
    let tensors = "inputs, and outputs asked for, of one request; beyond that 413, over HTTP 400";
    for said in [
        format!("| {tensors} | {} |", grouped(MAX_TENSORS)),
        format!("| parameters of one gRPC request and its tensors | {} |", grouped(MAX_PARAMETERS)),
        format!("| dimensions of a shape | {MAX_RANK} |"),
        format!("a field of a gRPC request that is no tensor | {}; {} |", kib(MAX_TEXT), kib(MAX_FIELD)),
        format!("| the body of any other call, unpacked | {} |", kib(MAX_CALL)),
        format!("| a request of server reflection | {} |", kib(MAX_REQUEST_BYTES)),
        format!("| request line and headers | {} |", kib(head)),
        format!("An answer of {} or more is compressed", kib(MIN_COMPRESSED_BYTES)),
        format!("several members, at most {}.", grouped(MAX_MEMBERS)),
        format!("There are at most {} regions.", grouped(MAX_REGIONS)),
        format!(
            "sent within {} s; an API core has at most {} watches",
            WATCH_EVERY.as_secs(),
            grouped(MAX_WATCHES)
        ),
        format!("for at most {} versions of models", grouped(MAX_LISTED)),
        format!("(the error names up to {NAMES_LISTED} that exist)"),
    ] {
        assert!(api.contains(&said), "docs/api.md does not say \"{said}\"");
    }
    for said in [
        format!("its window, is {} MiB where there are few", MOST_WINDOW >> 20),
        format!("`max_bodies_mb` and {} for each connection", kib(LEAST_WINDOW)),
        format!("and after {} at the latest", kib(SLICE_BYTES)),
        format!("More than {MOST_PANICS} panics of an API core within {} s", WITHIN.as_secs()),
    ] {
        assert!(security.contains(&said), "docs/security.md does not say \"{said}\"");
    }
}
