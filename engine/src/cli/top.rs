//! `symphony top`: the state of a running server, in a terminal.

use super::failure::CommandFailure;
use crate::top::{Feed, ServerAddress, TopOptions, run};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The arguments of `top`.
#[derive(Args)]
pub(super) struct TopArguments {
    /// The server's address
    #[arg(default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Print one frame as plain text, 80 columns wide, and exit
    #[arg(long)]
    once: bool,
    /// Seconds between two refreshes, 0.1 to 60
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// A file with a bearer token, for a server that requires one
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Use no colours; so does a value of the environment variable NO_COLOR
    #[arg(long)]
    no_color: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds.ok_or_else(|| "it must be a number of seconds from 0.1 to 60".to_owned())
}

/// Shows the server's state until `q` is pressed, or prints one frame.
///
/// Errors: a wrong URL or token, exit code 2; a server that can't be reached or a terminal that
/// can't be used, exit code 1.
pub(super) fn top(arguments: TopArguments) -> Result<(), CommandFailure> {
    let TopArguments { url, once, interval, token_file, no_color } = arguments;
    let plain = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let every = Duration::from_secs_f64(interval);
    let token = token_file.as_deref().map(read_token).transpose()?.unwrap_or_default();
    let server = ServerAddress::new(&url, token.trim()).map_err(CommandFailure::Input)?;
    run(&Feed::of(server), TopOptions { once, every, coloured: !plain }).map_err(CommandFailure::Run)
}

/// Reads the bearer token in a file.
///
/// Errors: the file can't be read.
pub(super) fn read_token(file: &Path) -> Result<String, CommandFailure> {
    std::fs::read_to_string(file).map_err(|error| {
        CommandFailure::Input(format!("{}: the token can't be read: {error}", file.display()))
    })
}
