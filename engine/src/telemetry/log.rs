//! Log lines on standard error: the engine's layout at start-up, and failures that clients see. API
//! cores and the thread that waits for the server's end write them; ModelThreads and RankThreads
//! write none once they run.

use crate::config::{LogConfig, LogFormat};

/// Sets the format and the level of the process's log lines. Only the first call of a process has
/// an effect.
pub fn start(config: LogConfig) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(config.level)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    let _ = match config.format {
        LogFormat::Text => lines.compact().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
}
