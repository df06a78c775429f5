//! The table `[log]` of CONFIG, and the flags that override it.

use super::toml_reader::TomlTable;
use std::str::FromStr;
use tracing::level_filters::LevelFilter;

/// The format of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// The time, the level and the message, then `name=value` pairs.
    #[default]
    Text,
    /// One JSON object: `timestamp`, `level`, `message`, and the values by name.
    Json,
}

impl LogFormat {
    /// Every format with its name.
    pub const ALL: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

    /// Returns the format of this name.
    pub fn named(name: &str) -> Option<LogFormat> {
        LogFormat::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, format)| format)
    }
}

/// Names of the log levels, the least verbose first.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Returns the log level of this name, one of [`LEVELS`].
fn level_named(name: &str) -> Option<LevelFilter> {
    LEVELS.contains(&name).then(|| LevelFilter::from_str(name).ok()).flatten()
}

/// The format and the level of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// The format of each line.
    pub format: LogFormat,
    /// The least important level that is written.
    pub level: LevelFilter,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { format: LogFormat::Text, level: LevelFilter::INFO }
    }
}

/// Command-line flags that override [`LogConfig`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogFlags {
    /// A name in [`LogFormat::ALL`].
    pub format: Option<String>,
    /// A name in [`LEVELS`].
    pub level: Option<String>,
}

impl LogConfig {
    /// Reads the table `[log]`.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<LogConfig> {
        let default = LogConfig::default();
        root.section("log", |table| {
            let formats = LogFormat::ALL.map(|(name, _)| name);
            let format = table
                .optional("format")
                .map_or(Some(default.format), |value| value.word(&formats).and_then(LogFormat::named));
            let level = table
                .optional("level")
                .map_or(Some(default.level), |value| value.word(&LEVELS).and_then(level_named));
            Some(LogConfig { format: format?, level: level? })
        })
    }

    /// Returns this configuration, overridden by the flags.
    pub fn with(mut self, flags: &LogFlags) -> LogConfig {
        if let Some(format) = flags.format.as_deref().and_then(LogFormat::named) {
            self.format = format;
        }
        if let Some(level) = flags.level.as_deref().and_then(level_named) {
            self.level = level;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_override_the_configuration() {
        let config = LogConfig { format: LogFormat::Json, level: LevelFilter::WARN };
        assert_eq!(config.with(&LogFlags::default()), config);
        let flags = LogFlags { format: Some("text".into()), level: Some("debug".into()) };
        assert_eq!(config.with(&flags), LogConfig { format: LogFormat::Text, level: LevelFilter::DEBUG });
        assert!(LEVELS.iter().all(|name| level_named(name).is_some()));
        assert_eq!((level_named("loud"), LogFormat::named("xml")), (None, None));
    }
}
