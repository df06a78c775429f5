//! Linear profiles as users write them, `alpha_ms` and `beta_ms`: in workload files, in model zoos
//! and in CONFIG. The readers of those, beside this file, call it.

use super::toml_reader::{Bounds, TomlTable};
use symphony_scheduler::limits;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;

/// The range of `alpha_ms` and `beta_ms`: up to an hour.
pub(super) const TERM: Bounds = Bounds::from(0.0, 3.6e6);

/// The range of `slo_ms`: up to an hour.
pub(super) const SLO: Bounds = Bounds::above(0.0, 3.6e6);

/// Reads the fields `alpha_ms` and `beta_ms` of a table.
pub(super) fn read_terms(table: &TomlTable<'_>) -> Option<(f64, f64)> {
    let alpha = table.required("alpha_ms", "what each request adds to a batch, in ms");
    let beta = table.required("beta_ms", "what a batch costs whatever its size, in ms");
    let (alpha, beta) = (alpha.and_then(|v| v.number(TERM)), beta.and_then(|v| v.number(TERM)));
    alpha.zip(beta)
}

/// Returns the profile l(b) = alpha * b + beta up to the largest batch that can matter: the largest
/// that takes at most `slo`.
///
/// Errors: what is wrong and what would be right, where not even a batch of one keeps the SLO.
pub(super) fn profile((alpha_ms, beta_ms): (f64, f64), slo: Nanos) -> Result<Profile, (String, String)> {
    let (alpha, beta) = (Nanos::from_millis_f64(alpha_ms), Nanos::from_millis_f64(beta_ms));
    let alone = alpha + beta;
    if alone == Nanos::ZERO {
        let wrong = "is that of a model that takes no time: alpha_ms + beta_ms is 0";
        return Err((wrong.into(), "give at least one of them a value above 0".into()));
    }
    check_alone(alone, slo)?;
    let largest = (slo - beta).0.checked_div(alpha.0).unwrap_or(u64::MAX);
    let largest = largest.clamp(1, limits::MAX_BATCH as u64) as usize;
    Profile::linear(alpha, beta, largest)
        .map_err(|e| (format!("is of a bad profile ({e})"), "mend it".into()))
}

/// Checks that a batch of one, which takes `alone`, keeps the SLO.
pub(super) fn check_alone(alone: Nanos, slo: Nanos) -> Result<(), (String, String)> {
    if alone <= slo {
        return Ok(());
    }
    let (needs, has) = (alone.as_millis_f64(), slo.as_millis_f64());
    let wrong =
        format!("is {has} ms, but a batch of one alone takes {needs} ms: no request could be in time");
    Err((
        wrong,
        format!("give an SLO of {needs} ms at the very least, twice that to batch, or a faster model"),
    ))
}
