//! Several searches one after another, and whether they agree: the trial of the search itself.

use super::report::Report;
use serde::Serialize;

/// The ratio of the highest rate found to the lowest, less 1, up to which searches agree.
pub const AGREEMENT: f64 = 0.15;

/// The results of several searches.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// True if the rates found agree within [`AGREEMENT`].
    pub passed: bool,
    /// The rates found, requests per second, in order of time.
    pub rates: Vec<f64>,
    /// The ratio of the highest to the lowest, less 1.
    pub spread: f64,
    /// The share of a core that another process took meanwhile.
    pub disturbed_by: Option<f64>,
    /// The run that each search found.
    pub reports: Vec<Report>,
}

impl Agreement {
    /// Compares the runs that searches found.
    pub fn of(reports: Vec<Report>, disturbed_by: Option<f64>) -> Agreement {
        let rates: Vec<f64> = reports.iter().map(|report| report.rate).collect();
        let (lowest, highest) = rates
            .iter()
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), &rate| (low.min(rate), high.max(rate)));
        let spread = if rates.is_empty() { 0.0 } else { highest / lowest - 1.0 };
        Agreement { passed: spread <= AGREEMENT, rates, spread, disturbed_by, reports }
    }

    /// Formats the figures as lines to read.
    pub fn lines(&self) -> String {
        let rates: Vec<String> = self.rates.iter().map(|rate| format!("{:.3}", rate / 1e6)).collect();
        let verdict = if self.passed { "passed" } else { "failed" };
        let disturbed = self
            .disturbed_by
            .map_or(String::new(), |share| format!("\nbeside        a process that took {share} of a core"));
        format!(
            "searches      {} M requests/s\nagree within  {:.1} % ({verdict}: the limit is {:.0} %){disturbed}",
            rates.join(", "),
            100.0 * self.spread,
            100.0 * AGREEMENT
        )
    }
}
