//! The elements of tensors between what clients send and what lies in a row: `json` reads and
//! writes them as JSON, `elements` those of BYTES, which differ in length on the wire and take the
//! same room each in a row. All other types lie in a row as they come over the wire.

pub(in crate::api) mod elements;
pub(in crate::api) mod json;
