//! `symphony top`: what a running server does, in a terminal.

use super::Failure;
use crate::top::{Feed, TopOptions, run};

/// Shows the server at `url` until `q` is pressed, or prints one frame.
///
/// Errors: a wrong URL, exit code 2; a server that can't be reached or a terminal that can't be used, exit code 1.
pub fn top(url: &str, options: TopOptions) -> Result<(), Failure> {
    let feed = Feed::new(url).map_err(Failure::Input)?;
    run(&feed, options).map_err(Failure::Run)
}
