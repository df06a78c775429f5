//! Log lines on standard error: what start-up says, and failures that clients see. API cores and
//! the thread that waits for the server's end write them; ModelThreads and RankThreads say nothing
//! once they run.

use std::str::FromStr;
use tracing::level_filters::LevelFilter;

/// How a line looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// The time, the level, the words, then `name=value`.
    #[default]
    Text,
    /// One JSON object: `timestamp`, `level`, `message`, and the values by name.
    Json,
}

impl LogFormat {
    /// All of them by name.
    pub const ALL: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

    /// The one with this name.
    pub fn named(name: &str) -> Option<LogFormat> {
        LogFormat::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }
}

/// Names of the levels, the least talkative first.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// What is logged, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// How a line looks.
    pub format: LogFormat,
    /// The least important lines that are written.
    pub level: LevelFilter,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { format: LogFormat::Text, level: LevelFilter::INFO }
    }
}

/// What the command line says of logging holds over what CONFIG does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogFlags {
    /// One of [`LogFormat::ALL`].
    pub format: Option<String>,
    /// One of [`LEVELS`].
    pub level: Option<String>,
}

/// The level with this name.
pub fn level_named(name: &str) -> Option<LevelFilter> {
    LEVELS.contains(&name).then(|| LevelFilter::from_str(name).ok()).flatten()
}

impl LogConfig {
    /// This, but for what the flags say.
    pub fn with(mut self, flags: &LogFlags) -> LogConfig {
        if let Some(format) = flags.format.as_deref().and_then(LogFormat::named) {
            self.format = format;
        }
        if let Some(level) = flags.level.as_deref().and_then(level_named) {
            self.level = level;
        }
        self
    }

    /// From here on the process's lines are written so. Only the first call of a process counts.
    pub fn start(self) {
        let lines = tracing_subscriber::fmt()
            .with_max_level(self.level)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .with_target(false);
        let _ = match self.format {
            LogFormat::Text => lines.compact().try_init(),
            LogFormat::Json => lines.json().flatten_event(true).try_init(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_hold_over_the_configuration() {
        let config = LogConfig { format: LogFormat::Json, level: LevelFilter::WARN };
        assert_eq!(config.with(&LogFlags::default()), config);
        let flags = LogFlags { format: Some("text".into()), level: Some("debug".into()) };
        assert_eq!(config.with(&flags), LogConfig { format: LogFormat::Text, level: LevelFilter::DEBUG });
        assert!(LEVELS.iter().all(|name| level_named(name).is_some()));
        assert_eq!((level_named("loud"), LogFormat::named("xml")), (None, None));
    }
}
