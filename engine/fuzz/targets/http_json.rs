//! The body of an infer request over HTTP, all of it JSON. An input is the model's number and the
//! body.

#![no_main]

use http::HeaderMap;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((reader, body)) = symphony_fuzz::reader(input) else { return };
    if let Ok(read) = symphony_fuzz::bounded(|| reader.http(&HeaderMap::new(), body.to_vec().into())) {
        assert!(reader.json(&read).is_some(), "what JSON said can be said in JSON");
        symphony_fuzz::check(&reader, &read);
    }
});
