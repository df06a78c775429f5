//! What a host measures of the network for the scheduler: the delays of frames on their way to it
//! (d_ctrl, d_resp), and at a backend the times of fetches (d_data), as high percentiles. Symphony,
//! section 5.5: the tail costs goodput.

use symphony_transport::Nanos;
use symphony_transport::link::{DelayWindow, HostLink};
use symphony_transport::wire::MeasuredDelays;

/// The share of delays that are not longer than what is told.
const SHARE: f64 = 0.99;

/// Fetches of a range of sizes before its times are told.
const LEAST_FETCHES: u64 = 16;

/// Ranges of sizes: up to 1 KiB, and one for each octave above, up to 1 GiB and more.
const RANGES: usize = 21;

/// The time between two tellings.
const TELL_EVERY: Nanos = Nanos::from_millis(250);

/// Returns the high percentile of the delays of the peer's frames on a link that is up, once enough
/// have come.
pub(super) fn way_here(link: &HostLink) -> Option<Nanos> {
    link.is_up().then(|| link.one_way().tail(SHARE))?
}

/// When a host tells the scheduler next.
#[derive(Default)]
pub(super) struct TellingTime {
    next: Nanos,
}

impl TellingTime {
    /// Returns true if it is time to tell; the next time is set.
    pub(super) fn has_come(&mut self, now: Nanos) -> bool {
        let has_come = now >= self.next;
        if has_come {
            self.next = now + TELL_EVERY;
        }
        has_come
    }
}

/// The times that a backend takes to fetch the inputs of its batches, by the bytes of a batch: in
/// 32 KiB, whatever the number of models.
pub(super) struct FetchTimes {
    ranges: Vec<DelayWindow>,
}

impl Default for FetchTimes {
    fn default() -> FetchTimes {
        FetchTimes { ranges: vec![DelayWindow::new(LEAST_FETCHES); RANGES] }
    }
}

/// The range of sizes that so many bytes are in.
fn range_of(bytes: usize) -> usize {
    match (bytes as u64 >> 10).checked_ilog2() {
        None => 0,
        Some(octave) => (octave as usize + 1).min(RANGES - 1),
    }
}

/// The least KiB of a range.
fn least_kib(range: usize) -> u64 {
    range.checked_sub(1).map_or(0, |octave| 1 << octave)
}

impl FetchTimes {
    /// Takes in that the inputs of a batch, so many bytes, were fetched in this time. All ranges
    /// forget together: one that sees no batch any more would else keep what it knew in worse days.
    pub(super) fn record(&mut self, bytes: usize, time: Nanos, now: Nanos) {
        let range = range_of(bytes);
        if self.ranges[range].is_over(now) {
            self.ranges.iter_mut().for_each(|range| range.begin_epoch(now));
        }
        self.ranges[range].record(time, now);
    }

    /// Adds what is known of fetches: the line through the percentile of the least range that was
    /// measured, of the least slope at which no other range's is above it.
    pub(super) fn add_to(&self, delays: &mut MeasuredDelays) {
        let mut points = self
            .ranges
            .iter()
            .enumerate()
            .filter_map(|(range, times)| Some((least_kib(range), times.tail(SHARE)?)));
        let Some((first_kib, fetch)) = points.next() else { return };
        let slope = |(kib, time): (u64, Nanos)| (time - fetch).0.div_ceil(kib - first_kib);
        (delays.fetch, delays.fetch_per_kib) = (fetch, Nanos(points.map(slope).max().unwrap_or(0)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(fetches: &FetchTimes) -> (Nanos, Nanos) {
        let mut delays = MeasuredDelays::UNKNOWN;
        fetches.add_to(&mut delays);
        (delays.fetch, delays.fetch_per_kib)
    }

    #[test]
    fn no_range_of_sizes_takes_longer_than_the_line_says() {
        let mut fetches = FetchTimes::default();
        assert_eq!(told(&fetches), (Nanos::MAX, Nanos::MAX));
        // 100 us, and 2 us for each KiB: of 600 bytes, 64 KiB and 1 MiB.
        let time = |bytes: usize| Nanos::from_micros(100 + 2 * (bytes as u64 >> 10));
        for bytes in [600, 64 << 10, 1 << 20] {
            (0..LEAST_FETCHES - 1).for_each(|_| fetches.record(bytes, time(bytes), Nanos::ZERO));
        }
        assert_eq!(told(&fetches), (Nanos::MAX, Nanos::MAX), "too few");
        fetches.record(600, time(600), Nanos::ZERO);
        let (fetch, per_kib) = told(&fetches);
        assert!(Nanos::from_micros(100) <= fetch && fetch < Nanos::from_micros(115), "{fetch:?}");
        assert_eq!(per_kib, Nanos::ZERO, "of one range nothing is known but its own time");
        [64 << 10, 1 << 20].into_iter().for_each(|bytes| fetches.record(bytes, time(bytes), Nanos::ZERO));
        let (fetch, per_kib) = told(&fetches);
        for bytes in [600, 64 << 10, 1 << 20] {
            let line = fetch + Nanos(per_kib.0 * (bytes as u64 >> 10));
            assert!(time(bytes) <= line && line.0 < time(bytes).0 * 4 / 3, "{bytes} bytes: {line:?}");
        }
    }

    #[test]
    fn a_range_without_batches_forgets_with_the_others() {
        let mut fetches = FetchTimes::default();
        let mut now = Nanos::ZERO;
        let mut record = |bytes: usize, time: Nanos| {
            (0..100).for_each(|_| fetches.record(bytes, time, now));
            now += Nanos::from_secs(1);
            told(&fetches)
        };
        let (_, per_kib) =
            [(600, 1), (64 << 10, 300)].map(|(bytes, ms)| record(bytes, Nanos::from_millis(ms)))[1];
        assert!(per_kib > Nanos::from_millis(4), "{per_kib:?}");
        let forgotten = [1; 3].map(|ms| record(600, Nanos::from_millis(ms)).1);
        assert_eq!(forgotten[2], Nanos::ZERO);
    }

    #[test]
    fn the_largest_batches_are_of_the_last_range() {
        assert_eq!([0, 1023, 1024, 2048, usize::MAX].map(range_of), [0, 0, 1, 2, RANGES - 1]);
        assert_eq!([0, 1, 2, 3].map(least_kib), [0, 1, 2, 4]);
    }
}
