//! A model's configuration as a client sends it with a load: protobuf's JSON of Triton's
//! `ModelConfig`, rewritten in the text format, which `triton.rs` reads.

use serde_json::{Map, Value};
use std::fmt::Write as _;

/// Fields whose values JSON may have as strings, since they have 64 bits or are words.
const WITHOUT_QUOTES: [&str; 9] = [
    "batch_size",
    "count",
    "data_type",
    "default_priority_level",
    "dims",
    "max_batch_size",
    "num_versions",
    "priority_levels",
    "versions",
];

/// Fields that are maps: an object in JSON, entries with a key and a value in the text format.
const MAPS: [&str; 5] = ["cc_model_filenames", "inputs", "metric_tags", "model_filename", "parameters"];

/// Returns the configuration in the text format, on one line.
///
/// Errors: it is no JSON object, or has a name that no field can have.
pub(super) fn as_text(json: &str) -> Result<String, String> {
    let fields: Map<String, Value> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let mut text = String::new();
    write_fields(&mut text, &fields)?;
    Ok(text)
}

fn write_fields(text: &mut String, fields: &Map<String, Value>) -> Result<(), String> {
    for (name, value) in fields {
        let name = snake_case(name)?;
        match value {
            Value::Array(values) => values.iter().try_for_each(|value| write_field(text, &name, value))?,
            Value::Object(entries) if MAPS.contains(&&*name) => {
                for (key, value) in entries {
                    let _ = write!(text, "{name} {{ key: {} ", quoted(key));
                    write_field(text, "value", value)?;
                    text.push_str("} ");
                }
            }
            value => write_field(text, &name, value)?,
        }
    }
    Ok(())
}

fn write_field(text: &mut String, name: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            let _ = write!(text, "{name} {{ ");
            write_fields(text, fields)?;
            text.push_str("} ");
        }
        Value::Array(_) => return Err(format!("{name} is a list of lists")),
        Value::String(word) if WITHOUT_QUOTES.contains(&name) && is_plain(word) => {
            let _ = write!(text, "{name}: {word} ");
        }
        Value::String(string) => {
            let _ = write!(text, "{name}: {} ", quoted(string));
        }
        Value::Bool(_) | Value::Number(_) => {
            let _ = write!(text, "{name}: {value} ");
        }
    }
    Ok(())
}

/// Returns true if a text is a word or a number.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// Returns a field's name in the text format; JSON may have it in camel case.
fn snake_case(name: &str) -> Result<String, String> {
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) || !is_plain(name) || name.contains('-') {
        let shown: String = name.chars().take(40).collect();
        return Err(format!("no field is called {shown:?}"));
    }
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    Ok(snake)
}

fn quoted(string: &str) -> String {
    let mut quoted = String::from("\"");
    for character in string.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                for byte in control.to_string().bytes() {
                    let _ = write!(quoted, "\\{byte:03o}");
                }
            }
            other => quoted.push(other),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::repository::pbtxt;
    use proptest::prelude::*;
    use std::path::Path;

    #[test]
    fn json_becomes_the_text_format() {
        for (json, text) in [
            ("{}", ""),
            (r#"{"name":"a\"b\n","maxBatchSize":8}"#, r#"max_batch_size: 8 name: "a\"b\012" "#),
            (r#"{"max_batch_size":"4","backend":null}"#, "max_batch_size: 4 "),
            (
                r#"{"input":[{"name":"x","data_type":"TYPE_FP32","dims":["-1",3]}]}"#,
                r#"input { data_type: TYPE_FP32 dims: -1 dims: 3 name: "x" } "#,
            ),
            (
                r#"{"parameters":{"k":{"string_value":"v"}}}"#,
                r#"parameters { key: "k" value { string_value: "v" } } "#,
            ),
        ] {
            assert_eq!(as_text(json).as_deref(), Ok(text));
        }
        for wrong in ["", "[]", "{\"a b\":1}", "{\"\":1}", "{\"a\":[[1]]}", "{\"}\":1}"] {
            assert!(as_text(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_name_and_string_survives(name in "[a-z][a-z_]{0,8}", string in any::<String>()) {
            let json = Value::Object([(name.clone(), Value::String(string.clone()))].into_iter().collect());
            let text = as_text(&json.to_string()).unwrap();
            let fields = pbtxt::parse(Path::new("config"), &text).unwrap();
            prop_assert_eq!(fields.len(), 1);
            prop_assert_eq!(fields[0].name, name.as_str());
            if !WITHOUT_QUOTES.contains(&&*name) {
                let read = fields[0].value.text();
                prop_assert_eq!(read.as_deref(), Some(string.as_str()));
            }
        }
    }
}
