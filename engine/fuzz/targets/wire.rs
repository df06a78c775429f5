//! Frames that another host sends, one after the other, as a link reads them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use symphony_transport::wire::decode;

fuzz_target!(|bytes: &[u8]| {
    let (mut rest, mut written) = (bytes, vec![0; bytes.len()]);
    loop {
        match decode(rest) {
            Ok(Some((payload, length))) => {
                let frame = &rest[..length];
                // What lies behind the frame changes nothing.
                assert_eq!(decode(frame), Ok(Some((payload, length))));
                assert_eq!(payload.encode(&mut written), Ok(length));
                // A `Closing` may be of any version.
                assert_eq!((&written[..4], &written[6..length]), (&frame[..4], &frame[6..]));
                rest = &rest[length..];
            }
            Ok(None) => return,
            Err(fault) => return assert!(!fault.to_string().is_empty()),
        }
    }
});
