//! Histograms of durations.

use hdrhistogram::{Counter, Histogram};
use symphony_transport::Nanos;

/// An empty histogram of nanoseconds, exact to `digits` decimal digits; it grows with what it is
/// given.
pub(super) fn nanoseconds<C: Counter>(digits: u8) -> Histogram<C> {
    Histogram::new(digits).expect("1 to 5 digits are what it takes")
}

/// Counts a duration; what is longer than an hour counts as an hour.
pub(super) fn record<C: Counter>(histogram: &mut Histogram<C>, duration: Nanos) {
    const HOUR: u64 = Nanos::from_secs(3_600).0;
    histogram.record(duration.0.min(HOUR)).expect("a histogram that grows takes every value");
}
