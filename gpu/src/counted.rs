//! How messages write a number of things.

/// Returns `1 page` or `2 pages`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", plural(count))
}

/// Returns what the name of so many things ends in.
pub fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Returns the verb of so many things.
pub fn are(count: u64) -> &'static str {
    if count == 1 { "is" } else { "are" }
}
