//! Trace and log settings, by Triton's names. A setting without a meaning here has one value, and
//! another value is refused, so that no client believes to have turned on a feature that does not
//! exist.

use crate::api::problem::{Problem, names, quoted};
use std::sync::atomic::{AtomicU32, Ordering};

/// The value of a setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::api) enum SettingValue {
    /// True or false.
    Bool(bool),
    /// A number.
    Number(u32),
    /// A text.
    Text(String),
}

/// The highest verbosity of the log.
const MOST_VERBOSE: u32 = 1;

/// The log's settings, which all API cores share.
#[derive(Default, Debug)]
pub(in crate::api) struct LogSettings {
    verbose: AtomicU32,
}

impl LogSettings {
    /// Returns true if each infer request is logged.
    pub(in crate::api) fn is_verbose(&self) -> bool {
        self.verbose.load(Ordering::Relaxed) > 0
    }

    /// Returns all settings.
    pub(in crate::api) fn all(&self) -> [(&'static str, SettingValue); 6] {
        let verbose = self.verbose.load(Ordering::Relaxed);
        [
            ("log_file", SettingValue::Text(String::new())),
            ("log_info", SettingValue::Bool(true)),
            ("log_warning", SettingValue::Bool(true)),
            ("log_error", SettingValue::Bool(true)),
            ("log_verbose_level", SettingValue::Number(verbose)),
            ("log_format", SettingValue::Text("default".into())),
        ]
    }

    /// Applies the given settings, all or none.
    ///
    /// Errors: 400 with the settings that exist, or the values that one may have.
    pub(in crate::api) fn update(&self, given: &[(String, SettingValue)]) -> Result<(), Problem> {
        let all = self.all();
        let mut verbose = None;
        for (name, value) in given {
            let (_, now) = known(&all, "log", name)?;
            match (name.as_str(), value) {
                ("log_verbose_level", SettingValue::Number(level @ 0..=MOST_VERBOSE)) => {
                    verbose = Some(*level)
                }
                ("log_verbose_level", _) => {
                    return Err(Problem::bad(
                        "log setting log_verbose_level must be 0 or 1, a line per request",
                    ));
                }
                (_, value) if value == now => {}
                _ => {
                    let message =
                        format!("log setting {name} can't be changed here: it is always {}", now.shown());
                    return Err(Problem::bad(message));
                }
            }
        }
        verbose.into_iter().for_each(|level| self.verbose.store(level, Ordering::Relaxed));
        Ok(())
    }
}

impl SettingValue {
    fn shown(&self) -> String {
        match self {
            SettingValue::Bool(on) => on.to_string(),
            SettingValue::Number(number) => number.to_string(),
            SettingValue::Text(text) => quoted(text),
        }
    }
}

/// Triton's trace settings and the values that they always have: traces of single requests are not
/// written; the times of a request's events are parameters of its answer.
pub(in crate::api) const TRACE: [(&str, &str); 6] = [
    ("trace_level", "OFF"),
    ("trace_rate", "1000"),
    ("trace_count", "-1"),
    ("log_frequency", "0"),
    ("trace_file", ""),
    ("trace_mode", "triton"),
];

/// Checks trace settings, each a list of values, empty for the default.
///
/// Errors: 400 for a setting that does not exist, or a value that it can't have.
pub(in crate::api) fn update_trace(given: &[(String, Vec<String>)]) -> Result<(), Problem> {
    for (name, values) in given {
        let (_, value) = known(&TRACE, "trace", name)?;
        if values.iter().any(|given| given != value) {
            return Err(Problem::bad(format!(
                "trace setting {name} can't be changed here: it is always {value:?}. The answer to each request says in \
                 its parameters when what happened to it"
            )));
        }
    }
    Ok(())
}

fn known<'a, T>(
    all: &'a [(&'static str, T)],
    kind: &str,
    name: &str,
) -> Result<&'a (&'static str, T), Problem> {
    all.iter().find(|(known, _)| *known == name).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
        let known = names(known.iter().copied());
        Problem::bad(format!("there is no {kind} setting {}; there are {known}", quoted(name)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(settings: &LogSettings, given: &[(&str, SettingValue)]) -> Result<(), String> {
        let given: Vec<_> = given.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        settings.update(&given).map_err(|problem| problem.message)
    }

    #[test]
    fn the_verbose_level_is_changed_and_what_means_nothing_here_is_refused() {
        let settings = LogSettings::default();
        assert!(!settings.is_verbose());
        update(
            &settings,
            &[("log_info", SettingValue::Bool(true)), ("log_verbose_level", SettingValue::Number(1))],
        )
        .unwrap();
        assert!(settings.is_verbose());
        assert!(
            update(&settings, &[("log_verbose_level", SettingValue::Number(2))])
                .unwrap_err()
                .contains("0 or 1")
        );
        assert!(
            update(&settings, &[("log_info", SettingValue::Bool(false))])
                .unwrap_err()
                .contains("always true")
        );
        let mixed = [("log_verbose_level", SettingValue::Number(0)), ("log_level", SettingValue::Number(0))];
        assert!(update(&settings, &mixed).unwrap_err().contains("there are [\"log_file\""));
        assert!(settings.is_verbose(), "all or none");
    }

    #[test]
    fn traces_stay_off() {
        let given = |name: &str, values: &[&str]| {
            vec![(name.to_string(), values.iter().map(|v| v.to_string()).collect::<Vec<_>>())]
        };
        update_trace(&given("trace_level", &["OFF"])).unwrap();
        update_trace(&given("trace_rate", &[])).unwrap();
        assert!(update_trace(&given("trace_level", &["TIMESTAMPS"])).unwrap_err().message.contains("always"));
        assert!(update_trace(&given("trace_levle", &["OFF"])).unwrap_err().message.contains("there are"));
    }
}
