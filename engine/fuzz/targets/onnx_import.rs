//! An ONNX file as the import reads and rewrites it, before a library sees it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use symphony_gpu::import::rewrite_bytes;

fuzz_target!(|bytes: &[u8]| {
    if let Some(rewritten) = rewrite_bytes(bytes) {
        assert!(rewrite_bytes(&rewritten).is_none(), "what was rewritten changes again");
    }
});
