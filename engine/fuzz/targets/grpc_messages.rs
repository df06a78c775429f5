//! The bodies of gRPC calls. An input is the model's number, a byte that says which message it is,
//! and the message. An infer request is read for the model; every message, if it can be read at
//! all, must survive being written.

#![no_main]

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use prost::Message;
use std::fmt::Debug;
use symphony::api::grpc::messages::*;

/// The largest message that is decoded by prost alone, in bytes.
const MOST_DECODED: usize = 8 << 10;

fn survives<M: Message + Default + Clone + PartialEq + Debug>(bytes: &[u8]) {
    // prost alone bounds nothing.
    if bytes.len() > MOST_DECODED {
        return;
    }
    let Ok(message) = M::decode(bytes) else { return };
    let written = message.encode_to_vec();
    assert_eq!(written.len(), message.encoded_len());
    let again = M::decode(&written[..]).expect("what was written can be read");
    // One with NaN in it does not even equal itself.
    if message == message.clone() {
        assert_eq!(again, message);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((reader, rest)) = symphony_fuzz::reader(input) else { return };
    let Some((&kind, message)) = rest.split_first() else { return };
    match kind {
        0 => {
            survives::<ModelInferRequest>(message);
            if let Ok(read) =
                symphony_fuzz::bounded(|| reader.grpc(&HeaderMap::new(), symphony_fuzz::enveloped(message)))
            {
                symphony_fuzz::check(&reader, &read);
            }
        }
        // The client chooses the envelope too.
        1..=3 => {
            let mut headers = HeaderMap::new();
            if let Some(coding) = [None, Some("gzip"), Some("deflate")][usize::from(kind) - 1] {
                headers.insert("grpc-encoding", HeaderValue::from_static(coding));
            }
            if let Ok(read) = symphony_fuzz::bounded(|| reader.grpc(&headers, message.to_vec().into())) {
                symphony_fuzz::check(&reader, &read);
            }
        }
        4 => survives::<ModelStreamInferResponse>(message),
        5 => survives::<LogSettingsRequest>(message),
        6 => survives::<TraceSettingRequest>(message),
        7 => survives::<RepositoryModelLoadRequest>(message),
        8 => survives::<RepositoryIndexRequest>(message),
        9 => survives::<SystemSharedMemoryRegisterRequest>(message),
        10 => survives::<ModelConfigResponse>(message),
        11 => survives::<ModelStatisticsResponse>(message),
        _ => survives::<ModelMetadataRequest>(message),
    }
});
