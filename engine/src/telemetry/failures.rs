//! Failures that clients see, as log lines: a fault of the server as a warning, everything else at
//! level `debug`. At most a few lines a second, however many requests fail: the metrics count them
//! all.

use super::outcome::InferOutcome;
use std::cell::Cell;
use symphony_transport::Nanos;

/// The most lines in a second of each API core.
pub(super) const LINES_A_SECOND: u32 = 10;

/// The rate limit of one API core's log lines about failures.
#[derive(Debug, Default)]
pub struct FailureLog {
    /// The time at which the current second began.
    began: Cell<Nanos>,
    lines: Cell<u32>,
    left_out: Cell<u64>,
}

impl FailureLog {
    /// Logs that a request for `model` ended with this outcome, if there is room for a line.
    pub fn note(&self, now: Nanos, model: &str, outcome: InferOutcome, message: &str) {
        let fault = outcome == InferOutcome::Failed;
        if !fault && !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let Some(left_out) = self.admit(now) else { return };
        if left_out > 0 {
            tracing::warn!(left_out, "failures were not logged: there were too many");
        }
        if fault {
            tracing::warn!(model, outcome = outcome.name(), "{message}");
        } else {
            tracing::debug!(model, outcome = outcome.name(), "{message}");
        }
    }

    /// Returns `None` if there is no room for a line now, else the number of lines left out before
    /// it.
    fn admit(&self, now: Nanos) -> Option<u64> {
        if now >= self.began.get() + Nanos::from_secs(1) {
            self.began.set(now);
            self.lines.set(0);
        }
        if self.lines.get() == LINES_A_SECOND {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        }
        self.lines.set(self.lines.get() + 1);
        Some(self.left_out.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_and_what_was_left_out_is_told_with_the_next() {
        let log = FailureLog::default();
        let at = |ms| log.admit(Nanos::from_secs(5) + Nanos::from_millis(ms));
        assert!((0..10).all(|ms| at(ms) == Some(0)));
        assert!((10..25).all(|ms| at(ms).is_none()));
        assert_eq!(at(999), None);
        assert_eq!((at(1_000), at(1_001)), (Some(16), Some(0)));
    }
}
