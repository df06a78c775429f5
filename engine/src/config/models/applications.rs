//! The key `applications` of a model: the kinds of requests that it is asked, whose run times
//! differ (Yu's dissertation, chapter 4). Each is served by itself, with a profile of its own.

use crate::config::toml_reader::{Bounds, TomlTable, TomlValue, read_each};
use std::sync::Arc;

/// The most bytes of an application's name, which stands in requests, labels and logs.
const MAX_NAME: usize = 64;

/// The scales that an application may have.
const SCALES: Bounds = Bounds::from(0.001, 1_000.0);

/// An application of a model: requests whose run times are alike.
#[derive(Clone, PartialEq, Debug)]
pub struct ServedApplication {
    /// The name by which requests say that they are of it.
    pub name: Arc<str>,
    /// The place among the model's. Requests that name none are of the first.
    pub at: usize,
    /// How many times as long its batches take as the model's profile says, before any has run.
    pub scale: f64,
}

/// Reads the key `applications`: none where all requests are alike.
pub(in crate::config) fn read_applications(table: &TomlTable<'_>) -> Option<Vec<ServedApplication>> {
    const RIGHT: &str =
        "it must be a list of two or more, like [{ name = \"chat\" }, { name = \"summary\", scale = 4 }]";
    let Some(value) = table.optional("applications") else { return Some(Vec::new()) };
    let read = read_each(&value.items(RIGHT)?, |item| item.table(read_application))?;
    if read.len() < 2 {
        value.report("is too short", RIGHT);
        return None;
    }
    for (at, (name, _)) in read.iter().enumerate() {
        if read[..at].iter().any(|(before, _)| before == name) {
            value.report(format!("names \"{name}\" twice"), "give each application a name of its own");
            return None;
        }
    }
    let application = |(at, (name, scale))| ServedApplication { name, at, scale };
    Some(read.into_iter().enumerate().map(application).collect())
}

fn read_application(table: &TomlTable<'_>) -> Option<(Arc<str>, f64)> {
    let name =
        table.required("name", "the name that requests give").and_then(|value| read_application_name(&value));
    let scale = table.optional("scale").map_or(Some(1.0), |value| value.number(SCALES));
    Some((name?, scale?))
}

/// Reads an application's name, of a model or of a token.
pub(in crate::config) fn read_application_name(value: &TomlValue<'_>) -> Option<Arc<str>> {
    let name = value.text("an application's name")?;
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(good) {
        value.refuse_value(format!("1 to {MAX_NAME} letters, digits, `_`, `-` and `.`"));
        return None;
    }
    Some(name.into())
}
