//! A run as a file that can be read again: its figures and its seconds, each with a histogram.
//! `--save` writes it and `loadgen compare` reads it.

use super::{Figures, Report};
use crate::loadgen::measure::{End, Second, Seconds};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A run read back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saved {
    /// All that `--json` prints.
    #[serde(flatten)]
    pub figures: Figures,
    /// The run second by second; empty in what `--json` prints.
    #[serde(default)]
    pub seconds: Vec<SavedSecond>,
}

/// One second of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedSecond {
    /// Requests whose time came.
    pub offered: u64,
    /// Answered in time.
    pub good: u64,
    /// Latencies of good and late requests: pairs of microseconds (exact to 1 %) and requests, in
    /// order.
    pub latency_us: Vec<(u64, u64)>,
}

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1 << 30;

impl SavedSecond {
    fn new(second: &Second) -> SavedSecond {
        let recorded = second.latency.iter_recorded();
        SavedSecond {
            offered: second.offered,
            good: second.ended(End::Good),
            latency_us: recorded
                .map(|value| (value.value_iterated_to() / 1_000, u64::from(value.count_at_value())))
                .collect(),
        }
    }
}

impl Report {
    /// The run as JSON that [`Saved::read`] reads.
    pub fn saved_json(&self) -> String {
        let seconds = self.tally.seconds.iter().map(SavedSecond::new).collect();
        let saved = Saved { figures: self.figures.clone(), seconds };
        serde_json::to_string(&saved).expect("plain numbers and names can always be written")
    }
}

impl Saved {
    /// Reads what `--save` wrote, or what `--json` printed, which has no seconds.
    ///
    /// Errors: the defect of the file.
    pub fn read(path: &Path) -> Result<Saved, String> {
        let failed = |what: String| format!("{}: {what}", path.display());
        let io = |e: std::io::Error| failed(format!("can't be read ({e})"));
        if std::fs::metadata(path).map_err(io)?.len() > MAX_FILE_BYTES {
            return Err(failed(format!("it is larger than {MAX_FILE_BYTES} bytes")));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        serde_json::from_slice(&bytes)
            .map_err(|e| failed(format!("it is no run of loadgen ({e}); give a file of --save or --json")))
    }

    /// All latencies, ns.
    pub fn latency(&self) -> Histogram<u32> {
        const HOUR_US: u64 = 3_600_000_000;
        let mut all = Seconds::histogram();
        for &(us, count) in self.seconds.iter().flat_map(|second| &second.latency_us) {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            all.record_n(us.min(HOUR_US) * 1_000, count).expect("a histogram that grows takes every value");
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recorded, report};
    use super::*;

    #[test]
    fn what_is_saved_is_read_back_and_so_is_what_is_printed() {
        let (plan, tally) = recorded();
        let report = report(&plan, tally);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        std::fs::write(&path, report.saved_json()).unwrap();
        let saved = Saved::read(&path).unwrap();
        assert_eq!(saved.figures, report.figures);
        assert_eq!(saved.seconds.len(), 10);
        assert_eq!((saved.seconds[0].offered, saved.seconds[0].good), (1, 1));
        let p50 = saved.latency().value_at_quantile(0.5) as f64 / 1e6;
        assert!((p50 - 30.0).abs() < 0.5, "{p50}");
        std::fs::write(&path, report.json()).unwrap();
        assert_eq!(Saved::read(&path).unwrap().seconds, []);
        std::fs::write(&path, "{}").unwrap();
        let error = Saved::read(&path).unwrap_err();
        assert!(error.contains("run.json: it is no run of loadgen"), "{error}");
    }
}
