//! The body of an infer request over HTTP with the binary tensor extension, compressed or not. An
//! input is the model's number, a byte that says how the body is compressed, the length of the JSON
//! as two bytes, and the body.

#![no_main]

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((reader, rest)) = symphony_fuzz::reader(input) else { return };
    let Some((&[coding, low, high], body)) = rest.split_first_chunk() else { return };
    let mut headers = HeaderMap::new();
    headers.insert(symphony_fuzz::JSON_LENGTH, u16::from_le_bytes([low, high]).into());
    match coding {
        1 => drop(headers.insert("content-encoding", HeaderValue::from_static("gzip"))),
        2 => drop(headers.insert("content-encoding", HeaderValue::from_static("deflate"))),
        _ => {}
    }
    if let Ok(read) = symphony_fuzz::bounded(|| reader.http(&headers, body.to_vec().into())) {
        symphony_fuzz::check(&reader, &read);
    }
});
