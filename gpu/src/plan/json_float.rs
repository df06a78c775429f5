//! Floats in the header of a plan's file: JSON has no infinities and no NaN, so these are texts.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number as it stands in JSON.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonFloat {
    Finite(f32),
    Text(String),
}

pub(super) fn serialize<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    let json = if value.is_finite() { JsonFloat::Finite(*value) } else { JsonFloat::Text(value.to_string()) };
    json.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    match JsonFloat::deserialize(deserializer)? {
        JsonFloat::Finite(value) => Ok(value),
        JsonFloat::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}
