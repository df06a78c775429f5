//! `symphony top`: what a running server does, in a terminal.

use super::Failure;
use crate::top::{Feed, TopOptions, run};
use std::path::Path;

/// Shows the server at `url`, which may want the token in a file, until `q` is pressed, or prints
/// one frame.
///
/// Errors: a wrong URL or token, exit code 2; a server that can't be reached or a terminal that
/// can't be used, exit code 1.
pub fn top(url: &str, token_file: Option<&Path>, options: TopOptions) -> Result<(), Failure> {
    let token = token_file.map(|file| {
        let said = |error| Failure::Input(format!("{}: the token can't be read: {error}", file.display()));
        std::fs::read_to_string(file).map_err(said)
    });
    let token = token.transpose()?.unwrap_or_default();
    let feed = Feed::new(url, token.trim()).map_err(Failure::Input)?;
    run(&feed, options).map_err(Failure::Run)
}
