//! Diagnostics of a user's file: the location, what is wrong, and what would be right. The readers
//! report them; the commands print them and end with exit code 2.

use std::fmt::{self, Write};
use std::path::PathBuf;

/// One diagnostic. Shown as `FILE:LINE: FIELD: what is wrong; what would be right`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    /// The file that it is about.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The field, with the path to it: `models[2].slo_ms` is of the third model. `TOML` where the
    /// text is no TOML at all.
    pub field: String,
    /// The problem.
    pub wrong: String,
    /// The remedy.
    pub right: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { file, line, field, wrong, right } = self;
        let whole = format!("{}:{line}: {field}: {wrong}; {right}", file.display());
        // What a file holds is quoted: it must not break the line, nor speak to the terminal.
        whole
            .chars()
            .try_for_each(|c| f.write_char(if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }))
    }
}

/// A field's location in a file, kept for a diagnostic that shows only later: when the model is
/// loaded, say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The field, as in [`Diagnostic::field`].
    pub field: String,
}

impl Location {
    /// Returns a diagnostic at this location: what is wrong, and what would be right.
    pub fn diagnostic(&self, wrong: impl fmt::Display, right: impl fmt::Display) -> Diagnostic {
        let Location { file, line, field } = self.clone();
        Diagnostic { file, line, field, wrong: wrong.to_string(), right: right.to_string() }
    }
}

/// Every diagnostic that was found, at least one, in the order of the file. Shown one on each line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, diagnostic) in self.0.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostics {}
