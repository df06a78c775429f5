//! A profile that was measured, in a CSV file that `profile` has written: for the key `profile` of
//! a model in CONFIG and in a workload file.

use super::diagnostics::Diagnostic;
use super::linear_profile;
use super::toml_reader::{TomlTable, TomlValue};
use symphony_gpu::{ProfileTable, TableError};
use symphony_scheduler::limits;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// Reads the file of this name in the table's folder, which `value` names: the profile without
/// batches that take longer than the SLO, or what is wrong with the SLO and what would be right.
/// Returns `None` where the file is wrong, which is reported; `right` is what else may be given.
pub(super) fn read(
    value: &TomlValue<'_>,
    table: &TomlTable<'_>,
    (file, slo): (&str, Nanos),
    right: &str,
) -> Option<Result<Profile, (String, String)>> {
    match ProfileTable::read(&table.folder().join(file)) {
        Ok(measured) => Some(profile(&measured, slo)),
        Err(error) => {
            report(value, table, error, right);
            None
        }
    }
}

fn profile(table: &ProfileTable, slo: Nanos) -> Result<Profile, (String, String)> {
    let mut latencies = table.latencies();
    latencies.truncate(limits::MAX_BATCH);
    linear_profile::check_alone(latencies.first().copied().unwrap_or_default(), slo)?;
    latencies.retain(|&latency| latency <= slo);
    let profile = Profile::measured(&latencies)
        .map_err(|e| (format!("is of a bad profile ({e})"), "measure it again".to_owned()))?;
    let mut typical = table.medians();
    typical.truncate(profile.max_batch());
    Ok(profile.with_typical(typical.into()))
}

/// Reports what is wrong with a profile's file: at its own line where there is one.
fn report(value: &TomlValue<'_>, table: &TomlTable<'_>, error: TableError, right: &str) {
    match error {
        TableError::Line { path, line, problem } => {
            let (wrong, right) =
                problem.split_once("; ").unwrap_or((&problem, "mend it, or measure it again"));
            let (wrong, right) = (wrong.into(), right.into());
            table.add(Diagnostic { file: path, line, field: "profile".into(), wrong, right });
        }
        TableError::Unreadable { path, source } => {
            let wrong = format!("{} can't be read ({source})", path.display());
            value.report(wrong, format!("{right}a CSV file with the columns batch,p50_ms,p99_ms"));
        }
        other => value.report(other, "measure it again"),
    }
}
